"""Many asynchronous workers whose shares of a server's link differ because its queue overflows."""

from __future__ import annotations

from typing import Any

import pytest

from perfmodel import build_graph, make_job
from perfmodel.architectures.mean_field import mean_field_of
from perfmodel.engine import mean_field as engine
from perfmodel.engine.mean_field import simulate_many
from perfmodel.engine.run import Simulation
from perfmodel.engine.simulation import simulate
from perfmodel.graph.mean_field import MeanField
from perfmodel.graph.op_graph import OpGraph
from perfmodel.inputs.job import Job
from tests.jobs import cluster, workload

WORKERS, QUEUE_BYTES, SENT_BYTES, RATE_BYTES_PER_S = 256, 2e5, 4e4, 1e6
"""The standard deviation of shares is 0.06 with one server, 0.11 with four."""


def job(workers: int = WORKERS, queue_bytes: float | None = QUEUE_BYTES, **more: Any) -> Job:
    """Workers that compute for 3 s, and whose gradients take two servers' links 10 s."""
    given: dict[str, Any] = {"arch": "asp", "options": {"servers": 2}, "jitter": 0.1} | more
    half = [SENT_BYTES] * 2
    return make_job(
        workload=workload([0.5, 0.5], [1.0, 1.0], half, batch_size=4),
        cluster=cluster(RATE_BYTES_PER_S, queue_bytes=queue_bytes),
        workers=workers,
        **given,
    )


def bound(lead: int, **more: Any) -> Job:
    options = {"servers": 2, "staleness_bound": lead} | more.pop("options", {})
    return job(arch="ssp", options=options, **more)


def field_of(given: Job) -> MeanField:
    field = mean_field_of(given)
    assert field is not None
    return field


def few_of(given: Job) -> tuple[OpGraph, float, float]:
    """The graph of a few, and iterations per second of all workers and their interval."""
    graph, found = simulate_many(field_of(given))
    assert graph.n_groups < given.workers
    return graph, float(found.iterations_per_s @ graph.group_count), found.ci_fraction


def in_the_long_run(given: Job, rounds: int = 192) -> float:
    graph = build_graph(given)
    with Simulation(graph, 7, steady=True) as run:
        run.advance(rounds // 2)
        begin = run.totals()
        run.advance(rounds)
        return (run.totals() - begin).iterations_per_s(graph)


@pytest.mark.parametrize("lead", [1, 4])
def test_a_few_with_a_bound_wait_for_those_with_the_smallest_shares(lead: int) -> None:
    """In the long run, none is more than a few steps ahead of these, and all push at once."""
    given = bound(lead)
    _, rate, ci = few_of(given)
    assert ci < 0.06
    assert rate == pytest.approx(in_the_long_run(given, 800), rel=ci + 0.01)
    unbound = simulate(build_graph(job()), seed=3)
    assert rate < 0.6 * float(unbound.iterations_per_s.sum())


def test_a_few_on_links_that_are_full_in_both_directions() -> None:
    given = job()
    field = field_of(given)
    assert field.together is not None
    _, rate, ci = few_of(given)
    assert rate == pytest.approx(in_the_long_run(given), rel=ci)
    assert ci < 0.1


def test_half_of_what_unequal_workers_lose_in_waves_is_part_of_the_interval(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The few lose more by waves than all do, whose shares of four links disperse them."""
    given = job(options={"servers": 4, "split_above_bytes": 0.0})
    graph, rate, ci = few_of(given)
    whole = in_the_long_run(given)
    assert rate == pytest.approx(whole, rel=ci)
    assert rate < 0.97 * whole
    monkeypatch.setattr(engine, "UNEQUAL", 1.0)
    field = field_of(given)
    _, same, narrow = few_of(given)
    evenly = engine._guessed(field, 0, 0.01, None)[0].guess * WORKERS
    missing = 1.0 + 2.0 * (1.0 / graph.n_groups - 1.0 / WORKERS)
    assert same == rate
    assert ci - narrow == pytest.approx((evenly / rate * missing - 1.0) / 2.0, abs=0.003)
