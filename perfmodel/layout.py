"""A graph laid out as the state of a simulation in which nothing has happened yet."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from perfmodel import eventloop as loop
from perfmodel.graph import (
    CAUSES,
    NONE,
    Activity,
    Batch,
    Choice,
    Every,
    Mailbox,
    OpGraph,
    Quantum,
    Quorum,
)
from perfmodel.noise import TABLE, key, offsets, table
from perfmodel.world import (
    ACTIVE,
    ALTERNATIVE,
    EDGE,
    EXTRA,
    GATE_EDGE,
    GROUP,
    HISTORY,
    HOLD,
    ITEM,
    LINK,
    OP,
    PATH,
    POOL,
    PROBE,
    ROUTE,
    SLOT,
    SPECIAL,
    STATE,
    STREAM,
    World,
    starts,
)

_I, _L = "i4", "i8"

_PROBE_ROOM = 3
"""Instances of a probe that may be open at once, besides those that its lag opens."""


def make_world(
    graph: OpGraph, seed: int = 0, *, depth: int = 0, limit: int = NONE, record: range = range(0)
) -> tuple[World, Kept]:
    """The state before the first instant, in arrays; and what :func:`give_back` takes.

    Parameters
    ----------
    depth : instances of each op remembered, to walk back from a wait to what caused it; 0 or a
        power of two.
    limit : how often each op runs, NONE for without end.
    record : iterations of which the timeline is kept.
    """
    kept = _kept.pop(graph, None)
    if kept is None:
        layout = _lay_out(graph)
        written = [getattr(layout, name).view(np.uint8) for name in _REWRITTEN]
        written += [layout.edges["tokens"], _part(layout.ops, *_OP_REWRITTEN)]
        kept = Kept(layout, [(values, values.copy()) for values in written])
    else:
        for values, first in kept.written:
            values[:] = first
    n, groups = graph.n_ops, graph.n_groups
    world = kept.world._replace(
        arrived=np.zeros(n if depth else 0, _I),
        history=np.zeros(n * depth, HISTORY),
        critical=np.zeros(n if depth else 0),
        critical_count=np.zeros(n if depth else 0),
        **{name: np.full(n * len(record), np.nan) for name in _SPANS},
    )
    for name, value in (
        ("key", key(seed) if graph.random else 0),
        ("limit", limit),
        ("depth", depth),
        ("first_span", record.start),
        ("end_span", record.stop),
    ):
        world.state[name] = value
    if graph.staggered:
        parts = np.append(offsets(seed, groups), 0.0)
        world = world._replace(late=graph.op_stagger_s * parts[graph.op_group])
    return world, kept


class Kept(NamedTuple):
    """A world that is no longer in use, and what was written in it, with the values at first.

    Memory that was used before costs a fraction of memory fresh from the operating system.
    """

    world: World
    written: list[tuple[NDArray[Any], NDArray[Any]]]


def give_back(graph: OpGraph, kept: Kept) -> None:
    """Keep a world for the next simulation of the same graph."""
    _kept[graph] = kept


_kept: WeakKeyDictionary[OpGraph, Kept] = WeakKeyDictionary()
_REWRITTEN = tuple(
    (
        "state links paths groups slots routes places pools streams extras specials items probes "
        "counters counter_part moved waits marked_at marked_busy marked_waits "
        "histogram stale_sum stale_count stamp_time stamp_count"
    ).split()
)
_OP_REWRITTEN = ("missing", "holds")
"""The first and the last of the fields that are written; those between them go along."""
_SPANS = ("span_ready", "span_start", "span_end")


def _part(records: NDArray[Any], first: str, last: str) -> NDArray[Any]:
    """The bytes of the fields from ``first`` to ``last``, as one item for each record."""
    fields: Any = records.dtype.fields
    begin, (kind, end) = fields[first][1], fields[last][:2]
    names, formats = ["part"], [f"V{end + kind.itemsize - begin}"]
    size = records.dtype.itemsize
    part = np.dtype({"names": names, "formats": formats, "offsets": [begin], "itemsize": size})
    return np.ndarray(len(records), part, records)["part"]


def _lay_out(graph: OpGraph) -> World:
    """What is the same for every simulation of a graph."""
    n, groups = graph.n_ops, graph.n_groups
    edges, into, out_start, in_start = _edges(graph)
    lags = graph.edge_lag
    lacking = np.bincount(graph.edge_target[lags == 0], minlength=n)
    early = np.bincount(graph.edge_target, np.maximum(lags - 1, 0), minlength=n)
    free_ride = (np.diff(graph.route_start) == 0) & np.isinf(graph.route_cap_bytes_per_s)
    by_route = np.append(np.where(free_ride, NONE, np.arange(len(free_ride))), NONE).astype(_I)
    noisy = np.append(graph.stream_cv > 0.0, False)
    holds, hold = _holds(graph)
    ops = _aligned(n, OP)
    for at in range(0, n, _CHUNK):  # what was just written is still in the cache
        part = slice(at, min(at + _CHUNK, n))
        some = ops[part]
        some["seconds"] = graph.op_seconds[part]
        some["bytes"] = graph.op_bytes[part]
        some["hold"] = hold[part]
        some["holds"] = np.diff(graph.hold_start[at : part.stop + 1])
        some["out"] = out_start[part]
        some["end"] = out_start[at + 1 : part.stop + 1]
        some["missing"] = lacking[part]
        some["early"] = early[part]
        some["priority"] = graph.op_priority[part]
        some["route"] = np.where(graph.op_bytes[part] > 0.0, by_route[graph.op_route[part]], NONE)
        some["extra"] = NONE
    ops["need"] = np.diff(in_start) + 1
    extras = _Extras(ops)
    late = np.flatnonzero(graph.op_latency_s)
    extras.set("latency", late, graph.op_latency_s[late])
    streams_of = np.where(noisy[graph.op_stream], graph.op_stream, NONE)
    extras.set("stream", np.flatnonzero(streams_of != NONE), streams_of[streams_of != NONE])
    extras.set("mark", graph.group_mark, np.arange(groups))

    specials, alternatives, chosen, items, gate_edges = _rules(graph, ops, extras, edges, by_route)

    slots = _aligned(len(graph.slot_capacity), SLOT)
    slots["free"] = graph.slot_capacity
    slots["released"], slots["releaser"], slots["group"] = -1.0, NONE, NONE
    slots["group"][graph.group_device] = np.arange(groups)
    waiting = starts(np.bincount(np.append(graph.hold_slots, chosen), minlength=len(slots)))
    slots["first"] = waiting[:-1]

    n_routes, n_links = len(graph.route_weight), len(graph.link_capacity_bytes_per_s)
    links = np.zeros(n_links, LINK)
    links["capacity"] = graph.link_capacity_bytes_per_s
    links["owner"] = NONE
    crossing = starts(np.bincount(graph.route_links, minlength=n_links))
    links["first"] = crossing[:-1]
    paths = np.zeros(len(graph.route_links), PATH)
    paths["link"], paths["units"] = graph.route_links, graph.route_units
    paths["route"] = np.repeat(np.arange(n_routes), np.diff(graph.route_start))
    routes = _aligned(n_routes, ROUTE)
    routes["weight"] = graph.route_weight
    routes["cap"] = graph.route_cap_bytes_per_s / graph.route_weight
    routes["first"], routes["last"] = graph.route_start[:-1], graph.route_start[1:]
    routes["home"] = NONE
    users = np.concatenate([ops["route"], alternatives["route"]])
    flows = starts(np.bincount(users[users >= 0], minlength=n_routes))
    routes["flow"] = flows[:-1]
    pools = _aligned(n_links + n_routes, POOL)
    pools["first"] = np.concatenate([crossing[:-1], crossing[-1] + np.arange(n_routes)])
    pools["place"] = NONE
    pools["limit"] = np.inf

    members = np.zeros(groups, GROUP)
    members["device"] = graph.group_device
    streams = np.zeros(len(graph.stream_cv), STREAM)
    streams["at"] = NONE
    values = np.zeros(0)
    if noisy.any():
        kinds, which = np.unique(
            np.stack([graph.stream_cv, graph.stream_kind]), axis=1, return_inverse=True
        )
        values = np.concatenate([table(float(cv), int(kind)) for cv, kind in kinds.T])
        streams["first"] = which.ravel() * TABLE
    probes, watched, stamps = _probes(graph, extras)
    stamp_count = np.zeros(stamps, _L)

    state = np.zeros(1, STATE)
    plain = bool(
        np.all(graph.route_weight == 1.0)
        and np.all(graph.route_units == 1.0)
        and np.all(np.isinf(graph.route_cap_bytes_per_s))
    )
    for name, value in (
        ("n_ops", n),
        ("n_links", n_links),
        ("n_groups", groups),
        ("plain", plain),
        ("behind", groups),
        ("timer_room", n + 64),
        ("staggered", graph.staggered),
    ):
        state[name] = value
    n_counters = len(graph.counter_every)
    bins = max(256, 16 * int(graph.group_count.sum())) if n_counters else 1
    state["bins"] = bins
    nothing = np.zeros(0)
    no_ids = np.zeros(0, _I)
    return World(
        state=state,
        ops=ops,
        edges=edges,
        gate_edges=gate_edges,
        holds=holds,
        slots=slots,
        links=links,
        paths=paths,
        routes=routes,
        pools=pools,
        groups=members,
        streams=streams,
        extras=extras.made(),
        specials=specials,
        alternatives=alternatives,
        items=items,
        probes=probes,
        into=into,
        into_first=in_start.astype(_I),
        arrived=no_ids,
        queue=np.zeros(int(waiting[-1]), _I),
        active=np.zeros(len(paths), ACTIVE),
        members=np.zeros(len(paths) + n_routes, _I),
        keys=np.zeros(len(paths) + n_routes),
        places=np.full(n_routes, NONE, _I),
        flying=np.zeros(int(flows[-1]), _I),
        levels=np.zeros(int(flows[-1])),
        agenda=np.zeros(len(pools), _I),
        due=np.zeros(len(pools)),
        timer_time=np.zeros(n + 64),
        timer_what=np.zeros(n + 64, _L),
        soon=np.zeros(n + 1, _I),
        touched=np.zeros(len(slots), _I),
        changed=np.zeros(n_routes, _I),
        ended=np.zeros(int(np.diff(flows).max(initial=0)), _I),
        region_links=np.zeros(n_links, _I),
        region_routes=np.zeros(n_routes, _I),
        region_pools=np.zeros(n_links, _I),
        filling=np.zeros(n_links, _I),
        share=np.zeros(n_links),
        history=np.zeros(0, HISTORY),
        span_ready=nothing,
        span_start=nothing,
        span_end=nothing,
        cause=graph.op_cause.astype(_I),
        late=nothing,
        table=values,
        watched=watched,
        counters=np.zeros(n_counters, _L),
        counter_every=graph.counter_every.astype(_L),
        counter_part=np.zeros(n_counters, _L),
        stamp_time=np.zeros(stamps),
        stamp_count=stamp_count,
        moved=np.zeros(n_routes),
        waits=np.zeros(groups * len(CAUSES)),
        marked_at=np.zeros(groups),
        marked_busy=np.zeros(groups),
        marked_waits=np.zeros(groups * len(CAUSES)),
        critical=nothing,
        critical_count=nothing,
        histogram=np.zeros(bins, _L),
        stale_sum=np.zeros(groups, _L),
        stale_count=np.zeros(groups, _L),
    )


_CHUNK = 4096


def _aligned(n: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Zeroed records that begin where a cache line does."""
    room = np.zeros(n * dtype.itemsize + 64, np.uint8)
    first = -room.ctypes.data % 64
    records: NDArray[Any] = room[first : first + n * dtype.itemsize].view(dtype)
    return records


