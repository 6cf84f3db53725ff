"""Facts about a job that its prediction reports, the same for both routes."""

from __future__ import annotations

import math
from collections import Counter

import msgspec
import numpy as np

from perfmodel.architectures.base import architecture_of
from perfmodel.base.errors import InputError
from perfmodel.base.files import finite
from perfmodel.inputs.islands import places_of
from perfmodel.inputs.job import Job
from perfmodel.inputs.workload import expanded
from perfmodel.predicting.options import PredictOptions
from perfmodel.results.layout import Layout
from perfmodel.results.memory import Memory
from perfmodel.results.prediction import ModelAge
from perfmodel.results.training import Training

LEAST_STEP_S = 1e-12
"""Shortest compute time of a step (s)."""


def with_layers(job: Job) -> Job:
    """Return the job with a coarse workload spread over layers, and an assumption recording that.

    Raises
    ------
    InputError : a step takes no time, so its rate would be infinite.
    """
    if job.workload.compute_s + job.workload.data_loading_s < LEAST_STEP_S:
        raise InputError(
            f"workload {job.workload.name!r}: a step computes for {job.workload.compute_s:g} s; "
            f"expected at least {LEAST_STEP_S:g} s"
        )
    if job.workload.layers:
        return job
    fine = expanded(job.workload)
    added = fine.assumptions[len(job.workload.assumptions) :]
    return msgspec.structs.replace(job, workload=fine, assumptions=(*job.assumptions, *added))


def nodes_of(job: Job) -> tuple[int, int | None]:
    """Return the number of nodes with devices of the job, and the devices on each of them (None if
    these numbers differ)."""
    if not job.islands:
        cluster, workers = job.cluster, job.devices
        on_nodes = {cluster.devices_at(node, workers) for node in cluster.samples(workers)}
        return cluster.nodes_for(workers), on_nodes.pop() if len(on_nodes) == 1 else None
    cluster, devices = job.of_devices.cluster, tuple(island.devices for island in job.islands)
    places = places_of(cluster, devices)
    counts: Counter[int] = Counter()
    for count, first, many in zip(devices, places.first, places.many, strict=True):
        for k in range(many):
            counts[first + k] += min(count - k * cluster.devices_per_node, cluster.devices_per_node)
    return len(counts), counts[0] if len(set(counts.values())) == 1 else None


def layout_of(job: Job) -> Layout | None:
    """Return how replicas of several devices are made up."""
    replica = job.replica
    if replica is None:
        return None
    from perfmodel.replicas.stage_work import stages_of

    works = stages_of(job.workload, replica)
    if works[0].stage.copies > 1:  # the other rank of each pair holds the same
        works = [*works, *works[::-1]]
    return Layout(
        devices=replica.devices,
        tensor=replica.tensor,
        sequence_parallel=replica.sequence_parallel,
        context=replica.context,
        context_exchange=replica.context_exchange,
        pipeline=replica.pipeline,
        virtual_stages=replica.virtual_stages,
        schedule=replica.schedule,
        micro_batches=job.workload.accumulation,
        stage_layers=tuple(sum(one.stage.chunk_layers) for one in works),
        expert=1 if replica.experts is None else replica.experts.degree,
        expert_tensor=replica.tensor if replica.experts is None else replica.experts.tensor,
    )


def model_age(job: Job) -> ModelAge | None:
    """Return the local steps since a worker's last exchange, for jobs that exchange models."""
    architecture = architecture_of(job)
    age = architecture.model_age(job) if architecture.model_age is not None else None
    steps = np.mean([island.steps for island in job.islands]) if job.islands else 1.0
    return age if steps == 1.0 or job.workers == 1 else _in_steps(age, float(steps))


def _in_steps(age: ModelAge | None, steps: float) -> ModelAge:
    """Convert the age of models exchanged every ``steps`` steps from exchanges to steps."""
    known = age or ModelAge(1.0, 0.0, 0)
    p90 = math.ceil(steps * known.p90 + 0.9 * steps) - 1
    return ModelAge(
        exchange_every=steps * known.exchange_every,
        mean=steps * known.mean + (steps - 1.0) / 2.0,
        p90=max(p90, 0),
    )


def training_of(job: Job, iterations_per_s: float, options: PredictOptions) -> Training | None:
    """Return the training time, with every sample once per epoch; partial batches count as full."""
    if options.dataset_size is None:
        return None
    epochs = options.epochs or 1
    iterations = math.ceil(options.dataset_size / job.global_batch_size)
    epoch_s = iterations * job.workers / iterations_per_s
    return Training(options.dataset_size, epochs, iterations, epoch_s, epochs * epoch_s)


def notes_of(job: Job, memory: Memory) -> tuple[str, ...]:
    """Return remarks on a job beyond the figures of its prediction."""
    architecture = architecture_of(job)
    notes = architecture.notes(job) if architecture.notes is not None else ()
    shortage = memory.shortage(job.workload.device)
    return (shortage, *notes) if shortage else notes


def inputs_of(job: Job) -> dict[str, object]:
    """Return a job's inputs for its provenance, equal to what JSON gives back."""
    w = job.workload
    inputs = {
        "workload": {
            "name": w.name,
            "device": w.device,
            "batch_size": w.batch_size,
            "precision": w.precision,
            "source": msgspec.to_builtins(w.source),
        },
        "cluster": msgspec.to_builtins(job.cluster),
        "workers": job.workers,
        "architecture": job.architecture.name,
        "options": msgspec.to_builtins(job.options),
        "jitter": msgspec.to_builtins(job.jitter, enc_hook=float),  # also for a NumPy number
        "stragglers": msgspec.to_builtins(job.stragglers, enc_hook=float),
        "start": job.start,
        **_islands_of(job),
    }
    values: dict[str, object] = finite(inputs, "inf")
    return values


def _islands_of(job: Job) -> dict[str, object]:
    """Return the islands of a job, and the job inside each."""
    if not job.islands:
        return {}
    one = job.islands[0].job
    return {
        "islands": {
            "devices": [island.devices for island in job.islands],
            "architecture": one.architecture.name,
            "options": msgspec.to_builtins(one.options),
            "steps": [island.steps for island in job.islands],
            "step_s": [island.step_s for island in job.islands],
        }
    }
