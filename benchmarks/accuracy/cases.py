"""Measured runs, the predictions of their jobs, and the descriptions of their sources."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from perfmodel import Job, predict
from perfmodel.predicting import coarse
from perfmodel.predicting.intervals import computing_spread, idle_within
from perfmodel.results.prediction import Idle, Prediction


@dataclass(frozen=True)
class Run:
    """A measured run, and its job.

    ``step_s`` is the mean iteration time of a worker, ``idle`` the mean fraction of time in which
    devices wait, ``worker_idle`` the same per worker, ``rank_idle`` per device, numbered within
    stages and then by stage, ``staleness`` the mean in updates; None if not measured.
    ``iterations`` is the measured number, which limits how well the mean of a random job is known;
    None if large. The rest is as in :class:`Case`.
    """

    group: str
    name: str
    job: Job
    step_s: float | None = None
    idle: float | None = None
    worker_idle: tuple[float, ...] = ()
    rank_idle: tuple[float, ...] = ()
    staleness: float | None = None
    iterations: int | None = None
    pools: tuple[str, ...] = ()
    setting: str = ""
    others: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Case:
    """A measured value and its prediction.

    Attributes
    ----------
    relative : whether the error is a fraction of the measured value, else a plain difference.
    interval : should hold 90 % of measured values; None if the prediction has none.
    pools : further groups that include the case, besides ``group``.
    others : other predictions of the same value by name, such as that of a naive baseline.
    setting : cases of one setting are ranked by throughput; empty if that makes no sense.
    samples : samples of all workers in one step, for the throughput.
    unit : of both values.
    """

    group: str
    name: str
    predicted: float
    measured: float
    relative: bool = True
    interval: tuple[float, float] | None = None
    pools: tuple[str, ...] = ()
    others: Mapping[str, float] = field(default_factory=dict)
    setting: str = ""
    samples: float = 0.0
    unit: str = "s"

    @property
    def error(self) -> float:
        """Return the signed error: positive if the prediction is too high."""
        return self.error_of(self.predicted)

    def error_of(self, predicted: float) -> float:
        """Return the signed error of another prediction."""
        difference = predicted - self.measured
        return difference / self.measured if self.relative else difference


class Split(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The rows that were calibrated on and the rows that were predicted, in words."""

    calibrated: str
    predicted: str


class Expected(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The prior of a value: its mean, the standard deviation of its logarithm, and its upper
    bound."""

    value: float
    spread: float
    most: float = math.inf


class About(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A source: its title, citation, folder, splits by name, texts, and ``facts`` that its tables
    do not have.

    ``commands`` are those with which users make such predictions; ``remarks`` is Markdown about
    mechanisms, reasons for the worst cases, and what is not covered. ``expected`` has the priors of
    fitted values by name.
    """

    title: str
    citation: str
    folder: str
    commands: str
    splits: dict[str, Split]
    remarks: str
    facts: dict[str, Any] = {}
    expected: dict[str, Expected] = {}


def about(name: str) -> About:
    """Return the contents of ``about/NAME.toml``."""
    path = Path(__file__).parent / "about" / f"{name}.toml"
    return msgspec.toml.decode(path.read_bytes(), type=About)


def predicted(runs: Iterable[Run]) -> list[Case]:
    """Predict the job of each run, and return a case for each of its measured values.

    The interval is that of the prediction; the other predictions include the formulas and the
    :func:`baselines`. Equal jobs are predicted once.
    """
    known: dict[tuple[int, int | None], tuple[Job, Prediction, float]] = {}
    found: list[Case] = []
    for run in runs:
        key = (id(run.job), run.iterations)
        if key not in known:
            coarse_s = float(coarse.phases(run.job).iteration_s)
            fine = predict(run.job, run_iterations=run.iterations)
            known[key] = (run.job, fine, coarse_s)
        found += _cases(run, *known[key][1:])
    return found


def _cases(run: Run, prediction: Prediction, coarse_s: float) -> list[Case]:
    case = Case(run.group, run.name, 0.0, 0.0, pools=run.pools)
    found = []
    if run.step_s is not None:
        step = replace(
            case,
            predicted=prediction.iteration_s,
            measured=run.step_s,
            interval=prediction.interval.iteration_s,
            others={"coarse": coarse_s, **baselines(run.job), **run.others},
            setting=run.setting,
            samples=float(run.job.workers * run.job.workload.batch_size),
        )
        found.append(step)
    if run.idle is not None:
        idle = _of_kind(case, "idle", prediction.idle_fraction.mean, run.idle)
        found.append(replace(idle, relative=False, interval=prediction.interval.idle_fraction))
    workers = prediction.idle_fraction.per_worker
    for kind, name, expected, measured in (
        ("idle", "worker", workers, run.worker_idle),
        ("rank_idle", "rank", idle_of_ranks(run.job, prediction.idle_fraction), run.rank_idle),
    ):
        for k, seen in enumerate(measured):
            value = expected[k]
            steps_s, spread = prediction.interval.iteration_s, computing_spread(run.job)
            within = idle_within(value, prediction.iteration_s, steps_s, spread)
            one = replace(_of_kind(case, kind, value, seen), relative=False, interval=within)
            found.append(replace(one, name=f"{case.name}, {name} {k}", others=run.others))
    if run.staleness is not None and prediction.staleness is not None:
        stale = _of_kind(case, "staleness", prediction.staleness.mean, run.staleness)
        found.append(replace(stale, interval=prediction.interval.staleness))
    return found


def idle_of_ranks(job: Job, idle: Idle) -> tuple[float, ...]:
    """Return the idle fraction of each device, numbered within stages and then by stage: of a
    pipeline, that of its stage, whose devices do the same."""
    stages = len(idle.by_stage)
    if stages > 1:
        return tuple(np.repeat(idle.by_stage, job.devices // stages).tolist())
    return tuple(np.repeat(idle.per_worker, job.devices // job.workers).tolist())


def _of_kind(case: Case, kind: str, value: float, measured: float) -> Case:
    return replace(
        case,
        group=f"{case.group}:{kind}",
        pools=tuple(f"{pool}:{kind}" for pool in case.pools),
        predicted=value,
        measured=measured,
    )


def baselines(job: Job) -> dict[str, float]:
    """Return naive predictions of a step time.

    *Ideal scaling* is the step time of one device; *plain alpha-beta* adds a ring over the nominal
    link, without overlap.
    """
    work, cluster, n = job.workload, job.cluster, job.workers
    alone_s = max(work.compute_s, work.data_loading_s)
    between = cluster.nodes_for(n) > 1 or cluster.intra_node is None
    link = cluster.nic if between or cluster.intra_node is None else cluster.intra_node
    per_step_s = link.latency_s + work.gradient_bytes / n / link.bandwidth_bytes_per_s
    return {
        "ideal scaling": alone_s,
        "plain alpha-beta": alone_s + 2 * (n - 1) * per_step_s,
    }
