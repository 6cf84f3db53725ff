"""Asynchronous jobs of many workers: a few rounds from each start, and how precise these are."""

from __future__ import annotations

import time
from typing import Any

import msgspec
import numpy as np
import pytest

from perfmodel import Straggler, build_graph, make_job, predict
from perfmodel.engine import leads, progress, run as run_module, starts, warmup
from perfmodel.engine.run import Simulation
from perfmodel.engine.simulation import simulate
from perfmodel.engine.state import moved_bytes
from perfmodel.graph.op_graph import OpGraph
from perfmodel.inputs.job import Job
from perfmodel.predicting import budget
from tests.effort import counted
from tests.jobs import cluster, workload

FULL_S = 0.05
"""Seconds of a server's update in :func:`full`."""


def full(workers: int = 200, **more: Any) -> Job:
    """Workers that compute for 3 s and keep the server's threads busy for 0.05 s: sixty would be
    enough to keep the server busy."""
    return make_job(
        workload=workload([0.5, 0.5], [1.0, 1.0], [2.0, 1.0], batch_size=4),
        cluster=cluster(1000.0, update_per_tensor_s=FULL_S / 2.0),
        workers=workers,
        arch="asp",
        **more,
    )


def test_a_full_server_is_as_fast_as_its_updates(monkeypatch: pytest.MonkeyPatch) -> None:
    """20 iterations per second, computing for 3 of every 10 s; known after a few rounds."""
    found, rounds = counted(build_graph(full()), monkeypatch)
    rate = float(found.iterations_per_s.sum())
    assert rate == pytest.approx(20.0, rel=max(found.ci_fraction, 1e-3))
    assert found.ci_fraction <= 0.01
    assert found.busy_fraction.mean() == pytest.approx(0.3, rel=0.01)
    idle = 1.0 - found.busy_fraction
    assert found.wait_fraction.sum(axis=1) == pytest.approx(idle)
    mean = float(found.staleness @ np.arange(len(found.staleness))) / float(found.staleness.sum())
    assert mean == pytest.approx(199.0, rel=0.01)  # every other worker updates once in between
    assert rounds < 32
    monkeypatch.setattr(progress, "MANY_GROUPS", 1000)
    _, more = counted(build_graph(full()), monkeypatch)
    assert more > 4 * rounds


def test_canary_a_slower_server_is_noticed() -> None:
    found = simulate(build_graph(full()))
    assert float(found.iterations_per_s.sum()) != pytest.approx(20.4, rel=found.ci_fraction)


def test_progress_counts_what_the_busiest_resource_does() -> None:
    """The weights of a worker's ops are their shares of its work at the server, by hand: two
    updates of 0.025 s."""
    graph = build_graph(full(130))
    ops, group, weight, link = progress._weighted(graph)
    assert np.bincount(group, weight) == pytest.approx(np.ones(130))
    assert len(ops) == 2 * 130
    assert weight == pytest.approx(np.full(260, 0.5))
    assert not link


def behind_a_link(**options: Any) -> OpGraph:
    """Workers that compute for 3 s and push 100 bytes over the server's link, 1000 bytes/s."""
    job = make_job(
        workload=workload([1.0], [2.0], [100.0], batch_size=4),
        cluster=cluster(1000.0),
        workers=150,
        arch="asp",
        options=options,
    )
    return build_graph(job)


def test_progress_counts_the_bytes_that_a_full_link_has_moved() -> None:
    """A worker's iteration is 100 bytes, so all have made the progress that the link has moved."""
    graph = behind_a_link()
    *_, link = progress._weighted(graph)
    assert link
    crosses = np.repeat(np.arange(len(graph.route_weight)), np.diff(graph.route_start))
    server = int(np.argmax(np.bincount(graph.route_links)))
    with Simulation(graph, 1) as run:
        for _ in zip(range(5), run.steps(3, 97), strict=False):
            moved = moved_bytes(run.world)[crosses[graph.route_links == server]].sum()
            found = progress.progress(graph, run.world)
            assert found.sum() == pytest.approx(moved / 100.0, rel=1e-9)
        assert moved > 0.0
        assert (found % 1.0 > 0.0).any()


