"""Simulates an op graph until it has settled, and measures it."""

from __future__ import annotations

import functools
import operator
from itertools import pairwise
from math import inf
from typing import TYPE_CHECKING

import numpy as np

from perfmodel.base.errors import InputError
from perfmodel.engine.critical import critical_cycle
from perfmodel.engine.measures import (
    NO_SPREAD,
    Measures,
    OpSpan,
    RunSpread,
    Totals,
    measures,
)
from perfmodel.engine.run import Simulation
from perfmodel.engine.starts import (
    FEWEST_RUNS,
    MOST_ROUNDS,
    MOST_RUNS,
    RESOLUTION,
    ci_of,
    expected,
    from_many_starts,
    seeds,
)
from perfmodel.engine.state import forget_gap
from perfmodel.engine.steady import BatchMeans, Recurrence
from perfmodel.engine.tracing import DEPTH, MANY, depth_of, recorded
from perfmodel.graph.op_graph import OpGraph

if TYPE_CHECKING:
    from perfmodel.engine.warmup import Progress

MOST_PERIODIC_ROUNDS = 255
"""Rounds after which a deterministic run without a period is averaged like a random run."""

LEAST_GROWTH = 0.1
"""Growth of the lead, in iterations while a deterministic run doubles, that counts as drift."""

SPREAD_STARTS, SPREAD_RUNS = 8, 4
"""Starts of a job, and successive runs from each, for estimating the spread of runs: to within
about 15 % of it."""


def simulate(
    graph: OpGraph,
    *,
    seed: int = 0,
    rel_ci: float = 0.01,
    progress: Progress | None = None,
    compiled: bool | None = None,
) -> Measures:
    """Run ``graph`` and measure it once it has settled.

    A deterministic graph runs until its state recurs; the period in between is measured, and the
    result is exact. A random graph runs until the 95 % confidence interval of its throughput is
    within ``rel_ci`` of it, or for MOST_ROUNDS; its warm-up is dropped. A graph with staggered
    starts runs again with other starts, at most MOST_RUNS times, and longer if necessary.

    Parameters
    ----------
    progress : called with (rounds done, rounds expected).
    compiled : True or False selects the compiled or the plain event loop; the results are equal.

    Raises
    ------
    InputError : ``rel_ci`` is not positive, or the edges without lag have a cycle.
    DeadlockError : nothing can happen although iterations are left.
    """
    if not rel_ci > 0.0:
        raise InputError(f"rel_ci must be positive, got {rel_ci:g}")
    if not graph.random:
        period = _periodic(graph, progress, compiled)
        if period is not None:
            return period
    if graph.staggered:
        return from_many_starts(graph, seed, rel_ci, progress, compiled)
    return _from_one_start(graph, seed, rel_ci, progress, compiled)


def first_iterations(
    graph: OpGraph,
    iterations: int,
    *,
    seed: int = 0,
    rel_ci: float = 0.01,
    progress: Progress | None = None,
    compiled: bool | None = None,
) -> Measures:
    """Measure the first ``iterations`` iterations, from the start until every group has ended them.

    A random graph runs repeatedly, with other starts and other random numbers, until the 95 %
    confidence interval of the throughput is within ``rel_ci`` of it, at most MOST_RUNS times.

    Raises
    ------
    InputError, DeadlockError : see :func:`simulate`.
    """
    totals: list[Totals] = []
    ci = inf if graph.random else 0.0
    runs = MOST_RUNS if graph.random else 1
    depth = depth_of(graph, iterations, DEPTH)
    for run_seed in seeds(seed, runs):
        with Simulation(graph, run_seed, compiled, depth=depth) as run:
            if 2 * iterations <= depth:  # else their path is longer than the records
                run.trace_whole(iterations)
            run.advance(iterations)
            totals.append(run.totals())
        if progress is not None:
            progress(len(totals), runs)
        if len(totals) >= FEWEST_RUNS:
            ci = max(ci_of(graph, totals), RESOLUTION * rel_ci)
        if ci <= rel_ci:
            break
    return measures(
        graph,
        functools.reduce(operator.add, totals),
        ci_fraction=ci,
        runs=len(totals),
        run_spread=_spread(graph, totals),
    )


def run_spread(
    graph: OpGraph, iterations: int, *, warmup: int, seed: int = 0, compiled: bool | None = None
) -> RunSpread:
    """Return how much runs of ``iterations`` iterations differ, after a warm-up of ``warmup``.

    Raises
    ------
    DeadlockError : nothing can happen although iterations are left.
    """
    if not graph.random:
        return NO_SPREAD
    totals: list[Totals] = []
    for run_seed in seeds(seed, SPREAD_STARTS):
        with Simulation(graph, run_seed, compiled, steady=True) as run:
            run.advance(warmup)
            before = run.totals()
            for k in range(1, SPREAD_RUNS + 1):
                run.advance(warmup + k * iterations)
                after = run.totals()
                totals.append(after - before)
                before = after
    return _spread(graph, totals)


