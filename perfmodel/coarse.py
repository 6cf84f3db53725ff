"""The coarse route: a job's phases in plain arithmetic, in microseconds.

:func:`phases` answers for a job, :func:`evaluate` for a million variants of it at once, as arrays;
:func:`predict` makes a prediction of it. What the formulas are is in each architecture's file.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from perfmodel import architectures, bands, particulars
from perfmodel.algebra import Quantity, maximum
from perfmodel.architectures import Architecture, Coarse
from perfmodel.errors import InputError, number
from perfmodel.job import MOST_WORKERS, Job
from perfmodel.particulars import Totals
from perfmodel.phases import (
    Layers,
    Phase,
    Phases,
    Quantities,
    Whole,
    class_of,
    iteration_cv,
    quantities_of,
)
from perfmodel.prediction import (
    Bottleneck,
    ErrorBand,
    Idle,
    Prediction,
    Staleness,
    Utilisation,
    percentile,
)

Floats = NDArray[np.float64]
Axis = NDArray[Any]
"""Numbers, or whole numbers."""

BLOCK = 8192
"""Variants that are evaluated together: few enough to stay in the processor's cache."""

AXES = ("workers", "servers", "bandwidth_bytes_per_s", "latency_s", "batch_size")
"""What :func:`evaluate` may vary."""

ROUNDING = 1e-12
"""Seconds, and variances, below this are none."""

RAREST = 1e-6
"""Share of a staleness below which it is left out."""

SERVERS = ("servers",)
"""What of the resources in :attr:`perfmodel.phases.Phases.busy_s` is no link."""

SATURATED = 0.95
"""Utilisation from which a resource is said to be saturated."""


def model_of(job: Job) -> Coarse:
    """The coarse model of a job's architecture."""
    architecture, _ = architectures.find(job.architecture)
    return coarse_of(architecture)


def coarse_of(architecture: Architecture) -> Coarse:
    """The coarse model of an architecture.

    Raises
    ------
    InputError : it has none.
    """
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
    """The phases of a job's iteration.

    Parameters
    ----------
    sharpness : if given, what overlaps is blended by the p-norm of this p, instead of worked out
        layer by layer; see :class:`perfmodel.phases.Whole`.
    corrected : whether queueing is corrected for times that vary little.
    among : the quantities, if not those of the job.

    Raises
    ------
    InputError : ``sharpness`` below 1.
    """
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


def with_data(found: Phases, q: Quantities) -> Phases:
    """Phases of a job that waits for data where loading takes longer than all else."""
    if isinstance(q.data_loading_s, float) and q.data_loading_s == 0.0:
        return found
    least_s, classes = q.data_loading_s, found.classes
    if classes:  # workers on their own, each of which waits for its own loader
        classes = tuple(map(with_data, classes, q.by_class()))
        rates = [k / p.iteration_s for k, p in zip(q.counts, classes, strict=True)]
        least_s = q.workers / sum(rates)
    late = maximum(least_s - found.iteration_s, 0.0)
    parts = {**found.parts, "load data": Phase(late, "data")}
    return msgspec.structs.replace(found, parts=parts, classes=classes)


def error_band(job: Job) -> ErrorBand:
    """How far the coarse prediction of a job is off its simulation."""
    model = model_of(job)
    missing = model.leaves_out(job)
    if missing is not None:
        return ErrorBand(None, None, f"it leaves out {missing}, so its error is not known")
    if model.exact(job):
        return ErrorBand(0.0, 0.0, "it equals the simulation for this job")
    known = bands.class_of(job, phases(job))
    if known is None:
        return ErrorBand(None, None, "how far it is off was not measured")
    band, such = known
    return ErrorBand(
        band.median,
        band.p90,
        f"half of such jobs are within {band.median:.1%} of the simulation, 9 in 10 within "
        f"{band.p90:.1%} ({such})",
    )


