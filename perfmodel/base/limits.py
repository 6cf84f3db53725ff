"""Plausible ranges of quantities, by the unit that their names end in.

The limits are wide. They catch typing errors, and values that would make sums overflow or stop the
simulated clock.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import NamedTuple


class Limits(NamedTuple):
    """Smallest and largest value (SI); where zero is allowed, so are values below ``least``."""

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
"""Limits by the ending of a quantity's name; the first match in this order applies."""

PLAIN = Limits(1e-9, 1e9)
"""Limits of numbers without a unit."""

SPEED = Limits(1e-4, 1e4)
"""Limits of the speed ratio of two devices of the same kind."""

MOST_WHOLE = 10**9
"""Default upper limit of a whole number."""


@functools.lru_cache(maxsize=1024)
def limits_of(name: str) -> Limits:
    """Return the limits of the quantity ``name``; its place and index, if any, are ignored.

    >>> limits_of("layer 'x': tensor_bytes[2]"), limits_of("peak_flop_per_s.float32").most
    (Limits(least=0.001, most=1e+18), 1e+24)
    >>> limits_of("speed")
    Limits(least=1e-09, most=1000000000.0)
    """
    field = name.rpartition("[")[0] if name.endswith("]") else name
    for part in reversed(field.split(".")):
        for end, limits in LIMITS.items():
            if _ends(part, end):
                return limits
    return PLAIN


@functools.cache
def dimension_of(field: str) -> str | None:
    """Return the dimension that a name's suffix gives, or None.

    >>> dimension_of("latency_s"), dimension_of("samples_per_s")
    ('s', None)
    """
    for dimension in ("bytes_per_s", "flop_per_s", "bytes", "s"):
        if _ends(field, dimension):
            return None if dimension == "s" and field.endswith("_per_s") else dimension
    return None


def words_and_unit(name: str) -> tuple[str, str]:
    """Return a name without its unit, in words, and the unit; "" if it ends in none.

    >>> words_and_unit("bandwidth_bytes_per_s"), words_and_unit("batch_size")
    (('bandwidth', 'bytes_per_s'), ('batch size', ''))
    """
    unit = dimension_of(name) or ""
    return name.removesuffix(f"_{unit}" if unit else "").strip("_").replace("_", " "), unit


def _ends(field: str, unit: str) -> bool:
    return field.endswith(unit) and not field[: -len(unit)][-1:].isalnum()
