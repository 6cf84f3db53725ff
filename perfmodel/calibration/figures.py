"""Figures of fits: estimates with their intervals, and errors of the runs."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from perfmodel.base.units import show
from perfmodel.calibration.statistics import Fitted
from perfmodel.reporting.contents import (
    INK,
    INTERVAL,
    REFERENCE,
    Axis,
    Figure,
    Mark,
    Panel,
    Ranges,
    Series,
    Span,
)
from perfmodel.reporting.panels import colour, spread

FARTHEST = 30.0
"""An interval is drawn up to this factor from the value; an arrow marks one that goes further."""

MOST_RUNS = 60
"""Runs drawn of a fit, at most; spread evenly over all of them if there are more."""


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


def rows_of(estimates: Sequence[Fitted]) -> list[Row]:
    """Return the estimates as rows of a figure."""
    rows = []
    for e in estimates:
        name = e.name.removesuffix("_s").replace("_", " ")
        known = e.value > 0.0 and e.status != "not identified"
        ends = (e.low / e.value, e.high / e.value) if known else None
        was = e.was / e.value if e.value > 0.0 and e.was > 0.0 else None
        text = show(e.value, e.unit)
        rows.append(Row(name, text, ends, was, e.status != "not identified"))
    return rows


def fit(rows: Sequence[Row], errors: Sequence[Error], title: str) -> Figure:
    """A figure of a calibration: estimates with their intervals, and errors of the runs.

    Without ``errors`` it has the estimates alone.
    """
    drawn = spread(errors, MOST_RUNS)
    panels = [_estimates(rows)]
    if drawn:
        few = f"{len(drawn)} of {len(errors)} runs" if len(drawn) < len(errors) else ""
        panels.append(_errors(drawn, few))
    return Figure([panels], title)


def _estimates(rows: Sequence[Row]) -> Panel:
    """Rows relative to their values, on a logarithmic axis."""
    marks: list[Mark] = []
    limits = [0.5, 2.0]
    for place, row in enumerate(rows):
        line = colour(0) if row.identified else REFERENCE
        if row.interval is None:
            continue
        low, high = max(row.interval[0], 1.0 / FARTHEST), min(row.interval[1], FARTHEST)
        limits += [low / 1.2, high * 1.2]
        ends = ([place], [low], [high])
        marks.append(Ranges(INTERVAL, *ends, colour=line, width=4.0, opacity=0.4))
        for shape, end, beyond in (
            ("<", low, row.interval[0] < low),
            (">", high, row.interval[1] > high),
        ):
            if beyond:
                marks.append(_points("", [(end, place)], line, shape, size=6.0))
    sure = [(1.0, place) for place, row in enumerate(rows) if row.identified]
    marks += [_points("fitted", sure, colour(0))] if sure else []
    unsure = [(1.0, place) for place, row in enumerate(rows) if not row.identified]
    if unsure:
        marks.append(_points("not identified", unsure, REFERENCE, hollow=True))
    before = [
        (row.was, place)
        for place, row in enumerate(rows)
        if row.was is not None and 1.0 / FARTHEST <= row.was <= FARTHEST
    ]
    if before:
        marks.append(_points("before", before, INK, "|", size=12.0))
        limits += [was for was, _ in before]
    x = Axis("relative to the fitted value", log=True, low=min(limits), high=max(limits))
    return Panel(marks, x, Axis(names=[f"{row.name}\n{row.text}" for row in rows]), "x")


def _points(
    name: str,
    at: Sequence[tuple[float, float]],
    line: str,
    shape: str = "o",
    *,
    hollow: bool = False,
    size: float = 4.0,
) -> Series:
    x, y = zip(*at, strict=True)
    return Series(name, x, y, line, "points", shape, hollow=hollow, size=size)


def _errors(errors: Sequence[Error], title: str) -> Panel:
    held = [(100.0 * e.held_out, k) for k, e in enumerate(errors) if e.held_out is not None]
    fitted = [(100.0 * e.error, place) for place, e in enumerate(errors)]
    marks: list[Mark] = [Span("", 0.0)]
    marks += [_points("held-out error", held, colour(1), hollow=True)] if held else []
    marks += [_points("fit error", fitted, colour(1))]
    x = Axis("step-time error: predicted / measured - 1 (%)")
    return Panel(marks, x, Axis(names=[error.name for error in errors]), "x", title)
