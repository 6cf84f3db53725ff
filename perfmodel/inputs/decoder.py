"""Dimensions of decoder-only transformers, such as GPT-2 and Llama."""

from typing import ClassVar, Literal

from perfmodel.base.errors import InputError, whole_number
from perfmodel.base.ranges import COUNT, Ranged, or_none

MOST_SEQUENCE_LENGTH = 10_000_000
"""Maximum tokens per sequence; a limit that catches typing errors."""


class Decoder(Ranged, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A decoder-only transformer; its layers at any sequence length follow from these dimensions.

    Attributes
    ----------
    hidden : width of the residual stream.
    blocks, heads : number of transformer blocks, and of attention heads per block.
    kv_heads : key and value heads, if fewer (grouped-query attention); default ``heads``.
    feed_forward : width inside the feed-forward part; default 4 ``hidden``.
    gated : whether the feed-forward part has a gate (SwiGLU), that is a third matrix.
    vocabulary : rows of the token embedding.
    positions : rows of a learned position embedding, which limit the sequence length;
        *sequence_length*: as many as the sequences have tokens; None: no learned positions.
    tied : whether the output layer shares the token embedding.
    biases : whether linear layers and norms have biases.
    dropout : whether blocks have dropout, whose masks backward needs.
    flash : whether attention recomputes its scores in backward instead of keeping them.
    fused_loss : whether the gradient of the logits is made in one step, as in Megatron-LM, instead
        of from a gradient of the logarithmic softmax, as in PyTorch.
    sequence_length : default tokens per sequence.
    """

    RANGES: ClassVar = {
        **dict.fromkeys(("hidden", "blocks", "heads", "vocabulary"), COUNT),
        **dict.fromkeys(("kv_heads", "feed_forward"), or_none(COUNT)),
    }

    hidden: int
    blocks: int
    heads: int
    vocabulary: int
    sequence_length: int
    kv_heads: int | None = None
    feed_forward: int | None = None
    gated: bool = False
    positions: int | Literal["sequence_length"] | None = None
    tied: bool = True
    biases: bool = True
    dropout: bool = False
    flash: bool = True
    fused_loss: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.hidden % self.heads:
            raise InputError(f"heads: {self.heads} do not divide the hidden width {self.hidden}")
        if self.heads % self.groups:
            raise InputError(f"kv_heads: {self.groups} do not divide {self.heads} heads")
        if isinstance(self.positions, int):
            whole_number("positions", self.positions)
        self.checked(self.sequence_length)

    @property
    def groups(self) -> int:
        """Key and value heads."""
        return self.heads if self.kv_heads is None else self.kv_heads

    @property
    def kv_width(self) -> int:
        """Total width of the keys; that of the values is the same."""
        return self.hidden // self.heads * self.groups

    @property
    def inner(self) -> int:
        """Width inside the feed-forward part."""
        return 4 * self.hidden if self.feed_forward is None else self.feed_forward

    def checked(self, sequence_length: int) -> int:
        """Return the sequence length if the model supports it.

        Raises
        ------
        InputError : not a whole number from 1 on, or more than the model has positions.
        """
        whole_number("sequence_length", sequence_length, at_most=MOST_SEQUENCE_LENGTH)
        if isinstance(self.positions, int) and sequence_length > self.positions:
            raise InputError(
                f"sequence_length: {sequence_length} tokens, but the model has {self.positions} "
                "positions"
            )
        return sequence_length

    def position_rows(self, sequence_length: int) -> int:
        """Rows of the learned position embedding; 0 if there is none."""
        if self.positions is None:
            return 0
        return sequence_length if self.positions == "sequence_length" else self.positions

    def model_flop(self, sequence_length: int) -> float:
        """Floating-point operations to train on one token, as published utilisations count them.

        6 (parameters) + 12 blocks * hidden * sequence length: causal attention counts in full, and
        recomputation does not count.

        References
        ----------
        Chowdhery et al., "PaLM: scaling language modeling with pathways", 2022, arXiv 2204.02311,
        appendix B.
        """
        attention = 12.0 * self.blocks * self.hidden * sequence_length
        return 6.0 * self.parameters(sequence_length) + attention

    def parameters(self, sequence_length: int) -> int:
        """Number of parameters."""
        h, kv, inner = self.hidden, self.kv_width, self.inner
        block = 2 * h * h + 2 * h * kv + (3 if self.gated else 2) * h * inner + 2 * h
        if self.biases:
            block += 2 * h + 2 * kv + (2 if self.gated else 1) * inner + h + 2 * h
        ends = h * (self.vocabulary + self.position_rows(sequence_length) + 1)
        ends += 0 if self.tied else h * self.vocabulary
        return self.blocks * block + ends + (h if self.biases else 0)
