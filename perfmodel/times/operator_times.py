"""Times of layers on a device, from the operators that they compute.

Forward of a product is one product; backward has two, for the gradients of both matrices: m x k of
m x n and n x k, and k x n of k x m and m x n. The first layer passes no gradient back. Samples of a
batch add rows to products with weights, and products to those without. Attention takes
:data:`perfmodel.theory.attention.BACKWARD` times as long in backward. Where products have 8
bits, all else has 16; kernels bound by memory cast activations and gradients, with the transposes
that the gradients of weights need. Launches are those of full queues: the host is not waited for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.arrays import Floats
from perfmodel.base.errors import InputError, whole_number
from perfmodel.inputs.device import Device
from perfmodel.inputs.operator_shapes import (
    Attention,
    Grouped,
    MemoryBound,
    OperatorShape,
    Product,
)
from perfmodel.inputs.precisions import RECIPES, WIDE_BYTES
from perfmodel.inputs.profile import Layer
from perfmodel.theory.attention import BACKWARD, VALUE_BYTES, Mask, attention_s
from perfmodel.theory.convolutions import KERNEL, WIDE_LOAD_BYTES, transposing_s, winograd_s
from perfmodel.theory.grouped import RowGroups, grouped_s
from perfmodel.theory.memory_bound import ACHIEVED, memory_bound_s
from perfmodel.theory.products import CAST_BYTES, SUM_BYTES, product_s
from perfmodel.times.operator_transfer import (
    attention_rates,
    grouped_rates,
    product_rates,
    training_rates,
)

Kind = TypeVar("Kind")

FORWARD, OF_INPUT, OF_WEIGHTS = range(3)
"""Passes of a product."""

LARGE = 2.0**25
"""Values of matrices of groups from which the measured kernels for all groups lose up to half their
rate: experts of 4096 x 3584 (gated) reach 1.07 PFLOP/s on B200, those of 4096 x 7168 0.69, those of
4096 x 14336 0.55."""

Group = tuple[tuple[OperatorShape, ...], bool]
"""The operators of a layer, and whether it is the first."""


class Factors(NamedTuple):
    """By how much longer attention, and all else, take than alone; of all else, kernels bound by
    memory take ``memory_bound`` times as long again."""

    products: float = 1.0
    attention: float = 1.0
    memory_bound: float = 1.0


ALONE = Factors()


def layers_s(
    device: Device,
    layers: Sequence[Layer],
    batch_size: int,
    precision: str,
    others: Mapping[str, Device],
    factors: Factors = ALONE,
    *,
    fused: bool = True,
) -> list[tuple[float, float]]:
    """Return the forward and backward seconds of each layer for a batch of samples.

    ``others`` are devices whose figures count where ``device`` has none. Layers with the same
    operators are timed once, and all shapes together. If they are not ``fused``, each part of what
    is bound by memory is a kernel of its own. On CPUs all cores count as one
    multiprocessor.

    Raises
    ------
    InputError : a layer has operations but no operators; or nothing is known of products at the
        precision.
    """
    size = float(whole_number("batch_size", batch_size))
    groups: dict[Group, int] = {}
    indices = []
    for i, layer in enumerate(layers):
        if layer.forward_flop and not layer.operators:
            raise InputError(f"layer {layer.name!r}: has no operators to take times from")
        indices.append(groups.setdefault((layer.operators, i == 0), len(groups)))
    at = _At(device, size, precision, others)
    seconds = np.zeros((len(groups), 2))
    at.add_attention(groups, seconds)
    seconds *= factors.attention / factors.products
    at.add_products(groups, seconds)
    at.add_grouped(groups, seconds)
    at.add_memory_bound(groups, seconds, factors.memory_bound, fused)
    seconds *= factors.products
    rows: list[list[float]] = seconds.tolist()
    return [(rows[i][0], rows[i][1]) for i in indices]


def stated(layers: Iterable[Layer]) -> bool:
    """Return whether all layers that compute state their operators."""
    known = [bool(layer.operators) for layer in layers if layer.operators or layer.forward_flop]
    return bool(known) and all(known)


def kernels_of(layers: Iterable[Layer]) -> int:
    """Return the kernels that forward and backward of the layers launch."""
    counts = {Product: 3, Grouped: 3, Attention: 2}
    return sum(
        2 * one.kernels if isinstance(one, MemoryBound) else counts[type(one)]
        for layer in layers
        for one in layer.operators
    )


def most_kernels_of(layers: Iterable[Layer]) -> int:
    """Return the kernels if the products of groups are launched one after the other, as Transformer
    Engine does in eager mode (``nvte_multi_stream_cublas_gemm``)."""
    known = tuple(layers)
    more = (3 * (one.groups - 1) for layer in known for one in layer.operators
            if isinstance(one, Grouped))  # fmt: skip
    return kernels_of(known) + sum(more)


def has_small_groups(layer: Layer) -> bool:
    """Return whether a layer has products of groups whose matrices are not :data:`LARGE`."""
    return any(
        isinstance(one, Grouped) and one.columns * one.depth < LARGE for one in layer.operators
    )


def weight_casts_bytes(device: Device, layers: Iterable[Layer], precision: str) -> float:
    """Return the bytes read and written to cast all weights of products with 8 bits, which is done
    once in a step; 0 in other precisions."""
    if precision not in RECIPES:
        return 0.0
    values = sum(
        one.columns * one.depth * (one.groups if isinstance(one, Grouped) else one.count)
        for layer in layers
        for one in layer.operators
        if isinstance(one, Grouped) or (isinstance(one, Product) and one.weights and not one.wide)
    )
    return RECIPES[precision].cast_bytes(device.architecture) * values


class _At(NamedTuple):
    """Adds seconds to rows of groups of operators, by pass, at a batch size and precision."""

    device: Device
    batch_size: float
    precision: str
    others: Mapping[str, Device]

    @property
    def multiprocessors(self) -> float:
        if self.device.multiprocessors is None and self.device.kind == "gpu":
            raise InputError(
                f"multiprocessors: {self.device.title} needs their number for times of operators"
            )
        return float(self.device.multiprocessors or 1)

    @property
    def _has_winograd(self) -> bool:
        """Whether libraries have kernels of Winograd's algorithm, which came with Maxwell."""
        return self.device.kind == "gpu" and self.device.architecture != "kepler"

    def add_products(self, groups: Mapping[Group, int], seconds: Floats) -> None:
        """Add all products."""
        products = [
            (i, first and one.weights, one)
            for (operators, first), i in groups.items()
            for one in operators
            if isinstance(one, Product)
        ]
        if not products:
            return
        wide = np.array([one.wide and self.precision in RECIPES for _, _, one in products])
        of_pass = np.empty((3, len(products)))
        for at, rows in ((self, ~wide), (self._replace(precision="mixed"), wide)):
            if rows.any():
                some = [one for (_, _, one), take in zip(products, rows, strict=True) if take]
                of_pass[:, rows] = at._passes_s(some)
        of_pass[OF_INPUT, [leads for _, leads, _ in products]] = 0.0
        owners = [i for i, _, _ in products]
        np.add.at(seconds[:, 0], owners, of_pass[FORWARD])
        np.add.at(seconds[:, 1], owners, of_pass[OF_INPUT] + of_pass[OF_WEIGHTS])

    def _passes_s(self, products: Sequence[Product]) -> Floats:
        """Return the seconds of the passes of products, (3, products)."""
        rates = training_rates(self.device, self.precision, self.others)
        if rates.cast_bytes_per_s is not None:
            rates = rates._replace(cast_bytes_per_s=self._casts_bytes_per_s(products))
        shapes = [(p.rows, p.columns, p.depth, p.count, p.weights, p.reuse) for p in products]
        rows, columns, depth, count, weights, reuse = np.array(shapes, dtype=np.float64).T
        alone, transposed = self._stored(products, rates.element_bytes)
        inner = np.where(weights > 0.0, self.batch_size * rows, rows)
        times = np.where((weights > 0.0) & ~alone, count, self.batch_size * count)
        rows = np.where(alone, rows, inner)
        once = 1.0 - 1.0 / np.maximum(reuse, 1.0)
        of_pass = np.asarray(
            product_s(
                np.stack([rows, rows, depth]),
                np.stack([columns, depth, columns]),
                np.stack([depth, columns, inner]),
                rates,
                self.multiprocessors,
                count=np.stack([times, times, np.where(alone, count, times)]),
                repeated_bytes=rates.element_bytes * np.stack([rows, rows, inner]) * depth * once
                - self._summed_bytes(depth * columns),
            )
        )
        images = inner * count * (depth / reuse + columns)
        bandwidth = self.device.memory_bandwidth_bytes_per_s
        moving = transposing_s(images, rates.element_bytes, bandwidth, rates.launch_s)
        of_pass += np.where(transposed, moving, 0.0)
        if self.precision == "float32" and self._has_winograd:
            channels = depth / KERNEL**2
            given = (images, rates, self.multiprocessors, bandwidth)
            winograd = np.stack(
                [
                    np.asarray(winograd_s(inner, columns, channels, *given)),
                    np.asarray(winograd_s(inner, channels, columns, *given)),
                    np.asarray(winograd_s(channels, columns, inner, *given, of_weights=True)),
                ]
            )
            fits = (weights > 0.0) & (reuse == KERNEL**2) & (count == 1.0)
            of_pass = np.where(fits, np.minimum(of_pass, winograd), of_pass)
        return of_pass

    def _summed_bytes(self, values: Floats) -> Floats:
        """Return the bytes more that products move with 8 bits, (3, products): their gradients of
        weights are added to sums in 32 bits, which are read and written."""
        more = np.zeros((3, len(values)))
        if self.precision in RECIPES:
            more[OF_WEIGHTS] = (2.0 * SUM_BYTES - VALUE_BYTES) * values
        return more

    def add_grouped(self, groups: Mapping[Group, int], seconds: Floats) -> None:
        """Add all products of groups of rows, each with a matrix of its own.

        Gradients of weights have a row per value of the input, and sum over the rows of a group.
        The fastest counts of one kernel for all groups, in 8 bits also that of 16, which may have
        been measured to be faster, and, if matrices are large, a product for each group, as
        Transformer Engine computes them.
        """
        owners, products = _of_kind(groups, Grouped)
        if not products:
            return
        shapes = [(p.rows, p.columns, p.depth, p.groups) for p in products]
        rows, columns, depth, count = np.array(shapes, dtype=np.float64).T
        rows = self.batch_size * rows
        used = np.minimum(rows, count)
        kinds = [self.precision, *(["mixed"] if self.precision in RECIPES else [])]
        of_kind = []
        for kind in kinds:
            rates = grouped_rates(self.device, kind, self.others).rates
            given = (rates, self.multiprocessors)
            passes = (
                grouped_s(RowGroups(rows, used), columns, depth, *given),
                grouped_s(RowGroups(rows, used), depth, columns, *given),
                grouped_s(RowGroups(used * depth, used, 1.0), columns, rows / used, *given),
            )
            of_kind.append(np.stack(passes))
        alone = used * self._one_by_one_s(rows / used, columns, depth)
        of_kind.append(np.where(columns * depth >= LARGE, alone, np.inf))
        of_pass = np.min(of_kind, axis=0)
        np.add.at(seconds[:, 0], owners, of_pass[FORWARD])
        np.add.at(seconds[:, 1], owners, of_pass[OF_INPUT] + of_pass[OF_WEIGHTS])
        if self.precision in RECIPES:  # activations and gradients of outputs are cast
            casts_s = self._cast_s(rows * np.stack([depth, columns]))
            np.add.at(seconds, owners, casts_s.T)

    def _one_by_one_s(self, rows: Floats, columns: Floats, depth: Floats) -> Floats:
        """Return the seconds of the passes of the products of a group, (3, products), without
        casts. They run side by side, so that waves of one say nothing about the choice of its
        kernel."""
        rates = training_rates(self.device, self.precision, self.others)
        return np.asarray(
            product_s(
                np.stack([rows, rows, depth]),
                np.stack([columns, depth, columns]),
                np.stack([depth, columns, rows]),
                rates._replace(cast_bytes_per_s=None, kernel_choice=()),
                self.multiprocessors,
                repeated_bytes=-self._summed_bytes(depth * columns),
            )
        )

    def _cast_s(self, values: Floats) -> Floats:
        """Return the seconds to cast values to 8 bits, with their transposes."""
        launch_s = product_rates(self.device, "mixed", self.others).launch_s
        bandwidth = self.device.memory_bandwidth_bytes_per_s
        moved = RECIPES[self.precision].cast_bytes(self.device.architecture) * values
        return np.asarray(memory_bound_s(moved, 1.0, bandwidth, launch_s))

    def _casts_bytes_per_s(self, products: Sequence[Product]) -> Floats:
        """Return the rate of casts in training, (3, products): of inputs in the first pass, of the
        gradients of outputs in the second. Those that a norm casts may be transposed in the
        last."""
        recipe, architecture = RECIPES[self.precision], self.device.architecture
        moved = np.zeros((3, len(products)))
        moved[[FORWARD, OF_INPUT]] = recipe.cast_bytes(architecture)
        fused = recipe.fused & np.array([one.normed for one in products])
        moved[FORWARD, fused] = 0.0
        moved[OF_WEIGHTS, fused] = recipe.cast_in_norm_bytes(architecture)
        achieved = ACHIEVED * self.device.memory_bandwidth_bytes_per_s
        with np.errstate(divide="ignore"):
            return np.asarray(achieved * CAST_BYTES / moved)

    def _stored(
        self, products: Sequence[Product], element_bytes: float
    ) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Return whether each image is a product of its own, and whether images are transposed."""
        if self.precision == "float32":
            neither = np.zeros(len(products), dtype=np.bool_)
            return neither, neither
        odd = [p.rows * element_bytes % WIDE_LOAD_BYTES > 0.0 for p in products]
        columns = np.array([p.layout == "columns" for p in products])
        alone = columns & ~np.array(odd)
        return alone, np.array([p.layout != "rows" for p in products]) & ~alone

    def _moving_s(self, values: Floats, kernels: Floats) -> Floats:
        """Return the seconds of kernels that read and write values."""
        element = WIDE_BYTES.get(self.precision, VALUE_BYTES)
        launch_s = product_rates(self.device, "mixed", self.others).launch_s
        bandwidth = self.device.memory_bandwidth_bytes_per_s
        return np.asarray(memory_bound_s(element * values, kernels, bandwidth, launch_s))

    def add_attention(self, groups: Mapping[Group, int], seconds: Floats) -> None:
        """Add all attention."""
        owners, attentions = _of_kind(groups, Attention)
        if not attentions:
            return
        rates = attention_rates(self.device, self.others, self.precision)
        rates = rates._replace(cache_bytes_per_s=None, heat_s=0.0)  # no cache, and no breaks
        shapes = [
            (a.length, a.heads, a.kv_heads, a.mean_width, a.causal, a.window or a.length, a.count)
            for a in attentions
        ]
        length, heads, kv_heads, width, causal, window, count = np.array(shapes, np.float64).T
        forward = attention_s(
            self.batch_size * count, length, heads, kv_heads, width, rates, self.multiprocessors,
            mask=Mask(causal, window),
        )  # fmt: skip
        np.add.at(seconds[:, 0], owners, forward)
        np.add.at(seconds[:, 1], owners, BACKWARD * forward)

    def add_memory_bound(
        self, groups: Mapping[Group, int], seconds: Floats, factor: float, fused: bool
    ) -> None:
        """Add all operators that are bound by memory, which take ``factor`` times as long."""
        owners, operators = _of_kind(groups, MemoryBound)
        if not operators:
            return
        scaled = [(m.forward_values, m.backward_values) for m in operators]
        values = np.array(scaled) * self.batch_size
        if not fused:
            values *= np.array([[m.unfused] for m in operators])
        values[:, 1] += [m.fixed_backward_values for m in operators]
        kernels = np.array([m.kernels for m in operators], dtype=np.float64)[:, None]
        np.add.at(seconds, owners, factor * self._moving_s(values, kernels))


def _of_kind(groups: Mapping[Group, int], kind: type[Kind]) -> tuple[list[int], list[Kind]]:
    """Return the operators of a kind, and the rows of their groups."""
    pairs = [
        (i, one) for (operators, _), i in groups.items() for one in operators if type(one) is kind
    ]
    return [i for i, _ in pairs], [one for _, one in pairs]
