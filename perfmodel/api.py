"""The two calls most programs need: :func:`make_job` describes a job, :func:`predict` answers."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec

from perfmodel.architectures import registry
from perfmodel.base.errors import InputError, TooLargeError, number, unknown_name, whole_number
from perfmodel.base.files import finite
from perfmodel.base.provenance import Assumption
from perfmodel.engine.warmup import Progress
from perfmodel.inputs import catalogue
from perfmodel.inputs.cluster import Cluster, Link
from perfmodel.inputs.islands import ONE_STEP, Steps, read_devices, read_steps
from perfmodel.inputs.job import Jitter, Job, Start, Straggler
from perfmodel.inputs.options import Options, described
from perfmodel.inputs.profile import Profile
from perfmodel.inputs.workload import Workload
from perfmodel.predicting import coarse, fine, job_facts
from perfmodel.predicting.answer import prediction_of
from perfmodel.predicting.budget import MOST_OPS
from perfmodel.predicting.fine import build_graph
from perfmodel.predicting.job_facts import TrainingAmount
from perfmodel.results.outcome import Outcome
from perfmodel.results.prediction import Prediction

REL_CI = 0.01
"""Half-width of the 95 % confidence interval that a random job is simulated to, as a fraction."""

MOST_ITERATIONS = 1_000_000
"""Most iterations of which the start of a run may be simulated."""

TOLERANCE = 0.05
"""90th percentile of the error that *auto* accepts of coarse predictions (of the iteration)."""

MOST_MAX_OPS = 1e15
"""Largest finite ``max_ops``: what a core simulates in thirty years."""

INSIDE = "allreduce"
"""Default architecture inside an island."""

OF_WORKLOAD = (
    *("model", "workload", "device", "precision", "batch_size"),
    *("sequence_length", "activation_checkpointing", "accumulation"),
)
"""Arguments of :func:`make_job` that a workload is made of."""

Fidelity = Literal["fine", "coarse", "auto"]
FIDELITIES = ("fine", "coarse", "auto")


def make_job(
    *,
    model: str | None = None,
    workload: Workload | Profile | str | Path | None = None,
    device: str | None = None,
    precision: str | None = None,
    batch_size: int | None = None,
    sequence_length: int | None = None,
    activation_checkpointing: bool | None = None,
    accumulation: int | None = None,
    cluster: Cluster | str | Path | None = None,
    bandwidth_bytes_per_s: float | None = None,
    latency_s: float | None = None,
    workers: int = 1,
    arch: str = "ps",
    options: Mapping[str, Any] | None = None,
    island_devices: int | str | None = None,
    island_steps: int | str | None = None,
    island_arch: str | None = None,
    island_options: Mapping[str, Any] | None = None,
    jitter: Jitter | float | str | None = None,
    stragglers: Iterable[Straggler] = (),
    start: Start | None = None,
    seed: int = 0,
) -> Job:
    """Describe a training job; defaults that are used are noted in ``Job.assumptions``.

    It has so many parameters because users vary each of them by itself; all have a default.

    Parameters
    ----------
    model, workload : one of them: a model of the catalogue, or a workload (object or file).
    device, precision, batch_size : which of the profile's timings; batch size is per worker.
    sequence_length : tokens of a sample, of language models with given dimensions.
    activation_checkpointing : whether blocks keep their inputs only, and compute the rest again.
    accumulation : passes before one update, which share the batch of a worker; 1 by default.
    cluster : an object, a file, or a name of the catalogue; by default that of the device, if its
        file names one.
    bandwidth_bytes_per_s, latency_s : replace those of every node's link.
    arch, options : name of the architecture and its options by name.
    island_devices : workers are groups of so many devices, as ``"8+8+4"`` unequal ones; by default
        1. The batch size is then that of a device.
    island_steps : steps that each group does from one exchange with others to the next, by default
        1; ``"equal:100"``: 100 of the fastest, and so many of others as take equally long.
    island_arch, island_options : how the devices of an island train together; by default allreduce.
    jitter : coefficient of variation of the workers' compute per iteration, a Jitter, or text for
        :meth:`Jitter.parse`.

    Raises
    ------
    InputError : an argument is unknown, out of range or contradicts another.
    """
    passes = Passes(batch_size, sequence_length, activation_checkpointing, accumulation)
    resolved = _workload(model, workload, device, precision, passes)
    architecture, preset = registry.find(arch)
    given = {**preset, **_options(arch, preset, options or {})}
    chosen = registry.read_options(architecture, given)
    place, chosen_place = _place(cluster, resolved.device)
    where, of_cluster = _cluster(place, bandwidth_bytes_per_s, latency_s, chosen.server_count > 0)
    spread, of_jitter = _jitter(jitter, resolved)
    assumed = (*resolved.assumptions, *chosen_place, *of_cluster)
    start, of_start = _start(start, chosen)
    of_options = _defaults(architecture.name, chosen, given, resolved)
    job = Job(
        workload=resolved,
        cluster=where,
        workers=workers,
        architecture=architecture,
        options=chosen,
        start=start,
        jitter=spread,
        stragglers=tuple(stragglers),
        seed=seed,
        assumptions=(*assumed, *of_options, *of_start, *of_jitter),
    )
    if island_devices is None and (island_arch is not None or island_options):
        raise InputError("island_arch, island_options: need island_devices")
    steps = ONE_STEP if island_steps is None else read_steps(island_steps)
    sizes = read_devices(1 if island_devices is None else island_devices, workers)
    return _with_islands(job, sizes, steps, island_arch, island_options)


def _place(
    given: Cluster | str | Path | None, device: str
) -> tuple[Cluster | str | Path, list[Assumption]]:
    """The cluster as given, or the default of a device, and an assumption that says so."""
    if given is not None:
        return given, []
    own = catalogue.default_cluster_of(device)
    name = catalogue.DEFAULT_CLUSTER if own is None else own
    why = "default" if own is None else f"default for {device}"
    return name, [Assumption("cluster", catalogue.cluster(name).name, "", why)]


def _start(given: Start | None, chosen: Options) -> tuple[Start, list[Assumption]]:
    """How workers begin, and an assumption where it was not given."""
    if given is not None:
        return given, []
    if chosen.asynchronous:
        why = "asynchronous workers drift apart"
        return "staggered", [Assumption("start", "staggered", "", why)]
    return "together", [Assumption("start", "together", "", "synchronous")]


def _with_islands(
    job: Job,
    sizes: tuple[int, ...],
    steps: Steps,
    arch: str | None,
    options: Mapping[str, Any] | None,
) -> Job:
    """The job with islands in the place of workers, where these have more than one device, or do
    more than one step."""
    name = INSIDE if arch is None else arch
    if max(sizes) == steps.most == 1:
        registry.read_options(registry.find(name)[0], options or {})
        return job
    from perfmodel.predicting import islands

    return islands.joined(job_facts.with_layers(job), sizes, name, options or {}, steps)


def predict(
    job: Job,
    *,
    fidelity: Fidelity = "fine",
    tolerance: float = TOLERANCE,
    dataset_size: int | None = None,
    epochs: int | None = None,
    rel_ci: float = REL_CI,
    iterations: int | None = None,
    run_iterations: int | None = None,
    max_ops: float = MOST_OPS,
    progress: Progress | None = None,
) -> Prediction:
    """Predict how fast ``job`` trains.

    It has so many parameters because each is a question of its own; all have a default.

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
    run_iterations : iterations of the measured run that the interval is for, which chance makes
        faster or slower where the job is random; by default ``iterations``, or else so many that
        this does not count. Of the formulas it is not known.
    max_ops : operations that a simulation may take, which *fine* refuses to exceed and where *auto*
        goes back to coarse; inf for no limit.
    progress : called with (done, expected) while a job is simulated.

    Raises
    ------
    InputError : an unknown ``fidelity``; ``tolerance`` or ``rel_ci`` not in (0, 1]; ``epochs``
        without ``dataset_size``, or either below 1; ``iterations`` not in 1 to MOST_ITERATIONS, or
        with ``dataset_size`` or a fidelity other than *fine*; ``run_iterations`` not in that
        range, or beside ``iterations``; a simulation takes more than ``max_ops``.
    """
    if fidelity not in FIDELITIES:
        raise unknown_name("fidelity", fidelity, FIDELITIES)
    number("tolerance", tolerance, above=0.0, at_most=1.0)
    number("rel_ci", rel_ci, above=0.0, at_most=1.0)
    if max_ops != math.inf:
        number("max_ops", max_ops, at_least=1.0, at_most=MOST_MAX_OPS)
    totals = TrainingAmount(dataset_size, epochs)
    if iterations is not None:
        whole_number("iterations", iterations, at_most=MOST_ITERATIONS)
        if fidelity != "fine":
            raise InputError(f"iterations: only a simulation has a start, fidelity is {fidelity}")
        if dataset_size is not None:
            raise InputError("iterations: epochs are of the long run; leave out dataset_size")
    if run_iterations is not None:
        whole_number("run_iterations", run_iterations, at_most=MOST_ITERATIONS)
        if iterations is not None:
            raise InputError("run_iterations: the run is that of the first iterations; give one")
    job = job_facts.with_layers(job)
    if fidelity == "auto":
        outcome = _as_needed(job, tolerance, rel_ci, max_ops, progress)
    elif fidelity == "coarse":
        outcome = coarse.predict(job)
    else:
        outcome = fine.predict(
            job,
            rel_ci=rel_ci,
            iterations=iterations,
            run_iterations=run_iterations,
            max_ops=max_ops,
            progress=progress,
        )
    return prediction_of(job, outcome, totals, max_ops)


def _as_needed(
    job: Job, tolerance: float, rel_ci: float, max_ops: float, progress: Progress | None
) -> Outcome:
    """The coarse outcome where its error band is narrow enough, else the fine one.

    The coarse one also where a simulation would take more than ``max_ops``, with a note.
    """
    asked = f"asked for within {tolerance:.1%}"
    formulas = coarse.predict(job)
    expected = formulas.error_band
    if expected is None or (expected.p90 is not None and expected.p90 <= tolerance):
        why = f"coarse: {expected.text if expected else 'exact'}; {asked}"
        return msgspec.structs.replace(formulas, notes=(why,))
    try:
        simulated = fine.predict(job, rel_ci=rel_ci, max_ops=max_ops, progress=progress)
    except TooLargeError as error:
        why = f"coarse, although not enough: {expected.text}; {asked}; but {error}"
        return msgspec.structs.replace(formulas, notes=(why,))
    why = f"fine, because coarse is not enough: {expected.text}; {asked}"
    return msgspec.structs.replace(simulated, notes=(why,))


def _options(arch: str, preset: Mapping[str, Any], given: Mapping[str, Any]) -> Mapping[str, Any]:
    """The options given; error if one contradicts those that the architecture's name implies."""
    for name, value in preset.items():
        if given.get(name, value) != value:
            raise InputError(
                f"option {name}={given[name]}: architecture {arch!r} stands for {name}={value}"
            )
    return given


