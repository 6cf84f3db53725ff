"""Draws the figures of a page with Bokeh (extra ``report``)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from perfmodel.base.units import show
from perfmodel.reporting.colours import CAUSE_COLOURS, PALETTE, kind_colours
from perfmodel.reporting.contents import (
    Columns,
    Figure,
    Lines,
    Series,
    Stacks,
    Timeline,
    Tornado,
)
from perfmodel.reporting.ticks import decades

Plot = Any
"""A figure of Bokeh."""

ROW_PX, MOST_ROWS = 18, 32
"""Height of a row of a timeline, and rows that are visible at once."""

MOST_TICKS = 6
"""Ticks of a logarithmic axis, at most: as many as a phone has room for."""

REFERENCE = "#8c8c8c"
"""Colour of lines to compare with."""

PHONE_PX = 330
"""Width of a figure on a phone."""

NARROW_PX = 5
"""Width of a character on an axis, at least."""

LONGEST_NAME = 24
"""Longest name on an axis; longer ones are cut."""


def drawn(content: Figure) -> Plot:
    """The figure of a section."""
    return _DRAW[type(content)](content)


def colour(kind: str, number: int) -> str:
    """The colour of a kind: its own, or the next one."""
    return CAUSE_COLOURS.get(kind, PALETTE[number % len(PALETTE)])


def _plot(height: int, **more: Any) -> Plot:
    """An empty figure as wide as the page; colours of its frame are those of the page's theme."""
    from bokeh.plotting import figure

    plot = figure(
        height=height,
        sizing_mode="stretch_width",
        **{"toolbar_location": None, "tools": "", **more},
    )
    plot.background_fill_color = plot.border_fill_color = None
    plot.outline_line_color = None
    for axis in plot.axis:
        axis.axis_label_text_font_style = "normal"
        axis.major_label_text_font_size = "11px"
        axis.axis_label_text_font_size = "12px"
    plot.min_border_left = plot.min_border_right = 16
    return plot


def _legend(plot: Plot, beside: Sequence[str] = ()) -> None:
    """Put the legend above, as wide as a phone, with entries that hide and show what they name.

    ``beside`` are the names on the vertical axis: the legend starts above them.
    """
    names_px = NARROW_PX * max(map(len, beside), default=0)
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
        plot.height += 20 * (math.ceil(len(legend.items) / legend.ncols) - 1)
        plot.add_layout(legend, "above")


def _hover(plot: Plot, tooltips: Sequence[tuple[str, str]], renderers: Sequence[Any]) -> None:
    from bokeh.models import HoverTool

    plot.add_tools(HoverTool(tooltips=list(tooltips), renderers=list(renderers)))


def _short(names: Sequence[str]) -> list[str]:
    """Names that fit beside an axis, all different."""
    found: list[str] = []
    for name in names:
        text = name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 1]}…"
        while text in found:
            text += " "
        found.append(text)
    return found


def stacks(content: Stacks) -> Plot:
    """Horizontal bars of parts."""
    names = _short(content.names)
    plot = _plot(110 + 26 * len(names), y_range=list(reversed(names)))
    left = [0.0] * len(names)
    bars = []
    for number, (kind, values) in enumerate(content.parts.items()):
        right = [a + b for a, b in zip(left, values, strict=True)]
        label = kind.replace("_", " ")
        source = {
            "name": names,
            "left": left,
            "right": right,
            "kind": [label] * len(names),
            "value": [f"{v:.4g}" for v in values],
        }
        bars.append(
            plot.hbar(
                y="name",
                left="left",
                right="right",
                height=0.7,
                source=_source(source),
                color=colour(kind, number),
                legend_label=label,
            )
        )
        left = right
    plot.xaxis.axis_label = content.title
    plot.x_range.start = 0.0
    if len(names) == 1:
        plot.yaxis.visible = False
    plot.ygrid.visible = False
    _hover(plot, [("", "@name"), ("", "@kind: @value")], bars)
    _legend(plot, names if len(names) > 1 else ())
    return plot


