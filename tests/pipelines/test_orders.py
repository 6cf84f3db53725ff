"""Orders of schedules: textbook pictures by hand, frameworks' own lists, refused numbers."""

from __future__ import annotations

import time

import numpy as np
import pytest

from perfmodel import InputError
from perfmodel.pipelines import Action, Schedule, canonical, draw, names, schedule, timeline
from tests.clock import work_s

SIZES = [(p, m) for p in (2, 3, 4) for m in range(1, 9)]


def starts(s: Schedule, forward: float, backward: float) -> dict[Action, float]:
    begins = timeline(s, forward, backward).start_s
    return {s.action(i): float(begins[i]) for i in range(len(s))}


def gpipe_by_hand(p: int, m: int) -> dict[Action, float]:
    """F 1, B 2: forward passes go down a diagonal; after the last, backward passes go back up."""
    last = m + p - 1
    forward = {Action("F", r, k): r + k for r in range(p) for k in range(m)}
    backward = {
        Action("B", r, k): last + 2 * (p - 1 - r) + 2 * k for r in range(p) for k in range(m)
    }
    return {**forward, **backward}


def alternating_by_hand(p: int, m: int) -> dict[Action, float]:
    """F 1, B 2: the last rank has F_k at p - 1 + 3 k, and B_k right after it.

    B_k goes up from there, 2 a rank. Rank r runs p - r forward passes without waiting for one;
    then F_k follows B_(k - p + r), which ends at 3 k + r.
    """
    forward = {
        Action("F", r, k): r + k if k < p - r else 3 * k + r for r in range(p) for k in range(m)
    }
    backward = {Action("B", r, k): p + 3 * k + 2 * (p - 1 - r) for r in range(p) for k in range(m)}
    return {**forward, **backward}


@pytest.mark.parametrize(("p", "m"), SIZES)
def test_gpipe_starts_as_by_hand(p: int, m: int) -> None:
    assert starts(schedule("gpipe", p, m), 1, 2) == gpipe_by_hand(p, m)


@pytest.mark.parametrize(("p", "m"), SIZES)
@pytest.mark.parametrize("name", ["1f1b", "pipedream"])
def test_1f1b_starts_as_by_hand(name: str, p: int, m: int) -> None:
    assert starts(schedule(name, p, m), 1, 2) == alternating_by_hand(p, m)


def test_canary_the_two_pictures_differ() -> None:
    assert starts(schedule("gpipe", 2, 2), 1, 2) != alternating_by_hand(2, 2)


PICTURES = {
    ("gpipe", 2, 2): """
        0  1  .  .  0b 1b
        .  0  1  0b 1b .""",
    ("gpipe", 3, 2): """
        0  1  .  .  .  .  0b 1b
        .  0  1  .  .  0b 1b .
        .  .  0  1  0b 1b .  .""",
    ("1f1b", 2, 3): """
        0  1  .  0b 2  1b .  2b
        .  0  0b 1  1b 2  2b .""",
    ("1f1b", 3, 3): """
        0  1  2  .  .  0b .  1b .  2b
        .  0  1  .  0b 2  1b .  2b .
        .  .  0  0b 1  1b 2  2b .  .""",
    ("1f1b", 4, 2): """
        0  1  .  .  .  .  .  0b .  1b
        .  0  1  .  .  .  0b .  1b .
        .  .  0  1  .  0b .  1b .  .
        .  .  .  0  0b 1  1b .  .  .""",
    ("interleaved_1f1b", 2, 2): """
        0   1   0'  1'  .   0'b .   1'b 0b  1b
        .   0   1   0'  0'b 1'  1'b 0b  1b  .""",
    ("interleaved_1f1b", 2, 4): """
        0   1   0'  1'  2   0'b 3   1'b 2'  0b  3'  1b  .   2'b .   3'b 2b  3b
        .   0   1   0'  0'b 1'  1'b 2   0b  3   1b  2'  2'b 3'  3'b 2b  3b  .""",
    ("looped_bfs", 2, 2): """
        0   1   0'  1'  .   .   1'b 0'b 1b  0b
        .   0   1   0'  1'  1'b 0'b 1b  0b  .""",
}
"""Pictures by hand, forward and backward 1."""


@pytest.mark.parametrize(("name", "p", "m"), PICTURES)
def test_pictures_are_those_drawn_by_hand(name: str, p: int, m: int) -> None:
    expected = "\n".join(line.strip() for line in PICTURES[name, p, m].strip().splitlines())
    assert draw(schedule(name, p, m), 1, 1) == expected


