r"""How much training gains from a sample in a batch of a given size.

With :math:`G` the gradient of the loss and :math:`\Sigma` the covariance of a sample's gradient,
the noise scale is :math:`\varphi = \mathrm{tr}\,\Sigma / |G|^2` samples. SGD with the best learning
rate for batches of B needs (McCandlish et al., "An Empirical Model of Large-Batch Training", 2018,
equations 2.7 and 2.11)

.. math:: S(B) = S_{min} (1 + \varphi / B), \quad E(B) = B S(B) = E_{min} (1 + B / \varphi)

steps and samples to reach the same loss. The efficiency of a sample in a batch of M, relative to a
batch of :math:`M_0`, is :math:`(\varphi + M_0) / (\varphi + M)` (Qiao et al., "Pollux", OSDI 2021,
section 3.1). Both treat the noise scale as constant during training, or use its current value.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

from perfmodel.base.errors import InputError, number, whole_number


class GradientNoise(NamedTuple):
    """Unbiased estimates of the two parts of the gradient noise scale.

    ``variance`` is the trace of the covariance of one sample's gradient, ``square`` the squared
    norm of the mean gradient. If that norm is small, its estimate may happen to be negative.
    """

    variance: float
    square: float

    @property
    def scale_samples(self) -> float:
        """The noise scale, ``variance / square``; infinite if noise hides the gradient."""
        return noise_scale(self.variance, self.square)


def gradient_noise(
    small_square: float, big_square: float, small: float, big: float
) -> GradientNoise:
    r"""Return unbiased estimates of :math:`\mathrm{tr}\,\Sigma` and :math:`|G|^2`.

    ``small_square`` and ``big_square`` are squared norms of the gradients of batches of ``small``
    and ``big`` samples, such as the mean over workers, and the squared norm of the workers' mean
    gradient: :math:`E |G_B|^2 = |G|^2 + \mathrm{tr}\,\Sigma / B` (McCandlish et al., appendix A.1).

    Raises
    ------
    InputError : both batches have the same size, or a number is negative.
    """
    number("small_square", small_square, at_most=math.inf)
    number("big_square", big_square, at_most=math.inf)
    number("small", small, above=0.0)
    number("big", big, above=0.0)
    if not small < big:
        raise InputError(f"big: must be more than small ({small:g}), got {big:g}")
    variance = (small_square - big_square) / (1.0 / small - 1.0 / big)
    square = (big * big_square - small * small_square) / (big - small)
    return GradientNoise(variance, square)


def average(noise: Sequence[GradientNoise]) -> GradientNoise:
    """Average both parts over several estimates, each of which is too noisy for its ratio.

    Raises
    ------
    InputError : there are no estimates.
    """
    whole_number("noise, counted", len(noise))
    return GradientNoise(*map(statistics.fmean, zip(*noise, strict=True)))


def scale_error_samples(noise: Sequence[GradientNoise]) -> float:
    """Return the standard error (samples) of the noise scale averaged over independent estimates.

    It is correct to first order in the errors of both parts, and infinite if the noise scale is.

    Raises
    ------
    InputError : there are fewer than two estimates.
    """
    whole_number("noise, counted", len(noise), at_least=2)
    mean = average(noise)
    scale = mean.scale_samples
    if scale == math.inf:
        return math.inf
    off = [estimate.variance - scale * estimate.square for estimate in noise]
    return statistics.stdev(off) / math.sqrt(len(noise)) / mean.square


def noise_scale(variance: float, square: float) -> float:
    """Return the noise scale in samples; infinite if the gradient's square is not positive."""
    return max(variance, 0.0) / square if square > 0.0 else math.inf


def efficiency(noise_scale_samples: float, batch: float, reference: float) -> float:
    """Return the progress per sample in a batch, relative to a reference batch (Pollux).

    It is 1 if both sizes agree, or if the noise scale is infinite.

    Raises
    ------
    InputError : a size is not positive, or the noise scale is negative.
    """
    _positive(batch=batch, reference=reference)
    if noise_scale_samples == math.inf:
        return 1.0
    number("noise_scale_samples", noise_scale_samples, at_most=math.inf)
    return (noise_scale_samples + reference) / (noise_scale_samples + batch)


def time_to_target_s(
    samples: float,
    samples_per_s: float,
    *,
    noise_scale_samples: float,
    batch: float,
    reference: float,
) -> float:
    """Return the seconds to a target that takes ``samples`` in batches of ``reference``.

    ``batch`` is the actual batch of a whole update, over all workers whose gradients it combines.
    The time is samples / (throughput x efficiency).

    Raises
    ------
    InputError : a number is not positive, or the noise scale is negative.
    """
    _positive(samples=samples, samples_per_s=samples_per_s)
    return samples / (samples_per_s * efficiency(noise_scale_samples, batch, reference))


def _positive(**values: float) -> None:
    for name, value in values.items():
        number(name, value, above=0.0)
