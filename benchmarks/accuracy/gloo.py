"""Measured times of gloo's collectives, as those of a cluster."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np

from perfmodel.calibration.network.collectives import Operation, Point, fit_collective
from perfmodel.inputs.cluster import Collective, Piece
from perfmodel.theory.collective_times import per_byte_growth

OPERATIONS: tuple[Operation, ...] = ("all_reduce", "all_gather", "reduce_scatter")

STEPS = 4
"""Pieces between two measured sizes: within 2 % of a line between them on logarithmic scales, if
times grow at most with the size to the power of 1.1."""


def gloo_collectives(
    rate: float, gloo: list[dict[str, Any]], ranks: int | None = None
) -> tuple[Collective, ...]:
    """Return gloo's collectives on links of a ``rate``, from those on the links nearest to it.

    Those of so many ``ranks`` are interpolated between measured sizes, if that number was measured;
    else times are fitted over all numbers of ranks. gloo's reduce-scatter sends as much as its
    all-reduce.
    """
    if not gloo:
        return ()
    near = min(gloo, key=lambda times: abs(times["rate"] - rate))["rate"]
    tables = [times for times in gloo if times["rate"] == near]
    same = [times for times in tables if times["n_workers"] == ranks]
    return tuple(_collective(name, same[:1] or tables, near / rate) for name in OPERATIONS)


def _collective(name: Operation, tables: list[dict[str, Any]], slower: float) -> Collective:
    points = [
        Point(times["n_workers"], float(size), seconds * slower)
        for times in tables
        for size, seconds in times[name].items()
    ]
    fitted = fit_collective(name, points).collective
    if len(tables) > 1 or len(points) < 2:
        return fitted
    points.sort(key=lambda point: point.bytes)
    sizes, seconds = (np.log([getattr(point, field) for point in points])
                      for field in ("bytes", "seconds"))  # fmt: skip
    begins = np.concatenate(
        [np.linspace(a, z, STEPS, endpoint=False) for a, z in itertools.pairwise(sizes)]
    )
    middles = begins + np.diff(np.append(begins, sizes[-1])) / 2
    per_byte_s = np.exp(np.interp(middles, sizes, seconds) - middles)
    per_byte_s /= float(per_byte_growth("ring", points[0].ranks))
    above = [0.0, *(math.exp(begin) for begin in begins[1:])]
    return Collective(
        operation=name,
        pieces=tuple(
            Piece(0.0, float(each), begin) for each, begin in zip(per_byte_s, above, strict=True)
        ),
        ranks=fitted.ranks,
        bytes=fitted.bytes,
    )
