"""Cases: jobs with measured results (schema ``perfmodel.cases/1``)."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Literal

import msgspec

from perfmodel import api
from perfmodel.base import files
from perfmodel.base.errors import InputError, number, unknown_name
from perfmodel.base.provenance import Source
from perfmodel.inputs import catalogue
from perfmodel.inputs.cluster import Cluster
from perfmodel.inputs.decoder_layers import at_length, with_layers
from perfmodel.inputs.job import Job, JobKeys
from perfmodel.inputs.profile import Profile, Timing
from perfmodel.inputs.workload import Workload
from perfmodel.measuring.training.run import MeasuredRun, read_run

SCHEMA = "perfmodel.cases/1"


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
        for name in ("step_s", "samples_per_s"):
            if getattr(self, name) is not None:
                number(f"measured.{name}", getattr(self, name), above=0.0)
        if self.idle_fraction is not None:
            number("measured.idle_fraction", self.idle_fraction, at_most=1.0)
        for name in ("staleness_mean", "spread_fraction"):
            if getattr(self, name) is not None:
                number(f"measured.{name}", getattr(self, name))
        if (self.step_s, self.samples_per_s, self.idle_fraction, self.staleness_mean) == (
            None,
        ) * 4:
            raise InputError(
                "measured: needs step_s, samples_per_s, idle_fraction or staleness_mean"
            )


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
    found: list[MeasuredJob] = []
    for path in sorted((catalogue.folder() / "cases").iterdir()):
        if path.suffix in (".json", ".toml"):
            found += read_cases(path)
    return found


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
    made = run.measured
    spread = made.iteration_std_s / made.iteration_s / (made.iterations * run.workers) ** 0.5
    return MeasuredJob(
        name=run.name,
        group=run.arch,
        job=api.make_job(workload=workload, cluster=cluster, **run.arguments()),
        measured=MeasuredValues(
            step_s=made.iteration_s,
            samples_per_s=made.samples_per_s,
            idle_fraction=max(0.0, made.idle_fraction),
            staleness_mean=made.mean_staleness,
            spread_fraction=spread,
        ),
        source=run.source,
    )


def ready(found: Cases, folder: Path, name: str) -> list[MeasuredJob]:
    """Make the jobs of the cases of a file.

    Parameters
    ----------
    folder : paths of workloads and clusters are relative to it.
    name : of the file, for messages.

    Raises
    ------
    InputError : a job is invalid.
    """
    ready = []
    for case in found.cases:
        try:
            job = api.make_job(**_arguments(case, found, folder))
        except InputError as error:
            raise InputError(f"{name}: case {case.name!r}: {error}") from None
        ready.append(
            MeasuredJob(
                name=case.name,
                group=case.group or found.name,
                job=job,
                measured=case.measured,
                source=case.source or found.source,
            )
        )
    return ready


def _arguments(case: Case, found: Cases, folder: Path) -> dict[str, Any]:
    given = case.job.arguments()
    if "workload" in given:
        given["workload"] = _own("workload", given["workload"], found.workloads, folder)
    if "cluster" in given and given["cluster"] not in catalogue.cluster_names():
        given["cluster"] = _own("cluster", given["cluster"], found.clusters, folder)
    if case.job.one_worker_samples_per_s is not None:
        named = given.pop("model", None) or given.get("workload")
        if named is None:
            raise InputError("one_worker_samples_per_s: needs model or workload")
        given["workload"] = _timed(named, case, found)
        given["workload"] = _as_measured(case.job, given)
    return given


def _own(what: str, name: str, own: dict[str, Any], folder: Path) -> Any:
    """Return the cases file's own entry of this name, or the path of the file it names."""
    if name in own:
        return own[name]
    if files.looks_like_path(name):
        return folder / name
    raise unknown_name(what, name, own)


def _timed(named: str | Path | Profile, case: Case, found: Cases) -> Profile:
    """Return a profile with the case's own one-worker measurement as its only timing."""
    profile = named if isinstance(named, Profile) else catalogue.profile(named)
    job = case.job
    timing = Timing(
        device=str(job.device),
        batch_size=max(1, int(job.batch_size or 0) // max(1, job.accumulation or 1)),
        precision=job.precision or "float32",
        samples_per_s=job.one_worker_samples_per_s,
        source=case.source or found.source,
    )
    profile = at_length(profile, job.sequence_length)
    if not profile.layers:
        profile = with_layers(profile, timing.precision)
    return msgspec.structs.replace(profile, timings=(timing,))


def _as_measured(job: CaseJob, given: dict[str, Any]) -> Profile | Workload:
    """Return the workload of a case whose step takes as long as measured with one worker.

    The timing does not contain what the job adds to it, such as recomputation, but the measured
    step does.
    """
    resolved = api.workload_of(given)
    measured_s = resolved.batch_size / float(job.one_worker_samples_per_s or math.nan)
    if math.isclose(resolved.compute_s, measured_s, rel_tol=1e-9):
        profile: Profile = given["workload"]
        return profile
    return resolved.scaled("compute_s", measured_s / resolved.compute_s)


__all__ = [
    "Case",
    "CaseJob",
    "Cases",
    "MeasuredJob",
    "MeasuredValues",
    "of_run",
    "read_cases",
    "read_measurements",
    "shipped_cases",
]
