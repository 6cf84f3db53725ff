"""Times of collectives among a job's workers, as formulas of its quantities."""

from __future__ import annotations

import math
from collections.abc import Callable

import msgspec
import numpy as np

from perfmodel.base.arrays import Floats
from perfmodel.base.quantities import Quantity, is_symbol, maximum, minimum, where
from perfmodel.communication.groups import GroupSpan
from perfmodel.communication.rates import Either, Fastest, Rate, Use, measured_rate
from perfmodel.communication.reduction import Reduction, candidates, rounds_among, shape_of
from perfmodel.inputs.cluster import Cluster
from perfmodel.inputs.job import Job
from perfmodel.phases.quantities import Quantities
from perfmodel.theory import collective_times
from perfmodel.theory.collective_times import LinearCost
from perfmodel.theory.cycles import most_along

MOST_IN_DOUBLE_TREE, MOST = 1024, 16_384
"""Numbers of workers up to which the rounds of a double tree, and of other algorithms, are counted;
closed forms are used beyond. The schedule of a large double tree takes long to build."""


def most_of(options: Reduction) -> int:
    """Return the number of workers up to which rounds are counted."""
    return MOST_IN_DOUBLE_TREE if options.algorithm in ("auto", "double_tree") else MOST


class Ring(msgspec.Struct, frozen=True, eq=False):
    """A ring through the workers of a group, or several if nodes have several NICs.

    ``use`` is the busy time for each byte that a worker sends, with the rings of all groups;
    ``hop_s`` the latency of a step inside a site; ``flow_s`` the least time per byte on one
    connection; ``sites_s`` (workers,) the latency from the site of each worker to that of the next
    one.
    """

    use: Use
    hop_s: Quantity
    flow_s: Quantity = 0.0
    sites_s: Floats | None = None

    @classmethod
    def of(cls, q: Quantities, span: GroupSpan | None = None) -> Ring:
        """Return the rings through the workers of each group of a job; by default of all."""
        several = span is not None
        span = span or GroupSpan.of_all(q)
        away, here, least = span.away, span.on_node, span.least
        rings = minimum(span.nics, least) if q.nics_per_node > 1 else 1
        if q.bus:
            inside = span.beside * where(away, here - 1, span.members)
        else:  # a device that sends to another node does not use its port inside the node
            all_send = (least == here) & (here <= q.nics_per_node)
            some = where(all_send, 1.0 - 1.0 / rings, 1.0)
            inside = where(away, where(here > 1, some, 0.0), 1.0)
        on_nic = span.beside if q.nics_per_node == 1 else q.on_a_nic(span.beside * rings)
        hop_s = q.hop_s
        if several:
            within_s = where(here > 1, q.inside_latency_s, 0.0)
            hop_s = where(away, maximum(q.latency_s, within_s), within_s)
        return cls(
            Use(
                where(away, on_nic / (rings * q.bandwidth_bytes_per_s), 0.0),
                where(away, span.beside / q.core_bandwidth_bytes_per_s, 0.0),
                inside / q.inside_bandwidth_bytes_per_s,
                0.0 if several else 1.0 / q.sites_bytes_per_s,
            ),
            hop_s,
            where(away, 1.0 / (rings * q.flow_bytes_per_s), 0.0),
            None if several else q.sites_latency_s,
        )

    @classmethod
    def chain(cls, q: Quantities) -> Ring:
        """Return the rings through all workers without their last steps, to the first worker.

        The core, and a bus that joins all workers, carry less without them; other links are as
        busy.
        """
        ring, span = cls.of(q), GroupSpan.of_all(q)
        rings = minimum(span.nics, span.least) if q.nics_per_node > 1 else 1
        inside = where(span.away, 1.0, 1.0 - 1.0 / q.workers) if q.bus else 1.0
        use = msgspec.structs.replace(
            ring.use,
            core_s=ring.use.core_s * (1.0 - 1.0 / (rings * q.nodes)),
            inside_s=ring.use.inside_s * inside,
        )
        return msgspec.structs.replace(ring, use=use)

    def passed_on(self, q: Quantities, span: GroupSpan | None = None) -> Ring:
        """Return the rings with the mean latency of a step instead of the longest one, for messages
        that members pass on without waiting for others; ``span`` as for :meth:`of`."""
        if self.sites_s is not None or is_symbol(q.workers):
            return self
        nodes = q.nodes if span is None else span.members / span.on_node
        members = q.workers if span is None else span.members
        between = (nodes * q.latency_s + (members - nodes) * q.inside_latency_s) / members
        hop_s = where(q.nodes > 1 if span is None else span.away, between, self.hop_s)
        return msgspec.structs.replace(self, hop_s=hop_s)

    def rate(self, cost: Callable[..., Quantity], moved: Quantity, **figures: Quantity) -> Rate:
        """Return the rate of a collective in which each worker sends ``moved`` bytes per byte."""
        use = self.use
        slowest_s = maximum(use.nic_s, use.core_s, use.inside_s, use.sites_s, self.flow_s)
        added = {**figures, "bandwidth_bytes_per_s": math.inf}
        startup_s = cost(size_bytes=0.0, latency_s=self.hop_s, **added)
        if self.sites_s is not None:
            steps = round(float(cost(size_bytes=0.0, latency_s=1.0, **added)))
            more_s = np.maximum(self.sites_s - self.hop_s, 0.0)
            startup_s = startup_s + most_along(more_s, steps)
        per_byte_s = moved * slowest_s + cost(size_bytes=1.0, latency_s=0.0, **added)
        return Rate((LinearCost(startup_s, per_byte_s),), self.use.times(moved))


