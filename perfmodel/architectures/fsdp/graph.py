"""Sharded training: parameters are gathered, and gradients scattered, unit by unit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

from perfmodel.architectures.fsdp import order
from perfmodel.architectures.fsdp.options import Options
from perfmodel.architectures.parts.communicator import Communicator
from perfmodel.architectures.parts.groups import Groups, together
from perfmodel.architectures.parts.members import Cost
from perfmodel.architectures.parts.network import Network
from perfmodel.architectures.parts.reduction import (
    all_gather_cost,
    all_reduce_cost,
    reduce_scatter_cost,
)
from perfmodel.architectures.parts.workers import Workers, add_workers, log_steps, stagger_s
from perfmodel.base.arrays import Ids
from perfmodel.graph.builder import GraphBuilder
from perfmodel.graph.op_graph import OpGraph
from perfmodel.inputs.job import Job

if TYPE_CHECKING:
    from perfmodel.architectures.parts.recorder import Meaning, Recorder


def build(job: Job, *, fold: bool = False) -> OpGraph:
    """Build the op graph; with ``fold``, of the first worker only, which represents all."""
    b = GraphBuilder()
    workers = add_workers(b, job, first=1 if fold else None)
    shards = Options.of(job).shards(job.workers)
    optimizer = workers.compute(b, "optimizer", job.workload.optimizer_s / shards)
    b.edge(workers.backward[:, 0], optimizer)
    b.edge(optimizer, workers.forward[:, 0], lag=1)
    if job.workers > 1:
        _add_collectives(b, job, workers, optimizer, fold)
    if not fold:
        b.stagger(workers.forward[:, 0], stagger_s(job))
    counter = b.counters(optimizer)
    b.probe("staleness", optimizer, optimizer, lag=1, counter=counter, group=workers.index)
    log_steps(b, workers, central=True)
    b.log("update", optimizer)
    return b.build(device=workers.device, mark=optimizer, count=job.workers if fold else 1)


def meaning(job: Job) -> tuple[Recorder, Meaning]:
    """Record one model, of which each worker updates its part."""
    from perfmodel.architectures.parts.recorder import Recorder, replicas

    recorder = Recorder(job.workers, [float(job.workload.gradient_bytes)], central=True)
    return recorder, replicas(recorder)


def _add_collectives(
    b: GraphBuilder, job: Job, workers: Workers, optimizer: Ids, fold: bool
) -> None:
    """Add all-gathers and reduce-scatters, on a communicator per shard group, and all-reduces of
    the scattered gradients, on a communicator per replica group."""
    options = Options.of(job)
    units = order.units_of(job.workload, options.unit_bytes)
    sent = units.bytes * order.sent_share(job)
    groups = Groups.of(job.cluster, job.workers, options.shards(job.workers))
    gamma, summing = options.reduce_per_byte_s, options.reduction()
    shards = groups.shards(fold=fold) if groups.size > 1 else []
    replicas = groups.replicas(fold=fold) if groups.count > 1 else []
    gathers = [together(lambda m: all_gather_cost(m, sent), g.members) for g in shards]
    scatters = [together(lambda m: reduce_scatter_cost(m, sent, gamma), g.members) for g in shards]
    part = sent / groups.size
    sums = [together(lambda m: all_reduce_cost(m, part, summing), g.members) for g in replicas]
    symmetric = all(cost.symmetric(groups.fabric) for cost in (*gathers, *scatters, *sums))
    network = Network(b, job, fold=fold and symmetric)

    found = [
        _add_shard_group(b, options, _among(workers, group.rows), units, optimizer[group.rows],
                         Communicator(b, network, group=group.name), costs)
        for group, *costs in zip(shards, gathers, scatters, strict=True)
    ]  # fmt: skip
    made = workers.backward[:, units.first]
    if found:
        gathered = np.concatenate([one.gathered for one in found])
        made = np.stack([one.reduced for one in found])
        b.probe("all-gather", gathered, gathered, at_ready=True)
        b.probe("reduce-scatter", made.ravel(), made.ravel(), at_ready=True)
    if replicas:
        made = np.stack([
            _add_sums(b, Communicator(b, network, group=group.name), cost, made)
            for group, cost in zip(replicas, sums, strict=True)
        ])  # fmt: skip
        b.probe("all-reduce", made.ravel(), made.ravel(), at_ready=True)
    b.edge(made[np.arange(len(optimizer)) % len(made)], optimizer[:, None])


class Added(NamedTuple):
    """Ops of a shard group that each wait for all of its workers: all-gathers in forward order,
    (units,), and reduce-scatters, (units,)."""

    gathered: Ids
    reduced: Ids


def _among(workers: Workers, rows: Ids) -> Workers:
    """Return the passes of some of the workers."""
    return msgspec.structs.replace(
        workers, forward=workers.forward[rows], backward=workers.backward[rows]
    )


def _add_shard_group(
    b: GraphBuilder,
    options: Options,
    workers: Workers,
    units: order.Units,
    optimizer: Ids,
    communicator: Communicator,
    costs: Sequence[Cost],
) -> Added:
    """Add a group's all-gathers of parameters, and reduce-scatters of gradients, with costs."""
    gather, scatter = costs
    gathered = communicator.add("all-gather", gather, axis="unit")
    again = (
        communicator.add("all-gather again", gather, axis="unit")
        if options.stage == 3 and options.reshard_after_forward
        else None
    )
    reduced = communicator.add("reduce-scatter", scatter, axis="unit")
    if options.stage == 3:
        gathers = gathered if again is None else np.concatenate([gathered, again[::-1]])
        _in_issue_order(b, options, workers, units, optimizer, gathers, reduced[::-1])
    else:  # all units are gathered before the next step begins
        b.chain(gathered)
        b.chain(reduced[::-1])
        _edge_from_all(b, workers.backward[:, units.first], reduced)
        _edge_from_all(b, optimizer[:, None], gathered[:1])
        b.edge(np.broadcast_to(gathered[-1], optimizer.shape), workers.forward[:, 0], lag=1)
    return Added(gathered, reduced)


