"""Times of products and of attention by hand, and as arrays and symbols."""

from __future__ import annotations

import numpy as np
import pytest
import sympy

from perfmodel.theory.attention import AttentionRates, attention_s
from perfmodel.theory.products import ProductRates, product_s

FAST = ProductRates(1e12, 1e18, 0.0, 0.0, 1.0)
"""Rates that are bound by operations alone."""

FIGURES = ProductRates(8e14, 2.8e12, 3e-6, 1e-7, 0.3, written_bytes_per_s=6e12)


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


def test_a_tile_is_written_after_its_operations() -> None:
    """Two waves of tiles of 64 x 64 on two multiprocessors; each writes 2 x 64 x 64 x 2 bytes."""
    rates = FAST._replace(written_bytes_per_s=1e9)
    wave_s = 2 * 64**3 * 2 / 1e12 + 2 * 64 * 64 * 2 / 1e9
    assert product_s(256, 64, 64, rates, 2.0) == pytest.approx(2 * wave_s)


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
    rates = AttentionRates(1e12, 1e18, 2e-6, 0.0, 0.3, 1.0, queries=64.0)
    seconds = 4 * 64 * 64 * 128 / 1e12
    expected = 2e-6 + 2**0.25 * seconds
    assert attention_s(1, 64, 1, 1, 128, rates, 1.0) == pytest.approx(expected)


def test_long_causal_attention_is_half_of_the_scores() -> None:
    """A thousand tiles of queries, with their own keys: (1000 + 1) / 2 times each of 1000."""
    rates = AttentionRates(1e12, 1e18, 0.0, 0.0, 0.3, 0.0, queries=64.0)
    seconds = 8 * 1000 * 1001 / 2 * 4 * 64 * 64 * 128 / 1e12
    assert attention_s(1, 64_000, 8, 8, 128, rates, 1.0) == pytest.approx(seconds, rel=1e-3)


def test_narrow_heads_do_as_many_exponentials() -> None:
    """With 0.5 of the products' time at 128, half as wide heads take as long in products as in
    exponentials, which add as squares do: the root of 1 + 1 of 1 + 0.25."""
    rates = AttentionRates(1e12, 1e18, 0.0, 0.0, 0.5, 0.0, queries=64.0)
    wide, narrow = (attention_s(1, 6400, 8, 8, head, rates, 1.0) for head in (128, 64))
    assert narrow / wide == pytest.approx(0.5 * (2.0 / 1.25) ** 0.5)


def test_shared_keys_are_read_once() -> None:
    """Queries and results of 8 heads, keys and values of 2."""
    rates = AttentionRates(1e20, 1e9, 0.0, 0.0, 0.3, 0.0, queries=64.0)
    moved = 2 * 1000 * 128 * (2 * 8 + 2 * 2)
    assert attention_s(1, 1000, 8, 2, 128, rates, 1.0) == pytest.approx(moved / 1e9)


def test_a_lone_tile_may_take_less_than_its_share() -> None:
    """One of two multiprocessors computes the tile: 4 x 64 x 64 x 128 operations at half the rate,
    of which 0.4 count; all tiles take half of the tile's time on average."""
    rates = AttentionRates(1e12, 1e18, 0.0, 0.0, 0.3, 0.0, lone=0.4, queries=64.0)
    tile_s = 4 * 64 * 64 * 128 / 0.5e12
    expected = (0.5**4 + 0.4**4) ** 0.25 * tile_s
    assert attention_s(1, 64, 1, 1, 128, rates, 2.0) == pytest.approx(expected)


def test_the_widest_heads_have_a_slower_kernel() -> None:
    rates = AttentionRates(1e12, 1e18, 0.0, 0.0, 0.0, 0.0, wide=1.9, queries=64.0)
    usual, wide = (attention_s(1, 6400, 8, 8, head, rates, 1.0) for head in (256, 320))
    assert wide / usual == pytest.approx(1.9 * 320 / 256)