def timeline(
    graph: OpGraph,
    *,
    seed: int = 0,
    first: int = 0,
    iterations: int = 2,
    compiled: bool | None = None,
) -> list[OpSpan]:
    """Return the instances of iterations ``first`` to ``first + iterations - 1``, by start.

    Raises
    ------
    InputError, DeadlockError : see :func:`simulate`.
    """
    record = range(first, first + iterations)
    with Simulation(graph, seed, compiled, record=record) as run:
        run.advance(record.stop)
        run.drain(until_recorded=True)
        return run.spans()


def makespan(
    graph: OpGraph, *, seed: int = 0, iterations: int = 1, compiled: bool | None = None
) -> float:
    """Return the seconds until every op has run exactly ``iterations`` times.

    Raises
    ------
    InputError, DeadlockError : see :func:`simulate`.
    """
    with Simulation(graph, seed, compiled, limit=iterations) as run:
        run.drain()
        return run.now


def prepare(graph: OpGraph, *, compiled: bool | None = None) -> None:
    """Lay out and check a graph for simulation; otherwise the first simulation does this.

    Raises
    ------
    InputError : the edges without lag have a cycle.
    """
    with Simulation(graph, 0, compiled):
        pass


def _periodic(graph: OpGraph, progress: Progress | None, compiled: bool | None) -> Measures | None:
    """Measure one period; None if none was found."""
    with Simulation(graph, 0, compiled, depth=DEPTH) as run:
        recurrence = Recurrence()
        most = max(MOST_PERIODIC_ROUNDS, 4 * run.span)
        done, lead = 0, 0.0
        while True:
            if done == most:
                from perfmodel.engine.leads import ties_of
                from perfmodel.engine.warmup import MOST_TRANSIENT_ROUNDS

                grown = ties_of(graph).lead(run.world) - lead
                if grown < LEAST_GROWTH or most >= MOST_TRANSIENT_ROUNDS:
                    return None
                most, lead = 2 * most, lead + grown  # faster workers are not blocked yet
            done += 1
            run.advance(done)
            if progress is not None:
                progress(done, most)
            before = recurrence.seen(run.world, done, run.totals)
            if recurrence.fresh:
                forget_gap(run.world)
            if before is not None:
                period = run.totals() - before
                if not np.allclose(period.marked_at, period.time, rtol=1e-9, atol=0.0):
                    # waits in progress at its beginning were shorter than in later periods
                    before = run.totals()
                    done += period.rounds
                    run.advance(done)
                    period = run.totals() - before
                for more in (0, 1, 2, 4, DEPTH):  # rounds needed to record enough
                    run.advance(done + more)
                    cycle = critical_cycle(graph, run.world, period.time)
                    if cycle:
                        break
                break
    alike = bool((period.iterations == period.iterations[0]).all())
    if not cycle or not alike:  # record as far back as the cycle may reach
        depth = depth_of(graph, period.rounds, MANY)
        with Simulation(graph, 0, compiled, depth=depth) as run:
            run.advance(done + depth)
            cycle = critical_cycle(graph, run.world, period.time) if alike else ()
            if not cycle:  # or each group may have its own
                period = run.trace_on(period.without_path(), period.rounds)
    return measures(graph, period, periodic=True, cycle=cycle)


def _from_one_start(
    graph: OpGraph, seed: int, rel_ci: float, progress: Progress | None, compiled: bool | None
) -> Measures:
    from perfmodel.engine.warmup import warm_up

    with Simulation(graph, seed, compiled, depth=recorded(graph)) as run:
        pilot = warm_up(run, rel_ci, 0, progress)
        series = BatchMeans()
        for before, after in pairwise(pilot.clocks):
            series.add(after[0] - before[0], after[1] - before[1])
        done, clock = run.rounds, pilot.clocks[-1]
        while True:
            ci = series.ci_fraction()
            if ci <= rel_ci:
                break
            if done >= MOST_ROUNDS:
                ci = series.last_ci_fraction()
                break
            if progress is not None:
                progress(done, expected(done, ci / rel_ci, MOST_ROUNDS))
            for _ in range(series.batch_rounds):
                done += run.span
                run.advance(done)
                after = run.clock()
                series.add(after[0] - clock[0], after[1] - clock[1])
                clock = after
        return measures(
            graph,
            run.trace_on(run.totals() - pilot.begin, run.span),
            ci_fraction=max(ci, RESOLUTION * rel_ci) + pilot.loss,
            transient_rounds=pilot.transient_rounds,
        )


def _spread(graph: OpGraph, runs: list[Totals]) -> RunSpread:
    """Return the spread of throughput and of staleness over runs."""
    if len(runs) < 2:
        return NO_SPREAD
    with np.errstate(divide="ignore"):
        rates = np.log([one.iterations_per_s(graph) for one in runs])
        stale = np.log([one.staleness for one in runs])
    return RunSpread(
        *(float(x.std(ddof=1)) if np.isfinite(x).all() else 0.0 for x in (rates, stale))
    )
