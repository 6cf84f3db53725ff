"""Jobs whose workers are islands: an inner job inside each island, an outer job among them.

The step time inside an island is that of its inner job, predicted alone. In the outer job an island
is a worker whose computation takes that long, and which has the links of its nodes. This combines
any two architectures without either knowing of the other. It ignores contention between the two: if
an island has several nodes and exchanges during a step, both jobs use the links between nodes.

An island may do several steps between two exchanges. It then exchanges its progress instead of
gradients; with servers this is asynchronous local SGD (Liu et al., 2024, arXiv 2401.09135).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping

import msgspec
import numpy as np

from perfmodel.architectures import registry
from perfmodel.architectures.base import Architecture, architecture_of
from perfmodel.base.errors import InputError
from perfmodel.base.provenance import Assumption
from perfmodel.base.units import show
from perfmodel.inputs.cluster import Cluster
from perfmodel.inputs.islands import ONE_STEP, IslandSteps, Places, among, inside, places_of
from perfmodel.inputs.job import Island, Jitter, Job
from perfmodel.inputs.options import Options
from perfmodel.inputs.workload import Workload
from perfmodel.predicting import coarse, fine, job_facts
from perfmodel.predicting.waits import with_causes
from perfmodel.results.outcome import Outcome
from perfmodel.results.prediction import Idle

REL_CI = 0.002
"""Half-width of the 95 % confidence interval of a step inside an island, as a fraction."""

ROUNDING = 1e-9
"""Relative difference of times that count as equal."""

DRAWS = 64
"""Number of values that represent the distribution of the slowest device's compute time."""


def joined(
    flat: Job,
    devices: tuple[int, ...],
    arch: str,
    given: Mapping[str, object],
    steps: IslandSteps = ONE_STEP,
) -> Job:
    """Return the outer job, in which each worker is an island of several devices.

    Parameters
    ----------
    flat : the job with single devices instead of islands; its batch size is per device.
    devices : number of devices of each island, (workers,).
    arch, given : the architecture inside islands, and its options by name.
    steps : steps of an island from one exchange to the next.

    Raises
    ------
    InputError : the inner architecture does not keep one model; the islands do not fit on the
        cluster; an option does not belong to the architecture.
    """
    architecture, preset = registry.find(arch)
    known = {**preset, **given}
    options = registry.read_options(architecture, known, flat.cluster)
    return _among(flat, devices, architecture, options, steps, island_of, known)


def changed(job: Job, flat: Job) -> Job:
    """A job with the same islands of other devices: those of ``flat``.

    Steps inside islands are predicted by formulas, so that many variants of a job take little time.
    Compare it with ``changed(job, job.of_devices)``. Without islands it is ``flat`` itself.

    Raises
    ------
    InputError : the islands do not fit on the cluster of ``flat``.
    """
    if not job.islands:
        return flat
    inner = job.islands[0].job
    counts = {island.steps for island in job.islands}
    return _among(
        flat,
        tuple(island.devices for island in job.islands),
        architecture_of(inner),
        inner.options,
        IslandSteps(max(counts), equal_time=len(counts) > 1),
        island_by_formulas,
    )


def _among(
    flat: Job,
    devices: tuple[int, ...],
    architecture: Architecture,
    options: Options,
    steps: IslandSteps,
    predicted: Callable[[Job], Island],
    given: Collection[str] | None = None,
) -> Job:
    """The outer job, with islands ``predicted`` from their inner jobs; of ``options``, other names
    than those ``given`` have the defaults of an island's devices."""
    places = places_of(flat.cluster, devices)
    made: dict[object, Island] = {}
    islands = []
    for first, many, count in zip(places.first, places.many, devices, strict=True):
        where = inside(flat.cluster, first, many)
        alike = (count, many, where.overrides)
        if alike not in made:
            own = options if given is None else registry.with_defaults(options, given, where, count)
            made[alike] = predicted(_inner(flat, architecture, own, where, count, steps.most))
        islands.append(made[alike])
    return _outer(flat, _with_steps(flat, tuple(islands), steps), places)


