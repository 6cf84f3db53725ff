"""The engine against the max-plus algebra: equal without contention, never faster with it."""

from __future__ import annotations

import subprocess
import sys
from fractions import Fraction
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import assume, given, strategies as st

from perfmodel import build_graph
from perfmodel.base.arrays import NONE
from perfmodel.engine.measures import Measures
from perfmodel.engine.simulation import simulate, timeline
from perfmodel.graph.builder import GraphBuilder
from perfmodel.graph.op_graph import OpGraph
from perfmodel.graph.rules import Activity, Batch, Choice, Every, Mailbox, Quorum
from tests import maxplus
from tests.jobs import cluster, job, third_of_variants, workload
from tests.settings import examples

ROUNDING = 1e-9
some = examples(60)
seconds = st.one_of(st.integers(0, 6).map(float), st.floats(0.5, 6.0))


class Drawn(msgspec.Struct, frozen=True):
    """A random graph, not yet built, in which every op depends on every other."""

    seconds: list[float]
    bytes: list[float]
    latency_s: list[float]
    rate_cap: list[float]
    slot: list[int]
    path: list[list[int]]
    edges: list[tuple[int, int, int]]
    slot_capacity: list[int]
    link_capacity: list[float]
    marks: list[int]

    def build(self) -> OpGraph:
        b = GraphBuilder()
        devices = b.slots("device", (len(self.marks),))
        slots = [b.slots("slot", (), capacity=k) for k in self.slot_capacity]
        b.links("link", self.link_capacity)
        ops = b.ops(
            "op",
            (len(self.seconds),),
            seconds=self.seconds,
            bytes=self.bytes,
            latency_s=self.latency_s,
            rate_cap_bytes_per_s=self.rate_cap,
            slot=[
                int(devices[self.marks.index(op)])
                if op in self.marks
                else (int(slots[slot]) if slot != NONE else NONE)
                for op, slot in enumerate(self.slot)
            ],
            path=self.path,
        )
        for source, target, lag in self.edges:
            b.edge(ops[source], ops[target], lag=lag)
        return b.build(device=devices, mark=ops[self.marks])


@st.composite
def drawn(draw: st.DrawFn, *, contended: bool) -> Drawn:
    """Up to seven ops on a ring with extra edges; edges against a fixed order have tokens."""
    n = draw(st.integers(1, 7))
    rank = draw(st.permutations(range(n)))

    def edge(source: int, target: int) -> tuple[int, int, int]:
        least = 0 if source < target else 1
        return rank[source], rank[target], draw(st.integers(least, least + 2))

    pairs = draw(st.lists(st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)), max_size=2 * n))
    edges = [edge(op, (op + 1) % n) for op in range(n)] + [edge(u, v) for u, v in pairs]
    moves = [draw(st.booleans()) for _ in range(n)]
    if contended:
        slot = [draw(st.integers(NONE, 1)) for _ in range(n)]
        capacity = [draw(st.integers(1, 2)) for _ in range(2)]
        shared = st.sampled_from([[0, NONE], [1, NONE], [0, 1]])
        path = [draw(shared) for _ in range(n)]
    else:
        slot, capacity = list(range(n)), [1] * n
        path = [[op, NONE] for op in range(n)]
    links = 2 if contended else n
    took = [draw(seconds) for _ in range(n)]
    assume(sum(took) > 0.0)
    return Drawn(
        seconds=took,
        bytes=[draw(seconds) if moving else 0.0 for moving in moves],
        latency_s=[draw(st.sampled_from([0.0, 0.0, 0.5, 2.25])) for _ in range(n)],
        rate_cap=[draw(st.sampled_from([np.inf, np.inf, 0.75])) for _ in range(n)],
        slot=slot,
        path=path,
        edges=edges,
        slot_capacity=capacity,
        link_capacity=[draw(st.sampled_from([1.0, 2.0, 3.0])) for _ in range(links)],
        marks=draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=2, unique=True)),
    )


