r"""Loads of the devices that experts are on, when a router chooses experts for tokens.

Each of N tokens passes k of E experts. How often an expert is chosen follows a power law: the i-th
most popular has a share of all choices in proportion to :math:`i^{-a}`, at most one choice of each
token. With the *skew* a = 0 all are equally popular. The experts are on e devices, E/e on each, in
an order that has nothing to do with their popularity. In each layer the device with the largest
load sets the pace of all.

The chances :math:`\pi_i` of an expert to be chosen by a token add up to k. The number of tokens on
device d has the mean :math:`N \sum_i \pi_i` over its experts. Its variance is that of choices
without repetition (Hájek, Ann. Math. Stat. 35(4), 1964, doi 10.1214/aoms/1177700375, with the usual
correction for few experts):

.. math:: \sigma_d^2 = N \frac{E}{E-1} v_d \left( 1 - \frac{v_d}{V} \right), \quad
          v_d = \sum_{i \in d} \pi_i (1 - \pi_i), \quad V = \sum_d v_d

For equally popular experts it is exact: that of a hypergeometric distribution. With normal loads
around a sum that is fixed, :math:`Z_d - \frac{v_d}{V} \sum Z` of independent Z with variances
:math:`N v_d E/(E-1)`, the expected largest of equal ones is exactly that of the independent ones,
by which all are computed. They lean to large loads as Poisson variables do.
"""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from perfmodel.base.arrays import Floats, Ids
from perfmodel.base.errors import InputError, number, whole_number

ORDERS = 512
"""Orders of experts of unequal popularity over which loads are averaged, always the same."""

POINTS = 96
"""Points of the distribution of the largest load."""

REACH = 5.0
"""Standard deviations beyond the means within which the largest load is looked for."""

MOST_SKEW = 4.0
"""Largest exponent of the power law; a limit that catches typing errors."""


class Routing(NamedTuple):
    """What a router does with the tokens of a group of devices.

    Attributes
    ----------
    tokens : of all devices of the group together.
    experts, active : experts, and those that each token passes.
    devices : that the experts are on, an equal number on each.
    skew : exponent of the power law of the experts' popularity; 0: all are equally popular.
    capacity : most tokens of an expert, as a multiple of the mean; others are dropped. None: no
        token is dropped.
    """

    tokens: int
    experts: int
    active: int
    devices: int
    skew: float = 0.0
    capacity: float | None = None

    @property
    def mean(self) -> float:
        """Mean number of choices per device."""
        return self.tokens * self.active / self.devices


def _checked(routing: Routing) -> Routing:
    """Return a routing whose numbers are possible."""
    for name in ("tokens", "experts", "active", "devices"):
        whole_number(name, getattr(routing, name))
    number("skew", routing.skew, at_most=MOST_SKEW)
    if routing.capacity is not None:
        number("capacity", routing.capacity, above=0.0)
    if routing.active > routing.experts:
        raise InputError(f"active: {routing.active} of {routing.experts} experts")
    if routing.experts % routing.devices:
        raise InputError(f"devices: {routing.devices} do not divide {routing.experts} experts")
    return routing


def popularity(experts: int, active: int, skew: float) -> Floats:
    """Return the chance of each expert to be chosen by a token, the most popular first, (experts,).

    They add up to ``active``. What would be more than one choice per token is spread over others.

    >>> popularity(4, 2, 0.0).tolist()
    [0.5, 0.5, 0.5, 0.5]
    >>> popularity(3, 2, 4.0).round(3).tolist()
    [1.0, 0.835, 0.165]
    """
    weights = np.arange(1, experts + 1, dtype=np.float64) ** -skew
    chance = np.zeros(experts)
    sure = 0
    while sure < experts:  # the most popular of the rest may be chosen by every token
        chance[sure:] = (active - sure) * weights[sure:] / weights[sure:].sum()
        if chance[sure] <= 1.0:
            break
        chance[sure] = 1.0
        sure += 1
    return chance


def largest_load(routing: Routing) -> float:
    """Return the expected largest load of a device, as a multiple of the mean without drops.

    Raises
    ------
    InputError : a number is out of range; experts are not divided evenly.

    >>> round(largest_load(Routing(tokens=4096, experts=8, active=2, devices=8)), 4)
    1.0414
    >>> largest_load(Routing(tokens=4096, experts=8, active=2, devices=1))
    1.0
    """
    return _largest(_checked(routing))


@functools.lru_cache(maxsize=256)
def _largest(routing: Routing) -> float:
    loads, below = _distribution(routing)
    # the mean is the integral of the probability to be larger
    above = 1.0 - below
    # NumPy 1 has no trapezoid
    return float(loads[0] + (np.diff(loads) * (above[1:] + above[:-1]) / 2.0).sum())


def quantiles_of_largest_load(routing: Routing, parts: ArrayLike) -> Floats:
    """Return loads that the largest is below with these probabilities, (parts,), as multiples of
    the mean.

    >>> quantiles_of_largest_load(Routing(4096, 8, 2, 8), [0.1, 0.9]).round(3).tolist()
    [1.019, 1.065]
    """
    loads, below = _distribution(_checked(routing))
    return np.asarray(np.interp(np.asarray(parts, np.float64), below, loads))


