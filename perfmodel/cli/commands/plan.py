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
"""The flags of limits, and what the limits are called."""

SPACE = ("arch", "workers", "servers", "batch_size", "precision", "instance", "server_instances")
"""Flags that take lists."""

_limits = all_of(
    (
        click.option("--budget", type=float, metavar="USD", help="Most that it may cost."),
        click.option(
            "--deadline", callback=one(read_quantity("s")), metavar="24h", help="Longest time."
        ),
        click.option(
            "--max-idle", callback=one(read_fraction), metavar="20%", help="Most mean idleness."
        ),
        click.option("--max-staleness", type=float, metavar="N", help="Most mean staleness."),
        click.option("--max-workers", type=int, metavar="N", help="Most workers."),
        click.option(
            "--max-global-batch-size", type=int, metavar="N", help="Most samples of an update."
        ),
    )
)

_space = all_of(
    (
        click.option("--instances", metavar="FILE", help="Catalogue of instances, your own copy."),
        click.option(
            "--instance",
            callback=list_of(read_text, ranges=False),
            metavar="NAME,...",
            help="Instance types at hand.  [default: all]",
        ),
        click.option(
            "--server-instances",
            callback=list_of(read_text, ranges=False),
            metavar="NAME,...",
            help="Instance types of servers that have machines of their own.  [default: none]",
        ),
        click.option("--region", metavar="NAME", help="Of the prices.  [default: the cheapest]"),
        click.option("--spot", is_flag=True, help="Spot prices instead of those on demand."),
        click.option(
            "--arch",
            callback=list_of(read_text, ranges=False),
            metavar="NAME,...",
            help="Architectures.  [default: allreduce,ps,p2p,zero1,zero3]",
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
                "workers": "[default: whole nodes, up to 256 workers]",
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
        click.option("--jitter", callback=one(read_jitter), metavar="0.1", help="As for predict."),
        click.option("--seed", type=int, metavar="N", help="Of everything random."),
    )
)


@click.command()
@click.option("--model", metavar="NAME", help="Model of the catalogue.")
@click.option("--workload", metavar="FILE", help="Workload file, instead of --model.")
@click.option(
    "--objective",
    default="cost",
    metavar="NAME",
    help="cost, time, throughput or samples-per-usd.  [default: cost]",
)
@click.option("--dataset-size", type=int, metavar="N", help="Samples per epoch.")
@click.option("--epochs", type=int, metavar="N", help="[default: 1]")
@_limits
@_space
@click.option("--top", type=int, default=10, show_default=True, help="Candidates to list.")
@click.option(
    "--fidelity",
    type=click.Choice(["auto", "coarse"]),
    default="auto",
    show_default=True,
    help="Simulate the best until their order is settled, or never.",
)
@executor_options
@click.option("--csv", metavar="FILE|-", help="Write the candidates as CSV.")
@click.option("--parquet", metavar="FILE", help="Write them as Parquet (extra: parquet).")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--plot", metavar="FILE", help="Draw time and cost as png, svg or pdf.")
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
    """Choose instances, workers, architecture and batch size for a training.

    The whole space is evaluated by formulas, and the best candidates are simulated. Prices are
    those of the catalogue, on their date.

    \b
    perfmodel plan --model resnet50 --dataset-size 1281167 --epochs 90 --objective cost --deadline 24h
    """  # noqa: E501
    check_outputs(csv, as_json, plot, parquet)
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
