"""Bytes over each link per iteration, as the sources of each architecture state them.

They are measured: link utilisation times capacity times iteration time. Each node has one worker,
or one server, and a link of its own each way; M is the model, in bytes, N the workers, P the
servers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pytest

from perfmodel import Jitter, build_graph
from perfmodel.architectures.base import Traffic
from perfmodel.architectures.registry import find, names
from perfmodel.base.arrays import Floats
from perfmodel.engine.simulation import simulate
from perfmodel.graph.op_graph import OpGraph
from tests.jobs import ALL, cluster, job, whole_groups, workload
from tests.settings import thinned

WORK = workload([1.0, 2.0], [2.0, 3.0], [30.0, 60.0], optimizer_s=0.5)
M = 90.0
BANDWIDTH = 40.0
WORKERS = (2, 3, 4, 8)


class Row(NamedTuple):
    """An architecture with options, and its traffic by the number of workers."""

    arch: str
    options: dict[str, Any]
    traffic: Callable[[int], Traffic]
    servers: int = 0

    @property
    def name(self) -> str:
        """Name of the row in pytest reports."""
        return "-".join([self.arch, *(f"{k}={v}" for k, v in self.options.items())])


def both(size: float) -> Traffic:
    """Equal traffic in both directions, without a server."""
    return Traffic(size, size)


def ps(sync: str, servers: int, **options: Any) -> Row:
    """M each way between a worker and the servers; N M / P each way at a server.

    BSP and ASP: "compute g; push g; pull w", M + M by a worker, M on the servers for each worker's
    iteration [Jia et al., IPCCC 2020; MXNet]. SSP as measured runs do it: a reply per iteration.
    """
    every = {"sync": sync, "servers": servers, "split_above_bytes": 0, **options}
    return Row("ps", every, lambda n: Traffic(M, M, n * M / servers, n * M / servers), servers)


def easgd(period: int, servers: int) -> Row:
    """(M + M)/tau by a worker, M/tau each way on the servers for each worker's local step
    [Zhang, Choromanska, LeCun, NIPS 2015]."""
    share = M / period
    each = {"period": period, "servers": servers}
    return Row(
        "easgd", each, lambda n: Traffic(share, share, n * share / servers, n * share / servers),
        servers,
    )  # fmt: skip


ONE = {"bucketing": "one"}
ROWS = [
    ps("bsp", 1),
    ps("bsp", 2),
    ps("bsp", 1, duplex=True),
    ps("bsp", 1, duplex=True, pull="request"),
    ps("asp", 1),
    ps("asp", 2, duplex=True),
    ps("asp", 1, softsync=2),
    ps("ssp", 1, staleness_bound=1),
    ps("ssp", 2, staleness_bound=0, duplex=True),
    # push g whole, in pieces or in parts: as many bytes
    ps("bsp", 1, transmission="priority", partition_bytes=7),
    ps("bsp", 1, transmission="quantum", quantum_bytes=11),
    # quantised gradients: 8 of 32 bits are pushed, all are pulled
    Row("ps", {"compression": "quantised"}, lambda n: Traffic(M / 4, M, n * M, n * M / 4), 1),
    # peer to peer, full: the full gradient to each of N - 1 peers [Alqahtani, Demirbas, 2019]
    Row("p2p", {}, lambda n: both((n - 1) * M)),
    # sharded, each node owns M/N: 2 (N-1)/N M, as a ring
    Row("p2p", {"exchange": "sharded"}, lambda n: both(2 * (n - 1) / n * M)),
    # ring: 2 (N-1)/N M each way, for any bucketing [Patarasuk, Yuan, 2009; nccl-tests]
    Row("allreduce", {}, lambda n: both(2 * (n - 1) / n * M)),
    Row("allreduce", {"each_send": True}, lambda n: both(2 * (n - 1) / n * M)),
    Row("allreduce", {"bucketing": "layer"}, lambda n: both(2 * (n - 1) / n * M)),
    Row("allreduce", {"bucketing": "horovod"}, lambda n: both(2 * (n - 1) / n * M)),
    Row("allreduce", {"bucketing": "mg_wfbp"}, lambda n: both(2 * (n - 1) / n * M)),
    # hierarchical with one device per node is a ring of nodes
    Row("allreduce", {"algorithm": "hierarchical"}, lambda n: both(2 * (n - 1) / n * M)),
    # sparse: each worker gets the parts of all others, N - 1 of 8 bytes for each 4 of a tenth
    Row("allreduce", {"compression": "top_k", "density": 0.1}, lambda n: both((n - 1) * M * 0.2)),
    # ZeRO 1 and 2: reduce-scatter and all-gather, (N-1)/N M each [Rajbhandari et al., SC 2020]
    Row("fsdp", {"stage": 1}, lambda n: both(2 * (n - 1) / n * M)),
    Row("fsdp", {"stage": 2, "unit_bytes": 0}, lambda n: both(2 * (n - 1) / n * M)),
    # ZeRO 3: parameters are gathered twice, 3 (N-1)/N M in all; once if they are kept
    Row("fsdp", {"stage": 3, "unit_bytes": 0}, lambda n: both(3 * (n - 1) / n * M)),
    Row("fsdp", {"stage": 3, "reshard_after_forward": False}, lambda n: both(2 * (n - 1) / n * M)),
    # replicas of a part of the model: a ring among N/G of them, 2 (N-G)/N M/G more; G = 1: a ring
    Row("fsdp", {"stage": 2, "shard_group": 1}, lambda n: both(2 * (n - 1) / n * M)),
    Row("fsdp", {"stage": 3, "shard_group": 2}, lambda n: both((3 / 2 + (n - 2) / n) * M)),
    # local SGD: a ring every H steps, 2 (N-1)/(N H) M [Stich, ICLR 2019]
    Row("local_sgd", {"period": 1}, lambda n: both(2 * (n - 1) / n * M)),
    Row("local_sgd", {"period": 3}, lambda n: both(2 * (n - 1) / n * M / 3)),
    # DiLoCo: the same; 4 of 32 bits of each of its fragments, or both ways through a server
    # [Douillard et al., 2023; 2025]
    Row("diloco", {"period": 3, "algorithm": "ring"}, lambda n: both(2 * (n - 1) / n * M / 3)),
    Row("diloco", {"period": 4, "fragments": 2, "sent_as": "fp4", "algorithm": "ring"},
        lambda n: both(2 * (n - 1) / n * M / 4 / 8)),
    Row("diloco", {"period": 3, "exchange": "server"},
        lambda n: Traffic(M / 3, M / 3, n * M / 3, n * M / 3), 1),
    # D-PSGD: the model to both neighbours on a ring; two workers have one each [Lian et al., 2017]
    Row("d_psgd", {}, lambda n: both(min(n - 1, 2) * M)),
    Row("d_psgd", {"overlap": False}, lambda n: both(min(n - 1, 2) * M)),
    easgd(1, 1),
    easgd(1, 2),
    easgd(3, 1),
    easgd(4, 2),
]  # fmt: skip
"""Architectures without randomness: exact."""

RECEIVED_POWER_OF_TWO = (2, 4, 8)
"""Numbers of workers for which recursive halving and doubling needs no extra round."""


def by_node(graph: OpGraph, used: Floats, iteration_s: float, nodes: int) -> tuple[Floats, Floats]:
    """Bytes out of and into each node in an iteration, from the utilisation of its links."""
    moved = used * graph.link_capacity_bytes_per_s * iteration_s
    label = {block.label: slice(block.first, block.first + block.size) for block in graph.links}
    out, into = moved[label["link out of"]], moved[label["link into"]]
    assert len(out) == len(into) == nodes
    return out, into


def traffic_is(row: Row, workers: int) -> None:
    """Check that each worker and each server moves what the row says."""
    workers = whole_groups(workers, row.options)
    graph = build_graph(job(WORK, cluster(BANDWIDTH), workers, row.arch, row.options))
    assert not graph.noisy
    found = simulate(graph)
    if not found.periodic:  # a measurement with arbitrary ends is off by up to half an iteration
        raise AssertionError("no period found")
    iteration_s = 1.0 / found.iterations_per_s.mean()
    out, into = by_node(graph, found.link_utilisation, iteration_s, workers + row.servers)
    said = row.traffic(workers)
    assert out[:workers] == pytest.approx(said.sent, rel=1e-9)
    assert into[:workers] == pytest.approx(said.received, rel=1e-9)
    assert out[workers:] == pytest.approx(said.from_server, rel=1e-9)
    assert into[workers:] == pytest.approx(said.to_server, rel=1e-9)


def test_every_architecture_has_a_row() -> None:
    assert {row.arch for row in ROWS} | {"gosgd", "ad_psgd"} == set(names())


@pytest.mark.parametrize("workers", thinned(WORKERS, 4))
@pytest.mark.parametrize("row", ROWS, ids=[row.name for row in ROWS])
def test_bytes_of_an_iteration(row: Row, workers: int) -> None:
    traffic_is(row, workers)


@pytest.mark.parametrize("each_send", [True, False])
@pytest.mark.parametrize("workers", RECEIVED_POWER_OF_TWO)
def test_halving_and_doubling_moves_as_much_as_a_ring(workers: int, each_send: bool) -> None:
    """2 (N-1)/N M sent and received, for powers of two [Thakur, Rabenseifner, Gropp, 2005]."""
    options = {"algorithm": "halving_doubling", "each_send": each_send}
    traffic_is(Row("allreduce", options, lambda n: both(2 * (n - 1) / n * M)), workers)


@pytest.mark.parametrize("algorithm", ["tree", "double_tree"])
@pytest.mark.parametrize("workers", WORKERS)
def test_a_tree_moves_as_many_bytes_in_total(workers: int, algorithm: str) -> None:
    """Each of N - 1 edges carries M up and M down, be it one tree or two of half the bytes."""
    options = {"algorithm": algorithm, "each_send": True, "chunks": 2}
    graph = build_graph(job(WORK, cluster(BANDWIDTH), workers, "allreduce", options))
    found = simulate(graph)
    iteration_s = 1.0 / found.iterations_per_s.mean()
    for moved in by_node(graph, found.link_utilisation, iteration_s, workers):
        assert moved.sum() == pytest.approx(2 * (workers - 1) * M, rel=1e-9)


@pytest.mark.parametrize("workers", [2, 4, 8])
@pytest.mark.parametrize("servers", [1, 2])
def test_a_node_that_sums_its_gradients_first_sends_them_once(workers: int, servers: int) -> None:
    """M each way by a node of G workers, N/G M / P each way at a server: M/G for each worker."""
    spread = {"servers": servers, "split_above_bytes": 0}
    moved = {}
    for name, options in (("once", {"local_aggregation": True, **spread}), ("each", spread)):
        where = cluster(BANDWIDTH, devices_per_node=2)
        graph = build_graph(job(WORK, where, workers, "ps", options))
        found = simulate(graph)
        iteration_s = 1.0 / found.iterations_per_s.mean()
        moved[name] = by_node(graph, found.link_utilisation, iteration_s, workers // 2 + servers)
    for way in (0, 1):
        once, each = moved["once"][way], moved["each"][way]
        assert once[: workers // 2] == pytest.approx(M, rel=1e-9)
        assert once[workers // 2 :] == pytest.approx(workers / 2 * M / servers, rel=1e-9)
        assert each == pytest.approx(2 * once, rel=1e-9)


def gossip_is(workers: int, probability: float, models: float) -> None:
    """Check the models that each worker sends per iteration, and receives on average.

    Each draws in each of its iterations whether to send, and to whom. So the counts are binomial:
    check within five standard errors. Totals sent and received are equal. Jitter makes the run
    long."""
    options = {"probability": probability}
    where = cluster(BANDWIDTH * 10)
    graph = build_graph(job(WORK, where, workers, "gosgd", options, jitter=Jitter(0.3)))
    found = simulate(graph, rel_ci=0.005)
    out, into = by_node(graph, found.link_utilisation, found.elapsed_s / M, workers)
    iterations = found.iterations_per_s * found.elapsed_s
    others = iterations.sum() - iterations
    sent_error = np.sqrt(iterations.max() * probability * (1 - probability))
    chance = probability / (workers - 1)
    received_error = np.sqrt(others.max() * chance * (1 - chance))
    # and a model in flight when the measurement begins or ends
    assert out == pytest.approx(models * iterations, abs=5 * sent_error + 2)
    assert into == pytest.approx(models / (workers - 1) * others, abs=5 * received_error + workers)
    assert out.sum() == pytest.approx(into.sum(), rel=1e-9)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("probability", [0.1, 0.5, 1.0])
def test_gosgd(workers: int, probability: float) -> None:
    """p M sent, p M received on average [Blot et al., 2016]."""
    gossip_is(workers, probability, probability)


def exchanges_are(workers: int, passive: str, models: float) -> None:
    """Check the models each way per iteration of an active worker, within sampling error.

    A passive worker is drawn by each active one with 1/passive ones: what it sends and receives is
    within five standard errors of that part of all exchanges.
    """
    graph = build_graph(job(WORK, cluster(BANDWIDTH), workers, "ad_psgd", {"passive": passive}))
    found = simulate(graph, rel_ci=0.005)
    rates = found.iterations_per_s
    out, into = by_node(graph, found.link_utilisation, 1.0, workers)
    first = 1 if passive == "even" else 0
    active = np.arange(first, workers, 2)
    answering = np.arange(1 - first, workers, 2)
    exchanges = rates[active] * found.elapsed_s
    part = 1.0 / len(answering)
    error = 5 * np.sqrt(exchanges.sum() * part * (1 - part)) + 2 * len(active)
    for moved in (out, into):
        models_each = moved * found.elapsed_s / M
        assert models_each[active] == pytest.approx(models * exchanges, abs=2)
        assert models_each[answering] == pytest.approx(models * exchanges.sum() * part, abs=error)


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("passive", ["even", "odd"])
def test_ad_psgd(workers: int, passive: str) -> None:
    """M + M per exchange, one an iteration of an active worker [Lian et al., ICML 2018]."""
    exchanges_are(workers, passive, 1.0)


# -- declared traffic --------------------------------------------------------------------------


def declared_is(arch: str, options: Mapping[str, Any], workers: int, times: float = 1.0) -> bool:
    """Return whether an architecture declares its traffic; check that the simulation moves it."""
    workers = whole_groups(workers, options)
    one = job(WORK, cluster(BANDWIDTH), workers, arch, dict(options))
    says = find(arch)[0].traffic
    said = says(one) if says is not None else None
    if said is None:
        return False
    moved = Traffic(*(times * value for value in said))
    traffic_is(Row(arch, dict(options), lambda n: moved, one.options.server_count), workers)
    return True


SAID = [
    (arch, options)
    for arch, options in ALL
    if find(arch)[0].traffic is not None
    and find(arch)[0].traffic(job(WORK, cluster(BANDWIDTH), 3, arch, options)) is not None
    # without a period the bytes of a stretch are not those of whole iterations
    and (arch, options) not in (("easgd", {}), ("easgd", {"period": 3, "servers": 2}))
]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("arch", "options"), SAID, ids=[f"{a}-{o}" for a, o in SAID])
def test_declared_bytes_equal_simulated_bytes(arch: str, options: dict[str, Any]) -> None:
    assert declared_is(arch, options, 3)


def test_most_architectures_declare_their_bytes() -> None:
    assert {arch for arch, _ in SAID} == set(names()) - {"gosgd", "ad_psgd"}
    assert len(SAID) > 40


@pytest.mark.parametrize("arch", sorted({arch for arch, _ in SAID}))
def test_canary_one_percent_more_than_declared_is_noticed(arch: str) -> None:
    options = next(options for name, options in SAID if name == arch)
    with pytest.raises(AssertionError):
        declared_is(arch, options, 3, times=1.01)


# -- canaries --------------------------------------------------------------------------------------


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("row", "field"),
    [
        pytest.param(row, field, id=f"{field}-{row.name}")
        for field in Traffic._fields
        for row in ROWS
        if row.servers or not field.endswith("server")
    ],
)
def test_one_percent_more_is_noticed(row: Row, field: str) -> None:
    """In what workers or servers send or receive; some architectures have no servers."""
    more = row._replace(
        traffic=lambda n: row.traffic(n)._replace(**{field: getattr(row.traffic(n), field) * 1.01})
    )
    with pytest.raises(AssertionError):
        traffic_is(more, 3)


def test_a_transfer_left_out_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last op that moves bytes moves none."""

    whole = build_graph

    def lacking(a_job: Any) -> OpGraph:
        graph = whole(a_job)
        moved = graph.op_bytes.copy()
        moved[np.flatnonzero(moved)[-1]] = 0.0
        return msgspec.structs.replace(graph, op_bytes=moved)

    monkeypatch.setattr("tests.architectures.test_traffic.build_graph", lacking)
    for row in (ps("bsp", 1), ROWS[-1], Row("d_psgd", {}, lambda n: both(min(n - 1, 2) * M))):
        with pytest.raises(AssertionError):
            traffic_is(row, 3)


def test_another_probability_or_number_of_models_is_noticed() -> None:
    with pytest.raises(AssertionError):
        gossip_is(3, 0.5, 0.55)
    with pytest.raises(AssertionError):
        exchanges_are(4, "odd", 0.95)
