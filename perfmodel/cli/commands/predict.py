"""``perfmodel predict``, ``sweep``, ``compare`` and ``explain``."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import click

from perfmodel.base.errors import InputError
from perfmodel.cli import types
from perfmodel.cli.jobs import JobFlags, ModelFlags, job_options, model_options
from perfmodel.cli.options import (
    Outputs,
    executor_options,
    outputs,
    progress,
    remark,
    run_options,
    verbosity,
    whole_option,
)

if TYPE_CHECKING:
    from perfmodel.results.prediction import Prediction
    from perfmodel.sweeping.grids import Skipped


@click.command()
@job_options()
@model_options("fine", "both")
@run_options
@outputs("json", "plot")
@click.option("--trace", type=types.OUTPUT, help="Write two iterations as a trace for Perfetto.")
@click.option("--schedule", type=types.BINARY, help="Write the order of reads and updates (.npz).")
@whole_option("--updates", "Number of gradients in the schedule.  [default: 1000 per worker]")
def predict(
    flags: JobFlags,
    how: ModelFlags,
    out: Outputs,
    trace: str | None,
    schedule: str | None,
    updates: int | None,
    **totals: int | None,
) -> None:
    """The answer has eight lines at most. Notes follow, and the assumptions that matter: defaults
    for which another value changes the throughput by more than 2 %, by the formulas.

    \b
    perfmodel predict --model resnet18 --arch ps --workers 8
    perfmodel predict --model vgg16 --device v100 --arch ring --workers 16 --bandwidth 25Gbps
    """
    from perfmodel import api
    from perfmodel.inputs.job_arguments import per_worker

    fidelity = how.fidelity
    asked: dict[str, Any] = {**totals, **how.arguments()}
    if totals["iterations"] is not None and fidelity != "fine":
        raise InputError("--iterations: only a simulation has a start; needs --fidelity fine")
    if trace is not None and fidelity in ("coarse", "auto"):
        raise InputError("--trace: shows a simulation; needs --fidelity fine")
    if schedule is not None and fidelity in ("coarse", "auto"):
        raise InputError("--schedule: comes from a simulation; needs --fidelity fine")
    if updates is not None and schedule is None:
        raise InputError("--updates: is the length of a schedule; needs --schedule")
    out.check(trace, schedule)
    arguments = flags.arguments(flags.job)
    arguments = per_worker(arguments, "--global-batch-size")
    job = api.make_job(**arguments)
    if fidelity == "both":
        asked["fidelity"] = "fine"
    with progress() as advance:
        prediction = api.predict(job, **asked, progress=advance)
    other = api.predict(job, **asked | {"fidelity": "coarse"}) if fidelity == "both" else None
    written = []
    if trace is not None:
        import json

        data = json.dumps(prediction.to_chrome_trace()).encode()
        written.append((trace, data, "; open it at https://ui.perfetto.dev"))
    if schedule is not None:
        hint = "; replay it with perfmodel converge --replay"
        with progress() as advance:
            recorded = prediction.schedule(updates, progress=advance)
        written.append((schedule, recorded.to_bytes(), hint))
    if not out.put(prediction, written, None if other is None else _both(prediction, other)):
        return
    from perfmodel.cli.printing import prediction as report

    worth = prediction.effects if verbosity() >= 0 else ()
    if other is not None:
        from perfmodel.cli.printing.side_by_side import both

        both(prediction, other, worth)
    else:
        report.prediction(prediction, worth)


def _both(fine: Prediction, coarse: Prediction) -> Callable[[], str]:
    """Make JSON of a fine and a coarse prediction."""
    from perfmodel.sweeping.comparison import both_as_json

    return lambda: both_as_json(fine, coarse)


@click.command()
@job_options(lists=True)
@model_options("auto")
@click.option(
    "--noise-scale",
    type=types.NUMBER,
    metavar="SAMPLES",
    help="Gradient noise scale: also print statistical efficiency and goodput.",
)
@executor_options
@click.option(
    "--resume", type=types.FOLDER, help="Keep finished jobs there, and continue from them."
)
@outputs("csv", "parquet", "json", "plot", "report")
def sweep(
    flags: JobFlags,
    how: ModelFlags,
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
    arguments = {**how.arguments(), **flags.arguments(flags.job, lists=True)}
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
        from perfmodel.predicting.effects import effects

        worth = effects(result.fastest) if result.fastest is not None and verbosity() >= 0 else ()
        studies.sweep(result, worth)
    _say(result.notes, result.skipped)


@click.command()
@job_options(lists=True, jobs=True)
@model_options("fine")
@outputs("json", "plot", "report")
def compare(flags: JobFlags, how: ModelFlags, out: Outputs) -> None:
    """The jobs are files, every combination of lists of values as in perfmodel sweep, or both.

    \b
    perfmodel compare --model vgg16 --device v100 --workers 8 --arch ring,ps --servers 1,4
    perfmodel compare --job old.toml --job new.toml
    """
    from perfmodel.sweeping import comparison

    out.check()
    asked = how.arguments()
    paths: tuple[str | None, ...] = flags.job or (None,)
    result = comparison.gathered([(path, flags.arguments(path, lists=True)) for path in paths])
    with progress() as advance:
        answer = comparison.compare(result.jobs, result.names, **asked, progress=advance)
    if out.put(answer):
        from perfmodel.cli.printing import studies
        from perfmodel.studies.robustness import robustness

        shared = robustness(result.jobs) if verbosity() >= 0 else ()
        studies.comparison(answer, shared)
    _say(result.notes, result.skipped)


@click.command()
@job_options()
@click.option(
    "--against", type=types.ARCHITECTURE, help="Where is this architecture faster, or slower?"
)
@outputs("json", "plot")
def explain(flags: JobFlags, against: str | None, out: Outputs) -> None:
    """Formulas say at how many workers, which bandwidth or batch size another phase takes longer,
    and how many workers saturate a server.

    \b
    perfmodel explain --model resnet50 --device v100 --arch ps --workers 8
    perfmodel explain --model resnet50 --device v100 --arch asp --workers 8 --against ring
    """
    import json

    from perfmodel import api
    from perfmodel.inputs.job_arguments import per_worker
    from perfmodel.studies import crossovers

    out.check()
    arguments = per_worker(flags.arguments(flags.job), "--global-batch-size")
    job = api.make_job(**arguments)
    result = crossovers.explain(job)
    others: tuple[crossovers.Crossover, ...] = ()
    if against is not None:
        name = arguments.get("arch", job.architecture.name)
        others = crossovers.against(job, job.with_(arch=against), name, against)
    values = result.to_dict() | {"against": [crossover.to_dict() for crossover in others]}
    if out.put(result, as_json=lambda: json.dumps(values, indent=2)):
        from perfmodel.cli.printing import studies
        from perfmodel.predicting.effects import effects

        worth = effects(job) if verbosity() >= 0 else ()
        studies.explanation(result, job, others, worth)


def _say(notes: Iterable[str], skipped: Iterable[Skipped]) -> None:
    """Print on standard error the skipped jobs of a sweep, and the reasons."""
    from perfmodel.sweeping.grids import reasons

    for note in notes:
        remark(f"note: {note}")
    for line in reasons(skipped):
        remark(line)
