r"""Order statistics of random times: how long the slowest of n workers takes, or the k-th.

Times vary by independent *factors* of mean 1 and coefficient of variation c, of one distribution:

- *lognormal*: :math:`\exp(\sigma z - \sigma^2/2)`, z normal and :math:`\sigma^2 = \ln(1+c^2)`;
- *gamma*: of the shape :math:`1/c^2`, which is exponential for c = 1;
- *exponential*: :math:`1 - c` and an exponential part of mean c, for c up to 1.

Where c is 0, or below :data:`perfmodel.base.quantities.NO_SPREAD`, every factor is 1. The k-th of n
is the k-th smallest; k = n is the slowest worker.

David, Nagaraja, "Order Statistics", 3rd edition, 2003, doi 10.1002/0471722162, has all of this.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from perfmodel.base.errors import InputError, unknown_name, whole_number
from perfmodel.base.quantities import (
    NO_SPREAD,
    Quantity,
    is_symbol,
    quantity,
    together,
    whole_quantity,
)

Floats = NDArray[np.float64]

KINDS = ("lognormal", "gamma", "exponential")
"""Distributions."""

NODES = 64
"""Points of the quadrature of an expected value."""
POINTS = 16
"""Points at which a function of an order statistic is averaged, unless said otherwise."""
GRID = 512
"""Points at which the distribution of the slowest of workers that differ is worked out."""
RARE, LEAST = 1e-10, 1e-3
"""Probability that is left out at either end of these points; and the lowest of them, as a
multiple of a group's mean."""
FEW = 4096
"""Terms of a harmonic number up to which they are added one by one, without loss of digits."""


# -- expected values -------------------------------------------------------------------------------


def expected_maximum(n: Quantity, cv: Quantity, kind: str) -> Quantity:
    r"""Expected largest of n factors, as a multiple of their mean.

    Exponential: :math:`1 - c + c H_n` with the harmonic number :math:`H_n`. Others: see
    :func:`expected_order_statistic`, with k = n.

    >>> expected_maximum(4, 1.0, "exponential")
    2.083333333333333
    >>> expected_maximum(np.array([1, 8, 64]), 0.1, "lognormal").round(4).tolist()
    [1.0, 1.149, 1.2584]
    """
    return expected_order_statistic(n, n, cv, kind)


def expected_order_statistic(rank: Quantity, n: Quantity, cv: Quantity, kind: str) -> Quantity:
    r"""Expected k-th smallest of n factors, as a multiple of their mean.

    .. math:: \mathrm{E} X_{k:n} = \int_0^1 F^{-1}(I^{-1}_{k,n-k+1}(p)) \, dp

    with the distribution function F of one factor, and the regularised incomplete beta function I:
    of n probabilities of factors, the k-th smallest has a beta distribution. By Gauss-Hermite
    quadrature over the normal score of p, to a relative error of 1e-8 for c up to 5. Exponential
    in closed form: :math:`1 - c + c (H_n - H_{n-k})`.

    Parameters
    ----------
    rank, n : whole numbers, 1 to n and at least 1; arrays broadcast with ``cv``, and equal values
        are computed once. Symbols, or a symbolic ``cv``, give an expression: with
        ``sympy.harmonic``, or for other distributions a function that SymPy knows nothing of, such
        as ``E_max_gamma(n, cv)`` or ``E_order_gamma(rank, n, cv)``.
    cv : coefficient of variation; a number, an array or a symbol.
    kind : distribution.

    Raises
    ------
    InputError : a number out of range; an unknown distribution; an exponential one, and ``cv`` more
        than 1.

    >>> expected_order_statistic(3, 4, 1.0, "exponential")
    1.0833333333333333
    >>> import sympy
    >>> expected_order_statistic(3, sympy.Symbol("n"), sympy.Symbol("c"), "exponential")
    c*(harmonic(n) - harmonic(n - 3)) - c + 1
    """
    rank, n, cv = _checked(rank, n, cv, kind)
    if any(is_symbol(value) for value in (rank, n, cv)):
        import sympy

        if n == 1 or cv == 0.0:
            return 1.0
        if kind == "exponential":
            return 1 - cv + cv * (sympy.harmonic(n) - sympy.harmonic(n - rank))
        if rank == n:
            return sympy.Function(f"E_max_{kind}")(n, cv)
        return sympy.Function(f"E_order_{kind}")(rank, n, cv)
    return _each(functools.partial(_expected, kind), rank, n, cv)


