r"""How certain a predicted gain is: the ratio of two jobs' throughputs, with its interval.

The errors of two predictions are not independent: if a device's times are estimated, or a network's
bandwidth is nominal, both predictions are wrong in the same direction. Let :math:`s_1, s_2` be the
standard deviations of both logarithms, and :math:`m_1, m_2` the parts due to run-to-run variation:

.. math:: \sigma^2 = m_1^2 + m_2^2 + r_1^2 + r_2^2 - 2 \rho r_1 r_2, \qquad r_i^2 = s_i^2 - m_i^2

The correlation :math:`\rho` depends on the kind of network, see :data:`SHARED`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from perfmodel.base.uncertainty import WIDTH, factor_of
from perfmodel.inputs.cluster import Cluster, Server
from perfmodel.inputs.job import Job
from perfmodel.predicting.intervals import kind_of
from perfmodel.results.prediction import Prediction

SHARED: Mapping[str, float] = {"measured": 0.0, "nominal": 0.5}
"""Correlation between the errors of two predictions of one model on one cluster, by kind of
network. It is the share of the residual variance that runs from one source have in common, computed
by ``python -m benchmarks.accuracy.intervals``."""

DRAWS = 20_000
"""Number of draws that :func:`chances` counts over."""


class Gain(msgspec.Struct, frozen=True):
    """Throughput of one job divided by that of another.

    ``interval`` contains the measured ratio in 9 of 10 cases; ``probability`` is the probability
    that the ratio is above 1.
    """

    ratio: float
    interval: tuple[float, float]
    probability: float

    @property
    def supported(self) -> bool:
        """Whether the whole interval lies above 1."""
        return self.interval[0] > 1.0


def gain(before: Job, was: Prediction, after: Job, then: Prediction) -> Gain:
    """Return the gain in samples per second from changing one job into another.

    Parameters
    ----------
    before, was : the original job and its prediction.
    after, then : the changed job and its prediction; both predictions need intervals.
    """
    ratio = then.throughput_samples_per_s / was.throughput_samples_per_s
    shared = min(SHARED[kind_of(job).network] for job in (before, after))
    chance, rest = zip(_spread(was), _spread(then), strict=True)
    variance = chance[0] ** 2 + chance[1] ** 2
    variance += rest[0] ** 2 + rest[1] ** 2 - 2.0 * shared * rest[0] * rest[1]
    spread = math.sqrt(max(variance, 0.0))  # rounding
    factor = factor_of(spread)
    log = math.log(ratio)
    above = math.erf(log / (math.sqrt(2.0) * spread)) if spread else math.copysign(bool(log), log)
    return Gain(ratio, (ratio / factor, ratio * factor), (1.0 + above) / 2.0)


def chances(
    jobs: Sequence[Job], predictions: Sequence[Prediction], values: Sequence[float]
) -> tuple[float, ...]:
    r"""Return the probability that each of several jobs really is the best of them.

    With a value :math:`v_i` proportional to its throughput, job i is the best if
    :math:`v_i e^{x_i}` is the largest. Errors :math:`x_i` are normal. They are correlated as in
    :func:`gain` for jobs on one cluster with the same devices, wherever the servers are placed, and
    independent for all others.

    Parameters
    ----------
    jobs, predictions : one of each per value; predictions need intervals.
    values : the value of each job at its predicted throughput, above 0; higher is better.

    Returns
    -------
    Shares of :data:`DRAWS` seeded draws; they add up to 1.
    """
    draw = np.random.default_rng(0)
    places: dict[tuple[Cluster, str], np.ndarray] = {}
    logs = np.empty((len(jobs), DRAWS))
    for i, (job, prediction, value) in enumerate(zip(jobs, predictions, values, strict=True)):
        chance, rest = _spread(prediction)
        # the placement of servers does not make it a different cluster
        place = (
            msgspec.structs.replace(job.cluster, server=Server(), flow_bytes_per_s=None),
            job.workload.device,
        )
        if place not in places:
            places[place] = draw.standard_normal(DRAWS)
        shared = SHARED[kind_of(job).network]
        individual, runs = draw.standard_normal((2, DRAWS))
        common = math.sqrt(shared) * places[place] + math.sqrt(1.0 - shared) * individual
        logs[i] = math.log(value) + rest * common + chance * runs
    first = np.bincount(np.argmax(logs, axis=0), minlength=len(jobs))
    return tuple((first / DRAWS).tolist())


def probability_within(prediction: Prediction, times: float) -> float:
    """Return the probability that a measured step takes at most ``times`` the predicted step."""
    spread = spread_of(prediction)
    if not spread or times in (0.0, math.inf):
        return float(times >= 1.0)
    return (1.0 + math.erf(math.log(times) / (math.sqrt(2.0) * spread))) / 2.0


def room(prediction: Prediction, confidence: float) -> float:
    """Return what a limit has to be, as a multiple of the predicted step, for a measured step to
    keep it with this probability."""
    from statistics import NormalDist

    return math.exp(NormalDist().inv_cdf(confidence) * spread_of(prediction))


def spread_of(prediction: Prediction) -> float:
    """Return the standard deviation of the logarithm of a measured step; 0 if it is unknown."""
    return math.hypot(*_spread(prediction))


def _spread(prediction: Prediction) -> tuple[float, float]:
    """Return two standard deviations of the logarithm: run-to-run variation, and everything else.

    The second follows from the whole width of the interval, which can exceed the sum of its parts.
    """
    if prediction.interval is None:
        return 0.0, 0.0
    low_s, high_s = prediction.interval.iteration_s
    total = math.log(high_s / low_s) / (2.0 * WIDTH)
    chance = min(prediction.interval.parts.measurement, total)
    return chance, math.sqrt(total**2 - chance**2)
