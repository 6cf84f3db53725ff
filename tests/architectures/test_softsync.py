"""Staleness if several gradients make one update (n-softsync).

The oracle is an independent simulation without graphs: workers with one layer on links that take no
time. Zhang, Gupta, Lian, Liu, "Staleness-aware Async-SGD", IJCAI 2016.
"""

from __future__ import annotations

import heapq
import random
from typing import Any

import numpy as np
import pytest

from perfmodel import Jitter, Server, Straggler, predict
from tests.jobs import cluster, job, workload

CASES = [(3, 3, 2 / 3), (5, 4, 1.0), (4, 2, 1.5)]
"""Workers, gradients to an update, and the mean staleness: (N - 1) / c."""

ONE_LAYER = workload([1.0], [1.0], [1.0])
INSTANT = cluster(1e30)


def played(
    step_s: list[float], together: int, steps: int = 4000, *, reads_before: bool = False
) -> float:
    """Mean staleness of workers that compute for the given times and then push.

    A worker reads as soon as its gradient has been taken, with the update that it completes.
    Staleness is the number of updates between the read for a gradient and its own update.
    """
    events = [(seconds, worker) for worker, seconds in enumerate(step_s)]
    heapq.heapify(events)
    read = [0] * len(step_s)
    version = waiting = 0
    seen = []
    for _ in range(steps * len(step_s)):
        now, worker = heapq.heappop(events)
        seen.append(version - read[worker])
        read[worker] = version
        waiting += 1
        if waiting == together:
            version, waiting = version + 1, 0
        if not reads_before:
            read[worker] = version
        heapq.heappush(events, (now + step_s[worker], worker))
    settled = seen[len(seen) // 2 :]
    return sum(settled) / len(settled)


def mean_staleness(workers: int, together: int, fidelity: str, **fields: Any) -> float:
    options = {"sync": "asp", "softsync": together, **fields.pop("options", {})}
    work, where = fields.pop("work", ONE_LAYER), fields.pop("where", INSTANT)
    found = predict(job(work, where, workers, "ps", options, **fields), fidelity=fidelity)
    assert found.staleness is not None
    return found.staleness.mean


@pytest.mark.parametrize(("workers", "together", "expected"), CASES)
def test_both_routes_agree_with_an_independent_simulation(
    workers: int, together: int, expected: float
) -> None:
    assert expected == (workers - 1) / together
    assert played([2.0] * workers, together) == pytest.approx(expected, rel=1e-3)
    assert mean_staleness(workers, together, "fine") == pytest.approx(expected, rel=1e-12)
    assert mean_staleness(workers, together, "coarse") == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(("workers", "together", "expected"), CASES)
def test_canary_a_read_before_the_completed_update_is_noticed(
    workers: int, together: int, expected: float
) -> None:
    """Then the mean is N / c: 1, 1.25 and 2."""
    wrong = played([2.0] * workers, together, reads_before=True)
    assert wrong == pytest.approx(workers / together, rel=1e-3)
    assert mean_staleness(workers, together, "fine") != pytest.approx(wrong, rel=0.05)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("threads", [1, 4])
@pytest.mark.parametrize("options", [{}, {"duplex": True}, {"servers": 2, "duplex": True}])
def test_it_holds_for_any_network_and_any_service(options: dict[str, Any], threads: int) -> None:
    """Also where updates of several threads end at the same instant. Where no period is found,
    windows at both ends of the measurement are cut off, hence the tolerance."""
    work = workload([1.0, 2.0, 1.0], [2.0, 1.0, 1.0], [2.0, 4.0, 1.0])
    where = cluster(4.0, 0.125, server=Server("dedicated", 0.25, 0.125, threads))
    for workers, together, expected in CASES:
        found = mean_staleness(workers, together, "fine", work=work, where=where, options=options)
        assert found == pytest.approx(expected, rel=2e-3)


def test_it_holds_for_unequal_workers() -> None:
    """A worker of half the speed: its own staleness is higher, the mean over gradients is not."""
    for workers, together, expected in CASES:
        slow = {"stragglers": [Straggler(0, 2.0)]}
        assert played([4.0, *[2.0] * (workers - 1)], together) == pytest.approx(expected, rel=1e-3)
        assert mean_staleness(workers, together, "fine", **slow) == pytest.approx(
            expected, rel=1e-12
        )
        assert mean_staleness(workers, together, "coarse", **slow) == pytest.approx(expected)


@pytest.mark.slow
def test_it_holds_for_random_steps() -> None:
    """Windows at both ends of the measurement are cut off, hence the tolerance."""
    random_steps = {"jitter": Jitter(0.3), "start": "staggered"}
    for workers, together, expected in CASES:
        assert mean_staleness(workers, together, "fine", **random_steps) == pytest.approx(
            expected, rel=0.05
        )


def test_the_whole_distribution_agrees_with_the_independent_simulation() -> None:
    """Equal workers in turn: with N = 4 and c = 2 every other gradient is stale by 1, the others
    by 2."""
    options = {"sync": "asp", "softsync": 2}
    for fidelity in ("fine", "coarse"):
        found = predict(job(ONE_LAYER, INSTANT, 4, "ps", options), fidelity=fidelity)
        assert found.staleness is not None
        assert found.staleness.histogram == pytest.approx({"1": 0.5, "2": 0.5})


def test_pulls_do_not_wait_for_the_rest_of_an_update() -> None:
    """The pace equals that of asp, with 1/c as many updates."""
    generator = random.Random(3)
    work = workload(*([generator.uniform(0.5, 3.0) for _ in range(3)] for _ in range(3)))
    where = cluster(2.0, 0.05, update_per_tensor_s=0.2)
    alone = predict(job(work, where, 5, "ps", {"sync": "asp"}))
    several = predict(job(work, where, 5, "ps", {"sync": "asp", "softsync": 3}))
    assert several.iteration_s == pytest.approx(alone.iteration_s, rel=1e-12)
    assert several.updates_per_s == pytest.approx(alone.updates_per_s / 3, rel=1e-12)
    np.testing.assert_allclose(several.idle_fraction.mean, alone.idle_fraction.mean, rtol=1e-12)
