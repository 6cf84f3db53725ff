"""Inverse questions: the bandwidth, or the number of workers, that meets an aim.

The aim is a condition on a prediction, such as ``scaling>0.9``. :func:`require` finds the values of
one variable that meet it, all else being equal, and the values at which either end of the
prediction's interval meets it.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, Unpack

import msgspec

from perfmodel import api
from perfmodel.base.errors import InputError, unknown_name
from perfmodel.base.units import dimension_of, show
from perfmodel.inputs.job import MOST_WORKERS, Job, JobArguments
from perfmodel.inputs.options import described
from perfmodel.reporting.contents import Figure
from perfmodel.reporting.drawn import Drawn
from perfmodel.results.prediction import Prediction
from perfmodel.studies import crossovers
from perfmodel.studies.aims import HOUR_S, QUANTITIES, Aim
from perfmodel.studies.changes import LINKS, Change, of_arguments, of_options
from perfmodel.studies.searching import bisected, spaced
from perfmodel.sweeping.arguments import job_from

SCHEMA = "perfmodel.requirement/1"

POINTS = 49
"""Grid values that are evaluated before the edges between them are bisected."""

AROUND = 10.0
"""A figure goes this factor beyond the job and the answer."""

HALVINGS = 40
"""Bisections of a bracket on a logarithmic scale: to 1 part in 10^11 of the whole range."""

Holds = Literal["from", "up to", "between", "always", "never"]


class Range(msgspec.Struct, frozen=True):
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


class Point(msgspec.Struct, frozen=True):
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
    found : values that meet the aim.
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
    found: Range
    surely: Range
    possibly: Range
    formula: str | None
    text: str
    points: tuple[Point, ...]
    prediction: Prediction

    def to_dict(self) -> dict[str, Any]:
        """JSON-like values."""
        values: dict[str, Any] = msgspec.to_builtins(
            {name: getattr(self, name) for name in self.__struct_fields__ if name != "prediction"}
        )
        return values | {"prediction": self.prediction.to_dict()}

    def figure(self) -> Figure:
        """The aim's quantity over the variable."""
        from perfmodel.studies.figures import aim, quantity as axis

        drawn = self._near()
        ends = drawn[0].value, drawn[-1].value
        ranges = self.found.within(*ends), self.surely.within(*ends)
        quantity = QUANTITIES[self.quantity]
        linear = self.quantity in ("idle", "scaling", "staleness")
        of_variable = "samples" if self.variable == "batch_size" else self.unit
        over = axis(_words(self.variable, self.unit), of_variable)
        scale, unit = (1.0 / HOUR_S, "h") if self.quantity == "time" else (1.0, quantity.unit)
        points = [(p.value, p.quantity * scale, p.low * scale, p.high * scale) for p in drawn]
        axes = (over, axis(quantity.label, unit, log=not linear))
        return aim(points, axes, self.target * scale, self.now, ranges, self.text)

    def _near(self) -> list[Point]:
        """The points around the job and the answer; all of them where there is no such value."""
        ends = (self.found.low, self.found.high, self.surely.low, self.surely.high)
        marked = [end for end in ends if end is not None]
        if not marked:
            return list(self.points)
        low, high = min(*marked, self.now) / AROUND, max(*marked, self.now) * AROUND
        found = [point for point in self.points if low <= point.value <= high]
        return found if len(found) > 1 else list(self.points)


class Variable(NamedTuple):
    """A variable: its name and unit, its range, the change that sets it, and the step between
    values; 0 if it is not an integer."""

    name: str
    unit: str
    least: float
    most: float
    set_to: Callable[[float], Change]
    step: int

    @property
    def whole(self) -> bool:
        """Whether it is an integer."""
        return self.step > 0

    def shown(self, value: float) -> str:
        """A value as text with its unit."""
        if self.whole:
            return f"{value:.0f}"
        return show(value, self.unit) if self.unit else f"{value:.4g}"


