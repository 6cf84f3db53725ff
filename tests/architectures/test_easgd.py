"""EASGD against timelines worked out by hand, and the traffic its source states.

All links carry 1 byte/s unless noted, so one byte takes one second.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from perfmodel import InputError, Jitter, Server, Straggler, build_graph, predict
from perfmodel.engine.measures import Measures
from perfmodel.engine.simulation import simulate, timeline
from perfmodel.graph.op_graph import OpGraph
from tests import oracles
from tests.jobs import cluster, job, workload

WORK = workload([1.0, 1.0], [1.0, 1.0], [2.0, 1.0], batch_size=4)
"""Computes for 4 s, and has a model of 3 bytes in two tensors."""
STEP_S, MODEL_BYTES, TENSORS = 4.0, 3.0, 2


def runs(graph: OpGraph, label: str, iterations: int = 1) -> dict[tuple[str, int], Any]:
    """Start and end of the ops with a label, by name and iteration."""
    return {
        (graph.op_name(span.op), span.iteration): (span.start_s, span.end_s)
        for span in timeline(graph, iterations=iterations)
        if graph.op_name(span.op).startswith(label + " ")
    }


def test_two_workers_by_hand() -> None:
    """Two models share the server's link, 6 s out and 6 s in; the 4 s step falls within the
    latter, and the next pull follows it."""
    graph = build_graph(job(WORK, cluster(), 2, "easgd", {"period": 1}))
    at = {
        label: runs(graph, label, 2) for label in ("pull", "push", "update", "optimizer", "request")
    }
    for worker in (0, 1):
        assert at["pull"][f"pull worker {worker}, server 0", 0] == (0.0, 6.0)
        assert at["push"][f"push worker {worker}, server 0", 0] == (6.0, 12.0)
        assert at["update"][f"update worker {worker}, server 0", 0] == (12.0, 12.0)
        assert at["optimizer"][f"optimizer worker {worker}", 0] == (10.0, 10.0)
        assert at["pull"][f"pull worker {worker}, server 0", 1] == (12.0, 18.0)
    result = predict(job(WORK, cluster(), 2, "easgd", {"period": 1}))
    assert result.iteration_s == pytest.approx(12.0)
    assert result.idle_fraction.by_cause == {"network": pytest.approx(8 / 12)}
    assert (result.operation_s["pull"], result.operation_s["push"]) == pytest.approx((6.0, 6.0))


def test_every_second_step_by_hand() -> None:
    """One worker: a step alone, 0 to 4; pull 4 to 7, a step 7 to 11 with the push 7 to 10."""
    graph = build_graph(job(WORK, cluster(), 1, "easgd", {"period": 2}))
    ends = runs(graph, "optimizer", 4)
    assert [ends["optimizer worker 0", i][1] for i in range(4)] == [4.0, 11.0, 15.0, 22.0]
    assert runs(graph, "pull", 4)["pull worker 0, server 0", 1] == (4.0, 7.0)
    assert runs(graph, "push", 4)["push worker 0, server 0", 1] == (7.0, 10.0)
    assert predict(job(WORK, cluster(), 1, "easgd", {"period": 2})).iteration_s == 5.5


@pytest.mark.sampled(4)
@pytest.mark.parametrize("period", [1, 2, 3, 5])
@pytest.mark.parametrize("bandwidth", [0.25, 1.0, 3.0])
@pytest.mark.parametrize("latency_s", [0.0, 0.5, 7.0])
@pytest.mark.parametrize("update_s", [0.0, 0.5, 9.0])
def test_one_worker_waits_for_the_pull_and_rarely_for_the_push(
    period: int, bandwidth: float, latency_s: float, update_s: float
) -> None:
    """The pull is exposed; push and update have until the next pull, one period later."""
    where = cluster(bandwidth, latency_s, update_per_tensor_s=update_s)
    found = predict(job(WORK, where, 1, "easgd", {"period": period})).iteration_s
    pull_s = push_s = MODEL_BYTES / bandwidth + latency_s
    oracles.equal(found, pulled(period, pull_s, push_s + TENSORS * update_s))
    with pytest.raises(AssertionError):  # canary: a hidden pull
        oracles.equal(found, pulled(period, 0.0, push_s + TENSORS * update_s))


def pulled(period: int, pull_s: float, applied_s: float) -> float:
    """Iteration time (s) of one worker, given its pull time and the time until its push is
    applied."""
    return (pull_s + max(period * STEP_S, applied_s)) / period


def test_with_free_network_and_updates_a_worker_takes_the_device_time() -> None:
    work = workload([1.0, 2.0], [3.0, 0.5], [2.0, 1.0], optimizer_s=0.25)
    result = predict(job(work, cluster(1e15), 1, "easgd"))
    oracles.equal(result.iteration_s, 6.75)
    assert result.staleness is not None
    assert result.staleness.max == 0


def test_the_update_costs_the_server_time_per_tensor_and_byte() -> None:
    """2 x 0.25 + 3 x 0.5 = 2 s on one thread, one after the other, for two workers at once."""
    server = Server(update_per_tensor_s=0.25, update_per_byte_s=0.5)
    graph = build_graph(job(WORK, cluster(server=server), 2, "easgd", {"period": 1}))
    assert sorted(runs(graph, "update").values()) == [(12.0, 14.0), (14.0, 16.0)]
    threads = Server(update_per_tensor_s=0.25, update_per_byte_s=0.5, threads=2)
    graph = build_graph(job(WORK, cluster(server=threads), 2, "easgd", {"period": 1}))
    assert sorted(runs(graph, "update").values()) == [(12.0, 14.0), (12.0, 14.0)]


def test_two_servers_halve_what_each_link_carries() -> None:
    """Two workers, two servers: each link carries 3 bytes, as the workers' do."""
    found = predict(job(WORK, cluster(), 2, "easgd", {"period": 1, "servers": 2}))
    assert found.iteration_s == pytest.approx(3.0 + STEP_S)


