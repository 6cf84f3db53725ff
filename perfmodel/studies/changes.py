"""Changes of a job, which what-if questions, advice and inverse questions share.

A :class:`Change` has a name and makes another job of a job. Some change arguments
(:mod:`perfmodel.sweeping.arguments`), others the value of an assumption.
"""

from __future__ import annotations

import functools
import math
import typing
from collections.abc import Callable, Iterator, Mapping
from typing import Literal, NamedTuple

import msgspec

from perfmodel import api
from perfmodel.base.provenance import Assumption
from perfmodel.inputs.cluster import Cluster, Link
from perfmodel.inputs.job import Job, Start
from perfmodel.inputs.job_cluster import with_links
from perfmodel.inputs.options import described
from perfmodel.predicting import islands, job_facts
from perfmodel.sweeping.arguments import changed, merged

FACTORS = (0.5, 2.0)
"""Factors that numbers are multiplied by in the place of an assumption."""

COMPUTE = "compute time"
"""Name of the step's compute time, which is an assumption if it is estimated, not measured."""

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
        return changed(job, {**LINKS, "cluster": cluster})

    return Change(name, job_of)


def of_assumption(assumption: Assumption, job: Job) -> Iterator[Change]:
    """Yield the job with other values of an assumption; none if it is not a value of the job.

    Numbers are halved and doubled, switches are flipped, and words are replaced by every other
    allowed word. Everything else stays the same, and steps inside islands are predicted by formulas
    (:func:`perfmodel.predicting.islands.changed`).
    """
    name, flat = assumption.name, job.of_devices
    if assumption.source == f"default of {job.architecture.name}":
        kinds = {option.name: option.type for option in described(type(job.options))}
        for value in _others(getattr(job.options, name), kinds[name]):
            yield Change(name, functools.partial(_with_option, name, value), value=value)
    elif name == "start":
        for word in _others(job.start, Start):
            yield _replaced(name, word, start=word)
    elif name == "batch_size" and job.given is not None and "batch_size" not in job.given:
        for size in _others(assumption.value):
            yield Change(name, functools.partial(_with_batch, size), value=size)
    elif name == "jitter" and flat.jitter is not None:
        for cv in _others(flat.jitter.cv):
            yield _replaced(name, cv, jitter=msgspec.structs.replace(flat.jitter, cv=cv))
    elif name == COMPUTE:
        for factor in FACTORS:
            workload = flat.workload.scaled("compute_s", factor)
            yield _replaced(name, workload.compute_s, workload=workload)
    elif name in PARTS and assumption.source.startswith("cluster "):
        for value, cluster in _clusters(flat.cluster, *PARTS[name]):
            yield _replaced(name, value, cluster=cluster)


def _replaced(name: str, value: Value, **fields: object) -> Change:
    """Change fields of the job of devices; islands stay the same."""

    def job_of(job: Job) -> Job:
        return islands.changed(job, msgspec.structs.replace(job.of_devices, **fields))

    return Change(name, job_of, value=value)


def _with_option(name: str, value: Value, job: Job) -> Job:
    """Return the job with another value of an option, and its default start."""
    flat = job.of_devices
    changed = msgspec.structs.replace(
        flat, options=msgspec.structs.replace(flat.options, **{name: value})
    )
    if any(assumption.name == "start" for assumption in flat.assumptions):
        start, _ = api.start_of(None, changed.options)
        changed = msgspec.structs.replace(changed, start=start)
    return islands.changed(job, changed)


def _with_batch(size: Value, job: Job) -> Job:
    """Return the job with another batch size per device."""
    workload = api.workload_of(merged(job, {"batch_size": size}))
    other = msgspec.structs.replace(job.of_devices, workload=workload)
    return islands.changed(job, job_facts.with_layers(other))


def _others(value: Value | None, kind: object = None) -> Iterator[Value]:
    """Other values: half and double, the opposite, or all other words of a kind.

    >>> list(_others(5)), list(_others(True)), list(_others("a", Literal["a", "b"]))
    ([2, 10], [False], ['b'])
    >>> list(_others(1)), list(_others(0.0))
    ([2], [])
    """
    if isinstance(value, bool):
        yield not value
    elif isinstance(value, str):
        if typing.get_origin(kind) is Literal:
            yield from (word for word in typing.get_args(kind) if word != value)
    elif value and math.isfinite(value):
        for factor in FACTORS:
            other = int(value * factor) if isinstance(value, int) else value * factor
            if other:
                yield other


PARTS: Mapping[str, tuple[str, str]] = {
    "bandwidth": ("nic", "bandwidth_bytes_per_s"),
    "latency": ("nic", "latency_s"),
    "efficiency": ("nic", "efficiency"),
    "devices per node": ("", "devices_per_node"),
    "NICs per node": ("", "nics_per_node"),
    "NICs per process": ("", "nics_per_process"),
    "inside a node": ("intra_node", "bandwidth_bytes_per_s"),
    "update per tensor": ("server", "update_per_tensor_s"),
    "update per byte": ("server", "update_per_byte_s"),
}
"""Assumptions that are values of a cluster, or of a part of it: the part and its field. A value of
``nic`` stands for all links between nodes."""


def _clusters(cluster: Cluster, part: str, field: str) -> Iterator[tuple[Value, Cluster]]:
    """Yield other values of a field of a cluster, each with the cluster that has it."""
    inside = getattr(cluster, part) if part else cluster
    value = getattr(inside, field)
    most = 1.0 if field == "efficiency" else math.inf
    for other in dict.fromkeys(min(other, most) for other in _others(value)):
        if part == "nic":
            if other != value:
                scaled = functools.partial(_scaled, field, other / value, most)
                yield other, with_links(cluster, scaled)
        elif part:
            changed = msgspec.structs.replace(inside, **{field: other})
            yield other, msgspec.structs.replace(cluster, **{part: changed})
        else:
            nics = {name: getattr(cluster, name) for name in ("nics_per_node", "nics_per_process")}
            nics |= {field: other}
            if nics["nics_per_process"] <= nics["nics_per_node"]:  # else it has too few
                yield other, msgspec.structs.replace(cluster, **nics)


def _scaled(field: str, factor: float, most: float, link: Link) -> Link:
    return msgspec.structs.replace(link, **{field: min(getattr(link, field) * factor, most)})
