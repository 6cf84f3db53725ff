"""Training of a real model or of emulated layers with PyTorch's DistributedDataParallel."""

from __future__ import annotations

import datetime as dt
import inspect
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from perfmodel.base.errors import InputError
from perfmodel.base.pytorch import import_torch
from perfmodel.inputs.job import Jitter
from perfmodel.inputs.workload import Workload, expanded
from perfmodel.measuring.processes.meeting import Meeting
from perfmodel.measuring.processes.sockets import LostError
from perfmodel.measuring.processes.torch_backend import choose_interface, store
from perfmodel.measuring.training.emulated import EmulatedDevice, EmulatedLoader, elements, factors
from perfmodel.measuring.training.worker import Ran
from perfmodel.profiler.training import TrainingSetup
from perfmodel.theory.buckets import DDP_BUCKET_BYTES, DDP_FIRST_BUCKET_BYTES

CONCURRENT = {"gloo": 2, "nccl": 1}
"""Concurrent collectives of a backend: gloo runs two threads per process group."""

ALGORITHM = {"gloo": "ring", "nccl": "auto"}
"""Algorithm of a backend, as an option of *allreduce*: gloo uses a ring."""

ALONE = 10
"""Iterations without communication that measure the computing time of a real model, after one
warm-up."""

_SYSTEM_CONGESTION = Path("/proc/sys/net/ipv4/tcp_congestion_control")


class Buckets(msgspec.Struct, frozen=True):
    """Caps of DDP's buckets, and the sizes of its actual buckets, in order."""

    cap_bytes: float
    first_bytes: float
    made_bytes: tuple[int, ...]


def caps(bucket_cap_mib: float | None) -> tuple[float, float]:
    """Return the caps in bytes of all buckets and of the first, which is smaller only by default.

    ``bucket_cap_mib`` None means DDP's default.
    """
    if bucket_cap_mib is None:
        return float(DDP_BUCKET_BYTES), float(DDP_FIRST_BUCKET_BYTES)
    cap_bytes = float(int(bucket_cap_mib * 2**20))
    return cap_bytes, cap_bytes


def version() -> str:
    """Return the version of torch."""
    return str(import_torch().__version__)


def check_congestion(name: str) -> None:
    """Check the congestion control: collectives open their own sockets, with the system's default.

    Raises
    ------
    InputError : it is not the system's default.
    """
    if name and (found := system_congestion()) != name:
        raise InputError(
            f"--congestion: collectives use the system's default, here {found or 'unknown'}; to "
            f"change it, as root: sysctl -w net.ipv4.tcp_congestion_control={name}"
        )


def system_congestion() -> str:
    """Return the congestion control of new sockets; empty if unknown."""
    return _SYSTEM_CONGESTION.read_text().strip() if _SYSTEM_CONGESTION.exists() else ""


@contextmanager
def process_group(meeting: Meeting, backend: str, timeout_s: float) -> Iterator[Any]:
    """Initialise torch.distributed among the processes of a run."""
    torch = import_torch()
    distributed, place = torch.distributed, meeting.place
    wait = dt.timedelta(seconds=timeout_s)
    choose_interface(backend, meeting.local_host)
    made, port = None, None
    host = meeting.rank_0_host
    if place.rank == 0:
        made = store(distributed, host, None, place.ranks, wait)
        port = made.port
    port = meeting.share(port)[0]
    try:
        if made is None:
            made = store(distributed, host, port, place.ranks, wait)
        distributed.init_process_group(
            backend, store=made, rank=place.rank, world_size=place.ranks, timeout=wait
        )
    except (RuntimeError, ValueError) as error:
        raise InputError(f"torch.distributed ({backend}): {str(error).splitlines()[0]}") from error
    try:
        yield distributed
    finally:
        distributed.destroy_process_group()


class DataParallel:
    """A model wrapped in DistributedDataParallel, and its iterations."""

    def __init__(self, module: Any, bucket_cap_mib: float | None, device: str = "cpu") -> None:
        torch = import_torch()
        self._caps = caps(bucket_cap_mib)
        more = {} if bucket_cap_mib is None else {"bucket_cap_mb": bucket_cap_mib}
        index = torch.device(device)
        ids = {"device_ids": [index]} if index.type == "cuda" else {}
        wrap = torch.nn.parallel.DistributedDataParallel
        # do not broadcast buffers (running means): predictions cover gradients only
        new = "forward_sync_buffers" in inspect.signature(wrap.__init__).parameters
        buffers = {"forward_sync_buffers" if new else "broadcast_buffers": False}
        self.model = wrap(module, **buffers, **more, **ids)

    def buckets(self) -> Buckets:
        """Return DDP's actual buckets; they are final after two iterations."""
        logged = self.model._get_ddp_logging_data()
        text = logged.get("rebuilt_bucket_sizes") or logged.get("bucket_sizes") or ""
        made = tuple(int(part) for part in text.replace(" ", "").split(",") if part)
        return Buckets(*self._caps, made)


