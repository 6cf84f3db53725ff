"""``perfmodel validate``: predictions compared with measurements."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from perfmodel.base.errors import InputError
from perfmodel.cli import types
from perfmodel.cli.jobs import fidelity_option
from perfmodel.cli.options import Outputs, option, outputs, progress

if TYPE_CHECKING:
    from perfmodel.api import Fidelity
    from perfmodel.validation.validate import Statistic


@click.command()
@click.argument("cases", nargs=-1, type=types.INPUT, metavar="[CASES]...")
@option("--workload", types.INPUT, "Workload of the runs.")
@option("--cluster", types.CLUSTER, "Cluster of the runs.")
@fidelity_option("fine", "fine", "coarse", "auto")
@option(
    "--tolerance",
    types.fraction("15%"),
    "Exit with code 1 if the step time of a group is further off than this.",
)
@option(
    "--statistic",
    types.Words(["median", "p90", "worst"]),
    "Which of a group's errors to compare with --tolerance.  [default: worst]",
)
@outputs("json", "plot", "report")
@click.pass_context
def validate(
    context: click.Context,
    /,
    cases: tuple[str, ...],
    workload: str | None,
    cluster: str | None,
    fidelity: Fidelity,
    tolerance: float | None,
    statistic: Statistic | None,
    out: Outputs,
) -> None:
    """CASES are cases files, or runs of perfmodel measure training (with --workload and --cluster).
    The default is the cases that come with perfmodel: published figures, each with its source.

    \b
    perfmodel validate
    perfmodel validate ours.toml --tolerance 15% --plot ours.png
    perfmodel validate run2.json run4.json --workload net.json --cluster lab.json
    """
    from perfmodel.cli.printing.validation import validation as report
    from perfmodel.validation import cases as cases_, validate as validate_

    out.check()
    if statistic is not None and tolerance is None:
        raise InputError("--statistic: needs --tolerance")
    if (workload is None) != (cluster is None):
        raise InputError("--workload and --cluster: runs need both")
    if workload is not None and not cases:
        raise InputError("--workload: needs run files")
    result = []
    for path in cases:
        result += cases_.read_measurements(path, workload, cluster)
    with progress() as advance:
        answer = validate_(result or cases_.shipped_cases(), fidelity=fidelity, progress=advance)
    if out.put(answer):
        report(answer)
    if tolerance is None:
        return
    statistic = statistic or "worst"
    beyond = answer.beyond(tolerance, statistic)
    if beyond:
        where = ", ".join(beyond)
        click.echo(f"step time: {statistic} error above {tolerance:.1%} in {where}", err=True)
        context.exit(1)
