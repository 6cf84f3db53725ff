"""Processes of a measurement: started by torchrun, and connected by torch.distributed.

torchrun and torch.distributed bring the processes together; nothing here listens on a port.
"""

from __future__ import annotations

import importlib
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from perfmodel.base.errors import InputError, PerfmodelError, unknown_name, whole_number

if TYPE_CHECKING:
    import torch
    from torch.distributed import ProcessGroup, Work

JSON = TypeVar("JSON")

Array = NDArray[np.float32]

BACKENDS = ("gloo", "nccl")

VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "GROUP_RANK")
"""Variables that torchrun sets for each process."""

NUMBERS = 4
"""Whole numbers in a message between rank 0 and another rank."""

WITHOUT_TORCH = (
    "this needs PyTorch: pip install 'perfmodel[torch]'; without it, run nccl-tests (mpirun -np 8 "
    "all_reduce_perf -b 8 -e 128M -f 4), the OSU micro-benchmarks (mpirun -np 2 osu_latency, then "
    "osu_bw and osu_allreduce), iperf3 (iperf3 -s, and on another node iperf3 -c NODE --json) or "
    "perftest (ib_write_bw, and on another node ib_write_bw NODE): perfmodel calibrate network "
    "FILE... reads their output"
)

_CONGESTION = Path("/proc/sys/net/ipv4/tcp_congestion_control")


class LostError(PerfmodelError):
    """Another process has disconnected, or a transfer has failed."""


class ProcessPlace(msgspec.Struct, frozen=True):
    """A process: its rank among ``ranks``, the number of its node, and its number on this node."""

    rank: int
    ranks: int
    node: int = 0
    local_rank: int = 0


def import_distributed() -> ModuleType:
    """Import torch.distributed."""
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    try:
        distributed = importlib.import_module("torch.distributed")
    except ImportError:
        raise InputError(WITHOUT_TORCH) from None
    if not distributed.is_available():
        raise InputError("this build of PyTorch has no torch.distributed")
    return distributed


def place(environment: Mapping[str, str] = os.environ) -> ProcessPlace | None:
    """Return the place of this process, from torchrun's variables; None without them."""
    if not all(name in environment for name in VARIABLES):
        return None
    for name in VARIABLES:
        if not environment[name].isdecimal():
            raise InputError(f"{name}: expected a whole number, got {environment[name]!r}")
    rank, ranks, local_rank, node = (int(environment[name]) for name in VARIABLES)
    whole_number("torchrun: number of processes", ranks, at_least=2)
    return ProcessPlace(rank, ranks, node, local_rank)


