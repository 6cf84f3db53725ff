"""Parameters that can be fitted to past runs, and step times as functions of them.

Step times are those of the coarse model. A table of runs has few jobs, each with several numbers of
workers: :class:`JobGroup` evaluates one job for all of these, and for many values, at once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from perfmodel.base.arrays import Floats
from perfmodel.base.errors import InputError, unknown_name
from perfmodel.base.provenance import Source
from perfmodel.base.quantities import Quantity
from perfmodel.calibration.regression import Parameter
from perfmodel.inputs.cluster import Cluster
from perfmodel.inputs.job import MOST_JITTER, Jitter, Job
from perfmodel.inputs.profile import Profile, Seconds, Timing
from perfmodel.inputs.workload import Workload
from perfmodel.phases.quantities import Quantities, quantities_of
from perfmodel.predicting import coarse

Values = Mapping[str, Quantity]
"""Values of parameters by name: numbers, or arrays of as many points."""

DECADE = math.log(10.0)
"""Standard deviation of the logarithm (or logit) of a value known within a factor of ten."""

PARAMETERS = (
    *("latency_s", "efficiency", "update_per_tensor_s", "update_per_byte_s"),
    *("compute_factor", "jitter"),
)
"""Names: latency and efficiency of the nodes' links, costs of the server, how many times longer
than profiled computing takes, and the coefficient of variation of an iteration's computation."""


def parameters_of(job: Job) -> list[Parameter]:
    """Parameters that can be fitted to runs of such jobs, the current values as prior means."""
    given = now(job)
    return [
        Parameter("latency_s", given["latency_s"], DECADE, "s", least=1e-6),
        Parameter("efficiency", given["efficiency"], DECADE, scale="logit"),
        Parameter("update_per_tensor_s", given["update_per_tensor_s"], DECADE, "s", least=1e-6),
        Parameter("update_per_byte_s", given["update_per_byte_s"], DECADE, "s", least=1e-11),
        Parameter("compute_factor", 1.0, math.log(2.0)),
        Parameter("jitter", given["jitter"], DECADE, least=0.01, most=MOST_JITTER),
    ]


SCALED = (
    *("forward_s", "backward_s", "forward_std_s", "backward_std_s", "step_s"),
    *("optimizer_s", "copy_s", "other_s", "step_std_s"),
)
"""Times of a profile that a factor of computing applies to."""

OVERLAP = "overlap"
"""The option that can be fitted as well: whether communication overlaps with computation."""


def names_of(asked: Sequence[str]) -> list[str]:
    """The names asked for, each once.

    Raises
    ------
    InputError : one that is neither a parameter nor the overlap.
    """
    for name in asked:
        if name not in (*PARAMETERS, OVERLAP):
            raise unknown_name("parameter", name, (*PARAMETERS, OVERLAP))
    return list(dict.fromkeys(asked))


def now(job: Job) -> dict[str, float]:
    """Current values of a job."""
    return {
        "latency_s": job.cluster.nic.latency_s,
        "efficiency": job.cluster.nic.efficiency,
        "update_per_tensor_s": job.cluster.server.update_per_tensor_s,
        "update_per_byte_s": job.cluster.server.update_per_byte_s,
        "compute_factor": 1.0,
        "jitter": job.jitter.cv if job.jitter is not None else 0.0,
    }


def on_cluster(cluster: Cluster, values: Mapping[str, float]) -> Cluster:
    """A cluster with these values; links of nodes that differ stay as they are."""
    nic = {name: values[name] for name in ("latency_s", "efficiency") if name in values}
    costs = ("update_per_tensor_s", "update_per_byte_s")
    server = {name: values[name] for name in costs if name in values}
    return msgspec.structs.replace(
        cluster,
        nic=msgspec.structs.replace(cluster.nic, **nic),
        server=msgspec.structs.replace(cluster.server, **server),
    )


def on_job(job: Job, values: Mapping[str, float]) -> Job:
    """A job with these values; a jitter that was given stays."""
    factor = values.get("compute_factor", 1.0)
    workload = job.workload
    if factor != 1.0:
        workload = workload.scaled("compute_s", factor)
        workload = msgspec.structs.replace(workload, quality="estimated")
    cluster = on_cluster(job.cluster, values)
    changed = msgspec.structs.replace(job, cluster=cluster, workload=workload)
    if job.jitter is None and values.get("jitter"):
        changed = msgspec.structs.replace(changed, jitter=Jitter(values["jitter"]))
    return changed


