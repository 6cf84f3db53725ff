"""What a mistake says: one line with place, value, what is allowed, and the nearest name."""

from __future__ import annotations

import math
from collections.abc import Iterable


class PerfmodelError(Exception):
    """Base of every error this package raises on purpose."""


class InputError(PerfmodelError, ValueError):
    """The user gave something that cannot be used; the text is one line that says what to do."""


class DeadlockError(PerfmodelError, RuntimeError):
    """The op graph stopped although work is left; the text names ops that wait for each other."""


def nearest(given: str, allowed: Iterable[str]) -> str | None:
    """The allowed name most like ``given``, or None when nothing is close."""
    import difflib  # only ever needed on the way to an error

    choices = list(allowed)
    names: dict[str, str] = {}
    for name in choices:
        names.setdefault(name.lower(), name)
    if given.lower() in names:  # only letter case is wrong
        return names[given.lower()]
    found = difflib.get_close_matches(given, choices, n=1, cutoff=0.6)
    if found:
        return found[0]
    folded = difflib.get_close_matches(given.lower(), names, n=1, cutoff=0.6)
    return names[folded[0]] if folded else None


def unknown_name(what: str, given: str, allowed: Iterable[str]) -> InputError:
    """Error for a name that does not exist: lists those that do and suggests the nearest."""
    choices = sorted(allowed)
    hint = nearest(given, choices)
    suggestion = f"; did you mean {hint!r}?" if hint else ""
    return InputError(f"unknown {what} {given!r}{suggestion} (known: {', '.join(choices)})")


def number(
    name: str,
    value: object,
    *,
    at_least: float = 0.0,
    above: float | None = None,
    at_most: float = math.inf,
) -> float:
    """Return ``value`` as a float if it is a finite number in range, else raise InputError.

    This is the one place where NaN, infinities, negatives and non-numbers are turned away.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise InputError(f"{name}: expected a number, got {value!r}")
    if not math.isfinite(value):
        raise InputError(f"{name}: expected a finite number, got {value!r}")
    if above is not None and not value > above:
        raise InputError(f"{name}: must be more than {above:g}, got {value:g}")
    if above is None and value < at_least:
        raise InputError(f"{name}: must be at least {at_least:g}, got {value:g}")
    if value > at_most:
        raise InputError(f"{name}: must be at most {at_most:g}, got {value:g}")
    return float(value)


def whole_number(name: str, value: object, *, at_least: int = 1, at_most: int | None = None) -> int:
    """Return ``value`` if it is an integer in range, else raise InputError."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise InputError(f"{name}: expected a whole number, got {value!r}")
    if value < at_least:
        raise InputError(f"{name}: must be at least {at_least}, got {value}")
    if at_most is not None and value > at_most:
        raise InputError(f"{name}: must be at most {at_most}, got {value}")
    return value
