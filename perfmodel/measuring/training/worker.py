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

from perfmodel.measuring.torchrun import Group, LostError
from perfmodel.measuring.training.server import (
    LEAVE,
    PARAMETERS,
    PUSH,
    SET,
    first_line,
    receive_values,
    send_values,
)
from perfmodel.measuring.training.shards import ELEMENT_BYTES, Array, ShardPiece


class Outgoing(msgspec.Struct, frozen=True):
    """A message to a server: its header, and values unless the worker leaves."""

    header: tuple[int, ...]
    values: Array | None = None


class Client:
    """A worker's side of all servers, and its copy of the parameters.

    A layer's pieces are pushed in order, each to its server; per server, one thread sends and
    another receives.

    Attributes
    ----------
    done : whether this worker has done its iterations; pushes say so.
    stopped : whether all workers have.
    sent_bytes : bytes of gradients sent.
    """

    def __init__(self, group: Group, servers: Sequence[int], pieces: Sequence[ShardPiece]) -> None:
        self._group, self._servers, self._pieces = group, servers, pieces
        self._of_layer: dict[int, list[int]] = {}
        self._of_server: list[list[int]] = [[] for _ in servers]
        self._number = []
        for index, piece in enumerate(pieces):
            self._of_layer.setdefault(piece.layer, []).append(index)
            self._number.append(len(self._of_server[piece.server]))
            self._of_server[piece.server].append(index)
        self.parameters = {
            layer: np.zeros(max(pieces[index].last for index in indices), np.float32)
            for layer, indices in self._of_layer.items()
        }
        self.done = self.stopped = False
        self.sent_bytes = 0
        self._changed = threading.Condition()
        self._pushed = dict.fromkeys(self._of_layer, 0)
        self._sent, self._arrived = [0] * len(pieces), [0] * len(pieces)
        self._failure = ""
        self._outboxes: list[queue.SimpleQueue[Outgoing]] = [queue.SimpleQueue() for _ in servers]
        self._threads = [
            threading.Thread(target=call, args=(server,), daemon=True)
            for server in range(len(servers))
            for call in (self._send, self._receive)
        ]
        for thread in self._threads:
            thread.start()

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

    def wait(self, layer: int) -> bool:
        """Wait for the parameters that answer a layer's last push; return whether there was one.

        Raises
        ------
        LostError : they do not arrive in time, or a connection has ended.
        """
        indices = self._of_layer.get(layer, [])

        def complete() -> bool:
            return all(self._arrived[index] == self._sent[index] for index in indices)

        with self._changed:
            self._changed.wait_for(lambda: bool(self._failure) or complete())
            if not complete():
                raise LostError(self._failure)
        return any(self._sent[index] for index in indices)

    def leave(self) -> None:
        """Wait for all answers, then tell the servers that this worker leaves."""
        for layer in self._of_layer:
            self.wait(layer)
        for outbox in self._outboxes:
            outbox.put(Outgoing((LEAVE,)))
        for thread in self._threads:
            thread.join()

    def _put(self, kind: int, layer: int, values: Array, iteration: int = 0) -> None:
        for index in self._of_layer[layer]:
            self._sent[index] += 1
            piece = self._pieces[index]
            header = (kind, self._number[index], iteration, int(self.done))
            part = values[piece.first : piece.last]
            self._outboxes[piece.server].put(Outgoing(header, part))

    def _send(self, server: int) -> None:
        rank = self._servers[server]
        try:
            while (message := self._outboxes[server].get()).values is not None:
                send_values(self._group, rank, message.header, message.values)
            self._group.send(rank, *message.header)
        except RuntimeError as error:
            self._fail(f"rank {rank}: {first_line(error)}")

    def _receive(self, server: int) -> None:
        rank, of_server = self._servers[server], self._of_server[server]
        try:
            while (header := self._group.receive(rank))[0] == PARAMETERS:
                index = of_server[header[1]]
                piece = self._pieces[index]
                into = self.parameters[piece.layer][piece.first : piece.last]
                receive_values(self._group, rank, into)
                with self._changed:
                    self.stopped = self.stopped or bool(header[3])
                    self._arrived[index] += 1
                    self._changed.notify_all()
        except RuntimeError as error:
            self._fail(f"rank {rank}: {first_line(error)}")

    def _fail(self, text: str) -> None:
        """End all waits with an error."""
        with self._changed:
            self._failure = self._failure or text
            self._changed.notify_all()


class Trained(Protocol):
    """A model that a worker can train."""

    def iteration(self, client: Client) -> float:
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
    together: bool = True,
    time_limit_s: float = math.inf,
    progress: Callable[[int, int], None] | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Ran:
    """Train ``iterations`` iterations, or until ``time_limit_s``.

    Unless all workers stop after the same iteration (``together``, without a time limit), a worker
    continues until all have done their iterations.
    """
    ends_s: list[float] = [clock()]
    computed_s: list[float] = []
    fixed = together and time_limit_s == math.inf
    while not client.stopped and not (fixed and client.done):
        late = ends_s[-1] - ends_s[0] > time_limit_s
        client.done = late or len(computed_s) + 1 >= iterations
        computed_s.append(trained.iteration(client))
        ends_s.append(clock())
        if progress is not None and len(computed_s) <= iterations:
            progress(len(computed_s), iterations)
    sent = client.sent_bytes
    client.leave()
    return Ran(ends_s, computed_s, sent)
