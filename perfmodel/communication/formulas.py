"""Costs of collectives among a job's workers, as formulas of its quantities."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from perfmodel.base.arrays import Floats
from perfmodel.base.provenance import Source
from perfmodel.base.quantities import Quantity, is_symbol, maximum, minimum, where
from perfmodel.communication.collectives import Collectives, Lines, lines_of
from perfmodel.communication.fabric import Fabric
from perfmodel.communication.groups import GroupSpan
from perfmodel.communication.members import Members, schedule_of
from perfmodel.communication.rates import Fastest, Rate, Use
from perfmodel.communication.reduction import Algorithm, Reduction, candidates
from perfmodel.inputs.cluster import Cluster, IntraNode, Link
from perfmodel.inputs.job import Job
from perfmodel.phases.quantities import Quantities
from perfmodel.theory import collective_times
from perfmodel.theory.collective_times import LinearCost, Operation, RingOperation, ring_use
from perfmodel.theory.cycles import most_along

MOST_IN_DOUBLE_TREE, MOST = 1024, 16_384
"""Numbers of workers up to which the rounds of a double tree, and of other algorithms, are counted;
closed forms are used beyond. The schedule of a large double tree takes long to build."""


class Formulas(Collectives[Rate, Fastest]):
    """Costs of collectives among the workers of each group of a job; by default among all."""

    def __init__(self, job: Job, q: Quantities, span: GroupSpan | None = None) -> None:
        self.job, self.q, self.span = job, q, span
        self.ranks = q.workers if span is None else span.members

    def measured_lines(self, operation: Operation, reduce_per_byte_s: float) -> Lines | None:
        """Return the measured cost, if there is one and some group has its links to itself."""
        if self.span is not None and not np.any(self.span.alone):
            return None
        if isinstance(self.ranks, (int, float)) and self.ranks == 1:
            reduce_per_byte_s = 0.0  # nothing to add
        return lines_of(self.q.collectives, operation, self.ranks, reduce_per_byte_s)

    def as_measured(self, operation: RingOperation, lines: Lines) -> Rate:
        """Return a measured cost with the link usage of a ring; for groups that share links, the
        cost on rings."""
        ring = Ring.of(self.q, self.span, operation)
        use = ring.use.times(ring_use(operation, self.ranks).sent)
        measured = Rate(lines, use, measured=True)
        if self.span is None or np.all(self.span.alone):
            return measured
        return measured.or_else(self.span.alone, self.on_rings(operation, 0.0))

    def on_rings(
        self, operation: RingOperation, reduce_per_byte_s: float, startup_s: Quantity | None = None
    ) -> Rate:
        """Return the cost on rings; ``startup_s`` replaces the latency of their steps."""
        ring = Ring.of(self.q, self.span, operation)
        steps, sent, added = ring_use(operation, self.ranks)
        if startup_s is None:
            startup_s = ring.latency_s(steps)
        per_byte_s = sent * ring.slowest_s + added * reduce_per_byte_s
        return Rate((LinearCost(startup_s, per_byte_s),), ring.use.times(sent))

    def by_rounds(self, options: Reduction) -> Rate:
        """Return the cost of an all-reduce in rounds, each as long as its bottleneck link is busy;
        in closed form for symbols and for many workers."""
        workers = self.q.workers
        if is_symbol(workers):
            return _closed(self.q, options)
        few, links = workers <= most_of(options), LinkFigures.of(self.q)
        given = shape_of(self.job.cluster), links, options
        if not isinstance(workers, np.ndarray):
            rate = _rate(_rounds_costs(*given, int(workers)))
            return rate if few else _closed(self.q, options)
        counts, places = np.unique(workers, return_inverse=True)
        places = places.reshape(workers.shape)
        if links.numbers:
            values = _costs_by_count(*given, tuple(counts.tolist()))[:, places]
        else:
            values = np.zeros((5, *workers.shape))
            for place, count in enumerate(counts.tolist()):
                chosen = places == place
                given = given[0], links.selected(chosen), options
                for row, cost in zip(values, _rounds_costs(*given, count), strict=True):
                    row[chosen] = cost
        rate = _rate(tuple(values))
        return rate if np.all(few) else rate.or_else(few, _closed(self.q, options))

    def startup_s(self, cost: Rate) -> Quantity:
        """Return the time before a collective moves bytes."""
        return cost.lines[0].startup_s

    def candidates(self, options: Reduction) -> list[Reduction]:
        """Return the options that *auto* chooses from; a ring for symbols, and across sites."""
        if options.algorithm == "auto" and (is_symbol(self.q.workers) or self.job.crosses_sites):
            return [msgspec.structs.replace(options, algorithm="ring")]
        several = options.algorithm == "auto" and bool(np.any(self.q.nodes > 1))
        devices = self.job.cluster.devices_per_node
        return candidates(options, several_nodes=several, several_devices=devices > 1)

    def fastest(self, costs: list[Rate]) -> Fastest:
        """Return for each size the cost of the fastest algorithm; the first on ties."""
        return Fastest(tuple(costs))


def most_of(options: Reduction) -> int:
    """Return the number of workers up to which rounds are counted."""
    return MOST_IN_DOUBLE_TREE if options.algorithm in ("auto", "double_tree") else MOST


def exact_formula(job: Job, options: Reduction) -> bool:
    """Return whether the formula of an all-reduce among a job's workers is exact."""
    return options.algorithm == "ring" or job.workers <= most_of(options)


