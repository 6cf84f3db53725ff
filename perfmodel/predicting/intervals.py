r"""Prediction intervals: the range that contains a measured step time in 9 of 10 cases.

The prediction is the median of what is measured. The logarithm of measured over predicted step time
is modelled as normal on either side, wider above, because effects that a model leaves out mostly
cost time. Its variance is the sum of independent parts
(:class:`perfmodel.base.uncertainty.Uncertainty`):

- *measurement*: run-to-run variation. Runs of few random iterations vary as much as the simulation
  says, runs over unequal links to one server as much as TCP makes them, and the simulation of a
  random job has a confidence interval;
- *calibration*: estimated compute times and measured collectives, each weighted by its share of the
  step. For values fitted to measured steps (:class:`perfmodel.inputs.calibration.Calibration`) it
  is their covariance, propagated by the elasticities of the coarse model;
- *model*: the residuals of predictions of measured runs, with :math:`w` the fraction of the step
  that devices spend waiting,

  .. math:: \sigma^2 = a^2 + (b w)^2

  and c a instead of a for shorter steps; or, on a cluster fitted to measured steps, the residuals
  of steps held out of the fit;
- *extrapolation*: more workers than in any of these runs, or any other value outside the range of
  the fitted steps.

If links have the usual loss of sockets or of copies through the host, the upper end of the step
time is at least what links at the slow end of that loss make it (:func:`slow_links_s`). If compute
times were estimated from operators, it is at least what a slow host makes it
(:func:`slow_host_s`).

:data:`LEARNT` holds a, b and c. ``python -m benchmarks.accuracy.intervals`` computes and prints
them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from perfmodel.base.uncertainty import COVERAGE, WIDTH, Uncertainty
from perfmodel.inputs import calibration, usual_losses
from perfmodel.inputs.calibration import Calibration
from perfmodel.inputs.job import Job
from perfmodel.predicting import coarse
from perfmodel.results.outcome import Outcome
from perfmodel.results.prediction import Interval, Prediction
from perfmodel.training.labels import PIPELINE

Answer = Outcome | Prediction
"""A predicted step time, and how it was predicted."""

RUN_SPREAD = 0.01
"""Standard deviation between equal runs: on a small quiet cluster, two runs of one configuration
differ by 0.1 to 1.8 %."""

UNKNOWN_COARSE = 0.1
"""Standard deviation of a formula that leaves out some feature of the job: an assumption, close to
the formulas' worst cases."""

DOUBLING = 0.03
"""Standard deviation per doubling of the workers beyond the largest run compared: an assumption."""

COUNTED_STALENESS, BOUNDED_STALENESS = 0.02, 0.1
"""Standard deviations of the logarithm of the mean staleness, without and with a staleness bound,
from predictions of measured runs."""

PER_HALVING, STAGED = 0.04, 0.05
"""Standard deviations of the logarithm of the step time if devices divide layers or sequences, for
each time that their number doubles, and if they divide the model into stages. Root mean squares
over runs of six sources (LiBai, SimuMax, Sailor, InternEvo, torchtitan, own runs) and four, each
predicted from a measured run of another layout; without any one source 0.031 to 0.044, and 0.047 to
0.058."""

LAUNCHING = 0.15
"""The same if launches of the host, not the devices that divide layers, set the pace: root mean
square over runs of vTrain (0.12) and LiBai (0.21)."""

UNEQUAL_LINKS, UNEQUAL_WITHOUT_QUEUE = 0.05, 0.08
"""Standard deviations of the logarithm of the step time if workers push to one server over unequal
links, with and without a model of its link's queue. From 22 measured runs; equal ones among them
differ by up to 10 % (docs/decisions/0030)."""

MOST_LINKS = 1000
"""Number of workers, counted from the first, whose links are considered."""

CONFIDENCE_WIDTH = 1.96
"""Standard deviations on each side of the mean in a confidence interval of 95 %."""


class JobKind(msgspec.Struct, frozen=True):
    """Kinds of jobs with different residuals.

    Attributes
    ----------
    network : *measured* if the source of the cluster's figures says so, else *nominal*.
    asynchronous : whether workers iterate without a barrier.
    """

    network: str
    asynchronous: bool


class Learnt(NamedTuple):
    """Residuals of the predictions of ``runs`` measured runs of one kind.

    ``always``, ``waiting`` and ``below`` are a, b and c above. The largest run had ``workers``
    workers.
    """

    always: float
    waiting: float
    below: float
    runs: int
    workers: int


