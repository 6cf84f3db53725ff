"""The layer profiler on a tiny network whose layers are known by construction."""

from __future__ import annotations

import sys
import time
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the profiler measures PyTorch models")

from perfmodel import profiler  # noqa: E402
from perfmodel.errors import InputError  # noqa: E402

BATCH = 4
SLEEP_S = 0.02


class Sleep(torch.nn.Module):
    """Parameterless; waits in the forward pass."""

    def forward(self, x: Any) -> Any:
        time.sleep(SLEEP_S)
        return x


class SleepBackward(torch.autograd.Function):
    """Identity that waits in the backward pass."""

    @staticmethod
    def forward(_context: Any, x: Any) -> Any:
        return x.view_as(x)

    @staticmethod
    def backward(_context: Any, gradient: Any) -> Any:
        time.sleep(SLEEP_S)
        return gradient


class Slow(torch.nn.Module):
    """Parameterless; waits in the backward pass."""

    def forward(self, x: Any) -> Any:
        return SleepBackward.apply(x)


def network(*after_batchnorm: Any) -> Any:
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3, padding=1),
        torch.nn.ReLU(),
        torch.nn.BatchNorm2d(8),
        *after_batchnorm,
        torch.nn.Flatten(),
        torch.nn.Linear(8 * 6 * 6, 5),
    )


def run(model: Any, **keywords: Any) -> dict[str, Any]:
    """Profile 3 steps of a model that takes images of 3 x 6 x 6; keywords change arguments."""
    arguments: dict[str, Any] = {
        "loss": torch.nn.functional.cross_entropy,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9),
        "batch_size": BATCH,
        "device_name": "test",
        "steps": 3,
        "warmup": 1,
    }
    inputs, targets = torch.randn(BATCH, 3, 6, 6), torch.randint(0, 5, (BATCH,))
    return profiler.profile(model, inputs, targets, **(arguments | keywords))


def hooks(model: Any) -> int:
    """Count the hooks on all modules and parameters of a model."""
    count = 0
    for module in model.modules():
        count += len(module._forward_pre_hooks) + len(module._forward_hooks)
    for parameter in model.parameters():
        count += len(parameter._post_accumulate_grad_hooks or ())
    return count


def test_layers_are_exact() -> None:
    model = network()
    found = profiler.layers(model, torch.randn(BATCH, 3, 6, 6))
    assert [(layer["name"], layer["kind"]) for layer in found] == [
        ("0", "conv2d"),
        ("2", "batchnorm2d"),
        ("4", "linear"),
    ]
    assert [layer["tensors"] for layer in found] == [
        [{"name": "0.weight", "bytes": 8 * 3 * 9 * 4}, {"name": "0.bias", "bytes": 8 * 4}],
        [{"name": "2.weight", "bytes": 8 * 4}, {"name": "2.bias", "bytes": 8 * 4}],
        [{"name": "4.weight", "bytes": 5 * 288 * 4}, {"name": "4.bias", "bytes": 5 * 4}],
    ]
    # two operations per multiply-add; batch normalisation two per element
    assert [layer["forward_flop"] for layer in found] == [2 * 288 * 27, 2 * 288, 2 * 288 * 5]
    # convolution and ReLU each make a tensor; the view made by Flatten costs nothing
    assert [layer["activation_bytes"] for layer in found] == [2 * 288 * 4, 288 * 4, 5 * 4]
    assert hooks(model) == 0


def test_work_in_place_needs_no_memory() -> None:
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 1), torch.nn.ReLU(inplace=True))
    (layer,) = profiler.layers(model, torch.randn(BATCH, 3, 6, 6))
    assert layer["activation_bytes"] == 8 * 6 * 6 * 4


def test_layers_leave_the_model_alone() -> None:
    model = network()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    profiler.layers(model, torch.randn(BATCH, 3, 6, 6))
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert model.training