def test_a_full_link_is_as_fast_as_its_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten iterations per second, known after a few rounds if the other direction is not full, too:
    workers push a quarter of the bytes."""
    graph = behind_a_link(compression="quantised", quantised_bits=8)
    found, rounds = counted(graph, monkeypatch)
    assert float(found.iterations_per_s.sum()) == pytest.approx(10.0, rel=1e-3)
    assert rounds < 32


def test_canary_transfers_that_count_from_their_start_tell_less(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    by_bytes = float(np.std(rates(behind_a_link())))
    monkeypatch.setattr(progress, "in_flight", lambda world: (np.zeros(0, int), np.zeros(0)))
    assert float(np.std(rates(behind_a_link()))) > 2.0 * by_bytes


def rates(graph: OpGraph) -> list[float]:
    with Simulation(graph, 1) as run:
        clocks = []
        for rounds in range(5, 13):
            run.advance(rounds)
            clocks.append(run.clock())
    done, time = np.array(clocks).T
    return (np.diff(done) / np.diff(time)).tolist()


def test_canary_iterations_that_end_in_bursts_tell_less(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = build_graph(full())
    by_work = float(np.std(rates(graph)))
    monkeypatch.setattr(progress, "MANY_GROUPS", 1000)
    assert float(np.std(rates(graph))) > 4.0 * by_work


@pytest.mark.parametrize(("workers", "least_s", "most_s"), [(200, 9.9, 10.0), (100, 4.9, 5.0)])
def test_workers_start_within_a_round_of_a_full_server(
    workers: int, least_s: float, most_s: float
) -> None:
    """By hand: 200 updates of 0.05 s take 10 s, an iteration of a worker that is alone 3.05 s."""
    graph = build_graph(full(workers))
    with Simulation(graph, 1) as run:
        assert 2.9 < float(np.max(run.world.late)) <= 3.1
    with Simulation(graph, 1, steady=True) as run:
        assert least_s < float(np.max(run.world.late)) <= most_s


def test_workers_start_within_an_iteration_if_no_server_is_full() -> None:
    """20 updates of 0.05 s take 1 s, which is less than 3.05 s."""
    with Simulation(build_graph(full(20)), 1, steady=True) as run:
        assert 2.8 < float(np.max(run.world.late)) <= 3.1


def both_ways(workers: int = 150) -> OpGraph:
    """Workers that compute for 0.03 s, push 100 bytes and pull 100 bytes at 1000 bytes/s."""
    job = make_job(
        workload=workload([0.01], [0.02], [100.0], batch_size=4),
        cluster=cluster(1000.0),
        workers=workers,
        arch="asp",
    )
    return build_graph(job)


@pytest.mark.parametrize(("workers", "full"), [(30, 0.97), (150, 1.0)])
def test_workers_that_have_drifted_apart_fill_both_directions(workers: int, full: float) -> None:
    """Ten iterations per second: each direction moves 1000 bytes/s all the time. 30 workers lose 3
    % in the long run (rounds 1025 to 2048 of three starts: 9.69, 9.70 and 9.72)."""
    found = simulate(both_ways(workers))
    assert float(found.iterations_per_s.sum()) == pytest.approx(10.0 * full, rel=0.01)
    assert np.sort(found.link_utilisation)[-2:] == pytest.approx([1.0, 1.0], abs=0.05)


@pytest.mark.parametrize("workers", [30, pytest.param(150, marks=pytest.mark.slow)])
def test_canary_workers_that_start_together_take_turns(
    workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All push, then all pull, so that each direction is idle for a part of the time. This ends
    within hundreds of rounds, so runs are short here."""
    monkeypatch.setattr(run_module, "busiest_s", lambda graph: 0.0)
    monkeypatch.setattr(warmup, "may_come_in_waves", lambda graph: False)
    found = simulate(both_ways(workers))
    assert float(found.iterations_per_s.sum()) < 9.6


