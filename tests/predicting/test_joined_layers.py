"""Layers that are joined to blocks where workers may come to go from link to link together."""

from __future__ import annotations

import math

import msgspec
import pytest

from perfmodel import make_job
from perfmodel.architectures.mean_field import WAVE_BLOCKS, mean_field_of
from perfmodel.graph.op_graph import OpGraph
from perfmodel.inputs.job import Job
from perfmodel.inputs.replica import Replica, Tied
from perfmodel.predicting import fine, replicas
from perfmodel.training.workers import in_blocks
from tests.engine.test_waves import both_ways
from tests.predicting.test_replicas import job as job_of_replicas, work


def simulated(job: Job) -> OpGraph:
    return fine._long_run(job, 0.05, math.inf, None, whole=False)[0]


def joined(job: Job) -> Job:
    return in_blocks(job, WAVE_BLOCKS)


def test_layers_are_joined_if_workers_may_come_in_waves() -> None:
    job = both_ways()
    found = simulated(job)
    assert found.n_ops == fine.build_graph(joined(job)).n_ops
    assert found.n_ops < fine.build_graph(job).n_ops


@pytest.mark.parametrize("job", [both_ways(update_s=0.03), both_ways(16)], ids=["slow", "few"])
def test_layers_stay_if_they_may_not(job: Job) -> None:
    """Updates take longer than messages; fewer than 32 workers take many rounds anyway."""
    assert simulated(job).n_ops == fine.build_graph(job).n_ops


def test_layers_of_a_stage_are_joined_within_chunks_by_hand() -> None:
    """Two chunks of three equal layers, joined to two blocks each: the middle of a layer
    decides, so the second of three is in the second block. The earlier one of two passes counts as
    time of the first layer, and has no influence. The table that another stage has stays with its
    layer."""
    layers = [(1.0, 2.0, 3e6, 1e-3)] * 12
    replicas_of = job_of_replicas(work(layers, 2), 2, virtual_stages=2, arch="asp", workers=2)
    one = replicas.stage_jobs(replicas_of)[1].job
    assert one.stage is not None
    assert one.stage.chunk_layers == (3, 3)
    tied = msgspec.structs.replace(one.stage, tied=Tied(layer=5, bytes=1.0))
    found = in_blocks(msgspec.structs.replace(one, stage=tied), 2)
    assert found.stage is not None
    assert found.stage.chunk_layers == (2, 2)
    assert found.stage.tied == Tied(layer=3, bytes=1.0)
    assert [layer.forward_s for layer in found.workload.layers] == [1.0 + 18.0, 2.0, 1.0, 2.0]
    assert [len(layer.tensor_bytes) for layer in found.workload.layers] == [1, 2, 1, 2]
    three = in_blocks(one, 3).stage
    assert three is not None
    assert three.chunk_layers == (3, 3)


def test_a_few_of_many_replicas_with_servers_have_blocks() -> None:
    """Each stage has 16 layers, of which four blocks are made; all replicas keep their layers."""
    made = work([(1.0, 2.0, 3e6, 1e-3)] * 32, 2)
    one = job_of_replicas(made, 2, arch="asp", workers=128, jitter=0.1)
    field = mean_field_of(one, replicas.build, replicas.devices_of)
    assert field is not None
    few, whole = field.graph, replicas.build(one)
    assert few.n_ops / few.n_groups < 0.6 * whole.n_ops / whole.n_groups


def test_layers_that_devices_divide_stay() -> None:
    """Their devices exchange sums after each of them."""
    one = make_job(model="gpt2-small", device="a100", arch="asp", workers=2, pipeline=2, tensor=2)
    part = replicas.stage_jobs(one)[0].job
    assert in_blocks(part, 2) is part
    alone = replicas.stage_jobs(msgspec.structs.replace(one, replica=Replica(pipeline=2)))[0].job
    assert len(in_blocks(alone, 2).workload.layers) == 2
