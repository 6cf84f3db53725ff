"""A worker of a parameter server: pushes gradients, and waits for new parameters."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from perfmodel.measuring.torchrun import Array, RankGroup
from perfmodel.measuring.training.server import CONTROL, ITERATE, LAST, LEAVE, SET
from perfmodel.measuring.training.shards import ELEMENT_BYTES, ShardPiece

if TYPE_CHECKING:
    from torch.distributed import Work


class Client:
    """A worker's side of all servers, and its copy of the parameters.

    A layer's pieces are pushed in order, each to its server; transfers go on in the background.

    Attributes
    ----------
    parameters : the parameters of each layer that has any, (elements,).
    sent_bytes : bytes of gradients sent.
    """

    def __init__(
        self, group: RankGroup, servers: Sequence[int], pieces: Sequence[ShardPiece]
    ) -> None:
        self._group, self._servers = group, servers
        self._of_layer: dict[int, list[tuple[ShardPiece, int]]] = {}
        counts = [0] * len(servers)
        for piece in pieces:
            self._of_layer.setdefault(piece.layer, []).append((piece, counts[piece.server]))
            counts[piece.server] += 1
        self.parameters = {
            layer: np.zeros(max(piece.last for piece, _ in of_layer), np.float32)
            for layer, of_layer in self._of_layer.items()
        }
        self.sent_bytes = 0
        self._answers = np.zeros((len(servers), 1), np.float32)
        self._answering: list[Work] = []
        self._transfers: dict[int, list[Work]] = {}
        self._pushed: set[int] = set()

    def set(self, values: dict[int, Array]) -> None:
        """Set the initial parameters of all layers, for all workers."""
        self.begin(SET)
        for layer in self._of_layer:
            self._push(layer, values[layer])
        for layer in self._of_layer:
            self.wait(layer)
        self.all_done()

    def begin(self, intent: int) -> None:
        """Tell the servers what comes next."""
        word = np.array([intent], np.float32)
        works = [self._group.isend(rank, word, CONTROL) for rank in self._servers]
        if intent != LEAVE:
            self._answering = [
                self._group.irecv(rank, answer, CONTROL)
                for rank, answer in zip(self._servers, self._answers, strict=True)
            ]
        for work in works:
            work.wait()

    def all_done(self) -> bool:
        """Return whether all workers had done their steps when this iteration began."""
        for work in self._answering:
            work.wait()
        return bool(self._answers.any())

    def push(self, layer: int, gradient: Array) -> None:
        """Send a layer's gradient; its array must not change until the new parameters have
        arrived."""
        self._push(layer, gradient)
        self._pushed.add(layer)
        self.sent_bytes += len(gradient) * ELEMENT_BYTES

    def wait(self, layer: int) -> bool:
        """Wait for the parameters that answer a layer's last push; return whether there was one."""
        for work in self._transfers.pop(layer, ()):
            work.wait()
        return layer in self._pushed

    def leave(self) -> None:
        """Wait for all answers, then tell the servers that this worker leaves."""
        for layer in self._of_layer:
            self.wait(layer)
        self.begin(LEAVE)

    def _push(self, layer: int, values: Array) -> None:
        transfers = self._transfers[layer] = []
        for piece, number in self._of_layer[layer]:
            rank, part = self._servers[piece.server], slice(piece.first, piece.last)
            transfers.append(self._group.irecv(rank, self.parameters[layer][part], number))
            transfers.append(self._group.isend(rank, values[part], number))


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
    iteration: Callable[[Client], float],
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
    last = stopped = False
    while not (last if fixed else stopped):
        last = len(computed_s) + 1 >= iterations or ends_s[-1] - ends_s[0] > time_limit_s
        client.begin(LAST if last else ITERATE)
        computed_s.append(iteration(client))
        ends_s.append(clock())
        stopped = client.all_done()
        if progress is not None and len(computed_s) <= iterations:
            progress(len(computed_s), iterations)
    sent = client.sent_bytes
    client.leave()
    return Ran(ends_s, computed_s, sent)
