"""Results of a simulation: measures of its steady state, and the spans of a timeline."""

from __future__ import annotations

import math
from collections.abc import Callable

import msgspec
import numpy as np

from perfmodel.base.arrays import Floats, Ids
from perfmodel.graph.op_graph import CAUSES, OpGraph
from perfmodel.graph.work import computation_s


class OpSpan(msgspec.Struct, frozen=True):
    """One instance of an op in a timeline: when it was ready, started and ended (s)."""

    op: int
    iteration: int
    ready_s: float
    start_s: float
    end_s: float


class CriticalOp(msgspec.Struct, frozen=True):
    """An op on the critical cycle: its id, and the time it adds to the cycle (s).

    ``seconds`` lasts from its start to the start of the next op on the cycle. ``waited`` tells that
    it started when a slot became free, not when its last input arrived. ``count`` is the number of
    its instances that ran one after the other in this time: above 1 for batches.
    """

    op: int
    seconds: float
    waited: bool
    count: int = 1


class RunSpread(msgspec.Struct, frozen=True):
    """Standard deviations, over runs of one job, of the logarithms of ``throughput`` and of mean
    ``staleness``; 0 if runs do not differ."""

    throughput: float = 0.0
    staleness: float = 0.0


NO_SPREAD = RunSpread()
"""The spread of runs that do not differ."""


class Measures(msgspec.Struct, frozen=True, eq=False, kw_only=True):
    """Measures of a simulation after its warm-up.

    ``iterations_per_s``, ``busy_fraction`` (groups,); ``wait_fraction`` (groups, causes);
    ``link_utilisation`` (links,); ``slot_utilisation`` (slots,); ``probe_seconds``,
    ``probe_count`` (probes,);
    ``staleness`` (values,): number of updates by staleness; ``staleness_mean`` (groups,): NaN
    without any update;
    ``critical_s``, ``critical_count`` (ops,): seconds per iteration that each op is on the critical
    chain, and how often;
    ``critical_cycle``: the ops that make up the period, in order; empty for a random graph;
    ``updates_per_s``: rises per second of a counter, averaged over counters (0 without any);
    ``clock_gap_mean``, ``clock_gap_max``: iterations between the fastest and slowest group;
    ``ci_fraction``: half-width of the 95 % confidence interval of the throughput, relative to it
    (0 for a periodic run);
    ``run_spread``: spread over runs of this many iterations (none if the long run was simulated);
    ``transient_rounds``: rounds until tied workers have drifted as far apart as they do in the long
    run (0 for a periodic run, where it is unknown);
    ``rounds``: iterations of the slowest group; ``runs``: number of simulations.
    """

    periodic: bool
    runs: int
    rounds: int
    elapsed_s: float
    ci_fraction: float
    run_spread: RunSpread
    transient_rounds: float
    iterations_per_s: Floats
    busy_fraction: Floats
    wait_fraction: Floats
    link_utilisation: Floats
    slot_utilisation: Floats
    probe_seconds: Floats
    probe_count: Floats
    staleness: Ids
    staleness_mean: Floats
    critical_s: Floats
    critical_count: Floats
    critical_cycle: tuple[CriticalOp, ...]
    updates_per_s: float
    clock_gap_mean: float
    clock_gap_max: int


ADJUSTMENTS = 8
"""How often the waits of groups are made to agree with those of all; none may be more than all of
the time."""


class Totals(msgspec.Struct, frozen=True, eq=False, kw_only=True):
    """Counters and sums since the start of a simulation; the difference of two covers an
    interval. ``progress``: iterations of each group with the begun part of the last one, (groups,);
    empty unless runs are short."""

    time: float
    rounds: int
    iterations: Ids
    progress: Floats
    marked_at: Floats
    marked_busy: Floats
    marked_waits: Floats
    slot_busy: Floats
    moved: Floats
    probe_seconds: Floats
    probe_count: Floats
    histogram: Ids
    stale_sum: Ids
    stale_count: Ids
    critical: Floats
    critical_count: Floats
    walks: int
    raised: int
    gap_seconds: float
    gap_max: int

    def __sub__(self, earlier: Totals) -> Totals:
        return self._with(earlier, lambda a, b: a - b, self.gap_max)

    def __add__(self, other: Totals) -> Totals:
        return self._with(other, lambda a, b: a + b, max(self.gap_max, other.gap_max))

    def _with(
        self, other: Totals, combine: Callable[[Floats, Floats], Floats], gap_max: int
    ) -> Totals:
        fields = {
            name: combine(getattr(self, name), getattr(other, name))
            for name in self.__struct_fields__
        }
        return msgspec.structs.replace(self, **{**fields, "gap_max": gap_max})

    def iterations_per_s(self, graph: OpGraph) -> float:
        """Return the iterations per second of all workers together."""
        if not self.time > 0.0:
            return float("inf")
        done = self.progress if len(self.progress) else self.iterations
        return float((done * graph.group_count).sum()) / self.time

    def with_path_of(self, other: Totals) -> Totals:
        """Return the totals with the critical paths of another interval too."""
        return msgspec.structs.replace(
            self,
            critical=self.critical + other.critical,
            critical_count=self.critical_count + other.critical_count,
            walks=self.walks + other.walks,
        )

    def without_path(self) -> Totals:
        """Return the totals without critical paths."""
        return msgspec.structs.replace(
            self, critical=0.0 * self.critical, critical_count=0.0 * self.critical_count, walks=0
        )

    @property
    def staleness(self) -> float:
        """Mean staleness; NaN without any update."""
        seen = self.histogram.sum()
        mean = float(self.histogram @ np.arange(len(self.histogram)))
        return mean / float(seen) if seen else math.nan

    @property
    def waits_by_cause(self) -> Floats:
        """Part of the groups' time that they waited for each cause, (causes,)."""
        waits: Floats = self.marked_waits.reshape(-1, len(CAUSES)).sum(axis=0)
        waits /= max(float(self.marked_at.sum()), 1e-300)
        return waits


