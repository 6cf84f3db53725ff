"""Options that describe a job and how it is predicted, and the arguments made of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple, cast

import click
from click.core import ParameterSource

from perfmodel.base.errors import InputError, unknown_name
from perfmodel.cli import types
from perfmodel.cli.options import (
    FAILURES,
    Arguments,
    Decorator,
    all_of,
    gathered,
    option,
    source_of,
)
from perfmodel.cli.types import OptionOf, Several, Words

if TYPE_CHECKING:
    from perfmodel.api import PredictArguments

JOB_OPTIONS: tuple[tuple[str, types.Text | types.File | None, str], ...] = (
    ("--model", types.MODEL, "Model from the catalogue (perfmodel list models)."),
    ("--workload", types.INPUT, "Workload file instead of --model."),
    ("--device", types.DEVICE, "Device that computes (perfmodel list devices)."),
    (
        "--precision",
        types.PRECISION,
        "Of the computation; mixed is bf16 or fp16, too.  [default: the profile's first]",
    ),
    ("--batch-size", types.WHOLE, "Samples per worker.  [default: the profile's largest]"),
    ("--global-batch-size", types.WHOLE, "Samples per iteration over all workers."),
    ("--sequence-length", types.WHOLE, "Tokens per sample (language models)."),
    ("--document-length", types.NUMBER, "Mean tokens of documents that sequences are packed from."),
    ("--document-spread", types.NUMBER, "Standard deviation of these over the mean.  [default: 1]"),
    ("--document-lengths", types.INPUT, "File of their lengths, one a line, instead of these two."),
    ("--activation-checkpointing", None, "Recompute blocks in the backward pass from their input."),
    ("--accumulation", types.WHOLE, "Passes per update, splitting the batch.  [default: as timed]"),
    ("--recompute", types.RECOMPUTATION, "What backward computes again; selective: attention."),
    ("--stack", types.STACK, "Software of estimates: as users find it, recent, or tuned."),
    ("--launches", types.LAUNCHES, "How operators are launched.  [default: eager]"),
    ("--framework", types.FRAMEWORK, "Framework whose timings count: pytorch, or 'pytorch 2.13'."),
    ("--optimizer", types.OPTIMIZER, "Optimizer, for its memory.  [default: as in the profile]"),
    (
        "--precision-policy",
        types.POLICY,
        "How parameters and gradients are stored.  [default: amp with 16 bits, else fp32]",
    ),
    ("--lora", types.LORA, "Train adapters: RANK[:TARGETS[:BITS of frozen weights]]."),
    ("--offload-optimizer", None, "Keep optimizer states and master copies in the host's memory."),
    ("--one-device-speed", types.SPEED, "Measured samples/s of one device: scales compute times."),
    ("--step-time", types.time("187ms"), "Measured time of one update on one device."),
    ("--one-device-batch-size", types.WHOLE, "Batch size of that speed.  [default: the job's]"),
    ("--cluster", types.CLUSTER, "Cluster from the catalogue, or a file."),
    ("--bandwidth", types.RATE, "Bandwidth of every link, in each direction."),
    ("--latency", types.time("50us"), "One-way latency of every link."),
    ("--devices-per-node", types.WHOLE, "Devices of a node, instead of the cluster's."),
    ("--workers", types.WHOLE, "Number of workers.  [default: 1]"),
    ("--arch", types.ARCHITECTURE, "Architecture (perfmodel list).  [default: ps]"),
    ("--servers", types.WHOLE, "Parameter servers.  [default: 1]"),
    ("--sync", types.SYNC, "How a parameter server synchronises workers."),
    ("--staleness-bound", types.BOUND, "Iterations a worker may run ahead (ssp); inf: no bound."),
    ("--overlap", None, "Overlap communication with computation."),
    ("--option", OptionOf("arch", "ps"), "Any option of the architecture (perfmodel show ARCH)"),
    ("--island-devices", types.count("N|N+N"), "Devices per worker (island); 8+8+4: unequal."),
    ("--island-steps", types.count("H|equal:H"), "Steps between exchanges; equal: in equal time."),
    ("--island-arch", types.ARCHITECTURE, "Architecture inside an island.  [default: allreduce]"),
    ("--island-option", OptionOf("island_arch", "allreduce"), "Any option of --island-arch"),
    ("--devices", types.WHOLE, "Devices of all workers, instead of --workers."),
    ("--tensor", types.WHOLE, "Devices that divide each layer (tensor parallelism)."),
    ("--context", types.WHOLE, "Devices that divide each sequence (context parallelism)."),
    ("--context-exchange", types.EXCHANGE, "How attention gets the other parts of a sequence."),
    ("--context-inside", types.WHOLE, "Devices of an all-to-all in a hierarchical exchange."),
    ("--context-split", types.SPLIT, "Which parts of a sequence each device has."),
    ("--pipeline", types.WHOLE, "Stages that divide the layers (pipeline parallelism)."),
    ("--micro-batches", types.WHOLE, "Of a replica's batch.  [default: one for each sample]"),
    ("--schedule", types.SCHEDULE, "Order of micro-batches in a pipeline, or its file."),
    ("--virtual-stages", types.WHOLE, "Chunks of layers per stage."),
    ("--stage-layers", types.count("N+N"), "Blocks or layers of each chunk.  [default: equal]"),
    ("--balance", None, "Divide layers among stages by their times."),
    ("--sequence-parallel", None, "Divide norms along the sequence, with --tensor."),
    ("--overlap-sums", None, "Sum gradients of inputs during those of weights."),
    ("--transfers", types.TRANSFERS, "How stages send: posted ahead, or waited for."),
    ("--expert", types.WHOLE, "Devices that divide the experts (expert parallelism)."),
    ("--expert-tensor", types.WHOLE, "Devices that divide each expert.  [default: --tensor]"),
    ("--expert-skew", types.NUMBER, "Exponent of the power law of the experts' popularity."),
    ("--expert-capacity", types.NUMBER, "Places of experts over their mean number of tokens."),
    ("--expert-exchange", types.WAY, "How tokens are sent to experts."),
    ("--expert-nodes", types.WHOLE, "Nodes that the experts of a token are on, at most."),
    ("--expert-overlap", types.FRACTION, "Share of these exchanges that computation hides."),
    ("--rank-order", types.RANK_ORDER, "How devices are numbered, innermost first."),
    ("--jitter", types.JITTER, "Random variation of compute times; 0.1:op: per operation."),
    ("--straggler", types.STRAGGLER, "Worker that computes FACTOR times as long"),
    ("--seed", types.WHOLE, "Random seed.  [default: 0]"),
)
"""Flags that describe a job, with type and help; those without a type have a --no- form."""

RENAMED = {
    "--bandwidth": "bandwidth_bytes_per_s",
    "--latency": "latency_s",
    "--one-device-speed": "one_device_samples_per_s",
    "--step-time": "one_device_step_s",
    "--option": "options",
    "--island-option": "island_options",
    "--straggler": "stragglers",
}
"""Arguments of make_job whose names are not those of their flags."""

REPEATABLE = ("--option", "--island-option", "--straggler")

FLAGS = {RENAMED.get(flag, flag[2:].replace("-", "_")): flag for flag, _, _ in JOB_OPTIONS}
"""Flags by the arguments of make_job that they give."""

SECTIONS = {
    "--job": "Model and device",
    "--cluster": "Cluster",
    "--workers": "Workers, and how they exchange gradients",
    "--island-devices": "Islands: workers of several devices, with rare exchanges",
    "--devices": "Replicas: workers of several devices that divide a model",
    "--jitter": "Variation",
}
"""Sections of help, by the flags of a job that they start at."""

MORE_SECTIONS = {
    **dict.fromkeys(("--fidelity", "--tolerance", "--rel-ci", "--max-ops"), "How it is predicted"),
    **dict.fromkeys(("--dataset-size", "--epochs", *FAILURES), "Length and failures of a training"),
}
"""Sections of other flags."""

OPTION_FLAGS = ("servers", "sync", "staleness_bound", "overlap")
"""Those that give single options of the architecture instead."""

MODEL_FLAGS = ("fidelity", "tolerance", "rel_ci", "max_ops")
"""Arguments of predict, as flags give them."""

RIVALS = {
    "model": "workload",
    "batch_size": "global_batch_size",
    "one_device_samples_per_s": "one_device_step_s",
    "workers": "devices",
    "accumulation": "micro_batches",
    "document_length": "document_lengths",
}
"""Arguments of which only one can be given: on the command line it replaces the other as well."""

RIVALS |= {rival: name for name, rival in RIVALS.items()}


class JobFlags(NamedTuple):
    """The flags that describe a job, by the names of arguments."""

    typed: Arguments
    """Those of the command line."""

    configured: Arguments
    """Those of the configuration file."""

    lists: bool
    """Whether a value may be a list."""

    @property
    def jobs(self) -> tuple[str | None, ...]:
        """The job files; None alone if there is none."""
        paths = self.typed.get("job", self.configured.get("job"))
        return paths if isinstance(paths, tuple) else (paths,)

    def arguments(self, path: str | None = None) -> Arguments:
        """Arguments of make_job, or of a sweep: of the flags, the job file, the configuration.

        The first that has a value counts. ``global_batch_size`` may take the place of
        ``batch_size``.

        Parameters
        ----------
        path : the job file; all of them if it is not given.

        Raises
        ------
        InputError : a file that cannot be read; flags that contradict each other.
        """
        paths = [file for file in ((path,) if path else self.jobs) if file is not None]
        flags = self._arguments(self.typed)
        given = flags.get("devices", flags.get("workers"))
        count = given if given is None or isinstance(given, int) else 0
        job: Arguments = {}
        if paths:
            from perfmodel.inputs.job_files import read_jobs

            job = read_jobs(paths, count)
        typed = _over(job, flags)
        if not self.configured:
            return typed
        defaults = self._arguments(self.configured)
        arch = typed.get("arch") or defaults.get("arch") or "ps"
        defaults["options"] = _applying(defaults["options"], arch)
        return _over(defaults, typed)

    def _arguments(self, flags: Arguments) -> Arguments:
        """Arguments of some flags alone, with the options of the architecture as one of them."""
        for name, rival in RIVALS.items():
            if name in flags and rival in flags and "workload" not in (name, rival):
                raise InputError(f"{FLAGS[name]} and {FLAGS[rival]}: give one of them")
        arguments = {k: v for k, v in flags.items() if k not in ("job", *OPTION_FLAGS)}
        if "island_options" in flags:
            texts = flags["island_options"]
            arguments["island_options"] = option_values(texts, flag="--island-option")
        options = option_values(flags.get("options", ()), lists=self.lists)
        for name in OPTION_FLAGS:
            if name in flags and name in options:
                raise InputError(f"{FLAGS[name]} and --option {name}: give one of them")
        settings = {name: flags[name] for name in OPTION_FLAGS if name in flags}
        return {**arguments, "options": options | settings}


class OfJobs(click.Command):
    """A command with options of a job: help has sections, those of the command alone come last."""

    def format_options(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options, each in its section."""
        last, heading, of_job = "Options", "", {"--job", *FLAGS.values()}
        rows: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(context):
            flag, record = parameter.opts[0], parameter.get_help_record(context)
            heading = SECTIONS.get(flag, heading)
            section = heading if flag in of_job else MORE_SECTIONS.get(flag, last)
            if record is not None:
                rows.setdefault(section, []).append(record)
        for section in sorted(rows, key=lambda name: name == last):
            with formatter.section(section):
                formatter.write_dl(rows[section])


