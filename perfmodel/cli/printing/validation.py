"""Tables of a validation."""

from __future__ import annotations

import click

from perfmodel.base.units import show
from perfmodel.cli.printing.tables import print_table
from perfmodel.validation.scores import MEASURES, Score, Summary
from perfmodel.validation.validate import Validation

HEADS = {
    "step_s": "step time",
    "samples_per_s": "samples/s",
    "idle_fraction": "idle",
    "staleness_mean": "staleness",
}
"""Names of measures in a table."""


def validation(result: Validation) -> None:
    """Print a table of cases, and one of their groups."""
    _cases(result)
    click.echo()
    _groups(result)


def _cases(result: Validation) -> None:
    measures = [name for name in MEASURES if any(name in o.scores for o in result.outcomes)]
    # throughput is redundant with step time
    measures = [name for name in measures if name != "samples_per_s" or "step_s" not in measures]
    rows = []
    for outcome in result.outcomes:
        row = [outcome.group, outcome.name]
        for name in measures:
            score = outcome.scores.get(name)
            row += _cells(name, score) if score is not None else ["-", "-", "-"]
        rows.append(row)
    heads = (head for name in measures for head in (HEADS[name], "measured", "error"))
    print_table(("group", "case", *heads), rows)


def _cells(name: str, score: Score) -> list[str]:
    return [_value(name, score.predicted), _value(name, score.measured), _error(name, score.error)]


def _value(name: str, value: float) -> str:
    """A value the way people write it.

    >>> _value("step_s", 0.25), _value("idle_fraction", 0.125), _value("staleness_mean", 7.0)
    ('250 ms', '12.5%', '7')
    """
    if name == "step_s":
        return show(value, "s")
    return f"{value:.1%}" if name == "idle_fraction" else f"{value:.4g}"


def _error(name: str, error: float, sign: str = "+") -> str:
    """An error: a percentage, points of a percentage, or updates.

    >>> _error("step_s", 0.05), _error("idle_fraction", -0.02), _error("staleness_mean", 0.5)
    ('+5.0%', '-2.0 points', '+0.5')
    """
    if name == "idle_fraction":
        return f"{error * 100:{sign}.1f} points"
    return f"{error:{sign}.1%}" if MEASURES[name] else f"{error:{sign}.2g}"


def _groups(result: Validation) -> None:
    coverage = result.coverage()
    rows = []
    for group, summaries in result.summaries().items():
        for name, summary in summaries.items():
            if name != "samples_per_s" or "step_s" not in summaries:
                inside = f"{coverage[group]:.0%}" if name == "step_s" and group in coverage else ""
                rows.append((group, HEADS[name], *_figures(name, summary), inside))
    heads = ("cases", "median", "p90", "worst", "bias", "in 90% interval")
    print_table(("group", "measure", *heads), rows)


def _figures(name: str, summary: Summary) -> tuple[str, ...]:
    sizes = (summary.median, summary.p90, summary.worst)
    errors = (_error(name, size, sign="") for size in sizes)
    return str(summary.n), *errors, _error(name, summary.bias)