def _defaults(
    name: str, chosen: Options, given: Collection[str], workload: Workload
) -> list[Assumption]:
    """Assumptions for the options that were not given, and have an effect."""
    unused = chosen.unused
    return [
        Assumption(each.name, finite(each.default, "inf"), each.unit, f"default of {name}")
        for each in described(type(chosen))
        if each.name not in given
        and each.name not in unused
        and (not each.about.needs or getattr(workload, each.about.needs) > 0.0)
    ]


class Passes(NamedTuple):
    """What a step passes through the model, as in :func:`make_job`; None where not given."""

    batch_size: int | None
    sequence_length: int | None
    activation_checkpointing: bool | None
    accumulation: int | None


def _workload(
    model: str | None,
    workload: Workload | Profile | str | Path | None,
    device: str | None,
    precision: str | None,
    passes: Passes,
) -> Workload:
    """The workload, given or made."""
    if model is None and workload is None:
        known = ", ".join(catalogue.model_names())
        raise InputError(f"model or workload: one of them is needed (models: {known})")
    if model is not None and workload is not None:
        raise InputError("model and workload: give only one of them")
    if isinstance(workload, Workload):
        for name, value in {"device": device, **passes._asdict()}.items():
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
        profile,
        device_name=device,
        precision=precision,
        batch_size=passes.batch_size,
        sequence_length=passes.sequence_length,
        activation_checkpointing=bool(passes.activation_checkpointing),
        accumulation=1 if passes.accumulation is None else passes.accumulation,
    )