class Ring(msgspec.Struct, frozen=True, eq=False):
    """A ring through the workers of a group, or several if nodes have several NICs.

    ``use`` is the busy time for each byte that a worker sends, with the rings of all groups;
    ``hop_s`` the mean latency of a step inside a site; ``flow_s`` the least time per byte on one
    connection; ``sites_s`` (workers,) by how much the latency from the site of each worker to that
    of the next one is longer than that of a hop between nodes.
    """

    use: Use
    hop_s: Quantity
    flow_s: Quantity = 0.0
    sites_s: Floats | None = None

    @classmethod
    def of(cls, q: Quantities, span: GroupSpan | None, operation: RingOperation) -> Ring:
        """Return the rings through the workers of each group of a job; by default of all."""
        ring = cls._through(q, span)._passed_on(q, span)
        return ring._chain(q) if operation == "broadcast" else ring

    @classmethod
    def _through(cls, q: Quantities, span: GroupSpan | None) -> Ring:
        several = span is not None
        span = span or GroupSpan.of_all(q)
        away, on_node, least = span.away, span.on_node, span.least
        rings = minimum(span.nics, least) if q.nics_per_node > 1 else 1
        if q.bus:
            inside = span.beside * where(away, on_node - 1, span.members)
        else:  # a device that sends to another node does not use its port inside the node
            all_send = (least == on_node) & (on_node <= q.nics_per_node)
            share = where(all_send, 1.0 - 1.0 / rings, 1.0)
            inside = where(away, where(on_node > 1, share, 0.0), 1.0)
        on_nic = span.beside if q.nics_per_node == 1 else q.on_a_nic(span.beside * rings)
        hop_s = q.hop_s
        if several:
            within_s = where(on_node > 1, q.inside_latency_s, 0.0)
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
            None if several else _beyond(q.sites_latency_s, hop_s),
        )

    def _chain(self, q: Quantities) -> Ring:
        """Return the rings through all workers without their last steps, to the first worker.

        The core, and a bus that joins all workers, carry less without them; other links are as
        busy.
        """
        span = GroupSpan.of_all(q)
        rings = minimum(span.nics, span.least) if q.nics_per_node > 1 else 1
        inside = where(span.away, 1.0, 1.0 - 1.0 / q.workers) if q.bus else 1.0
        use = msgspec.structs.replace(
            self.use,
            core_s=self.use.core_s * (1.0 - 1.0 / (rings * q.nodes)),
            inside_s=self.use.inside_s * inside,
        )
        return msgspec.structs.replace(self, use=use)

    def _passed_on(self, q: Quantities, span: GroupSpan | None) -> Ring:
        """Return the rings with the mean latency of a step instead of the longest one, for messages
        that members pass on without waiting for others."""
        if is_symbol(q.workers):
            return self
        nodes = q.nodes if span is None else span.members / span.on_node
        members = q.workers if span is None else span.members
        between = (nodes * q.latency_s + (members - nodes) * q.inside_latency_s) / members
        hop_s = where(q.nodes > 1 if span is None else span.away, between, self.hop_s)
        return msgspec.structs.replace(self, hop_s=hop_s)

    @property
    def slowest_s(self) -> Quantity:
        """Time per byte that each worker sends."""
        return maximum(*msgspec.structs.astuple(self.use), self.flow_s)

    def latency_s(self, steps: Quantity) -> Quantity:
        """Return the latency of ``steps`` steps."""
        if self.sites_s is None:
            return steps * self.hop_s
        return steps * self.hop_s + most_along(self.sites_s, int(steps))


