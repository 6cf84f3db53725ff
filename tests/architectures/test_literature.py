"""Findings of the literature, as trends that the model must reproduce.

Each test states a claim and its source. Where a paper's cluster is not described in full, the claim
is about a direction or a ratio, never about its seconds.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from typing import Any

import pytest

from perfmodel import Prediction, Server, Straggler, Workload, make_job, predict
from tests.jobs import cluster, job, workload
from tests.settings import thinned

GBPS = 1e9 / 8
WORKERS = (4, 8, 16, 24)
"""As in Ko et al., IPDPS 2021, doi 10.1109/IPDPS49936.2021.00108."""

CENTRALISED = ("bsp", "asp", "ssp")
DECENTRALISED = ("ring", "ad_psgd", "gosgd", "d_psgd")


@functools.cache
def run(
    model: str, arch: str, workers: int, *, bandwidth: float = 10 * GBPS, **options: Any
) -> Prediction:
    """A job on Titan Vs, one per node, as in Ko et al."""
    return predict(
        make_job(
            model=model,
            device="titan-v" if model == "vgg16" else "v100",
            cluster="ethernet-10g",
            bandwidth_bytes_per_s=bandwidth,
            workers=workers,
            arch=arch,
            options=options,
        ),
        rel_ci=0.1,
    )


def speedup(model: str, arch: str, workers: int, **options: Any) -> float:
    """Throughput over that of one device."""
    alone = run(model, "ring", 1).throughput_samples_per_s
    return run(model, arch, workers, **options).throughput_samples_per_s / alone


def rising(values: Sequence[float]) -> bool:
    return all(a < b for a, b in itertools.pairwise(values))


# -- more workers ----------------------------------------------------------------------------------


@pytest.mark.parametrize("arch", thinned(["bsp", "ssp", "asp"], 3))
@pytest.mark.parametrize("model", thinned(["resnet50", "vgg16"]))
def test_waiting_grows_with_workers_if_there_is_a_server(model: str, arch: str) -> None:
    """Ko et al. 2021: centralised algorithms scale poorly, and wait longer with more workers."""
    idle = [run(model, arch, n).idle_fraction.mean for n in WORKERS]
    assert rising(idle), idle
    assert speedup(model, arch, 24) < 24 / 2


@pytest.mark.slow
@pytest.mark.parametrize("arch", DECENTRALISED)
def test_without_a_server_the_bottleneck_is_avoided(arch: str) -> None:
    """Ko et al. 2021: on ResNet-50 decentralised algorithms scale far better than any with a
    server, at 10 Gbps and 24 workers."""
    best = max(speedup("resnet50", name, 24) for name in CENTRALISED)
    assert speedup("resnet50", arch, 24) > 1.5 * best


@pytest.mark.slow
def test_staleness_grows_with_workers() -> None:
    """Jia et al., IPCCC 2020, figure 8; Hermans 2017: mean N - 1 for asynchronous workers."""
    stale = [run("resnet50", "asp", n).staleness for n in (4, 8, 16)]
    means = [s.mean for s in stale if s is not None]
    assert means == pytest.approx([3.0, 7.0, 15.0], rel=0.03)


def test_communication_time_is_flat_for_a_ring_linear_for_a_server_and_between_for_p2p() -> None:
    """Alqahtani, Demirbas, ICCCN 2019, arXiv 1909.02061: communication time per iteration."""
    work = workload([1e-3], [2e-3], [100e6])

    def communication_s(arch: str, workers: int, **options: Any) -> float:
        found = predict(job(work, cluster(10 * GBPS), workers, arch, {"overlap": False, **options}))
        return found.iteration_s - 3e-3

    ring = [communication_s("ring", n) for n in (4, 8, 16, 32)]
    server = [communication_s("ps", n) for n in (4, 8, 16, 32)]
    peers = [communication_s("p2p", n) for n in (4, 8, 16, 32)]
    assert ring[-1] < 1.3 * ring[0]
    assert server[-1] == pytest.approx(8 * server[0], rel=1e-6)
    assert peers[-1] > 7 * peers[0]
    for a, b, c in zip(ring, peers, server, strict=True):
        assert a < b < c


@pytest.mark.slow
def test_training_gets_faster_with_workers_if_there_are_enough_servers() -> None:
    """Jia et al. 2020, figure 7: 4, 8, 12 workers, 8 servers; for both kinds of training."""
    for sync in ("bsp", "asp"):
        rates = [
            run("resnet18", "ps", n, sync=sync, servers=8).throughput_samples_per_s
            for n in (4, 8, 12)
        ]
        assert rising(rates), (sync, rates)


# -- the network -----------------------------------------------------------------------------------


@pytest.mark.sampled(3)
@pytest.mark.parametrize("arch", ["bsp", "asp", "ring"])
def test_vgg_is_more_bound_by_communication_than_resnet(arch: str) -> None:
    """Ko et al. 2021: 128 M parameters and much computation, against 25 M."""
    assert speedup("vgg16", arch, 8) < speedup("resnet50", arch, 8)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("arch", ["bsp", "asp", "ring"])
@pytest.mark.parametrize("model", ["resnet50", "vgg16"])
def test_ten_gigabit_ethernet_binds_more_than_infiniband(model: str, arch: str) -> None:
    """Ko et al. 2021: 10 Gbps against 56 Gbps."""
    slow, fast = (
        run(model, arch, 8, bandwidth=rate * GBPS).idle_fraction.mean for rate in (10, 56)
    )
    assert slow > fast


def test_idleness_follows_latency() -> None:
    """Jia et al. 2020, figure 11c: 10 % of the time at a latency of 10 ms becomes about 70 % at
    200 ms. Two exposed latencies an iteration (push, pull) and 180 ms of computation."""
    idle = []
    for latency_s in (0.01, 0.1, 0.2):
        where = cluster(1e12, latency_s)
        idle.append(
            predict(job(workload([0.06], [0.12], [4e6]), where, 4, "ps")).idle_fraction.mean
        )
    assert idle[0] == pytest.approx(0.10, abs=0.005)
    assert idle[1] == pytest.approx(0.526, abs=0.01)
    assert idle[2] == pytest.approx(0.70, abs=0.03)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("gbps", [10, 56])
@pytest.mark.parametrize(("model", "mbytes"), [("resnet50", 100), ("vgg16", 512)])
def test_one_server_caps_the_updates_of_all_workers(gbps: int, model: str, mbytes: int) -> None:
    """The sizes that Ko et al. 2021 state, over the link of a server: 12.5 and 2.44 updates a s at
    10 Gbps, 70 and 13.7 at 56 Gbps, however many workers push."""
    work = workload([1e-3], [2e-3], [mbytes * 1e6])
    options = {"sync": "asp", "duplex": True}
    found = predict(job(work, cluster(gbps * GBPS), 24, "ps", options, start="staggered"))
    check_updates_are_capped(found, gbps * GBPS / (mbytes * 1e6))


def check_updates_are_capped(found: Prediction, most_per_s: float) -> None:
    """Check that a server makes nearly, but not more than, the updates per second its link
    allows."""
    assert 0.85 * most_per_s < found.updates_per_s <= most_per_s * (1 + 1e-9)


@pytest.mark.parametrize(
    ("mbytes", "gbps", "seconds"),
    [(512, 10, 0.785), (512, 56, 0.140), (100, 10, 0.153), (100, 56, 0.027)],
)
def test_a_ring_of_24_takes_the_time_of_its_bytes(mbytes: int, gbps: int, seconds: float) -> None:
    """2 (N-1)/N M / B for the sizes and links of Ko et al. 2021."""
    work = workload([1e-9], [1e-9], [mbytes * 1e6])
    found = predict(job(work, cluster(gbps * GBPS), 24, "ring"))
    assert found.iteration_s == pytest.approx(seconds, rel=0.02)


# -- servers ---------------------------------------------------------------------------------------


def test_idleness_falls_with_servers_per_worker() -> None:
    """Jia et al. 2020, figure 11a: one server to three workers, two to two, three to one."""
    work = workload([0.05] * 4, [0.1] * 4, [4e6] * 4)
    idle = [
        predict(
            job(work, cluster(10 * GBPS / 10), workers, "ps", {"servers": servers, "duplex": True})
        ).idle_fraction.mean
        for servers, workers in ((1, 3), (2, 2), (3, 1))
    ]
    assert rising(idle[::-1]), idle
    assert min(idle) > 0.0


@pytest.mark.slow
def test_idleness_falls_with_the_batch_size() -> None:
    """Jia et al. 2020, figure 11b: batches of 32, 64, 128."""
    for sync in ("bsp", "asp"):
        idle = [
            predict(
                make_job(
                    model="resnet18",
                    device="v100",
                    batch_size=batch,
                    cluster="ethernet-10g",
                    workers=4,
                    arch=sync,
                )
            ).idle_fraction.mean
            for batch in (32, 64, 128)
        ]
        assert rising(idle[::-1]), (sync, idle)


def test_more_servers_on_the_same_machines_slow_a_cluster_bound_by_its_cores() -> None:
    """Jia et al. 2020, figure 9: with workers on the same cores, more servers make training longer;
    without that contention they make it shorter."""
    work = workload([0.2] * 4, [0.4] * 4, [8e6] * 4)
    server = Server(placement="colocated", update_per_tensor_s=0.05, threads=4)
    cores = cluster(1e8, server=server, cpu_cores=4, worker_threads=4)
    accelerator = cluster(1e8, server=server)
    contended, free = (
        [
            predict(job(work, where, 4, "ps", {"servers": n, "split_above_bytes": 1e6})).iteration_s
            for n in (4, 16, 64)
        ]
        for where in (cores, accelerator)
    )
    assert rising(contended), contended
    one = predict(job(work, accelerator, 4, "ps", {"servers": 1})).iteration_s
    assert free[0] < one


def test_as_many_servers_as_workers_halve_the_bytes_of_a_ring() -> None:
    """Jiang et al. (BytePS), OSDI 2020: M each way on a worker's link against 2 (N-1)/N M; with
    half as many servers the link of a server takes twice as long."""
    work = workload([1e-6], [1e-6], [100e6])
    options = {"duplex": True, "split_above_bytes": 0, "partition_bytes": 1e5}
    many, few = (
        predict(job(work, cluster(10 * GBPS), 8, "ps", {"servers": n, **options})).iteration_s
        for n in (8, 4)
    )
    ring = predict(job(work, cluster(10 * GBPS), 8, "ring")).iteration_s
    assert many == pytest.approx(100e6 / (10 * GBPS), rel=0.05)
    assert ring == pytest.approx(1.75 * many, rel=0.05)
    assert few == pytest.approx(2 * many, rel=0.05)


# -- synchronous against asynchronous --------------------------------------------------------------


def test_an_asynchronous_push_is_much_shorter_than_a_synchronous_one() -> None:
    """Jia et al. 2020, table II: 8 workers on CPUs, 4 servers; a push ends with its update, which
    waits for all workers if it is synchronous: ten times as long, and more."""
    push = {}
    for sync in ("bsp", "asp"):
        found = predict(
            make_job(
                model="resnet18",
                device="cpu-epyc-2core",
                cluster="ethernet-10g",
                workers=8,
                arch=sync,
                options={"servers": 4},
                jitter=0.3,
            ),
            rel_ci=0.1,
        )
        push[sync] = found.operation_s["push"]
    assert push["bsp"] > 10 * push["asp"], push


def test_an_asynchronous_epoch_has_n_times_the_updates_and_is_not_longer() -> None:
    """Jia et al. 2020, table II: 8 workers make 8 times as many updates at equal samples."""
    sync, free = (run("resnet18", name, 8) for name in ("bsp", "asp"))
    ratio = free.updates_per_s / free.throughput_samples_per_s
    assert ratio / (sync.updates_per_s / sync.throughput_samples_per_s) == pytest.approx(
        8, rel=0.02
    )
    assert free.throughput_samples_per_s >= 0.99 * sync.throughput_samples_per_s


def test_asynchronous_training_is_slower_only_with_local_aggregation() -> None:
    """Ko et al. 2021 find ASP slowest of all. With equal traffic per worker it cannot be; with
    gradients summed inside each node of four devices before BSP pushes them, it is."""
    where = cluster(10 * GBPS, devices_per_node=4)
    work = workload([0.02], [0.04], [100e6])
    asp = predict(job(work, where, 16, "ps", {"sync": "asp"}, start="staggered"))
    bsp = predict(job(work, where, 16, "ps"))
    summed = predict(job(work, where, 16, "ps", {"local_aggregation": True}))
    assert bsp.iteration_s >= 0.99 * asp.iteration_s
    assert summed.iteration_s < 0.6 * asp.iteration_s


def test_larger_batches_shorten_epochs_with_diminishing_returns() -> None:
    """Jia et al. 2020, figure 10: batches from 16 to 512, for both kinds of training."""
    for sync in ("bsp", "asp"):
        epoch = [
            1.0
            / predict(
                job(_affine(batch), cluster(1e9), 4, "ps", {"sync": sync})
            ).throughput_samples_per_s
            for batch in (16, 32, 64, 128, 256, 512)
        ]
        gains = [a - b for a, b in itertools.pairwise(epoch)]
        assert rising(epoch[::-1]), epoch
        assert rising(gains[::-1]), gains


def _affine(batch: int) -> Workload:
    """A step of 10 ms plus 1 ms per sample."""
    seconds = 0.01 + 0.001 * batch
    return workload([seconds / 3], [seconds * 2 / 3], [10e6], batch_size=batch)


# -- overlap, order, compression -------------------------------------------------------------------


def test_schedules_of_resnet_on_eight_devices_come_in_the_measured_order() -> None:
    """Shi et al. (HKBU benchmark), 10 GbE: a server after the backward pass is slowest, then an
    all-reduce after it, then layer by layer beside it, then merged, then servers beside it."""
    eight = {"servers": 8, "duplex": True, "split_above_bytes": 1e5, "overlap": True}
    order = [
        run("resnet50", "ps", 8, overlap=False, servers=8),
        run("resnet50", "ring", 8, overlap=False, bucketing="one"),
        run("resnet50", "ring", 8, bucketing="mg_wfbp"),
        run("resnet50", "ps", 8, **eight),
    ]
    rates = [p.throughput_samples_per_s for p in order]
    assert rates[1] < rates[2] <= 1.02 * rates[3], rates
    assert rates[0] < rates[2], rates


def test_priorities_and_slices_hide_more_of_the_communication() -> None:
    """Jayarajan et al. (P3), MLSys 2019: up to 25 % for ResNet-50 and 66 % for VGG-19; Peng et al.
    (ByteScheduler), SOSP 2019: without slices the pull of a big tensor waits for its whole push."""
    plain, sliced = (
        run("vgg16", "ps", 4, servers=4, duplex=True, bandwidth=25 * GBPS, **options)
        for options in ({}, {"transmission": "priority", "partition_bytes": 4e6})
    )
    gain = sliced.throughput_samples_per_s / plain.throughput_samples_per_s
    assert 1.05 < gain < 2.7


def test_compression_beats_ten_times_the_bandwidth() -> None:
    """Lin et al. (DGC), ICLR 2018: AlexNet on 64 workers is faster with compression on 1 Gbps than
    without on 10 Gbps."""
    dense = run("alexnet", "ring", 64)
    sent = run("alexnet", "ring", 64, bandwidth=GBPS, compression="dgc", density=0.001)
    assert sent.throughput_samples_per_s > dense.throughput_samples_per_s


def test_gossip_does_not_wait_for_a_straggler() -> None:
    """Lian et al. (AD-PSGD), ICML 2018: with one slow worker all-reduce goes at its pace, pairs do
    not."""
    work = workload([0.1], [0.2], [10e6])
    slow = [Straggler(1, 5.0)]
    ring = predict(job(work, cluster(10 * GBPS), 8, "ring", stragglers=slow))
    pairs = predict(
        job(work, cluster(10 * GBPS), 8, "ad_psgd", stragglers=slow, start="staggered"), rel_ci=0.02
    )
    assert pairs.throughput_samples_per_s > 3 * ring.throughput_samples_per_s


@pytest.mark.parametrize("factor", [8.0, 1 / 8])
def test_canary_bits_taken_for_bytes_are_noticed(factor: float) -> None:
    """A server whose link is eight times as fast, or as slow, as the claim says."""
    work = workload([1e-3], [2e-3], [100e6])
    where = cluster(10 * GBPS * factor)
    found = predict(job(work, where, 24, "asp", {"duplex": True}, start="staggered"))
    with pytest.raises(AssertionError):
        check_updates_are_capped(found, 10 * GBPS / 100e6)


def test_canary_the_size_of_another_model_is_noticed() -> None:
    """If VGG-16 were as small as ResNet-50, it would not be more communication-bound."""
    bytes_ = {"resnet50": 100e6, "vgg16": 100e6}
    rates = [
        predict(job(workload([0.02], [0.04], [size]), cluster(10 * GBPS), 8, "bsp")).iteration_s
        for size in bytes_.values()
    ]
    assert not rising(rates)
    larger = predict(job(workload([0.02], [0.04], [512e6]), cluster(10 * GBPS), 8, "bsp"))
    assert rising([rates[0], larger.iteration_s])
