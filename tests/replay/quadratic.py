"""A task with closed-form runs: the squared distance to a point."""

from __future__ import annotations

import numpy as np

from perfmodel.base.arrays import Floats, Ids
from perfmodel.replay.tasks import Evaluation


class Quadratic:
    """Loss |x - a|^2 / 2 + 1, where a is the mean of a batch's points; all equal without noise."""

    name = "quadratic"

    def __init__(self, noise: float = 0.0, parameters: int = 3, samples: int = 64) -> None:
        rng = np.random.default_rng(9)
        self.samples, self.parameters = samples, parameters
        self.points = 2.0 + noise * rng.standard_normal((samples, parameters))

    def initial(self, seed: int) -> Floats:
        return np.full(self.parameters, float(seed))

    def gradient(self, parameters: Floats, indices: Ids) -> tuple[float, Floats]:
        away = parameters - self.points[indices].mean(axis=0)
        return 1.0 + 0.5 * float(away @ away), away

    def evaluate(self, parameters: Floats) -> Evaluation:
        away = parameters - self.points.mean(axis=0)
        return Evaluation(1.0 + 0.5 * float(away @ away), 0.5)
