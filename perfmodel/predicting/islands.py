"""A job whose workers are islands: an inner job in each, an outer one among them.

The time of a step inside an island is that of its inner job, predicted alone. In the outer job an
island is a worker whose computation takes that long, with the links of its nodes. So any two
architectures can be combined, and neither knows of the other. What this leaves out: both use the
links between nodes at the same time, where an island has several nodes and exchanges during a step.

An island may do several steps between two exchanges, and then exchanges how far it has come instead
of gradients: with servers this is asynchronous local SGD (Liu and others, 2024, arXiv 2401.09135).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np

from perfmodel.architectures import registry
from perfmodel.architectures.base import Architecture, architecture_of
from perfmodel.base.errors import InputError
from perfmodel.base.provenance import Assumption
from perfmodel.base.units import show
from perfmodel.inputs.cluster import Cluster
from perfmodel.inputs.islands import ONE_STEP, Places, Steps, among, inside, places_of
from perfmodel.inputs.job import Island, Jitter, Job
from perfmodel.inputs.options import Options
from perfmodel.inputs.workload import Workload
from perfmodel.predicting import coarse, fine, job_facts
from perfmodel.results.outcome import Outcome
from perfmodel.results.prediction import Idle

REL_CI = 0.002
"""Half-width of the 95 % confidence interval of a step inside, as a fraction."""

DRAWS = 64
"""Values that stand for the slowest device's computation."""


def joined(
    flat: Job,
    devices: tuple[int, ...],
    arch: str,
    given: Mapping[str, Any],
    steps: Steps = ONE_STEP,
) -> Job:
    """The outer job, with islands of so many ``devices`` each in the place of workers.

    Parameters
    ----------
    flat : the job with devices in the place of islands; its batch size is that of a device.
    devices : of each island, (workers,).
    arch, given : the architecture inside and its options by name.
    steps : of an island from one exchange to the next.

    Raises
    ------
    InputError : an architecture inside that does not keep one model; islands that do not fit on
        the cluster; options that are none of the architecture.
    """
    architecture, preset = registry.find(arch)
    options = registry.read_options(architecture, {**preset, **given})
    places = places_of(flat.cluster, devices)
    made: dict[Any, Island] = {}
    islands = []
    for first, many, count in zip(places.first, places.many, devices, strict=True):
        where = inside(flat.cluster, first, many)
        alike = (count, many, where.overrides)
        if alike not in made:
            made[alike] = island_of(_inner(flat, architecture, options, where, count, steps.most))
        islands.append(made[alike])
    return _outer(flat, _with_steps(flat, tuple(islands), steps), places)


def _with_steps(flat: Job, islands: tuple[Island, ...], steps: Steps) -> tuple[Island, ...]:
    """The islands with their numbers of steps; the fastest does most if all take equally long."""
    slower = {straggler.worker: straggler.factor for straggler in flat.stragglers}
    each_s = [island.step_s * slower.get(i, 1.0) for i, island in enumerate(islands)]
    counts = (
        max(round(steps.most * min(each_s) / step_s), 1) if steps.equal_time else steps.most
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
    """The job inside one island, which runs the optimizer unless servers do after each step."""
    workload = flat.workload
    if steps == 1 and _updates_on_servers(flat):
        workload = msgspec.structs.replace(workload, optimizer_s=0.0)
    job = Job(
        workload=workload,
        cluster=where,
        workers=devices,
        architecture=architecture,
        options=options,
        jitter=flat.jitter,
        seed=flat.seed,
    )
    recorded = architecture.meaning
    if options.asynchronous or recorded is None or not recorded(job)[0].central:
        raise InputError(
            f"island_arch: workers of {architecture.name} have models of their own; inside an "
            "island there is one (such as allreduce, fsdp, or ps with sync=bsp)"
        )
    return job_facts.with_layers(job)


def _updates_on_servers(job: Job) -> bool:
    """Whether the optimizer runs on servers."""
    outer = architecture_of(job)
    return outer.server_bytes is not None and outer.worker_bytes is None


def island_of(job: Job) -> Island:
    """An island, given its inner job: by formulas where these are exact, else simulated."""
    model = architecture_of(job).coarse
    exact = model is not None and coarse.error_band(job).p90 == 0.0
    found = coarse.predict(job) if exact else fine.predict(job, rel_ci=REL_CI)
    return Island(
        job=job,
        step_s=found.iteration_s,
        computing=1.0 - found.idle_fraction.mean,
        causes=found.idle_fraction.by_cause,
    )


def _outer(flat: Job, islands: tuple[Island, ...], places: Places) -> Job:
    """The job among islands."""
    one = islands[0]
    speeds = tuple(one.round_s / island.round_s for island in islands)
    devices = tuple(island.devices for island in islands)
    workload = msgspec.structs.replace(
        _workload_of(one), batch_size=flat.workload.batch_size * one.samples, data_loading_s=0.0
    )
    step = f"{one.job.architecture.name} among {one.devices}, {show(one.step_s, 's')} a step"
    if any(island.steps > 1 for island in islands):
        counts = dict.fromkeys(str(island.steps) for island in islands)
        step += f"; {' or '.join(counts)} steps from one exchange to the next"
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
            Assumption("island", step, "", "predicted alone; its links are one to other islands"),
        ),
    )


