"""The one style of all figures: colours, axes with units, legends beside the data, file formats."""

from __future__ import annotations

import functools
import io
import os
import textwrap
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from perfmodel.base.errors import InputError
from perfmodel.base.units import show
from perfmodel.reporting.colours import PALETTE
from perfmodel.reporting.ticks import MOST, decades

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

T = TypeVar("T")

SERIES = PALETTE
"""Colours of lines and groups, in this order."""

MARKERS = "os^vD"
"""Markers of groups: the next one once all colours are used."""

MEASURED, REFERENCE = "#222222", "#888888"
"""Colours of measurements, and of reference lines."""

FITTED, INTERVAL = "fitted", "90 % interval"
"""Names of fitted lines and of intervals in legends, where they come last."""

BAND = 0.18
"""Opacity of intervals."""

LETTERS = 9
"""Letters of a title per inch of the figure, so that it does not run into the legend."""

SMALL = 8
"""Font size of ticks and legends."""

MOST_TICKS = 16
"""Values of an axis that each have a tick, at most."""


LAST_DATE_S = 253402300799
"""The end of the year 9999, in seconds since 1970: the last date that a file can have."""

REMARKS = (
    r"Glyph .* missing from",
    r"constrained_layout not applied",
    r"There are no gridspecs with layoutgrids",
)
"""Beginnings of matplotlib's warnings about text that are not shown: a letter that no font has is
drawn as a box, and text that leaves no room for the rest is drawn over it."""


def colour(number: int) -> str:
    """Colour of a line or group by its number."""
    return SERIES[number % len(SERIES)]


def marker(number: int) -> str:
    """Marker of a line or group by its number."""
    return MARKERS[number // len(SERIES) % len(MARKERS)]


def empty(width: float, height: float, title: str = "") -> Figure:
    """A figure of that size in inches.

    Raises
    ------
    InputError : matplotlib is not installed.
    """
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError:
        raise InputError("plots need matplotlib: pip install 'perfmodel[plot]'") from None
    figure = _literal_figure()(figsize=(width, height), layout="constrained")
    if title:
        wrapped = textwrap.fill(title, int(LETTERS * width))
        figure.suptitle(wrapped, fontsize=10, x=0.01, horizontalalignment="left")
    return figure


@functools.cache
def _literal_figure() -> type[Figure]:
    """The class of figures, which needs matplotlib."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure
    from matplotlib.text import Text

    class LiteralFigure(Figure):
        """A figure without formulas: a dollar sign in a name is a dollar sign.

        Matplotlib's remarks about text are not shown, see :data:`REMARKS`.
        """

        def draw(self, renderer: Any) -> None:
            """Draw the figure."""
            for text in self.findobj(Text):
                text.set_parse_math(False)
            with rc_context({"text.parse_math": False}), warnings.catch_warnings():
                for remark in REMARKS:
                    warnings.filterwarnings("ignore", message=remark, category=UserWarning)
                super().draw(renderer)

    LiteralFigure.__module__, LiteralFigure.__qualname__ = __name__, "LiteralFigure"
    return LiteralFigure


def __getattr__(name: str) -> Any:
    """Find the class of figures by its name, to copy them with :mod:`pickle`."""
    if name == "LiteralFigure":
        return _literal_figure()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def tidy(axes: Axes, along: Literal["x", "y", "both"] = "y") -> None:
    """Remove the frame except for the axes, and draw a light grid along one axis or both."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis=along, color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=SMALL)
    axes.xaxis.label.set_fontsize(9)
    axes.yaxis.label.set_fontsize(9)


def legend_beside(axes: Axes) -> None:
    """A legend of these axes only, to their right."""
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
    """One legend for everything labelled on these axes, to the right of the figure."""
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


def whisker(axes: Axes, place: float, ends: Sequence[float], label: str = "") -> None:
    """An interval on a row, visible on bars of any colour."""
    (line,) = axes.plot(
        list(ends),
        [place] * 2,
        color=MEASURED,
        linewidth=1.2,
        solid_capstyle="butt",
        label=label or None,
    )
    outline(line)


def outline(line: Line2D) -> None:
    """Give a line a white outline, so that it can be seen on bars of any colour."""
    from matplotlib.patheffects import withStroke

    line.set_path_effects([withStroke(linewidth=2.8, foreground="white")])


def logarithmic(axes: Axes, which: Literal["x", "y"], unit: str, most: int | None = None) -> None:
    """A logarithmic axis over the limits it has, with at most so many ticks and their unit."""
    axis = axes.xaxis if which == "x" else axes.yaxis
    limits = axes.get_xlim if which == "x" else axes.get_ylim
    (axes.set_xscale if which == "x" else axes.set_yscale)("log")
    shown = 8.0 if unit == "bytes_per_s" else 1.0  # as bits per second
    low, high = limits()
    found = decades(low * shown, high * shown, most or MOST)
    values = [value / shown for value in found]
    axis.set_ticks(values, [show(value, unit) if unit else f"{value:g}" for value in values])
    axis.set_ticks([], minor=True)


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
    InputError : matplotlib does not write that format; SOURCE_DATE_EPOCH is no date.
    """
    _known(drawing, ending)
    buffer = io.BytesIO()
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
