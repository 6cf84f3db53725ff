"""Options that describe a job and how it is predicted, and the arguments made of them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import click

from perfmodel.base.errors import InputError
from perfmodel.cli.options import (
    Command,
    Reader,
    all_of,
    items,
    list_of,
    one,
    read_count,
    read_fraction,
    read_jitter,
    read_number,
    read_quantity,
    read_stragglers,
    read_text,
    read_whole,
)


class JobFlags(NamedTuple):
    """The flags that describe a job; None, or empty, where a flag was not given.

    With lists a value may be a list of values.
    """

    job: Any
    model: Any
    workload: Any
    device: Any
    precision: Any
    batch_size: Any
    global_batch_size: Any
    sequence_length: Any
    activation_checkpointing: bool | None
    accumulation: Any
    cluster: Any
    bandwidth: Any
    latency: Any
    workers: Any
    arch: Any
    servers: Any
    sync: Any
    staleness_bound: Any
    overlap: bool | None
    options: tuple[str, ...]
    island_devices: Any
    island_steps: Any
    island_arch: Any
    island_options: tuple[str, ...]
    jitter: Any
    stragglers: Any
    start: str | None
    seed: Any

    def arguments(self, path: str | None, *, lists: bool = False) -> dict[str, Any]:
        """Arguments of make_job, or of a sweep: those of the job file, then the flags.

        Either may have ``global_batch_size`` instead of ``batch_size``.

        Raises
        ------
        InputError : a file that cannot be read; flags that contradict each other.
        """
        from perfmodel.inputs.job import read_job

        if self.batch_size is not None and self.global_batch_size is not None:
            raise InputError("--batch-size and --global-batch-size: give one of them")
        arguments = read_job(path) if path is not None else {}
        for name, other in REPLACED.items():
            if getattr(self, name) is not None and getattr(self, other) is None:
                arguments.pop(other, None)
        flags = {ARGUMENTS.get(name, name): getattr(self, name) for name in OF_THE_JOB}
        arguments |= {name: value for name, value in flags.items() if value not in (None, ())}
        inside = option_values(self.island_options, flag="--island-option")
        if inside:
            arguments["island_options"] = {**arguments.get("island_options", {}), **inside}
        return {**arguments, "options": {**arguments.get("options", {}), **self._options(lists)}}

    def _options(self, lists: bool) -> dict[str, Any]:
        """The architecture's options, from --option and from the flags that stand for one."""
        found = option_values(self.options, lists=lists)
        for name in OPTION_FLAGS:
            value = getattr(self, name)
            if value is not None:
                if name in found:
                    dashed = name.replace("_", "-")
                    raise InputError(f"--{dashed} and --option {name}: give one of them")
                found[name] = value
        return found


OPTION_FLAGS = ("servers", "sync", "staleness_bound", "overlap")
"""Flags that stand for an option of the architecture."""

OF_THE_JOB = tuple(
    name
    for name in JobFlags._fields
    if name not in ("job", "options", "island_options", *OPTION_FLAGS)
)
"""Flags that stand for an argument of make_job."""

ARGUMENTS = {"bandwidth": "bandwidth_bytes_per_s", "latency": "latency_s"}
"""Arguments that are called differently from their flags."""

REPLACED = {"model": "workload", "workload": "model", "global_batch_size": "batch_size"}
"""The entry of a job file that a flag overrides, besides that of its own name."""


class ModelFlags(NamedTuple):
    """The flags that say how a job is predicted; None where a flag was not given."""

    fidelity: str
    tolerance: float | None
    rel_ci: float | None
    max_ops: float | None

    def arguments(self) -> dict[str, Any]:
        """Arguments of predict.

        Raises
        ------
        InputError : a tolerance for a fidelity that has none.
        """
        if self.tolerance is not None and self.fidelity != "auto":
            raise InputError("--tolerance: needs --fidelity auto")
        given = self._asdict()
        return {name: value for name, value in given.items() if value is not None}


def gathered(name: str, kind: Any) -> Callable[[Command], Command]:
    """Give a command some of its values as one argument ``name``, a ``kind`` of tuple."""

    def around(command: Command) -> Command:
        @functools.wraps(command)
        def run(**given: Any) -> Any:
            values = {field: given.pop(field) for field in kind._fields}
            return command(**given, **{name: kind(**values)})

        return run

    return around


CHECKPOINTING = click.option(
    "--activation-checkpointing/--no-activation-checkpointing",
    default=None,
    help="Blocks keep their inputs only, and compute the rest again in backward.",
)


def job_options(*, lists: bool = False, jobs: bool = False) -> Callable[[Command], Command]:
    """The options that describe a job, which the command gets as ``flags``.

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
        whole("--sequence-length", "Tokens of a sample (language models)."),
        CHECKPOINTING,
        whole("--accumulation", "Passes before one update, which share the batch.  [default: 1]"),
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
        *_island_options(value),
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

    return all_of((*described, gathered("flags", JobFlags)))


def _island_options(value: Callable[..., Any]) -> tuple[Any, ...]:
    """Those of workers that are groups of devices; ``value`` makes an option with a value."""
    return (
        value(
            "--island-devices",
            read_count,
            "N|N+N",
            "A worker is a group of N devices; 8+8+4: unequal groups.",
        ),
        value(
            "--island-steps",
            read_count,
            "H|equal:H",
            "Steps of each group between two exchanges; equal: slower groups do fewer.",
        ),
        value(
            "--island-arch",
            read_text,
            "NAME",
            "Architecture inside such a group.  [default: allreduce]",
        ),
        click.option(
            "--island-option",
            "island_options",
            multiple=True,
            metavar="KEY=VALUE",
            help="Any option of the architecture inside; repeatable.",
        ),
    )


def model_options(default: str, *more: str) -> Callable[[Command], Command]:
    """The options that say how a job is predicted, which the command gets as ``how``."""
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

    return all_of((*described, gathered("how", ModelFlags)))


def option_values(
    texts: Iterable[str], *, lists: bool = False, flag: str = "--option"
) -> dict[str, Any]:
    """Options of the architecture from KEY=VALUE; with ``lists`` a value may be several.

    Raises
    ------
    InputError : no equals sign, or a key that is given twice.
    """
    found: dict[str, Any] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals:
            raise InputError(f"{flag}: expected KEY=VALUE, got {text!r}")
        if key in found:
            raise InputError(f"{flag}: {key} is given twice")
        found[key] = items(value, f"{flag} {key}") if lists else value
    return found
