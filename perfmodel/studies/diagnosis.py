r"""Why a run is slower than its job should be: :func:`diagnose`.

Each cause (:mod:`perfmodel.studies.causes`) makes other jobs of the job, one for each of its sizes,
and :func:`perfmodel.predict` says by formulas what would be measured of them. The posterior
probability of a cause c with sizes :math:`\theta` is

.. math:: p(c \mid x) \propto p(c) \sum_\theta p(\theta \mid c) \prod_i N(x_i; m_i(c, \theta), s_i)

with measurements x, predictions m, and standard deviations s of both together. Before, all causes
are equally likely, but for those that one device, if it was measured alone, would have shown. A
cause that explains the measurements with any size is less likely than one whose size is known
beforehand and fits (MacKay, "Information theory, inference, and learning algorithms", 2003, chapter
28).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, Unpack

import msgspec
import numpy as np

from perfmodel import api
from perfmodel.base.errors import InputError
from perfmodel.base.uncertainty import factor_of
from perfmodel.base.units import show
from perfmodel.inputs.job import Job
from perfmodel.reporting.contents import Figure, Page, Section
from perfmodel.reporting.drawn import Paged
from perfmodel.reporting.rows import table
from perfmodel.results.prediction import Prediction
from perfmodel.studies.causes import AS_PREDICTED, CAUSES, Cause, Hypothesis
from perfmodel.studies.changes import Change
from perfmodel.studies.likelihoods import TOOLS, Errors, log_likelihood
from perfmodel.studies.observables import OBSERVABLES, Measured, Observed
from perfmodel.sweeping.arguments import job_from
from perfmodel.sweeping.labels import Row
from perfmodel.sweeping.tables import Tabular, fields

if TYPE_CHECKING:
    from perfmodel.inputs.job import JobArguments

SCHEMA = "perfmodel.diagnosis/1"

NOTHING_WRONG = 0.4
"""Probability of *as predicted* before anything is measured; causes share the rest evenly."""

WAS_MEASURED = 0.25
"""Weight of causes that one device alone would have, over that of others, where the speed of one
device was measured: it would have shown them."""

SLOWS = 1.02
"""Smallest ratio of a step with a cause to one without: sizes of causes that do less explain
nothing, and are not considered."""

UNSURE = 0.2
"""Standard deviation of the logarithm of a predicted step from which on a diagnosis says so."""

LEAST_SHOWN = 0.01
"""Smallest probability of a cause that is reported."""


class Suspect(msgspec.Struct, frozen=True, kw_only=True):
    """A cause, and how likely it is.

    Attributes
    ----------
    cause, finding : its name, and what it means with its size.
    probability : that it is the cause, among all and *as predicted*.
    size, interval, unit : the most likely size, with a 90 % interval; None without a size.
    step_s : predicted time of a step with this cause.
    explains : whether that is the measured time, within two standard deviations.
    remedy, remedied_step_s, gain : what to do, and what would then be predicted.
    """

    cause: str
    finding: str
    probability: float
    size: float | None
    interval: tuple[float, float] | None
    unit: str
    step_s: float
    explains: bool
    remedy: str
    remedied_step_s: float
    gain: float


class NextMeasurement(msgspec.Struct, frozen=True, kw_only=True):
    """The measurement that would tell the two most likely causes apart best.

    ``expected`` has what it would give, by cause: for what is either so or not, its probability.
    ``apart`` is how many standard deviations these are from each other.
    """

    what: str
    how: str
    expected: dict[str, float]
    unit: str
    apart: float

    @property
    def text(self) -> str:
        """The measurement in a sentence."""

        def worded(value: float) -> str:
            return f"yes in {value:.0%}" if self.unit == "probability" else show(value, self.unit)

        ends = ", ".join(f"{worded(x)} with {name}" for name, x in self.expected.items())
        return f"{self.what} ({self.how}): {ends}"


class Diagnosis(Paged, Tabular, frozen=True, kw_only=True):
    """Causes of a slow run, the most likely first.

    Attributes
    ----------
    prediction : of the job as it should run.
    measured : what was measured of it.
    slower : measured time of a step over the predicted one.
    suspects : causes with a probability of at least 1 %, and *as predicted* among them.
    spread : standard deviation of the logarithm of the predicted step.
    next_measurement : None if no measurement would tell the first two apart.
    """

    prediction: Prediction
    measured: Measured
    slower: float
    spread: float
    suspects: tuple[Suspect, ...]
    next_measurement: NextMeasurement | None

    @property
    def first(self) -> Suspect:
        """The most likely cause."""
        return self.suspects[0]

    @property
    def note(self) -> str:
        """What makes the diagnosis unsure; empty if nothing does."""
        if self.spread <= UNSURE:
            return ""
        times = factor_of(self.spread)
        return (
            f"the prediction itself may be off by a factor of {times:.2g}: give the speed of one "
            "device (--one-device-speed)"
        )

    def rows(self) -> list[Row]:
        """A row for each cause."""
        return [fields(suspect) for suspect in self.suspects]

    def to_dict(self) -> Row:
        """The diagnosis as JSON-like values, with the prediction's headline only."""
        values = fields(self, "prediction", "suspects")
        job = {"job": self.prediction.headline}
        return {"schema": SCHEMA} | values | job | {"suspects": self.rows()}

    def figure(self) -> Figure:
        """Probabilities of the causes."""
        from perfmodel.studies.figures import shares

        bars = [(s.finding, s.probability) for s in self.suspects]
        return shares(bars, "probability", self.prediction.headline)

    def page(self) -> Page:
        """The contents of the page."""
        first, step_s = self.first, self.measured.step_s
        answer = [
            ("Step", show(step_s, "s"), f"{self.slower:.2f} times the predicted one"),
            ("Cause", f"{first.probability:.0%}", first.finding),
            ("Without it", show(first.remedied_step_s, "s"), first.remedy),
        ]
        text = [f"{s.finding} ({s.probability:.0%}). {s.remedy}" for s in self.suspects]
        if self.note:
            text.append(f"{self.note.capitalize()}.")
        if self.next_measurement is not None:
            text.append(f"What would decide: {self.next_measurement.text}.")
        section = Section(
            name="causes",
            title="Causes",
            text=text,
            figure=self.figure().rows[0][0],
            tables=[table("Causes", self.rows())],
        )
        return Page(title=f"Diagnosis: {first.cause}", answer=answer, sections=[section])


