"""Layers that are joined to blocks where workers may come to go from link to link together."""

from __future__ import annotations

import math

import msgspec
import pytest

from perfmodel.architectures.mean_field import WAVE_BLOCKS
from perfmodel.graph.op_graph import OpGraph
from perfmodel.inputs.job import Job
from perfmodel.predicting import fine
from perfmodel.training.workers import in_blocks
from tests.engine.test_waves import both_ways


def simulated(job: Job) -> OpGraph:
    return fine._long_run(job, 0.05, math.inf, None, whole=False)[0]


def joined(job: Job) -> Job:
    return msgspec.structs.replace(job, workload=in_blocks(job.workload, WAVE_BLOCKS))


def test_layers_are_joined_if_workers_may_come_in_waves() -> None:
    job = both_ways()
    found = simulated(job)
    assert found.n_ops == fine.build_graph(joined(job)).n_ops
    assert found.n_ops < fine.build_graph(job).n_ops


@pytest.mark.parametrize("job", [both_ways(update_s=0.03), both_ways(16)], ids=["slow", "few"])
def test_layers_stay_if_they_may_not(job: Job) -> None:
    """Updates take longer than messages; fewer than 32 workers take many rounds anyway."""
    assert simulated(job).n_ops == fine.build_graph(job).n_ops
