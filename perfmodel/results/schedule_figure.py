"""The figure of a schedule."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from perfmodel.base.arrays import Ids
from perfmodel.reporting.colours import PALETTE
from perfmodel.reporting.contents import Axis, Bars, Figure, Panel, Series
from perfmodel.reporting.panels import spread

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
    bars = Panel(
        marks=[
            Bars(
                name="",
                at=range(len(drawn)),
                start=[0.0] * len(drawn),
                end=[count for _, count in drawn],
                colour=PALETTE[0],
            )
        ],
        x=Axis(label="gradients applied (number)", low=0.0),
        y=Axis(names=[f"worker {worker}" for worker, _ in drawn]),
        title=f"{len(drawn)} of {len(applied)} workers" if len(drawn) < len(applied) else "",
        grid="x",
    )
    return Figure([[_staleness(stale), bars] if stale.any() else [bars]], title)


def _staleness(stale: Ids) -> Panel:
    """Staleness of consecutive updates: mean, and 10th and 90th percentiles, over their number."""
    parts = np.array_split(stale, min(len(stale), WINDOWS))
    sizes = np.array([len(part) for part in parts])
    low, high = np.array([np.percentile(part, (10, 90)) for part in parts]).T.tolist()
    mean = [float(part.mean()) for part in parts]
    line = Series(
        name="mean",
        x=(np.cumsum(sizes) - sizes + sizes // 2).tolist(),
        y=mean,
        low=low,
        high=high,
        band="10th to 90th percentile",
        colour=PALETTE[0],
    )
    return Panel(
        marks=[line],
        x=Axis(label="updates so far (number)", low=0.0),
        y=Axis(label="staleness (updates)", low=0.0, high=1.05 * max(*high, *mean)),
    )
