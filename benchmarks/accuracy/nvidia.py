"""NVIDIA's examples on one to 64 GPUs, predicted from the catalogue alone.

``throughput.csv`` has the tables of the examples' READMEs: ``example``, ``section`` (headings that
name the machine), ``batch`` (the columns with batch sizes), ``num_gpus``, ``metric`` (the title of
the throughput column) and ``value``.
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


class Example(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The task of those rows of an example whose section and batch match a pattern.

    Attributes
    ----------
    above : minimum units per second and GPU of these rows.
    batch : batch size per GPU and pass, by precision, or by device and precision; used if the table
        gives none, or only that of many passes.
    left_out : why these rows are not predicted.
    """

    task: catalogued.Task
    pattern: str = ""
    above: float = 0.0
    batch: dict[str, int] = {}
    left_out: str = ""


EXAMPLES = msgspec.convert(ABOUT.facts["examples"], dict[str, list[Example]])
MACHINES = msgspec.convert(ABOUT.facts["machines"], dict[str, catalogued.Machine])


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """A row of the table."""

    example: str
    section: str
    metric: str
    num_gpus: int
    value: float
    batch: str = ""

    def found(self, machine: catalogued.Machine, example: Example) -> catalogued.Row:
        """Return the row as a row of the catalogue."""
        precision = catalogued.precision_of(self.metric, machine.device)
        task, named = example.task, f"{machine.device} {precision}"
        known = example.batch.get(named, example.batch.get(precision))
        size, passes = batch_sizes(self.batch, precision == "mixed", self.num_gpus)
        if size is not None:
            size *= task.batch
        if known is not None and size is not None and size > known:
            size, passes = known, size // known
        size = known if size is None else size
        return catalogued.Row(
            name=f"{self.example} on {machine.device}, {precision}, {self.num_gpus} GPUs",
            task=task,
            machine=machine,
            precision=precision,
            workers=self.num_gpus,
            samples_per_s=self.value / task.sample,
            batch_size=None if size is None else round(size),
            passes=max(1, round(passes)),
            framework=catalogued.framework_of(self.example),
        )


def batch_sizes(text: str, mixed: bool, gpus: int) -> tuple[float | None, float]:
    """Return the batch size per GPU and pass, None if unknown, and the passes per update.

    >>> batch_sizes("Batch size / GPU: mixed precision, FP32=64 , 32 ; Global=65536", True, 8)
    (64.0, 128.0)
    >>> batch_sizes("Batch size / GPU (TF32 and FP16)=16 and 32 ; Accumulated=96 and 96", False, 8)
    (16.0, 6.0)
    """
    first, _, rest = text.partition(";")
    size, whole = _size(first, mixed), _size(rest, mixed)
    if size is None or whole is None:
        return size, 1.0
    return size, whole / size / (gpus if "global" in rest.lower() else 1)


def _size(text: str, mixed: bool) -> float | None:
    """Return the number in a column; if there are two, the one for this precision.

    >>> [_size("Batch Size / GPU=128 (FP32) / 256 (AMP)", mixed) for mixed in (True, False)]
    [256.0, 128.0]
    """
    given = text.rpartition("=")[2]
    numbers = re.findall(r"\d{1,3}(?:,\d{3})+|\d+", re.sub(r"\([^)]*\)", "", given))
    sizes = [float(number.replace(",", "")) for number in numbers]
    if len(sizes) < 2:
        return sizes[0] if sizes else None
    order = [word.lower() for word in re.findall(r"(?i)mixed|fp16|amp|\bTF\b|tf32|fp32", text)]
    first = order[0] in ("mixed", "fp16", "amp") if order else True
    return sizes[0 if first == mixed else 1]


def cases(folder: Path) -> list[Case]:
    """Return the step time of every row that the catalogue supports."""
    found: list[catalogued.Row] = []
    left_out = collections.Counter[str]()
    for row in rows.read(folder / "throughput.csv", Row):
        where = f"{row.section} {row.batch}"
        machine = next((m for text, m in MACHINES.items() if re.search(text, row.section)), None)
        of = [
            one
            for one in EXAMPLES.get(row.example, ())
            if re.search(one.pattern, where) and row.value / row.num_gpus >= one.above
        ]
        if machine is None or not of:
            left_out[f"the catalogue has no {row.example if machine else 'such machine'}"] += 1
            continue
        if of[0].left_out:
            left_out[f"{row.example}: {of[0].left_out}"] += 1
            continue
        found.append(row.found(machine, of[0]))
    return predicted(catalogued.runs(SOURCE, found, left_out))
