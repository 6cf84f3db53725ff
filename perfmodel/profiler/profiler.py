"""Profiler that measures any training loop with two added lines, and writes a workload file."""

from __future__ import annotations

import datetime as dt
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from perfmodel.base.errors import InputError, whole_number
from perfmodel.base.provenance import Source
from perfmodel.foreign.pytorch import import_torch, is_tensor
from perfmodel.inputs import profile_files
from perfmodel.inputs.precisions import SHORT
from perfmodel.inputs.profile import Framework, NoiseScale, Profile, Timing
from perfmodel.profiler.averages import Average, average_of
from perfmodel.profiler.clocks import Clock, clock_for
from perfmodel.profiler.gradient_noise import measure_noise
from perfmodel.profiler.layers import Inspection, ObservedStep
from perfmodel.profiler.marks import Marks
from perfmodel.profiler.overhead import Overhead, overhead
from perfmodel.profiler.steps import Mark, MarkKind, StepTimes, parts

if TYPE_CHECKING:
    import torch
    from torch.nn import Module
    from torch.optim import Optimizer

T = TypeVar("T")


class Profiler:
    """Measures the steps of a training loop, and their parts.

    ::

        with Profiler(model, optimizer) as profiler:
            for inputs, targets in profiler.loader(batches):
                optimizer.zero_grad()
                loss_function(model(inputs), targets).backward()
                optimizer.step()
                profiler.step()
        profiler.save("mine.json")

    The first step finds the layers; it is slower and never counts. Hooks are removed once ``steps``
    steps have been measured or the block ends, even with an error. Models compiled by
    ``torch.compile`` cannot be measured: hooks do not see inside them. There are many parameters
    because most are written to the profile.

    Parameters
    ----------
    model : a ``torch.nn.Module``, on the device it is trained on.
    optimizer : a ``torch.optim.Optimizer``, or several.
    batch_size : samples per step, over all its accumulated passes. None: the first dimension of
        the first tensor passed to the model, times the number of passes.
    device_name : name of the device in the profile. None: *cpu*, or the name of the GPU.
    steps : number of steps to measure.
    warmup : number of steps before them, at least 1.
    accumulation : backward passes per update. None: as many as are observed; ``step()`` then
        ends a step only if the optimiser has run since the last one.
    name, title : name and title of the workload. None: the name of the model's class.
    definition : source of the layers. None: the model's class.
    description : text on hardware, software and data that opens the source of the timing.
    clock : None for the clock of the model's device.

    Raises
    ------
    InputError : PyTorch is missing, or an argument is invalid.
    """

    def __init__(
        self,
        model: Module,
        optimizer: Optimizer | Sequence[Optimizer] | None = None,
        *,
        batch_size: int | None = None,
        device_name: str | None = None,
        steps: int = 50,
        warmup: int = 3,
        accumulation: int | None = None,
        name: str | None = None,
        title: str = "",
        definition: Source | None = None,
        description: str = "",
        clock: Clock[Any] | None = None,
    ) -> None:
        torch = import_torch()
        if not isinstance(model, torch.nn.Module):
            raise InputError(f"model: expected a torch.nn.Module, got a {type(model).__name__}")
        first = next(model.parameters(), None)
        if first is None:
            raise InputError("model: has no parameters")
        self._optimizers = _optimizers(optimizer)
        for key, value in (("batch_size", batch_size), ("accumulation", accumulation)):
            if value is not None:
                whole_number(key, value)
        self.batch_size = batch_size
        self.accumulation = accumulation
        self.steps = whole_number("steps", steps, at_least=2)
        self.warmup = whole_number("warmup", warmup)
        self.device_name = device_name or _device_name(first.device)
        self.name = name or type(model).__name__.lower()
        self.title = title
        self.definition = definition or Source(
            "exact", f"layers and parameter tensors of {type(model).__qualname__}"
        )
        self.description = description
        self.overhead: Overhead | None = None
        """Overhead of measuring; None until it is measured."""
        self.noise_scale: NoiseScale | None = None
        """Gradient noise scale; None until it is measured."""
        self._model = model
        self._clock = clock or clock_for(first.device)
        self._marks = Marks(self._clock)
        self._inspection: Inspection | None = None
        self._observed: ObservedStep | None = None
        self._running = False
        self._done = 0
        self._waiting: deque[list[Mark]] = deque()
        self._read: list[tuple[list[Mark], list[float]]] = []

    def __enter__(self) -> Profiler:
        self._inspection = Inspection(self._model)
        self._running = True
        try:
            self._marks.watch_updates(self._optimizers)
            self._inspection.begin()
        except BaseException:
            self._stop()
            raise
        self._marks.add(MarkKind.STEP)
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    def step(self) -> None:
        """End a training step; call this at the end of each iteration."""
        if not self._running:
            return
        if self._optimizers and self.accumulation != 1 and not self._marks.updates:
            return  # one of several passes before an update
        self._marks.add(MarkKind.STEP)
        marks = self._marks.take()
        self._done += 1
        if self._inspection is not None:
            self._inspection.end()
            self._observed = self._inspection.result()
            self._inspection = None
            self._marks.watch(self._observed)
        elif self._done > self.warmup:
            self._waiting.append(marks)
            while self._waiting and self._clock.passed(self._waiting[0][-1][2]):
                self._read_one()
        if self.measured >= self.steps:
            self._stop()
        else:
            self._marks.add(MarkKind.STEP)

    @property
    def measured(self) -> int:
        """Number of steps measured so far."""
        return len(self._waiting) + len(self._read)

    @property
    def done(self) -> bool:
        """Whether all steps have been measured."""
        return self.measured >= self.steps

    def loading(self) -> AbstractContextManager[None]:
        """Return a context for loading data."""
        return self._span(MarkKind.LOAD)

    def copying(self) -> AbstractContextManager[None]:
        """Return a context for copies between host and device."""
        return self._span(MarkKind.COPY)

    def loader(self, batches: Iterable[T]) -> Iterator[T]:
        """Iterate over batches; the time to get each counts as loading."""
        iterator = iter(batches)
        while True:
            with self.loading():
                try:
                    batch = next(iterator)
                except StopIteration:
                    return
            yield batch

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Context for work outside training, such as validation, which is neither counted nor
        hooked."""
        with self._span(MarkKind.PAUSE):
            self._unhook()
            try:
                yield
            finally:
                if self._running:
                    self._hook()

    def measure_overhead(self, step: Callable[[], object], pairs: int = 20) -> Overhead:
        """Run the training step ``step`` alternately with and without hooks, after the block.

        Raises
        ------
        InputError : the block has not ended, or nothing was measured in it.
        """
        whole_number("pairs", pairs)
        if self._running or self._observed is None:
            raise InputError(
                "profiler: measure the overhead after the with block, which needs at least one step"
            )
        seconds: dict[bool, list[float]] = {True: [], False: []}
        for pair in range(pairs):
            for hooked in (pair % 2 == 0, pair % 2 != 0):
                seconds[hooked].append(self._timed(step, hooked))
        self.overhead = overhead(seconds[True], seconds[False])
        return self.overhead

    def measure_noise(
        self, backward: Callable[[], object], *, batch_size: int, **arguments: Any
    ) -> NoiseScale:
        """Measure the gradient noise scale and add it to the profile; no training step is counted.

        The arguments are those of :func:`perfmodel.profiler.gradient_noise.measure_noise`.

        Raises
        ------
        InputError : see there.
        """
        with self.paused():
            self.noise_scale = measure_noise(
                self._model, backward, batch_size=batch_size, **arguments
            )
        return self.noise_scale

    def average(self) -> Average:
        """Average over the measured steps, without the overhead if it was measured and is certain.

        Steps with an unusual number of samples or passes, such as an incomplete last batch, are
        left out.

        Raises
        ------
        InputError : fewer than two steps were measured.
        """
        return average_of(self._usual()).without(self.overhead)

    @property
    def notes(self) -> list[str]:
        """Remarks on the model and on assumptions, for the user."""
        notes, usual = [], self._usual()
        if self._observed is not None:
            notes += self._observed.notes
            batch_size, accumulation = self._batch(usual)
            if batch_size:
                notes += self._observed.uneven(batch_size, accumulation)
        left_out = len(self._read) - len(usual)
        if left_out:
            steps = f"step{'s' * (left_out > 1)}"
            notes.append(f"left out {left_out} {steps} with an unusual number of samples or passes")
        if self.batch_size is None:
            notes.append("batch size taken from the model's first argument")
        return notes

    def profile(self) -> Profile:
        """Return the measurements as a workload.

        Raises
        ------
        InputError : fewer than two steps were measured, or the batch size is unknown.
        """
        usual = self._usual()
        average, observed = average_of(usual).without(self.overhead), self._observed
        if observed is None:
            raise InputError("profiler: no step was measured")
        batch_size, accumulation = self._batch(usual)
        if not batch_size:
            raise InputError("batch_size: cannot be inferred from the model's arguments; give it")
        timing = Timing(
            device=self.device_name,
            batch_size=batch_size,
            precision=observed.precision,
            forward_s=average.forward_s,
            backward_s=average.backward_s,
            forward_std_s=average.forward_std_s,
            backward_std_s=average.backward_std_s,
            optimizer_s=average.optimizer_s,
            data_loading_s=average.loading_s,
            copy_s=average.copy_s,
            other_s=average.all_other_s,
            step_std_s=average.step_std_s,
            accumulation=accumulation,
            overhead_fraction=self.overhead.fraction if self.overhead else 0.0,
            framework=Framework("pytorch", version=str(import_torch().__version__)),
            source=Source("measured", self._text(average), date=dt.date.today().isoformat()),
        )
        return Profile(
            name=self.name,
            title=self.title,
            source=self.definition,
            layers=observed.profile_layers(batch_size, accumulation),
            timings=(timing,),
            noise_scale=self.noise_scale,
            optimizer_state_bytes_per_parameter_byte=state_fraction(observed, self._optimizers),
            buffer_bytes=buffer_bytes(self._model),
            activation_precision=observed.precision if observed.precision in SHORT else "float32",
        )

    def save(self, path: str | Path, *, append: bool = False) -> Profile:
        """Write :meth:`profile` to a workload file; ``append`` keeps the timings already there.

        Raises
        ------
        InputError : see :meth:`profile` and :func:`perfmodel.inputs.profile_files.save`.
        """
        return profile_files.save(path, self.profile(), append=append)

    @contextmanager
    def _span(self, kind: MarkKind) -> Iterator[None]:
        if not self._running:
            yield
            return
        self._marks.add(kind)
        try:
            yield
        finally:
            if self._running:
                self._marks.add(MarkKind.END)

    def _hook(self) -> None:
        self._marks.watch_updates(self._optimizers)
        if self._inspection is not None:
            self._inspection.paused = False
        elif self._observed is not None:
            self._marks.watch(self._observed)

    def _unhook(self) -> None:
        self._marks.remove()
        if self._inspection is not None:
            self._inspection.paused = True

    def _stop(self) -> None:
        """Remove all hooks; the current step is not measured."""
        self._running = False
        self._marks.remove()
        self._marks.take()
        if self._inspection is not None:
            self._inspection.end()
            self._inspection = None

    def _batch(self, usual: Sequence[StepTimes]) -> tuple[int, int]:
        """Return the samples of a step, 0 if unknown, and the passes that share them."""
        accumulation = self.accumulation or max(1, usual[0].backwards if usual else 1)
        samples = self._observed.samples if self._observed else 0
        return self.batch_size or samples * accumulation, accumulation

    def _read_one(self) -> None:
        """Read the marks of the first step that has not been read."""
        marks = self._waiting.popleft()
        self._read.append((marks, self._clock.seconds([mark for _, _, mark in marks])))

    def _usual(self) -> list[StepTimes]:
        """Return the measured steps with the most common numbers of samples and passes."""
        while self._waiting:
            self._read_one()
        layers = len(self._observed.layers) if self._observed else 0
        steps = [parts(marks, seconds, layers) for marks, seconds in self._read]
        if not steps:
            return []
        usual, _ = Counter((step.samples, step.backwards) for step in steps).most_common(1)[0]
        return [step for step in steps if (step.samples, step.backwards) == usual]

    def _timed(self, step: Callable[[], object], hooked: bool) -> float:
        """Return the seconds of a step, with or without the profiler's hooks and reading of
        marks."""
        if hooked:
            self._hook()
        try:
            start = self._clock.mark()
            step()
            if hooked:
                self._marks.take()
            end = self._clock.mark()
        finally:
            self._unhook()
        return self._clock.seconds([start, end])[1]

    def _text(self, average: Average) -> str:
        """Return the text of the timing's source."""
        text = f"{average.steps} steps after {self.warmup} warm-up steps"
        facts = [f"{self.description}, {text}" if self.description else text]
        if self.overhead is not None:
            facts.append(str(self.overhead))
        if average.other_s:
            facts.append(f"other: {average.places}")
        return "; ".join([*facts, *self.notes])


