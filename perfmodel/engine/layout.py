"""Lays out a graph in arrays, as the initial state of a simulation."""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

import msgspec
import numpy as np
from numpy.typing import NDArray

from perfmodel.base.arrays import NONE, Floats, Ids, Refs
from perfmodel.engine import codes
from perfmodel.engine.layout_rules import Extras, lay_out_rules
from perfmodel.engine.noise import TABLE, factors, key, offsets
from perfmodel.engine.tracing import Walks
from perfmodel.engine.world import DTYPES, Records, World, aligned, assign, starts
from perfmodel.graph.op_graph import CAUSES, OpGraph

_PROBE_ROOM = 3
"""Instances of a probe that may be open at once, in addition to those that its lag opens."""


class Kept(msgspec.Struct, frozen=True):
    """A world that is no longer in use, the arrays that were written to, and their initial values,
    None for zeros.

    Reusing memory is much cheaper than getting new memory from the operating system.
    """

    world: World
    written: list[tuple[NDArray[np.generic], NDArray[np.generic] | None]]


def make_world(
    graph: OpGraph,
    seed: int = 0,
    *,
    walks: Walks,
    depth: int = 0,
    limit: int = NONE,
    record: range = range(0),
    log: bool = False,
    within_s: float = 0.0,
) -> tuple[World, Kept]:
    """Return the state before the first instant, in arrays, and the argument of :func:`give_back`.

    Parameters
    ----------
    walks : when critical paths are walked.
    depth : number of recorded instances of each op, for tracing a wait back to its cause; 0 or a
    power of two.
    limit : number of times each op runs, NONE for no limit.
    record : iterations to keep in the timeline.
    log : log the ops that the graph marks; such a world must not be given back.
    within_s : least time within which the last of the staggered groups starts (s).
    """
    kept = None if log else _kept.pop(graph, None)
    if kept is None:
        layout = _lay_out(graph, log)
        written = [getattr(layout, name).view(np.uint8) for name in _REWRITTEN]
        copies = [values.copy() if values.any() else None for values in written]
        written += [layout.edges["tokens"], _part(layout.ops, *_OP_REWRITTEN)]
        copies += [values.copy() for values in written[len(copies) :]]
        kept = Kept(layout, list(zip(written, copies, strict=True)))
    else:
        for values, first in kept.written:
            if first is None:
                values.fill(0)
            else:
                values[:] = first
    room = max(LOG_ROOM, 8 * sum(logged.ops.size for logged in graph.logged)) if log else 0
    sizes = {
        **dict.fromkeys(("critical", "critical_count"), graph.n_ops if depth else 0),
        **dict.fromkeys(("span_ready", "span_start", "span_end"), graph.n_ops * len(record)),
        **dict.fromkeys(("log_time", "log_what", "log_drawn"), room),
    }
    world = kept.world._replace(
        history=aligned(graph.n_ops * depth, DTYPES["history"]),
        **{name: np.zeros(size, DTYPES[name]) for name, size in sizes.items()},
    )
    world.span_end[:] = np.nan
    assign(
        world,
        key=key(seed) if graph.random else 0,
        limit=limit,
        depth=depth,
        first_span=record.start,
        end_span=record.stop,
        log_room=room,
        log_left=room - room // 4 if log else 1,  # a quarter is for the rest of an instant
        span=walks.span,
        stride=walks.stride,
        turns=walks.turns,
        first_turn=seed % walks.turns,
        unwalked=walks.unwalked,
    )
    if graph.staggered:
        parts = np.append(offsets(seed, graph.n_groups), 0.0)
        longer = max(within_s / float(graph.op_stagger_s.max()), 1.0)
        world = world._replace(late=longer * graph.op_stagger_s * parts[graph.op_group])
    return world, kept


def give_back(graph: OpGraph, kept: Kept) -> None:
    """Keep a world for the next simulation of the same graph."""
    _kept[graph] = kept


LOG_ROOM = 1 << 14
"""Minimum number of log entries that fit before the log is emptied."""

