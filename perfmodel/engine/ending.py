"""End of operations: release slots, pass on tokens, update gates and batches."""

from __future__ import annotations

from math import floor

from perfmodel.engine.codes import (
    CAUSES,
    DRAIN,
    FROM_BATCH,
    IDLE,
    LOG_END,
    NONE,
    PASSING,
    QUEUED,
    TICK,
    TO_BATCH,
    TO_MAILBOX,
    TO_QUORUM,
    TOKENS_ARRIVE,
    UNOPENED,
    Id,
)
from perfmodel.engine.queues import enqueue
from perfmodel.engine.starting import bytes_left, hand_token, is_batch, start_op, supply
from perfmodel.engine.timers import set_timer
from perfmodel.engine.waits import note, open_wait, record_of, walk_critical
from perfmodel.engine.world import World


def piece_moved(w: World, op: Id) -> None:
    """Handle the end of the transfer of an op's bytes, or of its current piece."""
    s, o = w.state[0], w.ops[op]
    if o.extra >= 0 and bytes_left(w, op) > 0.0:
        _release(w, op)
        o.since = s.now
        o.phase = QUEUED
        for k in range(o.hold, o.hold + o.holds):
            enqueue(w, w.holds[k].slot, op)
        if o.holds == 0:
            start_op(w, op, NONE)
    else:
        end_op(w, op)


def _release(w: World, op: Id) -> None:
    """Free the slots held by ``op``."""
    s, o = w.state[0], w.ops[op]
    for k in range(o.hold, o.hold + o.holds):
        slot, units = w.holds[k].slot, w.holds[k].units
        q = w.slots[slot]
        q.free += units
        q.released = s.now
        q.releaser = record_of(w, op) if s.depth > 0 else NONE
        q.busy += units * (s.now - o.since)
        if q.touched == 0:
            q.touched = 1
            w.touched[s.touched] = slot
            s.touched += 1


def end_op(w: World, op: Id) -> None:
    """End an op: free its slots, and pass on its tokens after its latency."""
    s, o = w.state[0], w.ops[op]
    now = s.now
    latency = w.extras[o.extra].latency if o.extra >= 0 else 0.0
    iteration = o.taken - 1
    record = record_of(w, op) if s.depth > 0 else NONE
    active: bool = o.phase != PASSING
    if active:
        _release(w, op)
    else:
        latency = 0.0
        record = w.extras[o.extra].through
    if s.first_span <= iteration < s.end_span:
        w.span_end[(iteration - s.first_span) * s.n_ops + op] = now
    o.phase = IDLE
    if o.extra < 0 or not is_batch(w, op):
        supply(w, op, record)
    if latency > 0.0:
        set_timer(w, now + latency, TOKENS_ARRIVE, op)
    else:
        tokens_arrive(w, op, record, active)


def tokens_arrive(w: World, op: Id, record: int, active: bool) -> None:
    """Deliver the tokens of an op's oldest instance in flight to its successors. It is ``record``,
    unless the op has an extra, which counts them.

    An inactive instance raises no counter and sends nothing to a mailbox. ``record`` is what it
    waited for.
    """
    s, o = w.state[0], w.ops[op]
    if o.extra >= 0:
        x = w.extras[o.extra]
        if s.depth > 0 and active and x.again == 0:
            record = op * s.depth + (x.arrived & (s.depth - 1))
            x.arrived += 1
        if x.end >= 0:
            _probe(w, op, active)
    for k in range(o.out, o.end):
        edge = w.edges[k]
        if edge.target >= 0 or w.gate_edges[-1 - edge.target].kind == DRAIN:
            hand_token(w, k, record)
        elif w.gate_edges[-1 - edge.target].kind != FROM_BATCH:
            _to_gate(w, k, record, active)
    if o.extra >= 0:
        if is_batch(w, op):
            _unload_batch(w, op, record)
        if w.extras[o.extra].mark >= 0:
            _mark(w, w.extras[o.extra].mark, record)


# -- gates -------------------------------------------------------------------------------------


def _to_gate(w: World, k: int, source: int, active: bool) -> None:
    """Deliver a token along edge ``k`` to an op with a gate."""
    s, edge = w.state[0], w.gate_edges[-1 - w.edges[k].target]
    x = w.specials[w.extras[w.ops[edge.target].extra].special]
    if edge.kind == TO_QUORUM:
        w.edges[k].tokens += 1
        if w.edges[k].tokens == x.fired + 1:
            x.count += 1
    elif edge.kind == TO_BATCH:
        item = w.items[edge.pair]
        item.tokens += 1
        item.came = s.now
        item.source = source
        x.source = source
        if x.count == 0:  # no tick is due
            x.count = 1
            tick = next_tick(s.now, x.cycle)
            set_timer(w, max(tick, s.now), TICK, edge.target)
        return
    elif edge.kind == TO_MAILBOX:
        if active:
            x.count += 1
        return
    else:
        x.count += 1
    if x.open == 0 and x.count >= x.need:
        x.open = 1
        supply(w, edge.target, source)


