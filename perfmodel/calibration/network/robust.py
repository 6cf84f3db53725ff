"""Robust linear fits with the smallest sum of relative errors, and bootstrap intervals."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from perfmodel.base.arrays import Floats
from perfmodel.calibration.statistics import Estimate

QUANTILES = (0.05, 0.95)
"""Ends of a 90 % interval."""

ROUNDS, SETTLED = 20, 1e-4
"""Maximum reweighting iterations, and the relative change at which they stop."""

ALMOST_NOTHING = 1e-14
"""Regularisation added to the normal equations, as a fraction of the largest element."""

SMALLEST = 1e-4
"""Relative error below which weights stay constant: the resolution of clocks and printed digits."""

DRAWS = 200
"""Bootstrap samples for an interval; its ends are the 10th smallest and 10th largest estimates."""


def least_absolute(design: Floats, values: Floats) -> Floats:
    r"""Factors x of 0 or more (..., terms) with the smallest sum of relative errors.

    .. math:: \sum_i | (A x)_i / v_i - 1 |

    ``design`` A is (..., points, terms), ``values`` v is (..., points), all above 0. Unlike in
    least squares, outliers have little influence if they are a minority. Solved by iteratively
    reweighted least squares (Holland, Welsch, Communications in Statistics A6, 1977, doi
    10.1080/03610927708827533).

    >>> sizes = np.array([1.0, 2.0, 3.0, 4.0])
    >>> x = least_absolute(np.stack([sizes**0, sizes], axis=1), np.array([3.0, 5.0, 70.0, 9.0]))
    >>> x.round(3).tolist()
    [1.0, 2.0]
    """
    scaled = design / values[..., None]
    size = np.abs(scaled).max(axis=-2, keepdims=True)
    size[size == 0.0] = 1.0
    scaled = scaled / size
    factors = _reweighted(scaled, _squares)
    for index in np.argwhere((factors < 0.0).any(axis=-1)).tolist():
        factors[tuple(index)] = _reweighted(scaled[tuple(index)], _squares_above_0)
    return np.asarray(factors / size[..., 0, :])


def _reweighted(scaled: Floats, squares: Callable[[Floats, Floats], Floats]) -> Floats:
    """Iteratively reweighted least squares of ``scaled`` x - 1."""
    weight = np.ones(scaled.shape[:-1])
    factors = squares(scaled, weight)
    for _ in range(ROUNDS):
        weight = 1.0 / np.maximum(np.abs((scaled @ factors[..., None])[..., 0] - 1.0), SMALLEST)
        before, factors = factors, squares(scaled, weight)
        if (np.abs(factors - before) <= SETTLED * np.abs(factors)).all():
            break
    return factors


def _squares(scaled: Floats, weight: Floats) -> Floats:
    weighted = scaled * weight[..., None]
    square = np.swapaxes(weighted, -1, -2) @ scaled
    ridge = ALMOST_NOTHING * square.max() * np.eye(square.shape[-1])  # in case a factor is 0
    return np.asarray(np.linalg.solve(square + ridge, weighted.sum(axis=-2)[..., None])[..., 0])


def _squares_above_0(scaled: Floats, weight: Floats) -> Floats:
    from scipy.optimize import nnls

    root = np.sqrt(weight)
    return np.asarray(nnls(scaled * root[:, None], root)[0])


def estimates(design: Floats, values: Floats) -> tuple[Estimate, ...]:
    """Estimate each factor of :func:`least_absolute` with a bootstrap interval.

    Relative errors are resampled (Efron, Tibshirani, "An introduction to the bootstrap", 1993,
    chapter 9), scaled up to correct for the degrees of freedom of the fit. If there are no more
    points than factors, the scatter is unknown and the interval extends from 0 to infinity.
    """
    factors = least_absolute(design, values)
    points, terms = design.shape
    if points <= terms:
        return tuple(Estimate(float(value), 0.0, math.inf) for value in factors)
    fitted = design @ factors
    errors = (values / fitted - 1.0) * math.sqrt(points / (points - terms))
    generator = np.random.Generator(np.random.Philox(0))
    noise = np.maximum(1.0 + generator.choice(errors, (DRAWS, points)), SMALLEST)
    drawn = least_absolute(design, fitted * noise)
    low, high = np.quantile(drawn, QUANTILES, axis=0)
    return tuple(
        Estimate(float(v), min(float(a), float(v)), max(float(z), float(v)))
        for v, a, z in zip(factors, low, high, strict=True)
    )
