"""Convolutions of several networks in 32 bits, predicted from their shapes.

The folder holds ``layers.csv``, with the times of each layer and the bytes of its output.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pandas as pd

from benchmarks.accuracy.cases import Case, about
from perfmodel.base.errors import InputError
from perfmodel.catalogue import catalogue
from perfmodel.inputs.operator_shapes import Product
from perfmodel.inputs.profile import Layer
from perfmodel.times.operator_times import layers_s

ABOUT = about("pipedream")

DEVICE, PRECISION, VALUE_BYTES = "v100", "float32", 4.0

FIRST = "Conv2d(3, "
"""How the convolution of the pictures begins, which passes no gradient back."""

CONVOLUTION = re.compile(
    r"Conv2d\((?P<entering>\d+), (?P<leaving>\d+), "
    r"kernel_size=\((?P<height>\d+), (?P<width>\d+)\), "
    r"stride=\((?P<down>\d+), (?P<across>\d+)\)(.*groups=(?P<groups>\d+))?"
)


def cases(folder: Path) -> list[Case]:
    """Return every convolution, forward and backward."""
    path = folder / "layers.csv"
    if not path.is_file():
        raise InputError(f"{path}: no such file")
    table = pd.read_csv(path)
    numbers = ["batch", "forward_ms", "backward_ms", "activation_bytes"]
    table[numbers] = table[numbers].apply(pd.to_numeric, errors="coerce")
    known = {name: catalogue.device(name) for name in catalogue.device_names()}
    found = []
    for model, rows in table.groupby("model"):
        if rows["batch"].isna().all():
            continue
        samples = int(rows["batch"].dropna().iloc[0])
        pairs = [(row, _product(row, samples)) for row in rows.itertuples()]
        measured = [(row, product) for row, product in pairs if product is not None]
        measured.sort(key=lambda pair: not pair[0].layer.startswith(FIRST))
        layers = [Layer(row.node, operators=(one,)) for row, one in measured]
        times = layers_s(known[DEVICE], layers, samples, PRECISION, known)
        for (row, _), (forward_s, backward_s) in zip(measured, times, strict=True):
            label = f"{model} {row.node} {row.layer}"
            found.append(Case("pipedream/forward", label, forward_s, 1e-3 * row.forward_ms))
            if row.backward_ms > 0.0:
                case = Case("pipedream/backward", label, backward_s, 1e-3 * row.backward_ms)
                found.append(case)
    return found


def _product(row: Any, samples: int) -> Product | None:
    """Return the product of a layer, None if it is no convolution or was not measured."""
    match = CONVOLUTION.match(row.layer)
    if match is None or not row.forward_ms > 0.0:
        return None
    of = {name: int(text or 1) for name, text in match.groupdict().items()}
    groups, kernel = of["groups"], of["height"] * of["width"]
    pixels = row.activation_bytes / VALUE_BYTES / samples / of["leaving"]
    if pixels != int(pixels) or pixels < 1.0 or groups == of["entering"] > 1:
        return None
    depth = of["entering"] // groups * kernel
    reuse = kernel / (of["down"] * of["across"])
    return Product(int(pixels), of["leaving"] // groups, depth, count=groups, reuse=reuse)
