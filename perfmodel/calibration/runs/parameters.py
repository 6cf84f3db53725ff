"""Parameters that can be fitted to past runs, and step times as functions of them.

Step times come from the coarse model. A table of runs has few distinct jobs, each with several
numbers of workers: :class:`JobGroup` evaluates one job for all of these, and for many values, at
once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from perfmodel.base.arrays import Floats
from perfmodel.base.errors import unknown_name
from perfmodel.base.quantities import Quantity
from perfmodel.calibration.parameters import Parameter
from perfmodel.inputs.calibration import value_at, with_value
from perfmodel.inputs.job import MOST_JITTER, Jitter, Job
from perfmodel.inputs.links import LEAST_EFFICIENCY
from perfmodel.phases.layers import Layers
from perfmodel.phases.phases import Phases
from perfmodel.phases.quantities import Quantities, quantities_of
from perfmodel.predicting import coarse

Values = Mapping[str, Floats]
"""Values of parameters by name: numbers, or arrays with one value per point."""

DECADE = math.log(10.0)
"""Standard deviation of the logarithm (or logit) of a value known within a factor of ten."""


SLOWDOWN = "slowdown_per_neighbour"
HANDOVERS = frozenset(("handover_per_tensor_s", "handover_per_byte_s"))


def _unit(name: str) -> str:
    """Return the SI unit of a field, from the end of its name."""
    if name.endswith("_per_byte_s"):
        return "s/byte"
    return "s" if name.endswith("_s") else ""


FIELDS: Mapping[str, Parameter] = {
    name: Parameter(
        *(name, 0.0, DECADE),
        unit=_unit(name),
        scale="log" if least else "logit",
        least=least or 1.0,
        path=path,
        optional=name in ("inside_efficiency", SLOWDOWN),
        usual=name not in HANDOVERS,
    )
    for name, path, least in (
        ("latency_s", "nic.latency_s", 1e-6),
        ("efficiency", "nic.efficiency", None),
        ("update_per_tensor_s", "server.update_per_tensor_s", 1e-6),
        ("update_per_byte_s", "server.update_per_byte_s", 1e-11),
        ("inside_efficiency", "intra_node.efficiency", None),
        (SLOWDOWN, SLOWDOWN, 0.01),
        ("handover_per_tensor_s", "handover.per_tensor_s", 1e-5),
        ("handover_per_byte_s", "handover.per_byte_s", 1e-10),
    )
}
"""Fields of the links between nodes and inside a node, of servers, and of devices; the prior means
are those of the cluster."""

PARAMETERS = (*FIELDS, "compute_factor", "jitter")
"""Names of all parameters: the fields, the compute time as a multiple of the profiled time, and the
coefficient of variation of the compute time of an iteration."""

SERVER_COSTS = ("update_per_tensor_s", "update_per_byte_s", "optimizer_per_byte_s")
SERVER_SHARE = "server_share"
"""Fraction of the model on the fullest server, for jobs with one server."""


def parameters_of(jobs: Sequence[Job]) -> list[Parameter]:
    """Parameters that can be fitted to runs of these jobs, with current values as prior means."""
    values = now(jobs[0])
    several = any(job.cluster.fullest(job.workers) > 1 for job in jobs)
    fields = [
        msgspec.structs.replace(
            p, value=values[name], smallest=LEAST_EFFICIENCY if p.scale == "logit" else 0.0
        )
        for name, p in FIELDS.items()
        if name in values and (several or not p.optional)
    ]
    return [
        *fields,
        Parameter("compute_factor", 1.0, math.log(2.0)),
        Parameter("jitter", values["jitter"], DECADE, least=0.01, most=MOST_JITTER),
    ]


OVERLAP = "overlap"
"""The option that can also be fitted: whether communication overlaps with computation."""


def names_of(wanted: Sequence[str]) -> list[str]:
    """Return the requested names, each once."""
    for name in wanted:
        if name not in (*PARAMETERS, OVERLAP):
            raise unknown_name("parameter", name, (*PARAMETERS, OVERLAP))
    return list(dict.fromkeys(wanted))


def now(job: Job) -> dict[str, float]:
    """Current values of a job's parameters, without those that its cluster has no field for."""
    inside = job.cluster.intra_node is not None
    known = {
        name: value_at(job.cluster, field.path)
        for name, field in FIELDS.items()
        if inside or not field.path.startswith("intra_node.")
    }
    jitter = job.jitter.cv if job.jitter is not None else 0.0
    return known | {"compute_factor": 1.0, "jitter": jitter}