def slower_profile(profile: Profile, workload: Workload, factor: float, why: str) -> Profile:
    """A profile whose times on the workload's device, at its precision, are ``factor`` as long.

    Loading data takes as long as before.

    Raises
    ------
    InputError : the profile has no times on that device: they were estimated.
    """
    chosen = (workload.device, workload.precision)
    if chosen not in {(t.device, t.precision) for t in profile.timings}:
        raise InputError(
            f"{profile.name}: has no times on {workload.device} at {workload.precision} to scale"
        )

    def scaled(t: Timing) -> Timing:
        if (t.device, t.precision) != chosen:
            return t
        changed: dict[str, Any] = {n: _times(getattr(t, n), factor) for n in SCALED}
        if t.samples_per_s is not None:
            changed["samples_per_s"] = t.samples_per_s / factor
        source = Source("estimated", f"{factor:.4g} times as long as: {t.source.text}; {why}")
        return msgspec.structs.replace(t, **changed, source=source)

    return msgspec.structs.replace(profile, timings=tuple(map(scaled, profile.timings)))


def _times(value: Seconds | None, factor: float) -> Seconds | None:
    if isinstance(value, tuple):
        return tuple(one * factor for one in value)
    return None if value is None else value * factor


def free_overlap(job: Job) -> bool:
    """Whether the overlap of communication with computation was not specified."""
    return any(a.name == OVERLAP for a in job.assumptions)


def with_overlap(job: Job, overlap: bool | None) -> Job:
    """The job with this overlap, if it was not specified.

    Raises
    ------
    InputError : other options are incompatible with it.
    """
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

    def step_s(self, values: Values, points: int) -> Floats:
        """Step times, shape (points, jobs), for values of shape (points,)."""
        if _unlike(self.job):  # a group of its own
            each = [
                coarse.phases(on_job(self.job, {n: float(v[i]) for n, v in values.items()}))
                for i in range(points)
            ]
            return np.array([[float(found.iteration_s)] for found in each])
        jobs = len(self.workers)
        flat = {name: np.repeat(value, jobs) for name, value in values.items()}
        among = _changed(self.job, self.quantities, flat, np.tile(self.workers, points))
        seconds = coarse.phases(self.job, among=among).iteration_s
        return np.broadcast_to(seconds, points * jobs).reshape(points, jobs)


def _changed(job: Job, q: Quantities, values: Values, workers: NDArray[np.int64]) -> Quantities:
    changed: dict[str, Quantity] = {"workers": workers}
    for name in ("latency_s", "update_per_tensor_s", "update_per_byte_s"):
        if name in values:
            changed[name] = values[name]
    if "efficiency" in values:
        ratio = values["efficiency"] / job.cluster.nic.efficiency
        for name in ("bandwidth", "server_bandwidth", "core_bandwidth"):
            changed[f"{name}_bytes_per_s"] = getattr(q, f"{name}_bytes_per_s") * ratio
    if "compute_factor" in values:
        for name in ("forward_s", "backward_s", "optimizer_s", "scale"):
            changed[name] = getattr(q, name) * values["compute_factor"]
    if "jitter" in values and job.jitter is None:
        changed["cv"] = values["jitter"]
    return msgspec.structs.replace(q, **changed)


def _unlike(job: Job) -> bool:
    return bool(job.stragglers or job.cluster.overrides or job.cluster.by_workers)


def groups_of(jobs: Sequence[Job]) -> list[JobGroup]:
    """Jobs in groups."""
    alike: list[tuple[Job, list[int]]] = []
    for i, job in enumerate(jobs):
        least = 1 + job.options.spare_workers
        like = {"workers": least, "assumptions": ()}
        key = job if _unlike(job) else msgspec.structs.replace(job, **like)
        found = next((members for one, members in alike if one == key), None)
        if found is None or _unlike(job):
            alike.append((key, [i]))
        else:
            found.append(i)
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
    found = np.empty((points, sum(len(group.index) for group in groups)))
    for group in groups:
        found[:, group.index] = group.step_s(values, points)
    return found
