"""Options that describe a job and how it is predicted, and the arguments made of them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import click

from perfmodel.base.errors import InputError
from perfmodel.cli import config
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
    read_speed,
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
    one_device_speed: Any
    step_time: Any
    one_device_batch_size: Any
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
    configured: frozenset[str] = frozenset()
    """Names of the flags whose values are from the configuration file."""

    def arguments(self, path: str | None, *, lists: bool = False) -> dict[str, Any]:
        """Arguments of make_job, or of a sweep: of the flags, the job file, the configuration.

        The first that has a value counts. ``global_batch_size`` may take the place of
        ``batch_size``.

        Raises
        ------
        InputError : a file that cannot be read; flags that contradict each other.
        """
        from perfmodel.inputs.job import read_job

        job = read_job(path) if path is not None else {}
        given = _over(job, self.typed()._own(lists))
        if not self.configured:
            config.tell()
            return given
        defaults = self._without(set(OF_THE_JOB + OF_OPTIONS) - self.configured)._own(lists)
        arch = given.get("arch") or defaults.get("arch") or "ps"
        defaults["options"] = _applying(defaults["options"], arch)
        merged = _over(defaults, given)
        config.tell(lambda name, word: _acts(name, word, defaults, given, merged))
        return merged

    def typed(self) -> JobFlags:
        """The flags of the command line, without those of the configuration."""
        return self._without(self.configured)

    def _without(self, names: Iterable[str]) -> JobFlags:
        nothing: dict[str, Any] = {
            name: () if isinstance(getattr(self, name), tuple) else None for name in names
        }
        return self._replace(**nothing)

    def _own(self, lists: bool) -> dict[str, Any]:
        """Arguments of the flags alone."""
        if self.batch_size is not None and self.global_batch_size is not None:
            raise InputError("--batch-size and --global-batch-size: give one of them")
        if self.one_device_speed is not None and self.step_time is not None:
            raise InputError("--one-device-speed and --step-time: give one of them")
        flags = {ARGUMENTS.get(name, name): getattr(self, name) for name in OF_THE_JOB}
        arguments = {name: value for name, value in flags.items() if value not in (None, ())}
        inside = option_values(self.island_options, flag="--island-option")
        return {
            **arguments,
            **({"island_options": inside} if inside else {}),
            "options": self._options(lists),
        }

    def _options(self, lists: bool) -> dict[str, Any]:
        """The architecture's options, from --option and from flags for single options."""
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
"""Flags for single options of the architecture."""

OF_THE_JOB = tuple(
    name
    for name in JobFlags._fields
    if name not in ("job", "options", "island_options", "configured", *OPTION_FLAGS)
)
"""Flags for arguments of make_job."""

OF_OPTIONS = ("options", "island_options", *OPTION_FLAGS)
"""Flags of options."""

ARGUMENTS = {
    "bandwidth": "bandwidth_bytes_per_s",
    "latency": "latency_s",
    "one_device_speed": "one_device_samples_per_s",
    "step_time": "one_device_step_s",
}
"""Arguments whose names differ from their flags."""


def _over(lower: dict[str, Any], upper: dict[str, Any]) -> dict[str, Any]:
    """Arguments with those of ``upper`` in place of their own, and of their rivals."""
    kept = {name: v for name, v in lower.items() if config.RIVALS.get(name) not in upper}
    merged = {**kept, **upper}
    for name in ("options", "island_options"):
        if name in kept and name in upper:
            merged[name] = {**kept[name], **upper[name]}
    return merged


def _applying(options: dict[str, Any], arch: Any) -> dict[str, Any]:
    """Configured options that an architecture has, and that its name does not settle.

    Of several architectures (a list) all remain: a sweep leaves out what does not apply.

    Raises
    ------
    InputError : an option that no architecture has.
    """
    if not options:
        return {}
    from perfmodel.architectures import registry
    from perfmodel.base.errors import unknown_name
    from perfmodel.inputs.options import described

    known = {each.name for a in registry.all_architectures() for each in described(a.options)}
    for name in options:
        if name not in known:
            raise unknown_name("option", name, known)
    if not isinstance(arch, str):
        return options
    architecture, settled = registry.find(arch)
    has = {each.name for each in described(architecture.options)} - set(settled)
    return {name: value for name, value in options.items() if name in has}


def _acts(
    name: str, word: str, defaults: dict[str, Any], given: dict[str, Any], merged: dict[str, Any]
) -> bool:
    """Whether a configured value is one of the merged arguments."""
    if name in OF_OPTIONS:
        where = "island_options" if name == "island_options" else "options"
        key = name if name in OPTION_FLAGS else word.split(" ", 1)[1].strip("'").partition("=")[0]
        return key in defaults.get(where, {}) and key not in given.get(where, {})
    argument = ARGUMENTS.get(name, name)
    return name not in OF_THE_JOB or (argument in merged and argument not in given)


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
    """Pass some of a command's values as one argument ``name``, a ``kind`` of named tuple."""

    def around(command: Command) -> Command:
        @functools.wraps(command)
        def run(**given: Any) -> Any:
            values = {field: given.pop(field) for field in kind._fields if field in given}
            if "configured" in kind._fields:
                values["configured"] = config.configured(click.get_current_context(), values)
            return command(**given, **{name: kind(**values)})

        return run

    return around


