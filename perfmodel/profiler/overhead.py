"""Overhead of measuring: steps with and without hooks, in alternation."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

from perfmodel.base.errors import InputError

CONFIDENCE = 0.95
FEWEST_PAIRS = 6
"""With fewer pairs, even their least and greatest are not a 95 % interval of the median."""


class Overhead(NamedTuple):
    """Relative overhead of hooks: median of all pairs, and its interval.

    Of ``FEWEST_PAIRS`` pairs or more, ``low`` to ``high`` is a 95 % interval of the median by
    order statistics (David, Nagaraja, "Order Statistics", 2003, section 7.1); for fewer it is the
    range.
    """

    fraction: float
    low: float
    high: float
    pairs: int

    def __str__(self) -> str:
        what = f"{CONFIDENCE:.0%} interval" if self.pairs >= FEWEST_PAIRS else "range"
        return (
            f"measuring adds {self.fraction:+.1%} ({what} {self.low:+.1%} to {self.high:+.1%}, "
            f"{self.pairs} pairs of steps)"
        )


def overhead(hooked_s: Sequence[float], plain_s: Sequence[float]) -> Overhead:
    """Compare steps with hooks to steps without, (pairs,) seconds each.

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
    """Rank of the pairs at the ends of the interval, from both ends; 0 is the outermost.

    The median is below the pair of rank k with the probability of at most k heads of fair coins.
    """
    rank, below = 0, 0.0
    while rank <= pairs // 2:
        below += math.comb(pairs, rank) / 2**pairs
        if below > (1.0 - CONFIDENCE) / 2.0:
            break
        rank += 1
    return max(0, rank - 1)
