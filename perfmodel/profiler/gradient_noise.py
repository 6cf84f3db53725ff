"""The gradient noise scale of a PyTorch model, from gradient norms of several batches."""

from __future__ import annotations

import contextlib
import datetime as dt
import math
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from perfmodel.base.errors import InputError, whole_number
from perfmodel.base.provenance import Source
from perfmodel.foreign.pytorch import import_torch
from perfmodel.inputs.profile import NoiseScale
from perfmodel.theory.statistical_efficiency import average, gradient_noise, scale_error_samples

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module, Parameter

BATCHES = 8
"""Default number of batches per estimate."""

STEPS = 20
"""Default number of estimates to average."""

SAME = 1e-5
"""Relative difference of squared norms up to which batches count as having the same gradient."""


def measure_noise(
    model: Module,
    backward: Callable[[], object],
    *,
    batch_size: int,
    batches: int = BATCHES,
    steps: int = STEPS,
    update: Callable[[], object] | None = None,
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
    distributed = import_torch().distributed
    used = distributed.is_available() and distributed.is_initialized()
    ranks = distributed.get_world_size() if used else 1
    whole_number("batch_size", batch_size)
    whole_number("batches", batches, at_least=2 if ranks == 1 else 1)
    whole_number("steps", steps, at_least=2)
    count = batches * ranks
    estimates = []
    for _ in range(steps):
        small, big = _squares(model, backward, batches, ranks)
        if not math.isfinite(small):
            raise InputError("noise scale: a gradient is not finite")
        if small - big <= SAME * small:
            raise InputError(
                "noise scale: all batches have the same gradient; draw a new batch at each call"
            )
        estimates.append(gradient_noise(small, big, batch_size, count * batch_size))
        if update is not None:
            update()
    model.zero_grad(set_to_none=True)
    samples = average(estimates).scale_samples
    if not samples < math.inf:
        raise InputError(
            f"noise scale: the mean gradient is lost in noise after {steps} steps of "
            f"{count} batches of {batch_size} samples; use more steps or larger batches"
        )
    where = "at the same parameters" if update is None else "over training steps"
    text = f"{steps} estimates from {count} batches of {batch_size} samples each, {where}"
    text = f"{description}, {text}" if description else text
    source = Source("measured", text, date=dt.date.today().isoformat())
    error = scale_error_samples(estimates)
    return NoiseScale(samples, batch_size, source, count, steps, error)


def _squares(
    model: Module, backward: Callable[[], object], batches: int, ranks: int
) -> tuple[float, float]:
    """Return the mean squared gradient norm of batches, and the squared norm of the mean gradient.

    The mean gradient is left in place.
    """
    torch = import_torch()
    parameters = [p for p in model.parameters() if p.requires_grad]
    total = {p: torch.zeros_like(p, dtype=torch.float32) for p in parameters}
    used: set[Parameter] = set()
    small = 0.0
    local = model.no_sync() if hasattr(model, "no_sync") else contextlib.nullcontext()
    with local:  # processes keep their gradients
        for _ in range(batches):
            model.zero_grad(set_to_none=True)
            backward()
            gradients = {p: p.grad.detach().to_dense() for p in parameters if p.grad is not None}
            if not gradients:
                raise InputError("noise scale: backward() produced no gradient for the model")
            small += _squared_norm(gradients.values()) / batches
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
    return small, _squared_norm(total.values())


def _squared_norm(tensors: Iterable[Tensor]) -> float:
    """Return the sum of all squares, with a single wait for the device."""
    torch = import_torch()
    norms = [torch.linalg.vector_norm(tensor, dtype=torch.float32) for tensor in tensors]
    return float(torch.stack([norm.to(norms[0].device) for norm in norms]).square().sum())
