"""Changes of a job, which what-if questions, advice and inverse questions share.

A :class:`Change` has a name and makes another job of a job, by other arguments
(:mod:`perfmodel.sweeping.arguments`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import msgspec

from perfmodel.inputs.job import Job
from perfmodel.sweeping.arguments import changed

LINKS: Mapping[str, None] = {"bandwidth_bytes_per_s": None, "latency_s": None}
"""Arguments that override links of the cluster, at their defaults."""


Value = float | int | str | bool


class Change(NamedTuple):
    """A change of a job.

    Attributes
    ----------
    name : what changes.
    job_of : makes the changed job; raises InputError if it is impossible.
    flags : the command-line flags for it; empty if there are none.
    value : the new value, if it is one number or word.
    """

    name: str
    job_of: Callable[[Job], Job]
    flags: str = ""
    value: Value = ""


def of_arguments(name: str, flags: str = "", **arguments: object) -> Change:
    """Change arguments of :func:`perfmodel.make_job`."""
    return Change(name, lambda job: changed(job, arguments), flags)


def of_options(name: str, **options: object) -> Change:
    """Change options of the architecture."""
    flags = " ".join(f"--option {key}={value}" for key, value in options.items())
    return of_arguments(name, flags, options=options)


def of_architecture(arch: str, name: str, **options: object) -> Change:
    """Change the architecture; options that both have stay, the start is the default."""
    flags = " ".join([f"--arch {arch}", *(f"--option {k}={v}" for k, v in options.items())])
    return of_arguments(name, flags, arch=arch, options=options, start=None)


def of_cluster(name: str, **fields: object) -> Change:
    """Change fields of the cluster."""

    def job_of(job: Job) -> Job:
        cluster = msgspec.structs.replace(job.of_devices.cluster, **fields)
        return changed(job, {**LINKS, "devices_per_node": None, "cluster": cluster})

    return Change(name, job_of)