@functools.lru_cache(maxsize=1 << 16)
def _expected(kind: str, rank: int, n: int, cv: float) -> float:
    if cv < NO_SPREAD or n == 1:
        return 1.0
    if kind == "exponential":
        return 1.0 - cv + cv * _harmonic(rank, n)
    from scipy import special

    scores, weights = _hermite()
    below, above = _of_one(rank, n, special.ndtr(scores), special.ndtr(-scores))
    return float(weights @ _factor(below, above, cv, kind))


def _harmonic(rank: int, n: int) -> float:
    """1/n + 1/(n-1) + ..., of so many terms as the rank."""
    if rank <= FEW:
        return float((1.0 / np.arange(n - rank + 1, n + 1)).sum())
    from scipy import special

    return float(special.psi(n + 1) - special.psi(n - rank + 1))


@functools.cache
def _hermite() -> tuple[Floats, Floats]:
    scores, weights = np.polynomial.hermite_e.hermegauss(NODES)
    return scores, weights / weights.sum()


# -- functions of an order statistic ---------------------------------------------------------------


def quantiles_of_maximum(
    n: Quantity, cv: Quantity, kind: str, points: int = POINTS
) -> tuple[Floats, Floats]:
    """Values of the largest of n factors, and weights, to average a function of it.

    See :func:`quantiles_of_order_statistic`, with the rank n.

    >>> slowest, weights = quantiles_of_maximum(8, 0.5, "lognormal")
    >>> round(float(weights @ slowest), 3), round(float(weights @ np.maximum(slowest, 1.5)), 3)
    (1.83, 1.895)
    """
    return quantiles_of_order_statistic(n, n, cv, kind, points)


def quantiles_of_order_statistic(
    rank: Quantity, n: Quantity, cv: Quantity, kind: str, points: int = POINTS
) -> tuple[Floats, Floats]:
    r"""Values of the k-th smallest of n factors, and weights, to average a function of it.

    .. math:: \mathrm{E} g(X_{k:n}) \approx \sum_j w_j g(x_j)

    Gauss-Legendre nodes v in (0, 1), at the probabilities :math:`p = v^2 (3 - 2 v)`: these crowd
    at both ends, where tails are long, and are still dense in the middle, where a function may
    have a kink. Values are scaled, by 2e-4 at most for c up to 1, so that the average of the values
    themselves is the expected one. With 16 points the average of max(x, a) is within 0.3 % for c up
    to 1, within 0.05 % for c up to 0.1.

    Parameters
    ----------
    rank, n, cv, kind : see :func:`expected_order_statistic`; numbers or arrays.
    points : how many.

    Returns
    -------
    values : (..., points) as multiples of the mean of a factor, ascending.
    weights : (points,) that add up to 1.

    Raises
    ------
    InputError : as :func:`expected_order_statistic`; also for symbols, and ``points`` below 1.
    """
    rank, n, cv = _checked(rank, n, cv, kind)
    whole_number("points", points)
    if any(is_symbol(value) for value in (rank, n, cv)):
        raise InputError("quantiles: expected numbers, got a symbol")
    _, _, weights = _probabilities(points)
    return _each(functools.partial(_quantiles, kind, points), rank, n, cv), weights


