"""Checks whether the engine can simulate an op graph."""

from __future__ import annotations

import numpy as np

from perfmodel.base.arrays import NONE
from perfmodel.base.errors import InputError
from perfmodel.graph.op_graph import LONGEST, MOST_HELD, MOST_PRIORITY, MOST_UNITS, OpGraph
from perfmodel.graph.rules import Activity


def check(graph: OpGraph) -> None:
    """Raise InputError if a graph cannot be simulated; it names the op or resource, and the
    value."""
    for column, label, most in (
        ("op_seconds", "seconds", LONGEST),
        ("op_bytes", "bytes", 1000 * LONGEST),
        ("op_latency_s", "latency", LONGEST),
        ("op_stagger_s", "stagger", LONGEST),
    ):
        values = getattr(graph, column)
        bad = ~((values >= 0.0) & (values <= most))
        if bad.any():
            op = int(np.argmax(bad))
            raise InputError(
                f"op {graph.op_name(op)!r}: {label} must be between 0 and {most:g}, "
                f"got {values[op]:g}"
            )
    bad = ~(np.isfinite(graph.link_capacity_bytes_per_s) & (graph.link_capacity_bytes_per_s > 0.0))
    if bad.any():
        link = int(np.argmax(bad))
        raise InputError(
            f"link {graph.link_name(link)!r}: capacity must be finite and positive, "
            f"got {graph.link_capacity_bytes_per_s[link]:g}"
        )
    if (graph.slot_capacity < 1).any():
        slot = int(np.argmin(graph.slot_capacity))
        raise InputError(f"slot {graph.slot_name(slot)!r}: capacity must be at least 1")
    held = graph.slot_capacity[graph.hold_slots]
    wrong = (graph.hold_units < 1) | (graph.hold_units > held)
    if wrong.any():
        hold = int(np.argmax(wrong))
        op = int(np.searchsorted(graph.hold_start, hold, side="right")) - 1
        raise InputError(
            f"op {graph.op_name(op)!r}: needs {graph.hold_units[hold]} units of slot "
            f"{graph.slot_name(int(graph.hold_slots[hold]))!r}, which has {held[hold]}"
        )
    for limit, values, most in (
        (
            f"priority must be from -{MOST_PRIORITY} to {MOST_PRIORITY}",
            np.abs(graph.op_priority.astype(np.int64)),
            MOST_PRIORITY,
        ),
        (f"number of slots must be at most {MOST_HELD}", np.diff(graph.hold_start), MOST_HELD),
    ):
        if len(values) and values.max() > most:
            op = int(np.argmax(values))
            raise InputError(f"op {graph.op_name(op)!r}: {limit}")
    if (graph.slot_capacity > MOST_UNITS).any():
        slot = int(np.argmax(graph.slot_capacity))
        raise InputError(f"slot {graph.slot_name(slot)!r}: capacity must be at most {MOST_UNITS}")
    if ((graph.op_stagger_s > 0.0) & (graph.op_group == NONE)).any():
        op = int(np.argmax((graph.op_stagger_s > 0.0) & (graph.op_group == NONE)))
        raise InputError(f"op {graph.op_name(op)!r}: needs a group for its staggered start")
    ruled = [rule.ops for rule in graph.rules if isinstance(rule, Activity)]
    if ruled:
        ops, count = np.unique(np.concatenate(ruled), return_counts=True)
        if count.max() > 1:
            op = int(ops[np.argmax(count)])
            raise InputError(f"op {graph.op_name(op)!r}: its activity is given twice")
    if (graph.edge_lag < 0).any():
        edge = int(np.argmin(graph.edge_lag))
        raise InputError(f"edge from {graph.op_name(int(graph.edge_source[edge]))!r}: negative lag")
    if not (np.isfinite(graph.stream_cv) & (graph.stream_cv >= 0.0)).all():
        raise InputError("a coefficient of variation must be finite and not negative")
