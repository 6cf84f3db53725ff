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
import re
from collections.abc import Mapping
from pathlib import Path

import click
import msgspec

from benchmarks.accuracy import dnns, fitted, rows
from benchmarks.accuracy.cases import Case, Run, about, predicted
from perfmodel import make_job
from perfmodel.base.errors import InputError, number, whole_number
from perfmodel.base.provenance import Source
from perfmodel.calibration.servers.asynchronous import (
    AsynchronousFit,
    Series,
    fit_asynchronous_servers,
)
from perfmodel.inputs.cluster import Cluster, Link
from perfmodel.inputs.job import Job, Straggler
from perfmodel.inputs.workload import Workload, WorkloadLayer

ABOUT = about("cmdare")

MOST_WORKERS: dict[str, float] = {"n3": 3, "n4": 4, "all": math.inf}
"""Most workers of the runs that each fit is of."""

BATCH, BYTES, LAYERS = 128, 4, 8
"""Samples of one worker in a step, bytes of a parameter, and the equal layers that stand for those
of a model."""

CLUSTER = Cluster(
    name="cloud",
    nic=Link(1e9),
    source=Source("published", "2 Gbit/s for each of 4 virtual CPUs (cloud.google.com)"),
)

OPTIONS = {"sync": "asp", "sharding": "hash", "split_above_bytes": math.inf}
"""TensorFlow places whole variables, each on the next server."""

JITTER = 0.1
"""Coefficient of variation of a worker's computing: an assumption."""

SPREAD, CAMPAIGNS = 0.03, 0.05
"""Standard deviations of equal runs, and between the campaigns of the two files, whose six common
series differ by 1.2 to 18 %, with a median of 3.9 %."""

PUBLISHED_DEVICE = "v100"
PUBLISHED = [(7, 7 / 46.2, 0.14)]
"""46.2 steps/s of ResNet-32 with one server and seven V100 workers, software and cloud the same
(Li, Walls, Xu, Guo, ICAC 2019, arXiv 1903.00045); campaigns differ by so much."""

SIZES = {"resnet15": (50, 693_818), "resnet32": (104, 1_857_722), "shakesmall": (216, 2_926_986)}
"""Tensors and parameters of the models that the fits know."""

DEVICES = re.compile(
    r"(?<![a-z0-9])(?:(\d+)\s*[x*]?\s*)?([a-z]+\d+)(?:\s*(?:[x*:]|=)\s*(\d+)(?![a-z0-9]))?"
)
"""A kind of device, with its number before or after it."""


class Speed(msgspec.Struct, frozen=True, kw_only=True):
    """A row of ``speed_vs_workers.csv``."""

    gpu: str
    model: str
    num_ps: int = 1
    num_workers: int
    steady_steps_per_s_wall: float

    def __post_init__(self) -> None:
        number("steady_steps_per_s_wall", self.steady_steps_per_s_wall, above=0.0)
        whole_number("num_ps", self.num_ps)
        whole_number("num_workers", self.num_workers)

    @property
    def mix(self) -> dict[str, int]:
        """Workers by device: of one kind, or of several as in ``2k80+1p100``."""
        kinds = DEVICES.findall(self.gpu.lower())
        if len(kinds) < 2 and not any(before or after for before, _, after in kinds):
            return {self.gpu.lower(): self.num_workers}
        mix: dict[str, int] = {}
        for before, gpu, after in kinds:
            mix[gpu] = mix.get(gpu, 0) + int(before or after or 1)
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
    speeds, (alone, sizes) = read(folder), _alone(folder)
    runs: list[Run] = []
    left_out: dict[str, None] = {}
    for split, known in read_fits().items():
        wanted = {(gpu, model_of(row.model)) for row in speeds for gpu in row.mix}
        one = {
            key: [(1, row.num_workers / row.steady_steps_per_s_wall, SPREAD)]
            for row in speeds
            if row.num_workers == row.num_ps == 1
            for key in [(next(iter(row.mix)), model_of(row.model))]
        }
        new = {
            key: [*one.get(key, []), *alone.get(key, [])]
            for key in sorted(wanted)
            if "/".join(key) not in known.compute_s and key[1] in sizes
        }
        more = [series(*key, some, sizes) for key, some in new.items() if some]
        server = known.with_series(more) if more else known
        for row in speeds:
            mix, model = row.mix, model_of(row.model)
            if sum(mix.values()) != row.num_workers:
                left_out[f"{row.gpu!r} are not {row.num_workers} workers"] = None
            elif any(f"{gpu}/{model}" not in server.compute_s for gpu in mix):
                left_out[f"no run with one worker, or size not known: {model} on {row.gpu}"] = None
            elif (len(mix) > 1 or row.num_ps > 1 or not fitted_to(split, row, known)) and not (
                row.num_workers == row.num_ps == 1
            ):
                runs.append(_run(split, job_of(server, model, mix, row.num_ps, sizes), row))
    for reason in left_out:
        click.echo(f"left out: {reason}", err=True)
    if not runs:
        raise InputError(f"{folder}: no run that can be predicted and was not fitted to")
    return predicted(runs)


