"""Costs of collectives of a graph's messages on its links, while these are idle."""

from __future__ import annotations

import math
from collections.abc import Callable

import msgspec
import numpy as np

from perfmodel.base.arrays import Floats
from perfmodel.base.quantities import Quantity
from perfmodel.communication.collectives import Collectives, Lines, lines_of, measured_in
from perfmodel.communication.exchanges import AllToAllExchange, exchange_schedule
from perfmodel.communication.fabric import Fabric
from perfmodel.communication.members import Members, rounds_of, schedule_of
from perfmodel.communication.reduction import Reduction, candidates
from perfmodel.theory.collective_times import Operation, RingOperation, line_s, ring_use

MOST_IN_TREES = 20_000
"""Number of workers up to which *auto* considers trees: each number of chunks needs a schedule."""


DIRECT = AllToAllExchange()


class Cost(msgspec.Struct, frozen=True, eq=False):
    """Costs of collectives of several sizes on idle links.

    Attributes
    ----------
    bytes : over the least loaded of the links used, (sizes,).
    loads : bytes over each link as multiples of that, (sizes, links), or (1, links) for all sizes;
        see :class:`perfmodel.communication.fabric.Fabric`.
    startup_s : latencies, and time to add, (sizes,); ``adding_s`` is the latter, (sizes,) or 0.
    transfer_s : time to move the bytes, (sizes,).
    weight : its weight on links shared with other collectives; 1 for a single group.
    """

    bytes: Floats
    loads: Floats
    startup_s: Floats
    transfer_s: Floats
    weight: float = 1.0
    adding_s: Floats | float = 0.0

    @property
    def seconds(self) -> Floats:
        """Seconds of each, (sizes,)."""
        return self.startup_s + self.transfer_s

    def times(self, count: int) -> Cost:
        """Return the costs of ``count`` equal collectives of each size, one after the other."""
        return msgspec.structs.replace(
            self,
            bytes=count * self.bytes,
            startup_s=count * self.startup_s,
            transfer_s=count * self.transfer_s,
            adding_s=count * self.adding_s,
        )

    def symmetric(self, fabric: Fabric) -> bool:
        """Return whether all links of a kind have the same load; those between sites differ."""
        return fabric.between is None and all(
            bool((self.loads[:, kind] == self.loads[:, kind][:, :1]).all()) for kind in fabric.kinds
        )


