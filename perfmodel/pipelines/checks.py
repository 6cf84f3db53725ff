"""Whether a schedule can run, and computes everything once."""

from __future__ import annotations

import numpy as np

from perfmodel.base.arrays import NONE
from perfmodel.base.errors import InputError
from perfmodel.pipelines.actions import (
    BACKWARD,
    FORWARD,
    INPUT,
    KINDS,
    WEIGHT,
    Action,
    Schedule,
)
from perfmodel.pipelines.structure import steps_of


def check(schedule: Schedule) -> Schedule:
    """Return the schedule if it can run and computes everything once.

    Raises
    ------
    InputError : an action is missing, or there twice, or on a rank that does not hold its stage; an
        action comes before one of the same rank that it needs; ranks wait for each other; two
        versions of the weights do not suffice. The text names the actions.
    """
    for finding in (_wrong_numbers, _wrong_rank, _wrong_count, _wrong_order, _wrong_versions):
        problem = finding(schedule)
        if problem:
            raise InputError(f"{schedule.name}: {problem}")
    steps_of(schedule)
    return schedule


def _wrong_numbers(s: Schedule) -> str:
    """Stages and micro-batches that do not exist."""
    if not len(s):
        return "there are no actions"
    for what, column, count in (
        ("stage", s.stage, s.stages),
        ("micro-batch", s.micro_batch, s.micro_batches),
    ):
        wrong = np.nonzero((column < 0) | (column >= count))[0]
        if len(wrong):
            return f"{s.action(wrong[0])}: there is no such {what} (0 to {count - 1})"
    return ""


def _wrong_rank(s: Schedule) -> str:
    """The first action on a rank that does not hold its stage for its micro-batch."""
    holder = s.holders[s.copy_of[s.micro_batch], s.stage]
    wrong = np.nonzero((holder != s.rank) & (holder != NONE))[0]
    if not len(wrong):
        return ""
    action, rank, right = s.action(wrong[0]), s.rank[wrong[0]], holder[wrong[0]]
    return (
        f"rank {rank} runs {action}, but rank {right} holds stage {action.stage} for micro-batch "
        f"{action.micro_batch}"
    )


def _wrong_count(s: Schedule) -> str:
    """The first action that is missing, or there more than once."""
    counts = np.zeros((len(KINDS), s.stages, s.micro_batches), dtype=np.int64)
    np.add.at(counts, (s.kind, s.stage, s.micro_batch), 1)

    def at(kind: int, where: np.ndarray) -> str:
        stage, micro_batch = np.argwhere(where)[0].tolist()
        return str(Action(KINDS[kind], stage, micro_batch))

    for kind in range(len(KINDS)):
        if (twice := counts[kind] > 1).any():
            return f"{at(kind, twice)} is there {counts[kind][twice][0]} times"
    there = counts.astype(np.bool_)
    if (missing := ~there[FORWARD]).any():
        return f"{at(FORWARD, missing)} is missing"
    if (both := there[BACKWARD] & (there[INPUT] | there[WEIGHT])).any():
        part = INPUT if (there[INPUT] & both).any() else WEIGHT
        return f"{at(BACKWARD, both)} is there, and also its part {at(part, both & there[part])}"
    if (missing := ~(there[BACKWARD] | there[INPUT] | there[WEIGHT])).any():
        first = at(BACKWARD, missing)
        return f"{first} is missing (or its parts {at(INPUT, missing)} and {at(WEIGHT, missing)})"
    for kind, other in ((INPUT, WEIGHT), (WEIGHT, INPUT)):
        if (missing := there[other] & ~there[kind]).any():
            return f"{at(kind, missing)} is missing, though {at(other, missing)} is there"
    return ""


def _wrong_order(s: Schedule) -> str:
    """The first action that comes before one of the same rank that it needs."""
    place, mine = s.place, (s.stage, s.micro_batch)
    needed = np.where(s.kind == WEIGHT, place[INPUT][mine], place[FORWARD][mine])
    wrong = np.nonzero((s.kind != FORWARD) & (needed > np.arange(len(s))))[0]
    if not len(wrong):
        return ""
    earlier, later = s.action(wrong[0]), s.action(needed[wrong[0]])
    return f"rank {s.rank[wrong[0]]} runs {earlier} before {later}, which it needs"


def _wrong_versions(s: Schedule) -> str:
    """A batch too small for two versions of the weights."""
    if s.updates.kind == "double" and s.updates.micro_batches < s.stages:
        return (
            f"two versions of the weights need an update every {s.stages} micro-batches (stages) "
            f"or more, got {s.updates.micro_batches}"
        )
    return ""
