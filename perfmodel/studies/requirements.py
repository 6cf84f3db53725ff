"""Inverse questions: the bandwidth, or the number of workers, that meets an aim.

The aim is a condition on a prediction, such as ``scaling>0.9``. :func:`require` finds the values of
one variable that meet it, all else being equal, and the values at which either end of the
prediction's interval meets it.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal, Unpack

import msgspec

from perfmodel import api
from perfmodel.base.errors import InputError, unknown_name
from perfmodel.base.units import HOUR_S, dimension_of
from perfmodel.inputs.job import Job
from perfmodel.inputs.options import described
from perfmodel.reporting.contents import Figure
from perfmodel.reporting.drawn import Drawn
from perfmodel.results.prediction import Prediction
from perfmodel.studies.aims import QUANTITIES, Aim
from perfmodel.studies.changes import LINKS
from perfmodel.studies.solving import solved_for_step
from perfmodel.studies.variables import OF_REPLICAS, RANGES, Variable, argument, boundary
from perfmodel.sweeping.arguments import changed, job_from
from perfmodel.sweeping.labels import Row
from perfmodel.sweeping.tables import fields

if TYPE_CHECKING:
    from perfmodel.inputs.job import JobArguments

SCHEMA = "perfmodel.requirement/1"

POINTS = 49
"""Grid values that are evaluated before the edges between them are bisected."""

AROUND = 10.0
"""A figure goes this factor beyond the job and the answer."""

HALVINGS = 40
"""Bisections of a bracket on a logarithmic scale: to 1 part in 10^11 of the whole range."""

FEWER_HALVINGS = 14
"""The same for replicas, of which each prediction takes longer: to 1 part in 40 000."""

NAMES: Mapping[str, str] = {
    "bandwidth": "bandwidth_bytes_per_s",
    "latency": "latency_s",
    "stages": "pipeline",
}
"""Variables that have another name as an argument."""

Holds = Literal["from", "up to", "between", "always", "never"]


class AimRange(msgspec.Struct, frozen=True):
    """Values that meet an aim: *from* ``low`` up, *up to* ``high``, *between* both, *always*, or
    *never*; bounds that do not apply are None."""

    holds: Holds
    low: float | None
    high: float | None

    @property
    def value(self) -> float | None:
        """The bound that applies: the lower one if there is one."""
        return self.low if self.low is not None else self.high

    def within(self, least: float, most: float) -> tuple[float, float] | None:
        """Both ends, as far as they lie between two values; None for *never*."""
        if self.holds == "never":
            return None
        low = least if self.low is None else self.low
        return max(low, least), min(most if self.high is None else self.high, most)

    def text(self, variable: Variable) -> str:
        """The values in words; not of *always* and *never*."""
        if self.low is None:
            return f"up to {variable.shown(self.high or 0.0)}"
        low = f"from {variable.shown(self.low)}"
        return f"{low} up" if self.high is None else f"{low} to {variable.shown(self.high)}"


class AimPoint(msgspec.Struct, frozen=True):
    """The aim's quantity at a value of the variable, and the ends of its interval (SI)."""

    value: float
    quantity: float
    low: float
    high: float


class Requirement(Drawn, frozen=True, kw_only=True):
    """The answer to an inverse question.

    Attributes
    ----------
    variable, unit, now : the variable, its SI unit, and its value in the job.
    aim : the aim as text.
    quantity, target : the quantity that the aim constrains, see :class:`perfmodel.Aim`, and its
        target value (SI).
    met_now : whether the unchanged job meets the aim.
    values : values that meet the aim.
    surely, possibly : values at which the worse, and the better, end of the prediction's interval
        meets it.
    formula : the value in symbols; None if there is no simple solution.
    text : the answer in words.
    points : the aim's quantity over the whole range of the variable.
    prediction : prediction at the value found; if there is none, the one closest to the aim.
    """

    schema: str = SCHEMA
    variable: str
    unit: str
    now: float
    aim: str
    quantity: str
    target: float
    met_now: bool
    values: AimRange
    surely: AimRange
    possibly: AimRange
    formula: str | None
    text: str
    points: tuple[AimPoint, ...]
    prediction: Prediction

    def to_dict(self) -> Row:
        """JSON-like values."""
        return fields(self, "prediction") | {"prediction": self.prediction.to_dict()}

    def figure(self) -> Figure:
        """The aim's quantity over the variable."""
        from perfmodel.studies.figures import aim, quantity as axis

        drawn = self._near()
        ends = drawn[0].value, drawn[-1].value
        ranges = self.values.within(*ends), self.surely.within(*ends)
        quantity = QUANTITIES[self.quantity]
        linear = self.quantity in ("idle", "scaling", "staleness", "fits")
        words = Variable(self.variable, *ends).words
        over = axis(words, "samples" if self.variable == "batch_size" else self.unit)
        scale, unit = (1.0 / HOUR_S, "h") if self.quantity == "time" else (1.0, quantity.unit)
        points = [(p.value, p.quantity * scale, p.low * scale, p.high * scale) for p in drawn]
        axes = (over, axis(quantity.label, unit, log=not linear))
        return aim(points, axes, self.target * scale, self.now, ranges, self.text)

    def _near(self) -> list[AimPoint]:
        """The points around the job and the answer; all of them where there is no such value."""
        ends = (self.values.low, self.values.high, self.surely.low, self.surely.high)
        marked = [end for end in ends if end is not None]
        if not marked:
            return list(self.points)
        low, high = min(*marked, self.now) / AROUND, max(*marked, self.now) * AROUND
        near = [point for point in self.points if low <= point.value <= high]
        return near if len(near) > 1 else list(self.points)