ITERATIONS = 5


def same_period(graph: OpGraph, like: OpGraph | None = None) -> None:
    """Check that each group's period is the largest cycle ratio (of ``like``, if given)."""
    measures = simulate(graph)
    assert measures.periodic
    period_of(measures, graph if like is None else like)


def period_of(measures: Measures, graph: OpGraph) -> None:
    expected = float(maxplus.largest_ratio(graph))
    np.testing.assert_allclose(1.0 / measures.iterations_per_s, expected, rtol=ROUNDING)


def same_starts(graph: OpGraph, like: OpGraph | None = None) -> None:
    """Check that every instance starts exactly when the recursion (of ``like``, if given)
    allows."""
    earliest = maxplus.earliest_starts(graph if like is None else like, ITERATIONS)
    for span in timeline(graph, iterations=ITERATIONS):
        expected = float(earliest[span.op][span.iteration])
        assert abs(span.start_s - expected) <= ROUNDING * (1.0 + expected), (span, expected)


def never_earlier(graph: OpGraph, like: OpGraph | None = None) -> None:
    """Check that no instance starts before the recursion allows, and no group outpaces its
    cycles."""
    bound = graph if like is None else like
    earliest = maxplus.earliest_starts(bound, ITERATIONS)
    for span in timeline(graph, iterations=ITERATIONS):
        least = float(earliest[span.op][span.iteration])
        assert span.start_s >= least - ROUNDING * (1.0 + least), (span, least)
    measures = simulate(graph)
    assert np.isfinite(measures.iterations_per_s).all()
    if measures.periodic:  # an average up to an arbitrary time may include catching up on a wait
        for mark, rate in zip(graph.group_mark.tolist(), measures.iterations_per_s, strict=True):
            least = float(maxplus.largest_ratio(bound, [mark]))
            assert rate * least <= 1.0 + ROUNDING, (mark, rate, least)


# -- the oracle itself -----------------------------------------------------------------------------


def ring(seconds: list[float], lag: int, *, mark: int = -1, **options: Any) -> OpGraph:
    """Ops one after another, with ``lag`` tokens from the last to the first."""
    b = GraphBuilder()
    devices = b.slots("device", (len(seconds),))
    ops = b.ops("op", (len(seconds),), seconds=seconds, slot=devices, **options)
    b.chain(ops)
    b.edge(ops[-1], ops[0], lag=lag)
    return b.build(device=devices[mark], mark=ops[mark])


@pytest.mark.parametrize(
    ("lag", "latency_s", "ratio"),
    [(1, 0.0, "7"), (2, 0.0, "4"), (3, 0.0, "4"), (1, 1.0, "9"), (2, 1.0, "9/2"), (3, 1.0, "4")],
)
def test_a_ring_of_two(lag: int, latency_s: float, ratio: str) -> None:
    """3 s and 4 s; with enough tokens only the 4 s op matters, and its latency does not count."""
    graph = ring([3.0, 4.0], lag, latency_s=latency_s)
    assert maxplus.largest_ratio(graph) == Fraction(ratio)
    assert maxplus.largest_ratio_listed(graph) == Fraction(ratio)
    same_period(graph)
    same_starts(graph)


@pytest.mark.parametrize(("lag", "ratio"), [(1, 6), (2, 3), (4, "3/2"), (6, 1), (9, 1)])
def test_an_op_that_waits_for_itself(lag: int, ratio: str) -> None:
    """1 s and 5 s of latency."""
    graph = ring([1.0], lag, latency_s=5.0)
    assert maxplus.largest_ratio(graph) == maxplus.ratio_of(graph, [0]) == Fraction(ratio)
    same_period(graph)