@functools.lru_cache(maxsize=1 << 12)
def _quantiles(kind: str, points: int, rank: int, n: int, cv: float) -> Floats:
    if cv < NO_SPREAD:
        return np.ones(points)
    below, above, weights = _probabilities(points)
    values = _factor(*_of_one(rank, n, below, above), cv, kind)
    values *= _expected(kind, rank, n, cv) / (weights @ values)
    values.setflags(write=False)
    return values


@functools.cache
def _probabilities(points: int) -> tuple[Floats, Floats, Floats]:
    """Chances to be below and above each value, and its weight."""
    roots, weights = np.polynomial.legendre.leggauss(points)
    low, high = (1.0 + roots) / 2.0, (1.0 - roots) / 2.0
    weights = 3.0 * weights * low * high
    weights.setflags(write=False)
    return low**2 * (3.0 - 2.0 * low), high**2 * (3.0 - 2.0 * high), weights


def quantiles_of_unequal(
    counts: Sequence[float],
    scales: Sequence[float],
    cv: Quantity,
    kind: str,
    *,
    late: int = 0,
    points: int = POINTS,
) -> tuple[Floats, Floats]:
    r"""Values of the slowest of workers that differ, and weights, to average a function of it.

    Of group g there are ``counts[g]`` workers, whose times are factors times ``scales[g]``. All are
    independent, so that the slowest is within x with the probability

    .. math:: \prod_g F(x / s_g)^{n_g}

    (David, Nagaraja, ch. 5). Where the ``late`` slowest do not count, as many may be beyond x. The
    probability is worked out at 512 points of the logarithm of x, the quantiles are interpolated;
    the mean of the values is within 2e-4 of the expected one.

    Parameters
    ----------
    counts, scales : of each group, (groups,); counts are whole numbers where any are ``late``.
    cv, kind : see :func:`expected_order_statistic`; ``cv`` a number or an array.
    late : fewer than there are workers.
    points : how many.

    Returns
    -------
    values : (..., points), ascending; weights : (points,) that add up to 1.

    Raises
    ------
    InputError : as :func:`quantiles_of_order_statistic`; ``late`` too large.

    >>> slowest, weights = quantiles_of_unequal([3, 1], [1.0, 2.0], 0.1, "lognormal")
    >>> round(float(weights @ slowest), 3)
    2.0
    """
    _, _, cv = _checked(1, 1, cv, kind)
    whole_number("points", points)
    if is_symbol(cv):
        raise InputError("quantiles: expected numbers, got a symbol")
    if sum(counts) <= whole_number("late", late, at_least=0):
        raise InputError(f"late: expected fewer than {sum(counts)} workers, got {late}")
    found = functools.partial(_unequal, tuple(counts), tuple(scales), late, kind, points)
    return _each(found, cv), _probabilities(points)[2]


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
    each = [scale for n, scale in zip(counts, scales, strict=True) for _ in range(int(n))]
    least = sorted(each)[-1 - late] if late else most
    if cv < NO_SPREAD:
        return np.full(points, least)
    below, _, weights = _probabilities(points)
    low, x = _grid(least, most, sum(counts), kind, cv)
    within = _within(counts, scales, late, kind, cv, x)
    # the mean, as the integral of what is beyond x
    beyond = 1.0 - within
    mean = low + float(((beyond[1:] + beyond[:-1]) / 2.0 * np.diff(x)).sum())
    rising, first = np.unique(within, return_index=True)
    values = np.interp(below, rising, x[first])
    values *= mean / (weights @ values)
    values.setflags(write=False)
    return values


