"""A whole workload from a model's name: its layers, and its timings at several batch sizes."""

from __future__ import annotations

import itertools
import os
import platform
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from perfmodel.base.errors import InputError, whole_number
from perfmodel.base.provenance import Source
from perfmodel.base.pytorch import check_device, import_torch
from perfmodel.inputs.profile import NoiseScale, Profile, Timing
from perfmodel.inputs.profile_files import joined
from perfmodel.profiler.averages import Average
from perfmodel.profiler.gradient_noise import measure_noise
from perfmodel.profiler.libraries import Built
from perfmodel.profiler.overhead import Overhead
from perfmodel.profiler.profiler import Profiler
from perfmodel.profiler.training import TrainingSetup, build, training

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
    noise_steps: int = 0,
    old: Profile | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> RecordedProfile:
    """Train a model for some steps at each batch size, and measure them.

    It has many parameters because it combines those of
    :func:`perfmodel.profiler.training.training` and :class:`Profiler`.

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
    _check_place(device, threads)
    built = build(model) if isinstance(model, str) else model
    plan = _Plan(
        built=built,
        passes=accumulate,
        steps=steps,
        warmup=warmup,
        overhead_pairs=whole_number("overhead_pairs", overhead_pairs, at_least=0),
        hardware=hardware,
        training={"input_shape": input_shape, "batch": batch, "loss": loss}
        | {"optimizer": optimizer, "device": device, "dtype": dtype},
        profiler={"device_name": device_name, "name": name or built.name, "title": title}
        | {"steps": max(steps, max_steps or steps)},
    )
    noise = _noise(plan, sizes, noise_steps)
    profile, found = old, []
    for i, size in enumerate(sizes):

        def advance(done: int, before: int = i * plan.all_steps) -> None:
            if progress is not None:
                progress(before + min(done, plan.all_steps), plan.all_steps * len(sizes))

        new, measured = plan.measure(size, noise, advance)
        profile = new if profile is None else joined(profile, new, profile.name)
        found.append(measured)
    if profile is None:
        raise InputError("batch_sizes: at least one is needed")
    return RecordedProfile(profile, tuple(found))


def _noise(plan: _Plan, sizes: Sequence[int], steps: int) -> NoiseScale | None:
    """Measure the gradient noise scale at the model's initial parameters; None for no steps.

    Its batches have the size of one pass at the smallest batch size.

    Raises
    ------
    InputError : the data are random; see also :func:`measure_noise`.
    """
    if not steps or not sizes:
        return None
    size = min(sizes) // plan.passes
    if plan.training["batch"] is None:
        raise InputError(
            "noise scale: random data do not have the noise of your data; give a function that "
            "makes batches (--batch module:function)"
        )
    trained = training(plan.built, batch_size=size, **plan.training)

    def backward() -> None:
        trained.compute_loss(trained.model, trained.next_batch()).backward()

    description = f"{trained.loss_name}, {trained.data}, initial parameters of {plan.built.name}"
    with _memory(size, trained.device):
        return measure_noise(
            trained.model, backward, batch_size=size, steps=steps, description=description
        )


def _check_place(device: str, threads: int | None) -> None:
    """Check the device, and set the number of CPU threads."""
    check_device(device)
    if threads is not None:
        import_torch().set_num_threads(whole_number("threads", threads))


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


class _Plan(NamedTuple):
    """What to measure at each batch size; ``training`` and ``profiler`` hold their arguments."""

    built: Built
    passes: int
    steps: int
    warmup: int
    overhead_pairs: int
    hardware: str
    training: dict[str, Any]
    profiler: dict[str, Any]

    @property
    def all_steps(self) -> int:
        """Number of steps at one batch size, measured or not."""
        return self.warmup + self.steps + 2 * self.overhead_pairs

    def measure(
        self, size: int, noise: NoiseScale | None, advance: Callable[[int], None]
    ) -> tuple[Profile, MeasuredBatch]:
        """Train with batches of this size; ``advance`` is called with the number of steps done."""
        trained = training(self.built, batch_size=size // self.passes, **self.training)
        profiler = Profiler(
            trained.model,
            trained.optimizer,
            batch_size=size,
            warmup=self.warmup,
            accumulation=self.passes,
            definition=Source("exact", self.built.text, url=self.built.url),
            description=_description(trained, self.hardware),
            **self.profiler,
        )
        profiler.noise_scale = noise
        with _memory(size, self.training["device"]):
            _run(trained, profiler, self.passes, self.steps, advance)
            if self.overhead_pairs:
                numbers = itertools.count(self.warmup + self.steps + 1)

                def step() -> None:
                    _step(trained, profiler, self.passes)
                    advance(next(numbers))

                profiler.measure_overhead(step, self.overhead_pairs)
        profile = profiler.profile()
        notes = tuple(profiler.notes)
        measured = MeasuredBatch(profile.timings[0], profiler.average(), profiler.overhead, notes)
        return profile, measured


def _run(
    trained: TrainingSetup,
    profiler: Profiler,
    passes: int,
    steps: int,
    advance: Callable[[int], None],
) -> None:
    """Train until enough steps are measured."""
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


def _step(trained: TrainingSetup, profiler: Profiler, passes: int) -> None:
    """Run one step of a plain training loop."""
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
    """Report running out of memory as an InputError of one line."""
    try:
        yield
    except RuntimeError as error:
        if "out of memory" in str(error) or "not enough memory" in str(error):
            raise InputError(
                f"batch_size: {batch_size} does not fit in the memory of {device}"
            ) from error
        raise


def _description(trained: TrainingSetup, hardware: str) -> str:
    """Describe software, hardware and training, for the source of a timing."""
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
    """Return the processor's name, as the system reports it."""
    name = platform.processor() or platform.machine()
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:  # noqa: PTH123
            models = [line.partition(":")[2].strip() for line in file if "model name" in line]
        name = models[0] if models else name
    except OSError:
        pass
    return f"{name} ({os.cpu_count()} cores)"
