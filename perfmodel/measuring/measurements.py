"""Measured times of messages and collectives of a network."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec

from perfmodel.base import files
from perfmodel.base.errors import InputError, number, whole_number
from perfmodel.base.provenance import Source
from perfmodel.results.drawn import Drawn

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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
    - *stream*: ``bytes`` sent at once from one rank to another, until it has them all.
    - *messages*: ``count`` messages of ``bytes`` each, back to back, until all have arrived.
    - *duplex*: two ranks that both send ``bytes`` to each other, until both have them.
    - *incast*: all ``ranks`` but one send ``bytes`` each to the last at once.
    - collectives among ``ranks``: *all_reduce* and *broadcast* of ``bytes`` bytes in each rank,
      *all_gather* to, and *reduce_scatter* of, ``bytes`` bytes in all.

    Attributes
    ----------
    ranks : how many took part.
    at_once : equal operations at the same time on the same links; ``seconds`` is of all of them.
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

    ``backend`` is *tcp* (plain sockets), *gloo* or *nccl*. ``nodes`` has the node of each rank,
    numbered from 0; empty if each rank has its own.
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
        """A matplotlib figure: time over size, a part for each operation (extra ``plot``).

        Raises
        ------
        InputError : matplotlib is not installed.
        """
        from perfmodel.measuring.network.picture import series
        from perfmodel.results.measured_drawing import times

        return times(series([self]), f"{self.name} ({self.backend})")


def read_measurements(path: str | Path) -> Measurements:
    """Read a measurement file.

    Raises
    ------
    InputError : see :func:`perfmodel.base.files.read`.
    """
    return files.read(path, Measurements, SCHEMA)
