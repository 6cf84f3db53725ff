"""All-reduce: workers sum their gradients among themselves, bucket by bucket, during backward."""

from __future__ import annotations

import math
from typing import Literal

import msgspec
import numpy as np

from perfmodel import collectives, costs
from perfmodel.algebra import Quantity, maximum, minimum, where
from perfmodel.architectures import Architecture, Coarse
from perfmodel.architectures._collectives import Communicator, add_sends
from perfmodel.architectures._measured import Fastest, Rate, Use, measured_in, measured_notes
from perfmodel.architectures._members import Cost, Members
from perfmodel.architectures._messages import COMPRESSION_HELP, Compression, tensors_of
from perfmodel.architectures._network import Network
from perfmodel.architectures._rates import all_gather_rate, all_reduce_rate, closed
from perfmodel.architectures._reduction import (
    CHUNKS,
    REDUCTION_ASSUMPTIONS,
    REDUCTION_HELP,
    Algorithm,
    Reduction,
    all_gather_cost,
    all_reduce_cost,
    chosen,
    schedule_of,
)
from perfmodel.architectures._workers import (
    Workers,
    add_optimizer,
    add_workers,
    alike,
    left_out,
    stagger_s,
)
from perfmodel.buckets import (
    DDP_BUCKET_BYTES,
    DDP_FIRST_BUCKET_BYTES,
    HOROVOD_CYCLE_S,
    HOROVOD_THRESHOLD_BYTES,
    ddp_buckets,
    mg_wfbp_buckets,
)
from perfmodel.errors import InputError, number, whole_number
from perfmodel.graph import MOST_UNITS, Floats, GraphBuilder, Ids, OpGraph
from perfmodel.job import Job
from perfmodel.overlap import fused_wait_free, merged_wait_free, wait_free
from perfmodel.phases import Phase, Phases, Quantities, Whole
from perfmodel.workload import expanded

MOST_PARTS = 1_000_000
"""Messages of one iteration; more is taken for a slip of the keyboard."""


