"""Formulas of transfers between stages that share links, by hand and against the simulation."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from perfmodel import IntraNode, Job, Workload, WorkloadLayer, predict
from perfmodel.base.arrays import NONE
from perfmodel.inputs.passes import accumulated
from perfmodel.inputs.replica import Replica
from perfmodel.predicting import replica_formulas
from perfmodel.training import shared_links
from perfmodel.training.shared_links import RoundFlows, shared_spans
from perfmodel.training.spans import paths_of, spans
from tests.jobs import cluster, job
from tests.settings import examples

MB = 1e6
FREE = 1e-9


def made(
    times: list[tuple[float, float]], passes: int, sent: float, schedule: str, **more: Any
) -> Job:
    """Stages of one layer each, with F and B in seconds, that send MB over links of 1 MB/s."""
    layers = [
        WorkloadLayer(f"layer{k}", f, b, (FREE * MB,), sent * MB) for k, (f, b) in enumerate(times)
    ]
    work = accumulated(Workload.of("chain", layers), passes)
    given: dict[str, Any] = {"workers": 1, "arch": "ring", "where": cluster(MB), "chunks": 1}
    given |= more
    chunks = given.pop("chunks")
    return job(
        work,
        given.pop("where"),
        given.pop("workers"),
        given.pop("arch"),
        pipeline=len(times) // chunks,
        virtual_stages=chunks,
        schedule=schedule,
        **given,
    )


def flows_of(bytes_: list[float], links: list[list[int]], units: float = 1.0) -> RoundFlows:
    path = np.array(links)
    many = len(bytes_)
    return RoundFlows(np.array(bytes_), np.zeros(many), np.full(many, np.inf), path,
                 np.full(path.shape, units), np.full(path.max() + 1, MB))  # fmt: skip


# -- by hand ---------------------------------------------------------------------------------------


def middle(units: float = 1.0) -> tuple[Any, np.ndarray[Any, Any], RoundFlows]:
    """Three stages, two micro-batches, gpipe. F takes 1 s, B 1 s; all transfers 1 MB, links 1 MB/s.

    What stage 1 sends, activations to 2 and gradients to 0, leaves by one link.
    """
    paths = paths_of(Replica(pipeline=3, schedule="1f1b", transfers="ahead"), 3)
    rank, handing = paths.schedule.rank, paths.handing
    out_of, into = rank[handing.source], rank[handing.target] + 3
    links = np.stack([out_of, into], axis=1).tolist()
    return paths, np.ones(len(paths.schedule)), flows_of([MB] * len(links), links, units)


def test_transfers_to_both_sides_share_a_link_by_hand() -> None:
    # 0: F0 0-1, F1 1-2, F2 2-3, sent until 2, 3, 4, and from then on waits for B0
    # 1: F0 2-3, F1 3-4 (sent 3-4 and 4-5), 2: F0 4-5, B0 5-6, F1 6-7, B1 7-8; B0 is sent 6-7
    # 1: B0 7-8, F2 8-9; B0 is sent to 0 from 8 on, F2 to 2 from 9 on: 8-9 alone: it has left at 9
    # 2: F2 10-11, B2 11-12; B1 is sent 8-9, B2 12-13; 1: B1 9-10, sent 10-11; B2 13-14, sent 14-15
    # 0: B0 9-10, B1 11-12, B2 15-16
    paths, seconds, flows = middle()
    at = shared_spans(paths, seconds, flows)
    assert at.end.max() == pytest.approx(16.0)
    # half as fast: F2 of stage 1 and the gradients of B0 and B1 leave its link together
    slow = flows._replace(capacity_bytes_per_s=np.full(6, MB / 2))
    alone = spans(paths, seconds, slow.alone_s(), slow.latency_s)
    shared = shared_spans(paths, seconds, slow)
    assert shared.end.max() > alone.end.max()


def test_two_that_share_a_link_take_twice_as_long() -> None:
    # stage 1 of three sends F1 forward and B0 back at once: force it by equal times
    rates = shared_links._Rates(flows_of([MB, MB, MB], [[0, 1], [0, 2], [3, NONE]]), 0)
    active = {(0, 0): MB, (1, 0): MB, (2, 0): MB}
    assert rates._of(active) == [MB / 2, MB / 2, MB]
    assert rates.next(active, 5.0) == (6.0, (2, 0))
    rates.move(active, 1.0)
    assert list(active.values()) == [MB / 2, MB / 2, 0.0]


def test_max_min_fairness_by_hand() -> None:
    # links 0 and 1 carry 1 and 10 MB/s; a uses both, b link 0, c link 1: a and b get 0.5, c 9.5
    flows = flows_of([MB] * 3, [[0, 1], [0, NONE], [1, NONE]])
    flows = flows._replace(capacity_bytes_per_s=np.array([MB, 10 * MB]))
    rates = shared_links._Rates(flows, 0)
    got = rates._of({(0, 0): MB, (1, 0): MB, (2, 0): MB})
    assert got == pytest.approx([0.5 * MB, 0.5 * MB, 9.5 * MB])
    # a connection that carries 2 MB/s at most
    capped = flows._replace(rate_bytes_per_s=np.array([np.inf, np.inf, 2 * MB]))
    got = shared_links._Rates(capped, 0)._of({(0, 0): MB, (1, 0): MB, (2, 0): MB})
    assert got == pytest.approx([0.5 * MB, 0.5 * MB, 2 * MB])


def test_other_replicas_take_their_part() -> None:
    paths, seconds, flows = middle(units=2.0)
    assert flows.alone_s() == pytest.approx(np.full(len(flows.bytes), 2.0))
    half = flows._replace(units=np.ones_like(flows.units), capacity_bytes_per_s=np.full(6, MB / 2))
    both = [shared_spans(paths, seconds, one).end.max() for one in (flows, half)]
    assert both[0] == pytest.approx(both[1])


# -- against the simulation ------------------------------------------------------------------------


@pytest.mark.slow
@examples(40)
@given(data=st.data())
def test_a_single_replica_is_as_fast_as_simulated(data: st.DataObject) -> None:
    """Nothing is exchanged: only the stages' own transfers share links."""
    schedule, chunks = data.draw(
        st.sampled_from([("1f1b", 1), ("gpipe", 1), ("zb_h1", 1), ("interleaved_1f1b", 2),
                         ("looped_bfs", 2), ("zb_v", 2), ("dualpipe", 1)])
    )  # fmt: skip
    ranks = data.draw(st.sampled_from([2, 4])) if schedule == "dualpipe" else data.draw(
        st.integers(2, 4))  # fmt: skip
    number = st.floats(0.5, 2.0)
    times = [(data.draw(number), data.draw(number)) for _ in range(ranks * chunks)]
    passes = ranks * data.draw(st.integers(2, 3))
    transfers = data.draw(st.sampled_from(["ahead", "torch"]))
    one = made(times, passes, data.draw(st.sampled_from([0.2, 1.0, 3.0])), schedule,
               chunks=chunks, transfers=transfers)  # fmt: skip
    fine, coarse = (predict(one, fidelity=way).iteration_s for way in ("fine", "coarse"))
    assert coarse == pytest.approx(fine, rel=0.05)


