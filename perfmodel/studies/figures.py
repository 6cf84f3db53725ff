"""Figures of aims, gains, assumptions and phases."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence

import msgspec

from perfmodel.reporting.colours import PALETTE, kind_colours
from perfmodel.reporting.contents import (
    INK,
    INTERVAL,
    REFERENCE,
    Axis,
    Bars,
    Figure,
    Mark,
    Panel,
    Series,
    Span,
)
from perfmodel.reporting.panels import intervals, stacks

IN_LABEL = {"samples_per_s": "samples/s", "samples": "samples", "updates": "updates", "h": "h"}
"""Units that stand in the label of an axis, not at its ticks."""

LETTERS, LETTERS_ACROSS = 44, 95
"""Longest line of a name beside an axis, and letters that would fill the width of a figure."""

EDGE = 1.04
"""A logarithmic axis goes this factor beyond the first and the last value."""

MOST_PHASES, VISIBLE, FAINTEST = 7, 0.005, 1e3
"""Phases with a line of their own, the least part of an iteration they take somewhere, and how many
times as short as the longest a phase is where its line leaves the figure."""

MET = "#009e73"
"""Colour of the values that meet an aim."""

TIMES_THE_JOB = "throughput (times that of the job)"


def quantity(name: str, unit: str, *, log: bool = True, most: int = 7) -> Axis:
    """The axis of a quantity: its unit is at the ticks, or in the label."""
    if unit in IN_LABEL:
        return Axis(f"{name} ({IN_LABEL[unit]})", log=log, most=most)
    return Axis(name, unit, log=log, most=most)


Ends = tuple[float, float]


def aim(
    points: Sequence[tuple[float, float, float, float]],
    axes: tuple[Axis, Axis],
    target: float,
    now: float,
    ranges: tuple[Ends | None, Ends | None],
    title: str,
) -> Figure:
    """A figure of an aim: its quantity over a variable, with the values that meet it.

    Parameters
    ----------
    points : value of the variable, the quantity, and the ends of its interval, in rising order.
    axes : of the variable, and of the quantity.
    target : value of the quantity that is aimed at.
    now : value of the variable in the job.
    ranges : in which the prediction, and the worse end of its interval, meet the aim (None: there
        is none).
    """
    x, y, low, high = zip(*points, strict=True)
    areas = (("aim met", 0.1, 1.0), ("met by the whole interval", 0.8, 0.03))
    drawn: list[Mark] = [
        Span(name, *ends, colour=MET, opacity=opacity, part=part)
        for (name, opacity, part), ends in zip(areas, ranges, strict=True)
        if ends is not None
    ]
    drawn += [
        Series("predicted", x, y, PALETTE[0], "line", "o", low, high, band=INTERVAL, size=3.0),
        Span("aim", target, along="y", style="dashed"),
        Span("the job now", now, colour=INK, style="dotted"),
    ]
    over, of_quantity = axes
    most, least = max(*y, target), min(*y, target)
    if of_quantity.log:
        ends = max(min(low), least / 3.0) / 1.2, 1.2 * min(max(high), 3.0 * most)
    else:
        ends = 0.0, 1.05 * min(max(*high, most), 1.5 * most)
    over = msgspec.structs.replace(over, low=x[0] / EDGE, high=x[-1] * EDGE)
    of_quantity = msgspec.structs.replace(of_quantity, low=ends[0], high=ends[1])
    return Figure([[Panel(drawn, over, of_quantity, "xy")]], title)


def gains(rows: Sequence[tuple[str, float, tuple[float, float], bool]], title: str) -> Figure:
    """A figure of advice: how many times the throughput each change gives, with its interval.

    Parameters
    ----------
    rows : the change, its gain, the ends of the gain's interval, and whether it is recommended.
    """
    marks: list[Mark] = []
    for sure, name, line in (
        (True, "recommended", PALETTE[0]),
        (False, "may not help", REFERENCE),
    ):
        chosen = [(place, row) for place, row in enumerate(rows) if row[3] == sure]
        if chosen:
            tips = [f"{row[0]}: x {row[1]:.4g}" for _, row in chosen]
            values, at = [row[1] for _, row in chosen], [place for place, _ in chosen]
            marks.append(Bars(name, values, line, [1.0] * len(chosen), at, tips=tips))
    ends = [end for row in rows for end in row[2]] + [1.0]
    low, high = min(ends), max(*ends, 1.1)
    log = high / low > 8.0
    x = Axis(TIMES_THE_JOB, log=log, low=low / 1.1 if log else None, high=high * 1.1)
    names = [textwrap.fill(row[0], LETTERS) for row in rows] or ["no change helps"]
    marks += [*intervals([row[2] for row in rows]), Span("", 1.0)]
    return Figure([[Panel(marks, x, Axis(names=names), "x")]], title)


def shares(rows: Sequence[tuple[str, float]], label: str, title: str) -> Figure:
    """A figure of fractions that add up to 1, a bar for each."""
    bars = Bars(
        label,
        [share for _, share in rows],
        PALETTE[0],
        labels=[f"{share:.0%}" for _, share in rows],
    )
    names = [textwrap.fill(name, LETTERS) for name, _ in rows]
    x = Axis(label, "fraction", low=0.0, high=1.1)
    return Figure([[Panel([bars], x, Axis(names=names), "x")]], title)


Side = tuple[str, float]
"""A value as text, and the ratio of the throughput with it; ("", 1) if there is none."""


def tornado(rows: Sequence[tuple[str, tuple[Side, Side]]]) -> Panel:
    """What assumptions are worth: bars to both sides of 1, on a logarithmic axis.

    Parameters
    ----------
    rows : name of each assumption, and its lower and its higher value.
    """
    names = [name.replace("_", " ") for name, _ in rows]
    both = [  # whether the two bars would cover each other
        bool(below and above and (low < 1.0) == (high < 1.0))
        for _, ((below, low), (above, high)) in rows
    ]
    marks: list[Mark] = []
    longest = {True: 0, False: 0}  # of the values to the left and to the right of the bars
    for number, label in enumerate(("lower value", "higher value, or another choice")):
        sides = [(row, *values[number]) for row, (_, values) in enumerate(rows)]
        drawn = [(row, value, ratio) for row, value, ratio in sides if value]
        for _, value, ratio in drawn:
            longest[ratio < 1.0] = max(longest[ratio < 1.0], len(value))
        marks.append(
            Bars(
                label,
                [ratio for *_, ratio in drawn],
                PALETTE[number],
                start=[1.0] * len(drawn),
                at=[row + (number * 0.36 - 0.18 if both[row] else 0.0) for row, *_ in drawn],
                thick=[0.34 if both[row] else 0.7 for row, *_ in drawn],
                labels=[value for _, value, _ in drawn],
                tips=[f"{names[row]} = {value}: x {ratio:.4g}" for row, value, ratio in drawn],
            )
        )
    ends = [ratio for _, values in rows for _, ratio in values]
    low, high = min(*ends, 1.0, 1.0), max(*ends, 1.0, 1.05)
    left, right = ((1 + longest[side]) / LETTERS_ACROSS for side in (True, False))
    decades = math.log10(high / low) / max(1.0 - left - right, 0.3)
    low, high = low / 10.0 ** (left * decades), high * 10.0 ** (right * decades)
    x = Axis(TIMES_THE_JOB, log=True, low=low, high=high)
    return Panel([*marks, Span("", 1.0)], x, Axis(names=names or ["no assumption matters"]), "x")


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
    """
    drawn = _long(parts, over)
    colours = {**kind_colours(drawn), resting: REFERENCE}
    bar = stacks(["iteration"], [_grouped(parts, drawn, resting)], "time (s)", colours=colours)
    if not over:
        return Figure([[bar]], title)
    seconds = [s for swept in over for name in drawn for s in swept.seconds.get(name, ()) if s > 0]
    highest = max(max(s) for swept in over for s in swept.seconds.values())
    least = max(min(seconds, default=highest) / 1.2, highest / FAINTEST)
    y = Axis("time of a phase", "s", log=True, low=least, high=1.2 * highest)
    lines = [_phases_over(swept, drawn, colours, y, first=not k) for k, swept in enumerate(over)]
    return Figure([[bar], lines], title)


