"""The coarse model of all-reduce."""

from __future__ import annotations

import math
from collections import Counter

import msgspec

from perfmodel.architectures.allreduce.messages import broadcast_bytes, messages_of
from perfmodel.architectures.allreduce.options import Options, decode_per_byte_s_of, largest_bytes
from perfmodel.base.quantities import Quantity, maximum, where
from perfmodel.communication.collectives import measured_in
from perfmodel.communication.formulas import Formulas, exact_formula
from perfmodel.communication.rates import Fastest, Rate, Use
from perfmodel.inputs.cluster import NO_HANDOVER
from perfmodel.inputs.job import Job
from perfmodel.phases.phases import Phase, Phases
from perfmodel.phases.quantities import Quantities
from perfmodel.phases.whole import Whole
from perfmodel.theory.overlap import fused_wait_free, merged_wait_free, wait_free
from perfmodel.training.passes import pass_layers
from perfmodel.training.workers import alike, left_out


def _rate(job: Job, q: Quantities) -> Rate | Fastest:
    """Return the cost of summing gradients, by a worker's gradient bytes before compression."""
    options = Options.of(job)
    sent = options.sent_share
    if options.each_send:  # sends are simulated, so measured collectives do not apply
        q = msgspec.structs.replace(q, collectives=())
    if options.sparse:
        return Formulas(job, q).cost("all_gather").sent(q.workers * sent)
    rate = Formulas(job, q).all_reduce(options.reduction)
    largest = largest_bytes(options, q.gradient_bytes)
    return (rate if largest is None else rate.at(largest)).sent(sent, at_once=options.concurrent)


def phases(job: Job, q: Quantities) -> Phases:
    """Return computation and the exposed part of the collectives."""
    return q.at_paces(lambda late: _phases(job, q, late))


def _phases(job: Job, q: Quantities, late: Quantity) -> Phases:
    """Return the phases if the slowest worker computes ``late`` times as long as the mean one."""
    options, layers, times = Options.of(job), q.layers, job.reductions
    rate, alone = _rate(job, q), q.workers <= 1
    if isinstance(layers, Whole):
        shares, numbers = [1.0], [0]
    else:
        shares, numbers = layers.once(("messages", options), lambda: _shares(job), of_bytes=True)
        layers = layers if times == 1 else pass_layers(job, layers)
    counts = Counter(shares)  # blocks of a model have the same messages
    each_s = {share: rate.seconds(q.gradient_bytes * share) for share in counts}
    sizes = [q.gradient_bytes * share for share in shares]
    seconds = [each_s[share] for share in shares]
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
    computed, end = layers.overlapped_s(
        q.scale * late, send, numbers, encode_per_byte_s=encode_per_byte_s * late
    )
    if not options.overlap:
        end = send([computed for _ in sizes])
    compute = q.forward_s + q.backward_s + q.optimizer_s
    exposed = end - computed
    if options.cross_barrier and options.priority:
        # the first layer is reduced last, after all computation: always exposed
        exposed = maximum(seconds[-1], sum(seconds) - compute * late)
    decode_per_byte_s = decode_per_byte_s_of(options, q.workers) * q.slowdown
    coded_s = times * (encode_per_byte_s + decode_per_byte_s) * q.gradient_bytes
    compress = where(alone, 0.0, coded_s)
    parts = {
        "compute": Phase(compute, "compute"),
        "wait for the slowest": Phase((compute + compress) * (late - 1.0), "straggler"),
        "compress": Phase(compress, "compute"),
        "all-reduce": Phase(where(alone, 0.0, times * exposed), "network"),
    }
    used = Use()
    for share, count in counts.items():
        used = used.plus(rate.busy(q.gradient_bytes * share).times(count * times))
    if broadcast_bytes(job) > 0.0:
        sent = Formulas(job, q).cost("broadcast")
        seconds_s = where(alone, 0.0, times * sent.seconds(q.buffer_bytes))
        parts["broadcast buffers"] = Phase(seconds_s, "network")
        used = used.plus(sent.busy(q.buffer_bytes).times(times))
    return Phases(parts=parts, busy_s=used.by_link(job), updates=1.0 / q.workers)


def operation_of(options: Options) -> str:
    """Return the name of the collective that sums gradients."""
    return "all_gather" if options.sparse else "all_reduce"


def exact(job: Job) -> bool:
    """Return whether the coarse model equals the simulation."""
    options = Options.of(job)
    in_order = not (options.cross_barrier or options.each_send or options.credit_bytes > 0.0)
    one_by_one = options.concurrent == 1 and options.bucketing != "horovod"
    # the simulation merges layers by their backward times alone, without the handover, and then
    # cuts the merged messages with times linear in the size
    same = options.partition_bytes == math.inf and options.encode_per_byte_s == 0.0
    same = same and job.cluster.handover == NO_HANDOVER
    same = same and measured_in(job.cluster.collectives, operation_of(options)) is None
    as_planned = options.bucketing != "mg_wfbp" or same
    known = one_by_one and as_planned and exact_formula(job, options.reduction)
    data = job.workload.data_loading_s == 0.0
    # the formula assumes that a broadcast crosses the slowest link between sites, which it may not
    near = broadcast_bytes(job) == 0.0 or not job.crosses_sites
    return in_order and known and data and near and alike(job) and leaves_out(job) is None


def leaves_out(job: Job) -> str | None:
    """Return the first feature of a job that the coarse model leaves out, or None."""
    options = Options.of(job)
    ring = options.sparse or options.algorithm == "ring"
    cut = options.bucketing == "mg_wfbp" and options.partition_bytes < math.inf
    return left_out(
        job, {"partitions of merged messages": cut}, core=False, connections=False, sites=not ring
    )


def _shares(job: Job) -> tuple[list[float], list[int]]:
    """Return each message's share of all bytes, and the layer that completes it."""
    messages = messages_of(msgspec.structs.replace(job, options=_unmerged(Options.of(job))))
    return (messages.bytes / messages.bytes.sum()).tolist(), messages.layer.tolist()


def _unmerged(options: Options) -> Options:
    """Return the options without merging, for layers that the coarse model merges itself."""
    if options.bucketing != "mg_wfbp":
        return options
    return msgspec.structs.replace(options, bucketing="layer", overlap=True)
