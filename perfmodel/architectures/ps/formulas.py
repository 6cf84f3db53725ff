"""The coarse model of the parameter server: pull, compute, push, update."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from perfmodel.architectures.parts.workers import left_out, plain, steady
from perfmodel.architectures.ps.demands import Demands, Flows
from perfmodel.architectures.ps.options import Options
from perfmodel.architectures.ps.placement import slices_of
from perfmodel.base.quantities import Quantity, is_symbol, maximum, minimum, where
from perfmodel.inputs.job import Job
from perfmodel.inputs.workload import expanded
from perfmodel.phases.layers import Layers, Part, Stage, Whole
from perfmodel.phases.phases import Phase, Phases, held_up, mixed
from perfmodel.phases.quantities import Quantities
from perfmodel.theory.contention import contended, regularity

GROUPS = 16
"""Groups of workers that finish their computation at about the same time."""

FEW_GROUPS = 5
"""The same where layers overlap, which takes longer to work out."""

BUNCHED = 0.5
"""How far asynchronous workers are from queueing at random towards lockstep, where servers hold
unequal parts of tensors that are cut evenly: each lap waits for the fullest server, which gathers
them. The mean over simulated jobs of AlexNet and VGG-16 with 8 to 24 workers on 4 and 6 servers,
where it was 0.13 to 0.73."""

TIED = 4
"""Repetitions after which workers that are bound to the slowest hold it up as much as they do."""

OVERSHOOT = 0.583
"""Standard deviations that a random walk of normal steps is beyond a barrier once it passes it."""

NO_TIME = 1e-150
"""Stands for no time where something is divided by it (s)."""


def phases(job: Job, q: Quantities) -> Phases:
    """Pull, compute, push and update of a worker's iteration."""
    options = Options.of(job)
    if isinstance(q.layers, Whole):
        q = msgspec.structs.replace(
            q, layers=msgspec.structs.replace(q.layers, part=Demands.of(job, q).fullest)
        )
    elif options.servers > 1 or options.partition_bytes < math.inf:
        whole = q.layers
        placed = whole.once(("placed", Options.of(job)), lambda: _placed(job, whole))
        q = msgspec.structs.replace(q, layers=placed)
    if options.sync == "bsp":
        return _together(job, q)
    if options.sync == "ssp" and options.staleness_bound == 0.0:
        return _each_step(job, q)
    return _apart(job, q)


def _placed(job: Job, layers: Layers) -> Layers:
    """Layers with their slices on the servers."""
    slices = slices_of(job.workload, Options.of(job))
    parts: dict[int, list[Part]] = {}
    columns = (slices.layer, slices.server, slices.bytes, slices.tensors)
    for layer, server, size, tensors in zip(*(c.tolist() for c in columns), strict=True):
        parts.setdefault(layer, []).append(Part(server, size, tensors))
    return layers.placed(parts)


def _together(job: Job, q: Quantities) -> Phases:
    """BSP: all workers do the same at once, at the pace of the slowest."""
    options = Options.of(job)
    pushers = q.nodes if options.local_aggregation else q.workers
    demands = Demands.of(job, q)
    # where links differ, the slowest of what workers have of them
    own_s = 1.0 / (q.bandwidth_bytes_per_s if options.local_aggregation else q.at_once_bytes_per_s)
    demands = msgspec.structs.replace(demands, own_s=own_s)
    found = q.at_paces(
        lambda late: _in_step(job, q, demands, late, pushers), late=options.backup_workers
    )
    return msgspec.structs.replace(
        found,
        busy_s={name: pushers * seconds for name, seconds in found.busy_s.items()},
        updates=1.0 / q.workers,
    )