def test_most_single_replicas_are_exact() -> None:
    rng = np.random.default_rng(5)
    errors = []
    for schedule, ranks in [("1f1b", 3), ("1f1b", 4), ("gpipe", 4), ("zb_h1", 4)] * 2:
        times = list(map(tuple, rng.uniform(0.5, 2.0, (ranks, 2)).tolist()))
        one = made(times, 6, float(rng.choice([0.3, 1.0, 2.0])), schedule, transfers="ahead")
        fine, coarse = (predict(one, fidelity=way).iteration_s for way in ("fine", "coarse"))
        errors.append(abs(coarse / fine - 1.0))
    assert np.median(errors) < 1e-4
    assert max(errors) < 0.02


def test_canary_links_that_are_not_shared_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica_formulas, "_share", lambda *_: False)
    with pytest.raises(AssertionError):
        test_most_single_replicas_are_exact()


@pytest.mark.parametrize("transfers", ["ahead", "torch"])
def test_replicas_on_a_node_share_its_link(transfers: str) -> None:
    """Four first stages on one node with one link: each activation takes four times as long."""
    node = cluster(MB, devices_per_node=4, intra_node=IntraNode(1e15, 0.0))
    one = made([(1.0, 2.0)] * 2, 4, 0.5, "1f1b", workers=4, where=node, transfers=transfers)
    alone = made([(1.0, 2.0)] * 2, 4, 0.5, "1f1b", workers=4, transfers=transfers)
    fine, coarse = (predict(one, fidelity=way).iteration_s for way in ("fine", "coarse"))
    assert coarse == pytest.approx(fine, rel=1e-3)
    assert coarse > predict(alone, fidelity="coarse").iteration_s * 1.1


def test_a_link_carries_transfers_and_the_exchange() -> None:
    """Gossip that computation would hide: 12 MB of models a step and 6 MB of transfers take the
    link of a first stage 18 s at least."""
    layers = [WorkloadLayer(f"layer{k}", 0.5, 0.5, (6 * MB,), MB) for k in range(2)]
    work = accumulated(Workload.of("chain", layers), 6)
    one = job(work, cluster(MB), 4, "d_psgd", pipeline=2, transfers="ahead")
    fine, coarse = (predict(one, fidelity=way) for way in ("fine", "coarse"))
    assert coarse.iteration_s >= 18.0 * (1 - 1e-9)
    assert coarse.iteration_s == pytest.approx(fine.iteration_s, rel=0.2)


@pytest.mark.parametrize("stages", [3, 4])
def test_the_pace_without_a_flush_shares_links(stages: int) -> None:
    one = made([(0.5, 0.5)] * stages, 1, 1.0, "pipedream")
    fine, coarse = (predict(one, fidelity=way).iteration_s for way in ("fine", "coarse"))
    assert coarse == pytest.approx(fine, rel=0.02)


def test_too_many_transfers_are_taken_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    one = made([(0.5, 0.5)] * 4, 8, 1.0, "zb_h1", transfers="ahead")
    shared = predict(one, fidelity="coarse").iteration_s
    monkeypatch.setattr(replica_formulas, "MOST_TRANSFERS", 8)
    assert predict(one, fidelity="coarse").iteration_s < shared
