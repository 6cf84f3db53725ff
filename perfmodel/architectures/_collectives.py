"""Collective operations in an op graph: as one flow over all members' links, or send by send."""

from __future__ import annotations

import math
from typing import Any, Literal

import msgspec
import numpy as np

from perfmodel import collectives, costs
from perfmodel.algebra import Quantity, minimum, where
from perfmodel.architectures._measured import Rate, measured_rate
from perfmodel.architectures._network import Network
from perfmodel.cluster import Cluster, Collective
from perfmodel.collectives import NONE, Schedule, waits_of
from perfmodel.errors import number, whole_number
from perfmodel.graph import Floats, GraphBuilder, Ids
from perfmodel.job import Job
from perfmodel.phases import Quantities

Algorithm = Literal["ring", "halving_doubling", "tree", "double_tree", "hierarchical"]

CHUNKS = 16
"""Pieces of each half of the bytes in a double tree."""

MOST_CHUNKS = 1000

ROUNDING = 1e-12
"""How much slower than its links a collective must be to have a rate of its own."""


class Reduction(msgspec.Struct, frozen=True):
    """Options of how members sum what they have, a part of an architecture's options."""

    algorithm: Algorithm = "ring"
    chunks: int = CHUNKS
    reduce_per_byte_s: float = 0.0

    def __post_init__(self) -> None:
        whole_number("chunks", self.chunks, at_most=MOST_CHUNKS)
        number("reduce_per_byte_s", self.reduce_per_byte_s)

    @property
    def unused(self) -> set[str]:
        """Options that have no effect with this algorithm."""
        return set() if self.algorithm == "double_tree" else {"chunks"}


REDUCTION_HELP = {
    "algorithm": "how the sum is made: ring (or as measured, if the cluster says), "
    "halving_doubling (Rabenseifner), tree, double_tree or hierarchical (inside each node, then a "
    "ring among nodes)",
    "chunks": "pieces of each half of the bytes, with algorithm=double_tree",
    "reduce_per_byte_s": "time to add one byte's worth of gradients",
}

MEASURED_ASSUMPTION = (
    "where the cluster file has measured collectives, these take as long as measured, in the place "
    "of a ring; they load every link with what a ring moves over it"
)

REDUCTION_ASSUMPTIONS = (
    "a ring moves 2(n-1)/n of the bytes over every member's link, both ways; it goes at the pace "
    "of the slowest link",
    "other algorithms go round by round; in each a member sends to one other, and receives from "
    "one, and a round takes as long as the slowest of its sends",
    "a tree handles all bytes at once; a double tree has each half in chunks, of which each is a "
    "message with a latency of its own",
    "devices of a node use the link inside it together; a ring that is one flow loads it with what "
    "one device sends",
    MEASURED_ASSUMPTION,
)


