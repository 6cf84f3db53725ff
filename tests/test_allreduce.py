"""Ring all-reduce against timelines worked out by hand, and the traffic its source states."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from perfmodel import InputError, Jitter, Link, NodeOverride, Straggler, api, build_graph, predict
from perfmodel.architectures.allreduce import Options, buckets_of
from perfmodel.engine import timeline
from tests.jobs import cluster, job, workload

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


def test_inside_one_node_nothing_crosses_the_network() -> None:
    where = cluster(devices_per_node=4, intra_node=Link(10.0))
    result = predict(job(WORK, where, 4, "ring", {"overlap": False}))
    assert result.iteration_s == pytest.approx(4.5 + 2 * 3 / 4 * 3.0 / 10.0)
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
    options = Options(bucket_cap_bytes=10, first_bucket_bytes=3)
    assert buckets_of(work, options) == ([3.0, 34.0, 5.0], [3, 1, 0])


EACH_SEND = [{"each_send": True}, {"each_send": True, "overlap": False}]


@pytest.mark.parametrize("options", [{}, {"overlap": False}, {"concurrent": 2}, *EACH_SEND])
@pytest.mark.parametrize("devices", [1, 2])
def test_one_worker_may_stand_for_all(
    options: dict[str, Any], devices: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Folded or not, the prediction is the same."""
    where = cluster(
        latency_s=0.01, devices_per_node=devices, intra_node=Link(7.0), core_oversubscription=2.0
    )
    one = job(WORK, where, 6, "ring", {**PER_LAYER, **options})
    graph = build_graph(one, fold=True)
    folds = devices == 1 or not options.get("each_send")
    assert graph.n_groups == (1 if folds else 6)
    folded = predict(one)
    monkeypatch.setattr(api, "alike", lambda job: False)
    whole = predict(one)
    assert same(msgspec.to_builtins(folded), msgspec.to_builtins(whole)) == []


def same(a: Any, b: Any, place: str = "") -> list[str]:
    """Where two predictions differ by more than rounding; the bottleneck's words apart."""
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
def test_every_send_together_takes_as_long_as_the_collective(workers: int) -> None:
    options = {"overlap": False, "bucket_cap_bytes": 100, "first_bucket_bytes": 100}
    where = cluster(latency_s=0.1)
    whole = predict(job(WORK, where, workers, "ring", options)).iteration_s
    sends = predict(job(WORK, where, workers, "ring", {**options, "each_send": True})).iteration_s
    assert sends == pytest.approx(whole, rel=1e-12)


def test_sends_hold_up_those_behind_a_straggler_only() -> None:
    """A late worker delays its neighbours step by step, no less than the collective as a whole."""
    options = {"overlap": False, "bucket_cap_bytes": 100, "first_bucket_bytes": 100}
    late = {"stragglers": [Straggler(0, 2.0)]}
    whole = predict(job(WORK, cluster(), 4, "ring", options, **late)).iteration_s
    sends = predict(job(WORK, cluster(), 4, "ring", {**options, "each_send": True}, **late))
    assert sends.iteration_s <= whole * (1 + 1e-12)
    with pytest.raises(InputError, match="concurrent must be 1"):
        job(WORK, cluster(), 4, "ring", {"each_send": True, "concurrent": 2})