@functools.lru_cache(maxsize=64)
def _distribution(routing: Routing) -> tuple[Floats, Floats]:
    """Return loads as multiples of the mean, and the probability that none is larger, (points,)."""
    from scipy.special import ndtr

    mean, variance = _of_devices(routing)  # (orders, devices)
    spread = np.sqrt(variance)
    if float(spread.max()) == 0.0 or routing.devices == 1:
        largest = np.sort(mean.max(axis=1))
        return np.repeat(largest, 2), np.tile([0.0, 1.0], len(largest)).cumsum() / len(largest) / 2
    low = float((mean - REACH * spread).max(axis=1).min())
    high = float((mean + (REACH + 2.0) * spread).max())
    loads = np.linspace(max(low, 0.0), high, POINTS)
    below = np.zeros(POINTS)
    for order_mean, order_spread in zip(mean, np.maximum(spread, 1e-12), strict=True):
        lean = 1.0 / (order_spread * routing.mean)  # skewness of a Poisson variable
        scores = (loads[:, None] - order_mean) / order_spread
        below += ndtr(_as_normal(scores, lean)).prod(axis=1)
    below /= len(mean)
    if routing.capacity is not None:
        below[loads >= routing.capacity] = 1.0
    return loads, below


def _as_normal(scores: Floats, lean: Floats) -> Floats:
    """Return what standardised gamma variables of this skewness are as normal ones.

    Wilson, Hilferty, Proc. Natl. Acad. Sci. 17(12), 1931, doi 10.1073/pnas.17.12.684.
    """
    root = np.cbrt(np.maximum(1.0 + lean * scores / 2.0, 0.0))
    return np.asarray(6.0 / lean * (root - 1.0) + lean / 6.0)


def _of_devices(routing: Routing) -> tuple[Floats, Floats]:
    """Return mean and variance of each device's load, before the sum is fixed, for each order of
    the experts, (orders, devices), as multiples of the mean load."""
    r = routing
    chance = popularity(r.experts, r.active, r.skew)
    many = r.tokens * chance
    variance = many * (1.0 - chance) * (r.experts / max(r.experts - 1, 1))
    if r.capacity is not None:
        many, variance = _capped(many, variance, r.capacity * r.tokens * r.active / r.experts)
    order = _orders(r)
    each = (len(order), r.devices, r.experts // r.devices)
    mean_load = r.mean
    return (
        many[order].reshape(each).sum(axis=-1) / mean_load,
        variance[order].reshape(each).sum(axis=-1) / mean_load**2,
    )


def _orders(routing: Routing) -> Ids:
    """Return orders of the experts, (orders, experts); one if all orders are alike."""
    index = np.arange(routing.experts)
    if routing.skew == 0.0 or routing.devices in (1, routing.experts):
        return index[None]
    generator = np.random.Generator(np.random.Philox(routing.experts))
    return generator.permuted(np.tile(index, (ORDERS, 1)), axis=1)


def _capped(mean: Floats, variance: Floats, most: float) -> tuple[Floats, Floats]:
    """Return mean and variance of the smaller of normal variables and a number."""
    from scipy.special import ndtr

    spread = np.sqrt(np.maximum(variance, 1e-300))
    score = (most - mean) / spread
    under = ndtr(score)
    density = np.exp(-0.5 * score**2) / math.sqrt(2.0 * math.pi)
    first = mean * under - spread * density + most * (1.0 - under)
    second = (
        (mean**2 + variance) * under - spread * (mean + most) * density + most**2 * (1.0 - under)
    )
    return first, np.maximum(second - first**2, 0.0)


def dropped_fraction(routing: Routing) -> float:
    """Return the expected share of choices beyond the capacity of experts; 0 without one.

    >>> round(dropped_fraction(Routing(4096, 8, 2, 8, capacity=1.0)), 4)
    0.0108
    """
    r = _checked(routing)
    if r.capacity is None:
        return 0.0
    chance = popularity(r.experts, r.active, r.skew)
    many = r.tokens * chance
    kept, _ = _capped(many, many * (1.0 - chance), r.capacity * r.tokens * r.active / r.experts)
    return 1.0 - float(kept.sum()) / (r.tokens * r.active)


def copies_across(nodes: int, experts: int, active: int, limit: int | None = None) -> float:
    r"""Return the share of copies of tokens that crosses nodes if each node gets one of each token.

    A token passes k of E experts, which are on m nodes (or devices), and each node that has some
    of these gets one copy. With a *limit* M the k experts are those of M nodes only (node-limited
    routing):

    .. math:: \frac{M}{k} \left( 1 - \binom{M E/m - E/m}{k} / \binom{M E/m}{k} \right)

    References
    ----------
    DeepSeek-AI, "DeepSeek-V3 technical report", 2024, arXiv 2412.19437, sections 2.1.2 and 3.2.2.

    >>> copies_across(1, 8, 2), round(copies_across(2, 8, 2), 4), copies_across(8, 256, 8, limit=4)
    (1.0, 0.7857, 0.45362636555321256)
    """
    among = nodes if limit is None else min(limit, nodes)
    each = experts // nodes
    if nodes == 1:
        return 1.0
    allowed = among * each
    if active > allowed:
        raise InputError(f"node_limit: {among} nodes have {allowed} experts, fewer than {active}")
    none = math.comb(allowed - each, active) / math.comb(allowed, active)
    return among / active * (1.0 - none)
