"""Panels that several results have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

from perfmodel.reporting.colours import CAUSE_COLOURS, PALETTE
from perfmodel.reporting.contents import INTERVAL, Axis, Bars, Panel, Ranges

T = TypeVar("T")

MARKERS = "os^vD"
"""Markers of groups: the next one once all colours are used."""

MOST_TICKS = 16
"""Values of an axis that each have a tick, at most."""

Ends = tuple[float, float]


def colour(number: int) -> str:
    """Colour of a line or group by its number."""
    return PALETTE[number % len(PALETTE)]


def marker(number: int) -> str:
    """Marker of a line or group by its number."""
    return MARKERS[number // len(PALETTE) % len(MARKERS)]


def spread(items: Sequence[T], most: int) -> list[T]:
    """All items, or as many spread evenly over them.

    >>> spread("abcdef", 3), spread("ab", 3)
    (['a', 'c', 'e'], ['a', 'b'])
    """
    few = min(len(items), most)
    return [items[k * len(items) // few] for k in range(few)]


def intervals(ends: Sequence[Ends | None]) -> list[Ranges]:
    """The intervals of bars in rows, if there are any."""
    ranges = [(row, *interval) for row, interval in enumerate(ends) if interval is not None]
    if not ranges:
        return []
    at, low, high = zip(*ranges, strict=True)
    return [Ranges(INTERVAL, at, low, high)]


def stacks(
    names: Sequence[str],
    parts: Sequence[Mapping[str, float]],
    label: str,
    ends: Sequence[Ends | None] = (),
    colours: Mapping[str, str] = CAUSE_COLOURS,
) -> Panel:
    """A bar in each row, of parts one after the other.

    Parameters
    ----------
    names : of the rows.
    parts : of each row, by name.
    label : of the horizontal axis.
    ends : of the interval of each row's sum, None for those without.
    colours : of the parts, in the order in which they are drawn.
    """
    kinds = list(dict.fromkeys(kind for part in parts for kind in part))
    order = list(colours)
    kinds.sort(key=lambda kind: order.index(kind) if kind in order else len(order))
    left = [0.0] * len(parts)
    marks: list[Bars | Ranges] = []
    for number, kind in enumerate(kinds):
        sizes = [part.get(kind, 0.0) for part in parts]
        right = [a + b for a, b in zip(left, sizes, strict=True)]
        words = kind.replace("_", " ")
        tips = [f"{name}, {words}: {size:.4g}" for name, size in zip(names, sizes, strict=True)]
        marks.append(Bars(words, right, colours.get(kind, colour(number)), left, tips=tips))
        left = right
    return Panel([*marks, *intervals(ends)], Axis(label, low=0.0), Axis(names=names), "x")


def rows(
    names: Sequence[str], values: Sequence[float], label: str, line: str = PALETTE[0]
) -> Panel:
    """A bar in each row."""
    tips = [f"{name}: {value:.4g}" for name, value in zip(names, values, strict=True)]
    bars = Bars("", values, line, tips=tips)
    return Panel([bars], Axis(label, low=0.0), Axis(names=names), "x")


def shares(parts: Mapping[str, float], over: str, label: str) -> Panel:
    """A column for each part, as high as its share."""
    tips = [f"{name}: {100.0 * share:.4g} %" for name, share in parts.items()]
    columns = Bars("", list(parts.values()), PALETTE[0], along="y", thick=0.8, tips=tips)
    return Panel([columns], Axis(over, names=list(parts)), Axis(label, "fraction", low=0.0))
