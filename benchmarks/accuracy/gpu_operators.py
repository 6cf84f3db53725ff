"""Measured products, attention and experts of GPUs, predicted from device files.

The folder holds ``gemm.csv.gz``, ``attention_forward.csv.gz`` and perhaps ``moe_forward.csv.gz``. A
device without figures of its own in the catalogue is predicted by transfer. Shapes with a
dimension, or a length, below 512, or with fewer than 64 tokens per expert, are groups of their own
(*narrow*).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.accuracy import rows
from benchmarks.accuracy.cases import Case, about
from perfmodel.base.errors import InputError
from perfmodel.calibration import fused_experts
from perfmodel.catalogue import catalogue
from perfmodel.inputs.device import Device
from perfmodel.theory.attention import attention_s
from perfmodel.theory.products import product_s
from perfmodel.times.operator_transfer import attention_rates, grouped_rates, product_rates

ABOUT = about("gpu_operators")

PRODUCTS, ATTENTION, EXPERTS = "gemm.csv.gz", "attention_forward.csv.gz", "moe_forward.csv.gz"

WIDE = 512.0
"""Dimension from which a shape is not narrow."""

PRECISIONS = {"bfloat16": ("mixed", ""), "fp8": ("fp8", "-fp8")}
"""Precision of each type of a product, and the end of the name of its operator."""

CALLED = {"a100": "a100-80", "gb300": "gb200"}
"""Devices that have another name in the catalogue, or are not there, and what stands for them."""


def cases(folder: Path) -> list[Case]:
    """Return every product, every attention, and all layers of experts."""
    known = {name: catalogue.device(name) for name in catalogue.device_names()}
    return [
        *_products(_table(folder / PRODUCTS), known),
        *_attention(_table(folder / ATTENTION), known),
        *(_experts(_table(folder / EXPERTS), known) if (folder / EXPERTS).is_file() else ()),
    ]


def _table(path: Path) -> pd.DataFrame:
    if not path.is_file():
        raise InputError(f"{path}: no such file")
    return pd.read_csv(path)


def _named(name: str) -> str:
    """Return a device's name without what it is built into."""
    return name.removesuffix("_sxm").removesuffix("_server").replace("_", "-")


def device_of(name: str, known: dict[str, Device]) -> Device | None:
    """Return the device of the catalogue, if it is there, for a name of the folder."""
    called = catalogue.device_called(CALLED.get(_named(name), _named(name)))
    found = known.get(called)
    if found is None or found.multiprocessors is None:
        rows.say_left_out("not predicted", [f"not in the catalogue: {name}"])
        return None
    return found


def _products(table: pd.DataFrame, known: dict[str, Device]) -> Iterator[Case]:
    for (name, kind), shapes in table.groupby(["device", "dtype"], sort=False):
        device, (precision, end) = device_of(name, known), PRECISIONS[kind]
        if device is None:
            continue
        m, n, k = (shapes[column].to_numpy(np.float64) for column in ("m", "n", "k"))
        rates = product_rates(device, precision, known)
        seconds = product_s(m, n, k, rates, float(device.multiprocessors or 0))
        wide = np.minimum(np.minimum(m, n), k) >= WIDE
        yield from _cases(f"{_named(name)}-gemm{end}", shapes, ["m", "n", "k"], seconds, wide)


def _attention(table: pd.DataFrame, known: dict[str, Device]) -> Iterator[Case]:
    columns = ["batch_size", "sequence_length", "heads", "kv_heads", "head_dim"]
    for name, shapes in table.groupby("device", sort=False):
        device = device_of(str(name), known)
        if device is None:
            continue
        values = [shapes[column].to_numpy(np.float64) for column in columns]
        rates = attention_rates(device, known)
        seconds = attention_s(*values, rates, float(device.multiprocessors or 0))
        wide = values[1] >= WIDE
        yield from _cases(f"{_named(str(name))}-attention", shapes, columns, seconds, wide)


def _experts(table: pd.DataFrame, known: dict[str, Device]) -> Iterator[Case]:
    for (name, kind), shapes in table.groupby(["device", "dtype"], sort=False):
        device, (precision, end) = device_of(name, known), PRECISIONS[kind]
        if device is None:
            continue
        columns = [*fused_experts.COLUMNS]
        values = {column: shapes[column].to_numpy(np.float64) for column in columns}
        skews = shapes["distribution"].map(fused_experts.skew_of)
        layers = fused_experts.layers_of({**values, "skew": skews.to_numpy(np.float64)})
        rates, elsewhere, _ = grouped_rates(device, precision, known)
        bandwidth = device.memory_bandwidth_bytes_per_s
        many = float(device.multiprocessors or 0)
        seconds = fused_experts.fused_s(layers, rates, elsewhere, bandwidth, many)
        columns.append("distribution")
        yield from _cases(f"{_named(name)}-moe{end}", shapes, columns, seconds, layers.wide)


def _cases(
    name: str, shapes: pd.DataFrame, columns: list[str], seconds: Any, wide: Any
) -> Iterator[Case]:
    measured = shapes["ms"].to_numpy(np.float64) * 1e-3
    sizes = zip(*(shapes[column].tolist() for column in columns), strict=True)
    values = (seconds.tolist(), measured.tolist(), wide.tolist())
    for shape, predicted, value, full in zip(sizes, *values, strict=True):
        group = f"gpu_operators/{name}" + ("" if full else "-narrow")
        yield Case(group, f"{name} {'x'.join(map(str, shape))}", predicted, value)
