"""All-reduce: every worker keeps the model, and collectives sum the gradients."""

from __future__ import annotations

import math
from collections.abc import Mapping

import msgspec
import numpy as np

from perfmodel.architectures.allreduce.formulas import exact, leaves_out, operation_of, phases
from perfmodel.architectures.allreduce.graph import build, slices
from perfmodel.architectures.allreduce.messages import broadcast_bytes, messages_of, reduction_of
from perfmodel.architectures.allreduce.options import Options
from perfmodel.architectures.base import Architecture, Coarse, Traffic, ring_traffic
from perfmodel.architectures.memory import Parts, replica_of
from perfmodel.communication.collectives import measured_in, measured_notes
from perfmodel.communication.members import Members
from perfmodel.communication.reduction import REDUCTION_ASSUMPTIONS
from perfmodel.graph.op_graph import OpGraph
from perfmodel.inputs.job import Job


def notes(job: Job) -> tuple[str, ...]:
    """Return notes for a job that extrapolates the measured collectives of its cluster."""
    options, sent = Options.of(job), broadcast_bytes(job)
    buffers = measured_notes(job, {"broadcast": np.array([sent])}) if sent > 0.0 else ()
    operation = operation_of(options)
    if job.workers == 1 or not options.reduction.by_measurements:
        return buffers
    if measured_in(job.cluster.collectives, operation) is None:
        return buffers
    if options.each_send:
        left = f"each_send: every send is simulated; the measured {operation} is not used"
        return (left, *buffers)
    messages = options.sent_bytes(messages_of(job).bytes)
    sizes = {operation: messages * (job.workers if options.sparse else 1)}
    return (*measured_notes(job, sizes), *buffers)


def _fold(job: Job) -> OpGraph | None:
    """Fold a job with each send simulated only for a ring with one worker per node, at one site:
    other workers, and members of a tree, send to different kinds of receivers."""
    options = Options.of(job)
    if options.each_send:
        if broadcast_bytes(job) > 0.0:  # its load differs between links
            return None
        shared = job.cluster.node_of_worker(job.workers - 1) < job.workers - 1 or job.crosses_sites
        members = Members.of(job.cluster, job.workers)
        if shared or options.sparse or reduction_of(job, members).algorithm != "ring":
            return None
    return build(job, fold=True)


def memory(job: Job) -> Parts:
    """Return the memory of a worker: a replica, and the buckets.

    DistributedDataParallel copies gradients into buckets (its default, unlike
    ``gradient_as_bucket_view``), and so does whoever merges all or some; Horovod has one fusion
    buffer. Single layers are reduced in place.
    """
    options, kept = Options.of(job), replica_of(job.workload)
    whole = kept.gradients_bytes if job.workers > 1 and options.bucketing != "layer" else 0.0
    most = options.fusion_threshold_bytes if options.bucketing == "horovod" else math.inf
    return Parts(msgspec.structs.replace(kept, buckets_bytes=min(whole, most)))


def traffic(job: Job) -> Traffic | None:
    """Return a worker's bytes on a ring; sparse gradients go to all workers. None with a broadcast:
    the last worker does not forward it, and the first does not receive it."""
    options, n = Options.of(job), job.workers
    if broadcast_bytes(job) > 0.0:
        return None
    sent = options.sent_share * job.workload.gradient_bytes * job.reductions
    if options.sparse:
        return Traffic((n - 1) * sent, (n - 1) * sent)
    return ring_traffic(n, sent, options.algorithm)


