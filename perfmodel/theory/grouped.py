"""Time of products of groups of rows with a matrix each, such as those of experts, in one kernel.

Rows of a group fill tiles of their own. Groups that differ in size fill, on average, half a tile
more each than their rows alone; of many tiles the multiprocessors are busy to the end. Fetching all
matrices and rows takes place at the same time: the slower one counts, smoothly.
"""

from __future__ import annotations

from typing import NamedTuple

from perfmodel.base.quantities import Quantity, ceiling, maximum, minimum, where
from perfmodel.theory.products import DEPTH, fourth

TILES = ((256, 128), (128, 256), (128, 128), (64, 128), (64, 64), (32, 128), (16, 128))
"""Rows and columns of the tiles that libraries choose from."""


class GroupedRates(NamedTuple):
    """What products of groups achieve on a device at a precision.

    Attributes
    ----------
    flop_per_s : rate of full tiles.
    bytes_per_s : of the matrices.
    launch_s : of a product, with what orders the rows.
    tile_s : of a tile, besides its operations.
    element_bytes, result_bytes : of a value of the matrices, and of the result.
    """

    flop_per_s: Quantity
    bytes_per_s: Quantity
    launch_s: Quantity
    tile_s: Quantity
    element_bytes: float = 2.0
    result_bytes: float = 2.0


class RowGroups(NamedTuple):
    """Groups of rows: how many ``rows`` there are of all groups together, how many groups have
    any (``number``), and whether all have the same number (1) or not (0)."""

    rows: Quantity
    number: Quantity
    even: Quantity = 0.0


def grouped_s(
    groups: RowGroups,
    columns: Quantity,
    depth: Quantity,
    rates: GroupedRates,
    multiprocessors: float,
) -> Quantity:
    """Return the seconds of products of the rows of each group with a ``depth`` x ``columns``
    matrix.

    >>> rates = GroupedRates(flop_per_s=1e12, bytes_per_s=1e15, launch_s=0.0, tile_s=0.0)
    >>> groups = RowGroups(rows=1024.0, number=4.0, even=1.0)
    >>> round(1e3 * float(grouped_s(groups, 256.0, 512.0, rates, 4.0)), 4)
    0.2684
    """
    rows, count, even = groups
    matrices = rates.element_bytes * depth * (rows + count * columns)
    fetch_s = (matrices + rates.result_bytes * rows * columns) / rates.bytes_per_s
    steps = DEPTH * ceiling(depth / DEPTH)
    candidates: list[Quantity] = []
    for high, wide in TILES:
        full = count * ceiling(rows / count / high)
        mixed = maximum(count, rows / high + count / 2.0)
        tiles = where(even > 0.5, full, mixed) * ceiling(columns / wide)
        each_s = 2.0 * high * wide * steps * multiprocessors / rates.flop_per_s + rates.tile_s
        busy_s = maximum(1.0, tiles / multiprocessors) * each_s
        candidates.append(fourth(busy_s) + fourth(fetch_s))
    return rates.launch_s + minimum(*candidates) ** 0.25
