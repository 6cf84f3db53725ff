"""The coarse route: a job's phases in plain arithmetic, computed in microseconds.

:func:`phases` computes them for one job, :func:`evaluate` for a million variants of it at once, as
arrays; :func:`predict` turns them into a prediction. The formulas are in each architecture's file.
"""

from __future__ import annotations

import functools
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import cast

import msgspec
import numpy as np
from numpy.typing import NDArray

from perfmodel.architectures.base import Architecture, Coarse
from perfmodel.base.errors import InputError, number
from perfmodel.base.quantities import maximum
from perfmodel.inputs.job import Job
from perfmodel.phases.classes import joined
from perfmodel.phases.phases import Phase, Phases
from perfmodel.phases.quantities import (
    Quantities,
    classes_of_workers,
    quantities_near,
    quantities_of,
)
from perfmodel.phases.whole import Whole
from perfmodel.results.effects import LEFT_OUT
from perfmodel.results.outcome import Outcome
from perfmodel.results.prediction import (
    Bottleneck,
    ErrorBand,
    Idle,
    Staleness,
    Utilisation,
    percentile,
)

Floats = NDArray[np.float64]

ROUNDING = 1e-12
"""Seconds and variances below this count as 0."""

RAREST = 1e-6
MOST_STALE = 1_000_000
"""Probability below which a staleness value is left out, and the largest mean staleness allowed."""

SERVERS = ("servers",)
"""Resources in :attr:`perfmodel.phases.phases.Phases.busy_s` that are not links."""

OF_OTHERS = ("straggler", "staleness_bound")
"""Causes of idle time that are other workers."""

SHOWN_SHARE = 0.005
"""Smallest share for which the second entry of a bottleneck is named: 1 % when rounded."""

PACKED_ERROR = {False: 0.025, True: 0.065}
"""Least error of the formulas at the 90th percentile for packed sequences, of which no class has
any, by whether workers are replicas of several devices: the largest of 18 jobs of a decoder."""

SATURATED = 0.95
"""Utilisation at which a resource counts as saturated."""


def model_of(job: Job) -> Coarse:
    """Return the coarse model of a job's architecture.

    Raises
    ------
    InputError : it has none.
    """
    architecture = cast(Architecture, job.architecture)
    if architecture.coarse is None:
        raise InputError(f"fidelity: {architecture.name} has no coarse model (allowed: fine)")
    return architecture.coarse


def phases(
    job: Job,
    *,
    sharpness: float | None = None,
    corrected: bool = True,
    among: Quantities | None = None,
) -> Phases:
    """Compute the phases of a job's iteration.

    Parameters
    ----------
    sharpness : if given, approximate overlap by the p-norm with this p instead of computing it
        layer by layer; see :class:`perfmodel.phases.whole.Whole`.
    corrected : correct queueing for service times of small variance.
    among : quantities to use instead of the job's own.

    Raises
    ------
    InputError : ``sharpness`` is below 1.
    """
    if job.replica is not None:
        if among is not None:
            raise InputError("formulas: there are none in symbols for workers of several devices")
        from perfmodel.predicting import replica_formulas

        return replica_formulas.phases(
            job, lambda one: phases(one, sharpness=sharpness, corrected=corrected)
        )
    q = quantities_of(job) if among is None else among
    if sharpness is not None:
        if sharpness != math.inf:
            number("sharpness", sharpness, at_least=1.0)
        profiled_s = q.forward_s / q.scale, q.backward_s / q.scale
        whole = Whole(*profiled_s, q.gradient_bytes, q.tensors, sharpness)
        q = msgspec.structs.replace(q, layers=whole)
    if not corrected:
        q = msgspec.structs.replace(q, corrected=False)
    return with_data(model_of(job).phases(job, q), q)


def with_data(coarse_phases: Phases, q: Quantities) -> Phases:
    """Add a wait for data to the phases if loading takes longer than everything else."""
    if isinstance(q.data_loading_s, float) and q.data_loading_s == 0.0:
        return coarse_phases
    least_s, classes = q.data_loading_s, coarse_phases.classes
    if classes:  # asynchronous workers, each of which waits for its own loader
        classes = tuple(map(with_data, classes, q.by_class()))
        rates = [k / p.iteration_s for k, p in zip(q.counts, classes, strict=True)]
        least_s = q.workers / sum(rates)
    late = maximum(least_s - coarse_phases.iteration_s, 0.0)
    parts = {**coarse_phases.parts, "load data": Phase(late, "data")}
    return msgspec.structs.replace(coarse_phases, parts=parts, classes=classes)


