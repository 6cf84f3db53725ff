"""Runs that go on with fewer nodes: their speed on fewer, and what that makes of their time."""

from __future__ import annotations

import math

import numpy as np

from perfmodel.base.arrays import Floats
from perfmodel.base.errors import InputError
from perfmodel.base.quantities import Quantity
from perfmodel.inputs.failures import DAY_S, Failures
from perfmodel.inputs.job import Job
from perfmodel.predicting.variants import evaluate
from perfmodel.theory.elastic import ElasticRun, elastic_run, fewest_nodes
from perfmodel.theory.failures import TINY, RunTime

SHARDED = ("fsdp",)
"""Architectures in which no worker has the whole model and its states."""

POINTS = 7
"""Amounts of work, from the least to the most, that moments are computed for; others lie between.
"""


def refusal(job: Job, failures: Failures) -> str:
    """Return why a job cannot go on with fewer nodes; empty if it can."""
    if not failures.elastic:
        return ""
    if job.replica is not None or job.islands:
        return "elastic: a worker of several devices cannot lose one"
    if job.architecture.name in SHARDED:
        return f"elastic: {job.architecture.name} divides the model among the workers"
    if job.options.server_count and job.cluster.server.placement == "colocated":
        return "elastic: servers are on the workers' nodes, and taken away with them"
    return ""


def check(job: Job, failures: Failures) -> None:
    """Refuse elastic runs of jobs that cannot go on with fewer nodes.

    Raises
    ------
    InputError : the job cannot; the text says why.
    """
    why = refusal(job, failures)
    if why:
        raise InputError(why)


def present_fraction(failures: Failures) -> float:
    """Return the share of the nodes that are there in the long run."""
    return 1.0 / (1.0 + failures.interruptions_per_node_day / DAY_S * failures.replacement_s)


def change_s(job: Job | None, failures: Failures) -> float:
    """Time that a run stands still when a node goes or comes."""
    if failures.resize_s is not None:
        return failures.resize_s
    alone = job is not None and job.options.asynchronous
    return 0.0 if alone else failures.restart_s


def speeds(job: Job, fewest: int, nodes: int) -> Floats:
    """Relative speed with ``fewest`` to all nodes, by the formulas, (nodes - fewest + 1,).

    It is proportional to the workers below the smallest number that the architecture allows.
    """
    counts = np.arange(fewest, nodes + 1) * job.workers / nodes
    workers = np.clip(np.round(counts), 1, job.workers).astype(int)
    allowed = np.asarray(job.options.allows(workers)) & np.ones(len(workers), bool)
    rates = np.full(len(workers), math.nan)
    rates[allowed] = evaluate(job, workers=workers[allowed]).throughput_samples_per_s
    first = int(np.argmax(allowed))
    rates[~allowed] = rates[first] * workers[~allowed] / workers[first]
    relative: Floats = np.maximum(rates / rates[-1], 1e-6)
    return relative


def of_job(job: Job, work_s: float, failures: Failures) -> ElasticRun:
    """Return the time of ``work_s`` with all nodes as nodes go and come."""
    from perfmodel.predicting.job_facts import nodes_of

    nodes = nodes_of(job)[0]
    taken = failures.interruptions_per_node_day / DAY_S
    fewest = fewest_nodes(nodes, taken, failures.replacement_s)
    relative = speeds(job, fewest, nodes)
    return elastic_run(
        work_s, nodes, relative, taken, failures.replacement_s, change_s(job, failures)
    )


def run_time(job: Job | None, nodes: Quantity, time: RunTime, failures: Failures) -> RunTime:
    """Return what nodes that go and come make of the time of a run with all of them."""
    mean_s = np.asarray(time.mean_s, float)
    if job is None or not np.isfinite(mean_s).all():
        return _on_average(nodes, time, failures)
    points = np.unique(np.geomspace(mean_s.min(), mean_s.max(), POINTS))
    runs = [of_job(job, float(point), failures).time for point in points]

    def between(values: list[float]) -> Floats:
        product: Floats = np.interp(mean_s, points, np.array(values) / points) * mean_s
        return product

    longer = between([float(run.mean_s) for run in runs])
    spread = between([float(run.variance_s2) for run in runs])
    logs = [math.log(max(float(run.no_failure), TINY)) for run in runs]
    none: Floats = np.exp(between(logs))
    variance: Floats = time.variance_s2 * (longer / mean_s) ** 2 + spread
    return RunTime(time.least_s, (time.no_failure * none)[()], longer[()], variance[()])


def _on_average(nodes: Quantity, time: RunTime, failures: Failures) -> RunTime:
    """Return the time at the mean number of nodes, with speed proportional to it."""
    taken = failures.interruptions_per_node_day / DAY_S
    there = present_fraction(failures)
    stopped = 2.0 * change_s(None, failures) * taken * there * np.asarray(nodes, float)
    with np.errstate(divide="ignore", invalid="ignore"):
        longer = np.where(stopped < 1.0, 1.0 / (there * np.maximum(1.0 - stopped, 0.0)), math.inf)
        mean_s, variance_s2 = time.mean_s * longer, time.variance_s2 * longer**2
    none = np.exp(-taken * np.asarray(nodes, float) * time.least_s)
    return RunTime(time.least_s, time.no_failure * none, mean_s, variance_s2)