def _in_step(job: Job, q: Quantities, d: Demands, late: Quantity, pushers: Quantity) -> Phases:
    """An iteration in which all wait for all, and the slowest computes for so long.

    All pull at the same time. Whoever computes for less time pushes before the slowest, so that an
    iteration is over when the last of the pushes is that follow: those of the slowest alone, or of
    all who were not faster than a group of them. A line that is always busy with what there is has
    no other end (Pinedo, "Scheduling", 5th ed., section 4.1).
    """
    options = Options.of(job)
    all_at_once = Flows(pushers, pushers, pushers, 1.0, 1.0, in_step=True)
    alone = is_symbol(q.workers) or q.alike or not (options.overlap or options.duplex)
    if alone or options.local_aggregation or options.backup_workers:
        return _lap(job, q, d, late, all_at_once)
    own = 1.0 / q.on_a_nic(q.fullest)
    fastest = [q.on_a_nic(kind.devices) / kind.bandwidth_bytes_per_s for kind in q.classes]
    others = msgspec.structs.replace(d, own_s=minimum(d.own_s, d.own_s, *fastest))
    found = []
    for group, factor in enumerate([*q.typical(FEW_GROUPS), late]):
        rest = maximum(pushers * (FEW_GROUPS - group) / FEW_GROUPS, 1.0)
        flows = Flows(pushers, rest, rest, 1.0, maximum(rest / pushers, own), in_step=True)
        last = group == FEW_GROUPS
        found.append(_lap(job, q, d if last else others, minimum(factor, late), flows))
    slowest = found[-1]
    longer = maximum(*(each.iteration_s for each in found)) - slowest.iteration_s
    push = Phase(slowest.parts["push"].seconds + longer, "network")
    return msgspec.structs.replace(slowest, parts={**slowest.parts, "push": push})


def _each_step(job: Job, q: Quantities) -> Phases:
    """SSP with a bound of 0: all wait for all, as with BSP, but each gradient is an update."""
    found = _together(job, q)
    parts = {name: part for name, part in found.parts.items() if part.cause != "straggler"}
    waiting = sum(part.seconds for part in found.parts.values() if part.cause == "straggler")
    return msgspec.structs.replace(
        found,
        parts={**parts, "staleness bound": Phase(waiting, "staleness_bound")},
        updates=1.0,
        # all read the same version, and are applied one after the other
        staleness=(q.workers - 1.0) / 2.0,
    )


def _lap(job: Job, q: Quantities, d: Demands, late: Quantity, flows: Flows) -> Phases:
    """An iteration of a worker that computes ``late`` times as long as usual."""
    options = Options.of(job)
    m = q.gradient_bytes
    pulling_s, pushing_s = flows.pulling * d.shared_s, flows.pushing * d.shared_s
    own_pulling_s, own_pushing_s = d.own_s * flows.own_pulling, d.own_s * flows.own_pushing
    updating = flows.updating
    compute, latency = q.forward_s + q.backward_s, 2.0 * q.latency_s
    encode_per_byte_s = options.encode_per_byte_s * q.slowdown
    work = compute + encode_per_byte_s * m
    # of workers that differ, those that are late give up
    least = minimum(late, 1.0) if options.backup_workers and q.classes else 1.0
    if options.overlap or options.duplex:
        # what a worker gets from all servers together comes at the rate of its own link at most
        pull_s = maximum(own_pulling_s / d.fullest, pulling_s)
        # of several threads an update takes one
        longer = maximum(d.threads / updating, 1.0)
        stages = [
            Stage(0.0, d.sent * maximum(own_pushing_s / d.fullest, pushing_s)),
            Stage(updating * d.per_tensor_s, updating * d.per_byte_s, longer),
        ]
        if options.duplex:
            stages.append(Stage(0.0, pull_s))
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
        pull = m * maximum(own_pulling_s, d.fullest * pulling_s)
        push = m * d.sent * maximum(own_pushing_s, d.fullest * pushing_s)
        update = maximum(updating * d.update_s, d.longest_s)
    if flows.in_step and not options.overlap and not q.alike and not is_symbol(q.workers):
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
    later = maximum(late - 1.0, 0.0)
    apart = minimum(2.0 * compute * later / maximum(push_s, NO_TIME), 1.0)
    return (
        apart * (sent - end) + (1.0 - apart) * push_s,
        apart * (applied - sent) + (1.0 - apart) * update_s,
    )


