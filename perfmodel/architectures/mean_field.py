"""Jobs of many asynchronous workers as mean fields, which have a few of each kind of worker."""

from __future__ import annotations

import math

import msgspec
import numpy as np

from perfmodel.architectures.base import architecture_of
from perfmodel.communication.network import homes_of
from perfmodel.communication.units import Units
from perfmodel.graph.mean_field import MeanField
from perfmodel.graph.op_graph import MANY_GROUPS, OpGraph
from perfmodel.inputs.job import Job
from perfmodel.training.workers import in_blocks, like_one_layer

MOST = 128
"""Most workers of a graph that represent all, unless there are more kinds of them."""

OPS = 70_000
"""Operations that a graph may have before it has fewer workers than MOST."""

BLOCKS, MOST_IN_STEP, OPS_IN_STEP = 4, 64, 10_000
"""Blocks of layers, workers and operations of a graph if workers may wait for the slowest, at most:
their runs have to be long."""


def mean_field_of(job: Job) -> MeanField | None:
    """Return the mean field of a job that has many workers for its graph; None if it has not, or if
    a few workers cannot represent all. If workers wait for the slowest, layers are joined to a few
    blocks."""
    architecture, bound = architecture_of(job), job.options.bounded_lead
    few, lead = architecture.few, None if bound is None or bound == math.inf else int(bound)
    if few is None or job.workers < MANY_GROUPS or not _represented(job):
        return None
    units = Units.of(job)
    if units is None:
        return None
    if lead is not None and like_one_layer(job):
        job = msgspec.structs.replace(job, workload=in_blocks(job.workload, BLOCKS))
    fewest = architecture.fewest
    sample = units.sample(fewest, fewest)
    if job.workers < 2 * len(sample) * units.each:
        return None
    graph = few(units.moved(job, sample), len(sample) * units.each)
    most, ops = (MOST, OPS) if lead is None else (MOST_IN_STEP, OPS_IN_STEP)
    larger = units.sample(min(ops * graph.n_groups // graph.n_ops, most), fewest)
    if job.workers < 2 * len(larger) * units.each:
        return None
    if len(larger) > len(sample):
        sample = larger
        graph = few(units.moved(job, sample), len(sample) * units.each)
    servers = job.options.server_count
    places = homes_of(job, servers) if servers else np.zeros(0, np.int64)
    group, kind = units.represented_by(sample, job.workers)
    graph = units.named(graph, sample)
    return MeanField.of(graph, group, kind, places, lead)


def represented(job: Job, graph: OpGraph) -> tuple[str, ...]:
    """Return the note that says how many workers are simulated, if these are a few of many."""
    if not graph.staggered or not (graph.group_count > 1).any():
        return ()
    alone = int((graph.group_count == 1).sum())
    but = f", but {alone} of them only themselves" if alone else ", which are equal"
    if job.unequal and not alone:
        but = ", as many of each kind as among all"
    return (f"{graph.n_groups} workers are simulated; they represent all{but}",)


def _represented(job: Job) -> bool:
    """Return whether workers are asynchronous, and nothing depends on how many there are but the
    load of what they share."""
    cluster = job.cluster
    return (
        job.options.asynchronous
        and job.start == "staggered"
        and job.replica is None
        and not job.islands
        and not cluster.devices_on_nodes
        and not cluster.sites
        and cluster.queue_bytes is None
        and cluster.burst_bytes == 0.0
    )