class Options(Compression, frozen=True, forbid_unknown_fields=True):
    """Options of all-reduce training; the registry entry below says what each means."""

    algorithm: Algorithm = "auto"
    chunks: int = CHUNKS
    reduce_per_byte_s: float = 0.0
    overlap: bool = True
    bucketing: Literal["ddp", "one", "layer", "horovod", "mg_wfbp"] = "ddp"
    bucket_cap_bytes: float = DDP_BUCKET_BYTES
    first_bucket_bytes: float = DDP_FIRST_BUCKET_BYTES
    fusion_cycle_s: float = HOROVOD_CYCLE_S
    fusion_threshold_bytes: float = HOROVOD_THRESHOLD_BYTES
    partition_bytes: float = math.inf
    priority: bool = False
    credit_bytes: float = 0.0
    cross_barrier: bool = False
    concurrent: int = 1
    each_send: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.reduction  # checks its own
        number("bucket_cap_bytes", self.bucket_cap_bytes)
        number("first_bucket_bytes", self.first_bucket_bytes)
        number("fusion_cycle_s", self.fusion_cycle_s, above=0.0)
        number("fusion_threshold_bytes", self.fusion_threshold_bytes)
        if self.partition_bytes != math.inf:
            number("partition_bytes", self.partition_bytes, above=0.0)
        number("credit_bytes", self.credit_bytes)
        whole_number("concurrent", self.concurrent)
        self._check_sends()
        self._check_fusion()
        self._check_sparse()
        if self.credit_bytes > 0.0 and self.concurrent > 1:
            raise InputError(
                "credit_bytes: says how much may be under way at once, so concurrent must be 1"
            )

    def _check_sends(self) -> None:
        if not self.each_send:
            return
        if self.concurrent > 1:
            raise InputError(
                "each_send: simulates one collective at a time, so concurrent must be 1"
            )
        if self.bucketing == "horovod":
            raise InputError("each_send: what is fused is not known before, so no horovod")
        for name in ("priority", "credit_bytes", "cross_barrier"):
            if getattr(self, name):
                raise InputError(f"{name}: with each_send, buckets go in the order they fill")

    def _check_fusion(self) -> None:
        if self.bucketing == "mg_wfbp" and not self.overlap:
            raise InputError("bucketing: mg_wfbp plans the overlap, so overlap must be true")
        if self.bucketing != "horovod":
            return
        for name in ("priority", "credit_bytes"):
            if getattr(self, name):
                raise InputError(f"{name}: horovod fuses what is ready, in the order it is ready")
        if self.partition_bytes != math.inf:
            raise InputError("partition_bytes: horovod fuses tensors, it does not cut them")
        if self.concurrent > 1:
            raise InputError("concurrent: horovod runs one fused collective at a time")

    def _check_sparse(self) -> None:
        if not self.sparse:
            return
        if self.algorithm not in ("auto", "ring"):
            raise InputError(
                f"algorithm: {self.compression} gradients are gathered round a ring (allowed: auto "
                "or ring)"
            )
        if self.reduce_per_byte_s > 0.0:
            raise InputError(
                f"reduce_per_byte_s: {self.compression} gradients are gathered, then added; "
                "give decode_per_byte_s"
            )

    @property
    def reduction(self) -> Reduction:
        """How the sum is made."""
        return Reduction(self.algorithm, self.chunks, self.reduce_per_byte_s)

    @property
    def unused(self) -> set[str]:
        """Options that have no effect, given the others."""
        ddp = {"bucket_cap_bytes", "first_bucket_bytes"}
        horovod = {"fusion_cycle_s", "fusion_threshold_bytes"}
        ordered = {"partition_bytes", "priority", "credit_bytes"}
        found = super().unused | self.reduction.unused
        found |= set() if self.bucketing == "ddp" else ddp
        found |= ordered | {"concurrent"} if self.bucketing == "horovod" else horovod
        found |= {"overlap"} if self.bucketing == "mg_wfbp" else set()
        found |= {"algorithm", "chunks", "reduce_per_byte_s"} if self.sparse else set()
        found |= {"concurrent"} if self.credit_bytes > 0.0 else set()
        if self.each_send:
            found |= {"priority", "credit_bytes", "cross_barrier", "concurrent"}
        return found


class Messages(msgspec.Struct, frozen=True, eq=False):
    """What is reduced together, in the order in which it is ready.

    ``bytes`` (messages,) of gradients, before compression; ``layer`` (messages,) is the layer whose
    backward completes it, of all in it the closest to the input. The layers in a message are given
    in pairs: ``message``, ``part_layer`` (pairs,).
    """

    bytes: Floats
    layer: Ids
    message: Ids
    part_layer: Ids


def messages_of(job: Job) -> Messages:
    """Group a workload's gradient tensors into messages, and cut those that are too large."""
    options: Options = job.options
    tensors = tensors_of(job.workload)
    groups = _groups(job, tensors.layer.tolist(), tensors.bytes.tolist())
    sizes = np.array([sum(tensors.bytes[i] for i in group) for group in groups])
    parts = np.maximum(np.ceil(sizes / options.partition_bytes), 1.0)
    if parts.sum() > MOST_PARTS:
        raise InputError(
            f"partition_bytes: {options.partition_bytes:g} cuts the gradients into "
            f"{parts.sum():.0f} parts (at most {MOST_PARTS})"
        )
    pieces = np.repeat(np.arange(len(groups)), parts.astype(np.int64))
    layers = [np.unique(tensors.layer[group]) for group in groups]
    count = np.array([len(found) for found in layers])
    return Messages(
        bytes=(sizes / parts)[pieces],
        layer=np.array([found[0] for found in layers])[pieces],
        message=np.repeat(np.arange(len(pieces)), count[pieces]),
        part_layer=np.concatenate([layers[piece] for piece in pieces.tolist()]),
    )


