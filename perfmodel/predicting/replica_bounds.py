"""The least that a step of a layout can take, at a small part of the cost of its formulas.

A device computes, and sums with those that divide its layers, what its share of the layers takes in
all micro-batches. Where each device holds one range of chunks and follows a schedule with a flush,
the first micro-batch comes through the stages before it, and the last goes back through them.
Transfers, exchanges among replicas, updates and waits for others only add to that.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from perfmodel.base import files
from perfmodel.base.arrays import Floats, Ids
from perfmodel.inputs.job import Job
from perfmodel.inputs.replica import Replica
from perfmodel.pipelines.actions import BACKWARD, FORWARD, INPUT
from perfmodel.predicting.replica_columns import UNLIKE, Known
from perfmodel.predicting.tensor_sums import slowdown_of

IN_TURN = ("1f1b", "gpipe", "interleaved_1f1b", "looped_bfs")
"""Schedules in which rank r of p holds chunks r, r + p, ..., ends with a backward pass of the first
of them, and does not split backward passes."""

V_SHAPED = "zb_v"
"""Schedule in which rank r of p holds chunks r and 2 p - 1 - r."""

PART = 1.0 - 1e-9
"""Of the least time, against rounding."""


class Least(NamedTuple):
    """Layouts whose least times are wanted, but for the architecture: ``columns`` are jobs of one
    micro-batch with all different layers, ``replicas`` all different stages and schedules (None for
    single devices), and ``column`` and ``replica`` (layouts,) which of them each has."""

    columns: Sequence[Job]
    replicas: Sequence[Replica | None]
    column: Ids
    replica: Ids


def least_steps(least: Least, passes: Ids, known: Known) -> Floats:
    """Return the least seconds of a step of each layout with each of its numbers of micro-batches,
    ``passes``, (layouts, numbers); 0 where nothing is known."""
    result = np.zeros(passes.shape)
    open_ended = np.array([job.unequal or job.options.asynchronous for job in least.columns])
    for number, replica in enumerate(least.replicas):
        rows = np.flatnonzero((least.replica == number) & ~open_ended[least.column])
        if not len(rows):
            continue
        columns, at = np.unique(least.column[rows], return_inverse=True)
        jobs = [least.columns[k] for k in columns]
        busy_s, around_s = _single(jobs) if replica is None else _ranks(jobs, replica, known)
        most = np.zeros((len(rows), passes.shape[1]))
        for of_rank_s, beside_s in zip(busy_s, around_s, strict=True):
            most = np.maximum(most, of_rank_s[at, None] * passes[rows] + beside_s[at, None])
        result[rows] = PART * most
    return result


def _single(jobs: Sequence[Job]) -> tuple[Floats, Floats]:
    """Return what :func:`_ranks` does of single devices."""
    both_s = [slowdown_of(job) * (job.workload.forward_s + job.workload.backward_s) for job in jobs]
    return np.array([both_s]), np.zeros((1, len(jobs)))


def _ranks(jobs: Sequence[Job], replica: Replica, known: Known) -> tuple[Floats, Floats]:
    """Return the seconds that each rank is busy with a micro-batch, and those before and after all
    of them, (ranks, jobs); of schedules of which that is not known, those of a mean rank."""
    alike: dict[tuple[range, ...], list[int]] = defaultdict(list)
    for k, job in enumerate(jobs):
        alike[known.chunks_of(job, replica)].append(k)
    ranks, parts = replica.pipeline, []
    for chunks, members in alike.items():
        works = [known.work(jobs[k]) for k in members]
        seconds = np.stack([one.seconds + one.sums for one in works], axis=-1)
        starts = [chunk.start for chunk in chunks]
        passes_s = np.add.reduceat(seconds, starts, axis=1)  # (kinds, chunks, members)
        parts.append((members, _of_schedule(passes_s, replica.schedule, ranks)))
    busy_s, around_s = np.zeros((2, len(parts[0][1][0]), len(jobs)))
    for members, (busy, around) in parts:
        busy_s[:, members], around_s[:, members] = busy, around
    return busy_s, around_s


def _of_schedule(passes_s: Floats, name: str, ranks: int) -> tuple[Floats, Floats]:
    """Return what :func:`_ranks` does, from the seconds of each chunk by kind of action, (kinds,
    chunks, jobs). Where backward passes are split, ranks come twice: with all that they do from
    their own first action, and without the gradients of weights from the first of all."""
    both_s = passes_s[FORWARD] + passes_s[BACKWARD]
    if files.looks_like_path(name) or name.startswith(UNLIKE):
        mean_s = both_s.sum(axis=0, keepdims=True) / ranks
        return mean_s, np.zeros_like(mean_s)
    if name in IN_TURN:
        return _of_ranks(both_s, ranks), _before(both_s, ranks)
    way_s = passes_s[FORWARD] + passes_s[INPUT]
    if name == V_SHAPED:
        busy = [one[:ranks] + one[ranks:][::-1] for one in (both_s, way_s)]
    else:
        busy = [_of_ranks(one, ranks) for one in (both_s, way_s)]
    around = [np.zeros_like(busy[0]), _before(way_s, ranks)]
    return np.concatenate(busy), np.concatenate(around)


def _of_ranks(chunks_s: Floats, ranks: int) -> Floats:
    """Return the sums of chunks r, r + ranks, ..., (ranks, jobs)."""
    summed: Floats = chunks_s.reshape(-1, ranks, chunks_s.shape[-1]).sum(axis=0)
    return summed


def _before(chunks_s: Floats, ranks: int) -> Floats:
    """Return the sums of the chunks before the first one of each rank, (ranks, jobs)."""
    return np.asarray(np.cumsum(chunks_s[:ranks], axis=0) - chunks_s[:ranks])