_kept: WeakKeyDictionary[OpGraph, Kept] = WeakKeyDictionary()
_REWRITTEN = (
    "state links paths groups slots routes places link_places pool_places pools streams extras "
    "specials items probes counters counter_part moved waits marked_at marked_busy marked_waits "
    "histogram stale_sum stale_count stamps"
).split()
_OP_REWRITTEN = ("missing", "holds")
"""First and last of the fields that are written to; the fields in between are restored too."""


def _part(records: Records, first: str, last: str) -> Records:
    """Return the bytes of the fields from ``first`` to ``last``, as one item per record."""
    fields: Any = records.dtype.fields
    begin, (kind, end) = fields[first][1], fields[last][:2]
    names, formats = ["part"], [f"V{end + kind.itemsize - begin}"]
    size = records.dtype.itemsize
    part = np.dtype({"names": names, "formats": formats, "offsets": [begin], "itemsize": size})
    return np.ndarray(len(records), part, records)["part"]


def _lay_out(graph: OpGraph, log: bool) -> World:
    """Lay out everything that is the same for all simulations of a graph, with or without a log."""
    edges, into, out_start, in_start = _edges(graph)
    free = (np.diff(graph.route_start) == 0) & np.isinf(graph.route_cap_bytes_per_s)
    by_route = np.append(np.where(free, NONE, np.arange(len(free))), NONE).astype(np.int32)
    holds, hold = _holds(graph)
    ops = _ops(graph, out_start, in_start, hold, by_route)
    extras = Extras(ops)
    _set_extras(graph, extras)
    rules = lay_out_rules(graph, ops, extras, edges, by_route, (into, in_start))
    slots, n_queued = _slots(graph, rules.slots)
    users = np.concatenate([ops["route"], rules.alternatives["route"]])
    logged = _logged(graph) if log else np.zeros(graph.n_ops, np.int32)
    probes, watched, n_stamps = _probes(graph, extras, logged)
    streams, factors = _streams(graph)
    n_links, n_routes = len(graph.link_capacity_bytes_per_s), len(graph.route_weight)
    flows = starts(np.bincount(users[users >= 0], minlength=n_routes))
    links, paths, routes, pools = _network(graph, flows)
    world = {
        "ops": ops,
        "edges": edges,
        "gate_edges": rules.gate_edges,
        "holds": holds,
        "slots": slots,
        "links": links,
        "paths": paths,
        "routes": routes,
        "pools": pools,
        "streams": streams,
        "extras": extras.records(),
        "specials": rules.specials,
        "alternatives": rules.alternatives,
        "items": rules.items,
        "probes": probes,
        "stamps": aligned(n_stamps, DTYPES["stamps"]),
        "into": into,
        "into_first": in_start.astype(np.int32),
        "places": np.full(n_routes, NONE, np.int32),
        "link_places": np.full(n_links, NONE, np.int32),
        "pool_places": np.full(n_links + n_routes, NONE, np.int32),
        "cause": graph.op_cause.astype(np.int32),
        "table": factors,
        "watched": watched,
        "counter_every": graph.counter_every,
    }
    bins = max(256, 16 * int(graph.group_count.sum())) if len(graph.counter_every) else 1
    sizes = {
        "state": 1,
        "groups": graph.n_groups,
        "active": len(paths),
        **dict.fromkeys(("queue", "line"), n_queued),
        "ended": int(np.diff(flows).max(initial=0)),
        "soon": graph.n_ops + 1,
        "touched": len(slots),
        "histogram": bins,
        **dict.fromkeys(("flying", "levels"), int(flows[-1])),
        **dict.fromkeys(("members", "keys"), len(paths) + n_routes),
        **dict.fromkeys(("agenda", "due"), len(pools)),
        **dict.fromkeys(("timer_time", "timer_what"), graph.n_ops + 64),
        **dict.fromkeys(("changed", "region_routes", "moved"), n_routes),
        **dict.fromkeys(("region_links", "region_pools", "filling", "share"), n_links),
        **dict.fromkeys(("counters", "counter_part"), len(graph.counter_every)),
        **dict.fromkeys(("waits", "marked_waits"), graph.n_groups * len(CAUSES)),
        **dict.fromkeys(("marked_at", "marked_busy"), graph.n_groups),
        **dict.fromkeys(("stale_sum", "stale_count"), graph.n_groups),
    }
    blank = {name: np.zeros(sizes.get(name, 0), kind) for name, kind in DTYPES.items()}
    layout = World(**{**blank, **world})
    layout.groups["device"] = graph.group_device
    _set_state(graph, layout)
    return layout


