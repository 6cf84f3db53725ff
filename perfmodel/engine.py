"""The fine-grained route: simulate an op graph until it has settled, and measure it."""

from __future__ import annotations

from collections.abc import Callable

from perfmodel.errors import DeadlockError
from perfmodel.eventloop import EventLoop
from perfmodel.graph import OpGraph
from perfmodel.measures import Measures, Span

_PERIODIC_ROUNDS = 64
"""Rounds after which a deterministic run without a one-round period is averaged instead."""

_SAME_STATE = 1e-9
"""How far times, or bytes, of two states may differ by rounding, relative to the largest."""


State = tuple[list[int], list[float], list[float]]


def simulate(
    graph: OpGraph,
    *,
    seed: int = 0,
    warmup: int = 10,
    rounds: int = 15,
    progress: Callable[[int, int], None] | None = None,
) -> Measures:
    """Run ``graph`` and measure it once it has settled.

    A deterministic graph runs until one round (an iteration of every group) ends in the state it
    began in; that round is the measurement, and it is exact for ever. Otherwise ``warmup`` rounds
    are dropped and ``rounds`` measured.

    Raises
    ------
    DeadlockError : nothing can happen although iterations are left.
    """
    run = EventLoop(graph, seed)
    if not graph.random:
        before: State | None = None
        for done in range(1, _PERIODIC_ROUNDS):
            run.reset()
            run.advance(done)
            state = run.state()
            if before is not None and _same(before, state):
                return run.measures(done - 2, done - 1, periodic=True)
            before = state
        warmup = _PERIODIC_ROUNDS
    run.advance(warmup)
    run.reset()
    for done in range(1, rounds + 1):
        run.advance(warmup + done)
        if progress is not None:
            progress(done, rounds)
    return run.measures(warmup - 1, None, periodic=False)


def timeline(graph: OpGraph, *, seed: int = 0, first: int = 0, iterations: int = 2) -> list[Span]:
    """The instances of iterations ``first`` to ``first + iterations - 1`` of every op, by start.

    Raises
    ------
    DeadlockError : see :func:`simulate`.
    """
    run = EventLoop(graph, seed, record=range(first, first + iterations))
    run.advance(first + iterations)
    run.drain()
    return sorted(run.spans, key=lambda span: (span.start_s, span.op, span.iteration))


def makespan(graph: OpGraph, *, seed: int = 0, iterations: int = 1) -> float:
    """Seconds until every op has run exactly ``iterations`` times and nothing runs after that.

    Raises
    ------
    DeadlockError : see :func:`simulate`.
    """
    run = EventLoop(graph, seed, limit=iterations)
    run.drain()
    if min(run.arrived, default=iterations) < iterations:
        raise DeadlockError(run.stuck())
    return run.now


def _same(a: State, b: State) -> bool:
    """Whether two states agree, up to rounding of their times and of their bytes."""
    if a[0] != b[0]:
        return False
    for before, after in zip(a[1:], b[1:], strict=True):
        margin = _SAME_STATE * max(map(abs, after), default=0.0)
        if any(abs(x - y) > margin for x, y in zip(before, after, strict=True)):
            return False
    return True
