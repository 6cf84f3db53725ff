"""The coarse model of the parameter server: pull, compute, push, update."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence

import msgspec
import numpy as np

from perfmodel.architectures.ps.demands import Demands, Flows
from perfmodel.architectures.ps.options import Options
from perfmodel.architectures.ps.placement import joined, slices_of
from perfmodel.base.quantities import Quantity, is_symbol, largest, maximum, minimum, where
from perfmodel.graph.op_graph import MANY_GROUPS
from perfmodel.inputs.job import Job
from perfmodel.inputs.workload import Workload, expanded
from perfmodel.phases.layers import Layers, Part, Stage
from perfmodel.phases.phases import Phase, Phases, mixed, resource_limited, several
from perfmodel.phases.quantities import Quantities, quantities_of
from perfmodel.phases.whole import Whole
from perfmodel.theory.contention import CycleTime, Pace, contended, regularity
from perfmodel.training.workers import left_out, plain, steady

GROUPS = 16
"""Number of groups of workers that finish their computation at about the same time."""

FEW_GROUPS = 5
"""The same with overlap by layer, which is slower to evaluate."""

MOST, MOST_OF_EACH = 4096, 256
"""Messages of a worker, or to each server on average if these are many: of more parts several are
one message (decision 0116)."""

LOCKSTEP_SHARE = 0.5
"""Degree of lockstep of asynchronous workers, from 0 for random arrivals to 1, if tensors are cut
evenly but servers hold unequal parts, so that each cycle waits for the fullest server. It is the
mean over simulated jobs of AlexNet and VGG-16 with 8 to 24 workers on 4 and 6 servers, whose
values were 0.13 to 0.73."""

OVERSHOOT = 0.583
"""Mean overshoot of a random walk of normal steps over a barrier, in standard deviations."""

NO_TIME = 1e-150
"""Replaces zero in divisors (s)."""


def phases(job: Job, q: Quantities) -> Phases:
    """Return the pull, compute, push and update phases of a worker's iteration."""
    options = Options.of(job)
    if isinstance(q.layers, Whole):
        q = msgspec.structs.replace(
            q,
            layers=msgspec.structs.replace(
                q.layers, part=Demands.of(options, job.workload, q).fullest
            ),
        )
    elif options.servers > 1 or options.partition_bytes < math.inf:
        whole = q.layers
        placed = whole.once(("placed", options), lambda: _placed(options, job.workload, whole))
        q = msgspec.structs.replace(q, layers=placed)
    if _queue(options):
        beside = job.cluster.devices_per_node > job.cluster.nics_per_node
        return _apart(options, job.workload, q, beside=beside)
    together = _together(options, job.workload, q)
    return together if options.sync == "bsp" else _each_step(together, q)


def queues(job: Job) -> bool:
    """Return whether workers iterate independently, so that they queue."""
    return _queue(Options.of(job))


def _queue(options: Options) -> bool:
    in_step = options.sync == "ssp" and options.staleness_bound == 0.0
    return options.sync != "bsp" and not in_step


def _placed(options: Options, workload: Workload, layers: Layers) -> Layers:
    """Return the layers, with their slices on the servers."""
    most = max(MOST, MOST_OF_EACH * options.servers)
    slices = slices_of(workload, options)
    if len(slices.layer) > most:
        slices = joined(slices, most)
    parts: dict[int, list[Part]] = {}
    columns = (slices.layer, slices.server, slices.bytes, slices.tensors)
    for layer, server, size, tensors in zip(*(c.tolist() for c in columns), strict=True):
        parts.setdefault(layer, []).append(Part(server, size, tensors))
    return layers.placed(parts)


def _together(options: Options, workload: Workload, q: Quantities) -> Phases:
    """Return the phases of BSP: all workers in step, at the pace of the slowest."""
    pushers = q.nodes if options.local_aggregation else q.workers
    demands = Demands.of(options, workload, q)
    # if links differ, take the worker with the smallest share of a link
    own_s = 1.0 / (q.bandwidth_bytes_per_s if options.local_aggregation else q.at_once_bytes_per_s)
    demands = msgspec.structs.replace(demands, own_s=own_s)
    phases = q.at_paces(
        lambda late: _in_step(options, q, demands, late, pushers), late=options.backup_workers
    )
    busy_s = {name: pushers * seconds for name, seconds in phases.busy_s.items()}
    busy_s["servers"] = busy_s["servers"] + demands.optimizer_s
    return msgspec.structs.replace(phases, busy_s=busy_s, updates=1.0 / q.workers)


