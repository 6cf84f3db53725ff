"""Layers of published DNNs, by the names that tables of throughput give them.

Those of the catalogue as they are there; deeper relatives with its blocks repeated (He, Zhang, Ren,
Sun, "Deep Residual Learning", CVPR 2016, table 1); Inception-v3 from its description (Szegedy and
others, "Rethinking the Inception Architecture", CVPR 2016, without the auxiliary classifier); BERT
for any depth and width (Devlin, Chang, Lee, Toutanova, "BERT", NAACL 2019), with the heads of its
pre-training.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec

from perfmodel.base.provenance import Source
from perfmodel.inputs import catalogue
from perfmodel.inputs.profile import Gradients, Layer, Profile, Tensor, Timing

BYTES = 4
"""Bytes of a parameter: all these tables are of single precision."""

CATALOGUE = {
    "alexnet": "alexnet",
    "googlenet": "inception_v1",
    "inception": "inception_v1",
    "inceptionv1": "inception_v1",
    "resnet18": "resnet18",
    "resnet50": "resnet50",
    "vgg": "vgg16",
    "vgg16": "vgg16",
}

DEEPER: dict[str, dict[str, int]] = {
    "resnet101": {"layer3": 23},
    "resnet152": {"layer2": 8, "layer3": 36},
}
"""Blocks of ResNet-50's stages, where there are more of them than it has."""

SIZES = {
    "vgg11": ("vgg16", 132_863_336),
    "vgg19": ("vgg16", 143_667_240),
    "inceptionv2": ("inception_v1", 11_200_000),
    "bninception": ("inception_v1", 11_200_000),
    "inceptionv4": ("inceptionv3", 42_700_000),
    "inceptionresnetv2": ("inceptionv3", 55_800_000),
}
"""The relative whose layers stand for those of a DNN, and the parameters of that DNN."""

BERTS = {"bertbase": (12, 768), "bertlarge": (24, 1024)}
"""Transformer layers and hidden size of each BERT."""

WORDS, POSITIONS, SEGMENTS = 30_522, 512, 2
"""Rows of BERT's embeddings."""

SEQUENCE = 64
"""Tokens of a sample of BERT; shares of the layers hardly depend on it."""

MANY_TENSORS = 100
"""Gradient tensors of a DNN that nothing but the size is known of."""


def plain(name: str) -> str:
    """A name in small letters and digits, without what tables put between these.

    >>> plain("ResNet-50 v1.5")
    'resnet50v15'
    """
    return re.sub(r"[^a-z0-9]", "", name.lower())


def layers_of(name: str) -> tuple[Layer, ...] | None:
    """The layers of a DNN; None where it is not known."""
    key = plain(name)
    if key in CATALOGUE:
        return catalogue.model(CATALOGUE[key]).layers
    if key in DEEPER:
        return tuple(_deeper(DEEPER[key]))
    if key in BERTS:
        return tuple(_bert(*BERTS[key]))
    if key == "inceptionv3":
        return tuple(_inception_v3())
    if key in SIZES:
        relative, parameters = SIZES[key]
        found = layers_of(relative)
        return None if found is None else resized(found, BYTES * parameters)
    return None


def bytes_of(layers: tuple[Layer, ...]) -> float:
    """Bytes of all gradients."""
    return sum(tensor.bytes for layer in layers for tensor in layer.tensors)


def resized(layers: tuple[Layer, ...], size_bytes: float) -> tuple[Layer, ...]:
    """The layers with as many bytes of gradients as asked for.

    What differs belongs to the largest tensor where that has most of the bytes: it is the first
    fully connected layer, and its size follows from that of the images. Elsewhere all tensors
    become larger or smaller in proportion.
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
    """A DNN with the throughput of one device; None where neither layers nor size are known.

    One that only its size is known of has tensors of equal size.
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
    """ResNet-50 with the last block of a stage repeated until there are so many."""
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
    convolutions = (
        _convolution(number, *one) for number, one in enumerate(_inception_convolutions())
    )
    yield from convolutions
    yield Layer("fc", "linear", (Tensor("fc.weight", BYTES * 2048 * 1000.0),), 2.0 * 2048 * 1000)


def _convolution(number: int, inputs: int, outputs: int, kernel: int, side: int) -> Layer:
    """A convolution with its normalisation; ``kernel``: elements, ``side``: of what it puts out."""
    weights = float(inputs * outputs * kernel)
    tensors = (Tensor("weight", BYTES * weights), Tensor("bias", 2.0 * BYTES * outputs))
    return Layer(f"conv{number}", "conv2d", tensors, 2.0 * weights * side * side)


def _inception_convolutions() -> Iterator[tuple[int, int, int, int]]:
    """Input channels, output channels, elements of the kernel, side of the output; in order."""
    yield from ((3, 32, 9, 149), (32, 32, 9, 147), (32, 64, 9, 147))
    yield from ((64, 80, 1, 73), (80, 192, 9, 71))
    for width, pooled in ((192, 32), (256, 64), (288, 64)):
        yield from ((width, 64, 1, 35), (width, 48, 1, 35), (48, 64, 25, 35))
        yield from ((width, 64, 1, 35), (64, 96, 9, 35), (96, 96, 9, 35))
        yield (width, pooled, 1, 35)
    yield from ((288, 384, 9, 17), (288, 64, 1, 35), (64, 96, 9, 35), (96, 96, 9, 17))
    for narrow in (128, 160, 160, 192):
        yield (768, 192, 1, 17)
        yield from ((768, narrow, 1, 17), (narrow, narrow, 7, 17), (narrow, 192, 7, 17))
        yield (768, narrow, 1, 17)
        yield from ((narrow, narrow, 7, 17),) * 3
        yield from ((narrow, 192, 7, 17), (768, 192, 1, 17))
    yield from ((768, 192, 1, 17), (192, 320, 9, 8), (768, 192, 1, 17))
    yield from ((192, 192, 7, 17), (192, 192, 7, 17), (192, 192, 9, 8))
    for width in (1280, 2048):
        yield from ((width, 320, 1, 8), (width, 384, 1, 8), (384, 384, 3, 8), (384, 384, 3, 8))
        yield from ((width, 448, 1, 8), (448, 384, 9, 8), (384, 384, 3, 8), (384, 384, 3, 8))
        yield (width, 192, 1, 8)


def _bert(depth: int, width: int) -> Iterator[Layer]:
    """Layers of a BERT; the output shares its weights with the first, whose gradient is last."""
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


def _tensor(name: str, elements: int) -> Tensor:
    return Tensor(name, float(BYTES * elements))
