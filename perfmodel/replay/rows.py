"""The rows of a schedule in the form a replay uses, with commuting rows merged."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.arrays import Floats, Ids
from perfmodel.replay.plan import ReplayPlan
from perfmodel.results.schedule import WHOLE, Event, Schedule, gradient_keys


class SliceRow(NamedTuple):
    """A row for the slices from ``first`` up to ``after`` (exclusive); the rest as in the schedule.

    ``applied`` and ``staleness`` come from the plan; ``last`` tells that no later row uses the
    gradient.
    """

    event: int
    worker: int
    step: int
    model: int
    other: int
    first: int
    after: int
    weight: float
    version: int
    other_version: int
    applied: bool
    last: bool
    staleness: float


class Rows(NamedTuple):
    """All rows as columns (rows,), in the order of :class:`SliceRow`, and ``bounds`` (groups + 1,).

    ``gradients`` is the total number of gradients applied.
    """

    time_s: Floats
    columns: list[NDArray[np.generic]]
    bounds: Ids
    gradients: int


def rows_of(schedule: Schedule, plan: ReplayPlan) -> Rows:
    """Return the rows, with the reads and updates of neighbouring slices merged.

    Between two rows of another kind, reads and updates of different slices commute. So a worker
    that sends its slices one by one, while others send theirs, takes one update instead of many.
    If a slice is updated after another row of the same slice, the two are not merged. The results
    do not change, except for which update first has a new learning rate.
    """
    count = len(schedule.header.slices)
    is_whole = schedule.slice == WHOLE
    first = np.where(is_whole, 0, schedule.slice).astype(np.int64)
    after = np.where(is_whole, count, schedule.slice + 1).astype(np.int64)
    order = np.arange(len(schedule))
    begins = order
    if count > 1 and not plan.old:
        window, free = _windows(schedule, plan, first)
        read = schedule.event == Event.READ
        key = gradient_keys(schedule)
        order = np.lexsort([np.where(free, key * count + first, 0), 2 * window + (free & read)])
        joined = free[order[1:]] & free[order[:-1]]
        for column in (window, schedule.event, schedule.model, key, schedule.weight):
            joined &= column[order[1:]] == column[order[:-1]]
        joined &= plan.staleness[order[1:]] == plan.staleness[order[:-1]]
        joined &= first[order[1:]] == after[order[:-1]]
        begins = np.flatnonzero(np.append(True, ~joined))
    merged = order[begins]
    ends = order[np.append(begins[1:], len(order)) - 1]
    group = schedule.group[merged]
    new = np.flatnonzero(np.append(True, group[1:] != group[:-1])) if len(group) else begins
    columns: list[NDArray[np.generic]] = [
        getattr(schedule, name)[merged] for name in ("event", "worker", "step", "model", "other")
    ]
    columns += [first[merged], after[ends]]
    columns += [getattr(schedule, name)[merged] for name in ("weight", "version", "other_version")]
    last = _last_uses(schedule, merged)
    columns += [plan.applied[merged], last, plan.staleness[merged]]
    time_s = np.maximum.accumulate(schedule.time_s[ends])
    gradients = int((last & (schedule.event[merged] == Event.APPLY)).sum())
    return Rows(time_s, columns, np.append(new, len(merged)), gradients)


def _last_uses(schedule: Schedule, rows: Ids) -> NDArray[np.bool_]:
    """Return, for rows in this order, whether each is the last to apply or drop its gradient."""
    event = schedule.event[rows]
    uses = np.flatnonzero((event == Event.APPLY) | (event == Event.DROP))
    key = gradient_keys(schedule)[rows]
    by_key = uses[np.argsort(key[uses], kind="stable")]
    last = np.zeros(len(rows), np.bool_)
    last[by_key[np.diff(key[by_key], append=-1) != 0]] = True
    return last


def _windows(schedule: Schedule, plan: ReplayPlan, slices: Ids) -> tuple[Ids, NDArray[np.bool_]]:
    """Return a number per row, equal for rows that may be reordered; and which rows may be.

    These are reads and updates of single slices, each a group by itself, with no other kind in
    between. Each slice is updated at most once, and before it is read.
    """
    event = schedule.event
    update = event == Event.APPLY
    free = (update | (event == Event.READ)) & (schedule.slice != WHOLE)
    free &= np.repeat(np.diff(plan.bounds) == 1, np.diff(plan.bounds))
    new = ~free
    new[1:] |= ~free[:-1]
    window = np.cumsum(new)
    order = np.argsort(window * len(schedule.header.slices) + slices, kind="stable")
    again = (window[order[1:]] == window[order[:-1]]) & (slices[order[1:]] == slices[order[:-1]])
    new[order[1:][again & update[order[1:]]]] = True
    return np.cumsum(new), free
