"""``perfmodel predict``, ``sweep``, ``compare`` and ``explain``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from perfmodel.base.errors import InputError
from perfmodel.cli import types
from perfmodel.cli.jobs import JobFlags, job_options, model_options
from perfmodel.cli.options import (
    File,
    Outputs,
    executor_options,
    option,
    outputs,
    progress,
    run_options,
)
from perfmodel.cli.verbosity import remark, verbosity

if TYPE_CHECKING:
    from perfmodel.api import PredictOptions
    from perfmodel.sweeping.comparison import Gathered
    from perfmodel.sweeping.sweeps import Sweep


@click.command()
@job_options()
@model_options("fine", "both")
@run_options
@outputs("json", "plot")
@option("--trace", types.OUTPUT, "Write two iterations as a trace for Perfetto.")
@option("--schedule", types.BINARY, "Write the order of reads and updates (.npz).")
@option("--updates", types.WHOLE, "Gradients in the schedule.  [default: 1000 per worker]")
def predict(
    flags: JobFlags,
    how: dict[str, Any],
    out: Outputs,
    trace: str | None,
    schedule: str | None,
    updates: int | None,
    **run: int | None,
) -> None:
    """The answer has eight lines at most. Notes follow, and the assumptions that matter: defaults
    for which another value changes the throughput by more than 2 %, by the formulas.

    \b
    perfmodel predict --model resnet18 --arch ps --workers 8
    perfmodel predict --model vgg16 --device v100 --arch ring --workers 16 --bandwidth 25Gbps
    """
    from perfmodel import api
    from perfmodel.inputs.job_arguments import per_worker

    fidelity = how["fidelity"]
    check_iterations(run["iterations"], fidelity)
    if trace is not None and fidelity in ("coarse", "auto"):
        raise InputError("--trace: shows a simulation; needs --fidelity fine")
    if schedule is not None and fidelity in ("coarse", "auto"):
        raise InputError("--schedule: comes from a simulation; needs --fidelity fine")
    if updates is not None and schedule is None:
        raise InputError("--updates: is the length of a schedule; needs --schedule")
    out.check(trace, schedule)
    job = api.make_job(**per_worker(flags.arguments(), "--global-batch-size"))
    how |= run
    coarse = None
    if fidelity == "both":
        coarse = api.predict(job, **how | {"fidelity": "coarse"})
        how["fidelity"] = "fine"
    with progress() as advance:
        prediction = api.predict(job, **how, progress=advance)
    written: list[File] = []
    if trace is not None:
        import json

        data = json.dumps(prediction.to_chrome_trace()).encode()
        written.append((trace, data, "; open it at https://ui.perfetto.dev"))
    if schedule is not None:
        with progress() as advance:
            data = prediction.schedule(updates, progress=advance).to_bytes()
        written.append((schedule, data, "; replay it with perfmodel converge --replay"))
    values = None
    if coarse is not None:
        from perfmodel.sweeping.comparison import both_to_dict

        values = both_to_dict(prediction, coarse)
    if not out.put(prediction, written, values):
        return
    from perfmodel.studies.sensitivity import effects

    worth = effects(job) if verbosity() >= 0 else ()
    if coarse is not None:
        from perfmodel.cli.printing.side_by_side import both

        both(prediction, coarse, worth)
    else:
        from perfmodel.cli.printing import prediction as printing

        printing.prediction(prediction, worth)


def check_iterations(iterations: int | None, fidelity: str) -> None:
    """Refuse --iterations of what is not simulated."""
    if iterations is not None and fidelity != "fine":
        raise InputError("--iterations: only a simulation has a start; needs --fidelity fine")


@click.command()
@job_options(lists=True)
@model_options("auto")
@option(
    "--noise-scale",
    types.NUMBER,
    "Gradient noise scale: also print statistical efficiency and goodput.",
    metavar="SAMPLES",
)
@executor_options
@option("--resume", types.FOLDER, "Keep finished jobs there, and continue from them.")
@outputs("csv", "parquet", "json", "plot", "report")
def sweep(
    flags: JobFlags,
    how: PredictOptions,
    out: Outputs,
    noise_scale: float | None,
    processes: int | None,
    dask: str | None,
    resume: str | None,
) -> None:
    """Options with a value take lists: 10Gbps,25Gbps. Lists of numbers may continue: 1,2,4..64
    doubles, 8,16..64 goes up by 8, 1..8 by 1.

    \b
    perfmodel sweep --model resnet50 --device v100 --arch ring,ps --workers 1,2,4..64
    perfmodel sweep --model vgg16 --device v100 --workers 8 --option servers=1..8 --plot servers.png
    """
    from perfmodel.sweeping import executors, sweeps

    out.check()
    arguments = {**how, **flags.arguments()}
    with executors.opened(processes, dask) as executor, progress() as advance:
        result = sweeps.sweep(
            **arguments,
            noise_scale_samples=noise_scale,
            executor=executor,
            resume=resume,
            progress=advance,
        )
    if out.put(result):
        from perfmodel.cli.printing import studies
        from perfmodel.studies.sensitivity import effects

        worth = effects(result.fastest) if result.fastest is not None and verbosity() >= 0 else ()
        studies.sweep(result, worth)
    _remark_skipped(result)


@click.command()
@job_options(lists=True, jobs=True)
@model_options("fine")
@outputs("json", "plot", "report")
def compare(flags: JobFlags, how: dict[str, Any], out: Outputs) -> None:
    """The jobs are files, every combination of lists of values as in perfmodel sweep, or both.

    \b
    perfmodel compare --model vgg16 --device v100 --workers 8 --arch ring,ps --servers 1,4
    perfmodel compare --job old.toml --job new.toml
    """
    from perfmodel.sweeping import comparison

    out.check()
    gathered = comparison.gathered([(path, flags.arguments(path)) for path in flags.jobs])
    with progress() as advance:
        result = comparison.compare(gathered.jobs, gathered.names, **how, progress=advance)
    if out.put(result):
        from perfmodel.cli.printing import studies
        from perfmodel.studies.robustness import robustness

        shared = robustness(gathered.jobs) if verbosity() >= 0 else ()
        studies.comparison(result, shared)
    _remark_skipped(gathered)


@click.command()
@job_options()
@option("--against", types.ARCHITECTURE, "Where is this architecture faster, or slower?")
@outputs("json", "plot")
def explain(flags: JobFlags, against: str | None, out: Outputs) -> None:
    """Formulas say at how many workers, which bandwidth or batch size another phase takes longer,
    and how many workers saturate a server.

    \b
    perfmodel explain --model resnet50 --device v100 --arch ps --workers 8
    perfmodel explain --model resnet50 --device v100 --arch asp --workers 8 --against ring
    """
    from perfmodel import api
    from perfmodel.inputs.job_arguments import per_worker
    from perfmodel.studies import crossovers

    out.check()
    arguments = per_worker(flags.arguments(), "--global-batch-size")
    job = api.make_job(**arguments)
    result = crossovers.explain(job)
    others: tuple[crossovers.Crossover, ...] = ()
    if against is not None:
        name = arguments.get("arch", job.architecture.name)
        others = crossovers.against(job, job.with_(arch=against), name, against)
    values = result.to_dict() | {"against": [crossover.to_dict() for crossover in others]}
    if out.put(result, values=values):
        from perfmodel.cli.printing import studies
        from perfmodel.studies.sensitivity import effects

        worth = effects(job) if verbosity() >= 0 else ()
        studies.explanation(result, job, others, worth)


def _remark_skipped(result: Sweep | Gathered) -> None:
    """Print on standard error the skipped jobs of a sweep, and the reasons."""
    from perfmodel.sweeping.grids import reasons

    for line in (*(f"note: {note}" for note in result.notes), *reasons(result.skipped)):
        remark(line)
