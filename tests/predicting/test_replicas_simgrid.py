"""Steps of pipelines take as long as SimGrid says, which shares no code with the engine."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from perfmodel import Cluster, IntraNode, Job, Link, Source, Workload, WorkloadLayer, predict
from perfmodel.inputs.passes import accumulated
from tests import simgrid
from tests.jobs import job
from tests.settings import thinned
from tests.simgrid.pipelines import Pipelines, period_s

pytestmark = pytest.mark.skipif(bool(simgrid.missing()), reason=simgrid.missing())

AGREED = 1e-6
RATE = 1e6


def drawn(
    schedule: str, ranks: int, passes: int, transfers: str, seed: int, replicas: int = 1
) -> tuple[Pipelines, Job]:
    """The same pipelines for both programs: unequal stages, links shared by two devices or not."""
    rng = np.random.default_rng([seed, ranks, passes])
    chunks = 2 if schedule == "interleaved_1f1b" else 1
    many = ranks * chunks
    forward, backward = rng.uniform(0.5, 2.0, many), rng.uniform(1.0, 4.0, many)
    sent = [int(x) for x in 10 ** rng.uniform(4, 6.3, many)]
    gradients = [int(x) for x in 10 ** rng.uniform(5, 6.7, many)]
    devices = int(rng.integers(1, 3))
    order = ("tp-pp-dp", "tp-dp-pp")[int(rng.integers(2))]
    position = np.arange(ranks * replicas).reshape(
        (replicas, ranks) if order == "tp-pp-dp" else (ranks, replicas)
    )
    position = position if order == "tp-pp-dp" else position.T
    program = Pipelines(
        ranks,
        passes,
        schedule,
        chunks,
        transfers,  # type: ignore[arg-type]
        tuple(forward.tolist()),
        tuple(backward.tolist()),
        tuple(sent),
        tuple(sum(gradients[k] for k in range(rank, many, ranks)) for rank in range(ranks)),
        tuple(tuple(int(x) // devices for x in row) for row in position),
        RATE,
    )
    layers = [
        WorkloadLayer(f"layer{k}", f, b, (float(g),), float(s))
        for k, (f, b, g, s) in enumerate(zip(forward, backward, gradients, sent, strict=True))
    ]
    where = Cluster(
        name="made",
        nic=Link(RATE, 0.0),
        devices_per_node=devices,
        intra_node=IntraNode(1e15, 0.0) if devices > 1 else None,
        losses="none",
        source=Source("exact", "made for a test"),
    )
    made = job(
        accumulated(Workload.of("made", layers), passes),
        where,
        replicas,
        "allreduce",
        {"bucketing": "one", "overlap": False, "algorithm": "ring"},
        pipeline=ranks,
        schedule=schedule,
        virtual_stages=chunks,
        transfers=transfers,
        rank_order=order,
    )
    return program, made


def gap(program: Pipelines, made: Job) -> float:
    return predict(made).iteration_s / period_s(program) - 1.0


CASES = [
    (schedule, ranks, passes, transfers)
    for ranks in (2, 3, 4)
    for schedule, transfers in (
        *itertools.product(("gpipe", "1f1b"), ("ahead", "blocking", "torch")),
        ("interleaved_1f1b", "ahead"),
    )
    for passes in ((ranks, 2 * ranks) if schedule == "interleaved_1f1b" else (1, 2, 5, 8))
]


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("schedule", "ranks", "passes", "transfers"), thinned(CASES, 6))
def test_steps_take_as_long_as_in_simgrid(
    schedule: str, ranks: int, passes: int, transfers: str
) -> None:
    assert abs(gap(*drawn(schedule, ranks, passes, transfers, 0))) < AGREED


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 6))
@pytest.mark.parametrize(("schedule", "ranks", "passes", "transfers"), CASES)
def test_steps_of_other_stages_take_as_long_as_in_simgrid(
    schedule: str, ranks: int, passes: int, transfers: str, seed: int
) -> None:
    assert abs(gap(*drawn(schedule, ranks, passes, transfers, seed))) < AGREED


@pytest.mark.sampled(4)
@pytest.mark.parametrize("replicas", thinned([2, 3]))
@pytest.mark.parametrize(
    ("schedule", "ranks", "passes", "transfers"), [c for c in CASES if c[3] == "ahead"][::3]
)
def test_replicas_that_share_links_take_as_long_as_in_simgrid(
    schedule: str, ranks: int, passes: int, transfers: str, replicas: int
) -> None:
    """Gradients on a ring, on nodes of one device or of two that share a link."""
    for seed in range(3):
        assert abs(gap(*drawn(schedule, ranks, passes, transfers, seed, replicas))) < AGREED


@pytest.mark.parametrize(
    "planted",
    ["a stage is slower by 2 %", "the order of another schedule", "transfers are not waited for",
     "a boundary has more bytes"],
)  # fmt: skip
def test_a_planted_error_is_noticed(planted: str) -> None:
    program, made = drawn("1f1b", 3, 8, "blocking", 0)
    wrong = {
        "a stage is slower by 2 %": replace(
            program, forward_s=tuple(1.02 * x for x in program.forward_s)
        ),
        "the order of another schedule": replace(program, schedule="gpipe"),
        "transfers are not waited for": replace(program, transfers="ahead"),
        "a boundary has more bytes": replace(program, sent=tuple(2 * x for x in program.sent)),
    }[planted]
    assert abs(gap(program, made)) < AGREED
    assert abs(gap(wrong, made)) > AGREED