def predict(job: Job, totals: Totals) -> Prediction:
    """Predict how fast ``job`` trains, by its formulas."""
    found = phases(job)
    seconds = {name: float(part.seconds) for name, part in found.parts.items()}
    seconds = {name: value for name, value in seconds.items() if value > ROUNDING}
    iteration_s = sum(seconds.values())
    causes: dict[str, float] = defaultdict(float)
    for name, value in seconds.items():
        causes[found.parts[name].cause] += value / iteration_s
    computing = min(causes.pop("compute", 0.0), 1.0)  # parts may add up to a rounding more
    idle = _idle(job, found, computing)
    busy = {name: float(value) / iteration_s for name, value in found.busy_s.items()}
    communicating = causes.get("network", 0.0) + causes.get("server", 0.0)
    return Prediction(
        **particulars.of(job, job.workers / iteration_s, totals),
        fidelity="coarse",
        error_band=error_band(job),
        throughput_ci_fraction=0.0,
        compute_s=computing * iteration_s,
        exposed_communication_s=communicating * iteration_s,
        idle_fraction=Idle(mean=1.0 - computing, per_worker=idle, by_cause=dict(causes)),
        staleness=_staleness(job, found),
        clock_gap=None,
        phases_s=seconds,
        operation_s={},
        updates_per_s=job.workers / iteration_s * float(found.updates),
        utilisation=Utilisation(
            workers={f"worker {i}": 1.0 - part for i, part in enumerate(idle)},
            servers={name: part for name, part in busy.items() if name in SERVERS},
            links={name: part for name, part in busy.items() if name not in SERVERS and part > 0.0},
        ),
        bottleneck=_bottleneck(seconds, busy),
    )


def _idle(job: Job, found: Phases, computing: float) -> tuple[float, ...]:
    """Idle fraction of each worker."""
    if not job.unequal:
        return (1.0 - computing,) * job.workers
    own = quantities_of(job)
    kinds = [class_of(job, worker) for worker in range(job.workers)]
    if not found.classes:  # all take as long, and compute for a part of it
        return tuple(max(1.0 - computing * kind.scale / own.scale, 0.0) for kind in kinds)
    of_kind = {
        msgspec.structs.replace(kind, count=1): 1.0 - float(p.compute_s) / float(p.iteration_s)
        for kind, p in zip(own.classes, found.classes, strict=True)
    }
    return tuple(of_kind[kind] for kind in kinds)


def _staleness(job: Job, found: Phases) -> Staleness:
    """The mean staleness, and whole numbers around it.

    The variance of k, the others' updates between two of one's own, is m c^2 + (m c)^2, with m the
    mean and c the coefficient of variation of the time between a worker's updates: none where all
    go round in turn, that of the geometric distribution for exponential times. In between, k is
    taken to be the whole number next to a gamma variable of that variance. Where workers differ,
    each has its own mean.
    """
    mean, spread = float(found.staleness), float(found.spread)
    per_worker, of_updates = _staleness_of_workers(job, found, mean)
    means: dict[float, float] = defaultdict(float)
    for own, part in zip(per_worker, of_updates, strict=True):
        means[own] += part
    mixed: dict[int, float] = defaultdict(float)
    for own, part in means.items():
        for value, share in _spread_out(own, own * spread**2 + (own * spread) ** 2).items():
            mixed[value] += part * share
    shares = dict(sorted(mixed.items()))
    counts = {value: round(share * 1e9) for value, share in shares.items()}
    return Staleness(
        mean=mean,
        p50=percentile(counts, 0.5),
        p90=percentile(counts, 0.9),
        max=max(shares),
        per_worker=per_worker,
        histogram={str(value): share for value, share in shares.items()},
    )


def _staleness_of_workers(job: Job, found: Phases, mean: float) -> tuple[tuple[float, ...], ...]:
    """By worker: updates of the others in the time of one's own, and its part of all updates."""
    if not found.classes:
        return (mean,) * job.workers, (1.0 / job.workers,) * job.workers
    own = quantities_of(job)
    rate = {
        msgspec.structs.replace(kind, count=1): 1.0 / float(p.iteration_s)
        for kind, p in zip(own.classes, found.classes, strict=True)
    }
    rates = np.array([rate[class_of(job, worker)] for worker in range(job.workers)])
    others = (rates.sum() - rates) / rates
    weighted = float((others * rates).sum() / rates.sum())
    return tuple((others * (mean / weighted)).tolist()), tuple((rates / rates.sum()).tolist())


def _spread_out(mean: float, variance: float) -> dict[int, float]:
    """Shares of whole numbers around a mean."""
    if variance < ROUNDING:
        low, part = math.floor(mean + ROUNDING), mean - math.floor(mean + ROUNDING)
        return {low: 1.0} if part < ROUNDING else {low: 1.0 - part, low + 1: part}
    from scipy import stats

    shape, scale = mean**2 / variance, variance / mean
    top = int(stats.gamma.ppf(1.0 - RAREST, shape, scale=scale)) + 1
    edges = stats.gamma.cdf(np.arange(top + 1) + 0.5, shape, scale=scale)
    shares = np.diff(np.concatenate([[0.0], edges]))
    shares /= shares[shares > RAREST].sum()
    return {value: float(share) for value, share in enumerate(shares) if share > RAREST}


