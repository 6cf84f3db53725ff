"""Timers: when operations end, tokens arrive and transfers start."""

from __future__ import annotations

from perfmodel.engine.codes import CROWDED, KIND, Id
from perfmodel.engine.heaps import pop, push
from perfmodel.engine.world import World


def end_soon(w: World, op: Id) -> None:
    """End an op that takes no time within this instant."""
    s = w.state[0]
    last = s.soon_first + s.soon
    if last > s.n_ops:
        last -= s.n_ops + 1
    w.soon[last] = op
    s.soon += 1


def set_timer(w: World, time: float, kind: int, op: Id) -> None:
    """Add a timer to the heap, which is ordered by (time, kind, op)."""
    s = w.state[0]
    if s.timers == s.timer_room:
        s.fault, s.culprit = CROWDED, op
        return
    s.timers += 1
    push(w.timer_what, w.timer_time, 0, s.timers - 1, kind * KIND + op, time)


def pop_timer(w: World) -> int:
    """Remove the first timer, and return its kind and op."""
    s = w.state[0]
    what: Id = w.timer_what[0]
    s.timers -= 1
    pop(w.timer_what, w.timer_time, 0, s.timers)
    return what
