"""Formulas against simulations on a sample of the grid that benchmarks/coarse goes through."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from benchmarks.coarse.grid import VARIANTS, Cell, cells
from benchmarks.coarse.measure import Row, measured

SAMPLE = 53
"""Jobs: one of each variant."""

MOST_WORKERS = 16
"""Workers of a job of the sample at most: more take longer, and the benchmark has them."""

LIMITS = {"synchronous": (0.03, 0.10), "asynchronous": (0.05, 0.15)}
"""Median and 90th percentile of the errors' size."""

ASYNCHRONOUS = ("ps asp", "ps ssp", "easgd", "gosgd", "ad_psgd")


def sample() -> list[Cell]:
    """Of each variant the job with the most workers of those that are simulated quickly."""
    small = [cell for cell in cells() if cell.workers <= MOST_WORKERS]
    found = {}
    for cell in sorted(small, key=lambda cell: (cell.workers, cell.gbps)):
        found[cell.variant.name] = cell
    return list(found.values())


@functools.cache
def rows() -> list[Row]:
    return [measured(cell) for cell in sample()]


def sizes(kind: str, of: str = "error") -> list[float]:
    wanted = kind == "asynchronous"
    return [abs(getattr(row, of)) for row in rows() if (row.group in ASYNCHRONOUS) == wanted]


def within(errors: list[float], kind: str) -> bool:
    median, p90 = LIMITS[kind]
    return float(np.median(errors)) <= median and float(np.quantile(errors, 0.9)) <= p90


def test_the_grid_has_what_it_should() -> None:
    every = list(cells())
    assert len(every) >= 500
    assert len({cell.name for cell in every}) == len(every)
    assert len({cell.model for cell in every}) == 5
    assert {cell.workers for cell in every} >= {1, 256}
    assert {cell.gbps for cell in every} >= {1, 100}
    assert len(sample()) == SAMPLE == len(VARIANTS)


@pytest.mark.parametrize("kind", LIMITS)
def test_formulas_are_near_the_simulation(kind: str) -> None:
    assert within(sizes(kind), kind)


@pytest.mark.parametrize("kind", LIMITS)
def test_canary_formulas_without_heuristics_are_not(kind: str) -> None:
    assert not within(sizes(kind, "plain_error"), kind)


def test_exact_formulas_are_exact() -> None:
    exact = [row for row in rows() if row.exact]
    assert len(exact) >= SAMPLE // 4
    for row in exact:
        assert row.error == pytest.approx(0.0, abs=1e-9), row.name


def test_declared_bands_hold() -> None:
    """Nine in ten jobs are within the error that is declared for them."""
    inside = [abs(row.error) <= max(row.p90, 1e-9) for row in rows()]
    assert np.mean(inside) >= 0.9


def test_canary_narrow_bands_do_not_hold() -> None:
    inside = [abs(row.error) <= row.p90 / 20.0 for row in rows() if not row.exact]
    assert np.mean(inside) < 0.9
