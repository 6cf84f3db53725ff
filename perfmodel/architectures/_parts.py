"""What architectures are made of: the network as links and paths, and the workers' computation."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import ArrayLike

from perfmodel.cluster import Cluster
from perfmodel.graph import NONE, Distribution, Floats, GraphBuilder, Ids
from perfmodel.job import Job
from perfmodel.workload import expanded

PREFETCH = 2
"""Batches the data loader may be ahead of the worker (PyTorch's DataLoader default per process)."""


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

    def all_of(self, nodes: Sequence[int]) -> Ids:
        """Every link a collective among ``nodes`` keeps busy: out of, into and inside each."""
        where = np.asarray(nodes[:1] if self._fold else nodes)
        inside: Ids = self._inside[where]
        if len(nodes) == 1:
            return inside
        return np.concatenate([self.out[where], self.into[where], self._core, inside])


class Workers(msgspec.Struct, frozen=True, eq=False):
    """The workers' ops. ``forward`` and ``backward`` have shape (workers, layers), layers in
    forward order; ``device`` (workers,) are slots; ``node`` (workers,) node numbers; ``noise``
    (workers,) streams of random factors of their computation, or NONE."""

    node: Ids
    device: Ids
    forward: Ids
    backward: Ids
    noise: Ids
    layer_names: tuple[str, ...]

    @property
    def index(self) -> Ids:
        """0 to workers - 1."""
        return np.arange(len(self.node))


def alike(job: Job) -> bool:
    """Whether all workers do the same at the same time, so that one may stand for all of them."""
    steady = job.jitter is None or job.jitter.cv == 0.0
    return steady and job.start == "together" and not job.stragglers and not job.cluster.overrides


def add_workers(b: GraphBuilder, job: Job, *, first: int | None = None) -> Workers:
    """Add the data loading, forward and backward pass of every worker, or the ``first`` few."""
    workload = expanded(job.workload)
    n = job.workers if first is None else first
    index = np.arange(n)
    node = np.array([job.cluster.node_of_worker(worker) for worker in range(n)])
    slowdown = np.array([job.slowdown(worker) for worker in range(n)])
    names = tuple(layer.name for layer in workload.layers)
    axes = (("worker", None), ("layer", names))
    device = b.slots("device of", (n,), place=node, axes=axes[:1])

    noise: Ids = np.full(n, NONE)
    if job.jitter is not None and job.jitter.cv > 0.0:
        kind: Distribution = "gamma" if job.jitter.kind == "gamma" else "lognormal"
        noise = b.streams((n,), cv=job.jitter.cv, kind=kind)

    def compute(label: str, seconds: Sequence[float]) -> Ids:
        return b.ops(
            label,
            (n, len(names)),
            seconds=slowdown[:, None] * np.array(seconds),
            slot=device[:, None],
            group=index[:, None],
            cause="straggler",
            noise=noise[:, None],
            axes=axes,
        )

    forward = compute("forward", [layer.forward_s for layer in workload.layers])
    backward = compute("backward", [layer.backward_s for layer in workload.layers])
    b.chain(forward)
    b.edge(forward[:, -1], backward[:, -1])
    b.chain(backward[:, ::-1])
    if workload.data_loading_s > 0.0:
        loader = b.slots("data loader of", (n,), place=node, axes=axes[:1])
        load = b.ops(
            "load data",
            (n,),
            seconds=workload.data_loading_s,
            slot=loader,
            group=index,
            cause="data",
            axes=axes[:1],
        )
        b.edge(load, forward[:, 0])
        b.edge(forward[:, 0], load, lag=PREFETCH)
    return Workers(node, device, forward, backward, noise, names)


def stagger_s(job: Job) -> Floats:
    """By worker: the time within which it starts, one iteration if it were alone (workers,).

    That is its computation, and sending and receiving the model once over an idle link.
    """
    if job.start == "together" or job.workers == 1:
        return np.zeros(job.workers)
    compute = np.array([job.slowdown(w) * job.workload.compute_s for w in range(job.workers)])
    nics = [job.cluster.nic_of(job.cluster.node_of_worker(w)) for w in range(job.workers)]
    goodput = np.array([nic.goodput_bytes_per_s for nic in nics])
    return compute + 2.0 * job.workload.gradient_bytes / goodput
