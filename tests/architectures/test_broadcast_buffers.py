"""All-reduce of a module with buffers: worker 0 broadcasts them before each forward pass."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
from hypothesis import given, strategies as st

from perfmodel import (
    Cluster,
    InputError,
    IntraNode,
    Job,
    Straggler,
    Workload,
    WorkloadLayer,
    build_graph,
    formula,
    predict,
)
from perfmodel.architectures.allreduce import ARCHITECTURE, VARIANTS
from perfmodel.engine.simulation import simulate, timeline
from perfmodel.inputs.cluster import Collective, Piece
from perfmodel.predicting import coarse, fine
from perfmodel.theory.collective_times import ring_s
from tests.jobs import cluster, job, jobs, workload
from tests.settings import examples

PLAIN = workload([1.0, 1.0], [1.0, 1.0], [2.0, 1.0], optimizer_s=0.5)
WORK = msgspec.structs.replace(PLAIN, buffer_bytes=6.0)
PER_LAYER = {"bucket_cap_bytes": 0, "first_bucket_bytes": 0}


def spans_of(one: Job, iterations: int = 1) -> dict[str, list[tuple[float, float]]]:
    """Begin and end of each op in each iteration, by name."""
    graph, found = build_graph(one), {}
    for span in timeline(graph, iterations=iterations):
        found.setdefault(graph.op_name(span.op), []).append((span.start_s, span.end_s))
    return found


def test_three_workers_by_hand() -> None:
    """6 bytes at 1 byte/s and two latencies of 0.1 s; then as without buffers."""
    one = job(WORK, cluster(latency_s=0.1), 3, "ring", PER_LAYER)
    spans = spans_of(one)
    near = pytest.approx
    assert spans["broadcast buffers 0"] == [near((0.0, 6.2))]
    for worker in range(3):
        assert spans[f"forward worker {worker}, layer0"] == [near((6.2, 7.2))]
        assert spans[f"backward worker {worker}, layer1"] == [near((8.2, 9.2))]
    # all-reduces of 1 and 2 bytes: 4/3 of each, and four latencies
    first_s, second_s = 9.2 + 4 / 3 + 0.4, 9.2 + 4 / 3 + 0.4 + 8 / 3 + 0.4
    assert spans["all-reduce bucket 0"] == [near((9.2, first_s))]
    assert spans["all-reduce bucket 1"] == [near((first_s, second_s))]
    assert predict(one).iteration_s == near(second_s + 0.5)
    with pytest.raises(AssertionError):  # canary
        assert spans["broadcast buffers 0"] == [near((0.0, 6.3))]


@pytest.mark.parametrize(
    ("slow", "sent_s", "begun_s"), [(0, 1.0, (1.25, 1.25)), (1, 0.5, (0.75, 1.0))]
)
def test_the_broadcast_begins_when_worker_0_does(
    slow: int, sent_s: float, begun_s: tuple[float, ...]
) -> None:
    """After the reduction, which both end at once, the optimizer takes 0.5 s, and 1 s on the slow
    worker; the broadcast takes 0.25 s. A worker that is later than that begins at once."""
    work = workload([0.5], [0.0], [1.0], optimizer_s=0.5)
    work = msgspec.structs.replace(work, buffer_bytes=0.25)
    spans = spans_of(job(work, cluster(), 2, "ring", stragglers=[Straggler(slow, 2.0)]), 2)
    reduced_s = spans["all-reduce bucket 0"][0][1]
    assert spans["broadcast buffers 0"][1][0] - reduced_s == pytest.approx(sent_s)
    begun = [spans[f"forward worker {worker}, layer0"][1][0] for worker in (0, 1)]
    assert [each - reduced_s for each in begun] == pytest.approx(begun_s)


def test_the_broadcast_waits_for_the_data_of_worker_0() -> None:
    work = workload([0.5], [0.5], [1.0], data_loading_s=4.0)
    spans = spans_of(job(msgspec.structs.replace(work, buffer_bytes=1.0), cluster(), 2, "ring"))
    assert spans["broadcast buffers 0"] == [(4.0, 5.0)]


@pytest.mark.parametrize("workers", [2, 3, 5])
def test_bytes_over_every_link(workers: int) -> None:
    """The last worker sends nothing on, and the first receives nothing."""
    graph = build_graph(job(WORK, cluster(), workers, "ring", PER_LAYER))
    found = {graph.link_name(i): b for i, b in enumerate(graph.bytes_by_link())}
    summed = 2 * (workers - 1) / workers * 3.0
    for node in range(workers):
        out, into = (found[f"link {way} node {node}"] - summed for way in ("out of", "into"))
        assert out == pytest.approx(6.0 * (node < workers - 1))
        assert into == pytest.approx(6.0 * (node > 0))


@pytest.mark.parametrize(
    "arch", ["allreduce", "fsdp", "local_sgd", "diloco", "ps", "p2p", "d_psgd"]
)
def test_cases_without_a_broadcast(arch: str) -> None:
    """With one worker, without the option, and in all other architectures."""
    for workers in (1, 3):
        options = {"broadcast_buffers": False} if arch == "allreduce" and workers > 1 else {}
        with_buffers, without = (
            predict(job(work, cluster(), workers, arch, options)) for work in (WORK, PLAIN)
        )
        assert with_buffers.iteration_s == without.iteration_s
        assert coarse.predict(job(WORK, cluster(), workers, arch, options)).iteration_s == (
            coarse.predict(job(PLAIN, cluster(), workers, arch, options)).iteration_s
        )


JOINED = {"intra_node": IntraNode(10.0, kind="bus")}
PORTS = {"intra_node": IntraNode(10.0, kind="per_device")}
CLUSTERS: dict[str, tuple[int, dict[str, Any], float]] = {
    "a node each": (5, {}, 6.4),
    "one bus carries all": (4, {"devices_per_node": 4, **JOINED}, 3 * 0.6),
    # seven steps of the mean latency of eight hops, of which two are between nodes
    "two busses": (8, {"devices_per_node": 4, **JOINED}, 6.0 + 7 * 0.2 / 8),
    "ports": (4, {"devices_per_node": 4, **PORTS}, 0.6),
    # the core carries 6 bytes twice, at a third of three links
    "a core": (3, {"core_oversubscription": 3.0}, 12.0 + 0.2),
    # two rings with half of the bytes each: a core at two thirds of a link carries them 1.5 times
    "two links": (8, {"devices_per_node": 4, "nics_per_node": 2, **PORTS}, 3.0 + 7 * 0.2 / 8),
    "two links and a core": (
        *(8, {"devices_per_node": 4, "nics_per_node": 2, "core_oversubscription": 3.0, **PORTS}),
        6.75 + 7 * 0.2 / 8,
    ),
}


@pytest.mark.parametrize("name", CLUSTERS)
def test_seconds_on_other_networks_by_both_routes(name: str) -> None:
    workers, fields, seconds = CLUSTERS[name]
    where = cluster(latency_s=0.1, **fields)
    for route in (lambda one: fine.predict(one, rel_ci=0.01), coarse.predict):
        sent, not_sent = (
            route(job(WORK, where, workers, "ring", {"broadcast_buffers": on})).iteration_s
            for on in (True, False)
        )
        assert sent - not_sent == pytest.approx(seconds)
        with pytest.raises(AssertionError):  # canary
            assert sent - not_sent == pytest.approx(seconds * 1.001)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("devices", [1, 2])
def test_both_routes_and_a_folded_graph_agree(devices: int) -> None:
    where = cluster(latency_s=0.1, devices_per_node=devices, **JOINED)
    compared = 0
    for options in VARIANTS:
        one = job(WORK, where, 4, "allreduce", dict(options))
        folded = ARCHITECTURE.fold(one) if ARCHITECTURE.fold is not None else None
        whole_s = 1.0 / simulate(ARCHITECTURE.build(one)).iterations_per_s.mean()
        if folded is not None:
            assert 1.0 / simulate(folded).iterations_per_s.mean() == pytest.approx(whole_s)
        if ARCHITECTURE.coarse is not None and ARCHITECTURE.coarse.exact(one):
            assert coarse.predict(one).iteration_s == pytest.approx(whole_s)
            compared += 1
    assert compared >= 6


@pytest.mark.parametrize("options", VARIANTS[:2])
@given(data=st.data(), size=st.sampled_from([1.0, 40.0]))
@examples(15)
def test_formulas_declared_exact_are_exact(
    options: Mapping[str, Any], data: st.DataObject, size: float
) -> None:
    drawn = data.draw(jobs("allreduce", dict(options)))
    one = msgspec.structs.replace(
        drawn, workload=msgspec.structs.replace(drawn.workload, buffer_bytes=size)
    )
    by_formula_s, simulated = coarse.predict(one).iteration_s, fine.predict(one, rel_ci=0.01)
    if ARCHITECTURE.coarse is not None and ARCHITECTURE.coarse.exact(one):
        assert by_formula_s == pytest.approx(simulated.iteration_s)
    assert simulated.iteration_s >= fine.predict(drawn, rel_ci=0.01).iteration_s * (1 - 1e-9)


def measured(startup_s: float, per_byte_s: float) -> Cluster:
    """A cluster on which broadcasts were measured among four ranks."""
    line = (Piece(startup_s, per_byte_s, startup_growth="log", per_byte_growth="constant"),)
    return cluster(
        collectives=(
            Collective(operation="broadcast", pieces=line, ranks=(4, 4), bytes=(1.0, 5.0)),
        )
    )


def test_measured_broadcasts_replace_the_formula() -> None:
    """4 s, and 0.5 s for each byte, among 4 ranks; 6 bytes are more than were measured."""
    one = job(WORK, measured(2.0, 0.5), 4, "ring")
    without = job(PLAIN, measured(2.0, 0.5), 4, "ring")
    for route in (lambda each: fine.predict(each, rel_ci=0.01), coarse.predict):
        assert route(one).iteration_s - route(without).iteration_s == pytest.approx(7.0)
    assert "broadcast of 6 B is extrapolated" in " ".join(predict(one).notes)
    assert "broadcast" not in " ".join(predict(without).notes)


def test_the_formula() -> None:
    parts = {term.name: term.text for term in formula(job(WORK, cluster(), 4, "ring")).phases}
    assert parts["broadcast buffers"] == "D/B + alpha*(-1 + N)"
    without = {term.name for term in formula(job(PLAIN, cluster(), 4, "ring")).phases}
    assert "broadcast buffers" not in without


def test_the_option_is_listed_as_an_assumption_for_models_with_buffers() -> None:
    for work, noted in ((WORK, True), (PLAIN, False)):
        names = {each.name for each in job(work, cluster(), 2, "ring").assumptions}
        assert ("broadcast_buffers" in names) == noted


def test_a_workers_memory_includes_the_buffers() -> None:
    more, less = (predict(job(work, cluster(), 2, "ring")) for work in (WORK, PLAIN))
    assert more.memory.worker_bytes - less.memory.worker_bytes == pytest.approx(6.0)


@pytest.mark.parametrize("size", [-1.0, float("inf")])
def test_impossible_sizes_are_refused(size: float) -> None:
    layer = WorkloadLayer("only", 1.0, 1.0, (1.0,))
    with pytest.raises(InputError, match="buffer_bytes"):
        Workload.of("none", [layer], buffer_bytes=size)


@pytest.mark.parametrize("ranks", [2, 5])
def test_a_chain_in_small_pieces_takes_as_long_as_the_formula(ranks: int) -> None:
    """A rank forwards a piece once it has received it and sent the previous piece."""
    pieces, bandwidth, latency_s = 2000, 50.0, 0.5
    ends = [0.0] * pieces
    for _ in range(ranks - 1):
        free_s = 0.0
        for k, ready_s in enumerate(ends):
            free_s = max(free_s, ready_s) + 100.0 / pieces / bandwidth
            ends[k] = free_s + latency_s
    closed = ring_s("broadcast", ranks, 100.0, bandwidth_bytes_per_s=bandwidth, latency_s=latency_s)
    assert ends[-1] == pytest.approx(closed, rel=2e-3)
    assert ends[-1] != pytest.approx(closed * 1.01, rel=2e-3)
    assert (
        ring_s("broadcast", 1, 100.0, bandwidth_bytes_per_s=bandwidth, latency_s=latency_s) == 0.0
    )
