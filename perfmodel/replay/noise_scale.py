"""The gradient noise scale of a task, measured."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from perfmodel.base.arrays import Floats
from perfmodel.base.errors import whole_number
from perfmodel.replay.tasks import Task
from perfmodel.theory.statistical_efficiency import gradient_noise, noise_scale

_NOISE = 15
"""Separates these random numbers from others of the same seed."""


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


def measure_noise(
    task: Task, parameters: Floats, *, batch_size: int, batches: int = 32, seed: int = 0
) -> GradientNoise:
    """Measure the noise of gradients at these parameters from the norms of several batches.

    The samples of each batch are drawn with replacement from the training samples.

    Raises
    ------
    InputError : fewer than two batches.
    """
    whole_number("batch_size", batch_size)
    whole_number("batches", batches, at_least=2)
    rng = np.random.default_rng((seed, _NOISE))
    total, squares = np.zeros(task.parameters), 0.0
    for _ in range(batches):
        _, gradient = task.gradient(parameters, rng.integers(task.samples, size=batch_size))
        total += gradient
        squares += float(gradient @ gradient)
    total /= batches
    return GradientNoise(
        *gradient_noise(squares / batches, float(total @ total), batch_size, batches * batch_size)
    )


def average(noise: Sequence[GradientNoise]) -> GradientNoise:
    """Both parts averaged over several points, which are each too noisy for their ratio."""
    variance, square = np.mean(np.array(noise), axis=0).tolist()
    return GradientNoise(variance, square)
