"""Figures (extra ``plot``) of what was measured, and of what was fitted to it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from perfmodel.results import style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLUMNS = 3
"""Operations drawn side by side, at most."""

FARTHEST = 30.0
"""An interval is drawn up to this factor from the value; an arrow marks one that goes further."""

MOST_RUNS = 60
"""Runs drawn of a fit, at most; spread evenly over all of them if there are more."""


class Times(msgspec.Struct, frozen=True):
    """Times (s) of an operation by the size of its message, as one line of a figure.

    ``bytes``, ``median_s``, ``least_s``, ``most_s`` are all of shape (sizes,); ``fitted_s`` too,
    or empty where nothing was fitted.
    """

    operation: str
    label: str
    bytes: tuple[float, ...]
    median_s: tuple[float, ...]
    least_s: tuple[float, ...]
    most_s: tuple[float, ...]
    fitted_s: tuple[float, ...] = ()


class Row(msgspec.Struct, frozen=True):
    """An estimate as a row of a figure: its value as text, its interval and its previous value
    relative to it (None: not known), and whether the measurements determine it."""

    name: str
    text: str
    interval: tuple[float, float] | None
    was: float | None = None
    identified: bool = True


class Error(msgspec.Struct, frozen=True):
    """The error of a run, predicted / measured - 1, by the fit and by a fit without that run (None:
    there are too few runs)."""

    name: str
    error: float
    held_out: float | None


def times(series: Sequence[Times], title: str) -> Figure:
    """A figure of a measured network: time over size, a part for each operation.

    Points are medians, bars go from the fastest to the slowest repetition, lines are fitted.

    Raises
    ------
    InputError : matplotlib is not installed.
    """
    operations = list(dict.fromkeys(each.operation for each in series))
    columns = min(COLUMNS, len(operations))
    lines = -(-len(operations) // columns)
    drawing = style.empty(2.5 + 3.4 * columns, 0.8 + 2.9 * lines, title)
    places = drawing.subplots(lines, columns, squeeze=False).ravel().tolist()
    labels = list(dict.fromkeys(each.label for each in series))
    for axes, operation in zip(places, operations, strict=False):
        for each in series:
            if each.operation == operation:
                _times(axes, each, labels.index(each.label))
        axes.set(xscale="log", yscale="log")
        style.logarithmic(axes, "x", "bytes", 5)
        style.logarithmic(axes, "y", "s")
        axes.set_title(operation.replace("_", " "), fontsize=9)
        axes.set_xlabel("size (bytes)")
        axes.set_ylabel("time (s)")
        style.tidy(axes, "both")
    for axes in places[len(operations) :]:
        axes.remove()
    if any(each.fitted_s for each in series):
        places[0].plot([], [], color=style.REFERENCE, linewidth=1, label=style.FITTED)
    style.legend(drawing, *places[: len(operations)])
    return drawing


def _times(axes: Axes, each: Times, number: int) -> None:
    below = [m - low for m, low in zip(each.median_s, each.least_s, strict=True)]
    above = [high - m for m, high in zip(each.median_s, each.most_s, strict=True)]
    axes.errorbar(
        each.bytes,
        each.median_s,
        yerr=[below, above],
        fmt=style.marker(number),
        markersize=3.5,
        elinewidth=0.8,
        color=style.colour(number),
        label=each.label,
    )
    if each.fitted_s:
        axes.plot(each.bytes, each.fitted_s, color=style.colour(number), linewidth=1)


def fit(rows: Sequence[Row], errors: Sequence[Error], title: str) -> Figure:
    """A figure of a calibration: estimates with their intervals, and errors of the runs.

    Without ``errors`` it has the estimates alone.

    Raises
    ------
    InputError : matplotlib is not installed.
    """
    drawn = style.spread(list(errors), MOST_RUNS)
    high = max(0.45 * len(rows), 0.22 * len(drawn), 0.9)
    drawing = style.empty(7.5 if not drawn else 12, 1.3 + high, title)
    if not drawn:
        axes = drawing.subplots()
        _estimates(axes, rows)
        style.legend(drawing, axes)
        return drawing
    axes, beside = drawing.subplots(1, 2)
    _estimates(axes, rows)
    _errors(beside, drawn)
    if len(drawn) < len(errors):
        beside.set_title(f"{len(drawn)} of {len(errors)} runs", fontsize=9)
    style.legend(drawing, axes, beside)
    return drawing


def _estimates(axes: Axes, rows: Sequence[Row]) -> None:
    for place, row in enumerate(rows):
        colour = style.colour(0) if row.identified else style.REFERENCE
        if row.interval is not None:
            low, high = row.interval
            ends = [max(low, 1.0 / FARTHEST), min(high, FARTHEST)]
            axes.plot(ends, [place] * 2, color=colour, linewidth=4, alpha=0.4)
            for marker, beyond in (("<", low < ends[0]), (">", high > ends[1])):
                if beyond:
                    axes.plot([ends[marker == ">"]], [place], marker, color=colour)
        face = colour if row.identified else "white"
        axes.plot([1.0], [place], "o", color=colour, markerfacecolor=face)
        if row.was is not None and 1.0 / FARTHEST <= row.was <= FARTHEST:
            axes.plot([row.was], [place], "|", color=style.MEASURED, markersize=12)
    axes.plot([], [], "o", color=style.colour(0), label=style.FITTED)
    if not all(row.identified for row in rows):
        axes.plot(
            [], [], "o", color=style.REFERENCE, markerfacecolor="white", label="not identified"
        )
    if any(row.was is not None for row in rows):
        axes.plot([], [], "|", color=style.MEASURED, markersize=12, label="before")
    axes.plot([], [], color=style.colour(0), linewidth=4, alpha=0.4, label=style.INTERVAL)
    style.rows(axes, [f"{row.name}\n{row.text}" for row in rows])
    axes.set_xscale("log")
    low, high = axes.get_xlim()
    axes.set_xlim(min(low, 0.5), max(high, 2.0))
    style.logarithmic(axes, "x", "")
    axes.set_xlabel("relative to the fitted value")
    style.tidy(axes, "x")


def _errors(axes: Axes, errors: Sequence[Error]) -> None:
    places = range(len(errors))
    axes.axvline(0.0, color=style.REFERENCE, linewidth=1)
    held = [math.nan if e.held_out is None else 100.0 * e.held_out for e in errors]
    if not all(math.isnan(each) for each in held):
        axes.plot(
            held,
            places,
            "o",
            color=style.colour(1),
            markerfacecolor="white",
            label="held-out error",
        )
    fitted = [100.0 * e.error for e in errors]
    axes.plot(fitted, places, "o", color=style.colour(1), markersize=4, label="fit error")
    style.rows(axes, [e.name for e in errors])
    axes.set_xlabel("step-time error: predicted / measured - 1 (%)")
    style.tidy(axes, "x")


def run(
    workers_s: Sequence[float],
    compute_s: float,
    staleness: Mapping[int, float],
    title: str,
    predicted: tuple[float, tuple[float, float] | None, Mapping[int, float]] | None = None,
) -> Figure:
    """A figure of a measured training run: the iteration of each worker, and the staleness.

    Parameters
    ----------
    workers_s : (workers,) mean seconds of an iteration of each worker.
    compute_s : seconds of an iteration in which a worker computed.
    staleness : share of the updates by their staleness; empty without any.
    predicted : iteration (s), the ends of its interval or None, and the same shares.

    Raises
    ------
    InputError : matplotlib is not installed.
    """
    stale = bool(staleness) and set(staleness) != {0}
    drawing = style.empty(11 if stale else 8.5, 1.5 + 0.35 * max(len(workers_s), 4), title)
    axes, *beside = drawing.subplots(1, 2 if stale else 1, squeeze=False)[0]
    places = range(len(workers_s))
    axes.barh(places, workers_s, height=0.7, color=style.colour(0), label="measured")
    computing = axes.axvline(
        compute_s, color=style.MEASURED, linestyle="--", linewidth=1.2, label="mean compute time"
    )
    style.outline(computing)
    if predicted is not None:
        iteration_s, interval, _ = predicted
        axes.axvline(iteration_s, color=style.colour(1), linewidth=1.5, label="predicted")
        if interval is not None:
            axes.axvspan(
                *interval,
                color=style.colour(1),
                alpha=style.BAND,
                linewidth=0,
                zorder=0.5,
                label=style.INTERVAL,
            )
    style.rows(axes, [f"worker {worker}" for worker in places])
    axes.set_xlim(left=0.0)
    axes.set_xlabel("mean iteration time (s)")
    style.tidy(axes, "x")
    for other in beside:
        _staleness(other, staleness, {} if predicted is None else predicted[2])
    style.legend(drawing, axes)
    return drawing


def _staleness(axes: Axes, measured: Mapping[int, float], predicted: Mapping[int, float]) -> None:
    axes.bar(list(measured), list(measured.values()), width=0.7, color=style.colour(0))
    if predicted:
        values = sorted(predicted)
        axes.plot(values, [predicted[v] for v in values], "o", color=style.colour(1))
    axes.set_xlabel("staleness (updates)")
    axes.set_ylabel("share of updates")
    axes.locator_params(axis="x", integer=True)
    style.tidy(axes)
