"""The heap of timers: when operations end, tokens arrive and transfers start.

The engine's heaps (here, in ``pools`` and in ``filling``) are written out one by one, because each
compares different keys and records positions in a different table. A common function would need
both as arguments, and passing fields of records costs time at each step in either loop.
"""

from __future__ import annotations

from perfmodel.engine.codes import CROWDED, KIND, Id
from perfmodel.engine.world import World


def end_soon(w: World, op: Id) -> None:
    """End an op that takes no time within this instant."""
    s = w.state[0]
    last = s.soon_first + s.soon
    if last > s.n_ops:
        last -= s.n_ops + 1
    w.soon[last] = op
    s.soon += 1


# -- timers ------------------------------------------------------------------------------------


def set_timer(w: World, time: float, kind: int, op: Id) -> None:
    """Add a timer to the binary heap, which is ordered by (time, kind, op)."""
    s, times, whats = w.state[0], w.timer_time, w.timer_what
    what = kind * KIND + op
    i = s.timers
    if i == s.timer_room:
        s.fault, s.culprit = CROWDED, op
        return
    s.timers = i + 1
    while i > 0:
        parent = (i - 1) >> 1
        if times[parent] < time or (times[parent] == time and whats[parent] < what):
            break
        times[i] = times[parent]
        whats[i] = whats[parent]
        i = parent
    times[i] = time
    whats[i] = what


def pop_timer(w: World) -> int:
    """Remove the first timer, and return its kind and op."""
    s, times, whats = w.state[0], w.timer_time, w.timer_what
    first = whats[0]
    n = s.timers - 1
    s.timers = n
    time, what = times[n], whats[n]
    i = 0
    child: Id = 1
    while child < n:  # sift the gap down to the bottom, then the last timer up from there
        if child + 1 < n:
            if times[child] == times[child + 1]:
                child += whats[child + 1] < whats[child]
            else:
                child += times[child + 1] < times[child]
        times[i] = times[child]
        whats[i] = whats[child]
        i = child
        child = 2 * i + 1
    while i > 0:
        parent = (i - 1) >> 1
        if times[parent] < time or (times[parent] == time and whats[parent] < what):
            break
        times[i] = times[parent]
        whats[i] = whats[parent]
        i = parent
    times[i] = time
    whats[i] = what
    return int(first)