def _beyond(sites_s: Floats | None, hop_s: Quantity) -> Floats | None:
    """Return by how much latencies between sites are longer than that of a hop."""
    return None if sites_s is None else np.maximum(sites_s - hop_s, 0.0)


def _closed(q: Quantities, options: Reduction) -> Rate:
    """Return the rate by closed forms, with all workers of a node sending at once."""
    away, g = q.nodes > 1, q.fullest
    share = minimum(
        q.bandwidth_bytes_per_s / q.on_a_nic(g),
        q.core_bandwidth_bytes_per_s / g,
        q.flow_bytes_per_s,
    )
    inside = q.inside_bandwidth_bytes_per_s / (g if q.bus else 1)
    figures: dict[str, Quantity] = {
        "ranks": q.workers,
        "bandwidth_bytes_per_s": where(away, minimum(share, inside), inside),
        "latency_s": q.hop_s,
        "reduce_per_byte_s": options.reduce_per_byte_s,
    }
    cost: Callable[..., Quantity]
    match options.algorithm:
        case "halving_doubling":
            cost = collective_times.rabenseifner_allreduce_s
        case "tree":
            cost = collective_times.tree_allreduce_s
        case "double_tree":
            double_tree: Callable[..., Quantity] = collective_times.double_tree_allreduce_s
            cost = functools.partial(double_tree, chunks=options.chunks)
            del figures["reduce_per_byte_s"]
        case _:
            cost = collective_times.hierarchical_allreduce_s
            del figures["ranks"]
            figures |= {
                "nodes": q.nodes,
                "devices_per_node": g,
                "bandwidth_bytes_per_s": share,
                "latency_s": q.latency_s,
                "intra_bandwidth_bytes_per_s": inside,
                "intra_latency_s": q.inside_latency_s,
            }
    without_latency = {name: 0.0 if "latency" in name else figures[name] for name in figures}
    line = LinearCost(cost(size_bytes=0.0, **figures), cost(size_bytes=1.0, **without_latency))
    # any algorithm moves as many bytes as a ring: n - 1 gradients in, n - 1 sums out
    ranks = q.nodes if options.algorithm == "hierarchical" else q.workers
    moved = collective_times.ring_allreduce_bytes(ranks, 1.0)
    return Rate((line,), Use(where(away, moved / (q.bandwidth_bytes_per_s * q.nics_per_node), 0.0)))


class LinkFigures(NamedTuple):
    """The figures of links that the time of a round depends on; each may be an array."""

    bandwidth_bytes_per_s: Quantity
    core_bandwidth_bytes_per_s: Quantity
    inside_bandwidth_bytes_per_s: Quantity
    flow_bytes_per_s: Quantity
    latency_s: Quantity
    inside_latency_s: Quantity

    @classmethod
    def of(cls, q: Quantities) -> LinkFigures:
        """Return the figures of the links of a job."""
        return cls(*(getattr(q, name) for name in cls._fields))

    @property
    def numbers(self) -> bool:
        """Whether none of them is an array."""
        return not any(isinstance(value, np.ndarray) for value in self)

    def selected(self, chosen: NDArray[np.bool_]) -> LinkFigures:
        """Return the chosen elements of arrays."""
        return LinkFigures(
            *(
                value[chosen]
                if isinstance(value, np.ndarray) and value.shape == chosen.shape
                else value
                for value in self
            )
        )


RoundsCosts = tuple[Quantity, ...]
"""Seconds to start, seconds per byte, and busy seconds per byte of the busiest link between a node
and the network, of the core and of the busiest link inside a node."""


def _rate(costs: RoundsCosts) -> Rate:
    return Rate((LinearCost(*costs[:2]),), Use(*costs[2:]))


@functools.lru_cache(maxsize=64)
def _costs_by_count(
    shape: Cluster, links: LinkFigures, options: Reduction, counts: tuple[int, ...]
) -> Floats:
    """Return :func:`_rounds_costs` for each number of workers, (5, counts): the same for all
    workloads."""
    return np.array([_rounds_costs(shape, links, options, count) for count in counts]).T


