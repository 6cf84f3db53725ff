"""What products and attention achieve on a device, fitted to measured times of many shapes.

A table of products has ``m``, ``n``, ``k`` and ``dtype`` (``bfloat16``, ``float16`` or ``fp8``);
one of causal attention ``batch_size``, ``sequence_length``, ``heads``, ``kv_heads`` and
``head_dim``; one of experts those of :mod:`perfmodel.calibration.fused_experts`. All have ``ms``,
and may have ``device``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from perfmodel.base import tables
from perfmodel.base.arrays import Floats
from perfmodel.base.errors import InputError, unknown_name
from perfmodel.base.provenance import Source
from perfmodel.calibration import fused_experts
from perfmodel.calibration.kernel_choices import NARROW, fit_choice
from perfmodel.calibration.parameters import Parameter
from perfmodel.calibration.regression import Regression
from perfmodel.calibration.statistics import rounded
from perfmodel.inputs.device import Device
from perfmodel.inputs.operators import (
    ELEMENT_BYTES,
    AttentionFigures,
    GroupedFigures,
    Operators,
    ProductFigures,
)
from perfmodel.theory.attention import AttentionRates, attention_s
from perfmodel.theory.grouped import GroupedRates
from perfmodel.theory.products import ProductRates, product_s

WIDE = 512.0
"""Dimensions of products, and length of sequences, from which shapes count fully."""

MOST_ROWS = 1200
"""Shapes that are fitted to, drawn from all."""

LEFT_OUT = 0.25
"""Part of the shapes that the error is measured on, and that are not fitted to."""

QUERIES = (64.0, 128.0)
"""Rows of a tile of attention to choose from."""

OVERLAPS = (2.0, 3.0)
"""Exponents to choose from with which exponentials and products of attention overlap."""

SHAPE = ("m", "n", "k")
"""Columns of a product."""

SEQUENCES = ("batch_size", "sequence_length", "heads", "kv_heads", "head_dim")
"""Columns of attention, in the order of the arguments of :func:`attention_s`."""

PRECISIONS = {"bfloat16": "mixed", "float16": "mixed", "fp8": "fp8"}
"""Precisions by the type of their values."""

ATTENTION = "attention"
"""Name of the measurements of attention; those of products are precisions."""

EXPERTS = "experts-"
"""Start of the names of the measurements of experts; a precision follows."""

LEAST_ROWS = 40
"""Shapes that a fit needs."""

Table = Mapping[str, Floats]
"""Columns of a table, each of shape (rows,)."""


def fit_operators(
    device: Device, paths: Sequence[str | Path], source: Source, called: str | None = None
) -> Operators:
    """Return what operators achieve on a device, fitted to tables of measured times.

    ``called`` selects the rows of one device.

    Raises
    ------
    InputError : a table cannot be read, has other columns or too few rows; nothing was measured of
        products in 16 bits or of attention; or the number of multiprocessors is not known.
    """
    measured: dict[str, dict[str, list[float]]] = {}
    for path in paths:
        _read(tables.read(path), called, measured)
    for name in ("mixed", ATTENTION):
        if name not in measured:
            what = "attention" if name == ATTENTION else "products in 16 bits"
            raise InputError(f"calibrate operators: no table has {what}")
    columns = {
        name: {column: np.array(values) for column, values in shapes_of_kind.items()}
        for name, shapes_of_kind in measured.items()
    }
    for name, shapes_of_kind in columns.items():
        if len(shapes_of_kind["seconds"]) < LEAST_ROWS:
            raise InputError(
                f"calibrate operators: {len(shapes_of_kind['seconds'])} shapes of {name}; needs "
                f"{LEAST_ROWS} or more"
            )
    return Operators(
        products={
            name: fit_products(device, name, table)
            for name, table in columns.items()
            if name != ATTENTION and not name.startswith(EXPERTS)
        },
        grouped={
            name.removeprefix(EXPERTS): fit_grouped(device, name.removeprefix(EXPERTS), table)
            for name, table in columns.items()
            if name.startswith(EXPERTS)
        },
        attention=fit_attention(device, columns[ATTENTION]),
        source=source,
    )


def _read(
    table: tables.Table, called: str | None, measured: dict[str, dict[str, list[float]]]
) -> None:
    """Add the rows of a table to what was measured, by precision, or as attention."""
    attention, experts = "sequence_length" in table.columns, "topk" in table.columns
    names = SEQUENCES if attention else fused_experts.COLUMNS if experts else SHAPE
    table.need(*names, "ms", *(() if attention else ("dtype",)))
    for row in table:
        if called is not None and row.text("device") != called:
            continue
        kind = ATTENTION
        if not attention:
            kind = row.text("dtype")
            if kind not in PRECISIONS:
                raise InputError(f"{row.place}: {unknown_name('dtype', kind, PRECISIONS)}")
            kind = (EXPERTS if experts else "") + PRECISIONS[kind]
        columns = measured.setdefault(kind, {name: [] for name in (*names, "skew", "seconds")})
        for name in names:
            columns[name].append(float(row.whole(name)))
        columns["skew"].append(fused_experts.skew_of(row.text("distribution")) if experts else 0.0)
        columns["seconds"].append(1e-3 * row.number("ms", above=0.0))


def block_of(operators: Operators) -> str:
    """Return the part of a device file, as TOML."""
    whole: dict[str, Any] = msgspec.to_builtins(operators)
    lines = [*_lines("operators.source", whole["source"])]
    for name, figures in whole["products"].items():
        lines += ["", *_lines(f"operators.products.{name}", figures)]
    for name, figures in whole["grouped"].items():
        lines += ["", *_lines(f"operators.grouped.{name}", figures)]
    return "\n".join([*lines, "", *_lines("operators.attention", whole["attention"]), ""])


def _lines(title: str, values: Mapping[str, object]) -> list[str]:
    shown = {name: value for name, value in values.items() if value is not None}
    return [f"[{title}]", *(f"{name} = {json.dumps(value)}" for name, value in shown.items())]


def fit_products(device: Device, precision: str, table: Table) -> ProductFigures:
    """Return what products achieve on a device, fitted to the columns :data:`SHAPE` and
    ``seconds``.

    Raises
    ------
    InputError : the number of the device's multiprocessors is not known.
    """
    multiprocessors = _multiprocessors(device)
    shapes = np.stack([table[name] for name in SHAPE])
    parameters = [
        *_usual(device, 0.8 * _peak(device, precision), launch_s=3e-6),
        Parameter("rounding", 0.5, 1.5, scale="logit"),
        Parameter("written_bytes_per_s", 10.0 * device.memory_bandwidth_bytes_per_s, 1.0),
    ]
    if precision == "fp8":
        bandwidth = device.memory_bandwidth_bytes_per_s
        parameters.append(Parameter("cast_bytes_per_s", 0.5 * bandwidth, 1.0))

    def seconds(values: Mapping[str, Any], rows: Any) -> Any:
        rates = ProductRates(**values, element_bytes=ELEMENT_BYTES[precision])
        m, n, k = shapes[:, rows]
        return product_s(m, n, k, rates, multiprocessors)

    wide = shapes.min(axis=0) >= WIDE
    _, fields = _fitted(parameters, seconds, table["seconds"], wide)
    fitted = {parameter.name: fields[parameter.name] for parameter in parameters}
    rates = ProductRates(**fitted, element_bytes=ELEMENT_BYTES[precision])
    left_out, _ = _split(len(wide))
    held, used = left_out & wide, ~left_out
    measured_s = table["seconds"]
    choice = fit_choice(shapes[:, used], measured_s[used], rates, multiprocessors, wide[used])
    rates = rates._replace(kernel_choice=choice)
    m, n, k = shapes[:, held]
    fields["error_fraction"] = _error(product_s(m, n, k, rates, multiprocessors), measured_s[held])
    return ProductFigures(**fields, kernel_choice=choice)


def fit_grouped(device: Device, precision: str, table: Table) -> GroupedFigures:
    """Return what products of groups achieve on a device, fitted to the columns
    :data:`perfmodel.calibration.fused_experts.COLUMNS`, ``skew`` and ``seconds``.

    Raises
    ------
    InputError : the number of the device's multiprocessors is not known.
    """
    multiprocessors = _multiprocessors(device)
    layers = fused_experts.layers_of(table)
    parameters = [
        *_usual(device, 0.5 * _peak(device, precision), launch_s=2e-5),
        Parameter("elsewhere", 0.5, 1.0),
    ]

    def seconds(values: Mapping[str, Any], rows: Any) -> Any:
        given = {name: value for name, value in values.items() if name != "elsewhere"}
        rates = GroupedRates(**given, element_bytes=ELEMENT_BYTES[precision])
        return fused_experts.fused_s(
            layers.at(rows),
            rates,
            values["elsewhere"],
            device.memory_bandwidth_bytes_per_s,
            multiprocessors,
        )

    _, fields = _fitted(parameters, seconds, table["seconds"], layers.wide)
    return GroupedFigures(**fields)


def fit_attention(device: Device, table: Table) -> AttentionFigures:
    """Return what causal attention achieves on a device, fitted to the columns :data:`SEQUENCES`
    and ``seconds``.

    Raises
    ------
    InputError : the number of the device's multiprocessors is not known.
    """
    multiprocessors = _multiprocessors(device)
    shapes = np.stack([table[name] for name in SEQUENCES])
    bandwidth = device.memory_bandwidth_bytes_per_s
    parameters = [
        *_usual(device, 0.5 * device.peak("mixed"), launch_s=1e-5),
        Parameter("softmax", 0.4, 1.0),
        Parameter("tail", 0.3, 1.0),
        Parameter("lone", 0.7, 0.7),
        Parameter("wide", 2.0, 0.5),
        Parameter("cache_bytes_per_s", 0.5 * bandwidth, 0.5),
        Parameter("token_s", 2e-9, 1.0),
        Parameter("throttle", 0.05, 1.0),
    ]

    def fitted(chosen: tuple[float, float]) -> tuple[float, dict[str, Any]]:
        queries, overlap = chosen

        def seconds(values: Mapping[str, Any], rows: Any) -> Any:
            rates = AttentionRates(**values, queries=queries, overlap=overlap)
            sequences, length, heads, kv_heads, head = shapes[:, rows]
            return attention_s(sequences, length, heads, kv_heads, head, rates, multiprocessors)

        cost, fields = _fitted(
            parameters, seconds, table["seconds"], table["sequence_length"] >= WIDE
        )
        return cost, {**fields, "queries": queries, "overlap": overlap}

    _, best = min(map(fitted, product(QUERIES, OVERLAPS)), key=lambda fields: fields[0])
    return AttentionFigures(**best)


def _usual(device: Device, flop_per_s: float, *, launch_s: float) -> list[Parameter]:
    """Return the parameters that products and attention have in common."""
    return [
        Parameter("flop_per_s", flop_per_s, 0.5),
        Parameter("bytes_per_s", 0.8 * device.memory_bandwidth_bytes_per_s, 0.5),
        Parameter("launch_s", launch_s, 1.0),
        Parameter("tile_s", 1e-6, 2.0),
    ]


def _fitted(
    parameters: list[Parameter],
    seconds: Callable[[Mapping[str, Any], Any], Any],
    measured: Floats,
    wide: NDArray[np.bool_],
) -> tuple[float, dict[str, Any]]:
    """Fit parameters to three quarters of the rows; return the cost of the fit, and the fields of
    the figures, with the error of the others that are ``wide``."""
    left_out, rows = _split(len(measured))

    def misses(values: Mapping[str, Floats], points: int) -> Floats:
        columns = {name: np.asarray(value)[:, None] for name, value in values.items()}
        predicted = seconds(columns, rows)
        return np.asarray(np.log(predicted / measured[rows]))

    fit = Regression(parameters, misses, np.where(wide[rows], 0.05, 0.05 * NARROW))
    x, scale = fit.fit()
    values = fit.values(x)
    held = np.flatnonzero(left_out & wide)
    figures = {
        **{name: rounded(value) for name, value in values.items()},
        "error_fraction": _error(seconds(values, held), measured[held]),
        "covariance": fit.log_covariance(x, scale),
    }
    return fit.cost(x, 1.0), figures


class HeldOutRows(NamedTuple):
    """Rows that the error is measured on, as a mask, and the numbers of those of a regression."""

    left_out: NDArray[np.bool_]
    rows: NDArray[np.int64]


def _error(predicted: Any, measured: Floats) -> float:
    """Return the 90th percentile of the errors."""
    return rounded(float(np.quantile(np.abs(predicted / measured - 1.0), 0.9)), 3)


def _split(count: int) -> HeldOutRows:
    draw = np.random.default_rng(0)
    left_out = draw.random(count) < LEFT_OUT
    return HeldOutRows(left_out, draw.permutation(np.flatnonzero(~left_out))[:MOST_ROWS])


def _peak(device: Device, precision: str) -> float:
    """Return the peak rate at a precision; with 8 bits twice that with 16."""
    return device.peak("mixed") * 2.0 / ELEMENT_BYTES[precision]


def _multiprocessors(device: Device) -> float:
    if device.multiprocessors is None:
        raise InputError(f"{device.name}: needs the number of multiprocessors")
    return float(device.multiprocessors)
