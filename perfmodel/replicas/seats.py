"""Where the devices of replicas are: nodes and links as those of one stage see them."""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import msgspec
import numpy as np

from perfmodel.base.arrays import Ids
from perfmodel.base.errors import InputError
from perfmodel.base.ranges import COUNT
from perfmodel.inputs.cluster import Cluster, Collective, NodeOverride
from perfmodel.inputs.replica import Replica
from perfmodel.inputs.sites import MOST_CONNECTIONS, Site, SiteLink


class ServersSite(Site, frozen=True):
    """A site at which servers are, but no device of a stage."""

    RANGES: ClassVar = {"nodes": COUNT._replace(at_least=0)}


class Seats(NamedTuple):
    """The cluster as the devices of one stage see it.

    Attributes
    ----------
    cluster : its nodes are those with devices of the stage.
    position : of each device among those of all replicas, (workers,).
    node : of all replicas' nodes, for each node of ``cluster``, (nodes,).
    nics : number among its node's links, for each link of ``cluster``, (nodes, links).
    """

    cluster: Cluster
    position: Ids
    node: Ids
    nics: Ids


def check_span(cluster: Cluster, size: int, name: str) -> None:
    """Raise InputError, about the argument ``name``, if ``size`` devices in a row would have a part
    of a node besides whole nodes."""
    each = cluster.devices_per_node
    if size > 1 and cluster.devices_on_nodes:
        raise InputError(f"{name}: needs a cluster with equal nodes (devices_on_nodes: none)")
    if each % size and size % each:
        allowed = [k for k in range(1, each + 1) if each % k == 0]
        raise InputError(
            f"{name}: {size} devices do not divide a node of {each}, nor fill whole nodes "
            f"(possible: {', '.join(map(str, allowed))}, or a multiple of {each})"
        )


