"""Recomputation of activations (activation checkpointing), as a change to a workload."""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Iterator, Sequence

import msgspec

from perfmodel.base.errors import InputError, whole_number
from perfmodel.base.provenance import Assumption
from perfmodel.inputs.activations import PRODUCT, by_kind, kind_of
from perfmodel.inputs.workload import Workload, WorkloadLayer

BLOCK = r"(.*?\.\d+)\."
"""Prefix of the names of a block's layers: up to the first number, as in ``layer1.0.conv1``."""

PRODUCTS = "selective:products"
"""Recomputation of half of the products of a block, and of all that is cheap."""

WORDS = ("none", "selective", PRODUCTS, "full")
"""Kinds of recomputation, besides ``selective:N``."""

ATTENTION = "attention"
"""Kind of layers that are the core of attention."""

Sizes = list[tuple[str, float]]
"""Bytes by kind of activations."""


class KeptSizes(msgspec.Struct, frozen=True):
    """What layers keep of a pass: until its backward pass, and while a part is computed again."""

    always: Sizes
    again: Sizes


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
    if recomputation == "selective":
        if not any(layer.kind == ATTENTION for layer in workload.layers):
            raise InputError(f"recompute: {workload.name} has no attention with layers of its own")
    elif not any(block_of(layer) for layer in workload.layers):
        raise InputError(
            f"activation_checkpointing: the layers of {workload.name} form no blocks (names that "
            "agree up to a number, such as blocks.3.)"
        )
    kept = kept_of(workload.layers, recomputation)
    layers = _repeating(workload.layers, recomputation)
    return _changed(workload, layers, [*kept.always, *kept.again], recomputation)


def kept_of(layers: Sequence[WorkloadLayer], recomputation: str, before: int = 0) -> KeptSizes:
    """Return what consecutive layers keep of a pass, with ``before`` blocks in front of them."""
    if recomputation == "none":
        return KeptSizes([_named(layer) for layer in layers], [])
    if recomputation == "selective":
        return _kept_of_attention(layers)
    always: Sizes = []
    largest: list[WorkloadLayer] = []
    for members, repeated in _blocks(layers, recomputation, before):
        if not repeated:
            always += [_named(layer) for layer in members]
            continue
        largest = max(largest, members, key=_kept_bytes)
        output = members[-1]
        always.append((kind_of(output.name, output.kind), output.passed_on_bytes))
        if recomputation == PRODUCTS:
            always += [
                (kind_of(layer.name, layer.kind), _kept_share(layer) * layer.passed_on_bytes)
                for layer in members[:-1]
            ]
    return KeptSizes(always, [_named(layer) for layer in largest])


def _kept_of_attention(layers: Sequence[WorkloadLayer]) -> KeptSizes:
    """Return what layers keep if the core of attention is computed again."""
    always, largest = [], (ATTENTION, 0.0)
    for layer in layers:
        kind, size = _named(layer)
        if layer.kind == ATTENTION:
            largest = max(largest, (kind, size - layer.passed_on_bytes), key=lambda one: one[1])
            size = layer.passed_on_bytes
        always.append((kind, size))
    return KeptSizes(always, [largest])


def _blocks(
    layers: Sequence[WorkloadLayer], recomputation: str, before: int = 0
) -> Iterator[tuple[list[WorkloadLayer], bool]]:
    """Yield consecutive layers of a block, or outside of blocks, and whether they are computed
    again."""
    whole = recomputation in (PRODUCTS, "full")
    every = 1 if whole else int(recomputation.partition(":")[2])
    number = before
    for name, members in itertools.groupby(layers, block_of):
        number += bool(name)
        yield list(members), bool(name) and (number - 1) % every == 0


def _repeating(layers: Sequence[WorkloadLayer], recomputation: str) -> list[WorkloadLayer]:
    """Return layers with the time of what is computed again in their backward passes."""
    if recomputation == "selective":
        return [
            _repeated(layer, products=False) if layer.kind == ATTENTION else layer
            for layer in layers
        ]
    return [
        _repeated(layer, products=recomputation == PRODUCTS) if repeated else layer
        for members, repeated in _blocks(layers, recomputation)
        for layer in members
    ]


def _named(layer: WorkloadLayer) -> tuple[str, float]:
    return kind_of(layer.name, layer.kind), layer.activation_bytes


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
    return block_named(layer.name)


@functools.lru_cache(maxsize=16_384)
def block_named(name: str) -> str:
    """Return the block of a layer of this name; "" outside blocks."""
    match = re.match(BLOCK, name)
    return match[1] if match else ""
