r"""Softmax regression and a two-layer network: loss and gradient in plain NumPy.

The loss is the mean cross entropy of a batch. Its gradient with respect to the scores of a sample
is :math:`p - y`, the softmax minus the one-hot target; the rest is the chain rule. Parameters are
one flat vector: for each layer the weight matrix row by row, then the biases.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from perfmodel.base.arrays import Floats, Ids


class Classifier(Protocol):
    """A function from parameters and inputs to class scores, with the gradient of its loss.

    ``parameters`` is the length of the parameter vector.
    """

    parameters: int

    def initial(self, rng: np.random.Generator) -> Floats:
        """Return the initial parameters, shape (parameters,)."""

    def scores(self, parameters: Floats, inputs: Floats) -> Floats:
        """Return the scores of each class before the softmax, shape (samples, classes)."""

    def gradient(self, parameters: Floats, inputs: Floats, targets: Ids) -> tuple[float, Floats]:
        """Return the mean loss of a batch, and its gradient of shape (parameters,)."""


def cross_entropy(scores: Floats, targets: Ids) -> tuple[float, Floats]:
    """Return the mean loss of a batch, and its gradient with respect to the scores, in their
    shape."""
    rows = np.arange(len(targets))
    shifted = scores - scores.max(axis=1, keepdims=True)
    softmax = np.exp(shifted)
    total = softmax.sum(axis=1, keepdims=True)
    loss = float((np.log(total[:, 0]) - shifted[rows, targets]).sum()) / len(rows)
    softmax /= total
    softmax[rows, targets] -= 1.0
    softmax /= len(rows)
    return loss, softmax


class SoftmaxRegression:
    """Scores that are linear in the inputs; the loss is convex."""

    def __init__(self, features: int, classes: int) -> None:
        self.features, self.classes = features, classes
        self.parameters = (features + 1) * classes

    def initial(self, rng: np.random.Generator) -> Floats:
        """Return small random weights and zero biases."""
        parameters = np.zeros(self.parameters)
        weights = self._parts(parameters)[0]
        weights[:] = 0.01 * rng.standard_normal(weights.shape)
        return parameters

    def scores(self, parameters: Floats, inputs: Floats) -> Floats:
        """Return the scores of each class before the softmax, shape (samples, classes)."""
        weights, biases = self._parts(parameters)
        return inputs @ weights + biases

    def gradient(self, parameters: Floats, inputs: Floats, targets: Ids) -> tuple[float, Floats]:
        """Return the mean loss of a batch, and its gradient of shape (parameters,)."""
        loss, of_scores = cross_entropy(self.scores(parameters, inputs), targets)
        gradient = np.empty(self.parameters)
        weights, biases = self._parts(gradient)
        np.matmul(inputs.T, of_scores, out=weights)
        of_scores.sum(axis=0, out=biases)
        return loss, gradient

    def _parts(self, vector: Floats) -> tuple[Floats, Floats]:
        """Return weights and biases as views of a vector."""
        end = self.features * self.classes
        return vector[:end].reshape(self.features, self.classes), vector[end:]


class TwoLayerNetwork:
    """One hidden layer of rectified linear units."""

    def __init__(self, features: int, hidden: int, classes: int) -> None:
        self.features, self.hidden, self.classes = features, hidden, classes
        self.parameters = (features + 1) * hidden + (hidden + 1) * classes

    def initial(self, rng: np.random.Generator) -> Floats:
        """Return weights with the variance 2 / inputs (He et al., ICCV 2015), and zero biases."""
        parameters = np.zeros(self.parameters)
        first, _, second, _ = self._parts(parameters)
        for weights in (first, second):
            weights[:] = np.sqrt(2.0 / len(weights)) * rng.standard_normal(weights.shape)
        return parameters

    def scores(self, parameters: Floats, inputs: Floats) -> Floats:
        """Return the scores of each class before the softmax, shape (samples, classes)."""
        first, first_biases, second, second_biases = self._parts(parameters)
        return np.maximum(inputs @ first + first_biases, 0.0) @ second + second_biases

    def gradient(self, parameters: Floats, inputs: Floats, targets: Ids) -> tuple[float, Floats]:
        """Return the mean loss of a batch, and its gradient of shape (parameters,)."""
        first, first_biases, second, second_biases = self._parts(parameters)
        hidden = inputs @ first
        hidden += first_biases
        np.maximum(hidden, 0.0, out=hidden)
        loss, of_scores = cross_entropy(hidden @ second + second_biases, targets)
        gradient = np.empty(self.parameters)
        of_first, of_first_biases, of_second, of_second_biases = self._parts(gradient)
        np.matmul(hidden.T, of_scores, out=of_second)
        of_scores.sum(axis=0, out=of_second_biases)
        of_hidden = of_scores @ second.T
        of_hidden *= hidden > 0.0
        np.matmul(inputs.T, of_hidden, out=of_first)
        of_hidden.sum(axis=0, out=of_first_biases)
        return loss, gradient

    def _parts(self, vector: Floats) -> tuple[Floats, Floats, Floats, Floats]:
        """Return weights and biases of both layers as views of a vector."""
        a = self.features * self.hidden
        b = a + self.hidden
        c = b + self.hidden * self.classes
        first = vector[:a].reshape(self.features, self.hidden)
        return first, vector[a:b], vector[b:c].reshape(self.hidden, self.classes), vector[c:]
