"""``perfmodel validate``: predictions compared with measurements."""

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
@click.option("--workload", metavar="FILE", help="Workload of the runs.")
@click.option("--cluster", metavar="NAME|FILE", help="Cluster of the runs.")
@click.option(
    "--fidelity",
    type=click.Choice(["fine", "coarse", "auto"]),
    default="fine",
    help="Simulate (fine), use formulas (coarse), or either as needed (auto).  [default: fine]",
)
@click.option(
    "--tolerance",
    metavar="15%",
    callback=one(read_fraction),
    help="Exit with code 1 if the step time of a group is further off than this.",
)
@click.option(
    "--statistic",
    type=click.Choice(["median", "p90", "worst"]),
    help="Which of a group's errors to compare with --tolerance.  [default: worst]",
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
    """Predict measured jobs, and report how far off the predictions are.

    CASES are cases files, or runs of perfmodel measure training (with --workload and --cluster).
    The default is the cases that come with perfmodel: published figures, each with its source.

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
        raise InputError("--workload and --cluster: runs need both")
    if workload is not None and not cases:
        raise InputError("--workload: needs run files")
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
