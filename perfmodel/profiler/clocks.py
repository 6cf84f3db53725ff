"""Clocks that take time marks, on the host or in the stream of a CUDA device, and read them later.

Marks divide a step into parts. Taking a mark must be cheap, so marks are read only after the step:
work on a CUDA device is queued, and waiting for it would stall the queue.
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
        """Function that takes a mark of the current moment; hooks call it."""

    def passed(self, mark: Any) -> bool:
        """Return whether a mark can be read without waiting."""

    def seconds(self, marks: Sequence[Any]) -> list[float]:
        """Wait for the last mark, and return the seconds of each mark since the first.

        The marks are recycled.
        """

    def finish(self) -> None:
        """Wait for all work queued on the device."""


class CpuClock:
    """The host's clock, in whole nanoseconds."""

    def __init__(self, now_ns: Callable[[], int] = time.perf_counter_ns) -> None:
        self.mark = now_ns

    def passed(self, mark: int) -> bool:
        """Return True: the host never has to wait."""
        return True

    def seconds(self, marks: Sequence[int]) -> list[float]:
        """Return the seconds of each mark since the first."""
        return [(mark - marks[0]) * 1e-9 for mark in marks]

    def finish(self) -> None:
        """Do nothing: the host never has to wait."""


class CudaClock:
    """Events in the current stream of a CUDA device; events are reused once they are read.

    Their resolution is about half a microsecond (documentation of cudaEventElapsedTime). Work in
    other streams is seen only as far as the current stream waits for it.
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
        """Return whether the device has reached the event."""
        return bool(mark.query())

    def seconds(self, marks: Sequence[Any]) -> list[float]:
        """Wait for the last event, and return the seconds of each event since the first."""
        marks[-1].synchronize()
        found = [marks[0].elapsed_time(mark) * 1e-3 for mark in marks]
        self._free.extend(marks)
        return found

    def finish(self) -> None:
        """Wait for the device."""
        self._cuda.synchronize(self._device)


def clock_for(device: Any) -> Clock:
    """Return the clock for a ``torch.device``."""
    return CudaClock(device) if device.type == "cuda" else CpuClock()
