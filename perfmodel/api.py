"""The two main calls: :func:`make_job` describes a job, :func:`predict` predicts its speed."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypedDict

import msgspec

from perfmodel.architectures import registry
from perfmodel.architectures.base import Architecture
from perfmodel.base.errors import InputError, TooLargeError, number, unknown_name, whole_number
from perfmodel.base.files import finite
from perfmodel.base.provenance import Assumption
from perfmodel.engine.warmup import Progress
from perfmodel.inputs import catalogue
from perfmodel.inputs.cluster import Cluster
from perfmodel.inputs.islands import ONE_STEP, read_devices, read_steps
from perfmodel.inputs.job import Jitter, Job, Start, Straggler
from perfmodel.inputs.job_arguments import in_si
from perfmodel.inputs.job_cluster import LinkChange, ProcessesOnNodes, cluster_of, named_cluster
from perfmodel.inputs.one_device import OneDevice, at_speed, read_one_device
from perfmodel.inputs.options import Options, described
from perfmodel.inputs.profile import Profile
from perfmodel.inputs.recomputation import read_recomputation
from perfmodel.inputs.storage import DEFAULT, OF_STORAGE, Storage, read_storage
from perfmodel.inputs.workload import Workload
from perfmodel.predicting import coarse, fine, job_facts
from perfmodel.predicting.answer import prediction_of
from perfmodel.predicting.budget import MOST_OPS
from perfmodel.predicting.fine import build_graph
from perfmodel.predicting.job_facts import TrainingAmount
from perfmodel.results.outcome import Outcome
from perfmodel.results.prediction import Prediction

REL_CI = 0.01
"""Target half-width of the 95 % confidence interval of a simulated random job, as a fraction."""

MOST_ITERATIONS = 1_000_000
"""Maximum number of first iterations of a run that may be simulated."""

TOLERANCE = 0.05
"""Largest 90th-percentile error of a coarse iteration time that *auto* accepts, as a fraction."""

MOST_MAX_OPS = 1e15
"""Largest finite ``max_ops``: what one core simulates in thirty years."""

DEFAULT_ARCHITECTURE, INSIDE = "ps", "allreduce"
"""Default architecture of a job, and inside islands."""

OF_WORKLOAD = (
    *("model", "workload", "device", "precision", "batch_size"),
    *("sequence_length", "activation_checkpointing", "accumulation", "recomputation"),
    *("optimizer", "precision_policy", "lora", "offload_optimizer"),
    *("one_device_samples_per_s", "one_device_step_s", "one_device_batch_size"),
)
"""Arguments of :func:`make_job` that define the workload."""

OF_ONE_DEVICE = tuple(name for name in OF_WORKLOAD if name.startswith("one_device_"))
"""Those of them that give the measured speed of one device."""

Fidelity = Literal["fine", "coarse", "auto"]
FIDELITIES = ("fine", "coarse", "auto")


class PredictOptions(TypedDict, total=False):
    """Arguments of :func:`predict` that studies pass on."""

    fidelity: Fidelity
    tolerance: float
    dataset_size: int | None
    epochs: int | None
    rel_ci: float
    max_ops: float


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
    recomputation: str | None = None,
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
    workers: int = 1,
    arch: str = DEFAULT_ARCHITECTURE,
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
    """Describe a training job; ``Job.assumptions`` lists the defaults used.

    It has so many parameters because users vary them independently; all have a default.

    Parameters
    ----------
    model, workload : give one of them: a model of the catalogue, or a workload (object or file).
    device, precision, batch_size : which of the profile's timings to use; batch size is per worker.
    sequence_length : tokens per sample, for language models with given dimensions.
    activation_checkpointing : whether blocks keep only their inputs and recompute the rest.
    recomputation : none, selective, selective:products, selective:N or full, which is the same.
    optimizer, precision_policy, lora, offload_optimizer : how the model is stored, see
        :class:`perfmodel.inputs.storage.Storage`: "adamw", "bf16_master", "16:q+v:4".
    accumulation : forward and backward passes per update, which share a worker's batch; default:
        those of the profile's timing, or 1.
    one_device_samples_per_s, one_device_step_s : measured speed of one device in this job (also
        ``"12000 tokens/s"``), or its seconds per update: all compute times are scaled to it.
    one_device_batch_size : samples per update in that measurement; default: the job's.
    cluster : an object, a file, or a name in the catalogue; by default the device's, if it has one.
    bandwidth, latency : of every node's link, instead of the cluster's: text such as "25Gbps" and
        "5us", or numbers in SI units, which ``bandwidth_bytes_per_s`` and ``latency_s`` are.
    arch, options : name of the architecture, and its options by name.
    island_devices : devices that form one worker (an island), or ``"8+8+4"`` for unequal islands;
        default 1. The batch size is then per device.
    island_steps : steps of each island between two exchanges; default 1. ``"equal:100"``: 100 for
        the fastest island, and as many as fit into the same time for the others.
    island_arch, island_options : how the devices of an island train together; default allreduce.
    jitter : coefficient of variation of the compute time per iteration, a Jitter, or text for
        :meth:`Jitter.parse`.

    Raises
    ------
    InputError : an argument is unknown, out of range or contradicts another.
    """
    stragglers = tuple(stragglers)
    given = in_si(arguments_given(locals()))
    return msgspec.structs.replace(_with_islands(_job_of(given), given), given=given)


def _job_of(given: Mapping[str, Any]) -> Job:
    """Return the job of the arguments of :func:`make_job`, with one device per worker."""
    resolved = workload_of(given)
    placed = _placed(given, resolved)
    spread, of_jitter = _jitter(given.get("jitter"), resolved)
    start, of_start = start_of(given.get("start"), placed.options)
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
        assumptions=(*resolved.assumptions, *placed.assumptions, *of_start, *of_jitter),
    )


def arguments_given(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of :func:`make_job` that differ from its defaults."""
    defaults = make_job.__kwdefaults__ or {}
    return {
        name: dict(value) if isinstance(value, Mapping) else value
        for name, value in arguments.items()
        if value is not defaults[name] and value not in (defaults[name], {})
    }


