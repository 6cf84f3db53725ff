"""Parses and prints quantities with units; all other code uses SI floats.

Network rates are decimal (1 Gbps = 1e9 bit/s = 1.25e8 bytes/s); ``MiB`` and its kin are binary.
Letter case matters: ``b`` is a bit and ``B`` a byte.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from perfmodel.base.errors import InputError, number, suggestion
from perfmodel.base.limits import (
    LIMITS,
    dimension_of as dimension_of,
    words_and_unit as words_and_unit,
)

_DECIMAL = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_BINARY = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40}


def _table(decimal: dict[str, float], binary: dict[str, float]) -> dict[str, float]:
    """Return unit names with all prefixes: k, M, G, T for ``decimal``, Ki to Ti for ``binary``."""
    table = {p + u: f * s for p, f in _DECIMAL.items() for u, s in decimal.items()}
    table.update({p + u: f * s for p, f in _BINARY.items() for u, s in binary.items()})
    return table


HOUR_S = 3600.0

_LONG = {"min": 60.0, "h": HOUR_S, "d": 24.0 * HOUR_S}
"""Units of the time of a whole training."""

UNITS: dict[str, dict[str, float]] = {
    "s": {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, **_LONG},
    "bytes": _table({"B": 1.0}, {"B": 1.0}),
    "bytes_per_s": _table(
        {"bps": 0.125, "bit/s": 0.125, "b/s": 0.125, "B/s": 1.0, "Bps": 1.0}, {"B/s": 1.0}
    ),
    "flop_per_s": _table({"FLOPS": 1.0, "FLOP/s": 1.0}, {}),
}
"""All units that text may have, by dimension; the dimension is also the suffix of SI names."""

_EXAMPLES = {
    "s": "50us or 1.5ms",
    "bytes": "25MiB or 100MB",
    "bytes_per_s": "10Gbps or 1.25GB/s",
    "flop_per_s": "15.7TFLOPS",
}
SHOWN = {
    "s": [(1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns")],
    "s/byte": [(1.0, "s/byte"), (1e-3, "ms/byte"), (1e-6, "us/byte"), (1e-9, "ns/byte")],
    "bytes": [(1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B")],
    "bytes_per_s": [(1e12, "Tbps"), (1e9, "Gbps"), (1e6, "Mbps"), (1e3, "kbps"), (1.0, "bps")],
    "flop_per_s": [(1e12, "TFLOPS"), (1e9, "GFLOPS"), (1.0, "FLOPS")],
}
"""Units that quantities are printed in, the largest first; rates are shown in bits."""

_LASTING = r"(?<![a-z])(deadline|time|limit|duration|age)(?![a-z])"
"""Names of times that are hours or days rather than microseconds."""

_QUANTITY = r"\s*([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|[-+]?(?:nan|inf))\s*(\S*)\s*"


def parse(text: str, dimension: str, name: str = "quantity") -> float:
    """Read a quantity such as ``10Gbps`` as a float in SI units.

    Parameters
    ----------
    text : a number followed by its unit, which is required.
    dimension : a key of ``UNITS``: ``s``, ``bytes``, ``bytes_per_s``, ``flop_per_s``.
    name : what errors call the quantity.

    Raises
    ------
    InputError : not a number, negative, not finite; the unit is missing or of another dimension.

    >>> parse("10Gbps", "bytes_per_s")
    1250000000.0
    >>> parse("50us", "s"), parse("25MiB", "bytes"), parse("7d", "s")
    (5e-05, 26214400.0, 604800.0)
    """
    units = UNITS[dimension]
    match = re.fullmatch(_QUANTITY, text)
    if match is None:
        raise InputError(
            f"{name}: cannot read {text!r}; expected a number and a unit, "
            f"like {_examples(dimension, name)}"
        )
    value, unit = float(match[1]), match[2]
    if unit not in units:
        problem = f"unit {unit!r} does not fit" if unit else "a unit is missing"
        hint = suggestion(unit, units) if unit else ""
        raise InputError(f"{name}: {problem} in {text!r}{hint} (like {_examples(dimension, name)})")
    rate = dimension.endswith("_per_s")
    if value < 0.0 or (rate and not value):
        raise InputError(f"{name}: must be {'more than' if rate else 'at least'} 0, got {text!r}")
    number(name, value, at_most=math.inf)
    scale = units[unit]
    # dividing by an exact power of ten keeps 50us == 5e-05; multiplying would be off by an ulp
    si_value = value / round(1.0 / scale) if scale < 1.0 else value * scale
    least, most = LIMITS[dimension]
    if si_value > most:
        raise InputError(f"{name}: must be at most {show(most, dimension)}, got {text!r}")
    if si_value < least and rate:
        raise InputError(f"{name}: must be at least {show(least, dimension)}, got {text!r}")
    return si_value


def is_number(text: str) -> bool:
    """Return whether a text is a number without a unit.

    >>> is_number("2e3"), is_number("2 kB")
    (True, False)
    """
    try:
        float(text)
    except ValueError:
        return False
    return True


def _examples(dimension: str, name: str) -> str:
    """Return two quantities of the dimension and of the size that the name suggests."""
    lasting = dimension == "s" and re.search(_LASTING, name)
    return "90min or 7d" if lasting else _EXAMPLES[dimension]


def show(value: float, unit: str) -> str:
    """Format an SI value with a suitable prefix and four significant digits; of other units, whole
    numbers have all digits, and one thing is not in the plural.

    >>> show(1.25e9, "bytes_per_s"), show(0.00005, "s"), show(46758048, "bytes")
    ('10 Gbps', '50 us', '46.76 MB')
    >>> show(0.99999, "s"), show(100_000, "samples"), show(1, "passes"), show(1.0, "steps")
    ('1 s', '100000 samples', '1 pass', '1 step')
    """
    if unit not in SHOWN:
        text = f"{value}" if isinstance(value, int) else f"{value:.4g}"
        if text == "1":
            unit = unit.removesuffix("es" if unit.endswith(("sses", "ches")) else "s")
        return f"{text} {unit}".strip()
    steps = SHOWN[unit]
    if not value:
        return f"0 {next(suffix for scale, suffix in steps if scale == 1.0)}"
    value = float(f"{value * (8.0 if unit == 'bytes_per_s' else 1.0):.4g}")
    scale, suffix = next((step for step in steps if abs(value) >= step[0]), steps[-1])
    return f"{value / scale:.4g} {suffix}"


def islands_text(devices: Sequence[int]) -> str:
    """Return how many islands there are, and their devices.

    >>> islands_text((8, 8, 8)), islands_text((8, 4))
    ('3 islands of 8', 'islands of 8+4')
    """
    if len(set(devices)) == 1:
        return f"{show(len(devices), 'islands')} of {devices[0]}"
    return f"islands of {'+'.join(map(str, devices))}"


def fraction(text: str, name: str) -> float:
    """Read a fraction, above 0 and at most 1, from ``1%`` or ``0.01``.

    >>> fraction("1%", "rel_ci")
    0.01

    Raises
    ------
    InputError : the text is not such a fraction.
    """
    figures, percent = text.strip().removesuffix("%"), text.strip().endswith("%")
    try:
        value = float(figures)
    except ValueError:
        raise InputError(f"{name}: expected a fraction such as 1% or 0.01, got {text!r}") from None
    value = number(name, value / 100.0 if percent else value, above=0.0, at_most=math.inf)
    if value > 1.0:
        raise InputError(f"{name}: must be at most 1 (like 1% or 0.01), got {text!r}")
    return value
