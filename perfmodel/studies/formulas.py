"""The coarse models as readable formulas: the same functions, evaluated on symbols."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

from perfmodel import api
from perfmodel.catalogue import catalogue
from perfmodel.inputs.job import Job
from perfmodel.phases.quantities import Quantities
from perfmodel.phases.whole import Whole
from perfmodel.predicting import coarse
from perfmodel.sweeping.labels import Row
from perfmodel.sweeping.tables import fields

if TYPE_CHECKING:
    import sympy

SCHEMA = "perfmodel.formula/1"

MEANINGS: Mapping[str, tuple[str, str, str]] = {
    "workers": ("N", "workers", ""),
    "servers": ("P", "servers", ""),
    "bandwidth_bytes_per_s": ("B", "achieved bandwidth of a link, one way", "bytes/s"),
    "latency_s": ("alpha", "latency, one way", "s"),
    "forward_s": ("F", "forward pass of one worker", "s"),
    "backward_s": ("G", "backward pass of one worker", "s"),
    "optimizer_s": ("O", "optimizer step of one worker", "s"),
    "gradient_bytes": ("M", "size of the gradients, or of the parameters", "bytes"),
    "tensors": ("K", "number of gradient tensors", ""),
    "buffer_bytes": ("D", "size of the module's buffers", "bytes"),
    "update_per_tensor_s": ("u_t", "server update time per tensor", "s"),
    "update_per_byte_s": ("u_b", "server update time per byte", "s/byte"),
}
"""Symbol, meaning and unit of the quantities in the formulas."""

MANY = 64
"""Workers of the job from which a formula is derived; a single worker would not communicate."""


class Term(msgspec.Struct, frozen=True):
    """A phase of an iteration: its name, and its duration (s) as text and as LaTeX."""

    name: str
    text: str
    latex: str


class Meaning(msgspec.Struct, frozen=True):
    """The meaning and unit of a symbol."""

    symbol: str
    meaning: str
    unit: str


class Formula(msgspec.Struct, frozen=True, kw_only=True):
    """A coarse model as formulas.

    ``phases`` are its terms; ``text`` and ``latex`` give the iteration T as their sum; ``legend``
    explains every symbol.
    """

    schema: str = SCHEMA
    architecture: str
    phases: tuple[Term, ...]
    text: str
    latex: str
    legend: tuple[Meaning, ...]

    def to_dict(self) -> Row:
        """JSON-like values."""
        return fields(self)


def symbols() -> dict[str, sympy.Symbol]:
    """The symbols of :data:`MEANINGS` by quantity name; all are positive."""
    import sympy

    integers = ("workers", "servers", "tensors")
    return {
        name: sympy.Symbol(symbol, positive=True, integer=True if name in integers else None)
        for name, (symbol, _, _) in MEANINGS.items()
    }


def symbolic(job: Job) -> Quantities:
    """The quantities of a job as symbols: equal workers, one per node, on equal links.

    The model is one block, without layers: of two overlapping times, the longer hides the shorter.
    """
    known = symbols()
    return Quantities(
        **known,
        devices_per_node=1,
        server_bandwidth_bytes_per_s=known["bandwidth_bytes_per_s"],
        core_bandwidth_bytes_per_s=math.inf,
        inside_bandwidth_bytes_per_s=math.inf,
        inside_latency_s=0.0,
        data_loading_s=0.0,
        optimizer_per_byte_s=job.cluster.server.optimizer_per_byte_s,
        update_threads=job.cluster.update_threads,
        scale=1.0,
        slowdown=1.0,
        unequal=1.0,
        cv=0.0,
        kind="lognormal",
        layers=Whole(
            known["forward_s"], known["backward_s"], known["gradient_bytes"], known["tensors"]
        ),
    )


def expressions(job: Job) -> dict[str, sympy.Expr]:
    """Duration (s) of each phase of a job like ``job`` with several workers, in symbols (SymPy)."""
    phases = coarse.phases(job, among=symbolic(job))
    tidied = {name: _tidy(part.seconds) for name, part in phases.parts.items()}
    return {name: value for name, value in tidied.items() if value != 0}


def formula(job: Job, parts: Mapping[str, sympy.Expr] | None = None) -> Formula:
    """The coarse model of jobs with the architecture and options of ``job``; ``parts`` are its
    :func:`expressions`, if they are known."""
    import sympy

    parts = expressions(job) if parts is None else parts
    total = sympy.Symbol("T")
    iteration = sum(parts.values(), sympy.Integer(0))
    return Formula(
        architecture=job.architecture.name,
        phases=tuple(
            Term(name, sympy.sstr(value, order="none", full_prec=False), sympy.latex(value))
            for name, value in parts.items()
        ),
        text=f"T = {' + '.join(f'({name})' for name in parts)}",
        latex=sympy.latex(sympy.Eq(total, iteration)),
        legend=_legend(iteration),
    )


def of_architecture(name: str, options: Mapping[str, object] | None = None) -> Formula:
    """The coarse model of an architecture with ``options``.

    Raises
    ------
    InputError : the architecture or an option does not exist.
    """
    known = catalogue.model_names()[0]  # any model will do: its quantities become symbols
    job = api.make_job(model=known, arch=name, options=options, workers=MANY)
    return msgspec.structs.replace(formula(job), architecture=name)


def _tidy(value: object) -> sympy.Expr:
    """Simplify an expression for several workers, writing whole numbers as integers."""
    import sympy

    expression = sympy.sympify(value)
    sample = {symbol: MANY if symbol.is_integer else 1 for symbol in expression.free_symbols}

    def choose(*branches: sympy.Basic) -> sympy.Basic:
        for branch in branches:
            expr, condition = branch.args
            if condition == True or condition.subs(sample) == True:  # noqa: E712
                return expr
        return branches[-1].args[0]

    expression = expression.replace(sympy.Piecewise, choose)
    return sympy.factor_terms(expression).replace(
        lambda e: bool(e.is_Float) and float(e) == int(e), lambda e: sympy.Integer(int(e))
    )


def _legend(expression: sympy.Expr) -> tuple[Meaning, ...]:
    """The meaning of every symbol in an expression, in a fixed order."""
    used = sorted(str(symbol) for symbol in expression.free_symbols)
    rows = [Meaning(*row) for row in MEANINGS.values() if row[0] in used]
    for symbol in used:
        kind, _, subscript = symbol.partition("_")
        if kind == "Q":
            text = f"other workers found at {subscript}, by mean-value analysis from 1 to N workers"
            rows.append(Meaning(symbol, text, ""))
        elif kind == "S":
            rows.append(Meaning(symbol, _slowest(subscript), ""))
    return tuple(rows)


def _slowest(subscript: str) -> str:
    """Describe an order statistic from its indices."""
    index, _, how = subscript.partition("_")
    rank = index.strip("()")
    worker = "the slowest of N workers" if rank == "N" else f"the worker ranked {rank} of N"
    text = f"time of {worker} relative to the mean"
    if how.startswith("ahead"):
        text += f", with workers at most {how.removeprefix('ahead')} iterations ahead"
    elif how:
        text += f", in sums of {how} iterations"
    return f"{text}; 1 without jitter"
