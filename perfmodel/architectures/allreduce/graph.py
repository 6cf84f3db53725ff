"""All-reduce: workers sum their gradients among themselves, bucket by bucket, during backward."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from perfmodel.architectures.allreduce.messages import (
    Messages,
    broadcast_bytes,
    chunks_of,
    cost_of,
    messages_of,
    reduction_of,
)
from perfmodel.architectures.allreduce.options import Options, decode_per_byte_s_of
from perfmodel.base.arrays import Floats, Ids
from perfmodel.communication import schedules
from perfmodel.communication.communicator import Communicator, add_sends
from perfmodel.communication.costs import Cost, LinkCosts
from perfmodel.communication.members import Members, schedule_of
from perfmodel.communication.network import Network
from perfmodel.graph.builder import GraphBuilder
from perfmodel.graph.op_graph import ADDING, MOST_UNITS, Axis, OpGraph
from perfmodel.inputs.job import Job
from perfmodel.inputs.workload import expanded
from perfmodel.theory import collective_times
from perfmodel.training.workers import (
    FOLDED,
    Workers,
    add_optimizer,
    add_passes,
    log_steps,
    stagger_s,
)


class End(msgspec.Struct, frozen=True, eq=False):
    """Ops that wait for messages, and that end an iteration.

    Attributes
    ----------
    waiting : ops that wait for messages, (workers, ends).
    updates : ops that update parameters, (workers, updates).
    mark : the last op of an iteration on each device, (workers,).
    message, column : end ``column[k]`` needs message ``message[k]``, (pairs,).
    returns : in a pipeline with DistributedDataParallel, the ops that end the backward pass to
        which each message belongs, (workers, messages): it returns once they are reduced.
    """

    waiting: Ids
    updates: Ids
    mark: Ids
    message: Ids
    column: Ids
    returns: Ids | None = None

    def follow(self, b: GraphBuilder, done: Ids) -> None:
        """Make the ends wait for the op that ends each message, (messages,)."""
        after = self.waiting[:, self.column]
        b.edge(np.broadcast_to(done[self.message], after.shape), after)
        if self.returns is not None:
            b.edge(np.broadcast_to(done, self.returns.shape), self.returns)


class PassMessages(NamedTuple):
    """The messages of a pass: the ops that complete them (workers, messages), their end, and the
    name of the pass, if an update has several."""

    ready: Ids
    end: End
    axes: tuple[Axis, ...]


def _at_once(b: GraphBuilder, job: Job, passes: Sequence[Workers], messages: Messages) -> End:
    """Add one optimizer step per worker, after all messages have been decompressed."""
    workers = passes[-1]
    first, last = add_optimizer(b, job, workers, passes[0])
    waiting = _decoded(b, job, workers, first)
    index = np.arange(len(messages.bytes))
    return End(waiting[:, None], last[:, None], last, index, np.zeros_like(index))


def _between(
    b: GraphBuilder, job: Job, workers: Workers, later: Workers, messages: Messages
) -> End:
    """Add the end of a pass before the last one, after all messages have been decompressed."""
    ended = b.ops(
        "gradients reduced",
        (1, len(workers.node)),
        group=workers.index,
        axes=(*workers.axes, ("worker", None)),
    ).ravel()
    b.edge(workers.backward[:, 0], ended)
    b.edge(ended, later.forward[:, 0])
    waiting = _decoded(b, job, workers, ended)
    index = np.arange(len(messages.bytes))
    return End(waiting[:, None], ended[:, None], ended, index, np.zeros_like(index))


def _decoded(b: GraphBuilder, job: Job, workers: Workers, after: Ids) -> Ids:
    """Return what waits for messages: their decompression, if it takes time, or ``after``."""
    decode_s = decode_per_byte_s_of(Options.of(job), job.workers) * job.workload.gradient_bytes
    if decode_s == 0.0 or job.workers == 1:
        return after
    waiting = workers.compute(b, "decode", decode_s)
    b.edge(workers.backward[:, 0], waiting)
    b.edge(waiting, after)
    return waiting


def _by_layer(b: GraphBuilder, job: Job, passes: Sequence[Workers], messages: Messages) -> End:
    """Add an update of each layer once it has been reduced. A layer's next forward pass waits only
    for its own update."""
    (workers,) = passes
    layers, column = np.unique(messages.part_layer, return_inverse=True)
    dense = np.array([sum(a.tensor_bytes) for a in expanded(job.workload).layers])[layers]
    decode_per_byte_s = decode_per_byte_s_of(Options.of(job), job.workers)
    seconds = job.device_work.optimizer_s * dense / dense.sum() + decode_per_byte_s * dense
    names = [workers.layer_names[i] for i in layers.tolist()]
    update = workers.compute(b, "update", seconds, names=names)
    b.edge(update, workers.forward[:, layers], lag=1)
    b.edge(workers.backward[:, 0], workers.forward[:, 0], lag=1)
    return End(update, update, workers.backward[:, 0], messages.message, column)


def build(job: Job, *, fold: bool = False) -> OpGraph:
    """Build the op graph; with ``fold``, of the first worker only, which represents all."""
    options = Options.of(job)
    b = GraphBuilder()
    alone = job.workers == 1
    reduced = [True] * (1 if alone else job.reductions)
    passes = add_passes(b, job, reduced, some=FOLDED if fold else None)
    workers = passes[0]
    messages = messages_of(job)
    finish = _by_layer if options.cross_barrier and not alone else _at_once
    end = finish(b, job, passes, messages)
    torch = job.stage is not None and job.stage.replica.asks_as_torch
    if workers.returns is not None and torch and options.holds_backward:
        returns = workers.returns[:, chunks_of(job, messages)]
        end = msgspec.structs.replace(end, returns=returns)
    if not alone:
        ends = [*(_between(b, job, *pair, messages) for pair in itertools.pairwise(passes)), end]
        dense = np.array([sum(a.tensor_bytes) for a in expanded(job.workload).layers])
        exchanges = [
            PassMessages(_ready(options, options.encoded(b, one, dense), messages), last, one.axes)
            for one, last in zip(passes, ends, strict=True)
        ]
        add = _add_fused if options.bucketing == "horovod" else _add_collectives
        add = _add_sends if options.each_send else add
        network, slot = add(b, job, messages, exchanges, fold)
        if broadcast_bytes(job) > 0.0:
            _add_broadcasts(b, job, passes, ends, Communicator(b, network, slot=slot))
    if not fold:
        b.stagger(workers.forward[:, 0], stagger_s(job))
    counter = b.counters(end.updates.ravel()).reshape(end.updates.shape)
    group = workers.index[:, None]
    b.probe("staleness", end.updates, end.updates, lag=1, counter=counter, group=group)
    log_steps(b, workers, central=True)
    b.log("update", end.updates)
    return b.build(device=workers.device, mark=end.mark, count=job.workers if fold else 1)


def _ready(options: Options, made: Ids, messages: Messages) -> Ids:
    """Return the ops that complete each message, (workers, messages)."""
    return made[:, messages.layer if options.overlap else np.zeros_like(messages.layer)]


def slices(job: Job) -> list[float]:
    """Return the bytes of the slices that are updated one by one: all or, with cross_barrier, each
    layer."""
    if not Options.of(job).cross_barrier or job.workers == 1:
        return [float(job.workload.gradient_bytes)]
    layers = np.unique(messages_of(job).part_layer)
    return [sum(expanded(job.workload).layers[k].tensor_bytes) for k in layers.tolist()]


def _add_collectives(
    b: GraphBuilder, job: Job, messages: Messages, exchanges: Sequence[PassMessages], fold: bool
) -> tuple[Network, Ids | None]:
    """Add every message as one transfer over all members' links, in both directions at once."""
    options = Options.of(job)
    sent = options.sent_bytes(messages.bytes)
    cost = cost_of(job, sent)
    credit = max(int(min(options.credit_bytes, MOST_UNITS)), 1)
    by_bytes = options.credit_bytes > 0.0
    members = Members.of(job.cluster, job.workers)
    network = _network(b, job, cost, members, fold)
    capacity = credit if by_bytes else options.concurrent
    communicator = Communicator(b, network, capacity=capacity)
    for ready, end, axes in exchanges:
        collective = communicator.add(
            "all-gather" if options.sparse else "all-reduce",
            cost,
            axis="bucket",
            among=axes,
            priority=messages.layer if options.priority else 0,
            units=np.clip(np.ceil(sent), 1, credit).astype(np.int64) if by_bytes else 1,
        )
        b.edge(ready, np.broadcast_to(collective, ready.shape))
        end.follow(b, collective)
        b.probe("all-reduce", collective, collective, at_ready=True)
    return network, communicator.slot


