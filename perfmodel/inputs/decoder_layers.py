"""Layers of a decoder-only transformer at a sequence length, and profiles made of them."""

from __future__ import annotations

import functools

import msgspec

from perfmodel.base.errors import InputError, whole_number
from perfmodel.inputs.activations import FUSED_LOSS
from perfmodel.inputs.decoder import Decoder
from perfmodel.inputs.operator_shapes import Attention, MemoryBound, OperatorShape, Product
from perfmodel.inputs.precisions import SHORT
from perfmodel.inputs.profile import Layer, Profile, Tensor

PARAMETER_BYTES = 4
"""Bytes of a stored parameter, and of its gradient: float32."""

LOSS_BYTES = 4
"""Bytes of a logit in the loss, which is computed in float32 at every precision."""

MASK_BYTES = 1
"""Bytes per value of the mask of a dropout."""

UNFUSED_NORM, UNFUSED_ROTATION, UNFUSED_GATE = 8.4, 4.0, 1.75
"""Bytes moved by several kernels over those of one, with 16 bits.

A root-mean-square norm is cast to 32 bits, squared, averaged, multiplied, cast back and multiplied
with its weights, 34 bytes per value instead of 4, and 50 instead of 6 in backward; rotary positions
are cast, multiplied and cast, 16 bytes instead of 4; a gate is an activation and a product, 5
values instead of 3, and 9 instead of 5. Layer norms and plain activations are one kernel anyway.
"""


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
    return msgspec.structs.replace(profile, layers=layers, timings=())


