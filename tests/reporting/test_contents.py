"""Cells and rows of tables."""

from __future__ import annotations

import math

import pytest

from perfmodel.reporting.contents import Cell, UnitValue, raw, shown
from perfmodel.reporting.rows import table


@pytest.mark.parametrize(
    ("cell", "unit", "text"),
    [
        (0.0023541, "s", "2.354 ms"),
        (1.25e9, "bytes_per_s", "10 Gbps"),
        (0.5, "fraction", "50 %"),
        (UnitValue(25e-6, "s"), "", "25 us"),
        (UnitValue("bsp"), "", "bsp"),
        (1.0, "ratio", "0 %"),
        (0.93, "ratio", "-7 %"),
        (10.19, "ratio", "x 10.2"),
        (False, "", "no"),
        (None, "s", ""),
        (22057.3, "samples/s", "22060 samples/s"),
        (math.inf, "", "inf"),
    ],
)
def test_cells_are_shown_with_their_unit(cell: Cell, unit: str, text: str) -> None:
    assert shown(cell, unit) == text


def test_exact_values_can_be_parsed() -> None:
    value = 0.1 + 0.2
    assert float(raw(UnitValue(value, "s"))) == value
    assert float(raw(value)) == value


def test_rows_become_a_table_in_order() -> None:
    rows = [
        {"job": "a", "iteration_s": 1.5, "none": None},
        {"job": "b", "iteration_s": 2, "none": None},
    ]
    made = table("Jobs", rows)
    assert [(c.title, c.unit) for c in made.columns] == [("job", ""), ("iteration", "s")]
    assert list(made.rows) == [("a", 1.5), ("b", 2)]
    assert table("Empty", []).columns == []
