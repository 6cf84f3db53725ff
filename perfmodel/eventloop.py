"""The event loop: an op graph simulated one instant after the other.

Iterations are unrolled here; what is kept is one period of state. Rules:

- Iteration i of an op is *ready* when every in-edge holds a token and iteration i-1 has ended.
- A slot serves ready ops by priority, then first come first served; ties go to the lower op id.
  An op that holds several slots starts when it is first in the queue of each and all have room.
- An op first takes its seconds, then moves its bytes; both hold its slots. Its latency follows.
- Transfers share links max-min fairly; rates change only where a transfer starts or ends.
- Within an instant timers go first, in order of (kind, op), then transfers that end, then what
  takes no time; slots are given away after these, and rates are settled last.

No tolerance is absolute, so scaling every time by two scales the result by exactly two. Times that
differ by rounding alone (SAME_INSTANT) are one instant.

The functions here run as they stand, on records that are Python objects, and compiled, on arrays
of records (:mod:`perfmodel.compiled`). Both do the same operations on the same numbers in the same
order, and so agree to the last bit. This is why they use loops, and nothing but numbers.
"""

from __future__ import annotations

from typing import Any

from perfmodel.ahead import COMPILED, KIND, expect, look_past_timer
from perfmodel.sharing import flow_ends, flow_starts, next_service_s, settle

NONE = -1
IDLE, QUEUED, WORKING, MOVING, PASSING = range(5)
"""Phases of an op; one that is passing is not active in this iteration."""
PLAIN, DRAIN, TO_QUORUM, TO_EVERY, TO_MAILBOX, TO_BATCH, FROM_BATCH = range(7)
"""Kinds of edges. Who takes a token from a drained one takes all that are there."""
NO_GATE, QUORUM, EVERY, MAILBOX, BATCH = range(5)
OP_ENDS, TOKENS_ARRIVE, FLOW_STARTS, START_DUE, TICK = range(5)
"""Kinds of timers, in the order in which they go off."""
DONE, PAUSED, STUCK, FULL, UNOPENED, OVERRUN, ENDLESS, CROWDED = range(8)
"""How a call of :func:`advance` ended."""
MOST_AT_ONCE = 1000
"""Times that an op may run, on average, without any time passing."""
MOST_STEPS = 16
"""Instances, per op of the graph, that a walk back looks at."""
SAME_INSTANT = 1.0 + 2.0**-46
"""Times that differ by less than this factor are one instant: what happens at once by design
would otherwise be torn apart by rounding. A power of two, so that it scales exactly."""
CAUSES, BOUND = 6, 3
"""As many as graph.CAUSES, and the place there of the cause that is not followed any further back:
who is held up by a bound waits for the bound, whatever the others are doing meanwhile."""

Id = int
World = Any
"""A perfmodel.world.World; Any, because its records are arrays or objects."""


def advance(w: World, rounds: int, budget: int) -> int:
    """Run until every group has ended ``rounds`` iterations, or for ``budget`` instants."""
    s = w.state[0]
    while s.slowest < rounds:
        if s.fault != DONE:
            return int(s.fault)
        if budget <= 0:
            return PAUSED
        if 2 * s.timers > s.timer_room:
            return FULL
        budget -= 1
        if not _instant(w):
            return STUCK
    return int(s.fault)


def begin(w: World) -> None:
    """Start what waits for nothing, or set a timer for it if it starts late."""
    s = w.state[0]
    for op in range(s.n_ops):
        o = w.ops[op]
        if o.missing == 0:
            late = w.late[op] if s.staggered != 0 else 0.0
            if late > 0.0:
                o.missing = 1
                _set_timer(w, late, START_DUE, op)
            else:
                _ready(w, op, NONE)
    _dispatch(w)


