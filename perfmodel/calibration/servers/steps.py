"""Step times of jobs with parameter servers, from the formulas, for many values at once."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import msgspec
import numpy as np

from perfmodel.architectures.ps.options import Options
from perfmodel.architectures.ps.placement import slices_of
from perfmodel.base.arrays import Floats
from perfmodel.base.uncertainty import COVERAGE, WIDTH
from perfmodel.calibration.regression import Regression
from perfmodel.inputs.cluster import Cluster
from perfmodel.inputs.job import Job
from perfmodel.phases.quantities import quantities_of
from perfmodel.predicting import coarse

COSTS = ("update_per_tensor_s", "update_per_byte_s", "optimizer_per_byte_s")
"""Costs of a server, as fields of :class:`perfmodel.inputs.cluster.Server`."""


class Steps(NamedTuple):
    """Seconds of a worker's step, of its computation, and of the work of the fullest server in that
    time, (points, runs)."""

    step_s: Floats
    compute_s: Floats
    server_s: Floats


def steps_of(
    job: Job,
    workers: Floats,
    fullest: Floats,
    computing: Floats,
    costs: Mapping[str, Floats],
) -> Steps:
    """Step times of runs of one job, which has one server.

    Parameters
    ----------
    workers : number of workers of each run, (runs,).
    fullest : fraction of the model on the fullest server, (points, runs) or (runs,).
    computing : compute time over that of the job's workload, (points, runs).
    costs : some of :data:`COSTS`, each (points, 1) or (points, runs).
    """
    shape = computing.shape
    q = quantities_of(job)

    def flat(values: Floats) -> Floats:
        return np.broadcast_to(values, shape).ravel()

    part = flat(fullest)
    changed = {name: flat(values) * part for name, values in costs.items()}
    for name in ("forward_s", "backward_s", "optimizer_s", "scale"):
        changed[name] = flat(getattr(q, name) * computing)
    changed["server_bandwidth_bytes_per_s"] = q.server_bandwidth_bytes_per_s / part
    changed["workers"] = flat(workers)
    found = coarse.phases(job, among=msgspec.structs.replace(q, **changed))
    parts = (found.iteration_s, found.parts["compute"].seconds, found.busy_s["servers"])
    return Steps(*(np.broadcast_to(each, computing.size).reshape(shape) for each in parts))


def fullest_of(job: Job) -> float:
    """Fraction of the model's bytes on the fullest server of a job."""
    slices = slices_of(job.workload, Options.of(job))
    kept = np.bincount(slices.server, slices.bytes)
    return float(kept.max() / kept.sum())


def spread_beside(
    regression: Regression, misses: Floats, x: Floats, covariance: Floats, least: float
) -> float:
    """Standard deviation of measured steps beyond the fit's ``covariance`` at ``x``.

    ``misses`` (runs,) are those of the first rows, each from a fit without it: 9 in 10 of them
    should lie in an interval that combines both.
    """
    explained = regression.explained(x, covariance)[: len(misses)]
    needed = float(np.quantile((misses / WIDTH) ** 2 - explained, COVERAGE))
    return float(f"{math.sqrt(max(needed, least**2)):.4g}")


def with_costs(cluster: Cluster, costs: Mapping[str, float]) -> Cluster:
    """Return a cluster whose servers have these costs."""
    return msgspec.structs.replace(cluster, server=msgspec.structs.replace(cluster.server, **costs))
