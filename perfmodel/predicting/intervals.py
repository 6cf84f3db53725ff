r"""Prediction intervals: where a measured step lies in 9 of 10 cases.

The logarithm of measured over predicted is taken to be normal, with a mean m, because effects that
a model leaves out mostly take time, and a variance of independent parts
(:class:`perfmodel.base.uncertainty.Uncertainty`):

- *measurement*: equal runs differ, and the simulation of a random job has a confidence interval;
- *calibration*: estimated computing times and fitted collectives, each for its part of the step;
- *model*: the residuals of predictions of measured runs, with :math:`w` the fraction of the step in
  which devices wait for others,

  .. math:: \sigma^2 = a^2 + (b w)^2

- *extrapolation*: more workers than in any of these runs.

Where the rate of fast links is nominal, the upper end assumes links that deliver no more than
measured TCP (:data:`TCP_BYTES_PER_S`).

:data:`LEARNT` has m, a and b, which ``python -m benchmarks.accuracy.intervals`` learns and prints.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from perfmodel.base.uncertainty import COVERAGE, WIDTH, Uncertainty
from perfmodel.base.units import show
from perfmodel.inputs.job import Job
from perfmodel.results.outcome import Outcome
from perfmodel.results.prediction import Interval, Prediction

Found = Outcome | Prediction
"""A step time, and how it was found."""

RUN_SPREAD = 0.01
"""Standard deviation of equal runs: two of one configuration differ by 0.1 to 1.8 % on a small
quiet cluster."""

UNKNOWN_COARSE = 0.1
"""Standard deviation of a formula that leaves out something of the job: an assumption, about that
of the formulas' worst cases."""

DOUBLING = 0.03
"""Standard deviation for each doubling of the workers beyond the most that predictions were
compared at: an assumption."""

TCP_BYTES_PER_S = 1.3e9
"""Least rate of TCP on faster links: 1.3 to 2.9 GB/s were measured on 100 Gbps (Shi and others,
arXiv 2005.13247, by the steps of their runs)."""

RDMA_LATENCY_S = 10e-6
"""Latency below which links are taken as RDMA, which is close to the nominal rate."""

CONFIDENCE_WIDTH = 1.96
"""Standard deviations on each side of the mean in a confidence interval of 95 %."""


class JobKind(NamedTuple):
    """Kinds of jobs with different residuals.

    Attributes
    ----------
    network : *measured* if the cluster's source says so, else *nominal*.
    asynchronous : whether workers iterate without a barrier.
    """

    network: str
    asynchronous: bool


class Learnt(NamedTuple):
    """Residuals of predictions of ``runs`` measured runs of a kind.

    ``always`` and ``waiting`` are a and b above, ``shift`` is m; the runs had up to ``workers``
    workers.
    """

    always: float
    waiting: float
    shift: float
    runs: int
    workers: int


LEARNT: Mapping[JobKind, Learnt] = {
    JobKind("measured", False): Learnt(0.057, 0.009, 0.005, 42, 8),
    JobKind("measured", True): Learnt(0.026, 0.318, 0.017, 25, 8),
    JobKind("nominal", False): Learnt(0.204, 0.005, 0.145, 71, 16),
    JobKind("nominal", True): Learnt(0.204, 0.318, 0.145, 0, 8),
}
"""There are no runs of the last kind: its ``always`` is that of nominal links, its ``waiting`` that
of asynchronous workers."""


def kind_of(job: Job) -> JobKind:
    """The kind of a job."""
    network = "measured" if job.cluster.source.kind == "measured" else "nominal"
    return JobKind(network, job.options.asynchronous)