def test_zero_bubble_pictures() -> None:
    """ZB-H1 and ZB-H2 of two ranks by hand, F, I and W 1 each."""
    assert draw(schedule("zb_h1", 2, 3)).splitlines() == [
        "0  1  .  0i 0w 2  1i 1w 2i 2w",
        ".  0  0i 1  1i 0w 2  2i 1w 2w",
    ]
    assert draw(schedule("zb_h2", 2, 4)).splitlines() == [
        "0  1  2  0i 0w 3  1i 1w 2i 2w 3i 3w .",
        ".  0  0i 1  1i 2  2i 0w 3  3i 1w 2w 3w",
    ]


def test_pairs_of_dualpipe_are_drawn_together() -> None:
    rows = draw(schedule("dualpipe", 2, 4), 1, 2).splitlines()
    assert rows[0].split()[:5] == ["0", "2'", "1", "2'b", "-"]
    assert "3'&0b" in rows[0]


# -- as frameworks do -----------------------------------------------------------------------------


def test_megatron_without_interleaving() -> None:
    """Rank 1 of 4, 5 micro-batches: 4 - 1 - 1 = 2 to warm up."""
    order = " ".join(map(str, schedule("1f1b", 4, 5).order(1)))
    assert order == "1F0 1F1 1F2 1B0 1F3 1B1 1F4 1B2 1B3 1B4"


def test_megatron_interleaved() -> None:
    """Rank 1 of 2 with 2 chunks: (2 - 1 - 1) 2 + (2 - 1) 2 = 2 to warm up."""
    order = " ".join(map(str, schedule("interleaved_1f1b", 2, 2, chunks=2).order(1)))
    assert order == "1F0 1F1 3F0 3B0 3F1 3B1 1B0 1B1"


def test_megatron_groups() -> None:
    """Groups of 3, and a last one of 2: micro-batches 0 1 2 0 1 2 3 4 3 4 of chunks 0 0 0 1 1 1 0 0
    1 1, as in a comment of Megatron-LM's ``schedules.py``."""
    s = schedule("interleaved_1f1b", 2, 5, chunks=2, group=3)
    forwards = [a for a in s.order(0) if a.kind == "F"]
    assert [a.micro_batch for a in forwards] == [0, 1, 2, 0, 1, 2, 3, 4, 3, 4]
    assert [a.stage // 2 for a in forwards] == [0, 0, 0, 1, 1, 1, 0, 0, 1, 1]


def test_dualpipe_phases_of_the_first_rank() -> None:
    """Rank 0 of 4, 8 micro-batches, by hand from the eight phases of deepseek-ai/DualPipe.

    Micro-batches 0 to 3 go down (stage 0 here), 4 to 7 up (stage 3 here).
    """
    order = " ".join(map(str, schedule("dualpipe", 4, 8).order(0)))
    assert order == (
        "0F0 0F1 "  # 2 forward passes before any of the other direction come
        "0F2 3F4 "  # 1 of both
        "3I4 3W4 3F5 "  # the other direction, split
        "0F3 3B5 3F6 0B0 "  # pairs
        "3B6 3F7 0B1 "
        "3B7 0I2 "  # the second half of the last ones is split
        "0W2 0I3 "
        "0W3"
    )


def test_zb_v_of_the_last_rank() -> None:
    """Rank 1 of 2, 3 micro-batches, by hand from the phases of ``ScheduleZBVZeroBubble``."""
    order = " ".join(map(str, schedule("zb_v", 2, 3).order(1)))
    assert order == (
        "1F0 2F0 1F1 2F1 2I0 2W0 "  # to warm up
        "1F2 1I0 1W0 2F2 2I1 2W1 "
        "1I1 2I2 1I2 1W1 2W2 1W2"  # to cool down
    )


def test_stages_of_schedules_in_the_shape_of_a_v() -> None:
    assert [schedule("zb_v", 3, 5).held(r) for r in range(3)] == [(0, 5), (1, 4), (2, 3)]
    assert [schedule("dualpipe_v", 2, 4).held(r) for r in range(2)] == [(0, 3), (1, 2)]
    assert [schedule("dualpipe", 4, 8).held(r) for r in range(4)] == [
        (0, 3), (1, 2), (1, 2), (0, 3),
    ]  # fmt: skip
    assert [schedule("interleaved_1f1b", 2, 2).held(r) for r in range(2)] == [(0, 2), (1, 3)]


# -- names and numbers ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("ScheduleGPipe", "gpipe"),
        ("Schedule1F1B", "1f1b"),
        ("ScheduleInterleaved1F1B", "interleaved_1f1b"),
        ("ScheduleLoopedBFS", "looped_bfs"),
        ("ScheduleInterleavedZeroBubble", "interleaved_zb"),
        ("ScheduleZBVZeroBubble", "zb_v"),
        ("ScheduleDualPipeV", "dualpipe_v"),
        ("PipeDream-2BW", "pipedream_2bw"),
        ("ZB1P", "zb_h1"),
        ("pipedream-flush", "1f1b"),
    ],
)
def test_other_spellings(given: str, expected: str) -> None:
    assert canonical(given) == expected
    assert canonical(expected) == expected


