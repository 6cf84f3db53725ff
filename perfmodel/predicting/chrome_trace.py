"""A timeline as events of a Chrome trace."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from perfmodel.base.arrays import NONE
from perfmodel.engine.measures import Span
from perfmodel.graph.op_graph import OpGraph, block_of


def chrome_trace(graph: OpGraph, spans: Sequence[Span]) -> list[dict[str, Any]]:
    """Complete events ("X"), a process per node and a thread per resource, times in microseconds.

    ``spans`` are ordered by start. A resource with several concurrent ops gets as many
    threads, because overlapping events on one thread are shown as nested. Process 0 is the network
    as a whole, process i + 1 is node i. Events name the links that their op uses. The format is
    "Trace Event Format" (Google, 2016).
    """
    events: list[dict[str, Any]] = []
    names: dict[tuple[int, int], str] = {}
    free_at: dict[tuple[int, str], list[tuple[int, float]]] = defaultdict(list)
    for span in spans:
        place, name = _where(graph, span.op)
        lanes = free_at[place, name]
        lane = next((k for k, (_, end) in enumerate(lanes) if end <= span.start_s), len(lanes))
        thread = lanes[lane][0] if lane < len(lanes) else len(names)
        lanes[lane : lane + 1] = [(thread, span.end_s)]
        process = place + 1
        names[process, thread] = name if lane == 0 else f"{name} ({lane + 1})"
        events.append(
            {
                "name": graph.op_name(span.op),
                "cat": block_of(graph.ops, span.op).label,
                "ph": "X",
                "ts": span.start_s * 1e6,
                "dur": (span.end_s - span.start_s) * 1e6,
                "pid": process,
                "tid": thread,
                "args": {
                    "iteration": span.iteration,
                    "queued_us": (span.start_s - span.ready_s) * 1e6,
                    "bytes": float(graph.op_bytes[span.op]),
                    "links": [graph.link_name(int(link)) for link in graph.path(span.op)],
                },
            }
        )
    for process in sorted({process for process, _ in names}):
        name = f"node {process - 1}" if process else "network"
        events.append({"name": "process_name", "ph": "M", "pid": process, "args": {"name": name}})
    for (process, thread), name in names.items():
        events.append(
            {
                "name": "thread_name",
                "ph": "M",
                "pid": process,
                "tid": thread,
                "args": {"name": name},
            }
        )
    return events


def _where(graph: OpGraph, op: int) -> tuple[int, str]:
    """Node (NONE for the network as a whole) and resource that an op is drawn on."""
    slots, path = graph.held(op), graph.path(op)
    if len(slots):
        return int(graph.slot_place[slots[0]]), graph.slot_name(int(slots[0]))
    if len(path):
        return int(graph.link_place[path[0]]), graph.link_name(int(path[0]))
    return NONE, "synchronisation"
