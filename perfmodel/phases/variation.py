"""How much compute times vary at random: by jitter, and by the documents in packed sequences."""

from __future__ import annotations

import functools

import numpy as np

from perfmodel.base.arrays import Floats
from perfmodel.base.quantities import Quantity
from perfmodel.inputs.job import Job
from perfmodel.inputs.passes import one_pass
from perfmodel.inputs.workload import Workload, expanded
from perfmodel.theory.packing import largest_of, relative_loads

UNEQUAL = "unequal_sequences"
"""Cause of waits for the worker whose sequences have the longest documents."""

KIND = "gamma"
"""Distribution that stands for the sums of such times in formulas."""

HALVINGS = 40
"""Bisections for a coefficient of variation."""


def factors_of(workload: Workload, batches: int) -> Floats:
    """Return equally probable factors, ascending, on the time of layers with attention in so many
    micro-batches together."""
    packing, one = workload.packing, one_pass(workload)
    part = max(layer.varying for layer in workload.layers)
    if packing is None:
        raise ValueError("the sequences are not packed")
    return 1.0 + part * (relative_loads(packing, batches * one.batch_size) - 1.0)


def varying_part(workload: Workload) -> float:
    """Return the part of an update's compute time that its layers with attention take."""
    one = one_pass(workload)
    passes_s = sum(layer.forward_s + layer.backward_s for layer in one.layers if layer.varying)
    whole_s = workload.compute_s
    return workload.accumulation * passes_s / whole_s if whole_s > 0.0 else 0.0


def cv_of_update(job: Job) -> float:
    """Return the coefficient of variation of a worker's compute time in an update that comes from
    the lengths of documents.

    Of several workers that wait for each other it is that of the gamma distribution whose expected
    maximum is theirs.
    """
    work = job.workload
    if work.packing is None:
        return 0.0
    part = varying_part(work)
    together = 1 if waits_in_each_pass(job) else work.accumulation
    factors = 1.0 + part * (factors_of(work, together) - 1.0)
    return spread_of(factors, 1 if job.options.asynchronous else job.workers)


def waits_in_each_pass(job: Job) -> bool:
    """Return whether workers exchange something in each pass, and so wait for its slowest."""
    return job.options.sends_in_each_pass or job.reductions > 1


def spread_of(factors: Floats, workers: int, among: int | None = None) -> float:
    """Return the coefficient of variation of equally probable ``factors``, ascending, for formulas.

    Of several workers it is that of the gamma distribution of which the expected largest is that of
    one factor for each worker: the largest of as many or, if several workers have the same, of
    ``among``.
    """
    mean = float(factors.mean())
    if workers == 1:
        return float(factors.std()) / mean if among in (None, 1) else 0.0
    return _equivalent(among or workers, round(largest_of(factors, workers) / mean, 9))


@functools.lru_cache(maxsize=1024)
def _equivalent(workers: int, largest: float) -> float:
    from perfmodel.theory.order_statistics import expected_maximum

    low, high = 0.0, 4.0
    for _ in range(HALVINGS):
        middle = (low + high) / 2.0
        if expected_maximum(workers, middle, KIND) < largest:
            low = middle
        else:
            high = middle
    return (low + high) / 2.0


def iteration_cv(job: Job, times: Quantity = 1.0) -> Quantity:
    """Return the coefficient of variation of an iteration's compute time, with passes ``times`` as
    long as profiled; the factors of single ops average out."""
    of_jitter = _jitter_cv(job, times)
    if job.workload.packing is None:
        return of_jitter
    rest = 1.0 - varying_part(job.workload)  # attention has factors of its own
    return ((rest * of_jitter) ** 2 + cv_of_update(job) ** 2) ** 0.5


def _jitter_cv(job: Job, times: Quantity) -> Quantity:
    """Return the coefficient of variation that comes from jitter."""
    if job.jitter is None:
        return 0.0
    if job.jitter.scope == "iteration":
        return job.jitter.cv
    w = expanded(job.device_work)
    parts = np.array([s for a in w.layers for s in (a.forward_s, a.backward_s)])
    squares = times**2 * float((parts**2).sum()) + w.optimizer_s**2
    return job.jitter.cv * squares**0.5 / (times * float(parts.sum()) + w.optimizer_s)
