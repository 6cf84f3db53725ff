r"""Softmax regression and networks of rectified linear units: loss and gradient in plain NumPy.

The loss is the mean cross entropy of a batch. Its gradient with respect to the scores of a sample
is :math:`p - y`, the softmax minus the one-hot target; the rest is the chain rule. Parameters are
one flat vector: for each layer the weight matrix row by row, then the biases.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from perfmodel.base.arrays import Floats, Ids


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


class DenseNetwork:
    """Hidden layers of rectified linear units, and scores of classes that are linear in the last.

    Without hidden layers it is softmax regression, whose loss is convex.

    Parameters
    ----------
    widths : number of features, of the units of each hidden layer, and of classes.
    """

    def __init__(self, *widths: int) -> None:
        self.widths = widths
        self.parameters = sum((inputs + 1) * outputs for inputs, outputs in pairwise(widths))
        """Length of the parameter vector."""

    def initial(self, rng: np.random.Generator) -> Floats:
        """Return random weights and zero biases, shape (parameters,).

        Weights have the variance 2 / inputs (He et al., ICCV 2015), and those of softmax regression
        a standard deviation of 0.01.
        """
        parameters = np.zeros(self.parameters)
        for weights, _ in self._layers(parameters):
            scale = np.sqrt(2.0 / len(weights)) if len(self.widths) > 2 else 0.01
            weights[:] = scale * rng.standard_normal(weights.shape)
        return parameters

    def scores(self, parameters: Floats, inputs: Floats) -> Floats:
        """Return the scores of each class before the softmax, shape (samples, classes)."""
        return self._forward(parameters, inputs)[-1]

    def gradient(self, parameters: Floats, inputs: Floats, targets: Ids) -> tuple[float, Floats]:
        """Return the mean loss of a batch, and its gradient of shape (parameters,)."""
        *layer_inputs, scores = self._forward(parameters, inputs)
        loss, of_outputs = cross_entropy(scores, targets)
        gradient = np.empty(self.parameters)
        layers = zip(self._layers(parameters), self._layers(gradient), layer_inputs, strict=True)
        for (weights, _), (of_weights, of_biases), values in reversed(list(layers)):
            np.matmul(values.T, of_outputs, out=of_weights)
            of_outputs.sum(axis=0, out=of_biases)
            if values is not inputs:
                of_outputs = of_outputs @ weights.T
                of_outputs *= values > 0.0
        return loss, gradient

    def _forward(self, parameters: Floats, inputs: Floats) -> list[Floats]:
        """Return the inputs of each layer, and the scores."""
        values = [inputs]
        for weights, biases in self._layers(parameters):
            if len(values) > 1:
                np.maximum(values[-1], 0.0, out=values[-1])
            outputs = values[-1] @ weights
            outputs += biases
            values.append(outputs)
        return values

    def _layers(self, vector: Floats) -> list[tuple[Floats, Floats]]:
        """Return weights and biases of each layer as views of a vector."""
        layers, end = [], 0
        for inputs, outputs in pairwise(self.widths):
            begin, end = end, end + (inputs + 1) * outputs
            weights, biases = vector[begin : end - outputs], vector[end - outputs : end]
            layers.append((weights.reshape(inputs, outputs), biases))
        return layers
