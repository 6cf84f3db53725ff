"""Canaries: each plants an error, and the oracle that guards against it must fail."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

from perfmodel import Jitter, PerfmodelError, build_graph, predict
from perfmodel.base.arrays import Ids
from perfmodel.engine.measures import Measures, OpSpan
from perfmodel.engine.simulation import makespan, simulate, timeline
from perfmodel.graph.builder import GraphBuilder
from perfmodel.graph.op_graph import OpGraph
from perfmodel.graph.rules import Batch
from perfmodel.theory import collective_times
from tests import oracles
from tests.architectures import test_allreduce, test_laws, test_ps
from tests.jobs import cluster, job, workload
from tests.theory import test_closed_forms

WORK = workload([1.0, 2.0], [2.0, 3.0], [30.0, 50.0])


def graph_and_spans() -> tuple[OpGraph, list[OpSpan]]:
    graph = build_graph(job(WORK, cluster(20.0), 3, "ps"))
    return graph, timeline(graph, iterations=3)


def test_forgotten_edge() -> None:
    """Simulate without the edges into the first forward op; check against the full graph."""
    graph, _ = graph_and_spans()
    first = graph.edge_target == graph.edge_target[graph.edge_lag == 0].min()
    lacking = msgspec.structs.replace(
        graph,
        edge_source=graph.edge_source[~first],
        edge_target=graph.edge_target[~first],
        edge_lag=graph.edge_lag[~first],
    )
    with pytest.raises(AssertionError):
        oracles.dependencies_hold(graph, timeline(lacking, iterations=3))


def test_op_that_starts_early() -> None:
    graph, spans = graph_and_spans()
    late = max(range(len(spans)), key=lambda i: spans[i].start_s)
    spans[late] = msgspec.structs.replace(spans[late], start_s=0.0)
    with pytest.raises(AssertionError):
        oracles.dependencies_hold(graph, spans)


def test_device_that_does_two_things_at_once() -> None:
    graph, spans = graph_and_spans()
    twice = msgspec.structs.replace(graph, slot_capacity=graph.slot_capacity * 0)
    with pytest.raises(AssertionError):
        oracles.slots_hold(twice, spans)


def test_link_above_its_capacity() -> None:
    graph, spans = graph_and_spans()
    thin = msgspec.structs.replace(
        graph, link_capacity_bytes_per_s=graph.link_capacity_bytes_per_s * 0.99
    )
    with pytest.raises(AssertionError):
        oracles.links_hold(thin, spans)


def test_work_that_vanishes() -> None:
    graph, spans = graph_and_spans()
    more = msgspec.structs.replace(graph, op_seconds=graph.op_seconds * 1.001)
    with pytest.raises(AssertionError):
        oracles.work_is_conserved(more, spans)


def test_unaccounted_time() -> None:
    graph, _ = graph_and_spans()
    measures: Measures = simulate(graph)
    lost = msgspec.structs.replace(measures, wait_fraction=measures.wait_fraction * 0.999)
    with pytest.raises(AssertionError):
        oracles.busy_and_idle_fill_the_time(lost)


def test_bits_taken_for_bytes() -> None:
    result = predict(job(WORK, cluster(20.0 / 8), 1, "ps"))
    expected = test_closed_forms.one_worker_s(WORK, 20.0)
    with pytest.raises(AssertionError):
        oracles.equal(result.iteration_s, expected)


def test_ring_without_the_factor_per_member(monkeypatch: pytest.MonkeyPatch) -> None:
    """2 n instead of 2 (p-1)/p n."""
    monkeypatch.setattr(collective_times, "ring_allreduce_bytes", lambda ranks, size: 2.0 * size)
    with pytest.raises(AssertionError):
        test_allreduce.test_bytes_over_every_link(3)
    with pytest.raises(AssertionError):
        test_allreduce.test_three_workers_with_latency()
    for closed_form in (
        test_closed_forms.test_all_reduce_without_overlap,
        test_closed_forms.test_all_reduce_with_wait_free_backward,
    ):
        with pytest.raises(AssertionError):
            closed_form.hypothesis.inner_test(work=WORK, workers=3, rate=1.0)


def test_ring_without_its_latency(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collective_times, "ring_allreduce_steps", lambda ranks: ranks - 1)
    with pytest.raises(AssertionError):
        test_allreduce.test_three_workers_with_latency()


def _without_edges(kind: str) -> Any:
    """A build that omits the edges from one kind of op."""
    from perfmodel.architectures.ps import graph as ps

    def build(a_job: Any) -> OpGraph:
        graph = ps.build(a_job)
        block = next(b for b in graph.ops if b.label == kind)
        inside = (graph.edge_source >= block.first) & (graph.edge_source < block.first + block.size)
        keep = ~(inside & (graph.edge_lag == 0))
        return msgspec.structs.replace(
            graph,
            edge_source=graph.edge_source[keep],
            edge_target=graph.edge_target[keep],
            edge_lag=graph.edge_lag[keep],
        )

    return build


@pytest.mark.parametrize("kind", ["pull", "push", "backward"])
def test_parameter_server_without_an_edge(kind: str) -> None:
    """The closed form for one worker detects any missing dependency."""
    graph = _without_edges(kind)(job(WORK, cluster(20.0), 1, "ps"))
    expected = test_closed_forms.one_worker_s(WORK, 20.0)
    with pytest.raises((AssertionError, PerfmodelError)):
        oracles.equal(1.0 / float(simulate(graph).iterations_per_s[0]), expected)


def test_barrier_left_out_shows_in_staleness() -> None:
    """ASP instead of BSP is caught, because its staleness is not zero."""
    result = predict(job(WORK, cluster(20.0), 3, "ps", {"sync": "asp"}, jitter=Jitter(0.5)))
    assert result.staleness.histogram != {"0": 1.0}


def test_read_before_own_apply_breaks_the_staleness_identity() -> None:
    """Opening the probe at the push instead of the apply must move the mean off N - 1."""
    graph = build_graph(job(WORK, cluster(20.0), 4, "ps", {"sync": "asp"}, start="staggered"))
    label = next(b for b in graph.probes if b.label == "staleness")
    opens = graph.probe_open.copy()
    forward = next(b for b in graph.ops if b.label == "forward").first
    where = slice(label.first, label.first + label.size)
    opens[where] = forward + graph.probe_group[where] * 2
    moved = msgspec.structs.replace(graph, probe_open=opens)
    seen = simulate(moved, seed=1).staleness
    mean = float((np.arange(len(seen)) * seen).sum() / seen.sum())
    assert abs(mean - 3.0) > 0.2


def test_hand_timeline_notices_a_slower_link() -> None:
    with pytest.raises(AssertionError):
        assert predict(job(test_ps.TWO_LAYERS, cluster(0.99), 2, "ps")).iteration_s == 14.0


def test_oracles_refuse_an_empty_timeline() -> None:
    graph, _ = graph_and_spans()
    with pytest.raises(AssertionError, match="no dependency was checked"):
        oracles.dependencies_hold(graph, [])
    assert np.isfinite(graph.op_seconds).all()


# -- instances of ops ------------------------------------------------------------------------------


def step(b: GraphBuilder, **work: Any) -> tuple[Ids, Ids]:
    """A device with an op of 1 s that only waits for itself."""
    device = b.slots("device", (1,))
    return device, b.ops("step", (1,), **{"seconds": 1.0, "slot": device, "group": [0], **work})


def sometimes_active() -> OpGraph:
    """An op of 2 s with a latency of 5 s after each step, active in every second iteration."""
    b = GraphBuilder()
    device, compute = step(b)
    rare = b.ops("rare", (1,), seconds=2.0, latency_s=5.0, slot=device)
    after = b.ops("after", (1,))
    b.active(rare, every=2)
    b.edge(compute, rare)
    b.edge(rare, after)
    return b.build(device=device, mark=compute)


def with_span(spans: list[OpSpan], op: int, iteration: int, **times: float) -> list[OpSpan]:
    """The timeline with one instance moved to another time."""
    return [
        msgspec.structs.replace(s, **times) if (s.op, s.iteration) == (op, iteration) else s
        for s in spans
    ]


def span_of(spans: list[OpSpan], op: int, iteration: int) -> OpSpan:
    return next(s for s in spans if (s.op, s.iteration) == (op, iteration))


def all_hold(graph: OpGraph, spans: list[OpSpan], *, seed: int = 0) -> None:
    for oracle in (
        oracles.dependencies_hold,
        oracles.slots_hold,
        oracles.links_hold,
        oracles.work_is_conserved,
    ):
        oracle(graph, spans, seed=seed)


def test_inactive_instance_that_takes_time() -> None:
    graph = sometimes_active()
    spans = timeline(graph, iterations=4)
    all_hold(graph, spans)
    idle = span_of(spans, 1, 1)
    longer = with_span(spans, 1, 1, end_s=idle.end_s + 0.001)
    with pytest.raises(AssertionError):
        oracles.work_is_conserved(graph, longer)


def test_instance_that_is_active_in_the_wrong_iteration() -> None:
    graph = sometimes_active()
    rules = tuple(msgspec.structs.replace(rule, phase=1) for rule in graph.rules)
    spans = timeline(msgspec.structs.replace(graph, rules=rules), iterations=4)
    with pytest.raises(AssertionError):
        oracles.work_is_conserved(graph, spans)


def test_token_that_overtakes_another_and_one_that_comes_too_early() -> None:
    """The inactive instance 1 releases the first "after" before the active instance 0 arrives; at
    any other time the oracle fails."""
    graph = sometimes_active()
    spans = timeline(graph, iterations=4)
    first = span_of(spans, 2, 0).start_s
    assert first == span_of(spans, 1, 1).end_s < span_of(spans, 1, 0).end_s + 5.0
    oracles.dependencies_hold(graph, spans)
    with pytest.raises(AssertionError):
        oracles.dependencies_hold(graph, with_span(spans, 2, 0, start_s=first - 0.001))
    always = msgspec.structs.replace(graph, rules=())
    with pytest.raises(AssertionError):
        oracles.dependencies_hold(always, spans)


def chance(probability: float) -> OpGraph:
    """An op that is randomly active, and then takes one of two alternatives."""
    b = GraphBuilder()
    device, compute = step(b)
    draw = b.streams((1,))
    options = b.ops("option", (2,), seconds=[1.0, 2.0])
    b.active(options, probability=probability, draw=draw, chosen=[0, 1], among=2)
    b.edge(compute, options)
    return b.build(device=device, mark=compute)


@pytest.mark.parametrize("probability", [0.5, 1.0])
def test_another_draw_of_activity(probability: float) -> None:
    graph = chance(probability)
    spans = timeline(graph, seed=1, iterations=20)
    all_hold(graph, spans, seed=1)
    with pytest.raises(AssertionError):
        oracles.work_is_conserved(graph, spans, seed=2)
    with pytest.raises(AssertionError):
        oracles.work_is_conserved(chance(0.6), timeline(chance(0.9), iterations=20))


def two_routes() -> OpGraph:
    """A transfer over one of two links (1 and 2 bytes/s, 1 and 9 s of latency), then a pause on
    one of two devices."""
    b = GraphBuilder()
    device, compute = step(b)
    links = b.links("link", [1.0, 2.0], latency_s=[1.0, 9.0])
    others = b.slots("other device", (2,))
    draw = b.streams((1,))
    send = b.ops("send", (1,), bytes=4.0)
    pause = b.ops("pause", (1,), seconds=3.0)
    b.choose(send, draw=draw, paths=links[None, :, None])
    b.choose(pause, draw=draw, slots=others[None])
    b.edge(compute, send)
    b.edge(send, pause)
    b.edge(send, compute, lag=1)
    return b.build(device=device, mark=compute)


@pytest.mark.parametrize("oracle", [oracles.dependencies_hold, oracles.work_is_conserved])
def test_another_route_than_the_one_drawn(oracle: Any) -> None:
    graph = two_routes()
    spans = timeline(graph, seed=1, iterations=20)
    all_hold(graph, spans, seed=1)
    with pytest.raises(AssertionError):
        oracle(graph, spans, seed=2)


@pytest.mark.parametrize("link", [0, 1])
def test_drawn_link_above_its_capacity(link: int) -> None:
    graph = two_routes()
    spans = timeline(graph, seed=1, iterations=20)
    capacity = graph.link_capacity_bytes_per_s.copy()
    capacity[link] *= 0.99
    thin = msgspec.structs.replace(graph, link_capacity_bytes_per_s=capacity)
    with pytest.raises(AssertionError):
        oracles.links_hold(thin, spans, seed=1)


def test_drawn_slot_that_is_held_twice() -> None:
    graph = two_routes()
    spans = timeline(graph, seed=1, iterations=20)
    oracles.slots_hold(graph, spans, seed=1)
    longer = [
        msgspec.structs.replace(s, end_s=s.end_s + 15.0) if graph.op_name(s.op) == "pause" else s
        for s in spans
    ]
    with pytest.raises(AssertionError):
        oracles.slots_hold(graph, longer, seed=1)


@pytest.mark.parametrize("work", [{"seconds": 1.0}, {"bytes": 5.0}])
def test_another_random_factor(work: dict[str, Any]) -> None:
    """For seconds it is exact; for bytes on a link it is their minimum time."""
    b = GraphBuilder()
    device = b.slots("device", (1,))
    path = b.links("link", 5.0) if "bytes" in work else None
    noise = b.streams((1,), cv=0.3)
    ops = b.ops("op", (1,), noise=noise, slot=device, path=path, **work)
    after = b.ops("after", (1,))
    b.edge(ops, after)
    graph = b.build(device=device, mark=ops)
    spans = timeline(graph, seed=1, iterations=10)
    all_hold(graph, spans, seed=1)
    with pytest.raises(AssertionError):
        oracles.work_is_conserved(graph, spans, seed=2)


def mail() -> OpGraph:
    """A step of 1 s reads messages sent every 0.4 s; each costs 0.25 s."""
    b = GraphBuilder()
    device, compute = step(b)
    send = b.ops("send", (1,), seconds=0.4)
    b.mailbox(int(compute[0]), send, 0.25)
    return b.build(device=device, mark=compute)


@pytest.mark.parametrize("more_s", [0.25, -0.25, 0.1])
def test_message_that_is_taken_twice_or_lost_or_cut(more_s: float) -> None:
    graph = mail()
    spans = timeline(graph, iterations=8)
    oracles.work_is_conserved(graph, spans)
    wrong = with_span(spans, 0, 1, end_s=span_of(spans, 0, 1).end_s + more_s)
    with pytest.raises(AssertionError):
        oracles.work_is_conserved(graph, wrong)


def pieces() -> OpGraph:
    """Two messages of 6 bytes take turns on a connection, 2 bytes at a time."""
    b = GraphBuilder()
    device, compute = step(b)
    line = b.slots("line", (1,))
    sends = b.ops("send", (2,), bytes=6.0, path=b.links("link", 1.0), slot=line)
    b.quantum(sends, 2.0)
    b.edge(compute, sends)
    b.edge(sends, np.broadcast_to(compute, sends.shape), lag=1)
    return b.build(device=device, mark=compute)


def test_connection_with_two_concurrent_senders() -> None:
    graph = pieces()
    spans = timeline(graph, iterations=2)
    all_hold(graph, spans)
    one, other = (span_of(spans, op, 0) for op in (1, 2))
    assert one.start_s < other.start_s < one.end_s < other.end_s == one.start_s + 12.0
    at_once = with_span(spans, 2, 0, end_s=other.end_s - 0.5)
    with pytest.raises(AssertionError):
        oracles.slots_hold(graph, at_once)


def fusion(cap_bytes: float) -> OpGraph:
    """Items of 6, 3 and 8 bytes, ready at 0.2, 0.4 and 1.1 s; a tick every second, 10 bytes/s."""
    b = GraphBuilder()
    device, compute = step(b, seconds=5.0)
    made = b.ops("made", (3,), seconds=[0.2, 0.4, 1.1])
    moved = b.ops("moved", (3,))
    batch = b.ops("batch", (1,), path=b.links("link", 10.0), latency_s=0.25)
    b.batch(int(batch[0]), made, moved, [6.0, 3.0, 8.0], cycle_s=1.0, cap_bytes=cap_bytes)
    b.edge(compute, made, lag=1)
    b.edge(moved, np.broadcast_to(compute, moved.shape), lag=1)
    return b.build(device=device, mark=compute)


def test_batch_larger_than_its_cap() -> None:
    graph = fusion(10.0)
    spans = timeline(graph, iterations=2)
    all_hold(graph, spans)
    with pytest.raises(AssertionError):
        oracles.work_is_conserved(fusion(8.0), spans)


@pytest.mark.parametrize("oracle", [oracles.links_hold, oracles.work_is_conserved])
def test_batch_that_is_moved_too_fast(oracle: Any) -> None:
    graph = fusion(10.0)
    spans = timeline(graph, iterations=2)
    (batch,) = (rule for rule in graph.rules if isinstance(rule, Batch))
    heavier = (msgspec.structs.replace(batch, bytes=batch.bytes * 1.01),)
    with pytest.raises(AssertionError):
        oracle(msgspec.structs.replace(graph, rules=heavier), spans)


def test_item_that_arrives_before_it_is_ready() -> None:
    graph = fusion(10.0)
    spans = timeline(graph, iterations=2)
    moved = next(s for s in spans if graph.op_name(s.op).startswith("made") and s.iteration == 1)
    later = with_span(spans, moved.op, 1, end_s=moved.end_s + 3.0)
    with pytest.raises(AssertionError):
        oracles.dependencies_hold(graph, later)


# -- loads, and durations that scale ---------------------------------------------------------------


def test_loads_by_hand() -> None:
    """Ops that are active every second iteration, or with probability 0.5, or use one of two routes
    or slots, or follow a gate that takes four tokens of two steps."""
    b = GraphBuilder()
    device = b.slots("device", (2,))
    other = b.slots("other", (2,))
    links = b.links("link", [1.0, 1.0, 1.0, 1.0])
    steps = b.ops("step", (2,), seconds=1.0, slot=device, group=[0, 1])
    second, drawn = (
        b.ops(name, (1,), bytes=12.0, seconds=3.0, path=links[k], slot=device[0], group=[0])
        for k, name in enumerate(("second", "drawn"))
    )
    chosen = b.ops("chosen", (1,), bytes=10.0, seconds=4.0, group=[0])
    gate = b.ops("gate", (1,))
    behind = b.ops("behind", (1,), seconds=6.0, slot=device[1])
    b.active(second, every=2)
    b.active(drawn, probability=0.5, draw=b.streams((1,)), chosen=1, among=3)
    b.choose(chosen, draw=b.streams((1,)), paths=links[None, 2:, None], slots=other[None])
    b.every(int(gate[0]), 4)
    b.edge(steps, np.broadcast_to(gate, steps.shape))
    b.edge(gate, behind)
    graph = b.build(device=device, mark=steps)
    loads, slots = oracles.load_per_iteration(graph)
    np.testing.assert_allclose(loads, [6.0, 2.0, 5.0, 5.0])
    np.testing.assert_allclose(slots, [1.0 + 1.5 + 0.5, 1.0 + 3.0, 2.0, 2.0])


def test_load_of_a_batch() -> None:
    """At least one batch per iteration, and as many as 17 bytes need at 8 bytes each."""
    graph = fusion(8.0)
    assert oracles.load_per_iteration(graph)[0].tolist() == [17.0]
    batch = next(rule.op for rule in graph.rules if isinstance(rule, Batch))
    assert oracles.times_per_iteration(graph)[batch] == 17.0 / 8.0


FULL: list[tuple[str, dict[str, Any]]] = [
    ("ps", {}),
    ("local_sgd", {"period": 3}),
    ("gosgd", {"probability": 0.5, "queue": 1}),
    ("ad_psgd", {}),
    ("easgd", {"period": 3}),
    ("allreduce", {"bucketing": "horovod", "fusion_cycle_s": 0.01}),
]


@pytest.mark.slow
@pytest.mark.sampled(3)
@pytest.mark.parametrize(("arch", "options"), FULL, ids=[arch for arch, _ in FULL])
def test_pace_above_what_a_resource_can_bear(arch: str, options: dict[str, Any]) -> None:
    """With the measured busiest link busy for 110 % of the time."""
    graph = build_graph(job(WORK, cluster(0.02), 2, arch, options))
    measures = simulate(graph, rel_ci=0.005)
    oracles.resources_bound_the_pace(graph, measures)
    too_fast = measures.iterations_per_s * 1.1 / measures.link_utilisation.max()
    faster = msgspec.structs.replace(measures, iterations_per_s=too_fast)
    with pytest.raises(AssertionError):
        oracles.resources_bound_the_pace(graph, faster)


def test_time_that_does_not_scale() -> None:
    """Keep each duration in turn, and double all others."""
    b = GraphBuilder()
    device, compute = step(b)
    links = b.links("link", [2.0, 4.0], latency_s=[1.0, 3.0])
    made = b.ops("made", (2,), seconds=[0.3, 0.45])
    moved = b.ops("moved", (2,))
    batch = b.ops("batch", (1,), path=links[0], rate_cap_bytes_per_s=0.5)
    send = b.ops("send", (1,), bytes=3.0)
    b.choose(send, draw=b.streams((1,)), paths=links[None, :, None])
    b.batch(int(batch[0]), made, moved, [1.0, 2.0], cycle_s=0.7)
    wait = b.ops("wait", (1,), latency_s=2.0)
    letter = b.ops("letter", (1,))
    b.mailbox(int(compute[0]), letter, 0.25)
    b.edge(wait, letter)
    b.edge(send, compute, lag=1)
    b.edge(compute, made)
    b.edge(moved, np.broadcast_to(wait, moved.shape))
    b.edge(wait, send)
    graph = b.build(device=device, mark=compute)
    slowed = test_laws.slowed(graph)
    assert makespan(slowed, iterations=4) == 2 * makespan(graph, iterations=4)
    wrong = [
        msgspec.structs.replace(slowed, **{name: getattr(graph, name)})
        for name in (
            "op_seconds",
            "op_latency_s",
            "link_capacity_bytes_per_s",
            "route_cap_bytes_per_s",
        )
    ]
    for k, rule in enumerate(graph.rules):
        rules = [*slowed.rules[:k], rule, *slowed.rules[k + 1 :]]
        wrong.append(msgspec.structs.replace(slowed, rules=tuple(rules)))
    for other in wrong:
        assert makespan(other, iterations=4) != 2 * makespan(graph, iterations=4)
