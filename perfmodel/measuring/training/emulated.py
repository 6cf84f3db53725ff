"""An emulated accelerator: each layer waits for its time in the workload, without computing."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from perfmodel.architectures.parts.workers import PREFETCH
from perfmodel.base.errors import InputError
from perfmodel.inputs.job import Jitter
from perfmodel.inputs.workload import Workload, expanded

Array = NDArray[np.float32]
Clock = Callable[[], float]
Sleep = Callable[[float], None]

ELEMENT_BYTES = 4
"""Gradients are float32."""


class Exchange(Protocol):
    """Exchange of a layer's gradients and parameters."""

    def wait(self, layer: int) -> float:
        """Wait for the layer's parameters; return when they arrived, on the device's clock."""

    def push(self, layer: int, gradient: Array) -> None:
        """Send the layer's gradient: all its tensors in one array, which is not copied."""


class EmulatedDevice:
    """An accelerator that is busy from deadline to deadline.

    Work starts when the previous work has ended and its inputs are available, not when this process
    is scheduled. So late wake-ups delay the next event, but do not accumulate.
    """

    def __init__(self, clock: Clock = time.monotonic, sleep: Sleep = time.sleep) -> None:
        self.clock, self._sleep = clock, sleep
        self.free_s = clock()
        self.busy_s = 0.0

    def begin(self) -> None:
        """Restart the clock: the device was idle until now."""
        self.free_s = max(self.free_s, self.clock())

    def compute(self, seconds: float, ready_s: float = -math.inf) -> None:
        """Wait for work of ``seconds`` whose inputs were available at ``ready_s``."""
        self.free_s = max(self.free_s, ready_s) + seconds
        self.busy_s += seconds
        self.wait_until(self.free_s)

    def wait_until(self, deadline_s: float) -> None:
        """Sleep at least until the deadline."""
        while (left := deadline_s - self.clock()) > 0.0:
            self._sleep(left)


def check_jitter(jitter: Jitter) -> None:
    """Raise InputError for jitter that cannot be emulated.

    Raises
    ------
    InputError : it is neither lognormal nor gamma, or does not apply to whole iterations.
    """
    if jitter.scope != "iteration" or jitter.kind not in ("lognormal", "gamma"):
        raise InputError(
            f"jitter: cannot emulate {jitter.kind} with scope {jitter.scope} "
            "(allowed: lognormal or gamma with one factor per iteration, such as lognormal:0.1)"
        )


def factors(jitter: Jitter, seed: int, worker: int) -> Iterator[float]:
    """Yield random factors of mean 1 on a worker's computing time, one per iteration."""
    check_jitter(jitter)
    random = np.random.default_rng([seed, worker])
    variance = jitter.cv**2
    sigma = math.sqrt(math.log1p(variance))
    while True:
        if variance == 0.0:
            yield 1.0
        elif jitter.kind == "gamma":
            yield float(random.gamma(1.0 / variance, variance))
        else:
            yield float(random.lognormal(-0.5 * sigma**2, sigma))


class EmulatedLoader:
    """A data loader that prefetches batches one after another, ``seconds`` each."""

    def __init__(self, seconds: float, start_s: float) -> None:
        self._seconds, self._loaded_s = seconds, start_s
        self._begun: list[float] = []

    def ready_s(self) -> float:
        """Return when the next batch is available."""
        if self._seconds == 0.0:
            return -math.inf
        room_s = self._begun[-PREFETCH] if len(self._begun) >= PREFETCH else -math.inf
        self._loaded_s = max(self._loaded_s, room_s) + self._seconds
        return self._loaded_s

    def begun(self, at_s: float) -> None:
        """Record that the worker took a batch for its first layer at ``at_s``."""
        self._begun.append(at_s)


class EmulatedModel:
    """A workload's emulated layers, trained with a parameter server."""

    def __init__(
        self, workload: Workload, jitter: Jitter, seed: int, worker: int, device: EmulatedDevice
    ) -> None:
        self.device = device
        self.layers = expanded(workload).layers
        self._factors = factors(jitter, seed, worker)
        self._loader = EmulatedLoader(workload.data_loading_s, device.clock())
        sizes = [sum(layer.tensor_bytes) for layer in self.layers]
        self._gradients = [np.zeros(elements(size), np.float32) for size in sizes]

    def iteration(self, exchange: Exchange) -> float:
        """Run forward and backward pass; return the computing time in seconds."""
        device, factor = self.device, next(self._factors)
        if device.busy_s == 0.0:
            device.begin()
        before_s, ready_s = device.busy_s, self._loader.ready_s()
        for index, layer in enumerate(self.layers):
            ready_s = max(ready_s, exchange.wait(index))
            device.compute(layer.forward_s * factor, ready_s)
            if index == 0:
                self._loader.begun(device.free_s)
        for index in reversed(range(len(self.layers))):
            device.compute(self.layers[index].backward_s * factor)
            if len(self._gradients[index]):
                exchange.push(index, self._gradients[index])
        return device.busy_s - before_s


def elements(size_bytes: float) -> int:
    """Return the number of float32 elements in ``size_bytes``."""
    return round(size_bytes / ELEMENT_BYTES)
