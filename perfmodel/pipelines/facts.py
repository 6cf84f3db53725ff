"""What follows from the order alone: activations in flight, versions of weights, and transfers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from perfmodel.base.arrays import NONE, Floats, Ids, Refs
from perfmodel.base.errors import InputError, number
from perfmodel.pipelines.actions import (
    BACKWARD,
    FORWARD,
    INPUT,
    WEIGHT,
    Flags,
    Schedule,
)
from perfmodel.pipelines.structure import sources


def in_flight(schedule: Schedule, weight: ArrayLike = 1.0, kept: float = 1.0) -> Floats:
    """Largest sum of activations that each rank keeps at a time.

    What a stage keeps of a micro-batch is there from its forward pass to the end of its backward
    pass; where this is split, the share ``kept`` stays until the weights' gradients are computed.

    Parameters
    ----------
    weight : what each stage keeps of a micro-batch: a number, or shape (..., stages); with 1, the
        result is the number of micro-batches, each chunk counted. In bytes, the result is too.
    kept : from 0 to 1.

    Returns
    -------
    Shape (..., ranks).

    >>> from perfmodel.pipelines import schedule
    >>> in_flight(schedule("1f1b", 4, 8)).tolist(), in_flight(schedule("gpipe", 2, 8)).tolist()
    ([4.0, 3.0, 2.0, 1.0], [8.0, 8.0])

    Raises
    ------
    InputError : the weights do not fit to the stages; ``kept`` is not between 0 and 1.
    """
    number("kept", kept, at_most=1.0)
    weights = per_stage("weight", weight, schedule.stages)
    share = np.empty(WEIGHT + 1)
    share[[FORWARD, BACKWARD, INPUT, WEIGHT]] = 1.0, -1.0, kept - 1.0, -kept
    change = weights[..., schedule.stage] * share[schedule.kind]
    peaks = np.zeros((*change.shape[:-1], schedule.ranks))
    for rank in range(schedule.ranks):
        rows = change[..., schedule.begins[rank] : schedule.begins[rank + 1]]
        peaks[..., rank] = np.cumsum(rows, axis=-1).max(axis=-1, initial=0.0)
    return peaks


def in_flight_by_stage(schedule: Schedule) -> Ids:
    """Largest number of micro-batches in flight of each copy of each stage: (copies, stages).

    >>> from perfmodel.pipelines import schedule
    >>> in_flight_by_stage(schedule("interleaved_1f1b", 2, 4)).tolist()
    [[4, 3, 2, 1]]
    """
    change = np.array([1, -1, 0, -1])[schedule.kind]
    copy = schedule.copy_of[schedule.micro_batch]
    cell = copy * schedule.stages + schedule.stage
    order = np.argsort(cell, kind="stable")  # a copy of a stage is on one rank: order is kept
    running = np.cumsum(change[order])  # ends at 0 in each cell
    peaks = np.zeros(schedule.copies * schedule.stages, dtype=np.int64)
    np.maximum.at(peaks, cell[order], running)
    return peaks.reshape(schedule.copies, schedule.stages)


def per_stage(name: str, values: ArrayLike, stages: int) -> Floats:
    """Return values as an array whose last axis has one per stage.

    Raises
    ------
    InputError : the last axis has another length; a value is negative or not finite.
    """
    try:
        array = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError(f"{name}: expected numbers, got {values!r}") from None
    if not (np.isfinite(array) & (array >= 0.0)).all():
        wrong = array[~(np.isfinite(array) & (array >= 0.0))][0]
        raise InputError(f"{name}: must be finite and at least 0, got {wrong:g}")
    if array.ndim and array.shape[-1] != stages:
        raise InputError(
            f"{name}: expected a number, or {stages} in the last axis, got shape {array.shape}"
        )
    return np.broadcast_to(array, (*array.shape[:-1], stages))


# -- versions of the weights ----------------------------------------------------------------------


def versions(schedule: Schedule) -> Ids:
    """Version of the weights that each action reads: the number of updates of its stage in them.

    Shape (actions,). Without asynchronous updates all read version 0.
    """
    updates, size = schedule.updates, schedule.updates.micro_batches
    if updates.kind == "flush":
        return np.zeros(len(schedule), dtype=np.int64)
    if updates.kind == "double":
        return np.maximum(schedule.micro_batch.astype(np.int64) // size - 1, 0)
    read = np.zeros((schedule.stages, schedule.micro_batches), dtype=np.int64)
    forward = schedule.kind == FORWARD
    ends = ((schedule.kind == BACKWARD) | (schedule.kind == WEIGHT)).astype(np.int64)
    for stage in range(schedule.stages):
        mine = schedule.stage == stage
        done = np.cumsum(np.where(mine, ends, 0)) // size
        passes = mine & forward
        read[stage, schedule.micro_batch[passes]] = done[passes]
    return read[schedule.stage, schedule.micro_batch]


def staleness(schedule: Schedule) -> Ids:
    """Updates of each stage between the weights that a micro-batch reads and its own: the most.

    Shape (stages,). In PipeDream, stage s of p has p - 1 - s; with two versions all have 1.

    >>> from perfmodel.pipelines import schedule
    >>> staleness(schedule("pipedream", 4, 12)), staleness(schedule("pipedream_2bw", 4, 12))
    (array([3, 2, 1, 0]), array([1, 1, 1, 1]))
    """
    stale = np.zeros(schedule.stages, dtype=np.int64)
    if schedule.updates.kind == "flush":
        return stale
    forward = np.nonzero(schedule.kind == FORWARD)[0]
    update = schedule.micro_batch[forward] // schedule.updates.micro_batches
    np.maximum.at(stale, schedule.stage[forward], update - versions(schedule)[forward])
    return stale


def stored_versions(schedule: Schedule) -> Ids:
    """Most versions of its weights that each stage keeps at a time, shape (stages,).

    These are the newest, and those that micro-batches in flight have read.

    >>> from perfmodel.pipelines import schedule
    >>> stored_versions(schedule("pipedream", 4, 12)), stored_versions(schedule("1f1b", 2, 4))
    (array([4, 3, 2, 1]), array([1, 1]))
    """
    most = np.ones(schedule.stages, dtype=np.int64)
    if schedule.updates.kind == "flush":
        return most
    read = versions(schedule)
    for stage in range(schedule.stages):
        reading: dict[int, int] = {}
        done = 0
        for i in np.nonzero(schedule.stage == stage)[0]:
            if schedule.kind[i] == FORWARD:
                reading[int(schedule.micro_batch[i])] = int(read[i])
                newest = done // schedule.updates.micro_batches
                most[stage] = max(most[stage], len({newest, *reading.values()}))
            elif schedule.kind[i] != INPUT:
                del reading[int(schedule.micro_batch[i])]
                done += 1
    return most


# -- transfers ------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Transfers:
    """Data sent between ranks, as columns: by sender, and in the order in which it produces them.

    Attributes
    ----------
    sender, receiver : ranks.
    boundary : b is the one between stages b and b + 1.
    forward : True for activations, False for their gradients.
    micro_batch : which one.
    produced, consumed : positions of the action that computes it, and of the one that needs it.
    """

    sender: Refs
    receiver: Refs
    boundary: Refs
    forward: Flags
    micro_batch: Refs
    produced: Ids
    consumed: Ids

    def __len__(self) -> int:
        return len(self.sender)


def transfers(schedule: Schedule) -> Transfers:
    """Return what ranks send to each other.

    >>> from perfmodel.pipelines import schedule
    >>> t = transfers(schedule("1f1b", 2, 2))
    >>> list(zip(t.sender.tolist(), t.receiver.tolist(), t.forward.tolist(), strict=True))
    [(0, 1, True), (0, 1, True), (1, 0, False), (1, 0, False)]
    """
    source = sources(schedule)
    consumed = np.nonzero(source != NONE)[0]
    consumed = consumed[schedule.rank[source[consumed]] != schedule.rank[consumed]]
    consumed = consumed[np.argsort(source[consumed], kind="stable")]
    produced = source[consumed]
    return Transfers(
        schedule.rank[produced],
        schedule.rank[consumed],
        np.minimum(schedule.stage[produced], schedule.stage[consumed]),
        schedule.kind[produced] == FORWARD,
        schedule.micro_batch[produced],
        produced,
        consumed,
    )
