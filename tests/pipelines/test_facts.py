"""Activations in flight, versions of weights and transfers, by hand."""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel import InputError
from perfmodel.pipelines import (
    Action,
    Schedule,
    in_flight,
    in_flight_by_stage,
    names,
    schedule,
    staleness,
    stored_versions,
    transfers,
    versions,
)
from perfmodel.pipelines.structure import steps_of

IN_FLIGHT = {
    ("gpipe", 4, 8): [8, 8, 8, 8],  # m
    ("1f1b", 4, 8): [4, 3, 2, 1],  # p - r
    ("1f1b", 4, 2): [2, 2, 2, 1],  # min(p - r, m)
    ("interleaved_1f1b", 4, 8): [11, 9, 7, 5],  # 2 (p - r - 1) + (v - 1) p + 1
    ("looped_bfs", 4, 8): [16, 16, 16, 16],  # m v
    ("zb_h1", 4, 12): [4, 4, 4, 4],  # p
    ("zb_h2", 4, 12): [7, 7, 7, 7],  # 2 p - 1
    ("zb_v", 4, 12): [8, 8, 8, 8],  # 2 p halves
    ("dualpipe", 4, 12): [5, 5, 5, 5],  # p + 1
    ("dualpipe_v", 4, 12): [9, 9, 9, 9],  # 2 p + 1 halves
    ("pipedream", 4, 8): [4, 3, 2, 1],
}


@pytest.mark.parametrize(("name", "p", "m"), IN_FLIGHT)
def test_most_micro_batches_in_flight(name: str, p: int, m: int) -> None:
    s = schedule(name, p, m)
    assert in_flight(s).tolist() == IN_FLIGHT[name, p, m]
    assert in_flight_by_stage(s).max() <= max(IN_FLIGHT[name, p, m])


def two_chunks() -> Schedule:
    """One rank, two stages: activations by hand."""
    order = ["0F0", "1F0", "0F1", "1I0", "0B0", "1F1", "1W0", "1B1", "0B1"]
    return Schedule.of("s", [[Action.of(a) for a in order]])


def test_bytes_in_flight_by_hand() -> None:
    """Stage 0 keeps 1, stage 1 keeps 10, of which 4 stay between I and W.

    0F0 1, 1F0 11, 0F1 12, 1I0 6, 0B0 5, 1F1 15, 1W0 11, 1B1 1, 0B1 0.
    """
    assert in_flight(two_chunks(), [1.0, 10.0], kept=0.4).tolist() == pytest.approx([15.0])
    assert in_flight(two_chunks(), [1.0, 10.0], kept=1.0).tolist() == pytest.approx([21.0])
    assert in_flight_by_stage(two_chunks()).tolist() == [[2, 2]]


def test_bytes_of_many_candidates() -> None:
    s = schedule("interleaved_1f1b", 2, 4)
    weights = np.arange(1.0, 13.0).reshape(3, 4)
    expected = [in_flight(s, row).tolist() for row in weights]
    assert in_flight(s, weights).tolist() == expected


@pytest.mark.parametrize(
    ("weight", "kept", "expected"),
    [
        ([1.0, 2.0], 1.0, "weight: expected a number, or 4 in the last axis, got shape \\(2,\\)"),
        (-1.0, 1.0, "weight: must be finite and at least 0, got -1"),
        (1.0, 2.0, "kept: must be at most 1, got 2"),
        ("many", 1.0, "weight: expected numbers, got 'many'"),
    ],
)
def test_wrong_weights(weight: object, kept: float, expected: str) -> None:
    with pytest.raises(InputError, match=expected):
        in_flight(schedule("gpipe", 4, 4), weight, kept)  # type: ignore[arg-type]


# -- versions -------------------------------------------------------------------------------------


def test_versions_of_pipedream_by_hand() -> None:
    """Rank 0 of 2: F0 F1 B0 F2 B1 F3 B2 B3. F2 comes after one update, F3 after two."""
    s = schedule("pipedream", 2, 4)
    read = dict(zip(map(str, s.order(0)), versions(s).tolist(), strict=False))
    assert read == {
        "0F0": 0, "0F1": 0, "0B0": 0, "0F2": 1, "0B1": 0, "0F3": 2, "0B2": 1, "0B3": 2,
    }  # fmt: skip