def _apart(job: Job, q: Quantities) -> Phases:
    """ASP: workers go round on their own, and slow each other down where they meet.

    SSP: nobody is more than ``staleness_bound`` iterations ahead of the slowest, so that all go as
    fast as it does in the long run.
    """
    options = Options.of(job)
    kinds = q.by_class()
    each = [Demands.of(job, kind) for kind in kinds]
    link_s = each[0].shared_s * each[0].fullest * q.gradient_bytes
    demands = [link_s, each[0].sent * link_s, each[0].update_s]
    beside = job.cluster.devices_per_node > job.cluster.nics_per_node
    even = regularity(each[0].update_s, link_s) if q.corrected else 0.0
    regular = [even, even, 1.0 if q.corrected else 0.0]
    if beside:  # workers of a node meet on its link as well
        demands, regular = [*demands, 0.0, 0.0], [*regular, 0.0, 0.0]

    def slowed(
        kind: Quantities, own: Demands, others: Sequence[Quantity], late: Quantity
    ) -> Phases:
        return _lap(job, kind, own, late, _flows(q, own, others))

    def lap_of(kind: Quantities, own: Demands, least_s: Quantity) -> Any:
        def lap(others: Sequence[Quantity]) -> tuple[Quantity, list[Quantity]]:
            held = [(1.0 + found) * demand for found, demand in zip(others, demands, strict=True)]
            if beside:
                flows, own_s = _flows(q, own, others), own.own_s * q.gradient_bytes
                held[3:] = [flows.own_pulling * own_s, flows.own_pushing * own.sent * own_s]
            return maximum(slowed(kind, own, others, 1.0).iteration_s, least_s), held

        return lap

    def settled(least_s: Quantity) -> list[list[Quantity]]:
        found = contended(
            q.counts,
            demands,
            [lap_of(kind, own, least_s) for kind, own in zip(kinds, each, strict=True)],
            even=regular,
            stations=("pull", "push", "update", "own pull", "own push")[: len(demands)],
        )
        if options.servers > 1 and q.corrected:
            laps = [slowed(*row, 1.0) for row in zip(kinds, each, found, strict=True)]
            use = link_s / maximum(mixed(q.counts, laps).iteration_s, least_s)
            found = [_bunched(q, each[0], use, others) for others in found]
        return found

    found = settled(0.0)
    slowest_s: Quantity = 0.0
    if options.sync == "ssp" and options.staleness_bound < math.inf:
        late = _late(q, int(options.staleness_bound))
        step_s, tied = _burst(job, q, kinds, each, late)
        for _ in range(TIED):
            rows = zip(kinds, each, found, late, strict=True)
            slowest_s = maximum(0.0, *(slowed(*row).iteration_s for row in rows))
            slowest_s = slowest_s + tied * maximum(step_s - slowest_s, 0.0)
            found = settled(slowest_s)
    laps = [slowed(*row, 1.0) for row in zip(kinds, each, found, strict=True)]
    if options.sync == "ssp":
        laps = [_bounded(lap, slowest_s) for lap in laps]
    both = list(zip(kinds, each, strict=True))
    result = held_up(
        q.counts,
        laps,
        links_s=maximum(
            q.workers * maximum(*demands[:2]),
            _least_s(q, [kind.on_a_nic(kind.fullest) * d.own_s for kind, d in both])
            * maximum(1.0, each[0].sent),
        ),
        servers_s=q.workers * demands[2],
    )
    together = options.softsync
    return msgspec.structs.replace(
        result,
        busy_s={name: q.workers * seconds for name, seconds in result.busy_s.items()},
        updates=1.0 / together,
        # of the N gradients from one read of a worker to the next all but its own age the copy
        staleness=(q.workers - 1.0) / together,
        spread=q.cv * result.compute_s / maximum(result.iteration_s, NO_TIME),
    )


def _least_s(q: Quantities, own_s: Sequence[Quantity]) -> Quantity:
    """For how long an iteration keeps every worker's own link busy at least: where links differ,
    each goes at the rate of its own."""
    return q.gradient_bytes * functools.reduce(minimum, own_s)


def _late(q: Quantities, bound: int) -> list[Quantity]:
    """For each class, how much longer than its mean it computes where others wait for it: the
    slowest, as far as others catch up with the bound."""
    longer = q.slowest_followed(bound) / q.unequal
    most = max((kind.scale for kind in q.classes), default=0.0)
    return [longer if kind.scale == most else 1.0 for kind in q.classes] or [longer]


def _burst(
    job: Job,
    q: Quantities,
    kinds: Sequence[Quantities],
    each: Sequence[Demands],
    late: Sequence[Quantity],
) -> tuple[Quantity, Quantity]:
    """An iteration of SSP (s) if everybody is as far ahead of the slowest as may be, and the part
    of the workers for whom that is so.

    All are then let go at the same time, when the slowest is done, as with BSP.
    """
    bound, n = Options.of(job).staleness_bound, q.workers
    d = msgspec.structs.replace(Demands.of(job, q), own_s=1.0 / q.at_once_bytes_per_s)
    step = _in_step(job, q, d, q.slowest_followed(int(bound)), n)
    laps_s = []
    for kind, own, longer in zip(kinds, each, late, strict=True):
        beside = kind.on_a_nic(kind.fullest)
        laps_s.append(_lap(job, kind, own, longer, Flows(n, n, n, beside, beside)).iteration_s)
    most_s = maximum(0.0, *laps_s)
    return step.iteration_s, _tied(q, bound, [most_s / seconds for seconds in laps_s])


