"""Staleness counts the updates of others: its distribution, by hand and by simulation."""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel import Jitter, predict
from perfmodel.inputs.job import Job
from perfmodel.predicting.coarse import _spread_out
from perfmodel.results.prediction import Staleness
from tests.jobs import cluster, job, workload


def free(workers: int, cv: float) -> Job:
    """Workers that compute for 3 s on average and exchange in no time."""
    work = workload([1.0], [2.0], [1.0])
    jitter = Jitter(cv, "gamma")
    return job(work, cluster(1e12), workers, "asp", jitter=jitter, start="staggered")


def staleness(asked: Job, route: str) -> Staleness:
    fidelity = {"fine": "fine", "coarse": "coarse"}[route]
    found = predict(asked, fidelity=fidelity, rel_ci=0.005).staleness  # type: ignore[arg-type]
    assert found is not None
    return found


def moments(found: Staleness) -> tuple[float, float]:
    """Mean and variance of a histogram."""
    values = np.array([int(value) for value in found.histogram])
    shares = np.array(list(found.histogram.values()))
    mean = float(values @ shares / shares.sum())
    return mean, float(shares @ (values - mean) ** 2 / shares.sum())


@pytest.mark.sampled(3)
@pytest.mark.parametrize("workers", [2, 5, 9])
@pytest.mark.parametrize("route", ["fine", "coarse"])
def test_exponential_workers_make_a_geometric_count(workers: int, route: str) -> None:
    """The next update is a worker's own with probability 1 / N, whatever came before. So k others
    come first with probability (1 - 1/N)^k / N: m = N - 1 on average, with variance m + m^2."""
    found = staleness(free(workers, 1.0), route)
    m = workers - 1.0
    mean, variance = moments(found)
    assert mean == pytest.approx(m, rel=0.05)
    assert variance == pytest.approx(m + m**2, rel=0.08)
    for value in (0, 1, workers, 2 * workers, 4 * workers):
        below = sum(share for k, share in found.histogram.items() if int(k) <= value)
        assert below == pytest.approx(1.0 - (1.0 - 1.0 / workers) ** (value + 1), abs=0.04)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("workers", "cv"), [(3, 0.5), (5, 0.5), (9, 0.3)])
def test_the_spread_is_that_of_the_simulation(workers: int, cv: float) -> None:
    """Half of the variance would be missing without the chance in the others' updates, (2, 0.5), or
    without that in the worker's own interval."""
    asked = free(workers, cv)
    (_, expected), (_, found) = (moments(staleness(asked, route)) for route in ("fine", "coarse"))
    assert found == pytest.approx(expected, rel=0.2)


@pytest.mark.parametrize("mean", [2.0, 7.0])
@pytest.mark.parametrize("variance", [1.0, 4.0])
def test_numbers_around_a_mean_have_its_variance(mean: float, variance: float) -> None:
    """Rounding adds 1/12, the variance of a uniform error."""
    shares = _spread_out(mean, variance)
    found = sum(value * share for value, share in shares.items())
    assert sum(shares.values()) == pytest.approx(1.0, abs=1e-5)
    assert found == pytest.approx(mean, rel=0.02)
    spread = sum((value - found) ** 2 * share for value, share in shares.items())
    assert spread == pytest.approx(variance + 1.0 / 12.0, rel=0.05)


def test_a_mean_without_variance_lies_between_two_numbers() -> None:
    assert _spread_out(3.0, 0.0) == {3: 1.0}
    assert _spread_out(3.25, 0.0) == pytest.approx({3: 0.75, 4: 0.25})
