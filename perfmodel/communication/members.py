"""The members of a collective, the links between them, and its cost on idle links."""

from __future__ import annotations

import math

import msgspec
import numpy as np

from perfmodel.base.arrays import NONE, Floats, Ids
from perfmodel.base.quantities import Quantity
from perfmodel.communication.fabric import Fabric
from perfmodel.communication.schedules import SendSchedule
from perfmodel.inputs.cluster import Cluster, Collective
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

    def around(self, *, closed: bool = True) -> tuple[Floats, float]:
        """Return the bytes over each link, (links,), and the least seconds of a connection, if each
        member sends one byte round the rings.

        Without ``closed`` the rings are chains: nothing is sent to the first member.
        """
        if self.count == 1:
            return np.zeros(len(self.fabric.capacity)), 0.0
        source, target = self._hops()
        path = self.fabric.path(source, target).reshape(source.size, -1)
        each = np.full(source.shape, 1.0 / source.shape[1])
        if not closed:
            each[target == self.ends[:, :1, None]] = 0.0
        part = each.ravel()
        flow_s = float((part / self.fabric.flow_between(source, target).ravel()).max())
        return self.loads(path, part), flow_s

    def latency_s(self, steps: int) -> float:
        """Return the latency of ``steps`` steps round the rings.

        Inside a site, each step has the latency of the longest hop there. A message passes the
        links between sites once per round, not in each step: their latencies add up along the ring.
        """
        if self.count == 1:
            return 0.0
        source, target = self._hops()
        inside_s = float(self.fabric.between_nodes_s(source, target).max())
        if self.fabric.between is None:
            return steps * inside_s
        more_s = np.maximum(self.fabric.between_s(source, target) - inside_s, 0.0)
        return steps * inside_s + max(
            most_along(ring, steps) for ring in more_s.reshape(-1, self.count)
        )

    def path_latency_s(self, steps: int) -> float:
        """Return the latency of ``steps`` steps of a message round the rings: as many times the
        mean latency of a hop, for a member passes on what it receives without waiting for others.

        Between sites, as :meth:`latency_s`.
        """
        if self.count == 1 or self.fabric.between is not None:
            return self.latency_s(steps)
        source, target = self._hops()
        return steps * float(self.fabric.between_nodes_s(source, target).mean(axis=-1).max())

    def _hops(self) -> tuple[Ids, Ids]:
        """Return the ends of each hop of each ring, (groups, rings, members)."""
        rings = self.ends[:, self.fabric.rings(self.ends[0])]
        return rings, np.roll(rings, -1, axis=-1)


class Cost(msgspec.Struct, frozen=True, eq=False):
    """Costs of collectives of several sizes on idle links.

    Attributes
    ----------
    bytes : over the least loaded of the links used, (sizes,).
    loads : bytes over each link as multiples of that, (sizes, links), or (1, links) for all sizes;
        see :class:`perfmodel.communication.fabric.Fabric`.
    startup_s : latencies, and time to add, (sizes,).
    transfer_s : time to move the bytes, (sizes,).
    weight : its weight on links shared with other collectives; 1 for a single group.
    """

    bytes: Floats
    loads: Floats
    startup_s: Floats
    transfer_s: Floats
    weight: float = 1.0

    @classmethod
    def of(cls, sizes: Floats, loads: Floats, startup_s: Floats, transfer_s: Floats) -> Cost:
        """Return the cost of ``loads`` bytes over each link (links,) per byte of ``sizes``."""
        least = loads[loads > 0.0].min(initial=math.inf)
        least = least if least < math.inf else 1.0
        return cls(sizes * least, loads[None] / least, startup_s, transfer_s)

    @property
    def seconds(self) -> Floats:
        """Seconds of each, (sizes,)."""
        return self.startup_s + self.transfer_s

    def times(self, count: int) -> Cost:
        """Return the costs of ``count`` equal collectives of each size, one after the other."""
        if count == 1:
            return self
        return msgspec.structs.replace(
            self,
            bytes=count * self.bytes,
            startup_s=count * self.startup_s,
            transfer_s=count * self.transfer_s,
        )

    def symmetric(self, fabric: Fabric) -> bool:
        """Return whether all links of a kind have the same load; those between sites differ."""
        return fabric.between is None and all(
            bool((self.loads[:, kind] == self.loads[:, kind][:, :1]).all()) for kind in fabric.kinds
        )

    def fastest(self, others: tuple[Cost, ...]) -> Cost:
        """Return for each size the fastest of this and the ``others``; the first on ties."""
        costs = (self, *others)
        best = np.argmin([cost.seconds for cost in costs], axis=0)
        sizes = np.arange(len(best))

        def picked(values: list[Floats]) -> Floats:
            found: Floats = np.stack(values)[best, sizes]
            return found

        return Cost(
            picked([cost.bytes for cost in costs]),
            np.stack([cost.loads[0] for cost in costs])[best],
            picked([cost.startup_s for cost in costs]),
            picked([cost.transfer_s for cost in costs]),
        )