ARGUMENTS: Mapping[str, tuple[str, float, float]] = {
    "bandwidth": ("bandwidth_bytes_per_s", 1e5, 1e13),
    "latency": ("latency_s", 1e-8, 10.0),
    "workers": ("workers", 1.0, 65536.0),
    "batch-size": ("batch_size", 1.0, 65536.0),
}
"""Job arguments that can be varied, and their ranges."""

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
    variable : bandwidth, latency, workers, servers, batch-size, or a numeric option of the
        architecture.
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

    >>> found = require("bandwidth", "scaling>0.9", model="resnet50", device="v100", arch="ring",
    ...                 workers=16)
    >>> found.found.holds
    'from'
    """
    wanted = Aim.parse(aim) if isinstance(aim, str) else aim
    job = job_from(job, arguments)
    what = _variable(variable, job)
    how: api.PredictOptions = {
        "fidelity": fidelity,
        "dataset_size": dataset_size,
        "epochs": epochs,
    }
    search = _Search(wanted, what, job, how)
    here = api.predict(job, **how)
    value, *_ = search.values(here)
    ranges = [search.range(end) for end in (0, 1, 2)]
    surely, possibly = (2, 1) if wanted.below else (1, 2)
    at = ranges[0].value
    then = search.predicted(at) if at is not None else None
    if then is None:
        then = here if ranges[0].holds == "always" else search.nearest()
    return Requirement(
        variable=what.name,
        unit=what.unit,
        now=_now(what, job),
        aim=wanted.text,
        quantity=wanted.quantity,
        target=wanted.value,
        met_now=wanted.met(value),
        found=ranges[0],
        surely=ranges[surely],
        possibly=ranges[possibly],
        formula=_formula(what, wanted, ranges[0], job, search.alone),
        text=_text(what, wanted, ranges[0], ranges[surely], then, search),
        points=search.curve(ranges),
        prediction=then,
    )


class _Search:
    """Cached predictions of a job at values of a variable."""

    def __init__(self, aim: Aim, what: Variable, job: Job, how: api.PredictOptions) -> None:
        self.aim, self.what, self.job, self.how = aim, what, job, how
        self.predicted = functools.cache(self._predicted)
        alone = api.make_job(workload=job.workload, cluster=job.cluster, arch="allreduce")
        self.alone = api.predict(alone, fidelity="coarse").throughput_samples_per_s
        self.points: list[float] = spaced(what.least, what.most, POINTS, what.step).tolist()

    def _predicted(self, value: float) -> Prediction | None:
        """The prediction at a value; None if the job is impossible."""
        number = int(value) if self.what.whole else value
        try:
            return api.predict(self.what.set_to(number).job_of(self.job), **self.how)
        except InputError:
            return None

    def values(self, p: Prediction) -> tuple[float, float, float]:
        """The aim's quantity and the bounds of its interval.

        If the batch size varies, the throughput of a worker alone is that of its computation.
        """
        alone = self.alone
        if self.what.name == "batch_size":
            alone = p.batch_size / p.compute_s
        return QUANTITIES[self.aim.quantity].of(p, alone)

    def curve(self, ranges: Sequence[Range]) -> tuple[Point, ...]:
        """The quantity at the ends of ranges, and at all points at which the job is possible."""
        ends = {end for each in ranges for end in (each.low, each.high) if end is not None}
        some = [(value, self.predicted(value)) for value in sorted({*self.points, *ends})]
        return tuple(Point(value, *self.values(p)) for value, p in some if p is not None)

    def met(self, value: float, end: int) -> bool:
        """Return whether the prediction (0) or a bound of its interval (1, 2) meets the aim."""
        p = self.predicted(value)
        return p is not None and self.aim.met(self.values(p)[end])

    def range(self, end: int) -> Range:
        """The widest range of values that meet the aim."""
        possible = [value for value in self.points if self.predicted(value) is not None]
        if not possible:
            raise InputError(f"{self.what.name}: the job is impossible at every value")
        runs: list[tuple[int, int]] = []
        met = [self.met(value, end) for value in possible]
        for holds, group in itertools.groupby(range(len(possible)), key=met.__getitem__):
            places = list(group)
            if holds:
                runs.append((places[0], places[-1]))
        if not runs:
            return Range("never", None, None)
        first, last = max(runs, key=lambda run: run[1] - run[0])
        low = self._edge(possible[first], possible[first - 1], end) if first else None
        open_above = last == len(possible) - 1
        high = None if open_above else self._edge(possible[last], possible[last + 1], end)
        if low is None and high is None:
            return Range("always", None, None)
        if low is not None and high is not None:
            return Range("between", low, high)
        return Range("from" if high is None else "up to", low, high)

    def _edge(self, inside: float, outside: float, end: int) -> float:
        """The last value that meets the aim, from ``inside`` towards ``outside``."""
        return bisected(
            inside, outside, lambda value: self.met(value, end), self.what.step, HALVINGS
        )[0]

    def nearest(self) -> Prediction:
        """The prediction that comes closest to the aim."""
        some = [p for value in self.points if (p := self.predicted(value)) is not None]
        sign = 1.0 if self.aim.below else -1.0
        return min(some, key=lambda p: sign * self.values(p)[0])


def _variable(name: str, job: Job) -> Variable:
    """Look up a variable by name.

    Raises
    ------
    InputError : it does not exist, or is not a number.
    """
    dashed = name.replace("_", "-")
    if dashed in ARGUMENTS:
        argument, least, most = ARGUMENTS[dashed]
        step = int(argument in ("workers", "batch_size"))
        if argument in LINKS:
            now = getattr(job.of_devices.cluster.nic, argument)
            least, most = min(least, now / SPAN) if now else least, max(most, now * SPAN)
        if argument == "workers":
            step = job.options.group_size
            nodes = job.cluster.workers_nodes
            devices = math.inf if nodes is None else nodes * job.cluster.devices_per_node
            least = max(1.0 + job.options.spare_workers, step)
            most = min(most, MOST_WORKERS, devices) // step * step
        unit = dimension_of(argument) or ""
        return Variable(
            argument, unit, least, most, lambda v: of_arguments(name, "", **{argument: v}), step
        )
    options = {each.name: each for each in described(type(job.options))}
    option = name.replace("-", "_")
    if option not in options:
        numbers = [n for n, o in options.items() if _is_number(o.default)]
        raise unknown_name("variable", name, [*ARGUMENTS, *numbers])
    default = options[option].default
    if not _is_number(default):
        raise InputError(f"variable: option {option} is not a number")
    unit = dimension_of(option) or ""
    whole = isinstance(default, int)
    least, most = (1.0, MOST_WHOLE) if whole else OPTION_RANGES.get(unit, OPTION_RANGES[""])
    return Variable(
        option, unit, least, most, lambda v: of_options(name, **{option: v}), int(whole)
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _now(what: Variable, job: Job) -> float:
    """The variable's value in the job."""
    nic = job.of_devices.cluster.nic
    known = {
        "bandwidth_bytes_per_s": nic.bandwidth_bytes_per_s,
        "latency_s": nic.latency_s,
        "workers": job.workers,
        "batch_size": job.of_devices.workload.batch_size,
    }
    return float(known[what.name] if what.name in known else getattr(job.options, what.name))


