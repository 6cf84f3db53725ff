"""Figures of fits: estimates with their intervals, and errors of the runs."""

from __future__ import annotations

from collections.abc import Sequence

from perfmodel.base.units import show
from perfmodel.calibration.statistics import Fitted, RunError
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

Places = Sequence[tuple[float, float]]


def fit(estimates: Sequence[Fitted], errors: Sequence[RunError], title: str) -> Figure:
    """A figure of a calibration: estimates with their intervals, and errors of the runs.

    Without ``errors`` it has the estimates alone.
    """
    drawn = spread(errors, MOST_RUNS)
    panels = [_estimates(estimates)]
    if drawn:
        few = f"{len(drawn)} of {len(errors)} runs" if len(drawn) < len(errors) else ""
        panels.append(_errors(drawn, few))
    return Figure([panels], title)


def _estimates(estimates: Sequence[Fitted]) -> Panel:
    """Estimates relative to their values, on a logarithmic axis."""
    marks: list[Mark] = []
    limits = [0.5, 2.0]
    sure: list[tuple[float, float]] = []
    unsure: list[tuple[float, float]] = []
    before: list[tuple[float, float]] = []
    for place, e in enumerate(estimates):
        (sure if e.determined else unsure).append((1.0, place))
        if e.value > 0.0 and 1.0 / FARTHEST <= e.was / e.value <= FARTHEST:
            before.append((e.was / e.value, place))
        if e.value > 0.0 and e.determined:
            low, high = max(e.low / e.value, 1.0 / FARTHEST), min(e.high / e.value, FARTHEST)
            limits += [low / 1.2, high * 1.2]
            marks.append(
                Ranges(INTERVAL, [place], [low], [high], colour=colour(0), width=4.0, opacity=0.4)
            )
            if e.low / e.value < low:
                marks.append(_points("", [(low, place)], colour(0), "<", size=6.0))
            if e.high / e.value > high:
                marks.append(_points("", [(high, place)], colour(0), ">", size=6.0))
    marks += [_points("fitted", sure, colour(0))] if sure else []
    marks += [_points("not identified", unsure, REFERENCE, hollow=True)] if unsure else []
    if before:
        marks.append(_points("before", before, INK, "|", size=12.0))
        limits += [was for was, _ in before]
    names = [
        f"{e.name.removesuffix('_s').replace('_', ' ')}\n{show(e.value, e.unit)}" for e in estimates
    ]
    x = Axis("relative to the fitted value", log=True, low=min(limits), high=max(limits))
    return Panel(marks, x, Axis(names=names), "x")


def _points(
    name: str, at: Places, line: str, shape: str = "o", *, hollow: bool = False, size: float = 4.0
) -> Series:
    x, y = zip(*at, strict=True)
    return Series(name, x, y, line, "points", shape, hollow=hollow, size=size)


def _errors(errors: Sequence[RunError], title: str) -> Panel:
    held = [(100.0 * e.held_out, k) for k, e in enumerate(errors) if e.held_out is not None]
    fitted = [(100.0 * e.error, place) for place, e in enumerate(errors)]
    marks: list[Mark] = [Span("", 0.0)]
    marks += [_points("held-out error", held, colour(1), hollow=True)] if held else []
    marks += [_points("fit error", fitted, colour(1))]
    names = [f"{e.place}: {e.arch}, workers {e.workers}" for e in errors]
    return Panel(
        marks, Axis("step-time error: predicted / measured - 1 (%)"), Axis(names=names), "x", title
    )
