"""The parts of an interval's width, and its ends: every number by hand.

The outcomes are made up: a step of 2 s of which devices wait a quarter, so that a spread s makes an
interval from 2 exp(-1.645 s) to 2 exp(1.645 s).
"""

from __future__ import annotations

import math
from typing import Any

import msgspec
import numpy as np
import pytest

from perfmodel import Handover, IntraNode, Job, Link, NodeOverride, Source, make_job, predict
from perfmodel.inputs.calibration import Calibration
from perfmodel.inputs.cluster import Collective, Piece
from perfmodel.inputs.usual_losses import through_host
from perfmodel.predicting.intervals import (
    Learnt,
    idle_within,
    interval_of,
    learnt_of,
    slow_host_s,
    slow_links_s,
    step_interval,
    uncertainty,
)
from perfmodel.results.outcome import Outcome
from perfmodel.results.prediction import Bottleneck, ErrorBand, Idle, Staleness, Utilisation
from tests.jobs import cluster, workload

WORK = workload([0.5], [0.5], [1.0], batch_size=4)
LEARNT = Learnt(always=0.04, waiting=0.12, below=0.5, runs=10, workers=8)
Z95, Z90 = 1.959964, 1.644854
"""Half-widths of the central 95 % and 90 % of a normal distribution, in standard deviations."""


def job(workers: int = 4, arch: str = "ring", where: Any = None, **more: Any) -> Job:
    given = {"workload": WORK, "cluster": where or cluster()} | more
    return make_job(workers=workers, arch=arch, **given)


def outcome(workers: int = 4, idle: float = 0.25, **more: Any) -> Outcome:
    """A step of 2 s."""
    given: dict[str, Any] = {
        "fidelity": "fine",
        "workers": workers,
        "iterations_per_s": workers / 2.0,
        "compute_s": 2.0 * (1.0 - idle),
        "exposed_communication_s": 2.0 * idle,
        "idle_fraction": Idle(mean=idle, per_worker=(idle,) * workers, by_cause={"network": idle}),
        "causes_by_worker": ({"network": idle},) * workers,
        "staleness": None,
        "updates_per_s": 0.5,
        "utilisation": Utilisation(workers={}, servers={}, links={}),
        "bottleneck": Bottleneck("compute", 1.0, "", {}, ()),
    }
    return Outcome(**given | more)


# -- measurement -----------------------------------------------------------------------------------


def test_equal_runs_differ_by_one_percent() -> None:
    assert uncertainty(job(), outcome(), LEARNT).measurement == pytest.approx(0.01)


def test_a_confidence_interval_is_two_standard_errors_wide_on_each_side() -> None:
    """A half-width of 3 % at 95 % is a standard error of 1.53 %: with the 1 % of runs, 1.83 %."""
    found = uncertainty(job(), outcome(throughput_ci_fraction=0.03), LEARNT).measurement
    assert found == pytest.approx(math.hypot(0.01, 0.03 / Z95), rel=1e-4)
    assert found == pytest.approx(0.01828, abs=1e-5)


def test_runs_of_few_iterations_vary_by_chance_as_well() -> None:
    """3 % between runs of 50 iterations, 1.96 % / 1.96 of the mean, and 1 % between equal runs."""
    short = outcome(run_spread=0.03, throughput_ci_fraction=0.0196, run_iterations=50)
    found = uncertainty(job(), short, LEARNT).measurement
    assert found == pytest.approx(math.sqrt(0.03**2 + 0.01**2 + 0.01**2), rel=1e-6)


def test_short_runs_are_simulated_apart_from_the_long_run() -> None:
    """Ten iterations of two workers that vary by 30 % and wait for each other: the logarithm of
    their mean varies by 0.3 / sqrt(10) of one, and a little less as the slowest varies less."""
    work = workload([1.0], [2.0], [1.0])
    asked = job(2, workload=work, where=cluster(1e12), jitter=0.3)
    long, short = predict(asked, rel_ci=0.01), predict(asked, rel_ci=0.01, run_iterations=10)
    assert short.iteration_s == long.iteration_s
    assert long.interval is not None
    assert short.interval is not None
    assert (long.interval.iterations, short.interval.iterations) == (None, 10)
    assert long.interval.parts.measurement < 0.02
    slowest = np.random.default_rng(1).gamma(0.3**-2, 0.3**2, (20_000, 10, 2)).max(axis=2)
    expected = math.hypot(float(np.log(slowest.mean(axis=1)).std()), 0.01)
    assert short.interval.parts.measurement == pytest.approx(expected, rel=0.35)


