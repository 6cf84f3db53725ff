"""Saved tensors of a profile against PyTorch's own tracker of memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
tracker = pytest.importorskip("torch.distributed._tools.mem_tracker")

from perfmodel.profiler import Profiler  # noqa: E402 - needs PyTorch

WORDS, WIDTH, BATCH = 200, 32, 4


class Recurrent(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(WORDS, WIDTH)
        self.recurrent = torch.nn.LSTM(WIDTH, 2 * WIDTH, batch_first=True)
        self.head = torch.nn.Linear(2 * WIDTH, WORDS)

    def forward(self, words: Any) -> Any:
        return self.head(self.recurrent(self.embedding(words))[0])


class Encoder(torch.nn.Module):
    def __init__(self, dropout: float = 0.1) -> None:
        super().__init__()
        layer = torch.nn.TransformerEncoderLayer(
            WIDTH, 4, 4 * WIDTH, dropout=dropout, batch_first=True, norm_first=True
        )
        self.embedding = torch.nn.Embedding(WORDS, WIDTH)
        self.blocks = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = torch.nn.Linear(WIDTH, WORDS)

    def forward(self, words: Any) -> Any:
        return self.head(self.blocks(self.embedding(words)))


def saved_and_tracked(model: Any) -> tuple[float, float]:
    """Bytes that a profile says are saved, and those of the tracker at the peak of a step."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loss = torch.nn.CrossEntropyLoss()
    words, labels = (torch.randint(0, WORDS, (BATCH, 64)) for _ in range(2))

    def step() -> None:
        optimizer.zero_grad()
        loss(model(words).flatten(0, 1), labels.flatten()).backward()
        optimizer.step()

    profiler = Profiler(model, optimizer, batch_size=BATCH, steps=2, warmup=1)
    with profiler:
        while not profiler.done:
            step()
            profiler.step()
    saved = BATCH * sum(layer.saved_bytes or 0.0 for layer in profiler.profile().layers)
    memory = tracker.MemTracker()
    memory.track_external(model, optimizer)
    with memory:
        step()
    (peak,) = memory.get_tracker_snapshot("peak").values()
    return saved, next(size for kind, size in peak.items() if str(kind).endswith("ACT"))


@pytest.mark.parametrize("make", [Recurrent, Encoder])
def test_saved_tensors_are_what_the_tracker_counts(make: Callable[[], Any]) -> None:
    """The tracker also counts the words, the labels and scalars of the loss."""
    saved, tracked = saved_and_tracked(make())
    assert saved == pytest.approx(tracked, rel=0.01)


def test_canary_a_network_that_keeps_less_is_seen() -> None:
    """Without masks of dropout a quarter less is kept."""
    saved, _ = saved_and_tracked(Encoder(dropout=0.0))
    _, tracked = saved_and_tracked(Encoder())
    assert saved < 0.9 * tracked