def quantiles_of_mixture(
    counts: Sequence[int], scales: Sequence[float], cv: Quantity, kind: str, parts: Sequence[float]
) -> Floats:
    """What these parts of all workers are below, where workers differ, (..., parts).

    Parameters and errors as for :func:`quantiles_of_unequal`; ``parts`` are more than 0 and less
    than 1.

    >>> quantiles_of_mixture([3, 1], [1.0, 2.0], 0.0, "gamma", [0.5, 0.9]).tolist()
    [1.0, 2.0]
    """
    _, _, cv = _checked(1, 1, cv, kind)
    found: Floats = _each(
        functools.partial(_mixture, tuple(counts), tuple(scales), kind, tuple(parts)), cv
    )
    return found


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
    each = zip(counts, scales, strict=True)
    chance = sum(n * _below(x / scale, cv, kind) for n, scale in each) / sum(counts)
    rising, first = np.unique(chance, return_index=True)
    return np.interp(parts, rising, x[first])


def _grid(least: float, most: float, n: float, kind: str, cv: float) -> tuple[float, Floats]:
    """The lowest of points that hold next to all times, and these points."""
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
    """The chance that at most ``late`` of all workers are beyond each x."""
    from scipy import special

    chance = np.zeros((late + 1, len(x)))  # of so many beyond, among the groups so far
    chance[0] = 1.0
    for count, scale in zip(counts, scales, strict=True):
        below = _below(x / scale, cv, kind)
        if late == 0:
            chance *= below**count
            continue
        own = np.stack(
            [
                special.comb(count, k) * (1.0 - below) ** k * below ** max(count - k, 0)
                for k in range(late + 1)
            ]
        )
        chance = np.stack(
            [sum(chance[k - j] * own[j] for j in range(k + 1)) for k in range(late + 1)]
        )
    found: Floats = chance.sum(axis=0)
    return found


def _below(factor: Floats, cv: float, kind: str) -> Floats:
    """The chance of a factor to be below each value: the inverse of :func:`_factor`."""
    from scipy import special

    if kind == "exponential":
        return np.where(factor > 1.0 - cv, -np.expm1(-(factor - (1.0 - cv)) / cv), 0.0)
    if kind == "lognormal":
        variance = np.log1p(cv**2)
        return np.asarray(special.ndtr((np.log(factor) + 0.5 * variance) / np.sqrt(variance)))
    return np.asarray(special.gammainc(1.0 / cv**2, factor / cv**2))


def quantile(part: Quantity, cv: Quantity, kind: str) -> Quantity:
    """The factor that this part of all factors is below, as a multiple of their mean.

    Parameters
    ----------
    part : more than 0, less than 1; a number, an array or a symbol.
    cv, kind : see :func:`expected_order_statistic`. Symbols give a function that SymPy knows
        nothing of, such as ``quantile_gamma(part, cv)``.

    Raises
    ------
    InputError : as :func:`expected_order_statistic`.

    >>> quantile(0.5, 1.0, "exponential")
    0.6931471805599453
    """
    _, _, cv = _checked(1, 1, cv, kind)
    part = quantity("part", part, at_most=1.0)
    if np.any((np.asarray(part) == 0.0) | (np.asarray(part) == 1.0)):
        raise InputError("part: must be more than 0 and less than 1")
    if is_symbol(part) or is_symbol(cv):
        import sympy

        return sympy.Function(f"quantile_{kind}")(part, cv)
    found = _factor(np.asarray(part), 1.0 - np.asarray(part), np.asarray(cv), kind)
    return found if found.ndim else float(found)


def _of_one(rank: int, n: int, below: Floats, above: Floats) -> tuple[Floats, Floats]:
    """Chances of one factor to be below and above what the k-th of n is below and above with the
    given chances. Both are worked out, since 1 less the other has no digits where it is small."""
    from scipy import special

    if rank == n:
        power = np.where(below < 0.5, np.log(below), np.log1p(-np.minimum(above, 0.5))) / n
        return np.exp(power), -np.expm1(power)
    others = n - rank + 1
    return special.betaincinv(rank, others, below), special.betaincinv(others, rank, above)


