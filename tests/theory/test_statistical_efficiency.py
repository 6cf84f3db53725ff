"""Noise scale, efficiency and bounds against their derivations."""

from __future__ import annotations

import math
import re
from typing import Any, NamedTuple

import numpy as np
import pytest

from perfmodel.base.errors import InputError
from perfmodel.theory.statistical_efficiency import (
    asynchronous_error_bound,
    efficiency,
    gradient_noise,
    noise_scale,
    synchronous_error_bound,
    time_to_target_s,
)

BOUND: dict[str, float] = {
    "learning_rate": 0.1,
    "smoothness": 4.0,
    "convexity": 0.5,
    "variance": 6.0,
    "batch": 8.0,
    "first_error": 3.0,
}


def test_both_parts_follow_from_expected_norms() -> None:
    variance, square = 12.0, 0.5
    small, big = (square + variance / size for size in (4.0, 32.0))
    assert gradient_noise(small, big, 4.0, 32.0) == pytest.approx((variance, square))
    assert noise_scale(variance, square) == 24.0


def test_a_gradient_hidden_in_noise_has_an_infinite_scale() -> None:
    assert noise_scale(3.0, -0.1) == math.inf
    assert noise_scale(-3.0, 0.1) == 0.0
    assert efficiency(math.inf, 512.0, 32.0) == 1.0


def test_efficiency_is_the_ratio_of_samples_needed() -> None:
    def samples(batch: float, scale: float) -> float:
        return 1.0 + batch / scale  # McCandlish et al., in units of the minimum

    assert efficiency(100.0, 32.0, 32.0) == 1.0
    assert efficiency(100.0, 400.0, 32.0) == pytest.approx(
        samples(32.0, 100.0) / samples(400.0, 100.0)
    )
    assert efficiency(0.0, 64.0, 32.0) == 0.5  # without noise only steps count


def test_time_to_a_target_is_minimal_where_speed_balances_efficiency() -> None:
    def time_s(batch: float) -> float:
        throughput = batch / (0.1 + 0.001 * batch)
        return time_to_target_s(
            1e6, throughput, noise_scale_samples=500.0, batch=batch, reference=32.0
        )

    batches = np.geomspace(8.0, 8192.0, 400)
    best = batches[np.argmin([time_s(batch) for batch in batches])]
    assert best == pytest.approx(math.sqrt(500.0 * 0.1 / 0.001), rel=0.02)
    assert time_s(32.0) == pytest.approx(1e6 * (0.1 + 0.032) / 32.0)


def worst_excess(delay: int, runs: int = 400, updates: int = 60) -> tuple[list[float], list[float]]:
    """Mean excess of a noisy quadratic after updates with delayed gradients, and its bound."""
    curvature = np.array([0.5, 1.0, 4.0])
    rng = np.random.default_rng(0)
    start = np.full(3, 1.0)
    x = np.tile(start, (runs, 1))
    past = [x] * (delay + 1)
    excess = []
    for _ in range(updates):
        excess.append(float((0.5 * curvature * x**2).sum(axis=1).mean()))
        noise = math.sqrt(6.0 / 3.0 / 8.0) * rng.standard_normal(x.shape)
        x = x - 0.1 * (curvature * past[0] + noise)
        past = [*past[1:], x]
    given = BOUND | {"first_error": excess[0]}
    return excess, [synchronous_error_bound(k, **given) for k in range(updates)]


def test_the_bound_holds_for_synchronous_sgd() -> None:
    excess, bound = worst_excess(delay=0)
    assert all(e <= b * 1.0 + 1e-12 for e, b in zip(excess, bound, strict=True))
    assert bound[-1] < 0.5 * bound[0]


def test_canary_the_synchronous_bound_fails_for_stale_gradients() -> None:
    excess, bound = worst_excess(delay=8)
    assert any(e > b for e, b in zip(excess, bound, strict=True))


def test_the_bound_converges_to_its_floor() -> None:
    floor = 0.1 * 4.0 * 6.0 / (2.0 * 0.5 * 8.0)
    assert synchronous_error_bound(0.0, **BOUND) == pytest.approx(3.0)
    assert synchronous_error_bound(1e6, **BOUND) == pytest.approx(floor)


def test_with_fresh_gradients_both_bounds_agree() -> None:
    for updates in (0.0, 7.0, 500.0):
        assert asynchronous_error_bound(updates, gamma=0.0, p0=0.0, **BOUND) == pytest.approx(
            synchronous_error_bound(updates, **BOUND)
        )
    stale = asynchronous_error_bound(20.0, gamma=0.6, p0=0.2, **BOUND)
    slower = synchronous_error_bound(20.0, **(BOUND | {"convexity": 0.5 * (1.0 - 0.6 + 0.1)}))
    assert stale == pytest.approx(slower)
    assert stale > synchronous_error_bound(20.0, **BOUND)