def fitted_to(split: str, row: Speed, fit: AsynchronousFit) -> bool:
    """Whether a run with one server and one kind of device is among those that a fit is of."""
    known = f"{next(iter(row.mix))}/{model_of(row.model)}" in fit.compute_s
    return known and row.num_workers <= MOST_WORKERS[split] and row.num_workers <= MOST_SEEN


MOST_SEEN = 5
"""Most workers of any run at hand."""


def _run(split: str, job: Job, row: Speed) -> Run:
    pools = [f"cmdare/{split}"]
    pools += [f"cmdare/{split}-mixed"] * (len(row.mix) > 1)
    pools += [f"cmdare/{split}-two-servers"] * (row.num_ps == 2)
    return Run(
        f"cmdare/{split}/{row.model}",
        f"{row.gpu} {row.model} {row.num_workers} workers {row.num_ps} servers",
        job,
        step_s=row.num_workers / row.steady_steps_per_s_wall,
        pools=tuple(pools),
        setting=f"{'+'.join(sorted(row.mix))}/{row.model}",
    )


def job_of(
    fit: AsynchronousFit,
    model: str,
    mix: Mapping[str, int],
    servers: int = 1,
    sizes: Mapping[str, tuple[int, int]] = SIZES,
) -> Job:
    """The job of workers on some kinds of devices; those after the first kind are stragglers."""
    first, *others = (gpu for gpu, count in mix.items() for _ in range(count))
    times = {gpu: fit.compute_s[f"{gpu}/{model}"] for gpu in mix}
    return make_job(
        workload=fit.workload(_workload(first, model, sizes)),
        cluster=fit.cluster(CLUSTER),
        workers=sum(mix.values()),
        arch="ps",
        options={**OPTIONS, "servers": servers},
        jitter=JITTER,
        stragglers=[
            Straggler(i, times[gpu] / times[first])
            for i, gpu in enumerate(others, 1)
            if gpu != first
        ],
    )


def series(
    gpu: str,
    model: str,
    measured: list[tuple[int, float, float]],
    sizes: Mapping[str, tuple[int, int]] = SIZES,
) -> Series:
    """Runs with one server: workers, step of a worker, and its spread."""
    workers, step_s, spread = zip(*sorted(measured), strict=True)
    # with many workers, most of a step is waiting
    whole = _workload(gpu, model, sizes).scaled("compute_s", step_s[0] / max(workers[0] / 3.0, 1.0))
    job = make_job(
        workload=whole, cluster=CLUSTER, arch="ps", options=OPTIONS, jitter=JITTER
    )
    return Series(job=job, workers=workers, step_s=step_s, spread=spread)


def fit(folder: Path) -> None:
    """Fit to the runs in a folder and write the fits that :func:`cases` predicts with."""
    fitted.write("cmdare", {split: calibrated(folder, m) for split, m in MOST_WORKERS.items()})


def calibrated(folder: Path, most: float) -> AsynchronousFit:
    """A fit to the runs with one server and up to ``most`` workers."""
    found: dict[tuple[str, str], list[tuple[int, float, float]]] = {}
    for row in read(folder):
        if row.num_ps == 1 and len(row.mix) == 1 and row.num_workers <= most:
            key = (next(iter(row.mix)), model_of(row.model))
            step_s = row.num_workers / row.steady_steps_per_s_wall
            found.setdefault(key, []).append((row.num_workers, step_s, SPREAD))
    every = [series(*key, some) for key, some in found.items()]
    fit = fit_asynchronous_servers([*every, series(PUBLISHED_DEVICE, "resnet32", PUBLISHED)])
    return fit.without(PUBLISHED_DEVICE)  # how fast that is was not published


def read_fits() -> dict[str, AsynchronousFit]:
    """The fits by the name of their split."""
    return fitted.read("cmdare", AsynchronousFit)


def read(folder: Path) -> list[Speed]:
    """The measured runs."""
    return rows.read(folder / "speed_vs_workers.csv", Speed)


def _alone(
    folder: Path,
) -> tuple[dict[tuple[str, str], list[tuple[int, float, float]]], dict[str, tuple[int, int]]]:
    """Runs of one worker from the other file, and the tensors and parameters of models."""
    path, runs, sizes = folder / "one_worker_step_time.csv", {}, dict(SIZES)
    for row in rows.read(path, StepTime) if path.is_file() else ():
        model = model_of(row.model)
        runs[row.gpu.lower(), model] = [(1, row.step_time_median_s, SPREAD + CAMPAIGNS)]
        if row.num_tensors:
            sizes[model] = (row.num_tensors, row.num_parameters)
    return runs, sizes


def _workload(gpu: str, model: str, sizes: Mapping[str, tuple[int, int]]) -> Workload:
    """A model in equal layers, which computes for a second in a step."""
    tensors, parameters = sizes[model]
    each = BYTES * parameters / tensors
    layers = [
        WorkloadLayer(
            f"block{i}",
            1.0 / 3.0 / LAYERS,
            2.0 / 3.0 / LAYERS,
            (each,) * (tensors // LAYERS + (i < tensors % LAYERS)),
        )
        for i in range(LAYERS)
    ]
    return Workload.of(model, layers, batch_size=BATCH, device=gpu)


def model_of(name: str) -> str:
    """One name for ``Res15`` and ``resnet15``, and for ``shakebig`` and ``shake_big``."""
    return re.sub(r"^res(?=\d)", "resnet", dnns.plain(name))
