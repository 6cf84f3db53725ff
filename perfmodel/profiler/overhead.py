"""Overhead of measuring, from alternating steps with and without hooks."""

from __future__ import annotations

import math
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

    def __str__(self) -> str:
        span = f"{CONFIDENCE:.0%} interval" if self.pairs >= FEWEST_PAIRS else "range"
        return (
            f"measuring adds {self.fraction:+.1%} ({span} {self.low:+.1%} to {self.high:+.1%}, "
            f"{self.pairs} pairs of steps)"
        )


def overhead(hooked_s: Sequence[float], plain_s: Sequence[float]) -> Overhead:
    """Compare steps with hooks to steps without; both are (pairs,) seconds.

    Raises
    ------
    InputError : there is no pair.
    """
    if not hooked_s:
        raise InputError("overhead: at least one pair of steps is needed")
    found = sorted(h / p - 1.0 for h, p in zip(hooked_s, plain_s, strict=True))
    rank = _rank(len(found))
    return Overhead(statistics.median(found), found[rank], found[-1 - rank], len(found))


def _rank(pairs: int) -> int:
    """Return the rank, from either end, of the pairs that bound the interval; 0 is the outermost.

    The median lies below the pair of rank k with the probability of at most k heads in ``pairs``
    tosses of a fair coin.
    """
    rank, below = 0, 0.0
    while rank <= pairs // 2:
        below += math.comb(pairs, rank) / 2**pairs
        if below > (1.0 - CONFIDENCE) / 2.0:
            break
        rank += 1
    return max(0, rank - 1)
