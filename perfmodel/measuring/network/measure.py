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
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from perfmodel import __version__
from perfmodel.base.errors import InputError, number, unknown_name, whole_number
from perfmodel.base.files import ready
from perfmodel.base.provenance import Source
from perfmodel.base.units import show
from perfmodel.measuring.measurements import Measurements, Operation
from perfmodel.measuring.network.plan import (
    Advance,
    Clock,
    NetworkCase,
    Say,
    cases,
    chosen_operations,
    within,
)
from perfmodel.measuring.processes.group import Group, meet
from perfmodel.measuring.processes.ranks import Place

SECONDS, REPETITIONS, TIMEOUT_S = 20.0, 20, 60.0
"""Defaults."""

ROUND_TRIPS = 11
"""Round trips of a notification; their median is used."""

CALLED: tuple[Operation, ...] = ("incast", "all_reduce", "all_gather", "reduce_scatter")
"""Operations that other ranks start, after a notification from rank 0."""
ANSWERED: tuple[Operation, ...] = ("stream", "messages", "duplex", "broadcast")
"""Operations that end on another rank, which notifies rank 0."""


class Transport(Protocol):
    """A rank's implementation of operations."""

    @property
    def operations(self) -> tuple[Operation, ...]:
        """Supported operations."""

    def size(self, operation: Operation, size_bytes: int, ranks: int) -> int:
        """Return the bytes actually moved for a requested ``size_bytes``."""

    def prepare(
        self, operation: Operation, size_bytes: int, ranks: int, count: int
    ) -> Callable[[], None]:
        """Do the preparation, which is not timed, and return this rank's part of the operation."""

    def close(self) -> None:
        """Release its resources."""


def measure(
    place: Place,
    *,
    backend: str = "tcp",
    sizes_bytes: Sequence[float] | None = None,
    operations: Sequence[str] | None = None,
    repetitions: int = REPETITIONS,
    seconds: float = SECONDS,
    pause_s: float = 0.0,
    congestion: str = "",
    node: int | None = None,
    timeout_s: float = TIMEOUT_S,
    name: str = "network",
    say: Say | None = None,
    progress: Advance | None = None,
) -> Measurements | None:
    """Take part in a measurement by all ranks; return the measurements on rank 0, None elsewhere.

    It has many parameters because each is an option of ``perfmodel measure network``.

    Parameters
    ----------
    place : rank of this process, number of ranks, and rendezvous address.
    backend : *tcp* (plain sockets), or torch's *gloo* or *nccl*.
    sizes_bytes : sizes for all operations; by default 4 B to 67 MB.
    operations : by default all that the backend supports.
    repetitions : number of repetitions of each operation and size, after one warm-up.
    seconds : approximate total time; slow operations are repeated less often or skipped.
    pause_s : idle time of the network before each repetition.
    congestion : TCP congestion control; "" for the system's default.
    node : number of this rank's node; by default ranks with the same address share a node.
    timeout_s : how long to wait for the other ranks, and for any connection without progress.
    name : name of the measurements.
    say : called with a note for each series of sizes that is cut short.
    progress : called with (cases done, cases in total).

    Raises
    ------
    InputError : an argument is out of range, or ranks do not agree.
    LostError : a rank did not connect, or has disconnected.
    """
    _check(backend, congestion, repetitions, seconds, pause_s, timeout_s, node)
    sizes = None if sizes_bytes is None else _sizes(sizes_bytes)
    arguments = {
        "--backend": backend,
        "--sizes": "" if sizes is None else ",".join(f"{size}B" for size in sizes),
        "--operations": ",".join(operations or ()),
        "--repetitions": f"{repetitions}",
        "--seconds": f"{seconds:g}",
        "--pause": f"{pause_s:g}s",
        "--congestion": congestion,
    }
    group = meet(place, arguments, timeout_s=timeout_s, congestion=congestion, node=node)
    group.patience_s = timeout_s + seconds + pause_s
    with group.together():
        transport, used = _transport(backend, group)
        try:
            chosen = chosen_operations(operations, transport.operations, place.ranks)
            if place.rank:
                follow(group, transport)
                return None
            series = cases(chosen, place.ranks, sizes, transport.size)
            leader = Leader(group, transport, pause_s)
            found = within(
                series, leader.once, seconds=seconds, repetitions=repetitions, idle_s=pause_s,
                say=say, progress=progress,
            )  # fmt: skip
            leader.end()
        finally:
            transport.close()
    return Measurements(
        name=name,
        backend=backend,
        measurements=tuple(found),
        nodes=group.nodes,
        source=_source(group, pause_s, used, max(leader.one_way_s)),
    )