def _workload_of(island: Island) -> Workload:
    """What an island does from one exchange to the next, as the work of one device.

    A step's layers take as much longer as the step does. Several steps are a forward pass by layer,
    with all that follows in the last layer; nothing can be sent before the last of them has ended.
    """
    profiled = island.job.workload
    one = profiled.scaled("compute_s", island.step_s / profiled.compute_s)
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


def _jitter(own: Jitter | None, island: Island) -> Jitter | None:
    """The spread of an island's steps: of each that of its slowest device, where it computes."""
    if own is None or own.cv == 0.0 or (island.devices == 1 and island.steps == 1):
        return own
    from perfmodel.phases.quantities import iteration_cv
    from perfmodel.theory.order_statistics import quantiles_of_order_statistic

    n, cv = island.devices, iteration_cv(island.job)
    kind = own.kind if own.kind != "measured" else "lognormal"
    values, weights = quantiles_of_order_statistic(n, n, cv, kind, DRAWS)
    spread = math.sqrt(float(weights @ (values - weights @ values) ** 2))
    of_step = spread * island.job.workload.compute_s / island.step_s
    return Jitter(of_step / math.sqrt(island.steps))


def of_devices(job: Job, found: Outcome) -> Outcome:
    """The outcome of the outer job, with idleness and computation of devices, not of islands."""
    if not job.islands:
        return found
    active = 1.0 - np.array(found.idle_fraction.per_worker)
    computing = np.array([island.computing for island in job.islands])
    devices = np.array([island.devices for island in job.islands], float)
    share = devices / devices.sum()
    causes = dict(found.idle_fraction.by_cause)
    for island, part in zip(job.islands, active * share, strict=True):
        for cause, fraction in island.causes.items():
            causes[cause] = causes.get(cause, 0.0) + float(part) * fraction
    idle = 1.0 - active * computing
    mean = float(idle @ share)
    waiting = causes.get("network", 0.0) + causes.get("server", 0.0)
    return msgspec.structs.replace(
        found,
        idle_fraction=Idle(mean=mean, per_worker=tuple(idle.tolist()), by_cause=causes),
        compute_s=(1.0 - mean) * found.iteration_s,
        exposed_communication_s=waiting * found.iteration_s,
    )


def samples_per_s(job: Job, found: Outcome) -> float:
    """Samples of all workers per second, before :func:`of_devices`.

    Islands of different sizes: each iterates as often as its active time has room for steps.
    """
    sizes = job.batch_sizes
    if len(set(sizes)) == 1:
        return found.iterations_per_s * sizes[0]
    rounds_s = np.array([island.round_s for island in job.islands])
    rates = (1.0 - np.array(found.idle_fraction.per_worker)) / rounds_s
    return found.iterations_per_s * float(np.average(sizes, weights=rates))
