r"""Order statistics of random times: mean and quantiles of the k-th fastest of n workers.

Times vary by independent *factors* with mean 1 and coefficient of variation c, from one
distribution:

- *lognormal*: :math:`\exp(\sigma z - \sigma^2/2)`, z normal and :math:`\sigma^2 = \ln(1+c^2)`;
- *gamma*: of shape :math:`1/c^2`, which is exponential for c = 1.

If c is 0, or below :data:`perfmodel.base.quantities.NO_SPREAD`, every factor is 1. The k-th of n is
the k-th smallest; k = n is the slowest worker.

All of this is in David, Nagaraja, "Order Statistics", 3rd edition, 2003, doi 10.1002/0471722162.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from perfmodel.base.arrays import Floats
from perfmodel.base.errors import InputError, unknown_name, whole_number
from perfmodel.base.quantities import (
    NO_SPREAD,
    Quantity,
    is_symbol,
    quantity,
    together,
    whole_quantity,
)

KINDS = ("lognormal", "gamma")
"""Names of the distributions."""

NODES = 64
"""Number of quadrature nodes for an expected value."""
POINTS = 16
"""Default number of points for averaging a function of an order statistic."""
GRID = 512
"""Number of points for evaluating the distribution of the slowest of unequal workers."""
RARE, LEAST = 1e-10, 1e-3
"""Probability omitted at either end of that grid; lower limit of the grid, as a multiple of a
group's mean."""


# -- expected values -------------------------------------------------------------------------------


def expected_maximum(n: Quantity, cv: Quantity, kind: str) -> Quantity:
    r"""Return the expected largest of n factors, as a multiple of their mean.

    See :func:`expected_order_statistic`, with k = n.

    >>> round(expected_maximum(4, 1.0, "gamma"), 9)
    2.083333333
    >>> expected_maximum(np.array([1, 8, 64]), 0.1, "lognormal").round(4).tolist()
    [1.0, 1.149, 1.2584]
    """
    return expected_order_statistic(n, n, cv, kind)


def normal_maximum(n: int) -> float:
    r"""Return about the expected largest of n standard normal variables.

    .. math:: \Phi^{-1}\left(\frac{n - 3/8}{n + 1/4}\right)

    It is within 0.026 of the exact value.

    References
    ----------
    G. Blom, "Statistical estimates and transformed beta-variables", Wiley, 1958.

    >>> [round(normal_maximum(n), 3) for n in (1, 2, 8, 1024)]  # exact: 0, 0.564, 1.424, 3.248
    [0.0, 0.589, 1.434, 3.234]
    """
    from statistics import NormalDist

    return NormalDist().inv_cdf((n - 0.375) / (n + 0.25))


def expected_order_statistic(rank: Quantity, n: Quantity, cv: Quantity, kind: str) -> Quantity:
    r"""Return the expected k-th smallest of n factors, as a multiple of their mean.

    .. math:: \mathrm{E} X_{k:n} = \int_0^1 F^{-1}(I^{-1}_{k,n-k+1}(p)) \, dp

    where F is the distribution function of one factor and I the regularised incomplete beta
    function: the k-th smallest of n uniform variables has a beta distribution. It is computed by
    Gauss-Hermite quadrature over the normal score of p, to a relative error of 1e-8 for c up to 5.

    Parameters
    ----------
    rank, n : whole numbers, 1 to n and at least 1; arrays broadcast with ``cv``. Repeated values
        are computed once.
    cv : coefficient of variation; a number or an array.
    kind : distribution.

    Raises
    ------
    InputError : a number is out of range; a symbol; an unknown distribution.

    >>> round(expected_order_statistic(3, 4, 1.0, "gamma"), 9)
    1.083333333
    """
    rank, n, cv = _checked(rank, n, cv, kind)
    return _each(functools.partial(_expected, kind), rank, n, cv)


@functools.lru_cache(maxsize=1 << 16)
def _expected(kind: str, rank: int, n: int, cv: float) -> float:
    if cv < NO_SPREAD or n == 1:
        return 1.0
    from scipy import special

    scores, weights = _hermite()
    below, above = _single_draw(rank, n, special.ndtr(scores), special.ndtr(-scores))
    return float(weights @ _factor(below, above, cv, kind))


