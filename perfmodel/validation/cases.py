"""Cases: jobs with measured results (schema ``perfmodel.cases/1``)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec

from perfmodel import api
from perfmodel.base import files
from perfmodel.base.errors import InputError, number, unknown_name
from perfmodel.base.provenance import Source
from perfmodel.catalogue import catalogue
from perfmodel.catalogue.job_workload import workload_of
from perfmodel.inputs.cluster import Cluster
from perfmodel.inputs.decoder_layers import at_length, with_layers
from perfmodel.inputs.job import Job
from perfmodel.inputs.job_files import JobKeys
from perfmodel.inputs.profile import Profile, Timing
from perfmodel.inputs.workload import Workload
from perfmodel.measuring.training.run import MeasuredRun, read_run

SCHEMA = "perfmodel.cases/1"

Entry = TypeVar("Entry")


class MeasuredValues(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Measured results of a job; at least one of the first four is needed.

    Attributes
    ----------
    step_s : mean iteration time of a worker.
    samples_per_s : throughput of all workers together.
    idle_fraction : mean fraction of a worker's time in which it does not compute.
    staleness_mean : mean number of updates that a gradient misses.
    spread_fraction : standard deviation of repeated runs, as a fraction of the step time; None if
        the job was run once.
    """

    step_s: float | None = None
    samples_per_s: float | None = None
    idle_fraction: float | None = None
    staleness_mean: float | None = None
    spread_fraction: float | None = None

    def __post_init__(self) -> None:
        values = {name: getattr(self, name) for name in self.__struct_fields__}
        for name, value in values.items():
            if value is not None:
                above = 0.0 if name in ("step_s", "samples_per_s") else None
                at_most = 1.0 if name == "idle_fraction" else None
                number(f"measured.{name}", value, above=above, at_most=at_most)
        *measures, last = (name for name in values if name != "spread_fraction")
        if all(values[name] is None for name in (*measures, last)):
            raise InputError(f"measured: needs {', '.join(measures)} or {last}")


