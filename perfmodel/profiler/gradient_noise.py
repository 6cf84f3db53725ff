"""The gradient noise scale of a PyTorch model, from gradient norms of several batches."""

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
"""Default number of batches per estimate."""

STEPS = 20
"""Default number of estimates to average."""

SAME = 1e-5
"""Relative difference of squared norms up to which batches count as having the same gradient."""


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

    Each step takes several batches, and compares the mean of their squared gradient norms with the
    squared norm of their mean gradient (McCandlish et al., "An Empirical Model of Large-Batch
    Training", 2018, appendix A.1). Numerator and denominator of the noise scale are averaged over
    the steps.

    Under ``torch.distributed`` every process calls this function with its own batches, and all get
    the same answer; ``batches`` counts the batches of one process and may be 1. For a
    ``DistributedDataParallel`` model, ``no_sync`` keeps the gradients of the processes apart.

    Parameters
    ----------
    model : a ``torch.nn.Module``; its gradients are cleared.
    backward : draws a new batch, and calls ``backward()`` on its mean loss.
    batch_size : samples in each of these batches.
    batches, steps : number of batches per step, and number of steps.
    update : called after each step with the mean gradient in place, such as ``optimizer.step``.
        None: all steps are at the same parameters.
    description : text that opens the source.

    Raises
    ------
    InputError : fewer than two batches or steps; all batches have the same gradient; a gradient is
        missing or not finite; the mean gradient cannot be told from noise.
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
                "noise scale: all batches have the same gradient; draw a new batch at each call"
            )
        found.append(gradient_noise(small, big, batch_size, count * batch_size))
        if update is not None:
            update()
    model.zero_grad(set_to_none=True)
    return _answer(found, batch_size, count, update is not None, description)


def _answer(
    found: list[GradientNoise], batch_size: int, batches: int, trained: bool, description: str
) -> NoiseScale:
    """Average over the steps.

    Raises
    ------
    InputError : the mean gradient cannot be told from noise.
    """
    samples, error = average(found).scale_samples, scale_error_samples(found)
    if not samples < math.inf:
        raise InputError(
            f"noise scale: the mean gradient is lost in noise after {len(found)} steps of "
            f"{batches} batches of {batch_size} samples; use more steps or larger batches"
        )
    where = "over training steps" if trained else "at the same parameters"
    text = f"{len(found)} estimates from {batches} batches of {batch_size} samples each, {where}"
    described = f"{description}, {text}" if description else text
    source = Source("measured", described, date=dt.date.today().isoformat())
    return NoiseScale(samples, batch_size, source, batches, len(found), error)


def _squares(
    torch: Any, model: Any, backward: Callable[[], Any], batches: int, ranks: int
) -> tuple[float, float]:
    """Return the mean squared gradient norm of batches, and the squared norm of the mean gradient.

    The mean gradient is left in place.
    """
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
                raise InputError("noise scale: backward() produced no gradient for the model")
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
    """Return the sum of all squares, with a single wait for the device."""
    norms = [torch.linalg.vector_norm(tensor, dtype=torch.float32) for tensor in tensors]
    return float(torch.stack([norm.to(norms[0].device) for norm in norms]).square().sum())


def _dense(gradient: Any) -> Any:
    """Return a gradient as a dense tensor; some embeddings have sparse gradients."""
    detached = gradient.detach()
    return detached.to_dense() if detached.is_sparse else detached


def _local(model: Any) -> AbstractContextManager[Any]:
    """Return a context in which gradients are not synchronised between processes."""
    return model.no_sync() if hasattr(model, "no_sync") else contextlib.nullcontext()


def _distributed(torch: Any) -> bool:
    return bool(torch.distributed.is_available() and torch.distributed.is_initialized())
