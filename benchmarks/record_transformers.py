"""Record encoder-decoders and vision transformers in profiles/models from their dimensions.

Run from the root of the repository:

    python -m benchmarks.record_transformers

Layers have the names of a decoder's, so that stages have whole blocks and devices can divide them:
``blocks.0.attention.qkv`` and so on, those of the decoder after those of the encoder.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from perfmodel import Source
from perfmodel.base import files
from perfmodel.inputs.operator_shapes import Attention, MemoryBound, OperatorShape, Product
from perfmodel.inputs.profile import Layer, Profile, Tensor
from perfmodel.inputs.profile_files import dumped

ELEMENT = 4
"""Bytes of a parameter and of an activation, in float32."""

NORM = {False: 8.4, True: 1.0}
"""Values moved over those of one kernel: of a root-mean-square norm, and of one with biases."""


class T5(NamedTuple):
    """Dimensions of a T5, by Raffel et al., JMLR 21, 2020, section 3.1 and table 1 of its appendix:
    of the residual stream, blocks of encoder and of decoder each, heads, their width, and that of
    the feed-forward part."""

    width: int
    blocks: int
    heads: int
    head_width: int
    inner: int
    title: str


class ViT(NamedTuple):
    """Dimensions of a vision transformer, by Dosovitskiy et al., ICLR 2021, table 1, and Zhai et
    al., CVPR 2022, table 2: also the pixels along a patch, and along an image."""

    width: int
    blocks: int
    heads: int
    inner: int
    patch: int
    title: str
    pixels: int = 224


MODELS: dict[str, T5 | ViT] = {
    "t5-small": T5(512, 6, 8, 64, 2048, "T5 small"),
    "t5-base": T5(768, 12, 12, 64, 3072, "T5 base"),
    "t5-large": T5(1024, 24, 16, 64, 4096, "T5 large"),
    "t5-3b": T5(1024, 24, 32, 128, 16384, "T5 3B"),
    "t5-11b": T5(1024, 24, 128, 128, 65536, "T5 11B"),
    "vit-h14": ViT(1280, 32, 16, 5120, 14, "ViT-H/14"),
    "vit-g14": ViT(1408, 40, 16, 6144, 14, "ViT-g/14"),
}

VOCABULARY, BUCKETS = 32128, 32
"""Rows of T5's table of words, and of its tables of relative positions."""

READ, WRITTEN = 512, 128
"""Tokens that an encoder reads and that a decoder writes, as in Megatron-LM's example of T5."""

CLASSES = 1000


class _Making(NamedTuple):
    """Makes layers of sequences of ``tokens`` tokens of ``width`` values."""

    tokens: int
    width: int
    biases: bool

    def layer(
        self,
        name: str,
        kind: str,
        kept: float,
        operators: tuple[OperatorShape, ...],
        *,
        tensors: Sequence[tuple[str, int]] = (),
        saved: float | None = None,
        passed_on: float = 0.0,
    ) -> Layer:
        """A layer with so many values of output per token, of which it keeps ``saved``; with its
        output goes ``passed_on``, values in all."""
        flop = sum(one.flop for one in operators if isinstance(one, Product | Attention))
        return Layer(
            name=name,
            kind=kind,
            tensors=tuple(Tensor(f"{name}.{part}", ELEMENT * count) for part, count in tensors),
            forward_flop=flop,
            activation_bytes=ELEMENT * (kept * self.tokens + passed_on),
            saved_bytes=ELEMENT * (kept if saved is None else saved) * self.tokens,
            operators=operators,
        )

    def moving(self, forward: float, backward: float, **more: float) -> MemoryBound:
        """So many values per token, read or written."""
        return MemoryBound(self.tokens * forward, self.tokens * backward, **more)  # type: ignore[arg-type]

    def linear(self, name: str, depth: int, columns: int, saved: float | None = None) -> Layer:
        biases = [("bias", columns)] if self.biases else []
        tensors = [("weight", depth * columns), *biases]
        operators: tuple[OperatorShape, ...] = (Product(self.tokens, columns, depth),)
        if self.biases:
            operators += (self.moving(0.0, columns),)
        return self.layer(name, "linear", columns, operators, tensors=tensors, saved=saved)

    def norm(self, name: str, passed_on: float = 0.0) -> Layer:
        h = self.width
        tensors = [("weight", h)] + ([("bias", h)] if self.biases else [])
        operators = (self.moving(2.0 * h, 3.0 * h, unfused=NORM[self.biases]),)
        return self.layer(name, "layernorm", h, operators, tensors=tensors, passed_on=passed_on)

    def added(self, name: str, passed_on: float = 0.0) -> Layer:
        moved = self.moving(3.0 * self.width, 3.0 * self.width)
        return self.layer(name, "sum", self.width, (moved,), passed_on=passed_on)

    def feed_forward(self, prefix: str, inner: int) -> list[Layer]:
        activated = self.moving(2.0 * inner, 3.0 * inner)
        return [
            self.norm(f"{prefix}norm_feed_forward"),
            self.linear(f"{prefix}feed_forward.up", self.width, inner),
            self.layer(f"{prefix}feed_forward.activation", "activation", inner, (activated,)),
            self.linear(f"{prefix}feed_forward.down", inner, self.width, saved=0.0),
        ]


def _scores(make: _Making, name: str, heads: int, width: int, keys: int, rows: int) -> Layer:
    """Attention that stores its scores, which have a bias by relative position: of ``rows`` rows,
    if the block has a table of its own."""
    values = 6.0 * heads * keys  # the sum with the bias, and the softmax
    operators = (
        Product(make.tokens, keys, width, count=heads, weights=False),
        make.moving(values, values, kernels=3),
        Product(make.tokens, width, keys, count=heads, weights=False),
    )
    tensors = [("bias", rows * heads)] if rows else []
    kept = heads * width
    return make.layer(name, "attention", kept, operators, tensors=tensors,
                      saved=kept + heads * keys)  # fmt: skip