def _groups(job: Job, layer: list[int], sizes: list[float]) -> list[list[int]]:
    """Indices of the tensors in each message; ``layer`` and ``sizes`` are those of the tensors."""
    options: Options = job.options
    of_layer: dict[int, list[int]] = {}
    for tensor, index in enumerate(layer):
        of_layer.setdefault(index, []).append(tensor)
    by_layer = list(of_layer.values())
    match options.bucketing:
        case "ddp":
            return ddp_buckets(
                sizes,
                cap_bytes=options.bucket_cap_bytes,
                first_cap_bytes=options.first_bucket_bytes,
            )
        case "one":
            return [list(range(len(sizes)))]
        case "layer":
            return by_layer
        case "horovod":
            return [[index] for index in range(len(sizes))]
        case "mg_wfbp":
            return _merged(job, by_layer, layer, sizes)


def _merged(
    job: Job, by_layer: list[list[int]], layer: list[int], sizes: list[float]
) -> list[list[int]]:
    """Layers merged for what a collective costs here, and the times of backward as profiled."""
    if job.workers == 1:
        return by_layer
    options: Options = job.options
    backward = np.array([a.backward_s for a in expanded(job.workload).layers])
    ready_s = np.cumsum(backward[::-1])[::-1]
    dense = np.array([sum(sizes[t] for t in tensors) for tensors in by_layer])
    sent = options.sent_bytes(dense)
    startup_s, whole_s = _cost(job, np.array([0.0, sent.sum()])).seconds.tolist()
    merged = mg_wfbp_buckets(
        [float(ready_s[layer[tensors[0]]]) for tensors in by_layer],
        sent.tolist(),
        startup_s=startup_s,
        per_byte_s=(whole_s - startup_s) / float(sent.sum()),
    )
    return [[t for i in group for t in by_layer[i]] for group in merged]


def _cost(job: Job, sent: Floats) -> Cost:
    """What it costs to sum gradients of which each worker has ``sent`` bytes, (sizes,)."""
    options: Options = job.options
    members = Members.of(job.cluster, job.workers)
    if options.sparse:
        return all_gather_cost(members, job.workers * sent)
    return all_reduce_cost(members, sent, _reduction(job, members))


def _reduction(job: Job, members: Members) -> Reduction:
    """How the sum is made: one algorithm for all messages where these are not known before, are
    planned, or are simulated send by send."""
    options: Options = job.options
    largest = _largest_bytes(options, job.workload.gradient_bytes)
    if options.each_send and largest is None:
        largest = float(options.sent_bytes(messages_of(job).bytes).max())
    return options.reduction if largest is None else chosen(members, options.reduction, largest)


def _largest_bytes(options: Options, gradient_bytes: Quantity) -> Quantity | None:
    """The size of message by which one algorithm is chosen for all; None if each has its own."""
    match options.bucketing:
        case "mg_wfbp":
            return options.sent_share * gradient_bytes
        case "horovod":
            sent = options.sent_share * gradient_bytes
            return minimum(sent, maximum(options.fusion_threshold_bytes, 1.0))
        case _:
            return None


class End(msgspec.Struct, frozen=True, eq=False):
    """What waits for messages, and what ends an iteration.

    Attributes
    ----------
    waiting : ops that wait for messages, (workers, ends).
    updates : ops that update parameters, (workers, updates).
    mark : the last op of an iteration on each device, (workers,).
    message, column : message ``message[k]`` is needed by end ``column[k]``, (pairs,).
    """

    waiting: Ids
    updates: Ids
    mark: Ids
    message: Ids
    column: Ids

    def follow(self, b: GraphBuilder, done: Ids) -> None:
        """Let the ends wait for the op that ends each message, (messages,)."""
        after = self.waiting[:, self.column]
        b.edge(np.broadcast_to(done[self.message], after.shape), after)


def _decode_per_byte_s(options: Options, workers: Quantity) -> Quantity:
    """Time of a device to decompress what it received for a byte of gradients."""
    return options.decode_per_byte_s * (workers - 1 if options.sparse else 1)


