"""The dominant phase of a job, and the crossovers to another one, solved in symbols or searched."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from perfmodel.base.arrays import Floats
from perfmodel.base.errors import InputError, unknown_name
from perfmodel.base.units import show
from perfmodel.inputs.job import Job
from perfmodel.phases.phases import Phase
from perfmodel.predicting import coarse, variants
from perfmodel.predicting.replicas import stage_jobs
from perfmodel.reporting.contents import Figure
from perfmodel.reporting.drawn import Drawn
from perfmodel.results.prediction import ErrorBand
from perfmodel.studies.solving import EQUAL, solved_for_phases
from perfmodel.studies.variables import HALVINGS, argument, boundary
from perfmodel.sweeping.arguments import changed
from perfmodel.sweeping.labels import Row
from perfmodel.sweeping.tables import fields

if TYPE_CHECKING:
    from perfmodel.studies.figures import PhasesOver

SCHEMA = "perfmodel.explanation/1"

VARIABLES = ("workers", "bandwidth_bytes_per_s", "batch_size")
"""Variables in which crossovers are searched."""

FOR_REPLICAS = ("workers", "bandwidth_bytes_per_s", "batch_size", "micro_batches")
"""The same for workers that are replicas; with a batch size, the number of micro-batches stays."""

POINTS = 200
"""Grid points of a range; a crossover is bracketed by two neighbours."""

FEW, FEWER_HALVINGS = 24, 12
"""Grid points, and halvings between two of them, for jobs that are evaluated one by one."""

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
        all_over = (_drawn_over(job, v, self.crossovers) for v in _varied(job))
        over = [swept for swept in all_over if len(swept.values) > 1]
        where = f"{job.workload.name} on {job.counted} x {job.workload.device}"
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
    points = DRAWN if job.replica is None else FEW
    values = variable._replace(least=min(low, here), most=max(high, here)).spaced(points)
    values = values[_possible(job, name, values)]
    phases_s = _evaluated(job, name, values).phases_s
    return PhasesOver(
        axis=quantity(variable.words, "samples" if name == "batch_size" else variable.unit, most=4),
        now=here,
        values=values.tolist(),
        seconds={phase: seconds.tolist() for phase, seconds in phases_s.items()},
        crossovers=at,
    )


def explain(job: Job) -> Explanation:
    """Find the dominant phase of ``job``, and its crossovers in workers, bandwidth and batch size,
    and of replicas in micro-batches.

    One variable is varied at a time. If the phases are simple enough, the crossover is also solved
    in symbols.
    """
    phases = coarse.phases(job)
    total = float(phases.iteration_s)
    seconds = {name: float(part.seconds) for name, part in phases.parts.items()}
    order = sorted(seconds, key=lambda name: -round(seconds[name] / total / ROUNDING))
    ranked = {name: seconds[name] for name in order if seconds[name] > 0.0}
    varied = _varied(job)
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
            why = "steps inside islands depend on it" if job.islands and not unlike else why
            raise InputError(f"{variable}: cannot be varied if {why}")

    def signs_at(values: Floats) -> list[float]:
        rates = [_evaluated(job, variable, values).throughput_samples_per_s for job in jobs]
        lead = rates[0] / rates[1] - 1.0
        signs: list[float] = np.where(np.abs(lead) < EQUAL, 0.0, np.sign(lead)).tolist()
        return signs

    jobs = (first, second)
    varied = argument(variable, *jobs)
    points, halvings = _effort(*jobs)
    values = varied.spaced(points)
    for job in jobs:
        values = values[_possible(job, variable, values)]
    known = [(v, s) for v, s in zip(values.tolist(), signs_at(values), strict=True) if s]
    crossovers = []
    for (low, sign), (high, next_sign) in itertools.pairwise(known):
        if sign != next_sign:
            _, value = boundary(
                *(low, high, lambda v: signs_at(np.array([v]))[0], sign, varied.step),
                halvings=halvings,
            )
            faster = names if sign > 0 else names[::-1]
            crossovers.append(Crossover(variable, value, *faster, None))
    return crossovers


def against(first: Job, second: Job, name: str, second_name: str) -> tuple[Crossover, ...]:
    """Find, for each variable, the values at which the faster of two jobs changes."""
    if name == second_name:
        raise InputError(f"against: both architectures are {name}")
    variables = [v for v in VARIABLES if _varies(first, v) and _varies(second, v)]
    return tuple(c for v in variables for c in between(first, second, v, (name, second_name)))


def _evaluated(job: Job, variable: str, values: Floats) -> variants.Variants:
    axes: dict[str, Any] = {variable: values}
    if job.replica is None:
        return variants.evaluate(job, **axes)
    jobs = [_with(job, variable, value) for value in values.tolist()]
    phases = [coarse.phases(variant) for variant in jobs]
    step_s = np.array([float(step.iteration_s) for step in phases])
    names = dict.fromkeys(name for step in phases for name in step.parts)
    none = Phase(0.0, "compute")
    samples = np.array([variant.global_batch_size for variant in jobs])
    return variants.Variants(
        iteration_s=step_s,
        throughput_samples_per_s=samples / step_s,
        idle_fraction=np.array([1.0 - float(step.compute_s) / float(step.iteration_s)
                                for step in phases]),
        staleness=np.array([float(step.staleness) for step in phases]),
        phases_s={name: np.array([float(step.parts.get(name, none).seconds) for step in phases])
                  for name in names},
        utilisation={},
    )  # fmt: skip


def _with(job: Job, variable: str, value: float) -> Job:
    """Return a job of replicas with another value of a variable; a batch of other size has as many
    micro-batches."""
    number = value if variable == "bandwidth_bytes_per_s" else int(value)
    held = {"micro_batches": job.workload.accumulation} if variable == "batch_size" else {}
    if variable == "micro_batches":
        held = {"batch_size": job.workload.batch_size}
    return changed(job, {**held, variable: number})


def _possible(job: Job, variable: str, values: Floats) -> list[bool]:
    """Return at which values the job is possible; all unless workers are replicas."""
    if job.replica is None:
        return [True] * len(values)

    def is_possible(value: float) -> bool:
        try:
            stage_jobs(_with(job, variable, value))
        except InputError:
            return False
        return True

    return [is_possible(value) for value in values.tolist()]


def _effort(*jobs: Job) -> tuple[int, int]:
    """Return the grid points, and the halvings between two of them, that jobs are worth."""
    arrays = all(job.replica is None for job in jobs)
    return (POINTS, HALVINGS) if arrays else (FEW, FEWER_HALVINGS)


def _varied(job: Job) -> list[str]:
    """Return the variables in which crossovers of a job are searched."""
    return [v for v in (FOR_REPLICAS if job.replica else VARIABLES) if _varies(job, v)]


def _varies(job: Job, variable: str) -> bool:
    if variable == "bandwidth_bytes_per_s" and job.cluster.collectives:
        return False  # measured at this bandwidth
    if job.islands and variable != "workers":
        return False  # the step inside islands depends on it
    unlike = bool(job.stragglers or job.cluster.links_differ)
    return variable in ("batch_size", "micro_batches") or not unlike


def _crossovers(job: Job, name: str) -> list[Crossover]:
    """Find the nearest crossovers below and above the job's own value."""
    variable = argument(name, job)
    if name == "batch_size":
        variable = variable._replace(step=1 if job.replica is None else job.workload.accumulation)
    points, halvings = _effort(job)
    values, here = variable.spaced(points), variable.value_in(job, job)
    values = values[_possible(job, name, values)]
    near = max(int(np.searchsorted(values, NEAR * here, side="right")), 1)
    ruling = _ruling(job, name, values[:near])
    below, above = _changes(values, ruling, here)
    if not above and near < len(values):
        ruling += _ruling(job, name, values[near:])
        below, above = _changes(values, ruling, here)
    crossovers = []
    for k in [*below[-1:], *above[:1]]:
        low, value = values[k : k + 2].tolist()
        if not variable.values:
            _, value = boundary(
                *(low, value, lambda v: _ruling_at(job, name, v), ruling[k], variable.step),
                halvings=halvings,
            )
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