SPAN = 1e3
"""The range always reaches this factor below and above the cluster's own value."""

OPTION_RANGES: Mapping[str, tuple[float, float]] = {
    "s": (1e-9, 1e3),
    "bytes": (1.0, 1e12),
    "": (1e-6, 1e6),
}
"""Ranges of non-integer options, by unit."""

MOST_WHOLE = 65536.0


def require(
    variable: str,
    aim: Aim | str,
    job: Job | None = None,
    *,
    fidelity: api.Fidelity = "coarse",
    dataset_size: int | None = None,
    epochs: int | None = None,
    **arguments: Unpack[JobArguments],
) -> Requirement:
    """Find the values of a variable that make a job meet an aim.

    Parameters
    ----------
    variable : bandwidth, latency, workers, servers, batch-size, micro-batches, pipeline, tensor,
        context, or a numeric option of the architecture. Of micro-batches to context also the
        workers' batch stays.
    aim : such as ``scaling>0.9``, see :meth:`Aim.parse`.
    fidelity : fidelity of the predictions. *coarse* takes seconds, the others may take minutes; the
        error of *coarse* is part of the interval.
    dataset_size, epochs : samples per epoch and number of epochs; needed by aims on ``time``.
    job : the job to start from, if there is one.
    arguments : changes of it (:meth:`perfmodel.Job.with_`), else those of
        :func:`perfmodel.make_job`; ``global_batch_size`` may replace ``batch_size``.

    Raises
    ------
    InputError : an aim that cannot be parsed, a variable that does not exist or is not a number, or
        an impossible job.

    >>> result = require("bandwidth", "scaling>0.9", model="resnet50", device="v100", arch="ring",
    ...                  workers=16)
    >>> result.values.holds
    'from'
    """
    wanted = Aim.parse(aim) if isinstance(aim, str) else aim
    job = job_from(job, arguments)
    how = api.PredictOptions(fidelity=fidelity, dataset_size=dataset_size, epochs=epochs)
    search = _Search(wanted, _variable(variable, job), job, how)
    varied = search.variable
    here = api.predict(job, how)
    value, *_ = search.quantity(here)
    ranges = [search.range(end) for end in (0, 1, 2)]
    bounds = ranges[0]
    surely, possibly = (ranges[2], ranges[1]) if wanted.below else (ranges[1], ranges[2])
    then = search.predicted(bounds.value) if bounds.value is not None else None
    if then is None:
        then = here if bounds.holds == "always" else search.nearest()
    return Requirement(
        variable=varied.name,
        unit=varied.unit,
        now=varied.value_in(job, job.of_devices),
        aim=wanted.text,
        quantity=wanted.quantity,
        target=wanted.value,
        met_now=wanted.met(value),
        values=bounds,
        surely=surely,
        possibly=possibly,
        formula=search.formula(bounds),
        text=search.text(bounds, surely, then),
        points=search.curve(ranges),
        prediction=then,
    )


def _variable(name: str, job: Job) -> Variable:
    """Look up a variable by name."""
    option = name.replace("-", "_")
    known = NAMES.get(option, option)
    if known in LINKS:
        variable, now = argument(known), float(getattr(job.of_devices.cluster.nic, known))
        least, most = min(variable.least, now / SPAN or math.inf), max(variable.most, now * SPAN)
        return variable._replace(least=least, most=most)
    if known in RANGES or known in OF_REPLICAS:
        return argument(known, job)
    defaults = {row.name: row.default for row in described(type(job.options))}
    numbers = [name for name, value in defaults.items() if type(value) in (int, float)]
    if option not in defaults:
        arguments = ("bandwidth", "latency", "workers", "batch-size", "micro-batches", "pipeline")
        raise unknown_name("variable", name, [*arguments, "tensor", "context", *numbers])
    if option not in numbers:
        raise InputError(f"variable: option {option} is not a number")
    if isinstance(defaults[option], int):
        return Variable(option, 1.0, MOST_WHOLE, 1)
    return Variable(option, *OPTION_RANGES.get(dimension_of(option) or "", OPTION_RANGES[""]))


