"""What a page shows: sections of text, a figure, and the tables with its numbers.

Values are in SI units. Nothing here draws: :mod:`perfmodel.reporting.figures` does, and
:mod:`perfmodel.reporting.page` writes the HTML.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from perfmodel.base.units import UNITS, show

Cell = Any
"""A number, a word, None, or a :class:`Quantity`."""


class Quantity(msgspec.Struct, frozen=True):
    """A value with a unit of its own."""

    value: float | int | str | bool | None
    unit: str = ""


class Column(msgspec.Struct, frozen=True):
    """A column of a table: its title, and the SI unit of its values.

    ``unit`` is ``s``, ``bytes``, ``bytes_per_s``, ``flop_per_s``, ``fraction`` (shown as a
    percentage), ``ratio`` (shown as a change), or other text that is shown behind the value.
    """

    title: str
    unit: str = ""


class Table(msgspec.Struct, frozen=True):
    """Rows of cells, as many as there are columns."""

    name: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]


class Stacks(msgspec.Struct, frozen=True):
    """Horizontal bars, one per name, of parts one after the other.

    ``parts`` has for each kind a value per name.
    """

    names: Sequence[str]
    parts: Mapping[str, Sequence[float]]
    title: str


class Columns(msgspec.Struct, frozen=True):
    """Vertical bars, one per name, of fractions."""

    names: Sequence[str]
    values: Sequence[float]
    title: str
    over: str


class Tornado(msgspec.Struct, frozen=True):
    """A bar to each side of 1 per name: ratios with the lower and the higher value.

    ``below`` and ``above`` say which values these are.
    """

    names: Sequence[str]
    low: Sequence[float]
    high: Sequence[float]
    below: Sequence[str]
    above: Sequence[str]
    title: str


class Series(msgspec.Struct, frozen=True, kw_only=True):
    """Points of a line or a cloud; ``low`` and ``high`` are a band around it, or empty.

    ``style`` is *line*, *dashed*, *points*, *steps*, or *reference* for a line to compare with;
    ``labels`` name the points.
    """

    name: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] = ()
    high: Sequence[float] = ()
    style: str = "line"
    labels: Sequence[str] = ()


class Lines(msgspec.Struct, frozen=True, kw_only=True):
    """Series over a number, on logarithmic axes where ``log_x`` and ``log_y`` say so."""

    series: Sequence[Series]
    over: str
    title: str
    log_x: bool = False
    log_y: bool = False


class Block(msgspec.Struct, frozen=True):
    """Operations of one kind on a row of a timeline: ``count`` of them, from first to last.

    ``top`` and ``height`` are in rows; times in seconds from the start.
    """

    kind: str
    top: float
    height: float
    start_s: float
    end_s: float
    name: str
    count: int
    queued_s: float
    size_bytes: float


class Timeline(msgspec.Struct, frozen=True):
    """Blocks on the rows of resources."""

    rows: Sequence[str]
    blocks: Sequence[Block]
    length_s: float


Figure = Stacks | Columns | Tornado | Lines | Timeline


class Section(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a page: paragraphs, a figure, tables, and text to copy.

    ``name`` is that of its place in the page: letters and hyphens.
    """

    name: str
    title: str
    text: Sequence[str] = ()
    figure: Figure | None = None
    tables: Sequence[Table] = ()
    code: Sequence[tuple[str, str]] = ()


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """A page: its title, the answer in a few large figures, and sections.

    ``answer`` has a heading, a value and a remark for each figure.
    """

    title: str
    answer: Sequence[tuple[str, str, str]]
    sections: Sequence[Section]


def shown(cell: Cell, unit: str = "") -> str:
    """A cell as text.

    >>> shown(0.25, "s"), shown(0.123, "fraction"), shown(1.5, "ratio"), shown(None)
    ('250 ms', '12.3 %', '+50 %', '')
    >>> shown(Quantity(1.25e9, "bytes_per_s")), shown(True), shown(12345)
    ('10 Gbps', 'yes', '12345')
    """
    if isinstance(cell, Quantity):
        return shown(cell.value, cell.unit)
    if cell is None:
        return ""
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    if isinstance(cell, str):
        return cell
    if unit in UNITS:
        return show(cell, unit)
    if unit == "fraction":
        return f"{cell * 100.0:.3g} %"
    if unit == "ratio":
        return _change(cell)
    return f"{_figures(cell)} {unit}".strip()


def _figures(value: float) -> str:
    """A number with four significant digits; whole numbers, and large ones, without an exponent.

    >>> _figures(123456), _figures(22057.3), _figures(0.00012345)
    ('123456', '22060', '0.0001234')
    """
    if isinstance(value, int):
        return str(value)
    text = f"{value:.4g}"
    return f"{float(text):.0f}" if 1e4 <= abs(value) < 1e12 else text


def _change(ratio: float) -> str:
    """A ratio as a change.

    >>> _change(0.5), _change(12.0), _change(1.0)
    ('-50 %', 'x 12', '0 %')
    """
    if ratio >= 3.0:
        return f"x {ratio:.3g}"
    percent = round((ratio - 1.0) * 100.0, 1)
    return f"{percent:+.3g} %" if percent else "0 %"


def raw(cell: Cell) -> str:
    """A cell as exact text, from which a program reads it again.

    >>> raw(Quantity(0.1, "s")), raw(None), raw("inf"), raw(3)
    ('0.1', '', 'inf', '3')
    """
    value = cell.value if isinstance(cell, Quantity) else cell
    return "" if value is None else str(value)


def numeric(table: Table, column: int) -> bool:
    """Whether the first cell of a column that is not empty is a number.

    >>> numeric(Table("t", [Column("a"), Column("b")], [("x", None), ("y", 1.5)]), 1)
    True
    """
    values = (row[column] for row in table.rows)
    plain = (v.value if isinstance(v, Quantity) else v for v in values)
    first = next((v for v in plain if v is not None), None)
    return isinstance(first, (int, float)) and not isinstance(first, bool)
