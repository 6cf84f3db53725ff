"""Joins finished graphs into one, in which they share links and slots."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import ArrayLike

from perfmodel.base.arrays import NONE, Ids
from perfmodel.graph.builder import GraphBuilder
from perfmodel.graph.op_graph import KINDS, Axis, Block, OpGraph
from perfmodel.graph.rules import Rule

NO_PLACES = np.zeros(0, np.int64)

Key = Callable[[Block, int], Hashable]
"""Returns what a link or a slot of a graph is among those of all graphs, from its block and its
index there; None if it is the graph's own."""

SHIFTED: dict[str, str] = {
    **dict.fromkeys(("ops", "op", "sources", "targets"), "op"),
    "draw": "stream",
    "routes": "route",
    "slots": "slot",
}
"""What the ids in the fields of rules count."""


class Named(NamedTuple):
    """Key of a link or a slot that has no number among those of all graphs: the label and the name
    it then has, and its place."""

    label: str
    name: str
    place: int


class JoiningBuilder(GraphBuilder):
    """Builds a graph from finished ones, and from what is added between them."""

    def __init__(self) -> None:
        super().__init__()
        self._shared: dict[tuple[str, Hashable], int] = {}
        self._keyed: dict[int, int] = {}
        self._devices: list[Ids] = []
        self._marks: list[Ids] = []
        self._counts: list[Ids] = []
        self._groups: list[Ids] = []

    def share(self, kind: str, ids: Ids, keys: list[Hashable]) -> None:
        """Let graphs that are added use these links or slots, instead of theirs of equal key."""
        for identity, key in zip(ids.ravel().tolist(), keys, strict=True):
            self._shared.setdefault((kind, key), identity)

    def add(self, graph: OpGraph, name: str, key: Key, groups: Ids) -> int:
        """Add a finished graph, and return how much larger the ids of its ops are here.

        ``name`` distinguishes its ops, links and slots from those of others. ``groups`` are the
        numbers of its groups among those of all graphs.
        """
        shift = {
            "op": self._count["op"],
            "stream": self._count["stream"],
            "counter": self._count["counter"],
            "route": self._routes,
        }
        moved = self._places(graph, key)
        slots = self._resources("slot", graph, name, key, moved)
        links = self._resources("link", graph, name, key, moved)
        for block in graph.ops:
            self._new("op", block.label, block.shape, block.axes, part=name)
        for block in graph.probes:
            self._new("probe", block.label, block.shape, block.axes, part=name)
        self._add_ops(graph, shift, slots, links)
        self._add_streams(graph)
        self._add_rest(graph, shift, slots)
        named = np.append(groups, NONE)  # the last is that of NONE
        self._add("op_group", named[graph.op_group])
        self._add("probe_group", named[graph.probe_group])
        self._groups.append(groups)
        return shift["op"]

    def _places(self, graph: OpGraph, key: Key) -> dict[int, int]:
        """Return the place here of each place of a graph: that of the links that it shares."""
        here = np.concatenate([NO_PLACES, *self._columns.get("link_place", [])])
        moved = {}
        for block in graph.links:
            places = graph.link_place[block.first : block.first + block.size]
            for k, place in enumerate(places.tolist()):
                one = key(block, k)
                known = self._shared.get(("link", one), NONE)
                if isinstance(one, Named):
                    moved[place] = one.place
                elif one is not None and known != NONE:
                    moved[place] = int(here[known])
        return moved

    def _resources(
        self, kind: str, graph: OpGraph, name: str, key: Key, moved: dict[int, int]
    ) -> Ids:
        """Add a graph's links or slots that are not shared; return the id here of each. Places are
        ``moved``."""
        blocks: tuple[Block, ...] = graph.links if kind == "link" else graph.slots
        place = graph.link_place if kind == "link" else graph.slot_place
        ids = np.full(sum(block.size for block in blocks), NONE)
        for block in blocks:
            keys = [key(block, k) for k in range(block.size)]
            known = np.array(
                [self._shared.get((kind, one), NONE) if one is not None else NONE for one in keys]
            )
            ids[block.first : block.first + block.size] = known
            new = np.flatnonzero(known == NONE)
            if not new.size:
                continue
            own, where = [keys[k] for k in new.tolist()], block.first + new
            made = self._new(kind, *_named(block, own, where, name)).ravel()
            ids[where] = made
            self.share(kind, made, [one if one is not None else (name, block.first, k)
                                    for k, one in zip(new.tolist(), own, strict=True)])  # fmt: skip
            pairs = zip(own, place[where].tolist(), strict=True)
            places = [one.place if isinstance(one, Named) else moved.get(at, at)
                      for one, at in pairs]  # fmt: skip
            self._add(f"{kind}_place", np.array(places))
            if kind == "slot":
                self._add("slot_capacity", graph.slot_capacity[where])
            else:
                self._add("link_capacity_bytes_per_s", graph.link_capacity_bytes_per_s[where])
                self._latency = np.concatenate([self._latency, np.zeros(new.size)])
        return ids

    def _add_ops(self, graph: OpGraph, shift: dict[str, int], slots: Ids, links: Ids) -> None:
        """Add the columns of ops and routes."""
        for name in ("seconds", "bytes", "latency_s", "priority", "cause"):
            self._add(f"op_{name}", getattr(graph, f"op_{name}"))
        self._add("op_route", _shifted(graph.op_route, shift["route"]))
        self._add("hold_count", np.diff(graph.hold_start))
        self._add("hold_slots", slots[graph.hold_slots])
        self._add("hold_units", graph.hold_units)
        self._add("route_length", np.diff(graph.route_start))
        self._add("route_links", links[graph.route_links])
        for name in ("units", "cap_bytes_per_s", "weight", "burst_bytes", "queued_bytes"):
            self._add(f"route_{name}", getattr(graph, f"route_{name}"))
        self._routes += len(graph.route_weight)
        late = np.flatnonzero(graph.op_stagger_s > 0.0)
        self._add("spent_op", graph.spent_op.astype(np.int64) + shift["op"])
        self._add("spent_on", graph.spent_on)
        self._add("spent_s", graph.spent_s)
        self._add("stagger_ops", late + shift["op"])
        self._add("stagger_s", graph.op_stagger_s[late])

    def _add_streams(self, graph: OpGraph) -> None:
        """Add streams, and what streams ops have: of those with the same key the first."""
        ids = np.arange(len(graph.stream_cv) + 1) + self._count["stream"]
        ids[-1] = NONE
        for k in np.flatnonzero(graph.stream_key != NONE).tolist():
            ids[k] = self._keyed.setdefault(int(graph.stream_key[k]), int(ids[k]))
        tables = len(KINDS) + len(self._tables) + np.arange(len(graph.tables))
        self._tables += graph.tables
        self._add("op_stream", ids[graph.op_stream])
        self._add("stream_cv", graph.stream_cv)
        self._add("stream_kind", np.array([*range(len(KINDS)), *tables])[graph.stream_kind])
        self._add("stream_key", graph.stream_key)
        self._count["stream"] += len(graph.stream_cv)

    def _add_rest(self, graph: OpGraph, shift: dict[str, int], slots: Ids) -> None:
        """Add edges, probes, counters, rules, logs and groups."""
        self._add("edge_source", graph.edge_source.astype(np.int64) + shift["op"])
        self._add("edge_target", graph.edge_target.astype(np.int64) + shift["op"])
        self._add("edge_lag", graph.edge_lag)
        for column, kind in (("open", "op"), ("close", "op"), ("counter", "counter")):
            name = f"probe_{column}"
            self._add(name, _shifted(getattr(graph, name), shift[kind]))
        self._add("probe_at_ready", graph.probe_at_ready)
        self._add("probe_lag", graph.probe_lag)
        self._add("counter_ops", graph.counter_ops.astype(np.int64) + shift["op"])
        self._add("counter_ids", graph.counter_ids.astype(np.int64) + shift["counter"])
        self._add("counter_every", graph.counter_every)
        self._count["counter"] += len(graph.counter_every)
        self._rules += [_moved(rule, shift, slots) for rule in graph.rules]
        self._logged += [
            msgspec.structs.replace(one, ops=one.ops + shift["op"]) for one in graph.logged
        ]
        self._devices.append(slots[graph.group_device])
        self._marks.append(graph.group_mark + shift["op"])
        self._counts.append(graph.group_count)

    def joined(self) -> OpGraph:
        """Return the graph of all that was added, with the groups of all graphs."""
        order = np.argsort(np.concatenate(self._groups))
        return self.build(
            device=np.concatenate(self._devices)[order],
            mark=np.concatenate(self._marks)[order],
            count=np.concatenate(self._counts)[order],
        )


