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

import msgspec
import numpy as np

from perfmodel.base.arrays import Floats
from perfmodel.base.quantities import Quantity

SERIES = 1e-4
"""Failures per segment below which the variance is that of one failure, and the best interval that
of its series: differences of exponentials lose all digits there."""

MOST_EXPONENT = 300.0
"""Failures expected per segment and restart beyond which a run never ends: the time is infinite."""


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


class RunTime(msgspec.Struct, frozen=True):
    """Distribution of the time of a run with failures.

    Attributes
    ----------
    least_s : without a failure.
    no_failure : probability of that.
    mean_s, variance_s2 : of all runs.
    """

    least_s: float
    no_failure: float
    mean_s: float
    variance_s2: float

    def quantiles_s(self, probabilities: Floats) -> Floats:
        """Times that runs stay below with these probabilities, (n,).

        Runs with failures exceed ``least_s`` by a gamma variable of their mean and variance.
        """
        from scipy.stats import gamma

        if not math.isfinite(self.mean_s):
            return np.full(np.shape(probabilities), math.inf)
        some = 1.0 - self.no_failure
        excess = self.mean_s - self.least_s
        if some <= 0.0 or excess <= 0.0:
            return np.full(np.shape(probabilities), self.least_s)
        mean = excess / some
        variance = max((self.variance_s2 + excess**2) / some - mean**2, 1e-12 * mean**2)
        late = (np.asarray(probabilities) - self.no_failure) / some
        beyond = gamma.ppf(np.clip(late, 0.0, 1.0), mean**2 / variance, scale=variance / mean)
        quantiles: Floats = self.least_s + np.where(late > 0.0, beyond, 0.0)
        return quantiles


def run_time(
    work_s: float, interval_s: float, checkpoint_s: float, restart_s: float, failures_per_s: float
) -> RunTime:
    """Time of a run of ``work_s``, with a checkpoint after every ``interval_s`` of work.

    The last segment may be shorter; it writes a checkpoint too.

    >>> run = run_time(1000.0, 100.0, 0.0, 20.0, 0.0)
    >>> run.least_s, run.no_failure, run.mean_s
    (1000.0, 1.0, 1000.0)
    """
    whole, rest = divmod(work_s, interval_s) if interval_s < work_s else (0.0, work_s)
    parts = [(whole, interval_s)] if whole else []
    parts += [(1.0, rest)] if rest > 1e-9 * work_s else []
    least = work_s + sum(count for count, _ in parts) * checkpoint_s
    if failures_per_s == 0.0:
        return RunTime(least, 1.0, least, 0.0)
    times = [(count, segment(a + checkpoint_s, restart_s, failures_per_s)) for count, a in parts]
    return RunTime(
        least,
        math.exp(-failures_per_s * least),
        float(sum(count * time.mean_s for count, time in times)),
        float(sum(count * time.variance_s2 for count, time in times)),
    )
