"""All-reduce, reduce-scatter and all-gather: options, schedules and costs."""

from __future__ import annotations

import functools
from typing import Annotated, Literal

import msgspec
import numpy as np

from perfmodel.base.arrays import Floats
from perfmodel.base.errors import number, whole_number
from perfmodel.base.provenance import Source
from perfmodel.communication import schedules
from perfmodel.communication.fabric import Fabric
from perfmodel.communication.members import (
    Cost,
    Members,
    measured_cost,
    ring_cost,
    rounds_of,
    scheduled_cost,
)
from perfmodel.communication.rates import measured_in, measured_rate
from perfmodel.communication.schedules import SendSchedule
from perfmodel.inputs.cluster import Cluster, IntraNode, Link
from perfmodel.inputs.options import Option, Options
from perfmodel.theory import collective_times

Algorithm = Literal[
    "auto", "ring", "halving_doubling", "tree", "double_tree", "node_tree", "hierarchical"
]

CHUNKS = 16
"""Number of pieces of each half of the bytes in a double tree."""

MOST_CHUNKS = 1000

MOST_IN_TREES = 20_000
"""Number of workers up to which *auto* considers trees: each number of chunks needs a schedule."""


AlgorithmOption = Annotated[
    Algorithm,
    Option(
        "how gradients are summed: auto (for each message the fastest of ring, double_tree and "
        "node_tree, as NCCL chooses; or as measured, if the cluster has measurements), ring, "
        "halving_doubling (Rabenseifner), tree, double_tree, node_tree (a tree among nodes and "
        "chains inside them, as in NCCL) or hierarchical (inside each node, then rings among "
        "nodes; with several sites inside each site, then rings among sites)",
        lambda o: o.sparse,
    ),
]
ChunksOption = Annotated[
    int,
    Option(
        "pieces of each half of the bytes, with algorithm=double_tree; upper limit with auto",
        lambda o: o.sparse or o.algorithm not in ("auto", "double_tree"),
    ),
]
ReduceOption = Annotated[
    float,
    Option("time to add gradients, per byte", lambda o: o.sparse),
]


class Reduction(Options, frozen=True):
    """Options of an all-reduce, which some architectures include in their own."""

    algorithm: AlgorithmOption = "auto"
    chunks: ChunksOption = CHUNKS
    reduce_per_byte_s: ReduceOption = 0.0

    def __post_init__(self) -> None:
        whole_number("chunks", self.chunks, at_most=MOST_CHUNKS)
        number("reduce_per_byte_s", self.reduce_per_byte_s)

    @property
    def sparse(self) -> bool:
        """Whether members gather all gradients instead of summing them on the way."""
        return False

    @property
    def by_measurements(self) -> bool:
        """Whether measured collectives replace these options."""
        return self.algorithm in ("auto", "ring")


MEASURED_ASSUMPTION = (
    "if the cluster file has measured collectives, they replace rings and the choice of auto: they "
    "take as long as measured, and load every link with the bytes that a ring moves over it"
)

REDUCTION_ASSUMPTIONS = (
    "a ring moves 2(n-1)/n of the bytes from each member to the next, at the pace of the slowest "
    "link; nodes with several NICs have several rings, which share the bytes",
    "other algorithms go round by round; in each round a member sends to one other and receives "
    "from one, and the round takes as long as the slowest of its sends",
    "a tree handles all bytes at once; a double tree splits each half into chunks, each a message "
    "with its own latency; a node tree starts as fast as a hierarchical all-reduce and loads links "
    "as a ring does",
    "devices of a node share its bus if it has one; otherwise each has its own port",
    MEASURED_ASSUMPTION,
)


def schedule_of(members: Members, options: Reduction) -> SendSchedule:
    """Return the sends of an all-reduce, for any algorithm but *auto*, among members by site."""
    n, order = members.count, members.fabric.by_site(members.ends[0])
    match options.algorithm:
        case "halving_doubling":
            found = schedules.halving_doubling_all_reduce(n)
        case "tree":
            found = schedules.tree_all_reduce(n)
        case "double_tree":
            found = schedules.double_tree_all_reduce(n, options.chunks)
        case "hierarchical":
            group = members.group[order]
            runs = np.cumsum(np.diff(group, prepend=group[:1]) != 0)
            found = schedules.hierarchical_all_reduce(runs.tolist())
        case _:
            found = schedules.ring_all_reduce(n)
    return found.among(order)


def candidates(options: Reduction, *, several_nodes: bool, several_devices: bool,
               trees: bool = True) -> list[Reduction]:  # fmt: skip
    """Return the options that *auto* chooses from, the first on ties; else the options themselves.

    They include a double tree with 1, 4, 16 ... chunks, up to ``chunks``. A node tree is no better
    than a ring unless there are several nodes with several devices. No library uses a hierarchical
    all-reduce, which moves fewer bytes between nodes, without being told to.

    NVIDIA's NCCL also chooses by the predicted time of a message, from a latency and a bandwidth
    for rings and for double binary trees (src/graph/tuning.cc); its trees are chains inside nodes.
    """
    if options.algorithm != "auto":
        return [options]

    def variant(algorithm: Algorithm, chunks: int = CHUNKS) -> Reduction:
        return Reduction(algorithm, chunks, options.reduce_per_byte_s)

    found = [variant("ring")]
    if several_nodes and several_devices:
        found.append(variant("node_tree"))
    chunks = 1
    while trees and chunks <= options.chunks:
        found.append(variant("double_tree", chunks))
        chunks *= 4
    return found