def order(w: World) -> int:
    """How many ops can be put in an order in which none waits, without lag, for a later one.

    To be called before anything has begun: it uses the room for timers.
    """
    s = w.state[0]
    waits, ready, found = w.timer_what, 0, 0
    for op in range(s.n_ops):
        waits[op] = 0
    for op in range(s.n_ops):
        for k in range(w.ops[op].out, w.ops[op].end):
            target = _awaiting(w, k)
            if target >= 0:
                waits[target] += 1
    for op in range(s.n_ops):
        if waits[op] == 0:
            w.soon[ready] = op
            ready += 1
    while found < ready:
        op = w.soon[found]
        found += 1
        for k in range(w.ops[op].out, w.ops[op].end):
            target = _awaiting(w, k)
            if target >= 0:
                waits[target] -= 1
                if waits[target] == 0:
                    w.soon[ready] = target
                    ready += 1
    return found


def _awaiting(w: World, k: int) -> int:
    """The op that has to wait for edge ``k`` in its first iteration, NONE if there is none."""
    edge = w.edges[k]
    if edge.tokens > 0:
        return NONE
    if edge.target >= 0:
        return int(edge.target)
    x = w.gate_edges[-1 - edge.target]
    if x.kind == TO_EVERY or x.kind == TO_MAILBOX or x.kind == TO_BATCH:
        return NONE
    return int(x.target)


def _instant(w: World) -> bool:
    """Handle everything that happens at the next instant; False if nothing ever will."""
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
            what = _pop_timer(w)
            if COMPILED:
                look_past_timer(w)
            _timer(w, what >> 32, what & (KIND - 1))
        while s.busy_pools > 0 and next_service_s(w) <= now:
            for k in range(flow_ends(w)):
                _moved(w, w.ended[k])
        while s.soon > 0 and s.fault == DONE:
            _soon(w)
        if s.fault != DONE:
            return True
        if s.touched > 0:
            _dispatch(w)
        if s.soon == 0 and not (s.timers > 0 and w.timer_time[0] <= now):
            if not (s.busy_pools > 0 and next_service_s(w) <= now):
                break
    return True


def _timer(w: World, kind: int, op: Id) -> None:
    if kind == OP_ENDS:
        _end(w, op)
    elif kind == TOKENS_ARRIVE:
        _arrive(w, op, True)
    elif kind == FLOW_STARTS:
        _move(w, op)
    elif kind == START_DUE:
        _supply(w, op, NONE)
    else:
        _tick(w, op)


def _soon(w: World) -> None:
    """Handle the oldest of what is due at this very instant."""
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
    _end(w, op)


def _end_soon(w: World, op: Id) -> None:
    s = w.state[0]
    last = s.soon_first + s.soon
    if last > s.n_ops:
        last -= s.n_ops + 1
    w.soon[last] = op
    s.soon += 1


# -- readiness ---------------------------------------------------------------------------------


def _supply(w: World, op: Id, source: int) -> None:
    """One of the things ``op`` lacked is there; ``source`` is the instance that brought it."""
    o = w.ops[op]
    o.missing -= 1
    if o.missing == 0:
        _ready(w, op, source)


def _hand(w: World, k: int, source: int) -> None:
    """A token comes along edge ``k``; ``tokens`` counts all that ever came, and the lag."""
    edge = w.edges[k]
    target = edge.target if edge.target >= 0 else w.gate_edges[-1 - edge.target].target
    t = w.ops[target]
    edge.tokens += 1
    if edge.tokens == t.taken + 1:
        t.missing -= 1
        if t.missing == 0:
            _ready(w, target, source)
    else:
        t.early += 1


def _ready(w: World, op: Id, source: int) -> None:
    """Take a token from every edge into ``op``, and queue it for its slots."""
    s, o = w.state[0], w.ops[op]
    if o.taken == s.limit and not _keeps_own_count(w, op):
        return
    if s.depth > 0:
        record = op * s.depth + (o.taken & (s.depth - 1))
        h = w.history[record]
        h.ready = s.now
        h.last = source
        h.enabler = source
    o.taken += 1
    o.missing = o.need
    o.since = s.now
    if o.early > 0:
        _take_early(w, op)
    active = True
    if o.extra >= 0:
        x = w.extras[o.extra]
        for k in range(x.ready, x.close):
            _open(w, w.watched[k])
        if x.special >= 0:
            active = _prepare(w, op)
    if not active:
        o.phase = PASSING
        _start(w, op, NONE)
    elif o.holds == 0:
        _start(w, op, NONE)
    else:
        o.phase = QUEUED
        for k in range(o.hold, o.hold + o.holds):
            _enqueue(w, w.holds[k].slot, op)


