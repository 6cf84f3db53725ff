"""Peer to peer against timelines worked out by hand, and the traffic its source states.

All links carry 1 byte/s unless noted, so one byte takes one second.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, strategies as st

from perfmodel import InputError, Jitter, Link, NodeOverride, Straggler, build_graph, predict
from perfmodel.engine.simulation import simulate, timeline
from perfmodel.graph.builder import GraphBuilder
from perfmodel.graph.op_graph import OpGraph, block_of
from perfmodel.predicting import coarse
from tests.jobs import cluster, job, workload
from tests.settings import examples

TWO_LAYERS = workload([1.0, 1.0], [1.0, 1.0], [2.0, 1.0])
SHARDED = {"exchange": "sharded"}


def times(graph: OpGraph, worker: int, iteration: int = 0) -> dict[str, tuple[float, float]]:
    """Start and end of each op of a worker, by name without the worker."""
    out = {}
    for span in timeline(graph, iterations=iteration + 1):
        block = block_of(graph.ops, span.op)
        position = np.unravel_index(span.op - block.first, block.shape)
        if position[0] == worker and span.iteration == iteration:
            name = graph.op_name(span.op).replace(f"worker {worker}, ", "")
            out[name] = (span.start_s, span.end_s)
    return out


def test_three_workers_send_all_gradients_to_all_peers() -> None:
    """Two transfers leave each worker at once, so a byte takes 2 s: layer 1 from 3 to 5 s, layer 0
    from 5 to 9 s (the connections are busy until 5); the next forward of layer 0 starts at 9 s,
    that of layer 1 right after it."""
    graph = build_graph(job(TWO_LAYERS, cluster(), 3, "p2p"))
    for worker in range(3):
        found = times(graph, worker)
        assert found == {
            "forward layer0": (0.0, 1.0),
            "forward layer1": (1.0, 2.0),
            "backward layer1": (2.0, 3.0),
            "backward layer0": (3.0, 4.0),
            "send peer 0, layer1": (3.0, 5.0),
            "send peer 1, layer1": (3.0, 5.0),
            "send peer 0, layer0": (5.0, 9.0),
            "send peer 1, layer0": (5.0, 9.0),
            "apply layer1": (5.0, 5.0),
            "apply layer0": (9.0, 9.0),
        }
        assert times(graph, worker, 1)["forward layer0"] == (9.0, 10.0)
    result = predict(job(TWO_LAYERS, cluster(), 3, "p2p"))
    assert result.iteration_s == pytest.approx(9.0)
    assert result.idle_fraction.mean == pytest.approx(5 / 9)
    assert result.staleness is not None
    assert result.staleness.max == 0


def test_sharded_each_worker_sums_its_share_and_sends_it_back() -> None:
    """Halves of the layers: layer 1 travels from 3 to 3.5 s and is summed once backward leaves the
    device, at 4 s. Layer 0 goes first, until 5 s; then both go back, 0.5 and 1 s."""
    graph = build_graph(job(TWO_LAYERS, cluster(), 2, "p2p", SHARDED))
    found = times(graph, 0)
    assert found["send peer 0, layer1"] == (3.0, 3.5)
    assert found["apply layer1"] == (4.0, 4.0)
    assert found["send peer 0, layer0"] == (4.0, 5.0)
    assert found["send back peer 0, layer1"] == (5.0, 5.5)
    assert found["send back peer 0, layer0"] == (5.5, 6.5)
    assert times(graph, 0, 1)["forward layer0"] == (6.5, 7.5)
    assert predict(job(TWO_LAYERS, cluster(), 2, "p2p", SHARDED)).iteration_s == 6.5


INTERLEAVED = workload([1.0, 1.0, 1.0], [1.0, 5.0, 1.0], [4.0, 0.0, 4.0], optimizer_s=4.0)
"""Layer 2 arrives at 8 s, while layer 1 is in its backward pass until 9 s."""


@pytest.mark.parametrize("fidelity", ["fine", "coarse"])
def test_layers_are_applied_after_backward(fidelity: str) -> None:
    """Backward ends at 10 s. Layer 2, 2 s, is applied then, while layer 0 travels until 14 s; then
    that is applied until 16 s. If layer 2 were applied as soon as it has come, from 9 to 11 s,
    layer 0 would be ready 2 s later, and an iteration take 18 s, 13 % more."""
    found = predict(job(INTERLEAVED, cluster(), 2, "p2p"), fidelity=fidelity)
    assert found.iteration_s == pytest.approx(16.0, rel=1e-12)
    graph = build_graph(job(INTERLEAVED, cluster(), 2, "p2p"))
    at = times(graph, 0)
    assert at["backward layer0"] == (9.0, 10.0)
    assert at["apply layer2"] == (10.0, 12.0)
    assert at["apply layer0"] == (14.0, 16.0)


@pytest.mark.parametrize("fidelity", ["fine", "coarse"])
def test_shares_are_sent_back_after_backward(fidelity: str) -> None:
    """Of two workers each sends 2 bytes of a layer, applies them in 1 s, and sends them back. Layer
    2 is there at 6 s, applied from 10 to 11 s, and goes back after layer 0 has left, from 12 to
    14 s; layer 0 is applied from 12 to 13 s and goes back from 14 to 16 s."""
    found = predict(job(INTERLEAVED, cluster(), 2, "p2p", SHARDED), fidelity=fidelity)
    assert found.iteration_s == pytest.approx(16.0, rel=1e-12)


@given(data=st.data(), workers=st.integers(1, 4), overlap=st.booleans(), hop=st.integers(0, 2))
@examples(60)
def test_both_routes_agree_where_updates_take_time(
    data: st.DataObject, workers: int, overlap: bool, hop: int
) -> None:
    n = data.draw(st.integers(1, 5))
    times_s = st.lists(st.floats(0.125, 5.0), min_size=n, max_size=n)
    sizes = data.draw(st.lists(st.sampled_from([0.0, 1.0, 3.5]), min_size=n, max_size=n))
    work = workload(
        data.draw(times_s),
        data.draw(times_s),
        [*sizes[:-1], 2.0],
        optimizer_s=data.draw(st.sampled_from([0.0, 0.5, 4.0])),
    )
    options = {"overlap": overlap, "reduce_per_byte_s": data.draw(st.sampled_from([0.0, 0.25]))}
    one = job(work, cluster(1.0, hop / 2), workers, "p2p", options)
    assert coarse.model_of(one).exact(one)
    by_formula = predict(one, fidelity="coarse").iteration_s
    assert predict(one).iteration_s == pytest.approx(by_formula, rel=1e-9)


def test_canary_a_layer_applied_during_backward_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The graph with the former edge: from each layer's own backward pass to its apply."""
    edge = GraphBuilder.edge

    def from_own(b: GraphBuilder, source: Any, target: Any, lag: int = 0) -> None:
        if (np.shape(source)[-1:], np.shape(target)[-1:]) == ((1,), (3,)):
            source = source + np.arange(3)
        edge(b, source, target, lag)

    monkeypatch.setattr(GraphBuilder, "edge", from_own)
    assert predict(job(INTERLEAVED, cluster(), 2, "p2p")).iteration_s == pytest.approx(18.0)


