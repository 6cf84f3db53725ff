"""Sites in a cluster file: reading and validation."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest

from perfmodel import InputError
from perfmodel.catalogue import catalogue
from perfmodel.inputs.cluster import Cluster, Server, read_cluster
from perfmodel.inputs.sites import SiteLink

FILE = """
schema = "perfmodel.cluster/1"
name = "lab"
nic = { bandwidth_bytes_per_s = "10Gbps" }
source = { kind = "exact", text = "test" }
sites = [{ name = "oslo", nodes = 2 }, { name = "lima" }, { name = "perth", nodes = 3 }]

[[site_links]]
bandwidth_bytes_per_s = "1Gbps"
latency_s = "80ms"
window_bytes = "4MiB"

[[site_links]]
between = ["oslo", "lima"]
bandwidth_bytes_per_s = "500Mbps"
latency_s = "90ms"
connections = 4
loss_rate = 1e-4
"""


def read(tmp_path: Path, text: str) -> Cluster:
    path = tmp_path / "lab.toml"
    path.write_text(text)
    return read_cluster(path)


def test_links_per_pair_and_default_link(tmp_path: Path) -> None:
    found = read(tmp_path, FILE).between_sites()
    assert found.names == ("oslo", "lima", "perth")
    slow, fast = 62.5e6, 125e6
    np.testing.assert_array_equal(
        found.bytes_per_s,
        [[np.inf, slow, fast], [slow, np.inf, fast], [fast, fast, np.inf]],
    )
    np.testing.assert_array_equal(
        found.latency_s, [[0.0, 0.09, 0.08], [0.09, 0.0, 0.08], [0.08, 0.08, 0.0]]
    )
    losses, window = 4 * 1460 / 0.18 * np.sqrt(1.5e4), 2**22 / 0.16
    np.testing.assert_allclose(
        found.flow_bytes_per_s,
        [[np.inf, losses, window], [losses, np.inf, window], [window, window, np.inf]],
    )


def test_nodes_are_numbered_site_by_site(tmp_path: Path) -> None:
    found = read(tmp_path, FILE)
    assert found.workers_nodes == 6
    assert found.sites_of(6, 6).tolist() == [0, 0, 1, 2, 2, 2]
    # three workers and two servers at perth; by default servers are at the first site
    assert found.sites_of(5, 3).tolist() == [0, 0, 1, 0, 0]
    there = msgspec.structs.replace(found, server=Server(site="perth"))
    assert there.sites_of(5, 3).tolist() == [0, 0, 1, 2, 2]


def test_the_round_trip_is_both_latencies(tmp_path: Path) -> None:
    back = """
