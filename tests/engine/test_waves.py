"""Workers that come to go from one full link to the next together."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

from perfmodel import Link, Server, build_graph, make_job
from perfmodel.architectures.mean_field import mean_field_of
from perfmodel.engine import in_step, mean_field, run, starts, warmup
from perfmodel.engine.few import shared_parts
from perfmodel.engine.in_step import simulate_in_step
from perfmodel.engine.mean_field import simulate_many, simulate_mean_field
from perfmodel.engine.measures import Measures
from perfmodel.engine.run import Simulation
from perfmodel.engine.simulation import simulate
from perfmodel.graph.mean_field import MeanField
from perfmodel.graph.op_graph import OpGraph
from perfmodel.graph.work import may_come_in_waves
from perfmodel.inputs.job import Job
from tests.effort import counted
from tests.jobs import cluster, workload

FULL = 10.0
"""Iterations per second if the links of servers are full all the time: each of four moves 100 of an
iteration's 400 bytes in each direction, at 1000 bytes/s."""


def both_ways(workers: int = 40, *, update_s: float = 0.0, **options: Any) -> Job:
    """Workers that compute for 0.3 s, and push to four servers and pull from them for 4 s."""
    return make_job(
        workload=workload([0.1 / 16] * 16, [0.2 / 16] * 16, [25.0] * 16, batch_size=4),
        cluster=cluster(1000.0, update_per_tensor_s=update_s),
        workers=workers,
        arch="asp",
        options={"servers": 4} | options,
        jitter=0.1,
    )


def field_of(job: Job) -> MeanField:
    field = mean_field_of(job)
    assert field is not None
    assert field.together is not None
    return field


def rate_of(graph: OpGraph, found: Measures) -> float:
    """Iterations per second of all workers."""
    return float(found.iterations_per_s @ graph.group_count)


