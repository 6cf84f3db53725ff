"""The two calls most programs need: :func:`make_job` describes a job, :func:`predict` answers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from perfmodel import architectures, catalogue
from perfmodel.cluster import Cluster, Link
from perfmodel.engine import simulate, timeline
from perfmodel.errors import InputError, number, whole_number
from perfmodel.explain import bottleneck, chrome_trace
from perfmodel.graph import CAUSES, Floats, OpGraph
from perfmodel.job import Jitter, Job, Start, Straggler
from perfmodel.measures import Measures
from perfmodel.prediction import (
    ClockGap,
    Idle,
    Memory,
    Prediction,
    Staleness,
    Training,
    Utilisation,
    percentile,
)
from perfmodel.profile import Profile
from perfmodel.provenance import Assumption, provenance
from perfmodel.units import dimension_of, show
from perfmodel.workload import Workload, expanded

FEWEST_RUNS, MOST_RUNS = 4, 8
"""Runs of a random job, each with a seed of its own; the confidence interval is over them."""

CI_FRACTION = 0.01
"""No more runs than the fewest are made once the confidence interval is within this fraction."""

Progress = Callable[[int, int], None]


def make_job(
    *,
    model: str | None = None,
    workload: Workload | Profile | str | Path | None = None,
    device: str | None = None,
    precision: str | None = None,
    batch_size: int | None = None,
    cluster: Cluster | str | Path | None = None,
    bandwidth_bytes_per_s: float | None = None,
    latency_s: float | None = None,
    workers: int = 1,
    arch: str = "ps",
    options: Mapping[str, Any] | None = None,
    jitter: Jitter | float | None = None,
    stragglers: Iterable[Straggler] = (),
    start: Start | None = None,
    seed: int = 0,
) -> Job:
    """Describe a training job; what is not given is filled in and noted in ``Job.assumptions``.

    Parameters
    ----------
    model, workload : one of them: a model of the catalogue, or a workload (object or file).
    device, precision, batch_size : which of the profile's timings; batch size is per worker.
    cluster : an object, a file, or a name of the catalogue.
    bandwidth_bytes_per_s, latency_s : replace those of every node's link.
    arch, options : name of the architecture and its options by name.
    jitter : coefficient of variation of the workers' compute per iteration, or a Jitter.

    Raises
    ------
    InputError : anything that is unknown, out of range or does not go together.
    """
    notes: list[Assumption] = []
    resolved = _workload(model, workload, device, precision, batch_size)
    architecture, preset = architectures.find(arch)
    where = _cluster(
        cluster, bandwidth_bytes_per_s, latency_s, architecture.server_bytes is not None, notes
    )
    given = dict(options or {})
    for name, value in preset.items():
        if given.get(name, value) != value:
            raise InputError(
                f"option {name}={given[name]}: architecture {arch!r} stands for {name}={value}"
            )
    chosen = architectures.read_options(architecture, {**preset, **given})
    for field in architecture.options.__struct_fields__:
        if field not in given and field not in preset:
            value = getattr(chosen, field)
            unit = dimension_of(field) or ""
            notes.append(Assumption(field, value, unit, f"default of {architecture.name}"))
    if start is None:
        start = "staggered" if architecture.asynchronous(chosen) else "together"
        why = "asynchronous workers drift apart" if start == "staggered" else "synchronous"
        notes.append(Assumption("start", start, "", why))
    if isinstance(jitter, (int, float)):
        jitter = Jitter(jitter)
    if jitter is None:
        notes.append(
            Assumption("jitter", 0.0, "", "default: every iteration computes equally long")
        )
    return Job(
        workload=resolved,
        cluster=where,
        workers=workers,
        architecture=architecture.name,
        options=chosen,
        start=start,
        jitter=jitter,
        stragglers=tuple(stragglers),
        seed=seed,
        assumptions=(*resolved.assumptions, *notes),
    )


def build_graph(job: Job) -> OpGraph:
    """The op graph of a job."""
    architecture, _ = architectures.find(job.architecture)
    return architecture.build(job)


def predict(
    job: Job,
    *,
    dataset_size: int | None = None,
    epochs: int | None = None,
    progress: Progress | None = None,
) -> Prediction:
    """Predict how fast ``job`` trains, by simulating it.

    Parameters
    ----------
    dataset_size, epochs : samples per epoch and number of epochs, for the training time.
    progress : called with (rounds done, rounds in all) while a random job runs.

    Raises
    ------
    InputError : ``epochs`` without ``dataset_size``, or either below 1.
    """
    if epochs is not None and dataset_size is None:
        raise InputError("epochs: needs dataset_size too")
    job = _with_layers(job)
    memory = _memory(job)
    graph = build_graph(job)
    runs = _run(graph, job.seed, progress)
    rates = _rates(runs)
    rate = float(rates.mean())
    waits = np.mean([run.wait_fraction for run in runs], axis=0)
    idle = 1.0 - np.mean([run.busy_fraction for run in runs], axis=0)
    causes = {cause: float(waits[:, i].mean()) for i, cause in enumerate(CAUSES)}
    iteration_s = job.workers / rate
    communicating = causes["network"] + causes["server"]
    answer = Prediction(
        model=job.workload.name,
        device=job.workload.device,
        quality=job.workload.quality,
        architecture=job.architecture,
        workers=job.workers,
        batch_size=job.workload.batch_size,
        global_batch_size=job.workload.batch_size * job.workers,
        throughput_samples_per_s=rate * job.workload.batch_size,
        throughput_ci_fraction=_ci_fraction(rates),
        iteration_s=iteration_s,
        compute_s=float((1.0 - idle).mean()) * iteration_s,
        exposed_communication_s=communicating * iteration_s,
        idle_fraction=Idle(
            mean=float(idle.mean()),
            per_worker=tuple(idle.tolist()),
            by_cause={cause: part for cause, part in causes.items() if part > 0.0},
        ),
        staleness=_staleness(runs, job.workers),
        clock_gap=ClockGap(
            float(np.mean([run.clock_gap_mean for run in runs])),
            max(run.clock_gap_max for run in runs),
        ),
        operation_s=_operations(graph, runs),
        updates_per_s=float(np.mean([run.updates_per_s for run in runs])),
        utilisation=_utilisation(graph, runs),
        memory=memory,
        bottleneck=bottleneck(graph, runs[0]),
        training=_training(job, rate, dataset_size, epochs),
        notes=_notes(job, memory),
        assumptions=job.assumptions,
        provenance=provenance(job.seed, _inputs(job)),
    )
    answer.__dict__["trace"] = lambda: chrome_trace(
        graph, timeline(graph, seed=_seeds(job.seed, 1)[0], first=2, iterations=2)
    )
    return answer


def _with_layers(job: Job) -> Job:
    """The job with a coarse workload spread over layers, and a note that it was."""
    if job.workload.layers:
        return job
    fine = expanded(job.workload)
    added = fine.assumptions[len(job.workload.assumptions) :]
    return msgspec.structs.replace(job, workload=fine, assumptions=(*job.assumptions, *added))


def _workload(
    model: str | None,
    workload: Workload | Profile | str | Path | None,
    device: str | None,
    precision: str | None,
    batch_size: int | None,
) -> Workload:
    if model is None and workload is None:
        known = ", ".join(catalogue.model_names())
        raise InputError(f"model or workload: one of them is needed (models: {known})")
    if model is not None and workload is not None:
        raise InputError("model and workload: give only one of them")
    if isinstance(workload, Workload):
        for name, value in (("device", device), ("batch_size", batch_size)):
            if value is not None and value != getattr(workload, name):
                raise InputError(f"{name}: the workload is already resolved, for another {name}")
        return workload
    if isinstance(workload, Profile):
        profile = workload
    elif workload is not None:
        profile = catalogue.profile(Path(workload))
    else:
        profile = catalogue.model(str(model))
    return catalogue.workload(
        profile, device_name=device, precision=precision, batch_size=batch_size
    )


def _cluster(
    cluster: Cluster | str | Path | None,
    bandwidth_bytes_per_s: float | None,
    latency_s: float | None,
    servers: bool,
    notes: list[Assumption],
) -> Cluster:
    """The cluster with its links changed as asked; notes what came from the cluster's file."""
    if isinstance(cluster, Cluster):
        base = cluster
    else:
        base = catalogue.cluster_or_file(catalogue.DEFAULT_CLUSTER if cluster is None else cluster)
        name = f"cluster {base.name}"
        if cluster is None:
            notes.append(Assumption("cluster", base.name, "", "default"))
        if bandwidth_bytes_per_s is None:
            nominal = base.nic.bandwidth_bytes_per_s
            notes.append(Assumption("bandwidth", nominal, "bytes_per_s", name))
        if latency_s is None:
            notes.append(Assumption("latency", base.nic.latency_s, "s", name))
        notes.append(Assumption("efficiency", base.nic.efficiency, "of bandwidth", name))
        if servers:
            cost = base.server
            notes.append(Assumption("update per tensor", cost.update_per_tensor_s, "s", name))
            notes.append(Assumption("update per byte", cost.update_per_byte_s, "s", name))
    if bandwidth_bytes_per_s is None and latency_s is None:
        return base

    def changed(link: Link) -> Link:
        return Link(
            link.bandwidth_bytes_per_s
            if bandwidth_bytes_per_s is None
            else number("bandwidth", bandwidth_bytes_per_s, above=0.0),
            link.latency_s if latency_s is None else number("latency", latency_s),
            link.efficiency,
        )

    overrides = tuple(
        msgspec.structs.replace(o, nic=changed(o.nic)) if o.nic is not None else o
        for o in base.overrides
    )
    return msgspec.structs.replace(base, nic=changed(base.nic), overrides=overrides)


