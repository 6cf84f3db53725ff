"""The arguments of a job, changed; :meth:`perfmodel.Job.with_` and all studies of a job use it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from perfmodel import api
from perfmodel.architectures import registry
from perfmodel.base.errors import InputError
from perfmodel.inputs.job import Job
from perfmodel.inputs.job_arguments import in_si, per_worker
from perfmodel.inputs.options import described
from perfmodel.inputs.workload import Workload

RIVALS: Mapping[str, tuple[str, ...]] = {
    "model": ("workload",),
    "workload": ("model",),
    "one_device_samples_per_s": ("one_device_step_s", "one_device_batch_size"),
    "one_device_step_s": ("one_device_samples_per_s", "one_device_batch_size"),
    "global_batch_size": ("batch_size",),
}
"""Arguments that the new value of another one replaces."""


def job_from(job: Job | None, changes: Mapping[str, Any]) -> Job:
    """Return the job that a study is about: one of these arguments, or ``job`` with changes.

    Raises
    ------
    InputError : the job is impossible, or cannot be changed, see :meth:`perfmodel.Job.with_`.
    """
    if job is None:
        return api.make_job(**per_worker(in_si(changes)))
    return changed(job, changes) if changes else job


def changed(job: Job, changes: Mapping[str, Any]) -> Job:
    """Return a job with other arguments; see :meth:`perfmodel.Job.with_`.

    Raises
    ------
    InputError : the changed job is impossible, or :func:`perfmodel.make_job` did not make the job.
    """
    arguments = per_worker(merged(job, changes))
    if job.islands or any(name in changes for name in (*api.OF_WORKLOAD, "global_batch_size")):
        return api.make_job(**arguments)
    rest = {name: value for name, value in arguments.items() if name not in api.OF_WORKLOAD}
    other = api.make_job(**rest, workload=job.workload)
    return msgspec.structs.replace(other, given=api.arguments_given(arguments))


def merged(job: Job, changes: Mapping[str, Any]) -> dict[str, Any]:
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
        replaced |= {*api.OF_WORKLOAD}
    rest = {name: value for name, value in job.given.items() if name not in replaced}
    if {"batch_size", "global_batch_size"} & changes.keys():
        rest = api.anchored(rest, job.of_devices.workload.batch_size)
    options = dict(rest.get("options", {}))
    if isinstance(changes.get("arch"), str):
        options = _supported(options, changes["arch"])
    if "options" in changes:
        options |= changes["options"] or {}
    return {**rest, **changes, "options": options}


def _supported(options: Mapping[str, Any], arch: str) -> dict[str, Any]:
    """Return the options that an architecture has, and that its name does not imply."""
    architecture, preset = registry.find(arch)
    names = {each.name for each in described(architecture.options)} - preset.keys()
    return {name: value for name, value in options.items() if name in names}
