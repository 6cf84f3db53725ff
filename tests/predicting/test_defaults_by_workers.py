"""Defaults of options that depend on the number of workers, where that number is varied."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import pytest

from perfmodel import (
    Cluster,
    IntraNode,
    Job,
    Link,
    Server,
    evaluate,
    layouts,
    make_job,
    predict,
)
from perfmodel.architectures import registry
from perfmodel.architectures.allreduce import Options
from perfmodel.base.provenance import Source

SOURCE = Source("estimated", "imagined")
COUNTS = (1, 2, 3, 4, 5, 8, 12)
HOST = IntraNode(8e9, 10e-6, kind="bus", interconnect="host")
SWITCH = IntraNode(8e9, 10e-6, kind="per_device", interconnect="nvlink")


def nodes(inside: IntraNode, losses: Literal["usual", "none"]) -> Cluster:
    return Cluster(
        name="four", nic=Link(1.25e9, 10e-6), devices_per_node=4, intra_node=inside,
        server=Server(placement="colocated"), losses=losses, source=SOURCE,
    )  # fmt: skip


def ring(losses: Literal["usual", "none"], workers: int, **options: Any) -> Job:
    return make_job(
        model="alexnet", device="v100", cluster=nodes(HOST, losses), arch="ring", workers=workers,
        options=options,
    )  # fmt: skip


def overlap_of(job: Job) -> bool:
    assert isinstance(job.options, Options)
    return job.options.overlap


def alone(job: Job) -> list[float]:
    return [predict(job.with_(workers=count), fidelity="coarse").iteration_s for count in COUNTS]


@pytest.mark.parametrize("losses", ["usual", "none"])
@pytest.mark.parametrize("workers", [1, 4, 8])
def test_defaults_follow_varied_workers(losses: Literal["usual", "none"], workers: int) -> None:
    job = ring(losses, workers)
    assert evaluate(job, workers=COUNTS).iteration_s.tolist() == pytest.approx(alone(job), rel=1e-9)


@pytest.mark.parametrize("overlap", [False, True])
def test_given_options_stay(overlap: bool) -> None:
    job = ring("usual", 8, overlap=overlap)
    found = evaluate(job, workers=COUNTS).iteration_s
    assert found.tolist() == pytest.approx(alone(job), rel=1e-9)
    by_default = evaluate(ring("usual", 8), workers=COUNTS).iteration_s
    other = [count for count, same in zip(COUNTS, found == by_default, strict=True) if not same]
    assert other == ([2, 3, 4] if overlap else [5, 8, 12])  # one node, or several


def test_defaults_depend_on_workers_only_where_copies_cross_the_host() -> None:
    """So formulas evaluate other clusters' numbers of workers together."""
    several = {}
    for architecture in registry.all_architectures():
        options = registry.read_options(architecture, {})
        for inside in (HOST, SWITCH):
            where = nodes(inside, "none")
            defaults = [options.defaults_on(where, count) for count in range(1, 10)]
            several[architecture.name, inside] = any(each != defaults[0] for each in defaults)
    assert {name for (name, inside), differ in several.items() if differ} == {"allreduce"}
    assert not any(differ for (_, inside), differ in several.items() if inside is SWITCH)


@pytest.mark.parametrize(
    ("devices", "shape"),
    [
        (4, {"tensor": 2}), (4, {"tensor": 4}), (4, {"pipeline": 2}), (4, {"context": 4}),
        (8, {"tensor": 2}), (8, {"tensor": 4}), (8, {"pipeline": 4}), (16, {"tensor": 4}),
    ],
)  # fmt: skip
def test_replicas_on_several_nodes_are_not_on_one(devices: int, shape: dict[str, int]) -> None:
    job = make_job(model="gpt2-small", device="rtx3090", cluster=nodes(HOST, "usual"),
                   arch="ring", devices=devices, **shape)  # fmt: skip
    assert overlap_of(job) is (devices > 4)


@pytest.mark.parametrize("whole", [{"tensor": 4}, {"tensor": 2}, {"pipeline": 2}])
def test_layouts_have_the_defaults_of_their_jobs(whole: dict[str, int]) -> None:
    for devices in (4, 8):
        job = make_job(model="gpt2-small", device="rtx3090", cluster=nodes(HOST, "usual"),
                       arch="ring", devices=devices, micro_batches=2, batch_size=4,
                       **whole)  # fmt: skip
        found = layouts(job, tensor=(1, 2, 4), pipeline=(1, 2), global_batch_size=(32,))
        assert {found.made(k).options for k in range(len(found))} == {job.options}
        for k in np.flatnonzero(found.pipeline == 1).tolist():
            one = predict(found.job_of(k), fidelity="coarse")
            assert found.step_s[k] == pytest.approx(one.iteration_s, rel=1e-9)


def test_islands_have_the_defaults_of_their_devices() -> None:
    """Islands of four devices fill a node, and several of them several nodes."""

    def islands(count: int, workers: int, **more: Any) -> Job:
        return make_job(model="alexnet", device="v100", cluster=nodes(HOST, "usual"), arch="ring",
                        workers=workers, island_devices=count, **more)  # fmt: skip

    def overlap(job: Job) -> tuple[bool, bool]:
        return overlap_of(job), overlap_of(job.islands[0].job)

    assert overlap(islands(4, 3)) == (True, False)
    assert overlap(islands(2, 2)) == (False, False)
    assert overlap(islands(8, 2)) == (True, True)
    assert overlap(islands(2, 2, island_options={"overlap": True})) == (False, True)
    job = islands(2, 8)
    found = evaluate(job, workers=COUNTS[1:]).iteration_s
    assert found.tolist() == pytest.approx(alone(job)[1:], rel=1e-9)