def _t5(of: T5) -> list[Layer]:
    """Layers of a T5 whose words and output layer share a table."""
    inside, h = of.heads * of.head_width, of.width
    read, written = _Making(READ, h, biases=False), _Making(WRITTEN, h, biases=False)
    both = _Making(READ + WRITTEN, h, biases=False)
    table = (both.moving(2.0 * h, 2.0 * h, fixed_backward_values=VOCABULARY * h),)
    layers = [both.layer("embedding", "embedding", h, table, tensors=[("weight", VOCABULARY * h)])]
    beside = float(WRITTEN * h)  # the decoder's words wait for the encoder
    for k in range(of.blocks):
        at = f"blocks.{k}."
        layers += [
            read.norm(f"{at}norm_attention"),
            read.linear(f"{at}attention.qkv", h, 3 * inside),
            _scores(read, f"{at}attention.scores", of.heads, of.head_width, READ,
                    0 if k else BUCKETS),
            read.linear(f"{at}attention.out", inside, h, saved=0.0),
            read.added(f"{at}sum_1"),
            *read.feed_forward(at, of.inner),
            read.added(f"{at}sum_2", beside),
        ]  # fmt: skip
    layers.append(read.norm(f"blocks.{of.blocks - 1}.norm_encoder", beside))
    beside = float(READ * h)  # what the encoder has made goes on to all blocks of the decoder
    for k in range(of.blocks):
        at = f"blocks.{of.blocks + k}."
        layers += [
            written.norm(f"{at}norm_attention"),
            written.linear(f"{at}attention.qkv", h, 3 * inside),
            _scores(written, f"{at}attention.scores", of.heads, of.head_width, WRITTEN,
                    0 if k else BUCKETS),
            written.linear(f"{at}attention.out", inside, h, saved=0.0),
            written.added(f"{at}sum_1"),
            written.norm(f"{at}norm_cross"),
            written.linear(f"{at}cross_attention.q", h, inside),
            read.linear(f"{at}cross_attention.kv", h, 2 * inside),
            _scores(written, f"{at}cross_attention.scores", of.heads, of.head_width, READ, 0),
            written.linear(f"{at}cross_attention.out", inside, h, saved=0.0),
            written.added(f"{at}sum_cross"),
            *written.feed_forward(at, of.inner),
            written.added(f"{at}sum_2", beside),
        ]  # fmt: skip
    logits = (Product(WRITTEN, VOCABULARY, h, wide=True),)
    loss = (written.moving(4.0 * VOCABULARY, 5.0 * VOCABULARY, kernels=3),)
    return [
        *layers,
        written.norm("norm"),
        written.layer("head", "linear", VOCABULARY, logits, saved=0.0),
        written.layer("loss", "loss", VOCABULARY, loss, saved=2.0 * VOCABULARY),
    ]


def _vit(of: ViT) -> list[Layer]:
    """Layers of a vision transformer with a token for the class and learned positions."""
    h, patches = of.width, (of.pixels // of.patch) ** 2
    depth = 3 * of.patch**2
    make, one = _Making(patches + 1, h, biases=True), _Making(1, h, biases=True)
    head_width = h // of.heads
    cut = _Making(patches, h, biases=True).linear("patches", depth, h, saved=depth)
    tables = [("class", h), ("weight", (patches + 1) * h)]
    layers = [
        cut,
        make.layer("positions", "embedding", h, (make.moving(3.0 * h, 2.0 * h),), tensors=tables),
    ]
    for k in range(of.blocks):
        at = f"blocks.{k}."
        shape = Attention(patches + 1, of.heads, of.heads, head_width, causal=False)
        layers += [
            make.norm(f"{at}norm_attention"),
            make.linear(f"{at}attention.qkv", h, 3 * h),
            make.layer(f"{at}attention.scores", "attention", h, (shape,)),
            make.linear(f"{at}attention.out", h, h, saved=0.0),
            make.added(f"{at}sum_1"),
            *make.feed_forward(at, of.inner),
            make.added(f"{at}sum_2"),
        ]
    loss = (one.moving(4.0 * CLASSES, 5.0 * CLASSES, kernels=3),)
    return [
        *layers,
        make.norm("norm"),
        one.linear("head", h, CLASSES),
        one.layer("loss", "loss", CLASSES, loss, saved=2.0 * CLASSES),
    ]


def profile(name: str) -> Profile:
    """Return a model of :data:`MODELS`."""
    of = MODELS[name]
    if isinstance(of, T5):
        layers, paper = _t5(of), "Raffel et al., JMLR 21, 2020, without dropout"
        title = f"{of.title}, {READ} tokens read, {WRITTEN} written"
        url = "https://jmlr.org/papers/v21/20-074.html"
    else:
        layers, title = _vit(of), f"{of.title}, ImageNet {of.pixels}x{of.pixels}"
        paper = "Dosovitskiy et al., ICLR 2021, table 1; Zhai et al., CVPR 2022, table 2"
        url = "https://arxiv.org/abs/2106.04560"
    source = Source("exact", f"layers of the published dimensions ({paper}); optimizer: Adam", url)
    return Profile(name=name, title=title, source=source, layers=tuple(layers),
                   optimizer_state_bytes_per_parameter_byte=2.0)  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> None:
    """Record all models."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=Path("profiles/models"))
    for name in MODELS:
        made = profile(name)
        files.write(parser.parse_args(arguments).output / f"{name}.json", dumped(made))
        print(f"{name}: {len(made.layers)} layers, {made.parameter_bytes / 4e6:.6g} M")


if __name__ == "__main__":
    main()
