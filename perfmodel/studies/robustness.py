"""Robustness of a comparison: how the assumptions that its jobs share change it.

Twice the bandwidth may speed up every job and leave their order unchanged. An assumption matters to
a comparison if it changes one job more than another.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from perfmodel.base.provenance import Assumption
from perfmodel.inputs.job import Job
from perfmodel.predicting.effects import effects
from perfmodel.results.effects import MATTERS, Effect


class Shift(msgspec.Struct, frozen=True):
    """Another value of an assumption that all jobs share.

    Attributes
    ----------
    value : the other value.
    ratios : throughput with this value over predicted throughput, for each job (jobs,).
    """

    value: float | int | str | bool
    ratios: tuple[float, ...]

    @property
    def swing(self) -> float:
        """Largest difference between two jobs in the change of log throughput."""
        return math.log(max(self.ratios) / min(self.ratios))


class SharedAssumption(msgspec.Struct, frozen=True):
    """An assumption that all jobs share, and the effects of other values on them."""

    assumption: Assumption
    shifts: tuple[Shift, ...]

    @property
    def swing(self) -> float:
        """Largest swing of its shifts."""
        return max((shift.swing for shift in self.shifts), default=0.0)

    @property
    def matters(self) -> bool:
        """Whether it changes the ratio of two jobs by more than :data:`MATTERS`."""
        return self.swing > math.log1p(MATTERS)


def robustness(jobs: Sequence[Job]) -> tuple[SharedAssumption, ...]:
    """Return the assumptions that all jobs share, by formulas, the largest shift first."""
    of_jobs = [{effect.assumption: effect for effect in effects(job)} for job in jobs]
    shared = [a for a in of_jobs[0] if all(a in of_job for of_job in of_jobs)]
    assumptions = (SharedAssumption(a, _shifts([job[a] for job in of_jobs])) for a in shared)
    return tuple(sorted(assumptions, key=lambda assumption: -assumption.swing))


def _shifts(same: Sequence[Effect]) -> tuple[Shift, ...]:
    """Return the effect of each other value that is possible for all jobs."""
    ratios = [
        {repr(alternative.value): alternative.ratio for alternative in e.alternatives} for e in same
    ]
    return tuple(
        Shift(alternative.value, tuple(of_job[repr(alternative.value)] for of_job in ratios))
        for alternative in same[0].alternatives
        if all(repr(alternative.value) in of_job for of_job in ratios)
    )