def _jitter(
    given: Jitter | float | str | None, workload: Workload
) -> tuple[Jitter | None, list[Assumption]]:
    """The jitter as given; *measured* is replaced by that of the workload."""
    if given is None:
        why = "default: every iteration computes equally long"
        return None, [Assumption("jitter", 0.0, "", why)]
    if isinstance(given, (int, float)):
        return Jitter(given), []
    jitter = Jitter.parse(given) if isinstance(given, str) else given
    if jitter.kind != "measured":
        return jitter, []
    if not workload.step_cv > 0.0:
        raise InputError(f"jitter: no spread was measured for workload {workload.name!r}")
    note = Assumption("jitter", workload.step_cv, "", "measured with the workload")
    return Jitter(workload.step_cv, "lognormal", jitter.scope), [note]


def _cluster(
    cluster: Cluster | str | Path,
    bandwidth_bytes_per_s: float | None,
    latency_s: float | None,
    servers: bool,
) -> tuple[Cluster, list[Assumption]]:
    """The cluster with the given changes of its links, and assumptions taken from its file."""
    if isinstance(cluster, Cluster):
        base, notes = cluster, []
    else:
        base = catalogue.cluster_or_file(cluster)
        notes = _of_file(base, bandwidth_bytes_per_s, latency_s, servers)
    if bandwidth_bytes_per_s is None and latency_s is None:
        return base, notes

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
        notes = [*notes, Assumption("collectives", "closed forms", "", why)]
    changes: dict[str, Any] = {"nic": changed(base.nic), "overrides": overrides, "collectives": ()}
    if base.server.nic is not None:
        nic = changed(base.server.nic)
        changes["server"] = msgspec.structs.replace(base.server, nic=nic)
    return msgspec.structs.replace(base, **changes), notes


