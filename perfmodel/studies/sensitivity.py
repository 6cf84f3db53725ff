"""Sensitivity of a prediction: how other values of each assumption change the throughput.

Numbers are halved and doubled, switches are flipped, and words are replaced by every other allowed
word. Everything else stays the same, and all variants are predicted by the same route.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Unpack

import msgspec

from perfmodel import api
from perfmodel.base.errors import InputError
from perfmodel.base.provenance import Assumption
from perfmodel.inputs.job import Job, JobArguments
from perfmodel.predicting import coarse, islands, job_facts
from perfmodel.reporting.contents import Figure
from perfmodel.reporting.drawn import Drawn
from perfmodel.results.prediction import Prediction
from perfmodel.studies.changes import COMPUTE, of_assumption
from perfmodel.sweeping.arguments import job_from
from perfmodel.sweeping.chunks import Progress, counted
from perfmodel.sweeping.labels import Row
from perfmodel.sweeping.tables import Tabular

SCHEMA = "perfmodel.sensitivity/1"

MATTERS = 0.02
"""Relative change of the throughput above which an assumption matters."""

LEFT_OUT = "formulas leave out"
"""Start of the reason why the formulas cannot predict a variant."""

NAMES = ("device", "precision", "cluster")
"""Assumptions whose name stands for many values, so they cannot be halved or doubled."""

MOST_BARS, LEAST_SWING = 16, 1e-3
"""Most assumptions in a figure, and the smallest change of log throughput that is drawn."""


class Alternative(msgspec.Struct, frozen=True):
    """Another value of an assumption, its throughput, and the ratio to the predicted throughput."""

    value: float | int | str | bool
    throughput_samples_per_s: float
    ratio: float

    @property
    def swing(self) -> float:
        """Absolute change of log throughput."""
        return abs(math.log(self.ratio))


class Effect(msgspec.Struct, frozen=True):
    """Effect of an assumption on the throughput.

    Attributes
    ----------
    assumption : as in the prediction.
    alternatives : other values; numbers are in rising order.
    unvaried : why there are no alternatives; empty if there are some.
    """

    assumption: Assumption
    alternatives: tuple[Alternative, ...]
    unvaried: str = ""

    @property
    def swing(self) -> float:
        """Largest absolute change of log throughput; 0 without alternatives."""
        return max((other.swing for other in self.alternatives), default=0.0)

    @property
    def left_out(self) -> bool:
        """Whether the effect is unknown because the formulas leave it out."""
        return f": {LEFT_OUT} " in self.unvaried

    @property
    def matters(self) -> bool:
        """Whether it changes the throughput by more than :data:`MATTERS`, or is a name that stands
        for many values, such as a device."""
        return self.swing > math.log1p(MATTERS) or self.assumption.name in NAMES

    @property
    def sides(self) -> tuple[tuple[str, float], tuple[str, float]]:
        """Return a lower and a higher value as text, each with its ratio; ("", 1) if there is none.
        Words count as higher values."""
        from perfmodel.reporting.contents import Quantity, shown

        a = self.assumption
        below, above = ("", 1.0), ("", 1.0)
        words = isinstance(a.value, (bool, str))
        for other in sorted(self.alternatives, key=lambda other: other.swing):
            side = shown(Quantity(other.value, a.unit)), other.ratio
            if not words and float(other.value) < float(a.value or 0.0):
                below = side
            else:
                above = side
        return below, above


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
            for other in effect.alternatives or (None,):
                rows.append(
                    {
                        **head,
                        "alternative": other and other.value,
                        "throughput_samples_per_s": other and other.throughput_samples_per_s,
                        "ratio": other and other.ratio,
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
    now = api.predict(job, **how)
    if now.fidelity == "coarse":
        return Sensitivity(prediction=now, effects=effects(job, progress))
    how["fidelity"] = "fine"

    def simulated(other: Job) -> float:
        return api.predict(other, **how).throughput_samples_per_s

    by_simulation = _effects(job, simulated, now.throughput_samples_per_s, progress)
    return Sensitivity(prediction=now, effects=by_simulation)


def effects(job: Job, progress: Progress | None = None) -> tuple[Effect, ...]:
    """Return the effect of each assumption of a job by formulas, the largest first.

    ``progress`` is called with (done, all) after each assumption.
    """
    job = job_facts.with_layers(job)
    same = islands.changed(job, job.of_devices)
    missing = coarse.leaves_out(same)

    def by_formulas(other: Job) -> float:
        other = job_facts.with_layers(other)
        left_out = coarse.leaves_out(other)
        if left_out not in (None, missing):
            raise InputError(f"{LEFT_OUT} {left_out}")
        return _samples_per_s(other)

    return _effects(job, by_formulas, _samples_per_s(same), progress)


def _samples_per_s(job: Job) -> float:
    """Return the throughput by formulas: quickly, unless islands have different sizes."""
    sizes = set(job.batch_sizes)
    if len(sizes) > 1:
        return islands.samples_per_s(job, coarse.predict(job))
    return coarse.iterations_per_s(job) * sizes.pop()


def _effects(
    job: Job, rate: Callable[[Job], float], now: float, progress: Progress | None
) -> tuple[Effect, ...]:
    """Return the effects, given how to predict the throughput, and the job's own throughput."""
    assumed = [*job.assumptions]
    of_device = job.of_devices.workload
    if of_device.quality == "estimated":
        assumed.append(Assumption(COMPUTE, of_device.compute_s, "s", "estimated"))
    of_all = [_effect(assumption, job, rate, now) for assumption in counted(assumed, progress)]
    return tuple(sorted(of_all, key=lambda effect: -effect.swing))


def _effect(assumption: Assumption, job: Job, rate: Callable[[Job], float], now: float) -> Effect:
    """Return the effect of an assumption: the throughput with other values."""
    alternatives, errors = [], []
    for change in of_assumption(assumption, job):
        try:
            then = rate(change.job_of(job))
        except InputError as error:
            errors.append(f"{change.value}: {error}")
            continue
        alternatives.append(Alternative(change.value, then, then / now))
    if alternatives:
        return Effect(assumption, tuple(alternatives))
    if errors:
        return Effect(assumption, (), errors[0])
    value = assumption.value
    if isinstance(value, str) and value != "inf":
        return Effect(assumption, (), "a name or a rule")
    fixed = value in (0, "inf", None)
    return Effect(assumption, (), "cannot be halved or doubled" if fixed else "of the profile")
