"""The dominant phase of a job, and the crossovers to another one, solved in symbols or searched."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from perfmodel.base.arrays import Floats
from perfmodel.base.errors import InputError, unknown_name
from perfmodel.inputs.job import Job
from perfmodel.predicting import coarse, variants
from perfmodel.reporting.contents import Figure
from perfmodel.reporting.drawn import Drawn
from perfmodel.results.prediction import ErrorBand
from perfmodel.studies.solving import EQUAL, solved_for_phases
from perfmodel.studies.variables import argument, boundary
from perfmodel.sweeping.labels import Row
from perfmodel.sweeping.tables import fields

if TYPE_CHECKING:
    from perfmodel.studies.figures import PhasesOver

SCHEMA = "perfmodel.explanation/1"

VARIABLES = ("workers", "bandwidth_bytes_per_s", "batch_size")
"""Variables in which crossovers are searched."""

POINTS = 200
"""Grid points of a range; a crossover is bracketed by two neighbours."""

NEAR = 4.0
"""Multiple of a job's own value up to which all grid points are evaluated. Points beyond are
evaluated only if no crossover is found before: many asynchronous workers are slow to evaluate."""

AROUND, DRAWN = 8.0, 60
"""A figure goes this factor beyond a job's own value on either side, by so many points."""

ROUNDING = 1e-9
"""Phases whose durations differ by at most this fraction count as equally long."""


class Crossover(msgspec.Struct, frozen=True):
    """A value of a variable at which the dominant phase, or the faster job, changes.

    ``value`` is in SI units; ``below`` and ``above`` name the dominant phase, or the faster job, on
    either side. ``formula`` is the value in symbols; None if there is no simple solution.
    """

    variable: str
    value: float
    below: str
    above: str
    formula: str | None

    def to_dict(self) -> Row:
        """As JSON-like values."""
        return fields(self)


class Saturation(msgspec.Struct, frozen=True):
    """Number of workers that saturates a resource: N* = T(1) / its busy time per iteration."""

    resource: str
    workers: float


class Explanation(Drawn, frozen=True, kw_only=True):
    """What limits a job's speed, according to its coarse model.

    ``phases_s`` are the phases of an iteration, longest first; ``rules`` names the first.
    ``job`` is not part of the JSON, and None in an explanation that was read from it.
    """

    schema: str = SCHEMA
    iteration_s: float
    phases_s: dict[str, float]
    rules: str
    crossovers: tuple[Crossover, ...]
    saturations: tuple[Saturation, ...]
    error_band: ErrorBand
    job: Job | None = None

    def to_dict(self) -> Row:
        """As JSON-like values."""
        return fields(self, "job")

    def figure(self) -> Figure:
        """The phases, and how they change with each variable; without a job the phases alone."""
        from perfmodel.studies.figures import phases

        job = self.job
        if job is None:
            return phases(self.phases_s, (), "other phases", "")
        over = [_drawn_over(job, v, self.crossovers) for v in VARIABLES if _varies(job, v)]
        where = f"{job.workload.name} on {job.workers} x {job.workload.device}"
        title = f"{where}, {job.architecture.name}: {self.rules} takes the longest"
        return phases(self.phases_s, over, "other phases", title)


def _drawn_over(job: Job, name: str, crossovers: Sequence[Crossover]) -> PhasesOver:
    """The phases around the job's own value and the crossovers of a variable."""
    from perfmodel.studies.figures import PhasesOver, quantity

    variable = argument(name, job)
    here = variable.value_in(job, job)
    at = [c.value for c in crossovers if c.variable == name]
    low = max(min([here / AROUND, *(value / NEAR for value in at)]), variable.least)
    high = min(max([here * AROUND, *(value * NEAR for value in at)]), variable.most)
    values = variable._replace(least=min(low, here), most=max(high, here)).spaced(DRAWN)
    phases_s = _evaluated(job, name, values).phases_s
    return PhasesOver(
        axis=quantity(variable.words, "samples" if name == "batch_size" else variable.unit, most=4),
        now=here,
        values=values.tolist(),
        seconds={phase: seconds.tolist() for phase, seconds in phases_s.items()},
        crossovers=at,
    )


def explain(job: Job) -> Explanation:
    """Find the dominant phase of ``job``, and its crossovers in workers, bandwidth and batch size.

    One variable is varied at a time. If the phases are simple enough, the crossover is also solved
    in symbols.
    """
    phases = coarse.phases(job)
    total = float(phases.iteration_s)
    seconds = {name: float(part.seconds) for name, part in phases.parts.items()}
    order = sorted(seconds, key=lambda name: -round(seconds[name] / total / ROUNDING))
    ranked = {name: seconds[name] for name in order if seconds[name] > 0.0}
    varied = [name for name in VARIABLES if _varies(job, name)]
    return Explanation(
        iteration_s=total,
        phases_s=ranked,
        rules=next(iter(ranked), "nothing"),
        crossovers=tuple(c for name in varied for c in _crossovers(job, name)),
        saturations=_saturations(job),
        error_band=coarse.error_band(job),
        job=job,
    )


