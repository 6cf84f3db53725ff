"""``perfmodel converge``."""

from __future__ import annotations

from typing import Any

import click

from perfmodel.base.errors import InputError
from perfmodel.cli.jobs import JobFlags, job_options
from perfmodel.cli.options import (
    all_of,
    check_outputs,
    one,
    progress,
    put_out,
    read_number,
)

TRAINING = (
    click.option(
        "--task",
        metavar="NAME",
        default="mixture",
        show_default=True,
        help="What is trained: mixture, mixture-softmax, digits, digits-softmax (extra: converge), "
        "or your own package.module:function.",
    ),
    click.option(
        "--epochs",
        metavar="N",
        callback=one(read_number),
        default="5",
        show_default=True,
        help="Passes over the task's data by all workers together.",
    ),
    click.option(
        "--task-batch-size",
        type=int,
        metavar="N",
        default=16,
        show_default=True,
        help="Task samples per worker and gradient.",
    ),
    click.option(
        "--lr", metavar="RATE", callback=one(read_number), default="0.02", show_default=True,
        help="Learning rate for the batch of one worker.",
    ),
    click.option(
        "--lr-scaling",
        metavar="none|linear|square-root",
        default="linear",
        show_default=True,
        help="How the learning rate grows with the number of gradients per step.",
    ),
    click.option(
        "--lr-by-staleness", is_flag=True, help="Divide each gradient by its staleness + 1."
    ),
    click.option(
        "--warmup-epochs", metavar="N", callback=one(read_number), default="0", show_default=True,
        help="Epochs over which the learning rate rises from 0.",
    ),
    click.option(
        "--momentum", metavar="M", callback=one(read_number), default="0.9", show_default=True,
        help="Momentum of SGD, below 1.",
    ),
    click.option(
        "--momentum-at",
        metavar="server|worker",
        default="server",
        show_default=True,
        help="Where momentum is kept.",
    ),
    click.option(
        "--weight-decay", metavar="W", callback=one(read_number), default="0", show_default=True,
        help="Weight decay of SGD.",
    ),
    click.option("--evaluations", type=int, metavar="N", default=20, show_default=True,
                 help="Number of times that accuracy is measured."),
)  # fmt: skip


@click.command()
@job_options(lists=True)
@all_of(TRAINING)
@click.option(
    "--seeds",
    type=int,
    metavar="N",
    default=5,
    show_default=True,
    help="Training runs of each job.",
)
@click.option(
    "--target",
    metavar="ACCURACY",
    callback=one(read_number),
    help="Report the time to this accuracy.  [default: 98 % of the best]",
)
@click.option("--noise", is_flag=True, help="Also measure the gradient noise scale.")
@click.option(
    "--processes", type=int, metavar="N", help="Number of processes.  [default: processor cores]"
)
@click.option(
    "--replay",
    "schedules",
    multiple=True,
    metavar="FILE",
    help="Schedule written by perfmodel predict --schedule, instead of a job; repeatable.",
)
@click.option(
    "--published",
    is_flag=True,
    help="Print published accuracies of the same algorithms instead of training.",
)
@click.option("--csv", metavar="FILE", help="Write the curves as CSV.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--plot", metavar="FILE", help="Draw it as png, svg or pdf (extra: plot).")
def converge(
    flags: JobFlags, csv: str | None, as_json: bool, plot: str | None, **given: Any
) -> None:  # fmt: skip
    """Train a small task in the predicted order of a job's updates, to see accuracy over time.

    The job determines the speed, the task the learning. Job options take lists, as in perfmodel
    sweep; each combination is trained.

    \b
    perfmodel converge --model resnet50 --device v100 --workers 8 --arch bsp,asp --epochs 5
    perfmodel converge --model resnet50 --device v100 --workers 4,8,16 --arch asp --momentum 0.9
    """
    from perfmodel.cli.printing import convergence as report

    if given.pop("published"):
        report.published(as_json=as_json)
        return
    from perfmodel.replay.optimizer import Optimizer
    from perfmodel.results.schedule import Schedule
    from perfmodel.studies import convergence

    check_outputs(csv, plot)
    training = convergence.TrainingSetup(
        task=given["task"],
        epochs=given["epochs"],
        batch_size=given["task_batch_size"],
        evaluations=given["evaluations"],
        noise_batches=convergence.NOISE_BATCHES if given["noise"] else 0,
        optimizer=Optimizer(
            learning_rate=given["lr"],
            momentum=given["momentum"],
            momentum_at=given["momentum_at"],
            weight_decay=given["weight_decay"],
            scaling=given["lr_scaling"],
            by_staleness=given["lr_by_staleness"],
            warmup_epochs=given["warmup_epochs"],
        ),
    )
    how = {name: given[name] for name in ("seeds", "target", "processes")}
    if given["schedules"]:
        flags = flags.typed()
    arguments = flags.arguments(flags.job, lists=True)
    with progress() as advance:
        if given["schedules"]:
            if any(arguments.values()):
                raise InputError("--replay: a schedule has its own job; give no other")
            read = {path: Schedule.read(path) for path in given["schedules"]}
            found = convergence.retrace(read, training, **how, progress=advance)
        else:
            found = convergence.converge(training, **how, **arguments, progress=advance)
    if put_out(found, csv, as_json, plot):
        report.convergence(found)
