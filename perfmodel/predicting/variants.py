"""Evaluate a million variants of a job at once, as arrays."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from perfmodel.architectures.registry import options_for
from perfmodel.base.errors import InputError
from perfmodel.base.quantities import Quantity
from perfmodel.inputs.job import MOST_WORKERS, Job
from perfmodel.inputs.links import Link
from perfmodel.phases.layers import Layers
from perfmodel.phases.quantities import Quantities, iteration_cv, quantities_of
from perfmodel.predicting.coarse import Floats, model_of, phases

Axis = NDArray[Any]
"""Numbers or whole numbers along one axis."""

BLOCK = 8192
"""Variants evaluated together: few enough to fit in the processor's cache."""

AXES = ("workers", "servers", "bandwidth_bytes_per_s", "latency_s", "batch_size")
"""Arguments that :func:`evaluate` can vary."""


class Variants(msgspec.Struct, frozen=True, eq=False):
    """Evaluated variants of a job; all arrays have the shape of the broadcast axes.

    ``phases_s`` and ``utilisation`` hold one array per name.
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

    An argument that is not given defaults to the value of ``job``. All arrays broadcast with each
    other. Defaults of options that depend on the number of workers follow it.

    Parameters
    ----------
    workers, servers : whole numbers, 1 or more.
    bandwidth_bytes_per_s : nominal, of every link; the cluster's efficiency still applies.
    latency_s : one-way, of every link.
    batch_size : samples per worker; compute time is assumed to be proportional to it.
    sharpness : see :func:`phases`.

    Raises
    ------
    InputError : workers that are replicas of several devices; a value is out of range; ``servers``
        for an architecture without servers;
        ``workers`` for a job whose workers differ; axes that do not broadcast.
    """
    if job.replica is not None:
        raise InputError("evaluate: workers are replicas of several devices; make a job per value")
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
    columns: dict[str, Floats] = {}
    order, done = np.empty(size, np.int64), 0
    for some, where in _by_counts(job, flat, size):
        q = quantities_of(some)
        queued = flat.get("workers") if model_of(job).queues(some) else None
        for here in _blocks(where, queued):
            axes = {name: values[here] for name, values in flat.items()}
            now = slice(done, done := done + len(here))
            order[now] = here
            for name, value in _evaluated(some, q, axes, sharpness).items():
                if name not in columns:
                    columns[name] = np.zeros(size)
                columns[name][now] = value
    if not np.array_equal(order, np.arange(size)):
        places = np.empty(size, np.int64)
        places[order] = np.arange(size)
        columns = {name: value[places] for name, value in columns.items()}
    named = {name: value.reshape(shape) for name, value in columns.items()}

    def group(prefix: str) -> dict[str, Floats]:
        return {n.removeprefix(prefix): v for n, v in named.items() if n.startswith(prefix)}

    return Variants(
        **{name: named[name] for name in Variants.__struct_fields__[:4]},
        phases_s=group("phase "),
        utilisation=group("use "),
    )


def _axis(name: str, values: ArrayLike, *, zero: bool) -> Axis:
    """Check an axis and convert it to an array of numbers."""
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
    if "servers" in axes and job.options.server_count == 0:
        raise InputError(f"servers: {job.architecture.name} has none")
    inside = ("bandwidth_bytes_per_s", "latency_s", "batch_size")
    for name in inside if job.islands else ():
        if name in axes:
            raise InputError(f"{name}: the step inside islands depends on it; make a job per value")
    spare = job.options.spare_workers
    if "workers" in axes and np.any(axes["workers"] <= spare):
        raise InputError(f"workers: expected more than the {spare} backup workers")
    size = job.options.group_size
    if "workers" in axes and not np.all(job.options.allows(axes["workers"])):
        raise InputError(f"workers: expected at most {size} (the group size), or a multiple of it")
    unlike = bool(job.stragglers or job.cluster.links_differ)
    for name in ("workers", "bandwidth_bytes_per_s", "latency_s"):
        if unlike and name in axes:
            raise InputError(f"{name}: cannot be varied where workers or links differ")


def _by_counts(job: Job, axes: dict[str, Axis], size: int) -> list[tuple[Job, NDArray[np.int64]]]:
    """Return the job with each number of servers and workers, and the variants with these numbers.

    The placement of tensors depends on the number of servers; the workers' speed, and defaults of
    options, may depend on the number of workers. ``servers`` is removed from ``axes``.
    """
    groups = [(job, np.arange(size))]
    if "servers" in axes:
        servers = axes.pop("servers")
        groups = [
            (msgspec.structs.replace(job, options=some), np.flatnonzero(servers == count))
            for count in np.unique(servers).tolist()
            for some in [msgspec.structs.replace(job.options, servers=count)]
        ]
    cluster = job.cluster
    if "workers" in axes and (cluster.by_workers or cluster.copies_through_host):
        kinds = axes["workers"]
        if not cluster.devices_on_nodes and cluster.pair_efficiency == 1.0:
            full = cluster.devices_per_node  # a single node may have other defaults than several
            full += options_for(job, full) != options_for(job, full + 1)
            kinds = _alike(kinds, cluster.devices_per_node, job.options.group_size, full)
        cluster = msgspec.structs.replace(cluster, nodes=None)
        groups = [
            (msgspec.structs.replace(some, cluster=cluster, workers=count,
                                     options=options_for(some, count)),
             here[kinds[here] == count])
            for some, here in groups
            for count in np.unique(kinds[here]).tolist()
        ]  # fmt: skip
    return groups


