"""Two nodes with a single path between them."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

from perfmodel import InputError, Link, Server, evaluate, predict
from perfmodel.api import Fidelity
from tests.jobs import cluster, job, workload

WORK = workload([1.0, 2.0, 1.0], [2.0, 3.0, 1.0], [30.0, 50.0, 20.0])
WHERE = cluster(20.0, 0.01, devices_per_node=2, intra_node=Link(500.0, 0.001))
PAIRED = msgspec.structs.replace(WHERE, pair_efficiency=0.5)
HALVED = msgspec.structs.replace(WHERE, nic=Link(20.0, 0.01, 0.5))


@pytest.mark.slow
@pytest.mark.sampled(7)
@pytest.mark.parametrize("fidelity", ["fine", "coarse"])
@pytest.mark.parametrize(
    ("arch", "options"),
    [
        ("allreduce", {"bucketing": "layer"}),
        ("allreduce", {"algorithm": "tree"}),
        ("allreduce", {"each_send": True}),
        ("fsdp", {}),
        ("d_psgd", {}),
        ("ps", {"servers": 2}),
        ("asp", {}),
    ],
)
def test_only_two_nodes_get_a_fraction_of_their_links(
    fidelity: Fidelity, arch: str, options: dict[str, Any]
) -> None:
    beside = Server(placement="colocated")

    def step_s(where: Any, workers: int) -> float:
        placed = msgspec.structs.replace(where, server=beside)
        return predict(job(WORK, placed, workers, arch, options), fidelity=fidelity).iteration_s

    assert step_s(PAIRED, 4) == pytest.approx(step_s(HALVED, 4), rel=1e-9)
    assert step_s(PAIRED, 4) > 1.05 * step_s(WHERE, 4)  # canary: the fraction matters
    for workers in (2, 6):
        assert step_s(PAIRED, workers) == step_s(WHERE, workers)


@pytest.mark.parametrize("fidelity", ["fine", "coarse"])
def test_a_dedicated_server_counts_as_a_node(fidelity: Fidelity) -> None:
    found = [
        predict(job(WORK, where, 2, "ps", {}), fidelity=fidelity).iteration_s
        for where in (PAIRED, HALVED, WHERE)
    ]
    assert found[0] == pytest.approx(found[1], rel=1e-9)
    assert found[0] > 1.05 * found[2]


def test_variants_of_the_number_of_workers_apply_it() -> None:
    some = np.array([2, 4, 6, 8])
    found = evaluate(job(WORK, PAIRED, 4, "allreduce"), workers=some).iteration_s
    each = [
        predict(job(WORK, PAIRED, n, "allreduce"), fidelity="coarse").iteration_s
        for n in some.tolist()
    ]
    assert found == pytest.approx(each, rel=1e-12)


@pytest.mark.parametrize("value", [0.0, 1.5])
def test_the_value_must_be_a_fraction(value: float) -> None:
    with pytest.raises(InputError, match="pair_efficiency: must be at"):
        msgspec.structs.replace(WHERE, pair_efficiency=value)
