"""Factors of the choice of kernels are recovered from made times."""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel.base.arrays import Floats
from perfmodel.calibration.kernel_choices import PRIOR, fit_choice
from perfmodel.theory.kernel_choice import Choice
from perfmodel.theory.products import ProductRates, product_s

RATES = ProductRates(2.6e14, 1.4e12, 4e-6, 2e-6, 0.6)
MANY = np.ones(4000, dtype=np.bool_)


def shapes(count: int) -> Floats:
    return (2.0 ** np.random.default_rng(2).uniform(9.0, 13.0, (3, count))).round()


def fitted(
    factor: float, *, outliers: int = 0, count: int = 4000, rates: ProductRates = RATES
) -> Choice:
    sizes = shapes(count)
    alone_s = np.asarray(product_s(*sizes, rates._replace(cast_bytes_per_s=None), 108.0))
    seconds = product_s(*sizes, rates, 108.0) + (factor - 1.0) * alone_s
    seconds[:outliers] *= 5.0
    return fit_choice(sizes, seconds, rates, 108.0, MANY[:count])


def test_a_factor_is_recovered_where_something_was_measured() -> None:
    """Results from a tenth of a wave to nineteen, k from 512 to 8192; nothing has a k of 65,536."""
    choice = np.array(fitted(1.2))
    assert choice[4:14, 2:4] == pytest.approx(1.2, abs=0.01)
    assert choice[:, 5].tolist() == [1.0] * 19


def test_outliers_hardly_count() -> None:
    choice = np.array(fitted(1.2, outliers=200))
    assert choice[4:14, 2:4] == pytest.approx(1.2, abs=0.02)


def test_casts_are_no_part_of_it() -> None:
    rates = RATES._replace(element_bytes=1.0, cast_bytes_per_s=5e11)
    assert np.array(fitted(1.2, rates=rates))[4:14, 2:4] == pytest.approx(1.2, abs=0.01)


def test_one_shape_moves_its_points_by_half_by_hand() -> None:
    """At a point of the grid, with a misfit of 2 %: a shape counts as much as the prior of 1. One
    that is narrow counts 1 / 2.5^2 of that."""
    one = np.array([[864.0], [4096.0], [1024.0]])  # 108 tiles of 256 x 128
    seconds = np.asarray(product_s(*one, RATES, 108.0)) / 0.98
    for wide, trust in ((True, 1.0), (False, 2.5**-2)):
        choice = fit_choice(one, seconds, RATES, 108.0, np.array([wide]))
        more = trust * 0.98 * 0.02 / (trust * 0.98**2 + PRIOR)
        assert choice[8][2] == pytest.approx(1.0 + more, abs=6e-4)
        assert choice[7][2] == choice[8][1] == 1.0