def leaves_out(job: Job) -> str | None:
    """What the formulas leave out of a job; None if nothing."""
    if job.replica is not None:
        from perfmodel.predicting import replica_formulas

        return replica_formulas.leaves_out(job, leaves_out)
    bursts = "bursts that idle links let pass" if job.cluster.burst_bytes > 0.0 else None
    return model_of(job).leaves_out(job) or job.options.beyond_formulas or bursts


def exact(job: Job) -> bool:
    """Whether the formulas equal the simulation of a job."""
    if job.replica is not None:
        from perfmodel.predicting import replica_formulas

        return replica_formulas.exact(job, exact)
    return model_of(job).exact(job) and job.cluster.burst_bytes == 0.0


def error_band(job: Job, coarse_phases: Phases | None = None) -> ErrorBand:
    """Return the error band of a job's coarse prediction against its simulation.

    ``coarse_phases`` are the job's phases, if already computed.
    """
    missing = leaves_out(job)
    if missing is not None:
        return ErrorBand(None, None, f"it leaves out {missing}, so its error is unknown")
    if exact(job):
        return ErrorBand(0.0, 0.0, "it equals the simulation for this job")
    from perfmodel.predicting import bands

    known = bands.class_of(job, phases(job) if coarse_phases is None else coarse_phases)
    if known is None:
        return ErrorBand(None, None, "its error has not been measured")
    band, name = known
    p90 = band.p90
    if job.workload.packing is not None:
        p90, name = max(p90, PACKED_ERROR[job.replica is not None]), f"{name}; packed sequences"
    return ErrorBand(
        band.median,
        p90,
        f"half of such jobs are within {band.median:.1%} of the simulation, 9 in 10 within "
        f"{p90:.1%} ({name})",
    )


def predict(job: Job) -> Outcome:
    """Return the outcome of the formulas for ``job``."""
    coarse_phases = phases(job)
    seconds = _seconds(coarse_phases)
    iteration_s = sum(seconds.values())
    causes: dict[str, float] = defaultdict(float)
    for name, value in seconds.items():
        causes[coarse_phases.parts[name].cause] += value / iteration_s
    computing = min(causes.pop("compute", 0.0), 1.0)  # rounding may push the sum above 1
    idle = _idle(job, coarse_phases, computing)
    busy = {name: float(value) / iteration_s for name, value in coarse_phases.busy_s.items()}
    communicating = causes.get("network", 0.0) + causes.get("server", 0.0)
    return Outcome(
        fidelity="coarse",
        workers=job.workers,
        iterations_per_s=job.workers / iteration_s,
        error_band=error_band(job, coarse_phases),
        compute_s=computing * iteration_s,
        exposed_communication_s=communicating * iteration_s,
        idle_fraction=Idle(mean=1.0 - computing, per_worker=idle, by_cause=dict(causes)),
        causes_by_worker=_causes_by_worker(job, coarse_phases, idle),
        staleness=_staleness(job, coarse_phases),
        phases_s=seconds,
        updates_per_s=job.workers / iteration_s * float(coarse_phases.updates),
        utilisation=Utilisation(
            workers={f"worker {i}": 1.0 - part for i, part in enumerate(idle)},
            servers={name: part for name, part in busy.items() if name in SERVERS},
            links={name: part for name, part in busy.items() if name not in SERVERS and part > 0.0},
        ),
        bottleneck=_bottleneck(seconds, busy),
    )


def iterations_per_s(job: Job, among: Quantities | None = None) -> float:
    """Return what :func:`predict` gives as ``iterations_per_s``, without values per worker."""
    return job.workers / sum(_seconds(phases(job, among=among)).values())