def _network(b: GraphBuilder, job: Job, cost: Cost, members: Members, fold: bool) -> Network:
    """Add the links. With ``fold`` the first node stands for all if all links carry the same, which
    is not so in a broadcast."""
    alike = cost.symmetric(members.fabric) and broadcast_bytes(job) == 0.0
    return Network(b, job, fold=fold and alike)


def _add_broadcasts(
    b: GraphBuilder,
    job: Job,
    passes: Sequence[Workers],
    ends: Sequence[End],
    communicator: Communicator,
) -> None:
    """Broadcast the buffers from worker 0 as it begins a pass, after the end of the one before; all
    forward passes wait for them."""
    members = Members.of(job.cluster, job.workers)
    cost = LinkCosts(members, np.array([broadcast_bytes(job)])).cost("broadcast")
    for number, workers in enumerate(passes):
        sent = communicator.add("broadcast", cost, axis="buffers", among=workers.axes)
        b.edge(ends[number - 1].mark[:1], sent, lag=0 if number else 1)
        if workers.loading is not None:
            b.edge(workers.loading[:1], sent)
        b.edge(np.broadcast_to(sent, len(workers.forward)), workers.forward[:, 0])


def _add_fused(
    b: GraphBuilder, job: Job, messages: Messages, exchanges: Sequence[PassMessages], fold: bool
) -> tuple[Network, Ids | None]:
    """Add an op that reduces, at each tick, all tensors that are ready on all workers."""
    options, (one,) = Options.of(job), exchanges
    ready, end = one.ready, one.end
    sent = options.sent_bytes(messages.bytes)
    nothing, whole = np.zeros(1), sent.sum(keepdims=True)
    startup, cost = cost_of(job, nothing), cost_of(job, whole)
    # sizes are not known in advance: all costs per byte are part of the transfer
    cost = msgspec.structs.replace(
        cost, startup_s=startup.seconds, transfer_s=cost.seconds - startup.seconds, adding_s=0.0
    )
    members = Members.of(job.cluster, job.workers)
    network = _network(b, job, cost, members, fold)
    communicator = Communicator(b, network)
    axes = (("tensor", None),)
    made = b.ops("gradient ready", sent.shape, axes=axes)
    reduced = b.ops("gradient reduced", sent.shape, axes=axes)
    fused = communicator.add("fused all-reduce", cost, axis="batch")
    scale = float(cost.bytes[0] / whole[0])
    b.edge(ready, np.broadcast_to(made, ready.shape))
    b.batch(
        int(fused[0]),
        made,
        reduced,
        sent * scale,
        cycle_s=options.fusion_cycle_s,
        cap_bytes=options.fusion_threshold_bytes * scale,
    )
    end.follow(b, reduced)
    b.probe("all-reduce", made, reduced)
    return network, communicator.slot


