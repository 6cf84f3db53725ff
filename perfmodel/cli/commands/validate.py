"""``perfmodel validate``: predictions held against what was measured."""

from __future__ import annotations

from typing import Any

import click

from perfmodel.base.errors import InputError
from perfmodel.cli.options import (
    check_files,
    check_page,
    drawn,
    one,
    page_option,
    progress,
    read_fraction,
    write_files,
    write_page,
)


@click.command()
@click.argument("cases", nargs=-1, metavar="[CASES]...")
@click.option("--workload", metavar="FILE", help="What runs of perfmodel measure training trained.")
@click.option("--cluster", metavar="NAME|FILE", help="Where those runs were.")
@click.option(
    "--fidelity",
    type=click.Choice(["fine", "coarse", "auto"]),
    default="fine",
    help="Simulate (fine), add up phases (coarse), or as needed (auto).  [default: fine]",
)
@click.option(
    "--tolerance",
    metavar="15%",
    callback=one(read_fraction),
    help="End with exit code 1 where a group's step time is further off than this.",
)
@click.option(
    "--statistic",
    type=click.Choice(["median", "p90", "worst"]),
    help="What of a group's errors --tolerance is compared with.  [default: worst]",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--plot", metavar="FILE", help="Draw it as png, svg or pdf (extra: plot).")
@page_option
@click.pass_context
def validate(
    context: click.Context,
    /,
    cases: tuple[str, ...],
    workload: str | None,
    cluster: str | None,
    fidelity: Any,
    tolerance: float | None,
    statistic: Any,
    as_json: bool,
    plot: str | None,
    page: str | None,
) -> None:
    """Predict jobs that were measured, and say how far off the predictions are.

    CASES are cases files, or runs of perfmodel measure training (with --workload and --cluster).
    Without any, those that come with perfmodel are taken: published figures, each with its source.

    \b
    perfmodel validate
    perfmodel validate ours.toml --tolerance 15% --plot ours.png
    perfmodel validate run2.json run4.json --workload net.json --cluster lab.json
    """
    from perfmodel.cli.printing.validation import validation as report
    from perfmodel.validation import cases as cases_
    from perfmodel.validation import validate as validate_

    check_files(plot)
    check_page(page)
    if statistic is not None and tolerance is None:
        raise InputError("--statistic: needs --tolerance")
    if (workload is None) != (cluster is None):
        raise InputError("--workload and --cluster: runs need both of them")
    if workload is not None and not cases:
        raise InputError("--workload: needs the files of runs")
    found = []
    for path in cases:
        found += cases_.read_measurements(path, workload, cluster)
    with progress() as advance:
        answer = validate_(found or cases_.shipped_cases(), fidelity=fidelity, progress=advance)
    write_files(drawn(answer, plot))
    write_page(answer, page)
    if as_json:
        click.echo(answer.to_json())
    else:
        report(answer)
    if tolerance is None:
        return
    statistic = statistic or "worst"
    beyond = answer.beyond(tolerance, statistic)
    if beyond:
        where = ", ".join(beyond)
        click.echo(f"step time: {statistic} error above {tolerance:.1%} in {where}", err=True)
        context.exit(1)
