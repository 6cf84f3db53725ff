"""Memory of workers and servers, by hand.

The model has 100 bytes of parameters, in layers of 10, 20, 30 and 40 bytes; gradients take as many.
Activations take 700 bytes, the optimizer's state 200 (two numbers per parameter, as with Adam), and
the module's buffers 3.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from perfmodel import Job, make_job, predict
from perfmodel.predicting.memory import memory_of
from perfmodel.results.memory import Footprint, Memory, Reserved
from tests.jobs import cluster, workload

SIZES = [10.0, 20.0, 30.0, 40.0]
WORK = msgspec.structs.replace(
    workload([1.0] * 4, [1.0] * 4, SIZES),
    activation_bytes=700.0,
    optimizer_state_bytes=200.0,
    buffer_bytes=3.0,
)


def job(arch: str, workers: int = 4, **more: Any) -> Job:
    return make_job(workload=WORK, cluster=cluster(), workers=workers, arch=arch, **more)


def memory(arch: str, workers: int = 4, **more: Any) -> Memory:
    return memory_of(job(arch, workers, **more))


PLAIN = 100.0 + 100.0 + 700.0 + 200.0 + 3.0
"""A replica: parameters 100, gradients 100, activations 700, optimizer 200, buffers 3."""


@pytest.mark.parametrize(
    ("arch", "options", "two", "eight"),
    [
        ("ring", {}, 100.0, 100.0),  # DDP's buckets
        ("ring", {"bucketing": "one"}, 100.0, 100.0),
        ("ring", {"bucketing": "layer"}, 0.0, 0.0),
        ("ring", {"bucketing": "horovod", "fusion_threshold_bytes": 64.0}, 64.0, 64.0),
        ("local_sgd", {}, 100.0, 100.0),  # the model in one piece
        ("p2p", {}, 100.0, 700.0),  # the gradients of every other worker
        # half or an eighth of the gradients of others; so much of the optimizer's state
        ("p2p", {"exchange": "sharded"}, 50.0 - 100.0, 87.5 - 175.0),
        ("d_psgd", {}, 100.0, 200.0),  # the models of one neighbour or two
        ("ad_psgd", {}, 200.0, 200.0),  # a received model, and one being sent
        ("gosgd", {"queue": 3}, 400.0, 400.0),  # a received model, and three that wait
        ("gosgd", {"probability": 0.0}, 0.0, 0.0),
        ("easgd", {}, 100.0, 100.0),  # the centre
        ("diloco", {}, 300.0, 300.0),  # outer parameters and momentum, a model in flight
        ("diloco", {"fragments": 2, "sent_as": "bf16"}, 235.0, 235.0),  # 30 + 40, in half the bits
        ("ps", {}, -200.0, -200.0),  # the optimizer is on the server
    ],
)
def test_what_a_worker_keeps_besides_a_replica(
    arch: str, options: dict[str, Any], two: float, eight: float
) -> None:
    for workers, more in ((2, two), (8, eight)):
        now = memory(arch, workers, options=options)
        assert now.worker_bytes == pytest.approx(PLAIN + more)
        assert (now.server_bytes is None) == (arch not in ("ps", "easgd"))
        assert predict(job(arch, workers, options=options), fidelity="coarse").memory == now
    if arch not in ("ps", "easgd"):
        assert memory(arch, 1, options=options).worker_bytes == PLAIN


@pytest.mark.parametrize("sync", ["bsp", "asp", "ssp"])
@pytest.mark.parametrize("workers", [1, 4])
def test_a_server_keeps_the_state_of_the_optimizer(sync: str, workers: int) -> None:
    """The worker: parameters 100, gradients 100, activations 700, buffers 3. The server: parameters
    100, optimizer 200, and 100 to receive the gradients of each worker."""
    found = memory("ps", workers, options={"sync": sync})
    assert found.worker_bytes == 100.0 + 100.0 + 700.0 + 3.0
    assert found.server_bytes == 100.0 + 200.0 + workers * 100.0


def test_two_servers_keep_half_each() -> None:
    """Half is 50 bytes of parameters, 100 of the optimizer, and 50 for each of four workers."""
    options = {"servers": 2, "split_above_bytes": 1.0}
    assert memory("ps", options=options).server_bytes == 50.0 + 100.0 + 4 * 50.0
    assert memory("easgd", options={"servers": 2}).server_bytes == 50.0 + 4 * 50.0


def test_whole_tensors_fill_one_server_more() -> None:
    """Largest first, each to the emptiest of three servers: 40, 30, and 20 + 10 bytes. Each byte of
    the fullest comes with two of the optimizer's state and one for each of four workers."""
    found = memory("ps", options={"servers": 3, "split_above_bytes": 1e9}).server_bytes
    assert found == 40.0 * (1.0 + 2.0 + 4.0)