@pytest.mark.parametrize(("queue_bytes", "expected"), [(None, 0.08), (1e5, 0.05)])
def test_unequal_links_into_a_server_vary(queue_bytes: float | None, expected: float) -> None:
    slow = (NodeOverride(1, nic=Link(0.5)),)
    where = cluster(overrides=slow, queue_bytes=queue_bytes)
    found = uncertainty(job(arch="bsp", where=where), outcome(), LEARNT).measurement
    assert found == pytest.approx(math.hypot(0.01, expected))
    ring = uncertainty(job(where=cluster(overrides=slow)), outcome(), LEARNT)
    assert ring.measurement == pytest.approx(0.01)  # no server
    speed = cluster(overrides=(NodeOverride(1, speed=0.5),))
    equal = uncertainty(job(arch="bsp", where=speed), outcome(), LEARNT)
    assert equal.measurement == pytest.approx(0.01)  # unequal devices on equal links


# -- calibration -----------------------------------------------------------------------------------


def test_estimated_times_count_for_the_time_that_devices_compute() -> None:
    """Within a factor of 1.5 in 9 of 10 cases, for three quarters of the step."""
    rough = msgspec.structs.replace(WORK, error_fraction=0.5)
    found = uncertainty(job(workload=rough), outcome(), LEARNT).calibration
    assert found == pytest.approx(0.75 * math.log(1.5) / Z90, rel=1e-5)


def test_measured_collectives_count_for_the_time_that_devices_wait() -> None:
    """The largest of their errors, a factor of 1.2, for a quarter of the step; not for a single
    worker. Beside estimated compute times, squares add."""
    measured = [
        Collective(
            operation=kind, pieces=(Piece(0.1, 0.01),), ranks=(2, 8), bytes=(1.0, 1e9),
            error_fraction=error,
        )
        for kind, error in (("all_reduce", 0.2), ("all_gather", 0.1))
    ]  # fmt: skip
    where = cluster(collectives=tuple(measured))
    waits = 0.25 * math.log(1.2) / Z90
    assert uncertainty(job(where=where), outcome(), LEARNT).calibration == pytest.approx(waits)
    assert uncertainty(job(1, where=where), outcome(1), LEARNT).calibration == 0.0
    rough = msgspec.structs.replace(WORK, error_fraction=0.5)
    both = uncertainty(job(where=where, workload=rough), outcome(), LEARNT).calibration
    assert both == pytest.approx(math.hypot(waits, 0.75 * math.log(1.5) / Z90), rel=1e-5)


def serial(**more: Any) -> Job:
    """Two workers: 1 s of computing, then 1 byte each way at 1 byte/s. Half of 2 s each."""
    return job(2, options={"overlap": False, "bucketing": "one"}, **more)


def fitted(parameters: tuple[str, ...], covariance: Any, **more: Any) -> Calibration:
    given: dict[str, Any] = {"spread": 0.02, "rows": 12, "ranges": {"workers": (2.0, 4.0)}}
    return Calibration(parameters=parameters, covariance=covariance, **given | more)


def test_fitted_values_count_by_their_elasticity() -> None:
    """The step is half computing, half sending: 10 % of the bandwidth are 5 % of the step."""
    one = fitted(("nic.bandwidth_bytes_per_s",), ((0.01,),))
    found = uncertainty(serial(where=cluster(calibration=one)), outcome(2))
    assert found.calibration == pytest.approx(0.5 * 0.1, rel=0.01)
    assert found.model == pytest.approx(0.02)  # held-out steps, nothing learnt elsewhere
    assert found.extrapolation == 0.0


def test_fitted_values_of_cluster_and_workload_add_as_squares() -> None:
    """A tenth of the bandwidth and a fifth of the compute time, each for half of the step."""
    link = cluster(calibration=fitted(("nic.bandwidth_bytes_per_s",), ((0.01,),)))
    work = msgspec.structs.replace(
        WORK, calibration=fitted(("compute_s",), ((0.04,),), spread=0.03)
    )
    found = uncertainty(serial(where=link, workload=work), outcome(2))
    assert found.calibration == pytest.approx(math.hypot(0.05, 0.1), rel=0.01)
    assert found.model == pytest.approx(math.hypot(0.02, 0.03))


def test_correlated_values_add_or_cancel() -> None:
    """Bandwidth and efficiency, each known to 10 %: their product is known to 20 % or exactly."""
    names = ("nic.bandwidth_bytes_per_s", "nic.efficiency")
    for correlation, expected in ((1.0, 0.5 * 0.2), (0.0, 0.5 * math.hypot(0.1, 0.1)), (-1.0, 0.0)):
        both = fitted(names, ((0.01, correlation * 0.01), (correlation * 0.01, 0.01)))
        found = uncertainty(serial(where=cluster(calibration=both)), outcome(2))
        assert found.calibration == pytest.approx(expected, rel=0.01, abs=1e-6)


