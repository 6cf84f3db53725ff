"""The network of a job as links, with the paths and latencies between its nodes."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TypedDict

import numpy as np
from numpy.typing import ArrayLike

from perfmodel.base.arrays import NONE, Floats, Ids
from perfmodel.base.errors import InputError
from perfmodel.communication.fabric import Fabric
from perfmodel.graph.builder import GraphBuilder
from perfmodel.inputs.job import Job

SERVER_ASSUMPTION = (
    "a server is one process: its connections use one network link of its node, or as many as "
    "nics_per_process of the cluster says"
)

BETWEEN_SITES = "link between sites"
"""Label of the links between sites."""

_AXES = {
    "inside link out of": "worker",
    "inside link into": "worker",
    BETWEEN_SITES: "sites",
}
"""What links of a kind are named after, if not after nodes."""


class Transfer(TypedDict):
    """Fields of an op that transfers bytes: its links, padded with NONE, the most that its
    connection carries, its latency, and what passes at once after its links were idle."""

    path: Ids
    rate_cap_bytes_per_s: Floats
    latency_s: Floats
    burst_bytes: Floats


class Network:
    """The links between the ends of a job in its graph: its workers, then its servers.

    ``homes`` are the nodes of the servers. With ``fold`` the first link of each kind represents all
    of that kind. ``core_share`` multiplies the load of each transfer on the core: it is the number
    of workers if one represents all. ``names`` are those of the workers' devices, if they are not
    numbered as workers are.
    """

    def __init__(
        self,
        b: GraphBuilder,
        job: Job,
        homes: Ids | None = None,
        *,
        fold: bool = False,
        core_share: int = 1,
        names: Sequence[str] = (),
    ) -> None:
        servers = np.zeros(0, np.int64) if homes is None else homes
        self.fabric = Fabric.of(job.cluster, job.workers, servers)
        self.folded = fold
        self._names = node_names(job, servers)
        self._devices = names
        self._each = job.cluster.nics_per_node
        self._ids = self._add(b, self.fabric, fold, core_share)

    def _add(self, b: GraphBuilder, fabric: Fabric, fold: bool, core_share: int) -> Ids:
        """Add the graph's links, by their number in the fabric; NONE for those that never limit."""
        labels = ["link out of", "link into", "core"]
        labels += ["link inside"] if fabric.bus else ["inside link out of", "inside link into"]
        labels += [BETWEEN_SITES] if fabric.between is not None else []
        ids = np.full(len(fabric.capacity), NONE)
        for label, kind in zip(labels, fabric.kinds, strict=True):
            capacity, owner = fabric.capacity[kind], fabric.owner[kind]
            if not np.isfinite(capacity).all():
                continue
            shown = capacity[:1] if fold else capacity
            shown = shown / core_share if label == "core" else shown
            names = self._named(label, len(capacity))
            axes = ((_AXES.get(label, "node"), names),) if names else ()
            ids[kind] = b.links(label, shown, place=owner[: len(shown)], axes=axes)
        return ids

    def _named(self, label: str, count: int) -> list[str]:
        """Return the names of the links of a kind; none for the core."""
        if label == "core":
            return []
        if label.startswith("inside link"):
            return [*self._devices] or [f"worker {worker}" for worker in range(count)]
        between = self.fabric.between
        if label == BETWEEN_SITES and between is not None:
            return [f"{a} to {z}" for a, z in itertools.permutations(between.names, 2)]
        if label == "link inside" or self._each == 1:
            return self._names
        return [f"{name}, NIC {i}" for name in self._names for i in range(self._each)]

    def ids(self, numbers: Ids) -> Ids:
        """Return the graph's links by number in the fabric; NONE for those that never limit."""
        return np.where(numbers == NONE, NONE, self._ids[numbers])

    def between(self, source: ArrayLike, target: ArrayLike) -> Transfer:
        """Return the fields of a transfer from one end to another (broadcast)."""
        burst_bytes = np.where(self.fabric.apart(source, target), self.fabric.burst_bytes, 0.0)
        return {
            "path": self.ids(self.fabric.path(source, target)),
            "rate_cap_bytes_per_s": self.fabric.flow_between(source, target),
            "latency_s": self.fabric.between_s(source, target),
            "burst_bytes": burst_bytes,
        }


def homes_of(job: Job, servers: int) -> Ids:
    """Return the node of each server of a job, (servers,).

    Raises
    ------
    InputError : the cluster has too few nodes.
    """
    home = np.array([job.cluster.node_of_server(server, job.workers) for server in range(servers)])
    if job.cluster.nodes is not None and home[-1] >= job.cluster.nodes:
        raise InputError(
            f"servers: {servers} dedicated servers and {job.workers} workers do not fit on "
            f"cluster {job.cluster.name!r} ({job.cluster.nodes} nodes)"
        )
    return home


def node_names(job: Job, homes: Ids) -> list[str]:
    """Return the names of a job's nodes, with the servers on them."""
    hosts: dict[int, list[str]] = {n: [] for n in range(job.cluster.nodes_for(job.workers))}
    for server, node in enumerate(homes.tolist()):
        hosts.setdefault(node, []).append(f"server {server}")
    return [
        f"node {node}" + (f" ({', '.join(servers)})" if servers else "")
        for node, servers in sorted(hosts.items())
    ]


def add_update_threads(b: GraphBuilder, job: Job, homes: Ids) -> Ids:
    """Add the slots of the servers' update threads, (servers,)."""
    return b.slots(
        "update threads of",
        homes.shape,
        capacity=job.cluster.update_threads,
        place=homes,
        axes=(("server", None),),
    )


def model_update_s(job: Job) -> float:
    """Return the time of one thread to update a whole model on a server."""
    cost, work = job.cluster.server, job.workload
    return cost.update_per_tensor_s * work.tensors + cost.update_per_byte_s * work.gradient_bytes
