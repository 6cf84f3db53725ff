"""Options that describe a job and how it is predicted, and what the commands make of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from perfmodel.base.errors import InputError
from perfmodel.cli.options import (
    Command,
    Reader,
    all_of,
    items,
    list_of,
    one,
    read_fraction,
    read_jitter,
    read_number,
    read_quantity,
    read_stragglers,
    read_text,
    read_whole,
)


def job_options(*, lists: bool = False, jobs: bool = False) -> Callable[[Command], Command]:
    """The options that describe a job.

    With ``lists`` those that name a value take several; with ``jobs`` there may be several --job.
    """

    def value(
        flag: str, read: Reader, metavar: str, help: str, *, ranges: bool = False
    ) -> Callable[[Command], Command]:
        callback = list_of(read, ranges=ranges) if lists else one(read)
        return click.option(
            flag, callback=callback, metavar=f"{metavar},..." if lists else metavar, help=help
        )

    def whole(flag: str, help: str) -> Callable[[Command], Command]:
        return value(flag, read_whole, "N", help, ranges=True)

    job = "Job file; the flags below override what it says."
    described = (
        click.option("--job", metavar="FILE", multiple=jobs, help=job + " Repeatable." * jobs),
        value("--model", read_text, "NAME", "Model of the catalogue (see: perfmodel list models)."),
        value("--workload", read_text, "FILE", "Workload file, instead of --model."),
        value("--device", read_text, "NAME", "Device the workload's times are for."),
        value(
            "--precision", read_text, "NAME", "float32, tf32 or mixed, where the profile has it."
        ),
        whole("--batch-size", "Samples per worker and iteration."),
        whole("--global-batch-size", "Samples of all workers together."),
        value("--cluster", read_text, "NAME|FILE", "Cluster of the catalogue, or a file."),
        value("--bandwidth", read_quantity("bytes_per_s"), "10Gbps", "Of every link."),
        value("--latency", read_quantity("s"), "50us", "One way, of every link."),
        whole("--workers", "[default: 1]"),
        value("--arch", read_text, "NAME", "Architecture (perfmodel list).  [default: ps]"),
        whole("--servers", "Parameter servers.  [default: 1]"),
        value("--sync", read_text, "bsp|asp|ssp", "How the parameter server synchronises."),
        value(
            "--staleness-bound",
            read_text,
            "S",
            "Iterations a worker may be ahead (ssp); inf: any.",
            ranges=True,
        ),
        click.option(
            "--overlap/--no-overlap", default=None, help="Communicate during computation."
        ),
        click.option(
            "--option",
            "options",
            multiple=True,
            metavar="KEY=VALUE,..." if lists else "KEY=VALUE",
            help="Any option of the architecture (perfmodel show ARCH); repeatable.",
        ),
        value(
            "--jitter",
            read_jitter,
            "0.1|gamma:0.1|measured",
            "Random spread of compute per worker and iteration.",
            ranges=True,
        ),
        click.option(
            "--straggler",
            "stragglers",
            multiple=True,
            metavar="WORKER:FACTOR",
            callback=read_stragglers,
            help="A worker that computes FACTOR times as long; repeatable.",
        ),
        click.option(
            "--start",
            type=click.Choice(["together", "staggered"]),
            help="Workers begin at once or at random offsets.",
        ),
        whole("--seed", "Of everything random.  [default: 0]"),
    )

    return all_of(described)


def model_options(default: str, *more: str) -> Callable[[Command], Command]:
    """The options that say how a job is predicted."""
    kinds = ["fine", "coarse", *more, "auto"]
    described = (
        click.option(
            "--fidelity",
            type=click.Choice(kinds),
            default=default,
            help="Simulate every operation (fine), or add up phases (coarse); auto: coarse where "
            f"its error is within --tolerance.  [default: {default}]",
        ),
        click.option(
            "--tolerance",
            metavar="5%",
            callback=one(read_fraction),
            help="Error that auto accepts in 9 of 10 jobs, of the iteration.  [default: 5%]",
        ),
        click.option(
            "--rel-ci",
            metavar="1%",
            callback=one(read_fraction),
            help="Simulate a random job until its 95 % confidence interval is this narrow.  "
            "[default: 1%]",
        ),
        click.option(
            "--max-ops",
            metavar="5e7",
            callback=one(read_number),
            help="Refuse simulations of more operations than this.  [default: 5e7, some 50 s]",
        ),
    )

    return all_of(described)


def job_arguments(
    given: dict[str, Any], path: str | None, *, lists: bool = False
) -> dict[str, Any]:
    """Arguments of make_job, or of a sweep: those of the job file, then whatever flags were given.

    Either may have ``global_batch_size`` in the place of ``batch_size``.
    """
    from perfmodel.inputs.job import read_job

    arguments = read_job(path) if path is not None else {}
    options = architecture_options(given, lists=lists)
    for flag, name in (("bandwidth", "bandwidth_bytes_per_s"), ("latency", "latency_s")):
        given[name] = given.pop(flag)
    for name, other in (
        *(("model", "workload"), ("workload", "model")),
        ("global_batch_size", "batch_size"),
    ):
        if given[name] is not None and given[other] is None:
            arguments.pop(other, None)
    if given["batch_size"] is not None and given["global_batch_size"] is not None:
        raise InputError("--batch-size and --global-batch-size: give one of them")
    arguments |= {name: value for name, value in given.items() if value not in (None, ())}
    return {**arguments, "options": {**arguments.get("options", {}), **options}}


def architecture_options(given: dict[str, Any], *, lists: bool) -> dict[str, Any]:
    """The architecture's options from --option and from the flags that stand for one."""
    options: dict[str, Any] = {}
    for text in given.pop("options"):
        key, equals, value = text.partition("=")
        if not equals:
            raise InputError(f"--option: expected KEY=VALUE, got {text!r}")
        if key in options:
            raise InputError(f"--option: {key} is given twice")
        options[key] = items(value, f"--option {key}") if lists else value
    for flag in ("servers", "sync", "staleness_bound", "overlap"):
        value = given.pop(flag)
        if value is not None:
            if flag in options:
                dashed = flag.replace("_", "-")
                raise InputError(f"--{dashed} and --option {flag}: give one of them")
            options[flag] = value
    return options


def asked_for(given: dict[str, Any]) -> dict[str, Any]:
    """Takes out of ``given`` how to predict, as arguments of predict, without what is not given."""
    asked = {name: given.pop(name) for name in ("fidelity", "tolerance", "rel_ci", "max_ops")}
    if asked["tolerance"] is not None and asked["fidelity"] != "auto":
        raise InputError("--tolerance: needs --fidelity auto")
    return {name: value for name, value in asked.items() if value is not None}
