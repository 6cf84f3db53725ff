"""Other divisions of a model among the same devices, as changes of a job.

Tensor, context and pipeline parallelism change together, so that as many devices compute the same
samples per update; what does not fit into memory is left out.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

from perfmodel.base.errors import InputError
from perfmodel.base.units import show
from perfmodel.inputs.job import Job
from perfmodel.inputs.job_replica import OF_CONTEXT
from perfmodel.predicting import coarse
from perfmodel.predicting.memory import memory_of
from perfmodel.studies.changes import Change, of_arguments
from perfmodel.studies.variables import divisors

LONG_SEQUENCE = 16_384
"""Tokens from which on dividing sequences is tried."""

MOST_SPLITS = 3
"""Most divisions of the same devices that are simulated."""


def splits(job: Job) -> Iterator[Change]:
    """Other divisions of the same devices with the same samples per update and micro-batch, the
    fastest by formulas."""
    if job.replica is None:
        return
    rates = {}
    numbers = divisors(job.devices)
    again = dict.fromkeys((job.workload.recompute, "none"))
    for tensor, context, pipeline, recompute in itertools.product(
        numbers, _contexts(job), numbers, again
    ):
        split = _split(job, (tensor, context, pipeline), recompute)
        if split is None or tensor > job.cluster.devices_per_node:
            continue
        try:
            divided = split.job_of(job)
            if memory_of(divided).is_enough():
                rates[split] = coarse.iterations_per_s(divided) * divided.global_batch_size
        except InputError:
            continue
    yield from sorted(rates, key=lambda split: -rates[split])[:MOST_SPLITS]


def _contexts(job: Job) -> list[int]:
    """Numbers of devices per sequence to try: of long sequences also half and twice as many."""
    now = 1 if job.replica is None else job.replica.context
    length = job.workload.sequence_length or 0
    several = {now, now // 2, 2 * now} if now > 1 or length >= LONG_SEQUENCE else {now}
    return sorted(several - {0})


def _split(job: Job, shape: tuple[int, int, int], recompute: str) -> Change | None:
    """The same devices as replicas of so many that divide layers, sequences and the model into
    stages; None if that is how they are, or if they cannot share the samples of an update."""
    now, (tensor, context, pipeline) = job.replica, shape
    was = (1, 1, 1) if now is None else (now.tensor, now.context, now.pipeline)
    workers, uneven = divmod(job.devices, tensor * context * pipeline)
    same = was == shape
    samples = job.workload.batch_size // job.workload.accumulation
    if same or uneven or job.global_batch_size % workers:
        return None
    batch = job.global_batch_size // workers
    if batch % samples:
        return None
    sizes = {"tensor": tensor, "pipeline": pipeline, "workers": workers, "batch_size": batch}
    sizes |= {"micro_batches": batch // samples}
    none: dict[str, object] = dict.fromkeys(("virtual_stages", "stage_layers", "schedule"))
    if pipeline == 1:
        none |= dict.fromkeys(("balance", "transfers", "rank_order"))
    if tensor == 1:
        none |= {"sequence_parallel": None}
    if context != was[1]:
        none |= dict.fromkeys(OF_CONTEXT) | ({"context": context} if context > 1 else {})
    flags = " ".join(f"--{name.replace('_', '-')} {value}" for name, value in sizes.items())
    flags += f" --context {context}" * (context != was[1])
    if recompute != job.workload.recompute:
        none, flags = none | {"recompute": recompute}, f"{flags} --recompute {recompute}"
    words = [
        f"{degree} {before} to {then}"
        for degree, before, then in zip(("tensor", "context"), was, shape, strict=False)
        if before != then
    ]
    more = pipeline - was[2]
    if pipeline == 1 and more:
        words.append("no pipeline")
    elif more:
        words.append(f"{abs(more)} {'more' if more > 0 else 'fewer'} stage{'s' * (abs(more) > 1)}")
    words += ["no recomputation"] if recompute != job.workload.recompute else []
    name = (
        f"{' and '.join(words)}, {show(workers, 'workers')} of {show(math.prod(shape), 'devices')}"
    )
    return of_arguments(name, flags, **sizes, **none)


def recomputations(job: Job) -> Iterator[Change]:
    """Less recomputation, in as many or in twice as many micro-batches."""
    kind, passes = job.workload.recompute, job.workload.accumulation
    halves = job.replica is not None and job.workload.batch_size % (2 * passes) == 0
    for less in ("none", "selective"):
        if kind in ("none", less):
            return
        yield of_arguments(f"recompute {less} instead of {kind}", f"--recompute {less}",
                           recompute=less)  # fmt: skip
        if halves:
            name = f"recompute {less} instead of {kind}, in {2 * passes} micro-batches"
            flags = f"--recompute {less} --micro-batches {2 * passes}"
            yield of_arguments(name, flags, recompute=less, micro_batches=2 * passes)
