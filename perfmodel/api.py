"""The two calls most programs need: :func:`make_job` describes a job, :func:`predict` answers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from perfmodel.architectures import registry
from perfmodel.base.errors import InputError, TooLargeError, number, unknown_name, whole_number
from perfmodel.base.provenance import Assumption
from perfmodel.base.units import dimension_of
from perfmodel.engine.warmup import Progress
from perfmodel.inputs import catalogue
from perfmodel.inputs.cluster import Cluster, Link
from perfmodel.inputs.job import Jitter, Job, Start, Straggler
from perfmodel.inputs.profile import Profile
from perfmodel.inputs.workload import Workload
from perfmodel.predicting import coarse, fine
from perfmodel.predicting.budget import MOST_OPS
from perfmodel.predicting.fine import build_graph
from perfmodel.predicting.intervals import with_interval
from perfmodel.predicting.job_facts import Totals, finite, with_layers
from perfmodel.results.prediction import Prediction

REL_CI = 0.01
"""Half-width of the 95 % confidence interval that a random job is simulated to, as a fraction."""

MOST_ITERATIONS = 1_000_000
"""Iterations of which the start of a run may be simulated."""

TOLERANCE = 0.05
"""Error that *auto* puts up with in nine of ten coarse predictions (fraction of the iteration)."""

MOST_MAX_OPS = 1e15
"""Largest ``max_ops`` but infinity: as much as a core simulates in thirty years."""

Fidelity = Literal["fine", "coarse", "auto"]
FIDELITIES = ("fine", "coarse", "auto")


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
    cluster : an object, a file, or a name of the catalogue; by default that of the device, if its
        file names one.
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
    architecture, preset = registry.find(arch)
    servers = architecture.server_bytes is not None
    where = _cluster(cluster, resolved.device, bandwidth_bytes_per_s, latency_s, servers, notes)
    given = dict(options or {})
    for name, value in preset.items():
        if given.get(name, value) != value:
            raise InputError(
                f"option {name}={given[name]}: architecture {arch!r} stands for {name}={value}"
            )
    chosen = registry.read_options(architecture, {**preset, **given})
    for field in architecture.option_help:
        unused = field in architecture.unused(chosen)
        if field not in given and field not in preset and not unused:
            value = getattr(chosen, field)
            unit = dimension_of(field) or ""
            notes.append(Assumption(field, finite(value), unit, f"default of {architecture.name}"))
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


def predict(
    job: Job,
    *,
    fidelity: Fidelity = "fine",
    tolerance: float = TOLERANCE,
    dataset_size: int | None = None,
    epochs: int | None = None,
    rel_ci: float = REL_CI,
    iterations: int | None = None,
    max_ops: float = MOST_OPS,
    progress: Progress | None = None,
) -> Prediction:
    """Predict how fast ``job`` trains.

    Parameters
    ----------
    fidelity : *fine* simulates the job; *coarse* evaluates its formulas, in microseconds to
        milliseconds; *auto* is coarse where 9 in 10 such jobs are within ``tolerance`` of the
        simulation, and fine elsewhere.
    tolerance : fraction of the iteration.
    dataset_size, epochs : samples per epoch and number of epochs, for the training time.
    rel_ci : half-width of the confidence interval that a random job is simulated to, as a fraction
        of its throughput.
    iterations : predict the first so many iterations of a run instead of the long run: until each
        worker has ended them, with the transient that they begin with. Needs *fine*.
    max_ops : operations that a simulation may take, which *fine* refuses to exceed and where *auto*
        goes back to coarse; inf for no limit.
    progress : called with (done, expected) while a job is simulated.

    Raises
    ------
    InputError : an unknown ``fidelity``; ``tolerance`` or ``rel_ci`` not in (0, 1]; ``epochs``
        without ``dataset_size``, or either below 1; ``iterations`` not in 1 to MOST_ITERATIONS, or
        with ``dataset_size`` or a fidelity other than *fine*; a simulation takes more than
        ``max_ops``.
    """
    if fidelity not in FIDELITIES:
        raise unknown_name("fidelity", fidelity, FIDELITIES)
    number("tolerance", tolerance, above=0.0, at_most=1.0)
    number("rel_ci", rel_ci, above=0.0, at_most=1.0)
    if max_ops != math.inf:
        number("max_ops", max_ops, at_least=1.0, at_most=MOST_MAX_OPS)
    totals = Totals(dataset_size, epochs)
    if iterations is not None:
        whole_number("iterations", iterations, at_most=MOST_ITERATIONS)
        if fidelity != "fine":
            raise InputError(f"iterations: only a simulation has a start, fidelity is {fidelity}")
        if dataset_size is not None:
            raise InputError("iterations: epochs are of the long run; leave out dataset_size")
    job = with_layers(job)
    if fidelity == "auto":
        answer = _as_needed(job, totals, tolerance, rel_ci, max_ops, progress)
    elif fidelity == "coarse":
        answer = coarse.predict(job, totals)
    else:
        how: dict[str, Any] = {"rel_ci": rel_ci, "iterations": iterations, "max_ops": max_ops}
        answer = fine.predict(job, totals, **how, progress=progress)
    return with_interval(job, answer)


def _as_needed(
    job: Job,
    totals: Totals,
    tolerance: float,
    rel_ci: float,
    max_ops: float,
    progress: Progress | None,
) -> Prediction:
    """The coarse prediction where its error band is narrow enough, else the fine one.

    The coarse one also where a simulation would take more than ``max_ops``, with a note.
    """
    asked = f"asked for within {tolerance:.1%}"
    expected = coarse.error_band(job)
    if expected.p90 is not None and expected.p90 <= tolerance:
        answer = coarse.predict(job, totals)
        why = f"coarse: {expected.text}; {asked}"
        return answer.changed(notes=(*answer.notes, why))
    try:
        answer = fine.predict(job, totals, rel_ci=rel_ci, max_ops=max_ops, progress=progress)
        why = f"fine, because coarse is not enough: {expected.text}; {asked}"
    except TooLargeError as error:
        answer = coarse.predict(job, totals)
        why = f"coarse, although not enough: {expected.text}; {asked}; but {error}"
    return answer.changed(notes=(*answer.notes, why))


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
    device: str,
    bandwidth_bytes_per_s: float | None,
    latency_s: float | None,
    servers: bool,
    notes: list[Assumption],
) -> Cluster:
    """The cluster with its links changed as asked; notes what came from the cluster's file."""
    if isinstance(cluster, Cluster):
        base = cluster
    else:
        if cluster is None:
            of_device = catalogue.default_cluster_of(device)
            why = "default" if of_device is None else f"default for {device}"
            cluster = of_device or catalogue.DEFAULT_CLUSTER
            notes.append(Assumption("cluster", cluster, "", why))
        base = catalogue.cluster_or_file(cluster)
        name = f"cluster {base.name}"
        if bandwidth_bytes_per_s is None:
            nominal = base.nic.bandwidth_bytes_per_s
            notes.append(Assumption("bandwidth", nominal, "bytes_per_s", name))
        if latency_s is None:
            notes.append(Assumption("latency", base.nic.latency_s, "s", name))
        notes.append(Assumption("efficiency", base.nic.efficiency, "of bandwidth", name))
        if base.devices_per_node > 1:
            notes.append(Assumption("devices per node", base.devices_per_node, "", name))
        if base.nics_per_node > 1:
            notes.append(Assumption("NICs per node", base.nics_per_node, "", name))
        if base.intra_node is not None:
            rate, kind = base.intra_node.bandwidth_bytes_per_s, base.intra_node.kind
            notes.append(Assumption("inside a node", rate, "bytes_per_s", f"{name}, {kind}"))
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
            else number("bandwidth_bytes_per_s", bandwidth_bytes_per_s, above=0.0),
            link.latency_s if latency_s is None else number("latency_s", latency_s),
            link.efficiency,
        )

    overrides = tuple(
        msgspec.structs.replace(o, nic=changed(o.nic)) if o.nic is not None else o
        for o in base.overrides
    )
    if base.collectives:
        why = "those measured are of another bandwidth or latency"
        notes.append(Assumption("collectives", "closed forms", "", why))
    return msgspec.structs.replace(base, nic=changed(base.nic), overrides=overrides, collectives=())


__all__ = ["MOST_OPS", "REL_CI", "TOLERANCE", "build_graph", "make_job", "predict"]
