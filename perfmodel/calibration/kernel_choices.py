"""Factors of the choice of kernels (:mod:`perfmodel.theory.kernel_choice`), fitted to measured
products."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.arrays import Floats
from perfmodel.theory.kernel_choice import DEPTHS, WAVES, Choice, weights
from perfmodel.theory.products import ProductRates, product_s, waves_of

NARROW = 2.5
"""Expected spread of the misfits of smaller shapes, relative to that of others."""

TYPICAL = 0.03
"""Error above which a shape counts with its distance, not with the square: an outlier counts less.
"""

ROUNDS = 8
"""Of weighted least squares."""

PRIOR = 1.0
"""Weight of a factor of 1 at each point, in shapes that miss by no more than :data:`TYPICAL`."""


def fit_choice(
    shapes: Floats,
    seconds: Floats,
    rates: ProductRates,
    multiprocessors: float,
    wide: NDArray[np.bool_],
) -> Choice:
    """Return factors that make the errors of measured products least.

    Parameters
    ----------
    shapes : m, n and k, (3, products).
    seconds : measured, (products,).
    rates : of the device, without such factors.
    wide : whether a product counts fully, (products,).
    """
    m, n, k = shapes
    predicted = np.asarray(product_s(m, n, k, rates, multiprocessors))
    alone = np.asarray(product_s(m, n, k, rates._replace(cast_bytes_per_s=None), multiprocessors))
    points = weights(np.asarray(waves_of(m, n, 1.0, multiprocessors)), k)
    matrix, missing = points * (alone / seconds)[:, None], 1.0 - predicted / seconds
    more: Floats = np.zeros(points.shape[1])
    trust = np.where(wide, 1.0, NARROW**-2)
    for _ in range(ROUNDS):
        counts = trust / np.maximum(np.abs(missing - matrix @ more) / TYPICAL, 1.0)
        weighted = matrix * counts[:, None]
        precision = weighted.T @ matrix + PRIOR * np.eye(len(more))
        more = np.asarray(np.linalg.solve(precision, weighted.T @ missing), dtype=np.float64)
    factors = np.round(1.0 + more, 3).reshape(WAVES.points, DEPTHS.points)
    return tuple(map(tuple, factors.tolist()))