def _bottleneck(seconds: Mapping[str, float], busy: Mapping[str, float]) -> Bottleneck:
    """The phase that takes most of an iteration, and what is saturated."""
    total = sum(seconds.values())
    ranked = sorted(seconds, key=lambda name: -seconds[name])
    shares = {name: seconds[name] / total for name in ranked}
    text = f"{ranked[0]} takes {shares[ranked[0]]:.0%} of the iteration"
    if len(ranked) > 1:
        text += f"; next comes {ranked[1]} with {shares[ranked[1]]:.0%}"
    full = [name for name, part in busy.items() if part >= SATURATED]
    if full:
        text += f"; saturated: {', '.join(full)}"
    return Bottleneck(ranked[0], shares[ranked[0]], text, shares, ())


class Variants(msgspec.Struct, frozen=True, eq=False):
    """Variants of a job, all of them evaluated; arrays have the shape of the broadcast axes.

    ``phases_s`` and ``utilisation`` are arrays by name.
    """

    iteration_s: Floats
    throughput_samples_per_s: Floats
    idle_fraction: Floats
    staleness: Floats
    phases_s: Mapping[str, Floats]
    utilisation: Mapping[str, Floats]


def evaluate(
    job: Job,
    *,
    workers: ArrayLike | None = None,
    servers: ArrayLike | None = None,
    bandwidth_bytes_per_s: ArrayLike | None = None,
    latency_s: ArrayLike | None = None,
    batch_size: ArrayLike | None = None,
    sharpness: float | None = None,
) -> Variants:
    """Evaluate the coarse model of a job for many values at once.

    What is not given is as in ``job``. All arrays broadcast with each other.

    Parameters
    ----------
    workers, servers : whole numbers, 1 or more.
    bandwidth_bytes_per_s : nominal, of every link; what is achieved is the cluster's part of it.
    latency_s : one way, of every link.
    batch_size : samples per worker; computation is taken to be in proportion.
    sharpness : see :func:`phases`.

    Raises
    ------
    InputError : a value out of range; ``servers`` for an architecture that has none; ``workers``
        for a job whose workers differ; axes that do not broadcast.
    """
    given = {
        "workers": workers,
        "servers": servers,
        "bandwidth_bytes_per_s": bandwidth_bytes_per_s,
        "latency_s": latency_s,
        "batch_size": batch_size,
    }
    axes = {
        name: _axis(name, values, zero=name == "latency_s")
        for name, values in given.items()
        if values is not None
    }
    _applicable(job, axes)
    try:
        shape = np.broadcast_shapes(*(values.shape for values in axes.values()))
    except ValueError:
        shapes = ", ".join(f"{name} {values.shape}" for name, values in axes.items())
        raise InputError(f"evaluate: shapes do not broadcast: {shapes}") from None
    flat = {name: np.broadcast_to(values, shape).ravel() for name, values in axes.items()}
    size = math.prod(shape)
    found: dict[str, Floats] = {}
    for some, where in _by_counts(job, flat, size):
        for begin in range(0, len(where), BLOCK):
            here = where[begin : begin + BLOCK]
            values = _evaluated(some, {n: v[here] for n, v in flat.items()}, len(here), sharpness)
            for name, value in values.items():
                found.setdefault(name, np.zeros(size))[here] = value
    named = {name: value.reshape(shape) for name, value in found.items()}

    def group(prefix: str) -> dict[str, Floats]:
        return {n.removeprefix(prefix): v for n, v in named.items() if n.startswith(prefix)}

    return Variants(
        **{name: named[name] for name in Variants.__struct_fields__[:4]},
        phases_s=group("phase "),
        utilisation=group("use "),
    )


def _axis(name: str, values: ArrayLike, *, zero: bool) -> Axis:
    """An axis as an array of numbers, checked."""
    try:
        array = np.asarray(values, np.float64)
    except (TypeError, ValueError):
        raise InputError(f"{name}: expected numbers, got {values!r}") from None
    counted = name in ("workers", "servers")
    kind = "numbers of at least 0" if zero else "numbers above 0"
    wrong = ~np.isfinite(array) | ((array < 0.0) if zero else (array <= 0.0))
    if counted or name == "batch_size":
        kind = "whole numbers of at least 1"
        wrong |= array != np.rint(array)
    if counted:
        kind += f" and at most {MOST_WORKERS}"
        wrong |= array > MOST_WORKERS
    if wrong.any():
        raise InputError(f"{name}: expected {kind}, got {array[wrong].ravel()[0]:g}")
    return array.astype(np.int64) if counted else array