def _factor(below: Floats, above: Floats, cv: ArrayLike, kind: str) -> Floats:
    """What a factor is below and above with the given chances."""
    from scipy import special

    cv = np.asarray(cv, np.float64)
    if kind == "exponential":
        return 1.0 - cv * (1.0 + np.log(above))
    if kind == "lognormal":
        variance = np.log1p(cv**2)
        score = np.where(below < 0.5, special.ndtri(below), -special.ndtri(above))
        factor: Floats = np.exp(np.sqrt(variance) * score - 0.5 * variance)
        return factor
    spread = cv >= NO_SPREAD
    shape = 1.0 / np.where(spread, cv, 1.0) ** 2
    lower, upper = special.gammaincinv(shape, below), special.gammainccinv(shape, above)
    return np.where(spread, np.where(below < 0.5, lower, upper) / shape, 1.0)


# -- measured factors ------------------------------------------------------------------------------


def empirical_maximum(n: Quantity, factors: ArrayLike) -> Quantity:
    """Expected largest of n draws from measured factors, as a multiple of their mean.

    See :func:`empirical_order_statistic`, with the rank n.

    >>> empirical_maximum(2, [1.0, 3.0])
    1.25
    """
    return empirical_order_statistic(n, n, factors)


def empirical_order_statistic(rank: Quantity, n: Quantity, factors: ArrayLike) -> Quantity:
    r"""Expected k-th smallest of n draws from m measured factors, as a multiple of their mean.

    .. math:: \sum_{i=1}^m x_{(i)} \left(I_{i/m}(k, n-k+1) - I_{(i-1)/m}(k, n-k+1)\right)

    Exact for draws with replacement, that is, from the distribution that the measured ones make.
    That has no factor above the largest: with n beyond m / 10 or so it says more of chance.

    Parameters
    ----------
    rank, n : whole numbers, or arrays that broadcast.
    factors : (m,) times, or factors of any mean.

    Raises
    ------
    InputError : a number out of range; no factors, or none above 0.

    >>> empirical_order_statistic(1, 2, [1.0, 3.0])
    0.75
    """
    rank, n, _ = _checked(rank, n, 0.0, "gamma")
    values = np.sort(np.asarray(factors, np.float64).ravel())
    quantity("factors", values)
    if not values.any():
        raise InputError("factors: expected some above 0")
    values /= values.mean()
    parts = np.arange(len(values) + 1) / len(values)

    def expected(rank: int, n: int) -> float:
        from scipy import special

        return float(np.diff(special.betainc(rank, n - rank + 1, parts)) @ values)

    return _each(expected, rank, n)


# -- what is given ---------------------------------------------------------------------------------


def _each(function: Callable[..., float | Floats], *given: Quantity) -> Any:
    """A function of numbers, for all elements of arrays; called once where these are the same.

    Its answers, of one shape, are along the last axes.
    """
    if not any(isinstance(value, np.ndarray) for value in given):
        return function(*given)
    code: Any = 0
    for value in given:
        found, which = np.unique(value, return_inverse=True)
        code = code * len(found) + which.reshape(np.shape(value))
    _, first, which = np.unique(code, return_index=True, return_inverse=True)
    columns = [np.broadcast_to(v, np.shape(code)).reshape(-1)[first].tolist() for v in given]
    answers = np.array([function(*row) for row in zip(*columns, strict=True)])
    return answers[which].reshape(*np.shape(code), *answers.shape[1:])


def _checked(
    rank: Quantity, n: Quantity, cv: Quantity, kind: str
) -> tuple[Quantity, Quantity, Quantity]:
    """Ranks, numbers of factors and coefficients of variation, if they can be used together."""
    if kind not in KINDS:
        raise unknown_name("distribution", kind, KINDS)
    cv = quantity("cv", cv, at_most=1.0 if kind == "exponential" else np.inf)
    n, rank = whole_quantity("n", n), whole_quantity("rank", rank)
    together("rank, n, cv", rank, n, cv)
    if not is_symbol(rank) and not is_symbol(n) and np.any(np.asarray(rank) > n):
        raise InputError("rank: must be at most n")
    return rank, n, cv
