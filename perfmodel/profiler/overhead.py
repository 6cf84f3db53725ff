"""Overhead of measuring, from alternating steps with and without hooks."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import NamedTuple

from perfmodel.base.errors import InputError

CONFIDENCE = 0.95
FEWEST_PAIRS = 6
"""With fewer pairs, even the range from the smallest to the largest is less than a 95 % interval of
the median."""


class Overhead(NamedTuple):
    """Relative overhead of hooks: the median of all pairs, and its interval.

    From ``FEWEST_PAIRS`` pairs on, ``low`` to ``high`` is a 95 % interval of the median from order
    statistics (David, Nagaraja, "Order Statistics", 2003, section 7.1). With fewer pairs it is the
    range.
    """

    fraction: float
    low: float
    high: float
    pairs: int

    @property
    def is_certain(self) -> bool:
        """Whether hooks surely lengthen a step: the whole interval is above zero."""
        return self.pairs >= FEWEST_PAIRS and self.low > 0.0

    def __str__(self) -> str:
        span = f"{CONFIDENCE:.0%} interval" if self.pairs >= FEWEST_PAIRS else "range"
        return (
            f"measuring adds {self.fraction:+.1%} ({span} {self.low:+.1%} to {self.high:+.1%}, "
            f"{self.pairs} pairs of steps{', taken off' if self.is_certain else ''})"
        )


def overhead(hooked_s: Sequence[float], plain_s: Sequence[float]) -> Overhead:
    """Compare steps with hooks to steps without; both are (pairs,) seconds.

    Raises
    ------
    InputError : there is no pair.
    """
    from scipy.stats import binom

    if not hooked_s:
        raise InputError("overhead: at least one pair of steps is needed")
    ratios = sorted(h / p - 1.0 for h, p in zip(hooked_s, plain_s, strict=True))
    # the median is below the pair of rank k as often as a fair coin shows at most k heads
    rank = max(0, int(binom.ppf((1.0 - CONFIDENCE) / 2.0, len(ratios), 0.5)) - 1)
    return Overhead(statistics.median(ratios), ratios[rank], ratios[-1 - rank], len(ratios))
