"""Layers of published DNNs, by their names in tables of throughput.

DNNs of the catalogue are used unchanged; deeper variants repeat its blocks (He, Zhang, Ren, Sun,
"Deep Residual Learning", CVPR 2016, table 1); Inception-v3 follows its description (Szegedy and
others, "Rethinking the Inception Architecture", CVPR 2016, without the auxiliary classifier); BERT
has any depth and width (Devlin, Chang, Lee, Toutanova, "BERT", NAACL 2019), with the heads of its
pre-training.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import msgspec

from benchmarks.accuracy import rows
from perfmodel.base.provenance import Source
from perfmodel.catalogue import catalogue
from perfmodel.inputs.profile import Gradients, Layer, Profile, Tensor, Timing

BYTES = 4
"""Bytes per parameter: all these tables use single precision."""


class Known(msgspec.Struct, frozen=True):
    """DNNs by lower-case name, from ``dnns.toml``."""

    catalogue: dict[str, str]
    deeper: dict[str, dict[str, int]]
    sizes: dict[str, tuple[str, int]]
    berts: dict[str, tuple[int, int]]


class Convolution(msgspec.Struct, frozen=True):
    """A row of ``inception_v3.csv``: channels, elements of the kernel, side of the output."""

    inputs: int
    outputs: int
    kernel_elements: int
    output_side: int


FOLDER = Path(__file__).parent
KNOWN = msgspec.toml.decode((FOLDER / "dnns.toml").read_bytes(), type=Known)

WORDS, POSITIONS, SEGMENTS = 30_522, 512, 2
"""Rows of BERT's embeddings."""

SEQUENCE = 64
"""Tokens per sample of BERT; the layers' shares hardly depend on it."""

MANY_TENSORS = 100
"""Number of gradient tensors of a DNN of which only the size is known."""


def plain(name: str) -> str:
    """Return a name reduced to lower-case letters and digits.

    >>> plain("ResNet-50 v1.5")
    'resnet50v15'
    """
    return re.sub(r"[^a-z0-9]", "", name.lower())


def layers_of(name: str) -> tuple[Layer, ...] | None:
    """Return the layers of a DNN; None if it is unknown."""
    key = plain(name)
    if key in KNOWN.catalogue:
        return catalogue.model(KNOWN.catalogue[key]).layers
    if key in KNOWN.deeper:
        return tuple(_deeper(KNOWN.deeper[key]))
    if key in KNOWN.berts:
        return tuple(_bert(*KNOWN.berts[key]))
    if key == "inceptionv3":
        return tuple(_inception_v3())
    if key in KNOWN.sizes:
        relative, parameters = KNOWN.sizes[key]
        found = layers_of(relative)
        return None if found is None else resized(found, BYTES * parameters)
    return None


def bytes_of(layers: tuple[Layer, ...]) -> float:
    """Return the bytes of all gradients."""
    return sum(tensor.bytes for layer in layers for tensor in layer.tensors)


def resized(layers: tuple[Layer, ...], size_bytes: float) -> tuple[Layer, ...]:
    """Return the layers, adjusted to the requested bytes of gradients.

    If the largest tensor has most of the bytes, it takes the whole difference: it is the first
    fully connected layer, whose size depends on that of the images. Otherwise all tensors are
    scaled in proportion.
    """
    total = bytes_of(layers)
    largest = max(tensor.bytes for layer in layers for tensor in layer.tensors)
    rest = total - largest

    def size(tensor: Tensor) -> float:
        if largest > 0.5 * total and size_bytes > rest:
            return tensor.bytes if tensor.bytes < largest else size_bytes - rest
        return tensor.bytes * size_bytes / total

    return tuple(
        msgspec.structs.replace(
            layer, tensors=tuple(Tensor(t.name, size(t)) for t in layer.tensors)
        )
        for layer in layers
    )


def profile(
    name: str, device: str, batch_size: int, samples_per_s: float, size_bytes: float | None = None
) -> Profile | None:
    """Return a DNN with the throughput of one device; None if neither layers nor size are known.

    If only the size is known, all tensors have equal size.
    """
    layers = layers_of(name)
    source = Source("published", "throughput of one device; layers as published")
    timing = Timing(
        device=device, batch_size=batch_size, samples_per_s=samples_per_s, source=source
    )
    if layers is not None:
        if size_bytes is not None:
            layers = resized(layers, size_bytes)
        return Profile(name=name, source=source, timings=(timing,), layers=layers)
    if size_bytes is None:
        return None
    gradients = Gradients(size_bytes, MANY_TENSORS)
    return Profile(name=name, source=source, timings=(timing,), gradients=gradients)


def _deeper(blocks: dict[str, int]) -> Iterator[Layer]:
    """Return ResNet-50 with the last block of each stage repeated up to this number."""
    layers = catalogue.model("resnet50").layers
    stages: dict[str, dict[str, list[Layer]]] = {}
    for layer in layers:
        stage, _, rest = layer.name.partition(".")
        stages.setdefault(stage, {}).setdefault(rest.partition(".")[0], []).append(layer)
    for stage, of in stages.items():
        for block in of.values():
            yield from block
        for number in range(len(of), blocks.get(stage, 0)):
            for layer in list(of.values())[-1]:
                name = f"{stage}.{number}.{layer.name.rpartition('.')[2]}"
                yield msgspec.structs.replace(layer, name=name)


def _inception_v3() -> Iterator[Layer]:
    """Return its convolutions, each with its normalisation, and the classifier."""
    for number, one in enumerate(rows.read(FOLDER / "inception_v3.csv", Convolution)):
        weights = float(one.inputs * one.outputs * one.kernel_elements)
        tensors = (_tensor("weight", weights), _tensor("bias", 2 * one.outputs))
        yield Layer(f"conv{number}", "conv2d", tensors, 2.0 * weights * one.output_side**2)
    yield Layer("fc", "linear", (_tensor("fc.weight", 2048 * 1000),), 2.0 * 2048 * 1000)


def _bert(depth: int, width: int) -> Iterator[Layer]:
    """Return the layers of a BERT; the output shares its weights with the first layer, whose
    gradient is last."""
    for name, elements in (("words", WORDS), ("positions", POSITIONS), ("segments", SEGMENTS)):
        yield Layer(name, "embedding", (_tensor(name, elements * width),))
    yield _norm("embeddings", width)
    for i in range(depth):
        for name in ("query", "key", "value"):
            yield _linear(f"{i}.{name}", width, width)
        yield Layer(f"{i}.attention", "matmul", forward_flop=4.0 * SEQUENCE**2 * width)
        yield from (_linear(f"{i}.output", width, width), _norm(f"{i}.attention", width))
        yield from (_linear(f"{i}.up", width, 4 * width), _linear(f"{i}.down", 4 * width, width))
        yield _norm(f"{i}.output", width)
    yield from (_linear("pooler", width, width), _linear("next sentence", width, 2))
    yield from (_linear("transform", width, width), _norm("transform", width))
    flop = 2.0 * WORDS * width * SEQUENCE
    yield Layer("words out", "linear", (_tensor("bias", WORDS),), flop)


def _linear(name: str, inputs: int, outputs: int) -> Layer:
    tensors = (_tensor("weight", inputs * outputs), _tensor("bias", outputs))
    return Layer(name, "linear", tensors, 2.0 * inputs * outputs * SEQUENCE)


def _norm(name: str, width: int) -> Layer:
    return Layer(f"{name} norm", "layernorm", (_tensor("weight", width), _tensor("bias", width)))


def _tensor(name: str, elements: float) -> Tensor:
    return Tensor(name, float(BYTES * elements))