class EmulatedSteps(DataParallel):
    """Iterations of emulated layers, with gradients of real sizes."""

    def __init__(
        self,
        workload: Workload,
        jitter: Jitter,
        seed: int,
        worker: int,
        *,
        bucket_cap_mib: float | None,
        device: EmulatedDevice,
    ) -> None:
        self._torch = import_torch()
        self._device, self._workload = device, workload
        self._factors = factors(jitter, seed, worker)
        self._loader = EmulatedLoader(workload.data_loading_s, device.clock())
        module = waiting_module(workload, self._compute)
        super().__init__(module, bucket_cap_mib)
        self._factor = 1.0

    def iteration(self) -> float:
        """Run forward pass, backward pass and optimizer; return the computing time in seconds."""
        device, before_s = self._device, self._device.busy_s
        self._factor = next(self._factors)
        device.compute(0.0, max(device.clock(), self._loader.ready_s()))
        self.model.zero_grad(set_to_none=True)
        output = self.model(self._torch.zeros(1, requires_grad=True))
        output.sum().backward()
        device.compute(self._workload.optimizer_s * self._factor, device.clock())
        return device.busy_s - before_s

    def _compute(self, seconds: float, first: bool) -> None:
        self._device.compute(seconds * self._factor)
        if first:
            self._loader.begun(self._device.free_s)


class RealSteps(DataParallel):
    """Iterations of a real model."""

    def __init__(self, training: TrainingSetup, bucket_cap_mib: float | None) -> None:
        super().__init__(training.model, bucket_cap_mib, training.device)
        self._training = training
        self._synchronise = (
            import_torch().cuda.synchronize
            if training.device.startswith("cuda")
            else lambda *_: None
        )
        self._alone_s = 0.0

    def measure_alone(self) -> None:
        """Measure iterations without communication; they do not change the parameters."""
        seconds = []
        with self.model.no_sync():
            for _ in range(1 + ALONE):
                begin_s = time.monotonic()
                self._pass()
                seconds.append(time.monotonic() - begin_s)
        begin_s = time.monotonic()
        self._training.optimizer.zero_grad(set_to_none=True)
        self._alone_s = sum(seconds[1:]) / ALONE + time.monotonic() - begin_s

    def iteration(self) -> float:
        """Run forward pass, backward pass and optimizer.

        Returns the computing time in seconds, with the optimizer but without communication.
        """
        self._pass()
        begin_s = time.monotonic()
        self._training.optimizer.step()
        self._synchronise(self._training.device)
        return self._alone_s + time.monotonic() - begin_s

    def _pass(self) -> None:
        batch = self._training.next_batch()
        self._training.optimizer.zero_grad(set_to_none=True)
        self._training.compute_loss(self.model, batch).backward()
        self._synchronise(self._training.device)


def train(
    distributed: Any,
    one: Callable[[], float],
    *,
    steps: int,
    warmup: int,
    time_limit_s: float | None,
    device: str = "cpu",
    progress: Callable[[int, int], None] | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Ran:
    """Train ``warmup`` + ``steps`` iterations, or as many as fit into the time limit by rank 0's
    estimate."""
    torch = import_torch()
    begin_s = clock()
    ends_s, last = [begin_s], warmup + steps
    computed_s: list[float] = []
    while len(computed_s) < last:
        if time_limit_s is not None and len(computed_s) == warmup:
            each_s = (clock() - begin_s) / warmup
            fit = min(steps, max(1, int((time_limit_s - (clock() - begin_s)) / each_s)))
            agreed = torch.tensor([fit], device=device)
            distributed.broadcast(agreed, src=0)
            last = warmup + int(agreed)
            ends_s[-1] = clock()
        try:
            computed_s.append(one())
        except RuntimeError as error:
            if "out of memory" in str(error):
                raise InputError("--batch-size: the model does not fit in memory") from error
            raise LostError(f"a collective failed: {str(error).splitlines()[0]}") from error
        ends_s.append(clock())
        if progress is not None:
            progress(len(computed_s), last)
    return Ran(ends_s, computed_s, 0)


def waiting_module(workload: Workload, compute: Callable[[float, bool], None]) -> Any:
    """Return a module whose layers wait, with parameters of the workload's sizes.

    ``compute`` is called with a layer's seconds, and with whether it is the first layer of the
    forward pass.
    """
    torch = import_torch()

    class Wait(torch.autograd.Function):  # type: ignore[misc, name-defined]
        """An emulated layer; its gradients are zeros."""

        @staticmethod
        def forward(ctx: Any, value: Any, layer: Any, *parameters: Any) -> Any:
            compute(layer.forward_s, layer.first)
            ctx.layer = layer
            return value.clone()

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            compute(ctx.layer.backward_s, False)
            return gradient, None, *ctx.layer.gradients

    class Layer(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self, forward_s: float, backward_s: float, sizes: Any, first: bool) -> None:
            super().__init__()
            self.forward_s, self.backward_s, self.first = forward_s, backward_s, first
            self.weights = torch.nn.ParameterList(torch.zeros(elements(size)) for size in sizes)
            # last tensor first, as in the backward pass
            self.backwards = list(self.weights)[::-1]
            self.gradients = [torch.zeros_like(weight) for weight in self.backwards]

        def forward(self, value: Any) -> Any:
            return Wait.apply(value, self, *self.backwards)

    return torch.nn.Sequential(
        *(
            Layer(layer.forward_s, layer.backward_s, layer.tensor_bytes[::-1], index == 0)
            for index, layer in enumerate(expanded(workload).layers)
        )
    )
