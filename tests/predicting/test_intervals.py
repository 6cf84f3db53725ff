"""Prediction intervals: what widens them, and whether they cover measured runs."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, strategies as st

from benchmarks.accuracy import intervals as learning
from benchmarks.accuracy.residuals import PredictedRun
from perfmodel import InputError, IntraNode, Jitter, Link, Source, make_job, predict
from perfmodel.base.uncertainty import Uncertainty
from perfmodel.inputs.cluster import Collective, Piece
from perfmodel.inputs.usual_losses import through_host
from perfmodel.predicting.intervals import (
    LEARNT,
    JobKind,
    Learnt,
    kind_of,
    step_interval,
    uncertainty,
)
from tests.jobs import cluster, workload

WORK = workload([1.0, 1.0], [1.0, 1.0], [2.0, 1.0], batch_size=4)


def job(**more: Any) -> Any:
    return make_job(**{"workload": WORK, "cluster": cluster(), "workers": 4, "arch": "ring"} | more)


def total(**more: Any) -> float:
    made = job(**more)
    return uncertainty(made, predict(made)).total


# -- the arithmetic --------------------------------------------------------------------------------


@given(st.floats(0.0, 1.0), st.floats(0.0, 1.0), st.floats(1e-3, 1e3))
def test_an_interval_contains_the_value_and_is_symmetric(
    model: float, measurement: float, value: float
) -> None:
    low, high = Uncertainty(model=model, measurement=measurement).interval(value)
    assert low <= value <= high
    assert value / low == pytest.approx(high / value)


def test_nine_in_ten_draws_lie_inside() -> None:
    parts = Uncertainty(measurement=0.03, calibration=0.04, model=0.12, extrapolation=0.02)
    draws = np.exp(np.random.default_rng(1).normal(0.0, parts.total, 100_000))
    low, high = parts.interval(1.0)
    inside = np.mean((low <= draws) & (draws <= high))
    assert inside == pytest.approx(0.9, abs=0.005)
    # canary: without the model's part it is too narrow
    low, high = msgspec.structs.replace(parts, model=0.0).interval(1.0)
    assert np.mean((low <= draws) & (draws <= high)) < 0.6


@pytest.mark.parametrize("value", [-0.1, math.nan, math.inf])
def test_no_part_is_negative_or_unknown(value: float) -> None:
    with pytest.raises(InputError, match="model"):
        Uncertainty(model=value)


# -- contributions --------------------------------------------------------------------------------


@pytest.mark.sampled(4)
@pytest.mark.parametrize("fidelity", ["fine", "coarse", "auto"])
@pytest.mark.parametrize("arch", ["ring", "ps", "asp", "p2p", "ad_psgd", "gosgd"])
def test_every_prediction_has_an_interval(arch: str, fidelity: Any) -> None:
    answer = predict(job(arch=arch), fidelity=fidelity)
    assert answer.interval is not None
    assert answer.interval.coverage == 0.9
    low, high = answer.interval.iteration_s
    assert low < answer.iteration_s < high
    few, many = answer.interval.throughput_samples_per_s
    assert few < answer.throughput_samples_per_s < many
    assert few * high == pytest.approx(answer.throughput_samples_per_s * answer.iteration_s)
    assert answer.interval.text


def test_a_measured_network_narrows_the_interval() -> None:
    measured, nominal = (
        msgspec.structs.replace(cluster(), source=Source(kind, "by someone"))
        for kind in ("measured", "published")
    )
    assert total(cluster=measured) < total(cluster=nominal)


def test_the_text_names_what_is_estimated() -> None:
    """A language model's compute times; an all-reduce that was measured with large errors."""
    estimated = predict(make_job(model="llama-7b", device="a100", arch="zero3", workers=2))
    assert estimated.interval is not None
    assert "estimated compute times" in estimated.interval.text
    measured = Collective(
        operation="all_reduce",
        pieces=(Piece(0.05, 0.01),),
        ranks=(2, 4),
        bytes=(1.0, 1e9),
        error_fraction=3.0,
    )
    where = msgspec.structs.replace(
        cluster(), source=Source("measured", "by someone"), collectives=(measured,)
    )
    answer = predict(job(cluster=where, arch="ring"))
    assert answer.interval is not None
    assert "errors of measured collectives" in answer.interval.text


def fast(latency_s: float = 25e-6, kind: Any = "published") -> Any:
    return msgspec.structs.replace(
        cluster(12.5e9, latency_s), source=Source(kind, "100 Gbps of somebody")
    )


def upper(where: Any, **more: Any) -> float:
    """Upper bound of the step time, relative to the prediction."""
    big = workload([0.01], [0.02], [500e6])
    answer = predict(job(workload=big, cluster=where, **more))
    assert answer.interval is not None
    return answer.interval.iteration_s[1] / answer.iteration_s


