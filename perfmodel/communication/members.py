"""The members of a collective, the links between them, and what they send by rounds."""

from __future__ import annotations

import msgspec
import numpy as np

from perfmodel.base.arrays import NONE, Floats, Ids
from perfmodel.communication import schedules
from perfmodel.communication.fabric import Fabric
from perfmodel.communication.reduction import Reduction
from perfmodel.communication.schedules import SendSchedule
from perfmodel.inputs.cluster import Cluster, Collective
from perfmodel.theory.collective_times import RingOperation
from perfmodel.theory.cycles import most_along


class Members(msgspec.Struct, frozen=True, eq=False):
    """The members of a collective, and the links between them.

    Attributes
    ----------
    fabric : the links.
    collectives : those measured among these members.
    groups : the members, as ends of the fabric, (groups, members). Several groups are alike and
        each does the same at the same time; loads are those of all groups. None for a single group
        of all ends, the only case with schedules other than rings.
    """

    fabric: Fabric
    collectives: tuple[Collective, ...] = ()
    groups: Ids | None = None

    @classmethod
    def of(cls, cluster: Cluster, workers: int) -> Members:
        """Return the workers of a job on their nodes."""
        return cls(Fabric.of(cluster, workers), cluster.collectives_of(workers))

    @property
    def group(self) -> Ids:
        """The site of each member if there are several sites, else its node, (members,)."""
        fabric = self.fabric
        return fabric.place if fabric.between is None else fabric.site[fabric.place]

    @property
    def ends(self) -> Ids:
        """The members as ends of the fabric, (groups, members)."""
        return np.arange(len(self.fabric.place))[None] if self.groups is None else self.groups

    @property
    def count(self) -> int:
        """Number of members of a group."""
        return int(self.ends.shape[1])

    def loads(self, path: Ids, part: Floats) -> Floats:
        """Return the bytes over each link of sends of ``part`` bytes each (sends,), on ``path``
        (sends, most links of a path)."""
        used = path != NONE
        weight = np.broadcast_to(part[:, None], path.shape)
        size = len(self.fabric.capacity)
        return np.bincount(path[used], weight[used], minlength=size).astype(np.float64)

    def loads_by_round(self, path: Ids, schedule: SendSchedule) -> Floats:
        """Return the bytes over each link in each round of a schedule, (rounds, links), of which
        sends take the ``path`` (sends, most links of a path)."""
        shape = len(schedule.repeat), len(self.fabric.capacity)
        used = path != NONE
        place = (path + shape[1] * schedule.round[:, None])[used]
        weight = np.broadcast_to(schedule.part[:, None], path.shape)
        loads = np.bincount(place, weight[used], minlength=shape[0] * shape[1])
        return loads.astype(np.float64).reshape(shape)

    def around(self, operation: RingOperation) -> tuple[Floats, float]:
        """Return the bytes over each link, (links,), and the least seconds of a connection, if each
        member sends one byte round the rings; in a broadcast nothing is sent to the first member.
        """
        if self.count == 1:
            return np.zeros(len(self.fabric.capacity)), 0.0
        source, target = self._hops()
        path = self.fabric.path(source, target).reshape(source.size, -1)
        part: Floats = np.full(source.shape, 1.0 / source.shape[1])
        if operation == "broadcast":
            part[target == self.ends[:, :1, None]] = 0.0
        part = part.ravel()
        flow_s = float((part / self.fabric.flow_between(source, target).ravel()).max())
        return self.loads(path, part), flow_s

    def latency_s(self, steps: int) -> float:
        """Return the latency of ``steps`` steps round the rings.

        Each step has the mean latency of a hop inside a site, for a member passes on what it
        receives without waiting for others. A message passes the links between sites once per
        round, not in each step: by how much their latencies are longer adds up along the ring.
        """
        if self.count == 1:
            return 0.0
        source, target = self._hops()
        hop_s = self.fabric.between_nodes_s(source, target)
        mean_s = steps * float(hop_s.mean(axis=-1).max())
        if self.fabric.between is None:
            return mean_s
        more_s = np.maximum(self.fabric.between_s(source, target) - hop_s, 0.0)
        return mean_s + max(most_along(ring, steps) for ring in more_s.reshape(-1, self.count))

    def _hops(self) -> tuple[Ids, Ids]:
        """Return the ends of each hop of each ring, (groups, rings, members)."""
        rings = self.ends[:, self.fabric.rings(self.ends[0])]
        return rings, np.roll(rings, -1, axis=-1)


class SendRound(msgspec.Struct, frozen=True, eq=False):
    """Concurrent sends, repeated ``times`` times in a row.

    Per byte to be reduced: ``loads`` (links,) are the bytes over each link, ``flow_s`` the least
    seconds of a connection, and ``added`` the most bytes that a member adds. ``hop_s`` (sends,) are
    the latencies of the sends.
    """

    times: int
    loads: Floats
    flow_s: float
    added: float
    hop_s: Floats


def rounds_of(members: Members, schedule: SendSchedule) -> list[SendRound]:
    """Return the rounds of a schedule among the members of each group."""
    ends, fabric = members.ends, members.fabric
    source, target = ends[:, schedule.source], ends[:, schedule.target]  # (groups, sends)
    path, hop_s = fabric.path(source, target), fabric.between_s(source, target)
    part = np.broadcast_to(schedule.part, source.shape)
    added = np.where(schedule.adds, schedule.part, 0.0)
    flow_s = part / fabric.flow_between(source, target)
    bounds = np.searchsorted(schedule.round, np.arange(len(schedule.repeat) + 1)).tolist()
    return [
        SendRound(
            times,
            members.loads(path[:, low:high].reshape(-1, path.shape[-1]), part[:, low:high].ravel()),
            float(flow_s[:, low:high].max()),
            float(added[low:high].max()),
            hop_s[:, low:high].ravel(),
        )
        for low, high, times in zip(bounds[:-1], bounds[1:], schedule.repeat.tolist(), strict=True)
    ]


def schedule_of(members: Members, options: Reduction) -> SendSchedule:
    """Return the sends of an all-reduce, for any algorithm but *auto*, among members by site."""
    n, order = members.count, members.fabric.by_site(members.ends[0])
    match options.algorithm:
        case "halving_doubling":
            schedule = schedules.halving_doubling_all_reduce(n)
        case "tree":
            schedule = schedules.tree_all_reduce(n)
        case "double_tree":
            schedule = schedules.double_tree_all_reduce(n, options.chunks)
        case "hierarchical":
            group = members.group[order]
            runs = np.cumsum(np.diff(group, prepend=group[:1]) != 0)
            schedule = schedules.hierarchical_all_reduce(runs.tolist())
        case _:
            schedule = schedules.ring_all_reduce(n)
    return schedule.among(order)
