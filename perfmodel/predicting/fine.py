"""The fine-grained route: build a job's op graph and simulate it."""

from __future__ import annotations

import functools
import math

import numpy as np

from perfmodel.architectures.base import architecture_of
from perfmodel.architectures.mean_field import has_many, joined, mean_field_of, represented
from perfmodel.base.arrays import Floats
from perfmodel.engine.measures import Measures
from perfmodel.engine.simulation import first_iterations, run_spread, simulate
from perfmodel.engine.warmup import Progress
from perfmodel.graph.op_graph import CAUSES, MANY_GROUPS, OpGraph
from perfmodel.inputs.job import Job
from perfmodel.predicting import budget
from perfmodel.predicting.bottleneck import bottleneck
from perfmodel.results.outcome import Outcome
from perfmodel.results.prediction import (
    ClockGap,
    Idle,
    Staleness,
    Utilisation,
    percentile,
)
from perfmodel.training.workers import CORES, alike

Devices = tuple[int, int]
"""Stages of a worker, and devices of each that are workers of their own to the architecture."""

ROUNDING = 1e-9
"""Idle fractions below this count as 0."""


def build_graph(
    job: Job, *, fold: bool = False, max_ops: float = math.inf, iterations: int | None = None
) -> OpGraph:
    """Build the op graph of a job.

    With ``fold``, one worker represents all of them if they all do the same at the same time and
    the architecture supports it. The result is the same, at the cost of one worker.

    Raises
    ------
    TooLargeError : simulating it (only the first ``iterations``, if given) takes more than
        ``max_ops`` operations (:mod:`perfmodel.predicting.budget`).
    """
    architecture = architecture_of(job)
    if job.replica is not None:
        from perfmodel.predicting import replicas

        whole = functools.partial(replicas.build, fold=True) if fold and alike(job) else None
        return budget.built(job, replicas.build, max_ops, whole, iterations)
    folded = architecture.fold if fold and alike(job) else None
    return budget.built(job, architecture.build, max_ops, folded, iterations)


def predict(
    job: Job,
    *,
    rel_ci: float,
    iterations: int | None = None,
    run_iterations: int | None = None,
    max_ops: float = budget.MOST_OPS,
    progress: Progress | None = None,
) -> Outcome:
    """Simulate ``job`` and return the outcome.

    Parameters
    ----------
    rel_ci : simulate a random job until the half-width of the confidence interval is this fraction
        of its throughput.
    iterations : measure only the first so many iterations; None for the long run.
    run_iterations : for the long run, also simulate the spread between runs of so many iterations.
    max_ops : most operations that the simulation may take.
    progress : called with (done, expected) during the simulation.

    Raises
    ------
    TooLargeError : the simulation takes more than ``max_ops``.
    """
    if iterations is None:
        graph, run = _long_run(job, rel_ci, max_ops, progress, whole=run_iterations is not None)
        spread = run.run_spread
        if run_iterations is not None:
            settled = max(math.ceil(run.transient_rounds), run_iterations)
            spread = run_spread(graph, run_iterations, warmup=settled, seed=job.seed)
    else:
        graph = build_graph(job, fold=True, max_ops=max_ops, iterations=iterations)
        run = first_iterations(graph, iterations, seed=job.seed, rel_ci=rel_ci, progress=progress)
        spread, run_iterations = run.run_spread, iterations
    count = graph.group_count
    rate = float((run.iterations_per_s * count).sum())
    waits = (run.wait_fraction * count[:, None]).sum(axis=0) / count.sum()
    idle = 1.0 - run.busy_fraction
    idle = np.where(np.abs(idle) < ROUNDING, 0.0, idle)
    causes = {cause: float(waits[i]) for i, cause in enumerate(CAUSES)}
    stages = 1 if job.replica is None else job.replica.pipeline
    late = False
    if job.replica is not None:
        from perfmodel.predicting import replicas

        late = any(replicas.delays(job))
    devices = (stages, job.context_workers)
    rate /= math.prod(devices)  # a group is a device of a stage
    iteration_s = job.workers / rate
    return Outcome(
        fidelity="fine",
        workers=job.workers,
        iterations_per_s=rate,
        throughput_ci_fraction=run.ci_fraction,
        run_iterations=run_iterations,
        run_spread=spread.throughput,
        staleness_spread=spread.staleness,
        iterations=iterations,
        transient_iterations=math.ceil(run.transient_rounds),
        compute_s=float(1.0 - np.average(idle, weights=count)) * iteration_s,
        exposed_communication_s=(causes["network"] + causes["server"]) * iteration_s,
        idle_fraction=Idle(
            mean=float(np.average(idle, weights=count)),
            per_worker=_by_worker(graph, idle, devices),
            by_stage=_by_stage(graph, idle, stages) if stages > 1 else (),
            by_cause={cause: part for cause, part in causes.items() if part > 0.0},
        ),
        causes_by_worker=_causes_by_worker(graph, run, devices),
        staleness=_staleness(graph, run, devices, late=late),
        clock_gap=ClockGap(run.clock_gap_mean, run.clock_gap_max),
        operation_s=_operations(graph, run),
        updates_per_s=run.updates_per_s,
        utilisation=_utilisation(graph, run, devices),
        bottleneck=bottleneck(graph, run),
        notes=represented(job, graph) if job.workers >= MANY_GROUPS else (),
    )


