"""Draws figures for files and programs with matplotlib (extra ``plot``)."""

from __future__ import annotations

import io
import os
import textwrap
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from perfmodel.base.errors import InputError
from perfmodel.reporting import contents
from perfmodel.reporting.contents import (
    INK,
    INTERVAL,
    Axis,
    Bars,
    Direction,
    Panel,
    Ranges,
    Series,
    Span,
)
from perfmodel.reporting.ticks import decades, tick_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.gridspec import SubplotSpec

WIDTHS = (9.5, 11.0, 12.5)
"""Width of a figure by the most panels in a row (inches)."""

ROW, DENSE_ROW, LINE, PLOT, ENTRY = 0.34, 0.22, 0.14, 4.2, 0.15
"""Heights of a row of bars, of one among more than ``MANY``, of a further line of its name, of a
panel without rows, and of an entry of its legend (inches)."""

MANY = 15

LETTERS = 9
"""Letters of a title per inch of the figure, so that it does not run into the legend."""

SMALL = 8
"""Font size of ticks and legends."""

BAND = 0.18
"""Opacity of bands."""

LAST_DATE_S = 253402300799
"""The end of the year 9999, in seconds since 1970: the last date that a file can have."""

REMARKS = (
    r"Glyph .* missing from",
    r"constrained_layout not applied",
    r"There are no gridspecs with layoutgrids",
)
"""Beginnings of matplotlib's warnings about text that are not shown: a letter that no font has is
drawn as a box, and text that leaves no room for the rest is drawn over it."""

LINES = {"line": "-", "dashed": "--", "dotted": ":", "steps": "-", "points": ""}
"""Matplotlib's names of styles."""


def draw(content: contents.Figure) -> Figure:
    """Draw a figure.

    Raises
    ------
    InputError : matplotlib is not installed.
    """
    heights = [max(map(_height, row)) for row in content.rows]
    width = WIDTHS[min(max(map(len, content.rows)), len(WIDTHS)) - 1]
    drawing = empty(width, 1.2 + sum(heights))
    if content.title:
        wrapped = _text(textwrap.fill(content.title, int(LETTERS * width)))
        drawing.suptitle(wrapped, fontsize=10, x=0.01, horizontalalignment="left")
    grid = drawing.add_gridspec(len(heights), 1, height_ratios=heights)
    drawn: list[tuple[Panel, Axes]] = []
    for line, row in enumerate(content.rows):
        drawn += _row(drawing, row, grid[line, 0], drawn[-1][1] if drawn else None)
    _legend(drawing, [axes for panel, axes in drawn if not panel.legend], "outside right upper")
    for panel, axes in drawn:
        if panel.legend:
            _legend(axes, [axes], "upper left", bbox_to_anchor=(1.0, 1.0))
        if panel.square:
            drawing.set_layout_engine("compressed")
    return drawing


def empty(width: float, height: float) -> Figure:
    """A figure of that size in inches.

    Raises
    ------
    InputError : matplotlib is not installed.
    """
    try:
        import matplotlib.figure
    except ImportError:
        raise InputError("plots need matplotlib: pip install 'perfmodel[plot]'") from None
    return matplotlib.figure.Figure(figsize=(width, height), layout="constrained")


def _text(words: str) -> str:
    """Words in which a dollar sign is one, and begins no formula."""
    return words.replace("$", r"\$")


def _height(panel: Panel) -> float:
    """Height of a panel (inches)."""
    names = panel.y.names
    if not names:
        return PLOT
    row = ROW if len(names) <= MANY else DENSE_ROW
    legend = ENTRY * len({mark.name for mark in panel.marks if mark.name}) if panel.legend else 0.0
    return max(row * len(names) + LINE * sum(name.count("\n") for name in names), 0.6, legend)


