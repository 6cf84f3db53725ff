"""Crossovers and requirements in symbols, where an equation of phases is simple enough."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

from perfmodel.inputs.job import Job
from perfmodel.phases.quantities import quantities_of
from perfmodel.studies import formulas
from perfmodel.studies.variables import WHOLE

if TYPE_CHECKING:
    import sympy

EQUAL = 1e-6
"""Relative difference below which two values are equal."""

PERIOD = "period"
"""The option for the number of steps between exchanges."""

SOLVED = ("workers", "bandwidth_bytes_per_s", PERIOD)
"""Variables that have a symbol in the formulas."""


def solved_for_phases(job: Job, variable: str, value: float, pair: tuple[str, str]) -> str | None:
    """The crossover in symbols, if the equation is linear in the variable or in its inverse.

    A maximum in a phase is replaced by its largest argument at the crossover.
    """
    parts = formulas.expressions(job) if _has_symbols(job, variable) else {}
    if any(name not in parts for name in pair):
        return None
    return _root(job, variable, value, (parts[pair[0]], parts[pair[1]]), parts)


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
    iteration = sum(parts.values(), sympy.Integer(0))
    wanted = sympy.Symbol("T", positive=True)
    return _root(job, variable, value, (iteration, wanted), parts, {wanted: step_s})


def _period_for_step(job: Job, value: int, step_s: float) -> str | None:
    """The period in symbols at which a step of equal workers takes ``step_s`` (symbol T). The step
    is linear in the inverse of the period as long as the same times are hidden."""
    import sympy

    def step(period: int) -> sympy.Expr:
        options = msgspec.structs.replace(job.options, **{PERIOD: period})
        parts = formulas.expressions(msgspec.structs.replace(job, options=options))
        iteration = sum(parts.values(), sympy.Integer(0))
        late = {symbol: 1 for symbol in iteration.free_symbols if str(symbol).startswith("S_")}
        return _on_this_side(iteration.subs(late), sample)

    sample = _sample(job, formulas.expressions(job))
    near, far = max(value, 2), max(value, 2) // 2
    first, second = step(near), step(far)
    per_exchange = (second - first) * near * far / (near - far)
    step_alone = sympy.expand(first - per_exchange / near)
    wanted = sympy.Symbol("T", positive=True)
    root = per_exchange / (wanted - step_alone)
    solution = root.subs({**sample, wanted: step_s})
    if not (solution.is_real and value - 1 - EQUAL <= float(solution) <= value + EQUAL):
        return None
    tidy = sympy.nsimplify(sympy.factor_terms(sympy.expand(root)), rational=True)
    return f"H = {sympy.sstr(tidy)}"


def _has_symbols(job: Job, variable: str) -> bool:
    """Return whether the symbolic formulas cover the job: closed forms, on links like any other."""
    cluster = job.cluster
    beyond = cluster.devices_per_node > 1 or cluster.core_oversubscription is not None
    beyond = beyond or bool(cluster.collectives or cluster.sites) or cluster.crowds
    beyond |= variable == "workers" and job.pace != 1.0
    beyond |= job.replica is not None
    return variable in SOLVED and not beyond and not job.options.asynchronous


def _root(
    job: Job,
    variable: str,
    value: float,
    pair: tuple[sympy.Expr, sympy.Expr],
    parts: Mapping[str, sympy.Expr],
    known: Mapping[sympy.Symbol, float] | None = None,
) -> str | None:
    """Solve for the value at which two expressions are equal, in symbols."""
    import sympy

    sample, symbol = {**_sample(job, parts), **(known or {})}, formulas.symbols()[variable]
    at = value if variable in WHOLE else job.cluster.nic.goodput_at(value)
    sides = [_on_this_side(side, {**sample, symbol: at}) for side in pair]
    numerator = sympy.numer(sympy.together(sides[0] - sides[1]))
    if not numerator.is_polynomial(symbol):
        return None
    line = sympy.Poly(numerator, symbol)
    if line.degree() != 1:
        return None
    slope, constant = line.all_coeffs()
    root = -constant / slope
    solution = root.subs(sample)
    if not (solution.is_real and solution > 0):
        return None
    there = [float(side.subs({**sample, symbol: solution})) for side in pair]
    if abs(there[0] - there[1]) > EQUAL * max(there):
        return None
    above, below = sympy.fraction(sympy.factor_terms(sympy.cancel(root)))
    if above.subs(sample) < 0:
        above, below = sympy.factor(-above), sympy.factor_terms(sympy.expand(-below))
    return f"{symbol} = {sympy.sstr(above / below)}"


def _on_this_side(expression: sympy.Expr, sample: Mapping[sympy.Symbol, float]) -> sympy.Expr:
    """Replace each maximum in an expression by its largest argument at the sample."""
    import sympy

    return expression.replace(
        lambda e: isinstance(e, sympy.Max),
        lambda e: max(e.args, key=lambda a: float(a.subs(sample))),
    )


def _sample(job: Job, parts: Mapping[str, sympy.Expr]) -> dict[sympy.Symbol, float]:
    """The values of the symbols for a job, with equal workers."""
    q = quantities_of(job)
    known: dict[sympy.Symbol, float] = {
        symbol: float(getattr(q, name)) for name, symbol in formulas.symbols().items()
    }
    for expression in parts.values():
        known |= {symbol: 1.0 for symbol in expression.free_symbols if symbol not in known}
    return known
