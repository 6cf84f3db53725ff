"""The parameter server against timelines worked out by hand, and the traffic its source states.

All links carry 1 byte/s unless noted, so one byte takes one second.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

from perfmodel import InputError, Jitter, Link, Server, Straggler, build_graph, predict
from perfmodel.architectures.ps.graph import Options
from perfmodel.architectures.ps.placement import slices_of
from perfmodel.engine.simulation import simulate, timeline
from perfmodel.graph.op_graph import block_of
from tests.jobs import cluster, job, workload
from tests.settings import thinned

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


def test_waiting_for_a_straggler_is_counted_as_such() -> None:
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


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"devices_per_node": 4}, [0, 1, 0, 1, 0]),
        ({"devices_per_node": 3}, [0, 1, 2, 0, 1]),
        ({"devices_per_node": 4, "devices_on_nodes": (1, 3)}, [0, 1, 2, 0, 1]),
        ({"devices_per_node": 8}, [0] * 5),
        ({}, [0, 1, 2, 3, 4]),
    ],
)
def test_colocated_servers_are_placed_round_robin(
    fields: dict[str, Any], expected: list[int]
) -> None:
    """With 8 workers, however many share a node."""
    where = cluster(server=Server(placement="colocated"), **fields)
    assert [where.node_of_server(server, 8) for server in range(5)] == expected


def test_each_node_carries_the_traffic_of_its_own_servers() -> None:
    """Two nodes of two workers, two servers of half of the 4 bytes each: a node's link carries, out
    and in, what its workers exchange with the other server, 2 x 2 bytes, and what its server
    exchanges with the other workers, as much."""
    where = cluster(devices_per_node=2, server=Server(placement="colocated"))
    halves = {"servers": 2, "split_above_bytes": 1.0}
    graph = build_graph(job(workload([1.0], [1.0], [4.0]), where, 4, "ps", halves))
    moved = {graph.link_name(i): b for i, b in enumerate(graph.bytes_by_link())}
    ends = [f"{way} node {node} (server {node})" for way in ("out of", "into") for node in (0, 1)]
    assert moved == {f"link {end}": 8.0 for end in ends}


def test_large_tensors_are_split_and_small_ones_balanced_by_bytes() -> None:
    work = workload([1.0] * 4, [1.0] * 4, [10.0, 100.0, 30.0, 25.0])
    split = slices_of(work, Options(servers=2, split_above_bytes=50))
    assert split.layer.tolist() == [3, 2, 1, 1, 0]
    assert split.bytes.tolist() == [25.0, 30.0, 50.0, 50.0, 10.0]
    uncut = slices_of(work, Options(servers=2, split_above_bytes=float("inf")))
    held = np.bincount(uncut.server, uncut.bytes)
    assert sorted(held.tolist()) == [65.0, 100.0]


def test_a_server_with_one_huge_tensor_is_the_bottleneck() -> None:
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


@pytest.mark.sampled(4)
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
@pytest.mark.parametrize("duplex", thinned([False, True]))
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


def test_asynchronous_training_makes_n_times_as_many_updates() -> None:
    """For the same number of samples: N updates against one."""
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


# -- stale synchronous parallel ------------------------------------------------------------------


def test_a_worker_runs_ahead_up_to_the_bound() -> None:
    """Steps of 2 and 8 s, bound 1: worker 0 may begin iteration i once iteration i - 2 of worker
    1 is applied: 0, 2 s, then at 8, 16, 24 s. It waits 6 of 8 s, for the bound."""
    late = job(
        ONE_LAYER,
        cluster(1e12),
        2,
        "ps",
        {"sync": "ssp", "staleness_bound": 1},
        stragglers=[Straggler(1, 4.0)],
    )
    graph = build_graph(late)
    begins = [starts(graph, 0, i)["forward 0"][0] for i in range(5)]
    assert begins == pytest.approx([0.0, 2.0, 8.0, 16.0, 24.0], abs=1e-9)
    result = predict(late)
    assert result.iteration_s == pytest.approx(8.0)
    assert result.idle_fraction.per_worker == pytest.approx((0.75, 0.0))
    assert result.idle_fraction.by_cause["staleness_bound"] == pytest.approx(0.375)
    assert result.clock_gap.max == 2  # between the end of an iteration and its reply


@pytest.mark.parametrize("bound", [0, 1, 3])
def test_the_bound_holds(bound: int) -> None:
    """No worker begins an iteration more than ``bound`` ahead of what all have finished."""
    options = {"sync": "ssp", "staleness_bound": bound}
    graph = build_graph(
        job(TWO_LAYERS, cluster(10.0), 3, "ps", options, jitter=Jitter(1.0), start="staggered")
    )
    spans = timeline(graph, iterations=40)
    ops = {block.label: block for block in graph.ops}
    begun: dict[tuple[int, int], float] = {}
    applied: dict[tuple[int, int], float] = {}
    for span in spans:
        for label, found in (("pull", begun), ("update", applied)):
            block = ops[label]
            if block.first <= span.op < block.first + block.size:
                worker = (span.op - block.first) // block.shape[1]
                key = (worker, span.iteration)
                found[key] = max(found.get(key, 0.0), span.start_s)
    gaps = []
    for (_, iteration), time in begun.items():
        finished = min(
            sum(applied.get((w, i), np.inf) <= time + 1e-9 for i in range(40)) for w in range(3)
        )
        gaps.append(iteration - finished)
    assert max(gaps) == bound  # reached, and never exceeded


def same_timing(one: dict[str, Any], other: dict[str, Any], **fields: Any) -> None:
    first, second = (
        predict(job(TWO_LAYERS, cluster(3.0, 0.01, update_per_tensor_s=0.1), 4, "ps", o, **fields))
        for o in (one, other)
    )
    assert first.iteration_s == pytest.approx(second.iteration_s, rel=1e-9)
    idle = [p.idle_fraction.per_worker for p in (first, second)]
    assert idle[0] == pytest.approx(idle[1], abs=1e-9)


@pytest.mark.parametrize("duplex", [False, True])
@pytest.mark.parametrize("jitter", [None, Jitter(0.3)])
def test_a_bound_of_zero_is_bulk_synchronous(duplex: bool, jitter: Jitter | None) -> None:
    fields = {"jitter": jitter, "stragglers": [Straggler(2, 1.5)]}
    ssp = {"sync": "ssp", "staleness_bound": 0, "duplex": duplex}
    same_timing(ssp, {"sync": "bsp", "duplex": duplex}, **fields)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("duplex", [False, True])
@pytest.mark.parametrize("jitter", [None, Jitter(0.3)])
def test_no_bound_is_asynchronous(duplex: bool, jitter: Jitter | None) -> None:
    fields = {"jitter": jitter, "stragglers": [Straggler(2, 1.5)], "start": "staggered"}
    ssp = {"sync": "ssp", "staleness_bound": "inf", "duplex": duplex}
    same_timing(ssp, {"sync": "asp", "duplex": duplex}, **fields)


@pytest.mark.slow
def test_staleness_grows_with_the_bound() -> None:
    """Missing updates are at most bound x (N - 1) each way, and none beyond the workers' pace."""
    means = []
    for bound in (0, 1, 4):
        options = {"sync": "ssp", "staleness_bound": bound}
        result = predict(
            job(ONE_LAYER, cluster(1e9), 3, "ps", options, jitter=Jitter(0.5), start="staggered")
        )
        assert result.staleness is not None
        assert result.staleness.max <= 2 * (bound + 1) * 2
        means.append(result.staleness.mean)
    assert means[0] < means[1] <= means[2] + 0.05


