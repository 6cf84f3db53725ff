"""Bounds on processor time that hold on any machine: multiples of a piece of work timed there."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

ROUNDS, TRIES, PARTS = 2_000_000, 3, 10


def work_s() -> float:
    """Processor time of two million rounds of a loop in Python: that of a tenth of them, the
    shortest of three tries, times ten."""
    return PARTS * min(_part_s() for _ in range(TRIES))


def _part_s() -> float:
    begin, x = time.process_time(), 0.0
    for k in range(ROUNDS // PARTS):
        x = 0.5 * x + k
    return time.process_time() - begin


@contextlib.contextmanager
def at_most(times: float) -> Iterator[None]:
    """Fail if a block takes more processor time than so many times the work."""
    begin = time.process_time()
    yield
    assert time.process_time() - begin <= times * work_s()
