"""Uncertainty of a predicted step time, by origin, and the interval it gives."""

from __future__ import annotations

import math
from typing import ClassVar

from perfmodel.base.ranges import NOT_NEGATIVE, Ranged

COVERAGE = 0.9
"""Fraction of measured steps that an interval should contain."""

WIDTH = 1.6448536269514722
"""Half-width of the central :data:`COVERAGE` of a normal distribution, in standard deviations."""


WIDEST = 1e12
"""Largest factor between a prediction and an end of its interval: nothing is known beyond."""


def factor_of(spread: float) -> float:
    """Return the factor between a prediction and each end of its interval, at most :data:`WIDEST`.

    >>> round(factor_of(0.05), 4), factor_of(1e300)
    (1.0857, 1000000000000.0)
    """
    return min(math.exp(min(WIDTH * spread, 100.0)), WIDEST)


class Uncertainty(Ranged, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Independent standard deviations of the logarithm of a step time.

    Attributes
    ----------
    measurement : of repeated runs around their mean.
    calibration : from the measured or fitted inputs of the prediction.
    model : from what the model leaves out, learnt from predictions of measured runs.
    extrapolation : from being outside the calibrated range; 0 inside it.
    """

    RANGES: ClassVar = dict.fromkeys(
        ("measurement", "calibration", "model", "extrapolation"), NOT_NEGATIVE
    )

    measurement: float = 0.0
    calibration: float = 0.0
    model: float = 0.0
    extrapolation: float = 0.0

    @property
    def total(self) -> float:
        """All four combined."""
        return math.hypot(*(getattr(self, name) for name in self.__struct_fields__))

    def interval(self, value: float) -> tuple[float, float]:
        """Interval that contains the measured value in 9 of 10 cases, if ``value`` was predicted.

        Its ends are at most a factor of :data:`WIDEST` away.

        >>> low, high = Uncertainty(measurement=0.03, model=0.04).interval(1.0)
        >>> round(low, 3), round(high, 3)
        (0.921, 1.086)
        """
        factor = factor_of(self.total)
        return value / factor, value * factor
