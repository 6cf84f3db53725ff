"""The state of a simulation in records: arrays of records, or lists of objects.

Compiled code uses arrays, the plain loop objects.
"""

import functools
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from perfmodel.base.arrays import Floats, Ids, Refs

Records = NDArray[np.void]


def _record(**kinds: str) -> np.dtype[np.void]:
    fields = [(name, kind.lower()) for kind, names in kinds.items() for name in names.split()]
    return np.dtype(fields, align=True)


STATE = _record(
    f8="now gap_seconds soon_since",
    i8="raised key at_once visits",
    i4="n_ops n_links n_groups span stride turns first_turn unwalked limit depth first_span "
    "end_span plain timer_room bins staggered slowest fastest behind gap_max timers soon "
    "soon_first touched changed busy_pools walks fault culprit region_links region_routes filling "
    "logged log_room log_left",
)
OP = _record(  # 64 bytes, the size of a cache line
    f8="seconds bytes since",
    i4="need missing early taken",
    i2="priority",
    i1="phase holds",
    I4="out end hold route extra",
)
EXTRA = _record(
    f8="latency",
    i4="stream special mark ready close rise open end log arrived passed again repeated through",
)
EDGE = _record(i4="target tokens")
GATE_EDGE = _record(i4="target kind pair")
HOLD = _record(i4="slot units")
SLOT = _record(
    f8="released busy", i8="free", i4="first waiting touched releaser group head line lined room _1"
)
LINK = _record(
    f8="capacity load share left open above busy idle",
    i8="visit",
    i4="first n owner marked stale",
)
PATH = _record(f8="units", i4="link route at")
ACTIVE = _record(f8="load", i4="path route open")
ROUTE = _record(
    f8="weight served joined level",
    i4="lead count settled home step first last",
    i1="changed marked",
    F8="rate cap burst queued _3 _4 _5",
    I4="flow goal",
)
POOL = _record(f8="service at rate limit _1 _2", i4="first n noted independent")
GROUP = _record(f8="began before", i4="iterations device")
STREAM = _record(f8="factor", i4="first at")
SPECIAL = _record(
    f8="probability quantum left per_token cycle cap began needed",
    i4="every phase activity chosen among choice alternative alternatives gate need count fired "
    "open source drawn full",
)
ALTERNATIVE = _record(f8="latency", i4="hold holds route")
ITEM = _record(f8="bytes came", i4="edge tokens admitted loaded source")
STAMP = _record(f8="time", i8="count")
PROBE = _record(f8="seconds count", i4="counter group stamp room next open")
HISTORY = _record(f8="ready start", i4="last enabler count")


class World(NamedTuple):
    """Everything the event loop reads and writes; records first, then plain numbers.

    In the plain loop lists stand in for the arrays, and objects for records.
    """

    state: Records
    ops: Records
    edges: Records
    gate_edges: Records
    holds: Records
    slots: Records
    links: Records
    paths: Records
    routes: Records
    pools: Records
    groups: Records
    streams: Records
    extras: Records
    specials: Records
    alternatives: Records
    items: Records
    probes: Records
    stamps: Records
    history: Records
    active: Records
    into: Refs
    into_first: Refs
    queue: Refs
    line: Refs
    members: Refs
    keys: Floats
    places: Refs
    link_places: Refs
    pool_places: Refs
    flying: Ids
    levels: Floats
    agenda: Refs
    due: Floats
    timer_time: Floats
    timer_what: Ids
    soon: Refs
    touched: Refs
    changed: Refs
    ended: Refs
    region_links: Refs
    region_routes: Refs
    region_pools: Refs
    filling: Refs
    share: Floats
    span_ready: Floats
    span_start: Floats
    span_end: Floats
    cause: Refs
    late: Floats
    table: Floats
    watched: Refs
    log_time: Floats
    log_what: Ids
    log_drawn: Refs
    counters: Ids
    counter_every: Ids
    counter_part: Ids
    # measurements
    moved: Floats
    waits: Floats
    marked_at: Floats
    marked_busy: Floats
    marked_waits: Floats
    critical: Floats
    critical_count: Floats
    histogram: Ids
    stale_sum: Ids
    stale_count: Ids


_TYPES = (
    *(STATE, OP, EDGE, GATE_EDGE, HOLD, SLOT, LINK, PATH, ROUTE, POOL, GROUP, STREAM),
    *(EXTRA, SPECIAL, ALTERNATIVE, ITEM, PROBE, STAMP, HISTORY, ACTIVE),
)
RECORDS = dict(zip(World._fields, _TYPES, strict=False))
"""Type of each array of records in a world."""
_NUMBERS: dict[Any, np.dtype[Any]] = {
    Refs: np.dtype("i4"),
    Ids: np.dtype("i8"),
    Floats: np.dtype("f8"),
}
DTYPES: dict[str, np.dtype[Any]] = {
    **{
        name: np.dtype(_NUMBERS[hint])
        for name, hint in World.__annotations__.items()
        if hint in _NUMBERS
    },
    **RECORDS,
}
"""Type of each array in a world."""


def as_objects(world: World) -> World:
    """Convert a state to lists; records become objects."""
    lists = {}
    for name, array in world._asdict().items():
        lists[name] = array.tolist()
        if name in RECORDS:
            make = _class_of(name)
            lists[name] = [make(*fields) for fields in lists[name]]
    return World(**lists)


@functools.cache
def _class_of(records: str) -> type[msgspec.Struct]:
    return msgspec.defstruct(records, [(f, Any) for f in RECORDS[records].names or ()], gc=False)


def column(world: World, records: str, field: str, where: Ids | None = None) -> NDArray[Any]:
    """Return one field of all records of a kind, or of those at ``where``, as an array."""
    values = getattr(world, records)
    if isinstance(values, list):
        some = values if where is None else [values[at] for at in where.tolist()]
        return np.array([getattr(value, field) for value in some], RECORDS[records][field])
    array: NDArray[Any] = values[field]
    return array if where is None else array[where]


def scalar(world: World, field: str) -> Any:
    """Return one field of the state as a Python number."""
    return scalars(world, field)[0]


def scalars(world: World, *fields: str) -> list[Any]:
    """Return several fields of the state as Python numbers."""
    state: Any = world.state
    if isinstance(state, list):
        return [getattr(state[0], field) for field in fields]
    return [state[field][0].item() for field in fields]


def assign(world: World, **values: float) -> None:
    """Set fields of the state."""
    state: Any = world.state
    for field, value in values.items():
        if isinstance(state, list):
            setattr(state[0], field, value)
        else:
            state[field] = value


def aligned(n: int, dtype: np.dtype[Any]) -> Records:
    """Make zeroed records, aligned to cache lines."""
    room = np.zeros(n * dtype.itemsize + 64, np.uint8)
    first = -room.ctypes.data % 64
    records: Records = room[first : first + n * dtype.itemsize].view(dtype)
    return records


def starts(counts: Ids | Refs) -> Ids:
    """Return the offsets of consecutive parts of these lengths, and the end of the last."""
    ends = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=ends[1:])
    return ends


def grown(world: World) -> World:
    """Return the same world with room for twice as many timers."""
    more = scalar(world, "timer_room")
    assign(world, timer_room=2 * more)
    timers: Any = world.timer_time, world.timer_what
    if isinstance(timers[0], list):
        for column_of_timers in timers:
            column_of_timers.extend([0] * more)
        return world
    return world._replace(
        timer_time=np.pad(world.timer_time, (0, more)),
        timer_what=np.pad(world.timer_what, (0, more)),
    )
