"""Explains why a simulation cannot continue: texts for deadlocks, starvation and faults."""

from __future__ import annotations

from graphlib import CycleError, TopologicalSorter

import numpy as np

from perfmodel.base.arrays import NONE
from perfmodel.engine import codes
from perfmodel.engine.world import World, column, scalar
from perfmodel.graph.op_graph import OpGraph, block_of
from perfmodel.graph.rules import Batch, Every, Mailbox, Quorum

_NAMED = 4
"""Maximum number of ops named in a message."""


def cycle_without_lag(graph: OpGraph) -> list[int]:
    """Return ops that wait for each other within one iteration, in order; empty if there are
    none."""
    now = (graph.edge_lag == 0) & ~graph.edges_into(Every, Mailbox, Batch)
    sorter: TopologicalSorter[int] = TopologicalSorter()
    for source, target in zip(graph.edge_source[now], graph.edge_target[now], strict=True):
        sorter.add(int(target), int(source))
    try:
        sorter.prepare()
    except CycleError as error:
        cycle: list[int] = error.args[1][:-1]
        first = cycle.index(min(cycle))
        return cycle[first:] + cycle[:first]
    return []


def finished(graph: OpGraph, world: World, limit: int) -> bool:
    """Return whether every op has run ``limit`` times, except ops whose gates keep their own count.

    The world must have no further events.
    """
    done = column(world, "ops", "taken") >= limit
    done &= column(world, "ops", "phase") == codes.IDLE
    for rule in graph.rules:
        if isinstance(rule, (Quorum, Every, Batch)):
            done[rule.op] = True
    return bool(done.all())


def describe_deadlock(graph: OpGraph, world: World) -> str:
    """Describe which ops wait, and for what, when no event is left."""
    now = scalar(world, "now")
    rounds = scalar(world, "slowest")
    phase, taken = column(world, "ops", "phase"), column(world, "ops", "taken")
    lacking = (column(world, "ops", "missing") > 0) & (phase == codes.IDLE)
    limit = scalar(world, "limit")
    behind = taken <= rounds if limit == NONE else taken < limit
    reasons = []
    for op in np.flatnonzero(phase == codes.QUEUED).tolist():
        held = " and ".join(repr(graph.slot_name(int(slot))) for slot in graph.held(op))
        reasons.append(f"{graph.op_name(op)!r} waits for {held}")
    for op in np.flatnonzero(lacking & behind).tolist():
        if len(reasons) > _NAMED:
            break
        sources = [repr(graph.op_name(source)) for source in _awaited(graph, world, op)]
        missing = " and ".join(sources[:2]) if sources else "more tokens"
        reasons.append(f"{graph.op_name(op)!r} waits for {missing}")
    more = int(np.count_nonzero(lacking & behind)) - _NAMED
    text = "; ".join(reasons[:_NAMED]) + (f"; and {more} more are waiting" if more > 0 else "")
    return f"deadlock at {now:g} s after {rounds} iterations: {text}"


def describe_starvation(graph: OpGraph, world: World) -> str:
    """Describe which group falls further and further behind."""
    done = column(world, "groups", "iterations")
    mark = graph.op_name(int(graph.group_mark[np.argmin(done)]))
    return f"{mark!r} is starved: it ran {done.min()} times while others ran {done.max()} times"


def _awaited(graph: OpGraph, world: World, op: int) -> list[int]:
    """Return the sources of edges into ``op`` that hold no token for its next iteration."""
    tokens, taken = column(world, "edges", "tokens"), column(world, "ops", "taken")
    first, last = int(world.into_first[op]), int(world.into_first[op + 1])
    out = column(world, "ops", "out")
    edges = [int(world.into[k]) for k in range(first, last)]
    return [
        int(np.searchsorted(out, edge, side="right")) - 1
        for edge in edges
        if tokens[edge] <= taken[op]
    ]


def describe_fault(graph: OpGraph, world: World, status: int) -> str:
    """Describe what is wrong with the op or the probe that stopped a simulation."""
    culprit = scalar(world, "culprit")
    if status == codes.ENDLESS:
        return f"op {graph.op_name(culprit)!r} runs endlessly while simulated time stands still"
    if status == codes.CROWDED:
        return (
            f"op {graph.op_name(culprit)!r} ends too often at one instant: no room for more timers"
        )
    if status == codes.FLOODED:
        return f"op {graph.op_name(culprit)!r} is logged too often at one instant"
    probe = culprit
    label = repr(block_of(graph.probes, probe).label)
    opens = repr(graph.op_name(int(graph.probe_open[probe])))
    closes = repr(graph.op_name(int(graph.probe_close[probe])))
    if status == codes.UNOPENED:
        return f"probe {label} is closed by {closes} before it was opened"
    return f"probe {label} is opened repeatedly by {opens} before {closes} closes it"
