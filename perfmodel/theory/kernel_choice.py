"""How much longer a product takes with the kernel that a library chooses than with the best tile.

Libraries choose by rules of their own, which neither the tiles nor the waves of a product explain.
What is left after these depends on how many waves the result is, and on the depth of the sum: the
factor is bilinear between the points of a grid, and constant beyond it.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from perfmodel.base.arrays import Floats
from perfmodel.base.quantities import Quantity, is_symbol, maximum, minimum, octaves

Choice = tuple[tuple[float, ...], ...]
"""Factors at the points of :data:`WAVES` (rows) and :data:`DEPTHS` (columns); empty for none."""


class OctaveAxis(NamedTuple):
    """Points at equal distances in octaves (:func:`perfmodel.base.quantities.octaves`).

    Attributes
    ----------
    first : the first point, in octaves.
    distance : of two points, in octaves.
    points : their number.
    """

    first: float
    distance: float
    points: int

    def place(self, value: Quantity) -> Quantity:
        """Return where a value is, from 0 at the first to ``points`` - 1 at the last point."""
        place = (octaves(value) - self.first) / self.distance
        return minimum(maximum(place, 0.0), self.points - 1.0)


WAVES = OctaveAxis(-4.0, 0.5, 19)
"""Tiles of 256 x 128 that the result would fill, over multiprocessors: 1/16 to 32."""

DEPTHS = OctaveAxis(6.0, 2.0, 6)
"""Terms of the sum, k: 64 to 65,536."""


def chosen(choice: Choice, waves: Quantity, depth: Quantity) -> Quantity:
    """Return the factor of products of ``waves`` and ``depth``.

    >>> grid = ((1.5,) * 6,) * 19
    >>> chosen(grid, 1.0, 4096.0), chosen(grid, 1e-9, 1.0)
    (1.5, 1.5)
    """
    i, j = WAVES.place(waves), DEPTHS.place(depth)
    if is_symbol(i) or is_symbol(j):
        return _of_symbols(choice, i, j)
    if isinstance(i, np.ndarray) or isinstance(j, np.ndarray):
        row, column = np.floor(i), np.floor(j)
        at = (row * (DEPTHS.points + 1) + column).astype(np.int64)
        return _bilinear([part[at] for part in _of_arrays(choice)], i - row, j - column)
    index = math.floor(i) * (DEPTHS.points + 1) + math.floor(j)
    return _bilinear([part[index] for part in _of_numbers(choice)], i % 1.0, j % 1.0)


def _bilinear(parts: Sequence[Quantity], along: Quantity, across: Quantity) -> Quantity:
    level, of_row, of_column, of_both = parts
    return level + along * of_row + across * (of_column + along * of_both)


def weights(waves: Floats, depth: Floats) -> Floats:
    """Return the weights of all points of the grid, (values, points), for arrays of values."""
    i, j = (_hats(axis, axis.place(value)) for axis, value in ((WAVES, waves), (DEPTHS, depth)))
    return (i[:, :, None] * j[:, None, :]).reshape(len(i), -1)


def _hats(axis: OctaveAxis, place: Quantity) -> Floats:
    return np.maximum(0.0, 1.0 - np.abs(np.asarray(place)[:, None] - np.arange(axis.points)))


@functools.lru_cache(maxsize=64)
def _of_numbers(choice: Choice) -> list[list[float]]:
    return [part.tolist() for part in _of_arrays(choice)]


@functools.lru_cache(maxsize=64)
def _of_arrays(choice: Choice) -> list[Floats]:
    """Return the factors, and their differences to the next row, to the next column, and of both,
    with a row and a column more, row by row."""
    table = np.pad(np.array(choice), ((0, 1), (0, 1)), mode="edge")
    of_row, of_column = (np.zeros_like(table) for _ in range(2))
    of_both = np.zeros_like(table)
    of_row[:-1] = np.diff(table, axis=0)
    of_column[:, :-1] = np.diff(table, axis=1)
    of_both[:-1] = np.diff(of_column, axis=0)
    return [part.ravel() for part in (table, of_row, of_column, of_both)]


def _of_symbols(choice: Choice, i: Quantity, j: Quantity) -> Quantity:
    rows = [sum(_weighted(row, j)) for row in choice]
    return sum(_weighted(rows, i))


def _weighted(values: Sequence[Quantity], place: Quantity) -> list[Quantity]:
    """Return values times the weights that they have at a place."""
    hats = [
        maximum(0.0, minimum(1.0 - (place - at), 1.0 + (place - at))) for at in range(len(values))
    ]
    return [value * hat for value, hat in zip(values, hats, strict=True)]
