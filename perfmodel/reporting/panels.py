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
    known = [(row, *each) for row, each in enumerate(ends) if each is not None]
    if not known:
        return []
    at, low, high = zip(*known, strict=True)
    return [Ranges(name=INTERVAL, at=at, low=low, high=high)]


def stacks(
    names: Sequence[str],
    parts: Sequence[Mapping[str, float]],
    label: str,
    ends: Sequence[Ends | None] = (),
    *,
    colours: Mapping[str, str] = CAUSE_COLOURS,
    legend: bool = False,
) -> Panel:
    """A bar in each row, of parts one after the other.

    Parameters
    ----------
    names : of the rows.
    parts : of each row, by name.
    colours : of the parts, in the order in which they are drawn.
    label : of the horizontal axis.
    ends : of the interval of each row's sum, None for those without.
    """
    kinds = list(dict.fromkeys(kind for part in parts for kind in part))
    order = list(colours)
    kinds.sort(key=lambda kind: order.index(kind) if kind in order else len(order))
    left = [0.0] * len(parts)
    marks: list[Bars | Ranges] = []
    for number, kind in enumerate(kinds):
        right = [a + part.get(kind, 0.0) for a, part in zip(left, parts, strict=True)]
        words = kind.replace("_", " ")
        marks.append(
            Bars(
                name=words,
                at=range(len(parts)),
                start=left,
                end=right,
                colour=colours.get(kind, colour(number)),
                tips=[
                    f"{name}, {words}: {b - a:.4g}".removeprefix(", ")
                    for name, a, b in zip(names, left, right, strict=True)
                ],
            )
        )
        left = right
    return Panel(
        marks=[*marks, *intervals(ends)],
        x=Axis(label=label, low=0.0),
        y=Axis(names=names),
        grid="x",
        legend=legend,
    )


def shares(parts: Mapping[str, float], over: str, label: str) -> Panel:
    """A column for each part, as high as its share."""
    columns = Bars(
        name="",
        at=range(len(parts)),
        start=[0.0] * len(parts),
        end=list(parts.values()),
        colour=PALETTE[0],
        along="y",
        thick=0.8,
        tips=[f"{name}: {100.0 * share:.4g} %" for name, share in parts.items()],
    )
    return Panel(
        marks=[columns],
        x=Axis(label=over, names=list(parts)),
        y=Axis(label=label, unit="fraction", low=0.0),
    )
