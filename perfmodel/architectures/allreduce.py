"""All-reduce: workers sum their gradients among themselves, bucket by bucket, during backward."""

from __future__ import annotations

from typing import Literal

import msgspec
import numpy as np

from perfmodel.architectures import Architecture
from perfmodel.architectures._network import Network
from perfmodel.architectures._workers import add_optimizer, add_workers, stagger_s
from perfmodel.buckets import DDP_BUCKET_BYTES, DDP_FIRST_BUCKET_BYTES, ddp_buckets
from perfmodel.costs import ring_allreduce_bytes, ring_allreduce_steps
from perfmodel.errors import InputError, number, whole_number
from perfmodel.graph import Floats, GraphBuilder, Ids, OpGraph
from perfmodel.job import Job
from perfmodel.workload import Workload, expanded


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Options of all-reduce training; the registry entry below says what each means."""

    algorithm: Literal["ring"] = "ring"
    overlap: bool = True
    bucket_cap_bytes: float = DDP_BUCKET_BYTES
    first_bucket_bytes: float = DDP_FIRST_BUCKET_BYTES
    concurrent: int = 1
    each_send: bool = False
    reduce_per_byte_s: float = 0.0

    def __post_init__(self) -> None:
        number("bucket_cap_bytes", self.bucket_cap_bytes)
        number("first_bucket_bytes", self.first_bucket_bytes)
        whole_number("concurrent", self.concurrent)
        if self.each_send and self.concurrent > 1:
            raise InputError(
                "each_send: simulates one collective at a time, so concurrent must be 1"
            )
        number("reduce_per_byte_s", self.reduce_per_byte_s)


def buckets_of(workload: Workload, options: Options) -> tuple[list[float], list[int]]:
    """Bytes of each bucket, and the layer whose backward completes it, in the order they fill."""
    tensors = [
        (i, size)
        for i, layer in reversed(list(enumerate(expanded(workload).layers)))
        for size in layer.tensor_bytes
    ]
    groups = ddp_buckets(
        [size for _, size in tensors],
        cap_bytes=options.bucket_cap_bytes,
        first_cap_bytes=options.first_bucket_bytes,
    )
    sizes = [sum(tensors[t][1] for t in group) for group in groups]
    return sizes, [tensors[group[-1]][0] for group in groups]


def build(job: Job, *, fold: bool = False) -> OpGraph:
    """The op graph; with ``fold`` of the first worker, which stands for all of them."""
    options: Options = job.options
    b = GraphBuilder()
    workers = add_workers(b, job, first=1 if fold else None)
    optimizer = add_optimizer(b, job, workers)
    if job.workers > 1:
        sizes, last_layer = buckets_of(job.workload, options)
        ready = workers.backward[:, last_layer if options.overlap else [0] * len(sizes)]
        add = _add_sends if options.each_send else _add_collectives
        add(b, job, np.array(sizes), ready, optimizer, fold)
    if not fold:
        b.stagger(workers.forward[:, 0], stagger_s(job))
    counter = b.counters(optimizer)
    b.probe("staleness", optimizer, optimizer, lag=1, counter=counter, group=workers.index)
    return b.build(device=workers.device, mark=optimizer, count=job.workers if fold else 1)


def _add_collectives(
    b: GraphBuilder, job: Job, sizes: Floats, ready: Ids, optimizer: Ids, fold: bool
) -> None:
    """Every bucket as one transfer over all members' links, both ways at once."""
    options: Options = job.options
    nodes = sorted({job.cluster.node_of_worker(worker) for worker in range(job.workers)})
    network = Network(
        b, job.cluster, [f"node {node}" for node in nodes], core_share=len(nodes), fold=fold
    )
    moved = np.array([ring_allreduce_bytes(job.workers, size) for size in sizes])
    collective = b.ops(
        "all-reduce",
        (len(sizes),),
        bytes=moved,
        path=network.all_of(nodes),
        seconds=ring_allreduce_steps(job.workers) * network.hop_s(nodes)
        + moved / 2.0 * options.reduce_per_byte_s,
        slot=b.slots("communicator", (1,), capacity=options.concurrent),
        axes=(("bucket", None),),
    )
    b.edge(ready, np.broadcast_to(collective, ready.shape))
    b.edge(np.broadcast_to(collective, ready.shape), optimizer[:, None])
    b.probe("all-reduce", collective, collective, at_ready=True)


def _add_sends(
    b: GraphBuilder, job: Job, sizes: Floats, ready: Ids, optimizer: Ids, fold: bool
) -> None:
    """Every step of every bucket as a send from each worker to the next of the ring.

    A worker sends a part on once it has got it from the worker before, and added its own to it.
    """
    options: Options = job.options
    members = job.workers
    place = np.array([job.cluster.node_of_worker(worker) for worker in range(members)])
    nodes = sorted(set(place.tolist()))
    names = [f"node {node}" for node in nodes]
    network = Network(b, job.cluster, names, core_share=members if fold else 1, fold=fold)
    n, buckets = ready.shape
    steps = ring_allreduce_steps(members)
    node, following = place[:n], np.roll(place, -1)[:n]
    if fold:
        path, latency_s = network.around()[None], np.array([network.hop_s(nodes)])
    else:
        path, latency_s = network.path(node, following), network.latency_s(node, following)
    part = sizes / members
    adding = np.where(np.arange(steps) < members - 1, options.reduce_per_byte_s, 0.0)
    send = b.ops(
        "send",
        (n, buckets, steps),
        bytes=part[:, None],
        seconds=part[:, None] * adding,
        path=path[:, None, None],
        latency_s=latency_s[:, None, None],
        slot=b.slots("ring line of", (n,), place=node, axes=(("worker", None),))[:, None, None],
        group=np.arange(n)[:, None, None],
        axes=(("worker", None), ("bucket", None), ("step", None)),
    )
    # bucket after bucket: a worker's first step of one waits for its last of the one before
    in_order = send.reshape(n, buckets * steps)
    before = np.roll(in_order, 1, axis=0)  # what the worker before sends
    b.chain(in_order)
    b.edge(before[:, :-1], in_order[:, 1:])
    b.edge(ready, send[:, :, 0])
    b.edge(send[:, -1, -1], optimizer)
    b.edge(before[:, -1], optimizer)
    b.probe("all-reduce", send[:, :, 0], send[:, :, -1], at_ready=True)


def _fold(job: Job) -> OpGraph | None:
    """With each send simulated, workers that share a node differ in where they send to."""
    if job.options.each_send and job.cluster.node_of_worker(job.workers - 1) < job.workers - 1:
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
        "algorithm": "how the sum is made: ring",
        "overlap": "reduce a bucket as soon as all workers have filled it, during backward",
        "bucket_cap_bytes": "gradients are reduced in buckets of at least this size",
        "first_bucket_bytes": "size of the first bucket",
        "concurrent": "collectives at once: 1 for NCCL, 2 for gloo",
        "each_send": "simulate each send of the ring, to see a straggler inside a collective",
        "reduce_per_byte_s": "time to add one byte's worth of gradients",
    },
    assumptions=(
        "a ring moves 2(n-1)/n of the bytes over every member's link, both ways",
        "buckets are reduced in the order in which they fill",
        "the next forward pass starts after the optimizer, the optimizer after the last bucket",
    ),
    source="Patarasuk, Yuan, JPDC 69, 2009, doi 10.1016/j.jpdc.2008.09.002; "
    "Li et al., PVLDB 13(12), 2020, doi 10.14778/3415478.3415530",
    aliases={"ring": {"algorithm": "ring"}},
    fold=_fold,
)
