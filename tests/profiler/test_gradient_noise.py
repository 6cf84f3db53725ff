"""The gradient noise scale of PyTorch models against the gradients of single samples."""

from __future__ import annotations

import itertools
import json
import math
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the profiler measures PyTorch models")

from perfmodel.base.errors import InputError  # noqa: E402
from perfmodel.inputs.profile import read_profile  # noqa: E402
from perfmodel.profiler import Profiler, measure_noise, record  # noqa: E402
from perfmodel.profiler.libraries import Built  # noqa: E402
from tests.profiled import hooks  # noqa: E402

SAMPLES = 200


class Data:
    """Samples of a linear regression, drawn with replacement from a small set."""

    def __init__(self) -> None:
        draws = torch.Generator().manual_seed(0)
        self.inputs = torch.randn(SAMPLES, 5, generator=draws)
        self.targets = self.inputs @ torch.ones(5, 1) + torch.randn(SAMPLES, 1, generator=draws)
        self.draws = draws

    def batch(self, size: int) -> tuple[Any, Any]:
        chosen = torch.randint(SAMPLES, (size,), generator=self.draws)
        return self.inputs[chosen], self.targets[chosen]


def net() -> Any:
    torch.manual_seed(1)
    return torch.nn.Linear(5, 1)


def backward(model: Any, data: Data, size: int) -> Callable[[], Any]:
    """Draws a batch and computes its gradient."""

    def run() -> None:
        inputs, targets = data.batch(size)
        torch.nn.functional.mse_loss(model(inputs), targets).backward()

    return run


def exact(model: Any, data: Data) -> float:
    """Trace of the covariance of all samples' gradients over the square of their mean."""
    rows = []
    for inputs, target in zip(data.inputs, data.targets, strict=True):
        model.zero_grad()
        torch.nn.functional.mse_loss(model(inputs), target).backward()
        rows.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
    gradients = torch.stack(rows)
    mean = gradients.mean(dim=0)
    return float(gradients.var(dim=0, correction=0).sum() / mean.square().sum())


@pytest.mark.parametrize("size", [1, 8])
def test_the_noise_equals_that_of_single_samples(size: int) -> None:
    model, data = net(), Data()
    truth = exact(model, data)
    found = measure_noise(model, backward(model, data, size), batch_size=size, steps=300)
    assert found.std_error_samples is not None
    assert found.std_error_samples < 0.1 * truth
    assert abs(found.samples - truth) < 3.5 * found.std_error_samples
    assert abs(found.samples - 2.0 * truth) > 3.5 * found.std_error_samples
    assert (found.batch_size, found.batches, found.steps) == (size, 8, 300)
    assert "300 estimates from 8 batches" in found.source.text
    assert all(p.grad is None for p in model.parameters())


def test_the_standard_error_matches_repeated_measurements() -> None:
    model, data = net(), Data()
    found = [
        measure_noise(model, backward(model, data, 4), batch_size=4, batches=4, steps=30)
        for _ in range(40)
    ]
    samples = torch.tensor([one.samples for one in found])
    claimed = torch.tensor([one.std_error_samples for one in found])
    assert float(claimed.mean()) == pytest.approx(float(samples.std()), rel=0.3)


def test_updates_get_the_mean_gradient_and_lead_to_more_noise() -> None:
    model, data = net(), Data()
    before = exact(model, data)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    found = measure_noise(
        model, backward(model, data, 16), batch_size=16, steps=10, update=optimizer.step
    )
    assert "over training steps" in found.source.text
    assert exact(model, data) > 2.0 * before  # its gradient vanishes at the minimum
    plain = net()
    step = torch.optim.SGD(plain.parameters(), lr=0.1)
    again = Data()
    for _ in range(10):
        plain.zero_grad()
        inputs, targets = again.batch(128)  # batches of one step follow each other
        torch.nn.functional.mse_loss(plain(inputs), targets).backward()
        step.step()
    for one, other in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.allclose(one, other, atol=1e-5)


def test_sparse_gradients_and_parameters_without_gradients() -> None:
    words = torch.nn.Embedding(6, 2, sparse=True)
    model = torch.nn.ModuleList([words, torch.nn.Linear(2, 2)])
    draws = torch.Generator().manual_seed(0)

    def run() -> None:
        ids = torch.randint(6, (4,), generator=draws)
        (words(ids).sum(dim=1) * (1.0 + ids)).mean().backward()

    gradients = torch.stack(
        [torch.nn.functional.one_hot(i, 6).repeat(2) * (1.0 + i) for i in torch.arange(6)]
    )
    mean = gradients.mean(dim=0)
    truth = float(gradients.var(dim=0, correction=0).sum() / mean.square().sum())
    found = measure_noise(model, run, batch_size=4, batches=4, steps=40)
    assert found.std_error_samples is not None
    assert abs(found.samples - truth) < 3.5 * found.std_error_samples


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"batches": 1}, "batches: must be at least 2, got 1"),
        ({"steps": 1}, "steps: must be at least 2, got 1"),
        ({"batch_size": 0}, "batch_size: must be at least 1, got 0"),
    ],
)
def test_wrong_numbers_are_refused(given: dict[str, int], said: str) -> None:
    model = net()
    with pytest.raises(InputError, match=said):
        measure_noise(model, backward(model, Data(), 2), **{"batch_size": 2} | given)


