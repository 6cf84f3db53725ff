"""Properties of workers in all architectures: jitter, data loading, cores, mixed devices."""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel import InputError, Jitter, NodeOverride, Server, build_graph, make_job, predict
from perfmodel.engine.simulation import simulate, timeline
from perfmodel.graph.op_graph import block_of
from tests.jobs import cluster, job, workload

WORK = workload([1.0, 2.0], [2.0, 3.0], [30.0, 50.0])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0.1", Jitter(0.1)),
        ("gamma:0.2", Jitter(0.2, "gamma")),
        ("0.1:op", Jitter(0.1, "lognormal", "op")),
        ("gamma:0.2:iteration", Jitter(0.2, "gamma")),
        ("measured", Jitter(0.0, "measured")),
        ("measured:op", Jitter(0.0, "measured", "op")),
    ],
)
def test_jitter_is_read_from_text(text: str, expected: Jitter) -> None:
    assert Jitter.parse(text) == expected


@pytest.mark.parametrize("text", ["", "fast", "gamma:", "gamma:x", "0.1:layer", "beta:0.1", "-1"])
def test_other_text_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="jitter"):
        Jitter.parse(text)


def factors(jitter: Jitter, iterations: int) -> np.ndarray:
    """Time of each op of one worker divided by its time without jitter, (iterations, ops)."""
    graph = build_graph(job(WORK, cluster(1e12), 1, "ring", jitter=jitter))
    ops = [op for b in graph.ops for op in range(b.first, b.first + b.size)]
    ops = [op for op in ops if graph.op_seconds[op] > 0.0]
    found = np.zeros((iterations, len(ops)))
    for span in timeline(graph, seed=2, iterations=iterations):
        if span.op in ops:
            took = (span.end_s - span.start_s) / graph.op_seconds[span.op]
            found[span.iteration, ops.index(span.op)] = took
    return found


def test_jitter_has_one_factor_per_iteration_or_per_op() -> None:
    whole = factors(Jitter(0.4), 400)
    np.testing.assert_allclose(whole, whole[:, :1] * np.ones(whole.shape[1]), rtol=1e-9)
    own = factors(Jitter(0.4, scope="op"), 400)
    between = np.corrcoef(own.T)[np.triu_indices(own.shape[1], 1)]
    assert np.abs(between).max() < 0.2
    for values in (whole[:, 0], own.ravel()):
        assert values.mean() == pytest.approx(1.0, abs=0.06)
        assert values.std() == pytest.approx(0.4, abs=0.06)


def test_factors_of_ops_average_out_within_an_iteration() -> None:
    """The slowest of many workers is less late if each op has its own factor."""
    waits = [
        predict(
            job(WORK, cluster(1e12), 8, "ring", jitter=Jitter(0.4, scope=scope))
        ).idle_fraction.mean
        for scope in ("iteration", "op")
    ]
    assert waits[1] < 0.75 * waits[0]


def test_the_measured_spread_is_that_of_the_workload() -> None:
    made = make_job(model="resnet18", device="cpu-epyc-2core", workers=2, arch="ring")
    assert made.workload.step_cv > 0.0
    measured = make_job(
        model="resnet18", device="cpu-epyc-2core", workers=2, arch="ring", jitter="measured"
    )
    assert measured.jitter == Jitter(made.workload.step_cv, "lognormal")
    assert any(a.source == "measured with the workload" for a in measured.assumptions)


def test_a_spread_that_was_not_measured_is_refused() -> None:
    with pytest.raises(InputError, match="jitter: no spread was measured for workload 'chain'"):
        job(WORK, cluster(), 2, "ring", jitter="measured")


@pytest.mark.parametrize("arch", ["ps", "ring", "p2p", "easgd"])
def test_a_slow_data_loader_sets_the_pace_of_any_architecture(arch: str) -> None:
    slow = workload([1.0, 2.0], [2.0, 3.0], [30.0, 50.0], data_loading_s=40.0)
    result = predict(job(slow, cluster(1e6), 2, arch))
    assert result.iteration_s == pytest.approx(40.0, rel=1e-6)
    assert result.idle_fraction.by_cause["data"] == pytest.approx(0.8, abs=0.01)


