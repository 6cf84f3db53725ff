"""Measured layers of experts of inference engines: one call with both products and the activation.

A table has ``tokens``, ``hidden``, ``inner``, ``topk``, ``experts``, ``moe_tp_size``,
``moe_ep_size``, ``distribution``, ``dtype`` and ``ms``. One device has a part of the experts, and
of each a part; with a *power_law_a* it has those with most tokens. It computes the products of its
tokens, and may also write and add up rows of those whose experts are elsewhere.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.arrays import Floats, Ids
from perfmodel.base.errors import InputError
from perfmodel.base.quantities import Quantity
from perfmodel.theory.grouped import GroupedRates, RowGroups, grouped_s
from perfmodel.theory.memory_bound import ACHIEVED

COLUMNS = ("tokens", "hidden", "inner", "topk", "experts", "moe_tp_size", "moe_ep_size")
"""Columns of whole numbers."""

POWER_LAW, BALANCED = "power_law_", "balanced"
"""Distributions: the first is followed by an exponent."""

DRAWS = 10
"""Draws of the numbers of tokens of experts that are averaged, as the measurements average."""

SMALL, LARGE = (0.01, 2.0), 0.8
"""Range of popularity where experts outnumber choices, and else its upper end over the tokens; its
lower end is 1."""

UNGATED = (2688, 1856)
"""Width of the stream and inside of experts without a gate (Nemotron 3 Nano); all others have
one."""

VALUE_BYTES = 2.0
CAST_BYTES = 3.0
"""Bytes of an activation, and those read and written to make 8 bits of it."""


class ExpertLayers(NamedTuple):
    """Layers of experts, each field of shape (layers,).

    ``rows`` is the number of pairs of tokens and experts of the device, of ``groups`` experts,
    ``even`` whether these have equal numbers, and ``elsewhere`` the number of other pairs. Of the
    width of each expert, ``inner`` is the device's part, and ``up`` that of the first product.
    """

    tokens: Floats
    hidden: Floats
    inner: Floats
    up: Floats
    rows: Floats
    groups: Floats
    even: Floats
    elsewhere: Floats

    def at(self, index: Ids | slice) -> ExpertLayers:
        """Return some of the layers."""
        return ExpertLayers(*(field[index] for field in self))

    @property
    def wide(self) -> NDArray[np.bool_]:
        """Whether experts have tiles of tokens, not a few tokens each."""
        return np.asarray(self.rows / self.groups >= 64.0)


def layers_of(columns: Mapping[str, Floats]) -> ExpertLayers:
    """Return the layers of :data:`COLUMNS` and ``skew``, exponents of power laws or 0 for none."""
    tokens, hidden, inner, active, experts, tensor, devices = (columns[name] for name in COLUMNS)
    keys = zip(tokens, active, experts, devices, columns["skew"], strict=True)
    loads = np.array([_load(*(float(value) for value in key)) for key in keys]).reshape(-1, 2).T
    ungated = (hidden == UNGATED[0]) & (inner == UNGATED[1])
    part = inner / tensor
    return ExpertLayers(
        tokens, hidden, part, np.where(ungated, part, 2.0 * part), loads[0], loads[1],
        np.asarray(columns["skew"] == 0.0, np.float64), np.maximum(tokens * active - loads[0], 0.0),
    )  # fmt: skip


def skew_of(distribution: str) -> float:
    """Return the exponent of a distribution, or 0 if it is balanced.

    Raises
    ------
    InputError : another distribution.
    """
    if distribution == BALANCED:
        return 0.0
    try:
        return float(distribution.removeprefix(POWER_LAW))
    except ValueError:
        raise InputError(
            f"distribution: expected {BALANCED} or {POWER_LAW} and an exponent, got "
            f"{distribution!r}"
        ) from None


def fused_s(
    layers: ExpertLayers,
    rates: GroupedRates,
    elsewhere: Quantity,
    bandwidth_bytes_per_s: float,
    multiprocessors: float,
) -> Quantity:
    """Return the seconds of layers; ``elsewhere`` is the part of what would be moved for pairs of
    other devices that is."""
    groups = RowGroups(layers.rows, layers.groups, layers.even)
    up = grouped_s(groups, layers.up, layers.hidden, rates, multiprocessors)
    down = grouped_s(groups, layers.hidden, layers.inner, rates, multiprocessors)
    moved = VALUE_BYTES * (
        layers.rows * (layers.up + layers.inner + layers.hidden) + layers.tokens * layers.hidden
    )
    if rates.element_bytes < VALUE_BYTES:
        moved = moved + CAST_BYTES * (layers.tokens * layers.hidden + layers.rows * layers.inner)
    values_of_pair = 2.0 * layers.up + layers.inner + 2.0 * layers.hidden
    elsewhere_bytes = VALUE_BYTES * layers.elsewhere * values_of_pair
    return up + down + (moved + elsewhere * elsewhere_bytes) / (ACHIEVED * bandwidth_bytes_per_s)


@functools.lru_cache(maxsize=100_000)
def _load(
    tokens: float, active: float, experts: float, devices: float, skew: float
) -> tuple[float, float]:
    """Return the pairs of tokens and experts on the device with most, and the experts that have
    any.

    The popularity of each expert is drawn from a density that falls with the power ``skew``.
    """
    pairs = tokens * active
    if skew == 0.0:
        return pairs / devices, min(experts, pairs) / devices
    random = np.random.Generator(np.random.Philox(0))
    low, high = (1.0, LARGE * tokens) if pairs > experts else SMALL
    power = 1.0 - skew
    draws = random.random((DRAWS, int(experts)))
    popular = ((high**power - low**power) * draws + low**power) ** (1.0 / power)
    shares = popular / popular.sum(axis=1, keepdims=True)
    many = np.minimum(np.round(shares * pairs), tokens).reshape(DRAWS, int(devices), -1)
    most = many.sum(axis=2).argmax(axis=1)
    local = many[np.arange(DRAWS), most]
    return float(local.sum(axis=1).mean()), max(float((local > 0.0).sum(axis=1).mean()), 1.0)
