"""Build a prediction from a job, the outcome of a route, and the amount of training."""

from __future__ import annotations

import msgspec

from perfmodel.base.provenance import provenance
from perfmodel.inputs.job import Job
from perfmodel.predicting import intervals, islands, job_facts
from perfmodel.predicting.memory import memory_of
from perfmodel.predicting.options import PredictOptions
from perfmodel.predicting.predicted_job import PredictedJob
from perfmodel.predicting.waits import with_causes
from perfmodel.results.outcome import Outcome
from perfmodel.results.prediction import Prediction


def prediction_of(job: Job, outcome: Outcome, options: PredictOptions) -> Prediction:
    """Return the prediction: the outcome, the facts of the job, and the interval."""
    memory = memory_of(job)
    outcome = with_causes(job, outcome)
    samples_per_s = islands.samples_per_s(job, outcome)
    outcome = islands.of_devices(job, outcome)
    nodes, devices_per_node = job_facts.nodes_of(job)
    interval = intervals.interval_of(job, outcome, samples_per_s)
    training = job_facts.training_of(job, outcome.iterations_per_s, options)
    if training is not None and options.failures is not None:
        from perfmodel.predicting.long_runs import long_run  # needed for long runs only

        run = long_run(job, training.training_s, outcome.iteration_s, interval, options.failures)
        training = msgspec.structs.replace(training, with_failures=run)
    return Prediction(
        model=job.workload.name,
        device=job.workload.device,
        quality=job.workload.quality,
        architecture=job.architecture.name,
        workers=job.workers,
        batch_size=job.workload.batch_size,
        island_devices=tuple(island.devices for island in job.islands),
        layout=job_facts.layout_of(job),
        nodes=nodes,
        devices_per_node=devices_per_node,
        global_batch_size=job.global_batch_size,
        fidelity=outcome.fidelity,
        error_band=outcome.error_band,
        sequence_length=job.workload.sequence_length,
        throughput_samples_per_s=samples_per_s,
        interval=interval,
        throughput_ci_fraction=outcome.throughput_ci_fraction,
        iterations=outcome.iterations,
        transient_iterations=outcome.transient_iterations,
        iteration_s=outcome.iteration_s,
        compute_s=outcome.compute_s,
        exposed_communication_s=outcome.exposed_communication_s,
        idle_fraction=outcome.idle_fraction,
        staleness=outcome.staleness,
        model_age=job_facts.model_age(job),
        clock_gap=outcome.clock_gap,
        phases_s=outcome.phases_s,
        operation_s=outcome.operation_s,
        updates_per_s=outcome.updates_per_s,
        utilisation=outcome.utilisation,
        memory=memory,
        bottleneck=outcome.bottleneck,
        training=training,
        notes=(*job_facts.notes_of(job, memory), *outcome.notes),
        assumptions=job.assumptions,
        provenance=provenance(job.seed, job_facts.inputs_of(job)),
        predicted_job=PredictedJob(job, options.max_ops),
    )


def with_job(prediction: Prediction, job: Job, max_ops: float) -> Prediction:
    """Return a prediction of ``job``, read from another process or a file, with the job, so that it
    has a timeline and effects."""
    predicted_job = PredictedJob(job_facts.with_layers(job), max_ops)
    return msgspec.structs.replace(prediction, predicted_job=predicted_job)
