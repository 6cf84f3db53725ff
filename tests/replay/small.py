"""A small task, ways to train it, and plain SGD by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from perfmodel.base.arrays import Floats
from perfmodel.replay.batches import Batches
from perfmodel.replay.curve import Curve
from perfmodel.replay.data import mixture
from perfmodel.replay.optimizer import Optimizer
from perfmodel.replay.replay import replay
from perfmodel.replay.tasks import TrainingTask, network_task
from perfmodel.results.schedule import Schedule

TASK = network_task("small", mixture(samples=192, test_samples=50, features=6, classes=3), hidden=5)
SGD = Optimizer(learning_rate=0.1)
MOMENTUM = Optimizer(learning_rate=0.05, momentum=0.9, weight_decay=1e-3)
AT_WORKER = replace(MOMENTUM, momentum_at="worker")
ROUNDING = {"rtol": 1e-10, "atol": 1e-12}


def by_hand(task: TrainingTask, optimizer: Optimizer, updates: int, batch_size: int) -> Floats:
    """Loss after each update of plain SGD in one process."""
    parameters, velocity = task.initial(0), np.zeros(task.parameters)
    batches = Batches(task.samples, 1, batch_size, 0)
    losses = [task.evaluate(parameters).loss]
    for _ in range(updates):
        _, gradient = task.gradient(parameters, batches.take(0))
        velocity = optimizer.momentum * velocity + gradient + optimizer.weight_decay * parameters
        parameters = parameters - optimizer.learning_rate * velocity
        losses.append(task.evaluate(parameters).loss)
    return np.array(losses)


def run(schedule: Schedule, optimizer: Optimizer, evaluations: int = 20) -> Curve:
    return replay(schedule, TASK, optimizer, evaluations=evaluations)