def test_one_query_is_computed_for_all_heads_that_share_keys() -> None:
    """32 heads of a query with 4 heads of keys are 4 tiles, with 32 heads of keys 32."""
    rates = AttentionRates(1e12, 1e18, 0.0, 0.0, 0.3, 0.0, lone=0.0, queries=64.0)
    shared, alone = (attention_s(256, 1, 32, kv, 128, rates, 1.0) for kv in (4, 32))
    assert alone / shared == pytest.approx(8.0)


def test_a_cache_is_filled_first() -> None:
    """1000 tokens with 2 heads of keys and values of 128, 2 bytes each; they are half of the values
    that are copied at once, so that half of the time of a token counts."""
    rates = AttentionRates(1e20, 1e18, 3e-6, 0.0, 0.3, 0.0)
    cached = rates._replace(cache_bytes_per_s=1e9, token_s=1e-8)
    extra = 1000 * (2 * 2 * 2 * 128 / 1e9 + 0.5 * 1e-8)
    without, filled = (attention_s(1, 1000, 8, 2, 128, one, 1.0) for one in (rates, cached))
    assert filled - without == pytest.approx(extra)


def test_exponentials_may_overlap_more() -> None:
    """As :func:`test_narrow_heads_do_as_many_exponentials`, but times add as cubes do: the third
    root of 1 + 1 of 1 + 0.125."""
    rates = AttentionRates(1e12, 1e18, 0.0, 0.0, 0.5, 0.0, queries=64.0, overlap=3.0)
    wide, narrow = (attention_s(1, 6400, 8, 8, head, rates, 1.0) for head in (128, 64))
    assert narrow / wide == pytest.approx(0.5 * (2.0 / 1.125) ** (1 / 3))


def test_long_kernels_reach_the_limit_of_power() -> None:
    """A tile of 64 x 64 x 128 at a rate at which it takes 2 ms, or with 4 ms of heat a fifth of the
    limit's 0.1: 4 of 4 + 16; all of it from the start if the clock is low before; the launch has
    none."""
    rates = AttentionRates(4 * 64 * 64 * 128 / 2e-3, 1e18, 1e-5, 0.0, 0.3, 0.0, lone=0.0)
    rates = rates._replace(queries=64.0, throttle=0.1)
    for heat_s, part in ((4e-3, 0.2), (2e-3, 0.5), (0.0, 1.0)):
        seconds = attention_s(1, 64, 1, 1, 128, rates._replace(heat_s=heat_s), 1.0)
        assert seconds == pytest.approx(1e-5 + 2e-3 * (1.0 + 0.1 * part))


@pytest.mark.slow
def test_attention_of_arrays_and_symbols_agrees() -> None:
    draw = np.random.default_rng(6)
    rates = AttentionRates(6e14, 2e12, 1e-5, 1e-6, 0.5, 0.3, 0.6, 2.0, 64.0, 1e12, 3e-9, 0.1)
    kv_heads, group = (2.0 ** draw.integers(0, 4, 40) for _ in range(2))
    length = np.where(draw.random(40) < 0.3, 1.0, draw.integers(2, 9000, 40))
    head = draw.choice([64.0, 128.0, 320.0], 40)
    values = (draw.integers(1, 9, 40).astype(float), length, kv_heads * group, kv_heads, head)
    times = attention_s(*values, rates, 132.0)
    assert isinstance(times, np.ndarray)
    symbols = sympy.symbols("b s h g d", positive=True)
    formula = attention_s(*symbols, rates, 132.0)
    for i in range(4):
        one = [float(value[i]) for value in values]
        assert times[i] == pytest.approx(attention_s(*one, rates, 132.0), rel=1e-12)
        at = dict(zip(symbols, one, strict=True))
        assert float(formula.subs(at)) == pytest.approx(times[i], rel=1e-9)
