"""A few iterations of the steady state: every op, link use, and the staleness of updates."""

from __future__ import annotations

from itertools import count

import msgspec
import numpy as np

from perfmodel.base.arrays import Floats, Ids
from perfmodel.engine.measures import OpSpan
from perfmodel.engine.run import Simulation
from perfmodel.engine.simulation import MOST_PERIODIC_ROUNDS
from perfmodel.engine.state import moved_bytes
from perfmodel.engine.steady import Recurrence
from perfmodel.engine.warmup import warm_up
from perfmodel.engine.world import column
from perfmodel.graph.op_graph import OpGraph
from perfmodel.graph.rules import Every, Quorum

MOST_SAMPLES = 2000
"""Approximate maximum number of samples in a window; each covers one or more instants."""

MOST_RECORDED = 5_000_000
"""Maximum number of recorded op instances; if workers drift apart without bound, the window begins
earlier."""

ROUNDING = 1e-12
"""Overlaps below this fraction of the time are rounding errors."""

REL_CI = 0.01
"""Precision for which the warm-up of a random graph is chosen."""


class SimulatedWindow(msgspec.Struct, frozen=True, eq=False, kw_only=True):
    """What happens while the slowest group runs a few iterations.

    Attributes
    ----------
    first, last : these iterations of the slowest group, counted from 0.
    settled : rounds after which the run is in its steady state.
    slowest : index of the slowest group.
    begin_s, end_s : when these iterations begin and end.
    spans : op instances that overlap the window, sorted by start.
    marks : all recorded instances of the ops that end the groups' iterations.
    sample_s : (samples + 1,) bounds of the sampled intervals, from ``begin_s`` to ``end_s``.
    link_use : (samples, links) mean use of each link in an interval, as a fraction of its capacity.
    staleness : (samples, groups) mean staleness of updates in an interval; NaN without any.
    """

    first: int
    last: int
    settled: int
    slowest: int
    begin_s: float
    end_s: float
    spans: tuple[OpSpan, ...]
    marks: tuple[OpSpan, ...]
    sample_s: Floats
    link_use: Floats
    staleness: Floats

    @property
    def steady(self) -> bool:
        """Whether the whole window is in the steady state."""
        return self.first >= self.settled


def steady_window(
    graph: OpGraph, *, seed: int = 0, iterations: int = 2, compiled: bool | None = None
) -> SimulatedWindow:
    """Return the first ``iterations`` iterations of the slowest group in the steady state.

    If some ops are active only every k-th iteration, the window begins with such an iteration.

    Raises
    ------
    InputError, DeadlockError : see :func:`perfmodel.engine.simulation.simulate`.
    """
    settled = settled_rounds(graph, seed=seed, compiled=compiled)
    span = graph.span
    # an op behind a gate that takes several tokens has run fewer iterations than the groups
    gated = any(isinstance(rule, Every | Quorum) for rule in graph.rules)
    first = max(-(-(settled + 1) // span) * span - 1, 1)
    while True:
        fastest = _fastest(graph, seed, first + iterations, compiled)
        record = range(0 if gated else first - 1, fastest + 1)
        if len(record) * graph.n_ops <= MOST_RECORDED or first == 1:
            break
        first = max(first // 2, 1)
    last = first + iterations - 1
    marks = set(graph.group_mark.tolist())
    with Simulation(graph, seed, compiled, record=record, steady=True) as run:
        run.advance(first)
        begin_s, before = run.now, _done(run)
        instants = max(3 * iterations * graph.n_ops // MOST_SAMPLES, 1)
        sample_s, link_use, staleness = _sampled(run, first + iterations, instants)
        slowest = int(np.flatnonzero(before == before.min())[0])
        end_s = run.now
        margin_s = ROUNDING * end_s
        run.advance(first + iterations + 1)
        spans = run.spans()
    return SimulatedWindow(
        first=first,
        last=last,
        settled=settled,
        slowest=slowest,
        begin_s=begin_s,
        end_s=end_s,
        spans=tuple(
            s
            for s in spans
            if s.end_s > begin_s + margin_s
            and (s.start_s < end_s - margin_s or s.end_s <= end_s + margin_s)
        ),
        marks=tuple(s for s in spans if s.op in marks),
        sample_s=sample_s,
        link_use=link_use,
        staleness=staleness,
    )


def settled_rounds(graph: OpGraph, *, seed: int = 0, compiled: bool | None = None) -> int:
    """Return the rounds after which a run is in its steady state.

    For a deterministic graph, this is when its state recurs. For a random graph, it is the warm-up
    that :func:`perfmodel.engine.simulation.simulate` drops.
    """
    if not graph.random:
        with Simulation(graph, seed, compiled) as run:
            recurrence = Recurrence()
            for done in count(1):
                run.advance(done)
                if recurrence.seen(run.world, done, run.totals) is not None:
                    return done
                if done == max(MOST_PERIODIC_ROUNDS, 4 * run.span):
                    break
    with Simulation(graph, seed, compiled, steady=True) as run:
        return warm_up(run, REL_CI, 0, None).begin.rounds


def _fastest(graph: OpGraph, seed: int, rounds: int, compiled: bool | None) -> int:
    """Return the iterations of the fastest group when every group has ended ``rounds`` rounds."""
    with Simulation(graph, seed, compiled, steady=True) as run:
        run.advance(rounds)
        return int(_done(run).max())


def _done(run: Simulation) -> Ids:
    return column(run.world, "groups", "iterations").astype(np.int64)


def _sampled(run: Simulation, rounds: int, instants: int) -> tuple[Floats, Floats, Floats]:
    """Return interval bounds, link use and staleness until every group has ended ``rounds``."""
    graph = run.graph
    times, moved, stale = [run.now], [moved_bytes(run.world)], [_stale(run)]
    for _ in run.steps(rounds, instants):
        if run.now > times[-1]:
            times.append(run.now)
            moved.append(moved_bytes(run.world))
            stale.append(_stale(run))
        else:
            moved[-1], stale[-1] = moved_bytes(run.world), _stale(run)
    sample_s = np.array(times)
    took_s = np.diff(sample_s)[:, None]
    along = np.repeat(np.diff(np.array(moved), axis=0), np.diff(graph.route_start), axis=1)
    moved_over = np.zeros((len(graph.link_capacity_bytes_per_s), len(times) - 1))
    np.add.at(moved_over, graph.route_links, (along * graph.route_units).T)
    sums, counts = np.moveaxis(np.diff(np.array(stale), axis=0), 1, 0)
    mean = np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)
    return sample_s, moved_over.T / (took_s * graph.link_capacity_bytes_per_s), mean


def _stale(run: Simulation) -> Ids:
    """Return the sum of the staleness of updates so far, and their number, shape (2, groups)."""
    world = run.world
    return np.array([world.stale_sum, world.stale_count], np.int64)
