"""What a job is given to divide its model in another way."""

from __future__ import annotations

from perfmodel.inputs.expert_parallel import OF_EXPERTS
from perfmodel.inputs.job import Job
from perfmodel.inputs.job_replica import OF_CONTEXT, OF_REPLICA

OF_TENSORS = ("sequence_parallel", "overlap_sums")
OF_PIPELINES = ("pipeline", "schedule", "virtual_stages", "stage_layers", "transfers")
"""Arguments of replicas that need several devices per layer, or several stages."""


def unused(tensor: int, pipeline: int) -> dict[str, None]:
    """Return what replicas of so many devices have no use for, for arguments of
    :func:`perfmodel.make_job`."""
    of_replicas = tuple(name for name in OF_REPLICA if name not in (*OF_EXPERTS, *OF_CONTEXT))
    names = of_replicas if tensor == pipeline == 1 else ()
    names += OF_TENSORS if tensor == 1 else ()
    names += OF_PIPELINES if pipeline == 1 else ()
    return dict.fromkeys(names)


def degrees_of(job: Job, context: int, expert: int) -> dict[str, int | None]:
    """Return what a job is given to have so many devices per sequence and per set of experts."""
    replica, given = job.replica, dict[str, int | None]()
    now = (replica.context, replica.experts.degree if replica.experts else 1) if replica else (1, 1)
    for name, size, was, names in (
        ("context", context, now[0], OF_CONTEXT),
        ("expert", expert, now[1], OF_EXPERTS),
    ):
        if size != was:
            given |= dict.fromkeys(names) if size == 1 else {name: size}
    return given