def of_groups(cluster: Cluster, size: int) -> Cluster:
    """Return the cluster in which ``size`` devices in a row count as one.

    They use their links to the network as one, with the bursts and the queues of all. Measured
    collectives hold for single devices, and are dropped if devices share nodes.

    Raises
    ------
    InputError : a group would have a part of a node besides whole nodes.
    """
    if size == 1:
        return cluster
    check_span(cluster, size, "tensor")
    each = cluster.devices_per_node
    many = max(size // each, 1)
    together = max(each // size, 1)
    nics = min(cluster.nics_per_node, together)
    width = cluster.nics_per_node * many // nics
    inside = cluster.intra_node
    if inside is not None and inside.kind == "per_device":
        rate = inside.bandwidth_bytes_per_s * size
        inside = msgspec.structs.replace(inside, bandwidth_bytes_per_s=rate)
    flow = cluster.flow_bytes_per_s
    return msgspec.structs.replace(
        cluster,
        nic=cluster.nic.times(width),
        burst_bytes=cluster.burst_bytes * width,
        send_queue_bytes=cluster.send_queue_bytes * width,
        nodes=None if cluster.nodes is None else cluster.nodes // many,
        devices_per_node=together,
        nics_per_node=nics,
        nics_per_process=1,
        intra_node=inside if together > 1 else None,
        overrides=_overrides(cluster, many, width),
        collectives=_collectives(cluster, size) if many == size else (),
        slowdown_per_neighbour=cluster.slowdown_per_neighbour * size if together > 1 else 0.0,
        loaders_per_node=None,
        flow_bytes_per_s=None if flow is None else flow * size,
        sites=tuple(
            msgspec.structs.replace(site, nodes=max(site.nodes // many, 1))
            for site in cluster.sites
        ),
        site_links=tuple(
            msgspec.structs.replace(
                link, connections=min(link.connections * size, MOST_CONNECTIONS)
            )
            for link in cluster.site_links
        ),
    )


def _collectives(cluster: Cluster, size: int) -> tuple[Collective, ...]:
    """Return the measured collectives with the bytes of ``size`` devices, each on its own node."""
    return tuple(
        msgspec.structs.replace(
            measured,
            pieces=tuple(
                msgspec.structs.replace(
                    piece,
                    per_byte_s=piece.per_byte_s / size,
                    above_bytes=piece.above_bytes * size,
                )
                for piece in measured.pieces
            ),
            bytes=(measured.bytes[0] * size, measured.bytes[1] * size),
        )
        for measured in cluster.collectives
    )


def _overrides(cluster: Cluster, many: int, width: int) -> tuple[NodeOverride, ...]:
    """Return the overrides of groups of ``many`` nodes: those of their slowest node."""
    groups: dict[int, NodeOverride] = {}
    for override in cluster.overrides:
        number = override.node // many
        nic = cluster.nic if override.nic is None else override.nic
        speed = override.speed
        if number in groups:
            before = groups[number]
            nic = min(nic, before.nic or nic, key=lambda link: link.goodput_bytes_per_s)
            speed = min(speed, before.speed)
        elif many > 1:
            nic = min(nic, cluster.nic, key=lambda link: link.goodput_bytes_per_s)
            speed = min(speed, 1.0)
        groups[number] = NodeOverride(number, nic, speed)
    return tuple(
        msgspec.structs.replace(one, nic=None if one.nic is None else one.nic.times(width))
        for one in groups.values()
    )


def positions_of(workers: int, replica: Replica, within: int = 1) -> Ids:
    """Return where the devices of each stage of all replicas are among all, (stages, workers x
    within), if each worker has so many neighbours in a stage."""
    stages = replica.pipeline
    numbers: Ids = np.arange(workers * stages * within).reshape(-1, within)
    if replica.order == "tp-pp-dp":
        numbers = numbers.reshape(workers, stages, within).swapaxes(0, 1)
    return numbers.reshape(stages, workers * within)


def seats_of(cluster: Cluster, positions: Ids, most: int | None = None) -> list[Seats]:
    """Return the seats of the devices at each row of ``positions``, (rows, workers), in order.

    Parameters
    ----------
    cluster : in which the devices of a stage of a replica count as one (:func:`of_groups`).
    most : only the first so many rows.
    """
    nodes, first = _nodes(cluster, positions.size)
    return [
        _seats(cluster, position, nodes[position], position - first[nodes[position]])
        for position in positions[:most]
    ]


def _nodes(cluster: Cluster, devices: int) -> tuple[Ids, Ids]:
    """Return the node of each device, (devices,), and the first device of each node, (nodes,)."""
    listed = cluster.devices_on_nodes
    known = np.repeat(np.arange(len(listed)), listed)[:devices]
    rest = np.arange(devices - len(known)) // cluster.devices_per_node
    nodes = np.concatenate([known, len(listed) + rest])
    return nodes, np.searchsorted(nodes, np.arange(int(nodes[-1]) + 1))


def _seats(cluster: Cluster, position: Ids, node: Ids, within: Ids) -> Seats:
    """Return the seats of devices at ``position``, of a ``node``, ``within`` it, (workers,)."""
    used, local, count = np.unique(node, return_inverse=True, return_counts=True)
    each = cluster.nics_per_node
    nics = within % each
    width = int(min(count.max(), each, len(np.unique(nics[local == 0]))))
    begins = np.cumsum(count) - count
    within_node = np.arange(width) % count[:, None]  # as often as links, if there are few devices
    table = nics[np.argsort(local, kind="stable")][begins[:, None] + within_node]
    listed = () if (count[:-1] == count.max()).all() else tuple(count.tolist())
    sites, server = _sites(cluster, used), cluster.server
    if sites and server.placement == "dedicated":
        home = server.site or cluster.sites[0].name
        if home not in [site.name for site in sites]:
            sites = (*sites, ServersSite(home, 0))
        server = msgspec.structs.replace(server, site=home if len(sites) > 1 else None)
    renumbered = {int(of): k for k, of in enumerate(used.tolist())}
    seen = msgspec.structs.replace(
        cluster,
        nodes=None if cluster.nodes is None else len(used) + _servers(cluster, used),
        devices_per_node=int(count.max()),
        devices_on_nodes=listed,
        nics_per_node=width,
        nics_per_process=min(cluster.nics_per_process, width),
        overrides=tuple(
            msgspec.structs.replace(override, node=renumbered[override.node])
            for override in cluster.overrides
            if override.node in renumbered
        ),
        slowdown_per_neighbour=0.0,
        device_spread=0.0,
        core_oversubscription=cluster.core_oversubscription,
        server=server,
        sites=sites if len(sites) > 1 else (),
        site_links=_site_links(cluster, sites) if len(sites) > 1 else (),
    )
    return Seats(seen, position, used, table)


def _servers(cluster: Cluster, used: Ids) -> int:
    """Return the nodes that are left for servers."""
    return 0 if cluster.nodes is None else max(cluster.nodes - int(used[-1]) - 1, 0)


def _sites(cluster: Cluster, used: Ids) -> tuple[Site, ...]:
    """Return the sites of the nodes in use, each with as many nodes as are in use."""
    if not cluster.sites:
        return ()
    ends = np.cumsum([site.nodes for site in cluster.sites])
    at = np.searchsorted(ends, used, side="right")
    return tuple(
        msgspec.structs.replace(site, nodes=int((at == k).sum()))
        for k, site in enumerate(cluster.sites)
        if (at == k).any()
    )


def _site_links(cluster: Cluster, sites: tuple[Site, ...]) -> tuple[SiteLink, ...]:
    """Return the links between these sites."""
    names = {site.name for site in sites}
    return tuple(
        link for link in cluster.site_links if link.between is None or set(link.between) <= names
    )
