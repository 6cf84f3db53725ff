"""Predicts measured jobs and compares the results."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, Literal

import msgspec

from perfmodel import api
from perfmodel.base.errors import InputError
from perfmodel.reporting.contents import (
    INTERVAL,
    Axis,
    Figure,
    Mark,
    Page,
    Panel,
    Ranges,
    Section,
    Series,
)
from perfmodel.reporting.drawn import Paged
from perfmodel.reporting.panels import colour, marker
from perfmodel.reporting.rows import table
from perfmodel.results.prediction import Prediction
from perfmodel.validation.cases import MeasuredJob
from perfmodel.validation.scores import MEASURES, Score, Summary, summarise

SCHEMA = "perfmodel.validation/1"

Statistic = Literal["median", "p90", "worst"]

Progress = Callable[[int, int], None]


class CaseScores(msgspec.Struct, frozen=True, kw_only=True):
    """A predicted case: its scores by measure (see :data:`MEASURES`)."""

    name: str
    group: str
    scores: dict[str, Score]
    source: str


class Validation(Paged, frozen=True, kw_only=True):
    """Predictions of measured jobs, in the order of the cases."""

    outcomes: tuple[CaseScores, ...]
    fidelity: str

    def __repr__(self) -> str:
        return f"Validation({len(self.outcomes)} cases in {len(self.groups)} groups)"

    @property
    def groups(self) -> tuple[str, ...]:
        """Names of the groups, in the order of their first cases."""
        return tuple(dict.fromkeys(outcome.group for outcome in self.outcomes))

    def summaries(self) -> dict[str, dict[str, Summary]]:
        """Errors by group and measure; with several groups also for ``all`` cases."""
        summaries = {
            group: self._summary([o for o in self.outcomes if o.group == group])
            for group in self.groups
        }
        return (
            summaries if len(summaries) == 1 else summaries | {"all": self._summary(self.outcomes)}
        )

    def _summary(self, outcomes: Sequence[CaseScores]) -> dict[str, Summary]:
        errors = {
            measure: [o.scores[measure].error for o in outcomes if measure in o.scores]
            for measure in MEASURES
        }
        return {measure: summarise(signed) for measure, signed in errors.items() if signed}

    def coverage(self) -> dict[str, float]:
        """Fraction of measured step times inside their predicted 90 % intervals, by group."""
        inside: dict[str, list[bool]] = {group: [] for group in (*self.groups, "all")}
        for o in self.outcomes:
            within = o.scores["step_s"].inside if "step_s" in o.scores else None
            for group in {o.group, "all"} if within is not None else ():
                inside[group].append(bool(within))
        return {group: sum(known) / len(known) for group, known in inside.items() if known}

    def beyond(self, tolerance: float, statistic: Statistic = "worst") -> list[str]:
        """Groups whose step-time error is above ``tolerance``, a fraction."""
        steps = {group: s["step_s"] for group, s in self.summaries().items() if "step_s" in s}
        return [g for g in self.groups if g in steps and getattr(steps[g], statistic) > tolerance]

    def to_dict(self) -> dict[str, object]:
        """Return JSON-like values: ``cases`` and ``groups``."""
        return {
            "schema": SCHEMA,
            "fidelity": self.fidelity,
            "cases": [
                {
                    "name": outcome.name,
                    "group": outcome.group,
                    "source": outcome.source,
                    "measures": {
                        name: msgspec.to_builtins(score) | {"error": score.error}
                        for name, score in outcome.scores.items()
                    },
                }
                for outcome in self.outcomes
            ],
            "groups": msgspec.to_builtins(self.summaries()),
            "coverage90": self.coverage(),
        }

    def to_json(self) -> str:
        """Return JSON text."""
        return json.dumps(self.to_dict(), indent=2)

    def figure(self) -> Figure:
        """Predicted over measured step times, one colour per group.

        Both are equal on the diagonal; the band around it reaches 10 % to either side.

        Raises
        ------
        InputError : no case has a step time.
        """
        timed = [(o, o.scores["step_s"]) for o in self.outcomes if "step_s" in o.scores]
        if not timed:
            raise InputError("plot: no case has a step time")
        values = [v for _, score in timed for v in (score.measured, score.predicted)]
        limits = [min(values) / 1.5, max(values) * 1.5]
        below, above = ([factor * end for end in limits] for factor in (0.9, 1.1))
        marks: list[Mark] = [
            Series("equal", limits, limits, low=below, high=above, band="within 10 %")
        ]
        for number, group in enumerate(dict.fromkeys(o.group for o, _ in timed)):
            scored = [(o.name, score) for o, score in timed if o.group == group]
            known = [(s.measured, *s.interval) for _, s in scored if s.interval is not None]
            line = colour(number)
            if known:
                at, low, high = zip(*known, strict=True)
                marks.append(Ranges(INTERVAL, at, low, high, line, "y", opacity=0.4))
            names, scores = zip(*scored, strict=True)
            x, y = [s.measured for s in scores], [s.predicted for s in scores]
            marks.append(Series(group, x, y, line, "points", marker(number), labels=names))
        measured, predicted = (
            Axis(f"{which} step time (s)", "s", log=True, low=limits[0], high=limits[1])
            for which in ("measured", "predicted")
        )
        return Figure([[Panel(marks, measured, predicted, "xy", square=True)]])

    def page(self) -> Page:
        """The contents of the page."""
        timed = any("step_s" in o.scores for o in self.outcomes)
        groups = [
            {"group": group, "measure": measure, **msgspec.to_builtins(summary)}
            for group, summaries in self.summaries().items()
            for measure, summary in summaries.items()
        ]
        cases = [
            {"case": o.name, "group": o.group, "measure": measure, "measured": score.measured}
            | {"predicted": score.predicted, "error": score.error, "source": o.source}
            for o in self.outcomes
            for measure, score in o.scores.items()
        ]
        parts = [
            Section(name="errors", title="Errors by group", tables=[table("Errors", groups)]),
            Section(
                name="cases",
                title="Step times, predicted and measured",
                figure=self.figure().rows[0][0] if timed else None,
                tables=[table("Cases", cases)],
            ),
        ]
        inside = self.coverage().get("all")
        answer = [("Cases", str(len(self.outcomes)), f"in {len(self.groups)} groups")]
        if inside is not None:
            answer.append(("Inside the interval", f"{inside:.0%}", "90 % expected"))
        title = "Predictions and measurements"
        return Page(title=title, answer=answer, sections=parts)


def validate(
    cases: Sequence[MeasuredJob],
    *,
    fidelity: api.Fidelity = "fine",
    progress: Progress | None = None,
    **how: Any,
) -> Validation:
    """Predict every case and compare with its measurements.

    Parameters
    ----------
    cases : from :func:`perfmodel.validation.read_cases`, or made by a program.
    fidelity, how : as for :func:`perfmodel.predict`.
    progress : called with (done, expected) before each case and at the end.

    Raises
    ------
    InputError : there are no cases, or as :func:`perfmodel.predict`.
    """
    if not cases:
        raise InputError("cases: needs at least one")
    outcomes = []
    for i, case in enumerate(cases):
        if progress is not None:
            progress(i, len(cases))
        outcomes.append(_outcome(case, api.predict(case.job, fidelity=fidelity, **how)))
    if progress is not None:
        progress(len(cases), len(cases))
    return Validation(outcomes=tuple(outcomes), fidelity=fidelity)


def _outcome(case: MeasuredJob, prediction: Prediction) -> CaseScores:
    measured, samples = case.measured, case.job.global_batch_size
    step_s, rate = measured.step_s, measured.samples_per_s
    # step time and throughput determine each other
    if step_s is None and rate is not None:
        step_s = samples / rate
    if rate is None and step_s is not None:
        rate = samples / step_s
    stale, interval = prediction.staleness, prediction.interval
    pairs = {
        "step_s": (prediction.iteration_s, step_s),
        "samples_per_s": (prediction.throughput_samples_per_s, rate),
        "idle_fraction": (prediction.idle_fraction.mean, measured.idle_fraction),
        "staleness_mean": (None if stale is None else stale.mean, measured.staleness_mean),
    }
    intervals = {}
    if interval is not None:
        intervals["step_s"] = interval.iteration_s
        intervals["samples_per_s"] = interval.throughput_samples_per_s
    return CaseScores(
        name=case.name,
        group=case.group,
        scores={
            name: Score(predicted, seen, MEASURES[name], intervals.get(name))
            for name, (predicted, seen) in pairs.items()
            if predicted is not None and seen is not None
        },
        source=case.source.url or case.source.text,
    )