@pytest.mark.parametrize(
    ("arguments", "options", "expected"),
    [
        (("gpip", 2, 2), {}, "unknown pipeline schedule 'gpip'; did you mean 'gpipe'?"),
        (("gpipe", 0, 2), {}, "ranks: must be at least 1, got 0"),
        (("1f1b", 2, 2.5), {}, "micro_batches: expected a whole number, got 2.5"),
        (("1f1b", 10**6, 10**6), {}, "ranks, micro_batches, chunks: 2000000000000 actions (most"),
        (("1f1b", 2, 2), {"chunks": 2}, "chunks: 1f1b has one stage a rank, got 2 (with more: int"),
        (("zb_v", 2, 3), {"chunks": 3}, "chunks: zb_v has exactly 2 chunks a rank, got 3"),
        (("gpipe", 2, 3), {"group": 3}, "gpipe has no option 'group' (allowed: none)"),
        (
            ("interleaved_1f1b", 4, 11),
            {},
            "micro_batches: interleaved_1f1b with 4 ranks divides them into 2 equal rounds, and 11 "
            "is no multiple (possible: 10, 12)",
        ),
        (
            ("interleaved_1f1b", 4, 8),
            {"group": 3},
            "group: must be from 4 (ranks) to 8 (micro_batches), got 3",
        ),
        (
            ("interleaved_1f1b", 4, 10),
            {"group": 4},
            "micro_batches: 10 leaves a last group of 2, fewer than the 4 ranks (possible with "
            "group 4: 8, 12)",
        ),
        (
            ("dualpipe", 3, 12),
            {},
            "ranks: dualpipe needs an even number, got 3 (possible: 2, 4)",
        ),
        (
            ("dualpipe", 4, 7),
            {},
            "micro_batches: dualpipe needs an even number, at least twice the 4 ranks, got 7 "
            "(possible: 8 and more)",
        ),
        (
            ("dualpipe_v", 4, 7),
            {},
            "micro_batches: dualpipe_v needs at least as many as stages, 8 with 4 ranks, got 7",
        ),
        (
            ("pipedream_2bw", 4, 8),
            {"batch": 2},
            "batch: pipedream_2bw needs at least as many micro-batches an update as ranks (4), got",
        ),
        (
            ("pipedream_2bw", 4, 10),
            {},
            "micro_batches: pipedream_2bw updates every 4 micro-batches, and 10 is no multiple "
            "(possible: 8, 12)",
        ),
    ],
)
def test_what_cannot_be_is_refused(arguments: tuple, options: dict, expected: str) -> None:
    with pytest.raises(InputError) as error:
        schedule(*arguments, **options)
    assert str(error.value).startswith(expected)


def test_possible_numbers_of_micro_batches_are_possible() -> None:
    for m in range(1, 40):
        try:
            schedule("interleaved_1f1b", 5, m)
        except InputError as error:
            possible = str(error).partition("(possible: ")[2].rstrip(")").split(", ")
            assert [schedule("interleaved_1f1b", 5, int(n)).micro_batches for n in possible]


def test_every_name_has_a_schedule() -> None:
    assert len(names()) == 12
    assert [schedule(name, 2, 4).name for name in names()] == list(names())


def test_large_schedules_are_built_and_timed_fast() -> None:
    """16 ranks, 8 chunks and 64 micro-batches: milliseconds, on a machine that is not busy."""
    seconds = []
    for _ in range(3):
        begin = time.process_time()
        s = schedule("interleaved_1f1b", 16, 64, chunks=8)
        line = timeline(s, np.ones(128), 2.0, send_s=0.1)
        seconds.append(time.process_time() - begin)
    assert (len(s), float(line.makespan_s) > 0.0) == (16384, True)
    assert min(seconds) < 3.75 * work_s()


def test_actions_that_complete_gradients() -> None:
    """By hand: of 1F1B with two micro-batches, rank 0 runs F0 F1 B0 B1, and rank 1 F0 B0 F1 B1; a
    split backward pass completes gradients with its part W, here of micro-batch 0 last."""
    both = schedule("1f1b", 2, 2)
    assert both.chunks == ((0,), (1,))
    assert both.finals == ((3,), (7,))
    order = [Action(kind, 0, k) for kind, k in (("F", 0), ("F", 1), ("I", 0), ("B", 1), ("W", 0))]
    assert Schedule.of("split", [order]).finals == ((4,),)
    looped = schedule("interleaved_1f1b", 2, 2, chunks=2)
    assert looped.chunks == ((0, 2), (1, 3))
    actions = [[str(looped.action(k)) for k in ends] for ends in looped.finals]
    assert actions == [["0B1", "2B1"], ["1B1", "3B1"]]
