"""All-reduce: workers sum their gradients among themselves, bucket by bucket, during backward."""

from __future__ import annotations

from typing import Literal

import msgspec
import numpy as np

from perfmodel.architectures import Architecture
from perfmodel.architectures._parts import Network, add_workers, stagger_s
from perfmodel.buckets import DDP_BUCKET_BYTES, DDP_FIRST_BUCKET_BYTES, ddp_buckets
from perfmodel.costs import ring_allreduce_bytes, ring_allreduce_steps
from perfmodel.errors import number, whole_number
from perfmodel.graph import GraphBuilder, OpGraph
from perfmodel.job import Job
from perfmodel.workload import Workload, expanded


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Options of all-reduce training; the registry entry below says what each means."""

    algorithm: Literal["ring"] = "ring"
    overlap: bool = True
    bucket_cap_bytes: float = DDP_BUCKET_BYTES
    first_bucket_bytes: float = DDP_FIRST_BUCKET_BYTES
    concurrent: int = 1
    reduce_per_byte_s: float = 0.0

    def __post_init__(self) -> None:
        number("bucket_cap_bytes", self.bucket_cap_bytes)
        number("first_bucket_bytes", self.first_bucket_bytes)
        whole_number("concurrent", self.concurrent)
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


def build(job: Job) -> OpGraph:
    """The op graph: every bucket is one transfer over all members' links, both ways at once."""
    options: Options = job.options
    b = GraphBuilder()
    workers = add_workers(b, job)
    n = job.workers
    nodes = sorted(set(workers.node.tolist()))
    names = [f"node {node}" for node in nodes]
    network = Network(b, job.cluster, names, core_share=len(nodes))
    optimizer = b.ops(
        "optimizer",
        (n,),
        seconds=[job.slowdown(w) * job.workload.optimizer_s for w in range(n)],
        slot=workers.device,
        group=workers.index,
        cause="straggler",
        noise=workers.noise,
        axes=(("worker", None),),
    )
    b.edge(workers.backward[:, 0], optimizer)
    b.edge(optimizer, workers.forward[:, 0], lag=1)
    if n > 1:
        sizes, last_layer = buckets_of(job.workload, options)
        moved = np.array([ring_allreduce_bytes(n, size) for size in sizes])
        collective = b.ops(
            "all-reduce",
            (len(sizes),),
            bytes=moved,
            path=network.all_of(nodes),
            seconds=ring_allreduce_steps(n) * network.hop_s(nodes)
            + moved / 2.0 * options.reduce_per_byte_s,
            slot=b.slots("communicator", (1,), capacity=options.concurrent),
            axes=(("bucket", None),),
        )
        ready = workers.backward[:, last_layer if options.overlap else [0] * len(sizes)]
        b.edge(ready, np.broadcast_to(collective, ready.shape))
        b.edge(np.broadcast_to(collective, ready.shape), optimizer[:, None])
        b.probe("all-reduce", collective, collective, at_ready=True)
    b.stagger(workers.forward[:, 0], stagger_s(job))
    counter = b.counters(optimizer)
    b.probe("staleness", optimizer, optimizer, lag=1, counter=counter, group=workers.index)
    return b.build(device=workers.device, mark=optimizer)


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
)