@pytest.mark.slow
def test_with_unequal_shares_the_start_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    """AlexNet on a server at 1 Gbps: shares as TCP makes them dissolve bursts, equal ones do not
    (decision 0092), in hundreds of rounds. A full link moves its capacity over the model's
    bytes, in each direction."""
    monkeypatch.setattr(progress, "MANY_GROUPS", 1000)
    equal = make_job(model="alexnet", arch="asp", workers=64, bandwidth="1Gbps", jitter=0.1)
    queue = msgspec.structs.replace(equal.cluster, queue_bytes=512 * 1024.0)
    unequal = msgspec.structs.replace(equal, cluster=queue)
    model_bytes = equal.workload.gradient_bytes
    full_per_s = float(build_graph(equal).link_capacity_bytes_per_s.min()) / model_bytes
    apart = [iterations_per_s(job) for job in (equal, unequal)]
    monkeypatch.setattr(run_module, "busiest_s", lambda graph: 0.0)
    together = iterations_per_s(unequal)
    assert [*apart, together] == pytest.approx([full_per_s] * 3, rel=0.04)


def iterations_per_s(job: Job) -> float:
    """Iterations per second of all workers."""
    return float(simulate(build_graph(job), rel_ci=0.03).iterations_per_s.sum())


def of_small_updates(workers: int = 200, arch: str = "asp") -> OpGraph:
    """As :func:`full`, with eight updates of 0.00625 s in place of two of 0.025 s."""
    job = make_job(
        workload=workload([0.125] * 8, [0.25] * 8, [1.0] * 8, batch_size=4),
        cluster=cluster(1000.0, update_per_tensor_s=FULL_S / 8.0),
        workers=workers,
        arch=arch,
    )
    return build_graph(job)


def test_the_utilisation_of_a_full_server_by_hand() -> None:
    """200 iterations are 10 s of work, for which workers that are alone need 3.05 s."""
    graph = of_small_updates()
    assert progress.busy_for_sure(graph, np.ones(200), 10.0) == pytest.approx(1.0)
    assert progress.busy_for_sure(graph, np.ones(200), 12.5) == pytest.approx(0.8)
    few, large = of_small_updates(100), build_graph(full())
    assert progress.busy_for_sure(few, np.ones(100), 5.0) == 0.0  # 5 s are less than twice 3.05 s
    assert progress.busy_for_sure(large, np.ones(200), 10.0) == 0.0  # an update is half of the work


def test_the_utilisation_by_exchanges_every_few_steps_by_hand() -> None:
    """Every fourth step of 300 workers takes 0.05 s of updates: a step of all 3.75 s. Of 200
    workers it is 2.5 s, less than the 3 s for which a step keeps their devices busy."""
    job = make_job(
        workload=workload([0.5, 0.5], [1.0, 1.0], [2.0, 1.0], batch_size=4),
        cluster=cluster(1000.0, update_per_tensor_s=FULL_S / 2.0),
        workers=300,
        arch="easgd",
        options={"period": 4},
    )
    assert progress.busy(build_graph(job), np.ones(300), 5.0) == pytest.approx(0.75)
    fewer = msgspec.structs.replace(job, workers=200)
    assert progress.busy(build_graph(fewer), np.ones(200), 5.0) == pytest.approx(0.6)


@pytest.mark.parametrize("workers", [59, 61, 100])
def test_idleness_is_that_of_the_throughput(workers: int) -> None:
    """Workers compute for 3 s in each iteration; sixty keep the server busy. Single ones have made
    more progress than they can on average."""
    found = simulate(build_graph(full(workers, jitter=0.1)))
    computing = 3.0 * float(found.iterations_per_s.sum()) / workers
    assert found.busy_fraction.mean() == pytest.approx(min(computing, 1.0), rel=1e-9)
    assert found.busy_fraction.max() <= 1.0
    waits = found.wait_fraction.sum(axis=1)
    assert waits == pytest.approx(1.0 - found.busy_fraction, abs=1e-9)


