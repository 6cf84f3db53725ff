"""Sharded data parallel training: optimizer state, gradients and parameters are split (ZeRO)."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

import msgspec
import numpy as np

from perfmodel.architectures.base import Architecture, Coarse, Traffic
from perfmodel.architectures.parts.collective_rates import all_gather_rate, reduce_scatter_rate
from perfmodel.architectures.parts.communicator import Communicator
from perfmodel.architectures.parts.measured import Use, measured_notes
from perfmodel.architectures.parts.members import Members
from perfmodel.architectures.parts.reduction import (
    MEASURED_ASSUMPTION,
    all_gather_cost,
    reduce_scatter_cost,
)
from perfmodel.architectures.parts.workers import (
    Workers,
    add_workers,
    alike,
    left_out,
    log_steps,
    stagger_s,
)
from perfmodel.base.arrays import Floats, Ids
from perfmodel.base.errors import number, whole_number
from perfmodel.base.quantities import Quantity, maximum, where
from perfmodel.graph.builder import GraphBuilder
from perfmodel.graph.op_graph import OpGraph
from perfmodel.inputs.job import Job
from perfmodel.inputs.options import Option
from perfmodel.inputs.options import Options as Base
from perfmodel.inputs.workload import Workload, expanded
from perfmodel.phases.layers import Layers, Whole
from perfmodel.phases.phases import Phase, Phases
from perfmodel.phases.quantities import Quantities
from perfmodel.theory.buckets import ddp_buckets
from perfmodel.theory.overlap import wait_free

if TYPE_CHECKING:
    from perfmodel.architectures.parts.recorder import Meaning, Recorder

UNIT_BYTES = 25 * 2**20
"""Size at which a unit is closed (25 MiB), as that of a bucket without sharding."""


class Options(Base, frozen=True, forbid_unknown_fields=True):
    """Options of sharded training."""

    stage: Annotated[
        Literal[1, 2, 3],
        Option("1: optimizer state is sharded; 2: gradients as well; 3: parameters, too"),
    ] = 3
    unit_bytes: Annotated[
        float,
        Option("layers travel together in units of at least this size; 0: each on its own"),
    ] = UNIT_BYTES
    prefetch: Annotated[
        int,
        Option(
            "units that may be gathered ahead of the one that computes (stage 3)",
            lambda o: o.stage != 3,
        ),
    ] = 1
    reshard_after_forward: Annotated[
        bool,
        Option(
            "free parameters after forward, and gather them again (stage 3)",
            lambda o: o.stage != 3,
        ),
    ] = True
    reduce_per_byte_s: Annotated[float, Option("time to add one byte's worth of gradients")] = 0.0

    def __post_init__(self) -> None:
        number("unit_bytes", self.unit_bytes)
        whole_number("prefetch", self.prefetch, at_least=0)
        number("reduce_per_byte_s", self.reduce_per_byte_s)


class Units(msgspec.Struct, frozen=True, eq=False):
    """Groups of consecutive layers whose parameters are gathered together, in forward order.

    All of shape (units,): ``bytes``; the ``first`` and the ``last`` layer with parameters.
    """

    bytes: Floats
    first: Ids
    last: Ids


def units_of(workload: Workload, unit_bytes: float) -> Units:
    """Group a workload's layers; a unit is closed by the layer with which it reaches its size."""
    found = [
        (index, sum(layer.tensor_bytes))
        for index, layer in enumerate(expanded(workload).layers)
        if layer.tensor_bytes
    ]
    groups = ddp_buckets(
        [size for _, size in found], cap_bytes=unit_bytes, first_cap_bytes=unit_bytes
    )
    return Units(
        bytes=np.array([sum(found[k][1] for k in group) for group in groups]),
        first=np.array([found[group[0]][0] for group in groups]),
        last=np.array([found[group[-1]][0] for group in groups]),
    )


def build(job: Job, *, fold: bool = False) -> OpGraph:
    """The op graph; with ``fold`` of the first worker, which represents all of them."""
    b = GraphBuilder()
    workers = add_workers(b, job, first=1 if fold else None)
    optimizer = workers.compute(b, "optimizer", job.workload.optimizer_s / job.workers)
    b.edge(workers.backward[:, 0], optimizer)
    b.edge(optimizer, workers.forward[:, 0], lag=1)
    if job.workers > 1:
        _add_collectives(b, job, workers, optimizer, fold)
    if not fold:
        b.stagger(workers.forward[:, 0], stagger_s(job))
    counter = b.counters(optimizer)
    b.probe("staleness", optimizer, optimizer, lag=1, counter=counter, group=workers.index)
    log_steps(b, workers, central=True)
    b.log("update", optimizer)
    return b.build(device=workers.device, mark=optimizer, count=job.workers if fold else 1)