class _Extras:
    """What only some ops have: a record for each of those."""

    def __init__(self, ops: NDArray[Any]) -> None:
        self._ops = ops
        self._set: list[tuple[str, NDArray[Any], NDArray[Any]]] = []

    def set(self, field: str, ops: NDArray[Any], values: NDArray[Any]) -> None:
        self._set.append((field, ops, values))

    def made(self) -> NDArray[Any]:
        every = np.concatenate([ops for _, ops, _ in self._set])
        having = np.flatnonzero(np.bincount(every, minlength=len(self._ops)))
        self._ops["extra"][having] = np.arange(len(having))
        extras = np.zeros(len(having), EXTRA)
        for field in EXTRA.names or ():
            extras[field] = 0 if field == "latency" else NONE
        for field, ops, values in self._set:
            extras[field][self._ops["extra"][ops]] = values
        return extras


def _holds(graph: OpGraph) -> tuple[NDArray[Any], NDArray[Any]]:
    """What ops hold, and where that of each begins.

    First comes one unit of each slot. All that hold just that share it, and it stays in the cache.
    """
    counts, first, slots = (
        np.diff(graph.hold_start),
        graph.hold_start[:-1],
        len(graph.slot_capacity),
    )
    single = counts == 1
    single[single] = graph.hold_units[first[single]] == 1
    listed = np.repeat(~single, counts)
    holds = np.ones(slots + int(listed.sum()), HOLD)
    holds["slot"][:slots] = np.arange(slots)
    holds["slot"][slots:] = graph.hold_slots[listed]
    holds["units"][slots:] = graph.hold_units[listed]
    hold = slots + starts(counts * ~single)[:-1]
    hold[single] = graph.hold_slots[first[single]]
    return holds, hold


