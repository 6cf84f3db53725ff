"""Sharded training: parameters are gathered, and gradients scattered, unit by unit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from perfmodel.architectures.fsdp import order
from perfmodel.architectures.fsdp.options import Options
from perfmodel.base.arrays import Floats, Ids
from perfmodel.communication.communicator import Communicator
from perfmodel.communication.costs import Cost, LinkCosts
from perfmodel.communication.groups import Groups
from perfmodel.communication.network import Network
from perfmodel.graph.builder import GraphBuilder
from perfmodel.graph.op_graph import COPYING, HOST, Axis, OpGraph
from perfmodel.inputs.job import Job
from perfmodel.training.workers import (
    FOLDED,
    Update,
    Workers,
    add_optimizer,
    add_passes,
    log_steps,
    stagger_s,
)

NO_OPS: Ids = np.zeros(0, np.int64)


def build(job: Job, *, fold: bool = False) -> OpGraph:
    """Build the op graph; with ``fold``, of the first worker only, which represents all."""
    b = GraphBuilder()
    reduced = [one.reduced for one in order.passes_of(job)] if job.workers > 1 else [True]
    passes = add_passes(b, job, reduced, some=FOLDED if fold else None)
    workers = passes[0]
    shards = int(Options.of(job).shards(job.workers))
    update = add_optimizer(b, job, passes[-1], workers, shards)
    optimizer = update.last
    if job.workers > 1:
        _add_collectives(b, job, passes, update, fold)
    if not fold:
        b.stagger(workers.forward[:, 0], stagger_s(job))
    counter = b.counters(optimizer)
    b.probe("staleness", optimizer, optimizer, lag=1, counter=counter, group=workers.index)
    log_steps(b, workers, central=True)
    b.log("update", optimizer)
    return b.build(device=workers.device, mark=optimizer, count=job.workers if fold else 1)


def _add_collectives(
    b: GraphBuilder, job: Job, passes: Sequence[Workers], update: Update, fold: bool
) -> None:
    """Add all-gathers and reduce-scatters, on a communicator per shard group, and all-reduces of
    the scattered gradients, on a communicator per replica group.

    A pass begins once the gradients that the previous one reduces have been reduced, as in PyTorch.
    """
    options = Options.of(job)
    units, share = order.units_in(job), order.sent_share(job)
    sent = units.bytes * share
    size, gamma = int(options.shards(job.workers)), options.reduce_per_byte_s
    shards, replicas = (
        groups.placed(fold=fold) for groups in Groups.of(job.cluster, job.workers, size)
    )
    gathers = [
        LinkCosts(group.members, units.gathered(order.gathered_share(job))).cost("all_gather")
        for group in shards
    ]
    scatters = [LinkCosts(group.members, sent).cost("reduce_scatter", gamma) for group in shards]
    parts = [LinkCosts(group.members, sent / size) for group in replicas]
    sums = [costs.cost("all_reduce", gamma) for costs in parts]
    fabric = (*shards, *replicas)[0].members.fabric
    symmetric = all(cost.symmetric(fabric) for cost in (*gathers, *scatters, *sums))
    network = Network(b, job, fold=fold and symmetric)

    added = [
        _add_shard_group(b, job, [_among(one, group.rows) for one in passes], units,
                         update.last[group.rows], Communicator(b, network, group=group.name), costs)
        for group, *costs in zip(shards, gathers, scatters, strict=True)
    ]  # fmt: skip
    if added:
        gathered = np.concatenate([one.gathered for one in added])
        b.probe("all-gather", gathered, gathered, at_ready=True)
    channels = [Communicator(b, network, group=group.name) for group in replicas]
    followers = [*(one.forward[:, 0] for one in passes[1:]), update.first]
    for number, (one, one_pass) in enumerate(zip(passes, order.passes_of(job), strict=True)):
        if not one_pass.reduced:
            continue
        made = one.backward[:, units.first]
        if added:
            made = np.stack([group.reduced[number] for group in added])
            b.probe("reduce-scatter", made.ravel(), made.ravel(), at_ready=True)
        if replicas:
            made = np.stack([
                _add_sums(b, channel, cost, made, one.axes)
                for channel, cost in zip(channels, sums, strict=True)
            ])  # fmt: skip
            b.probe("all-reduce", made.ravel(), made.ravel(), at_ready=True)
        waiting = followers[number]
        reduced = made[np.arange(len(waiting)) % len(made)]  # by worker
        b.edge(reduced, waiting[:, None])
        if options.blocking_reduce:
            b.edge(reduced[:, 1:], one.backward[:, units.last[:-1]])
            for group, its in zip(shards, added, strict=True):
                _before_copies(b, reduced[group.rows], its.again.get(number))
        for begin in (group.begins.get(number + 1) for group in added):
            if begin is not None:
                b.edge(made.ravel(), np.broadcast_to(begin, made.size))


class Added(NamedTuple):
    """Ops of a shard group that each wait for all of its workers: all-gathers before forward,
    (gathers,); by number of the pass, reduce-scatters, (units,), and at stage 3 the collective that
    is issued first, (1,), and what workers do after all-gathers for backward, (workers, units)."""

    gathered: Ids
    reduced: dict[int, Ids]
    begins: dict[int, Ids]
    again: dict[int, Ids]


def _among(workers: Workers, rows: Ids) -> Workers:
    """Return the passes of some of the workers."""
    return msgspec.structs.replace(
        workers,
        node=workers.node[rows],
        forward=workers.forward[rows],
        backward=workers.backward[rows],
        rows=rows,
    )


def _add_shard_group(
    b: GraphBuilder,
    job: Job,
    passes: Sequence[Workers],
    units: order.Units,
    optimizer: Ids,
    communicator: Communicator,
    costs: Sequence[Cost],
) -> Added:
    """Add a group's all-gathers of parameters, and reduce-scatters of gradients, with costs."""
    options, (gather, scatter) = Options.of(job), costs
    gathers: list[Ids] = []
    reduced: dict[int, Ids] = {}
    begins: dict[int, Ids] = {}
    copies: dict[int, Ids] = {}
    if options.stage < 3:  # all units are gathered before the next step begins
        gathers.append(communicator.add("all-gather", gather, axis="unit"))
    for number, (workers, one) in enumerate(zip(passes, order.passes_of(job), strict=True)):
        needed = NO_OPS
        if one.gathered:
            needed = communicator.add("all-gather", gather, axis="unit", among=workers.axes)
            gathers.append(needed)
        if one.again:
            label = "all-gather again"
            again = communicator.add(label, gather, axis="unit", among=workers.axes)
            needed = np.concatenate([needed, again[::-1]])
        if one.reduced:
            scattered = communicator.add("reduce-scatter", scatter, axis="unit", among=workers.axes)
            reduced[number] = scattered
        if options.stage < 3:
            _edge_from_all(b, workers.backward[:, units.first], scattered)
            b.chain(scattered[::-1])
            continue
        issues = order.issued_in(one, len(units.first), options)
        if not issues:
            continue
        made = reduced.get(number, NO_OPS)[::-1]
        begins[number], copied = _in_issue_order(b, job, issues, workers, units, needed, made)
        if one.again and copied is not None:
            copies[number] = copied[:, -len(units.first) :]
        before = passes[number - 1].backward[:, :1] if number else optimizer[:, None]
        _edge_from_all(b, before, begins[number], lag=0 if number else 1)
    if options.stage < 3:
        gathered = gathers[0]
        b.chain(gathered)
        _edge_from_all(b, optimizer[:, None], gathered[:1])
        last = np.broadcast_to(gathered[-1], optimizer.shape)
        b.edge(last, passes[0].forward[:, 0], lag=1)
    return Added(np.concatenate(gathers), reduced, begins, copies)


