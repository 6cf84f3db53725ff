"""Replays of recorded schedules: algorithms equal in theory agree up to rounding."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from perfmodel import make_job, predict
from perfmodel.replay.optimizer import Optimizer
from perfmodel.replay.replay import replay
from perfmodel.replay.tasks import make_task
from perfmodel.results.schedule import Schedule
from tests.replay.quadratic import Quadratic
from tests.replay.reference import slow_loss
from tests.replay.small import MOMENTUM, SGD, TASK, by_hand, run
from tests.settings import thinned

GRADIENTS = 48
KINDS: Mapping[str, tuple[str, dict[str, Any]]] = {
    "bsp": ("ps", {"sync": "bsp"}),
    "bsp of 3 servers": ("ps", {"sync": "bsp", "servers": 3}),
    "asp": ("ps", {"sync": "asp"}),
    "asp of 3 servers": ("ps", {"sync": "asp", "servers": 3}),
    "ssp": ("ps", {"sync": "ssp", "staleness_bound": 1}),
    "allreduce": ("allreduce", {}),
    "fsdp": ("fsdp", {}),
    "p2p": ("p2p", {}),
    "local_sgd of period 1": ("local_sgd", {"period": 1}),
    "local_sgd of period 4": ("local_sgd", {"period": 4}),
    "d_psgd": ("d_psgd", {}),
    "ad_psgd": ("ad_psgd", {}),
    "gosgd": ("gosgd", {}),
    "softsync": ("ps", {"sync": "asp", "softsync": 2}),
    "easgd": ("easgd", {"period": 2}),
    "easgd of period 1": ("easgd", {"period": 1}),
    "easgd of 3 servers": ("easgd", {"period": 1, "servers": 3}),
}
NOT_PLAIN = ("softsync", "easgd", "easgd of period 1", "easgd of 3 servers")
"""With one worker, a step has two gradients, or the evaluated centre lags behind."""

SYNCHRONOUS = (
    "bsp",
    "bsp of 3 servers",
    "allreduce",
    "fsdp",
    "p2p",
    "local_sgd of period 1",
)


@functools.cache
def recorded(kind: str, workers: int = 4, gradients: int = GRADIENTS) -> Schedule:
    arch, options = KINDS[kind]
    return record(arch, options, workers, gradients)


def record(
    arch: str, options: dict[str, Any], workers: int, gradients: int, **more: Any
) -> Schedule:
    job = make_job(model="alexnet", workers=workers, arch=arch, options=options, jitter=0.1, **more)
    made = predict(job).schedule(gradients)
    return msgspec.structs.replace(made, header=msgspec.structs.replace(made.header, batch_size=8))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("optimizer", thinned([MOMENTUM, SGD]))
@pytest.mark.parametrize("kind", thinned(KINDS, 3))
def test_replays_follow_the_description_of_the_format(kind: str, optimizer: Optimizer) -> None:
    schedule = recorded(kind)
    loss = run(schedule, optimizer).loss[-1]
    assert loss == pytest.approx(slow_loss(schedule, TASK, optimizer), rel=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("transmission", "duplex"),
    thinned([("shared", True), ("priority", False), ("quantum", True)], 3),
)
def test_slices_that_overtake_each_other(transmission: str, duplex: bool) -> None:
    """Slices of one gradient are applied in a different order and at a different age than slices of
    the next, so the last use of a gradient does not follow the schedule's order."""
    options = {"sync": "asp", "transmission": transmission, "duplex": duplex}
    schedule = record("ps", {**options, "split_above_bytes": 1.0}, 8, 200)
    loss = run(schedule, MOMENTUM).loss[-1]
    assert loss == pytest.approx(slow_loss(schedule, TASK, MOMENTUM), rel=1e-10)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("optimizer", [SGD, MOMENTUM])
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in NOT_PLAIN])
def test_one_worker_is_plain_sgd(kind: str, optimizer: Optimizer) -> None:
    loss = run(recorded(kind, workers=1), optimizer).loss[-1]
    assert loss == pytest.approx(by_hand(TASK, optimizer, GRADIENTS, 8)[-1], rel=1e-10)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("optimizer", [SGD, MOMENTUM])
@pytest.mark.parametrize("kind", SYNCHRONOUS)
def test_synchronous_workers_are_sgd_with_large_batches(kind: str, optimizer: Optimizer) -> None:
    loss = run(recorded(kind), optimizer).loss[-1]
    assert loss == pytest.approx(by_hand(TASK, optimizer, GRADIENTS // 4, 32)[-1], rel=1e-10)


@pytest.mark.slow
@pytest.mark.sampled(5)
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in SYNCHRONOUS])
def test_canary_other_architectures_are_not_plain_sgd(kind: str) -> None:
    loss = run(recorded(kind), SGD).loss[-1]
    assert abs(loss - by_hand(TASK, SGD, GRADIENTS // 4, 32)[-1]) > 1e-5


def test_ssp_with_bound_0_is_bsp_with_gradients_one_by_one() -> None:
    """Its updates have weight 1, so the learning rate is BSP's divided by the workers."""
    one_by_one = record("ps", {"sync": "ssp", "staleness_bound": 0}, 4, GRADIENTS, start="together")
    quarter = Optimizer(learning_rate=SGD.learning_rate / 4.0)
    loss = run(one_by_one, quarter).loss[-1]
    assert loss == pytest.approx(run(recorded("bsp"), SGD).loss[-1], rel=1e-10)


def test_elastic_averaging_has_its_closed_form() -> None:
    """One worker: read the centre, pull both by the same difference, step (quadratic loss)."""
    alpha, rate = 0.1, SGD.learning_rate
    schedule = recorded("easgd of period 1", workers=1)
    assert schedule.header.options["moving_rate"] == alpha
    loss = replay(schedule, Quadratic(), SGD).loss[-1]
    worker, centre = -2.0, -2.0
    for _ in range(GRADIENTS):
        apart = worker - centre
        worker, centre = worker - alpha * apart, centre + alpha * apart
        worker -= rate * worker
    assert loss == pytest.approx(1.0 + 1.5 * centre**2, rel=1e-10)


@pytest.mark.slow
def test_staleness_in_the_replay_follows_the_schedule() -> None:
    schedule = recorded("asp", gradients=200)
    divided = run(schedule, Optimizer(learning_rate=0.1, by_staleness=True))
    less = run(schedule, Optimizer(learning_rate=0.1 / (1.0 + schedule.staleness().max())))
    more = run(schedule, SGD)
    assert more.loss[-1] < divided.loss[-1] < less.loss[-1]


@pytest.mark.parametrize(("workers", "diverges"), [(1, False), (16, True)])
def test_recorded_staleness_and_momentum_diverge(workers: int, diverges: bool) -> None:
    schedule = recorded("asp", workers, 400)
    steep = Optimizer(learning_rate=0.05, momentum=0.9)
    curve = replay(schedule, make_task("mixture"), steep, evaluations=4)
    assert (curve.divergence is not None) == diverges
