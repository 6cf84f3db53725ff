"""Laws that every registered architecture obeys for any job."""

from __future__ import annotations

import subprocess
import sys
from functools import cache
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given, strategies as st

from perfmodel import Jitter, build_graph, predict
from perfmodel.architectures.registry import find, names
from perfmodel.engine.simulation import makespan, simulate, timeline
from perfmodel.graph.op_graph import OpGraph
from perfmodel.graph.rules import Batch, Choice, Mailbox, Quorum
from perfmodel.inputs.options import described
from tests import oracles
from tests.jobs import ALL, VARIANTS, cluster, job, jobs, third_of_variants, workload
from tests.settings import examples


def slowed(graph: OpGraph) -> OpGraph:
    """The graph with all durations doubled."""
    longer: dict[type, tuple[str, ...]] = {
        Choice: ("latency_s",),
        Mailbox: ("per_token_s",),
        Batch: ("cycle_s",),
    }
    return msgspec.structs.replace(
        graph,
        op_seconds=graph.op_seconds * 2,
        op_latency_s=graph.op_latency_s * 2,
        op_stagger_s=graph.op_stagger_s * 2,
        link_capacity_bytes_per_s=graph.link_capacity_bytes_per_s / 2,
        route_cap_bytes_per_s=graph.route_cap_bytes_per_s / 2,
        rules=tuple(
            msgspec.structs.replace(
                rule, **{name: getattr(rule, name) * 2 for name in longer.get(type(rule), ())}
            )
            for rule in graph.rules
        ),
    )


few = examples(6)


def test_every_architecture_is_checked() -> None:
    assert {"ps", "allreduce"} <= set(names())
    assert {name for name, _ in ALL} == set(names())
    assert set(VARIANTS) == set(names())


@pytest.mark.parametrize("arch", names())
def test_every_option_is_in_a_variant(arch: str) -> None:
    """And each of its words, if it takes words. The moving rate has no effect on time."""
    missing = []
    for field in described(find(arch)[0].options):
        given_values = [options[field.name] for options in VARIANTS[arch] if field.name in options]
        words = set(get_args(field.type)) - {field.default}
        if not given_values or not words <= set(given_values):
            missing.append((field.name, words - set(given_values)))
    assert missing == ([("moving_rate", set())] if arch == "easgd" else [])


@pytest.mark.sampled(4)
@third_of_variants()
@few
@given(data=st.data())
def test_timeline_laws(arch: str, options: dict[str, Any], data: st.DataObject) -> None:
    graph = build_graph(data.draw(jobs(arch, options, jitter=True)))
    oracles.timeline_holds(graph, seed=1, iterations=3)


@pytest.mark.sampled(4)
@third_of_variants()
@few
@given(data=st.data())
def test_busy_and_idle_fill_the_time(
    arch: str, options: dict[str, Any], data: st.DataObject
) -> None:
    graph = build_graph(data.draw(jobs(arch, options, jitter=True)))
    oracles.busy_and_idle_fill_the_time(simulate(graph, seed=3, rel_ci=0.5))


@pytest.mark.sampled(4)
@third_of_variants()
@few
@given(data=st.data())
def test_twice_the_durations_take_exactly_twice_as_long(
    arch: str, options: dict[str, Any], data: st.DataObject
) -> None:
    graph = build_graph(data.draw(jobs(arch, options)))
    if any(isinstance(rule, Quorum) for rule in graph.rules):
        # workers too late for a quorum skip iterations, so their counts differ
        took, twice = (
            [(s.op, s.iteration, factor * s.start_s, factor * s.end_s) for s in timeline(one)]
            for one, factor in ((graph, 2), (slowed(graph), 1))
        )
        assert took == twice
    else:
        assert makespan(slowed(graph), iterations=3) == 2 * makespan(graph, iterations=3)


@pytest.mark.sampled(4)
@third_of_variants()
@few
@given(data=st.data())
def test_throughput_is_bounded_by_every_resource(
    arch: str, options: dict[str, Any], data: st.DataObject
) -> None:
    a_job = data.draw(jobs(arch, options))
    graph = build_graph(a_job)
    measures = simulate(graph, rel_ci=0.05)
    oracles.resources_bound_the_pace(graph, measures)
    alone_s = a_job.workload.forward_s + a_job.workload.backward_s
    assert measures.iterations_per_s.mean() <= 1.0 / alone_s * (1 + 1e-9)


@pytest.mark.sampled(4)
@third_of_variants()
def test_a_scaled_cluster_node_is_a_straggler(arch: str, options: dict[str, Any]) -> None:
    """A node at half speed is the same as a straggler of factor 2."""
    from perfmodel import NodeOverride, Straggler

    work = workload([1.0, 2.0], [2.0, 3.0], [30.0, 50.0])
    straggling = job(work, cluster(20.0), 3, arch, options, stragglers=[Straggler(1, 2.0)])
    slow_node = cluster(20.0, overrides=(NodeOverride(1, speed=0.5),))
    slow = job(work, slow_node, 3, arch, options)
    assert predict(slow).iteration_s == predict(straggling).iteration_s


DIGESTS = """
import hashlib
from perfmodel import Jitter, predict
from tests.jobs import VARIANTS, cluster, job, workload

work = workload([1, 2, 1], [2, 3, 1], [30, 50, 7])
for arch, variants in VARIANTS.items():
    for options in variants:
        one = job(work, cluster(20.0, 0.01), 3, arch, options, jitter=Jitter(0.2), seed=5)
        print(arch, hashlib.sha256(predict(one, rel_ci=0.5).to_json().encode()).hexdigest())
"""


@cache
def digests(hash_seed: str) -> dict[str, list[str]]:
    """By architecture, digests of all variants, from a process with this hash seed."""
    printed = subprocess.run(
        [sys.executable, "-c", DIGESTS],
        env={"PYTHONHASHSEED": hash_seed, "PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    found: dict[str, list[str]] = {name: [] for name in names()}
    for line in printed.splitlines():
        name, digest = line.split()
        found[name].append(digest)
    return found


@pytest.mark.family("hash seeds")
@pytest.mark.slow
@pytest.mark.parametrize("arch", names())
def test_same_seed_same_result_under_any_hash_seed(arch: str) -> None:
    found = digests("0")[arch]
    assert len(found) == len(VARIANTS[arch])
    assert found == digests("12345")[arch]


@pytest.mark.sampled(6)
@third_of_variants()
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


@third_of_variants()
def test_a_result_survives_json(arch: str, options: dict[str, Any]) -> None:
    prediction = predict(job(workload([1.0], [2.0], [30.0]), cluster(20.0), 3, arch, options))
    again = msgspec.convert(msgspec.json.decode(prediction.to_json()), type(prediction))
    assert again.to_json() == prediction.to_json()