class Members(msgspec.Struct, frozen=True, eq=False):
    """Those who take part in a collective, and the links between them.

    Links are numbered: out of each node, into each node, the core, inside each node. The core
    stands in for what one node has of it: its capacity divided by the number of nodes.

    Attributes
    ----------
    place : number of the node of each member, (members,).
    capacity : of each link (bytes/s), (3 nodes + 1,); infinite where there is no such link.
    latency_s : of each node's link, (nodes,).
    inside_latency_s : of a link inside a node.
    collectives : what those among these members were measured to take.
    """

    place: Ids
    capacity: Floats
    latency_s: Floats
    inside_latency_s: float
    collectives: tuple[Collective, ...] = ()

    @classmethod
    def of(cls, cluster: Cluster, workers: int) -> Members:
        """The workers of a job on their nodes."""
        place = np.array([cluster.node_of_worker(worker) for worker in range(workers)])
        nics = [cluster.nic_of(node) for node in range(int(place[-1]) + 1)]
        out = np.array([nic.goodput_bytes_per_s for nic in nics])
        over, inside = cluster.core_oversubscription, cluster.intra_node
        core = math.inf if over is None else out.sum() / over / len(nics)
        rate = math.inf if inside is None else inside.goodput_bytes_per_s
        return cls(
            place=place,
            capacity=np.concatenate([out, out, [core], np.full(len(nics), rate)]),
            latency_s=np.array([nic.latency_s for nic in nics]),
            inside_latency_s=0.0 if inside is None else inside.latency_s,
            collectives=cluster.collectives_of(workers),
        )

    @property
    def nodes(self) -> int:
        """How many nodes they are on."""
        return len(self.latency_s)

    @property
    def hop_s(self) -> float:
        """Greatest one-way latency between two members."""
        return float(self.latency_s.max()) if self.nodes > 1 else self.inside_latency_s

    def between_s(self, source: Ids, target: Ids) -> Floats:
        """One-way latency between members."""
        a, z = self.place[source], self.place[target]
        apart = np.maximum(self.latency_s[a], self.latency_s[z])
        return np.where(a != z, apart, self.inside_latency_s)

    def links(self, source: Ids, target: Ids) -> Ids:
        """Numbers of the links between members, (sends, 3); NONE where a send needs fewer."""
        n = self.nodes
        a, z = self.place[source], self.place[target]
        away = a != z
        return np.stack(
            [
                np.where(away, a, 2 * n + 1 + a),
                np.where(away, n + z, NONE),
                np.where(away, 2 * n, NONE),
            ],
            axis=-1,
        )

    def everywhere(self) -> Floats:
        """1 for each link that a ring through all members takes, 0 for others, (links,)."""
        used = np.zeros(len(self.capacity))
        used[2 * self.nodes + 1 :] = 1.0
        if self.nodes > 1:
            used[: 2 * self.nodes + 1] = 1.0
        return used


class Cost(msgspec.Struct, frozen=True, eq=False):
    """What collectives of several sizes take on idle links.

    Attributes
    ----------
    bytes : over the least used of the links, (sizes,).
    loads : bytes over each link as multiples of that, (links,); see :class:`Members`.
    startup_s : latencies, and time to add, (sizes,).
    transfer_s : time to move the bytes, (sizes,).
    """

    bytes: Floats
    loads: Floats
    startup_s: Floats
    transfer_s: Floats

    @property
    def seconds(self) -> Floats:
        """How long each takes, (sizes,)."""
        return self.startup_s + self.transfer_s

    @property
    def symmetric(self) -> bool:
        """Whether every node's links are used alike."""
        n = (len(self.loads) - 1) // 3
        kinds = (self.loads[:n], self.loads[n : 2 * n], self.loads[2 * n + 1 :])
        return all(bool((kind == kind[0]).all()) for kind in kinds)


def _ring_cost(members: Members, moved: Floats, steps: int, added_s: Floats) -> Cost:
    """A ring that moves ``moved`` bytes (sizes,) over each member's link in so many steps."""
    loads = members.everywhere()
    slowest = members.capacity[loads > 0.0].min()
    return Cost(moved, loads, steps * members.hop_s + added_s, moved / slowest)


def _measured_cost(members: Members, moved: Floats, rate: Rate, sizes: Floats) -> Cost:
    """What takes as long as measured on idle links, and moves what a ring does over each.

    No more bytes than the links let pass in that time, so that these never make it longer.
    """
    loads = members.everywhere()
    slowest = members.capacity[loads > 0.0].min()
    startup_s, moving_s = costs.line_s(rate.lines, sizes)
    passing = moving_s * slowest if slowest < math.inf else moved
    return Cost(np.minimum(moved, passing), loads, startup_s, moving_s)


