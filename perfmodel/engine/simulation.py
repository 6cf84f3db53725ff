"""Simulates an op graph until it has settled, and measures it."""

from __future__ import annotations

import functools
import math
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
from perfmodel.engine.progress import RESOLUTION_OF_SHORT, saturated, short_runs
from perfmodel.engine.run import Simulation
from perfmodel.engine.state import forget_gap
from perfmodel.engine.steady import AT_EACH_LOOK, BatchMeans, Recurrence, ci_fraction
from perfmodel.graph.op_graph import OpGraph

if TYPE_CHECKING:
    from perfmodel.engine.warmup import Pilot, Progress

MOST_PERIODIC_ROUNDS = 255
"""Rounds after which a deterministic run without a period is averaged like a random run."""

FEWEST_RUNS, RUNS_OF_NOISY, MOST_RUNS = 6, 8, 32
"""Number of runs, with different starts, of a job whose workers start at random times: minimum;
number after which the runs of a random job are made longer instead; maximum."""

FEWEST_RUNS_OF_MANY = 2
"""Minimum number of runs of a job with so many workers that its pilots are short."""

FEWEST_WIDE = 4
"""Minimum number of runs if their interval is wider than requested."""

RESOLUTION = 0.1
"""Lower limit of a random job's interval, as a fraction of ``rel_ci``: the run may miss rare
patterns. That of short runs of many workers is higher."""

PRECISION_OPS, USUAL_CI = 8_000_000, 0.01
"""Operations after which no more runs of a job with many workers begin if the interval may be this
wide, and more for narrower ones. Some jobs alternate for thousands of rounds; their interval stays
wider than requested."""

LATER = 8
"""If runs are extended to some number of rounds, one in LATER of these is added to the warm-up."""

LEAST_GROWTH = 0.1
"""Growth of the lead, in iterations while a deterministic run doubles, that counts as drift."""

MOST_ROUNDS = 32768
"""Maximum rounds of a run whose confidence interval stays wider than requested."""

SPREAD_STARTS, SPREAD_RUNS = 8, 4
"""Starts of a job, and successive runs from each, for estimating the spread of runs: to within
about 15 % of it."""

_FEW, _DEPTH, _MOST_DEPTH = 4, 8, 128
"""Recorded instances of each op: for attributing waits; for finding a critical cycle; maximum."""


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
        return _from_many_starts(graph, seed, rel_ci, progress, compiled)
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
    for run_seed in _seeds(seed, runs):
        with Simulation(graph, run_seed, compiled, depth=_FEW) as run:
            run.advance(iterations)
            totals.append(run.totals())
        if progress is not None:
            progress(len(totals), runs)
        if len(totals) >= FEWEST_RUNS:
            ci = max(_ci(graph, totals), RESOLUTION * rel_ci)
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
    for run_seed in _seeds(seed, SPREAD_STARTS):
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
    with Simulation(graph, 0, compiled, depth=_DEPTH) as run:
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
                for more in (0, 1, 2, 4, _DEPTH):  # rounds needed to record enough
                    run.advance(done + more)
                    cycle = critical_cycle(graph, run.world, period.time)
                    if cycle:
                        break
                break
    if not cycle and (depth := _power_of_two(4 * period.rounds)) > _DEPTH:
        # record as far back as the cycle may reach
        with Simulation(graph, 0, compiled, depth=depth) as run:
            run.advance(done + depth)
            cycle = critical_cycle(graph, run.world, period.time)
    return measures(graph, period, periodic=True, cycle=cycle)


def _power_of_two(at_least: int) -> int:
    return min(1 << (at_least - 1).bit_length(), _MOST_DEPTH)


def _from_one_start(
    graph: OpGraph, seed: int, rel_ci: float, progress: Progress | None, compiled: bool | None
) -> Measures:
    from perfmodel.engine.warmup import warm_up

    with Simulation(graph, seed, compiled, depth=_FEW) as run:
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
                progress(done, _expected(done, ci / rel_ci, MOST_ROUNDS))
            for _ in range(series.batch_rounds):
                done += run.span
                run.advance(done)
                after = run.clock()
                series.add(after[0] - clock[0], after[1] - clock[1])
                clock = after
        return measures(
            graph,
            run.totals() - pilot.begin,
            ci_fraction=max(ci, RESOLUTION * rel_ci) + pilot.loss,
            transient_rounds=pilot.transient_rounds,
        )


