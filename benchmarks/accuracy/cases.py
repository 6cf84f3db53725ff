"""Measured runs, the predictions of their jobs, and what there is to say of a source of them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from perfmodel import Job, predict
from perfmodel.predicting import coarse
from perfmodel.predicting.intervals import computing_spread, idle_within
from perfmodel.results.prediction import Prediction


@dataclass(frozen=True)
class Run:
    """A measured run, and the job that it was.

    ``step_s`` is the mean iteration of a worker, ``idle`` the mean fraction of the time in which
    devices wait, ``worker_idle`` that of each worker, ``staleness`` the mean of updates; None where
    not measured. ``iterations`` are those measured, by which runs of a random job differ; None
    where there were many. The rest is as in :class:`Case`.
    """

    group: str
    name: str
    job: Job
    step_s: float | None = None
    idle: float | None = None
    worker_idle: tuple[float, ...] = ()
    staleness: float | None = None
    iterations: int | None = None
    pools: tuple[str, ...] = ()
    setting: str = ""
    others: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Case:
    """``relative``: the error is a fraction of the measured value, else a plain difference.

    Attributes
    ----------
    interval : should hold 90 % of measured values, where the prediction says so much.
    pools : groups that the case counts in beside ``group``.
    others : other predictions of the same figure by name, such as that of a naive baseline.
    setting : cases of one setting are ranked by throughput; empty where that makes no sense.
    samples : samples of all workers in one step, for the throughput.
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

    @property
    def error(self) -> float:
        """Signed error: positive when the prediction is too high."""
        return self.error_of(self.predicted)

    def error_of(self, predicted: float) -> float:
        """Signed error of another prediction."""
        difference = predicted - self.measured
        return difference / self.measured if self.relative else difference


class Split(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What was calibrated on and what was predicted, in words."""

    calibrated: str
    predicted: str


class Expected(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A value as it is expected before any run: its mean, the standard deviation of its logarithm,
    and the most that it can be."""

    value: float
    spread: float
    most: float = math.inf


class About(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A source: its title, who measured it, its folder, its splits by name, texts, and ``facts``
    that its tables do not have.

    ``commands`` are what a user would type for such predictions; ``remarks`` is Markdown:
    mechanisms, reasons of the worst cases, what is not covered. ``expected`` has what is known of
    fitted values before any run, by name.
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
    """What ``about/NAME.toml`` says of a source."""
    path = Path(__file__).parent / "about" / f"{name}.toml"
    return msgspec.toml.decode(path.read_bytes(), type=About)


def predicted(runs: Iterable[Run]) -> list[Case]:
    """Predict the job of each run: a case for each of its measured figures.

    The interval is that of the prediction; the formulas and the :func:`baselines` are among its
    other predictions. Equal jobs are predicted once.
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
    for worker, idle_k in enumerate(run.worker_idle):
        expected = prediction.idle_fraction.per_worker[worker]
        steps_s, spread = prediction.interval.iteration_s, computing_spread(run.job)
        within = idle_within(expected, prediction.iteration_s, steps_s, spread)
        one = replace(_of_kind(case, "idle", expected, idle_k), relative=False, interval=within)
        found.append(replace(one, name=f"{case.name}, worker {worker}", others=run.others))
    if run.staleness is not None and prediction.staleness is not None:
        stale = _of_kind(case, "staleness", prediction.staleness.mean, run.staleness)
        found.append(replace(stale, interval=prediction.interval.staleness))
    return found


def _of_kind(case: Case, kind: str, value: float, measured: float) -> Case:
    return replace(
        case,
        group=f"{case.group}:{kind}",
        pools=tuple(f"{pool}:{kind}" for pool in case.pools),
        predicted=value,
        measured=measured,
    )


def baselines(job: Job) -> dict[str, float]:
    """Naive predictions of a step.

    *Ideal scaling* is that of one device; *plain alpha-beta* adds a ring over the nominal link,
    with nothing hidden.
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