def test_an_uneven_server_holds_half_of_each_tensor_on_top_of_its_share() -> None:
    """Of two servers it has half of the other half, too: 50 + 25 bytes."""
    options = {"servers": 2, "split_above_bytes": 1.0, "uneven": 0.5}
    assert memory("ps", options=options).server_bytes == 75.0 * (1.0 + 2.0 + 4.0)


def test_an_elastic_server_keeps_a_centre_and_no_optimizer() -> None:
    """The centre is 100 bytes, and there are 100 to receive the difference of each of four."""
    found = memory("easgd", options={"servers": 1})
    assert found.server_bytes == 100.0 + 4 * 100.0
    assert found.worker_bytes == PLAIN + 100.0


def test_an_outer_optimizer_keeps_parameters_and_momentum() -> None:
    """100 bytes each, and 100 in flight: on every worker; or the momentum on the server, with the
    parameters and 100 to receive from each of four."""
    found = memory("diloco", options={"exchange": "all_reduce"})
    assert (found.worker_bytes, found.server_bytes) == (PLAIN + 300.0, None)
    assert found.worker.model_copies_bytes == {
        "outer parameters": 100.0, "outer momentum": 100.0, "fragment in flight": 100.0
    }  # fmt: skip
    found = memory("diloco", options={"exchange": "server"})
    assert (found.worker_bytes, found.server_bytes) == (PLAIN + 200.0, 200.0 + 4 * 100.0)


@pytest.mark.parametrize(
    ("stage", "expected"),
    [
        # a quarter of the optimizer's state; parameters and gradients whole
        (1, 200.0 / 4 + 100.0 + 100.0),
        # a quarter of the gradients, and the 40 of the largest unit, which is being reduced
        (2, 200.0 / 4 + (100.0 / 4 + 40.0) + 100.0),
        # the same for parameters: a quarter, and the two largest units, one of them prefetched
        (3, 200.0 / 4 + (100.0 / 4 + 40.0) + (100.0 / 4 + 40.0 + 30.0)),
    ],
)
def test_shards_of_four_workers(stage: int, expected: float) -> None:
    options = {"stage": stage, "unit_bytes": 1.0, "prefetch": 1}
    assert memory("fsdp", options=options).worker_bytes == expected + 700.0 + 3.0


def test_shards_of_one_worker_are_the_whole_model() -> None:
    for stage in (1, 2, 3):
        found = memory("fsdp", 1, options={"stage": stage, "unit_bytes": 1.0})
        assert found.worker_bytes == 100.0 + 100.0 + 700.0 + 200.0 + 3.0


def test_devices_of_an_island_share_its_part_in_the_exchange() -> None:
    """Each of two devices is a replica with buckets, and keeps half of the outer parameters and
    momentum, and of what is in flight."""
    where = cluster(devices_per_node=2)
    made = make_job(
        workload=WORK, cluster=where, workers=2, arch="diloco", island_devices=2,
        options={"exchange": "all_reduce"},
    )  # fmt: skip
    assert memory_of(made).worker_bytes == PLAIN + 100.0 + (100.0 + 100.0 + 100.0) / 2


