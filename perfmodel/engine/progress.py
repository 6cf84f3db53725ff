"""Progress of groups in fractions of iterations, for jobs with many workers."""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import numpy as np

from perfmodel.base.arrays import NONE, Floats, Ids
from perfmodel.engine import codes
from perfmodel.engine.flows import in_flight
from perfmodel.engine.world import World, column
from perfmodel.graph.op_graph import MANY_GROUPS, OpGraph
from perfmodel.graph.rules import Batch, Every, Mailbox, Quorum
from perfmodel.graph.work import work_of

if TYPE_CHECKING:
    from perfmodel.engine.measures import Totals


def short_runs(graph: OpGraph) -> bool:
    """Return whether a few rounds from each start tell enough, because workers are many."""
    return graph.staggered and workers_of(graph) >= MANY_GROUPS


def workers_of(graph: OpGraph) -> int:
    """Return the number of workers, each of which may have a group in each part of a joined
    graph."""
    first = np.array([block.first for block in graph.slots])
    parts = np.unique(np.searchsorted(first, graph.group_device, "right"))
    return int(graph.group_count.sum()) // max(len(parts), 1)


def progress(graph: OpGraph, world: World) -> Floats:
    """Return the iterations that each group has begun, in fractions, (groups,).

    It is the weighted mean over a group's ops of how often each has begun, and grows as its
    iterations do in the long run, for any weights. The weights are the ops' work at the resource
    with the most work in a round. So if that resource is always busy, the sum over groups grows
    evenly (the utilisation law: throughput is utilisation over demand), while the queue at it still
    fills, and while workers end their iterations in bursts. If it is a link, ops count by the part
    of their bytes that has moved, since a full link moves a large tensor for each of many workers
    at once. Of an op that is active in some iterations only, the active ones count, each for as
    many as there are on average from one to the next.
    """
    if graph not in _weights:
        _weights[graph] = _weighted(graph)
    ops, group, weight, link = _weights[graph]
    phase, taken, extra = (column(world, "ops", name)[ops] for name in ("phase", "taken", "extra"))
    begun = taken - (phase == codes.QUEUED).astype(np.float64)
    having = np.flatnonzero(extra != NONE)
    begun[having] -= column(world, "extras", "passed", extra[having].astype(np.int64))
    if link:
        whole = graph.op_bytes[ops]
        begun -= (phase == codes.WORKING) & (whole > 0.0)
        moving, left = in_flight(world)
        at = np.minimum(np.searchsorted(ops, moving), len(ops) - 1)
        counted = (ops[at] == moving) & (whole[at] > 0.0)
        at, left = at[counted], left[counted]
        begun[at] -= np.clip(left / whole[at], 0.0, 1.0)
    return np.bincount(group, begun * weight, graph.n_groups).astype(np.float64)


def busiest_s(graph: OpGraph) -> float:
    """Return the time for which a span of rounds keeps the resource busy that is busiest (s)."""
    return float(_work_at_busiest(graph)[0].sum()) * graph.span


RESOLUTION_OF_SHORT = 0.25
"""Lower limit of the interval of a short run of many workers, as a fraction of ``rel_ci``."""

OVERLOAD, LARGEST_PART = 2.0, 0.25
"""Least load of the busiest resource, and largest part of a worker's work there that is one op, at
which one start tells as much as several if that resource is always busy."""


def busy(graph: OpGraph, done: Floats, time_s: float) -> float:
    """Return the utilisation of the busiest resource while groups make the progress ``done``,
    (groups,)."""
    work, _ = _work_at_busiest(graph)
    ops = np.flatnonzero((work > 0.0) & (graph.op_group >= 0))
    return float(done @ np.bincount(graph.op_group[ops], work[ops], graph.n_groups)) / time_s


def busy_for_sure(graph: OpGraph, done: Floats, time_s: float) -> float:
    """Return the utilisation of the busiest resource while groups make the progress ``done``,
    (groups,), if other starts lead to the same one; else 0.

    They do if a span keeps the resource busy for several times as long as it takes a group that is
    alone, and if each group uses it for many ops of which none is large: then bursts dissolve
    (decision 0081).
    """
    work, _ = _work_at_busiest(graph)
    if time_s <= 0.0 or busiest_s(graph) < OVERLOAD * float(graph.op_stagger_s.max()):
        return 0.0
    ops = np.flatnonzero((work > 0.0) & (graph.op_group >= 0))
    of_group = np.bincount(graph.op_group[ops], work[ops], graph.n_groups)
    if (work[ops] > LARGEST_PART * of_group[graph.op_group[ops]]).any():
        return 0.0
    return busy(graph, done, time_s)


def saturated(graph: OpGraph, part: Totals, rel_ci: float) -> bool:
    """Return whether the busiest resource is busy for sure (:func:`busy_for_sure`) in a part of a
    run, but for a part of ``rel_ci``."""
    idle = abs(1.0 - busy_for_sure(graph, part.progress, part.time))
    return idle <= RESOLUTION_OF_SHORT * rel_ci


Weights = tuple[Ids, Ids, Floats, bool]

_weights: WeakKeyDictionary[OpGraph, Weights] = WeakKeyDictionary()
"""Of a graph, the ops that tell the progress of their groups, these groups, how many iterations an
active instance of each stands for, and whether they are work at a link."""


def _weighted(graph: OpGraph) -> Weights:
    work, link = _work_at_busiest(graph)
    group = np.asarray(graph.op_group, np.int64)
    own = group >= 0
    for rule in graph.rules:
        if isinstance(rule, Quorum | Every | Mailbox | Batch):
            own[rule.op] = False  # it does not run once in each iteration
    there = np.bincount(group[own], work[own], graph.n_groups) > 0.0
    activity = graph.activity
    work = np.where(there[group], work, activity == 1.0)  # a group that is not there: all alike
    ops = np.flatnonzero(own & (work > 0.0))
    group, work = group[ops], work[ops]
    whole = np.bincount(group, work, graph.n_groups)
    return ops, group, work / whole[group] / activity[ops], link


_at_busiest: WeakKeyDictionary[OpGraph, tuple[Floats, bool]] = WeakKeyDictionary()


def _work_at_busiest(graph: OpGraph) -> tuple[Floats, bool]:
    """Return what :func:`_found_at_busiest` finds, once for each graph."""
    if graph not in _at_busiest:
        _at_busiest[graph] = _found_at_busiest(graph)
    return _at_busiest[graph]


def _found_at_busiest(graph: OpGraph) -> tuple[Floats, bool]:
    """Return the mean seconds for which each op keeps the resource busy that is busiest in a round,
    and whether this is a link."""
    ops, resource, seconds = work_of(graph)
    seconds = graph.activity[ops] * seconds
    if not len(resource):
        return np.zeros(graph.n_ops), False
    most = int(np.argmax(np.bincount(resource, seconds)))
    busiest = np.flatnonzero(resource == most)
    work = np.bincount(ops[busiest], seconds[busiest], graph.n_ops).astype(np.float64)
    return work, most >= len(graph.slot_capacity)