def _row(
    drawing: Figure, row: Sequence[Panel], where: SubplotSpec, above: Axes | None
) -> list[tuple[Panel, Axes]]:
    """Draw the panels of a row."""
    grid = where.subgridspec(1, len(row))
    drawn: list[tuple[Panel, Axes]] = []
    for column, panel in enumerate(row):
        shared: dict[str, Any] = {}
        if panel.shares == "y":
            shared["sharey"] = drawn[0][1]
        elif panel.shares == "x":
            shared["sharex"] = above
        axes = drawing.add_subplot(grid[0, column], **shared)
        _panel(axes, panel)
        if panel.shares == "y":
            axes.tick_params(axis="y", labelleft=False, length=0)
            axes.set_ylabel("")
        elif panel.shares == "x" and above is not None:
            above.tick_params(axis="x", labelbottom=False)
            above.set_xlabel("")
        drawn.append((panel, axes))
    return drawn


def _panel(axes: Axes, panel: Panel) -> None:
    for order, mark in enumerate(panel.marks):
        _MARKS[type(mark)](axes, mark, 1.0 + 0.01 * order)
    axes.set_xlabel(_text(panel.x.label), fontsize=9)
    axes.set_ylabel(_text(panel.y.label), fontsize=9)
    if panel.title:
        axes.set_title(_text(panel.title), fontsize=9)
    if panel.square:
        axes.set_box_aspect(1)
    axes.spines[["top", "right"]].set_visible(False)
    sides: tuple[tuple[Direction, Axis], ...] = (("x", panel.x), ("y", panel.y))
    for direction, axis in sides:
        if panel.shares != direction:
            _axis(axes, direction, axis)
        if direction in panel.grid:
            axes.grid(axis=direction, color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=SMALL)


def _axis(axes: Axes, direction: Direction, axis: Axis) -> None:
    """Set the limits, the scale and the ticks of an axis."""
    drawn = axes.xaxis if direction == "x" else axes.yaxis
    get, limit = getattr(axes, f"get_{direction}lim"), getattr(axes, f"set_{direction}lim")
    if axis.names:
        drawn.set_ticks(range(len(axis.names)), list(map(_text, axis.names)), fontsize=SMALL)
        drawn.set_tick_params(length=0)
        ends = (len(axis.names) - 0.4, -0.6) if direction == "y" else (-0.6, len(axis.names) - 0.4)
        limit(*ends)
        return
    if axis.log:
        getattr(axes, f"set_{direction}scale")("log")
    limit(axis.low, axis.high)
    if axis.ticks or axis.log:
        values = list(axis.ticks) or _decades(get(), axis)
        drawn.set_ticks(values, [tick_text(value, axis.unit) for value in values])
        drawn.set_ticks([], minor=True)
    elif axis.unit:
        drawn.set_major_formatter(lambda value, _: tick_text(value, axis.unit))
    else:
        axes.locator_params(axis=direction, nbins=7)


def _decades(ends: tuple[float, float], axis: Axis) -> list[float]:
    """Ticks of a logarithmic axis: round where rates are bits per second, as they are shown."""
    low, high = ends
    bits = 8.0 if axis.unit == "bytes_per_s" else 1.0
    return [value / bits for value in decades(low * bits, high * bits, axis.most)]


def _series(axes: Axes, mark: Series, order: float) -> None:
    look: dict[str, Any] = {"color": mark.colour, "zorder": 1.0 + order}
    if mark.hollow:
        look["markerfacecolor"] = "none" if mark.size > 4.0 else "white"
    look |= {"linestyle": LINES[mark.style], "linewidth": 1.5 if mark.style == "line" else 1.0}
    look |= {"drawstyle": "steps-post"} if mark.style == "steps" else {}
    look |= {"marker": mark.marker, "markersize": mark.size, "label": _text(mark.name)}
    axes.plot(mark.x, mark.y, **look)
    if len(mark.low):
        look = {"color": mark.colour, "alpha": BAND, "linewidth": 0, "zorder": order}
        axes.fill_between(mark.x, mark.low, mark.high, label=_text(mark.band), **look)


