"""The coarse model of the parameter server: pull, compute, push, update."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from perfmodel.algebra import Quantity, is_symbol, maximum, minimum, where
from perfmodel.architectures import Band
from perfmodel.architectures._messages import tensors_of
from perfmodel.architectures._placement import slices_of
from perfmodel.architectures._ps_options import Options
from perfmodel.architectures._workers import left_out, plain, steady
from perfmodel.contention import contended, regularity
from perfmodel.job import Job
from perfmodel.phases import Layers, Part, Phase, Phases, Quantities, Whole, held_up, mixed
from perfmodel.workload import expanded

GROUPS = 16
"""Groups of workers that finish their computation at about the same time."""

BUNCHED = 0.5
"""How far asynchronous workers are from queueing at random towards lockstep, where servers hold
unequal parts of tensors that are cut evenly: each lap waits for the fullest server, which gathers
them. The mean over simulated jobs of AlexNet and VGG-16 with 8 to 24 workers on 4 and 6 servers,
where it was 0.13 to 0.73."""

CUT_FROM, CUT_TO = 0.7, 0.9
"""Parts of the model that are cut evenly from which workers begin to bunch, and bunch wholly."""

MANY_SERVERS = 3
"""Servers from which workers bunch wholly; two do so a quarter as much."""

NO_TIME = 1e-300
"""Stands for no time where something is divided by it (s)."""


class Demands(msgspec.Struct, frozen=True, eq=False):
    """What one worker asks of the servers per iteration.

    Attributes
    ----------
    own_s, shared_s : for each byte, the time of the worker's own link, and of a server's.
    fullest : part of the model on the fullest server.
    in_step : 1 where most of the model is cut evenly over all servers, 0 where nothing is.
    update_s : time of the server that has most to update.
    per_tensor_s, per_byte_s : time of a server for each tensor and each byte.
    sent : bytes pushed for each byte of gradients.
    """

    own_s: Quantity
    shared_s: Quantity
    fullest: Quantity
    in_step: float
    update_s: Quantity
    per_tensor_s: Quantity
    per_byte_s: Quantity
    sent: float

    @classmethod
    def of(cls, job: Job, q: Quantities) -> Demands:
        """Of a worker like ``q``."""
        options: Options = job.options
        tensor_s = q.update_per_tensor_s / q.update_threads
        byte_s = (q.update_per_byte_s + options.decode_per_byte_s) / q.update_threads
        fullest, in_step = 1.0 / q.servers, 0.0
        update_s = fullest * (q.tensors * tensor_s + q.gradient_bytes * byte_s)
        cut_up = options.servers > 1 or options.partition_bytes < math.inf
        if cut_up and not is_symbol(q.servers):
            slices = slices_of(job.workload, options)
            kept = np.bincount(slices.server, slices.bytes, options.servers)
            tensors = np.bincount(slices.server, slices.tensors, options.servers)
            loads = set(zip(tensors.tolist(), kept.tolist(), strict=True))
            update_s = maximum(*(count * tensor_s + size * byte_s for count, size in loads))
            sizes = tensors_of(job.workload).bytes
            cut = sizes[sizes > options.split_above_bytes].sum() / sizes.sum()
            in_step = float(np.clip((cut - CUT_FROM) / (CUT_TO - CUT_FROM), 0.0, 1.0))
            in_step *= min((options.servers - 1) / (MANY_SERVERS - 1), 1.0) ** 2
            fullest = float(kept.max() / kept.sum())
        return cls(
            own_s=(1 if options.local_aggregation else minimum(q.devices_per_node, q.workers))
            / q.bandwidth_bytes_per_s,
            shared_s=1.0 / q.server_bandwidth_bytes_per_s,
            fullest=fullest,
            in_step=in_step,
            update_s=update_s,
            per_tensor_s=tensor_s,
            per_byte_s=byte_s,
            sent=options.sent_share,
        )


def phases(job: Job, q: Quantities) -> Phases:
    """Pull, compute, push and update of a worker's iteration."""
    options: Options = job.options
    if isinstance(q.layers, Whole):
        q = msgspec.structs.replace(
            q, layers=msgspec.structs.replace(q.layers, part=Demands.of(job, q).fullest)
        )
    elif options.servers > 1 or options.partition_bytes < math.inf:
        whole = q.layers
        placed = whole.once(("placed", job.options), lambda: _placed(job, whole))
        q = msgspec.structs.replace(q, layers=placed)
    if options.sync == "bsp":
        return _together(job, q)
    found = _apart(job, q)
    return _bounded(job, q, found) if options.sync == "ssp" else found


