"""Checks whether the engine can simulate an op graph."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.arrays import NONE
from perfmodel.base.errors import InputError
from perfmodel.graph.op_graph import LONGEST, MOST_HELD, MOST_PRIORITY, MOST_UNITS, OpGraph
from perfmodel.graph.rules import Activity


def check(graph: OpGraph) -> None:
    """Raise InputError if a graph cannot be simulated; it names the op or resource, and the
    value."""
    for values, label, most in (
        (graph.op_seconds, "seconds", LONGEST),
        (graph.op_bytes, "bytes", 1000 * LONGEST),
        (graph.op_latency_s, "latency", LONGEST),
        (graph.op_stagger_s, "stagger", LONGEST),
    ):
        if (op := _first(~((values >= 0.0) & (values <= most)))) is not None:
            text = f"{label} must be between 0 and {most:g}, got {values[op]:g}"
            raise InputError(f"op {graph.op_name(op)!r}: {text}")
    capacity = graph.link_capacity_bytes_per_s
    if (link := _first(~(np.isfinite(capacity) & (capacity > 0.0)))) is not None:
        text = f"capacity must be finite and positive, got {capacity[link]:g}"
        raise InputError(f"link {graph.link_name(link)!r}: {text}")
    for bad, text in (
        (graph.slot_capacity < 1, "at least 1"),
        (graph.slot_capacity > MOST_UNITS, f"at most {MOST_UNITS}"),
    ):
        if (slot := _first(bad)) is not None:
            raise InputError(f"slot {graph.slot_name(slot)!r}: capacity must be {text}")
    held = graph.slot_capacity[graph.hold_slots]
    if (hold := _first((graph.hold_units < 1) | (graph.hold_units > held))) is not None:
        op = int(np.searchsorted(graph.hold_start, hold, side="right")) - 1
        raise InputError(
            f"op {graph.op_name(op)!r}: needs {graph.hold_units[hold]} units of slot "
            f"{graph.slot_name(int(graph.hold_slots[hold]))!r}, which has {held[hold]}"
        )
    ruled = [rule.ops.ravel() for rule in graph.rules if isinstance(rule, Activity)]
    activities = np.bincount(np.concatenate([np.zeros(0, np.int64), *ruled]), minlength=1)
    for bad, text in (
        (
            np.abs(graph.op_priority.astype(np.int64)) > MOST_PRIORITY,
            f"priority must be from -{MOST_PRIORITY} to {MOST_PRIORITY}",
        ),
        (
            np.diff(graph.hold_start) > MOST_HELD,
            f"number of slots must be at most {MOST_HELD}",
        ),
        (
            (graph.op_stagger_s > 0.0) & (graph.op_group == NONE),
            "needs a group for its staggered start",
        ),
        (activities > 1, "its activity is given twice"),
    ):
        if (op := _first(bad)) is not None:
            raise InputError(f"op {graph.op_name(op)!r}: {text}")
    if (edge := _first(graph.edge_lag < 0)) is not None:
        raise InputError(f"edge from {graph.op_name(int(graph.edge_source[edge]))!r}: negative lag")
    if not (np.isfinite(graph.stream_cv) & (graph.stream_cv >= 0.0)).all():
        raise InputError("a coefficient of variation must be finite and not negative")


def _first(bad: NDArray[np.bool_]) -> int | None:
    """Return the first index at which a condition holds."""
    return int(np.argmax(bad)) if bad.any() else None