def _add_sends(
    b: GraphBuilder, job: Job, messages: Messages, exchanges: Sequence[PassMessages], fold: bool
) -> tuple[Network, Ids | None]:
    """Add every send of every message as its own op."""
    options = Options.of(job)
    sent = options.sent_bytes(messages.bytes)
    members = Members.of(job.cluster, job.workers)
    network = Network(b, job, fold=fold, core_share=job.workers if fold else 1)
    if options.sparse:
        schedule = schedules.ring_all_gather(job.workers)
        schedule = schedule.among(members.fabric.by_site(members.ends[0]))
    else:
        reduction = reduction_of(job, members)
        if reduction.by_measurements:  # a ring, as measured collectives do not apply here
            for ready, end, _ in exchanges:
                _add_ring_sends(b, job, network, sent, ready, end.waiting[:, 0])
            return network, None
        schedule = schedule_of(members, reduction)
    gamma = options.reduce_per_byte_s
    for ready, end, _ in exchanges:
        after = end.waiting[:, 0]
        add_sends(b, network, schedule, sent, ready, after, reduce_per_byte_s=gamma)
    return network, None


def _add_ring_sends(
    b: GraphBuilder, job: Job, network: Network, sizes: Floats, ready: Ids, after: Ids
) -> None:
    """Add every step of every bucket as a send from each worker to the next on the ring.

    A worker forwards a part once it has received it from the previous worker and added its own. If
    there are several rings, each carries an equal share of the bytes.
    """
    options = Options.of(job)
    members = job.workers
    rings = network.fabric.rings(np.arange(members))
    n, buckets = ready.shape
    steps = int(collective_times.ring_allreduce_steps(members))
    part = sizes / members / len(rings)
    adding = np.where(np.arange(steps) < members - 1, options.reduce_per_byte_s, 0.0)
    adding_s = part[:, None] * adding
    for index, ring in enumerate(rings):
        following = np.empty(members, np.int64)
        following[ring] = np.roll(ring, -1)
        worker, of = np.arange(n), f"ring {index} " if len(rings) > 1 else ""
        node = network.fabric.place[worker]
        line = b.slots(f"{of or 'ring '}line of", (n,), place=node, axes=(("worker", None),))
        send = b.ops(
            f"{of}send",
            (n, buckets, steps),
            bytes=part[:, None],
            seconds=adding_s,
            spent={ADDING: adding_s},
            **network.between(worker[:, None, None], following[:n, None, None]),
            slot=line[:, None, None],
            group=worker[:, None, None],
            axes=(("worker", None), ("bucket", None), ("step", None)),
        )
        # bucket by bucket: a worker's first step of a bucket waits for its last of the previous one
        in_order = send.reshape(n, buckets * steps)
        before = np.empty_like(in_order)  # sends of the previous worker
        before[following[:n] if n == members else worker] = in_order
        if network.fabric.between is None:  # over long links the next part is sent meanwhile
            b.chain(in_order)
        b.edge(before[:, :-1], in_order[:, 1:])
        b.edge(ready, send[:, :, 0])
        b.edge(send[:, -1, -1], after)
        b.edge(before[:, -1], after)
        b.probe("all-reduce", send[:, :, 0], send[:, :, -1], at_ready=True)
