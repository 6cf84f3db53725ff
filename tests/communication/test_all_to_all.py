"""All-to-alls: sends and costs by hand, in closed form, as measured, and by SimGrid."""

from __future__ import annotations

import csv
import gzip
import itertools
import statistics

import numpy as np
import pytest

from perfmodel import IntraNode, Link, NodeOverride
from perfmodel.base.errors import InputError
from perfmodel.catalogue import catalogue
from perfmodel.communication.costs import LinkCosts
from perfmodel.communication.exchanges import AllToAllExchange, Way
from perfmodel.communication.fabric import Fabric
from perfmodel.communication.members import Members
from perfmodel.communication.schedules import (
    SendSchedule,
    hierarchical_all_to_all,
    pairwise_all_to_all,
)
from perfmodel.inputs.cluster import Cluster
from perfmodel.inputs.measured_collectives import Collective, Piece
from perfmodel.theory.collective_times import all_to_all_s
from tests import simgrid
from tests.jobs import cluster
from tests.measured import measured

SIZES = np.array([24.0])
NODES = cluster(
    2.0,
    0.5,
    devices_per_node=2,
    intra_node=IntraNode(bandwidth_bytes_per_s=8.0, latency_s=0.25, kind="per_device"),
)
"""Nodes of two devices: a link of 2 bytes/s out of each, ports of 8 bytes/s."""


def seconds(where: Cluster, workers: int, algorithm: Way, across: float = 1.0) -> float:
    """The time of an all-to-all of 24 bytes."""
    costs = LinkCosts(Members.of(where, workers), SIZES)
    return float(costs.all_to_all(AllToAllExchange(algorithm, across)).seconds[0])


