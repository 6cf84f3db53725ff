"""``perfmodel require``."""

from __future__ import annotations

import json

import click

from perfmodel.cli.jobs import JobFlags, job_options
from perfmodel.cli.options import check_files, drawn, write_files


@click.command()
@click.argument("variable")
@click.option(
    "--to", "aim", required=True, metavar="AIM", help="Aim to reach, such as 'scaling>0.9'."
)
@job_options()
@click.option(
    "--fidelity",
    type=click.Choice(["coarse", "auto", "fine"]),
    default="coarse",
    show_default=True,
    help="How to make the predictions, about a hundred of them.",
)
@click.option("--dataset-size", type=int, metavar="N", help="Samples per epoch, for time.")
@click.option("--epochs", type=int, metavar="N", help="Epochs, for time.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--plot", metavar="FILE", help="Draw it as png, svg or pdf (extra: plot).")
def require(
    variable: str,
    aim: str,
    flags: JobFlags,
    fidelity: str,
    dataset_size: int | None,
    epochs: int | None,
    as_json: bool,
    plot: str | None,
) -> None:
    """Find the bandwidth, the workers or another VARIABLE needed to reach an aim.

    VARIABLE is bandwidth, latency, workers, servers, batch-size, or an option of the architecture
    that is a number. The aim is on idle, scaling, throughput, step, time or staleness.

    \b
    perfmodel require bandwidth --to 'scaling>0.9' --model resnet50 --device v100 --arch ring --workers 16
    perfmodel require workers --to 'time<24h' --model resnet50 --arch ring --dataset-size 1281167 --epochs 90
    """  # noqa: E501
    from perfmodel.cli.printing import studies
    from perfmodel.studies import requirements

    check_files(plot)
    found = requirements.require(
        variable,
        aim,
        fidelity=fidelity,  # type: ignore[arg-type]  # one of its values, by click
        dataset_size=dataset_size,
        epochs=epochs,
        **flags.arguments(flags.job),
    )
    write_files(drawn(found, plot))
    if as_json:
        click.echo(json.dumps(found.to_dict(), indent=2))
    else:
        studies.requirement(found)
