"""From measurements to a prediction, and real training to compare, on emulated nodes.

Links carry 200 Mbit/s and a model's layers wait instead of computing, so that a busy machine
disturbs little. Any disturbance only moves a run away from its prediction, so a run may be
repeated, and one that matches is enough. The canary: a prediction for another network is off in
every repetition.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from perfmodel import Cluster, make_job, predict
from perfmodel.calibration.network.fit import fit_network
from perfmodel.calibration.servers.costs import with_server
from perfmodel.measuring.measurements import read_measurements
from perfmodel.measuring.training.run import MeasuredRun, read_run
from tests import namespaces
from tests.measuring.processes import outcomes

pytestmark = pytest.mark.skipif(
    bool(namespaces.available()), reason=namespaces.available() or "emulated nodes"
)
pytest.importorskip("torch")

ROOT = Path(__file__).parents[2]
BITS_PER_S = 200e6

BOUND = 0.1
ATTEMPTS = 5

MILLION = 1_000_000
LAYERS = (("a", 0.02, 0.04, 0.2), ("b", 0.03, 0.06, 1.2), ("c", 0.03, 0.1, 2.0))
"""Name, forward and backward seconds, and megabytes of gradients."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a workload and measurements of the network between two nodes."""
    here = tmp_path_factory.mktemp("end_to_end")
    source = {"kind": "exact", "text": "waits"}
    workload = {
        "schema": "perfmodel.workload/1",
        "name": "net",
        "source": source,
        "layers": [
            {"name": name, "tensors": [{"name": name, "bytes": int(size * MILLION)}]}
            for name, _, _, size in LAYERS
        ],
        "timings": [
            {
                "device": "waits",
                "batch_size": 8,
                "forward_s": [layer[1] for layer in LAYERS],
                "backward_s": [layer[2] for layer in LAYERS],
                "source": source,
            }
        ],
    }
    (here / "net.json").write_bytes(msgspec.json.encode(workload))
    words = ["measure", "network", "--output", str(here / "network.json"), "--seconds", "8"]
    words += ["--operations", "ping_pong,stream"]
    for _ in range(ATTEMPTS):
        with namespaces.cluster(2, BITS_PER_S) as nodes:
            ended = outcomes([words] * 2, nodes)
        assert [code for code, _, _ in ended] == [0, 0], ended
        if is_nominal(here):
            break
    return here


def is_nominal(folder: Path) -> bool:
    """Whether the measured goodput is close to what the links allow."""
    return 0.85 * BITS_PER_S < 8 * calibrated(folder).nic.goodput_bytes_per_s < 1.05 * BITS_PER_S


def calibrated(folder: Path) -> Cluster:
    """The cluster fitted to measurements of two nodes."""
    return fit_network([read_measurements(folder / "network.json")]).cluster


def trained(folder: Path, processes: int, *more: str) -> MeasuredRun:
    """A real run of the workload with ``processes`` processes, each on its own node."""
    path = folder / "run.json"
    with namespaces.cluster(processes, BITS_PER_S) as nodes:
        words = ["measure", "training", "--model", "benchmarks.waiting_model:model"]
        words += ["--input-shape", "1", "--batch-size", "8", "--threads", "1"]
        words += ["--steps", "25", "--warmup", "4", "--output", str(path), *more]
        variables = {"WAITS": str(folder / "net.json")}
        ended = outcomes([words] * processes, nodes, cwd=ROOT, variables=variables)
        assert [code for code, _, _ in ended] == [0] * processes, ended
    return read_run(path)


def error(run: MeasuredRun, cluster: Cluster, folder: Path) -> float:
    """Predicted over measured iteration time, minus one."""
    job = make_job(workload=folder / "net.json", cluster=cluster, **run.arguments())
    return predict(job).iteration_s / run.measured.iteration_s - 1.0


def check(folder: Path, cluster: Cluster, processes: int, *more: str) -> None:
    """Run a job until it matches its prediction; the canary predicts it on slower links."""
    errors = []
    slower = msgspec.structs.replace(
        cluster,
        nic=msgspec.structs.replace(
            cluster.nic, bandwidth_bytes_per_s=cluster.nic.bandwidth_bytes_per_s / 2
        ),
    )
    for _ in range(ATTEMPTS):
        run = trained(folder, processes, *more)
        served = run.measured.update_per_tensor_s is not None
        where = [with_server(c, run) if served else c for c in (cluster, slower)]
        right, wrong = (error(run, c, folder) for c in where)
        errors.append(right)
        if abs(right) < BOUND:
            assert wrong > 2 * BOUND, wrong
            return
    raise AssertionError(f"off by {errors}")


def test_the_network_is_measured_correctly(folder: Path) -> None:
    assert is_nominal(folder)
    assert calibrated(folder).nic.latency_s < 0.01


SERVED = ("--arch", "ps", "--sync", "bsp", "--servers", "1")


@pytest.mark.slow
@pytest.mark.parametrize("workers", [2, 3])
def test_a_parameter_server_is_predicted(workers: int, folder: Path) -> None:
    check(folder, calibrated(folder), workers + 1, *SERVED)


@pytest.mark.parametrize("workers", [2, 3])
def test_distributed_data_parallel_is_predicted(workers: int, folder: Path) -> None:
    check(folder, calibrated(folder), workers, "--arch", "ring")
