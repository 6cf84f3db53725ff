"""Updates by the host, by hand: 1e9 parameters under Adam in 16 bits, with masters in 32."""

from __future__ import annotations

import itertools
from typing import Any

import msgspec
import pytest

from perfmodel import Job, make_job, predict
from perfmodel.inputs.offload import COPY_BYTES_PER_S, MEMORY_BYTES_PER_S, offload_of
from perfmodel.inputs.storage import Storage
from tests.jobs import cluster, workload

VALUES = 1e9


def job(*, offload: bool = True, devices: int = 1, **given: Any) -> Job:
    storage = Storage(optimizer="adam", policy="bf16_master", offload=offload)
    work = msgspec.structs.replace(
        workload([0.3], [0.6], [4.0 * VALUES], optimizer_s=0.01),
        storage=storage,
        optimizer_state_bytes=8.0 * VALUES,
    )
    where = msgspec.structs.replace(cluster(), devices_per_node=devices)
    return make_job(workload=work, cluster=where, **{"arch": "allreduce", "workers": 1, **given})


def test_states_masters_and_gradients_cross_the_memory_of_the_host() -> None:
    """28 bytes per parameter: 8 of states and 4 of masters twice, 4 of gradients; the copies take 2
    bytes of the last tensor's gradient, which here is all, and 2 of parameters."""
    found = offload_of(job().workload, job().cluster)
    assert found.update_s == pytest.approx(28.0 * VALUES / MEMORY_BYTES_PER_S)
    assert found.update_s == pytest.approx(0.25, rel=0.05)  # Ren et al.: a quarter of a second
    copy_s = 2.0 * VALUES / COPY_BYTES_PER_S
    assert (found.gradients_s, found.parameters_s) == pytest.approx((copy_s, copy_s))


@pytest.mark.parametrize("fidelity", ["fine", "coarse"])
def test_the_update_follows_the_backward_pass(fidelity: Any) -> None:
    expected = 0.3 + 0.6 + 28.0 * VALUES / MEMORY_BYTES_PER_S + 4.0 * VALUES / COPY_BYTES_PER_S
    assert predict(job(), fidelity=fidelity).iteration_s == pytest.approx(expected)
    assert predict(job(offload=False), fidelity=fidelity).iteration_s == pytest.approx(0.91)


def test_devices_of_a_node_share_the_memory_of_its_host() -> None:
    one, eight = (offload_of(job(devices=n).workload, job(devices=n).cluster) for n in (1, 8))
    assert eight.update_s == pytest.approx(8.0 * one.update_s)
    assert eight.parameters_s == one.parameters_s


@pytest.mark.parametrize("arch", ["allreduce", "p2p", "local_sgd", "gosgd", "diloco"])
def test_every_architecture_with_an_optimizer_waits_for_the_host(arch: str) -> None:
    plain, moved = (
        predict(job(offload=offload, arch=arch), fidelity="fine").iteration_s
        for offload in (False, True)
    )
    more_s = 28.0 * VALUES / MEMORY_BYTES_PER_S + 4.0 * VALUES / COPY_BYTES_PER_S - 0.01
    assert moved - plain == pytest.approx(more_s)


@pytest.mark.parametrize(
    ("arch", "shards"),
    [
        *(("allreduce", 1), ("d_psgd", 1), ("local_sgd", 1), ("gosgd", 1), ("diloco", 1)),
        *(("easgd", 1), ("ad_psgd", 1), ("zero2", 2), ("zero3", 2)),
    ],
)
def test_copies_and_the_update_are_operations(arch: str, shards: int) -> None:
    """The host's 0.243 s lie between two copies of 0.08 s; workers that share states do half."""
    one = job(arch=arch, workers=2)
    nic = msgspec.structs.replace(one.cluster.nic, bandwidth_bytes_per_s=1e12)
    one = msgspec.structs.replace(one, cluster=msgspec.structs.replace(one.cluster, nic=nic))
    done = predict(one, fidelity="fine").timeline().operations
    kinds = ("gradients to host", "update on host", "parameters from host")
    ops = [op for op in done if op.kind in kinds and op.name.endswith("worker 0")]
    first = next(place for place, op in enumerate(ops) if op.kind == kinds[0])
    parts = ops[first : first + 3]
    assert [op.kind for op in parts] == list(kinds)
    copy_s, update_s = 2.0 * VALUES / COPY_BYTES_PER_S, 28.0 * VALUES / MEMORY_BYTES_PER_S
    took = [float(op.end_s - op.start_s) * shards for op in parts]
    assert took == pytest.approx([copy_s, update_s, copy_s])
    assert all(a.end_s == pytest.approx(b.start_s) for a, b in itertools.pairwise(parts))
    assert not any(op.kind == "optimizer" for op in done)


@pytest.mark.parametrize("arch", ["allreduce", "d_psgd", "zero2"])
def test_messages_are_complete_before_gradients_are_copied(arch: str) -> None:
    """One byte per second: the exchange outlasts everything else."""
    done = predict(job(arch=arch, workers=2), fidelity="fine").timeline().operations
    received = {"allreduce": "all-reduce", "d_psgd": "send", "zero2": "reduce-scatter"}[arch]
    for op in done:
        if op.kind == "gradients to host":
            ends = [o.end_s for o in done if o.kind == received and o.iteration == op.iteration]
            assert max(ends) <= op.start_s + 1e-6


def test_workers_that_share_states_update_a_part_each() -> None:
    """Eight on one node: each updates an eighth with an eighth of the memory's bandwidth."""
    given: dict[str, Any] = {
        "model": "gpt2-xl", "device": "a100", "workers": 8, "batch_size": 1, "arch": "zero2",
        "optimizer": "adam", "precision_policy": "bf16_master",
    }  # fmt: skip
    plain, moved = (make_job(**given, offload_optimizer=offload) for offload in (False, True))
    more_s = predict(moved).iteration_s - predict(plain).iteration_s
    values = plain.workload.gradient_bytes / 4.0
    on_host_s = 28.0 * values / MEMORY_BYTES_PER_S
    assert more_s == pytest.approx(on_host_s, rel=0.15)  # less its own update, and with copies
    assert any(note.name == "offload_optimizer" for note in moved.workload.assumptions)


def test_islands_that_servers_update_do_not_wait_for_a_host() -> None:
    """Two islands of two devices, whose parameters servers update after each step."""
    plain, moved = (
        job(offload=offload, devices=2, arch="ps", workers=2, island_devices=2).islands[0].step_s
        for offload in (False, True)
    )
    assert plain == pytest.approx(0.9)
    assert moved == pytest.approx(0.9)
