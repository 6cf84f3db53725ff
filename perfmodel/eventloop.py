"""The event loop: an op graph simulated one instant after the other.

Iterations are unrolled here; what is kept is one period of state. Rules:

- Iteration i of an op is *ready* when every in-edge holds a token and iteration i-1 has ended.
- A slot serves ready ops first come first served; ties go to the lower op id.
- An op first takes its seconds, then moves its bytes; both hold the slot. Its latency follows.
- Transfers share links max-min fairly; rates change only where a transfer starts or ends.
- Events of one instant are handled in order of (kind, id); slots and rates are settled after.

All arithmetic is free of absolute tolerances, so scaling every time by two scales the result by
exactly two.
"""

from __future__ import annotations

import heapq
from collections import deque

import numpy as np

from perfmodel.errors import DeadlockError, PerfmodelError
from perfmodel.fairness import fair_rates
from perfmodel.graph import CAUSES, NONE, OpGraph, block_of
from perfmodel.measures import Measures, Span
from perfmodel.noise import Factors, offsets

_OP_ENDS, _TOKENS_ARRIVE, _FLOW_STARTS, _FLOWS_END = range(4)
_HISTORY = 4
"""Instances of each op remembered, to walk back from a wait to what caused it."""


class EventLoop:
    """State of one simulation. Lists rather than arrays: this is read and written one by one."""

    def __init__(
        self, graph: OpGraph, seed: int, *, record: range = range(0), limit: int | None = None
    ) -> None:
        n = graph.n_ops
        self.graph = graph
        self.record = record
        self.limit = limit
        self.spans: list[Span] = []
        self.now = 0.0
        self.events: list[tuple[float, int, int, int]] = []
        # ops
        self.seconds = graph.op_seconds.tolist()
        self.bytes = graph.op_bytes.tolist()
        self.latency = graph.op_latency_s.tolist()
        self.slot = graph.op_slot.tolist()
        self.cause = graph.op_cause.tolist()
        self.factors = [
            Factors(seed, g, graph.noise_cv, graph.noise_kind) for g in range(graph.n_groups)
        ]
        noisy = graph.op_noise & (graph.noise_cv > 0.0)
        self.noise_group = np.where(noisy, graph.op_group, NONE).tolist()
        self.started = [0] * n
        self.arrived = [0] * n
        self.rec_ready = [0.0] * (n * _HISTORY)
        self.rec_start = [0.0] * (n * _HISTORY)
        self.rec_last = [NONE] * (n * _HISTORY)
        self.rec_enabler = [NONE] * (n * _HISTORY)
        # edges
        sources, targets = graph.edge_source.tolist(), graph.edge_target.tolist()
        self.tokens = graph.edge_lag.tolist()
        self.out: list[list[tuple[int, int]]] = [[] for _ in range(n)]
        self.into: list[list[int]] = [[] for _ in range(n)]
        self.missing = [0] * n
        for edge, (source, target) in enumerate(zip(sources, targets, strict=True)):
            self.out[source].append((edge, target))
            self.into[target].append(edge)
            if not self.tokens[edge]:
                self.missing[target] += 1
        # slots
        self.free = graph.slot_capacity.tolist()
        self.slot_capacity = graph.slot_capacity.tolist()
        self.queue: list[list[tuple[float, int]]] = [[] for _ in self.free]
        self.releaser = [NONE] * len(self.free)
        self.touched: list[int] = []
        self._init_routes()
        self._init_groups()
        self._init_probes()
        self.reset()
        delays = graph.op_stagger_s.tolist()
        late_by = offsets(seed, graph.n_groups) if any(delays) else []
        for op, lacking in enumerate(tuple(self.missing)):
            if lacking:
                continue
            if delays[op] > 0.0:
                self.missing[op] = 1
                late = delays[op] * late_by[int(graph.op_group[op])]
                heapq.heappush(self.events, (late, _TOKENS_ARRIVE, NONE - 1 - op, 0))
            else:
                self._ready(op, NONE)
        self._dispatch()

    def _init_routes(self) -> None:
        graph = self.graph
        known: dict[tuple[object, ...], int] = {}
        self.links_of: list[list[int]] = []
        self.cap: list[float] = []
        self.route = [NONE] * graph.n_ops
        starts, links = graph.path_start.tolist(), graph.path_links.tolist()
        caps = graph.op_rate_cap_bytes_per_s.tolist()
        for op, size in enumerate(self.bytes):
            path = links[starts[op] : starts[op + 1]]
            if size > 0.0 and (path or caps[op] < float("inf")):
                key = (*path, caps[op])
                if key not in known:
                    known[key] = len(self.links_of)
                    self.links_of.append(path)
                    self.cap.append(caps[op])
                self.route[op] = known[key]
        n = len(self.links_of)
        self.capacity = graph.link_capacity_bytes_per_s.tolist()
        self.routes_on: list[dict[int, None]] = [{} for _ in self.capacity]
        self.flows = [0] * n
        self.settled = [0] * n
        self.rate = [0.0] * n
        self.served = [0.0] * n
        self.served_at = [0.0] * n
        self.version = [0] * n
        self.pending: list[list[tuple[float, int]]] = [[] for _ in range(n)]
        self.changed: list[int] = []

    def _init_groups(self) -> None:
        graph = self.graph
        n = graph.n_groups
        self.group_on: list[int] = [NONE] * len(self.free)
        for group, slot in enumerate(graph.group_device.tolist()):
            self.group_on[slot] = group
        self.marks: list[int] = [NONE] * graph.n_ops
        for group, op in enumerate(graph.group_mark.tolist()):
            self.marks[op] = group
        self.idle_since = [0.0] * n
        self.busy = [0.0] * n
        self.waits = [[0.0] * len(CAUSES) for _ in range(n)]
        self.rows: list[list[tuple[float, ...]]] = [[] for _ in range(n)]
        self.iterations = [0] * n
        self.slowest = self.fastest = 0
        self.marked = False

    def _init_probes(self) -> None:
        graph = self.graph
        self.opens_at_ready: dict[int, list[int]] = {}
        self.opens_at_end: dict[int, list[int]] = {}
        self.closes: dict[int, list[int]] = {}
        self.raises: dict[int, list[int]] = {}
        at_ready = graph.probe_at_ready.tolist()
        for probe, op in enumerate(graph.probe_open.tolist()):
            table = self.opens_at_ready if at_ready[probe] else self.opens_at_end
            table.setdefault(op, []).append(probe)
        for probe, op in enumerate(graph.probe_close.tolist()):
            self.closes.setdefault(op, []).append(probe)
        for op, counter in zip(graph.counter_ops.tolist(), graph.counter_ids.tolist(), strict=True):
            self.raises.setdefault(op, []).append(counter)
        self.probe_counter = graph.probe_counter.tolist()
        self.probe_group = graph.probe_group.tolist()
        self.stamps: list[deque[tuple[float, int]]] = [
            deque([(0.0, 0)] * lag) for lag in graph.probe_lag.tolist()
        ]
        self.counters = [0] * (int(graph.counter_ids.max()) + 1 if graph.counter_ids.size else 0)
        watched = {*self.opens_at_end, *self.closes, *self.raises}
        self.watched = [op in watched for op in range(graph.n_ops)]

    # -- measuring ---------------------------------------------------------------------------

    def reset(self) -> None:
        """Forget what was measured so far; what follows is the measurement."""
        graph = self.graph
        self.since = self.now
        self.slot_busy = [0.0] * len(self.free)
        self.moved = [0.0] * len(self.links_of)
        self.critical = [0.0] * graph.n_ops
        self.critical_count = [0] * graph.n_ops
        self.critical_rounds = 0
        self.probe_seconds = [0.0] * len(self.probe_counter)
        self.probe_count = [0] * len(self.probe_counter)
        self.staleness: dict[int, dict[int, int]] = {}
        self.raised = 0
        self.gap_seconds = 0.0
        self.gap_max = 0

    def state(self) -> tuple[list[int], list[float], list[float]]:
        """Everything the future depends on, relative to the present: counts, times, bytes.

        Two equal states of a deterministic graph have equal futures.
        """
        now, base = self.now, self.slowest
        counts = [*self.tokens, *self.missing, *self.free, *self.flows]
        counts += [started - base for started in self.started]
        counts += [done - base for done in self.iterations]
        times = [now - since for since in self.idle_since]
        left = []
        pending = sorted(
            (kind, identity, time)
            for time, kind, identity, made_for in self.events
            if kind != _FLOWS_END or made_for == self.version[identity]
        )
        for kind, identity, time in pending:
            counts += (kind, identity)
            times.append(time - now)
        for slot, queue in enumerate(self.queue):
            for ready, op in sorted(queue):
                counts += (slot, op)
                times.append(now - ready)
        for route, flows in enumerate(self.pending):
            served = self.served[route] + (now - self.served_at[route]) * self.rate[route]
            for level, op in sorted(flows):
                counts.append(op)
                left.append(level - served)
        return counts, times, left

    def measures(self, first: int, last: int | None, *, periodic: bool) -> Measures:
        """Measures between marks ``first`` and ``last`` (None: the latest) of each group."""
        graph = self.graph
        elapsed = self.now - self.since
        rates, busy, waits = [], [], []
        for rows in self.rows:
            begin, end = rows[first], rows[-1 if last is None else last]
            iterations = (len(rows) - 1 if last is None else last) - first
            span = end[0] - begin[0]
            rates.append(iterations / span if span > 0.0 else float("inf"))
            busy.append((end[1] - begin[1]) / span if span > 0.0 else 1.0)
            waits.append(
                [
                    (b - a) / span if span > 0.0 else 0.0
                    for a, b in zip(begin[2:], end[2:], strict=True)
                ]
            )
        per_second = 1.0 / elapsed if elapsed > 0.0 else 0.0
        load = np.zeros(len(self.capacity))
        for route, moved in enumerate(self.moved):
            load[self.links_of[route]] += moved
        return Measures(
            periodic=periodic,
            rounds=self.slowest,
            elapsed_s=elapsed,
            iterations_per_s=np.array(rates),
            busy_fraction=np.array(busy),
            wait_fraction=np.array(waits).reshape(len(rates), len(CAUSES)),
            link_utilisation=load * per_second / graph.link_capacity_bytes_per_s,
            slot_utilisation=np.array(self.slot_busy) * per_second / graph.slot_capacity,
            probe_seconds=np.array(self.probe_seconds),
            probe_count=np.array(self.probe_count, np.float64),
            staleness=self.staleness,
            critical_s=np.array(self.critical) / max(self.critical_rounds, 1),
            critical_count=np.array(self.critical_count) / max(self.critical_rounds, 1),
            updates_per_s=self.raised / max(len(self.counters), 1) * per_second,
            clock_gap_mean=self.gap_seconds * per_second,
            clock_gap_max=self.gap_max,
        )

    # -- the event loop ----------------------------------------------------------------------

    def advance(self, rounds: int) -> None:
        """Run until every group has ended ``rounds`` iterations."""
        while self.slowest < rounds:
            if not self._instant():
                raise DeadlockError(self.stuck())

    def drain(self) -> None:
        """Run on until the recorded iterations of every op have ended, or nothing moves."""
        wanted = self.graph.n_ops * len(self.record) if self.limit is None else None
        while len(self.spans) != wanted and self._instant():
            pass

    def _instant(self) -> bool:
        """Handle everything that happens at the next instant; False if nothing ever will."""
        if self.changed:
            self._share()
        events, version = self.events, self.version
        while events and events[0][1] == _FLOWS_END and events[0][3] != version[events[0][2]]:
            heapq.heappop(events)  # the rate has changed since
        if not events:
            return False
        now = events[0][0]
        gap = self.fastest - self.slowest
        self.gap_seconds += gap * (now - self.now)
        if now > self.now and gap > self.gap_max:
            self.gap_max = gap
        self.now = now
        while True:
            while events and events[0][0] == now:
                _, kind, identity, made_for = heapq.heappop(events)
                if kind == _OP_ENDS:
                    self._end(identity)
                elif kind == _FLOWS_END:
                    if made_for == version[identity]:
                        self._flows_end(identity)
                elif kind == _FLOW_STARTS:
                    self._flow_starts(identity)
                elif identity < NONE:
                    self._supply(NONE - 1 - identity, NONE)
                else:
                    self._arrive(identity)
            if self.touched:
                self._dispatch()
            if not (events and events[0][0] == now):
                break
        if self.marked:
            self.marked = False
            self.slowest, self.fastest = min(self.iterations), max(self.iterations)
        return True

    def _dispatch(self) -> None:
        """Give free slots to the ops that have waited longest."""
        while self.touched:
            slot = self.touched.pop()
            queue = self.queue[slot]
            while queue and self.free[slot]:
                ready, op = heapq.heappop(queue)
                self.free[slot] -= 1
                waited = ready < self.now and self.releaser[slot] != NONE
                self._start(op, self.releaser[slot] if waited else NONE)

    def _supply(self, op: int, source: int) -> None:
        """One of the things ``op`` lacked is there; ``source`` is the instance that brought it."""
        self.missing[op] -= 1
        if not self.missing[op]:
            self._ready(op, source)

    def _ready(self, op: int, source: int) -> None:
        if self.started[op] == self.limit:
            return
        missing, tokens = 1, self.tokens
        for edge in self.into[op]:
            tokens[edge] -= 1
            if not tokens[edge]:
                missing += 1
        self.missing[op] = missing
        record = op * _HISTORY + self.started[op] % _HISTORY
        self.rec_ready[record] = self.now
        self.rec_last[record] = source
        self.rec_enabler[record] = source
        if op in self.opens_at_ready:
            for probe in self.opens_at_ready[op]:
                self._open(probe)
        slot = self.slot[op]
        if slot < 0:
            self._start(op, NONE)
        else:
            heapq.heappush(self.queue[slot], (self.now, op))
            self.touched.append(slot)

    def _start(self, op: int, releaser: int) -> None:
        now = self.now
        iteration = self.started[op]
        self.started[op] = iteration + 1
        record = op * _HISTORY + iteration % _HISTORY
        self.rec_start[record] = now
        if releaser != NONE:
            self.rec_enabler[record] = releaser
        slot = self.slot[op]
        if slot >= 0:
            group = self.group_on[slot]
            if group >= 0 and self.idle_since[group] < now:
                self._attribute(group, record)
        seconds = self.seconds[op]
        noisy = self.noise_group[op]
        if noisy >= 0:
            seconds *= self.factors[noisy][iteration]
        if self.route[op] < 0:
            heapq.heappush(self.events, (now + seconds, _OP_ENDS, op, 0))
        elif seconds > 0.0:
            heapq.heappush(self.events, (now + seconds, _FLOW_STARTS, op, 0))
        else:
            self._flow_starts(op)

    def _end(self, op: int) -> None:
        """The op's work is done: free its slot, pass on its tokens once its latency is over."""
        now = self.now
        iteration = self.started[op] - 1
        record = op * _HISTORY + iteration % _HISTORY
        start = self.rec_start[record]
        slot = self.slot[op]
        if slot >= 0:
            self.free[slot] += 1
            self.releaser[slot] = record
            self.touched.append(slot)
            begin = start if start > self.since else self.since
            self.slot_busy[slot] += now - begin
            group = self.group_on[slot]
            if group >= 0:
                self.idle_since[group] = now
                self.busy[group] += now - start
        if iteration in self.record:
            self.spans.append(Span(op, iteration, self.rec_ready[record], start, now))
        self._supply(op, record)
        latency = self.latency[op]
        if latency > 0.0:
            heapq.heappush(self.events, (now + latency, _TOKENS_ARRIVE, op, 0))
        else:
            self._arrive(op)

    def _arrive(self, op: int) -> None:
        record = op * _HISTORY + self.arrived[op] % _HISTORY
        self.arrived[op] += 1
        if self.watched[op]:
            self._probe(op)
        tokens, missing = self.tokens, self.missing
        for edge, target in self.out[op]:
            tokens[edge] += 1
            if tokens[edge] == 1:
                missing[target] -= 1
                if not missing[target]:
                    self._ready(target, record)
        group = self.marks[op]
        if group >= 0:
            self._mark(group, record)

    # -- shared links ------------------------------------------------------------------------

    def _flow_starts(self, op: int) -> None:
        route = self.route[op]
        if self.flows[route]:
            self._serve(route)
        else:
            self.served[route] = 0.0
            self.served_at[route] = self.now
        heapq.heappush(self.pending[route], (self.served[route] + self.bytes[op], op))
        self.flows[route] += 1
        self.changed.append(route)

    def _flows_end(self, route: int) -> None:
        pending = self.pending[route]
        level = pending[0][0]
        self.served[route] = level
        self.served_at[route] = self.now
        self.changed.append(route)
        ended = []
        while pending and pending[0][0] == level:
            ended.append(heapq.heappop(pending)[1])
        self.flows[route] -= len(ended)
        for op in ended:  # only now: what ends may at once start anew on this route
            self.moved[route] += self.bytes[op]
            self._end(op)

    def _serve(self, route: int) -> None:
        """Bring the bytes each flow on ``route`` has got up to date."""
        self.served[route] += (self.now - self.served_at[route]) * self.rate[route]
        self.served_at[route] = self.now

    def _share(self) -> None:
        """Recompute the rates of every route that shares links with one that changed."""
        changed, flows, settled = dict.fromkeys(self.changed), self.flows, self.settled
        self.changed = []
        touched: dict[int, None] = {}
        for route in changed:
            if flows[route] != settled[route]:
                if not settled[route]:
                    for link in self.links_of[route]:
                        self.routes_on[link][route] = None
                elif not flows[route]:
                    for link in self.links_of[route]:
                        del self.routes_on[link][route]
                settled[route] = flows[route]
                touched.update(dict.fromkeys(self.links_of[route]))
                if not self.links_of[route]:
                    self.rate[route] = self.cap[route]
        if touched:
            reach = self._component(touched)
            rates = fair_rates(reach, self.links_of, flows, self.capacity, self.cap, self.routes_on)
            for route, rate in rates.items():
                if rate != self.rate[route]:
                    self._serve(route)
                    self.rate[route] = rate
                    changed[route] = None
        for route in changed:
            self.version[route] += 1
            if flows[route]:
                left = self.pending[route][0][0] - self.served[route]
                when = self.served_at[route] + max(left, 0.0) / self.rate[route]
                event = (max(when, self.now), _FLOWS_END, route, self.version[route])
                heapq.heappush(self.events, event)

    def _component(self, links: dict[int, None]) -> list[int]:
        """Every route that carries flows and is joined to ``links`` by shared links."""
        reach: dict[int, None] = {}
        todo = list(links)
        while todo:
            link = todo.pop()
            for route in self.routes_on[link]:
                if route not in reach:
                    reach[route] = None
                    for other in self.links_of[route]:
                        if other not in links:
                            links[other] = None
                            todo.append(other)
        return list(reach)

    # -- probes ------------------------------------------------------------------------------

    def _open(self, probe: int) -> None:
        counter = self.probe_counter[probe]
        self.stamps[probe].append((self.now, self.counters[counter] if counter >= 0 else 0))

    def _probe(self, op: int) -> None:
        for probe in self.closes.get(op, ()):
            if not self.stamps[probe]:
                raise PerfmodelError(
                    f"probe {block_of(self.graph.probes, probe).label!r} is closed by "
                    f"{self.graph.op_name(op)!r} before it was opened"
                )
            opened, count = self.stamps[probe].popleft()
            self.probe_seconds[probe] += self.now - opened
            self.probe_count[probe] += 1
            counter = self.probe_counter[probe]
            if counter >= 0:
                histogram = self.staleness.setdefault(self.probe_group[probe], {})
                stale = self.counters[counter] - count
                histogram[stale] = histogram.get(stale, 0) + 1
        for counter in self.raises.get(op, ()):
            self.counters[counter] += 1
            self.raised += 1
        for probe in self.opens_at_end.get(op, ()):
            self._open(probe)

    def _mark(self, group: int, record: int) -> None:
        rows = self.rows[group]
        if rows and group == self.iterations[group] % len(self.rows):
            self._walk_critical(record, rows[-1][0])
        rows.append((self.now, self.busy[group], *self.waits[group]))
        self.iterations[group] += 1
        self.marked = True

    def _walk_critical(self, record: int, until: float) -> None:
        """Follow what let each op start, back to ``until``, and charge the time to the ops."""
        end = self.now
        self.critical_rounds += 1
        while end > until:
            start = self.rec_start[record]
            if start > end:  # overwritten by a later instance: the chain is lost here
                return
            self.critical[record // _HISTORY] += end - max(start, until)
            self.critical_count[record // _HISTORY] += 1
            end = start
            record = self.rec_enabler[record]
            if record == NONE:
                return

    def _attribute(self, group: int, record: int) -> None:
        """Split the idle time that ends now by what the op that starts now had to wait for.

        Back along the last-arriving predecessors: the time a predecessor ran is its own cause,
        the time it queued for a slot is what held the slot up (the cause of the op itself).
        """
        until, end = self.idle_since[group], self.now
        waits = self.waits[group]
        cause = self.cause[record // _HISTORY]
        while end > until:
            record = self.rec_last[record]
            if record == NONE or self.rec_ready[record] > end:
                waits[cause] += end - until
                return
            cause = self.cause[record // _HISTORY]
            ready = self.rec_ready[record]
            waits[cause] += end - max(ready, until)
            end = ready

    def stuck(self) -> str:
        """Which ops wait although nothing runs any more."""
        waiting = [
            op for op, n in enumerate(self.missing) if n and self.arrived[op] == self.slowest
        ]
        names = ", ".join(repr(self.graph.op_name(op)) for op in waiting[:4])
        more = f" and {len(waiting) - 4} more" if len(waiting) > 4 else ""
        return (
            f"deadlock at {self.now:g} s after {self.slowest} iterations: {names}{more} "
            "wait for each other"
        )
