"""Which action waits for which, and an order in which all can be computed."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from perfmodel.base.arrays import NONE, Ids
from perfmodel.base.errors import InputError
from perfmodel.pipelines.actions import BACKWARD, FORWARD, INPUT, WEIGHT, Schedule


def sources(schedule: Schedule) -> Ids:
    """Position of the action whose result each one needs; -1 if none. Shape (actions,).

    Forward passes need that of the stage before, backward passes that of the stage after, on the
    last stage the forward pass, and gradients of weights those of the inputs. What a rank has kept
    since an earlier action of its own is not listed.
    """
    place, last = schedule.place, schedule.stages - 1
    backward = np.where(place[BACKWARD] != NONE, place[BACKWARD], place[INPUT])
    needs = np.full_like(place, NONE)
    needs[FORWARD, 1:] = place[FORWARD, :-1]
    for kind in (BACKWARD, INPUT):
        needs[kind, :last] = backward[1:]
        needs[kind, last] = place[FORWARD, last]
    needs[WEIGHT] = place[INPUT]
    return needs[schedule.kind, schedule.stage, schedule.micro_batch]


@dataclass(frozen=True, eq=False)
class ScheduleSteps:
    """Steps of all ranks, each one action or two joined ones, in rounds.

    All sources of a step, and the step before it on its rank, are in earlier rounds.

    Attributes
    ----------
    first, second : shape (steps,): positions of the actions of a step; the second is -1 if alone.
    before : shape (steps,): the step before on the same rank; -1 for the first.
    needs : shape (steps, 2): steps on other ranks whose results the two actions need; -1 if none.
    enters, leaves : shape (steps, 2): boundary between stages that these results cross, and that
        the results of the two actions cross to another rank; -1 if none.
    bounds : shape (rounds + 1,): steps of a round are contiguous.
    step_of : shape (actions,): the step of each action.
    """

    first: Ids
    second: Ids
    before: Ids
    needs: Ids
    enters: Ids
    leaves: Ids
    bounds: Ids
    step_of: Ids


@lru_cache(maxsize=32)
def steps_of(schedule: Schedule) -> ScheduleSteps:
    """Return the steps of a schedule in rounds: in each, every rank runs what it can.

    Raises
    ------
    InputError : ranks wait for each other; the text names the actions.
    """
    count = len(schedule)
    starts = np.ones(count, dtype=np.bool_)
    starts[1:] = ~schedule.joined[:-1]
    ends = schedule.begins[1:][np.diff(schedule.begins) > 0] - 1
    if schedule.joined[ends].any():
        raise InputError(f"{schedule.name}: the last action of a rank is joined with none")
    number = np.cumsum(starts) - 1
    first = np.nonzero(starts)[0]
    size = np.diff(np.append(first, count))
    if (size > 2).any():
        action = schedule.action(first[size > 2][0])
        raise InputError(f"{schedule.name}: {action} is joined with more than one other action")
    second = np.where(size == 2, first + 1, NONE)
    rank = schedule.rank[first]
    before = np.append(NONE, np.where(np.diff(rank) == 0, np.arange(len(first) - 1), NONE))
    source = sources(schedule)
    apart = (source != NONE) & (schedule.rank[source] != schedule.rank)
    enters = np.full(count + 1, NONE)
    enters[:-1][apart] = (schedule.stage - (schedule.kind == FORWARD))[apart]
    leaves = np.full(count + 1, NONE)
    leaves[source[apart]] = enters[:-1][apart]
    need = np.where(source == NONE, NONE, number[source])
    kept = (need != NONE) & ~apart & (need < number)
    need = np.append(np.where(kept, NONE, need), NONE)
    both = np.stack([first, second], axis=1)
    at = _rounds(schedule, np.searchsorted(first, schedule.begins), need[both], first)
    order = np.argsort(at, kind="stable")
    new = np.empty(len(first) + 1, dtype=np.int64)
    new[order], new[NONE] = np.arange(len(first)), NONE
    return ScheduleSteps(
        first[order],
        second[order],
        new[before][order],
        new[need[both]][order],
        enters[both][order],
        leaves[both][order],
        np.append(0, np.cumsum(np.bincount(at))),
        new[number],
    )


def _rounds(schedule: Schedule, begins: Ids, needs: Ids, first: Ids) -> Ids:
    """Round of each step; each rank runs one step a round if what it needs is there."""
    at = np.full(len(needs) + 1, -1)
    at[NONE] = 0  # that of the step "none"
    position, end, round_ = begins[:-1].copy(), begins[1:], 0
    ranks = np.nonzero(position < end)[0]
    while len(ranks):
        waiting = position[ranks]
        able = (at[needs[waiting]] >= 0).all(axis=1)
        if not able.any():
            raise InputError(f"{schedule.name}: {_circle(schedule, waiting, needs, first, at)}")
        at[waiting[able]] = round_
        position[ranks[able]] += 1
        ranks = ranks[position[ranks] < end[ranks]]
        round_ += 1
    return at[:-1]


def _circle(schedule: Schedule, waiting: Ids, needs: Ids, first: Ids, at: Ids) -> str:
    """Which ranks wait for each other: each for an action that another has not come to."""
    blocked = {int(schedule.rank[first[step]]): int(step) for step in waiting}
    rank, path, texts = next(iter(blocked)), [], []
    while rank not in path:
        path.append(rank)
        step = blocked[rank]
        missing = next(int(need) for need in needs[step] if at[need] < 0)
        other = int(schedule.rank[first[missing]])
        wanted = schedule.action(first[missing])
        texts.append(f"rank {rank} at {schedule.action(first[step])} for {wanted} of rank {other}")
        rank = other
    return "ranks wait for each other: " + ", ".join(texts[path.index(rank) :])
