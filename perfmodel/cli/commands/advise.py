"""``perfmodel advise``."""

from __future__ import annotations

import click

from perfmodel.cli.jobs import JobFlags, ModelFlags, job_options, model_options
from perfmodel.cli.options import progress


@click.command()
@job_options()
@model_options("auto")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def advise(flags: JobFlags, how: ModelFlags, as_json: bool) -> None:
    """Say what would make a job faster: options, architectures, hardware.

    Each change is predicted. It is recommended where the whole interval of its gain is above 1,
    beside what it changes for learning and what was published of such changes.

    \b
    perfmodel advise --model vgg16 --device v100 --arch ps --workers 8
    """
    from perfmodel.studies import advice

    arguments = {**how.arguments(), **flags.arguments(flags.job)}
    with progress() as advance:
        found = advice.advise(**arguments, progress=advance)
    if as_json:
        click.echo(found.to_json())
    else:
        from perfmodel.cli.printing import advice as report

        report.advice(found)
