"""PyTorch on one to eight GPUs of one machine, from Lambda, predicted from the catalogue alone.

``throughput.csv``: units of each task per second, by ``gpu``, ``precision``, ``task``,
``num_gpus`` and ``global_batch``.
"""

from __future__ import annotations

import collections
from pathlib import Path

import msgspec

from benchmarks.accuracy import catalogued, rows
from benchmarks.accuracy.cases import Case, about, predicted

SOURCE = "lambda_pytorch"
ABOUT = about(SOURCE)
TASKS = msgspec.convert(ABOUT.facts["tasks"], dict[str, catalogued.Task])
MACHINES = msgspec.convert(ABOUT.facts["machines"], dict[str, catalogued.Machine])


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """A row of the table."""

    gpu: str
    precision: str
    task: str
    global_batch: int
    num_gpus: int
    throughput: float


def machine_of(gpu: str) -> catalogued.Machine | None:
    """Return the longest name of :data:`MACHINES` contained in the name of a GPU, or None."""
    names = [name for name in MACHINES if name.lower() in gpu.lower()]
    return MACHINES[max(names, key=len)] if names else None


def cases(folder: Path) -> list[Case]:
    """Return the step time of every row that the catalogue supports."""
    found: list[catalogued.Row] = []
    left_out = collections.Counter[str]()
    for row in rows.read(folder / "throughput.csv", Row):
        task, machine = TASKS.get(row.task), machine_of(row.gpu)
        if task is None or machine is None:
            what = f"task {row.task}" if task is None else f"GPU {row.gpu}"
            left_out[f"the catalogue has no {what}"] += 1
            continue
        found.append(
            catalogued.Row(
                name=f"{row.gpu} {row.precision} {row.task}, {row.num_gpus} GPUs",
                task=task,
                machine=machine,
                precision=catalogued.precision_of(row.precision, machine.device),
                workers=row.num_gpus,
                samples_per_s=row.throughput / task.sample,
                framework="pytorch",
                batch_size=max(1, round(row.global_batch * task.batch / row.num_gpus)),
            )
        )
    return predicted(catalogued.runs(SOURCE, found, left_out))