def _with_steps(flat: Job, islands: tuple[Island, ...], steps: IslandSteps) -> tuple[Island, ...]:
    """Give islands their step counts; if all take equally long, the fastest does the most.

    The others do as many as fit into the same time, one at least (Liu et al., 2024, arXiv
    2401.09135, dynamic local updates: the floor of H times the relative speed).
    """
    slower = {straggler.worker: straggler.factor for straggler in flat.stragglers}
    each_s = [island.step_s * slower.get(i, 1.0) for i, island in enumerate(islands)]
    counts = (
        max(math.floor(steps.most * min(each_s) / step_s * (1.0 + ROUNDING)), 1)
        if steps.equal_time
        else steps.most
        for step_s in each_s
    )
    return tuple(
        msgspec.structs.replace(island, steps=count)
        for island, count in zip(islands, counts, strict=True)
    )


def _inner(
    flat: Job,
    architecture: Architecture,
    options: Options,
    where: Cluster,
    devices: int,
    steps: int,
) -> Job:
    """Return the job inside one island; it runs the optimizer unless servers do after each step."""
    workload = flat.workload
    if steps == 1 and architecture_of(flat).updates_on_servers:
        on_device = msgspec.structs.replace(workload.storage, offload=False)
        workload = msgspec.structs.replace(workload, optimizer_s=0.0, storage=on_device)
    job = Job(
        workload=workload,
        cluster=where,
        workers=devices,
        architecture=architecture,
        options=options,
        jitter=flat.jitter,
        seed=flat.seed,
    )
    if options.asynchronous or not architecture.central:
        raise InputError(
            f"island_arch: the workers of {architecture.name} each keep their own model; an island "
            "needs an architecture with a single model (allreduce, fsdp, or ps with sync=bsp)"
        )
    return job_facts.with_layers(job)


def island_of(job: Job) -> Island:
    """Make an island from its inner job: by formulas if these are exact, else by simulation."""
    model = architecture_of(job).coarse
    if model is not None and coarse.error_band(job).p90 == 0.0:
        return island_by_formulas(job)
    return _island(job, fine.predict(job, rel_ci=REL_CI))


def island_by_formulas(job: Job) -> Island:
    """An island, given its inner job, by formulas."""
    return _island(job, coarse.predict(job))


def _island(job: Job, outcome: Outcome) -> Island:
    outcome = with_causes(job, outcome)
    return Island(
        job=job,
        step_s=outcome.iteration_s,
        computing=1.0 - outcome.idle_fraction.mean,
        causes=outcome.idle_fraction.by_cause,
    )


def _outer(flat: Job, islands: tuple[Island, ...], places: Places) -> Job:
    """Return the job among the islands."""
    one = islands[0]
    speeds = tuple(one.round_s / island.round_s for island in islands)
    devices = tuple(island.devices for island in islands)
    workload = msgspec.structs.replace(
        _workload_of(one), batch_size=flat.workload.batch_size * one.samples, data_loading_s=0.0
    )
    step = f"{one.job.architecture.name} among {one.devices}, {show(one.step_s, 's')} a step"
    if any(island.steps > 1 for island in islands):
        counts = dict.fromkeys(str(island.steps) for island in islands)
        step += f"; {' or '.join(counts)} steps between exchanges"
    cluster = among(flat.cluster, places, devices, speeds)
    return msgspec.structs.replace(
        flat,
        workload=workload,
        cluster=cluster,
        jitter=_jitter(flat.jitter, one),
        islands=islands,
        flat=flat,
        assumptions=(
            *flat.assumptions,
            Assumption("island", step, "", f"predicted alone; {_exchanging(flat.cluster)}"),
        ),
    )


def _exchanging(cluster: Cluster) -> str:
    """Say which process exchanges for an island, and over how many network links."""
    used = cluster.nics_per_process
    links = "one network link" if used == 1 else f"{used} network links"
    return f"one process exchanges for it, over {links} of its node"


