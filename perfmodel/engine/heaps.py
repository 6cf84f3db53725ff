"""Binary heaps of ids, ordered by (key, id): two columns from index ``first`` on.

Two kinds are in use. The ids of an indexed heap are unique, and their positions are recorded in
``places``, NONE for absent ids; :func:`update` and :func:`remove` return its new size. The ids of
the other kind are 64 bits wide.
"""

from __future__ import annotations

from perfmodel.base.arrays import Floats, Ids, Refs
from perfmodel.engine.codes import NONE, Id


def update(ids: Refs, keys: Floats, places: Refs, first: int, n: int, x: Id, key: float) -> int:
    """Insert ``x`` into an indexed heap of ``n`` ids, or change its key."""
    i: Id = places[x]
    if i < 0:
        _rise(ids, keys, places, first, n, x, key)
        return n + 1
    if key < keys[first + i]:
        _rise(ids, keys, places, first, i, x, key)
    else:
        _sink(ids, keys, places, first, n, i, x, key)
    return n


def remove(ids: Refs, keys: Floats, places: Refs, first: int, n: int, x: Id) -> int:
    """Remove ``x`` from an indexed heap of ``n`` ids, if it is there."""
    i: Id = places[x]
    if i < 0:
        return n
    places[x] = NONE
    last, key = ids[first + n - 1], keys[first + n - 1]
    if last != x:
        _sink(ids, keys, places, first, n - 1, i, last, key)
        _rise(ids, keys, places, first, places[last], last, key)
    return n - 1


def _rise(ids: Refs, keys: Floats, places: Refs, first: int, i: int, x: Id, key: float) -> None:
    """Sift ``x`` up, from the gap at ``i``."""
    while i > 0:
        parent = (i - 1) >> 1
        other, above = ids[first + parent], keys[first + parent]
        if above < key or (above == key and other < x):
            break
        ids[first + i], keys[first + i] = other, above
        places[other] = i
        i = parent
    ids[first + i], keys[first + i] = x, key
    places[x] = i


def _sink(
    ids: Refs, keys: Floats, places: Refs, first: int, n: int, i: int, x: Id, key: float
) -> None:
    """Sift ``x`` down, from the gap at ``i``."""
    child: Id = 2 * i + 1
    while child < n:
        if child + 1 < n:
            a, b = keys[first + child], keys[first + child + 1]
            if a == b:
                child += ids[first + child + 1] < ids[first + child]
            else:
                child += b < a
        other, below = ids[first + child], keys[first + child]
        if key < below or (key == below and x < other):
            break
        ids[first + i], keys[first + i] = other, below
        places[other] = i
        i = child
        child = 2 * i + 1
    ids[first + i], keys[first + i] = x, key
    places[x] = i


def push(ids: Ids, keys: Floats, first: int, i: int, x: Id, key: float) -> None:
    """Sift ``x`` up a heap that is not indexed, from the gap at ``i``."""
    while i > 0:
        parent = (i - 1) >> 1
        other, above = ids[first + parent], keys[first + parent]
        if above < key or (above == key and other < x):
            break
        ids[first + i], keys[first + i] = other, above
        i = parent
    ids[first + i], keys[first + i] = x, key


def pop(ids: Ids, keys: Floats, first: int, n: int) -> None:
    """Remove the first id of a heap that is not indexed, of which ``n`` remain: sift the gap down
    to the bottom, then the last id up from there."""
    i: Id = 0
    child: Id = 1
    while child < n:
        if child + 1 < n:
            a, b = keys[first + child], keys[first + child + 1]
            if a == b:
                child += ids[first + child + 1] < ids[first + child]
            else:
                child += b < a
        ids[first + i], keys[first + i] = ids[first + child], keys[first + child]
        i = child
        child = 2 * i + 1
    push(ids, keys, first, i, ids[first + n], keys[first + n])