LEARNT: Mapping[JobKind, Learnt] = {
    JobKind("measured", False): Learnt(0.009, 0.082, 1.0, 42, 8),
    JobKind("measured", True): Learnt(0.025, 0.261, 1.0, 25, 8),
    JobKind("nominal", False): Learnt(0.310, 0.005, 0.16, 71, 16),
    JobKind("nominal", True): Learnt(0.310, 0.261, 0.16, 0, 8),
}
"""There are no runs of the last kind: its ``always`` is taken from nominal links, its ``waiting``
from asynchronous workers."""


STEP = 0.99
"""Factor by which a fitted value is changed to find its effect on the step."""


def kind_of(job: Job) -> JobKind:
    """Return the kind of a job. Links fitted to measured steps count as measured."""
    cluster = job.cluster
    measured = cluster.source.kind == "measured" or cluster.calibration is not None
    return JobKind("measured" if measured else "nominal", job.options.asynchronous)


def learnt_of(job: Job) -> Learnt:
    """Return the residuals for jobs of this kind.

    Compute times measured on one device among several already include the slowdown caused by the
    others. With times measured on a device alone, that slowdown is most of what predictions from
    nominal links miss. What remains is the error in waiting.
    """
    learnt = LEARNT[kind_of(job)]
    return learnt._replace(always=0.0) if job.workload.among_several else learnt


def features_of(job: Job) -> dict[str, float]:
    """Return the features whose range a calibration records
    (:data:`perfmodel.inputs.calibration.FEATURES`)."""
    features: dict[str, float] = {
        "workers": job.workers,
        "nodes": job.cluster.nodes_for(job.devices),
        "batch_size": job.workload.batch_size,
        "bandwidth_bytes_per_s": job.cluster.nic.bandwidth_bytes_per_s,
    }
    return features | ({"servers": job.options.server_count} if job.options.server_count else {})


def uncertainty(
    job: Job, answer: Answer, learnt: Learnt | None = None, *, below: bool = False
) -> Uncertainty:
    """Return the uncertainty of a predicted step, towards longer steps or ``below`` the prediction;
    ``learnt`` replaces :data:`LEARNT`."""
    among = learnt if learnt is not None else learnt_of(job)
    fitted = calibrations_of(job)
    beyond = DOUBLING * max(math.log2(job.workers / among.workers), 0.0)
    return Uncertainty(
        measurement=math.hypot(RUN_SPREAD, _chance(answer), _unequal_links(job)),
        calibration=math.hypot(_estimated(job, answer), *_propagated(job)),
        model=_left_out(job, answer, among, below=below),
        extrapolation=math.hypot(
            0.0 if job.cluster.calibration is not None else beyond,
            *(known.extrapolation(features_of(job)) for known in fitted),
        ),
    )


def _waiting(answer: Answer) -> float:
    return min(max(answer.idle_fraction.mean, 0.0), 1.0)


def _left_out(job: Job, answer: Answer, among: Learnt, *, below: bool) -> float:
    """Return the standard deviation due to what the model leaves out."""
    model = 0.0
    if job.cluster.calibration is None and job.workers > 1:
        always = among.always * (among.below if below else 1.0)
        model = math.hypot(always, among.waiting * _waiting(answer))
    parts = (known.spread for known in calibrations_of(job))
    return math.hypot(model, layout_spread(job), _formula(answer), *parts)


def layout_spread(job: Job) -> float:
    """Return the standard deviation due to the division of a model among devices."""
    if job.replica is None:
        return 0.0
    staged = STAGED if job.replica.pipeline > 1 else 0.0
    waits = any(layer.launching > 0.0 for layer in job.workload.layers)
    shared = math.log2(job.replica.tensor * job.replica.context)
    return math.hypot(staged, PER_HALVING * shared, LAUNCHING if waits else 0.0)


def _sides(job: Job, answer: Answer, learnt: Learnt | None) -> tuple[Uncertainty, Uncertainty]:
    """Return the uncertainty below and above the prediction; only their ``model`` differs."""
    above = uncertainty(job, answer, learnt)
    among = learnt if learnt is not None else learnt_of(job)
    model = _left_out(job, answer, among, below=True)
    return msgspec.structs.replace(above, model=model), above


def calibrations_of(job: Job) -> list[Calibration]:
    """Return the calibrations of a job's cluster and workload, as far as they have one."""
    both = (job.cluster.calibration, job.workload.calibration)
    return [known for known in both if known is not None]


def _estimated(job: Job, answer: Answer) -> float:
    """Return the standard deviation due to estimated compute times and measured collectives.

    Bubbles of a pipeline are as uncertain as the computation that makes them.
    """
    computing = _computing(answer)
    estimated = [(job.workload.error_fraction, computing)]
    if job.workers > 1:
        errors = [c.error_fraction or 0.0 for c in job.cluster.collectives]
        estimated.append((max(errors, default=0.0), 1.0 - computing))
    return math.hypot(*(math.log1p(e or 0.0) / WIDTH * part for e, part in estimated))


