"""Helpers for the columns of a graph under construction: offsets of groups, and distinct rows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.arrays import Ids, Refs, ranked


def offsets(counts: NDArray[np.generic]) -> Refs:
    """Return the first index of each group of ``counts`` elements, and the total, (groups + 1,)."""
    first = np.zeros(len(counts) + 1, np.int32)
    np.cumsum(counts, out=first[1:])
    return first


def distinct_rows(columns: Sequence[NDArray[np.generic]]) -> tuple[Ids, Ids]:
    """Return each row's index among the distinct rows, (rows,), and one row of each kind,
    (kinds,)."""
    kind = np.zeros(len(columns[0]), np.int64)
    varying = [values for values in columns if len(values) and (values != values[0]).any()]
    if len(kind) and not varying:
        return kind, np.zeros(1, np.int64)
    for values in varying:
        codes, _ = ranked(values)
        kind, _ = ranked(kind * (codes.max() + 1) + codes)
    return ranked(kind)