def test_workers_that_load_data_start_at_different_times_too() -> None:
    loading = workload([1.0], [1.0], [30.0], data_loading_s=0.5)
    graph = build_graph(
        job(loading, cluster(100.0), 4, "ps", {"sync": "asp", "duplex": True}, start="staggered")
    )
    begins = sorted(
        span.start_s
        for span in timeline(graph, seed=3, iterations=1)
        if block_of(graph.ops, span.op).label == "forward"
    )
    assert len(set(begins)) == 4
    assert begins[0] >= 0.5


def test_mixed_devices_compute_at_their_own_speed() -> None:
    """Nodes 1 and 2 at half and at twice the speed: 16, 4 and 8 s of computation."""
    where = cluster(1e12, overrides=(NodeOverride(1, speed=0.5), NodeOverride(2, speed=2.0)))
    rates = simulate(build_graph(job(WORK, where, 3, "ps", {"sync": "asp"}))).iterations_per_s
    assert rates == pytest.approx([1 / 8, 1 / 16, 1 / 4], rel=1e-6)


def test_workers_on_shared_cores_slow_each_other_if_cores_run_out() -> None:
    """Two workers of 2 threads each on a node: at full speed on 4 cores, at half of it on 2."""
    for cores, expected in ((4, 8.0), (2, 16.0)):
        where = cluster(1e12, devices_per_node=2, cpu_cores=cores, worker_threads=2)
        assert predict(job(WORK, where, 2, "ring")).iteration_s == pytest.approx(expected)


@pytest.mark.parametrize(("sharing", "part"), [("operation", 1.0), ("thread", 8 / 17)])
def test_cores_are_shared_by_operations_or_by_threads(sharing: str, part: float) -> None:
    """Two workers of 8 threads and a server of one on 8 cores: an update of 0.1 s, while both
    compute, has a whole core, or one of 17 parts of 8 cores. One of two parts is left to each."""
    server = Server(placement="colocated", update_per_tensor_s=0.1)
    shared = {"devices_per_node": 2, "cpu_cores": 8, "worker_threads": 8}
    where = cluster(1e12, server=server, core_sharing=sharing, **shared)
    # the second layer's gradients are applied while the first layer's are computed
    work = workload([1.0, 1.0], [10.0, 1.0], [0.0, 1.0])
    found = predict(job(work, where, 2, "ps"))
    update_s = 0.1 / part  # the server has one thread: the second worker's update waits for it
    assert found.operation_s["update"] == pytest.approx(1.5 * update_s, rel=1e-6)
    lost_s = 2 * 0.1 / 8  # of the 8 cores
    assert found.iteration_s == pytest.approx(26.0 + lost_s, rel=1e-6)


def test_jitter_stretches_work_on_shared_cores_as_well() -> None:
    where = cluster(1e12, cpu_cores=2, worker_threads=2)
    plain = cluster(1e12)
    shared, alone = (
        predict(job(WORK, place, 2, "ring", jitter=Jitter(0.3), seed=4)).iteration_s
        for place in (where, plain)
    )
    assert shared == pytest.approx(alone, rel=1e-9)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"worker_threads": 2}, "worker_threads: needs cpu_cores"),
        ({"worker_threads": 4, "cpu_cores": 2}, "worker_threads: must be at most cpu_cores, 2"),
        ({"worker_threads": 0, "cpu_cores": 2}, "worker_threads: must be at least 1, got 0"),
        ({"core_sharing": "threads"}, "unknown core_sharing 'threads'; did you mean 'thread'"),
    ],
)
def test_impossible_threads_are_refused(fields: dict[str, int], message: str) -> None:
    with pytest.raises(InputError, match=message):
        cluster(server=Server(), **fields)
