"""The pilot of a simulation: finds when it has settled, and how much of it to drop."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import msgspec

from perfmodel.engine.leads import possible_loss, settled_after, ties_of
from perfmodel.engine.measures import Totals
from perfmodel.engine.progress import saturated, short_runs
from perfmodel.engine.run import Clock, Simulation
from perfmodel.engine.state import forget_gap
from perfmodel.engine.steady import warmup_rounds, warmups

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

EVIDENT = 3
"""Spans after which the throughput of workers that keep a resource busy all the time is known, and
their staleness too: in the second, it is still 3 to 13 % too high (decision 0086)."""

TOLERATED_DRIFT = 0.5
"""Tolerated drift of the rate in a short pilot, as a fraction of ``rel_ci``; the interval covers
it."""

Progress = Callable[[int, int], None]


class Pilot(msgspec.Struct, frozen=True):
    """The first part of a simulation: how much of it to drop, and what it tells about the rest.

    ``begin``: totals after the warm-up. ``clocks``: the clock at each span since. ``spans``: total
    number of spans. ``transient_rounds``: rounds until tied workers had drifted as far apart as
    they do in the long run. ``loss``: fraction of the rate that may be lost once they have drifted
    that far; 0 if they already have. ``drift``: of a short pilot, how much higher the rate of the
    second half of what was not dropped is than that of all of it, relative to it.
    """

    begin: Totals
    clocks: list[Clock]
    spans: int
    transient_rounds: float
    loss: float
    drift: float = 0.0


def warm_up(run: Simulation, rel_ci: float, least_spans: int, progress: Progress | None) -> Pilot:
    """Run until the warm-up can be identified.

    Candidates are powers of two up to two thirds of the pilot (steady.warmup_rounds). The pilot
    continues while tied workers still drift apart and the possible rate loss from this
    (leads.possible_loss) exceeds a fraction of ``rel_ci``. A lag beyond MOST_TRANSIENT_ROUNDS is
    not waited for.
    """
    if short_runs(run.graph):
        return _short(run, rel_ci, least_spans, progress)
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


def _short(run: Simulation, rel_ci: float, least_spans: int, progress: Progress | None) -> Pilot:
    """Run until the rate has settled, with many workers: it drifts less than a part of ``rel_ci``
    within the last spans, which are kept, and no more than a part may be lost once tied workers
    have drifted apart. With many workers the growth of their lead shows within a few spans.

    If workers are not tied and keep a resource busy for sure, the answer is known once it has been
    busy for the last of EVIDENT spans, in which each worker has ended an iteration."""
    ties = ties_of(run.graph)
    leads = [0.0]
    most = max(MOST_PILOT_ROUNDS // run.span, least_spans)
    spans = max(SHORT_PILOT + 2 * ties.any, least_spans)
    marks = [run.totals()]
    clocks = [_clock(run, marks[-1])]
    while True:
        for done in range(len(clocks), spans + 1):
            run.advance(done * run.span)
            marks.append(run.totals())
            clocks.append(_clock(run, marks[-1]))
            if ties.any:
                leads.append(ties.lead(run.world))
            forget_gap(run.world)
            if progress is not None:
                progress(done, spans)
            if done == max(EVIDENT, least_spans) and not ties.any:
                last = marks[-1] - marks[-2]
                if saturated(run.graph, last, rel_ci) and last.iterations.all():
                    return Pilot(marks[-2], clocks[-2:], done, 0.0, 0.0)
        begin = spans - max(spans // SHORT_PART, 2)
        rates = [(b[0] - a[0]) / max(b[1] - a[1], 1e-300) for a, b in pairwise(clocks[begin:])]
        late = rates[len(rates) // 2 :]
        drift = sum(late) / len(late) * len(rates) / max(sum(rates), 1e-300) - 1.0
        reached = settled_after(leads)
        loss = possible_loss(leads, ties.longest) / run.span if reached > begin else 0.0
        settled = abs(drift) <= TOLERATED_DRIFT * rel_ci and loss <= TOLERATED_LOSS * rel_ci
        if settled or spans >= most:
            return Pilot(marks[begin], clocks[begin:], spans, reached * run.span, loss, drift)
        spans += max(spans // 2 // SHORT_PART, 1)


def _clock(run: Simulation, sums: Totals) -> Clock:
    """Return the clock at which the totals of a short run were taken."""
    return float((sums.progress * run.graph.group_count).sum()), sums.time
