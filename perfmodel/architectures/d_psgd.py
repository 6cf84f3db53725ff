"""D-PSGD: workers average their models with those of both neighbours on a ring, in step."""

from __future__ import annotations

import msgspec
import numpy as np

from perfmodel.architectures import Architecture
from perfmodel.architectures._gossip import add_begin, add_network
from perfmodel.architectures._workers import Workers, add_optimizer, add_workers
from perfmodel.graph import GraphBuilder, Ids, OpGraph
from perfmodel.job import Job


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Options of D-PSGD; the registry entry below says what each means."""

    overlap: bool = True


def neighbours(workers: int) -> Ids:
    """The next and the previous worker of each on a ring, (workers, 2).

    (2, 1) for two workers, who have each other only; (1, 0) for one.

    >>> neighbours(4).tolist()
    [[1, 3], [2, 0], [3, 1], [0, 2]]
    """
    steps = np.array([1, -1])[: min(workers - 1, 2)]
    others: Ids = (np.arange(workers)[:, None] + steps) % workers
    return others


def build(job: Job, *, fold: bool = False) -> OpGraph:
    """The op graph: computation, and the model sent to each neighbour beside it or after it.

    With ``fold`` of the first worker, which stands for all of them.
    """
    b = GraphBuilder()
    workers = add_workers(b, job, first=1 if fold else None)
    optimizer = add_optimizer(b, job, workers)
    begin = add_begin(b, job, workers, optimizer)
    if job.workers > 1:
        _add_exchange(b, job, workers, begin, optimizer, fold)
    counter = b.counters(optimizer)
    b.probe("staleness", optimizer, optimizer, lag=1, counter=counter, group=workers.index)
    return b.build(device=workers.device, mark=optimizer, count=job.workers if fold else 1)


def _add_exchange(
    b: GraphBuilder, job: Job, workers: Workers, begin: Ids, optimizer: Ids, fold: bool
) -> None:
    """Send each worker's model to its neighbours; average once all are sent and have come."""
    network = add_network(b, job, fold=fold)
    to = neighbours(job.workers)[: len(begin)]
    if fold:  # its neighbours do as it does
        to = np.zeros_like(to)
        path, latency_s = network.around(), np.array(network.hop_s(range(job.workers)))
    else:
        source, target = workers.node[:, None], workers.node[to]
        path, latency_s = network.path(source, target), network.latency_s(source, target)
    send = b.ops(
        "send",
        to.shape,
        bytes=job.workload.gradient_bytes,
        path=path,
        latency_s=latency_s,
        group=workers.index[:, None],
        axes=(("worker", None), ("to", ["to the next", "to the previous"])),
    )
    ready = begin if job.options.overlap else workers.backward[:, 0]
    b.edge(ready[:, None], send)
    b.edge(send, optimizer[:, None])
    b.edge(send, optimizer[to])
    b.probe("send", send, send, at_ready=True, group=workers.index[:, None])


def _fold(job: Job) -> OpGraph | None:
    """Workers that share a node differ in where they send to."""
    return None if job.cluster.devices_per_node > 1 else build(job, fold=True)


ARCHITECTURE = Architecture(
    name="d_psgd",
    title="D-PSGD (neighbours on a ring, synchronous)",
    options=Options,
    build=build,
    asynchronous=lambda options: False,
    server_bytes=None,
    option_help={
        "overlap": "exchange models while the gradient is computed; otherwise after it",
    },
    assumptions=(
        "each worker sends its whole model to both neighbours on a ring, over two connections at "
        "once; of two workers each has one neighbour",
        "a worker averages and applies its gradient once both its computation and its exchange "
        "are over; it waits for its neighbours, not for all workers",
        "averaging takes no time",
    ),
    source="Lian et al., NIPS 2017, arXiv 1705.09056",
    fold=_fold,
)