def all_reduce_cost(members: Members, sizes: Floats, options: Reduction) -> Cost:
    """What an all-reduce of each of ``sizes`` bytes costs."""
    n = len(members.place)
    if options.algorithm == "ring":
        moved = np.array([costs.ring_allreduce_bytes(n, size) for size in sizes])
        rate = measured_rate(members.collectives, "all_reduce", n, options.reduce_per_byte_s)
        if rate is not None:
            return _measured_cost(members, moved, rate, sizes)
        added_s = moved / 2.0 * options.reduce_per_byte_s
        return _ring_cost(members, moved, costs.ring_allreduce_steps(n), added_s)
    schedule = schedule_of(members, options)
    return _scheduled_cost(members, schedule, sizes, options.reduce_per_byte_s)


def reduce_scatter_cost(members: Members, sizes: Floats, reduce_per_byte_s: float) -> Cost:
    """What a ring reduce-scatter of each of ``sizes`` bytes costs."""
    return _half_ring_cost(members, sizes, "reduce_scatter", reduce_per_byte_s)


def all_gather_cost(members: Members, sizes: Floats) -> Cost:
    """What a ring all-gather costs whose results have ``sizes`` bytes, an n-th from each member."""
    return _half_ring_cost(members, sizes, "all_gather", 0.0)


def _half_ring_cost(
    members: Members, sizes: Floats, operation: str, reduce_per_byte_s: float
) -> Cost:
    n = len(members.place)
    moved = np.array([costs.half_ring_bytes(n, size) for size in sizes])
    rate = measured_rate(members.collectives, operation, n, reduce_per_byte_s)
    if rate is not None:
        return _measured_cost(members, moved, rate, sizes)
    return _ring_cost(members, moved, n - 1, moved * reduce_per_byte_s)


def schedule_of(members: Members, options: Reduction) -> Schedule:
    """The sends of an all-reduce."""
    n = len(members.place)
    match options.algorithm:
        case "ring":
            return collectives.ring_all_reduce(n)
        case "halving_doubling":
            return collectives.halving_doubling_all_reduce(n)
        case "tree":
            return collectives.tree_all_reduce(n)
        case "double_tree":
            return collectives.double_tree_all_reduce(n, options.chunks)
        case "hierarchical":
            return collectives.hierarchical_all_reduce(members.place.tolist())


def _scheduled_cost(
    members: Members, schedule: Schedule, sizes: Floats, reduce_per_byte_s: float
) -> Cost:
    """Round after round, each as long as its slowest send takes with its links to share."""
    path = members.links(schedule.source, schedule.target)
    weight = np.repeat(schedule.part[:, None], 3, axis=1)
    weight[:, 2] /= members.nodes  # of the core each node has its share
    hop_s = members.between_s(schedule.source, schedule.target)
    added = np.where(schedule.adds, schedule.part, 0.0) * reduce_per_byte_s
    total = np.zeros(len(members.capacity))
    latency_s = adding_s = moving_s = 0.0
    bounds = np.searchsorted(schedule.round, np.arange(len(schedule.repeat) + 1)).tolist()
    for low, high, times in zip(bounds[:-1], bounds[1:], schedule.repeat.tolist(), strict=True):
        links, used = path[low:high], path[low:high] != NONE
        load = np.bincount(links[used], weight[low:high][used], minlength=len(total))
        total += times * load
        moving_s += times * float((load / members.capacity).max())
        latency_s += times * float(hop_s[low:high].max())
        adding_s += times * float(added[low:high].max())
    total[np.isinf(members.capacity)] = 0.0
    least = total[total > 0.0].min(initial=math.inf)
    least = least if least < math.inf else 1.0
    return Cost(
        bytes=sizes * least,
        loads=total / least,
        startup_s=latency_s + sizes * adding_s,
        transfer_s=sizes * moving_s,
    )


def _ring_figures(q: Quantities) -> dict[str, Quantity]:
    """A ring goes at the pace of the slowest link that it takes."""
    away = q.nodes > 1
    between = minimum(q.bandwidth_bytes_per_s, q.core_bandwidth_bytes_per_s)
    inside = q.inside_bandwidth_bytes_per_s
    return {
        "ranks": q.workers,
        "bandwidth_bytes_per_s": where(away, minimum(between, inside), inside),
        "latency_s": where(away, q.latency_s, q.inside_latency_s),
    }


