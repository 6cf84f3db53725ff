"""``perfmodel plan``."""

from __future__ import annotations

from typing import Any

import click

from perfmodel.cli import types
from perfmodel.cli.jobs import fidelity_option, option_values
from perfmodel.cli.options import (
    Outputs,
    all_of,
    executor_options,
    failure_options,
    option,
    outputs,
    progress,
    switch,
    training_options,
)
from perfmodel.cli.types import ARCHITECTURE, NUMBER, TEXT, WHOLE, OptionOf, Several

ARCHITECTURES = "allreduce,ps,p2p,zero1,zero3"
"""Architectures to try by default."""

NAMES, NUMBERS = Several(TEXT, always=True), Several(WHOLE, always=True)
OBJECTIVES = types.Words(["cost", "time", "throughput", "samples-per-usd"])

LIMITS = all_of(
    option("--budget", types.number("USD"), "Maximum cost.", "budget_usd"),
    option("--deadline", types.time("24h"), "Maximum time.", "deadline_s"),
    option("--max-idle", types.fraction("20%"), "Maximum mean idleness.", "max_idle_fraction"),
    option("--max-staleness", NUMBER, "Maximum mean staleness."),
    option("--max-workers", WHOLE, "Maximum number of workers."),
    option("--max-global-batch-size", WHOLE, "Maximum samples per update."),
    option("--confidence", types.fraction("90%"), "Probability of keeping deadline and budget."),
    option(
        "--memory-confidence",
        types.fraction("90%"),
        "Probability that a worker fits its device.",
        default="90%",
    ),
)

OWN = all_of(
    option("--device", types.DEVICE, "Device of your own cluster."),
    option("--cluster", types.CLUSTER, "Your own cluster instead of instances; has no prices."),
)

SEQUENCES = all_of(
    option("--sequence-length", WHOLE, "Tokens per sequence of a language model."),
    option("--document-length", NUMBER, "Mean tokens of documents that sequences are packed from."),
    option("--document-spread", NUMBER, "Standard deviation over the mean.  [default: 1]"),
    option("--document-lengths", types.INPUT, "File of their lengths instead of these two."),
)

LAYOUTS = all_of(
    option("--devices", NUMBERS, "Numbers of devices; then layouts of a language model are tried."),
    option("--tensor", NUMBERS, "Devices that divide every layer.  [default: divisors of a node]"),
    option("--context", NUMBERS, "Devices that divide each sequence.  [default: 8 Ki tokens each]"),
    option("--expert", NUMBERS, "Devices that divide the experts.  [default: divisors of a node]"),
    option("--pipeline", NUMBERS, "Stages.  [default: divisors of the devices, up to 64]"),
    option("--virtual-stages", NUMBERS, "Chunks per stage.  [default: 1,2,4]"),
    option("--schedule", NAMES, "Schedules.  [default: 1f1b, interleaved_1f1b with chunks]"),
    option("--micro-batch-size", NUMBERS, "Sequences of a micro-batch.  [default: 1,2,4,8]"),
    option("--global-batch-size", NUMBERS, "Sequences per update.  [default: 4 Mi tokens]"),
    option("--recompute", NAMES, "Recomputation.  [default: none,selective,full]"),
    option("--framework", TEXT, "As in perfmodel predict."),
    switch("--sequence-parallel", "Divide along the sequence between products, too."),
)

SPACE = all_of(
    option("--instances", types.INPUT, "Your own catalogue of instances."),
    option("--instance", NAMES, "Instance types to choose from.  [default: all]"),
    option("--server-instances", NAMES, "Those of servers on their own.  [default: none]"),
    option("--region", TEXT, "Region of the prices.  [default: the cheapest]"),
    switch("--spot", "Use spot prices instead of on-demand prices."),
    option(
        "--arch",
        Several(ARCHITECTURE, always=True),
        f"Architectures to try.  [default: {ARCHITECTURES}]",
    ),
    option(
        "--option",
        OptionOf("arch", ARCHITECTURES),
        "Any option of the architectures that have it; repeatable.",
        "options",
        multiple=True,
    ),
    option("--workers", NUMBERS, "Numbers of workers.  [default: whole nodes, up to 256 workers]"),
    option("--servers", NUMBERS, "Parameter servers.  [default: 1,4,16]"),
    option("--batch-size", NUMBERS, "Samples per worker and step.  [default: 32,64,128,256,512]"),
    option(
        "--precision",
        Several(types.PRECISION, always=True),
        "Precisions to try.  [default: the first of the profile]",
    ),
    option("--jitter", types.Text(types.read_jitter, name="0.1"), "As in perfmodel predict."),
    option("--seed", WHOLE, "Random seed."),
)


@click.command()
@option("--model", types.MODEL, "Model from the catalogue.")
@option("--workload", types.INPUT, "Workload file instead of --model.")
@option("--objective", OBJECTIVES, "What to optimise.", default="cost")
@option("--tokens", types.number("1e12"), "Tokens of the whole training of a language model.")
@option("--loss", types.number("2.1"), "Loss of a language model to train to.")
@option("--scaling-law", TEXT, "That gives its tokens, or a file.  [default: chinchilla]")
@option(
    "--noise-scale",
    types.number("SAMPLES"),
    "Gradient noise scale: what larger batches need more.",
    "noise_scale_samples",
)
@option("--reference-batch-size", WHOLE, "Samples per update for which the training is given.")
@training_options
@failure_options
@OWN
@SEQUENCES
@LAYOUTS
@LIMITS
@SPACE
@option("--top", WHOLE, "Candidates to list.", default=10)
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
    catalogue, each with its date. For a language model with --devices, candidates are layouts: how
    tensor and pipeline parallelism, sharding and micro-batches divide model and batch.

    \b
    perfmodel plan --model llama-70b --device h100 --cluster dgx-h100 --devices 64 --tokens 1e12 --objective time
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
        from perfmodel.cli.printing import plan as printing

        printing.plan(result)