def _rounds_costs(
    shape: Cluster, links: LinkFigures, options: Reduction, count: int
) -> RoundsCosts:
    """Return the costs for ``count`` workers.

    They are zero for a single worker, and for more workers than :func:`most_of`.
    """
    if not 1 < count <= most_of(options):
        return (0.0, 0.0, 0.0, 0.0, 0.0)
    rounds = rounds_among(shape, count, options.algorithm, options.chunks)
    columns = zip((rounds.nic, rounds.core, rounds.inside, rounds.apart), links[:4], strict=True)
    moving_s = _total(rounds.times, [np.divide.outer(moved, rate) for moved, rate in columns])
    hops = [np.multiply.outer(rounds.away, links.latency_s),
            np.multiply.outer(rounds.within, links.inside_latency_s)]  # fmt: skip
    added_s = options.reduce_per_byte_s * float(rounds.times @ rounds.added)
    busy_s = (total / by for total, by in zip(rounds.totals.tolist(), links[:3], strict=True))
    return (_total(rounds.times, hops), moving_s + added_s, *busy_s)


def _total(times: Floats, columns: list[Floats]) -> Quantity:
    """Return the sum over rounds of ``times`` times the largest of the columns (rounds, ...)."""
    axes = max(column.ndim for column in columns)
    if axes == 1:
        return float(times @ functools.reduce(np.maximum, columns))
    columns = [c.reshape(*c.shape, *(1,) * (axes - c.ndim)) for c in columns]
    return np.tensordot(times, maximum(*columns), axes=(0, 0))


class Rounds(NamedTuple):
    """The rounds of an all-reduce on a cluster whose links of a kind are alike, grouped if equal.

    Per byte to be reduced; all of shape (rounds,) except ``totals``.

    Attributes
    ----------
    times : repetitions of each round.
    nic, core, inside : bytes over a node's busiest network link; over the core, divided by the
        number of nodes; over the busiest link inside a node.
    apart : bytes of the largest send between nodes.
    away, within : 1 if anything is sent between nodes, or inside a node.
    added : the most bytes that a member adds.
    totals : bytes over the busiest link of each of these kinds in all rounds together, (3,).
    """

    times: Floats
    nic: Floats
    core: Floats
    inside: Floats
    apart: Floats
    away: Floats
    within: Floats
    added: Floats
    totals: Floats


def shape_of(cluster: Cluster) -> Cluster:
    """Return a cluster with the same nodes and devices, and equal links."""
    inside = cluster.intra_node
    return Cluster(
        name="shape",
        nic=Link(1.0, 1.0),
        devices_per_node=cluster.devices_per_node,
        nics_per_node=cluster.nics_per_node,
        devices_on_nodes=cluster.devices_on_nodes,
        intra_node=IntraNode(1.0, kind="bus" if inside is None else inside.kind),
        core_oversubscription=1.0,
        flow_bytes_per_s=1.0,
        source=Source("exact", "of a schedule"),
    )


@functools.lru_cache(maxsize=4096)
def rounds_among(shape: Cluster, workers: int, algorithm: Algorithm, chunks: int) -> Rounds:
    """Return the rounds of an all-reduce among workers, given the cluster's :func:`shape_of`."""
    members = Members(Fabric.of(shape, workers))
    fabric, schedule = members.fabric, schedule_of(members, Reduction(algorithm, chunks))
    nodes = len(fabric.latency_s)
    source, target = schedule.source, schedule.target
    hop_s = fabric.between_s(source, target)
    flow_s = schedule.part / fabric.flow_between(source, target)
    added = np.where(schedule.adds, schedule.part, 0.0)
    first = np.searchsorted(schedule.round, np.arange(len(schedule.repeat)))
    loads = members.loads_by_round(fabric.path(source, target), schedule)

    def busiest(loads: Floats) -> list[Floats]:
        nic, core, inside = np.split(loads, (fabric.core, fabric.core + 1), axis=-1)
        return [nic.max(axis=-1), core[..., 0] / nodes, inside.max(axis=-1)]

    columns = [
        *busiest(loads),
        np.maximum.reduceat(flow_s, first),
        np.logical_or.reduceat(hop_s > 0.0, first).astype(np.float64),
        np.logical_or.reduceat(hop_s == 0.0, first).astype(np.float64),
        np.maximum.reduceat(added, first),
    ]
    total = np.zeros(len(fabric.capacity))
    for times, of_round in zip(schedule.repeat.tolist(), loads, strict=True):
        total += times * of_round
    unique, index = np.unique(np.stack(columns, axis=-1), axis=0, return_inverse=True)
    count = np.bincount(index.ravel(), schedule.repeat).astype(np.float64)
    grouped: list[Floats] = [count, *unique.T, np.array(busiest(total))]
    return Rounds(*grouped)
