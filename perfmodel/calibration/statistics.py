"""What a fit says of itself: estimates with their intervals, and what the fit misses."""

from __future__ import annotations

import msgspec


class Estimate(msgspec.Struct, frozen=True):
    """A fitted value and its 90 % interval."""

    value: float
    low: float
    high: float


class Residuals(msgspec.Struct, frozen=True):
    """Sizes of the errors of the step time, over all runs that were fitted to."""

    median: float
    p90: float
    worst: float
