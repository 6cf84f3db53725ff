"""Schedules recorded from simulated jobs of two layers, for replays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from perfmodel import Jitter, Straggler
from perfmodel.predicting.recording import schedule_of
from perfmodel.results.schedule import Schedule
from tests.jobs import cluster, job, workload

WORK = workload([0.01, 0.02], [0.02, 0.05], [2.0, 1.0], optimizer_s=0.001)
"""Steps of 0.1 s, and 3 bytes of gradients."""

LINK_BYTES_PER_S = 300.0
"""Sending a model of WORK takes 0.01 s."""


def recorded(
    arch: str,
    options: Mapping[str, Any],
    workers: int,
    gradients: int,
    *,
    link_bytes_per_s: float = LINK_BYTES_PER_S,
    jitter: float = 0.2,
    slow: float = 1.0,
    batch_size: int = 8,
    seed: int = 0,
) -> Schedule:
    """The schedule of a job until this many gradients have been applied.

    ``slow`` is the factor by which the first worker is slower; ``batch_size`` is the replay's.
    """
    made = job(
        WORK,
        cluster(link_bytes_per_s, 1e-4, update_per_tensor_s=1e-3),
        workers,
        arch,
        dict(options),
        jitter=Jitter(jitter) if jitter else None,
        stragglers=(Straggler(0, slow),) if slow != 1.0 else (),
        seed=seed,
    )
    result = schedule_of(made, gradients, max_ops=5e7, samples_per_s=1.0)
    header = msgspec.structs.replace(result.header, batch_size=batch_size)
    return msgspec.structs.replace(result, header=header)
