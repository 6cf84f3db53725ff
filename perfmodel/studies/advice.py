"""Advice for a job: changes that make it faster, each with its evidence.

Every rule of :mod:`perfmodel.studies.rules` that applies to a job proposes changed jobs. These are
predicted, and recommended if the whole interval of the speed-up is above 1.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Unpack

import msgspec

from perfmodel import api
from perfmodel.base.errors import InputError
from perfmodel.inputs.job import Job, JobArguments
from perfmodel.predicting.gains import Gain, gain
from perfmodel.reporting.contents import Figure
from perfmodel.reporting.drawn import Drawn
from perfmodel.results.prediction import Prediction
from perfmodel.studies.changes import Change
from perfmodel.studies.rules import RULES, Rule, Situation
from perfmodel.sweeping.arguments import job_from
from perfmodel.sweeping.chunks import Progress

if TYPE_CHECKING:
    import pandas as pd

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

    def to_dict(self) -> dict[str, Any]:
        """JSON-like values, without the full prediction."""
        values: dict[str, Any] = msgspec.to_builtins(
            {name: getattr(self, name) for name in self.__struct_fields__ if name != "prediction"}
        )
        p = self.prediction
        return values | {"throughput_samples_per_s": p.throughput_samples_per_s}


class Advice(Drawn, frozen=True, kw_only=True):
    """What would make a job faster.

    Attributes
    ----------
    prediction : prediction of the unchanged job.
    recommended : changes that are certain to help, largest speed-up first.
    unsure : changes with a predicted speed-up whose interval includes 1.
    """

    schema: str = SCHEMA
    prediction: Prediction
    recommended: tuple[Recommendation, ...]
    unsure: tuple[Recommendation, ...]

    def __repr__(self) -> str:
        changes = (f"{each.change}: {each.gain.ratio:.3g}x" for each in self.recommended)
        return f"Advice({'; '.join(changes) or 'no change is certain to help'})"

    @property
    def hardware(self) -> Recommendation | None:
        """The hardware change with the largest speed-up; None if none is certain to help."""
        return next((each for each in self.recommended if each.hardware), None)

    def rows(self) -> list[dict[str, Any]]:
        """One row per change, recommended changes first."""
        return [
            {
                "rule": each.rule,
                "change": each.change,
                "flags": each.flags,
                "gain": each.gain.ratio,
                "low": each.gain.interval[0],
                "high": each.gain.interval[1],
                "probability": each.gain.probability,
                "recommended": each.gain.supported,
                "price": each.price,
            }
            for each in (*self.recommended, *self.unsure)
        ]

    def to_frame(self) -> pd.DataFrame:
        """The rows as a data frame."""
        import pandas as pd

        return pd.DataFrame(self.rows())

    def to_dict(self) -> dict[str, Any]:
        """JSON-like values."""
        return {
            "schema": self.schema,
            "prediction": self.prediction.to_dict(),
            "recommended": [each.to_dict() for each in self.recommended],
            "unsure": [each.to_dict() for each in self.unsure],
        }

    def to_json(self) -> str:
        """The result as JSON text."""
        return json.dumps(self.to_dict(), indent=2)

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
    asked: api.PredictOptions = {
        "fidelity": fidelity,
        "tolerance": tolerance,
        "rel_ci": rel_ci,
        "max_ops": max_ops,
    }
    job = job_from(job, arguments)
    now = Situation(job, api.predict(job, **asked))
    found = []
    for done, rule in enumerate(RULES, 1):
        why = rule.why(now)
        best = _best(now, rule, why, asked) if why else None
        if best is not None and best.gain.ratio > WORTH:
            found.append(best)
        if progress is not None:
            progress(done, len(RULES))
    found.sort(key=lambda each: -each.gain.interval[0])
    return Advice(
        prediction=now.prediction,
        recommended=tuple(each for each in found if each.gain.supported),
        unsure=tuple(each for each in found if not each.gain.supported),
    )


def _best(now: Situation, rule: Rule, why: str, asked: api.PredictOptions) -> Recommendation | None:
    """The change of a rule with the largest speed-up; None if none is possible."""
    tried: list[tuple[Change, Prediction, Gain]] = []
    for change in rule.changes(now):
        try:
            job = change.job_of(now.job)
            then = api.predict(job, **asked)
        except InputError:
            continue
        if not _fits(then):
            continue
        tried.append((change, then, gain(now.job, now.prediction, job, then)))
    if not tried:
        return None
    tried.sort(key=lambda each: -each[2].ratio)
    (change, then, gained), *rest = tried
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
        others=tuple(Tried(other.name, other.flags, g) for other, _, g in rest),
        prediction=then,
    )


def _fits(p: Prediction) -> bool:
    """Return whether a worker fits in device memory; True if the memory size is unknown."""
    memory = p.memory
    return memory.device_bytes is None or memory.worker_bytes <= memory.device_bytes


def _price(was: Prediction, then: Prediction) -> str:
    """Describe the effect of a change on learning."""
    effects = []
    stale = [p.staleness.mean if p.staleness is not None else 0.0 for p in (was, then)]
    if abs(stale[1] - stale[0]) > 0.05:
        effects.append(f"mean staleness is {stale[1]:.3g} instead of {stale[0]:.3g} updates")
    if then.model_age is not None and then.model_age != was.model_age:
        every = then.model_age.exchange_every
        effects.append(f"models are exchanged every {every:.3g} steps")
    if then.global_batch_size != was.global_batch_size:
        effects.append(
            f"the global batch is {then.global_batch_size} instead of {was.global_batch_size}"
        )
    used = [p.provenance.inputs["options"].get("compression", "none") for p in (was, then)]
    if used[0] != used[1]:
        effects.append(f"gradients are compressed ({used[1]})")
    spare = [p.provenance.inputs["options"].get("backup_workers", 0) for p in (was, then)]
    if spare[1] > spare[0]:
        effects.append(f"the gradients of {spare[1]} of {then.workers} workers are dropped")
    return "; ".join(effects)