def _take_early(w: World, op: Id) -> None:
    """Count the tokens that have come already for the iteration after the one that is ready."""
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
    """Whether an op's gate fires at times of its own rather than once an iteration."""
    extra = w.ops[op].extra
    if extra < 0 or w.extras[extra].special < 0:
        return False
    gate = w.specials[w.extras[extra].special].gate
    return bool(gate == QUORUM or gate == EVERY or gate == BATCH)


def _prepare(w: World, op: Id) -> bool:
    """Apply the op's rules to the iteration it is ready for; False if it is not active in it."""
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
        a = x.alternative + draw(w, x.choice, iteration, 1) * x.alternatives // KIND
        o.hold, o.holds = w.alternatives[a].hold, w.alternatives[a].holds
        o.route = w.alternatives[a].route
        w.extras[o.extra].latency = w.alternatives[a].latency
    return True


def _enqueue(w: World, slot: int, op: Id) -> None:
    """Put ``op`` into the queue of ``slot``: its head, and a binary heap of those behind."""
    s, q = w.state[0], w.slots[slot]
    q.waiting += 1
    if q.waiting == 1:
        q.head = op
    else:
        if _goes_before(w, op, q.head):
            op, q.head = q.head, op
        i = q.waiting - 2
        while i > 0:
            parent = (i - 1) >> 1
            other = w.queue[q.first + parent]
            if not _goes_before(w, op, other):
                break
            w.queue[q.first + i] = other
            i = parent
        w.queue[q.first + i] = op
    if q.touched == 0:
        q.touched = 1
        w.touched[s.touched] = slot
        s.touched += 1


def _dequeue(w: World, slot: int) -> None:
    """Take the head out of the queue of ``slot``."""
    q = w.slots[slot]
    q.waiting -= 1
    if q.waiting == 0:
        return
    n, first = q.waiting - 1, q.first
    q.head = w.queue[first]
    op = w.queue[first + n]
    i, child = 0, 1
    while child < n:
        if child + 1 < n and _goes_before(w, w.queue[first + child + 1], w.queue[first + child]):
            child += 1
        if not _goes_before(w, w.queue[first + child], op):
            break
        w.queue[first + i] = w.queue[first + child]
        i = child
        child = 2 * i + 1
    w.queue[first + i] = op


def _goes_before(w: World, a: Id, b: Id) -> bool:
    x, y = w.ops[a], w.ops[b]
    if x.priority != y.priority:
        return bool(x.priority < y.priority)
    if x.since != y.since:
        return bool(x.since < y.since)
    return a < b


def _dispatch(w: World) -> None:
    """Give free slots to those that are first in their queues."""
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
                _dequeue(w, hold.slot)
                if other.released > released:
                    releaser, released = other.releaser, other.released
                if hold.slot != slot and other.touched == 0:
                    other.touched = 1
                    w.touched[s.touched] = hold.slot
                    s.touched += 1
            _start(w, op, releaser)


def _has_room(w: World, op: Id) -> bool:
    o = w.ops[op]
    for k in range(o.hold, o.hold + o.holds):
        hold = w.holds[k]
        q = w.slots[hold.slot]
        if q.free < hold.units or q.head != op:
            return False
    return True


# -- running -----------------------------------------------------------------------------------


