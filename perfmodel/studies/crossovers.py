"""The dominant phase of a job, and the crossovers to another one, solved in symbols or searched."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from perfmodel.base.arrays import Floats
from perfmodel.base.errors import InputError, unknown_name
from perfmodel.base.units import dimension_of
from perfmodel.inputs.job import MOST_WORKERS, Job
from perfmodel.phases.quantities import quantities_of
from perfmodel.predicting import coarse, variants
from perfmodel.reporting.contents import Figure
from perfmodel.reporting.drawn import Drawn
from perfmodel.results.prediction import ErrorBand
from perfmodel.studies import formulas
from perfmodel.studies.searching import bisected, spaced

if TYPE_CHECKING:
    import sympy

    from perfmodel.studies.figures import PhasesOver

SCHEMA = "perfmodel.explanation/1"

RANGES: Mapping[str, tuple[float, float]] = {
    "workers": (1.0, 65536.0),
    "bandwidth_bytes_per_s": (1e5, 1e13),
    "batch_size": (1.0, 65536.0),
}
"""Ranges searched for crossovers."""

WHOLE = ("workers", "batch_size")
"""Integer variables."""

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

    def to_dict(self) -> dict[str, Any]:
        """As JSON-like values."""
        values: dict[str, Any] = msgspec.to_builtins(self)
        return values


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

    def to_dict(self) -> dict[str, Any]:
        """As JSON-like values."""
        values: dict[str, Any] = msgspec.to_builtins(
            {name: getattr(self, name) for name in self.__struct_fields__ if name != "job"}
        )
        return values

    def figure(self) -> Figure:
        """The phases, and how they change with each variable; without a job the phases alone."""
        from perfmodel.studies.figures import phases

        job = self.job
        if job is None:
            return phases(self.phases_s, (), "other phases", "")
        over = [_drawn_over(job, v, self.crossovers) for v in RANGES if _varies(job, v)]
        where = f"{job.workload.name} on {job.workers} x {job.workload.device}"
        title = f"{where}, {job.architecture.name}: {self.rules} takes the longest"
        return phases(self.phases_s, over, "other phases", title)


def _drawn_over(job: Job, variable: str, crossovers: Sequence[Crossover]) -> PhasesOver:
    """The phases around the job's own value and the crossovers of a variable."""
    from perfmodel.studies.figures import PhasesOver, quantity

    here = value_of(job, variable)
    mine = [c.value for c in crossovers if c.variable == variable]
    low = max(min([here / AROUND, *(value / NEAR for value in mine)]), _least(job, variable))
    high = min(max([here * AROUND, *(value * NEAR for value in mine)]), _most(job, variable))
    values = spaced(min(low, here), max(high, here), DRAWN, _step(variable, job))
    phases_s = _evaluated(job, variable, values).phases_s
    seconds = {name: each.tolist() for name, each in phases_s.items()}
    unit = dimension_of(variable) or ("samples" if variable == "batch_size" else "")
    axis = quantity(variable.removesuffix(f"_{unit}").replace("_", " "), unit, most=4)
    return PhasesOver(axis=axis, now=here, values=values.tolist(), seconds=seconds, crossovers=mine)


