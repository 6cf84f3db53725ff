"""The gradient noise scale of a PyTorch model, from norms of the gradients of several batches."""

from __future__ import annotations

import contextlib
import datetime as dt
import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from perfmodel.base.errors import InputError, whole_number
from perfmodel.base.provenance import Source
from perfmodel.base.pytorch import import_torch
from perfmodel.inputs.profile import NoiseScale
from perfmodel.theory.statistical_efficiency import (
    GradientNoise,
    average,
    gradient_noise,
    scale_error_samples,
)

BATCHES = 8
"""Batches of one estimate."""

STEPS = 20
"""Estimates that are averaged."""

SAME = 1e-5
"""Relative difference of squared norms up to which all batches have the same gradient."""


def measure_noise(
    model: Any,
    backward: Callable[[], Any],
    *,
    batch_size: int,
    batches: int = BATCHES,
    steps: int = STEPS,
    update: Callable[[], Any] | None = None,
    description: str = "",
) -> NoiseScale:
    """Measure the gradient noise scale of a model.

    Each step compares the mean squared norm of the gradients of several batches with that of their
    mean (McCandlish et al., "An Empirical Model of Large-Batch Training", 2018, appendix A.1). Both
    parts of the noise scale are averaged over the steps.

    Under ``torch.distributed`` every process calls it with batches of its own and gets the same
    answer; ``batches`` is that of each process, and may be 1. The gradients of a
    ``DistributedDataParallel`` model are kept apart by its ``no_sync``.

    Parameters
    ----------
    model : a ``torch.nn.Module``; its gradients are cleared.
    backward : draws a new batch, and calls ``backward()`` of its mean loss.
    batch_size : samples in each of these batches.
    batches, steps : batches in a step, and steps.
    update : called after each step with the mean gradient in place, such as ``optimizer.step``.
        None: all steps are at the same parameters.
    description : text that opens the source.

    Raises
    ------
    InputError : fewer than two batches or steps; all batches have the same gradient; a gradient
        that is missing or not finite; the mean gradient cannot be told from noise.
    """
    torch = import_torch()
    ranks = torch.distributed.get_world_size() if _distributed(torch) else 1
    whole_number("batch_size", batch_size)
    whole_number("batches", batches, at_least=2 if ranks == 1 else 1)
    whole_number("steps", steps, at_least=2)
    count = batches * ranks
    found = []
    for _ in range(steps):
        small, big = _squares(torch, model, backward, batches, ranks)
        if not math.isfinite(small):
            raise InputError("noise scale: a gradient is not finite")
        if small - big <= SAME * small:
            raise InputError(
                "noise scale: all batches have the same gradient; each must be drawn anew"
            )
        found.append(gradient_noise(small, big, batch_size, count * batch_size))
        if update is not None:
            update()
    model.zero_grad(set_to_none=True)
    return _answer(found, batch_size, count, update is not None, description)


def _answer(
    found: list[GradientNoise], batch_size: int, batches: int, trained: bool, description: str
) -> NoiseScale:
    """The average over steps.

    Raises
    ------
    InputError : the mean gradient cannot be told from noise.
    """
    samples, error = average(found).scale_samples, scale_error_samples(found)
    if not samples < math.inf:
        raise InputError(
            f"noise scale: the mean gradient is lost in noise after {len(found)} steps of "
            f"{batches} batches of {batch_size} samples; take more steps or larger batches"
        )
    where = "over training steps" if trained else "at the same parameters"
    text = f"{len(found)} times {batches} batches of {batch_size} samples, {where}"
    said = f"{description}, {text}" if description else text
    source = Source("measured", said, date=dt.date.today().isoformat())
    return NoiseScale(samples, batch_size, source, batches, len(found), error)


def _squares(
    torch: Any, model: Any, backward: Callable[[], Any], batches: int, ranks: int
) -> tuple[float, float]:
    """Mean squared norm of the gradients of batches, and that of their mean, which is left in
    place."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    total = {p: torch.zeros_like(p, dtype=torch.float32) for p in parameters}
    used: set[Any] = set()
    small = 0.0
    with _local(model):
        for _ in range(batches):
            model.zero_grad(set_to_none=True)
            backward()
            gradients = {p: _dense(p.grad) for p in parameters if p.grad is not None}
            if not gradients:
                raise InputError("noise scale: backward() made no gradient of the model's")
            small += _squared_norm(torch, gradients.values()) / batches
            used |= gradients.keys()
            for parameter, gradient in gradients.items():
                total[parameter] += gradient
    if ranks > 1:
        device = parameters[0].device
        norms = torch.tensor([small], dtype=torch.float32, device=device)
        for tensor in (norms, *total.values()):
            torch.distributed.all_reduce(tensor)
        small = float(norms) / ranks
    for parameter, gradient in total.items():
        gradient.div_(batches * ranks)
        parameter.grad = gradient.to(parameter.dtype) if parameter in used else None
    return small, _squared_norm(torch, total.values())


def _squared_norm(torch: Any, tensors: Any) -> float:
    """Sum of all squares; one wait for the device."""
    norms = [torch.linalg.vector_norm(tensor, dtype=torch.float32) for tensor in tensors]
    return float(torch.stack([norm.to(norms[0].device) for norm in norms]).square().sum())


def _dense(gradient: Any) -> Any:
    """A gradient as a dense tensor; those of some embeddings are sparse."""
    detached = gradient.detach()
    return detached.to_dense() if detached.is_sparse else detached


def _local(model: Any) -> AbstractContextManager[Any]:
    """Context in which gradients are those of this process."""
    return model.no_sync() if hasattr(model, "no_sync") else contextlib.nullcontext()


def _distributed(torch: Any) -> bool:
    return bool(torch.distributed.is_available() and torch.distributed.is_initialized())
