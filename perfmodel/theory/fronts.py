"""The largest of many linear functions, and which of them can be the largest at all."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.quantities import Quantity

Lines = NDArray[np.float64]
"""Coefficients of linear functions, (lines, quantities)."""

DIRECTIONS, DECADES = 300, 2.0
"""Number of points at which the largest line is looked for; their range, in decades around 1."""

ROUNDING = 1e-14
"""Fraction of the largest coefficient by which a dropped line may exceed those that cover it."""


def needed(lines: Lines) -> Lines:
    r"""Drop the lines that are never the only largest one, for non-negative quantities.

    A line is dropped if another line, or a mixture of two others, has no smaller coefficient:

    .. math:: \lambda a + (1 - \lambda) b \ge c, \quad 0 \le \lambda \le 1

    With two quantities this drops all unneeded lines, with more quantities most of them.

    >>> needed(np.array([[0.0, 4.0], [1.0, 1.0], [4.0, 0.0], [3.0, 3.0]])).tolist()
    [[0.0, 4.0], [3.0, 3.0], [4.0, 0.0]]
    """
    lines = np.unique(lines, axis=0)
    below = np.all(lines[:, None, :] >= lines[None, :, :], axis=2)
    np.fill_diagonal(below, False)
    lines = lines[~below.any(0)]
    if len(lines) < 3:
        return lines
    most = lines.max(0)
    at = lines @ (_points(lines.shape[1]) / np.where(most > 0.0, most, 1.0)).T
    kept = np.zeros(len(lines), bool)
    kept[at.argmax(0)] = True
    lowered = lines - ROUNDING * most
    kept[~kept] = ~_covered(lowered[~kept], lines[kept])
    for i in np.flatnonzero(kept).tolist():
        kept[i] = False
        kept[i] = not _covered(lowered[i : i + 1], lines[kept])[0]
    largest_lines: Lines = lines[kept]
    return largest_lines


@functools.cache
def _points(size: int) -> Lines:
    """Return points in all directions, (points, quantities)."""
    generator = np.random.default_rng(0)
    return 10.0 ** generator.uniform(-DECADES, DECADES, (DIRECTIONS, size))


def _covered(lines: Lines, by: Lines) -> NDArray[np.bool_]:
    """Return for each line whether a mixture of two lines in ``by`` has no smaller coefficient."""
    above = by[None, :, :] - lines[:, None, :]
    first, second = above[:, :, None, :], above[:, None, :, :]
    steeper = first - second
    with np.errstate(divide="ignore", invalid="ignore"):
        crossing = -second / steeper
    low = np.where(steeper > 0.0, crossing, 0.0).max(3)
    high = np.where(steeper < 0.0, crossing, 1.0).min(3)
    never = ((steeper == 0.0) & (second < 0.0)).any(3)
    covered = (np.maximum(low, 0.0) <= np.minimum(high, 1.0)) & ~never
    result: NDArray[np.bool_] = covered.any((1, 2))
    return result


def largest(lines: Sequence[Lines], values: Sequence[Quantity]) -> list[Quantity]:
    """Return the largest line of each set at ``values``: floats or arrays that broadcast.

    >>> lines = np.array([[0.0, 4.0], [3.0, 3.0]]), np.array([[1.0, 1.0]])
    >>> [found.tolist() for found in largest(lines, [1.0, np.array([1.0, 5.0])])]
    [[6.0, 20.0], [2.0, 6.0]]
    """
    shape = np.broadcast_shapes(*(np.shape(value) for value in values))
    points = np.empty((len(values), *shape))
    for k, value in enumerate(values):
        points[k] = value
    at = np.concatenate(lines) @ points.reshape(len(values), -1)
    ends = np.cumsum([len(group) for group in lines]).tolist()
    return [
        np.max(at[end - len(group) : end], axis=0).reshape(shape)
        for group, end in zip(lines, ends, strict=True)
    ]
