"""Measure how long every layer of a PyTorch model takes in one training step.

A *layer* here is a module that owns trainable parameters. Everything else a model does, such as
activations, pooling, additions and the loss, is folded into the layer before it, so that the
times of all layers add up to the whole forward and the whole backward pass.

Forward boundaries are taken when a layer is about to run. Backward boundaries are taken when the
last gradient of a layer is complete, which is also the moment at which a data-parallel worker
could start to send it.

PyTorch is imported on first use only. Times are in seconds, sizes in bytes.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import importlib
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from perfmodel.errors import InputError, whole_number

__all__ = ["layers", "profile", "step_times"]


def layers(model: Any, sample: Any) -> list[dict[str, Any]]:
    """Describe the layers of a model in the order in which a forward pass runs them.

    One forward pass is run without gradients, in the mode (training or evaluation) the model is
    in; buffers such as the running means of batch normalisation are restored afterwards.

    Parameters
    ----------
    model : a ``torch.nn.Module``.
    sample : an input tensor of shape (batch, ...), or a tuple of such tensors.

    Returns
    -------
    One dictionary per layer with the keys

    - ``name``: the module's name in the model,
    - ``kind``: the module's class in lower case, such as ``conv2d``,
    - ``tensors``: a list of ``{"name", "bytes"}``, one per trainable parameter in the order of
      definition; a parameter used by several modules is listed with the first of them,
    - ``forward_flop``: operations per sample. Convolutions and linear layers count two per
      multiply-add and ignore the bias; every other kind counts two per element of its output,
    - ``activation_bytes``: bytes per sample of the tensors the layer makes, including those of
      parameterless modules folded into it and those made by plain functions when a later layer
      takes them in. Work done in place adds nothing.

    Raises
    ------
    InputError : PyTorch is missing, or the model runs no layer with trainable parameters.
    """
    _torch()
    batch = _batch_size(sample)
    return [
        {
            "name": layer.name,
            "kind": type(layer.module).__name__.lower(),
            "tensors": [
                {"name": name, "bytes": int(parameter.numel() * parameter.element_size())}
                for name, parameter in layer.parameters
            ],
            "forward_flop": layer.flop // batch,
            "activation_bytes": layer.activation_bytes // batch,
        }
        for layer in _find_layers(model, sample)
    ]


def profile(
    model: Any,
    inputs: Any,
    targets: Any,
    *,
    loss: Callable[[Any, Any], Any],
    optimizer: Any,
    batch_size: int,
    device_name: str,
    steps: int = 10,
    warmup: int = 3,
    max_steps: int | None = None,
    max_relative_std: float = 0.15,
    data_loading_s: float = 0.0,
    description: str = "",
) -> dict[str, Any]:
    """Time the layers of a model over several training steps on the CPU.

    The model is really trained: its parameters and buffers, and the state of the optimizer,
    change. Every hook installed on the model is removed before returning, also after an error.

    Parameters
    ----------
    model : a ``torch.nn.Module`` whose parameters are on the CPU, in training mode.
    inputs : the batch, a tensor of shape (batch_size, ...) or a tuple of such tensors.
    targets : the second argument of ``loss``.
    loss : called as ``loss(model(inputs), targets)``; returns a scalar tensor.
    optimizer : a ``torch.optim.Optimizer`` of the model's parameters.
    batch_size : samples in ``inputs``; recorded, and checked against its first dimension.
    device_name : recorded as the name of the device.
    steps : measured steps, at least 2.
    warmup : steps run before measuring.
    max_steps : if the standard deviation of the step time exceeds ``max_relative_std`` times its
        mean after ``steps`` steps, measure on until it does not or until this many steps are
        done. None means no more than ``steps``.
    data_loading_s : recorded as the seconds it takes to load one batch.
    description : text on software, hardware and data that opens the source of the timing.

    Returns
    -------
    A timing with the keys ``device``, ``precision`` (type of the parameters), ``batch_size``,
    ``forward_s``, ``forward_std_s``, ``backward_s``, ``backward_std_s`` (lists with one value in
    seconds per layer, in the order of :func:`layers`: mean and standard deviation over all
    measured steps), ``optimizer_s`` (update and clearing of the gradients), ``data_loading_s``
    and ``source``. A layer whose gradients never become ready has a backward time of zero.

    Raises
    ------
    InputError : PyTorch is missing, a number is out of range, the batch size does not match the
        inputs, the model is not on the CPU, or it runs no layer with trainable parameters.
    """
    _torch()
    whole_number("steps", steps, at_least=2)
    whole_number("warmup", warmup, at_least=0)
    if _batch_size(inputs) != batch_size:
        raise InputError(f"batch_size is {batch_size}, but the inputs hold {_batch_size(inputs)}")
    clock = _clock_for(model)
    found = _find_layers(model, inputs)
    limit = max(steps, max_steps or steps)
    rows: list[_StepTimes] = []
    with _boundaries(found, clock) as marks:
        for index in range(warmup + limit):
            row = _timed_step(model, inputs, targets, loss, optimizer, clock, marks, len(found))
            if index >= warmup:
                rows.append(row)
            if len(rows) >= steps:
                totals = [row.total for row in rows]
                if statistics.stdev(totals) <= max_relative_std * statistics.fmean(totals):
                    break
    forward = list(zip(*(row.forward for row in rows), strict=True))
    backward = list(zip(*(row.backward for row in rows), strict=True))
    counted = f"{len(rows)} steps after {warmup} warm-up steps"
    return {
        "device": device_name,
        "precision": str(found[0].parameters[0][1].dtype).removeprefix("torch."),
        "batch_size": batch_size,
        "forward_s": [statistics.fmean(times) for times in forward],
        "forward_std_s": [statistics.stdev(times) for times in forward],
        "backward_s": [statistics.fmean(times) for times in backward],
        "backward_std_s": [statistics.stdev(times) for times in backward],
        "optimizer_s": statistics.fmean(row.optimizer for row in rows),
        "data_loading_s": data_loading_s,
        "source": {
            "kind": "measured",
            "text": f"{description}, {counted}" if description else counted,
            "date": dt.date.today().isoformat(),
        },
    }


def step_times(
    model: Any,
    inputs: Any,
    targets: Any,
    *,
    loss: Callable[[Any, Any], Any],
    optimizer: Any,
    steps: int = 10,
    warmup: int = 3,
) -> list[float]:
    """Time whole training steps without any hook, to check the sum of the parts against.

    The arguments are those of :func:`profile`.

    Returns
    -------
    The seconds of each of the ``steps`` measured steps: forward pass, loss, backward pass, update
    and clearing of the gradients.

    Raises
    ------
    InputError : PyTorch is missing or the model is not on the CPU.
    """
    _torch()
    clock = _clock_for(model)
    times = []
    for _ in range(warmup + steps):
        row = _timed_step(model, inputs, targets, loss, optimizer, clock, _Marks(), 0)
        times.append(row.total)
    return times[warmup:]


# --- clocks ------------------------------------------------------------------------------------


class _CpuClock:
    """Marks points in time on the host.

    A clock for another device has the same three methods; on a GPU a mark would be an event in
    the stream and ``finish`` would wait for the device.
    """

    def mark(self) -> Any:
        """Return a mark of the present moment."""
        return time.perf_counter_ns()

    def finish(self) -> None:
        """Wait until all marks can be read."""

    def seconds(self, start: Any, end: Any) -> float:
        """Return the seconds from one mark to another."""
        return float(end - start) * 1e-9


def _clock_for(model: Any) -> _CpuClock:
    devices = {str(parameter.device.type) for parameter in model.parameters()}
    if devices - {"cpu"}:
        raise InputError(f"profiling works on the CPU only, the model is on {sorted(devices)}")
    return _CpuClock()


# --- one step ----------------------------------------------------------------------------------


@dataclass
class _Marks:
    """Boundaries seen during one step; layers are given by their index."""

    started: list[tuple[int, Any]] = field(default_factory=list)
    ready: dict[int, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class _StepTimes:
    """Seconds of one step; forward and backward have one value per layer."""

    forward: list[float]
    backward: list[float]
    optimizer: float
    total: float


def _timed_step(
    model: Any,
    inputs: Any,
    targets: Any,
    loss: Callable[[Any, Any], Any],
    optimizer: Any,
    clock: _CpuClock,
    marks: _Marks,
    count: int,
) -> _StepTimes:
    """Run one step and share its time among ``count`` layers (none if ``count`` is 0)."""
    marks.started.clear()
    marks.ready.clear()
    begin = clock.mark()
    value = loss(_call(model, inputs), targets)
    turn = clock.mark()
    value.backward()
    done = clock.mark()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    end = clock.mark()
    clock.finish()

    # A layer lasts from its start to the start of the next one; the first also takes what comes
    # before it. A layer that runs several times gets the sum.
    forward = [0.0] * count
    bounds = [begin, *(mark for _, mark in marks.started[1:]), turn]
    for (index, _), start, stop in zip(marks.started, bounds, bounds[1:], strict=False):
        forward[index] += clock.seconds(start, stop)

    # Layers become ready in the order in which the dictionary was last written (see _boundaries);
    # the last one also takes what remains of the pass.
    backward = [0.0] * count
    previous = turn
    for position, (index, mark) in enumerate(marks.ready.items(), start=1):
        stop = done if position == len(marks.ready) else mark
        backward[index] = clock.seconds(previous, stop)
        previous = stop
    return _StepTimes(forward, backward, clock.seconds(done, end), clock.seconds(begin, end))


@contextlib.contextmanager
def _boundaries(found: Sequence[_Layer], clock: _CpuClock) -> Iterator[_Marks]:
    """Install the hooks that fill a :class:`_Marks`; remove them on leaving."""
    marks = _Marks()

    def start_hook(index: int) -> Callable[[Any, Any], None]:
        def hook(_module: Any, _inputs: Any) -> None:
            marks.started.append((index, clock.mark()))

        return hook

    def ready_hook(index: int) -> Callable[[Any], None]:
        def hook(_parameter: Any) -> None:
            marks.ready.pop(index, None)  # so that the entry moves to the end
            marks.ready[index] = clock.mark()

        return hook

    with contextlib.ExitStack() as stack:
        for index, layer in enumerate(found):
            handle = layer.module.register_forward_pre_hook(start_hook(index))
            stack.callback(handle.remove)
            for _, parameter in layer.parameters:
                handle = parameter.register_post_accumulate_grad_hook(ready_hook(index))
                stack.callback(handle.remove)
        yield marks


# --- layers ------------------------------------------------------------------------------------


@dataclass
class _Layer:
    """A module with trainable parameters of its own; counts are for the whole sample batch."""

    name: str
    module: Any
    parameters: list[tuple[str, Any]]
    flop: int = 0
    activation_bytes: int = 0


def _find_layers(model: Any, sample: Any) -> list[_Layer]:
    """Run one forward pass and return the layers it used, in order of their first call."""
    torch = _torch()
    names = {module: name for name, module in model.named_modules()}
    found: dict[Any, _Layer] = {}
    taken: set[int] = set()
    # Tensors are kept alive during the pass so that no storage address is used twice.
    alive: list[Any] = _tensors(sample)
    known = {_storage(tensor) for tensor in alive}
    current: list[_Layer] = []

    def add_new(tensors: list[Any]) -> None:
        for tensor in tensors:
            if _storage(tensor) not in known:
                known.add(_storage(tensor))
                alive.append(tensor)
                if current:
                    current[0].activation_bytes += tensor.numel() * tensor.element_size()

    def before(module: Any, inputs: Any) -> None:
        add_new(_tensors(inputs))
        if module not in found:
            prefix = f"{names[module]}." if names[module] else ""
            own = [
                (prefix + name, parameter)
                for name, parameter in module.named_parameters(recurse=False)
                if parameter.requires_grad and id(parameter) not in taken
            ]
            if not own:
                return
            taken.update(id(parameter) for _, parameter in own)
            found[module] = _Layer(names[module] or type(module).__name__.lower(), module, own)
        current[:] = [found[module]]

    def after(module: Any, inputs: Any, output: Any) -> None:
        add_new(_tensors(output))
        if module in found:
            found[module].flop += _flop(module, _tensors(inputs), _tensors(output))

    buffers = [(buffer, buffer.clone()) for buffer in model.buffers()]
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        stack.enter_context(torch.random.fork_rng(devices=[]))
        for module in names:
            owner = next(module.parameters(recurse=False), None) is not None
            if owner or next(module.children(), None) is None:
                stack.callback(module.register_forward_pre_hook(before).remove)
                stack.callback(module.register_forward_hook(after).remove)
        try:
            _call(model, sample)
        finally:
            for buffer, saved in buffers:
                buffer.copy_(saved)
    _adopt_unused(found, names, taken)
    if not found:
        raise InputError("the model runs no layer with trainable parameters")
    return list(found.values())


def _adopt_unused(found: dict[Any, _Layer], names: dict[Any, str], taken: set[int]) -> None:
    """Give parameters of modules that never ran themselves to the layer that encloses them.

    Some modules use the parameters of a child without calling it. Where no enclosing layer
    exists, the parameters take no part in a step and are left out.
    """
    by_name = {names[module]: layer for module, layer in found.items()}
    for module, name in names.items():
        if module in found:
            continue
        parents = [name.rsplit(".", depth)[0] for depth in range(1, name.count(".") + 1)] + [""]
        layer = next((by_name[parent] for parent in parents if parent in by_name), None)
        if layer is None:
            continue
        for own, parameter in module.named_parameters(recurse=False):
            if parameter.requires_grad and id(parameter) not in taken:
                taken.add(id(parameter))
                layer.parameters.append((f"{name}.{own}", parameter))


def _flop(module: Any, inputs: list[Any], outputs: list[Any]) -> int:
    """Count the operations of one call, two per multiply-add."""
    torch = _torch()
    if isinstance(module, torch.nn.modules.conv._ConvNd):
        # Each element of the output, or of the input if transposed, meets one filter.
        elements = inputs if module.transposed else outputs
        return int(2 * elements[0].numel() * module.weight[0].numel())
    if isinstance(module, torch.nn.Linear):
        return int(2 * outputs[0].numel() * module.in_features)
    return int(2 * sum(tensor.numel() for tensor in outputs))


# --- small helpers -----------------------------------------------------------------------------


def _torch() -> Any:
    try:
        return importlib.import_module("torch")
    except ModuleNotFoundError as error:
        raise InputError("profiling needs PyTorch: pip install 'perfmodel[torch]'") from error


def _call(model: Any, inputs: Any) -> Any:
    return model(*inputs) if isinstance(inputs, tuple) else model(inputs)


def _batch_size(inputs: Any) -> int:
    tensors = _tensors(inputs)
    if not tensors or tensors[0].dim() < 1 or tensors[0].shape[0] < 1:
        raise InputError("the inputs must be a tensor of shape (batch, ...) or a tuple of them")
    return int(tensors[0].shape[0])


def _tensors(value: Any) -> list[Any]:
    """Return the tensors in a tensor or in nested tuples, lists and dictionaries."""
    if hasattr(value, "untyped_storage"):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (tuple, list)):
        return [tensor for item in value for tensor in _tensors(item)]
    return []


def _storage(tensor: Any) -> int:
    return int(tensor.untyped_storage().data_ptr())
