"""Sweeps, comparisons, explanations and formulas as tables."""

from __future__ import annotations

from collections.abc import Sequence

from rich.markup import escape

from perfmodel.base.units import show as quantity
from perfmodel.cli.printing.console import ASIDE, cell_text, head_text, new_console, new_table
from perfmodel.cli.printing.prediction import workers_of
from perfmodel.inputs.job import Job
from perfmodel.studies.comparison import Comparison
from perfmodel.studies.crossovers import Crossover, Explanation, words
from perfmodel.studies.formulas import Formula
from perfmodel.studies.requirements import Requirement
from perfmodel.studies.sweeps import Sweep


def sweep(s: Sweep) -> None:
    """Print a sweep: common inputs, and a line for each job."""
    out = new_console()
    if s.title:
        out.print(f"[bold]{escape(s.title)}[/]")
    rows = s.rows()
    columns = [name for name in rows[0] if name not in ASIDE]
    table = new_table(*map(head_text, columns))
    for row in rows:
        table.add_row(*(escape(cell_text(name, row)) for name in columns))
    out.print(table)


def comparison(c: Comparison) -> None:
    """Print a comparison: a column for each job, and why one is faster than another."""
    out = new_console()
    if c.title:
        out.print(f"[bold]{escape(c.title)}[/]")
    rows = c.rows()
    table = new_table("", *c.names)
    for name in rows[0]:
        if name not in (*ASIDE, "job"):
            table.add_row(head_text(name), *(escape(cell_text(name, row)) for row in rows))
    out.print(table)
    for sentence in c.text:
        out.print(f"\n{escape(sentence)}")


def explanation(found: Explanation, job: Job, others: Sequence[Crossover]) -> None:
    """Print the longest phases, and the crossovers."""
    out = new_console()
    out.print(
        f"[bold]{escape(job.workload.name)}[/] on {job.workers} x {escape(job.workload.device)}, "
        f"{job.architecture.name}, by its formulas: {escape(found.error_band.text)}"
    )
    table = new_table("phase", "time", "part")
    for name, seconds in found.phases_s.items():
        table.add_row(name, quantity(seconds, "s"), f"{seconds / found.iteration_s:.1%}")
    out.print(table)
    for line in words(found, job, others):
        out.print(escape(line))


def requirement(found: Requirement) -> None:
    """Print the answer to an inverse question, the formula, and where the job stands."""
    out = new_console()
    p = found.prediction
    now = quantity(found.now, found.unit) if found.unit else f"{found.now:g}"
    out.print(
        f"[bold]{escape(p.model)}[/] on {escape(workers_of(p))}, {p.architecture}, "
        f"{escape(p.fidelity)}; now {now}: {'met' if found.met_now else 'not met'}"
    )
    out.print(escape(found.text))
    if found.formula is not None:
        out.print(f"{escape(found.formula)}, where T is the step it takes", soft_wrap=True)


def formula(found: Formula) -> None:
    """Print a coarse model to read, and to typeset."""
    out = new_console()
    out.print(f"[bold]{escape(found.architecture)}[/]: seconds of an iteration of one of N workers")
    out.print(f"\n{escape(found.text)}\n", soft_wrap=True)
    table = new_table("phase", "seconds")
    for term in found.phases:
        table.add_row(term.name, escape(term.text))
    out.print(table)
    out.print("\n[dim]where[/]")
    table = new_table("", "", "")
    for entry in found.legend:
        table.add_row(entry.symbol, escape(entry.meaning), entry.unit)
    out.print(table)
    out.print(
        "\n[dim]of what overlaps the longer hides the shorter here; with layers it is worked out "
        "layer by layer[/]"
    )
    out.print("\n[dim]LaTeX[/]")
    out.print(found.latex, markup=False, soft_wrap=True)