def test_ratio_of_a_list_of_ops() -> None:
    graph = ring([3.0, 4.0, 5.0], 2)
    assert maxplus.ratio_of(graph, [0, 1, 2]) == maxplus.ratio_of(graph, [1, 2, 0]) == 6
    assert maxplus.ratio_of(graph, [2]) == 5
    for no_cycle in ([0, 2, 1], [0, 1], []):
        with pytest.raises(ValueError, match="not a cycle"):
            maxplus.ratio_of(graph, no_cycle)
    with pytest.raises(ValueError, match="no token"):
        maxplus.largest_ratio(ring([3.0, 4.0], 0))


def test_only_cycles_that_an_op_depends_on_count() -> None:
    b = GraphBuilder()
    devices = b.slots("device", (2,))
    ops = b.ops("op", (2,), seconds=[1.0, 2.0], slot=devices)
    b.edge(ops[0], ops[1])
    graph = b.build(device=devices, mark=ops)
    assert [maxplus.largest_ratio(graph, [op]) for op in (0, 1)] == [1, 2]


@some
@given(drawn(contended=False))
def test_two_ways_to_the_largest_ratio(some_graph: Drawn) -> None:
    graph = some_graph.build()
    assert maxplus.largest_ratio(graph) == maxplus.largest_ratio_listed(graph)


@some
@given(drawn(contended=False))
def test_the_recursion_keeps_to_the_largest_ratio(some_graph: Drawn) -> None:
    """A start is determined by a chain of ops: some cycles, and a rest with each op at most once.

    So instance k starts no later than k times the ratio and every op's time once. Nor is it earlier
    by more than the lags that a chain spends elsewhere, to the slowest cycle and on to the op.
    """
    graph = some_graph.build()
    k, ratio = 100, maxplus.largest_ratio(graph)
    once = sum(maxplus.seconds_alone(graph)) + Fraction(float(graph.op_latency_s.sum()))
    elsewhere = 2 * graph.n_ops * int(graph.edge_lag.max())
    for starts in maxplus.earliest_starts(graph, k + 1):
        assert (k - elsewhere) * ratio <= starts[k] <= k * ratio + once


# -- the engine without contention -----------------------------------------------------------------


@some
@given(drawn(contended=False))
def test_period_without_contention(some_graph: Drawn) -> None:
    graph = some_graph.build()
    measures = simulate(graph)
    assume(measures.periodic)  # if two cycles are nearly equally slow, the engine stops waiting
    period_of(measures, graph)


@some
@given(drawn(contended=False))
def test_starts_without_contention(some_graph: Drawn) -> None:
    same_starts(some_graph.build())


@pytest.mark.parametrize("mark", [0, 1])
def test_iterations_that_end_at_one_instant(mark: int) -> None:
    """Both tokens pass an op of zero duration at once; the other op still sets the pace."""
    graph = ring([0.0, 1.0], 2, mark=mark)
    assert maxplus.largest_ratio(graph) == 1
    same_starts(graph)
    same_period(graph)


@pytest.mark.slow
def test_many_tokens_under_way() -> None:
    """An op that waits for an instance many iterations back, in a process with a time limit."""
    program = (
        "from tests.engine.test_maxplus import ring, same_period\n"
        "for lag in (4, 8, 16, 32): same_period(ring([1.0], lag, latency_s=50.0))"
    )
    path = {"PYTHONPATH": ":".join(sys.path)}
    subprocess.run([sys.executable, "-c", program], env=path, check=True, timeout=20)


def test_workers_that_never_meet_again() -> None:
    """Laps of 1 s and sqrt(2) s have no common period, but each lap is constant."""
    b = GraphBuilder()
    devices = b.slots("device", (2,))
    ops = b.ops("op", (2,), seconds=[1.0, np.sqrt(2.0)], slot=devices)
    graph = b.build(device=devices, mark=ops)
    expected = [float(maxplus.largest_ratio(graph, [op])) for op in (0, 1)]
    measures = simulate(graph)
    assert not measures.periodic
    np.testing.assert_allclose(1.0 / measures.iterations_per_s, expected, rtol=ROUNDING)


