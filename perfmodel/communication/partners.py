"""Partners that workers draw at random."""

from __future__ import annotations

import msgspec
import numpy as np

from perfmodel.base.arrays import Ids
from perfmodel.communication.network import Network
from perfmodel.graph.builder import GraphBuilder
from perfmodel.graph.op_graph import Axis
from perfmodel.inputs.job import Job
from perfmodel.training.devices import Workers

FEWEST = 256
"""Fewest workers that represent many if they exchange models with each other, so that a worker
seldom meets the same one again."""


def others(workers: int) -> Ids:
    """Return for each worker all others, from the next one on, (workers, workers - 1)."""
    index = np.arange(workers)
    return (index[:, None] + index[None, 1:]) % workers


def as_far(node: Ids, worker: Ids, candidates: Ids, of: int) -> Ids:
    """Return partners, (senders, fewer), that are as often on a worker's own node as among ``of``
    candidates of a whole job on full nodes, of ``candidates`` (senders, candidates).

    Among few workers more messages would stay inside a node. ``node`` (workers,) is that of each of
    the few. All are returned if there are no more in the job, or if senders have different numbers
    of candidates on their nodes.
    """
    if of <= candidates.shape[1]:
        return candidates
    near = node[candidates] == node[worker][:, None]
    counts = near.sum(axis=1)
    far = candidates.shape[1] - counts[0]
    if far == 0 or (counts != counts[0]).any():
        return candidates
    kept = round(counts[0] * far / max(of - counts[0], 1))
    beyond = np.where(near, (candidates - worker[:, None]) % len(node), len(node))
    dropped = beyond.argsort(axis=1, kind="stable")[:, kept : counts[0]]
    stays = np.ones(candidates.shape, np.bool_)
    np.put_along_axis(stays, dropped, False, axis=1)
    return candidates[stays].reshape(len(worker), -1)


class Partners(msgspec.Struct, frozen=True, eq=False):
    """Workers that independently draw a partner for each iteration.

    ``worker`` (senders,) are their numbers in the graph; ``candidates`` (senders, candidates) those
    of the workers that each may draw, all equally likely; ``draw`` (senders,) random streams;
    ``of_job`` (workers,) the number in the job of each worker of the graph.
    """

    worker: Ids
    candidates: Ids
    draw: Ids
    of_job: Ids

    @classmethod
    def add(cls, b: GraphBuilder, workers: Workers, worker: Ids, candidates: Ids) -> Partners:
        """Add partners of some of the ``workers``, ``worker`` (senders,), among ``candidates``
        (senders, candidates)."""
        return cls(worker, candidates, b.streams(worker.shape), workers.of_job)

    @property
    def axis(self) -> Axis:
        """Return the names of the drawing workers, for ops of shape (senders, ...)."""
        return ("worker", [f"worker {number}" for number in self.of_job[self.worker]])

    def send(
        self,
        b: GraphBuilder,
        label: str,
        job: Job,
        network: Network,
        *,
        reply: bool = False,
    ) -> Ids:
        """Add the transfer of a model to the partner drawn, or back from it, (senders,)."""
        size, axes = job.workload.gradient_bytes, (self.axis,)
        alone = self.candidates.shape[1] == 1
        near = self.worker if alone else self.worker[:, None]
        far = self.candidates[:, 0] if alone else self.candidates
        ends = self.of_job[near], self.of_job[far]
        routes = network.between(*(ends[::-1] if reply else ends))
        if alone:
            return b.ops(label, near.shape, bytes=size, group=self.worker, axes=axes, **routes)
        sent = b.ops(label, self.worker.shape, bytes=size, group=self.worker, axes=axes)
        b.choose(
            sent,
            draw=self.draw,
            paths=routes["path"],
            latency_s=routes["latency_s"],
            rate_cap_bytes_per_s=routes["rate_cap_bytes_per_s"],
            burst_bytes=routes["burst_bytes"],
        )
        return sent

    def by_candidate(self, ops: Ids) -> Ids:
        """Return ``ops`` (senders, candidates) by the worker that they concern, in ascending order,
        (senders that may draw it, workers that may be drawn)."""
        order = self.candidates.ravel().argsort(kind="stable")
        return ops.ravel()[order].reshape(len(np.unique(self.candidates)), -1).T

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
