"""Operators of two networks on an H100, predicted from their shapes.

The folder holds ``MODEL_bs128_trace.csv.gz`` with the operators, and ``MODEL_bs128_tensor.csv.gz``
with the shapes of their tensors. Images are stored channel by channel, and values are TF32.
"""

from __future__ import annotations

import ast
import math
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from benchmarks.accuracy.cases import Case, about
from perfmodel.base.errors import InputError
from perfmodel.catalogue import catalogue
from perfmodel.inputs.operator_shapes import MemoryBound, OperatorShape, Product
from perfmodel.inputs.profile import Layer
from perfmodel.times.operator_times import layers_s

ABOUT = about("triosim")

MODELS = ("vgg13", "resnet50")
DEVICE, PRECISION, SAMPLES = "h100", "tf32", 128

BACKWARD = "autograd::engine::evaluate_function: ConvolutionBackward0"

PASSES = {"aten::batch_norm": 2.0, "aten::relu_": 1.0, "aten::add_": 1.0, "aten::max_pool2d": 1.0}
"""How often an operator that is bound by memory reads its inputs."""

LEAST_VALUES = 1e5
"""Values below which an operator is no more than its launch."""


class Ran(NamedTuple):
    """An operator of a trace: shapes of its inputs and of its output, per batch."""

    name: str
    inputs: tuple[int, ...]
    shapes: tuple[tuple[int, ...], ...]
    output: tuple[int, ...]
    seconds: float


def cases(folder: Path) -> list[Case]:
    """Return every convolution and every large operator that is bound by memory."""
    return [case for model in MODELS for case in _of_model(folder, model)]


def _of_model(folder: Path, model: str) -> Iterator[Case]:
    ran = _trace(folder, model)
    forward = [one for one in ran if one.name == "aten::conv2d"]
    backward = [one for one in ran if one.name == BACKWARD][::-1]
    readers = Counter(
        number
        for one in ran
        if one.name in ("aten::conv2d", "aten::add_")
        for number in set(one.inputs if one.name == "aten::add_" else one.inputs[:1])
    )
    seen: set[int] = set()
    predicted = []
    for one in forward:
        image = one.inputs[0]
        # the gradient of an image that others read too is added to theirs
        sums = 0 if image in seen else readers[image] - 1
        seen.add(image)
        predicted.append([*_convolution(one), MemoryBound(0.0, 3.0 * sums * _values(one))])
    times = _seconds(predicted)
    for kind, measured, column in (("forward", forward, 0), ("backward", backward, 1)):
        for i, (one, seconds) in enumerate(zip(measured, times, strict=True)):
            label = f"{model} {_text(forward[i])} {kind}"
            group = f"triosim/convolutions-{kind}"
            yield Case(group, label, seconds[column], one.seconds)
    moving = [one for one in ran if one.name in PASSES and _values(one) * SAMPLES >= LEAST_VALUES]
    shapes: list[list[OperatorShape]] = []
    for one in moving:
        read = PASSES[one.name] * sum(map(math.prod, one.shapes))
        shapes.append([MemoryBound((read + math.prod(one.output)) / SAMPLES, 0.0)])
    for one, (seconds, _) in zip(moving, _seconds(shapes), strict=True):
        yield Case("triosim/memory_bound", f"{model} {_text(one)}", seconds, one.seconds)


def _trace(folder: Path, model: str) -> list[Ran]:
    tables = []
    for kind in ("trace", "tensor"):
        path = folder / f"{model}_bs{SAMPLES}_{kind}.csv.gz"
        if not path.is_file():
            raise InputError(f"{path}: no such file")
        tables.append(pd.read_csv(path))
    trace, tensors = tables
    shapes: dict[int, tuple[int, ...]] = {}
    for number, text in zip(tensors["TensorID"], tensors["TensorShape"], strict=True):
        shapes.setdefault(int(number), tuple(ast.literal_eval(text)))
    return [_ran(row, shapes) for row in trace.itertuples()]


def _ran(row: Any, shapes: dict[int, tuple[int, ...]]) -> Ran:
    inputs, outputs = (
        tuple(map(int, re.findall(r"\d+", str(text))))
        for text in (row.Operator_input, row.Operator_output)
    )
    return Ran(
        row.OperatorName,
        inputs,
        tuple(shapes.get(number, ()) for number in inputs),
        shapes.get(outputs[0], ()) if outputs else (),
        1e-6 * float(row.Operator_cudatimenooverlap),
    )


def _convolution(one: Ran) -> list[OperatorShape]:
    """Return the operators of a convolution, per sample."""
    image, weight = one.shapes[:2]
    kernel, pixels = weight[2:], math.prod(one.output[2:])
    strides = [round(a / b) for a, b in zip(image[2:], one.output[2:], strict=True)]
    reuse = math.prod(size / step for size, step in zip(kernel, strides, strict=True))
    plain = {*kernel, *strides} == {1}
    product = Product(
        pixels,
        weight[0],
        math.prod(weight[1:]),
        reuse=reuse,
        layout="columns" if plain else "patches",
    )
    values = float(math.prod(one.output[1:]))
    return [product] if len(one.shapes) == 2 else [product, MemoryBound(2.0 * values, values)]


def _seconds(operators: list[list[OperatorShape]]) -> list[tuple[float, float]]:
    """Return forward and backward seconds; the first layer passes no gradient back."""
    known = {name: catalogue.device(name) for name in catalogue.device_names()}
    layers = [Layer(str(i), operators=tuple(shapes)) for i, shapes in enumerate(operators)]
    return layers_s(known[DEVICE], layers, SAMPLES, PRECISION, known)


def _values(one: Ran) -> float:
    """Return the values of a sample of the first input."""
    return math.prod(one.shapes[0]) / SAMPLES


def _text(one: Ran) -> str:
    return f"{one.name.removeprefix('aten::')} " + " ".join(
        "x".join(map(str, shape)) for shape in (*one.shapes[:2], one.output)
    )
