"""The meaning of a parameter server's ops for training."""

from __future__ import annotations

import numpy as np

from perfmodel.architectures.ps.options import Options
from perfmodel.base.arrays import ranked
from perfmodel.inputs.job import Job
from perfmodel.results.schedule import CENTRE
from perfmodel.training.recorder import Handler, Meaning, Recorder


def meaning(job: Job, recorder: Recorder) -> Meaning:
    """Record reads of slices of the centre, and updates of them by one gradient or several.

    Under asp a worker reads a slice when its own push of it has been applied, otherwise when the
    reply or the pull begins.
    """
    options = Options.of(job)
    if options.sync == "bsp":
        read = _read(job, recorder, aggregated=options.local_aggregation)
        if options.backup_workers:
            return {"read": read, **_quorum(recorder, options.backup_workers)}

        def update(slice: int, _drawn: int) -> None:
            recorder.apply(CENTRE, range(job.workers), 1.0 / job.workers, slice)

        return {"read": read, "update": update}
    gathered: list[list[int]] = [[] for _ in recorder.slices]

    def gather(index: int, _drawn: int) -> None:
        worker, k = divmod(index, len(gathered))
        gathered[k].append(worker)
        if len(gathered[k]) == options.softsync:
            recorder.apply(CENTRE, gathered[k], 1.0 / options.softsync, k)
            gathered[k] = []
        if options.sync == "asp":
            recorder.read(worker, k)

    return {"read": _read(job, recorder), "update": gather}


def _read(job: Job, recorder: Recorder, *, aggregated: bool = False) -> Handler:
    """Return the handler of a pull, by one worker or, if aggregated, for all of its node."""
    members = [[worker] for worker in range(job.workers)]
    if aggregated:
        node = [job.cluster.node_of_worker(worker) for worker in range(job.workers)]
        of, first = ranked(np.array(node))
        members = [np.flatnonzero(of == of[k]).tolist() for k in first.tolist()]
        members = [members[k] for k in np.argsort(of[first])]

    def read(index: int, _drawn: int) -> None:
        pusher, k = divmod(index, len(recorder.slices))
        for worker in members[pusher]:
            recorder.read(worker, k)

    return read


def _quorum(recorder: Recorder, spare: int) -> Meaning:
    """Apply the first gradients of an iteration, and drop those that come later."""
    needed = recorder.workers - spare
    iteration = [0] * recorder.workers
    gathered: list[list[int]] = [[]]  # in each iteration
    updates = [0] * len(recorder.slices)

    def reply(worker: int, _drawn: int) -> None:
        iteration[worker] = len(gathered) - 1

    def gather(worker: int, _drawn: int) -> None:
        if iteration[worker] < len(gathered) - 1:
            recorder.drop(worker)
            return
        gathered[-1].append(worker)
        if len(gathered[-1]) == needed:
            gathered.append([])

    def update(slice: int, _drawn: int) -> None:
        recorder.apply(CENTRE, gathered[updates[slice]], 1.0 / needed, slice)
        updates[slice] += 1

    return {"reply": reply, "own": gather, "update": update}
