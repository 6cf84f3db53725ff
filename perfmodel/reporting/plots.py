"""Draws the panels of a page with Bokeh (extra ``report``)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from perfmodel.reporting.contents import INK, Axis, Bars, Panel, Ranges, Series, Span, fitting
from perfmodel.reporting.ticks import decades, tick_text

Plot = Any
"""A figure of Bokeh."""

ROW_PX, MOST_ROWS, PLOT_PX = 22, 28, 340
"""Height of a row of bars, rows that are visible at once, and height of a plot without rows."""

MOST_TICKS = 6
"""Ticks of a logarithmic axis, at most: as many as a phone has room for."""

INK_ON_BOTH = "#8c8c8c"
"""What replaces ink, which cannot be seen on a dark page."""

LEGEND_PX = 28
"""Height of a row of the legend."""

PHONE_PX = 330
"""Width of a figure on a phone."""

NARROW_PX = 5
"""Width of a character on an axis, at least."""

LONGEST_NAME = 24
"""Longest name on an axis; longer ones are cut."""

DEEPEST = 5000
"""How many times a reader can zoom into a panel."""

MARKERS = {"s": "square", "^": "triangle", "v": "inverted_triangle", "D": "diamond", "x": "x"}
"""Bokeh's names of markers; all others are circles."""


def drawn(panel: Panel) -> Plot:
    """The figure of a panel, as wide as the page; colours of its frame are those of the page's
    theme."""
    from bokeh.plotting import figure

    types = {f"{direction}_axis_type": "log" for direction in "xy" if getattr(panel, direction).log}
    if panel.zoom:
        types |= {"output_backend": "canvas"}
    rows = min(len(panel.y.names), MOST_ROWS)
    plot = figure(
        height=100 + ROW_PX * rows if rows else PLOT_PX,
        sizing_mode="stretch_width",
        toolbar_location=None,
        tools="",
        **types,
    )
    plot.background_fill_color = plot.border_fill_color = plot.outline_line_color = None
    plot.min_border_left = plot.min_border_right = 16
    if panel.x.names:
        plot.max_width = 160 + 110 * len(panel.x.names)
    for mark in panel.marks:
        _MARKS[type(mark)](plot, mark, panel)
    for direction, axis in (("x", panel.x), ("y", panel.y)):
        _axis(plot, direction, axis, _values(panel, direction))
        getattr(plot, f"{direction}grid").visible = direction in panel.grid
    if panel.zoom:
        _zoom(plot, panel)
    _legend(plot, panel.y.names)
    return plot


def _values(panel: Panel, direction: str) -> list[float]:
    """The positive values of the panel's marks on an axis."""
    values: list[float] = []
    for mark in panel.marks:
        if isinstance(mark, Series):
            values += mark.x if direction == "x" else [*mark.y, *mark.low, *mark.high]
        elif isinstance(mark, Bars) and mark.along == direction:
            values += [*mark.start, *mark.end]
        elif isinstance(mark, Ranges) and mark.along == direction:
            values += [*mark.low, *mark.high]
    return [value for value in values if value > 0.0]


def _axis(plot: Plot, direction: str, axis: Axis, values: Sequence[float]) -> None:
    """Set the label, the range and the ticks of an axis."""
    from bokeh.models import NumeralTickFormatter, Range1d

    drawn, between = getattr(plot, f"{direction}axis"), getattr(plot, f"{direction}_range")
    drawn.axis_label_text_font_style = "normal"
    drawn.major_label_text_font_size = "11px"
    drawn.axis_label_text_font_size = "12px"
    drawn.axis_label = axis.label
    count = len(axis.names)
    if count:
        ends = (min(count, MOST_ROWS) - 0.5, -0.5) if direction == "y" else (-0.6, count - 0.4)
        setattr(plot, f"{direction}_range", Range1d(*ends))
        _ticks(drawn, dict(zip(map(float, range(count)), _short(axis.names), strict=True)))
        drawn.major_tick_line_color = None
        drawn.visible = axis.names != ("",)
        return
    if axis.low is not None:
        between.start = axis.low
    if axis.high is not None:
        between.end = axis.high
    if axis.ticks and len(axis.ticks) <= 2 * MOST_TICKS:
        _ticks(drawn, {float(value): tick_text(value, axis.unit) for value in axis.ticks})
    elif axis.log and values:
        margin = (max(values) / min(values)) ** 0.05 * 1.01
        low, high = axis.low or min(values) / margin, axis.high or max(values) * margin
        _ticks(drawn, {tick: tick_text(tick, axis.unit) for tick in decades(low, high, MOST_TICKS)})
    elif axis.unit == "fraction":
        drawn.formatter = NumeralTickFormatter(format="0.[000] %")
    elif axis.unit:
        drawn.axis_label = f"{axis.label} ({axis.unit})"