def _start(w: World, op: Id, releaser: int) -> None:
    s, o = w.state[0], w.ops[op]
    if o.phase == QUEUED and o.extra >= 0 and _left(w, op) > 0.0:
        o.since = s.now
        _move(w, op)
        return
    iteration = o.taken - 1
    if s.first_span <= iteration < s.end_span:
        span = (iteration - s.first_span) * s.n_ops + op
        w.span_ready[span] = o.since
        w.span_start[span] = s.now
    o.since = s.now
    if s.depth > 0:
        record = op * s.depth + (iteration & (s.depth - 1))
        w.history[record].start = s.now
        if releaser != NONE:
            w.history[record].enabler = releaser
        if o.phase != PASSING:
            for k in range(o.hold, o.hold + o.holds):
                q = w.slots[w.holds[k].slot]
                if q.group >= 0 and q.released < s.now:
                    _attribute(w, q.group, max(q.released, 0.0), record)
    if o.phase == PASSING:
        _end_soon(w, op)
        return
    seconds = o.seconds
    if o.extra >= 0:
        x = w.extras[o.extra]
        if x.stream >= 0:
            seconds *= _factor(w, x.stream, iteration)
        if x.special >= 0 and w.specials[x.special].gate == MAILBOX:
            mailbox = w.specials[x.special]
            seconds += mailbox.count * mailbox.per_token
            mailbox.count = 0
    if seconds > 0.0:
        o.phase = WORKING
        if COMPILED:
            expect(w, op)
        _set_timer(w, s.now + seconds, FLOW_STARTS if o.route >= 0 else OP_ENDS, op)
    elif o.route >= 0:
        _move(w, op)
    else:
        o.phase = WORKING
        _end_soon(w, op)


def _move(w: World, op: Id) -> None:
    """Start to move the op's bytes, or the next piece of them."""
    o = w.ops[op]
    o.phase = MOVING
    amount = o.bytes
    if o.extra >= 0:
        extra = w.extras[o.extra]
        if extra.stream >= 0:
            amount *= _factor(w, extra.stream, o.taken - 1)
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
    else:
        _end_soon(w, op)


def _left(w: World, op: Id) -> float:
    """Bytes that an op has still to move once the present piece has been."""
    special = w.extras[w.ops[op].extra].special
    return float(w.specials[special].left) if special >= 0 else 0.0


def _moved(w: World, op: Id) -> None:
    """The op's bytes, or the piece of them that was sent, have been moved."""
    s, o = w.state[0], w.ops[op]
    if o.extra >= 0 and _left(w, op) > 0.0:
        _release(w, op)
        o.since = s.now
        o.phase = QUEUED
        for k in range(o.hold, o.hold + o.holds):
            _enqueue(w, w.holds[k].slot, op)
        if o.holds == 0:
            _start(w, op, NONE)
    else:
        _end(w, op)


def _release(w: World, op: Id) -> None:
    """Free the slots that ``op`` holds."""
    s, o = w.state[0], w.ops[op]
    for k in range(o.hold, o.hold + o.holds):
        slot, units = w.holds[k].slot, w.holds[k].units
        q = w.slots[slot]
        q.free += units
        q.released = s.now
        q.releaser = op * s.depth + ((o.taken - 1) & (s.depth - 1)) if s.depth > 0 else NONE
        q.busy += units * (s.now - o.since)
        if q.touched == 0:
            q.touched = 1
            w.touched[s.touched] = slot
            s.touched += 1


def _end(w: World, op: Id) -> None:
    """The op's work is done: free its slots, pass on its tokens once its latency is over."""
    s, o = w.state[0], w.ops[op]
    now = s.now
    latency = w.extras[o.extra].latency if o.extra >= 0 else 0.0
    iteration = o.taken - 1
    record = op * s.depth + (iteration & (s.depth - 1)) if s.depth > 0 else NONE
    active = o.phase != PASSING
    if active:
        _release(w, op)
    else:
        latency = 0.0
    if s.first_span <= iteration < s.end_span:
        w.span_end[(iteration - s.first_span) * s.n_ops + op] = now
    o.phase = IDLE
    if o.extra < 0 or not _is_batch(w, op):
        _supply(w, op, record)
    if latency > 0.0:
        _set_timer(w, now + latency, TOKENS_ARRIVE, op)
    else:
        _arrive(w, op, active)


