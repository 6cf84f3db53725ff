"""Convolutions by hand: transposed images, and Winograd's algorithm."""

from __future__ import annotations

import numpy as np
import pytest
import sympy

from perfmodel.theory.convolutions import transposing_s, winograd_s
from perfmodel.theory.memory_bound import ACHIEVED
from perfmodel.theory.products import ProductRates, product_s

FAST = ProductRates(1e12, 1e18, 0.0, 0.0, 1.0, element_bytes=4.0, result_bytes=4.0)
"""Rates that are bound by operations alone."""


def test_transposing_reads_and_writes_both_images() -> None:
    # 1000 values of 4 bytes twice, and two launches of 1 us
    expected = 2 * 4000 / (ACHIEVED * 1e9) + 2e-6
    assert transposing_s(1000.0, 4.0, 1e9, 1e-6) == pytest.approx(expected)


def test_tiles_of_four_need_a_quarter_of_the_multiplications() -> None:
    """Pixels, channels and multiprocessors fill tiles; memory is free."""
    direct = product_s(64 * 256, 64, 64 * 9, FAST, 1.0)
    of_input = winograd_s(64 * 256, 64, 64, 0.0, FAST, 1.0, 1e18)
    of_weights = winograd_s(64, 64, 64 * 256, 0.0, FAST, 1.0, 1e18, of_weights=True)
    assert of_input == pytest.approx(direct / 4)
    assert of_weights == pytest.approx(direct / 4)


def test_few_pixels_take_smaller_tiles() -> None:
    """64 x 4 pixels fill 4 tiles of 2 x 2 with 64 rows, but a quarter of those of 4 x 4."""
    small = 16 * 2 * 64 * 64 * 64 / 1e12  # 16 products of 64 x 64 x 64
    large = 36 * 2 * 64 * 64 * 64 / 1e12  # 36 with 16 rows, which take as long as 64
    assert small < large
    assert winograd_s(64 * 4, 64, 64, 0.0, FAST, 1.0, 1e18) == pytest.approx(small)


def test_transformed_images_move_more_values() -> None:
    """With free products: 3.25 values of 4 bytes per value for tiles of 4, 5 for tiles of 2."""
    free = FAST._replace(flop_per_s=1e18)
    seconds = winograd_s(64.0, 64.0, 64.0, 1e6, free, 1.0, 1e12)
    assert seconds == pytest.approx(3.25 * 4e6 / (ACHIEVED * 1e12), rel=1e-3)


@pytest.mark.slow
def test_it_is_a_formula_of_arrays_and_symbols() -> None:
    m = np.array([1e3, 1e4])
    each = [winograd_s(one, 64.0, 64.0, 1e5, FAST, 80.0, 1e12) for one in m]
    assert winograd_s(m, 64.0, 64.0, 1e5, FAST, 80.0, 1e12) == pytest.approx(each)
    symbol = sympy.Symbol("m", positive=True)
    formula = winograd_s(symbol, 64.0, 64.0, 1e5, FAST, 80.0, 1e12)
    assert float(formula.subs(symbol, 1e3)) == pytest.approx(each[0])
