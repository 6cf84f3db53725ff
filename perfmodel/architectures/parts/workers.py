"""The workers of a job: their computation, its random factors, and the nodes they run on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from perfmodel.base.arrays import NONE, Floats, Ids
from perfmodel.graph.builder import GraphBuilder
from perfmodel.graph.op_graph import Distribution
from perfmodel.inputs.cluster import Cluster
from perfmodel.inputs.job import Job
from perfmodel.inputs.workload import expanded

PREFETCH = 2
"""Batches that the data loader may be ahead (default of PyTorch's DataLoader, per process)."""

CORES = "cores of"
"""Label of the links that model the processors of nodes."""


class Noise:
    """Random streams for the factors of the workers' computation."""

    def __init__(self, b: GraphBuilder, job: Job, workers: int) -> None:
        self._b, self._jitter, self._workers = b, job.jitter, workers
        self._shared: Ids = np.full(workers, NONE)
        if self._jitter is not None and self._jitter.cv > 0.0 and self._jitter.scope == "iteration":
            self._shared = self._streams((workers,))

    def of(self, *shape: int) -> Ids:
        """Return streams for ops of shape (workers, *shape): one per worker, or one per op."""
        if self._jitter is not None and self._jitter.cv > 0.0 and self._jitter.scope == "op":
            return self._streams((self._workers, *shape))
        return self._shared.reshape(-1, *(1 for _ in shape))

    def _streams(self, shape: tuple[int, ...]) -> Ids:
        if self._jitter is None:
            return np.full(shape, NONE)
        kind: Distribution = "gamma" if self._jitter.kind == "gamma" else "lognormal"
        return self._b.streams(shape, cv=self._jitter.cv, kind=kind)


class Processors:
    """The cores of each node, on which workers compute and servers update.

    Work on shared cores is a flow over them, on at most as many cores as it has threads. If there
    are too few cores, they are shared by operations or by threads, as the cluster says. If workers
    compute on accelerators, there is no contention for cores, and work takes a fixed time.
    """

    def __init__(self, b: GraphBuilder, cluster: Cluster, nodes: int) -> None:
        self._cores: Ids | None = None
        self._by_thread = cluster.core_sharing == "thread"
        if cluster.worker_threads is not None and cluster.cpu_cores is not None:
            capacity = np.full(nodes, float(cluster.cpu_cores))
            self._cores = b.links(CORES, capacity, place=np.arange(nodes), axes=(("node", None),))

    @property
    def shared(self) -> bool:
        """Whether workers and servers contend for cores."""
        return self._cores is not None

    def work(self, seconds: ArrayLike, node: NDArray[Any], threads: int) -> dict[str, Any]:
        """Return arguments of an op that uses ``threads`` threads of ``node`` for ``seconds``."""
        if self._cores is None:
            return {"seconds": seconds}
        return {
            "bytes": np.asarray(seconds) * threads,
            "path": self._cores[node][..., None],
            "rate_cap_bytes_per_s": float(threads),
            "weight": float(threads) if self._by_thread else 1.0,
        }


class Workers(msgspec.Struct, frozen=True, eq=False):
    """The workers' ops. ``forward`` and ``backward`` have shape (workers, layers), layers in
    forward order; ``loading`` (workers,) are the ops that load data, None if that takes no time;
    ``device`` (workers,) are slots; ``node`` (workers,) node numbers; ``noise`` the random factors
    of their computation; ``slowdown`` (workers,) each worker's compute time relative to the
    profile."""

    node: Ids
    device: Ids
    forward: Ids
    backward: Ids
    noise: Noise
    slowdown: Floats
    processors: Processors
    threads: int
    layer_names: tuple[str, ...]
    loading: Ids | None = None

    @property
    def index(self) -> Ids:
        """0 to workers - 1."""
        return np.arange(len(self.node))

    def compute(
        self,
        b: GraphBuilder,
        label: str,
        seconds: ArrayLike,
        *,
        names: Sequence[str] | None = None,
        axis: str = "layer",
        priority: int = 0,
    ) -> Ids:
        """Add work on every worker's device, of shape (workers, work), with jitter and slowdown.
        ``seconds`` broadcasts against (workers, work); a number adds one op per worker, of shape
        (workers,)."""
        n = len(self.node)
        work = np.asarray(seconds, np.float64)
        width = () if work.ndim == 0 else (work.shape[-1],)
        each = (slice(None), *(None for _ in width))
        return b.ops(
            label,
            (n, *width),
            **self.processors.work(self.slowdown[each] * work, self.node[each], self.threads),
            slot=self.device[each],
            group=self.index[each],
            cause="straggler",
            noise=self.noise.of(*width),
            priority=priority,
            axes=(("worker", None), *((axis, names) for _ in width)),
        )


def alike(job: Job) -> bool:
    """Return whether all workers do the same at the same time, so that one can represent all."""
    own_cores = job.cluster.worker_threads is None
    return steady(job) and not job.unequal and own_cores and job.start == "together"


def plain(job: Job) -> bool:
    """Return whether workers do the same at once, each on its own node, and never wait for data."""
    return equal(job) and job.cluster.fullest(job.workers) == 1


def equal(job: Job) -> bool:
    """Return whether workers do the same at the same time, and never wait for data."""
    return alike(job) and job.workload.data_loading_s == 0.0


def steady(job: Job) -> bool:
    """Return whether the compute time of an iteration is constant."""
    return job.jitter is None or job.jitter.cv == 0.0


def left_out(
    job: Job,
    beyond: Mapping[str, bool] | None = None,
    *,
    core: bool = True,
    connections: bool = True,
    sites: bool = True,
) -> str | None:
    """Return the first feature of a job that a coarse model leaves out, or None.

    These features are shared processor cores; an oversubscribed network core, with ``core``; links
    between sites, with ``sites``; a limit on the rate of connections, with ``connections``; and
    those in ``beyond``, by name, that are true.
    """
    known = {
        "workers that share cores": job.cluster.worker_threads is not None,
        "an oversubscribed core": core and job.cluster.core_oversubscription is not None,
        "links between sites": sites and job.crosses_sites,
        "flow_bytes_per_s of the cluster": connections
        and job.cluster.flow_bytes_per_s is not None,
        **(beyond or {}),
    }
    return next((text for text, there in known.items() if there), None)


def add_workers(
    b: GraphBuilder, job: Job, *, first: int | None = None, nodes: int | None = None
) -> Workers:
    """Add the data loading, forward and backward pass of every worker, or of the ``first`` few.

    ``nodes`` is the number of nodes with cores in use; by default those of the workers.
    """
    workload = expanded(job.device_work)
    n = job.workers if first is None else first
    index = np.arange(n)
    node = np.array([job.cluster.node_of_worker(worker) for worker in range(n)])
    names = tuple(layer.name for layer in workload.layers)
    device = b.slots("device of", (n,), place=node, axes=(("worker", None),))
    workers = Workers(
        node=node,
        device=device,
        forward=index,
        backward=index,
        noise=Noise(b, job, n),
        slowdown=np.array([job.slowdown(worker) for worker in range(n)]),
        processors=Processors(b, job.cluster, int(node.max()) + 1 if nodes is None else nodes),
        threads=job.cluster.worker_threads or 1,
        layer_names=names,
    )
    forward = workers.compute(b, "forward", [a.forward_s for a in workload.layers], names=names)
    backward = workers.compute(b, "backward", [a.backward_s for a in workload.layers], names=names)
    b.chain(forward)
    b.edge(forward[:, -1], backward[:, -1])
    b.chain(backward[:, ::-1])
    load = None
    if workload.data_loading_s > 0.0:
        loader = b.slots("data loader of", (n,), place=node, axes=(("worker", None),))
        load = b.ops(
            "load data",
            (n,),
            seconds=np.array([job.loading_s(worker) for worker in range(n)]),
            slot=loader,
            group=index,
            cause="data",
            axes=(("worker", None),),
        )
        b.edge(load, forward[:, 0])
        b.edge(forward[:, 0], load, lag=PREFETCH)
        b.stagger(load, stagger_s(job)[:n])
    return msgspec.structs.replace(workers, forward=forward, backward=backward, loading=load)


def add_optimizer(b: GraphBuilder, job: Job, workers: Workers) -> Ids:
    """Add each worker's own update of its parameters, (workers,), between its backward pass and its
    next forward pass."""
    optimizer = workers.compute(b, "optimizer", job.workload.optimizer_s)
    b.edge(workers.backward[:, 0], optimizer)
    b.edge(optimizer, workers.forward[:, 0], lag=1)
    return optimizer


def log_steps(b: GraphBuilder, workers: Workers, *, central: bool = False) -> None:
    """Log the start of steps, and the time when all parameters of a gradient have arrived: when the
    first layer begins or, if slices of the centre arrive one by one, when the last layer does."""
    b.log("begin", workers.forward[:, 0], at_ready=True)
    b.log("gradient", workers.forward[:, -1 if central else 0], at_ready=True)


def stagger_s(job: Job) -> Floats:
    """Return the time within which each worker starts, (workers,): its uncontended iteration.

    That is its computation, plus sending and receiving the model once over an idle link.
    """
    if job.start == "together" or job.workers == 1:
        return np.zeros(job.workers)
    once_s = job.device_work.compute_s
    compute = np.array([job.slowdown(w) * once_s for w in range(job.workers)])
    nics = [job.cluster.nic_of(job.cluster.node_of_worker(w)) for w in range(job.workers)]
    goodput = np.array([nic.goodput_bytes_per_s for nic in nics])
    return compute + 2.0 * job.workload.gradient_bytes / goodput
