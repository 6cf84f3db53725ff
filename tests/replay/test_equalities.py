"""Replays of recorded schedules with known results: equal algorithms learn equally.

The jobs have random computation times, so that messages arrive in a different order each time.
"""

from __future__ import annotations

import time
import tracemalloc
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from perfmodel.base.arrays import Floats, Ids
from perfmodel.replay import replay as module
from perfmodel.replay.batches import Batches
from perfmodel.replay.curve import Curve
from perfmodel.replay.data import mixture
from perfmodel.replay.optimizer import Optimizer
from perfmodel.replay.replay import replay
from perfmodel.replay.tasks import Evaluation, make_task, network_task
from perfmodel.results.schedule import WHOLE, Event, Schedule
from tests.jobs import ALL, VARIANTS
from tests.replay.recorded import recorded
from tests.settings import thinned

TASK = network_task("small", mixture(samples=192, test_samples=50, features=6, classes=3), hidden=5)
SGD = Optimizer(learning_rate=0.1)
MOMENTUM = Optimizer(learning_rate=0.05, momentum=0.9, weight_decay=1e-3)
ROUNDING = {"rtol": 1e-10, "atol": 1e-12}
WORKERS, STEPS, BATCH = 4, 12, 8

Variant = tuple[str, dict[str, Any]]


def ids(variants: list[Variant]) -> list[str]:
    return ["-".join([arch, *(f"{k}={v}" for k, v in o.items())]) for arch, o in variants]


def is_synchronous(arch: str, options: dict[str, Any]) -> bool:
    """Whether every step uses the mean gradient of all workers."""
    if arch == "ps":
        return options.get("sync", "bsp") == "bsp" and not options.get("backup_workers")
    if arch in ("local_sgd", "diloco"):
        return bool(options.get("period") == 1)
    return arch in ("allreduce", "p2p", "fsdp")


SYNCHRONOUS = [each for each in ALL if is_synchronous(*each)]
ALONE = [
    (arch, options)
    for arch, options in ALL
    if arch != "easgd"  # the centre follows the worker: see the closed form below
    and not options.get("backup_workers")  # a single worker has no backup
    and options.get("softsync", 1) == 1  # an update takes two gradients of the worker
]


def by_hand(optimizer: Optimizer, batch_size: int) -> Floats:
    """Loss after each update of plain SGD in one process."""
    parameters, velocity = TASK.initial(0), np.zeros(TASK.parameters)
    batches = Batches(TASK.samples, 1, batch_size, 0)
    losses = [TASK.evaluate(parameters).loss]
    for _ in range(STEPS):
        _, gradient = TASK.gradient(parameters, batches.take(0))
        velocity = optimizer.momentum * velocity + gradient + optimizer.weight_decay * parameters
        parameters = parameters - optimizer.learning_rate * velocity
        losses.append(TASK.evaluate(parameters).loss)
    return np.array(losses)


def run(
    arch: str, options: dict[str, Any], optimizer: Optimizer, workers: int = WORKERS, **job: Any
) -> Curve:
    """A curve with an evaluation after each step of all workers."""
    schedule = recorded(arch, options, workers, STEPS * workers, batch_size=BATCH, **job)
    return replay(schedule, TASK, optimizer, evaluations=STEPS)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("arch", "options"), thinned(SYNCHRONOUS, 3), ids=ids(SYNCHRONOUS))
def test_synchronous_training_is_sgd_with_large_batches(arch: str, options: dict[str, Any]) -> None:
    """Whatever the network: bandwidth changes the seconds, but not a bit of the loss."""
    slow, fast = (run(arch, options, MOMENTUM, link_bytes_per_s=b) for b in (30.0, 30_000.0))
    np.testing.assert_allclose(fast.loss, by_hand(MOMENTUM, WORKERS * BATCH), **ROUNDING)
    np.testing.assert_array_equal(slow.loss, fast.loss)
    np.testing.assert_array_equal(slow.accuracy, fast.accuracy)
    assert slow.time_s[-1] > fast.time_s[-1]


def test_synchronous_architectures_exist() -> None:
    assert {arch for arch, _ in SYNCHRONOUS} == {
        *("ps", "allreduce", "p2p", "fsdp"),
        *("local_sgd", "diloco"),
    }


