"""Synchronous parameter servers in containers, predicted from runs with few workers and servers.

Peng et al., "DL2: A Deep Learning-driven Scheduler for Deep Learning Clusters", IEEE TPDS 2021:
MXNet, one batch shared by all workers, servers and workers in containers of about two cores. The
folder holds ``config_speed.csv``, samples per second and the CPU use of servers and workers, and
``models.csv``, compute time of a step and size of each DNN.

Each fit predicts the runs outside the fit. A DNN that the fit does not include is predicted from
its size, its compute time and its run with one worker and one server, if there is one.
"""

from __future__ import annotations

import math
from pathlib import Path

import click
import msgspec

from benchmarks.accuracy import dnns, fitted, rows, tables
from benchmarks.accuracy.cases import Case, Run, about, predicted
from perfmodel import Link, Server, Workload, WorkloadLayer, make_job
from perfmodel.base.errors import InputError
from perfmodel.calibration.servers import synchronous
from perfmodel.calibration.servers.synchronous import Dnn, SynchronousFit, SynchronousRun
from perfmodel.calibration.servers.synchronous import fit_synchronous_servers as fit_servers

ABOUT = about("dl2")

CORES = 2.0
"""Cores of a container: none uses more than 2.02."""

CLUSTER = tables.cluster(Link(25e9 / 8.0), server=Server())
"""Links are assumed not to be the bottleneck."""

OPTIONS = {"sync": "bsp", "duplex": True, "split_above_bytes": 0.0}
"""MXNet replies to each tensor at once. ``uneven`` sets the servers' shares of the tensors."""


class Speed(msgspec.Struct, frozen=True):
    """A row of ``config_speed.csv``."""

    model: str
    total_batch_size: float
    num_ps: int
    num_worker: int
    speed_sum_samples_per_s: float
    sync_mode: str = "dist_sync"
    speed_min_worker: float = math.inf
    worker_cpu_mean: float = 0.0
    ps_cpu_mean: float = 0.0

    @property
    def run(self) -> SynchronousRun:
        """Return the row as a run."""
        step_s = self.total_batch_size / self.speed_sum_samples_per_s
        cpu_s = (x / CORES * step_s or None for x in (self.worker_cpu_mean, self.ps_cpu_mean))
        return SynchronousRun(self.num_worker, self.num_ps, step_s, *cpu_s)


class Profile(msgspec.Struct, frozen=True, rename={"size_megabytes": "model_size_MB"}):
    """A row of ``models.csv``."""

    model: str
    local_comp_time_s: float
    size_megabytes: float

    def workload(self, batch_size: int) -> Workload:
        """Step time on one worker, with the whole batch."""
        parts = ABOUT.facts["layer_sizes"].get(self.model, [1.0] * ABOUT.facts["other_layers"])
        each_s, size_bytes = self.local_comp_time_s / len(parts), self.size_megabytes * 1e6
        layers = [
            WorkloadLayer(f"{i}", each_s / 3.0, each_s / 1.5, (size_bytes * part / sum(parts),))
            for i, part in enumerate(parts)
        ]
        tensors = ABOUT.facts["tensors"].get(self.model, dnns.MANY_TENSORS)
        whole = Workload.of(self.model, layers, batch_size=batch_size)
        return msgspec.structs.replace(whole, tensors=tensors)


def cases(folder: Path) -> list[Case]:
    """Return every run, predicted by each fit that does not include it; step times in seconds."""
    entries = fitted.read("dl2", SynchronousFit)
    found: list[Run] = []
    for dnn in read(folder):
        for split in ("few", "all"):
            if dnn.name in entries[split].dnns:
                found += _runs(split, dnn, entries[split].dnns[dnn.name])
        alone = tuple(run for run in dnn.runs if run.workers == run.servers == 1)[:1]
        entry = entries.get(f"dnn/{dnn.name}") or entries["all"]
        found += _runs("dnn", dnn, entry.of(msgspec.structs.replace(dnn, runs=alone)))
    if not found:
        raise InputError(f"{folder}: no predictable run outside the fits")
    return predicted(found)


def fit(folder: Path) -> None:
    """Fit to the runs in a folder and store the fits for :func:`cases`."""
    fitted.write("dl2", entries_of(folder))


def entries_of(folder: Path) -> dict[str, SynchronousFit]:
    """Return the fits by name: *few*, *dnn/NAME* for each DNN, *all*."""
    every = read(folder)
    if len(every) < 2:
        raise InputError(f"{folder}: runs of at least two DNNs in models.csv are needed")
    few = [msgspec.structs.replace(dnn, runs=fewest(dnn.runs)) for dnn in every]
    others = {dnn.name: [other for other in every if other is not dnn] for dnn in every}
    found = {f"dnn/{n}": fit_servers(dnns_, for_others=True) for n, dnns_ in others.items()}
    return {"few": fit_servers(few), **found, "all": fit_servers(every)}


def fewest(some: tuple[SynchronousRun, ...]) -> tuple[SynchronousRun, ...]:
    """Return the quarter with the smallest workers times servers, ties broken by fewer workers."""
    rising = sorted(some, key=lambda run: (run.workers * run.servers, run.workers, run.servers))
    return tuple(rising[: max(1, round(len(some) / 4))])


def read(folder: Path) -> list[Dnn]:
    """Return the DNNs with their synchronous runs; report which rows are left out."""
    path, speeds = folder / "models.csv", rows.read(folder / "config_speed.csv", Speed)
    profiles = {row.model: row for row in rows.read(path, Profile)} if path.is_file() else {}
    ran = [row for row in speeds if row.sync_mode == "dist_sync"
           and min(row.speed_sum_samples_per_s, row.speed_min_worker) > 0.0]  # fmt: skip
    if left := len(speeds) - len(ran):
        click.echo(f"not synchronous, or a worker stopped, left out: {left}", err=True)
    rows.say_left_out("not in models.csv", (row.model for row in ran if row.model not in profiles))
    found = []
    for name in dict.fromkeys(row.model for row in ran if row.model in profiles):
        some = [row for row in ran if row.model == name]
        whole = profiles[name].workload(int(some[0].total_batch_size))
        job = make_job(workload=whole, cluster=CLUSTER, arch="ps", options=OPTIONS)
        found.append(Dnn(job=job, runs=tuple(row.run for row in some)))
    return found


def _runs(split: str, dnn: Dnn, served: synchronous.ServedDnn) -> list[Run]:
    """Return the runs of a DNN outside the fit."""
    whole, pool, found = dnn.job.workload, f"dl2/{split}", []
    for run in (run for run in dnn.runs if (run.workers, run.servers) not in served.seen):
        work = served.workload(whole, max(round(whole.batch_size / run.workers), 1))
        options = {**OPTIONS, "servers": run.servers, "uneven": served.uneven}
        job = make_job(workload=work, cluster=served.cluster(CLUSTER), workers=run.workers,
                       arch="ps", options=options)  # fmt: skip
        name = f"{dnn.name} {run.workers} workers {run.servers} servers"
        group = f"{pool}/{dnn.name}"
        found.append(Run(group, name, job, run.step_s, pools=(pool,), setting=dnn.name))
    return found