class Stale(NamedTuple):
    """Mean excess of K-async SGD before each update, and the constants of its bound."""

    excess: list[float]
    gamma: float
    p0: float
    given: dict[str, float]

    def bound(self, **wrong: float) -> list[float]:
        given = {"gamma": self.gamma, "p0": self.p0} | self.given | wrong
        return [asynchronous_error_bound(k, **given) for k in range(len(self.excess))]

    def holds(self, **wrong: float) -> bool:
        """Return whether no error exceeds the bound by more than chance."""
        bound = self.bound(**wrong)
        return all(e <= 1.02 * b for e, b in zip(self.excess, bound, strict=True))


def k_async(p0: float, curvature: tuple[float, ...], gathered: int, variance: float) -> Stale:
    """K-async SGD on a quadratic, at half the largest learning rate of the bound.

    Each gradient of an update is fresh with probability ``p0``, else one update old. Expectations,
    including those in ``gamma``, are means over 5000 runs.
    """
    runs, updates, rng = 5_000, 40, np.random.default_rng(3)
    c = np.array(curvature)
    rate = 0.25 / max(curvature)
    old = x = np.ones((runs, len(c)))
    excess, gamma = [], 0.0
    for _ in range(updates):
        excess.append(float((0.5 * c * x**2).sum(axis=1).mean()))
        total = np.zeros_like(x)
        for _ in range(gathered):
            gradient = c * np.where(rng.random((runs, 1)) < p0, x, old)
            far = ((c * x - gradient) ** 2).sum(axis=1).mean()
            gamma = max(gamma, float(far / ((c * x) ** 2).sum(axis=1).mean()))
            total += gradient + math.sqrt(variance / len(c) / 8.0) * rng.standard_normal(x.shape)
        old, x = x, x - rate * total / gathered
    given = {
        "learning_rate": rate,
        "smoothness": max(curvature),
        "convexity": min(curvature),
        "variance": variance,
        "batch": 8.0 * gathered,
        "first_error": excess[0],
    }
    return Stale(excess, gamma, p0, given)


@pytest.mark.parametrize("gathered", [1, 3])
@pytest.mark.parametrize("curvature", [(1.0,), (0.5, 1.0, 2.0)])
@pytest.mark.parametrize("p0", [0.0, 0.4, 0.8])
def test_the_bound_holds_for_stale_gradients(
    p0: float, curvature: tuple[float, ...], gathered: int
) -> None:
    run = k_async(p0, curvature, gathered, variance=8.0)
    assert 0.01 < run.gamma < 1.0
    assert run.holds()
    assert run.bound()[-1] < 0.5 * run.excess[0]


def test_canary_a_wrong_bound_does_not_hold() -> None:
    run = k_async(0.4, (1.0,), 3, variance=8.0)
    assert run.holds()
    assert not run.holds(batch=3.0 * run.given["batch"])  # the collected gradients, counted twice
    uneven = k_async(0.4, (0.5, 1.0, 2.0), 3, variance=8.0)
    assert uneven.holds()
    assert not uneven.holds(convexity=2.0)  # the largest curvature in place of the smallest


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: gradient_noise(1.0, 1.0, 8.0, 8.0), "big: must be more than small (8), got 8"),
        (lambda: efficiency(-1.0, 8.0, 8.0), "noise_scale_samples: must be at least 0"),
        (lambda: efficiency(1.0, 0.0, 8.0), "batch: must be more than 0"),
        (
            lambda: synchronous_error_bound(1.0, **(BOUND | {"learning_rate": 0.2})),
            "learning_rate: the bound holds up to 0.125",
        ),
        (
            lambda: synchronous_error_bound(1.0, **(BOUND | {"convexity": 5.0})),
            "convexity: must be at most the smoothness (4), got 5",
        ),
        (
            lambda: asynchronous_error_bound(1.0, gamma=1.0, p0=0.0, **BOUND),
            "gamma: must be less than 1 if p0 is 0",
        ),
        (
            lambda: asynchronous_error_bound(1.0, gamma=0.5, p0=1.5, **BOUND),
            "p0: must be at most 1",
        ),
    ],
)
def test_wrong_values_are_refused(call: Any, said: str) -> None:
    with pytest.raises(InputError, match=re.escape(said)):
        call()
