"""Collectives: schedules of sends, their cost, and agreement of single sends with closed forms."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec
import numpy as np
import pytest

from perfmodel import IntraNode, Link, NodeOverride, build_graph, predict
from perfmodel.communication.costs import LinkCosts
from perfmodel.communication.members import Members
from perfmodel.communication.schedules import (
    SendSchedule,
    double_tree_all_reduce,
    halving_doubling_all_reduce,
    hierarchical_all_reduce,
    ring_all_gather,
    ring_all_reduce,
    tree_all_reduce,
    waits_of,
)
from perfmodel.theory import collective_times
from perfmodel.theory.collective_times import ring_s
from tests.jobs import cluster, job, workload
from tests.oracles import equal

SIZE = 24.0
WORK = workload([1.0], [1.0], [SIZE])
ONE = {"bucketing": "one", "overlap": False}

SCHEDULES: dict[str, Callable[[int], SendSchedule]] = {
    "ring": ring_all_reduce,
    "halving_doubling": halving_doubling_all_reduce,
    "tree": tree_all_reduce,
    "double_tree": partial(double_tree_all_reduce, chunks=3),
    "hierarchical": lambda members: hierarchical_all_reduce([i // 3 for i in range(members)]),
    "all_gather": ring_all_gather,
}
each = pytest.mark.parametrize("name", SCHEDULES)


def all_members_exchange_data(schedule: SendSchedule) -> None:
    """Check that each member finally holds data from every other member."""
    heard = np.eye(schedule.members, dtype=bool)
    unrolled = schedule.unrolled()
    for index in range(unrolled.rounds):
        now = unrolled.round == index
        before = heard.copy()
        for source, target in zip(unrolled.source[now], unrolled.target[now], strict=True):
            heard[target] |= before[source]
    assert heard.all()


def one_partner_a_round(schedule: SendSchedule) -> None:
    """Check that no member sends to or receives from two members in a round, or sends to itself."""
    for end in (schedule.source, schedule.target):
        pairs = list(zip(schedule.round.tolist(), end.tolist(), strict=True))
        assert len(set(pairs)) == len(pairs)
    assert (schedule.source != schedule.target).all()
    assert (np.diff(schedule.round) >= 0).all()


def no_round_is_idle(schedule: SendSchedule) -> None:
    """Check that the longest chain of dependent sends has as many sends as there are rounds."""
    waits = waits_of(schedule.unrolled())
    depth = np.ones(len(schedule.unrolled().part), int)
    for after, before in sorted(zip(waits.after.tolist(), waits.before.tolist(), strict=True)):
        depth[after] = max(depth[after], depth[before] + 1)
    assert depth.max() == schedule.rounds


@each
@pytest.mark.parametrize("members", [2, 3, 4, 5, 6, 7, 8, 9, 16, 17, 31])
def test_schedules_are_valid(name: str, members: int) -> None:
    schedule = SCHEDULES[name](members)
    all_members_exchange_data(schedule)
    one_partner_a_round(schedule)
    no_round_is_idle(schedule)
    assert schedule.sent().sum() == pytest.approx(schedule.received().sum())


def without(schedule: SendSchedule, send: int) -> SendSchedule:
    columns = ("round", "source", "target", "part", "adds")
    rest = {name: np.delete(getattr(schedule, name), send) for name in columns}
    return msgspec.structs.replace(schedule, **rest)


def test_canary_a_send_left_out_is_noticed() -> None:
    schedule = tree_all_reduce(5)
    for send in range(len(schedule.part)):
        with pytest.raises(AssertionError):
            all_members_exchange_data(without(schedule, send))


def test_canary_two_sends_at_once_are_noticed() -> None:
    schedule = tree_all_reduce(5)
    with pytest.raises(AssertionError):
        one_partner_a_round(msgspec.structs.replace(schedule, round=np.zeros_like(schedule.round)))


RING = {n: [2 * (n - 1) / n] * n for n in (2, 3, 4, 8)}
SENT: dict[str, dict[int, list[float]]] = {
    "ring": RING,
    # 2(p-1)/p; with three, one gives its data to a neighbour that halves and doubles with the third
    "halving_doubling": {**RING, 3: [1.0, 2.0, 1.0]},
    # once up, and once to each child of a binomial tree
    "tree": {2: [1, 1], 3: [2, 1, 1], 4: [2, 1, 2, 1], 8: [3, 1, 2, 1, 3, 1, 2, 1]},
    # half of it up in each tree except the one of which it is the root, and half to each child
    "double_tree": {
        2: [1.0, 1.0],
        3: [1.5, 1.0, 1.5],
        4: [1.0, 2.0, 2.0, 1.0],
        8: [1.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 1.0],
    },
    "hierarchical": RING,
}
"""Fractions of the bytes that each member sends, and by symmetry receives, from the sources."""


@pytest.mark.parametrize("each_send", [False, True])
@pytest.mark.parametrize("members", [2, 3, 4, 8])
@pytest.mark.parametrize("name", SENT)
def test_bytes_over_every_link(name: str, members: int, each_send: bool) -> None:
    options = {**ONE, "algorithm": name, "each_send": each_send}
    graph = build_graph(job(WORK, cluster(), members, "allreduce", options))
    expected = SIZE * np.array(SENT[name][members])
    np.testing.assert_allclose(graph.bytes_by_link()[:members], expected, rtol=1e-12)
    np.testing.assert_allclose(graph.bytes_by_link()[members:], expected, rtol=1e-12)


@pytest.mark.parametrize("each_send", [False, True])
def test_a_double_tree_sends_no_more_than_twice_the_bytes(each_send: bool) -> None:
    options = {**ONE, "algorithm": "double_tree", "each_send": each_send}
    for members in (5, 6, 13, 16):
        graph = build_graph(job(WORK, cluster(), members, "allreduce", options))
        moved = graph.bytes_by_link()
        assert moved.max() <= 2 * SIZE * (1 + 1e-12)
        assert moved[:members].sum() == pytest.approx(2 * (members - 1) * SIZE)


def communication_s(members: int, options: dict[str, Any], **fields: Any) -> float:
    """Step time minus the computation of 2 s."""
    where = cluster(**{"bandwidth_bytes_per_s": 4.0, "latency_s": 0.25, **fields})
    return predict(job(WORK, where, members, "allreduce", {**ONE, **options})).iteration_s - 2.0


CLOSED: dict[str, Callable[..., float]] = {
    "ring": partial(collective_times.ring_s, "all_reduce"),
    "halving_doubling": collective_times.rabenseifner_allreduce_s,
    "tree": collective_times.tree_allreduce_s,
}


@pytest.mark.parametrize("each_send", [False, True])
@pytest.mark.parametrize("members", [1, 2, 3, 4, 5, 6, 7, 8, 9])
@pytest.mark.parametrize("name", CLOSED)
def test_closed_forms_are_exact(name: str, members: int, each_send: bool) -> None:
    options = {"algorithm": name, "each_send": each_send, "reduce_per_byte_s": 0.125}
    expected = CLOSED[name](
        members, SIZE, bandwidth_bytes_per_s=4.0, latency_s=0.25, reduce_per_byte_s=0.125
    )
    equal(2.0 + communication_s(members, options), 2.0 + expected)


def test_canary_another_number_of_members_is_noticed() -> None:
    for name, closed in CLOSED.items():
        wrong = closed(9, SIZE, bandwidth_bytes_per_s=4.0, latency_s=0.25)
        with pytest.raises(AssertionError):
            equal(communication_s(8, {"algorithm": name}), wrong)


@pytest.mark.parametrize("each_send", [False, True])
@pytest.mark.parametrize("kind", ["bus", "per_device"])
@pytest.mark.parametrize(("nodes", "devices"), [(1, 4), (2, 2), (3, 2), (2, 4), (4, 1), (2, 3)])
@pytest.mark.parametrize("nics", [1, 8])
def test_hierarchical_is_exact(
    nodes: int, devices: int, kind: Any, nics: int, each_send: bool
) -> None:
    """Rates are per device while all devices of its node send."""
    options = {"algorithm": "hierarchical", "each_send": each_send, "reduce_per_byte_s": 0.125}
    found = communication_s(
        nodes * devices,
        options,
        devices_per_node=devices,
        nics_per_node=nics,
        intra_node=IntraNode(16.0, 0.125, kind=kind),
    )
    expected = collective_times.hierarchical_allreduce_s(
        nodes,
        devices,
        SIZE,
        bandwidth_bytes_per_s=4.0 / (devices if nics == 1 else 1),
        intra_bandwidth_bytes_per_s=16.0 / (devices if kind == "bus" else 1),
        latency_s=0.25,
        intra_latency_s=0.125,
        reduce_per_byte_s=0.125,
    )
    equal(2.0 + found, 2.0 + expected)


def test_the_link_inside_a_node_carries_each_devices_bytes_up_and_down() -> None:
    where = cluster(devices_per_node=4, intra_node=Link(16.0))
    for each_send in (False, True):
        options = {**ONE, "algorithm": "hierarchical", "each_send": each_send}
        graph = build_graph(job(WORK, where, 8, "allreduce", options))
        moved = {graph.link_name(i): b for i, b in enumerate(graph.bytes_by_link())}
        assert moved["link inside node 0"] == pytest.approx(2 * 3 * SIZE)
        assert moved["link out of node 1"] == pytest.approx(2 * (2 - 1) / 2 * SIZE)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("members", [2, 3, 4, 5, 8, 13, 16])
@pytest.mark.parametrize("chunks", [1, 4, 16])
def test_double_tree_within_its_bounds(members: int, chunks: int) -> None:
    """Exactly the time of its rounds, at least two per chunk with more than two members."""
    options = {"algorithm": "double_tree", "chunks": chunks}
    found = communication_s(members, options)
    most = collective_times.double_tree_allreduce_s(
        members, SIZE, chunks=chunks, bandwidth_bytes_per_s=4.0, latency_s=0.25
    )
    round_s = 0.25 + SIZE / (2 * chunks) / 4.0
    assert found <= most * (1 + 1e-9)
    assert found >= (4 if members > 2 else 2) * chunks * round_s * (1 - 1e-9)
    equal(found, double_tree_all_reduce(members, chunks).rounds * round_s)
    equal(communication_s(members, {**options, "each_send": True}), found)


@pytest.mark.parametrize("members", [8, 12, 16])
@pytest.mark.parametrize("name", [name for name in SENT if name != "ring"])
def test_single_sends_are_no_slower_on_shared_links(name: str, members: int) -> None:
    """A round of a flow lasts until its last send ends; single sends of different rounds
    overlap."""
    fields: dict[str, Any] = {"devices_per_node": 2, "intra_node": Link(16.0, 0.125)}
    whole = communication_s(members, {"algorithm": name}, **fields)
    sends = communication_s(members, {"algorithm": name, "each_send": True}, **fields)
    assert sends <= whole * (1 + 1e-9)
    assert sends >= 0.75 * whole


@pytest.mark.parametrize("members", [4, 8, 16])
def test_a_ring_passes_on_what_single_sends_wait_for(members: int) -> None:
    """With two devices per node, every other hop has 0.125 s of latency instead of 0.25 s: the flow
    counts the mean. Single sends count the longest: one ends before the next one on its link."""
    fields: dict[str, Any] = {"devices_per_node": 2, "intra_node": Link(16.0, 0.125)}
    steps = 2 * (members - 1)
    for each_send, latency_s in ((False, 0.1875), (True, 0.25)):
        found = communication_s(members, {"algorithm": "ring", "each_send": each_send}, **fields)
        equal(found, steps * (SIZE / members / 4.0 + latency_s))


@pytest.mark.parametrize("members", [4, 8, 16])
@pytest.mark.parametrize("operation", ["reduce_scatter", "all_gather"])
def test_gathers_go_round_without_lockstep(operation: Any, members: int) -> None:
    """As above: two members on a node, and a step of 0.1875 s, not 0.25 s."""
    where = cluster(4.0, 0.25, devices_per_node=2, intra_node=IntraNode(16.0, 0.125))
    found = LinkCosts(Members.of(where, members), np.array([SIZE])).cost(operation).seconds
    equal(float(found[0]), (members - 1) * (SIZE / members / 4.0 + 0.1875))


def test_the_slowest_link_sets_the_pace() -> None:
    slow = (NodeOverride(1, Link(2.0, 0.25)),)
    for name in ("ring", "halving_doubling"):
        expected = CLOSED[name](4, SIZE, bandwidth_bytes_per_s=2.0, latency_s=0.25)
        equal(communication_s(4, {"algorithm": name}, overrides=slow), expected)


@pytest.mark.parametrize("each_send", [False, True])
def test_a_slow_leaf_slows_its_own_rounds_of_a_tree(each_send: bool) -> None:
    """Member 1 sends in the first round up and receives in the last one down."""
    options = {"algorithm": "tree", "each_send": each_send}
    found = communication_s(4, options, overrides=(NodeOverride(1, Link(2.0, 0.25)),))
    equal(found, 2 * (0.25 + SIZE / 2.0) + 2 * (0.25 + SIZE / 4.0))


def test_an_oversubscribed_core_is_shared_by_all_sends_of_a_round() -> None:
    """4 members in a core of a quarter of 4 x 4 bytes/s: a round of 4 sends is 4 times as long."""
    for each_send in (False, True):
        options = {"algorithm": "halving_doubling", "each_send": each_send}
        found = communication_s(4, options, latency_s=0.0, core_oversubscription=4.0)
        equal(found, 4 * 1.5 * SIZE / 4.0)


@pytest.mark.parametrize("members", [2, 3, 8])
def test_reduce_scatter_and_all_gather_are_the_halves_of_a_ring(members: int) -> None:
    fields: dict[str, Any] = {"bandwidth_bytes_per_s": 4.0, "latency_s": 0.25}
    halves = ring_s("reduce_scatter", members, SIZE, **fields, reduce_per_byte_s=0.5)
    halves += ring_s("all_gather", members, SIZE, **fields)
    equal(
        halves,
        ring_s("all_reduce", members, SIZE, **fields, reduce_per_byte_s=0.5),
    )
    where = Members.of(cluster(4.0, 0.25), members)
    size = np.array([SIZE])
    equal(
        float(LinkCosts(where, size).cost("reduce_scatter", 0.5).seconds[0]),
        ring_s("reduce_scatter", members, SIZE, **fields, reduce_per_byte_s=0.5),
    )
    equal(
        float(LinkCosts(where, size).cost("all_gather").seconds[0]),
        ring_s("all_gather", members, SIZE, **fields),
    )


def test_closed_forms_take_arrays() -> None:
    sizes = np.array([8.0, 16.0])
    for closed in (*CLOSED.values(), collective_times.broadcast_s):
        found = closed(5, sizes, bandwidth_bytes_per_s=4.0, latency_s=0.25)
        one_by_one = [closed(5, s, bandwidth_bytes_per_s=4.0, latency_s=0.25) for s in (8.0, 16.0)]
        np.testing.assert_allclose(found, one_by_one)
    assert ring_s("all_reduce", 1, 8.0, bandwidth_bytes_per_s=4.0, latency_s=0.25) == 0.0
