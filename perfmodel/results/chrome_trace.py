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
Perfetto colours a slice by its name, so the name is the kind of operation, and the arguments say
which operation it is. Other viewers read the colour from ``cname``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from perfmodel.results.timeline import Operation, Timeline

COLOURS = {
    "forward": "thread_state_running",
    "backward": "rail_animation",
    "update": "terrible",
    "optimizer": "terrible",
    "apply": "terrible",
    "iteration": "grey",
}
"""Reserved colour names of the format, by kind of operation."""

TRANSFER, OTHER = "thread_state_iowait", "generic_work"
"""Colours of operations that move bytes, and of all others."""

RANKS = {"iterations": 0, "device": 1, "cores": 3, "slot": 2, "link": 3, "none": 4}
"""Order of threads by kind of resource."""

Event = dict[str, Any]


class Track(NamedTuple):
    """The process and thread that a slice is drawn on."""

    process: int
    thread: int


def chrome_trace(timeline: Timeline) -> dict[str, Any]:
    """Return the timeline as a JSON object: ``traceEvents``, and ``otherData`` describing it.

    A resource with several concurrent operations gets as many threads, because viewers draw
    overlapping slices on one thread as nested.
    """
    tracks = _Tracks()
    iterations = list(_iterations(timeline, tracks))
    slices = _operations(timeline.operations, tracks)
    tracks.number([*iterations, *slices], timeline)
    counters = [
        {"name": c.name, "ph": "C", "ts": _us(ns(at_s)), "pid": _process(c.node)}
        | {"args": {c.measure: value}}
        for c in timeline.counters
        for at_s, value in zip(c.at_s, c.values, strict=True)
    ]
    timed = [*iterations, *slices, *_arrows(timeline.operations, slices), *counters]
    # at equal times, slices come before the arrows that begin or end in them, and zero-length
    # slices before others, which would otherwise enclose them
    timed.sort(key=lambda e: (e["ts"], e["ph"] != "X", e.get("dur", 0.0)))
    return {
        "traceEvents": [*tracks.metadata(timeline), *timed],
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


class _Tracks:
    """Processes and threads, created on demand."""

    def __init__(self) -> None:
        self._lanes: dict[tuple[int, str], list[tuple[int, int]]] = defaultdict(list)
        self._names: dict[Track, str] = {}
        self._order: dict[Track, tuple[int, int]] = {}

    def place(
        self, node: int | None, name: str, order: tuple[int, int], begin_ns: int, end_ns: int
    ) -> Track:
        """Return a thread for this resource of a node that is free from ``begin_ns`` on."""
        process = _process(node)
        lanes = self._lanes[process, name]
        lane = next((k for k, (_, free_ns) in enumerate(lanes) if free_ns <= begin_ns), len(lanes))
        thread = lanes[lane][0] if lane < len(lanes) else len(self._names)
        lanes[lane : lane + 1] = [(thread, end_ns)]
        track = Track(process, thread)
        if track not in self._names:
            self._names[track] = name if lane == 0 else f"{name} ({lane + 1})"
            self._order[track] = order
        return track

    def number(self, slices: Sequence[Event], timeline: Timeline) -> None:
        """Number the threads in order, starting above all process numbers."""
        ranks = sorted(self._names, key=lambda track: (self._order[track], track.thread))
        begin = max(map(_process, timeline.nodes), default=0) + 1
        final = {old: Track(old.process, begin + rank) for rank, old in enumerate(ranks)}
        for event in slices:
            event["tid"] = final[Track(event["pid"], event["tid"])].thread
        self._names = {final[old]: self._names[old] for old in ranks}

    def metadata(self, timeline: Timeline) -> Iterator[Event]:
        """Yield the names and the order of all processes and threads."""
        for node, name in sorted(timeline.nodes.items(), key=lambda item: _process(item[0])):
            process = _process(node)
            yield _metadata("process_name", process, name=name)
            yield _metadata("process_sort_index", process, sort_index=process)
            yield _metadata("process_labels", process, labels=timeline.text)
        for track, name in self._names.items():
            yield _metadata("thread_name", *track, name=name)
            yield _metadata("thread_sort_index", *track, sort_index=track.thread)


def _process(node: int | None) -> int:
    """Return the process number of a node, or of the network as a whole."""
    return 1 if node is None else node + 2


def _metadata(what: str, process: int, thread: int | None = None, **values: Any) -> Event:
    where = {"pid": process} if thread is None else {"pid": process, "tid": thread}
    return {"name": what, "ph": "M", **where, "args": values}


def ns(seconds: float) -> int:
    """Return a time in whole nanoseconds.

    >>> ns(1.5e-6)
    1500
    """
    return round(seconds * 1e9)


def _us(nanoseconds: int) -> float:
    return nanoseconds / 1e3


def _slice(
    name: str, track: Track, begin_ns: int, end_ns: int, colour: str, args: dict[str, Any]
) -> Event:
    return {
        "name": name,
        "cat": name,
        "ph": "X",
        "ts": _us(begin_ns),
        "dur": _us(end_ns - begin_ns),
        "pid": track.process,
        "tid": track.thread,
        "cname": colour,
        "args": args,
    }


def _iterations(timeline: Timeline, tracks: _Tracks) -> Iterator[Event]:
    """Yield the iterations of each worker."""
    for each in timeline.iterations:
        span = ns(each.begin_s), ns(each.end_s)
        order = RANKS["iterations"], each.worker
        track = tracks.place(each.node, f"iterations of worker {each.worker}", order, *span)
        args = {"iteration": each.number}
        made = _slice("iteration", track, *span, COLOURS["iteration"], args)
        yield made | {"name": f"iteration {each.number}"}


def _operations(operations: Sequence[Operation], tracks: _Tracks) -> list[Event]:
    """Return a slice for each operation."""
    slices: list[Event] = [{}] * len(operations)
    spans = [(ns(each.start_s), ns(each.end_s)) for each in operations]
    for index in sorted(range(len(operations)), key=lambda index: spans[index]):
        each, resource = operations[index], operations[index].resource
        args = {
            "operation": each.name,
            "iteration": each.iteration,
            "queued_us": (each.start_s - each.ready_s) * 1e6,
            "bytes": each.bytes,
            "links": [link.name for link in each.links],
        }
        colour = COLOURS.get(each.kind, TRANSFER if each.bytes > 0.0 else OTHER)
        order = RANKS[resource.kind], resource.number
        track = tracks.place(resource.node, resource.name, order, *spans[index])
        slices[index] = _slice(each.kind, track, *spans[index], colour, args)
    return slices


def _arrows(operations: Sequence[Operation], slices: Sequence[Event]) -> Iterator[Event]:
    """Yield an arrow to each operation from the one on another thread that it waited for."""
    number = 0
    for each, target in zip(operations, slices, strict=True):
        if each.waited_for is None:
            continue
        source = slices[each.waited_for]
        if (source["pid"], source["tid"]) == (target["pid"], target["tid"]):
            continue
        number += 1
        # the slice's last nanosecond: it excludes its end
        inside_ns = ns(operations[each.waited_for].end_s) - 1
        for phase, event, at_us in (("s", source, _us(inside_ns)), ("f", target, target["ts"])):
            arrow = {"name": "waited for", "cat": "waited for", "ph": phase, "id": number}
            yield arrow | {"bp": "e", "ts": at_us, "pid": event["pid"], "tid": event["tid"]}
