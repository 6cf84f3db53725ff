"""Usual losses: where they apply, and what they add, by hand."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest

from perfmodel import Cluster, Handover, IntraNode, Link, Source, make_job, predict
from perfmodel.catalogue import catalogue
from perfmodel.inputs.profile import Gradients, Profile, Timing
from perfmodel.inputs.usual_losses import (
    DEVICE_SPREAD,
    HOST_BYTES_PER_S,
    SLOWDOWN_PER_NEIGHBOUR,
    SOCKETS_BYTES_PER_S,
    applies_to,
    handover_of,
    with_losses,
)
from perfmodel.theory.order_statistics import normal_maximum

PAIR = IntraNode(56.25e9, 1.9e-6, 0.8, kind="per_device", interconnect="nvlink")
PCIE = IntraNode(31.5e9, 2.5e-6, 0.5, kind="per_device", interconnect="pcie")


def nominal(kind: Any = "estimated", **fields: Any) -> Cluster:
    given = {"nic": Link(1.25e9, 25e-6), "devices_per_node": 2, "intra_node": PAIR} | fields
    return Cluster(name="box", source=Source(kind, "a data sheet"), **given)


def workload(gradient_bytes: float = 1.4e9, tensors: int = 290, step_s: float = 0.124) -> Profile:
    source = Source("measured", "one device")
    timing = Timing(device="gpu", batch_size=4, step_s=step_s, source=source)
    gradients = Gradients(bytes=gradient_bytes, tensors=tensors)
    return Profile(name="lm", gradients=gradients, timings=(timing,), source=source)


def step_s(cluster: Cluster, profile: Profile | None = None, **more: Any) -> float:
    given = {"workload": profile or workload(), "cluster": cluster, "arch": "ring", "workers": 2}
    return predict(make_job(**given | more)).iteration_s


@pytest.mark.parametrize("kind", ["estimated", "published", "measured", "exact"])
def test_only_nominal_figures_have_losses(kind: Any) -> None:
    assert applies_to(nominal(kind)) is (kind in ("estimated", "published"))
    assert applies_to(nominal(kind, losses="usual"))
    assert not applies_to(nominal(kind, losses="none"))


def test_a_pair_on_nvlink_by_hand() -> None:
    """290 tensors of 1.4 GB: 10 us each, and 25 bytes of memory traffic per byte at 900 GB/s. The
    sends hide behind the backward pass, but for the last bucket."""
    slower = (1.0 + SLOWDOWN_PER_NEIGHBOUR) * (1.0 + DEVICE_SPREAD * normal_maximum(2))
    expected = 0.124 * slower + (290 * 10e-6 + 25.0 / 900e9 * 1.4e9) * slower
    found = step_s(nominal())
    assert expected < found < expected + 1e-3
    assert step_s(nominal(losses="none")) == pytest.approx(0.124, rel=0.01)  # canary


def test_every_loss_is_listed_with_its_unit() -> None:
    found = make_job(workload=workload(), cluster=nominal(), arch="ring", workers=2).assumptions
    lost = [(one.name, one.value, one.unit) for one in found if one.source.startswith("usual")]
    assert sorted(lost) == [
        ("device spread", DEVICE_SPREAD, ""),
        ("handover per byte", pytest.approx(25.0 / 900e9), "s/byte"),
        ("handover per tensor", 10e-6, "s"),
        ("slowdown per neighbour", SLOWDOWN_PER_NEIGHBOUR, ""),
    ]


def test_a_faster_memory_hands_over_faster() -> None:
    h100, v100 = (handover_of(catalogue.device(name)) for name in ("h100", "v100"))
    assert h100.per_tensor_s == v100.per_tensor_s
    assert v100.per_byte_s / h100.per_byte_s == pytest.approx(3350 / 900)
    known = IntraNode(450e9, kind="per_device", interconnect="nvlink")
    assert handover_of(None, known).per_byte_s == pytest.approx(25.0 / (7.0 * 450e9))


def test_a_geforce_pair_copies_through_the_host_by_hand() -> None:
    """Each sends the bytes once, both over the same 14 GB/s, after the backward pass."""
    box = nominal(intra_node=PCIE)
    job = make_job(
        workload=workload(step_s=0.38), device="rtx3090", cluster=box, arch="ring", workers=2,
        one_device_step_s=0.38,
    )  # fmt: skip
    assert job.options.overlap is False
    slower = (1.0 + SLOWDOWN_PER_NEIGHBOUR) * (1.0 + DEVICE_SPREAD * normal_maximum(2))
    handover_s = 290 * 10e-6 + 25.0 / 936e9 * 1.4e9
    expected = (0.38 + handover_s) * slower + 2 * 1.4e9 / HOST_BYTES_PER_S
    assert predict(job).iteration_s == pytest.approx(expected, rel=0.005)
    direct = make_job(
        workload=workload(step_s=0.38), device="rtx8000", cluster=box, arch="ring", workers=2,
        one_device_step_s=0.38,
    )  # fmt: skip
    assert direct.cluster.intra_node == PCIE
    assert predict(direct).iteration_s < 0.75 * predict(job).iteration_s


def test_what_is_given_about_overlap_holds() -> None:
    box = nominal(intra_node=PCIE)
    given = {"workload": workload(), "device": "gpu", "cluster": "pcie-host", "workers": 2}
    assert make_job(**given, arch="ddp").options.overlap is False
    assert make_job(**given, arch="ddp", options={"overlap": True}).options.overlap is True
    assert make_job(**{**given, "cluster": box}, arch="ddp").options.overlap is True
    several = make_job(**{**given, "workers": 16}, arch="ddp")
    assert several.options.overlap is True  # the network between nodes is the slower part


@pytest.mark.parametrize("gbps", [40, 400, 800])
def test_sockets_have_a_ceiling(gbps: float) -> None:
    nic = Link(gbps * 1.25e8, 25e-6)
    lossy, notes = with_losses(nominal(nic=nic), None)
    assert lossy.nic.goodput_bytes_per_s == SOCKETS_BYTES_PER_S
    assert "sockets" in [note.name for note in notes]
    rdma, _ = with_losses(nominal(nic=Link(gbps * 1.25e8, 5e-6)), None)
    assert rdma.nic.goodput_bytes_per_s == gbps * 1.25e8
    slow, notes = with_losses(nominal(nic=Link(1.25e9, 25e-6)), None)
    assert slow.nic.goodput_bytes_per_s == 1.25e9
    assert "sockets" not in [note.name for note in notes]


def test_another_latency_does_not_turn_rdma_into_sockets() -> None:
    """The cluster decides what its links are; only a latency that TCP cannot have decides more."""
    given = {"model": "resnet50", "device": "v100", "arch": "ring", "workers": 4}
    rdma = make_job(**given, cluster="ethernet-100g", latency_s=28e-6)
    assert rdma.cluster.nic.ceiling_bytes_per_s is None
    for latency_s, limit in ((12.5e-6, SOCKETS_BYTES_PER_S), (5e-6, None)):
        job = make_job(
            **given, cluster="ethernet-10g", bandwidth_bytes_per_s=12.5e9, latency_s=latency_s
        )
        assert job.cluster.nic.ceiling_bytes_per_s == limit


def test_values_that_are_given_are_kept() -> None:
    own = nominal(handover=Handover(1e-6, 0.0), slowdown_per_neighbour=0.1, device_spread=0.05)
    lossy, _ = with_losses(own, None)
    assert lossy.handover == own.handover
    assert (lossy.slowdown_per_neighbour, lossy.device_spread) == (0.1, 0.05)
    again, notes = with_losses(lossy, None)
    assert (again, notes) == (lossy, [])


def test_devices_measured_among_several_lose_nothing_more() -> None:
    lossy, _ = with_losses(nominal(), None, among_several=True)
    assert lossy.handover == Handover()
    assert lossy.slowdown_per_neighbour == lossy.device_spread == 0.0
    job = make_job(model="llama-7b", device="a100-80", arch="zero3", workers=16)
    assert job.workload.among_several
    assert job.pace == 1.0


def test_servers_are_busy_with_each_byte() -> None:
    """One worker, one server, 100 MB at 1 GB/s each way: 0.1 s there, 80 ms of work, 0.1 s back."""
    where = nominal(
        devices_per_node=1, intra_node=None, nic=Link(1e9, 25e-6), handover=Handover(0.0, 1e-15)
    )
    given = {"arch": "ps", "workers": 1, "options": {"overlap": False, "split_above_bytes": 1e12}}
    busy = step_s(where, workload(1e8, 1), **given)
    idle = step_s(msgspec.structs.replace(where, losses="none"), workload(1e8, 1), **given)
    assert busy - idle == pytest.approx(0.1e-3 + 1e8 * 0.8e-9, rel=1e-3)


@pytest.mark.parametrize("workers", [2, 64, 1024])
def test_the_slowest_device_sets_the_pace_of_synchronous_jobs(workers: int) -> None:
    job = make_job(
        model="resnet50",
        device="a100",
        batch_size=64,
        precision="tf32",
        workers=workers,
        arch="ring",
    )
    assert job.pace == pytest.approx(1.0 + 0.01 * normal_maximum(workers))
    free = make_job(model="resnet50", device="a100", workers=workers, arch="asp")
    assert free.pace == 1.0
    exact = math.sqrt(2.0 * math.log(workers))
    assert normal_maximum(workers) < exact  # the largest of n is below this bound


def test_every_data_centre_device_has_a_node() -> None:
    for name in ("p100", "v100", "v100-32", "a100", "a100-80", "h100", "h200", "b200", "mi300x"):
        assert make_job(model="gpt2-small", device=name, workers=8).cluster.devices_per_node == 8
