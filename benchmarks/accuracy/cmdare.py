"""Asynchronous parameter servers on a public cloud, predicted from runs with few workers.

Li, Walls, Guo, "Characterizing and Modeling Distributed Training with Transient Cloud GPU Servers",
ICDCS 2020 (CM-DARE): TensorFlow 1.10, CIFAR-10, one GPU per worker, servers of four virtual CPUs.
The folder holds

- ``speed_vs_workers.csv``: steps of all workers per second, by ``gpu``, ``model``, ``num_ps`` and
  ``num_workers``; a mixed cluster counts its devices, as in ``2k80+1p100``,
- ``one_worker_step_time.csv``: step time of one worker, tensors and parameters of each model.

The fits are in ``fitted/cmdare.json``: *n3* and *n4* to the runs with one server and up to 3 or 4
workers, *all* to all with one server. Each predicts the runs that it was not fitted to. A model
that it does not know is predicted from its runs with one worker, and from what the server takes per
tensor and per byte.
"""

from __future__ import annotations

import csv
import json
import math
import re
from pathlib import Path
from typing import TypeVar

import click
import msgspec

from benchmarks.accuracy.cases import Case
from perfmodel import InputError, Source, files
from perfmodel.calibration import (
    PUBLISHED,
    Published,
    Run,
    Series,
    ServerFit,
    fit_asynchronous_server,
)

Row = TypeVar("Row", bound=msgspec.Struct)

FITTED = Path(__file__).parent / "fitted" / "cmdare.json"

SPLITS: dict[str, float] = {"n3": 3, "n4": 4, "all": math.inf}
"""Most workers of the runs that each fit is of."""

LINK_BYTES_PER_S = 1e9
"""2 Gbit/s for each virtual CPU (cloud.google.com/compute/docs/network-bandwidth)."""

BYTES_PER_PARAMETER = 4

ONE_WORKER_SPREAD = 0.05
"""Spread between the campaigns of the two files, on top of that between equal runs. With one worker
their six common series differ by 1.2 to 18 %, with a median of 3.9 %."""

RESNET_32 = Published(
    tensors=104,
    parameter_bytes=1_857_722.0 * BYTES_PER_PARAMETER,
    demand_s=1 / 46.2,
    factor=1.15,
    source=Source(
        "published",
        "46.2 steps/s of ResNet-32 with one server and seven V100 workers, software and cloud the "
        "same (Li, Walls, Xu, Guo, ICAC 2019); the factor is about what campaigns differ by",
        url="https://arxiv.org/abs/1903.00045",
    ),
)


class Speed(msgspec.Struct, frozen=True):
    """A row of ``speed_vs_workers.csv``."""

    gpu: str
    model: str
    num_ps: int
    num_workers: int
    n_points: int
    steady_steps_per_s_wall: float
    steady_mean: float
    steady_std: float

    @property
    def mix(self) -> dict[str, int]:
        """Workers by series: of one kind, or of several as in ``2k80+1p100``."""
        counts = re.findall(r"(\d+)\s*x?\s*([a-z]+\d+)", self.gpu.lower())
        if not counts:
            return {_series(self.gpu, self.model): self.num_workers}
        mix: dict[str, int] = {}
        for count, gpu in counts:
            name = _series(gpu, self.model)
            mix[name] = mix.get(name, 0) + int(count)
        if sum(mix.values()) != self.num_workers:
            raise InputError(f"gpu: {self.gpu!r} are not {self.num_workers} workers")
        return mix


class StepTime(msgspec.Struct, frozen=True, kw_only=True):
    """A row of ``one_worker_step_time.csv``."""

    gpu: str
    model: str
    num_parameters: int
    num_tensors: int | None = None
    step_time_median_s: float


def cases(folder: Path) -> list[Case]:
    """Every run as each fit predicts it that was not fitted to it; step times in seconds."""
    speeds = _rows(folder / "speed_vs_workers.csv", Speed)
    measured = read(folder)
    wanted = {name for row in speeds for name in row.mix}
    found: list[Case] = []
    left_out: set[str] = set()
    for split, server in read_fits().items():
        fitted = {one.name for one in server.series}
        for name in sorted(wanted & measured.keys() - fitted):
            if any(run.workers == 1 for run in measured[name].runs):
                server = server.with_series(measured[name])
        runs = {one.name: one.runs for one in server.series}
        for row in speeds:
            mix = row.mix
            if not mix.keys() <= runs.keys():
                left_out.add(f"{row.model} on {row.gpu}")
            elif len(mix) > 1 or (row.num_workers, row.num_ps) not in runs[next(iter(mix))]:
                predicted = server.predict_mixed(mix, row.num_ps)
                workers = row.num_workers
                found.append(
                    Case(
                        f"cmdare/{split}/{row.model}",
                        f"{row.gpu} {row.model} {workers} workers {row.num_ps} servers",
                        workers / predicted.steps_per_s,
                        workers / row.steady_steps_per_s_wall,
                        interval=(
                            workers / predicted.high_steps_per_s,
                            workers / predicted.low_steps_per_s,
                        ),
                        pools=(f"cmdare/{split}",),
                    )
                )
    if left_out:
        click.echo(f"no run with one worker, left out: {', '.join(sorted(left_out))}", err=True)
    if not found:
        raise InputError(f"{folder}: no run that can be predicted and was not fitted to")
    return found


