"""The two main calls: :func:`make_job` describes a job, :func:`predict` predicts its speed."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Unpack

import msgspec

from perfmodel.architectures import registry
from perfmodel.architectures.base import Architecture
from perfmodel.base.errors import InputError, TooLargeError
from perfmodel.base.files import finite
from perfmodel.base.provenance import Assumption
from perfmodel.catalogue.job_cluster import LinkChange, ProcessesOnNodes, cluster_of, named_cluster
from perfmodel.catalogue.job_workload import workload_of
from perfmodel.inputs.cluster import NO_HANDOVER, Cluster
from perfmodel.inputs.islands import ONE_STEP, read_devices, read_steps
from perfmodel.inputs.job import STARTS, Jitter, Job, Start, Straggler
from perfmodel.inputs.job_arguments import in_si
from perfmodel.inputs.job_replica import replica_of, sends_in_place, with_passes
from perfmodel.inputs.options import Options, described
from perfmodel.inputs.profile import Profile
from perfmodel.inputs.replica import Replica
from perfmodel.inputs.workload import Workload
from perfmodel.predicting import coarse, fine, job_facts
from perfmodel.predicting.answer import prediction_of
from perfmodel.predicting.budget import MOST_OPS as MOST_OPS
from perfmodel.predicting.fine import build_graph as build_graph
from perfmodel.predicting.options import (
    FIDELITIES as FIDELITIES,
    REL_CI as REL_CI,
    TOLERANCE as TOLERANCE,
    Fidelity as Fidelity,
    PredictArguments as PredictArguments,
    PredictOptions as PredictOptions,
)
from perfmodel.results.outcome import Outcome
from perfmodel.results.prediction import Prediction

if TYPE_CHECKING:
    from pathlib import Path

DEFAULT_ARCHITECTURE, INSIDE = "ps", "allreduce"
"""Default architecture of a job, and inside islands."""


def make_job(
    *,
    model: str | None = None,
    workload: Workload | Profile | str | Path | None = None,
    device: str | None = None,
    precision: str | None = None,
    batch_size: int | None = None,
    sequence_length: int | None = None,
    document_length: float | None = None,
    document_spread: float | None = None,
    document_lengths: Sequence[float] | str | Path | None = None,
    activation_checkpointing: bool | None = None,
    accumulation: int | None = None,
    recompute: str | None = None,
    stack: str | None = None,
    launches: str | None = None,
    framework: str | None = None,
    optimizer: str | None = None,
    precision_policy: str | None = None,
    lora: str | None = None,
    offload_optimizer: bool | None = None,
    one_device_samples_per_s: float | str | None = None,
    one_device_step_s: float | None = None,
    one_device_batch_size: int | None = None,
    cluster: Cluster | str | Path | None = None,
    bandwidth: float | str | None = None,
    bandwidth_bytes_per_s: float | None = None,
    latency: float | str | None = None,
    latency_s: float | None = None,
    devices_per_node: int | None = None,
    workers: int = 1,
    arch: str = DEFAULT_ARCHITECTURE,
    options: Mapping[str, Any] | None = None,
    island_devices: int | str | None = None,
    island_steps: int | str | None = None,
    island_arch: str | None = None,
    island_options: Mapping[str, Any] | None = None,
    devices: int | None = None,
    tensor: int | None = None,
    context: int | None = None,
    context_exchange: str | None = None,
    context_inside: int | None = None,
    context_split: str | None = None,
    pipeline: int | None = None,
    micro_batches: int | None = None,
    schedule: str | None = None,
    virtual_stages: int | None = None,
    stage_layers: str | tuple[int, ...] | None = None,
    balance: bool | None = None,
    sequence_parallel: bool | None = None,
    overlap_sums: bool | None = None,
    transfers: str | None = None,
    rank_order: str | None = None,
    expert: int | None = None,
    expert_tensor: int | None = None,
    expert_skew: float | None = None,
    expert_capacity: float | None = None,
    expert_exchange: str | None = None,
    expert_nodes: int | None = None,
    expert_overlap: float | None = None,
    jitter: Jitter | float | str | None = None,
    stragglers: Iterable[Straggler] = (),
    start: Start | None = None,
    seed: int = 0,
) -> Job:
    """Describe a training job; ``Job.assumptions`` lists the defaults used.

    It has so many parameters because users vary them independently, and so many lines because each
    parameter has one; all have a default.

    Parameters
    ----------
    model, workload : give one of them: a model of the catalogue, or a workload (object or file).
    device, precision, batch_size : which of the profile's timings to use; batch size is per worker.
    document_... : lengths of documents that sequences are packed from, or a file of them.
    recompute : none, selective, selective:products, selective:N or full (activation_checkpointing).
    stack, launches, framework : such as "tuned", "graphs", and "pytorch": the software.
    optimizer, precision_policy, lora, offload_optimizer : how the model is stored (``Storage``).
    accumulation : passes per update, which share a worker's batch; default: as timed, or 1.
    one_device_... : measured speed of one device, which scales compute times.
    cluster : an object, a file, or a name in the catalogue; by default the device's, if it has one.
    bandwidth, latency : of every node's link: text such as "25Gbps" and "5us", or SI numbers.
    devices_per_node : workers of a node, instead of the cluster's.
    arch, options : name of the architecture, and its options by name.
    island_devices, ... : devices of a worker that is an island, or ``"8+8+4"``, and how they train.
    island_steps : steps between exchanges; ``"equal:100"``: as many as fit the fastest's 100.
    tensor, context, ... : a worker of several devices, :class:`perfmodel.inputs.replica.Replica`.
    expert, ... : experts on several devices, of one worker or of several.
    jitter : coefficient of variation of the compute time, a Jitter, or :meth:`Jitter.parse` text.

    Raises
    ------
    InputError : an argument is unknown, out of range or contradicts another.
    """
    stragglers = tuple(stragglers)
    given = in_si(arguments_given(locals()))
    return msgspec.structs.replace(_with_islands(_job_of(given), given), given=given)


def _job_of(given: Mapping[str, Any]) -> Job:
    """Return the job of the arguments of :func:`make_job`, with one device per worker."""
    given, of_passes = with_passes(given)
    replica, of_replica = replica_of(given)
    resolved = workload_of(given)
    placed = _placed(given, resolved, _devices(given, replica))
    spread, of_jitter = _jitter(given.get("jitter"), resolved)
    start, of_start = _start(given.get("start"), placed.options)
    return Job(
        workload=resolved,
        cluster=placed.cluster,
        workers=given.get("workers", 1),
        architecture=placed.architecture,
        options=placed.options,
        start=start,
        jitter=spread,
        stragglers=given.get("stragglers", ()),
        seed=given.get("seed", 0),
        replica=replica,
        assumptions=(
            *resolved.assumptions,
            *of_passes,
            *of_replica,
            *placed.assumptions,
            *of_start,
            *of_jitter,
        ),
    )


def arguments_given(arguments: Mapping[str, object]) -> dict[str, Any]:
    """Return the arguments of :func:`make_job` that differ from its defaults."""
    defaults = make_job.__kwdefaults__ or {}
    return {
        name: dict(value) if isinstance(value, Mapping) else value
        for name, value in arguments.items()
        if value is not defaults[name] and value not in (defaults[name], {})
    }


def _with_islands(job: Job, given: Mapping[str, Any]) -> Job:
    """Return the job with islands as workers, if an island has more than one device or step."""
    devices, steps_of = given.get("island_devices"), given.get("island_steps")
    arch, options = given.get("island_arch"), given.get("island_options")
    if devices is None and (arch is not None or options):
        raise InputError("island_arch, island_options: need island_devices")
    steps = ONE_STEP if steps_of is None else read_steps(steps_of)
    sizes = read_devices(1 if devices is None else devices, job.workers)
    name = INSIDE if arch is None else arch
    if max(sizes) == steps.most == 1:
        if arch is not None or options:  # only a check: loading an architecture takes milliseconds
            registry.read_options(registry.find(name)[0], options or {}, job.cluster)
        return job
    from perfmodel.predicting import islands

    return islands.joined(job_facts.with_layers(job), sizes, name, options or {}, steps)


def predict(
    job: Job, options: PredictOptions | None = None, **arguments: Unpack[PredictArguments]
) -> Prediction:
    """Predict how fast ``job`` trains.

    Parameters
    ----------
    options : how to predict it; by default simulate it.
    arguments : fields of :class:`perfmodel.PredictOptions` that replace those of ``options``:
        ``fidelity``, ``tolerance``, ``dataset_size``, ``epochs``, ``rel_ci``, ``iterations``,
        ``run_iterations``, ``max_ops``, ``progress``.

    Raises
    ------
    InputError : a value is out of range, or values contradict each other; the simulation would take
        more than ``max_ops``.
    """
    if options is None:
        options = PredictOptions(**arguments)
    elif arguments:
        options = msgspec.structs.replace(options, **arguments)
    job = job_facts.with_layers(job)
    if options.fidelity == "auto":
        outcome = _as_needed(job, options)
    elif options.fidelity == "coarse":
        outcome = coarse.predict(job)
    else:
        outcome = _simulated(job, options)
    return prediction_of(job, outcome, options)


def _simulated(job: Job, options: PredictOptions) -> Outcome:
    """Return the outcome of the simulation."""
    return fine.predict(
        job,
        rel_ci=options.rel_ci,
        iterations=options.iterations,
        run_iterations=options.run_iterations,
        max_ops=options.max_ops,
        progress=options.progress,
    )


def _as_needed(job: Job, options: PredictOptions) -> Outcome:
    """Return the coarse outcome if its error band is narrow enough, else the fine one.

    If the simulation would take more than ``max_ops``, return the coarse outcome with a note.
    """
    tolerance = options.tolerance
    limit = f"tolerance {tolerance:.1%}"
    formulas = coarse.predict(job)
    expected = formulas.error_band
    if expected is None or (expected.p90 is not None and expected.p90 <= tolerance):
        why = f"coarse: {expected.text if expected else 'exact'}; {limit}"
        return msgspec.structs.replace(formulas, notes=(why,))
    try:
        simulated = _simulated(job, msgspec.structs.replace(options, run_iterations=None))
    except TooLargeError as error:
        why = f"coarse, although not accurate enough: {expected.text}; {limit}; but {error}"
        return msgspec.structs.replace(formulas, notes=(why,))
    why = f"fine, because coarse is not accurate enough: {expected.text}; {limit}"
    return msgspec.structs.replace(simulated, notes=(why,))


class PlacedArchitecture(msgspec.Struct, frozen=True):
    """An architecture with its options on the cluster of a job, and the assumptions about both."""

    architecture: Architecture
    options: Options
    cluster: Cluster
    assumptions: tuple[Assumption, ...]


def _devices(given: Mapping[str, Any], replica: Replica | None) -> int:
    """Return the number of devices of all workers."""
    workers: int = given.get("workers", 1)
    if given.get("island_devices") is not None:
        return sum(read_devices(given["island_devices"], workers))
    return workers if replica is None else workers * replica.devices


def _placed(given: Mapping[str, Any], resolved: Workload, devices: int) -> PlacedArchitecture:
    """Return the architecture and the cluster that the arguments of :func:`make_job` name."""
    links = LinkChange(given.get("bandwidth_bytes_per_s"), given.get("latency_s"))
    cluster = given.get("cluster")
    base, notes = named_cluster(cluster, resolved.device, given.get("devices_per_node"))
    arch = given.get("arch", DEFAULT_ARCHITECTURE)
    architecture, settings, chosen = _architecture(arch, given.get("options") or {}, base)
    has = ProcessesOnNodes(chosen.server_count > 0, given.get("island_devices") is not None)
    where, of_cluster = cluster_of(base, links, resolved, None if base is cluster else has)
    if sends_in_place(given) and base.handover == NO_HANDOVER:  # no copy: see the function
        where = msgspec.structs.replace(where, handover=NO_HANDOVER)
        of_cluster = [note for note in of_cluster if not note.name.startswith("handover")]
    chosen, of_choice = _adapted(chosen, settings, where, devices, given.get("pipeline") or 1)
    notes += [*of_cluster, *of_choice, *registry.by_cluster(architecture, settings, base)]
    known = {*settings, *(row.name for row in of_choice)}
    notes += _defaults(architecture.name, chosen, known, resolved)
    return PlacedArchitecture(architecture, chosen, where, tuple(notes))


def _architecture(
    arch: str, options: Mapping[str, Any], cluster: Cluster
) -> tuple[Architecture, dict[str, Any], Options]:
    """Return an architecture, the options that its name implies or that are given, and all.

    Raises
    ------
    InputError : a given option contradicts what the name implies.
    """
    architecture, preset = registry.find(arch)
    for name, value in preset.items():
        if options.get(name, value) != value:
            raise InputError(
                f"option {name}={options[name]}: architecture {arch!r} means {name}={value}"
            )
    settings = {**preset, **options}
    return architecture, settings, registry.read_options(architecture, settings, cluster)


def _defaults(
    name: str, chosen: Options, given: Collection[str], workload: Workload
) -> list[Assumption]:
    """Return an assumption for each option that was not given and has an effect."""
    unused = chosen.unused
    fields = [
        field
        for field in described(type(chosen))
        if field.name not in given
        and field.name not in unused
        and (not field.about.needs or getattr(workload, field.about.needs) > 0.0)
    ]
    values = finite([field.default for field in fields], "inf")
    return [
        Assumption(field.name, value, field.unit, f"default of {name}")
        for field, value in zip(fields, values, strict=True)
    ]


def _adapted(
    chosen: Options, given: Mapping[str, Any], cluster: Cluster, devices: int, stages: int
) -> tuple[Options, list[Assumption]]:
    """Return the options with defaults that depend on the cluster, or on the number of stages of a
    worker, and assumptions about these.

    Raises
    ------
    InputError : a given option cannot have its value in a pipeline.
    """
    needed = chosen.in_pipelines if stages > 1 else {}
    for name, (value, why) in needed.items():
        if given.get(name, value) != value:
            raise InputError(f"option {name}={given[name]}: {why} (allowed: {value})")
    adapted = {
        name: (value, why)
        for name, (value, why) in {**chosen.defaults_on(cluster, devices), **needed}.items()
        if name not in given
    }
    values = {name: value for name, (value, _) in adapted.items()}
    notes = [Assumption(name, value, "", why) for name, (value, why) in adapted.items()]
    return msgspec.structs.replace(chosen, **values) if values else chosen, notes


def _start(start: Start | None, options: Options) -> tuple[Start, list[Assumption]]:
    """Return how workers start, and an assumption if this is the default."""
    if start is not None:
        return start, []
    default, why = STARTS[options.asynchronous]
    return default, [Assumption("start", default, "", why)]


def _jitter(
    given: Jitter | float | str | None, workload: Workload
) -> tuple[Jitter | None, list[Assumption]]:
    """Return the jitter; *measured* is replaced by the spread measured for the workload."""
    if given is None:
        why = "default: same compute time in every iteration"
        if workload.packing is not None:
            why = "default: only the time of attention varies, with the documents"
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
