"""``perfmodel measure training``: a real run, to compare predictions with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from perfmodel.base.errors import InputError, unknown_name
from perfmodel.cli import rendezvous
from perfmodel.cli.options import (
    all_of,
    check_files,
    ending,
    one,
    progress,
    read_quantity,
    write_files,
)

if TYPE_CHECKING:
    from perfmodel.measuring.training.measure import Plan
    from perfmodel.measuring.training.run import MeasuredRun
    from perfmodel.results.prediction import Prediction

MODEL_FLAGS = ("input_shape", "batch", "loss", "optimizer", "dtype")

ARCHITECTURE_OPTIONS = (
    click.option("--arch", default="ps", metavar="ps|ring", help="Architecture.  [default: ps]"),
    click.option(
        "--sync",
        metavar="bsp|asp|ssp",
        help="Synchronisation of the parameter server.  [default: bsp]",
    ),
    click.option(
        "--staleness-bound",
        type=float,
        metavar="S",
        help="Staleness bound of ssp; inf: no bound.  [default: 3]",
    ),
    click.option(
        "--servers",
        type=int,
        metavar="P",
        help="Number of servers, the last P processes.  [default: 1]",
    ),
    click.option(
        "--bucket-cap",
        type=float,
        metavar="MIB",
        help="Bucket size of DistributedDataParallel.  [default: 25, the first bucket 1]",
    ),
    click.option("--backend", metavar="gloo|nccl", help="Backend of collectives.  [default: gloo]"),
)

MODEL_OPTIONS = (
    click.option(
        "--model",
        metavar="NAME",
        required=True,
        help="torchvision:NAME or package.module:function.",
    ),
    click.option("--input-shape", metavar="3,224,224", help="Shape of one sample."),
    click.option("--batch", metavar="MODULE:FUNCTION", help="Function that makes batches."),
    click.option("--loss", metavar="NAME|MODULE:FUNCTION", help="Loss."),
    click.option(
        "--optimizer",
        metavar="sgd|adam|adamw",
        help="Optimizer; a parameter server has plain SGD.  [default: sgd]",
    ),
    click.option("--dtype", metavar="float32|bf16", help="Data type.  [default: float32]"),
    click.option("--device", metavar="cpu|cuda", help="Device.  [default: cpu]"),
    click.option(
        "--batch-size",
        type=int,
        required=True,
        metavar="N",
        help="Samples per worker and iteration.",
    ),
)

RUN_OPTIONS = (
    click.option(
        "--steps", type=int, default=50, metavar="N", help="Iterations to measure.  [default: 50]"
    ),
    click.option(
        "--warmup",
        type=int,
        default=5,
        metavar="N",
        help="Warm-up iterations before.  [default: 5]",
    ),
    click.option(
        "--time-limit",
        callback=one(read_quantity("s")),
        metavar="60s",
        help="Stop after this time, if the steps take longer.",
    ),
    click.option("--seed", type=int, default=0, metavar="N", help="Random seed of the weights."),
    click.option("--threads", type=int, metavar="N", help="Compute threads of each process."),
    click.option(
        "--timeout",
        callback=one(read_quantity("s")),
        metavar="60s",
        help="How long to wait for another process.  [default: 60s]",
    ),
    click.option("--output", metavar="FILE", help="Run file, written by rank 0."),
    click.option(
        "--cluster", metavar="NAME|FILE", help="Also predict the run on this cluster, and compare."
    ),
    click.option("--workload", metavar="FILE", help="Profile of the model, for --cluster."),
    click.option("--plot", metavar="FILE", help="Draw it as png, svg or pdf (extra: plot)."),
    click.option("--json", "as_json", is_flag=True, help="Print one JSON object."),
)


@click.command("training")
@all_of((rendezvous.PROCESSES, *ARCHITECTURE_OPTIONS, *MODEL_OPTIONS, *RUN_OPTIONS))
def training(
    processes: int | None, output: str | None, cluster: str | None, workload: str | None,
    plot: str | None, as_json: bool, **values: Any,
) -> None:  # fmt: skip
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
    check_files(plot, output)
    if processes is not None:
        plan.workers(processes)
    if cluster is not None:
        _check_cluster(plan, cluster, workload)
    place = rendezvous.place_or_launch(processes)
    from perfmodel.measuring.training.measure import measure

    if place.rank != 0:
        measure(plan, place)
        return
    with progress() as advance:
        run = measure(plan, place, advance)
    if run is None:
        return
    written = []
    if output is not None:
        import msgspec

        data = msgspec.json.format(msgspec.json.encode(run), indent=2) + b"\n"
        written.append((output, data, ""))
    predicted = _predicted(run, cluster, workload)
    if plot is not None:
        from perfmodel.reporting import images

        written.append((plot, images.image(run.plot(predicted), ending(plot)), ""))
    write_files(written)
    _print(run, predicted, as_json)


def _plan(values: dict[str, Any]) -> Plan:
    """The plan of a run, from the flags; refuses contradictory flags."""
    from perfmodel.measuring.training.measure import ARCHITECTURES, Plan

    if values["arch"] not in ARCHITECTURES:
        raise unknown_name("--arch", values["arch"], ARCHITECTURES)
    arch = ARCHITECTURES[values["arch"]]
    of_ps, of_ring = ("sync", "staleness_bound", "servers"), ("bucket_cap", "backend")
    _refuse(
        values, of_ring if arch == "ps" else of_ps, f"has no meaning with --arch {values['arch']}"
    )
    if values["staleness_bound"] is not None and values["sync"] != "ssp":
        raise InputError("--staleness-bound: needs --sync ssp")
    arguments = {
        "arch": arch,
        "bucket_cap_mib": values["bucket_cap"],
        "time_limit_s": values["time_limit"],
        "timeout_s": values["timeout"],
        "model": _model(values),
        **{name: values[name] for name in ("sync", "staleness_bound", "servers", "backend")},
        **{name: values[name] for name in ("steps", "warmup", "seed", "threads")},
    }
    return Plan(**{name: value for name, value in arguments.items() if value is not None})


def _model(values: dict[str, Any]) -> dict[str, Any]:
    """The arguments of the model."""
    model = {name: values[name] for name in (*MODEL_FLAGS, "device", "batch_size")}
    if model["input_shape"] is not None:
        from perfmodel.cli.options import read_whole

        parts = model["input_shape"].split(",")
        model["input_shape"] = tuple(read_whole(part, "--input-shape") for part in parts)
    model["model_spec"] = values["model"]
    return {name: value for name, value in model.items() if value is not None}


def _refuse(values: dict[str, Any], names: tuple[str, ...], why: str) -> None:
    for name in names:
        if values[name] is not None:
            raise InputError(f"--{name.replace('_', '-')}: {why}")


def _workload(path: str, batch_size: int) -> Any:
    from pathlib import Path

    from perfmodel.inputs import catalogue

    return catalogue.workload(catalogue.profile(Path(path)), batch_size=batch_size)


def _check_cluster(plan: Plan, cluster: str, workload: str | None) -> None:
    """Refuse a run that cannot be predicted, before it is measured."""
    from perfmodel.inputs import catalogue

    target = catalogue.cluster_or_file(cluster)
    if workload is None:
        raise InputError("--cluster: a prediction needs --workload, the profile of the model")
    _workload(workload, plan.model["batch_size"])
    if plan.arch == "ps" and target.server.placement != "dedicated":
        raise InputError(
            f"--cluster: {target.name} places servers on workers' nodes; measured servers are "
            "separate processes (placement dedicated)"
        )


def _predicted(run: MeasuredRun, cluster: str | None, workload: str | None) -> Prediction | None:
    """The prediction of the run on the cluster, if one was given."""
    if cluster is None or workload is None:
        return None
    from perfmodel import api

    profiled = _workload(workload, run.batch_size)
    return api.predict(api.make_job(workload=profiled, cluster=cluster, **run.arguments()))


def _print(run: MeasuredRun, predicted: Prediction | None, as_json: bool) -> None:
    from perfmodel.measuring.training import summary

    beside = None if predicted is None else summary.of_prediction(predicted)
    quantities = summary.quantities(run, beside)
    if as_json:
        import json

        click.echo(json.dumps(summary.to_dict(run, quantities), indent=2))
    else:
        from perfmodel.cli.printing.text import show

        show("\n".join(summary.lines(run, quantities)))