def measures(
    graph: OpGraph,
    t: Totals,
    *,
    periodic: bool = False,
    ci_fraction: float = 0.0,
    runs: int = 1,
    run_spread: RunSpread = NO_SPREAD,
    transient_rounds: float = 0.0,
    cycle: tuple[CriticalOp, ...] = (),
) -> Measures:
    """Compute the measures of an interval from its totals."""
    causes = len(CAUSES)
    span = np.full(graph.n_groups, t.time) if periodic else t.marked_at
    seconds = np.where(span > 0.0, span, 1.0)
    took_time = span > 0.0
    rates = np.where(took_time, t.iterations / seconds, np.inf)
    busy = np.where(took_time, t.marked_busy / seconds, 1.0)
    waits = np.where(took_time[:, None], t.marked_waits.reshape(-1, causes) / seconds[:, None], 0.0)
    if len(t.progress) and t.time > 0.0:
        rates, busy, waits = _short(graph, t, waits)
    per_second = 1.0 / t.time if t.time > 0.0 else 0.0
    load = np.zeros(len(graph.link_capacity_bytes_per_s))
    by_link = np.repeat(t.moved, np.diff(graph.route_start)) * graph.route_units
    np.add.at(load, graph.route_links, by_link)
    walks = max(t.walks, 1)
    n_counters = len(graph.counter_every)
    seen = np.flatnonzero(t.histogram)
    stale = np.where(t.stale_count > 0, t.stale_sum / np.maximum(t.stale_count, 1), np.nan)
    return Measures(
        periodic=periodic,
        runs=runs,
        rounds=t.rounds,
        elapsed_s=t.time,
        ci_fraction=ci_fraction,
        run_spread=run_spread,
        transient_rounds=transient_rounds,
        iterations_per_s=rates,
        busy_fraction=busy,
        wait_fraction=waits,
        link_utilisation=load * per_second / graph.link_capacity_bytes_per_s,
        slot_utilisation=t.slot_busy * per_second / graph.slot_capacity,
        probe_seconds=t.probe_seconds,
        probe_count=t.probe_count,
        staleness=t.histogram[: seen[-1] + 1] if len(seen) else t.histogram[:0],
        staleness_mean=stale,
        critical_s=t.critical / walks,
        critical_count=t.critical_count / walks,
        critical_cycle=cycle,
        updates_per_s=t.raised / max(n_counters, 1) * per_second,
        clock_gap_mean=t.gap_seconds * per_second,
        clock_gap_max=t.gap_max,
    )


def _short(graph: OpGraph, t: Totals, waits: Floats) -> tuple[Floats, Floats, Floats]:
    """Return rates, busy fractions and waits of groups from short runs.

    A group has ended two or three iterations, so the time that these took may differ from the mean.
    The computation of an iteration is known, and what it leaves of the mean rate is idle: groups
    have their parts of it, and causes theirs, in proportion to the waits that were seen.
    """
    rates, count = t.progress / t.time, graph.group_count
    computing_s = computation_s(graph)
    seen_s = t.marked_busy / np.maximum(t.iterations, 1)
    computing = np.where(np.isnan(computing_s), seen_s, computing_s) * rates
    idle_of_all = max(1.0 - float(np.average(computing, weights=count)), 0.0)
    waited = waits.sum(axis=1)
    idle = waited
    for _ in range(ADJUSTMENTS):
        seen = float(np.average(idle, weights=count))
        idle = np.minimum(idle * (idle_of_all / max(seen, 1e-300)), 1.0)
    return rates, 1.0 - idle, waits * (idle / np.where(waited > 0.0, waited, 1.0))[:, None]
