"""Finds the layers of a model by observing one training step.

A *layer* is a module that owns parameters with gradients in the step. Everything else, such as
activations, pooling, additions and frozen modules, counts towards the preceding layer. So the times
of all layers add up to the times of the passes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from perfmodel.base.errors import InputError
from perfmodel.foreign.pytorch import import_torch, is_tensor
from perfmodel.inputs.operator_shapes import OperatorShape
from perfmodel.inputs.profile import Layer, Tensor as ProfileTensor
from perfmodel.profiler.operators import (
    FUSED_ATTENTION,
    GROUPED,
    OperatorRecorder,
    RecordedOperator,
    all_divided,
    grouped_flop,
    per_sample,
    tensors,
)

if TYPE_CHECKING:
    import torch
    from torch import Tensor
    from torch.nn import Module, Parameter

NAMED = 3
"""Maximum number of names in a note."""


@dataclass
class ObservedLayer:
    """A layer, with the names of its parameters and the bytes of their gradients.

    ``flop`` and ``activation_bytes`` cover the whole step. Convolutions, matrix products and
    attention count two flop per multiply-add; embeddings count none, and other modules two per
    output element. Activations are the newly allocated tensors; in-place work adds none. Saved are
    the tensors that autograd keeps for the backward pass, each storage once, in the layer whose
    forward pass, or what follows it, saves it first; parameters, buffers and copies of parameters
    in 16 bits are not among them. Temporary is the largest sum of the tensors that a call takes and
    returns, which is that of their gradients; inputs of the step have none. Operators are those of
    forward passes.
    """

    name: str
    module: Module
    parameters: list[tuple[str, Parameter, int]]
    flop: float = 0.0
    activation_bytes: float = 0.0
    saved_bytes: float = 0.0
    temporary_bytes: float = 0.0
    operators: list[RecordedOperator] = field(default_factory=list)


@dataclass(frozen=True)
class ObservedStep:
    """Observations of a step.

    Attributes
    ----------
    layers : the reverse of the order in which their gradients become ready.
    tops : modules that the user's loop calls, usually only the model.
    samples : first dimension of the first tensor passed to the first forward pass; 0 if there is
        none.
    precision : type of the parameters, *tf32* if a GPU rounds most products of float32 to it, or
        *mixed* under autocast to 16 bits.
    passes : forward passes.
    notes : remarks for the user.
    """

    layers: list[ObservedLayer]
    tops: list[Module]
    samples: int
    precision: str
    passes: int
    notes: list[str]

    def profile_layers(self, samples: int, accumulation: int = 1) -> tuple[Layer, ...]:
        """The layers as in a workload file, for a step of so many samples in all batches that it
        accumulates."""
        in_pass, passes = samples / accumulation, max(1, self.passes // accumulation)
        return tuple(
            Layer(
                layer.name,
                type(layer.module).__name__.lower(),
                tuple(ProfileTensor(name, size) for name, _, size in layer.parameters if size),
                layer.flop / samples,
                layer.activation_bytes / samples,
                saved_bytes=layer.saved_bytes / samples,
                temporary_bytes=layer.temporary_bytes / samples,
                operators=per_sample(layer.operators, in_pass, passes),
            )
            for layer in self.layers
        )

    def uneven(self, samples: int, accumulation: int = 1) -> list[str]:
        """A remark on layers with operators that the samples do not divide, if there are any."""
        in_pass = samples / accumulation
        names = [layer.name for layer in self.layers if not all_divided(layer.operators, in_pass)]
        return _listed({f"operators that {in_pass:g} samples do not divide, rounded up": names})


@dataclass
class _Call:
    """A call of a module, until the next call begins."""

    module: Module
    flop: float = 0.0
    activation_bytes: float = 0.0
    saved_bytes: float = 0.0
    temporary_bytes: float = 0.0
    operators: list[RecordedOperator] = field(default_factory=list)


class Inspection:
    """Observes one step of a model, from ``begin`` to ``end``, or as a context.

    Forward passes that a backward pass recomputes (activation checkpointing) are ignored, and so is
    everything while ``paused``. ``with_loss`` says whether operators after a forward pass count,
    up to its backward pass.
    """

    def __init__(self, model: Module, *, with_loss: bool = False) -> None:
        self.model = model
        self.with_loss = with_loss
        self.paused = False
        self._stack = ExitStack()
        self._calls: list[_Call] = []
        self._called: dict[Module, None] = {}
        self._tops: dict[Module, None] = {}
        self._gradient_bytes: dict[Tensor, int] = {}
        self._storages: dict[int, object] = {}
        self._saved: dict[int, object] = {}
        self._shapes = {tuple(parameter.shape) for parameter in model.parameters()}
        self._depth = 0
        self._samples = 0
        self._autocast = ""
        self._recomputing = in_backward()
        self._passes = 0
        self._first: list[RecordedOperator] = []
        self._keys: dict[int, object] = {}
        self._recorder = OperatorRecorder(self._add_operator, self._key)
        self._counter = _flop_counter(self._add_flop, self._recorder)
        self._counting = ExitStack()
        self._reference = import_torch().multiprocessing.reductions.StorageWeakRef

    def begin(self) -> None:
        """Install hooks on every module and every trainable parameter."""
        self._stack.callback(self._counting.close)
        hooks = import_torch().autograd.graph.saved_tensors_hooks(self._save, lambda kept: kept)
        self._stack.enter_context(hooks)
        for module in self.model.modules():
            handle = module.register_forward_pre_hook(self._before, with_kwargs=True)
            self._stack.callback(handle.remove)
            handle = module.register_forward_hook(self._after, always_call=True)
            self._stack.callback(handle.remove)
        for parameter in self.model.parameters():
            if parameter.requires_grad:
                handle = parameter.register_post_accumulate_grad_hook(self._gradient)
                self._stack.callback(handle.remove)

    def end(self) -> None:
        """Remove the hooks."""
        self._stack.close()

    def __enter__(self) -> Inspection:
        self.begin()
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def result(self) -> ObservedStep:
        """Return the observations.

        Raises
        ------
        InputError : no module of the model was called, or no gradient became ready.
        """
        if not self._called:
            raise InputError("profiler: the first step called no module of the model")
        if not self._gradient_bytes:
            raise InputError("profiler: the first step produced no gradient for the model")
        layers = self._layers()
        by_module = {layer.module: layer for layer in layers}
        current = layers[0]
        current.operators += self._first
        for call in self._calls:
            current = by_module.get(call.module, current)
            current.flop += call.flop
            current.activation_bytes += call.activation_bytes
            current.saved_bytes += call.saved_bytes
            current.temporary_bytes = max(current.temporary_bytes, call.temporary_bytes)
            current.operators += call.operators
        position = {id(p): i for i, p in enumerate(self._gradient_bytes)}
        ordered = sorted(layers, key=lambda l: -max(position[id(p)] for _, p, _ in l.parameters))  # noqa: E741
        precision = self._autocast or _type_name(layers[0].parameters[0][1].dtype)
        if precision == "float32" and _uses_tf32(layers):
            precision = "tf32"
        notes = self._notes(layers, ordered)
        tops = list(self._tops)
        return ObservedStep(ordered, tops, self._samples, precision, self._passes, notes)

    def _before(self, module: Module, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        if self.paused or self._recomputing():
            return
        if self._depth == 0:
            self._begin_pass(module, args, kwargs)
        self._depth += 1
        self._called.setdefault(module)
        self._autocast = self._autocast or _autocast_name(self.model)
        if _is_unit(module):
            inputs = tensors((args, kwargs))
            self._add_activations(inputs)
            self._calls.append(_Call(module, temporary_bytes=_gradient_bytes(inputs)))

    def _after(self, module: Module, _args: object, output: object) -> None:
        if self.paused or self._recomputing():
            return
        if _is_unit(module):
            outputs = tensors(output)
            self._add_activations(outputs)
            call = self._calls[-1]
            if call.module is module:
                call.temporary_bytes += _gradient_bytes(outputs)
                if not call.flop and _works_by_element(module):
                    call.flop = 2.0 * sum(tensor.numel() for tensor in outputs)
        self._depth = max(0, self._depth - 1)
        if self._depth == 0 and not self.with_loss:
            self._counting.close()

    def _begin_pass(
        self, module: Module, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> None:
        """Begin a forward pass; its inputs do not count as activations, but may be saved."""
        self._tops.setdefault(module)
        self._samples = self._samples or samples_of(args, kwargs)
        weights = [*self.model.parameters(), *self.model.buffers()]
        self._counting.close()
        self._passes += 1
        self._recorder.begin(weights)
        for tensor in weights:
            self._is_new(tensor, self._storages)
            self._is_new(tensor, self._saved)
        for tensor in tensors((args, kwargs)):
            self._is_new(tensor, self._storages)
        self._counting.enter_context(self._recorder.watching())
        self._counting.enter_context(self._counter)

    def _gradient(self, parameter: Tensor) -> None:
        if self.paused:
            return
        gradient = parameter.grad
        self._gradient_bytes.pop(parameter, None)  # so that it sorts last
        self._gradient_bytes[parameter] = int(gradient.numel() * gradient.element_size())

    def _add_flop(self, flop: float) -> None:
        if self._calls and not self._recomputing():
            self._calls[-1].flop += flop

    def _add_operator(self, shape: OperatorShape) -> None:
        if self._recomputing():
            return
        operators = self._calls[-1].operators if self._calls else self._first
        operators.append(RecordedOperator(shape, self._passes - 1))

    def _add_activations(self, outputs: list[Tensor]) -> None:
        for tensor in outputs:
            if self._is_new(tensor, self._storages) and self._calls:
                self._calls[-1].activation_bytes += tensor.numel() * tensor.element_size()

    def _save(self, tensor: Tensor) -> Tensor:
        """Count a tensor that autograd keeps for the backward pass, and keep it."""
        if self._calls and not (self.paused or self._recomputing()):
            shape = tuple(tensor.shape)
            cast = self._autocast == "mixed" and {shape, shape[::-1]} & self._shapes
            if self._is_new(tensor, self._saved) and not cast:
                self._calls[-1].saved_bytes += tensor.untyped_storage().nbytes()
        return tensor

    def _is_new(self, tensor: Tensor, storages: dict[int, object]) -> bool:
        """Record a tensor's storage by a weak reference, and return whether it is new.

        The address of a recorded storage is not reused while the reference is alive.
        """
        before = len(storages)
        self._key(tensor, storages)
        return len(storages) > before

    def _key(self, tensor: Tensor, storages: dict[int, object] | None = None) -> int | None:
        """Return the address of a tensor's storage, and keep a weak reference to it; None if it
        has none."""
        try:
            storage = self._reference(tensor.untyped_storage())
        except NotImplementedError:
            return None
        (self._keys if storages is None else storages).setdefault(storage.cdata, storage)
        return int(storage.cdata)

    def _layers(self) -> list[ObservedLayer]:
        """Return the layers in the order of their first call.

        A parameter belongs to the first called module that owns it. If that module was never
        called, the parameter belongs to the nearest called module that contains it.
        """
        names = {module: name for name, module in self.model.named_modules()}
        called = {names[module]: module for module in self._called}
        first = next(iter(self._called))
        parameters: dict[Module, list[tuple[str, Parameter, int]]] = {m: [] for m in self._called}
        assigned: set[int] = set()
        for module in (*self._called, *names):
            containing = (called[n] for n in _containing(names[module]) if n in called)
            owner = module if module in self._called else next(containing, first)
            for name, parameter in module.named_parameters(names[module], recurse=False):
                if parameter in self._gradient_bytes and id(parameter) not in assigned:
                    assigned.add(id(parameter))
                    size = self._gradient_bytes[parameter]
                    parameters[owner].append((name, parameter, size))
        return [
            ObservedLayer(names[module] or type(module).__name__.lower(), module, entries)
            for module, entries in parameters.items()
            if any(size for _, _, size in entries)
        ]

    def _notes(self, layers: list[ObservedLayer], ordered: list[ObservedLayer]) -> list[str]:
        """Remarks on parameters without gradient, on shared parameters, and on the order."""
        names = {module: name for name, module in self.model.named_modules()}
        owners = {layer.module for layer in layers}
        unused = [
            name
            for name, parameter in self.model.named_parameters()
            if parameter.requires_grad and parameter not in self._gradient_bytes
        ]
        sharing = [
            names[module]
            for module in self._called
            if module not in owners
            and any(p in self._gradient_bytes for p in module.parameters(recurse=False))
        ]
        moved = [a.name for a, b in zip(layers, ordered, strict=True) if a is not b]
        remarks = {
            f"{len(unused)} parameters got no gradient and are left out": unused,
            "modules that share other layers' parameters, timed with the layer before": sharing,
            "layers are in the reverse order of their gradients, not in forward order": moved,
        }
        return _listed(remarks)


def _listed(remarks: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the remarks that are about something, with the first of its names."""
    return [
        f"{remark}: {', '.join(about[:NAMED])}{', ...' if len(about) > NAMED else ''}"
        for remark, about in remarks.items()
        if about
    ]