def _edges(graph: OpGraph) -> tuple[NDArray[Any], ...]:
    """Edges by source, their numbers by target, and where each op's begin."""
    n = graph.n_ops
    outs = starts(np.bincount(graph.edge_source, minlength=n))
    ins = starts(np.bincount(graph.edge_target, minlength=n))
    order = np.argsort(graph.edge_source, kind="stable")
    edges = np.zeros(len(order), EDGE)
    target = graph.edge_target[order]
    edges["target"] = target
    edges["tokens"] = graph.edge_lag[order]
    into = np.argsort(target, kind="stable").astype(_I)
    return edges, into, outs, ins


def _rules(
    graph: OpGraph,
    ops: NDArray[Any],
    extras: _Extras,
    edges: NDArray[Any],
    by_route: NDArray[Any],
) -> tuple[NDArray[Any], ...]:
    """Specials, alternatives, the slots of alternatives, items of batches, edges of gates."""
    gates: dict[int, list[int]] = {}
    special: list[dict[str, Any]] = []
    index: dict[int, int] = {}
    alternatives: list[tuple[float, int, int, int]] = []
    slots: list[int] = []
    items: list[tuple[float, int, int, int, int]] = []

    def of(op: int) -> dict[str, Any]:
        if op not in index:
            index[op] = len(special)
            special.append(dict(_ORDINARY))
        return special[index[op]]

    def incoming(op: int, kind: int, sources: Sequence[int] | None = None) -> list[int]:
        """Turn the edges into ``op`` (from ``sources``) into edges of a kind."""
        found: list[int] = []
        for k in np.flatnonzero(edges["target"] == op).tolist():
            source = int(np.searchsorted(ops["out"], k, side="right")) - 1
            if sources is None or source in sources:
                gates[k] = [op, kind, NONE]
                ops["need"][op] -= 1
                ops["missing"][op] -= edges["tokens"][k] == 0
                ops["early"][op] -= max(edges["tokens"][k] - 1, 0)
                found.append(k)
        return found

    for rule in graph.rules:
        if isinstance(rule, Activity):
            each = (rule.ops.tolist(), rule.draw.tolist(), rule.chosen.tolist())
            for op, stream, chosen in zip(*each, strict=True):
                of(op).update(
                    every=rule.every,
                    phase=rule.phase,
                    probability=rule.probability,
                    activity=stream,
                    chosen=chosen,
                    among=rule.among,
                )
        elif isinstance(rule, Quantum):
            for op in rule.ops.tolist():
                of(op)["quantum"] = rule.bytes
        elif isinstance(rule, Choice):
            count = rule.latency_s.shape[1]
            for row, op in enumerate(rule.ops.tolist()):
                of(op).update(
                    choice=int(rule.draw[row]), alternative=len(alternatives), alternatives=count
                )
                own_route = int(ops["route"][op])
                for k, latency in enumerate(rule.latency_s[row].tolist()):
                    route = own_route if rule.routes is None else int(by_route[rule.routes[row, k]])
                    hold, held = int(ops["hold"][op]), int(ops["holds"][op])
                    if rule.slots is not None:
                        slot = int(rule.slots[row, k])
                        hold, held = slot, int(slot != NONE)
                        slots += [slot] if slot != NONE else []
                    moves = graph.op_bytes[op] > 0.0
                    alternatives.append((latency, hold, held, route if moves else NONE))
        elif isinstance(rule, (Quorum, Every)):
            gate = loop.QUORUM if isinstance(rule, Quorum) else loop.EVERY
            kind = loop.TO_QUORUM if isinstance(rule, Quorum) else loop.TO_EVERY
            ins = incoming(rule.op, kind)
            tokens = edges["tokens"][ins]
            have = int((tokens > 0).sum()) if gate == loop.QUORUM else int(tokens.sum())
            of(rule.op).update(gate=gate, need=rule.count, count=have, open=have >= rule.count)
            ops["missing"][rule.op] += have < rule.count
            if gate == loop.QUORUM:
                _drain(graph, ops, edges, gates, rule.op, ins)
        elif isinstance(rule, Mailbox):
            ins = incoming(rule.op, loop.TO_MAILBOX, rule.sources.tolist())
            have = int(edges["tokens"][ins].sum())
            of(rule.op).update(gate=loop.MAILBOX, per_token=rule.per_token_s, count=have)
        else:
            ops["route"][rule.op] = by_route[graph.op_route[rule.op]]
            _batch(rule, ops, edges, gates, of(rule.op), items, incoming)
    extras.set("special", np.array(list(index), _L), np.array(list(index.values()), _L))
    edges["target"][list(gates)] = -1 - np.arange(len(gates))
    specials = np.zeros(len(special), SPECIAL)
    for row, fields in enumerate(special):
        for name, value in fields.items():
            specials[name][row] = value
    return (
        specials,
        np.array(alternatives, ALTERNATIVE),
        np.array(slots, _L),
        np.array(items, ITEM),
        np.array([tuple(edge) for edge in gates.values()], GATE_EDGE),
    )