class CaseJob(JobKeys, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The job of a case: as in a job file, plus the measured speed of a single worker.

    ``workload`` and ``cluster`` may also name entries of the cases file. With
    ``one_worker_samples_per_s`` the step of one worker takes as long as measured without
    communication, at the job's batch size on its ``device``; the measured step includes all of its
    ``accumulation`` passes and the recomputation of ``activation_checkpointing``.
    """

    one_worker_samples_per_s: float | None = None

    def __post_init__(self) -> None:
        if self.one_worker_samples_per_s is not None:
            number("one_worker_samples_per_s", self.one_worker_samples_per_s, above=0.0)
            for name in ("device", "batch_size"):
                if getattr(self, name) is None:
                    raise InputError(f"one_worker_samples_per_s: needs {name}")
            for name in ("one_device_samples_per_s", "one_device_step_s"):
                if getattr(self, name) is not None:
                    raise InputError(f"one_worker_samples_per_s and {name}: give one of them")


class Case(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A measured job; ``group`` and ``source`` default to those of the file."""

    name: str
    job: CaseJob
    measured: MeasuredValues
    group: str = ""
    source: Source | None = None


class Cases(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Contents of a cases file (schema ``perfmodel.cases/1``).

    Its jobs may refer to its own ``workloads`` and ``clusters`` by name, as well as to the
    catalogue's.
    """

    schema: Literal["perfmodel.cases/1"] = "perfmodel.cases/1"
    name: str
    source: Source
    cases: tuple[Case, ...]
    title: str = ""
    workloads: dict[str, Profile] = {}
    clusters: dict[str, Cluster] = {}

    def __post_init__(self) -> None:
        if not self.cases:
            raise InputError("cases: needs at least one")
        names: set[str] = set()
        for i, case in enumerate(self.cases):
            if case.name in names:
                raise InputError(f"cases[{i}]: the name {case.name!r} is used twice")
            names.add(case.name)


class MeasuredJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job that is ready to be predicted, and its measured results."""

    name: str
    group: str
    job: Job
    measured: MeasuredValues
    source: Source


def read_cases(path: str | Path) -> list[MeasuredJob]:
    """Read a cases file.

    Raises
    ------
    InputError : see :func:`perfmodel.base.files.read`; or a job is invalid (the text names file and
        case).
    """
    path = Path(path)
    return ready(files.read(path, Cases, SCHEMA), path.parent, str(path))


def shipped_cases() -> list[MeasuredJob]:
    """Return the cases of all files that come with the package."""
    paths = sorted((catalogue.folder() / "cases").iterdir())
    files = [path for path in paths if path.suffix in (".json", ".toml")]
    return [case for path in files for case in read_cases(path)]


def read_measurements(
    path: str | Path, workload: str | None = None, cluster: str | None = None
) -> list[MeasuredJob]:
    """Read a cases file, or, given its workload and cluster, the file of a measured run.

    Raises
    ------
    InputError : the file is neither of these, or as :func:`read_cases`.
    """
    if workload is None or cluster is None:
        return read_cases(path)
    trained = Path(workload) if files.looks_like_path(workload) else workload
    return [of_run(read_run(path), catalogue.profile(trained), cluster)]


def of_run(
    run: MeasuredRun, workload: str | Path | Profile, cluster: str | Path | Cluster
) -> MeasuredJob:
    """Make a case from a run of ``perfmodel measure training``, given its workload and cluster.

    Raises
    ------
    InputError : the job is invalid.
    """
    results = run.measured
    steps = results.iterations * run.workers
    spread = results.iteration_std_s / results.iteration_s / math.sqrt(steps)
    return MeasuredJob(
        name=run.name,
        group=run.arch,
        job=api.make_job(workload=workload, cluster=cluster, **run.arguments()),
        measured=MeasuredValues(
            step_s=results.iteration_s,
            samples_per_s=results.samples_per_s,
            idle_fraction=max(0.0, results.idle_fraction),
            staleness_mean=results.mean_staleness,
            spread_fraction=spread,
        ),
        source=run.source,
    )


def ready(cases: Cases, folder: Path, name: str) -> list[MeasuredJob]:
    """Make the jobs of the cases of a file.

    Parameters
    ----------
    folder : paths of workloads, clusters and lengths are relative to it.
    name : of the file, for messages.

    Raises
    ------
    InputError : a job is invalid.
    """
    jobs = []
    for case in cases.cases:
        try:
            job = api.make_job(**_arguments(case, cases, folder))
        except InputError as error:
            raise InputError(f"{name}: case {case.name!r}: {error}") from None
        group, source = case.group or cases.name, case.source or cases.source
        jobs.append(
            MeasuredJob(name=case.name, group=group, job=job, measured=case.measured, source=source)
        )
    return jobs


def _arguments(case: Case, cases: Cases, folder: Path) -> dict[str, Any]:
    arguments = case.job.arguments()
    workload, cluster = arguments.get("workload"), arguments.get("cluster")
    if workload is not None:
        arguments["workload"] = _entry("workload", workload, cases.workloads, folder)
    if cluster is not None and cluster not in catalogue.cluster_names():
        arguments["cluster"] = _entry("cluster", cluster, cases.clusters, folder)
    if isinstance(arguments.get("document_lengths"), str):
        arguments["document_lengths"] = folder / arguments["document_lengths"]
    if case.job.one_worker_samples_per_s is not None:
        model = arguments.pop("model", None) or arguments.get("workload")
        if model is None:
            raise InputError("one_worker_samples_per_s: needs model or workload")
        arguments["workload"] = _timed(model, case, cases)
        arguments["workload"] = _as_measured(case.job, arguments)
    return arguments


def _entry(what: str, name: str, entries: Mapping[str, Entry], folder: Path) -> Entry | Path:
    """Return an entry of the cases file, or the path of the file it names."""
    if name in entries:
        return entries[name]
    if files.looks_like_path(name):
        return folder / name
    raise unknown_name(what, name, entries)


def _timed(model: str | Path | Profile, case: Case, cases: Cases) -> Profile:
    """Return a profile whose only timing is the case's measurement with one worker."""
    profile = model if isinstance(model, Profile) else catalogue.profile(model)
    job = case.job
    timing = Timing(
        device=str(job.device),
        batch_size=max(1, int(job.batch_size or 0) // max(1, job.accumulation or 1)),
        precision=job.precision or "float32",
        samples_per_s=job.one_worker_samples_per_s,
        source=case.source or cases.source,
    )
    profile = at_length(profile, job.sequence_length)
    if not profile.layers:
        profile = with_layers(profile, timing.precision)
    return msgspec.structs.replace(profile, timings=(timing,))


def _as_measured(job: CaseJob, arguments: dict[str, Any]) -> Profile | Workload:
    """Return the workload of a case whose step takes as long as measured with one worker.

    The timing does not contain what the job adds to it, such as recomputation, but the measured
    step does.
    """
    resolved = workload_of(arguments)
    measured_s = resolved.batch_size / float(job.one_worker_samples_per_s or math.nan)
    if math.isclose(resolved.compute_s, measured_s, rel_tol=1e-9):
        profile: Profile = arguments["workload"]
        return profile
    return resolved.scaled("compute_s", measured_s / resolved.compute_s)