def _applicable(job: Job, axes: Mapping[str, Axis]) -> None:
    if "servers" in axes and not hasattr(job.options, "servers"):
        raise InputError(f"servers: {job.architecture} has none")
    spare = getattr(job.options, "backup_workers", 0)
    if "workers" in axes and np.any(axes["workers"] <= spare):
        raise InputError(f"workers: expected more than the {spare} backup workers")
    unlike = bool(job.stragglers or job.cluster.overrides)
    for name in ("workers", "bandwidth_bytes_per_s", "latency_s"):
        if unlike and name in axes:
            raise InputError(f"{name}: cannot be varied where workers or links differ")


def _by_counts(job: Job, axes: dict[str, Axis], size: int) -> list[tuple[Job, NDArray[np.int64]]]:
    """The job with each number of servers and workers, and the variants that have these numbers.

    Where tensors live depends on the servers; how fast workers are may depend on how many they are.
    ``servers`` is taken out of ``axes``.
    """
    found = [(job, np.arange(size))]
    if "servers" in axes:
        servers = axes.pop("servers")
        options = [
            (count, msgspec.structs.replace(job.options, servers=count))
            for count in np.unique(servers).tolist()
        ]
        found = [
            (msgspec.structs.replace(job, options=some), np.flatnonzero(servers == count))
            for count, some in options
        ]
    if "workers" in axes and job.cluster.by_workers:
        kinds = axes["workers"]
        if not job.cluster.devices_on_nodes:
            kinds = _alike(kinds, job.cluster.devices_per_node)
        endless = msgspec.structs.replace(job.cluster, nodes=None)
        found = [
            (
                msgspec.structs.replace(some, cluster=endless, workers=count),
                here[kinds[here] == count],
            )
            for some, here in found
            for count in np.unique(kinds[here]).tolist()
        ]
    return found


def _alike(workers: Axis, devices_per_node: int) -> Axis:
    """For each number of workers one with which each of them goes as fast.

    >>> _alike(np.array([1, 2, 3, 4, 8, 12, 13]), 4).tolist()
    [1, 2, 3, 4, 4, 4, 13]
    """
    full = max(devices_per_node, 2)  # a worker alone has nobody to send anything to
    filled = (workers >= full) & (workers % devices_per_node == 0)
    return np.where(filled, -(-full // devices_per_node) * devices_per_node, workers)


def _evaluated(
    job: Job, axes: Mapping[str, Axis], size: int, sharpness: float | None
) -> dict[str, Quantity]:
    """A block of variants: what is in :class:`Variants`, by name."""
    q = quantities_of(job)
    changed: dict[str, Quantity] = {}
    nominal = job.cluster.nic.bandwidth_bytes_per_s
    if "workers" in axes:
        changed["workers"] = axes["workers"]
    if "latency_s" in axes or "bandwidth_bytes_per_s" in axes:
        changed["collectives"] = ()  # they were measured at others
    if "latency_s" in axes:
        changed["latency_s"] = axes["latency_s"]
    if "bandwidth_bytes_per_s" in axes:
        ratio = axes["bandwidth_bytes_per_s"] / nominal
        for name in ("bandwidth", "server_bandwidth", "core_bandwidth"):
            changed[f"{name}_bytes_per_s"] = getattr(q, f"{name}_bytes_per_s") * ratio
        changed["classes"] = tuple(
            msgspec.structs.replace(kind, bandwidth_bytes_per_s=kind.bandwidth_bytes_per_s * ratio)
            for kind in q.classes
        )
    batch = axes.get("batch_size", job.workload.batch_size)
    if "batch_size" in axes:
        times = batch / job.workload.batch_size
        for name in ("forward_s", "backward_s", "scale"):
            changed[name] = getattr(q, name) * times
        if job.device_work is not job.workload:  # handing over takes the same for any batch
            constant_s = (job.device_work.backward_s - job.workload.backward_s) * q.slowdown
            changed["backward_s"] = changed["backward_s"] - constant_s * (times - 1.0)
            changed["layers"] = Layers.of(job.device_work).scaled_like(
                Layers.of(job.workload), times
            )
        changed["cv"] = iteration_cv(job, times)
    q = msgspec.structs.replace(q, **changed)
    found = phases(job, sharpness=sharpness, among=q)
    iteration_s = found.iteration_s
    whole = {
        "iteration_s": iteration_s,
        "throughput_samples_per_s": q.workers * batch / iteration_s,
        "idle_fraction": 1.0 - found.compute_s / iteration_s,
        "staleness": found.staleness,
        **{f"phase {name}": part.seconds for name, part in found.parts.items()},
        **{f"use {name}": seconds / iteration_s for name, seconds in found.busy_s.items()},
    }
    return {name: np.broadcast_to(value, size) for name, value in whole.items()}


def asynchronous(job: Job) -> bool:
    """Whether the workers of a job go round on their own."""
    architecture, _ = architectures.find(job.architecture)
    return architecture.asynchronous(job.options)