@pytest.mark.parametrize("workers", [2, 5])
@pytest.mark.parametrize("arch", ["allreduce", "ps"])
def test_synchronous_training_with_any_number_of_workers(arch: str, workers: int) -> None:
    result = run(arch, {}, SGD, workers, slow=3.0)
    np.testing.assert_allclose(result.loss, by_hand(SGD, workers * BATCH), **ROUNDING)


@pytest.mark.parametrize(
    ("arch", "options"),
    [("ps", {"sync": "asp"}), ("ps", {"backup_workers": 1}), ("local_sgd", {"period": 2})],
)
def test_canary_other_algorithms_are_not_synchronous(arch: str, options: dict[str, Any]) -> None:
    result = run(arch, options, MOMENTUM)
    assert abs(result.loss[2:] - by_hand(MOMENTUM, WORKERS * BATCH)[2:]).max() > 1e-3


def test_canary_bandwidth_changes_what_asynchronous_training_learns() -> None:
    slow, fast = (
        run("ps", {"sync": "asp"}, SGD, link_bytes_per_s=b, slow=2.0) for b in (30.0, 30_000.0)
    )
    assert abs(slow.loss - fast.loss).max() > 1e-4


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("arch", "options"), thinned(ALONE, 3), ids=ids(ALONE))
def test_one_worker_is_plain_sgd(arch: str, options: dict[str, Any]) -> None:
    result = run(arch, options, MOMENTUM, workers=1)
    np.testing.assert_allclose(result.loss, by_hand(MOMENTUM, BATCH), **ROUNDING)


def test_every_architecture_runs_with_one_worker() -> None:
    assert {arch for arch, _ in ALONE} == {*VARIANTS} - {"easgd"}


def test_canary_one_worker_with_softsync_is_not_plain_sgd() -> None:
    result = run("ps", {"sync": "asp", "softsync": 2}, SGD, workers=1)
    assert abs(result.loss[1:3] - by_hand(SGD, BATCH)[1:3]).max() > 1e-4


def ssp(bound: float, optimizer: Optimizer = SGD, **options: Any) -> Curve:
    return run("ps", {"sync": "ssp", "staleness_bound": bound, **options}, optimizer, slow=4.0)


def test_ssp_with_bound_0_is_bsp() -> None:
    """Without momentum, the sum of gradients at the same parameters is N times their mean."""
    bsp = run("ps", {"sync": "bsp"}, replace(SGD, scaling="linear"), slow=4.0)
    np.testing.assert_allclose(ssp(0.0).loss, bsp.loss, **ROUNDING)


def test_ssp_without_bound_is_asp() -> None:
    """If each push is answered at once. Otherwise SSP reads when the pull begins, and ASP when the
    gradient is applied, a little earlier."""
    for optimizer in (SGD, MOMENTUM):
        asp = run("ps", {"sync": "asp", "duplex": True}, optimizer, slow=4.0)
        result = ssp(np.inf, optimizer, duplex=True)
        np.testing.assert_array_equal(result.loss, asp.loss)
        np.testing.assert_array_equal(result.time_s, asp.time_s)


def test_canary_ssp_with_bound_1_is_neither() -> None:
    some, none, all_ = ssp(1.0), ssp(np.inf), ssp(0.0)
    assert abs(some.loss - none.loss).max() > 1e-4
    assert abs(some.loss - all_.loss).max() > 1e-4


class Distance:
    """Half the squared distance from 0: the same gradient for every batch."""

    name, samples = "distance", 64

    def __init__(self, parameters: int = 3) -> None:
        self.parameters = parameters

    def initial(self, seed: int) -> Floats:
        return np.full(self.parameters, 1.0 + seed)

    def gradient(self, parameters: Floats, indices: Ids) -> tuple[float, Floats]:
        return self.evaluate(parameters).loss, parameters.copy()

    def evaluate(self, parameters: Floats) -> Evaluation:
        return Evaluation(1.0 + 0.5 * float(parameters @ parameters), 0.5)


