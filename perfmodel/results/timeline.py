"""A timeline: what every resource does during two iterations of the steady state."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

Kind = Literal["iterations", "device", "cores", "slot", "link", "none"]
KINDS: tuple[Kind, ...] = ("iterations", "device", "cores", "slot", "link", "none")
"""Kinds of resources in their order in a figure. *iterations* are a worker as a whole, *none*
stands for operations without any."""


class Resource(msgspec.Struct, frozen=True):
    """What operations take time on.

    ``short`` is a name that fits beside a row; ``number`` orders the resources of a kind; ``node``
    is None for those of the network as a whole.
    """

    name: str
    short: str
    kind: Kind
    number: int
    node: int | None


class Operation(msgspec.Struct, frozen=True):
    """An operation in the timeline.

    Attributes
    ----------
    kind, name : such as ``push`` and ``push worker 3, fc``.
    iteration : counted from 0.
    mark : short text for it in pictures, such as the number of its micro-batch; empty if none.
    resource : the one it holds, or else the first link of its path.
    links : links on which it moves ``bytes`` bytes.
    ready_s, start_s, end_s : when its last input arrived, and when it ran (s).
    waited_for : index of the operation on another resource whose end it waited for; None if there
        is none in the timeline.
    """

    kind: str
    name: str
    iteration: int
    resource: Resource
    links: tuple[Resource, ...]
    bytes: float
    ready_s: float
    start_s: float
    end_s: float
    waited_for: int | None = None
    mark: str = ""


class Counter(msgspec.Struct, frozen=True):
    """A quantity over time, constant from each of ``at_s`` on: its name, and what is counted."""

    name: str
    measure: str
    node: int | None
    at_s: Sequence[float]
    values: Sequence[float]


class Timeline(msgspec.Struct, frozen=True, kw_only=True):
    """What happens from ``begin_s`` to ``end_s``, while the slowest worker runs a few iterations.

    Attributes
    ----------
    slowest, first, last : that worker, and these iterations, counted from 0.
    slowest_name : what it is called; of replicas a stage of a worker.
    settled : iterations after which the run is in its steady state.
    nodes : names by number; None for the network as a whole.
    operations : those that overlap this time, in order of their start.
    iterations : those of each worker that overlap it, as operations.
    counters : use of links (%), queues (operations), staleness (updates).
    """

    slowest: int
    first: int
    last: int
    settled: int
    begin_s: float
    end_s: float
    nodes: dict[int | None, str]
    operations: Sequence[Operation]
    iterations: Sequence[Operation]
    counters: Sequence[Counter]
    slowest_name: str = ""

    @property
    def text(self) -> str:
        """Which iterations it shows, in words."""
        steady = self.first >= self.settled
        state = "steady state" if steady else "not yet steady: steady state"
        name = self.slowest_name or f"worker {self.slowest}"
        iterations = f"iterations {self.first} to {self.last} of {name}"
        return f"{iterations} ({state} from {self.settled} on)"