def held(schedule: SendSchedule) -> set[tuple[int, int]]:
    """Pairs (from, to) of the parts of a hierarchical all-to-all that end where they belong."""
    at = {
        (source, target): source
        for source, target in np.ndindex(schedule.members, schedule.members)
    }
    for index in range(schedule.rounds):
        now = schedule.round == index
        sends = dict(zip(schedule.source[now].tolist(), schedule.target[now].tolist(), strict=True))
        for part, place in list(at.items()):
            target = part[1]
            if place in sends and (
                sends[place] == target  # its own, or to its node and number
                or (sends[place] // 2 == target // 2 and place // 2 != target // 2)
            ):
                at[part] = sends[place]
    return {part for part, place in at.items() if place == part[1]}


@pytest.mark.parametrize("members", [2, 3, 4, 5, 8])
def test_every_pair_exchanges_one_part_and_one_partner_a_round(members: int) -> None:
    schedule = pairwise_all_to_all(members)
    pairs = set(zip(schedule.source.tolist(), schedule.target.tolist(), strict=True))
    assert pairs == {(a, z) for a, z in itertools.product(range(members), repeat=2) if a != z}
    assert len(schedule.part) == members * (members - 1)
    assert (schedule.part == 1 / members).all()
    for end in (schedule.source, schedule.target):
        assert (np.bincount(schedule.round * members + end) == 1).all()


def test_a_hierarchical_all_to_all_brings_every_part_where_it_belongs() -> None:
    assert len(held(hierarchical_all_to_all(3, 2))) == 36
    without = hierarchical_all_to_all(3, 2)
    assert len(held(_less(without, without.round < 2))) < 36  # canary: no round inside nodes


def _less(schedule: SendSchedule, kept: np.ndarray) -> SendSchedule:
    """A schedule without some of its sends."""
    return SendSchedule(
        members=schedule.members, repeat=schedule.repeat, round=schedule.round[kept],
        source=schedule.source[kept], target=schedule.target[kept], part=schedule.part[kept],
        adds=schedule.adds[kept],
    )  # fmt: skip


def test_by_hand_on_two_nodes_of_two() -> None:
    """Parts of 6 bytes. Of a node's 4 parts for the other node 24 bytes leave at 2 bytes/s."""
    assert seconds(NODES, 4, "direct") == pytest.approx(0.5 + 24 / 2)
    # round 1: 0 to 1 inside, 1 to 2 outside, alone on its link; round 2: both; round 3: as 1
    assert seconds(NODES, 4, "pairwise") == pytest.approx((0.5 + 3) + (0.5 + 6) + (0.5 + 3))
    # 12 bytes for the other node from each device; then 12 bytes to the neighbour
    assert seconds(NODES, 4, "hierarchical") == pytest.approx((0.5 + 24 / 2) + (0.25 + 12 / 8))
    assert seconds(NODES, 4, "hierarchical", 0.5) == pytest.approx((0.5 + 12 / 2) + (0.25 + 12 / 8))
    assert seconds(NODES, 2, "direct") == pytest.approx(0.25 + 12 / 8)
    assert seconds(NODES, 1, "pairwise") == 0.0


def test_a_slow_node_sets_the_pace() -> None:
    slow = cluster(2.0, overrides=(NodeOverride(0, Link(1.0, 0.0)),))
    assert seconds(slow, 3, "direct") == pytest.approx(16 / 1.0)


def test_closed_forms_where_every_device_has_its_own_links() -> None:
    own = cluster(2.0, 0.5)
    rates = {"bandwidth_bytes_per_s": 2.0, "latency_s": 0.5}
    for p in (2, 3, 7):
        assert seconds(own, p, "direct") == pytest.approx(
            all_to_all_s(p, 24.0, **rates, at_once=True)
        )
        assert seconds(own, p, "pairwise") == pytest.approx(all_to_all_s(p, 24.0, **rates))
    rails = cluster(
        2.0, 0.5, devices_per_node=4, nics_per_node=4,
        intra_node=IntraNode(8.0, latency_s=0.25, kind="per_device"),
    )  # fmt: skip
    among_nodes = all_to_all_s(3, 0.75 * 24.0, **rates)
    inside = all_to_all_s(4, 24.0, bandwidth_bytes_per_s=8.0, latency_s=0.25)
    assert seconds(rails, 12, "hierarchical", 0.75) == pytest.approx(among_nodes + inside)


def test_groups_share_the_links_of_their_nodes() -> None:
    """Devices 0 and 2, and 1 and 3: both groups send 12 bytes over each node's link."""
    members = Members(Fabric.of(NODES, 4), groups=np.array([[0, 2], [1, 3]]))
    cost = LinkCosts(members, SIZES).all_to_all()
    assert cost.seconds == pytest.approx([0.5 + 24 / 2])
    assert cost.weight == 2.0


def test_nodes_with_unequal_numbers_cannot_pass_parts_on() -> None:
    with pytest.raises(InputError, match=r"as many members on every node \(here 1 to 2\)"):
        seconds(NODES, 3, "hierarchical")


def test_measurements_replace_the_direct_one_only() -> None:
    took = Collective(
        operation="all_to_all", pieces=(Piece(3.0, 2.0, per_byte_growth="constant"),),
        ranks=(2, 4), bytes=(1.0, 1e3),
    )  # fmt: skip
    with_it = cluster(2.0, 0.5, collectives=(took,))
    assert seconds(with_it, 4, "direct") == pytest.approx(3 * 3.0 + 48.0)
    assert seconds(with_it, 4, "pairwise") == pytest.approx(3 * (0.5 + 3.0))


def dag(workers: int, algorithm: Way, rates: list[float]) -> simgrid.Dag:
    """Every message of an all-to-all of 24 bytes among devices with a link out and a link in each;
    pairwise, a member's messages of a round wait for those of the round before."""
    ops: list[simgrid.Op] = []
    last: list[tuple[int, ...]] = [()] * workers
    for step in range(1, workers):
        made = {}
        for source in range(workers):
            target = (source + step) % workers
            after = tuple(sorted({*last[source], *last[target]})) if algorithm == "pairwise" else ()
            made[source, target] = len(ops)
            path = (source, workers + target)
            ops.append(simgrid.Op(bytes=2400 // workers, path=path, after=after))
        last = [tuple(k for ends, k in made.items() if member in ends) for member in range(workers)]
    return simgrid.Dag(tuple(rates * 2), tuple(ops))


@pytest.mark.sampled(4)
@pytest.mark.skipif(bool(simgrid.missing()), reason=simgrid.missing() or "SimGrid is there")
@pytest.mark.parametrize("workers", [2, 3, 4, 6])
@pytest.mark.parametrize("algorithm", ["direct", "pairwise"])
def test_simgrid_takes_as_long(workers: int, algorithm: Way) -> None:
    rates = [2.0] * workers
    where = cluster(2.0)
    costs = LinkCosts(Members.of(where, workers), np.array([2400.0]))
    expected = float(costs.all_to_all(AllToAllExchange(algorithm)).seconds[0])
    graph = dag(workers, algorithm, rates)
    assert float(simgrid.by_simgrid(graph).max()) == pytest.approx(expected, rel=1e-4)
    slower = graph.scaled(0, 0.5)  # canary: one link is slower
    assert float(simgrid.by_simgrid(slower).max()) > 1.2 * expected


@pytest.mark.parametrize(
    ("name", "device", "median", "most"),
    [("dgx-a100", "a100_sxm", 0.04, 0.15), ("dgx-h100", "h100_sxm", 0.04, 0.09),
     ("dgx-b200", "b200_sxm", 0.03, 0.07)],
)  # fmt: skip
def test_nodes_take_as_long_as_measured(name: str, device: str, median: float, most: float) -> None:
    """From 1 MiB on, among 2, 4 and 8 devices of a node."""
    node = catalogue.cluster(name)
    errors = []
    with gzip.open(measured("gpu_operators") / "nccl.csv.gz", "rt") as file:
        for row in csv.DictReader(file):
            if (row["device"], row["op"]) == (device, "alltoall") and int(row["bytes"]) >= 2**20:
                members = Members(Fabric.of(node, int(row["devices"])), node.inside_collectives)
                cost = LinkCosts(members, np.array([float(row["bytes"])])).all_to_all()
                errors.append(abs(float(cost.seconds[0]) / float(row["ms"]) * 1e3 - 1.0))
    assert len(errors) == 30
    assert statistics.median(errors) < median
    assert sorted(errors)[int(0.9 * len(errors))] < most