def _alike(workers: Axis, devices_per_node: int, group_size: int = 1, full: int = 1) -> Axis:
    """Return a representative for each number of workers, with the same speed per worker; counts
    below ``full`` stand for themselves.
    >>> _alike(np.array([1, 2, 3, 4, 8, 12, 13]), 4).tolist()
    [1, 2, 3, 4, 4, 4, 13]
    >>> _alike(np.array([1, 2, 3, 4, 8, 12, 13]), 4, full=5).tolist()
    [1, 2, 3, 4, 8, 8, 13]
    """
    full = max(devices_per_node, full, 2)  # a single worker sends nothing
    whole = math.lcm(devices_per_node, group_size)
    filled = (workers >= full) & (workers % whole == 0)
    return np.where(filled, -(-full // whole) * whole, workers)


def _blocks(where: NDArray[np.int64], queued: Axis | None) -> list[NDArray[np.int64]]:
    """Split the variants into blocks. Those of workers that are ``queued`` get similar counts in
    each block, as queueing is a recursion up to the largest count."""
    if len(where) <= BLOCK:
        return [where]
    if queued is not None:
        where = where[np.argsort(queued[where], kind="stable")]
    return np.array_split(where, -(-len(where) // BLOCK))


def _reached(link: Link, bandwidth_bytes_per_s: Floats) -> Floats:
    """Return what links of these nominal rates achieve over what ``link`` does."""
    goodput = bandwidth_bytes_per_s * link.efficiency
    ceiling = math.inf if link.ceiling_bytes_per_s is None else link.ceiling_bytes_per_s
    return np.minimum(goodput, ceiling) / link.goodput_bytes_per_s


def _paced(job: Job, q: Quantities, workers: Axis) -> Quantities:
    """Return the quantities with the compute times of the slowest of other numbers of workers.

    If these differ from the job's, there are no classes of workers: see :func:`_by_counts`.
    """
    if np.all(workers == job.workers):
        return q
    counts, where = np.unique(workers, return_inverse=True)
    paces = np.array([job.cluster.pace(count) for count in counts.tolist()])
    ratio = paces[where] / job.pace
    names = ("forward_s", "backward_s", "optimizer_s", "scale", "slowdown")
    return msgspec.structs.replace(q, **{name: getattr(q, name) * ratio for name in names})


def _evaluated(
    job: Job, q: Quantities, axes: Mapping[str, Axis], sharpness: float | None
) -> dict[str, Quantity]:
    """Evaluate a block of variants; returns fields of :class:`Variants`. ``q`` are the job's."""
    changed: dict[str, Quantity] = {}
    if "workers" in axes:
        changed["workers"] = axes["workers"]
        if job.pace != 1.0:
            q = _paced(job, q, axes["workers"])
    if "latency_s" in axes or "bandwidth_bytes_per_s" in axes:
        changed["collectives"] = ()  # they were measured at other bandwidths or latencies
    if "latency_s" in axes:
        changed["latency_s"] = axes["latency_s"]
    if "bandwidth_bytes_per_s" in axes:
        ratio = _reached(job.cluster.nic, axes["bandwidth_bytes_per_s"])
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
        if job.device_work is not job.workload:  # the handover does not depend on the batch size
            constant_s = (job.device_work.backward_s - job.workload.backward_s) * q.slowdown
            changed["backward_s"] = changed["backward_s"] - constant_s * (times - 1.0)
            changed["layers"] = Layers.of(job.device_work).scaled_like(
                Layers.of(job.workload), times
            )
        changed["cv"] = iteration_cv(job, times)
    q = msgspec.structs.replace(q, **changed)
    coarse_phases = phases(job, sharpness=sharpness, among=q)
    iteration_s = coarse_phases.iteration_s
    return {
        "iteration_s": iteration_s,
        "throughput_samples_per_s": q.workers * batch / iteration_s,
        "idle_fraction": 1.0 - coarse_phases.compute_s / iteration_s,
        "staleness": coarse_phases.staleness,
        **{f"phase {name}": part.seconds for name, part in coarse_phases.parts.items()},
        **{f"use {name}": seconds / iteration_s for name, seconds in coarse_phases.busy_s.items()},
    }
