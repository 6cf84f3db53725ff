"""Exports a timeline as a Chrome trace, the JSON that Perfetto opens.

The format is the "Trace Event Format" (Google, 2016), as far as Perfetto reads it:

- metadata (``M``): names and order of processes and threads;
- complete events (``X``): an operation on a resource, or an iteration of a worker;
- flow events (``s``, ``f``): an arrow from an operation to the one that waited for it;
- counters (``C``): utilisation of a link, queue length of a resource, staleness of updates.

Process 1 is the network as a whole, and process i + 2 is node i. Thread numbers start above the
process numbers: Perfetto treats process 0 as the idle process, and a thread with the same number as
its process as that process's main thread. Times are in microseconds, rounded to whole nanoseconds
as Perfetto does; rounding starts and durations separately would make adjacent slices overlap.
Perfetto colours a slice by its name without numbers, so the name is the kind of operation, with the
number of the micro-batch in a pipeline, and the arguments say which operation it is. Other viewers
read the colour from ``cname``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from perfmodel.results.timeline import Operation, Resource, Timeline

COLOURS = {
    "forward": "thread_state_running",
    "backward": "rail_animation",
    "update": "terrible",
    "optimizer": "terrible",
    "apply": "terrible",
    "update on host": "terrible",
    "iteration": "grey",
}
"""Reserved colour names of the format, by kind of operation."""

TRANSFER, OTHER = "thread_state_iowait", "generic_work"
"""Colours of operations that move bytes, and of all others."""

RANKS = {"iterations": 0, "device": 1, "slot": 2, "cores": 3, "link": 3, "none": 4}
"""Order of threads by kind of resource."""

Event = dict[str, object]
Thread = tuple[Resource, int]
"""A resource and a lane: it has as many threads as it runs operations at the same time."""


def chrome_trace(timeline: Timeline) -> dict[str, object]:
    """Return the timeline as a JSON object: ``traceEvents``, and ``otherData`` describing it.

    A resource with several concurrent operations gets as many threads, because viewers draw
    overlapping slices on one thread as nested.
    """
    operations = [*timeline.operations, *timeline.iterations]
    threads = _threads(operations)
    ordered = sorted(set(threads), key=lambda t: (RANKS[t[0].kind], t[0].number, t[1]))
    begin = max(map(_process, timeline.nodes), default=0) + 1
    numbers = {thread: begin + place for place, thread in enumerate(ordered)}
    slices = [_slice(op, numbers[thread]) for op, thread in zip(operations, threads, strict=True)]
    counters = [
        {"name": c.name, "ph": "C", "ts": ns(at_s) / 1e3, "pid": _process(c.node)}
        | {"args": {c.measure: value}}
        for c in timeline.counters
        for at_s, value in zip(c.at_s, c.values, strict=True)
    ]
    timed = [
        *slices[len(timeline.operations) :],
        *slices[: len(timeline.operations)],
        *_arrows(timeline.operations, slices),
        *counters,
    ]
    # at equal times, slices come before the arrows that begin or end in them, and zero-length
    # slices before others, which would otherwise enclose them
    timed.sort(key=lambda e: (e["ts"], e["ph"] != "X", e.get("dur", 0.0)))
    return {
        "traceEvents": [*_metadata(timeline, numbers), *timed],
        "displayTimeUnit": "ms",
        "otherData": {
            "iterations": timeline.text,
            "first_iteration": timeline.first,
            "last_iteration": timeline.last,
            "steady_state_from": timeline.settled,
            "begin_s": timeline.begin_s,
            "end_s": timeline.end_s,
        },
    }


def ns(seconds: float) -> int:
    """Return a time in whole nanoseconds.

    >>> ns(1.5e-6)
    1500
    """
    return round(seconds * 1e9)


def _threads(operations: Sequence[Operation]) -> list[Thread]:
    """Return a thread for each operation: the first of its resource that is free by then."""
    free_ns: dict[Resource, list[int]] = defaultdict(list)
    threads: dict[int, Thread] = {}
    spans = [(ns(op.start_s), ns(op.end_s)) for op in operations]
    for index in sorted(range(len(operations)), key=lambda index: spans[index]):
        resource, (begin, end) = operations[index].resource, spans[index]
        lanes = free_ns[resource]
        lane = next((k for k, free in enumerate(lanes) if free <= begin), len(lanes))
        lanes[lane : lane + 1] = [end]
        threads[index] = resource, lane
    return [threads[index] for index in range(len(operations))]


def _process(node: int | None) -> int:
    """Return the process number of a node, or of the network as a whole."""
    return 1 if node is None else node + 2


def _metadata(timeline: Timeline, numbers: dict[Thread, int]) -> Iterator[Event]:
    """Yield the names and the order of all processes and threads."""
    for process, name in sorted((_process(node), name) for node, name in timeline.nodes.items()):
        for field, value in (
            ("name", {"name": name}),
            ("sort_index", {"sort_index": process}),
            ("labels", {"labels": timeline.text}),
        ):
            yield {"name": f"process_{field}", "ph": "M", "pid": process, "args": value}
    for (resource, lane), number in numbers.items():
        where = {"ph": "M", "pid": _process(resource.node), "tid": number}
        name = resource.name if lane == 0 else f"{resource.name} ({lane + 1})"
        yield {"name": "thread_name", **where, "args": {"name": name}}
        yield {"name": "thread_sort_index", **where, "args": {"sort_index": number}}


def _slice(op: Operation, thread: int) -> Event:
    """Return an operation, or an iteration, as an event."""
    args: dict[str, object] = {"iteration": op.iteration}
    is_iteration = op.resource.kind == "iterations"
    if not is_iteration:
        args |= {"operation": op.name, "queued_us": (op.start_s - op.ready_s) * 1e6}
        args |= {"bytes": op.bytes, "links": [link.name for link in op.links]}
    begin_ns, end_ns = ns(op.start_s), ns(op.end_s)
    return {
        "name": op.name if is_iteration else f"{op.kind} {op.mark}".strip(),
        "cat": op.kind,
        "ph": "X",
        "ts": begin_ns / 1e3,
        "dur": (end_ns - begin_ns) / 1e3,
        "pid": _process(op.resource.node),
        "tid": thread,
        "cname": COLOURS.get(op.kind, TRANSFER if op.bytes > 0.0 else OTHER),
        "args": args,
    }


def _arrows(operations: Sequence[Operation], slices: Sequence[Event]) -> Iterator[Event]:
    """Yield an arrow to each operation from the one on another thread that it waited for."""
    number = 0
    for op, target in zip(operations, slices, strict=False):
        source = target if op.waited_for is None else slices[op.waited_for]
        if op.waited_for is None or source["tid"] == target["tid"]:
            continue
        number += 1
        # the slice's last nanosecond: it excludes its end
        inside_us = (ns(operations[op.waited_for].end_s) - 1) / 1e3
        for phase, event, at_us in (("s", source, inside_us), ("f", target, target["ts"])):
            arrow = {"name": "waited for", "cat": "waited for", "ph": phase, "id": number}
            yield arrow | {"bp": "e", "ts": at_us, "pid": event["pid"], "tid": event["tid"]}
