"""Dimensions of decoder-only transformers, such as GPT-2, Llama and DeepSeek-V3."""

from typing import ClassVar, Literal

from perfmodel.base.errors import InputError, whole_number
from perfmodel.base.ranges import COUNT, Ranged, or_none
from perfmodel.inputs.decoder_parts import NUMBER, Experts, Latent, Window

MOST_SEQUENCE_LENGTH = 10_000_000
"""Maximum tokens per sequence; a limit that catches typing errors."""


class Decoder(Ranged, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A decoder-only transformer; its layers at any sequence length follow from these dimensions.

    Attributes
    ----------
    hidden : width of the residual stream.
    blocks, heads : number of transformer blocks, and of attention heads per block.
    kv_heads : key and value heads, if fewer (grouped-query attention); default ``heads``.
    head_width : width of a head; default ``hidden`` over ``heads``.
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
    fused_softmax : whether scaling, mask and softmax of stored scores are one kernel, as in
        Megatron-LM.
    sequence_length : default tokens per sequence.
    experts : of feed-forward parts that have any.
    latent : widths of latent attention (MLA), instead of ``kv_heads`` and ``head_width``.
    window : tokens that attention is limited to.
    head_norms, outer_norms : whether there are norms of the heads of queries and keys, and of the
        outputs of attention and of the feed-forward part.
    multi_token : further tokens that are predicted during training, each by a block of its own
        (multi-token prediction).
    """

    RANGES: ClassVar = {
        **dict.fromkeys(("hidden", "blocks", "heads", "vocabulary"), COUNT),
        **dict.fromkeys(("kv_heads", "head_width", "feed_forward"), or_none(COUNT)),
        "multi_token": NUMBER,
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
    head_width: int | None = None
    experts: Experts | None = None
    latent: Latent | None = None
    window: Window | None = None
    head_norms: bool = False
    outer_norms: bool = False
    multi_token: int = 0
    fused_softmax: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.latent is not None:
            for name in ("kv_heads", "head_width"):
                if getattr(self, name) is not None:
                    raise InputError(f"{name}: not with latent attention, which has its own widths")
        elif self.head_width is None and self.hidden % self.heads:
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
    def key_width(self) -> int:
        """Width of a head's queries and keys."""
        if self.latent is not None:
            return self.latent.head_width + self.latent.rope_width
        return self.hidden // self.heads if self.head_width is None else self.head_width

    @property
    def value_width(self) -> int:
        """Width of a head's values."""
        return self.key_width if self.latent is None else self.latent.value_width

    @property
    def kv_width(self) -> int:
        """Total width of the keys; that of the values is the same."""
        return self.key_width * self.groups

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

    def has_experts(self, block: int) -> bool:
        """Return whether the feed-forward part of a block, counted from 0, has experts."""
        return self.experts is not None and self.experts.are_in(block)

    def attended(self, block: int, sequence_length: int) -> float:
        """Return the pairs of tokens of a sequence that attend to each other in a block.

        Without a window all count, also those beyond the causal diagonal. With one, twice those
        before it do.
        """
        s, window = float(sequence_length), self.window
        if window is None or not window.limits(block, sequence_length):
            return s * s
        if window.kind == "chunked":
            return s * s / -(-sequence_length // window.tokens)
        return 2.0 * window.tokens * s - float(window.tokens) ** 2

    def model_flop(self, sequence_length: int) -> float:
        """Floating-point operations to train on one token, as published utilisations count them.

        6 (active parameters) + 12 blocks * width of all heads * sequence length: causal attention
        counts in full, but for a window, and recomputation does not count.

        References
        ----------
        Chowdhery et al., "PaLM: scaling language modeling with pathways", 2022, arXiv 2204.02311,
        appendix B.
        """
        width = self.heads * (self.key_width + self.value_width) / 2.0
        blocks = range(self.blocks + self.multi_token)
        pairs = sum(self.attended(block, sequence_length) for block in blocks)
        attention = 12.0 * width * pairs / sequence_length
        return 6.0 * self.active_parameters(sequence_length) + attention

    def parameters(self, sequence_length: int) -> int:
        """Number of parameters."""
        routed = 0 if self.experts is None else self.experts.routed
        return self._parameters(sequence_length, routed)

    def active_parameters(self, sequence_length: int) -> int:
        """Number of parameters without the experts that a token does not pass.

        The embedding counts in full, as it does where it is the output layer as well.
        """
        active = 0 if self.experts is None else self.experts.active
        return self._parameters(sequence_length, active)

    def _parameters(self, sequence_length: int, experts: int) -> int:
        """Number of parameters with so many routed experts in a block that has any."""
        h = self.hidden
        blocks = range(self.blocks + self.multi_token)
        inside = sum(self._block_parameters(block, experts) for block in blocks)
        ends = h * (self.vocabulary + self.position_rows(sequence_length)) + self._norm(h)
        ends += 0 if self.tied else h * self.vocabulary
        ends += self.multi_token * (self._linear(2 * h, h) + 3 * self._norm(h))
        return inside + ends

    def _linear(self, width: int, out: int) -> int:
        return width * out + (out if self.biases else 0)

    def _norm(self, width: int) -> int:
        return width * (2 if self.biases else 1)

    def _expert(self, width: int) -> int:
        """Number of parameters of a feed-forward part, or of an expert."""
        up = (2 if self.gated else 1) * width
        return self._linear(self.hidden, up) + self._linear(width, self.hidden)

    def _block_parameters(self, block: int, experts: int) -> int:
        norms = (4 if self.outer_norms else 2) * self._norm(self.hidden)
        norms += 2 * self._norm(self.key_width) if self.head_norms else 0
        total = norms + self._attention_parameters()
        if self.experts is None or not self.has_experts(block):
            return total + self._expert(self.inner)
        total += self.hidden * self.experts.routed + experts * self._expert(self.experts.width)
        shared = self.experts.shared_width
        return total + (self._expert(shared) if shared else 0)

    def _attention_parameters(self) -> int:
        h, heads, part = self.hidden, self.heads, self.latent
        out = self._linear(heads * self.value_width, h)
        if part is None:
            return self._linear(h, heads * self.key_width + 2 * self.kv_width) + out
        queries, rank = heads * self.key_width, part.query_rank
        up = self._linear(part.kv_rank, heads * (part.head_width + part.value_width))
        total = (
            out + up + self._linear(h, part.kv_rank + part.rope_width) + self._norm(part.kv_rank)
        )
        if rank is None:
            return total + self._linear(h, queries)
        return total + self._linear(h, rank) + self._norm(rank) + self._linear(rank, queries)