# -- quorums -------------------------------------------------------------------------------------


def test_an_update_does_not_wait_for_the_backup_workers() -> None:
    """Steps of 2, 2 and 20 s: with one backup worker the fast two continue every 2 s, and the
    third joins every 20 s; its gradient arrives too late."""
    options = {"backup_workers": 1}
    late = job(ONE_LAYER, cluster(1e12), 3, "ps", options, stragglers=[Straggler(2, 10.0)])
    rates = simulate(build_graph(late)).iterations_per_s
    assert rates == pytest.approx([1 / 2, 1 / 2, 1 / 20], rel=1e-6)


@pytest.mark.slow
def test_backup_workers_take_the_order_statistic_of_the_step() -> None:
    """With b of N as backups, a step takes the (N - b)-th shortest of N times if all begin
    together; late workers begin late, which only shortens it for the others."""
    plain, spare = (
        predict(
            job(ONE_LAYER, cluster(1e9), 6, "ps", {"backup_workers": b}, jitter=Jitter(0.5))
        ).iteration_s
        for b in (0, 2)
    )
    draws = np.sort(
        2.0 * np.random.default_rng(1).lognormal(-np.log(1.25) / 2, np.log(1.25) ** 0.5, (20000, 6))
    )
    assert plain == pytest.approx(draws[:, 5].mean(), rel=0.03)
    assert spare < draws[:, 4].mean()
    assert spare > 2.0 * 0.9