def _formula(what: Variable, aim: Aim, found: Range, job: Job, alone: float) -> str | None:
    """The value in symbols; T is the step time that the aim requires."""
    batch = job.workload.batch_size
    rates = {"scaling": aim.value * alone, "throughput": aim.value / job.workers}
    if aim.quantity == "step":
        step_s = aim.value
    elif aim.quantity in rates and (aim.quantity, what.name) != ("throughput", "workers"):
        step_s = batch / rates[aim.quantity]
    else:
        return None
    value = found.value
    return None if value is None else crossovers.solved_for_step(job, what.name, value, step_s)


def _text(
    what: Variable, aim: Aim, found: Range, surely: Range, then: Prediction, search: _Search
) -> str:
    """Write the answer as a sentence."""
    words = _words(what.name, what.unit)
    if found.holds == "never":
        value = search.values(then)[0]
        return (
            f"no value of {words} meets {aim.text}: the closest is {value:.3g}, because "
            f"{then.bottleneck.text}"
        )
    if found.holds == "always":
        ends = f"from {what.shown(what.least)} to {what.shown(what.most)}"
        return f"{aim.text} is met at every value of {words} {ends}"
    return f"{aim.text} is met with {words} {_of(what, found)}; {_surely(what, surely)}"


def _words(name: str, unit: str) -> str:
    """A variable's name without its unit."""
    return name.removesuffix(f"_{unit}").replace("_", " ")


def _of(what: Variable, found: Range) -> str:
    low = what.shown(found.low) if found.low is not None else ""
    high = what.shown(found.high) if found.high is not None else ""
    return {
        "from": f"from {low} up",
        "up to": f"up to {high}",
        "between": f"from {low} to {high}",
    }[found.holds]


def _surely(what: Variable, surely: Range) -> str:
    if surely.holds == "never":
        return "at no value does the whole prediction interval meet it"
    if surely.holds == "always":
        return "the whole prediction interval meets it at every value"
    return f"the whole prediction interval meets it {_of(what, surely)}"
