"""Laws that every registered architecture keeps, whatever the job."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from perfmodel import Cluster, Jitter, Workload, build_graph, predict
from perfmodel.architectures import names
from perfmodel.engine import makespan, simulate, timeline
from tests import oracles
from tests.jobs import ALL, ALL_IDS, VARIANTS, cluster, clusters, job, workload, workloads

each = pytest.mark.parametrize(("arch", "options"), ALL, ids=ALL_IDS)
few = settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)


def test_every_architecture_is_checked() -> None:
    assert {"ps", "allreduce"} <= set(names())
    assert {name for name, _ in ALL} == set(names())
    assert set(VARIANTS) <= set(names())


@each
@few
@given(work=workloads(), where=clusters(), workers=st.integers(1, 4), jitter=st.booleans())
def test_timeline_laws(
    arch: str, options: dict[str, Any], work: Workload, where: Cluster, workers: int, jitter: bool
) -> None:
    spread = Jitter(0.3) if jitter else None
    graph = build_graph(job(work, where, workers, arch, options, jitter=spread))
    spans = timeline(graph, seed=1, iterations=3)
    assert len(spans) == 3 * graph.n_ops
    oracles.dependencies_hold(graph, spans)
    oracles.slots_hold(graph, spans)
    oracles.links_hold(graph, spans)
    if not jitter:
        oracles.work_is_conserved(graph, spans)


@each
@few
@given(work=workloads(), where=clusters(), workers=st.integers(1, 4), jitter=st.booleans())
def test_busy_and_idle_fill_the_time(
    arch: str, options: dict[str, Any], work: Workload, where: Cluster, workers: int, jitter: bool
) -> None:
    spread = Jitter(0.3, "gamma") if jitter else None
    graph = build_graph(job(work, where, workers, arch, options, jitter=spread))
    oracles.busy_and_idle_fill_the_time(simulate(graph, seed=3, rel_ci=0.5))


@each
@few
@given(work=workloads(), where=clusters(), workers=st.integers(1, 4))
def test_twice_the_durations_take_exactly_twice_as_long(
    arch: str, options: dict[str, Any], work: Workload, where: Cluster, workers: int
) -> None:
    graph = build_graph(job(work, where, workers, arch, options))
    slower = msgspec.structs.replace(
        graph,
        op_seconds=graph.op_seconds * 2,
        op_latency_s=graph.op_latency_s * 2,
        link_capacity_bytes_per_s=graph.link_capacity_bytes_per_s / 2,
    )
    assert makespan(slower, iterations=3) == 2 * makespan(graph, iterations=3)


@each
@few
@given(work=workloads(), where=clusters(), workers=st.integers(1, 4))
def test_throughput_is_bounded_by_every_resource(
    arch: str, options: dict[str, Any], work: Workload, where: Cluster, workers: int
) -> None:
    graph = build_graph(job(work, where, workers, arch, options))
    measures = simulate(graph)
    per_s = measures.iterations_per_s.mean()
    load = graph.bytes_by_link() / graph.link_capacity_bytes_per_s
    held = np.zeros(len(graph.slot_capacity))
    holder = np.repeat(np.arange(graph.n_ops), np.diff(graph.hold_start))
    np.add.at(held, graph.hold_slots, graph.hold_units * graph.op_seconds[holder])
    busiest = max([*load, *(held / graph.slot_capacity)])
    slowest = measures.iterations_per_s.min()
    assert slowest * busiest <= 1 + 1e-9
    assert per_s <= 1.0 / (work.forward_s + work.backward_s) * (1 + 1e-9)


@each
def test_a_scaled_cluster_node_is_a_straggler(arch: str, options: dict[str, Any]) -> None:
    """A node at half speed and a straggler of factor 2 are one thing said in two ways."""
    from perfmodel import NodeOverride, Straggler

    work = workload([1.0, 2.0], [2.0, 3.0], [30.0, 50.0])
    straggling = job(work, cluster(20.0), 3, arch, options, stragglers=[Straggler(1, 2.0)])
    slow_node = cluster(20.0, overrides=(NodeOverride(1, speed=0.5),))
    slow = job(work, slow_node, 3, arch, options)
    assert predict(slow).iteration_s == predict(straggling).iteration_s


@each
def test_same_seed_same_result_under_any_hash_seed(arch: str, options: dict[str, Any]) -> None:
    program = (
        "from tests.jobs import *; from perfmodel import predict, Jitter\n"
        "w = workload([1, 2, 1], [2, 3, 1], [30, 50, 7])\n"
        f"j = job(w, cluster(20.0, 0.01), 3, {arch!r}, {options!r}, jitter=Jitter(0.2), seed=5)\n"
        "import hashlib; d = predict(j).to_json().encode(); print(hashlib.sha256(d).hexdigest())"
    )
    digests = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("0", "1", "12345")
    }
    assert len(digests) == 1


@each
def test_another_seed_gives_another_result_when_there_is_jitter(
    arch: str, options: dict[str, Any]
) -> None:
    work = workload([1.0], [2.0], [30.0])
    a, b = (
        predict(job(work, cluster(20.0), 3, arch, options, jitter=Jitter(0.2), seed=seed))
        for seed in (1, 2)
    )
    assert a.iteration_s != b.iteration_s
    assert 0.0 < a.throughput_ci_fraction < 0.5


@each
def test_a_result_survives_json(arch: str, options: dict[str, Any]) -> None:
    prediction = predict(job(workload([1.0], [2.0], [30.0]), cluster(20.0), 3, arch, options))
    again = msgspec.convert(msgspec.json.decode(prediction.to_json()), type(prediction))
    assert again.to_json() == prediction.to_json()