@pytest.mark.parametrize("seed", range(3))
def test_period_of_a_larger_graph(seed: int) -> None:
    """A torus of 12 x 12 ops, too many cycles to list: neighbours wait for each other."""
    graph = torus(np.random.default_rng(seed), 12)
    same_period(graph)
    same_starts(graph)


def torus(random: np.random.Generator, side: int) -> OpGraph:
    b = GraphBuilder()
    devices = b.slots("device", (side, side))
    took = random.integers(1, 9, (side, side)).astype(float)
    ops = b.ops("op", (side, side), seconds=took, slot=devices)
    for axis in (0, 1):
        along = np.moveaxis(ops, axis, -1)
        b.chain(along)
        b.edge(along[..., -1], along[..., 0], lag=3)
    return b.build(device=devices[-1, -1:], mark=ops[-1, -1:])


# -- the engine with contention --------------------------------------------------------------------


@some
@given(drawn(contended=True))
def test_contention_only_delays(some_graph: Drawn) -> None:
    never_earlier(some_graph.build())


def relaxed(graph: OpGraph) -> OpGraph:
    """A graph without rules in which every op happens at the same time or earlier.

    Ops that are not always active take no time. A choice of routes becomes the fastest rate and
    the smallest latency. Gates and mail wait for nothing; no op waits for a quorum whose tokens
    are taken together. An item of a batch takes the time it takes alone. Sending in pieces
    changes nothing for an op that has its links to itself.
    """
    seconds, latency_s = graph.op_seconds.copy(), graph.op_latency_s.copy()
    moved, route = graph.op_bytes.copy(), graph.op_route.copy()
    kept = np.ones(len(graph.edge_source), np.bool_)
    added: list[tuple[int, int]] = []

    def alone_s(size: float, over: int) -> float:
        links = slice(graph.route_start[over], graph.route_start[over + 1])
        capacity = graph.link_capacity_bytes_per_s[graph.route_links[links]]
        rates = [*(capacity / graph.route_units[links]), graph.route_cap_bytes_per_s[over]]
        return size / float(min(rates))

    for rule in graph.rules:
        if isinstance(rule, Choice):
            for k, op in enumerate(rule.ops.tolist()):
                latency_s[op] = rule.latency_s[k].min()
                if rule.routes is not None:
                    route[op] = min(rule.routes[k].tolist(), key=lambda r: alone_s(1.0, r))
        elif isinstance(rule, Mailbox):
            kept &= ~(np.isin(graph.edge_source, rule.sources) & (graph.edge_target == rule.op))
        elif isinstance(rule, Every):
            kept &= graph.edge_target != rule.op
        elif isinstance(rule, Quorum):
            kept &= graph.edge_target != rule.op
            kept &= (graph.edge_source != rule.op) | (graph.op_group[graph.edge_target] == NONE)
        elif isinstance(rule, Batch):
            kept &= (graph.edge_source != rule.op) & (graph.edge_target != rule.op)
            for source, target, size in zip(rule.sources, rule.targets, rule.bytes, strict=True):
                added.append((int(source), int(target)))
                latency_s[source] += graph.op_seconds[rule.op] + graph.op_latency_s[rule.op]
                latency_s[source] += alone_s(float(size), int(graph.op_route[rule.op]))
            moved[rule.op] = rule.bytes.min()
    for rule in graph.rules:
        if isinstance(rule, Activity):
            seconds[rule.ops] = moved[rule.ops] = latency_s[rule.ops] = 0.0
    more = np.array(added, graph.edge_source.dtype).reshape(-1, 2)
    return msgspec.structs.replace(
        graph,
        rules=(),
        op_seconds=seconds,
        op_latency_s=latency_s,
        op_bytes=moved,
        op_route=route,
        edge_source=np.concatenate([graph.edge_source[kept], more[:, 0]]),
        edge_target=np.concatenate([graph.edge_target[kept], more[:, 1]]),
        edge_lag=np.concatenate([graph.edge_lag[kept], np.zeros(len(more), np.int32)]),
    )


