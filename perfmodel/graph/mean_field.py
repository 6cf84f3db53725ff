"""Many workers as a graph of a few: each represents several that are equal, and all others are
there through what they take of the resources that all share."""

from __future__ import annotations

import math
from typing import NamedTuple

import msgspec
import numpy as np

from perfmodel.base.arrays import NONE, Floats, Ids
from perfmodel.graph.op_graph import OpGraph
from perfmodel.graph.work import links_in_turn, work_of

LEAST_WORK_S = 1e-300
"""Replaces zero in divisors."""

LEAST_LEFT = 1e-6
"""Smallest part of a shared resource that is left for the workers of the graph."""


class Places(NamedTuple):
    """Where workers are: the number of the ``unit`` of nodes of each group, (groups,), and of each
    node, ``node_unit`` (nodes,), and the node of a worker in the graph that each is ``like``,
    (nodes,)."""

    unit: Ids
    node_unit: Ids
    like: Ids


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
    shared : numbers of the slots and links that workers meet at, slots before links, (shared,).
    own_s : time of each of these that an iteration of a group takes, (groups, shared).
    others_s : the same of all other workers together that a group represents.
    devices : of each worker, each of which is a group.
    in_step : whether workers go on together.
    lead : how many iterations workers may be ahead of the slowest; None without a bound.
    together : the same job with workers in step, if they may come to go on so on full links.
    most_busy : part of the time for which shared links may be busy; if they are busier, a few
        represent all roughly.
    """

    graph: OpGraph
    kind: Ids
    shared: Ids
    own_s: Floats
    others_s: Floats
    devices: int = 1
    in_step: bool = False
    lead: int | None = None
    together: MeanField | None = None
    most_busy: float = 1.0

    @classmethod
    def of(
        cls,
        graph: OpGraph,
        worker_group: Ids,
        kind: Ids,
        places: Places,
        *,
        devices: int = 1,
        servers: bool = True,
        in_step: bool = False,
        lead: int | None = None,
    ) -> MeanField:
        """Return the mean field of workers at ``places`` that groups of the graph represent,
        ``worker_group`` (devices x workers,). Groups of different units meet at all links and slots
        that they have in common or, without ``servers``, at those of no node."""
        groups, unit = graph.n_groups, places.unit
        count = np.bincount(worker_group, minlength=groups)
        graph = msgspec.structs.replace(graph, group_count=count, worker_group=worker_group)
        op, resource, seconds = work_of(graph)
        slots, links = len(graph.slot_capacity), len(graph.link_capacity_bytes_per_s)
        own = np.flatnonzero(graph.op_group[op] >= 0)
        group, resource = graph.op_group[op[own]].astype(np.int64), resource[own]
        pairs = np.unique(resource * (unit.max() + 1) + unit[group])
        met = np.bincount(pairs // (unit.max() + 1), minlength=slots + links) > 1
        place = np.concatenate([graph.slot_place, graph.link_place])
        if not servers:
            met &= place == NONE
        shared, there = np.flatnonzero(met), met[resource]
        own_s = np.zeros((groups, len(shared)))
        at = group[there], np.searchsorted(shared, resource[there])
        np.add.at(own_s, at, (graph.activity[op[own]] * seconds[own])[there])
        others_s = _of_others(own_s, count, kind, place[shared], places)
        return cls(graph, kind, shared, own_s, others_s, devices, in_step, lead)

    @property
    def workers(self) -> int:
        """Number of workers."""
        return len(self.graph.worker_group) // self.devices

    @property
    def links_in_turn(self) -> bool:
        """Whether workers may come to go from one full link to the next together
        (:func:`perfmodel.graph.work.links_in_turn`)."""
        return links_in_turn(*self._of_all((self.own_s + self.others_s).sum(axis=0), 0.0))

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
        busiest = float(self.parts(rates).max(initial=0.0))
        return 1.0 / busiest if busiest > 0.0 else math.inf

    def parts(self, rates: Floats) -> Floats:
        """Return the part of the time for which each shared resource is busy, (shared,), at these
        ``rates``, in iterations per second (groups,)."""
        return rates @ (self.own_s + self.others_s)

    def left(self, rates: Floats) -> tuple[Floats, Floats]:
        """Return the part of each slot and link that is left for the groups of the graph while each
        worker makes as many iterations per second as its group does, ``rates`` (groups,): (slots,)
        and (links,)."""
        return self._of_all(np.maximum(1.0 - rates @ self.others_s, LEAST_LEFT), 1.0)

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
        own_s, others_s = self.own_s.sum(axis=0), self.others_s.sum(axis=0)
        part = own_s / np.maximum(own_s + others_s, LEAST_WORK_S)
        return self._with(*self._of_all(np.where(own_s > 0.0, part, 1.0), 1.0))

    def _of_all(self, of_shared: Floats, of_others: float) -> tuple[Floats, Floats]:
        """Return values of all slots, (slots,), and links, (links,), from those of the shared ones,
        (shared,), and that of the others."""
        slots = len(self.graph.slot_capacity)
        values = np.full(slots + len(self.graph.link_place), of_others)
        values[self.shared] = of_shared
        return values[:slots], values[slots:]

    def _with(self, slot: Floats, link: Floats) -> OpGraph:
        """Return the graph with these parts of each slot and link, (slots,) and (links,)."""
        graph = self.graph
        slower = np.ones(graph.n_ops)
        op = np.repeat(np.arange(graph.n_ops), np.diff(graph.hold_start))
        np.maximum.at(slower, op, 1.0 / slot[graph.hold_slots])
        return msgspec.structs.replace(
            graph,
            link_capacity_bytes_per_s=graph.link_capacity_bytes_per_s * link,
            op_seconds=graph.op_seconds * slower,
        )


def _of_others(own_s: Floats, count: Ids, kind: Ids, place: Ids, places: Places) -> Floats:
    """Return the time of each resource that the workers that each group represents take, but one,
    (groups, resources), given that of one, ``own_s``, and the node of each resource, ``place``.

    A worker takes of what is on its node what the one that represents it takes on its own, and of
    what is there what others of its kind take.
    """
    others_s = (count - 1)[:, None] * own_s
    there = (place != NONE) & (place < len(places.node_unit))
    home = np.where(there, places.node_unit[np.where(there, place, 0)], NONE)
    unit = places.unit[:, None]
    own = unit == home
    if not own.any():
        return others_s
    sums, seen = np.zeros((2, kind.max() + 1, len(place)))
    np.add.at(sums, kind, np.where(own, 0.0, own_s))
    np.add.at(seen, kind, ~own)
    others_s = np.where(own, (count - 1)[:, None] * (sums / np.maximum(seen, 1.0))[kind], others_s)
    away, twin = _twins(place, places)
    group, at = np.nonzero(unit == home[twin])
    others_s[group, away[at]] += own_s[group, twin[at]] - own_s[group, away[at]]
    return others_s


def _twins(place: Ids, places: Places) -> tuple[Ids, Ids]:
    """Return the resources of nodes that others represent, and those that represent them, which are
    as many-th on these."""
    order = np.flatnonzero((place != NONE) & (place < len(places.node_unit)))
    order = order[np.argsort(place[order], kind="stable")]
    start = np.searchsorted(place[order], np.arange(len(places.node_unit) + 1))
    size = np.diff(start)
    like = places.like[place[order]]
    away = (like != place[order]) & (size[like] == size[place[order]])
    nth = np.arange(len(order)) - start[place[order]]
    return order[away], order[(start[like] + nth)[away]]