def state_fraction(observed: ObservedStep, optimizers: Sequence[Optimizer]) -> float:
    """Return the bytes of optimiser state, as a fraction of the parameters' bytes.

    Tensors without dimensions do not count, such as the number of steps.
    """
    parameters = [p for layer in observed.layers for _, p, _ in layer.parameters]
    state_bytes = sum(
        tensor.nbytes
        for optimizer in optimizers
        for parameter in parameters
        for tensor in optimizer.state.get(parameter, {}).values()
        if is_tensor(tensor) and tensor.dim() > 0
    )
    return float(state_bytes / sum(p.nbytes for p in parameters))


def buffer_bytes(model: Module) -> float:
    """Return the bytes of a model's buffers."""
    return float(sum(buffer.nbytes for buffer in model.buffers()))


def _optimizers(optimizer: Optimizer | Sequence[Optimizer] | None) -> Sequence[Optimizer]:
    if optimizer is None:
        return []
    optimizers = optimizer if isinstance(optimizer, list | tuple) else [optimizer]
    for item in optimizers:
        if not hasattr(item, "register_step_pre_hook"):
            raise InputError(
                f"optimizer: expected a torch.optim.Optimizer, got a {type(item).__name__}"
            )
    return optimizers


def _device_name(device: torch.device) -> str:
    if device.type != "cuda":
        return str(device.type)
    name = import_torch().cuda.get_device_name(device)
    return "-".join(name.lower().split())
