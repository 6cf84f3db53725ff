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
from itertools import chain
from pathlib import Path

import click
import msgspec

from benchmarks.accuracy import dnns, fitted, rows, tables
from benchmarks.accuracy.cases import Case, Run, about, predicted
from perfmodel import Link, Server, Workload, WorkloadLayer, make_job
from perfmodel.base.errors import InputError
from perfmodel.calibration import Observation, ServedWorkload, ServersFit, fit_servers, serve_others
from perfmodel.calibration.servers.results import series_name

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

    def run(self, whole: Workload) -> Observation:
        """Return the row as a run of a model, given its step of the whole batch."""
        step_s = self.total_batch_size / self.speed_sum_samples_per_s
        cpu_s = (x / CORES * step_s or None for x in (self.worker_cpu_mean, self.ps_cpu_mean))
        size = max(round(whole.batch_size / self.num_worker), 1)
        part = msgspec.structs.replace(whole, batch_size=size)
        job = make_job(workload=part.scaled("compute_s", size / whole.batch_size), cluster=CLUSTER,
                       workers=self.num_worker, arch="ps",
                       options={**OPTIONS, "servers": self.num_ps})  # fmt: skip
        return Observation(job, step_s, 0.0, "", "", *cpu_s)


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
    entries = fitted.read("dl2", ServersFit)
    found: list[Run] = []
    for name, runs in read(folder).items():
        key = series_name(runs[0].job.workload)
        for split in ("few", "all"):
            if key in entries[split].workloads:
                found += _runs(split, name, runs, entries[split].workloads[key])
        entry = entries.get(f"dnn/{name}") or entries["all"]
        if alone := [run for run in runs if run.job.workers * run.job.options.server_count == 1]:
            found += _runs("dnn", name, runs, serve_others(entry, alone[:1])[key])
    if not found:
        raise InputError(f"{folder}: no predictable run outside the fits")
    return predicted(found)


def fit(folder: Path) -> None:
    """Fit to the runs in a folder and store the fits for :func:`cases`."""
    fitted.write("dl2", entries_of(folder))


def entries_of(folder: Path) -> dict[str, ServersFit]:
    """Return the fits by name: *few*, *dnn/NAME* for each DNN, *all*."""
    every = read(folder)
    if len(every) < 2:
        raise InputError(f"{folder}: runs of at least two DNNs in models.csv are needed")
    few = list(chain(*map(fewest, every.values())))
    others = {name: [runs for n, runs in every.items() if n != name] for name in every}
    found = {f"dnn/{n}": fit_servers(list(chain(*o)), for_others=True) for n, o in others.items()}
    return {"few": fit_servers(few), **found, "all": fit_servers(list(chain(*every.values())))}


def fewest(runs: list[Observation]) -> list[Observation]:
    """Return the quarter with the smallest workers times servers, ties broken by fewer workers."""
    jobs = {id(run): (run.job.workers, run.job.options.server_count) for run in runs}
    rising = sorted(runs, key=lambda run: (math.prod(jobs[id(run)]), jobs[id(run)]))
    return rising[: max(1, round(len(runs) / 4))]


def read(folder: Path) -> dict[str, list[Observation]]:
    """Return the synchronous runs of each DNN; report which rows are left out."""
    path, speeds = folder / "models.csv", rows.read(folder / "config_speed.csv", Speed)
    profiles = {row.model: row for row in rows.read(path, Profile)} if path.is_file() else {}
    ran = [row for row in speeds if row.sync_mode == "dist_sync"
           and min(row.speed_sum_samples_per_s, row.speed_min_worker) > 0.0]  # fmt: skip
    if left := len(speeds) - len(ran):
        click.echo(f"not synchronous, or a worker stopped, left out: {left}", err=True)
    rows.say_left_out("not in models.csv", (row.model for row in ran if row.model not in profiles))
    found: dict[str, list[Observation]] = {}
    for row in (row for row in ran if row.model in profiles):
        whole = profiles[row.model].workload(int(row.total_batch_size))
        found.setdefault(row.model, []).append(row.run(whole))
    return found


def _runs(split: str, name: str, runs: list[Observation], served: ServedWorkload) -> list[Run]:
    """Return the runs of a DNN outside the fit."""
    pool, found = f"dl2/{split}", []
    for run in runs:
        workers, servers = run.job.workers, run.job.options.server_count
        text, job = f"{name} {workers} workers {servers} servers", served.job(run.job)
        if (workers, servers) not in served.seen:
            found.append(Run(f"{pool}/{name}", text, job, run.step_s, pools=(pool,), setting=name))
    return found
