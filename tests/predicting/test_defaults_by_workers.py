"""Defaults of options that depend on the number of workers, where that number is varied."""

from __future__ import annotations

from typing import Any, Literal

import pytest

from perfmodel import Cluster, IntraNode, Job, Link, Server, evaluate, make_job, predict
from perfmodel.architectures import registry
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