def _add_sums(b: GraphBuilder, communicator: Communicator, cost: Cost, made: Ids) -> Ids:
    """Add the all-reduces of each unit's part of the gradients in a replica group, (units,).

    They run one after the other, in the order in which gradients are ``made`` (shard groups,
    units). In PyTorch they have their own process group, and a stream that waits for the
    reduce-scatter (torch/distributed/fsdp: ``_runtime_utils.py``, ``_reduce_grad``;
    ``_fully_shard/_fsdp_collectives.py``, ``foreach_reduce``).
    """
    summed = communicator.add("all-reduce", cost, axis="unit")
    b.chain(summed[::-1])
    b.edge(made, np.broadcast_to(summed, made.shape))
    return summed


def _in_issue_order(
    b: GraphBuilder,
    options: Options,
    workers: Workers,
    units: order.Units,
    optimizer: Ids,
    gathers: Ids,
    reduced: Ids,
) -> None:
    """Add the edges of stage 3: units are gathered before they compute, reduced after backward.

    ``gathers`` and ``reduced`` are in the order of issue; each waits for the one issued before.
    """
    count = len(units.first)
    begins = [workers.forward[:, units.first], workers.backward[:, units.last[::-1]]]
    ends = [workers.forward[:, units.last], workers.backward[:, units.first[::-1]]]
    begin, end = np.concatenate(begins, axis=1), np.concatenate(ends, axis=1)
    needing = begin[:, : len(gathers)]
    b.edge(np.broadcast_to(gathers, needing.shape), needing)
    issues = order.issue_order(count, options)
    issued = np.array([(gathers if one.gather else reduced)[one.number] for one in issues])
    after = np.array([one.after for one in issues])
    b.chain(issued)
    _edge_from_all(b, end[:, after[after >= 0]], issued[after >= 0])
    _edge_from_all(b, optimizer[:, None], issued[:1], lag=1)


def _edge_from_all(b: GraphBuilder, before: Ids, after: Ids, lag: int = 0) -> None:
    """Make ``after`` (ops,) wait for ``before`` (workers, ops) of every worker."""
    b.edge(before, np.broadcast_to(after, before.shape), lag)