def _source(values: dict[str, Any]) -> Any:
    from bokeh.models import ColumnDataSource

    return ColumnDataSource(values)


def columns(content: Columns) -> Plot:
    """Vertical bars of fractions."""
    from bokeh.models import NumeralTickFormatter

    names = list(content.names)
    plot = _plot(240, x_range=names)
    source = {"name": names, "value": list(content.values)}
    bars = plot.vbar(x="name", top="value", width=0.8, source=_source(source), color=PALETTE[0])
    plot.xaxis.axis_label, plot.yaxis.axis_label = content.over, content.title
    plot.y_range.start = 0.0
    plot.max_width = 160 + 110 * len(names)
    plot.yaxis.formatter = NumeralTickFormatter(format="0.[000] %")
    plot.xgrid.visible = False
    _hover(plot, [(content.over, "@name"), (content.title, "@value{0.[0000] %}")], [bars])
    return plot


def tornado(content: Tornado) -> Plot:
    """Bars to both sides of 1, on a logarithmic axis."""
    from bokeh.models import Span

    names = _short([name.replace("_", " ") for name in content.names])
    plot = _plot(90 + 24 * len(names), y_range=list(reversed(names)), x_axis_type="log")
    bars = []
    sides = (
        ("lower", content.low, content.below),
        ("higher or other", content.high, content.above),
    )
    for number, (label, ratios, values) in enumerate(sides):
        source = {
            "name": names,
            "left": [min(r, 1.0) for r in ratios],
            "right": [max(r, 1.0) for r in ratios],
            "ratio": [f"{r:.4g}" for r in ratios],
            "value": list(values),
        }
        bars.append(
            plot.hbar(
                y="name",
                left="left",
                right="right",
                height=0.7,
                source=_source(source),
                color=PALETTE[number],
                fill_alpha=0.85,
                legend_label=label,
            )
        )
    plot.add_layout(Span(location=1.0, dimension="height", line_color=REFERENCE))
    ends = [*content.low, *content.high, 1.0]
    plot.x_range.start, plot.x_range.end = min(ends) / 1.05, max(ends) * 1.05
    _round_ticks(plot.xaxis, ends)
    plot.xaxis.axis_label = content.title
    plot.ygrid.visible = False
    _hover(plot, [("", "@name = @value"), (content.title, "@ratio")], bars)
    _legend(plot, names)
    return plot


def _round_ticks(axis: Any, values: Sequence[float]) -> None:
    """Give a logarithmic axis over some values round ticks."""
    low, high = min(values), max(values)
    if low > 0.0:
        margin = (high / low) ** 0.05 * 1.01
        found = decades(low / margin, high * margin, MOST_TICKS)
        axis.ticker = found
        axis.major_label_overrides = {tick: f"{tick:g}" for tick in found}


def lines(content: Lines) -> Plot:
    """Series over a number, with their bands."""
    axes = {"x_axis_type": content.log_x, "y_axis_type": content.log_y}
    plot = _plot(340, **{name: "log" for name, log in axes.items() if log})
    marks = [
        _drawn_series(plot, each, PALETTE[number % len(PALETTE)])
        for number, each in enumerate(content.series)
    ]
    plot.xaxis.axis_label, plot.yaxis.axis_label = content.over, content.title
    xs = sorted({x for each in content.series for x in each.x})
    if content.log_x and 2 <= len(xs) <= 12 and all(float(x).is_integer() for x in xs):
        plot.xaxis.ticker = [int(x) for x in xs]
    elif content.log_x:
        _round_ticks(plot.xaxis, xs)
    if content.log_y:
        drawn_ys = [v for each in content.series for v in (*each.y, *each.low, *each.high)]
        _round_ticks(plot.yaxis, [v for v in drawn_ys if v > 0.0])
    tips = [("", "@label"), (content.over, "@x"), (content.title, "@y")]
    _hover(plot, tips, marks)
    _legend(plot)
    return plot


