"""Uncertainty of fitted values: how it is validated, and its effect on intervals."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import numpy as np
import pytest

from perfmodel import InputError, Job, Workload, make_job, predict
from perfmodel.base.uncertainty import WIDTH
from perfmodel.inputs.calibration import Calibration, scaled, value_at
from perfmodel.predicting.gains import gain
from tests.jobs import cluster, workload

replace = msgspec.structs.replace
ONE = {"parameters": ("nic.bandwidth_bytes_per_s",), "covariance": ((0.04,),)}


def ring(workers: int = 4, work: Workload | None = None, **known: Any) -> Job:
    """Four seconds of computing, then a ring of 12 bytes without overlap."""
    made = work or workload([1.0], [3.0], [12.0], batch_size=4)
    fitted = Calibration(**known) if known else None
    where = replace(cluster(1.0), calibration=fitted)
    options = {"bucketing": "one"}
    return make_job(
        workload=made, cluster=where, workers=workers, arch="allreduce", options=options
    )


def width(job: Job) -> float:
    """Standard deviation that the step's interval corresponds to."""
    low, high = predict(job).interval.iteration_s  # type: ignore[union-attr]
    return math.log(high / low) / 2.0 / WIDTH


# -- fields ----------------------------------------------------------------------------------------


def test_a_value_is_found_and_scaled_by_path() -> None:
    where = cluster(8.0, 0.25)
    assert value_at(where, "nic.latency_s") == 0.25
    assert scaled(where, "nic.latency_s", 2.0) == cluster(8.0, 0.5)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"parameters": ("nic.latency",), "covariance": ((1.0,),)}, "did you mean 'latency_s'"),
        ({"parameters": ("name",), "covariance": ((1.0,),)}, "'name' is not a number"),
        ({"parameters": ("nic",), "covariance": ((1.0,),)}, "'nic' is not a number"),
        ({"parameters": ("collectives.0.ranks",), "covariance": ((1.0,),)}, "there is no"),
        ({"parameters": ("nodes",), "covariance": ()}, "must have 1 rows and columns"),
        ({"parameters": ("nic.latency_s",) * 2, "covariance": ((1.0, 0.0),) * 2}, "only once"),
        (ONE | {"covariance": ((-1.0,),)}, "negative variances"),
        (ONE | {"covariance": ((math.nan,),)}, "expected a finite number"),
        (ONE | {"covariance": ((1e300,),)}, r"covariance\[0\]\[0\]: must be at most 1e\+06"),
        (ONE | {"covariance": ((-1e300,),)}, r"covariance\[0\]\[0\]: must be at least -1e\+06"),
        ({"covariance": ((1.0, 2.0),)}, "must have 0 rows and columns"),
        (ONE | {"spread": -1.0}, "spread"),
        (ONE | {"spread": 1e9}, "spread: must be at most 10, got 1e\\+09"),
        (ONE | {"computing_spread": 500.0}, "computing_spread: must be at most 10, got 500"),
        (ONE | {"growth": {"workers": 1e8}}, "growth.workers: must be at most 10"),
        (ONE | {"rows": -3}, "rows: must be at least 0, got -3"),
        (ONE | {"rows": 10**30}, "rows: must be at most"),
        (ONE | {"ranges": {"worker": (1.0, 2.0)}}, "did you mean 'workers'"),
        (ONE | {"ranges": {"workers": (2.0, 1.0)}}, "smallest value first"),
        (ONE | {"growth": {"nodes": math.inf}}, "growth.nodes"),
    ],
)
def test_a_wrong_calibration_is_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        ring(**given)


def test_a_workload_addresses_values_of_all_its_layers() -> None:
    work = workload([1.0, 2.0], [3.0, 4.0], [12.0, 4.0])
    slower = work.scaled("compute_s", 2.0)
    assert slower.compute_s == 2.0 * work.compute_s
    assert [layer.backward_s for layer in slower.layers] == [6.0, 8.0]
    larger = work.scaled("gradient_bytes", 3.0)
    assert larger.gradient_bytes == 48.0
    assert [layer.tensor_bytes for layer in larger.layers] == [(36.0,), (12.0,)]
    with pytest.raises(InputError, match="did you mean 'forward_s'"):
        replace(work, calibration=Calibration(parameters=("forwards",), covariance=((1.0,),)))


