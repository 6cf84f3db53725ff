"""``python -m benchmarks.accuracy SOURCE PATH [--json | --markdown]``: predict measured runs."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import click
import numpy as np

from benchmarks.accuracy.cases import Case
from perfmodel.errors import InputError

SOURCES = ("cmdare", "collectives", "testbed")


@click.command()
@click.argument("source", type=click.Choice(SOURCES))
@click.argument("path", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print groups as JSON.")
@click.option("--markdown", is_flag=True, help="Print groups as a Markdown table.")
@click.option("--cases", is_flag=True, help="Print every case too, the worst first.")
@click.option("--fit", is_flag=True, help="Fit to the runs first and write down what was fitted.")
def main(source: str, path: Path, as_json: bool, markdown: bool, cases: bool, fit: bool) -> None:
    """Predict the measured runs of SOURCE in the folder PATH and summarise the errors."""
    module = importlib.import_module(f"benchmarks.accuracy.{source}")
    if fit:
        if not hasattr(module, "fit"):
            raise InputError(f"--fit: nothing is fitted to {source}")
        module.fit(path)
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
    intervals = any("coverage90" in g for g in groups.values())
    if markdown:
        more = " in 90 % interval |" if intervals else ""
        click.echo(f"| group | runs | median | p90 | worst | bias |{more}")
        click.echo("|---|---|---|---|---|---|" + ("---|" if intervals else ""))
    for name, g in groups.items():
        figures = [_figure(name, g[key]) for key in ("median", "p90", "worst", "bias")]
        inside = f"{g['coverage90']:.0%}" if "coverage90" in g else ""
        if markdown:
            figures += [inside] if intervals else []
            click.echo(f"| {name} | {g['n']} | {' | '.join(figures)} |")
        else:
            click.echo(
                f"{name:24} {g['n']:3}  median {figures[0]:>7}  p90 {figures[1]:>7}  "
                f"worst {figures[2]:>7}  bias {figures[3]:>7}"
                + (f"  in 90 % interval {inside:>4}" if inside else "")
            )


def _figure(group: str, error: float) -> str:
    return f"{error:.3f}" if ":" in group else f"{error:.1%}"


def summarise(cases: list[Case]) -> dict[str, dict[str, float]]:
    """Errors by group: count; median, 90th percentile and worst of their size; mean (bias).

    ``coverage90`` is the part of measured values inside the predicted interval of 90 %, in groups
    that have intervals.
    """
    groups: dict[str, list[Case]] = {}
    for case in cases:
        for name in (case.group, *case.pools):
            groups.setdefault(name, []).append(case)
    return {name: _summary(found) for name, found in sorted(groups.items())}


def _summary(cases: list[Case]) -> dict[str, float]:
    errors = [case.error for case in cases]
    sizes = np.abs(errors)
    found = {
        "n": len(errors),
        "median": float(np.median(sizes)),
        "p90": float(np.quantile(sizes, 0.9)),
        "worst": float(np.max(sizes)),
        "bias": float(np.mean(errors)),
    }
    inside = [c.interval[0] <= c.measured <= c.interval[1] for c in cases if c.interval]
    return found | ({"coverage90": float(np.mean(inside))} if inside else {})


if __name__ == "__main__":
    try:
        main()
    except InputError as error:
        raise SystemExit(f"error: {error}") from None