def _add_sums(
    b: GraphBuilder, communicator: Communicator, cost: Cost, made: Ids, among: tuple[Axis, ...]
) -> Ids:
    """Add the all-reduces of each unit's part of the gradients in a replica group, (units,).

    They run one after the other, in the order in which gradients are ``made`` (shard groups,
    units). In PyTorch they have their own process group, and a stream that waits for the
    reduce-scatter (torch/distributed/fsdp: ``_runtime_utils.py``, ``_reduce_grad``;
    ``_fully_shard/_fsdp_collectives.py``, ``foreach_reduce``).
    """
    summed = communicator.add("all-reduce", cost, axis="unit", among=among)
    b.chain(summed[::-1])
    b.edge(made, np.broadcast_to(summed, made.shape))
    return summed


def _in_issue_order(
    b: GraphBuilder,
    job: Job,
    issues: Sequence[order.Issue],
    workers: Workers,
    units: order.Units,
    gathers: Ids,
    reduced: Ids,
) -> tuple[Ids, Ids | None]:
    """Add the edges of a pass of stage 3, and return the collective issued first, (1,), and what
    workers do after gathers, (workers, gathers), if that takes time.

    Units are gathered before they compute, and reduced after backward. ``gathers`` and ``reduced``
    are in the order of issue; each waits for the one issued before.
    """
    begins = [workers.forward[:, units.first], workers.backward[:, units.last[::-1]]]
    ends = [workers.forward[:, units.last], workers.backward[:, units.first[::-1]]]
    begin, end = np.concatenate(begins, axis=1), np.concatenate(ends, axis=1)
    needing, count = begin[:, : len(gathers)], len(units.first)
    around, after_gathers, host_s = order.around(job), None, Options.of(job).collective_host_s
    if around is not None and len(reduced):
        names = list(map(str, range(count)))[::-1]
        seconds = around.reductions[::-1]
        copied = _add_copies(b, workers, "copies of gradients", seconds, host_s, names)
        b.edge(end[:, count:], copied)
        _before_layers(b, job, copied, workers.backward, units.first[::-1] - 1)
        end = np.concatenate([end[:, :count], copied], axis=1)
    if around is not None and len(gathers):
        seconds = np.concatenate([around.gathers, around.gathers[::-1]])[: len(gathers)]
        names = [*map(str, range(count)), *(f"{unit} again" for unit in reversed(range(count)))]
        names = names[: len(gathers)]
        copied = _add_copies(b, workers, "copies of parameters", seconds, host_s, names)
        b.edge(copied, needing)
        _after_layers(b, job, copied, workers, units)
        if len(reduced) and len(gathers) > count and not _in_pipeline(job):
            b.edge(end[:, count:-1], copied[:, count + 1 :])
        needing = after_gathers = copied
    if Options.of(job).blocking_reduce:
        _wait_in_hooks(b, Options.of(job), begin, after_gathers, gathers)
    b.edge(np.broadcast_to(gathers, needing.shape), needing)
    issued = np.array([(gathers if one.gather else reduced)[one.number] for one in issues])
    after = np.array([one.after for one in issues])
    b.chain(issued)
    _edge_from_all(b, end[:, after[after >= 0]], issued[after >= 0])
    return issued[:1], after_gathers