def start_of(given: Start | None, chosen: Options) -> tuple[Start, list[Assumption]]:
    """Return how workers start, and an assumption if this was not given."""
    if given is not None:
        return given, []
    if chosen.asynchronous:
        why = "asynchronous workers drift apart"
        return "staggered", [Assumption("start", "staggered", "", why)]
    return "together", [Assumption("start", "together", "", "synchronous")]


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

    It has so many parameters because they are independent of each other; all have a default.

    Parameters
    ----------
    fidelity : *fine* simulates the job; *coarse* evaluates its formulas, in microseconds to
        milliseconds; *auto* is coarse if 9 in 10 such jobs are within ``tolerance`` of the
        simulation, and fine otherwise.
    tolerance : largest error that *auto* accepts, as a fraction of the iteration time.
    dataset_size, epochs : samples per epoch and number of epochs, to predict the training time.
    rel_ci : target half-width of the confidence interval of a simulated random job, as a fraction
        of its throughput.
    iterations : predict the first ``iterations`` iterations of a run, with their initial transient,
        instead of the steady state; the run ends when each worker has finished them. Needs *fine*.
    run_iterations : length of the measured run that the prediction interval is for: chance makes
        short runs of a random job faster or slower. Defaults to ``iterations`` if given, else to a
        run long enough that chance averages out. Coarse predictions ignore it.
    max_ops : largest number of operations to simulate; beyond it *fine* raises an error and *auto*
        falls back to coarse; inf for no limit.
    progress : called with (done, expected) during the simulation.

    Raises
    ------
    InputError : ``fidelity`` is unknown; ``tolerance`` or ``rel_ci`` is not in (0, 1]; ``epochs``
        is given without ``dataset_size``, or either is below 1; ``iterations`` is not in 1 to
        MOST_ITERATIONS, or is given with ``dataset_size`` or a fidelity other than *fine*;
        ``run_iterations`` is not in that range, or is given with ``iterations``; the simulation
        would take more than ``max_ops``.
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
            raise InputError(f"iterations: needs fidelity fine, which simulates; got {fidelity}")
        if dataset_size is not None:
            raise InputError("iterations: dataset_size needs the steady state; give one of them")
    if run_iterations is not None:
        whole_number("run_iterations", run_iterations, at_most=MOST_ITERATIONS)
        if iterations is not None:
            raise InputError("run_iterations: cannot be combined with iterations; give one of them")
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
    """Return the coarse outcome if its error band is narrow enough, else the fine one.

    If the simulation would take more than ``max_ops``, return the coarse outcome with a note.
    """
    limit = f"tolerance {tolerance:.1%}"
    formulas = coarse.predict(job)
    expected = formulas.error_band
    if expected is None or (expected.p90 is not None and expected.p90 <= tolerance):
        why = f"coarse: {expected.text if expected else 'exact'}; {limit}"
        return msgspec.structs.replace(formulas, notes=(why,))
    try:
        simulated = fine.predict(job, rel_ci=rel_ci, max_ops=max_ops, progress=progress)
    except TooLargeError as error:
        why = f"coarse, although not accurate enough: {expected.text}; {limit}; but {error}"
        return msgspec.structs.replace(formulas, notes=(why,))
    why = f"fine, because coarse is not accurate enough: {expected.text}; {limit}"
    return msgspec.structs.replace(simulated, notes=(why,))


