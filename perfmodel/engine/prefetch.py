"""Prefetching: compiled code brings data that it needs soon into the cache.

In a large simulation, most data of an event is no longer in the cache, and is found by following
references: from a transfer to its op, from the op to its slot and its successors. The next events
are at the top of a heap, so the same references can be followed ahead of time. This only affects
speed. The plain event loop does nothing here.
"""

from __future__ import annotations

from perfmodel.engine.codes import KIND, Id
from perfmodel.engine.world import World

COMPILED = False
"""True in compiled code."""
FEWEST_IN_HEAP = 256
"""Smaller heaps are not prefetched, because their data stays in the cache."""
EDGES_IN_LINE = 8
"""Number of edges per cache line."""


def fetch(record: object) -> None:
    """Prefetch a record, which need not exist; does nothing in the plain loop."""


def expect(w: World, op: Id) -> None:
    """Prefetch, when an op starts, the data needed when it ends.

    This is its successors, and the edges of the following ops, which usually run next.
    """
    fetch_targets(w, op)
    fetch(w.edges[w.ops[op].out + EDGES_IN_LINE])


def look_past_timer(w: World) -> None:
    """Prefetch data of the next timers, level by level of the heap, after the first was removed."""
    whats = w.timer_what
    if w.state[0].timers < FEWEST_IN_HEAP:
        return
    for k in range(3, 7):
        fetch(w.ops[whats[k] & (KIND - 1)])
    for k in range(1, 3):
        fetch(w.edges[w.ops[whats[k] & (KIND - 1)].out])
    look_at(w, whats[0] & (KIND - 1))


def look_past_flow(w: World, pool: Id) -> None:
    """Prefetch data of a pool's next transfers, level by level, before the first is removed."""
    p = w.pools[pool]
    if p.n < FEWEST_IN_HEAP:
        return
    for k in range(p.first + 7, p.first + 15):
        fetch(w.routes[w.members[k]])
    for k in range(p.first + 3, p.first + 7):
        fetch(w.ops[w.routes[w.members[k]].lead])
    for k in range(p.first + 1, p.first + 3):
        look_at(w, w.routes[w.members[k]].lead)


def look_at(w: World, op: Id) -> None:
    """Prefetch the slot and the successors of an op that ends soon and is in the cache."""
    o = w.ops[op]
    if o.holds > 0:
        fetch(w.slots[w.holds[o.hold].slot])
    fetch_targets(w, op)


def fetch_targets(w: World, op: Id) -> None:
    """Prefetch the successors of an op."""
    o = w.ops[op]
    for k in range(o.out, o.end):
        if w.edges[k].target >= 0:
            fetch(w.ops[w.edges[k].target])
