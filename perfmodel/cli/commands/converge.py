"""``perfmodel converge``."""

from __future__ import annotations

from typing import Any

import click

from perfmodel.base.errors import InputError
from perfmodel.cli import types
from perfmodel.cli.jobs import JobFlags, job_options
from perfmodel.cli.options import Decorator, Outputs, all_of, outputs, progress, whole_option


def _number(flag: str, metavar: str, default: str, text: str) -> Decorator:
    """An option that is a number."""
    kind = types.NUMBER
    return click.option(
        flag, type=kind, metavar=metavar, default=default, show_default=True, help=text
    )


def _words(flag: str, words: list[str], default: str, text: str) -> Decorator:
    """An option that is one of a few words."""
    kind = types.Words(words)
    return click.option(flag, type=kind, default=default, show_default=True, help=text)


TRAINING = (
    click.option(
        "--task",
        type=types.suggested("mixture", "mixture-softmax", "digits", "digits-softmax"),
        default="mixture",
        show_default=True,
        help="What is trained: mixture, mixture-softmax, digits, digits-softmax (extra: converge), "
        "or your own package.module:function.",
    ),
    _number("--epochs", "N", "5", "Passes over the task's data by all workers together."),
    whole_option(
        "--task-batch-size", "Task samples per worker and gradient.", default=16, show_default=True
    ),
    _number("--lr", "RATE", "0.02", "Learning rate for the batch of one worker."),
    _words(
        "--lr-scaling",
        ["none", "linear", "square-root"],
        "linear",
        "How the learning rate grows with the number of gradients per step.",
    ),
    click.option(
        "--lr-by-staleness", is_flag=True, help="Divide each gradient by its staleness + 1."
    ),
    _number("--warmup-epochs", "N", "0", "Epochs over which the learning rate rises from 0."),
    _number("--momentum", "M", "0.9", "Momentum of SGD, below 1."),
    _words("--momentum-at", ["server", "worker"], "server", "Where momentum is kept."),
    _number("--weight-decay", "W", "0", "Weight decay of SGD."),
    whole_option(
        "--evaluations", "Number of times that accuracy is measured.", default=20, show_default=True
    ),
    whole_option("--seeds", "Training runs of each job.", default=5, show_default=True),
)


@click.command()
@job_options(lists=True)
@all_of(TRAINING)
@click.option(
    "--target",
    type=types.NUMBER,
    metavar="ACCURACY",
    help="Report the time to this accuracy.  [default: 98 % of the best]",
)
@click.option("--noise", is_flag=True, help="Also measure the gradient noise scale.")
@whole_option("--jobs", "Number of local processes.  [default: processor cores]")
@click.option(
    "--replay",
    "schedules",
    type=types.INPUT,
    multiple=True,
    help="Schedule written by perfmodel predict --schedule, instead of a job; repeatable.",
)
@outputs("csv", "json", "plot")
def converge(flags: JobFlags, out: Outputs, **values: Any) -> None:
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
    if values["schedules"]:
        flags = JobFlags(flags.typed, {})
    arguments = flags.arguments(flags.job, lists=True)
    with progress() as advance:
        if values["schedules"]:
            if any(arguments.values()):
                raise InputError("--replay: a schedule has its own job; give no other")
            read = {path: Schedule.read(path) for path in values["schedules"]}
            result = convergence.retrace(read, training, **how, progress=advance)
        else:
            result = convergence.converge(training, **how, **arguments, progress=advance)
    if out.put(result):
        from perfmodel.cli.printing import convergence as report

        report.convergence(result)
