"""A cluster with all links to its network changed."""

from __future__ import annotations

import msgspec

from perfmodel import Link, NodeOverride, Server
from tests.jobs import cluster


def test_links_of_all_nodes_and_servers_are_changed() -> None:
    """All links get half as fast, but a node without links of its own keeps none."""
    where = cluster(
        8.0,
        server=Server(nic=Link(20.0)),
        overrides=(NodeOverride(0, Link(4.0)), NodeOverride(1, speed=0.5)),
    )
    found = where.with_links(
        lambda nic: msgspec.structs.replace(
            nic, bandwidth_bytes_per_s=nic.bandwidth_bytes_per_s / 2.0
        )
    )
    assert [found.nic_of(node) for node in range(3)] == [Link(2.0), Link(4.0), Link(4.0)]
    assert found.overrides[1].nic is None
    assert found.server_nic == Link(10.0)
    assert found.nic_of_server(0, workers=2) == Link(10.0)
