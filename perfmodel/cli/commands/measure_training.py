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
    read_jitter,
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
        help="Number of servers, the last P ranks.  [default: 1]",
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
    click.option("--workload", metavar="FILE", help="Workload file."),
    click.option(
        "--emulate", is_flag=True, help="Wait for the workload's times instead of computing."
    ),
    click.option(
        "--jitter",
        callback=one(read_jitter),
        metavar="0.1|gamma:0.1",
        help="Random variation of emulated compute times, per worker and iteration.",
    ),
    click.option(
        "--model", metavar="NAME", help="Real model: torchvision:NAME or package.module:function."
    ),
    click.option(
        "--input-shape", metavar="3,224,224", help="Shape of one sample of the real model."
    ),
    click.option(
        "--batch", metavar="MODULE:FUNCTION", help="Function that makes batches of the real model."
    ),
    click.option("--loss", metavar="NAME|MODULE:FUNCTION", help="Loss of the real model."),
    click.option(
        "--optimizer",
        metavar="sgd|adam|adamw",
        help="Optimizer of the real model; a parameter server has plain SGD.  [default: sgd]",
    ),
    click.option(
        "--dtype", metavar="float32|bf16", help="Data type of the real model.  [default: float32]"
    ),
    click.option(
        "--device",
        metavar="NAME",
        help="Device of the real model (cpu, cuda); with --emulate, the device to emulate.",
    ),
    click.option("--batch-size", type=int, metavar="N", help="Samples per worker and iteration."),
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
    click.option(
        "--seed", type=int, default=0, metavar="N", help="Random seed of jitter and weights."
    ),
    click.option("--threads", type=int, metavar="N", help="Compute threads of each process."),
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
    click.option("--output", metavar="FILE", help="Run file, written by rank 0."),
    click.option(
        "--cluster", metavar="NAME|FILE", help="Also predict the run on this cluster, and compare."
    ),
    click.option("--plot", metavar="FILE", help="Draw it as png, svg or pdf (extra: plot)."),
    click.option("--json", "as_json", is_flag=True, help="Print one JSON object."),
)


@click.command("training")
@all_of((*rendezvous.OPTIONS, *ARCHITECTURE_OPTIONS, *MODEL_OPTIONS, *RUN_OPTIONS))
def training(
    output: str | None,
    cluster: str | None,
    plot: str | None,
    as_json: bool,
    **given: Any,
) -> None:
    """Run a real training job on several nodes, and measure its speed.

    Run the same command on every node, each with its own --rank, or start it with torchrun. Rank 0
    prints and writes the result. --arch ring is PyTorch's DistributedDataParallel; --arch ps is a
    parameter server, with the last --servers ranks as servers.

    \b
    perfmodel measure training --workload tagger.json --emulate --arch ps --rank 0 --ranks 3 \\
        --address node0:29500 --output run.json
    torchrun --nnodes 4 --nproc-per-node 1 --rdzv-endpoint node0:29400 --rdzv-backend c10d \\
        -m perfmodel measure training --arch ring --model torchvision:resnet18 --batch-size 8
    """
    where = rendezvous.take_place(given)
    plan = _plan(given)
    if where.rank == 0:
        check_files(plot, output)
    if cluster is not None:
        _check_cluster(plan, cluster, given["workload"])
    from perfmodel.measuring.training.measure import measure

    if where.rank != 0:
        with rendezvous.logged():
            measure(plan, where)
        return
    with rendezvous.logged(), progress() as advance:
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
    """The plan of a run, from the flags; refuses contradictory flags."""
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
            raise InputError("--emulate: needs --workload, which has the times")
        _refuse(given, ("model", *MODEL_FLAGS), "applies to a real model; leave out --emulate")
        return {
            "workload": _workload(given["workload"], given["device"], given["batch_size"]),
            "device": given["device"],
        }
    if given["model"] is None:
        raise InputError("--model, or --workload with --emulate: one of them is needed")
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
    """Refuse a run that cannot be predicted, before it is measured."""
    from perfmodel.inputs import catalogue

    found = catalogue.cluster_or_file(cluster)
    if workload is None:
        raise InputError("--cluster: a prediction needs --workload, the profile of the model")
    if plan.workload is None:
        _workload(workload, None, plan.model["batch_size"])
    if plan.arch == "ps" and found.server.placement != "dedicated":
        raise InputError(
            f"--cluster: {found.name} places servers on workers' nodes; measured servers are "
            "separate processes (placement dedicated)"
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
        from perfmodel.cli.printing.text import show

        show("\n".join(summary.lines(run, found)))
