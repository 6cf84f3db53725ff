"""Times of collectives among a job's workers, as formulas of its quantities."""

from __future__ import annotations

import math
from collections.abc import Callable

import msgspec
import numpy as np

from perfmodel.architectures.parts.measured import Fastest, Rate, Use, measured_rate
from perfmodel.architectures.parts.reduction import Reduction, candidates, rounds_among, shape_of
from perfmodel.base.arrays import Floats
from perfmodel.base.quantities import Quantity, is_symbol, maximum, minimum, where
from perfmodel.inputs.cluster import Cluster
from perfmodel.inputs.job import Job
from perfmodel.phases.quantities import Quantities
from perfmodel.theory import collective_times
from perfmodel.theory.collective_times import LinearCost
from perfmodel.theory.cycles import most_along

MOST_IN_DOUBLE_TREE, MOST = 1024, 16_384
"""Workers up to which the rounds of a double tree, and of other algorithms, are counted; beyond,
closed forms are used. The schedule of a large double tree takes long to make."""


def most_of(options: Reduction) -> int:
    """Workers up to which rounds are counted."""
    return MOST_IN_DOUBLE_TREE if options.algorithm in ("auto", "double_tree") else MOST


class Ring(msgspec.Struct, frozen=True, eq=False):
    """A ring through all workers, or several where nodes have several NICs.

    ``use`` is the busy time for each byte that a worker sends, ``hop_s`` the latency of a step
    inside a site, ``flow_s`` the least time of a connection for each byte, ``sites_s`` (workers,)
    the latency between the sites of each worker and of the next one.
    """

    use: Use
    hop_s: Quantity
    flow_s: Quantity = 0.0
    sites_s: Floats | None = None

    @classmethod
    def of(cls, q: Quantities) -> Ring:
        """The ring through the workers of a job."""
        away = is_symbol(q.workers) or q.nodes > 1  # symbols: one worker to a node
        rings = minimum(q.nics_per_node, q.emptiest) if q.nics_per_node > 1 else 1
        if q.bus:
            inside = where(away, q.fullest - 1, q.workers)
        else:  # a device that sends to another node does not use its port
            all_send = (q.emptiest == q.fullest) & (q.fullest <= q.nics_per_node)
            some = where(all_send, 1.0 - 1.0 / rings, 1.0)
            inside = where(away, where(q.fullest > 1, some, 0.0), 1.0)
        return cls(
            Use(
                where(away, 1.0 / (rings * q.bandwidth_bytes_per_s), 0.0),
                where(away, 1.0 / q.core_bandwidth_bytes_per_s, 0.0),
                inside / q.inside_bandwidth_bytes_per_s,
                1.0 / q.sites_bytes_per_s,
            ),
            q.hop_s,
            where(away, 1.0 / (rings * q.flow_bytes_per_s), 0.0),
            q.sites_latency_s,
        )

    def rate(self, cost: Callable[..., Quantity], moved: Quantity, **figures: Quantity) -> Rate:
        """Rate of a collective in which each worker sends ``moved`` bytes per byte of its size."""
        use = self.use
        slowest_s = maximum(use.nic_s, use.core_s, use.inside_s, use.sites_s, self.flow_s)
        added = {**figures, "bandwidth_bytes_per_s": math.inf}
        startup_s = cost(size_bytes=0.0, latency_s=self.hop_s, **added)
        if self.sites_s is not None:
            steps = round(cost(size_bytes=0.0, latency_s=1.0, **added))
            more_s = np.maximum(self.sites_s - self.hop_s, 0.0)
            startup_s = startup_s + most_along(more_s, steps)
        per_byte_s = moved * slowest_s + cost(size_bytes=1.0, latency_s=0.0, **added)
        return Rate((LinearCost(startup_s, per_byte_s),), self.use.times(moved))


def _measured(q: Quantities, operation: str, moved: Quantity, reduce_per_byte_s: float
              ) -> Rate | None:  # fmt: skip
    """The measured rate of an operation, if there is one, with the link usage of a ring."""
    if isinstance(q.workers, int) and q.workers == 1:
        reduce_per_byte_s = 0.0  # nothing to add
    rate = measured_rate(q.collectives, operation, q.workers, reduce_per_byte_s)
    if rate is None:
        return None
    return msgspec.structs.replace(rate, use=Ring.of(q).use.times(moved))


