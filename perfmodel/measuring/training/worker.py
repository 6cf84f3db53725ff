"""A worker of a parameter server: pushes gradients, and waits for new parameters."""

from __future__ import annotations

import math
import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec
import numpy as np

from perfmodel.base.errors import PerfmodelError
from perfmodel.measuring.processes.connecting import connect
from perfmodel.measuring.processes.sockets import Connection, LostError
from perfmodel.measuring.processes.tokens import Token
from perfmodel.measuring.training.emulated import ELEMENT_BYTES
from perfmodel.measuring.training.server import (
    HEADER,
    HELLO,
    LEAVE,
    PARAMETERS,
    PUSH,
    SET,
    end,
    send_with_header,
)
from perfmodel.measuring.training.shards import Array, ShardPiece


class Outgoing(msgspec.Struct, frozen=True):
    """A message to a server."""

    kind: int
    number: int = 0
    iteration: int = 0
    values: Array | None = None


class ServerConnection:
    """Connection to a server: one thread sends in order, another receives."""

    def __init__(self, connection: Connection) -> None:
        connection.socket.settimeout(None)
        self.connection = connection
        self.outbox: queue.SimpleQueue[Outgoing | None] = queue.SimpleQueue()


class Client:
    """A worker's connections to all servers, and its copy of the parameters.

    A layer's pieces are pushed in order, each on the connection to its server. ``clock`` timestamps
    arriving parameters.

    Raises
    ------
    LostError : a server does not answer.
    """

    def __init__(
        self,
        worker: int,
        servers: Sequence[tuple[str, int]],
        pieces: Sequence[ShardPiece],
        *,
        timeout_s: float,
        token: Token,
        congestion: str = "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._pieces, self._timeout_s, self._clock = pieces, timeout_s, clock
        self._of_layer: dict[int, list[int]] = {}
        self._of_server: list[list[int]] = [[] for _ in servers]
        self._number = []
        for index, piece in enumerate(pieces):
            self._of_layer.setdefault(piece.layer, []).append(index)
            self._number.append(len(self._of_server[piece.server]))
            self._of_server[piece.server].append(index)
        self.parameters = {
            layer: np.zeros(max(pieces[index].last for index in found), np.float32)
            for layer, found in self._of_layer.items()
        }
        self._changed = threading.Condition()
        self._pushed = dict.fromkeys(self._of_layer, 0)
        self._sent = [0] * len(pieces)
        self._arrived = [0] * len(pieces)
        self._arrived_s = [-math.inf] * len(pieces)
        self._failure = ""
        self.sent_bytes = 0
        self._lines: list[ServerConnection] = []
        self._senders: list[threading.Thread] = []
        try:
            for rank, (host, port) in enumerate(servers):
                name = f"server {rank}"
                connection = connect(host, port, timeout_s, token, congestion, name)
                self._lines.append(ServerConnection(connection))
                connection.send(HEADER.pack(HELLO, worker, 0))
        except PerfmodelError:
            self.close()
            raise
        for server in range(len(servers)):
            sender = threading.Thread(target=self._send, args=(server,), daemon=True)
            receiver = threading.Thread(target=self._receive, args=(server,), daemon=True)
            sender.start()
            receiver.start()
            self._senders.append(sender)

    @property
    def congestion(self) -> str:
        """Congestion control of the connections."""
        return self._lines[0].connection.congestion

    def begin(self, layer: int, values: Array) -> None:
        """Set a layer's initial parameters, for all workers, and wait for the answer."""
        self._put(SET, layer, values)
        self.wait(layer)

    def push(self, layer: int, gradient: Array) -> None:
        """Send a layer's gradient; its array must not change until the new parameters have
        arrived."""
        self._put(PUSH, layer, gradient, self._pushed[layer])
        self._pushed[layer] += 1
        self.sent_bytes += len(gradient) * ELEMENT_BYTES

    def wait(self, layer: int) -> float:
        """Wait for the parameters that answer a layer's last push.

        Returns when they arrived; minus infinity if nothing was pushed.

        Raises
        ------
        LostError : they do not arrive in time, or a connection has ended.
        """
        indices = self._of_layer.get(layer, [])
        with self._changed:
            self._changed.wait_for(
                lambda: bool(self._failure) or self._complete(indices), self._timeout_s
            )
            complete, failure = self._complete(indices), self._failure
        if not complete and failure:
            raise LostError(failure)
        if not complete:
            raise LostError(f"no parameters of layer {layer} arrived within {self._timeout_s:g} s")
        return max((self._arrived_s[index] for index in indices), default=-math.inf)

    def leave(self) -> None:
        """Wait for all answers, then tell the servers that this worker leaves."""
        for layer in self._of_layer:
            self.wait(layer)
        for line in self._lines:
            line.outbox.put(Outgoing(LEAVE))
            line.outbox.put(None)
        for sender in self._senders:
            sender.join(timeout=self._timeout_s)

    def fail(self, text: str) -> None:
        """End all waits with an error."""
        with self._changed:
            self._failure = self._failure or text
            self._changed.notify_all()

    def close(self) -> None:
        """Close all connections."""
        for line in self._lines:
            line.outbox.put(None)
            end(line.connection)

    def _complete(self, indices: Sequence[int]) -> bool:
        return all(self._arrived[index] == self._sent[index] for index in indices)

    def _put(self, kind: int, layer: int, values: Array, iteration: int = 0) -> None:
        for index in self._of_layer[layer]:
            self._sent[index] += 1
            piece = self._pieces[index]
            part = values[piece.first : piece.last]
            message = Outgoing(kind, self._number[index], iteration, part)
            self._lines[piece.server].outbox.put(message)

    def _send(self, server: int) -> None:
        line = self._lines[server]
        try:
            while (message := line.outbox.get()) is not None:
                header = HEADER.pack(message.kind, message.number, message.iteration)
                if message.values is None:
                    line.connection.send(header)
                else:
                    send_with_header(line.connection, header, message.values)
        except (LostError, OSError) as error:
            self.fail(str(error))

    def _receive(self, server: int) -> None:
        connection, of_server = self._lines[server].connection, self._of_server[server]
        header = bytearray(HEADER.size)
        try:
            while True:
                connection.receive_into(header)
                kind, number, _ = HEADER.unpack(header)
                if kind != PARAMETERS or number >= len(of_server):
                    raise connection.no_message()
                index = of_server[number]
                piece = self._pieces[index]
                connection.receive_into(self.parameters[piece.layer][piece.first : piece.last].data)
                with self._changed:
                    self._arrived_s[index] = self._clock()
                    self._arrived[index] += 1
                    self._changed.notify_all()
        except (LostError, OSError) as error:
            self.fail(str(error))


class Trained(Protocol):
    """A model that a worker can train."""

    def iteration(self, exchange: Client) -> float:
        """Run forward and backward pass; return the computing time in seconds."""


class Ran(msgspec.Struct, frozen=True):
    """Record of a worker.

    ``ends_s`` (iterations + 1,): the start, then the end of each iteration. ``computed_s``
    (iterations,): computing time of each iteration. ``sent_bytes``: total bytes sent.
    """

    ends_s: list[float]
    computed_s: list[float]
    sent_bytes: int


def train(
    client: Client,
    trained: Trained,
    *,
    iterations: int,
    stopped: threading.Event | None = None,
    enough: Callable[[], None] = lambda: None,
    progress: Callable[[int, int], None] | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Ran:
    """Train ``iterations`` iterations; if ``stopped`` is given, continue until it is set.

    ``enough`` is called after ``iterations``.
    """
    ends_s, computed_s = [clock()], []
    while stopped is None or not stopped.is_set():
        computed_s.append(trained.iteration(client))
        ends_s.append(clock())
        if progress is not None and len(computed_s) <= iterations:
            progress(len(computed_s), iterations)
        if len(computed_s) == iterations:
            enough()
            if stopped is None:
                break
    sent = client.sent_bytes
    client.leave()
    return Ran(ends_s, computed_s, sent)
