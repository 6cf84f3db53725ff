"""The optimizer: steps as in PyTorch, the learning rate over a run, and invalid values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from perfmodel.base.errors import InputError
from perfmodel.replay.models import Models, edges_of
from perfmodel.replay.optimizer import Optimizer
from perfmodel.results.schedule import CENTRE


def test_the_default_learning_rate_is_constant() -> None:
    assert Optimizer(learning_rate=0.3).rate(5.0, gathered=8.0) == 0.3
    assert Optimizer().is_constant


def test_warm_up_scaling_and_decay() -> None:
    made = Optimizer(
        learning_rate=0.1, scaling="linear", warmup_epochs=5.0, decay_epochs=(30.0, 60.0)
    )
    assert made.rate(0.0, 8.0) == 0.0
    assert made.rate(2.5, 8.0) == pytest.approx(0.4)
    assert made.rate(29.9, 8.0) == pytest.approx(0.8)
    assert made.rate(30.0, 8.0) == pytest.approx(0.08)
    assert made.rate(99.0, 8.0) == pytest.approx(0.008)
    assert Optimizer(scaling="square-root").rate(0.0, 9.0) == pytest.approx(0.3)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"momentum": 1.0}, "momentum: must be less than 1, got 1"),
        ({"momentum": -0.1}, "momentum: must be at least 0"),
        ({"learning_rate": 0.0}, "learning_rate: must be more than 0"),
        ({"learning_rate": float("nan")}, "learning_rate: expected a finite number"),
        ({"weight_decay": -1.0}, "weight_decay: must be at least 0"),
        ({"decay_factor": 2.0}, "decay_factor: must be at most 1"),
        ({"decay_epochs": (3.0, -1.0)}, r"decay_epochs\[1\]: must be at least 0"),
        ({"momentum_at": "sever"}, "did you mean 'server'"),
        ({"scaling": "liner"}, "did you mean 'linear'"),
    ],
)
def test_wrong_values_are_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        Optimizer(**given)


def test_slices_are_contiguous_and_proportional() -> None:
    assert edges_of(10, (100.0, 300.0, 100.0)) == [0, 2, 8, 10]
    assert edges_of(3, (5.0,)) == [0, 3]
    assert edges_of(2, (1.0, 1.0, 1.0, 1.0)) == [0, 0, 1, 2, 2]


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("decay", [0.0, 0.01])
def test_steps_equal_those_of_pytorch(momentum: float, decay: float) -> None:
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    start, gradients = rng.standard_normal(5), rng.standard_normal((6, 5))
    parameter = torch.nn.Parameter(torch.tensor(start))
    theirs = torch.optim.SGD([parameter], lr=0.1, momentum=momentum, weight_decay=decay)
    made = Optimizer(learning_rate=0.1, momentum=momentum, weight_decay=decay)
    ours = Models(start, 1, [0, 5], made, {})
    for gradient in gradients:
        parameter.grad = torch.tensor(gradient)
        theirs.step()
        ours.step(CENTRE, 0, 1, gradient.copy(), 0.1)
    np.testing.assert_allclose(ours.view(CENTRE, 0, 1), parameter.detach().numpy(), rtol=1e-13)
