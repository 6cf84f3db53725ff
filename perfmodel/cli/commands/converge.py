"""``perfmodel converge``."""

from __future__ import annotations

from typing import Any

import click

from perfmodel.base.errors import InputError
from perfmodel.cli import types
from perfmodel.cli.jobs import JobFlags, OfJobs, job_options
from perfmodel.cli.options import Outputs, all_of, option, outputs, progress, switch

WHOLE, NUMBER = types.WHOLE, types.NUMBER
SCALINGS, PLACES = types.Words(["none", "linear", "square-root"]), types.Words(["server", "worker"])

TRAINING = all_of(
    option(
        "--task",
        types.suggested("mixture", "mixture-softmax", "digits", "digits-softmax", name="TASK"),
        "What is trained: mixture, mixture-softmax, digits, digits-softmax (extra: converge), "
        "or your own package.module:function.",
        default="mixture",
    ),
    option("--epochs", NUMBER, "Passes over the task's data by all workers together.", default="5"),
    option("--task-batch-size", WHOLE, "Task samples per worker and gradient.", default=16),
    option("--lr", NUMBER, "Learning rate for the batch of one worker.", default="0.02"),
    option("--lr-scaling", SCALINGS, "How the rate grows with gradients.", default="linear"),
    switch("--lr-by-staleness", "Divide each gradient by its staleness + 1."),
    option("--warmup-epochs", NUMBER, "Epochs in which the rate rises from 0.", default="0"),
    option("--momentum", NUMBER, "Momentum of SGD, below 1.", default="0.9"),
    option("--momentum-at", PLACES, "Where momentum is kept.", default="server"),
    option("--weight-decay", NUMBER, "Weight decay of SGD.", default="0"),
    option("--evaluations", WHOLE, "Number of times that accuracy is measured.", default=20),
    option("--seeds", WHOLE, "Training runs of each job.", default=5),
)


@click.command(cls=OfJobs)
@job_options(lists=True)
@TRAINING
@option(
    "--target",
    types.number("ACCURACY"),
    "Report the time to this accuracy.  [default: 98 % of the best]",
)
@switch("--noise", "Also measure the gradient noise scale.")
@option("--jobs", WHOLE, "Number of local processes.  [default: processor cores]")
@option(
    "--replay",
    types.INPUT,
    "Schedule written by perfmodel predict --update-order, instead of a job; repeatable.",
    "schedules",
    multiple=True,
)
@outputs("csv", "json", "plot")
def converge(flags: JobFlags, out: Outputs, schedules: tuple[str, ...], **values: Any) -> None:
    """The job determines the speed, the task the learning. Job options take lists, as in perfmodel
    sweep; each combination is trained.

    \b
    perfmodel converge --model resnet50 --device v100 --workers 8 --arch bsp,asp --epochs 5
    perfmodel converge --model resnet50 --device v100 --workers 4,8,16 --arch asp --momentum 0.9
    """
    from perfmodel.replay.optimizer import Optimizer
    from perfmodel.results.schedule import Schedule
    from perfmodel.sweeping import convergence

    out.check()
    training = convergence.TrainingSetup(
        task=values["task"],
        epochs=values["epochs"],
        batch_size=values["task_batch_size"],
        evaluations=values["evaluations"],
        noise_batches=convergence.NOISE_BATCHES if values["noise"] else 0,
        optimizer=Optimizer(
            learning_rate=values["lr"],
            momentum=values["momentum"],
            momentum_at=values["momentum_at"],
            weight_decay=values["weight_decay"],
            scaling=values["lr_scaling"],
            by_staleness=values["lr_by_staleness"],
            warmup_epochs=values["warmup_epochs"],
        ),
    )
    how = {name: values[name] for name in ("seeds", "target")} | {"processes": values["jobs"]}
    with progress() as advance:
        if schedules:
            if any(flags._replace(configured={}).arguments().values()):
                raise InputError("--replay: a schedule has its own job; give no other")
            read = {path: Schedule.read(path) for path in schedules}
            result = convergence.retrace(read, training, **how, progress=advance)
        else:
            arguments = flags.arguments()
            result = convergence.converge(training, **how, **arguments, progress=advance)
    if out.put(result):
        from perfmodel.cli.printing import convergence as printing

        printing.convergence(result)
