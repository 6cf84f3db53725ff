"""Start of operations: readiness, queues for slots, start."""

from __future__ import annotations

from perfmodel.engine.codes import (
    BATCH,
    DRAIN,
    EVERY,
    FLOW_STARTS,
    FROM_BATCH,
    KIND,
    LOG_READY,
    MAILBOX,
    MOVING,
    NONE,
    OP_ENDS,
    PASSING,
    PLAIN,
    QUEUED,
    QUORUM,
    WORKING,
    Id,
)
from perfmodel.engine.draws import draw, noise_factor
from perfmodel.engine.pools import queued_s
from perfmodel.engine.prefetch import COMPILED, expect
from perfmodel.engine.queues import dequeue, enqueue
from perfmodel.engine.sharing import flow_starts
from perfmodel.engine.timers import end_soon, set_timer
from perfmodel.engine.waits import attribute_wait, note, open_wait, record_of, record_ready
from perfmodel.engine.world import World

# -- readiness ---------------------------------------------------------------------------------


def supply(w: World, op: Id, source: int) -> None:
    """Supply one of the missing inputs of ``op``, from the instance ``source``."""
    o = w.ops[op]
    o.missing -= 1
    if o.missing == 0:
        op_ready(w, op, source)


def hand_token(w: World, k: int, source: int) -> None:
    """Deliver a token along edge ``k``; ``tokens`` counts all tokens so far, plus the lag."""
    edge = w.edges[k]
    target = edge.target if edge.target >= 0 else w.gate_edges[-1 - edge.target].target
    t = w.ops[target]
    edge.tokens += 1
    if edge.tokens == t.taken + 1:
        t.missing -= 1
        if t.missing == 0:
            op_ready(w, target, source)
    else:
        t.early += 1


def op_ready(w: World, op: Id, source: int) -> None:
    """Take a token from every edge into ``op``, and queue it for its slots."""
    s, o = w.state[0], w.ops[op]
    if o.taken == s.limit and not _keeps_own_count(w, op):
        return
    o.taken += 1
    if s.depth > 0:
        record_ready(w, op, source)
    o.missing = o.need
    o.since = s.now
    if o.early > 0:
        _take_early(w, op)
    active = True
    if o.extra >= 0:
        x = w.extras[o.extra]
        for k in range(x.ready, x.close):
            open_wait(w, w.watched[k])
        if x.special >= 0:
            active = _prepare(w, op)
        if active and x.log & LOG_READY:
            note(w, op, LOG_READY)
    if not active:
        o.phase = PASSING
        x = w.extras[o.extra]
        x.passed += 1
        x.repeated -= x.again
        x.again = 0
        x.through = source
        start_op(w, op, NONE)
    elif o.holds == 0:
        start_op(w, op, NONE)
    else:
        o.phase = QUEUED
        for k in range(o.hold, o.hold + o.holds):
            enqueue(w, w.holds[k].slot, op)


def _take_early(w: World, op: Id) -> None:
    """Count the tokens that have already arrived for the next iteration."""
    o = w.ops[op]
    for k in range(w.into_first[op], w.into_first[op + 1]):
        edge = w.edges[w.into[k]]
        surplus = edge.tokens - o.taken
        kind = PLAIN if edge.target >= 0 else w.gate_edges[-1 - edge.target].kind
        if surplus > 0 and kind == DRAIN:
            w.edges[w.gate_edges[-1 - edge.target].pair].tokens += surplus
            edge.tokens -= surplus
            o.early -= surplus
        elif surplus > 0 and (kind == PLAIN or kind == FROM_BATCH):
            o.early -= 1
            o.missing -= 1


def _keeps_own_count(w: World, op: Id) -> bool:
    """Return whether an op's gate fires independently of iterations."""
    extra = w.ops[op].extra
    if extra < 0 or w.extras[extra].special < 0:
        return False
    gate = w.specials[w.extras[extra].special].gate
    return bool(gate == QUORUM or gate == EVERY or gate == BATCH)


