"""The coarse model of sharded training."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from perfmodel.architectures.fsdp import order
from perfmodel.architectures.fsdp.options import Options
from perfmodel.base.quantities import Quantity, is_symbol, maximum, where
from perfmodel.communication.formulas import Formulas
from perfmodel.communication.groups import GroupSpan, same_place, share_links
from perfmodel.communication.rates import Rate, Use
from perfmodel.inputs.job import Job
from perfmodel.phases.layers import Layers
from perfmodel.phases.phases import Phase, Phases
from perfmodel.phases.quantities import Quantities, quantities_of
from perfmodel.phases.whole import Whole
from perfmodel.theory.overlap import in_tandem
from perfmodel.training.passes import pass_layers
from perfmodel.training.workers import alike, left_out

_Kind = tuple[float, float]
"""A unit's share of all gradients, and its frozen bytes."""


def phases(job: Job, q: Quantities) -> Phases:
    """Return computation and the exposed part of all-gathers and reduce-scatters."""
    return q.at_paces(lambda late: _phases(job, q, late))


def _phases(job: Job, q: Quantities, late: Quantity) -> Phases:
    """Return the phases if the slowest worker computes ``late`` times as long as the mean one."""
    options = Options.of(job)
    alone, shards = q.workers <= 1, options.shards(q.workers)
    units = q.layers.once(("units", options), lambda: order.units_in(job), of_bytes=True)
    gather, scatter, reduce = _rates(job, q)
    sent = order.sent_share(job)
    of_sent = order.gathered_share(job) / sent
    parts = (sent * units.bytes / units.bytes.sum()).tolist()
    numbers = units.first.tolist()[::-1]
    if isinstance(q.layers, Whole):
        parts, numbers = [sent], [0]
    frozen = [float(units.frozen.sum())] if len(parts) == 1 else units.frozen.tolist()
    kinds = list(zip(parts, frozen, strict=True))
    counts = Counter(kinds)  # blocks of a model have the same units
    sizes = {kind: q.gradient_bytes * kind[0] for kind in counts}
    whole = {kind: of_sent * size for kind, size in sizes.items()} if of_sent < 1.0 else sizes
    whole = {kind: size + kind[1] if kind[1] else size for kind, size in whole.items()}

    def each_s(rate: Rate, of: Mapping[_Kind, Quantity]) -> list[Quantity]:
        known = {kind: rate.seconds(size) for kind, size in of.items()}
        return [known[kind] for kind in kinds]

    gathers, scatters = each_s(gather, whole), each_s(scatter, sizes)
    around = None
    if options.copies:
        around = _Around(
            [options.around_gather_s(whole[kind], shards) for kind in kinds],
            [options.around_reduction_s(sizes[kind]) for kind in kinds],
        )
    shard = {kind: size / shards for kind, size in sizes.items()}
    sums = each_s(reduce, shard) if reduce is not None else []
    if sums:  # they take turns on shared links, unless connections are the limit
        turns = share_links(q, shards) & (q.flow_bytes_per_s == math.inf)
        scatters = [a + where(turns, b, 0.0) for a, b in zip(scatters, sums, strict=True)]
        sums = [where(turns, 0.0, seconds) for seconds in sums]
    compute = q.forward_s + q.backward_s + q.optimizer_s / shards
    passes_s = (q.forward_s + q.backward_s) * late
    passes = order.passes_of(job)
    shown = sum(gathers) if options.stage < 3 else -passes_s
    for one, times in Counter(passes).items():
        layers = _layers_of(job, q, one, len(passes))
        if options.stage == 3 and isinstance(layers, Whole):
            moving = (one.gathered + float(one.again)) * sum(gathers)
            moving = moving + (sum(scatters) if one.reduced else 0.0)
            computed = passes_s if len(passes) == 1 else passes_s / len(passes)
            if around is not None:
                computed = computed + (one.gathered + float(one.again)) * sum(around.gathers)
                computed = computed + (sum(around.reductions) if one.reduced else 0.0)
            part = layers.beside_s(computed, moving, *(sums if one.reduced else []))
        elif options.stage == 3 and isinstance(layers, Layers):
            reduced = _Reduced(scatters, sums)
            part = _in_time(options, one, layers, q.scale * late, units, gathers, reduced, around)
        else:
            computed, end = layers.overlapped_s(
                q.scale * late,
                lambda ready_s: in_tandem(ready_s, scatters[::-1], *([sums[::-1]] if sums else [])),
                numbers,
            )
            part = end - computed
        shown = shown + times * part
    used = Use()
    gathered, scattered = order.counts_of(passes, options)
    for kind, count in counts.items():
        used = used.plus(gather.busy(whole[kind]).times(count * gathered))
        used = used.plus(scatter.busy(sizes[kind]).times(count * scattered))
        if reduce is not None:
            used = used.plus(reduce.busy(shard[kind]).times(count * scattered))
    return Phases(
        parts={
            "compute": Phase(compute, "compute"),
            "wait for the slowest": Phase(compute * (late - 1.0), "straggler"),
            "gather and scatter": Phase(where(alone, 0.0, shown), "network"),
        },
        busy_s=used.by_link(job),
        updates=1.0 / q.workers,
    )


def _layers_of(job: Job, q: Quantities, one: order.PassCollectives, passes: int) -> Layers | Whole:
    """Return the layers with the times of a pass, with handover if it reduces gradients."""
    if passes == 1 or isinstance(q.layers, Whole):
        return q.layers
    return pass_layers(job, q.layers, reduced=one.reduced)


