"""The op graph of DiLoCo: local steps, and the exchange of fragments alongside them."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from perfmodel.architectures.diloco.options import Fragments, Options, fragments_of
from perfmodel.base.arrays import NONE, Ids
from perfmodel.communication.communicator import Communicator
from perfmodel.communication.costs import LinkCosts
from perfmodel.communication.members import Members
from perfmodel.communication.network import (
    Network,
    add_update_threads,
    homes_of,
    model_update_s,
    node_names,
)
from perfmodel.graph.builder import GraphBuilder
from perfmodel.graph.op_graph import Axis, OpGraph
from perfmodel.inputs.job import Job
from perfmodel.training.workers import (
    FOLDED,
    Workers,
    add_optimizer,
    add_workers,
    log_steps,
    stagger_s,
)

FIRST = -1
"""Priority of ops on a device that run before the next step."""

AXES: tuple[Axis, Axis, Axis] = (("worker", None), ("fragment", None), ("server", None))


def build(job: Job, *, fold: bool = False) -> OpGraph:
    """Build the op graph; with ``fold``, of the first worker only, which represents all."""
    b = GraphBuilder()
    options = Options.of(job)
    home = homes_of(job, 1) if options.by_server else np.zeros(0, np.int64)
    workers = add_workers(
        b, job, some=FOLDED if fold else None, nodes=len(node_names(job, home)) or None
    )
    optimizer = add_optimizer(b, job, workers).last
    if job.workers > 1:
        done = workers.forward[:, -1] if options.during_backward else optimizer
        add_exchanges(b, job, workers, done, workers.forward[:, 0], home, fold=fold)
    if not fold:
        b.stagger(workers.forward[:, 0], stagger_s(job))
    counter = b.counters(optimizer)[:, None]
    steps = np.broadcast_to(optimizer[:, None], (len(optimizer), options.fragments))
    b.probe("staleness", steps, steps, lag=1, counter=counter, group=workers.index[:, None])
    log_steps(b, workers)
    b.log("update", optimizer)
    return b.build(device=workers.device, mark=optimizer, count=job.workers if fold else 1)


def add_exchanges(
    b: GraphBuilder, job: Job, workers: Workers, done: Ids, begin: Ids, home: Ids, *, fold: bool
) -> None:
    """Add the exchange of each fragment, whatever a local step consists of.

    ``done`` (workers,) are the ops of each step after which a fragment may be sent, ``begin``
    (workers,) those that begin a step. Every ``period`` steps a worker sends a fragment. It begins
    the step ``overlap_steps`` after the next one once the fragment has been merged.
    """
    options, cut = Options.of(job), fragments_of(job)
    sent = _add_sending(b, job, workers, done, cut)
    if options.by_server:
        arrived = _add_server(b, job, workers, home, sent, cut)
    else:
        members = Members.of(job.cluster, job.workers)
        whole = job.workload.gradient_bytes * options.sent_share / options.messages
        one = LinkCosts(members, cut.share * whole).all_reduce(options)
        cost = one.times(options.messages)
        network = Network(b, job, fold=fold and cost.symmetric(members.fabric))
        communicator = Communicator(b, network)
        average = communicator.add("average", cost, axis="fragment")
        b.edge(sent, average[None])
        _once(b, average, len(sent))
        b.probe("average", average, average, at_ready=True)
        b.log("average", average)
        arrived = np.broadcast_to(average, sent.shape)
        if options.outer_s > 0.0:
            outer = workers.compute(
                b, "outer step", options.outer_s * cut.share, axis="fragment", priority=FIRST
            )
            b.edge(arrived, outer)
            _once(b, outer, 1)
            arrived = outer
    _permit(b, options, workers, arrived, begin, cut)


def _add_sending(b: GraphBuilder, job: Job, workers: Workers, done: Ids, cut: Fragments) -> Ids:
    """Return the ops after which a worker has sent a fragment to the network, once per period,
    (workers, fragments): encoding, if that takes time."""
    options, shape = Options.of(job), (len(done), len(cut.share))
    seconds = options.encode_per_byte_s * cut.share * job.workload.gradient_bytes
    if options.encode_per_byte_s > 0.0:
        sent = workers.compute(b, "pseudo-gradient", seconds, axis="fragment", priority=FIRST)
    else:
        sent = b.ops("pseudo-gradient", shape, group=workers.index[:, None], axes=AXES[:2])
    for k, step in enumerate(cut.step.tolist()):
        b.edge(done, sent[:, k], lag=options.period - 1 - step)
    _once(b, sent, options.period)
    b.log("pseudo-gradient", sent)
    return sent


def _permit(
    b: GraphBuilder, options: Options, workers: Workers, arrived: Ids, begin: Ids, cut: Fragments
) -> None:
    """Let a worker begin a number of steps before a fragment has ``arrived`` (workers, fragments)
    for the first time, and ``period`` more each time it has."""
    period = options.period
    permit = b.ops("permit", arrived.shape, group=workers.index[:, None], axes=AXES[:2])
    for k, step in enumerate(cut.step.tolist()):
        periods, more = divmod(step + 1 + options.overlap_steps, period)
        for lag, edges in ((periods + 1, more), (periods, period - more)):
            several = np.broadcast_to(arrived[:, k, None], (len(arrived), edges))
            b.edge(several, permit[:, k, None], lag=lag)
    _once(b, permit, 1)
    b.edge(permit, begin[:, None])


def _add_server(
    b: GraphBuilder, job: Job, workers: Workers, home: Ids, sent: Ids, cut: Fragments
) -> Ids:
    """Exchange through a server: it adds what each worker pushes, makes the outer step, and then
    all workers pull.

    Returns the ops after which a worker has a fragment, (workers, fragments).
    """
    options = Options.of(job)
    network = Network(b, job, home)
    worker = workers.index[:, None]
    threads = add_update_threads(b, job, home)

    def moved(label: str, source: ArrayLike, target: ArrayLike) -> Ids:
        return b.ops(
            label,
            sent.shape,
            bytes=cut.share * job.workload.gradient_bytes * options.sent_share,
            **network.between(source, target),
            group=worker,
            axes=AXES[:2],
        )

    def work(label: str, shape: tuple[int, ...], whole_s: float, group: ArrayLike) -> Ids:
        return b.ops(
            label,
            shape,
            **workers.processors.work(whole_s * cut.share, home, 1),
            slot=threads,
            group=group,
            cause="server",
            axes=AXES[2 - len(shape) : 2],
        )

    push = moved("push", worker, job.workers)
    update = work("update", sent.shape, model_update_s(job), worker)
    outer = work("outer step", cut.share.shape, options.outer_s, NONE)
    pull = moved("pull", job.workers, worker)
    for sources, targets, tokens in (
        (sent, push, 1),
        (push, update, 1),
        (update, outer[None], job.workers),
        (outer[None], pull, 1),
    ):
        b.edge(sources, targets)
        _once(b, targets, tokens)
    for label, ops in (("push", push), ("update", update), ("pull", pull)):
        b.probe(label, ops, ops, at_ready=True, group=worker)
    b.log("average", outer)
    return pull


def _once(b: GraphBuilder, ops: Ids, tokens: int) -> None:
    """Let each of ``ops`` run once per ``tokens`` tokens, instead of once per step."""
    for op in ops.ravel().tolist():
        b.every(op, tokens)
