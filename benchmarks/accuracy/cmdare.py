"""Asynchronous parameter servers on a public cloud, predicted from runs with few workers.

Li, Walls, Guo, "Characterizing and Modeling Distributed Training with Transient Cloud GPU Servers",
ICDCS 2020 (CM-DARE): TensorFlow 1.10, CIFAR-10, one GPU per worker, servers of four virtual CPUs.
The folder holds ``speed_vs_workers.csv``, steps of all workers per second (the name of a mixed
cluster counts its devices, as in ``2k80+1p100``), and optionally ``one_worker_step_time.csv``, with
tensors and parameters of each model.

Each fit predicts the runs outside the fit. A model that the fit does not include is predicted from
its runs with one worker.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import msgspec

from benchmarks.accuracy import cloud, fitted, rows
from benchmarks.accuracy.cases import Case, Run, about, predicted
from benchmarks.accuracy.cloud import SPREAD, model_of
from perfmodel.base.errors import InputError, number
from perfmodel.calibration import ServersFit, fit_servers

ABOUT = about("cmdare")

SPEEDS = "speed_vs_workers.csv"

MOST_WORKERS = {"n3": 3, "n4": 4, "all": 5}
"""Largest number of workers in the runs of each fit; no larger runs are available."""


class Speed(msgspec.Struct, frozen=True, kw_only=True):
    """A row of ``speed_vs_workers.csv``."""

    gpu: str
    model: str
    num_ps: Annotated[int, msgspec.Meta(ge=1)] = 1
    num_workers: Annotated[int, msgspec.Meta(ge=1)]
    steady_steps_per_s_wall: float

    def __post_init__(self) -> None:
        number("steady_steps_per_s_wall", self.steady_steps_per_s_wall, above=0.0)

    @property
    def mix(self) -> dict[str, int]:
        """Return the number of workers by device."""
        return cloud.mix_of(self.gpu, self.num_workers)

    @property
    def step_s(self) -> float:
        """Step time of a worker."""
        return self.num_workers / self.steady_steps_per_s_wall

    @property
    def names(self) -> set[str]:
        """Return the pairs of device and model."""
        return {f"{device}/{model_of(self.model)}" for device in self.mix}

    @property
    def series(self) -> str:
        """Return the name if there is one server and one kind of device, else ""."""
        return min(self.names) if self.num_ps == len(self.mix) == 1 else ""

    def run(self, split: str, fit: ServersFit, sizes: cloud.Sizes) -> Run:
        """Return the row as a run, predicted by a fit."""
        pool, mix = f"cmdare/{split}", self.mix
        pools = {f"{pool}-mixed": len(mix) > 1, f"{pool}-two-servers": self.num_ps == 2}
        return Run(
            f"{pool}/{self.model}",
            f"{self.gpu} {self.model} {self.num_workers} workers {self.num_ps} servers",
            cloud.job_of(fit, model_of(self.model), mix, self.num_ps, sizes),
            step_s=self.step_s,
            pools=(pool, *(name for name, holds in pools.items() if holds)),
            setting=f"{'+'.join(sorted(mix))}/{self.model}",
        )


class StepTime(msgspec.Struct, frozen=True, kw_only=True):
    """A row of ``one_worker_step_time.csv``."""

    gpu: str
    model: str
    num_parameters: int
    num_tensors: int | None = None
    step_time_median_s: float


def cases(folder: Path) -> list[Case]:
    """Return every run, predicted by each fit that does not include it; step times in seconds."""
    speeds, sizes = rows.read(folder / SPEEDS, Speed), dict(cloud.SIZES)
    alone = _series(row for row in speeds if row.num_workers == 1)
    path = folder / "one_worker_step_time.csv"
    for time in rows.read(path, StepTime) if path.is_file() else ():
        model = model_of(time.model)
        one = alone.setdefault(f"{time.gpu.lower()}/{model}", [])
        one.append((1, time.step_time_median_s, SPREAD + ABOUT.facts["campaigns"]))
        if time.num_tensors:
            sizes[model] = (time.num_tensors, time.num_parameters)
    counted = [row for row in speeds if sum(row.mix.values()) == row.num_workers]
    uncounted = (f"{row.num_workers} workers of {row.gpu}" for row in speeds if row not in counted)
    rows.say_left_out("not as many devices as workers", uncounted)
    wanted = {name for row in counted for name in row.names}
    found, left_out = [], []
    for split, known in fitted.read("cmdare", ServersFit).items():
        new = [
            cloud.observations(name, alone[name], sizes)
            for name in sorted(wanted & alone.keys() - known.workloads.keys())
            if name.split("/")[1] in sizes
        ]
        fit = cloud.extended(known, new)
        for row in counted:
            seen = row.num_workers <= MOST_WORKERS[split] and row.series in known.workloads
            if not row.names <= fit.workloads.keys():
                left_out.append(f"{row.model} on {row.gpu}")
            elif not (seen or row.num_workers == row.num_ps == 1):
                found.append(row.run(split, fit, sizes))
    rows.say_left_out("no run with one worker, or size not known", left_out)
    if not found:
        raise InputError(f"{folder}: no predictable run outside the fits")
    return predicted(found)


def fit(folder: Path) -> None:
    """Fit to the runs in a folder and store the fits for :func:`cases`."""
    fitted.write("cmdare", {split: calibrated(folder, m) for split, m in MOST_WORKERS.items()})


def calibrated(folder: Path, most: float) -> ServersFit:
    """Return a fit to the runs with one server and up to ``most`` workers."""
    speeds = rows.read(folder / SPEEDS, Speed)
    found = _series(row for row in speeds if row.num_workers <= most)
    every = [run for name, runs in found.items() for run in cloud.observations(name, runs)]
    # the compute speed of the device was not published
    one = ABOUT.facts["published"]
    run = (one["workers"], one["workers"] / one["steps_per_s"], one["spread"])
    every += cloud.observations("{device}/{model}".format(**one), [run])
    return cloud.without(fit_servers(every), one["device"])


def _series(speeds: Iterable[Speed]) -> dict[str, list[tuple[int, float, float]]]:
    """Return workers, step time of a worker and its spread for the runs in series."""
    found: dict[str, list[tuple[int, float, float]]] = {}
    for row in speeds:
        if row.series:
            found.setdefault(row.series, []).append((row.num_workers, row.step_s, SPREAD))
    return found
