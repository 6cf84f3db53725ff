"""Measured messages and collectives as lines of a figure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median

from perfmodel.measuring.measurements import Measurement, Measurements
from perfmodel.results.measured_drawing import Times

Fitted = Callable[[Measurements, Measurement], float | None]
"""Seconds of a measurement by what was fitted; None where nothing was."""


def series(measured: Sequence[Measurements], fitted: Fitted | None = None) -> list[Times]:
    """A line for each operation and number of ranks, of messages, and of equal ones at once."""
    found: dict[tuple[str, str], list[tuple[Measurements, Measurement]]] = {}
    for m in measured:
        for each in m.measurements:
            place = f"{m.name}: " if len(measured) > 1 else ""
            found.setdefault((each.operation, place + _label(each)), []).append((m, each))
    made = []
    for (operation, label), pairs in found.items():
        pairs.sort(key=lambda pair: pair[1].bytes)
        every = [each for _, each in pairs]
        line = [None if fitted is None else fitted(m, each) for m, each in pairs]
        made.append(
            Times(
                operation=operation,
                label=label,
                bytes=tuple(each.bytes for each in every),
                median_s=tuple(median(each.seconds) for each in every),
                least_s=tuple(min(each.seconds) for each in every),
                most_s=tuple(max(each.seconds) for each in every),
                fitted_s=tuple(s for s in line if s is not None) if None not in line else (),
            )
        )
    return made


def _label(each: Measurement) -> str:
    words = f"{each.ranks} ranks"
    words += f", {each.count} messages" if each.count > 1 else ""
    return words + (f", {each.at_once} at once" if each.at_once > 1 else "")