def test_without_overlap_phases_follow_each_other() -> None:
    """C + (N-1) M / B (Alqahtani, Demirbas, 2019), as sums and not as maxima."""
    for workers in (2, 3, 5):
        result = predict(job(TWO_LAYERS, cluster(), workers, "p2p", {"overlap": False}))
        assert result.iteration_s == pytest.approx(4.0 + (workers - 1) * 3.0, rel=1e-12)
        sharded = predict(job(TWO_LAYERS, cluster(), workers, "p2p", {"overlap": False, **SHARDED}))
        expected = 4.0 + 2 * (workers - 1) / workers * 3.0
        assert sharded.iteration_s == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("workers", [2, 3, 4, 8])
@pytest.mark.parametrize(
    ("options", "share"), [({}, lambda n: n - 1), (SHARDED, lambda n: 2 * (n - 1) / n)]
)
def test_bytes_over_every_link(workers: int, options: dict[str, Any], share: Any) -> None:
    """Each worker sends and receives (N-1) M; 2 (N-1)/N M if sharded."""
    graph = build_graph(job(TWO_LAYERS, cluster(), workers, "p2p", options))
    expected = np.full(2 * workers, share(workers) * 3.0)
    np.testing.assert_allclose(graph.bytes_by_link(), expected, rtol=1e-12)


@pytest.mark.parametrize("options", [{}, SHARDED, {"overlap": False}])
def test_one_worker_takes_the_single_device_step_time(options: dict[str, Any]) -> None:
    work = workload([1.0, 2.0], [3.0, 4.0], [2.0, 1.0], optimizer_s=0.5)
    assert predict(job(work, cluster(), 1, "p2p", options)).iteration_s == pytest.approx(10.5)


def test_each_worker_applies_the_gradients_of_all() -> None:
    """N u' (Alqahtani, Demirbas, 2019): adding N - 1 gradients of 3 bytes, 0.5 s a byte."""
    options = {"overlap": False, "reduce_per_byte_s": 0.5}
    for workers in (2, 4):
        result = predict(job(TWO_LAYERS, cluster(1e9), workers, "p2p", options))
        assert result.iteration_s == pytest.approx(4.0 + (workers - 1) * 3.0 * 0.5, rel=1e-6)


@pytest.mark.parametrize("options", [{}, SHARDED, {"transmission": "priority"}])
@pytest.mark.parametrize("core", [None, 2.0])
def test_one_simulated_worker_can_represent_all(
    options: dict[str, Any], core: float | None
) -> None:
    work = workload([1.0] * 3, [1.0] * 3, [2.0, 1.0, 7.0], optimizer_s=0.3)
    where = cluster(3.0, 0.1, core_oversubscription=core)
    whole = simulate(build_graph(job(work, where, 5, "p2p", options)))
    folded = simulate(build_graph(job(work, where, 5, "p2p", options), fold=True))
    assert len(folded.iterations_per_s) == 1
    assert folded.iterations_per_s[0] == pytest.approx(whole.iterations_per_s[0], rel=1e-9)
    np.testing.assert_allclose(
        folded.link_utilisation[:2], whole.link_utilisation[[0, 5]], rtol=1e-9
    )


