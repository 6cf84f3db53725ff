"""The cause of waits for other workers."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from perfmodel.inputs.job import Job
from perfmodel.phases.quantities import iteration_cv
from perfmodel.phases.variation import UNEQUAL, cv_of_update
from perfmodel.results.outcome import Outcome
from perfmodel.training.labels import PIPELINE, SLOWEST


def with_causes(job: Job, outcome: Outcome) -> Outcome:
    """Return the outcome in which waits for other workers have the lengths of documents as their
    cause, if workers differ by nothing else, or by less at random.

    Without a pipeline, so do waits for other devices of replicas.
    """
    flat = job if job.flat is None else job.flat
    if flat.workload.packing is None or flat.unequal:
        return outcome
    of_documents = cv_of_update(flat)
    if not float(iteration_cv(flat)) < 2.0**0.5 * of_documents:
        return outcome
    waits = {SLOWEST}
    if flat.replica is not None and flat.replica.pipeline == 1:
        waits.add(PIPELINE)

    def renamed(causes: Mapping[str, float]) -> dict[str, float]:
        made: dict[str, float] = {}
        for cause, part in causes.items():
            name = UNEQUAL if cause in waits else cause
            made[name] = made.get(name, 0.0) + part
        return made

    idle = outcome.idle_fraction
    return msgspec.structs.replace(
        outcome,
        idle_fraction=msgspec.structs.replace(idle, by_cause=renamed(idle.by_cause)),
        causes_by_worker=tuple(map(renamed, outcome.causes_by_worker)),
    )
