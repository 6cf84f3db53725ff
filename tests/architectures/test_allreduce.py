"""Ring all-reduce against timelines worked out by hand, and the traffic its source states."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from perfmodel import (
    InputError,
    IntraNode,
    Jitter,
    Job,
    Link,
    NodeOverride,
    Straggler,
    build_graph,
    predict,
)
from perfmodel.architectures.allreduce.messages import messages_of
from perfmodel.engine.simulation import timeline
from perfmodel.predicting import fine
from perfmodel.theory import collective_times
from perfmodel.theory.buckets import mg_wfbp_buckets
from tests.jobs import cluster, job, workload
from tests.settings import examples

WORK = workload([1.0, 1.0], [1.0, 1.0], [2.0, 1.0], optimizer_s=0.5)
PER_LAYER = {"bucket_cap_bytes": 0, "first_bucket_bytes": 0}


def test_two_workers_reduce_during_backward() -> None:
    """A ring of two moves each byte once: layer 1 (1 s) behind backward, layer 0 (2 s) exposed."""
    graph = build_graph(job(WORK, cluster(), 2, "ring", PER_LAYER))
    spans = {graph.op_name(s.op): (s.start_s, s.end_s) for s in timeline(graph, iterations=1)}
    for worker in ("worker 0", "worker 1"):
        assert spans[f"forward {worker}, layer0"] == (0.0, 1.0)
        assert spans[f"forward {worker}, layer1"] == (1.0, 2.0)
        assert spans[f"backward {worker}, layer1"] == (2.0, 3.0)
        assert spans[f"backward {worker}, layer0"] == (3.0, 4.0)
        assert spans[f"optimizer {worker}"] == (6.0, 6.5)
    assert spans["all-reduce bucket 0"] == (3.0, 4.0)
    assert spans["all-reduce bucket 1"] == (4.0, 6.0)
    result = predict(job(WORK, cluster(), 2, "ring", PER_LAYER))
    assert result.iteration_s == 6.5
    assert result.idle_fraction.by_cause == {"network": pytest.approx(2 / 6.5)}
    assert result.staleness.histogram == {"0": 1.0}


def test_three_workers_with_latency() -> None:
    """2(n-1) = 4 steps of 0.1 s each, then 2 x 2/3 of the bytes; one bucket after backward."""
    where = cluster(latency_s=0.1)
    options = {"overlap": False, "bucket_cap_bytes": 100, "first_bucket_bytes": 100}
    result = predict(job(WORK, where, 3, "ring", options))
    assert result.iteration_s == pytest.approx(4.5 + 0.4 + 4 / 3 * 3.0)


@pytest.mark.parametrize("workers", [2, 3, 8])
def test_bytes_over_every_link(workers: int) -> None:
    """2(N-1)/N M out of and into every member, whatever the buckets."""
    graph = build_graph(job(WORK, cluster(), workers, "ring", PER_LAYER))
    assert graph.bytes_by_link() == pytest.approx([2 * (workers - 1) / workers * 3.0] * 2 * workers)


def test_devices_of_a_node_share_its_link() -> None:
    """A flat ring over two nodes of two devices: the link carries 2(p-1)/p M, p all devices."""
    where = cluster(devices_per_node=2, intra_node=Link(1e9))
    graph = build_graph(job(WORK, where, 4, "ring", PER_LAYER))
    moved = {graph.link_name(i): b for i, b in enumerate(graph.bytes_by_link())}
    assert moved["link out of node 0"] == pytest.approx(2 * 3 / 4 * 3.0)
    assert moved["link into node 1"] == pytest.approx(2 * 3 / 4 * 3.0)


@pytest.mark.parametrize(("kind", "at_once"), [("bus", 4), ("per_device", 1)])
@pytest.mark.parametrize("each_send", [False, True])
def test_inside_one_node_nothing_crosses_the_network(
    kind: Any, at_once: int, each_send: bool
) -> None:
    """All four devices share a bus; a port carries the sends of one device."""
    where = cluster(devices_per_node=4, intra_node=IntraNode(10.0, kind=kind))
    options = {"overlap": False, "each_send": each_send}
    result = predict(job(WORK, where, 4, "ring", options))
    assert result.iteration_s == pytest.approx(4.5 + at_once * 2 * 3 / 4 * 3.0 / 10.0)
    assert all("inside" in name for name in result.utilisation.links)


def test_two_collectives_at_once_share_the_links() -> None:
    """Bucket 0 (1 byte) at 3 s, bucket 1 (2 bytes) at 4 s: with ever-larger first bucket both
    are under way together and each gets half."""
    work = workload([1.0, 1.0], [1.0, 1.0], [2.0, 3.0])
    graph = build_graph(job(work, cluster(), 2, "ring", {**PER_LAYER, "concurrent": 2}))
    spans = {graph.op_name(s.op): (s.start_s, s.end_s) for s in timeline(graph, iterations=1)}
    assert spans["all-reduce bucket 0"] == (3.0, 8.0)
    assert spans["all-reduce bucket 1"] == (4.0, 8.0)


def test_the_slowest_link_and_the_slowest_worker_set_the_pace() -> None:
    slow_link = cluster(overrides=(NodeOverride(1, Link(0.5)),))
    slow = predict(job(WORK, slow_link, 2, "ring", {"overlap": False}))
    assert slow.iteration_s == pytest.approx(4.5 + 6.0)
    straggling = job(WORK, cluster(1e9), 3, "ring", stragglers=[Straggler(2, 2.0)])
    result = predict(straggling)
    assert result.iteration_s == pytest.approx(9.0)
    assert result.idle_fraction.by_cause["straggler"] == pytest.approx(2 / 3 * 0.5)


def test_jitter_costs_the_slowest_of_the_workers() -> None:
    """E[max of n] of a lognormal exceeds its mean: a ring waits for the slowest every time."""
    result = predict(job(WORK, cluster(1e9), 8, "ring", jitter=Jitter(0.3)))
    assert 1.2 * 4.5 < result.iteration_s < 1.8 * 4.5
    assert result.idle_fraction.by_cause["straggler"] > 0.15


def test_buckets_follow_the_order_of_backward() -> None:
    work = workload([1.0] * 4, [1.0] * 4, [5.0, 30.0, 4.0, 3.0])
    options = {"bucket_cap_bytes": 10, "first_bucket_bytes": 3}
    messages = messages_of(job(work, cluster(), 2, "ring", options))
    assert messages.bytes.tolist() == [3.0, 34.0, 5.0]
    assert messages.layer.tolist() == [3, 1, 0]


EACH_SEND = [{"each_send": True}, {"each_send": True, "overlap": False}]
OTHER = [
    {"algorithm": "halving_doubling"},
    {"algorithm": "tree"},
    {"algorithm": "hierarchical"},
    {"bucketing": "horovod", "fusion_cycle_s": 0.25},
    {"bucketing": "layer", "partition_bytes": 0.5, "priority": True, "cross_barrier": True},
    {"compression": "dgc", "encode_per_byte_s": 0.1, "decode_per_byte_s": 0.1},
    {"algorithm": "tree", "each_send": True},
]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("options", [{}, {"overlap": False}, {"concurrent": 2}, *EACH_SEND, *OTHER])
@pytest.mark.parametrize("devices", [1, 2])
def test_one_simulated_worker_can_represent_all(
    options: dict[str, Any], devices: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Folded or not, the prediction is the same."""
    where = cluster(
        latency_s=0.01, devices_per_node=devices, intra_node=Link(7.0), core_oversubscription=2.0
    )
    one = job(WORK, where, 6, "allreduce", {**PER_LAYER, **options})
    graph = build_graph(one, fold=True)
    ring = options.get("algorithm", "ring") == "ring"
    folds = (devices == 1 and ring) or not options.get("each_send")
    assert graph.n_groups == (1 if folds else 6)
    folded = predict(one)
    monkeypatch.setattr(fine, "alike", lambda job: False)
    whole = predict(one)
    assert same(folded.to_dict(), whole.to_dict()) == []


