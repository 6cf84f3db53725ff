"""The one style of all figures: colours, axes with units, legends beside the data, file formats."""

from __future__ import annotations

import io
import math
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from perfmodel.base.errors import InputError
from perfmodel.base.units import show

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

T = TypeVar("T")

SERIES = (
    "#4c78a8",
    "#f58518",
    "#54a24b",
    "#e45756",
    "#72b7b2",
    "#b279a2",
    "#9d755d",
    "#eeca3b",
    "#ff9da6",
    "#79706e",
)
"""Colours of lines and groups, in this order."""

MARKERS = "os^vD"
"""Markers of groups, the next one when all colours have been used."""

CAUSE_COLOURS = {
    "compute": "#4c78a8",
    "network": "#f58518",
    "server": "#e45756",
    "straggler": "#b279a2",
    "staleness_bound": "#9d755d",
    "data": "#72b7b2",
    "cpu": "#bab0ac",
}
"""Colour of computing, and of waiting for each cause."""

KIND_COLOURS = {
    "forward": "#4c78a8",
    "backward": "#9ecae9",
    "push": "#f58518",
    "pull": "#ffbf79",
    "send": "#f58518",
    "request": "#f58518",
    "reply": "#ffbf79",
    "average": "#f58518",
    "update": "#e45756",
    "optimizer": "#e45756",
    "apply": "#e45756",
    "all-reduce": "#f58518",
    "all-gather": "#ffbf79",
    "all-gather again": "#d6a574",
    "reduce-scatter": "#f58518",
}
"""Colour of kinds of operations."""

MEASURED, REFERENCE = "#222222", "#888888"
"""Colour of what was measured; of lines to compare with."""

FITTED, INTERVAL = "fitted", "90 % interval"
"""What lines that were fitted, and intervals, are called in legends; there they come last."""

BAND = 0.18
"""Opacity of intervals."""

LETTERS = 9
"""Letters of a title on an inch of the figure, so that it does not run into the legend."""

SMALL = 8
"""Font size of ticks and legends."""

MOST_DECADES = 5
"""Decades of a logarithmic axis that are ticks themselves, at most."""

MOST_TICKS = 16
"""Largest number of values of an axis that are ticks themselves."""


def colour(number: int) -> str:
    """Colour of the line or group of that number."""
    return SERIES[number % len(SERIES)]


def marker(number: int) -> str:
    """Marker of the line or group of that number."""
    return MARKERS[number // len(SERIES) % len(MARKERS)]


def empty(width: float, height: float, title: str = "") -> Figure:
    """A figure of that size in inches.

    Raises
    ------
    InputError : matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise InputError("plots need matplotlib: pip install 'perfmodel[plot]'") from None
    figure = Figure(figsize=(width, height), layout="constrained")
    if title:
        wrapped = textwrap.fill(title, int(LETTERS * width))
        figure.suptitle(wrapped, fontsize=10, x=0.01, horizontalalignment="left")
    return figure


def tidy(axes: Axes, along: Literal["x", "y", "both"] = "y") -> None:
    """Leave out the frame but for the axes, and draw a light grid along these values."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis=along, color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=SMALL)
    axes.xaxis.label.set_fontsize(9)
    axes.yaxis.label.set_fontsize(9)


def legend_beside(axes: Axes) -> None:
    """A legend of these axes alone, to the right of them."""
    handles, labels = axes.get_legend_handles_labels()
    order = sorted(range(len(labels)), key=lambda k: labels[k] == INTERVAL)
    axes.legend(
        [handles[k] for k in order],
        [labels[k] for k in order],
        loc="upper left",
        bbox_to_anchor=(1.0, 1.0),
        fontsize=SMALL,
        frameon=False,
    )


def legend(drawing: Figure, axes: Axes, *more: Axes) -> None:
    """One legend of all that has a label on these axes, to the right of the figure."""
    found: dict[str, Any] = {}
    for each in (axes, *more):
        for handle, label in zip(*each.get_legend_handles_labels(), strict=True):
            found.setdefault(label, handle)
    for last in (FITTED, INTERVAL):
        if last in found:
            found[last] = found.pop(last)
    if found:
        drawing.legend(
            list(found.values()),
            list(found),
            loc="outside right upper",
            fontsize=SMALL,
            frameon=False,
        )


def rows(axes: Axes, names: Sequence[str]) -> None:
    """A row for each name, the first on top."""
    axes.set_yticks(range(len(names)), list(names), fontsize=SMALL)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)


def logarithmic(axes: Axes, which: Literal["x", "y"], unit: str) -> None:
    """A logarithmic axis over the limits it has, whose ticks have the unit."""
    axis = axes.xaxis if which == "x" else axes.yaxis
    limits = axes.get_xlim if which == "x" else axes.get_ylim
    (axes.set_xscale if which == "x" else axes.set_yscale)("log")
    values = decades(*limits())
    axis.set_ticks(values, [show(value, unit) if unit else f"{value:g}" for value in values])
    axis.set_ticks([], minor=True)


def decades(low: float, high: float) -> list[float]:
    """Round values for the ticks of a logarithmic axis: a few, however far the ends are apart.

    >>> decades(0.9, 6.0), decades(0.5, 30.0), decades(3.0, 2e7)
    ([1.0, 1.5, 2.0, 3.0, 5.0], [0.5, 1.0, 2.0, 5.0, 10.0, 20.0], [10.0, 1000.0, 100000.0, 10000000.0])
    """  # noqa: E501
    apart = math.log10(high / low)
    mantissas, step = [1.0], 1
    if apart <= 1.0:
        mantissas = [1.0, 1.5, 2.0, 3.0, 5.0, 7.0]
    elif apart <= 2.0:
        mantissas = [1.0, 2.0, 5.0]
    else:
        step = math.ceil(apart / MOST_DECADES)
    exponents = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    values = [m * 10.0**e for e in exponents if e % step == step - 1 for m in mantissas]
    return [float(f"{value:.6g}") for value in values if low <= value <= high]


def spread(items: Sequence[T], most: int) -> list[T]:
    """All items, or as many spread evenly over them.

    >>> spread("abcdef", 3), spread("ab", 3)
    (['a', 'c', 'e'], ['a', 'b'])
    """
    few = min(len(items), most)
    return [items[k * len(items) // few] for k in range(few)]


def image(drawing: Figure, ending: str) -> bytes:
    """A figure in the format a file name's ending asks for (png, svg, pdf).

    Raises
    ------
    InputError : matplotlib does not write that format.
    """
    _known(drawing, ending)
    buffer = io.BytesIO()
    drawing.savefig(buffer, format=ending)
    return buffer.getvalue()


def check(ending: str) -> None:
    """Validate a file name's ending before drawing.

    Raises
    ------
    InputError : matplotlib is not installed, or does not write that format.
    """
    _known(empty(1, 1), ending)


def _known(drawing: Figure, ending: str) -> None:
    formats = drawing.canvas.get_supported_filetypes()
    if ending not in formats:
        raise InputError(
            f"plot: cannot write {ending!r} files (known: {', '.join(sorted(formats))})"
        )