def _tied(q: Quantities, bound: float, faster: Sequence[Quantity]) -> Quantity:
    """The part of all others that is held up at the bound in an iteration, on average.

    Of each class it is given how many times ``faster`` than the slowest it is. The lead of a worker
    over the slowest is a random walk with drift between reflecting barriers: but for
    exp(-2 drift bound / variance) of the time it is near the far one (Harrison, "Brownian Motion
    and Stochastic Flow Systems", 1985, section 5.6). What it gains there is waited for in steps as
    long as the walk overshoots a barrier, 0.583 standard deviations and the drift (Siegmund,
    "Sequential Analysis", 1985, section 10.4).
    """
    if not q.classes:
        return 0.0
    spread = 2.0**0.5 * q.cv
    parts = []
    for count, times in zip(q.counts, faster, strict=True):
        drift = maximum(times - 1.0, 0.0)
        away = np.exp(-minimum(2.0 * bound * drift / maximum(spread, NO_TIME) ** 2, 100.0))
        parts.append(count * (1.0 - away) * drift / maximum(drift + OVERSHOOT * spread, NO_TIME))
    return minimum(sum(parts) / (q.workers - 1.0), 1.0)


def _flows(q: Quantities, d: Demands, others: Sequence[Quantity]) -> Flows:
    """With so many others at each station. Of those on all nodes, the ones on its own meet a worker
    on the link of its node."""
    pulling, pushing, updating = (1.0 + found for found in others[:3])
    if len(others) == 3:
        return Flows(pulling, pushing, updating, 1.0, 1.0)
    part = d.beside / maximum(q.workers - 1.0, 1.0)
    return Flows(pulling, pushing, updating, *(1.0 + part * found for found in others[3:]))


def _bunched(
    q: Quantities, d: Demands, use: Quantity, others: Sequence[Quantity]
) -> list[Quantity]:
    """The others that one finds where several servers hold unequal parts.

    ``use`` is how much of its time one worker alone keeps the fullest server's link busy.
    """
    busy = minimum(q.workers * use, 1.0)
    share = where(d.fullest * q.servers > 1.0 + 1e-9, BUNCHED * d.in_step * busy**2, 0.0)
    pulling, pushing, *rest = others
    everybody = q.workers - 1.0
    return [
        pulling + share * (everybody - pulling),
        pushing + share * (everybody - pushing),
        *rest,
    ]


def _bounded(lap: Phases, slowest_s: Quantity) -> Phases:
    """A lap that takes as long as that of the slowest at least."""
    late = maximum(slowest_s - lap.iteration_s, 0.0)
    return msgspec.structs.replace(
        lap, parts={**lap.parts, "staleness bound": Phase(late, "staleness_bound")}
    )


# -- how far it is right -----------------------------------------------------------------------


def exact(job: Job) -> bool:
    """Whether the coarse model equals the simulation."""
    options = Options.of(job)
    # layers before the first with parameters begin while others are still being updated
    first = options.duplex or not options.overlap or expanded(job.workload).layers[0].tensor_bytes
    one_by_one = options.servers == 1 and job.cluster.update_threads == 1
    simple = bool(first) and one_by_one and leaves_out(job) is None
    if options.sync == "ssp" and options.staleness_bound == 0.0:  # wherever workers start
        return simple and plain(msgspec.structs.replace(job, start="together"))
    if options.sync == "bsp":
        return simple and plain(job) and options.backup_workers == 0
    alone = job.workers == 1 and options.softsync == 1
    return simple and alone and steady(job) and job.workload.data_loading_s == 0.0


def leaves_out(job: Job) -> str | None:
    """What a job has that the coarse model does not."""
    options = Options.of(job)
    return left_out(
        job,
        {
            "servers on the nodes of workers": job.cluster.server.placement == "colocated",
            "the link inside a node": job.cluster.intra_node is not None
            and options.local_aggregation,
            f"transmission={options.transmission}": options.transmission != "fifo",
            "credit": options.credit_bytes > 0.0,
            "several servers, and links that devices share": options.servers > 1
            and options.sync != "bsp"
            and job.cluster.fullest(job.workers) > job.cluster.nics_per_node,
            "pull=request": options.pull == "request",
            "unequal parts of a full link": job.cluster.queue_bytes is not None
            and job.workers > options.servers,
        },
    )
