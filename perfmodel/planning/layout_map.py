"""A map of layouts: throughput over the memory that a device needs."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from perfmodel.base.arrays import pareto_front
from perfmodel.reporting.contents import INK, REFERENCE, Axis, Panel, Series, Span
from perfmodel.reporting.panels import colour


class LayoutPoint(msgspec.Struct, frozen=True):
    """A layout on the map: bytes that a device needs, of those that do not fit at least, samples
    per second, the group that gives its colour, its name, and whether it fits."""

    needed_bytes: float
    samples_per_s: float
    group: str
    name: str
    fits: bool


def on_front(places: Sequence[LayoutPoint]) -> list[int]:
    """Return the numbers of the places that fit, and of which no other that fits is as fast with
    less memory, or faster with as much; the fastest first.

    >>> places = [LayoutPoint(2.0, 9.0, "", "", True), LayoutPoint(1.0, 8.0, "", "", True),
    ...           LayoutPoint(3.0, 8.5, "", "", True), LayoutPoint(9.0, 99.0, "", "", False)]
    >>> on_front(places)
    [0, 1]
    """
    inside = [k for k, place in enumerate(places) if place.fits]
    slow = np.array([-places[k].samples_per_s for k in inside])
    large = np.array([places[k].needed_bytes for k in inside])
    return [inside[k] for k in pareto_front(slow, large).tolist()]


def layout_map(places: Sequence[LayoutPoint], device_bytes: float | None) -> Panel:
    """Return the map: layouts that fit by group, their Pareto front, and apart those that do not.

    Parameters
    ----------
    device_bytes : memory of a device; None if it is unknown.
    """

    def points(name: str, of: Sequence[LayoutPoint], line: str, marker: str) -> Series:
        x, y = [place.needed_bytes for place in of], [place.samples_per_s for place in of]
        labels = [place.name for place in of]
        return Series(name, x, y, line, "points", marker, labels=labels, size=6.0)

    groups = dict.fromkeys(place.group for place in places if place.fits)
    front = [places[k] for k in on_front(places)][::-1]
    marks: list[Series | Span] = [
        points(group, [p for p in places if p.fits and p.group == group], colour(k), "o")
        for k, group in enumerate(groups)
    ]
    if front:
        line = points("Pareto front", front, INK, "")
        marks.insert(0, msgspec.structs.replace(line, style="steps"))
    outside = [place for place in places if not place.fits]
    if outside:
        marks.append(points("does not fit", outside, REFERENCE, "x"))
    if device_bytes is not None:
        marks.append(Span("memory of a device", device_bytes, style="dashed"))
    x = Axis("memory that a device needs", "bytes", log=True)
    return Panel(marks, x, Axis("throughput (samples/s)"), "xy")
