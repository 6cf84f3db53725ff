"""What other values of an assumption would do to the throughput."""

from __future__ import annotations

import math
from collections.abc import Iterable

import msgspec

from perfmodel.base.provenance import Assumption

MATTERS = 0.02
"""Relative change of the throughput above which an assumption matters."""

LEFT_OUT = "formulas leave out"
"""Start of the reason why the formulas cannot predict a variant."""

NAMES = ("device", "precision", "cluster")
"""Assumptions whose name stands for many values, so they cannot be halved or doubled."""

Value = float | int | str | bool
"""A value of an assumption."""


class Alternative(msgspec.Struct, frozen=True):
    """Another value of an assumption, its throughput, and the ratio to the predicted throughput."""

    value: Value
    throughput_samples_per_s: float
    ratio: float

    @property
    def swing(self) -> float:
        """Absolute change of log throughput."""
        return abs(math.log(self.ratio))


class Effect(msgspec.Struct, frozen=True):
    """Effect of an assumption on the throughput.

    Attributes
    ----------
    assumption : as in the prediction.
    alternatives : other values; numbers are in rising order.
    unvaried : why there are no alternatives; empty if there are some.
    """

    assumption: Assumption
    alternatives: tuple[Alternative, ...]
    unvaried: str = ""

    @property
    def swing(self) -> float:
        """Largest absolute change of log throughput; 0 without alternatives."""
        return max((alternative.swing for alternative in self.alternatives), default=0.0)

    @property
    def left_out(self) -> bool:
        """Whether the effect is unknown because the formulas leave it out."""
        return f": {LEFT_OUT} " in self.unvaried

    @property
    def matters(self) -> bool:
        """Whether it changes the throughput by more than :data:`MATTERS`, or is a name that stands
        for many values, such as a device."""
        return self.swing > math.log1p(MATTERS) or self.assumption.name in NAMES

    def largest(self, most: int, least: float) -> list[Alternative]:
        """Return up to ``most`` alternatives that change the throughput by more than the fraction
        ``least``, the largest first."""
        swings = [(alternative.swing, alternative) for alternative in self.alternatives]
        ordered = sorted(swings, key=lambda row: -row[0])[:most]
        return [alternative for swing, alternative in ordered if swing > math.log1p(least)]

    @property
    def sides(self) -> tuple[tuple[str, float], tuple[str, float]]:
        """Return a lower and a higher value as text, each with its ratio; ("", 1) if there is none.
        Words count as higher values."""
        from perfmodel.reporting.contents import UnitValue, shown

        a = self.assumption
        below, above = ("", 1.0), ("", 1.0)
        words = isinstance(a.value, (bool, str))
        for alternative in sorted(self.alternatives, key=lambda alternative: alternative.swing):
            side = shown(UnitValue(alternative.value, a.unit)), alternative.ratio
            if not words and float(alternative.value) < float(a.value or 0.0):
                below = side
            else:
                above = side
        return below, above


def largest_first(effects: Iterable[Effect]) -> tuple[Effect, ...]:
    """Return effects, the largest first."""
    return tuple(sorted(effects, key=lambda effect: -effect.swing))


def that_matter(effects: Iterable[Effect]) -> list[Effect]:
    """Return the effects that matter, in the same order."""
    return [effect for effect in effects if effect.matters]


def unknown(effects: Iterable[Effect]) -> int:
    """Return how many effects are unknown because the formulas leave them out."""
    return sum(effect.left_out for effect in effects)
