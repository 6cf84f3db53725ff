"""``perfmodel advise``."""

from __future__ import annotations

import click

from perfmodel.cli.jobs import JobFlags, ModelFlags, job_options, model_options
from perfmodel.cli.options import Outputs, outputs, progress


@click.command()
@job_options()
@model_options("auto")
@outputs("json", "plot")
def advise(flags: JobFlags, how: ModelFlags, out: Outputs) -> None:
    """Each change is predicted, and recommended if the whole interval of its speed-up is above 1.
    Its effect on learning and published results of such changes are shown beside it.

    \b
    perfmodel advise --model vgg16 --device v100 --arch ps --workers 8
    """
    from perfmodel.studies import advice

    out.check()
    arguments = {**how.arguments(), **flags.arguments(flags.job)}
    with progress() as advance:
        result = advice.advise(**arguments, progress=advance)
    if out.put(result):
        from perfmodel.cli.printing import advice as report

        report.advice(result)
