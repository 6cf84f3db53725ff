"""The workers of a job: their computation, its random factors, and the nodes they run on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

import msgspec
import numpy as np
from numpy.typing import ArrayLike

from perfmodel.base.arrays import NONE, Floats, Ids
from perfmodel.graph.builder import GraphBuilder
from perfmodel.graph.op_graph import Axis, Distribution
from perfmodel.inputs.cluster import Cluster
from perfmodel.inputs.job import Job
from perfmodel.inputs.workload import WorkloadLayer
from perfmodel.phases.variation import factors_of

CORES = "cores of"
"""Label of the links that model the processors of nodes."""


class Noise:
    """Random streams for the factors of the workers' computation.

    Attention in packed sequences has factors of its own instead of jitter, one for each micro-batch
    (``batches``, of an update) of each replica, which all of its stages have in common.
    """

    def __init__(self, b: GraphBuilder, job: Job, workers: int, batches: int) -> None:
        self._b, self._jitter, self._workers = b, job.jitter, workers
        self._job, self._batches = job, batches
        self._of_documents: dict[tuple[int, ...], Ids] = {}
        self._shared: Ids = np.full(workers, NONE)
        if self._jitter is not None and self._jitter.cv > 0.0 and self._jitter.scope == "iteration":
            self._shared = self._streams((workers,))

    def of(self, *shape: int) -> Ids:
        """Return streams for ops of shape (workers, *shape): one per worker, or one per op."""
        if self._jitter is not None and self._jitter.cv > 0.0 and self._jitter.scope == "op":
            return self._streams((self._workers, *shape))
        return self._shared.reshape(-1, *(1 for _ in shape))

    def of_documents(self, layers: Sequence[WorkloadLayer], batch: int) -> Ids | None:
        """Return streams for the layers of a micro-batch of an update, (workers, layers), NONE for
        those without attention; None if no time varies with documents."""
        varying = np.array([layer.varying > 0.0 for layer in layers])
        if not varying.any():
            return None
        return np.where(varying, self.of_attention([batch])[:, None], NONE)

    def of_attention(self, batches: Sequence[int]) -> Ids:
        """Return streams for the attention of micro-batches together, (workers,)."""
        key = tuple(batches)
        if key not in self._of_documents:
            self._of_documents[key] = self._documents(key)
        return self._of_documents[key]

    def _documents(self, batches: tuple[int, ...]) -> Ids:
        stage, work = self._job.stage, self._job.workload
        values = factors_of(work, len(batches))
        if stage is None or stage.copies > 1:
            return self._b.streams((self._workers,), values=values)
        replica = np.arange(self._workers) // stage.context_workers
        keys = replica * self._batches + batches[0]
        _, first, which = np.unique(keys, return_index=True, return_inverse=True)
        return self._b.streams((len(first),), values=values, keys=keys[first])[which.ravel()]

    def _streams(self, shape: tuple[int, ...]) -> Ids:
        if self._jitter is None:
            return np.full(shape, NONE)
        kind: Distribution = "gamma" if self._jitter.kind == "gamma" else "lognormal"
        return self._b.streams(shape, cv=self._jitter.cv, kind=kind)


class ComputeFields(TypedDict, total=False):
    """Fields of an op that computes: its time or, on shared cores, its flow over them."""

    seconds: ArrayLike
    bytes: ArrayLike
    path: ArrayLike
    rate_cap_bytes_per_s: float
    weight: float


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

    def work(self, seconds: ArrayLike, node: Ids, threads: int) -> ComputeFields:
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
    profile; ``returns`` (workers, chunks), in pipelines, the ops that end the last backward pass of
    each chunk; ``axes`` names the pass of an update, if there are several; ``rows`` (workers,) are
    their numbers in the graph if they are some of its workers, and ``numbers`` (workers,) those in
    the job if the graph has some of the job's."""

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
    returns: Ids | None = None
    axes: tuple[Axis, ...] = ()
    rows: Ids | None = None
    numbers: Ids | None = None

    @property
    def index(self) -> Ids:
        """The workers' numbers in the graph, (workers,): 0 to workers - 1 if these are all."""
        return np.arange(len(self.node)) if self.rows is None else self.rows

    @property
    def of_job(self) -> Ids:
        """The workers' numbers in the job, (workers,)."""
        return self.index if self.numbers is None else self.numbers[self.index]

    def compute(
        self,
        b: GraphBuilder,
        label: str,
        seconds: ArrayLike,
        *,
        names: Sequence[str] | None = None,
        axis: str = "layer",
        priority: int = 0,
        cause: str = "straggler",
        documents: Ids | None = None,
    ) -> Ids:
        """Add work on every worker's device, of shape (workers, work), with jitter and slowdown.
        ``seconds`` broadcasts against (workers, work); a number adds one op per worker, of shape
        (workers,). Where there are any, ``documents`` (workers, work) are streams instead
        of those of jitter."""
        n = len(self.node)
        work = np.asarray(seconds, np.float64)
        width = () if work.ndim == 0 else (work.shape[-1],)
        wide = (slice(None), *(None for _ in width))
        noise = self.noise.of(*width)
        if documents is not None:
            noise = np.where(documents == NONE, noise, documents)
        made = b.ops(
            label,
            (*(1 for _ in self.axes), n, *width),
            **self.processors.work(self.slowdown[wide] * work, self.node[wide], self.threads),
            slot=self.device[wide],
            group=self.index[wide],
            cause=cause,
            noise=noise,
            priority=priority,
            axes=(*self.axes, ("worker", None), *((axis, names) for _ in width)),
        )
        return made.reshape(n, *width)
