"""Activation checkpointing and gradient accumulation, as changes to a workload."""

from __future__ import annotations

import itertools
import re

import msgspec

from perfmodel.base.errors import InputError
from perfmodel.base.provenance import Assumption
from perfmodel.inputs.workload import Workload, WorkloadLayer

BLOCK = re.compile(r"(.*?\.\d+)\.")
"""Prefix of the names of a block's layers: up to the first number, as in ``layer1.0.conv1``."""


def checkpointed(workload: Workload) -> Workload:
    """Return the workload with activation checkpointing: every block keeps only its input.

    The forward passes of a block's layers are computed a second time, right before their backward
    passes. Memory holds the activations of layers outside blocks, the output of every block, and
    all activations of the largest block. Layers form a block if their names agree up to the first
    number (``blocks.3.``).

    Raises
    ------
    InputError : the workload has no layers, or they form no blocks.

    References
    ----------
    Chen et al., "Training deep nets with sublinear memory cost", 2016, arXiv 1604.06174.
    """
    groups = [
        (name, list(layers)) for name, layers in itertools.groupby(workload.layers, _block_of)
    ]
    kept, largest = 0.0, 0.0
    layers: list[WorkloadLayer] = []
    again_s = 0.0
    for name, members in groups:
        whole = sum(layer.activation_bytes for layer in members)
        if not name:
            kept += whole
            layers += members
            continue
        kept += members[-1].activation_bytes
        largest = max(largest, whole)
        again_s += sum(layer.forward_s for layer in members)
        layers += [
            msgspec.structs.replace(layer, backward_s=layer.backward_s + layer.forward_s)
            for layer in members
        ]
    if not any(name for name, _ in groups):
        raise InputError(
            f"activation_checkpointing: the layers of {workload.name} form no blocks (names that "
            "agree up to a number, such as blocks.3.)"
        )
    note = Assumption(
        "activation checkpointing", "every block", "", "backward recomputes the forward pass"
    )
    return msgspec.structs.replace(
        workload,
        layers=tuple(layers),
        backward_s=workload.backward_s + again_s,
        activation_bytes=min(kept + largest, workload.activation_bytes),
        activation_checkpointing=True,
        quality="estimated",
        assumptions=(*workload.assumptions, note),
    )


def accumulated(workload: Workload, passes: int) -> Workload:
    """Return the workload with ``passes`` equal passes per update, each of its batch size.

    All passes but the last count as forward time of the first layer, because a worker does them
    before the pass that communicates. Activations are those of one pass.
    """
    if passes == 1:
        return workload
    earlier_s = (passes - 1) * (workload.forward_s + workload.backward_s)
    layers = workload.layers
    if layers:
        first = msgspec.structs.replace(layers[0], forward_s=layers[0].forward_s + earlier_s)
        layers = (first, *layers[1:])
    return msgspec.structs.replace(
        workload,
        batch_size=passes * workload.batch_size,
        layers=layers,
        forward_s=workload.forward_s + earlier_s,
        data_loading_s=passes * workload.data_loading_s,
        accumulation=passes * workload.accumulation,
    )


def _block_of(layer: WorkloadLayer) -> str:
    """Return the block of a layer; "" outside blocks."""
    found = BLOCK.match(layer.name)
    return found[1] if found else ""
