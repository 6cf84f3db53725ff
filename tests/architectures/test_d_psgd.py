"""D-PSGD against timelines worked out by hand, and the traffic its source states.

All links carry 1 byte/s unless noted, so one byte takes one second.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from perfmodel import InputError, Link, NodeOverride, Straggler, build_graph, predict
from perfmodel.architectures.d_psgd import neighbours
from perfmodel.engine.simulation import timeline
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


def iteration_s(workers: int, bandwidth: float = 1.0, **options: Any) -> float:
    return predict(job(WORK, cluster(bandwidth), workers, "d_psgd", options)).iteration_s


def test_two_workers_exchange_models_during_computation() -> None:
    """3 bytes each way take 3 s of the 4 s of computation, and from 4 s on again."""
    graph = build_graph(job(WORK, cluster(), 2, "d_psgd"))
    assert runs(graph, "send", 2) == {
        ("send worker 0, to the next", 0): (0.0, 3.0),
        ("send worker 1, to the next", 0): (0.0, 3.0),
        ("send worker 0, to the next", 1): (4.0, 7.0),
        ("send worker 1, to the next", 1): (4.0, 7.0),
    }
    assert runs(graph, "optimizer", 2)["optimizer worker 1", 1] == (8.0, 8.0)


def test_three_workers_send_both_ways_at_once() -> None:
    """Two models share each link: 6 s, which hides the 4 s of computation."""
    graph = build_graph(job(WORK, cluster(), 3, "d_psgd"))
    assert set(runs(graph, "send").values()) == {(0.0, 6.0)}
    assert runs(graph, "backward")["backward worker 2, layer0", 0] == (3.0, 4.0)
    assert set(runs(graph, "optimizer").values()) == {(6.0, 6.0)}
    result = predict(job(WORK, cluster(), 3, "d_psgd"))
    assert result.iteration_s == 6.0
    assert result.idle_fraction.by_cause == {"network": pytest.approx(2 / 6)}
    assert result.operation_s["send"] == 6.0


def test_without_overlap_the_exchange_follows_the_computation() -> None:
    oracles.equal(iteration_s(3, overlap=False), STEP_S + 2 * MODEL_BYTES)
    oracles.equal(iteration_s(2, overlap=False), STEP_S + MODEL_BYTES)


@pytest.mark.parametrize("workers", [2, 3, 4, 9])
@pytest.mark.parametrize("bandwidth", [0.25, 1.0, 1.25, 8.0])
def test_an_iteration_is_the_longer_of_computation_and_exchange(
    workers: int, bandwidth: float
) -> None:
    models = 1 if workers == 2 else 2
    expected = max(STEP_S, models * MODEL_BYTES / bandwidth)
    oracles.equal(iteration_s(workers, bandwidth), expected)


def test_canary_one_model_too_few_breaks_the_closed_form() -> None:
    with pytest.raises(AssertionError):
        oracles.equal(iteration_s(3), max(STEP_S, 1 * MODEL_BYTES))


def bytes_are(graph: OpGraph, models: float) -> None:
    """Check the number of models that leave and enter each node per iteration."""
    for link, moved in enumerate(graph.bytes_by_link()):
        assert moved == pytest.approx(models * MODEL_BYTES), graph.link_name(link)


@pytest.mark.parametrize(("workers", "models"), [(2, 1), (3, 2), (5, 2)])
def test_bytes_over_every_link(workers: int, models: int) -> None:
    bytes_are(build_graph(job(WORK, cluster(), workers, "d_psgd")), models)


def test_canary_a_missing_neighbour_changes_the_byte_count() -> None:
    with pytest.raises(AssertionError):
        bytes_are(build_graph(job(WORK, cluster(), 2, "d_psgd")), 2)


@pytest.mark.parametrize("options", [{}, {"overlap": False}])
def test_one_worker_takes_the_single_device_step_time(options: dict[str, Any]) -> None:
    work = workload([1.0, 2.0], [3.0, 0.5], [2.0, 1.0], optimizer_s=0.25)
    result = predict(job(work, cluster(), 1, "d_psgd", options))
    assert result.iteration_s == 6.75
    assert result.idle_fraction.mean == 0.0
    assert result.staleness is not None
    assert result.staleness.max == 0


def test_the_optimizer_follows_both_computation_and_exchange() -> None:
    work = workload([1.0], [1.0], [3.0], optimizer_s=0.5)
    for bandwidth, expected in ((1.0, 6.5), (100.0, 2.5)):
        oracles.equal(predict(job(work, cluster(bandwidth), 3, "d_psgd")).iteration_s, expected)


def test_a_slow_worker_delays_its_neighbours_first_and_others_later() -> None:
    """Six workers on a fast network; worker 0 computes for 12 s, the others for 4 s.

    A model is sent when an iteration begins, and needed at its end: so the delay moves one place
    further with each iteration. At a distance of d along the ring iteration i ends after i + 1
    iterations of one's own, or, if that is later, after i + 1 - d iterations of worker 0.
    """
    graph = build_graph(job(WORK, cluster(1e12), 6, "d_psgd", stragglers=[Straggler(0, 3.0)]))
    ends = runs(graph, "optimizer", 6)
    for worker in range(6):
        distance = min(worker, 6 - worker)
        for i in range(6):
            expected = max(4.0 * (i + 1), 12.0 * (i + 1 - distance))
            ended = ends[f"optimizer worker {worker}", i][1]
            assert ended == pytest.approx(expected, rel=1e-9), (worker, i)


def test_the_delay_wave_is_counted_as_waiting_for_stragglers() -> None:
    result = predict(job(WORK, cluster(1e12), 6, "d_psgd", stragglers=[Straggler(0, 3.0)]))
    assert result.iteration_s == pytest.approx(12.0)
    assert result.idle_fraction.per_worker == pytest.approx((0.0, *[8 / 12] * 5))
    assert result.idle_fraction.by_cause["straggler"] == pytest.approx(5 / 6 * 8 / 12)


def test_a_slow_link_delays_the_workers_that_use_it() -> None:
    where = cluster(1.0, overrides=(NodeOverride(1, Link(0.5)),))
    oracles.equal(predict(job(WORK, where, 4, "d_psgd")).iteration_s, 12.0)


def test_latency_delays_the_average() -> None:
    oracles.equal(predict(job(WORK, cluster(1.0, 0.25), 3, "d_psgd")).iteration_s, 6.25)


def test_no_worker_uses_an_old_model() -> None:
    result = predict(job(WORK, cluster(), 4, "d_psgd"))
    assert result.staleness is not None
    assert result.staleness.histogram == {"0": 1.0}
    assert result.model_age is None


@pytest.mark.parametrize("workers", [2, 3, 7])
@pytest.mark.parametrize("overlap", [True, False])
def test_one_simulated_worker_represents_all_equal_workers(workers: int, overlap: bool) -> None:
    where = cluster(1.25, 0.01, core_oversubscription=2.0)
    alike = job(WORK, where, workers, "d_psgd", {"overlap": overlap})
    folded, whole = build_graph(alike, fold=True), build_graph(alike)
    assert folded.n_ops < whole.n_ops
    times = [max(s.end_s for s in timeline(g, iterations=3)) for g in (folded, whole)]
    oracles.equal(times[0], times[1])


def test_workers_that_share_a_node_are_not_folded() -> None:
    shared = job(WORK, cluster(devices_per_node=2), 4, "d_psgd")
    assert build_graph(shared, fold=True).n_groups == 4
    # each has one neighbour on its own node and one on the other: two models per link
    assert build_graph(shared).bytes_by_link().tolist() == [2 * MODEL_BYTES] * 4


def test_neighbours_on_the_ring() -> None:
    assert neighbours(1).shape == (1, 0)
    assert neighbours(2).tolist() == [[1], [0]]
    assert neighbours(3).tolist() == [[1, 2], [2, 0], [0, 1]]
    both = neighbours(7)
    assert ((both - np.arange(7)[:, None]) % 7 == [1, 6]).all()


def test_an_unsupported_option_is_refused() -> None:
    with pytest.raises(InputError, match="option 'overlop' does not apply to d_psgd; did you mean"):
        job(WORK, cluster(), 2, "d_psgd", {"overlop": True})
    with pytest.raises(InputError, match="option overlap of d_psgd: expected true or false"):
        job(WORK, cluster(), 2, "d_psgd", {"overlap": "maybe"})