def same(a: Any, b: Any, place: str = "") -> list[str]:
    """Fields in which two predictions differ by more than rounding, except bottleneck texts."""
    if isinstance(a, dict) and place != ".bottleneck":
        assert a.keys() == b.keys(), place
        return [d for key in a for d in same(a[key], b[key], f"{place}.{key}")]
    if isinstance(a, (list, tuple)):
        assert len(a) == len(b), place
        return [d for i in range(len(a)) for d in same(a[i], b[i], f"{place}[{i}]")]
    if isinstance(a, float):
        return [] if a == pytest.approx(b, rel=1e-9, abs=1e-12) else [f"{place}: {a} {b}"]
    return [] if a == b or place == ".bottleneck" else [f"{place}: {a} {b}"]


@pytest.mark.parametrize("differ", [{"jitter": Jitter(0.1)}, {"stragglers": [Straggler(0, 2.0)]}])
def test_workers_that_differ_are_simulated_one_by_one(differ: dict[str, Any]) -> None:
    assert build_graph(job(WORK, cluster(), 3, "ring", **differ), fold=True).n_groups == 3
    slow = cluster(overrides=(NodeOverride(1, speed=0.5),))
    assert build_graph(job(WORK, slow, 3, "ring"), fold=True).n_groups == 3


@pytest.mark.parametrize("workers", [2, 5])
def test_single_sends_take_as_long_as_the_collective(workers: int) -> None:
    options = {"overlap": False, "bucket_cap_bytes": 100, "first_bucket_bytes": 100}
    where = cluster(latency_s=0.1)
    whole = predict(job(WORK, where, workers, "ring", options)).iteration_s
    sends = predict(job(WORK, where, workers, "ring", {**options, "each_send": True})).iteration_s
    assert sends == pytest.approx(whole, rel=1e-12)


