"""Measured over predicted peak of memory of networks trained on a CPU: ``python -m
benchmarks.peaks_on_cpu``.

The smallest, the median and the largest are ``tensors_over_allocated`` in
``perfmodel/predicting/memory.json``. The peak is
that of PyTorch's tracker, which counts every tensor once.
"""

from __future__ import annotations

import itertools
import statistics
import warnings
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.distributed._tools.mem_tracker import MemTracker

from perfmodel import make_job
from perfmodel.predicting.memory import memory_of
from perfmodel.profiler import Profiler
from perfmodel.results.memory import Footprint

WORDS, LENGTH = 1000, 64


class Task(NamedTuple):
    """A network, a batch of its inputs and targets, and its loss."""

    make: Callable[[], nn.Module]
    inputs: Tensor
    targets: Tensor
    loss: Callable[[Any, Tensor], Tensor] = nn.functional.cross_entropy


def images(batch: int) -> tuple[Tensor, Tensor]:
    """Return a batch of images, and their classes."""
    return torch.randn(batch, 3, 32, 32), torch.randint(0, 10, (batch,))


def words(batch: int) -> tuple[Tensor, Tensor]:
    """Return a batch of sequences, and the words to be predicted."""
    return tuple(torch.randint(0, WORDS, (batch, LENGTH)) for _ in range(2))  # type: ignore[return-value]


class Residual(nn.Module):
    """Two convolutions and what goes around them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.norm_1, self.second, self.norm_2 = (
            *(nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)),
            *(nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return the sum."""
        inner = torch.relu(self.norm_1(self.first(x)))
        return torch.relu(x + self.norm_2(self.second(inner)))


class Recurrent(nn.Module):
    """A language model with a recurrent layer."""

    def __init__(self, kind: type[nn.RNNBase]) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, 64)
        self.recurrent = kind(64, 128, batch_first=True)
        self.head = nn.Linear(128, WORDS)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits by class, then by word."""
        return self.head(self.recurrent(self.words(x))[0]).transpose(1, 2)


class Encoder(nn.Module):
    """A language model with PyTorch's encoder layers."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(
            128, 4, 512, dropout=dropout, batch_first=True, norm_first=True
        )
        self.words = nn.Embedding(WORDS, 128)
        self.blocks = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        self.head = nn.Linear(128, WORDS)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits by class, then by word."""
        return self.head(self.blocks(self.words(x))).transpose(1, 2)


def _perceptron(*widths: int, between: Callable[[], nn.Module]) -> nn.Module:
    layers: list[nn.Module] = [nn.Flatten()]
    for width, out in itertools.pairwise(widths):
        layers += [nn.Linear(width, out), between()]
    return nn.Sequential(*layers[:-1])


def _convolutions(*widths: int, size: int, inplace: bool) -> nn.Module:
    layers: list[nn.Module] = []
    for width, out in itertools.pairwise(widths):
        layers += [nn.Conv2d(width, out, size, padding="same"), nn.ReLU(inplace), nn.MaxPool2d(2)]
    pixels = (32 >> (len(widths) - 1)) ** 2
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(widths[-1] * pixels, 10))


def _residual() -> nn.Module:
    blocks = [Residual(32) for _ in range(4)]
    tail = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10)]
    return nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), *blocks, *tail)


def _regularised() -> nn.Module:
    return nn.Sequential(
        *(nn.Flatten(), nn.Linear(3072, 512), nn.GELU(), nn.Dropout(0.3), nn.LayerNorm(512)),
        *(nn.Linear(512, 512), nn.Tanh(), nn.Linear(512, 10)),
    )


NETWORKS: Mapping[str, Task] = {
    "perceptron": Task(lambda: _perceptron(3072, 1024, 1024, 10, between=nn.ReLU), *images(64)),
    "wide": Task(lambda: _perceptron(3072, 4096, 10, between=nn.SiLU), *images(8)),
    "regularised": Task(_regularised, *images(256)),
    "lenet": Task(lambda: _convolutions(3, 6, 16, size=5, inplace=False), *images(64)),
    "vgg": Task(lambda: _convolutions(3, 32, 64, 64, size=3, inplace=True), *images(64)),
    "resnet": Task(_residual, *images(32)),
    "lstm": Task(lambda: Recurrent(nn.LSTM), *words(16)),
    "gru": Task(lambda: Recurrent(nn.GRU), *words(16)),
    "encoder": Task(lambda: Encoder(0.0), *words(16)),
    "encoder with dropout": Task(lambda: Encoder(0.1), *words(16)),
}


def peaks(task: Task, optimizer: str) -> tuple[float, Footprint]:
    """Train a network; return the measured peak (bytes), and what its profile predicts."""
    model = task.make()
    update = getattr(torch.optim, optimizer)(model.parameters(), lr=0.001)

    def step() -> None:
        update.zero_grad()
        task.loss(model(task.inputs), task.targets).backward()
        update.step()

    profiler = Profiler(model, update, batch_size=len(task.inputs), steps=2, warmup=1)
    with profiler:
        while not profiler.done:
            step()
            profiler.step()
    tracker = MemTracker()
    tracker.track_external(model, update, task.inputs, task.targets)
    with tracker:
        step()
    (peak,) = tracker.get_tracker_snapshot("peak").values()
    work = make_job(
        workload=profiler.profile(), batch_size=len(task.inputs), arch="allreduce", workers=1
    )
    return float(peak["Total"]), memory_of(work).worker


def main() -> None:
    """Print measured over predicted memory of each network, and their range."""
    warnings.filterwarnings("ignore")
    ratios = []
    for name, task in NETWORKS.items():
        for optimizer in ("SGD", "Adam"):
            measured, predicted = peaks(task, optimizer)
            ratios.append(measured / predicted.allocated_bytes)
            print(
                f"{name:22} {optimizer:5} {measured / 1e6:8.2f} MB, {ratios[-1]:.3f} of predicted"
            )
    print(f"{min(ratios):.3f} to {max(ratios):.3f}, median {statistics.median(ratios):.3f}")


if __name__ == "__main__":
    main()
