"""Building blocks of pairwise exchange."""

from __future__ import annotations

import math

import msgspec
import numpy as np

from perfmodel.base.arrays import Ids
from perfmodel.communication.network import Network
from perfmodel.graph.builder import GraphBuilder
from perfmodel.graph.op_graph import Axis
from perfmodel.inputs.job import Job
from perfmodel.training.workers import Workers, stagger_s


def add_begin(
    b: GraphBuilder, job: Job, workers: Workers, optimizer: Ids, *, period: int = 1
) -> Ids:
    """Add the op that begins each worker's iteration, (workers,).

    It follows the previous iteration's ``optimizer``, and precedes the forward pass and everything
    a worker sends during computation. Staggered workers start within the time of ``period``
    iterations of which one communicates.
    """
    n = len(workers.node)
    begin = b.ops(
        "begin",
        (n,),
        group=workers.index,
        cause="straggler",
        axes=(("worker", None),),
    )
    b.edge(optimizer, begin, lag=1)
    b.edge(begin, workers.forward[:, 0])
    within_s = stagger_s(job)[:n]
    without_s = workers.slowdown * job.workload.compute_s
    b.stagger(begin, within_s + np.where(within_s > 0.0, (period - 1) * without_s, 0.0))
    return begin


def add_network(b: GraphBuilder, job: Job, *, fold: bool = False) -> Network:
    """Add the network between the workers of a job without servers.

    With ``fold``, the first link of a kind, and each transfer of the first worker, represent all.
    """
    return Network(b, job, fold=fold, core_share=job.workers if fold else 1)


def others(workers: int) -> Ids:
    """Return for each worker all others, from the next one on, (workers, workers - 1)."""
    index = np.arange(workers)
    return (index[:, None] + index[None, 1:]) % workers


class Partners(msgspec.Struct, frozen=True, eq=False):
    """Workers that independently draw a partner for each iteration.

    ``worker`` (senders,) are worker numbers; ``candidates`` (senders, candidates) the workers that
    each may draw, all equally likely; ``draw`` (senders,) random streams.
    """

    worker: Ids
    candidates: Ids
    draw: Ids

    @classmethod
    def add(cls, b: GraphBuilder, worker: Ids, candidates: Ids) -> Partners:
        """Add partners of workers (senders,) among ``candidates`` (senders, candidates)."""
        return cls(worker, candidates, b.streams(worker.shape))

    @property
    def axis(self) -> Axis:
        """Return the names of the drawing workers, for ops of shape (senders, ...)."""
        return ("worker", [f"worker {worker}" for worker in self.worker])

    def send(
        self,
        b: GraphBuilder,
        label: str,
        job: Job,
        workers: Workers,
        network: Network,
        *,
        reply: bool = False,
    ) -> Ids:
        """Add the transfer of a model to the partner drawn, or back from it, (senders,)."""
        near, far = self.worker[:, None], self.candidates
        source, target = (far, near) if reply else (near, far)
        paths, latency_s = network.path(source, target), network.latency_s(source, target)
        flow = network.flow(source, target)
        alone = self.candidates.shape[1] == 1
        sent = b.ops(
            label,
            self.worker.shape,
            bytes=job.workload.gradient_bytes,
            path=paths[:, 0] if alone else None,
            rate_cap_bytes_per_s=flow[:, 0] if alone else math.inf,
            latency_s=latency_s[:, 0] if alone else 0.0,
            group=self.worker,
            axes=(self.axis,),
        )
        if not alone:
            b.choose(
                sent, draw=self.draw, paths=paths, latency_s=latency_s, rate_cap_bytes_per_s=flow
            )
        return sent

    def when_drawn(self, b: GraphBuilder, label: str, probability: float = 1.0) -> Ids:
        """Add zero-length ops, active if that candidate was drawn, (senders, candidates).

        ``probability`` is that of drawing any partner at all.
        """
        shape = self.candidates.shape
        axes = (self.axis, ("candidate", None))
        ops = b.ops(label, shape, group=self.worker[:, None], axes=axes)
        if shape[1] > 1 or probability < 1.0:
            b.active(
                ops,
                probability=probability,
                draw=self.draw[:, None],
                chosen=np.arange(shape[1]),
                among=shape[1],
            )
        return ops
