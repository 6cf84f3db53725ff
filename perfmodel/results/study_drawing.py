"""Figures (extra ``plot``) of studies and schedules: an aim over a variable, gains, sensitivities,
phases, staleness."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from perfmodel.base.units import show
from perfmodel.reporting.colours import kind_colours
from perfmodel.reporting.contents import Tornado
from perfmodel.reporting.ticks import MOST
from perfmodel.results import style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LETTERS_ACROSS = 95
"""Letters of the values beside bars that would fill the width of a figure."""

LETTERS = 44
"""Longest line of a name beside an axis."""

EDGE = 1.04
"""A logarithmic axis goes this factor beyond the first and the last value."""

MOST_PHASES, VISIBLE, FAINTEST = 7, 0.005, 1e3
"""Phases with a line of their own, the least part of an iteration they take somewhere, and how many
times as short as the longest a phase is where its line leaves the figure."""

MOST_WORKERS = 20
"""Workers with a bar, at most; spread evenly over all of them if there are more."""

MET = "#009e73"
"""Colour of the values that meet an aim."""


class Axis(msgspec.Struct, frozen=True):
    """A quantity on an axis: its name, its unit (empty for plain numbers), whether the axis is
    logarithmic, and how many ticks it has room for."""

    name: str
    unit: str = ""
    log: bool = True
    ticks: int = MOST

    @property
    def label(self) -> str:
        """The name, with the unit where ticks do not have it."""
        return f"{self.name} ({UNITS[self.unit]})" if self.unit in UNITS else self.name

    def set_up(self, axes: Axes, which: Literal["x", "y"]) -> None:
        """Label the axis, and give its ticks their units."""
        tick_unit = "" if self.unit in UNITS else self.unit
        if self.log:
            style.logarithmic(axes, which, tick_unit, self.ticks)
        elif tick_unit:
            axis = axes.xaxis if which == "x" else axes.yaxis
            axis.set_major_formatter(lambda value, _: show(value, tick_unit))
        (axes.set_xlabel if which == "x" else axes.set_ylabel)(self.label)


UNITS = {"samples_per_s": "samples/s", "samples": "samples", "updates": "updates", "h": "h"}
"""Units that stand in the label of an axis, not at its ticks."""


class Answered(msgspec.Struct, frozen=True, kw_only=True):
    """What a figure of an aim marks on the axis of the variable.

    ``now`` is the value in the job; ``met`` and ``surely`` are the ends of the ranges in which the
    prediction, and the worse end of its interval, meet the aim (None: there is none).
    """

    now: float
    met: tuple[float, float] | None
    surely: tuple[float, float] | None


def aim(
    points: Sequence[tuple[float, float, float, float]],
    axes_of: tuple[Axis, Axis],
    target: float,
    marks: Answered,
    title: str,
) -> Figure:
    """A figure of an aim: its quantity over a variable, with the values that meet it.

    Parameters
    ----------
    points : value of the variable, the quantity, and the ends of its interval, in rising order.
    axes_of : the variable, and the quantity.
    target : value of the quantity that is aimed at.

    Raises
    ------
    InputError : matplotlib is not installed.
    """
    drawing = style.empty(9, 5, title)
    axes = drawing.subplots()
    xs, ys, lows, highs = (list(column) for column in zip(*points, strict=True))
    if marks.met is not None:
        axes.axvspan(*marks.met, color=MET, alpha=0.1, linewidth=0, zorder=0, label="aim met")
    if marks.surely is not None:
        axes.axvspan(
            *marks.surely,
            ymax=0.03,
            color=MET,
            alpha=0.8,
            linewidth=0,
            label="met by the whole interval",
        )
    axes.fill_between(
        xs, lows, highs, color=style.SERIES[0], alpha=style.BAND, linewidth=0, label=style.INTERVAL
    )
    axes.plot(xs, ys, color=style.SERIES[0], marker="o", markersize=3, label="predicted")
    axes.axhline(target, color=style.REFERENCE, linestyle="--", linewidth=1, label="aim")
    axes.axvline(marks.now, color=style.MEASURED, linestyle=":", linewidth=1.2, label="the job now")
    over, quantity = axes_of
    axes.set_xlim(xs[0] / EDGE, xs[-1] * EDGE)
    most = max(*ys, target)
    if quantity.log:
        least = min(*ys, target)
        axes.set_ylim(max(min(lows), least / 3.0) / 1.2, 1.2 * min(max(highs), 3.0 * most))
    else:
        axes.set_ylim(0.0, 1.05 * min(max(*highs, most), 1.5 * most))
    over.set_up(axes, "x")
    quantity.set_up(axes, "y")
    style.tidy(axes, "both")
    style.legend(drawing, axes)
    return drawing


def gains(rows: Sequence[tuple[str, float, tuple[float, float], bool]], title: str) -> Figure:
    """A figure of advice: how many times the throughput each change gives, with its interval.

    Parameters
    ----------
    rows : the change, its gain, the ends of the gain's interval, and whether it is recommended.

    Raises
    ------
    InputError : matplotlib is not installed.
    """
    names = [textwrap.fill(name, LETTERS) for name, *_ in rows]
    lines = sum(1.0 + 0.5 * name.count("\n") for name in names)
    drawing = style.empty(9.5, 1.3 + 0.36 * max(lines, 2.0), title)
    axes = drawing.subplots()
    colours = {True: style.SERIES[0], False: style.REFERENCE}
    for sure, label in ((True, "recommended"), (False, "may not help")):
        places = [k for k, row in enumerate(rows) if row[3] == sure]
        if places:
            widths = [rows[k][1] - 1.0 for k in places]
            axes.barh(places, widths, left=1.0, height=0.6, color=colours[sure], label=label)
    for place, (_, _, interval, _) in enumerate(rows):
        style.whisker(axes, place, interval)
    if rows:
        axes.plot([], [], color=style.MEASURED, linewidth=1, label=style.INTERVAL)
    axes.axvline(1.0, color=style.REFERENCE, linewidth=1)
    style.rows(axes, names)
    ends = [end for row in rows for end in row[2]] + [1.0]
    low, high = min(ends), max(max(ends), 1.1)
    if high / low > 8.0:
        axes.set_xlim(low / 1.1, high * 1.1)
        style.logarithmic(axes, "x", "")
    axes.set_xlabel("throughput (times that of the job)")
    style.tidy(axes, "x")
    style.legend(drawing, axes)
    return drawing


def tornado(content: Tornado, title: str) -> Figure:
    """A figure of what assumptions are worth: bars to both sides of 1, on a logarithmic axis.

    Raises
    ------
    InputError : matplotlib is not installed.
    """
    names = [name.replace("_", " ") for name in content.names]
    drawing = style.empty(9.5, 1.3 + 0.32 * max(len(names), 3), title)
    axes = drawing.subplots()
    sides = (
        ("lower value", content.low, content.below),
        ("higher value, or another choice", content.high, content.above),
    )
    ends_of_rows = zip(content.low, content.high, content.below, content.above, strict=True)
    both = {  # rows whose two bars would cover each other
        row
        for row, (low, high, below, above) in enumerate(ends_of_rows)
        if below and above and (low < 1.0) == (high < 1.0)
    }
    longest = {True: 0, False: 0}  # of the values to the left and to the right of the bars
    for number, (label, ratios, values) in enumerate(sides):
        look: dict[str, Any] = {"color": style.SERIES[number], "alpha": 0.85}
        for row, (ratio, value) in enumerate(zip(ratios, values, strict=True)):
            if value:
                ends = sorted((ratio, 1.0))
                place, height = (row + number * 0.36 - 0.18, 0.34) if row in both else (row, 0.7)
                axes.barh(place, ends[1] - ends[0], left=ends[0], height=height, **look)
                _beside(axes, place, ratio, value)
                longest[ratio < 1.0] = max(longest[ratio < 1.0], len(value))
        axes.barh(0, 0.0, label=label, **look)
    axes.axvline(1.0, color=style.REFERENCE, linewidth=1)
    style.rows(axes, names)
    ends = [*content.low, *content.high, 1.0]
    low, high = min(ends), max(*ends, 1.05)
    left, right = ((1 + longest[side]) / LETTERS_ACROSS for side in (True, False))
    decades = math.log10(high / low) / max(1.0 - left - right, 0.3)
    axes.set_xlim(low / 10.0 ** (left * decades), high * 10.0 ** (right * decades))
    style.logarithmic(axes, "x", "")
    axes.set_xlabel("throughput (times that of the job)")
    style.tidy(axes, "x")
    style.legend(drawing, axes)
    return drawing


def _beside(axes: Axes, place: float, ratio: float, value: str) -> None:
    """The value that an end of a bar stands for, beside it."""
    left = ratio < 1.0
    axes.annotate(
        value,
        (ratio, place),
        xytext=(-4 if left else 4, 0),
        textcoords="offset points",
        horizontalalignment="right" if left else "left",
        verticalalignment="center",
        fontsize=style.SMALL - 1,
    )


class PhasesOver(msgspec.Struct, frozen=True, kw_only=True):
    """Phases of an iteration over a variable.

    Attributes
    ----------
    axis, now : the variable, and its value in the job.
    values : (points,) in rising order.
    seconds : (points,) of each phase by its name.
    crossovers : values at which another phase becomes the longest.
    """

    axis: Axis
    now: float
    values: Sequence[float]
    seconds: Mapping[str, Sequence[float]]
    crossovers: Sequence[float]


def phases(
    parts: Mapping[str, float], over: Sequence[PhasesOver], resting: str, title: str
) -> Figure:
    """A figure of the phases of an iteration: one bar, above how they change with each variable.

    Parameters
    ----------
    parts : seconds of each phase, the longest first.
    resting : what the phases without a line of their own are called.

    Raises
    ------
    InputError : matplotlib is not installed.
    """
    drawing = style.empty(3.2 + 2.9 * max(len(over), 2), 4.8 if over else 1.9, title)
    if over:
        grid = drawing.add_gridspec(2, len(over), height_ratios=[1, 5])
        bar = drawing.add_subplot(grid[0, :])
        first = drawing.add_subplot(grid[1, 0])
        rest = [drawing.add_subplot(grid[1, k], sharey=first) for k in range(1, len(over))]
        panels = [first, *rest]
    else:
        bar, panels = drawing.subplots(), []
    drawn = _long(parts, over)
    colours = kind_colours(drawn)
    colours[resting] = style.REFERENCE
    left = 0.0
    for name, seconds in _grouped(parts, drawn, resting).items():
        bar.barh(0, seconds, left=left, height=0.6, color=colours[name], label=name)
        left += seconds
    style.rows(bar, ["iteration"])
    bar.set_xlim(0.0, 1.02 * left)
    bar.set_xlabel("time (s)")
    style.tidy(bar, "x")
    for axes, each in zip(panels, over, strict=True):
        _phases_over(axes, each, drawn, colours)
    if panels:
        highest = max(max(s) for each in over for s in each.seconds.values())
        low, high = panels[0].get_ylim()
        panels[0].set_ylim(max(low, highest / FAINTEST), high)
        style.logarithmic(panels[0], "y", "s")
        panels[0].set_ylabel("time of a phase")
        for axes in panels[1:]:
            axes.tick_params(labelleft=False)
    style.legend(drawing, bar, *panels)
    return drawing


def _long(parts: Mapping[str, float], over: Sequence[PhasesOver]) -> list[str]:
    """Phases that take a visible part of the iteration somewhere, the longest in the job first."""
    most = dict.fromkeys([*parts, *(name for each in over for name in each.seconds)], 0.0)
    for name, seconds in parts.items():
        most[name] = seconds / sum(parts.values())
    for each in over:
        for at in zip(*each.seconds.values(), strict=True):
            whole = sum(at)
            for name, seconds in zip(each.seconds, at, strict=True):
                most[name] = max(most[name], seconds / whole)
    names = [name for name, share in most.items() if share >= VISIBLE]
    return sorted(names, key=lambda name: -parts.get(name, 0.0))[:MOST_PHASES]


def _grouped(parts: Mapping[str, float], drawn: Sequence[str], resting: str) -> dict[str, float]:
    """Seconds of the phases that are drawn, and of all others together if they can be seen."""
    found = {name: parts[name] for name in drawn if name in parts}
    rest = sum(seconds for name, seconds in parts.items() if name not in drawn)
    return {**found, resting: rest} if rest >= VISIBLE * sum(parts.values()) else found


def _phases_over(
    axes: Axes, each: PhasesOver, drawn: Sequence[str], colours: Mapping[str, str]
) -> None:
    """The lines of the phases over a variable."""
    for name in drawn:
        seconds = each.seconds.get(name, ())
        if any(s > 0.0 for s in seconds):
            shown = [s if s > 0.0 else math.nan for s in seconds]
            axes.plot(each.values, shown, color=colours[name], label=name)
    look: dict[str, Any] = {"color": style.MEASURED, "zorder": 1}
    for value in each.crossovers:
        label = "longest phase changes"
        axes.axvline(value, linestyle="--", linewidth=0.8, label=label, **look)
    axes.axvline(each.now, linestyle=":", linewidth=1.5, label="the job now", **look)
    axes.set_xlim(each.values[0], each.values[-1])
    axes.set_yscale("log")
    each.axis.set_up(axes, "x")
    style.tidy(axes, "both")


class Window(msgspec.Struct, frozen=True):
    """Staleness of consecutive updates: the number of the middle one, the mean, and the 10th and
    90th percentiles."""

    updates: int
    mean: float
    low: float
    high: float


def schedule(windows: Sequence[Window], applied: Sequence[int], title: str) -> Figure:
    """A figure of a schedule: staleness over updates, and the gradients applied of each worker.

    Parameters
    ----------
    windows : staleness in the order of the updates; empty where no update is stale.
    applied : (workers,) gradients.

    Raises
    ------
    InputError : matplotlib is not installed.
    """
    drawn = style.spread(list(enumerate(applied)), MOST_WORKERS)
    drawing = style.empty(11 if windows else 7, 1.5 + 0.2 * max(len(drawn), 10), title)
    from matplotlib.ticker import EngFormatter

    *beside, bars = drawing.subplots(1, 2 if windows else 1, squeeze=False)[0]
    for axes in beside:
        at = [each.updates for each in windows]
        lows, highs = [each.low for each in windows], [each.high for each in windows]
        axes.fill_between(
            at,
            lows,
            highs,
            color=style.SERIES[0],
            alpha=style.BAND,
            linewidth=0,
            label="10th to 90th percentile",
        )
        axes.plot(at, [each.mean for each in windows], color=style.SERIES[0], label="mean")
        axes.set_xlim(0, None)
        axes.set_ylim(0, 1.05 * max(*highs, *(each.mean for each in windows)))
        axes.xaxis.set_major_formatter(EngFormatter())
        axes.locator_params(axis="x", nbins=6)
        axes.set_xlabel("updates so far (number)")
        axes.set_ylabel("staleness (updates)")
        style.tidy(axes)
    bars.barh(range(len(drawn)), [n for _, n in drawn], height=0.7, color=style.SERIES[0])
    style.rows(bars, [f"worker {worker}" for worker, _ in drawn])
    if len(drawn) < len(applied):
        bars.set_title(f"{len(drawn)} of {len(applied)} workers", fontsize=9)
    bars.set_xlabel("gradients applied (number)")
    style.tidy(bars, "x")
    style.legend(drawing, *beside, bars)
    return drawing