def link_bytes(graph: OpGraph) -> dict[str, float]:
    return {graph.link_name(i): moved for i, moved in enumerate(graph.bytes_by_link())}


@pytest.mark.parametrize("workers", [1, 2, 5])
@pytest.mark.parametrize("servers", [1, 2])
def test_with_a_period_of_one_the_traffic_is_that_of_asynchronous_sgd(
    workers: int, servers: int
) -> None:
    elastic = {"period": 1, "servers": servers}
    pushed = {"sync": "asp", "servers": servers, "split_above_bytes": 0}
    ours, theirs = (
        link_bytes(build_graph(job(WORK, cluster(), workers, arch, options)))
        for arch, options in (("easgd", elastic), ("ps", pushed))
    )
    assert ours == pytest.approx(theirs)
    assert ours["link out of node 0"] == MODEL_BYTES


def models_are(found: Measures, workers: int, period: float) -> None:
    """A model each way per period and worker, from the utilisation of links of 2 bytes/s."""
    moved = found.link_utilisation * 2.0
    expected = MODEL_BYTES * found.iterations_per_s / period
    nodes = workers + 1
    for direction in (moved[:nodes], moved[nodes:]):
        assert direction[:workers] == pytest.approx(expected, rel=1e-6)
        assert direction[workers] == pytest.approx(expected.sum(), rel=1e-6)


@pytest.mark.parametrize("period", [1, 2, 4])
@pytest.mark.parametrize("workers", [1, 3])
def test_bytes_over_every_link(workers: int, period: int) -> None:
    graph = build_graph(job(WORK, cluster(2.0), workers, "easgd", {"period": period}))
    found = simulate(graph)
    models_are(found, workers, period)
    with pytest.raises(AssertionError):
        models_are(found, workers, period + 1)


def test_a_colocated_server_spares_its_own_worker_the_network() -> None:
    where = cluster(server=Server(placement="colocated"))
    assert link_bytes(build_graph(job(WORK, where, 2, "easgd", {"period": 1}))) == {
        "link out of node 0 (server 0)": MODEL_BYTES,
        "link into node 0 (server 0)": MODEL_BYTES,
        "link out of node 1": MODEL_BYTES,
        "link into node 1": MODEL_BYTES,
    }


def test_a_straggler_delays_no_other_worker() -> None:
    slow = job(WORK, cluster(1e9), 3, "easgd", {"period": 2}, stragglers=[Straggler(1, 3.0)])
    found = simulate(build_graph(slow))
    assert 1 / found.iterations_per_s == pytest.approx([4.0, 12.0, 4.0], rel=1e-6)
    assert found.busy_fraction == pytest.approx(1.0, rel=1e-6)


