"""Optional PyTorch: its import, its devices, and the batches of a user's model."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, TypeAlias, TypeGuard, TypeVar, cast

from perfmodel.base.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module

T = TypeVar("T")

Nested: TypeAlias = "Tensor | tuple[Nested, ...] | list[Nested] | dict[str, Nested]"
"""A tensor, or tensors in tuples, lists and dicts."""

Batch: TypeAlias = "tuple[Nested, Nested | None] | dict[str, Nested]"
"""Inputs and targets (None if there are none), or the keyword arguments of a model."""

Loss: TypeAlias = "Callable[[Nested, Nested | None], Tensor]"
"""Function of the model's output and the targets that returns a scalar tensor."""


def import_torch() -> ModuleType:
    """Import PyTorch.

    Raises
    ------
    InputError : PyTorch is not installed; the text names the extra to install.
    """
    try:
        return importlib.import_module("torch")
    except ImportError:
        raise InputError("this needs PyTorch: pip install 'perfmodel[torch]'") from None


def check_device(device: str) -> None:
    """Check that a device is available.

    Raises
    ------
    InputError : it is not *cpu*, *cuda* or *cuda:N*, or this machine does not have it.
    """
    kind, colon, index = device.partition(":")
    if kind not in ("cpu", "cuda") or (colon and (kind == "cpu" or not index.isdigit())):
        raise InputError(f"device: expected cpu, cuda or cuda:N, got {device!r}")
    if kind == "cpu":
        return
    cuda = import_torch().cuda
    if not cuda.is_available():
        raise InputError(f"device: PyTorch finds no CUDA device for {device!r}; use cpu")
    if colon and int(index) >= cuda.device_count():
        last = cuda.device_count() - 1
        raise InputError(f"device: no {device} (available: cuda:0 to cuda:{last})")


def forward(model: Module, batch: Batch) -> Nested:
    """Return the model's output for a batch."""
    inputs = batch if isinstance(batch, dict) else batch[0]
    if isinstance(inputs, dict):
        return model(**inputs)
    return model(*inputs) if isinstance(inputs, tuple) else model(inputs)


def targets_of(batch: Batch) -> Nested | None:
    """Return the targets of a batch; None if it has none or the model computes the loss itself."""
    return None if isinstance(batch, dict) else batch[1]


def is_tensor(value: object) -> TypeGuard[Tensor]:
    """Return whether a value is a tensor."""
    return hasattr(value, "untyped_storage")


def moved(value: T, device: str) -> T:
    """Move tensors to a device, including those inside tuples, lists and dicts."""
    result: object = value
    if is_tensor(value):
        result = value.to(device, non_blocking=True)
    elif isinstance(value, dict):
        result = {key: moved(item, device) for key, item in value.items()}
    elif isinstance(value, tuple | list):
        result = type(value)(moved(item, device) for item in value)
    return cast("T", result)
