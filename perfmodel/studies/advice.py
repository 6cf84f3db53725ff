"""Advice for a job: changes that make it faster, each with its evidence.

Every rule of :mod:`perfmodel.studies.rules` that applies to a job proposes changed jobs. These are
predicted, and recommended if they fit into memory and the whole interval of the speed-up is above
1. What makes a job fit comes first if it does not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

import msgspec

from perfmodel import api
from perfmodel.base.errors import InputError
from perfmodel.inputs.job import Job
from perfmodel.predicting.gains import Gain, gain
from perfmodel.reporting.contents import Figure
from perfmodel.reporting.drawn import Drawn
from perfmodel.results.prediction import Prediction
from perfmodel.studies.changes import Change
from perfmodel.studies.fitting import remedies
from perfmodel.studies.rules import RULES, Rule, Situation
from perfmodel.sweeping.arguments import job_from
from perfmodel.sweeping.chunks import Progress, counted
from perfmodel.sweeping.labels import Row
from perfmodel.sweeping.tables import Tabular, fields

if TYPE_CHECKING:
    from perfmodel.inputs.job import JobArguments

SCHEMA = "perfmodel.advice/1"

WORTH = 1.01
"""Smaller speed-ups are not mentioned, however certain they are."""


class Tried(msgspec.Struct, frozen=True):
    """A change that was predicted: its name, the command-line flags that make it (empty if it needs
    a cluster or workload file), and its speed-up."""

    change: str
    flags: str
    gain: Gain


class Recommendation(msgspec.Struct, frozen=True, kw_only=True):
    """The best change that a rule proposes.

    Attributes
    ----------
    rule, why : the rule, and the predicted numbers that make it apply.
    change, flags, gain : what to change, the command-line flags for it, and the speed-up.
    price : the effect on learning (staleness, batch size, exchanges), in words; empty if none.
    observed, source : what was published about such changes, and where.
    hardware : whether the change is to the hardware.
    others : the other changes that were tried, best first.
    prediction : prediction of the changed job.
    """

    rule: str
    why: str
    change: str
    flags: str
    gain: Gain
    price: str
    observed: str
    source: str
    hardware: bool
    others: tuple[Tried, ...]
    prediction: Prediction

    def to_dict(self) -> Row:
        """JSON-like values, without the full prediction."""
        rate = self.prediction.throughput_samples_per_s
        return fields(self, "prediction") | {"throughput_samples_per_s": rate}


class Advice(Drawn, Tabular, frozen=True, kw_only=True):
    """What would make a job faster.

    Attributes
    ----------
    prediction : prediction of the unchanged job.
    recommended : changes that are certain to help, largest speed-up first.
    unsure : changes with a predicted speed-up whose interval includes 1.
    remedies : flags of changes that make the job fit into the memory of its devices, see
        :func:`perfmodel.remedies`; None if it fits.
    """

    schema: str = SCHEMA
    prediction: Prediction
    recommended: tuple[Recommendation, ...]
    unsure: tuple[Recommendation, ...]
    remedies: tuple[str, ...] | None = None

    def __repr__(self) -> str:
        changes = (f"{r.change}: {r.gain.ratio:.3g}x" for r in self.recommended)
        return f"Advice({'; '.join(changes) or 'no change is certain to help'})"

    @property
    def hardware(self) -> Recommendation | None:
        """The hardware change with the largest speed-up; None if none is certain to help."""
        return next((r for r in self.recommended if r.hardware), None)

    def rows(self) -> list[Row]:
        """One row per change, recommended changes first."""
        return [
            {
                "rule": r.rule,
                "change": r.change,
                "flags": r.flags,
                "gain": r.gain.ratio,
                "low": r.gain.interval[0],
                "high": r.gain.interval[1],
                "probability": r.gain.probability,
                "recommended": r.gain.supported,
                "price": r.price,
            }
            for r in (*self.recommended, *self.unsure)
        ]

    def to_dict(self) -> Row:
        """JSON-like values."""
        return {
            "schema": self.schema,
            "prediction": self.prediction.to_dict(),
            "recommended": [r.to_dict() for r in self.recommended],
            "unsure": [r.to_dict() for r in self.unsure],
            "remedies": self.remedies,
        }

    def figure(self) -> Figure:
        """The gain of each change and its interval."""
        from perfmodel.studies.figures import gains

        changes = (*self.recommended, *self.unsure)
        rows = [(c.change, c.gain.ratio, c.gain.interval, c.gain.supported) for c in changes]
        return gains(rows, self.prediction.headline)


def advise(
    job: Job | None = None,
    *,
    fidelity: api.Fidelity = "auto",
    tolerance: float = api.TOLERANCE,
    rel_ci: float = api.REL_CI,
    max_ops: float = api.MOST_OPS,
    progress: Progress | None = None,
    **arguments: Unpack[JobArguments],
) -> Advice:
    """Predict what would make a job faster.

    Parameters
    ----------
    fidelity, tolerance, rel_ci, max_ops : see :func:`perfmodel.predict`.
    progress : called with (done, all) after each rule.
    job : the job to start from, if there is one.
    arguments : changes of it (:meth:`perfmodel.Job.with_`), else those of
        :func:`perfmodel.make_job`; ``global_batch_size`` may replace ``batch_size``.

    Raises
    ------
    InputError : the job itself is impossible; impossible changes are skipped.

    >>> advise(model="resnet50", device="v100", arch="ring", workers=8).recommended[0].change
    'devices twice as fast'
    """
    how = api.PredictOptions(fidelity=fidelity, tolerance=tolerance, rel_ci=rel_ci, max_ops=max_ops)
    job = job_from(job, arguments)
    now = Situation(job, api.predict(job, how))
    best = [_best(now, rule, how) for rule in counted(RULES, progress)]
    helpful = [r for r in best if r is not None and r.gain.ratio > WORTH]
    helpful.sort(key=lambda r: -r.gain.interval[0])
    short = not now.prediction.memory.is_enough()
    return Advice(
        prediction=now.prediction,
        recommended=tuple(r for r in helpful if r.gain.supported),
        unsure=tuple(r for r in helpful if not r.gain.supported),
        remedies=tuple(change.flags for change in remedies(job)) if short else None,
    )


def _best(now: Situation, rule: Rule, how: api.PredictOptions) -> Recommendation | None:
    """The change of a rule with the largest speed-up; None if the rule does not apply, or none of
    its changes is possible."""
    why = rule.why(now)
    tried: list[tuple[Change, Prediction, Gain]] = []
    for change in rule.changes(now) if why else ():
        try:
            job = change.job_of(now.job)
            then = api.predict(job, how)
        except InputError:
            continue
        if then.memory.is_enough():
            tried.append((change, then, gain(now.job, now.prediction, job, then)))
    if not tried:
        return None
    tried.sort(key=lambda row: -row[2].ratio)
    (change, then, gained), *others = tried
    return Recommendation(
        rule=rule.name,
        why=why,
        change=change.name,
        flags=change.flags,
        gain=gained,
        price=_price(now.prediction, then),
        observed=rule.observed,
        source=rule.source,
        hardware=rule.hardware,
        others=tuple(Tried(alternative.name, alternative.flags, g) for alternative, _, g in others),
        prediction=then,
    )


def _price(was: Prediction, then: Prediction) -> str:
    """Describe the effect of a change on learning."""
    effects = []
    stale = [p.staleness.mean if p.staleness is not None else 0.0 for p in (was, then)]
    options = [p.provenance.inputs["options"] for p in (was, then)]
    compression = [values.get("compression", "none") for values in options]
    spare = [values.get("backup_workers", 0) for values in options]
    if abs(stale[1] - stale[0]) > 0.05:
        effects.append(f"mean staleness is {stale[1]:.3g} instead of {stale[0]:.3g} updates")
    if then.model_age is not None and then.model_age != was.model_age:
        steps = then.model_age.exchange_every
        every = f"{steps:.3g} steps" if steps > 1.0 else "step"
        effects.append(f"models are exchanged every {every}")
    if then.global_batch_size != was.global_batch_size:
        sizes = f"{then.global_batch_size} instead of {was.global_batch_size}"
        effects.append(f"the global batch is {sizes}")
    if compression[0] != compression[1]:
        effects.append(f"gradients are compressed ({compression[1]})")
    if spare[1] > spare[0]:
        effects.append(f"the gradients of {spare[1]} of {then.workers} workers are dropped")
    return "; ".join(effects)
