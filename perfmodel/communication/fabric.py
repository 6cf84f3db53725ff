"""The numbered links of a cluster, and the paths that transfers take over them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from perfmodel.base.arrays import NONE, Floats, Ids, ranked
from perfmodel.inputs.cluster import Cluster
from perfmodel.inputs.sites import Between


def places_of(cluster: Cluster, workers: int) -> Ids:
    """Return the node of each worker, (workers,).

    It equals :meth:`perfmodel.inputs.cluster.Cluster.node_of_worker` of each.
    """
    listed = cluster.devices_on_nodes
    first = np.repeat(np.arange(len(listed)), listed)[:workers]
    rest = np.arange(workers - len(first)) // cluster.devices_per_node
    return np.concatenate([first, len(listed) + rest])


class Fabric(msgspec.Struct, frozen=True, eq=False):
    """The links of a cluster's first nodes, and how endpoints are attached to them.

    Endpoints (*ends*) are the workers, then the servers. Links are numbered in this order: out of
    each NIC, into each NIC, the core, those inside nodes (a bus per node, or a port out of and a
    port into each worker's device), and those between sites, for each ordered pair.

    Attributes
    ----------
    place : node of each end, (ends,).
    nic : number of the network link that each end uses, (ends,).
    port : number of each end's device, (ends,); NONE for a server, which has no port.
    nics : number of network links of all nodes together.
    capacity : of each link (bytes/s), (links,); infinite for a core that never limits, and for a
        bus of unlimited bandwidth.
    owner : node of each link, (links,); NONE for the core.
    latency_s : of each node's network links, (nodes,).
    inside_latency_s : between two ends on one node.
    bus : whether the devices of a node share one link inside it.
    flow_bytes_per_s : the most that one connection between two nodes carries.
    burst_bytes : what a link between nodes lets pass at once after it was idle.
    queue_bytes : what a request waits for if its node's link is busy, (nodes,).
    site : of each node, numbered among the sites that ends are at, (nodes,).
    between : what joins these sites; None if all ends are at one site.
    """

    place: Ids
    nic: Ids
    port: Ids
    nics: int
    capacity: Floats
    owner: Ids
    latency_s: Floats
    inside_latency_s: float
    bus: bool
    flow_bytes_per_s: float = math.inf
    burst_bytes: float = 0.0
    queue_bytes: Floats = np.zeros(0)
    site: Ids = np.zeros(0, np.int64)
    between: Between | None = None

    @classmethod
    def of(cls, cluster: Cluster, workers: int, homes: Sequence[int] | Ids = ()) -> Fabric:
        """Return the fabric of some workers, and of servers on the nodes ``homes`` (servers,)."""
        worker_nodes = places_of(cluster, workers)
        place = np.concatenate([worker_nodes, np.asarray(homes, np.int64)])
        nodes = int(place.max()) + 1
        position = np.concatenate([_within(worker_nodes), _within(place[workers:])])
        nics = cluster.nics_per_node
        goodput, latency_s = (np.full(nodes, getattr(cluster.nic, name))
                              for name in ("goodput_bytes_per_s", "latency_s"))  # fmt: skip
        if cluster.server_nic is not None:
            goodput[place[workers:]] = cluster.server_nic.goodput_bytes_per_s
            latency_s[place[workers:]] = cluster.server_nic.latency_s
        for override in cluster.overrides:
            if override.nic is not None and override.node < nodes:
                goodput[override.node] = override.nic.goodput_bytes_per_s
                latency_s[override.node] = override.nic.latency_s
        out = np.repeat(goodput, nics) * cluster.path_efficiency(len(ranked(place)[1]))
        over, inside = cluster.core_oversubscription, cluster.intra_node
        core = math.inf if over is None else out.sum() / over
        nic = place * nics + position % nics
        out[nic[workers:]] *= cluster.nics_per_process  # a server uses so many links as one
        bus = inside is None or inside.kind == "bus"
        within = np.arange(nodes) if bus else np.concatenate([worker_nodes, worker_nodes])
        rate = math.inf if inside is None else inside.goodput_bytes_per_s
        owner = np.repeat(np.arange(nodes), nics)
        site, between = _sites(cluster, workers, place, nodes)
        sites = between.bytes_per_s[between.pairs] if between is not None else np.zeros(0)
        return cls(
            place=place,
            nic=nic,
            port=np.concatenate([np.arange(workers), np.full(len(homes), NONE)]),
            nics=len(out),
            capacity=np.concatenate([out, out, [core], np.full(len(within), rate), sites]),
            owner=np.concatenate([owner, owner, [NONE], within, np.full(len(sites), NONE)]),
            latency_s=latency_s,
            inside_latency_s=0.0 if inside is None else inside.latency_s,
            bus=bus,
            flow_bytes_per_s=cluster.flow_bytes_per_s or math.inf,
            burst_bytes=cluster.burst_bytes,
            queue_bytes=np.maximum(cluster.send_queue_bytes, cluster.send_queue_s * goodput),
            site=site,
            between=between,
        )

    @property
    def nics_per_node(self) -> int:
        """Number of network links of each node."""
        return self.nics // len(self.latency_s)

    @property
    def core(self) -> int:
        """Number of the core."""
        return 2 * self.nics

    @property
    def ports(self) -> int:
        """Number of devices with a port out and a port in; 0 if nodes have a bus."""
        return 0 if self.bus else (self.sites - self.core - 1) // 2

    @property
    def sites(self) -> int:
        """Number of the first link between sites; the total number of links if there is none."""
        return len(self.capacity) - (self.between.pairs.sum() if self.between is not None else 0)

    @property
    def kinds(self) -> tuple[slice, ...]:
        """Ranges of link numbers by kind: out of NICs, into NICs, the core, inside nodes (buses, or
        ports out and ports in), and between sites."""
        inside = self.core + 1
        ends = [inside, inside + self.ports, self.sites, len(self.capacity)]
        bounds = [0, self.nics, self.core, *ends]
        spans = [slice(*span) for span in itertools.pairwise(bounds)]
        return tuple(span for span in spans if span.start < span.stop)

    def path(self, source: ArrayLike, target: ArrayLike) -> Ids:
        """Return the link numbers from one end to another (broadcast), (..., 3), or (..., 4) with
        several sites.

        Paths are padded with NONE, which also replaces links that never limit.
        """
        a, z = np.broadcast_arrays(source, target)
        away = self.place[a] != self.place[z]
        first = self.core + 1
        if self.bus:
            leaving, coming = first + self.place[a], np.full(a.shape, NONE)
        else:
            known = (self.port[a] != NONE, self.port[z] != NONE)
            leaving = np.where(known[0], first + self.port[a], NONE)
            coming = np.where(known[1], first + self.ports + self.port[z], NONE)
        links = [
            np.where(away, self.nic[a], leaving),
            np.where(away, self.core, NONE),
            np.where(away, self.nics + self.nic[z], coming),
        ]
        if self.between is not None:
            numbers = np.full(self.between.pairs.shape, NONE)
            numbers[self.between.pairs] = np.arange(self.sites, len(self.capacity))
            links.append(numbers[self._sites_of(a, z)])
        path = np.stack(links, axis=-1)
        return np.where((path != NONE) & np.isfinite(self.capacity[path]), path, NONE)

    def flow_between(self, source: ArrayLike, target: ArrayLike) -> Floats:
        """Return the most one connection carries between two ends (broadcast), bytes/s."""
        a, z = np.broadcast_arrays(source, target)
        if math.isinf(self.flow_bytes_per_s) and self.between is None:  # the usual case
            return np.broadcast_to(math.inf, a.shape)
        flow = np.where(self.place[a] != self.place[z], self.flow_bytes_per_s, math.inf)
        if self.between is None:
            return flow
        pair = self._sites_of(a, z)
        return np.where(self.between.pairs[pair], self.between.flow_bytes_per_s[pair], flow)

    def apart(self, source: ArrayLike, target: ArrayLike) -> NDArray[np.bool_]:
        """Return whether two ends are on different nodes (broadcast)."""
        a, z = np.broadcast_arrays(source, target)
        return np.asarray(self.place[a] != self.place[z])

    def queued_bytes(self, source: ArrayLike, target: ArrayLike) -> Floats:
        """Return how many bytes a request from one end to another waits for (broadcast)."""
        a, z = np.broadcast_arrays(source, target)
        return np.where(self.apart(a, z), self.queue_bytes[self.place[a]], 0.0)

    def between_s(self, source: ArrayLike, target: ArrayLike) -> Floats:
        """Return the one-way latency between two ends (broadcast): the greatest of the two nodes'
        and that between their sites."""
        latency_s = self.between_nodes_s(source, target)
        if self.between is None:
            return latency_s
        sites = self._sites_of(*np.broadcast_arrays(source, target))
        return np.maximum(latency_s, self.between.latency_s[sites])

    def between_nodes_s(self, source: ArrayLike, target: ArrayLike) -> Floats:
        """Return the same as if all nodes were at one site: the greater of the two nodes'."""
        ends = np.broadcast_arrays(source, target)
        a, z = self.place[ends[0]], self.place[ends[1]]
        apart = np.maximum(self.latency_s[a], self.latency_s[z])
        return np.where(a != z, apart, self.inside_latency_s)

    def rings(self, ends: Ids) -> Ids:
        """Return the rings of a collective among ``ends`` (members,) by position, (rings, members).

        Ends are sorted by node. There are as many rings as the fewest NICs that the ends use on any
        node. Each ring carries an equal share of the bytes and passes through all ends, node after
        node and site after site. It enters and leaves a node by NICs that no other ring uses, like
        NCCL's channels. Sites are ordered such that the slowest crossing is as fast as possible.
        """
        order = np.arange(len(ends))
        nodes, count = np.unique(self.place[ends], return_counts=True)
        if len(nodes) == 1:
            return order[None]
        used = np.unique(self.nic[ends])
        several = int(np.unique(used // self.nics_per_node, return_counts=True)[1].min())
        by_site = self.by_site(ends, several)
        if several == 1:
            return by_site[None]
        node = np.repeat(np.cumsum(count) - count, count)  # the first end of each one's node
        positions = np.empty((several, len(ends)), np.int64)
        for ring in range(several):
            place = order - node
            place[order - node == ring] = -1  # enters
            place[order - node == (ring + 1) % several] = len(ends)  # leaves
            positions[ring] = np.lexsort((place, node))
        return positions[:, by_site]

    def by_site(self, ends: Ids, rings: int = 1) -> Ids:
        """Return the positions of ``ends`` (members,), site after site, in the best order of sites
        for this number of ``rings``."""
        order = np.arange(len(ends))
        if self.between is None:
            return order
        site = self.site[self.place[ends]]
        used = site[ranked(site)[1]]
        best = used[self.between.among(used).ring(rings)]
        return np.concatenate([order[site == number] for number in best.tolist()])

    def _sites_of(self, a: Ids, z: Ids) -> tuple[Ids, Ids]:
        """Return the sites of two ends, of the same shape."""
        return self.site[self.place[a]], self.site[self.place[z]]


def _sites(cluster: Cluster, workers: int, place: Ids, nodes: int) -> tuple[Ids, Between | None]:
    """Return the site of each node among those that ends are at, and what joins these sites."""
    if not cluster.sites:
        return np.zeros(nodes, np.int64), None
    site = cluster.sites_of(nodes, workers)
    _, first = ranked(site[place])
    used = site[place][first]
    if len(used) == 1:
        return np.zeros(nodes, np.int64), None
    return np.searchsorted(used, site), cluster.between_sites().among(used)


def _within(place: Ids) -> Ids:
    """Return the index of each end on its node."""
    order = np.argsort(place, kind="stable")
    ranked = place[order]
    begin = np.flatnonzero(np.diff(ranked, prepend=NONE - 1))
    run = np.diff(np.append(begin, len(ranked)))
    index = np.empty(len(place), np.int64)
    index[order] = np.arange(len(place)) - np.repeat(begin, run)
    return index
