"""Gains and their chances: intervals of ratios by hand, and probabilities by draws."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import numpy as np
import pytest

from perfmodel import Job, Source, make_job, predict
from perfmodel.base.uncertainty import WIDTH, Uncertainty
from perfmodel.predicting.gains import Gain, chances, gain, probability_within
from perfmodel.results.prediction import Prediction
from tests.jobs import cluster, workload

WORK = workload([1.0], [1.0], [1.0])


def job(kind: Any = "measured", **more: Any) -> Job:
    where = msgspec.structs.replace(cluster(), source=Source(kind, "a test"))
    return make_job(**{"workload": WORK, "cluster": where, "workers": 2, "arch": "ring"} | more)


def prediction(spread: float, runs: float, times: float = 1.0) -> Prediction:
    """A step of 3 s / ``times``: known to ``spread`` in all, of which ``runs`` from run to run."""
    found = predict(job(), fidelity="coarse")
    assert found.interval is not None
    step_s = found.iteration_s / times
    factor = math.exp(WIDTH * spread)
    interval = msgspec.structs.replace(
        found.interval,
        iteration_s=(step_s / factor, step_s * factor),
        parts=Uncertainty(measurement=runs),
    )
    return msgspec.structs.replace(
        found,
        interval=interval,
        throughput_samples_per_s=found.throughput_samples_per_s * times,
    )


def ratio(kind: str, first: tuple[float, float], second: tuple[float, float], r: float) -> Gain:
    return gain(job(kind), prediction(*first), job(kind), prediction(*second, r))


@pytest.mark.parametrize(("kind", "shared"), [("measured", 0.0), ("published", 0.5)])
def test_errors_in_common_cancel_in_a_ratio(kind: str, shared: float) -> None:
    """Of 5 % and 10 % in all, 3 % and 6 % are from run to run, and 4 % and 8 % the rest. On nominal
    links half of the rest's variance is common to both."""
    found = ratio(kind, (0.05, 0.03), (0.1, 0.06), 1.2)
    spread = math.sqrt(0.03**2 + 0.06**2 + 0.04**2 + 0.08**2 - 2.0 * shared * 0.04 * 0.08)
    assert found.ratio == pytest.approx(1.2)
    assert found.interval == pytest.approx(
        (1.2 * math.exp(-WIDTH * spread), 1.2 * math.exp(WIDTH * spread))
    )
    draws = np.random.default_rng(1).normal(math.log(1.2), spread, 100_000)
    assert found.probability == pytest.approx(float(np.mean(draws > 0.0)), abs=0.005)
    low = ratio(kind, (0.05, 0.03), (0.1, 0.06), 1 / 1.2)
    assert low.probability == pytest.approx(1.0 - found.probability)
    assert found.supported is (math.exp(WIDTH * spread) < 1.2)


def test_a_certain_gain_is_certain() -> None:
    for times, expected in ((1.1, 1.0), (1.0, 0.5), (0.9, 0.0)):
        found = ratio("measured", (0.0, 0.0), (0.0, 0.0), times)
        assert found.probability == expected
        assert found.interval == pytest.approx((times, times))


def test_a_measured_step_is_within_its_interval_as_often_as_stated() -> None:
    """95 % are shorter than the upper end, 5 % than the lower one, half than the prediction."""
    found = prediction(0.1, 0.05)
    for times, expected in ((math.exp(WIDTH * 0.1), 0.95), (math.exp(-WIDTH * 0.1), 0.05)):
        assert probability_within(found, times) == pytest.approx(expected)
    assert probability_within(found, 1.0) == pytest.approx(0.5)
    assert probability_within(found, math.exp(0.1)) == pytest.approx(0.8413, abs=1e-4)
    assert (probability_within(found, 0.0), probability_within(found, math.inf)) == (0.0, 1.0)
    sure = prediction(0.0, 0.0)
    assert [probability_within(sure, times) for times in (0.99, 1.0, 1.01)] == [0.0, 1.0, 1.0]


def best_of(kinds: tuple[str, ...], values: tuple[float, ...], spread: float) -> tuple[float, ...]:
    jobs = [job(kind) for kind in kinds]
    return chances(jobs, [prediction(spread, 0.0)] * len(jobs), values)


def test_chances_of_jobs_on_one_cluster_share_errors() -> None:
    """The logarithm of a ratio of 1.1 is 0.0953. Its spread is 0.1 for each of two jobs: together
    0.1414 if independent, and 0.1 if half of the variance is common."""
    for kind, spread in (("measured", math.sqrt(0.02)), ("published", 0.1)):
        first = (1.0 + math.erf(math.log(1.1) / spread / math.sqrt(2.0))) / 2.0
        found = best_of((kind, kind), (1.1, 1.0), 0.1)
        assert found == pytest.approx((first, 1.0 - first), abs=0.01)


def test_chances_on_other_clusters_are_independent() -> None:
    first = (1.0 + math.erf(math.log(1.1) / math.sqrt(0.02) / math.sqrt(2.0))) / 2.0
    found = best_of(("published", "estimated"), (1.1, 1.0), 0.1)
    assert found == pytest.approx((first, 1.0 - first), abs=0.01)


def test_chances_of_three_equal_jobs_are_equal() -> None:
    assert best_of(("measured",) * 3, (1.0, 1.0, 1.0), 0.1) == pytest.approx((1 / 3,) * 3, abs=0.01)


def test_runs_are_never_common() -> None:
    """If all spread is from run to run, nominal links have as independent errors as others."""
    jobs = [job("published")] * 2
    found = chances(jobs, [prediction(0.1, 0.1)] * 2, (1.1, 1.0))
    first = (1.0 + math.erf(math.log(1.1) / math.sqrt(0.02) / math.sqrt(2.0))) / 2.0
    assert found == pytest.approx((first, 1.0 - first), abs=0.01)
