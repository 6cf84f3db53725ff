"""Cycles through places: the one whose slowest step is fastest, and the longest stretch of one."""

from __future__ import annotations

import itertools

import numpy as np
from numpy.typing import NDArray

MOST_TRIED = 8
"""Number of places up to which all orders are tried, at most 5040."""


def best_cycle(per_byte_s: NDArray[np.float64], latency_s: NDArray[np.float64]) -> list[int]:
    """Return the best order in which a cycle visits all places, beginning with place 0.

    ``per_byte_s`` and ``latency_s`` (places, places) belong to the step from one place to another.
    The best order has the smallest ``per_byte_s`` of its slowest step; ties are broken by the
    smallest maximum latency, then by lexical order. All orders are tried for up to
    :data:`MOST_TRIED` places. For more, the result is the best of the greedy cycles, which start at
    each place in turn and always go to the nearest place left.

    >>> slow = np.array([[0.0, 1.0, 9.0, 1.0], [1.0, 0.0, 1.0, 9.0]] * 2)
    >>> best_cycle(slow, np.zeros((4, 4)))
    [0, 1, 2, 3]
    >>> best_cycle(slow[:, [0, 2, 1, 3]][[0, 2, 1, 3]], np.zeros((4, 4)))
    [0, 2, 1, 3]
    """
    count = len(per_byte_s)
    if count <= MOST_TRIED:
        orders = np.array([(0, *rest) for rest in itertools.permutations(range(1, count))])
    else:
        orders = np.array([_nearest_next(per_byte_s, latency_s, start) for start in range(count)])
    following = np.roll(orders, -1, axis=1)
    slowest = per_byte_s[orders, following].max(axis=1)
    longest = latency_s[orders, following].max(axis=1)
    order: list[int] = orders[np.lexsort((longest, slowest))[0]].tolist()
    first = order.index(0)
    return order[first:] + order[:first]


def _nearest_next(
    per_byte_s: NDArray[np.float64], latency_s: NDArray[np.float64], start: int
) -> list[int]:
    """Return the greedy cycle from ``start``, which always goes to the nearest place left."""
    order, left = [start], set(range(len(per_byte_s))) - {start}
    while left:
        last = order[-1]
        order.append(min(left, key=lambda k: (per_byte_s[last, k], latency_s[last, k], k)))
        left.remove(order[-1])
    return order


def most_along(step_s: NDArray[np.float64], steps: int) -> float:
    """Return the most time that ``steps`` consecutive steps of a cycle take; ``step_s`` (places,)
    is the time of each.

    >>> most_along(np.array([1.0, 0.0, 5.0, 0.0]), 2)
    5.0
    >>> most_along(np.array([1.0, 0.0, 5.0, 0.0]), 7)
    12.0
    """
    rounds, rest = divmod(steps, len(step_s))
    passed = np.concatenate([[0.0], np.cumsum(np.concatenate([step_s, step_s]))])
    windows = passed[rest : rest + len(step_s)] - passed[: len(step_s)]
    return rounds * float(step_s.sum()) + float(windows.max())