def _measured(
    q: Quantities, operation: str, reduce_per_byte_s: float, span: GroupSpan | None = None
) -> Rate | None:
    """Return an operation's measured rate, if there is one, with the link usage of a ring."""
    ranks = q.workers if span is None else span.members
    if isinstance(ranks, (int, float)) and ranks == 1:
        reduce_per_byte_s = 0.0  # nothing to add
    rate = measured_rate(q.collectives, operation, ranks, reduce_per_byte_s)
    if rate is None:
        return None
    use = Ring.of(q, span).use.times(_moved(operation, ranks))
    return msgspec.structs.replace(rate, use=use)


def all_reduce_rate(job: Job, q: Quantities, options: Reduction) -> Rate | Fastest:
    """Return the rate of an all-reduce among the workers; for symbols, and across sites, *auto* is
    a ring."""
    moved = collective_times.ring_allreduce_bytes(q.workers, 1.0)
    if options.by_measurements:
        rate = _measured(q, "all_reduce", options.reduce_per_byte_s)
        if rate is not None:
            return rate
    if options.algorithm == "auto" and (is_symbol(q.workers) or job.crosses_sites):
        options = msgspec.structs.replace(options, algorithm="ring")
    several = bool(np.any(q.nodes > 1)) if options.algorithm == "auto" else False
    found = candidates(
        options, several_nodes=several, several_devices=job.cluster.devices_per_node > 1
    )
    rates = tuple(_rate(job, q, each, moved) for each in found)
    return rates[0] if len(rates) == 1 else Fastest(rates)


def _rate(job: Job, q: Quantities, options: Reduction, moved: Quantity) -> Rate:
    if options.algorithm == "ring":
        gamma = options.reduce_per_byte_s
        return (
            Ring.of(q)
            .passed_on(q)
            .rate(
                collective_times.ring_allreduce_s, moved, ranks=q.workers, reduce_per_byte_s=gamma
            )
        )
    if options.algorithm == "node_tree":
        ring = _rate(job, q, Reduction("ring", reduce_per_byte_s=options.reduce_per_byte_s), moved)
        started = _rate(job, q, Reduction("hierarchical"), moved).lines[0].startup_s
        line = msgspec.structs.replace(ring.lines[0], startup_s=started)
        return msgspec.structs.replace(ring, lines=(line,))
    if is_symbol(q.workers):
        return _closed(q, options)
    known, few = _by_rounds(shape_of(job.cluster), q, options), q.workers <= most_of(options)
    if np.all(few):
        return known
    closed = _closed(q, options)
    line, other = known.lines[0], closed.lines[0]
    return Rate(
        (
            LinearCost(
                where(few, line.startup_s, other.startup_s),
                where(few, line.per_byte_s, other.per_byte_s),
            ),
        ),
        known.use.or_else(few, closed.use),
    )


