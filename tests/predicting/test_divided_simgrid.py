"""Steps of devices that divide sequences or experts take as long as SimGrid says."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from perfmodel import Cluster, Job, Link, Source, Workload, WorkloadLayer, make_job, predict
from perfmodel.inputs.expert_parallel import is_of_experts
from perfmodel.inputs.passes import accumulated, one_pass
from tests import simgrid
from tests.predicting.test_expert_parallel import ACTIVE, HIDDEN, TOKENS, model
from tests.settings import thinned
from tests.simgrid.replicas import Devices, Layer, period_s

pytestmark = pytest.mark.skipif(bool(simgrid.missing()), reason=simgrid.missing())

AGREED = 1e-6
MB = 10**6
PART = 840_000
"""Bytes of a device's part, which two to eight devices divide evenly."""


def nodes(rate: float) -> Cluster:
    """Nodes of one device without latencies."""
    return Cluster(name="made", nic=Link(rate, 0.0), losses="none",
                   source=Source("exact", "made for a test"))  # fmt: skip


ONE_RING: dict[str, Any] = {"bucketing": "one", "overlap": False, "algorithm": "ring"}


def gap(program: Devices, made: Job) -> float:
    return predict(made).iteration_s / period_s(program) - 1.0


def of_sequences(
    way: str, context: int, replicas: int, passes: int, keys: int = 1
) -> tuple[Devices, Job]:
    """Two layers of attention whose rings hide in part, and one without."""
    seconds = ((1.0, 2.5), (0.3, 0.4), (2.0, 3.0))
    sizes = (keys * PART, 2 * keys * PART, 0)  # keys and values of a device, queries and outputs
    layers, plain = [], []
    for number, ((forward_s, backward_s), part) in enumerate(zip(seconds, sizes, strict=True)):
        whole = float(part * context)
        plain.append(
            WorkloadLayer(f"layer{number}", forward_s, backward_s, (float(PART),), 1e-3,
                          keys_bytes=whole, queries_bytes=whole)
        )  # fmt: skip
        exchanged = {
            "ring": Layer(forward_s, backward_s, ring=part, back=2),
            "all-gather": Layer(forward_s, backward_s, before=part, back=2),
            "all-to-all": Layer(forward_s, backward_s, before=part * 3 // 2 // context,
                                after=part // 2 // context),
        }[way]  # fmt: skip
        layers.append(exchanged)
    program = Devices(replicas, context, passes, tuple(layers), 3 * PART, 0, MB)
    work = accumulated(Workload.of("made", plain), passes)
    made = make_job(workload=work, cluster=nodes(MB), workers=replicas, context=context,
                    context_exchange=way, arch="allreduce", options=ONE_RING)  # fmt: skip
    return program, made


WAYS = [(way, context) for way in ("ring", "all-gather", "all-to-all") for context in (2, 3, 4)]


@pytest.mark.parametrize(("way", "context"), thinned(WAYS, 3))
def test_divided_sequences_take_as_long_as_in_simgrid(way: str, context: int) -> None:
    for replicas, passes in ((1, 1), (2, 3)):
        assert abs(gap(*of_sequences(way, context, replicas, passes))) < AGREED


def of_experts(degree: int, groups: int, passes: int) -> tuple[Devices, Job]:
    """Two blocks of Mixtral 8x7B on nodes of 1 GB/s; experts have places for the mean, so that
    none has more tokens."""
    rate, batch = 1e9, passes
    made = make_job(workload=model(), device="h100", precision="mixed", cluster=nodes(rate),
                    workers=degree * groups, expert=degree, expert_capacity=1.0, batch_size=batch,
                    accumulation=passes, arch="allreduce", options=ONE_RING)  # fmt: skip
    work = one_pass(made.workload)
    copies = TOKENS * ACTIVE * HIDDEN * 2
    layers = tuple(
        Layer(one.forward_s, one.backward_s, before=copies // degree if one.routed else 0)
        for one in work.layers
    )
    sizes = [(sum(one.tensor_bytes), is_of_experts(one.name)) for one in work.layers]
    dense, held = (int(sum(size for size, of in sizes if of == wanted)) for wanted in (False, True))
    program = Devices(groups, degree, passes, layers, dense, held, rate, work.optimizer_s)
    return program, made


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("degree", "groups"), thinned([(2, 1), (4, 1), (2, 2), (8, 1), (4, 2)], 2))
def test_divided_experts_take_as_long_as_in_simgrid(degree: int, groups: int) -> None:
    """Also gradients: those of experts are summed over the groups only."""
    for passes in (1, 3):
        assert abs(gap(*of_experts(degree, groups, passes))) < AGREED


@pytest.mark.parametrize(
    "planted",
    ["a ring sends one byte in a thousand more", "backward sends as much as forward",
     "replicas do not sum gradients"],
)  # fmt: skip
def test_a_planted_error_of_sequences_is_noticed(planted: str) -> None:
    program, made = of_sequences("ring", 3, 2, 2)
    layers = program.layers
    wrong = {
        "a ring sends one byte in a thousand more": replace(
            program, layers=tuple(replace(one, ring=one.ring + one.ring // 1000) for one in layers)
        ),
        "backward sends as much as forward": replace(
            program, layers=tuple(replace(one, back=1) for one in layers)
        ),
        "replicas do not sum gradients": replace(program, gradients=0),
    }[planted]
    assert abs(gap(program, made)) < AGREED
    assert abs(gap(wrong, made)) > 10 * AGREED


@pytest.mark.parametrize(
    "planted", ["tokens are not sent back", "experts are summed over all", "experts are not summed"]
)
def test_a_planted_error_of_experts_is_noticed(planted: str) -> None:
    program, made = of_experts(2, 2, 1)
    routed = [k for k, one in enumerate(program.layers) if one.before]
    home = tuple(replace(one, before=0) if k in routed[1::2] else one
                 for k, one in enumerate(program.layers))  # fmt: skip
    both = program.gradients + program.of_experts
    wrong = {
        "tokens are not sent back": replace(program, layers=home),
        "experts are summed over all": replace(program, gradients=both, of_experts=0),
        "experts are not summed": replace(program, of_experts=0),
    }[planted]
    assert abs(gap(program, made)) < AGREED
    assert abs(gap(wrong, made)) > 100 * AGREED
