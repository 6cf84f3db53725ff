"""Grids and bisection on a logarithmic scale, for variables that may be integers."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from perfmodel.base.arrays import Floats

BISECTIONS = 60
"""Halvings of the interval around a crossover."""


def spaced(low: float, high: float, count: int, step: int) -> Floats:
    """Values at equal ratios; multiples of ``step`` if that is not 0, each once."""
    values = np.geomspace(low, high, count)
    return np.unique(np.maximum(np.rint(values / step), 1.0) * step) if step else values


def bisected(low: float, high: float, holds: Callable[[Floats], bool], step: int) -> float:
    """Bisect on a logarithmic scale a condition that holds at ``low`` but not at ``high``; on
    multiples of ``step`` if that is not 0.

    Return the upper end of the last interval, where the condition does not hold.
    :func:`scipy.optimize.brentq` does not apply: the index of the longest phase is not continuous,
    and workers and batch sizes are integers.
    """
    for _ in range(BISECTIONS):
        if step and high - low <= step:
            break
        middle = math.sqrt(low * high)
        middle = float(round(middle / step) * step) if step else middle
        if holds(np.array([middle])):
            low = middle
        else:
            high = middle
    return high
