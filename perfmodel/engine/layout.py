"""Lays out a graph in arrays, as the initial state of a simulation."""

from __future__ import annotations

from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.arrays import NONE
from perfmodel.engine import codes
from perfmodel.engine.layout_rules import INT32, INT64, Extras, aligned, lay_out_rules
from perfmodel.engine.noise import TABLE, key, offsets, table
from perfmodel.engine.world import (
    ACTIVE,
    EDGE,
    GROUP,
    HISTORY,
    HOLD,
    LINK,
    OP,
    PATH,
    POOL,
    PROBE,
    ROUTE,
    SLOT,
    STATE,
    STREAM,
    World,
    starts,
)
from perfmodel.graph.op_graph import CAUSES, OpGraph

_PROBE_ROOM = 3
"""Instances of a probe that may be open at once, in addition to those that its lag opens."""


def make_world(
    graph: OpGraph,
    seed: int = 0,
    *,
    depth: int = 0,
    limit: int = NONE,
    record: range = range(0),
    log: bool = False,
) -> tuple[World, Kept]:
    """Return the state before the first instant, in arrays, and the argument of :func:`give_back`.

    Parameters
    ----------
    depth : number of recorded instances of each op, for tracing a wait back to its cause; 0 or a
    power of two.
    limit : number of times each op runs, NONE for no limit.
    record : iterations to keep in the timeline.
    log : log the ops that the graph marks; such a world must not be given back.
    """
    kept = None if log else _kept.pop(graph, None)
    if kept is None:
        layout = _lay_out(graph, log)
        written = [getattr(layout, name).view(np.uint8) for name in _REWRITTEN]
        written += [layout.edges["tokens"], _part(layout.ops, *_OP_REWRITTEN)]
        kept = Kept(layout, [(values, values.copy()) for values in written])
    else:
        for values, first in kept.written:
            values[:] = first
    n, groups = graph.n_ops, graph.n_groups
    world = kept.world._replace(
        arrived=np.zeros(n if depth else 0, INT32),
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
    if log:
        world = _with_room_to_log(graph, world)
    if graph.staggered:
        parts = np.append(offsets(seed, groups), 0.0)
        world = world._replace(late=graph.op_stagger_s * parts[graph.op_group])
    return world, kept


def _with_room_to_log(graph: OpGraph, world: World) -> World:
    """Return the world with a log; its last quarter is reserved for the rest of an instant."""
    room = max(LOG_ROOM, 8 * sum(logged.ops.size for logged in graph.logged))
    world.state["log_room"], world.state["log_left"] = room, room - room // 4
    return world._replace(
        log_time=np.zeros(room), log_what=np.zeros(room, INT64), log_drawn=np.zeros(room, INT32)
    )


LOG_ROOM = 1 << 14
"""Minimum number of log entries that fit before the log is emptied."""


class Kept(NamedTuple):
    """A world that is no longer in use, the arrays that were written to, and their initial values.

    Reusing memory is much cheaper than getting new memory from the operating system.
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
"""First and last of the fields that are written to; the fields in between are restored too."""
_SPANS = ("span_ready", "span_start", "span_end")


def _part(records: NDArray[Any], first: str, last: str) -> NDArray[Any]:
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
    by_route = np.append(np.where(free, NONE, np.arange(len(free))), NONE).astype(INT32)
    holds, hold = _holds(graph)
    ops = _ops(graph, out_start, in_start, hold, by_route)
    extras = Extras(ops)
    _set_extras(graph, extras)
    rules = lay_out_rules(graph, ops, extras, edges, by_route)
    slots, queue = _slots(graph, rules.slots)
    users = np.concatenate([ops["route"], rules.alternatives["route"]])
    logged = _logged(graph) if log else np.zeros(graph.n_ops, INT32)
    probes, watched, stamps = _probes(graph, extras, logged)
    groups = np.zeros(graph.n_groups, GROUP)
    groups["device"] = graph.group_device
    streams, factors = _streams(graph)
    return World(
        state=_state(graph),
        ops=ops,
        edges=edges,
        gate_edges=rules.gate_edges,
        holds=holds,
        slots=slots,
        groups=groups,
        streams=streams,
        extras=extras.records(),
        specials=rules.specials,
        alternatives=rules.alternatives,
        items=rules.items,
        probes=probes,
        into=into,
        into_first=in_start.astype(INT32),
        queue=queue,
        cause=graph.op_cause.astype(INT32),
        table=factors,
        watched=watched,
        counter_every=graph.counter_every.astype(INT64),
        **_network(graph, users),
        **_work_space(graph),
        **_counts(graph, stamps),
        **_REPLACED,
    )


_REPLACED: dict[str, NDArray[Any]] = {
    **dict.fromkeys(("arrived", "log_drawn"), np.zeros(0, INT32)),
    **dict.fromkeys(("log_what",), np.zeros(0, INT64)),
    **dict.fromkeys(("history",), np.zeros(0, HISTORY)),
    **dict.fromkeys(("late", "critical", "critical_count", "log_time", *_SPANS), np.zeros(0)),
}
"""Empty arrays that :func:`make_world` replaces."""


def _state(graph: OpGraph) -> NDArray[Any]:
    """Make the single record of scalar values."""
    state = np.zeros(1, STATE)
    plain = bool(
        np.all(graph.route_weight == 1.0)
        and np.all(graph.route_units == 1.0)
        and np.all(np.isinf(graph.route_cap_bytes_per_s))
    )
    for name, value in (
        ("n_ops", graph.n_ops),
        ("n_links", len(graph.link_capacity_bytes_per_s)),
        ("n_groups", graph.n_groups),
        ("plain", plain),
        ("behind", graph.n_groups),
        ("timer_room", _timer_room(graph)),
        ("staggered", graph.staggered),
        ("bins", _bins(graph)),
        ("log_left", 1),
    ):
        state[name] = value
    return state


def _timer_room(graph: OpGraph) -> int:
    return graph.n_ops + 64


def _bins(graph: OpGraph) -> int:
    """Return the number of bins in the staleness histogram."""
    return max(256, 16 * int(graph.group_count.sum())) if len(graph.counter_every) else 1


def _ops(
    graph: OpGraph,
    out_start: NDArray[Any],
    in_start: NDArray[Any],
    hold: NDArray[Any],
    by_route: NDArray[Any],
) -> NDArray[Any]:
    """Make a record for each op."""
    n, lags = graph.n_ops, graph.edge_lag
    lacking = np.bincount(graph.edge_target[lags == 0], minlength=n)
    early = np.bincount(graph.edge_target, np.maximum(lags - 1, 0), minlength=n)
    ops = aligned(n, OP)
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
        some["route"] = np.where(graph.op_bytes[part] > 0.0, by_route[graph.op_route[part]], NONE)
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


def _slots(graph: OpGraph, alternative: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Make a record for each slot, and room for all queues."""
    slots = aligned(len(graph.slot_capacity), SLOT)
    slots["free"] = graph.slot_capacity
    slots["released"], slots["releaser"], slots["group"] = -1.0, NONE, NONE
    slots["group"][graph.group_device] = np.arange(graph.n_groups)
    users = np.append(graph.hold_slots, alternative)
    first = starts(np.bincount(users, minlength=len(slots)))
    slots["first"] = first[:-1]
    return slots, np.zeros(int(first[-1]), INT32)


def _network(graph: OpGraph, users: NDArray[Any]) -> dict[str, NDArray[Any]]:
    """Make links, paths, routes and pools; ``users`` are the routes that ops may take, or NONE."""
    n_routes, n_links = len(graph.route_weight), len(graph.link_capacity_bytes_per_s)
    links = np.zeros(n_links, LINK)
    links["capacity"] = graph.link_capacity_bytes_per_s
    links["owner"] = NONE
    crossing = starts(np.bincount(graph.route_links, minlength=n_links))
    links["first"] = crossing[:-1]
    paths = np.zeros(len(graph.route_links), PATH)
    paths["link"], paths["units"] = graph.route_links, graph.route_units
    paths["route"] = np.repeat(np.arange(n_routes), np.diff(graph.route_start))
    routes = aligned(n_routes, ROUTE)
    routes["weight"] = graph.route_weight
    routes["cap"] = graph.route_cap_bytes_per_s / graph.route_weight
    routes["first"], routes["last"] = graph.route_start[:-1], graph.route_start[1:]
    routes["home"] = NONE
    flows = starts(np.bincount(users[users >= 0], minlength=n_routes))
    routes["flow"] = flows[:-1]
    pools = aligned(n_links + n_routes, POOL)
    pools["first"] = np.concatenate([crossing[:-1], crossing[-1] + np.arange(n_routes)])
    pools["place"] = NONE
    pools["limit"] = np.inf
    return {
        "links": links,
        "paths": paths,
        "routes": routes,
        "pools": pools,
        "active": np.zeros(len(paths), ACTIVE),
        "members": np.zeros(len(paths) + n_routes, INT32),
        "keys": np.zeros(len(paths) + n_routes),
        "places": np.full(n_routes, NONE, INT32),
        "flying": np.zeros(int(flows[-1]), INT32),
        "levels": np.zeros(int(flows[-1])),
        "agenda": np.zeros(len(pools), INT32),
        "due": np.zeros(len(pools)),
        "ended": np.zeros(int(np.diff(flows).max(initial=0)), INT32),
    }


def _work_space(graph: OpGraph) -> dict[str, NDArray[Any]]:
    """Make room for timers, and lists that are empty between two instants."""
    n_routes, n_links = len(graph.route_weight), len(graph.link_capacity_bytes_per_s)
    return {
        "timer_time": np.zeros(_timer_room(graph)),
        "timer_what": np.zeros(_timer_room(graph), INT64),
        "soon": np.zeros(graph.n_ops + 1, INT32),
        "touched": np.zeros(len(graph.slot_capacity), INT32),
        "changed": np.zeros(n_routes, INT32),
        "region_links": np.zeros(n_links, INT32),
        "region_routes": np.zeros(n_routes, INT32),
        "region_pools": np.zeros(n_links, INT32),
        "filling": np.zeros(n_links, INT32),
        "share": np.zeros(n_links),
    }


def _counts(graph: OpGraph, stamps: int) -> dict[str, NDArray[Any]]:
    """Make counters and sums, all zero."""
    n_counters, groups = len(graph.counter_every), graph.n_groups
    return {
        "counters": np.zeros(n_counters, INT64),
        "counter_part": np.zeros(n_counters, INT64),
        "stamp_time": np.zeros(stamps),
        "stamp_count": np.zeros(stamps, INT64),
        "moved": np.zeros(len(graph.route_weight)),
        "waits": np.zeros(groups * len(CAUSES)),
        "marked_at": np.zeros(groups),
        "marked_busy": np.zeros(groups),
        "marked_waits": np.zeros(groups * len(CAUSES)),
        "histogram": np.zeros(_bins(graph), INT64),
        "stale_sum": np.zeros(groups, INT64),
        "stale_count": np.zeros(groups, INT64),
    }


def _streams(graph: OpGraph) -> tuple[NDArray[Any], NDArray[Any]]:
    """Make a record for each stream, and the concatenated tables of factors."""
    streams = np.zeros(len(graph.stream_cv), STREAM)
    streams["at"] = NONE
    if not (graph.stream_cv > 0.0).any():
        return streams, np.zeros(0)
    kinds, which = np.unique(
        np.stack([graph.stream_cv, graph.stream_kind]), axis=1, return_inverse=True
    )
    streams["first"] = which.ravel() * TABLE
    return streams, np.concatenate([table(float(cv), int(kind)) for cv, kind in kinds.T])


def _holds(graph: OpGraph) -> tuple[NDArray[Any], NDArray[Any]]:
    """Make records of held slots, and the index of each op's first record.

    The first records hold one unit of each slot. Ops that hold one unit of one slot share them, so
    that they stay in the cache.
    """
    counts, first = np.diff(graph.hold_start), graph.hold_start[:-1]
    slots = len(graph.slot_capacity)
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
    """Return edges by source, edge ids by target, and the first index of each op in both."""
    n = graph.n_ops
    outs = starts(np.bincount(graph.edge_source, minlength=n))
    ins = starts(np.bincount(graph.edge_target, minlength=n))
    order = np.argsort(graph.edge_source, kind="stable")
    edges = np.zeros(len(order), EDGE)
    target = graph.edge_target[order]
    edges["target"] = target
    edges["tokens"] = graph.edge_lag[order]
    into = np.argsort(target, kind="stable").astype(INT32)
    return edges, into, outs, ins


def _logged(graph: OpGraph) -> NDArray[Any]:
    """Return the log flags of each op, (ops,)."""
    what = np.zeros(graph.n_ops, INT32)
    for logged in graph.logged:
        code = codes.LOG_READY if logged.at_ready else codes.LOG_END
        what[logged.ops.ravel()] |= code
    return what


def _probes(
    graph: OpGraph, extras: Extras, logged: NDArray[Any]
) -> tuple[NDArray[Any], NDArray[Any], int]:
    """Make probes, the lists of probes that each op opens or closes, and the number of stamps.

    Logged ops also get lists, even if they are empty.
    """
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
    watching = np.concatenate(ops_of).astype(INT64)
    order = np.lexsort((np.repeat(np.arange(4), [len(x) for x in what]), watching))
    watched = np.concatenate(what)[order].astype(INT32)
    seen = np.flatnonzero(np.bincount(watching, minlength=graph.n_ops) + logged)
    at = starts(np.bincount(np.searchsorted(seen, watching), minlength=len(seen)))
    edge = at[:-1].copy()
    for name, some in zip(("ready", "close", "rise", "open"), ops_of, strict=True):
        extras.set(name, seen, edge)
        edge = edge + np.bincount(np.searchsorted(seen, some), minlength=len(seen))
    extras.set("end", seen, at[1:])
    extras.set("log", seen, logged[seen])
    return probes, watched, int(stamps[-1])
