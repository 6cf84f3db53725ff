"""A parameter server: applies pushed gradients, and sends new parameters back."""

from __future__ import annotations

import contextlib
import queue
import socket
import statistics
import struct
import threading
import time
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from perfmodel.measuring.processes.connecting import HANDSHAKE_S, Listener
from perfmodel.measuring.processes.sockets import Connection, LostError
from perfmodel.measuring.training.emulated import ELEMENT_BYTES
from perfmodel.measuring.training.shards import Applied, Array, Reply, Shard, ShardPiece

HEADER = struct.Struct("!BIQ")
"""Header of a message: kind, the server's piece, iteration (from 0)."""

HELLO, PUSH, SET, LEAVE, PARAMETERS = 1, 2, 3, 4, 5
"""Kinds of messages: a worker's number, a gradient, initial parameters, a worker's leave, new
parameters."""


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
    values: Array | None = None
    error: str = ""


FAILED = Incoming(-1, 0)
"""Notification that the run has failed in another process."""


def send_with_header(connection: Connection, header: bytes, values: Array) -> None:
    """Send both in one message, without copying ``values``."""
    data = values.data.cast("B")
    try:
        sent = connection.socket.sendmsg([header, data]) - len(header)
    except OSError as error:
        raise LostError(f"{connection.peer} disconnected ({error.strerror or error})") from None
    if sent < 0:  # a header is far smaller than any buffer
        connection.send(header[sent:])
        sent = 0
    connection.send(data[sent:])


def end(connection: Connection) -> None:
    """Close a connection on which threads may be waiting."""
    with contextlib.suppress(OSError):
        connection.socket.shutdown(socket.SHUT_RDWR)
    connection.close()


class ParameterServer:
    """Serves ``pieces`` to ``workers`` workers until all have left.

    Each worker has one receiving and one sending thread. A single thread applies updates one by
    one, in the order in which pushes complete.
    """

    def __init__(
        self,
        listener: Listener,
        pieces: Sequence[ShardPiece],
        shard: Shard,
        *,
        workers: int,
        warmup: int,
        timeout_s: float,
    ) -> None:
        self._listener, self._pieces, self._shard = listener, pieces, shard
        self._workers, self._warmup, self._timeout_s = workers, warmup, timeout_s
        self._inbox: queue.SimpleQueue[Incoming] = queue.SimpleQueue()
        self._outboxes: list[queue.SimpleQueue[Reply | None]] = [
            queue.SimpleQueue() for _ in range(workers)
        ]
        self._connections: dict[int, Connection] = {}
        self._threads: list[threading.Thread] = []
        self._seconds: dict[tuple[float, int], list[float]] = {}

    def accept(self) -> None:
        """Accept each worker once; close connections with any other first message.

        Raises
        ------
        LostError : a worker does not connect in time.
        """
        until = time.monotonic() + self._timeout_s
        while len(self._connections) < self._workers:
            connection = self._listener.accept(until - time.monotonic(), "a worker")
            try:
                worker = self._greeted(connection)
            except LostError as error:
                self._listener.reject(connection, str(error))
                continue
            connection.peer = f"rank {worker}"
            connection.socket.settimeout(None)
            self._connections[worker] = connection
            until = time.monotonic() + self._timeout_s
        for worker in self._connections:
            for call in (self._receive, self._send):
                thread = threading.Thread(target=call, args=(worker,), daemon=True)
                thread.start()
                self._threads.append(thread)

    def _greeted(self, connection: Connection) -> int:
        """Return the number of the worker that connected."""
        connection.timeout_s = min(HANDSHAKE_S, self._timeout_s)
        header = bytearray(HEADER.size)
        connection.receive_into(header)
        kind, worker, _ = HEADER.unpack(header)
        if kind != HELLO:
            raise connection.no_message()
        if worker >= self._workers:
            raise LostError(f"claims to be worker {worker}, but there are {self._workers} workers")
        if worker in self._connections:
            raise LostError(f"claims to be worker {worker}, which is already connected")
        return int(worker)

    def fail(self) -> None:
        """End :meth:`serve` because the run has failed."""
        self._inbox.put(FAILED)

    def serve(self) -> Report:
        """Apply pushes and answer them until all workers have left.

        Raises
        ------
        LostError : a worker has disconnected, or no worker sends anything.
        """
        left: set[int] = set()
        while len(left) < self._workers:
            message = self._next()
            if message.kind == LEAVE:
                left.add(message.worker)
                replies = self._shard.leave(message.worker)
            else:
                replies = self._handle(message)
            for reply in replies:
                self._outboxes[reply.worker].put(reply)
        for outbox in self._outboxes:
            outbox.put(None)
        for thread in self._threads:
            thread.join(timeout=self._timeout_s)
        self.close()
        applied = (
            Applied(tensors, size * ELEMENT_BYTES, statistics.median(seconds))
            for (tensors, size), seconds in self._seconds.items()
        )
        return Report(dict(self._shard.staleness), tuple(applied))

    def close(self) -> None:
        """Close all connections and end all threads."""
        for outbox in self._outboxes:
            outbox.put(None)
        for connection in self._connections.values():
            end(connection)

    def _next(self) -> Incoming:
        try:
            message = self._inbox.get(timeout=self._timeout_s)
        except queue.Empty:
            raise LostError(f"no worker sent anything for {self._timeout_s:g} s") from None
        if message is FAILED:
            raise LostError("the run has failed")
        if message.error:
            raise LostError(message.error)
        return message

    def _handle(self, message: Incoming) -> list[Reply]:
        values: Any = message.values
        piece = self._pieces[message.piece]
        begin_s = time.perf_counter()
        replies = self._shard.push(
            message.piece, message.worker, values, counted=message.iteration >= self._warmup
        )
        seconds = time.perf_counter() - begin_s
        self._seconds.setdefault((piece.tensors, piece.elements), []).append(seconds)
        return replies

    def _receive(self, worker: int) -> None:
        connection = self._connections[worker]
        # a worker pushes a piece again only after the answer, so one buffer per piece is enough
        buffers = [np.empty(piece.elements, np.float32) for piece in self._pieces]
        header = bytearray(HEADER.size)
        kind = 0
        try:
            while kind != LEAVE:
                connection.receive_into(header)
                kind, piece, iteration = HEADER.unpack(header)
                if kind == LEAVE:
                    self._inbox.put(Incoming(worker, LEAVE))
                    return
                if kind not in (SET, PUSH) or piece >= len(buffers):
                    raise connection.no_message()
                connection.receive_into(buffers[piece].data)
                if kind == SET:  # no worker pushes before the worker that sets has all answers
                    reply = self._shard.begin(piece, worker, buffers[piece])
                    self._outboxes[worker].put(reply)
                    continue
                self._inbox.put(Incoming(worker, kind, piece, iteration, buffers[piece]))
        except (LostError, OSError) as error:
            self._inbox.put(Incoming(worker, 0, error=str(error)))

    def _send(self, worker: int) -> None:
        connection, outbox = self._connections[worker], self._outboxes[worker]
        try:
            while (reply := outbox.get()) is not None:
                header = HEADER.pack(PARAMETERS, reply.piece, 0)
                send_with_header(connection, header, reply.values)
        except (LostError, OSError) as error:
            self._inbox.put(Incoming(worker, 0, error=str(error)))
