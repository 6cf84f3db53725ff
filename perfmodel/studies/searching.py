"""Bisection on a logarithmic scale, for variables that may be integers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeVar

S = TypeVar("S")

HALVINGS = 60
"""Most halvings of an interval."""


def boundary(
    low: float,
    high: float,
    state_at: Callable[[float], S],
    first: S,
    step: int,
    halvings: int = HALVINGS,
) -> tuple[float, float]:
    """Bisect, on a logarithmic scale, where the state changes from ``first``, which it is at
    ``low``, to another one; on multiples of ``step`` if that is not 0.

    Return both ends of the last interval: the last value with the first state, and the next one.
    :func:`scipy.optimize.brentq` does not apply: states are not continuous, and workers and batch
    sizes are integers.

    >>> boundary(1.0, 64.0, lambda value: value > 10.0, False, 1)
    (10.0, 11.0)
    """
    for _ in range(halvings):
        if step and high - low <= step:
            break
        middle = math.sqrt(low * high)
        middle = float(round(middle / step) * step) if step else middle
        if state_at(middle) == first:
            low = middle
        else:
            high = middle
    return low, high