@pytest.mark.parametrize("workers", [2, 4])
def test_stale_gradients_are_the_delayed_recursion(workers: int) -> None:
    """x(k+1) = x(k) - rate x(k - d(k)), with the staleness d(k) that the schedule counts."""
    rate = 0.1
    schedule = recorded(
        "ps", {"sync": "asp"}, workers, STEPS * workers, slow=2.0, link_bytes_per_s=30.0
    )
    sizes = schedule.header.slices  # one byte per parameter of Distance
    applied = schedule.slice[schedule.event == Event.APPLY].tolist()
    slices = [k for part in applied for k in (range(len(sizes)) if part == WHOLE else (part,))]
    away = [[1.0] for _ in sizes]
    for k, stale in zip(slices, schedule.staleness().tolist(), strict=True):
        away[k].append(away[k][-1] - rate * away[k][-1 - stale])
    result = replay(schedule, Distance(), Optimizer(learning_rate=rate), evaluations=1)
    expected, fresh = (
        1.0 + 0.5 * sum(size * each**2 for size, each in zip(sizes, ends, strict=True))
        for ends in (
            [each[-1] for each in away],
            [(1.0 - rate) ** (len(each) - 1) for each in away],  # the canary
        )
    )
    assert result.loss[-1] == pytest.approx(expected, rel=1e-10)
    assert abs(result.loss[-1] - fresh) > 1e-6


def elastic(workers: int, rate: float, alpha: float) -> Floats:
    """Loss of the centre after each step of EASGD with period 1 and equal workers.

    Synchronous EASGD (Zhang, Choromanska and LeCun, NIPS 2015, equations 5 and 6), except
    that a worker moves to the centre before it computes its gradient.
    """
    pull = np.array([[1.0 - alpha, alpha], [workers * alpha, 1.0 - workers * alpha]])
    step = np.diag([1.0 - rate, 1.0])
    centres = [(np.linalg.matrix_power(step @ pull, k) @ [1.0, 1.0])[1] for k in range(STEPS + 1)]
    return 1.0 + 1.5 * np.square(centres)


@pytest.mark.parametrize("workers", [1, 4])
def test_easgd_with_period_1_has_its_closed_form(workers: int) -> None:
    rate, alpha = 0.3, 0.15
    schedule = recorded(
        "easgd", {"period": 1, "moving_rate": alpha}, workers, STEPS * workers, jitter=0.0
    )
    result = replay(schedule, Distance(), Optimizer(learning_rate=rate), evaluations=STEPS)
    np.testing.assert_allclose(result.loss, elastic(workers, rate, alpha), **ROUNDING)
    for wrong in (elastic(workers + 1, rate, alpha), elastic(workers, rate, 0.16)):  # canaries
        assert abs(result.loss - wrong).max() > 1e-3


@pytest.mark.parametrize("period", [1, 3])
def test_local_sgd_has_its_closed_form(period: int) -> None:
    """With a quadratic loss, the mean of all models is that of one process, for any period."""
    rate = 0.3
    schedule = recorded("local_sgd", {"period": period}, WORKERS, STEPS * WORKERS, jitter=0.0)
    result = replay(schedule, Distance(), Optimizer(learning_rate=rate), evaluations=STEPS)
    away = (1.0 - rate) ** np.arange(STEPS + 1)
    np.testing.assert_allclose(result.loss, 1.0 + 1.5 * away**2, **ROUNDING)


def diloco_by_hand(
    period: int, rate: float, outer: float, momentum: float, local_weight: float = 0.0
) -> Floats:
    """Loss of the mean model of a quadratic loss after each step of all workers: the
    pseudo-gradient is that of any worker, as all of them come to the same point. With a
    ``local_weight`` outer parameters are merged a step later."""
    away, outer_away, velocity, late = 1.0, 1.0, 0.0, local_weight > 0.0
    result = [1.0]
    for step in range(1, STEPS + 1):
        if step > period and (step - 1) % period == late:
            away = local_weight * away + (1.0 - local_weight) * outer_away
        away *= 1.0 - rate
        result.append(away)
        if step % period == 0:
            gradient = outer_away - away
            velocity = momentum * velocity + gradient
            outer_away -= outer * (gradient + momentum * velocity)
    return 1.0 + 1.5 * np.array(result) ** 2


