"""What a prediction says of its job, whichever route found how fast it is."""

from __future__ import annotations

import math
from typing import Any

import msgspec

from perfmodel.architectures import registry
from perfmodel.base.errors import InputError, whole_number
from perfmodel.base.provenance import provenance
from perfmodel.base.units import show
from perfmodel.inputs import catalogue
from perfmodel.inputs.job import Job
from perfmodel.inputs.workload import expanded
from perfmodel.results.prediction import Memory, ModelAge, Training

LEAST_STEP_S = 1e-12
"""Least time that a worker computes in a step."""


class Totals(msgspec.Struct, frozen=True):
    """How much is trained: samples per epoch and epochs, where known.

    Raises
    ------
    InputError : ``epochs`` without ``dataset_size``, or either below 1.
    """

    dataset_size: int | None = None
    epochs: int | None = None

    def __post_init__(self) -> None:
        if self.epochs is not None and self.dataset_size is None:
            raise InputError("epochs: needs dataset_size too")
        for name in ("dataset_size", "epochs"):
            if getattr(self, name) is not None:
                whole_number(name, getattr(self, name))


def of(job: Job, rate: float, totals: Totals) -> dict[str, Any]:
    """Fields of a prediction that follow from a job, and the iterations per second of all workers
    together."""
    memory = _memory(job)
    return {
        "model": job.workload.name,
        "device": job.workload.device,
        "quality": job.workload.quality,
        "architecture": job.architecture,
        "workers": job.workers,
        "batch_size": job.workload.batch_size,
        "global_batch_size": job.workload.batch_size * job.workers,
        "throughput_samples_per_s": rate * job.workload.batch_size,
        "iteration_s": job.workers / rate,
        "model_age": _model_age(job),
        "memory": memory,
        "training": _training(job, rate, totals),
        "notes": _notes(job, memory),
        "assumptions": job.assumptions,
        "provenance": provenance(job.seed, _inputs(job)),
    }


def with_layers(job: Job) -> Job:
    """The job with a coarse workload spread over layers, and a note that it was.

    Raises
    ------
    InputError : a step takes no time, so that no rate could be told.
    """
    if job.workload.compute_s + job.workload.data_loading_s < LEAST_STEP_S:
        raise InputError(
            f"workload {job.workload.name!r}: a step takes {job.workload.compute_s:g} s of "
            f"computing; at least {LEAST_STEP_S:g} s"
        )
    if job.workload.layers:
        return job
    fine = expanded(job.workload)
    added = fine.assumptions[len(job.workload.assumptions) :]
    return msgspec.structs.replace(job, workload=fine, assumptions=(*job.assumptions, *added))


def _model_age(job: Job) -> ModelAge | None:
    architecture, _ = registry.find(job.architecture)
    return architecture.model_age(job) if architecture.model_age is not None else None


def _memory(job: Job) -> Memory:
    """Parameters, gradients and activations; optimizer state where the optimizer runs."""
    architecture, _ = registry.find(job.architecture)
    w = job.workload
    on_server = architecture.server_bytes is not None
    if architecture.worker_bytes is not None:
        worker = architecture.worker_bytes(job)
    else:
        worker = 2.0 * w.gradient_bytes + w.activation_bytes
        worker += 0.0 if on_server else w.optimizer_state_bytes
    server = architecture.server_bytes(job) if architecture.server_bytes is not None else None
    known = w.device in catalogue.device_names()
    has = catalogue.device(w.device).memory_bytes if known else None
    return Memory(worker, server, has)


def _training(job: Job, rate: float, totals: Totals) -> Training | None:
    """Every sample once per epoch; the last, partial batch of each worker counts as a whole."""
    if totals.dataset_size is None:
        return None
    times = totals.epochs if totals.epochs is not None else 1
    iterations = math.ceil(totals.dataset_size / (job.workers * job.workload.batch_size))
    epoch_s = iterations * job.workers / rate
    return Training(totals.dataset_size, times, iterations, epoch_s, times * epoch_s)


def _notes(job: Job, memory: Memory) -> tuple[str, ...]:
    architecture, _ = registry.find(job.architecture)
    notes = architecture.notes(job) if architecture.notes is not None else ()
    if memory.device_bytes is not None and memory.worker_bytes > memory.device_bytes:
        return (
            f"a worker needs about {show(memory.worker_bytes, 'bytes')}, more than the "
            f"{show(memory.device_bytes, 'bytes')} of {job.workload.device}",
            *notes,
        )
    return notes


def finite(value: Any) -> Any:
    """JSON has no infinity: it is written as text, as on the command line."""
    return "inf" if value == math.inf else value


def _inputs(job: Job) -> dict[str, Any]:
    """What the job was made of, for its provenance."""
    w = job.workload
    return {
        "workload": {
            "name": w.name,
            "device": w.device,
            "batch_size": w.batch_size,
            "precision": w.precision,
            "source": msgspec.to_builtins(w.source),
        },
        "cluster": msgspec.to_builtins(job.cluster),
        "workers": job.workers,
        "architecture": job.architecture,
        "options": {k: finite(v) for k, v in msgspec.to_builtins(job.options).items()},
        "jitter": msgspec.to_builtins(job.jitter, enc_hook=float),  # also of a NumPy number
        "stragglers": msgspec.to_builtins(job.stragglers, enc_hook=float),
        "start": job.start,
    }
