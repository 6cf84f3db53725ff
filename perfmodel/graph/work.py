"""The work of the ops of a graph at its resources: for how long each keeps each busy."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from perfmodel.base.arrays import NONE, Floats, Ids
from perfmodel.graph.op_graph import OpGraph


class Work(NamedTuple):
    """Each use of a resource by an op, all of shape (uses,): the op, the number of the resource,
    slots before links, and the ``seconds`` for which an active instance keeps all of it busy."""

    op: Ids
    resource: Ids
    seconds: Floats


def work_of(graph: OpGraph) -> Work:
    """Return the work of all ops at slots and links."""
    holding = np.repeat(np.arange(graph.n_ops), np.diff(graph.hold_start))
    held_s = graph.op_seconds[holding] * graph.hold_units / graph.slot_capacity[graph.hold_slots]
    crossed = np.diff(graph.route_start)[graph.op_route]
    crossed = np.where(graph.op_route != NONE, crossed, 0)
    moving = np.repeat(np.arange(graph.n_ops), crossed)
    first = graph.route_start[graph.op_route]
    at = np.repeat(first - np.cumsum(crossed) + crossed, crossed) + np.arange(len(moving))
    link = graph.route_links[at]
    rate = graph.link_capacity_bytes_per_s[link] / graph.route_units[at]
    return Work(
        np.concatenate([holding, moving]),
        np.concatenate([graph.hold_slots, len(graph.slot_capacity) + link]),
        np.concatenate([held_s, graph.op_bytes[moving] / rate]),
    )