def _source(group: Group, pause_s: float, congestion: str, one_way_s: float) -> Source:
    """Describe how the measurements were taken."""
    when = f"after pauses of {show(pause_s, 's')}" if pause_s else "back to back"
    text = (
        f"perfmodel {__version__}, {group.place.ranks} ranks on {_nodes(group)}, "
        f"congestion control {congestion or 'unknown'}, {when}, "
        f"timed on rank 0, minus {show(one_way_s, 's')} where it waited for a notification"
    )
    return Source("measured", text, date=dt.date.today().isoformat())


def to_json(found: Measurements) -> bytes:
    """Return a measurement file, with one line per measurement."""
    rest = {
        name: value for name, value in msgspec.to_builtins(found).items() if name != "measurements"
    }
    head = msgspec.json.format(msgspec.json.encode(rest), indent=1).removesuffix(b"\n}")
    rows = b",\n".join(b"  " + msgspec.json.encode(one) for one in found.measurements)
    return head + b',\n "measurements": [\n' + rows + b"\n ]\n}\n"


def _nodes(group: Group) -> str:
    found = len(set(group.nodes))
    return f"{found} nodes" if found > 1 else "1 node"


class Leader:
    """Rank 0: sends orders and takes times."""

    def __init__(
        self, group: Group, transport: Transport, pause_s: float, clock: Clock = time.perf_counter
    ) -> None:
        self.group, self.transport, self.pause_s, self.clock = group, transport, pause_s, clock
        self.one_way_s = [0.0, *(self._one_way(rank) for rank in range(1, group.place.ranks))]

    def once(self, case: NetworkCase) -> float:
        """Run a case once, and return its seconds."""
        members = range(1, case.ranks)
        for rank in members:
            self.group.send(rank, msgspec.to_builtins(case))
        act = self.transport.prepare(case.operation, case.bytes, case.ranks, case.count)
        self._await_all(members)
        if self.pause_s:
            time.sleep(self.pause_s)
        began = self.clock()
        if case.operation in CALLED:
            for rank in members:
                self.group.send(rank, "go")
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
            self.group.send(rank, None)

    def _await_all(self, members: range) -> None:
        for rank in members:
            self.group.receive(rank)

    def _one_way(self, rank: int) -> float:
        """Return half of the median round trip of a notification."""
        trips = []
        for _ in range(ROUND_TRIPS):
            began = self.clock()
            self.group.send(rank, "word")
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


def follow(group: Group, transport: Transport) -> None:
    """Follow the orders of rank 0 until it ends the measurement."""
    while (order := group.receive(0)) is not None:
        if order == "word":
            group.send(0, "word")
            continue
        case = msgspec.convert(order, ready(NetworkCase))
        act = transport.prepare(case.operation, case.bytes, case.ranks, case.count)
        group.send(0, "ready")
        if case.operation in CALLED:
            group.receive(0)
        act()
        group.send(0, "done")


def _sizes(sizes_bytes: Sequence[float]) -> list[int]:
    for value in sizes_bytes:
        number("--sizes", value, at_least=1.0)
    if not sizes_bytes:
        raise InputError("--sizes: at least one is needed")
    return sorted({round(value) for value in sizes_bytes})


def _check(
    backend: str, congestion: str, repetitions: int, seconds: float, pause_s: float,
    timeout_s: float, node: int | None,
) -> None:  # fmt: skip
    if backend not in ("tcp", "gloo", "nccl"):
        raise unknown_name("backend", backend, ("tcp", "gloo", "nccl"))
    if congestion and backend != "tcp":
        raise InputError(f"--congestion: only for --backend tcp; {backend} opens its own sockets")
    whole_number("--repetitions", repetitions)
    number("--seconds", seconds, above=0.0)
    number("--pause", pause_s)
    number("--timeout", timeout_s, above=0.0)
    if node is not None:
        whole_number("--node", node, at_least=0)


def _transport(backend: str, group: Group) -> tuple[Transport, str]:
    """Return the transport and its congestion control ("" if unknown)."""
    if backend == "tcp":
        from perfmodel.measuring.network.tcp import Sockets

        return Sockets(group), next(iter(group.links.values())).congestion
    from perfmodel.measuring.processes.torch_backend import Torch

    # gloo's sockets use the system's default, as do the group's control connections
    used = next(iter(group.control.values())).congestion if backend == "gloo" else ""
    return Torch(backend, group), used
