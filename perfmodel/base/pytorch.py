"""PyTorch where it is installed: devices, and batches of a user's model."""

from __future__ import annotations

import importlib
from typing import Any

from perfmodel.base.errors import InputError


def import_torch() -> Any:
    """PyTorch.

    Raises
    ------
    InputError : it is not installed; the text names the extra.
    """
    try:
        return importlib.import_module("torch")
    except ImportError:
        raise InputError("this needs PyTorch: pip install 'perfmodel[torch]'") from None


def check_device(device: str) -> None:
    """Raise InputError for a device that is not available.

    Raises
    ------
    InputError : it is neither *cpu*, *cuda* nor *cuda:N*, or it is not on this machine.
    """
    kind, colon, index = device.partition(":")
    if kind not in ("cpu", "cuda") or (colon and (kind == "cpu" or not index.isdigit())):
        raise InputError(f"device: expected cpu, cuda or cuda:N, got {device!r}")
    if kind == "cpu":
        return
    cuda = import_torch().cuda
    if not cuda.is_available():
        raise InputError(f"device: {device} asked for, but PyTorch finds no CUDA device; use cpu")
    if colon and int(index) >= cuda.device_count():
        raise InputError(f"device: there is no {device} (cuda:0 to cuda:{cuda.device_count() - 1})")


def forward(model: Any, batch: Any) -> Any:
    """The model's output for a batch."""
    inputs = batch if isinstance(batch, dict) else batch[0]
    if isinstance(inputs, dict):
        return model(**inputs)
    return model(*inputs) if isinstance(inputs, tuple) else model(inputs)


def targets_of(batch: Any) -> Any:
    """The targets of a batch; None where the model knows them itself or there are none."""
    return None if isinstance(batch, dict) else batch[1]


def moved(value: Any, device: str) -> Any:
    """Tensors, also inside tuples, lists and dicts, on a device."""
    if hasattr(value, "untyped_storage"):
        return value.to(device, non_blocking=True)
    if isinstance(value, dict):
        return {key: moved(item, device) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return type(value)(moved(item, device) for item in value)
    return value
