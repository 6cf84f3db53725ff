"""Grids and bisection on a logarithmic scale, for variables that may be integers."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from perfmodel.base.arrays import Floats

BISECTIONS = 60
"""Most halvings of an interval."""


def spaced(low: float, high: float, count: int, step: int) -> Floats:
    """Values at equal ratios; multiples of ``step`` if that is not 0, each once."""
    values = np.geomspace(low, high, count)
    return np.unique(np.maximum(np.rint(values / step), 1.0) * step) if step else values


def bisected(
    inside: float,
    outside: float,
    holds: Callable[[float], bool],
    step: int,
    halvings: int = BISECTIONS,
) -> tuple[float, float]:
    """Bisect on a logarithmic scale a condition that holds at ``inside`` but not at ``outside``,
    which may be the larger or the smaller value; on multiples of ``step`` if that is not 0.

    Return both ends of the last interval: where the condition holds, and where it does not.
    :func:`scipy.optimize.brentq` does not apply: the index of the longest phase is not continuous,
    and workers and batch sizes are integers.

    >>> bisected(64.0, 1.0, lambda value: value > 10.0, 1)
    (11.0, 10.0)
    """
    for _ in range(halvings):
        if step and abs(outside - inside) <= step:
            break
        middle = math.sqrt(inside * outside)
        middle = float(round(middle / step) * step) if step else middle
        if holds(middle):
            inside = middle
        else:
            outside = middle
    return inside, outside
