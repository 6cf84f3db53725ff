"""Ticks of logarithmic axes, on pages and in files."""

from __future__ import annotations

import itertools
import math

from perfmodel.base.units import show

MOST, NARROW = 7, 0.15
"""Ticks of a logarithmic axis, at most, and the decades below which they are at equal steps."""


def decades(low: float, high: float, most: int = MOST) -> list[float]:
    """Round values for the ticks of a logarithmic axis: as many as there are room for.

    >>> decades(0.98, 1.05), decades(0.9, 6.0)
    ([0.98, 1.0, 1.02, 1.04], [1.0, 1.5, 2.0, 3.0, 5.0])
    >>> decades(0.5, 30.0), decades(3.0, 2e7, 5)
    ([0.5, 1.0, 2.0, 5.0, 10.0, 20.0], [10.0, 1000.0, 100000.0, 10000000.0])
    """
    if math.log10(high / low) <= NARROW:
        return _even(low, high)
    exponents = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks: list[float] = []
    for step, mantissas in itertools.chain(_MANTISSAS, ((k, (1.0,)) for k in itertools.count(2))):
        values = [m * 10.0**e for e in exponents if e % step == step - 1 for m in mantissas]
        ticks = [float(f"{value:.6g}") for value in values if low <= value <= high]
        if len(ticks) <= most:
            break
    return ticks


_MANTISSAS = (
    (1, (1.0, 1.2, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0)),
    (1, (1.0, 1.5, 2.0, 3.0, 5.0, 7.0)),
    (1, (1.0, 2.0, 5.0)),
    (1, (1.0, 3.0)),
    (1, (1.0,)),
)
"""Ticks of each of so many decades, the most of them first."""


def _even(low: float, high: float) -> list[float]:
    """Round values at equal steps, about four of them."""
    step = 10.0 ** math.floor(math.log10((high - low) / 2.0))
    step *= next(m for m in (5.0, 2.0, 1.0) if m * step <= (high - low) / 2.0)
    first, last = math.ceil(low / step), math.floor(high / step)
    return [float(f"{k * step:.6g}") for k in range(first, last + 1)]


def tick_text(value: float, unit: str) -> str:
    """A value as text beside its tick.

    >>> tick_text(0.25, "fraction"), tick_text(1e-3, "s"), tick_text(2.0, "")
    ('25 %', '1 ms', '2')
    """
    if unit == "fraction":
        return f"{100.0 * value:g} %"
    return show(value, unit) if unit else f"{value:g}"