@pytest.mark.parametrize("arch", ["asp", "ssp"])
def test_one_start_is_enough_if_a_server_is_always_busy(arch: str) -> None:
    found = simulate(of_small_updates(arch=arch))
    assert found.runs == 1
    assert float(found.iterations_per_s.sum()) == pytest.approx(20.0, rel=found.ci_fraction)
    assert 0.0025 <= found.ci_fraction <= 0.01
    assert simulate(build_graph(full())).runs >= 2


def test_workers_whose_exchanges_take_no_time_have_no_links() -> None:
    """Two workers on a node without links compute for 3 s, and average at once."""
    work = workload([1.0], [2.0], [10.0])
    given = {"arch": "local_sgd", "workers": 2, "start": "staggered"}
    found = predict(
        make_job(workload=work, cluster=cluster(devices_per_node=2), **given), fidelity="fine"
    )
    assert found.iteration_s == pytest.approx(3.0, rel=1e-4)


def test_one_start_halves_the_rounds_of_workers_with_a_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _, rounds = counted(of_small_updates(arch="ssp"), monkeypatch)
    right = progress.busy_for_sure
    monkeypatch.setattr(progress, "busy_for_sure", lambda *given: 0.99 * right(*given))
    _, more = counted(of_small_updates(arch="ssp"), monkeypatch)
    assert more >= 2 * rounds


