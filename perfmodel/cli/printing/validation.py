"""Tables of a validation."""

from __future__ import annotations

from collections.abc import Mapping

from rich.markup import escape
from rich.table import Table

from perfmodel.base.units import show
from perfmodel.cli.printing.console import new_console, new_table
from perfmodel.validation.scores import MEASURES, Score, Summary
from perfmodel.validation.validate import Validation

HEADS = {
    "step_s": "step time",
    "samples_per_s": "samples/s",
    "idle_fraction": "idle",
    "staleness_mean": "staleness",
}
"""Names of measures in a table."""


def validation(found: Validation, *, cases: bool = True) -> None:
    """Print a table of cases, if asked for, and one of their groups."""
    out = new_console()
    if cases:
        out.print(_cases(found))
        out.print()
    out.print(_groups(found))


def _cases(found: Validation) -> Table:
    measures = [name for name in MEASURES if any(name in o.scores for o in found.outcomes)]
    # throughput is redundant with step time
    measures = [name for name in measures if name != "samples_per_s" or "step_s" not in measures]
    heads = (head for name in measures for head in (HEADS[name], "measured", "error"))
    table = new_table("group", "case", *heads)
    for outcome in found.outcomes:
        row = [outcome.group, outcome.name]
        for name in measures:
            score = outcome.scores.get(name)
            row += _cells(name, score) if score is not None else ["-", "-", "-"]
        table.add_row(*map(escape, row))
    return table


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


def _groups(found: Validation) -> Table:
    heads = ("cases", "median", "p90", "worst", "bias", "in 90% interval")
    table = new_table("group", "measure", *heads)
    coverage = found.coverage()
    for group, summaries in found.summaries().items():
        for name, summary in summaries.items():
            if name != "samples_per_s" or "step_s" not in summaries:
                inside = f"{coverage[group]:.0%}" if name == "step_s" and group in coverage else ""
                table.add_row(escape(group), HEADS[name], *_figures(name, summary), inside)
    return table


def _figures(name: str, summary: Summary) -> list[str]:
    sizes: Mapping[str, float] = {key: getattr(summary, key) for key in ("median", "p90", "worst")}
    return [
        str(summary.n),
        *(_error(name, size, sign="") for size in sizes.values()),
        _error(name, summary.bias),
    ]
