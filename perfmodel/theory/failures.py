r"""Time of a long run with failures, checkpoints and restarts: mean, distribution, best interval.

A run of W seconds of work writes a checkpoint of C seconds after every :math:`\tau` of them.
Failures come as a Poisson process of rate :math:`\lambda`, also while a run restarts, for R. Each
takes the run back to its last checkpoint. A segment of :math:`a = \tau + C` then takes, on average
(Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps",
Future Gener. Comput. Syst. 22, 2006, doi 10.1016/j.future.2004.11.016, eq. 13)

.. math:: E[X] = \frac{e^{\lambda R}}{\lambda} \left(e^{\lambda a} - 1\right)

Segments are independent, so that means and variances of the :math:`W / \tau` of them add up.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import numpy as np

from perfmodel.base.arrays import Floats
from perfmodel.base.quantities import Quantity

SERIES = 1e-4
"""Failures per segment below which the variance is that of one failure, and the best interval that
of its series: differences of exponentials lose all digits there."""

MOST_EXPONENT = 300.0
"""Failures expected per segment and restart beyond which a run never ends: the time is infinite."""

TINY = 1e-300
"""Smallest divisor."""

MOST_SEGMENTS = 1_000_000
"""Largest number of segments of a run whose checkpoints take no time."""


class Segment(msgspec.Struct, frozen=True):
    """Mean (s) and variance (s²) of the time of a segment."""

    mean_s: Quantity
    variance_s2: Quantity


def segment(length_s: Quantity, restart_s: Quantity, failures_per_s: Quantity) -> Segment:
    r"""Time until a segment of ``length_s``, checkpoint included, is complete.

    With :math:`b = R + a`, the time after the first failure has the mean
    :math:`(e^{\lambda b} - 1) / \lambda` and the variance
    :math:`(e^{2 \lambda b} - 2 \lambda b e^{\lambda b} - 1) / \lambda^2`; the first failure comes
    after an exponential time, cut at a. Arguments are numbers or arrays; the mean is infinite where
    a segment practically never ends.

    >>> one = segment(100.0, 20.0, 1e-3)
    >>> round(float(one.mean_s), 3)  # (e^0.1 - 1) e^0.02 / 1e-3
    107.296
    """
    a, restart, rate = np.broadcast_arrays(*map(np.asarray, (length_s, restart_s, failures_per_s)))
    a, restart, rate = a.astype(float), restart.astype(float), rate.astype(float)
    x, y = rate * a, rate * (restart + a)
    with np.errstate(all="ignore"):
        survives, fails = np.exp(-x), -np.expm1(-x)
        again = np.expm1(y) / rate
        again2 = (np.expm1(2.0 * y) - 2.0 * y * np.exp(y)) / rate**2 + again**2
        first = fails / rate - a * survives
        first2 = 2.0 * fails / rate**2 - survives * (a**2 + 2.0 * a / rate)
        mean = np.expm1(x) * np.exp(y - x) / rate
        variance = a**2 * survives + first2 + 2.0 * first * again + fails * again2 - mean**2
    few = y < SERIES
    mean = np.where(rate == 0.0, a, mean)
    variance = np.where(few, x * (restart**2 + restart * a + a**2 / 3.0), variance)
    never = y > MOST_EXPONENT
    return Segment(np.where(never, np.inf, mean)[()], np.where(never, np.inf, variance)[()])


def best_interval_s(checkpoint_s: Quantity, failures_per_s: Quantity) -> Quantity:
    r"""Work between checkpoints that makes a run shortest.

    The minimum of :math:`E[X] / \tau` solves :math:`(u - 1) e^{u - 1} = -e^{-C/M - 1}` with
    :math:`M = 1 / \lambda` and :math:`u = \tau / M`, by Lambert's function. For
    :math:`C \ll M` it is Young's :math:`\sqrt{2 C M}` ("A first order approximation to the optimum
    checkpoint interval", CACM 17, 1974, doi 10.1145/361147.361115). Infinite without failures, 0 if
    checkpoints take no time.

    >>> round(float(best_interval_s(60.0, 1 / 86400)))  # Young: 3220
    3180
    """
    from scipy.special import lambertw

    cost, rate = np.asarray(checkpoint_s, float), np.asarray(failures_per_s, float)
    with np.errstate(all="ignore"):
        exact = (1.0 + np.real(lambertw(-np.exp(-cost * rate - 1.0)))) / rate
        young = np.sqrt(2.0 * cost / rate) - 2.0 * cost / 3.0
    return np.where(rate == 0.0, np.inf, np.where(cost * rate < SERIES**2, young, exact))[()]


def joint_restart_s(restarts_s: Sequence[Quantity], rates_per_s: Sequence[Quantity]) -> Quantity:
    r"""Restart time of failures of several kinds that gives the mean of :func:`segment`.

    A failure is of kind k with the probability :math:`p_k = \lambda_k / \lambda`. Until a restart
    succeeds, the mean time is :math:`(1 / S - 1) / \lambda` with :math:`S = \sum_k p_k e^{-\lambda
    R_k}`; one kind with :math:`R = -\ln(S) / \lambda` has the same.

    >>> round(float(joint_restart_s([60.0, 600.0], [1e-9, 1e-9])), 3)  # rare: the mean
    330.0
    """
    total = np.sum([np.asarray(rate, float) for rate in rates_per_s], axis=0)
    with np.errstate(all="ignore"):
        lost = np.sum([
            rate / total * -np.expm1(-total * np.asarray(restart_s, float))
            for restart_s, rate in zip(restarts_s, rates_per_s, strict=True)
        ], axis=0)  # fmt: skip
        joint = -np.log1p(-lost) / total
    return np.where(total == 0.0, np.asarray(restarts_s[0], float), joint)[()]


class RunTime(msgspec.Struct, frozen=True):
    """Distribution of the time of a run with failures; numbers, or arrays of one shape.

    Attributes
    ----------
    least_s : without a failure.
    no_failure : probability of that.
    mean_s, variance_s2 : of all runs.
    """

    least_s: Quantity
    no_failure: Quantity
    mean_s: Quantity
    variance_s2: Quantity

    def quantiles_s(self, probabilities: Floats) -> Floats:
        """Times that runs stay below with these probabilities, of the shape of both.

        Runs with failures exceed ``least_s`` by a gamma variable of their mean and variance.
        """
        from scipy.special import gammaincinv

        some, shape, scale = self._beyond()
        late = (np.asarray(probabilities) - self.no_failure) / np.maximum(some, TINY)
        beyond = scale * gammaincinv(shape, np.clip(late, 0.0, 1.0))
        late_s = np.where((late > 0.0) & (scale > 0.0), beyond, 0.0)
        quantiles: Floats = np.where(np.isinf(self.mean_s), math.inf, self.least_s + late_s)
        return quantiles

    def within(self, limit_s: Quantity) -> Floats:
        """Probability that a run takes at most ``limit_s``; of the shape of both."""
        from scipy.special import gammainc

        some, shape, scale = self._beyond()
        room = np.asarray(limit_s, float) - self.least_s
        late = gammainc(shape, np.maximum(room, 0.0) / np.maximum(scale, TINY))
        kept = np.where(scale > 0.0, self.no_failure + some * late, 1.0)
        probability: Floats = np.where((room < 0.0) | np.isinf(self.mean_s), 0.0, kept)
        return probability

    def _beyond(self) -> tuple[Floats, Floats, Floats]:
        """Return the probability of failures, and shape and scale (s) of the gamma variable."""
        some = 1.0 - np.asarray(self.no_failure, float)
        mean_s = np.where(np.isinf(self.mean_s), self.least_s, self.mean_s)
        excess = np.maximum(np.asarray(mean_s - self.least_s, float), 0.0)
        variance_s2 = np.where(np.isinf(self.variance_s2), 0.0, self.variance_s2)
        mean = excess / np.maximum(some, TINY)
        spread = (variance_s2 + excess**2) / np.maximum(some, TINY) - mean**2
        variance = np.maximum(spread, 1e-12 * mean**2)
        has = (some > 0.0) & (mean > 0.0)
        shape = np.where(has, mean**2 / np.where(has, variance, 1.0), 1.0)
        scale = np.where(has, variance / np.where(has, mean, 1.0), 0.0)
        return some, shape, scale


def run_time(
    work_s: Quantity,
    interval_s: Quantity,
    checkpoint_s: Quantity,
    restart_s: Quantity,
    failures_per_s: Quantity,
) -> RunTime:
    """Time of a run of ``work_s``, with a checkpoint after every ``interval_s`` of work.

    The last segment may be shorter; it writes a checkpoint too. Arguments are numbers or arrays.

    >>> run = run_time(1000.0, 100.0, 0.0, 20.0, 0.0)
    >>> float(run.least_s), float(run.no_failure), float(run.mean_s)
    (1000.0, 1.0, 1000.0)
    """
    work, each = np.asarray(work_s, float), np.asarray(interval_s, float)
    whole = np.where(each < work, np.floor(work / each), 0.0)
    rest = np.where(whole > 0.0, work - whole * np.where(whole > 0.0, each, 0.0), work)
    last = (rest > 1e-9 * work).astype(float)
    least = work + (whole + last) * checkpoint_s
    long = segment(np.where(whole > 0.0, each, 0.0) + checkpoint_s, restart_s, failures_per_s)
    short = segment(np.maximum(rest, 0.0) + checkpoint_s, restart_s, failures_per_s)
    with np.errstate(invalid="ignore"):
        mean, variance = (
            np.where(whole > 0.0, whole * of_long, 0.0) + np.where(last > 0.0, of_short, 0.0)
            for of_long, of_short in (
                (long.mean_s, short.mean_s), (long.variance_s2, short.variance_s2),
            )
        )  # fmt: skip
    kept = np.exp(-np.asarray(failures_per_s, float) * least)
    return RunTime(least[()], kept[()], mean[()], variance[()])