class Placed(NamedTuple):
    """An architecture with its options on the cluster of a job, and the assumptions about both."""

    architecture: Architecture
    options: Options
    cluster: Cluster
    assumptions: tuple[Assumption, ...]


def _placed(given: Mapping[str, Any], resolved: Workload) -> Placed:
    """Return the architecture and the cluster that the arguments of :func:`make_job` name."""
    links = LinkChange(given.get("bandwidth_bytes_per_s"), given.get("latency_s"))
    cluster, workers = given.get("cluster"), given.get("workers", 1)
    base, notes = named_cluster(cluster, resolved.device)
    arch = given.get("arch", DEFAULT_ARCHITECTURE)
    architecture, asked, chosen = _architecture(arch, given.get("options") or {}, base)
    has = ProcessesOnNodes(chosen.server_count > 0, given.get("island_devices") is not None)
    where, of_cluster = cluster_of(base, links, resolved, None if base is cluster else has)
    chosen, of_choice = _adapted(chosen, asked, where, workers)
    notes += [*of_cluster, *of_choice, *registry.by_cluster(architecture, asked, base)]
    known = {*asked, *(row.name for row in of_choice)}
    notes += _defaults(architecture.name, chosen, known, resolved)
    return Placed(architecture, chosen, where, tuple(notes))


def _architecture(
    arch: str, options: Mapping[str, Any], cluster: Cluster
) -> tuple[Architecture, dict[str, Any], Options]:
    """Return an architecture, the options that its name implies or that are given, and all."""
    architecture, preset = registry.find(arch)
    asked = {**preset, **_options(arch, preset, options)}
    return architecture, asked, registry.read_options(architecture, asked, cluster)


def _options(arch: str, preset: Mapping[str, Any], given: Mapping[str, Any]) -> Mapping[str, Any]:
    """Check that the given options do not contradict those that the architecture's name implies."""
    for name, value in preset.items():
        if given.get(name, value) != value:
            raise InputError(
                f"option {name}={given[name]}: architecture {arch!r} means {name}={value}"
            )
    return given


