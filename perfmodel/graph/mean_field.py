"""Many workers as a graph of a few: each represents several that are equal, and all others are
there through what they take of the resources that all share."""

from __future__ import annotations

import math

import msgspec
import numpy as np

from perfmodel.base.arrays import NONE, Floats, Ids
from perfmodel.graph.op_graph import OpGraph
from perfmodel.graph.work import links_in_turn, work_of

LEAST_WORK_S = 1e-300
"""Replaces zero in divisors."""

LEAST_LEFT = 1e-6
"""Smallest part of a shared resource that is left for the workers of the graph."""


class MeanField(msgspec.Struct, frozen=True, eq=False):
    """A job with many workers, of which a graph has a few.

    The workers that the graph lacks take their mean part of each link and slot that workers meet
    at. A link that they use for a part of the time is as much slower for the others, which is exact
    on average for a resource that is shared equally, and for one that is always full (mean-field
    limit: Benaim, Le Boudec, Performance Evaluation 65, 2008, doi 10.1016/j.peva.2008.03.005).

    Attributes
    ----------
    graph : the graph; ``group_count`` says how many workers each group represents, and
        ``worker_group`` which.
    kind : number of the kind of each group's workers, (groups,): those of a kind are equal.
    link_s : time of each link that an iteration of a group takes, (groups, links): 0 for links that
        workers do not meet at.
    slot_s : the same for slots, (groups, slots).
    devices : of each worker, each of which is a group.
    in_step : whether workers go on together.
    lead : how many iterations workers may be ahead of the slowest; None without a bound.
    together : the same job with workers in step, if they may come to go on so on full links.
    """

    graph: OpGraph
    kind: Ids
    link_s: Floats
    slot_s: Floats
    devices: int = 1
    in_step: bool = False
    lead: int | None = None
    together: MeanField | None = None

    @classmethod
    def of(
        cls,
        graph: OpGraph,
        worker_group: Ids,
        kind: Ids,
        unit: Ids,
        *,
        devices: int = 1,
        servers: bool = True,
        in_step: bool = False,
        lead: int | None = None,
    ) -> MeanField:
        """Return the mean field of workers that groups of the graph represent, ``worker_group``
        (devices x workers,). Groups of different ``unit`` (groups,) meet at all links and slots
        that they have in common or, without ``servers``, at those of no node."""
        groups = graph.n_groups
        count = np.bincount(worker_group, minlength=groups)
        graph = msgspec.structs.replace(graph, group_count=count, worker_group=worker_group)
        op, resource, seconds = work_of(graph)
        slots, links = len(graph.slot_capacity), len(graph.link_capacity_bytes_per_s)
        own = np.flatnonzero(graph.op_group[op] >= 0)
        group, resource = graph.op_group[op[own]].astype(np.int64), resource[own]
        each_s = np.zeros((groups, slots + links))
        np.add.at(each_s, (group, resource), graph.activity[op[own]] * seconds[own])
        pairs = np.unique(resource * (unit.max() + 1) + unit[group])
        met = np.bincount(pairs // (unit.max() + 1), minlength=slots + links) > 1
        if not servers:
            met &= np.concatenate([graph.slot_place, graph.link_place]) == NONE
        each_s[:, ~met] = 0.0
        return cls(graph, kind, each_s[:, slots:], each_s[:, :slots], devices, in_step, lead)

    @property
    def workers(self) -> int:
        """Number of workers."""
        return len(self.graph.worker_group) // self.devices

    @property
    def shared(self) -> bool:
        """Whether there are resources that workers share."""
        return bool(self.link_s.any() or self.slot_s.any())

    @property
    def links_in_turn(self) -> bool:
        """Whether workers may come to go from one full link to the next together
        (:func:`perfmodel.graph.work.links_in_turn`)."""
        count = self.graph.group_count
        return links_in_turn(count @ self.slot_s, count @ self.link_s)

    def mean(self, by_group: Floats) -> float:
        """Return the mean of a value of groups, (groups,), over all workers."""
        return float(np.average(by_group, weights=self.graph.group_count))

    def by_kind(self, by_group: Floats) -> Floats:
        """Return the mean over its kind for each group, of a value of groups, (groups,)."""
        count = self.graph.group_count
        sums = np.bincount(self.kind, by_group * count) / np.bincount(self.kind, count)
        return np.asarray(sums[self.kind])

    def most(self, rates: Floats) -> float:
        """Return how many times as fast as these ``rates``, in iterations per second (groups,),
        workers are if a shared resource is full; infinite without any."""
        made = self.graph.group_count * rates
        busiest = max((made @ self.link_s).max(initial=0.0), (made @ self.slot_s).max(initial=0.0))
        return 1.0 / float(busiest) if busiest > 0.0 else math.inf

    def left(self, rates: Floats) -> tuple[Floats, Floats]:
        """Return the part of each link and slot that is left for the groups of the graph while each
        worker makes as many iterations per second as its group does, ``rates`` (groups,): (links,)
        and (slots,)."""
        others = (self.graph.group_count - 1) * rates
        link, slot = (
            np.maximum(1.0 - others @ spent, LEAST_LEFT) for spent in (self.link_s, self.slot_s)
        )
        return link, slot

    def at(self, rates: Floats) -> OpGraph:
        """Return the graph while each worker makes as many iterations per second as ``rates``
        (groups,) says."""
        return self._with(*self.left(rates))

    def in_proportion(self) -> OpGraph:
        """Return the graph while of each shared resource there is as large a part as of the work
        that workers have for it.

        What workers do at the same time then takes as long as among all of them, but a single
        message takes longer (Psounis, Pan, Prabhakar, Wischik, "The scaling hypothesis", ACM
        SIGCOMM CCR 33(1), 2003, scale links down with the traffic that a simulation has).
        """
        count = self.graph.group_count
        of_all = [np.maximum(count @ spent, LEAST_WORK_S) for spent in (self.link_s, self.slot_s)]
        link, slot = self.link_s.sum(axis=0) / of_all[0], self.slot_s.sum(axis=0) / of_all[1]
        return self._with(np.where(link > 0.0, link, 1.0), np.where(slot > 0.0, slot, 1.0))

    def _with(self, link: Floats, slot: Floats) -> OpGraph:
        """Return the graph with these parts of each link and slot, (links,) and (slots,)."""
        graph = self.graph
        slower = np.ones(graph.n_ops)
        op = np.repeat(np.arange(graph.n_ops), np.diff(graph.hold_start))
        np.maximum.at(slower, op, 1.0 / slot[graph.hold_slots])
        return msgspec.structs.replace(
            graph,
            link_capacity_bytes_per_s=graph.link_capacity_bytes_per_s * link,
            op_seconds=graph.op_seconds * slower,
        )
