"""How a step passes through a model: activations computed again, gradients accumulated."""

from __future__ import annotations

import itertools
import re

import msgspec

from perfmodel.base.errors import InputError
from perfmodel.base.provenance import Assumption
from perfmodel.inputs.workload import Workload, WorkloadLayer

BLOCK = re.compile(r"(.*?\.\d+)\.")
"""Beginning of the names of a block's layers: up to the first number, as in ``layer1.0.conv1``."""


def checkpointed(workload: Workload) -> Workload:
    """The workload with activation checkpointing: every block keeps its input only.

    Its layers' forward passes are computed a second time right before their backward passes. What
    is kept are the activations of layers outside of blocks, the output of every block, and all
    activations of one block, the largest. Layers are a block if their names begin alike, up to
    the first number (``blocks.3.``).

    Raises
    ------
    InputError : the workload has no layers, or they are in no blocks.

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
            f"activation_checkpointing: the layers of {workload.name} are in no blocks (names that "
            "begin alike up to a number, such as blocks.3.)"
        )
    note = Assumption(
        "activation checkpointing", "every block", "", "forward is computed again in backward"
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
    """The workload with as many equal passes before one update, each of its batch size.

    All passes but the last are in the forward time of the first layer: a worker does them before
    the pass that communicates. Activations are those of one pass.
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
    """The block of a layer; "" outside of blocks."""
    found = BLOCK.match(layer.name)
    return found[1] if found else ""
