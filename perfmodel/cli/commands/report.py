"""``perfmodel report``."""

from __future__ import annotations

import shlex
from typing import Any

import click

from perfmodel.base.errors import InputError
from perfmodel.cli import config
from perfmodel.cli.jobs import JobFlags, ModelFlags, job_options, model_options
from perfmodel.cli.options import check_page, progress, write_files

ARGUMENTS = "perfmodel.arguments"
"""Key of the arguments as they were typed, in the context of the command."""


class Recorded(click.Command):
    """A command that keeps its arguments as they were typed."""

    def parse_args(self, context: click.Context, args: list[str]) -> list[str]:
        """Keep the arguments before they are read."""
        context.meta[ARGUMENTS] = list(args)
        return super().parse_args(context, args)


@click.command(cls=Recorded)
@job_options()
@model_options("fine")
@click.option(
    "--iterations",
    type=int,
    metavar="N",
    help="Predict the first N iterations, not the steady state.",
)
@click.option(
    "--run-iterations", type=int, metavar="N", help="Give the interval of a run of N iterations."
)
@click.option("--dataset-size", type=int, metavar="N", help="Samples per epoch, for its time.")
@click.option("--epochs", type=int, metavar="N", help="Epochs, for the training time.")
@click.option(
    "--output",
    default="report.html",
    show_default=True,
    metavar="FILE",
    help="The page to write (extra: report).",
)
@click.option("--json", "as_json", is_flag=True, help="Also print one JSON object.")
@click.pass_context
def report(
    context: click.Context,
    /,
    flags: JobFlags,
    how: ModelFlags,
    output: str,
    as_json: bool,
    **run: int | None,
) -> None:
    """Write a page about a job, to be opened in any browser.

    It needs no network. It shows the prediction with its interval, the effect of each assumption,
    where the time goes, a timeline of two iterations, idleness, staleness, the scaling curve, and
    what would be faster.

    \b
    perfmodel report --model resnet50 --device v100 --arch ps --workers 8 --output report.html
    """
    from perfmodel.studies import reports

    if run["iterations"] is not None and how.fidelity != "fine":
        raise InputError("--iterations: only a simulation has a start; needs --fidelity fine")
    check_page(output)
    arguments: dict[str, Any] = {**how.arguments(), **flags.arguments(flags.job)}
    arguments |= {name: value for name, value in run.items() if value is not None}
    command = shlex.join(["perfmodel", "report", *context.meta[ARGUMENTS]])
    command = " ".join([command, *config.told()])
    with progress() as advance:
        found = reports.report(**arguments, command=command, progress=advance)
    write_files([(output, found.to_html().encode(), "; open it in a browser")])
    if as_json:
        click.echo(found.to_json())
