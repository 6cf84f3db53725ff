r"""How much training gains from a sample in a batch of a given size, and bounds on its error.

With :math:`G` the gradient of the loss and :math:`\Sigma` the covariance of a sample's gradient,
the noise scale is :math:`\varphi = \mathrm{tr}\,\Sigma / |G|^2` samples. SGD with the best learning
rate for batches of B needs (McCandlish et al., "An Empirical Model of Large-Batch Training", 2018,
equations 2.7 and 2.11)

.. math:: S(B) = S_{min} (1 + \varphi / B), \quad E(B) = B S(B) = E_{min} (1 + B / \varphi)

steps and samples to the same loss. The efficiency of a sample in a batch of M relative to one in a
batch of :math:`M_0` is :math:`(\varphi + M_0) / (\varphi + M)` (Qiao et al., "Pollux", OSDI 2021,
section 3.1). Both take the noise scale as constant over training, or as that of the moment.

The two bounds on the error are those of Dutta et al., "Slow and Stale Gradients Can Win the Race",
AISTATS 2018. They hold for strongly convex losses, and say nothing of momentum.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

from perfmodel.base.errors import InputError, number, whole_number


class GradientNoise(NamedTuple):
    """Estimates without bias of the two parts of the gradient noise scale.

    ``variance`` is the trace of the covariance of one sample's gradient, ``square`` the squared
    norm of the mean gradient, which by chance may be estimated as negative where it is small.
    """

    variance: float
    square: float

    @property
    def scale_samples(self) -> float:
        """The noise scale, ``variance / square``; infinite where the gradient is lost in noise."""
        return noise_scale(self.variance, self.square)


def gradient_noise(
    small_square: float, big_square: float, small: float, big: float
) -> GradientNoise:
    r"""Estimates without bias of :math:`\mathrm{tr}\,\Sigma` and :math:`|G|^2`.

    ``small_square`` and ``big_square`` are squared norms of the gradients of batches of ``small``
    and ``big`` samples, such as the mean over workers and that of the workers' mean gradient:
    :math:`E |G_B|^2 = |G|^2 + \mathrm{tr}\,\Sigma / B` (McCandlish et al., appendix A.1).

    Raises
    ------
    InputError : the batches are of the same size, or a number is negative.
    """
    number("small_square", small_square, at_most=math.inf)
    number("big_square", big_square, at_most=math.inf)
    number("small", small, above=0.0)
    number("big", big, above=0.0)
    if not small < big:
        raise InputError(f"big: must be more than small, {small:g}, got {big:g}")
    variance = (small_square - big_square) / (1.0 / small - 1.0 / big)
    square = (big * big_square - small * small_square) / (big - small)
    return GradientNoise(variance, square)


def average(noise: Sequence[GradientNoise]) -> GradientNoise:
    """Both parts averaged over several estimates, which are each too noisy for their ratio.

    Raises
    ------
    InputError : there is none.
    """
    whole_number("noise, counted", len(noise))
    return GradientNoise(*map(statistics.fmean, zip(*noise, strict=True)))


def scale_error_samples(noise: Sequence[GradientNoise]) -> float:
    """Standard error of the noise scale of an average over independent estimates, in samples.

    To first order in the errors of both parts; infinite where the noise scale is.

    Raises
    ------
    InputError : there are fewer than two.
    """
    whole_number("noise, counted", len(noise), at_least=2)
    mean = average(noise)
    scale = mean.scale_samples
    if scale == math.inf:
        return math.inf
    off = [each.variance - scale * each.square for each in noise]
    return statistics.stdev(off) / math.sqrt(len(noise)) / mean.square


def noise_scale(variance: float, square: float) -> float:
    """The noise scale in samples; infinite where the gradient's square is not positive."""
    return max(variance, 0.0) / square if square > 0.0 else math.inf


