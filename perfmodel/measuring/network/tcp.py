"""Operations over plain sockets: messages between ranks, and a ring all-reduce."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.measuring.measurements import Operation
from perfmodel.measuring.processes.group import Group
from perfmodel.measuring.processes.sockets import Connection, transfer

OPERATIONS: tuple[Operation, ...] = (
    *("ping_pong", "stream", "messages", "duplex", "incast", "all_reduce"),
)


class Sockets:
    """One rank's part of the operations over the links of a group."""

    operations = OPERATIONS

    def __init__(self, group: Group) -> None:
        self.links = group.links
        self.rank = group.place.rank
        self._buffers: dict[str, NDArray[np.uint8]] = {}

    def size(self, operation: Operation, size_bytes: int, ranks: int) -> int:
        """Return the bytes actually moved for a requested ``size_bytes``."""
        return _whole(size_bytes, 4) if operation == "all_reduce" else size_bytes

    def prepare(
        self, operation: Operation, size_bytes: int, ranks: int, count: int
    ) -> Callable[[], None]:
        """Do the preparation, which is not timed, and return this rank's part of the operation."""
        out = self._buffer("out", size_bytes)
        into = self._buffer("into", size_bytes)
        if operation == "incast":
            return self._incast(out, into, ranks)
        if operation == "all_reduce":
            values = out.view(np.float32)
            before, after = (self.rank - 1) % ranks, (self.rank + 1) % ranks
            links = self.links[after], self.links[before]
            return lambda: ring_all_reduce(values, self.rank, ranks, *links, into.view(np.float32))
        link = self.links[1 - self.rank]
        if operation == "duplex":
            return lambda: self._duplex(link, out, into)
        first = self.rank == 0
        if operation == "ping_pong":
            return lambda: _ping_pong(link, out, into, first)
        return lambda: _messages(link, out if first else into, count, first)

    def close(self) -> None:
        """Do nothing: the links belong to the group."""

    def _incast(self, out: Any, into: Any, ranks: int) -> Callable[[], None]:
        if self.rank:
            return lambda: self.links[0].send(out)
        # received data is discarded, so all senders share one buffer
        senders = [(self.links[rank], into) for rank in range(1, ranks)]
        return lambda: transfer([], senders)

    def _duplex(self, link: Connection, out: Any, into: Any) -> None:
        if self.rank == 0:
            transfer([(link, out)], [(link, into)])
            return
        link.receive_into(into[:1])  # wait for the first byte, so that both start together
        transfer([(link, out)], [(link, into[1:])])

    def _buffer(self, name: str, size_bytes: int) -> NDArray[np.uint8]:
        """Return a reused buffer of zeros, so that sums stay zero."""
        kept = self._buffers.get(name)
        if kept is None or len(kept) < size_bytes:
            kept = np.empty(size_bytes, dtype=np.uint8)
            kept.fill(0)
            self._buffers[name] = kept
        return kept[:size_bytes]


def ring_all_reduce(
    values: NDArray[Any],
    rank: int,
    ranks: int,
    after: Connection,
    before: Connection,
    scratch: NDArray[Any] | None = None,
) -> None:
    """Sum ``values`` (n,) over all ranks, in place, around a ring.

    In each step a rank sends one chunk to the rank ``after`` and receives another from the rank
    ``before``: ``ranks`` - 1 steps of reduce-scatter and as many of all-gather, each of about
    n / ranks values (Patarasuk, Yuan, "Bandwidth optimal all-reduce algorithms for clusters of
    workstations", 2009).
    """
    chunks: list[Any] = np.array_split(values, ranks)
    incoming: Any = np.empty_like(chunks[0]) if scratch is None else scratch
    for step in range(ranks - 1):
        mine = chunks[(rank - step - 1) % ranks]
        room = incoming[: len(mine)]
        transfer([(after, chunks[(rank - step) % ranks])], [(before, room)])
        np.add(mine, room, out=mine)
    for step in range(ranks - 1):
        sent, replaced = chunks[(rank + 1 - step) % ranks], chunks[(rank - step) % ranks]
        transfer([(after, sent)], [(before, replaced)])


def _ping_pong(link: Connection, out: Any, into: Any, first: bool) -> None:
    if first:
        link.send(out)
    link.receive_into(into)
    if not first:
        link.send(out)


def _messages(link: Connection, data: Any, count: int, first: bool) -> None:
    for _ in range(count):
        if first:
            link.send(data)
        else:
            link.receive_into(data)


def _whole(size_bytes: int, unit: int) -> int:
    """Round a size up to a multiple of ``unit``, at least one unit."""
    return max(-(-size_bytes // unit), 1) * unit