def test_versions_of_two_buffers_by_hand() -> None:
    """Batches of 2: the first two batches read version 0, the third version 1."""
    s = schedule("pipedream_2bw", 2, 6)
    for rank in range(2):
        read = versions(s)[s.begins[rank] : s.begins[rank + 1]]
        by_batch = {(a.micro_batch // 2, int(v)) for a, v in zip(s.order(rank), read, strict=True)}
        assert sorted(by_batch) == [(0, 0), (1, 0), (2, 1)]


@pytest.mark.parametrize("p", [1, 2, 3, 5])
def test_staleness(p: int) -> None:
    """PipeDream: p - 1 - s updates, and p - s versions; two buffers: 1 and 2 (1 if p is 1)."""
    s = schedule("pipedream", p, 3 * p)
    assert staleness(s).tolist() == [p - 1 - r for r in range(p)]
    assert stored_versions(s).tolist() == [p - r for r in range(p)]
    s = schedule("pipedream_2bw", p, 4 * p)
    assert staleness(s).tolist() == [1] * p
    assert stored_versions(s).tolist() == [2] * p


@pytest.mark.parametrize("name", [n for n in names() if not n.startswith("pipedream")])
def test_nothing_is_stale_with_a_flush(name: str) -> None:
    s = schedule(name, 4, 8)
    assert not versions(s).any()
    assert not staleness(s).any()
    assert stored_versions(s).tolist() == [1] * s.stages


@pytest.mark.parametrize(("p", "batch"), [(2, 2), (3, 3), (4, 4), (4, 6)])
def test_versions_of_two_buffers_are_there_when_they_are_read(p: int, batch: int) -> None:
    """Each forward pass reads a version that its stage has already made."""
    s = schedule("pipedream_2bw", p, 4 * batch, batch=batch)
    read = versions(s)
    for stage in range(p):
        done = 0
        for i in np.nonzero(s.stage == stage)[0]:
            if s.action(i).kind == "F":
                assert read[i] <= done // batch
            done += s.action(i).kind == "B"


def test_canary_with_smaller_batches_they_are_not() -> None:
    """Rank 0 of 4 has done one backward pass when it needs what batches 0 and 1 of two made."""
    s = schedule("pipedream", 4, 8)
    read = {a.micro_batch: max(a.micro_batch // 2 - 1, 0) for a in s.order(0)}
    done = [sum(b.kind == "B" for b in s.order(0)[:i]) for i in range(16)]
    late = [a for a, n in zip(s.order(0), done, strict=True) if read[a.micro_batch] > n // 2]
    assert Action("F", 0, 4) in late


# -- transfers ------------------------------------------------------------------------------------


def test_transfers_by_hand() -> None:
    """Two ranks, two chunks, two micro-batches: boundaries 0 and 2 go to rank 1, 1 to rank 0."""
    t = transfers(schedule("interleaved_1f1b", 2, 2))
    rows = zip(
        t.sender.tolist(),
        t.receiver.tolist(),
        t.boundary.tolist(),
        t.forward.tolist(),
        t.micro_batch.tolist(),
        strict=True,
    )
    assert list(rows) == [
        (0, 1, 0, True, 0),
        (0, 1, 0, True, 1),
        (0, 1, 2, True, 0),
        (0, 1, 2, True, 1),
        (0, 1, 1, False, 0),
        (0, 1, 1, False, 1),
        (1, 0, 1, True, 0),
        (1, 0, 1, True, 1),
        (1, 0, 2, False, 0),
        (1, 0, 2, False, 1),
        (1, 0, 0, False, 0),
        (1, 0, 0, False, 1),
    ]


@pytest.mark.parametrize("name", names())
def test_every_boundary_between_ranks_is_crossed_twice(name: str) -> None:
    s = schedule(name, 4, 8)
    t = transfers(s)
    crossings = sum(
        int(s.holders[copy, stage] != s.holders[copy, stage + 1])
        for copy in s.copy_of
        for stage in range(s.stages - 1)
    )
    assert len(t) == 2 * crossings == 2 * int(t.forward.sum())
    assert (np.diff(t.produced) > 0).all()
    assert (s.rank[t.consumed] == t.receiver).all()


def test_stages_of_one_rank_send_nothing() -> None:
    t = transfers(schedule("zb_v", 2, 4))  # stages 0 and 3, 1 and 2
    assert set(t.boundary.tolist()) == {0, 2}


def test_steps_come_after_all_that_they_need() -> None:
    for name in names():
        steps = steps_of(schedule(name, 4, 8))
        number = np.arange(len(steps.first))
        assert (steps.before < number).all()
        assert (steps.needs < number[:, np.newaxis]).all()
        assert steps.bounds[-1] == len(number)