def _over(lower: Arguments, upper: Arguments) -> Arguments:
    """Arguments with those of ``upper`` in place of their own, and of their rivals."""
    kept = {name: v for name, v in lower.items() if RIVALS.get(name) not in upper}
    merged = {**kept, **upper}
    for name in ("options", "island_options"):
        if name in kept and name in upper:
            merged[name] = {**kept[name], **upper[name]}
    return merged


def _applying(options: Arguments, arch: object) -> Arguments:
    """Configured options that an architecture has, and that its name does not settle.

    Of several architectures (a list) all remain: a sweep leaves out what does not apply.

    Raises
    ------
    InputError : an option that no architecture has.
    """
    if not options:
        return {}
    from perfmodel.architectures import registry
    from perfmodel.inputs.options import described

    known = {o.name for a in registry.all_architectures() for o in described(a.options)}
    for name in options:
        if name not in known:
            raise unknown_name("option", name, known)
    if not isinstance(arch, str):
        return options
    architecture, settled = registry.find(arch)
    has = {o.name for o in described(architecture.options)} - set(settled)
    return {name: value for name, value in options.items() if name in has}


def configured(name: str) -> bool:
    """Whether a parameter of the running command has its value from the configuration file."""
    return source_of(name) is ParameterSource.DEFAULT_MAP