def meaning(job: Job) -> tuple[Recorder, Meaning]:
    """One model, of which each worker updates its part."""
    from perfmodel.architectures.parts.recorder import Recorder, replicas

    recorder = Recorder(job.workers, [float(job.workload.gradient_bytes)], central=True)
    return recorder, replicas(recorder)


def _add_collectives(
    b: GraphBuilder, job: Job, workers: Workers, optimizer: Ids, fold: bool
) -> None:
    """All-gathers of parameters and reduce-scatters of gradients, on one communicator."""
    options = Options.of(job)
    units = units_of(job.workload, options.unit_bytes)
    members = Members.of(job.cluster, job.workers)
    gather = all_gather_cost(members, units.bytes)
    scatter = reduce_scatter_cost(members, units.bytes, options.reduce_per_byte_s)
    alike = gather.symmetric(members.fabric) and scatter.symmetric(members.fabric)
    communicator = Communicator(b, job, members, symmetric=fold and alike)

    gathered = communicator.add("all-gather", gather, axis="unit")
    again = (
        communicator.add("all-gather again", gather, axis="unit")
        if options.stage == 3 and options.reshard_after_forward
        else None
    )
    reduced = communicator.add("reduce-scatter", scatter, axis="unit")
    b.edge(np.broadcast_to(reduced, (len(optimizer), len(reduced))), optimizer[:, None])
    if options.stage == 3:
        gathers = gathered if again is None else np.concatenate([gathered, again[::-1]])
        _in_issue_order(b, options, workers, units, optimizer, gathers, reduced[::-1])
    else:  # all units are gathered before the next step begins
        b.chain(gathered)
        b.chain(reduced[::-1])
        _edge_from_all(b, workers.backward[:, units.first], reduced)
        _edge_from_all(b, optimizer[:, None], gathered[:1])
        b.edge(np.broadcast_to(gathered[-1], optimizer.shape), workers.forward[:, 0], lag=1)
    b.probe("all-gather", gathered, gathered, at_ready=True)
    b.probe("reduce-scatter", reduced, reduced, at_ready=True)


class Issue(NamedTuple):
    """A collective of stage 3 in the order of issue: an all-gather or a reduce-scatter, by its
    ``number`` among those of its kind, issued once computation ``after`` has ended (-1: none)."""

    gather: bool
    number: int
    after: int


def issue_order(units: int, options: Options) -> list[Issue]:
    """The order in which PyTorch's FSDP issues the collectives of an iteration of stage 3.

    Computations are numbered: the forward passes of all units, then, in reverse, their backward
    passes. All-gather k belongs to computation k, reduce-scatter k follows the backward pass
    units + k. An all-gather is issued ``prefetch`` + 1 computations before its own, once its unit
    has been freed. At the end of a backward pass its gradients are reduced before the next unit is
    gathered: the post-backward hook of a unit comes before the pre-backward hook of the
    next one, which gathers and prefetches (torch/distributed/fsdp: ``_runtime_utils.py``,
    ``_fully_shard/_fsdp_param_group.py``; BackwardPrefetch.BACKWARD_PRE). The collectives of one
    process group go one after the other in the order of issue, whatever their streams.
    """
    gathers = 2 * units if options.reshard_after_forward else units
    freed = [-1] * units + [units - 1] * units
    found = [Issue(True, k, max(k - options.prefetch - 1, freed[k])) for k in range(gathers)]
    found += [Issue(False, k, units + k) for k in range(units)]
    return sorted(found, key=lambda issue: (issue.after, issue.gather, issue.number))