def uncertainty(job: Job, found: Found, learnt: Learnt | None = None) -> Uncertainty:
    """The uncertainty of a predicted step; ``learnt`` replaces :data:`LEARNT`."""
    waiting = min(max(found.idle_fraction.mean, 0.0), 1.0)
    estimated = [(job.workload.error_fraction, 1.0 - waiting)]
    if job.workers > 1:
        errors = [c.error_fraction or 0.0 for c in job.cluster.collectives]
        estimated.append((max(errors, default=0.0), waiting))
    calibration = math.hypot(*(math.log1p(e or 0.0) / WIDTH * part for e, part in estimated))
    among = learnt if learnt is not None else LEARNT[kind_of(job)]
    alone = job.workers == 1
    model = 0.0 if alone else math.hypot(among.always, among.waiting * waiting)
    return Uncertainty(
        measurement=math.hypot(RUN_SPREAD, found.throughput_ci_fraction / CONFIDENCE_WIDTH),
        calibration=calibration,
        model=math.hypot(model, _formula(found)),
        extrapolation=DOUBLING * max(math.log2(job.workers / among.workers), 0.0),
    )


def _formula(found: Found) -> float:
    """Standard deviation of a coarse prediction around the simulation."""
    if found.error_band is None:
        return 0.0
    return UNKNOWN_COARSE if found.error_band.p90 is None else found.error_band.p90 / WIDTH


def step_interval(job: Job, found: Found, learnt: Learnt | None = None) -> tuple[float, float]:
    """Interval of seconds for 9 of 10 measured steps; it includes the prediction."""
    among = learnt if learnt is not None else LEARNT[kind_of(job)]
    return _step_interval(job, found, among, uncertainty(job, found, among))


def _step_interval(
    job: Job, found: Found, among: Learnt, parts: Uncertainty
) -> tuple[float, float]:
    shift = among.shift if job.workers > 1 else 0.0
    low_s, high_s = parts.interval(found.iteration_s * math.exp(shift))
    return min(low_s, found.iteration_s), max(high_s, slow_links_s(job, found))


def slow_links_s(job: Job, found: Found) -> float:
    """The step if links whose rate is nominal deliver no more than :data:`TCP_BYTES_PER_S`.

    Waiting then grows in proportion, and so does the busy time of the busiest link, a lower bound
    of the step.
    """
    nic = job.cluster.nic
    nominal = kind_of(job).network == "nominal" and nic.latency_s >= RDMA_LATENCY_S
    nodes = job.cluster.nodes_for(job.workers) > 1 or bool(found.utilisation.servers)
    times = nic.goodput_bytes_per_s / TCP_BYTES_PER_S if nominal and nodes else 1.0
    if times <= 1.0:
        return found.iteration_s
    waiting = found.exposed_communication_s / found.iteration_s
    busiest = max(found.utilisation.links.values(), default=0.0)
    return found.iteration_s * max(1.0 + (times - 1.0) * waiting, times * busiest)


def interval_of(job: Job, found: Outcome) -> Interval:
    """The interval of a job's outcome, and the contributions to its width."""
    kind = kind_of(job)
    parts = uncertainty(job, found, LEARNT[kind])
    low_s, high_s = _step_interval(job, found, LEARNT[kind], parts)
    samples = found.iterations_per_s * job.workload.batch_size * found.iteration_s
    return Interval(
        coverage=COVERAGE,
        iteration_s=(low_s, high_s),
        throughput_samples_per_s=(samples / high_s, samples / low_s),
        parts=parts,
        text=_text(job, kind, parts, high_s <= slow_links_s(job, found)),
    )


def _text(job: Job, kind: JobKind, parts: Uncertainty, slow: bool) -> str:
    """The contributions to the interval's width, and extrapolations, in words."""
    among = LEARNT[kind]
    links = f"runs with {kind.network} links"
    reasons = {
        "measurement": "equal runs differ",
        "calibration": "times are estimated",
        "model": f"as far off as {links}" if among.runs else f"assumed: no such {links}",
        "extrapolation": f"beyond {among.workers} workers, the most it was compared with",
    }
    widest = max(reasons, key=lambda name: getattr(parts, name))
    said = [reasons[widest]]
    if slow and job.workers > 1:
        said.append(f"TCP may deliver no more than {show(TCP_BYTES_PER_S, 'bytes_per_s')}")
    if parts.extrapolation > 0.0 and widest != "extrapolation":
        said.append(reasons["extrapolation"])
    return "; ".join(said)
