"""Asynchronous parameter servers on a public cloud, predicted from runs with few workers.

Li, Walls, Guo, "Characterizing and Modeling Distributed Training with Transient Cloud GPU Servers",
ICDCS 2020 (CM-DARE): TensorFlow 1.10, CIFAR-10, one GPU per worker, servers of four virtual CPUs.
The folder holds ``speed_vs_workers.csv``, steps of all workers per second (a mixed cluster counts
its devices, as in ``2k80+1p100``), and perhaps ``one_worker_step_time.csv``, with tensors and
parameters of each model.

The fits are in ``fitted/cmdare.json``: *n3* and *n4* to the runs with one server and up to 3 or 4
workers, *all* to all with one server. Each predicts the runs that it was not fitted to. A model
that it does not know is predicted from its runs with one worker.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import click
import msgspec

from benchmarks.accuracy import cloud, fitted, rows
from benchmarks.accuracy.cases import Case, Run, about, predicted
from benchmarks.accuracy.cloud import SPREAD, model_of
from perfmodel.base.errors import InputError, number
from perfmodel.calibration.servers.asynchronous import AsynchronousFit, fit_asynchronous_servers

ABOUT = about("cmdare")

MOST_WORKERS: dict[str, float] = {"n3": 3, "n4": 4, "all": math.inf}
"""Most workers of the runs that each fit is of."""

MOST_SEEN = 5
"""Most workers of any run at hand."""

CAMPAIGNS = 0.05
"""Standard deviation between the campaigns of the two files, whose six common series differ by 1.2
to 18 %, with a median of 3.9 %."""

PUBLISHED = ("v100", "resnet32", [(7, 7 / 46.2, 0.14)])
"""46.2 steps/s with one server and seven workers, software and cloud the same (Li, Walls, Xu, Guo,
ICAC 2019, arXiv 1903.00045); campaigns differ by so much."""


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
        """Workers by device."""
        return cloud.mix_of(self.gpu, self.num_workers)

    @property
    def step_s(self) -> float:
        """Step of a worker."""
        return self.num_workers / self.steady_steps_per_s_wall

    @property
    def series(self) -> str:
        """Device and model, where there is one server and one kind of device; else nothing."""
        plain = self.num_ps == len(self.mix) == 1
        return f"{next(iter(self.mix))}/{model_of(self.model)}" if plain else ""


class StepTime(msgspec.Struct, frozen=True, kw_only=True):
    """A row of ``one_worker_step_time.csv``."""

    gpu: str
    model: str
    num_parameters: int
    num_tensors: int | None = None
    step_time_median_s: float


def cases(folder: Path) -> list[Case]:
    """Every run as each fit predicts it that was not fitted to it; step times in seconds."""
    speeds, sizes = read(folder), dict(cloud.SIZES)
    runs: list[Run] = []
    left_out: dict[str, None] = {}
    alone = _series(row for row in speeds if row.num_workers == 1)
    path = folder / "one_worker_step_time.csv"
    for time in rows.read(path, StepTime) if path.is_file() else ():
        model = model_of(time.model)
        one = alone.setdefault(f"{time.gpu.lower()}/{model}", [])
        one.append((1, time.step_time_median_s, SPREAD + CAMPAIGNS))
        if time.num_tensors:
            sizes[model] = (time.num_tensors, time.num_parameters)
    wanted = sorted({f"{gpu}/{model_of(row.model)}" for row in speeds for gpu in row.mix})
    for split, known in read_fits().items():
        new = [
            cloud.series(*name.split("/"), alone[name], sizes)
            for name in wanted
            if name in alone and name not in known.compute_s and name.split("/")[1] in sizes
        ]
        fit = known.with_series(new) if new else known
        for row in speeds:
            mix, model = row.mix, model_of(row.model)
            if sum(mix.values()) != row.num_workers:
                left_out[f"{row.gpu!r} are not {row.num_workers} workers"] = None
            elif any(f"{gpu}/{model}" not in fit.compute_s for gpu in mix):
                left_out[f"no run with one worker, or size not known: {model} on {row.gpu}"] = None
            elif not (row.num_workers == row.num_ps == 1 or fitted_to(split, row, known)):
                runs.append(
                    Run(
                        f"cmdare/{split}/{row.model}",
                        f"{row.gpu} {row.model} {row.num_workers} workers {row.num_ps} servers",
                        cloud.job_of(fit, model, mix, row.num_ps, sizes),
                        step_s=row.step_s,
                        pools=(
                            f"cmdare/{split}",
                            *[f"cmdare/{split}-mixed"] * (len(mix) > 1),
                            *[f"cmdare/{split}-two-servers"] * (row.num_ps == 2),
                        ),
                        setting=f"{'+'.join(sorted(mix))}/{row.model}",
                    )
                )
    for reason in left_out:
        click.echo(f"left out: {reason}", err=True)
    if not runs:
        raise InputError(f"{folder}: no run that can be predicted and was not fitted to")
    return predicted(runs)


def fitted_to(split: str, row: Speed, fit: AsynchronousFit) -> bool:
    """Whether a run is among those that a fit is of."""
    few = row.num_workers <= min(MOST_WORKERS[split], MOST_SEEN)
    return few and row.series in fit.compute_s


def fit(folder: Path) -> None:
    """Fit to the runs in a folder and write the fits that :func:`cases` predicts with."""
    fitted.write("cmdare", {split: calibrated(folder, m) for split, m in MOST_WORKERS.items()})


def calibrated(folder: Path, most: float) -> AsynchronousFit:
    """A fit to the runs with one server and up to ``most`` workers."""
    found = _series(row for row in read(folder) if row.num_workers <= most)
    every = [cloud.series(*name.split("/"), runs) for name, runs in found.items()]
    # how fast the device computes was not published
    return fit_asynchronous_servers([*every, cloud.series(*PUBLISHED)]).without(PUBLISHED[0])


def read_fits() -> dict[str, AsynchronousFit]:
    """The fits by the name of their split."""
    return fitted.read("cmdare", AsynchronousFit)


def read(folder: Path) -> list[Speed]:
    """The measured runs."""
    return rows.read(folder / "speed_vs_workers.csv", Speed)


def _series(speeds: Iterable[Speed]) -> dict[str, list[tuple[int, float, float]]]:
    """Workers, step of a worker and its spread of the runs in series."""
    found: dict[str, list[tuple[int, float, float]]] = {}
    for row in speeds:
        if row.series:
            own = found.setdefault(row.series, [])
            own.append((row.num_workers, row.step_s, SPREAD))
    return found
