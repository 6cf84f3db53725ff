"""Hybrid sharding: shard groups inside, and replicas across, against timelines worked out by hand.

Links carry 1 byte/s unless noted. With two workers, each moves half of a unit's bytes in a
reduce-scatter, or in an all-gather, and all bytes of its part in an all-reduce.
"""

from __future__ import annotations

import itertools
import random
from typing import Any

import msgspec
import numpy as np
import pytest

from perfmodel import Cluster, InputError, Job, Straggler, build_graph, make_job, predict
from perfmodel.architectures.fsdp.formulas import exact, leaves_out
from perfmodel.engine.simulation import timeline
from perfmodel.inputs.cluster import Collective, IntraNode, Piece
from perfmodel.predicting import fine, variants
from perfmodel.predicting.memory import worker_bytes
from perfmodel.studies.crossovers import between
from tests import corpus
from tests.architectures.test_allreduce import same
from tests.jobs import cluster, job, workload

WORK = workload([1.0, 1.0], [1.0, 1.0], [2.0, 1.0], optimizer_s=0.5)
PAIRS = {"unit_bytes": 0, "shard_group": 2}


def boxes(nic: float = 1.0, devices: int = 2, **fields: Any) -> Cluster:
    """Nodes of several devices, each with a port of 1 byte/s."""
    inside = fields.pop("intra_node", IntraNode(1.0, kind="per_device"))
    return cluster(nic, devices_per_node=devices, intra_node=inside, **fields)


def spans(one: Job) -> dict[str, tuple[float, float]]:
    """Start and end of all ops of the first iteration."""
    graph = build_graph(one)
    return {graph.op_name(s.op): (s.start_s, s.end_s) for s in timeline(graph, iterations=1)}


GROUPS = [
    "reduce-scatter shard group {}, unit 1",
    "reduce-scatter shard group {}, unit 0",
    "all-reduce replica group {}, unit 1",
    "all-reduce replica group {}, unit 0",
]


@pytest.mark.parametrize("group", [0, 1])
def test_parts_are_reduced_between_nodes_while_the_next_unit_is_scattered(group: int) -> None:
    """Backward ends at 3 and 4. Two rings share a node's link, so the parts of 0.5 and 1 bytes take
    1 s and 2 s. The optimizer updates half of the model in 0.25 s."""
    found = spans(job(WORK, boxes(), 4, "zero2", PAIRS))
    assert [found[name.format(group)] for name in GROUPS] == [
        (3.0, 3.5),
        (4.0, 5.0),
        (3.5, 4.5),
        (5.0, 7.0),
    ]
    assert found["optimizer worker 3"] == (7.0, 7.25)
    assert found[f"all-gather shard group {group}, unit 0"] == (7.25, 8.25)
    assert found[f"all-gather shard group {group}, unit 1"] == (8.25, 8.75)


@pytest.mark.parametrize("fidelity", ["fine", "coarse"])
def test_iteration(fidelity: str) -> None:
    """At stage 3 units are gathered until 1 and 1.5, again until 3.5 and 4.5, and scattered from
    4.5 to 5 and from 5.5 to 6.5; their parts are reduced from 5 to 6 and from 6.5 to 8.5."""
    two = predict(job(WORK, boxes(), 4, "zero2", PAIRS), fidelity=fidelity)
    three = predict(job(WORK, boxes(), 4, "zero3", PAIRS), fidelity=fidelity)
    assert (two.iteration_s, three.iteration_s) == (8.75, 8.75)
    kept = {**PAIRS, "reshard_after_forward": False}
    once = predict(job(WORK, boxes(), 4, "zero3", kept), fidelity=fidelity)
    assert once.iteration_s == 8.25


def test_canary_another_bandwidth_or_an_all_reduce_left_out_is_noticed() -> None:
    assert predict(job(WORK, boxes(0.99), 4, "zero2", PAIRS)).iteration_s > 8.75 + 1e-3
    assert predict(job(WORK, boxes(), 2, "zero2", PAIRS)).iteration_s == 6.75


def test_a_straggler_delays_its_own_shard_group_first() -> None:
    """The other group computes and scatters as before, and waits in the all-reduce."""
    late = {"stragglers": [Straggler(3, 2.0)]}
    found = spans(job(WORK, boxes(), 4, "zero2", PAIRS, **late))
    assert found["reduce-scatter shard group 0, unit 1"] == (3.0, 3.5)
    assert found["reduce-scatter shard group 1, unit 1"] == (6.0, 6.5)
    assert found["all-reduce replica group 0, unit 1"] == (6.5, 7.5)
    three = spans(job(WORK, boxes(), 4, "zero3", PAIRS, **late))
    assert three["all-gather again shard group 0, unit 1"] == (3.0, 3.5)
    assert three["all-gather again shard group 1, unit 1"] == (5.0, 5.5)