def _ticks(axis: Any, labels: Mapping[float, str]) -> None:
    axis.ticker = list(labels)
    axis.major_label_overrides = dict(labels)


def _short(names: Sequence[str]) -> list[str]:
    """Names that fit beside an axis."""
    return [
        name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 1]}…"
        for name in (name.replace("\n", ", ") for name in names)
    ]


def _colour(colour: str) -> str:
    return INK_ON_BOTH if colour == INK else colour


def _source(**values: Any) -> Any:
    from bokeh.models import ColumnDataSource

    return ColumnDataSource(values)


def _hover(plot: Plot, tooltips: Sequence[tuple[str, str]], marks: Any) -> None:
    from bokeh.models import HoverTool

    plot.add_tools(HoverTool(tooltips=list(tooltips), renderers=[marks]))


def _named(name: str) -> dict[str, str]:
    return {"legend_label": name.replace("_", " ")} if name else {}


def _series(plot: Plot, mark: Series, panel: Panel) -> None:
    labels = list(mark.labels) or [mark.name] * len(mark.x)
    source = _source(x=list(mark.x), y=list(mark.y), label=labels)
    look = {"source": source, "color": _colour(mark.colour), **_named(mark.name)}
    if len(mark.low):
        band = _source(x=list(mark.x), low=list(mark.low), high=list(mark.high))
        fill = {"fill_color": look["color"], "fill_alpha": 0.2, **_named(mark.name)}
        plot.varea(x="x", y1="low", y2="high", source=band, **fill)
    if mark.style == "steps":
        plot.step(x="x", y="y", mode="after", **look)
    elif mark.style != "points":
        dash = "solid" if mark.style == "line" else "dashed"
        plot.line(x="x", y="y", line_width=2, line_dash=dash, **look)
    if mark.marker:
        if mark.hollow:
            look |= {"fill_alpha": 0.0}
        shape = MARKERS.get(mark.marker, "circle")
        points = plot.scatter(x="x", y="y", size=2.0 + mark.size, marker=shape, **look)
        tips = [("", "@label"), (panel.x.label, "@x"), (panel.y.label, "@y")]
        _hover(plot, [tip for tip in tips if tip[0] or tip[1] == "@label"], points)


def _bars(plot: Plot, mark: Bars, panel: Panel) -> None:
    import numpy as np

    sides = np.array(mark.sides).reshape(-1, 4).T.astype(np.float32 if panel.zoom else np.float64)
    tips = list(mark.tips) or [f"{end:.4g}" for end in mark.end]
    source = _source(**dict(zip("abcd", sides, strict=True)), tip=tips)
    along = {"left": "a", "right": "b", "top": "c", "bottom": "d"}
    across = {"bottom": "a", "top": "b", "left": "c", "right": "d"}
    look = {"source": source, "fill_color": mark.colour, "line_color": None, **_named(mark.name)}
    if any(mark.inside):
        look |= {"line_color": "white", "line_width": 0.5}
    bars = plot.quad(**(along if mark.along == "x" else across), **look)
    _hover(plot, [("", "@tip")], bars)
    inside = fitting(mark, max(mark.end, default=0.0))
    if inside:
        along_, across_, texts = map(list, zip(*inside, strict=True))
        x, y = (along_, across_) if mark.along == "x" else (across_, along_)
        style = {"text_align": "center", "text_baseline": "middle", "text_font_size": "10px"}
        source = _source(x=x, y=y, text=texts)
        plot.text(x="x", y="y", text="text", source=source, text_color="white", **style)


