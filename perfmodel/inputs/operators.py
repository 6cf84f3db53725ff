"""What operators achieve on a device, as device files have it."""

from collections.abc import Mapping
from typing import ClassVar

import msgspec

from perfmodel.base.provenance import Source
from perfmodel.base.ranges import FRACTION, NOT_NEGATIVE, POSITIVE, Range, Ranged, or_none

Covariance = tuple[tuple[float, ...], ...]
"""Covariance of the logarithms of fitted values, in the order of their fields."""

ELEMENT_BYTES: Mapping[str, float] = {"mixed": 2.0, "fp8": 1.0}
"""Precisions of products, with the bytes of a value."""


class ProductFigures(Ranged, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Fitted values of :class:`perfmodel.theory.products.ProductRates` at a precision.

    ``error_fraction`` is the 90th percentile of the error on shapes that were not fitted to.
    """

    RANGES: ClassVar = {
        **dict.fromkeys(("flop_per_s", "bytes_per_s"), POSITIVE),
        **dict.fromkeys(("launch_s", "tile_s", "error_fraction"), NOT_NEGATIVE),
        "rounding": FRACTION,
        "kernel_choice": Range(0.1, 10.0),
        **dict.fromkeys(("cast_bytes_per_s", "written_bytes_per_s"), or_none(POSITIVE)),
    }

    flop_per_s: float
    bytes_per_s: float
    launch_s: float
    tile_s: float
    rounding: float
    written_bytes_per_s: float | None = None
    cast_bytes_per_s: float | None = None
    kernel_choice: tuple[tuple[float, ...], ...] = ()
    error_fraction: float = 0.0
    covariance: Covariance = ()


class GroupedFigures(Ranged, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Fitted values of :class:`perfmodel.theory.grouped.GroupedRates` at a precision.

    ``elsewhere`` is the part of what would be moved for tokens whose experts other devices have
    that the measured kernels do move. ``error_fraction`` is the 90th percentile of the error on
    shapes that were not fitted to.
    """

    RANGES: ClassVar = {
        **dict.fromkeys(("flop_per_s", "bytes_per_s"), POSITIVE),
        **dict.fromkeys(("launch_s", "tile_s", "elsewhere", "error_fraction"), NOT_NEGATIVE),
    }

    flop_per_s: float
    bytes_per_s: float
    launch_s: float
    tile_s: float
    elsewhere: float = 0.0
    error_fraction: float = 0.0
    covariance: Covariance = ()


class AttentionFigures(Ranged, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Fitted values of :class:`perfmodel.theory.attention.AttentionRates` in 16 bits."""

    RANGES: ClassVar = {
        **dict.fromkeys(("flop_per_s", "bytes_per_s", "wide", "queries", "overlap"), POSITIVE),
        **dict.fromkeys(
            ("launch_s", "tile_s", "softmax", "tail", "lone", "token_s", "error_fraction"),
            NOT_NEGATIVE,
        ),
        "cache_bytes_per_s": or_none(POSITIVE),
        "throttle": NOT_NEGATIVE,
    }

    flop_per_s: float
    bytes_per_s: float
    launch_s: float
    tile_s: float
    softmax: float
    tail: float
    lone: float = 1.0
    wide: float = 1.0
    cache_bytes_per_s: float | None = None
    token_s: float = 0.0
    throttle: float = 0.0
    queries: float = 128.0
    overlap: float = 2.0
    error_fraction: float = 0.0
    covariance: Covariance = ()


class StackFigures(Ranged, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Time of training over that of its operators alone, with some software.

    ``products`` holds for all but attention, such as for power limits, sums in 32 bits and small
    kernels that are not counted; ``attention`` for attention, whose kernels differ between levels
    of software. ``optimizer`` is the time of an update over that of its bytes, read and written
    once: frameworks may launch a kernel for each operation of it. ``autocast`` is by which share
    longer kernels bound by memory take under autocast, which has norms and losses in 32 bits, and
    casts weights; None if ``products`` contains both. ``error_fraction`` is the 90th percentile of
    the error of steps of models that were not fitted to.
    """

    RANGES: ClassVar = {
        **dict.fromkeys(("products", "attention", "optimizer"), POSITIVE),
        "autocast": or_none(NOT_NEGATIVE),
        "error_fraction": NOT_NEGATIVE,
    }

    products: float
    attention: float
    optimizer: float = 1.0
    autocast: float | None = None
    error_fraction: float
    source: Source


class Operators(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What operators achieve on a device, where it is known: ``products`` by precision, those of
    groups of rows (``grouped``) too, and causal attention; ``stacks`` is how much longer they take
    in training, by level of software."""

    products: dict[str, ProductFigures] = {}
    attention: AttentionFigures | None = None
    source: Source
    stacks: dict[str, StackFigures] = {}
    grouped: dict[str, GroupedFigures] = {}
