"""What of a workload is trained, and what its optimizer stores."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from perfmodel.base.errors import InputError
from perfmodel.base.provenance import Assumption
from perfmodel.inputs.activations import PRODUCT
from perfmodel.inputs.decoder import Decoder
from perfmodel.inputs.offload import NOTE
from perfmodel.inputs.storage import DEFAULT, VALUE_BYTES, Lora, Storage, moved_bytes
from perfmodel.inputs.workload import BACKWARD_OVER_FORWARD, Workload, WorkloadLayer

LEAST_BITS = 16
"""Bits of frozen parameters outside of the matrices of blocks, at least: only those are
quantised."""


def with_storage(workload: Workload, decoder: Decoder | None, storage: Storage) -> Workload:
    """Return the workload with parameters, gradients and optimizer states stored as given.

    Its update takes as much longer as it reads and writes more bytes.

    Raises
    ------
    InputError : LoRA for a model whose dimensions are not given.
    """
    if storage == DEFAULT:
        return workload
    stored = msgspec.structs.replace(workload, storage=storage)
    if storage.lora is not None:
        if decoder is None:
            raise InputError(
                f"lora: {workload.name} is not a language model with given dimensions (its file "
                "has no decoder)"
            )
        stored = _adapted(stored, decoder, storage.lora)
    policy = storage.policy_at(workload.precision)
    trained = stored.gradient_bytes / workload.gradient_bytes
    usual = workload.optimizer_state_bytes * trained
    if storage.optimizer is not None:
        state = storage.state_bytes(_tensors(stored), policy)
    else:
        state = usual * policy.state / VALUE_BYTES
    values = stored.gradient_bytes / VALUE_BYTES
    before = moved_bytes(values, DEFAULT.policy_at(workload.precision), usual)
    longer = moved_bytes(values, policy, state) / before
    notes = (*stored.assumptions, NOTE) if storage.offload else stored.assumptions
    return msgspec.structs.replace(
        stored,
        optimizer_state_bytes=state,
        optimizer_s=stored.optimizer_s * longer,
        assumptions=notes,
    )


def _tensors(workload: Workload) -> list[tuple[float, bool]]:
    """Return the values of each tensor, and whether it is a matrix inside of a block."""
    if not workload.layers:
        return [(workload.gradient_bytes / VALUE_BYTES, True)]
    return [
        (
            size / VALUE_BYTES,
            layer.kind == PRODUCT and "." in layer.name and size == max(layer.tensor_bytes),
        )
        for layer in workload.layers
        for size in layer.tensor_bytes
    ]


def _adapted(workload: Workload, decoder: Decoder, lora: Lora) -> Workload:
    """Return the workload with its parameters frozen, and low-rank adapters trained.

    The backward pass of a frozen product computes one product instead of two; an adapter adds its
    two thin products, forward and backward. Layers before the first adapter have no backward pass.
    """
    shapes = lora.matrices(decoder)
    layers: list[WorkloadLayer] = []
    frozen = 0.0
    for layer in workload.layers:
        adapted = shapes.get(".".join(layer.name.split(".")[-2:]), [])
        quantised = layer.kind == PRODUCT and "." in layer.name
        bits = lora.bits if quantised else max(lora.bits, LEAST_BITS)
        stored = sum(layer.tensor_bytes) * bits / (8.0 * VALUE_BYTES)
        frozen += stored
        layer = _frozen(layer, adapted, lora.rank)
        layers.append(msgspec.structs.replace(layer, frozen_bytes=stored))
    first = next((i for i, layer in enumerate(layers) if layer.tensor_bytes), 0)
    layers[:first] = [msgspec.structs.replace(layer, backward_s=0.0) for layer in layers[:first]]
    sizes = [size for layer in layers for size in layer.tensor_bytes]
    if not sizes:
        raise InputError(f"lora: {workload.name} has no matrix {' or '.join(lora.targets)}")
    note = Assumption("lora", lora.rank, "", f"adapters of {', '.join(lora.targets)}")
    return msgspec.structs.replace(
        workload,
        layers=tuple(layers),
        forward_s=sum(layer.forward_s for layer in layers),
        backward_s=sum(layer.backward_s for layer in layers),
        optimizer_s=workload.optimizer_s * sum(sizes) / workload.gradient_bytes,
        gradient_bytes=sum(sizes),
        tensors=len(sizes),
        largest_tensor_bytes=max(sizes),
        frozen_bytes=frozen,
        quality="estimated",
        assumptions=(*workload.assumptions, note),
    )


def _frozen(layer: WorkloadLayer, adapted: Sequence[tuple[int, int]], rank: int) -> WorkloadLayer:
    """Return a layer with frozen parameters, and adapters of the matrices of these shapes."""
    sizes = [VALUE_BYTES * rank * width for shape in adapted for width in shape]
    thin_s = layer.forward_s * sum(sizes) / max(sum(layer.tensor_bytes), 1.0)
    return msgspec.structs.replace(
        layer,
        forward_s=layer.forward_s + thin_s,
        backward_s=layer.backward_s / (BACKWARD_OVER_FORWARD if layer.kind == PRODUCT else 1.0)
        + BACKWARD_OVER_FORWARD * thin_s,
        tensor_bytes=tuple(reversed(sizes)),
    )
