"""Compute times at a batch size that was not measured.

Every constant here was fitted to measured steps. An error is a factor less one: the 90th percentile
in cross-validation, where steps are held out and then estimated, with equal weight for each series.
``python -m benchmarks.accuracy.scaling DATA`` prints them, from published tables in DATA (Pollux,
OSDI 2021; Sia, SOSP 2023; MXNet's performance page) and the catalogue's own timings.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

LAUNCH_S = 0.3e-3
"""Part of a step that does not depend on the batch size, in seconds per parameter tensor, on CPUs
and on GPUs without TF32 (before 2020). It is the value, from 0 to 0.5 ms, with the smallest mean
error from one batch size to others up to 8 times larger or smaller, with equal weight for the three
tables, the catalogue's GPUs and its CPU."""

RECENT_LAUNCH_S = 0.025e-3
"""The same on GPUs with TF32, and on devices that the catalogue does not know, which are mostly
newer: their hosts are faster, and launches run ahead of the device. It is half of the value with
the smallest mean error on the catalogue's A100 and on NeuSight's language models, 0.05 ms. These
were not compiled; a model that is compiled, or replayed as a CUDA graph, has no such part, and a
profile does not say which. Sia's A100 steps were not used: they include several operations per
tensor for gradient statistics."""

MOST_LAUNCHING = 0.7
"""Largest fraction of a step attributed to launches; from 0.5 to 0.9, fitted with LAUNCH_S."""

INTERPOLATION_ERROR = 0.33
"""Error between two measured batch sizes: 39 series, median 0.06, worst 0.59."""

FITTED_ERROR = ((2.0, 0.34), (4.0, 0.69), (8.0, 0.69), (math.inf, 1.11))
"""Error from several measured sizes, by the largest ratio to the nearest of them. 39, 27, 24 and 20
series; medians 0.09, 0.10, 0.19, 0.21; the error up to a ratio of 8 is the same as up to 4. The
worst errors are of a model whose step hardly changes with the batch (NeuMF): up to 2.6, 5.5, and
hundreds."""

SINGLE_ERROR = ((2.0, 0.44), (4.0, 0.86), (8.0, 1.72), (math.inf, 3.15))
"""The same from a single measured size, on devices with LAUNCH_S. 48, 37, 20 and 17 series; medians
0.17, 0.29, 0.54, 0.90; worst 1.4, 3.4, 7.3, and hundreds (NeuMF again). For each table, LAUNCH_S
and MOST_LAUNCHING come from the other tables."""

RECENT_SINGLE_ERROR = ((2.0, 0.46), (4.0, 0.70), (8.0, 3.02), (math.inf, 7.80))
"""The same on other devices. 14, 19 and 8 series; medians 0.12, 0.22, 0.51. Up to a ratio of 4 it
is 0.63, but slightly more than from several is stated. Farther there are only three series, so the
last is that of all 20."""


def at_batch_size(
    sizes: Sequence[int],
    seconds: ArrayLike,
    batch_size: int,
    *,
    tensors: int,
    launch_s: float = RECENT_LAUNCH_S,
    least_s: float = 0.0,
) -> NDArray[np.float64]:
    """Seconds of each layer at ``batch_size``: never negative, and exact at measured sizes.

    Between two measured sizes they are interpolated linearly. Beyond them each follows a + c *
    batch with a, c >= 0, fitted to all sizes by least squares (with errors relative to the step)
    and scaled to match the nearest measured size. From a single size, the fixed part a is given by
    :func:`launching`.

    Parameters
    ----------
    sizes : measured batch sizes (n,), increasing.
    seconds : measured times (n, layers).
    tensors : number of the model's parameter tensors.
    launch_s : fixed part of a step per tensor (:data:`LAUNCH_S`, :data:`RECENT_LAUNCH_S`).
    least_s : what the samples of a single size take at least: their roofline.

    >>> at_batch_size([8, 16], [[0.3], [0.5]], 32, tensors=1).round(6)
    array([0.9])
    """
    x, t = np.asarray(sizes, float), np.asarray(seconds, float)
    if batch_size in sizes:
        return np.array(t[sizes.index(batch_size)])
    if x[0] < batch_size < x[-1]:
        i = int(np.searchsorted(x, batch_size))
        return np.array(t[i - 1] + (t[i] - t[i - 1]) * (batch_size - x[i - 1]) / (x[i] - x[i - 1]))
    end = 0 if batch_size < x[0] else -1
    if len(x) == 1:
        fixed = launching(tensors, float(t[0].sum()), launch_s, least_s)
        return np.array(t[0] * (fixed + (1.0 - fixed) * batch_size / x[0]))
    a, c = _affine(x, t)
    there, here = a + c * batch_size, a + c * x[end]
    return np.array(t[end] * np.divide(there, here, out=np.ones_like(here), where=here > 0))


def launching(tensors: int, step_s: float, launch_s: float, least_s: float = 0.0) -> float:
    """Fraction of a step that does not depend on its batch size, estimated from one size, whose
    samples take ``least_s`` or more."""
    if step_s <= 0:
        return 0.0
    return min(MOST_LAUNCHING, launch_s * tensors / step_s, max(0.0, 1.0 - least_s / step_s))


def _affine(
    x: NDArray[np.float64], t: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Least-squares a, c >= 0 of t = a + c x for each column of t (at most one bound is active)."""
    total = t.sum(axis=1)
    w = np.divide(1.0, total, out=np.zeros_like(total), where=total > 0) ** 2
    if not w.any():
        return np.zeros(t.shape[1]), np.zeros(t.shape[1])
    w /= w.sum()
    mean_x, mean_t = w @ x, w @ t
    spread = w @ (x - mean_x) ** 2
    c = (w * (x - mean_x)) @ (t - mean_t) / spread if spread > 0 else np.zeros(t.shape[1])
    a = mean_t - c * mean_x
    through_zero = (w * x) @ t / (w @ x**2)
    c = np.where(c < 0, 0.0, np.where(a < 0, through_zero, c))
    a = np.where(c == 0, mean_t, np.where(a < 0, 0.0, a))
    return a, c


def batch_error(
    sizes: Sequence[int], batch_size: int, *, launch_s: float = RECENT_LAUNCH_S
) -> float | None:
    """90th percentile of the error of :func:`at_batch_size`; None at a measured size.

    It is a factor less one: 0.35 means between the true time divided by 1.35 and 1.35 times it.
    """
    if batch_size in sizes:
        return None
    if min(sizes) < batch_size < max(sizes):
        return INTERPOLATION_ERROR
    ratio = max(batch_size / max(sizes), min(sizes) / batch_size)
    single = SINGLE_ERROR if launch_s > RECENT_LAUNCH_S else RECENT_SINGLE_ERROR
    table = single if len(sizes) == 1 else FITTED_ERROR
    return next(error for most, error in table if ratio <= most)


def together(*errors: float | None) -> float | None:
    """Error of a product of estimates with independent errors; None if all are None.

    >>> together(None, 0.25)
    0.25
    """
    given = [error for error in errors if error is not None]
    if len(given) < 2:
        return given[0] if given else None
    return math.exp(math.sqrt(sum(math.log1p(error) ** 2 for error in given))) - 1.0