def _workload_of(island: Island) -> Workload:
    """Return an island's work between two exchanges as the workload of one device.

    The layers of a step are stretched to the length of the step. Several steps become a forward
    pass by layer, with everything after it in the last layer: nothing can be sent before the last
    step has ended.
    """
    profiled = island.job.workload
    one = profiled.scaled("compute_s", island.step_s / profiled.compute_s)
    on_device = msgspec.structs.replace(one.storage, offload=False)  # the step has its time
    layers = tuple(msgspec.structs.replace(layer, varying=0.0) for layer in one.layers)
    one = msgspec.structs.replace(one, storage=on_device, packing=None, layers=layers)
    if island.steps == 1:
        return one
    rest_s = island.round_s - one.forward_s
    *before, last = (msgspec.structs.replace(layer, backward_s=0.0) for layer in one.layers)
    last = msgspec.structs.replace(last, forward_s=last.forward_s + rest_s)
    return msgspec.structs.replace(
        one,
        forward_s=island.round_s,
        backward_s=0.0,
        optimizer_s=0.0,
        layers=(*before, last),
    )


def _jitter(of_device: Jitter | None, island: Island) -> Jitter | None:
    """Return the jitter of an island's steps: that of its slowest device's computation."""
    packed, constant = (
        island.job.workload.packing is not None,
        of_device is None or of_device.cv == 0.0,
    )
    if not packed and (constant or (island.devices == 1 and island.steps == 1)):
        return of_device
    from perfmodel.phases.quantities import iteration_cv
    from perfmodel.phases.variation import KIND
    from perfmodel.theory.order_statistics import quantiles_of_order_statistic

    n, cv = island.devices, iteration_cv(island.job)
    kind = KIND if of_device is None else of_device.kind
    kind = kind if kind != "measured" else "lognormal"
    values, weights = quantiles_of_order_statistic(n, n, cv, kind, DRAWS)
    spread = math.sqrt(float(weights @ (values - weights @ values) ** 2))
    of_step = spread * island.job.workload.compute_s / island.step_s
    return Jitter(of_step / math.sqrt(island.steps))


def of_devices(job: Job, outcome: Outcome) -> Outcome:
    """Return the outer job's outcome with idle and compute times per device, not per island.

    A device of an island is idle while the island waits, and for part of the island's step. All
    means are over devices.
    """
    if not job.islands:
        return outcome
    active = 1.0 - np.array(outcome.idle_fraction.per_worker)
    computing = np.array([island.computing for island in job.islands])
    devices = np.array([island.devices for island in job.islands], float)
    share = devices / devices.sum()
    causes: dict[str, float] = {}
    shares, working = share.tolist(), (active * share).tolist()
    for island, waits, whole, active_part in zip(
        job.islands, outcome.causes_by_worker, shares, working, strict=True
    ):
        for weight, fractions in ((whole, waits), (active_part, island.causes)):
            for cause, fraction in fractions.items():
                causes[cause] = causes.get(cause, 0.0) + weight * fraction
    idle = 1.0 - active * computing
    mean = float(idle @ share)
    waiting = causes.get("network", 0.0) + causes.get("server", 0.0)
    workers = {f"worker {i}": 1.0 - part for i, part in enumerate(idle.tolist())}
    return msgspec.structs.replace(
        outcome,
        idle_fraction=Idle(mean=mean, per_worker=tuple(idle.tolist()), by_cause=causes),
        utilisation=msgspec.structs.replace(outcome.utilisation, workers=workers),
        compute_s=(1.0 - mean) * outcome.iteration_s,
        exposed_communication_s=waiting * outcome.iteration_s,
    )


def samples_per_s(job: Job, outcome: Outcome) -> float:
    """Return the samples per second of all workers, before :func:`of_devices`.

    With islands of different sizes, each iterates as often as steps fit into its active time.
    """
    sizes = job.batch_sizes
    if len(set(sizes)) == 1:
        return outcome.iterations_per_s * sizes[0]
    round_s = np.array([seat.slowdown for seat in job.seats()])  # of the first's
    rates = (1.0 - np.array(outcome.idle_fraction.per_worker)) / round_s
    return outcome.iterations_per_s * float(np.average(sizes, weights=rates))
