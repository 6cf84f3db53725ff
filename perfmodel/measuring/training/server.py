"""A parameter server: applies pushed gradients, and sends new parameters back.

Messages are gloo's, point to point. A worker begins each iteration with a message of the tag
:data:`CONTROL` that says whether it goes on, and whether it has done its steps; the server answers
whether all workers have. The tags of gradients and parameters are the numbers of pieces, so both
ends post what they will receive, and transfers begin at once.
"""

from __future__ import annotations

import queue
import statistics
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from perfmodel.measuring.torchrun import Array, LostError, RankGroup
from perfmodel.measuring.training.shards import ELEMENT_BYTES, Applied, Reply, Shard, ShardPiece

if TYPE_CHECKING:
    from torch.distributed import Work

CONTROL = 2**20
"""Tag of messages about iterations; tags of values are below."""

LEAVE, ITERATE, LAST, SET = range(4)
"""What a worker does next: nothing more; an iteration; one after which it has done its steps; set
the initial parameters."""


class ServerReport(msgspec.Struct, frozen=True):
    """Report of a server: number of updates by staleness, and the update times."""

    staleness: dict[int, int]
    applied: tuple[Applied, ...]


class Incoming(msgspec.Struct, frozen=True):
    """A gradient or initial values from a worker; its leave; or how its connection ended."""

    worker: int
    intent: int
    piece: int = 0
    iteration: int = 0
    values: Array | None = None
    error: str = ""


class ParameterServer:
    """Serves ``pieces`` to ``workers`` workers, the first ranks, until all have left.

    One thread per worker receives; a single thread applies updates one by one, in the order in
    which a worker's pieces arrive.
    """

    def __init__(
        self,
        group: RankGroup,
        pieces: Sequence[ShardPiece],
        shard: Shard,
        workers: int,
        warmup: int,
    ) -> None:
        self._group, self._pieces, self._shard = group, pieces, shard
        self._workers, self._warmup = workers, warmup
        self._inbox: queue.SimpleQueue[Incoming] = queue.SimpleQueue()
        self._sending: dict[tuple[int, int], tuple[Work, Array]] = {}
        self._done: set[int] = set()
        self._seconds: dict[tuple[float, int], list[float]] = {}

    def serve(self) -> ServerReport:
        """Apply pushes and answer them until all workers have left."""
        for worker in range(self._workers):
            threading.Thread(target=self._receive, args=(worker,), daemon=True).start()
        left = 0
        while left < self._workers:
            message = self._inbox.get()
            if message.error:
                raise LostError(message.error)
            left += message.values is None
            for reply in self._replies(message):
                work = self._group.isend(reply.worker, reply.values, reply.piece)
                self._sending[reply.worker, reply.piece] = work, reply.values
        for work, _ in self._sending.values():
            work.wait()
        applied = (
            Applied(tensors, size * ELEMENT_BYTES, statistics.median(seconds))
            for (tensors, size), seconds in self._seconds.items()
        )
        return ServerReport(dict(self._shard.staleness), tuple(applied))

    def _replies(self, message: Incoming) -> list[Reply]:
        if message.values is None:
            return self._shard.leave(message.worker)
        if message.intent == SET:  # no worker pushes before the worker that sets has all answers
            return [self._shard.begin(message.piece, message.worker, message.values)]
        piece, counted = self._pieces[message.piece], message.iteration >= self._warmup
        begin_s = time.perf_counter()
        replies = self._shard.push(message.piece, message.worker, message.values, counted=counted)
        seconds = time.perf_counter() - begin_s
        self._seconds.setdefault((piece.tensors, piece.elements), []).append(seconds)
        return replies

    def _receive(self, worker: int) -> None:
        # a worker pushes a piece again only after the answer, so one buffer per piece is enough
        buffers = [np.empty(piece.elements, np.float32) for piece in self._pieces]
        control, iteration = np.empty(1, np.float32), 0
        try:
            while True:
                self._group.irecv(worker, control, CONTROL).wait()
                intent = int(control[0])
                if intent in (LEAVE, LAST):
                    self._done.add(worker)
                if intent == LEAVE:
                    self._inbox.put(Incoming(worker, LEAVE))
                    return
                arriving = [self._group.irecv(worker, b, i) for i, b in enumerate(buffers)]
                all_done = np.array([len(self._done) == self._workers], np.float32)
                self._group.isend(worker, all_done, CONTROL).wait()
                for index, work in enumerate(arriving):
                    work.wait()
                    values = buffers[index]
                    self._inbox.put(Incoming(worker, intent, index, iteration, values))
                iteration += intent != SET
        except RuntimeError as error:
            text = str(error).strip().partition("\n")[0]
            self._inbox.put(Incoming(worker, LEAVE, error=f"rank {worker}: {text}"))