def sentences(explanation: Explanation, job: Job, others: Sequence[Crossover] = ()) -> list[str]:
    """Write an explanation as sentences."""
    longest_s = explanation.phases_s.get(explanation.rules, 0.0)
    lines = [
        f"{explanation.rules} dominates: {show(longest_s, 's')} of "
        f"{show(explanation.iteration_s, 's')} per iteration "
        f"({longest_s / explanation.iteration_s:.0%})",
        *_ranges(explanation.crossovers, "dominates", job),
        *_ranges(others, "is faster", job),
    ]
    for s in explanation.saturations:
        lines.append(f"{s.resource}: saturated from {s.workers:.3g} workers up")
    return lines


def _ranges(crossovers: Sequence[Crossover], verb: str, job: Job) -> list[str]:
    """Describe for each variable what dominates, from its smallest value to its largest."""
    lines = []
    for name in FOR_REPLICAS:
        along = [c for c in crossovers if c.variable == name]
        if not along:
            continue
        variable = argument(name, job)
        text = f"{along[0].below} {verb} below {variable.shown(along[0].value)}"
        for c in along:
            text += f", {c.above} from {variable.shown(c.value)} up"
        solved = "; ".join(c.formula for c in along if c.formula)
        now = f"(now {variable.shown(variable.value_in(job, job))})"
        lines.append(f"{variable.words}: {text} {now}" + (f"; {solved}" if solved else ""))
    return lines
