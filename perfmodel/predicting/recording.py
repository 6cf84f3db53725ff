"""Record a job's schedule: its simulation from the start, as reads, gradients and updates."""

from __future__ import annotations

import math

import msgspec

from perfmodel.architectures.base import architecture_of
from perfmodel.base.errors import InputError, TooLargeError, whole_number
from perfmodel.base.files import finite
from perfmodel.engine import codes
from perfmodel.engine.run import Simulation
from perfmodel.engine.warmup import Progress
from perfmodel.graph.op_graph import OpGraph
from perfmodel.inputs.job import Job
from perfmodel.predicting import budget, replicas
from perfmodel.results.schedule import MOST_ROWS, MOST_SLICES, Schedule
from perfmodel.training.recorder import Handler, Meaning, Recorder

PER_WORKER, MOST_BY_DEFAULT = 1000, 100_000
"""Default number of updates in a schedule: per worker, and at most."""

FEWEST_READS = 50
"""Least number of times the log is read until a schedule is complete."""


def schedule_of(
    job: Job,
    updates: int | None,
    *,
    max_ops: float,
    samples_per_s: float,
    progress: Progress | None = None,
) -> Schedule:
    """Record the schedule of a job from its start until ``updates`` gradients have been applied.

    ``samples_per_s`` is stored in it; ``progress`` is called with (done, all) updates.

    Raises
    ------
    InputError : ``updates`` is not in 1 to MOST_ROWS; the architecture does not define what its
        ops mean.
    TooLargeError : recording takes more than ``max_ops`` operations.
    """
    if updates is None:
        updates = min(PER_WORKER * job.workers, MOST_BY_DEFAULT)
    whole_number("updates", updates, at_most=MOST_ROWS)
    architecture = architecture_of(job)
    if any(island.steps > 1 for island in job.islands):
        raise InputError("schedule: cannot record islands that do several steps between exchanges")
    if job.replica is not None and any(replicas.delays(job)):
        raise InputError(
            f"schedule: {job.replica.schedule} gives each stage gradients of other weights, which "
            "cannot be recorded"
        )
    recorder, meaning = architecture.recording(job)
    if len(recorder.slices) > MOST_SLICES:
        raise InputError(
            f"schedule: the job has {len(recorder.slices)} slices, the limit is {MOST_SLICES}"
        )
    graph = budget.built(job, architecture.build, max_ops, iterations=1)
    rounds = math.ceil(updates / job.workers)
    if (cost := budget.SimulationCost(graph.n_turns, rounds)).ops > max_ops:
        raise TooLargeError(
            f"schedule: {updates} updates take {cost.text}, above the limit max_ops={max_ops:g}; "
            f"record at most {max_ops / graph.n_turns * job.workers:.0f}, or raise max_ops"
        )
    with Simulation(graph, job.seed, log=True) as run:
        listener, goal = Listener(graph, recorder, meaning), updates * len(recorder.slices)
        while not listener.hear(run, goal):
            if progress is not None:
                progress(recorder.applied // len(recorder.slices), updates)
            left = (goal - recorder.applied) / len(recorder.slices) / job.workers
            run.advance(run.rounds + max(min(math.ceil(left), rounds // FEWEST_READS), 1))
    options = finite(msgspec.to_builtins(job.options), "inf")
    return recorder.schedule(
        batch_size=job.workload.batch_size,
        architecture=architecture.name,
        options=options,
        samples_per_s=samples_per_s,
        seed=job.seed,
    )


class Listener:
    """Passes the logged events of a graph's ops to the handlers of their labels."""

    def __init__(self, graph: OpGraph, recorder: Recorder, meaning: Meaning) -> None:
        self._recorder = recorder
        handlers = {"begin": recorder.begin, "gradient": recorder.gradient, **meaning}
        self._heard: dict[int, list[tuple[Handler, int]]] = {}
        for logged in graph.logged:
            code = codes.LOG_READY if logged.at_ready else codes.LOG_END
            for index, op in enumerate(logged.ops.ravel().tolist()):
                self._heard.setdefault(4 * op + code, []).append((handlers[logged.label], index))

    def hear(self, run: Simulation, goal: float = math.inf) -> bool:
        """Handle what was logged since the last call; return whether ``goal`` gradients (one per
        slice) have been applied by now. The rest of the log is then skipped."""
        recorder, log = self._recorder, run.log()
        for time_s, what, drawn in zip(*(column.tolist() for column in log), strict=True):
            if recorder.applied >= goal:
                break
            recorder.now = time_s
            for handler, index in self._heard[what]:
                handler(index, drawn)
            recorder.close()
        return recorder.applied >= goal
