"""The pilot of a simulation: finds when it has settled, and how much of it to drop."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise

import msgspec
import numpy as np

from perfmodel.engine.leads import Ties, possible_loss, settled_after, ties_of
from perfmodel.engine.measures import Totals
from perfmodel.engine.progress import (
    RESOLUTION_OF_SHORT,
    busy,
    saturated,
    short_runs,
    workers_of,
)
from perfmodel.engine.run import Clock, Simulation
from perfmodel.engine.state import forget_gap
from perfmodel.engine.steady import warmup_rounds, warmups
from perfmodel.engine.world import column
from perfmodel.graph.op_graph import OpGraph
from perfmodel.graph.work import may_come_in_waves

MOST_TRANSIENT_ROUNDS = 16384
"""Maximum rounds of a pilot while tied workers still drift apart."""

LAGS = 8
"""Minimum rounds of a pilot if workers drift apart, as a multiple of the longest lag."""

TOLERATED_LOSS = 0.5
"""Tolerated rate loss from such a drift, as a fraction of ``rel_ci``; the interval covers it."""

PILOT_ROUNDS, MOST_PILOT_ROUNDS = 24, 768
"""Initial and maximum rounds of a pilot, which doubles while the warm-up may fill two thirds of
it."""

FEWEST_PILOT_SPANS = 6
"""Minimum spans of a pilot. A span is one round; if some ops are active only every k-th round, it
has as many rounds as it takes for each to be active as often as in the long run."""

LEAST_WARMUP = 8
"""Number of rounds that are always dropped."""

SHORT_PILOT, SHORT_PART = 4, 4
"""Initial spans of a short pilot, and which part of it is kept: the last quarter, two spans at
least."""

FEWEST_ITERATIONS = 512
"""Fewest iterations of all workers together in a short pilot."""

MARKS = 16
"""Least number of times, up to any one, at which the totals of a short pilot are kept."""

EVIDENT = 3
"""Spans after which the throughput of workers that keep a resource busy all the time is known, and
their staleness too: in the second, it is still 3 to 13 % too high (decision 0086)."""

TOLERATED_DRIFT = 0.5
"""Tolerated drift of the rate in a short pilot, as a fraction of ``rel_ci``; the interval covers
it."""

SETTLING_OPS, WORTHWHILE = 3_000_000, 16
"""Most operations that a short pilot simulates until queues have settled, and spans for which they
must suffice."""

FULL = 0.9
"""Utilisation above which a resource has a queue that takes long to settle."""

MOST_PILOT_OPS = 6_000_000
"""Operations after which a short pilot ends even if its rate drifts; the interval covers the drift.
It has three times its initial spans at least."""

WAVE_ROUNDS, WAVE_OPS = 512, 3_000_000
"""Most rounds and operations of a pilot if workers may come in waves, however few they are
(decisions 0104 and 0112)."""

FULL_ROUNDS = 64
"""Rounds after which such a pilot ends, with many workers, if a resource was busy all the time
since an eighth."""

UNSEEN, SHOWN = 0.1, 128
"""Fraction of the rate that waves may cost which do not show in a pilot of few rounds, and rounds
after which they show."""

STALENESS_DRIFT, WAITS_DRIFT = 0.02, 0.02
"""Drift of staleness, as a fraction of it, and of the part of the time that is waited for a cause,
that count as settled."""

Progress = Callable[[int, int], None]


class Pilot(msgspec.Struct, frozen=True):
    """The first part of a simulation: how much of it to drop, and what it tells about the rest.

    ``begin``: totals after the warm-up. ``clocks``: the clock at each span since, none of a short
    pilot. ``spans``: number of spans that told the rate. ``transient_rounds``: rounds until tied
    workers had drifted as far apart as in the long run. ``loss``: fraction of the rate that may be
    lost once they have drifted that far; 0 if they already have. ``drift``: of a short pilot, how
    much higher the rate of the second half of what was not dropped is than that of all of it,
    relative to it.
    """

    begin: Totals
    clocks: list[Clock]
    spans: int
    transient_rounds: float
    loss: float
    drift: float = 0.0


def warm_up(
    run: Simulation,
    rel_ci: float,
    least_spans: int,
    progress: Progress | None,
    *,
    settle: bool = True,
) -> Pilot:
    """Run until the warm-up can be identified. Without ``settle``, many workers run until their
    rate is known, but not yet what they wait for.

    Candidates are powers of two up to two thirds of the pilot (steady.warmup_rounds). The pilot
    continues while tied workers still drift apart and the possible rate loss from this
    (leads.possible_loss) exceeds a fraction of ``rel_ci``. A lag beyond MOST_TRANSIENT_ROUNDS is
    not waited for.
    """
    waves, rounds = may_come_in_waves(run.graph), min(WAVE_OPS // run.graph.n_ops, WAVE_ROUNDS)
    if waves and rounds >= WORTHWHILE:
        return _of_waves(run, rel_ci, -(-rounds // run.span), progress)
    if short_runs(run.graph):
        pilot = _short(run, rel_ci, least_spans, progress, settle=settle)
        return msgspec.structs.replace(pilot, loss=pilot.loss + UNSEEN) if waves else pilot
    least = 1 << (-(-LEAST_WARMUP // run.span) - 1).bit_length()
    spans = max(FEWEST_PILOT_SPANS, -(-PILOT_ROUNDS // run.span), 3 * least, least_spans)
    most = max(MOST_PILOT_ROUNDS // run.span, 2 * spans)
    ties = ties_of(run.graph)
    marks = {0: run.totals()}
    clocks = [run.clock()]
    leads = [0.0]
    while True:
        for done in range(len(clocks), spans + 1):
            run.advance(done * run.span)
            clocks.append(run.clock())
            if ties.any:
                leads.append(ties.lead(run.world))
            if done & (done - 1) == 0:
                marks[done] = run.totals()
                forget_gap(run.world)
            if progress is not None:
                progress(done, spans)
        rates = [(b[0] - a[0]) / max(b[1] - a[1], 1e-300) for a, b in pairwise(clocks)]
        dropped = warmup_rounds(rates, least)
        reached = settled_after(leads)
        dropped = max(dropped, least if reached == 0 else 1 << (reached - 1).bit_length())
        largest = warmups(spans, least)[-1]
        loss = possible_loss(leads, ties.longest) / run.span if dropped > largest else 0.0
        enough = LAGS * ties.longest if leads[-1] > 1.0 else 0
        rounds = spans * run.span
        if ties.longest > MOST_TRANSIENT_ROUNDS and rounds >= MOST_PILOT_ROUNDS:
            more = False  # no pilot reaches that bound
        elif loss > TOLERATED_LOSS * rel_ci or rounds < enough:
            more = rounds < MOST_TRANSIENT_ROUNDS
        else:
            more = dropped == largest and spans < most
        if not more:
            break
        spans *= 2
    dropped = min(dropped, largest)
    return Pilot(marks[dropped], clocks[dropped:], spans, reached * run.span, loss)


def _short(
    run: Simulation,
    rel_ci: float,
    least_spans: int,
    progress: Progress | None,
    *,
    settle: bool,
) -> Pilot:
    """Run until the rate has settled, with many workers: it drifts less than a part of ``rel_ci``
    within the last spans, which are kept, and no more than a part may be lost once tied workers
    have drifted apart. With many workers the growth of their lead shows within a few spans.

    With ``settle`` also until staleness and the causes of waits have settled, as long as this takes
    few operations: queues at full servers take tens of rounds to reach where they stay.

    Otherwise, if workers are not tied and keep a resource busy for sure, the answer is known once
    it has been busy for the last of EVIDENT spans, in which each worker has ended an iteration."""
    ties = ties_of(run.graph)
    leads = [0.0]
    rounds = min(MOST_PILOT_ROUNDS, MOST_PILOT_OPS // run.graph.n_turns)
    most = max(rounds // run.span, 3 * SHORT_PILOT, least_spans)
    known = 0
    few = FEWEST_ITERATIONS // max(workers_of(run.graph), 1)
    spans = max(SHORT_PILOT + 2 * ties.any, few, least_spans)
    evident = max(EVIDENT, least_spans)
    marks = {0: run.totals()}
    start = 1
    while True:
        for done in range(start, spans + 1):
            run.advance(done * run.span)
            if done % max(done // MARKS, 1) == 0 or done in (evident - 1, evident, spans):
                marks[done] = run.totals()
            _note(run, ties, leads)
            if progress is not None:
                progress(done, spans)
            early = done == evident and not ties.any
            if early and not (settle and _affordable(run)):
                last = marks[done] - marks[done - 1]
                if saturated(run.graph, last, rel_ci) and last.iterations.all():
                    return Pilot(marks[done - 1], [], done, 0.0, 0.0)
        begin = max(mark for mark in marks if mark <= spans - max(spans // SHORT_PART, 2))
        marks = {done: mark for done, mark in marks.items() if done >= begin}
        kept = list(marks.values())
        drift = _drift(run.graph, kept[0], kept[len(kept) // 2], kept[-1])
        reached, loss = _lost(run, leads, begin)
        settled = abs(drift) <= TOLERATED_DRIFT * rel_ci and loss <= TOLERATED_LOSS * rel_ci
        known = known or spans * settled
        if settle and settled and spans < _affordable(run):
            settled = _queues_settled(run.graph, kept)
        if settled or spans >= most:
            known = known or spans
            return Pilot(marks[begin], [], known, reached * run.span, loss, drift)
        start = spans + 1
        spans += max(spans // 2 // SHORT_PART, 1)


def _note(run: Simulation, ties: Ties, leads: list[float]) -> None:
    """Add the lead at the end of a span, if workers are tied, and let the next gap be a new one."""
    if ties.any:
        leads.append(ties.lead(run.world))
    forget_gap(run.world)


def _of_waves(run: Simulation, rel_ci: float, spans: int, progress: Progress | None) -> Pilot:
    """Run for so many spans, of which the last part is kept, because it takes tens to hundreds of
    rounds until workers come in waves; fewer if many keep a resource busy for long enough."""
    ties = ties_of(run.graph)
    leads = [0.0]
    parts = spans - max(spans // SHORT_PART, 2), spans - max(spans // SHORT_PART // 2, 1), spans
    full = FULL_ROUNDS // run.span
    early = full // 8, full // 2, full
    marks = {}
    for done in range(1, spans + 1):
        run.advance(done * run.span)
        if done in (*parts, *early):
            marks[done] = run.totals()
        _note(run, ties, leads)
        if progress is not None:
            progress(done, spans)
        if done == full and short_runs(run.graph):
            part = marks[done] - marks[early[0]]
            if abs(1.0 - busy(run.graph, part.progress, part.time)) <= RESOLUTION_OF_SHORT * rel_ci:
                parts = early
                break
    begin, middle, end = (marks[part] for part in parts)
    reached, loss = _lost(run, leads, parts[0])
    unseen = UNSEEN * max(1.0 - spans * run.span / SHOWN, 0.0) if parts != early else 0.0
    drift = _drift(run.graph, begin, middle, end)
    return Pilot(begin, [], parts[-1], reached * run.span, loss + unseen, drift)


def _lost(run: Simulation, leads: list[float], begin: int) -> tuple[int, float]:
    """Return after how many spans tied workers had drifted apart, by their leads at each, and which
    fraction of the rate may be lost if that was after ``begin``."""
    reached = settled_after(leads)
    longest = ties_of(run.graph).longest
    return reached, possible_loss(leads, longest) / run.span if reached > begin else 0.0


def _drift(graph: OpGraph, begin: Totals, middle: Totals, end: Totals) -> float:
    """Return how much higher the rate after ``middle`` is than the whole, relative to it."""
    rate = (end - begin).iterations_per_s(graph)
    return (end - middle).iterations_per_s(graph) / rate - 1.0 if math.isfinite(rate) else 0.0


def _affordable(run: Simulation) -> int:
    """Return the spans that take SETTLING_OPS operations as fast as groups have been so far; 0 if
    they are fewer than WORTHWHILE."""
    mean = float(column(run.world, "groups", "iterations").mean())
    iterations = run.span * max(mean / max(run.rounds, 1), 1.0)
    spans = int(SETTLING_OPS / (run.graph.n_turns * iterations))
    return spans if spans >= WORTHWHILE else 0


def _queues_settled(graph: OpGraph, marks: list[Totals]) -> bool:
    """Return whether staleness and the causes of waits are the same in both halves of a part of a
    run, of which these are totals at about equal distances; or whether no resource has a long
    queue."""
    kept = marks[-1] - marks[0]
    if kept.time > 0.0 and busy(graph, kept.progress, kept.time) < FULL:
        return True
    middle = marks[len(marks) // 2]
    halves = [middle - marks[0], marks[-1] - middle]
    early, late = (half.staleness for half in halves)
    if abs(late - early) > STALENESS_DRIFT * max(late, 1.0):
        return False
    waits = [half.waits_by_cause for half in halves]
    return bool(np.abs(waits[1] - waits[0]).max(initial=0.0) <= WAITS_DRIFT)