class _Around(NamedTuple):
    """Seconds of a worker around each gather and each reduction, by unit."""

    gathers: list[Quantity]
    reductions: list[Quantity]


class _Reduced(NamedTuple):
    """Seconds of reduce-scatters and, if there are replicas, all-reduces, by unit."""

    scatters: list[Quantity]
    sums: list[Quantity]


def _rates(job: Job, q: Quantities) -> tuple[Rate, Rate, Rate | None]:
    """Return the rates of all-gathers, reduce-scatters and, with replicas, all-reduces."""
    options = Options.of(job)
    gamma = options.reduce_per_byte_s
    shards, replicas = Formulas(job, q), None
    if np.any(_replicated(options, q.workers)):
        size, core = options.shards(q.workers), job.cluster.core_oversubscription is not None
        shards = Formulas(job, q, GroupSpan.of_shards(q, size, core=core))
        replicas = Formulas(job, q)  # on a ring across sites, if they are all workers
        if options.shard_group > 1:
            replicas = Formulas(job, q, GroupSpan.of_replicas(q, size, core=core))
    return (
        shards.cost("all_gather"),
        shards.cost("reduce_scatter", gamma),
        None if replicas is None else replicas.cost("all_reduce", gamma),
    )


def _replicated(options: Options, workers: Quantity) -> Quantity:
    """Return whether this many workers hold more than one copy of the model."""
    if options.shard_group == 0:
        return False
    return True if is_symbol(workers) else workers > options.shard_group


def exact(job: Job) -> bool:
    """Return whether the coarse model equals the simulation."""
    return job.workload.data_loading_s == 0.0 and alike(job) and leaves_out(job) is None


def leaves_out(job: Job) -> str | None:
    """Return the first feature of a job that the coarse model leaves out, or None."""
    size = int(Options.of(job).shards(job.workers))
    several = 1 < size < job.workers
    beyond = {
        "shard groups placed differently on nodes": not same_place(job.cluster, job.workers, size),
        "links that shard groups and replicas share": several
        and bool(share_links(quantities_of(job), size)),
        "blocking_reduce": Options.of(job).blocking_reduce,
    }
    return left_out(job, beyond, core=False, connections=False, sites=several, parts=size)


def _in_time(
    options: Options,
    one_pass: order.PassCollectives,
    layers: Layers,
    scale: Quantity,
    units: order.Units,
    gathers: list[Quantity],
    reduced: _Reduced,
    around: _Around | None,
) -> Quantity:
    """Return the seconds of a pass at stage 3, until the gradients that it reduces are reduced.

    A shard group runs one collective at a time, in the order of issue
    (:func:`perfmodel.architectures.fsdp.order.issue_order`); a replica group runs one alongside.
    ``blocking_reduce`` is left out.
    """
    options = msgspec.structs.replace(options, blocking_reduce=False)
    count = len(units.first)
    passes = _computations(layers, scale, units)
    before, after = _copies(one_pass, around, count)
    seconds = {True: gathers + gathers[::-1], False: reduced.scatters[::-1]}
    sums = reduced.sums[::-1]
    summed: Quantity = 0.0
    free: Quantity = 0.0
    ended: Quantity = 0.0  # a computation, and what follows it
    end = scale * layers.first_s
    gathered: list[Quantity] = []
    computed = -1
    for one in [*order.issued_in(one_pass, count, options), None]:
        last = 2 * count - 1 if one is None else one.after
        while computed < last:
            computed += 1
            if computed < len(gathered):
                end = maximum(end, gathered[computed]) + before[computed]
            ended = end + passes[computed].seconds + after[computed]
            end = ended + passes[computed].after_s
        if one is None:
            break
        free = maximum(free, ended) + seconds[one.gather][one.number]
        if one.gather:
            gathered.append(free)
        elif sums:
            summed = maximum(summed, free) + sums[one.number]
    return maximum(end, free, summed) if sums else maximum(end, free)


def _copies(
    one: order.PassCollectives, around: _Around | None, units: int
) -> tuple[Sequence[Quantity], Sequence[Quantity]]:
    """Return what a worker does before and after each computation of a pass for its collectives."""
    none = [0.0] * units
    if around is None:
        return 2 * none, 2 * none
    reductions = around.reductions[::-1] if one.reduced else none
    return around.gathers + around.gathers[::-1], [*none, *reductions]


class _Computation(NamedTuple):
    """The pass of a unit from its first layer with parameters to its last one (s), and the layers
    without parameters that follow, which wait for nothing that is gathered (s)."""

    seconds: Quantity
    after_s: Quantity


def _computations(layers: Layers, scale: Quantity, units: order.Units) -> list[_Computation]:
    """Return the forward passes of all units and then, in reverse order, their backward passes."""
    starts = [*map(layers.index.index, units.first.tolist()), len(layers.index)]
    spans = [slice(*span) for span in itertools.pairwise(starts)]
    forward_after = [layers.forward_after_s[span.stop - 1] for span in spans]
    backward_after = [layers.backward_after_s[span.stop - 1] for span in spans]
    forward = [
        (sum(layers.forward_s[span]) - after, after)
        for span, after in zip(spans, forward_after, strict=True)
    ]
    forward[-1] = (forward[-1][0], forward[-1][1] + backward_after[-1])
    backward = [
        (sum(layers.backward_s[span]) - after, before)
        for span, after, before in zip(
            spans, backward_after, [layers.last_s, *backward_after[:-1]], strict=True
        )
    ]
    return [_Computation(scale * a, scale * b) for a, b in (*forward, *backward[::-1])]
