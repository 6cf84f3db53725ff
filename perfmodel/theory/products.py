"""Time of a matrix product on a device of many multiprocessors.

The result is divided into tiles, which the multiprocessors compute in waves. If there are fewer
tiles than multiprocessors, the sum over k is divided as well. Of several tile shapes the fastest
counts. A tile of the result is written after its operations. Fetching both matrices and writing the
result takes place at the same time: the slower one counts, smoothly. What libraries choose takes
longer than that, or less, by a factor of :mod:`perfmodel.theory.kernel_choice`.

References
----------
NVIDIA, "Matrix multiplication background user's guide", on tiles and waves; Osama et al.,
"Stream-K", 2023, arXiv 2301.03598, on parts of the sum and partly filled waves.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from perfmodel.base.quantities import Quantity, ceiling, maximum, minimum, where
from perfmodel.theory.kernel_choice import Choice, chosen

TILES = ((256, 128), (128, 256), (128, 128), (64, 64))
"""Rows and columns of the tiles that libraries choose from; the first is that of the waves of
:mod:`perfmodel.theory.kernel_choice`."""

DEPTH = 64.0
"""Multiple of k that a multiprocessor computes at a time."""

LEAST_DEPTH, MOST_PARTS = 256.0, 8.0
"""A part of the sum over k is at least as long, and there are at most so many."""

SUM_BYTES = 4.0
"""Bytes of a partial sum."""

CAST_BYTES = 3.0
"""Bytes read and written to cast a value from 16 to 8 bits."""


class ProductRates(NamedTuple):
    """What products achieve on a device at a precision.

    Attributes
    ----------
    flop_per_s : rate of whole waves of deep tiles.
    bytes_per_s : of the matrices.
    launch_s : of a product, however small.
    tile_s : of a tile, besides its operations.
    rounding : part of a wave that is not full that takes time as if it were; 1 if tiles of one wave
        do not overlap with those of the next.
    element_bytes : of a value of both matrices.
    cast_bytes_per_s : at which the first matrix is cast to 8 bits, by a kernel of its own; infinite
        if it is not.
    result_bytes : of a value of the result.
    written_bytes_per_s : at which tiles are written that were computed, by all multiprocessors.
    kernel_choice : factors of the time, see :mod:`perfmodel.theory.kernel_choice`.
    """

    flop_per_s: Quantity
    bytes_per_s: Quantity
    launch_s: Quantity
    tile_s: Quantity
    rounding: Quantity
    element_bytes: float = 2.0
    cast_bytes_per_s: Quantity | None = None
    result_bytes: float = 2.0
    written_bytes_per_s: Quantity = math.inf
    kernel_choice: Choice = ()


def product_s(
    m: Quantity,
    n: Quantity,
    k: Quantity,
    rates: ProductRates,
    multiprocessors: float,
    *,
    count: Quantity = 1.0,
    repeated_bytes: Quantity = 0.0,
) -> Quantity:
    """Return the seconds of a product of an m x k with a k x n matrix.

    A kernel computes ``count`` of them. ``repeated_bytes`` of each need not be moved, such as
    values of an image that several rows of a convolution contain.
    """
    moved = rates.element_bytes * k * (m + n) + rates.result_bytes * m * n - repeated_bytes
    most = maximum(1.0, minimum(_floor(k / LEAST_DEPTH), MOST_PARTS))
    sum_bytes, none = SUM_BYTES * m * n, 0.0 * m
    candidates: list[Quantity] = []
    for rows, columns in TILES:
        tiles = count * ceiling(m / rows) * ceiling(n / columns)
        parts = maximum(1.0, minimum(_floor(multiprocessors / tiles), most))
        depth = DEPTH * ceiling(k / parts / DEPTH)
        full = tiles * parts / multiprocessors
        waves = maximum(1.0, full + rates.rounding * (ceiling(full) - full))
        values = rows * columns * multiprocessors
        per_depth_s = 2.0 * values / rates.flop_per_s
        written_s = rates.result_bytes * values / rates.written_bytes_per_s
        busy_s = waves * (per_depth_s * depth + rates.tile_s + written_s)
        sums = where(parts > 1.0, sum_bytes * (parts + 1.0), none)
        fetch_s = count * (moved + sums) / rates.bytes_per_s
        candidates.append(fourth(busy_s) + fourth(fetch_s))
    seconds = rates.launch_s + (minimum(*candidates) ** 0.5) ** 0.5  # arrays have a fast root
    if rates.kernel_choice:
        seconds = seconds * chosen(rates.kernel_choice, waves_of(m, n, count, multiprocessors), k)
    if rates.cast_bytes_per_s is None:
        return seconds
    return seconds + rates.launch_s + count * CAST_BYTES * m * k / rates.cast_bytes_per_s


def waves_of(m: Quantity, n: Quantity, count: Quantity, multiprocessors: float) -> Quantity:
    """Return how many waves of the largest tiles the results of ``count`` products are, if tiles
    may be divided."""
    return m * n * count / (TILES[0][0] * TILES[0][1] * multiprocessors)


def _floor(value: Quantity) -> Quantity:
    return -ceiling(-value)


def fourth(value: Quantity) -> Quantity:
    """Return the fourth power; its root of a sum is a smooth maximum."""
    square = value * value
    return square * square
