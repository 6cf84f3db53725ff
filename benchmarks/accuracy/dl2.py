"""Synchronous parameter servers in containers, predicted from runs with few of them.

Peng et al., "DL2: A Deep Learning-driven Scheduler for Deep Learning Clusters", IEEE TPDS 2021:
MXNet, one batch shared by all workers, servers and workers in containers of about two cores. The
folder holds

- ``config_speed.csv``: samples per second, by ``model``, ``num_ps`` and ``num_worker``, and the
  processors that servers and workers used,
- ``models.csv``: computing time of a step and size of each DNN.

The fits are in ``fitted/dl2.json``: *few* to the quarter of each DNN's runs with the fewest
workers times servers, *dnn/NAME* to all runs of the other DNNs, *all* to all runs. Each predicts
the runs that it was not fitted to. A DNN that a fit does not know is predicted from its size, its
computing time and its run with one worker and one server, if there is one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import click
import msgspec
import numpy as np

from benchmarks.accuracy import dnns, fitted, rows
from benchmarks.accuracy.cases import Case, Run, about, predicted
from perfmodel import make_job
from perfmodel.base.errors import InputError
from perfmodel.base.provenance import Source
from perfmodel.calibration.servers.synchronous import (
    Dnn,
    ServedDnn,
    SynchronousFit,
    SynchronousRun,
    fit_synchronous_servers,
)
from perfmodel.inputs.cluster import Cluster, Link
from perfmodel.inputs.workload import Workload, WorkloadLayer

ABOUT = about("dl2")

CORES = 2.0
"""Cores of a container: none uses more than 2.02."""

SYNCHRONOUS = "dist_sync"

CLUSTER = Cluster(
    name="containers",
    nic=Link(25e9 / 8.0),
    source=Source("estimated", "links are assumed not to limit: 25 Gb/s"),
)

OPTIONS = {"sync": "bsp", "duplex": True, "split_above_bytes": 0.0}
"""MXNet answers each tensor at once. What servers have of tensors is in ``uneven``."""

LAYERS = 16

LAYER_SIZES: dict[str, list[float]] = ABOUT.facts["layer_sizes"]
TENSORS: dict[str, int] = ABOUT.facts["tensors"]


class Speed(msgspec.Struct, frozen=True):
    """A row of ``config_speed.csv``."""

    model: str
    total_batch_size: float
    num_ps: int
    num_worker: int
    speed_sum_samples_per_s: float
    sync_mode: str = SYNCHRONOUS
    speed_min_worker: float = math.inf
    worker_cpu_mean: float = 0.0
    ps_cpu_mean: float = 0.0

    @property
    def ran(self) -> bool:
        """Whether no worker stopped."""
        return min(self.speed_sum_samples_per_s, self.speed_min_worker) > 0.0

    @property
    def run(self) -> SynchronousRun:
        """The row as a run."""
        step_s = self.total_batch_size / self.speed_sum_samples_per_s
        return SynchronousRun(
            workers=self.num_worker,
            servers=self.num_ps,
            step_s=step_s,
            worker_cpu_s=self.worker_cpu_mean / CORES * step_s or None,
            server_cpu_s=self.ps_cpu_mean / CORES * step_s or None,
        )


class Profile(msgspec.Struct, frozen=True, rename={"size_megabytes": "model_size_MB"}):
    """A row of ``models.csv``."""

    model: str
    local_comp_time_s: float
    size_megabytes: float


def cases(folder: Path) -> list[Case]:
    """Every run as each fit predicts it that was not fitted to it; step times in seconds."""
    entries = fitted.read("dl2", SynchronousFit)
    found: list[Run] = []
    for dnn in read(folder):
        for split in ("few", "all"):
            if dnn.name in entries[split].dnns:
                served = entries[split].dnns[dnn.name]
                every = [run for run in dnn.runs if (run.workers, run.servers) in served.seen]
                found += _runs(split, dnn, served, fewest(dnn.runs) if split == "few" else every)
        alone = [run for run in dnn.runs if run.workers == run.servers == 1][:1]
        entry = entries.get(f"dnn/{dnn.name}") or entries["all"]
        served = entry.of(msgspec.structs.replace(dnn, runs=tuple(alone)))
        found += _runs("dnn", dnn, served, alone)
    if not found:
        raise InputError(f"{folder}: no run that can be predicted and was not fitted to")
    return predicted(found)


def fit(folder: Path) -> None:
    """Fit to the runs in a folder and write the fits that :func:`cases` predicts with."""
    fitted.write("dl2", entries_of(folder))


def entries_of(folder: Path) -> dict[str, SynchronousFit]:
    """The fits by name: *few*, *dnn/NAME* of each DNN, *all*."""
    dnns_ = read(folder)
    if len(dnns_) < 2:
        raise InputError(f"{folder}: runs of at least two DNNs in models.csv are needed")
    few = [msgspec.structs.replace(dnn, runs=tuple(fewest(dnn.runs))) for dnn in dnns_]
    entries = {"few": fit_synchronous_servers(few)}
    for dnn in dnns_:
        others = [other for other in dnns_ if other is not dnn]
        entries[f"dnn/{dnn.name}"] = fit_synchronous_servers(others, for_others=True)
    return entries | {"all": fit_synchronous_servers(dnns_)}


def fewest(some: Sequence[SynchronousRun]) -> list[SynchronousRun]:
    """The quarter with the fewest workers times servers; of equal ones, first the fewer workers."""
    rising = sorted(some, key=lambda run: (run.workers * run.servers, run.workers, run.servers))
    return rising[: max(1, round(len(some) / 4))]


def read(folder: Path) -> list[Dnn]:
    """The DNNs with their synchronous runs; says which rows are left out."""
    path, found = folder / "models.csv", []
    profiles = {row.model: row for row in rows.read(path, Profile)} if path.is_file() else {}
    speeds = rows.read(folder / "config_speed.csv", Speed)
    usable = [row for row in speeds if row.sync_mode == SYNCHRONOUS and row.ran]
    for name in dict.fromkeys(row.model for row in usable):
        some = [row for row in usable if row.model == name]
        if name not in profiles:
            click.echo(f"{name}: not in models.csv, left out", err=True)
            continue
        whole = _workload(profiles[name], int(some[0].total_batch_size))
        job = make_job(workload=whole, cluster=CLUSTER, arch="ps", options=OPTIONS)
        found.append(Dnn(job=job, runs=tuple(row.run for row in some)))
    if len(usable) < len(speeds):
        left = len(speeds) - len(usable)
        click.echo(f"not synchronous, or a worker stopped, left out: {left}", err=True)
    return found


def _workload(profile: Profile, batch_size: int) -> Workload:
    """A DNN's step on one worker, with the whole batch."""
    name, size_bytes = profile.model, profile.size_megabytes * 1e6
    layers = dnns.layers_of(name) if name == "resnet-50" else None
    if layers is not None:
        every = [tensor.bytes for layer in layers for tensor in layer.tensors]
        sizes = [float(sum(part)) for part in np.array_split(every, LAYERS)]
    else:
        sizes = LAYER_SIZES.get(name, [1.0] * LAYERS)
    each_s = profile.local_comp_time_s / len(sizes)
    found = Workload.of(
        name,
        [
            WorkloadLayer(f"{i}", each_s / 3.0, each_s / 1.5, (size_bytes * size / sum(sizes),))
            for i, size in enumerate(sizes)
        ],
        batch_size=batch_size,
    )
    return msgspec.structs.replace(found, tensors=TENSORS.get(name, dnns.MANY_TENSORS))


def _runs(split: str, dnn: Dnn, served: ServedDnn, known: Sequence[SynchronousRun]) -> list[Run]:
    """The runs of a DNN but those that are known."""
    return [
        Run(
            f"dl2/{split}/{dnn.name}",
            f"{dnn.name} {run.workers} workers {run.servers} servers",
            make_job(
                workload=served.workload(
                    dnn.job.workload, max(round(dnn.job.workload.batch_size / run.workers), 1)
                ),
                cluster=served.cluster(CLUSTER),
                workers=run.workers,
                arch="ps",
                options={**OPTIONS, "servers": run.servers, "uneven": served.uneven},
            ),
            step_s=run.step_s,
            pools=(f"dl2/{split}",),
            setting=dnn.name,
        )
        for run in dnn.runs
        if run not in known
    ]