@pytest.mark.parametrize("late", [0.0, 0.25])
@pytest.mark.parametrize("outer", [(1.0, 0.0), (0.7, 0.0), (0.7, 0.9), (1.0, 0.5)])
@pytest.mark.parametrize("period", [2, 3])
def test_diloco_applies_its_outer_optimizer(
    period: int, outer: tuple[float, float], late: float
) -> None:
    """SGD with Nesterov momentum, as in PyTorch, on the mean of the workers' changes."""
    rate = 0.1
    names = ("outer_learning_rate", "outer_momentum")
    options: dict[str, Any] = {"period": period, **dict(zip(names, outer, strict=True))}
    if late:
        options |= {"overlap_steps": 1, "local_weight": late}
    schedule = recorded("diloco", options, WORKERS, STEPS * WORKERS, jitter=0.0)
    result = replay(schedule, Distance(), Optimizer(learning_rate=rate), evaluations=STEPS)
    expected = diloco_by_hand(period, rate, *outer, late)
    steps = np.arange(STEPS + 1)
    # if merges are late, some models are merged when the last gradient of a step is applied
    seen = (steps <= period) | (steps % period != 1) if late else steps >= 0
    np.testing.assert_allclose(result.loss[seen], expected[seen], **ROUNDING)
    wrong = diloco_by_hand(period, rate, outer[0] * 0.9, outer[1], late)  # the canary
    assert abs(result.loss - wrong).max() > 1e-4


# -- memory ------------------------------------------------------------------------------------


PARAMETERS = 50_000


def peak_vectors(schedule: Schedule) -> float:
    """The peak memory of a replay, in vectors of all parameters."""
    task = Distance(PARAMETERS)
    tracemalloc.start()
    try:
        replay(schedule, task, Optimizer(learning_rate=0.1), evaluations=1)
        return tracemalloc.get_traced_memory()[1] / (8 * PARAMETERS)
    finally:
        tracemalloc.stop()


def oldest(schedule: Schedule) -> int:
    """The most versions by which a mixed-in model is behind its current version."""
    written: dict[tuple[int, int], int] = {}
    most = 0
    everything = range(len(schedule.header.slices))
    columns = (schedule.event, schedule.model, schedule.other, schedule.slice)
    versions = (schedule.version, schedule.other_version)
    for event, model, other, part, version, mixed in zip(*columns, *versions, strict=True):
        for k in everything if part == WHOLE else (part,):
            if event == Event.MIX:
                most = max(most, written.get((other, k), 0) - mixed)
            if event in (Event.MIX, Event.APPLY):
                written[model, k] = version
    return int(most)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("arch", "options"),
    thinned(
        [
            ("ps", {"sync": "asp", "servers": 2}),
            ("easgd", {"period": 2, "servers": 2}),
            ("gosgd", {"probability": 0.5}),
            ("ad_psgd", {}),
            ("d_psgd", {}),
            ("local_sgd", {"period": 2}),
        ],
        3,
    ),
)
def test_memory_is_bounded_by_staleness(
    arch: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not grow with the number of updates: only those versions of a model are kept that
    are still to be mixed in, at most as many as the oldest of them lags."""
    monkeypatch.setattr(module, "_ROWS", 64)
    short, long = (
        recorded(arch, options, WORKERS, updates, link_bytes_per_s=100.0, slow=2.0)
        for updates in (100, 600)
    )
    few, many = peak_vectors(short), peak_vectors(long)
    models = WORKERS + 1
    assert many < few + models
    assert many < 3 * models + models * oldest(long)
    assert few > models  # something is measured


@pytest.mark.slow
def test_canary_old_versions_take_memory() -> None:
    """If models travel for longer, more versions are kept."""
    slow, fast = (
        recorded("gosgd", {"probability": 0.5}, WORKERS, 200, link_bytes_per_s=b)
        for b in (1.0, 3000.0)
    )
    assert oldest(slow) > oldest(fast) + 10
    assert peak_vectors(slow) > peak_vectors(fast) + 3


@pytest.mark.slow
def test_20_000_updates_of_8_workers_are_quick_beside_their_gradients() -> None:
    """The replay with its recording takes at most four times as long as its gradients."""
    pytest.importorskip("sklearn")
    task, rng = make_task("digits"), np.random.default_rng(0)
    parameters = task.initial(0)
    batches = rng.integers(task.samples, size=(20_000, BATCH))
    begin = time.thread_time()
    for indices in batches:
        _, gradient = task.gradient(parameters, indices)
        parameters = parameters - 0.01 * gradient
    alone_s = time.thread_time() - begin
    begin = time.thread_time()
    schedule = recorded("ps", {"sync": "asp"}, 8, 20_000, batch_size=BATCH)
    result = replay(schedule, task, Optimizer(learning_rate=0.01))
    assert time.thread_time() - begin < 4.0 * alone_s
    assert result.updates[-1] == 20_000
    assert result.accuracy[-1] > 0.95
