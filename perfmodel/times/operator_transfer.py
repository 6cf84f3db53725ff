"""What operators achieve on a device: as fitted, or on a device without figures by transfer.

Such a device gets the geometric mean of the figures of its architecture, else of all devices: rates
relative to peak rates and bandwidths, times as they are, and the choice of kernels only from its
architecture. In 32 bits (*float32*, *tf32*) operators have the figures of 16 bits, with values of
twice the bytes and rates of operations that differ as the peak rates do; *mxfp8* has those of
*fp8*, and *nvfp4* these with rates that differ as the peak rates do.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeVar

import msgspec

from perfmodel.base.errors import InputError, unknown_name
from perfmodel.inputs.device import Device, PeakRates
from perfmodel.inputs.operators import (
    ELEMENT_BYTES,
    AttentionFigures,
    GroupedFigures,
    Operators,
    ProductFigures,
    StackFigures,
)
from perfmodel.inputs.precisions import FOUR_BITS, RECIPES, SHORT, SIXTEEN_BITS, WIDE_BYTES
from perfmodel.inputs.software import STACKS
from perfmodel.theory.attention import VALUE_BYTES, AttentionRates
from perfmodel.theory.grouped import GroupedRates
from perfmodel.theory.kernel_choice import DEPTHS, WAVES, Choice
from perfmodel.theory.products import ProductRates

F = TypeVar("F")
Rates = TypeVar("Rates", ProductRates, GroupedRates)

TINY = 1e-12
"""What counts instead of 0 in a geometric mean."""


def product_rates(device: Device, precision: str, others: Mapping[str, Device]) -> ProductRates:
    """Return what products achieve on a device at a precision: as fitted, or transferred from the
    ``others``.

    Raises
    ------
    InputError : no such precision, or nothing to transfer from.
    """
    fitted = _fitted_precision(precision)
    candidates = [
        (source, operators.products[fitted])
        for source, operators in _known(device, others)
        if fitted in operators.products
    ]
    nearest = _nearest(device, candidates, f"products at {fitted}")
    mean = _Mean(device, nearest)
    casts = mean.from_bandwidth("cast_bytes_per_s") if fitted == "fp8" else None
    written = all(figures.written_bytes_per_s is not None for _, figures in nearest)
    same_kernels = precision not in FOUR_BITS and bool(_in_architecture(device, nearest))
    rates = ProductRates(
        mean.from_peak("flop_per_s"),
        mean.from_bandwidth("bytes_per_s"),
        mean.of("launch_s"),
        mean.of("tile_s"),
        mean.of("rounding"),
        ELEMENT_BYTES[fitted],
        cast_bytes_per_s=casts,
        written_bytes_per_s=mean.from_bandwidth("written_bytes_per_s") if written else math.inf,
        kernel_choice=_kernel_choice(fitted, nearest) if same_kernels else (),
    )
    return _at_precision(rates, device, precision)


def _fitted_precision(precision: str) -> str:
    """Return the precision whose figures a precision has: *mixed* or *fp8*.

    Raises
    ------
    InputError : no such precision.
    """
    known = {*SHORT, *WIDE_BYTES}
    if precision not in known:
        raise unknown_name("precision", precision, known)
    return "mixed" if precision in WIDE_BYTES or precision in SIXTEEN_BITS else "fp8"


def _at_precision(rates: Rates, device: Device, precision: str) -> Rates:
    """Return rates at a precision from those of the one whose figures it has."""
    if precision in WIDE_BYTES:
        size = WIDE_BYTES[precision]
        rate = rates.flop_per_s * _over(device, precision, "mixed")
        return rates._replace(flop_per_s=rate, element_bytes=size, result_bytes=size)
    if precision in FOUR_BITS:
        rate = rates.flop_per_s * _over(device, precision, "fp8")
        return rates._replace(flop_per_s=rate, element_bytes=RECIPES[precision].value_bytes)
    return rates


def _kernel_choice(precision: str, figures: Sequence[tuple[Device, ProductFigures]]) -> Choice:
    """Return the geometric means of factors of the choice of kernels; none unless all have them.

    Raises
    ------
    InputError : they are not on the grid.
    """
    choices = [products.kernel_choice for _, products in figures]
    for (device, _), choice in zip(figures, choices, strict=True):
        if choice and [len(row) for row in choice] != [DEPTHS.points] * WAVES.points:
            raise InputError(
                f"{device.name}: operators.products.{precision}.kernel_choice: needs "
                f"{WAVES.points} rows of {DEPTHS.points}"
            )
    if not all(choices) or len(choices) == 1:
        return choices[0] if all(choices) else ()
    return tuple(
        tuple(math.prod(factors) ** (1.0 / len(factors)) for factors in zip(*rows, strict=True))
        for rows in zip(*choices, strict=True)
    )


def training_rates(device: Device, precision: str, others: Mapping[str, Device]) -> ProductRates:
    """Return what products achieve on a device in training (:func:`product_rates`).

    Figures of 8 bits are those of an inference engine's kernels. Training has the libraries'
    kernels for 8 bits as for 16, so that figures of 16 bits count: rates of operations differ as
    the peak rates do, and values of the matrices have one byte, or half of one. Casts take no time
    here.
    """
    rates = product_rates(device, "mixed" if precision in RECIPES else precision, others)
    if precision not in RECIPES:
        return rates
    return rates._replace(
        flop_per_s=rates.flop_per_s * _over(device, precision, "mixed"),
        element_bytes=RECIPES[precision].value_bytes,
        cast_bytes_per_s=math.inf,
    )


class GroupedPerformance(NamedTuple):
    """Rates of products of groups, what is moved ``elsewhere``, and the error, see
    :class:`perfmodel.inputs.operators.GroupedFigures`."""

    rates: GroupedRates
    elsewhere: float
    error_fraction: float


def grouped_rates(
    device: Device, precision: str, others: Mapping[str, Device]
) -> GroupedPerformance:
    """Return what products of groups achieve on a device at a precision: as fitted, or transferred.

    Raises
    ------
    InputError : no such precision, or nothing to transfer from.
    """
    fitted = _fitted_precision(precision)
    candidates = [
        (source, operators.grouped[fitted])
        for source, operators in _known(device, others)
        if fitted in operators.grouped
    ]
    nearest = _nearest(device, candidates, f"products of groups at {fitted}")
    mean = _Mean(device, nearest)
    rates = GroupedRates(
        mean.from_peak("flop_per_s"),
        mean.from_bandwidth("bytes_per_s"),
        mean.of("launch_s"),
        mean.of("tile_s"),
        ELEMENT_BYTES[fitted],
    )
    rates = _at_precision(rates, device, precision)
    error = max(figures.error_fraction for _, figures in nearest)
    return GroupedPerformance(rates, mean.of("elsewhere"), error)


def attention_rates(
    device: Device, others: Mapping[str, Device], precision: str = "mixed"
) -> AttentionRates:
    """Return what attention achieves on a device: as fitted, or transferred. Where products have 8
    bits, it has 16. The cache is that of an engine of inference.

    Raises
    ------
    InputError : nothing to transfer from.
    """
    candidates = [
        (source, operators.attention)
        for source, operators in _known(device, others)
        if operators.attention
    ]
    nearest = _nearest(device, candidates, "attention")
    mean = _Mean(device, nearest)
    wide = precision in WIDE_BYTES
    cached = all(figures.cache_bytes_per_s is not None for _, figures in nearest)
    return AttentionRates(
        mean.from_peak("flop_per_s") * (_over(device, precision, "mixed") if wide else 1.0),
        mean.from_bandwidth("bytes_per_s") * (VALUE_BYTES / WIDE_BYTES[precision] if wide else 1.0),
        mean.of("launch_s"),
        mean.of("tile_s"),
        mean.of("softmax"),
        mean.of("tail"),
        mean.of("lone"),
        mean.of("wide"),
        min(figures.queries for _, figures in nearest),
        mean.from_bandwidth("cache_bytes_per_s") if cached else None,
        mean.of("token_s"),
        mean.of("throttle"),
        overlap=min(figures.overlap for _, figures in nearest),
    )


class Stack(NamedTuple):
    """Time of training on a device over that of its operators; see
    :class:`perfmodel.inputs.operators.StackFigures`.

    Attributes
    ----------
    devices : those that the factors come from.
    alike : whether these are the device itself, or have the same chip.
    error_fraction : of devices with the same chip.
    """

    products: float
    attention: float
    optimizer: float
    autocast: float | None
    devices: tuple[str, ...]
    alike: bool
    error_fraction: float

    @property
    def meaning(self) -> str:
        """What the factors say."""
        return (
            f"attention takes {self.attention:.2f} times as long as alone, all else "
            f"{self.products:.2f} times, as on {', '.join(self.devices)}"
        )


def stack_of(device: Device, name: str, others: Mapping[str, Device]) -> Stack:
    """Return how much longer training takes than its operators on a device, with a level of
    software: its own factors or those of its chip, else of its architecture.

    An architecture that has other levels only has the newest times the mean ratio of both levels;
    all other devices have the mean of all factors.

    Raises
    ------
    InputError : no such level, or nothing to transfer from.
    """
    if name not in STACKS:
        raise unknown_name("stack", name, STACKS)
    known = _known(device, others)

    def figures_of(*levels: str) -> list[tuple[Device, StackFigures]]:
        """Return the figures of the last of these levels, of devices that have all."""
        return [
            (source, operators.stacks[levels[-1]])
            for source, operators in known
            if {*levels} <= {*operators.stacks}
        ]

    same = _same_chip(device, figures_of(name))
    nearest = same or _nearest(device, figures_of(name), f"software {name}")
    mean = _Mean(device, nearest)
    autocast = all(factors.autocast is not None for _, factors in nearest)
    stack = Stack(
        mean.of("products"),
        mean.of("attention"),
        mean.of("optimizer"),
        mean.of("autocast") if autocast else None,
        tuple(source.name for source, _ in nearest),
        bool(same),
        max(factors.error_fraction for _, factors in nearest),
    )
    if _in_architecture(device, nearest):
        return stack
    for level in reversed([*STACKS]):
        related = _in_architecture(device, figures_of(level))
        related = _same_chip(device, related) or related
        with_both = figures_of(name, level)
        if related and with_both:
            of_level, usual = _Mean(device, related), _Mean(device, with_both)
            return stack._replace(
                products=of_level.of("products") * stack.products / usual.of("products"),
                attention=of_level.of("attention") * stack.attention / usual.of("attention"),
                devices=tuple(source.name for source, _ in related),
            )
    return stack


def _same_chip(device: Device, candidates: Sequence[tuple[Device, F]]) -> list[tuple[Device, F]]:
    """Return the figures of the device itself, else of those with the same peak rates."""
    itself = [pair for pair in candidates if pair[0].name == device.name]
    return itself or [pair for pair in candidates if _usual_rates(pair[0]) == _usual_rates(device)]


def _usual_rates(device: Device) -> PeakRates:
    """Return the peak rates but for those of 4 bits, which no figures are of."""
    return msgspec.structs.replace(device.peak_flop_per_s, **dict.fromkeys(FOUR_BITS))


def _over(device: Device, precision: str, other: str) -> float:
    """Return the peak rate at a precision over that at another."""
    return device.peak(precision) / device.peak(other)


def _known(device: Device, others: Mapping[str, Device]) -> list[tuple[Device, Operators]]:
    """Return the devices with figures, and these; the device itself comes first."""
    devices = [device, *(one for name, one in others.items() if name != device.name)]
    return [(one, one.operators) for one in devices if one.operators is not None]


def _nearest(
    device: Device, candidates: Sequence[tuple[Device, F]], what: str
) -> Sequence[tuple[Device, F]]:
    """Return the figures that count: its own, else those of its architecture, else all."""
    if not candidates:
        raise InputError(f"{device.name}: no device has figures of {what}")
    if candidates[0][0].name == device.name:
        return candidates[:1]
    return _in_architecture(device, candidates) or candidates


def _in_architecture(
    device: Device, candidates: Sequence[tuple[Device, F]]
) -> list[tuple[Device, F]]:
    """Return the figures of devices of the same architecture."""
    return [pair for pair in candidates if pair[0].architecture == device.architecture]


class _Mean(NamedTuple):
    """Geometric means of figures, relative to peak rates or bandwidths."""

    device: Device
    figures: Sequence[
        tuple[Device, ProductFigures | GroupedFigures | AttentionFigures | StackFigures]
    ]

    def of(self, name: str) -> float:
        """Return the mean of a field."""
        return self._relative(name, lambda one: 1.0)

    def from_peak(self, name: str) -> float:
        """Return the mean of a rate of operations."""
        return self._relative(name, lambda one: one.peak("mixed"))

    def from_bandwidth(self, name: str) -> float:
        """Return the mean of a rate of bytes."""
        return self._relative(name, lambda one: one.memory_bandwidth_bytes_per_s)

    def _relative(self, name: str, scale: Callable[[Device], float]) -> float:
        if len(self.figures) == 1 and self.figures[0][0].name == self.device.name:
            return float(getattr(self.figures[0][1], name))  # exactly
        logs = [
            math.log(max(getattr(figures, name), TINY) / scale(one))
            for one, figures in self.figures
        ]
        return scale(self.device) * math.exp(sum(logs) / len(logs))
