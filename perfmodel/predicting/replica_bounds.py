"""The least that a step of a layout can take, at a small part of the cost of its formulas.

A device computes, and sums with those that divide its layers, what its share of the layers takes in
all micro-batches. Where each device holds one range of chunks and follows a schedule with a flush,
the first micro-batch comes through the stages before it, and the last goes back through them.
Transfers, exchanges among replicas, updates and waits for others only add to that.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np

from perfmodel.base.arrays import Floats, Ids
from perfmodel.base.errors import InputError
from perfmodel.inputs.job import Job
from perfmodel.pipelines.actions import BACKWARD, FORWARD
from perfmodel.predicting.replica_columns import Known, column_of, structure_of
from perfmodel.predicting.replicas import replica_of
from perfmodel.predicting.tensor_sums import slowdown_of
from perfmodel.replicas.stages import chunks_of

IN_TURN = ("1f1b", "gpipe", "interleaved_1f1b")
"""Schedules in which rank r of p holds chunks r, r + p, ..., ends with a backward pass of the first
of them, and does not split backward passes."""

PART = 1.0 - 1e-9
"""Of the least time, against rounding."""


class Bounds:
    """Least times of steps; layouts that differ in their architecture share them."""

    def __init__(self, known: Known) -> None:
        self.known = known
        self.ranks: dict[Hashable, tuple[Floats, Floats]] = {}
        self.chunks: dict[Hashable, tuple[range, ...] | InputError] = {}

    def least_s(self, job: Job, passes: Ids) -> Floats:
        """Return the least seconds of a step of a job, which is that of one micro-batch, with each
        of these numbers of micro-batches, (numbers,); 0 where nothing is known.

        Raises
        ------
        InputError : the layers or the nodes do not allow such replicas.
        """
        if job.replica is not None:
            self._chunks(job)
            self.known.seats_of(job)
        if job.unequal or job.options.asynchronous:
            return np.zeros(len(passes))
        if job.replica is None:
            work = job.workload
            each_s = PART * slowdown_of(job) * (work.forward_s + work.backward_s)
            return np.asarray(each_s * passes, np.float64)
        busy_s, around_s = self._ranks(job)
        return np.asarray(
            PART * (busy_s[:, None] * passes + around_s[:, None]).max(axis=0), np.float64
        )

    def _chunks(self, job: Job) -> tuple[range, ...]:
        """Return the layers of each chunk."""
        key = id(job.workload), structure_of(job)
        if key not in self.chunks:
            try:
                self.chunks[key] = chunks_of(job.workload.layers, replica_of(job))
            except InputError as error:
                self.chunks[key] = error
        found = self.chunks[key]
        if isinstance(found, InputError):
            raise found
        return found

    def _ranks(self, job: Job) -> tuple[Floats, Floats]:
        """Return the seconds that each rank is busy with a micro-batch, and those before and after
        all of them, (ranks,); of schedules not in turn, those of a mean rank."""
        replica, key = replica_of(job), (column_of(job), structure_of(job))
        if key in self.ranks:
            return self.ranks[key]
        work = self.known.work(job)
        seconds = work.seconds + work.sums
        if replica.schedule not in IN_TURN:
            both_s = (seconds[FORWARD] + seconds[BACKWARD]).sum()
            made = np.array([both_s / replica.pipeline]), np.zeros(1)
        else:
            starts = [chunk.start for chunk in self._chunks(job)]
            forward_s, backward_s = np.add.reduceat(seconds[[FORWARD, BACKWARD]], starts, axis=1)
            both_s = forward_s + backward_s
            first_s = np.cumsum(both_s[: replica.pipeline]) - both_s[: replica.pipeline]
            made = both_s.reshape(-1, replica.pipeline).sum(axis=0), first_s
        self.ranks[key] = made
        return made


def least_steps(
    shapes: Sequence[Job], passes: Sequence[Ids], known: Known
) -> list[Floats | InputError]:
    """Return the least seconds of a step of each layout with each of its numbers of micro-batches;
    or why it is impossible, see :meth:`Bounds.least_s`.

    Parameters
    ----------
    shapes : jobs of one model, whose workload is that of one micro-batch, with layers.
    passes : numbers of micro-batches of each.
    """
    bounds, known_s = Bounds(known), dict[Hashable, Floats | InputError]()
    found = []
    for job, numbers in zip(shapes, passes, strict=True):
        key = (
            *(id(job.workload), id(job.cluster), job.replica, job.workers, numbers.tobytes()),
            *(job.unequal, job.options.asynchronous),
        )
        if key not in known_s:
            try:
                known_s[key] = bounds.least_s(job, numbers)
            except InputError as error:
                known_s[key] = error
        found.append(known_s[key])
    return found
