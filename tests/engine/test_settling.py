"""Transients: how long they last, how they look, and that results exclude them."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components

import perfmodel
from perfmodel.api import build_graph
from perfmodel.engine import leads, warmup
from perfmodel.engine.leads import possible_loss, settled_after, strong_components, ties_of
from perfmodel.engine.measures import RunSpread
from perfmodel.engine.run import Simulation
from perfmodel.engine.simulation import first_iterations, makespan, run_spread, simulate
from perfmodel.graph.builder import GraphBuilder
from perfmodel.graph.op_graph import OpGraph
from perfmodel.inputs.job import Job, Straggler
from tests.jobs import ETHERNET, cluster, job, workload
from tests.uneven import SYSTEMS, uneven_job

RESNET: dict[str, Any] = {
    "model": "resnet50",
    "device": "v100",
    "cluster": ETHERNET,
    "bandwidth_bytes_per_s": 100e9 / 8,
}


def bounded(**more: Any) -> Job:
    """Three equal workers and a slower one, which may lag ten iterations behind."""
    return perfmodel.make_job(
        **RESNET,
        workers=4,
        arch="ssp",
        options={"staleness_bound": 10},
        stragglers=(Straggler(3, 1.1),),
        **more,
    )


def pace(graph: OpGraph, seed: int, skipped: int, rounds: int) -> float:
    """Iterations per second of all workers in ``rounds`` rounds after ``skipped`` rounds."""
    with Simulation(graph, seed) as run:
        run.advance(skipped)
        before = run.clock()
        run.advance(skipped + rounds)
        after = run.clock()
    return (after[0] - before[0]) / (after[1] - before[1])


# -- steady state ------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_bound_reached_after_a_hundred_iterations_is_found() -> None:
    """The slow worker takes 1.1 times as long, so that ten iterations are lost in 110."""
    found = perfmodel.predict(bounded())
    exact = perfmodel.predict(bounded(start="together"))
    assert exact.throughput_ci_fraction == 0.0
    assert exact.throughput_samples_per_s == pytest.approx(1321.6, abs=0.1)
    for answer in (found, exact):
        assert answer.idle_fraction.mean == pytest.approx(0.0688, abs=0.0005)
    off = found.throughput_samples_per_s / exact.throughput_samples_per_s - 1.0
    assert abs(off) <= found.throughput_ci_fraction
    assert 95 <= found.transient_iterations <= 125


def test_canary_without_couplings_the_transient_is_taken_for_the_steady_state(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    untied = leads.Ties(np.arange(4), np.zeros(0, int), np.zeros(0, int), np.full(4, 0.25), 0)
    monkeypatch.setattr(warmup, "ties_of", lambda graph: untied)
    found = perfmodel.predict(bounded())
    assert found.throughput_samples_per_s > 1.05 * 1321.6


def ring(workers: int, jitter: float) -> Job:
    return job(
        workload([0.1], [0.2], [1e7]),
        cluster(1e9),
        workers,
        "d_psgd",
        stragglers=(Straggler(0, 1.2),),
        jitter=perfmodel.Jitter(jitter),
    )


@pytest.mark.slow
def test_a_delay_that_travels_one_neighbour_an_iteration_reaches_all() -> None:
    """In the long run, every worker of a ring is as slow as the slowest with its jitter: after the
    48 iterations in which the delay goes half around it. Before, the pace is 17 % higher."""
    workers = 96
    found = perfmodel.predict(ring(workers, 0.05))
    graph = build_graph(ring(workers, 0.05))
    steady = pace(graph, 7, 4 * workers, 40 * workers)
    assert found.throughput_samples_per_s == pytest.approx(
        steady, rel=found.throughput_ci_fraction + 0.002
    )


def test_a_long_transient_of_a_deterministic_run_ends_in_a_period() -> None:
    """60 iterations are lost after 660, far beyond the rounds in which a period is sought."""
    slow = job(
        workload([0.5], [0.5], [1.0]),
        cluster(1e9),
        3,
        "ssp",
        {"staleness_bound": 60},
        stragglers=(Straggler(1, 1.1),),
    )
    found = simulate(build_graph(slow))
    assert found.periodic
    assert found.iterations_per_s == pytest.approx(np.full(3, 1 / 1.1), rel=1e-6)


def test_bounds_that_are_never_reached_cost_no_time() -> None:
    """A pilot suffices for equal workers with a bound, and for unequal ones without."""
    for options, slow in (
        ({"sync": "ssp", "staleness_bound": 3}, ()),
        ({"sync": "asp"}, (Straggler(0, 1.3),)),
    ):
        work = workload([0.5], [0.5], [1.0])
        found = simulate(
            build_graph(
                job(work, cluster(1e9), 4, "ps", options, stragglers=slow, start="staggered")
            )
        )
        assert found.rounds <= 24 * found.runs


@pytest.mark.slow
@pytest.mark.sampled(2)
@pytest.mark.parametrize("bound", [20_000, 10**9])
@pytest.mark.parametrize("slow", [(), (Straggler(0, 2.0),)])
def test_a_bound_beyond_every_pilot_costs_no_more_than_a_small_one(
    bound: int, slow: tuple[Straggler, ...]
) -> None:
    """Workers that differ are not waited for; the interval includes the rate at the bound."""
    work, options = workload([0.5], [0.5], [1.0]), {"staleness_bound": bound}
    drifting = job(work, cluster(1e9), 2, "ssp", options, stragglers=slow, start="staggered")
    found = simulate(build_graph(drifting))
    assert found.rounds <= 2 * 768 * found.runs
    rate = float(found.iterations_per_s.sum())
    assert rate == pytest.approx(1.5 if slow else 2.0, rel=1e-3)
    if slow:
        assert abs(1.0 - rate) <= found.ci_fraction * rate


@pytest.mark.slow
def test_a_drift_too_slow_to_end_widens_the_interval() -> None:
    """If speeds differ by 0.3 %, it takes 300 000 iterations to reach a bound of 1000."""
    drifting = job(
        workload([0.5], [0.5], [1.0]),
        cluster(1e9),
        2,
        "ssp",
        {"staleness_bound": 1000},
        stragglers=(Straggler(0, 1.003),),
        start="staggered",
    )
    found = simulate(build_graph(drifting))
    rate = float(found.iterations_per_s.sum())
    assert rate == pytest.approx(2.0 / 1.0015, rel=1e-3)
    assert found.ci_fraction > 0.0015 * 0.9
    assert abs(2.0 / 1.003 - rate) <= found.ci_fraction * rate


# -- couplings----------------------------------------------------------------------------------


def graph_of(arch: str, options: dict[str, Any], workers: int = 4) -> OpGraph:
    return build_graph(
        job(workload([0.5], [0.5], [1.0]), cluster(1e3), workers, arch, options, start="staggered")
    )


@pytest.mark.parametrize(
    ("arch", "options", "sets", "longest"),
    [
        ("asp", {}, 4, 1),
        ("ssp", {"staleness_bound": 7}, 1, 8),
        ("ssp", {"staleness_bound": "inf"}, 4, 1),
        ("asp", {"softsync": 2}, 4, 1),
        ("easgd", {"period": 4}, 4, 4),
        ("ad_psgd", {}, 4, 1),
        ("d_psgd", {}, 1, 1),
        ("p2p", {}, 1, 1),
        ("gosgd", {"probability": 0.5, "queue": 8}, 4, 17),
        ("gosgd", {"probability": 0.5, "queue": 2, "merge_per_model_s": 0.1}, 4, 5),
    ],
)
def test_workers_are_coupled_if_one_waits_for_the_other(
    arch: str, options: dict[str, Any], sets: int, longest: int
) -> None:
    ties = ties_of(graph_of(arch, options))
    assert len(np.unique(ties.component)) == sets
    assert ties.longest == longest


nodes = st.integers(0, 19)


@given(st.lists(st.tuples(nodes, nodes), max_size=50))
def test_strong_components_are_those_of_scipy(edges: list[tuple[int, int]]) -> None:
    source, target = np.array(edges, np.int32).reshape(-1, 2).T
    joined = coo_matrix((np.ones(len(edges)), (source, target)), shape=(20, 20))
    sets, expected = connected_components(joined, connection="strong")
    found = strong_components(20, source, target)
    pairs = set(zip(found.tolist(), expected.tolist(), strict=True))
    assert len(pairs) == sets == len(set(found.tolist()))


def test_a_quorum_ties_no_worker_to_the_slowest() -> None:
    """With a backup worker the slowest may be late forever, but it never gets ahead."""
    late = graph_of("bsp", {"backup_workers": 1})
    assert not ties_of(late).any


def test_sends_that_fall_behind_are_a_lead_of_their_worker() -> None:
    """Two seconds of computing, three of sending: another model is in flight every third step."""
    b = GraphBuilder()
    device, line = b.slots("device", (1,)), b.slots("line", (1,))
    compute = b.ops("compute", (1,), seconds=2.0, slot=device)
    send = b.ops("send", (1,), seconds=3.0, slot=line)
    b.edge(compute, send)
    b.edge(send, compute, lag=40)
    graph = b.build(device=device, mark=compute)
    ties = ties_of(graph)
    with Simulation(graph, 0, False) as run:
        run.advance(30)
        assert ties.lead(run.world) == pytest.approx(10.0, abs=1.5)
        run.advance(300)
        assert ties.lead(run.world) == pytest.approx(40.0, abs=1.5)


def test_possible_loss_of_growing_and_settled_leads() -> None:
    rounds = np.arange(301.0)
    assert possible_loss((0.01 * rounds).tolist(), 1000) == pytest.approx(0.01, rel=0.05)
    assert possible_loss([3.0] * 301, 1000) == 0.0
    by_chance = np.sqrt(rounds)
    slope = (by_chance[201:].mean() - by_chance[101:201].mean()) / 100
    found = possible_loss(by_chance.tolist(), 1000)
    assert found == pytest.approx(slope * by_chance[201:].mean() / 1000, rel=0.2)
    assert possible_loss(by_chance.tolist(), 1) == pytest.approx(slope)


def test_a_lead_has_settled_once_it_reaches_its_final_value() -> None:
    assert settled_after([0.0]) == 0
    assert settled_after([*range(11), *[10] * 50]) == 10
    assert settled_after(list(range(61))) == 51


# -- the transient itself ----------------------------------------------------------------------


@pytest.mark.slow
def test_the_first_iterations_are_those_before_the_bound() -> None:
    start = perfmodel.predict(bounded(start="together"), iterations=50)
    graph = build_graph(bounded(start="together"))
    assert start.iterations == 50
    assert start.throughput_ci_fraction == 0.0
    assert start.throughput_samples_per_s == pytest.approx(128.0 * pace(graph, 0, 0, 50), rel=0.01)
    assert start.throughput_samples_per_s > 1.05 * 1321.6
    assert start.idle_fraction.mean < 0.02
    later = perfmodel.predict(bounded(start="together"), iterations=1000)
    assert 1321.6 < later.throughput_samples_per_s < 1.01 * 1321.6


def test_the_first_iteration_of_a_synchronous_job_ends_for_all_workers_together() -> None:
    one = job(workload([1.0], [2.0], [8.0]), cluster(2.0), 3, "bsp", {"overlap": False})
    graph = build_graph(one)
    found = first_iterations(graph, 1)
    assert found.elapsed_s == pytest.approx(makespan(graph), rel=0.5)
    assert found.rounds == 1
    assert found.runs == 1


def test_random_starts_are_repeated_until_the_interval_is_narrow() -> None:
    noisy = bounded(jitter=0.1)
    found = perfmodel.predict(noisy, iterations=20, rel_ci=0.05)
    assert 0.0 < found.throughput_ci_fraction <= 0.05


@pytest.mark.family("many draws")
@pytest.mark.slow
def test_the_interval_of_a_short_run_matches_the_spread_of_such_runs() -> None:
    noisy = bounded(jitter=0.3)
    graph = build_graph(noisy)
    long_run = perfmodel.predict(noisy, rel_ci=0.02)
    short = perfmodel.predict(noisy, rel_ci=0.02, run_iterations=10)
    assert short.iteration_s == long_run.iteration_s
    assert short.interval is not None
    assert long_run.interval is not None
    assert (short.interval.iterations, long_run.interval.iterations) == (10, None)
    rates = []
    for seed in range(40):
        with Simulation(graph, 100 + seed) as run:
            run.advance(200)
            before = run.clock()
            run.advance(210)
            after = run.clock()
        rates.append((after[0] - before[0]) / (after[1] - before[1]))
    spread = float(np.log(rates).std(ddof=1))
    found = short.interval.parts.measurement
    assert found == pytest.approx(spread, rel=0.4)
    assert found > 2.0 * long_run.interval.parts.measurement
    assert "10 iterations" in short.interval.text or found < short.interval.parts.model


@pytest.mark.slow
def test_runs_of_a_deterministic_job_do_not_differ() -> None:
    graph = build_graph(bounded(start="together"))
    assert run_spread(graph, 5, warmup=5) == RunSpread()
    noisy = build_graph(bounded(jitter=0.3))
    few, many = (run_spread(noisy, n, warmup=20).throughput for n in (4, 40))
    assert few > 1.5 * many > 0.0


def test_the_first_iterations_have_the_interval_of_one_run() -> None:
    found = perfmodel.predict(bounded(jitter=0.3), iterations=5)
    assert found.interval is not None
    assert found.interval.iterations == 5
    assert found.interval.parts.measurement > found.throughput_ci_fraction


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"run_iterations": 0}, "run_iterations: must be at least 1, got 0"),
        ({"run_iterations": 5, "iterations": 5}, "run_iterations: cannot be combined with"),
        ({"iterations": 0}, "iterations: must be at least 1, got 0"),
        ({"iterations": 10_000_000}, "iterations: must be at most 1000000"),
        ({"iterations": 5, "fidelity": "coarse"}, "iterations: needs fidelity fine"),
        ({"iterations": 5, "dataset_size": 100}, "needs the steady state"),
    ],
)
def test_wrong_iterations_are_refused(more: dict[str, Any], words: str) -> None:
    with pytest.raises(perfmodel.InputError, match=words):
        perfmodel.predict(bounded(), **more)


# -- intervals ---------------------------------------------------------------------------------


def long_run(graph: OpGraph, rounds: int, runs: int, seed: int) -> float:
    """The rate over a run 20 times as long, or with more starts if these are random."""
    times = 20
    if graph.staggered:
        times = 5 if graph.noisy else 1
        runs *= 20 // times
    each = max(rounds, 1) * times
    work = time = 0.0
    for k in range(runs):
        with Simulation(graph, 1000 * seed + k + 1, True) as run:
            run.advance(200 + each // 4)
            before = run.clock()
            run.advance(run.rounds + each)
            after = run.clock()
        work, time = work + after[0] - before[0], time + after[1] - before[1]
    return work / time


@functools.cache
def offs() -> dict[int, tuple[float, float]]:
    """By seed of a random job: its rate over that of the long run, and the half-width of its
    interval; without periodic jobs."""
    ratios = {}
    for seed in range(7 * len(SYSTEMS), 14 * len(SYSTEMS)):  # as many of each kind
        graph = build_graph(uneven_job(seed))
        found = simulate(graph, seed=seed, compiled=True)
        if not found.periodic:
            rate = float((found.iterations_per_s * graph.group_count).sum())
            steady = long_run(graph, found.rounds // found.runs, found.runs, seed)
            ratios[seed] = rate / steady, found.ci_fraction
    return ratios


def covered(wrong_by: float = 0.0) -> float:
    """Share of random jobs whose interval holds the long run."""
    held = [abs(ratio * (1.0 + wrong_by) - 1.0) <= half for ratio, half in offs().values()]
    return float(np.mean(held))


@pytest.mark.family("many draws", unit="settling")
@pytest.mark.slow
def test_intervals_cover_92_to_98_percent_of_random_jobs() -> None:
    assert len(offs()) > 88
    assert 0.92 <= covered() <= 0.98


@pytest.mark.family("many draws", unit="settling")
@pytest.mark.slow
def test_canary_results_off_by_a_few_percent_miss_it() -> None:
    assert covered(wrong_by=0.04) < 0.5
