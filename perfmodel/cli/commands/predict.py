"""``perfmodel predict`` and ``report``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from perfmodel.base.errors import InputError, TooLargeError
from perfmodel.cli import types
from perfmodel.cli.jobs import JobFlags, OfJobs, job_options, model_options
from perfmodel.cli.options import (
    Arguments,
    File,
    Outputs,
    option,
    outputs,
    progress,
    run_options,
    source_of,
    switch,
)
from perfmodel.cli.verbosity import verbosity

if TYPE_CHECKING:
    from perfmodel.api import PredictArguments
    from perfmodel.calibration.traced import Replay
    from perfmodel.inputs.job import Job
    from perfmodel.results.prediction import Prediction


@click.command(cls=OfJobs)
@job_options()
@model_options("fine", "both")
@run_options
@outputs("json", "plot")
@switch("--fit", "Take the largest batch that fits the device with 90%.")
@option(
    "--from-trace",
    types.INPUT,
    "Trace of a rank of torch.profiler instead of --model: its job, changed by the flags. "
    "Repeatable.",
    multiple=True,
)
@option("--traced-ranks", types.WHOLE, "Ranks of the traced job.  [default: as traced]")
@option("--trace", types.OUTPUT, "Write two iterations as a trace for Perfetto.")
@option("--update-order", types.BINARY, "Write the order of reads and updates (.npz).")
@option("--updates", types.WHOLE, "Gradients in the schedule.  [default: 1000 per worker]")
def predict(
    flags: JobFlags,
    how: Arguments,
    out: Outputs,
    fit: bool,
    from_trace: tuple[str, ...],
    traced_ranks: int | None,
    trace: str | None,
    update_order: str | None,
    updates: int | None,
    **run: Any,
) -> None:
    """The answer has eight lines at most. Notes follow, and the assumptions that matter: defaults
    for which another value changes the throughput by more than 2 %, by the formulas.

    \b
    perfmodel predict --model resnet18 --arch ps --workers 8
    perfmodel predict --model vgg16 --device v100 --arch ring --workers 16 --bandwidth 25Gbps
    perfmodel predict --from-trace rank0.json --from-trace rank1.json --workers 16
    """
    import perfmodel.api as api
    from perfmodel.inputs.job_arguments import per_worker

    fidelity = how["fidelity"]
    check_iterations(run["iterations"], fidelity)
    if trace is not None and fidelity in ("coarse", "auto"):
        raise InputError("--trace: shows a simulation; needs --fidelity fine")
    if update_order is not None and fidelity in ("coarse", "auto"):
        raise InputError("--update-order: comes from a simulation; needs --fidelity fine")
    if updates is not None and update_order is None:
        raise InputError("--updates: is the length of a schedule; needs --update-order")
    out.check(trace, update_order)
    arguments, replayed = flags.arguments(), None
    if from_trace:
        replayed, arguments = _replayed(from_trace, traced_ranks, arguments, fidelity)
    job = api.make_job(**per_worker(arguments, "--global-batch-size"))
    if fit:
        if {"batch_size", "global_batch_size"} & arguments.keys():
            raise InputError("--fit: chooses the batch size; leave out the one that is given")
        from perfmodel.studies.fitting import largest_batch

        job = largest_batch(job)
    how |= run
    coarse = None
    if fidelity == "both":
        coarse = api.predict(job, **how | {"fidelity": "coarse"})
        how["fidelity"] = "fine"
    by_default = source_of("fidelity") is ParameterSource.DEFAULT
    formulas_do = by_default and coarse is None and trace is None and update_order is None
    prediction = _predicted(job, how, formulas_do=formulas_do)
    written = _files(prediction, trace, update_order, updates)
    values, remedy = None, ""
    if prediction.memory.shortage(prediction.device):
        from perfmodel.studies import fitting

        remedies = [change.flags for change in fitting.remedies(job)]
        remedy = fitting.in_words(remedies)
        values = {**prediction.to_dict(), "remedies": remedies}
    if coarse is not None:
        from perfmodel.sweeping.comparison import both_to_dict

        values = both_to_dict(prediction, coarse)
    if replayed is not None:
        values = {**(values or prediction.to_dict()), "replay": replayed.to_dict()}
    if not out.put(prediction, written, values):
        return
    if replayed is not None:
        from perfmodel.cli.printing.text import show

        show(replayed.text)
    worth = prediction.effects if verbosity() >= 0 else ()
    if coarse is not None:
        from perfmodel.cli.printing.studies import both

        both(prediction, coarse, worth)
    else:
        from perfmodel.cli.printing import prediction as printing

        printing.prediction(prediction, worth, remedy)


def _predicted(job: Job, how: Arguments, *, formulas_do: bool) -> Prediction:
    """Predict a job: by formulas, with a note, if it is too large to simulate, their error is known
    and ``formulas_do``, that is, nothing is asked for that only a simulation has."""
    import msgspec

    import perfmodel.api as api

    try:
        with progress() as advance:
            return api.predict(job, **how, progress=advance)
    except TooLargeError as error:
        if not formulas_do or how.get("iterations") is not None:
            raise
        formulas = api.predict(job, **how | {"fidelity": "coarse"})
        if formulas.error_band is None or formulas.error_band.p90 is None:
            raise
        return msgspec.structs.replace(formulas, notes=(*formulas.notes, f"coarse, as {error}"))


def _files(
    prediction: Prediction, trace: str | None, update_order: str | None, updates: int | None
) -> list[File]:
    """Files of a simulated prediction: a trace, and an order of updates."""
    written: list[File] = []
    if trace is not None:
        import json

        data = json.dumps(prediction.to_chrome_trace()).encode()
        written.append((trace, data, "; open it at https://ui.perfetto.dev"))
    if update_order is not None:
        with progress() as advance:
            data = prediction.schedule(updates, progress=advance).to_bytes()
        written.append((update_order, data, "; replay it with perfmodel converge --replay"))
    return written


def _replayed(
    paths: tuple[str, ...], ranks: int | None, arguments: Arguments, fidelity: str
) -> tuple[Replay, Arguments]:
    """The replay of traces, and the arguments of its job with others in place of its own."""
    from perfmodel.calibration.traced import replay

    for name in ("model", "workload", "device"):
        if arguments.get(name) is not None:
            raise InputError(f"--from-trace: has its own {name}; leave out --{name}")
    how = "fine" if fidelity in ("both", "auto") else fidelity
    batch_size = arguments.get("batch_size")
    known = {} if ranks is None else {"workers": ranks}
    replayed = replay(paths, batch_size=batch_size, fidelity=how, **known)
    traced = replayed.arguments
    options = {**traced.get("options", {}), **arguments.get("options", {})}
    if arguments.get("arch", traced["arch"]) != traced["arch"]:
        options = dict(arguments.get("options", {}))
    given = {name: value for name, value in arguments.items() if value not in (None, ())}
    return replayed, {**traced, **given, "options": options}


def check_iterations(iterations: int | None, fidelity: str) -> None:
    """Refuse --iterations of what is not simulated."""
    if iterations is not None and fidelity != "fine":
        raise InputError("--iterations: only a simulation has a start; needs --fidelity fine")


ARGUMENTS = "perfmodel.arguments"
"""Key of the arguments as they were typed, in the context of the command."""


class ReportCommand(OfJobs):
    """A command that keeps its arguments as they were typed."""

    def parse_args(self, context: click.Context, args: list[str]) -> list[str]:
        """Keep the arguments before they are read."""
        context.meta[ARGUMENTS] = list(args)
        return super().parse_args(context, args)


@click.command(cls=ReportCommand)
@job_options()
@model_options("fine")
@run_options
@option("--output", types.OUTPUT, "The page to write (extra: report).", default="report.html")
@outputs("json")
@click.pass_context
def report(
    context: click.Context,
    /,
    flags: JobFlags,
    how: PredictArguments,
    output: str,
    out: Outputs,
    **run: Any,
) -> None:
    """It needs no network. It shows the prediction with its interval, the effect of assumptions,
    where the time goes, a timeline of two iterations, idleness, staleness, the scaling curve, and
    what would be faster.

    \b
    perfmodel report --model resnet50 --device v100 --arch ps --workers 8 --output report.html
    """
    import shlex

    from perfmodel.cli import config
    from perfmodel.studies import reports

    check_iterations(run["iterations"], how["fidelity"])
    out._replace(page=output).check()
    limits = {name: value for name, value in run.items() if value is not None}
    command = shlex.join(["perfmodel", "report", *context.meta[ARGUMENTS]])
    if context.default_map:
        command = f"PERFMODEL_CONFIG={shlex.quote(str(config.location()))} {command}"
    with progress() as advance:
        result = reports.report(
            **{**how, **flags.arguments(), **limits}, command=command, progress=advance
        )
    out.put(result, [(output, result.to_html().encode(), "; open it in a browser")])
