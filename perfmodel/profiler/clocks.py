"""Clocks: marks of moments, of the host or in the stream of a CUDA device, read later.

A step is divided into parts by marks. Taking one must be cheap, so marks are read only after the
step: on a CUDA device the work is queued, and waiting for it would stall the queue.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from perfmodel.base.pytorch import import_torch


class Clock(Protocol):
    """Takes marks, and reads them once they have passed."""

    @property
    def mark(self) -> Callable[[], Any]:
        """Function that takes a mark of the current moment; called by hooks."""

    def passed(self, mark: Any) -> bool:
        """Whether a mark can be read without waiting."""

    def seconds(self, marks: Sequence[Any]) -> list[float]:
        """Seconds of each mark since the first; waits for the last. The marks are recycled."""

    def finish(self) -> None:
        """Wait for all the work that was given to the device."""


class CpuClock:
    """The host's clock, in whole nanoseconds."""

    def __init__(self, now_ns: Callable[[], int] = time.perf_counter_ns) -> None:
        self.mark = now_ns

    def passed(self, mark: int) -> bool:
        """Always true on the host."""
        return True

    def seconds(self, marks: Sequence[int]) -> list[float]:
        """Seconds of each mark since the first."""
        return [(mark - marks[0]) * 1e-9 for mark in marks]

    def finish(self) -> None:
        """Nothing to wait for."""


class CudaClock:
    """Events in the current stream of a CUDA device; events that were read are used again.

    Their resolution is about half a microsecond (documentation of cudaEventElapsedTime). Work in
    other streams shows only as far as the current one waits for it.
    """

    def __init__(self, device: Any, cuda: Any = None) -> None:
        self._device = device
        self._cuda = import_torch().cuda if cuda is None else cuda
        self._free: list[Any] = []

    def mark(self) -> Any:
        """Record an event."""
        event = self._free.pop() if self._free else self._cuda.Event(enable_timing=True)
        event.record()
        return event

    def passed(self, mark: Any) -> bool:
        """Whether the device has reached the event."""
        return bool(mark.query())

    def seconds(self, marks: Sequence[Any]) -> list[float]:
        """Seconds of each event since the first; waits for the last."""
        marks[-1].synchronize()
        found = [marks[0].elapsed_time(mark) * 1e-3 for mark in marks]
        self._free.extend(marks)
        return found

    def finish(self) -> None:
        """Wait for the device."""
        self._cuda.synchronize(self._device)


def clock_for(device: Any) -> Clock:
    """The clock of a ``torch.device``."""
    return CudaClock(device) if device.type == "cuda" else CpuClock()