def explain(job: Job) -> Explanation:
    """Find the dominant phase of ``job``, and its crossovers in workers, bandwidth and batch size.

    One variable is varied at a time. If the phases are simple enough, the crossover is also solved
    in symbols.
    """
    found = coarse.phases(job)
    total = float(found.iteration_s)
    seconds = {name: float(part.seconds) for name, part in found.parts.items()}
    order = sorted(seconds, key=lambda name: -round(seconds[name] / total / ROUNDING))
    ranked = {name: seconds[name] for name in order if seconds[name] > 0.0}
    crossovers = []
    for variable in RANGES:
        if _varies(job, variable):
            crossovers += _crossovers(job, variable)
    return Explanation(
        iteration_s=total,
        phases_s=ranked,
        rules=next(iter(ranked), "nothing"),
        crossovers=tuple(crossovers),
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
    if variable not in RANGES:
        raise unknown_name("variable", variable, RANGES)
    for job in (first, second):
        if not _varies(job, variable):
            unlike = job.stragglers or job.cluster.overrides
            why = "workers or links differ" if unlike else "collectives were measured"
            raise InputError(f"{variable}: cannot be varied if {why}")

    def lead(values: Floats) -> Floats:
        rates = [
            _evaluated(job, variable, values).throughput_samples_per_s for job in (first, second)
        ]
        relative: Floats = rates[0] / rates[1] - 1.0
        return np.where(np.abs(relative) < EQUAL, 0.0, relative)

    return [
        Crossover(variable, value, *(names if before > 0 else names[::-1]), None)
        for value, before in _sign_changes(lead, variable, (first, second))
    ]


def against(first: Job, second: Job, name: str, other: str) -> tuple[Crossover, ...]:
    """Find, for each variable, the values at which the faster of two jobs changes."""
    if name == other:
        raise InputError(f"against: both architectures are {name}")
    variables = [v for v in RANGES if _varies(first, v) and _varies(second, v)]
    return tuple(c for v in variables for c in between(first, second, v, (name, other)))


EQUAL = 1e-6
"""Relative difference in throughput below which two jobs are equally fast."""


def _evaluated(job: Job, variable: str, values: Floats) -> variants.Variants:
    axes: dict[str, Any] = {variable: values}
    return variants.evaluate(job, **axes)


def _varies(job: Job, variable: str) -> bool:
    if variable == "bandwidth_bytes_per_s" and job.cluster.collectives:
        return False  # measured at this bandwidth
    return variable == "batch_size" or not (job.stragglers or job.cluster.links_differ)


def _most(job: Job, variable: str) -> float:
    top = RANGES[variable][1]
    if variable != "workers":
        return top
    nodes = job.cluster.workers_nodes
    return min(
        top, MOST_WORKERS, math.inf if nodes is None else nodes * job.cluster.devices_per_node
    )


def _least(job: Job, variable: str) -> float:
    backups = job.options.spare_workers if variable == "workers" else 0
    return RANGES[variable][0] + float(backups)


def _points(variable: str, *jobs: Job) -> Floats:
    low = max(_least(job, variable) for job in jobs)
    high = max(min(_most(job, variable) for job in jobs), low)
    return spaced(low, high, POINTS, _step(variable, *jobs))


def _step(variable: str, *jobs: Job) -> int:
    """Step of an integer variable, as workers come in whole groups; 0 for a continuous variable."""
    if variable == "workers":
        return math.lcm(*(job.options.group_size for job in jobs))
    return 1 if variable in WHOLE else 0


def _crossovers(job: Job, variable: str) -> list[Crossover]:
    """Find the nearest crossovers below and above the job's own value."""
    values = _points(variable, job)
    here = value_of(job, variable)
    near = max(int(np.searchsorted(values, NEAR * here, side="right")), 1)
    ruling = _ruling(job, variable, values[:near])
    below, above = _changes(values, ruling, here)
    if not above and near < len(values):
        ruling += _ruling(job, variable, values[near:])
        below, above = _changes(values, ruling, here)
    found = []
    for k in [*below[-1:], *above[:1]]:
        first = ruling[k]
        _, value = bisected(
            float(values[k]),
            float(values[k + 1]),
            lambda one, first=first: _ruling(job, variable, np.array([one])) == [first],  # type: ignore[misc]
            _step(variable, job),
        )
        pair = (first, _ruling(job, variable, np.array([value]))[0])
        found.append(Crossover(variable, value, *pair, _solved(job, variable, value, pair)))
    return found


def _changes(values: Floats, ruling: Sequence[str], here: float) -> tuple[list[int], list[int]]:
    """Indices before and after ``here`` at which the next point has another dominant phase."""
    changes = [k for k, pair in enumerate(itertools.pairwise(ruling)) if pair[0] != pair[1]]
    return (
        [k for k in changes if values[k + 1] <= here],
        [k for k in changes if values[k + 1] > here],
    )


def _ruling(job: Job, variable: str, values: Floats) -> list[str]:
    """The longest phase at each value; the first on ties."""
    phases = _evaluated(job, variable, values).phases_s
    names = list(phases)
    seconds = np.array([phases[name] for name in names])
    longest = seconds >= (1.0 - ROUNDING) * seconds.max(axis=0)
    return [names[k] for k in np.argmax(longest, axis=0)]


def _sign_changes(
    lead: Callable[[Floats], Floats], variable: str, jobs: Sequence[Job]
) -> list[tuple[float, float]]:
    """Points at which a function changes sign, and its value before each."""
    values = _points(variable, *jobs)
    leads = lead(values)
    known = np.flatnonzero(leads != 0.0)
    found = []
    for a, z in zip(known[:-1].tolist(), known[1:].tolist(), strict=True):
        before = float(leads[a])
        if before * leads[z] > 0.0:
            continue
        _, value = bisected(
            float(values[a]),
            float(values[z]),
            lambda one, before=before: float(lead(np.array([one]))[0]) * before > 0.0,  # type: ignore[misc]
            _step(variable, *jobs),
        )
        found.append((value, before))
    return found


def value_of(job: Job, variable: str) -> float:
    """The value of a variable in a job."""
    return {
        "workers": float(job.workers),
        "bandwidth_bytes_per_s": job.cluster.nic.bandwidth_bytes_per_s,
        "batch_size": float(job.workload.batch_size),
    }[variable]


PERIOD = "period"
"""The option for the number of steps between exchanges."""

SOLVED = ("workers", "bandwidth_bytes_per_s", PERIOD)
"""Variables that have a symbol in the formulas."""


def _solved(job: Job, variable: str, value: float, pair: Sequence[str]) -> str | None:
    """The crossover in symbols, if the equation is linear in the variable or in its inverse.

    A maximum in a phase is replaced by its largest argument at the crossover.
    """
    if not _has_symbols(job, variable):
        return None
    parts = formulas.expressions(job)
    if any(name not in parts for name in pair):
        return None
    first, second = (parts[name] for name in pair)
    return _root(job, variable, value, first, second, parts)


def solved_for_step(job: Job, variable: str, value: float, step_s: float) -> str | None:
    """The value of a variable in symbols at which an iteration takes ``step_s`` (symbol T); None if
    the equation is not linear in the variable or its inverse, or the value is far from ``value``.
    """
    if not _has_symbols(job, variable):
        return None
    if variable == PERIOD:
        return _period_for_step(job, int(value), step_s)
    import sympy

    parts = formulas.expressions(job)
    whole = sum(parts.values(), sympy.Integer(0))
    wanted = sympy.Symbol("T", positive=True)
    return _root(job, variable, value, whole, wanted, {**parts, "": whole}, {wanted: step_s})


def _period_for_step(job: Job, value: int, step_s: float) -> str | None:
    """The period in symbols at which a step of equal workers takes ``step_s`` (symbol T). The step
    is linear in the inverse of the period as long as the same times are hidden."""
    import sympy

    def step(period: int) -> sympy.Expr:
        options = msgspec.structs.replace(job.options, **{PERIOD: period})
        found = formulas.expressions(msgspec.structs.replace(job, options=options))
        whole = sum(found.values(), sympy.Integer(0))
        late = {symbol: 1 for symbol in whole.free_symbols if str(symbol).startswith("S_")}
        return _on_this_side(whole.subs(late), sample)

    sample = _sample(job, formulas.expressions(job))
    near, far = max(value, 2), max(value, 2) // 2
    first, second = step(near), step(far)
    per_exchange = (second - first) * near * far / (near - far)
    step_alone = sympy.expand(first - per_exchange / near)
    wanted = sympy.Symbol("T", positive=True)
    root = per_exchange / (wanted - step_alone)
    found = root.subs({**sample, wanted: step_s})
    if not (found.is_real and value - 1 - EQUAL <= float(found) <= value + EQUAL):
        return None
    tidy = sympy.nsimplify(sympy.factor_terms(sympy.expand(root)), rational=True)
    return f"H = {sympy.sstr(tidy)}"


def _has_symbols(job: Job, variable: str) -> bool:
    """Return whether the symbolic formulas cover the job: closed forms, on links like any other."""
    cluster = job.cluster
    beyond = cluster.devices_per_node > 1 or cluster.core_oversubscription is not None
    beyond = beyond or bool(cluster.collectives or cluster.sites) or cluster.crowds
    beyond |= variable == "workers" and job.pace != 1.0
    return variable in SOLVED and not beyond and not job.options.asynchronous


def _root(
    job: Job,
    variable: str,
    value: float,
    first: sympy.Expr,
    second: sympy.Expr,
    parts: Mapping[str, sympy.Expr],
    known: Mapping[Any, float] | None = None,
) -> str | None:
    """Solve for the value at which two expressions are equal, in symbols."""
    import sympy

    sample, symbol = {**_sample(job, parts), **(known or {})}, formulas.symbols()[variable]
    at = value if variable in WHOLE else job.cluster.nic.goodput_at(value)
    sides = [_on_this_side(side, {**sample, symbol: at}) for side in (first, second)]
    numerator = sympy.numer(sympy.together(sides[0] - sides[1]))
    if not numerator.is_polynomial(symbol):
        return None
    line = sympy.Poly(numerator, symbol)
    if line.degree() != 1:
        return None
    slope, rest = line.all_coeffs()
    root = -rest / slope
    found = root.subs(sample)
    if not (found.is_real and found > 0):
        return None
    there = [float(side.subs({**sample, symbol: found})) for side in (first, second)]
    if abs(there[0] - there[1]) > EQUAL * max(there):
        return None
    above, below = sympy.fraction(sympy.factor_terms(sympy.cancel(root)))
    if above.subs(sample) < 0:
        above, below = sympy.factor(-above), sympy.factor_terms(sympy.expand(-below))
    return f"{symbol} = {sympy.sstr(above / below)}"


def _on_this_side(expression: sympy.Expr, sample: Mapping[Any, float]) -> sympy.Expr:
    """Replace each maximum in an expression by its largest argument at the sample."""
    import sympy

    return expression.replace(
        lambda e: isinstance(e, sympy.Max),
        lambda e: max(e.args, key=lambda a: float(a.subs(sample))),
    )


def _sample(job: Job, parts: Mapping[str, sympy.Expr]) -> dict[Any, float]:
    """The values of the symbols for a job, with equal workers."""
    q = quantities_of(job)
    known: dict[Any, float] = {
        symbol: float(getattr(q, name)) for name, symbol in formulas.symbols().items()
    }
    for expression in parts.values():
        known |= {symbol: 1.0 for symbol in expression.free_symbols if symbol not in known}
    return known


def _saturations(job: Job) -> tuple[Saturation, ...]:
    """Saturation points of resources that asynchronous workers share (knee of the asymptotic
    bounds)."""
    if not _varies(job, "workers") or not job.options.asynchronous:
        return ()
    alone = msgspec.structs.replace(job, workers=1)
    found = coarse.phases(alone)
    one_s = float(found.iteration_s)
    busy = {name: float(seconds) for name, seconds in found.busy_s.items() if seconds > 0.0}
    return tuple(
        Saturation(name, one_s / busy[name]) for name in sorted(busy, key=lambda n: -busy[n])
    )