def _in_step(
    options: Options, q: Quantities, d: Demands, late: Quantity, pushers: Quantity
) -> Phases:
    """Return an iteration with a barrier; the slowest worker computes ``late`` times the mean.

    All pull at the same time. Faster workers push earlier, so the iteration ends with the last busy
    period of the link: the pushes of the slowest worker alone, or of all workers from some quantile
    group on. The maximum over the groups is the makespan of a work-conserving link (Pinedo,
    "Scheduling", 5th ed., section 4.1).
    """
    all_at_once = Flows(pushers, pushers, pushers, 1.0, 1.0, in_step=True)
    alone = q.alike or not (options.overlap or options.duplex) or is_symbol(q.workers)
    if alone or options.local_aggregation or options.backup_workers:
        return _iteration(options, q, d, late, all_at_once)
    share = 1.0 / q.on_a_nic(q.fullest)
    fastest = [q.on_a_nic(kind.devices) / kind.bandwidth_bytes_per_s for kind in q.classes]
    factors = [minimum(factor, late) for factor in q.typical(FEW_GROUPS)]
    rest = [
        maximum(pushers * (FEW_GROUPS - group) / FEW_GROUPS, 1.0) for group in range(FEW_GROUPS + 1)
    ]

    def from_group(factor: Quantity, own_s: Quantity, rest: Quantity) -> Phases:
        flows = Flows(pushers, rest, rest, 1.0, maximum(rest / pushers, share), in_step=True)
        return _iteration(options, q, msgspec.structs.replace(d, own_s=own_s), factor, flows)

    own_s = [minimum(d.own_s, d.own_s, *fastest)] * FEW_GROUPS
    iterations = several(from_group, [*factors, late], [*own_s, d.own_s], rest)
    slowest = iterations[-1]
    longer = maximum(*(iteration.iteration_s for iteration in iterations)) - slowest.iteration_s
    push = Phase(slowest.parts["push"].seconds + longer, "network")
    return msgspec.structs.replace(slowest, parts={**slowest.parts, "push": push})


def _each_step(phases: Phases, q: Quantities) -> Phases:
    """Return the phases of SSP with bound 0, given those :func:`_together`: it has the same
    barrier, but each gradient is an update."""
    parts = {name: part for name, part in phases.parts.items() if part.cause != "straggler"}
    waiting = sum(part.seconds for part in phases.parts.values() if part.cause == "straggler")
    return msgspec.structs.replace(
        phases,
        parts={**parts, "staleness bound": Phase(waiting, "staleness_bound")},
        updates=1.0,
        # all workers read the same version; their gradients are applied one after the other
        staleness=(q.workers - 1.0) / 2.0,
    )