def test_a_server_that_is_always_busy_is_known_after_three_rounds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every other of 200 workers updates once in between, after the first two rounds; queues are
    not waited for if that takes many operations."""
    monkeypatch.setattr(warmup, "SETTLING_OPS", 0)
    found, rounds = counted(of_small_updates(), monkeypatch)
    assert (rounds, found.rounds) == (warmup.EVIDENT, 1)
    mean = float(found.staleness @ np.arange(len(found.staleness))) / float(found.staleness.sum())
    assert mean == pytest.approx(199.0, rel=1e-3)
    assert found.busy_fraction.mean() == pytest.approx(0.3, rel=0.01)  # 3 of every 10 s
    right = progress.busy_for_sure
    monkeypatch.setattr(progress, "busy_for_sure", lambda *given: 0.99 * right(*given))
    _, more = counted(of_small_updates(), monkeypatch)
    assert more > warmup.EVIDENT


def test_canary_after_two_rounds_staleness_is_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warmup, "SETTLING_OPS", 0)
    monkeypatch.setattr(warmup, "EVIDENT", 2)
    found = simulate(of_small_updates())
    mean = float(found.staleness @ np.arange(len(found.staleness))) / float(found.staleness.sum())
    assert mean != pytest.approx(199.0, rel=0.02)


def test_canary_a_server_that_is_idle_for_a_part_needs_more_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    right = progress.busy_for_sure
    monkeypatch.setattr(progress, "busy_for_sure", lambda *given: 0.99 * right(*given))
    assert simulate(of_small_updates()).runs >= 2


MANY = [
    {"arch": "asp"},
    {"arch": "asp", "jitter": 0.2},
    {"arch": "asp", "jitter": 0.1, "stragglers": [Straggler(1, 1.5), Straggler(5, 1.2)]},
    {"arch": "asp", "bandwidth": "3200Gbps", "options": {"softsync": 4}},
    {"arch": "ssp", "jitter": 0.1},
    {"arch": "ssp", "stragglers": [Straggler(1, 1.5)], "bandwidth": "3200Gbps"},
    {"arch": "easgd", "jitter": 0.1},
]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("given", MANY)
def test_few_rounds_agree_with_many(given: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    such = {"model": "alexnet", "device": "v100", "bandwidth": "100Gbps", "workers": 128} | given
    job = make_job(**such)
    short = predict(job)
    monkeypatch.setattr(progress, "MANY_GROUPS", 1000)
    long = predict(job)
    width = (short.throughput_ci_fraction or 0.0) + (long.throughput_ci_fraction or 0.0)
    rate = long.throughput_samples_per_s
    assert short.throughput_samples_per_s == pytest.approx(rate, rel=width)
    assert (short.throughput_ci_fraction or 0.0) <= 0.02
    assert short.idle_fraction.mean == pytest.approx(long.idle_fraction.mean, abs=0.005)
    assert short.staleness is not None
    assert long.staleness is not None
    assert short.staleness.mean == pytest.approx(long.staleness.mean, rel=0.05)


def test_workers_count_once_however_many_stages_they_have() -> None:
    """Ten pipelines of four stages are few, forty are many."""
    such = {"model": "llama-7b", "device": "a100-80", "arch": "asp", "pipeline": 4}
    few, many = (
        build_graph(make_job(**such, workers=workers, micro_batches=4, batch_size=4))
        for workers in (10, 40)
    )
    assert (few.n_groups, progress.workers_of(few)) == (40, 10)
    assert progress.workers_of(build_graph(full(20))) == 20
    assert not progress.short_runs(few)
    assert progress.short_runs(many)


def test_an_interval_of_short_runs_has_a_floor() -> None:
    assert simulate(build_graph(full())).ci_fraction >= 0.25 * 0.01
    assert starts.RESOLUTION_OF_SHORT > starts.RESOLUTION


def test_a_thousand_workers_are_within_the_limit() -> None:
    job = make_job(model="resnet50", arch="asp", workers=1024)
    expected = budget._expected(job, lambda small: build_graph(small))
    assert expected is not None
    assert 5e6 < expected.ops < budget.MOST_OPS


def test_a_quick_test_tells_that_no_workers_are_tied(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers with a bound are tied, those without are not, with one server or three."""
    apart = [{"arch": "asp"}, {"arch": "asp", "options": {"servers": 3}}, {"arch": "adpsgd"}]
    for given in apart:
        graph = build_graph(make_job(model="resnet18", workers=5, **given))
        quick = leads._find_ties(graph)
        with monkeypatch.context() as patch:
            patch.setattr(leads, "_apart", lambda *given: False)
            slow = leads._find_ties(graph)
        assert leads._apart(graph, graph.edge_source, graph.edge_target)
        assert not quick.any
        assert not slow.any
        assert (quick.weight == slow.weight).all()
        assert len(set(quick.component)) == len(set(slow.component)) == 5
    tied = build_graph(make_job(model="resnet18", workers=5, arch="ssp"))
    assert not leads._apart(tied, tied.edge_source, tied.edge_target)


def test_both_ways_find_the_same_components(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = build_graph(full(20))
    ends = graph.n_ops, graph.edge_source, graph.edge_target
    slow = leads.strong_components(*ends)
    monkeypatch.setattr(leads, "BY_SCIPY", 0)
    fast = leads.strong_components(*ends)
    assert (np.unique(slow, return_inverse=True)[1].max()) == np.unique(fast).size - 1
    pairs = set(zip(slow.tolist(), fast.tolist(), strict=True))
    assert len(pairs) == len(set(slow.tolist()))


@pytest.mark.slow
def test_a_thousand_workers_take_little_longer_than_sixty_four() -> None:
    """Processor time of both in the same run; without short runs they would take 16 times as
    long. The small one is simulated first, so that nothing has to be loaded for the other."""
    spent = []
    for workers in (64, 1024):
        such = make_job(model="alexnet", device="v100", arch="asp", workers=workers, jitter=0.05)
        begin = time.process_time()
        predict(such)
        spent.append(time.process_time() - begin)
    assert spent[1] < 8.0 * spent[0]
