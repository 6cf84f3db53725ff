"""Jobs of many asynchronous workers as mean fields, which have a few of each kind of worker."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import msgspec
import numpy as np

from perfmodel.architectures.base import architecture_of
from perfmodel.base.arrays import Ids
from perfmodel.communication.units import Devices, Units
from perfmodel.graph.mean_field import MeanField
from perfmodel.graph.op_graph import MANY_GROUPS, OpGraph
from perfmodel.graph.work import may_come_in_waves
from perfmodel.inputs.job import Job
from perfmodel.training.blocks import BLOCKS, in_blocks
from perfmodel.training.workers import alike

MOST = 128
"""Most workers of a graph that represent all, unless there are more kinds of them."""

OPS = 70_000
"""Operations that a graph may have before it has fewer workers than MOST."""

MOST_IN_STEP, OPS_IN_STEP = 64, 10_000
"""Most workers and operations of a graph if workers go on in step: their runs have to be long."""

WAVE_BLOCKS, WAVE_OPS = 8, 14_000
"""Blocks that layers are joined to if workers may come in waves, and operations of a graph of at
most MOST of them that shows whether they do (decisions 0104 and 0111)."""

MOST_HOSTS, BUSY = 32, 0.5
"""Most servers on workers' nodes each of which makes its node another kind (decision 0106); how
busy links may be then, if nodes have several workers; half of that in step (decision 0109)."""


def has_many(job: Job) -> bool:
    """Return whether a job has many workers, or stages of these, that go at their own pace."""
    stages = 1 if job.replica is None else job.replica.pipeline
    return job.workers * stages >= MANY_GROUPS and not alike(job)


def mean_field_of(
    job: Job,
    few: Callable[[Job, Ids], OpGraph] | None = None,
    several: Callable[[Job], Sequence[Devices]] | None = None,
) -> MeanField | None:
    """Return the mean field of a job that has many workers for its graph; None if it has not, or if
    a few workers cannot represent all.

    If workers wait for the slowest, they go on in step, and layers are joined to a few blocks. If
    the devices of a worker use servers one after the other, as stages of a pipeline do, workers
    come to do so together; then all are simulated if they are not many (decision 0103).

    Parameters
    ----------
    few : builds the graph with some of the workers, whose groups are those of their first devices,
        then those of their second; by default that of the architecture.
    several : returns the devices of each worker of a job, one after the other; by default there is
        one.
    """
    architecture, bound = architecture_of(job), job.options.bounded_lead
    few, lead = few or architecture.few, None if bound is None or bound == math.inf else int(bound)
    apart = job.options.asynchronous and job.start == "staggered"
    if few is None or not has_many(job) or not apart:
        return None
    devices = several(job) if several is not None else [Devices.of(job)]
    in_step = lead is not None or (len(devices) > 1 and job.options.server_count > 0)
    many_hosts, alone = len(devices) == 1 and devices[0].hosts > MOST_HOSTS, devices[0].alone
    hosts_alike, fewest = many_hosts and not (in_step and alone), architecture.fewest
    most, ops = (MOST_IN_STEP, OPS_IN_STEP) if in_step else (MOST, OPS)
    if hosts_alike and not alone:
        fewest, most = MOST_IN_STEP if in_step else fewest, MOST_IN_STEP
    units = Units.of(devices, hosts_alike=hosts_alike)
    sampled = in_blocks(job, BLOCKS) if in_step else job
    size = fewest, most, ops
    field = _sampled(sampled, few, units, len(devices), size, in_step=in_step, lead=lead)
    if field is not None and many_hosts and (in_step or not alone):
        return msgspec.structs.replace(field, most_busy=BUSY / 2.0 if in_step else BUSY)
    if field is None or in_step or many_hosts or not field.links_in_turn:
        return field
    waves = in_blocks(job, WAVE_BLOCKS)
    together = _sampled(waves, few, units, len(devices), (fewest, most, WAVE_OPS), in_step=True)
    return msgspec.structs.replace(field, together=together)


def _sampled(
    job: Job,
    few: Callable[[Job, Ids], OpGraph],
    units: Units,
    devices: int,
    size: tuple[int, int, int],
    *,
    in_step: bool = False,
    lead: int | None = None,
) -> MeanField | None:
    """Return the mean field of a job from a sample of its units, whose ``size`` is the fewest and
    most workers, and the most operations. None if that is most workers, or all if each device of
    one uses servers."""
    fewest, most, ops = size
    graph, sample = None, units.sample(fewest, fewest)
    some = units.workers(sample)
    if job.workers >= 2 * len(some):
        graph = few(job, some)
        larger = units.sample(min(ops * len(some) // graph.n_turns, most), fewest)
        if len(larger) > len(sample):
            sample, some = larger, units.workers(larger)
    if job.workers < 2 * len(some):
        if not in_step or devices == 1:
            return None
        sample = np.arange(len(units.start) - 1)
        some = units.workers(sample)
    if graph is None or graph.n_groups < len(some) * devices:
        graph = few(job, some)
    of, kind, places = units.represented_by(sample)
    unit = np.broadcast_to(places.unit, (devices, len(some)))
    many = np.arange(devices)[:, None]  # each device is a group, and equals no other
    return MeanField.of(
        graph,
        (of + many * len(some)).ravel(),
        (kind + many * (kind.max() + 1)).ravel(),
        places._replace(unit=unit.ravel()),
        devices=devices,
        servers=job.options.server_count > 0,
        in_step=in_step,
        lead=lead,
    )


def joined(job: Job, graph: OpGraph) -> Job | None:
    """Return a job with layers joined to some blocks if workers of its graph, which has all, may
    come in waves: runs are long then (decision 0104). None if they may not, or layers differ."""
    fewer = in_blocks(job, WAVE_BLOCKS) if may_come_in_waves(graph) else job
    return None if fewer is job else fewer


def represented(job: Job, graph: OpGraph) -> tuple[str, ...]:
    """Return the note that says how many workers are simulated, if these are a few of many."""
    if not graph.staggered or not (graph.group_count > 1).any():
        return ()
    devices = len(graph.worker_group) // job.workers
    alone = int((graph.group_count == 1).sum()) // devices
    but = f", but {alone} of them only themselves" if alone else ", which are equal"
    if (job.unequal or job.cluster.sites or job.cluster.devices_on_nodes) and not alone:
        but = ", as many of each kind as among all"
    return (f"{graph.n_groups // devices} workers are simulated; they represent all{but}",)
