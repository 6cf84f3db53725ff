"""Canaries: each plants an error and must see the oracle that guards against it go red."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

from perfmodel import Jitter, PerfmodelError, build_graph, costs, predict
from perfmodel.engine import simulate, timeline
from perfmodel.graph import OpGraph
from perfmodel.measures import Measures, Span
from tests import oracles, test_allreduce, test_closed_forms, test_ps
from tests.jobs import cluster, job, workload

WORK = workload([1.0, 2.0], [2.0, 3.0], [30.0, 50.0])


def graph_and_spans() -> tuple[OpGraph, list[Span]]:
    graph = build_graph(job(WORK, cluster(20.0), 3, "ps"))
    return graph, timeline(graph, iterations=3)


def test_forgotten_edge() -> None:
    """Simulate without the edges into the first forward op; check against the whole graph."""
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


def test_time_that_is_nobodys() -> None:
    graph, _ = graph_and_spans()
    measures: Measures = simulate(graph)
    lost = msgspec.structs.replace(measures, wait_fraction=measures.wait_fraction * 0.999)
    with pytest.raises(AssertionError):
        oracles.busy_and_idle_fill_the_time(lost)


def test_bits_taken_for_bytes() -> None:
    result = predict(job(WORK, cluster(20.0 / 8), 1, "ps"))
    expected = test_closed_forms.download_and_forward_s(WORK, 20.0)
    expected += test_closed_forms.backward_and_upload_s(WORK, 20.0)
    with pytest.raises(AssertionError):
        oracles.equal(result.iteration_s, expected)


def test_ring_without_its_share(monkeypatch: pytest.MonkeyPatch) -> None:
    """2 n instead of 2 (p-1)/p n."""
    monkeypatch.setattr(costs, "ring_allreduce_bytes", lambda ranks, size: 2.0 * size)
    with pytest.raises(AssertionError):
        test_allreduce.test_bytes_over_every_link(3)
    with pytest.raises(AssertionError):
        test_allreduce.test_three_workers_with_latency()
    with pytest.raises(AssertionError):
        test_closed_forms.test_all_reduce_without_overlap()
    with pytest.raises(AssertionError):
        test_closed_forms.test_all_reduce_with_wait_free_backward()


def test_ring_without_its_latency(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(costs, "ring_allreduce_steps", lambda ranks: ranks - 1)
    with pytest.raises(AssertionError):
        test_allreduce.test_three_workers_with_latency()


def _without_edges(kind: str) -> Any:
    """A build that forgets the edges from one kind of op."""
    from perfmodel.architectures import ps

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
    """The closed form of one worker notices whichever dependency is left out."""
    graph = _without_edges(kind)(job(WORK, cluster(20.0), 1, "ps"))
    expected = test_closed_forms.download_and_forward_s(WORK, 20.0)
    expected += test_closed_forms.backward_and_upload_s(WORK, 20.0)
    with pytest.raises((AssertionError, PerfmodelError)):
        oracles.equal(1.0 / float(simulate(graph).iterations_per_s[0]), expected)


def test_barrier_left_out_shows_in_staleness() -> None:
    """ASP in BSP's place would be caught: its staleness is not zero."""
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


def test_oracles_reject_nothing_checked() -> None:
    graph, _ = graph_and_spans()
    with pytest.raises(AssertionError, match="no dependency was checked"):
        oracles.dependencies_hold(graph, [])
    assert np.isfinite(graph.op_seconds).all()