def _at_once(b: GraphBuilder, job: Job, workers: Workers, messages: Messages) -> End:
    """One optimizer step of each worker, after all messages; before it they are decompressed."""
    optimizer = waiting = add_optimizer(b, job, workers)
    decode_s = _decode_per_byte_s(job.options, job.workers) * job.workload.gradient_bytes
    if decode_s > 0.0 and job.workers > 1:
        waiting = workers.compute(b, "decode", decode_s)
        b.edge(workers.backward[:, 0], waiting)
        b.edge(waiting, optimizer)
    index = np.arange(len(messages.bytes))
    return End(waiting[:, None], optimizer[:, None], optimizer, index, np.zeros_like(index))


def _by_layer(b: GraphBuilder, job: Job, workers: Workers, messages: Messages) -> End:
    """An update of each layer once it has been reduced; the next forward of a layer waits for it
    alone."""
    layers, column = np.unique(messages.part_layer, return_inverse=True)
    dense = np.array([sum(a.tensor_bytes) for a in expanded(job.workload).layers])[layers]
    decode_per_byte_s = _decode_per_byte_s(job.options, job.workers)
    seconds = job.workload.optimizer_s * dense / dense.sum() + decode_per_byte_s * dense
    names = [workers.layer_names[i] for i in layers.tolist()]
    update = workers.compute(b, "update", seconds, names=names)
    b.edge(update, workers.forward[:, layers], lag=1)
    b.edge(workers.backward[:, 0], workers.forward[:, 0], lag=1)
    return End(update, update, workers.backward[:, 0], messages.message, column)


def build(job: Job, *, fold: bool = False) -> OpGraph:
    """The op graph; with ``fold`` of the first worker, which stands for all of them."""
    options: Options = job.options
    b = GraphBuilder()
    workers = add_workers(b, job, first=1 if fold else None)
    messages = messages_of(job)
    alone = job.workers == 1
    finish = _by_layer if options.cross_barrier and not alone else _at_once
    end = finish(b, job, workers, messages)
    if not alone:
        dense = np.array([sum(a.tensor_bytes) for a in expanded(job.workload).layers])
        made = options.encoded(b, workers, dense)
        ready = made[:, messages.layer if options.overlap else np.zeros_like(messages.layer)]
        if options.each_send:
            _add_sends(b, job, messages, ready, end, fold)
        elif options.bucketing == "horovod":
            _add_fused(b, job, messages, ready, end, fold)
        else:
            _add_collectives(b, job, messages, ready, end, fold)
    if not fold:
        b.stagger(workers.forward[:, 0], stagger_s(job))
    counter = b.counters(end.updates.ravel()).reshape(end.updates.shape)
    group = workers.index[:, None]
    b.probe("staleness", end.updates, end.updates, lag=1, counter=counter, group=group)
    return b.build(device=workers.device, mark=end.mark, count=job.workers if fold else 1)


def _add_collectives(
    b: GraphBuilder, job: Job, messages: Messages, ready: Ids, end: End, fold: bool
) -> None:
    """Every message as one transfer over all members' links, both ways at once."""
    options: Options = job.options
    sent = options.sent_bytes(messages.bytes)
    cost = _cost(job, sent)
    credit = max(int(min(options.credit_bytes, MOST_UNITS)), 1)
    by_bytes = options.credit_bytes > 0.0
    members = Members.of(job.cluster, job.workers)
    communicator = Communicator(
        b,
        job,
        members,
        capacity=credit if by_bytes else options.concurrent,
        symmetric=fold and cost.symmetric(members.fabric),
    )
    collective = communicator.add(
        "all-gather" if options.sparse else "all-reduce",
        cost,
        axis="bucket",
        priority=messages.layer if options.priority else 0,
        units=np.clip(np.ceil(sent), 1, credit).astype(np.int64) if by_bytes else 1,
    )
    b.edge(ready, np.broadcast_to(collective, ready.shape))
    end.follow(b, collective)
    b.probe("all-reduce", collective, collective, at_ready=True)


