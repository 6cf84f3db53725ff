"""The slowest of unequal workers, and all of them together, against draws."""

from __future__ import annotations

import math

import numpy as np
import pytest

from perfmodel.theory.order_statistics import quantiles_of_mixture, quantiles_of_unequal

COUNTS, SCALES = [3, 1, 4], [1.0, 1.6, 0.7]
DRAWS = 200_000


def drawn(cv: float, kind: str) -> np.ndarray:
    """Times of all eight workers, (draws, workers)."""
    rng = np.random.default_rng(4)
    shape = (DRAWS, sum(COUNTS))
    if kind == "gamma":
        factors = rng.gamma(cv**-2, cv**2, shape)
    else:
        variance = math.log1p(cv**2)
        factors = rng.lognormal(-variance / 2.0, math.sqrt(variance), shape)
    return factors * np.repeat(SCALES, COUNTS)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("kind", ["lognormal", "gamma"])
@pytest.mark.parametrize("cv", [0.1, 0.5])
@pytest.mark.parametrize("late", [0, 2])
def test_the_slowest_that_is_waited_for(kind: str, cv: float, late: int) -> None:
    """Its mean, its spread, and the mean of what it exceeds the slow worker's mean by."""
    slowest = np.sort(drawn(cv, kind), axis=1)[:, -1 - late]
    values, weights = quantiles_of_unequal(COUNTS, SCALES, cv, kind, late=late)
    mean = float(weights @ values)
    assert mean == pytest.approx(slowest.mean(), rel=3e-3)
    spread = math.sqrt(float(weights @ (values - mean) ** 2))
    assert spread == pytest.approx(slowest.std(), rel=0.05)
    beyond = float(weights @ np.maximum(values - mean, 0.0))
    assert beyond == pytest.approx(np.maximum(slowest - slowest.mean(), 0.0).mean(), rel=0.03)


@pytest.mark.parametrize("kind", ["lognormal", "gamma"])
@pytest.mark.parametrize("cv", [0.1, 1.0])
def test_quantiles_of_all_workers_together(kind: str, cv: float) -> None:
    parts = [0.05, 0.3, 0.5, 0.8, 0.99]
    found = quantiles_of_mixture(COUNTS, SCALES, cv, kind, parts)
    assert found == pytest.approx(np.quantile(drawn(cv, kind), parts), rel=0.01)


def test_without_spread_each_is_as_slow_as_its_group() -> None:
    """0.7 four times, 1 three times, and 1.6."""
    for late, expected in ((0, 1.6), (1, 1.0), (3, 1.0), (4, 0.7)):
        values, _ = quantiles_of_unequal(COUNTS, SCALES, 0.0, "gamma", late=late)
        assert values.tolist() == pytest.approx([expected] * len(values))
    found = quantiles_of_mixture(COUNTS, SCALES, 0.0, "gamma", [0.49, 0.51, 0.87, 0.88])
    assert found.tolist() == [0.7, 1.0, 1.0, 1.6]
