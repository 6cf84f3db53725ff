"""Local SGD against timelines worked out by hand, and the traffic of its sources.

Links carry 1 byte/s unless noted, so two workers average 3 bytes in 3 s.
"""

from __future__ import annotations

import time
from typing import Any

import pytest

from perfmodel import InputError, Jitter, Job, Straggler, build_graph, make_job, predict
from perfmodel.engine.simulation import timeline
from perfmodel.predicting import fine
from tests.architectures.test_allreduce import same
from tests.jobs import cluster, job, workload
from tests.oracles import equal

WORK = workload([1.0, 1.0], [1.0, 1.0], [2.0, 1.0], optimizer_s=0.5)


def spans_of(label: str, one: Job, iterations: int) -> list[tuple[float, float]]:
    """Start and end of each op of a kind, in time order."""
    graph = build_graph(one)
    block = next(b for b in graph.ops if b.label == label)
    found = [
        (s.start_s, s.end_s)
        for s in timeline(graph, iterations=iterations)
        if block.first <= s.op < block.first + block.size
    ]
    return sorted(found)


def test_two_workers_average_every_second_step() -> None:
    """Steps of 4.5 s: two of them, 3 s to average, two of them, 3 s to average."""
    one = job(WORK, cluster(), 2, "local_sgd", {"period": 2})
    assert spans_of("average", one, 4)[:2] == [(9.0, 12.0), (21.0, 24.0)]
    expected = [(4.0, 4.5), (8.5, 9.0), (16.0, 16.5), (20.5, 21.0)]
    assert spans_of("optimizer", one, 4)[::2] == expected
    result = predict(one)
    assert result.iteration_s == pytest.approx(6.0)
    assert result.idle_fraction.by_cause == {"network": pytest.approx(0.25)}
    assert result.operation_s["average"] == pytest.approx(3.0)


def test_workers_do_not_wait_between_averages() -> None:
    """One worker takes 4.5 s per step, the other 9 s: both average from 18 to 21 s."""
    late = {"stragglers": [Straggler(1, 2.0)]}
    one = job(WORK, cluster(), 2, "local_sgd", {"period": 2}, **late)
    expected = [(4.0, 4.5), (8.0, 9.0), (8.5, 9.0), (17.0, 18.0)]
    assert spans_of("optimizer", one, 2) == expected
    assert spans_of("average", one, 2)[0] == (18.0, 21.0)
    assert predict(one).iteration_s == pytest.approx(10.5)


def test_jitter_evens_out_between_two_averages() -> None:
    """E[max] of sums of eight is nearer to the mean than that of one."""
    found = [
        predict(
            job(WORK, cluster(1e9), 4, "local_sgd", {"period": period}, jitter=Jitter(0.3))
        ).iteration_s
        for period in (1, 8)
    ]
    assert found[0] > 4.5 * 1.2
    assert 4.5 < found[1] < 4.5 * 1.15


def per_step_s(workers: int, period: int, options: dict[str, Any], expected: float) -> None:
    where = cluster(4.0, 0.25)
    one = job(WORK, where, workers, "local_sgd", {"period": period, **options})
    equal(predict(one).iteration_s, expected)


ALGORITHMS = ["ring", "halving_doubling", "tree", "double_tree", "hierarchical"]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("workers", [1, 2, 3, 8])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_an_average_is_one_all_reduce_per_period(workers: int, algorithm: str) -> None:
    """With a period of 1 it equals an all-reduce without overlap; with a period of H, 1/H of it."""
    options = {"algorithm": algorithm, "reduce_per_byte_s": 0.125}
    whole = {**options, "bucketing": "one", "overlap": False}
    reduced = predict(job(WORK, cluster(4.0, 0.25), workers, "allreduce", whole)).iteration_s
    for period in (1, 2, 5):
        per_step_s(workers, period, options, 4.5 + (reduced - 4.5) / period)


def test_canary_another_period_is_noticed() -> None:
    with pytest.raises(AssertionError):
        per_step_s(2, 4, {}, 4.5 + (2 * 0.25 + 3.0 / 4.0) / 5)


@pytest.mark.parametrize("workers", [2, 3, 4, 8])
@pytest.mark.parametrize("period", [1, 3])
def test_bytes_over_every_link(workers: int, period: int) -> None:
    """2(N-1)/(N H) M per step, by the time that a link of 1 byte/s is busy."""
    result = predict(job(WORK, cluster(), workers, "local_sgd", {"period": period}))
    assert len(result.utilisation.links) == 2 * workers
    for part in result.utilisation.links.values():
        equal(part * result.iteration_s, 2 * (workers - 1) / (workers * period) * 3.0)


@pytest.mark.parametrize(
    ("period", "mean", "p90"), [(1, 0.0, 0), (2, 0.5, 1), (4, 1.5, 3), (10, 4.5, 8), (20, 9.5, 17)]
)
def test_model_age_is_uniform(period: int, mean: float, p90: int) -> None:
    ages = list(range(period))
    assert mean == sum(ages) / period
    assert p90 == min(a for a in ages if sum(b <= a for b in ages) >= 0.9 * period)
    age = predict(job(WORK, cluster(), 2, "local_sgd", {"period": period})).model_age
    assert (age.exchange_every, age.mean, age.p90) == (period, mean, p90)


def test_one_worker_takes_the_single_device_step_time() -> None:
    result = predict(job(WORK, cluster(), 1, "local_sgd"))
    assert result.iteration_s == 4.5
    assert result.model_age is None


@pytest.mark.parametrize("options", [{"period": 1}, {"period": 3}, {"algorithm": "tree"}])
def test_one_simulated_worker_can_represent_all(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = job(WORK, cluster(latency_s=0.01), 5, "local_sgd", options)
    assert build_graph(one, fold=True).n_groups == 1
    folded = predict(one)
    monkeypatch.setattr(fine, "alike", lambda job: False)
    assert same(folded.to_dict(), predict(one).to_dict()) == []


def test_a_period_is_a_whole_number_of_steps() -> None:
    with pytest.raises(InputError, match="period"):
        job(WORK, cluster(), 2, "local_sgd", {"period": 0})


def test_the_bottleneck_is_averaging_if_that_takes_longest() -> None:
    """Three steps of 2 s, then 45 s of averaging: 88 % of the chain is the network's."""
    work = workload([1.0], [1.0], [30.0])
    result = predict(job(work, cluster(), 4, "local_sgd", {"period": 3}))
    assert result.iteration_s == pytest.approx((3 * 2.0 + 45.0) / 3)
    assert result.bottleneck.share == pytest.approx(45 / 51)
    assert "link" in result.bottleneck.resource
    assert sum(step.seconds for step in result.bottleneck.cycle) == pytest.approx(51.0)


@pytest.mark.slow
def test_a_long_period_takes_no_longer_to_simulate() -> None:
    """Permits take no time and enable each other: the backward walk must not loop among them."""

    def seconds(period: int) -> float:
        one = make_job(
            model="resnet50",
            device="h100",
            cluster="dgx-h100",
            workers=24,
            arch="local_sgd",
            options={"period": period},
            stragglers=[Straggler(0, 1.01)],
        )
        begin = time.process_time()
        predict(one)
        return time.process_time() - begin

    seconds(4)
    assert seconds(12) < 30.0 * seconds(4)
