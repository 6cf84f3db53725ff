"""Properties that hold for any op graph and its timeline; AssertionError if one is violated.

An op may differ between iterations: it may be inactive, choose a route, be stretched at random, be
lengthened by its mail, or carry a batch. So these oracles check *instances* of ops, derived here
from the rules of the graph and its random numbers.

Every oracle has a canary in test_canaries.py. A timeline must begin with iteration 0.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import cache

import msgspec
import numpy as np

from perfmodel.base.arrays import NONE, Floats
from perfmodel.engine.draws import philox
from perfmodel.engine.measures import Measures, OpSpan
from perfmodel.engine.noise import key, table
from perfmodel.engine.simulation import timeline
from perfmodel.graph.op_graph import OpGraph
from perfmodel.graph.rules import Activity, Batch, Choice, Every, Mailbox, Quantum, Quorum

ROUNDING = 1e-9
SAME_INSTANT = 2.0**-45
"""Relative tolerance for an early end: the engine treats events within 2**-46 of the time as one
instant, and the same again covers rounding of the time itself."""
WORD = 2**32
"""A word of random bits is below this."""

Edge = tuple[int, int, int]
"""Source, target, lag."""


class Instance(msgspec.Struct, frozen=True):
    """Resources and time that one iteration of an op takes.

    Attributes
    ----------
    loads : bytes over each link, by link.
    seconds : time other than moving bytes, without that added by mail.
    moving_s : shortest time in which its bytes can be moved.
    latency_s : time between its end and the arrival of its tokens.
    held : units of each slot, by slot.
    in_pieces : whether it releases its slots between two pieces.
    """

    loads: dict[int, float] = {}
    seconds: float = 0.0
    moving_s: float = 0.0
    latency_s: float = 0.0
    held: dict[int, int] = {}
    in_pieces: bool = False


NOTHING = Instance()
"""The instance of an op in an iteration in which it is not active."""


class Instances:
    """Instances of the ops of a graph for a seed; those of batches are taken from ``spans``."""

    def __init__(self, graph: OpGraph, seed: int, spans: Sequence[OpSpan] = ()) -> None:
        self.graph, self._key = graph, key(seed)
        self._activity: dict[int, tuple[Activity, int]] = {}
        self._choice: dict[int, tuple[Choice, int]] = {}
        self._quantum: dict[int, float] = {}
        self.batches: dict[int, list[float]] = {}
        self.mailboxes: dict[int, Mailbox] = {}
        for rule in graph.rules:
            if isinstance(rule, Activity):
                self._activity |= {int(op): (rule, k) for k, op in enumerate(rule.ops)}
            elif isinstance(rule, Choice):
                self._choice |= {int(op): (rule, k) for k, op in enumerate(rule.ops)}
            elif isinstance(rule, Quantum):
                self._quantum |= dict.fromkeys(rule.ops.tolist(), rule.bytes)
            elif isinstance(rule, Mailbox):
                self.mailboxes[rule.op] = rule
            elif isinstance(rule, Batch):
                self.batches[rule.op] = batches_of(graph, rule, spans)
        self._of = cache(self._work_out)

    def __call__(self, op: int, iteration: int) -> Instance:
        """The instance of an op in an iteration."""
        return self._of(op, iteration)

    def gets_mail(self, op: int) -> bool:
        """Return whether messages lengthen an op."""
        return op in self.mailboxes and self.mailboxes[op].per_token_s > 0.0

    def may_overtake(self, op: int) -> bool:
        """Return whether the latency of an op differs between instances."""
        return op in self._activity or op in self._choice

    def least_latency_s(self, op: int) -> float:
        """The smallest possible latency of any instance of an op."""
        if op in self._activity:
            return 0.0
        if op in self._choice:
            rule, k = self._choice[op]
            return float(rule.latency_s[k].min())
        return float(self.graph.op_latency_s[op])

    def _words(self, stream: int, iteration: int) -> tuple[int, int]:
        return philox(iteration, stream, self._key, 0), philox(iteration, stream, self._key, 1)

    def active(self, op: int, iteration: int) -> bool:
        """Return whether an op is active in an iteration."""
        if op not in self._activity:
            return True
        rule, k = self._activity[op]
        if iteration % rule.every != rule.phase:
            return False
        if rule.draw[k] == NONE:
            return True
        first, second = self._words(int(rule.draw[k]), iteration)
        drawn = first < rule.probability * WORD
        return drawn and (rule.among == 0 or second * rule.among // WORD == rule.chosen[k])

    def _factor(self, op: int, iteration: int) -> float:
        graph, stream = self.graph, int(self.graph.op_stream[op])
        if stream == NONE or not graph.stream_cv[stream] > 0.0:
            return 1.0
        values = table(float(graph.stream_cv[stream]), int(graph.stream_kind[stream]))
        return float(values[self._words(stream, iteration)[0] >> 16])

    def _work_out(self, op: int, iteration: int) -> Instance:
        graph = self.graph
        if not self.active(op, iteration):
            return NOTHING
        route, latency_s = int(graph.op_route[op]), float(graph.op_latency_s[op])
        first, end = graph.hold_start[op : op + 2].tolist()
        held = dict(
            zip(
                graph.hold_slots[first:end].tolist(),
                graph.hold_units[first:end].tolist(),
                strict=True,
            )
        )
        if op in self._choice:
            rule, k = self._choice[op]
            count = rule.latency_s.shape[1]
            taken = self._words(int(rule.draw[k]), iteration)[1] * count // WORD
            latency_s = float(rule.latency_s[k, taken])
            route = route if rule.routes is None else int(rule.routes[k, taken])
            if rule.slots is not None:
                slot = int(rule.slots[k, taken])
                held = {} if slot == NONE else {slot: 1}
        factor = self._factor(op, iteration)
        moved = float(graph.op_bytes[op]) * factor
        if op in self.batches:
            moved = self.batches[op][iteration]
        units: dict[int, float] = {}
        rates = [math.inf]
        if route != NONE:
            links = slice(graph.route_start[route], graph.route_start[route + 1])
            for link, each in zip(graph.route_links[links], graph.route_units[links], strict=True):
                units[int(link)] = units.get(int(link), 0.0) + float(each)
            capacity = graph.link_capacity_bytes_per_s
            rates = [float(graph.route_cap_bytes_per_s[route])]
            rates += [float(capacity[link]) / each for link, each in units.items()]
        return Instance(
            loads={link: moved * each for link, each in units.items()} if moved > 0.0 else {},
            seconds=float(graph.op_seconds[op]) * factor,
            moving_s=moved / min(rates),
            latency_s=latency_s,
            held=held,
            in_pieces=moved > self._quantum.get(op, math.inf),
        )


def batches_of(graph: OpGraph, rule: Batch, spans: Sequence[OpSpan]) -> list[float]:
    """Bytes that each instance of a batch moved: those of the items whose targets it released.

    A target gets its token when the batch has ended and its latency is over, and is then ready if
    it waits for nothing else, which is asserted here. Of batches that end at one instant, all but
    one of which take no time, each takes what fits of what has been moved by then."""
    others = graph.edge_target[graph.edge_source != rule.op]
    assert not set(rule.targets.tolist()) & set(others.tolist())
    ready: dict[int, list[float]] = defaultdict(list)
    for span in spans:
        ready[span.op].append(span.ready_s)
    ends = [span.end_s for span in spans if span.op == rule.op]
    took_s = [span.end_s - span.start_s for span in spans if span.op == rule.op]
    left: list[float] = []
    moved = []
    for k, end in enumerate(ends):
        arrived = end + float(graph.op_latency_s[rule.op])
        rounding = ROUNDING * (1 + arrived)
        if k == 0 or end > ends[k - 1] + rounding:
            assert not left, "more was moved than fits"
            left = [
                float(size)
                for target, size in zip(rule.targets.tolist(), rule.bytes.tolist(), strict=True)
                for time in ready[target]
                if abs(time - arrived) <= rounding
            ]
        assert left, "a batch of nothing"
        kept: list[float] = []
        total = 0.0
        for size in left:
            if total == 0.0 or total + size <= rule.cap_bytes:
                total += size
            else:
                kept.append(size)
        left = kept
        moved.append(total)
    # of batches that take no time, more may follow at the same instant than the timeline has
    assert not left or took_s[-1] <= ROUNDING * (1 + ends[-1]), "more was moved than fits"
    return moved


def _counted_edges(graph: OpGraph) -> Iterator[Edge]:
    """Edges on which iteration i-lag of the source gives iteration i of the target its token.

    These are all edges except those into a gate, which has its own rules, and those out of a
    quorum that takes all tokens at once. An item of a batch, whose tokens
    are counted as well, makes its target wait for its source.
    """
    quorums = {rule.op for rule in graph.rules if isinstance(rule, Quorum)}
    uncounted = {rule.op for rule in graph.rules if isinstance(rule, Quorum | Every | Batch)}
    batches = {rule.op for rule in graph.rules if isinstance(rule, Batch)}
    mail = {
        (source, rule.op)
        for rule in graph.rules
        if isinstance(rule, Mailbox)
        for source in rule.sources.tolist()
    }
    edges = zip(
        graph.edge_source.tolist(), graph.edge_target.tolist(), graph.edge_lag.tolist(), strict=True
    )
    for source, target, lag in edges:
        drained = source in quorums and graph.op_group[target] != NONE
        into_gate = target in uncounted or (source, target) in mail
        if not (into_gate or drained or source in batches):
            yield source, target, lag
    for rule in graph.rules:
        if isinstance(rule, Batch):
            for source, target in zip(rule.sources.tolist(), rule.targets.tolist(), strict=True):
                yield source, target, 0


def _arrivals(instances: Instances, op: int, spans: Sequence[OpSpan]) -> list[float]:
    """Earliest arrival of the k-th token of an op, from its spans by iteration.

    That is the end of its instance k and its latency. There is one exception. A token has no
    number, and one whose latency is shorter (none, if the op was not active) may arrive before
    that of an earlier instance, which is still under way; then it is the earlier one. So where
    latencies differ, the k-th token is the k-th to arrive, be it one whose instance ended after
    the last of ``spans``.
    """
    arrive = [span.end_s + instances(op, span.iteration).latency_s for span in spans]
    if not instances.may_overtake(op):
        return arrive
    later = spans[-1].end_s + instances.least_latency_s(op)
    return [min(time, later) for time in sorted(arrive)]


def dependencies_hold(graph: OpGraph, spans: Sequence[OpSpan], *, seed: int = 0) -> None:
    """Check that no instance starts before its predecessors have ended, including their latency."""
    instances = Instances(graph, seed, spans)
    of_op = _by_op(spans)
    arrivals = {op: _arrivals(instances, op, its) for op, its in of_op.items()}
    checked = 0
    for source, target, lag in _counted_edges(graph):
        arrived = arrivals.get(source, [])
        for span in of_op[target]:
            before = span.iteration - lag
            if 0 <= before < len(arrived):
                checked += 1
                assert span.start_s >= arrived[before] - ROUNDING * (1 + arrived[before]), (
                    graph.op_name(target),
                    graph.op_name(source),
                    span,
                    arrived[before],
                )
    assert checked, "no dependency was checked"


def _by_op(spans: Iterable[OpSpan]) -> defaultdict[int, list[OpSpan]]:
    """Spans of each op by iteration; checks that none is missing."""
    of_op: defaultdict[int, list[OpSpan]] = defaultdict(list)
    for span in spans:
        of_op[span.op].append(span)
    for its in of_op.values():
        its.sort(key=lambda span: span.iteration)
        assert [span.iteration for span in its] == list(range(len(its)))
    return of_op


def slots_hold(graph: OpGraph, spans: Sequence[OpSpan], *, seed: int = 0) -> None:
    """Check that no slot is held for more units at once than it has.

    An op that sends in pieces holds its slots for an unknown part of its time. For these slots the
    check is that the work of all holders within any interval fits into it.
    """
    instances = Instances(graph, seed, spans)
    changes: dict[int, list[tuple[float, int]]] = defaultdict(list)
    work: dict[int, list[tuple[float, float, float]]] = defaultdict(list)
    shared: set[int] = set()
    for span in spans:
        one = instances(span.op, span.iteration)
        for slot, units in one.held.items():
            if one.in_pieces:
                shared.add(slot)
            elif span.end_s > span.start_s:
                changes[slot] += [(span.start_s, units), (span.end_s, -units)]
            work[slot].append((span.end_s, span.start_s, units * (one.seconds + one.moving_s)))
    for slot, times in changes.items():
        held = 0
        for _, change in sorted(times):
            held += change
            assert held <= graph.slot_capacity[slot], graph.slot_name(slot)
    for slot in shared:
        _fits(work[slot], float(graph.slot_capacity[slot]), graph.slot_name(slot))


def _fits(moved: Sequence[tuple[float, float, float]], per_s: float, name: str) -> None:
    """Check that the work within any interval fits at ``per_s``; ``moved`` is (end, start,
    amount)."""
    ends, starts, much = np.array(sorted(moved)).T
    for begin in np.unique(starts):
        inside = starts >= begin
        total = np.cumsum(much[inside])
        room = per_s * ((ends[inside] - begin) * (1 + ROUNDING) + ends[inside] * SAME_INSTANT)
        assert (total <= room).all(), name


def links_hold(graph: OpGraph, spans: Sequence[OpSpan], *, seed: int = 0) -> None:
    """Check that all bytes moved entirely within any interval fit through each link in that
    time."""
    instances = Instances(graph, seed, spans)
    by_link: dict[int, list[tuple[float, float, float]]] = defaultdict(list)
    for span in spans:
        for link, load in instances(span.op, span.iteration).loads.items():
            by_link[link].append((span.end_s, span.start_s, load))
    for link, moved in by_link.items():
        _fits(moved, float(graph.link_capacity_bytes_per_s[link]), graph.link_name(link))


def work_is_conserved(graph: OpGraph, spans: Sequence[OpSpan], *, seed: int = 0) -> None:
    """Check that an op without bytes takes its seconds, and one with bytes at least its path's
    time.

    Inactive ops take no time. Mail adds its time, once per message.
    """
    instances = Instances(graph, seed, spans)
    mail: dict[int, list[tuple[OpSpan, float]]] = defaultdict(list)
    for span in spans:
        one = instances(span.op, span.iteration)
        took, least = span.end_s - span.start_s, one.seconds + one.moving_s
        rounding = ROUNDING * (1 + span.end_s)
        if one.moving_s > 0.0:
            assert took >= least - rounding, graph.op_name(span.op)
        elif instances.gets_mail(span.op) and instances.active(span.op, span.iteration):
            mail[span.op].append((span, took - least))
        else:
            assert abs(took - least) <= rounding, (graph.op_name(span.op), span, least)
    of_op = _by_op(spans)
    for op, longer in mail.items():
        if len(longer) == len(of_op[op]):
            _mail_is_taken_once(instances, instances.mailboxes[op], longer, of_op)


def timeline_holds(graph: OpGraph, *, seed: int, iterations: int) -> None:
    """Every op runs in each iteration; dependencies, slots, links and work are as they must be."""
    spans = timeline(graph, seed=seed, iterations=iterations)
    assert len(spans) == iterations * graph.n_ops
    for holds in (dependencies_hold, slots_hold, links_hold, work_is_conserved):
        holds(graph, spans, seed=seed)


def _mail_is_taken_once(
    instances: Instances,
    rule: Mailbox,
    longer: Sequence[tuple[OpSpan, float]],
    of_op: dict[int, list[OpSpan]],
) -> None:
    """Check that each instance is ``longer`` exactly by the mail received since the previous
    one."""
    sent = [
        (span.end_s + instances(op, span.iteration).latency_s)
        for op in rule.sources.tolist()
        for span in of_op[op]
        if instances.active(op, span.iteration)
    ]
    known_until = min(of_op[op][-1].end_s for op in rule.sources.tolist())
    taken_s = 0.0
    for span, more in sorted(longer, key=lambda pair: pair[0].iteration):
        taken_s += more
        rounding = ROUNDING * (1 + span.start_s)
        surely = sum(time < span.start_s - rounding for time in sent)
        at_most = sum(time <= span.start_s + rounding for time in sent)
        rounding = ROUNDING * (1 + span.end_s) * (1 + span.iteration)
        assert more >= -rounding, span
        assert abs(more - round(more / rule.per_token_s) * rule.per_token_s) <= rounding, span
        assert taken_s >= surely * rule.per_token_s - rounding, (span, taken_s, surely)
        if span.start_s < known_until:
            assert taken_s <= at_most * rule.per_token_s + rounding, (span, taken_s, at_most)


def times_per_iteration(graph: OpGraph) -> Floats:
    """Smallest mean number of times each op works per iteration of the slowest group, (ops,).

    This is 1 for an op that is always active. Ops after a gate that takes several tokens run as
    often as the gate, according to the rates of its tokens. A batch moves each item once an
    iteration, so it runs at least once, and as often as its bytes ask for.
    """
    per_s = np.ones(graph.n_ops)
    gates = {rule.op: rule.count for rule in graph.rules if isinstance(rule, Every)}
    into: dict[int, list[int]] = defaultdict(list)
    for source, target in zip(graph.edge_source.tolist(), graph.edge_target.tolist(), strict=True):
        into[target].append(source)
    for _ in range(graph.n_ops if gates else 0):
        before = per_s.copy()
        for op, sources in into.items():
            if op in gates:
                per_s[op] = before[sources].sum() / gates[op]
            elif graph.op_group[op] == NONE:  # a group's ops run once in its own iterations
                per_s[op] = min(1.0, before[sources].min())
        if np.array_equal(per_s, before):
            break
    for rule in graph.rules:
        if isinstance(rule, Activity):
            per_s[rule.ops] *= rule.probability / rule.every / max(rule.among, 1)
        elif isinstance(rule, Batch):
            most = max(rule.cap_bytes, float(rule.bytes.max()))
            per_s[rule.op] = max(1.0, float(rule.bytes.sum()) / most)
    return per_s


def load_per_iteration(graph: OpGraph) -> tuple[Floats, Floats]:
    """Least bytes over each link and unit-seconds of each slot per iteration of all groups.

    Averages over random draws: how often an op is active, and which of its routes and slots it
    uses. Shapes (links,) and (slots,).
    """
    times = times_per_iteration(graph)
    moved = times * graph.op_bytes
    links, slots = (
        np.zeros(len(graph.link_capacity_bytes_per_s)),
        np.zeros(len(graph.slot_capacity)),
    )
    routes: dict[int, list[int]] = {op: [int(graph.op_route[op])] for op in range(graph.n_ops)}
    chosen_slots: dict[int, list[int]] = {}
    for rule in graph.rules:
        if isinstance(rule, Choice):
            for k, op in enumerate(rule.ops.tolist()):
                if rule.routes is not None:
                    routes[op] = rule.routes[k].tolist()
                if rule.slots is not None:
                    chosen_slots[op] = rule.slots[k].tolist()
        elif isinstance(rule, Batch):
            moved[rule.op] = rule.bytes.sum()
    held_s = times * graph.op_seconds
    for op, alternatives in routes.items():
        for route in alternatives:
            if route != NONE:
                crossed = slice(graph.route_start[route], graph.route_start[route + 1])
                each = moved[op] / len(alternatives) * graph.route_units[crossed]
                np.add.at(links, graph.route_links[crossed], each)
    for op in range(graph.n_ops):
        if op in chosen_slots:
            for slot in chosen_slots[op]:
                if slot != NONE:
                    slots[slot] += held_s[op] / len(chosen_slots[op])
        else:
            holds = slice(graph.hold_start[op], graph.hold_start[op + 1])
            np.add.at(slots, graph.hold_slots[holds], graph.hold_units[holds] * held_s[op])
    return links, slots


def error_of_pace(graph: OpGraph, measures: Measures) -> float:
    """Fraction by which a measured pace may exceed that of the long run.

    It is 0 if a period was measured. In a random graph the draws of the measured stretch differ
    from the average: five standard errors. In addition a worker may get further ahead of its sends
    during the stretch, by as many iterations as the longest lag allows.
    """
    if not graph.noisy:
        return 0.0
    ahead = int(graph.edge_lag.max(initial=0)) / max(measures.rounds, 1)
    return measures.ci_fraction / 1.96 * 5 + ahead


def resources_bound_the_pace(graph: OpGraph, measures: Measures) -> None:
    """Check that no resource is busy for more than the elapsed time."""
    links, slots = load_per_iteration(graph)
    busy_s = [*(links / graph.link_capacity_bytes_per_s), *(slots / graph.slot_capacity)]
    slowest = measures.iterations_per_s.min()
    most = 1 + ROUNDING + error_of_pace(graph, measures)
    assert slowest * max(busy_s) <= most, (slowest, max(busy_s), most)


def busy_and_idle_fill_the_time(measures: Measures) -> None:
    """Check for every group that busy time and waits by cause add up to the elapsed time."""
    total = measures.busy_fraction + measures.wait_fraction.sum(axis=1)
    assert np.all(measures.busy_fraction >= 0.0)
    assert np.all(measures.wait_fraction >= -ROUNDING)
    np.testing.assert_allclose(total, 1.0, rtol=0, atol=ROUNDING)


def equal(simulated: float, expected: float, tolerance: float = 1e-9) -> None:
    """Check that two routes to one number agree up to rounding."""
    assert abs(simulated - expected) <= tolerance * abs(expected), (simulated, expected)
