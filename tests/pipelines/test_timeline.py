"""Times of schedules: by hand, against a slow simulation, and what must always hold."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from perfmodel import InputError
from perfmodel.pipelines import (
    Schedule,
    check,
    draw,
    in_flight,
    makespans,
    names,
    schedule,
    timeline,
)
from perfmodel.pipelines.files import decode, text
from tests.pipelines.naive import OPTIONS, SEVERAL, simulated
from tests.settings import examples


@st.composite
def schedules(draw_: st.DrawFn) -> Schedule:
    name = draw_(st.sampled_from(names()))
    ranks, micro_batches = draw_(st.integers(1, 5)), draw_(st.integers(1, 9))
    if name in OPTIONS:
        ranks, micro_batches = OPTIONS[name](ranks, micro_batches)
    chunks = {"chunks": draw_(st.integers(1, 3))} if name in SEVERAL else {}
    return schedule(name, ranks, micro_batches, **chunks)


@st.composite
def timed(draw_: st.DrawFn) -> tuple[Schedule, dict[str, list[float]], list[float]]:
    """A schedule, the seconds of its stages by kind, and of the boundaries."""
    s = draw_(schedules())
    seconds = st.floats(0.0, 4.0, width=16)
    column = st.lists(seconds, min_size=s.stages, max_size=s.stages)
    times = {kind: draw_(column) for kind in "FIW"}
    times["B"] = [i + w for i, w in zip(times["I"], times["W"], strict=True)]
    sends = draw_(st.lists(seconds, min_size=s.stages - 1, max_size=s.stages - 1))
    return s, times, sends


def arguments(times: dict[str, list[float]]) -> list[Any]:
    return [times["F"], times["B"], times["I"], times["W"]]


@examples(50)
@given(timed(), st.booleans(), st.sampled_from([0.0, 0.25, 1.0]))
def test_times_equal_a_slow_simulation(
    case: tuple[Schedule, dict[str, list[float]], list[float]], blocking: bool, overlap: float
) -> None:
    s, times, sends = case
    line = timeline(s, *arguments(times), sends, blocking=blocking, overlap=overlap)
    spans = simulated(s, times, sends, blocking, overlap)
    expected = np.array([spans[s.action(i)] for i in range(len(s))])
    assert line.start_s == pytest.approx(expected[:, 0])
    assert line.end_s == pytest.approx(expected[:, 1])


@examples(100)
@given(timed())
def test_what_always_holds(case: tuple[Schedule, dict[str, list[float]], list[float]]) -> None:
    """Work is conserved; no rank is faster than its work, no micro-batch than its path."""
    s, times, sends = case
    check(s)
    line = timeline(s, *arguments(times), sends)
    work = sum(map(sum, (times["F"], times["B"]))) * s.micro_batches
    assert line.busy_s.sum() == pytest.approx(work)
    assert line.makespan_s >= line.busy_s.max() * (1 - 1e-12)
    path = sum(times["F"]) + sum(times["I"])
    assert line.makespan_s >= path * (1 - 1e-12)
    assert (line.bubble_s >= -1e-9).all()
    assert (line.idle_s >= line.bubble_s - 1e-9).all()
    assert line.gradients_s.max() == line.makespan_s
    assert (line.gradients_s >= line.parameters_s).all()
    blocked = timeline(s, *arguments(times), sends, blocking=True)
    assert blocked.makespan_s >= line.makespan_s * (1 - 1e-12)
    assert (in_flight(s) >= 1).all()
    if s.updates.kind == "flush":
        assert decode(text(s).encode(), name="f") == s


@examples(40)
@given(schedules(), st.integers(1, 3), st.booleans())
def test_candidates_are_computed_as_if_alone(s: Schedule, count: int, blocking: bool) -> None:
    rng = np.random.default_rng(count)
    columns = [rng.uniform(0.1, 2.0, (count, s.stages)) for _ in range(4)]
    sends = rng.uniform(0.0, 1.0, (count, s.stages - 1))
    together = timeline(s, *columns, sends, blocking=blocking)
    alone = [timeline(s, *(c[i] for c in columns), sends[i], blocking) for i in range(count)]
    assert together.start_s.shape == (count, len(s))
    for i, line in enumerate(alone):
        assert together.end_s[i] == pytest.approx(line.end_s)
        assert together.idle_s[i] == pytest.approx(line.idle_s)
        assert together.gradients_s[i] == pytest.approx(line.gradients_s)
    spans = makespans(s, *columns, sends, blocking=blocking)
    assert spans == pytest.approx(np.array([line.makespan_s for line in alone]))


def test_more_candidates_than_a_block() -> None:
    s = schedule("1f1b", 3, 4)
    forward = np.linspace(0.5, 2.0, 200)[:, np.newaxis]
    expected = [float(timeline(s, float(f), 2.0).makespan_s) for f in forward[:, 0]]
    assert makespans(s, forward * np.ones(3), 2.0).tolist() == expected
    assert timeline(s, forward * np.ones(3), 2.0).makespan_s.tolist() == expected
    grid = forward.reshape(20, 10, 1) * np.ones(3)
    assert makespans(s, grid, 2.0).shape == (20, 10)


# -- by hand --------------------------------------------------------------------------------------


def test_uneven_gpipe_by_hand() -> None:
    """A flow shop: sum of all F, and the slowest F once more for each other micro-batch; then B."""
    forward, backward = [1.0, 3.0, 2.0], [2.0, 5.0, 4.0]
    line = timeline(schedule("gpipe", 3, 4), forward, backward)
    assert line.makespan_s == (6.0 + 3 * 3.0) + (11.0 + 3 * 5.0)


def test_transfers_by_hand() -> None:
    """Two ranks, one micro-batch, F 1, B 2, transfer 0.5: 1 + 0.5 + 1 + 2 + 0.5 + 2."""
    s = schedule("1f1b", 2, 1)
    assert timeline(s, 1.0, 2.0, send_s=0.5).makespan_s == 7.0
    assert timeline(s, 1.0, 2.0, send_s=0.5, blocking=True).makespan_s == 7.0


def test_blocking_transfers_by_hand() -> None:
    """GPipe, two ranks, two micro-batches, F 1, B 2, transfer 0.5.

    Asynchronous: F0 0-1, F1 1-2 on rank 0; F0 1.5-2.5, F1 2.5-3.5, B0 3.5-5.5, B1 5.5-7.5 on rank
    1; B0 6-8, B1 8-10 on rank 0. Blocking: rank 0 is occupied until 1.5, F1 1.5-2.5; rank 1 waits
    for it from 2.5 to 3 and runs it 3-4, B0 4-6, then sends until 6.5, B1 6.5-8.5; rank 0 receives
    the first until 6.5, B0 6.5-8.5, then the second until 9, B1 9-11.
    """
    s = schedule("gpipe", 2, 2)
    assert timeline(s, 1.0, 2.0, send_s=0.5).end_s.tolist() == [1, 2, 8, 10, 2.5, 3.5, 5.5, 7.5]
    blocked = timeline(s, 1.0, 2.0, send_s=0.5, blocking=True)
    assert blocked.end_s.tolist() == [1, 2.5, 8.5, 11, 2.5, 4, 6, 8.5]


def test_exposed_transfers_of_1f1b() -> None:
    """Blocking, in the steady state each pair costs F + B + two transfers on each rank."""
    spans = [
        float(timeline(schedule("1f1b", 4, m), 1.0, 2.0, send_s=0.5, blocking=True).makespan_s)
        for m in (20, 21)
    ]
    assert spans[1] - spans[0] == pytest.approx(1.0 + 2.0 + 2 * 0.5)


def test_transfers_within_a_rank_are_free() -> None:
    s = schedule("interleaved_1f1b", 1, 3, chunks=4)
    assert timeline(s, 1.0, 2.0, send_s=9.0).makespan_s == 4 * 3 * 3.0


def test_joined_actions_by_hand() -> None:
    """One rank: F0, then F1 with B0, then B1. F 1, B 2; half of the F is hidden: 1 + 2.5 + 2."""
    s = decode(b"0F0,(0F1;0B0)OVERLAP_F_B,0B1", name="f")
    line = timeline(s, 1.0, 2.0, overlap=0.5)
    assert line.end_s.tolist() == [1.0, 3.5, 3.5, 5.5]
    assert line.start_s.tolist() == [0.0, 1.0, 1.0, 3.5]
    assert line.busy_s.tolist() == [5.5]


def test_gradients_and_parameters_by_hand() -> None:
    """Two ranks, two micro-batches of 1F1B: B1 ends at 8 on rank 1 and 10 on rank 0."""
    line = timeline(schedule("1f1b", 2, 2), 1.0, 2.0)
    assert line.gradients_s.tolist() == [[9.0, 7.0]]
    assert line.parameters_s.tolist() == [[0.0, 1.0]]
    assert line.idle_s.tolist() == [3.0, 3.0]
    assert line.bubble_s.tolist() == [3.0, 0.0]


def test_copies_of_dualpipe_are_told_apart() -> None:
    line = timeline(schedule("dualpipe", 4, 8), 1.0, 2.0, 1.0, 1.0)
    assert line.gradients_s.shape == (2, 4)
    assert line.gradients_s[0] == pytest.approx(line.gradients_s[1])


@pytest.mark.parametrize(
    ("name", "times", "expected"),
    [
        ("gpipe", {"forward_s": 1.0}, "backward_s: gpipe needs it (or input_s and weight_s)"),
        ("zb_h1", {"forward_s": 1.0, "backward_s": 2.0}, "input_s: zb_h1 needs it"),
        ("zb_h1", {"forward_s": 1.0, "input_s": 2.0}, "weight_s: zb_h1 needs it"),
        ("gpipe", {"forward_s": [1.0], "backward_s": 2.0}, "forward_s: expected a number, or 2 in"),
        ("gpipe", {"forward_s": np.nan, "backward_s": 2.0}, "forward_s: must be finite and at lea"),
        (
            "gpipe",
            {"forward_s": 1.0, "backward_s": 2.0, "send_s": [1.0, 1.0]},
            "send_s: expected a number, or 1 in the last axis, got shape (2,)",
        ),
        (
            "gpipe",
            {"forward_s": 1.0, "backward_s": 2.0, "overlap": 2.0},
            "overlap: must be at most 1, got 2",
        ),
        (
            "gpipe",
            {"forward_s": np.ones((3, 2)), "backward_s": np.ones((4, 2))},
            "candidates: times of shapes (3,), (4,) do not broadcast",
        ),
    ],
)
def test_wrong_times(name: str, times: dict[str, Any], expected: str) -> None:
    for function in (timeline, makespans):
        with pytest.raises(InputError) as error:
            function(schedule(name, 2, 2), **times)
        assert str(error.value).startswith(expected)


def test_canary_a_shifted_start_is_noticed() -> None:
    s = schedule("1f1b", 3, 4)
    times = {"F": [1.0] * 3, "B": [2.0] * 3}
    spans = simulated(s, times, [0.5] * 2)
    line = timeline(s, 1.0, 2.0, send_s=0.25)
    assert [spans[s.action(i)][0] for i in range(len(s))] != line.start_s.tolist()


@pytest.mark.parametrize(
    ("durations", "expected"),
    [
        ((0, 1), "forward: must be at least 1, got 0"),
        ((1, 1), "backward: must be at least 2, got 1"),
        ((10**5, 2), "a picture of"),
    ],
)
def test_wrong_pictures(durations: tuple[int, int], expected: str) -> None:
    with pytest.raises(InputError, match=expected):
        draw(schedule("zb_h1", 2, 3), *durations)
