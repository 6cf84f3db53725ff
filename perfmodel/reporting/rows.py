"""Rows with names of columns as tables of a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from perfmodel.base.units import words_and_unit
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
        return Column(f"{words_and_unit(name.removesuffix(RATE))[0]} (samples/s)".strip())
    if name.endswith("_fraction"):
        return Column(words_and_unit(name.removesuffix("_fraction"))[0], "fraction")
    return Column(*words_and_unit(name))


def table(name: str, rows: Sequence[Mapping[str, object]]) -> PageTable:
    """A table of rows that all have the same keys; columns that are empty are left out, and what is
    no number and no word is shown as text.

    >>> table("t", [{"a": 1, "b": None, "c": (2, 3)}]).rows
    [(1, '(2, 3)')]
    """
    first = rows[0] if rows else {}
    keys = [key for key in first if any(row[key] is not None for row in rows)]
    plain = (type(None), bool, int, float, str)
    cells = [
        tuple(row[key] if isinstance(row[key], plain) else str(row[key]) for key in keys)
        for row in rows
    ]
    return PageTable(name, [column(key) for key in keys], cells)
