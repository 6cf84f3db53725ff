"""``perfmodel plan``."""

from __future__ import annotations

from typing import Any

import click

from perfmodel.cli.jobs import option_values
from perfmodel.cli.options import (
    all_of,
    check_outputs,
    check_page,
    executor_options,
    list_of,
    one,
    page_option,
    progress,
    put_out,
    read_fraction,
    read_jitter,
    read_quantity,
    read_text,
    read_whole,
    write_files,
    write_page,
)

LIMITS = {
    "budget": "budget_usd",
    "deadline": "deadline_s",
    "max_idle": "max_idle_fraction",
    "max_staleness": "max_staleness",
    "max_workers": "max_workers",
    "max_global_batch_size": "max_global_batch_size",
}
"""Flags of limits, and the names of the limits."""

SPACE = ("arch", "workers", "servers", "batch_size", "precision", "instance", "server_instances")
"""Flags that take lists."""

_limits = all_of(
    (
        click.option("--budget", type=float, metavar="USD", help="Maximum cost."),
        click.option(
            "--deadline", callback=one(read_quantity("s")), metavar="24h", help="Maximum time."
        ),
        click.option(
            "--max-idle", callback=one(read_fraction), metavar="20%", help="Maximum mean idleness."
        ),
        click.option("--max-staleness", type=float, metavar="N", help="Maximum mean staleness."),
        click.option("--max-workers", type=int, metavar="N", help="Maximum number of workers."),
        click.option(
            "--max-global-batch-size", type=int, metavar="N", help="Maximum samples per update."
        ),
    )
)

_space = all_of(
    (
        click.option("--instances", metavar="FILE", help="Your own catalogue of instances."),
        click.option(
            "--instance",
            callback=list_of(read_text, ranges=False),
            metavar="NAME,...",
            help="Instance types to choose from.  [default: all]",
        ),
        click.option(
            "--server-instances",
            callback=list_of(read_text, ranges=False),
            metavar="NAME,...",
            help="Instance types for servers on separate machines.  [default: none]",
        ),
        click.option(
            "--region", metavar="NAME", help="Region of the prices.  [default: the cheapest]"
        ),
        click.option("--spot", is_flag=True, help="Use spot prices instead of on-demand prices."),
        click.option(
            "--arch",
            callback=list_of(read_text, ranges=False),
            metavar="NAME,...",
            help="Architectures to try.  [default: allreduce,ps,p2p,zero1,zero3]",
        ),
        click.option(
            "--option",
            "options",
            multiple=True,
            metavar="KEY=VALUE,...",
            help="Any option of the architectures that have it; repeatable.",
        ),
        *(
            click.option(
                f"--{name}", callback=list_of(read_whole, ranges=True), metavar="N,...", help=text
            )
            for name, text in {
                "workers": "Numbers of workers.  [default: whole nodes, up to 256 workers]",
                "servers": "Parameter servers.  [default: 1,4,16]",
                "batch-size": "Samples per worker and step.  [default: 32,64,128,256,512]",
            }.items()
        ),
        click.option(
            "--precision",
            callback=list_of(read_text, ranges=False),
            metavar="NAME,...",
            help="float32, tf32 or mixed.  [default: the first of the profile]",
        ),
        click.option(
            "--jitter", callback=one(read_jitter), metavar="0.1", help="As in perfmodel predict."
        ),
        click.option("--seed", type=int, metavar="N", help="Random seed."),
    )
)


@click.command()
@click.option("--model", metavar="NAME", help="Model from the catalogue.")
@click.option("--workload", metavar="FILE", help="Workload file instead of --model.")
@click.option(
    "--objective",
    default="cost",
    metavar="NAME",
    help="cost, time, throughput or samples-per-usd.  [default: cost]",
)
@click.option("--dataset-size", type=int, metavar="N", help="Samples per epoch.")
@click.option("--epochs", type=int, metavar="N", help="Epochs to train.  [default: 1]")
@_limits
@_space
@click.option(
    "--top", type=int, metavar="N", default=10, show_default=True, help="Candidates to list."
)
@click.option(
    "--fidelity",
    type=click.Choice(["auto", "coarse"]),
    default="auto",
    show_default=True,
    help="Simulate the best candidates until their order is settled (auto), or never (coarse).",
)
@executor_options
@click.option("--csv", metavar="FILE", help="Write the candidates as CSV.")
@click.option("--parquet", metavar="FILE", help="Write them as Parquet (extra: parquet).")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--plot", metavar="FILE", help="Draw time and cost as png, svg or pdf (extra: plot).")
@page_option
def plan(
    instances: str | None,
    options: tuple[str, ...],
    processes: int | None,
    dask: str | None,
    csv: str | None,
    parquet: str | None,
    as_json: bool,
    plot: str | None,
    page: str | None,
    **given: Any,
) -> None:
    """Choose instances, workers, architecture and batch size for a training run.

    Formulas evaluate the whole space, and the best candidates are simulated. Prices are from the
    catalogue, each with its date.

    \b
    perfmodel plan --model resnet50 --dataset-size 1281167 --epochs 90 --objective cost --deadline 24h
    """  # noqa: E501
    check_outputs(csv, plot, parquet)
    check_page(page)
    from perfmodel.studies import executors
    from perfmodel.studies.plan_search import PlanLimits
    from perfmodel.studies.planning import plan as choose

    limits = PlanLimits(**{name: given.pop(flag) for flag, name in LIMITS.items()})
    arguments = {name: value for name, value in given.items() if value is not None}
    for name in SPACE:
        if name in arguments and not isinstance(arguments[name], list):
            arguments[name] = [arguments[name]]
    with executors.opened(processes, dask) as executor, progress() as advance:
        found = choose(
            **arguments,
            options=option_values(options, lists=True),
            catalogue_file=instances,
            limits=limits,
            executor=executor,
            progress=advance,
        )
    if parquet is not None:
        write_files([(parquet, found.to_parquet(), "")])
    write_page(found, page)
    if put_out(found, csv, as_json, plot):
        from perfmodel.cli.printing import plan as report

        report.plan(found)
