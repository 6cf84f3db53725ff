"""Factors of the choice of kernels, between the points of their grid and beyond."""

from __future__ import annotations

import numpy as np
import pytest
import sympy

from perfmodel.theory.kernel_choice import DEPTHS, WAVES, chosen, weights
from perfmodel.theory.products import ProductRates, product_s, waves_of

PLANE = tuple(tuple(1.0 + 0.01 * row + 0.1 * column for column in range(6)) for row in range(19))
"""One more hundredth for each half octave of waves, one more tenth for two octaves of depth."""

DRAW = np.random.default_rng(3)
DRAWN = tuple(map(tuple, DRAW.uniform(0.7, 1.4, (WAVES.points, DEPTHS.points)).tolist()))

FIGURES = ProductRates(8e14, 2.8e12, 3e-6, 1e-7, 0.3, written_bytes_per_s=6e12)


@pytest.mark.parametrize(
    ("waves", "depth", "row", "column"),
    [
        (1.0, 1024.0, 8.0, 2.0),  # 2^0 is four octaves from the first, 2^10 as well
        (1.25, 1024.0, 8.5, 2.0),  # a quarter of the octave from 1 to 2
        (3.0, 2048.0, 11.0, 2.5),
        (1 / 16, 64.0, 0.0, 0.0),
        (1e-6, 1.0, 0.0, 0.0),  # constant beyond the grid
        (32.0, 65536.0, 18.0, 5.0),
        (1e6, 1e9, 18.0, 5.0),
    ],
)
def test_factors_by_hand(waves: float, depth: float, row: float, column: float) -> None:
    expected = 1.0 + 0.01 * row + 0.1 * column
    assert chosen(PLANE, waves, depth) == pytest.approx(expected)
    (weight,) = weights(np.array([waves]), np.array([depth]))
    assert weight.sum() == pytest.approx(1.0)
    assert weight @ np.array(PLANE).ravel() == pytest.approx(expected)


def test_between_four_points_by_hand() -> None:
    """Waves of 1.125 and a k of 1280 are a quarter, and an eighth, of the way to the next points:
    the point at both has 1 / 32 of the weight."""
    choice = [[1.0] * 6 for _ in range(19)]
    choice[9][3] = 2.0
    assert chosen(tuple(map(tuple, choice)), 1.125, 1280.0) == pytest.approx(1.0 + 1 / 32)


def test_arrays_equal_numbers() -> None:
    waves, depth = 2.0 ** DRAW.uniform(-6, 7, 50), 2.0 ** DRAW.uniform(4, 18, 50)
    several = chosen(DRAWN, waves, depth)
    assert isinstance(several, np.ndarray)
    for i in range(50):
        one = chosen(DRAWN, float(waves[i]), float(depth[i]))
        assert several[i] == pytest.approx(one, rel=1e-12)
    assert several == pytest.approx(weights(waves, depth) @ np.array(DRAWN).ravel())
    assert chosen(DRAWN, waves, 512.0) == pytest.approx(chosen(DRAWN, waves, 0 * waves + 512.0))


def test_a_product_takes_longer_by_its_factor_but_its_cast_does_not() -> None:
    """1024 x 2048 is 64 tiles of 256 x 128, that is half a wave of 128 multiprocessors, and twice
    as much if there are two products."""
    m, n, k = 1024.0, 2048.0, 4096.0
    assert waves_of(m, n, 1.0, 128.0) == 0.5
    cast = FIGURES._replace(element_bytes=1.0, cast_bytes_per_s=1e12)
    for count, row in ((1.0, 6), (2.0, 8)):
        factor = 1.0 + 0.01 * row + 0.1 * 3
        for rates in (FIGURES, cast):
            alone = rates._replace(cast_bytes_per_s=None)
            usual, chosen_s = (
                product_s(m, n, k, one, 128.0, count=count)
                for one in (rates, rates._replace(kernel_choice=PLANE))
            )
            longer = (factor - 1.0) * product_s(m, n, k, alone, 128.0, count=count)
            assert chosen_s - usual == pytest.approx(longer)


@pytest.mark.slow
def test_symbols_equal_numbers() -> None:
    symbols = sympy.symbols("waves depth", positive=True)
    formula = chosen(DRAWN, *symbols)
    for shape in ((3.3, 1500.0), (0.01, 70_000.0)):
        at = dict(zip(symbols, shape, strict=True))
        assert float(formula.subs(at)) == pytest.approx(chosen(DRAWN, *shape), rel=1e-9)
