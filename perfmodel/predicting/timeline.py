"""The timeline of a job, from a window of its simulation."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import msgspec
import numpy as np

from perfmodel.base.arrays import NONE
from perfmodel.engine.measures import OpSpan
from perfmodel.engine.window import SimulatedWindow
from perfmodel.graph.op_graph import Block, OpGraph, block_of
from perfmodel.graph.rules import Choice
from perfmodel.predicting.bottleneck import DEVICES
from perfmodel.results.timeline import Counter, Kind, Operation, Resource, Timeline
from perfmodel.training.stages import mark_of
from perfmodel.training.workers import CORES

SMALLEST_CHANGE = 1e-6
"""Smallest change in link utilisation that is shown."""

SAME_TIME = 1e-9
"""Tolerance for rounding when an op's start is compared with the end of the op it waited for."""

DEEPEST = 8
"""Most such ops one after the other that are passed over."""

SHORT = {DEVICES: "", "update threads of": "updates of ", "link into": "into "}
SHORT |= {"link out of": "out of "}
"""Beginnings of short names of resources, by the label of their block."""


def timeline_of(graph: OpGraph, window: SimulatedWindow) -> Timeline:
    """Return what happens in a window of a simulation of ``graph``."""
    resources = _Resources(graph)
    causes = _causes(graph, window.spans)
    operations = [
        Operation(
            kind=block_of(graph.ops, span.op).label,
            name=graph.op_name(span.op),
            iteration=span.iteration,
            resource=resources.of(span.op),
            links=tuple(resources.link(int(link)) for link in graph.path(span.op)),
            bytes=float(graph.op_bytes[span.op]),
            ready_s=span.ready_s,
            start_s=span.start_s,
            end_s=span.end_s,
            waited_for=cause,
            mark=mark_of(graph.op_name(span.op)),
        )
        for span, cause in zip(window.spans, causes, strict=True)
    ]
    iterations = list(_iterations(graph, window))
    places = {_node(place) for place in graph.link_place.tolist()}
    places |= {operation.resource.node for operation in (*operations, *iterations)}
    return Timeline(
        slowest=window.slowest,
        slowest_name=_group_name(graph, window.slowest),
        first=window.first,
        last=window.last,
        settled=window.settled,
        begin_s=window.begin_s,
        end_s=window.end_s,
        nodes={node: _node_name(graph, node) for node in places},
        operations=operations,
        iterations=iterations,
        counters=[
            *_link_use(graph, window, resources),
            *_queues(graph, window, resources),
            *_staleness(graph, window),
        ],
    )


def _node(place: int) -> int | None:
    return None if place == NONE else int(place)


def _node_name(graph: OpGraph, node: int | None) -> str:
    """Return the name of a node with the workers and servers on it: ``node 0 (worker 0)``."""
    if node is None:
        return "network"
    members, stages = [], []
    for block in graph.slots:
        if [axis for axis, _ in block.axes] not in (["worker"], ["server"]):
            continue
        alone = msgspec.structs.replace(block, part="")
        here = np.flatnonzero(graph.slot_place[block.first : block.first + block.size] == node)
        members += [alone.member(block.first + k) for k in here.tolist()]
        stages += [block.part] if len(here) and block.label == DEVICES else []
    held = "; ".join(", ".join(dict.fromkeys(names)) for names in (members, filter(None, stages)))
    return f"node {node} ({held.removesuffix('; ')})" if members else f"node {node}"


def _group_name(graph: OpGraph, group: int) -> str:
    """Return the name of a worker, or of a stage of one."""
    device = int(graph.group_device[group])
    return block_of(graph.slots, device).member(device)


def _iterations(graph: OpGraph, window: SimulatedWindow) -> Iterator[Operation]:
    """Yield the iterations of each worker that overlap the window."""
    ends = {(mark.op, mark.iteration): mark.end_s for mark in window.marks}
    groups = zip(graph.group_mark.tolist(), graph.group_device.tolist(), strict=True)
    for group, (mark, device) in enumerate(groups):
        name = f"iterations of {_group_name(graph, group)}"
        worker = Resource(name, name, "iterations", group, _node(graph.slot_place[device]))
        for i in sorted(i for op, i in ends if op == mark):
            begin_s, end_s = ends.get((mark, i - 1)), ends[mark, i]
            if begin_s is not None and end_s > window.begin_s and begin_s < window.end_s:
                times = begin_s, begin_s, end_s
                yield Operation("iteration", f"iteration {i}", i, worker, (), 0.0, *times)


