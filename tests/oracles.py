"""What must hold for any op graph and its timeline; raises AssertionError where it does not.

Every oracle here has a canary in test_canaries.py.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from perfmodel.graph import Batch, Every, Mailbox, OpGraph, Quorum
from perfmodel.measures import Measures, Span

ROUNDING = 1e-9


def dependencies_hold(graph: OpGraph, spans: Sequence[Span]) -> None:
    """Nothing starts before everything it waits for has ended, its latency included."""
    at = {(span.op, span.iteration): span for span in spans}
    of_op: dict[int, list[Span]] = defaultdict(list)
    for span in spans:
        of_op[span.op].append(span)
    edges = zip(graph.edge_source, graph.edge_target, graph.edge_lag, strict=True)
    gates = {r.op for r in graph.rules if isinstance(r, Quorum | Every | Mailbox | Batch)}
    checked = 0
    for source, target, lag in edges:
        if source in gates or target in gates:  # who has rules of its own for what it waits for
            continue
        for span in of_op[int(target)]:
            before = at.get((int(source), span.iteration - int(lag)))
            if before is not None:
                checked += 1
                arrived = before.end_s + graph.op_latency_s[source]
                assert span.start_s >= arrived - ROUNDING * (1 + arrived), (
                    graph.op_name(int(target)),
                    graph.op_name(int(source)),
                    span,
                    before,
                )
    assert checked, "no dependency was checked"


def slots_hold(graph: OpGraph, spans: Sequence[Span]) -> None:
    """No slot is held for more units at once than it has."""
    by_slot: dict[int, list[tuple[float, int]]] = defaultdict(list)
    for span in spans:
        first = graph.hold_start[span.op]
        for k, slot in enumerate(graph.held(span.op).tolist()):
            if span.end_s > span.start_s:
                units = int(graph.hold_units[first + k])
                by_slot[slot] += [(span.start_s, units), (span.end_s, -units)]
    for slot, changes in by_slot.items():
        held = 0
        for _, change in sorted(changes):
            held += change
            assert held <= graph.slot_capacity[slot], graph.slot_name(slot)


def links_hold(graph: OpGraph, spans: Sequence[Span]) -> None:
    """Whatever moves entirely within any interval fits through each link in that time."""
    by_link: dict[int, list[tuple[float, float, float]]] = defaultdict(list)
    for s in spans:
        if graph.op_bytes[s.op] > 0:
            for link, units in zip(graph.path(s.op), graph.path_units(s.op), strict=True):
                load = float(graph.op_bytes[s.op]) * float(units)
                by_link[int(link)].append((s.end_s, s.start_s, load))
    for link, moved in by_link.items():
        ends, starts, sizes = np.array(sorted(moved)).T
        for begin in np.unique(starts):
            inside = starts >= begin
            total = np.cumsum(sizes[inside])
            room = graph.link_capacity_bytes_per_s[link] * (ends[inside] - begin)
            assert (total <= room * (1 + ROUNDING)).all(), graph.link_name(link)


def work_is_conserved(graph: OpGraph, spans: Sequence[Span]) -> None:
    """An op without bytes takes its seconds exactly; one with bytes no less than its path needs."""
    for span in spans:
        path = graph.path(span.op)
        took = span.end_s - span.start_s
        least = graph.op_seconds[span.op]
        if len(path) and graph.op_bytes[span.op] > 0:
            fastest = min(
                graph.link_capacity_bytes_per_s[path].min(), graph.rate_cap_bytes_per_s(span.op)
            )
            least += graph.op_bytes[span.op] / fastest
            assert took >= least - ROUNDING * (1 + span.end_s), graph.op_name(span.op)
        else:
            assert abs(took - least) <= ROUNDING * (1 + span.end_s), graph.op_name(span.op)


def busy_and_idle_fill_the_time(measures: Measures) -> None:
    """For every group: busy time and waits by cause add up to the elapsed time."""
    total = measures.busy_fraction + measures.wait_fraction.sum(axis=1)
    assert np.all(measures.busy_fraction >= 0.0)
    assert np.all(measures.wait_fraction >= -ROUNDING)
    np.testing.assert_allclose(total, 1.0, rtol=0, atol=ROUNDING)


def equal(simulated: float, expected: float, tolerance: float = 1e-9) -> None:
    """Two routes to one number agree to rounding."""
    assert abs(simulated - expected) <= tolerance * abs(expected), (simulated, expected)
