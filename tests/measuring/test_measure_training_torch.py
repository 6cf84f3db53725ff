"""Real models and DistributedDataParallel; needs PyTorch."""

from __future__ import annotations

import importlib.util
import json
import math
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from perfmodel import make_job
from perfmodel.measuring.training.run import MeasuredRun, read_run
from perfmodel.measuring.training.server import ParameterServer
from perfmodel.measuring.training.shards import Shard, pieces_of
from perfmodel.measuring.training.worker import Client, train
from perfmodel.theory.buckets import ddp_buckets
from tests.measuring.processes import command
from tests.measuring.test_measure_training import Messages

torch = pytest.importorskip("torch")

from perfmodel.measuring.training.hooks import HookedModel  # noqa: E402
from perfmodel.profiler.libraries import Built  # noqa: E402
from perfmodel.profiler.training import training  # noqa: E402

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 120.0
WORKERS, ITERATIONS, RATE = 2, 4, 0.05


def network() -> Any:
    """A small model with one layer whose parameters are used without calling it."""

    class Inner(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.scale = torch.nn.Linear(6, 6)
            self.unused = torch.nn.Parameter(torch.ones(3))

        def forward(self, value: Any) -> Any:
            return torch.nn.functional.linear(value, self.scale.weight, self.scale.bias)

    return torch.nn.Sequential(
        torch.nn.Linear(5, 6), torch.nn.Tanh(), Inner(), torch.nn.Linear(6, 2)
    )


def batch_of(worker: int) -> Any:
    """A function that makes a worker's batches."""
    random = torch.Generator().manual_seed(worker)

    def make(size: int) -> Any:
        inputs = torch.randn(size, 5, generator=random)
        return inputs, torch.randn(size, 2, generator=random)

    return make


def trainings() -> list[Any]:
    """A training setup for each worker, with the same weights and different data."""
    made = []
    for worker in range(WORKERS):
        torch.manual_seed(3)
        built = Built(network(), "small", "made up")
        made.append(training(built, batch_size=4, batch=batch_of(worker), loss="mse_loss"))
    return made


def parameters_of(model: Any) -> list[Any]:
    return [parameter.detach().clone().numpy() for parameter in model.parameters()]


def by_server(steps: Sequence[Any]) -> list[list[Any]]:
    """Parameters of each worker after training with two servers, bulk-synchronously."""
    hooked = [HookedModel(one) for one in steps]
    pieces = pieces_of(hooked[0].workload, servers=2)
    messages = Messages()

    def serve(server: int) -> None:
        held = [piece for piece in pieces if piece.server == server]
        sizes = [piece.elements for piece in held]
        shard = Shard(sizes, workers=WORKERS, bound=0.0, learning_rate=RATE)
        ParameterServer(messages.of(WORKERS + server), held, shard, WORKERS, 0).serve()

    def work(worker: int) -> None:
        client, model = clients[worker], hooked[worker]
        train(client, model.iteration, iterations=ITERATIONS)
        model.finish(client)

    with ThreadPoolExecutor(WORKERS + 2) as pool:
        served = [pool.submit(serve, server) for server in range(2)]
        servers = range(WORKERS, WORKERS + 2)
        clients = [Client(messages.of(worker), servers, pieces) for worker in range(WORKERS)]
        clients[0].set({layer: hooked[0].values(layer) for layer in range(len(hooked[0].layers))})
        for done in [pool.submit(work, worker) for worker in range(WORKERS)] + served:
            done.result(TIMEOUT_S)
    return [parameters_of(one.model) for one in steps]


def sequentially(steps: Sequence[Any], workers: int = WORKERS) -> list[Any]:
    """Parameters after plain SGD with the sum of the workers' gradients, in one process."""
    model = steps[0].model
    for _ in range(ITERATIONS):
        model.zero_grad(set_to_none=True)
        for one in steps[:workers]:
            one.compute_loss(model, one.next_batch()).backward()
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.grad is not None:
                    parameter -= RATE * parameter.grad
    return parameters_of(model)


def near(found: Sequence[Any], expected: Sequence[Any]) -> bool:
    return all(
        np.allclose(a, b, rtol=1e-4, atol=1e-5) for a, b in zip(found, expected, strict=True)
    )


def test_a_parameter_server_trains_like_one_process() -> None:
    # both draw the same number of batches before they train
    alone = trainings()
    for one in alone:
        HookedModel(one)
    expected = sequentially(alone)
    found = by_server(trainings())
    assert all(near(values, expected) for values in found)


def test_canary_a_lost_gradient_is_noticed() -> None:
    alone = trainings()
    for one in alone:
        HookedModel(one)
    assert not near(by_server(trainings())[0], sequentially(alone, workers=1))


def test_layers_are_the_called_modules() -> None:
    found = HookedModel(trainings()[0])
    sizes = {name: sum(p.numel() for p in ps) for name, ps in found.layers}
    assert sizes == {"0": 36, "2": 42 + 3, "3": 14}
    assert found.workload.gradient_bytes == 4 * (36 + 45 + 14)


# -- whole runs --------------------------------------------------------------------------------

LAYERS = {"a": (40_000,), "b": (2_000_000,), "c": (400_000,)}
OWN_MODEL = """
import os, time
import torch

class Dying(torch.nn.Module):
    def forward(self, value):
        if os.environ["RANK"] == "1" and time.time() > float(os.environ["DIES"]):
            os._exit(3)
        return value

def model():
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))

def dying():
    return torch.nn.Sequential(model(), Dying())
"""
COMMON = ("--input-shape", "8", "--batch-size", "4", "--threads", "1")


def run_of(folder: Path, *words: str, **variables: str) -> tuple[MeasuredRun, str]:
    """The file of a run, and what its command printed."""
    (folder / "own_model.py").write_text(OWN_MODEL)
    words = ("measure", "training", *words, "--output", "run.json")
    done = command(*words, folder=folder, **variables)
    assert done.returncode == 0, done.stderr
    return read_run(folder / "run.json"), done.stdout


def write_workload(folder: Path) -> Path:
    path = folder / "layers.json"
    source = {"kind": "exact", "text": "made up"}
    timing = {
        "device": "lab", "batch_size": 4, "forward_s": [1e-3] * 3, "backward_s": [2e-3] * 3,
        "optimizer_s": 1e-3, "source": source,
    }  # fmt: skip
    layers = [
        {"name": name, "tensors": [{"name": f"{name}{i}", "bytes": n} for i, n in enumerate(sizes)]}
        for name, sizes in LAYERS.items()
    ]
    path.write_text(
        json.dumps(
            {
                "schema": "perfmodel.workload/1", "name": "layers", "source": source,
                "layers": layers, "timings": [timing],
            }
        )
    )  # fmt: skip
    return path


@pytest.mark.parametrize("cap", [None, 0.25])
def test_a_model_trains_in_the_reported_buckets(cap: float | None, tmp_path: Path) -> None:
    path = write_workload(tmp_path)
    more = [] if cap is None else ["--bucket-cap", str(cap)]
    run, _ = run_of(
        tmp_path, "--processes", "2", "--arch", "ring", "--model", "benchmarks.waiting_model:model",
        "--input-shape", "1", "--batch-size", "4", "--steps", "4", "--warmup", "2", *more,
        WAITS=path.name, PYTHONPATH=str(ROOT),
    )  # fmt: skip
    assert (run.arch, run.workers, run.measured.iterations) == ("allreduce", 2, 4)
    assert run.measured.compute_s > 9e-3
    options: Any = make_job(workload=path, **run.arguments()).options
    assert options.concurrent == 2
    sizes = [size for layer in reversed(LAYERS.values()) for size in reversed(layer)]
    expected = ddp_buckets(
        [*sizes, 8], cap_bytes=options.bucket_cap_bytes, first_cap_bytes=options.first_bucket_bytes
    )
    made = ", ".join(str(sum([*sizes, 8][i] for i in bucket)) for bucket in expected)
    assert f"buckets of {made} bytes" in run.source.text


@pytest.mark.parametrize(
    ("processes", "words"),
    [
        (2, ("--arch", "ddp")),
        (3, ("--arch", "ps")),
        (4, ("--arch", "ps", "--servers", "2")),
        (3, ("--arch", "ps", "--sync", "asp")),
        (3, ("--arch", "ps", "--sync", "ssp", "--staleness-bound", "inf")),
    ],
)
def test_a_real_model_is_trained(processes: int, words: tuple[str, ...], tmp_path: Path) -> None:
    run, printed = run_of(
        tmp_path, "--processes", str(processes), *words, "--model", "own_model:model", *COMMON,
        "--steps", "6", "--warmup", "2",
    )  # fmt: skip
    measured, synchronous = run.measured, "--sync" not in words
    assert (run.workers, run.batch_size, run.emulated) == (2, 4, False)
    assert measured.compute_s > 0.0
    assert measured.samples_per_s == pytest.approx(4 * 2 / measured.iteration_s)
    assert measured.iterations == 6 or not synchronous
    assert (measured.staleness is None) == synchronous
    if "ps" in words:
        assert measured.sent_bytes == 4 * (8 * 16 + 16 + 16 * 4 + 4)
    options: Any = make_job(model="resnet50", device="v100", **run.arguments()).options
    if "ssp" in words:
        assert options.staleness_bound == math.inf
    for word in ("iteration", "throughput", "idle"):
        assert word in printed


def test_the_command_compares_with_a_prediction(tmp_path: Path) -> None:
    path = write_workload(tmp_path)
    plot = ["--plot", "run.png"] if importlib.util.find_spec("matplotlib") else []
    _, printed = run_of(
        tmp_path, "--processes", "3", "--model", "own_model:model", *COMMON, "--steps", "4",
        "--workload", path.name, "--cluster", "ethernet-10g", *plot,
    )  # fmt: skip
    assert "predicted" in printed
    assert not plot or (tmp_path / "run.png").read_bytes().startswith(b"\x89PNG")


def test_the_time_limit_ends_a_run(tmp_path: Path) -> None:
    words = ("--processes", "2", "--arch", "ring", "--model", "own_model:model", *COMMON)
    run, _ = run_of(tmp_path, *words, "--steps", "1000000", "--time-limit", "3s")
    assert run.measured.iterations < 1_000_000


@pytest.mark.parametrize("words", [("--arch", "ring"), ("--arch", "ps")])
def test_a_worker_that_dies_ends_all_others(words: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "own_model.py").write_text(OWN_MODEL)
    words = ("measure", "training", "--processes", "3", *words, "--model", "own_model:dying")
    words = (*words, *COMMON, "--steps", "1000000", "--output", "run.json")
    done = command(*words, folder=tmp_path, DIES=str(time.time() + 20.0))
    assert done.returncode in (2, 3)  # the first to end: the worker, or one that has lost it
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "run.json").exists()


def test_a_mistake_in_a_process_is_the_error_of_the_command(tmp_path: Path) -> None:
    words = ("measure", "training", "--processes", "2", "--arch", "ring", *COMMON)
    done = command(*words, "--model", "no_such_module:model", folder=tmp_path)
    assert done.returncode == 2
    assert "no_such_module" in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr
