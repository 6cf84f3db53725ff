"""How all-reduce groups gradients into messages."""

from __future__ import annotations

import itertools

import msgspec
import numpy as np

from perfmodel.architectures.allreduce.options import Options, largest_bytes
from perfmodel.base.arrays import Floats, Ids
from perfmodel.communication.costs import Cost, LinkCosts
from perfmodel.communication.members import Members
from perfmodel.communication.messages import parts_of, tensors_of
from perfmodel.communication.reduction import Reduction
from perfmodel.inputs.job import Job
from perfmodel.inputs.workload import expanded
from perfmodel.theory.buckets import ddp_buckets, mg_wfbp_buckets


class Messages(msgspec.Struct, frozen=True, eq=False):
    """Messages to reduce, in the order in which they become ready.

    ``bytes`` (messages,) are gradient bytes before compression; ``layer`` (messages,) is the layer
    whose backward pass completes the message, its layer closest to the input. The layers in a
    message are given in pairs: ``message``, ``part_layer`` (pairs,).
    """

    bytes: Floats
    layer: Ids
    message: Ids
    part_layer: Ids


def messages_of(job: Job) -> Messages:
    """Group a workload's gradient tensors into messages, and cut messages that are too large."""
    options = Options.of(job)
    tensors = tensors_of(job.workload)
    layer, each = tensors.layer.tolist(), tensors.bytes.tolist()
    groups = _groups(job, layer, each)
    sizes = np.array([sum([each[i] for i in group]) for group in groups], np.float64)
    parts = parts_of(sizes, options.partition_bytes)
    pieces = np.repeat(np.arange(len(groups)), parts)
    layers = [sorted({layer[i] for i in group}) for group in groups]
    count = np.array([len(group) for group in layers])
    return Messages(
        bytes=(sizes / parts)[pieces],
        layer=np.array([group[0] for group in layers])[pieces],
        message=np.repeat(np.arange(len(pieces)), count[pieces]),
        part_layer=np.array([i for piece in pieces.tolist() for i in layers[piece]]),
    )


def _groups(job: Job, layer: list[int], sizes: list[float]) -> list[list[int]]:
    """Return the indices of the tensors in each message; ``layer``, ``sizes`` are per tensor."""
    options = Options.of(job)
    of_layer: dict[int, list[int]] = {}
    for tensor, index in enumerate(layer):
        of_layer.setdefault(index, []).append(tensor)
    by_layer = list(of_layer.values())
    match options.bucketing:
        case "ddp":  # each chunk of a pipeline is a module of its own
            bounds = [0, *_chunk_ends(job, layer), len(layer)]
            return [
                [start + k for k in bucket]
                for start, end in itertools.pairwise(bounds)
                for bucket in ddp_buckets(
                    sizes[start:end],
                    cap_bytes=options.bucket_cap_bytes,
                    first_cap_bytes=options.first_bucket_bytes,
                )
            ]
        case "one":
            return [list(range(len(sizes)))]
        case "layer":
            return by_layer
        case "horovod":
            return [[index] for index in range(len(sizes))]
        case "mg_wfbp":
            return _merged(job, by_layer, layer, sizes)


def chunks_of(job: Job, messages: Messages) -> Ids:
    """Return the chunk of the stage that each message is of, (messages,)."""
    return _chunk(job)[messages.layer]


def _chunk(job: Job) -> Ids:
    """Return the chunk of each layer; one for all without pipelines."""
    if job.stage is None:
        return np.zeros(len(expanded(job.workload).layers), np.int64)
    counts = job.stage.chunk_layers
    return np.repeat(np.arange(len(counts)), counts)


def _chunk_ends(job: Job, layer: list[int]) -> list[int]:
    """Return the first of the tensors of each further chunk; ``layer`` is per tensor."""
    return (np.flatnonzero(np.diff(_chunk(job)[layer])) + 1).tolist()


def _merged(
    job: Job, by_layer: list[list[int]], layer: list[int], sizes: list[float]
) -> list[list[int]]:
    """Merge layers by the cost of a collective on this cluster and the profiled backward times."""
    if job.workers == 1:
        return by_layer
    options = Options.of(job)
    backward = np.array([a.backward_s for a in expanded(job.workload).layers])
    ready_s = np.cumsum(backward[::-1])[::-1]
    dense = np.array([sum(sizes[t] for t in tensors) for tensors in by_layer])
    sent = options.sent_bytes(dense)
    startup_s, whole_s = cost_of(job, np.array([0.0, sent.sum()])).seconds.tolist()
    merged = mg_wfbp_buckets(
        [float(ready_s[layer[tensors[0]]]) for tensors in by_layer],
        sent.tolist(),
        startup_s=startup_s,
        per_byte_s=(whole_s - startup_s) / float(sent.sum()),
    )
    return [[t for i in group for t in by_layer[i]] for group in merged]


def cost_of(job: Job, sent: Floats) -> Cost:
    """Return the cost of summing gradients of which each worker has ``sent`` bytes, (sizes,)."""
    options = Options.of(job)
    members = Members.of(job.cluster, job.workers)
    if options.sparse:
        return LinkCosts(members, job.workers * sent).cost("all_gather")
    return LinkCosts(members, sent).all_reduce(reduction_of(job, members))


def broadcast_bytes(job: Job) -> float:
    """Return the bytes of the buffers that worker 0 broadcasts before each forward pass."""
    return job.workload.buffer_bytes if Options.of(job).broadcast_buffers else 0.0


def reduction_of(job: Job, members: Members) -> Reduction:
    """Return the options of the all-reduce. One algorithm is used for all messages if their sizes
    are not known in advance, are planned, or if every send is simulated."""
    options = Options.of(job)
    largest = largest_bytes(options, job.workload.gradient_bytes)
    if options.each_send and largest is None:
        largest = float(options.sent_bytes(messages_of(job).bytes).max())
    if largest is None:
        return options.reduction
    costs = LinkCosts(members, np.array([float(largest)]))
    return costs.chosen(options.reduction, by_sends=options.each_send)