def job_options(*, lists: bool = False, jobs: bool = False) -> Decorator:
    """Add the options that describe a job; the command gets them as ``flags``.

    With ``lists``, options with a value take several; with ``jobs``, each --job is a job.
    """
    text = (
        "Job file; the flags below override it. Repeatable."
        if jobs
        else "Job file, or a launcher's (hostfile, DeepSpeed, ...); flags override it. Repeatable."
    )
    options = [option("--job", types.INPUT, text, multiple=True)]
    for (name, flag), (_, kind, text) in zip(FLAGS.items(), JOB_OPTIONS, strict=True):
        if kind is None:
            both = f"{flag}/--no-{flag[2:]}"
            options.append(click.option(both, is_flag=True, default=None, help=text))
        elif flag in REPEATABLE:
            help_ = f"{text}; repeatable."
            options.append(click.option(flag, name, type=kind, multiple=True, help=help_))
        else:
            listed = Several(kind) if lists else kind
            options.append(click.option(flag, name, type=listed, help=text))

    def sorted_by_source(**values: object) -> JobFlags:
        values = {name: value for name, value in values.items() if value not in (None, ())}
        below = {name: values.pop(name) for name in list(values) if configured(name)}
        return JobFlags(values, below, lists)

    return all_of(*options, gathered("flags", ("job", *FLAGS), sorted_by_source))


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
    return option("--fidelity", Words(names), f"{meaning}.", default=default)


