"""``perfmodel report``."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

import click

from perfmodel.cli import types
from perfmodel.cli.commands.predict import check_iterations
from perfmodel.cli.jobs import JobFlags, job_options, model_options
from perfmodel.cli.options import Outputs, option, outputs, progress, run_options

if TYPE_CHECKING:
    from perfmodel.api import PredictOptions

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
@run_options
@option("--output", types.OUTPUT, "The page to write (extra: report).", default="report.html")
@outputs("json")
@click.pass_context
def report(
    context: click.Context,
    /,
    flags: JobFlags,
    how: PredictOptions,
    output: str,
    out: Outputs,
    **run: int | None,
) -> None:
    """It needs no network. It shows the prediction with its interval, the effect of assumptions,
    where the time goes, a timeline of two iterations, idleness, staleness, the scaling curve, and
    what would be faster.

    \b
    perfmodel report --model resnet50 --device v100 --arch ps --workers 8 --output report.html
    """
    from perfmodel.cli import config
    from perfmodel.studies import reports

    check_iterations(run["iterations"], how["fidelity"])
    out._replace(page=output).check()
    asked = {name: value for name, value in run.items() if value is not None}
    command = shlex.join(["perfmodel", "report", *context.meta[ARGUMENTS]])
    if context.default_map:
        command = f"PERFMODEL_CONFIG={shlex.quote(str(config.location()))} {command}"
    with progress() as advance:
        result = reports.report(
            **{**how, **flags.arguments(), **asked}, command=command, progress=advance
        )
    out.put(result, [(output, result.to_html().encode(), "; open it in a browser")])
