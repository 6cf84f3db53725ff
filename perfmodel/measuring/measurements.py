"""Measured times of a network's messages and collectives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Literal

import msgspec

from perfmodel.base import files
from perfmodel.base.errors import InputError, number, whole_number
from perfmodel.base.provenance import Source
from perfmodel.results.drawn import Drawn

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from perfmodel.results.measured_drawing import Times

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
]

COLLECTIVES: tuple[Operation, ...] = ("all_reduce", "all_gather", "reduce_scatter", "broadcast")


class Measurement(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """An operation on ``bytes`` bytes, with the ``seconds`` of each repetition (repetitions,).

    - *ping_pong*: half of a round trip between two ranks, ``bytes`` each way.
    - *stream*: one transfer of ``bytes`` from one rank to another, until all have arrived.
    - *messages*: ``count`` messages of ``bytes`` each, back to back, until all have arrived.
    - *duplex*: two ranks send ``bytes`` to each other at the same time, until both have received
      them.
    - *incast*: all ``ranks`` but one send ``bytes`` each to the remaining rank at the same time.
    - collectives among ``ranks``: *all_reduce* and *broadcast* have ``bytes`` bytes on each rank;
      *all_gather* gathers, and *reduce_scatter* scatters, ``bytes`` bytes in total.

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

    def plot(self) -> Figure:
        """A matplotlib figure of time over size, one panel per operation (extra ``plot``).

        Raises
        ------
        InputError : matplotlib is not installed.
        """
        from perfmodel.results.measured_drawing import times

        return times(series([self]), f"{self.name} ({self.backend})")


Fitted = Callable[[Measurements, Measurement], float | None]
"""Returns the fitted seconds of a measurement; None if nothing was fitted to it."""


def series(measured: Sequence[Measurements], fitted: Fitted | None = None) -> list[Times]:
    """Lines of a figure: one for each operation, number of ranks, number of messages, and number of
    concurrent operations."""
    from perfmodel.results.measured_drawing import Times

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


def read_measurements(path: str | Path) -> Measurements:
    """Read a measurement file.

    Raises
    ------
    InputError : see :func:`perfmodel.base.files.read`.
    """
    return files.read(path, Measurements, SCHEMA)
