"""``python -m benchmarks.accuracy SOURCE PATH [--json | --markdown]``: predict measured runs."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import click
import numpy as np

from benchmarks.accuracy.cases import Case
from perfmodel.errors import InputError

SOURCES = ("testbed",)


@click.command()
@click.argument("source", type=click.Choice(SOURCES))
@click.argument("path", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print groups as JSON.")
@click.option("--markdown", is_flag=True, help="Print groups as a Markdown table.")
@click.option("--cases", is_flag=True, help="Print every case too, the worst first.")
def main(source: str, path: Path, as_json: bool, markdown: bool, cases: bool) -> None:
    """Predict the measured runs of SOURCE in the folder PATH and summarise the errors."""
    module = importlib.import_module(f"benchmarks.accuracy.{source}")
    found: list[Case] = module.cases(path)
    groups = summarise(found)
    if as_json:
        click.echo(json.dumps({"groups": groups}, indent=2))
        return
    if cases:
        for case in sorted(found, key=lambda c: -abs(c.error)):
            error = _figure(case.group, case.error)
            click.echo(
                f"{case.group:24} {error:>7}  {case.predicted:10.5g} predicted "
                f"{case.measured:10.5g} measured  {case.name}"
            )
    rows = [
        (name, g["n"], g["median"], g["p90"], g["worst"], g["bias"]) for name, g in groups.items()
    ]
    if markdown:
        click.echo("| group | runs | median | p90 | worst | bias |\n|---|---|---|---|---|---|")
    for name, n, *errors in rows:
        figures = [_figure(name, error) for error in errors]
        if markdown:
            click.echo(f"| {name} | {n} | {' | '.join(figures)} |")
        else:
            click.echo(
                f"{name:24} {n:3}  median {figures[0]:>7}  p90 {figures[1]:>7}  "
                f"worst {figures[2]:>7}  bias {figures[3]:>7}"
            )


def _figure(group: str, error: float) -> str:
    return f"{error:.3f}" if ":" in group else f"{error:.1%}"


def summarise(cases: list[Case]) -> dict[str, dict[str, float]]:
    """Errors by group: count; median, 90th percentile and worst of their size; mean (bias)."""
    groups: dict[str, list[float]] = {}
    for case in cases:
        groups.setdefault(case.group, []).append(case.error)
    return {
        name: {
            "n": len(errors),
            "median": float(np.median(np.abs(errors))),
            "p90": float(np.quantile(np.abs(errors), 0.9)),
            "worst": float(np.max(np.abs(errors))),
            "bias": float(np.mean(errors)),
        }
        for name, errors in sorted(groups.items())
    }


if __name__ == "__main__":
    try:
        main()
    except InputError as error:
        raise SystemExit(f"error: {error}") from None
