"""Measures the gradient noise scale of a task."""

from __future__ import annotations

import numpy as np

from perfmodel.base.arrays import Floats
from perfmodel.base.errors import whole_number
from perfmodel.replay.tasks import TrainingTask
from perfmodel.theory.statistical_efficiency import GradientNoise, gradient_noise

_NOISE = 15
"""Separates these random numbers from others with the same seed."""


def measure_noise(
    task: TrainingTask, parameters: Floats, *, batch_size: int, batches: int = 32, seed: int = 0
) -> GradientNoise:
    """Measure the gradient noise at these parameters from the gradient norms of several batches.

    Each batch is drawn with replacement from the training samples.

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
    return gradient_noise(squares / batches, float(total @ total), batch_size, batches * batch_size)
