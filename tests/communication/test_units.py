"""Workers in units of which no two have devices on one node, and kinds of these."""

from __future__ import annotations

from typing import Any

import numpy as np

from perfmodel import Straggler, make_job
from perfmodel.communication.units import Devices, Units
from perfmodel.inputs.cluster import NodeOverride
from perfmodel.inputs.job import Job
from perfmodel.inputs.sites import Site, SiteLink
from perfmodel.predicting import replicas
from tests.jobs import cluster, workload


def job(workers: int, each: int = 2, **more: Any) -> Job:
    spec = cluster(1.0, devices_per_node=each, **more.pop("cluster", {}))
    return make_job(
        workload=workload([1.0], [2.0], [8.0]), cluster=spec, workers=workers, arch="asp", **more
    )


def units_of(one: Job) -> Units:
    return Units.of([Devices.of(one)])


def kinds_of(units: Units) -> list[list[int]]:
    return [kind.tolist() for kind in units.kinds]


def test_units_are_nodes_or_pairs_of_these_by_hand() -> None:
    """Units have an even number of workers; what is left of the last one is like the others."""
    even, odd = units_of(job(7, 2)), units_of(job(14, 3))
    assert even.start.tolist() == [0, 2, 4, 6, 7]
    assert odd.start.tolist() == [0, 6, 12, 14]
    for units in (even, odd):
        last = len(units.start) - 2
        assert kinds_of(units) == [list(range(last))]
        assert units.represented_by(units.sample(4, 2)).of[units.start[last]] == 0


def test_kinds_of_units_by_hand() -> None:
    """Of nodes of two, worker 5 is slow (node 2), node 4 has a slow link, node 5 too."""
    slow = cluster(0.5).nic
    overrides = tuple(NodeOverride(node=node, nic=slow) for node in (4, 5))
    units = units_of(job(17, cluster={"overrides": overrides}, stragglers=[Straggler(5, 2.0)]))
    assert kinds_of(units) == [[2], [4, 5], [0, 1, 3, 6, 7]]
    same = [np.flatnonzero(units.alike == kind).tolist() for kind in np.unique(units.alike)]
    usual = [*range(4), 6, 7, *range(12, 17)]
    assert sorted(same) == [usual, [4], [5], [8, 9, 10, 11]]


def test_a_node_of_half_the_speed_is_like_one_of_slow_workers() -> None:
    slow = [Straggler(worker, 2.0) for worker in (4, 5)]
    units = units_of(job(10, cluster={"overrides": (NodeOverride(3, speed=0.5),)}, stragglers=slow))
    assert kinds_of(units) == [[2, 3], [0, 1, 4]]


def test_workers_of_many_speeds_are_of_classes_by_hand() -> None:
    """Of 320 pairs that are not equally fast, the fastest 40 are of one class, the next 40 of
    another, and the slowest is one of its own."""
    order = np.random.default_rng(1).permutation(320)
    slow = [Straggler(2 * pair, 1.0 + order[pair] / 100.0) for pair in range(320)]
    units = units_of(job(640, each=1, stragglers=slow))
    found = sorted((sorted(order[kind].tolist()) for kind in units.kinds), key=lambda kind: kind[0])
    assert found == [[*range(40 * i, 40 * i + 40)] for i in range(7)] + [[*range(280, 319)], [319]]
    sample = units.sample(64, 2)
    assert np.bincount(order[sample] // 40).min() >= 3
    assert (len(sample), order[sample].max()) == (32, 319)
    few = units.represented_by(sample)
    assert abs(order[sample[few.of // 2]] - order[np.arange(640) // 2]).max() < 40


def test_an_unusual_node_that_is_not_full_is_of_its_own_kind() -> None:
    units = units_of(job(17, stragglers=[Straggler(16, 2.0)]))
    assert kinds_of(units) == [[8], list(range(8))]
    found = units.represented_by(units.sample(6, 2))
    assert found.places.unit.tolist() == [0, 0, 1, 1, 8]
    assert found.places.like.tolist() == [0, 1, 0, 0, 0, 1, 1, 1, 8]
    assert found.of.tolist() == [*range(4), *[0, 1] * 3, *[2, 3] * 3, 4]


def test_nodes_of_different_sizes_and_sites_are_of_different_kinds() -> None:
    sizes = units_of(job(20, 4, cluster={"devices_on_nodes": (4, 2, 4, 2)}))
    assert kinds_of(sizes) == [[1, 3], [0, 2, 4, 5]]
    links = (SiteLink(bandwidth_bytes_per_s=1.0, latency_s=0.0),)
    where = {"sites": (Site("a", 2), Site("b", 3)), "site_links": links}
    assert kinds_of(units_of(job(10, 2, cluster=where))) == [[0, 1], [2, 3, 4]]


def test_a_sample_has_some_of_each_kind_by_hand() -> None:
    """Half of 16 nodes: two with a slow link of which one would do, and six of the usual ones."""
    slow = cluster(0.5).nic
    overrides = tuple(NodeOverride(node=node, nic=slow) for node in (4, 5, 6))
    units = units_of(job(32, cluster={"overrides": overrides}))
    sample = units.sample(16, 2)
    assert sample.tolist() == [0, 1, 2, 3, 4, 5, 7, 8]
    found = units.represented_by(sample)
    assert units.workers(sample).tolist() == [*range(12), *range(14, 18)]
    assert np.bincount(found.of).tolist() == [3, 3, 2, 2, 2, 2, 2, 2, 2, 2, 1, 1, 2, 2, 2, 2]
    assert len(set(found.kind)) == 2


def test_replicas_that_share_nodes_are_one_unit() -> None:
    """Two stages on nodes of four: those of two replicas, or the same stage of four. If a node has
    both stages, all replicas are one unit."""
    given = {
        "model": "gpt2-small",
        "device": "a100",
        "arch": "asp",
        "bandwidth": "10Gbps",
        "devices_per_node": 4,
        "pipeline": 2,
        "micro_batches": 2,
    }

    def starts(workers: int, order: str) -> list[int]:
        one = make_job(workers=workers, rank_order=order, **given)
        return Units.of(replicas.devices_of(one)).start.tolist()

    assert starts(8, "tp-pp-dp") == [0, 2, 4, 6, 8]
    assert starts(8, "tp-dp-pp") == [0, 4, 8]
    assert starts(6, "tp-dp-pp") == [0, 6]


def test_islands_that_are_as_fast_are_of_one_kind() -> None:
    """Six islands, each on its own node; units are pairs of them."""
    one = make_job(
        model="resnet18", device="v100", arch="asp", workers=6, island_devices="8+8+8+4+8+8"
    )
    assert kinds_of(units_of(one)) == [[1], [0, 2]]