@functools.cache
def _hermite() -> tuple[Floats, Floats]:
    scores, weights = np.polynomial.hermite_e.hermegauss(NODES)
    return scores, weights / weights.sum()


# -- functions of an order statistic ---------------------------------------------------------------


def quantiles_of_order_statistic(
    rank: Quantity, n: Quantity, cv: Quantity, kind: str, points: int = POINTS
) -> tuple[Floats, Floats]:
    r"""Return values of the k-th smallest of n factors, and weights, to average a function of it.

    .. math:: \mathrm{E} g(X_{k:n}) \approx \sum_j w_j g(x_j)

    The values are Gauss-Legendre nodes v in (0, 1), at the probabilities :math:`p = v^2 (3 - 2 v)`.
    These are densest at both ends, where tails are long, and still dense in the middle, where the
    function may have a kink. Values are scaled, by at most 2e-4 for c up to 1, so that their
    weighted mean is the expected value. With 16 points the average of max(x, a) is within 0.3 % for
    c up to 1, and within 0.05 % for c up to 0.1.

    Parameters
    ----------
    rank, n, cv, kind : see :func:`expected_order_statistic`; numbers or arrays.
    points : number of values.

    Returns
    -------
    values : (..., points), as multiples of the mean of a factor, ascending.
    weights : (points,), which add up to 1.

    Raises
    ------
    InputError : as for :func:`expected_order_statistic`; ``points`` below 1.

    >>> slowest, weights = quantiles_of_order_statistic(8, 8, 0.5, "lognormal")
    >>> round(float(weights @ slowest), 3), round(float(weights @ np.maximum(slowest, 1.5)), 3)
    (1.83, 1.895)
    """
    rank, n, cv = _checked(rank, n, cv, kind)
    whole_number("points", points)
    _, _, weights = _probabilities(points)
    return _each(functools.partial(_quantiles, kind, points), rank, n, cv), weights


@functools.lru_cache(maxsize=1 << 12)
def _quantiles(kind: str, points: int, rank: int, n: int, cv: float) -> Floats:
    if cv < NO_SPREAD:
        return np.ones(points)
    below, above, weights = _probabilities(points)
    values = _factor(*_single_draw(rank, n, below, above), cv, kind)
    values *= _expected(kind, rank, n, cv) / (weights @ values)
    values.setflags(write=False)
    return values


@functools.cache
def _probabilities(points: int) -> tuple[Floats, Floats, Floats]:
    """Return the probabilities of being below and above each value, and its weight."""
    roots, weights = np.polynomial.legendre.leggauss(points)
    low, high = (1.0 + roots) / 2.0, (1.0 - roots) / 2.0
    weights = 3.0 * weights * low * high
    weights.setflags(write=False)
    return low**2 * (3.0 - 2.0 * low), high**2 * (3.0 - 2.0 * high), weights


def quantiles_of_unequal(
    counts: Sequence[Quantity],
    scales: Sequence[Quantity],
    cv: Quantity,
    kind: str,
    *,
    late: int = 0,
    points: int = POINTS,
) -> tuple[Floats, Floats]:
    r"""Return values of the slowest of unequal workers, and weights, to average a function of it.

    Group g has ``counts[g]`` workers, whose times are factors times ``scales[g]``. All are
    independent, so the distribution function of the slowest is

    .. math:: \prod_g F(x / s_g)^{n_g}

    (David, Nagaraja, ch. 5). With ``late`` > 0, the ``late`` slowest workers are ignored. The
    distribution function is evaluated on a grid of 512 points in log x, from which quantiles are
    interpolated; the mean of the values is within 2e-4 of the expected value.

    Parameters
    ----------
    counts, scales : of each group, (groups,); counts are whole numbers if ``late`` is not 0.
    cv, kind : see :func:`expected_order_statistic`; ``cv`` is a number or an array.
    late : number of slowest workers to ignore; fewer than there are workers.
    points : number of values.

    Returns
    -------
    values : (..., points), ascending; weights : (points,), which add up to 1.

    Raises
    ------
    InputError : as for :func:`quantiles_of_order_statistic`; ``late`` too large.

    >>> slowest, weights = quantiles_of_unequal([3, 1], [1.0, 2.0], 0.1, "lognormal")
    >>> round(float(weights @ slowest), 3)
    2.0
    """
    _, _, cv = _checked(1, 1, cv, kind)
    whole_number("points", points)
    if sum(counts) <= whole_number("late", late, at_least=0):
        raise InputError(f"late: expected fewer than {sum(counts)} workers, got {late}")
    values = functools.partial(_unequal, tuple(counts), tuple(scales), late, kind, points)
    return _each(values, cv), _probabilities(points)[2]