def _expected(done: int, wider: float, most: int) -> int:
    """Estimate the total work for an interval that is currently ``wider`` times too wide."""
    if wider > 1e3:
        return min(2 * done, most)
    return min(max(round(done * wider**2), done + 1), most)


def _from_many_starts(
    graph: OpGraph, seed: int, rel_ci: float, progress: Progress | None, compiled: bool | None
) -> Measures:
    """Run from different starts; make runs longer if randomness within them adds to the spread."""
    longest = MOST_ROUNDS // RUNS_OF_NOISY // 2
    affordable, short = inf, short_runs(graph)
    if short:
        narrower = max(USUAL_CI / rel_ci, 1.0)
        affordable = PRECISION_OPS * narrower**2 / float(graph.activity.sum())
        longest = min(longest, math.ceil(affordable / RUNS_OF_NOISY))
    rounds = 0
    while True:
        runs, ci = _runs(graph, seed, rel_ci, rounds, affordable, progress, compiled)
        if ci <= rel_ci or not graph.noisy or rounds == longest:
            break
        length = sum(totals.rounds for totals, _ in runs) / len(runs)
        more = len(runs) / (2 * RUNS_OF_NOISY) * (ci / rel_ci) ** 2
        rounds = min(round(max(more, 2.0) * length), longest)
    return measures(
        graph,
        functools.reduce(operator.add, [totals for totals, _ in runs]),
        ci_fraction=max(ci, (RESOLUTION_OF_SHORT if short else RESOLUTION) * rel_ci)
        + float(np.mean([pilot.loss for _, pilot in runs]))
        + abs(float(np.mean([pilot.drift for _, pilot in runs]))),
        runs=len(runs),
        transient_rounds=float(np.mean([pilot.transient_rounds for _, pilot in runs])),
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


def _ci(graph: OpGraph, runs: list[Totals]) -> float:
    """Return the half-width of the interval of the runs' mean throughput, relative to it."""
    rates = [one.iterations_per_s(graph) for one in runs]
    return ci_fraction(rates, AT_EACH_LOOK) if np.isfinite(rates).all() else 0.0


def _runs(
    graph: OpGraph,
    seed: int,
    rel_ci: float,
    rounds: int,
    affordable: float,
    progress: Progress | None,
    compiled: bool | None,
) -> tuple[list[tuple[Totals, Pilot]], float]:
    """Return the totals of runs of at least ``rounds`` after the warm-up, and their interval.

    There are as many runs as the interval needs, or fewer if they have to become longer anyway; one
    if many workers keep a resource busy all the time, so that other starts cannot be faster
    (decision 0097). The first waits for queues to settle.
    """
    from perfmodel.engine.warmup import warm_up

    runs: list[tuple[Totals, Pilot]] = []
    ci, spent = inf, 0
    fewest = FEWEST_RUNS_OF_MANY if short_runs(graph) else FEWEST_RUNS
    while len(runs) < MOST_RUNS and ci > rel_ci:
        run_seed = _seeds(seed, MOST_RUNS)[len(runs)]
        with Simulation(graph, run_seed, compiled, depth=_FEW, steady=True) as run:
            least = runs[0][1].spans if runs else 0
            pilot = warm_up(run, rel_ci, least, None, settle=not runs)
            begin = pilot.begin
            if rounds > 0:  # with little jitter, the order of workers changes slowly
                run.advance(max(run.rounds, begin.rounds + rounds // LATER))
                begin = run.totals()
            run.advance(max(run.rounds, begin.rounds + rounds))
            runs.append((run.totals() - begin, pilot))
            spent += run.rounds
        if len(runs) >= fewest:
            ci = _ci(graph, [totals for totals, _ in runs])
        elif short_runs(graph):
            ci = RESOLUTION_OF_SHORT * rel_ci if saturated(graph, runs[0][0], rel_ci) else inf
        if progress is not None:
            expected = fewest if ci == inf else _expected(len(runs), ci / rel_ci, MOST_RUNS)
            progress(len(runs), max(expected, len(runs)))
        if graph.noisy and len(runs) == RUNS_OF_NOISY and ci > 2.0 * rel_ci:
            break
        if ci < inf and spent > affordable and len(runs) >= FEWEST_WIDE:
            break
    return runs, ci


def _seeds(seed: int, count: int) -> list[int]:
    """Return the seeds of a job's runs: its own, then seeds derived from it."""
    derived = np.random.SeedSequence(seed).generate_state(count, np.uint64)
    return [seed, *(int(s) for s in derived[1:])]