def _add_fused(
    b: GraphBuilder, job: Job, messages: Messages, ready: Ids, end: End, fold: bool
) -> None:
    """One op that reduces, at each tick, the tensors that are ready on all workers together."""
    options: Options = job.options
    sent = options.sent_bytes(messages.bytes)
    nothing, whole = np.zeros(1), sent.sum(keepdims=True)
    startup, cost = _cost(job, nothing), _cost(job, whole)
    # bytes to come are not known: all that takes time in proportion to them slows the transfer
    cost = msgspec.structs.replace(
        cost, startup_s=startup.seconds, transfer_s=cost.seconds - startup.seconds
    )
    members = Members.of(job.cluster, job.workers)
    alike = cost.symmetric(members.fabric)
    communicator = Communicator(b, job, members, symmetric=fold and alike)
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


def _add_sends(
    b: GraphBuilder, job: Job, messages: Messages, ready: Ids, end: End, fold: bool
) -> None:
    """Every send of every message as an op of its own."""
    options: Options = job.options
    sent = options.sent_bytes(messages.bytes)
    members, after = Members.of(job.cluster, job.workers), end.waiting[:, 0]
    if options.sparse:
        schedule = collectives.ring_all_gather(job.workers)
    else:
        reduction = _reduction(job, members)
        if reduction.by_measurements:  # a ring, if not as measured
            _add_ring_sends(b, job, sent, ready, after, fold)
            return
        schedule = schedule_of(members, reduction)
    add_sends(b, job, schedule, sent, ready, after, reduce_per_byte_s=options.reduce_per_byte_s)


def _add_ring_sends(
    b: GraphBuilder, job: Job, sizes: Floats, ready: Ids, after: Ids, fold: bool
) -> None:
    """Every step of every bucket as a send from each worker to the next of the ring.

    A worker sends a part on once it has got it from the worker before, and added its own to it.
    Where there are several rings each has an equal part of the bytes.
    """
    options: Options = job.options
    members = job.workers
    network = Network(b, job, fold=fold, core_share=members if fold else 1)
    rings = network.fabric.rings(members)
    n, buckets = ready.shape
    steps = costs.ring_allreduce_steps(members)
    part = sizes / members / len(rings)
    adding = np.where(np.arange(steps) < members - 1, options.reduce_per_byte_s, 0.0)
    for index, ring in enumerate(rings):
        following = np.empty(members, np.int64)
        following[ring] = np.roll(ring, -1)
        worker, of = np.arange(n), f"ring {index} " if len(rings) > 1 else ""
        node = network.fabric.place[worker]
        line = b.slots(f"{of}ring line of".strip(), (n,), place=node, axes=(("worker", None),))
        send = b.ops(
            f"{of}send",
            (n, buckets, steps),
            bytes=part[:, None],
            seconds=part[:, None] * adding,
            path=network.path(worker, following[:n])[:, None, None],
            latency_s=network.latency_s(worker, following[:n])[:, None, None],
            slot=line[:, None, None],
            group=worker[:, None, None],
            axes=(("worker", None), ("bucket", None), ("step", None)),
        )
        # bucket after bucket: a worker's first step of one waits for its last of the one before
        in_order = send.reshape(n, buckets * steps)
        before = np.empty_like(in_order)  # what the worker before sends
        before[following[:n] if n == members else worker] = in_order
        b.chain(in_order)
        b.edge(before[:, :-1], in_order[:, 1:])
        b.edge(ready, send[:, :, 0])
        b.edge(send[:, -1, -1], after)
        b.edge(before[:, -1], after)
        b.probe("all-reduce", send[:, :, 0], send[:, :, -1], at_ready=True)


def _rate(job: Job, q: Quantities) -> Rate | Fastest:
    """What it takes to sum gradients, by the bytes of one worker's before compression."""
    options: Options = job.options
    sent = options.sent_share
    if options.each_send:  # every send takes what it takes, whatever was measured
        q = msgspec.structs.replace(q, collectives=())
    if options.sparse:
        return all_gather_rate(q).sent(q.workers * sent)
    rate = all_reduce_rate(job, q, options.reduction)
    largest = _largest_bytes(options, q.gradient_bytes)
    return (rate if largest is None else rate.at(largest)).sent(sent, at_once=options.concurrent)


def phases(job: Job, q: Quantities) -> Phases:
    """Computation, and what of the collectives it does not hide."""
    return q.at_paces(lambda late: _phases(job, q, late))


