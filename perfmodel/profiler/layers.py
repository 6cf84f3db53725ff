"""Finds the layers of a model by observing one training step.

A *layer* is a module that owns parameters with gradients in the step. Everything else, such as
activations, pooling, additions and frozen modules, counts towards the preceding layer. So the times
of all layers add up to the times of the passes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from typing import Any

from perfmodel.base.errors import InputError
from perfmodel.base.pytorch import import_torch

NAMED = 3
"""Maximum number of names in a note."""


@dataclass
class FoundLayer:
    """A layer, with the names of its parameters and the bytes of their gradients.

    ``flop`` and ``activation_bytes`` cover the whole step. Convolutions, matrix products and
    attention count two flop per multiply-add; embeddings count none, and other modules two per
    output element. Activations are the newly allocated tensors; in-place work adds none.
    """

    name: str
    module: Any
    parameters: list[tuple[str, Any, int]]
    flop: float = 0.0
    activation_bytes: float = 0.0

    @property
    def kind(self) -> str:
        """Class of the module, in lower case."""
        return type(self.module).__name__.lower()


@dataclass(frozen=True)
class InspectedStep:
    """Observations of a step.

    Attributes
    ----------
    layers : the reverse of the order in which their gradients become ready.
    tops : modules that the user's loop calls, usually only the model.
    samples : first dimension of the first tensor passed to the first forward pass; 0 if there is
        none.
    precision : type of the parameters, or *mixed* under autocast to 16 bits.
    notes : remarks for the user.
    """

    layers: list[FoundLayer]
    tops: list[Any]
    samples: int
    precision: str
    notes: list[str]


@dataclass
class _Call:
    """A call of a module, until the next call begins."""

    module: Any
    flop: float = 0.0
    activation_bytes: float = 0.0


@dataclass
class Inspection:
    """Observes one step of a model, from ``begin`` to ``end``.

    Forward passes that a backward pass recomputes (activation checkpointing) are ignored.
    """

    model: Any
    _stack: ExitStack = field(default_factory=ExitStack)
    _calls: list[_Call] = field(default_factory=list)
    _ran: dict[Any, None] = field(default_factory=dict)
    _tops: dict[Any, None] = field(default_factory=dict)
    _ready: dict[Any, int] = field(default_factory=dict)
    _known: dict[int, Any] = field(default_factory=dict)
    _depth: int = 0
    _samples: int = 0
    _autocast: str = ""
    paused: bool = False

    def begin(self) -> None:
        """Install hooks on every module and every trainable parameter."""
        torch = import_torch()
        self._recomputing = in_backward()
        self._counter = _flop_counter(lambda flop: self._add_flop(flop))
        self._counting: AbstractContextManager[Any] | None = None
        self._reference = torch.multiprocessing.reductions.StorageWeakRef
        self._stack.callback(self._stop_counting)
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

    def found(self) -> InspectedStep:
        """Return the observations.

        Raises
        ------
        InputError : no module of the model was called, or no gradient became ready.
        """
        if not self._ran:
            raise InputError("profiler: the first step called no module of the model")
        if not self._ready:
            raise InputError("profiler: the first step produced no gradient for the model")
        layers = self._owners()
        by_module = {layer.module: layer for layer in layers}
        current = layers[0]
        for call in self._calls:
            current = by_module.get(call.module, current)
            current.flop += call.flop
            current.activation_bytes += call.activation_bytes
        position = {id(p): i for i, p in enumerate(self._ready)}
        when = {l.name: max(position[id(p)] for _, p, _ in l.parameters) for l in layers}  # noqa: E741
        ordered = sorted(layers, key=lambda layer: -when[layer.name])
        notes = [*self._unused_notes(), *self._shared_notes(layers)]
        moved = [a.name for a, b in zip(layers, ordered, strict=True) if a is not b]
        if moved:
            notes.append(
                f"layers are in the reverse order of their gradients, not in forward order: "
                f"{_some(moved)}"
            )
        first = layers[0].parameters[0][1]
        precision = self._autocast or _type_name(first.dtype)
        return InspectedStep(ordered, list(self._tops), self._samples, precision, notes)

    def _before(self, module: Any, args: Any, kwargs: Any) -> None:
        if self.paused or self._recomputing():
            return
        if self._depth == 0:
            self._open(module, args, kwargs)
        self._depth += 1
        self._ran.setdefault(module)
        self._autocast = self._autocast or _autocast_name(self.model)
        if _is_unit(module):
            self._add_new(tensors((args, kwargs)))
            self._calls.append(_Call(module))

    def _after(self, module: Any, _args: Any, output: Any) -> None:
        if self.paused or self._recomputing():
            return
        if _is_unit(module):
            self._add_new(tensors(output))
            call = self._calls[-1]
            if call.module is module and not call.flop and _works_by_element(module):
                call.flop = 2.0 * sum(tensor.numel() for tensor in tensors(output))
        self._depth = max(0, self._depth - 1)
        if self._depth == 0:
            self._stop_counting()

    def _open(self, module: Any, args: Any, kwargs: Any) -> None:
        """Begin a forward pass; its inputs do not count as activations."""
        self._tops.setdefault(module)
        self._samples = self._samples or samples_of(args, kwargs)
        for tensor in [*tensors((args, kwargs)), *self.model.parameters(), *self.model.buffers()]:
            self._know(tensor)
        self._stop_counting()
        self._counting = self._counter
        self._counter.__enter__()

    def _stop_counting(self) -> None:
        if self._counting is not None:
            self._counting.__exit__(None, None, None)
            self._counting = None

    def _gradient(self, parameter: Any) -> None:
        if self.paused:
            return
        gradient = parameter.grad
        self._ready.pop(parameter, None)  # so that it sorts last
        self._ready[parameter] = int(gradient.numel() * gradient.element_size())

    def _add_flop(self, flop: float) -> None:
        if self._calls:
            self._calls[-1].flop += flop

    def _add_new(self, found: list[Any]) -> None:
        for tensor in found:
            if self._know(tensor) and self._calls:
                self._calls[-1].activation_bytes += tensor.numel() * tensor.element_size()

    def _know(self, tensor: Any) -> bool:
        """Record a tensor's storage by a weak reference, and return whether it is new.

        The address of a recorded storage is not reused while the reference is alive.
        """
        try:
            storage = self._reference(tensor.untyped_storage())
        except NotImplementedError:  # the tensor has no storage
            return False
        if storage.cdata in self._known:
            return False
        self._known[storage.cdata] = storage
        return True

    def _owners(self) -> list[FoundLayer]:
        """Return the layers in the order of their first call.

        A parameter belongs to the first called module that owns it. If that module was never
        called, the parameter belongs to the nearest called module that contains it.
        """
        names = {module: name for name, module in self.model.named_modules()}
        own: dict[Any, list[tuple[str, Any, int]]] = {module: [] for module in self._ran}
        taken: set[int] = set()

        def give(module: Any, owner: Any) -> None:
            for name, parameter in module.named_parameters(recurse=False):
                if parameter in self._ready and id(parameter) not in taken:
                    taken.add(id(parameter))
                    full = f"{names[module]}.{name}" if names[module] else name
                    own[owner].append((full, parameter, self._ready[parameter]))

        for module in self._ran:
            give(module, module)
        by_name = {names[module]: module for module in self._ran}
        for module, name in names.items():
            around = next((by_name[n] for n in _around(name) if n in by_name), None)
            give(module, around if around is not None else next(iter(self._ran)))
        return [
            FoundLayer(names[module] or type(module).__name__.lower(), module, parameters)
            for module, parameters in own.items()
            if any(size for _, _, size in parameters)
        ]

    def _unused_notes(self) -> list[str]:
        unused = [
            name
            for name, parameter in self.model.named_parameters()
            if parameter.requires_grad and parameter not in self._ready
        ]
        if not unused:
            return []
        return [f"{len(unused)} parameters got no gradient and are left out: {_some(unused)}"]

    def _shared_notes(self, layers: list[FoundLayer]) -> list[str]:
        names = {module: name for name, module in self.model.named_modules()}
        owners = {layer.module for layer in layers}
        sharing = [
            names[module]
            for module in self._ran
            if module not in owners
            and any(parameter in self._ready for parameter in module.parameters(recurse=False))
        ]
        if not sharing:
            return []
        return [
            f"modules that share other layers' parameters, timed with the layer before: "
            f"{_some(sharing)}"
        ]


def in_backward() -> Callable[[], bool]:
    """Return a function that tells whether this thread is inside an autograd backward pass."""
    number = import_torch()._C._current_graph_task_id
    return lambda: number() != -1


def tensors(value: Any) -> list[Any]:
    """Return the tensors in a tensor or in nested tuples, lists and dicts."""
    if hasattr(value, "untyped_storage"):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, tuple | list):
        return [tensor for item in value for tensor in tensors(item)]
    return []


def samples_of(args: Any, kwargs: Any) -> int:
    """Return the first dimension of the first tensor among the arguments; 0 if there is none."""
    found = next((t for t in tensors((args, kwargs)) if t.dim() > 0), None)
    return 0 if found is None else int(found.shape[0])


def _around(name: str) -> Iterator[str]:
    """Yield the names of the modules that contain a module, from the inside out."""
    while name:
        name = name.rpartition(".")[0]
        yield name


def _some(names: list[str]) -> str:
    return ", ".join(names[:NAMED]) + (", ..." if len(names) > NAMED else "")


def _is_unit(module: Any) -> bool:
    """Return whether a module owns parameters or contains no other modules.

    Work and activations are counted for such modules.
    """
    owner = next(module.parameters(recurse=False), None) is not None
    return owner or next(module.children(), None) is None


def _works_by_element(module: Any) -> bool:
    """Return whether a module is assumed to do two operations per output element."""
    torch = import_torch()
    owner = next(module.parameters(recurse=False), None) is not None
    return owner and not isinstance(module, torch.nn.Embedding | torch.nn.EmbeddingBag)


def _autocast_name(model: Any) -> str:
    """Return the current autocast type, *mixed* for 16 bits; empty if autocast is off."""
    torch = import_torch()
    if not hasattr(torch, "get_autocast_dtype"):  # before torch 2.4
        return ""
    kind = next(model.parameters()).device.type
    if kind == "meta" or not torch.is_autocast_enabled(kind):
        return ""
    name = _type_name(torch.get_autocast_dtype(kind))
    return "mixed" if name in ("bf16", "fp16") else name


def _type_name(dtype: Any) -> str:
    name = str(dtype).removeprefix("torch.")
    return {"bfloat16": "bf16", "float16": "fp16"}.get(name, name)


def _flop_counter(add: Callable[[float], None]) -> AbstractContextManager[Any]:
    """Return a context that reports the flop of each operation to ``add``, as PyTorch counts it."""
    torch = import_torch()
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils.flop_counter import flop_registry

    attention = flop_registry[torch.ops.aten._scaled_dot_product_flash_attention]
    on_cpu = "aten._scaled_dot_product_flash_attention_for_cpu"  # missing in the registry

    class Counter(TorchDispatchMode):  # type: ignore[misc]
        def __torch_dispatch__(
            self, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            kwargs = kwargs or {}
            output = function(*args, **kwargs)
            packet = function._overloadpacket
            count = flop_registry.get(packet)
            if count is None and str(packet) == on_cpu:
                count = attention
            if count is not None:
                add(float(count(*args, **kwargs, out_val=output)))
            return output

    return Counter()