class Near:
    """The formulas of a job, for jobs that differ little from it and have the same workers and
    stragglers: what they share is derived once.

    >>> from perfmodel import make_job
    >>> job = make_job(model="resnet18", device="v100", workers=2)
    >>> Near(job).iterations_per_s(job) == iterations_per_s(job)
    True
    """

    def __init__(self, job: Job) -> None:
        self._job, self._missing = job, leaves_out(job)
        self._quantities = quantities_of(job) if job.replica is None else None

    def iterations_per_s(self, job: Job) -> float:
        """Return :func:`iterations_per_s` of a job.

        Raises
        ------
        InputError : the formulas leave out of it what that job does not have.
        """
        if job is not self._job and (missing := leaves_out(job)) not in (None, self._missing):
            raise InputError(f"{LEFT_OUT} {missing}")
        if self._quantities is None:
            return iterations_per_s(job)
        return iterations_per_s(job, quantities_near(job, self._job, self._quantities))


def _seconds(coarse_phases: Phases) -> dict[str, float]:
    """Return the seconds of each phase that takes any time."""
    seconds = {name: float(part.seconds) for name, part in coarse_phases.parts.items()}
    return {name: value for name, value in seconds.items() if value > ROUNDING}


def _idle(job: Job, coarse_phases: Phases, computing: float) -> tuple[float, ...]:
    """Return the idle fraction of each worker."""
    if not job.unequal:
        return (1.0 - computing,) * job.workers
    quantities = quantities_of(job)
    kinds = classes_of_workers(job)
    if not coarse_phases.classes:  # equal iterations; each worker computes for its own share
        busy = [computing * kind.scale / float(quantities.scale) for kind in kinds]
        alone = max(busy) > 1.0 + ROUNDING  # or the slow do not go as often as the others
        return tuple(1.0 - (computing if alone else min(part, 1.0)) for part in busy)
    of_kind = {
        msgspec.structs.replace(kind, count=1): 1.0 - float(p.compute_s) / float(p.iteration_s)
        for kind, p in zip(quantities.classes, coarse_phases.classes, strict=True)
    }
    return tuple(of_kind[kind] for kind in joined(kinds))


def _causes_by_worker(
    job: Job, coarse_phases: Phases, idle: Sequence[float]
) -> tuple[dict[str, float], ...]:
    """Return each worker's idle fraction by cause; the fractions add up to ``idle``, (workers,).

    Workers that iterate together wait equally long for links and servers, and for each other for
    the rest of their idle time.
    """
    if not job.unequal:
        return (_causes(coarse_phases, idle[0]),) * job.workers
    kinds = joined(classes_of_workers(job))
    phases_of = dict.fromkeys(kinds, coarse_phases)
    if coarse_phases.classes:
        phases_of = {
            msgspec.structs.replace(kind, count=1): phases
            for kind, phases in zip(quantities_of(job).classes, coarse_phases.classes, strict=True)
        }
    causes = functools.cache(lambda kind, part: _causes(phases_of[kind], part))  # few are unlike
    return tuple(causes(kind, part) for kind, part in zip(kinds, idle, strict=True))


def _causes(coarse_phases: Phases, idle: float) -> dict[str, float]:
    """Return an ``idle`` fraction by cause, for a worker with these phases of an iteration."""
    whole_s = float(coarse_phases.iteration_s)
    causes: dict[str, float] = defaultdict(float)
    for part in coarse_phases.parts.values():
        causes[part.cause] += float(part.seconds) / whole_s
    causes.pop("compute", None)
    others = next((cause for cause in OF_OTHERS if cause in causes), OF_OTHERS[0])
    causes[others] = max(idle - sum(p for cause, p in causes.items() if cause != others), 0.0)
    total = sum(causes.values())
    scale = idle / total if total > 0.0 else 0.0
    return {cause: scale * part for cause, part in causes.items() if scale * part > 0.0}