def test_values_outside_the_fitted_range_count_by_doubling() -> None:
    """16 workers are two doublings beyond 4; one of the two ranges is left by one doubling."""
    one = fitted(
        (), (), ranges={"workers": (2.0, 4.0), "batch_size": (8.0, 16.0)},
        growth={"workers": 0.03, "batch_size": 0.08},
    )  # fmt: skip
    asked = job(16, where=cluster(calibration=one))
    found = interval_of(asked, outcome(16), 64.0)
    assert found.parts.extrapolation == pytest.approx(math.hypot(2.0 * 0.03, 1.0 * 0.08))
    assert "outside the range of the fitted runs: workers, batch size" in found.text


# -- model and extrapolation -----------------------------------------------------------------------


def test_residuals_grow_with_the_time_that_devices_wait() -> None:
    """0.04 always, and 0.12 for a quarter of the step; half of the former below."""
    above = uncertainty(job(), outcome(), LEARNT)
    below = uncertainty(job(), outcome(), LEARNT, below=True)
    assert above.model == pytest.approx(math.hypot(0.04, 0.25 * 0.12))
    assert below.model == pytest.approx(math.hypot(0.02, 0.25 * 0.12))
    assert uncertainty(job(1), outcome(1), LEARNT).model == 0.0


def test_formulas_add_their_error_against_the_simulation() -> None:
    """9 in 10 within 5 %: a spread of 3 %; unknown: 10 %."""
    still = LEARNT._replace(always=0.0, waiting=0.0)
    for p90, expected in ((0.05, 0.05 / Z90), (None, 0.1)):
        near = outcome(error_band=ErrorBand(None, p90, ""))
        assert uncertainty(job(), near, still).model == pytest.approx(expected, rel=1e-5)


def test_each_doubling_beyond_known_runs_adds_three_percent() -> None:
    for workers, doublings in ((8, 0.0), (16, 1.0), (64, 3.0), (4, 0.0)):
        found = uncertainty(job(workers), outcome(workers), LEARNT).extrapolation
        assert found == pytest.approx(0.03 * doublings)


def test_times_measured_among_several_leave_the_error_in_waiting() -> None:
    among = msgspec.structs.replace(WORK, among_several=True)
    assert learnt_of(job(workload=among)) == learnt_of(job())._replace(always=0.0)


# -- the ends --------------------------------------------------------------------------------------


def test_both_ends_by_hand() -> None:
    """Above, 0.01 of runs and the model's 0.05 = (0.04, 0.03); below (0.02, 0.03)."""
    low, high = step_interval(job(), outcome(), LEARNT)
    assert high == pytest.approx(2.0 * math.exp(Z90 * math.hypot(0.01, 0.05)), rel=1e-6)
    shorter = math.sqrt(0.01**2 + 0.02**2 + 0.03**2)
    assert low == pytest.approx(2.0 * math.exp(-Z90 * shorter), rel=1e-6)


def test_throughput_is_the_inverse_of_the_step() -> None:
    """16 samples per step of 2 s."""
    found = interval_of(job(), outcome(), 8.0)
    low, high = found.iteration_s
    assert found.coverage == 0.9
    assert found.throughput_samples_per_s == pytest.approx((16.0 / high, 16.0 / low))


def test_idleness_follows_from_steps_with_the_same_computing() -> None:
    """1.5 of 2 s compute: of 1.6 to 3 s that leaves 1/16 to 1/2. With a compute time that is known
    to 5 %, both sides widen."""
    assert idle_within(0.25, 2.0, (1.6, 3.0)) == pytest.approx((1.0 - 1.5 / 1.6, 0.5))
    low, high = idle_within(0.25, 2.0, (1.8, 3.0), computing=0.05)
    more = Z90 * 0.05
    assert low == pytest.approx(1.0 - 0.75 * math.exp(math.hypot(math.log(2.0 / 1.8), more)))
    assert high == pytest.approx(1.0 - 0.75 * math.exp(-math.hypot(math.log(1.5), more)))
    assert idle_within(0.25, 2.0, (1.2, 3.0))[0] == 0.0  # not less than nothing


@pytest.mark.parametrize(
    ("options", "spread"),
    [({"sync": "asp"}, 0.02), ({"sync": "ssp", "staleness_bound": 3}, 0.1)],
)
def test_staleness_is_a_count_unless_it_is_bounded(options: dict[str, Any], spread: float) -> None:
    """A mean of 3 updates: known to 2 %, or with a bound to 10 %, beside 3 % between runs."""
    stale = Staleness(mean=3.0, p50=3, p90=3, max=3, per_worker=(3.0,) * 4, histogram={"3": 1.0})
    found = interval_of(
        job(arch="ps", options=options), outcome(staleness=stale, staleness_spread=0.03), 8.0
    )
    times = math.exp(Z90 * math.hypot(0.03, spread))
    assert found.staleness == pytest.approx((3.0 / times, 3.0 * times), rel=1e-6)


# -- links that are slower than usual --------------------------------------------------------------