def _seeds(seed: int, count: int) -> list[int]:
    """Seeds of the runs of a job: its own, then ones derived from it."""
    derived = np.random.SeedSequence(seed).generate_state(count, np.uint64)
    return [seed, *(int(s) for s in derived[1:])]


def _run(graph: OpGraph, seed: int, progress: Progress | None) -> list[Measures]:
    if not graph.random:
        return [simulate(graph, seed=seed)]
    runs: list[Measures] = []

    def report(done: int, of: int) -> None:
        if progress is not None:
            expected = FEWEST_RUNS if len(runs) < FEWEST_RUNS else MOST_RUNS
            progress(len(runs) * of + done, expected * of)

    for run_seed in _seeds(seed, MOST_RUNS):
        runs.append(simulate(graph, seed=run_seed, progress=report))
        enough = len(runs) >= FEWEST_RUNS
        if enough and _ci_fraction(_rates(runs)) <= CI_FRACTION:
            break
    return runs


def _rates(runs: list[Measures]) -> Floats:
    """Iterations per second of all workers together, by run."""
    return np.array([run.iterations_per_s.sum() for run in runs])


def _ci_fraction(rates: Floats) -> float:
    """Half-width of the 95 % Student interval of the mean rate, as a fraction of it."""
    if len(rates) < 2:
        return 0.0
    from scipy.special import stdtrit

    spread = float(rates.std(ddof=1)) / math.sqrt(len(rates))
    return float(stdtrit(len(rates) - 1, 0.975)) * spread / float(rates.mean())