def test_batches_without_noise_information_are_refused() -> None:
    model, inputs = net(), torch.randn(4, 5)

    def same() -> None:
        model(inputs).square().mean().backward()

    def broken() -> None:
        (model(inputs) * math.nan).mean().backward()

    signs = itertools.cycle([1.0, -1.0])

    def balanced() -> None:
        (next(signs) * model(inputs)).mean().backward()

    for run, said in (
        (same, "all batches have the same gradient; draw a new batch at each call"),
        (broken, "a gradient is not finite"),
        (lambda: None, "produced no gradient"),
        (balanced, "lost in noise after 2 steps of 4 batches of 4 samples; use more"),
    ):
        with pytest.raises(InputError, match=said):
            measure_noise(model, run, batch_size=4, batches=4, steps=2)


def test_a_profiler_measures_noise_without_affecting_training(tmp_path: Path) -> None:
    model, data = net(), Data()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with Profiler(model, optimizer, warmup=1, steps=3, device_name="here") as profiler:
        for step in range(4):
            optimizer.zero_grad()
            backward(model, data, 8)()
            optimizer.step()
            profiler.step()
            if step == 1:
                found = profiler.measure_noise(
                    backward(model, data, 8), batch_size=8, description="half-way"
                )
    assert profiler.measured == 3
    assert profiler.average().step_s < 1.0
    assert hooks(model) == 0
    path = tmp_path / "net.json"
    profiler.save(path)
    read = read_profile(path)
    assert read.noise_scale is not None
    assert read.noise_scale.samples == pytest.approx(found.samples, rel=1e-5)
    begin = "half-way, 20 estimates from 8 batches of 8 samples"
    assert read.noise_scale.source.text.startswith(begin)
    profiler.noise_scale = None
    assert profiler.save(path, append=True).noise_scale is not None  # the file keeps its own


def test_recording_measures_noise_before_training() -> None:
    data = Data()
    built = Built(net(), "net", "a regression", input_shape=(5,))
    truth = exact(built.model, data)
    given: dict[str, Any] = {"steps": 2, "warmup": 1, "overhead_pairs": 0, "batch_sizes": (16, 8)}
    recorded = record(
        built, batch=data.batch, loss="mse_loss", accumulate=2, noise_steps=50, **given
    )
    found = recorded.profile.noise_scale
    assert found is not None
    assert found.std_error_samples is not None
    assert (found.batch_size, found.steps) == (4, 50)
    assert abs(found.samples - truth) < 3.5 * found.std_error_samples
    assert "mse_loss, data of batch, initial parameters of net" in found.source.text
    assert record(built, **given).profile.noise_scale is None
    with pytest.raises(InputError, match="random data do not have the noise of your data"):
        record(built, noise_steps=2, **given)


RANK = """
import json, sys
import torch
from perfmodel.profiler import measure_noise
from tests.profiler.test_gradient_noise import Data, backward, net

rank, place, wrapped = int(sys.argv[1]), sys.argv[2], sys.argv[3] == "ddp"
torch.distributed.init_process_group("gloo", init_method="file://" + place, rank=rank, world_size=2)
model, data = net(), Data()
data.draws.manual_seed(10 + rank)
if wrapped:
    model = torch.nn.parallel.DistributedDataParallel(model)
found = measure_noise(model, backward(model, data, 8), batch_size=8, batches=1, steps=300)
print(json.dumps([found.samples, found.std_error_samples, found.batches]))
torch.distributed.destroy_process_group()
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["plain", "ddp"])
def test_workers_compare_their_gradients_before_the_all_reduce(tmp_path: Path, kind: str) -> None:
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", RANK, str(rank), str(tmp_path / "store"), kind],
            env={**os.environ, "GLOO_SOCKET_IFNAME": "lo"},
            stdout=subprocess.PIPE,
            encoding="utf-8",
        )
        for rank in range(2)
    ]
    try:
        said = [json.loads(process.communicate(timeout=120)[0]) for process in ranks]
    finally:
        for process in ranks:
            process.kill()
    assert said[0] == said[1]
    samples, error, batches = said[0]
    assert batches == 2
    truth = exact(net(), Data())
    assert error < 0.5 * truth
    assert abs(samples - truth) < 3.5 * error
