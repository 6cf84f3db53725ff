"""Many equal workers as a graph of a few: each represents several, and all others are there through
what they take of the resources that all share."""

from __future__ import annotations

import math

import msgspec
import numpy as np

from perfmodel.base.arrays import NONE, Floats, Ids
from perfmodel.graph.op_graph import OpGraph
from perfmodel.graph.work import work_of

LEAST_LEFT = 1e-6
"""Smallest part of a shared resource that is left for the workers of the graph."""


class MeanField(msgspec.Struct, frozen=True, eq=False):
    """A job with many equal workers, of which a graph has a few.

    The workers that the graph lacks take their mean part of each link and slot that workers meet
    at. A link that they use for a part of the time is as much slower for the others, which is exact
    on average for a resource that is shared equally, and for one that is always full (mean-field
    limit: Benaim, Le Boudec, Performance Evaluation 65, 2008, doi 10.1016/j.peva.2008.03.005).

    Attributes
    ----------
    graph : the graph; ``group_count`` says how many workers each group represents.
    alone : number of its first groups that represent a worker each, which may be slower.
    link_s : time of each link that an iteration of a worker takes, (links,): 0 for links that
        workers do not meet at.
    slot_s : the same for slots, (slots,).
    """

    graph: OpGraph
    alone: int
    link_s: Floats
    slot_s: Floats

    @classmethod
    def of(cls, graph: OpGraph, workers: int, places: Ids, alone: int = 0) -> MeanField:
        """Return the mean field of ``workers`` workers, which meet at the links and slots of these
        ``places``, where no worker is, and at links without a place; nowhere if there are none. All
        but the first ``alone`` are equal."""
        groups = graph.n_groups
        ends = np.linspace(alone, workers, groups - alone + 1).round().astype(np.int64)
        count = np.concatenate([np.ones(alone, np.int64), np.diff(ends)])
        graph = msgspec.structs.replace(graph, group_count=count)
        op, resource, seconds = work_of(graph)
        slots, links = len(graph.slot_capacity), len(graph.link_capacity_bytes_per_s)
        each_s = np.bincount(resource, graph.activity[op] * seconds, slots + links) / groups
        slot_s, link_s = each_s[:slots], each_s[slots:]
        there = np.append(places, NONE) if len(places) else places
        link_s[~np.isin(graph.link_place, there)] = 0.0
        slot_s[~np.isin(graph.slot_place, places)] = 0.0
        return cls(graph, alone, link_s, slot_s)

    @property
    def workers(self) -> int:
        """Number of workers."""
        return int(self.graph.group_count.sum())

    @property
    def most_per_s(self) -> float:
        """Iterations per second of each of the equal workers at which a shared resource is full;
        infinite without any."""
        busiest_s = max(self.link_s.max(initial=0.0), self.slot_s.max(initial=0.0))
        return 1.0 / ((self.workers - self.alone) * busiest_s) if busiest_s > 0.0 else math.inf

    def mean(self, by_group: Floats) -> float:
        """Return the mean of a value of groups, (groups,), over the workers that are equal."""
        equal = slice(self.alone, None)
        return float(np.average(by_group[equal], weights=self.graph.group_count[equal]))

    def left(self, rate_per_s: float) -> tuple[Floats, Floats]:
        """Return the part of each link and slot that is left for the groups of the graph while each
        worker makes ``rate_per_s`` iterations per second, (links,) and (slots,)."""
        others = (self.workers - self.graph.n_groups) * rate_per_s
        if others == 0.0 or not math.isfinite(others):
            return np.ones(len(self.link_s)), np.ones(len(self.slot_s))
        link, slot = (np.maximum(1.0 - others * s, LEAST_LEFT) for s in (self.link_s, self.slot_s))
        return link, slot

    def at(self, rate_per_s: float) -> OpGraph:
        """Return the graph while each worker makes ``rate_per_s`` iterations per second."""
        graph = self.graph
        link, slot = self.left(rate_per_s)
        slower = np.ones(graph.n_ops)
        op = np.repeat(np.arange(graph.n_ops), np.diff(graph.hold_start))
        np.maximum.at(slower, op, 1.0 / slot[graph.hold_slots])
        return msgspec.structs.replace(
            graph,
            link_capacity_bytes_per_s=graph.link_capacity_bytes_per_s * link,
            op_seconds=graph.op_seconds * slower,
        )