def _staleness(runs: list[Measures], workers: int) -> Staleness | None:
    by_worker: list[dict[int, int]] = [{} for _ in range(workers)]
    for run in runs:
        for worker, counts in run.staleness.items():
            for value, count in counts.items():
                by_worker[worker][value] = by_worker[worker].get(value, 0) + count
    merged: dict[int, int] = {}
    for counts in by_worker:
        for value, count in counts.items():
            merged[value] = merged.get(value, 0) + count
    total = sum(merged.values())
    if not total or any(not counts for counts in by_worker):
        return None

    def mean(counts: Mapping[int, int]) -> float:
        return sum(value * count for value, count in counts.items()) / sum(counts.values())

    return Staleness(
        mean=mean(merged),
        p50=percentile(merged, 0.5),
        p90=percentile(merged, 0.9),
        max=max(merged),
        per_worker=tuple(mean(counts) for counts in by_worker),
        histogram={str(value): merged[value] / total for value in sorted(merged)},
    )


def _operations(graph: OpGraph, runs: list[Measures]) -> dict[str, float]:
    """Mean seconds of each probed operation, by label."""
    out: dict[str, float] = {}
    for block in graph.probes:
        where = slice(block.first, block.first + block.size)
        count = sum(float(run.probe_count[where].sum()) for run in runs)
        seconds = sum(float(run.probe_seconds[where].sum()) for run in runs)
        if count and block.label != "staleness":
            out[block.label] = seconds / count
    return out


