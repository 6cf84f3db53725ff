"""Changes of a job, which what-if questions, advice and inverse questions share.

A :class:`Change` has a name and makes another job of a job. Some change arguments
(:mod:`perfmodel.sweeping.arguments`), others the value of an assumption.
"""

from __future__ import annotations

import functools
import math
import typing
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, NamedTuple

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


def of_arguments(name: str, flags: str = "", **arguments: Any) -> Change:
    """Change arguments of :func:`perfmodel.make_job`."""
    return Change(name, lambda job: changed(job, arguments), flags)


def of_options(name: str, **options: Any) -> Change:
    """Change options of the architecture."""
    flags = " ".join(f"--option {key}={value}" for key, value in options.items())
    return of_arguments(name, flags, options=options)


def of_architecture(arch: str, name: str, **options: Any) -> Change:
    """Change the architecture; options that both have stay, the start is the default."""
    flags = " ".join([f"--arch {arch}", *(f"--option {k}={v}" for k, v in options.items())])
    return of_arguments(name, flags, arch=arch, options=options, start=None)


def of_cluster(name: str, **fields: Any) -> Change:
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
        kinds = {each.name: each.type for each in described(type(job.options))}
        for value in _others(getattr(job.options, name), kinds[name]):
            yield Change(name, functools.partial(_with_option, name, value), value=value)
    elif name == "start":
        for word in _others(job.start, Start):
            yield _replaced(name, word, start=word)
    elif name == "batch_size" and job.given is not None and "batch_size" not in job.given:
        for size in _others(assumption.value, int):
            yield Change(name, functools.partial(_with_batch, size), value=size)
    elif name == "jitter" and flat.jitter is not None:
        for cv in _others(flat.jitter.cv, float):
            yield _replaced(name, cv, jitter=msgspec.structs.replace(flat.jitter, cv=cv))
    elif name == COMPUTE:
        for factor in FACTORS:
            workload = flat.workload.scaled("compute_s", factor)
            yield _replaced(name, workload.compute_s, workload=workload)
    elif name in PARTS and assumption.source.startswith("cluster "):
        for value, cluster in PARTS[name](flat.cluster):
            yield _replaced(name, value, cluster=cluster)


def _replaced(name: str, value: Value, **fields: Any) -> Change:
    """Change fields of the job of devices; islands stay the same."""

    def job_of(job: Job) -> Job:
        return islands.changed(job, msgspec.structs.replace(job.of_devices, **fields))

    return Change(name, job_of, value=value)


def _with_option(name: str, value: Any, job: Job) -> Job:
    """Return the job with another value of an option, and its default start."""
    flat = job.of_devices
    options = msgspec.structs.replace(flat.options, **{name: value})
    fields: dict[str, Any] = {"options": options}
    if any(each.name == "start" for each in flat.assumptions):
        fields["start"], _ = api.start_of(None, options)
    return islands.changed(job, msgspec.structs.replace(flat, **fields))


def _with_batch(size: int, job: Job) -> Job:
    """Return the job with another batch size per device."""
    flat = job.of_devices
    workload = api.workload_of(merged(job, {"batch_size": size}))
    other = msgspec.structs.replace(flat, workload=workload)
    return islands.changed(job, job_facts.with_layers(other))


def _others(value: Any, kind: Any) -> Iterator[Any]:
    """Other values of a kind: half and double, the opposite, or all other words.

    >>> list(_others(5, int)), list(_others(True, bool)), list(_others("a", Literal["a", "b"]))
    ([2, 10], [False], ['b'])
    >>> list(_others(1, int)), list(_others(0.0, float))
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


def _at_most_one(value: float) -> Iterator[float]:
    """Half and double of a fraction, which is at most 1."""
    return (other for other in (min(f * value, 1.0) for f in FACTORS) if 0.0 < other != value)


Clusters = Callable[[Cluster], Iterator[tuple[Value, Cluster]]]
"""Yields other values, each with a cluster that has it."""


def _links(field: str) -> Clusters:
    """Clusters whose links between nodes all have another value of ``field``."""

    def clusters(cluster: Cluster) -> Iterator[tuple[float, Cluster]]:
        value = getattr(cluster.nic, field)
        fraction = field == "efficiency"
        for other in _at_most_one(value) if fraction else _others(value, float):

            def scaled(link: Link, factor: float = other / value) -> Link:
                result = getattr(link, field) * factor
                return msgspec.structs.replace(
                    link, **{field: min(result, 1.0) if fraction else result}
                )

            yield other, with_links(cluster, scaled)

    return clusters


def _nics(field: str) -> Clusters:
    """Clusters with another number of links, unless a process would use more than its node has."""

    def clusters(cluster: Cluster) -> Iterator[tuple[int, Cluster]]:
        for other in _others(getattr(cluster, field), int):
            counts = {"nics_per_node": cluster.nics_per_node,
                      "nics_per_process": cluster.nics_per_process, field: other}  # fmt: skip
            if counts["nics_per_process"] <= counts["nics_per_node"]:
                yield other, msgspec.structs.replace(cluster, **counts)

    return clusters


def _of(part: str, field: str) -> Clusters:
    """Clusters with another value of a field, of the cluster itself or of a part of it."""

    def clusters(cluster: Cluster) -> Iterator[tuple[Value, Cluster]]:
        inside = getattr(cluster, part) if part else cluster
        for other in _others(getattr(inside, field), float):
            new = msgspec.structs.replace(inside, **{field: other})
            yield other, msgspec.structs.replace(cluster, **{part: new}) if part else new

    return clusters


PARTS: Mapping[str, Clusters] = {
    "bandwidth": _links("bandwidth_bytes_per_s"),
    "latency": _links("latency_s"),
    "efficiency": _links("efficiency"),
    "devices per node": _of("", "devices_per_node"),
    "NICs per node": _nics("nics_per_node"),
    "NICs per process": _nics("nics_per_process"),
    "inside a node": _of("intra_node", "bandwidth_bytes_per_s"),
    "update per tensor": _of("server", "update_per_tensor_s"),
    "update per byte": _of("server", "update_per_byte_s"),
}
"""Assumptions that are values of a cluster, see ``api``: clusters with other values of each."""