def in_backward() -> Callable[[], bool]:
    """Return a function that tells whether this thread is inside an autograd backward pass."""
    number = import_torch()._C._current_graph_task_id
    return lambda: number() != -1


def _gradient_bytes(values: Sequence[Tensor]) -> float:
    """Return the bytes of the gradients of tensors that have one."""
    return sum(float(t.numel() * t.element_size()) for t in values if t.requires_grad)


def samples_of(args: Sequence[object], kwargs: Mapping[str, object]) -> int:
    """Return the first dimension of the first tensor among the arguments; 0 if there is none."""
    return next((int(t.shape[0]) for t in tensors((args, kwargs)) if t.dim() > 0), 0)


def _containing(name: str) -> Iterator[str]:
    """Yield the names of the modules that contain a module, from the inside out."""
    while name:
        name = name.rpartition(".")[0]
        yield name


def _owns_parameters(module: Module) -> bool:
    return next(module.parameters(recurse=False), None) is not None


def _is_unit(module: Module) -> bool:
    """Return whether a module owns parameters or contains no other modules.

    Work and activations are counted for such modules.
    """
    return _owns_parameters(module) or next(module.children(), None) is None


def _works_by_element(module: Module) -> bool:
    """Return whether a module is assumed to do two operations per output element."""
    nn = import_torch().nn
    return _owns_parameters(module) and not isinstance(module, nn.Embedding | nn.EmbeddingBag)