def _utilisation(graph: OpGraph, runs: list[Measures]) -> Utilisation:
    slots = np.mean([run.slot_utilisation for run in runs], axis=0)
    links = np.mean([run.link_utilisation for run in runs], axis=0)
    busy = np.mean([run.busy_fraction for run in runs], axis=0)
    servers = {
        block.name(slot): float(slots[slot])
        for block in graph.slots
        if block.label.startswith("update")
        for slot in range(block.first, block.first + block.size)
    }
    return Utilisation(
        workers={f"worker {i}": float(part) for i, part in enumerate(busy)},
        servers=servers,
        links={graph.link_name(i): float(part) for i, part in enumerate(links) if part > 0.0},
    )


def _memory(job: Job) -> Memory:
    """Parameters, gradients and activations; optimizer state where the optimizer runs."""
    architecture, _ = architectures.find(job.architecture)
    w = job.workload
    on_server = architecture.server_bytes is not None
    worker = 2.0 * w.gradient_bytes + w.activation_bytes
    worker += 0.0 if on_server else w.optimizer_state_bytes
    server = architecture.server_bytes(job) if architecture.server_bytes is not None else None
    known = w.device in catalogue.device_names()
    has = catalogue.device(w.device).memory_bytes if known else None
    return Memory(worker, server, has)


def _training(
    job: Job, rate: float, dataset_size: int | None, epochs: int | None
) -> Training | None:
    """Every sample once per epoch; the last, partial batch of each worker counts as a whole."""
    if dataset_size is None:
        return None
    whole_number("dataset_size", dataset_size)
    times = whole_number("epochs", epochs) if epochs is not None else 1
    iterations = math.ceil(dataset_size / (job.workers * job.workload.batch_size))
    epoch_s = iterations * job.workers / rate
    return Training(dataset_size, times, iterations, epoch_s, times * epoch_s)


def _notes(job: Job, memory: Memory) -> tuple[str, ...]:
    if memory.device_bytes is not None and memory.worker_bytes > memory.device_bytes:
        return (
            f"a worker needs about {show(memory.worker_bytes, 'bytes')}, more than the "
            f"{show(memory.device_bytes, 'bytes')} of {job.workload.device}",
        )
    return ()


def _inputs(job: Job) -> dict[str, Any]:
    """What the job was made of, for its provenance."""
    w = job.workload
    return {
        "workload": {
            "name": w.name,
            "device": w.device,
            "batch_size": w.batch_size,
            "precision": w.precision,
            "source": msgspec.to_builtins(w.source),
        },
        "cluster": msgspec.to_builtins(job.cluster),
        "workers": job.workers,
        "architecture": job.architecture,
        "options": msgspec.to_builtins(job.options),
        "jitter": msgspec.to_builtins(job.jitter),
        "stragglers": msgspec.to_builtins(job.stragglers),
        "start": job.start,
    }
