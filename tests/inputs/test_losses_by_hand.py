"""Usual losses of jobs of two to eight workers: steps and times by hand."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import numpy as np
import pytest

from perfmodel import Cluster, Handover, IntraNode, Job, Link, Source, make_job, predict
from perfmodel.inputs.usual_losses import with_losses
from perfmodel.theory.order_statistics import normal_maximum
from tests.jobs import workload

WORK = workload([0.1, 0.1], [0.2, 0.2], [3e8, 1e8])
"""0.6 s of computing, 400 MB in two tensors, the larger in the first layer."""


def box(devices: int = 8, **more: Any) -> Cluster:
    """Nodes of ``devices``, whose ports of 1 TB/s take next to no time."""
    given: dict[str, Any] = {
        "name": "box",
        "nic": Link(1.25e9),
        "devices_per_node": devices,
        "intra_node": IntraNode(1e12, kind="per_device"),
        "source": Source("exact", "by hand"),
    }
    return Cluster(**given | more)


def job(where: Cluster, workers: int, **more: Any) -> Job:
    given = {"workload": WORK, "cluster": where, "workers": workers, "arch": "ring"} | more
    return make_job(**given)


def step_s(where: Cluster, workers: int, **more: Any) -> float:
    return predict(job(where, workers, **more)).iteration_s


# -- handover of gradients -------------------------------------------------------------------------


def test_gradients_are_handed_over_by_tensor_and_by_byte() -> None:
    """Two tensors at 10 ms, and 400 MB at 1 ns per byte: 0.02 + 0.4 s."""
    where = box(handover=Handover(0.01, 1e-9))
    one = {"options": {"bucketing": "one"}}
    assert step_s(where, 2, **one) - step_s(box(), 2, **one) == pytest.approx(0.42)
    assert step_s(where, 1) == pytest.approx(0.6)  # a single worker hands over nothing


def test_a_gradient_is_handed_over_before_it_is_sent() -> None:
    """On two nodes, backward takes 0.2 + 0.11 s for the last layer's 100 MB, then 0.2 + 0.31 s for
    the first's 300 MB, which only then take 0.3 s each way at 1 GB/s. The last layer's are hidden.
    """
    slow = box(1, intra_node=None, nic=Link(1e9), handover=Handover(0.01, 1e-9))
    found = step_s(slow, 2, options={"bucketing": "layer"})
    assert found == pytest.approx(0.2 + 0.31 + 0.51 + 0.3, rel=1e-6)


@pytest.mark.parametrize(
    ("arch", "options", "share"),
    [("local_sgd", {"period": 4}, 1 / 4), ("easgd", {"period": 2}, 1 / 2), ("bsp", {}, 1.0)],
)
def test_models_are_handed_over_as_often_as_they_are_exchanged(
    arch: str, options: dict[str, Any], share: float
) -> None:
    plain = job(box(), 2, arch=arch, options=options).device_work.compute_s
    busy = job(box(handover=Handover(0.01, 1e-9)), 2, arch=arch, options=options)
    assert busy.device_work.compute_s - plain == pytest.approx(share * 0.42)


# -- neighbours ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("workers", "beside"), [(1, 0), (2, 1), (8, 7)])
def test_each_neighbour_slows_a_device_down(workers: int, beside: int) -> None:
    """By 1 % of 0.6 s each."""
    where = box(slowdown_per_neighbour=0.01)
    found = predict(job(where, workers))
    assert found.compute_s == pytest.approx(0.6 * (1.0 + 0.01 * beside))
    assert [job(where, workers).slowdown(k) for k in range(workers)] == pytest.approx(
        [1.0 + 0.01 * beside] * workers
    )


def test_a_node_that_is_not_full_is_faster() -> None:
    """Six workers on nodes of four: three neighbours on the first, one on the second. Handing over
    is slowed down like all computing; the step is that of the full node."""
    where = box(4, nic=Link(1e15), slowdown_per_neighbour=0.05)
    asked = job(where, 6)
    assert [asked.slowdown(k) for k in range(6)] == pytest.approx([1.15] * 4 + [1.05] * 2)
    assert predict(asked).iteration_s == pytest.approx(0.6 * 1.15, rel=2e-3)


# -- devices that differ ---------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [2, 8, 64])
def test_the_slowest_of_some_devices_is_as_slow_as_drawn(workers: int) -> None:
    """Speeds that vary by 2 %: the slowest of n is 2 % times the largest of n normal numbers
    slower, 0.56, 1.42 and 2.35 standard deviations for 2, 8 and 64."""
    rng = np.random.default_rng(3)
    drawn = float(rng.normal(size=(20_000, workers)).max(axis=1).mean())
    assert normal_maximum(workers) == pytest.approx(drawn, abs=0.03)
    where = box(64, device_spread=0.02)
    assert predict(job(where, workers)).compute_s == pytest.approx(
        0.6 * (1.0 + 0.02 * drawn), rel=1e-3
    )


def test_asynchronous_devices_go_at_their_mean_pace() -> None:
    where = box(1, intra_node=None, nic=Link(1e15), device_spread=0.1)
    assert predict(job(where, 8, arch="asp")).iteration_s == pytest.approx(0.6, rel=1e-3)
    assert job(where, 8, arch="bsp").slowdown(0) == pytest.approx(1.0 + 0.1 * normal_maximum(8))


# -- sockets ---------------------------------------------------------------------------------------


def test_sockets_carry_their_ceiling_by_hand() -> None:
    """Two nodes exchange 400 MB each way in one message: at 12.5 GB/s in 32 ms; over TCP, which
    carries 1.8 GB/s, in 222 ms."""
    options = {"bucketing": "one", "overlap": False}
    plain = box(1, intra_node=None, nic=Link(12.5e9), source=Source("estimated", "a sheet"))
    kept = {"losses": "none"}
    fast = step_s(msgspec.structs.replace(plain, **kept), 2, options=options)
    assert fast == pytest.approx(0.6 + 4e8 / 12.5e9)
    sockets = msgspec.structs.replace(
        plain, nic=Link(12.5e9, 25e-6), handover=Handover(0.0, 1e-18), device_spread=1e-12
    )
    found = step_s(sockets, 2, options=options)
    assert found == pytest.approx(0.6 + 4e8 / 1.8e9, rel=1e-3)


def test_several_links_of_a_node_have_a_ceiling_each() -> None:
    lossy, _ = with_losses(box(nic=Link(5e9, 25e-6), source=Source("published", "a sheet")), None)
    assert lossy.nic.times(4).goodput_bytes_per_s == pytest.approx(4 * 1.8e9)


# -- everything ------------------------------------------------------------------------------------


def test_a_pair_of_unknown_devices_by_hand() -> None:
    """Per tensor 10 us and per byte 25 / 900 GB/s, 1.1 ms + 20 us; a neighbour costs 0.4 %, and the
    slower of two is 1 % of 0.56 to 0.59 standard deviations slower than the mean. Servers take 0.1
    ms per tensor and 0.8 ns per byte."""
    where = box(2, source=Source("estimated", "a sheet"))
    lossy, notes = with_losses(where, None)
    assert lossy.handover.seconds(2, 4e8) == pytest.approx(2 * 10e-6 + 25 * 4e8 / 900e9)
    assert (lossy.slowdown_per_neighbour, lossy.device_spread) == (0.004, 0.01)
    update = lossy.server.update_per_tensor_s, lossy.server.update_per_byte_s
    assert update == (0.1e-3, 0.8e-9)
    slower = 1.004 * (1.0 + 0.01 * 0.589)
    assert predict(job(where, 2)).compute_s == pytest.approx(
        (0.6 + 20e-6 + 25 * 4e8 / 900e9) * slower, rel=1e-4
    )
    assert {note.name for note in notes} == {
        "handover per tensor", "handover per byte", "slowdown per neighbour", "device spread",
        "update per tensor", "update per byte",
    }  # fmt: skip


def test_the_slower_of_two_devices_is_known_exactly() -> None:
    """1 / sqrt(pi) = 0.564 standard deviations; the formula is within 0.026 of it."""
    assert normal_maximum(2) == pytest.approx(1.0 / math.sqrt(math.pi), abs=0.026)
