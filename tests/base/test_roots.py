"""Zeros of falling functions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from perfmodel.base import roots
from perfmodel.base.roots import falling_zero
from tests.settings import examples


@examples(60)
@given(
    zero=st.floats(1e-12, 1e12),
    guess=st.floats(1e-6, 1e6),
    power=st.sampled_from([0.3, 1.0, 9.0]),
)
def test_a_power_has_its_zero_from_any_guess(zero: float, guess: float, power: float) -> None:
    found = falling_zero(lambda x: 1.0 - (x / zero) ** power, guess)
    assert found == pytest.approx(zero, rel=1e-9)


def test_arrays_equal_numbers() -> None:
    top = np.array([1e-9, 4.0, 9.0, 1e9])
    found: Any = falling_zero(lambda x: np.log(top / x) - 0.01 * x, np.ones(4))
    for k, one in enumerate(top.tolist()):
        alone = falling_zero(lambda x, one=one: np.log(one / x) - 0.01 * x, 1.0)
        assert found[k] == pytest.approx(alone, rel=1e-9)


def test_a_kink_and_a_steep_hyperbola() -> None:
    assert falling_zero(lambda x: 2.0 - x if x < 3.0 else -1.0, 50.0) == pytest.approx(2.0)
    assert falling_zero(lambda x: 1.0 / (x * 1e6) - 5.0, 1.0) == pytest.approx(2e-7)


def test_the_guess_may_be_the_zero() -> None:
    assert falling_zero(lambda x: 3.0 - x, 3.0) == pytest.approx(3.0)


def test_canary_a_search_that_is_cut_off_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roots, "MOST_STEPS", 2)
    assert falling_zero(lambda x: 4.0 / x - x, 1.3) != pytest.approx(2.0, rel=1e-9)