def _long_run(
    job: Job, rel_ci: float, max_ops: float, progress: Progress | None, *, whole: bool
) -> tuple[OpGraph, Measures]:
    """Return the graph of a job, of a few of its workers if many are equal, and its measures."""
    few = architecture_of(job).few if has_many(job) and not whole else None
    if few is None:
        graph = build_graph(job, fold=True, max_ops=max_ops)
    else:
        from perfmodel.engine.mean_field import simulate_many

        several = None
        if job.replica is not None:
            from perfmodel.predicting import replicas

            few, several = replicas.build, replicas.devices_of
        field = mean_field_of(job, few, several)
        if field is not None:
            budget.checked(job, field.graph, max_ops)
            return simulate_many(field, job.seed, rel_ci, progress)
        graph = budget.built(job, lambda one: few(one, np.arange(one.workers)), max_ops)
        if (fewer := joined(job, graph)) is not None:
            graph = budget.built(fewer, lambda one: few(one, np.arange(one.workers)), max_ops)
    return graph, simulate(graph, seed=job.seed, rel_ci=rel_ci, progress=progress)


def _staleness(graph: OpGraph, run: Measures, devices: Devices, *, late: bool) -> Staleness | None:
    total = int(run.staleness.sum())
    if not total or np.isnan(run.staleness_mean).any():
        return None
    seen = {int(value): int(run.staleness[value]) for value in np.flatnonzero(run.staleness)}
    return Staleness(
        mean=float(sum(value * count for value, count in seen.items())) / total,
        p50=percentile(seen, 0.5),
        p90=percentile(seen, 0.9),
        max=max(seen),
        per_worker=_by_worker(graph, run.staleness_mean, devices),
        histogram={str(value): count / total for value, count in seen.items()},
        by_stage=_by_stage(graph, run.staleness_mean, devices[0]) if late else (),
    )


def _causes_by_worker(
    graph: OpGraph, run: Measures, devices: Devices
) -> tuple[dict[str, float], ...]:
    """Return each worker's idle fraction by cause."""
    waits = np.array([_by_worker(graph, part, devices) for part in run.wait_fraction.T])
    return tuple(
        {cause: part for cause, part in zip(CAUSES, row, strict=True) if part > 0.0}
        for row in waits.T.tolist()
    )


def _by_worker(graph: OpGraph, by_group: Floats, devices: Devices) -> tuple[float, ...]:
    """Return each worker's value: of replicas, the mean of their devices."""
    each, (stages, within) = by_group[graph.worker_group], devices
    several = each if stages == 1 else each.reshape(stages, -1).mean(axis=0)
    return tuple((several if within == 1 else several.reshape(-1, within).mean(axis=1)).tolist())


def _by_stage(graph: OpGraph, by_group: Floats, stages: int) -> tuple[float, ...]:
    """Return the mean of each stage."""
    return tuple(by_group[graph.worker_group].reshape(stages, -1).mean(axis=1).tolist())


def _operations(graph: OpGraph, run: Measures) -> dict[str, float]:
    """Return the mean seconds of each probed operation, by label."""
    out: dict[str, list[float]] = {}
    for block in graph.probes:
        where = slice(block.first, block.first + block.size)
        count = float(run.probe_count[where].sum())
        if count and block.label != "staleness":
            seconds, counts = out.setdefault(block.label, [0.0, 0.0])
            out[block.label] = [seconds + float(run.probe_seconds[where].sum()), counts + count]
    return {label: seconds / count for label, (seconds, count) in out.items()}


def _utilisation(graph: OpGraph, run: Measures, devices: Devices) -> Utilisation:
    servers = {
        block.name(slot): float(run.slot_utilisation[slot])
        for block in graph.slots
        if block.label.startswith("update")
        for slot in range(block.first, block.first + block.size)
    }
    busy = _by_worker(graph, run.busy_fraction, devices)
    # the engine models processors as links, too
    links: dict[str, float] = {}
    cores: dict[str, float] = {}
    for block in graph.links:
        shown = cores if block.label == CORES else links
        ids = range(block.first, block.first + block.size)
        used = [link for link in ids if run.link_utilisation[link] > 0.0]
        for link, names in zip(used, block.names(used), strict=True):
            shown |= dict.fromkeys(names, float(run.link_utilisation[link]))
    return Utilisation(
        workers={f"worker {i}": part for i, part in enumerate(busy)},
        servers=servers,
        links=links,
        cores=cores,
    )
