"""A PyTorch model whose layers wait for the times of a workload file instead of computing.

Its gradients have the sizes of the file, so it trains on a real network without an accelerator::

    WAITS=net.json WAITS_BATCH_SIZE=64 perfmodel measure training --processes 4 --arch ring \\
        --model benchmarks.waiting_model:model --input-shape 1 --batch-size 64

Without ``WAITS_BATCH_SIZE`` the times are those of the file's own batch size.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import torch

from perfmodel.catalogue import catalogue
from perfmodel.inputs.workload import Workload, expanded

ELEMENT_BYTES = 4

LATE_S = 2e-3
"""Work that starts at most this long after the previous work was due counts as started then."""


class Device:
    """A device that is busy from deadline to deadline, so that late wake-ups do not accumulate."""

    free_s = 0.0

    def wait(self, seconds: float) -> None:
        """Wait for work of ``seconds``."""
        now_s = time.monotonic()
        late = now_s - self.free_s < LATE_S
        self.free_s = (self.free_s if late else now_s) + seconds
        while (left_s := self.free_s - time.monotonic()) > 0.0:
            time.sleep(left_s)


DEVICE = Device()


class Wait(torch.autograd.Function):  # type: ignore[misc]
    """Waits in the forward and the backward pass; gradients of the weights are zeros."""

    @staticmethod
    def forward(ctx: Any, value: Any, layer: Any, *weights: Any) -> Any:
        """Wait for ``layer.forward_s`` seconds."""
        ctx.layer = layer
        DEVICE.wait(layer.forward_s)
        return value.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        """Wait for ``layer.backward_s`` seconds."""
        DEVICE.wait(ctx.layer.backward_s)
        return gradient, None, *ctx.layer.gradients


class WaitingLayer(torch.nn.Module):  # type: ignore[misc]
    """A layer with tensors of ``sizes_bytes``, in the order of the forward pass."""

    def __init__(self, forward_s: float, backward_s: float, sizes_bytes: list[float]) -> None:
        super().__init__()
        self.forward_s, self.backward_s = forward_s, backward_s
        elements = [round(size / ELEMENT_BYTES) for size in sizes_bytes]
        self.weights = torch.nn.ParameterList(torch.zeros(count) for count in elements)
        # last tensor first, as in the backward pass
        self.backwards = list(self.weights)[::-1]
        self.gradients = [torch.zeros_like(weight) for weight in self.backwards]

    def forward(self, value: Any) -> Any:
        """Wait, and return the value."""
        return Wait.apply(value, self, *self.backwards)


def waiting(workload: Workload) -> torch.nn.Sequential:
    """Return a model with the times and the tensors of a workload."""
    return torch.nn.Sequential(
        torch.nn.Linear(1, 1),  # whose output needs a gradient
        *(
            WaitingLayer(layer.forward_s, layer.backward_s, list(layer.tensor_bytes[::-1]))
            for layer in expanded(workload).layers
        ),
    )


def model() -> torch.nn.Sequential:
    """Return the model of the workload file in the variable ``WAITS``."""
    size = os.environ.get("WAITS_BATCH_SIZE")
    profile = catalogue.profile(Path(os.environ["WAITS"]))
    return waiting(catalogue.workload(profile, batch_size=int(size) if size else None))