def test_windows_open_at_the_start_are_not_measured() -> None:
    """Reads before the first round are less stale: 0, 1, 2, 3 here. Except for these windows the
    state of the first round equals later ones, so it must not be taken for a period."""
    for workers in (2, 4):
        for options in ({}, {"duplex": True}, {"overlap": False}):
            asp = {"sync": "asp", **options}
            work = workload([1.0], [1.0], [1.0])
            found = predict(job(work, cluster(0.25), workers, "ps", asp))
            assert found.staleness is not None
            assert found.staleness.histogram == {str(workers - 1): 1.0}


@pytest.mark.parametrize("softsync", [1, 2, 4])
def test_an_update_of_several_gradients_is_rarer_and_fresher(softsync: int) -> None:
    """Staleness counts updates: (N-1)/c for c gradients each."""
    options = {"sync": "asp", "softsync": softsync}
    work = job(ONE_LAYER, cluster(1e9), 4, "ps", options, jitter=Jitter(0.1), start="staggered")
    result = predict(work)
    assert result.updates_per_s == pytest.approx(4 / softsync / result.iteration_s, rel=0.02)
    assert result.staleness is not None
    assert result.staleness.mean == pytest.approx(3 / softsync, abs=0.1)


@pytest.mark.slow
def test_staleness_of_exponential_steps_is_geometric() -> None:
    """P(tau = k) = (1/N) (1 - 1/N)^k for exponential step times of N workers, mean N - 1."""
    work = workload([1.0], [0.0], [1.0])
    exponential = Jitter(1.0, "gamma")
    result = predict(
        job(work, cluster(1e12), 4, "ps", {"sync": "asp"}, jitter=exponential, start="staggered"),
        rel_ci=0.005,
    )
    assert result.staleness is not None
    for k in range(8):
        expected = 0.25 * 0.75**k
        assert result.staleness.histogram[str(k)] == pytest.approx(expected, rel=0.1), k
    assert result.staleness.mean == pytest.approx(3.0, rel=0.02)


# -- one node for several workers ----------------------------------------------------------------


def test_local_aggregation_divides_the_servers_traffic() -> None:
    """Two nodes of 2 devices: 2 pushes of 3 bytes reach the server rather than 4."""
    where = cluster(devices_per_node=2, intra_node=Link(3.0))
    graph = build_graph(job(TWO_LAYERS, where, 4, "ps", {"local_aggregation": True}))
    moved = {graph.link_name(i): b for i, b in enumerate(graph.bytes_by_link())}
    assert moved["link into node 2 (server 0)"] == moved["link out of node 2 (server 0)"] == 6.0
    assert moved["link inside node 0"] == 6.0  # one worker's gradient out, its parameters back
    plain = build_graph(job(TWO_LAYERS, where, 4, "ps"))
    assert plain.bytes_by_link().sum() == 2 * graph.bytes_by_link()[:6].sum()


def test_local_aggregation_by_hand() -> None:
    """One node of 2 devices, 3 bytes/s inside, no overlap. Layer 0 is pulled from 0 to 2 s, layer 1
    until 3 s, and passed on inside until 3 1/3. The second device computes until 7 1/3. Inside,
    both layers share: layer 1 is summed at 8 s and pushed until 9 s, layer 0 until 11 s."""
    where = cluster(devices_per_node=2, intra_node=Link(3.0))
    options = {"local_aggregation": True, "overlap": False}
    result = predict(job(TWO_LAYERS, where, 2, "ps", options))
    assert result.iteration_s == pytest.approx(11.0)


