"""Prediction errors by measure and group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

MEASURES: Mapping[str, bool] = {
    "step_s": True,
    "samples_per_s": True,
    "idle_fraction": False,
    "staleness_mean": False,
}
"""Compared measures, and whether their error is relative to the measured value. Otherwise it is a
difference, in fractions of time or in updates."""


class Score(msgspec.Struct, frozen=True):
    """A measured value and its prediction, with the 90 % interval if there is one."""

    predicted: float
    measured: float
    relative: bool
    interval: tuple[float, float] | None = None

    @property
    def error(self) -> float:
        """Signed error: positive if the prediction is too high."""
        difference = self.predicted - self.measured
        return difference / self.measured if self.relative else difference

    @property
    def inside(self) -> bool | None:
        """Whether the interval contains the measured value; None without an interval."""
        if self.interval is None:
            return None
        low, high = self.interval
        return low <= self.measured <= high


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """Errors of ``n`` predictions: median, 90th percentile and worst of the absolute errors, and
    the mean of the signed errors (bias)."""

    n: int
    median: float
    p90: float
    worst: float
    bias: float


def summarise(errors: Sequence[float]) -> Summary:
    """Summarise signed errors.

    >>> summarise([0.25, -0.5])
    Summary(n=2, median=0.375, p90=0.475, worst=0.5, bias=-0.125)
    """
    sizes = np.abs(errors)
    return Summary(
        n=len(errors),
        median=float(np.median(sizes)),
        p90=float(np.quantile(sizes, 0.9)),
        worst=float(sizes.max()),
        bias=float(np.mean(errors)),
    )
