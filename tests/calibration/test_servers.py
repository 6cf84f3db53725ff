"""Fits of parameter servers to runs with known parameters."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from click.testing import CliRunner

from perfmodel import InputError, Link, Source, make_job, predict
from perfmodel.calibration import Observation, ServersFit, fit_servers, serve_others
from perfmodel.catalogue import catalogue
from perfmodel.cli import cli
from perfmodel.inputs.cluster import Cluster, Server
from perfmodel.inputs.job import Job
from perfmodel.inputs.profile import SCHEMA
from perfmodel.inputs.workload import Workload, WorkloadLayer
from tests.settings import thinned

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


def synchronous(
    names: Iterable[str], grid: Sequence[tuple[int, int]], factor: float = 1.0, *, cpu: bool = True
) -> list[Observation]:
    runs = []
    for name in names:
        size, compute_s, *_ = TRUTHS[name]
        for workers, servers in grid:
            found = predict(of_truth(name, workers, servers), fidelity="coarse")
            batch_size = round(64 / workers)
            share = 1 - DIVISIBLE + DIVISIBLE * batch_size / 64
            job = make_job(
                workload=workload(name, size, 1.2 * compute_s * batch_size / 64, batch_size),
                cluster=CLUSTER,
                workers=workers,
                arch="ps",
                options={**BSP, "servers": servers},
            )
            busy_s = max(found.utilisation.servers.values()) * found.iteration_s
            runs.append(
                Observation(
                    job,
                    factor * found.iteration_s,
                    worker_cpu_s=0.95 * compute_s * share if cpu else None,
                    server_cpu_s=busy_s if cpu else None,
                )
            )
    return runs


GRID = [(1, 1), (2, 1), (3, 1), (1, 2), (2, 2), (1, 3), (4, 2), (2, 4)]


@pytest.mark.family("fits of made runs")
@pytest.mark.slow
@pytest.mark.sampled(2)
@pytest.mark.parametrize("cpu", [True, False])
def test_synchronous_runs_with_more_workers_and_servers_are_predicted(cpu: bool) -> None:
    runs = synchronous(TRUTHS, GRID, cpu=cpu)
    fit = fit_servers(runs)
    for name, (size, compute_s, worker_s, update_s) in TRUTHS.items():
        found = fit[name]
        assert found.compute_s == pytest.approx(compute_s, rel=0.1)
        assert found.costs["update_per_byte_s"] * size == pytest.approx(worker_s, rel=0.15)
        assert found.costs["optimizer_per_byte_s"] * size == pytest.approx(update_s, rel=0.3)
        like = next(run.job for run in runs if run.job.workload.name == name)
        part = workload(name, size, 1.0, batch_size=8)
        options = msgspec.structs.replace(like.options, servers=6)
        more = msgspec.structs.replace(like, workload=part, workers=8, options=options)
        job = found.job(more)
        truth_s = predict(of_truth(name, 8, 6)).iteration_s
        low_s, high_s = predict(job).interval.iteration_s
        assert predict(job).iteration_s == pytest.approx(truth_s, rel=0.1)
        assert low_s < truth_s < high_s


@pytest.mark.family("fits of made runs")
@pytest.mark.slow
def test_canary_slower_runs_change_the_fit() -> None:
    first, second = (
        fit_servers(synchronous(TRUTHS, GRID[:4], factor), for_others=True) for factor in (1.0, 1.5)
    )
    assert not first.workloads
    assert second.common["worker_s"][0] > 1.2 * first.common["worker_s"][0]


def test_a_further_dnn_uses_the_common_parameters() -> None:
    *known, _ = TRUTHS
    fit = fit_servers(synchronous(known, GRID), for_others=True)
    (found,) = serve_others(fit, synchronous(["slow"], [(1, 1)])).values()
    assert found.uneven == pytest.approx(UNEVEN, rel=0.3)
    assert found.compute_s == pytest.approx(TRUTHS["slow"][1], rel=0.15)
    assert found.known[0].spread == fit.further.spread


# -- asynchronous ----------------------------------------------------------------------------------

LOADS = {"many": (0.4e7, 240, 0.2), "big": (4e7, 16, 0.25)}
"""Bytes, tensors and compute time."""

COUNTS = (1, 2, 4, 6, 8)


def asynchronous(name: str, workers: int, cluster: Cluster, servers: int = 1) -> Job:
    size, tensors, compute_s = {**LOADS, "new": (1e7, 80, 0.3)}[name]
    work = workload(name, size, compute_s, tensors=tensors)
    return make_job(
        workload=work, cluster=cluster, workers=workers, arch="asp", options={"servers": servers}
    )


TRUE = {"update_per_tensor_s": TENSOR_S, "update_per_byte_s": BYTE_S}


def series(
    name: str, counts: Sequence[int], factor: float = 1.0, servers: int = 1
) -> list[Observation]:
    found = []
    for n in counts:
        real = asynchronous(name, n, serving(**TRUE), servers)
        step_s = factor * predict(real, fidelity="coarse").iteration_s
        found.append(Observation(asynchronous(name, n, CLUSTER, servers), step_s))
    return found


@pytest.fixture(scope="module")
def fit() -> ServersFit:
    return fit_servers([run for name in LOADS for run in series(name, COUNTS)])


@pytest.mark.family("fits of made runs", unit="servers")
@pytest.mark.slow
def test_server_costs_are_recovered(fit: ServersFit) -> None:
    for name, (_, _, compute_s) in LOADS.items():
        assert fit[name].costs == pytest.approx(TRUE, rel=0.1)
        assert fit[f"any/{name}"].compute_s == pytest.approx(compute_s, rel=0.05)


@pytest.mark.family("fits of made runs")
@pytest.mark.slow
def test_several_servers_are_fitted_too() -> None:
    counts = (2, 4, 8, 12, 16)  # servers that are hardly busy do not show their costs
    runs = [run for name in LOADS for run in series(name, counts, servers=2)]
    assert fit_servers(runs)["many"].costs == pytest.approx(TRUE, rel=0.1)


@pytest.mark.family("fits of made runs", unit="servers")
@pytest.mark.slow
def test_canary_another_server_is_noticed(fit: ServersFit) -> None:
    slower = fit_servers([run for name in LOADS for run in series(name, COUNTS, 2.0)])
    name = "update_per_byte_s"
    assert slower["big"].costs[name] > 1.3 * fit["big"].costs[name]


@pytest.mark.family("fits of made runs", unit="servers")
@pytest.mark.slow
def test_a_fit_makes_a_cluster_and_workloads_with_uncertainties(fit: ServersFit) -> None:
    more = fit["many"].job(asynchronous("many", 12, CLUSTER))
    low_s, high_s = predict(more).interval.iteration_s
    assert low_s < predict(asynchronous("many", 12, serving(**TRUE))).iteration_s < high_s
    near = msgspec.structs.replace(more, workers=4)
    ends = [predict(each).interval.iteration_s for each in (more, near)]
    wide, narrow = (np.log(high / low) for low, high in ends)
    assert wide > narrow


@pytest.mark.family("fits of made runs", unit="servers")
@pytest.mark.slow
def test_a_new_dnn_needs_runs_of_one_worker_only(fit: ServersFit) -> None:
    (more,) = serve_others(fit, series("new", (1,))).values()
    assert more.costs == pytest.approx(fit["many"].costs, rel=1e-3)
    assert more.known[0] == fit["many"].known[0]
    assert more.compute_s == pytest.approx(0.3, rel=0.05)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: fit_servers([]), "runs: needs at least one"),
        (
            lambda: fit_servers(series("big", (1,)) + synchronous(["wide"], GRID[:1])),
            "runs: mix synchronous and asynchronous",
        ),
        (
            lambda: fit_servers(
                [Observation(make_job(workload=workload("w", 1e6, 1.0), arch="ring"), 1.0)]
            ),
            "allreduce has no servers",
        ),
        (
            lambda: fit_servers(
                [Observation(asynchronous("big", 1, c), 1.0) for c in (CLUSTER, serving(**TRUE))]
            ),
            "differs from other runs of any/big",
        ),
        (lambda: Observation(asynchronous("big", 1, CLUSTER), 0.0), "step_s: must be more than 0"),
        (
            lambda: Observation(asynchronous("big", 1, CLUSTER), 1.0, worker_cpu_s=-1.0),
            "worker_cpu_s: must be more than 0",
        ),
    ],
)
def test_mistakes_are_named(make: Callable[[], object], says: str) -> None:
    with pytest.raises(InputError, match=says):
        make()


# -- the command -----------------------------------------------------------------------------------


def profile(name: str, size: float, seconds: float) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "name": name,
        "layers": [
            {"name": f"{i}", "tensors": [{"name": "w", "bytes": size / 8}]} for i in range(8)
        ],
        "timings": [
            {
                "device": "any",
                "batch_size": 64,
                "forward_s": seconds / 3,
                "backward_s": seconds / 1.5,
                "source": {"kind": "exact", "text": "made for a test"},
            }
        ],
        "source": {"kind": "exact", "text": "made for a test"},
    }


COLUMNS = "workers,arch,workload,global_batch_size,batch_size,sync,duplex,split_above_bytes,step_s"


def table(folder: Path, sync: str, names: Sequence[str]) -> list[float]:
    """Write profiles and runs.csv into a folder; return the step times."""
    lines, steps = [COLUMNS], []
    for name in names:
        size, compute_s, worker_s, update_s = TRUTHS[name]
        (folder / f"{name}.json").write_text(json.dumps(profile(name, size, 1.2 * compute_s)))
        costs = {"update_per_byte_s": worker_s / size, "optimizer_per_byte_s": update_s / size}
        for workers in (1, 2, 4, 8):
            batch = 64 // workers if sync == "bsp" else 64
            share = 1 - DIVISIBLE + DIVISIBLE * batch / 64
            job = make_job(
                workload=workload(name, size, compute_s * share, batch),
                cluster=serving(**(costs if sync == "bsp" else TRUE)),
                workers=workers,
                arch="ps",
                options={**BSP, "sync": sync},
            )
            steps.append(predict(job, fidelity="coarse").iteration_s)
            sizes = "64,,bsp" if sync == "bsp" else ",64,asp"
            lines.append(f"{workers},ps,{name}.json,{sizes},true,0,{steps[-1]!r}")
    (folder / "runs.csv").write_text("\n".join(lines) + "\n")
    return steps


@pytest.mark.slow
@pytest.mark.parametrize("sync", thinned(["asp", "bsp"]))
def test_the_command_writes_files_that_predict_can_read(
    sync: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("lab.json").write_bytes(msgspec.json.encode(CLUSTER))
    steps = table(tmp_path, sync, ["wide"])
    command = "calibrate runs runs.csv --servers --device any --cluster lab.json"
    files = "--output served.json --workload-output fitted.json"
    done = CliRunner().invoke(cli, [*command.split(), *files.split()])
    assert done.exit_code == 0, done.output
    assert "update per byte" in done.output
    job = make_job(
        workload=catalogue.profile(Path("fitted.json")),
        device="any",
        cluster=catalogue.cluster_or_file("served.json"),
        batch_size=16 if sync == "bsp" else 64,
        workers=4,
        arch="ps",
        options={**BSP, "sync": sync},
    )
    assert predict(job).iteration_s == pytest.approx(steps[2], rel=0.05)
    assert predict(job).interval.parts.calibration > 0.0


@pytest.mark.slow
def test_the_command_names_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("lab.json").write_bytes(msgspec.json.encode(CLUSTER))
    table(tmp_path, "asp", ["wide", "deep"])
    command = "calibrate runs runs.csv --servers --device any --cluster lab.json --output x.json"
    done = CliRunner().invoke(cli, command.split())
    assert isinstance(done.exception, InputError)
    assert str(done.exception) == "--output: needs --model, one of any/wide, any/deep"
    done = CliRunner().invoke(cli, [*command.split(), "--fit", "latency_s"])
    assert str(done.exception) == "--fit: cannot be used with --servers"
    done = CliRunner().invoke(cli, [*command.split(), "--model", "deep", "--json"])
    assert msgspec.json.decode(done.stdout, type=ServersFit).rows == 8


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
            "sync": sync,
            "duplex": duplex,
            "overlap": overlap,
            "servers": 3,
            "uneven": 0.2,
            "split_above_bytes": 0.0,
        },
    )
    fine, coarse = predict(job), predict(job, fidelity="coarse")
    # near the knee the formulas only approximate workers in lockstep without overlap
    off = 0.12 if sync == "asp" and not overlap else 0.02
    assert coarse.iteration_s == pytest.approx(fine.iteration_s, rel=off)
