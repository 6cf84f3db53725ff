"""Loss and accuracy over samples, updates and predicted seconds."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from perfmodel.base.arrays import Floats, Ids
from perfmodel.base.errors import InputError, number
from perfmodel.theory.statistical_efficiency import GradientNoise

if TYPE_CHECKING:
    import pandas as pd


@dataclasses.dataclass(frozen=True)
class Divergence:
    """Training diverged: ``reason`` says what was seen, at ``update`` and ``time_s``."""

    update: int
    samples: int
    time_s: float
    reason: str


@dataclasses.dataclass(frozen=True, eq=False)
class Curve:
    """What a replay found, at its evaluations, the first of them before training.

    All values are finite: a training that diverges ends there.

    Attributes
    ----------
    task, seed : what was trained.
    evaluated : the model of the evaluations: ``centre``, or ``mean`` of all workers' models.
    samples : (evaluations,) of gradients that were applied.
    updates : (evaluations,) steps of the optimizer, on the centre or on any worker's model; a step
        on one of several slices counts for its part of them.
    time_s : (evaluations,) predicted seconds since the start of training.
    loss, accuracy : (evaluations,) on the test samples.
    batch_loss : (evaluations,) of the workers' batches, averaged over about the last 100.
    noise : gradient noise at each evaluation, if it was asked for.
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
        """Predicted seconds to the first evaluation of at least that accuracy; None if none is.

        Raises
        ------
        InputError : the target is not between 0 and 1.
        """
        at = self._reached(accuracy)
        return None if at is None else float(self.time_s[at])

    def samples_to(self, accuracy: float) -> int | None:
        """Samples to the first evaluation of at least that accuracy; None if none is.

        Raises
        ------
        InputError : the target is not between 0 and 1.
        """
        at = self._reached(accuracy)
        return None if at is None else int(self.samples[at])

    def frame(self) -> pd.DataFrame:
        """One row per evaluation."""
        import pandas as pd

        names = ("samples", "updates", "time_s", "loss", "accuracy", "batch_loss")
        frame = pd.DataFrame({name: getattr(self, name) for name in names})
        if self.noise:
            frame["noise_scale_samples"] = [each.scale_samples for each in self.noise]
        return frame

    def _reached(self, accuracy: float) -> int | None:
        if isinstance(accuracy, (int, float)) and accuracy > 1.0:
            raise InputError(f"target: an accuracy is at most 1, got {accuracy:g}")
        number("target", accuracy, above=0.0)
        reached = self.accuracy >= accuracy
        return int(reached.argmax()) if reached.any() else None
