"""Array types of graphs and their measures, and the ranking of array values."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int64]
Refs = NDArray[np.int32]
"""Ids as a graph stores them."""
Floats = NDArray[np.float64]

NONE = -1
"""Marks a missing slot, link, group, counter or stream."""


def ranked(values: NDArray[np.generic]) -> tuple[Ids, Ids]:
    """Rank of each value among the distinct values, and the first index of each distinct value."""
    _, first, rank = np.unique(values, return_index=True, return_inverse=True)
    return rank, first


def quantiles(values: Floats, count: int) -> Ids:
    """Return which of ``count`` parts of about as many values each is in, (values,); equal ones are
    in one.

    >>> quantiles(np.array([1.0, 4.0, 2.0, 3.0, 1.0, 6.0]), 3).tolist()
    [0, 2, 1, 1, 0, 2]
    """
    return np.searchsorted(np.sort(values), values) * count // len(values)


def pareto_front(first: Floats, second: Floats) -> Ids:
    """Return the places of the pairs of which no other pair is less in one value and as little in
    the other, the least ``first`` first; of equal pairs one.

    >>> pareto_front(np.array([3.0, 1.0, 2.0]), np.array([1.0, 2.0, 2.5])).tolist()
    [1, 0]
    """
    order = np.lexsort((second, first))
    least = np.minimum.accumulate(second[order])
    return np.asarray(order[second[order] < np.concatenate([[np.inf], least[:-1]])], np.int64)
