"""The measured gradient noise against its definition."""

from __future__ import annotations

import math

import numpy as np
import pytest

from perfmodel.base.arrays import Floats
from perfmodel.base.errors import InputError
from perfmodel.replay.data import mixture
from perfmodel.replay.noise_scale import measure_noise
from perfmodel.replay.optimizer import Optimizer
from perfmodel.replay.replay import replay
from perfmodel.replay.tasks import NetworkTask, make_task, network_task
from perfmodel.theory.statistical_efficiency import average, efficiency
from tests.replay import schedules
from tests.replay.quadratic import Quadratic

TASK = network_task("small", mixture(samples=300, test_samples=50, features=6, classes=3), None)


def exact(task: NetworkTask, parameters: Floats) -> tuple[float, float]:
    """Trace of the covariance, and squared mean, of the gradients of single samples."""
    gradients = np.array([task.gradient(parameters, np.array([k]))[1] for k in range(task.samples)])
    mean = gradients.mean(axis=0)
    return float(gradients.var(axis=0).sum()), float(mean @ mean)


@pytest.mark.parametrize("size", [1, 8])
def test_the_noise_equals_that_of_single_gradients(size: int) -> None:
    start = TASK.initial(0)
    result = [
        measure_noise(TASK, start, batch_size=size, batches=64 // size, seed=seed)
        for seed in range(60)
    ]
    for k, expected in enumerate(exact(TASK, start)):
        values = np.array([each[k] for each in result])
        assert abs(values.mean() - expected) < 3.5 * values.std(ddof=1) / math.sqrt(len(values))
        assert abs(values.mean() - 1.5 * expected) > 3.5 * values.std(ddof=1) / math.sqrt(60)


def test_the_noise_of_a_quadratic_equals_that_of_its_points() -> None:
    task = Quadratic(noise=1.0, samples=2000)
    noise = average([measure_noise(task, task.initial(0), batch_size=4, seed=k) for k in range(40)])
    mean = task.points.mean(axis=0)
    expected = task.points.var(axis=0).sum() / (mean @ mean)
    assert noise.scale_samples == pytest.approx(expected, rel=0.1)


def test_a_replay_measures_noise_at_each_evaluation_without_changing_training() -> None:
    schedule = schedules.bsp(4, 40)
    optimizer = Optimizer(learning_rate=0.2)
    plain = replay(schedule, TASK, optimizer, evaluations=4)
    measured = replay(schedule, TASK, optimizer, evaluations=4, noise_batches=64)
    np.testing.assert_array_equal(plain.loss, measured.loss)
    assert plain.noise == ()
    assert len(measured.noise) == len(measured.loss) == 5
    assert measured.noise[0].square > 2.0 * measured.noise[-1].square  # it learns
    assert "noise_scale_samples" in measured.frame()


def samples_to(loss: float, batch_size: int, updates: int) -> float:
    """Samples to reach a loss with the best of several learning rates, mean over seeds."""
    task = make_task("mixture-softmax")
    result = []
    for rate in (0.4, 0.8, 1.6, 3.2):
        schedule = schedules.plain(updates, batch_size)
        curves = [
            replay(schedule, task, Optimizer(learning_rate=rate), seed, evaluations=updates)
            for seed in range(3)
        ]
        reached = [np.flatnonzero(curve.loss <= loss) for curve in curves]
        if all(map(len, reached)):
            samples = [curve.samples[at[0]] for curve, at in zip(curves, reached, strict=True)]
            result.append(float(np.mean(samples)))
    return min(result)


@pytest.mark.slow
def test_the_noise_scale_says_what_large_batches_cost() -> None:
    """Within a factor of 2: the scale changes over the run, but the formula has one value."""
    task = make_task("mixture-softmax")
    run = replay(
        schedules.plain(50, 64),
        task,
        Optimizer(learning_rate=1.6),
        evaluations=50,
        noise_batches=32,
    )
    before = [noise for noise, loss in zip(run.noise, run.loss, strict=True) if loss > 0.4]
    scale = average(before).scale_samples
    small, large = samples_to(0.4, 16, 150), samples_to(0.4, 256, 40)
    ratio = efficiency(scale, 256.0, 16.0) / (small / large)
    assert 0.5 < ratio < 2.0
    assert small / large < 0.5  # the assumption of equal cost is further off


def test_one_batch_is_not_enough() -> None:
    with pytest.raises(InputError, match="batches: must be at least 2, got 1"):
        measure_noise(TASK, TASK.initial(0), batch_size=4, batches=1)
