"""Goodput of TCP through a shaper: limits, and one value by hand."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.accuracy.shaped_links import ring_efficiency
from perfmodel import InputError


def efficiency(rate: float, **changed: Any) -> float:
    given = {"queue_s": 0.1, "links": 4, "connections": 2, "segment_bytes": 1000.0}
    return ring_efficiency(rate, **{**given, **changed})


def test_a_value_by_hand() -> None:
    """At 80,000 bytes/s the queue has 8 segments, 4 for each connection. A window of 4 overflows it
    once in 0.3 * 4 / (0.9 / 1.7) round trips, and each time four links stall for one round trip."""
    between = 0.3 * 4 / (0.9 / 1.7)
    stalls = 4 * 1.0  # round trips of all links per overflow
    assert efficiency(80_000.0) == pytest.approx(between / (between + stalls))


def test_a_burst_makes_the_queue_longer() -> None:
    assert efficiency(80_000.0, burst_bytes=8000.0) == efficiency(160_000.0)


def test_canary_another_queue_is_noticed() -> None:
    assert efficiency(80_000.0, queue_s=0.11) != pytest.approx(efficiency(80_000.0))


def test_fast_links_and_long_queues_lose_nothing() -> None:
    assert efficiency(1e12) == pytest.approx(1.0, abs=1e-6)
    assert efficiency(80_000.0, segment_bytes=0.0) == 1.0
    rates = [efficiency(10.0**k) for k in range(3, 10)]
    assert rates == sorted(rates)


@pytest.mark.parametrize("change", [{"queue_s": 0.0}, {"links": 0}, {"connections": 0}])
def test_wrong_values_are_named(change: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=next(iter(change))):
        efficiency(1e6, **change)
