"""Zeros of falling functions, for numbers and for arrays."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from perfmodel.base.quantities import Quantity, maximum, minimum, where

CLOSE = 1e-13
"""Width of a bracket at which a zero is found, relative to the zero."""

MOST_STEPS, STRIDE = 200, 16.0
"""Most evaluations for a zero, and the factor by which a bracket grows."""

NO_CHANGE = 1e-300
"""Replaces zero in divisors."""


def log(value: Quantity) -> Quantity:
    """Return the natural logarithm of a positive number, or of each in an array."""
    return math.log(value) if isinstance(value, float) else np.log(value)


def falling_zero(function: Callable[[Quantity], Quantity], guess: Quantity) -> Quantity:
    """Return the positive zero of a function that falls, searched from a positive ``guess``.

    The function is positive for small arguments and negative for large ones. The search is on a
    logarithmic scale: first for a bracket, then in it by inverse quadratic interpolation, or by
    halving where that is not safe (Chandrupatla, "A new hybrid quadratic/bisection algorithm for
    finding the zero of a nonlinear function without using derivatives", Advances in Engineering
    Software 28(3), 1997, doi 10.1016/S0965-9978(96)00051-8). An array has a zero for each element.

    >>> round(falling_zero(lambda x: 4.0 / x - x, 1.0), 9)
    2.0
    """
    near, at_near, far, at_far = _bracket(function, log(guess))
    third, at_third = far, at_far
    part: Quantity = 0.5
    for _ in range(MOST_STEPS):
        x = near + part * (far - near)
        value = function(_exp(x))
        same = (value > 0.0) == (at_near > 0.0)
        third, at_third = where(same, near, far), where(same, at_near, at_far)
        far, at_far = where(same, far, near), where(same, at_far, at_near)
        near, at_near = x, value
        width = maximum(abs(far - near), NO_CHANGE)
        if np.all((width < 2.0 * CLOSE) | (at_near == 0.0)):
            break
        part = _part(near - far, third - far, at_near, at_far, at_third)
        part = minimum(maximum(part, CLOSE / width), 1.0 - CLOSE / width)
        part = where(at_near == 0.0, 0.0, part)
    return _exp(where(abs(at_near) < abs(at_far), near, far))


def _exp(value: Quantity) -> Quantity:
    return math.exp(value) if isinstance(value, float) else np.exp(value)


def _bracket(
    function: Callable[[Quantity], Quantity], at: Quantity
) -> tuple[Quantity, Quantity, Quantity, Quantity]:
    """Return two logarithms between which the function changes its sign, each with its value."""
    value = function(_exp(at))
    far, at_far = at, value
    stride = log(STRIDE)
    for _ in range(MOST_STEPS):
        open_ = (at_far > 0.0) == (value > 0.0)
        if not np.any(open_):
            break
        nearer = where(open_, far, at)
        at, value = nearer, where(open_, at_far, value)
        far = where(open_, far + where(at_far > 0.0, stride, -stride), far)
        at_far = where(open_, function(_exp(far)), at_far)
    return at, value, far, at_far


def _part(
    near: Quantity, third: Quantity, at_near: Quantity, at_far: Quantity, at_third: Quantity
) -> Quantity:
    """Return how far the next point is on the way from the last one to the other end of the
    bracket, where ``near`` and ``third`` are distances from that end."""

    def over(top: Quantity, bottom: Quantity) -> Quantity:
        return top / where(bottom == 0.0, NO_CHANGE, bottom)

    along, up = over(near, third), over(at_near - at_far, at_third - at_far)
    safe = (up * up < along) & ((1.0 - up) ** 2 < 1.0 - along)
    inverse = over(at_near, at_far - at_near) * over(at_third, at_far - at_third) + over(
        third - near, -near
    ) * over(at_near, at_third - at_near) * over(at_far, at_third - at_far)
    return where(safe, inverse, 0.5)