class _Fit(NamedTuple):
    """A hypothesis, what it predicts, and its likelihood."""

    weight: float
    size: float
    job: Job
    prediction: Prediction
    log_likelihood: float
    host_s: float = 0.0

    @property
    def observed(self) -> Observed:
        """The run that would be observed."""
        return Observed(self.job, self.prediction, self.host_s)


class _Judge:
    """Likelihoods of jobs, given what was measured."""

    def __init__(self, measured: Measured, job: Job, expected: Prediction) -> None:
        self.measured, self.expected = measured, expected
        self.errors = Errors.of(job, expected)

    def fits(self, job: Job, cause: Cause) -> list[_Fit]:
        """The possible hypotheses of a cause that make the run slower; their weights add up to
        1."""
        tried = []
        for hypothesis in cause.hypotheses(job):
            try:
                fit = self.fit(hypothesis, job)
            except InputError:
                continue
            if fit is not None:
                tried.append(fit)
        total = sum(fit.weight for fit in tried)
        return [fit._replace(weight=fit.weight / total) for fit in tried]

    def fit(self, hypothesis: Hypothesis, base: Job) -> _Fit | None:
        """The likelihood of a job with a cause; None if it is no slower with it."""
        job = hypothesis.change.job_of(base)
        p = api.predict(job, fidelity="coarse")
        if p.iteration_s <= SLOWS * self.expected.iteration_s:
            return None
        return self.weighed(hypothesis, base, Observed(job, p, hypothesis.host_s))

    def weighed(self, hypothesis: Hypothesis, base: Job, run: Observed) -> _Fit:
        """The likelihood of a run of the job with a cause."""
        total = log_likelihood(self.measured, run, hypothesis.change, base, self.errors)
        return _Fit(hypothesis.weight, hypothesis.size, run.job, run.prediction, total, run.host_s)


NOTHING = Cause(AS_PREDICTED, lambda job: iter(()), "", "", "")


def diagnose(
    measured: Measured, job: Job | None = None, **arguments: Unpack[JobArguments]
) -> Diagnosis:
    """Find why a run takes longer than predicted.

    Parameters
    ----------
    measured : what was measured.
    job : the job as it should run, if there is one.
    arguments : changes of it (:meth:`perfmodel.Job.with_`), else those of
        :func:`perfmodel.make_job`.

    Raises
    ------
    InputError : the job is impossible; another run has as many workers; of synchronous workers, a
        part of the step is longer than the step.

    >>> result = diagnose(Measured(step_s=1.87), model="resnet50", device="gtx1080ti", workers=4,
    ...                   arch="ring", batch_size=32, cluster="pcie3", bandwidth="25Gbps")
    >>> result.slower > 5
    True
    """
    job = job_from(job, arguments)
    if any(workers == job.workers for workers, _ in measured.steps_s):
        raise InputError(f"also: {job.workers} workers are those of the job itself; give others")
    if not job.options.asynchronous:  # else few slow devices may take longer than a mean step
        measured.check_parts()
    expected = api.predict(job, fidelity="coarse")
    judge = _Judge(measured, job, expected)
    same = Hypothesis(1.0, 1.0, Change(AS_PREDICTED, lambda unchanged: unchanged))
    nothing_else = judge.weighed(same, job, Observed(job, expected))
    fits: list[tuple[Cause, list[_Fit]]] = [(NOTHING, [nothing_else])]
    for cause in CAUSES:
        tried = judge.fits(job, cause)
        if tried:
            fits.append((cause, tried))
    best = max(fit.log_likelihood for _, tried in fits for fit in tried)
    priors = [_prior(cause, job) for cause, _ in fits]
    nothing = NOTHING_WRONG / (1.0 - NOTHING_WRONG) * (sum(priors[1:]) or 1.0)
    evidence = [
        sum(fit.weight * math.exp(fit.log_likelihood - best) for fit in tried)
        * (nothing if cause is NOTHING else prior)
        for prior, (cause, tried) in zip(priors, fits, strict=True)
    ]
    ranked = sorted(zip(evidence, fits, strict=True), key=lambda row: -row[0])
    suspects = [
        _suspect(cause, tried, worth / sum(evidence), expected, judge)
        for worth, (cause, tried) in ranked
    ]
    return Diagnosis(
        prediction=expected,
        measured=measured,
        slower=measured.step_s / expected.iteration_s,
        spread=judge.errors.step,
        suspects=tuple(s for s in suspects if s.probability >= LEAST_SHOWN) or tuple(suspects[:1]),
        next_measurement=_next(judge, [_best(tried) for _, (_, tried) in ranked[:2]],
                               [cause.name for _, (cause, _) in ranked[:2]]),
    )  # fmt: skip