def _autocast_name(model: Module) -> str:
    """Return the current autocast type, *mixed* for 16 bits; empty if autocast is off."""
    torch = import_torch()
    if not hasattr(torch, "get_autocast_dtype"):  # before torch 2.4
        return ""
    kind = next(model.parameters()).device.type
    if kind == "meta" or not torch.is_autocast_enabled(kind):
        return ""
    name = _type_name(torch.get_autocast_dtype(kind))
    return "mixed" if name in ("bf16", "fp16") else name


def _type_name(dtype: torch.dtype) -> str:
    name = str(dtype).removeprefix("torch.")
    return {"bfloat16": "bf16", "float16": "fp16"}.get(name, name)


def _uses_tf32(layers: Sequence[ObservedLayer]) -> bool:
    """Return whether PyTorch lets this device round most operations on float32 to TF32."""
    torch = import_torch()
    device = next(layers[0].module.parameters()).device
    if device.type != "cuda" or torch.cuda.get_device_capability(device) < (8, 0):
        return False
    flop = {True: 0.0, False: 0.0}
    for layer in layers:
        flop[isinstance(layer.module, torch.nn.modules.conv._ConvNd)] += layer.flop
    allowed = {
        True: torch.backends.cudnn.allow_tf32,
        False: torch.backends.cuda.matmul.allow_tf32,
    }
    rounded = sum(value for kind, value in flop.items() if allowed[kind])
    return 2.0 * rounded > sum(flop.values())


