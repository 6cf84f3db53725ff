"""A parameter server: applies pushed gradients, and sends new parameters back.

Messages are gloo's, point to point: a header of whole numbers (kind, number of the piece on its
server, iteration from 0, flag), then the values. The flag of a push says that its worker has done
its iterations, that of new parameters that all workers have.
"""

from __future__ import annotations

import queue
import statistics
import threading
import time
from collections.abc import Sequence

import msgspec
import numpy as np

from perfmodel.measuring.torchrun import Group, LostError
from perfmodel.measuring.training.shards import (
    ELEMENT_BYTES,
    Applied,
    Array,
    Reply,
    Shard,
    ShardPiece,
)

PUSH, SET, LEAVE, PARAMETERS, END = 1, 2, 3, 4, 5
"""Kinds of messages: a gradient, initial parameters, a worker's leave, new parameters, and the
answer to a worker's leave."""


class Report(msgspec.Struct, frozen=True):
    """Report of a server: number of updates by staleness, and the update times."""

    staleness: dict[int, int]
    applied: tuple[Applied, ...]


class Incoming(msgspec.Struct, frozen=True):
    """A message from a worker, or how its connection ended."""

    worker: int
    kind: int
    piece: int = 0
    iteration: int = 0
    done: bool = False
    values: Array | None = None
    error: str = ""


def send_values(group: Group, rank: int, header: tuple[int, ...], values: Array) -> None:
    """Send a header and float32 values to a rank."""
    group.send(rank, *header)
    group.distributed.send(group.torch.from_numpy(values), rank, group=group.control)


def receive_values(group: Group, rank: int, into: Array) -> None:
    """Receive float32 values from a rank."""
    group.distributed.recv(group.torch.from_numpy(into), rank, group=group.control)


class ParameterServer:
    """Serves ``pieces`` to ``workers`` workers, the first ranks, until all have left.

    Each worker has one receiving and one sending thread. A single thread applies updates one by
    one, in the order in which pushes complete.
    """

    def __init__(
        self, group: Group, pieces: Sequence[ShardPiece], shard: Shard, workers: int, warmup: int
    ) -> None:
        self._group, self._pieces, self._shard = group, pieces, shard
        self._workers, self._warmup = workers, warmup
        self._inbox: queue.SimpleQueue[Incoming] = queue.SimpleQueue()
        self._outboxes: list[queue.SimpleQueue[Reply | None]] = [
            queue.SimpleQueue() for _ in range(workers)
        ]
        self._done: set[int] = set()
        self._seconds: dict[tuple[float, int], list[float]] = {}

    def serve(self) -> Report:
        """Apply pushes and answer them until all workers have left.

        Raises
        ------
        LostError : a worker has disconnected, or sends nothing for longer than the timeout.
        """
        threads = [
            threading.Thread(target=call, args=(worker,), daemon=True)
            for worker in range(self._workers)
            for call in (self._receive, self._send)
        ]
        for thread in threads:
            thread.start()
        left = 0
        while left < self._workers:
            message = self._inbox.get()
            if message.error:
                raise LostError(message.error)
            for reply in self._replies(message):
                self._outboxes[reply.worker].put(reply)
            if message.kind == LEAVE:
                left += 1
                self._outboxes[message.worker].put(None)
        for thread in threads:
            thread.join()
        applied = (
            Applied(tensors, size * ELEMENT_BYTES, statistics.median(seconds))
            for (tensors, size), seconds in self._seconds.items()
        )
        return Report(dict(self._shard.staleness), tuple(applied))

    def _replies(self, message: Incoming) -> list[Reply]:
        if message.kind == LEAVE or message.done:
            self._done.add(message.worker)
        if message.kind == LEAVE or message.values is None:
            return self._shard.leave(message.worker)
        if message.kind == SET:  # no worker pushes before the worker that sets has all answers
            return [self._shard.begin(message.piece, message.worker, message.values)]
        piece = self._pieces[message.piece]
        begin_s = time.perf_counter()
        replies = self._shard.push(
            message.piece,
            message.worker,
            message.values,
            counted=message.iteration >= self._warmup,
        )
        seconds = time.perf_counter() - begin_s
        self._seconds.setdefault((piece.tensors, piece.elements), []).append(seconds)
        return replies

    def _receive(self, worker: int) -> None:
        # a worker pushes a piece again only after the answer, so one buffer per piece is enough
        buffers = [np.empty(piece.elements, np.float32) for piece in self._pieces]
        kind = 0
        try:
            while kind != LEAVE:
                kind, piece, iteration, done = self._group.receive(worker)
                values = None if kind == LEAVE else buffers[piece]
                if values is not None:
                    receive_values(self._group, worker, values)
                self._inbox.put(Incoming(worker, kind, piece, iteration, bool(done), values))
        except RuntimeError as error:
            self._inbox.put(Incoming(worker, 0, error=f"rank {worker}: {first_line(error)}"))

    def _send(self, worker: int) -> None:
        try:
            while (reply := self._outboxes[worker].get()) is not None:
                done = int(len(self._done) == self._workers)
                send_values(self._group, worker, (PARAMETERS, reply.piece, 0, done), reply.values)
            self._group.send(worker, END)
        except RuntimeError as error:
            self._inbox.put(Incoming(worker, 0, error=f"rank {worker}: {first_line(error)}"))


def first_line(error: BaseException) -> str:
    """Return the first line of an error's text."""
    return str(error).strip().partition("\n")[0]
