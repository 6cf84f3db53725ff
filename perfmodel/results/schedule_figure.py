"""The figure of a schedule."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from perfmodel.base.arrays import Ids
from perfmodel.reporting.colours import PALETTE
from perfmodel.reporting.contents import Axis, Figure, Panel, Series
from perfmodel.reporting.panels import rows, spread

WINDOWS = 100
"""Points of a figure, each of as many updates."""

MOST_BARS = 20
"""Workers with a bar, at most; spread evenly over all of them if there are more."""


def figure(stale: Ids, applied: Sequence[int], title: str) -> Figure:
    """Staleness over updates, and the gradients applied of each worker.

    Parameters
    ----------
    stale : (updates,) staleness of each.
    applied : (workers,) gradients.
    """
    drawn = spread(list(enumerate(applied)), MOST_BARS)
    names = [f"worker {worker}" for worker, _ in drawn]
    bars = rows(names, [count for _, count in drawn], "gradients applied (number)")
    if len(drawn) < len(applied):
        title_of_bars = f"{len(drawn)} of {len(applied)} workers"
        bars = msgspec.structs.replace(bars, title=title_of_bars)
    return Figure([[_staleness(stale), bars] if stale.any() else [bars]], title)


def _staleness(stale: Ids) -> Panel:
    """Staleness of consecutive updates: mean, and 10th and 90th percentiles, over their number."""
    parts = np.array_split(stale, min(len(stale), WINDOWS))
    sizes = np.array([len(part) for part in parts])
    low, high = np.array([np.percentile(part, (10, 90)) for part in parts]).T.tolist()
    mean = [float(part.mean()) for part in parts]
    updates = (np.cumsum(sizes) - sizes + sizes // 2).tolist()
    band = "10th to 90th percentile"
    line = Series("mean", updates, mean, PALETTE[0], low=low, high=high, band=band)
    y = Axis("staleness (updates)", low=0.0, high=1.05 * max(*high, *mean))
    return Panel([line], Axis("updates so far (number)", low=0.0), y)
