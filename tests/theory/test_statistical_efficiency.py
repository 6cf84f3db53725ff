"""Noise scale and efficiency against their derivations."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import pytest

from perfmodel.base.errors import InputError
from perfmodel.theory.statistical_efficiency import (
    efficiency,
    gradient_noise,
    noise_scale,
    time_to_target_s,
)


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


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: gradient_noise(1.0, 1.0, 8.0, 8.0), "big: must be more than small (8), got 8"),
        (lambda: efficiency(-1.0, 8.0, 8.0), "noise_scale_samples: must be at least 0"),
        (lambda: efficiency(1.0, 0.0, 8.0), "batch: must be more than 0"),
    ],
)
def test_wrong_values_are_refused(call: Any, said: str) -> None:
    with pytest.raises(InputError, match=re.escape(said)):
        call()
