"""What a simulation hands back: measures of its settled part, and spans of a timeline."""

from __future__ import annotations

import msgspec

from perfmodel.graph import Floats


class Span(msgspec.Struct, frozen=True):
    """One instance of an op in a timeline: when it was ready, began and ended (s)."""

    op: int
    iteration: int
    ready_s: float
    start_s: float
    end_s: float


class Measures(msgspec.Struct, frozen=True, eq=False, kw_only=True):
    """What a run of the graph measured after its warm-up.

    ``iterations_per_s``, ``busy_fraction`` (groups,); ``wait_fraction`` (groups, causes);
    ``link_utilisation`` (links,); ``slot_utilisation`` (slots,); ``probe_seconds``,
    ``probe_count`` (probes,); ``staleness`` {group: {staleness: count}};
    ``critical_s``, ``critical_count`` (ops,) seconds per iteration that each op is on the critical
    chain, and how often;
    ``updates_per_s`` rises per second of a counter, averaged over counters (0 without any);
    ``clock_gap_mean``, ``clock_gap_max`` iterations between the fastest and slowest group.
    """

    periodic: bool
    rounds: int
    elapsed_s: float
    iterations_per_s: Floats
    busy_fraction: Floats
    wait_fraction: Floats
    link_utilisation: Floats
    slot_utilisation: Floats
    probe_seconds: Floats
    probe_count: Floats
    staleness: dict[int, dict[int, int]]
    critical_s: Floats
    critical_count: Floats
    updates_per_s: float
    clock_gap_mean: float
    clock_gap_max: int