def fit(folder: Path) -> None:
    """Fit to the runs in a folder and write the fits that :func:`cases` predicts with."""
    fits = {split: calibrated(folder, most) for split, most in SPLITS.items()}
    lines = ",\n".join(
        f'"{split}": {{\n'
        + ",\n".join(f'"{key}": {json.dumps(value)}' for key, value in found.to_dict().items())
        + "\n}"
        for split, found in fits.items()
    )
    FITTED.parent.mkdir(exist_ok=True)
    files.write(FITTED, f"{{\n{lines}\n}}\n".encode())


def read_fits(path: Path | None = None) -> dict[str, ServerFit]:
    """The fits by the name of their split."""
    path = path or FITTED
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, ServerFit])
    except OSError as error:
        raise InputError(f"{path}: cannot read: {error.strerror}; --fit makes it") from None
    except msgspec.DecodeError as error:
        raise InputError(f"{path}: {error}; --fit makes it") from None


def calibrated(folder: Path, most: float) -> ServerFit:
    """A fit to the runs with one server and up to ``most`` workers."""
    series = []
    for one in read(folder).values():
        runs = tuple(run for run in one.runs if run.workers <= most)
        if {run.workers for run in runs} > {1}:
            series.append(msgspec.structs.replace(one, runs=runs))
    if not series:
        raise InputError(f"{folder}: no model was run with one server and 2 to {most:g} workers")
    return fit_asynchronous_server(
        series, published=(*PUBLISHED, RESNET_32), link_bytes_per_s=LINK_BYTES_PER_S
    )


def read(folder: Path) -> dict[str, Series]:
    """Runs with one server, and those of one worker from the other file, by name of the series."""
    times = _rows(folder / "one_worker_step_time.csv", StepTime)
    runs: dict[str, list[Run]] = {}
    for row in _rows(folder / "speed_vs_workers.csv", Speed):
        if row.num_ps == 1 and len(row.mix) == 1:
            spread = row.steady_std / row.steady_mean / math.sqrt(row.n_points)
            run = Run(row.num_workers, row.steady_steps_per_s_wall, spread_fraction=spread)
            runs.setdefault(next(iter(row.mix)), []).append(run)
    for time in times:
        run = Run(1, 1.0 / time.step_time_median_s, spread_fraction=ONE_WORKER_SPREAD)
        runs.setdefault(_series(time.gpu, time.model), []).append(run)
    sizes = {_model(t.model): (t.num_tensors, t.num_parameters) for t in times if t.num_tensors}
    found = {}
    for name, measured in runs.items():
        model = name.partition("/")[2]
        tensors, parameters = sizes.get(model, (None, 0))
        if tensors is not None:
            found[name] = Series(
                name=name,
                model=model,
                tensors=tensors,
                parameter_bytes=float(parameters * BYTES_PER_PARAMETER),
                runs=tuple(measured),
            )
    return found


def _series(gpu: str, model: str) -> str:
    return f"{gpu.lower()}/{_model(model)}"


def _model(name: str) -> str:
    """One name for ``Res15`` and ``resnet15``, and for ``shakebig`` and ``shake_big``."""
    return re.sub(r"^res(?=\d)", "resnet", re.sub(r"[^a-z0-9]", "", name.lower()))


def _rows(path: Path, kind: type[Row]) -> list[Row]:
    """Rows of a CSV file; empty fields are as if they were not there."""
    if not path.is_file():
        raise InputError(f"{path}: no such file")
    with path.open(newline="", encoding="utf-8") as file:
        rows = [{key: x for key, x in row.items() if x} for row in csv.DictReader(file)]
    try:
        return msgspec.convert(rows, list[kind], strict=False)  # type: ignore[valid-type]
    except msgspec.ValidationError as error:
        raise InputError(f"{path}: {error}") from None
