"""Cycles: the order of places whose slowest step is fastest, and the longest way along one."""

from __future__ import annotations

import itertools

import numpy as np
from numpy.typing import NDArray

MOST_TRIED = 8
"""Places up to which all orders are tried, 5040 of them."""


def best_cycle(per_byte_s: NDArray[np.float64], latency_s: NDArray[np.float64]) -> list[int]:
    """The order in which a cycle visits all places, beginning with place 0.

    ``per_byte_s`` and ``latency_s`` (places, places) are those of the step from one place to
    another. The best order has the least ``per_byte_s`` of its slowest step; of equal ones that
    with the least greatest latency, then the first in lexical order. It is found by trial of all
    orders for up to :data:`MOST_TRIED` places. For more, the cycle goes from place to the nearest
    that is left, from each place in turn, and the best of these cycles counts.

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
    found: list[int] = orders[np.lexsort((longest, slowest))[0]].tolist()
    first = found.index(0)
    return found[first:] + found[:first]


def _nearest_next(
    per_byte_s: NDArray[np.float64], latency_s: NDArray[np.float64], start: int
) -> list[int]:
    """A cycle from ``start`` that always goes on to the nearest place that is left."""
    order, left = [start], set(range(len(per_byte_s))) - {start}
    while left:
        here = order[-1]
        order.append(min(left, key=lambda k: (per_byte_s[here, k], latency_s[here, k], k)))
        left.remove(order[-1])
    return order


def most_along(step_s: NDArray[np.float64], steps: int) -> float:
    """The most that so many consecutive steps round a cycle take; ``step_s`` (places,) is that of
    each.

    >>> most_along(np.array([1.0, 0.0, 5.0, 0.0]), 2)
    5.0
    >>> most_along(np.array([1.0, 0.0, 5.0, 0.0]), 7)
    12.0
    """
    rounds, rest = divmod(steps, len(step_s))
    passed = np.concatenate([[0.0], np.cumsum(np.concatenate([step_s, step_s]))])
    windows = passed[rest : rest + len(step_s)] - passed[: len(step_s)]
    return rounds * float(step_s.sum()) + float(windows.max())