def in_the_long_run(graph: OpGraph, seed: int = 77, rounds: int = 256) -> float:
    """Iterations per second in the second half of so many rounds of another start."""
    with Simulation(graph, seed, steady=True) as run:
        run.advance(rounds // 2)
        begin = run.totals()
        run.advance(rounds)
        return (run.totals() - begin).iterations_per_s(graph)


def test_full_links_idle_once_workers_come_in_waves(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = build_graph(both_ways())
    rate = in_the_long_run(graph)
    assert rate < 0.95 * FULL
    monkeypatch.setattr(warmup, "WAVE_OPS", 128 * graph.n_ops)
    monkeypatch.setattr(starts, "PRECISION_OPS_OF_MANY", 512 * graph.n_ops)
    found = simulate(graph)
    assert float(found.iterations_per_s.sum()) == pytest.approx(rate, rel=found.ci_fraction + 0.01)
    assert found.ci_fraction < 0.05
    monkeypatch.setattr(warmup, "may_come_in_waves", lambda graph: False)
    early = simulate(graph)  # as if three rounds told how busy a full link stays
    assert float(early.iterations_per_s.sum()) == pytest.approx(FULL, rel=0.005)
    assert early.ci_fraction < 0.005


def test_workers_may_come_in_waves_if_two_links_are_full() -> None:
    """An update of 0.03 s for each of 25 bytes takes longer than to move them, 0.025 s; one of 0.02
    s does not. With one byte for four, pushes take a quarter of what pulls do; with 28 bits for 32,
    seven eighths."""
    assert may_come_in_waves(build_graph(both_ways()))
    assert may_come_in_waves(build_graph(both_ways(update_s=0.02)))
    assert not may_come_in_waves(build_graph(both_ways(update_s=0.03)))
    for bits, may in ((8, False), (28, True)):
        pushed = {"compression": "quantised", "quantised_bits": bits}
        assert may_come_in_waves(build_graph(both_ways(servers=1, **pushed))) == may
    graph = build_graph(both_ways())
    several = msgspec.structs.replace(graph, group_count=np.full(graph.n_groups, 2))
    assert not may_come_in_waves(several)
    field = mean_field_of(both_ways(1000))
    assert field is not None
    assert not may_come_in_waves(field.graph)


def test_links_that_stay_full_are_known_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slices that are answered at once are on their way in both directions all the time."""
    graph = build_graph(both_ways(duplex=True))
    found, rounds = counted(graph, monkeypatch)
    assert rounds < 1.1 * warmup.FULL_ROUNDS
    assert float(found.iterations_per_s.sum()) == pytest.approx(FULL, rel=1e-3)
    assert found.ci_fraction <= 0.01


@pytest.mark.parametrize(("rounds", "unseen"), [(32, 0.075), (15, 0.1)])
def test_waves_that_do_not_show_are_part_of_the_interval(
    rounds: int, unseen: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A quarter of 128 rounds leaves three quarters of it; fewer than 16 are not worthwhile."""
    graph = build_graph(both_ways())
    monkeypatch.setattr(warmup, "WAVE_OPS", rounds * graph.n_ops)
    with Simulation(graph, 1, steady=True) as run:
        pilot = warmup.warm_up(run, 0.01, 0, None)
    assert pilot.loss == pytest.approx(unseen)
    monkeypatch.setattr(starts, "PRECISION_OPS_OF_MANY", 128 * graph.n_ops)
    assert simulate(graph).ci_fraction > unseen


@pytest.mark.slow
def test_many_workers_on_full_links_come_in_waves() -> None:
    """As a few with an even load of the others do not show."""
    job = both_ways(400)
    field = field_of(job)
    rate = in_the_long_run(build_graph(job))
    even = simulate_mean_field(field)
    assert rate_of(field.graph, even) == pytest.approx(FULL, rel=0.005)
    assert rate < 0.985 * FULL
    graph, found = simulate_many(field)
    assert graph is not field.graph
    many = rate_of(graph, found)
    assert many == pytest.approx(rate, rel=found.ci_fraction)
    assert many < 0.98 * FULL


def test_a_few_workers_come_in_waves_without_jitter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of 12 workers computes for 2.4 s, and pushes eight tensors to four servers and pulls
    them, which takes as long: over hundreds of rounds they come to do so together."""
    graph = build_graph(
        make_job(
            workload=workload([0.1] * 8, [0.2] * 8, [100.0] * 8, batch_size=4),
            cluster=cluster(1000.0),
            workers=12,
            arch="asp",
            options={"servers": 4},
        )
    )
    rates = [in_the_long_run(graph, seed, rounds=512) for seed in range(70, 76)]
    found = simulate(graph)
    spread = float(np.std(rates)) / np.sqrt(len(rates)) * 2.0
    rate = float(np.mean(rates))
    assert rate_of(graph, found) == pytest.approx(rate, abs=found.ci_fraction * rate + spread)
    assert found.ci_fraction < 0.03
    monkeypatch.setattr(warmup, "may_come_in_waves", lambda graph: False)
    assert rate_of(graph, simulate(graph)) > 1.05 * rate


def slow_links(workers: int, bytes_per_s: float = 10.0) -> Job:
    """Workers that compute for 3 s, and push 10 bytes and pull as many over links of their own;
    their server's has 1000 bytes/s."""
    return make_job(
        workload=workload([0.5, 0.5], [1.0, 1.0], [5.0, 5.0], batch_size=4),
        cluster=cluster(bytes_per_s, server=Server(nic=Link(1000.0), update_per_tensor_s=5e-6)),
        workers=workers,
        arch="asp",
        jitter=0.05,
    )


def test_workers_come_in_waves_before_links_are_full() -> None:
    """Evenly, the link of the server is full for nine tenths of the time."""
    job = slow_links(380)
    field = field_of(job)
    even = simulate_mean_field(field)
    assert 0.9 < shared_parts(field, even).max() < 0.95
    rate = in_the_long_run(build_graph(job))
    assert rate_of(field.graph, even) > 1.3 * rate
    graph, found = simulate_many(field)
    assert rate_of(graph, found) == pytest.approx(rate, rel=found.ci_fraction)
    assert found.ci_fraction < 0.03
    assert field.together is not None
    waves = simulate_in_step(field.together, 0, 0.01, None, compiled=None)
    few = rate_of(graph, waves)
    assert graph.n_groups == 128
    assert rate_of(graph, found) == pytest.approx(
        few * (1.0 + 2.0 * (1 / 128 - 1 / 380) * few * 10.0 / 1000.0)
    )


def test_half_of_what_two_ways_differ_by_is_part_of_the_interval() -> None:
    """20 bytes/s: waves that lose a percent could be due to how few workers there are."""
    field = field_of(slow_links(300, 20.0))
    assert field.together is not None
    even = simulate_mean_field(field)
    waves = simulate_in_step(field.together, 0, 0.01, None, compiled=None)
    slower = 1.0 - rate_of(field.together.graph, waves) / rate_of(field.graph, even)
    graph, found = simulate_many(field)
    assert graph is field.graph
    assert abs(slower) > 0.003
    assert found.ci_fraction == pytest.approx(even.ci_fraction + abs(slower) / 2.0)


def test_waves_are_not_looked_for_on_links_with_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """5 bytes/s: the link of the server is busy for little more than half of the time."""
    monkeypatch.delattr("perfmodel.engine.mean_field.simulate_in_step")
    field = field_of(slow_links(300, 5.0))
    graph, found = simulate_many(field)
    assert 0.5 < shared_parts(field, found).max() < 0.6
    assert rate_of(graph, found) == pytest.approx(rate_of(graph, simulate_mean_field(field)))


def test_links_that_stay_full_keep_their_throughput() -> None:
    """Slices that are answered at once keep both directions full, whatever a few tell."""
    field = field_of(both_ways(300, duplex=True))
    graph, found = simulate_many(field)
    assert graph is field.graph
    assert rate_of(graph, found) == pytest.approx(FULL, rel=found.ci_fraction)
    assert found.ci_fraction < 0.02


def test_links_with_room_are_not_looked_at_twice() -> None:
    """Updates that take longer than messages fill the servers' threads; gossip has no servers."""
    gossip = make_job(workload=workload([0.1], [0.2], [25.0]), workers=600, arch="gosgd")
    for job in (both_ways(300, update_s=0.03), gossip):
        field = mean_field_of(job)
        assert field is not None
        assert field.together is None


def test_large_graphs_of_workers_in_step_have_fewer_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """A quarter of the rounds, then as many as can be afforded, half of them at least."""
    together = field_of(both_ways(400)).together
    assert together is not None
    seen: list[int] = []
    advance_all = in_step.advance_all

    def noted(runs: list[Simulation], end: int) -> None:
        seen.append(end)
        advance_all(runs, end)

    monkeypatch.setattr(in_step, "advance_all", noted)
    turns = together.graph.n_turns
    monkeypatch.setattr(in_step, "LONG_OPS", 8 * turns)
    for affordable, early, last in (
        (128, 32, 128),
        (96, 32, 96),
        (64, 32, 64),
        (32, 16, 32),
        (4, 8, 16),
    ):
        monkeypatch.setattr(in_step, "MOST_OPS", affordable * turns)
        simulate_in_step(together, 0, 1e-6, None, compiled=None)
        assert seen[-2:] == [early, last]


def test_critical_paths_are_traced_in_turn_or_in_a_few_operations(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each of 40 groups has its turn in further rounds."""
    graph = build_graph(both_ways())

    def traced() -> tuple[int, int]:
        with Simulation(graph, 1, depth=4, steady=True) as sim:
            sim.advance(4)
            begin = sim.totals()
            sim.advance(6)
            found = sim.trace_on(sim.totals() - begin, graph.span)
            return sim.rounds - 6, found.walks

    further, walks = traced()
    assert walks >= graph.n_groups
    monkeypatch.setattr(run, "TRACED_OPS", 4 * graph.n_ops)
    fewer, some = traced()
    assert 0 < fewer <= 4 < further
    assert 0 < some < walks


def test_an_even_load_is_measured_as_precisely_as_both_ways_differ(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Half of the difference is part of the interval anyway."""
    field = field_of(slow_links(300, 20.0))
    asked: list[float] = []
    measured = mean_field._measured

    def noted(field: MeanField, guessed: Any, seed: int, rel_ci: float, *how: Any) -> Measures:
        asked.append(rel_ci)
        return measured(field, guessed, seed, rel_ci, *how)

    monkeypatch.setattr(mean_field, "_measured", noted)
    simulate_many(field, rel_ci=0.01)
    assert asked == [0.01]
    assert field.together is not None
    monkeypatch.setattr(mean_field, "simulate_in_step", lambda *_, **__: wavy)
    wavy = simulate_in_step(field.together, 0, 0.01, None, compiled=None)
    slower = 0.95 * mean_field._guessed(field, 0, 0.01, None)[0].guess
    rate = field.together.mean(wavy.iterations_per_s)
    wavy = msgspec.structs.replace(wavy, iterations_per_s=wavy.iterations_per_s * slower / rate)
    simulate_many(field, rel_ci=0.01)
    assert asked[1:] == pytest.approx([0.05 / 4.0])
