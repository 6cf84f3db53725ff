"""Export a window of a simulation as a Chrome trace, the JSON that Perfetto opens.

The format is the "Trace Event Format" (Google, 2016), as far as Perfetto reads it:

- metadata (``M``): names and order of processes and threads;
- complete events (``X``): an op on a resource, or an iteration of a worker;
- flow events (``s``, ``f``): an arrow from an op to the op that waited for it;
- counters (``C``): utilisation of a link, queue length of a resource, staleness of updates.

Process 1 is the network as a whole, and process i + 2 is node i. Thread numbers start above the
process numbers: Perfetto treats process 0 as the idle process, and a thread with the same number as
its process as that process's main thread. Times are in microseconds, rounded to whole nanoseconds
as Perfetto does; rounding starts and durations separately would make adjacent slices overlap.
Perfetto colours a slice by its name, so the name is the kind of op, and the arguments say which op
it is. Other viewers read the colour from ``cname``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from perfmodel.base.arrays import NONE
from perfmodel.engine.measures import Span
from perfmodel.engine.window import Window
from perfmodel.graph.op_graph import OpGraph, block_of
from perfmodel.graph.rules import Choice

COLOURS = {
    "forward": "thread_state_running",
    "backward": "rail_animation",
    "update": "terrible",
    "optimizer": "terrible",
    "apply": "terrible",
    "iteration": "grey",
}
"""Reserved colour names of the format, by kind of op."""

TRANSFER, OTHER = "thread_state_iowait", "generic_work"
"""Colours of ops that move bytes, and of all other ops."""

SMALLEST_CHANGE = 1e-6
"""Smallest change in link utilisation that is shown."""

SAME_TIME = 1e-9
"""Tolerance for rounding when an op's start is compared with the end of the op it waited for."""

Event = dict[str, Any]


class Track(NamedTuple):
    """The process and thread that a slice is drawn on."""

    process: int
    thread: int


Rank = tuple[int, int]
"""Order of threads: kind of resource, then its number."""


def chrome_trace(graph: OpGraph, window: Window) -> dict[str, Any]:
    """Return the window as a JSON object: ``traceEvents``, and ``otherData`` describing the window.

    A resource with several concurrent ops gets as many threads, because viewers draw overlapping
    slices on one thread as nested.
    """
    tracks = _Tracks(graph)
    slices = [*_iterations(graph, window, tracks), *_ops(graph, window.spans, tracks)]
    tracks.number(slices)
    drawn = {(e["op"], e["args"]["iteration"]): e for e in slices if "op" in e}
    timed = [
        *slices,
        *_arrows(graph, window.spans, drawn),
        *_link_use(graph, window),
        *_queues(graph, window),
        *_staleness(graph, window),
    ]
    # at equal times, slices come before the arrows that begin or end in them, and zero-length
    # slices before others, which would otherwise enclose them
    timed.sort(key=lambda e: (e["ts"], e["ph"] != "X", e.get("dur", 0.0)))
    for event in slices:
        event.pop("op", None)
    return {
        "traceEvents": [*tracks.metadata(window), *timed],
        "displayTimeUnit": "ms",
        "otherData": {
            "iterations": shown(window),
            "first_iteration": window.first,
            "last_iteration": window.last,
            "steady_state_from": window.settled,
            "begin_s": window.begin_s,
            "end_s": window.end_s,
        },
    }


def shown(window: Window) -> str:
    """Describe in words which iterations are shown."""
    state = "steady state" if window.steady else "not yet steady: steady state"
    iterations = f"iterations {window.first} to {window.last} of worker {window.slowest}"
    return f"{iterations} ({state} from {window.settled} on)"


class _Tracks:
    """Processes and threads, created on demand."""

    def __init__(self, graph: OpGraph) -> None:
        self._graph = graph
        self._lanes: dict[tuple[int, str], list[tuple[int, int]]] = defaultdict(list)
        self._names: dict[Track, str] = {}
        self._order: dict[Track, Rank] = {}

    def place(self, place: int, name: str, order: Rank, begin_ns: int, end_ns: int) -> Track:
        """Return a thread for this resource of a node that is free from ``begin_ns`` on."""
        lanes = self._lanes[place, name]
        lane = next((k for k, (_, free_ns) in enumerate(lanes) if free_ns <= begin_ns), len(lanes))
        thread = lanes[lane][0] if lane < len(lanes) else len(self._names)
        lanes[lane : lane + 1] = [(thread, end_ns)]
        track = Track(_process(place), thread)
        if track not in self._names:
            self._names[track] = name if lane == 0 else f"{name} ({lane + 1})"
            self._order[track] = order
        return track

    def number(self, slices: Sequence[Event]) -> None:
        """Number the threads in order, starting above all process numbers."""
        ranks = sorted(self._names, key=lambda track: (self._order[track], track.thread))
        begin = max(self._processes(), default=0) + 1
        final = {old: Track(old.process, begin + rank) for rank, old in enumerate(ranks)}
        for event in slices:
            event["tid"] = final[Track(event["pid"], event["tid"])].thread
        self._names = {final[old]: self._names[old] for old in ranks}

    def metadata(self, window: Window) -> Iterator[Event]:
        """Yield the names and the order of all processes and threads."""
        members = _members(self._graph)
        for process in self._processes():
            place = process - _process(0)
            name = "network" if place == NONE else f"node {place}{members[place]}"
            yield _metadata("process_name", process, name=name)
            yield _metadata("process_sort_index", process, sort_index=process)
            yield _metadata("process_labels", process, labels=shown(window))
        for track, name in self._names.items():
            yield _metadata("thread_name", *track, name=name)
            yield _metadata("thread_sort_index", *track, sort_index=track.thread)

    def _processes(self) -> list[int]:
        found = {track.process for track in self._names}
        return sorted(found | {_process(int(place)) for place in self._graph.link_place})


