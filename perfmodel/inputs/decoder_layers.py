"""Layers of a decoder-only transformer at a sequence length, and profiles made of them."""

from __future__ import annotations

import functools

import msgspec

from perfmodel.base.errors import InputError
from perfmodel.inputs.activations import FUSED_LOSS
from perfmodel.inputs.decoder import Decoder
from perfmodel.inputs.profile import Layer, Profile, Tensor

PARAMETER_BYTES = 4
"""Bytes of a stored parameter, and of its gradient: float32."""

LOSS_BYTES = 4
"""Bytes of a logit in the loss, which is computed in float32 at every precision."""

MASK_BYTES = 1
"""Bytes per value of the mask of a dropout."""

SIXTEEN_BITS = ("mixed", "bf16", "fp16")
"""Precisions with two-byte activations; at the others they have four bytes."""


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
def layers_of(decoder: Decoder, sequence_length: int, precision: str) -> tuple[Layer, ...]:
    """Layers in forward order, per sequence of ``sequence_length`` tokens.

    Matrix products count two operations per multiply-add. Attention counts in full, although the
    part beyond the causal diagonal need not be computed. Operations that only move memory (norms,
    sums, activations, loss) are layers of their own. What layers keep for backward is stated for
    fused kernels: every layer its output, but the products before a sum nothing, or the mask of
    their dropout; attention with stored scores also these, twice with the mask of a dropout; the
    loss the logits and their logarithmic softmax.

    References
    ----------
    Korthikanti et al., "Reducing activation recomputation in large transformer models", 2022, arXiv
    2205.05198 (activations); Dao et al., "FlashAttention", 2022, arXiv 2205.14135.
    """
    d, s = decoder, sequence_length
    element = 2 if precision in SIXTEEN_BITS else 4
    make = _Making(d, s, element)
    h, inner = d.hidden, d.inner
    layers = [make.layer("embedding", "embedding", h, tensors=[("weight", d.vocabulary * h)])]
    if rows := d.position_rows(s):
        layers.append(make.layer("positions", "embedding", h, tensors=[("weight", rows * h)]))
    for i in range(d.blocks):
        layers += make.block(f"blocks.{i}.", h, inner)
    layers.append(make.norm("norm"))
    head = [] if d.tied else [("weight", d.vocabulary * h)]
    flop = 2.0 * s * h * d.vocabulary
    layers.append(make.layer("head", "linear", d.vocabulary, flop=flop, tensors=head, saved=0.0))
    loss = LOSS_BYTES / element * d.vocabulary
    kind = FUSED_LOSS if d.fused_loss else "loss"
    layers.append(make.layer("loss", kind, loss, saved=d.vocabulary + loss))
    return tuple(layers)


class _Making(msgspec.Struct, frozen=True):
    """Makes layers for sequences of ``tokens`` tokens, with activations of ``element`` bytes."""

    decoder: Decoder
    tokens: int
    element: int

    def layer(
        self,
        name: str,
        kind: str,
        kept: float,
        *,
        flop: float = 0.0,
        tensors: list[tuple[str, int]] | None = None,
        saved: float | None = None,
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
        )

    def linear(self, name: str, width: int, out: int, saved: float | None = None) -> Layer:
        """A product with a ``width`` x ``out`` matrix."""
        tensors = [("weight", width * out)] + ([("bias", out)] if self.decoder.biases else [])
        flop = 2.0 * self.tokens * width * out
        return self.layer(name, "linear", out, flop=flop, tensors=tensors, saved=saved)

    def norm(self, name: str) -> Layer:
        """A norm over the residual stream."""
        h = self.decoder.hidden
        tensors = [("weight", h)] + ([("bias", h)] if self.decoder.biases else [])
        return self.layer(name, "layernorm", h, tensors=tensors)

    def block(self, name: str, h: int, inner: int) -> list[Layer]:
        """The layers of a block: attention, then feed-forward, each after a norm."""
        out = 2 * inner if self.decoder.gated else inner
        scores = 4.0 * self.tokens**2 * h
        mask = MASK_BYTES / self.element if self.decoder.dropout else 0.0
        per_score = 2.0 + mask if self.decoder.dropout else 1.0
        kept = h if self.decoder.flash else h + per_score * self.decoder.heads * self.tokens
        return [
            self.norm(f"{name}norm_1"),
            self.linear(f"{name}attention.qkv", h, h + 2 * self.decoder.kv_width),
            self.layer(f"{name}attention.scores", "attention", h, flop=scores, saved=kept),
            self.linear(f"{name}attention.out", h, h, saved=mask * h),
            self.layer(f"{name}sum_1", "sum", h),
            self.norm(f"{name}norm_2"),
            self.linear(f"{name}feed_forward.up", h, out),
            self.layer(f"{name}feed_forward.activation", "activation", inner),
            self.linear(f"{name}feed_forward.down", inner, h, saved=mask * h),
            self.layer(f"{name}sum_2", "sum", h),
        ]
