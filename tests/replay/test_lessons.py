"""Effects of workers, staleness, momentum and exchanges on accuracy, on recorded schedules.

The settings are those of docs/tutorial/which-algorithm.md. Each seed draws the compute times of the
job, the initial parameters and the sample order. Differences between two jobs are taken per seed
and count as significant from three standard errors up."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import pytest

from perfmodel.replay.curve import Curve
from perfmodel.replay.data import mixture
from perfmodel.replay.optimizer import Optimizer
from perfmodel.replay.replay import replay
from perfmodel.replay.tasks import TrainingTask, make_task, network_task
from perfmodel.results.schedule import Schedule
from tests.replay.recorded import recorded

pytestmark = [pytest.mark.slow, pytest.mark.family("lessons")]

SEEDS = 8
GRADIENTS, BATCH = 1250, 16
"""Five epochs of 4000 samples."""

MOMENTUM = Optimizer(learning_rate=0.02, momentum=0.9, scaling="linear")
STEEP = replace(MOMENTUM, learning_rate=0.05)
SEEN = 3.0
"""Standard errors."""


class Kind(NamedTuple):
    """An architecture, its options as pairs, and the job's other arguments."""

    arch: str
    options: tuple[tuple[str, Any], ...] = ()
    job: tuple[tuple[str, Any], ...] = ()


BSP, ASP, AD_PSGD = Kind("ps", (("sync", "bsp"),)), Kind("ps", (("sync", "asp"),)), Kind("ad_psgd")


def ssp(bound: float) -> Kind:
    return Kind("ps", (("sync", "ssp"), ("staleness_bound", bound)))


@cache
def task(name: str) -> TrainingTask:
    if name == "hard":
        return network_task(name, mixture(clusters=6, distance=1.0), hidden=32)
    return make_task(name)


@cache
def schedule(kind: Kind, workers: int, gradients: int, seed: int) -> Schedule:
    options, job = dict(kind.options), dict(kind.job)
    return recorded(kind.arch, options, workers, gradients, batch_size=BATCH, seed=seed, **job)


@cache
def curves(
    name: str,
    kind: Kind,
    workers: int,
    optimizer: Optimizer,
    gradients: int = GRADIENTS,
    seeds: int = SEEDS,
) -> tuple[Curve, ...]:
    """One curve per seed."""
    return tuple(
        replay(
            schedule(kind, workers, gradients, seed), task(name), optimizer, seed, evaluations=16
        )
        for seed in range(seeds)
    )


def diverged(found: tuple[Curve, ...]) -> int:
    return sum(curve.divergence is not None for curve in found)


def late(found: tuple[Curve, ...], column: str = "accuracy") -> np.ndarray[Any, Any]:
    """Mean over the second half of the samples, for each seed."""
    assert not diverged(found)
    return np.array([getattr(curve, column)[-8:].mean() for curve in found])


class Difference(NamedTuple):
    """Mean over seeds of the accuracy lost or the loss added, and its standard error."""

    mean: float
    error: float

    @property
    def is_seen(self) -> bool:
        return self.mean > SEEN * self.error


def lost(better: tuple[Curve, ...], worse: tuple[Curve, ...]) -> Difference:
    return _difference(late(better) - late(worse))


def added(less: tuple[Curve, ...], more: tuple[Curve, ...]) -> Difference:
    return _difference(late(more, "loss") - late(less, "loss"))


def _difference(each: np.ndarray[Any, Any]) -> Difference:
    return Difference(float(each.mean()), float(each.std(ddof=1)) / math.sqrt(len(each)))


# -- workers -----------------------------------------------------------------------------------


def steep(kind: Kind, workers: int) -> tuple[Curve, ...]:
    return curves("mixture-softmax", kind, workers, STEEP)


def test_asynchronous_workers_lose_accuracy_increasing_with_their_number() -> None:
    losses = [lost(steep(ASP, 1), steep(ASP, workers)) for workers in (4, 8, 16)]
    assert losses[0].mean < losses[1].mean < losses[2].mean
    assert losses[2].is_seen
    assert lost(steep(ASP, 4), steep(ASP, 16)).is_seen


def test_synchronous_workers_lose_little() -> None:
    for workers in (4, 8, 16):
        fresh = lost(steep(BSP, 1), steep(BSP, workers))
        assert fresh.mean + SEEN * fresh.error < 0.01
        assert not fresh.is_seen
    assert lost(steep(BSP, 16), steep(ASP, 16)).is_seen


def test_canary_one_worker_loses_nothing_against_itself() -> None:
    assert lost(steep(BSP, 1), steep(ASP, 1)) == pytest.approx((0.0, 0.0), abs=1e-12)
    assert not lost(steep(ASP, 16), steep(ASP, 1)).is_seen


def test_a_staleness_bound_lies_between_synchronous_and_asynchronous() -> None:
    """Measured by the loss, whose differences are clearer. A bound of 0 is not BSP: its gradients
    use the same parameters but are applied one by one, and momentum advances in between."""
    bsp, none, one, all_ = (steep(kind, 16) for kind in (BSP, ssp(0.0), ssp(1.0), ASP))
    for less, more in ((bsp, one), (none, one), (one, all_)):
        assert added(less, more).is_seen
    assert lost(bsp, one).is_seen