def _defaults(
    name: str, chosen: Options, given: Collection[str], workload: Workload
) -> list[Assumption]:
    """Return an assumption for each option that was not given and has an effect."""
    unused = chosen.unused
    return [
        Assumption(each.name, finite(each.default, "inf"), each.unit, f"default of {name}")
        for each in described(type(chosen))
        if each.name not in given
        and each.name not in unused
        and (not each.about.needs or getattr(workload, each.about.needs) > 0.0)
    ]


def _adapted(
    chosen: Options, given: Collection[str], cluster: Cluster, workers: int
) -> tuple[Options, list[Assumption]]:
    """Return the options with defaults that depend on the cluster, and assumptions about these."""
    adapted = {
        name: (value, why)
        for name, (value, why) in chosen.defaults_on(cluster, workers).items()
        if name not in given
    }
    values = {name: value for name, (value, _) in adapted.items()}
    notes = [Assumption(name, value, "", why) for name, (value, why) in adapted.items()]
    return msgspec.structs.replace(chosen, **values) if values else chosen, notes


class Passes(NamedTuple):
    """How a step passes through the model, as in :func:`make_job`; None where not given."""

    batch_size: int | None
    sequence_length: int | None
    activation_checkpointing: bool | None
    accumulation: int | None
    recomputation: str | None


def workload_of(arguments: Mapping[str, Any]) -> Workload:
    """Return the workload that :func:`make_job` would make from these ``arguments``.

    Raises
    ------
    InputError : as :func:`make_job`.
    """
    given = {name: arguments.get(name) for name in OF_WORKLOAD}
    passes = Passes(**{name: given.pop(name) for name in Passes._fields})
    storage = read_storage({name: given.pop(name) for name in OF_STORAGE})
    measured = read_one_device(*(given.pop(name) for name in OF_ONE_DEVICE))
    return _workload(**given, passes=passes, storage=storage, measured=measured)


def anchored(arguments: Mapping[str, Any], batch_size: int) -> dict[str, Any]:
    """Return ``arguments`` of :func:`make_job`, in which a given speed of one device is that at its
    batch size whatever the job's: ``batch_size`` unless they say so already."""
    given = [name for name in OF_ONE_DEVICE if arguments.get(name) is not None]
    if given and "one_device_batch_size" not in given:
        return {**arguments, "one_device_batch_size": batch_size}
    return dict(arguments)


def _workload(
    model: str | None,
    workload: Workload | Profile | str | Path | None,
    device: str | None,
    precision: str | None,
    passes: Passes,
    storage: Storage,
    measured: OneDevice | None,
) -> Workload:
    """Return the workload: as given, or made from the profile."""
    if model is None and workload is None:
        known = ", ".join(catalogue.model_names())
        raise InputError(f"model or workload: give one of them (models: {known})")
    if model is not None and workload is not None:
        raise InputError("model and workload: give only one of them")
    if isinstance(workload, Workload):
        for name, value in {"device": device, **passes._asdict()}.items():
            if value is not None and value != getattr(workload, name):
                raise InputError(f"{name}: the workload is already resolved for another {name}")
        if storage not in (DEFAULT, workload.storage):
            raise InputError("optimizer, precision_policy, lora: the workload is already resolved")
        if measured is None:
            return workload
        if measured.batch_size not in (None, workload.batch_size):
            raise InputError("one_device_batch_size: the workload is already resolved for another")
        return at_speed(workload, workload, measured)
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
        recomputation=read_recomputation(passes.recomputation, passes.activation_checkpointing),
        storage=storage,
        accumulation=passes.accumulation,
        one_device=measured,
    )


def _jitter(
    given: Jitter | float | str | None, workload: Workload
) -> tuple[Jitter | None, list[Assumption]]:
    """Return the jitter; *measured* is replaced by the spread measured for the workload."""
    if given is None:
        why = "default: same compute time in every iteration"
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


__all__ = ["MOST_OPS", "REL_CI", "TOLERANCE", "build_graph", "make_job", "predict"]