def all_reduce_rate(q: Quantities, options: Reduction) -> Rate:
    """What an all-reduce among the workers takes, in closed form.

    Where several devices share a node, algorithms other than ring and hierarchical are taken to
    send from all of them at once, over its link.
    """
    adds = {"reduce_per_byte_s": options.reduce_per_byte_s}
    away = q.nodes > 1
    share = minimum(q.bandwidth_bytes_per_s, q.core_bandwidth_bytes_per_s) / q.devices_per_node
    each = {
        "ranks": q.workers,
        "bandwidth_bytes_per_s": where(away, share, q.inside_bandwidth_bytes_per_s),
        "latency_s": where(away, q.latency_s, q.inside_latency_s),
    }
    match options.algorithm:
        case "ring":
            rate = measured_rate(q.collectives, "all_reduce", q.workers, options.reduce_per_byte_s)
            return rate or Rate.of(costs.ring_allreduce_s, **_ring_figures(q), **adds)
        case "halving_doubling":
            return Rate.of(costs.rabenseifner_allreduce_s, **each, **adds)
        case "tree":
            return Rate.of(costs.tree_allreduce_s, **each, **adds)
        case "double_tree":
            return Rate.of(costs.double_tree_allreduce_s, chunks=options.chunks, **each)
        case "hierarchical":
            return Rate.of(
                costs.hierarchical_allreduce_s,
                nodes=q.nodes,
                devices_per_node=minimum(q.devices_per_node, q.workers),
                bandwidth_bytes_per_s=minimum(
                    q.bandwidth_bytes_per_s, q.core_bandwidth_bytes_per_s
                ),
                latency_s=q.latency_s,
                intra_bandwidth_bytes_per_s=q.inside_bandwidth_bytes_per_s,
                intra_latency_s=q.inside_latency_s,
                **adds,
            )


def closed(job: Job, options: Reduction) -> bool:
    """Whether the closed form of an all-reduce among a job's workers is exact."""
    cluster, n = job.cluster, job.workers
    match options.algorithm:
        case "ring":
            return True
        case "halving_doubling" | "tree":  # in some rounds only some nodes load the core
            return cluster.devices_per_node == 1 and cluster.core_oversubscription is None
        case "double_tree":
            return False
        case "hierarchical":  # all nodes have as many workers
            return len({cluster.devices_at(node, n) for node in cluster.samples(n)}) == 1


def moved_between_nodes(q: Quantities, options: Reduction, size_bytes: Quantity) -> Quantity:
    """Bytes that the mean node sends, and receives, in an all-reduce of ``size_bytes``.

    Any algorithm moves as many as a ring: all members but one have theirs added, and get the sum.
    """
    ranks = q.nodes if options.algorithm == "hierarchical" else q.workers
    return costs.ring_allreduce_bytes(ranks, size_bytes)


def reduce_scatter_rate(q: Quantities, reduce_per_byte_s: float = 0.0) -> Rate:
    """What a ring reduce-scatter among the workers takes, by bytes before it."""
    rate = measured_rate(q.collectives, "reduce_scatter", q.workers, reduce_per_byte_s)
    return rate or Rate.of(
        costs.reduce_scatter_s, **_ring_figures(q), reduce_per_byte_s=reduce_per_byte_s
    )


def all_gather_rate(q: Quantities) -> Rate:
    """What a ring all-gather among the workers takes, by bytes after it."""
    rate = measured_rate(q.collectives, "all_gather", q.workers, 0.0)
    return rate or Rate.of(costs.all_gather_s, **_ring_figures(q))