def between(first: Job, second: Job, variable: str, names: tuple[str, str]) -> list[Crossover]:
    """Find values of a variable at which the faster of two jobs (samples per second) changes.

    Raises
    ------
    InputError : an unknown variable, or one that cannot be varied for one of the jobs.
    """
    if variable not in VARIABLES:
        raise unknown_name("variable", variable, VARIABLES)
    for job in (first, second):
        if not _varies(job, variable):
            unlike = job.stragglers or job.cluster.overrides
            why = "workers or links differ" if unlike else "collectives were measured"
            raise InputError(f"{variable}: cannot be varied if {why}")

    def signs_at(values: Floats) -> list[float]:
        rates = [_evaluated(job, variable, values).throughput_samples_per_s for job in jobs]
        lead = rates[0] / rates[1] - 1.0
        signs: list[float] = np.where(np.abs(lead) < EQUAL, 0.0, np.sign(lead)).tolist()
        return signs

    jobs = (first, second)
    what = argument(variable, *jobs)
    values = what.spaced(POINTS)
    known = [(v, s) for v, s in zip(values.tolist(), signs_at(values), strict=True) if s]
    crossovers = []
    for (low, sign), (high, other) in itertools.pairwise(known):
        if sign != other:
            _, value = boundary(low, high, lambda v: signs_at(np.array([v]))[0], sign, what.step)
            faster = names if sign > 0 else names[::-1]
            crossovers.append(Crossover(variable, value, *faster, None))
    return crossovers


def against(first: Job, second: Job, name: str, other: str) -> tuple[Crossover, ...]:
    """Find, for each variable, the values at which the faster of two jobs changes."""
    if name == other:
        raise InputError(f"against: both architectures are {name}")
    variables = [v for v in VARIABLES if _varies(first, v) and _varies(second, v)]
    return tuple(c for v in variables for c in between(first, second, v, (name, other)))


def _evaluated(job: Job, variable: str, values: Floats) -> variants.Variants:
    axes: dict[str, Any] = {variable: values}
    return variants.evaluate(job, **axes)


def _varies(job: Job, variable: str) -> bool:
    if variable == "bandwidth_bytes_per_s" and job.cluster.collectives:
        return False  # measured at this bandwidth
    return variable == "batch_size" or not (job.stragglers or job.cluster.links_differ)


def _crossovers(job: Job, name: str) -> list[Crossover]:
    """Find the nearest crossovers below and above the job's own value."""
    variable = argument(name, job)
    values, here = variable.spaced(POINTS), variable.value_in(job, job)
    near = max(int(np.searchsorted(values, NEAR * here, side="right")), 1)
    ruling = _ruling(job, name, values[:near])
    below, above = _changes(values, ruling, here)
    if not above and near < len(values):
        ruling += _ruling(job, name, values[near:])
        below, above = _changes(values, ruling, here)
    crossovers = []
    for k in [*below[-1:], *above[:1]]:
        low, high = values[k : k + 2].tolist()
        _, value = boundary(low, high, lambda v: _ruling_at(job, name, v), ruling[k], variable.step)
        pair = ruling[k], _ruling_at(job, name, value)
        formula = solved_for_phases(job, name, value, pair)
        crossovers.append(Crossover(name, value, *pair, formula))
    return crossovers


def _changes(values: Floats, ruling: Sequence[str], here: float) -> tuple[list[int], list[int]]:
    """Indices before and after ``here`` at which the next point has another dominant phase."""
    changes = [k for k, pair in enumerate(itertools.pairwise(ruling)) if pair[0] != pair[1]]
    return (
        [k for k in changes if values[k + 1] <= here],
        [k for k in changes if values[k + 1] > here],
    )


def _ruling_at(job: Job, variable: str, value: float) -> str:
    return _ruling(job, variable, np.array([value]))[0]


def _ruling(job: Job, variable: str, values: Floats) -> list[str]:
    """The longest phase at each value; the first on ties."""
    phases = _evaluated(job, variable, values).phases_s
    names = list(phases)
    seconds = np.array([phases[name] for name in names])
    longest = seconds >= (1.0 - ROUNDING) * seconds.max(axis=0)
    return [names[k] for k in np.argmax(longest, axis=0)]


def _saturations(job: Job) -> tuple[Saturation, ...]:
    """Saturation points of resources that asynchronous workers share (knee of the asymptotic
    bounds)."""
    if not _varies(job, "workers") or not job.options.asynchronous:
        return ()
    alone = coarse.phases(msgspec.structs.replace(job, workers=1))
    one_s = float(alone.iteration_s)
    busy = {name: float(seconds) for name, seconds in alone.busy_s.items() if seconds > 0.0}
    return tuple(
        Saturation(name, one_s / busy[name]) for name in sorted(busy, key=lambda n: -busy[n])
    )
