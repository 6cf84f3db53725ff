"""Rows with names of columns as tables of a page."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from perfmodel.base.units import dimension_of
from perfmodel.reporting.contents import Column, PageTable

RATE = "samples_per_s"


def column(name: str) -> Column:
    """The column of a name with a unit as its ending.

    >>> column("idle_fraction"), column("iteration_s")
    (Column(title='idle', unit='fraction'), Column(title='iteration', unit='s'))
    >>> column("throughput_samples_per_s").title, column("batch_size").title
    ('throughput (samples/s)', 'batch size')
    """
    if name.endswith(RATE):
        return Column(f"{_words(name.removesuffix(RATE))} (samples/s)".strip())
    if name.endswith("_fraction"):
        return Column(_words(name.removesuffix("_fraction")), "fraction")
    unit = dimension_of(name)
    if unit is not None and name.endswith(f"_{unit}"):
        return Column(_words(name.removesuffix(f"_{unit}")), unit)
    return Column(_words(name))


def _words(name: str) -> str:
    return name.strip("_").replace("_", " ")


def table(
    name: str, rows: Sequence[Mapping[str, object]], without: Collection[str] = ()
) -> PageTable:
    """A table of rows that all have the same keys; columns that are empty are left out.

    >>> table("t", [{"a": 1, "b": None, "c": 2}], without=["c"]).rows
    [(1,)]
    """
    keys = [
        key
        for key in (rows[0] if rows else ())
        if key not in without and any(row[key] is not None for row in rows)
    ]
    cells = [tuple(_cell(row[key]) for key in keys) for row in rows]
    return PageTable(name, [column(key) for key in keys], cells)


def _cell(value: object) -> object:
    """A value as a cell; what is no number and no word as text."""
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)
