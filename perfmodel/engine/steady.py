"""Detects the steady state: a recurring state, a warm-up to drop, and enough batches."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from perfmodel.engine.measures import Totals
from perfmodel.engine.state import State, state
from perfmodel.engine.world import World, scalar

SAME = 1e-9
"""Tolerance for rounding in the times or bytes of two states, relative to the largest."""

FEWEST_BATCHES, MOST_BATCHES = 16, 32
"""Minimum number of batches for a confidence interval; at twice the second number, pairs merge."""

MOST_CORRELATION = 0.3
"""Lag-one correlation of batch means above which longer batches are needed."""

CONFIDENCE, AT_EACH_LOOK = 0.95, 0.97
"""Confidence of a reported interval, and of each check of it. A run ends when its interval is
narrow enough, which favours intervals that are narrow by chance. Of the 97 % intervals that end a
run, about 95 % contain the true value (docs/explanation/how-long-to-simulate.md)."""


class Recurrence:
    """Finds the period of a sequence of states while keeping only one of them.

    The state of rounds 1, 2, 4, 8, ... is kept in turn and compared with the states that follow
    (Brent, BIT 20, 1980, doi 10.1007/BF01933190). So a period of any length is found in the memory
    of one state.
    """

    saved: Totals

    def __init__(self) -> None:
        self._state: State | None = None
        self._next = 1
        self.fresh = False
        """Whether the last state is the one that is kept."""

    def seen(self, world: World, done: int, totals: Callable[[], Totals]) -> Totals | None:
        """Return the totals at which the same state was seen before; None if it is new."""
        time = scalar(world, "now")
        self.fresh = False
        if self._state is not None and time == self.saved.time:
            return None
        now = state(world)
        if self._state is not None and same(self._state, now):
            return self.saved
        self.fresh = done >= self._next
        if self.fresh:
            self._state, self.saved = now, totals()
            while self._next <= done:
                self._next *= 2
        return None


def same(a: State, b: State) -> bool:
    """Return whether two states agree, up to rounding of their times and bytes."""
    if not np.array_equal(a.counts, b.counts):
        return False
    return _close(a.times, b.times) and _close(a.bytes, b.bytes)


def _close(a: NDArray[np.float64], b: NDArray[np.float64]) -> bool:
    margin = SAME * float(np.abs(b).max(initial=0.0))
    return len(a) == len(b) and bool((np.abs(a - b) <= margin).all())


def warmup_rounds(rates: Sequence[float], least: int = 0) -> int:
    """Return how many first rounds to drop: ``least`` or a power of two, at most two thirds.

    It is the number that minimises the standard error of the mean of the rest (marginal standard
    error rule: White, Simulation 69(6), 1997, doi 10.1177/003754979706900601).
    """
    values = np.asarray(rates)
    candidates = warmups(len(values), least)
    late = values[least:]
    if np.isfinite(late).all() and float(np.ptp(late)) <= SAME * float(np.abs(late).max()):
        return least  # the differences are rounding errors
    return min(candidates, key=lambda d: float(values[d:].var()) / (len(values) - d))


def warmups(rounds: int, least: int) -> list[int]:
    """Return the candidate lengths of the warm-up."""
    powers = [1 << k for k in range(rounds.bit_length()) if 3 << k <= 2 * rounds]
    return [least, *(power for power in powers if power > least)]


def ci_fraction(values: Sequence[float], confidence: float = CONFIDENCE) -> float:
    """Return the half-width of the Student interval of the mean of values, relative to it."""
    if len(values) < 2:
        return math.inf
    from scipy.special import stdtrit

    x = np.asarray(values)
    spread = float(x.std(ddof=1)) / math.sqrt(len(x))
    return float(stdtrit(len(x) - 1, (1.0 + confidence) / 2.0)) * spread / float(x.mean())


class BatchMeans:
    """Batches of rounds of one long run, and the confidence interval of their mean rate.

    Batch means: Law, "Simulation Modeling and Analysis", 5th ed., section 9.5.3. As the run grows,
    batches are merged in pairs, so that they become longer and their number stays bounded.
    """

    def __init__(self) -> None:
        self._work: list[float] = []
        self._time: list[float] = []
        self._part = [0.0, 0.0, 0]
        self.batch_rounds = 1

    def add(self, iterations: float, seconds: float) -> None:
        """Add one round; rounds become batches of ``batch_rounds``."""
        self._part = [self._part[0] + iterations, self._part[1] + seconds, self._part[2] + 1]
        if self._part[2] < self.batch_rounds:
            return
        self._work.append(self._part[0])
        self._time.append(self._part[1])
        self._part = [0.0, 0.0, 0]
        if len(self._work) >= 2 * MOST_BATCHES:
            self._work = _pairs(self._work)
            self._time = _pairs(self._time)
            self.batch_rounds *= 2

    def ci_fraction(self) -> float:
        """Return the relative half-width; infinite if batches are too few or autocorrelated."""
        if len(self._work) < FEWEST_BATCHES:
            return math.inf
        rates = np.array(self._work) / np.array(self._time)
        if not np.isfinite(rates).all():
            return 0.0
        if _correlation(rates) > MOST_CORRELATION:
            return math.inf
        return ci_fraction(rates.tolist(), AT_EACH_LOOK)

    def last_ci_fraction(self) -> float:
        """Return the relative half-width at the end of a run.

        If batches are autocorrelated, it comes from longer ones: from as few as four batches, and
        wide accordingly.
        """
        work, time = self._work, self._time
        while len(work) >= 8:
            rates = np.array(work) / np.array(time)
            if not np.isfinite(rates).all() or _correlation(rates) <= MOST_CORRELATION:
                break
            even = len(work) // 2 * 2
            work, time = _pairs(work[:even]), _pairs(time[:even])
        rates = np.array(work) / np.array(time)
        return ci_fraction(rates.tolist(), AT_EACH_LOOK) if np.isfinite(rates).all() else 0.0


def _pairs(values: list[float]) -> list[float]:
    return [a + b for a, b in zip(values[::2], values[1::2], strict=True)]


def _correlation(values: NDArray[np.float64]) -> float:
    """Return the lag-one autocorrelation."""
    deviations = values - values.mean()
    total = float((deviations**2).sum())
    return float((deviations[1:] * deviations[:-1]).sum()) / total if total > 0.0 else 0.0
