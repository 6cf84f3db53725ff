"""NVIDIA's examples on one to 64 GPUs, predicted from the catalogue alone.

``throughput.csv``: the tables of the examples' READMEs, read by machine: ``example``, ``section``
(its headings, the last with the machine), ``batch`` (columns that are about batch sizes),
``num_gpus``, ``metric`` (the title of the column) and ``value``.
"""

from __future__ import annotations

import collections
import re
from pathlib import Path

import msgspec

from benchmarks.accuracy import catalogued, rows
from benchmarks.accuracy.cases import Case, about, predicted

SOURCE = "nvidia"
ABOUT = about(SOURCE)
MACHINES = msgspec.convert(ABOUT.facts["machines"], dict[str, catalogued.Machine])


class Example(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An example's task by a pattern of its section and batch, the first that matches; or a task
    for rows with at least ``above`` units a second on each GPU."""

    pattern: str
    task: catalogued.Task
    above: float = 0.0


EXAMPLES = msgspec.convert(ABOUT.facts["examples"], dict[str, list[Example]])


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """A row of the table."""

    example: str
    section: str
    metric: str
    num_gpus: int
    value: float
    batch: str = ""

    @property
    def task(self) -> catalogued.Task | None:
        """The task of the example."""
        for one in EXAMPLES.get(self.example, ()):
            fast = self.value / self.num_gpus >= one.above
            if fast and re.search(one.pattern, f"{self.section} {self.batch}", re.IGNORECASE):
                return one.task
        return None

    @property
    def machine(self) -> catalogued.Machine | None:
        """The machine that the section names."""
        named = [one for one in MACHINES if re.search(one, self.section, re.IGNORECASE)]
        return MACHINES[max(named, key=len)] if named else None

    @property
    def mixed(self) -> bool:
        """Whether products have 16 bits."""
        return "mixed" in self.metric.lower() or "16" in self.metric


def batch_size(text: str, mixed: bool) -> float | None:
    """The batch size of a GPU in a table's columns on it; None if they do not say.

    Of two, in parentheses or behind what they are of, the one of this precision.

    >>> batch_size("Batch size / GPU (TF32 and FP16)=16 and 32 ; Accumulated=4096 and 4096", True)
    32.0
    >>> batch_size("Batch size / GPU: mixed precision, FP32=64 , 32 ; Global=65536", True)
    64.0
    >>> batch_size("Batch Size / GPU=128 (FP32) / 256 (AMP)", False)
    128.0
    """
    named, _, given = text.partition(";")[0].rpartition("=")
    sizes = [float(size.replace(",", "")) for size in re.findall(r"\d{1,3}(?:,\d{3})+|\d+", _plain(given))]
    if len(sizes) < 2:
        return sizes[0] if sizes else None
    first = re.search(r"mixed|fp16|amp", named, re.IGNORECASE)
    other = re.search(r"tf32|fp32", named, re.IGNORECASE)
    mixed_first = bool(first and other and first.start() < other.start()) or "/" in given and not re.search("[a-z]", given)
    return sizes[0 if mixed == mixed_first else 1]


def _plain(text: str) -> str:
    """Without what is in parentheses; thousands written out."""
    return re.sub(r"(\d+)k\b", r"\g<1>000", re.sub(r"\([^)]*\)", "", text))
