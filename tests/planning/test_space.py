"""Candidates of a plan, of which series share what does not vary, equal their jobs alone."""

from __future__ import annotations

import pytest

from perfmodel import predict
from perfmodel.catalogue import catalogue, instances
from perfmodel.planning import space as spaces
from perfmodel.planning.space import DeviceAxes, Space
from perfmodel.predicting.memory import memory_on
from perfmodel.sweeping.processes import InLine

CONFIDENCE = 0.9


def small() -> Space:
    """Two instance types with the same device, a third, and one whose devices copy through the
    host, from a part of a node to several."""
    types = ["p3.2xlarge", "p3.8xlarge", "p4d.24xlarge", "g4dn.12xlarge"]
    rows, _ = instances.choose(instances.read_instances(), types=types)
    return spaces.space(
        [(row, row.price_usd_per_h or 0.0) for row in rows],
        catalogue.model("alexnet"),
        DeviceAxes(
            arch=("allreduce", "ps", "zero3"),
            workers=(1, 3, 4, 8, 16, 24, 48),
            servers=(2,),
            batch_size=(32, 64),
        ),
        confidence=CONFIDENCE,
        common={},
        executor=InLine(),
    )


@pytest.fixture(scope="module")
def among() -> Space:
    return small()


def test_memory_is_that_of_each_job(among: Space) -> None:
    jobs = [among.job(i) for i in range(len(among))]
    needed = [
        memory_on(catalogue.device(job.workload.device), job).needed_bytes(CONFIDENCE)
        for job in jobs
    ]
    assert among.worker_bytes.tolist() == pytest.approx(needed, rel=1e-9)
    assert len({*needed}) > len(among.series)


def test_steps_are_those_of_each_job(among: Space) -> None:
    steps = [predict(among.job(i), fidelity="coarse").iteration_s for i in range(0, len(among), 3)]
    assert among.step_s[::3].tolist() == pytest.approx(steps, rel=1e-9)


def test_series_keep_their_order_in_small_tasks(
    among: Space, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spaces, "BATCH", 2)
    again = small()
    assert [series.arch for series in again.series] == [series.arch for series in among.series]
    for name in ("workers", "batch_size", "price", "step_s", "worker_bytes"):
        assert getattr(again, name).tolist() == getattr(among, name).tolist()


def test_canary_workers_of_another_candidate_are_noticed(among: Space) -> None:
    """Were numbers of workers exchanged, neither memory nor steps would agree."""
    shards = [i for i in range(len(among)) if among.arch(i) == "zero3"][:2]
    (one, other) = (predict(among.job(i), fidelity="coarse").iteration_s for i in shards)
    assert one != pytest.approx(other, rel=1e-3)
    assert among.worker_bytes[shards[0]] != pytest.approx(among.worker_bytes[shards[1]], rel=1e-3)
