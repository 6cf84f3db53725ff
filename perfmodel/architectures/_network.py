"""The network of a job as links, and the paths and latencies between its nodes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from perfmodel.cluster import Cluster
from perfmodel.errors import InputError
from perfmodel.graph import NONE, Floats, GraphBuilder, Ids
from perfmodel.job import Job


class Network:
    """The links of a cluster's first nodes (by name), and paths and latencies between them.

    ``core_share`` says how many times over each transfer crosses the core: once for a transfer
    between two nodes, once per node for a collective that is a single flow in the graph. With
    ``fold`` the first node stands for all of them.
    """

    def __init__(
        self,
        b: GraphBuilder,
        cluster: Cluster,
        names: Sequence[str],
        *,
        core_share: int = 1,
        fold: bool = False,
    ) -> None:
        nodes = 1 if fold else len(names)
        self._fold = fold
        nics = [cluster.nic_of(node) for node in range(nodes)]
        goodput = np.array([nic.goodput_bytes_per_s for nic in nics])
        place = np.arange(nodes)
        axes = (("node", names),)
        self._latency = np.array([nic.latency_s for nic in nics])
        self.out = b.links("link out of", goodput, place=place, axes=axes)
        self.into = b.links("link into", goodput, place=place, axes=axes)
        self._core = np.full(1, NONE, np.int64)
        if cluster.core_oversubscription is not None:
            total = goodput.sum() * (len(names) / nodes)
            self._core = b.links("core", total / cluster.core_oversubscription / core_share)
        self._inside = np.full(nodes, NONE, np.int64)
        self._inside_latency = 0.0
        if cluster.intra_node is not None:
            inside = np.full(nodes, cluster.intra_node.goodput_bytes_per_s)
            self._inside = b.links("link inside", inside, place=place, axes=axes)
            self._inside_latency = cluster.intra_node.latency_s

    def path(self, source: ArrayLike, target: ArrayLike) -> Ids:
        """Links from node ``source`` to node ``target`` (broadcast), filled up with NONE."""
        a, z = np.broadcast_arrays(source, target)
        away = a != z
        return np.stack(
            [
                np.where(away, self.out[a], self._inside[a]),
                np.where(away, self._core[0], NONE),
                np.where(away, self.into[z], NONE),
            ],
            axis=-1,
        )

    def around(self) -> Ids:
        """Links from the first node to the next one, each of which stands for all of its kind."""
        return np.concatenate([self.out[:1], self._core, self.into[:1]])

    def latency_s(self, source: ArrayLike, target: ArrayLike) -> Floats:
        """One-way latency from node ``source`` to node ``target``: the greater of the two ends'."""
        a, z = np.broadcast_arrays(source, target)
        between = np.maximum(self._latency[a], self._latency[z])
        return np.where(a != z, between, self._inside_latency)

    def hop_s(self, nodes: Sequence[int]) -> float:
        """Greatest one-way latency between any two of ``nodes`` (inside the node if just one)."""
        where = np.asarray(nodes[:1] if self._fold else nodes)
        return float(self._latency[where].max()) if len(nodes) > 1 else self._inside_latency


def homes_of(job: Job, servers: int) -> Ids:
    """The node of each server of a job, (servers,).

    Raises
    ------
    InputError : the cluster has too few nodes.
    """
    home = np.array([job.cluster.node_of_server(server, job.workers) for server in range(servers)])
    if job.cluster.nodes is not None and home[-1] >= job.cluster.nodes:
        raise InputError(
            f"servers: {servers} dedicated servers beside {job.workers} workers do not fit on "
            f"cluster {job.cluster.name!r} ({job.cluster.nodes} nodes)"
        )
    return home


def node_names(job: Job, homes: Ids) -> list[str]:
    """Names of the nodes of a job; those that servers are at home on say which."""
    hosts: dict[int, list[str]] = {n: [] for n in range(job.cluster.nodes_for(job.workers))}
    for server, node in enumerate(homes.tolist()):
        hosts.setdefault(node, []).append(f"server {server}")
    return [
        f"node {node}" + (f" ({', '.join(servers)})" if servers else "")
        for node, servers in sorted(hosts.items())
    ]
