"""MLPerf training v0.7 on 4 or more GPUs, predicted from the catalogue alone.

``train_throughput.csv``: samples per second during training, by ``system``, ``accelerator``,
``benchmark``, ``num_nodes``, ``num_accel`` and ``global_batch``.
"""

from __future__ import annotations

import collections
import re
from pathlib import Path

import msgspec

from benchmarks.accuracy import catalogued, rows
from benchmarks.accuracy.cases import Case, about, predicted

SOURCE = "mlperf"
ABOUT = about(SOURCE)
TASKS = msgspec.convert(ABOUT.facts["tasks"], dict[str, catalogued.Task])
MACHINES = msgspec.convert(ABOUT.facts["machines"], dict[str, catalogued.Machine])
REASONS: dict[str, str] = ABOUT.facts["left_out"]
"""Reasons for leaving out systems, by pattern, and benchmarks."""


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """A row of the table."""

    org: str
    system: str
    benchmark: str
    accelerator: str
    num_accel: int
    global_batch: int
    train_samples_per_s: float = 0.0
    framework: str = ""

    @property
    def machine(self) -> catalogued.Machine | None:
        """Return the first of :data:`MACHINES` whose pattern matches system and accelerator."""
        named = f"{self.system} {self.accelerator}"
        return next((m for text, m in MACHINES.items() if re.search(text, named)), None)

    @property
    def used(self) -> str | None:
        """Return the framework; where a system used MXNet and PyTorch, MXNet is for ResNet."""
        several = self.benchmark != "resnet" and "pytorch" in self.framework.lower()
        return "pytorch" if several else catalogued.framework_of(self.framework)

    @property
    def reason(self) -> str | None:
        """Return why the row is left out; None if it is used."""
        if not self.train_samples_per_s:
            return "no throughput"
        what = f"{self.benchmark}: {self.system} {self.accelerator}"
        for pattern, why in REASONS.items():
            if re.search(pattern, what):
                return why
        return None if self.machine else "no GPU of the catalogue"


def cases(folder: Path) -> list[Case]:
    """Return the step time of every row that the catalogue supports."""
    found: list[catalogued.Row] = []
    left_out = collections.Counter[str]()
    for row in rows.read(folder / "train_throughput.csv", Row):
        task, machine, why = TASKS.get(row.benchmark), row.machine, row.reason
        if why is not None or task is None or machine is None:
            left_out[why or f"the catalogue has no {row.benchmark}"] += 1
            continue
        found.append(
            catalogued.Row(
                name=f"{row.benchmark} on {row.org} {row.system}, {row.num_accel} GPUs",
                task=task,
                machine=machine,
                precision="mixed",
                workers=row.num_accel,
                samples_per_s=row.train_samples_per_s / task.sample,
                batch_size=max(1, round(row.global_batch * task.batch / row.num_accel)),
                framework=row.used,
            )
        )
    return predicted(catalogued.runs(SOURCE, found, left_out, tuned=True))
