"""Real models and DistributedDataParallel; needs PyTorch."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from perfmodel import make_job
from perfmodel.inputs.catalogue import profile as read_profile
from perfmodel.measuring.processes.connecting import Listener
from perfmodel.measuring.processes.tokens import Token
from perfmodel.measuring.training.run import MeasuredRun, read_run
from perfmodel.measuring.training.server import ParameterServer
from perfmodel.measuring.training.shards import Shard, pieces_of
from perfmodel.measuring.training.worker import Client, train
from perfmodel.theory.buckets import ddp_buckets
from tests.namespaces import free_port

torch = pytest.importorskip("torch")

from perfmodel.measuring.training.hooks import HookedModel  # noqa: E402
from perfmodel.profiler.libraries import Built  # noqa: E402
from perfmodel.profiler.training import training  # noqa: E402

TIMEOUT_S = 120.0
TOKEN = Token(b"known to these threads", "these tests")
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
    listeners = [Listener("127.0.0.1", 0, TIMEOUT_S, TOKEN) for _ in range(2)]
    servers = []
    for index, listener in enumerate(listeners):
        own = [piece for piece in pieces if piece.server == index]
        shard = Shard(
            [piece.elements for piece in own], workers=WORKERS, bound=0.0, learning_rate=RATE
        )
        servers.append(
            ParameterServer(listener, own, shard, workers=WORKERS, warmup=0, timeout_s=TIMEOUT_S)
        )
    addresses = [("127.0.0.1", listener.port) for listener in listeners]
    with ThreadPoolExecutor(2) as pool:
        accepting = [pool.submit(server.accept) for server in servers]
        clients = [
            Client(worker, addresses, pieces, timeout_s=TIMEOUT_S, token=TOKEN)
            for worker in range(WORKERS)
        ]
        for future in accepting:
            future.result(TIMEOUT_S)
    for layer in range(len(hooked[0].layers)):
        clients[0].begin(layer, hooked[0].values(layer))
    try:
        with ThreadPoolExecutor(WORKERS + 2) as pool:
            seen = [pool.submit(server.serve) for server in servers]
            ran = [
                pool.submit(train, client, one, iterations=ITERATIONS)
                for client, one in zip(clients, hooked, strict=True)
            ]
            both: list[Any] = [*ran, *seen]
            for done in both:
                done.result(TIMEOUT_S)
        for client, one in zip(clients, hooked, strict=True):
            one.finish(client)
    finally:
        parts: list[Any] = [*clients, *servers, *listeners]
        for part in parts:
            part.close()
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


def run_of(folder: Path, ranks: int, *arguments: str) -> tuple[MeasuredRun, str]:
    """The file of a run with this many processes, and their output."""
    with free_port() as port:
        processes = [
            subprocess.Popen(
                [
                    *(sys.executable, "-m", "perfmodel", "measure", "training"),
                    *("--rank", str(rank), "--ranks", str(ranks), "--threads", "1"),
                    *("--address", f"127.0.0.1:{port}", "--timeout", f"{TIMEOUT_S}s"),
                    *(*arguments, "--output", "run.json"),
                ],
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                encoding="utf-8",
            )
            for rank in range(ranks)
        ]
        try:
            said = [process.communicate(timeout=2 * TIMEOUT_S)[0] for process in processes]
        finally:
            for process in processes:
                process.kill()
                process.wait()
    assert [process.returncode for process in processes] == [0] * ranks, said
    return read_run(folder / "run.json"), "".join(said)


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
def test_emulated_layers_train_in_the_reported_buckets(cap: float | None, tmp_path: Path) -> None:
    path = write_workload(tmp_path)
    more = [] if cap is None else ["--bucket-cap", str(cap)]
    run, _ = run_of(
        tmp_path, 2, "--arch", "ring", "--workload", path.name, "--emulate",
        "--steps", "4", "--warmup", "2", *more,
    )  # fmt: skip
    assert (run.arch, run.workers, run.measured.iterations) == ("allreduce", 2, 4)
    assert run.measured.compute_s == pytest.approx(10e-3)
    options = make_job(workload=path, **run.arguments()).options
    assert options.concurrent == 2
    sizes = [size for layer in reversed(LAYERS.values()) for size in reversed(layer)]
    expected = ddp_buckets(
        sizes, cap_bytes=options.bucket_cap_bytes, first_cap_bytes=options.first_bucket_bytes
    )
    made = ", ".join(str(sum(sizes[i] for i in bucket)) for bucket in expected)
    assert f"buckets of {made} bytes" in run.source.text
    assert read_profile(path).parameter_bytes == sum(sizes)


MODEL = """
import torch

def model():
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
"""


@pytest.mark.parametrize(
    ("ranks", "arguments"),
    [(2, ("--arch", "ddp")), (3, ("--arch", "ps")), (3, ("--arch", "ps", "--sync", "asp"))],
)
def test_a_real_model_is_trained(ranks: int, arguments: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "own_model.py").write_text(MODEL)
    run, said = run_of(
        tmp_path, ranks, *arguments, "--model", "own_model:model", "--input-shape", "8",
        "--batch-size", "4", "--steps", "5", "--warmup", "2",
    )  # fmt: skip
    assert (run.workers, run.batch_size, run.emulated) == (2, 4, False)
    assert run.measured.compute_s > 0.0
    assert "iteration" in said
    if "ps" in arguments:
        assert run.measured.sent_bytes == 4 * (8 * 16 + 16 + 16 * 4 + 4)