# -- placement and messages ----------------------------------------------------------------------


def test_hash_places_tensors_by_their_index() -> None:
    """MXNet: key x 9973 modulo servers, whatever the size; large arrays are split anyway."""
    work = workload([1.0] * 4, [1.0] * 4, [10.0, 100.0, 30.0, 25.0])
    whole = slices_of(work, Options(servers=2, sharding="hash", split_above_bytes=float("inf")))
    assert whole.layer.tolist() == [3, 2, 1, 0]
    assert whole.server.tolist() == [3 * 9973 % 2, 2 * 9973 % 2, 1, 0]
    cut = slices_of(work, Options(servers=2, sharding="hash", split_above_bytes=50))
    assert cut.bytes.tolist() == [25.0, 30.0, 50.0, 50.0, 10.0]


def test_partitions_split_large_messages() -> None:
    work = workload([1.0, 1.0], [1.0, 1.0], [10.0, 25.0])
    cut = slices_of(work, Options(partition_bytes=10))
    assert cut.layer.tolist() == [1, 1, 1, 0]
    assert cut.bytes == pytest.approx([25 / 3] * 3 + [10.0])


def test_partitions_let_pulls_begin_before_the_push_ends() -> None:
    """Duplex: without parts, the pull of 6 bytes starts after the whole push, 12 s; in parts of 2
    bytes the last pull starts after 6 s and ends at 8 s."""
    work = workload([1.0], [1.0], [6.0])
    whole, parts = (
        predict(job(work, cluster(), 1, "ps", {"duplex": True, "partition_bytes": size}))
        for size in ("inf", 2.0)
    )
    assert whole.iteration_s == pytest.approx(2.0 + 12.0)
    assert parts.iteration_s == pytest.approx(2.0 + 8.0)


def test_priority_sends_the_first_layers_first() -> None:
    """Layers of 4 (last), 4 and 1 bytes are ready almost together. First come, first served: the
    first layer is back last. With priorities it follows what is already under way."""
    work = workload([1.0] * 3, [0.1] * 3, [1.0, 4.0, 4.0])
    graphs = {
        t: build_graph(job(work, cluster(), 1, "ps", {"duplex": True, "transmission": t}))
        for t in ("fifo", "priority")
    }
    assert starts(graphs["fifo"], 0)["push 0"] == pytest.approx((11.1, 12.1))
    assert starts(graphs["priority"], 0)["push 0"] == pytest.approx((7.1, 8.1))


def test_a_random_order_is_one_of_all_orders() -> None:
    """Three pulls: the first layer's has none, one or both of the others before it, by the seed.
    First come, first served has it before both."""
    work = workload([1.0] * 3, [1.0] * 3, [1.0, 2.0, 4.0])
    ends: dict[str, set[int]] = {"random": set(), "fifo": set()}
    for transmission, found in ends.items():
        for seed in range(12):
            one = job(work, cluster(), 1, "ps", {"transmission": transmission})
            graph = build_graph(msgspec.structs.replace(one, seed=seed))
            begins = {k: starts(graph, 0)[f"pull {k}"][0] for k in range(3)}
            found.add(sorted(begins.values()).index(begins[0]))
    assert ends == {"random": {0, 1, 2}, "fifo": {0}}


def test_a_quantum_lets_messages_take_turns_and_sharing_sends_all_at_once() -> None:
    """Pushes of 4 bytes from 3 s, of 2 bytes from 4 s, on one connection."""
    work = workload([1.0] * 2, [1.0] * 2, [2.0, 4.0])
    ends = {}
    for transmission in ("fifo", "quantum", "shared"):
        options = {"duplex": True, "transmission": transmission, "quantum_bytes": 1.0}
        found = starts(build_graph(job(work, cluster(), 1, "ps", options)), 0)
        ends[transmission] = (found["push 1"][1], found["push 0"][1])
    assert ends["fifo"] == pytest.approx((7.0, 9.0))
    assert ends["shared"] == pytest.approx((9.0, 8.0))
    assert ends["quantum"] == pytest.approx((9.0, 8.0))


def test_credit_lets_several_messages_be_under_way() -> None:
    """Messages of 4 and 2 bytes: with credit for 6 both share the connection."""
    work = workload([1.0] * 2, [1.0] * 2, [2.0, 4.0])
    for credit, expected in ((0.0, (7.0, 9.0)), (4.0, (7.0, 9.0)), (6.0, (9.0, 8.0))):
        options = {"duplex": True, "credit_bytes": credit}
        found = starts(build_graph(job(work, cluster(), 1, "ps", options)), 0)
        assert (found["push 1"][1], found["push 0"][1]) == pytest.approx(expected), credit


@pytest.mark.parametrize(
    ("options", "share"),
    [
        ({"compression": "top_k", "density": 0.01}, 0.02),
        ({"compression": "dgc", "density": 0.01}, 0.015),
        ({"compression": "quantised", "quantised_bits": 4}, 0.125),
    ],
)
def test_compression_shrinks_pushes_and_not_pulls(options: dict[str, Any], share: float) -> None:
    graph = build_graph(job(TWO_LAYERS, cluster(), 2, "ps", options))
    moved = {graph.link_name(i): b for i, b in enumerate(graph.bytes_by_link())}
    assert moved["link out of node 0"] == pytest.approx(3.0 * share)
    assert moved["link into node 0"] == pytest.approx(3.0)


def test_encoding_takes_worker_time_and_decoding_server_time() -> None:
    options = {"compression": "top_k", "overlap": False, "duplex": True}
    plain = predict(job(TWO_LAYERS, cluster(), 1, "ps", options))
    slow = {**options, "encode_per_byte_s": 0.5, "decode_per_byte_s": 0.25}
    result = predict(job(TWO_LAYERS, cluster(), 1, "ps", slow))
    # pushes take next to nothing; layer 1 is decoded first, layer 0 while layer 1 goes back
    late = result.iteration_s - plain.iteration_s
    assert late == pytest.approx(1.5 + 0.25, abs=0.01)
    assert result.compute_s == pytest.approx(4.0 + 1.5)


# -- cores ---------------------------------------------------------------------------------------


def test_colocated_servers_take_cores_from_workers() -> None:
    """2 cores a node, workers compute on both; updates of 1 core-second on the same node. Worker
    alone: 4 s of computation. Its forward of 2 s shares with nothing, as BSP has phases."""
    server = Server(placement="colocated", update_per_tensor_s=1.0)
    cores = cluster(1e9, server=server, cpu_cores=2, worker_threads=2)
    accelerator = cluster(1e9, server=server, cpu_cores=2)
    work = workload([1.0], [1.0], [1.0])
    options = {"sync": "asp"}
    stalled, free = (
        predict(job(work, where, 2, "ps", options, start="staggered"))
        for where in (cores, accelerator)
    )
    # node 0 has 2 workers' updates of 1 core-second each per iteration besides 2 s on 2 cores
    assert free.iteration_s == pytest.approx(3.0, rel=0.01)
    assert stalled.iteration_s > 1.05 * free.iteration_s
    assert "cpu" in stalled.idle_fraction.by_cause
    assert "cpu" not in free.idle_fraction.by_cause


def test_core_utilisation_is_given_per_node() -> None:
    """Two nodes of 8 cores and 4 workers, each of which computes 2 s on 2 threads: 16 of 8 T
    core-seconds. A server on node 0 makes 8 updates of 0.5 s on top, by one thread: 20 of 8 T."""
    server = Server(placement="colocated", update_per_tensor_s=0.5)
    shared = {"devices_per_node": 4, "cpu_cores": 8}
    work = workload([1.0], [1.0], [1.0])
    where = cluster(1e9, server=server, worker_threads=2, **shared)
    found = predict(job(work, where, 8, "ps"))
    assert found.iteration_s == pytest.approx(6.0)
    assert found.utilisation.cores == pytest.approx(
        {"cores of node 0": 20 / 48, "cores of node 1": 16 / 48}
    )
    assert not any("cores" in name for name in found.utilisation.links)
    accelerators = job(work, cluster(1e9, server=server, **shared), 8, "ps")
    assert predict(accelerators).utilisation.cores == {}
    assert predict(accelerators, fidelity="coarse").utilisation.cores == {}