def _prepare(w: World, op: Id) -> bool:
    """Apply an op's rules to the iteration it is ready for; return False if it is inactive."""
    o = w.ops[op]
    x = w.specials[w.extras[o.extra].special]
    if x.gate == QUORUM:
        x.fired += 1
        x.count = 0
        for k in range(w.into_first[op], w.into_first[op + 1]):
            if w.edges[w.into[k]].tokens > x.fired:
                x.count += 1
        if x.count < x.need:
            x.open = 0
            o.missing += 1
    elif x.gate == EVERY:
        x.count -= x.need
        if x.count < x.need:
            x.open = 0
            o.missing += 1
    elif x.gate == BATCH:
        x.open = 0
        o.missing += 1
        _load_batch(w, op)
    iteration = o.taken - 1
    if iteration % x.every != x.phase:
        return False
    if x.activity >= 0:
        if not draw(w, x.activity, iteration, 0) * (1.0 / KIND) < x.probability:
            return False
        if x.among > 0 and draw(w, x.activity, iteration, 1) * x.among // KIND != x.chosen:
            return False
    if x.choice >= 0:
        x.drawn = draw(w, x.choice, iteration, 1) * x.alternatives // KIND
        a = x.alternative + x.drawn
        o.hold, o.holds = w.alternatives[a].hold, w.alternatives[a].holds
        o.route = w.alternatives[a].route
        w.extras[o.extra].latency = w.alternatives[a].latency
    return True


def dispatch(w: World) -> None:
    """Give free slots to the first ops in their queues."""
    s = w.state[0]
    while s.touched > 0:
        s.touched -= 1
        slot = w.touched[s.touched]
        q = w.slots[slot]
        q.touched = 0
        while q.waiting > 0:
            op = q.head
            o = w.ops[op]
            if not _has_room(w, op):
                break
            releaser, released = NONE, o.since
            for k in range(o.hold, o.hold + o.holds):
                hold = w.holds[k]
                other = w.slots[hold.slot]
                other.free -= hold.units
                dequeue(w, hold.slot)
                if other.released > released:
                    releaser, released = other.releaser, other.released
                if hold.slot != slot and other.touched == 0:
                    other.touched = 1
                    w.touched[s.touched] = hold.slot
                    s.touched += 1
            start_op(w, op, releaser)


def _has_room(w: World, op: Id) -> bool:
    o = w.ops[op]
    for k in range(o.hold, o.hold + o.holds):
        hold = w.holds[k]
        q = w.slots[hold.slot]
        if q.free < hold.units or q.head != op:
            return False
    return True


# -- running -----------------------------------------------------------------------------------


def start_op(w: World, op: Id, releaser: int) -> None:
    """Start an op or its next piece; ``releaser`` is the instance that freed its slots."""
    s, o = w.state[0], w.ops[op]
    if o.phase == QUEUED and o.extra >= 0 and bytes_left(w, op) > 0.0:
        o.since = s.now
        move_piece(w, op)
        return
    iteration = o.taken - 1
    if s.first_span <= iteration < s.end_span:
        span = (iteration - s.first_span) * s.n_ops + op
        w.span_ready[span] = o.since
        w.span_start[span] = s.now
    o.since = s.now
    if s.depth > 0 and o.phase != PASSING:
        record = record_of(w, op)
        if releaser != NONE or o.extra < 0 or not is_batch(w, op):
            w.history[record].start = s.now
        if releaser != NONE:
            w.history[record].enabler = releaser
        for k in range(o.hold, o.hold + o.holds):
            q = w.slots[w.holds[k].slot]
            if q.group >= 0 and q.released < s.now:
                attribute_wait(w, q.group, max(q.released, 0.0), record)
    if o.phase == PASSING:
        end_soon(w, op)
        return
    seconds = o.seconds
    if o.extra >= 0:
        x = w.extras[o.extra]
        if x.stream >= 0:
            seconds *= noise_factor(w, x.stream, iteration)
        if x.special >= 0 and w.specials[x.special].gate == MAILBOX:
            mailbox = w.specials[x.special]
            seconds += mailbox.count * mailbox.per_token
            mailbox.count = 0
    if seconds > 0.0:
        o.phase = WORKING
        if COMPILED:
            expect(w, op)
        set_timer(w, s.now + seconds, FLOW_STARTS if o.route >= 0 else OP_ENDS, op)
    elif o.route >= 0:
        move_piece(w, op)
    else:
        o.phase = WORKING
        end_soon(w, op)