CHECKPOINTING = click.option(
    "--activation-checkpointing/--no-activation-checkpointing",
    default=None,
    help="Keep only the input of each block, and recompute the rest in the backward pass.",
)


def job_options(*, lists: bool = False, jobs: bool = False) -> Callable[[Command], Command]:
    """Add the options that describe a job; the command gets them as ``flags``.

    With ``lists``, options with a value take several; with ``jobs``, --job is repeatable.
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

    job = "Job file; the flags below override it."
    described = (
        click.option("--job", metavar="FILE", multiple=jobs, help=job + " Repeatable." * jobs),
        value("--model", read_text, "NAME", "Model from the catalogue (perfmodel list models)."),
        value("--workload", read_text, "FILE", "Workload file instead of --model."),
        value("--device", read_text, "NAME", "Device that the compute times are for."),
        value("--precision", read_text, "NAME", "float32, tf32 or mixed, if the profile has it."),
        whole("--batch-size", "Samples per worker and iteration."),
        whole("--global-batch-size", "Samples per iteration over all workers."),
        whole("--sequence-length", "Tokens per sample (language models)."),
        CHECKPOINTING,
        whole("--accumulation", "Passes per update, which split the batch.  [default: as timed]"),
        *_one_device_options(value, whole),
        value("--cluster", read_text, "NAME|FILE", "Cluster from the catalogue, or a file."),
        value("--bandwidth", read_quantity("bytes_per_s"), "10Gbps", "Bandwidth of every link."),
        value("--latency", read_quantity("s"), "50us", "One-way latency of every link."),
        whole("--workers", "Number of workers.  [default: 1]"),
        value("--arch", read_text, "NAME", "Architecture (perfmodel list).  [default: ps]"),
        whole("--servers", "Parameter servers.  [default: 1]"),
        value("--sync", read_text, "bsp|asp|ssp", "How the parameter server synchronises workers."),
        value(
            "--staleness-bound",
            read_text,
            "S",
            "Iterations a worker may run ahead (ssp); inf: no bound.",
            ranges=True,
        ),
        click.option(
            "--overlap/--no-overlap", default=None, help="Overlap communication with computation."
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
            "Random variation of compute times, per worker and iteration.",
            ranges=True,
        ),
        click.option(
            "--straggler",
            "stragglers",
            multiple=True,
            metavar="WORKER:FACTOR",
            callback=read_stragglers,
            help="Worker that computes FACTOR times as long; repeatable.",
        ),
        click.option(
            "--start",
            type=click.Choice(["together", "staggered"]),
            help="Start workers together or at random offsets.",
        ),
        whole("--seed", "Random seed.  [default: 0]"),
    )

    return all_of((*described, gathered("flags", JobFlags)))


def _one_device_options(value: Callable[..., Any], whole: Callable[..., Any]) -> tuple[Any, ...]:
    """Options for the measured speed of one device; ``value`` and ``whole`` make an option."""
    return (
        value(
            "--one-device-speed",
            read_speed,
            "171|'12000 tokens/s'",
            "Your measured speed of one device, in samples/s: compute times are scaled to it.",
            ranges=True,
        ),
        value(
            "--step-time",
            read_quantity("s"),
            "187ms",
            "Your measured time of one update on one device, instead of --one-device-speed.",
        ),
        whole(
            "--one-device-batch-size",
            "Batch size of that measurement.  [default: that of the job]",
        ),
    )


def _island_options(value: Callable[..., Any]) -> tuple[Any, ...]:
    """Options of workers that are groups of devices; ``value`` makes an option with a value."""
    return (
        value(
            "--island-devices",
            read_count,
            "N|N+N",
            "Make each worker a group of N devices; 8+8+4: unequal groups.",
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
            "Architecture inside a group.  [default: allreduce]",
        ),
        click.option(
            "--island-option",
            "island_options",
            multiple=True,
            metavar="KEY=VALUE",
            help="Any option of the architecture inside a group; repeatable.",
        ),
    )


def model_options(default: str, *more: str) -> Callable[[Command], Command]:
    """Add the options that say how a job is predicted; the command gets them as ``how``."""
    kinds = ["fine", "coarse", *more, "auto"]
    described = (
        click.option(
            "--fidelity",
            type=click.Choice(kinds),
            default=default,
            help="Simulate every operation (fine) or use formulas (coarse); auto: formulas where "
            f"their error is within --tolerance.  [default: {default}]",
        ),
        click.option(
            "--tolerance",
            metavar="5%",
            callback=one(read_fraction),
            help="Iteration-time error that auto accepts in 9 of 10 jobs.  [default: 5%]",
        ),
        click.option(
            "--rel-ci",
            metavar="1%",
            callback=one(read_fraction),
            help="Simulate random jobs until the 95 % confidence interval is this narrow.  "
            "[default: 1%]",
        ),
        click.option(
            "--max-ops",
            metavar="5e7",
            callback=one(read_number),
            help="Refuse simulations of more operations than this.  [default: 5e7, about 50 s]",
        ),
    )

    return all_of((*described, gathered("how", ModelFlags)))


def option_values(
    texts: Iterable[str], *, lists: bool = False, flag: str = "--option"
) -> dict[str, Any]:
    """Options of the architecture from KEY=VALUE; with ``lists``, a value may be a list.

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
