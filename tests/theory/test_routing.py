"""Loads of experts: by hand, and by an independent Monte Carlo of routing."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from perfmodel.base.errors import InputError
from perfmodel.theory.routing import (
    Routing,
    copies_across,
    dropped_fraction,
    largest_load,
    popularity,
    quantiles_of_largest_load,
)
from tests.settings import thinned

MONTE_CARLO = 0.01
"""Largest relative difference from the Monte Carlo, whose own error is at most half of it."""


def chances(experts: int, active: int, skew: float) -> np.ndarray:
    """Chances of experts by bisection for the multiple of the power law that adds up."""
    weights = np.array([1.0 / (rank + 1) ** skew for rank in range(experts)])
    low, high = 0.0, 1e12
    for _ in range(200):
        middle = (low + high) / 2.0
        if np.minimum(1.0, middle * weights).sum() < active:
            low = middle
        else:
            high = middle
    return np.minimum(1.0, low * weights)


def routed(routing: Routing, runs: int, seed: int = 7) -> tuple[float, float, np.ndarray]:
    """The mean largest load over the mean, the share of dropped choices, and all largest loads.

    Every token chooses different experts with given chances: systematic sampling in random order.
    """
    generator = np.random.default_rng(seed)
    tokens, experts, active, devices, skew, capacity = routing
    chance = chances(experts, active, skew)
    largest, dropped = [], []
    for _ in range(runs):
        home = generator.permutation(experts) % devices
        order = np.argsort(generator.random((tokens, experts)), axis=1)
        ends = np.cumsum(chance[order], axis=1) - generator.random((tokens, 1))
        begins = np.concatenate([ends[:, :1] - chance[order][:, :1], ends[:, :-1]], axis=1)
        chosen = np.floor(ends + 1e-12) > np.floor(begins + 1e-12)
        count = np.bincount(order[chosen], minlength=experts).astype(float)
        assert count.sum() == pytest.approx(tokens * active, rel=0.01)
        most = math.inf if capacity is None else capacity * tokens * active / experts
        dropped.append(np.maximum(count - most, 0.0).sum() / (tokens * active))
        loads = np.bincount(home, np.minimum(count, most), minlength=devices)
        largest.append(loads.max() / routing.mean)
    return float(np.mean(largest)), float(np.mean(dropped)), np.array(largest)


CASES = [
    Routing(1024, 8, 2, 8),
    Routing(512, 8, 2, 4),
    Routing(2048, 64, 6, 8),
    Routing(256, 64, 4, 64),
    Routing(512, 16, 2, 16, skew=0.6),
    Routing(2048, 16, 1, 16, skew=1.2),
    Routing(1024, 64, 6, 8, capacity=1.0),
    Routing(512, 16, 2, 16, skew=0.4, capacity=1.25),
]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("routing", thinned(CASES))
def test_the_largest_load_is_that_of_a_monte_carlo_of_routing(routing: Routing) -> None:
    mean, dropped, largest = routed(routing, 300 if routing.mean < 300 else 150)
    error = float(largest.std()) / math.sqrt(len(largest)) / mean
    assert error < MONTE_CARLO / 2
    assert largest_load(routing) == pytest.approx(mean, rel=MONTE_CARLO)
    assert dropped_fraction(routing) == pytest.approx(dropped, abs=0.005)
    median = float(np.quantile(largest, 0.5))
    assert quantiles_of_largest_load(routing, [0.5])[0] == pytest.approx(
        median, rel=0.012, abs=1.0 / routing.mean
    )


def test_the_monte_carlo_notices_another_number_of_active_experts() -> None:
    """Canary: the law of another router."""
    routing = Routing(1024, 8, 2, 8)
    mean, _, _ = routed(routing, 150)
    assert largest_load(routing._replace(active=1)) != pytest.approx(mean, rel=MONTE_CARLO)
    assert largest_load(routing._replace(tokens=256)) != pytest.approx(mean, rel=MONTE_CARLO)
    skewed = largest_load(routing._replace(skew=0.1))
    assert skewed != pytest.approx(mean, rel=MONTE_CARLO)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("experts", "active", "devices", "skew"),
                         [(64, 8, 16, 0.8), (128, 8, 8, 1.2), (256, 8, 64, 0.6)])  # fmt: skip
def test_orders_of_experts_are_averaged(
    experts: int, active: int, devices: int, skew: float
) -> None:
    """With so many tokens loads are those of the power law, in any order of the experts."""
    generator = np.random.default_rng(3)
    index = np.tile(np.arange(experts), (20_000, 1))
    loads = chances(experts, active, skew)[generator.permuted(index, axis=1)]
    largest = loads.reshape(20_000, devices, -1).sum(axis=-1).max(axis=1) * devices / active
    many = Routing(10**9, experts, active, devices, skew)
    assert largest_load(many) == pytest.approx(float(largest.mean()), rel=MONTE_CARLO)


def test_two_devices_by_hand() -> None:
    """Two experts on two devices, one choice each: half the spread of a binomial, folded."""
    tokens = 10_000
    expected = 1.0 + 2.0 * math.sqrt(tokens / 4.0) * math.sqrt(2.0 / math.pi) / tokens
    assert largest_load(Routing(tokens, 2, 1, 2)) == pytest.approx(expected, rel=2e-5)


def test_certain_loads() -> None:
    assert largest_load(Routing(100, 8, 8, 4)) == 1.0  # every token passes all experts
    assert largest_load(Routing(100, 8, 2, 1, skew=1.0)) == pytest.approx(1.0)  # one device has all
    assert popularity(4, 1, 1.0) == pytest.approx(np.array([12, 6, 4, 3]) / 25)
    # all tokens choose the first; the rest is divided as 1/2 to 1/3
    assert popularity(3, 2, 1.5)[0] == 1.0
    assert popularity(8, 3, 0.7).sum() == pytest.approx(3.0)


def test_capacity_limits_the_load() -> None:
    free, limited = Routing(1024, 8, 2, 8, skew=1.0), Routing(1024, 8, 2, 8, 1.0, 1.25)
    assert largest_load(limited) == pytest.approx(1.25, rel=1e-3)
    assert largest_load(free) > 2.0
    assert dropped_fraction(free) == 0.0 < dropped_fraction(limited)


def test_copies_of_a_token_by_counting() -> None:
    """All choices of 2 of 8 experts on 2 nodes, and of 3 of 12 on 3."""
    for nodes, experts, active in ((2, 8, 2), (3, 12, 3)):
        chosen = itertools.combinations(range(experts), active)
        visited = [len({expert * nodes // experts for expert in each}) for each in chosen]
        expected = np.mean(visited) / active
        assert copies_across(nodes, experts, active) == pytest.approx(expected)
    assert copies_across(4, 16, 4, limit=1) == pytest.approx(1 / 4)


@pytest.mark.parametrize(
    ("routing", "says"),
    [
        (Routing(0, 8, 2, 8), "tokens: "),
        (Routing(10, 8, 9, 8), "active: 9 of 8 experts"),
        (Routing(10, 8, 2, 3), "devices: 3 do not divide 8 experts"),
        (Routing(10, 8, 2, 2, skew=9.0), "skew: "),
        (Routing(10, 8, 2, 2, capacity=0.0), "capacity: "),
    ],
)
def test_impossible_numbers(routing: Routing, says: str) -> None:
    with pytest.raises(InputError, match=says):
        largest_load(routing)
    with pytest.raises(InputError, match="4 nodes have 8 experts, fewer than 9"):
        copies_across(8, 16, 9, limit=4)