def _arrive(w: World, op: Id, active: bool) -> None:
    """Hand the tokens of the op's oldest instance that is still on its way to who waits.

    One that was not active raises no counter, and puts nothing into a mailbox.
    """
    s, o = w.state[0], w.ops[op]
    record = NONE
    if s.depth > 0:
        record = op * s.depth + (w.arrived[op] & (s.depth - 1))
        w.arrived[op] += 1
    if o.extra >= 0 and w.extras[o.extra].end >= 0:
        _probe(w, op, active)
    for k in range(o.out, o.end):
        edge = w.edges[k]
        if edge.target >= 0 or w.gate_edges[-1 - edge.target].kind == DRAIN:
            _hand(w, k, record)
        elif w.gate_edges[-1 - edge.target].kind != FROM_BATCH:
            _to_gate(w, k, record, active)
    if o.extra >= 0:
        if _is_batch(w, op):
            _unload_batch(w, op, record)
        if w.extras[o.extra].mark >= 0:
            _mark(w, w.extras[o.extra].mark, record)


# -- gates -------------------------------------------------------------------------------------


def _to_gate(w: World, k: int, source: int, active: bool) -> None:
    """A token comes along edge ``k`` to an op with a gate."""
    s, edge = w.state[0], w.gate_edges[-1 - w.edges[k].target]
    x = w.specials[w.extras[w.ops[edge.target].extra].special]
    if edge.kind == TO_QUORUM:
        w.edges[k].tokens += 1
        if w.edges[k].tokens == x.fired + 1:
            x.count += 1
    elif edge.kind == TO_BATCH:
        w.items[edge.pair].tokens += 1
        x.source = source
        if x.count == 0:  # no tick is due
            x.count = 1
            tick = -(-s.now // x.cycle) * x.cycle
            _set_timer(w, max(tick, s.now), TICK, edge.target)
        return
    elif edge.kind == TO_MAILBOX:
        if active:
            x.count += 1
        return
    else:
        x.count += 1
    if x.open == 0 and x.count >= x.need:
        x.open = 1
        _supply(w, edge.target, source)


def _is_batch(w: World, op: Id) -> bool:
    special = w.extras[w.ops[op].extra].special
    return bool(special >= 0 and w.specials[special].gate == BATCH)


def _tick(w: World, op: Id) -> None:
    """Admit what is there; the op takes it up if it is not under way."""
    x = w.specials[w.extras[w.ops[op].extra].special]
    x.count = 0
    waiting = 0
    for i in range(x.alternative, x.alternative + x.alternatives):
        w.items[i].admitted += w.items[i].tokens
        w.items[i].tokens = 0
        waiting += w.items[i].admitted
    if waiting > 0 and x.open == 0:
        x.open = 1
        _supply(w, op, x.source)


def _load_batch(w: World, op: Id) -> None:
    """Take as many of the admitted items as fit, at least one."""
    o = w.ops[op]
    x = w.specials[w.extras[o.extra].special]
    total = 0.0
    for i in range(x.alternative, x.alternative + x.alternatives):
        item = w.items[i]
        if item.admitted > 0 and (total == 0.0 or total + item.bytes <= x.cap):
            item.admitted -= 1
            item.loaded = 1
            total += item.bytes
    o.bytes = total


def _unload_batch(w: World, op: Id, record: int) -> None:
    """Hand out the items that have been moved, and go on with what was admitted beside them."""
    x = w.specials[w.extras[w.ops[op].extra].special]
    waiting = 0
    for i in range(x.alternative, x.alternative + x.alternatives):
        item = w.items[i]
        waiting += item.admitted
        if item.loaded > 0:
            item.loaded = 0
            _hand(w, item.edge, record)
    if waiting > 0 and x.open == 0:
        x.open = 1
        _supply(w, op, record)
    _supply(w, op, record)


# -- random numbers ----------------------------------------------------------------------------


def draw(w: World, stream: int, counter: int, word: int) -> int:
    """Word 0 or 1 (32 bits) of ``stream`` at ``counter``: a function of these and the seed alone.

    Philox2x32-10: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3",
    SC 2011, doi 10.1145/2063384.2063405.
    """
    a, b = philox(counter & 0xFFFFFFFF, stream, w.state[0].key)
    return a if word == 0 else b


def philox(a: int, b: int, key: int) -> tuple[int, int]:
    """Philox2x32-10 of a counter of two words of 32 bits, and a key of one."""
    for _ in range(10):
        product = a * 0xD256D193
        a = ((product >> 32) & 0xFFFFFFFF) ^ key ^ b
        b = product & 0xFFFFFFFF
        key = (key + 0x9E3779B9) & 0xFFFFFFFF
    return a, b


def _factor(w: World, stream: int, iteration: int) -> float:
    """Factor of a stream in an iteration: one of the equally likely values of its table."""
    x = w.streams[stream]
    if x.at != iteration:
        x.at = iteration
        x.factor = w.table[x.first + (draw(w, stream, iteration, 0) >> 16)]
    return float(x.factor)


# -- probes ------------------------------------------------------------------------------------


def _open(w: World, probe: int) -> None:
    s, p = w.state[0], w.probes[probe]
    if p.open == p.room:
        s.fault, s.culprit = OVERRUN, probe
        return
    at = p.stamp + (p.next + p.open) % p.room
    p.open += 1
    w.stamp_time[at] = s.now
    w.stamp_count[at] = w.counters[p.counter] if p.counter >= 0 else 0


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
        p.seconds += s.now - w.stamp_time[at]
        p.count += 1.0
        if p.counter >= 0:
            stale = w.counters[p.counter] - w.stamp_count[at]
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
        _open(w, w.watched[k])


def _mark(w: World, group: int, record: int) -> None:
    """A group ends an iteration."""
    s, g = w.state[0], w.groups[group]
    if g.iterations > 0 and s.depth > 0 and group == g.iterations % s.n_groups:
        _walk_critical(w, record, w.marked_at[group])
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


def _walk_critical(w: World, record: int, until: float) -> None:
    """Follow what let each op start, back to ``until``, and charge the time to the ops."""
    s = w.state[0]
    end = s.now
    s.walks += 1
    for _ in range(MOST_STEPS * s.n_ops):
        start = w.history[record].start
        if start > end:  # overwritten by a later instance: the chain is lost here
            return
        op = record // s.depth
        w.critical[op] += end - max(start, until)
        w.critical_count[op] += 1.0
        end = start
        record = w.history[record].enabler
        if record == NONE or not end > until:
            return


def _attribute(w: World, group: int, until: float, record: int) -> None:
    """Split the time a group was idle by what the op that starts now had to wait for.

    It was idle from ``until`` to now.

    Back along the last-arriving predecessors: the time a predecessor ran is its own cause,
    the time it queued for a slot is what held the slot up (the cause of the op itself).
    """
    s = w.state[0]
    end = s.now
    waits = group * CAUSES
    cause = w.cause[record // s.depth]
    for _ in range(MOST_STEPS * s.n_ops):
        record = w.history[record].last
        if record == NONE or w.history[record].ready > end:  # a later instance took its place
            break
        cause = w.cause[record // s.depth]
        if cause == BOUND:
            break
        ready = w.history[record].ready
        w.waits[waits + cause] += end - max(ready, until)
        end = ready
        if not end > until:
            return
    w.waits[waits + cause] += end - until


# -- timers ------------------------------------------------------------------------------------


def _set_timer(w: World, time: float, kind: int, op: Id) -> None:
    """Add to the timers, a binary heap in order of (time, kind, op)."""
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


def _pop_timer(w: World) -> int:
    """Take out the first timer; returns its kind and op."""
    s, times, whats = w.state[0], w.timer_time, w.timer_what
    first = whats[0]
    n = s.timers - 1
    s.timers = n
    time, what = times[n], whats[n]
    i, child = 0, 1
    while child < n:  # the gap sinks to the bottom, then the last timer rises from there
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