def test_sockets_may_deliver_less_than_usual() -> None:
    """Usually 1.8 GB/s; in one of twenty cases below 1.8 exp(-1.645 x 0.35) = 1.01 GB/s."""
    big = workload([0.01], [0.02], [500e6])
    slow = predict(job(workload=big, cluster=cluster(1.012e9, 25e-6)))
    answer = predict(job(workload=big, cluster=fast()))
    assert answer.interval is not None
    assert answer.interval.iteration_s[1] == pytest.approx(slow.iteration_s, rel=0.1)
    assert "links may be slower than usual" in answer.interval.text


@pytest.mark.parametrize("nominal_bytes_per_s", [5e9, 50e9, 100e9])
def test_the_interval_does_not_grow_with_the_nominal_rate(nominal_bytes_per_s: float) -> None:
    """Sockets are the limit, so a faster network changes neither the step nor its interval."""
    boxes = msgspec.structs.replace(
        fast(), devices_per_node=4, intra_node=IntraNode(12e9, kind="per_device")
    )
    faster = msgspec.structs.replace(boxes, nic=Link(nominal_bytes_per_s, 25e-6))
    big = workload([0.1], [0.3], [400e6])
    answers = [
        predict(job(workload=big, cluster=where, workers=8)).interval for where in (boxes, faster)
    ]
    assert answers[0] is not None
    assert answers[1] is not None
    assert answers[0].iteration_s == pytest.approx(answers[1].iteration_s)
    assert upper(faster) < 2.0


@pytest.mark.parametrize(
    "where", [fast(latency_s=2e-6), fast(kind="measured"), cluster(1.25e9, 25e-6)]
)
def test_rdma_slow_links_and_measured_links_deliver_their_bandwidth(where: Any) -> None:
    assert upper(where) < upper(fast())
    assert upper(fast(), workers=1) < 1.1


def test_sockets_between_replicas_that_fill_nodes_may_be_slower_than_usual() -> None:
    """Four replicas of four devices are on four nodes, as many as sixteen replicas on sixteen."""
    box = msgspec.structs.replace(fast(), devices_per_node=4, intra_node=IntraNode(200e9, 5e-6))
    ratios = []
    for replicas in (4, 16):
        made = make_job(model="gpt2-large", device="h100", cluster=box, arch="ring", tensor=4,
                        workers=replicas, batch_size=1)  # fmt: skip
        answer = predict(made, fidelity="coarse")
        assert answer.interval is not None
        assert "links may be slower than usual" in answer.interval.text
        ratios.append(answer.interval.iteration_s[1] / answer.iteration_s)
    assert ratios[0] == pytest.approx(ratios[1], rel=0.01)


def test_copies_through_the_host_may_be_slower_than_usual() -> None:
    box = msgspec.structs.replace(fast(), devices_per_node=4, intra_node=through_host())
    direct = msgspec.structs.replace(box, intra_node=IntraNode(14e9, 5e-6))
    assert upper(box) > 1.95 > 1.7 > upper(direct)


def test_estimated_compute_times_widen_the_interval_by_their_share() -> None:
    rough = msgspec.structs.replace(WORK, error_fraction=0.5)
    assert total(workload=rough) > total()
    slow = cluster(bandwidth_bytes_per_s=0.001)
    more = total(workload=rough, cluster=slow) - total(cluster=slow)
    assert more < 0.2 * (total(workload=rough) - total())


def test_extrapolation_beyond_the_known_runs_widens_the_interval() -> None:
    most = LEARNT[kind_of(job())].workers
    within, beyond = job(workers=most), job(workers=8 * most)
    answers = predict(within), predict(beyond)
    assert answers[0].interval is not None
    assert answers[1].interval is not None
    assert answers[0].interval.parts.extrapolation == 0.0
    assert answers[1].interval.parts.extrapolation == pytest.approx(3 * 0.03)
    assert f"at most {most} workers" in answers[1].interval.text
    assert "extrapolated" not in answers[0].interval.text


def test_one_worker_has_no_model_error() -> None:
    answer = predict(job(workers=1))
    assert answer.interval is not None
    assert answer.interval.parts.model == 0.0
    assert answer.interval.parts.extrapolation == 0.0


@pytest.mark.slow
def test_a_short_simulation_widens_the_interval() -> None:
    shaken = job(jitter=Jitter(0.3), arch="asp")
    sure, rough = predict(shaken, rel_ci=0.01), predict(shaken, rel_ci=0.1)
    assert rough.throughput_ci_fraction > sure.throughput_ci_fraction
    assert sure.interval is not None
    assert rough.interval is not None
    assert rough.interval.parts.measurement > sure.interval.parts.measurement


def test_an_inexact_formula_widens_the_interval() -> None:
    made = job(arch="asp", workers=6)
    fine, coarse = predict(made), predict(made, fidelity="coarse")
    assert coarse.error_band is not None
    assert coarse.error_band.p90
    assert fine.interval is not None
    assert coarse.interval is not None
    share = coarse.idle_fraction.mean - fine.idle_fraction.mean
    assert abs(share) < 0.5
    assert coarse.interval.parts.model > fine.interval.parts.model


# -- fitting the constants--------------------------------------------------------------------------


