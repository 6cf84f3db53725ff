"""Kinds of activations, by kind of layer."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence

PRODUCT = "linear"
"""Kind of layers that are matrix products."""

LOGITS = "logits"
"""Kind of the activations of the loss."""

KINDS = (
    (r"multiheadattention|attention", "attention"),
    (r"loss", LOGITS),
    (r".*norm", "norms"),
    (r"conv", "convolutions"),
    (r"embedding", "embeddings"),
    (r"lstm|gru|rnn", "recurrent"),
    (r"sum", "sums"),
    (r"activation", "mlp"),
)
"""Kinds of activations, by a pattern for the start of the kind of their layer."""

MLP = r"feed_forward|mlp|ffn|intermediate"
"""Pattern of the names of products in the feed-forward part."""


@functools.lru_cache(maxsize=1024)
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


def by_kind(kept: Sequence[tuple[str, float]]) -> tuple[tuple[str, float], ...]:
    """Return the bytes of each kind, in the order of their first layer."""
    totals: dict[str, float] = {}
    for kind, size in kept:
        totals[kind] = totals.get(kind, 0.0) + size
    return tuple((kind, size) for kind, size in totals.items() if size > 0.0)
