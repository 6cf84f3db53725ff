"""What is needed soon is brought into the cache, in compiled code.

In a large simulation most of what an event touches was last touched long ago, and one thing leads
to the next: a transfer to its op, the op to its slot and to who waits for it. Who comes next is at
the top of a heap. To go the same way for them beforehand changes nothing but the time it takes. The
plain event loop leaves it.
"""

from __future__ import annotations

from typing import Any

COMPILED = False
"""Compiled code finds True here."""
KIND = 1 << 32
"""A timer is a number: its kind times this, plus its op."""
CROWD = 256
"""In smaller heaps nobody is looked at: what they lead to stays in the cache."""
EDGES_IN_LINE = 8
"""Edges in a line of the cache."""

Id = int
World = Any


def prefetch_op(w: World, op: Id) -> None:
    """Bring an op into the cache, where there is one: compiled code does."""


def prefetch_edge(w: World, k: Id) -> None:
    """Bring an edge into the cache."""


def prefetch_slot(w: World, slot: Id) -> None:
    """Bring a slot into the cache."""


def prefetch_route(w: World, route: Id) -> None:
    """Bring a route into the cache."""


def expect(w: World, op: Id) -> None:
    """An op begins its work: fetch what is needed when it ends.

    That is who waits for it, and soon the edges of the ops behind it, which mostly follow it.
    """
    o = w.ops[op]
    _fetch_targets(w, op)
    prefetch_edge(w, o.out + EDGES_IN_LINE)


def look_past_timer(w: World) -> None:
    """The first timer has been taken out: look at the next, row by row of the heap."""
    s, whats = w.state[0], w.timer_what
    if s.timers < CROWD:
        return
    for k in range(3, 7):
        prefetch_op(w, whats[k] & (KIND - 1))
    for k in range(1, 3):
        prefetch_edge(w, w.ops[whats[k] & (KIND - 1)].out)
    _look_at(w, whats[0] & (KIND - 1))


def look_past_flow(w: World, pool: Id) -> None:
    """The first transfer of a pool ends, and is there yet: look at the next, row by row."""
    p = w.pools[pool]
    if p.n < CROWD:
        return
    for k in range(p.first + 7, p.first + 15):
        prefetch_route(w, w.members[k])
    for k in range(p.first + 3, p.first + 7):
        prefetch_op(w, w.routes[w.members[k]].lead)
    for k in range(p.first + 1, p.first + 3):
        _look_at(w, w.routes[w.members[k]].lead)


def _look_at(w: World, op: Id) -> None:
    """An op that ends soon has been fetched: fetch its slot, and who waits for it."""
    o = w.ops[op]
    if o.holds > 0:
        prefetch_slot(w, w.holds[o.hold].slot)
    _fetch_targets(w, op)


def _fetch_targets(w: World, op: Id) -> None:
    o = w.ops[op]
    for k in range(o.out, o.end):
        if w.edges[k].target >= 0:
            prefetch_op(w, w.edges[k].target)
