"""Staleness of workers with a bound, which settles later than their throughput."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence

import msgspec

from perfmodel.engine.measures import Totals
from perfmodel.engine.run import Simulation, advance_all
from perfmodel.graph.op_graph import CAUSES, OpGraph

BOUND = CAUSES.index("staleness_bound")
"""Cause of the waits for a bound on the lead of workers."""

RUNS, FEWEST_ROUNDS, ROUNDS, MOST_ROUNDS, MOST_OPS = 4, 32, 128, 512, 6_000_000
"""Most runs that go on; rounds after which staleness may have settled if it is constant, and if it
changes; rounds of each, and operations of all, after which they end even if it still changes.
Workers come to push together over a hundred rounds, whatever the bound (decision 0117)."""

CONSTANT, CHANGE = 0.002, 0.05
"""Relative changes of staleness while rounds double up to which it is constant, and settled."""


def settled(
    graph: OpGraph, runs: Sequence[Callable[[], Simulation]], parts: Sequence[Totals]
) -> Totals:
    """Return the totals of several simulations, of which each has measured a part. If staleness
    changes in later rounds, it is that of the last ones.

    Some of the simulations, which are opened if need be, go on. Without a bound they do not: a
    worker reads at its own update, and staleness is the same from the first round.
    """
    totals, affordable = functools.reduce(operator.add, parts), MOST_OPS // graph.n_turns
    count = min(len(runs), RUNS, affordable // FEWEST_ROUNDS)
    bound = bool((graph.op_cause == BOUND).any())
    if not (bound and count and totals.stale_count.any()):
        return totals
    some = [opened() for opened in runs[:count]]
    rounds, most = max(run.rounds for run in some), min(affordable // count, MOST_ROUNDS)
    seen = functools.reduce(operator.add, parts[:count])
    first, same = seen.staleness, False
    while rounds < most and not same:
        rounds = min(max(2 * rounds, FEWEST_ROUNDS), most)
        begins, before = [run.totals() for run in some], seen.staleness
        advance_all(some, rounds)
        later = [run.totals() - begin for run, begin in zip(some, begins, strict=True)]
        seen = functools.reduce(operator.add, later)
        tolerated = CHANGE if rounds >= ROUNDS else CONSTANT
        same = abs(seen.staleness - before) <= tolerated * before
    if abs(seen.staleness - first) <= CHANGE * first:
        return totals
    return msgspec.structs.replace(
        totals, histogram=seen.histogram, stale_sum=seen.stale_sum, stale_count=seen.stale_count
    )
