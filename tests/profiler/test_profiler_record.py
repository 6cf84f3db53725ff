"""Recording profiles for the catalogue on a small model; the large models can be made."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the profiler measures PyTorch models")

from benchmarks import record_profiles  # noqa: E402
from perfmodel.base.errors import InputError  # noqa: E402
from perfmodel.inputs.profile import read_profile  # noqa: E402
from perfmodel.profiler import profiler, record, training  # noqa: E402
from perfmodel.profiler.layers import Inspection  # noqa: E402
from perfmodel.profiler.libraries import Built  # noqa: E402
from tests.profiled import Time, hooks  # noqa: E402

TINY = Built(torch.nn.Linear(5, 3), "tiny", "layers of a small model", input_shape=(5,))


def library(name: str) -> None:
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"{name} is not installed")


def test_recording_replaces_measured_values_and_keeps_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model = record_profiles.Model("tiny", "Tiny", (5,), ", as a test")
    monkeypatch.setattr(record_profiles, "MODELS", {"tiny": model})
    monkeypatch.setattr(record_profiles, "build", lambda spec: TINY)
    threads = torch.get_num_threads()
    arguments = ["tiny", "--steps", "2", "--warmup", "1", "--pairs", "1", "--device", "here"]
    arguments += ["--threads", "1", "--output", str(tmp_path)]
    try:
        record_profiles.main([*arguments, "--batch-size", "2", "4"])
        path = tmp_path / "tiny.json"
        first = json.loads(path.read_text(encoding="utf-8"))
        assert [t["batch_size"] for t in first["timings"]] == [2, 4]
        elsewhere = {
            "device": "there",
            "batch_size": 2,
            "samples_per_s": 5.0,
            "source": {"kind": "published", "text": "somebody"},
        }
        first["timings"].append(elsewhere)
        path.write_text(json.dumps(first), encoding="utf-8")
        record_profiles.main([*arguments, "--batch-size", "8"])
    finally:
        torch.set_num_threads(threads)
    profile = read_profile(path)
    assert [(t.device, t.batch_size) for t in profile.timings] == [("here", 8), ("there", 2)]
    assert profile.source.text == "layers of a small model, as a test"
    assert (profile.name, profile.title) == ("tiny", "Tiny")
    assert [p.name for p in tmp_path.iterdir()] == ["tiny.json"]
    assert "tiny on here, batch 8: step " in capsys.readouterr().out


def test_progress_and_batch_sizes() -> None:
    seen: list[tuple[int, int]] = []
    recorded = record(
        TINY,
        batch_sizes=(2, 4, 2),
        steps=2,
        warmup=1,
        overhead_pairs=2,
        progress=lambda done, total: seen.append((done, total)),
    )
    assert [one.timing.batch_size for one in recorded.measured] == [2, 4]
    assert seen == [(i, 14) for i in range(1, 15)]
    assert all(one.overhead is not None and one.overhead.pairs == 2 for one in recorded.measured)


@pytest.mark.parametrize(("longer_s", "steps"), [(1.0, 3), (4.0, 6)])
def test_varying_steps_are_measured_for_longer(
    longer_s: float, steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    time = Time()

    class Uneven(torch.nn.Linear):
        """Takes ``longer_s`` at every other call, else a second."""

        calls = 0

        def forward(self, x: Any) -> Any:
            self.calls += 1
            time.spend(longer_s if self.calls % 2 else 1.0)
            return super().forward(x)

    monkeypatch.setattr(profiler, "clock_for", lambda _: time.clock)
    built = Built(Uneven(5, 3), "uneven", "", input_shape=(5,))
    recorded = record(built, steps=3, max_steps=6, warmup=1, overhead_pairs=0)
    assert recorded.measured[0].average.steps == steps


def test_timings_of_another_model_cannot_be_added() -> None:
    old = record(TINY, steps=2, warmup=1, overhead_pairs=0).profile
    built = Built(torch.nn.Linear(5, 4), "wide", "", input_shape=(5,))
    with pytest.raises(InputError, match="layer 'linear' differs from this model"):
        record(built, steps=2, warmup=1, overhead_pairs=0, old=old)


def test_a_training_steps() -> None:
    """The interface that real training runs use."""
    trained = training(TINY, batch_size=4, optimizer="adamw", seed=3)
    before = trained.model.weight.detach().clone()
    loss = trained.step()
    assert loss.dim() == 0
    assert not torch.equal(before, trained.model.weight)
    batch = trained.next_batch()
    assert batch[0].shape == (4, 5)
    value = trained.compute_loss(trained.model, batch)
    assert value.requires_grad
    assert isinstance(trained.optimizer, torch.optim.AdamW)
    assert trained.batch_size == 4
    again = training(TINY, batch_size=4, seed=3)
    assert torch.equal(again.next_batch()[0], batch[0])


@pytest.mark.parametrize("name", sorted(record_profiles.MODELS))
def test_models_of_the_catalogue(name: str) -> None:
    """Every trainable tensor is in one layer. Inputs are small, since only sizes matter."""
    model = record_profiles.MODELS[name]
    library(model.spec.partition(":")[0])
    shape = (8,) if len(model.input_shape) == 1 else model.input_shape
    trained = training(model.spec, batch_size=2, input_shape=shape)
    inspection = Inspection(trained.model)
    inspection.begin()
    try:
        trained.compute_loss(trained.model, trained.next_batch()).backward()
    finally:
        inspection.end()
    layers = inspection.result().layers
    unique = {id(p): p for p in trained.model.parameters() if p.requires_grad}.values()
    sizes = {tensor: size for layer in layers for tensor, _, size in layer.parameters}
    assert sum(sizes.values()) == sum(p.numel() * p.element_size() for p in unique)
    assert len(sizes) == sum(len(layer.parameters) for layer in layers) == len(unique)
    assert hooks(trained.model) == 0
