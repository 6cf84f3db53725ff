"""A whole workload from a model's name: its layers, and its timings at several batch sizes."""

from __future__ import annotations

import itertools
import os
import platform
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from perfmodel.base.errors import InputError, whole_number
from perfmodel.base.provenance import Source
from perfmodel.foreign.pytorch import Loss, check_device, import_torch
from perfmodel.inputs.profile import NoiseScale, Profile, Timing
from perfmodel.inputs.profile_files import joined
from perfmodel.profiler.averages import Average
from perfmodel.profiler.gradient_noise import measure_noise
from perfmodel.profiler.libraries import Built
from perfmodel.profiler.overhead import Overhead
from perfmodel.profiler.profiler import Profiler
from perfmodel.profiler.training import MakeBatch, TrainableModel, build, fitting, training

PAIRS = 20
"""Default number of pairs of steps for measuring the overhead."""

NOISY = 0.15
"""Coefficient of variation of the step time above which more steps are measured."""


class MeasuredBatch(NamedTuple):
    """Measurement of one batch size."""

    timing: Timing
    average: Average
    overhead: Overhead | None
    notes: tuple[str, ...]


class RecordedProfile(NamedTuple):
    """A workload, and the measurements behind its timings."""

    profile: Profile
    measured: tuple[MeasuredBatch, ...]


def record(
    model: str | Built,
    *,
    batch_sizes: Sequence[int] = (8,),
    accumulate: int = 1,
    input_shape: Sequence[int] | None = None,
    batch: str | MakeBatch | None = None,
    loss: str | Loss | None = None,
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
    noise_steps: int = 0,
    old: Profile | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> RecordedProfile:
    """Train a model for some steps at each batch size, and measure them.

    It has many parameters because it combines those of
    :func:`perfmodel.profiler.training.training` and :class:`Profiler`, and many lines because it
    describes them all.

    Parameters
    ----------
    model : its name, or the result of :func:`perfmodel.profiler.training.build`.
    batch_sizes : samples per step, over all its accumulated passes.
    accumulate : passes per update; the batch is split equally among them.
    input_shape, batch, loss, optimizer, device, dtype : see
        :func:`perfmodel.profiler.training.training`.
    steps, warmup : steps to measure, and unmeasured steps before them, at each batch size.
    max_steps : upper limit of measured steps if their standard deviation exceeds 15 %.
    threads : PyTorch threads on the CPU; None for PyTorch's default.
    name, title, device_name : written to the profile; None for the defaults of model and device.
    hardware : text for the source; empty for the processor's name as the system reports it.
    overhead_pairs : pairs of steps for measuring the profiling overhead; 0 skips this.
    noise_steps : estimates of the gradient noise scale of ``batch`` to average; 0 skips this.
    old : a workload of the same model, to which the timings are added.
    progress : called with the number of steps done and the total.

    Raises
    ------
    InputError : see :func:`perfmodel.profiler.training.training`; a batch size is not a multiple
        of ``accumulate``; ``old`` has different layers; ``noise_steps`` is given without ``batch``.
    """
    sizes = _checked_sizes(batch_sizes, accumulate)
    whole_number("overhead_pairs", overhead_pairs, at_least=0)
    check_device(device)
    if threads is not None:
        import_torch().set_num_threads(whole_number("threads", threads))
    if noise_steps and batch is None:
        raise InputError(
            "noise scale: random data do not have the noise of your data; give a function that "
            "makes batches (--batch module:function)"
        )
    built = build(model) if isinstance(model, str) else model
    setup = partial(
        training,
        built,
        input_shape=input_shape,
        batch=batch,
        loss=loss,
        optimizer=optimizer,
        device=device,
        dtype=dtype,
    )
    noise = None
    if noise_steps and sizes:
        noise = _noise(setup(batch_size=min(sizes) // accumulate), noise_steps)
    steps_each = warmup + steps + 2 * overhead_pairs
    profile, measured = old, []
    for i, size in enumerate(sizes):

        def advance(done: int, before: int = i * steps_each) -> None:
            if progress is not None:
                progress(before + min(done, steps_each), steps_each * len(sizes))

        trained = setup(batch_size=size // accumulate)
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
        profiler.noise_scale = noise
        with fitting(size, device):
            _measure(trained, profiler, steps, overhead_pairs, advance)
        new = profiler.profile()
        notes = tuple(profiler.notes)
        average = profiler.average()
        measured.append(MeasuredBatch(new.timings[0], average, profiler.overhead, notes))
        profile = new if profile is None else joined(profile, new, profile.name)
    if profile is None:
        raise InputError("batch_sizes: at least one is needed")
    return RecordedProfile(profile, tuple(measured))


def _checked_sizes(batch_sizes: Sequence[int], accumulate: int) -> tuple[int, ...]:
    """Return the distinct batch sizes, each a multiple of the number of passes."""
    whole_number("accumulate", accumulate)
    for size in batch_sizes:
        whole_number("batch_size", size)
        if size % accumulate:
            raise InputError(
                f"batch_size: {size} samples cannot be split evenly into {accumulate} passes"
            )
    return tuple(dict.fromkeys(batch_sizes))


def _noise(trained: TrainableModel, steps: int) -> NoiseScale:
    """Measure the gradient noise scale at the model's initial parameters."""

    def backward() -> None:
        trained.compute_loss(trained.model, trained.next_batch()).backward()

    where = f"initial parameters of {trained.built.name}"
    with fitting(trained.batch_size, trained.device):
        return measure_noise(
            trained.model,
            backward,
            batch_size=trained.batch_size,
            steps=steps,
            description=f"{trained.loss_name}, {trained.data}, {where}",
        )


def _measure(
    trained: TrainableModel,
    profiler: Profiler,
    steps: int,
    pairs: int,
    advance: Callable[[int], None],
) -> None:
    """Train until enough steps are measured, and then measure the overhead."""
    count = itertools.count(1)

    def step() -> None:
        trained.optimizer.zero_grad(set_to_none=True)
        for _ in range(profiler.accumulation or 1):
            with profiler.loading():
                batch = trained.load()
            with profiler.copying():
                batch = trained.copy(batch)
            trained.compute_loss(trained.model, batch).backward()
        trained.optimizer.step()

    with profiler:
        while not profiler.done:
            step()
            profiler.step()
            advance(next(count))
            if profiler.measured >= max(steps, 2):
                average = profiler.average()
                if average.step_std_s <= NOISY * average.step_s:
                    break
    if pairs:
        count = itertools.count(profiler.warmup + steps + 1)

        def plain_step() -> None:
            step()
            advance(next(count))

        profiler.measure_overhead(plain_step, pairs)


def _description(trained: TrainableModel, hardware: str) -> str:
    """Describe software, hardware and training, for the source of a timing."""
    torch = import_torch()
    if trained.device == "cpu":
        where = f"{hardware or _processor()}, {torch.get_num_threads()} threads"
    else:
        where = hardware or torch.cuda.get_device_name(trained.device)
    mixed = ", autocast to bf16" if trained.dtype == "bf16" else ""
    return (
        f"torch {torch.__version__}, {where}{mixed}, {trained.optimizer_name}, "
        f"{trained.loss_name}, {trained.data}"
    )


def _processor() -> str:
    """Return the processor's name, as the system reports it."""
    name = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        lines = cpuinfo.read_text(encoding="utf-8").splitlines()
        models = [line.partition(":")[2].strip() for line in lines if "model name" in line]
        name = models[0] if models else name
    return f"{name} ({os.cpu_count()} cores)"
