"""Training tasks: parameters, gradients of batches, and loss and accuracy on test samples.

``TASKS`` are shipped; ``package.module:function`` names a user's function that returns a task.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np

from perfmodel.base.arrays import Floats, Ids
from perfmodel.base.errors import InputError, unknown_name
from perfmodel.foreign.functions import call, load
from perfmodel.replay.data import Data, digits, mixture
from perfmodel.replay.networks import DenseNetwork, cross_entropy

HIDDEN = 64
"""Hidden units of the shipped two-layer networks."""

_INITIAL = 13
"""Separates these random numbers from others with the same seed."""


class Evaluation(NamedTuple):
    """Mean loss and fraction of correct answers on the test samples."""

    loss: float
    accuracy: float


@runtime_checkable
class TrainingTask(Protocol):
    """A training task: ``samples`` training samples, and a flat vector of ``parameters`` numbers.

    ``name`` is its name in reports.
    """

    name: str
    samples: int
    parameters: int

    def initial(self, seed: int) -> Floats:
        """Return the initial parameters, shape (parameters,); the same for the same seed."""

    def gradient(self, parameters: Floats, indices: Ids) -> tuple[float, Floats]:
        """Return the mean loss of the training samples ``indices``, and its gradient.

        The gradient has shape (parameters,) and is a new array that the caller may keep.
        """

    def evaluate(self, parameters: Floats) -> Evaluation:
        """Return loss and accuracy on the test samples."""


class NetworkTask:
    """A NumPy network on data in memory."""

    def __init__(self, name: str, network: DenseNetwork, data: Data) -> None:
        self.name = name
        self.network, self.data = network, data
        self.samples, self.parameters = len(data.targets), network.parameters

    def initial(self, seed: int) -> Floats:
        """Return the initial parameters, shape (parameters,)."""
        return self.network.initial(np.random.default_rng((seed, _INITIAL)))

    def gradient(self, parameters: Floats, indices: Ids) -> tuple[float, Floats]:
        """Return the mean loss of some training samples, and its gradient."""
        inputs = self.data.inputs.take(indices, axis=0)
        return self.network.gradient(parameters, inputs, self.data.targets.take(indices))

    def evaluate(self, parameters: Floats) -> Evaluation:
        """Return loss and accuracy on the test samples."""
        scores = self.network.scores(parameters, self.data.test_inputs)
        loss, _ = cross_entropy(scores, self.data.test_targets)
        return Evaluation(loss, float((scores.argmax(axis=1) == self.data.test_targets).mean()))


def network_task(name: str, data: Data, hidden: int | None = HIDDEN) -> NetworkTask:
    """Return a task that trains a two-layer network on data, or softmax regression for None."""
    layers = () if hidden is None else (hidden,)
    return NetworkTask(name, DenseNetwork(data.inputs.shape[1], *layers, data.classes), data)


TASKS: Mapping[str, Callable[[], TrainingTask]] = {
    "mixture": lambda: network_task("mixture", mixture()),
    "mixture-softmax": lambda: network_task("mixture-softmax", mixture(), None),
    "digits": lambda: network_task("digits", digits()),
    "digits-softmax": lambda: network_task("digits-softmax", digits(), None),
}
"""Functions that make the shipped tasks: two-layer networks and softmax regression."""


def make_task(spec: str) -> TrainingTask:
    """Make the task that ``spec`` names: one of ``TASKS``, or ``package.module:function``.

    The user's function is called without arguments and returns a :class:`TrainingTask`, such as a
    :class:`perfmodel.replay.torch_task.TorchTask`.

    Raises
    ------
    InputError : there is no such task or function, the function does not return a task, or an
        optional library is missing.
    """
    if ":" not in spec:
        if spec not in TASKS:
            names = [*TASKS, "package.module:function"]
            raise unknown_name("task", spec, names)
        return TASKS[spec]()
    task = call(load(spec, "task"), spec)
    if not isinstance(task, TrainingTask):
        raise InputError(
            f"task: {spec} returned a {type(task).__name__}, not a task (name, samples, "
            "parameters, initial, gradient, evaluate)"
        )
    return task