def _bars(axes: Axes, mark: Bars, order: float) -> None:
    from matplotlib.collections import PolyCollection

    corners = []
    for start, end, low, high in mark.sides:
        corner = [(start, low), (end, low), (end, high), (start, high)]
        corners.append(corner if mark.along == "x" else [(y, x) for x, y in corner])
    look: dict[str, Any] = {"facecolors": mark.colour, "linewidths": 0, "zorder": order}
    if any(mark.inside):
        look |= {"edgecolors": "white", "linewidths": 0.4}
    axes.add_collection(PolyCollection(corners, label=_text(mark.name), **look))
    axes.autoscale_view()
    for (start, end, low, high), text in zip(mark.sides, mark.labels, strict=False):
        left = end < start
        axes.annotate(
            _text(text),
            (end, (low + high) / 2.0),
            xytext=(-4 if left else 4, 0),
            textcoords="offset points",
            horizontalalignment="right" if left else "left",
            verticalalignment="center",
            fontsize=SMALL - 1,
        )
    for along, across, text in contents.fitting(mark, max(mark.end, default=0.0)):
        place = (along, across) if mark.along == "x" else (across, along)
        look = {"horizontalalignment": "center", "verticalalignment": "center", "color": "white"}
        axes.annotate(_text(text), place, fontsize=SMALL - 1, zorder=1.0 + order, **look)


def _ranges(axes: Axes, mark: Ranges, order: float) -> None:
    from matplotlib.patheffects import withStroke

    look: dict[str, Any] = {"color": mark.colour, "linewidth": mark.width, "alpha": mark.opacity}
    look |= {"solid_capstyle": "butt", "zorder": 1.0 + order, "label": _text(mark.name)}
    if mark.colour == INK:
        look["path_effects"] = [withStroke(linewidth=2.8, foreground="white")]
    for at, low, high in zip(mark.at, mark.low, mark.high, strict=True):
        ends = ([low, high], [at, at])
        axes.plot(*(ends if mark.along == "x" else ends[::-1]), **look)


def _span(axes: Axes, mark: Span, order: float) -> None:
    look: dict[str, Any] = {"color": mark.colour, "alpha": mark.opacity, "label": _text(mark.name)}
    if mark.high is None:
        line = axes.axvline if mark.along == "x" else axes.axhline
        look |= {"linestyle": LINES[mark.style], "linewidth": mark.width, "zorder": order}
        line(mark.low, **look)
    else:
        area = axes.axvspan if mark.along == "x" else axes.axhspan
        area(mark.low, mark.high, 0.0, mark.part, linewidth=0, zorder=0.9, **look)


_MARKS: dict[type, Callable[..., None]] = {
    Series: _series,
    Bars: _bars,
    Ranges: _ranges,
    Span: _span,
}


def _legend(where: Any, panels: Sequence[Axes], place: str, **more: Any) -> None:
    """One legend for everything that is named on these panels, beside them."""
    handles: dict[str, Any] = {}
    for axes in panels:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    if INTERVAL in handles:
        handles[INTERVAL] = handles.pop(INTERVAL)
    if handles:
        where.legend(
            list(handles.values()), list(handles), loc=place, fontsize=SMALL, frameon=False, **more
        )


def image(drawing: Figure, ending: str) -> bytes:
    """A figure in the format a file name's ending asks for (png, svg, pdf).

    Matplotlib's remarks about text are not shown, see :data:`REMARKS`.

    Raises
    ------
    InputError : matplotlib does not write that format; SOURCE_DATE_EPOCH is no date.
    """
    _known(drawing, ending)
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        for remark in REMARKS:
            warnings.filterwarnings("ignore", message=remark, category=UserWarning)
        drawing.savefig(buffer, format=ending)
    return buffer.getvalue()


def check(ending: str) -> None:
    """Validate a file name's ending before drawing.

    Raises
    ------
    InputError : matplotlib is not installed, or does not write that format; SOURCE_DATE_EPOCH is no
        date.
    """
    _known(empty(1, 1), ending)


def _known(drawing: Figure, ending: str) -> None:
    date = os.environ.get("SOURCE_DATE_EPOCH", "")
    if date and not (date.isascii() and date.isdecimal() and int(date[:20]) <= LAST_DATE_S):
        raise InputError(
            "SOURCE_DATE_EPOCH: expected the whole seconds since 1970 of a date before the year "
            f"10000, got {date!r}"
        )
    formats = drawing.canvas.get_supported_filetypes()
    if ending not in formats:
        raise InputError(
            f"plot: cannot write {ending!r} files (known: {', '.join(sorted(formats))})"
        )
