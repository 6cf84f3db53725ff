"""The rate of a TCP connection and the order of sites on a ring, against brute force."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from perfmodel.theory.cycles import MOST_TRIED, best_cycle, most_along
from perfmodel.theory.tcp import connection_bytes_per_s


def test_a_connection_sends_one_window_per_round_trip() -> None:
    # 64 KiB, the largest window without scaling, over 80 ms: 6.55 Mbit/s
    found = connection_bytes_per_s(0.08, window_bytes=65536.0)
    assert found * 8 / 1e6 == pytest.approx(6.5536)
    assert connection_bytes_per_s(0.16, window_bytes=65536.0) == pytest.approx(found / 2)


def test_the_square_root_law_matches_a_simulated_window() -> None:
    """The window grows by one segment per round trip and halves once per 1/p segments."""
    loss_rate, round_trip_s = 1e-5, 0.1
    window, since, sent, times = 1.0, 0.0, 0.0, 0
    for _ in range(200_000):
        sent, since, times = sent + window, since + window, times + 1
        window += 1.0
        if since >= 1.0 / loss_rate:
            window, since = window / 2.0, 0.0
    by_hand = sent * 1460.0 / (times * round_trip_s)
    found = connection_bytes_per_s(round_trip_s, loss_rate=loss_rate)
    assert found == pytest.approx(by_hand, rel=0.01)
    assert connection_bytes_per_s(round_trip_s, loss_rate=1.1 * loss_rate) != pytest.approx(
        by_hand, rel=0.01
    )


def test_the_smaller_of_window_and_loss_limit_applies() -> None:
    lossy = connection_bytes_per_s(0.1, loss_rate=1e-4)
    assert lossy == pytest.approx(14_600 * math.sqrt(15_000))
    assert connection_bytes_per_s(0.1, loss_rate=1e-4, window_bytes=1e9) == lossy
    assert connection_bytes_per_s(0.1, loss_rate=1e-4, window_bytes=1e4) == pytest.approx(1e5)
    assert connection_bytes_per_s(0.1) == math.inf
    assert connection_bytes_per_s(0.0, loss_rate=0.1, window_bytes=1.0) == math.inf


def slowest(order: Sequence[int], *matrices: NDArray[np.float64]) -> tuple[float, ...]:
    """The largest step of a cycle, in each of several matrices."""
    hops = list(zip(order, [*order[1:], order[0]], strict=True))
    return tuple(max(float(matrix[hop]) for hop in hops) for matrix in matrices)


@pytest.mark.parametrize("places", [1, 2, 3, 5, 6])
def test_the_order_minimises_the_slowest_step(places: int) -> None:
    rng = np.random.default_rng(places)
    for _ in range(20):
        per_byte_s, latency_s = rng.random((2, places, places)).round(1)

        found = best_cycle(per_byte_s, latency_s)
        assert sorted(found) == list(range(places))
        assert found[0] == 0
        every = itertools.permutations(range(places))
        least = min(slowest(order, per_byte_s, latency_s) for order in every)
        assert slowest(found, per_byte_s, latency_s) == least


def test_many_places_on_a_line_are_visited_in_order() -> None:
    count = MOST_TRIED + 4
    shuffled = np.random.default_rng(1).permutation(count)
    angle = 2.0 * np.pi * shuffled / count
    apart = np.abs(np.exp(1j * angle)[:, None] - np.exp(1j * angle))
    found = shuffled[best_cycle(apart, np.zeros_like(apart))]
    assert set(np.diff(found).tolist()) <= {1, -1, count - 1, 1 - count}


def test_the_longest_path_along_a_cycle() -> None:
    rng = np.random.default_rng(3)
    for places, steps in [(1, 1), (1, 5), (4, 3), (4, 6), (5, 5), (7, 12)]:
        step_s = rng.random(places)
        by_hand = max(
            sum(step_s[(begin + k) % places] for k in range(steps)) for begin in range(places)
        )
        assert most_along(step_s, steps) == pytest.approx(by_hand)
        assert most_along(step_s, steps + 1) != pytest.approx(by_hand)
