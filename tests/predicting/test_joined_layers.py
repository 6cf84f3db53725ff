"""Layers that are joined to blocks where workers may come to go from link to link together."""

from __future__ import annotations

import math

import msgspec
import pytest

from perfmodel.architectures.base import architecture_of
from perfmodel.architectures.mean_field import WAVE_BLOCKS, mean_field_of
from perfmodel.graph.op_graph import OpGraph
from perfmodel.inputs.job import Job
from perfmodel.inputs.replica import RoutedLayers, Sums, Tied
from perfmodel.predicting import fine, replicas
from perfmodel.training.blocks import in_blocks
from perfmodel.training.labels import QUEUE
from tests.engine.test_waves import both_ways
from tests.predicting.test_replicas import cluster, job as job_of_replicas, work


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


def test_what_devices_exchange_after_layers_follows_their_blocks_by_hand() -> None:
    """Two blocks of two layers. Seconds, bytes and waits are added up, at the lower rate of those
    that move bytes; two collectives wait in queues twice."""
    made = work([(1.0, 2.0, 3e6, 1e-3)] * 8, 2)
    one = replicas.stage_jobs(job_of_replicas(made, 2, arch="asp"))[0].job
    assert one.stage is not None
    each = (Sums(1.0), Sums(0.5, 4.0, 2.0), Sums(0.0, 1.0, 3.0), Sums(0.25, 2.0, 5.0))
    both = (Sums(1.5, 4.0, 2.0), Sums(0.25, 3.0, 3.0, collectives=2))
    apart, together = (1.0, 2.0, 3.0, 5.0), (3.0, 8.0)
    sums = ["forward_sums", "backward_sums", "forward_exchanges", "backward_exchanges"]
    sums += ["gradient_sums"]
    waits = ["forward_waits_s", "backward_waits_s"]
    routing = {"forward": each, "backward": each, waits[0]: apart, waits[1]: apart}
    given = dict.fromkeys(sums, each) | dict.fromkeys(waits, apart)
    stage = msgspec.structs.replace(one.stage, routing=RoutedLayers(7, **routing), **given)
    found = in_blocks(msgspec.structs.replace(one, stage=stage), 2).stage
    assert found is not None
    assert found.chunk_layers == (2,)
    assert [getattr(found, name) for name in sums] == [both] * 5
    assert [getattr(found, name) for name in waits] == [together] * 2
    assert found.routing == RoutedLayers(7, both, both, together, together)
    none = in_blocks(one, 2).stage
    assert none is not None
    assert none.routing is None
    assert none.forward_exchanges == none.forward_waits_s == ()


def test_a_block_keeps_what_gradients_of_weights_take() -> None:
    """A third of one layer's backward pass of 2 s, and half of another's."""
    made = work([(1.0, 2.0, 3e6, 1e-3)] * 4, 1)
    first = msgspec.structs.replace(made.layers[0], weight_gradient_s=2.0 / 3.0)
    made = msgspec.structs.replace(made, layers=(first, *made.layers[1:]))
    one = replicas.stage_jobs(job_of_replicas(made, 2, arch="asp"))[0].job
    (block,) = in_blocks(one, 1).workload.layers
    assert block.of_weights_s == pytest.approx(2.0 / 3.0 + 1.0)


def test_sums_of_a_block_wait_in_queues_as_often_as_those_of_its_layers() -> None:
    """A ring of three sends four messages for each of three layers in both passes, in each of two
    workers. The three devices count as one, with queues of 1.5 MB."""
    where = cluster(send_queue_bytes=0.5e6)
    made = work([(1.0, 2.0, 3e6, 1e-3)] * 3, 1)
    summed = {"forward_summed_bytes": 1e3, "backward_summed_bytes": 1e3}
    layers = [msgspec.structs.replace(layer, **summed) for layer in made.layers]
    made = msgspec.structs.replace(made, layers=tuple(layers))
    several = job_of_replicas(made, 1, tensor=3, arch="asp", workers=2, cluster=where)
    one = replicas.stage_jobs(several)[0].job
    for few, ops in ((one, 12), (in_blocks(one, 1), 4)):
        graph = architecture_of(few).build(few)
        waiting = [k for k in range(graph.n_ops) if graph.op_name(k).startswith(QUEUE)]
        assert len(waiting) == ops
        queued_bytes = graph.route_queued_bytes[graph.op_route[waiting]]
        assert queued_bytes.sum() == pytest.approx(2 * 2 * 3 * 4 * 1.5e6)