def test_larger_batches_lose_at_equal_epochs() -> None:
    """Whether the learning rate grows with the batch or stays constant, accuracy is lost."""
    for optimizer in (MOMENTUM, replace(MOMENTUM, scaling="none")):
        few, many = (curves("mixture", BSP, workers, optimizer) for workers in (1, 64))
        assert lost(few, many).is_seen
        some = curves("mixture", BSP, 16, optimizer)
        assert lost(few, some).mean < lost(few, many).mean


# -- momentum ----------------------------------------------------------------------------------


def asp(workers: int, optimizer: Optimizer = MOMENTUM) -> tuple[Curve, ...]:
    return curves("mixture", ASP, workers, optimizer)


def test_asp_with_momentum_degrades_and_diverges() -> None:
    """A few workers learn as well as one, more learn less, and many diverge."""
    assert [diverged(asp(workers)) for workers in (4, 8, 14, 32)] == [0, 0, 0, SEEDS]
    assert added(asp(4), asp(14)).is_seen
    assert not added(asp(1), asp(4)).is_seen
    assert diverged(curves("mixture", BSP, 32, MOMENTUM)) == 0


@pytest.mark.parametrize(
    "optimizer",
    [
        replace(MOMENTUM, momentum=0.0),
        replace(MOMENTUM, momentum=0.0, learning_rate=0.1),
        replace(MOMENTUM, by_staleness=True),
        replace(MOMENTUM, momentum_at="worker"),
    ],
    ids=["without momentum", "larger rate", "divided by staleness", "momentum at the worker"],
)
def test_asp_does_not_degrade_without_momentum_at_the_server(optimizer: Optimizer) -> None:
    for workers in (16, 32):
        assert diverged(asp(workers, optimizer)) == 0


def test_canary_staleness_diverges_without_momentum_at_a_large_learning_rate() -> None:
    """With a learning rate whose steps are as long as with momentum in the long run."""
    large = replace(MOMENTUM, momentum=0.0, learning_rate=0.02 / (1.0 - 0.9))
    assert diverged(asp(8, large)) == 0
    assert diverged(asp(32, large)) == SEEDS


# -- exchanges ---------------------------------------------------------------------------------

OWN = replace(STEEP, scaling="none")


def hard(kind: Kind) -> tuple[Curve, ...]:
    return curves("hard", kind, 8, OWN, 4 * GRADIENTS, seeds=4)


def exchanging(arch: str, period: int) -> Kind:
    if arch == "gosgd":
        return Kind(arch, (("probability", 1.0 / period),))
    return Kind(arch, (("period", period),))


def test_easgd_and_gosgd_lose_as_the_period_grows() -> None:
    """Over 20 epochs; the mean of models that are hardly ever exchanged learns little."""
    for arch in ("easgd", "gosgd"):
        often, seldom = (hard(exchanging(arch, period)) for period in (4, 256))
        assert lost(often, seldom).is_seen
        assert lost(hard(exchanging(arch, 64)), seldom).is_seen
    easgd, gosgd, local = (hard(exchanging(a, 256)) for a in ("easgd", "gosgd", "local_sgd"))
    assert lost(gosgd, easgd).is_seen
    assert not lost(gosgd, local).is_seen


def test_easgd_and_gosgd_lose_the_most() -> None:
    """At the learning rate of eight batches."""

    def found(arch: str, period: int) -> tuple[Curve, ...]:
        return curves("mixture", exchanging(arch, period), 8, MOMENTUM)

    bsp = curves("mixture", BSP, 8, MOMENTUM)
    assert not lost(bsp, found("local_sgd", 16)).is_seen
    for arch in ("easgd", "gosgd"):
        assert diverged(found(arch, 1)) == 0
        assert added(bsp, found(arch, 4)).is_seen
        assert diverged(found(arch, 64)) == SEEDS
    assert diverged(found("local_sgd", 64)) == 0


def test_ad_psgd_loses_less_than_asp_at_equal_samples() -> None:
    """With momentum; without it there is no visible difference."""
    assert lost(steep(AD_PSGD, 8), steep(ASP, 8)).is_seen
    plain = replace(STEEP, momentum=0.0, learning_rate=0.1)
    one, other = (curves("mixture-softmax", kind, 8, plain) for kind in (ASP, AD_PSGD))
    assert not lost(one, other).is_seen
    assert not lost(other, one).is_seen


# -- seconds -----------------------------------------------------------------------------------

TARGET = 0.95


def seconds(kind: Kind, workers: int, optimizer: Optimizer = MOMENTUM) -> np.ndarray[Any, Any]:
    """Predicted seconds to the target, for each seed; infinite if it is not reached."""
    times = [curve.time_to(TARGET) for curve in curves("mixture", kind, workers, optimizer)]
    return np.array([math.inf if time is None else time for time in times])


@pytest.mark.parametrize(
    "job",
    [{"slow": 4.0}, {"link_bytes_per_s": 30.0}, {"jitter": 0.5}],
    ids=["slow worker", "slow links", "uneven steps"],
)
def test_asp_reaches_the_target_first(job: dict[str, float]) -> None:
    pairs = tuple(job.items())
    all_, each = (seconds(kind._replace(job=pairs), 4) for kind in (BSP, ASP))
    assert np.isfinite(each).all()
    assert _difference(all_ - each).is_seen


def test_asp_never_reaches_the_target() -> None:
    assert np.isfinite(seconds(BSP, 32)).all()
    assert np.isinf(seconds(ASP, 32)).all()
    plain = replace(MOMENTUM, momentum=0.0, learning_rate=0.1)
    assert np.isfinite(seconds(ASP, 32, plain)).all()