def _wait_in_hooks(
    b: GraphBuilder, options: Options, begin: Ids, copied: Ids | None, gathers: Ids
) -> None:
    """Let gathers ahead wait for copies, (workers, gathers), where the host waits for collectives.

    The hook before a unit's pass waits for its gather and copies, and then issues the gather of a
    later unit; the first hook of forward, and of backward, also issues its own. Without
    ``prefetch`` it also waits for that gather before the pass, which begins with ``begin``
    (workers, computations).

    References
    ----------
    torch/distributed/fsdp, ``_fully_shard/_fsdp_state.py``: ``_pre_forward``, ``_pre_backward``.
    """
    units, number = begin.shape[1] // 2, np.arange(len(gathers))
    before = np.array(options.ahead(units))[number]
    first = number - number % units
    ahead = (number > first) & (before > 0)
    hook = np.maximum(number - before, first)[ahead]
    if copied is not None:
        _edge_from_all(b, copied[:, hook], gathers[ahead])
    if options.prefetch == 0:
        b.edge(np.broadcast_to(gathers[ahead], (len(begin), len(hook))), begin[:, hook])


def _before_copies(b: GraphBuilder, reduced: Ids, copied: Ids | None) -> None:
    """Let copies of parameters for backward, (workers, units in reverse), wait until the gradients
    of the unit before, (workers, units), are reduced: the same host waits for both."""
    if copied is not None:
        b.edge(reduced[:, :0:-1], copied[:, 1:])


def _add_copies(
    b: GraphBuilder,
    workers: Workers,
    label: str,
    seconds: Floats,
    host_s: float,
    units: Sequence[str],
) -> Ids:
    """Add what each worker does around collectives of these units, (workers, units); of each, its
    host takes ``host_s``."""
    shape = len(workers.node), len(seconds)
    of_workers = [f"worker {number}" for number in workers.index]
    made = b.ops(
        label,
        (*(1 for _ in workers.axes), *shape),
        seconds=seconds,
        spent={HOST: host_s, COPYING: seconds - host_s},
        group=workers.index[:, None],
        axes=(*workers.axes, ("worker", of_workers), ("unit", units)),
    )
    return made.reshape(shape)


def _before_layers(b: GraphBuilder, job: Job, copied: Ids, backward: Ids, layers: Ids) -> None:
    """Let the backward passes of these layers wait for copies, (workers, layers) each; -1 for none.

    The actions of a stage in a pipeline do not wait for them.
    """
    if not _in_pipeline(job):
        b.edge(copied[:, layers >= 0], backward[:, layers[layers >= 0]])


def _after_layers(
    b: GraphBuilder, job: Job, copied: Ids, workers: Workers, units: order.Units
) -> None:
    """Let copies of parameters wait for the layer before their unit, (workers, units or twice as
    many); those of a stage in a pipeline only for each other."""
    if _in_pipeline(job):
        b.chain(copied)
        return
    forward, backward = workers.forward, workers.backward
    later = units.first > 0
    b.edge(forward[:, units.first[later] - 1], copied[:, : len(later)][:, later])
    if copied.shape[1] > len(later):
        last = units.last[::-1]
        inner = last < forward.shape[1] - 1
        again = copied[:, len(later) :]
        b.edge(backward[:, last[inner] + 1], again[:, inner])
        b.edge(np.broadcast_to(forward[:, -1:], again[:, ~inner].shape), again[:, ~inner])


def _in_pipeline(job: Job) -> bool:
    """Return whether a job is that of a stage among several."""
    return job.stage is not None and job.stage.replica.pipeline > 1


def _edge_from_all(b: GraphBuilder, before: Ids, after: Ids, lag: int = 0) -> None:
    """Make ``after`` (ops,) wait for ``before`` (workers, ops) of every worker."""
    b.edge(before, np.broadcast_to(after, before.shape), lag)
