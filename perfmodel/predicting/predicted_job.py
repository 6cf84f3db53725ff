"""The job of a prediction, for results beyond its figures."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import msgspec

from perfmodel.engine.warmup import Progress
from perfmodel.inputs.job import Job
from perfmodel.predicting.fine import build_graph

if TYPE_CHECKING:
    from perfmodel.results.effects import Effect
    from perfmodel.results.schedule import Schedule
    from perfmodel.results.timeline import Timeline


class PredictedJob(msgspec.Struct, frozen=True, dict=True):
    """A job with layers; simulating it may take up to ``max_ops`` operations."""

    job: Job
    max_ops: float

    @functools.cached_property
    def effects(self) -> tuple[Effect, ...]:
        """The effect of each assumption by formulas, the largest first."""
        from perfmodel.predicting.effects import effects

        return effects(self.job)

    def timeline(self) -> Timeline:
        """Return two steady-state iterations.

        Raises
        ------
        TooLargeError : simulating all workers takes more than ``max_ops`` operations.
        """
        from perfmodel.engine.window import steady_window
        from perfmodel.predicting.timeline import timeline_of

        graph = build_graph(self.job, max_ops=self.max_ops)
        return timeline_of(graph, steady_window(graph, seed=self.job.seed))

    def schedule(
        self, updates: int | None, samples_per_s: float, progress: Progress | None = None
    ) -> Schedule:
        """Return the schedule of the first ``updates`` gradients.

        Raises
        ------
        InputError, TooLargeError : see :func:`perfmodel.predicting.recording.schedule_of`.
        """
        from perfmodel.predicting.recording import schedule_of

        return schedule_of(
            self.job,
            updates,
            max_ops=self.max_ops,
            samples_per_s=samples_per_s,
            progress=progress,
        )