def _named(
    block: Block, keys: list[Hashable], ids: Ids, part: str
) -> tuple[str, tuple[int, ...], tuple[Axis, ...], str]:
    """Return the label, shape, axes and part of some of a block's links or slots, of these keys."""
    if len(ids) == block.size and not any(isinstance(one, Named) for one in keys):
        return block.label, block.shape, block.axes, part
    names = [
        one.name if isinstance(one, Named) else f"{part}, {block.member(k)}"
        for one, k in zip(keys, ids.tolist(), strict=True)
    ]
    return block.label, ids.shape, ((block.axes[0][0], names),), ""


def _shifted(ids: ArrayLike, by: int) -> Ids:
    """Return ids moved by a number, where there are any."""
    wide: Ids = np.asarray(ids, np.int64)
    return np.where(wide == NONE, NONE, wide + by)


def _moved(rule: Rule, shift: dict[str, int], slots: Ids) -> Rule:
    """Return a rule whose ids are those of the joined graph."""
    changes: dict[str, object] = {}
    for name in rule.__struct_fields__:
        kind, value = SHIFTED.get(name), getattr(rule, name)
        if kind is None or value is None:
            continue
        if kind == "slot":
            changes[name] = np.where(value == NONE, NONE, slots[value])
        elif isinstance(value, int):
            changes[name] = value + shift[kind]
        else:
            changes[name] = _shifted(value, shift[kind])
    return msgspec.structs.replace(rule, **changes)
