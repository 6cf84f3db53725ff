"""What ranks repeat: a whole step with a flush, or what is between two updates without one."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from perfmodel.base.arrays import Ids
from perfmodel.pipelines.actions import FORWARD, Schedule


class Round(NamedTuple):
    """What every rank repeats without end, and ends with an update of its weights.

    ``schedule`` has the actions of one repetition. Micro-batch k stands for micro-batch k of some
    batch: ``ahead`` (actions,) is by how many batches an action is ahead of the one whose backward
    passes are in the same round.
    """

    schedule: Schedule
    ahead: Ids

    def lag(self, source: Ids, target: Ids) -> Ids:
        """Return how many rounds after its source each target takes place; both are positions of
        actions of the same micro-batch."""
        return np.asarray(self.ahead[source] - self.ahead[target])


def round_of(schedule: Schedule) -> Round:
    """Return what the ranks of a schedule repeat.

    Without a flush, rank r of p repeats for each of the micro-batches of an update: a forward pass,
    and the backward pass of the micro-batch p - r - 1 before. The first round begins when the
    pipeline has filled.

    >>> from perfmodel.pipelines import schedule
    >>> order, ahead = round_of(schedule("pipedream_2bw", 2, 4))
    >>> [str(action) for action in order.order(0)], ahead.tolist()
    (['0F1', '0B0', '0F0', '0B1'], [0, 0, 1, 0, 0, 0, 0, 0])
    """
    size = schedule.updates.micro_batches
    if schedule.updates.kind == "flush":
        return Round(schedule, np.zeros(len(schedule), np.int64))
    parts = []
    for rank in range(schedule.ranks):
        where = np.arange(schedule.begins[rank], schedule.begins[rank + 1])
        warm = int(np.argmax(schedule.kind[where] != FORWARD)) - 1  # before the first pair
        parts.append(where[warm : warm + 2 * size])
    rows = np.concatenate(parts)
    order = Schedule(
        schedule.name,
        schedule.kind[rows],
        schedule.stage[rows],
        (schedule.micro_batch[rows] % size).astype(np.int32),
        np.cumsum([0, *map(len, parts)], dtype=np.int64),
        schedule.holders,
        schedule.copy_of[:size],
        schedule.joined[rows],
        schedule.updates,
    )
    return Round(order, (schedule.micro_batch[rows] // size).astype(np.int64))