def _of_file(
    cluster: Cluster, bandwidth_bytes_per_s: float | None, latency_s: float | None, servers: bool
) -> list[Assumption]:
    """Assumptions taken from a cluster's file where nothing was given."""
    name, nic, cost = f"cluster {cluster.name}", cluster.nic, cluster.server
    inside = cluster.intra_node
    said: list[tuple[bool, str, float, str, str]] = [
        (bandwidth_bytes_per_s is None, "bandwidth", nic.bandwidth_bytes_per_s, "bytes_per_s", ""),
        (latency_s is None, "latency", nic.latency_s, "s", ""),
        (True, "efficiency", nic.efficiency, "of bandwidth", ""),
        (cluster.devices_per_node > 1, "devices per node", cluster.devices_per_node, "", ""),
        (cluster.nics_per_node > 1, "NICs per node", cluster.nics_per_node, "", ""),
    ]
    if inside is not None:
        rate, kind = inside.bandwidth_bytes_per_s, f", {inside.kind}"
        said.append((True, "inside a node", rate, "bytes_per_s", kind))
    if cluster.sites:
        said.append((True, "sites", len(cluster.sites), "", ", with links between them"))
    said += [
        (servers, "update per tensor", cost.update_per_tensor_s, "s", ""),
        (servers, "update per byte", cost.update_per_byte_s, "s", ""),
    ]
    return [Assumption(what, v, unit, name + more) for there, what, v, unit, more in said if there]


__all__ = ["MOST_OPS", "REL_CI", "TOLERANCE", "build_graph", "make_job", "predict"]
