"""Times of products and of attention by hand, and as arrays and symbols."""

from __future__ import annotations

import numpy as np
import pytest
import sympy

from perfmodel.theory.attention import AttentionRates, attention_s
from perfmodel.theory.products import ProductRates, product_s

FAST = ProductRates(1e12, 1e18, 0.0, 0.0, 1.0)
"""Rates that are bound by operations alone."""

FIGURES = ProductRates(8e14, 2.8e12, 3e-6, 1e-7, 0.3)


def test_whole_waves_run_at_the_rate() -> None:
    """Four multiprocessors: one tile of 256 x 128 in four parts of 256, or eight of 64 x 64."""
    assert product_s(256, 128, 1024, FAST, 4.0) == pytest.approx(2 * 256 * 128 * 1024 / 1e12)


def test_one_row_more_takes_another_wave() -> None:
    """One multiprocessor: two tiles of 64 x 64 instead of one, each with its own time."""
    one, more = (product_s(m, 64, 64, FAST._replace(tile_s=1e-6), 1.0) for m in (64, 65))
    assert one == pytest.approx(2 * 64**3 / 1e12 + 1e-6)
    assert more == pytest.approx(2 * one)


def test_a_wave_that_is_not_full_counts_in_part() -> None:
    """Three tiles on two multiprocessors are 1.5 waves: as two if they are rounded up."""
    times = [product_s(192, 64, 64, FAST._replace(rounding=r), 2.0) for r in (0.0, 0.5, 1.0)]
    full = 2 * 64**3 * 2 / 1e12
    assert times == pytest.approx([1.5 * full, 1.75 * full, 2.0 * full])


def test_small_products_take_a_launch_and_flat_ones_are_bound_by_memory() -> None:
    rates = ProductRates(1e18, 1e12, 3e-6, 0.0, 1.0)
    assert product_s(1, 1, 1, rates, 100.0) == pytest.approx(3e-6, rel=1e-3)
    moved = 2 * 8192 * (32 + 8192) + 2 * 32 * 8192
    assert product_s(32, 8192, 8192, rates, 1.0) == pytest.approx(3e-6 + moved / 1e12, rel=1e-3)


def test_eight_bits_cast_the_first_matrix_by_a_launch_of_its_own() -> None:
    """A byte per value, but two in the result; the cast reads two bytes and writes one."""
    rates = ProductRates(1e18, 1e12, 3e-6, 0.0, 1.0, 1.0, 1e11)
    m, n, k = 512, 4096, 4096
    moved = k * (m + n) + 2 * m * n
    expected = 2 * 3e-6 + moved / 1e12 + 3 * m * k / 1e11
    assert product_s(m, n, k, rates, 1.0) == pytest.approx(expected, rel=1e-3)


def test_arrays_equal_numbers() -> None:
    draw = np.random.default_rng(1)
    m, n, k = draw.integers(1, 9000, (3, 40)).astype(float)
    times = product_s(m, n, k, FIGURES, 132.0)
    assert isinstance(times, np.ndarray)
    for i in range(40):
        one = product_s(m[i], n[i], k[i], FIGURES, 132.0)
        assert times[i] == pytest.approx(one, rel=1e-12)


@pytest.mark.slow
def test_symbols_equal_numbers() -> None:
    m, n, k = np.random.default_rng(1).integers(1, 9000, (3, 40)).astype(float)
    symbols = sympy.symbols("m n k", positive=True)
    formula = product_s(*symbols, FIGURES, 132.0)
    for i in range(2):
        one = product_s(m[i], n[i], k[i], FIGURES, 132.0)
        at = dict(zip(symbols, (m[i], n[i], k[i]), strict=True))
        assert float(formula.subs(at)) == pytest.approx(one, rel=1e-9)


def test_attention_of_one_tile() -> None:
    """64 queries on 64 keys: both products, 4 x 64 x 64 x 128 operations, are all the work and the
    longest tile."""
    rates = AttentionRates(1e12, 1e18, 2e-6, 0.0, 0.3, 1.0, 64.0)
    seconds = 4 * 64 * 64 * 128 / 1e12
    expected = 2e-6 + 2**0.25 * seconds
    assert attention_s(1, 64, 1, 1, 128, rates, 1.0) == pytest.approx(expected)


def test_long_causal_attention_is_half_of_the_scores() -> None:
    """A thousand tiles of queries, with their own keys: (1000 + 1) / 2 times each of 1000."""
    rates = AttentionRates(1e12, 1e18, 0.0, 0.0, 0.3, 0.0, 64.0)
    seconds = 8 * 1000 * 1001 / 2 * 4 * 64 * 64 * 128 / 1e12
    assert attention_s(1, 64_000, 8, 8, 128, rates, 1.0) == pytest.approx(seconds, rel=1e-3)


def test_narrow_heads_do_as_many_exponentials() -> None:
    """With 0.5 of the products' time at 128, half as wide heads take 1 + 1 of 1 + 0.5."""
    rates = AttentionRates(1e12, 1e18, 0.0, 0.0, 0.5, 0.0, 64.0)
    wide, narrow = (attention_s(1, 6400, 8, 8, head, rates, 1.0) for head in (128, 64))
    assert narrow / wide == pytest.approx(0.5 * 2.0 / 1.5)


def test_shared_keys_are_read_once() -> None:
    """Queries and results of 8 heads, keys and values of 2."""
    rates = AttentionRates(1e20, 1e9, 0.0, 0.0, 0.3, 0.0, 64.0)
    moved = 2 * 1000 * 128 * (2 * 8 + 2 * 2)
    assert attention_s(1, 1000, 8, 2, 128, rates, 1.0) == pytest.approx(moved / 1e9)