def _set_state(graph: OpGraph, layout: World) -> None:
    """Set what the single record of state says about a graph."""
    plain = bool(
        np.all(graph.route_weight == 1.0)
        and np.all(graph.route_units == 1.0)
        and np.all(np.isinf(graph.route_cap_bytes_per_s))
    )
    assign(
        layout,
        n_ops=graph.n_ops,
        n_links=len(layout.links),
        n_groups=graph.n_groups,
        plain=plain,
        behind=graph.n_groups,
        timer_room=len(layout.timer_time),
        staggered=graph.staggered,
        bins=len(layout.histogram),
    )


def _ops(graph: OpGraph, out_start: Ids, in_start: Ids, hold: Ids, by_route: Refs) -> Records:
    """Make a record for each op."""
    n, lags = graph.n_ops, graph.edge_lag
    lacking = np.bincount(graph.edge_target[lags == 0], minlength=n)
    early = np.bincount(graph.edge_target, np.maximum(lags - 1, 0), minlength=n)
    queued = np.append(graph.route_queued_bytes > 0.0, False)
    ops = aligned(n, DTYPES["ops"])
    for at in range(0, n, _CHUNK):  # in chunks that stay in the cache
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
        moves = (graph.op_bytes[part] > 0.0) | queued[graph.op_route[part]]
        some["route"] = np.where(moves, by_route[graph.op_route[part]], NONE)
        some["extra"] = NONE
    ops["need"] = np.diff(in_start) + 1
    return ops


_CHUNK = 4096


def _set_extras(graph: OpGraph, extras: Extras) -> None:
    """Set latencies, noise, and the ops that end an iteration."""
    late = np.flatnonzero(graph.op_latency_s)
    extras.set("latency", late, graph.op_latency_s[late])
    noisy = np.append(graph.stream_cv > 0.0, False)
    streams = np.where(noisy[graph.op_stream], graph.op_stream, NONE)
    extras.set("stream", np.flatnonzero(streams != NONE), streams[streams != NONE])
    extras.set("mark", graph.group_mark, np.arange(graph.n_groups))


def _slots(graph: OpGraph, alternative: Ids) -> tuple[Records, int]:
    """Make a record for each slot; also return the room that all queues need."""
    slots = aligned(len(graph.slot_capacity), DTYPES["slots"])
    slots["free"] = graph.slot_capacity
    slots["released"], slots["releaser"], slots["group"] = -1.0, NONE, NONE
    slots["group"][graph.group_device] = np.arange(graph.n_groups)
    users = np.append(graph.hold_slots, alternative)
    first = starts(np.bincount(users, minlength=len(slots)))
    slots["first"], slots["room"] = first[:-1], np.diff(first)
    return slots, int(first[-1])


def _network(graph: OpGraph, flows: Ids) -> tuple[Records, Records, Records, Records]:
    """Make links, paths, routes and pools; ``flows`` is where the transfers of each route begin."""
    n_routes, n_links = len(graph.route_weight), len(graph.link_capacity_bytes_per_s)
    links = np.zeros(n_links, DTYPES["links"])
    links["capacity"] = graph.link_capacity_bytes_per_s
    links["owner"] = NONE
    links["idle"] = -np.inf
    crossing = starts(np.bincount(graph.route_links, minlength=n_links))
    links["first"] = crossing[:-1]
    paths = np.zeros(len(graph.route_links), DTYPES["paths"])
    paths["link"], paths["units"] = graph.route_links, graph.route_units
    paths["route"] = np.repeat(np.arange(n_routes), np.diff(graph.route_start))
    routes = aligned(n_routes, DTYPES["routes"])
    routes["weight"] = graph.route_weight
    routes["cap"] = graph.route_cap_bytes_per_s / graph.route_weight
    routes["burst"], routes["queued"] = graph.route_burst_bytes, graph.route_queued_bytes
    routes["first"], routes["last"] = graph.route_start[:-1], graph.route_start[1:]
    routes["home"], routes["flow"] = NONE, flows[:-1]
    pools = aligned(n_links + n_routes, DTYPES["pools"])
    pools["first"] = np.concatenate([crossing[:-1], crossing[-1] + np.arange(n_routes)])
    pools["limit"] = np.inf
    return links, paths, routes, pools


