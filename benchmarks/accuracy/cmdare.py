"""Asynchronous parameter servers on a public cloud, predicted from runs with few workers.

Li, Walls, Guo, "Characterizing and Modeling Distributed Training with Transient Cloud GPU Servers",
ICDCS 2020 (CM-DARE): TensorFlow 1.10, CIFAR-10, one GPU per worker, servers of four virtual CPUs.
The folder holds

- ``speed_vs_workers.csv``: steps of all workers per second, by ``gpu``, ``model``, ``num_ps`` and
  ``num_workers``; a mixed cluster counts its devices, as in ``2k80+1p100``,
- ``one_worker_step_time.csv``, if there is one: step time of one worker, tensors and parameters of
  each model.

The fits are in ``fitted/cmdare.json``: *n3* and *n4* to the runs with one server and up to 3 or 4
workers, *all* to all with one server. Each predicts the runs that it was not fitted to. A model
that it does not know is predicted from its runs with one worker, and from what the server takes per
tensor and per byte.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path

import click
import msgspec

from benchmarks.accuracy import dnns, fitted, rows
from benchmarks.accuracy.cases import About, Case, Split
from perfmodel import InputError, Source
from perfmodel.base.errors import number, whole_number
from perfmodel.calibration import (
    PUBLISHED,
    Published,
    Run,
    Series,
    ServerFit,
    fit_asynchronous_server,
)

ABOUT = About(
    title="CM-DARE: asynchronous parameter server in the cloud",
    citation="S. Li, R. J. Walls, T. Guo, ICDCS 2020; processed data on GitHub, cake-lab/CM-DARE",
    folder="cmdare_ps_async",
    splits={
        "n3": Split("one server, up to 3 workers", "all other runs"),
        "n4": Split("one server, up to 4 workers", "all other runs"),
        "all": Split("all runs at hand with one server", "runs that are not at hand here"),
    },
    remarks="""\
Nothing of the network or the servers is known. A closed queueing network with one station: what the
server takes per tensor and per byte holds for all models, what is peculiar to one is pooled;
published figures stand in where nothing was measured
([how to](how-to/calibrate-asynchronous-server.md)).

It is one or two workers more than the fit has seen, up to five in all: a short way. With K80s the
server is idle most of the time, and all their runs are within 1.6 %.

*Worst cases.* How busy the server is with P100s three workers hardly show: the two runs of
Shake-Shake are 8 % and 10 % off. With the fourth worker known, all are within 3.2 %.