def _placed(job: Job, layers: Layers) -> Layers:
    """Layers with their slices on the servers."""
    slices = slices_of(job.workload, job.options)
    parts: dict[int, list[Part]] = {}
    columns = (slices.layer, slices.server, slices.bytes, slices.tensors)
    for layer, server, size, tensors in zip(*(c.tolist() for c in columns), strict=True):
        parts.setdefault(layer, []).append(Part(server, size, tensors))
    return layers.placed(parts)


def _together(job: Job, q: Quantities) -> Phases:
    """BSP: all workers do the same at once, at the pace of the slowest."""
    options: Options = job.options
    pushers = q.nodes if options.local_aggregation else q.workers
    demands, flows = Demands.of(job, q), (pushers, pushers, pushers)
    found = q.at_paces(
        lambda late: _lap(job, q, demands, late, flows), late=options.backup_workers
    )
    return msgspec.structs.replace(
        found,
        busy_s={name: pushers * seconds for name, seconds in found.busy_s.items()},
        updates=1.0 / q.workers,
    )


def _lap(job: Job, q: Quantities, d: Demands, late: Quantity, flows: Sequence[Quantity]) -> Phases:
    """An iteration of a worker that computes ``late`` times as long as usual.

    ``flows`` are how many workers pull, push and are updated at the same time, itself included.
    """
    options: Options = job.options
    m = q.gradient_bytes
    pulling, pushing, updating = flows
    compute, latency = q.forward_s + q.backward_s, 2.0 * q.latency_s
    encode_per_byte_s = options.encode_per_byte_s * q.slowdown
    work = compute + encode_per_byte_s * m
    # of workers that differ, those that are late give up
    least = minimum(late, 1.0) if options.backup_workers and q.classes else 1.0
    if options.overlap or options.duplex:
        # what a worker gets from all servers together comes at the rate of its own link at most
        own_s = d.own_s / d.fullest
        pull_s = maximum(own_s, pulling * d.shared_s)
        stages = [
            (0.0, d.sent * maximum(own_s, pushing * d.shared_s)),
            (updating * d.per_tensor_s, updating * d.per_byte_s),
        ]
        if options.duplex:
            stages.append((0.0, pull_s))
        computed, *ends, last = q.layers.backward_and_send_s(
            q.scale * late,
            stages,
            encode_per_byte_s=encode_per_byte_s * late,
            latency_s=latency,
            overlap=options.overlap,
            ahead=options.duplex and options.overlap,
        )
        if options.duplex:
            latency = last - ends[-1]
        else:
            pulled = q.layers.pull_and_forward_s(pull_s, q.scale * late) - q.forward_s * late
            ends.append(ends[-1] + pulled)
        push, update, pull = (z - a for a, z in itertools.pairwise([computed, *ends]))
    else:
        pull = m * maximum(d.own_s, pulling * d.fullest * d.shared_s)
        push = m * d.sent * maximum(d.own_s, pushing * d.fullest * d.shared_s)
        update = updating * d.update_s
    if options.sync == "bsp" and q.random and not options.overlap:
        push, update = _one_by_one(q, late, push, update)
    link_s = d.shared_s * d.fullest * m
    return Phases(
        parts={
            "compute": Phase(compute * least, "compute"),
            "compress": Phase(encode_per_byte_s * m * least, "compute"),
            "wait for the slowest": Phase(work * (late - least), "straggler"),
            "pull": Phase(pull, "network"),
            "push": Phase(push, "network"),
            "update": Phase(update, "server"),
            "latency": Phase(latency, "network"),
        },
        busy_s={
            "link out of the servers": link_s,
            "link into the servers": d.sent * link_s,
            "servers": d.update_s,
        },
        updates=1.0,
    )


def _one_by_one(
    q: Quantities, late: Quantity, push_s: Quantity, update_s: Quantity
) -> tuple[Quantity, Quantity]:
    """What is left of pushes and updates when the slowest worker has computed.

    Without overlap the others have pushed before. All pushes take ``push_s`` together, all updates
    ``update_s``. Workers that come at about the same time share the link until the end, and are
    updated only then; those that come further apart than pushes take, one after the other.
    """
    compute = q.forward_s + q.backward_s
    sent: Quantity = 0.0
    applied: Quantity = 0.0
    for factor in [*q.typical(GROUPS)[:-1], late]:
        sent = maximum(sent, compute * minimum(factor, late)) + push_s / GROUPS
        applied = maximum(applied, sent) + update_s / GROUPS
    end = compute * late
    apart = minimum(2.0 * compute * (late - 1.0) / maximum(push_s, NO_TIME), 1.0)
    return (
        apart * (sent - end) + (1.0 - apart) * push_s,
        apart * (applied - sent) + (1.0 - apart) * update_s,
    )


