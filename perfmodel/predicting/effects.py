"""The effect of each assumption of a job on its throughput."""

from __future__ import annotations

import functools
import math
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Literal

import msgspec

from perfmodel.base.errors import InputError
from perfmodel.base.provenance import Assumption
from perfmodel.catalogue.job_workload import anchored, workload_of
from perfmodel.inputs.cluster import Cluster, Link
from perfmodel.inputs.job import STARTS, Job, Start
from perfmodel.inputs.job_replica import with_passes
from perfmodel.inputs.options import described
from perfmodel.inputs.software import LAUNCH_S, STACKS
from perfmodel.predicting import coarse, islands, job_facts
from perfmodel.results.effects import Alternative, Effect, Value, largest_first

Progress = Callable[[int, int], None]
"""Called with (done, all) after each assumption."""

FACTORS = (0.5, 2.0)
"""Factors that numbers are multiplied by."""

SOFTWARE: Mapping[str, Sequence[str]] = {"stack": [*STACKS], "launches": [*LAUNCH_S]}
"""Assumptions that are arguments of a job with words, and these."""

COMPUTE = "compute time"
"""Name of the step's compute time, which is an assumption if it is estimated, not measured."""


def effects(job: Job, progress: Progress | None = None) -> tuple[Effect, ...]:
    """Return the effect of each assumption of a job by formulas, the largest first.

    ``progress`` is called with (done, all) after each assumption.
    """
    job = job_facts.with_layers(job)
    same = islands.changed(job, job.of_devices)
    near = coarse.Near(same)

    def samples_per_s(other: Job) -> float:
        rate = near.iterations_per_s(other) * other.workload.batch_size
        unlike = len({island.samples for island in other.islands}) > 1
        return islands.samples_per_s(other, coarse.predict(other)) if unlike else rate

    return effects_by(samples_per_s, job, samples_per_s(same), progress)


def effects_by(
    samples_per_s: Callable[[Job], float],
    job: Job,
    predicted: float,
    progress: Progress | None = None,
) -> tuple[Effect, ...]:
    """Return the effect of each assumption of a job, the largest first, given how to predict the
    throughput of a job, and that ``predicted`` for this one."""
    assumptions, flat = [*job.assumptions], job.of_devices
    workload = flat.workload
    if workload.quality == "estimated":
        assumptions.append(Assumption(COMPUTE, workload.compute_s, "s", "estimated"))
    rows = []
    for done, assumption in enumerate(assumptions, 1):
        rows.append(_effect(assumption, job, flat, samples_per_s, predicted))
        if progress is not None:
            progress(done, len(assumptions))
    return largest_first(rows)


def _effect(
    assumption: Assumption,
    job: Job,
    flat: Job,
    samples_per_s: Callable[[Job], float],
    predicted: float,
) -> Effect:
    """Return the effect of an assumption: the throughput with other values.

    ``flat`` is the job with one device per worker. Steps inside islands are predicted by formulas
    (:func:`perfmodel.predicting.islands.changed`).
    """
    rows = []
    error = ""
    for value, changed in _alternatives(assumption, job, flat):
        try:
            other = changed()
            rate = samples_per_s(islands.changed(job, other) if job.islands else other)
        except InputError as impossible:
            error = error or f"{value}: {impossible}"
        else:
            rows.append(Alternative(value, rate, rate / predicted))
    return Effect(assumption, tuple(rows), "" if rows else error or _unvaried(assumption))


def _unvaried(assumption: Assumption) -> str:
    value = assumption.value
    if isinstance(value, str) and value != "inf":
        return "a name or a rule"
    return "cannot be halved or doubled" if value in (0, "inf", None) else "of the profile"


def _alternatives(
    assumption: Assumption, job: Job, flat: Job
) -> Iterator[tuple[Value, Callable[[], Job]]]:
    """Yield other values of an assumption, each with what makes the job of single devices with that
    value, or raises InputError if it is impossible; none if it is not a value of the job.

    Numbers are halved and doubled, switches are flipped, and what has listed values gets every
    other of them. Everything else stays the same.
    """
    name = assumption.name

    def with_fields(**fields: object) -> Callable[[], Job]:
        return functools.partial(msgspec.structs.replace, flat, **fields)

    if assumption.source == f"default of {job.architecture.name}":
        kinds = {option.name: option.type for option in described(type(job.options))}
        for value in _others(getattr(job.options, name), kinds[name]):
            yield value, functools.partial(_with_option, flat, name, value)
    elif name == "start":
        for word in _others(job.start, Start):
            yield word, with_fields(start=word)
    elif name == "batch_size" and job.given is not None and "batch_size" not in job.given:
        for size in _others(assumption.value):
            yield size, functools.partial(_with_argument, job, flat, name, size)
    elif name == "document_spread" and job.given is not None:
        for spread in _others(assumption.value):
            yield spread, functools.partial(_with_argument, job, flat, name, spread)
    elif name in SOFTWARE and job.given is not None and job.given.get("workload") is None:
        for word in SOFTWARE[name]:
            if word != assumption.value:
                yield word, functools.partial(_with_argument, job, flat, name, word)
    elif name == "jitter" and flat.jitter is not None:
        for cv in _others(flat.jitter.cv):
            yield cv, with_fields(jitter=msgspec.structs.replace(flat.jitter, cv=cv))
    elif name == COMPUTE:
        for factor in FACTORS:
            workload = flat.workload.scaled("compute_s", factor)
            yield workload.compute_s, with_fields(workload=workload)
    elif name in PARTS and assumption.source.startswith("cluster "):
        for value, cluster in _clusters(flat.cluster, *PARTS[name]):
            yield value, with_fields(cluster=cluster)


def _with_option(flat: Job, name: str, value: Value) -> Job:
    """Return the job with another value of an option, and its default start."""
    options = msgspec.structs.replace(flat.options, **{name: value})
    start = flat.start
    if any(assumption.name == "start" for assumption in flat.assumptions):
        start, _ = STARTS[options.asynchronous]
    return msgspec.structs.replace(flat, options=options, start=start)


def _with_argument(job: Job, flat: Job, name: str, value: Value) -> Job:
    """Return the job with another value of an argument that defines its workload."""
    arguments, _ = with_passes(anchored(job.given or {}, flat.workload.batch_size))
    workload = workload_of({**arguments, name: value})
    return job_facts.with_layers(msgspec.structs.replace(flat, workload=workload))


def _others(value: Value | None, kind: object = None) -> Iterator[Value]:
    """Other values: half and double, the opposite, or all others that a kind lists.

    >>> list(_others(5)), list(_others(True)), list(_others(3, Literal[1, 2, 3]))
    ([2, 10], [False], [1, 2])
    >>> list(_others(1)), list(_others(0.0))
    ([2], [])
    """
    if isinstance(value, bool):
        yield not value
    elif typing.get_origin(kind) is Literal:
        yield from (other for other in typing.get_args(kind) if other != value)
    elif not isinstance(value, str) and value and math.isfinite(value):
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
                yield other, cluster.with_links(scaled)
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