@functools.lru_cache(maxsize=1 << 12)
def _unequal(
    counts: tuple[float, ...],
    scales: tuple[float, ...],
    late: int,
    kind: str,
    points: int,
    cv: float,
) -> Floats:
    most = max(scales)
    times = [scale for n, scale in zip(counts, scales, strict=True) for _ in range(int(n))]
    least = sorted(times)[-1 - late] if late else most
    if cv < NO_SPREAD:
        return np.full(points, least)
    below, _, weights = _probabilities(points)
    low, x = _grid(least, most, sum(counts), kind, cv)
    within = _within(counts, scales, late, kind, cv, x)
    # the mean, computed as the integral of the complementary distribution function
    beyond = 1.0 - within
    mean = low + float(((beyond[1:] + beyond[:-1]) / 2.0 * np.diff(x)).sum())
    rising, first = np.unique(within, return_index=True)
    values = np.interp(below, rising, x[first])
    values *= mean / (weights @ values)
    values.setflags(write=False)
    return values


def quantiles_of_mixture(
    counts: Sequence[int],
    scales: Sequence[Quantity],
    cv: Quantity,
    kind: str,
    parts: Sequence[float],
) -> Floats:
    """Return quantiles of the times of unequal workers taken together, (..., parts).

    Parameters and errors as for :func:`quantiles_of_unequal`; ``parts`` are the probabilities, more
    than 0 and less than 1.

    >>> quantiles_of_mixture([3, 1], [1.0, 2.0], 0.0, "gamma", [0.5, 0.9]).tolist()
    [1.0, 2.0]
    """
    _, _, cv = _checked(1, 1, cv, kind)
    quantiles: Floats = _each(
        functools.partial(_mixture, tuple(counts), tuple(scales), kind, tuple(parts)), cv
    )
    return quantiles


@functools.lru_cache(maxsize=1 << 12)
def _mixture(
    counts: tuple[int, ...],
    scales: tuple[float, ...],
    kind: str,
    parts: tuple[float, ...],
    cv: float,
) -> Floats:
    if cv < NO_SPREAD:
        every = np.sort(np.repeat(np.array(scales), np.array(counts)))
        middle: Floats = every[np.floor(np.array(parts) * len(every)).astype(np.int64)]
        return middle
    _, x = _grid(min(scales), max(scales), 1, kind, cv)
    groups = zip(counts, scales, strict=True)
    chance = sum(n * _below(x / scale, cv, kind) for n, scale in groups) / sum(counts)
    rising, first = np.unique(chance, return_index=True)
    return np.interp(parts, rising, x[first])


def _grid(least: float, most: float, n: float, kind: str, cv: float) -> tuple[float, Floats]:
    """Return the lowest point of a grid that covers all but ``RARE`` of the times, and the grid."""
    rare = np.array([RARE, RARE / n])
    low, high = _factor(rare, 1.0 - rare, cv, kind)[0], _factor(1.0 - rare, rare, cv, kind)[1]
    low = least * max(float(low), LEAST)
    return low, np.exp(np.linspace(np.log(low), np.log(most * float(high)), GRID))


def _within(
    counts: tuple[float, ...],
    scales: tuple[float, ...],
    late: int,
    kind: str,
    cv: float,
    x: Floats,
) -> Floats:
    """Return the probability that at most ``late`` of all workers are above each x."""
    from scipy import special

    chance = np.zeros((late + 1, len(x)))  # by number of workers above x, in the groups so far
    chance[0] = 1.0
    for count, scale in zip(counts, scales, strict=True):
        below = _below(x / scale, cv, kind)
        if late == 0:
            chance *= below**count
            continue
        above = np.stack(
            [
                special.comb(count, k) * (1.0 - below) ** k * below ** max(count - k, 0)
                for k in range(late + 1)
            ]
        )
        chance = np.stack(
            [sum(chance[k - j] * above[j] for j in range(k + 1)) for k in range(late + 1)]
        )
    probability: Floats = chance.sum(axis=0)
    return probability


