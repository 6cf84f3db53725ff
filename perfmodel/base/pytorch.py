"""Optional PyTorch: its import, its devices, and the batches of a user's model."""

from __future__ import annotations

import importlib
from typing import Any

from perfmodel.base.errors import InputError


def import_torch() -> Any:
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


def forward(model: Any, batch: Any) -> Any:
    """Return the model's output for a batch."""
    inputs = batch if isinstance(batch, dict) else batch[0]
    if isinstance(inputs, dict):
        return model(**inputs)
    return model(*inputs) if isinstance(inputs, tuple) else model(inputs)


def targets_of(batch: Any) -> Any:
    """Return the targets of a batch; None if it has none or the model computes the loss itself."""
    return None if isinstance(batch, dict) else batch[1]


def moved(value: Any, device: str) -> Any:
    """Move tensors to a device, including those inside tuples, lists and dicts."""
    if hasattr(value, "untyped_storage"):
        return value.to(device, non_blocking=True)
    if isinstance(value, dict):
        return {key: moved(item, device) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return type(value)(moved(item, device) for item in value)
    return value
