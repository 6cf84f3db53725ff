"""One rank's part of messages and collectives, over torch.distributed."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING

from perfmodel.measuring.measurements import Operation
from perfmodel.measuring.network.plan import members_of
from perfmodel.measuring.torchrun import RankGroup

if TYPE_CHECKING:
    from torch import Tensor

OPERATIONS: tuple[Operation, ...] = (
    *("ping_pong", "stream", "messages", "duplex", "incast"),
    *("all_reduce", "all_gather", "reduce_scatter", "broadcast"),
)

VALUE_BYTES = 4
"""Size of a float32."""


class Operations:
    """A rank's part of operations among the first 2, 3, ... or all ranks of a group."""

    def __init__(self, group: RankGroup) -> None:
        self._group, self._distributed = group, group.distributed
        self._rank, ranks = group.place.rank, group.place.ranks
        self._buffers: dict[str, Tensor] = {}
        self._groups = {
            members: self._distributed.new_group(range(members))
            if members < ranks
            else self._distributed.group.WORLD
            for members in members_of("all_reduce", ranks)
        }
        self.supported = tuple(o for o in OPERATIONS if self._supports(o, ranks))

    def size(self, operation: Operation, size_bytes: int, ranks: int) -> int:
        """Return the bytes actually moved for a requested ``size_bytes``."""
        unit = VALUE_BYTES
        if operation in ("all_gather", "reduce_scatter"):
            unit *= ranks  # equal parts
        return max(-(-size_bytes // unit), 1) * unit

    def prepare(
        self, operation: Operation, size_bytes: int, ranks: int, count: int
    ) -> Callable[[], object]:
        """Do the preparation, which is not timed, and return this rank's part of the operation."""
        act = self._act(operation, size_bytes, ranks, count)
        if self._group.device.type == "cpu":
            return act
        synchronize = self._group.torch.cuda.synchronize

        def completed() -> None:
            act()
            synchronize(self._group.device)

        return completed

    def _act(
        self, operation: Operation, size_bytes: int, ranks: int, count: int
    ) -> Callable[[], object]:
        distributed, first = self._distributed, self._rank == 0
        buffer = self._buffer("whole", size_bytes)
        if operation == "ping_pong":
            steps = (distributed.send, distributed.recv)[:: 1 if first else -1]
            return lambda: [step(buffer, 1 - self._rank) for step in steps]
        if operation in ("stream", "messages"):
            step = distributed.send if first else distributed.recv
            return lambda: [step(buffer, 1 - self._rank) for _ in range(count)]
        if operation == "duplex":
            into = self._buffer("into", size_bytes)
            return lambda: self._batch([1 - self._rank], buffer, [1 - self._rank], into)
        if operation == "incast":
            # received data is not used, so all senders share one buffer
            senders, receivers = (list(range(1, ranks)), []) if first else ([], [0])
            return lambda: self._batch(receivers, buffer, senders, buffer)
        group = self._groups[ranks]
        if operation == "all_reduce":
            return lambda: distributed.all_reduce(buffer, group=group)
        if operation == "broadcast":
            return lambda: distributed.broadcast(buffer, 0, group=group)
        part = self._buffer("part", size_bytes // ranks)
        if operation == "all_gather":
            gather = _either(distributed, "all_gather_single", "all_gather_into_tensor")
            return lambda: gather(buffer, part, group=group)
        scatter = _either(distributed, "reduce_scatter_single", "reduce_scatter_tensor")
        return lambda: scatter(part, buffer, group=group)

    def _batch(self, receivers: list[int], out: Tensor, senders: list[int], into: Tensor) -> None:
        """Send ``out`` to ``receivers``, and receive from ``senders``, at the same time."""
        distributed = self._distributed
        batch = [distributed.P2POp(distributed.irecv, into, rank) for rank in senders]
        batch += [distributed.P2POp(distributed.isend, out, rank) for rank in receivers]
        for work in distributed.batch_isend_irecv(batch):
            work.wait()

    def _supports(self, operation: Operation, ranks: int) -> bool:
        """Return whether the backend supports an operation; the answer is the same on all ranks."""
        if operation not in ("all_reduce", "all_gather", "reduce_scatter", "broadcast"):
            return True
        try:
            self.prepare(operation, VALUE_BYTES * ranks, ranks, 1)()
        except (RuntimeError, NotImplementedError, AttributeError):
            return False
        return True

    def _buffer(self, name: str, size_bytes: int) -> Tensor:
        """Return a reused buffer of zeros, so that sums stay zero."""
        values, torch = size_bytes // VALUE_BYTES, self._group.torch
        buffer = self._buffers.get(name)
        if buffer is None or len(buffer) < values:
            buffer = torch.zeros(values, dtype=torch.float32, device=self._group.device)
            self._buffers[name] = buffer
        return buffer[:values]


def _either(module: ModuleType, name: str, former: str) -> Callable[..., object]:
    """Return a function of a module by its current or its former name."""
    function: Callable[..., object] = getattr(module, name, None) or getattr(module, former)
    return function