def all_reduce_rate(job: Job, q: Quantities, options: Reduction) -> Rate | Fastest:
    """Rate of an all-reduce among the workers; for symbols, and across sites, *auto* is a
    ring."""
    moved = collective_times.ring_allreduce_bytes(q.workers, 1.0)
    if options.by_measurements:
        rate = _measured(q, "all_reduce", moved, options.reduce_per_byte_s)
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
        return Ring.of(q).rate(
            collective_times.ring_allreduce_s, moved, ranks=q.workers, reduce_per_byte_s=gamma
        )
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
    """By closed forms, with all workers of a node sending at once."""
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
    # any algorithm moves as many bytes as a ring: n - 1 gradients in, and n - 1 sums out
    ranks = q.nodes if options.algorithm == "hierarchical" else q.workers
    moved = collective_times.ring_allreduce_bytes(ranks, 1.0)
    return msgspec.structs.replace(
        rate, use=Use(where(away, moved / (q.bandwidth_bytes_per_s * q.nics_per_node), 0.0))
    )


def _by_rounds(shape: Cluster, q: Quantities, options: Reduction) -> Rate:
    """Sum over the rounds, each as long as its bottleneck link is busy."""
    counts = q.workers
    if not isinstance(counts, np.ndarray):
        return _rounds_rate(shape, q, options, counts)
    found: dict[str, Quantity] = {}
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
    """Rate for ``count`` workers; bandwidths and latencies may be arrays.

    Zero for a single worker, and for more workers than :func:`most_of`.
    """
    if not 1 < count <= most_of(options):
        return Rate((LinearCost(0.0, 0.0),))
    rounds = rounds_among(shape, int(count), options)
    links = (q.bandwidth_bytes_per_s, q.core_bandwidth_bytes_per_s, q.inside_bandwidth_bytes_per_s)

    def over(values: Floats, by: Quantity) -> Quantity:
        return np.divide.outer(values, by) if isinstance(by, np.ndarray) else values / by

    def times(values: Floats, by: Quantity) -> Quantity:
        return np.multiply.outer(values, by)

    columns = [over(v, b) for v, b in zip((rounds.nic, rounds.core, rounds.inside), links,
                                          strict=True)]  # fmt: skip
    columns.append(over(rounds.apart, q.flow_bytes_per_s))
    moving = _total(rounds.times, columns)
    hops = [times(rounds.away, q.latency_s), times(rounds.within, q.inside_latency_s)]
    added = options.reduce_per_byte_s * float(rounds.times @ rounds.added)
    use = (total / by for total, by in zip(rounds.totals.tolist(), links, strict=True))
    return Rate((LinearCost(_total(rounds.times, hops), moving + added),), Use(*use))


def _total(count: Floats, columns: list[Quantity]) -> Quantity:
    """Sum over the rounds of ``count`` times the largest of the columns (rounds, ...)."""
    depth = max(np.ndim(column) for column in columns)
    alike = [np.reshape(c, (*c.shape, *(1,) * (depth - np.ndim(c)))) for c in columns]
    found = np.tensordot(count, maximum(*alike), axes=(0, 0))
    return float(found) if found.ndim == 0 else found


def closed(job: Job, options: Reduction) -> bool:
    """Whether the formula of an all-reduce among a job's workers is exact."""
    return options.algorithm == "ring" or job.workers <= most_of(options)


def reduce_scatter_rate(q: Quantities, reduce_per_byte_s: float = 0.0) -> Rate:
    """Rate of a ring reduce-scatter among the workers, by bytes before it."""
    moved = collective_times.half_ring_bytes(q.workers, 1.0)
    found = _measured(q, "reduce_scatter", moved, reduce_per_byte_s)
    return found or Ring.of(q).rate(
        collective_times.reduce_scatter_s,
        moved,
        ranks=q.workers,
        reduce_per_byte_s=reduce_per_byte_s,
    )


def all_gather_rate(q: Quantities) -> Rate:
    """Rate of a ring all-gather among the workers, by bytes after it."""
    moved = collective_times.half_ring_bytes(q.workers, 1.0)
    found = _measured(q, "all_gather", moved, 0.0)
    return found or Ring.of(q).rate(collective_times.all_gather_s, moved, ranks=q.workers)
