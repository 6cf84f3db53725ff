"""Workers that may be a bounded number of iterations ahead of the slowest."""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel.engine.bounded_lead import bounded_lead_s
from perfmodel.engine.noise import KINDS, table
from perfmodel.theory.order_statistics import expected_maximum

FACTORS = table(0.2, KINDS.index("lognormal"))


@pytest.mark.parametrize("workers", [2, 16, 500])
def test_without_a_lead_it_is_the_slowest_of_all(workers: int) -> None:
    """A barrier after each iteration: the mean of the maximum."""
    varying_s, fixed_s = np.full(workers, 3.0), np.full(workers, 0.5)
    found = bounded_lead_s(varying_s, fixed_s, FACTORS, bound=0)
    exact = 3.0 * expected_maximum(workers, 0.2, "lognormal") + 0.5
    assert found == pytest.approx(exact, rel=0.01)


def test_with_any_lead_it_is_the_mean() -> None:
    ones = np.ones(8)
    found = bounded_lead_s(ones, 0.25 * ones, FACTORS, bound=10_000)
    assert found == pytest.approx(1.25, rel=0.02)


def test_a_longer_lead_is_faster_and_more_workers_are_slower() -> None:
    by_lead = [bounded_lead_s(np.ones(64), np.zeros(64), FACTORS, k) for k in (0, 1, 3, 10)]
    assert by_lead == sorted(by_lead, reverse=True)
    by_number = [bounded_lead_s(np.ones(n), np.zeros(n), FACTORS, 1) for n in (8, 64, 512, 4096)]
    assert by_number == sorted(by_number)


def test_a_slow_worker_sets_the_pace_by_hand() -> None:
    """Of workers that take 1 s and one that takes 2 s, none makes more iterations than the slow
    one; two that take 1 s, of which one waits for 0.5 s in each, take 1.5 s."""
    varying_s = np.array([1.0] * 9 + [2.0])
    assert bounded_lead_s(varying_s, np.zeros(10), np.ones(1), 3) == pytest.approx(2.0)
    assert bounded_lead_s(np.ones(2), np.array([0.0, 0.5]), np.ones(1), 3) == pytest.approx(1.5)


def test_two_workers_and_two_factors_by_hand() -> None:
    """Times of 1 and 3 with a barrier: the slower of two takes 3 in three of four cases."""
    found = bounded_lead_s(np.full(2, 2.0), np.zeros(2), np.array([0.5, 1.5]), bound=0)
    assert found == pytest.approx(2.5, rel=0.02)
