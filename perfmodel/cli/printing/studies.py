"""What studies of jobs find, as tables and text."""

from __future__ import annotations

import math
from collections.abc import Sequence

from perfmodel.base.units import show as quantity
from perfmodel.cli.printing.prediction import (
    LEAST,
    MOST_VALUES,
    assumed,
    assumption_row,
    certainty,
    quantity_text,
    title,
    uncounted,
    workers_of,
)
from perfmodel.cli.printing.tables import ASIDE, cell_text, head_text, print_table
from perfmodel.cli.printing.text import bold, dim, show, show_rows
from perfmodel.cli.verbosity import verbosity
from perfmodel.inputs.job import Job
from perfmodel.results.effects import MATTERS, Effect
from perfmodel.results.prediction import Prediction
from perfmodel.studies.advice import Advice, Recommendation
from perfmodel.studies.crossovers import Crossover, Explanation, sentences
from perfmodel.studies.fitting import in_words
from perfmodel.studies.formulas import Formula
from perfmodel.studies.requirements import Requirement
from perfmodel.studies.robustness import SharedAssumption
from perfmodel.sweeping.comparison import Comparison, differences
from perfmodel.sweeping.labels import Row
from perfmodel.sweeping.sweeps import Sweep
from perfmodel.sweeping.tables import quantity_columns

MOST_ROWS = 50
"""Most jobs of a sweep that are printed."""

MOST_NAMED = 3
"""Comparisons of up to this many jobs print the change of each job."""


def sweep(s: Sweep, worth: Sequence[Effect]) -> None:
    """Print a sweep: common inputs, a line for each job, and what the fastest job assumes."""
    if s.title:
        show(bold(s.title))
    rows = s.rows()
    columns = [name for name in rows[0] if name not in ASIDE]
    print_table(
        [head_text(name) for name in columns],
        [
            [cell_text(name, row) for name in columns]
            for row in (_fastest(rows) if verbosity() < 1 else rows)
        ],
    )
    if len(rows) > MOST_ROWS and verbosity() < 1:
        show(f"the {MOST_ROWS} fastest of {len(rows)} jobs; --verbose or --csv - has all")
    assumed(worth, " of the fastest job")


def _fastest(rows: Sequence[Row]) -> list[Row]:
    """Return the fastest rows, as many as are printed, in their original order."""
    rates = sorted((row["throughput_samples_per_s"] for row in rows), reverse=True)
    least = rates[min(MOST_ROWS, len(rates)) - 1]
    return [row for row in rows if row["throughput_samples_per_s"] >= least][:MOST_ROWS]


def comparison(c: Comparison, shared: Sequence[SharedAssumption]) -> None:
    """Print a comparison: a column for each job, why one is faster than another, and the shared
    assumptions that would change this."""
    if c.title:
        show(bold(c.title))
    columns = c.rows()
    names = [name for name in columns[0] if name not in (*ASIDE, "job")]
    print_table(
        ["", *c.names],
        [[head_text(name), *(cell_text(name, column) for column in columns)] for name in names],
    )
    for sentence in c.text:
        show(f"\n{sentence}")
    _shared(shared, c)


def _shared(assumptions: Sequence[SharedAssumption], c: Comparison) -> None:
    """Print the assumptions that change one job more than another; with --verbose, all."""
    if not assumptions or verbosity() < 0:
        return
    shown = [a for a in assumptions if verbosity() > 0 or a.matters]
    if shown:
        show(f"\n{dim('assumed in every job (and how other values change the throughput):')}")
        show_rows(assumption_row(a.assumption, _shifted(a, c)) for a in shown)
    effect = f"shift the jobs by less than {MATTERS:.0%} against each other"
    uncounted(len(assumptions) - len(shown), effect, first=not shown)


def _shifted(shared: SharedAssumption, c: Comparison) -> str:
    """Return how other values change the jobs, and which job is then the fastest."""
    texts = []
    rates = [p.throughput_samples_per_s for p in c.predictions]
    for shift in sorted(shared.shifts, key=lambda shift: -shift.swing)[:MOST_VALUES]:
        if shift.swing < math.log1p(LEAST):
            continue
        text = f"with {quantity_text(shift.value, shared.assumption.unit)} "
        if len(c.names) <= MOST_NAMED:
            named = zip(c.names, shift.ratios, strict=True)
            text += ", ".join(f"{ratio - 1.0:+.1%} ({name})" for name, ratio in named)
        else:
            text += f"{min(shift.ratios) - 1.0:+.1%} to {max(shift.ratios) - 1.0:+.1%}"
        then = [rate * ratio for rate, ratio in zip(rates, shift.ratios, strict=True)]
        first = then.index(max(then))
        if then[first] > (1.0 + MATTERS) * then[c.best]:
            text += f", and {c.names[first]} is the fastest"
        texts.append(text)
    return "; ".join(texts)


