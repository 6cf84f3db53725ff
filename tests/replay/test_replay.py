"""Replays of schedules whose result is known independently."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace

import numpy as np
import pytest

from perfmodel.base.errors import InputError
from perfmodel.replay import replay as module
from perfmodel.replay.batches import Batches
from perfmodel.replay.optimizer import Optimizer
from perfmodel.replay.plan import make_plan
from perfmodel.replay.replay import replay
from perfmodel.replay.rows import rows_of
from perfmodel.replay.tasks import TrainingTask
from perfmodel.results.schedule import CENTRE, Schedule
from tests.replay import schedules
from tests.replay.quadratic import Quadratic
from tests.replay.reference import slow_loss
from tests.replay.schedules import Writer
from tests.replay.small import AT_WORKER, MOMENTUM, ROUNDING, SGD, TASK, by_hand, run


@pytest.mark.parametrize("optimizer", [SGD, MOMENTUM])
def test_one_process_is_plain_sgd(optimizer: Optimizer) -> None:
    curve = run(schedules.plain(20), optimizer)
    np.testing.assert_allclose(curve.loss, by_hand(TASK, optimizer, 20, 8), **ROUNDING)
    assert curve.updates.tolist() == list(range(21))
    assert curve.samples.tolist() == list(range(0, 161, 8))
    assert curve.time_s.tolist() == [float(k) for k in range(21)]


@pytest.mark.parametrize(
    "schedule",
    [
        schedules.bsp(1, 20),
        schedules.bsp(1, 20, (3.0, 1.0)),
        schedules.asp(1, 20),
        schedules.asp(1, 20, (1.0, 2.0)),
        schedules.all_reduce(1, 20),
        schedules.ssp_0(1, 20),
        schedules.local_sgd(1, 20, 4),
    ],
    ids=["bsp", "bsp slices", "asp", "asp slices", "all-reduce", "ssp", "local"],
)
@pytest.mark.parametrize("optimizer", [SGD, MOMENTUM, AT_WORKER])
def test_one_worker_is_plain_sgd_for_every_schedule(
    schedule: Schedule, optimizer: Optimizer
) -> None:
    np.testing.assert_allclose(
        run(schedule, optimizer).loss, by_hand(TASK, optimizer, 20, 8), **ROUNDING
    )


@pytest.mark.parametrize("optimizer", [SGD, MOMENTUM, AT_WORKER])
@pytest.mark.parametrize("slices", [(1.0,), (2.0, 1.0, 4.0)])
def test_bsp_is_sgd_with_large_batches(slices: tuple[float, ...], optimizer: Optimizer) -> None:
    expected = by_hand(TASK, optimizer, 20, 4 * 8)
    curve = run(schedules.bsp(4, 20, slices), optimizer)
    np.testing.assert_allclose(curve.loss, expected, **ROUNDING)
    assert curve.updates[-1] == 20


def test_canary_another_batch_size_is_noticed() -> None:
    curve = run(schedules.bsp(4, 20), SGD)
    assert abs(curve.loss[1:] - by_hand(TASK, SGD, 20, 3 * 8)[1:]).min() > 1e-6


@pytest.mark.parametrize("optimizer", [SGD, MOMENTUM, AT_WORKER])
def test_all_reduce_is_bsp(optimizer: Optimizer) -> None:
    one, other = run(schedules.all_reduce(4, 20), optimizer), run(schedules.bsp(4, 20), optimizer)
    np.testing.assert_allclose(one.loss, other.loss, **ROUNDING)
    assert (one.evaluated, other.evaluated) == ("mean", "centre")


def test_ssp_with_bound_0_is_bsp() -> None:
    one, other = run(schedules.ssp_0(4, 20), SGD), run(schedules.bsp(4, 20), SGD)
    np.testing.assert_allclose(one.loss, other.loss, **ROUNDING)


@pytest.mark.parametrize("optimizer", [SGD, MOMENTUM, AT_WORKER])
def test_local_sgd_with_period_1_is_bsp(optimizer: Optimizer) -> None:
    one = run(schedules.local_sgd(4, 20, 1), optimizer)
    np.testing.assert_allclose(one.loss, run(schedules.bsp(4, 20), optimizer).loss, **ROUNDING)


def test_canary_local_sgd_with_period_2_is_not_bsp() -> None:
    one = run(schedules.local_sgd(4, 20, 2), SGD)
    assert abs(one.loss[2:] - run(schedules.bsp(4, 20), SGD).loss[2:]).max() > 1e-4


def test_elastic_averaging_has_its_closed_form() -> None:
    alpha, rate, workers, rounds = 0.1, 0.2, 3, 12
    curve = replay(
        schedules.easgd(workers, rounds, alpha),
        Quadratic(),
        Optimizer(learning_rate=rate),
        evaluations=rounds * workers,
    )
    matrix = np.eye(workers + 1)  # acts on the distances of all models, the centre last
    moves = []
    for worker in range(workers):
        step = np.eye(workers + 1)
        step[worker, worker] = 1.0 - rate
        pull = np.eye(workers + 1)
        pull[worker, [worker, -1]] = 1.0 - alpha, alpha
        pull[-1, [worker, -1]] = alpha, 1.0 - alpha
        moves.append((step, pull))
    expected = [2.0]
    for step, pull in moves * rounds:
        expected.append(float((step @ matrix).sum(axis=1)[-1] * 2.0))  # before the pull
        matrix = pull @ step @ matrix
    expected[-1] = float(matrix.sum(axis=1)[-1] * 2.0)  # the end of the schedule
    np.testing.assert_allclose(curve.loss, 1.0 + 1.5 * np.array(expected) ** 2, **ROUNDING)


def test_constant_staleness_is_the_delayed_recursion() -> None:
    workers, updates, rate = 4, 40, 0.15
    w = Writer(workers)
    gradients = []
    for worker in range(workers):
        w.read(worker)
        gradients.append(w.gradient(worker))
    for k in range(updates):
        w.apply([gradients[k % workers]])
        w.end()
        w.read(k % workers)
        gradients[k % workers] = w.gradient(k % workers)
    curve = replay(w.schedule(), Quadratic(), Optimizer(learning_rate=rate), evaluations=updates)
    away = [-2.0]
    for k in range(updates):
        away.append(away[-1] - rate * away[max(0, k - workers + 1)])
    np.testing.assert_allclose(curve.loss, 1.0 + 1.5 * np.array(away) ** 2, **ROUNDING)


MANY = {
    "bsp": schedules.bsp(3, 12, (2.0, 1.0, 4.0)),
    "asp": schedules.asp(4, 40, (1.0, 3.0)),
    "in parts": schedules.pushed_in_parts(4, 40, 7),
    "more slices than parameters": schedules.pushed_in_parts(3, 15, 80),
    "all-reduce": schedules.all_reduce(3, 12),
    "local": schedules.local_sgd(3, 12, 3),
    "easgd": schedules.easgd(3, 12, 0.2),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("optimizer", [SGD, MOMENTUM])
@pytest.mark.parametrize("name", MANY)
def test_replays_follow_the_description_of_the_format(name: str, optimizer: Optimizer) -> None:
    loss = run(MANY[name], optimizer).loss[-1]
    assert loss == pytest.approx(slow_loss(MANY[name], TASK, optimizer), rel=1e-10)


def test_canary_another_order_of_updates_is_noticed() -> None:
    schedule = MANY["in parts"]
    other = schedules.asp(4, 40, schedule.header.slices)
    assert abs(run(schedule, SGD).loss[-1] - slow_loss(other, TASK, SGD)) > 1e-5


def test_slices_that_arrive_one_by_one_are_combined() -> None:
    schedule = schedules.asp(4, 100, [1.0] * 40)  # each worker's slices in a row
    assert len(rows_of(schedule, make_plan(schedule)).time_s) < 3.1 * 100


def test_a_gradient_can_be_divided_by_its_staleness() -> None:
    schedule = schedules.asp(4, 30)
    stale = schedule.staleness()
    assert stale.max() > 2
    event, weight = schedule.event, schedule.weight.copy()
    weight[event == 2] /= stale + 1.0
    columns = {name: getattr(schedule, name) for name in schedules.COLUMNS} | {"weight": weight}
    divided = Schedule(schedule.header, **columns)
    by_option = run(schedule, replace(SGD, by_staleness=True))
    np.testing.assert_allclose(by_option.loss, run(divided, SGD).loss, **ROUNDING)


@pytest.mark.parametrize(("scaling", "factor"), [("linear", 4.0), ("square-root", 2.0)])
def test_scaling_uses_the_gradients_of_one_step(scaling: str, factor: float) -> None:
    scaled = run(schedules.bsp(4, 10), replace(SGD, scaling=scaling))
    by_hand_ = run(schedules.bsp(4, 10), replace(SGD, learning_rate=factor * 0.1))
    np.testing.assert_allclose(scaled.loss, by_hand_.loss, **ROUNDING)
    one_by_one = run(schedules.asp(4, 10), replace(SGD, scaling=scaling))
    np.testing.assert_array_equal(one_by_one.loss, run(schedules.asp(4, 10), SGD).loss)


def test_the_place_of_momentum_matters_with_stale_gradients() -> None:
    schedule = schedules.asp(4, 40)
    assert abs(run(schedule, MOMENTUM).loss[1:] - run(schedule, AT_WORKER).loss[1:]).max() > 1e-3


def test_a_dropped_gradient_is_not_applied_but_uses_its_batch() -> None:
    w = Writer(1)
    w.read(0)
    w.drop(w.gradient(0))
    w.read(0)
    w.apply([w.gradient(0)])
    w.end()
    curve = run(w.schedule(), SGD)
    start, batches = TASK.initial(0), Batches(TASK.samples, 1, 8, 0)
    batches.take(0)
    _, gradient = TASK.gradient(start, batches.take(0))
    assert curve.loss[-1] == TASK.evaluate(start - 0.1 * gradient).loss
    assert curve.samples.tolist() == [0, 8]


def test_mixing_uses_models_from_before_the_group() -> None:
    w = Writer(2)
    w.apply([w.gradient(0)], model=0)
    w.end()
    w.mix(0, 1, 0.25)
    w.mix(1, 0, 0.5)
    w.apply([w.gradient(1)], model=1)
    w.end()
    moved = -2.0 + 0.1 * 2.0  # of model 0
    zero, one = 0.75 * moved + 0.25 * -2.0, 0.5 * -2.0 + 0.5 * moved + 0.1 * 2.0
    curve = replay(w.schedule(), Quadratic(), SGD)
    assert curve.loss[-1] == pytest.approx(1.0 + 1.5 * ((zero + one) / 2.0) ** 2)


@pytest.mark.parametrize("slices", [(1.0,), (1.0, 2.0)])
def test_mixing_uses_the_model_as_it_was_sent(slices: tuple[float, ...]) -> None:
    w = Writer(2, slices)
    for _ in range(3):
        w.apply([w.gradient(0)], model=0)
        w.end()
    w.mix(1, 0, 0.5, age=2)  # after one of three steps
    w.end()
    w.apply([w.gradient(1)], model=1)
    w.end()
    zero = -2.0 * 0.9**3
    one = 0.9 * (0.5 * -2.0 + 0.5 * -2.0 * 0.9)
    curve = replay(w.schedule(), Quadratic(), SGD)
    assert curve.loss[-1] == pytest.approx(1.0 + 1.5 * ((zero + one) / 2.0) ** 2)


def peak_bytes(schedule: Schedule, task: TrainingTask) -> int:
    tracemalloc.start()
    try:
        replay(schedule, task, SGD, evaluations=1)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.slow
def test_memory_does_not_grow_with_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_ROWS", 64)
    task = Quadratic(parameters=100_000)
    short, long = (peak_bytes(schedules.asp(4, updates), task) for updates in (20, 200))
    assert long - short < 8 * task.parameters  # one version more, of 180
    assert short > 5 * 8 * task.parameters  # something is measured: 4 workers and the centre


@pytest.mark.slow
def test_old_versions_are_kept_while_they_are_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_ROWS", 64)
    task = Quadratic(parameters=100_000)

    def mixing(rounds: int, age: int) -> Schedule:
        w = Writer(2)
        for k in range(rounds):
            w.apply([w.gradient(0)], model=0)
            w.end()
            w.mix(1, 0, 0.5, age=min(age, k + 1))
            w.end()
        return w.schedule()

    def vectors(rounds: int, age: int) -> float:
        return peak_bytes(mixing(rounds, age), task) / (8 * task.parameters)

    assert vectors(200, 1) - vectors(20, 1) < 0.5
    assert 9.5 < vectors(200, 12) - vectors(200, 2) < 10.5


def test_groups_are_not_split(monkeypatch: pytest.MonkeyPatch) -> None:
    total = run(schedules.local_sgd(4, 20, 2), MOMENTUM)
    monkeypatch.setattr(module, "_ROWS", 5)
    np.testing.assert_array_equal(total.loss, run(schedules.local_sgd(4, 20, 2), MOMENTUM).loss)


def test_the_seed_determines_the_result() -> None:
    schedule = schedules.asp(3, 20)
    one, again, other = (replay(schedule, TASK, SGD, seed) for seed in (1, 1, 2))
    np.testing.assert_array_equal(one.loss, again.loss)
    assert not np.array_equal(one.loss, other.loss)


def test_evaluations_are_equally_spaced() -> None:
    curve = run(schedules.asp(4, 100), SGD, evaluations=10)
    assert curve.samples.tolist() == list(range(0, 801, 80))
    frame = curve.frame()
    assert list(frame.columns)[:3] == ["samples", "updates", "time_s"]
    assert len(frame) == 11


def test_more_evaluations_than_updates() -> None:
    assert run(schedules.plain(3), SGD, evaluations=50).updates.tolist() == [0, 1, 2, 3]


def test_time_to_a_target_accuracy() -> None:
    curve = run(schedules.plain(200), SGD, evaluations=40)
    target = float(curve.accuracy.max())
    first = int(np.argmax(curve.accuracy >= target))
    assert curve.time_to(target) == curve.time_s[first]
    assert curve.samples_to(target) == curve.samples[first]
    assert curve.time_to(1.0) is None or curve.accuracy.max() == 1.0
    for wrong, message in (
        (1.5, "accuracy must be at most 1, got 1.5"),
        (0.0, "must be more than 0"),
    ):
        with pytest.raises(InputError, match=message):
            curve.time_to(wrong)


def test_divergence_is_reported_and_ends_the_curve() -> None:
    curve = replay(schedules.plain(400), Quadratic(), Optimizer(learning_rate=2.5))
    assert curve.divergence is not None
    assert 0 < curve.divergence.update < 60
    assert curve.divergence.samples == 8 * curve.divergence.update
    assert curve.divergence.time_s == curve.divergence.update + 1
    assert "5 times the initial loss" in curve.divergence.reason
    assert np.isfinite(curve.loss).all()
    assert curve.updates[-1] <= curve.divergence.update


def test_a_loss_of_nan_is_a_divergence() -> None:
    task = Quadratic()
    task.gradient = lambda x, indices: (float("nan"), x)  # type: ignore[method-assign]
    curve = replay(schedules.plain(40), task, SGD)
    assert curve.divergence is not None
    assert (curve.divergence.update, curve.divergence.reason) == (
        0,
        "the loss of a batch is not finite",
    )
    assert np.isfinite(curve.batch_loss).all()


def test_inconsistent_tasks_are_refused() -> None:
    schedule = schedules.plain(2)
    initial, gradient, empty = Quadratic(), Quadratic(), Quadratic()
    initial.initial = lambda seed: np.zeros(7)  # type: ignore[method-assign]
    gradient.gradient = lambda x, at: (1.0, np.zeros(2))  # type: ignore[method-assign]
    empty.samples = 0
    for task, message in (
        (initial, r"task quadratic: expected 3 initial parameters, got .* \(7,\)"),
        (gradient, r"task quadratic: expected a gradient of 3 numbers, got .* \(2,\)"),
        (empty, "task quadratic: samples: must be at least 1, got 0"),
    ):
        with pytest.raises(InputError, match=message):
            replay(schedule, task, SGD)


def test_wrong_numbers_are_refused() -> None:
    for given in ({"evaluations": 0}, {"noise_batches": -1}, {"seed": -1}):
        with pytest.raises(InputError, match=next(iter(given))):
            replay(schedules.plain(2), TASK, SGD, **given)


def test_a_schedule_without_updates_is_evaluated_once() -> None:
    w = Writer(1)
    w.drop(w.gradient(0))
    assert run(w.schedule(), SGD).updates.tolist() == [0]


def test_the_centre_is_evaluated_if_there_is_one() -> None:
    w = Writer(1)
    w.apply([w.gradient(0)], model=CENTRE)
    assert run(w.schedule(), SGD).evaluated == "centre"