_ORDINARY = {
    "every": 1,
    "probability": 1.0,
    "quantum": np.inf,
    "activity": NONE,
    "choice": NONE,
}


def _drain(
    graph: OpGraph,
    ops: NDArray[Any],
    edges: NDArray[Any],
    gates: dict[int, list[int]],
    op: int,
    ins: Sequence[int],
) -> None:
    """Pair each edge out of a quorum with the edge into it from the same group."""
    by_group = {}
    for k in ins:
        source = int(np.searchsorted(ops["out"], k, side="right")) - 1
        by_group[int(graph.op_group[source])] = k
    for k in range(ops["out"][op], ops["end"][op]):
        target = int(edges["target"][k])
        group = int(graph.op_group[target])
        if group != NONE and group in by_group:
            gates[k] = [target, loop.DRAIN, by_group[group]]


def _batch(
    rule: Batch,
    ops: NDArray[Any],
    edges: NDArray[Any],
    gates: dict[int, list[int]],
    fields: dict[str, Any],
    items: list[tuple[float, int, int, int, int]],
    incoming: Any,
) -> None:
    ins = incoming(rule.op, loop.TO_BATCH, rule.sources.tolist())
    outs = list(range(ops["out"][rule.op], ops["end"][rule.op]))
    edge_from, edge_to = defaultdict(list), defaultdict(list)
    for k in ins:
        edge_from[int(np.searchsorted(ops["out"], k, side="right")) - 1].append(k)
    for k in outs:
        edge_to[int(edges["target"][k])].append(k)
    fields.update(
        gate=loop.BATCH,
        cycle=rule.cycle_s,
        cap=rule.cap_bytes,
        alternative=len(items),
        alternatives=len(rule.sources),
    )
    ops["missing"][rule.op] += 1
    triples = zip(rule.sources.tolist(), rule.targets.tolist(), rule.bytes.tolist(), strict=True)
    for source, target, size in triples:
        into, out = edge_from[source].pop(0), edge_to[target].pop(0)
        gates[into][2] = len(items)
        gates[out] = [target, loop.FROM_BATCH, NONE]
        items.append((size, out, int(edges["tokens"][into]), 0, 0))


