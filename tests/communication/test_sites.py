"""Clusters whose nodes are at several sites, with links between the sites."""

from __future__ import annotations

import itertools
from typing import Any

import msgspec
import numpy as np
import pytest

from perfmodel import Cluster, InputError, Link, Source, Workload, make_job, predict
from perfmodel.architectures import registry
from perfmodel.communication.fabric import Fabric
from perfmodel.engine.simulation import simulate
from perfmodel.inputs.cluster import IntraNode, Server
from perfmodel.inputs.sites import Site, SiteLink
from perfmodel.inputs.workload import WorkloadLayer
from perfmodel.predicting.fine import build_graph

WORK = Workload.of("one layer", [WorkloadLayer("a", 1.0, 2.0, (100.0,))])
"""A step of 3 s that makes 100 bytes of gradients."""

SLOW = SiteLink(10.0, 2.0)
"""A tenth of a NIC, with a latency of 2 s."""


def cluster(
    sites: tuple[int, ...] | int = 2, *links: SiteLink, nic: Link | None = None, **fields: Any
) -> Cluster:
    """Sites a, b, c ... with the given numbers of nodes, or one node each."""
    counts = (1,) * sites if isinstance(sites, int) else sites
    return Cluster(
        name="lab",
        nic=nic or Link(100.0),
        sites=tuple(Site("abcdefgh"[k], count) for k, count in enumerate(counts)),
        site_links=links or (SLOW,),
        source=Source("exact", "test"),
        **fields,
    )


def step_s(
    where: Cluster, workers: int, arch: str, fidelity: Any = "fine", **options: Any
) -> float:
    job = make_job(workload=WORK, cluster=where, workers=workers, arch=arch, options=options)
    return predict(job, fidelity=fidelity, rel_ci=0.2).iteration_s


ROUTES = pytest.mark.parametrize("fidelity", ["fine", "coarse"])


# -- by hand ---------------------------------------------------------------------------------------


@ROUTES
def test_a_ring_over_two_sites(fidelity: str) -> None:
    # two steps, in each of which 50 bytes go each way at 10 bytes/s and arrive 2 s later
    found = step_s(cluster(), 2, "ring", fidelity, overlap=False)
    assert found == pytest.approx(3.0 + 2 * (5.0 + 2.0))
    assert found != pytest.approx(3.0 + 2 * 5.0 + 2.0)  # the link is not busy all the time


@ROUTES
def test_a_ring_crosses_each_link_between_sites_once_per_round(fidelity: str) -> None:
    # four workers at two sites: six steps of 25 bytes at 10 bytes/s; of six hops in a row, at most
    # three are between sites
    found = step_s(cluster((2, 2)), 4, "ring", fidelity, overlap=False)
    assert found == pytest.approx(3.0 + 6 * 2.5 + 3 * 2.0)


def test_ring_sends_are_pipelined_on_a_long_link() -> None:
    where = cluster((2, 2), SiteLink(1e6, 2.0), nic=Link(1e6))
    each = step_s(where, 4, "ring", each_send=True, overlap=False)
    assert each == pytest.approx(3.0 + 3 * 2.0, rel=1e-3)
    whole = step_s(where, 4, "ring", overlap=False)
    assert whole == pytest.approx(each, rel=1e-3)
    slow = cluster((2, 2))
    assert step_s(slow, 4, "ring", each_send=True, overlap=False) <= step_s(
        slow, 4, "ring", overlap=False
    )


def test_a_server_at_another_site() -> None:
    where = cluster(2, server=Server(site="b"))
    # push and pull 100 bytes at 10 bytes/s, each with a latency of 2 s
    assert step_s(where, 1, "bsp", overlap=False) == pytest.approx(3.0 + 2 * (10.0 + 2.0))
    near = cluster(2, server=Server(site="a"))
    assert step_s(near, 1, "bsp", overlap=False) == pytest.approx(3.0 + 2 * 1.0)
    assert step_s(cluster(2), 1, "bsp", overlap=False) == pytest.approx(3.0 + 2 * 1.0)


def test_transfers_between_two_sites_share_their_link() -> None:
    # two workers at a, with a server at b: 10 bytes/s for both; NICs would give 100 to each
    both = step_s(cluster((2, 1), server=Server(site="b")), 2, "bsp", overlap=False)
    assert both == pytest.approx(3.0 + 2 * (20.0 + 2.0))
    # at a and at c: a link to b for each
    apart = cluster(3, server=Server(site="b"))
    apart = msgspec.structs.replace(apart, sites=(Site("a"), Site("c"), Site("b")))
    assert step_s(apart, 2, "bsp", overlap=False) == pytest.approx(3.0 + 2 * (10.0 + 2.0))


