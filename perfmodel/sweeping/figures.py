"""Figures of sweeps: over a number, or over words."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import msgspec

from perfmodel.base.units import words_and_unit
from perfmodel.reporting import panels
from perfmodel.reporting.contents import (
    INTERVAL,
    Axis,
    Mark,
    Panel,
    Series,
    Span,
)
from perfmodel.reporting.panels import MOST_TICKS, colour, intervals, marker, spread
from perfmodel.sweeping.labels import Row

MOST_LINES, MOST_BANDS, MOST_BARS = 12, 4, 60
"""Lines and bars drawn of a sweep, at most, spread evenly over all of them if there are more; and
most lines that have a band for their interval: more bands would hide each other."""


UNITS = {"batch_size": "samples", "sequence_length": "tokens", "jitter": "fraction"}
"""Units of variables whose names do not end in one."""


RATE, IDLE = "throughput_samples_per_s", "idle_fraction"


def geometric(values: Sequence[float]) -> bool:
    """Whether rising numbers are spread more evenly by factors than by steps.

    >>> geometric([1, 2, 4, 8]), geometric([1, 2, 5, 10]), geometric([2, 4, 6, 8])
    (True, True, False)
    """
    if len(values) < 3 or values[0] <= 0:
        return False
    pairs = list(itertools.pairwise(values))
    ratios, steps = [b / a for a, b in pairs], [b - a for a, b in pairs]
    return max(ratios) / min(ratios) < max(steps) / min(steps)


def lines_over(over: str, series: Mapping[str, Sequence[Row]]) -> tuple[Panel, Panel]:
    """Throughput and idle fraction over a variable; "workers" also has ideal scaling, dashed.

    ``series`` has the rows of each line; it is horizontal where a row has no value of ``over``.
    ``interval`` of a row has the ends of both quantities, or is None; it is drawn as a band.
    """
    drawn = {name: series[name] for name in spread(list(series), MOST_LINES)}
    xs = sorted({float(r[over]) for rows in series.values() for r in rows if r[over] is not None})
    ys = [row[RATE] for rows in series.values() for row in rows]
    words, unit = words_and_unit(over)
    label = f"{words} ({UNITS[over]})" if over in UNITS else words
    ticks = xs if len(xs) <= MOST_TICKS else ()
    x = Axis(label, unit, geometric(xs), ticks=ticks)
    log = x.log and max(ys) > 4 * min(ys)
    y = Axis("throughput (samples/s)", log=log, low=None if log else 0.0)
    title = f"{len(drawn)} of {len(series)} lines" if len(drawn) < len(series) else ""
    throughput = Panel(_lines(over, RATE, drawn), x, y, title=title)
    y = Axis("idle fraction", low=0.0, high=1.02)
    return throughput, Panel(_lines(over, IDLE, drawn), x, y, shares="x")


def _lines(over: str, key: str, series: Mapping[str, Sequence[Row]]) -> list[Mark]:
    """The lines of a sweep with their intervals and, over workers, their ideal scaling."""
    marks: list[Mark] = []
    ideal = over == "workers" and key == RATE
    for number, (name, rows) in enumerate(series.items()):
        rising = sorted((row for row in rows if row[over] is not None), key=lambda row: row[over])
        line = colour(number)
        if not rising:
            marks.append(Span(name, rows[0][key], colour=line, along="y", width=1.5))
            continue
        x, y = [float(row[over]) for row in rising], [row[key] for row in rising]
        ends = [row["interval"][key] for row in rising if row["interval"]]
        has_band = len(series) <= MOST_BANDS and len(ends) == len(rising)
        low, high = zip(*ends, strict=True) if has_band else ((), ())
        shape = marker(number)
        marks.append(Series(name, x, y, line, "line", shape, low=low, high=high, band=INTERVAL))
        if ideal:
            best = [y[0] * workers / x[0] for workers in x]
            marks.append(Series("ideal scaling", x, best, line, "dashed"))
    return marks


def bars_of(names: Sequence[str], rows: Sequence[Row]) -> tuple[Panel, Panel]:
    """Throughput and idle fraction of a sweep over words, a bar each per row.

    ``interval`` of a row has the ends of both, or is None.
    """
    drawn = spread(list(zip(names, rows, strict=True)), MOST_BARS)
    few = f"{len(drawn)} of {len(rows)} jobs" if len(drawn) < len(rows) else ""

    def panel(key: str, label: str, line: str) -> Panel:
        bars = panels.rows([name for name, _ in drawn], [row[key] for _, row in drawn], label, line)
        ends = [row["interval"][key] if row["interval"] else None for _, row in drawn]
        return Panel([*bars.marks, *intervals(ends)], bars.x, bars.y, "x")

    rate = panel(RATE, "throughput (samples/s)", colour(0))
    idle = panel(IDLE, "idle fraction", colour(1))
    return msgspec.structs.replace(rate, title=few), msgspec.structs.replace(idle, shares="y")