def _prior(cause: Cause, job: Job) -> float:
    """Weight of a cause before anything is measured of the run."""
    alone = {"one_device_samples_per_s", "one_device_step_s"}
    return WAS_MEASURED if cause.seen_alone and alone & (job.given or {}).keys() else 1.0


def _best(tried: Sequence[_Fit]) -> _Fit:
    return max(tried, key=lambda fit: math.log(fit.weight) + fit.log_likelihood)


def _suspect(
    cause: Cause, tried: Sequence[_Fit], probability: float, expected: Prediction, judge: _Judge
) -> Suspect:
    """A cause with its size, and the step without it."""
    best = _best(tried)
    size = best.size if cause.unit else None
    remedied_s = expected.iteration_s
    return Suspect(
        cause=cause.name,
        finding=cause.words(best.size) or f"as predicted: {expected.bottleneck.text}",
        probability=probability,
        size=size,
        interval=None if size is None else _interval(tried),
        unit=cause.unit,
        step_s=best.prediction.iteration_s,
        explains=abs(math.log(judge.measured.step_s / best.prediction.iteration_s))
        <= 2.0 * judge.errors.step,
        remedy=cause.remedy,
        remedied_step_s=remedied_s,
        gain=best.prediction.iteration_s / remedied_s,
    )


def _interval(tried: Sequence[_Fit]) -> tuple[float, float]:
    """The sizes between which 90 % of the posterior lie."""
    order = sorted(tried, key=lambda fit: fit.size)
    best = max(fit.log_likelihood for fit in tried)
    mass = np.cumsum([fit.weight * math.exp(fit.log_likelihood - best) for fit in order])
    mass /= mass[-1]
    low, high = np.searchsorted(mass, (0.05, 0.95)).tolist()
    return order[low].size, order[min(high, len(order) - 1)].size


def _next(judge: _Judge, fits: Sequence[_Fit], names: Sequence[str]) -> NextMeasurement | None:
    """The missing measurement that differs most between two hypotheses."""
    if len(fits) < 2:
        return None
    options = []
    for name, observable in OBSERVABLES.items():
        if getattr(judge.measured, name) is not None:
            continue
        first, second = (observable.value(fit.observed) for fit in fits)
        spread = math.hypot(
            *(judge.errors.spread(name, x, fit.prediction.iteration_s)
              for x, fit in zip((first, second), fits, strict=True))
        )  # fmt: skip
        apart = abs(first - second) / spread if spread > 0.0 else 0.0
        options.append(
            NextMeasurement(
                what=observable.meaning,
                how=observable.how,
                expected=dict(zip(names, (first, second), strict=True)),
                unit=observable.unit,
                apart=apart,
            )
        )
    options += _askable(judge.measured, fits, names)
    best = max(options, key=lambda option: option.apart, default=None)
    return best if best is not None and best.apart >= 1.0 else None


def _askable(
    measured: Measured, fits: Sequence[_Fit], names: Sequence[str]
) -> Iterator[NextMeasurement]:
    """What tools were not asked, with the probability that they say yes."""
    for name, tool in TOOLS.items():
        first, second = (tool.chance(fit.job) for fit in fits)
        if getattr(measured, name) is not None or first is None or second is None:
            continue
        spread = math.hypot(*(math.sqrt(chance * (1.0 - chance)) for chance in (first, second)))
        yield NextMeasurement(
            what=tool.question,
            how=tool.how,
            expected=dict(zip(names, (first, second), strict=True)),
            unit="probability",
            apart=abs(first - second) / spread,
        )