def candidates_among(members: Members, options: Reduction) -> list[Reduction]:
    """Return the options that *auto* chooses from among members; else the options themselves."""
    if options.algorithm == "auto" and members.count == 1:
        return [msgspec.structs.replace(options, algorithm="ring")]
    count = np.bincount(members.group)
    return candidates(
        options,
        several_nodes=len(count) > 1,
        several_devices=bool(count.max() > 1),
        trees=members.count <= MOST_IN_TREES,
    )


def all_reduce_cost(members: Members, sizes: Floats, options: Reduction) -> Cost:
    """Return the cost of an all-reduce of each of ``sizes`` bytes."""
    n = members.count
    if options.by_measurements:
        rate = measured_rate(members.collectives, "all_reduce", n, options.reduce_per_byte_s)
        if rate is not None:
            moved = np.array([collective_times.ring_allreduce_bytes(n, size) for size in sizes])
            return measured_cost(members, moved, *collective_times.line_s(rate.lines, sizes))
    first, *others = (_cost(members, sizes, o) for o in candidates_among(members, options))
    return first.fastest(tuple(others)) if others else first


def _cost(members: Members, sizes: Floats, options: Reduction) -> Cost:
    n = members.count
    if options.algorithm in ("ring", "node_tree"):
        moved = np.array([collective_times.ring_allreduce_bytes(n, size) for size in sizes])
        added_s = moved / 2.0 * options.reduce_per_byte_s
        steps = int(collective_times.ring_allreduce_steps(n))
        ring = ring_cost(members, moved, steps, added_s, passed_on=True)
        if options.algorithm == "ring":
            return ring
        schedule = schedule_of(members, Reduction("hierarchical"))
        started_s = scheduled_cost(members, schedule, np.zeros(1), 0.0).startup_s
        return msgspec.structs.replace(ring, startup_s=started_s + added_s)
    schedule = schedule_of(members, options)
    return scheduled_cost(members, schedule, sizes, options.reduce_per_byte_s)


def chosen(
    members: Members, options: Reduction, size_bytes: float, *, by_sends: bool = False
) -> Reduction:
    """Return the options that *auto* chooses for a message of ``size_bytes``.

    With measured collectives there is no choice. ``by_sends`` leaves out a node tree, whose sends
    are not modelled.
    """
    measured = measured_in(members.collectives, "all_reduce") is not None
    if options.algorithm != "auto" or measured:
        return options
    size = np.array([size_bytes])
    found = [
        one
        for one in candidates_among(members, options)
        if not (by_sends and one.algorithm == "node_tree")
    ]
    seconds = [float(_cost(members, size, o).seconds[0]) for o in found]
    return found[int(np.argmin(seconds))]


def reduce_scatter_cost(members: Members, sizes: Floats, reduce_per_byte_s: float) -> Cost:
    """Return the cost of a ring reduce-scatter of each of ``sizes`` bytes."""
    return _half_ring_cost(members, sizes, "reduce_scatter", reduce_per_byte_s)


def all_gather_cost(members: Members, sizes: Floats) -> Cost:
    """Return the cost of a ring all-gather with results of ``sizes`` bytes, 1/n per member."""
    return _half_ring_cost(members, sizes, "all_gather", 0.0)


def _half_ring_cost(
    members: Members, sizes: Floats, operation: str, reduce_per_byte_s: float
) -> Cost:
    n = members.count
    moved = np.array([collective_times.half_ring_bytes(n, size) for size in sizes])
    rate = measured_rate(members.collectives, operation, n, reduce_per_byte_s)
    if rate is not None:
        return measured_cost(members, moved, *collective_times.line_s(rate.lines, sizes))
    return ring_cost(members, moved, n - 1, moved * reduce_per_byte_s)


def broadcast_cost(members: Members, sizes: Floats) -> Cost:
    """Return the cost of broadcasts of ``sizes`` bytes from the first member along the rings."""
    rate = measured_rate(members.collectives, "broadcast", members.count, 0.0)
    if rate is not None:
        line = collective_times.line_s(rate.lines, sizes)
        return measured_cost(members, sizes, *line, closed=False)
    nothing = np.zeros_like(sizes)
    return ring_cost(members, sizes, members.count - 1, nothing, closed=False)


class Rounds(msgspec.Struct, frozen=True, eq=False):
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
def rounds_among(shape: Cluster, workers: int, options: Reduction) -> Rounds:
    """Return the rounds of an all-reduce among workers, given the cluster's :func:`shape_of`."""
    members = Members(Fabric.of(shape, workers))
    fabric = members.fabric
    nodes = len(fabric.latency_s)
    nic, inside = slice(0, fabric.core), slice(fabric.core + 1, None)

    def busiest(loads: Floats) -> list[float]:
        within = float(loads[inside].max())
        return [float(loads[nic].max()), float(loads[fabric.core]) / nodes, within]

    rows, times = [], []
    total = np.zeros(len(fabric.capacity))
    for step in rounds_of(members, schedule_of(members, options)):
        total += step.times * step.loads
        kinds = [float((step.hop_s > 0.0).any()), float((step.hop_s == 0.0).any())]
        rows.append([*busiest(step.loads), step.flow_s, *kinds, step.added])
        times.append(step.times)
    unique, index = np.unique(rows, axis=0, return_inverse=True)
    count = np.bincount(index.ravel(), times).astype(np.float64)
    columns: list[Floats] = [count, *unique.T, np.array(busiest(total))]
    return Rounds(*columns)