def _ranges(plot: Plot, mark: Ranges, _: Panel) -> None:
    outline = [("white", mark.width + 1.6, 1.0)] if mark.colour == INK else []
    names = ("x0", "x1", "y0", "y1") if mark.along == "x" else ("y0", "y1", "x0", "x1")
    columns = (mark.low, mark.high, mark.at, mark.at)
    ends = {name: list(column) for name, column in zip(names, columns, strict=True)}
    for colour, width, opacity in (*outline, (mark.colour, mark.width, mark.opacity)):
        look = {"line_color": colour, "line_width": width, "line_alpha": opacity}
        look |= {} if colour == "white" else _named(mark.name)
        plot.segment(**{name: name for name in ends}, source=_source(**ends), **look)


def _span(plot: Plot, mark: Span, _: Panel) -> None:
    from bokeh.models import BoxAnnotation, Span as Line

    if mark.high is None:
        dash = {"line": "solid"}.get(mark.style, mark.style)
        where = "height" if mark.along == "x" else "width"
        look = {"line_color": _colour(mark.colour), "line_dash": dash, "line_width": mark.width}
        plot.add_layout(Line(location=mark.low, dimension=where, **look))
    else:
        names = ("left", "right") if mark.along == "x" else ("bottom", "top")
        ends = dict(zip(names, (mark.low, mark.high), strict=True))
        look = {"fill_color": mark.colour, "fill_alpha": mark.opacity, "line_color": None}
        plot.add_layout(BoxAnnotation(**ends, **look))


_MARKS: dict[type, Callable[..., None]] = {
    Series: _series,
    Bars: _bars,
    Ranges: _ranges,
    Span: _span,
}


def _zoom(plot: Plot, panel: Panel) -> None:
    """Let the wheel zoom along the horizontal axis, and dragging move it and the rows."""
    from bokeh.models import PanTool, Range1d, ResetTool, WheelZoomTool

    length = panel.x.high or 1.0
    wheel, pan = WheelZoomTool(dimensions="width"), PanTool()
    plot.add_tools(wheel, pan, ResetTool())
    plot.toolbar_location, plot.toolbar.logo = "above", None
    plot.toolbar.active_scroll, plot.toolbar.active_drag = wheel, pan
    plot.x_range = Range1d(0.0, length, bounds=(0.0, length), min_interval=length / DEEPEST)
    bounds = (-0.5, len(panel.y.names) - 0.5)
    plot.y_range = Range1d(plot.y_range.start, plot.y_range.end, bounds=bounds)
    plot.name = "timeline"


def _legend(plot: Plot, beside: Sequence[str]) -> None:
    """Put the legend above, as wide as a phone, with entries that hide and show what they name.

    ``beside`` are the names on the vertical axis: the legend starts above them.
    """
    names_px = NARROW_PX * max(map(len, _short(beside)), default=0) if any(beside) else 0
    for legend in plot.legend:
        legend.orientation = "horizontal"
        legend.location = (-names_px, 0)
        legend.click_policy = "hide"
        legend.label_text_font_size = "11px"
        legend.background_fill_alpha = 0.0
        legend.border_line_color = None
        legend.padding = legend.margin = 2
        legend.spacing = 8
        longest = max(len(str(item.label.value)) for item in legend.items)
        legend.ncols = max(1, min(len(legend.items), PHONE_PX // (34 + 7 * longest)))
        plot.height += LEGEND_PX * (math.ceil(len(legend.items) / legend.ncols) - 1)
        plot.add_layout(legend, "above")
