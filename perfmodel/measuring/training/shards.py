"""Logic of a parameter server, without sockets: apply pushes, count staleness, time answers."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import msgspec
import numpy as np

from perfmodel.architectures.ps.options import Options
from perfmodel.architectures.ps.placement import slices_of
from perfmodel.inputs.workload import Workload
from perfmodel.measuring.torchrun import Array

ELEMENT_BYTES = 4
"""Gradients are float32."""


class ShardPiece(msgspec.Struct, frozen=True):
    """Part of a layer on a server: elements ``first`` to ``last`` (exclusive).

    ``tensors`` is the number of tensors, or parts of tensors, in it.
    """

    layer: int
    server: int
    first: int
    last: int
    tensors: float

    @property
    def elements(self) -> int:
        """Number of elements."""
        return self.last - self.first


def pieces_of(workload: Workload, servers: int) -> list[ShardPiece]:
    """Place a workload's layers on servers as predictions do by default, in backward order.

    A layer's pieces have the sizes that predictions use, in whole elements. They are consecutive,
    since the network does not depend on which elements a piece holds.
    """
    slices = slices_of(workload, Options(servers=servers))
    end_bytes: dict[int, float] = {}
    pieces = []
    for layer, server, size, tensors in zip(
        slices.layer.tolist(),
        slices.server.tolist(),
        slices.bytes.tolist(),
        slices.tensors.tolist(),
        strict=True,
    ):
        start = end_bytes.get(layer, 0.0)
        end = end_bytes[layer] = start + size
        ends = (round(start / ELEMENT_BYTES), round(end / ELEMENT_BYTES))
        pieces.append(ShardPiece(layer, server, *ends, tensors))
    return pieces


class Reply(msgspec.Struct, frozen=True):
    """New parameters of a piece for a worker; the array is never modified afterwards."""

    worker: int
    piece: int
    values: Array


class Shard:
    """The pieces of one server.

    A push is applied immediately. It is answered once no active worker is more than ``bound``
    pushes of the same piece behind: 0 is bulk-synchronous, infinity asynchronous, and values in
    between stale-synchronous (Ho et al., NIPS 2013). The staleness of an update is the number of
    updates of the piece since the worker last received its parameters.
    """

    def __init__(
        self, sizes: Sequence[int], *, workers: int, bound: float, learning_rate: float
    ) -> None:
        self.values: list[Array] = [np.zeros(size, np.float32) for size in sizes]
        self.staleness: Counter[int] = Counter()
        self.updates = [0] * len(sizes)
        self._bound = bound
        self._rate = np.float32(learning_rate)
        self._training = set(range(workers))
        self._pushed = [[0] * workers for _ in sizes]
        self._read = [[0] * workers for _ in sizes]
        self._waiting: list[list[int]] = [[] for _ in sizes]

    def begin(self, piece: int, worker: int, values: Array) -> Reply:
        """Set the initial values of a piece."""
        self.values[piece] = values.copy()
        return Reply(worker, piece, self.values[piece])

    def push(self, piece: int, worker: int, gradient: Array, *, counted: bool) -> list[Reply]:
        """Apply a gradient, which is overwritten; return the answers that are due now.

        Its staleness is recorded if ``counted``.
        """
        np.multiply(gradient, self._rate, out=gradient)
        # a new array: the previous one may still be in transit to workers
        self.values[piece] = np.subtract(self.values[piece], gradient)
        if counted and len(self._training) == len(self._pushed[piece]):
            self.staleness[self.updates[piece] - self._read[piece][worker]] += 1
        self.updates[piece] += 1
        self._pushed[piece][worker] += 1
        self._waiting[piece].append(worker)
        return self._answers(piece)

    def leave(self, worker: int) -> list[Reply]:
        """Remove a worker, so that no other waits for it; return the answers that are due now."""
        self._training.discard(worker)
        return [reply for piece in range(len(self.values)) for reply in self._answers(piece)]

    def _answers(self, piece: int) -> list[Reply]:
        pushed, read = self._pushed[piece], self._read[piece]
        slowest = min((pushed[worker] for worker in self._training), default=math.inf)
        now = [w for w in self._waiting[piece] if slowest >= pushed[w] - self._bound]
        self._waiting[piece] = [w for w in self._waiting[piece] if w not in now]
        for worker in now:
            read[worker] = self.updates[piece]
        return [Reply(worker, piece, self.values[piece]) for worker in now]


class Applied(msgspec.Struct, frozen=True):
    """Median update time of the pieces of one shape."""

    tensors: float
    bytes: float
    seconds: float


IDENTIFIABLE = 2.0
"""Minimum ratio between the largest and smallest bytes per tensor among pieces; below it, the costs
per tensor and per byte cannot be told apart."""


def update_cost(applied: Sequence[Applied]) -> tuple[float | None, float | None]:
    """Return the cost of an update per tensor and per byte (s), both at least 0.

    It is a least-squares fit of relative errors; medians make it robust to interruptions. Returns
    (None, None) if the pieces are too similar.
    """
    timed = [a for a in applied if a.seconds > 0.0]
    per_tensor = [a.bytes / a.tensors for a in timed]
    if not per_tensor or max(per_tensor) < IDENTIFIABLE * min(per_tensor):
        return None, None
    from scipy.optimize import nnls

    matrix = np.array([(a.tensors / a.seconds, a.bytes / a.seconds) for a in timed])
    scale = matrix.max(axis=0)
    costs = nnls(matrix / scale, np.ones(len(timed)))[0] / scale
    return float(costs[0]), float(costs[1])
