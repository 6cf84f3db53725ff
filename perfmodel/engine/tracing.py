"""How far critical paths are traced back, and how often."""

from __future__ import annotations

import math
from math import inf
from typing import NamedTuple

from perfmodel.engine.progress import short_runs
from perfmodel.graph.op_graph import OpGraph
from perfmodel.graph.rules import Activity

FEW, DEPTH, MANY = 4, 8, 128
"""Least recorded instances of each op, for attributing waits and tracing critical paths: in short
runs of many workers, in others, and for cycles over many rounds."""

MOST_RECORDS = 1 << 18
"""Recorded instances of ops up to which more than a few of each are kept."""

LEAST_TRACED, MOST_TRACED, TIMES_TRACED = 4, 512, 8
"""Rounds over which critical paths of random jobs are traced before a part of them is taken, if
there is room for records: at least, at most because of ops that are rarely active, and how often
these are active in them on average."""

FEWEST_TURNS, MOST_TURNS = 8, 16
"""Turns in which the critical paths of many groups are walked: fewer if turns are long."""


def recorded(graph: OpGraph) -> int:
    """Return how many instances of each op are recorded in a random run: enough to trace critical
    paths over its span, and over the rounds in which ops are active a few times on average."""
    if short_runs(graph):
        return FEW
    drawn = [rule for rule in graph.rules if isinstance(rule, Activity) and rule.probability < 1.0]
    rare = min((rule.probability for rule in drawn), default=inf)
    rounds = min(max(TIMES_TRACED / rare, LEAST_TRACED), MOST_TRACED) if rare > 0.0 else 0.0
    return depth_of(graph, max(graph.span, math.ceil(rounds)), DEPTH)


def depth_of(graph: OpGraph, rounds: int, least: int) -> int:
    """Return how many instances of each op, at least ``least``, are recorded for tracing waits and
    critical paths back over twice as many rounds, if there is room for them."""
    depth = least
    while depth < 4 * rounds and 2 * depth * graph.n_ops <= MOST_RECORDS:
        depth *= 2
    return depth


class Walks(NamedTuple):
    """When the critical path of a group is walked: each ``stride`` iterations, in one of ``turns``,
    which take a ``span`` at least, but for the first ``unwalked`` iterations."""

    span: int
    stride: int
    turns: int
    unwalked: int


def walks_of(graph: OpGraph, span: int, depth: int) -> Walks:
    """Return when critical paths are walked in a simulation with so many records of each op.

    A walk leads back twice as far as the stride, which is some spans, or a part of one, with few
    enough records. Turns are as many as there are groups at most, and fewer if they are long. The
    start of training is not walked, but in short runs.
    """
    groups = len(graph.group_device)
    if short_runs(graph):
        return Walks(span, 1, min(groups, MOST_TURNS), 0)
    most = max(depth // 4, 1)
    if span <= most:
        stride = most // span * span
    else:
        stride = max(part for part in range(1, most + 1) if span % part == 0)
    turns = min(groups, max(MOST_TURNS // stride, FEWEST_TURNS))
    return Walks(span, stride, turns, 2 * stride)
