"""Clocks that take time marks, on the host or in the stream of a CUDA device, and read them later.

Marks divide a step into parts. Taking a mark must be cheap, so marks are read only after the step:
work on a CUDA device is queued, and waiting for it would stall the queue.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from perfmodel.foreign.pytorch import import_torch

if TYPE_CHECKING:
    import torch

M = TypeVar("M")


class Clock(Protocol[M]):
    """Takes marks, and reads them once they have passed."""

    @property
    def mark(self) -> Callable[[], M]:
        """Function that takes a mark of the current moment; hooks call it."""

    def passed(self, mark: M) -> bool:
        """Return whether a mark can be read without waiting."""

    def seconds(self, marks: Sequence[M]) -> list[float]:
        """Wait for the last mark, and return the seconds of each mark since the first.

        The marks are recycled.
        """


class CpuClock:
    """The host's clock, in whole nanoseconds; nothing ever has to wait for it."""

    def __init__(self, now_ns: Callable[[], int] = time.perf_counter_ns) -> None:
        self.mark = now_ns

    def passed(self, mark: int) -> bool:
        """Return True."""
        return True

    def seconds(self, marks: Sequence[int]) -> list[float]:
        """Return the seconds of each mark since the first."""
        return [(mark - marks[0]) * 1e-9 for mark in marks]


class CudaClock:
    """Events in the current stream of a CUDA device; events are reused once they are read.

    Their resolution is about half a microsecond (documentation of cudaEventElapsedTime). Work in
    other streams is seen only as far as the current stream waits for it.
    """

    def __init__(self, cuda: ModuleType | None = None) -> None:
        self._cuda = import_torch().cuda if cuda is None else cuda
        self._free: list[torch.cuda.Event] = []

    def mark(self) -> torch.cuda.Event:
        """Record an event."""
        event = self._free.pop() if self._free else self._cuda.Event(enable_timing=True)
        event.record()
        return event

    def passed(self, mark: torch.cuda.Event) -> bool:
        """Return whether the device has reached the event."""
        return bool(mark.query())

    def seconds(self, marks: Sequence[torch.cuda.Event]) -> list[float]:
        """Wait for the last event, and return the seconds of each event since the first."""
        marks[-1].synchronize()
        seconds = [marks[0].elapsed_time(mark) * 1e-3 for mark in marks]
        self._free.extend(marks)
        return seconds


def clock_for(device: torch.device) -> Clock[Any]:
    """Return the clock for a device."""
    return CudaClock() if device.type == "cuda" else CpuClock()
