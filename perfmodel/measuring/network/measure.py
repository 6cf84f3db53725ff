"""Measure a network between processes on its nodes: messages, streams and collectives.

Rank 0 sends the orders and takes the times. For every repetition it announces the operation,
waits until all participating ranks are ready, and measures the time until the operation is done. If
this time includes a notification to or from another rank, its latency is subtracted: half of the
median round trip of such notifications.
"""

from __future__ import annotations

import datetime as dt
import statistics
import time

import msgspec

from perfmodel import __version__
from perfmodel.base.errors import InputError, number, unknown_name, whole_number
from perfmodel.base.provenance import Source
from perfmodel.base.units import show
from perfmodel.measuring.measurements import Measurements, Operation
from perfmodel.measuring.network.operations import OPERATIONS, Operations
from perfmodel.measuring.network.plan import (
    Advance,
    Clock,
    NetworkCase,
    Say,
    cases,
    chosen_operations,
    within,
)
from perfmodel.measuring.torchrun import BACKENDS, ProcessPlace, RankGroup, congestion, connected

ROUND_TRIPS = 11
"""Round trips of a notification; their median is used."""

CALLED: tuple[Operation, ...] = (
    *("duplex", "incast", "all_reduce", "all_gather", "reduce_scatter"),
)
"""Operations that other ranks start, after a notification from rank 0."""
ANSWERED: tuple[Operation, ...] = ("stream", "messages", "broadcast")
"""Operations that end on another rank, which notifies rank 0."""

WORD, GO, READY, END = -1, -2, -3, -4
"""Messages between rank 0 and another rank; all others are the indices of operations."""


class NetworkPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What to measure; the same on all ranks.

    Attributes
    ----------
    backend : *gloo* or *nccl*.
    sizes_bytes : sizes for all operations; None for 4 B to 67 MB.
    operations : names of operations; None for all that the backend supports.
    repetitions : most repetitions of each operation and size, after one warm-up.
    seconds : approximate total time; slow operations are repeated less often or skipped.
    pause_s : idle time of the network before each repetition.
    timeout_s : how long to wait for another rank.

    Raises
    ------
    InputError : a value is out of range.
    """

    backend: str = "gloo"
    sizes_bytes: tuple[float, ...] | None = None
    operations: tuple[str, ...] | None = None
    repetitions: int = 20
    seconds: float = 20.0
    pause_s: float = 0.0
    timeout_s: float = 60.0

    def __post_init__(self) -> None:
        if self.backend not in BACKENDS:
            raise unknown_name("backend", self.backend, BACKENDS)
        for name in self.operations or ():
            if name not in OPERATIONS:
                raise unknown_name("operation", name, OPERATIONS)
        whole_number("--repetitions", self.repetitions)
        number("--seconds", self.seconds, above=0.0)
        number("--pause", self.pause_s)
        number("--timeout", self.timeout_s, above=0.0)
        for value in self.sizes_bytes or ():
            number("--sizes", value, at_least=1.0)
        if self.sizes_bytes == ():
            raise InputError("--sizes: at least one is needed")

    def arguments(self) -> dict[str, str]:
        """Return the arguments that must agree on all ranks, by flag."""
        values = msgspec.to_builtins(self)
        del values["timeout_s"]
        return {f"--{name.partition('_')[0]}": str(value) for name, value in values.items()}


def measure(
    plan: NetworkPlan,
    place: ProcessPlace,
    *,
    name: str = "network",
    say: Say | None = None,
    progress: Advance | None = None,
) -> Measurements | None:
    """Take part in a measurement by all ranks; return the measurements on rank 0, None elsewhere.

    Parameters
    ----------
    name : name of the measurements.
    say : called with a note for each series of sizes that is cut short.
    progress : called with (cases done, cases in total).

    Raises
    ------
    InputError : PyTorch is missing, ranks do not agree, or an operation is not supported.
    LostError : a rank did not connect, or has disconnected.
    """
    patience_s = plan.timeout_s + plan.seconds + plan.pause_s
    with connected(place, plan.backend, timeout_s=patience_s) as group:
        group.agree(plan.arguments())
        operations = Operations(group)
        chosen = chosen_operations(plan.operations, operations.supported, place.ranks)
        if place.rank:
            follow(group, operations)
            return None
        sizes = None
        if plan.sizes_bytes is not None:
            sizes = sorted({round(value) for value in plan.sizes_bytes})
        series = cases(chosen, place.ranks, sizes, operations.size)
        leader = Leader(group, operations, plan.pause_s)
        measured = within(
            series, leader.once, seconds=plan.seconds, repetitions=plan.repetitions,
            idle_s=plan.pause_s, say=say, progress=progress,
        )  # fmt: skip
        leader.end()
    return Measurements(
        name=name,
        backend=plan.backend,
        measurements=tuple(measured),
        nodes=group.nodes,
        source=_source(plan, group, max(leader.one_way_s)),
    )


def _source(plan: NetworkPlan, group: RankGroup, one_way_s: float) -> Source:
    """Describe how the measurements were taken."""
    when = f"after pauses of {show(plan.pause_s, 's')}" if plan.pause_s else "back to back"
    nodes = len(set(group.nodes))
    tcp = f"congestion control {congestion() or 'unknown'}, " if plan.backend == "gloo" else ""
    text = (
        f"perfmodel {__version__}, torch {group.torch.__version__}, {group.place.ranks} ranks on "
        f"{nodes} node{'s' if nodes > 1 else ''}, {tcp}{when}, "
        f"timed on rank 0, minus {show(one_way_s, 's')} where it waited for a notification"
    )
    return Source("measured", text, date=dt.date.today().isoformat())


def to_json(measured: Measurements) -> bytes:
    """Return a measurement file, with one line per measurement."""
    values = msgspec.to_builtins(measured)
    del values["measurements"]
    head = msgspec.json.format(msgspec.json.encode(values), indent=1).removesuffix(b"\n}")
    rows = b",\n".join(b"  " + msgspec.json.encode(one) for one in measured.measurements)
    return head + b',\n "measurements": [\n' + rows + b"\n ]\n}\n"


class Leader:
    """Rank 0: sends orders and takes times."""

    def __init__(
        self,
        group: RankGroup,
        operations: Operations,
        pause_s: float,
        clock: Clock = time.perf_counter,
    ) -> None:
        self.group, self.operations, self.pause_s, self.clock = group, operations, pause_s, clock
        self.one_way_s = [0.0, *(self._one_way(rank) for rank in range(1, group.place.ranks))]

    def once(self, case: NetworkCase) -> float:
        """Run a case once, and return its seconds."""
        members = range(1, case.ranks)
        for rank in members:
            self.group.send(
                rank, OPERATIONS.index(case.operation), case.bytes, case.ranks, case.count
            )
        act = self.operations.prepare(case.operation, case.bytes, case.ranks, case.count)
        self._await_all(members)
        if self.pause_s:
            time.sleep(self.pause_s)
        began = self.clock()
        if case.operation in CALLED:
            for rank in members:
                self.group.send(rank, GO)
        act()
        ended = self.clock()
        self._await_all(members)
        if case.operation in ANSWERED:
            ended = self.clock()
        took_s = net(case.operation, ended - began, max(self.one_way_s[: case.ranks]))
        return float(f"{took_s:.6g}")  # more digits than any clock resolves

    def end(self) -> None:
        """Tell all ranks that the measurement is over."""
        for rank in range(1, self.group.place.ranks):
            self.group.send(rank, END)

    def _await_all(self, members: range) -> None:
        for rank in members:
            self.group.receive(rank)

    def _one_way(self, rank: int) -> float:
        """Return half of the median round trip of a notification."""
        trips = []
        for _ in range(ROUND_TRIPS):
            began = self.clock()
            self.group.send(rank, WORD)
            self.group.receive(rank)
            trips.append(self.clock() - began)
        return statistics.median(trips) / 2.0


def net(operation: Operation, elapsed_s: float, one_way_s: float) -> float:
    """Return the duration of an operation, from the time elapsed on rank 0.

    The notification latency ``one_way_s`` is subtracted, but never more than half of the elapsed
    time: the operation itself uses the same network.

    >>> net("ping_pong", 0.4, 0.1), net("stream", 0.5, 0.1), net("stream", 0.1, 0.1)
    (0.2, 0.4, 0.05)
    """
    if operation == "ping_pong":
        return elapsed_s / 2.0
    return max(elapsed_s - one_way_s, elapsed_s / 2.0)


def follow(group: RankGroup, operations: Operations) -> None:
    """Follow the orders of rank 0 until it ends the measurement."""
    while (order := group.receive(0))[0] != END:
        if order[0] == WORD:
            group.send(0, WORD)
            continue
        operation = OPERATIONS[order[0]]
        act = operations.prepare(operation, *order[1:])
        group.send(0, READY)
        if operation in CALLED:
            group.receive(0)
        act()
        group.send(0, READY)
