"""Nodes and links of islands: workers that are groups of devices."""

from __future__ import annotations

import msgspec

from perfmodel.base.errors import InputError, whole_number
from perfmodel.inputs.cluster import Cluster, NodeOverride
from perfmodel.inputs.sites import MOST_CONNECTIONS

MOST_DEVICES = 100_000
"""Maximum devices per island; a limit that catches typing errors."""

MOST_IN_ALL = 200_000
"""Maximum devices of all islands together, as of a job without islands."""


def read_devices(given: int | str, islands: int) -> tuple[int, ...]:
    """Devices of each of ``islands`` islands: one number for all, or text such as ``8+8+4``.

    >>> read_devices("8+4", 2)
    (8, 4)

    Raises
    ------
    InputError : not a whole number from 1 on, or not one number per island; too many in all.
    """
    name = "island_devices"
    counts = (given,) if not isinstance(given, str) else _listed(name, given)
    for count in counts:
        whole_number(name, count, at_most=MOST_DEVICES)
    if len(counts) not in (1, islands):
        raise InputError(f"{name}: {given} is {len(counts)} islands, but workers is {islands}")
    if (total := sum(counts) * (islands if len(counts) == 1 else 1)) > MOST_IN_ALL:
        raise InputError(
            f"{name}: at most {MOST_IN_ALL} devices in all islands together, got {total}"
        )
    return counts * islands if len(counts) == 1 else counts


def _listed(name: str, given: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in given.split("+"))
    except ValueError:
        raise InputError(
            f"{name}: cannot read {given!r}; expected a number such as 8, or one per "
            "island such as 8+8+4"
        ) from None


class IslandSteps(msgspec.Struct, frozen=True):
    """Steps of an island between two exchanges: ``most`` for the fastest island and, with
    ``equal_time``, fewer for slower ones (dynamic local updates of Liu and others)."""

    most: int = 1
    equal_time: bool = False


ONE_STEP = IslandSteps()

MOST_STEPS = 1_000_000
"""Maximum steps between two exchanges; a limit that catches typing errors."""


def read_steps(given: int | str) -> IslandSteps:
    """Read the steps of each island: a number, or text such as ``equal:100``.

    >>> read_steps("equal:100")
    IslandSteps(most=100, equal_time=True)

    Raises
    ------
    InputError : not a whole number from 1 on.
    """
    text = given if isinstance(given, str) else ""
    word, colon, count = text.rpartition(":")
    if (colon and word != "equal") or (text and not count.isdecimal()):
        raise InputError(
            f"island_steps: cannot read {given!r}; expected a number such as 100, or equal:100 "
            "(slower islands do fewer steps in the same time)"
        )
    steps = int(count) if text else given
    return IslandSteps(whole_number("island_steps", steps, at_most=MOST_STEPS), bool(colon))


class Places(msgspec.Struct, frozen=True):
    """The nodes of islands: the ``first`` of each, and how ``many`` it has, both (islands,).

    ``together`` islands share a node. This is more than 1 only if all islands have the same number
    of devices and this divides the devices of a node. Otherwise each island starts on a new node.
    """

    first: tuple[int, ...]
    many: tuple[int, ...]
    together: int = 1