def _below(factor: Floats, cv: float, kind: str) -> Floats:
    """Return the distribution function of a factor: the inverse of :func:`_factor`."""
    from scipy import special

    if kind == "lognormal":
        variance = np.log1p(cv**2)
        return np.asarray(special.ndtr((np.log(factor) + 0.5 * variance) / np.sqrt(variance)))
    return np.asarray(special.gammainc(1.0 / cv**2, factor / cv**2))


def quantile(part: Quantity, cv: Quantity, kind: str) -> Quantity:
    """Return a quantile of a factor, as a multiple of the mean.

    Parameters
    ----------
    part : the probability, more than 0, less than 1; a number or an array.
    cv, kind : see :func:`expected_order_statistic`.

    Raises
    ------
    InputError : as for :func:`expected_order_statistic`.

    >>> round(quantile(0.5, 1.0, "gamma"), 9)
    0.693147181
    """
    _, _, cv = _checked(1, 1, cv, kind)
    part = quantity("part", part, at_most=1.0)
    if np.any((np.asarray(part) == 0.0) | (np.asarray(part) == 1.0)):
        raise InputError("part: must be more than 0 and less than 1")
    factor = _factor(np.asarray(part), 1.0 - np.asarray(part), np.asarray(cv), kind)
    return factor if factor.ndim else float(factor)


def _single_draw(rank: int, n: int, below: Floats, above: Floats) -> tuple[Floats, Floats]:
    """Return the single-draw probabilities for a quantile of an order statistic.

    A factor is below the quantile with the first and above it with the second probability.
    ``below`` and ``above`` are the same for the k-th of n. Both are computed, because one minus a
    probability close to one loses all digits.
    """
    from scipy import special

    if rank == n:
        power = np.where(below < 0.5, np.log(below), np.log1p(-np.minimum(above, 0.5))) / n
        return np.exp(power), -np.expm1(power)
    others = n - rank + 1
    return special.betaincinv(rank, others, below), special.betaincinv(others, rank, above)


def _factor(below: Floats, above: Floats, cv: ArrayLike, kind: str) -> Floats:
    """Return a quantile of a factor, from the probabilities of being below and above it."""
    from scipy import special

    cv = np.asarray(cv, np.float64)
    if kind == "lognormal":
        variance = np.log1p(cv**2)
        score = np.where(below < 0.5, special.ndtri(below), -special.ndtri(above))
        factor: Floats = np.exp(np.sqrt(variance) * score - 0.5 * variance)
        return factor
    spread = cv >= NO_SPREAD
    shape = 1.0 / np.where(spread, cv, 1.0) ** 2
    lower, upper = special.gammaincinv(shape, below), special.gammainccinv(shape, above)
    return np.where(spread, np.where(below < 0.5, lower, upper) / shape, 1.0)


# -- arguments -------------------------------------------------------------------------------------


def _each(function: Callable[..., float | Floats], *arguments: Quantity) -> Any:
    """Apply a function of numbers to arrays, calling it once for equal elements.

    All results have one shape, which becomes the last axes.
    """
    if not any(isinstance(value, np.ndarray) for value in arguments):
        return function(*arguments)
    code: Any = 0
    for value in arguments:
        distinct, which = np.unique(value, return_inverse=True)
        code = code * len(distinct) + which.reshape(np.shape(value))
    _, first, which = np.unique(code, return_index=True, return_inverse=True)
    columns = [np.broadcast_to(v, np.shape(code)).reshape(-1)[first].tolist() for v in arguments]
    answers = np.array([function(*row) for row in zip(*columns, strict=True)])
    return answers[which].reshape(*np.shape(code), *answers.shape[1:])


def _checked(
    rank: Quantity, n: Quantity, cv: Quantity, kind: str
) -> tuple[Quantity, Quantity, Quantity]:
    """Check ranks, numbers of factors and coefficients of variation, alone and together."""
    if kind not in KINDS:
        raise unknown_name("distribution", kind, KINDS)
    cv = quantity("cv", cv)
    n, rank = whole_quantity("n", n), whole_quantity("rank", rank)
    if any(is_symbol(value) for value in (rank, n, cv)):
        raise InputError("rank, n, cv: expected numbers, got a symbol")
    together("rank, n, cv", rank, n, cv)
    if np.any(np.asarray(rank) > n):
        raise InputError("rank: must be at most n")
    return rank, n, cv
