"""Gradients against finite differences, and the cross entropy against its definition."""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel.base.arrays import Floats, Ids
from perfmodel.replay.networks import DenseNetwork, cross_entropy

FEATURES, CLASSES, SAMPLES = 5, 3, 7


NETWORKS = {
    "softmax": DenseNetwork(FEATURES, CLASSES),
    "two layers": DenseNetwork(FEATURES, 6, CLASSES),
    "three layers": DenseNetwork(FEATURES, 6, 4, CLASSES),
}


def batch() -> tuple[Floats, Ids]:
    rng = np.random.default_rng(1)
    return rng.standard_normal((SAMPLES, FEATURES)), rng.integers(CLASSES, size=SAMPLES)


def worst_difference(network: DenseNetwork, wrong: float = 0.0) -> float:
    """Largest difference between a gradient, with an error ``wrong``, and central differences."""
    inputs, targets = batch()
    rng = np.random.default_rng(2)
    parameters = network.initial(rng) + 0.3 * rng.standard_normal(network.parameters)
    _, gradient = network.gradient(parameters, inputs, targets)
    gradient[-1] += wrong
    worst, h = 0.0, 1e-6
    for k in range(network.parameters):
        step = np.zeros(network.parameters)
        step[k] = h
        up, _ = network.gradient(parameters + step, inputs, targets)
        down, _ = network.gradient(parameters - step, inputs, targets)
        worst = max(worst, abs((up - down) / (2.0 * h) - gradient[k]))
    return worst


@pytest.mark.parametrize("kind", NETWORKS)
def test_gradients_equal_finite_differences(kind: str) -> None:
    # error of a central difference: rounding 1e-16 / h, and h**2 times the third derivative
    assert worst_difference(NETWORKS[kind]) < 2e-9


@pytest.mark.parametrize("kind", NETWORKS)
def test_canary_a_wrong_gradient_is_noticed(kind: str) -> None:
    assert worst_difference(NETWORKS[kind], wrong=1e-6) > 5e-7


def test_the_loss_is_the_mean_negative_log_probability() -> None:
    scores = np.array([[0.0, np.log(3.0)], [800.0, 0.0]])  # and does not overflow
    loss, gradient = cross_entropy(scores, np.array([1, 0]))
    assert loss == pytest.approx(-np.log(0.75) / 2.0)
    np.testing.assert_allclose(gradient, [[0.125, -0.125], [0.0, 0.0]], atol=1e-15)


@pytest.mark.parametrize("kind", NETWORKS)
def test_the_loss_agrees_with_the_scores(kind: str) -> None:
    network = NETWORKS[kind]
    inputs, targets = batch()
    parameters = network.initial(np.random.default_rng(3))
    loss, gradient = network.gradient(parameters, inputs, targets)
    assert loss == cross_entropy(network.scores(parameters, inputs), targets)[0]
    assert gradient.shape == parameters.shape == (network.parameters,)
