"""``perfmodel measure training``: a real run, to compare predictions with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from perfmodel.base.errors import InputError, unknown_name
from perfmodel.cli.meeting import WHO, logged, take_place
from perfmodel.cli.options import (
    all_of,
    check_files,
    ending,
    one,
    progress,
    read_jitter,
    read_quantity,
    write_files,
)

if TYPE_CHECKING:
    from perfmodel.measuring.training.measure import Plan
    from perfmodel.measuring.training.run import MeasuredRun
    from perfmodel.results.prediction import Prediction

MODEL_FLAGS = ("input_shape", "batch", "loss", "optimizer", "dtype")

HOW = (
    click.option("--arch", default="ps", metavar="ps|ring", help="[default: ps]"),
    click.option("--sync", metavar="bsp|asp|ssp", help="Of the parameter server.  [default: bsp]"),
    click.option(
        "--staleness-bound", type=float, metavar="S", help="Of ssp; inf: any.  [default: 3]"
    ),
    click.option(
        "--servers", type=int, metavar="P", help="Servers, the last P ranks.  [default: 1]"
    ),
    click.option(
        "--bucket-cap",
        type=float,
        metavar="MIB",
        help="Of DistributedDataParallel.  [default: 25, the first bucket 1]",
    ),
    click.option("--backend", metavar="gloo|nccl", help="Of collectives.  [default: gloo]"),
)

WHAT = (
    click.option("--workload", metavar="FILE", help="Workload file."),
    click.option(
        "--emulate", is_flag=True, help="Wait for the workload's times instead of computing."
    ),
    click.option(
        "--jitter",
        callback=one(read_jitter),
        metavar="0.1|gamma:0.1",
        help="Random spread of emulated compute, per worker and iteration.",
    ),
    click.option(
        "--model", metavar="NAME", help="Real model: torchvision:resnet18, package.module:function."
    ),
    click.option("--input-shape", metavar="3,224,224", help="Of one sample of the real model."),
    click.option("--batch", metavar="MODULE:FUNCTION", help="Makes batches of the real model."),
    click.option("--loss", metavar="NAME|MODULE:FUNCTION", help="Of the real model."),
    click.option(
        "--optimizer",
        metavar="sgd|adam|adamw",
        help="Of the real model; a parameter server has plain SGD.  [default: sgd]",
    ),
    click.option("--dtype", metavar="float32|bf16", help="Of the real model.  [default: float32]"),
    click.option(
        "--device",
        metavar="NAME",
        help="Where the real model is (cpu, cuda); with --emulate, whose times.",
    ),
    click.option("--batch-size", type=int, metavar="N", help="Samples per worker and iteration."),
)

RUN = (
    click.option(
        "--steps", type=int, default=50, metavar="N", help="Iterations to measure.  [default: 50]"
    ),
    click.option(
        "--warmup", type=int, default=5, metavar="N", help="Iterations before.  [default: 5]"
    ),
    click.option(
        "--time-limit",
        callback=one(read_quantity("s")),
        metavar="60s",
        help="End after this time, if the steps take longer.",
    ),
    click.option("--seed", type=int, default=0, metavar="N", help="Of jitter and weights."),
    click.option("--threads", type=int, metavar="N", help="That each process computes with."),
    click.option(
        "--congestion",
        default="",
        metavar="cubic",
        help="TCP congestion control.  [default: the system's]",
    ),
    click.option(
        "--timeout",
        callback=one(read_quantity("s")),
        metavar="60s",
        help="How long to wait for another process.  [default: 60s]",
    ),
    click.option("--output", metavar="FILE", help="File of the run, written by rank 0."),
    click.option(
        "--cluster", metavar="NAME|FILE", help="Predict the run on this cluster, and compare."
    ),
    click.option("--plot", metavar="FILE", help="Draw it as png, svg or pdf (extra: plot)."),
    click.option("--json", "as_json", is_flag=True, help="Print one JSON object."),
)


@click.command("training")
@all_of((*WHO, *HOW, *WHAT, *RUN))
def training(
    output: str | None,
    cluster: str | None,
    plot: str | None,
    as_json: bool,
    **given: Any,
) -> None:
    """Train for real on several nodes, and measure how fast that is.

    The same command on every node, each with a --rank of its own, or started by torchrun. Rank 0
    prints and writes. --arch ring is PyTorch's DistributedDataParallel; --arch ps a parameter
    server, whose last --servers ranks are servers.

    \b
    perfmodel measure training --workload tagger.json --emulate --arch ps --rank 0 --ranks 3 \\
        --address node0:29500 --output run.json
    torchrun --nnodes 4 --nproc-per-node 1 --rdzv-endpoint node0:29400 --rdzv-backend c10d \\
        -m perfmodel measure training --arch ring --model torchvision:resnet18 --batch-size 8
    """
    where = take_place(given)
    plan = _plan(given)
    if where.rank == 0:
        check_files(plot, output)
    if cluster is not None:
        _check_cluster(plan, cluster, given["workload"])
    from perfmodel.measuring.training.measure import measure

    if where.rank != 0:
        with logged():
            measure(plan, where)
        return
    with logged(), progress() as advance:
        run = measure(plan, where, advance)
    if run is None:
        return
    written = []
    if output is not None:
        import msgspec

        data = msgspec.json.format(msgspec.json.encode(run), indent=2) + b"\n"
        written.append((output, data, ""))
    predicted = _predicted(run, plan, cluster, given["workload"])
    if plot is not None:
        written.append((plot, run.to_image(ending(plot), predicted), ""))
    write_files(written)
    _say(run, predicted, as_json)


def _plan(given: dict[str, Any]) -> Plan:
    """The plan of a run, from the flags; contradictory ones are refused."""
    from perfmodel.inputs.job import Jitter
    from perfmodel.measuring.training.measure import ARCHITECTURES, Plan

    if given["arch"] not in ARCHITECTURES:
        raise unknown_name("--arch", given["arch"], ARCHITECTURES)
    arch = ARCHITECTURES[given["arch"]]
    of_ps, of_ring = ("sync", "staleness_bound", "servers"), ("bucket_cap", "backend")
    _refuse(
        given, of_ring if arch == "ps" else of_ps, f"has no meaning with --arch {given['arch']}"
    )
    if given["staleness_bound"] is not None and given["sync"] != "ssp":
        raise InputError("--staleness-bound: needs --sync ssp")
    values = {
        "arch": arch,
        "bucket_cap_mib": given["bucket_cap"],
        "time_limit_s": given["time_limit"],
        "timeout_s": given["timeout"],
        "jitter": given["jitter"] or Jitter(),
        **{name: given[name] for name in ("sync", "staleness_bound", "servers", "backend")},
        **{name: given[name] for name in ("steps", "warmup", "seed", "threads", "congestion")},
        **_what(given),
    }
    return Plan(**{name: value for name, value in values.items() if value is not None})


def _what(given: dict[str, Any]) -> dict[str, Any]:
    """The emulated workload, or the arguments of the real model."""
    if given["emulate"]:
        if given["workload"] is None:
            raise InputError("--emulate: needs --workload, whose times are waited for")
        _refuse(given, ("model", *MODEL_FLAGS), "is of a real model; leave out --emulate")
        return {
            "workload": _workload(given["workload"], given["device"], given["batch_size"]),
            "device": given["device"],
        }
    if given["model"] is None:
        raise InputError("--model, or --workload with --emulate: one of them says what is trained")
    if given["batch_size"] is None:
        raise InputError("--batch-size: a real model needs it")
    model = {name: given[name] for name in (*MODEL_FLAGS, "device", "batch_size")}
    if model["input_shape"] is not None:
        from perfmodel.cli.options import read_whole

        parts = model["input_shape"].split(",")
        model["input_shape"] = tuple(read_whole(part, "--input-shape") for part in parts)
    model["model_spec"] = given["model"]
    return {"model": {name: value for name, value in model.items() if value is not None}}


def _refuse(given: dict[str, Any], names: tuple[str, ...], why: str) -> None:
    for name in names:
        if given[name] is not None:
            raise InputError(f"--{name.replace('_', '-')}: {why}")


def _workload(path: str, device: str | None, batch_size: int | None) -> Any:
    from pathlib import Path

    from perfmodel.inputs import catalogue

    profile = catalogue.profile(Path(path))
    return catalogue.workload(profile, device_name=device, batch_size=batch_size)


def _check_cluster(plan: Plan, cluster: str, workload: str | None) -> None:
    """Refuse what cannot be predicted before it is measured."""
    from perfmodel.inputs import catalogue

    found = catalogue.cluster_or_file(cluster)
    if workload is None:
        raise InputError("--cluster: a prediction needs --workload, the profile of the model")
    if plan.workload is None:
        _workload(workload, None, plan.model["batch_size"])
    if plan.arch == "ps" and found.server.placement != "dedicated":
        raise InputError(
            f"--cluster: {found.name} has its servers on workers' nodes; here they are processes "
            "of their own (placement dedicated)"
        )


def _predicted(
    run: MeasuredRun, plan: Plan, cluster: str | None, workload: str | None
) -> Prediction | None:
    """The prediction of the run on the cluster, if one was given."""
    if cluster is None or workload is None:
        return None
    from perfmodel import api

    profiled = plan.workload or _workload(workload, None, run.batch_size)
    return api.predict(api.make_job(workload=profiled, cluster=cluster, **run.arguments()))


def _say(run: MeasuredRun, predicted: Prediction | None, as_json: bool) -> None:
    from perfmodel.measuring.training import summary

    beside = None if predicted is None else summary.of_prediction(predicted)
    found = summary.quantities(run, beside)
    if as_json:
        import json

        click.echo(json.dumps(summary.to_dict(run, found), indent=2))
    else:
        for line in summary.lines(run, found):
            click.echo(line)
