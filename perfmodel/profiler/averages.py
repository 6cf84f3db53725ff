"""Averages over measured steps."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from perfmodel.base.errors import InputError
from perfmodel.profiler.overhead import Overhead
from perfmodel.profiler.steps import StepTimes

PLACES = {
    ("start", "forward"): "before forward",
    ("forward", "backward"): "loss",
    ("backward", "optimizer"): "before optimizer",
    ("optimizer", "end"): "after optimizer",
}
"""Names of the places where other work happens; any other place is *elsewhere*."""


class Average(NamedTuple):
    """Mean seconds of each part over all measured steps; (layers,) for the passes.

    ``step_std_s`` is the standard deviation of the step time without loading.
    """

    forward_s: tuple[float, ...]
    backward_s: tuple[float, ...]
    forward_std_s: tuple[float, ...]
    backward_std_s: tuple[float, ...]
    optimizer_s: float
    loading_s: float
    copy_s: float
    other_s: dict[str, float]
    step_s: float
    step_std_s: float
    steps: int

    @property
    def all_other_s(self) -> float:
        """Total of other work."""
        return sum(self.other_s.values())

    def without(self, overhead: Overhead | None) -> Average:
        """Return the averages without what hooks surely add to a step.

        It is taken off the passes and other work, in proportion to their time: hooks are there,
        and cost the host the same wherever the device waits for it.
        """
        if overhead is None or not overhead.is_certain:
            return self
        hooked_s = sum(self.forward_s) + sum(self.backward_s) + self.all_other_s
        added_s = self.step_s * overhead.fraction / (1.0 + overhead.fraction)
        kept = max(0.0, 1.0 - added_s / hooked_s)
        return self._replace(
            forward_s=tuple(kept * seconds for seconds in self.forward_s),
            backward_s=tuple(kept * seconds for seconds in self.backward_s),
            forward_std_s=tuple(kept * seconds for seconds in self.forward_std_s),
            backward_std_s=tuple(kept * seconds for seconds in self.backward_std_s),
            other_s={place: kept * seconds for place, seconds in self.other_s.items()},
            step_s=self.step_s - (1.0 - kept) * hooked_s,
        )

    @property
    def places(self) -> str:
        """Places of other work as text, largest first."""
        ranked = sorted(self.other_s.items(), key=lambda item: -item[1])
        return ", ".join(f"{seconds / self.all_other_s:.0%} {place}" for place, seconds in ranked)


def average_of(steps: Sequence[StepTimes]) -> Average:
    """Average over steps.

    Raises
    ------
    InputError : there are fewer than two steps.
    """
    if len(steps) < 2:
        raise InputError(
            f"profiler: {len(steps)} steps were measured, at least 2 are needed; "
            "call step() at the end of each iteration, after the optimiser's step"
        )
    forward = list(zip(*(step.forward_s for step in steps), strict=True))
    backward = list(zip(*(step.backward_s for step in steps), strict=True))
    other: defaultdict[str, float] = defaultdict(float)
    for step in steps:
        for place, seconds in step.other_s.items():
            other[PLACES.get(place, "elsewhere")] += seconds / len(steps)
    totals = [step.device_s for step in steps]
    return Average(
        tuple(map(statistics.fmean, forward)),
        tuple(map(statistics.fmean, backward)),
        tuple(map(statistics.stdev, forward)),
        tuple(map(statistics.stdev, backward)),
        statistics.fmean(step.optimizer_s for step in steps),
        statistics.fmean(step.loading_s for step in steps),
        statistics.fmean(step.copy_s for step in steps),
        dict(other),
        statistics.fmean(step.total_s for step in steps),
        statistics.stdev(totals),
        len(steps),
    )