*Not covered*: runs with several servers were never compared. Tensors and bytes are taken to be
spread evenly; the lower end of the interval allows for one server that holds most of the bytes.
Nor were mixed devices.""",
)

MOST_WORKERS: dict[str, float] = {"n3": 3, "n4": 4, "all": math.inf}
"""Most workers of the runs that each fit is of."""

BATCH = 128
"""Samples of one worker in a step."""

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

DEVICES = re.compile(
    r"(?<![a-z0-9])(?:(\d+)\s*[x*]?\s*)?([a-z]+\d+)(?:\s*(?:[x*:]|=)\s*(\d+)(?![a-z0-9]))?"
)
"""A kind of device, with its number before or after it."""


class Fitted(msgspec.Struct, frozen=True):
    """A fit, and how many runs it is of."""

    rows: int
    fit: ServerFit


class Speed(msgspec.Struct, frozen=True, kw_only=True):
    """A row of ``speed_vs_workers.csv``."""

    gpu: str
    model: str
    num_ps: int = 1
    num_workers: int
    steady_steps_per_s_wall: float
    n_points: int = 1
    steady_mean: float = 1.0
    steady_std: float = 0.0

    def __post_init__(self) -> None:
        number("steady_steps_per_s_wall", self.steady_steps_per_s_wall, above=0.0)
        for name in ("num_ps", "num_workers", "n_points"):
            whole_number(name, getattr(self, name))

    @property
    def mix(self) -> dict[str, int]:
        """Workers by series: of one kind, or of several as in ``2k80+1p100``."""
        kinds = DEVICES.findall(self.gpu.lower())
        if len(kinds) < 2 and not any(before or after for before, _, after in kinds):
            return {_series(self.gpu, self.model): self.num_workers}
        mix: dict[str, int] = {}
        for before, gpu, after in kinds:
            name = _series(gpu, self.model)
            mix[name] = mix.get(name, 0) + int(before or after or 1)
        return mix

    @property
    def spread_fraction(self) -> float:
        """Standard deviation of the mean; 0 where it is not known."""
        if not (self.steady_mean > 0.0 and math.isfinite(self.steady_std)):
            return 0.0
        return self.steady_std / self.steady_mean / math.sqrt(self.n_points)


class StepTime(msgspec.Struct, frozen=True, kw_only=True):
    """A row of ``one_worker_step_time.csv``."""

    gpu: str
    model: str
    num_parameters: int
    num_tensors: int | None = None
    step_time_median_s: float

    def __post_init__(self) -> None:
        number("step_time_median_s", self.step_time_median_s, above=0.0)
        whole_number("num_parameters", self.num_parameters)


def cases(folder: Path) -> list[Case]:
    """Every run as each fit predicts it that was not fitted to it; step times in seconds."""
    speeds = rows.read(folder / "speed_vs_workers.csv", Speed)
    fits = read_fits()
    known = {one.model: one for one in fits["all"].series}
    measured = read(folder, {m: (one.tensors, one.parameter_bytes) for m, one in known.items()})
    alone = {name for name, one in measured.items() if any(run.workers == 1 for run in one.runs)}
    wanted = {name for row in speeds for name in row.mix}
    found: list[Case] = []
    left_out: dict[str, None] = {}
    for split, server in fits.items():
        for name in sorted((wanted & alone) - {one.name for one in server.series}):
            server = server.with_series(measured[name])
        runs = {one.name: one.runs for one in server.series}
        for row in speeds:
            mix = row.mix
            if sum(mix.values()) != row.num_workers:
                left_out[f"{row.gpu!r} are not {row.num_workers} workers"] = None
            elif not mix.keys() <= runs.keys():
                without = f"{row.model} on {row.gpu}"
                left_out[f"no run with one worker, or size not known: {without}"] = None
            elif len(mix) > 1 or (row.num_workers, row.num_ps) not in runs[next(iter(mix))]:
                found.append(_case(split, server, row))
    for reason in left_out:
        click.echo(f"left out: {reason}", err=True)
    if not found:
        raise InputError(f"{folder}: no run that can be predicted and was not fitted to")
    return found


def _case(split: str, server: ServerFit, row: Speed) -> Case:
    mix, workers = row.mix, row.num_workers
    predicted = server.predict_mixed(mix, row.num_ps)
    pools = [f"cmdare/{split}"]
    if len(mix) > 1:
        pools.append(f"cmdare/{split}-mixed")
    if row.num_ps == 2:
        pools.append(f"cmdare/{split}-two-servers")
    kinds = "+".join(sorted(name.partition("/")[0] for name in mix))
    return Case(
        f"cmdare/{split}/{row.model}",
        f"{row.gpu} {row.model} {workers} workers {row.num_ps} servers",
        workers / predicted.steps_per_s,
        workers / row.steady_steps_per_s_wall,
        interval=(workers / predicted.high_steps_per_s, workers / predicted.low_steps_per_s),
        pools=tuple(pools),
        others={
            "ideal scaling": workers
            / sum(count / server.step_s[name].value for name, count in mix.items())
        },
        setting=f"{kinds}/{row.model}",
        samples=float(workers * BATCH),
    )


def fit(folder: Path) -> None:
    """Fit to the runs in a folder and write the fits that :func:`cases` predicts with."""
    entries = {}
    for split, most in MOST_WORKERS.items():
        found = calibrated(folder, most)
        entries[split] = Fitted(sum(len(one.runs) for one in found.series), found)
    fitted.write("cmdare", entries)


def read_fits() -> dict[str, ServerFit]:
    """The fits by the name of their split."""
    return {split: entry.fit for split, entry in fitted.read("cmdare", Fitted).items()}


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


def read(folder: Path, sizes: Mapping[str, tuple[int, float]] | None = None) -> dict[str, Series]:
    """Runs with one server, and those of one worker from the other file, by name of the series.

    ``sizes`` are tensors and bytes of models, whatever the folder says of them.
    """
    runs: dict[str, list[Run]] = {}
    for row in rows.read(folder / "speed_vs_workers.csv", Speed):
        if row.num_ps == 1 and len(row.mix) == 1:
            run = Run(
                row.num_workers, row.steady_steps_per_s_wall, spread_fraction=row.spread_fraction
            )
            runs.setdefault(next(iter(row.mix)), []).append(run)
    known: dict[str, tuple[int, float]] = {}
    times = folder / "one_worker_step_time.csv"
    for time in rows.read(times, StepTime) if times.is_file() else ():
        run = Run(1, 1.0 / time.step_time_median_s, spread_fraction=ONE_WORKER_SPREAD)
        runs.setdefault(_series(time.gpu, time.model), []).append(run)
        if time.num_tensors:
            parameter_bytes = float(time.num_parameters * BYTES_PER_PARAMETER)
            known[_model(time.model)] = (time.num_tensors, parameter_bytes)
    known |= sizes or {}
    found = {}
    for name, measured in runs.items():
        model = name.partition("/")[2]
        if model in known:
            tensors, parameter_bytes = known[model]
            found[name] = Series(
                name=name,
                model=model,
                tensors=tensors,
                parameter_bytes=parameter_bytes,
                runs=tuple(measured),
            )
    return found


def _series(gpu: str, model: str) -> str:
    return f"{gpu.lower()}/{_model(model)}"


def _model(name: str) -> str:
    """One name for ``Res15`` and ``resnet15``, and for ``shakebig`` and ``shake_big``."""
    return re.sub(r"^res(?=\d)", "resnet", dnns.plain(name))
