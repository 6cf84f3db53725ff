"""Options that describe a job and how it is predicted, and the arguments made of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import click
from click.core import ParameterSource

from perfmodel.base.errors import InputError
from perfmodel.cli import types
from perfmodel.cli.options import Decorator, all_of, gathered, items
from perfmodel.cli.types import OptionOf, Several, Words

OPTION_FLAGS = ("servers", "sync", "staleness_bound", "overlap")
"""Flags for single options of the architecture."""

OF_THE_JOB = (
    *("model", "workload", "device", "precision", "batch_size", "global_batch_size"),
    *("sequence_length", "activation_checkpointing", "accumulation", "recomputation"),
    *("optimizer", "precision_policy", "lora", "offload_optimizer"),
    *("one_device_speed", "step_time", "one_device_batch_size"),
    *("cluster", "bandwidth", "latency", "workers", "arch", "jitter", "stragglers", "seed"),
    *("island_devices", "island_steps", "island_arch"),
)
"""Flags for arguments of make_job."""

JOB_FLAGS = ("job", *OF_THE_JOB, "options", "island_options", *OPTION_FLAGS)
"""Flags that describe a job."""

ARGUMENTS = {
    "bandwidth": "bandwidth_bytes_per_s",
    "latency": "latency_s",
    "one_device_speed": "one_device_samples_per_s",
    "step_time": "one_device_step_s",
}
"""Arguments whose names differ from their flags."""

RIVALS = {"model": "workload", "batch_size": "global_batch_size", "one_device_speed": "step_time"}
"""Flags of which only one can be given: on the command line it replaces the other as well."""

RIVALS |= {other: name for name, other in RIVALS.items()}

RIVAL_ARGUMENTS = {
    ARGUMENTS.get(name, name): ARGUMENTS.get(other, other) for name, other in RIVALS.items()
}
"""Arguments of which only one can be given."""


class JobFlags(NamedTuple):
    """The flags that describe a job, by their names; with lists a value may be a list."""

    typed: dict[str, Any]
    """Those of the command line."""

    configured: dict[str, Any]
    """Those of the configuration file."""

    @property
    def job(self) -> Any:
        """The job file, or files; None if there is none."""
        return self.typed.get("job", self.configured.get("job"))

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
        typed = _over(job, _arguments(self.typed, lists))
        if not self.configured:
            return typed
        defaults = _arguments(self.configured, lists)
        arch = typed.get("arch") or defaults.get("arch") or "ps"
        defaults["options"] = _applying(defaults["options"], arch)
        return _over(defaults, typed)


def _arguments(flags: dict[str, Any], lists: bool) -> dict[str, Any]:
    """Arguments of some flags alone, with the options of the architecture as one of them."""
    for name, other in RIVALS.items():
        if name in flags and other in flags and name != "workload" != other:
            first, second = (f"--{each.replace('_', '-')}" for each in (name, other))
            raise InputError(f"{first} and {second}: give one of them")
    arguments = {ARGUMENTS.get(name, name): flags[name] for name in OF_THE_JOB if name in flags}
    inside = option_values(flags.get("island_options", ()), flag="--island-option")
    if inside:
        arguments["island_options"] = inside
    options = option_values(flags.get("options", ()), lists=lists)
    for name in OPTION_FLAGS:
        if name in flags:
            if name in options:
                dashed = name.replace("_", "-")
                raise InputError(f"--{dashed} and --option {name}: give one of them")
            options[name] = flags[name]
    return {**arguments, "options": options}


def _over(lower: dict[str, Any], upper: dict[str, Any]) -> dict[str, Any]:
    """Arguments with those of ``upper`` in place of their own, and of their rivals."""
    kept = {name: v for name, v in lower.items() if RIVAL_ARGUMENTS.get(name) not in upper}
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


class ModelFlags(NamedTuple):
    """The flags that say how a job is predicted; None where a flag was not given."""

    fidelity: str
    tolerance: float | None
    rel_ci: float | None
    max_ops: float | None

    def arguments(self) -> dict[str, Any]:
        """Arguments of predict; without a configured tolerance where the fidelity has none.

        Raises
        ------
        InputError : a tolerance for a fidelity that has none.
        """
        typed = {name: value for name, value in self._asdict().items() if value is not None}
        if "tolerance" in typed and self.fidelity != "auto":
            if not configured("tolerance"):
                raise InputError("--tolerance: needs --fidelity auto")
            del typed["tolerance"]
        return typed


def configured(name: str) -> bool:
    """Whether a parameter of the running command has its value from the configuration file."""
    source = click.get_current_context().get_parameter_source(name)
    return source is ParameterSource.DEFAULT_MAP


def _job_flags(**values: Any) -> JobFlags:
    """Values of the flags of a job, by where they are from."""
    values = {name: value for name, value in values.items() if value not in (None, ())}
    below = {name: values.pop(name) for name in list(values) if configured(name)}
    return JobFlags(values, below)


def _switch(flag: str, text: str) -> Decorator:
    """An option that turns something on, or off with no-."""
    return click.option(f"--{flag}/--no-{flag}", default=None, help=text)


def _repeatable(flag: str, name: str, kind: types.Text, text: str) -> Decorator:
    return click.option(flag, name, type=kind, multiple=True, help=f"{text}; repeatable.")


JOB_OPTIONS: tuple[Decorator | tuple[str, types.Text | types.File, str], ...] = (
    ("--model", types.MODEL, "Model from the catalogue (perfmodel list models)."),
    ("--workload", types.INPUT, "Workload file instead of --model."),
    ("--device", types.DEVICE, "Device that the compute times are for."),
    (
        "--precision",
        types.PRECISION,
        "float32, tf32 or mixed, if the profile has it.  [default: its first]",
    ),
    (
        "--batch-size",
        types.WHOLE,
        "Samples per worker and iteration.  [default: the profile's largest]",
    ),
    ("--global-batch-size", types.WHOLE, "Samples per iteration over all workers."),
    ("--sequence-length", types.WHOLE, "Tokens per sample (language models)."),
    _switch(
        "activation-checkpointing",
        "Keep only the input of each block, and recompute the rest in the backward pass.",
    ),
    (
        "--accumulation",
        types.WHOLE,
        "Passes per update, which split the batch.  [default: as timed]",
    ),
    (
        "--recomputation",
        types.RECOMPUTATION,
        "What backward computes again: none, selective (attention), selective:products, "
        "selective:N (every Nth block) or full.",
    ),
    ("--optimizer", types.OPTIMIZER, "Optimizer, for its memory.  [default: as in the profile]"),
    (
        "--precision-policy",
        types.POLICY,
        "How parameters and gradients are stored.  [default: amp with 16 bits, else fp32]",
    ),
    (
        "--lora",
        types.LORA,
        "Train adapters of this rank: RANK, RANK:TARGETS or RANK:TARGETS:BITS of frozen weights.",
    ),
    _switch("offload-optimizer", "Keep optimizer states and master copies in the host's memory."),
    (
        "--one-device-speed",
        types.SPEED,
        "Your measured speed of one device, in samples/s: compute times are scaled to it.",
    ),
    (
        "--step-time",
        types.time("187ms"),
        "Your measured time of one update on one device, instead of --one-device-speed.",
    ),
    (
        "--one-device-batch-size",
        types.WHOLE,
        "Batch size of that measurement.  [default: that of the job]",
    ),
    ("--cluster", types.CLUSTER, "Cluster from the catalogue, or a file."),
    ("--bandwidth", types.RATE, "Bandwidth of every link, in each direction."),
    ("--latency", types.time("50us"), "One-way latency of every link."),
    ("--workers", types.WHOLE, "Number of workers.  [default: 1]"),
    ("--arch", types.ARCHITECTURE, "Architecture (perfmodel list).  [default: ps]"),
    ("--servers", types.WHOLE, "Parameter servers.  [default: 1]"),
    ("--sync", types.SYNC, "How a parameter server synchronises workers."),
    ("--staleness-bound", types.BOUND, "Iterations a worker may run ahead (ssp); inf: no bound."),
    _switch("overlap", "Overlap communication with computation."),
    _repeatable(
        "--option",
        "options",
        OptionOf("arch", "ps"),
        "Any option of the architecture (perfmodel show ARCH)",
    ),
    (
        "--island-devices",
        types.count("N|N+N"),
        "Make each worker a group of N devices; 8+8+4: unequal groups.",
    ),
    (
        "--island-steps",
        types.count("H|equal:H"),
        "Steps of each group between two exchanges; equal: slower groups do fewer.",
    ),
    ("--island-arch", types.ARCHITECTURE, "Architecture inside a group.  [default: allreduce]"),
    _repeatable(
        "--island-option",
        "island_options",
        OptionOf("island_arch", "allreduce"),
        "Any option of the architecture inside a group",
    ),
    (
        "--jitter",
        types.JITTER,
        "Random variation of compute times, per worker and iteration; 0.1:op: per operation.",
    ),
    _repeatable(
        "--straggler", "stragglers", types.STRAGGLER, "Worker that computes FACTOR times as long"
    ),
    ("--seed", types.WHOLE, "Random seed.  [default: 0]"),
)
"""Options that describe a job; those of a flag, a type and a text may take lists."""


def job_options(*, lists: bool = False, jobs: bool = False) -> Decorator:
    """Add the options that describe a job; the command gets them as ``flags``.

    With ``lists``, options with a value take several; with ``jobs``, --job is repeatable.
    """
    text = f"Job file; the flags below override it.{' Repeatable.' * jobs}"
    described: list[Decorator] = [click.option("--job", type=types.INPUT, multiple=jobs, help=text)]
    for each in JOB_OPTIONS:
        if isinstance(each, tuple):
            flag, kind, text = each
            each = click.option(flag, type=Several(kind) if lists else kind, help=text)
        described.append(each)
    return all_of((*described, gathered("flags", JOB_FLAGS, _job_flags)))


FIDELITIES = {
    "fine": "fine: simulate every operation",
    "coarse": "coarse: use formulas",
    "auto": "auto: formulas where their error is within --tolerance",
    "both": "both: side by side",
}
"""How a job can be predicted, and what that means."""


def fidelity_option(default: str, *names: str) -> Decorator:
    """How jobs are predicted: one of :data:`FIDELITIES`."""
    meaning = "; ".join(FIDELITIES[name] for name in names)
    return click.option(
        "--fidelity", type=Words(names), default=default, help=f"{meaning}.  [default: {default}]"
    )


def model_options(default: str, *more: str) -> Decorator:
    """Add the options that say how a job is predicted; the command gets them as ``how``."""
    described = (
        fidelity_option(default, "fine", "coarse", "auto", *more),
        click.option(
            "--tolerance",
            type=types.FRACTION,
            help="Iteration-time error that auto accepts in 9 of 10 jobs.  [default: 5%]",
        ),
        click.option(
            "--rel-ci",
            type=types.FRACTION,
            metavar="1%",
            help="Simulate random jobs until the 95 % confidence interval is this narrow.  "
            "[default: 1%]",
        ),
        click.option(
            "--max-ops",
            type=types.NUMBER,
            metavar="5e7",
            help="Refuse simulations of more operations than this; inf: none.  "
            "[default: 5e7, about 50 s]",
        ),
    )
    return all_of((*described, gathered("how", ModelFlags._fields, ModelFlags)))


def option_values(
    texts: Iterable[str], *, lists: bool = False, flag: str = "--option"
) -> dict[str, Any]:
    """Options of the architecture from KEY=VALUE; with ``lists``, a value may be a list.

    Raises
    ------
    InputError : no equals sign, or a key that is given twice.
    """
    options: dict[str, Any] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals:
            raise InputError(f"{flag}: expected KEY=VALUE, got {text!r}")
        if key in options:
            raise InputError(f"{flag}: {key} is given twice")
        options[key] = items(value, f"{flag} {key}") if lists else value
    return options