def _closed(q: Quantities, options: Reduction) -> Rate:
    """Return the rate by closed forms, with all workers of a node sending at once."""
    away, g = q.nodes > 1, q.fullest
    gamma = options.reduce_per_byte_s
    share = minimum(
        q.bandwidth_bytes_per_s / q.on_a_nic(g),
        q.core_bandwidth_bytes_per_s / g,
        q.flow_bytes_per_s,
    )
    inside = q.inside_bandwidth_bytes_per_s / (g if q.bus else 1)
    each = {
        "ranks": q.workers,
        "bandwidth_bytes_per_s": where(away, minimum(share, inside), inside),
        "latency_s": q.hop_s,
    }
    match options.algorithm:
        case "halving_doubling":
            rate = Rate.of(
                collective_times.rabenseifner_allreduce_s, **each, reduce_per_byte_s=gamma
            )
        case "tree":
            rate = Rate.of(collective_times.tree_allreduce_s, **each, reduce_per_byte_s=gamma)
        case "double_tree":
            rate = Rate.of(collective_times.double_tree_allreduce_s, chunks=options.chunks, **each)
        case _:
            rate = Rate.of(
                collective_times.hierarchical_allreduce_s,
                nodes=q.nodes,
                devices_per_node=g,
                bandwidth_bytes_per_s=share,
                latency_s=q.latency_s,
                intra_bandwidth_bytes_per_s=inside,
                intra_latency_s=q.inside_latency_s,
                reduce_per_byte_s=gamma,
            )
    # any algorithm moves as many bytes as a ring: n - 1 gradients in, n - 1 sums out
    ranks = q.nodes if options.algorithm == "hierarchical" else q.workers
    moved = collective_times.ring_allreduce_bytes(ranks, 1.0)
    return msgspec.structs.replace(
        rate, use=Use(where(away, moved / (q.bandwidth_bytes_per_s * q.nics_per_node), 0.0))
    )


def _by_rounds(shape: Cluster, q: Quantities, options: Reduction) -> Rate:
    """Return the sum over the rounds, each as long as its bottleneck link is busy."""
    counts = q.workers
    if not isinstance(counts, np.ndarray):
        return _rounds_rate(shape, q, options, int(counts))
    found: dict[str, Floats] = {}
    for count in np.unique(counts).tolist():
        here = counts == count
        changed = {
            name: value[here]
            for name in q.__struct_fields__
            if isinstance(value := getattr(q, name), np.ndarray) and value.shape == here.shape
        }
        some = msgspec.structs.replace(q, **changed)
        rate = _rounds_rate(shape, some, options, count)
        values = {**_fields(rate.lines[0]), **_fields(rate.use)}
        for name, value in values.items():
            found.setdefault(name, np.zeros(counts.shape))[here] = value
    line = LinearCost(found["startup_s"], found["per_byte_s"])
    return Rate((line,), Use(found["nic_s"], found["core_s"], found["inside_s"]))


def _fields(values: LinearCost | Use) -> dict[str, Quantity]:
    names = ("startup_s", "per_byte_s", "nic_s", "core_s", "inside_s")
    return {name: getattr(values, name) for name in names if hasattr(values, name)}


def _rounds_rate(shape: Cluster, q: Quantities, options: Reduction, count: int) -> Rate:
    """Return the rate for ``count`` workers; bandwidths and latencies may be arrays.

    It is zero for a single worker, and for more workers than :func:`most_of`.
    """
    if not 1 < count <= most_of(options):
        return Rate((LinearCost(0.0, 0.0),))
    rounds = rounds_among(shape, int(count), options)
    links = (q.bandwidth_bytes_per_s, q.core_bandwidth_bytes_per_s, q.inside_bandwidth_bytes_per_s)

    def over(values: Floats, by: Quantity) -> Floats:
        return np.divide.outer(values, by) if isinstance(by, np.ndarray) else values / by

    def times(values: Floats, by: Quantity) -> Floats:
        product: Floats = np.multiply.outer(values, by)
        return product

    columns = [over(v, b) for v, b in zip((rounds.nic, rounds.core, rounds.inside), links,
                                          strict=True)]  # fmt: skip
    columns.append(over(rounds.apart, q.flow_bytes_per_s))
    moving = _total(rounds.times, columns)
    hops = [times(rounds.away, q.latency_s), times(rounds.within, q.inside_latency_s)]
    added = options.reduce_per_byte_s * float(rounds.times @ rounds.added)
    use = (total / by for total, by in zip(rounds.totals.tolist(), links, strict=True))
    return Rate((LinearCost(_total(rounds.times, hops), moving + added),), Use(*use))


