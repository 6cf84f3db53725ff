"""The fine-grained route: simulate an op graph until it has settled, and measure it."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from math import gcd, inf, lcm
from types import TracebackType
from weakref import WeakSet

import numpy as np

from perfmodel import eventloop
from perfmodel.compiled import PLAIN, choose, spent
from perfmodel.critical import (
    critical_cycle,
    cycle_without_lag,
    describe_deadlock,
    describe_fault,
    describe_starvation,
    finished,
)
from perfmodel.errors import DeadlockError, InputError, PerfmodelError
from perfmodel.graph import NONE, Activity, Every, OpGraph
from perfmodel.layout import give_back, make_world
from perfmodel.measures import Measures, Span, Totals, measures
from perfmodel.snapshot import forget_gap, totals
from perfmodel.steady import Recurrence, Series, ci_fraction, warmup_rounds, warmups
from perfmodel.world import as_arrays, column, grown

MOST_PERIODIC_ROUNDS = 255
"""Rounds after which a deterministic run that has found no period is averaged as a random one."""

FEWEST_RUNS, MOST_RUNS = 4, 16
"""Runs of a job whose workers start at random times; the confidence interval is over them."""

PILOT_ROUNDS, MOST_PILOT_ROUNDS = 24, 768
"""Rounds that tell the warm-up; twice as many as long as it may take two thirds of them."""

FEWEST_PILOT_SPANS = 6
"""Spans of a pilot: a span is a round or, where some ops are active every k-th, so many rounds that
each of these has been active as often as it is in the long run."""

LONGEST_SPAN = 4096
"""Rounds of a span; rarer events are taken as they come."""

DRIFT, NEARLY_FULL = 16, 0.8
"""Rounds of a run per round that workers may run ahead, if a link is in use for such a part."""

LEAST_WARMUP = 8
"""Rounds that are dropped in any case."""

STARVED = 100_000
"""Iterations by which one group may be ahead of another."""

MOST_ROUNDS = 32768
"""Rounds of a run whose confidence interval stays wider than asked."""

_FEW, _DEPTH, _MOST_DEPTH = 4, 8, 128
"""Instances of each op remembered: to attribute waits, to find a critical cycle, at most."""
_FOR_EVER = 1 << 30
_INSTANTS = 200_000
"""Instants between two looks at the keyboard and the progress bar: some 0.1 s."""

Progress = Callable[[int, int], None]


def simulate(
    graph: OpGraph,
    *,
    seed: int = 0,
    rel_ci: float = 0.01,
    progress: Progress | None = None,
    compiled: bool | None = None,
) -> Measures:
    """Run ``graph`` and measure it once it has settled.

    A deterministic graph runs until its state recurs; what lies between is the measurement, and it
    is exact for ever. A random one runs until the 95 % confidence interval of its throughput is
    within ``rel_ci`` of it (or for MOST_ROUNDS; a graph that starts staggered is run again from
    other starts, at most MOST_RUNS times, and longer if need be); its warm-up is dropped.

    Parameters
    ----------
    progress : called with (rounds done, rounds expected).
    compiled : True or False asks for the compiled or the plain event loop; both give the same.

    Raises
    ------
    InputError : ``rel_ci`` is not positive; the edges without lag have a cycle.
    DeadlockError : nothing can happen although iterations are left.
    """
    if not rel_ci > 0.0:
        raise InputError(f"rel_ci must be positive, got {rel_ci:g}")
    if not graph.random:
        found = _periodic(graph, progress, compiled)
        if found is not None:
            return found
    if graph.staggered:
        return _from_many_starts(graph, seed, rel_ci, progress, compiled)
    return _from_one_start(graph, seed, rel_ci, progress, compiled)


def timeline(
    graph: OpGraph,
    *,
    seed: int = 0,
    first: int = 0,
    iterations: int = 2,
    compiled: bool | None = None,
) -> list[Span]:
    """The instances of iterations ``first`` to ``first + iterations - 1`` of every op, by start.

    Raises
    ------
    InputError, DeadlockError : see :func:`simulate`.
    """
    record = range(first, first + iterations)
    with Run(graph, seed, record.stop, compiled, record=record) as run:
        run.advance(record.stop)
        run.drain(until_recorded=True)
        return run.spans()


def makespan(
    graph: OpGraph, *, seed: int = 0, iterations: int = 1, compiled: bool | None = None
) -> float:
    """Seconds until every op has run exactly ``iterations`` times and nothing runs after that.

    Raises
    ------
    InputError, DeadlockError : see :func:`simulate`.
    """
    with Run(graph, seed, iterations, compiled, limit=iterations) as run:
        run.drain()
        return run.now


def prepare(graph: OpGraph, *, compiled: bool | None = None) -> None:
    """Lay a graph out for simulation, and check it; the first simulation does so otherwise.

    Raises
    ------
    InputError : the edges without lag have a cycle.
    """
    with Run(graph, 0, 1, compiled):
        pass


_ordered: WeakSet[OpGraph] = WeakSet()
"""Graphs whose edges without lag have no cycle."""


def _periodic(graph: OpGraph, progress: Progress | None, compiled: bool | None) -> Measures | None:
    """Measures of one period, None if none was found."""
    with Run(graph, 0, 6, compiled, depth=_DEPTH) as run:
        recurrence = Recurrence()
        most = max(MOST_PERIODIC_ROUNDS, 4 * run.span)
        for done in range(1, most + 1):
            run.advance(done)
            if progress is not None:
                progress(done, most)
            before = recurrence.seen(run.world, done, run.totals)
            if recurrence.fresh:
                forget_gap(run.world)
            if before is not None:
                period = run.totals() - before
                if not np.allclose(period.marked_at, period.time, rtol=1e-9, atol=0.0):
                    # who was waiting as it began had waited for another time than in later periods
                    before = run.totals()
                    done += period.rounds
                    run.advance(done)
                    period = run.totals() - before
                for more in (0, 1, 2, 4, _DEPTH):  # rounds until the walk back has room
                    run.advance(done + more)
                    cycle = critical_cycle(graph, run.world, period.time)
                    if cycle:
                        break
                break
        else:
            return None
    if not cycle and (depth := _power_of_two(4 * period.rounds)) > _DEPTH:
        with Run(graph, 0, 6, compiled, depth=depth) as run:  # as far back as the cycle may lead
            run.advance(done + depth)
            cycle = critical_cycle(graph, run.world, period.time)
    return measures(graph, period, periodic=True, cycle=cycle)


def _power_of_two(at_least: int) -> int:
    return min(1 << (at_least - 1).bit_length(), _MOST_DEPTH)


def _from_one_start(
    graph: OpGraph, seed: int, rel_ci: float, progress: Progress | None, compiled: bool | None
) -> Measures:
    with Run(graph, seed, 4 * PILOT_ROUNDS, compiled, depth=_FEW) as run:
        begin, clocks = _warm_up(run, progress)
        drift = _drift_rounds(graph, run.totals() - begin)
        if drift > 0:
            run.advance(run.rounds + drift // DRIFT)
            begin, clocks = run.totals(), [run.clock()]
        drift += begin.rounds
        series = Series()
        for before, after in pairwise(clocks):
            series.add(after[0] - before[0], after[1] - before[1])
        done, clock = run.rounds, clocks[-1]
        while True:
            ci = series.ci_fraction()
            if ci <= rel_ci and done >= drift:
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
        return measures(graph, run.totals() - begin, ci_fraction=ci)


def _expected(done: int, wider: float, most: int) -> int:
    """What will have been done once an interval is narrow that is ``wider`` times too wide."""
    if wider > 1e3:
        return min(2 * done, most)
    return min(max(round(done * wider**2), done + 1), most)


def _from_many_starts(
    graph: OpGraph, seed: int, rel_ci: float, progress: Progress | None, compiled: bool | None
) -> Measures:
    """Runs from different starts; longer ones where these differ by more than their starts."""
    longest = MOST_ROUNDS // MOST_RUNS
    rounds = 0
    while True:
        found, ci = _runs(graph, seed, rel_ci, rounds, progress, compiled)
        if ci <= rel_ci or not graph.noisy or rounds == longest:
            break
        length = sum(one.rounds for one in found) / len(found)
        more = len(found) / MOST_RUNS * (ci / rel_ci) ** 2
        rounds = min(round(max(more, 2.0) * length), longest)
    together = found[0]
    for one in found[1:]:
        together = together + one
    return measures(graph, together, ci_fraction=ci, runs=len(found))


def _runs(
    graph: OpGraph,
    seed: int,
    rel_ci: float,
    rounds: int,
    progress: Progress | None,
    compiled: bool | None,
) -> tuple[list[Totals], float]:
    """Totals of runs of at least so many ``rounds`` after the warm-up, and the interval over them.

    As many as it takes for the interval; half of the most where these would be too short anyway.
    """
    found: list[Totals] = []
    ci = inf
    while len(found) < MOST_RUNS and ci > rel_ci:
        run_seed = _seeds(seed, MOST_RUNS)[len(found)]
        expected = FEWEST_RUNS * (PILOT_ROUNDS + rounds)
        with Run(graph, run_seed, expected, compiled, depth=_FEW) as run:
            begin, _ = _warm_up(run, None)
            drift = _drift_rounds(graph, run.totals() - begin)
            if drift > 0:
                run.advance(run.rounds + drift // DRIFT)
                begin = run.totals()
            run.advance(max(run.rounds, begin.rounds + max(rounds, drift)))
            found.append(run.totals() - begin)
        if len(found) >= FEWEST_RUNS:
            ci = ci_fraction([one.iterations_per_s(graph) for one in found])
        if progress is not None:
            runs = FEWEST_RUNS if ci == inf else _expected(len(found), ci / rel_ci, MOST_RUNS)
            progress(len(found), max(runs, len(found)))
        if graph.noisy and 2 * len(found) == MOST_RUNS and ci > 2.0 * rel_ci:
            break
    return found, ci


def _drift_rounds(graph: OpGraph, settled: Totals) -> int:
    """Rounds that a run needs for a link that is nearly full to make itself felt.

    Where workers may run ahead by a long lag, what they send piles up slowly until they have to
    wait; that many rounds ahead, of the rounds of a run, is how far its pace may be off.
    """
    lag = int(graph.edge_lag.max(initial=0))
    if lag <= LEAST_WARMUP or not settled.time > 0.0:
        return 0
    load = graph.bytes_by_link() / graph.link_capacity_bytes_per_s
    busiest = float(load.max(initial=0.0)) * settled.rounds / settled.time
    return DRIFT * lag if busiest > NEARLY_FULL else 0


Clock = tuple[float, float]


def _warm_up(run: Run, progress: Progress | None) -> tuple[Totals, list[Clock]]:
    """Run until the warm-up can be told; the totals at its end, and the clock at each span since.

    Candidates are powers of two up to two thirds of the pilot (steady.warmup_rounds).
    """
    least = 1 << (-(-LEAST_WARMUP // run.span) - 1).bit_length()
    spans = max(FEWEST_PILOT_SPANS, -(-PILOT_ROUNDS // run.span), 3 * least)
    most = max(MOST_PILOT_ROUNDS // run.span, 2 * spans)
    marks = {0: run.totals()}
    clocks = [run.clock()]
    while True:
        for done in range(len(clocks), spans + 1):
            run.advance(done * run.span)
            clocks.append(run.clock())
            if done & (done - 1) == 0:
                marks[done] = run.totals()
                forget_gap(run.world)
            if progress is not None:
                progress(done, spans)
        rates = [(b[0] - a[0]) / max(b[1] - a[1], 1e-300) for a, b in pairwise(clocks)]
        dropped = warmup_rounds(rates, least)
        if dropped < warmups(spans, least)[-1] or spans >= most:
            return marks[dropped], clocks[dropped:]
        spans *= 2


def _span(graph: OpGraph) -> int:
    """Rounds after which all that happens every so many rounds has happened equally often."""
    rules = graph.rules
    every = {r.every for r in rules if isinstance(r, Activity)}
    gates = [r for r in rules if isinstance(r, Every)]
    if gates:
        sources = np.bincount(graph.edge_target, minlength=graph.n_ops)
        every |= {r.count // gcd(r.count, int(sources[r.op])) for r in gates}
    return min(lcm(*every), LONGEST_SPAN)


def _seeds(seed: int, count: int) -> list[int]:
    """Seeds of the runs of a job: its own, then ones derived from it."""
    derived = np.random.SeedSequence(seed).generate_state(count, np.uint64)
    return [seed, *(int(s) for s in derived[1:])]


class Run:
    """One simulation under way; a context, so that its memory is used again."""

    def __init__(
        self,
        graph: OpGraph,
        seed: int,
        rounds: int,
        wish: bool | None,
        *,
        depth: int = 0,
        limit: int = NONE,
        record: range = range(0),
    ) -> None:
        self.graph = graph
        self.span = _span(graph)
        self.limit = limit
        self.record = record
        self._wish = wish
        self._expected = rounds
        self._loop = choose(graph.n_ops * rounds, wish)
        world, self._kept = make_world(graph, seed, depth=depth, limit=limit, record=record)
        self.world = self._loop.convert(world)
        self._handle = self._loop.handle(self.world)
        if graph not in _ordered:
            if self._loop.order(self._handle) < graph.n_ops:
                cycle = cycle_without_lag(graph)
                names = " -> ".join(repr(graph.op_name(op)) for op in [*cycle, cycle[0]])
                raise InputError(f"edges without lag form a cycle: {names}")
            _ordered.add(graph)
        self._loop.begin(self._handle)

    def __enter__(self) -> Run:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        give_back(self.graph, self._kept)
        if self._loop is PLAIN:
            spent(self.graph.n_ops * self.rounds)

    @property
    def now(self) -> float:
        """The present of the simulation (s)."""
        return float(column(self.world, "state", "now")[0])

    @property
    def rounds(self) -> int:
        """Iterations that every group has ended."""
        return int(column(self.world, "state", "slowest")[0])

    def clock(self) -> Clock:
        """Iterations of all workers so far, and the time (s)."""
        iterations = column(self.world, "groups", "iterations")
        return float((iterations * self.graph.group_count).sum()), self.now

    def totals(self) -> Totals:
        """What has been counted so far."""
        return totals(self.graph, self.world)

    def advance(self, rounds: int) -> None:
        """Run until every group has ended ``rounds`` iterations."""
        if rounds > self._expected:
            self._go_on_compiled(2 * rounds)
        if self._go(rounds) == eventloop.STUCK:
            raise DeadlockError(describe_deadlock(self.graph, self.world))

    def _go_on_compiled(self, rounds: int) -> None:
        """Change the loop if, for ``rounds`` in all, the other one had been chosen."""
        self._expected = rounds
        if self._loop is PLAIN:
            self._loop = choose(self.graph.n_ops * rounds, self._wish)
            if self._loop is not PLAIN:
                self.world = self._loop.convert(as_arrays(self.world))
                self._handle = self._loop.handle(self.world)

    def drain(self, *, until_recorded: bool = False) -> None:
        """Run on until nothing moves, or the recorded iterations of every op have ended."""
        rounds = self.rounds
        while self._go(rounds + 1 if until_recorded else _FOR_EVER) != eventloop.STUCK:
            rounds += 1
            if not np.isnan(np.array(self.world.span_end)).any():
                return
        if self.limit != NONE and not finished(self.graph, self.world, self.limit):
            raise DeadlockError(describe_deadlock(self.graph, self.world))

    def spans(self) -> list[Span]:
        """The recorded timeline, by start."""
        n = self.graph.n_ops
        ready, start, end = (
            np.array(values)
            for values in (self.world.span_ready, self.world.span_start, self.world.span_end)
        )
        ended = np.flatnonzero(~np.isnan(end))
        order = ended[np.lexsort((ended // n, ended % n, start[ended]))]
        return [
            Span(at % n, at // n + self.record.start, ready[at], start[at], end[at])
            for at in order.tolist()
        ]

    def _ahead(self) -> int:
        done = column(self.world, "groups", "iterations")
        return int(done.max() - done.min()) if len(done) else 0

    def _go(self, rounds: int) -> int:
        """Let the event loop run, with a break now and then for whoever wants to interrupt it."""
        while True:
            status = self._loop.advance(self._handle, rounds, _INSTANTS)
            if status == eventloop.FULL:
                self.world = grown(self.world)
                self._handle = self._loop.handle(self.world)
            elif status >= eventloop.UNOPENED:
                raise PerfmodelError(describe_fault(self.graph, self.world, status))
            elif status != eventloop.PAUSED:
                return status
            elif self._ahead() > STARVED:
                raise DeadlockError(describe_starvation(self.graph, self.world))
