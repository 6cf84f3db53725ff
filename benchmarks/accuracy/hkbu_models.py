"""Profiles of what the HKBU benchmarks train, from published architectures.

ResNet-50 and other CNNs are those of the catalogue, BERT is built here for any depth and width:
Devlin, Chang, Lee, Toutanova, "BERT", NAACL 2019, with the heads of its pre-training.
"""

from __future__ import annotations

import functools
import re

from benchmarks.accuracy import dnns
from perfmodel import Source
from perfmodel.inputs import catalogue
from perfmodel.inputs.profile import Layer, Profile, Tensor, Timing

SIZES = {"base": (12, 768), "large": (24, 1024)}
"""Transformer layers and hidden size of each BERT."""

WORDS, POSITIONS, SEGMENTS = 30_522, 512, 2
"""Rows of BERT's embeddings."""

SEQUENCE = 64
"""Tokens of a sample in these runs."""

BYTES = 4.0
"""Of an element, in FP32."""


def profile_of(dnn: str, batch_size: int, step_s: float, update_s_per_byte: float) -> Profile:
    """The profile of a DNN by its name.

    Its one timing is ``step_s`` for the whole step; the update of the parameters, which takes
    ``update_s_per_byte``, is in it, but at most half of it.

    Raises
    ------
    InputError : the name says nothing of its layers.
    """
    source = Source("published", "step time on one GPU: HKBU-HPML/ddl-benchmarks, 2020")
    timing = Timing(
        device="gpu",
        batch_size=batch_size,
        source=source,
        step_s=step_s,
        optimizer_s=min(size_of(dnn) * update_s_per_byte, step_s / 2),
    )
    return Profile(name=dnn, source=source, layers=layers_of(dnn), timings=(timing,))


def size_of(dnn: str) -> float:
    """Bytes of a DNN's gradients, 0 if its layers are not known."""
    return dnns.bytes_of(layers_of(dnn))


@functools.cache
def layers_of(dnn: str) -> tuple[Layer, ...]:
    """Layers of a DNN by its name, none if it is not known."""
    name = dnns.plain(dnn)
    if (found := re.fullmatch(r"bert(base|large)", name)) is not None:
        return bert(*SIZES[found[1]])
    known = {dnns.plain(model): model for model in catalogue.model_names()}
    return catalogue.model(known[name]).layers if name in known else ()


def bert(depth: int, width: int) -> tuple[Layer, ...]:
    """Layers of a BERT; the output shares its weights with the first, whose gradient is last."""
    layers = [
        Layer("words", "embedding", (_tensor("words", WORDS * width),)),
        Layer("positions", "embedding", (_tensor("positions", POSITIONS * width),)),
        Layer("segments", "embedding", (_tensor("segments", SEGMENTS * width),)),
        _norm("embeddings", width),
    ]
    for i in range(depth):
        layers += [_linear(f"{i}.{name}", width, width) for name in ("query", "key", "value")]
        scores_flop = 2 * 2.0 * SEQUENCE**2 * width
        layers += [
            Layer(f"{i}.attention", "matmul", forward_flop=scores_flop),
            _linear(f"{i}.output", width, width),
            _norm(f"{i}.attention", width),
            _linear(f"{i}.up", width, 4 * width),
            _linear(f"{i}.down", 4 * width, width),
            _norm(f"{i}.output", width),
        ]
    layers += [
        _linear("pooler", width, width),
        _linear("next sentence", width, 2),
        _linear("transform", width, width),
        _norm("transform", width),
        Layer("words out", "linear", (_tensor("bias", WORDS),), 2.0 * WORDS * width * SEQUENCE),
    ]
    return tuple(layers)


def _linear(name: str, inputs: int, outputs: int) -> Layer:
    tensors = (_tensor("weight", inputs * outputs), _tensor("bias", outputs))
    return Layer(name, "linear", tensors, 2.0 * inputs * outputs * SEQUENCE)


def _norm(name: str, width: int) -> Layer:
    return Layer(f"{name} norm", "layernorm", (_tensor("weight", width), _tensor("bias", width)))


def _tensor(name: str, elements: int) -> Tensor:
    return Tensor(name, BYTES * elements)