def model_options(default: str, *more: str) -> Decorator:
    """Add the options that say how a job is predicted; the command gets them as ``how``."""
    return all_of(
        fidelity_option(default, "fine", "coarse", "auto", *more),
        option(
            "--tolerance",
            types.FRACTION,
            "Iteration-time error that auto accepts in 9 of 10 jobs.  [default: 5%]",
        ),
        option(
            "--rel-ci",
            types.fraction("1%"),
            "Simulate random jobs until the 95 % confidence interval is this narrow.  "
            "[default: 1%]",
        ),
        option(
            "--max-ops",
            types.number("5e7"),
            "Most operations to simulate; inf: no limit.  [default: 5e7, up to a minute]",
        ),
        gathered("how", MODEL_FLAGS, _predict_options),
    )


def _predict_options(**values: object) -> PredictArguments:
    """Arguments of predict; without a configured tolerance where the fidelity has none."""
    if values["tolerance"] is not None and values["fidelity"] != "auto":
        if not configured("tolerance"):
            raise InputError("--tolerance: needs --fidelity auto")
        del values["tolerance"]
    options = {name: value for name, value in values.items() if value is not None}
    return cast("PredictArguments", options)


def option_values(
    texts: Iterable[str], *, lists: bool = False, flag: str = "--option"
) -> Arguments:
    """Options of the architecture from KEY=VALUE; with ``lists``, a value may be a list.

    Raises
    ------
    InputError : no equals sign, or a key that is given twice.
    """
    options: Arguments = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals:
            raise InputError(f"{flag}: expected KEY=VALUE, got {text!r}")
        if key in options:
            raise InputError(f"{flag}: {key} is given twice")
        several = types.split(value, f"{flag} {key}") if lists else [value]
        options[key] = several if len(several) > 1 else several[0]
    return options
