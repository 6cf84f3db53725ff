"""Asynchronous workers of a full server, simulated."""

from __future__ import annotations

from typing import Any

import pytest

from perfmodel import Job, Prediction, make_job, predict
from perfmodel.theory import incast
from tests import queueing


def asynchronous(workers: int, jitter: float, **given: Any) -> Job:
    options = {"sync": "asp"} | given.pop("options", {})
    return make_job(
        device="v100", arch="ps", workers=workers, jitter=jitter, options=options, **given
    )


def simulated(job: Job, rel_ci: float = 0.01) -> Prediction:
    return predict(job, fidelity="fine", rel_ci=rel_ci)


def share_of_formula(jitter: float) -> float:
    """AlexNet's throughput over that of a full server."""
    job = asynchronous(16, jitter, model="alexnet", bandwidth="1Gbps")
    known = predict(job, fidelity="coarse").throughput_samples_per_s
    return simulated(job).throughput_samples_per_s / known


def test_workers_that_vary_do_not_fall_into_step() -> None:
    """Out of step, pushes and pulls use both directions of the server's link at once. The tensor of
    151 MB that all push keeps its update thread busy, and would gather them."""
    assert 16 / 17 < share_of_formula(0.05) < 1.01


@pytest.mark.slow
def test_canary_exactly_equal_shares_keep_them_in_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(incast, "NEARLY_EQUAL", 0.0)
    assert share_of_formula(0.06) < 0.65  # another job, as simulations are kept


def test_shares_of_pushes_are_nearly_equal() -> None:
    shares = incast.drawn(1000, incast.NEARLY_EQUAL, seed=0, link=0)
    assert shares.std() / shares.mean() == pytest.approx(0.02, rel=0.01)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [2, 4, 8])
def test_without_overlap_a_server_is_two_stations(workers: int) -> None:
    """Each direction of its link is a processor-sharing station: mean-value analysis is exact."""
    job = asynchronous(
        workers,
        1.0,
        model="resnet50",
        bandwidth="2Gbps",
        latency="0us",
        devices_per_node=1,
        options={"overlap": False},
    )
    load, server = job.workload, job.cluster.server
    link_s = load.gradient_bytes / job.cluster.nic.goodput_bytes_per_s
    updates_s = load.gradient_bytes * server.update_per_byte_s + (
        load.tensors * server.update_per_tensor_s
    )
    computing_s = load.forward_s + load.backward_s + updates_s
    per_s, _, _ = queueing.mva(workers, [link_s, link_s], computing_s)
    found = simulated(job).throughput_samples_per_s
    assert found == pytest.approx(per_s * load.batch_size, rel=0.03)