def test_a_server_of_islands_keeps_one_buffer_for_each() -> None:
    """Two islands of two devices: a worker of the server is an island."""
    where = cluster(devices_per_node=2)
    made = make_job(workload=WORK, cluster=where, workers=2, arch="ps", island_devices=2)
    found = memory_of(made)
    assert found.server_bytes == 100.0 + 200.0 + 2 * 100.0


@pytest.mark.parametrize(
    ("activations", "fits", "note"),
    [
        (0.0, 0.922, ""),  # 10 GB: log(12.885 / 11.263) / log(13.163 / 11.263) x 1.645 = 1.420
        (0.9e9, 0.722, "may not fit: a worker reserves 11.74 GB to 14.25 GB, k80 has 12.88 GB; "
         "it fits with a probability of 72%"),  # 10.9 GB: 0.0562 / 0.1570 x 1.645 = 0.589
        (2.9e9, 0.0, "does not fit: a worker reserves about 14.22 GB, "
         "1.1 times the 12.88 GB of k80"),  # -0.0986 / 0.0370 x 1.645 = -4.4
        (1.6e9, 0.486, "does not fit: a worker reserves about 12.89 GB, "
         "just above the 12.88 GB of k80"),  # 11.6 GB: -0.00078 / 0.0367 x 1.645 = -0.035
    ],
)  # fmt: skip
def test_a_device_that_is_too_small_is_named(activations: float, fits: float, note: str) -> None:
    """2 GB of parameters, as many of gradients and of buckets, and 4 of the optimizer, of 12 GiB.

    Reserved are 0.98, 1.02 and 1.21 times as much, 1 GB, and a communicator's two channels of three
    connections of 10 MiB, 0.0629 GB (5 %, 50 %, 95 %).
    """
    work = msgspec.structs.replace(
        workload([1.0], [1.0], [2e9]),
        device="k80",
        optimizer_state_bytes=4e9,
        activation_bytes=activations,
    )
    made = make_job(workload=work, cluster=cluster(), workers=2, arch="ring")
    prediction = predict(made, fidelity="coarse")
    assert prediction.memory.fits == pytest.approx(fits, abs=0.0006)
    assert prediction.memory.shortage("k80") == note
    assert (note in prediction.notes) is bool(note)


def test_half_of_all_runs_reserve_less_than_the_median() -> None:
    reserved = Reserved(8e9, 10e9, 15e9)
    chances = [reserved.below(size) for size in (8e9, 10e9, 15e9)]
    assert chances == pytest.approx([0.05, 0.5, 0.95])
    assert [reserved.quantile(chance) for chance in (0.05, 0.5, 0.95)] == pytest.approx(
        [8e9, 10e9, 15e9]
    )
    certain = Reserved(9e9, 9e9, 9e9)
    assert certain.quantile(0.99) == 9e9
    assert [certain.below(size) for size in (8.9e9, 9e9, 9.1e9)] == [0.0, 1.0, 1.0]


def test_a_process_without_an_allocator_fits_or_does_not() -> None:
    for has, fits in ((7e9, 1.0), (5e9, 0.0)):
        made = Memory.of(Footprint(parameters_bytes=6e9), None, has)
        assert made.fits == fits
    assert (
        made.shortage("it") == "does not fit: a worker needs about 6 GB, 1.2 times the 5 GB of it"
    )
    assert Memory.of(Footprint(parameters_bytes=6e9), None, None).shortage("it") == ""


def test_a_workload_made_of_layers_has_parameters_and_gradients_only() -> None:
    work = workload([1.0], [1.0], [100.0])
    made = make_job(workload=work, cluster=cluster(), workers=2, arch="ring")
    assert memory_of(made).worker.buckets_bytes == 100.0
    assert memory_of(made).worker_bytes == 100.0 + 100.0 + 100.0