class Communicator:
    """A job's workers as members of collectives that are one flow each, over all their links.

    ``capacity`` is how many of them there may be at once, or how many bytes of credit. With
    ``fold`` the first node stands for all where all costs are ``symmetric``.
    """

    def __init__(
        self,
        b: GraphBuilder,
        job: Job,
        members: Members,
        *,
        capacity: int = 1,
        symmetric: bool = False,
    ) -> None:
        nodes = members.nodes
        self._b, self._members = b, members
        self._fold = symmetric
        network = Network(
            b, job.cluster, [f"node {k}" for k in range(nodes)], core_share=nodes, fold=symmetric
        )
        self.slot = b.slots("communicator", (1,), capacity=capacity)
        shown = np.arange(1 if symmetric else nodes)
        core, inside = network.around()[1:2], network.path(shown, shown)[:, 0]
        self._links = np.concatenate([network.out, network.into, core, inside])

    def flow(self, cost: Cost) -> dict[str, Any]:
        """What ops take that are collectives of such a cost, one for each size."""
        loads, capacity = cost.loads, self._members.capacity
        if self._fold:
            n = self._members.nodes
            first = [0, n, 2 * n, 2 * n + 1]
            loads, capacity = loads[first], capacity[first]
        used = (loads > 0.0) & (self._links != NONE)
        fastest = (capacity[used] / loads[used]).min(initial=math.inf)
        moving = cost.transfer_s > 0.0
        rate = cost.bytes / np.where(moving, cost.transfer_s, 1.0)
        binding = moving & (rate < fastest * (1 - ROUNDING))
        return {
            "bytes": cost.bytes,
            "path": self._links[used] if used.any() else None,
            "path_units": loads[used] if used.any() else 1.0,
            "rate_cap_bytes_per_s": np.where(binding, rate, math.inf),
            "seconds": cost.startup_s,
        }

    def add(self, label: str, cost: Cost, *, axis: str, **fields: Any) -> Ids:
        """Add a collective for each size, (sizes,), one at a time on the communicator."""
        return self._b.ops(
            label,
            (len(cost.bytes),),
            **self.flow(cost),
            slot=self.slot,
            axes=((axis, None),),
            **fields,
        )


def add_sends(
    b: GraphBuilder,
    job: Job,
    schedule: Schedule,
    sizes: Floats,
    ready: Ids,
    after: Ids,
    *,
    reduce_per_byte_s: float,
) -> None:
    """Add every send of a collective of each of ``sizes`` bytes, one collective after the other.

    ``ready`` (members, sizes) are what lets a member enter; ``after`` (members,) waits for all that
    a member sends and receives. A send waits until both its ends have entered and are done with
    all their sends of earlier rounds.
    """
    each = schedule.unrolled()
    waits = waits_of(each)
    n, count = ready.shape
    place = np.array([job.cluster.node_of_worker(worker) for worker in range(n)])
    network = Network(b, job.cluster, [f"node {k}" for k in range(int(place[-1]) + 1)])
    source, target = place[each.source], place[each.target]
    moved = sizes[:, None] * each.part
    send = b.ops(
        "send",
        (count, len(each.part)),
        bytes=moved,
        seconds=np.where(each.adds, moved * reduce_per_byte_s, 0.0),
        path=network.path(source, target)[None],
        latency_s=network.latency_s(source, target),
        group=each.source,
        axes=(("bucket", None), ("send", None)),
    )
    b.edge(send[:, waits.before], send[:, waits.after])
    b.edge(ready.T[:, waits.entry_member], send[:, waits.entry])
    for way in (0, 1):
        before = waits.last[waits.entry_member, way]
        known = before != NONE
        b.edge(send[:-1, before[known]], send[1:, waits.entry[known]])
        known = waits.last[:, way] != NONE
        b.edge(send[-1, waits.last[known, way]], after[known])
    first, last = send[:, waits.first].T, send[:, waits.last.max(axis=1)].T
    b.probe("all-reduce", first, last, at_ready=True)