def _staleness(job: Job, coarse_phases: Phases) -> Staleness:
    """Return the mean staleness and a distribution of whole numbers around it.

    k is the number of other workers' updates between two updates of a worker. Its variance is
    m c^2 + (m c)^2, with m the mean and c the coefficient of variation of the time between a
    worker's updates: 0 if all workers update in turn, and that of the geometric distribution for
    exponential times. In between, k is a rounded gamma variable with that variance. If workers
    differ, each has its own mean. Where a gradient is applied d of its worker's updates late, those
    of others are counted d + 1 times.
    """
    mean, spread = float(coarse_phases.staleness), float(coarse_phases.spread)
    per_worker, of_updates = _staleness_of_workers(job, coarse_phases, mean)
    means: dict[float, float] = defaultdict(float)
    for worker_mean, part in zip(per_worker, of_updates, strict=True):
        means[worker_mean] += part
    mixed: dict[int, float] = defaultdict(float)
    late = coarse_phases.late or (0,)
    for worker_mean, part in means.items():
        variance = worker_mean * spread**2 + (worker_mean * spread) ** 2
        for more in late:
            turns = more + 1
            for value, share in _spread_out(turns * worker_mean, turns * variance).items():
                mixed[value + more] += part * share / len(late)
    shares = dict(sorted(mixed.items()))
    by_stage = tuple(more + (more + 1) * mean for more in late)
    later = float(np.mean(late))
    per_worker = tuple(later * (1.0 + one) + one for one in per_worker)
    counts = {value: round(share * 1e9) for value, share in shares.items()}
    return Staleness(
        mean=float(np.mean(by_stage)),
        p50=percentile(counts, 0.5),
        p90=percentile(counts, 0.9),
        max=max(shares),
        per_worker=per_worker,
        histogram={str(value): share for value, share in shares.items()},
        by_stage=by_stage if coarse_phases.late else (),
    )


def _staleness_of_workers(
    job: Job, coarse_phases: Phases, mean: float
) -> tuple[tuple[float, ...], ...]:
    """For each worker, other workers' updates between two of its own, and its share of updates."""
    if not coarse_phases.classes:
        return (mean,) * job.workers, (1.0 / job.workers,) * job.workers
    quantities = quantities_of(job)
    rate = {
        msgspec.structs.replace(kind, count=1): 1.0 / float(p.iteration_s)
        for kind, p in zip(quantities.classes, coarse_phases.classes, strict=True)
    }
    rates = np.array([rate[kind] for kind in joined(classes_of_workers(job))])
    others = (rates.sum() - rates) / rates
    weighted = float((others * rates).sum() / rates.sum())
    return tuple((others * (mean / weighted)).tolist()), tuple((rates / rates.sum()).tolist())


def _spread_out(mean: float, variance: float) -> dict[int, float]:
    """Return the probabilities of whole numbers around a mean: a rounded gamma distribution."""
    if variance < ROUNDING:
        low, part = math.floor(mean + ROUNDING), mean - math.floor(mean + ROUNDING)
        return {low: 1.0} if part < ROUNDING else {low: 1.0 - part, low + 1: part}
    from scipy import special

    shape, scale = mean**2 / variance, variance / mean
    top = int(special.gammaincinv(shape, 1.0 - RAREST) * scale) + 1
    if top > MOST_STALE:
        raise InputError(
            f"staleness: the mean is about {mean:.3g} updates, the limit {MOST_STALE:g}: workers "
            "differ too much in speed"
        )
    edges = special.gammainc(shape, (np.arange(top + 1) + 0.5) / scale)
    shares = np.diff(np.concatenate([[0.0], edges]))
    shares /= shares[shares > RAREST].sum()
    return {value: float(share) for value, share in enumerate(shares) if share > RAREST}


def _bottleneck(seconds: Mapping[str, float], busy: Mapping[str, float]) -> Bottleneck:
    """Name the longest phase of an iteration, and the saturated resources."""
    total = sum(seconds.values())
    ranked = sorted(seconds, key=lambda name: -seconds[name])
    shares = {name: seconds[name] / total for name in ranked}
    text = f"{ranked[0]} takes {shares[ranked[0]]:.0%} of the iteration"
    if len(ranked) > 1 and shares[ranked[1]] >= SHOWN_SHARE:
        text += f"; next: {ranked[1]} ({shares[ranked[1]]:.0%})"
    full = [name for name, part in busy.items() if part >= SATURATED]
    if full:
        text += f"; saturated: {', '.join(full)}"
    return Bottleneck(ranked[0], shares[ranked[0]], text, shares, ())
