"""Exact mean-value analysis of closed queueing networks with one or more customer classes.

Reiser, Lavenberg, "Mean-Value Analysis of Closed Multichain Queuing Networks", JACM 27(2), 1980,
doi 10.1145/322186.322195. It holds for product-form networks: FIFO stations with exponential
service, processor-sharing and delay stations with service of any distribution.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from perfmodel.base.arrays import Floats


def mva(
    n: int, demands_s: Sequence[float], think_s: float, servers: Sequence[int] | None = None
) -> tuple[float, Floats, Floats]:
    """Throughput (1/s), residence times (s) and queue lengths of ``n`` customers.

    Parameters
    ----------
    n : customers, at least one.
    demands_s : seconds of service that a customer needs at each station per lap.
    think_s : seconds a customer spends per lap without queueing.
    servers : number of customers each station serves at once; 1 by default.
    """
    demands = np.asarray(demands_s, np.float64)
    places = np.ones(len(demands), np.int64) if servers is None else np.asarray(servers)
    present = np.arange(1, n + 1)
    at_once = np.minimum(present, places[:, None])  # (stations, customers present)
    # probability of finding 0 ... n customers at a station
    chance = np.zeros((len(demands), n + 1))
    chance[:, 0] = 1.0
    for customers in present:
        # an arriving customer finds the station as in a network with one customer less
        residence = demands * (present / at_once * chance[:, :-1]).sum(axis=1)
        throughput = customers / (think_s + residence.sum())
        chance[:, 1:] = throughput * demands[:, None] / at_once * chance[:, :-1]
        chance[:, 0] = 1.0 - chance[:, 1:].sum(axis=1)
    return float(throughput), residence, throughput * residence


class ClassMeans(NamedTuple):
    """Throughput (1/s) and cycle time (s) per class; residence times (s) and queue lengths per
    class and station. Times of a class without customers are NaN."""

    throughput_per_s: Floats
    cycle_s: Floats
    residence_s: Floats
    queue_length: Floats


def multiclass_mva(
    customers: Sequence[int],
    demands_s: ArrayLike,
    kinds: Sequence[str],
    think_s: ArrayLike = 0.0,
) -> ClassMeans:
    """The same for several classes; an arrival of class c sees the network without itself.

    Visits every population from none to all, so its cost is the product of the class sizes.

    Parameters
    ----------
    customers : (classes,) number of customers.
    demands_s : (classes, stations) seconds of service per cycle.
    kinds : (stations,) *shared*, *fifo* (equal demands in all classes) or *delay*; one server each.
    think_s : (classes,) seconds of thinking per cycle, or one number for all.

    >>> means = multiclass_mva([1, 1], [[1.0, 3.0], [2.0, 4.0]], ["shared", "shared"])
    >>> (19 * means.throughput_per_s).round(12).tolist()
    [3.0, 2.0]
    """
    counts, demands = np.array(customers), np.asarray(demands_s, np.float64)
    waits = np.array([float(kind != "delay") for kind in kinds])
    thinking = np.broadcast_to(np.asarray(think_s, np.float64), counts.shape)
    queues = {}
    for population in itertools.product(*(range(n + 1) for n in customers)):
        queue = np.zeros(len(kinds))
        for c, present in enumerate(population):
            if present:
                residence = demands[c] * (1.0 + waits * queues[_one_less(population, c)])
                queue += present / (thinking[c] + residence.sum()) * residence
        queues[population] = queue
    whole = tuple(customers)
    residence_s = np.full(demands.shape, np.nan)
    for c in np.flatnonzero(counts).tolist():
        residence_s[c] = demands[c] * (1.0 + waits * queues[_one_less(whole, c)])
    cycle_s = thinking + residence_s.sum(axis=1)
    throughput = np.where(counts > 0, counts / cycle_s, 0.0)
    queue_length = throughput[:, None] * np.nan_to_num(residence_s)
    return ClassMeans(throughput, cycle_s, residence_s, queue_length)


def _one_less(population: tuple[int, ...], c: int) -> tuple[int, ...]:
    return *population[:c], population[c] - 1, *population[c + 1 :]


def bound(
    n: int, demands_s: Sequence[float], think_s: float, servers: Sequence[int] | None = None
) -> float:
    """Upper bound of the throughput (1/s) of ``n`` customers for any service distribution."""
    places = [1] * len(demands_s) if servers is None else servers
    busiest = max(demand / k for demand, k in zip(demands_s, places, strict=True))
    return min(n / (think_s + sum(demands_s)), 1.0 / busiest)


def agrees(samples: Sequence[float], expected: float, laps: int) -> None:
    """Check that the mean of independent runs of at least ``laps`` laps is as expected.

    It may be off by four standard errors: a right simulation is further off for fewer than 1 seed
    in 800 (Student's t, 15 degrees of freedom). And by one lap in ``laps``, since each run is cut
    at an instant that depends on it. Runs so noisy that this comes to 8 % are refused.
    """
    assert len(samples) >= 16, "too few runs to tell the standard error"
    mean = float(np.mean(samples))
    error = float(np.std(samples, ddof=1)) / math.sqrt(len(samples))
    margin = 4.0 * error + expected / laps
    assert margin < 0.08 * expected, f"too noisy: {mean:g} +- {error:g}"
    assert abs(mean - expected) <= margin, f"{mean:g} +- {error:g}, expected {expected:g}"