class _Search:
    """The search for the values of a variable that meet an aim, with cached predictions."""

    def __init__(self, aim: Aim, variable: Variable, job: Job, how: api.PredictOptions) -> None:
        self.aim, self.variable, self.job, self.how = aim, variable, job, how
        self.predicted = functools.cache(self._predicted)
        alone = api.make_job(workload=job.workload, cluster=job.cluster, arch="allreduce")
        self.alone = api.predict(alone, fidelity="coarse").throughput_samples_per_s
        self.values: list[float] = variable.spaced(POINTS).tolist()

    def _predicted(self, value: float) -> Prediction | None:
        """The prediction at a value; None if the job is impossible."""
        name, number = self.variable.name, int(value) if self.variable.step else value
        changes: dict[str, object] = {"options": {name: number}}
        if name in RANGES:
            changes = {name: number}
        elif name in OF_REPLICAS:
            changes = {"batch_size": self.job.of_devices.workload.batch_size, name: number}
        try:
            return api.predict(changed(self.job, changes), self.how)
        except InputError:
            return None

    def quantity(self, p: Prediction) -> tuple[float, float, float]:
        """The aim's quantity and the bounds of its interval.

        If the batch size varies, and of replicas, the throughput of a worker alone is that of its
        computation.
        """
        varies = self.variable.name in ("batch_size", *OF_REPLICAS) or self.job.replica is not None
        alone = p.batch_size / p.compute_s if varies else self.alone
        return QUANTITIES[self.aim.quantity].of(p, alone)

    def curve(self, ranges: Sequence[AimRange]) -> tuple[AimPoint, ...]:
        """The quantity at the ends of ranges, and at all values at which the job is possible."""
        ends = {end for of in ranges for end in (of.low, of.high) if end is not None}
        known = [(value, self.predicted(value)) for value in sorted({*self.values, *ends})]
        return tuple(AimPoint(value, *self.quantity(p)) for value, p in known if p is not None)

    def range(self, end: int) -> AimRange:
        """The widest range of values that meet the aim, by the prediction (0) or a bound of its
        interval (1, 2)."""

        def met_at(value: float) -> bool:
            p = self.predicted(value)
            return p is not None and self.aim.met(self.quantity(p)[end])

        def edges(k: int) -> tuple[float, float]:
            pair = possible[k], possible[k + 1]
            if self.variable.values:
                return pair
            halvings = HALVINGS if self.job.replica is None else FEWER_HALVINGS
            return boundary(*pair, met_at, met[k], self.variable.step, halvings)

        possible = [value for value in self.values if self.predicted(value) is not None]
        if not possible:
            raise InputError(f"{self.variable.name}: the job is impossible at every value")
        if self.variable.values and len(possible) == 1:
            raise InputError(
                f"{self.variable.name}: the job is possible only with {possible[0]:.0f}"
            )
        met = [met_at(value) for value in possible]
        groups = itertools.groupby(range(len(possible)), key=met.__getitem__)
        runs = [list(places) for holds, places in groups if holds]
        if not runs:
            return AimRange("never", None, None)
        run = max(runs, key=len)
        low = edges(run[0] - 1)[1] if run[0] else None
        high = edges(run[-1])[0] if run[-1] < len(possible) - 1 else None
        if low is None:
            return AimRange("always" if high is None else "up to", None, high)
        return AimRange("from" if high is None else "between", low, high)

    def nearest(self) -> Prediction:
        """The prediction that comes closest to the aim."""
        possible = [p for value in self.values if (p := self.predicted(value)) is not None]
        sign = 1.0 if self.aim.below else -1.0
        return min(possible, key=lambda p: sign * self.quantity(p)[0])

    def formula(self, bounds: AimRange) -> str | None:
        """The value in symbols; T is the step time that the aim requires."""
        aim, job, name = self.aim, self.job, self.variable.name
        rates = {"scaling": aim.value * self.alone, "throughput": aim.value / job.workers}
        if aim.quantity == "step":
            step_s = aim.value
        elif aim.quantity in rates and (aim.quantity, name) != ("throughput", "workers"):
            step_s = job.workload.batch_size / rates[aim.quantity]
        else:
            return None
        return None if bounds.value is None else solved_for_step(job, name, bounds.value, step_s)

    def text(self, bounds: AimRange, surely: AimRange, then: Prediction) -> str:
        """The answer as a sentence."""
        aim, variable = self.aim.text, self.variable
        if bounds.holds == "never":
            why = then.bottleneck.text
            if self.aim.quantity == "fits":
                why = then.memory.largest_part
            return (
                f"no value of {variable.words} meets {aim}: the closest is "
                f"{self.quantity(then)[0]:.3g}, because {why}"
            )
        if bounds.holds == "always":
            ends = f"from {variable.shown(variable.least)} to {variable.shown(variable.most)}"
            return f"{aim} is met at every value of {variable.words} {ends}"
        interval = "the whole prediction interval meets it"
        if surely.holds == "never":
            interval = "at no value does the whole prediction interval meet it"
        elif surely.holds == "always":
            interval += " at every value"
        else:
            interval += f" {surely.text(variable)}"
        return f"{aim} is met with {variable.words} {bounds.text(variable)}; {interval}"
