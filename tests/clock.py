"""Bounds on processor time that hold on any machine: multiples of a piece of work timed there."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Iterator

ROUNDS, TRIES = 2_000_000, 3


def work_s() -> float:
    """Processor time of two million rounds of a loop in Python; the shortest of three tries."""
    return min(_once_s() for _ in range(TRIES))


def _once_s() -> float:
    begin, x = time.process_time(), 0.0
    for k in range(ROUNDS):
        x = 0.5 * x + k
    return time.process_time() - begin


@contextlib.contextmanager
def at_most(times: float) -> Iterator[None]:
    """Fail if a block takes more processor time than so many times the work."""
    begin = time.process_time()
    yield
    took_s = time.process_time() - begin
    if took_s > times * _timed_before_s():  # the machine may have become slower since
        assert took_s <= times * work_s()


@functools.cache
def _timed_before_s() -> float:
    return work_s()