def test_a_straggler_delays_only_the_sends_behind_it() -> None:
    """A late worker delays its neighbours step by step, no less than the collective as a whole."""
    options = {"overlap": False, "bucket_cap_bytes": 100, "first_bucket_bytes": 100}
    late = {"stragglers": [Straggler(0, 2.0)]}
    whole = predict(job(WORK, cluster(), 4, "ring", options, **late)).iteration_s
    sends = predict(job(WORK, cluster(), 4, "ring", {**options, "each_send": True}, **late))
    assert sends.iteration_s <= whole * (1 + 1e-12)
    with pytest.raises(InputError, match="concurrent must be 1"):
        job(WORK, cluster(), 4, "ring", {"each_send": True, "concurrent": 2})


def test_three_workers_of_a_tree_send_by_send() -> None:
    """Up 1 to 0 and 2 to 0, down 0 to 2 and 0 to 1, 3 s each; a worker continues once it has the
    sum."""
    options = {"algorithm": "tree", "each_send": True, "bucketing": "one"}
    one = job(WORK, cluster(), 3, "allreduce", options)
    assert spans_of("send", one) == [(4.0, 7.0), (7.0, 10.0), (10.0, 13.0), (13.0, 16.0)]
    assert spans_of("optimizer", one) == [(13.0, 13.5), (16.0, 16.5), (16.0, 16.5)]
    # worker 2 at half speed is ready at 8 s: only the sends that it takes part in wait for it
    late = job(WORK, cluster(), 3, "allreduce", options, stragglers=[Straggler(2, 2.0)])
    assert spans_of("send", late) == [(4.0, 7.0), (8.0, 11.0), (11.0, 14.0), (14.0, 17.0)]


def test_four_workers_on_two_nodes_reduce_inside_first() -> None:
    """3 bytes at 10 bytes/s inside, a ring of two nodes that moves 3 bytes, and 0.3 s inside."""
    where = cluster(devices_per_node=2, intra_node=Link(10.0))
    options = {"algorithm": "hierarchical", "bucketing": "one"}
    one = job(WORK, where, 4, "allreduce", options)
    assert predict(one).iteration_s == pytest.approx(4.0 + 0.3 + 3.0 + 0.3 + 0.5)


# -- buckets and fusion ----------------------------------------------------------------------------


def spans_of(label: str, one: Job, iterations: int = 1) -> list[tuple[float, float]]:
    """Start and end of each op of a kind, in time order."""
    graph = build_graph(one)
    block = next(b for b in graph.ops if b.label == label)
    found = [
        (s.start_s, s.end_s)
        for s in timeline(graph, iterations=iterations)
        if block.first <= s.op < block.first + block.size
    ]
    return sorted(found)


THREE = workload([1.0] * 3, [1.0] * 3, [2.0, 1.0, 3.0])


def test_one_bucket_and_one_bucket_a_layer() -> None:
    """Backward of layers 2, 1, 0 ends at 4, 5, 6 s; two workers move each byte once."""
    one = job(THREE, cluster(), 2, "ring", {"bucketing": "one"})
    assert spans_of("all-reduce", one) == [(6.0, 12.0)]
    layers = job(THREE, cluster(), 2, "ring", {"bucketing": "layer"})
    assert spans_of("all-reduce", layers) == [(4.0, 7.0), (7.0, 8.0), (8.0, 10.0)]