def _long(parts: Mapping[str, float], over: Sequence[PhasesOver]) -> list[str]:
    """Phases that take a visible part of the iteration somewhere, the longest in the job first."""
    most = dict.fromkeys([*parts, *(name for swept in over for name in swept.seconds)], 0.0)
    for name, seconds in parts.items():
        most[name] = seconds / sum(parts.values())
    for swept in over:
        for at in zip(*swept.seconds.values(), strict=True):
            total_s = sum(at)
            for name, seconds in zip(swept.seconds, at, strict=True):
                most[name] = max(most[name], seconds / total_s)
    names = [name for name, share in most.items() if share >= VISIBLE]
    return sorted(names, key=lambda name: -parts.get(name, 0.0))[:MOST_PHASES]


def _grouped(parts: Mapping[str, float], drawn: Sequence[str], resting: str) -> dict[str, float]:
    """Seconds of the phases that are drawn, and of all others together if they can be seen."""
    known = {name: parts[name] for name in drawn if name in parts}
    remaining_s = sum(seconds for name, seconds in parts.items() if name not in drawn)
    return (
        {**known, resting: remaining_s} if remaining_s >= VISIBLE * sum(parts.values()) else known
    )


def _phases_over(
    swept: PhasesOver, drawn: Sequence[str], colours: Mapping[str, str], y: Axis, *, first: bool
) -> Panel:
    """The lines of the phases over a variable."""
    marks: list[Mark] = []
    for name in drawn:
        seconds = swept.seconds.get(name, ())
        if any(s > 0.0 for s in seconds):
            shown = [s if s > 0.0 else math.nan for s in seconds]
            marks.append(Series(name, swept.values, shown, colours[name]))
    marks += [
        *(Span("longest phase changes", at, colour=INK, style="dashed") for at in swept.crossovers),
        Span("the job now", swept.now, colour=INK, style="dotted", width=1.5),
    ]
    x = msgspec.structs.replace(swept.axis, low=swept.values[0], high=swept.values[-1])
    return Panel(marks, x, y, "xy", shares="" if first else "y")