def test_workers_that_differ_are_not_folded() -> None:
    shared_nodes = cluster(devices_per_node=2)
    for unlike in (
        job(TWO_LAYERS, cluster(), 4, "p2p", stragglers=[Straggler(1, 2.0)]),
        job(TWO_LAYERS, cluster(), 4, "p2p", jitter=Jitter(0.1)),
        job(TWO_LAYERS, cluster(overrides=(NodeOverride(1, Link(0.5)),)), 4, "p2p"),
        job(TWO_LAYERS, shared_nodes, 4, "p2p"),
    ):
        assert build_graph(unlike, fold=True).n_groups == 4


def test_one_slow_link_delays_all_workers() -> None:
    """Worker 0 sends its 3 bytes to two peers at half the speed: 12 s after its backward."""
    slow = cluster(overrides=(NodeOverride(0, Link(0.5)),))
    result = predict(job(TWO_LAYERS, slow, 3, "p2p", {"overlap": False}))
    assert result.iteration_s == pytest.approx(4.0 + 12.0)


def test_a_straggler_delays_all_workers() -> None:
    late = job(TWO_LAYERS, cluster(1e9), 3, "p2p", stragglers=[Straggler(2, 3.0)])
    result = predict(late)
    assert result.iteration_s == pytest.approx(12.0)
    assert result.idle_fraction.by_cause["straggler"] == pytest.approx(2 / 3 * 2 / 3, rel=1e-6)


def test_the_most_urgent_layer_goes_first_with_priority() -> None:
    """Backward is faster than the network: layers 2, 1, 0 wait for the connection while a part of
    layer 2 is under way. First come, first served: layer 0 (1 byte) arrives last, at 3.5 + 12 s;
    with priorities it is the second to be sent."""
    work = workload([1.0] * 3, [0.1] * 3, [1.0, 5.0, 6.0])
    ends = {}
    for transmission in ("fifo", "priority"):
        options = {"transmission": transmission}
        graph = build_graph(job(work, cluster(), 2, "p2p", options))
        ends[transmission] = times(graph, 0)["send peer 0, layer0"][1]
    assert ends == pytest.approx({"fifo": 3.1 + 12.0, "priority": 3.1 + 6.0 + 1.0})


def test_partitions_let_an_urgent_layer_in_between() -> None:
    work = workload([1.0] * 2, [0.1] * 2, [1.0, 6.0])
    options = {"transmission": "priority", "partition_bytes": 2.0}
    graph = build_graph(job(work, cluster(), 2, "p2p", options))
    assert times(graph, 0)["send peer 0, layer0"] == pytest.approx((2.1 + 2.0, 2.1 + 3.0))


def test_compression_shrinks_what_is_sent_and_takes_its_time() -> None:
    """8 of 32 bits: a quarter of the bytes; 0.5 s a byte to encode, 0.25 s to decode. 4 s and
    1.5 s of encoding, 0.75 s of transfers, 0.5 s to decode what came last, the 2 bytes."""
    options = {
        "overlap": False,
        "compression": "quantised",
        "encode_per_byte_s": 0.5,
        "decode_per_byte_s": 0.25,
    }
    graph = build_graph(job(TWO_LAYERS, cluster(), 2, "p2p", options))
    np.testing.assert_allclose(graph.bytes_by_link(), 3.0 / 4)
    result = predict(job(TWO_LAYERS, cluster(), 2, "p2p", options))
    assert result.iteration_s == pytest.approx(4.0 + 1.5 + 0.75 + 0.5)


def test_impossible_options_are_refused() -> None:
    with pytest.raises(InputError, match="expected one of full, sharded, got 'some'"):
        job(TWO_LAYERS, cluster(), 2, "p2p", {"exchange": "some"})
    with pytest.raises(InputError, match="reduce_per_byte_s: must be at least 0"):
        job(TWO_LAYERS, cluster(), 2, "p2p", {"reduce_per_byte_s": -1.0})


def test_canary_a_forgotten_peer_is_noticed() -> None:
    """Without the last peer's messages the byte counts and the timeline are wrong."""
    graph = build_graph(job(TWO_LAYERS, cluster(), 3, "p2p"))
    sends = next(b for b in graph.ops if b.label == "send")
    last = sends.first + np.arange(sends.size).reshape(sends.shape)[:, -1].ravel()
    sizes = graph.op_bytes.copy()
    sizes[last] = 0.0
    wrong = msgspec.structs.replace(graph, op_bytes=sizes)
    assert wrong.bytes_by_link() == pytest.approx(np.full(6, 3.0))
    assert times(wrong, 0)["send peer 0, layer1"] != (3.0, 5.0)