def _process(place: int) -> int:
    """Return the process number of a node, or of the network as a whole (NONE)."""
    return place + 2


def _metadata(what: str, process: int, thread: int | None = None, **values: Any) -> Event:
    where = {"pid": process} if thread is None else {"pid": process, "tid": thread}
    return {"name": what, "ph": "M", **where, "args": values}


def _members(graph: OpGraph) -> defaultdict[int, str]:
    """Return for each node the workers and servers on it, such as `` (worker 0, server 1)``."""
    found: dict[int, list[str]] = defaultdict(list)
    for block in graph.slots:
        if [axis for axis, _ in block.axes] in (["worker"], ["server"]):
            for slot in range(block.first, block.first + block.size):
                name = block.name(slot).removeprefix(block.label).strip()
                if name not in found[int(graph.slot_place[slot])]:
                    found[int(graph.slot_place[slot])].append(name)
    named = {place: f" ({', '.join(names)})" for place, names in found.items()}
    return defaultdict(str, named)


def _ns(seconds: float) -> int:
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


def _iterations(graph: OpGraph, window: Window, tracks: _Tracks) -> Iterator[Event]:
    """Yield the iterations of each worker that overlap the window."""
    ends = {(mark.op, mark.iteration): mark.end_s for mark in window.marks}
    groups = zip(graph.group_mark.tolist(), graph.group_device.tolist(), strict=True)
    for group, (mark, device) in enumerate(groups):
        for iteration in sorted(i for op, i in ends if op == mark):
            begin_s, end_s = ends.get((mark, iteration - 1)), ends[mark, iteration]
            if begin_s is None or end_s <= window.begin_s or begin_s >= window.end_s:
                continue
            span = _ns(begin_s), _ns(end_s)
            place = int(graph.slot_place[device])
            track = tracks.place(place, f"iterations of worker {group}", (0, group), *span)
            args = {"iteration": iteration}
            made = _slice("iteration", track, *span, COLOURS["iteration"], args)
            yield made | {"name": f"iteration {iteration}"}


def _ops(graph: OpGraph, spans: Sequence[Span], tracks: _Tracks) -> Iterator[Event]:
    """Yield the ops on their resources; the ``op`` field is used by the arrows."""
    resources = _Resources(graph)
    for span in sorted(spans, key=lambda span: (_ns(span.start_s), _ns(span.end_s))):
        place, name, order = resources.of(span.op)
        begin_ns, end_ns = _ns(span.start_s), _ns(span.end_s)
        label = block_of(graph.ops, span.op).label
        moves = bool(graph.op_bytes[span.op] > 0.0)
        args = {
            "operation": graph.op_name(span.op),
            "iteration": span.iteration,
            "queued_us": (span.start_s - span.ready_s) * 1e6,
            "bytes": float(graph.op_bytes[span.op]),
            "links": [graph.link_name(int(link)) for link in graph.path(span.op)],
        }
        colour = COLOURS.get(label, TRANSFER if moves else OTHER)
        track = tracks.place(place, name, order, begin_ns, end_ns)
        yield _slice(label, track, begin_ns, end_ns, colour, args) | {"op": span.op}


class _Resources:
    """The resource each op is drawn on: the slot it holds, or else a link."""

    def __init__(self, graph: OpGraph) -> None:
        self._graph = graph
        self._devices = set(graph.group_device.tolist())
        self._drawn = dict(_links_of_draws(graph))

    def of(self, op: int) -> tuple[int, str, Rank]:
        """Return the node (NONE for the network as a whole), name and rank of the op's resource."""
        graph = self._graph
        slots, path = graph.held(op), graph.path(op)
        if len(slots):
            slot = int(slots[0])
            kind = 1 if slot in self._devices else 2
            return int(graph.slot_place[slot]), graph.slot_name(slot), (kind, slot)
        link = int(path[0]) if len(path) else self._drawn.get(op, NONE)
        if link != NONE:
            return int(graph.link_place[link]), graph.link_name(link), (3, link)
        return NONE, "synchronisation", (4, 0)


def _links_of_draws(graph: OpGraph) -> Iterator[tuple[int, int]]:
    """Yield ops that draw their route, with the first or last link if all alternatives share it."""
    for rule in graph.rules:
        if not isinstance(rule, Choice) or rule.routes is None:
            continue
        for op, routes in zip(rule.ops.tolist(), rule.routes, strict=True):
            taken = routes[routes != NONE]
            for link in (graph.route_start[taken], graph.route_start[taken + 1] - 1):
                links = set(graph.route_links[link].tolist())
                if len(links) == 1:
                    yield op, links.pop()
                    break


