"""AD-PSGD against timelines worked out by hand, and the traffic its source states.

All links carry 1 byte/s unless noted, so one byte takes one second.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from perfmodel import InputError, Straggler, build_graph, predict
from perfmodel.architectures.ad_psgd import Options, sides
from perfmodel.engine.simulation import simulate, timeline
from perfmodel.graph.op_graph import OpGraph
from tests import oracles
from tests.jobs import cluster, job, workload

WORK = workload([1.0, 1.0], [1.0, 1.0], [2.0, 1.0], batch_size=4)
"""Computes for 4 s, and has a model of 3 bytes."""
STEP_S, MODEL_BYTES = 4.0, 3.0


def runs(graph: OpGraph, label: str, iterations: int = 1) -> dict[tuple[str, int], Any]:
    """Start and end of the ops with a label, by name and iteration."""
    return {
        (graph.op_name(span.op), span.iteration): (span.start_s, span.end_s)
        for span in timeline(graph, iterations=iterations)
        if graph.op_name(span.op).startswith(label + " ")
    }


def test_two_workers_by_hand() -> None:
    """Request 0 to 3, reply 3 to 6: worker 0 waits 2 s for it, worker 1 does not wait."""
    graph = build_graph(job(WORK, cluster(), 2, "ad_psgd"))
    request, reply = (runs(graph, label, 2) for label in ("request", "reply"))
    assert request == {("request worker 0", 0): (0.0, 3.0), ("request worker 0", 1): (6.0, 9.0)}
    assert reply == {("reply worker 0", 0): (3.0, 6.0), ("reply worker 0", 1): (9.0, 12.0)}
    ends = runs(graph, "optimizer", 3)
    assert [ends["optimizer worker 0", i][1] for i in range(3)] == [4.0, 10.0, 16.0]
    assert [ends["optimizer worker 1", i][1] for i in range(3)] == [4.0, 8.0, 12.0]
    result = predict(job(WORK, cluster(), 2, "ad_psgd"))
    assert result.iteration_s == pytest.approx(2 / (1 / 6 + 1 / 4))
    assert result.idle_fraction.per_worker == pytest.approx((2 / 6, 0.0))
    assert result.idle_fraction.by_cause == {"network": pytest.approx(1 / 6)}
    assert result.operation_s["exchange"] == pytest.approx(6.0)


def test_staleness_of_two_workers_by_hand() -> None:
    """Worker 1 averages at 3, 9, 15, ... and works from 0 to 4, 4 to 8, 8 to 12, ...: a model is
    averaged in two of three of its steps. Worker 0 averages at 6, 12, ..., between its steps."""
    result = predict(job(WORK, cluster(), 2, "ad_psgd"))
    assert result.staleness is not None
    assert result.staleness.per_worker == pytest.approx((0.0, 2 / 3))
    # of 12 s: two steps of worker 0 without, two of the three of worker 1 with an averaging
    assert result.staleness.histogram == {"0": pytest.approx(3 / 5), "1": pytest.approx(2 / 5)}


def test_an_exchange_during_a_step_adds_to_its_staleness() -> None:
    """3 s on a link of 2 bytes/s, in a step of 4 s: both models are averaged once in each step."""
    result = predict(job(WORK, cluster(2.0), 2, "ad_psgd"))
    assert result.iteration_s == STEP_S
    assert result.idle_fraction.mean == 0.0
    assert result.staleness is not None
    assert result.staleness.histogram == {"1": 1.0}
    # one gradient and one averaging per step
    assert result.updates_per_s == pytest.approx(2 / STEP_S)


@pytest.mark.parametrize("bandwidth", [0.1, 1.0, 1.5, 20.0])
def test_an_active_workers_iteration_is_the_longer_of_computation_and_exchange(
    bandwidth: float,
) -> None:
    found = simulate(build_graph(job(WORK, cluster(bandwidth), 2, "ad_psgd"))).iterations_per_s
    exchange_s = 2 * MODEL_BYTES / bandwidth
    oracles.equal(1 / found[0], max(STEP_S, exchange_s))
    oracles.equal(1 / found[1], STEP_S)
    if exchange_s > STEP_S:  # canary: with the request alone the iteration would be shorter
        with pytest.raises(AssertionError):
            oracles.equal(1 / found[0], max(STEP_S, exchange_s / 2))


def test_without_overlap_the_exchange_follows_the_computation() -> None:
    graph = build_graph(job(WORK, cluster(), 2, "ad_psgd", {"overlap": False}))
    found = simulate(graph).iterations_per_s
    oracles.equal(1 / found[0], STEP_S + 2 * MODEL_BYTES)
    oracles.equal(1 / found[1], STEP_S)


def test_parity_decides_which_worker_waits() -> None:
    idle = {
        passive: predict(
            job(WORK, cluster(), 2, "ad_psgd", {"passive": passive})
        ).idle_fraction.per_worker
        for passive in ("odd", "even")
    }
    assert idle["odd"] == pytest.approx((1 / 3, 0.0))
    assert idle["even"] == pytest.approx((0.0, 1 / 3))


def test_latency_counts_both_ways() -> None:
    found = simulate(build_graph(job(WORK, cluster(1.0, 0.25), 2, "ad_psgd"))).iterations_per_s
    oracles.equal(1 / found[0], 2 * (MODEL_BYTES + 0.25))


def test_two_requests_to_one_worker_share_its_link() -> None:
    """Workers 0 and 2 ask worker 1 at once: two models in, then two out, 6 s each."""
    graph = build_graph(job(WORK, cluster(), 3, "ad_psgd"))
    assert set(runs(graph, "request").values()) == {(0.0, 6.0)}
    assert set(runs(graph, "reply").values()) == {(6.0, 12.0)}
    found = simulate(graph)
    assert (1 / found.iterations_per_s).tolist() == pytest.approx([12.0, 4.0, 12.0])


def test_all_passive_workers_are_drawn_equally_often() -> None:
    """About 2000 draws among four workers: each gets a quarter, within 5 standard errors."""
    graph = build_graph(job(WORK, cluster(1e3), 8, "ad_psgd"))
    found = simulate(graph, rel_ci=0.005)
    draws = found.rounds * 4
    models = found.link_utilisation[8:] * 1e3 * found.elapsed_s / MODEL_BYTES
    assert models[1::2].sum() == pytest.approx(draws, rel=0.02)
    assert models[1::2] == pytest.approx(draws / 4, abs=5 * np.sqrt(draws * 0.25 * 0.75))
    assert models[0::2] == pytest.approx(draws / 4, rel=0.02)  # replies: one per iteration


@pytest.mark.parametrize("workers", [2, 3, 4, 5, 8])
@pytest.mark.parametrize("passive", ["even", "odd"])
def test_bytes_over_every_link(workers: int, passive: str) -> None:
    """A model out of and into each active worker per iteration of its own; what the passive ones
    send and receive is what the active ones receive and send."""
    graph = build_graph(job(WORK, cluster(), workers, "ad_psgd", {"passive": passive}))
    models_are(graph, workers, passive, 1.0)


def models_are(graph: OpGraph, workers: int, passive: str, models: float) -> None:
    """Check the models sent each way per iteration of an active worker, by link utilisation."""
    found = simulate(graph, rel_ci=0.02)
    active, answering = sides(np.arange(workers), Options(passive=passive))  # type: ignore[arg-type]
    out, into = found.link_utilisation[:workers], found.link_utilisation[workers:]
    expected = models * MODEL_BYTES * found.iterations_per_s[active]
    for moved in (out, into):
        assert moved[active] == pytest.approx(expected, rel=0.05)
        assert moved[answering].sum() == pytest.approx(expected.sum(), rel=0.05)


def test_canary_a_missing_reply_changes_the_byte_count() -> None:
    graph = build_graph(job(WORK, cluster(), 4, "ad_psgd"))
    with pytest.raises(AssertionError):
        models_are(graph, 4, "odd", 0.5)


@pytest.mark.parametrize("options", [{}, {"passive": "even"}, {"overlap": False}])
def test_one_worker_takes_the_time_of_its_device(options: dict[str, Any]) -> None:
    work = workload([1.0, 2.0], [3.0, 0.5], [2.0, 1.0], optimizer_s=0.25)
    result = predict(job(work, cluster(), 1, "ad_psgd", options))
    assert result.iteration_s == 6.75
    assert result.idle_fraction.mean == 0.0
    assert result.staleness is not None
    assert result.staleness.max == 0


def test_a_slow_passive_worker_delays_no_other_worker() -> None:
    """It answers while it computes."""
    plain, slow = (
        simulate(build_graph(job(WORK, cluster(), 2, "ad_psgd", stragglers=stragglers)))
        for stragglers in ([], [Straggler(1, 5.0)])
    )
    oracles.equal(slow.iterations_per_s[0], plain.iterations_per_s[0])
    oracles.equal(slow.iterations_per_s[1], plain.iterations_per_s[1] / 5)


def test_workers_start_at_random_times() -> None:
    staggered = job(WORK, cluster(), 4, "ad_psgd", start="staggered")
    begins = {begin for begin, _ in runs(build_graph(staggered), "request").values()}
    assert len(begins) == 2
    result = predict(staggered, rel_ci=0.1)
    assert result.throughput_ci_fraction > 0.0
    active_s = 2 * MODEL_BYTES
    best, worst = (4 / (2 / t + 2 / STEP_S) for t in (active_s, 2 * active_s))
    assert best <= result.iteration_s <= worst


def test_active_and_passive_workers() -> None:
    active, passive = sides(np.arange(4), Options())
    assert (active.tolist(), passive.tolist()) == ([0, 2], [1, 3])
    active, passive = sides(np.arange(1), Options(passive="even"))
    assert (active.tolist(), passive.tolist()) == ([], [0])


def test_an_invalid_value_is_refused() -> None:
    with pytest.raises(InputError, match="option passive of ad_psgd: expected one of even, odd, g"):
        job(WORK, cluster(), 2, "ad_psgd", {"passive": "none"})