class LinkCosts(Collectives[Cost, Cost]):
    """Costs of collectives of ``sizes`` bytes (sizes,) among members."""

    def __init__(self, members: Members, sizes: Floats) -> None:
        self.members, self.sizes = members, sizes

    def cost(self, operation: RingOperation, reduce_per_byte_s: float = 0.0) -> Cost:
        """Return the cost of one collective in all groups of the members at the same time.

        Its weight on shared links is that of as many flows as there are groups.
        """
        cost = super().cost(operation, reduce_per_byte_s)
        return self._weighted(cost, lambda one: one.cost(operation, reduce_per_byte_s))

    def all_to_all(self, options: AllToAllExchange = DIRECT) -> Cost:
        """Return the cost of an all-to-all in all groups of the members at the same time.

        Members have ``sizes`` bytes each, an equal part for every member, itself included. If all
        messages are sent at once, the busiest link sets the pace, and measurements apply; else the
        slowest send of each round does.
        """
        members, capacity = self.members, self.members.fabric.capacity
        loads = np.zeros(len(capacity))
        if members.count == 1:
            return self._cost(0.0 * self.sizes, loads, 0.0 * self.sizes, 0.0 * self.sizes)
        moving_s = latency_s = flow_s = hop_s = 0.0
        for step in rounds_of(members, exchange_schedule(members, options)):
            loads += step.loads
            moving_s += max(float((step.loads / capacity).max()), step.flow_s)
            latency_s += float(step.hop_s.max())
            flow_s, hop_s = max(flow_s, step.flow_s), max(hop_s, float(step.hop_s.max()))
        if options.algorithm == "direct":
            moving_s, latency_s = max(float((loads / capacity).max()), flow_s), hop_s
            lines = self.measured_lines("all_to_all", 0.0)
            if lines is not None:
                return self._weighted(self._measured(1.0, loads, lines), LinkCosts.all_to_all)
        cost = self._cost(
            self.sizes, loads, np.full_like(self.sizes, latency_s), self.sizes * moving_s
        )
        return self._weighted(cost, lambda one: one.all_to_all(options))

    def _weighted(self, cost: Cost, of: Callable[[LinkCosts], Cost]) -> Cost:
        """Return a cost of all groups, whose weight on shared links is that of as many flows as
        there are groups; ``of`` returns the cost of other members."""
        if len(self.members.ends) == 1:
            return cost
        group = msgspec.structs.replace(self.members, groups=self.members.ends[:1])
        most = float(of(LinkCosts(group, self.sizes)).bytes.max())
        weight = float(cost.bytes.max()) / most if most > 0.0 else 1.0
        return msgspec.structs.replace(cost, weight=weight)

    def measured_lines(self, operation: Operation, reduce_per_byte_s: float) -> Lines | None:
        """Return the measured cost of a collective, if there is one."""
        members = self.members
        return lines_of(members.collectives, operation, members.count, reduce_per_byte_s)

    def as_measured(self, operation: RingOperation, lines: Lines) -> Cost:
        """Return the cost with the measured time on idle links, and the loads of rings.

        Loads are capped at what links can carry in that time, so that idle links never lengthen it.
        """
        loads, _ = self.members.around(operation)
        return self._measured(ring_use(operation, self.members.count).sent, loads, lines)

    def _measured(self, sent: Quantity, loads: Floats, lines: Lines) -> Cost:
        """Return a measured cost with the loads (links,) per byte of ``sent`` times the sizes."""
        moved = sent * self.sizes
        startup_s, moving_s = line_s(lines, self.sizes)
        slowest_s = float((loads / self.members.fabric.capacity).max())
        passing = moving_s / slowest_s if slowest_s > 0.0 else moved
        return self._cost(np.minimum(moved, passing), loads, startup_s, moving_s)

    def on_rings(
        self, operation: RingOperation, reduce_per_byte_s: float, startup_s: Quantity | None = None
    ) -> Cost:
        """Return the cost on rings; ``startup_s`` replaces the latency of their steps."""
        steps, sent, added = ring_use(operation, self.members.count)
        loads, flow_s = self.members.around(operation)
        if startup_s is None:
            startup_s = self.members.latency_s(int(steps))
        adding_s = added * self.sizes * reduce_per_byte_s
        moved = sent * self.sizes
        moving_s = moved * max(float((loads / self.members.fabric.capacity).max()), flow_s)
        return self._cost(moved, loads, startup_s + adding_s, moving_s, adding_s)

    def by_rounds(self, options: Reduction) -> Cost:
        """Return the cost of rounds as long as their slowest sends, which share the links they
        use."""
        capacity = self.members.fabric.capacity
        total = np.zeros(len(capacity))
        latency_s = adding_s = moving_s = 0.0
        for step in rounds_of(self.members, schedule_of(self.members, options)):
            total += step.times * step.loads
            moving_s += step.times * max(float((step.loads / capacity).max()), step.flow_s)
            latency_s += step.times * float(step.hop_s.max())
            adding_s += step.times * step.added * options.reduce_per_byte_s
        added_s = self.sizes * adding_s
        return self._cost(self.sizes, total, latency_s + added_s, self.sizes * moving_s, added_s)

    def startup_s(self, cost: Cost) -> Floats:
        """Return the time before a collective moves bytes, (sizes,)."""
        return cost.startup_s

    def candidates(self, options: Reduction) -> list[Reduction]:
        """Return the options that *auto* chooses from; else the options themselves."""
        members = self.members
        if options.algorithm == "auto" and members.count == 1:
            return [msgspec.structs.replace(options, algorithm="ring")]
        count = np.bincount(members.group)
        return candidates(
            options,
            several_nodes=len(count) > 1,
            several_devices=bool(count.max() > 1),
            trees=members.count <= MOST_IN_TREES,
        )

    def fastest(self, costs: list[Cost]) -> Cost:
        """Return for each size the cost of the fastest algorithm; the first on ties."""
        best = np.argmin([cost.seconds for cost in costs], axis=0)
        sizes = np.arange(len(best))
        return Cost(
            np.stack([cost.bytes for cost in costs])[best, sizes],
            np.stack([cost.loads[0] for cost in costs])[best],
            np.stack([cost.startup_s for cost in costs])[best, sizes],
            np.stack([cost.transfer_s for cost in costs])[best, sizes],
            adding_s=np.stack([cost.adding_s for cost in costs])[best, sizes],
        )

    def chosen(self, options: Reduction, *, by_sends: bool = False) -> Reduction:
        """Return the options that *auto* chooses for the first size.

        With measured collectives there is no choice. ``by_sends`` leaves out a node tree, whose
        sends are not modelled.
        """
        if measured_in(self.members.collectives, "all_reduce") is not None:
            return options
        candidates = self.candidates(options)
        if by_sends and options.algorithm == "auto":
            candidates = [one for one in candidates if one.algorithm != "node_tree"]
        if len(candidates) == 1:
            return candidates[0]
        return min(candidates, key=lambda one: float(self.by_algorithm(one).seconds[0]))

    def _cost(
        self,
        moved: Floats,
        loads: Floats,
        startup_s: Quantity,
        transfer_s: Quantity,
        adding_s: Quantity = 0.0,
    ) -> Cost:
        """Return the cost of ``loads`` bytes over each link (links,) per byte of ``moved``; links
        that never limit are left out."""
        loads = np.where(np.isfinite(self.members.fabric.capacity), loads, 0.0)
        least = loads[loads > 0.0].min(initial=math.inf)
        least = least if least < math.inf else 1.0
        seconds = np.asarray(startup_s), np.asarray(transfer_s)
        return Cost(moved * least, loads[None] / least, *seconds, adding_s=np.asarray(adding_s))
