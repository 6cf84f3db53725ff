"""``perfmodel require``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from perfmodel.cli import types
from perfmodel.cli.jobs import JobFlags, fidelity_option, job_options
from perfmodel.cli.options import Outputs, option, outputs, training_options

if TYPE_CHECKING:
    from perfmodel.api import Fidelity

VARIABLES = types.suggested("bandwidth", "latency", "workers", "servers", "batch-size")
"""What can be required; numbers among the options of an architecture as well."""

AIM = types.Text(name="AIM")


@click.command()
@click.argument("variable", type=VARIABLES, metavar="VARIABLE")
@option("--to", AIM, "Aim to reach, such as 'scaling>0.9'.", name="aim", required=True)
@job_options()
@fidelity_option("coarse", "coarse", "auto", "fine")
@training_options
@outputs("json", "plot")
def require(
    variable: str,
    aim: str,
    flags: JobFlags,
    fidelity: Fidelity,
    dataset_size: int | None,
    epochs: int | None,
    out: Outputs,
) -> None:
    """VARIABLE is bandwidth, latency, workers, servers, batch-size, or an option of the architecture
    that is a number. The aim is on idle, scaling, throughput, step, time or staleness.

    \b
    perfmodel require bandwidth --to 'scaling>0.9' --model resnet50 --device v100 --arch ring --workers 16
    perfmodel require workers --to 'time<24h' --model resnet50 --arch ring --dataset-size 1281167 --epochs 90
    """  # noqa: E501
    from perfmodel.cli.printing import studies
    from perfmodel.studies import requirements

    out.check()
    result = requirements.require(
        variable,
        aim,
        fidelity=fidelity,
        dataset_size=dataset_size,
        epochs=epochs,
        **flags.arguments(),
    )
    if out.put(result, values=result.to_dict()):
        studies.requirement(result)