class _Resources:
    """The resource of each op: the slot it holds, or else a link."""

    def __init__(self, graph: OpGraph) -> None:
        self._graph = graph
        self._devices = set(graph.group_device.tolist())
        self._drawn = dict(_links_of_draws(graph))
        self._links: dict[int, Resource] = {}
        self._slots: dict[int, Resource] = {}

    def of(self, op: int) -> Resource:
        """Return the resource of an op."""
        slots, path = self._graph.held(op), self._graph.path(op)
        if len(slots):
            return self._slot(int(slots[0]))
        link = int(path[0]) if len(path) else self._drawn.get(op, NONE)
        if link != NONE:
            return self.link(link)
        return Resource("synchronisation", "synchronisation", "none", 0, None)

    def link(self, link: int) -> Resource:
        """Return a link as a resource."""
        if link not in self._links:
            block = block_of(self._graph.links, link)
            kind: Kind = "cores" if block.label == CORES else "link"
            self._links[link] = _resource(block, link, kind, self._graph.link_place[link])
        return self._links[link]

    def _slot(self, slot: int) -> Resource:
        if slot not in self._slots:
            block = block_of(self._graph.slots, slot)
            kind: Kind = "device" if slot in self._devices else "slot"
            made = _resource(block, slot, kind, self._graph.slot_place[slot])
            if kind == "device" and block.part:  # stages of a worker together
                number = (slot - block.first) * len(self._graph.slot_place) + slot
                made = msgspec.structs.replace(made, number=number)
            self._slots[slot] = made
        return self._slots[slot]


def _resource(block: Block, identity: int, kind: Kind, place: int) -> Resource:
    name, short = block.name(identity), SHORT.get(block.label)
    short_name = name if short is None else f"{short}{block.member(identity)}"
    return Resource(name, short_name, kind, identity, _node(place))


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


def _causes(graph: OpGraph, spans: tuple[OpSpan, ...]) -> Iterator[int | None]:
    """Yield for each span the index of the one whose end it waited for, if any.

    Zero-length ops are passed over: the cause is then the op that they waited for.
    """
    by_target = np.argsort(graph.edge_target, kind="stable")
    first = np.searchsorted(graph.edge_target[by_target], np.arange(graph.n_ops + 1))
    known = {(span.op, span.iteration): index for index, span in enumerate(spans)}
    latencies_s = _latencies_s(graph)

    def cause(span: OpSpan, depth: int) -> int | None:
        for edge in by_target[first[span.op] : first[span.op + 1]].tolist():
            key = int(graph.edge_source[edge]), span.iteration - int(graph.edge_lag[edge])
            if key not in known:
                continue
            before = spans[known[key]]
            latency_s = latencies_s.get(before.op, [float(graph.op_latency_s[before.op])])
            late_s = min(abs(before.end_s + delay_s - span.ready_s) for delay_s in latency_s)
            if late_s > SAME_TIME * span.ready_s:
                continue
            if _takes_time(before):
                return known[key]
            passed = cause(before, depth - 1) if depth else None
            if passed is not None:
                return passed
        return None

    for span in spans:
        yield cause(span, DEEPEST) if _takes_time(span) else None


def _takes_time(span: OpSpan) -> bool:
    """Whether an op begins and ends in different nanoseconds, as traces have them."""
    return round(span.end_s * 1e9) > round(span.start_s * 1e9)


def _link_use(graph: OpGraph, window: SimulatedWindow, resources: _Resources) -> Iterator[Counter]:
    """Yield the utilisation of each used link, in per cent, at each change."""
    for link in np.flatnonzero(window.link_use.any(axis=0)).tolist():
        use = window.link_use[:, link]
        at, before = [], -1.0
        for index, value in enumerate(use.tolist()):
            if abs(value - before) > SMALLEST_CHANGE:
                at.append(index)
                before = value
        times = [*window.sample_s[at].tolist(), float(window.sample_s[-1])]
        values = [*(round(100.0 * value, 4) for value in use[at].tolist()), 0.0]
        resource = resources.link(link)
        yield Counter(resource.name, "use (%)", resource.node, times, values)


def _queues(graph: OpGraph, window: SimulatedWindow, resources: _Resources) -> Iterator[Counter]:
    """Yield the number of the window's ops waiting for each resource that has a queue."""
    steps: dict[Resource, dict[float, int]] = defaultdict(lambda: defaultdict(int))
    for span in window.spans:
        begin_s, end_s = (round(max(at, window.begin_s), 9) for at in (span.ready_s, span.start_s))
        if len(graph.held(span.op)) and round(span.start_s, 9) > round(span.ready_s, 9):
            resource = resources.of(span.op)
            steps[resource][begin_s] += 1
            steps[resource][end_s] -= 1
    for resource, changes in steps.items():
        at_s = sorted(changes)
        waiting = np.cumsum([changes[at] for at in at_s]).tolist()
        yield Counter(resource.name, "queue (operations)", resource.node, at_s, waiting)


def _staleness(graph: OpGraph, window: SimulatedWindow) -> Iterator[Counter]:
    """Yield the mean staleness of updates between samples, for workers with stale updates."""
    for group in np.flatnonzero(np.nan_to_num(window.staleness).any(axis=0)).tolist():
        node = _node(graph.slot_place[graph.group_device[group]])
        at_s: list[float] = []
        values: list[float] = []
        for end_s, value in zip(
            window.sample_s[1:].tolist(), window.staleness[:, group].tolist(), strict=True
        ):
            if value == value and value != (values[-1] if values else -1.0):
                at_s.append(end_s)
                values.append(value)
        yield Counter(_group_name(graph, group), "staleness (updates)", node, at_s, values)