def _phases(job: Job, q: Quantities, late: Quantity) -> Phases:
    """The same where the slowest worker computes ``late`` times as long as the mean one."""
    options: Options = job.options
    rate, alone = _rate(job, q), q.workers <= 1
    if isinstance(q.layers, Whole):
        shares, numbers = [1.0], [0]
    else:
        shares, numbers = q.layers.once(("messages", job.options), lambda: _shares(job))
    sizes = [q.gradient_bytes * share for share in shares]
    seconds = [rate.seconds(size) for size in sizes]
    line = rate.chord(q.gradient_bytes)
    figures = {"startup_s": line.startup_s, "per_byte_s": line.per_byte_s}

    def send(ready_s: list[Quantity]) -> Quantity:
        match options.bucketing:
            case "mg_wfbp":
                return merged_wait_free(ready_s, sizes, **figures)
            case "horovod":
                return fused_wait_free(
                    ready_s, sizes, **figures,
                    cycle_s=options.fusion_cycle_s, cap_bytes=options.fusion_threshold_bytes,
                )  # fmt: skip
            case _:
                return wait_free(ready_s, seconds)

    encode_per_byte_s = options.encode_per_byte_s * q.slowdown
    computed, end = q.layers.overlapped_s(
        q.scale * late, send, numbers, encode_per_byte_s=encode_per_byte_s * late
    )
    if not options.overlap:
        end = send([computed for _ in sizes])
    compute = q.forward_s + q.backward_s + q.optimizer_s
    exposed = end - computed
    if options.cross_barrier and options.priority:
        # the first layer is reduced as soon as it is ready, and nothing can hide that
        exposed = maximum(seconds[-1], sum(seconds) - compute * late)
    decode_per_byte_s = _decode_per_byte_s(options, q.workers) * q.slowdown
    compress = where(alone, 0.0, (encode_per_byte_s + decode_per_byte_s) * q.gradient_bytes)
    parts = {
        "compute": Phase(compute, "compute"),
        "wait for the slowest": Phase((compute + compress) * (late - 1.0), "straggler"),
        "compress": Phase(compress, "compute"),
        "all-reduce": Phase(where(alone, 0.0, exposed), "network"),
    }
    used = Use()
    for size in sizes:
        used = used.plus(rate.busy(size))
    return Phases(parts=parts, busy_s=used.by_link(job), updates=1.0 / q.workers)


def _operation(options: Options) -> str:
    return "all_gather" if options.sparse else "all_reduce"


def notes(job: Job) -> tuple[str, ...]:
    """Where a job goes beyond the collectives that its cluster has measured."""
    options: Options = job.options
    operation = _operation(options)
    if job.workers == 1 or not options.reduction.by_measurements:
        return ()
    if measured_in(job.cluster.collectives, operation) is None:
        return ()
    if options.each_send:
        return (f"each_send: every send is simulated, and the measured {operation} is left out",)
    messages = options.sent_bytes(messages_of(job).bytes)
    return measured_notes(job, {operation: messages * (job.workers if options.sparse else 1)})


def exact(job: Job) -> bool:
    """Whether the coarse model equals the simulation."""
    options: Options = job.options
    in_order = not (options.cross_barrier or options.each_send or options.credit_bytes > 0.0)
    one_by_one = options.concurrent == 1 and options.bucketing != "horovod"
    # the simulation merges layers by the times of backward alone, and then cuts what is merged
    # with times that are linear in the size
    same = options.partition_bytes == math.inf and options.encode_per_byte_s == 0.0
    same = same and measured_in(job.cluster.collectives, _operation(options)) is None
    as_planned = options.bucketing != "mg_wfbp" or same
    known = one_by_one and as_planned and closed(job, options.reduction)
    data = job.workload.data_loading_s == 0.0
    return in_order and known and data and alike(job) and leaves_out(job) is None


def leaves_out(job: Job) -> str | None:
    """What a job has that the coarse model does not."""
    return left_out(job, core=False)


