"""The parameter server against timelines worked out by hand, and the traffic its source states.

All links carry 1 byte/s unless said otherwise, so that a byte is a second.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from perfmodel import Jitter, Server, Straggler, build_graph, predict
from perfmodel.architectures.ps import Options, slices_of
from perfmodel.engine import timeline
from perfmodel.graph import block_of
from tests.jobs import cluster, job, workload

TWO_LAYERS = workload([1.0, 1.0], [1.0, 1.0], [2.0, 1.0], batch_size=4)
ONE_LAYER = workload([1.0], [1.0], [1.0], batch_size=4)


def starts(graph: Any, worker: int, iteration: int = 0) -> dict[str, tuple[float, float]]:
    """Start and end of each op of a worker, by label and layer."""
    out = {}
    for span in timeline(graph, iterations=iteration + 1):
        block = block_of(graph.ops, span.op)
        position = np.unravel_index(span.op - block.first, block.shape)
        if position[0] == worker and span.iteration == iteration and len(position) == 2:
            layer = block.axes[1][1][position[1]]
            out[f"{block.label} {layer[-1]}"] = (span.start_s, span.end_s)
    return out


def test_two_workers_in_lockstep() -> None:
    """Pulls share the server's link (4 s, 2 s), forward follows layer by layer, pushes share."""
    graph = build_graph(job(TWO_LAYERS, cluster(), 2, "ps"))
    expected = {
        "pull 0": (0.0, 4.0),
        "pull 1": (4.0, 6.0),
        "forward 0": (4.0, 5.0),
        "forward 1": (6.0, 7.0),
        "backward 1": (7.0, 8.0),
        "backward 0": (8.0, 9.0),
        "push 1": (8.0, 10.0),
        "push 0": (10.0, 14.0),
        "update 1": (10.0, 10.0),
        "update 0": (14.0, 14.0),
    }
    for worker in (0, 1):
        assert {k: v for k, v in starts(graph, worker).items() if "all" not in k} == expected
    result = predict(job(TWO_LAYERS, cluster(), 2, "ps"))
    assert result.iteration_s == 14.0
    assert result.throughput_samples_per_s == 2 * 4 / 14.0
    assert result.idle_fraction.mean == pytest.approx(10 / 14)
    assert result.idle_fraction.by_cause == {"network": pytest.approx(10 / 14)}
    assert result.exposed_communication_s == pytest.approx(10.0)
    assert result.operation_s["pull"] == pytest.approx((4.0 + 6.0) / 2)


def test_duplex_answers_each_slice_at_once() -> None:
    """The reply to the last layer's push travels while the first layer is still being pushed."""
    graph = build_graph(job(TWO_LAYERS, cluster(), 2, "ps", {"duplex": True}))
    assert {k: v for k, v in starts(graph, 0).items() if "all" not in k} == {
        "forward 0": (0.0, 1.0),
        "forward 1": (1.0, 2.0),
        "backward 1": (2.0, 3.0),
        "backward 0": (3.0, 4.0),
        "push 1": (3.0, 5.0),
        "push 0": (5.0, 9.0),
        "update 1": (5.0, 5.0),
        "update 0": (9.0, 9.0),
        "pull 1": (5.0, 7.0),
        "pull 0": (9.0, 13.0),
    }
    assert predict(job(TWO_LAYERS, cluster(), 2, "ps", {"duplex": True})).iteration_s == 13.0


def test_asynchronous_workers_take_turns_at_the_server() -> None:
    """An update takes 1 s on the server's one thread, so the workers fall out of step and then
    never share a link again: pull 1, forward 1, backward 1, push 1, update 1 = 5 s."""
    where = cluster(update_per_tensor_s=1.0)
    result = predict(job(ONE_LAYER, where, 2, "ps", {"sync": "asp"}))
    assert result.iteration_s == pytest.approx(5.0, rel=1e-12)
    assert result.idle_fraction.by_cause == {
        "network": pytest.approx(2 / 5),
        "server": pytest.approx(1 / 5),
    }
    graph = build_graph(job(ONE_LAYER, where, 2, "ps", {"sync": "asp"}))
    assert starts(graph, 0)["update 0"] == (6.0, 7.0)
    assert starts(graph, 1)["update 0"] == (7.0, 8.0)
    assert starts(graph, 0, 1)["pull 0"] == (7.0, 8.0)
    assert starts(graph, 1, 1)["pull 0"] == (8.0, 9.0)


def test_a_straggler_is_what_the_others_wait_for() -> None:
    """Worker 1 computes three times as long; worker 0 waits 4 s of the time for it alone."""
    straggling = job(ONE_LAYER, cluster(1e12), 2, "ps", stragglers=[Straggler(1, 3.0)])
    result = predict(straggling)
    assert result.iteration_s == pytest.approx(6.0)
    assert result.idle_fraction.per_worker == pytest.approx((4 / 6, 0.0))
    assert result.idle_fraction.by_cause["straggler"] == pytest.approx(2 / 6)


@pytest.mark.parametrize("sync", ["bsp", "asp"])
@pytest.mark.parametrize("servers", [1, 3])
def test_bytes_over_every_link(sync: str, servers: int) -> None:
    """M in and M out of a worker per iteration; N M / P in and out of each of P even servers."""
    work = workload([1.0, 1.0], [1.0, 1.0], [60.0, 30.0])
    options = {"sync": sync, "servers": servers, "split_above_bytes": 0}
    graph = build_graph(job(work, cluster(), 4, "ps", options))
    moved = {graph.link_name(i): b for i, b in enumerate(graph.bytes_by_link())}
    for worker in range(4):
        assert moved[f"link out of node {worker}"] == pytest.approx(90.0)
        assert moved[f"link into node {worker}"] == pytest.approx(90.0)
    for server in range(servers):
        name = f"node {4 + server} (server {server})"
        assert moved[f"link out of {name}"] == pytest.approx(4 * 90.0 / servers)
        assert moved[f"link into {name}"] == pytest.approx(4 * 90.0 / servers)