def explanation(
    result: Explanation, job: Job, others: Sequence[Crossover], worth: Sequence[Effect]
) -> None:
    """Print the longest phases, the crossovers, and the assumptions."""
    show(
        f"{bold(job.workload.name)} on {job.counted} x {job.workload.device}, "
        f"{job.architecture.name}, by its formulas: {result.error_band.text}"
    )
    phases = result.phases_s.items()
    print_table(
        ("phase", "time", "part"),
        [(name, quantity(s, "s"), f"{s / result.iteration_s:.1%}") for name, s in phases],
    )
    for line in sentences(result, job, others):
        show(line)
    assumed(worth, everything=True)


def requirement(result: Requirement) -> None:
    """Print the answer to an inverse question, the formula, and where the job stands."""
    p = result.prediction
    now = quantity(result.now, result.unit) if result.unit else f"{result.now:g}"
    show(
        f"{bold(p.model)} on {workers_of(p)}, {p.architecture}, "
        f"{p.fidelity}; now {now}: {'met' if result.met_now else 'not met'}"
    )
    show(result.text)
    if result.formula is not None:
        show(f"{result.formula}, where T is the step it takes")


def formula(result: Formula) -> None:
    """Print a coarse model to read, and to typeset."""
    show(f"{bold(result.architecture)}: seconds of an iteration of one of N workers")
    show(f"\n{result.text}\n")
    print_table(("phase", "seconds"), [(term.name, term.text) for term in result.phases])
    show(f"\n{dim('where')}")
    print_table(("", "", ""), [(e.symbol, e.meaning, e.unit) for e in result.legend])
    rule = "of what overlaps the longer hides the shorter here; with layers it is worked out layer"
    show(f"\n{dim(f'{rule} by layer')}")
    show(f"\n{dim('LaTeX')}\n{result.latex}")


def advice(result: Advice) -> None:
    """Print what would make a job faster, what may, and the evidence."""
    p = result.prediction
    rate = quantity(p.throughput_samples_per_s, "samples/s")
    show(f"{bold(p.model)} on {workers_of(p)}, {p.architecture}: {rate}")
    fits = ""
    if result.remedies is not None:
        show(bold(p.memory.shortage(p.device)))
        show(in_words(result.remedies))
        fits = " fits and"
    if not result.recommended:
        show(f"\nNo change that was tried{fits} is sure to make it faster.")
    _list(result.recommended, f"\nThis{fits} makes it faster:")
    _list(result.unsure, "\nThis may make it faster, but the prediction is not sure enough:")
    if result.hardware is not None:
        show(f"\nThe single change of the hardware that helps most: {result.hardware.change}")


def _list(changes: Sequence[Recommendation], title: str) -> None:
    if changes:
        show(title)
    for number, change in enumerate(changes, 1):
        low, high = change.gain.interval
        gain = f"{change.gain.ratio:.2f} times as fast ({low:.2f} to {high:.2f})"
        show(f"\n{number:2}. {bold(change.change)}: {gain}")
        published = f"{change.observed} ({change.source})"
        texts = (change.why, change.flags, change.price, published)
        for name, text in zip(("why", "flags", "price", "published"), texts, strict=True):
            if text:
                show(f"    {dim(f'{name:11}')}{text}")


def both(fine: Prediction, coarse: Prediction, worth: Sequence[Effect]) -> None:
    """Print a fine and a coarse prediction of the same job side by side."""
    show(title(fine))
    columns = quantity_columns(fine), quantity_columns(coarse)
    rows = [
        (
            *(head_text(name), *(cell_text(name, column) for column in columns)),
            _change(difference, name == "idle_fraction"),
        )
        for name, difference in differences(fine, coarse).items()
    ]
    print_table(("", "fine", "coarse", "difference"), rows)
    show(f"{bold('coarse')}: {certainty(coarse)}")
    for name, p in (("fine", fine), ("coarse", coarse)):
        show(f"{bold(f'bottleneck, {name}')}: {p.bottleneck.text}")
    for note in dict.fromkeys((*fine.notes, *coarse.notes)):
        show(f"{bold('note')}: {note}")
    assumed(worth)


def _change(difference: float | None, points: bool) -> str:
    """A difference as a percentage, or in percentage points.

    >>> _change(-0.0001, False), _change(0.05, True), _change(None, False)
    ('+0.0%', '+5.0 points', '-')
    """
    if difference is None:
        return "-"
    percent = round(100.0 * difference, 1) + 0.0  # which turns -0.0 into 0.0
    return f"{percent:+.1f} points" if points else f"{percent:+.1f}%"