def test_staleness_by_hand() -> None:
    """Worker 0 computes for 12 s, worker 1 for 4 s; the link takes 0.75 s for a model alone.

    Worker 0 pulls, and pushes right after that. What worker 1 has added in the meantime is 0 or 1
    updates. Where both pull at once, each gets its model after 1.5 s, and both differences are
    added 1.5 s later: in the order of their numbers, so that only worker 1 finds another's.
    """
    work = job(WORK, cluster(4.0), 2, "easgd", {"period": 1}, stragglers=[Straggler(0, 3.0)])
    graph = build_graph(work)
    assert runs(graph, "update", 2)["update worker 0, server 0", 0] == (3.0, 3.0)
    assert runs(graph, "update", 2)["update worker 1, server 0", 0] == (3.0, 3.0)
    # worker 0 pulls again at 13.5 s, worker 1 at 5.5, 10.25, 15 and 19.75 s
    pulls = runs(graph, "pull", 5)
    assert pulls["pull worker 0, server 0", 1] == (13.5, 14.25)
    assert [pulls["pull worker 1, server 0", i][0] for i in (1, 2, 3)] == [5.5, 10.25, 15.0]
    assert runs(graph, "update", 5)["update worker 0, server 0", 1] == (15.0, 15.0)


@pytest.mark.parametrize(("period", "rel_ci"), [(1, 0.006), (3, 0.003)])
def test_staleness_counts_updates_by_others_between_pull_and_update(
    period: int, rel_ci: float
) -> None:
    """Workers that drift freely: the rate of the others' updates times the mean window."""
    jittered = job(WORK, cluster(16.0), 4, "easgd", {"period": period}, jitter=Jitter(0.3), seed=2)
    found = simulate(build_graph(jittered), rel_ci=rel_ci)
    probes = slice(0, 4)
    window_s = found.probe_seconds[probes].sum() / found.probe_count[probes].sum()
    assert window_s >= 2 * MODEL_BYTES / 16.0
    updates_per_s = found.probe_count[probes].sum() / found.elapsed_s
    assert updates_per_s == pytest.approx(found.iterations_per_s.sum() / period, rel=0.05)
    values = np.arange(len(found.staleness))
    mean = (found.staleness * values).sum() / found.staleness.sum()
    assert mean == pytest.approx(3 / 4 * updates_per_s * window_s, rel=0.1)


def test_staleness_is_n_minus_1_if_each_pull_follows_the_update() -> None:
    """The next pull waits only for the update: each update falls into one window of each other
    worker."""
    result = predict(job(WORK, cluster(0.5), 4, "easgd", {"period": 1}, start="staggered"))
    assert result.staleness is not None
    assert result.staleness.mean == pytest.approx(3.0, rel=0.05)


@pytest.mark.parametrize(
    ("period", "mean", "p90"), [(1, 0.0, 0), (4, 1.5, 3), (10, 4.5, 8), (11, 5.0, 9)]
)
def test_model_age_is_uniform(period: int, mean: float, p90: int) -> None:
    age = predict(job(WORK, cluster(), 1, "easgd", {"period": period})).model_age
    assert age is not None
    assert (age.exchange_every, age.mean, age.p90) == (period, mean, p90)
    ages = np.arange(period)
    assert age.mean == ages.mean()
    assert age.p90 == int(np.argmax((ages + 1) / period >= 0.9))


def test_moving_rate_has_no_effect_on_time() -> None:
    slow, fast = (
        predict(job(WORK, cluster(), 2, "easgd", {"moving_rate": rate})).iteration_s
        for rate in (0.01, 0.9)
    )
    assert slow == fast


def test_server_memory_is_its_part_of_the_centre_and_a_buffer_per_worker() -> None:
    memory = predict(job(WORK, cluster(), 4, "easgd", {"servers": 2})).memory
    assert memory.server_bytes == MODEL_BYTES / 2 * (1 + 4)


def test_workers_start_within_a_whole_period() -> None:
    """Otherwise all workers would exchange at about the same time until they drift apart."""
    graph = build_graph(job(WORK, cluster(), 8, "easgd", {"period": 10}, start="staggered"))
    assert graph.op_stagger_s.max() == 10 * STEP_S + 2 * MODEL_BYTES


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"period": 0}, "period: must be at least 1, got 0"),
        ({"moving_rate": 0}, "moving_rate: must be more than 0, got 0"),
        ({"moving_rate": 2}, "moving_rate: must be at most 1, got 2"),
        ({"servers": 0}, "servers: must be at least 1, got 0"),
        ({"servers": 20_000}, "servers: must be at most 10000, got 20000"),
        ({"tau": 4}, "option 'tau' does not apply to easgd"),
    ],
)
def test_an_invalid_value_is_refused(options: dict[str, Any], text: str) -> None:
    with pytest.raises(InputError, match=text):
        job(WORK, cluster(), 2, "easgd", options)


def test_servers_that_do_not_fit() -> None:
    with pytest.raises(InputError, match="servers: 3 dedicated servers and 2 workers do not fi"):
        build_graph(job(WORK, cluster(nodes=4), 2, "easgd", {"servers": 3}))
