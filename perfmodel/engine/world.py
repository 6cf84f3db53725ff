"""The state of a simulation in records: arrays of records, or lists of objects.

Compiled code uses arrays, the plain loop objects.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

_F, _I, _L = "f8", "i4", "i8"


def _record(**kinds: str) -> np.dtype[Any]:
    fields = [(name, kind.lower()) for kind, names in kinds.items() for name in names.split()]
    return np.dtype(fields, align=True)


STATE = _record(
    f8="now gap_seconds soon_since",
    i8="raised key at_once",
    i4="n_ops n_links n_groups limit depth first_span end_span plain timer_room bins staggered "
    "slowest fastest behind gap_max timers soon soon_first touched changed busy_pools walks fault "
    "culprit region_links region_routes filling logged log_room log_left",
)
OP = _record(  # 64 bytes, the size of a cache line
    f8="seconds bytes since",
    i4="need missing early taken",
    i2="priority",
    i1="phase holds",
    I4="out end hold route extra",
)
EXTRA = _record(f8="latency", i4="stream special mark ready close rise open end log")
EDGE = _record(i4="target tokens")
GATE_EDGE = _record(i4="target kind pair")
HOLD = _record(i4="slot units")
SLOT = _record(
    f8="released busy", i8="free", i4="first waiting touched releaser group head _1 _2 _3 _4"
)
LINK = _record(f8="capacity load share left open above", i4="first n owner marked place stale")
PATH = _record(f8="units", i4="link route at")
ACTIVE = _record(f8="load", i4="path route open")
ROUTE = _record(
    f8="weight served joined level",
    i4="lead count settled home step first last",
    i1="changed marked",
    F8="rate cap _1 _2 _3 _4 _5",
    I4="flow goal",
)
POOL = _record(f8="service at rate limit _1 _2", i4="first n place noted")
GROUP = _record(i4="iterations device")
STREAM = _record(f8="factor", i4="first at")
SPECIAL = _record(
    f8="probability quantum left per_token cycle cap began needed",
    i4="every phase activity chosen among choice alternative alternatives gate need count fired "
    "open source drawn full",
)
ALTERNATIVE = _record(f8="latency", i4="hold holds route")
ITEM = _record(f8="bytes came", i4="edge tokens admitted loaded source")
PROBE = _record(f8="seconds count", i4="counter group stamp room next open")
HISTORY = _record(f8="ready start", i4="last enabler count")


class World(NamedTuple):
    """Everything the event loop reads and writes; records first, then plain numbers."""

    state: Any
    ops: Any
    edges: Any
    gate_edges: Any
    holds: Any
    slots: Any
    links: Any
    paths: Any
    routes: Any
    pools: Any
    groups: Any
    streams: Any
    extras: Any
    specials: Any
    alternatives: Any
    items: Any
    probes: Any
    history: Any
    active: Any
    into: Any
    into_first: Any
    arrived: Any
    queue: Any
    members: Any
    keys: Any
    places: Any
    flying: Any
    levels: Any
    agenda: Any
    due: Any
    timer_time: Any
    timer_what: Any
    soon: Any
    touched: Any
    changed: Any
    ended: Any
    region_links: Any
    region_routes: Any
    region_pools: Any
    filling: Any
    share: Any
    span_ready: Any
    span_start: Any
    span_end: Any
    cause: Any
    late: Any
    table: Any
    watched: Any
    log_time: Any
    log_what: Any
    log_drawn: Any
    counters: Any
    counter_every: Any
    counter_part: Any
    stamp_time: Any
    stamp_count: Any
    # measurements
    moved: Any
    waits: Any
    marked_at: Any
    marked_busy: Any
    marked_waits: Any
    critical: Any
    critical_count: Any
    histogram: Any
    stale_sum: Any
    stale_count: Any


DTYPES: dict[str, np.dtype[Any]] = dict(
    zip(
        World._fields,
        (
            *(STATE, OP, EDGE, GATE_EDGE, HOLD, SLOT, LINK, PATH, ROUTE, POOL, GROUP, STREAM),
            *(EXTRA, SPECIAL, ALTERNATIVE, ITEM, PROBE, HISTORY, ACTIVE),
        ),
        strict=False,
    )
)
"""Type of each array in a world."""
for _kind, _names in (
    (
        _I,
        "into into_first arrived queue members places flying agenda soon touched changed "
        "ended region_links region_routes region_pools filling cause watched log_drawn",
    ),
    (
        _L,
        "timer_what counters counter_every counter_part stamp_count histogram stale_sum "
        "stale_count log_what",
    ),
    (
        _F,
        "keys levels timer_time share due span_ready span_start span_end late table "
        "stamp_time log_time moved waits marked_at marked_busy marked_waits critical "
        "critical_count",
    ),
):
    DTYPES |= {name: np.dtype(_kind) for name in _names.split()}
RECORDS = World._fields[: World._fields.index("into")]


def as_objects(world: World) -> World:
    """Convert a state to lists; records become objects."""
    plain = {name: getattr(world, name).tolist() for name in World._fields}
    for name in RECORDS:
        make = _class_of(name, getattr(world, name).dtype)
        plain[name] = [make(*fields) for fields in plain[name]]
    return World(**plain)


def column(world: World, records: str, field: str) -> NDArray[Any]:
    """Return one field of all records of a kind, as an array."""
    values = getattr(world, records)
    if isinstance(values, list):
        kind = DTYPES[records][field]
        return np.array([getattr(value, field) for value in values], kind)
    array: NDArray[Any] = values[field]
    return array


def values_at(world: World, records: str, field: str, where: NDArray[Any]) -> NDArray[Any]:
    """Return one field of some records of a kind, as an array."""
    values = getattr(world, records)
    if isinstance(values, list):
        kind = DTYPES[records][field]
        return np.array([getattr(values[at], field) for at in where.tolist()], kind)
    array: NDArray[Any] = values[field][where]
    return array


_classes: dict[str, Any] = {}


def _class_of(name: str, dtype: np.dtype[Any]) -> Any:
    if name not in _classes:
        _classes[name] = msgspec.defstruct(name, [(f, Any) for f in dtype.names or ()], gc=False)
    return _classes[name]


def starts(counts: NDArray[Any]) -> NDArray[np.int64]:
    """Return the offsets of consecutive parts of these lengths, and the end of the last."""
    found = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=found[1:])
    return found


def crowded(world: World) -> bool:
    """Return whether the timers need more room."""
    timers, room = (int(column(world, "state", name)[0]) for name in ("timers", "timer_room"))
    return 2 * timers > room


def grown(world: World) -> World:
    """Return the same world with room for twice as many timers."""
    room = 2 * int(column(world, "state", "timer_room")[0])
    if isinstance(world.state, list):
        world.state[0].timer_room = room
        world.timer_time.extend([0.0] * (room - len(world.timer_time)))
        world.timer_what.extend([0] * (room - len(world.timer_what)))
        return world
    world.state["timer_room"] = room
    time, what = np.zeros(room), np.zeros(room, _L)
    time[: len(world.timer_time)] = world.timer_time
    what[: len(world.timer_what)] = world.timer_what
    return world._replace(timer_time=time, timer_what=what)