def _in_issue_order(
    b: GraphBuilder,
    options: Options,
    workers: Workers,
    units: Units,
    optimizer: Ids,
    gathers: Ids,
    reduced: Ids,
) -> None:
    """Edges of stage 3: each unit is gathered before it computes, and reduced after its backward.

    ``gathers`` and ``reduced`` are in the order of issue; each waits for the one issued before.
    """
    count = len(units.first)
    begins = [workers.forward[:, units.first], workers.backward[:, units.last[::-1]]]
    ends = [workers.forward[:, units.last], workers.backward[:, units.first[::-1]]]
    begin, end = np.concatenate(begins, axis=1), np.concatenate(ends, axis=1)
    needing = begin[:, : len(gathers)]
    b.edge(np.broadcast_to(gathers, needing.shape), needing)
    order = issue_order(count, options)
    issued = np.array([(gathers if one.gather else reduced)[one.number] for one in order])
    after = np.array([one.after for one in order])
    b.chain(issued)
    _edge_from_all(b, end[:, after[after >= 0]], issued[after >= 0])
    _edge_from_all(b, optimizer[:, None], issued[:1], lag=1)


def phases(job: Job, q: Quantities) -> Phases:
    """Computation, and the exposed part of all-gathers and reduce-scatters."""
    return q.at_paces(lambda late: _phases(job, q, late))


def _phases(job: Job, q: Quantities, late: Quantity) -> Phases:
    """The phases if the slowest worker computes ``late`` times as long as the mean one."""
    options = Options.of(job)
    alone = q.workers <= 1
    units = q.layers.once(
        ("units", Options.of(job)), lambda: units_of(job.workload, options.unit_bytes)
    )
    gather, scatter = all_gather_rate(q), reduce_scatter_rate(q, options.reduce_per_byte_s)
    sizes = [q.gradient_bytes * share for share in units.bytes / units.bytes.sum()]
    numbers = units.first.tolist()[::-1]
    if isinstance(q.layers, Whole):
        sizes, numbers = [q.gradient_bytes], [0]
    gathers = [gather.seconds(size) for size in sizes]
    scatters = [scatter.seconds(size) for size in sizes]
    compute = q.forward_s + q.backward_s + q.optimizer_s / q.workers
    passes = (q.forward_s + q.backward_s) * late
    if options.stage == 3 and isinstance(q.layers, Whole):
        both = 2.0 if options.reshard_after_forward else 1.0
        shown = q.layers.beside_s(passes, both * sum(gathers) + sum(scatters)) - passes
    elif options.stage == 3 and isinstance(q.layers, Layers):
        shown = _in_time(options, q.layers, q.scale * late, units, gathers, scatters) - passes
    else:
        computed, end = q.layers.overlapped_s(
            q.scale * late,
            lambda ready_s: wait_free(ready_s, scatters[::-1]),
            numbers,
        )
        shown = end - computed + sum(gathers)
    twice = 2.0 if options.stage == 3 and options.reshard_after_forward else 1.0
    used = Use()
    for size in sizes:
        used = used.plus(gather.busy(size).times(twice)).plus(scatter.busy(size))
    return Phases(
        parts={
            "compute": Phase(compute, "compute"),
            "wait for the slowest": Phase(compute * (late - 1.0), "straggler"),
            "gather and scatter": Phase(where(alone, 0.0, shown), "network"),
        },
        busy_s=used.by_link(job),
        updates=1.0 / q.workers,
    )


def notes(job: Job) -> tuple[str, ...]:
    """Notes where a job extrapolates the measured collectives of its cluster."""
    sizes = units_of(job.workload, Options.of(job).unit_bytes).bytes
    return measured_notes(job, {"all_gather": sizes, "reduce_scatter": sizes})


def exact(job: Job) -> bool:
    """Whether the coarse model equals the simulation.

    At stage 3 the formula lets layers without parameters wait for the unit before them.
    """
    data = job.workload.data_loading_s == 0.0
    known = Options.of(job).stage < 3 or all(a.tensor_bytes for a in expanded(job.workload).layers)
    return known and data and alike(job) and leaves_out(job) is None


def leaves_out(job: Job) -> str | None:
    """The first feature of a job that the coarse model leaves out; None if there is none."""
    return left_out(job, core=False, connections=False, sites=False)


