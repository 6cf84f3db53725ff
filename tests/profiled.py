"""Modules with known durations, on a clock that only they advance. Needs PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from perfmodel.profiler.averages import Average
from perfmodel.profiler.clocks import CpuClock
from perfmodel.profiler.profiler import Profiler

torch = pytest.importorskip("torch", reason="the profiler measures PyTorch models")

SAMPLES = 4


class Time:
    """A clock in nanoseconds that only advances on request."""

    def __init__(self, per_mark_s: float = 0.0) -> None:
        self.now_ns = 0
        self.per_mark_ns = round(per_mark_s * 1e9)

    def spend(self, seconds: float) -> None:
        self.now_ns += round(seconds * 1e9)

    def mark(self) -> int:
        self.now_ns += self.per_mark_ns
        return self.now_ns

    @property
    def clock(self) -> CpuClock:
        return CpuClock(self.mark)


class _Spend(torch.autograd.Function):
    """Identity that takes time in both directions."""

    @staticmethod
    def forward(context: Any, x: Any, time: Time, forward_s: float, backward_s: float) -> Any:
        context.time, context.backward_s = time, backward_s
        time.spend(forward_s)
        return x.view_as(x)

    @staticmethod
    def backward(context: Any, gradient: Any) -> Any:
        context.time.spend(context.backward_s)
        return gradient, None, None, None


class Wait(torch.nn.Module):
    """Takes time; has no parameters."""

    def __init__(self, time: Time, forward_s: float, backward_s: float) -> None:
        super().__init__()
        self.time, self.forward_s, self.backward_s = time, forward_s, backward_s

    def forward(self, x: Any) -> Any:
        return _Spend.apply(x, self.time, self.forward_s, self.backward_s)


class Work(Wait):
    """Takes time and has a parameter of three numbers, whose gradient is ready afterwards."""

    def __init__(self, time: Time, forward_s: float, backward_s: float) -> None:
        super().__init__(time, forward_s, backward_s)
        self.weight = torch.nn.Parameter(torch.ones(3))

    def forward(self, x: Any) -> Any:
        return super().forward(x * self.weight)


def inputs(samples: int = SAMPLES) -> Any:
    return torch.ones(samples, 3, requires_grad=True)


def sgd(model: Any, time: Time, update_s: float = 0.0) -> Any:
    """An optimiser whose update takes a given time."""
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=1e-3)
    optimizer.register_step_post_hook(lambda *_: time.spend(update_s))
    return optimizer


def trained(
    model: Any,
    time: Time,
    step: Callable[[Any], None] | None = None,
    *,
    iterations: int = 4,
    update_s: float = 0.0,
    **given: Any,
) -> Profiler:
    """A model trained under a profiler; ``step`` is a step without the update."""
    optimizer = sgd(model, time, update_s)
    given = {"warmup": 1, "clock": time.clock} | given
    with Profiler(model, optimizer, **given) as profiler:
        for _ in range(iterations):
            if step is not None:
                step(profiler)
            else:
                model(inputs()).sum().backward()
            optimizer.step()
            profiler.step()
    return profiler


def all_parts_s(average: Average) -> float:
    """All parts of an average step."""
    passes = sum(average.forward_s) + sum(average.backward_s)
    rest = average.optimizer_s + average.loading_s + average.copy_s
    return passes + rest + average.all_other_s


def hooks(model: Any) -> int:
    """How many hooks there are on the modules and parameters of a model."""
    count = 0
    for module in model.modules():
        count += len(module._forward_pre_hooks) + len(module._forward_hooks)
    for parameter in model.parameters():
        count += len(parameter._post_accumulate_grad_hooks or ())
        count += len(parameter._backward_hooks or ())
    return count
