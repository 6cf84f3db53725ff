"""Queues of ops for slots: by priority, then first come first served; ties go to the lower op id.

The first op stands alone. The others are in a line, a ring buffer, as long as each comes after all
that are in it. That is so if priorities are equal, however many wait. An op that comes before the
last in the line goes into a binary heap instead. Whichever is first of both is the next.
"""

from __future__ import annotations

from perfmodel.engine.codes import Id
from perfmodel.engine.world import World


def enqueue(w: World, slot: int, op: Id) -> None:
    """Add ``op`` to the queue of ``slot``."""
    s, q = w.state[0], w.slots[slot]
    q.waiting += 1
    if q.waiting == 1:
        q.head = op
    elif goes_before(w, op, q.head):
        _heap(w, slot, q.head)
        q.head = op
    elif q.lined > 0 and goes_before(w, op, w.line[q.first + (q.line + q.lined - 1) % q.room]):
        _heap(w, slot, op)
    else:
        w.line[q.first + (q.line + q.lined) % q.room] = op
        q.lined += 1
    if q.touched == 0:
        q.touched = 1
        w.touched[s.touched] = slot
        s.touched += 1


def dequeue(w: World, slot: int) -> None:
    """Remove the head of the queue of ``slot``."""
    q = w.slots[slot]
    q.waiting -= 1
    if q.waiting == 0:
        return
    heaped: bool = q.waiting > q.lined
    if q.lined > 0:
        first = w.line[q.first + q.line]
        if not heaped or goes_before(w, first, w.queue[q.first]):
            q.head = first
            q.lined -= 1
            q.line += 1
            if q.line == q.room:
                q.line = 0
            return
    _take_from_heap(w, slot)


def goes_before(w: World, a: Id, b: Id) -> bool:
    """Return whether op ``a`` is served before op ``b``."""
    x, y = w.ops[a], w.ops[b]
    if x.priority != y.priority:
        return bool(x.priority < y.priority)
    if x.since != y.since:
        return bool(x.since < y.since)
    return a < b


def _heap(w: World, slot: int, op: Id) -> None:
    """Put ``op``, which ``waiting`` counts already, into the heap of ``slot``."""
    q = w.slots[slot]
    i = q.waiting - q.lined - 2
    while i > 0:
        parent = (i - 1) >> 1
        other = w.queue[q.first + parent]
        if not goes_before(w, op, other):
            break
        w.queue[q.first + i] = other
        i = parent
    w.queue[q.first + i] = op


def _take_from_heap(w: World, slot: int) -> None:
    """Make the first op in the heap of ``slot`` the head of its queue."""
    q = w.slots[slot]
    n, first = q.waiting - q.lined - 1, q.first
    q.head = w.queue[first]
    op = w.queue[first + n]
    i, child = 0, 1
    while child < n:
        if child + 1 < n and goes_before(w, w.queue[first + child + 1], w.queue[first + child]):
            child += 1
        if not goes_before(w, w.queue[first + child], op):
            break
        w.queue[first + i] = w.queue[first + child]
        i = child
        child = 2 * i + 1
    w.queue[first + i] = op
