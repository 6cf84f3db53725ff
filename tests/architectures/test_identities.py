"""Identities and bounds that hold by construction, and their conditions.

Those between kinds of parameter servers (a bound of zero is bulk synchronous, none is asynchronous)
are in test_ps.py, those with queueing networks in test_queueing.py.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, strategies as st

from perfmodel import Cluster, Jitter, Server, Straggler, Workload, build_graph, predict
from perfmodel.architectures.registry import find, names, read_options
from perfmodel.communication import schedules
from perfmodel.engine.simulation import simulate, timeline
from perfmodel.graph.op_graph import OpGraph
from perfmodel.theory import collective_times
from tests import oracles
from tests.jobs import cluster, job, third_of_variants, whole_groups, workload, workloads
from tests.oracles import equal
from tests.settings import examples
from tests.theory.test_closed_forms import one_worker_s

few = examples(5)
WORK = workload([1.0, 2.0], [2.0, 3.0], [30.0, 60.0], batch_size=4)
"""8 s of computation and no optimizer, whose time architectures count in different places."""
COMPUTE_S = 8.0
rates = st.sampled_from([1.0, 13.0, 100.0])
latencies = st.sampled_from([0.0, 0.25])


def asynchronous(arch: str, options: dict[str, Any]) -> bool:
    architecture, _ = find(arch)
    return read_options(architecture, options).asynchronous


def synchronous(arch: str, options: dict[str, Any]) -> bool:
    return not asynchronous(arch, options)


SERVERS = {"ps", "easgd"}


# -- one worker ------------------------------------------------------------------------------------


def takes_the_time_of_its_device(
    arch: str, options: dict[str, Any], work: Workload, where: Cluster, workers: int = 1
) -> None:
    """Check that an iteration is computation plus optimizer step, without waiting."""
    result = predict(job(work, where, workers, arch, options))
    equal(result.iteration_s, work.compute_s)
    assert abs(result.idle_fraction.mean) <= 1e-9


def without_a_server(arch: str, options: dict[str, Any]) -> bool:
    """Return whether one worker has no peer or server to communicate with."""
    return arch not in SERVERS


@third_of_variants(without_a_server)
@few
@given(work=workloads(), rate=rates, latency=latencies)
def test_one_worker_without_a_server_is_a_single_device(
    arch: str, options: dict[str, Any], work: Workload, rate: float, latency: float
) -> None:
    """With any options: there is no communication."""
    takes_the_time_of_its_device(arch, options, work, cluster(rate, latency))


@pytest.mark.parametrize("arch", sorted(set(names()) - SERVERS - {"gosgd", "ad_psgd"}))
def test_canary_two_workers_are_not_a_single_device(arch: str) -> None:
    with pytest.raises(AssertionError):
        takes_the_time_of_its_device(arch, {}, WORK, cluster(1.0), workers=2)


@pytest.mark.parametrize(
    "options",
    [
        {"sync": "bsp"},
        {"sync": "asp"},
        {"sync": "ssp", "staleness_bound": 0},
        {"sync": "ssp", "staleness_bound": "inf"},
        {"sync": "bsp", "local_aggregation": True},
        {"sync": "asp", "transmission": "quantum", "quantum_bytes": 1000},
        {"sync": "asp", "partition_bytes": 7},
    ],
)
@few
@given(work=workloads(), rate=rates)
def test_one_worker_and_a_server_take_the_closed_form(
    options: dict[str, Any], work: Workload, rate: float
) -> None:
    """No latency, no cost of the update, one message after the other, in order: there is
    only one worker to wait for. Parts of a layer follow each other, so they change nothing."""
    result = predict(job(work, cluster(rate), 1, "ps", options))
    equal(result.iteration_s, one_worker_s(work, rate))


def test_canary_two_workers_do_not_take_the_closed_form_of_one() -> None:
    expected = one_worker_s(WORK, 20.0)
    equal(predict(job(WORK, cluster(20.0), 1, "ps")).iteration_s, expected)
    for changed in (job(WORK, cluster(20.0), 2, "ps"), job(WORK, cluster(19.9), 1, "ps")):
        with pytest.raises(AssertionError):
            equal(predict(changed).iteration_s, expected)


@pytest.mark.parametrize("size", [0.0, 1.0, 1e9])
def test_a_ring_of_one_takes_nothing(size: float) -> None:
    assert (
        collective_times.ring_allreduce_bytes(1, size)
        == collective_times.half_ring_bytes(1, size)
        == 0.0
    )
    assert collective_times.ring_allreduce_steps(1) == 0
    assert collective_times.ring_allreduce_bytes(2, 1.0) > 0.0


def test_a_ring_of_one_sends_nothing() -> None:
    for make in (schedules.ring_all_reduce, schedules.ring_all_gather):
        sends = [one.repeat[one.round].sum() for one in (make(1), make(2))]
        assert sends[0] == 0 < sends[1]


# -- limiting cases -------------------------------------------------------------------------------


def bytes_by_link(graph: OpGraph) -> dict[str, float]:
    """Measured bytes over each link per iteration."""
    found = simulate(graph)
    moved = found.link_utilisation * graph.link_capacity_bytes_per_s / found.iterations_per_s.mean()
    return {graph.link_name(link): size for link, size in enumerate(moved.tolist())}


def same_traffic(options: dict[str, Any], workers: int, servers: int, where: Cluster) -> None:
    elastic = {"servers": servers, **options}
    pushed = {"sync": "asp", "servers": servers, "split_above_bytes": 0}
    ours = bytes_by_link(build_graph(job(WORK, where, workers, "easgd", elastic)))
    theirs = bytes_by_link(build_graph(job(WORK, where, workers, "ps", pushed)))
    assert ours == pytest.approx(theirs, rel=1e-9)


@pytest.mark.parametrize("workers", [1, 2, 5])
@pytest.mark.parametrize("servers", [1, 2])
def test_easgd_with_a_period_of_one_moves_what_asynchronous_sgd_moves(
    workers: int, servers: int
) -> None:
    """(M + M)/1, over the same links; not with another period."""
    same_traffic({"period": 1}, workers, servers, cluster(20.0))
    with pytest.raises(AssertionError):
        same_traffic({"period": 2}, workers, servers, cluster(20.0))


@pytest.mark.parametrize("fields", [{}, {"jitter": Jitter(0.5)}], ids=["steady", "jitter"])
def test_workers_that_never_send_are_independent(fields: dict[str, Any]) -> None:
    """GoSGD with a probability of 0: each takes its own time, to the last digit, whatever the
    others and the network do. With a probability above 0 and merges they delay each other."""
    stragglers = [Straggler(1, 3.0), Straggler(3, 1.5)]
    where = cluster(1e-3, 100.0)

    def marks(options: dict[str, Any]) -> np.ndarray[Any, Any]:
        graph = build_graph(job(WORK, where, 4, "gosgd", options, stragglers=stragglers, **fields))
        ends = {(s.op, s.iteration): s.end_s for s in timeline(graph, seed=3, iterations=9)}
        return np.array([[ends[mark, i] for i in range(9)] for mark in graph.group_mark.tolist()])

    independent = marks({"probability": 0})
    if not fields:
        for worker, factor in enumerate([1.0, 3.0, 1.0, 1.5]):
            expected = factor * COMPUTE_S * np.arange(1, 10)
            np.testing.assert_allclose(independent[worker], expected, rtol=1e-12)
    for worker in range(4):
        alone = build_graph(job(WORK, where, 4, "allreduce", stragglers=stragglers, **fields))
        device = alone.group_device[worker]
        took = [
            sum(
                oracles.Instances(alone, 3)(op, i).seconds
                for op in range(alone.n_ops)
                if device in alone.held(op)
            )
            for i in range(9)
        ]
        np.testing.assert_allclose(independent[worker], np.cumsum(took), rtol=1e-12)
    together = marks({"probability": 1, "queue": 1, "merge_per_model_s": 0.5})
    assert (together[:, -1] > independent[:, -1]).any()


# -- where the time goes ---------------------------------------------------------------------------


def check_busy_plus_idle_is_the_iteration(graph: OpGraph) -> None:
    """Check that a device's busy time from the graph and its measured idle time add up to an
    iteration."""
    found = simulate(graph)
    assert found.periodic
    held = oracles.load_per_iteration(graph)[1][graph.group_device]
    idle = found.wait_fraction.sum(axis=1)
    iteration_s = 1.0 / found.iterations_per_s
    np.testing.assert_allclose(held + idle * iteration_s, iteration_s, rtol=1e-9)


def steady(arch: str, options: dict[str, Any]) -> bool:
    """Return whether a device does the same in each iteration; the time to read mail varies."""
    graph = build_graph(job(WORK, cluster(20.0), 3, arch, options))
    return not graph.noisy and "merge_per_model_s" not in options


@third_of_variants(steady)
def test_busy_and_idle_are_the_iteration(arch: str, options: dict[str, Any]) -> None:
    graph = build_graph(job(WORK, cluster(20.0, 0.25), 3, arch, options))
    check_busy_plus_idle_is_the_iteration(graph)


def test_canary_unaccounted_time_is_noticed() -> None:
    graph = build_graph(job(WORK, cluster(20.0), 3, "ps"))
    device = [op for op in range(graph.n_ops) if graph.group_device[0] in graph.held(op)]
    seconds = graph.op_seconds.copy()
    seconds[device[0]] += 0.01
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tests.architectures.test_identities.simulate", measured_by(graph))
        check_busy_plus_idle_is_the_iteration(graph)
        with pytest.raises(AssertionError):
            check_busy_plus_idle_is_the_iteration(
                msgspec.structs.replace(graph, op_seconds=seconds)
            )


def measured_by(graph: OpGraph) -> Any:
    """A stand-in for a simulation that always measures one graph."""
    found = simulate(graph)
    return lambda _: found


# -- staleness -------------------------------------------------------------------------------------


@pytest.mark.sampled(4)
@pytest.mark.parametrize("workers", [2, 4])
@pytest.mark.parametrize(
    "options",
    [
        {"servers": 2},
        {"overlap": False},
        {"transmission": "shared"},
        {"transmission": "priority", "partition_bytes": 20, "duplex": True},
        {"pull": "request", "duplex": True},
        {"compression": "quantised", "decode_per_byte_s": 0.01},
    ],
)
def test_mean_staleness_of_asynchronous_sgd_is_one_less_than_the_workers(
    workers: int, options: dict[str, Any]
) -> None:
    """Whatever the service, the speeds and the network, if a worker reads right after its own push
    was applied: each update falls into one window of each other worker.

    The windows at both ends of the measurement are cut off, hence the tolerance.
    """
    where = cluster(30.0, 0.01, server=Server(update_per_tensor_s=0.1, placement="colocated"))
    uneven = {"jitter": Jitter(0.5), "stragglers": [Straggler(0, 2.0)], "start": "staggered"}
    result = predict(job(WORK, where, workers, "ps", {"sync": "asp", **options}, **uneven))
    assert result.staleness is not None
    assert result.staleness.mean == pytest.approx(workers - 1, abs=0.05 * workers)


def test_canary_other_synchronisation_has_another_staleness() -> None:
    for options in ({"sync": "bsp"}, {"sync": "ssp", "staleness_bound": 0}, {"softsync": 4}):
        asynchronous_ones = {"sync": "asp", **options}
        result = predict(job(WORK, cluster(30.0), 4, "ps", asynchronous_ones, jitter=Jitter(0.5)))
        assert result.staleness is not None
        assert abs(result.staleness.mean - 3) > 0.5


# -- bounds ----------------------------------------------------------------------------------------


def pace(graph: OpGraph) -> tuple[float, float]:
    """Iterations of all workers per second, and the tolerance if the job is random."""
    found = simulate(graph, rel_ci=0.05)
    return float(found.iterations_per_s.sum()), oracles.error_of_pace(graph, found)


@pytest.mark.sampled(4)
@third_of_variants()
@few
@given(work=workloads(least_s=0.5), rate=st.sampled_from([13.0, 100.0]), workers=st.integers(2, 4))
def test_n_workers_obey_the_asymptotic_bounds(
    arch: str, options: dict[str, Any], work: Workload, rate: float, workers: int
) -> None:
    """X(N) <= min(N X(1), 1/D_max), where no work of the optimizer is shared out among workers."""
    work = without_optimizer(work)
    # one worker cannot have backup workers
    alone = {k: v for k, v in options.items() if k != "backup_workers"}
    workers = whole_groups(workers, options)
    graph = build_graph(job(work, cluster(rate), workers, arch, options))
    x_n, error = pace(graph)
    x_1, _ = pace(build_graph(job(work, cluster(rate), 1, arch, alone)))
    assert x_n <= workers * x_1 * (1 + 1e-9 + error)
    if not asynchronous(arch, options):  # independent workers each have their own pace and demand
        links, slots = oracles.load_per_iteration(graph)
        busy_s = [*(links / graph.link_capacity_bytes_per_s), *(slots / graph.slot_capacity)]
        assert x_n / workers * max(busy_s) <= 1 + 1e-9


def without_optimizer(work: Workload) -> Workload:
    return workload(
        [layer.forward_s for layer in work.layers],
        [layer.backward_s for layer in work.layers],
        [sum(layer.tensor_bytes) for layer in work.layers],
    )


def no_more_examples_than(
    arch: str, options: dict[str, Any], compute_s: float, where: Cluster, workers: int
) -> None:
    result = predict(job(WORK, where, workers, arch, options))
    most = workers * WORK.batch_size / compute_s
    assert result.throughput_samples_per_s <= most * (1 + 1e-9)


@pytest.mark.sampled(4)
@third_of_variants(synchronous)
@pytest.mark.parametrize("workers", [2, 4])
@pytest.mark.parametrize("bandwidth", [5.0, 1e9])
def test_synchronous_throughput_is_at_most_the_compute_rate(
    arch: str, options: dict[str, Any], bandwidth: float, workers: int
) -> None:
    """Examples/s <= N b / C."""
    no_more_examples_than(arch, options, COMPUTE_S, cluster(bandwidth), workers)


@pytest.mark.parametrize("arch", [name for name in names() if synchronous(name, {})])
def test_canary_more_samples_than_are_computed_are_noticed(arch: str) -> None:
    """Over a free link they reach exactly this rate: a bound 1 % lower would fail."""
    options = {"reduce_per_byte_s": 0.0} if arch == "p2p" else {}
    no_more_examples_than(arch, options, COMPUTE_S, cluster(1e12), 2)
    with pytest.raises(AssertionError):
        no_more_examples_than(arch, options, COMPUTE_S * 1.01, cluster(1e12), 2)