@pytest.mark.parametrize(
    ("threshold", "expected"),
    [
        (4.0, [(4.2, 7.7), (7.7, 11.2), (15.4, 18.9), (18.9, 22.4)]),
        (2.0, [(4.2, 7.7), (7.7, 9.2), (9.2, 11.7)]),
        (0.0, [(4.2, 7.7), (7.7, 9.2), (9.2, 11.7)]),
    ],
)
def test_horovod_fuses_what_is_ready_at_a_tick(
    threshold: float, expected: list[tuple[float, float]]
) -> None:
    """A tick every 1.4 s; 3 bytes are ready at 4 s, 1 at 5 s, 2 at 6 s; an all-reduce takes 0.5 s +
    bytes."""
    options = {
        "bucketing": "horovod",
        "fusion_cycle_s": 1.4,
        "fusion_threshold_bytes": threshold,
    }
    one = job(THREE, cluster(latency_s=0.25), 2, "ring", options)
    found = spans_of("fused all-reduce", one, iterations=len(expected))
    np.testing.assert_allclose(found[: len(expected)], expected)
    if threshold == 4.0:  # the next steps begin at 11.2 and 22.4 s, and so on each 8 ticks
        assert predict(one).iteration_s == pytest.approx(11.2)


def test_horovod_continues_at_the_pace_of_each_algorithm() -> None:
    """One tensor of 3 bytes at 2 s; negligible tick interval; three workers in a tree: 4 x 3 s."""
    options = {"bucketing": "horovod", "fusion_cycle_s": 1e-3, "reduce_per_byte_s": 0.5}
    work = workload([1.0], [1.0], [3.0])
    one = job(work, cluster(latency_s=0.1), 3, "allreduce", {"algorithm": "tree", **options})
    expected = collective_times.tree_allreduce_s(
        3, 3.0, bandwidth_bytes_per_s=1.0, latency_s=0.1, reduce_per_byte_s=0.5
    )
    assert predict(one).iteration_s == pytest.approx(2.0 + expected, abs=1.001e-3)


@pytest.mark.parametrize("bucketing", ["one", "horovod"])
def test_devices_on_free_links_only_take_the_reduction_time(bucketing: str) -> None:
    """4 of 4 devices of one node, no link inside: a ring adds 3/4 of 8 bytes at 0.5 s each."""
    options = {"bucketing": bucketing, "fusion_cycle_s": 1e-3, "reduce_per_byte_s": 0.5}
    work = workload([1.0], [1.0], [8.0])
    one = job(work, cluster(devices_per_node=4), 4, "ring", options)
    assert predict(one).iteration_s == pytest.approx(2.0 + 3.0, abs=1.001e-3)


def finish_s(
    buckets: list[list[int]], ready: list[float], sizes: list[float], a: float, b: float
) -> float:
    """End of the last of consecutive messages, each taking a + b times its size."""
    free = 0.0
    for bucket in buckets:
        free = max(free, ready[bucket[-1]]) + a + b * sum(sizes[i] for i in bucket)
    return free


def merges(count: int) -> list[list[list[int]]]:
    """All ways to merge neighbouring messages."""
    found = []
    for cuts in itertools.product((False, True), repeat=count - 1):
        ways: list[list[int]] = [[0]]
        for i, cut in enumerate(cuts, start=1):
            if cut:
                ways.append([])
            ways[-1].append(i)
        found.append(ways)
    return found


def merging_pays(buckets: list[list[int]], *plan: Any) -> None:
    """No worse than no merging and than one message; no better than the best of all merges."""
    count = len(plan[0])
    took = finish_s(buckets, *plan)
    margin = 1e-9 * took
    assert took <= finish_s([[i] for i in range(count)], *plan) + margin
    assert took <= finish_s([list(range(count))], *plan) + margin
    assert took >= min(finish_s(ways, *plan) for ways in merges(count)) - margin


_times = st.sampled_from([0.0, 0.25, 1.0, 3.0])


@examples(300)
@given(
    layers=st.lists(st.tuples(_times, st.sampled_from([0.1, 1.0, 4.0])), min_size=1, max_size=6),
    a=_times,
    b=st.sampled_from([0.125, 1.0]),
)
def test_merged_layers_are_no_slower(layers: list[tuple[float, float]], a: float, b: float) -> None:
    ready = list(itertools.accumulate(seconds for seconds, _ in layers))
    sizes = [size for _, size in layers]
    buckets = mg_wfbp_buckets(ready, sizes, startup_s=a, per_byte_s=b)
    assert [i for bucket in buckets for i in bucket] == list(range(len(layers)))
    merging_pays(buckets, ready, sizes, a, b)