def efficiency(noise_scale_samples: float, batch: float, reference: float) -> float:
    """Progress per sample of a batch, relative to a reference batch (Pollux); 1 where both agree.

    At an infinite noise scale it is 1.

    Raises
    ------
    InputError : a size that is not positive, or a negative noise scale.
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
    """Seconds to a target that needs ``samples`` in batches of ``reference``, with other batches.

    ``batch`` is that of a whole update: of all workers that it gathers gradients of. Time is
    samples / (throughput x efficiency).

    Raises
    ------
    InputError : a number that is not positive, or a negative noise scale.
    """
    _positive(samples=samples, samples_per_s=samples_per_s)
    return samples / (samples_per_s * efficiency(noise_scale_samples, batch, reference))


def synchronous_error_bound(
    updates: float,
    *,
    learning_rate: float,
    smoothness: float,
    convexity: float,
    variance: float,
    batch: float,
    first_error: float,
) -> float:
    r"""Bound on the expected excess of the loss after updates of K-sync SGD.

    .. math:: \frac{\eta L \sigma^2}{2 c B} +
       (1 - \eta c)^J \left( F_0 - \frac{\eta L \sigma^2}{2 c B} \right)

    with the learning rate :math:`\eta`, gradients that are L-Lipschitz (``smoothness``), a loss
    that is c-strongly convex, a variance :math:`\sigma^2` of one sample's gradient, K m = B samples
    in an update and the excess :math:`F_0` at the start (Dutta et al., 2018, lemma 1). For a bound
    on the error over time, J is time / mean time between updates. It holds for
    :math:`\eta L \le 1 / 2` where the variance does not depend on the parameters; where it grows
    with the gradient, for smaller learning rates.

    It has this many parameters because it is a formula of that many quantities.

    Raises
    ------
    InputError : a number that is not positive, c > L, or a learning rate above 1 / (2 L).
    """
    _positive(
        learning_rate=learning_rate,
        smoothness=smoothness,
        convexity=convexity,
        batch=batch,
    )
    for name, value in (("variance", variance), ("first_error", first_error), ("updates", updates)):
        number(name, value)
    if convexity > smoothness:
        raise InputError(
            f"convexity: must be at most the smoothness, {smoothness:g}, got {convexity:g}"
        )
    if learning_rate * smoothness > 0.5:
        raise InputError(
            f"learning_rate: the bound holds up to {0.5 / smoothness:g}, 1 / (2 smoothness), "
            f"got {learning_rate:g}"
        )
    floor = learning_rate * smoothness * variance / (2.0 * convexity * batch)
    left = math.pow(1.0 - learning_rate * convexity, updates)
    return floor + left * (first_error - floor)


def asynchronous_error_bound(
    updates: float,
    *,
    gamma: float,
    p0: float,
    learning_rate: float,
    smoothness: float,
    convexity: float,
    variance: float,
    batch: float,
    first_error: float,
) -> float:
    r"""Bound on the expected excess of the loss after updates of K-async SGD.

    It is :func:`synchronous_error_bound` with :math:`c \gamma'` in place of c, where
    :math:`\gamma' = 1 - \gamma + p_0 / 2`. ``gamma`` bounds how far gradients change by staleness:
    the expected squared distance between the gradients at the present and at the stale parameters
    is at most gamma times the expected square of the present one. ``p0`` is a lower bound on the
    probability that a gradient is not stale, whatever happened before; 0 is always one (Dutta et
    al., 2018, theorem 3). ``batch`` has the samples of all K gradients.

    It is loose, and gamma is not known in advance: it grows with learning rate and staleness, and
    where it reaches 1 there is no bound, long before training diverges.

    It has this many parameters because it is a formula of that many quantities.

    Raises
    ------
    InputError : as there; or gamma or p0 are not between 0 and 1.
    """
    number("gamma", gamma, at_most=1.0)
    number("p0", p0, at_most=1.0)
    _positive(convexity=convexity)
    if gamma == 1.0 and p0 == 0.0:
        raise InputError("gamma: must be less than 1 where p0 is 0, got 1: there is no bound")
    return synchronous_error_bound(
        updates,
        learning_rate=learning_rate,
        smoothness=smoothness,
        convexity=convexity * min(1.0, 1.0 - gamma + p0 / 2.0),
        variance=variance,
        batch=batch,
        first_error=first_error,
    )


def _positive(**values: float) -> None:
    for name, value in values.items():
        number(name, value, above=0.0)