@pytest.mark.parametrize("arch", ["allreduce", "ssp"])
def test_the_largest_uncertainty_gives_a_finite_interval(arch: str) -> None:
    """A factor of 1e12 each way: with these, 1.645 standard deviations are more."""
    widest = Calibration(
        parameters=("nic.bandwidth_bytes_per_s",),
        covariance=((1e6,),),
        spread=10.0,
        computing_spread=10.0,
        ranges={"workers": (1e9, 1e9), "bandwidth_bytes_per_s": (1e9, 1e9)},
        growth={"workers": 10.0, "bandwidth_bytes_per_s": 10.0},
        rows=1,
    )
    where = replace(cluster(1.0), calibration=widest)
    work = replace(workload([1.0], [3.0], [12.0]), calibration=Calibration(spread=10.0))
    job = make_job(workload=work, cluster=where, workers=4, arch=arch)
    found = predict(job, fidelity="coarse")
    assert found.interval is not None
    low_s, high_s = found.interval.iteration_s
    assert (low_s, high_s) == pytest.approx((found.iteration_s / 1e12, found.iteration_s * 1e12))
    assert found.interval.idle_fraction == (0.0, pytest.approx(1.0))
    low, high = gain(job, found, job, found).interval
    assert 1e-12 <= low <= 1.0 <= high <= 1e12


# -- intervals -------------------------------------------------------------------------------------


def test_the_covariance_is_propagated_by_the_step_time_sensitivity() -> None:
    """Of 22 s the ring takes 18, in inverse proportion to the bandwidth."""
    job = ring(**ONE)
    found = predict(job)
    assert found.iteration_s == pytest.approx(22.0)
    assert found.interval is not None
    assert found.interval.parts.calibration == pytest.approx(0.2 * 18.0 / 22.0, rel=0.01)
    assert "uncertainty of the fitted values" in found.interval.text


def test_the_covariance_of_a_workload_adds_to_it() -> None:
    """Computing is 4 of 22 s."""
    known = Calibration(parameters=("compute_s",), covariance=((0.25,),))
    work = replace(workload([1.0], [3.0], [12.0], batch_size=4), calibration=known)
    found = predict(ring(work=work, **ONE)).interval
    assert found is not None
    both = math.hypot(0.2 * 18.0 / 22.0, 0.5 * 4.0 / 22.0)
    assert found.parts.calibration == pytest.approx(both, rel=0.01)


def test_errors_of_correlated_values_add_up_or_cancel() -> None:
    names = ("nic.bandwidth_bytes_per_s", "nic.efficiency")
    sure = ((0.04, -0.04), (-0.04, 0.04))  # only their product is known
    assert predict(ring(parameters=names, covariance=sure)).interval.parts.calibration < 1e-6  # type: ignore[union-attr]
    loose = ((0.04, 0.04), (0.04, 0.04))
    found = predict(ring(parameters=names, covariance=loose)).interval
    assert found is not None
    assert found.parts.calibration == pytest.approx(0.4 * 18.0 / 22.0, rel=0.01)


def test_held_out_steps_replace_errors_of_other_runs() -> None:
    found = predict(ring(spread=0.07, rows=12)).interval
    assert found is not None
    assert found.parts.model == pytest.approx(0.07)
    assert "held-out errors of the 12 fitted runs" in found.text
    assert found.iteration_s[1] / 22.0 == pytest.approx(22.0 / found.iteration_s[0])


def test_each_doubling_beyond_the_ranges_widens_the_interval() -> None:
    known = {"ranges": {"workers": (2.0, 4.0), "nodes": (2.0, 4.0)}, "growth": {"workers": 0.1}}
    assert width(ring(4, **known)) < width(ring(8, **known)) < width(ring(16, **known))
    found = predict(ring(16, **known)).interval
    assert found is not None
    assert found.parts.extrapolation == pytest.approx(0.2)
    assert "outside the range of the fitted runs: workers, nodes" in found.text
    both = known | {"growth": {"workers": 0.1, "nodes": 0.2}}
    assert predict(ring(16, **both)).interval.parts.extrapolation == pytest.approx(  # type: ignore[union-attr]
        math.hypot(0.2, 0.4)
    )
    fewer = known | {"ranges": {"workers": (16.0, 32.0)}}
    assert predict(ring(4, **fewer)).interval.parts.extrapolation == pytest.approx(0.2)  # type: ignore[union-attr]


def test_the_idleness_interval_follows_from_the_step() -> None:
    """A step of 22 s computes for 4 of them; the fraction grows with the step."""
    found = predict(ring(spread=0.1))
    assert found.interval is not None
    low, high = found.interval.idle_fraction
    assert low < found.idle_fraction.mean < high
    steps = np.array(found.interval.iteration_s)
    assert (low, high) == pytest.approx(tuple(1.0 - 4.0 / steps))


@pytest.mark.slow
def test_staleness_has_an_interval_only_without_a_bound() -> None:
    known = {"workload": workload([1.0], [3.0], [12.0]), "cluster": cluster(8.0), "workers": 4}
    ratios = []
    for arch in ("asp", "ssp"):
        found = predict(make_job(arch=arch, **known)).interval
        assert found is not None
        assert found.staleness is not None
        ratios.append(found.staleness[1] / found.staleness[0])
    assert 1.0 < ratios[0] < ratios[1]
    assert predict(ring()).interval.staleness == (0.0, 0.0)  # type: ignore[union-attr]
