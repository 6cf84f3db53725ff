"""Fits of parameter servers to runs with known parameters."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import msgspec
import numpy as np
import pytest

from perfmodel import InputError, Link, Source, make_job, predict
from perfmodel.calibration.servers.asynchronous import (
    AsynchronousFit,
    Series,
    fit_asynchronous_servers,
)
from perfmodel.calibration.servers.synchronous import (
    Dnn,
    SynchronousRun,
    fit_synchronous_servers,
)
from perfmodel.inputs.cluster import Cluster, Server
from perfmodel.inputs.job import Job
from perfmodel.inputs.workload import Workload, WorkloadLayer

CLUSTER = Cluster(name="lab", nic=Link(3e9), source=Source("exact", "made for a test"))
BSP = {"sync": "bsp", "duplex": True, "split_above_bytes": 0.0}
TENSOR_S, BYTE_S = 0.15e-3, 1.5e-9


def workload(
    name: str, size_bytes: float, compute_s: float, batch_size: int = 64, tensors: int = 8
) -> Workload:
    each_s, size = compute_s / 8, size_bytes / tensors
    layers = [
        WorkloadLayer(f"{i}", each_s / 3, each_s / 1.5, (size,) * (tensors // 8)) for i in range(8)
    ]
    return Workload.of(name, layers, batch_size=batch_size, device="any")


def serving(**costs: float) -> Cluster:
    return msgspec.structs.replace(CLUSTER, server=Server(**costs))


# -- synchronous -----------------------------------------------------------------------------------

UNEVEN, DIVISIBLE = 0.15, 0.6
TRUTHS = {
    "wide": (100e6, 0.5, 0.12, 0.3),
    "deep": (20e6, 0.3, 0.1, 0.15),
    "slow": (40e6, 0.8, 0.14, 0.25),
}
"""Bytes, compute time, and server seconds per worker and per update."""


def of_truth(name: str, workers: int, servers: int) -> Job:
    size, compute_s, worker_s, update_s = TRUTHS[name]
    share = 1 - DIVISIBLE + DIVISIBLE * round(64 / workers) / 64
    return make_job(
        workload=workload(name, size, compute_s * share),
        cluster=serving(update_per_byte_s=worker_s / size, optimizer_per_byte_s=update_s / size),
        workers=workers,
        arch="ps",
        options={**BSP, "servers": servers, "uneven": UNEVEN},
    )


def dnn(name: str, grid: list[tuple[int, int]], factor: float = 1.0) -> Dnn:
    size, compute_s, *_ = TRUTHS[name]
    job = make_job(
        workload=workload(name, size, 1.2 * compute_s), cluster=CLUSTER, arch="ps", options=BSP
    )
    runs = []
    for workers, servers in grid:
        found = predict(of_truth(name, workers, servers), fidelity="coarse")
        share = 1 - DIVISIBLE + DIVISIBLE * round(64 / workers) / 64
        cpu = (
            0.95 * compute_s * share,
            max(found.utilisation.servers.values()) * found.iteration_s,
        )
        runs.append(SynchronousRun(workers, servers, factor * found.iteration_s, *cpu))
    return Dnn(job=job, runs=tuple(runs))


GRID = [(1, 1), (2, 1), (3, 1), (1, 2), (2, 2), (1, 3), (4, 2), (2, 4)]


def test_synchronous_runs_with_more_workers_and_servers_are_predicted() -> None:
    dnns = [dnn(name, GRID) for name in TRUTHS]
    fit = fit_synchronous_servers(dnns)
    for one, (name, (_, compute_s, worker_s, update_s)) in zip(dnns, TRUTHS.items(), strict=True):
        found, size = fit.dnns[name], one.job.workload.gradient_bytes
        assert found.compute_s == pytest.approx(compute_s, rel=0.1)
        assert found.update_per_byte_s * size == pytest.approx(worker_s, rel=0.15)
        assert found.optimizer_per_byte_s * size == pytest.approx(update_s, rel=0.3)
        job = make_job(
            workload=found.workload(one.job.workload, 8),
            cluster=found.cluster(CLUSTER),
            workers=8,
            arch="ps",
            options={**BSP, "servers": 6, "uneven": found.uneven},
        )
        truth_s = predict(of_truth(name, 8, 6)).iteration_s
        low_s, high_s = predict(job).interval.iteration_s
        assert predict(job).iteration_s == pytest.approx(truth_s, rel=0.1)
        assert low_s < truth_s < high_s


def test_canary_slower_runs_change_the_fit() -> None:
    grid = GRID[:4]
    first, second = (
        fit_synchronous_servers([dnn(name, grid, factor) for name in TRUTHS], for_others=True)
        for factor in (1.0, 1.5)
    )
    assert second.common["worker_s"][0] > 1.2 * first.common["worker_s"][0]


def test_a_further_dnn_uses_the_common_parameters() -> None:
    *known, _ = TRUTHS
    fit = fit_synchronous_servers([dnn(name, GRID) for name in known], for_others=True)
    found = fit.of(dnn("slow", [(1, 1)]))
    assert found.uneven == pytest.approx(UNEVEN, rel=0.3)
    assert found.compute_s == pytest.approx(TRUTHS["slow"][1], rel=0.15)
    assert found.known[0].spread == fit.further


# -- asynchronous ----------------------------------------------------------------------------------

LOADS = {"many": (0.4e7, 240, 0.2), "big": (4e7, 16, 0.25)}
"""Bytes, tensors and compute time."""


def asynchronous(name: str, workers: int, cluster: Cluster) -> Job:
    size, tensors, compute_s = LOADS[name]
    work = workload(name, size, compute_s, tensors=tensors)
    return make_job(workload=work, cluster=cluster, workers=workers, arch="asp")


def series(name: str, counts: tuple[int, ...], factor: float = 1.0) -> Series:
    cluster = serving(update_per_tensor_s=TENSOR_S, update_per_byte_s=BYTE_S)
    found = [predict(asynchronous(name, n, cluster), fidelity="coarse") for n in counts]
    return Series(
        job=asynchronous(name, 1, CLUSTER),
        workers=counts,
        step_s=tuple(factor * each.iteration_s for each in found),
    )


@pytest.fixture(scope="module")
def fit() -> AsynchronousFit:
    return fit_asynchronous_servers([series(name, (1, 2, 4, 6, 8)) for name in LOADS])


def test_server_costs_are_recovered(fit: AsynchronousFit) -> None:
    assert fit.costs["update_per_tensor_s"] == pytest.approx(TENSOR_S, rel=0.1)
    assert fit.costs["update_per_byte_s"] == pytest.approx(BYTE_S, rel=0.1)
    for name, (_, _, compute_s) in LOADS.items():
        assert fit.compute_s[f"any/{name}"] == pytest.approx(compute_s, rel=0.05)


def test_canary_another_server_is_noticed(fit: AsynchronousFit) -> None:
    slower = fit_asynchronous_servers([series(name, (1, 2, 4, 6, 8), 2.0) for name in LOADS])
    assert slower.costs["update_per_byte_s"] > 1.3 * fit.costs["update_per_byte_s"]


def test_a_fit_makes_a_cluster_and_workloads_with_uncertainties(fit: AsynchronousFit) -> None:
    cluster, job = fit.cluster(CLUSTER), asynchronous("many", 12, CLUSTER)
    more = msgspec.structs.replace(job, cluster=cluster, workload=fit.workload(job.workload))
    truth = serving(update_per_tensor_s=TENSOR_S, update_per_byte_s=BYTE_S)
    low_s, high_s = predict(more).interval.iteration_s
    assert low_s < predict(asynchronous("many", 12, truth)).iteration_s < high_s
    near = msgspec.structs.replace(more, workers=4)
    ends = [predict(each).interval.iteration_s for each in (more, near)]
    wide, narrow = (np.log(high / low) for low, high in ends)
    assert wide > narrow


def test_a_new_dnn_needs_runs_of_one_worker_only(fit: AsynchronousFit) -> None:
    LOADS["new"] = (1e7, 80, 0.3)
    try:
        more = fit.with_series([series("new", (1,))])
    finally:
        del LOADS["new"]
    assert more.costs == fit.costs
    assert more.compute_s["any/new"] == pytest.approx(0.3, rel=0.05)
    assert "any/many" not in more.without("any").compute_s


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: fit_synchronous_servers([]), "dnns: needs at least one"),
        (lambda: fit_synchronous_servers([dnn("wide", [])]), "wide: needs at least one run"),
        (lambda: fit_synchronous_servers([dnn("wide", GRID[:1])] * 2), "its own name"),
        (lambda: fit_asynchronous_servers([]), "series: needs at least one"),
        (lambda: fit_asynchronous_servers([series("big", (1,))] * 2), "its own name"),
        (lambda: series("big", ()), "each run needs both workers and step_s"),
        (lambda: SynchronousRun(1, 1, 0.0), "step_s: must be more than 0"),
        (lambda: SynchronousRun(1, 1, 1.0, -1.0), "worker_cpu_s: must be more than 0"),
    ],
)
def test_mistakes_are_named(make: Callable[[], object], says: str) -> None:
    with pytest.raises(InputError, match=says):
        make()


# -- the mechanisms --------------------------------------------------------------------------------


@pytest.mark.parametrize("servers", [1, 3])
def test_an_optimizer_runs_once_for_all_workers(servers: int) -> None:
    """A server that takes nearly all the time: K workers' gradients and one update."""
    for workers in (1, 4):
        job = make_job(
            workload=workload("wide", 1e8, 1e-3),
            cluster=serving(update_per_byte_s=1e-9, optimizer_per_byte_s=5e-9),
            workers=workers,
            arch="ps",
            options={**BSP, "servers": servers, "uneven": 0.1},
        )
        part = 0.1 + 0.9 / servers if servers > 1 else 1.0
        for fidelity in ("fine", "coarse"):
            found = predict(job, fidelity=fidelity)  # type: ignore[arg-type]
            assert found.iteration_s >= (workers * 0.1 + 0.5) * part
            assert found.iteration_s == pytest.approx((workers * 0.1 + 0.5) * part, rel=0.1)


@pytest.mark.parametrize(
    ("sync", "duplex", "overlap"),
    list(itertools.product(("bsp", "asp"), (False, True), (False, True))),
)
def test_both_routes_model_the_optimizer_and_uneven_servers(
    sync: str, duplex: bool, overlap: bool
) -> None:
    job = make_job(
        workload=workload("wide", 1e8, 0.6),
        cluster=serving(update_per_byte_s=1e-9, optimizer_per_byte_s=4e-9),
        workers=4,
        arch="ps",
        options={
            "sync": sync, "duplex": duplex, "overlap": overlap,
            "servers": 3, "uneven": 0.2, "split_above_bytes": 0.0,
        },
    )
    fine, coarse = predict(job), predict(job, fidelity="coarse")
    # near the knee the formulas only approximate workers in lockstep without overlap
    off = 0.12 if sync == "asp" and not overlap else 0.02
    assert coarse.iteration_s == pytest.approx(fine.iteration_s, rel=off)
