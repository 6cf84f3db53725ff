"""Parts of tensors that are one message in a graph of a few workers that represent many."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from perfmodel import predict
from perfmodel.architectures.ps import formulas, graph
from perfmodel.architectures.ps.graph import build
from perfmodel.architectures.ps.options import Options
from perfmodel.architectures.ps.placement import Slices, joined, slices_of
from perfmodel.base.errors import TooLargeError
from perfmodel.engine import mean_field
from perfmodel.engine.simulation import simulate, timeline
from perfmodel.graph.op_graph import OpGraph, block_of
from perfmodel.inputs.job import Job
from tests.jobs import cluster, job, workload


def sliced(sizes: list[float], servers: int = 1) -> Slices:
    work = workload([1.0] * len(sizes), [1.0] * len(sizes), sizes)
    return slices_of(work, Options(servers=servers, split_above_bytes=0.0, partition_bytes=5.0))


def at_most(monkeypatch: pytest.MonkeyPatch, most: int, of_each: int = 1) -> None:
    monkeypatch.setattr(graph, "MOST", most)
    monkeypatch.setattr(graph, "MOST_OF_EACH", of_each)


def test_parts_of_a_slice_are_joined_by_hand() -> None:
    """10 parts of 5 bytes, and one of 5 and one of 2: for four messages three parts would be one.
    So the 10 are four, which keep their updates, and the others one each."""
    found = joined(sliced([2.0, 50.0, 5.0]), 4)
    assert found.layer.tolist() == [2, 1, 1, 1, 1, 0]
    assert found.bytes.tolist() == [5.0, 12.5, 12.5, 12.5, 12.5, 2.0]
    assert found.tensors.tolist() == found.parts.tolist() == [1.0, 2.5, 2.5, 2.5, 2.5, 1.0]


def test_parts_stay_on_their_servers_by_hand() -> None:
    """Each of two servers has 10 parts, of which five messages are made; 20 may stay."""
    single = sliced([100.0], 2)
    found = joined(single, 10)
    assert found.server.tolist() == [0] * 5 + [1] * 5
    assert found.bytes.tolist() == [10.0] * 10
    for one, other in zip(*(vars_of(x) for x in (joined(single, 20), single)), strict=True):
        assert one.tolist() == other.tolist()


def vars_of(slices: Slices) -> list[Any]:
    return [getattr(slices, name) for name in slices.__struct_fields__]


def of_parts(workers: int, sizes: list[float], start: str = "together", **options: Any) -> Job:
    work = workload([1.0] * len(sizes), [1.0] * len(sizes), sizes)
    given = {"sync": "asp", "partition_bytes": 1.0, **options}
    return job(work, cluster(1.0), workers, "ps", given, start=start)


def pushes(graph: OpGraph) -> list[float]:
    """When each push of the first iteration ends."""
    spans = timeline(graph, iterations=1)
    return [one.end_s for one in spans if block_of(graph.ops, one.op).label == "push"]


def test_a_message_of_several_parts_has_their_share_of_a_link(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All at once: ten parts of 1 byte end after 10 s. Nine of them as three messages do so too;
    with equal shares the single one would end after 4 s."""
    at_most(monkeypatch, 4)
    one = of_parts(1, [1.0, 9.0], transmission="shared", overlap=False)
    few = pushes(build(one, np.zeros(1, np.int64)))
    assert few == pytest.approx([few[0]] * 4)
    assert len(pushes(build(one))) == 10
    assert pushes(build(one)) == pytest.approx([few[0]] * 10)
    fifo = build(of_parts(1, [1.0, 9.0], overlap=False), np.zeros(1, np.int64))
    ends = pushes(fifo)
    assert fifo.route_weight.tolist() == [1.0] * len(fifo.route_weight)
    assert np.diff(ends) == pytest.approx([3.0, 3.0, 1.0])


@pytest.mark.parametrize(("of_each", "messages"), [(1, 4), (5, 10), (10, 20)])
def test_each_server_has_so_many_messages(
    monkeypatch: pytest.MonkeyPatch, of_each: int, messages: int
) -> None:
    at_most(monkeypatch, 4, of_each)
    one = of_parts(1, [20.0], servers=2, split_above_bytes=0.0)
    assert len(pushes(build(one, np.zeros(1, np.int64)))) == messages


@pytest.mark.parametrize("sync", ["bsp", "asp"])
def test_formulas_join_parts_as_well(monkeypatch: pytest.MonkeyPatch, sync: str) -> None:
    one = of_parts(2, [100.0, 300.0], sync=sync, duplex=True)
    single = predict(one, fidelity="coarse").throughput_samples_per_s
    monkeypatch.setattr(formulas, "MOST", 50)
    monkeypatch.setattr(formulas, "MOST_OF_EACH", 1)
    found = predict(of_parts(2, [100.0, 300.0], sync=sync, duplex=True), fidelity="coarse")
    assert found.throughput_samples_per_s == pytest.approx(single, rel=2.0 / 50)
    if sync == "bsp":
        assert found.throughput_samples_per_s < single


@pytest.mark.parametrize("transmission", ["fifo", "shared", "priority"])
def test_joined_parts_take_as_long_as_single_ones(
    monkeypatch: pytest.MonkeyPatch, transmission: str
) -> None:
    one = of_parts(4, [100.0, 300.0], transmission=transmission)
    single = simulate(build(one)).iterations_per_s.sum()
    for most in (50, 100):
        at_most(monkeypatch, most)
        few = build(one, np.arange(4))
        assert few.n_ops < 0.5 * build(one).n_ops
        assert simulate(few).iterations_per_s.sum() == pytest.approx(single, rel=2.0 / most)


def test_messages_of_several_parts_are_no_unequal_shares(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their weights differ from others of the same worker, but not from those of other workers."""
    at_most(monkeypatch, 4)
    few = build(of_parts(4, [1.0, 9.0], transmission="shared"), np.arange(4))
    assert few.route_weight.std() > mean_field.UNEQUAL
    assert mean_field._unequal(few) == 0.0


def test_many_workers_of_many_parts_are_simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    """10,000 parts of each of 300 workers are too many for so few operations. Each part takes 1 s
    of the server's link in both directions, one of which is always busy."""
    one = of_parts(300, [5e3, 5e3], start="staggered")
    found = predict(one, fidelity="fine", max_ops=4e6)
    updates_per_s = found.throughput_samples_per_s / one.workload.batch_size
    assert 0.5e-4 < updates_per_s < 1.001e-4
    at_most(monkeypatch, 10_000)
    with pytest.raises(TooLargeError):
        predict(one, fidelity="fine", max_ops=4e6)
