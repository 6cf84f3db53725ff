"""``perfmodel measure``: what a network does, and how fast real training runs on it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from perfmodel.base.errors import InputError, unknown_name
from perfmodel.cli import types
from perfmodel.cli.groups import CommandGroup
from perfmodel.cli.options import (
    Arguments,
    Outputs,
    all_of,
    encoded,
    ending,
    option,
    outputs,
    progress,
)
from perfmodel.cli.types import NUMBER, SECONDS, SIZE, TEXT, WHOLE, Several, Text, suggested
from perfmodel.cli.verbosity import remark

if TYPE_CHECKING:
    from perfmodel.inputs.workload import Workload
    from perfmodel.measuring.measurements import Measurement, Measurements
    from perfmodel.measuring.torchrun import ProcessPlace
    from perfmodel.measuring.training.measure import TrainingPlan
    from perfmodel.results.prediction import Prediction


@click.group(cls=CommandGroup)
def measure() -> None:
    """Measure a network, or a real training run."""


PROCESSES = option(
    "--processes", WHOLE, "Start N processes on this machine.  [default: torchrun has started them]"
)


def place_or_launch(processes: int | None) -> ProcessPlace:
    """This process under torchrun; else start processes, wait, and exit with their code."""
    from perfmodel.measuring import torchrun

    place = torchrun.place()
    if place is None:
        if processes is None:
            torchrun.import_distributed()
            raise InputError(
                "--processes: needed, the number of processes on this machine; on several machines "
                "start the command with torchrun --nnodes N ... -m perfmodel"
            )
        code = torchrun.launch(processes, sys.argv[1:])
        click.get_current_context().exit(code)
    if processes not in (None, place.ranks):
        raise InputError(f"--processes: got {processes}, but torchrun has started {place.ranks}")
    return place


SIZES = Several(SIZE, always=True)


@measure.command()
@PROCESSES
@option("--output", types.OUTPUT, "Measurement file, written by rank 0.", required=True)
@outputs("plot")
@option("--backend", types.BACKEND, "Backend.", default="gloo")
@option("--operations", Several(TEXT, always=True), "ping_pong, all_reduce, ...  [default: all]")
@option("--sizes", SIZES, "Sizes, such as 1KB,64KB,1MB.  [default: 4 B to 67 MB]")
@option("--repetitions", WHOLE, "Most repetitions of each size.", default=20)
@option("--seconds", types.number("S"), "Approximate time of all measurements.", default=20)
@option("--pause", types.time("100ms"), "Idle time before each repetition.", "pause_s")
@option("--timeout", SECONDS, "Longest wait for other ranks.", "timeout_s", default="60s")
def network(
    processes: int | None,
    output: str,
    sizes: list[float] | None,
    operations: list[str] | None,
    pause_s: float | None,
    out: Outputs,
    **values: Any,
) -> None:
    """Measure a network between processes, with torch.distributed.

    On one machine --processes starts them; on several machines torchrun does.

    \b
    perfmodel measure network --processes 2 --output network.json
    torchrun --nnodes 2 --rdzv-backend c10d --rdzv-endpoint node0:29400 \\
        -m perfmodel measure network --output network.json
    """
    from perfmodel.base import files
    from perfmodel.measuring.network.measure import NetworkPlan, measure as measure_network, to_json

    plan = NetworkPlan(
        sizes_bytes=None if sizes is None else tuple(sizes),
        operations=None if operations is None else tuple(operations),
        pause_s=pause_s or 0.0,
        **values,
    )
    out.check(output)
    place = place_or_launch(processes)
    name = "network" if output == files.STDOUT else Path(output).stem
    if place.rank:
        measure_network(plan, place)
        return
    notes: list[str] = []
    with progress() as advance:
        measured = measure_network(plan, place, name=name, say=notes.append, progress=advance)
    if measured is None:
        return
    _show(measured)
    for note in notes:
        remark(note)
    hint = f"; next: perfmodel calibrate network {output}"
    out.put(measured, [(output, to_json(measured), hint)])


def _show(measured: Measurements) -> None:
    """Print a line for each operation, size and number of ranks."""
    from perfmodel.cli.printing.tables import print_table
    from perfmodel.cli.printing.text import show

    show(measured.source.text)
    heads = ("operation", "ranks", "bytes", "repetitions", "median", "fastest", "rate")
    print_table(heads, map(_cells, measured.measurements), justify="right")


def _cells(measurement: Measurement) -> tuple[str, ...]:
    from statistics import median

    from perfmodel.base.units import show

    middle_s = median(measurement.seconds)
    return (
        measurement.operation,
        str(measurement.ranks),
        show(measurement.bytes, "bytes"),
        str(len(measurement.seconds)),
        show(middle_s, "s"),
        show(min(measurement.seconds), "s"),
        show(measurement.bytes * measurement.count / middle_s, "bytes_per_s"),
    )


@measure.command()
@option("--output", types.OUTPUT, "Begins the names of both tables.  [default: the device]")
@option("--device", types.TORCH_DEVICE, "cuda, cuda:N or cpu.", default="cuda")
@option("--shapes", WHOLE, "Products; half as many of attention.", default=400)
@option("--largest", WHOLE, "Largest dimension, and longest sequence.", default=16384)
@option("--time-limit", SECONDS, "Stop after this time.", "limit_s", default="600s")
@option("--seed", WHOLE, "Random seed of the shapes.", default=0)
def operators(output: str | None, device: str, limit_s: float, **values: Any) -> None:
    """Measure matrix products and causal attention in 16 bits on this device (extra: torch).

    Writes the tables that perfmodel calibrate operators reads, NAME-products.csv and
    NAME-attention.csv.

    \b
    perfmodel measure operators --output my-gpu
    perfmodel calibrate operators my-gpu-products.csv my-gpu-attention.csv --device rtx4090
    """
    from perfmodel.cli.options import check_files, write_files
    from perfmodel.measuring.operators import measure as measure_operators

    name = output or device.replace(":", "-")
    paths = [f"{name}-{kind}.csv" for kind in ("products", "attention")]
    check_files(None, *paths)
    with progress() as advance:
        tables = measure_operators(device, seconds=limit_s, progress=advance, **values)
    hint = f"; next: perfmodel calibrate operators {' '.join(paths)} --device NAME"
    texts = (tables.products_csv(), tables.attention_csv())
    hints = ("", hint)
    write_files(
        [(path, text.encode(), more) for path, text, more in zip(paths, texts, hints, strict=True)]
    )


FUNCTION = Text(name="NAME|MODULE:FUNCTION")

ARCHITECTURE_OPTIONS = all_of(
    option("--arch", suggested("ps", "ring"), "Architecture.", default="ps"),
    option("--sync", types.SYNC, "Synchronisation of the parameter server.  [default: bsp]"),
    option("--staleness-bound", NUMBER, "Staleness bound of ssp; inf: no bound.  [default: 3]"),
    option("--servers", WHOLE, "Servers, which are the last processes.  [default: 1]"),
    option(
        "--bucket-cap",
        types.number("MIB"),
        "Bucket size of DistributedDataParallel.  [default: 25, the first bucket 1]",
        "bucket_cap_mib",
    ),
    option("--backend", types.BACKEND, "Backend of collectives.  [default: gloo]"),
)

MODEL_OPTIONS = {
    "model_spec": option(
        "--model",
        Text(name="NAME"),
        "torchvision:NAME or package.module:function.",
        "model_spec",
        required=True,
    ),
    "input_shape": option("--input-shape", Several(WHOLE, always=True), "Shape of one sample."),
    "batch": option("--batch", Text(name="MODULE:FUNCTION"), "Function that makes batches."),
    "loss": option("--loss", FUNCTION, "Loss."),
    "optimizer": option(
        "--optimizer",
        suggested("sgd", "adam", "adamw"),
        "Optimizer; a parameter server has plain SGD.  [default: sgd]",
    ),
    "dtype": option("--dtype", suggested("float32", "bf16"), "Data type.  [default: float32]"),
    "device": option("--device", types.TORCH_DEVICE, "Device.  [default: cpu]"),
    "batch_size": option("--batch-size", WHOLE, "Samples per worker and iteration.", required=True),
}
"""Options by the arguments of the model in a plan."""

RUN_OPTIONS = all_of(
    option("--steps", WHOLE, "Iterations to measure.", default=50),
    option("--warmup", WHOLE, "Warm-up iterations before.", default=5),
    option("--time-limit", SECONDS, "Stop after this time at the latest.", "time_limit_s"),
    option("--seed", WHOLE, "Random seed of the weights.", default=0),
    option("--threads", WHOLE, "Compute threads of each process."),
    option("--timeout", SECONDS, "Longest wait for another process.", "timeout_s", default="60s"),
    option("--output", types.OUTPUT, "Run file, written by rank 0."),
    option("--cluster", types.CLUSTER, "Also predict the run on this cluster, and compare."),
    option("--workload", types.INPUT, "Profile of the model, for --cluster."),
    outputs("plot", "json"),
)


@measure.command()
@all_of(PROCESSES, ARCHITECTURE_OPTIONS, *MODEL_OPTIONS.values(), RUN_OPTIONS)
def training(
    processes: int | None,
    output: str | None,
    cluster: str | None,
    workload: str | None,
    out: Outputs,
    **values: Any,
) -> None:
    """Run a real training job, and measure its speed.

    On one machine --processes starts the processes; on several machines torchrun does. Rank 0
    prints and writes the result. --arch ring is PyTorch's DistributedDataParallel; --arch ps is a
    parameter server, with the last --servers processes as servers.

    \b
    perfmodel measure training --processes 3 --arch ps --model torchvision:resnet18 --batch-size 8
    torchrun --nnodes 4 --rdzv-endpoint node0:29400 --rdzv-backend c10d \\
        -m perfmodel measure training --arch ring --model torchvision:resnet18 --batch-size 8
    """
    plan = _plan(values)
    out.check(output)
    if processes is not None:
        plan.workers(processes)
    profiled = None if cluster is None else _profiled(plan, cluster, workload)
    place = place_or_launch(processes)
    from perfmodel.measuring.training import summary
    from perfmodel.measuring.training.measure import measure as measure_training

    if place.rank != 0:
        measure_training(plan, place)
        return
    with progress() as advance:
        run = measure_training(plan, place, advance)
    if run is None:
        return
    predicted: Prediction | None = None
    if profiled is not None:
        import perfmodel.api as api

        job = api.make_job(workload=profiled, cluster=cluster, **run.arguments())
        predicted = api.predict(job)
    written = [] if output is None else [(output, encoded(run, output), "")]
    if out.plot is not None:
        from perfmodel.reporting import images

        written.append((out.plot, images.image(run.plot(predicted), ending(out.plot)), ""))
    beside = None if predicted is None else summary.of_prediction(predicted)
    quantities = summary.quantities(run, beside)
    if out._replace(plot=None).put(run, written, summary.to_dict(run, quantities)):
        from perfmodel.cli.printing.text import show

        show("\n".join(summary.lines(run, quantities)))


def _plan(values: Arguments) -> TrainingPlan:
    """The plan of a run, from the flags; refuses contradictory flags."""
    from perfmodel.measuring.training.measure import ARCHITECTURES, TrainingPlan

    named = values["arch"]
    if named not in ARCHITECTURES:
        raise unknown_name("--arch", named, ARCHITECTURES)
    values["arch"] = arch = ARCHITECTURES[named]
    useless = {"--sync": "sync", "--staleness-bound": "staleness_bound", "--servers": "servers"}
    if arch == "ps":
        useless = {"--bucket-cap": "bucket_cap_mib", "--backend": "backend"}
    for flag, name in useless.items():
        if values[name] is not None:
            raise InputError(f"{flag}: has no meaning with --arch {named}")
    if values["staleness_bound"] is not None and values["sync"] != "ssp":
        raise InputError("--staleness-bound: needs --sync ssp")
    arguments = {name: value for name, value in values.items() if value is not None}
    model = {name: arguments.pop(name) for name in MODEL_OPTIONS if name in arguments}
    if "input_shape" in model:
        model["input_shape"] = tuple(model["input_shape"])
    return TrainingPlan(**arguments, model=model)


def _profiled(plan: TrainingPlan, cluster: str, workload: str | None) -> Workload:
    """The workload of a run, to predict it; refuses a run that cannot be predicted."""
    from perfmodel.catalogue import catalogue

    target = catalogue.cluster_or_file(cluster)
    if workload is None:
        raise InputError("--cluster: a prediction needs --workload, the profile of the model")
    if plan.arch == "ps" and target.server.placement != "dedicated":
        raise InputError(
            f"--cluster: {target.name} places servers on workers' nodes; measured servers are "
            "separate processes (placement dedicated)"
        )
    profile = catalogue.profile(Path(workload))
    return catalogue.workload(profile, batch_size=plan.model["batch_size"])
