"""Effects of staleness, momentum and workers on accuracy, over seeds.

A difference of three standard errors over the seeds counts as significant.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

import numpy as np
import pytest

from perfmodel.replay.optimizer import Optimizer
from perfmodel.replay.replay import replay
from perfmodel.replay.tasks import TrainingTask, make_task
from perfmodel.results.schedule import Schedule
from tests.replay import schedules
from tests.replay.quadratic import Quadratic

SEEDS = range(4)
GRADIENTS, BATCH = 1600, 16
HEAVY = Optimizer(learning_rate=0.02, momentum=0.9, warmup_epochs=1.0, scaling="linear")
STEEP = Optimizer(learning_rate=0.05, momentum=0.9)


@cache
def task(name: str) -> TrainingTask:
    return make_task(name)


@cache
def asp(workers: int) -> Schedule:
    return schedules.asp(workers, GRADIENTS, batch_size=BATCH)


@cache
def bsp(workers: int) -> Schedule:
    return schedules.bsp(workers, GRADIENTS // workers, batch_size=BATCH)


@cache
def accuracies(made: Callable[[int], Schedule], workers: int) -> tuple[float, ...]:
    """Mean accuracy over the last quarter of the samples, for each seed."""
    curves = [
        replay(made(workers), task("mixture-softmax"), HEAVY, seed, evaluations=20)
        for seed in SEEDS
    ]
    assert all(curve.divergence is None for curve in curves)
    return tuple(float(curve.accuracy[-5:].mean()) for curve in curves)


def lost(made: Callable[[int], Schedule], workers: int, fewer: int = 1) -> tuple[float, float]:
    """Accuracy lost by more workers, and its standard error over the seeds."""
    differences = np.subtract(accuracies(made, fewer), accuracies(made, workers))
    return float(differences.mean()), float(differences.std(ddof=1)) / math.sqrt(len(SEEDS))


@pytest.mark.slow
def test_asynchronous_workers_lose_accuracy_increasing_with_their_number() -> None:
    for fewer, workers in ((4, 16), (16, 32)):
        loss, error = lost(asp, workers, fewer)
        assert loss > 2.0 * error
    loss, error = lost(asp, 32)
    assert loss > 3.0 * error > 0.0


@pytest.mark.slow
def test_synchronous_workers_lose_little() -> None:
    for workers in (4, 8, 16, 32):
        loss, error = lost(bsp, workers)
        assert loss - 3.0 * error < 0.005
    stale, stale_error = lost(asp, 32)
    fresh, fresh_error = lost(bsp, 32)
    assert stale - fresh > 3.0 * math.hypot(stale_error, fresh_error)


@pytest.mark.slow
def test_canary_one_worker_loses_nothing_against_itself() -> None:
    assert accuracies(asp, 1) == pytest.approx(accuracies(bsp, 1), abs=1e-12)


def divergences(optimizer: Optimizer, workers: int) -> list[int | None]:
    """The update at which each seed's training diverged."""
    schedule = schedules.asp(workers, 600, batch_size=BATCH)
    found = []
    for seed in SEEDS:
        curve = replay(schedule, task("mixture"), optimizer, seed, evaluations=10)
        found.append(curve.divergence.update if curve.divergence else None)
    return found


def test_momentum_and_staleness_diverge() -> None:
    assert divergences(STEEP, 1) == divergences(STEEP, 2) == [None] * len(SEEDS)
    some, many = divergences(STEEP, 16), divergences(STEEP, 32)
    assert None not in some + many
    assert sum(many) < sum(some)  # type: ignore[arg-type]


@pytest.mark.slow
def test_momentum_and_staleness_degrade_before_they_diverge() -> None:
    finals = [
        [
            replay(
                schedules.asp(workers, 600, batch_size=BATCH),
                task("mixture"),
                STEEP,
                seed,
                evaluations=10,
            ).batch_loss[-1]
            for seed in SEEDS
        ]
        for workers in (1, 4)
    ]
    worse = np.subtract(finals[1], finals[0])
    assert worse.mean() > 2.0 * worse.std(ddof=1) / math.sqrt(len(SEEDS))


@pytest.mark.slow
@pytest.mark.parametrize(
    "optimizer",
    [
        Optimizer(learning_rate=0.05),
        Optimizer(learning_rate=0.05, momentum=0.9, by_staleness=True),
    ],
    ids=["without momentum", "divided by staleness"],
)
def test_neither_momentum_nor_staleness_alone_diverges(optimizer: Optimizer) -> None:
    for workers in (1, 16, 32):
        assert divergences(optimizer, workers) == [None] * len(SEEDS)


def delayed(delay: int, updates: int) -> Schedule:
    """Round robin: every gradient except the first ones is ``delay`` updates old."""
    w = schedules.Writer(delay + 1)
    gradients = []
    for worker in range(delay + 1):
        w.read(worker)
        gradients.append(w.gradient(worker))
    for k in range(updates):
        worker = k % (delay + 1)
        w.apply([gradients[worker]])
        w.end()
        w.read(worker)
        gradients[worker] = w.gradient(worker)
    return w.schedule()


@pytest.mark.parametrize("delay", [0, 1, 3, 7])
def test_the_largest_stable_learning_rate_is_that_of_the_delayed_recursion(delay: int) -> None:
    """x(k+1) = x(k) - a x(k-d) converges for a < 2 sin(pi / (4 d + 2)) (Levin and May, 1976)."""
    limit = 2.0 * math.sin(math.pi / (4 * delay + 2))
    schedule = delayed(delay, 600)
    below, above = (
        replay(schedule, Quadratic(), Optimizer(learning_rate=factor * limit))
        for factor in (0.95, 1.05)
    )
    assert below.divergence is None
    assert below.loss[-1] < below.loss[0]
    assert above.divergence is not None