VARIANTS: tuple[Mapping[str, object], ...] = (
    {},
    {"overlap": False, "no_sync": False},
    {"bucket_cap_bytes": 0, "first_bucket_bytes": 0},
    {"bucket_cap_bytes": 50, "first_bucket_bytes": 10, "concurrent": 2},
    {"each_send": True, "bucket_cap_bytes": 50},
    {"bucketing": "mg_wfbp", "reduce_per_byte_s": 0.001},
    {"algorithm": "ring", "overlap": False, "broadcast_buffers": False},
    {"algorithm": "halving_doubling", "each_send": True},
    {"algorithm": "halving_doubling", "reduce_per_byte_s": 0.001},
    {"algorithm": "tree", "bucketing": "one"},
    {"algorithm": "tree", "bucketing": "layer", "each_send": True, "overlap": False},
    {"algorithm": "double_tree", "chunks": 2, "each_send": True, "bucketing": "layer"},
    {"algorithm": "double_tree", "chunks": 2, "bucketing": "layer"},
    {"algorithm": "hierarchical", "each_send": True, "bucketing": "layer"},
    {"algorithm": "hierarchical", "bucketing": "mg_wfbp"},
    {"algorithm": "node_tree", "bucketing": "layer"},
    {"bucketing": "horovod", "fusion_cycle_s": 0.5},
    {"bucketing": "horovod", "fusion_cycle_s": 2.0, "fusion_threshold_bytes": 45},
    {"bucketing": "horovod", "fusion_cycle_s": 0.5, "algorithm": "tree", "overlap": False},
    {"bucketing": "horovod", "fusion_cycle_s": 1.0, "cross_barrier": True},
    {"bucketing": "layer", "priority": True, "partition_bytes": 10, "cross_barrier": True},
    {"bucketing": "layer", "priority": True, "partition_bytes": 10, "credit_bytes": 25},
    {"compression": "top_k", "density": 0.1, "encode_per_byte_s": 0.01},
    {"compression": "dgc", "density": 0.1, "each_send": True, "decode_per_byte_s": 0.001},
    {"compression": "quantised", "decode_per_byte_s": 0.01, "cross_barrier": True},
    {"compression": "quantised", "quantised_bits": 4, "algorithm": "tree", "each_send": True},
)
"""Options under which the laws of all architectures are checked."""

ARCHITECTURE = Architecture(
    name="allreduce",
    title="all-reduce (synchronous, no server)",
    options=Options,
    build=build,
    memory=memory,
    assumptions=(
        *REDUCTION_ASSUMPTIONS,
        "buckets are reduced in the order in which they fill, unless priorities are set",
        "the optimizer starts after the last bucket, and the next forward pass after the "
        "optimizer; with cross_barrier each layer has its own update, which takes a share of the "
        "optimizer's time in proportion to its bytes",
        "copying tensors into and out of a fused message takes no time, and neither does agreeing "
        "on which tensors are ready",
        "with accumulation only the last pass reduces gradients and only the first one broadcasts "
        "buffers; without no_sync every pass does, and it ends when its gradients are reduced",
        "buffers are pipelined from worker 0 along the rings as worker 0 begins a step; each "
        "worker's forward pass waits until all workers have them",
        "sparse gradients are gathered, not summed on the way: each worker receives those of all "
        "others; quantised gradients are summed as they are",
    ),
    source="Patarasuk, Yuan, JPDC 69, 2009, doi 10.1016/j.jpdc.2008.09.002; "
    "Thakur, Rabenseifner, Gropp, IJHPCA 19(1), 2005, doi 10.1177/1094342005051521; "
    "Sanders, Speck, Träff, Parallel Computing 35(12), 2009, doi 10.1016/j.parco.2009.09.001; "
    "Li et al., PVLDB 13(12), 2020, doi 10.14778/3415478.3415530; "
    "Shi, Chu, Li, INFOCOM 2019, doi 10.1109/INFOCOM.2019.8737367; "
    "Peng et al. (ByteScheduler), SOSP 2019, doi 10.1145/3341301.3359642",
    aliases={
        "ring": {"algorithm": "ring"},
        "ar_sgd": {"algorithm": "ring"},
        "ring_allreduce": {"algorithm": "ring"},
        "tree_allreduce": {"algorithm": "tree"},
        "hierarchical_allreduce": {"algorithm": "hierarchical"},
        "ddp": {"algorithm": "ring", "bucketing": "ddp"},
        "horovod": {"bucketing": "horovod"},
    },
    fold=_fold,
    notes=notes,
    variants=VARIANTS,
    traffic=traffic,
    meaning=lambda job, recorder: recorder.replicas(),
    slices=slices,
    central=True,
    coarse=Coarse(phases=phases, exact=exact, leaves_out=leaves_out),
)