def _shares(job: Job) -> tuple[list[float], list[int]]:
    """Each message's part of all bytes, and the layer that completes it."""
    messages = messages_of(msgspec.structs.replace(job, options=_unmerged(job.options)))
    return (messages.bytes / messages.bytes.sum()).tolist(), messages.layer.tolist()


def _unmerged(options: Options) -> Options:
    """The options with each layer on its own, where the coarse model merges by itself."""
    if options.bucketing != "mg_wfbp":
        return options
    return msgspec.structs.replace(options, bucketing="layer", overlap=True)


def _fold(job: Job) -> OpGraph | None:
    """With each send simulated, one worker can stand for all only in a ring of one worker a node:
    those that share a node, and members of a tree, differ in where they send to."""
    options: Options = job.options
    if options.each_send:
        shared = job.cluster.node_of_worker(job.workers - 1) < job.workers - 1
        members = Members.of(job.cluster, job.workers)
        if shared or options.sparse or _reduction(job, members).algorithm != "ring":
            return None
    return build(job, fold=True)


ARCHITECTURE = Architecture(
    name="allreduce",
    title="all-reduce (synchronous, no server)",
    options=Options,
    build=build,
    asynchronous=lambda options: False,
    server_bytes=None,
    option_help={
        "algorithm": REDUCTION_HELP["algorithm"],
        "chunks": REDUCTION_HELP["chunks"],
        "overlap": "reduce a bucket as soon as all workers have filled it, during backward",
        "bucketing": "what is reduced together: ddp (buckets of a size), one (everything), layer, "
        "horovod (what is ready at a tick) or mg_wfbp (merged where that is faster)",
        "bucket_cap_bytes": "with bucketing=ddp, buckets are of at least this size",
        "first_bucket_bytes": "with bucketing=ddp, size of the first bucket",
        "fusion_cycle_s": "with bucketing=horovod, time between ticks",
        "fusion_threshold_bytes": "with bucketing=horovod, the most that is fused; 0: no fusion",
        "partition_bytes": "larger buckets are cut into parts of at most this size",
        "priority": "of the buckets that wait, the one closest to the input goes first",
        "credit_bytes": "bytes of gradients that may be under way at once; 0: as concurrent says",
        "cross_barrier": "a layer's next forward waits for its own update only",
        "concurrent": "collectives at once: 1 for NCCL, 2 for gloo",
        "each_send": "simulate each send, to see a straggler inside a collective",
        "reduce_per_byte_s": REDUCTION_HELP["reduce_per_byte_s"],
        **COMPRESSION_HELP,
    },
    assumptions=(
        *REDUCTION_ASSUMPTIONS,
        "buckets are reduced in the order in which they fill, unless priorities say otherwise",
        "the next forward pass starts after the optimizer, the optimizer after the last bucket; "
        "with cross_barrier each layer has an update of its own, whose part of the optimizer's "
        "time is that of its bytes",
        "copying tensors into and out of a fused message, and agreeing on what is ready, take no "
        "time",
        "sparse gradients are gathered, not summed on the way: everybody receives those of all "
        "others; quantised ones are summed as they are",
    ),
    source="Patarasuk, Yuan, JPDC 69, 2009, doi 10.1016/j.jpdc.2008.09.002; "
    "Thakur, Rabenseifner, Gropp, IJHPCA 19(1), 2005, doi 10.1177/1094342005051521; "
    "Sanders, Speck, Träff, Parallel Computing 35(12), 2009, doi 10.1016/j.parco.2009.09.001; "
    "Li et al., PVLDB 13(12), 2020, doi 10.14778/3415478.3415530; "
    "Shi, Chu, Li, INFOCOM 2019, doi 10.1109/INFOCOM.2019.8737367; "
    "Peng et al. (ByteScheduler), SOSP 2019, doi 10.1145/3341301.3359642",
    aliases={"ring": {"algorithm": "ring"}, "ar_sgd": {"algorithm": "ring"}},
    fold=_fold,
    notes=notes,
    unused=lambda options: options.unused,
    coarse=Coarse(phases=phases, exact=exact, leaves_out=leaves_out),
)
