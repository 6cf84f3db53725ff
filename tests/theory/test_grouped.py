"""Times of products of groups, by hand."""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel.theory.grouped import GroupedRates, RowGroups, grouped_s

RATES = GroupedRates(flop_per_s=1e12, bytes_per_s=1e18, launch_s=1e-6, tile_s=0.0)


def test_even_groups_fill_tiles_of_their_own() -> None:
    """Four groups of 65 rows: of the shapes of tiles, 16 x 128 wastes least, with 80 rows each."""
    seconds = grouped_s(RowGroups(260.0, 4.0, 1.0), 128.0, 64.0, RATES, 1.0)
    assert seconds == pytest.approx(1e-6 + 4 * 2 * 80 * 128 * 64 / 1e12)


def test_uneven_groups_have_half_a_tile_more_each() -> None:
    """1024 rows in four groups are 1024 + 4 x 8 rows of tiles of 16."""
    seconds = grouped_s(RowGroups(1024.0, 4.0), 128.0, 64.0, RATES, 1.0)
    assert seconds == pytest.approx(1e-6 + 2 * (1024 + 32) * 128 * 64 / 1e12)


def test_a_tile_that_costs_more_is_larger() -> None:
    """Per tile 1 ms: four of 256 x 128, one of each group."""
    rates = RATES._replace(tile_s=1e-3)
    seconds = grouped_s(RowGroups(1024.0, 4.0, 1.0), 128.0, 64.0, rates, 1.0)
    assert seconds == pytest.approx(1e-6 + 4e-3 + 2 * 1024 * 128 * 64 / 1e12, rel=1e-3)


def test_few_rows_are_bound_by_the_matrices() -> None:
    """Eight matrices of 512 x 256 and eight rows of 512, of two bytes, and eight rows of 256."""
    rates = RATES._replace(bytes_per_s=1e9, launch_s=0.0)
    seconds = grouped_s(RowGroups(8.0, 8.0, 1.0), 256.0, 512.0, rates, 1.0)
    assert seconds == pytest.approx(2 * 8 * (512 * 256 + 512 + 256) / 1e9, rel=1e-3)


def test_multiprocessors_share_tiles_but_not_less_than_one() -> None:
    groups = RowGroups(1024.0, 4.0, 1.0)
    alone, four, many = (grouped_s(groups, 128.0, 64.0, RATES, n) for n in (1.0, 4.0, 1e6))
    assert alone == pytest.approx(four)  # the rate is that of all together
    assert many > four


@pytest.mark.slow
def test_arrays_and_symbols_agree_with_numbers() -> None:
    import sympy

    rows = np.array([100.0, 5000.0])
    several = grouped_s(RowGroups(rows, 4.0), 128.0, 256.0, RATES, 8.0)
    alone = [grouped_s(RowGroups(value, 4.0), 128.0, 256.0, RATES, 8.0) for value in rows.tolist()]
    assert np.asarray(several) == pytest.approx(alone)
    r = sympy.Symbol("r", positive=True)
    formula = grouped_s(RowGroups(r, 4.0), 128.0, 256.0, RATES, 8.0)
    assert float(formula.subs(r, 5000.0)) == pytest.approx(alone[1])


def test_canary_products_without_waste_are_faster() -> None:
    ideal_s = 2 * 260 * 128 * 64 / 1e12
    assert grouped_s(RowGroups(260.0, 4.0, 1.0), 128.0, 64.0, RATES, 1.0) > 1.05 * ideal_s
