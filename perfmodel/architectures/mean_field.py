"""Jobs of many equal asynchronous workers as mean fields, which have a few of them."""

from __future__ import annotations

import msgspec
import numpy as np

from perfmodel.architectures.base import architecture_of
from perfmodel.communication.network import homes_of
from perfmodel.graph.mean_field import MeanField
from perfmodel.graph.op_graph import MANY_GROUPS, OpGraph
from perfmodel.inputs.job import Job

FEWEST, MOST = 16, 128
"""Fewest and most workers of a graph that represent all."""

MOST_ALONE = 64
"""Most of the first workers that represent themselves only: those up to the last slow one, and the
others of its node."""

FEWEST_PEERS = 256
"""Fewest workers that represent all if they exchange models with each other, so that a worker
seldom meets the same one again."""

OPS = 70_000
"""Operations that a graph may have before it has fewer workers than MOST."""


def mean_field_of(job: Job) -> MeanField | None:
    """Return the mean field of a job that has many workers for its graph; None if it has not, or if
    a few workers cannot represent all."""
    few = architecture_of(job).few
    if few is None or job.workers < MANY_GROUPS or not _represented(job):
        return None
    each = job.cluster.devices_per_node
    alone = max((straggler.worker // each + 1 for straggler in job.stragglers), default=0) * each
    least = alone + _whole_nodes(job, FEWEST)
    if job.workers < 2 * least or alone > MOST_ALONE:
        return None
    graph = few(job, least)
    count = max(_whole_nodes(job, min(OPS * graph.n_groups // graph.n_ops, MOST)), least)
    if job.workers < 2 * max(count, graph.n_groups):
        return None
    if count > graph.n_groups:
        graph = few(job, count)
    servers = job.options.server_count
    places = homes_of(job, servers) if servers else np.zeros(0, np.int64)
    return MeanField.of(graph, job.workers, places, alone)


def represented(graph: OpGraph) -> tuple[str, ...]:
    """Return the note that says how many workers are simulated, if these are a few of many."""
    several = np.flatnonzero(graph.group_count > 1)
    if not graph.staggered or not len(several):
        return ()
    said = f"{graph.n_groups} workers are simulated; they represent all, which are equal"
    return (f"{said} but for the first {several[0]}" if several[0] else said,)


def few_peers(job: Job, count: int) -> Job:
    """Return the job with fewer workers, which represent all of it if workers meet each other."""
    fewer = _whole_nodes(job, max(count, FEWEST_PEERS))
    return msgspec.structs.replace(job, workers=min(fewer, job.workers))


def _whole_nodes(job: Job, count: int) -> int:
    """Return a number of workers that fill their nodes: ``count``, or the next below it; at least
    one node."""
    each = job.cluster.devices_per_node
    return max(count // each, 1) * each


def _represented(job: Job) -> bool:
    """Return whether workers are asynchronous and equal, but for some slow ones, and nothing
    depends on how many there are but the load of what they share. Workers on the node of a server
    are faster than others."""
    cluster = job.cluster
    return (
        job.options.asynchronous
        and job.start == "staggered"
        and job.replica is None
        and not job.islands
        and not cluster.overrides
        and not cluster.devices_on_nodes
        and not cluster.sites
        and cluster.queue_bytes is None
        and cluster.burst_bytes == 0.0
        and cluster.worker_threads is None
        and (cluster.server.placement == "dedicated" or job.options.server_count == 0)
    )
