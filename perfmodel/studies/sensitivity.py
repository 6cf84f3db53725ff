"""Sensitivity of a prediction: how other values of each assumption change the throughput.

Numbers are halved and doubled, switches are flipped, and words are replaced by every other allowed
word. Everything else stays the same, and all variants are predicted by the same route.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Unpack

import msgspec

from perfmodel import api
from perfmodel.inputs.job import Job
from perfmodel.predicting.effects import effects, effects_by
from perfmodel.reporting.contents import Figure
from perfmodel.reporting.drawn import Drawn
from perfmodel.results.effects import Effect
from perfmodel.results.prediction import Prediction
from perfmodel.sweeping.arguments import job_from
from perfmodel.sweeping.chunks import Progress
from perfmodel.sweeping.labels import Row
from perfmodel.sweeping.tables import Tabular

if TYPE_CHECKING:
    from perfmodel.inputs.job import JobArguments

SCHEMA = "perfmodel.sensitivity/1"

MOST_BARS, LEAST_SWING = 16, 1e-3
"""Most assumptions in a figure, and the smallest change of log throughput that is drawn."""


class Sensitivity(Drawn, Tabular, frozen=True, kw_only=True):
    """A prediction and the effects of its assumptions, the largest first."""

    schema: str = SCHEMA
    prediction: Prediction
    effects: tuple[Effect, ...]

    def __repr__(self) -> str:
        swings = (f"{e.assumption.name}: {math.exp(e.swing):.3g}x" for e in self.effects if e.swing)
        return f"Sensitivity({'; '.join(swings) or 'no assumption matters'})"

    def rows(self) -> list[Row]:
        """A row per alternative, in SI units; one without an alternative where there is none."""
        rows: list[Row] = []
        for effect in self.effects:
            a = effect.assumption
            head = {"assumption": a.name, "value": a.value, "unit": a.unit, "source": a.source}
            for alternative in effect.alternatives or (None,):
                rows.append(
                    {
                        **head,
                        "alternative": alternative and alternative.value,
                        "throughput_samples_per_s": alternative
                        and alternative.throughput_samples_per_s,
                        "ratio": alternative and alternative.ratio,
                        "unvaried": effect.unvaried,
                    }
                )
        return rows

    def to_dict(self) -> Row:
        """As JSON-like values."""
        return {
            "schema": self.schema,
            "prediction": self.prediction.to_dict(),
            "effects": [{**msgspec.to_builtins(e), "swing": e.swing} for e in self.effects],
        }

    def figure(self) -> Figure:
        """The effects as bars to both sides of 1, the largest first.

        Of several words that may stand instead of one, the one with the largest effect is drawn.
        """
        from perfmodel.studies.figures import tornado

        effects = [effect for effect in self.effects if effect.swing >= LEAST_SWING][:MOST_BARS]
        rows = [(effect.assumption.name, effect.sides) for effect in effects]
        return Figure([[tornado(rows)]], self.prediction.headline)


def sensitivity(
    job: Job | None = None,
    *,
    fidelity: api.Fidelity = "coarse",
    tolerance: float = api.TOLERANCE,
    rel_ci: float = api.REL_CI,
    max_ops: float = api.MOST_OPS,
    progress: Progress | None = None,
    **arguments: Unpack[JobArguments],
) -> Sensitivity:
    """Predict what each assumption of a job is worth, and its compute time where that is estimated.

    Parameters
    ----------
    fidelity, tolerance, rel_ci, max_ops : see :func:`perfmodel.predict`. By default all are
        predicted by formulas. What *auto* chooses for the job is taken for all others, so that
        ratios have no error of the route in them.
    progress : called with (done, all) after each assumption.
    job : the job to start from, if there is one.
    arguments : changes of it (:meth:`perfmodel.Job.with_`), else those of
        :func:`perfmodel.make_job`; ``global_batch_size`` may replace ``batch_size``.

    Raises
    ------
    InputError : the job itself is impossible; impossible alternatives are left out.

    >>> job = {"model": "vgg16", "device": "v100", "cluster": "ethernet-10g", "arch": "ring"}
    >>> result = sensitivity(**job, workers=8)
    >>> [effect.assumption.name for effect in result.effects[:3]]
    ['compression', 'batch_size', 'bandwidth']
    """
    job = job_from(job, arguments)
    how = api.PredictOptions(fidelity=fidelity, tolerance=tolerance, rel_ci=rel_ci, max_ops=max_ops)
    now = api.predict(job, how)
    if now.fidelity == "coarse":
        return Sensitivity(prediction=now, effects=effects(job, progress))

    def simulated(variant: Job) -> float:
        return api.predict(variant, how, fidelity="fine").throughput_samples_per_s

    by_simulation = effects_by(simulated, job, now.throughput_samples_per_s, progress)
    return Sensitivity(prediction=now, effects=by_simulation)