def test_more_colocated_servers_slow_a_core_bound_cluster() -> None:
    """Jia et al., IPCCC 2020, figure 9: each further server of a node adds to the messages that its
    cores have to handle. On accelerators, more servers help."""
    work = workload([0.2] * 4, [0.4] * 4, [8e6] * 4)
    server = Server(placement="colocated", update_per_tensor_s=0.05, threads=4)
    cores = cluster(1e8, server=server, cpu_cores=4, worker_threads=4)
    accelerator = cluster(1e8, server=server)

    def iteration_s(where: Any, servers: int) -> float:
        return predict(job(work, where, 4, "ps", {"servers": servers})).iteration_s

    assert iteration_s(cores, 4) < iteration_s(cores, 16) < iteration_s(cores, 64)
    assert iteration_s(accelerator, 4) < iteration_s(accelerator, 1)


# -- invalid options -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sync": "ssp", "staleness_bound": -1}, "staleness_bound: must be at least 0, got -1"),
        ({"sync": "ssp", "staleness_bound": 1.5}, "expected a whole number or inf, got 1.5"),
        ({"sync": "asp", "local_aggregation": True}, "local_aggregation: needs sync=bsp"),
        ({"sync": "asp", "backup_workers": 1}, "backup_workers: needs sync=bsp, got sync=asp"),
        ({"softsync": 2}, "softsync: needs sync=asp, got sync=bsp"),
        ({"backup_workers": 1, "duplex": True}, "backup_workers: cannot be combined with duplex"),
        ({"compression": "top_k", "density": 0.0}, "density: must be more than 0, got 0"),
        ({"encode_per_byte_s": 1.0}, "encode_per_byte_s: has no effect without"),
        ({"transmission": "shared", "credit_bytes": 8.0}, "credit_bytes: has no effect with"),
        ({"partition_bytes": 0.0}, "partition_bytes: must be more than 0, got 0"),
        ({"sharding": "greedy"}, "option sharding of ps: expected one of bytes, hash"),
    ],
)
def test_impossible_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        job(TWO_LAYERS, cluster(), 4, "ps", options)


def test_more_backup_workers_than_workers_are_refused() -> None:
    with pytest.raises(InputError, match="backup_workers: must be fewer than the 4 workers, got 4"):
        predict(job(TWO_LAYERS, cluster(), 4, "ps", {"backup_workers": 4}))


# -- requested pulls ------------------------------------------------------------------------------


def test_a_requested_pull_waits_behind_pushes() -> None:
    """MXNet's KVStore: layer 1 (4 bytes) is pushed from 3 to 7 s, layer 0 (2 bytes) from then to
    9 s. The request for layer 1 reaches the server behind that push, at 9 s; if the server
    answered the push, layer 1 would be on its way back at 7 s."""
    work = workload([1.0] * 2, [1.0] * 2, [2.0, 4.0])
    found = {
        pull: starts(build_graph(job(work, cluster(), 1, "ps", {"duplex": True, "pull": pull})), 0)
        for pull in ("reply", "request")
    }
    assert found["reply"]["pull 1"] == (7.0, 11.0)
    assert found["request"]["request 1"] == (9.0, 9.0)
    # layer 0 is also acknowledged and requested at 9 s, right after
    assert found["request"]["pull 1"] == (9.0, 13.0)
    assert found["request"]["pull 0"] == (13.0, 15.0)


def test_latency_counts_for_the_acknowledgement_and_for_the_request() -> None:
    one = workload([1.0], [1.0], [1.0])
    where = cluster(latency_s=0.25)
    times = [
        predict(job(one, where, 1, "ps", {"duplex": True, "pull": pull})).iteration_s
        for pull in ("reply", "request")
    ]
    assert times == pytest.approx([2.0 + 2 * 1.25, 2.0 + 2 * 1.25 + 2 * 0.25])


def test_requested_pulls_need_duplex() -> None:
    with pytest.raises(InputError, match="pull=request: needs duplex"):
        job(ONE_LAYER, cluster(), 2, "ps", {"pull": "request"})