def _in_time(
    options: Options,
    layers: Layers,
    scale: Quantity,
    units: Units,
    gathers: list[Quantity],
    scatters: list[Quantity],
) -> Quantity:
    """Seconds until all gradients are reduced, if each unit is gathered before it computes.

    One collective at a time, in the order of issue (:func:`issue_order`).
    """
    count = len(units.first)
    starts = [*map(layers.index.index, units.first.tolist()), len(layers.index)]
    spans = [slice(*span) for span in itertools.pairwise(starts)]
    computing = [sum(layers.forward_s[span]) for span in spans]
    computing += [sum(layers.backward_s[span]) for span in spans[::-1]]
    computing[0] += layers.first_s
    computing[-1] += layers.last_s
    computing = [scale * seconds for seconds in computing]
    seconds = {True: gathers + gathers[::-1], False: scatters[::-1]}
    free: Quantity = 0.0
    end: Quantity = 0.0
    gathered: list[Quantity] = []
    computed = -1
    for one in issue_order(count, options):
        while computed < one.after:
            computed += 1
            if computed < len(gathered):
                end = maximum(end, gathered[computed])
            end = end + computing[computed]
        free = maximum(free, end) + seconds[one.gather][one.number]
        if one.gather:
            gathered.append(free)
    return maximum(end, free)


def _edge_from_all(b: GraphBuilder, before: Ids, after: Ids, lag: int = 0) -> None:
    """Let ``after`` (ops,) wait for ``before`` (workers, ops) of every worker."""
    b.edge(before, np.broadcast_to(after, before.shape), lag)


def worker_bytes(job: Job) -> float:
    """Peak memory of one worker: optimizer state, gradients, parameters and activations.

    At stage 1 a worker keeps an n-th of the optimizer state. At stage 2 it keeps an n-th of the
    gradients, too, and those of one unit that is being reduced. At stage 3 it keeps an n-th of the
    parameters as well, and the units that are gathered: the one that computes and those prefetched.
    """
    options = Options.of(job)
    whole, n = job.workload.gradient_bytes, job.workers
    units = np.sort(units_of(job.workload, options.unit_bytes).bytes)[::-1]
    gradients = parameters = whole
    if options.stage > 1:
        gradients = min(whole / n + float(units[0]), whole)
    if options.stage == 3 and options.reshard_after_forward:
        parameters = min(whole / n + float(units[: options.prefetch + 1].sum()), whole)
    state = job.workload.optimizer_state_bytes / n
    return state + gradients + parameters + job.workload.activation_bytes


def _fold(job: Job) -> OpGraph:
    return build(job, fold=True)


def traffic(job: Job) -> Traffic:
    """Bytes of a worker: (n-1)/n of the model in each reduce-scatter and each all-gather."""
    options, n = Options.of(job), job.workers
    times = 3 if options.stage == 3 and options.reshard_after_forward else 2
    moved = times * (n - 1) / n * job.workload.gradient_bytes
    return Traffic(moved, moved)


ARCHITECTURE = Architecture(
    name="fsdp",
    title="fully sharded data parallel, ZeRO (synchronous, no server)",
    options=Options,
    build=build,
    server_bytes=None,
    worker_bytes=worker_bytes,
    assumptions=(
        "a ring reduce-scatter, or all-gather, moves (n-1)/n of a unit's bytes over every member's "
        "link, both ways, at the pace of the slowest link",
        "collectives go one at a time, in the order in which they are issued: at stage 3 a unit's "
        "gradients are reduced before what may be gathered from then on, as in PyTorch",
        "a worker's optimizer updates its own part of the parameters, in 1/n of the time",
        "at stages 1 and 2 all parameters are gathered between the optimizer and the next forward "
        "pass; both take the same time, and differ in memory alone",
        "a unit that was freed after forward is gathered again for backward, the last one included",
        "gathered parameters have as many bytes as gradients",
        MEASURED_ASSUMPTION,
    ),
    source="Rajbhandari et al., SC 2020, doi 10.1109/SC41405.2020.00024; "
    "Zhao et al., PVLDB 16(12), 2023, doi 10.14778/3611540.3611569",
    aliases={"zero1": {"stage": 1}, "zero2": {"stage": 2}, "zero3": {"stage": 3}},
    fold=_fold,
    notes=notes,
    variants=(
        {"stage": 1, "unit_bytes": 0},
        {"stage": 2},
        {"stage": 3, "unit_bytes": 0},
        {"stage": 3, "unit_bytes": 50, "prefetch": 0, "reduce_per_byte_s": 0.01},
        {"stage": 3, "unit_bytes": 0, "prefetch": 3, "reshard_after_forward": False},
    ),
    traffic=traffic,
    meaning=meaning,
    coarse=Coarse(phases=phases, exact=exact, leaves_out=leaves_out),
)
