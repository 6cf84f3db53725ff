"""Training of a real model with PyTorch's DistributedDataParallel."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable
from types import ModuleType

import msgspec

from perfmodel.base.errors import InputError
from perfmodel.foreign.pytorch import import_torch
from perfmodel.measuring.torchrun import LostError
from perfmodel.measuring.training.worker import Ran
from perfmodel.profiler.training import TrainableModel
from perfmodel.theory.buckets import DDP_BUCKET_BYTES, DDP_FIRST_BUCKET_BYTES

CONCURRENT = {"gloo": 2, "nccl": 1}
"""Concurrent collectives of a backend: gloo runs two threads per process group."""

ALGORITHM = {"gloo": "ring", "nccl": "auto"}
"""Algorithm of a backend, as an option of *allreduce*: gloo uses a ring."""

ALONE = 10
"""Iterations without communication that measure the computing time of a real model, after one
warm-up."""


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


class DataParallel:
    """A model wrapped in DistributedDataParallel, and its iterations."""

    def __init__(self, training: TrainableModel, bucket_cap_mib: float | None) -> None:
        torch = import_torch()
        self._training, self._caps = training, caps(bucket_cap_mib)
        more = {} if bucket_cap_mib is None else {"bucket_cap_mb": bucket_cap_mib}
        on_gpu = training.device.startswith("cuda")
        ids = {"device_ids": [torch.device(training.device)]} if on_gpu else {}
        wrap = torch.nn.parallel.DistributedDataParallel
        # do not broadcast buffers (running means): predictions cover gradients only
        new = "forward_sync_buffers" in inspect.signature(wrap.__init__).parameters
        buffers = {"forward_sync_buffers" if new else "broadcast_buffers": False}
        self.model = wrap(training.model, **buffers, **more, **ids)
        self._synchronise = torch.cuda.synchronize if on_gpu else lambda *_: None
        self._alone_s = 0.0

    def buckets(self) -> Buckets:
        """Return DDP's actual buckets; they are final after two iterations."""
        logged = self.model._get_ddp_logging_data()
        text = logged.get("rebuilt_bucket_sizes") or logged.get("bucket_sizes") or ""
        sizes = tuple(int(part) for part in text.replace(" ", "").split(",") if part)
        return Buckets(*self._caps, sizes)

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
    distributed: ModuleType,
    iteration: Callable[[], float],
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
            warmup_s = clock() - begin_s
            fit = min(steps, max(1, int((time_limit_s - warmup_s) / (warmup_s / warmup))))
            agreed = torch.tensor([fit], device=device)
            distributed.broadcast(agreed, src=0)
            last = warmup + int(agreed)
            ends_s[-1] = clock()
        try:
            computed_s.append(iteration())
        except RuntimeError as error:
            if "out of memory" in str(error):
                raise InputError("--batch-size: the model does not fit in memory") from error
            raise LostError(f"a collective failed: {str(error).splitlines()[0]}") from error
        ends_s.append(clock())
        if progress is not None:
            progress(len(computed_s), last)
    return Ran(ends_s, computed_s, 0)
