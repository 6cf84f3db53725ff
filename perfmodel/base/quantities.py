"""Arithmetic that works alike on floats, NumPy arrays and SymPy symbols.

Sums, products and quotients work on all three; the other operations are defined here. A formula
written with them can be evaluated on numbers, broadcast over arrays, or read, differentiated and
solved symbolically.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.arrays import Floats
from perfmodel.base.errors import InputError, number, whole_number

if TYPE_CHECKING:
    import sympy

Quantity: TypeAlias = "float | NDArray[Any] | sympy.Expr"
"""A float, an array of floats that broadcasts with the others, or a SymPy expression."""

Condition: TypeAlias = "bool | NDArray[np.bool_] | sympy.Basic"
"""Whether something holds: for a number, for each element of an array, or as a SymPy relation."""

NO_SPREAD = 1e-9
"""A coefficient of variation below this counts as 0: the times differ by rounding only."""


_ARRAYS = frozenset({(np.ndarray, np.ndarray), (np.ndarray, float), (float, np.ndarray)})
"""Type pairs for which the larger value is found without further checks."""


def is_symbol(value: Quantity) -> bool:
    """Return whether a quantity is a SymPy expression."""
    return hasattr(value, "free_symbols")


def maximum(*values: Quantity) -> Quantity:
    """Largest of the quantities, element by element.

    >>> maximum(1.0, 3.0)
    3.0
    >>> maximum(np.array([1.0, 4.0]), 3.0).tolist()
    [3.0, 4.0]
    """
    if len(values) == 2:  # the most frequent case
        a, b = values
        if type(a) is float and type(b) is float:
            return a if a > b else b
        if (type(a), type(b)) in _ARRAYS:
            return np.maximum(a, b)
    return _extreme(values, "Max", np.maximum, max)


def largest(*rows: Sequence[Quantity]) -> list[Quantity]:
    """Return the :func:`maximum` of each row.

    >>> largest((1.0, 3.0), (4.0, 2.0))
    [3.0, 4.0]
    """
    return [maximum(*row) for row in rows]


def minimum(*values: Quantity) -> Quantity:
    """Smallest of the quantities, element by element.

    >>> minimum(1.0, 3.0)
    1.0
    """
    if len(values) == 2:  # the most frequent case
        a, b = values
        if type(a) is float and type(b) is float:
            return a if a < b else b
        if (type(a), type(b)) in _ARRAYS:
            return np.minimum(a, b)
    return _extreme(values, "Min", np.minimum, min)


def _extreme(
    values: Sequence[Quantity], symbolic: str, of_arrays: np.ufunc, of_numbers: Callable[..., float]
) -> Quantity:
    """Combine several quantities by the function for symbols, for arrays or for numbers."""
    if all(type(value) is float for value in values):
        return of_numbers(values)
    if any(is_symbol(value) for value in values):
        import sympy

        return getattr(sympy, symbolic)(*values)
    if any(isinstance(value, np.ndarray) for value in values):
        return functools.reduce(of_arrays, values)
    return of_numbers(values)


def where(condition: Quantity, yes: Quantity, no: Quantity) -> Quantity:
    """``yes`` where the condition holds, else ``no``.

    >>> where(2 > 1, "yes", "no")
    'yes'
    """
    if isinstance(condition, np.ndarray):
        return np.where(condition, yes, no)
    if is_symbol(condition):
        import sympy

        return sympy.Piecewise((yes, condition), (no, True))
    return yes if condition else no


def floor_log2(value: Quantity) -> Quantity:
    """Floor of the binary logarithm of whole numbers from 1 on.

    >>> floor_log2(5), floor_log2(np.array([1, 8])).tolist()
    (2, [0.0, 3.0])
    """
    if is_symbol(value):
        import sympy

        return sympy.floor(sympy.log(value, 2))
    if isinstance(value, np.ndarray):
        return np.frexp(value.astype(np.float64))[1] - 1.0
    return math.frexp(value)[1] - 1


def ceil_log2(value: Quantity) -> Quantity:
    """Ceiling of the binary logarithm of whole numbers from 1 on.

    >>> ceil_log2(5), ceil_log2(np.array([1, 8])).tolist()
    (3, [0.0, 3.0])
    """
    if is_symbol(value):
        import sympy

        return sympy.ceiling(sympy.log(value, 2))
    return maximum(floor_log2(2 * value - 1), 0 * value)


def octaves(value: Quantity) -> Quantity:
    """Binary logarithm of positive values, linear between powers of 2.

    Unlike the logarithm it has the same digits on all processors.

    >>> octaves(8.0), octaves(np.array([0.5, 3.0])).tolist()
    (3.0, [-1.0, 1.5])
    """
    if is_symbol(value):
        whole = floor_log2(value)
        return whole + value / 2**whole - 1
    if isinstance(value, np.ndarray):
        parts, powers = np.frexp(value)
        return np.asarray(powers + (2.0 * parts - 2.0))
    part, power = math.frexp(value)
    return power + (2.0 * part - 2.0)


def ceiling(value: Quantity) -> Quantity:
    """Value rounded up to a whole number.

    >>> ceiling(1.2), ceiling(np.array([2.0, 2.1])).tolist()
    (2.0, [2.0, 3.0])
    """
    if is_symbol(value):
        import sympy

        return sympy.ceiling(value)
    return np.ceil(value) if isinstance(value, np.ndarray) else float(math.ceil(value))


def floor_half(value: Quantity) -> Quantity:
    """Half of whole numbers, rounded down.

    >>> floor_half(5), floor_half(np.array([2, 7])).tolist()
    (2, [1, 3])
    """
    return value // 2


def axes_of(*values: Quantity) -> int:
    """Return the number of axes that these broadcast to; 0 if all are numbers or symbols.

    >>> axes_of(1.0, np.ones(3), np.ones((2, 1)))
    2
    """
    return max([value.ndim for value in values if isinstance(value, np.ndarray)], default=0)


MANY = 2048
"""Number of values in an array from which another way to evaluate formulas pays off."""


def many(*values: Quantity) -> bool:
    """Return whether any of these is an array of :data:`MANY` values or more."""
    return any(isinstance(value, np.ndarray) and value.size >= MANY for value in values)


def column(values: Sequence[Quantity] | Floats, axes: int) -> Floats:
    """Return values, each a number or an array of up to ``axes`` axes, along a new first axis.

    >>> column([1.0, 2.0], 1).tolist(), column([1.0, np.array([2.0, 3.0])], 1).tolist()
    ([[1.0], [2.0]], [[1.0, 1.0], [2.0, 3.0]])
    """
    if isinstance(values, np.ndarray) or not axes_of(*values):
        return np.asarray(values).reshape(len(values), *(1,) * axes)
    stacked = np.stack(np.broadcast_arrays(*values))
    return stacked.reshape(len(stacked), *(1,) * (axes + 1 - stacked.ndim), *stacked.shape[1:])


def quantity(
    name: str, value: Quantity, *, at_least: float = 0.0, at_most: float = math.inf
) -> Quantity:
    """Return a quantity if all its numbers are finite and in range, else raise InputError.

    Symbols pass unchecked.

    >>> quantity("demand_s", np.float64(2.0))
    2.0
    """
    value = value.item() if isinstance(value, np.generic) else value
    if isinstance(value, np.ndarray):
        if not np.issubdtype(value.dtype, np.number):
            raise InputError(f"{name}: expected numbers everywhere, got {value.dtype}")
        if not (np.isfinite(value) & (value >= at_least) & (value <= at_most)).all():
            limit = "" if at_most == math.inf else f" and at most {at_most:g}"
            raise InputError(f"{name}: must be finite, at least {at_least:g}{limit} everywhere")
        return value
    return value if is_symbol(value) else number(name, value, at_least=at_least, at_most=at_most)


def whole_quantity(name: str, value: Quantity, *, at_least: int = 1) -> Quantity:
    """Return a quantity if all its numbers are integers in range, else raise InputError.

    >>> whole_quantity("workers", np.array([1, 8])).tolist()
    [1, 8]
    """
    value = value.item() if isinstance(value, np.generic) else value
    if isinstance(value, np.ndarray):
        if not np.issubdtype(value.dtype, np.integer) or (value < at_least).any():
            raise InputError(f"{name}: expected whole numbers of at least {at_least} everywhere")
        return value
    return value if is_symbol(value) else whole_number(name, value, at_least=at_least)


def together(name: str, *values: Quantity) -> None:
    """Raise InputError if arrays do not broadcast, or are mixed with symbols.

    >>> together("n, cv", np.ones(3), np.ones(4))
    Traceback (most recent call last):
    perfmodel.base.errors.InputError: n, cv: arrays of shapes (3,), (4,) do not broadcast
    """
    shapes = [value.shape for value in values if isinstance(value, np.ndarray)]
    if shapes and any(is_symbol(value) for value in values):
        raise InputError(f"{name}: cannot mix symbols and arrays")
    try:
        np.broadcast_shapes(*shapes)
    except ValueError:
        text = ", ".join(map(str, shapes))
        raise InputError(f"{name}: arrays of shapes {text} do not broadcast") from None
