"""Closed forms from the literature that a simulation must match exactly."""

from __future__ import annotations

from itertools import accumulate

import pytest
from hypothesis import given, strategies as st

from perfmodel import Workload, predict
from tests.jobs import cluster, job, workload, workloads
from tests.oracles import equal
from tests.settings import examples

few = examples(60)
rates = st.sampled_from([0.5, 3.0, 100.0])


def sizes_of(work: Workload) -> list[float]:
    return [sum(layer.tensor_bytes) for layer in work.layers]


def ring_allreduce_s(
    ranks: int,
    size_bytes: float,
    *,
    bandwidth_bytes_per_s: float,
    latency_s: float = 0.0,
    reduce_per_byte_s: float = 0.0,
) -> float:
    """p - 1 steps that send and add an n/p part to the next rank, then p - 1 that only send."""
    part = size_bytes / ranks
    send_s = latency_s + part / bandwidth_bytes_per_s
    return (ranks - 1) * (send_s + part * reduce_per_byte_s) + (ranks - 1) * send_s


def one_worker_s(work: Workload, rate: float) -> float:
    """From the end of one forward pass to that of the next.

    Gradients are sent once backward has reached their layer: the last one is sent at the maximum
    over l of backward down to l plus sending l and all layers below. Then parameters arrive in
    forward order, and layers from l on compute once those of l have arrived. The forward pass
    begins when backward has ended and all gradients are sent. So the layers below the first one
    with parameters compute while parameters arrive: their forward, and the rest of backward.
    """
    forward = list(accumulate(reversed([layer.forward_s for layer in work.layers])))[::-1]
    backward = list(accumulate(reversed([layer.backward_s for layer in work.layers])))[::-1]
    moved = list(accumulate(size / rate for size in sizes_of(work)))
    held = [k for k, size in enumerate(sizes_of(work)) if size]
    sent = max(backward[k] + moved[k] for k in held)
    begin = max(backward[0], sent)
    return max(begin + forward[0], *(sent + moved[k] + forward[k] for k in held))


def wait_free_backward_s(work: Workload, comm_s: list[float]) -> float:
    """Wait-free back-propagation: a layer's all-reduce follows its backward and the previous
    all-reduce."""
    ready = free = 0.0
    for layer, seconds in zip(reversed(work.layers), reversed(comm_s), strict=True):
        ready += layer.backward_s
        if seconds > 0.0:
            free = max(free, ready) + seconds
    return max(ready, free)


@few
@given(work=workloads(), rate=rates)
def test_one_worker_with_overlap(work: Workload, rate: float) -> None:
    for sync in ("bsp", "asp"):
        result = predict(job(work, cluster(rate), 1, "ps", {"sync": sync}))
        equal(result.iteration_s, one_worker_s(work, rate))


def test_passes_of_first_layers_overlap_with_transfers() -> None:
    """Layer 0 has no parameters. Gradients are sent from 0 s to 2 s, parameters arrive until 4 s;
    its backward lasts until 3 s, its forward until 4 s."""
    work = workload([1.0, 0.0], [3.0, 0.0], [0.0, 1.0])
    assert one_worker_s(work, 0.5) == 4.0
    for sync in ("bsp", "asp"):
        equal(predict(job(work, cluster(0.5), 1, "ps", {"sync": sync})).iteration_s, 4.0)
    with pytest.raises(AssertionError):  # the result if all of backward preceded the parameters
        equal(4.0, 3.0 + 2.0)


@few
@given(
    work=workloads(),
    rate=rates,
    per_byte=st.sampled_from([0.0, 0.01]),
    latency=st.sampled_from([0.0, 0.25]),
)
def test_one_worker_in_phases(work: Workload, rate: float, per_byte: float, latency: float) -> None:
    """M/r + sum f + sum b + M/r + u, and a one-way latency for each of the two phases."""
    where = cluster(rate, latency, update_per_byte_s=per_byte)
    result = predict(job(work, where, 1, "ps", {"overlap": False}))
    m = work.gradient_bytes
    phases = m / rate + work.forward_s + work.backward_s + m / rate + m * per_byte
    equal(result.iteration_s, phases + 2 * latency)


@pytest.mark.parametrize("workers", [1, 2, 5])
@pytest.mark.parametrize("servers", [1, 2])
def test_synchronous_parameter_server_in_phases(workers: int, servers: int) -> None:
    """C + N M/(P B) + N M/(P B) + N u: every pushed copy costs the server its update."""
    work = workload([1.0, 2.0], [2.0, 4.0], [60.0, 40.0])
    options = {"overlap": False, "servers": servers, "split_above_bytes": 0}
    where = cluster(20.0, update_per_byte_s=0.001)
    result = predict(job(work, where, workers, "ps", options))
    # with fewer workers than servers, a worker's own link is the limit
    share = max(workers / servers, 1.0)
    transfer = share * 100.0 / 20.0
    update = workers * 100.0 / servers * 0.001
    equal(result.iteration_s, 9.0 + 2 * transfer + update)


@few
@given(work=workloads(), workers=st.integers(1, 6), rate=rates)
def test_all_reduce_without_overlap(work: Workload, workers: int, rate: float) -> None:
    options = {
        "overlap": False,
        "bucket_cap_bytes": 1e9,
        "first_bucket_bytes": 1e9,
        "reduce_per_byte_s": 0.002,
    }
    result = predict(job(work, cluster(rate, 0.01), workers, "ring", options))
    reduce_s = ring_allreduce_s(
        workers,
        work.gradient_bytes,
        bandwidth_bytes_per_s=rate,
        latency_s=0.01,
        reduce_per_byte_s=0.002,
    )
    equal(result.iteration_s, work.compute_s + reduce_s)


@few
@given(work=workloads(), workers=st.integers(1, 6), rate=rates)
def test_all_reduce_with_wait_free_backward(work: Workload, workers: int, rate: float) -> None:
    options = {"bucket_cap_bytes": 0, "first_bucket_bytes": 0}
    result = predict(job(work, cluster(rate), workers, "ring", options))
    comm = [
        ring_allreduce_s(workers, s, bandwidth_bytes_per_s=rate) if s else 0.0
        for s in sizes_of(work)
    ]
    expected = work.forward_s + wait_free_backward_s(work, comm) + work.optimizer_s
    equal(result.iteration_s, expected)


@few
@given(work=workloads())
def test_one_worker_without_a_server_takes_the_single_device_time(work: Workload) -> None:
    result = predict(job(work, cluster(1.0, 0.5), 1, "ring"))
    equal(result.iteration_s, work.compute_s)
    assert result.exposed_communication_s == pytest.approx(0.0, abs=1e-9)


@few
@given(work=workloads())
def test_one_worker_with_a_free_server_takes_the_single_device_time(work: Workload) -> None:
    result = predict(job(work, cluster(1e30), 1, "ps"))
    equal(result.iteration_s, work.forward_s + work.backward_s)


def test_a_slow_data_loader_sets_the_pace() -> None:
    work = workload([1.0], [2.0], [1.0], data_loading_s=5.0)
    result = predict(job(work, cluster(1e9), 2, "ring"))
    equal(result.iteration_s, 5.0)
    assert result.idle_fraction.by_cause["data"] == pytest.approx(0.4)