@pytest.mark.sampled(3)
@third_of_variants()
def test_no_architecture_beats_its_cycles(arch: str, options: dict[str, Any]) -> None:
    """If ops differ between iterations, the relaxed graph's cycles are the bound."""
    work = workload([1.0, 2.0, 1.5], [2.0, 3.0, 1.0], [30.0, 50.0, 7.0])
    graph = build_graph(job(work, cluster(20.0, 0.25), 3, arch, options))
    bound = relaxed(graph)
    never_earlier(graph, like=bound)
    least_s = work.forward_s + work.backward_s  # no worker computes faster than this
    assert maxplus.largest_ratio(bound, graph.group_mark.tolist()) >= Fraction(least_s)


def test_relaxing_changes_no_graph_without_rules() -> None:
    graph = ring([3.0, 4.0, 5.0], 2, latency_s=[0.5, 0.0, 0.0])
    assert maxplus.largest_ratio(relaxed(graph)) == maxplus.largest_ratio(graph)
    assert maxplus.earliest_starts(relaxed(graph), 9) == maxplus.earliest_starts(graph, 9)


# -- canaries --------------------------------------------------------------------------------------


def changed(graph: OpGraph, column: str, index: int, value: float) -> OpGraph:
    values = getattr(graph, column).copy()
    values[index] = value
    return msgspec.structs.replace(graph, **{column: values})


def without_edge(graph: OpGraph, edge: int) -> OpGraph:
    columns = ("edge_source", "edge_target", "edge_lag")
    left = {column: np.delete(getattr(graph, column), edge) for column in columns}
    return msgspec.structs.replace(graph, **left)


RIGHT = ring([3.0, 4.0, 5.0], 2, latency_s=[0.5, 0.0, 0.0])
"""6.25 s per iteration; the edges start at op 0, 1 and 2, in this order."""

WRONG = {
    "forgotten edge": without_edge(RIGHT, 2),
    "one token too many": changed(RIGHT, "edge_lag", 2, 3),
    "one token too few": changed(RIGHT, "edge_lag", 2, 1),
    "1 % longer": changed(RIGHT, "op_seconds", 1, 4.04),
    "1 % shorter": changed(RIGHT, "op_seconds", 1, 3.96),
    "no latency": changed(RIGHT, "op_latency_s", 0, 0.0),
}


@pytest.mark.parametrize("error", WRONG)
def test_a_wrong_graph_is_noticed(error: str) -> None:
    same_period(RIGHT)
    with pytest.raises(AssertionError):
        same_period(WRONG[error], like=RIGHT)
    same_starts(RIGHT)
    with pytest.raises(AssertionError):
        same_starts(WRONG[error], like=RIGHT)


def test_an_edge_off_the_critical_cycle_is_noticed_in_the_starts() -> None:
    graph = ring([5.0, 1.0, 1.0], 2)
    lacking = without_edge(graph, 1)
    same_period(graph)
    with pytest.raises(AssertionError):
        same_starts(lacking, like=graph)


def test_contention_left_out_is_noticed() -> None:
    """Two ops of 2 s on one device, 4 s per iteration; the oracle with an op of 5 s fails."""
    b = GraphBuilder()
    device = b.slots("device", (1,))
    ops = b.ops("op", (2,), seconds=2.0, slot=device[0])
    b.edge(ops[0], ops[1], lag=1)
    b.edge(ops[1], ops[0], lag=1)
    graph = b.build(device=device, mark=ops[1:])
    assert maxplus.largest_ratio(graph) == 2
    never_earlier(graph)
    with pytest.raises(AssertionError):
        same_period(graph)
    with pytest.raises(AssertionError):
        never_earlier(graph, like=changed(graph, "op_seconds", 0, 5.0))


