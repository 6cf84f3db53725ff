"""Sweeps, comparisons, explanations and formulas as tables."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich.markup import escape

from perfmodel.base.units import show as quantity
from perfmodel.cli.printing.console import ASIDE, cell_text, head_text, new_console, new_table
from perfmodel.cli.printing.prediction import (
    LEAST,
    MOST_VALUES,
    assumed,
    assumption_row,
    quantity_text,
    uncounted,
    workers_of,
)
from perfmodel.cli.printing.text import dim, show, show_rows
from perfmodel.cli.verbosity import verbosity
from perfmodel.inputs.job import Job
from perfmodel.studies.crossovers import Crossover, Explanation
from perfmodel.studies.explaining import words
from perfmodel.studies.formulas import Formula
from perfmodel.studies.requirements import Requirement
from perfmodel.studies.robustness import SharedAssumption
from perfmodel.studies.sensitivity import MATTERS, Effect
from perfmodel.sweeping.comparison import Comparison
from perfmodel.sweeping.labels import Row
from perfmodel.sweeping.sweeps import Sweep

MOST_ROWS = 50
"""Most jobs of a sweep that are printed."""

MOST_NAMED = 3
"""Comparisons of up to this many jobs print the change of each job."""


def sweep(s: Sweep, worth: Sequence[Effect]) -> None:
    """Print a sweep: common inputs, a line for each job, and what the fastest job assumes."""
    out = new_console()
    if s.title:
        out.print(f"[bold]{escape(s.title)}[/]")
    rows = s.rows()
    columns = [name for name in rows[0] if name not in ASIDE]
    table = new_table(*map(head_text, columns))
    for row in _fastest(rows) if verbosity() < 1 else rows:
        table.add_row(*(escape(cell_text(name, row)) for name in columns))
    out.print(table)
    if len(rows) > MOST_ROWS and verbosity() < 1:
        out.print(f"the {MOST_ROWS} fastest of {len(rows)} jobs; --verbose or --csv - has all")
    assumed(worth, " of the fastest job")


def _fastest(rows: Sequence[Row]) -> list[Row]:
    """Return the fastest rows, as many as are printed, in their original order."""
    rates = sorted((row["throughput_samples_per_s"] for row in rows), reverse=True)
    least = rates[min(MOST_ROWS, len(rates)) - 1]
    return [row for row in rows if row["throughput_samples_per_s"] >= least][:MOST_ROWS]


def comparison(c: Comparison, shared: Sequence[SharedAssumption]) -> None:
    """Print a comparison: a column for each job, why one is faster than another, and the shared
    assumptions that would change this."""
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
    _shared(shared, c)


def _shared(found: Sequence[SharedAssumption], c: Comparison) -> None:
    """Print the assumptions that change one job more than another; with --verbose, all."""
    if not found or verbosity() < 0:
        return
    shown = [each for each in found if verbosity() > 0 or each.matters]
    if shown:
        show(f"\n{dim('assumed in every job (and how other values change the throughput):')}")
        show_rows(assumption_row(each.assumption, _shifted(each, c)) for each in shown)
    what = f"shift the jobs by less than {MATTERS:.0%} against each other"
    uncounted(len(found) - len(shown), what, first=not shown)


def _shifted(each: SharedAssumption, c: Comparison) -> str:
    """Return how other values change the jobs, and which job is then the fastest."""
    said = []
    rates = [p.throughput_samples_per_s for p in c.predictions]
    for shift in sorted(each.shifts, key=lambda shift: -shift.swing)[:MOST_VALUES]:
        if shift.swing < math.log1p(LEAST):
            continue
        ends = f"{min(shift.ratios) - 1.0:+.1%} to {max(shift.ratios) - 1.0:+.1%}"
        named = zip(c.names, shift.ratios, strict=True)
        some = ", ".join(f"{ratio - 1.0:+.1%} ({name})" for name, ratio in named)
        text = f"with {quantity_text(shift.value, each.assumption.unit)} "
        text += some if len(c.names) <= MOST_NAMED else ends
        then = [rate * ratio for rate, ratio in zip(rates, shift.ratios, strict=True)]
        first = then.index(max(then))
        ahead = then[first] > (1.0 + MATTERS) * then[c.best]
        said.append(f"{text}, and {c.names[first]} is the fastest" if ahead else text)
    return "; ".join(said)


def explanation(
    found: Explanation, job: Job, others: Sequence[Crossover], worth: Sequence[Effect]
) -> None:
    """Print the longest phases, the crossovers, and the assumptions."""
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
    assumed(worth, everything=True)


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