def move_piece(w: World, op: Id) -> None:
    """Start to move the op's bytes, or their next piece."""
    o = w.ops[op]
    o.phase = MOVING
    amount = o.bytes
    if o.extra >= 0:
        extra = w.extras[o.extra]
        if extra.stream >= 0:
            amount *= noise_factor(w, extra.stream, o.taken - 1)
        if extra.special >= 0:
            x = w.specials[extra.special]
            if x.left > 0.0:
                amount = x.left
            x.left = max(amount - x.quantum, 0.0)
            amount = min(amount, x.quantum)
    if amount > 0.0:
        if COMPILED:
            expect(w, op)
        flow_starts(w, op, amount)
    elif o.bytes > 0.0:
        end_soon(w, op)
    else:
        late = queued_s(w, o.route)
        if late > 0.0:
            set_timer(w, w.state[0].now + late, OP_ENDS, op)
        else:
            end_soon(w, op)


def bytes_left(w: World, op: Id) -> float:
    """Return the bytes of an op that remain after the current piece."""
    special = w.extras[w.ops[op].extra].special
    return float(w.specials[special].left) if special >= 0 else 0.0


def is_batch(w: World, op: Id) -> bool:
    """Return whether an op with an extra moves items in batches."""
    special = w.extras[w.ops[op].extra].special
    return bool(special >= 0 and w.specials[special].gate == BATCH)


def _load_batch(w: World, op: Id) -> None:
    """Load as many admitted items as fit, at least one."""
    s, o = w.state[0], w.ops[op]
    x = w.specials[w.extras[o.extra].special]
    total, last, full = 0.0, NONE, 0
    for i in range(x.alternative, x.alternative + x.alternatives):
        item = w.items[i]
        if item.admitted > 0 and (total == 0.0 or total + item.bytes <= x.cap):
            item.admitted -= 1
            item.loaded = 1
            total += item.bytes
            if last == NONE or item.came > w.items[last].came:
                last = i
        elif item.admitted > 0:
            full = 1
    o.bytes = total
    if s.depth > 0:
        _trace_batch(w, op, last, full)


def _trace_batch(w: World, op: Id, last: int, full: int) -> None:
    """Note what a batch waited for: item ``last``, its latest, or the batches before it.

    A batch that begins when another ends usually has items that came in between. Faster batches
    would only have become smaller and more numerous, unless even without their start-up times
    (which full batches need nonetheless) they would have lasted until the item came. If so, they
    are one busy stretch with this batch, which begins with the first of them.
    """
    s, o = w.state[0], w.ops[op]
    extra = w.extras[o.extra]
    x, item = w.specials[extra.special], w.items[last]
    first = op * s.depth
    h = w.history[first + ((o.taken - 1) & (s.depth - 1))]
    before = w.history[first + ((o.taken - 2) & (s.depth - 1))]
    busy: bool = False
    if first <= h.last < first + s.depth:
        x.needed += s.now - x.began
        if x.full == 0:
            x.needed -= o.seconds + extra.latency
        busy = before.start + x.needed >= item.came
    if busy:
        h.ready, h.start = before.ready, before.start
        h.last, h.enabler = before.last, before.enabler
        h.count = before.count + 1
    else:
        h.ready = item.came
        h.start = item.came
        h.last = item.source
        h.enabler = item.source
        x.needed = 0.0
    x.began = s.now
    x.full = full
