"""Kinds of activations, by kind of layer, and when memory is largest."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence

import msgspec

from perfmodel.inputs.precisions import SHORT
from perfmodel.inputs.profile import Layer, Profile

PRODUCT = "linear"
"""Kind of layers that are matrix products."""

LOSS = "loss"
"""End of the kinds of losses."""

FUSED_LOSS = "fused_loss"
"""Kind of a loss that computes its gradient in place."""

LOGITS = "logits"
"""Kind of the activations of the loss."""

KINDS = (
    (r"multiheadattention|attention", "attention"),
    (rf".*{LOSS}$", LOGITS),
    (r".*norm", "norms"),
    (r"conv", "convolutions"),
    (r"embedding", "embeddings"),
    (r"lstm|gru|rnn", "recurrent"),
    (r"sum", "sums"),
    (r"activation", "mlp"),
    (r"router|dispatch|experts|combine", "experts"),
)
"""Kinds of activations, by a pattern for the start of the kind of their layer."""

WIDE_IN_AUTOCAST = re.compile(r"(?!batch).*norm|embedding|sum")
"""Start of the kinds of layers that have 32 bits under autocast on a GPU too (PyTorch,
documentation of ``torch.amp``: operators that autocast to float32), or read what has them."""

MLP = r"feed_forward|mlp|ffn|intermediate"
"""Pattern of the names of products in the feed-forward part."""


@functools.lru_cache(maxsize=16_384)
def kind_of(name: str, kind: str) -> str:
    """Return the kind of activations of a layer with this name and kind, in words."""
    for pattern, word in KINDS:
        if re.match(pattern, kind):
            return word
    if kind != PRODUCT:
        return "other"
    if "attention" in name:
        return "attention"
    return "mlp" if re.search(MLP, name) else "linear"


def kinds_of(layers: Sequence[tuple[str, str]]) -> list[str]:
    """Return :func:`kind_of` of layers with these names and kinds."""
    return [kind_of(name, kind) for name, kind in layers]


def in_precision(profile: Profile, precision: str) -> Profile:
    """Return a profile with the activations that its layers have at a precision."""
    before = profile.activation_precision
    if not profile.layers or (before in SHORT) == (precision in SHORT):
        return profile

    def at_precision(layer: Layer) -> Layer:
        if "mixed" in (before, precision) and WIDE_IN_AUTOCAST.match(layer.kind):
            return layer
        factor = 0.5 if precision in SHORT else 2.0
        sizes = {
            name: None if (size := getattr(layer, name)) is None else factor * size
            for name in ("activation_bytes", "saved_bytes", "temporary_bytes")
        }
        return msgspec.structs.replace(layer, **sizes)

    layers = tuple(map(at_precision, profile.layers))
    return msgspec.structs.replace(profile, layers=layers, activation_precision=precision)


def by_kind(kept: Sequence[tuple[str, float]]) -> tuple[tuple[str, float], ...]:
    """Return the bytes of each kind, in the order of their first layer."""
    totals: dict[str, float] = {}
    for kind, size in kept:
        totals[kind] = totals.get(kind, 0.0) + size
    return tuple((kind, size) for kind, size in totals.items() if size > 0.0)


class Peak(msgspec.Struct, frozen=True):
    """A moment of a backward pass.

    ``activations`` and ``gradients`` are the shares of them that exist, and ``temporary_bytes`` is
    what exists besides.
    """

    activations: float = 1.0
    gradients: float = 1.0
    temporary_bytes: float = 0.0


class Peaks(msgspec.Struct, frozen=True):
    """The moments at which memory is largest: in a backward pass that produces gradients, and in
    one that adds to gradients of earlier passes; and temporary bytes of the optimizer."""

    first: Peak = Peak()
    further: Peak = Peak()
    update_bytes: float = 0.0
