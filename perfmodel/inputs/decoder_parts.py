"""Parts of a decoder's blocks that not all have: experts, latent attention, windows."""

from typing import ClassVar, Literal

from perfmodel.base.errors import InputError
from perfmodel.base.ranges import COUNT, Range, Ranged, or_none

ROUTER, DISPATCH, EXPERTS, COMBINE = "router", "dispatch", "experts", "combine"
"""Kinds of layers of a feed-forward part of experts: the choice of experts for each token, tokens
in the order of their experts, the products of the experts, and their sum in the order of tokens."""

NUMBER = Range(0.0, whole=True)
"""Range of a number that may be 0."""


class Experts(Ranged, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Experts of the feed-forward part, of which each token passes few (mixture of experts).

    Attributes
    ----------
    routed : experts among which a router chooses.
    active : experts that it chooses for each token.
    width : width inside each expert.
    shared_width : width inside what all tokens pass besides, all shared experts together.
    dense_first : blocks at the start that have a usual feed-forward part.
    every : of the others every so many blocks, the last of each, have experts; the rest is usual.

    References
    ----------
    Fedus et al., "Switch transformers", 2022, arXiv 2101.03961; Dai et al., "DeepSeekMoE", 2024,
    arXiv 2401.06066 (shared experts).
    """

    RANGES: ClassVar = {
        **dict.fromkeys(("routed", "active", "width", "every"), COUNT),
        **dict.fromkeys(("shared_width", "dense_first"), NUMBER),
    }

    routed: int
    active: int
    width: int
    shared_width: int = 0
    dense_first: int = 0
    every: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.active > self.routed:
            raise InputError(f"active: {self.active} of {self.routed} experts (routed)")

    def are_in(self, block: int) -> bool:
        """Return whether a block, counted from 0, has experts."""
        return block >= self.dense_first and (block + 1) % self.every == 0


class Latent(Ranged, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Keys and values, and perhaps queries, by way of narrow latent vectors (MLA).

    Attributes
    ----------
    kv_rank : width of the latent vector of keys and values.
    rope_width : width of the rotated part of a head, whose keys all heads share.
    head_width, value_width : width of the rest of a head's queries and keys, and of its values.
    query_rank : width of the latent vector of queries; None: queries have none.

    References
    ----------
    DeepSeek-AI, "DeepSeek-V2", 2024, arXiv 2405.04434, section 2.1.
    """

    RANGES: ClassVar = {
        **dict.fromkeys(("kv_rank", "rope_width", "head_width", "value_width"), COUNT),
        "query_rank": or_none(COUNT),
    }

    kv_rank: int
    rope_width: int
    head_width: int
    value_width: int
    query_rank: int | None = None


class Window(Ranged, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Attention to near tokens only, in all blocks or in most.

    Attributes
    ----------
    tokens : that a token attends to at most.
    kind : *sliding*: the last so many; *chunked*: those of the same chunk of so many before it.
    full_every : every so many blocks, the last of each, attend to all tokens; None: no block does.
    """

    RANGES: ClassVar = {"tokens": COUNT, "full_every": or_none(COUNT)}

    tokens: int
    kind: Literal["sliding", "chunked"] = "sliding"
    full_every: int | None = None

    def limits(self, block: int, sequence_length: int) -> bool:
        """Return whether a block, counted from 0, attends to fewer tokens than all before."""
        full = self.full_every is not None and (block + 1) % self.full_every == 0
        return not full and sequence_length > self.tokens