def test_canary_a_bad_merge_is_noticed() -> None:
    with pytest.raises(AssertionError):
        merging_pays([[0, 1, 2]], [1.0, 2.0, 9.0], [1.0, 1.0, 1.0], 0.5, 0.5)
    with pytest.raises(AssertionError):
        merging_pays([[0], [1], [2]], [1.0, 1.0, 1.0], [1.0, 1.0, 1.0], 0.5, 0.5)


def test_mg_wfbp_merges_messages_to_save_startup_latency() -> None:
    """Two workers, latency 0.5 s: 1 s + bytes. Gradients 1, 1.5 and 6 s into backward.

    The first would run from 1 to 3 s; waiting half a second for the second saves 1 s. The two take
    until 4.5 s, and do not wait for the third, which takes from 6 to 8 s.
    """
    work = workload([1.0, 0.0, 0.0], [4.5, 0.5, 1.0], [1.0, 1.0, 1.0])
    one = job(work, cluster(latency_s=0.5), 2, "ring", {"bucketing": "mg_wfbp"})
    assert spans_of("all-reduce", one) == [(2.5, 5.5), (7.0, 9.0)]
    assert messages_of(one).bytes.tolist() == [2.0, 1.0]
    assert predict(one).iteration_s == 9.0


def test_priorities_let_the_next_forward_begin_earlier() -> None:
    """4 bytes of layer 1 are ready a second before 2 bytes of layer 0.

    In order: 4 s, 2 s, then forward: 9 s. In parts of a byte layer 0 overtakes after one second,
    and its forward overlaps what is left of layer 1: all six bytes, forward and backward of layer
    1 make 8 s.
    """
    work = workload([1.0, 1.0], [1.0, 1.0], [2.0, 4.0])
    options: dict[str, Any] = {"bucketing": "layer"}
    assert predict(job(work, cluster(), 2, "ring", options)).iteration_s == 9.0
    options |= {"partition_bytes": 1.0, "priority": True}
    assert predict(job(work, cluster(), 2, "ring", options)).iteration_s == 9.0
    options |= {"cross_barrier": True}
    crossing = job(work, cluster(), 2, "ring", options)
    assert predict(crossing).iteration_s == 8.0
    expected = [(3.0, 4.0), (4.0, 5.0), (5.0, 6.0), (6.0, 7.0), (7.0, 8.0), (8.0, 9.0)]
    assert spans_of("all-reduce", crossing) == expected
    assert predict(crossing).staleness.histogram == {"0": 1.0}


def test_updates_by_layer_take_the_optimizers_time() -> None:
    work = workload([1.0, 1.0], [1.0, 1.0], [1.0, 3.0], optimizer_s=2.0)
    one = job(work, cluster(1e9), 2, "ring", {"cross_barrier": True, "bucketing": "layer"})
    assert predict(one).iteration_s == pytest.approx(6.0)
    graph = build_graph(one)
    block = next(b for b in graph.ops if b.label == "update")
    assert graph.op_seconds[block.first : block.first + 2].tolist() == [0.5, 1.5]


@pytest.mark.parametrize(
    ("credit", "expected"), [(5.0, [(3.0, 8.0), (4.0, 8.0)]), (3.0, [(3.0, 6.0), (6.0, 8.0)])]
)
def test_credit_lets_as_many_bytes_go_at_once(
    credit: float, expected: list[tuple[float, float]]
) -> None:
    """3 bytes at 3 s and 2 bytes at 4 s share the links if there is credit for both."""
    work = workload([1.0, 1.0], [1.0, 1.0], [2.0, 3.0])
    options = {"bucketing": "layer", "credit_bytes": credit}
    assert spans_of("all-reduce", job(work, cluster(), 2, "ring", options)) == expected


# -- compression ----------------------------------------------------------------------------------


def test_sparse_gradients_are_gathered() -> None:
    """A quarter of 16 bytes plus indices of the same size: 8 bytes from each of two peers.

    Forward and backward 2 s, encoding 1.6 s, 16 s, decoding of two 16 bytes' worth 0.8 s, 0.5 s.
    """
    options = {
        "compression": "top_k",
        "density": 0.25,
        "encode_per_byte_s": 0.1,
        "decode_per_byte_s": 0.025,
    }
    work = workload([1.0], [1.0], [16.0], optimizer_s=0.5)
    for each_send in (False, True):
        one = job(work, cluster(), 3, "ring", {**options, "each_send": each_send})
        assert predict(one).iteration_s == pytest.approx(2.0 + 1.6 + 16.0 + 0.8 + 0.5)
        np.testing.assert_allclose(build_graph(one).bytes_by_link(), 16.0)