def launch(processes: int, words: Sequence[str]) -> int:
    """Run ``perfmodel WORDS`` in several processes on this machine; return their exit code.

    Raises
    ------
    InputError : PyTorch is not installed, or there is a single process.
    KeyboardInterrupt : the run was interrupted.
    """
    whole_number("--processes", processes, at_least=2)
    import_distributed()
    run = importlib.import_module("torch.distributed.run")
    multiprocessing = importlib.import_module("torch.distributed.elastic.multiprocessing")
    logging.getLogger("torch.distributed").setLevel(logging.CRITICAL)  # processes say what failed
    os.environ.setdefault("OMP_NUM_THREADS", str(max((os.cpu_count() or 1) // processes, 1)))
    arguments = ["--standalone", "--nproc-per-node", str(processes), "-m", "perfmodel", *words]
    try:
        run.main(arguments)
    except multiprocessing.errors.ChildFailedError as error:
        _, failure = error.get_first_failure()
        if failure.exitcode < 0:
            raise LostError(
                f"rank {failure.local_rank} was ended by signal {-failure.exitcode}"
            ) from None
        return int(failure.exitcode)
    except multiprocessing.SignalException:
        raise KeyboardInterrupt from None
    return 0


class RankGroup:
    """All processes of a run, connected.

    Attributes
    ----------
    place : this process.
    nodes : the node of each rank, numbered from 0, (ranks,).
    distributed, torch : the modules.
    device : the device whose memory the backend transfers.
    control : gloo group of all ranks, for messages in host memory.
    """

    def __init__(
        self,
        place: ProcessPlace,
        distributed: ModuleType,
        device: torch.device,
        control: ProcessGroup,
    ) -> None:
        self.place, self.distributed, self.device = place, distributed, device
        self.control = control
        self.torch = importlib.import_module("torch")
        self.nodes: tuple[int, ...] = tuple(self.share(place.node))

    def send(self, rank: int, *numbers: int) -> None:
        """Send up to :data:`NUMBERS` whole numbers to a rank."""
        filled = [*numbers, *[0] * (NUMBERS - len(numbers))]
        message = self.torch.tensor(filled, dtype=self.torch.int64)
        self.distributed.send(message, rank, group=self.control)

    def receive(self, rank: int) -> list[int]:
        """Return the next :data:`NUMBERS` whole numbers from a rank."""
        message = self.torch.zeros(NUMBERS, dtype=self.torch.int64)
        self.distributed.recv(message, rank, group=self.control)
        return [int(number) for number in message]

    def isend(self, rank: int, values: Array, tag: int) -> Work:
        """Begin to send an array in host memory; ``wait`` of the result ends with it."""
        tensor = self.torch.from_numpy(values)
        return self.distributed.isend(tensor, rank, group=self.control, tag=tag)

    def irecv(self, rank: int, into: Array, tag: int) -> Work:
        """Begin to receive an array in host memory; ``wait`` of the result ends with it."""
        tensor = self.torch.from_numpy(into)
        return self.distributed.irecv(tensor, rank, group=self.control, tag=tag)

    def share(self, value: JSON) -> list[JSON]:
        """All-gather JSON-like values, in rank order; all ranks must call it.

        They travel as JSON, not as pickles.
        """
        torch, ranks = self.torch, self.place.ranks
        data = np.frombuffer(msgspec.json.encode(value), np.uint8).copy()
        sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(ranks)]
        self.distributed.all_gather(sizes, torch.tensor([len(data)]), group=self.control)
        most = max(int(size) for size in sizes)
        padded = torch.from_numpy(np.pad(data, (0, most - len(data))))
        texts = [torch.zeros(most, dtype=torch.uint8) for _ in range(ranks)]
        self.distributed.all_gather(texts, padded, group=self.control)
        return [
            msgspec.json.decode(text.numpy()[: int(size)].tobytes())
            for text, size in zip(texts, sizes, strict=True)
        ]

    def agree(self, arguments: Mapping[str, str]) -> None:
        """Check that all ranks have the same arguments, by flag."""
        first, *others = self.share(dict(arguments))
        for rank, other in enumerate(others, start=1):
            for flag in {**first, **other}:
                here, there = first.get(flag, ""), other.get(flag, "")
                if here != there:
                    raise InputError(f"rank {rank} was given {flag} {there!r}, rank 0 {here!r}")


@contextmanager
def connected(place: ProcessPlace, backend: str, *, timeout_s: float) -> Iterator[RankGroup]:
    """Connect the processes of a run, until the end of the block.

    Raises
    ------
    InputError : PyTorch is not installed, or cannot use the backend here.
    LostError : a process did not connect, has disconnected, or took longer than ``timeout_s``.
    """
    if backend not in BACKENDS:
        raise unknown_name("--backend", backend, BACKENDS)
    distributed = import_distributed()
    torch = importlib.import_module("torch")
    if not getattr(distributed, f"is_{backend}_available")():
        raise InputError(f"--backend {backend}: this build of PyTorch does not support it")
    device = torch.device("cpu")
    if backend == "nccl":
        gpus = torch.cuda.device_count()
        if place.local_rank >= gpus:
            raise InputError(
                f"--backend nccl: needs one GPU per process; process {place.local_rank + 1} of "
                f"this node has none, GPUs: {gpus}"
            )
        device = torch.device("cuda", place.local_rank)
        torch.cuda.set_device(device)
    try:
        distributed.init_process_group(backend, timeout=timedelta(seconds=timeout_s))
        gloo = backend == "gloo"
        control = distributed.group.WORLD if gloo else distributed.new_group(backend="gloo")
        yield RankGroup(place, distributed, device, control)
    except RuntimeError as error:  # also the errors of torch.distributed
        text = str(error).strip().partition("\n")[0]
        raise LostError(f"rank {place.rank}: {text}") from error
    finally:
        if distributed.is_initialized():
            distributed.destroy_process_group()


def congestion() -> str:
    """Return the TCP congestion control of new sockets; empty if unknown."""
    return _CONGESTION.read_text(encoding="ascii").strip() if _CONGESTION.exists() else ""