def ring_cost(
    members: Members, moved: Floats, steps: int, added_s: Floats, *, closed: bool = True,
    passed_on: bool = False,
) -> Cost:  # fmt: skip
    """Return the cost of rings on which each member sends ``moved`` bytes (sizes,) in ``steps``
    steps; without ``closed``, of chains that end before the first member. With ``passed_on`` the
    steps are not in lockstep (:meth:`Members.path_latency_s`)."""
    loads, flow_s = members.around(closed=closed)
    moving_s = moved * max(float((loads / members.fabric.capacity).max()), flow_s)
    latency_s = members.path_latency_s(steps) if passed_on else members.latency_s(steps)
    startup_s = latency_s + added_s
    return Cost.of(moved, _limited(members, loads), startup_s, moving_s)


def measured_cost(
    members: Members, moved: Floats, startup_s: Quantity, moving_s: Quantity, *, closed: bool = True
) -> Cost:
    """Return the cost with the measured time on idle links, and the loads of a ring or a chain.

    Loads are capped at what links can carry in that time, so that idle links never lengthen it.
    """
    loads, _ = members.around(closed=closed)
    slowest_s = float((loads / members.fabric.capacity).max())
    passing = moving_s / slowest_s if slowest_s > 0.0 else moved
    seconds = np.asarray(startup_s), np.asarray(moving_s)
    return Cost.of(np.minimum(moved, passing), _limited(members, loads), *seconds)


def scheduled_cost(
    members: Members, schedule: SendSchedule, sizes: Floats, reduce_per_byte_s: float
) -> Cost:
    """Return the cost of rounds as long as their slowest sends, which share the links they use."""
    fabric = members.fabric
    total = np.zeros(len(fabric.capacity))
    latency_s = adding_s = moving_s = 0.0
    for step in rounds_of(members, schedule):
        total += step.times * step.loads
        moving_s += step.times * max(float((step.loads / fabric.capacity).max()), step.flow_s)
        latency_s += step.times * float(step.hop_s.max())
        adding_s += step.times * step.added * reduce_per_byte_s
    return Cost.of(sizes, _limited(members, total), latency_s + sizes * adding_s, sizes * moving_s)


class Round(msgspec.Struct, frozen=True, eq=False):
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


def rounds_of(members: Members, schedule: SendSchedule) -> list[Round]:
    """Return the rounds of a schedule among members."""
    path = members.fabric.path(schedule.source, schedule.target)
    hop_s = members.fabric.between_s(schedule.source, schedule.target)
    added = np.where(schedule.adds, schedule.part, 0.0)
    flow_s = schedule.part / members.fabric.flow_between(schedule.source, schedule.target)
    bounds = np.searchsorted(schedule.round, np.arange(len(schedule.repeat) + 1)).tolist()
    return [
        Round(
            times,
            members.loads(path[low:high], schedule.part[low:high]),
            float(flow_s[low:high].max()),
            float(added[low:high].max()),
            hop_s[low:high],
        )
        for low, high, times in zip(bounds[:-1], bounds[1:], schedule.repeat.tolist(), strict=True)
    ]


def _limited(members: Members, loads: Floats) -> Floats:
    """Return the loads of links that may limit, and 0 elsewhere."""
    return np.where(np.isfinite(members.fabric.capacity), loads, 0.0)
