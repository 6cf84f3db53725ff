"""``perfmodel plan``."""

from __future__ import annotations

from typing import Any

import click

from perfmodel.cli import types
from perfmodel.cli.jobs import fidelity_option, option_values
from perfmodel.cli.options import (
    Decorator,
    Outputs,
    all_of,
    executor_options,
    outputs,
    progress,
    training_options,
    whole_option,
)
from perfmodel.cli.types import OptionOf, Several

ARCHITECTURES = "allreduce,ps,p2p,zero1,zero3"
"""Architectures to try by default."""

_limits = all_of(
    (
        click.option("--budget", "budget_usd", type=float, metavar="USD", help="Maximum cost."),
        click.option("--deadline", "deadline_s", type=types.time("24h"), help="Maximum time."),
        click.option(
            "--max-idle",
            "max_idle_fraction",
            type=types.FRACTION,
            metavar="20%",
            help="Maximum mean idleness.",
        ),
        click.option("--max-staleness", type=float, metavar="N", help="Maximum mean staleness."),
        whole_option("--max-workers", "Maximum number of workers."),
        whole_option("--max-global-batch-size", "Maximum samples per update."),
    )
)


def _names(flag: str, text: str, kind: types.Text = types.TEXT) -> Decorator:
    """An option that is a list of names."""
    return click.option(flag, type=Several(kind, always=True), help=text)


def _numbers(flag: str, text: str) -> Decorator:
    """An option that is a list of numbers."""
    kind = Several(types.WHOLE, always=True)
    return click.option(flag, type=kind, help=text)


_space = all_of(
    (
        click.option("--instances", type=types.INPUT, help="Your own catalogue of instances."),
        _names("--instance", "Instance types to choose from.  [default: all]"),
        _names(
            "--server-instances",
            "Instance types for servers on separate machines.  [default: none]",
        ),
        click.option(
            "--region", metavar="NAME", help="Region of the prices.  [default: the cheapest]"
        ),
        click.option("--spot", is_flag=True, help="Use spot prices instead of on-demand prices."),
        _names("--arch", f"Architectures to try.  [default: {ARCHITECTURES}]", types.ARCHITECTURE),
        click.option(
            "--option",
            "options",
            type=OptionOf("arch", ARCHITECTURES),
            multiple=True,
            help="Any option of the architectures that have it; repeatable.",
        ),
        _numbers("--workers", "Numbers of workers.  [default: whole nodes, up to 256 workers]"),
        _numbers("--servers", "Parameter servers.  [default: 1,4,16]"),
        _numbers("--batch-size", "Samples per worker and step.  [default: 32,64,128,256,512]"),
        _names(
            "--precision",
            "float32, tf32 or mixed.  [default: the first of the profile]",
            types.PRECISION,
        ),
        click.option("--jitter", type=types.JITTER, metavar="0.1", help="As in perfmodel predict."),
        whole_option("--seed", "Random seed."),
    )
)


@click.command()
@click.option("--model", type=types.MODEL, help="Model from the catalogue.")
@click.option("--workload", type=types.INPUT, help="Workload file instead of --model.")
@click.option(
    "--objective",
    type=types.Words(["cost", "time", "throughput", "samples-per-usd"]),
    default="cost",
    help="What to optimise.  [default: cost]",
)
@training_options
@_limits
@_space
@whole_option("--top", "Candidates to list.", default=10, show_default=True)
@fidelity_option("auto", "auto", "coarse")
@executor_options
@outputs("csv", "parquet", "json", "plot", "report")
def plan(
    instances: str | None,
    options: tuple[str, ...],
    processes: int | None,
    dask: str | None,
    out: Outputs,
    **values: Any,
) -> None:
    """Formulas evaluate the whole space, and the best candidates are simulated. Prices are from the
    catalogue, each with its date.

    \b
    perfmodel plan --model resnet50 --dataset-size 1281167 --epochs 90 --objective cost --deadline 24h
    """  # noqa: E501
    out.check()
    from perfmodel.planning.decision import plan as choose
    from perfmodel.planning.search import PlanLimits
    from perfmodel.sweeping import executors

    limits = PlanLimits(**{name: values.pop(name) for name in PlanLimits.__struct_fields__})
    arguments = {name: value for name, value in values.items() if value is not None}
    with executors.opened(processes, dask) as executor, progress() as advance:
        result = choose(
            **arguments,
            options=option_values(options, lists=True),
            catalogue_file=instances,
            limits=limits,
            executor=executor,
            progress=advance,
        )
    if out.put(result):
        from perfmodel.cli.printing import plan as report

        report.plan(result)