def on_job(job: Job, values: Mapping[str, float]) -> Job:
    """Return a job with these values; a jitter that was given stays."""
    factor = values.get("compute_factor", 1.0)
    workload = job.workload
    if factor != 1.0:
        workload = workload.scaled("compute_s", factor)
        workload = msgspec.structs.replace(workload, quality="estimated")
    cluster = job.cluster
    for name, field in FIELDS.items():
        if name in values:
            cluster = with_value(cluster, field.path, values[name])
    changed = msgspec.structs.replace(job, cluster=cluster, workload=workload)
    if job.jitter is None and values.get("jitter"):
        changed = msgspec.structs.replace(changed, jitter=Jitter(values["jitter"]))
    return changed


def free_overlap(job: Job) -> bool:
    """Return whether the overlap of communication with computation was left unspecified."""
    return any(a.name == OVERLAP for a in job.assumptions)


def with_overlap(job: Job, overlap: bool | None) -> Job:
    """Return the job with this overlap, if it was left unspecified."""
    if overlap is None or not free_overlap(job):
        return job
    options = msgspec.structs.replace(job.options, overlap=overlap)
    return msgspec.structs.replace(job, options=options)


class JobGroup(msgspec.Struct, frozen=True, eq=False):
    """Jobs that differ only in the number of workers.

    ``index`` (jobs,) is the position of each among all jobs, ``workers`` (jobs,) its workers.
    """

    job: Job
    quantities: Quantities
    index: NDArray[np.int64]
    workers: NDArray[np.int64]

    @property
    def uneven(self) -> bool:
        """Whether a job has nodes with different numbers of devices."""
        return not all(self.job.cluster.even(count) for count in self.workers.tolist())

    def phases(self, values: Values, points: int) -> Phases:
        """Phases of the jobs, as arrays (points * jobs,), for values of shape (points,) or (points,
        jobs)."""
        shape = points, len(self.workers)
        flat = {
            name: np.broadcast_to(np.reshape(value, (points, -1)), shape).ravel()
            for name, value in values.items()
        }
        among = _changed(self.job, self.quantities, flat, np.tile(self.workers, points))
        return coarse.phases(self.job, among=among)

    def step_s(self, values: Values, points: int) -> Floats:
        """Step times, shape (points, jobs), for values of shape (points,)."""
        jobs = len(self.workers)
        if not self._at_once(values):
            jobs_of = [
                msgspec.structs.replace(self.job, workers=count) for count in self.workers.tolist()
            ]
            return np.array([[_alone_s(job, values, i) for job in jobs_of] for i in range(points)])
        seconds = self.phases(values, points).iteration_s
        return np.broadcast_to(seconds, points * jobs).reshape(points, jobs)

    def _at_once(self, values: Values) -> bool:
        """Return whether :func:`_changed` knows the effect of these values on all jobs."""
        job = self.job
        if _unlike(job) or (SLOWDOWN in values and self.uneven):
            return False
        if not HANDOVERS & values.keys():
            return True
        return job.jitter is None or job.jitter.scope == "iteration"


def _alone_s(job: Job, values: Values, point: int) -> float:
    """Step time of one job at one of the points."""
    numbers = {name: float(value[point]) for name, value in values.items()}
    return float(coarse.phases(on_job(job, numbers)).iteration_s)


