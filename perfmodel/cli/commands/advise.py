"""``perfmodel advise``."""

from __future__ import annotations

import click

from perfmodel.cli.jobs import JobFlags, ModelFlags, job_options, model_options
from perfmodel.cli.options import check_files, drawn, progress, write_files


@click.command()
@job_options()
@model_options("auto")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--plot", metavar="FILE", help="Draw it as png, svg or pdf (extra: plot).")
def advise(flags: JobFlags, how: ModelFlags, as_json: bool, plot: str | None) -> None:
    """Suggest what would make a job faster: options, architectures, hardware.

    Each change is predicted, and recommended if the whole interval of its speed-up is above 1. Its
    effect on learning and published results of such changes are shown beside it.

    \b
    perfmodel advise --model vgg16 --device v100 --arch ps --workers 8
    """
    from perfmodel.studies import advice

    check_files(plot)
    arguments = {**how.arguments(), **flags.arguments(flags.job)}
    with progress() as advance:
        found = advice.advise(**arguments, progress=advance)
    write_files(drawn(found, plot))
    if as_json:
        click.echo(found.to_json())
    else:
        from perfmodel.cli.printing import advice as report

        report.advice(found)
