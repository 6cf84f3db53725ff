"""The critical cycle: the chain of ops that determines the period."""

from __future__ import annotations

import itertools
import operator

import numpy as np

from perfmodel.base.arrays import NONE
from perfmodel.engine.measures import CriticalOp
from perfmodel.engine.world import World, column, scalar
from perfmodel.graph.op_graph import OpGraph
from perfmodel.graph.rules import Activity, Batch, Every, Mailbox, Quorum


def critical_cycle(graph: OpGraph, world: World, period_s: float) -> tuple[CriticalOp, ...]:
    """Return the ops whose times add up to the period, in execution order; empty if not found.

    The search walks back from the latest end of an iteration, from each op to the one that enabled
    it: the source of its last input, or the op that freed its slot. Each op starts when the
    previous one ends. Once the walk meets an op again a whole number of periods earlier, it would
    repeat forever. The part in between is the cycle, and its times add up to these periods.
    """
    depth = scalar(world, "depth")
    group = int(np.argmax(np.array(world.marked_at)))
    op = int(graph.group_mark[group])
    extra = column(world, "ops", "extra", np.array([op]))
    arrived = int(column(world, "extras", "arrived", extra)[0])
    record = op * depth + ((arrived - 1) & (depth - 1))
    starts, lasts, enablers, counts = (
        column(world, "history", name) for name in ("start", "last", "enabler", "count")
    )
    chain: list[CriticalOp] = []
    met: dict[tuple[int, int], list[tuple[float, int]]] = {}
    walked: set[int] = set()
    end = float(world.marked_at[group])
    margin = SAME * (period_s + end * 2.0**-20)
    for _ in range(graph.n_ops * depth):
        if record == NONE or record in walked:  # ops that take no time can enable each other
            break
        walked.add(record)
        op, start = record // depth, float(starts[record])
        if start > end:  # overwritten by a later instance
            break
        phase = int(start % period_s / period_s * PHASES)
        near = (met.get((op, (phase + k) % PHASES), ()) for k in (-1, 0, 1))
        for later, at in sorted(itertools.chain(*near), key=operator.itemgetter(1)):
            periods = round((later - start) / period_s)
            if periods > 0 and abs(later - start - periods * period_s) <= margin * periods:
                walk = tuple(reversed(chain[at:]))
                return walk if _irregular(graph, walk) else _simple(walk)
        met.setdefault((op, phase % PHASES), []).append((start, len(chain)))
        enabler, last = int(enablers[record]), int(lasts[record])
        chain.append(CriticalOp(op, end - start, enabler != last, int(counts[record])))
        record, end = enabler, start
    return ()


def _irregular(graph: OpGraph, walk: tuple[CriticalOp, ...]) -> bool:
    """Return whether iterations differ, so that a section of a walk may not represent it: if ops
    are not always active, or the walk visits ops that do not run once in each."""
    walked = {step.op for step in walk}
    return any(
        rule.every > 1
        if isinstance(rule, Activity)
        else isinstance(rule, Quorum | Every | Mailbox | Batch) and rule.op in walked
        for rule in graph.rules
    )


def _simple(walk: tuple[CriticalOp, ...]) -> tuple[CriticalOp, ...]:
    """Return a section of a closed walk that contains no op twice, if no op waited for a slot.

    All cycles within the walk then have the same ratio of time to iterations: none can have a
    larger ratio than the whole walk, so none has a smaller one.
    """
    if any(step.waited for step in walk):
        return walk
    path: dict[int, CriticalOp] = {}
    for step in walk:
        if step.op in path:
            part = [path.popitem()[1]]
            while part[-1].op != step.op:
                part.append(path.popitem()[1])
            if any(other.seconds > 0.0 for other in part):
                return tuple(reversed(part))
        path[step.op] = step
    return tuple(path.values())


PHASES = 4096
"""Number of bins per period for looking up earlier visits to an op. A bin is far wider than the
rounding error of visits a whole number of periods apart."""


SAME = 1e-9
"""Tolerance for treating a cycle's length as a whole number of periods, relative to the period."""