def _computing(answer: Answer) -> float:
    """Return the fraction of the step in which devices compute, or wait for others of a pipeline
    that do."""
    bubbles = answer.idle_fraction.by_cause.get(PIPELINE, 0.0)
    return 1.0 - max(_waiting(answer) - bubbles, 0.0)


def _propagated(job: Job) -> list[float]:
    """Return the standard deviations due to values fitted for the cluster and for the workload."""
    changes = []
    of_cluster, given = job.cluster.calibration, job.workload.calibration
    if of_cluster is not None and of_cluster.parameters:
        jobs = [
            msgspec.structs.replace(job, cluster=calibration.scaled(job.cluster, path, STEP))
            for path in of_cluster.parameters
        ]
        changes.append((of_cluster, jobs))
    if given is not None and given.parameters:
        jobs = [
            msgspec.structs.replace(job, workload=job.workload.scaled(path, STEP))
            for path in given.parameters
        ]
        changes.append((given, jobs))
    step_s = _coarse_step_s(job) if changes else 0.0
    return [math.sqrt(of.variance(_elasticities(step_s, jobs))) for of, jobs in changes]


def _elasticities(step_s: float, changed: list[Job]) -> np.ndarray:
    """Return d(log coarse step) / d(log value) for jobs in which one value is multiplied by
    :data:`STEP`; without that, the step is ``step_s``."""
    steps = np.array([_coarse_step_s(job) for job in changed])
    return np.log(steps / step_s) / math.log(STEP)


def _coarse_step_s(job: Job) -> float:
    return float(coarse.phases(job).iteration_s)


def _chance(answer: Answer) -> float:
    """Return the standard deviation of a simulated run around the mean, and of that mean."""
    spread = answer.run_spread if isinstance(answer, Outcome) else 0.0
    return math.hypot(spread, answer.throughput_ci_fraction / CONFIDENCE_WIDTH)


def _unequal_links(job: Job) -> float:
    """Return the standard deviation for unequal links that share one link into a server."""
    cluster = job.cluster
    if not cluster.overrides or not job.options.server_count:
        return 0.0
    if len({seat.nic for seat in job.seats(range(min(job.workers, MOST_LINKS)))}) < 2:
        return 0.0
    return UNEQUAL_WITHOUT_QUEUE if cluster.queue_bytes is None else UNEQUAL_LINKS


def _formula(answer: Answer) -> float:
    """Return the standard deviation of a coarse prediction around the simulation."""
    if answer.error_band is None:
        return 0.0
    return UNKNOWN_COARSE if answer.error_band.p90 is None else answer.error_band.p90 / WIDTH


def step_interval(job: Job, answer: Answer, learnt: Learnt | None = None) -> tuple[float, float]:
    """Return the interval (s) that holds 9 of 10 measured steps; it includes the prediction."""
    return _steps_s(job, answer, *_sides(job, answer, learnt))


def _steps_s(
    job: Job, answer: Answer, below: Uncertainty, above: Uncertainty
) -> tuple[float, float]:
    (low_s, _), (_, high_s) = (side.interval(answer.iteration_s) for side in (below, above))
    return low_s, max(high_s, slow_links_s(job, answer), slow_host_s(job, answer))


def slow_host_s(job: Job, answer: Answer) -> float:
    """Return the step if the host launches kernels slowly, and computation takes longer for it."""
    return answer.iteration_s * (1.0 + (job.workload.slow_host - 1.0) * _computing(answer))


def slow_links_s(job: Job, answer: Answer) -> float:
    """Return the step if links are at the slow end of what is usual for sockets, or for copies
    through the host.

    Waiting grows in proportion, and so does the busy time of the busiest link, which is a lower
    bound on the step.
    """
    times = _times_slower(job, servers=bool(answer.utilisation.servers))
    waiting = answer.exposed_communication_s / answer.iteration_s
    busiest = max(answer.utilisation.links.values(), default=0.0)
    return answer.iteration_s * max(1.0 + (times - 1.0) * waiting, times * busiest)


def _times_slower(job: Job, *, servers: bool) -> float:
    """Return how many times slower than assumed the links that limit a job may be."""
    nic, inside = job.cluster.nic, job.cluster.intra_node
    if job.cluster.nodes_for(job.devices) > 1 or servers:
        if nic.ceiling_bytes_per_s != usual_losses.SOCKETS_BYTES_PER_S:
            return 1.0
        slowest = nic.ceiling_bytes_per_s * math.exp(-WIDTH * usual_losses.SOCKETS_SPREAD)
        return max(nic.goodput_bytes_per_s / slowest, 1.0)
    if job.devices > 1 and inside == usual_losses.through_host():
        return math.exp(WIDTH * usual_losses.HOST_SPREAD)
    return 1.0


