"""GoSGD against timelines worked out by hand, and the traffic its source states.

All links carry 1 byte/s unless noted, so one byte takes one second.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from perfmodel import InputError, Jitter, Straggler, build_graph, predict
from perfmodel.architectures.gosgd import Options, window
from perfmodel.engine.measures import Measures
from perfmodel.engine.simulation import simulate, timeline
from perfmodel.graph.op_graph import OpGraph
from tests import oracles
from tests.jobs import cluster, job, workload
from tests.settings import thinned

WORK = workload([1.0, 1.0], [1.0, 1.0], [2.0, 1.0], batch_size=4)
"""Computes for 4 s, and has a model of 3 bytes."""
STEP_S, MODEL_BYTES = 4.0, 3.0
ALWAYS = {"probability": 1.0}


def runs(graph: OpGraph, label: str, iterations: int = 1) -> dict[tuple[str, int], Any]:
    """Start and end of the ops with a label, by name and iteration."""
    return {
        (graph.op_name(span.op), span.iteration): (span.start_s, span.end_s)
        for span in timeline(graph, iterations=iterations)
        if graph.op_name(span.op).startswith(label + " ")
    }


def test_two_workers_by_hand() -> None:
    """Both send for 3 s after each step of 4 s, during the next step."""
    graph = build_graph(job(WORK, cluster(), 2, "gosgd", ALWAYS))
    assert runs(graph, "push", 2) == {
        ("push worker 0", 0): (4.0, 7.0),
        ("push worker 1", 0): (4.0, 7.0),
        ("push worker 0", 1): (8.0, 11.0),
        ("push worker 1", 1): (8.0, 11.0),
    }
    result = predict(job(WORK, cluster(), 2, "gosgd", ALWAYS))
    assert result.iteration_s == STEP_S
    assert result.idle_fraction.mean == 0.0
    assert result.updates_per_s == pytest.approx(1 / STEP_S)


def test_received_models_are_merged_before_the_next_step() -> None:
    """A merge takes 0.5 s. What is sent at 4 s is there at 7 s, and merged when the second step
    is over, at 8 s; the third step begins at 8.5 s. From then on each step merges one model."""
    options = {**ALWAYS, "merge_per_model_s": 0.5}
    graph = build_graph(job(WORK, cluster(), 2, "gosgd", options))
    merge = runs(graph, "merge", 4)
    assert [merge["merge worker 0", i] for i in range(4)] == [
        (0.0, 0.0),
        (4.0, 4.0),
        (8.0, 8.5),
        (12.5, 13.0),
    ]
    assert predict(job(WORK, cluster(), 2, "gosgd", options)).iteration_s == STEP_S + 0.5


def test_a_straggler_merges_more_slowly_and_more_models_per_step() -> None:
    """Worker 1 takes 12 s and 3 x 0.5 s a model; in a step of 16.5 s worker 0 sends 4 times:
    worker 0 takes 4 s and 0.5 s for each model that worker 1 sends."""
    options = {**ALWAYS, "merge_per_model_s": 0.5}
    straggling = job(WORK, cluster(1e6), 2, "gosgd", options, stragglers=[Straggler(1, 3.0)])
    found = simulate(build_graph(straggling)).iterations_per_s
    fast, slow = found
    oracles.equal(STEP_S * fast + 0.5 * slow, 1.0)
    oracles.equal(3 * STEP_S * slow + 3 * 0.5 * fast, 1.0)


@pytest.mark.parametrize("bandwidth", [0.25, 0.5, 1.0, 4.0])
def test_sending_every_step_takes_the_longer_of_computation_and_transfer(
    bandwidth: float,
) -> None:
    """T = max(C, M/B): no worker waits for a message, but messages cannot pile up for ever."""
    options = {**ALWAYS, "queue": 2}
    result = predict(job(WORK, cluster(bandwidth), 2, "gosgd", options))
    oracles.equal(result.iteration_s, max(STEP_S, MODEL_BYTES / bandwidth))
    with pytest.raises(AssertionError):
        oracles.equal(result.iteration_s, max(STEP_S, MODEL_BYTES / bandwidth) * 1.001)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("probability", [0.25, 0.5])
def test_a_saturated_link_sets_the_steady_state_pace(probability: float) -> None:
    """T = p M/B = 6 p/0.25 s, for two workers that do not share a link."""
    options = {"probability": probability, "queue": 2}
    result = predict(job(WORK, cluster(0.0625), 2, "gosgd", options), rel_ci=0.02)
    assert result.iteration_s == pytest.approx(probability * MODEL_BYTES / 0.0625, rel=0.05)
    assert result.idle_fraction.by_cause["network"] > 0.5


def test_the_number_of_models_in_flight_is_limited() -> None:
    """12 s per model, 4 s per step, two in flight: the fourth step waits for the first model."""
    options = {**ALWAYS, "queue": 2}
    graph = build_graph(job(WORK, cluster(0.25), 2, "gosgd", options))
    begin = runs(graph, "begin", 5)
    assert [begin["begin worker 0", i][0] for i in range(5)] == [0.0, 4.0, 8.0, 16.0, 28.0]


def test_never_sending_is_training_alone() -> None:
    jitter = {"jitter": Jitter(0.5), "seed": 3}
    for fields in ({}, jitter):
        alone = build_graph(job(WORK, cluster(), 4, "gosgd", {"probability": 0}, **fields))
        assert not alone.bytes_by_link().any()
        spans = [
            (alone.op_name(s.op), s.iteration, s.start_s)
            for s in timeline(alone, seed=3, iterations=3)
            if alone.op_group[s.op] == 0
        ]
        one = build_graph(job(WORK, cluster(), 1, "gosgd", {"probability": 0.5}, **fields))
        assert spans == [
            (one.op_name(s.op), s.iteration, s.start_s) for s in timeline(one, seed=3, iterations=3)
        ]
    result = predict(job(WORK, cluster(), 4, "gosgd", {"probability": 0}))
    assert result.iteration_s == STEP_S
    assert result.model_age is None


@pytest.mark.parametrize("options", [{}, ALWAYS, {**ALWAYS, "merge_per_model_s": 1.0}])
def test_one_worker_takes_the_single_device_step_time(options: dict[str, Any]) -> None:
    work = workload([1.0, 2.0], [3.0, 0.5], [2.0, 1.0], optimizer_s=0.25)
    result = predict(job(work, cluster(), 1, "gosgd", options))
    assert result.iteration_s == 6.75
    assert result.idle_fraction.mean == 0.0
    assert result.model_age is None


def sent_and_received(found: Measures, workers: int) -> tuple[Any, Any]:
    """Bytes out of and into each node per iteration of a worker, on links of 100 bytes/s."""
    moved = found.link_utilisation * 100.0 / found.iterations_per_s.mean()
    return moved[:workers], moved[workers:]


def models_are(found: Measures, workers: int, probability: float, expected: float) -> None:
    """Each worker sends ``expected`` models an iteration, and receives as many on average.

    Within 5 standard errors of a count of messages.
    """
    out, into = sent_and_received(found, workers)
    messages = probability * found.rounds * found.runs
    error = 5 * MODEL_BYTES * probability / np.sqrt(messages)
    assert out == pytest.approx(expected * MODEL_BYTES, abs=error)
    assert into == pytest.approx(expected * MODEL_BYTES, abs=error)
    assert out.sum() == pytest.approx(into.sum(), rel=1e-9)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("probability", [0.1, 0.5, 1.0])
@pytest.mark.parametrize("workers", [2, 3, 6])
def test_bytes_over_every_link(workers: int, probability: float) -> None:
    options = {"probability": probability}
    graph = build_graph(job(WORK, cluster(100.0), workers, "gosgd", options, jitter=Jitter(0.3)))
    models_are(simulate(graph, rel_ci=0.01), workers, probability, probability)


def test_canary_another_probability_changes_the_byte_count() -> None:
    options = {"probability": 0.5}
    graph = build_graph(job(WORK, cluster(100.0), 3, "gosgd", options, jitter=Jitter(0.3)))
    with pytest.raises(AssertionError):
        models_are(simulate(graph, rel_ci=0.005), 3, 0.5, 0.6)


def test_a_model_is_merged_by_its_receiver() -> None:
    """Merges as long as a step of 4 s, on a fast network: with p = 1 and three workers each merges
    one model a step on average, whoever sends it."""
    options = {**ALWAYS, "merge_per_model_s": STEP_S}
    found = simulate(build_graph(job(WORK, cluster(1e6), 3, "gosgd", options)), rel_ci=0.005)
    busy_s = 1 / found.iterations_per_s
    assert busy_s.mean() == pytest.approx(2 * STEP_S, rel=0.03)
    assert found.busy_fraction == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("probability", "expected"),
    [
        (1.0, (1.0, 0.0, 0)),
        (0.5, (2.0, 1.0, 3)),
        (0.9, (1 / 0.9, 1 / 9, 0)),
        (0.1, (10.0, 9.0, 21)),
    ],
)
def test_model_age_is_geometric(probability: float, expected: tuple[float, float, int]) -> None:
    age = predict(job(WORK, cluster(), 3, "gosgd", {"probability": probability})).model_age
    assert age is not None
    assert (age.exchange_every, age.mean, age.p90) == pytest.approx(expected)
    steps = np.arange(10_000)
    share = probability * (1 - probability) ** steps
    assert age.mean == pytest.approx((steps * share).sum())
    assert age.p90 == int(np.argmax(np.cumsum(share) >= 0.9 * (1 - 1e-12)))


def test_the_window_holds_queue_models_on_average() -> None:
    assert window(Options(probability=0.1, queue=8)) == 80
    assert window(Options(probability=1.0, queue=1)) == 1
    assert window(Options(probability=1e-300)) == 1_000_000


def test_merging_has_no_effect_if_no_worker_sends() -> None:
    notes = job(WORK, cluster(), 2, "gosgd", {"probability": 0}).assumptions
    assert not {"queue", "merge_per_model_s"} & {note.name for note in notes}


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"probability": 1.5}, "probability: must be at most 1, got 1.5"),
        ({"probability": -0.1}, "probability: must be at least 0, got -0.1"),
        ({"queue": 0}, "queue: must be at least 1, got 0"),
        ({"merge_per_model_s": -1}, "merge_per_model_s: must be at least 0, got -1"),
        ({"p": 0.1}, "option 'p' does not apply to gosgd"),
    ],
)
def test_an_invalid_value_is_refused(options: dict[str, Any], text: str) -> None:
    with pytest.raises(InputError, match=text):
        job(WORK, cluster(), 2, "gosgd", options)


@pytest.mark.slow
@pytest.mark.parametrize("start", thinned(["together", "staggered"]))
def test_a_link_that_is_slightly_too_slow_eventually_sets_the_pace(start: str) -> None:
    """Steps of 3.5 s, and p M / B = 3.715 s: what is sent piles up for hundreds of steps before a
    worker has to wait, yet in the long run no step can be shorter than its messages."""
    work = workload([0.5, 1.0], [1.0, 1.0], [100.0, 100.0])
    result = predict(job(work, cluster(20.0 / 3.715), 2, "gosgd", start=start))
    assert result.iteration_s == pytest.approx(3.78, rel=0.03)
