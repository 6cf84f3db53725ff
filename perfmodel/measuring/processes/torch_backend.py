"""Operations of ``torch.distributed``: messages and collectives of gloo or NCCL."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from perfmodel.base.errors import InputError
from perfmodel.measuring.measurements import Operation
from perfmodel.measuring.network.plan import members_of
from perfmodel.measuring.processes.group import Group
from perfmodel.measuring.processes.interfaces import interface_of
from perfmodel.measuring.processes.sockets import LostError

OPERATIONS: tuple[Operation, ...] = (
    *("ping_pong", "all_reduce", "all_gather", "reduce_scatter", "broadcast"),
)
VALUE_BYTES = 4
"""Size of a float32."""

INTERFACES = {"gloo": "GLOO_SOCKET_IFNAME", "nccl": "NCCL_SOCKET_IFNAME"}
"""Environment variables that select the network interface of a backend."""


class Torch:
    """One rank's part of a backend's operations, among the first 2, 3, ... or all ranks.

    Raises
    ------
    InputError : torch is not installed, or cannot use the backend here.
    LostError : the ranks cannot connect.
    """

    def __init__(self, backend: str, group: Group) -> None:
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
        try:
            import torch
            import torch.distributed as dist
        except ImportError:
            raise InputError(
                f"--backend {backend}: needs torch: pip install 'perfmodel[torch]'"
            ) from None
        self._dist, self._torch, self._backend = dist, torch, backend
        if not getattr(dist, f"is_{backend}_available")():
            raise InputError(f"--backend {backend}: this build of torch does not support it")
        if dist.is_initialized():
            raise InputError(f"--backend {backend}: torch.distributed is already initialised")
        self.rank, ranks = group.place.rank, group.place.ranks
        self._device = torch.device("cpu")
        if backend == "nccl":
            self._device = torch.device("cuda", _device_index(torch, group))
            torch.cuda.set_device(self._device)
        choose_interface(backend, group.local_host)
        self._buffers: dict[str, Any] = {}
        timeout = timedelta(seconds=group.patience_s)
        try:
            store = _store(dist, group, timeout)
            dist.init_process_group(
                backend, store=store, rank=self.rank, world_size=ranks, timeout=timeout
            )
            self._groups = {
                members: dist.new_group(range(members)) if members < ranks else dist.group.WORLD
                for members in members_of("all_reduce", ranks)
            }
        except RuntimeError as error:
            raise self._failed(error) from None
        self.operations = tuple(one for one in OPERATIONS if self._has(one, ranks))

    def size(self, operation: Operation, size_bytes: int, ranks: int) -> int:
        """Return the bytes actually moved for a requested ``size_bytes``."""
        unit = VALUE_BYTES
        if operation in ("all_gather", "reduce_scatter"):
            unit *= ranks  # equal parts
        return max(-(-size_bytes // unit), 1) * unit

    def prepare(
        self, operation: Operation, size_bytes: int, ranks: int, count: int
    ) -> Callable[[], None]:
        """Do the preparation, which is not timed, and return this rank's part of the operation."""
        dist, whole = self._dist, self._buffer("whole", size_bytes)
        if operation == "ping_pong":
            return self._guarded(lambda: self._ping_pong(whole))
        group = self._groups[ranks]
        if operation == "all_reduce":
            return self._guarded(lambda: dist.all_reduce(whole, group=group))
        if operation == "broadcast":
            return self._guarded(lambda: dist.broadcast(whole, 0, group=group))
        part = self._buffer("part", size_bytes // ranks)
        if operation == "all_gather":
            gather = _either(dist, "all_gather_single", "all_gather_into_tensor")
            return self._guarded(lambda: gather(whole, part, group=group))
        scatter = _either(dist, "reduce_scatter_single", "reduce_scatter_tensor")
        return self._guarded(lambda: scatter(part, whole, group=group))

    def close(self) -> None:
        """Leave the process group."""
        if self._dist.is_initialized():
            self._dist.destroy_process_group()

    def _ping_pong(self, whole: Any) -> None:
        steps = (self._dist.send, self._dist.recv)
        for step in steps if self.rank == 0 else reversed(steps):
            step(whole, 1 - self.rank)

    def _guarded(self, act: Callable[[], Any]) -> Callable[[], None]:
        """Run to completion, on the device too, and reduce errors to one line."""

        def guarded() -> None:
            try:
                act()
                if self._backend == "nccl":
                    self._torch.cuda.synchronize(self._device)
            except RuntimeError as error:
                raise self._failed(error) from None

        return guarded

    def _failed(self, error: RuntimeError) -> LostError:
        return LostError(f"{self._backend}: {str(error).strip().splitlines()[0]}")

    def _has(self, operation: Operation, ranks: int) -> bool:
        """Return whether the backend supports an operation; the answer is the same on all ranks."""
        if operation == "ping_pong":
            return True
        try:
            self.prepare(operation, VALUE_BYTES * ranks, ranks, 1)()
        except (LostError, NotImplementedError, AttributeError):
            return False
        return True

    def _buffer(self, name: str, size_bytes: int) -> Any:
        """Return a reused buffer of zeros, so that sums stay zero."""
        values = size_bytes // VALUE_BYTES
        kept = self._buffers.get(name)
        if kept is None or len(kept) < values:
            kept = self._torch.empty(values, dtype=self._torch.float32, device=self._device)
            self._buffers[name] = kept.fill_(0.0)
        return self._buffers[name][:values]


def _either(dist: Any, name: str, former: str) -> Any:
    """Return a torch function by its current or its former name."""
    return getattr(dist, name, None) or getattr(dist, former)


def _store(dist: Any, group: Group, timeout: timedelta) -> Any:
    """Return the store of the ranks' addresses, which rank 0 serves on a free port."""
    place = group.place
    if place.rank:
        group.send(0, "here")  # report a failure before the others wait for the store
        return store(dist, group.rank_0_host, group.receive(0), place.ranks, timeout)
    for rank in range(1, place.ranks):
        group.receive(rank)
    made = store(dist, group.rank_0_host, None, place.ranks, timeout)
    for rank in range(1, place.ranks):
        group.send(rank, made.port)
    return made


def store(dist: Any, host: str, port: int | None, ranks: int, timeout: timedelta) -> Any:
    """Return the TCPStore that rank 0 serves at ``host`` for all ranks; start it if ``port`` is
    None.

    A new store listens on this address only. torch's default is to listen on all addresses.
    """
    if port is not None:
        return dist.TCPStore(host, port, ranks, is_master=False, timeout=timeout)
    with socket.create_server((host, 0), family=_family(host)) as listening:
        port = listening.getsockname()[1]
        made = dist.TCPStore(
            host, port, ranks, is_master=True, wait_for_workers=False, timeout=timeout,
            # the libuv server of older releases does not accept a bound socket
            master_listen_fd=listening.fileno(), use_libuv=False,
        )  # fmt: skip
        listening.detach()  # now owned by the store
    return made


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def _device_index(torch: Any, group: Group) -> int:
    """Return the GPU of this rank: each rank of a node takes its own."""
    own = group.place.rank
    index = group.nodes[:own].count(group.nodes[own])
    found = torch.cuda.device_count()
    if index >= found:
        raise InputError(
            f"--backend nccl: needs one GPU per rank; rank {own} is number {index + 1} on its "
            f"node, GPUs found: {found}"
        )
    return index


def choose_interface(backend: str, host: str) -> None:
    """Make a backend use the interface with address ``host``, unless the user has set one.

    By default gloo uses the interface that the host name resolves to, often the loopback.
    """
    name = interface_of(host)
    if name:
        os.environ.setdefault(INTERFACES[backend], name)
