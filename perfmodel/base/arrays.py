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
