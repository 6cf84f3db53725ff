"""When a training step needs most memory: what exists then, besides parameters and states.

In the backward pass of layer i the activations of layers 0 to i exist, the gradients of the
parameters of layers i and later, and the gradients of its output and of its input. Before it, the
loss makes two gradients of its input (torch: ``LossNLL`` and ``log_softmax_backward_data``), or one
if it is fused. While the optimizer updates the model there are no activations, but Adam makes
temporary copies: of all of its second moments on accelerators, where it updates all tensors at once
(torch/optim/adam.py: ``_multi_tensor_adam``), else two of the tensor it updates
(``_single_tensor_adam``).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from perfmodel.base.arrays import Floats
from perfmodel.inputs.activations import FUSED_LOSS, LOSS, Peak, Peaks
from perfmodel.inputs.recomputation import block_of
from perfmodel.inputs.workload import Workload, WorkloadLayer

MOMENTS = 2.0
"""Values of state per parameter from which an unnamed optimizer is taken for Adam."""

CPU_COPIES = 2.0
"""Temporary copies of a tensor's second moment in an update of one tensor after the other."""

TEMPORARY = ("adam", "adamw")
"""Optimizers that make temporary copies as large as what they update."""


def peaks_of(workload: Workload, *, accelerator: bool) -> Peaks:
    """Return the peaks of a pass of a workload."""
    work, kept = workload, workload.activation_bytes
    moments = _moments(work.layers, kept, work.gradient_bytes, work.recompute)
    first = _largest(moments, kept, work.stored.gradients)
    return Peaks(first, _largest(moments, kept, 0.0), update_bytes(workload, accelerator))


def further_peak(layers: Sequence[WorkloadLayer], kept_bytes: float, recompute: str) -> Peak:
    """Return the moment at which a pass of layers that keep so many bytes needs most memory, if
    all gradients are there before it."""
    gradients = sum(sum(layer.tensor_bytes) for layer in layers)
    return _largest(_moments(layers, kept_bytes, gradients or 1.0, recompute), kept_bytes, 0.0)


Moments = tuple[Floats, Floats, Floats]
"""The fields of :class:`perfmodel.inputs.activations.Peak` of several, (moments,) each."""


def _largest(moments: Moments, kept_bytes: float, gradient_bytes: float) -> Peak:
    """Return the moment of most memory, if it adds gradients of so many bytes."""
    activations, gradients, temporary = moments
    total = kept_bytes * activations + gradients * gradient_bytes + temporary
    k = int(total.argmax())
    return Peak(float(activations[k]), float(gradients[k]), float(temporary[k]))


def _moments(
    layers: Sequence[WorkloadLayer], whole: float, gradient_bytes: float, recompute: str
) -> Moments:
    """Return the moments of a backward pass of layers that keep so many bytes at which memory may
    be largest, the loss first.

    If part of the forward pass is computed again, what is kept falls while gradients appear: it is
    largest at the loss, with all that is kept, or at the end, with the largest block and all
    gradients.
    """
    if not layers or whole == 0.0:
        return np.ones(1), np.ones(1), np.zeros(1)
    outputs = [x.activation_bytes if x.output_bytes is None else x.output_bytes for x in layers]
    of_loss = outputs[-1] * (1.0 if layers[-1].kind == FUSED_LOSS else 2.0)
    if recompute != "none":
        blocks = itertools.groupby(layers, block_of)
        largest = max(sum(layer.activation_bytes for layer in members) for _, members in blocks)
        again = min(largest / whole, 1.0)
        return np.array([1.0, again]), np.array([0.0, 1.0]), np.array([of_loss, 0.0])
    backward = layers[::-1]
    kept = np.cumsum([whole, *(-layer.activation_bytes for layer in backward)])
    produced = np.cumsum([sum(layer.tensor_bytes) for layer in backward])
    # what a layer without an output of its own keeps is its output, which only later layers need
    is_output = np.array([layer.output_bytes is None for layer in backward])
    exists = np.where(is_output, kept[1:], kept[:-1])
    around = zip(backward, outputs[::-1], [*outputs[-2::-1], 0.0], strict=True)
    temporary = [
        own + before if layer.temporary_bytes is None else layer.temporary_bytes
        for layer, own, before in around
    ]
    counts = np.array([not layer.kind.endswith(LOSS) for layer in backward])
    return (
        np.append(1.0, exists[counts] / whole),
        np.append(0.0, produced[counts] / gradient_bytes if counts.any() else ()),
        np.append(of_loss, np.array(temporary)[counts]),
    )


def update_bytes(workload: Workload, accelerator: bool) -> float:
    """Return the bytes of the temporary copies that the optimizer makes."""
    states = workload.optimizer_state_bytes
    name = workload.storage.optimizer
    if name not in TEMPORARY and (name or states < MOMENTS * workload.gradient_bytes):
        return 0.0
    moment = states / MOMENTS
    if accelerator:
        return moment
    return CPU_COPIES * moment * workload.largest_tensor_bytes / workload.gradient_bytes