def _iteration(options: Options, q: Quantities, d: Demands, late: Quantity, flows: Flows) -> Phases:
    """Return an iteration of a worker that computes ``late`` times as long as the mean."""
    m = q.gradient_bytes
    pulling_s, pushing_s = flows.pulling * d.shared_s, flows.pushing * d.shared_s
    own_pulling_s, own_pushing_s = d.own_s * flows.own_pulling, d.own_s * flows.own_pushing
    updating = flows.updating
    compute, latency = q.forward_s + q.backward_s, 2.0 * q.latency_s
    encode_per_byte_s = options.encode_per_byte_s * q.slowdown
    work = compute + encode_per_byte_s * m
    # if workers differ, the late ones are the slow ones, and nothing waits for them
    least = minimum(late, 1.0) if options.backup_workers and q.classes else 1.0
    if options.overlap or options.duplex:
        # the rate from all servers together is at most that of the worker's own link
        pull_s, push_s = largest(
            (own_pulling_s / d.fullest, pulling_s, d.flow_s),
            (own_pushing_s / d.fullest, pushing_s, d.flow_s),
        )
        push_s = d.sent * push_s
        # an update uses one of several threads
        longer = 1.0 if d.threads == 1 else maximum(d.threads / updating, 1.0)
        stages = [
            Stage(0.0, 1, times=push_s),
            Stage(d.per_tensor_s, d.per_byte_s, longer, updating, d.optimizer_per_byte_s),
        ]
        if options.duplex:
            stages.append(Stage(0.0, 1, times=pull_s))
        scale, encode = q.scale * late, encode_per_byte_s * late
        if options.duplex:
            computed, *ends, last = q.layers.backward_and_send_s(
                scale,
                stages,
                encode_per_byte_s=encode,
                latency_s=latency,
                overlap=options.overlap,
                next_forward=options.overlap,
            )
            latency = last - ends[-1]
        else:
            (computed, *ends), forward_s = q.layers.step_s(
                scale, stages, pull_s, encode_per_byte_s=encode
            )
            ends.append(ends[-1] + (forward_s - q.forward_s * late))
        push, update, pull = (z - a for a, z in itertools.pairwise([computed, *ends]))
    else:
        pull_s, push_s = largest(
            (own_pulling_s, d.fullest * pulling_s, d.fullest * d.flow_s),
            (own_pushing_s, d.fullest * pushing_s, d.fullest * d.flow_s),
        )
        pull, push = m * pull_s, m * d.sent * push_s
        update = maximum(updating * d.update_s, d.longest_s) + d.optimizer_s
    if flows.in_step and not options.overlap and not q.alike and not is_symbol(q.workers):
        push, update = _one_by_one(q, late, push, update)
    link_s = d.fullest * m / q.server_bandwidth_bytes_per_s
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
    """Return the time that pushes and updates still take when the slowest worker has computed.

    Without overlap the others have pushed before. All pushes together take ``push_s``, all updates
    ``update_s``. Workers that arrive at the same time share the link, and their pushes end
    together; workers further apart than the pushes are served one after the other. In between the
    result is interpolated linearly.
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


def _apart(options: Options, workload: Workload, q: Quantities, *, beside: bool) -> Phases:
    """Return the phases of ASP: workers iterate independently and contend for links and servers.

    With SSP no worker is more than ``staleness_bound`` iterations ahead of the slowest, so in the
    long run all workers have its rate. Workers ``beside`` others also contend for their node's
    link.
    """
    kinds = q.by_class()
    by_kind = [Demands.of(options, workload, kind) for kind in kinds]
    link_s = by_kind[0].shared_s * by_kind[0].fullest * q.gradient_bytes
    demands = [link_s, by_kind[0].sent * link_s, by_kind[0].update_s]
    even = regularity(by_kind[0].update_s, link_s) if q.corrected else 0.0
    regular = [even, even, 1.0 if q.corrected else 0.0]
    if beside:
        demands, regular = [*demands, 0.0, 0.0], [*regular, 0.0, 0.0]

    def slowed(kind: Quantities, d: Demands, others: Sequence[Quantity], late: Quantity) -> Phases:
        return _iteration(options, kind, d, late, _flows(q, kind, others))

    def cycle_of(kind: Quantities, d: Demands) -> CycleTime:
        def cycle(others: Sequence[Quantity]) -> tuple[Quantity, list[Quantity]]:
            flows = _flows(q, kind, others)
            shared = flows.pulling, flows.pushing, flows.updating
            held = [times * demand for times, demand in zip(shared, demands, strict=False)]
            if beside:
                own_s = d.own_s * q.gradient_bytes
                held += [flows.own_pulling * own_s, flows.own_pushing * d.sent * own_s]
            return _iteration(options, kind, d, 1.0, flows).iteration_s, held

        return cycle

    pace = _pace(options, workload, q, kinds, by_kind)
    queued = contended(
        q.counts,
        demands,
        [cycle_of(kind, d) for kind, d in zip(kinds, by_kind, strict=True)],
        even=regular,
        stations=("pull", "push", "update", "own pull", "own push")[: len(demands)],
        pace=pace,
    )
    if options.servers > 1 and q.corrected:
        iterations = [slowed(*row, 1.0) for row in zip(kinds, by_kind, queued, strict=True)]
        least_s = pace(queued) if pace is not None else 0.0
        use = link_s / maximum(mixed(q.counts, iterations).iteration_s, least_s)
        queued = [_in_lockstep(q, by_kind[0], use, others) for others in queued]
    classes = [slowed(*row, 1.0) for row in zip(kinds, by_kind, queued, strict=True)]
    if options.sync == "ssp":
        slowest_s = pace(queued) if pace is not None else 0.0
        classes = [_bounded(phases, slowest_s) for phases in classes]
    # if links differ, each worker is limited by its own, so the fastest link counts
    on_nic_s = [k.on_a_nic(k.fullest) * d.own_s for k, d in zip(kinds, by_kind, strict=True)]
    result = resource_limited(
        q.counts,
        classes,
        links_s=maximum(
            q.workers * maximum(*demands[:2], by_kind[0].both_ways_s * q.gradient_bytes),
            q.gradient_bytes * functools.reduce(minimum, on_nic_s) * maximum(1.0, by_kind[0].sent),
        ),
        servers_s=q.workers * demands[2],
    )
    return msgspec.structs.replace(
        result,
        busy_s={name: q.workers * seconds for name, seconds in result.busy_s.items()},
        updates=1.0 / options.softsync,
        # between a worker's read and its update, each of the other workers updates once on average
        staleness=(q.workers - 1.0) / options.softsync,
        spread=q.cv * result.compute_s / maximum(result.iteration_s, NO_TIME),
    )


def _pace(
    options: Options,
    workload: Workload,
    q: Quantities,
    kinds: Sequence[Quantities],
    by_kind: Sequence[Demands],
) -> Pace | None:
    """Return the cycle time of all workers under SSP, given the others present; None under ASP, or
    if none waits because all compute equally long.

    It is that of the slowest worker, for which the others wait at the staleness bound. The fraction
    of them that wait there pulls and pushes in bursts.
    """
    bound = options.staleness_bound
    if options.sync != "ssp" or bound == math.inf:
        return None
    if q.alike and not is_symbol(q.workers):
        return None
    late = _late(q, int(bound))
    step_s, tied = _burst(options, workload, q, kinds, by_kind, late)

    def pace(queued: Sequence[Sequence[Quantity]]) -> Quantity:
        rows = zip(kinds, by_kind, queued, late, strict=True)
        iterations = [
            _iteration(options, kind, d, longer, _flows(q, kind, others))
            for kind, d, others, longer in rows
        ]
        slowest_s = maximum(0.0, *(iteration.iteration_s for iteration in iterations))
        return slowest_s + tied * maximum(step_s - slowest_s, 0.0)

    return pace


def _late(q: Quantities, bound: int) -> list[Quantity]:
    """Return for each class the factor on its mean computation while others wait for it at the
    bound: more than 1 only for the slowest class."""
    longer = q.slowest_followed(bound) / q.unequal
    most = max((kind.scale for kind in q.classes), default=0.0)
    return [longer if kind.scale == most else 1.0 for kind in q.classes] or [longer]


def _burst(
    options: Options,
    workload: Workload,
    q: Quantities,
    kinds: Sequence[Quantities],
    by_kind: Sequence[Demands],
    late: Sequence[Quantity],
) -> tuple[Quantity, Quantity]:
    """Return an iteration of SSP if all workers wait at the staleness bound (s), and the fraction
    of the workers that do: none if all are of one class.

    They are released at the same time, when the slowest is done, as with BSP.
    """
    if not q.classes:
        return 0.0, 0.0
    n, bound = q.workers, options.staleness_bound
    d = Demands.of(options, workload, q)
    d = msgspec.structs.replace(d, own_s=1.0 / q.at_once_bytes_per_s)
    step = _in_step(options, q, d, q.slowest_followed(int(bound)), n)
    iterations_s = []
    for kind, d, longer in zip(kinds, by_kind, late, strict=True):
        beside = kind.on_a_nic(kind.fullest)
        flows = Flows(n, n, n, beside, beside)
        iterations_s.append(_iteration(options, kind, d, longer, flows).iteration_s)
    most_s = maximum(0.0, *iterations_s)
    return step.iteration_s, _tied(q, bound, [most_s / seconds for seconds in iterations_s])


def _tied(q: Quantities, bound: float, faster: Sequence[Quantity]) -> Quantity:
    """Return the mean fraction of the other workers that wait at the staleness bound.

    ``faster`` is the speed of each class relative to the slowest. The lead of a worker over the
    slowest is a random walk with drift between reflecting barriers: it is near the upper one except
    for exp(-2 drift bound / variance) of the time (Harrison, "Brownian Motion and Stochastic Flow
    Systems", 1985, section 5.6). There it waits in steps of the walk's overshoot over a barrier:
    the drift plus 0.583 standard deviations (Siegmund, "Sequential Analysis", 1985, section 10.4).
    """
    spread = 2.0**0.5 * q.cv
    parts = []
    for count, times in zip(q.counts, faster, strict=True):
        drift = maximum(times - 1.0, 0.0)
        away = np.exp(-minimum(2.0 * bound * drift / maximum(spread, NO_TIME) ** 2, 100.0))
        parts.append(count * (1.0 - away) * drift / maximum(drift + OVERSHOOT * spread, NO_TIME))
    return minimum(sum(parts) / (q.workers - 1.0), 1.0)


def _flows(q: Quantities, kind: Quantities, others: Sequence[Quantity]) -> Flows:
    """Return the flows of a worker of one ``kind`` with ``others`` at each station. Of these, the
    fraction on the worker's own node shares the link of that node."""
    pulling, pushing, updating = (1.0 + queued for queued in others[:3])
    if len(others) == 3:
        return Flows(pulling, pushing, updating, 1.0, 1.0)
    part = kind.beside / maximum(q.workers - 1.0, 1.0)
    own_pulling, own_pushing = (1.0 + part * queued for queued in others[3:])
    return Flows(pulling, pushing, updating, own_pulling, own_pushing)


def _in_lockstep(
    q: Quantities, d: Demands, use: Quantity, others: Sequence[Quantity]
) -> list[Quantity]:
    """Return the others present, corrected for lockstep if several servers hold unequal parts.

    ``use`` is the utilisation of the fullest server's link by one worker. Many workers have drifted
    apart (docs/decisions/0081-many-workers-have-drifted-apart.md).
    """
    busy = minimum(q.workers * use, 1.0)
    share = where(d.fullest * q.servers > 1.0 + 1e-9, LOCKSTEP_SHARE * d.lockstep * busy**2, 0.0)
    share = where(q.workers < MANY_GROUPS, share, 0.0)
    pulling, pushing, *rest = others
    all_others = q.workers - 1.0
    return [
        pulling + share * (all_others - pulling),
        pushing + share * (all_others - pushing),
        *rest,
    ]


def _bounded(phases: Phases, slowest_s: Quantity) -> Phases:
    """Return an iteration at the staleness bound: no shorter than the slowest worker's."""
    late = maximum(slowest_s - phases.iteration_s, 0.0)
    return msgspec.structs.replace(
        phases, parts={**phases.parts, "staleness bound": Phase(late, "staleness_bound")}
    )


# -- range of validity -------------------------------------------------------------------------


def exact(job: Job) -> bool:
    """Return whether the coarse model equals the simulation."""
    options = Options.of(job)
    # layers before the first one with parameters begin while updates are still running
    first = options.duplex or not options.overlap or expanded(job.workload).layers[0].tensor_bytes
    one_by_one = options.servers == 1 and job.cluster.update_threads == 1
    one_by_one &= options.sync != "bsp" or job.cluster.server.optimizer_per_byte_s == 0.0
    simple = bool(first) and one_by_one and leaves_out(job) is None
    if options.sync == "ssp" and options.staleness_bound == 0.0:  # for any start of the workers
        return simple and plain(msgspec.structs.replace(job, start="together"))
    if options.sync == "bsp":
        return simple and plain(job) and options.backup_workers == 0
    alone = job.workers == 1 and options.softsync == 1
    return simple and alone and steady(job) and job.workload.data_loading_s == 0.0


def leaves_out(job: Job) -> str | None:
    """Return the first feature of a job that the coarse model leaves out, or None."""
    options = Options.of(job)
    return left_out(
        job,
        {
            "servers colocated with workers": job.cluster.server.placement == "colocated",
            "the link inside a node": job.cluster.intra_node is not None
            and options.local_aggregation,
            f"transmission={options.transmission}": options.transmission != "fifo",
            "credit": options.credit_bytes > 0.0,
            "several servers with links shared by devices": options.servers > 1
            and options.sync != "bsp"
            and job.cluster.fullest(job.workers) > job.cluster.nics_per_node,
            "pull=request": options.pull == "request",
            "backup workers on unequal links": options.backup_workers > 0
            and quantities_of(job).least_bytes_per_s is not None,
            "unequal shares of a full link": job.cluster.queue_bytes is not None
            and job.workers > options.servers,
        },
        connections=False,
        parts=None,
    )