def _streams(graph: OpGraph) -> tuple[Records, Floats]:
    """Make a record for each stream, and the concatenated tables of factors."""
    streams = np.zeros(len(graph.stream_cv), DTYPES["streams"])
    streams["at"] = NONE
    if not (graph.stream_cv > 0.0).any():
        return streams, np.zeros(0)
    kinds, which = np.unique(
        np.stack([graph.stream_cv, graph.stream_kind]), axis=1, return_inverse=True
    )
    streams["first"] = which.ravel() * TABLE
    return streams, np.concatenate([factors(graph, float(cv), int(kind)) for cv, kind in kinds.T])


def _holds(graph: OpGraph) -> tuple[Records, Ids]:
    """Make records of held slots, and the index of each op's first record.

    The first records hold one unit of each slot. Ops that hold one unit of one slot share them, so
    that they stay in the cache.
    """
    counts, first = np.diff(graph.hold_start), graph.hold_start[:-1]
    slots = len(graph.slot_capacity)
    single = counts == 1
    single[single] = graph.hold_units[first[single]] == 1
    listed = np.repeat(~single, counts)
    holds = np.ones(slots + int(listed.sum()), DTYPES["holds"])
    holds["slot"][:slots] = np.arange(slots)
    holds["slot"][slots:] = graph.hold_slots[listed]
    holds["units"][slots:] = graph.hold_units[listed]
    hold = slots + starts(counts * ~single)[:-1]
    hold[single] = graph.hold_slots[first[single]]
    return holds, hold


def _edges(graph: OpGraph) -> tuple[Records, Refs, Ids, Ids]:
    """Return edges by source, edge ids by target, and the first index of each op in both."""
    n = graph.n_ops
    outs = starts(np.bincount(graph.edge_source, minlength=n))
    ins = starts(np.bincount(graph.edge_target, minlength=n))
    order = np.argsort(graph.edge_source, kind="stable")
    edges = np.zeros(len(order), DTYPES["edges"])
    target = graph.edge_target[order]
    edges["target"] = target
    edges["tokens"] = graph.edge_lag[order]
    into = np.argsort(target, kind="stable").astype(np.int32)
    return edges, into, outs, ins


def _logged(graph: OpGraph) -> Refs:
    """Return the log flags of each op, (ops,)."""
    what = np.zeros(graph.n_ops, np.int32)
    for logged in graph.logged:
        code = codes.LOG_READY if logged.at_ready else codes.LOG_END
        what[logged.ops.ravel()] |= code
    return what


def _probes(graph: OpGraph, extras: Extras, logged: Refs) -> tuple[Records, Refs, int]:
    """Make probes, the lists of probes that each op opens or closes, and the number of stamps.

    Logged ops also get lists, even if they are empty.
    """
    n_probes, n_ops = len(graph.probe_open), graph.n_ops
    probes = np.zeros(n_probes, DTYPES["probes"])
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
    what: list[Ids | Refs] = [ids[ready], ids, graph.counter_ids, ids[~ready]]
    watching = np.concatenate(ops_of)
    order = np.argsort(watching, kind="stable")  # keeps the order of the four kinds
    watched = np.concatenate(what).astype(np.int32)[order]
    counts = np.bincount(watching, minlength=n_ops)
    seen = np.flatnonzero(counts + logged)
    at = starts(counts[seen])
    edge = at[:-1]
    for name, some in zip(("ready", "close", "rise", "open"), ops_of, strict=True):
        extras.set(name, seen, edge)
        edge = edge + np.bincount(some, minlength=n_ops)[seen]
    extras.set("end", seen, at[1:])
    extras.set("log", seen, logged[seen])
    return probes, watched, int(stamps[-1])