def _ungrouped(packet: object, args: Sequence[Any]) -> list[Any]:
    """Return the arguments of attention with as many heads of keys and values as of queries, which
    PyTorch before 2.13 needs to count operations; those of another operator as they are."""
    if not str(packet).startswith(f"aten.{FUSED_ATTENTION}"):
        return [*args]
    heads = args[0].shape[1]
    return [
        one[:, :1].expand(-1, heads, -1, -1) if is_tensor(one) and one.dim() == 4 else one
        for one in args
    ]


def _flop_counter(
    add: Callable[[float], None], recorder: OperatorRecorder
) -> AbstractContextManager[object]:
    """Return a context that reports the flop of each operation to ``add``, as PyTorch counts it,
    and each operation to ``recorder``."""
    torch = import_torch()
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils.flop_counter import flop_registry

    attention = flop_registry[torch.ops.aten._scaled_dot_product_flash_attention]
    on_cpu = "aten._scaled_dot_product_flash_attention_for_cpu"  # missing in the registry

    class OperatorCounter(TorchDispatchMode):  # type: ignore[misc]
        def __torch_dispatch__(
            self,
            function: Any,
            types: object,
            args: tuple[Any, ...] = (),
            kwargs: dict[str, Any] | None = None,
        ) -> object:
            kwargs = kwargs or {}
            output = function(*args, **kwargs)
            packet = function._overloadpacket
            count = flop_registry.get(packet)
            if count is None and str(packet) == on_cpu:
                count = attention
            if str(packet).rpartition(".")[2] in GROUPED:  # missing as well
                add(grouped_flop(args[0], args[1]))
            elif count is not None:
                add(float(count(*_ungrouped(packet, args), **kwargs, out_val=output)))
            recorder.ran(function, args, kwargs, output)
            return output

    return OperatorCounter()
