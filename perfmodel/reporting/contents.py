"""What pages and figures show: text, tables with exact numbers, and panels of marks on axes.

Values are in SI units. Nothing here draws: :mod:`perfmodel.reporting.images` does for files, with
matplotlib, and :mod:`perfmodel.reporting.plots` for pages, with Bokeh;
:mod:`perfmodel.reporting.page` writes the HTML.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from perfmodel.base.units import SHOWN, show

Cell = Any
"""A number, a word, None, or a :class:`UnitValue`."""


class UnitValue(msgspec.Struct, frozen=True):
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


def columns(*titles: str, **units: str) -> list[Column]:
    """Columns without a unit, then those with one.

    >>> columns("name", share="fraction")[1]
    Column(title='share', unit='fraction')
    """
    return [*map(Column, titles), *(Column(title, unit) for title, unit in units.items())]


class PageTable(msgspec.Struct, frozen=True):
    """Rows of cells, as many as there are columns."""

    name: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]


INK, REFERENCE = "#222222", "#888888"
"""Colours of measurements, and of lines to compare with."""

INTERVAL = "90 % interval"
"""Name of intervals in legends."""


LETTER = 0.011
"""Part of an axis that a letter inside a bar needs."""

Direction = Literal["x", "y"]
"""One of the two axes."""


class Axis(msgspec.Struct, frozen=True):
    """An axis of a panel.

    Attributes
    ----------
    label : what it shows, with its unit if ticks are plain numbers.
    unit : SI unit that ticks show; *fraction* for percentages, "" for plain numbers.
    log : whether it is logarithmic.
    low, high : its ends; None for those of the data.
    names : for an axis of rows or columns their names, at 0, 1, 2, and so on, the first row on top.
    ticks : values that have a tick; empty for round ones.
    most : ticks of a logarithmic axis, at most.
    """

    label: str = ""
    unit: str = ""
    log: bool = False
    low: float | None = None
    high: float | None = None
    names: Sequence[str] = ()
    ticks: Sequence[float] = ()
    most: int = 7


class Series(msgspec.Struct, frozen=True):
    """Points of a line or a cloud.

    Attributes
    ----------
    style : *line*, *dashed*, *steps* (a value holds up to the next one) or *points*.
    marker : one of ``os^vDx|<>``, or "" for none; ``hollow`` ones are not filled.
    low, high : a band around it, called ``band``; or empty.
    labels : names of the points.
    """

    name: str
    x: Sequence[float]
    y: Sequence[float]
    colour: str = REFERENCE
    style: str = "line"
    marker: str = ""
    low: Sequence[float] = ()
    high: Sequence[float] = ()
    band: str = ""
    hollow: bool = False
    size: float = 4.0
    labels: Sequence[str] = ()


class Bars(msgspec.Struct, frozen=True):
    """Bars along an axis.

    Attributes
    ----------
    start : where they begin; empty for 0.
    at, thick : their middle on the other axis, empty for 0, 1, 2, and so on; and their size there,
        one for all or one each.
    labels : text beside their ends; ``inside`` is text in those that are long enough, and ``tips``
        is text for the pointer.
    """

    name: str
    end: Sequence[float]
    colour: str
    start: Sequence[float] = ()
    at: Sequence[float] = ()
    along: Direction = "x"
    thick: float | Sequence[float] = 0.7
    labels: Sequence[str] = ()
    inside: Sequence[str] = ()
    tips: Sequence[str] = ()

    @property
    def sides(self) -> list[tuple[float, float, float, float]]:
        """Start and end of each bar, and its two sides on the other axis."""
        count = len(self.end)
        start, at = self.start or [0.0] * count, self.at or range(count)
        thick = [self.thick] * count if isinstance(self.thick, float) else self.thick
        return [
            (begin, end, middle - size / 2.0, middle + size / 2.0)
            for begin, end, middle, size in zip(start, self.end, at, thick, strict=True)
        ]


def fitting(bars: Bars, length: float) -> list[tuple[float, float, str]]:
    """Middle of each bar whose text fits inside it, along and across, and that text; ``length`` is
    that of the axis.

    >>> fitting(Bars("", [50.0, 51.0], "", start=[0.0, 50.0], inside=["0", "1"]), 100.0)
    [(25.0, 0.0, '0')]
    """
    least = LETTER * length
    return [
        ((start + end) / 2.0, (low + high) / 2.0, text)
        for (start, end, low, high), text in zip(bars.sides, bars.inside, strict=False)
        if text and abs(end - start) >= least * len(text)
    ]


class Ranges(msgspec.Struct, frozen=True):
    """Thin lines from ``low`` to ``high`` of an axis, at ``at`` on the other one.

    Those in ``INK`` have a white outline, so that they can be seen on bars of any colour.
    """

    name: str
    at: Sequence[float]
    low: Sequence[float]
    high: Sequence[float]
    colour: str = INK
    along: Direction = "x"
    width: float = 1.2
    opacity: float = 1.0


class Span(msgspec.Struct, frozen=True):
    """All values from ``low`` to ``high`` of an axis; a line at ``low`` without ``high``.

    ``style`` of a line is *line*, *dashed* or *dotted*; ``part`` is the share of the other axis
    that it covers.
    """

    name: str
    low: float
    high: float | None = None
    colour: str = REFERENCE
    along: Direction = "x"
    style: str = "line"
    width: float = 1.0
    opacity: float = 1.0
    part: float = 1.0


Mark = Series | Bars | Ranges | Span


class Panel(msgspec.Struct, frozen=True):
    """Marks on two axes, drawn in their order; the legend has each name once.

    Attributes
    ----------
    grid : axes with grid lines: *x*, *y* or *xy*.
    shares : *y* for the vertical axis of the first panel of the row, *x* for the horizontal axis of
        the panel above.
    square : whether both axes are equally long.
    legend : whether it has a legend of its own in a file.
    zoom : whether a page lets the reader zoom and move along the horizontal axis.
    """

    marks: Sequence[Mark]
    x: Axis
    y: Axis
    grid: str = "y"
    title: str = ""
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
    tables: Sequence[PageTable] = ()
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
    >>> shown(UnitValue(1.25e9, "bytes_per_s")), shown(8e-10, "s/byte"), shown(True), shown(12345)
    ('10 Gbps', '0.8 ns/byte', 'yes', '12345')
    """
    if isinstance(cell, UnitValue):
        return shown(cell.value, cell.unit)
    if cell is None:
        return ""
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    if isinstance(cell, str):
        return cell
    if unit in SHOWN:
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

    >>> raw(UnitValue(0.1, "s")), raw(None), raw("inf"), raw(3)
    ('0.1', '', 'inf', '3')
    """
    value = cell.value if isinstance(cell, UnitValue) else cell
    return "" if value is None else str(value)


def numeric(table: PageTable, column: int) -> bool:
    """Whether the first cell of a column that is not empty is a number.

    >>> numeric(PageTable("t", [Column("a"), Column("b")], [("x", None), ("y", 1.5)]), 1)
    True
    """
    values = (row[column] for row in table.rows)
    plain = (v.value if isinstance(v, UnitValue) else v for v in values)
    first = next((v for v in plain if v is not None), None)
    return isinstance(first, (int, float)) and not isinstance(first, bool)
