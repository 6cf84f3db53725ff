"""The work of the ops of a graph at its resources: for how long each keeps each busy."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from perfmodel.base.arrays import Floats, Ids
from perfmodel.graph.op_graph import OpGraph
from perfmodel.graph.rules import Batch, Choice, Every, Mailbox, Quorum


class Work(NamedTuple):
    """Each use of a resource by an op, all of shape (uses,): the op, the number of the resource,
    slots before links, and the ``seconds`` for which an active instance keeps all of it busy, on
    average over the paths that it may draw."""

    op: Ids
    resource: Ids
    seconds: Floats


RIVAL = 0.75
"""Work of a second link, as a fraction of that of the busiest one, from which on workers may queue
at either: with 0.875 waves cost 2 % where they cost 8 % with 1, with 0.75 0.3 %."""


def links_in_turn(slot_s: Floats, link_s: Floats) -> bool:
    """Return whether workers may come to go from one full link to the next together, so that none
    is full all the time, given the time that a round takes of each slot and link, (slots,) and
    (links,): if the busiest resource is a link, and another link has nearly as much work.

    Over tens to hundreds of rounds, workers that queue at one of them catch up with each other
    (decision 0104).
    """
    most_s = float(link_s.max(initial=0.0))
    full = most_s > 0.0 and most_s >= float(slot_s.max(initial=0.0))
    return full and int((link_s >= RIVAL * most_s).sum()) >= 2


def work_of(graph: OpGraph) -> Work:
    """Return the work of all ops at slots and links."""
    holding = np.repeat(np.arange(graph.n_ops), np.diff(graph.hold_start))
    held_s = graph.op_seconds[holding] * graph.hold_units / graph.slot_capacity[graph.hold_slots]
    ops, routes, shares = graph.routes()
    crossed = np.diff(graph.route_start)[routes]
    moving, part = np.repeat(ops, crossed), np.repeat(shares, crossed)
    at = np.repeat(graph.route_start[routes] - np.cumsum(crossed) + crossed, crossed)
    at += np.arange(len(moving))
    link = graph.route_links[at]
    rate = graph.link_capacity_bytes_per_s[link] / graph.route_units[at]
    return Work(
        np.concatenate([holding, moving]),
        np.concatenate([graph.hold_slots, len(graph.slot_capacity) + link]),
        np.concatenate([held_s, part * graph.op_bytes[moving] / rate]),
    )


def computation_s(graph: OpGraph) -> Floats:
    """Return the mean time for which an iteration of each group holds its device, (groups,); NaN if
    it depends on transfers, on messages, or on what others do."""
    ops = np.repeat(np.arange(graph.n_ops), np.diff(graph.hold_start))
    order = np.argsort(graph.group_device)
    at = np.searchsorted(graph.group_device, graph.hold_slots, sorter=order)
    group = order[np.minimum(at, graph.n_groups - 1)]
    there = np.flatnonzero(graph.group_device[group] == graph.hold_slots)
    ops, group = ops[there], group[there]
    own = graph.op_bytes == 0.0
    for rule in graph.rules:
        if isinstance(rule, Quorum | Every | Mailbox | Batch):
            own[rule.op] = False
        elif isinstance(rule, Choice) and rule.slots is not None:
            own[rule.ops] = False
    held_s = np.where(own, graph.op_seconds * graph.activity, np.nan)[ops]
    return np.bincount(group, held_s * graph.hold_units[there], graph.n_groups).astype(np.float64)


def may_come_in_waves(graph: OpGraph) -> bool:
    """Return whether workers with staggered starts may come to go from one full link to the next
    together (:func:`links_in_turn`). A graph in which some represent others does not show this."""
    if not graph.staggered or (graph.group_count > 1).any():
        return False
    ops, resource, seconds = work_of(graph)
    busy_s = np.bincount(resource, graph.activity[ops] * seconds).astype(np.float64)
    slots = len(graph.slot_capacity)
    return links_in_turn(busy_s[:slots], busy_s[slots:])