def _apart(job: Job, q: Quantities) -> Phases:
    """ASP: workers go round on their own, and slow each other down where they meet."""
    options: Options = job.options
    kinds = q.by_class()
    each = [Demands.of(job, kind) for kind in kinds]
    d = each[0]
    link_s = d.shared_s * d.fullest * q.gradient_bytes
    demands = (link_s, d.sent * link_s, d.update_s)

    def slowed(kind: Quantities, own: Demands, others: Sequence[Quantity]) -> Phases:
        return _lap(job, kind, own, 1.0, [1.0 + found for found in others])

    def lap_of(kind: Quantities, own: Demands) -> Any:
        def lap(others: Sequence[Quantity]) -> tuple[Quantity, list[Quantity]]:
            held = [(1.0 + found) * demand for found, demand in zip(others, demands, strict=True)]
            return slowed(kind, own, others).iteration_s, held

        return lap

    even = regularity(d.update_s, link_s) if q.corrected else 0.0
    found = contended(
        q.counts,
        demands,
        [lap_of(kind, own) for kind, own in zip(kinds, each, strict=True)],
        even=(even, even, 1.0 if q.corrected else 0.0),
        stations=("pull", "push", "update"),
    )
    laps = [slowed(*row) for row in zip(kinds, each, found, strict=True)]
    if options.servers > 1 and q.corrected:
        cycle_s = mixed(q.counts, laps).iteration_s
        found = [_bunched(q, d, link_s / cycle_s, others) for others in found]
        laps = [slowed(*row) for row in zip(kinds, each, found, strict=True)]
    result = held_up(
        q.counts,
        laps,
        links_s=q.workers * maximum(*demands[:2]),
        servers_s=q.workers * d.update_s,
    )
    together = options.softsync
    return msgspec.structs.replace(
        result,
        busy_s={name: q.workers * seconds for name, seconds in result.busy_s.items()},
        updates=1.0 / together,
        # gradients that are applied together do not make each other stale
        staleness=maximum(q.workers - together, 0.0) / together,
        spread=q.cv * result.compute_s / maximum(result.iteration_s, NO_TIME),
    )


def _bunched(
    q: Quantities, d: Demands, use: Quantity, others: Sequence[Quantity]
) -> list[Quantity]:
    """The others that one finds where several servers hold unequal parts.

    ``use`` is how much of its time one worker alone keeps the fullest server's link busy.
    """
    busy = minimum(q.workers * use, 1.0)
    share = where(d.fullest * q.servers > 1.0 + 1e-9, BUNCHED * d.in_step * busy**2, 0.0)
    pulling, pushing, updating = others
    everybody = q.workers - 1.0
    return [
        pulling + share * (everybody - pulling),
        pushing + share * (everybody - pushing),
        updating,
    ]


def _bounded(job: Job, q: Quantities, found: Phases) -> Phases:
    """SSP: nobody is more than ``staleness_bound`` iterations ahead of the slowest."""
    bound = job.options.staleness_bound
    if bound == math.inf:
        return found
    slowest = q.slowest() if bound == 0 else q.slowest_followed(int(bound))
    late = maximum((q.forward_s + q.backward_s) * slowest - found.iteration_s, 0.0)
    return msgspec.structs.replace(
        found, parts={**found.parts, "staleness bound": Phase(late, "staleness_bound")}
    )


# -- how far it is right -----------------------------------------------------------------------


def exact(job: Job) -> bool:
    """Whether the coarse model equals the simulation."""
    options: Options = job.options
    # layers before the first with parameters begin while others are still being updated
    first = options.duplex or not options.overlap or expanded(job.workload).layers[0].tensor_bytes
    one_by_one = options.servers == 1 and job.cluster.update_threads == 1
    simple = bool(first) and one_by_one and leaves_out(job) is None
    if options.sync == "bsp":
        return simple and plain(job) and options.backup_workers == 0
    alone = job.workers == 1 and options.softsync == 1
    return simple and alone and steady(job) and job.workload.data_loading_s == 0.0


def leaves_out(job: Job) -> str | None:
    """What a job has that the coarse model does not."""
    options: Options = job.options
    return left_out(
        job,
        {
            "servers on the nodes of workers": job.cluster.server.placement == "colocated",
            "the link inside a node": job.cluster.intra_node is not None,
            f"transmission={options.transmission}": options.transmission != "fifo",
            "credit": options.credit_bytes > 0.0,
            "pull=request": options.pull == "request",
            "unequal parts of a full link": job.cluster.queue_bytes is not None
            and job.workers > options.servers,
        },
    )


def band(job: Job) -> Band:
    """How far the coarse model is off where it is not exact."""
    options: Options = job.options
    if options.sync != "bsp":
        return Band(0.05, 0.16)
    if options.backup_workers:  # next to nothing on the benchmark's jobs, much on small ones
        return Band(0.05, 0.30)
    return Band(0.01, 0.05) if options.overlap or steady(job) else Band(0.03, 0.08)
