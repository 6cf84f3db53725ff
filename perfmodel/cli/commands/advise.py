"""``perfmodel advise``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from perfmodel.cli.jobs import JobFlags, job_options, model_options
from perfmodel.cli.options import Outputs, outputs, progress

if TYPE_CHECKING:
    from perfmodel.api import PredictOptions


@click.command()
@job_options()
@model_options("auto")
@outputs("json", "plot")
def advise(flags: JobFlags, how: PredictOptions, out: Outputs) -> None:
    """Each change is predicted, and recommended if the whole interval of its speed-up is above 1.
    Its effect on learning and published results of such changes are shown beside it.

    \b
    perfmodel advise --model vgg16 --device v100 --arch ps --workers 8
    """
    from perfmodel.studies import advice

    out.check()
    with progress() as advance:
        result = advice.advise(**{**how, **flags.arguments()}, progress=advance)
    if out.put(result):
        from perfmodel.cli.printing import advice as printing

        printing.advice(result)
