"""Errors of predictions by measure and group."""

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
"""Compared measures, and whether the error is relative to the measured value; otherwise it is a
difference: of fractions of time, or of updates."""


class Score(msgspec.Struct, frozen=True):
    """A measured value and its prediction, with the interval of 90 % where it has one."""

    predicted: float
    measured: float
    relative: bool
    interval: tuple[float, float] | None = None

    @property
    def error(self) -> float:
        """Signed: positive where the prediction is too high."""
        difference = self.predicted - self.measured
        return difference / self.measured if self.relative else difference

    @property
    def inside(self) -> bool | None:
        """Whether the measured value is in the interval; None without one."""
        if self.interval is None:
            return None
        low, high = self.interval
        return low <= self.measured <= high


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """Errors of ``n`` predictions: median, 90th percentile and worst of their sizes, and the mean
    of the errors themselves (bias)."""

    n: int
    median: float
    p90: float
    worst: float
    bias: float


def summarise(errors: Sequence[float]) -> Summary:
    """The distribution of signed errors.

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