def _total(count: Floats, columns: list[Floats]) -> Quantity:
    """Return the sum over rounds of ``count`` times the largest of the columns (rounds, ...)."""
    depth = max(np.ndim(column) for column in columns)
    alike = [np.reshape(c, (*c.shape, *(1,) * (depth - np.ndim(c)))) for c in columns]
    found = np.tensordot(count, maximum(*alike), axes=(0, 0))
    return float(found) if found.ndim == 0 else found


def closed(job: Job, options: Reduction) -> bool:
    """Return whether the formula of an all-reduce among a job's workers is exact."""
    return options.algorithm == "ring" or job.workers <= most_of(options)


def reduce_scatter_rate(q: Quantities, reduce_per_byte_s: float = 0.0) -> Rate:
    """Return the rate of a ring reduce-scatter among the workers, by bytes before it."""
    found = _measured(q, "reduce_scatter", reduce_per_byte_s)
    return found or _by_rings(q, "reduce_scatter", reduce_per_byte_s)


def all_gather_rate(q: Quantities) -> Rate:
    """Return the rate of a ring all-gather among the workers, by bytes after it."""
    return _measured(q, "all_gather", 0.0) or _by_rings(q, "all_gather", 0.0)


def ring_all_reduce_rate(q: Quantities, reduce_per_byte_s: float = 0.0) -> Rate:
    """Return the rate of a ring all-reduce among the workers, by bytes of their gradients."""
    found = _measured(q, "all_reduce", reduce_per_byte_s)
    return found or _by_rings(q, "all_reduce", reduce_per_byte_s)


def broadcast_rate(q: Quantities) -> Rate:
    """Return the rate of a broadcast from the first worker along the rings."""
    chain, moved = Ring.chain(q), _moved("broadcast", q.workers)
    rate = measured_rate(q.collectives, "broadcast", q.workers, 0.0)
    if rate is not None:
        return msgspec.structs.replace(rate, use=chain.use.times(moved))
    return chain.rate(collective_times.chain_broadcast_s, moved, ranks=q.workers)


def group_rate(
    q: Quantities, operation: str, span: GroupSpan, reduce_per_byte_s: float = 0.0
) -> Rate | Either:
    """Return the rate of a collective that runs in several groups at the same time, on rings; as
    measured, if each group has its links to itself."""
    rings = _by_rings(q, operation, reduce_per_byte_s, span)
    if not np.any(span.alone):
        return rings
    found = _measured(q, operation, reduce_per_byte_s, span)
    if found is None:
        return rings
    return found if np.all(span.alone) else Either(span.alone, found, rings)


def _by_rings(
    q: Quantities, operation: str, reduce_per_byte_s: float, span: GroupSpan | None = None
) -> Rate:
    cost: Callable[..., Quantity] = {
        "all_reduce": collective_times.ring_allreduce_s,
        "all_gather": collective_times.all_gather_s,
        "reduce_scatter": collective_times.reduce_scatter_s,
    }[operation]
    ranks = q.workers if span is None else span.members
    adding = {} if operation == "all_gather" else {"reduce_per_byte_s": reduce_per_byte_s}
    ring = Ring.of(q, span)
    if operation == "all_reduce":
        ring = ring.passed_on(q, span)
    return ring.rate(cost, _moved(operation, ranks), ranks=ranks, **adding)


def _moved(operation: str, ranks: Quantity) -> Quantity:
    """Return the bytes that each member sends on a ring, per byte of a collective's size."""
    if operation == "all_reduce":
        return collective_times.ring_allreduce_bytes(ranks, 1.0)
    if operation == "broadcast":
        return where(ranks > 1, 1.0, 0.0)
    return collective_times.half_ring_bytes(ranks, 1.0)
