"""Loss and accuracy over samples, updates and predicted seconds."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from perfmodel.base.arrays import Floats, Ids
from perfmodel.base.errors import InputError, number
from perfmodel.reporting.contents import Axis, Figure, Panel, Series, Span
from perfmodel.reporting.drawn import Drawn
from perfmodel.reporting.panels import colour
from perfmodel.theory.statistical_efficiency import GradientNoise

if TYPE_CHECKING:
    import pandas as pd


@dataclasses.dataclass(frozen=True)
class Divergence:
    """Training diverged at ``update`` and ``time_s``; ``reason`` tells how this was detected."""

    update: int
    samples: int
    time_s: float
    reason: str


class Curve(Drawn, frozen=True, eq=False):
    """Results of a replay at each evaluation; the first is before training.

    All values are finite: the replay ends when training diverges.

    Attributes
    ----------
    task, seed : what was trained.
    evaluated : the model that is evaluated: ``centre``, or the ``mean`` of all workers' models.
    samples : (evaluations,) samples whose gradients have been applied.
    updates : (evaluations,) optimizer steps, on the centre or on any worker's model; a step on one
        of several slices counts as the corresponding fraction.
    time_s : (evaluations,) predicted seconds since the start of training.
    loss, accuracy : (evaluations,) on the test samples.
    batch_loss : (evaluations,) training loss, averaged over about the last 100 batches.
    noise : gradient noise at each evaluation, if it was requested.
    divergence : None if training did not diverge.
    """

    task: str
    seed: int
    evaluated: str
    samples: Ids
    updates: Ids
    time_s: Floats
    loss: Floats
    accuracy: Floats
    batch_loss: Floats
    noise: tuple[GradientNoise, ...]
    divergence: Divergence | None

    def time_to(self, accuracy: float) -> float | None:
        """Return the predicted seconds to the first evaluation with at least this accuracy, or
        None.

        Raises
        ------
        InputError : the target is not between 0 and 1.
        """
        at = self._reached(accuracy)
        return None if at is None else float(self.time_s[at])

    def samples_to(self, accuracy: float) -> int | None:
        """Return the samples to the first evaluation with at least this accuracy, or None.

        Raises
        ------
        InputError : the target is not between 0 and 1.
        """
        at = self._reached(accuracy)
        return None if at is None else int(self.samples[at])

    def figure(self) -> Figure:
        """Accuracy over predicted seconds and over samples."""
        no_interval = np.full(len(self.samples), np.nan)
        columns = {name: getattr(self, name) for name in ("time_s", "samples", "accuracy")}
        series = {name: (values, no_interval) for name, values in columns.items()}
        return accuracy_of({f"seed {self.seed}": series}, None, self.task)

    def frame(self) -> pd.DataFrame:
        """Return a data frame with one row per evaluation."""
        import pandas as pd

        names = ("samples", "updates", "time_s", "loss", "accuracy", "batch_loss")
        frame = pd.DataFrame({name: getattr(self, name) for name in names})
        if self.noise:
            frame["noise_scale_samples"] = [noise.scale_samples for noise in self.noise]
        return frame

    def _reached(self, accuracy: float) -> int | None:
        if isinstance(accuracy, (int, float)) and accuracy > 1.0:
            raise InputError(f"target: accuracy must be at most 1, got {accuracy:g}")
        number("target", accuracy, above=0.0)
        reached = self.accuracy >= accuracy
        return int(reached.argmax()) if reached.any() else None


def accuracy_of(
    series: Mapping[str, Mapping[str, tuple[Floats, Floats]]], target: float | None, task: str
) -> Figure:
    """A figure of trainings: accuracy over predicted seconds, and over samples.

    Parameters
    ----------
    series : by the name of a job its means, and half-widths of their intervals (NaN: none), of
        ``time_s``, ``samples`` and ``accuracy``.
    target : accuracy that is marked, if any.
    task : name of the task that is trained.
    """
    goal = [] if target is None else [Span("target", target, along="y", style="dashed")]
    panels: list[Panel] = []
    labels = {"time_s": "predicted training time (s)", "samples": f"training samples of {task}"}
    for over, label in labels.items():
        lines = []
        for place, (name, columns) in enumerate(series.items()):
            (xs, _), (ys, half) = columns[over], columns["accuracy"]
            ends = {"low": (ys - half).tolist(), "high": (ys + half).tolist()}
            lines.append(Series(name, xs.tolist(), ys.tolist(), colour(place), **ends))
        y = Axis("" if panels else f"accuracy on {task}")
        panels.append(Panel([*lines, *goal], Axis(label), y, shares="y" if panels else ""))
    return Figure([panels])