def nominal(**more: Any) -> Any:
    given = {"handover": Handover(0.0, 1e-15), "device_spread": 1e-9} | more
    return msgspec.structs.replace(
        cluster(12.5e9, 25e-6), source=Source("published", "a data sheet"), **given
    )


def test_slow_sockets_stretch_the_waiting_or_fill_the_link() -> None:
    """1.8 GB/s are 1.8 exp(-1.645 x 0.35) in one of twenty cases: 1.778 times slower. A quarter of
    2 s waits: 2 + 0.5 x 0.778. A link that is busy for 80 % takes 1.6 x 1.778 s, if that is more.
    """
    times = math.exp(Z90 * 0.35)
    assert times == pytest.approx(1.778, abs=1e-3)
    asked = job(where=nominal())
    assert slow_links_s(asked, outcome()) == pytest.approx(2.0 + 0.5 * (times - 1.0), rel=1e-6)
    full = outcome(utilisation=Utilisation(workers={}, servers={}, links={"a": 0.1, "b": 0.8}))
    assert slow_links_s(asked, full) == pytest.approx(1.6 * times, rel=1e-6)
    _, high = step_interval(asked, full, LEARNT._replace(always=0.0, waiting=0.0))
    assert high == pytest.approx(1.6 * times, rel=1e-6)


def test_a_slow_host_stretches_the_computation() -> None:
    """Three times as long; a quarter of 2 s waits: 2 + 1.5 x 2. A measured host has no range."""
    slow = job(workload=msgspec.structs.replace(WORK, slow_host=3.0))
    assert slow_host_s(slow, outcome()) == pytest.approx(5.0)
    learnt = LEARNT._replace(always=0.0, waiting=0.0)
    assert step_interval(slow, outcome(), learnt)[1] == pytest.approx(5.0)
    assert slow_host_s(job(), outcome()) == 2.0
    assert step_interval(job(), outcome(), learnt)[1] < 3.0


def test_slow_copies_through_the_host_stretch_the_waiting() -> None:
    """exp(1.645 x 0.5) = 2.276 times slower, on one node."""
    box = nominal(devices_per_node=4, intra_node=through_host())
    assert slow_links_s(job(where=box), outcome()) == pytest.approx(
        2.0 + 0.5 * (math.exp(Z90 * 0.5) - 1.0), rel=1e-6
    )
    ports = nominal(devices_per_node=4, intra_node=IntraNode(14e9, 5e-6))
    assert slow_links_s(job(where=ports), outcome()) == pytest.approx(2.0)
    assert slow_links_s(job(1, where=box), outcome(1)) == pytest.approx(2.0)


def replica(where: Any, **shape: Any) -> Job:
    """A single replica of several devices of one node."""
    given = {"model": "gpt2-medium", "device": "h100", "cluster": where, "arch": "ring"}
    return make_job(workers=1, **{**given, **shape})


@pytest.mark.parametrize("shape", [{"tensor": 4}, {"context": 2}, {"pipeline": 4}])
def test_devices_of_a_single_replica_also_copy_through_the_host(shape: dict[str, int]) -> None:
    """A quarter of 2 s waits, 2.276 times as long: 2.638 s. A lone device waits for no links."""
    times = math.exp(Z90 * 0.5)
    box = nominal(devices_per_node=4, intra_node=through_host())
    one, learnt = replica(box, **shape), LEARNT._replace(always=0.0, waiting=0.0)
    known = msgspec.structs.replace(one.workload, error_fraction=None, slow_host=1.0)
    sure = msgspec.structs.replace(one, workload=known)
    assert slow_links_s(one, outcome(1)) == pytest.approx(2.0 + 0.5 * (times - 1.0), rel=1e-6)
    assert step_interval(sure, outcome(1), learnt)[1] == pytest.approx(2.638, abs=1e-3)
    found = interval_of(sure, outcome(1), 1.0)
    assert found.iteration_s[1] == pytest.approx(2.638, abs=1e-3)
    assert "links may be slower than usual" in found.text
    lone = interval_of(replica(box), outcome(1), 1.0)
    assert "links may be slower than usual" not in lone.text
    # canary: as if nothing were sent
    assert slow_links_s(replica(box), outcome(1)) == pytest.approx(2.0)


def test_a_worker_with_servers_says_that_its_links_may_be_slow() -> None:
    """The link of one worker to a server is busy for 80 %, and sockets are 1.778 times slower."""
    busy = Utilisation(workers={}, servers={"server 0": 0.1}, links={"a": 0.8})
    found = interval_of(job(1, arch="bsp", where=nominal()), outcome(1, utilisation=busy), 1.0)
    assert found.iteration_s[1] == pytest.approx(1.6 * math.exp(Z90 * 0.35), rel=1e-6)
    assert "links may be slower than usual" in found.text
