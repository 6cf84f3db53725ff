"""Plausible ranges of quantities, by the unit at the end of their names.

The limits are wide: they catch typing errors, and values for which sums would overflow or clocks
stand still.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import NamedTuple


class Limits(NamedTuple):
    """Smallest and largest value (SI); values that may be zero may also be below ``least``."""

    least: float
    most: float


LIMITS: Mapping[str, Limits] = {
    "bytes_per_s": Limits(1e-3, 1e30),
    "flop_per_s": Limits(1.0, 1e24),
    "samples_per_s": Limits(1e-9, 1e15),
    "per_byte_s": Limits(1e-21, 1e9),
    "s_per_byte": Limits(1e-21, 1e9),
    "bytes": Limits(1e-3, 1e18),
    "flop": Limits(1.0, 1e24),
    "s": Limits(1e-12, 1e9),
}
"""By the ending of a quantity's name; the longest match counts."""

PLAIN = Limits(1e-9, 1e9)
"""Limits of numbers without a unit."""

SPEED = Limits(1e-4, 1e4)
"""Limits of the ratio of speeds of two devices of the same kind."""

MOST_WHOLE = 10**9
"""Default limit of a whole number."""


def limits_of(name: str) -> Limits:
    """Limits of the quantity ``name``, whatever place before and index or kind behind it.

    >>> limits_of("layer 'x': tensor_bytes[2]"), limits_of("peak_flop_per_s.float32").most
    (Limits(least=0.001, most=1e+18), 1e+24)
    >>> limits_of("speed")
    Limits(least=1e-09, most=1000000000.0)
    """
    field = name.rpartition("[")[0] if name.endswith("]") else name
    for part in reversed(field.split(".")):
        for end, found in LIMITS.items():
            if _ends(part, end):
                return found
    return PLAIN


@functools.cache
def dimension_of(field: str) -> str | None:
    """The dimension given by a name's suffix, or None.

    >>> dimension_of("latency_s"), dimension_of("samples_per_s")
    ('s', None)
    """
    for dimension in ("bytes_per_s", "flop_per_s", "bytes", "s"):
        if _ends(field, dimension):
            return None if dimension == "s" and field.endswith("_per_s") else dimension
    return None


def _ends(field: str, unit: str) -> bool:
    return field.endswith(unit) and not field[: -len(unit)][-1:].isalnum()
