"""When staleness and momentum diverge, on schedules made by hand; see test_lessons for recorded
ones."""

from __future__ import annotations

import math
from functools import cache

import pytest

from perfmodel.replay.optimizer import Optimizer
from perfmodel.replay.replay import replay
from perfmodel.replay.tasks import TrainingTask, make_task
from perfmodel.results.schedule import Schedule
from tests.replay import schedules
from tests.replay.quadratic import Quadratic

SEEDS = range(4)
BATCH = 16
STEEP = Optimizer(learning_rate=0.05, momentum=0.9)


@cache
def task(name: str) -> TrainingTask:
    return make_task(name)


def divergences(optimizer: Optimizer, workers: int) -> list[int | None]:
    """The update at which each seed's training diverged."""
    schedule = schedules.asp(workers, 600, batch_size=BATCH)
    result = []
    for seed in SEEDS:
        curve = replay(schedule, task("mixture"), optimizer, seed, evaluations=10)
        result.append(curve.divergence.update if curve.divergence else None)
    return result


@pytest.mark.slow
def test_momentum_and_staleness_diverge() -> None:
    assert divergences(STEEP, 1) == divergences(STEEP, 2) == [None] * len(SEEDS)
    some, many = divergences(STEEP, 16), divergences(STEEP, 32)
    assert None not in some + many
    assert sum(many) < sum(some)  # type: ignore[arg-type]


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