def test_groups_on_unequal_nodes_are_unequal() -> None:
    """Two groups share the first node's bus, the third has the second node's bus to itself."""
    where = boxes(devices=4, intra_node=IntraNode(1.0))
    found = spans(job(WORK, where, 6, "zero3", PAIRS))
    ends = [found[f"all-gather shard group {group}, unit 0"][1] for group in range(3)]
    assert ends == [4.0, 4.0, 2.0]
    assert build_graph(job(WORK, where, 6, "zero3", PAIRS), fold=True).n_groups == 6


# -- identities --------------------------------------------------------------------------------


def figures(one: Job, fidelity: str) -> dict[str, float]:
    """All values of a prediction except the options."""
    answer = predict(one, fidelity=fidelity).to_dict()
    named = {k: v for k, v in answer.items() if k not in corpus.TEXTS}
    found = dict(corpus.numbers(named, ""))
    return {place: value for place, value in found.items() if "shard_group" not in place}


@pytest.mark.parametrize("fidelity", ["fine", "coarse"])
@pytest.mark.parametrize("stage", [1, 2, 3])
@pytest.mark.parametrize("size", [6, 100])
def test_one_group_of_all_workers_is_sharding_without_replicas(
    stage: int, size: int, fidelity: str
) -> None:
    where = boxes(latency_s=0.01)
    options = {"unit_bytes": 0, "stage": stage}
    whole = figures(job(WORK, where, 6, "fsdp", options), fidelity)
    assert len(whole) > 20
    assert figures(job(WORK, where, 6, "fsdp", {**options, "shard_group": size}), fidelity) == whole
    parts = figures(job(WORK, where, 6, "fsdp", {**options, "shard_group": 2}), fidelity)
    assert parts != whole  # canary


@pytest.mark.parametrize("fidelity", ["fine", "coarse"])
@pytest.mark.parametrize("stage", [1, 2, 3])
@pytest.mark.parametrize(("devices", "nics"), [(1, 1), (2, 1), (2, 2), (4, 1)])
def test_groups_of_one_are_a_ring_all_reduce_of_each_unit(
    devices: int, nics: int, stage: int, fidelity: str
) -> None:
    """Nothing is sharded: the same messages, and the whole of the optimizer."""
    where = boxes(latency_s=0.01, devices=devices, nics_per_node=nics)
    alone = {"unit_bytes": 0, "stage": stage, "shard_group": 1, "reduce_per_byte_s": 0.01}
    summed = {"bucketing": "layer", "reduce_per_byte_s": 0.01}
    ours = predict(job(WORK, where, 4, "fsdp", alone), fidelity=fidelity)
    theirs = predict(job(WORK, where, 4, "ring", summed), fidelity=fidelity)
    assert ours.iteration_s == pytest.approx(theirs.iteration_s, rel=1e-12)
    pairs = {**alone, "shard_group": 2}
    other = predict(job(WORK, where, 4, "fsdp", pairs), fidelity=fidelity)
    assert abs(other.iteration_s / theirs.iteration_s - 1.0) > 1e-3  # canary


@pytest.mark.parametrize(("devices", "nics", "size"), [(4, 1, 4), (4, 2, 4), (4, 4, 2), (2, 1, 4)])
def test_links_of_a_node_carry_the_rings_of_all_its_devices(
    devices: int, nics: int, size: int
) -> None:
    """All replica groups together send 2(r-1)/r of a copy of the model out of each node that holds
    one, whatever the devices and the links."""
    where = boxes(devices=devices, nics_per_node=nics)
    options = {"unit_bytes": 0, "stage": 2, "shard_group": size}
    graph = build_graph(job(WORK, where, 8, "fsdp", options))
    block = next(one for one in graph.links if one.label == "link out of")
    out = graph.bytes_by_link()[block.first : block.first + block.size]
    of_node = out.reshape(-1, nics).sum(axis=1)
    if size >= devices:
        replicas = 8 // size
        expected = 2 * (replicas - 1) / replicas * 3.0 * devices / size
        expected += 2 * (size - 1) / size * 3.0 if size > devices else 0.0
    else:  # a ring through all 4 members of each of 2 groups leaves each node once
        expected = size * 2 * 3 / 4 * 3.0 / size
    np.testing.assert_allclose(of_node, expected, rtol=1e-12)
    np.testing.assert_allclose(out, out[0], rtol=1e-12)


CASES = [
    (kind, devices, nics, workers, size, core, flow)
    for kind, devices, nics, workers, size, core, flow in itertools.product(
        ["bus", "per_device", None], [1, 2, 4], [1, 2], [4, 12], [1, 2, 4], [None, 2.0], [None, 0.3]
    )
    if size < workers and nics <= devices and (core is None or flow is None)
]


