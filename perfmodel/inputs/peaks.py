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

from perfmodel.inputs.activations import FUSED_LOSS, LOSS, Peak, Peaks
from perfmodel.inputs.recomputation import block_of
from perfmodel.inputs.workload import Workload

MOMENTS = 2.0
"""Values of state per parameter from which an unnamed optimizer is taken for Adam."""

CPU_COPIES = 2.0
"""Temporary copies of a tensor's second moment in an update of one tensor after the other."""

TEMPORARY = ("adam", "adamw")
"""Optimizers that make temporary copies as large as what they update."""


def peaks_of(workload: Workload, *, accelerator: bool) -> Peaks:
    """Return the peaks of a pass of a workload."""
    moments, kept = _moments(workload), workload.activation_bytes
    gradients = workload.stored.gradients

    def total(at: Peak, share: float) -> float:
        return kept * at.activations + share * at.gradients * gradients + at.temporary_bytes

    first = max(moments, key=lambda at: total(at, 1.0))
    further = max(moments, key=lambda at: total(at, 0.0))
    return Peaks(first, further, _update_bytes(workload, accelerator))


def _moments(workload: Workload) -> list[Peak]:
    """Return the moments of a backward pass at which memory may be largest, the loss first.

    If part of the forward pass is computed again, what is kept falls while gradients appear: it is
    largest at the loss, with all that is kept, or at the end, with the largest block and all
    gradients.
    """
    layers, whole = workload.layers, workload.activation_bytes
    if not layers or whole == 0.0:
        return [Peak()]
    outputs = workload.outputs_bytes
    of_loss = outputs[-1] * (1.0 if layers[-1].kind == FUSED_LOSS else 2.0)
    moments = [Peak(1.0, 0.0, of_loss)]
    if workload.recompute != "none":
        blocks = itertools.groupby(layers, block_of)
        largest = max(sum(layer.activation_bytes for layer in members) for _, members in blocks)
        return [*moments, Peak(min(largest / whole, 1.0), 1.0, 0.0)]
    kept, produced = whole, 0.0
    for i in reversed(range(len(layers))):
        layer, exists = layers[i], kept
        kept -= layer.activation_bytes
        if layer.output_bytes is None:  # what it keeps is its output, which only later layers need
            exists = kept
        produced += sum(layer.tensor_bytes)
        if layer.kind.endswith(LOSS):
            continue
        temporary = layer.temporary_bytes
        if temporary is None:
            temporary = outputs[i] + (outputs[i - 1] if i else 0.0)
        moments.append(Peak(exists / whole, produced / workload.gradient_bytes, temporary))
    return moments


def _update_bytes(workload: Workload, accelerator: bool) -> float:
    """Return the bytes of the temporary copies that the optimizer makes."""
    states = workload.optimizer_state_bytes
    name = workload.storage.optimizer
    if name not in TEMPORARY and (name or states < MOMENTS * workload.gradient_bytes):
        return 0.0
    moment = states / MOMENTS
    if accelerator:
        return moment
    return CPU_COPIES * moment * workload.largest_tensor_bytes / workload.gradient_bytes
