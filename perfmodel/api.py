"""The two calls most programs need: :func:`make_job` describes a job, :func:`predict` answers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from perfmodel import architectures, catalogue
from perfmodel.architectures import ModelAge
from perfmodel.architectures._workers import alike
from perfmodel.cluster import Cluster, Link
from perfmodel.engine import simulate, timeline
from perfmodel.errors import InputError, number, whole_number
from perfmodel.explain import bottleneck, chrome_trace
from perfmodel.graph import CAUSES, Block, Floats, OpGraph
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

REL_CI = 0.01
"""Half-width of the 95 % confidence interval that a random job is simulated to, as a fraction."""

ROUNDING = 1e-9
"""Idle fractions below this are none."""

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
    jitter: Jitter | float | str | None = None,
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
    jitter : coefficient of variation of the workers' compute per iteration, a Jitter, or text for
        :meth:`Jitter.parse`.

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
    for field in architecture.option_help:
        unused = field in architecture.unused(chosen)
        if field not in given and field not in preset and not unused:
            value = getattr(chosen, field)
            unit = dimension_of(field) or ""
            notes.append(Assumption(field, _finite(value), unit, f"default of {architecture.name}"))
    if start is None:
        start = "staggered" if architecture.asynchronous(chosen) else "together"
        why = "asynchronous workers drift apart" if start == "staggered" else "synchronous"
        notes.append(Assumption("start", start, "", why))
    spread = _jitter(jitter, resolved, notes)
    return Job(
        workload=resolved,
        cluster=where,
        workers=workers,
        architecture=architecture.name,
        options=chosen,
        start=start,
        jitter=spread,
        stragglers=tuple(stragglers),
        seed=seed,
        assumptions=(*resolved.assumptions, *notes),
    )


def build_graph(job: Job, *, fold: bool = False) -> OpGraph:
    """The op graph of a job.

    With ``fold``, one worker stands for all where these do the same at the same time and the
    architecture knows how; the answer is the same, and takes the time of one worker.
    """
    architecture, _ = architectures.find(job.architecture)
    folded = architecture.fold(job) if fold and architecture.fold and alike(job) else None
    return folded if folded is not None else architecture.build(job)


def predict(
    job: Job,
    *,
    dataset_size: int | None = None,
    epochs: int | None = None,
    rel_ci: float = REL_CI,
    progress: Progress | None = None,
) -> Prediction:
    """Predict how fast ``job`` trains, by simulating it.

    Parameters
    ----------
    dataset_size, epochs : samples per epoch and number of epochs, for the training time.
    rel_ci : half-width of the confidence interval that a random job is simulated to, as a fraction
        of its throughput.
    progress : called with (done, expected) while a job is simulated.

    Raises
    ------
    InputError : ``epochs`` without ``dataset_size``, or either below 1; ``rel_ci`` not in (0, 1].
    """
    if epochs is not None and dataset_size is None:
        raise InputError("epochs: needs dataset_size too")
    number("rel_ci", rel_ci, above=0.0, at_most=1.0)
    job = _with_layers(job)
    memory = _memory(job)
    graph = build_graph(job, fold=True)
    run = simulate(graph, seed=job.seed, rel_ci=rel_ci, progress=progress)
    count = graph.group_count
    rate = float((run.iterations_per_s * count).sum())
    waits = (run.wait_fraction * count[:, None]).sum(axis=0) / count.sum()
    idle = 1.0 - run.busy_fraction
    idle = np.where(np.abs(idle) < ROUNDING, 0.0, idle)
    causes = {cause: float(waits[i]) for i, cause in enumerate(CAUSES)}
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
        throughput_ci_fraction=run.ci_fraction,
        iteration_s=iteration_s,
        compute_s=float(1.0 - np.average(idle, weights=count)) * iteration_s,
        exposed_communication_s=communicating * iteration_s,
        idle_fraction=Idle(
            mean=float(np.average(idle, weights=count)),
            per_worker=_by_worker(graph, idle),
            by_cause={cause: part for cause, part in causes.items() if part > 0.0},
        ),
        staleness=_staleness(graph, run),
        model_age=_model_age(job),
        clock_gap=ClockGap(run.clock_gap_mean, run.clock_gap_max),
        operation_s=_operations(graph, run),
        updates_per_s=run.updates_per_s,
        utilisation=_utilisation(graph, run),
        memory=memory,
        bottleneck=bottleneck(graph, run),
        training=_training(job, rate, dataset_size, epochs),
        notes=_notes(job, memory),
        assumptions=job.assumptions,
        provenance=provenance(job.seed, _inputs(job)),
    )
    answer.__dict__["trace"] = lambda: _trace(job)
    return answer


def _trace(job: Job) -> list[dict[str, Any]]:
    graph = build_graph(job)
    return chrome_trace(graph, timeline(graph, seed=job.seed, first=2, iterations=2))


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


def _jitter(
    given: Jitter | float | str | None, workload: Workload, notes: list[Assumption]
) -> Jitter | None:
    """The jitter as asked; the one measured is that of the workload."""
    if given is None:
        notes.append(
            Assumption("jitter", 0.0, "", "default: every iteration computes equally long")
        )
        return None
    if isinstance(given, (int, float)):
        return Jitter(given)
    jitter = Jitter.parse(given) if isinstance(given, str) else given
    if jitter.kind != "measured":
        return jitter
    if not workload.step_cv > 0.0:
        raise InputError(f"jitter: no spread was measured for workload {workload.name!r}")
    notes.append(Assumption("jitter", workload.step_cv, "", "measured with the workload"))
    return Jitter(workload.step_cv, "lognormal", jitter.scope)


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


def _staleness(graph: OpGraph, run: Measures) -> Staleness | None:
    total = int(run.staleness.sum())
    if not total or np.isnan(run.staleness_mean).any():
        return None
    seen = {int(value): int(run.staleness[value]) for value in np.flatnonzero(run.staleness)}
    return Staleness(
        mean=float(sum(value * count for value, count in seen.items())) / total,
        p50=percentile(seen, 0.5),
        p90=percentile(seen, 0.9),
        max=max(seen),
        per_worker=_by_worker(graph, run.staleness_mean),
        histogram={str(value): count / total for value, count in seen.items()},
    )


def _model_age(job: Job) -> ModelAge | None:
    architecture, _ = architectures.find(job.architecture)
    return architecture.model_age(job) if architecture.model_age is not None else None


def _by_worker(graph: OpGraph, by_group: Floats) -> tuple[float, ...]:
    return tuple(np.repeat(by_group, graph.group_count).tolist())


def _operations(graph: OpGraph, run: Measures) -> dict[str, float]:
    """Mean seconds of each probed operation, by label."""
    out: dict[str, float] = {}
    for block in graph.probes:
        where = slice(block.first, block.first + block.size)
        count = float(run.probe_count[where].sum())
        if count and block.label != "staleness":
            out[block.label] = float(run.probe_seconds[where].sum()) / count
    return out


def _utilisation(graph: OpGraph, run: Measures) -> Utilisation:
    servers = {
        block.name(slot): float(run.slot_utilisation[slot])
        for block in graph.slots
        if block.label.startswith("update")
        for slot in range(block.first, block.first + block.size)
    }
    busy = _by_worker(graph, run.busy_fraction)
    return Utilisation(
        workers={f"worker {i}": part for i, part in enumerate(busy)},
        servers=servers,
        links={
            name: float(run.link_utilisation[link])
            for block in graph.links
            if block.label != "cores of"  # a processor, which only the engine takes for a link
            for link in range(block.first, block.first + block.size)
            for name in _members(block, link)
            if run.link_utilisation[link] > 0.0
        },
    )


def _members(block: Block, identity: int) -> list[str]:
    """Names of what an id stands for: one, or all along an axis that is folded."""
    if block.size == 1 and len(block.axes) == 1 and len(block.axes[0][1] or ()) > 1:
        whole = msgspec.structs.replace(block, shape=(len(block.axes[0][1] or ()),))
        return [whole.name(block.first + i) for i in range(whole.size)]
    return [block.name(identity)]


def _memory(job: Job) -> Memory:
    """Parameters, gradients and activations; optimizer state where the optimizer runs."""
    architecture, _ = architectures.find(job.architecture)
    w = job.workload
    on_server = architecture.server_bytes is not None
    if architecture.worker_bytes is not None:
        worker = architecture.worker_bytes(job)
    else:
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


def _finite(value: Any) -> Any:
    """JSON has no infinity: it is written as text, as on the command line."""
    return "inf" if value == math.inf else value


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
        "options": {k: _finite(v) for k, v in msgspec.to_builtins(job.options).items()},
        "jitter": msgspec.to_builtins(job.jitter),
        "stragglers": msgspec.to_builtins(job.stragglers),
        "start": job.start,
    }