[[site_links]]
between = ["lima", "oslo"]
bandwidth_bytes_per_s = "2Gbps"
latency_s = "30ms"
window_bytes = "12MB"
"""
    found = read(tmp_path, FILE + back)
    flow = found.between_sites().flow_bytes_per_s
    assert flow[1, 0] == pytest.approx(12e6 / 0.12)
    assert flow[0, 1] == pytest.approx(4 * 1460 / 0.12 * np.sqrt(1.5e4))


WRONG = {
    'between = ["oslo", "lima"]':
        {
            'between = ["oslo", "limma"]':
                "unknown site in site_links[1].between 'limma'; did you mean 'lima'? "
                "(known: lima, oslo, perth)",
            'between = ["lima", "lima"]':
                "site_links[1]: between: needs two sites, got 'lima' twice",
            'between = ["lima"]': "site_links[1].between: expected `array` of length 2, got 1",
            "": "site_links: the entry without between is given twice",
        },
    "loss_rate = 1e-4":
        {
            "loss_rate = -0.1": "site_links[1]: loss_rate: must be at least 0, got -0.1",
            "loss_rate = 1.1": "site_links[1]: loss_rate: must be at most 1, got 1.1",
            "loss_rate = nan": "site_links[1]: loss_rate: expected a finite number, got nan",
            "lose_rate = 0.1":
                "site_links[1]: unknown key 'lose_rate'; did you mean 'loss_rate'? (allowed: "
                "bandwidth_bytes_per_s, latency_s, efficiency, ceiling_bytes_per_s, between, "
                "connections, window_bytes, loss_rate)",
        },
    'bandwidth_bytes_per_s = "500Mbps"':
        {
            "bandwidth_bytes_per_s = -1.0":
                "site_links[1]: bandwidth_bytes_per_s: must be more than 0, got -1",
            "bandwidth_bytes_per_s = nan":
                "site_links[1]: bandwidth_bytes_per_s: expected a finite number, got nan",
        },
    "connections = 4":
        {"connections = 0": "site_links[1]: connections: must be at least 1, got 0"},
    'window_bytes = "4MiB"':
        {
            "window_bytes = 0.0": "site_links[0]: window_bytes: must be more than 0, got 0",
            'between = ["oslo", "perth"]':
                "site_links: no link between 'lima' and 'perth'; add the pair, or an entry without "
                "between for all other pairs",
            'between = ["oslo", "lima"]': "site_links: the pair 'oslo' and 'lima' is given twice",
        },
    '{ name = "lima" }':
        {
            '{ name = "oslo" }': "sites: 'oslo' is given twice",
            '{ name = " " }': "sites[1]: name: must not be empty",
            '{ name = "lima", nodes = 0 }': "sites[1]: nodes: must be at least 1, got 0",
        },
    'name = "lab"':
        {
            'name = "lab"\nnodes = 7': "nodes: the number follows from the sites; leave it out",
            'name = "lab"\ncore_oversubscription = 2.0':
                "core_oversubscription: models the core of a single site; cannot be combined with "
                "sites",
            'name = "lab"\nqueue_bytes = 1e6':
                "queue_bytes: models queues within a single site; cannot be combined with sites",
            'name = "lab"\nserver = { site = "olso" }':
                "unknown site of the server 'olso'; did you mean 'oslo'? (known: lima, oslo, "
                "perth)",
            'name = "lab"\nserver = { site = "oslo", placement = "colocated" }':
                "server: site: colocated servers are at the workers' sites; leave it out",
        },
    'sites = [{ name = "oslo", nodes = 2 }, { name = "lima" }, { name = "perth", nodes = 3 }]':
        {"": "site_links: the cluster has no sites"},
}  # fmt: skip


@pytest.mark.parametrize(
    ("old", "new", "text"),
    [(old, new, text) for old, by_new in WRONG.items() for new, text in by_new.items()],
)
def test_mistakes_are_reported_in_one_line(tmp_path: Path, old: str, new: str, text: str) -> None:
    assert FILE.count(old) == 1
    with pytest.raises(InputError) as error:
        read(tmp_path, FILE.replace(old, new))
    assert str(error.value) == f"{tmp_path / 'lab.toml'}: {text}"


def test_too_many_sites_or_links_are_refused_at_once(tmp_path: Path) -> None:
    """3000 sites have nine million paths."""
    many = ", ".join(f'{{ name = "s{k}" }}' for k in range(3000))
    start = FILE.index("sites = [")
    text = f"{FILE[:start]}sites = [{many}]{FILE[FILE.index(chr(10), start) :]}"
    with pytest.raises(InputError, match=r"lab.toml: sites: at most 200, got 3000$"):
        read(tmp_path, text)
    link = '[[site_links]]\nbandwidth_bytes_per_s = "1Gbps"\nlatency_s = 0.0\n'
    with pytest.raises(InputError, match=r"site_links: at most 7 for 3 sites, got 8$"):
        read(tmp_path, FILE + link * 6)


def test_a_server_site_needs_sites() -> None:
    with pytest.raises(InputError, match=r"^server\.site: the cluster has no sites$"):
        msgspec.structs.replace(catalogue.cluster("ethernet-1g"), server=Server(site="oslo"))


def test_measured_collectives_cannot_span_sites() -> None:
    from perfmodel.inputs.cluster import Collective, Piece

    measured = Collective(
        operation="all_reduce", pieces=(Piece(0.0, 1e-9),), ranks=(2, 8), bytes=(1.0, 1e9)
    )
    with pytest.raises(InputError, match="collectives: were measured within a single site"):
        msgspec.structs.replace(catalogue.cluster("three-sites-1g"), collectives=(measured,))


def test_the_shipped_cluster_has_a_source() -> None:
    found = catalogue.cluster("three-sites-1g")
    assert found.source.kind == "estimated"
    assert [site.nodes * found.devices_per_node for site in found.sites] == [8, 8, 8]
    assert {link.bandwidth_bytes_per_s for link in found.site_links} == {125e6}
    assert isinstance(found.site_links[0], SiteLink)