def _probes(graph: OpGraph, extras: _Extras) -> tuple[NDArray[Any], NDArray[Any], int]:
    """Probes, the lists of those that each op opens or closes, and room for their stamps."""
    n_probes = len(graph.probe_open)
    probes = np.zeros(n_probes, PROBE)
    probes["counter"], probes["group"] = graph.probe_counter, graph.probe_group
    probes["open"] = graph.probe_lag
    probes["room"] = graph.probe_lag + _PROBE_ROOM
    stamps = starts(probes["room"])
    probes["stamp"] = stamps[:-1]
    ids = np.arange(n_probes)
    ready = graph.probe_at_ready
    ops_of = [
        graph.probe_open[ready],
        graph.probe_close,
        graph.counter_ops,
        graph.probe_open[~ready],
    ]
    what: list[NDArray[Any]] = [ids[ready], ids, graph.counter_ids, ids[~ready]]
    watching = np.concatenate(ops_of).astype(_L)
    order = np.lexsort((np.repeat(np.arange(4), [len(x) for x in what]), watching))
    watched = np.concatenate(what)[order].astype(_I)
    seen = np.flatnonzero(np.bincount(watching, minlength=graph.n_ops))
    at = starts(np.bincount(np.searchsorted(seen, watching), minlength=len(seen)))
    edge = at[:-1].copy()
    for name, some in zip(("ready", "close", "rise", "open"), ops_of, strict=True):
        extras.set(name, seen, edge)
        edge = edge + np.bincount(np.searchsorted(seen, some), minlength=len(seen))
    extras.set("end", seen, at[1:])
    return probes, watched, int(stamps[-1])