def test_quantised_gradients_are_smaller_ones() -> None:
    """8 of 32 bits: 4 of 16 bytes, of which a ring of three moves 4/3; decoding 0.4 s."""
    options = {"compression": "quantised", "quantised_bits": 8, "decode_per_byte_s": 0.025}
    work = workload([1.0], [1.0], [16.0], optimizer_s=0.5)
    one = job(work, cluster(), 3, "ring", options)
    assert predict(one).iteration_s == pytest.approx(2.0 + 4 / 3 * 4.0 + 0.4 + 0.5)
    crossing = job(work, cluster(), 3, "ring", {**options, "cross_barrier": True})
    assert predict(crossing).iteration_s == pytest.approx(2.0 + 4 / 3 * 4.0 + 0.4 + 0.5)


def test_encoding_holds_up_the_layers_below() -> None:
    """Layer 1's gradient (1 byte) is ready at 3 s and encoded at 4 s, layer 0's then at 5 and 7."""
    options = {"compression": "quantised", "quantised_bits": 16, "encode_per_byte_s": 1.0}
    one = job(WORK, cluster(), 2, "ring", {**options, "bucketing": "layer"})
    assert spans_of("encode", one) == [(3.0, 4.0), (3.0, 4.0), (5.0, 7.0), (5.0, 7.0)]
    assert spans_of("all-reduce", one) == [(4.0, 4.5), (7.0, 8.0)]


@pytest.mark.parametrize("options", [{"algorithm": "tree"}, {"compression": "dgc"}, *OTHER])
def test_one_worker_takes_the_single_device_step_time(options: dict[str, Any]) -> None:
    assert predict(job(WORK, cluster(), 1, "allreduce", options)).iteration_s == 4.5


# -- incompatible options -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"algorithm": "star"}, "expected one of auto, double_tree, halving"),
        ({"chunks": 0}, "chunks"),
        ({"each_send": True, "bucketing": "horovod"}, "each_send: cannot simulate horovod"),
        ({"each_send": True, "priority": True}, "priority: not available with each_send"),
        ({"each_send": True, "cross_barrier": True}, "cross_barrier: not available with each_send"),
        ({"bucketing": "mg_wfbp", "overlap": False}, "mg_wfbp plans for overlap"),
        ({"bucketing": "horovod", "priority": True}, "priority: horovod fuses tensors in"),
        ({"bucketing": "horovod", "partition_bytes": 1e6}, "partition_bytes: horovod fuses"),
        ({"bucketing": "horovod", "concurrent": 2}, "concurrent: horovod runs one"),
        ({"bucketing": "horovod", "fusion_cycle_s": 0}, "fusion_cycle_s"),
        ({"compression": "dgc", "algorithm": "tree"}, "algorithm: dgc gradients are gathered"),
        ({"compression": "dgc", "reduce_per_byte_s": 1.0}, "set decode_per_byte_s"),
        ({"credit_bytes": 10, "concurrent": 2}, "so concurrent must be 1"),
        ({"partition_bytes": 0}, "partition_bytes"),
    ],
)
def test_incompatible_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message) as found:
        job(WORK, cluster(), 4, "allreduce", options)
    assert "\n" not in str(found.value)


def test_too_many_parts_are_refused_as_a_typing_error() -> None:
    work = workload([1.0], [1.0], [1e9])
    with pytest.raises(InputError, match="partition_bytes: 10 cuts the gradients into 100000000"):
        build_graph(job(work, cluster(), 2, "ring", {"partition_bytes": 10}))


def test_options_without_effect_are_not_listed_as_assumptions() -> None:
    noted = {a.name for a in job(WORK, cluster(), 2, "allreduce").assumptions}
    assert {"algorithm", "bucketing", "bucket_cap_bytes", "overlap"} <= noted
    assert not noted & {"fusion_cycle_s", "density", "quantised_bits"}
    noted = {a.name for a in job(WORK, cluster(), 2, "ring").assumptions}
    assert not noted & {"chunks", "algorithm"}
    options = {"bucketing": "horovod", "algorithm": "double_tree"}
    noted = {a.name for a in job(WORK, cluster(), 2, "allreduce", options).assumptions}
    assert {"chunks", "fusion_cycle_s", "fusion_threshold_bytes"} <= noted
    assert not noted & {"bucket_cap_bytes", "priority", "concurrent"}