def test_the_two_directions_may_differ() -> None:
    there, back = SiteLink(10.0, 2.0, between=("a", "b")), SiteLink(20.0, 1.0, between=("b", "a"))
    found = step_s(cluster(2, there, back, server=Server(site="b")), 1, "bsp", overlap=False)
    assert found == pytest.approx(3.0 + (10.0 + 2.0) + (5.0 + 1.0))
    names = predict(
        make_job(workload=WORK, cluster=cluster(2, there, back), workers=2, arch="ring")
    ).utilisation.links
    assert {"link between sites a to b", "link between sites b to a"} <= set(names)


@pytest.mark.parametrize(
    ("fields", "rate"),
    [
        ({"window_bytes": 20.0}, 5.0),  # 20 bytes in each round trip of 4 s
        ({"window_bytes": 20.0, "connections": 2}, 10.0),
        ({"window_bytes": 20.0, "connections": 3}, 10.0),  # 15, but the link has 10
        ({"loss_rate": 1.0}, 10.0),  # 1460 / 4 * sqrt(1.5) = 447 bytes/s
        ({"loss_rate": 1.0, "window_bytes": 8.0}, 2.0),
    ],
)
@ROUTES
def test_connections_of_a_transfer(fields: dict[str, Any], rate: float, fidelity: str) -> None:
    link = SiteLink(10.0, 2.0, **fields)
    found = step_s(cluster(2, link), 2, "ring", fidelity, overlap=False)
    assert found == pytest.approx(3.0 + 100.0 / rate + 2 * 2.0)


def test_packet_loss_limits_a_connection() -> None:
    fast = Link(1e6)
    link = SiteLink(1e6, 2.0, loss_rate=0.01)
    found = step_s(cluster(2, link, nic=fast), 2, "ring", overlap=False)
    # 1460 bytes / 4 s * sqrt(1.5 / 0.01) = 4470.3 bytes/s
    assert found == pytest.approx(7.0 + 100.0 / 4470.331, rel=1e-6)
    assert found != pytest.approx(7.0 + 100.0 / (4470.331 * 0.9), rel=1e-6)


@ROUTES
def test_the_connection_limit_applies_to_each_connection_of_a_transfer(fidelity: str) -> None:
    link = SiteLink(10.0, 2.0, connections=2)
    found = step_s(cluster(2, link, flow_bytes_per_s=4.0), 2, "ring", fidelity, overlap=False)
    assert found == pytest.approx(3.0 + 100.0 / 8.0 + 2 * 2.0)


def test_sums_are_made_inside_each_site_first() -> None:
    """Two sites of two workers: half of the bytes of each rail, each way, over their link."""
    where = cluster((2, 2), SiteLink(10.0, 0.0))
    found = step_s(where, 4, "allreduce", algorithm="hierarchical", overlap=False)
    # inside 50 bytes each way before and after; between, 2 rails x 25 bytes, there and back
    assert found == pytest.approx(3.0 + 2 * 50.0 / 100.0 + 2 * 50.0 / 10.0)
    around = step_s(where, 4, "ring", overlap=False)
    assert found < around
    # libraries do not know the sites: they sum around the ring unless they are told to
    assert step_s(where, 4, "allreduce", overlap=False) == pytest.approx(around)


# -- the order of rings ----------------------------------------------------------------------------


def square(fast: float = 50.0, slow: float = 5.0) -> list[SiteLink]:
    """Four sites on a square, a-c-b-d, with slow links across."""
    pairs = {"ac": fast, "cb": fast, "bd": fast, "da": fast, "ab": slow, "cd": slow}
    return [SiteLink(rate, 1.0, between=(pair[0], pair[1])) for pair, rate in pairs.items()]


def test_rings_follow_the_fastest_cycle_of_sites() -> None:
    where = cluster((2, 1, 2, 1), *square(), devices_per_node=2)
    ring = Fabric.of(where, 12).rings(np.arange(12))[0].tolist()
    # workers 0-3 are at a, 4-5 at b, 6-9 at c, 10-11 at d
    assert ring == [0, 1, 2, 3, 6, 7, 8, 9, 4, 5, 10, 11]