def places_of(cluster: Cluster, devices: tuple[int, ...]) -> Places:
    """Nodes of islands with ``devices`` devices each, (islands,).

    Raises
    ------
    InputError : they do not fit on the cluster, or the cluster sets devices_on_nodes.
    """
    if cluster.devices_on_nodes:
        raise InputError("islands: cannot be combined with devices_on_nodes of the cluster")
    per_node, one = cluster.devices_per_node, devices[0]
    if len(set(devices)) == 1 and per_node % one == 0:
        together = per_node // one
        first = tuple(i // together for i in range(len(devices)))
        places = Places(first, (1,) * len(devices), together)
    else:
        many = tuple(-(-count // per_node) for count in devices)
        places = Places(tuple(sum(many[:i]) for i in range(len(many))), many)
    needed = places.first[-1] + places.many[-1]
    nodes = cluster.workers_nodes
    if nodes is not None and needed > nodes:
        text = "+".join(map(str, devices)) if len(set(devices)) > 1 else f"{len(devices)} x {one}"
        raise InputError(
            f"islands: {text} devices need {needed} nodes, but cluster {cluster.name!r} has "
            f"{nodes} (devices per node: {per_node})"
        )
    for island, at in enumerate(_sites(cluster, places)):
        if at[0] != at[-1]:
            a, z = cluster.sites[at[0]].name, cluster.sites[at[-1]].name
            raise InputError(
                f"islands: island {island} would span sites {a!r} to {z!r}; islands are placed on "
                "the nodes in order, so choose island_devices to fit the sites"
            )
    return places


def _sites(cluster: Cluster, places: Places) -> list[list[int]]:
    """The sites of each island's nodes; empty for a cluster without sites."""
    if not cluster.sites:
        return []
    of_node = [k for k, site in enumerate(cluster.sites) for _ in range(site.nodes)]
    return [
        of_node[first : first + many] for first, many in zip(places.first, places.many, strict=True)
    ]


def inside(cluster: Cluster, first: int, many: int) -> Cluster:
    """The cluster that one island trains on: ``many`` nodes from ``first`` on."""
    overrides = tuple(
        msgspec.structs.replace(override, node=override.node - first)
        for override in cluster.overrides
        if first <= override.node < first + many
    )
    return msgspec.structs.replace(cluster.at_one_site(), nodes=None, overrides=overrides)


def among(
    cluster: Cluster, places: Places, devices: tuple[int, ...], speeds: tuple[float, ...]
) -> Cluster:
    """The cluster as islands see it: each is one device, alone on a node unless it shares one.

    One process on an island's first node exchanges for it, over ``nics_per_process`` of the node's
    links, used as one, and as many connections. Inside a node that islands share, all devices
    exchange. ``speeds`` are relative to the first island, (islands,). Measured collectives are
    dropped: they hold for devices, not for islands. So is contention inside an island, which is
    part of its step.
    """
    together, many = places.together, cluster.nics_per_process
    width = min(many, max(cluster.nics_per_node // together, 1))
    links = [cluster.nic_of(first).times(width) for first in places.first]
    overrides = [
        NodeOverride(i, None if links[k] == links[0] else links[k], speeds[k])
        for i, k in enumerate(range(0, len(devices), together))
        if links[k] != links[0] or speeds[k] != 1.0
    ]
    used, count = places.first[-1] + places.many[-1], -(-len(devices) // together)
    overrides += [
        NodeOverride(o.node - used + count, None if o.nic is None else o.nic.times(many))
        for o in cluster.overrides
        if o.node >= used  # of servers
    ]
    server = cluster.server
    if server.placement == "dedicated":
        nic = (server.nic or cluster.nic).times(many)
        server = msgspec.structs.replace(server, nic=None if nic == links[0] else nic)
    nics = min(cluster.nics_per_node, together)
    core = cluster.core_oversubscription  # its capacity stays that for all links of all nodes
    if core is not None:
        core *= width * nics * count / (cluster.nics_per_node * used)
    at = [site[0] for site in _sites(cluster, places)[::together]]
    sites = [  # a server's site stays even if no island is there
        msgspec.structs.replace(site, nodes=max(at.count(k), 1))
        for k, site in enumerate(cluster.sites)
    ]
    flow, ports = cluster.flow_bytes_per_s, cluster.intra_node
    if ports is not None and ports.kind == "per_device":
        rate = ports.bandwidth_bytes_per_s * devices[0]
        ports = msgspec.structs.replace(ports, bandwidth_bytes_per_s=rate)
    return msgspec.structs.replace(
        cluster,
        nic=links[0],
        nodes=None if cluster.nodes is None else cluster.nodes - used + count,
        devices_per_node=together,
        nics_per_node=nics,
        nics_per_process=1,
        intra_node=ports if together > 1 else None,
        overrides=tuple(overrides),
        collectives=(),
        slowdown_per_neighbour=0.0,
        device_spread=0.0,
        loaders_per_node=None,
        core_oversubscription=None if core is None or core <= 1.0 else core,
        server=server,
        flow_bytes_per_s=None if flow is None else flow * many,
        sites=tuple(sites),
        site_links=tuple(
            msgspec.structs.replace(
                link, connections=min(link.connections * many, MOST_CONNECTIONS)
            )
            for link in cluster.site_links
        ),
    )