def _changed(job: Job, q: Quantities, values: Values, workers: NDArray[np.int64]) -> Quantities:
    changed: dict[str, Quantity] = {"workers": workers}
    for name in ("latency_s", *SERVER_COSTS):
        if name in values:
            changed[name] = values[name]
    if SERVER_SHARE in values:
        part = values[SERVER_SHARE]
        for name in SERVER_COSTS:
            changed[name] = changed.get(name, getattr(q, name)) * part
        changed["server_bandwidth_bytes_per_s"] = q.server_bandwidth_bytes_per_s / part
    if "efficiency" in values:
        ratio = values["efficiency"] / job.cluster.nic.efficiency
        for name in ("bandwidth", "server_bandwidth", "core_bandwidth"):
            changed[f"{name}_bytes_per_s"] = getattr(q, f"{name}_bytes_per_s") * ratio
    if "inside_efficiency" in values and job.cluster.intra_node is not None:
        ratio = values["inside_efficiency"] / job.cluster.intra_node.efficiency
        changed["inside_bandwidth_bytes_per_s"] = q.inside_bandwidth_bytes_per_s * ratio
    factor: Quantity = values.get("compute_factor", 1.0)
    slower: Quantity = 1.0
    if SLOWDOWN in values:
        neighbours = np.minimum(workers, job.cluster.devices_per_node) - 1
        slower = 1.0 + values[SLOWDOWN] * neighbours
        changed["slowdown"] = q.slowdown * slower
    if {SLOWDOWN, "compute_factor"} & values.keys():
        for name in ("forward_s", "backward_s", "optimizer_s", "scale"):
            changed[name] = getattr(q, name) * factor * slower
    if HANDOVERS & values.keys():
        handover = _handover(job, values, workers)
        added_s = handover.seconds(job.workload.tensors, job.workload.gradient_bytes)
        changed["backward_s"] = changed.get("backward_s", q.backward_s) + added_s * slower
        # of an iteration that takes ``factor`` times as long, the handover stays the same
        layers = Layers.of(job.workload)
        backward_s = tuple(
            seconds + handover.seconds(sum(p.tensors for p in parts), size) / factor
            for seconds, parts, size in zip(
                layers.backward_s, layers.parts, layers.bytes, strict=True
            )
        )
        changed["layers"] = layers.with_backward(backward_s)
    if "jitter" in values and job.jitter is None:
        changed["cv"] = values["jitter"]
    return msgspec.structs.replace(q, **changed)


class _Handovers(NamedTuple):
    """As :class:`perfmodel.inputs.cluster.Handover`, for arrays."""

    per_tensor_s: Quantity
    per_byte_s: Quantity

    def seconds(self, tensors: float, size: float) -> Quantity:
        """Device time to hand over ``tensors`` gradients of ``size`` bytes together."""
        return tensors * self.per_tensor_s + size * self.per_byte_s


def _handover(job: Job, values: Values, workers: NDArray[np.int64]) -> _Handovers:
    """Costs of the handover in one step: of the share of the gradients that is sent in a step."""
    alone = (workers == 1) & (job.options.server_count == 0)
    share = np.where(alone, 0.0, job.options.exchanged_share)
    before = job.cluster.handover
    return _Handovers(
        share * values.get("handover_per_tensor_s", before.per_tensor_s),
        share * values.get("handover_per_byte_s", before.per_byte_s),
    )


def _unlike(job: Job) -> bool:
    return bool(job.stragglers or job.cluster.overrides or job.cluster.by_workers)


def groups_of(jobs: Sequence[Job]) -> list[JobGroup]:
    """Group the jobs that differ only in the number of workers."""
    alike: list[tuple[Job, list[int]]] = []
    for i, job in enumerate(jobs):
        least = 1 + job.options.spare_workers
        key = job
        if not _unlike(job):
            key = msgspec.structs.replace(job, workers=least, assumptions=())
        members = next((members for other, members in alike if other == key), None)
        if members is None or _unlike(job):
            alike.append((key, [i]))
        else:
            members.append(i)
    return [
        JobGroup(
            jobs[members[0]],
            quantities_of(jobs[members[0]]),
            np.array(members),
            np.array([jobs[i].workers for i in members]),
        )
        for _, members in alike
    ]


def step_s(groups: Sequence[JobGroup], values: Values, points: int) -> Floats:
    """Step times of all jobs, shape (points, jobs), for values of shape (points,)."""
    seconds = np.empty((points, sum(len(group.index) for group in groups)))
    for group in groups:
        seconds[:, group.index] = group.step_s(values, points)
    return seconds
