"""``python -m benchmarks.coarse [--json | --markdown]``: how far formulas are off simulations."""

from __future__ import annotations

import json
from pathlib import Path

import click

from benchmarks.coarse.grid import cells
from benchmarks.coarse.measure import Row, Store, by_group, rows
from benchmarks.coarse.speed import speeds
from perfmodel import report


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print groups as JSON.")
@click.option("--markdown", is_flag=True, help="Print Markdown tables.")
@click.option("--worst", type=int, default=0, metavar="N", help="Print the N worst jobs as well.")
@click.option(
    "--store", type=click.Path(path_type=Path), help="Keep simulations here for next time."
)
@click.option(
    "--offset", type=click.FloatRange(0, 1), default=0.5, help="Other jobs.  [default: 0.5]"
)
@click.option("--speed", is_flag=True, help="Measure how fast formulas are evaluated instead.")
def main(
    as_json: bool, markdown: bool, worst: int, store: Path | None, offset: float, speed: bool
) -> None:
    """Compare both routes on a fixed grid of jobs; without --store this takes about 20 minutes."""
    if speed:
        for name, per_s, scalar_s in speeds():
            click.echo(
                f"{name:36} {per_s / 1e6:6.2f} million/s  one alone {scalar_s * 1e6:7.1f} us"
            )
        return
    with report.progress() as advance:
        found = rows(cells(offset), Store(store), advance)
    groups = by_group(found)
    if as_json:
        click.echo(json.dumps({"groups": groups}, indent=2))
        return
    head = (
        *("group", "jobs", "exact", "p10", "p50", "p90", "median size", "p90 size", "worst"),
        *("plain median", "plain p90"),
    )
    lines = [head]
    for name, group in groups.items():
        e, plain = group["errors"], group["plain"]
        signed = [f"{e[key]:+.1%}" for key in ("p10_signed", "median_signed", "p90_signed")]
        size = [f"{e[key]:.1%}" for key in ("median", "p90", "worst")]
        without = [f"{plain[key]:.1%}" for key in ("median", "p90")]
        lines.append((name, str(e["n"]), str(group["exact"]), *signed, *size, *without))
    if markdown:
        for number, line in enumerate(lines):
            click.echo(f"| {' | '.join(line)} |")
            if number == 0:
                click.echo("|" + "---|" * len(line))
    else:
        for line in lines:
            click.echo(f"{line[0]:12} " + " ".join(f"{text:>14}" for text in line[1:]))
    for row in sorted(found, key=lambda row: -abs(row.error))[:worst]:
        click.echo(_line(row))


def _line(row: Row) -> str:
    times = f"{row.coarse_s:9.4g} s coarse {row.fine_s:9.4g} s fine {row.plain_s:9.4g} s plain"
    return f"{row.error:+7.1%}  {times}  {row.name}"


if __name__ == "__main__":
    main()
