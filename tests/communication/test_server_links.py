"""A link for all dedicated servers is the same as giving it to each of their nodes."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

from perfmodel import Cluster, Job, Link, NodeOverride, evaluate, make_job, predict
from perfmodel.catalogue import catalogue

WORKERS, SERVERS = 4, 2
FAST = Link(5e9, 1e-3, 0.9)


def clusters() -> tuple[Cluster, Cluster]:
    """A cluster with the link given for all servers, and one with it given for each node."""
    base = catalogue.cluster(catalogue.DEFAULT_CLUSTER)
    server = msgspec.structs.replace(base.server, nic=FAST)
    nodes = tuple(NodeOverride(WORKERS + k, nic=FAST) for k in range(SERVERS))
    return (
        msgspec.structs.replace(base, server=server),
        msgspec.structs.replace(base, overrides=nodes),
    )


def job(cluster: Cluster, arch: str, **more: Any) -> Job:
    return make_job(
        model="alexnet", device="v100", cluster=cluster, arch=arch, workers=WORKERS,
        options={"servers": SERVERS}, **more,
    )  # fmt: skip


@pytest.mark.parametrize("arch", ["bsp", "asp", "easgd"])
def test_the_simulation_uses_the_link_for_each_server_node(arch: str) -> None:
    one, other = (predict(job(cluster, arch)) for cluster in clusters())
    assert one.iteration_s == other.iteration_s


@pytest.mark.parametrize("arch", ["bsp", "asp", "easgd"])
def test_formulas_use_the_server_link(arch: str) -> None:
    """Its rate as given per node, and the larger latency, as in the simulation."""
    cluster, nodes = clusters()
    slow = msgspec.structs.replace(cluster.nic, latency_s=FAST.latency_s)
    nodes = msgspec.structs.replace(nodes, nic=slow)
    one, other = (predict(job(some, arch), fidelity="coarse") for some in (cluster, nodes))
    assert one.iteration_s == pytest.approx(other.iteration_s, rel=1e-12)


def test_workers_can_be_varied_with_a_server_link() -> None:
    one = job(clusters()[0], "asp")
    found = evaluate(one, workers=np.array([2, WORKERS])).iteration_s[1]
    assert found == pytest.approx(float(predict(one, fidelity="coarse").iteration_s), rel=1e-12)


def test_a_given_bandwidth_applies_to_every_link() -> None:
    found = job(clusters()[0], "bsp", bandwidth_bytes_per_s=1e9).cluster
    assert found.server.nic is not None
    assert found.nic.bandwidth_bytes_per_s == found.server.nic.bandwidth_bytes_per_s == 1e9


def test_colocated_servers_use_the_workers_links() -> None:
    cluster = clusters()[0]
    beside = msgspec.structs.replace(cluster.server, placement="colocated")
    plain = msgspec.structs.replace(beside, nic=None)
    one, other = (
        predict(job(msgspec.structs.replace(cluster, server=server), "bsp"))
        for server in (beside, plain)
    )
    assert one.iteration_s == other.iteration_s


def test_canary_the_link_matters() -> None:
    cluster = clusters()[0]
    plain = catalogue.cluster(catalogue.DEFAULT_CLUSTER)
    for fidelity in ("fine", "coarse"):
        one, other = (
            predict(job(some, "bsp"), fidelity=fidelity)  # type: ignore[arg-type]
            for some in (cluster, plain)
        )
        assert one.iteration_s < 0.95 * other.iteration_s
