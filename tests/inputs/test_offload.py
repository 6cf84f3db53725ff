"""Updates by the host, by hand: 1e9 parameters under Adam in 16 bits, with masters in 32."""

from __future__ import annotations

import itertools
from typing import Any

import msgspec
import pytest

from perfmodel import Job, make_job, predict
from perfmodel.inputs.offload import COPY_BYTES_PER_S, MEMORY_BYTES_PER_S, offload_of
from perfmodel.inputs.storage import Storage
from perfmodel.predicting.replicas import stage_jobs
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
    found = offload_of(job().workload, job().cluster, 1)
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
    one, eight = (offload_of(job(devices=8).workload, job(devices=8).cluster, n) for n in (1, 8))
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


def chain(*copies_s: float, **given: Any) -> Job:
    """Layers of a second forward and a second backward, whose gradients of 16 bits take so long to
    copy."""
    work = workload([1.0] * len(copies_s), [1.0] * len(copies_s),
                    [2.0 * COPY_BYTES_PER_S * size for size in copies_s])  # fmt: skip
    storage = Storage(optimizer="sgd", policy="bf16_master", offload=True)
    where = msgspec.structs.replace(cluster(1e30), devices_per_node=1)
    return make_job(workload=msgspec.structs.replace(work, storage=storage), cluster=where,
                    **{"arch": "allreduce", "workers": 1, **given})  # fmt: skip


def host_s(job: Job) -> float:
    """Seconds of the update on the host, and of the copy back of 2 of 4 bytes."""
    values = job.workload.gradient_bytes / 4.0
    return 12.0 * values / MEMORY_BYTES_PER_S + 2.0 * values / COPY_BYTES_PER_S


@pytest.mark.parametrize("arch", ["allreduce", "local_sgd", "d_psgd", "gosgd", "zero2", "zero3"])
@pytest.mark.parametrize("workers", [1, 2])
def test_copies_hide_behind_the_backward_pass(arch: str, workers: int) -> None:
    """Three layers: those of the last two take 0.5 and 0.9 s, less than a second of backward each;
    that of the first, 0.3 s, is left. Two workers that share states copy half of each."""
    made = chain(0.3, 0.9, 0.5, arch=arch, workers=workers)
    parts = workers if arch.startswith("zero") else 1
    expected = 6.0 + (0.3 + host_s(made)) / parts
    for fidelity in ("fine", "coarse"):
        assert predict(made, fidelity=fidelity).iteration_s == pytest.approx(expected)


def test_copies_follow_each_other_on_their_link() -> None:
    """Layers 2 and 1 are complete 1 and 2 s into the backward pass, and copied from 1 to 3 and from
    3 to 6 s; the first is complete after 3 s, and copied from 6 to 6.5 s. Formulas leave that out,
    and so are not chosen."""
    made = chain(0.5, 3.0, 2.0)
    host = made.host_update
    assert host is not None
    assert host.late_s([1.0, 1.0, 1.0]) == pytest.approx(3.0)
    assert host.late_s([1.0, 1.0, 1.0], parts=10) == 0.0
    found = predict(made, fidelity="fine")
    assert found.iteration_s == pytest.approx(3.0 + 6.5 + host_s(made))
    spans = [(op.start_s, op.end_s) for op in found.timeline().operations
             if op.kind == "gradients to host"]  # fmt: skip
    begin = spans[0][0] - 4.0
    times = [time - begin for span in spans[:3] for time in span]
    assert times == pytest.approx([4.0, 6.0, 6.0, 9.0, 9.0, 9.5])
    assert predict(made, fidelity="auto").fidelity == "fine"
    assert predict(chain(0.3, 0.9, 0.5), fidelity="auto").fidelity == "coarse"


def test_links_to_the_host_are_busy_while_they_copy() -> None:
    made = chain(0.5, 3.0, 2.0)
    found = predict(made, fidelity="fine")
    use = found.utilisation.links
    step_s = 3.0 + 6.5 + host_s(made)
    assert use["link to the host of worker 0"] == pytest.approx(5.5 / step_s)
    assert use["link from the host of worker 0"] == pytest.approx(5.5 / step_s)


def test_devices_that_divide_a_layer_copy_a_part_each() -> None:
    """Two of them: each has half of the layers, and half of the rate of the host's memory."""
    given: dict[str, Any] = {"model": "gpt2-small", "device": "a100", "batch_size": 4, "workers": 1,
                             "optimizer": "adam", "precision_policy": "bf16_master"}  # fmt: skip
    whole, parts = (make_job(**given, tensor=tensor, offload_optimizer=True) for tensor in (1, 2))
    alone = whole.host_update
    (stage,) = stage_jobs(parts)
    divided = stage.job.host_update
    assert alone is not None
    assert divided is not None
    assert divided.parameters_s == pytest.approx(alone.parameters_s / 2)
    assert divided.gradients_s == pytest.approx(alone.gradients_s / 2)
    assert divided.update_s == pytest.approx(alone.update_s)


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
