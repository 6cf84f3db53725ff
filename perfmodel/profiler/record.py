"""A whole workload from the name of a model: its layers, and its timings at several batch sizes."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from perfmodel.base.errors import InputError, whole_number
from perfmodel.base.provenance import Source
from perfmodel.inputs.profile import Profile, Timing
from perfmodel.profiler.averages import Average
from perfmodel.profiler.libraries import Built, import_torch
from perfmodel.profiler.overhead import Overhead
from perfmodel.profiler.profiler import Profiler
from perfmodel.profiler.saving import joined
from perfmodel.profiler.training import Training, build, check_device, training

PAIRS = 20
"""Pairs of steps that the overhead is measured by."""

NOISY = 0.15
"""Standard deviation of the step, as a fraction of it, above which more steps are measured."""


class Measured(NamedTuple):
    """What was measured at one batch size."""

    timing: Timing
    average: Average
    overhead: Overhead | None
    notes: tuple[str, ...]


class Recorded(NamedTuple):
    """A workload, and what its measured timings are made of."""

    profile: Profile
    measured: tuple[Measured, ...]


def record(
    model: str | Built,
    *,
    batch_sizes: Sequence[int] = (8,),
    accumulate: int = 1,
    input_shape: Sequence[int] | None = None,
    batch: str | Callable[[int], Any] | None = None,
    loss: str | Callable[[Any, Any], Any] | None = None,
    optimizer: str = "sgd",
    device: str = "cpu",
    dtype: str = "float32",
    steps: int = 10,
    max_steps: int | None = None,
    warmup: int = 3,
    threads: int | None = None,
    name: str | None = None,
    title: str = "",
    device_name: str | None = None,
    hardware: str = "",
    overhead_pairs: int = PAIRS,
    old: Profile | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Recorded:
    """Train a model for some steps at each batch size, and measure them.

    Parameters
    ----------
    model : its name, or what :func:`perfmodel.profiler.training.build` made of it.
    batch_sizes : samples of a step, of all its accumulated passes.
    accumulate : passes before an update; each has its share of the batch.
    input_shape, batch, loss, optimizer, device, dtype : see
        :func:`perfmodel.profiler.training.training`.
    steps, warmup : measured, and run before, at each batch size.
    max_steps : measure up to so many where steps differ by more than 15 % (standard deviation).
    threads : of PyTorch on the CPU; None leaves them as they are.
    name, title, device_name : recorded; None for what the model and the device are called.
    hardware : text for the source; empty for the processor's name as the system has it.
    overhead_pairs : pairs of steps that the overhead is measured by; 0 does not measure it.
    old : a workload of the same model, to which the timings are added.
    progress : called with steps done and steps in all.

    Raises
    ------
    InputError : see :func:`perfmodel.profiler.training.training`; a batch size that the passes
        cannot share evenly; ``old`` is of another model.
    """
    whole_number("accumulate", accumulate)
    whole_number("overhead_pairs", overhead_pairs, at_least=0)
    for size in batch_sizes:
        whole_number("batch_size", size)
        if size % accumulate:
            raise InputError(
                f"batch_size: {size} samples cannot be shared evenly by {accumulate} passes"
            )
    batch_sizes = tuple(dict.fromkeys(batch_sizes))
    torch = import_torch()
    check_device(device)
    if threads is not None:
        torch.set_num_threads(whole_number("threads", threads))
    built = build(model) if isinstance(model, str) else model
    each = warmup + steps + 2 * overhead_pairs
    profile, found = old, []
    for i, size in enumerate(batch_sizes):

        def advance(done: int, base: int = i * each) -> None:
            if progress is not None:
                progress(base + min(done, each), each * len(batch_sizes))

        trained = training(
            built,
            batch_size=size // accumulate,
            input_shape=input_shape,
            batch=batch,
            loss=loss,
            optimizer=optimizer,
            device=device,
            dtype=dtype,
        )
        profiler = Profiler(
            trained.model,
            trained.optimizer,
            batch_size=size,
            device_name=device_name,
            steps=max(steps, max_steps or steps),
            warmup=warmup,
            accumulation=accumulate,
            name=name or built.name,
            title=title,
            definition=Source("exact", built.text, url=built.url),
            description=_description(trained, hardware),
        )
        with _memory(size, device):
            _run(trained, profiler, accumulate, steps, advance)
            if overhead_pairs:
                calls = iter(range(warmup + steps + 1, each + 1))

                def step(
                    trained: Training = trained,
                    profiler: Profiler = profiler,
                    calls: Iterator[int] = calls,
                    advance: Callable[[int], None] = advance,
                ) -> None:
                    _step(trained, profiler, accumulate)
                    advance(next(calls))

                profiler.measure_overhead(step, overhead_pairs)
        new = profiler.profile()
        profile = new if profile is None else joined(profile, new, profile.name)
        notes = tuple(profiler.notes)
        found.append(Measured(new.timings[0], profiler.average(), profiler.overhead, notes))
    if profile is None:
        raise InputError("batch_sizes: at least one is needed")
    return Recorded(profile, tuple(found))


def _run(
    trained: Training,
    profiler: Profiler,
    passes: int,
    steps: int,
    advance: Callable[[int], None],
) -> None:
    """Train until enough steps were measured."""
    with profiler:
        done = 0
        while not profiler.done:
            _step(trained, profiler, passes)
            profiler.step()
            done += 1
            advance(done)
            if profiler.measured >= steps and profiler.measured > 1:
                average = profiler.average()
                if average.step_std_s <= NOISY * average.step_s:
                    break


def _step(trained: Training, profiler: Profiler, passes: int) -> None:
    """One step of a plain training loop."""
    trained.optimizer.zero_grad(set_to_none=True)
    for _ in range(passes):
        with profiler.loading():
            batch = trained.load()
        with profiler.copying():
            batch = trained.copy(batch)
        trained.compute_loss(trained.model, batch).backward()
    trained.optimizer.step()


@contextmanager
def _memory(batch_size: int, device: str) -> Iterator[None]:
    """Turn a lack of memory into one line."""
    try:
        yield
    except RuntimeError as error:
        if "out of memory" in str(error) or "not enough memory" in str(error):
            raise InputError(
                f"batch_size: {batch_size} does not fit into the memory of {device}"
            ) from error
        raise


def _description(trained: Training, hardware: str) -> str:
    """Software, hardware and what was trained, for the source of a timing."""
    torch = import_torch()
    version = torch.__version__
    if trained.device == "cpu":
        cores = f"{torch.get_num_threads()} threads"
        where = f"torch {version}, {hardware or _processor()}, {cores}"
    else:
        where = f"torch {version}, {hardware or torch.cuda.get_device_name(trained.device)}"
    mixed = ", autocast to bf16" if trained.dtype == "bf16" else ""
    return f"{where}{mixed}, {trained.optimizer_name}, {trained.loss_name}, {trained.data}"


def _processor() -> str:
    """The processor's name, as far as the system tells it."""
    name = platform.processor() or platform.machine()
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:  # noqa: PTH123
            models = [line.partition(":")[2].strip() for line in file if "model name" in line]
        name = models[0] if models else name
    except OSError:
        pass
    return f"{name} ({os.cpu_count()} cores)"
