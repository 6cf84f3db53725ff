"""Cost of spreading a job over cloud machines, from Gavel, predicted from the catalogue alone.

``throughput.csv``: steps per second of all workers together, by ``file``, ``gpu``, ``model``,
``batch_size``, ``scale_factor`` (GPUs) and ``consolidated`` (1: one machine, 0: one per GPU).
Runs with one and with several GPUs come from different machines, so only the ratio of the step time
on several machines to that on one is predicted.
"""

from __future__ import annotations

import collections
from pathlib import Path

import msgspec

from benchmarks.accuracy import catalogued, rows
from benchmarks.accuracy.cases import Case, about
from perfmodel import predict

SOURCE = "gavel"
ABOUT = about(SOURCE)
TASKS = msgspec.convert(ABOUT.facts["tasks"], dict[str, catalogued.Task])
TOGETHER = msgspec.convert(ABOUT.facts["together"], dict[str, catalogued.Machine])
APART = msgspec.convert(ABOUT.facts["apart"], dict[str, catalogued.Machine])
"""Machines by GPU, for jobs on one machine and for jobs on several."""


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """A row of the table."""

    file: str
    gpu: str
    consolidated: int
    model: str
    scale_factor: int
    steps_per_s: float
    batch_size: int = 0

    @property
    def setup(self) -> tuple[str, str, str, int, int]:
        """Everything except the placement of the GPUs."""
        return self.file, self.gpu, self.model, self.batch_size, self.scale_factor

    def alike(self, machine: catalogued.Machine) -> catalogued.Row:
        """Return the row as a row of the catalogue."""
        return catalogued.Row(
            name=self.model,
            task=TASKS[self.model],
            machine=machine,
            precision="float32",
            workers=self.scale_factor,
            samples_per_s=self.steps_per_s * self.batch_size,
            batch_size=self.batch_size,
        )


def cases(folder: Path) -> list[Case]:
    """Return ratios of step times on several machines to those on one; duplicates in the files
    count once."""
    every = [row for row in rows.read(folder / "throughput.csv", Row) if row.scale_factor > 1]
    together = {row.setup: row for row in every if row.consolidated and row.steps_per_s > 0.0}
    left_out = collections.Counter[str]()
    found: dict[tuple[object, ...], Case] = {}
    for row in every:
        if row.consolidated:
            continue
        near = together.get(row.setup)
        if row.model not in TASKS or row.gpu not in APART:
            left_out[f"the catalogue has no {row.model} as it was trained on {row.gpu}"] += 1
        elif near is None or not row.steps_per_s:
            left_out["no throughput on one machine and on several"] += 1
        else:
            found.setdefault((*row.setup[1:], row.steps_per_s, near.steps_per_s), ratio(row, near))
    catalogued.say(left_out)
    return list(found.values())


def ratio(row: Row, near: Row) -> Case:
    """Return the case of a row on several machines and one on a single machine; only the former is
    uncertain."""
    apart = predict(catalogued.job_of(row.alike(APART[row.gpu])))
    whole_s = predict(catalogued.job_of(near.alike(TOGETHER[row.gpu]))).iteration_s
    low, high = apart.interval.iteration_s
    group = f"{SOURCE}/none"
    return Case(
        group=f"{group}/{row.gpu}",
        name=", ".join(map(str, row.setup)),
        predicted=apart.iteration_s / whole_s,
        measured=near.steps_per_s / row.steps_per_s,
        interval=(low / whole_s, high / whole_s),
        pools=(group,),
    )