def unlike(one: Job, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The prediction with separate ops for each group."""
    with monkeypatch.context() as patch:
        patch.setattr(fine, "alike", lambda job: False)
        return predict(one).to_dict()


def routes_agree(case: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch) -> str | None:
    """Check that one group represents all, and that formulas are as exact as they claim."""
    kind, devices, nics, workers, size, core, flow = case
    inside = None if kind is None else IntraNode(7.0, 0.003, kind=kind)
    where = boxes(latency_s=0.01, devices=devices, nics_per_node=nics, intra_node=inside,
                  core_oversubscription=core, flow_bytes_per_s=flow)  # fmt: skip
    work = workload([1.0, 1.0, 0.5], [1.0, 1.0, 2.0], [2.0, 1.0, 3.0], optimizer_s=0.5)
    options = {"unit_bytes": 0, "shard_group": size, "reduce_per_byte_s": 0.001}
    for stage in (2, 3):
        one = job(work, where, workers, "fsdp", {**options, "stage": stage})
        each = unlike(one, monkeypatch)
        assert same(predict(one).to_dict(), each) == []
        formula = predict(one, fidelity="coarse").iteration_s
        limit = 1e-9 if exact(one) else 0.15 if flow is None else 0.5
        assert formula == pytest.approx(each["iteration_s"], rel=limit)
        assert exact(one) == (leaves_out(one) is None)
    return leaves_out(one)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("case", CASES[::23], ids=str)
def test_one_simulated_group_can_represent_all(
    case: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    routes_agree(case, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(8))
def test_groups_on_all_kinds_of_nodes(part: int, monkeypatch: pytest.MonkeyPatch) -> None:
    mixed = random.Random(1).sample(CASES, len(CASES))
    found = [routes_agree(case, monkeypatch) for case in mixed[part::8]]
    assert 0.3 < sum(one is None for one in found) / len(found) < 1.0


# -- measured collectives ----------------------------------------------------------------------


def measured(operation: str, startup_s: float) -> Collective:
    piece = Piece(startup_s, 0.0, startup_growth="constant")
    return Collective(operation=operation, pieces=(piece,), ranks=(2, 4), bytes=(1.0, 9.0))


ALL = tuple(
    measured(name, seconds)
    for name, seconds in (("all_gather", 10.0), ("reduce_scatter", 20.0), ("all_reduce", 40.0))
)


@pytest.mark.parametrize("fidelity", ["fine", "coarse"])
def test_measured_collectives_apply_to_groups_with_nodes_of_their_own(
    fidelity: str,
) -> None:
    """One unit, nothing overlaps but the passes: 4.25 s of computation with half the optimizer."""
    one_unit = {"unit_bytes": 100, "stage": 2}

    def communicated(devices: int, size: int) -> float:
        where = boxes(1e9, devices=devices, collectives=ALL, intra_node=IntraNode(1e9))
        one = job(WORK, where, 8, "fsdp", {**one_unit, "shard_group": size})
        return predict(one, fidelity=fidelity).iteration_s - 4.0 - 0.5 / size

    assert communicated(4, 4) == pytest.approx(10.0 + 20.0, abs=1e-6)  # replicas share nodes
    assert communicated(1, 4) == pytest.approx(10.0 + 20.0 + 40.0, abs=1e-6)
    assert communicated(4, 2) == pytest.approx(0.0, abs=1e-6)  # two groups on each node


def test_notes_name_the_members_of_the_groups() -> None:
    where = boxes(devices=1, collectives=ALL)
    notes = predict(job(WORK, where, 10, "fsdp", {"shard_group": 2, "unit_bytes": 0})).notes
    assert "all_reduce among 5 workers is extrapolated: measured among 2 to 4 ranks" in notes
    assert not any(note.startswith("all_gather among") for note in notes)


# -- memory and options ----------------------------------------------------------------------------


def test_memory_is_that_of_a_shard_group() -> None:
    """A worker keeps what it keeps in a job of one shard group."""
    work = msgspec.structs.replace(WORK, optimizer_state_bytes=6.0, activation_bytes=10.0)
    for stage in (1, 2, 3):
        options = {"unit_bytes": 0, "stage": stage}
        many = worker_bytes(job(work, boxes(), 8, "fsdp", {**options, "shard_group": 2}))
        assert many == worker_bytes(job(work, boxes(), 2, "fsdp", options))
        assert many > worker_bytes(job(work, boxes(), 8, "fsdp", options))


@pytest.mark.parametrize(
    ("workers", "size", "message"),
    [
        (
            12,
            8,
            "workers: 12 do not form whole groups of 8 .allowed: up to 8, or a multiple",
        ),
        (4, -1, "shard_group"),
        (4, 1.5, "shard_group"),
    ],
)
def test_groups_that_are_impossible(workers: int, size: float, message: str) -> None:
    given = {"workload": WORK, "cluster": boxes(), "arch": "fsdp"}
    with pytest.raises(InputError, match=message):
        make_job(**given, workers=workers, options={"shard_group": size})


def test_workers_vary_in_whole_groups() -> None:
    asked = job(WORK, boxes(), 4, "fsdp", {"shard_group": 4})
    assert variants.evaluate(asked, workers=[1, 4, 12]).iteration_s.shape == (3,)
    with pytest.raises(InputError, match="workers: expected at most 4"):
        variants.evaluate(asked, workers=[4, 6])
    other = job(WORK, boxes(), 4, "fsdp", {"shard_group": 6})
    for found in between(asked, other, "workers", ("four", "six")):
        assert found.value % 12 == 0
