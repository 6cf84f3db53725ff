"""What makes a job fit into the memory of its devices."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from perfmodel.base.errors import InputError
from perfmodel.inputs.job import Job
from perfmodel.predicting.memory import memory_of
from perfmodel.results.memory import SURE
from perfmodel.studies.changes import Change, of_architecture, of_arguments
from perfmodel.studies.variables import MOST_STAGES, boundary, divisors
from perfmodel.sweeping.arguments import changed

RECOMPUTATIONS = ("selective", "selective:products", "selective:2", "full")
"""Kinds of recomputation, the cheapest first."""

MOST_DEVICES = 64
"""Most times as many workers that are tried."""

MOST_BATCH = 65536
"""Largest batch of a worker that is looked for."""


def remedies(job: Job, confidence: float = SURE) -> tuple[Change, ...]:
    """Return changes each of which alone makes a job fit, the smallest of its kind: passes per
    update, batch, recomputation, sharding, workers; several together if none is enough alone, and
    then no more than are needed.

    Workers that are replicas may also have more devices: tensor-parallel ones up to a node, or more
    stages. So may single devices if nothing else helps. Empty if the job fits, or nothing helps.

    >>> from perfmodel import make_job
    >>> job = make_job(model="gpt2-xl", device="a100", arch="ring", workers=8, batch_size=4)
    >>> [change.flags for change in remedies(job)]
    ['--arch fsdp --option stage=1']
    """
    if memory_of(job).is_enough(confidence):
        return ()
    several = [tuple(changes) for changes in (_passes(job), _batches(job), _recomputations(job),
               _shardings(job), _workers(job))]  # fmt: skip
    most = {"tensor": job.cluster.devices_per_node, "pipeline": MOST_STAGES}
    larger = [tuple(_larger(job, name, count)) for name, count in most.items()]
    enough = _enough(job, (*several, *larger) if job.replica else several, confidence)
    if enough:
        return enough
    largest = [changes[-1] for changes in (*several[:1], *several[2:]) if changes]
    for count in range(2, len(largest) + 1):
        if _first(job, (_together(largest[:count]),), confidence) is not None:
            return (_together(_needed(job, largest[:count], confidence)),)
    return () if job.replica else _enough(job, larger, confidence)


def largest_batch(job: Job, confidence: float = SURE) -> Job:
    """Return the job with the largest batch per worker that fits; replicas keep their number of
    micro-batches.

    Raises
    ------
    InputError : not even one sample fits, or the memory of the device is unknown.
    """
    memory = memory_of(job)
    if memory.fits is None:
        raise InputError(f"fit: the memory of {job.workload.device} is unknown")
    passes = job.workload.accumulation

    held = {} if job.replica is None else {"accumulation": passes}

    def with_batch(size: float) -> Job:
        return changed(job, {"batch_size": int(size), **held})

    def fits_at(size: float) -> bool:
        return memory_of(with_batch(size)).is_enough(confidence)

    if not fits_at(passes):
        memory = memory_of(with_batch(passes))
        raise InputError(f"fit: even one sample per pass {memory.shortage(job.workload.device)}")
    most = float(MOST_BATCH // passes * passes)
    if fits_at(most):
        return with_batch(most)
    size, _ = boundary(float(passes), most, fits_at, True, passes)
    return with_batch(size)


def in_words(flags: Sequence[str]) -> str:
    """Return the flags of changes as a line that says what makes a job fit."""
    if not flags:
        tried = "batch, recomputation, sharding, workers, devices per worker"
        return f"nothing that was tried makes it fit: {tried}"
    return f"to fit: {', or '.join(flags)}"


def _enough(
    job: Job, several: Sequence[tuple[Change, ...]], confidence: float
) -> tuple[Change, ...]:
    """Return the first change of each kind that is enough alone."""
    alone = [_first(job, changes, confidence) for changes in several]
    return tuple(change for change in alone if change is not None)


def _first(job: Job, changes: tuple[Change, ...], confidence: float) -> Change | None:
    """Return the first change that is possible and after which the job fits."""
    for change in changes:
        try:
            if memory_of(change.job_of(job)).is_enough(confidence):
                return change
        except InputError:
            continue
    return None


def _needed(job: Job, changes: Sequence[Change], confidence: float) -> list[Change]:
    """Return changes that together make a job fit, without those that it fits without."""
    kept = list(changes)
    for change in changes:
        others = [candidate for candidate in kept if candidate is not change]
        if _first(job, (_together(others),), confidence) is not None:
            kept = others
    return kept


def _together(changes: Sequence[Change]) -> Change:
    """Return one change after another."""

    def job_of(job: Job) -> Job:
        for change in changes:
            job = change.job_of(job)
        return job

    return Change("all of these", job_of, " ".join(change.flags for change in changes))


def _passes(job: Job) -> Iterator[Change]:
    """Yield more passes per update, of fewer samples each."""
    size, passes = job.of_devices.workload.batch_size, job.workload.accumulation
    flag = "--accumulation" if job.replica is None else "--micro-batches"
    for more in divisors(size):
        if more > passes:
            yield of_arguments("accumulation", f"{flag} {more}", accumulation=more)


def _batches(job: Job) -> Iterator[Change]:
    """Yield smaller batches."""
    size = job.of_devices.workload.batch_size // 2
    while size >= job.workload.accumulation:
        yield of_arguments("batch size", f"--batch-size {size}", batch_size=size)
        size //= 2


def _recomputations(job: Job) -> Iterator[Change]:
    """Yield kinds of recomputation that keep less than now."""
    now = job.workload.recompute
    begin = RECOMPUTATIONS.index(now) + 1 if now in RECOMPUTATIONS else 0
    for kind in RECOMPUTATIONS[begin:] if now != "full" else ():
        yield of_arguments("recomputation", f"--recompute {kind}", recompute=kind)


def _shardings(job: Job) -> Iterator[Change]:
    """Yield higher stages of sharding, of jobs that synchronise all workers, or inside islands."""
    now = getattr(job.options, "stage", 0)
    several = job.architecture.name in ("allreduce", "fsdp") and job.workers > 1
    for stage in range(now + 1, 4) if several else ():
        yield of_architecture("fsdp", f"sharding, stage {stage}", stage=stage)
    if job.islands and job.islands[0].job.architecture.name == "allreduce":
        yield of_arguments("sharding inside islands", "--island-arch fsdp", island_arch="fsdp")


def _workers(job: Job) -> Iterator[Change]:
    """Yield more workers, where they share the model."""
    for factor in _doubled(2, MOST_DEVICES) if job.architecture.name == "fsdp" else ():
        workers = factor * job.workers
        yield of_arguments("workers", f"--workers {workers}", workers=workers)


def _larger(job: Job, name: str, most: int) -> Iterator[Change]:
    """Yield more devices per worker, which divide each layer (*tensor*) or are more stages."""
    now = getattr(job.replica, name) if job.replica else 1
    for count in _doubled(2 * now, most) if not job.islands else ():
        yield _of_replica(job, name, count)


def _doubled(first: int, most: int) -> Iterator[int]:
    """Yield a number and its doubles, up to ``most``."""
    while first <= most:
        yield first
        first *= 2


def _of_replica(job: Job, name: str, count: int) -> Change:
    """Return more devices per worker, of the same batch."""
    flags, given = f"--{name} {count}", job.given or {}
    if not {"batch_size", "global_batch_size"} & given.keys():  # the default depends on the stages
        flags += f" --batch-size {job.workload.batch_size}"
    sizes: dict[str, object] = {name: count, "batch_size": job.workload.batch_size}
    return of_arguments(name, flags, **sizes)
