"""Checks of schedules: every planted mistake is named."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from perfmodel import InputError
from perfmodel.pipelines import Action, Schedule, Updates, check, names, schedule, timeline


def of(*rows: str, joined: list[list[bool]] | None = None) -> Schedule:
    """The schedule of ranks with these actions."""
    return Schedule.of("s", [[Action.of(a) for a in row.split()] for row in rows], joined=joined)


@pytest.mark.parametrize("name", names())
def test_schedules_that_are_made_pass(name: str) -> None:
    s = schedule(name, 4, 8)
    assert check(s) is s


def test_a_schedule_may_mix_whole_and_split_backward_passes() -> None:
    check(of("0F0 0F1 0B0 0I1 0W1", "1F0 1I0 1W0 1F1 1B1"))


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        (["0F0 0B0 0B0"], "s: 0B0 is there 2 times"),
        (["0F0 0F0 0B0"], "s: 0F0 is there 2 times"),
        (["0F0 0F1 0B0"], "s: 0B1 is missing (or its parts 0I1 and 0W1)"),
        (["0F0 0B0 0B1"], "s: 0F1 is missing"),
        (["0F0 0I0"], "s: 0W0 is missing, though 0I0 is there"),
        (["0F0 0W0"], "s: 0I0 is missing, though 0W0 is there"),
        (["0F0 0B0 0W0"], "s: 0B0 is there, and also its part 0W0"),
        (["0F0", "1F0 1B0 0B0"], "s: rank 1 runs 0B0, but rank 0 holds stage 0 for micro-batch 0"),
        (["0B0 0F0"], "s: rank 0 runs 0B0 before 0F0, which it needs"),
        (["0F0 0W0 0I0"], "s: rank 0 runs 0W0 before 0I0, which it needs"),
        (
            ["0F0 0B0 0F1 0B1", "1F1 1B1 1F0 1B0"],
            "s: ranks wait for each other: rank 0 at 0B0 for 1B0 of rank 1, rank 1 at 1F1 for 0F1 "
            "of rank 0",
        ),
        (
            ["0F0 0B0", "2F0 2B0 1F0 1B0"],
            "s: ranks wait for each other: rank 1 at 2F0 for 1F0 of rank 1",
        ),
    ],
)
def test_planted_mistakes_are_named(rows: list[str], expected: str) -> None:
    with pytest.raises(InputError) as error:
        check(of(*rows))
    assert str(error.value) == expected


def test_copies_of_stages_are_found() -> None:
    """Micro-batch 0 goes from rank 1 to rank 0, micro-batch 1 the other way: two copies."""
    s = check(of("1F0 1B0 0F1 0B1", "0F0 0B0 1F1 1B1"))
    assert s.holders.tolist() == [[1, 0], [0, 1]]
    assert s.copy_of.tolist() == [0, 1]


def test_numbers_far_too_large_take_no_memory() -> None:
    with pytest.raises(InputError, match="at least 2000000000 actions, not 2"):
        of("0F0 999999999B0")


def test_a_stage_of_another_rank_is_named() -> None:
    s = schedule("1f1b", 2, 2)
    moved = replace(s, holders=s.holders[:, ::-1].copy())
    with pytest.raises(InputError, match="rank 0 runs 0F0, but rank 1 holds stage 0"):
        check(moved)


def test_no_actions() -> None:
    with pytest.raises(InputError, match="there are no actions"):
        check(of("", ""))


def test_wrong_numbers_in_columns() -> None:
    s = schedule("1f1b", 2, 2)
    stage = s.stage.copy()
    stage[0] = 5
    with pytest.raises(InputError, match="5F0: there is no such stage \\(0 to 1\\)"):
        check(replace(s, stage=stage))


def test_two_versions_need_batches_of_as_many_micro_batches_as_stages() -> None:
    s = schedule("pipedream_2bw", 4, 8)
    with pytest.raises(InputError, match="every 4 micro-batches"):
        check(replace(s, updates=Updates("double", 2)))


@pytest.mark.parametrize(
    ("joined", "expected"),
    [
        ([[False, False, True]], "the last action of a rank is joined with none"),
        ([[True, True, False]], "0F0 is joined with more than one other action"),
        ([[True, False, False]], "rank 0 at 0F0 for 0F0 of rank 0"),
    ],
)
def test_wrong_joins(joined: list[list[bool]], expected: str) -> None:
    with pytest.raises(InputError, match=expected):
        check(of("0F0 0I0 0W0", joined=joined))


def test_swapping_two_neighbours_is_noticed_or_harmless() -> None:
    """Each neighbouring pair of 1F1B on 3 ranks, swapped: either the check says what is wrong, or
    the new order can run, and takes at least as long as any rank works."""
    s = schedule("1f1b", 3, 4)
    refused = 0
    for i in range(len(s) - 1):
        if s.rank[i] != s.rank[i + 1]:
            continue
        order = np.arange(len(s))
        order[[i, i + 1]] = i + 1, i
        swapped = replace(
            s, kind=s.kind[order], stage=s.stage[order], micro_batch=s.micro_batch[order]
        )
        try:
            check(swapped)
        except InputError:
            refused += 1
            continue
        assert timeline(swapped, 1.0, 2.0).makespan_s >= 12.0
    assert 0 < refused < len(s)
