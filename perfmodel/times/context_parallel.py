"""Layers of language models whose sequences several devices divide between them (context
parallelism).

Each device has an equal number of the tokens of every sequence, and computes all layers for them.
Only attention needs the tokens of others. In a ring, and after an all-gather, a device computes its
part of attention block by block: its own tokens under the causal mask, and half of the keys of each
other device, if every device has an early and a late part of the sequence (zigzag). In a
window there are fewer such blocks. After an all-to-all it has whole sequences of some of the heads.

References
----------
Liu, Zaharia, Abbeel, "Ring attention with blockwise transformers for near-infinite context", 2023,
arXiv 2310.01889; Jacobs et al., "DeepSpeed Ulysses", 2023, arXiv 2309.14509; Fang, Zhao, "USP: a
unified sequence parallelism approach for long context generative AI", 2024, arXiv 2405.07719
(hierarchical); Dubey et al., "The Llama 3 herd of models", 2024, arXiv 2407.21783, section 3.3.2
(all-gather of keys and values, zigzag).
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import msgspec

from perfmodel.base.errors import InputError
from perfmodel.base.ranges import unchecked
from perfmodel.base.same import Same
from perfmodel.inputs.decoder import Decoder
from perfmodel.inputs.decoder_layers import layers_of
from perfmodel.inputs.operator_shapes import Attention, OperatorShape
from perfmodel.inputs.profile import Layer
from perfmodel.inputs.replica import Replica


def part_layers(
    decoder: Decoder, length: int, precision: str, replica: Replica
) -> tuple[Layer, ...]:
    """Return the layers of a decoder on one of the devices that divide its layers and sequences.

    Raises
    ------
    InputError : the devices cannot share the heads, or the tokens.
    """
    if replica.context == 1:
        return layers_of(decoder, length, precision, replica.tensor, replica.experts)
    plain = msgspec.structs.replace(  # what only stages depend on
        replica, pipeline=1, virtual_stages=1, schedule="1f1b", stage_layers=(), balance=False
    )
    return _part_layers(decoder, length, precision, plain)


@functools.lru_cache(maxsize=64)
def _part_layers(
    decoder: Decoder, length: int, precision: str, replica: Replica
) -> tuple[Layer, ...]:
    """Return the layers of sequences that devices divide."""
    check(decoder, length, replica)
    given = (precision, replica.tensor, replica.experts)
    whole = layers_of(decoder, length, *given)
    parts = layers_of(decoder, length // replica.context, *given)
    known: dict[tuple[int, int], tuple[OperatorShape, ...]] = {}  # equal blocks share operators
    layers = []
    for layer, part in zip(whole, parts, strict=True):
        key = id(layer.operators), id(part.operators)
        if key not in known:
            known[key] = _split(layer.operators, part.operators, replica)
        layers.append(unchecked(part, operators=known[key]))
    return tuple(layers)


def check(decoder: Decoder, length: int, replica: Replica) -> None:
    """Raise InputError unless so many devices can divide sequences of this length."""
    context, together = replica.context, replica.context_all_to_all
    if not decoder.flash:
        raise InputError("context: needs attention that does not store its scores (flash)")
    heads = decoder.heads // replica.tensor
    if together > 1 and heads % together:
        name = "context" if together == context else "context_inside"
        possible = ", ".join(str(k) for k in range(1, heads + 1) if heads % k == 0)
        raise InputError(
            f"{name}: {together} devices cannot share {heads} heads in all-to-alls "
            f"({decoder.heads} heads of tensor {replica.tensor}; possible: {possible})"
        )
    halves = 2 if replica.context_split != "contiguous" and together < context else 1
    if length % (halves * context):
        possible = ", ".join(str(k) for k in range(1, 2 * context) if length % (halves * k) == 0)
        parts = "pairs of parts" if halves == 2 else "parts"
        raise InputError(
            f"context: {length} tokens do not form equal {parts} for {context} devices "
            f"(possible: {possible})"
        )


def _split(
    whole: Sequence[OperatorShape], parts: Sequence[OperatorShape], replica: Replica
) -> tuple[OperatorShape, ...]:
    """Return the operators of a layer on a device, with its share of attention over ``whole``
    sequences instead of attention over its ``parts``."""
    made: list[OperatorShape] = []
    for one, part in zip(whole, parts, strict=True):
        several = isinstance(one, Attention) and isinstance(part, Attention)
        made += _blocks(one, part, replica) if several else [part]  # type: ignore[arg-type]
    return tuple(made)


def _blocks(whole: Attention, own: Attention, replica: Replica) -> list[Attention]:
    """Return the kernels of a device that together attend to ``whole`` sequences, on average of all
    devices: of its ``own`` tokens, and of blocks with half of the keys of other devices."""
    together = replica.context_all_to_all
    groups = max(own.kv_heads // together, 1)
    heads = own.heads // together
    if together == replica.context:
        return [msgspec.structs.replace(whole, heads=heads, kv_heads=groups)]
    tokens = own.length * own.count * together
    own = msgspec.structs.replace(own, heads=heads, kv_heads=groups)
    if own.count == 1:
        own = msgspec.structs.replace(own, length=tokens)
    others = replica.context // together - 1
    if whole.window is not None:
        others = min(others, max(round(2 * whole.window / tokens) - 1, 0))
    elif whole.count > 1:
        others = min(others, max(round(whole.length / tokens) - 1, 0))
    # half of the keys for all queries: as many tiles as two sequences of half the length
    half = msgspec.structs.replace(
        own,
        length=max(tokens // 2, 1),
        heads=2 * heads,
        kv_heads=2 * groups,
        causal=False,
        window=None,
        count=1,
    )
    return [own, *[half] * others]


@functools.lru_cache(maxsize=64)
def exchanged_by_name(
    layers: Same[tuple[Layer, ...]], replica: Replica
) -> dict[str, tuple[float, float]]:
    """Return :func:`exchanged_values` of each layer of which they are not 0, by its name."""
    known: dict[int, tuple[float, float]] = {}  # equal blocks share operators
    for layer in layers.value:
        if id(layer.operators) not in known:
            known[id(layer.operators)] = exchanged_values(layer.operators, replica)
    values = {layer.name: known[id(layer.operators)] for layer in layers.value}
    return {name: pair for name, pair in values.items() if pair != (0.0, 0.0)}


def exchanged_values(operators: Sequence[OperatorShape], replica: Replica) -> tuple[float, float]:
    """Return the values of keys and values, and of queries and outputs, of a whole sequence on one
    of the devices that divide layers, given the operators of a layer there.

    In all-to-alls each device has at least one head of keys.
    """
    keys = queries = 0.0
    for one in operators:
        if isinstance(one, Attention):
            groups = max(one.kv_heads, replica.context_all_to_all)
            tokens = float(one.length * one.count)
            keys += 2.0 * tokens * groups * one.mean_width
            queries += 2.0 * tokens * one.heads * one.mean_width
    return keys, queries
