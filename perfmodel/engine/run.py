"""A running simulation: lay it out, advance it round by round, and read its state."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from threading import Event, Thread
from typing import NamedTuple, Self
from weakref import WeakSet

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.arrays import NONE
from perfmodel.base.errors import DeadlockError, InputError, PerfmodelError
from perfmodel.engine import codes
from perfmodel.engine.layout import give_back, make_world
from perfmodel.engine.measures import OpSpan, Totals
from perfmodel.engine.progress import busiest_s, progress, short_runs
from perfmodel.engine.state import totals
from perfmodel.engine.stuck import (
    cycle_without_lag,
    describe_deadlock,
    describe_fault,
    describe_starvation,
    finished,
)
from perfmodel.engine.tracing import Walks, walks_of
from perfmodel.engine.twins import choose, requested, warn_if_long
from perfmodel.engine.world import assign, column, grown, scalar
from perfmodel.graph.op_graph import OpGraph

STARVED = 100_000
"""Lead of one group over another, in iterations, above which the other counts as starved."""

TRACED_OPS = 2_000_000
"""Operations of further rounds after which no more critical paths are traced in these."""

_FOR_EVER = 1 << 30
_INSTANTS = 200_000
"""Instants between two checks for interrupts and progress updates: about 0.1 s."""

Clock = tuple[float, float]

_ordered: WeakSet[OpGraph] = WeakSet()
"""Graphs whose edges without lag are known to have no cycle."""


class Log(NamedTuple):
    """When logged ops were ready, or their tokens arrived, in simulation order.

    All have shape (entries,): ``time_s``; ``what``, 4 * op + LOG_READY or LOG_END; ``drawn``, the
    number of the alternative that the op has drawn, NONE without any. Instances in which an op is
    inactive are left out.
    """

    time_s: NDArray[np.float64]
    what: NDArray[np.int64]
    drawn: NDArray[np.int32]


class Simulation:
    """A running simulation; it is a context manager, so that its memory is reused.

    ``steady`` selects a start for the steady state instead of the start of training: groups with
    staggered starts begin within the time that the busiest resource needs for a round, if that is
    longer than their own stagger.
    """

    def __init__(
        self,
        graph: OpGraph,
        seed: int,
        compiled: bool | None = None,
        *,
        depth: int = 0,
        limit: int = NONE,
        record: range = range(0),
        log: bool = False,
        steady: bool = False,
    ) -> None:
        self.graph = graph
        self._log: list[Log] | None = [] if log else None
        self.span = graph.span
        self.limit = limit
        self.record = record
        compiled = requested(compiled)
        self._loop = choose(compiled)
        self._may_be_slow = compiled is None
        self._stopped = False
        within_s = busiest_s(graph) if steady and graph.staggered else 0.0
        self.walks = walks_of(graph, self.span, depth)
        world, self._kept = make_world(
            graph,
            seed,
            depth=depth,
            limit=limit,
            record=record,
            log=log,
            within_s=within_s,
            walks=self.walks,
        )
        self.world = self._loop.convert(world)
        self._handle = self._loop.handle(self.world)
        if graph not in _ordered:
            if self._loop.order(self._handle) < graph.n_ops:
                cycle = cycle_without_lag(graph)
                names = " -> ".join(repr(graph.op_name(op)) for op in [*cycle, cycle[0]])
                raise InputError(f"edges without lag form a cycle: {names}")
            _ordered.add(graph)
        self._loop.begin(self._handle)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        if self._log is None:
            give_back(self.graph, self._kept)

    @property
    def now(self) -> float:
        """Current simulated time (s)."""
        return float(scalar(self.world, "now"))

    @property
    def rounds(self) -> int:
        """Number of iterations that every group has completed."""
        return int(scalar(self.world, "slowest"))

    def trace_whole(self, iterations: int) -> None:
        """Count the whole critical path of every group's first iterations; none has begun yet."""
        self.walks = Walks(self.span, iterations, 1, 0)
        assign(self.world, stride=iterations, turns=1, first_turn=0, unwalked=0)

    def trace_on(self, totals: Totals, rounds: int) -> Totals:
        """Return ``totals`` with the critical paths of further rounds, if they have fewer than
        there are groups: so many rounds at a time, until each group has had its turn, or some have
        and it has taken TRACED_OPS."""
        begin = self.totals()
        span, stride, turns, unwalked = self.walks
        walks = self.graph.n_groups * stride - totals.walks + begin.walks
        turn = max(span, stride, rounds)
        enough = max(TRACED_OPS // self.graph.n_ops, unwalked + turn)
        most = begin.rounds + min(unwalked + turns * turn, enough)
        while scalar(self.world, "walks") < walks and self.rounds < most:
            self.advance(self.rounds + rounds)
        return totals.with_path_of(self.totals() - begin)

    def clock(self) -> Clock:
        """Return the total iterations of all workers, and the time (s)."""
        if short_runs(self.graph):
            iterations = progress(self.graph, self.world)
        else:
            iterations = column(self.world, "groups", "iterations")
        return float((iterations * self.graph.group_count).sum()), self.now

    def totals(self) -> Totals:
        """Return the counters and sums so far."""
        return totals(self.graph, self.world)

    def advance(self, rounds: int) -> None:
        """Run until every group has ended ``rounds`` iterations."""
        if self._may_be_slow:
            warn_if_long(self.graph.n_ops * rounds)
        if self._go(rounds) == codes.STUCK:
            raise DeadlockError(describe_deadlock(self.graph, self.world))

    def stop(self) -> None:
        """Let what advances the simulation in another thread end soon, with an error."""
        self._stopped = True

    def steps(self, rounds: int, instants: int) -> Iterator[None]:
        """Run until every group has ended ``rounds`` iterations; pause every ``instants`` instants,
        and at the end."""
        while (status := self._go(rounds, instants)) == codes.PAUSED:
            yield
        if status == codes.STUCK:
            raise DeadlockError(describe_deadlock(self.graph, self.world))
        yield

    def drain(self, *, until_recorded: bool = False) -> None:
        """Run until nothing moves any more, or the recorded iterations of every op have ended."""
        rounds = self.rounds
        while self._go(rounds + 1 if until_recorded else _FOR_EVER) != codes.STUCK:
            rounds += 1
            if not np.isnan(np.array(self.world.span_end)).any():
                return
        if self.limit != NONE and not finished(self.graph, self.world, self.limit):
            raise DeadlockError(describe_deadlock(self.graph, self.world))

    def spans(self) -> list[OpSpan]:
        """Return the recorded timeline, sorted by start."""
        n = self.graph.n_ops
        ready, start, end = (
            np.array(values)
            for values in (self.world.span_ready, self.world.span_start, self.world.span_end)
        )
        ended = np.flatnonzero(~np.isnan(end))
        order = ended[np.lexsort((ended // n, ended % n, start[ended]))]
        return [
            OpSpan(at % n, at // n + self.record.start, ready[at], start[at], end[at])
            for at in order.tolist()
        ]

    def log(self) -> Log:
        """Return the log entries since the last call, in order."""
        self._take_log()
        parts, self._log = self._log or [], []
        return Log(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))

    def _take_log(self) -> None:
        """Empty the world's log, so that it has room again."""
        if self._log is None:
            return
        count, room = scalar(self.world, "logged"), scalar(self.world, "log_room")
        self._log.append(
            Log(
                np.array(self.world.log_time[:count], np.float64),
                np.array(self.world.log_what[:count], np.int64),
                np.array(self.world.log_drawn[:count], np.int32),
            )
        )
        assign(self.world, logged=0, log_left=room - room // 4)

    def _ahead(self) -> int:
        done = column(self.world, "groups", "iterations")
        return int(done.max() - done.min()) if len(done) else 0

    def _go(self, rounds: int, instants: int | None = None) -> int:
        """Run the event loop for at most ``instants`` instants, with regular breaks in which it can
        be interrupted."""
        while True:
            if self._stopped:
                raise PerfmodelError("the simulation was stopped")
            status = self._loop.advance(self._handle, rounds, instants or _INSTANTS)
            if status == codes.FULL:
                self._take_log()
                if 2 * scalar(self.world, "timers") > scalar(self.world, "timer_room"):
                    self.world = grown(self.world)
                    self._handle = self._loop.handle(self.world)
            elif status >= codes.UNOPENED:
                raise PerfmodelError(describe_fault(self.graph, self.world, status))
            elif status != codes.PAUSED or instants is not None:
                return status
            elif self._ahead() > STARVED:
                raise DeadlockError(describe_starvation(self.graph, self.world))


def advance_all(runs: Sequence[Simulation], rounds: int) -> None:
    """Run simulations at the same time, until every group of each has ended ``rounds`` iterations.

    Raises
    ------
    DeadlockError : see :meth:`Simulation.advance`.
    """
    at_once(runs, [partial(run.advance, rounds) for run in runs])


def at_once(runs: Sequence[Simulation], work: Sequence[Callable[[], object]]) -> None:
    """Do the ``work`` of each simulation, with all of them at the same time. The compiled event
    loop does not hold up other threads. If any of it fails, all simulations stop. A pool of threads
    would take no more work once the main thread has ended, while others still predict."""
    if len(work) == 1:
        work[0]()
        return
    failed: list[BaseException] = []
    ended: list[Event] = []

    def do(one: Callable[[], object], end: Event) -> None:
        try:
            one()
        except BaseException as error:
            failed.append(error)
            for run in runs:
                run.stop()
        finally:
            end.set()

    try:
        for one in work:
            end = Event()
            Thread(target=do, args=(one, end)).start()
            ended.append(end)
        for end in ended:
            end.wait()
    except BaseException:  # after an interrupt, nothing may go on in the background
        for run in runs:
            run.stop()
        for end in ended:
            end.wait()
        raise
    if failed:
        raise failed[0]
