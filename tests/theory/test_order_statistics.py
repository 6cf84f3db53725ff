"""Expected order statistics against tables, closed forms, recurrences and direct integration."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import mpmath
import numpy as np
import pytest
import sympy
from hypothesis import given, strategies as st
from scipy import special

from perfmodel import InputError
from perfmodel.engine import noise
from perfmodel.graph.builder import KINDS as SIMULATED
from perfmodel.theory.order_statistics import (
    KINDS,
    expected_maximum,
    expected_order_statistic,
    quantile,
    quantiles_of_order_statistic,
)
from tests.settings import examples

ACCURACY = 1e-6
"""Relative accuracy of quadrature."""

few = examples(60)
kinds = st.sampled_from(KINDS)
spreads = st.floats(0.001, 1.0)

N, C = sympy.symbols("n c", positive=True)

Expected = Callable[[int, int, float, str], float]
"""Maps rank, n, cv and kind to the expected order statistic."""

# -- tables and closed forms -----------------------------------------------------------------------

LARGEST_NORMAL = {2: 0.56419, 3: 0.84628, 4: 1.02938, 5: 1.16296, 10: 1.53875}
"""Expected largest of n normal scores: Harter, "Expected values of normal order statistics",
Biometrika 48, 1961, doi 10.1093/biomet/48.1-2.151, table 1."""


@pytest.mark.parametrize("kind", ["lognormal", "gamma"])
@pytest.mark.parametrize("n", LARGEST_NORMAL)
def test_small_spreads_are_normal(kind: str, n: int) -> None:
    score = (expected_maximum(n, 1e-6, kind) - 1.0) / 1e-6
    assert score == pytest.approx(LARGEST_NORMAL[n], abs=1e-5)


@pytest.mark.parametrize("cv", [0.01, 0.1, 0.5, 1.0, 2.0, 5.0])
def test_the_slower_of_two(cv: float) -> None:
    """1 and the Gini coefficient of the distribution."""
    lognormal = math.erf(math.sqrt(math.log1p(cv**2)) / 2.0)
    shape = 1.0 / cv**2
    gamma = special.poch(shape, 0.5) / math.sqrt(math.pi) / shape
    assert expected_maximum(2, cv, "lognormal") == pytest.approx(1.0 + lognormal, rel=ACCURACY)
    assert expected_maximum(2, cv, "gamma") == pytest.approx(1.0 + gamma, rel=ACCURACY)


def harmonic(n: int) -> Fraction:
    return sum((Fraction(1, i) for i in range(1, n + 1)), Fraction(0))


@pytest.mark.parametrize("n", [1, 2, 7, 64])
def test_exponential_is_harmonic(n: int) -> None:
    """A gamma distribution of c = 1 is exponential."""
    for rank in range(1, n + 1):
        exact = float(harmonic(n) - harmonic(n - rank))
        found = expected_order_statistic(rank, n, 1.0, "gamma")
        assert found == pytest.approx(exact, rel=ACCURACY)


# -- direct integration ----------------------------------------------------------------------------


@functools.cache
def integrated(rank: int, n: int, cv: float, kind: str) -> float:
    """The integral of x times the density of the k-th of n, to 20 digits."""
    spread = mpmath.mpf(cv)
    with mpmath.workdps(20):
        if kind == "lognormal":  # integrate over the standardised logarithm
            sigma = mpmath.sqrt(mpmath.log1p(spread**2))
            cdf, tail, density = mpmath.ncdf, lambda z: mpmath.ncdf(-z), mpmath.npdf
            value = lambda z: mpmath.exp(sigma * z - sigma**2 / 2)  # noqa: E731
            pieces = [-20, -8, -4, -2, 0, 2, 4, 8, 20]
        else:  # also over the logarithm: a gamma density may have a pole at 0
            shape = 1 / spread**2
            cdf = lambda z: mpmath.gammainc(shape, 0, shape * mpmath.exp(z), True)  # noqa: E731
            tail = lambda z: mpmath.gammainc(shape, shape * mpmath.exp(z), mpmath.inf, True)  # noqa: E731
            density = lambda z: (  # noqa: E731
                mpmath.exp(shape * (mpmath.log(shape) + z - mpmath.exp(z))) / mpmath.gamma(shape)
            )
            value = mpmath.exp
            width = float(1 / mpmath.sqrt(shape))
            pieces = [-60 * width, *(k * width for k in (-9, -5, -3, -2, -1, 0, 1, 2, 3)), 6.0]
        ways = rank * mpmath.binomial(n, rank)
        return float(
            mpmath.quad(
                lambda z: (
                    value(z) * ways * cdf(z) ** (rank - 1) * tail(z) ** (n - rank) * density(z)
                ),
                pieces,
            )
        )


CASES = [
    (8, 8, 0.1, "lognormal"),
    (64, 64, 0.5, "lognormal"),
    (1000, 1000, 1.0, "lognormal"),
    (60, 64, 0.3, "lognormal"),
    (1, 8, 1.0, "lognormal"),
    (64, 64, 3.0, "lognormal"),
    (8, 8, 0.1, "gamma"),
    (30, 32, 0.5, "gamma"),
    (4, 9, 2.0, "gamma"),
]


def equals_the_integral(expected: Expected, case: tuple[int, int, float, str]) -> None:
    assert expected(*case) == pytest.approx(integrated(*case), rel=ACCURACY)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_order_statistics_equal_the_integral(case: tuple[int, int, float, str]) -> None:
    equals_the_integral(expected_order_statistic, case)


@pytest.mark.sampled(9)
@pytest.mark.parametrize("case", CASES)
def test_canary_another_spread_is_noticed(case: tuple[int, int, float, str]) -> None:
    def wrong(rank: int, n: int, cv: float, kind: str) -> float:
        return float(expected_order_statistic(rank, n, cv * (1.0 + 1e-4), kind))

    with pytest.raises(AssertionError):
        equals_the_integral(wrong, case)


# -- identities ------------------------------------------------------------------------------------


def add_up(expected: Expected, n: int, cv: float, kind: str) -> None:
    """Check the sum: the n order statistics are the n factors in another order."""
    total = math.fsum(expected(rank, n, cv, kind) for rank in range(1, n + 1))
    assert total == pytest.approx(n, rel=ACCURACY)


def recur(expected: Expected, rank: int, n: int, cv: float, kind: str) -> None:
    """(n - k) E X_{k:n} + k E X_{k+1:n} = n E X_{k:n-1}: David, Nagaraja, 2003, section 3.4."""
    both = (n - rank) * expected(rank, n, cv, kind) + rank * expected(rank + 1, n, cv, kind)
    assert both == pytest.approx(n * expected(rank, n - 1, cv, kind), rel=ACCURACY)


@few
@given(n=st.integers(1, 40), cv=spreads, kind=kinds)
def test_order_statistics_add_up(n: int, cv: float, kind: str) -> None:
    add_up(expected_order_statistic, n, cv, kind)


@few
@given(n=st.integers(2, 200), part=st.floats(0.0, 1.0, exclude_max=True), cv=spreads, kind=kinds)
def test_order_statistics_recur(n: int, part: float, cv: float, kind: str) -> None:
    recur(expected_order_statistic, 1 + int(part * (n - 1)), n, cv, kind)


@few
@given(n=st.integers(2, 200), cv=spreads, kind=kinds)
def test_order_statistics_grow_with_n_and_rank(n: int, cv: float, kind: str) -> None:
    ranked = [expected_order_statistic(rank, n, cv, kind) for rank in (1, n // 2 + 1, n)]
    assert ranked == sorted(ranked)
    assert expected_maximum(n - 1, cv, kind) < expected_maximum(n, cv, kind)
    assert expected_maximum(n, cv / 2, kind) < expected_maximum(n, cv, kind)


@few
@given(n=st.integers(1, 1000), kind=kinds)
def test_without_spread_all_are_one(n: int, kind: str) -> None:
    assert expected_maximum(n, 0.0, kind) == 1.0
    assert expected_order_statistic(1, n, 0, kind) == 1.0
    values, _ = quantiles_of_order_statistic(n, n, 0.0, kind)
    assert np.all(values == 1.0)
    assert quantile(0.3, 0.0, kind) == 1.0


@pytest.mark.parametrize("kind", KINDS)
def test_canary_a_rank_off_by_one_is_noticed(kind: str) -> None:
    def shifted(rank: int, n: int, cv: float, kind: str) -> float:
        return float(expected_order_statistic(max(rank - 1, 1), n, cv, kind))

    def fewer(rank: int, n: int, cv: float, kind: str) -> float:
        return float(expected_order_statistic(min(rank, n - 1), max(n - 1, 1), cv, kind))

    for wrong in (shifted, fewer):
        with pytest.raises(AssertionError):
            add_up(wrong, 8, 0.1, kind)
        with pytest.raises(AssertionError):
            recur(wrong, 5, 8, 0.1, kind)


# -- arrays and symbols ----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_arrays_equal_scalars(kind: str) -> None:
    n = np.array([[1], [4], [64], [4]])
    cv = np.array([0.0, 0.1, 1.0])
    found = expected_maximum(n, cv, kind)
    ranked = expected_order_statistic(np.minimum(n, 3), n, cv, kind)
    assert found.shape == ranked.shape == (4, 3)
    for i, j in np.ndindex(4, 3):
        count, spread = int(n[i, 0]), float(cv[j])
        assert found[i, j] == expected_maximum(count, spread, kind)
        assert ranked[i, j] == expected_order_statistic(min(count, 3), count, spread, kind)


# -- functions of an order statistic ---------------------------------------------------------------


@pytest.mark.sampled(4)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("rank", "n"), [(1, 1), (4, 4), (64, 64), (3, 5)])
@pytest.mark.parametrize(("cv", "within"), [(0.1, 5e-4), (1.0, 3e-3)])
def test_a_convex_function_is_averaged(
    kind: str, rank: int, n: int, cv: float, within: float
) -> None:
    """max(x, a) for a from the fastest tenth to the slowest."""
    values, weights = quantiles_of_order_statistic(rank, n, cv, kind)
    assert values.shape == weights.shape == (16,)
    assert np.all(np.diff(values) > 0.0)
    assert weights.sum() == pytest.approx(1.0, rel=1e-12)
    mean = expected_order_statistic(rank, n, cv, kind)
    assert float(weights @ values) == pytest.approx(mean, rel=1e-12)
    p = (np.arange(50_000) + 0.5) / 50_000
    order = quantile(special.betaincinv(rank, n - rank + 1, p), cv, kind)
    for a in np.quantile(order, np.linspace(0.1, 0.9, 17)):
        exact = np.maximum(order, a).mean() + mean - order.mean()  # the tail beyond p
        assert float(weights @ np.maximum(values, a)) == pytest.approx(exact, rel=within)


def test_quantiles_of_arrays() -> None:
    n, cv = np.array([[2], [8]]), np.array([0.0, 0.1, 0.5])
    for kind in KINDS:
        values, weights = quantiles_of_order_statistic(n, n, cv, kind, points=5)
        assert values.shape == (2, 3, 5)
        for i, j in np.ndindex(2, 3):
            count = int(n[i, 0])
            one, same = quantiles_of_order_statistic(count, count, float(cv[j]), kind, points=5)
            np.testing.assert_allclose(values[i, j], one, rtol=1e-14)
            assert np.array_equal(weights, same)


@pytest.mark.parametrize("kind", KINDS)
def test_quantiles_have_mean_one_and_the_given_spread(kind: str) -> None:
    """Factors at equally spaced probabilities."""
    parts = (np.arange(100_000) + 0.5) / 100_000
    factors = quantile(parts, 0.3, kind)
    assert factors.mean() == pytest.approx(1.0, abs=1e-5)
    assert factors.std() == pytest.approx(0.3, abs=2e-4)
    assert quantile(float(parts[7]), 0.3, kind) == factors[7]


# -- the simulator ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", SIMULATED)
@pytest.mark.parametrize("n", [2, 8, 16])
def test_the_simulator_draws_the_same_distribution(kind: str, n: int) -> None:
    """Its 2^16 equally likely factors end where 1 in 2^17 is larger; for the largest of n, n in
    2^17."""
    table = np.sort(noise.table(0.3, SIMULATED.index(kind)))
    shares = np.diff((np.arange(len(table) + 1) / len(table)) ** n)
    expected = expected_maximum(n, 0.3, kind)
    assert float(shares @ table) == pytest.approx(expected, rel=n / 2**17)
    assert float(shares @ table) != pytest.approx(expected_maximum(n + 1, 0.3, kind), rel=n / 2**17)


# -- mistakes --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: expected_maximum(0, 0.1, "gamma"), "n: must be at least 1, got 0"),
        (lambda: expected_maximum(2.5, 0.1, "gamma"), "n: expected a whole number, got 2.5"),
        (lambda: expected_maximum(np.array([1.5]), 0.1, "gamma"), "n: expected whole numbers"),
        (lambda: expected_maximum(4, -0.1, "gamma"), "cv: must be at least 0, got -0.1"),
        (lambda: expected_maximum(4, np.array([math.nan]), "gamma"), "cv: must be finite"),
        (lambda: expected_maximum(4, 0.1, "exponential"), "unknown distribution 'exponential'"),
        (lambda: expected_maximum(4, 0.1, "gama"), "unknown distribution 'gama'; did you mean"),
        (lambda: expected_order_statistic(0, 4, 0.1, "gamma"), "rank: must be at least 1, got 0"),
        (lambda: expected_order_statistic(5, 4, 0.1, "gamma"), "rank: must be at most n"),
        (lambda: expected_maximum(np.arange(1, 3), np.ones(3), "gamma"), "do not broadcast"),
        (lambda: expected_maximum(np.arange(1, 3), C, "gamma"), "expected numbers, got a symbol"),
        (
            lambda: quantiles_of_order_statistic(1, N, 0.1, "gamma"),
            "expected numbers, got a symbol",
        ),
        (
            lambda: quantiles_of_order_statistic(4, 4, 0.1, "gamma", 0),
            "points: must be at least 1, got 0",
        ),
        (lambda: quantile(1.0, 0.1, "gamma"), "part: must be more than 0 and less than 1"),
    ],
)
def test_mistakes_are_named(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        call()