def next_tick(now: float, cycle: float) -> float:
    """Return the first multiple of ``cycle`` that is at least ``now``, both positive."""
    past = now % cycle
    whole = floor((now - past) / cycle + 0.5)
    return (whole + 1.0 if past > 0.0 else whole) * cycle


def batch_tick(w: World, op: Id) -> None:
    """Admit the items that are ready; the op starts with them unless it is already running."""
    x = w.specials[w.extras[w.ops[op].extra].special]
    x.count = 0
    waiting = 0
    for i in range(x.alternative, x.alternative + x.alternatives):
        w.items[i].admitted += w.items[i].tokens
        w.items[i].tokens = 0
        waiting += w.items[i].admitted
    if waiting > 0 and x.open == 0:
        x.open = 1
        supply(w, op, x.source)


def _unload_batch(w: World, op: Id, record: int) -> None:
    """Deliver the items that were moved, and continue with the remaining admitted items."""
    x = w.specials[w.extras[w.ops[op].extra].special]
    waiting = 0
    for i in range(x.alternative, x.alternative + x.alternatives):
        item = w.items[i]
        waiting += item.admitted
        if item.loaded > 0:
            item.loaded = 0
            hand_token(w, item.edge, record)
    if waiting > 0 and x.open == 0:
        x.open = 1
        supply(w, op, record)
    supply(w, op, record)


def _probe(w: World, op: Id, active: bool) -> None:
    s, x = w.state[0], w.extras[w.ops[op].extra]
    for k in range(x.close, x.rise):
        p = w.probes[w.watched[k]]
        if p.open == 0:
            s.fault, s.culprit = UNOPENED, w.watched[k]
            return
        at = p.stamp + p.next
        p.open -= 1
        p.next = (p.next + 1) % p.room
        p.seconds += s.now - w.stamps[at].time
        p.count += 1.0
        if p.counter >= 0:
            stale = w.counters[p.counter] - w.stamps[at].count
            w.histogram[min(stale, s.bins - 1)] += 1
            if p.group >= 0:
                w.stale_sum[p.group] += stale
                w.stale_count[p.group] += 1
    if active:
        for k in range(x.rise, x.open):
            counter = w.watched[k]
            w.counter_part[counter] += 1
            if w.counter_part[counter] == w.counter_every[counter]:
                w.counter_part[counter] = 0
                w.counters[counter] += 1
                s.raised += 1
    for k in range(x.open, x.end):
        open_wait(w, w.watched[k])
    if active and x.log & LOG_END:
        note(w, op, LOG_END)


def _walk(w: World, group: int, record: int) -> None:
    """Walk the critical path of a group after each ``stride`` of iterations, if it is its turn.

    Groups take turns, one or several at a time. A turn takes a span of iterations, so that walks
    meet all that happens in some iterations only as often as it happens. Charged is the stride
    before the last one: from then on, walks that begin at different workers have usually met.
    """
    s, g = w.state[0], w.groups[group]
    turn = g.iterations // max(s.span, s.stride) + s.first_turn
    if g.iterations >= s.unwalked and (turn + turn // s.turns) % s.turns == group % s.turns:
        if record != NONE:
            walk_critical(w, record, g.before, g.began if g.iterations >= s.stride else s.now)
    g.before = g.began
    g.began = s.now


def _mark(w: World, group: int, record: int) -> None:
    """Record that a group has ended an iteration."""
    s, g = w.state[0], w.groups[group]
    if s.depth > 0 and (g.iterations + 1) % s.stride == 0:
        _walk(w, group, record)
    w.marked_at[group] = s.now
    w.marked_busy[group] = w.slots[g.device].busy
    for k in range(group * CAUSES, (group + 1) * CAUSES):
        w.marked_waits[k] = w.waits[k]
    g.iterations += 1
    if g.iterations > s.fastest:
        s.fastest = g.iterations
    if g.iterations == s.slowest + 1:
        s.behind -= 1
        if s.behind == 0:
            s.slowest += 1
            for other in range(s.n_groups):
                if w.groups[other].iterations == s.slowest:
                    s.behind += 1
