"""Turns that the messages of a connection take."""

from __future__ import annotations

from typing import Any

import pytest

from perfmodel import build_graph, make_job, predict
from perfmodel.architectures import mean_field
from perfmodel.architectures.mean_field import mean_field_of
from perfmodel.communication import messages
from perfmodel.graph.op_graph import OpGraph
from perfmodel.inputs.job import Job
from tests.jobs import cluster, workload

KB = 1000.0
RATE_BYTES_PER_S = 100.0 * KB


def job(sizes_kb: list[float], quantum_kb: float, workers: int = 1, **more: Any) -> Job:
    """Workers without computation that push tensors of these sizes to a server, the last first, and
    pull them."""
    none = [1e-9] * len(sizes_kb)
    options = {"transmission": "quantum", "quantum_bytes": KB * quantum_kb}
    return make_job(
        workload=workload(none, none, [KB * size for size in sizes_kb]),
        cluster=cluster(RATE_BYTES_PER_S, update_per_byte_s=0.0),
        workers=workers,
        options=options | more,
    )


def push_s(given: Job) -> float:
    return predict(given, fidelity="fine").operation_s["push"]


def test_small_turns_by_hand() -> None:
    """Turns of 10 kB: 40 of the large message have gone when the small one ends, at 0.8 s; the
    large one ends at 4.4 s."""
    assert push_s(job([40.0, 400.0], 10.0)) == pytest.approx((0.8 + 4.4) / 2.0)


def test_the_least_turn_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """440 kB in 22 turns at most: 20 kB each, so that the small message ends after four of
    them; with four turns for each of two messages, 55 kB, after 95."""
    monkeypatch.setattr(messages, "TURNS", 22)
    assert push_s(job([40.0, 400.0], 1.0)) == pytest.approx((0.8 + 4.4) / 2.0)
    monkeypatch.setattr(messages, "TURNS", 1)
    monkeypatch.setattr(messages, "TURNS_OF_EACH", 4)
    assert push_s(job([40.0, 400.0], 1.0)) == pytest.approx((0.95 + 4.4) / 2.0)
    assert push_s(job([40.0, 400.0], 90.0)) == pytest.approx((1.3 + 4.4) / 2.0)


def turns_of(graph: OpGraph) -> int:
    return graph.n_turns - graph.n_ops


def test_tiny_turns_are_a_thousand_in_each_direction() -> None:
    """However small the quantum is; of each worker, however many servers there are."""
    for servers in (1, 4):
        few = turns_of(build_graph(job([40.0, 400.0], 1e-3, 2, servers=servers)))
        assert 2 * 2 * 1000 < few <= 2 * 2 * messages.TURNS
    assert turns_of(build_graph(job([40.0, 400.0], 100.0))) == 2 * 3
    assert turns_of(build_graph(job([40.0, 400.0], 90.0))) == 2 * 4
    assert turns_of(build_graph(job([40.0, 400.0], 1.0, transmission="fifo"))) == 0


def test_many_messages_take_a_few_turns_each() -> None:
    graph = build_graph(job([10.0] * 500, 1e-3))
    assert turns_of(graph) == 2 * 500 * (messages.TURNS_OF_EACH - 1)
    peers = build_graph(
        make_job(
            workload=workload([1e-9] * 500, [1e-9] * 500, [10.0 * KB] * 500),
            cluster=cluster(RATE_BYTES_PER_S),
            workers=3,
            arch="p2p",
            options={"transmission": "quantum", "quantum_bytes": 1.0},
        )
    )
    assert turns_of(peers) == 3 * 2 * 500 * (messages.TURNS_OF_EACH - 1)


def test_fewer_workers_represent_many_that_take_many_turns() -> None:
    """Each takes 2048 turns in both directions, so 34 of them 70,000."""
    given = job([40.0, 400.0], 1e-3, 1024, sync="asp")
    field = mean_field_of(given)
    assert field is not None
    assert mean_field.OPS - 2100 < field.graph.n_turns <= mean_field.OPS
    fifo = mean_field_of(job([40.0, 400.0], 1e-3, 1024, sync="asp", transmission="fifo"))
    assert fifo is not None
    assert field.graph.n_groups < fifo.graph.n_groups == mean_field.MOST