def test_shared_and_frozen_parameters() -> None:
    class Twice(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.unused = torch.nn.Linear(6, 6)
            self.second = torch.nn.Linear(6, 6)
            self.first = torch.nn.Linear(6, 6, bias=False)
            self.tied = torch.nn.Linear(6, 6, bias=False)
            self.tied.weight = self.first.weight
            self.frozen = torch.nn.Linear(6, 6).requires_grad_(False)

        def forward(self, x: Any) -> Any:
            return self.second(self.tied(self.frozen(self.first(self.first(x)))))

    model = Twice()
    found = profiler.layers(model, torch.randn(BATCH, 6))
    assert [layer["name"] for layer in found] == ["first", "second"]  # in order of execution
    assert [len(layer["tensors"]) for layer in found] == [1, 2]
    assert found[0]["forward_flop"] == 2 * 2 * 36  # runs twice


def test_profile_has_one_value_per_layer() -> None:
    model = network()
    timing = run(model, steps=3, data_loading_s=0.5, description="a test")
    for key in ("forward_s", "forward_std_s", "backward_s", "backward_std_s"):
        assert len(timing[key]) == 3
        assert all(value >= 0.0 for value in timing[key])
    assert all(value > 0.0 for value in timing["forward_s"] + timing["backward_s"])
    assert timing["optimizer_s"] > 0.0
    assert timing["data_loading_s"] == 0.5
    assert (timing["device"], timing["precision"]) == ("test", "float32")
    assert timing["batch_size"] == BATCH
    assert timing["source"]["kind"] == "measured"
    assert timing["source"]["text"] == "a test, 3 steps after 1 warm-up steps"
    assert hooks(model) == 0
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.fixture
def waits_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the profiler see a clock that only waiting moves, so that times are exact."""
    now = [0]

    def sleep(seconds: float) -> None:
        now[0] += round(seconds * 1e9)

    monkeypatch.setattr(profiler, "time", SimpleNamespace(perf_counter_ns=lambda: now[0]))
    monkeypatch.setattr(sys.modules[__name__], "time", SimpleNamespace(sleep=sleep))


def test_waiting_belongs_to_the_layer_before_it() -> None:
    timing = run(network(Sleep(), Slow()))
    # a loaded machine only makes these longer
    assert timing["forward_s"][1] >= 0.9 * SLEEP_S
    assert timing["backward_s"][1] >= 0.9 * SLEEP_S


@pytest.mark.usefixtures("waits_only")
def test_shares_are_exact() -> None:
    timing = run(network(Sleep(), Slow()))
    assert timing["forward_s"] == pytest.approx([0.0, SLEEP_S, 0.0])
    # after the gradients of the linear layer are complete
    assert timing["backward_s"] == pytest.approx([0.0, SLEEP_S, 0.0])
    assert timing["forward_std_s"] == timing["backward_std_s"] == [0.0, 0.0, 0.0]
    assert timing["optimizer_s"] == 0.0


@pytest.mark.usefixtures("waits_only")
def test_nothing_is_lost() -> None:
    def loss(outputs: Any, targets: Any) -> Any:
        time.sleep(10 * SLEEP_S)
        return torch.nn.functional.cross_entropy(outputs, targets)

    model = torch.nn.Sequential(Sleep(), network(Sleep()), Sleep(), Slow())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    optimizer.register_step_post_hook(lambda *_: time.sleep(3 * SLEEP_S))
    timing = run(model, loss=loss, optimizer=optimizer)
    # the first layer has what comes before it, the last one what comes after it and the loss
    assert timing["forward_s"] == pytest.approx([SLEEP_S, SLEEP_S, 11 * SLEEP_S])
    assert timing["backward_s"] == pytest.approx([0.0, 0.0, SLEEP_S])
    assert timing["optimizer_s"] == pytest.approx(3 * SLEEP_S)
    parts = sum(timing["forward_s"]) + sum(timing["backward_s"]) + timing["optimizer_s"]
    whole = profiler.step_times(
        model,
        torch.randn(BATCH, 3, 6, 6),
        torch.randint(0, 5, (BATCH,)),
        loss=loss,
        optimizer=optimizer,
        steps=2,
        warmup=1,
    )
    assert whole == pytest.approx([parts, parts])


@pytest.mark.usefixtures("waits_only")
def test_branches_are_timed_by_when_their_gradients_are_ready() -> None:
    class Branches(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.left = torch.nn.Linear(108, 5)
            self.right = torch.nn.Linear(108, 5)
            self.slow = Slow()

        def forward(self, x: Any) -> Any:
            x = x.flatten(1)
            return self.slow(self.left(x)) + self.right(x)

    timing = run(Branches())
    assert timing["backward_s"] == pytest.approx([SLEEP_S, 0.0])


@pytest.mark.usefixtures("waits_only")
@pytest.mark.parametrize(("max_steps", "done"), [(None, 3), (5, 5), (50, 43)])
def test_measures_longer_when_steps_differ(max_steps: int | None, done: int) -> None:
    waits = iter([1.0, 1.0, 2.0] + 50 * [1.0])

    def loss(outputs: Any, targets: Any) -> Any:
        time.sleep(next(waits))
        return torch.nn.functional.cross_entropy(outputs, targets)

    timing = run(network(), loss=loss, warmup=0, max_steps=max_steps)
    assert timing["source"]["text"] == f"{done} steps after 0 warm-up steps"


def test_hooks_are_removed_after_an_error() -> None:
    class Failing(torch.nn.Module):
        calls = 0

        def forward(self, x: Any) -> Any:
            self.calls += 1
            if self.calls > 1:
                raise RuntimeError("second call")
            return x

    model = network(Failing())
    with pytest.raises(RuntimeError, match="second call"):
        run(model)
    assert hooks(model) == 0


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"steps": 1}, "steps"),
        ({"warmup": -1}, "warmup"),
        ({"batch_size": BATCH + 1}, "the inputs hold 4"),
    ],
)
def test_bad_numbers(keywords: dict[str, int], message: str) -> None:
    with pytest.raises(InputError, match=message):
        run(network(), **keywords)


def test_model_without_parameters() -> None:
    with pytest.raises(InputError, match="no layer"):
        profiler.layers(torch.nn.ReLU(), torch.randn(BATCH, 3))


def test_model_elsewhere() -> None:
    model = network()
    with pytest.raises(InputError, match="CPU only"):
        profiler.step_times(
            model.to("meta"),
            torch.randn(BATCH, 3, 6, 6),
            torch.zeros(BATCH),
            loss=torch.nn.functional.cross_entropy,
            optimizer=None,
        )


def test_without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(InputError, match=r"pip install 'perfmodel\[torch\]'"):
        profiler.layers(None, None)
