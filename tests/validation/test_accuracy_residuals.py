"""Errors of predictions for runs that nothing was fitted to."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

import perfmodel as pm
from benchmarks.accuracy.residuals import PredictedRun, residual_calibration

pytestmark = pytest.mark.slow  # what they compare with is rarely at hand


def run(source: str, off: float, workers: int = 4) -> PredictedRun:
    """A run that took ``off`` times the predicted time."""
    job = pm.make_job(model="alexnet", device="v100", arch="ps", workers=workers)
    answer = pm.predict(job)
    return PredictedRun(source, job, answer, answer.iteration_s * off)


def test_the_spread_is_that_of_the_errors() -> None:
    offs = np.exp(0.1 * np.random.default_rng(0).standard_normal(200))
    found = residual_calibration([run(f"dnn {i % 100}", float(x)) for i, x in enumerate(offs)])
    assert found.spread == pytest.approx(float(np.log(offs).std()), rel=0.05)
    assert found.rows == 200
    assert found.ranges["workers"] == (4.0, 4.0)


def test_fewer_sources_make_wider_spreads() -> None:
    offs = [1.1, 0.9, 1.1, 0.9]
    few = residual_calibration([run("one", off) for off in offs])
    more = residual_calibration([run(str(i), off) for i, off in enumerate(offs)])
    assert few.spread > 2.5 * more.spread > 0.2


def test_every_source_has_the_same_weight() -> None:
    """Whichever of the two sources has more runs."""
    near, far = [1.02, 0.98], [1.3, 0.75]
    spreads = [
        residual_calibration(
            [run("near", off) for off in near * a] + [run("far", off) for off in far * z]
        ).spread
        for a, z in ((1, 1), (10, 1), (1, 10))
    ]
    assert spreads == pytest.approx([spreads[0]] * 3, rel=1e-3)


def test_differences_between_equal_runs_are_not_counted_twice() -> None:
    exact = residual_calibration([run("one", 1.001, n) for n in (2, 4)])
    assert exact.spread < 0.03
    assert exact.ranges["workers"] == (2.0, 4.0)


def test_a_job_with_the_spread_has_that_interval() -> None:
    found = residual_calibration([run(str(i), off) for i, off in enumerate([1.2, 0.85, 1.1])])
    one = run("x", 1.0)
    cluster = msgspec.structs.replace(one.job.cluster, calibration=found)
    answer = pm.predict(msgspec.structs.replace(one.job, cluster=cluster))
    assert answer.interval is not None
    assert answer.interval.parts.model == pytest.approx(found.spread)
    assert answer.interval.parts.extrapolation == 0.0


def test_an_empty_list_of_runs_is_refused() -> None:
    with pytest.raises(pm.InputError, match="needs at least one measured run"):
        residual_calibration([])
