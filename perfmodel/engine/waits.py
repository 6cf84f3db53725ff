"""Attributes waits to causes, along the chain of predecessors."""

from __future__ import annotations

from perfmodel.engine.codes import (
    BATCH,
    BOUND,
    CAUSES,
    FLOODED,
    NONE,
    OVERRUN,
    TO_BATCH,
    TO_EVERY,
    TO_MAILBOX,
    Id,
)
from perfmodel.engine.world import World

MOST_STEPS = 16
"""Maximum number of instances visited by a walk back, per op of the graph."""


def awaiting(w: World, k: int) -> int:
    """Return the op that waits for edge ``k`` in its first iteration; NONE if there is none."""
    edge = w.edges[k]
    if edge.tokens > 0:
        return NONE
    if edge.target >= 0:
        return int(edge.target)
    x = w.gate_edges[-1 - edge.target]
    if x.kind == TO_EVERY or x.kind == TO_MAILBOX or x.kind == TO_BATCH:
        return NONE
    return int(x.target)


def record_of(w: World, op: int) -> int:
    """Return the record of the current instance of ``op``.

    Inactive instances have none: what follows them waited for what they waited for. Instances that
    take no time and follow each other at once share one. Otherwise the records of an op would soon
    be of such instances only, and not tell what it waited for.
    """
    o, depth = w.ops[op], w.state[0].depth
    instance = o.taken - 1
    if o.extra >= 0:
        instance -= w.extras[o.extra].passed + w.extras[o.extra].repeated
    return int(op * depth + (instance & (depth - 1)))


def record_ready(w: World, op: Id, source: int) -> None:
    """Record that the current instance of ``op`` is ready, with its last input from ``source``."""
    s, o = w.state[0], w.ops[op]
    if o.extra >= 0:
        x = w.extras[o.extra]
        x.again = 0
        if o.holds == 0 and x.latency == 0.0 and source >= 0 and source // s.depth == op:
            if w.history[source].ready == s.now and not _drawn(w, x.special):
                x.again = 1
                x.repeated += 1
                return
    h = w.history[record_of(w, op)]
    h.ready = s.now
    h.last = source
    h.enabler = source
    h.count = 1


def _drawn(w: World, special: Id) -> bool:
    """Return whether an op's rules draw its path, or the bytes that it moves."""
    if special < 0:
        return False
    x = w.specials[special]
    return bool(x.choice >= 0 or x.gate == BATCH)


# -- probes ------------------------------------------------------------------------------------


def open_wait(w: World, probe: int) -> None:
    """Open an interval of a probe."""
    s, p = w.state[0], w.probes[probe]
    if p.open == p.room:
        s.fault, s.culprit = OVERRUN, probe
        return
    stamp = w.stamps[p.stamp + (p.next + p.open) % p.room]
    p.open += 1
    stamp.time = s.now
    stamp.count = w.counters[p.counter] if p.counter >= 0 else 0


def note(w: World, op: int, what: int) -> None:
    """Log that an op is ready, or that its tokens arrive, with the alternative it has drawn."""
    s, x = w.state[0], w.extras[w.ops[op].extra]
    at = s.logged
    if at == s.log_room:
        s.fault, s.culprit = FLOODED, op
        return
    w.log_time[at] = s.now
    w.log_what[at] = op * 4 + what
    w.log_drawn[at] = w.specials[x.special].drawn if x.special >= 0 else NONE
    s.logged += 1
    s.log_left -= 1


def walk_critical(w: World, record: int, until: float, since: float) -> None:
    """Walk back through the ops that enabled each other; charge the time between ``since`` and
    ``until``, the earlier one, to them.

    If the records end later than ``until``, the earliest part of the path that is as long is
    charged, and what it lacks to all of the path in proportion.
    """
    s = w.state[0]
    s.walks += s.stride
    lacking = _charge(w, record, until, since, 1.0)
    if lacking > 0.0:
        reach, later = until + lacking, min(since + lacking, s.now)
        _charge(w, record, max(since, reach), later, 1.0)
        rest = lacking - (later - since)
        if rest > 0.0 and s.now > reach:
            _charge(w, record, reach, s.now, rest / (s.now - reach))


def _charge(w: World, record: int, until: float, since: float, weight: float) -> float:
    """Charge a part of a critical path to its ops. Return how much of it the records lack."""
    s = w.state[0]
    end: float = s.now
    for _ in range(max(MOST_STEPS, s.depth) * s.n_ops):
        start = w.history[record].start
        if start > end:  # overwritten by a later instance
            break
        charged = min(end, since) - max(start, until)
        if charged > 0.0:
            op = record // s.depth
            w.critical[op] += weight * charged
            w.critical_count[op] += weight * charged / (end - start) * w.history[record].count
        end = start
        record = w.history[record].enabler
        if record == NONE or not end > until:
            return 0.0
    return end - until


def attribute_wait(w: World, group: int, until: float, record: int) -> None:
    """Split a group's idle time, from ``until`` to now, by what delayed the op that starts now.

    The walk goes back along the last-arriving predecessors. All time since a predecessor became
    ready, both running and queueing for a slot, is charged to its cause.
    """
    s = w.state[0]
    end = s.now
    waits = group * CAUSES
    cause = w.cause[record // s.depth]
    for _ in range(MOST_STEPS * s.n_ops):
        record = w.history[record].last
        if record == NONE or w.history[record].ready > end:  # overwritten by a later instance
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
