"""Peaks of memory of networks on a CPU against PyTorch's own tracker of memory.

None of the networks is among those that the interval was learnt from.
"""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torch.distributed._tools.mem_tracker")

from torch import nn  # noqa: E402 - needs PyTorch
from torch.nn import functional  # noqa: E402

from benchmarks.peaks_on_cpu import LENGTH, WORDS, Task, images, peaks, words  # noqa: E402


class Mixer(nn.Module):
    """Products along patches, then along channels (Tolstikhin et al., 2021)."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 64, 4, stride=4)
        self.norms = nn.ModuleList(nn.LayerNorm(64) for _ in range(4))
        self.across = nn.ModuleList(nn.Linear(64, 64) for _ in range(4))
        self.head = nn.Linear(64, 10)

    def forward(self, x: Any) -> Any:
        x = self.patches(x).flatten(2).transpose(1, 2)
        for i, (norm, product) in enumerate(zip(self.norms, self.across, strict=True)):
            y = norm(x) if i % 2 else norm(x).transpose(1, 2)
            y = functional.gelu(product(y))
            x = x + (y if i % 2 else y.transpose(1, 2))
        return self.head(x.mean(1))


class Causal(nn.Module):
    """A decoder with PyTorch's attention."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, 96)
        self.blocks = nn.ModuleList(
            nn.ModuleDict(
                {
                    "norm_1": nn.LayerNorm(96),
                    "qkv": nn.Linear(96, 3 * 96),
                    "out": nn.Linear(96, 96),
                    "norm_2": nn.LayerNorm(96),
                    "mlp": nn.Sequential(nn.Linear(96, 384), nn.GELU(), nn.Linear(384, 96)),
                }
            )
            for _ in range(3)
        )
        self.head = nn.Linear(96, WORDS, bias=False)

    def forward(self, x: Any) -> Any:
        x = self.words(x)
        for block in self.blocks:
            heads = block["qkv"](block["norm_1"](x)).view(len(x), LENGTH, 3, 4, 24)
            q, k, v = heads.permute(2, 0, 3, 1, 4)
            y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + block["out"](y.transpose(1, 2).flatten(2))
            x = x + block["mlp"](block["norm_2"](x))
        return self.head(x).transpose(1, 2)


class Segmentation(nn.Module):
    """Convolutions down and up, with copies across (Ronneberger et al., 2015)."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList([nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 32, 3, padding=1)])
        self.up = nn.ConvTranspose2d(32, 16, 2, stride=2)
        self.last = nn.Conv2d(32, 10, 3, padding=1)

    def forward(self, x: Any) -> Any:
        high = torch.relu(self.down[0](x))
        low = torch.relu(self.down[1](functional.max_pool2d(high, 2)))
        return self.last(torch.cat([high, self.up(low)], dim=1))


class Recommender(nn.Module):
    """Large tables of which few rows are used (Naumov et al., 2019)."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(20_000, 16) for _ in range(4))
        self.top = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))

    def forward(self, x: Any) -> Any:
        columns = [table(x[:, i]) for i, table in enumerate(self.tables)]
        return self.top(torch.cat(columns, dim=1))


class Patches(nn.Module):
    """A vision transformer with PyTorch's attention module."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 64, 4, stride=4)
        self.norm = nn.LayerNorm(64)
        self.attention = nn.MultiheadAttention(64, 4, batch_first=True)
        self.mlp = nn.Sequential(
            nn.LayerNorm(64), nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)
        )
        self.head = nn.Linear(64, 10)

    def forward(self, x: Any) -> Any:
        x = self.patches(x).flatten(2).transpose(1, 2)
        y = self.norm(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return self.head((x + self.mlp(x)).mean(1))


class Classifier(nn.Module):
    """A recurrent network in both directions, of which the last output counts."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, 32)
        self.recurrent = nn.LSTM(32, 48, num_layers=2, bidirectional=True, batch_first=True)
        self.head = nn.Linear(96, 10)

    def forward(self, x: Any) -> Any:
        return self.head(self.recurrent(self.words(x))[0][:, -1])


def separable() -> Any:
    """Convolutions by channel, then by pixel (Howard et al., 2017)."""
    layers: list[Any] = [nn.Conv2d(3, 16, 3, padding=1)]
    for width in (16, 32, 64):
        layers += [nn.Conv2d(width, width, 3, padding=1, groups=width, bias=False)]
        layers += [nn.BatchNorm2d(width), nn.ReLU6(inplace=True), nn.Conv2d(width, 2 * width, 1)]
        layers += [nn.BatchNorm2d(2 * width), nn.ReLU6(inplace=True), nn.AvgPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(128 * 16, 10))


def autoencoder() -> Any:
    return nn.Sequential(
        *(nn.Conv2d(3, 16, 4, stride=2, padding=1), nn.SiLU(), nn.Conv2d(16, 32, 4, 2, 1)),
        *(nn.SiLU(), nn.ConvTranspose2d(32, 16, 4, 2, 1), nn.SiLU()),
        nn.ConvTranspose2d(16, 3, 4, 2, 1),
    )


def grouped() -> Any:
    layers: list[Any] = [nn.Conv2d(3, 32, 3, padding=1)]
    for _ in range(3):
        layers += [nn.GroupNorm(4, 32), nn.Mish(), nn.Conv2d(32, 32, 3, padding=1)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10))


def dropping() -> Any:
    return nn.Sequential(
        *(nn.Conv2d(3, 24, 5, padding=2), nn.ReLU(), nn.MaxPool2d(3, 2), nn.Conv2d(24, 48, 5)),
        *(nn.ReLU(), nn.Flatten(), nn.Dropout(), nn.Linear(48 * 11 * 11, 256), nn.ReLU()),
        *(nn.Dropout(), nn.Linear(256, 10)),
    )


PICTURES = images(32)
PIXELS = PICTURES[0], torch.randint(0, 10, (32, 32, 32))
ROWS = torch.randint(0, 20_000, (512, 4)), torch.randint(0, 10, (512,))
SENTENCES = words(16)

NETWORKS = {
    "mixer": Task(Mixer, *PICTURES),
    "causal": Task(Causal, *SENTENCES),
    "segmentation": Task(Segmentation, *PIXELS),
    "recommender": Task(Recommender, *ROWS),
    "patches": Task(Patches, *PICTURES),
    "classifier": Task(Classifier, SENTENCES[0], torch.randint(0, 10, (16,))),
    "separable": Task(separable, *PICTURES),
    "autoencoder": Task(autoencoder, PICTURES[0], PICTURES[0], functional.mse_loss),
    "grouped": Task(grouped, *PICTURES),
    "dropping": Task(dropping, *PICTURES),
}


@pytest.mark.parametrize("optimizer", ["SGD", "AdamW"])
@pytest.mark.parametrize("name", NETWORKS)
def test_the_interval_covers_the_measured_peak(name: str, optimizer: str) -> None:
    measured, predicted = peaks(NETWORKS[name], optimizer)
    assert predicted.reserved_bytes is not None
    assert predicted.reserved_bytes.p5 <= measured <= predicted.reserved_bytes.p95


def test_canary_a_network_of_twice_the_width_is_outside() -> None:
    """What is predicted for one network is not wide enough for another."""
    measured, _ = peaks(NETWORKS["grouped"], "SGD")
    _, predicted = peaks(Task(separable, *PICTURES), "SGD")
    assert predicted.reserved_bytes is not None
    assert not predicted.reserved_bytes.p5 <= measured <= predicted.reserved_bytes.p95