def interval_of(job: Job, outcome: Outcome, samples_per_s: float) -> Interval:
    """Return the interval of a job's outcome and throughput, and what contributes to its width."""
    kind = kind_of(job)
    below, parts = _sides(job, outcome, None)
    low_s, high_s = _steps_s(job, outcome, below, parts)
    samples = samples_per_s * outcome.iteration_s
    return Interval(
        coverage=COVERAGE,
        iteration_s=(low_s, high_s),
        throughput_samples_per_s=(samples / high_s, samples / low_s),
        idle_fraction=idle_within(
            outcome.idle_fraction.mean, outcome.iteration_s, (low_s, high_s), computing_spread(job)
        ),
        staleness=_staleness(job, outcome),
        parts=parts,
        text=_text(job, kind, parts, _slow(job, outcome, high_s), outcome.run_iterations),
        iterations=outcome.run_iterations,
    )


def idle_within(
    idle: float, iteration_s: float, steps_s: tuple[float, float], computing: float = 0.0
) -> tuple[float, float]:
    """Return the interval of an idle fraction, of one worker or of all. Steps with the same compute
    time last from the first to the second of ``steps_s``; the compute time has the standard
    deviation ``computing``."""
    fewer, more = (abs(math.log(step_s / iteration_s)) for step_s in steps_s)
    low = 1.0 - (1.0 - idle) * math.exp(math.hypot(fewer, WIDTH * computing))
    high = 1.0 - (1.0 - idle) * math.exp(-math.hypot(more, WIDTH * computing))
    return max(low, 0.0), min(max(high, 0.0), 1.0)


def computing_spread(job: Job) -> float:
    """Return the standard deviation of the logarithm of the compute time with several workers."""
    alone = job.workers == 1
    return math.hypot(*(0.0 if alone else c.computing_spread for c in calibrations_of(job)))


def _staleness(job: Job, outcome: Outcome) -> tuple[float, float] | None:
    """Return the interval of the mean staleness, which without a bound is a simple count: N - 1."""
    if outcome.staleness is None:
        return None
    bounded = job.options.bounded_lead is not None
    spread = BOUNDED_STALENESS if bounded else COUNTED_STALENESS
    parts = Uncertainty(measurement=outcome.staleness_spread, model=spread)
    return parts.interval(outcome.staleness.mean)


def _inexact(job: Job, fitted: Sequence[Calibration]) -> str:
    """Name the inputs whose uncertainty is the largest part of the calibration's."""
    if fitted:
        return "uncertainty of the fitted values"
    error = job.workload.error_fraction or 0.0
    collectives = max((c.error_fraction or 0.0 for c in job.cluster.collectives), default=0.0)
    return "estimated compute times" if error >= collectives else "errors of measured collectives"


def _slow(job: Job, answer: Answer, high_s: float) -> str:
    """Return what makes the upper end of a step; "" if it is not the spread."""
    if high_s <= slow_host_s(job, answer):
        return "the host may launch kernels slowly"
    return "links may be slower than usual" if high_s <= slow_links_s(job, answer) else ""


def _text(job: Job, kind: JobKind, parts: Uncertainty, slow: str, iterations: int | None) -> str:
    """Say in words what the interval's width comes from, and what is extrapolated."""
    among = LEARNT[kind]
    links = f"{kind.network} link speeds"
    fitted, rows = calibrations_of(job), 0
    beyond = f"extrapolated from runs with at most {among.workers} workers"
    if fitted:
        rows = sum(known.rows for known in fitted)
        features = dict.fromkeys(n for known in fitted for n in known.beyond(features_of(job)))
        words = ", ".join(name.partition("_bytes")[0].replace("_", " ") for name in features)
        beyond = f"outside the range of the fitted runs: {words}"
    reasons = {
        "measurement": f"run-to-run variation over {iterations} iterations"
        if iterations
        else "run-to-run variation",
        "calibration": _inexact(job, fitted),
        "model": f"as wide as the errors seen with {links}"
        if among.runs
        else f"assumed, for lack of comparable runs with {links}",
        "extrapolation": beyond,
    }
    if job.cluster.calibration is not None:
        reasons["model"] = f"as wide as the held-out errors of the {rows} fitted runs"
    widest = max(reasons, key=lambda name: getattr(parts, name))
    causes = [reasons[widest]]
    if slow:
        causes.append(slow)
    if parts.extrapolation > 0.0 and widest != "extrapolation":
        causes.append(reasons["extrapolation"])
    return "; ".join(causes)
