"""The arguments of a job, changed; :meth:`perfmodel.Job.with_` and all studies of a job use it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import cast

import msgspec

from perfmodel import api
from perfmodel.architectures import registry
from perfmodel.base.errors import InputError
from perfmodel.catalogue.job_workload import OF_WORKLOAD, anchored
from perfmodel.inputs.expert_parallel import OF_EXPERTS
from perfmodel.inputs.job import Job
from perfmodel.inputs.job_arguments import in_si, per_worker
from perfmodel.inputs.job_replica import OF_CONTEXT, with_passes
from perfmodel.inputs.options import described
from perfmodel.inputs.workload import Workload

RIVALS: Mapping[str, tuple[str, ...]] = {
    "model": ("workload",),
    "workload": ("model",),
    "one_device_samples_per_s": ("one_device_step_s", "one_device_batch_size"),
    "one_device_step_s": ("one_device_samples_per_s", "one_device_batch_size"),
    "global_batch_size": ("batch_size",),
    "devices": ("workers",),
    "workers": ("devices",),
    "micro_batches": ("accumulation",),
    "accumulation": ("micro_batches",),
    "document_lengths": ("document_length", "document_spread"),
    **dict.fromkeys(("document_length", "document_spread"), ("document_lengths",)),
}
"""Arguments that the new value of another one replaces."""


def job_of(arguments: Mapping[str, object], workload: Workload | None = None) -> Job:
    """Make the job of arguments of :func:`perfmodel.make_job`.

    ``workload`` is the one that they describe, if it is known already: it is not made again.

    Raises
    ------
    InputError : the job is impossible.
    """
    make: Callable[..., Job] = api.make_job
    if workload is None:
        return make(**arguments)
    passes, _ = with_passes(arguments)
    others = {name: value for name, value in passes.items() if name not in OF_WORKLOAD}
    job = make(**others, workload=workload)
    return msgspec.structs.replace(job, given=api.arguments_given(arguments))


def job_from(job: Job | None, changes: Mapping[str, object]) -> Job:
    """Return the job that a study is about: one of these arguments, or ``job`` with changes.

    Raises
    ------
    InputError : the job is impossible, or cannot be changed, see :meth:`perfmodel.Job.with_`.
    """
    if job is None:
        return job_of(per_worker(in_si(changes)))
    return changed(job, changes) if changes else job


def changed(job: Job, changes: Mapping[str, object]) -> Job:
    """Return a job with other arguments; see :meth:`perfmodel.Job.with_`.

    Raises
    ------
    InputError : the changed job is impossible, or :func:`perfmodel.make_job` did not make the job.
    """
    of_passes = (
        *(*OF_WORKLOAD, *OF_EXPERTS, "global_batch_size", "micro_batches", "pipeline", "tensor"),
        *OF_CONTEXT,
    )
    anew = job.islands or job.replica or any(name in changes for name in of_passes)
    return job_of(per_worker(merged(job, changes)), None if anew else job.workload)


def merged(job: Job, changes: Mapping[str, object]) -> dict[str, object]:
    """Return the arguments of a job with changes, see :meth:`perfmodel.Job.with_`; these may be
    lists of values, as in :func:`perfmodel.sweep`.

    Raises
    ------
    InputError : :func:`perfmodel.make_job` did not make the job.
    """
    if job.given is None:
        raise InputError("job: has no arguments to change, as make_job did not make it")
    changes = in_si(changes)
    replaced = {name for key in changes for name in RIVALS.get(key, ())}
    if isinstance(changes.get("workload"), Workload):
        replaced |= {*OF_WORKLOAD}
    kept = {name: value for name, value in job.given.items() if name not in replaced}
    if {"batch_size", "global_batch_size"} & changes.keys():
        kept = anchored(kept, job.of_devices.workload.batch_size)
    options = options_of(kept)
    arch = changes.get("arch")
    if isinstance(arch, str):  # keep the options that it has, and that its name does not imply
        architecture, preset = registry.find(arch)
        names = {option.name for option in described(architecture.options)} - preset.keys()
        options = {name: value for name, value in options.items() if name in names}
    return {**kept, **changes, "options": options | options_of(changes)}


def options_of(arguments: Mapping[str, object]) -> dict[str, object]:
    """Return the options of the architecture among arguments."""
    return dict(cast("Mapping[str, object] | None", arguments.get("options")) or {})
