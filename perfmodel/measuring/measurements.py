"""Measured times of a network's messages and collectives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Literal

import msgspec

from perfmodel.base import files
from perfmodel.base.errors import InputError, number, whole_number
from perfmodel.base.provenance import Source
from perfmodel.reporting.contents import Axis, Figure, Mark, Panel, Ranges, Series
from perfmodel.reporting.drawn import Drawn
from perfmodel.reporting.panels import colour, marker

SCHEMA = "perfmodel.measurements/1"

Operation = Literal[
    "ping_pong",
    "stream",
    "messages",
    "duplex",
    "incast",
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "broadcast",
    "all_to_all",
]

COLUMNS = 3
"""Operations drawn side by side, at most."""

COLLECTIVES: tuple[Operation, ...] = (
    *("all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all"),
)


class Measurement(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """An operation on ``bytes`` bytes, with the ``seconds`` of each repetition (repetitions,).

    - *ping_pong*: half of a round trip between two ranks, ``bytes`` each way.
    - *stream*: one transfer of ``bytes`` from one rank to another, until all have arrived.
    - *messages*: ``count`` messages of ``bytes`` each, back to back, until all have arrived.
    - *duplex*: two ranks send ``bytes`` to each other at the same time, until both have received
      them.
    - *incast*: all ``ranks`` but one send ``bytes`` each to the remaining rank at the same time.
    - collectives among ``ranks``: *all_reduce* and *broadcast* have ``bytes`` bytes on each rank;
      *all_gather* gathers, and *reduce_scatter* scatters, ``bytes`` bytes in total; in an
      *all_to_all* each rank has ``bytes`` bytes, an equal part for every rank, itself included.

    Attributes
    ----------
    ranks : number of ranks that took part.
    at_once : number of equal operations that run concurrently on the same links; ``seconds`` covers
    all of them.
    """

    operation: Operation
    bytes: float
    seconds: tuple[float, ...]
    ranks: int = 2
    count: int = 1
    at_once: int = 1

    def __post_init__(self) -> None:
        number("bytes", self.bytes)
        whole_number("ranks", self.ranks, at_least=2)
        whole_number("count", self.count)
        whole_number("at_once", self.at_once)
        if not self.seconds:
            raise InputError("seconds: at least one repetition is needed")
        for i, value in enumerate(self.seconds):
            number(f"seconds[{i}]", value, above=0.0)


class Measurements(Drawn, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Contents of a measurement file (schema ``perfmodel.measurements/1``).

    ``backend`` is what sent the bytes, such as *gloo*, *nccl* or *tcp*. ``nodes`` gives the node of
    each rank, numbered from 0; it is empty if every rank has its own node.
    """

    schema: Literal["perfmodel.measurements/1"] = "perfmodel.measurements/1"
    name: str
    backend: str
    measurements: tuple[Measurement, ...]
    source: Source
    nodes: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not self.measurements:
            raise InputError("measurements: at least one is needed")
        for i, node in enumerate(self.nodes):
            whole_number(f"nodes[{i}]", node, at_least=0)

    def figure(self) -> Figure:
        """Times over size, one panel per operation."""
        return times([self], f"{self.name} ({self.backend})")


Fitted = Callable[[Measurements, Measurement], float | None]
"""Returns the fitted seconds of a measurement; None if nothing was fitted to it."""


def times(measured: Sequence[Measurements], title: str, fitted: Fitted | None = None) -> Figure:
    """A figure of times over size: a panel for each operation, with a colour for each number of
    ranks, of messages and of concurrent operations.

    Points are medians, bars go from the fastest to the slowest repetition, lines are fitted.
    """
    panels: dict[str, dict[str, list[tuple[Measurements, Measurement]]]] = {}
    for m in measured:
        place = f"{m.name}: " if len(measured) > 1 else ""
        for e in m.measurements:
            lines = panels.setdefault(e.operation, {})
            lines.setdefault(place + _label(e), []).append((m, e))
    labels = list(dict.fromkeys(label for lines in panels.values() for label in lines))
    drawn = []
    for operation, lines in panels.items():
        marks = [
            mark
            for label, pairs in lines.items()
            for mark in _marks(label, labels.index(label), pairs, fitted)
        ]
        x, y = Axis("size (bytes)", "bytes", log=True, most=5), Axis("time (s)", "s", log=True)
        drawn.append(Panel(marks, x, y, "xy", operation.replace("_", " ")))
    return Figure([drawn[k : k + COLUMNS] for k in range(0, len(drawn), COLUMNS)], title)


def _marks(
    label: str,
    number: int,
    pairs: list[tuple[Measurements, Measurement]],
    fitted: Fitted | None,
) -> list[Mark]:
    """Measured times over size, with their spread, and the fitted line if all were fitted."""
    pairs = sorted(pairs, key=lambda pair: pair[1].bytes)
    sizes, seconds = [e.bytes for _, e in pairs], [e.seconds for _, e in pairs]
    line = colour(number)
    low, high = [min(e) for e in seconds], [max(e) for e in seconds]
    middle = [median(e) for e in seconds]
    points = Series(label, sizes, middle, line, "points", marker(number), size=3.5)
    marks: list[Mark] = [Ranges("", sizes, low, high, line, "y", width=0.8), points]
    values = [None if fitted is None else fitted(m, e) for m, e in pairs]
    if None not in values:
        known = [value for value in values if value is not None]
        marks.append(Series("fitted", sizes, known, line))
    return marks


def _label(measurement: Measurement) -> str:
    words = f"{measurement.ranks} ranks"
    words += f", {measurement.count} messages" if measurement.count > 1 else ""
    return words + (f", {measurement.at_once} at once" if measurement.at_once > 1 else "")


def read_measurements(path: str | Path) -> Measurements:
    """Read a measurement file.

    Raises
    ------
    InputError : see :func:`perfmodel.base.files.read`.
    """
    return files.read(path, Measurements, SCHEMA)
