"""Facts about a schedule that a replay needs before it begins, found without a loop over rows."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.arrays import Floats, Ids
from perfmodel.results.schedule import CENTRE, WHOLE, Event, Schedule, by_slice, gradient_keys

Version = tuple[int, int, int]
"""A model, a slice and its version."""


class ReplayPlan(NamedTuple):
    """Facts about the rows (rows,) and groups of a schedule.

    Attributes
    ----------
    bounds : (groups + 1,) first row of each group, and the end of the last.
    applied : (rows,) whether a GRADIENT is applied anywhere.
    staleness : (rows,) staleness of each APPLY, mean over its slices.
    gathered : average number of gradients per optimizer step, or per step of the mean model.
    old : versions that are mixed in after they have been overwritten, and how often.
    has_centre : whether the schedule has a centre.
    """

    bounds: Ids
    applied: NDArray[np.bool_]
    staleness: Floats
    gathered: float
    old: dict[Version, int]
    has_centre: bool


def make_plan(schedule: Schedule) -> ReplayPlan:
    """Find the facts; the schedule's rows must be consistent, see ``Schedule.check``."""
    event = schedule.event
    key = gradient_keys(schedule)
    computed = np.flatnonzero(event == Event.GRADIENT)
    applies = np.flatnonzero(event == Event.APPLY)
    applied = np.zeros(len(schedule), np.bool_)
    applied[computed] = np.isin(key[computed], key[applies])
    first = np.flatnonzero(np.diff(schedule.group, prepend=schedule.group[:1] - 1))
    return ReplayPlan(
        np.append(first, len(schedule)),
        applied,
        _staleness(schedule),
        _gathered(schedule, applies),
        _old_versions(schedule),
        bool((schedule.model == CENTRE).any()),
    )


def _staleness(schedule: Schedule) -> Floats:
    """Return the staleness of each APPLY, mean over its slices; 0 for other rows."""
    central = bool((schedule.model == CENTRE).any())
    counted = (schedule.event == Event.APPLY) & ((schedule.model == CENTRE) == central)
    staleness = np.zeros(len(schedule))
    if counted.any():
        times = np.where(schedule.slice[counted] == WHOLE, len(schedule.header.slices), 1)
        sums = np.add.reduceat(schedule.staleness().astype(np.float64), np.cumsum(times) - times)
        staleness[counted] = sums / times
    return staleness


def _gathered(schedule: Schedule, applies: Ids) -> float:
    """Return the mean number of gradients per optimizer step.

    If workers step their own models and average them, a step of the average has gathered the
    gradients of all workers.
    """
    if not len(applies):
        return 1.0
    columns = (schedule.group, schedule.model, schedule.slice)
    order = np.lexsort([column[applies] for column in columns])
    different = np.zeros(len(applies) - 1, np.bool_)
    for column in columns:
        different |= np.diff(column[applies][order].astype(np.int64)) != 0
    steps = int(different.sum()) + 1
    averaged = schedule.header.workers if (schedule.model[applies] != CENTRE).all() else 1
    return averaged * len(applies) / steps


def _old_versions(schedule: Schedule) -> dict[Version, int]:
    """Return the versions that a MIX uses although an earlier group has written a newer one."""
    if not (schedule.event == Event.MIX).any():
        return {}
    count = len(schedule.header.slices)
    rows, slices = by_slice(schedule)
    event = schedule.event[rows]
    writes = (event == Event.APPLY) | (event == Event.MIX)
    mixes = event == Event.MIX
    most = int(schedule.version.max()) + 2

    def keys(model: NDArray[np.int32], slice_: Ids, version: Ids) -> Ids:
        return ((model.astype(np.int64) + 1) * count + slice_) * most + version

    written = keys(schedule.model[rows][writes], slices[writes], schedule.version[rows][writes])
    order = np.argsort(written, kind="stable")
    written, group = written[order], schedule.group[rows][writes][order]
    partner, version = schedule.other[rows][mixes], schedule.other_version[rows][mixes]
    newer = keys(partner, slices[mixes], version + 1)
    at = np.minimum(np.searchsorted(written, newer), len(written) - 1)
    old = (written[at] == newer) & (group[at] < schedule.group[rows][mixes])
    columns = (partner[old], slices[mixes][old], version[old])
    return Counter(zip(*(column.tolist() for column in columns), strict=True))