def made_up(
    always: float, waiting: float, count: int, *, sources: int = 40, below: float = 1.0
) -> list[PredictedRun]:
    """Runs of jobs that wait more or less, with errors drawn according to these constants."""
    rng = np.random.default_rng(3)
    found = []
    for i in range(count):
        one = job(cluster=cluster(bandwidth_bytes_per_s=10.0 ** rng.uniform(-1.5, 1.5)))
        answer = predict(one, fidelity="coarse")
        answer = msgspec.structs.replace(answer, error_band=None)
        draw = rng.normal()
        side = always * (below if draw < 0.0 else 1.0)
        spread = math.hypot(side, waiting * answer.idle_fraction.mean, 0.01)
        measured_s = answer.iteration_s * math.exp(draw * spread)
        found.append(PredictedRun(f"source {i % sources}", one, answer, measured_s))
    return found


@pytest.mark.slow
@pytest.mark.parametrize(("always", "waiting"), [(0.02, 0.2), (0.1, 0.02)])
def test_the_constants_are_recovered(always: float, waiting: float) -> None:
    some = made_up(always, waiting, 400)
    learnt = learning.learn(some)
    assert learnt.runs == 400
    for idle in (0.1, 0.9):
        truth, found = (math.hypot(a, b * idle) for a, b in ((always, waiting), learnt[:2]))
        assert found == pytest.approx(truth, rel=0.25)
    inside, count = np.sum(list(learning.covered(some[::2]).values()), axis=0)
    assert count == 200
    assert 0.85 < inside / count < 0.95


@pytest.mark.slow
def test_errors_that_are_larger_above_widen_that_side_only() -> None:
    """The prediction is the median: half of the runs are slower, and by more."""
    late = made_up(0.3, 0.01, 400, below=0.2)
    learnt = learning.learn(late)
    assert learnt.always == pytest.approx(0.3, rel=0.15)
    assert learnt.below == pytest.approx(0.2, rel=0.3)
    run = late[0]
    low, high = step_interval(run.job, run.prediction, learnt)
    down = math.log(run.prediction.iteration_s / low)
    assert 3.0 < math.log(high / run.prediction.iteration_s) / down < 8.0
    inside, count = np.sum(list(learning.covered(late[::2]).values()), axis=0)
    assert 0.85 < inside / count < 0.95


def test_few_sources_give_uncertain_constants() -> None:
    few, many = (learning.learn(made_up(0.05, 0.05, 120, sources=n)) for n in (3, 60))
    assert few.always > 1.4 * many.always


def test_canary_intervals_fitted_to_better_predictions_are_too_narrow() -> None:
    good, bad = made_up(0.01, 0.02, 80, sources=8), made_up(0.1, 0.2, 40)
    bad = [msgspec.structs.replace(run, source="other") for run in bad]
    found = learning.covered([*good, *bad])
    assert found["other"][0] < 0.5 * found["other"][1]


def test_every_kind_of_cluster_has_constants() -> None:
    kinds = [JobKind(network, way) for network in ("measured", "nominal") for way in (False, True)]
    assert set(LEARNT) == set(kinds)
    assert all(isinstance(each, Learnt) and each.always > 0.0 for each in LEARNT.values())


# -- replicas of several devices -------------------------------------------------------------------


def test_a_division_among_devices_is_part_of_the_error_by_hand() -> None:
    staged = job(workers=1, pipeline=2)
    assert uncertainty(staged, predict(staged)).model == pytest.approx(0.05)
    layers = [msgspec.structs.replace(one, forward_summed_bytes=1e3) for one in WORK.layers]
    summed = msgspec.structs.replace(WORK, layers=tuple(layers))
    given = {"workload": summed, "workers": 1, "cluster": cluster(devices_per_node=4)}
    divided = job(tensor=4, **given)
    assert uncertainty(divided, predict(divided)).model == pytest.approx(2 * 0.04)  # two doublings
    both = job(tensor=4, pipeline=2, **given)
    assert uncertainty(both, predict(both)).model == pytest.approx(math.hypot(0.08, 0.05))
    assert divided.replica is not None
    along = msgspec.structs.replace(divided.replica, context=2)
    longer = msgspec.structs.replace(divided, replica=along)
    assert uncertainty(longer, predict(divided)).model == pytest.approx(3 * 0.04)
    alone = job(workers=1)
    assert uncertainty(alone, predict(alone)).model == 0.0


def test_a_bubble_is_as_uncertain_as_the_computation_that_makes_it() -> None:
    work = msgspec.structs.replace(WORK, error_fraction=0.2)
    staged = job(workload=work, workers=1, pipeline=2)
    prediction = predict(staged)
    assert prediction.idle_fraction.by_cause["pipeline"] > 0.3
    found = uncertainty(staged, prediction).calibration
    waiting = prediction.idle_fraction.mean - prediction.idle_fraction.by_cause["pipeline"]
    assert found == pytest.approx(math.log(1.2) / 1.645 * (1.0 - waiting), rel=1e-3)