@functools.lru_cache(maxsize=64)
def layers_of(
    decoder: Decoder, sequence_length: int, precision: str, tensor: int = 1
) -> tuple[Layer, ...]:
    """Layers in forward order, per sequence of ``sequence_length`` tokens, on one of ``tensor``
    devices that share every matrix (tensor parallelism).

    Matrix products count two operations per multiply-add. Attention counts in full, although the
    part beyond the causal diagonal need not be computed. Operations that only move memory (norms,
    sums, activations, loss) are layers of their own. What layers keep for backward is stated for
    fused kernels: every layer its output, but the products before a sum nothing, or the mask of
    their dropout; attention with stored scores also these, twice with the mask of a dropout; the
    loss the logits and their logarithmic softmax.

    A share of the devices has the rows of the vocabulary, the columns of the matrices that lead
    into attention and into the feed-forward part, and the rows of those that lead out. All have the
    norms and sums in full. The vocabulary is divided into equal parts, the last of which may have
    rows of no token; keys and values of which there are fewer heads than devices are on several.

    Raises
    ------
    InputError : the devices cannot share the heads or the feed-forward part evenly.

    References
    ----------
    Korthikanti et al., "Reducing activation recomputation in large transformer models", 2022, arXiv
    2205.05198 (activations); Dao et al., "FlashAttention", 2022, arXiv 2205.14135; Shoeybi et al.,
    "Megatron-LM", 2019, arXiv 1909.08053, section 3 (tensor parallelism).
    """
    d, s = decoder, sequence_length
    _check_share(d, tensor)
    element = 2 if precision in SHORT else 4
    make = _Making(d, s, element, tensor)
    h, vocabulary = d.hidden, -(-d.vocabulary // tensor)
    # the gradient of a table is as large as the table, whatever tokens there are
    look_up = make.moving(2.0 * h, 2.0 * h, fixed=vocabulary * h)
    table = [("weight", vocabulary * h)]
    layers = [make.layer("embedding", "embedding", h, tensors=table, operators=(look_up,))]
    if rows := d.position_rows(s):
        look_up = make.moving(3.0 * h, 1.0 * h, fixed=rows * h)
        table = [("weight", rows * h)]
        layers += [make.layer("positions", "embedding", h, tensors=table, operators=(look_up,))]
    block = make.block()
    layers += [make.named(f"blocks.{i}.", layer) for i in range(d.blocks) for layer in block]
    layers.append(make.norm("norm"))
    head = [] if d.tied else [("weight", vocabulary * h)]
    flop = 2.0 * s * h * vocabulary
    product = (Product(s, vocabulary, h, wide=True),)
    layers.append(
        make.layer(
            "head", "linear", vocabulary, flop=flop, tensors=head, saved=0.0, operators=product
        )
    )
    wide = LOSS_BYTES / element
    kind = FUSED_LOSS if d.fused_loss else "loss"
    # cast to 32 bits, softmax, and its gradient in 32 bits, cast back
    operators = (
        make.moving((1.0 + 3.0 * wide) * vocabulary, (1.0 + 4.0 * wide) * vocabulary, kernels=3),
    )
    kept = wide * vocabulary
    layers.append(make.layer("loss", kind, kept, saved=vocabulary + kept, operators=operators))
    return tuple(layers)


def _check_share(decoder: Decoder, tensor: int) -> None:
    """Raise InputError unless so many devices can share the matrices of a decoder."""
    whole_number("tensor", tensor)
    for count, what in ((decoder.heads, "heads"), (decoder.inner, "values of the feed-forward")):
        if count % tensor:
            raise InputError(f"tensor: {tensor} devices cannot share {count} {what} evenly")
    if decoder.groups % tensor and tensor % decoder.groups:
        raise InputError(
            f"tensor: {tensor} devices cannot share {decoder.groups} key and value heads evenly"
        )


class _Making(msgspec.Struct, frozen=True):
    """Makes layers for sequences of ``tokens`` tokens, with activations of ``element`` bytes, on
    one of ``tensor`` devices."""

    decoder: Decoder
    tokens: int
    element: int
    tensor: int = 1

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
        tensors = tuple(Tensor(prefix + tensor.name, tensor.bytes) for tensor in layer.tensors)
        return msgspec.structs.replace(layer, name=prefix + layer.name, tensors=tensors)

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

    def linear(self, name: str, width: int, out: int, saved: float | None = None) -> Layer:
        """A product with a ``width`` x ``out`` matrix."""
        tensors = [("weight", width * out)] + ([("bias", out)] if self.decoder.biases else [])
        flop = 2.0 * self.tokens * width * out
        operators: tuple[OperatorShape, ...] = (Product(self.tokens, out, width),)
        if self.decoder.biases:  # its gradient is a sum over tokens
            operators += (self.moving(0.0, out),)
        return self.layer(
            name, "linear", out, flop=flop, tensors=tensors, saved=saved, operators=operators
        )

    def norm(self, name: str) -> Layer:
        """A norm over the residual stream."""
        h = self.decoder.hidden
        tensors = [("weight", h)] + ([("bias", h)] if self.decoder.biases else [])
        unfused = 1.0 if self.decoder.biases else UNFUSED_NORM
        operators = (self.moving(2.0 * h, 3.0 * h, unfused=unfused),)
        return self.layer(name, "layernorm", h, tensors=tensors, operators=operators)

    def attention(self, kept: float) -> Layer:
        """The core of attention."""
        d, s = self.decoder, self.tokens
        heads, groups = d.heads // self.tensor, max(d.groups // self.tensor, 1)
        width = d.hidden // d.heads
        operators: tuple[OperatorShape, ...] = ()
        if d.positions is None:  # queries and keys are rotated
            rotated = 2.0 * width * (heads + groups)
            operators += (self.moving(rotated, rotated, kernels=2, unfused=UNFUSED_ROTATION),)
        if d.flash:
            operators += (Attention(s, heads, groups, width),)
        else:  # softmax with its mask, and dropout
            scores = (8.0 if d.dropout else 4.0) * heads * s
            operators += (
                Product(s, s, width, count=heads, weights=False),
                self.moving(scores, scores, kernels=4 if d.dropout else 2),
                Product(s, width, s, count=heads, weights=False),
            )
        flop = 4.0 * s**2 * heads * width
        return self.layer(
            "attention.scores", "attention", heads * width, flop=flop, saved=kept,
            operators=operators,
        )  # fmt: skip

    def block(self) -> list[Layer]:
        """The layers of a block: attention, then feed-forward, each after a norm."""
        d, t = self.decoder, self.tensor
        h, inner = d.hidden, d.inner // t
        heads, kv_width = d.heads // t, d.hidden // d.heads * max(d.groups // t, 1)
        up = 2 * inner if d.gated else inner
        mask = MASK_BYTES / self.element if d.dropout else 0.0
        per_score = 2.0 + mask if d.dropout else 1.0
        kept = h // t if d.flash else h // t + per_score * heads * self.tokens
        passed = (
            self.moving(3.0 * inner, 5.0 * inner, unfused=UNFUSED_GATE)
            if d.gated
            else self.moving(2.0 * inner, 3.0 * inner)
        )
        total = self.moving((3.0 + mask) * h, (3.0 + mask) * h)
        return [
            self.norm("norm_1"),
            self.linear("attention.qkv", h, h // t + 2 * kv_width),
            self.attention(kept),
            self.linear("attention.out", h // t, h, saved=mask * h),
            self.layer("sum_1", "sum", h, operators=(total,)),
            self.norm("norm_2"),
            self.linear("feed_forward.up", h, up),
            self.layer("feed_forward.activation", "activation", inner, operators=(passed,)),
            self.linear("feed_forward.down", inner, h, saved=mask * h),
            self.layer("sum_2", "sum", h, operators=(total,)),
        ]
