"""Layers of a decoder-only transformer at a sequence length, and profiles made of them."""

from __future__ import annotations

import functools

import msgspec

from perfmodel.base.errors import InputError, whole_number
from perfmodel.base.ranges import unchecked
from perfmodel.inputs.activations import FUSED_LOSS
from perfmodel.inputs.decoder import Decoder
from perfmodel.inputs.decoder_parts import COMBINE, DISPATCH, EXPERTS, ROUTER, Experts, Latent
from perfmodel.inputs.decoder_values import (
    AFTER_NORMS,
    LOSS_BYTES,
    MASK_BYTES,
    PARAMETER_BYTES,
    ROUTED_VALUES,
    UNFUSED_GATE,
    UNFUSED_NORM,
    UNFUSED_ROTATION,
)
from perfmodel.inputs.expert_parallel import ExpertParallel
from perfmodel.inputs.operator_shapes import (
    Attention,
    Grouped,
    MemoryBound,
    OperatorShape,
    Product,
)
from perfmodel.inputs.precisions import RECIPES, SHORT
from perfmodel.inputs.profile import Layer, Profile, Tensor


def at_length(profile: Profile, sequence_length: int | None) -> Profile:
    """Return a model's profile for a sequence length; by default the one in its file.

    Timings, and the layers recorded with them, hold for the default length only: at any other
    length the profile has neither.

    Raises
    ------
    InputError : the model does not support the length, or has no decoder.
    """
    decoder = profile.decoder
    if sequence_length is None:
        return profile
    if decoder is None:
        raise InputError(
            f"sequence_length: {profile.name} is not a language model with given dimensions (its "
            "file has no decoder)"
        )
    if decoder.checked(sequence_length) == decoder.sequence_length:
        return profile
    at = msgspec.structs.replace(decoder, sequence_length=sequence_length)
    return msgspec.structs.replace(profile, layers=(), timings=(), decoder=at)


def with_layers(profile: Profile, precision: str) -> Profile:
    """Return the profile with the layers of its decoder."""
    if profile.decoder is None:
        return profile
    layers = layers_of(profile.decoder, profile.decoder.sequence_length, precision)
    made = {"layers": layers, "timings": (), "activation_precision": precision}
    return msgspec.structs.replace(profile, **made)


