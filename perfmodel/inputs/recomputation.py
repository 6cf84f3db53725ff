"""Recomputation of activations (activation checkpointing), as a change to a workload."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence

import msgspec

from perfmodel.base.errors import InputError, whole_number
from perfmodel.base.provenance import Assumption
from perfmodel.inputs.activations import PRODUCT, by_kind, kind_of
from perfmodel.inputs.workload import Workload, WorkloadLayer

BLOCK = r"(.*?\.\d+)\."
"""Prefix of the names of a block's layers: up to the first number, as in ``layer1.0.conv1``."""

WORDS = ("none", "selective", "selective:products", "full")
"""Kinds of recomputation, besides ``selective:N``."""

ATTENTION = "attention"
"""Kind of layers that are the core of attention."""

Blocks = Sequence[tuple[str, Sequence[WorkloadLayer]]]
"""Consecutive layers by the name of their block; "" outside of blocks."""


def read_recomputation(recomputation: str | None, checkpointing: bool | None) -> str:
    """Return the kind of recomputation, given in words, or by whether blocks are checkpointed.

    Raises
    ------
    InputError : an unknown word, or both are given and contradict each other.
    """
    if recomputation is None:
        return "full" if checkpointing else "none"
    word, _, every = recomputation.partition(":")
    if recomputation not in WORDS:
        if word != "selective" or not every.isdecimal():
            raise InputError(
                f"recompute: expected none, selective (of attention), selective:products, "
                f"selective:N (of every Nth block) or full, got {recomputation!r}"
            )
        whole_number("recompute: selective", int(every))
    if checkpointing is not None and checkpointing != (recomputation == "full"):
        raise InputError("recompute and activation_checkpointing: give one of them")
    return recomputation


def recomputed(workload: Workload, recomputation: str) -> Workload:
    """Return the workload with some forward passes computed a second time, right before backward.

    Layers form a block if their names agree up to the first number (``blocks.3.``).

    - *full*: every block keeps only its output; memory also holds the largest block in full.
    - *selective:N*: the same for every Nth block.
    - *selective*: the core of attention keeps only its output.
    - *selective:products*: a block keeps its output, that of the core of attention, and half of
      those of its matrix products, which are every second one; the rest is computed again.

    Raises
    ------
    InputError : the workload has no layers, or they form no blocks, or have no attention.

    References
    ----------
    Chen et al., "Training deep nets with sublinear memory cost", 2016, arXiv 1604.06174;
    Korthikanti et al., 2022, arXiv 2205.05198 (*selective*); torchtitan,
    ``torchtitan/distributed/activation_checkpoint.py`` (*selective:products*, *selective:N*).
    """
    if recomputation == "none":
        return workload
    blocks = [(name, list(layers)) for name, layers in itertools.groupby(workload.layers, block_of)]
    if recomputation == "selective":
        return _of_attention(workload, recomputation)
    if not any(name for name, _ in blocks):
        raise InputError(
            f"activation_checkpointing: the layers of {workload.name} form no blocks (names that "
            "agree up to a number, such as blocks.3.)"
        )
    products = recomputation == "selective:products"
    every = 1 if products or recomputation == "full" else int(recomputation.partition(":")[2])
    layers: list[WorkloadLayer] = []
    kept: list[tuple[str, float]] = []
    largest: list[WorkloadLayer] = []
    number = 0
    for name, members in blocks:
        number += bool(name)
        if not name or (number - 1) % every:
            layers += members
            kept += [(kind_of(layer.name, layer.kind), layer.activation_bytes) for layer in members]
            continue
        largest = max(largest, members, key=_kept_bytes)
        layers += [_repeated(layer, products) for layer in members]
        output = members[-1]
        kept.append((kind_of(output.name, output.kind), output.passed_on_bytes))
        if products:
            kept += [
                (kind_of(layer.name, layer.kind), _kept_share(layer) * layer.passed_on_bytes)
                for layer in members[:-1]
            ]
    kept += [(kind_of(layer.name, layer.kind), layer.activation_bytes) for layer in largest]
    return _changed(workload, layers, kept, recomputation)


def _of_attention(workload: Workload, recomputation: str) -> Workload:
    """Return the workload with the core of attention computed again."""
    if not any(layer.kind == ATTENTION for layer in workload.layers):
        raise InputError(f"recompute: {workload.name} has no attention with layers of its own")
    layers, kept, largest = [], [], ("attention", 0.0)
    for layer in workload.layers:
        kind, size = kind_of(layer.name, layer.kind), layer.activation_bytes
        if layer.kind == ATTENTION:
            largest = max(largest, (kind, size - layer.passed_on_bytes), key=lambda one: one[1])
            size = layer.passed_on_bytes
            layer = _repeated(layer, products=False)
        layers.append(layer)
        kept.append((kind, size))
    kept.append(largest)
    return _changed(workload, layers, kept, recomputation)


def _changed(
    workload: Workload,
    layers: Sequence[WorkloadLayer],
    kept: Sequence[tuple[str, float]],
    recomputation: str,
) -> Workload:
    again_s = sum(layer.backward_s for layer in layers) - sum(
        layer.backward_s for layer in workload.layers
    )
    note = Assumption(
        "activation checkpointing", "every block", "", "backward recomputes the forward pass"
    )
    if recomputation != "full":
        why = "backward recomputes part of the forward pass"
        note = Assumption("recompute", recomputation, "", why)
    return msgspec.structs.replace(
        workload,
        layers=tuple(layers),
        backward_s=workload.backward_s + again_s,
        activation_bytes=min(sum(size for _, size in kept), workload.activation_bytes),
        activations=by_kind(kept),
        recompute=recomputation,
        quality="estimated",
        assumptions=(*workload.assumptions, note),
    )


def _repeated(layer: WorkloadLayer, products: bool) -> WorkloadLayer:
    """Return a layer whose forward pass runs again, but for what ``products`` keep."""
    share = 1.0 - _kept_share(layer) if products else 1.0
    return msgspec.structs.replace(layer, backward_s=layer.backward_s + share * layer.forward_s)


def _kept_share(layer: WorkloadLayer) -> float:
    """Return the part of a layer's output that *selective:products* keeps."""
    return 1.0 if layer.kind == ATTENTION else 0.5 if layer.kind == PRODUCT else 0.0


def _kept_bytes(layers: Sequence[WorkloadLayer]) -> float:
    return sum(layer.activation_bytes for layer in layers)


def block_of(layer: WorkloadLayer) -> str:
    """Return the block of a layer; "" outside blocks."""
    match = re.match(BLOCK, layer.name)
    return match[1] if match else ""