def _drawn_series(plot: Plot, each: Series, line_colour: str) -> Any:
    """The marks of a series, on which the pointer rests."""
    source = _source(
        {
            "x": list(each.x),
            "y": list(each.y),
            "label": list(each.labels) or [each.name] * len(each.x),
        }
    )
    if each.low:
        band = {"x": list(each.x), "low": list(each.low), "high": list(each.high)}
        plot.varea(
            x="x",
            y1="low",
            y2="high",
            source=_source(band),
            fill_color=line_colour,
            fill_alpha=0.2,
            legend_label=each.name,
        )
    if each.style == "reference":
        return plot.line(x="x", y="y", source=source, color=REFERENCE, legend_label=each.name)
    if each.style == "steps":
        plot.step(
            x="x", y="y", source=source, color=line_colour, mode="after", legend_label=each.name
        )
    elif each.style != "points":
        dash = "dashed" if each.style == "dashed" else "solid"
        plot.line(
            x="x",
            y="y",
            source=source,
            color=line_colour,
            line_width=2,
            line_dash=dash,
            legend_label=each.name,
        )
    return plot.scatter(
        x="x", y="y", source=source, color=line_colour, size=7, legend_label=each.name
    )


def timeline(content: Timeline) -> Plot:
    """Blocks on rows, zoomed along time with the wheel and moved by dragging."""
    import numpy as np
    from bokeh.models import PanTool, Range1d, ResetTool, WheelZoomTool

    count = len(content.rows)
    seen = min(count, MOST_ROWS)
    length = content.length_s or 1.0
    wheel, pan = WheelZoomTool(dimensions="width"), PanTool()
    plot = _plot(
        110 + ROW_PX * seen,
        x_range=Range1d(0.0, length, bounds=(0.0, length), min_interval=length / 5000.0),
        y_range=Range1d(seen, 0.0, bounds=(0.0, float(count))),
        tools=[wheel, pan, ResetTool()],
        toolbar_location="above",
        output_backend="canvas",
    )
    plot.name = "timeline"
    plot.toolbar.logo = None
    plot.toolbar.active_scroll, plot.toolbar.active_drag = wheel, pan
    bars = []
    kinds = list(dict.fromkeys(block.kind for block in content.blocks))
    colours = kind_colours(kinds)
    for kind in kinds:
        mine = [block for block in content.blocks if block.kind == kind]
        column = {
            "left": np.array([b.start_s for b in mine], dtype=np.float32),
            "right": np.array([b.end_s for b in mine], dtype=np.float32),
            "top": np.array([b.top for b in mine], dtype=np.float32),
            "bottom": np.array([b.top + b.height for b in mine], dtype=np.float32),
            "name": [b.name for b in mine],
            "took": [show(b.end_s - b.start_s, "s") for b in mine],
            "more": [_more(b.queued_s, b.size_bytes) for b in mine],
        }
        bars.append(
            plot.quad(
                left="left",
                right="right",
                top="top",
                bottom="bottom",
                source=_source(column),
                fill_color=colours[kind],
                line_color=None,
                legend_label=kind.replace("_", " "),
            )
        )
    plot.yaxis.ticker = [row + 0.5 for row in range(count)]
    rows = _short(content.rows)
    plot.yaxis.major_label_overrides = {row + 0.5: name for row, name in enumerate(rows)}
    plot.yaxis.major_tick_line_color = None
    plot.ygrid.visible = False
    plot.xaxis.axis_label = "time (s)"
    _hover(plot, [("", "@name"), ("takes", "@took"), ("", "@more")], bars)
    _legend(plot, rows)
    return plot


def _more(queued_s: float, size_bytes: float) -> str:
    said = [f"waited {show(queued_s, 's')} before"] if queued_s > 0.0 else []
    said += [show(size_bytes, "bytes")] if size_bytes > 0.0 else []
    return ", ".join(said)


_DRAW: dict[type, Callable[[Any], Plot]] = {
    Stacks: stacks,
    Columns: columns,
    Tornado: tornado,
    Lines: lines,
    Timeline: timeline,
}