@functools.lru_cache(maxsize=64)
def layers_of(
    decoder: Decoder,
    sequence_length: int,
    precision: str,
    tensor: int = 1,
    parallel: ExpertParallel | None = None,
) -> tuple[Layer, ...]:
    """Layers in forward order, per sequence of ``sequence_length`` tokens, on one of ``tensor``
    devices that share every matrix (tensor parallelism).

    Matrix products count two operations per multiply-add. Attention counts in full, although the
    part beyond the causal diagonal need not be computed. Operations that only move memory (norms,
    sums, activations, loss) are layers of their own. What layers keep for backward is stated for
    fused kernels: every layer its output, the last embedding also the mask of its dropout; but the
    products before a sum nothing, or the mask of their dropout; attention with stored scores also
    these, twice with the mask of a dropout; the loss the logits and their logarithmic softmax.
    Inputs of products are kept in 8 bits if the recipe of the precision does so.

    A share of the devices has the rows of the vocabulary, the columns of the matrices that lead
    into attention and into the feed-forward part, and the rows of those that lead out. All have the
    norms and sums in full. The vocabulary is divided into equal parts, the last of which may have
    rows of no token; keys and values of which there are fewer heads than devices are on several.
    Matrices into latent vectors, and the router, are on all devices in full; each has a share of
    every expert, or of those that it has if experts are divided (``parallel``). It then computes an
    equal part of the tokens of all devices that have them.

    A feed-forward part of experts has the layers ``router``, ``dispatch``, ``experts.up``,
    ``experts.activation``, ``experts.down`` and ``combine``, and ``shared.up``,
    ``shared.activation`` and ``shared.down`` of shared experts. What experts give out is weighted
    before their last product, and so not kept. Every further token that is predicted has a
    projection and a block ``further.0`` before the last norm, and a head and a loss after it.

    Raises
    ------
    InputError : the devices cannot share the heads or the feed-forward part evenly.

    References
    ----------
    Korthikanti et al., "Reducing activation recomputation in large transformer models", 2022, arXiv
    2205.05198 (activations); Dao et al., "FlashAttention", 2022, arXiv 2205.14135; Shoeybi et al.,
    "Megatron-LM", 2019, arXiv 1909.08053, section 3 (tensor parallelism); DeepSeek-AI,
    "DeepSeek-V3", 2024, arXiv 2412.19437, sections 2.1 and 2.2 (latent attention, experts, further
    tokens).
    """
    d, s = decoder, sequence_length
    _check_share(d, tensor, parallel.tensor if parallel is not None else tensor)
    element = 2 if precision in SHORT else 4
    kept = RECIPES[precision].input_bytes / element if precision in RECIPES else 1.0
    make = _Making(d, s, element, tensor, kept, parallel or ExpertParallel(tensor=tensor))
    vocabulary = -(-d.vocabulary // tensor)
    layers = make.embeddings(vocabulary)
    kinds = [(d.has_experts(i), d.attended(i, s)) for i in range(d.blocks)]
    one = {kind: make.block(kinds.index(kind)) for kind in set(kinds)}
    layers += [make.named(f"blocks.{i}.", x) for i, kind in enumerate(kinds) for x in one[kind]]
    for i in range(d.multi_token):
        layers += [make.named(f"further.{i}.", layer) for layer in make.further(d.blocks + i)]
    layers.append(make.norm("norm"))
    for i in range(1 + d.multi_token):
        layers += make.ends("" if i == 0 else f"_{i + 1}", vocabulary)
    return tuple(layers)


def _check_share(decoder: Decoder, tensor: int, of_expert: int) -> None:
    """Raise InputError unless so many devices can share the matrices of a decoder."""
    whole_number("tensor", tensor)
    blocks, experts = range(decoder.blocks), decoder.experts
    dense = not all(decoder.has_experts(block) for block in blocks)
    for count, what in (
        (decoder.heads, "heads"),
        (decoder.inner if dense else 0, "values of the feed-forward"),
        (experts.shared_width if experts else 0, "values of the shared experts"),
    ):
        if count % tensor:
            raise InputError(f"tensor: {tensor} devices cannot share {count} {what} evenly")
    if experts is not None and experts.width % of_expert:
        raise InputError(
            f"expert_tensor: {of_expert} devices cannot share {experts.width} values of an expert "
            "evenly"
        )
    if decoder.latent is None and decoder.groups % tensor and tensor % decoder.groups:
        raise InputError(
            f"tensor: {tensor} devices cannot share {decoder.groups} key and value heads evenly"
        )


class _Making(msgspec.Struct, frozen=True):
    """Makes layers for sequences of ``tokens`` tokens, with activations of ``element`` bytes, on
    one of ``tensor`` devices with experts as ``parallel`` says. Inputs of products with weights in
    8 bits keep a part (``kept``) of the bytes of an activation."""

    decoder: Decoder
    tokens: int
    element: int
    tensor: int = 1
    kept: float = 1.0
    parallel: ExpertParallel = ExpertParallel()

    @property
    def mask(self) -> float:
        """The mask of a dropout, in values per value; 0 without dropout."""
        return MASK_BYTES / self.element if self.decoder.dropout else 0.0

    def layer(
        self,
        name: str,
        kind: str,
        kept: float,
        *,
        flop: float = 0.0,
        tensors: list[tuple[str, int]] | None = None,
        saved: float | None = None,
        operators: tuple[OperatorShape, ...] = (),
    ) -> Layer:
        """A layer with ``kept`` values of output per token, of which it keeps all, or ``saved``
        values, for backward; ``tensors`` has parameter counts."""
        return Layer(
            name=name,
            kind=kind,
            tensors=tuple(
                Tensor(f"{name}.{part}", PARAMETER_BYTES * count) for part, count in tensors or ()
            ),
            forward_flop=flop,
            activation_bytes=self.element * kept * self.tokens,
            saved_bytes=None if saved is None else self.element * saved * self.tokens,
            operators=operators,
        )

    def named(self, prefix: str, layer: Layer) -> Layer:
        """The same layer of another block."""
        tensors = tuple(unchecked(one, name=prefix + one.name) for one in layer.tensors)
        return unchecked(layer, name=prefix + layer.name, tensors=tensors)

    def moving(
        self,
        forward: float,
        backward: float,
        *,
        fixed: float = 0.0,
        kernels: int = 1,
        unfused: float = 1.0,
    ) -> MemoryBound:
        """An operator that reads and writes so many values per token, and ``fixed`` in backward."""
        moved = self.tokens * forward, self.tokens * backward
        return MemoryBound(*moved, fixed, kernels, unfused)

    def embeddings(self, vocabulary: int) -> list[Layer]:
        """Tables of so many tokens, and of positions; the output of the last is dropped out.

        The gradient of a table is as large as the table, whatever tokens there are.
        """
        h, rows = self.decoder.hidden, self.decoder.position_rows(self.tokens)
        tables = [("embedding", vocabulary, 2.0, 2.0)]
        if rows:
            tables.append(("positions", rows, 3.0, 1.0))
        layers = []
        for name, count, forward, backward in tables:
            saved = h + self.mask * h if self.mask and name == tables[-1][0] else None
            look_up = self.moving(forward * h, backward * h, fixed=count * h)
            table = [("weight", count * h)]
            layers.append(
                self.layer(name, "embedding", h, tensors=table, saved=saved, operators=(look_up,))
            )
        return layers

    def linear(self, name: str, width: int, out: int, saved: float | None = None) -> Layer:
        """A product with a ``width`` x ``out`` matrix."""
        tensors = [("weight", width * out)] + ([("bias", out)] if self.decoder.biases else [])
        flop = 2.0 * self.tokens * width * out
        shape = Product(self.tokens, out, width, normed=name in AFTER_NORMS)
        operators: tuple[OperatorShape, ...] = (shape,)
        if self.decoder.biases:  # its gradient is a sum over tokens
            operators += (self.moving(0.0, out),)
        return self.layer(
            name, "linear", out, flop=flop, tensors=tensors, saved=saved, operators=operators
        )

    def norm(self, name: str, width: int | None = None, kept: float = 1.0) -> Layer:
        """A norm over the residual stream, or over so many values, of whose output a part is
        kept."""
        h = self.decoder.hidden if width is None else width
        tensors = [("weight", h)] + ([("bias", h)] if self.decoder.biases else [])
        unfused = 1.0 if self.decoder.biases else UNFUSED_NORM
        operators = (self.moving(2.0 * h, 3.0 * h, unfused=unfused),)
        saved = None if kept == 1.0 else kept * h
        return self.layer(name, "layernorm", h, tensors=tensors, saved=saved, operators=operators)

    def head_norms(self, heads: int, groups: int) -> Layer:
        """Norms of the heads of queries and keys."""
        d = self.decoder
        parts = ("queries", "keys")
        biases = [(f"{part}_bias", d.key_width) for part in parts] if d.biases else []
        tensors = [(f"{part}_weight", d.key_width) for part in parts] + biases
        values = d.key_width * (heads + groups)
        unfused = 1.0 if d.biases else UNFUSED_NORM
        operators = (self.moving(2.0 * values, 3.0 * values, kernels=2, unfused=unfused),)
        return self.layer(
            "attention.norms", "layernorm", values, tensors=tensors, operators=operators
        )

    def core(self, block: int, saved: float) -> Layer:
        """The core of attention."""
        d, s = self.decoder, self.tokens
        heads, groups = d.heads // self.tensor, max(d.groups // self.tensor, 1)
        operators: tuple[OperatorShape, ...] = ()
        if d.latent is not None:
            # the part of a head that is rotated is joined to the rest
            rotated = 2.0 * d.key_width * 2 * heads
            operators += (self.moving(rotated, rotated, kernels=2, unfused=UNFUSED_ROTATION),)
        elif d.positions is None:  # queries and keys are rotated
            rotated = 2.0 * d.key_width * (heads + groups)
            operators += (self.moving(rotated, rotated, kernels=2, unfused=UNFUSED_ROTATION),)
        if d.flash:
            operators += (self.flash(block, heads, groups),)
        else:
            operators += (
                Product(s, s, d.key_width, count=heads, weights=False),
                self.softmax(heads * s),
                Product(s, d.value_width, s, count=heads, weights=False),
            )
        pairs = d.attended(block, s) if d.flash else float(s * s)
        flop = 2.0 * pairs * heads * (d.key_width + d.value_width)
        return self.layer(
            "attention.scores", "attention", heads * d.value_width, flop=flop, saved=saved,
            operators=operators,
        )  # fmt: skip

    def softmax(self, scores: int) -> MemoryBound:
        """The softmax of so many scores per token that are stored, with their mask, and dropout.

        One kernel reads scores and writes their softmax, and in backward reads the softmax and its
        gradient, and writes one; dropout reads and writes, and has a mask of its own.
        """
        d = self.decoder
        if not d.fused_softmax:
            moved = (8.0 if d.dropout else 4.0) * scores
            return self.moving(moved, moved, kernels=4 if d.dropout else 2)
        dropped = 2.0 + MASK_BYTES / self.element if d.dropout else 0.0
        return self.moving(
            (2.0 + dropped) * scores, (3.0 + dropped) * scores, kernels=2 if d.dropout else 1
        )

    def flash(self, block: int, heads: int, groups: int) -> Attention:
        """Attention that does not store its scores."""
        d, s = self.decoder, self.tokens
        values = None if d.value_width == d.key_width else d.value_width
        shape = Attention(s, heads, groups, d.key_width, value_width=values)
        window = d.window
        if window is None or not window.limits(block, s):
            return shape
        if window.kind == "sliding":
            return msgspec.structs.replace(shape, window=window.tokens)
        chunks = -(-s // window.tokens)
        return msgspec.structs.replace(shape, length=-(-s // chunks), count=chunks)

    def attention(self, block: int) -> list[Layer]:
        """Attention, from the residual stream to what is added to it."""
        d, t = self.decoder, self.tensor
        heads, groups = d.heads // t, max(d.groups // t, 1)
        mask = self.mask
        per_score = 2.0 + mask if d.dropout else 1.0
        # backward of attention needs its output in 16 bits
        copies = 1.0 if self.kept == 1.0 else 1.0 + self.kept
        saved = copies * heads * d.value_width + (
            0.0 if d.flash else per_score * heads * self.tokens
        )
        if d.latent is None:
            width = d.key_width * (heads + 2 * groups)
            layers = [self.linear("attention.qkv", d.hidden, width)]
        else:
            layers = self.latent(d.latent, heads)
        layers += [self.head_norms(heads, groups)] if d.head_norms else []
        out = self.linear("attention.out", heads * d.value_width, d.hidden, saved=mask * d.hidden)
        return [*layers, self.core(block, saved), out]

    def latent(self, part: Latent, heads: int) -> list[Layer]:
        """Queries, keys and values by way of latent vectors."""
        h, rank = self.decoder.hidden, part.query_rank
        queries = heads * self.decoder.key_width
        layers = []
        if rank is not None:
            layers = [
                self.linear("attention.q_down", h, rank),
                self.norm("attention.q_norm", rank, self.kept),
            ]
        return [
            *layers,
            self.linear("attention.q_up", rank or h, queries),
            self.linear("attention.kv_down", h, part.kv_rank + part.rope_width),
            self.norm("attention.kv_norm", part.kv_rank, self.kept),
            self.linear(
                "attention.kv_up", part.kv_rank, heads * (part.head_width + part.value_width)
            ),
        ]

    def feed_forward(self, name: str, width: int) -> list[Layer]:
        """A feed-forward part, or experts that all tokens pass."""
        h, inner = self.decoder.hidden, width // self.tensor
        mask = self.mask
        up = 2 * inner if self.decoder.gated else inner
        return [
            self.linear(f"{name}.up", h, up),
            self.activation(f"{name}.activation", inner),
            self.linear(f"{name}.down", inner, h, saved=mask * h),
        ]

    def activation(self, name: str, inner: float) -> Layer:
        """An activation of so many values per token, which a product takes."""
        saved = None if self.kept == 1.0 else self.kept * inner
        return self.layer(
            name, "activation", inner, saved=saved, operators=(self.activated(inner),)
        )

    def activated(self, inner: float) -> MemoryBound:
        """An activation of so many values per token, of twice as many if there is a gate."""
        if self.decoder.gated:
            return self.moving(3.0 * inner, 5.0 * inner, unfused=UNFUSED_GATE)
        return self.moving(2.0 * inner, 3.0 * inner)

    def experts(self, part: Experts) -> list[Layer]:
        """A feed-forward part of experts."""
        h, each = self.decoder.hidden, float(part.active)
        inner, share = part.width // self.parallel.tensor, self.tokens_share
        up, name = (2 * inner if self.decoder.gated else inner), "feed_forward.experts"
        chosen = (
            Product(self.tokens, part.routed, h, wide=True),
            # probabilities, the choice, and the places of tokens in the order of experts
            self.moving(ROUTED_VALUES * part.routed, ROUTED_VALUES * part.routed, kernels=4),
        )
        moved = (self.moving((1.0 + each) * h, (1.0 + each) * h),)
        router = self.layer(
            "feed_forward.router", ROUTER, part.routed, flop=chosen[0].flop,
            tensors=[("weight", h * part.routed)], operators=chosen,
        )  # fmt: skip
        layers = [
            router,
            self.layer(
                "feed_forward.dispatch",
                DISPATCH,
                each * h,
                saved=self.kept * each * h,
                operators=moved,
            ),
            self.grouped(f"{name}.up", part, h, up),
            self.activation(f"{name}.activation", share * each * inner),
            self.grouped(f"{name}.down", part, inner, h, saved=0.0),
            self.layer("feed_forward.combine", COMBINE, h, saved=0.0, operators=moved),
        ]
        if part.shared_width:
            layers += self.feed_forward("feed_forward.shared", part.shared_width)
        return layers

    @property
    def tokens_share(self) -> float:
        """Tokens that pass a device's experts over those that it is given: as many as all devices
        that divide each expert have, and with a capacity as many as there are places."""
        return self.parallel.factor * self.parallel.tensor / self.tensor

    def grouped(
        self, name: str, part: Experts, width: int, out: int, saved: float | None = None
    ) -> Layer:
        """A product of each expert with its tokens."""
        d, count = self.decoder, part.routed // self.parallel.degree
        each = part.active * self.tokens_share
        tensors = [("weight", count * width * out)] + ([("bias", count * out)] if d.biases else [])
        product = Grouped(max(round(self.tokens * each), 1), out, width, count)
        operators: tuple[OperatorShape, ...] = (product,)
        if d.biases:
            operators += (self.moving(0.0, each * out),)
        return self.layer(
            name, EXPERTS, each * out, flop=product.flop, tensors=tensors,
            saved=None if saved is None else each * saved, operators=operators,
        )  # fmt: skip

    def added(self, name: str, count: int = 2) -> Layer:
        """The sum of the residual stream and so many less one others, with their dropout."""
        h, mask = self.decoder.hidden, self.mask
        total = self.moving((1.0 + count + mask) * h, (3.0 + mask) * h)
        return self.layer(name, "sum", h, operators=(total,))

    def block(self, number: int) -> list[Layer]:
        """The layers of a block: attention, then feed-forward, each after a norm."""
        d = self.decoder
        part = d.experts if d.has_experts(number) else None
        second = self.feed_forward("feed_forward", d.inner) if part is None else self.experts(part)
        # the router takes 16 bits
        shared = float(self.kept < 1.0 and part is not None and part.shared_width > 0)
        return [
            self.norm("norm_1", kept=self.kept),
            *self.attention(number),
            *([self.norm("norm_1_out")] if d.outer_norms else []),
            self.added("sum_1"),
            self.norm("norm_2", kept=self.kept if part is None else 1.0 + shared * self.kept),
            *second,
            *([self.norm("norm_2_out")] if d.outer_norms else []),
            self.added("sum_2", 3 if part is not None and part.shared_width else 2),
        ]

    def further(self, number: int) -> list[Layer]:
        """The layers that predict a further token: norms of the residual stream and of that token's
        embedding, a projection of both to one, and a block."""
        h = self.decoder.hidden
        return [
            self.norm("norm_token"),
            self.norm("norm_stream"),
            self.linear("projection", 2 * h, h),
            *self.block(number),
            self.norm("norm_out"),
        ]

    def ends(self, suffix: str, vocabulary: int) -> list[Layer]:
        """The output layer and the loss; the output layer of a further token has no weights of its
        own."""
        d, h = self.decoder, self.decoder.hidden
        head = [] if d.tied or suffix else [("weight", vocabulary * h)]
        product = Product(self.tokens, vocabulary, h, wide=True)
        wide = LOSS_BYTES / self.element
        # cast to 32 bits, softmax, and its gradient in 32 bits, cast back
        moved = self.moving(
            (1.0 + 3.0 * wide) * vocabulary, (1.0 + 4.0 * wide) * vocabulary, kernels=3
        )
        kept = wide * vocabulary
        return [
            self.layer(
                f"head{suffix}", "linear", vocabulary, flop=product.flop, tensors=head, saved=0.0,
                operators=(product,),
            ),
            self.layer(
                f"loss{suffix}", FUSED_LOSS if d.fused_loss else "loss", kept,
                saved=vocabulary + kept, operators=(moved,),
            ),
        ]  # fmt: skip