def _latencies_s(graph: OpGraph) -> dict[int, list[float]]:
    """Return the latencies of the alternatives, for ops that draw one."""
    return {
        op: latency_s.tolist()
        for rule in graph.rules
        if isinstance(rule, Choice)
        for op, latency_s in zip(rule.ops.tolist(), rule.latency_s, strict=True)
    }


def _arrows(
    graph: OpGraph, spans: Sequence[Span], drawn: dict[tuple[int, int], Event]
) -> Iterator[Event]:
    """Yield an arrow to each op from the op on another resource whose end it waited for.

    Zero-length ops pass arrows on: the arrow then starts at the op they waited for.
    """
    by_target = np.argsort(graph.edge_target, kind="stable")
    first = np.searchsorted(graph.edge_target[by_target], np.arange(graph.n_ops + 1))
    known = {(span.op, span.iteration): span for span in spans}
    latencies_s = _latencies_s(graph)

    def cause(span: Span, depth: int) -> Span | None:
        edges = by_target[first[span.op] : first[span.op + 1]]
        for edge in edges.tolist():
            key = int(graph.edge_source[edge]), span.iteration - int(graph.edge_lag[edge])
            before = known.get(key)
            if before is None:
                continue
            latency_s = latencies_s.get(before.op, [float(graph.op_latency_s[before.op])])
            late_s = min(abs(before.end_s + each - span.ready_s) for each in latency_s)
            if late_s > SAME_TIME * span.ready_s:
                continue
            if drawn[key]["dur"] > 0.0:
                return before
            found = cause(before, depth - 1) if depth else None
            if found is not None:
                return found
        return None

    number = 0
    for span in spans:
        target = drawn[span.op, span.iteration]
        before = cause(span, 8) if target["dur"] > 0.0 else None
        if before is None:
            continue
        source = drawn[before.op, before.iteration]
        if (source["pid"], source["tid"]) == (target["pid"], target["tid"]):
            continue
        number += 1
        inside_ns = _ns(before.end_s) - 1  # the slice's last nanosecond: it excludes its end
        for phase, event, at_us in (("s", source, _us(inside_ns)), ("f", target, target["ts"])):
            arrow = {"name": "waited for", "cat": "waited for", "ph": phase, "id": number}
            yield arrow | {"bp": "e", "ts": at_us, "pid": event["pid"], "tid": event["tid"]}


def _counter(name: str, measure: str, process: int, at_ns: int, value: float) -> Event:
    at = {"ts": _us(at_ns), "pid": process}
    return {"name": name, "ph": "C", **at, "args": {measure: value}}


def _link_use(graph: OpGraph, window: Window) -> Iterator[Event]:
    """Yield the utilisation of each used link, in per cent, at each change."""
    at_ns = [_ns(at_s) for at_s in window.sample_s.tolist()]
    for link in np.flatnonzero(window.link_use.any(axis=0)).tolist():
        process, name = _process(int(graph.link_place[link])), graph.link_name(link)
        before = -1.0
        for begin_ns, use in zip(at_ns, window.link_use[:, link].tolist(), strict=False):
            if abs(use - before) > SMALLEST_CHANGE:
                yield _counter(name, "use (%)", process, begin_ns, round(100.0 * use, 4))
                before = use
        yield _counter(name, "use (%)", process, at_ns[-1], 0.0)


def _queues(graph: OpGraph, window: Window) -> Iterator[Event]:
    """Yield the number of the window's ops waiting for each resource that has a queue."""
    resources = _Resources(graph)
    steps: dict[tuple[int, str], dict[int, int]] = defaultdict(lambda: defaultdict(int))
    for span in window.spans:
        begin_ns, end_ns = _ns(span.ready_s), _ns(span.start_s)
        if len(graph.held(span.op)) and end_ns > begin_ns:
            place, name, _ = resources.of(span.op)
            steps[place, name][max(begin_ns, _ns(window.begin_s))] += 1
            steps[place, name][max(end_ns, _ns(window.begin_s))] -= 1
    for (place, name), changes in steps.items():
        waiting = 0
        for at_ns in sorted(changes):
            waiting += changes[at_ns]
            yield _counter(name, "queue (operations)", _process(place), at_ns, waiting)


def _staleness(graph: OpGraph, window: Window) -> Iterator[Event]:
    """Yield the mean staleness of updates between samples, for workers with stale updates."""
    at_ns = [_ns(at_s) for at_s in window.sample_s.tolist()]
    for group in np.flatnonzero(np.nan_to_num(window.staleness).any(axis=0)).tolist():
        process = _process(int(graph.slot_place[graph.group_device[group]]))
        before = -1.0
        for end_ns, value in zip(at_ns[1:], window.staleness[:, group].tolist(), strict=True):
            if value == value and value != before:
                name = f"worker {group}"
                yield _counter(name, "staleness (updates)", process, end_ns, value)
                before = value
