"""The event loop: simulates an op graph instant by instant.

The loop unrolls iterations; memory only holds the state of one period. Rules:

- Iteration i of an op is *ready* when every in-edge holds a token and iteration i-1 has ended.
- A slot serves ready ops by priority, then first come first served; ties go to the lower op id.
  An op that holds several slots starts when it is first in the queue of each and all have room.
- An op first takes its seconds, then moves its bytes; it holds its slots for both. Its latency
  follows.
- Transfers share links max-min fairly; rates only change when a transfer starts or ends.
- Within an instant, timers go first, in order of (kind, op), then transfers that end, then ops that
  take no time. After these, slots are assigned; rates are settled last.

No tolerance is absolute, so doubling all times exactly doubles the result. Times that differ only
by rounding (SAME_INSTANT) are one instant.

The functions here run both as plain Python, on records that are objects, and compiled, on arrays of
records (:mod:`perfmodel.engine.twins`). Both do the same operations on the same numbers in the same
order, and so agree to the last bit. This is why they only use loops and numbers.
"""

from __future__ import annotations

from perfmodel.engine.codes import (
    DONE,
    ENDLESS,
    FLOW_STARTS,
    FULL,
    KIND,
    NONE,
    OP_ENDS,
    PAUSED,
    START_DUE,
    STUCK,
    TOKENS_ARRIVE,
    Id,
)
from perfmodel.engine.ending import batch_tick, end_op, piece_moved, tokens_arrive
from perfmodel.engine.prefetch import COMPILED, look_past_timer
from perfmodel.engine.sharing import flow_ends, next_service_s, settle
from perfmodel.engine.starting import dispatch, move_piece, op_ready, supply
from perfmodel.engine.timers import pop_timer, set_timer
from perfmodel.engine.waits import awaiting
from perfmodel.engine.world import World

MOST_AT_ONCE = 1000
"""How often an op may run, on average, before simulated time must advance."""
SAME_INSTANT = 1.0 + 2.0**-46
"""Times that differ by less than this factor are one instant. Otherwise rounding would separate
events that are simultaneous by design. The difference is a power of two, so that it scales
exactly."""


def advance(w: World, rounds: int, budget: int) -> int:
    """Run until every group has ended ``rounds`` iterations, or for ``budget`` instants."""
    s = w.state[0]
    while s.slowest < rounds:
        if s.fault != DONE:
            return int(s.fault)
        if budget <= 0:
            return PAUSED
        if 2 * s.timers > s.timer_room or s.log_left <= 0:
            return FULL
        budget -= 1
        if not _instant(w):
            return STUCK
    return int(s.fault)


def begin(w: World) -> None:
    """Start ops without missing inputs, or set timers for ops that start late."""
    s = w.state[0]
    for op in range(s.n_ops):
        o = w.ops[op]
        if o.missing == 0:
            late = w.late[op] if s.staggered != 0 else 0.0
            if late > 0.0:
                o.missing = 1
                set_timer(w, late, START_DUE, op)
            else:
                op_ready(w, op, NONE)
    dispatch(w)


def order(w: World) -> int:
    """Return the number of ops in a topological order of the edges without lag.

    It is less than all ops if these edges have a cycle. Call it before the simulation begins, since
    it uses the memory of the timers.
    """
    s = w.state[0]
    waits, ready, visited = w.timer_what, 0, 0
    for op in range(s.n_ops):
        waits[op] = 0
    for op in range(s.n_ops):
        for k in range(w.ops[op].out, w.ops[op].end):
            target = awaiting(w, k)
            if target >= 0:
                waits[target] += 1
    for op in range(s.n_ops):
        if waits[op] == 0:
            w.soon[ready] = op
            ready += 1
    while visited < ready:
        op = w.soon[visited]
        visited += 1
        for k in range(w.ops[op].out, w.ops[op].end):
            target = awaiting(w, k)
            if target >= 0:
                waits[target] -= 1
                if waits[target] == 0:
                    w.soon[ready] = target
                    ready += 1
    return visited


def _instant(w: World) -> bool:
    """Handle all events of the next instant; return False if there is none."""
    s = w.state[0]
    if s.changed > 0:
        settle(w)
    if s.soon > 0:  # only before the first instant
        now = s.now
    elif s.timers > 0:
        now = w.timer_time[0]
        if s.busy_pools > 0:
            now = min(now, next_service_s(w))
    elif s.busy_pools > 0:
        now = next_service_s(w)
    else:
        return False
    if s.fastest > s.slowest and now > s.now:
        gap = s.fastest - s.slowest
        s.gap_seconds += gap * (now - s.now)
        s.gap_max = max(s.gap_max, gap)
    s.now = now
    now *= SAME_INSTANT
    while True:
        while s.timers > 0 and w.timer_time[0] <= now:
            what = pop_timer(w)
            if COMPILED:
                look_past_timer(w)
            _timer(w, what >> 32, what & (KIND - 1))
        while s.busy_pools > 0 and next_service_s(w) <= now:
            for k in range(flow_ends(w)):
                piece_moved(w, w.ended[k])
        while s.soon > 0 and s.fault == DONE:
            _soon(w)
        if s.fault != DONE:
            return True
        if s.touched > 0:
            dispatch(w)
        if s.soon == 0 and not (s.timers > 0 and w.timer_time[0] <= now):
            if not (s.busy_pools > 0 and next_service_s(w) <= now):
                break
    return True


def _timer(w: World, kind: int, op: Id) -> None:
    if kind == OP_ENDS:
        end_op(w, op)
    elif kind == TOKENS_ARRIVE:
        tokens_arrive(w, op, NONE, True)
    elif kind == FLOW_STARTS:
        move_piece(w, op)
    elif kind == START_DUE:
        supply(w, op, NONE)
    else:
        batch_tick(w, op)


def _soon(w: World) -> None:
    """Handle the oldest event that is due in this instant."""
    s = w.state[0]
    op = w.soon[s.soon_first]
    if s.now > s.soon_since:
        s.soon_since = s.now
        s.at_once = 0
    s.at_once += 1
    if s.at_once > MOST_AT_ONCE * s.n_ops:
        s.fault, s.culprit = ENDLESS, op
    s.soon_first += 1
    if s.soon_first > s.n_ops:
        s.soon_first = 0
    s.soon -= 1
    end_op(w, op)