def test_a_colocated_server_spares_its_own_worker_the_network() -> None:
    where = cluster(server=Server(placement="colocated"))
    graph = build_graph(job(ONE_LAYER, where, 2, "ps"))
    moved = {graph.link_name(i): b for i, b in enumerate(graph.bytes_by_link())}
    assert moved == {
        "link out of node 0 (server 0)": 1.0,
        "link into node 0 (server 0)": 1.0,
        "link out of node 1": 1.0,
        "link into node 1": 1.0,
    }


def test_large_tensors_are_cut_and_whole_ones_balanced_by_bytes() -> None:
    work = workload([1.0] * 4, [1.0] * 4, [10.0, 100.0, 30.0, 25.0])
    split = slices_of(work, Options(servers=2, split_above_bytes=50))
    assert split.layer.tolist() == [3, 2, 1, 1, 0]
    assert split.bytes.tolist() == [25.0, 30.0, 50.0, 50.0, 10.0]
    uncut = slices_of(work, Options(servers=2, split_above_bytes=float("inf")))
    held = np.bincount(uncut.server, uncut.bytes)
    assert sorted(held.tolist()) == [65.0, 100.0]


def test_a_hot_server_holding_one_huge_tensor_shows() -> None:
    work = workload([1.0, 1.0], [1.0, 1.0], [10.0, 1000.0])
    hot, spread = (
        predict(
            job(
                work,
                cluster(100.0),
                4,
                "ps",
                {"servers": 4, "split_above_bytes": bound},
            )
        )
        for bound in (float("inf"), 50)
    )
    assert hot.iteration_s > 2 * spread.iteration_s
    into = [u for n, u in hot.utilisation.links.items() if "into" in n and "server" in n]
    assert max(into) > 50 * min(into)
    assert "server 0" in hot.bottleneck.resource


@pytest.mark.parametrize("workers", [1, 2, 5])
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"jitter": Jitter(0.5)},
        {"jitter": Jitter(1.0, "gamma"), "start": "staggered"},
        {"stragglers": [Straggler(0, 3.0)], "start": "staggered"},
    ],
    ids=["equal", "lognormal", "exponential", "straggler"],
)
@pytest.mark.parametrize("duplex", [False, True])
def test_mean_staleness_is_one_less_than_the_workers(
    workers: int, fields: dict[str, Any], duplex: bool
) -> None:
    """Read after own apply: every update falls into one window of each other worker.

    The first and last windows are cut off by the measurement, hence the tolerance.
    """
    where = cluster(3.0, update_per_tensor_s=0.1)
    result = predict(
        job(TWO_LAYERS, where, workers, "ps", {"sync": "asp", "duplex": duplex}, **fields)
    )
    assert result.staleness.mean == pytest.approx(workers - 1, abs=0.05 * workers)
    if workers == 1:
        assert result.staleness.max == 0


def test_staleness_of_each_worker_is_the_others_rates_over_its_own() -> None:
    """E[tau_i] = sum of the other workers' rates / own rate."""
    where = cluster(1e9)
    result = predict(
        job(
            ONE_LAYER,
            where,
            4,
            "ps",
            {"sync": "asp"},
            start="staggered",
            stragglers=[Straggler(0, 3.0)],
        )
    )
    assert result.staleness.per_worker[0] == pytest.approx(9.0, rel=0.03)
    assert result.staleness.per_worker[1] == pytest.approx(2 + 1 / 3, rel=0.03)


def test_synchronous_training_has_no_staleness() -> None:
    result = predict(job(TWO_LAYERS, cluster(), 3, "ps", jitter=Jitter(0.5)))
    assert result.staleness.histogram == {"0": 1.0}
    assert result.clock_gap.max <= 1


def test_asynchronous_training_updates_once_per_worker_where_synchronous_updates_once() -> None:
    """At equal samples: N updates against one."""
    updates_per_sample = {
        sync: (p := predict(job(TWO_LAYERS, cluster(), 3, "ps", {"sync": sync}))).updates_per_s
        / p.throughput_samples_per_s
        for sync in ("bsp", "asp")
    }
    assert updates_per_sample["bsp"] == pytest.approx(1 / 12)
    assert updates_per_sample["asp"] == pytest.approx(3 / 12)


def test_synchronous_push_waits_for_the_slowest_and_asynchronous_does_not() -> None:
    """As parameter-server studies report them, a push ends with its update."""
    push = {
        sync: predict(
            job(ONE_LAYER, cluster(1e3), 2, "ps", {"sync": sync}, stragglers=[Straggler(1, 20.0)])
        ).operation_s["push"]
        for sync in ("bsp", "asp")
    }
    assert push["bsp"] > 10 * push["asp"]


def test_a_server_update_is_shared_by_its_threads() -> None:
    slow, fast = (
        predict(
            job(ONE_LAYER, cluster(1e6, server=Server(update_per_tensor_s=1.0, threads=n)), 4, "ps")
        ).iteration_s
        for n in (1, 4)
    )
    assert slow == pytest.approx(2.0 + 4.0, rel=1e-4)
    assert fast == pytest.approx(2.0 + 1.0, rel=1e-4)


def test_update_threads_are_at_most_the_cores() -> None:
    server = Server(update_per_tensor_s=1.0, threads=8)
    where = cluster(1e6, server=server, cpu_cores=2)
    assert predict(job(ONE_LAYER, where, 4, "ps")).iteration_s == pytest.approx(4.0, rel=1e-4)