@ROUTES
def test_the_order_of_sites_in_the_file_does_not_matter(fidelity: str) -> None:
    found = set()
    for order in itertools.permutations(range(4)):
        where = cluster((1, 1, 1, 1), *square())
        sites = tuple(where.sites[k] for k in order)
        where = msgspec.structs.replace(where, sites=sites)
        found.add(round(step_s(where, 4, "ring", fidelity, overlap=False), 9))
    # six steps of 25 bytes at 50 bytes/s and 1 s
    assert found == {3.0 + 6 * (0.5 + 1.0)}


def test_a_ring_over_some_of_the_sites() -> None:
    where = cluster((1, 1, 1, 1), *square())
    assert Fabric.of(where, 3).rings(np.arange(3)).tolist() == [[0, 1, 2]]
    # a server at d does not take part
    fabric = Fabric.of(msgspec.structs.replace(where, server=Server(site="d")), 2, [2])
    assert fabric.between is not None
    assert fabric.between.names == ("a", "b", "d")
    assert fabric.rings(np.arange(2)).tolist() == [[0, 1]]


def test_all_rings_of_nodes_with_several_nics_use_that_order() -> None:
    where = cluster((1, 1, 1, 1), *square(), devices_per_node=2, nics_per_node=2)
    rings = Fabric.of(where, 8).rings(np.arange(8))
    assert (rings // 2).tolist() == [[0, 0, 2, 2, 1, 1, 3, 3]] * 2
    assert (rings[0] != rings[1]).all()


# -- laws ------------------------------------------------------------------------------------------


@pytest.mark.sampled(3)
@pytest.mark.parametrize("arch", [a.name for a in registry.all_architectures()])
def test_sites_with_free_links_change_nothing(arch: str) -> None:
    inside = IntraNode(300.0, 0.01, kind="per_device")
    fields: dict[str, Any] = {"devices_per_node": 2, "intra_node": inside}
    near = Link(100.0, 0.1)
    apart = cluster(2, SiteLink(100.0), nic=near, **fields)
    together = msgspec.structs.replace(apart, sites=(), site_links=())
    assert step_s(apart, 4, arch) == step_s(together, 4, arch)
    if arch != "gosgd":  # which does not wait
        slower = cluster(2, SiteLink(10.0), nic=near, **fields)
        assert step_s(slower, 4, arch) > step_s(together, 4, arch)


@pytest.mark.parametrize(("arch", "options"), [
    ("ring", {}), ("ring", {"each_send": True}), ("allreduce", {"bucketing": "horovod"}),
    ("fsdp", {}), ("local_sgd", {"period": 2}), ("d_psgd", {}), ("p2p", {}),
])  # fmt: skip
def test_one_simulated_worker_represents_all_only_if_all_are_equal(
    arch: str, options: dict[str, Any]
) -> None:
    for where in (cluster((2, 1, 1)), cluster((1, 1), SiteLink(5.0, 1.0, between=("a", "b")),
                                              SiteLink(9.0, 2.0, between=("b", "a")))):  # fmt: skip
        workers = where.workers_nodes or 0
        job = make_job(workload=WORK, cluster=where, workers=workers, arch=arch, options=options)
        whole, folded = (simulate(build_graph(job, fold=fold)) for fold in (False, True))
        rates = whole.iterations_per_s.max(), folded.iterations_per_s.max()
        assert rates[0] == pytest.approx(rates[1], rel=1e-9)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("arch", ["allreduce", "ring", "fsdp", "bsp", "d_psgd", "p2p", "local_sgd"])
def test_faster_links_between_sites_are_never_slower(arch: str) -> None:
    found = [step_s(cluster((2, 1, 1), SiteLink(rate, 0.1)), 4, arch) for rate in (1, 3, 10, 30)]
    assert found == sorted(found, reverse=True)
    assert found[0] > 2.0 * found[-1]
    late = [step_s(cluster((2, 1, 1), SiteLink(10, late)), 4, arch) for late in (0.0, 1.0, 9.0)]
    assert late == sorted(late)
    assert late[-1] > late[0]


@pytest.mark.parametrize(("arch", "options"), [
    ("allreduce", {"algorithm": "ring"}), ("allreduce", {"compression": "top_k"}),
    ("fsdp", {}), ("fsdp", {"stage": 2}), ("fsdp", {"shard_group": 1}),
    ("fsdp", {"shard_group": 1, "stage": 2}), ("local_sgd", {"algorithm": "ring", "period": 2}),
])  # fmt: skip
@pytest.mark.parametrize("nics", [1, 2])
def test_rings_by_formula_equal_the_simulation(
    arch: str, options: dict[str, Any], nics: int
) -> None:
    links = [
        SiteLink(10.0, 2.0, between=("a", "b")),
        SiteLink(7.0, 0.0, between=("b", "c"), window_bytes=1.0),
        SiteLink(30.0, 3.0, between=("c", "a"), window_bytes=30.0),
    ]
    where = cluster((2, 1, 1), *links, devices_per_node=2, nics_per_node=nics,
                    intra_node=IntraNode(300.0, 0.01), nic=Link(100.0, 0.1))  # fmt: skip
    job = make_job(workload=WORK, cluster=where, workers=8, arch=arch, options=options)
    found = predict(job, fidelity="coarse")
    assert found.error_band is not None
    assert found.error_band.p90 == 0.0
    assert found.iteration_s == pytest.approx(predict(job, fidelity="fine").iteration_s, rel=1e-9)
    assert "slowest link between sites" in found.utilisation.links


@pytest.mark.parametrize("arch", ["allreduce", "bsp", "asp", "d_psgd", "p2p", "gosgd", "easgd"])
def test_formulas_without_sites_say_so_and_auto_simulates(arch: str) -> None:
    job = make_job(workload=WORK, cluster=cluster(2, server=Server(site="b")), workers=2, arch=arch)
    found = predict(job, fidelity="coarse")
    assert found.error_band is not None
    assert "links between sites" in found.error_band.text
    assert predict(job, fidelity="auto", rel_ci=0.2).fidelity == "fine"


def test_a_job_at_one_site_ignores_the_other_sites() -> None:
    where = cluster((2, 1))
    assert step_s(where, 2, "ring", overlap=False) == pytest.approx(3.0 + 100.0 / 100.0)
    for arch in ("ring", "bsp", "gosgd"):
        job = make_job(workload=WORK, cluster=where, workers=2, arch=arch)
        band = predict(job, fidelity="coarse").error_band
        assert band is not None
        assert "sites" not in band.text


def test_workers_fit_on_the_nodes_of_the_sites() -> None:
    with pytest.raises(InputError, match=r"workers: 5 do not fit on cluster 'lab' \(4 nodes x 1"):
        make_job(workload=WORK, cluster=cluster((2, 2)), workers=5, arch="ring")
    # a dedicated server comes on top
    where = cluster((2, 2), server=Server(site="b"))
    assert step_s(where, 4, "bsp", overlap=False) == pytest.approx(3.0 + 2 * (20.0 + 2.0))


# -- islands ---------------------------------------------------------------------------------------


def islands(where: Cluster, count: int, devices: int | str, **options: Any) -> float:
    job = make_job(workload=WORK, cluster=where, workers=count, arch="local_sgd", options=options,
                   island_devices=devices, island_arch="allreduce")  # fmt: skip
    return predict(job, fidelity="fine").iteration_s


def test_islands_are_at_the_sites_of_their_nodes() -> None:
    inside = {"devices_per_node": 2, "intra_node": IntraNode(1e9, kind="per_device")}
    link = SiteLink(10.0, 2.0, connections=3, window_bytes=4.0)
    where = cluster((2, 1), link, **inside)
    # islands of 2 on three nodes, 0 and 1 at a, 2 at b: four steps of 100/3 bytes
    # a transfer has 3 connections, of 1 byte/s each
    assert islands(where, 3, 2, period=1, algorithm="ring") == pytest.approx(
        3.0 + 4 * 100.0 / 3 / 3.0 + 3 * 2.0
    )
    # islands of 4 and 2, one at each site; the first sums 100 bytes around its nodes in 1.5 s
    found = islands(where, 2, "4+2", period=1, algorithm="ring")
    assert found == pytest.approx(3.0 + 1.5 + 100.0 / 3.0 + 2 * 2.0)


def test_an_island_is_at_one_site() -> None:
    with pytest.raises(InputError, match=r"island 1 would span sites 'a' to 'b'"):
        islands(cluster((3, 1)), 2, 2)
    with pytest.raises(InputError, match=r"islands: 3 x 2 devices need 6 nodes, but cluster 'lab'"):
        islands(cluster((3, 1)), 3, 2)