def ruled(kind: str) -> OpGraph:
    """A step of 1 s, an op with a rule, and one of 2 s after it that the next step waits for."""
    b = GraphBuilder()
    device = b.slots("device", (1,))
    steps = b.ops("step", (1,), seconds=1.0, slot=device, group=[0])
    if kind == "batch":
        made, done = (b.ops(name, (1,)) for name in ("made", "done"))
        op = b.ops("fused", (1,), seconds=0.5, path=b.links("slow", 4.0), latency_s=0.25)
        b.edge(steps, made)
        b.batch(int(op[0]), made, done, 9.0, cycle_s=0.5)
        last = done
    else:
        links = b.links("link", [4.0, 4.0], latency_s=0.25)
        last = b.ops("op", (1,), seconds=0.5, bytes=9.0, path=links[:1])
        b.edge(steps, last)
        if kind == "choice":
            b.choose(last, draw=b.streams((1,)), paths=links[None, :, None])
        elif kind == "quantum":
            b.quantum(last, 2.0)
        elif kind == "mailbox":
            b.mailbox(int(last[0]), b.ops("letter", (1,), seconds=100.0), 1.0)
        elif kind == "activity":
            b.active(b.ops("idle", (1,), seconds=7.0, slot=device), every=1000, phase=999)
        elif kind == "every":
            gate = b.ops("gate", (1,))
            b.edge(last, gate)
            b.every(int(gate[0]), 1)
        elif kind == "quorum":
            gate = b.ops("gate", (1,))
            b.edge(last, gate)
            b.quorum(int(gate[0]), 1)
    after = b.ops("after", (1,), seconds=2.0)
    b.edge(last, after)
    b.edge(after, steps, lag=1)
    return b.build(device=device, mark=steps)


@pytest.mark.parametrize(
    "kind", ["activity", "choice", "quantum", "mailbox", "every", "quorum", "batch"]
)
def test_the_bound_of_a_graph_with_rules_is_close(kind: str) -> None:
    """1 s, 0.5 s, 9 bytes at 4 bytes/s, 0.25 s and 2 s: the bound holds, 1 % more is detected."""
    graph = ruled(kind)
    bound = relaxed(graph)
    assert maxplus.largest_ratio(bound, graph.group_mark.tolist()) == 6
    never_earlier(graph, like=bound)
    for column in ("op_seconds", "op_latency_s"):
        longer = msgspec.structs.replace(bound, **{column: getattr(bound, column) * 1.01})
        with pytest.raises(AssertionError):
            never_earlier(graph, like=longer)


def test_rules_are_refused() -> None:
    b = GraphBuilder()
    devices = b.slots("device", (1,))
    ops = b.ops("op", (1,), seconds=1.0, slot=devices)
    b.active(ops, every=2)
    with pytest.raises(ValueError, match="has rules"):
        maxplus.largest_ratio(b.build(device=devices, mark=ops))


@some
@given(drawn(contended=False))
def test_the_critical_cycle_has_the_largest_ratio(some_graph: Drawn) -> None:
    graph = some_graph.build()
    measures = simulate(graph)
    assume(measures.periodic)
    cycle = [step.op for step in measures.critical_cycle]
    assert maxplus.ratio_of(graph, cycle) == maxplus.largest_ratio(graph)


def test_canary_a_cycle_that_is_not_critical_is_noticed() -> None:
    b = GraphBuilder()
    device = b.slots("device", (1,))
    ops = b.ops("op", (3,), seconds=[1.0, 2.0, 4.0])
    b.edge(ops[0], ops[1])
    b.edge(ops[1], ops[0], lag=1)
    b.edge(ops[1], ops[2])
    b.edge(ops[2], ops[0], lag=1)
    graph = b.build(device=device, mark=ops[:1])
    assert [step.op for step in simulate(graph).critical_cycle] in ([0, 1, 2], [1, 2, 0], [2, 0, 1])
    assert maxplus.ratio_of(graph, [0, 1]) < maxplus.largest_ratio(graph)
