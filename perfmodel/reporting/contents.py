"""What pages and figures show: text, tables with exact numbers, and panels of marks on axes.

Values are in SI units. Nothing here draws: :mod:`perfmodel.reporting.images` does for files, with
matplotlib, and :mod:`perfmodel.reporting.plots` for pages, with Bokeh;
:mod:`perfmodel.reporting.page` writes the HTML.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

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


INK, REFERENCE = "#222222", "#888888"
"""Colours of measurements, and of lines to compare with."""

INTERVAL = "90 % interval"
"""Name of intervals in legends."""


Which = Literal["x", "y"]
"""One of the two axes."""


class Axis(msgspec.Struct, frozen=True, kw_only=True):
    """An axis of a panel.

    Attributes
    ----------
    label : what it shows, with its unit if ticks are plain numbers.
    unit : SI unit that ticks show; *fraction* for percentages, "" for plain numbers.
    log : whether it is logarithmic.
    names : for an axis of rows or columns their names, at 0, 1, 2, and so on, the first row on top.
    low, high : its ends; None for those of the data.
    ticks : values that have a tick; empty for round ones.
    most : ticks of a logarithmic axis, at most.
    """

    label: str = ""
    unit: str = ""
    log: bool = False
    names: Sequence[str] = ()
    low: float | None = None
    high: float | None = None
    ticks: Sequence[float] = ()
    most: int = 7


class Series(msgspec.Struct, frozen=True, kw_only=True):
    """Points of a line or a cloud; ``low`` and ``high`` are a band around it, or empty.

    ``band`` is the band's name. ``style`` is *line*, *dashed*, *steps* (the value holds up to the
    next one) or *points*; ``marker`` one of ``os^vDx|<>``, or "" for none, ``hollow`` whether it is
    not filled; ``colour`` as in ``#0072b2``; ``labels`` name the points.
    """

    name: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] = ()
    high: Sequence[float] = ()
    band: str = ""
    style: str = "line"
    marker: str = ""
    hollow: bool = False
    size: float = 4.0
    colour: str = REFERENCE
    labels: Sequence[str] = ()


class Bars(msgspec.Struct, frozen=True, kw_only=True):
    """Bars from ``start`` to ``end``, along ``along``, centred at ``at`` on the other axis.

    ``thick`` is their size along the other axis: one for all, or one each. ``labels`` stand beside
    their ends, ``tips`` say what they are when the pointer rests on them.
    """

    name: str
    at: Sequence[float]
    start: Sequence[float]
    end: Sequence[float]
    colour: str
    along: Which = "x"
    thick: float | Sequence[float] = 0.7
    labels: Sequence[str] = ()
    tips: Sequence[str] = ()


class Ranges(msgspec.Struct, frozen=True, kw_only=True):
    """Thin lines from ``low`` to ``high``, along ``along``, at ``at`` on the other axis.

    Those in ``INK`` have a white outline, so that they can be seen on bars of any colour.
    """

    name: str
    at: Sequence[float]
    low: Sequence[float]
    high: Sequence[float]
    along: Which = "x"
    colour: str = INK
    width: float = 1.2
    opacity: float = 1.0


class Span(msgspec.Struct, frozen=True, kw_only=True):
    """All values between ``low`` and ``high`` of the axis ``along``: a line where they are equal.

    ``style`` of a line is *line*, *dashed* or *dotted*; ``part`` is the share of the other axis
    that it covers.
    """

    name: str
    low: float
    high: float
    along: Which = "x"
    colour: str = REFERENCE
    style: str = "line"
    width: float = 1.0
    opacity: float = 1.0
    part: float = 1.0


Mark = Series | Bars | Ranges | Span


class Panel(msgspec.Struct, frozen=True, kw_only=True):
    """Marks on two axes, drawn in their order.

    A mark's name is in the legend, once for all marks of that name. ``shares`` is *y* for the
    vertical axis of the first panel of the row, *x* for the horizontal axis of the panel above.
    ``grid`` has the axes with grid lines: *x*, *y* or *xy*.

    Attributes
    ----------
    square : whether both axes are equally long.
    legend : whether it has a legend of its own in a file.
    zoom : whether a page lets the reader zoom and move along the horizontal axis.
    """

    marks: Sequence[Mark]
    x: Axis
    y: Axis
    title: str = ""
    grid: str = "y"
    shares: str = ""
    square: bool = False
    legend: bool = False
    zoom: bool = False


class Figure(msgspec.Struct, frozen=True):
    """Panels in rows below each other, under a title."""

    rows: Sequence[Sequence[Panel]]
    title: str = ""


class Section(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a page: paragraphs, a figure, tables, and text to copy.

    ``name`` is that of its place in the page: letters and hyphens.
    """

    name: str
    title: str
    text: Sequence[str] = ()
    figure: Panel | None = None
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
