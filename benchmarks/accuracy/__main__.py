"""``python -m benchmarks.accuracy SOURCE PATH [--json]``: predict measured runs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from benchmarks.accuracy.cases import Case
from benchmarks.accuracy.sources import SOURCES, adapter, fit_of
from benchmarks.accuracy.summaries import (
    choice_summary,
    choices,
    ranking_summary,
    rankings,
    summarise,
)
from perfmodel.base.errors import InputError


@click.command()
@click.argument("source", metavar=f"[{'|'.join(SOURCES)}]")
@click.argument("path", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print groups and rankings as JSON.")
@click.option("--cases", is_flag=True, help="Also print every case, the worst first.")
@click.option("--others", is_flag=True, help="Also print errors of naive baselines.")
@click.option("--fit", is_flag=True, help="Calibrate on PATH first and store the fits.")
def main(source: str, path: Path, as_json: bool, cases: bool, others: bool, fit: bool) -> None:
    """Predict the measured runs of SOURCE in the folder PATH and summarise the errors."""
    of = adapter(source)
    if fit:
        calibrate = fit_of(of)
        if calibrate is None:
            raise InputError(f"--fit: nothing is fitted to {source}")
        calibrate(path)
    found = of.cases(path)
    if not found:
        raise InputError(f"{path}: no predictable run")
    groups = summarise(found)
    ranking, chosen = ranking_summary(rankings(found)), choice_summary(choices(found))
    if as_json:
        answer = {"groups": groups, "ranking": ranking, "choices": chosen}
        click.echo(json.dumps(answer, indent=2))
        return
    if cases:
        _print_cases(found)
    width = max(len(name) for name in groups)
    for name, group in groups.items():
        click.echo(f"{name:{width}} {group['n']:4}  {_line(name, group)}")
        for other, errors in group.get("others", {}).items() if others else ():
            click.echo(f"{'':{width}}       {_line(name, errors)}  {other}")
    if ranking:
        click.echo(
            f"ranking of {ranking['settings']} settings: Kendall's tau "
            f"{ranking['median_kendall_tau']:.2f} (median), {ranking['worst_kendall_tau']:.2f} "
            f"(worst); predicted best within 3% of the best in "
            f"{ranking['best_within_3_percent']:.0%}"
        )
    if chosen:
        click.echo(
            f"choices in {chosen['settings']} settings with equal batches: within 5% of the best "
            f"in {chosen['best_within_5_percent']:.0%}, lost {chosen['median_lost']:.1%} (median), "
            f"{chosen['worst_lost']:.1%} (worst)"
        )


def _line(name: str, errors: dict[str, Any]) -> str:
    keys = ("median", "p90", "worst", "bias")
    figures = [f"{key} {figure(name, errors[key]):>7}" for key in keys]
    if "coverage90" in errors:
        figures.append(f"in 90% interval {errors['coverage90']:>4.0%}")
    return "  ".join(figures)


def _print_cases(found: Sequence[Case]) -> None:
    width = max(len(case.group) for case in found)
    for case in sorted(found, key=lambda c: -abs(c.error)):
        error = f"{case.error:.1%}" if case.relative else f"{case.error:.3f}"
        click.echo(
            f"{case.group:{width}} {error:>7}  {case.predicted:10.5g} predicted "
            f"{case.measured:10.5g} measured  {case.name}"
        )


def figure(group: str, error: float) -> str:
    """Format an error of a group: a percentage, or a difference of idleness or staleness."""
    return f"{error:.3f}" if ":" in group else f"{error:.1%}"


if __name__ == "__main__":
    try:
        main()
    except InputError as error:
        raise SystemExit(f"error: {error}") from None
