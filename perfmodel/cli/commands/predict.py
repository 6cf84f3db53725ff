"""``perfmodel predict``, ``sweep``, ``compare`` and ``explain``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import click

from perfmodel.base.errors import InputError
from perfmodel.cli.jobs import JobFlags, ModelFlags, job_options, model_options
from perfmodel.cli.options import (
    check_files,
    check_outputs,
    check_page,
    drawn,
    executor_options,
    one,
    page_option,
    progress,
    put_out,
    read_number,
    remark,
    verbosity,
    write_files,
    write_page,
)

if TYPE_CHECKING:
    from perfmodel.studies.grids import Skipped


@click.command()
@job_options()
@model_options("fine", "both")
@click.option(
    "--iterations", type=int, metavar="N", help="Predict the first N iterations, not the long run."
)
@click.option(
    "--run-iterations", type=int, metavar="N", help="Give the interval for a run of N iterations."
)
@click.option("--dataset-size", type=int, metavar="N", help="Samples per epoch, for training time.")
@click.option("--epochs", type=int, metavar="N", help="Epochs of the training time.  [default: 1]")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--trace", metavar="FILE", help="Write two iterations as a trace for Perfetto.")
@click.option("--schedule", metavar="FILE", help="Write the order of reads and updates (.npz).")
@click.option("--updates", type=int, metavar="N", help="Number of gradients in the schedule.")
@click.option("--plot", metavar="FILE", help="Draw it as png, svg or pdf (extra: plot).")
def predict(
    flags: JobFlags,
    how: ModelFlags,
    as_json: bool,
    trace: str | None,
    schedule: str | None,
    updates: int | None,
    plot: str | None,
    **totals: int | None,
) -> None:
    """Predict how fast a training job runs, and why.

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
    check_files(plot, trace, schedule)
    arguments = flags.arguments(flags.job)
    given = per_worker(arguments, "--global-batch-size")
    job = api.make_job(**given)
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
    write_files([*written, *drawn(prediction, plot)])
    if as_json and other is not None:
        from perfmodel.studies.comparison import both_as_json

        click.echo(both_as_json(prediction, other))
    elif as_json:
        click.echo(prediction.to_json())
    else:
        from perfmodel.cli.printing import prediction as report
        from perfmodel.studies.sensitivity import effects

        worth = effects(job) if verbosity() >= 0 else ()
        if other is not None:
            from perfmodel.cli.printing.side_by_side import both

            both(prediction, other, worth)
        else:
            report.prediction(prediction, worth)


@click.command()
@job_options(lists=True)
@model_options("auto")
@click.option(
    "--noise-scale",
    metavar="SAMPLES",
    callback=one(read_number),
    help="Gradient noise scale: also print statistical efficiency and goodput.",
)
@executor_options
@click.option(
    "--resume", metavar="FOLDER", help="Keep finished jobs there, and continue from them."
)
@click.option("--csv", metavar="FILE", help="Write the table as CSV.")
@click.option("--parquet", metavar="FILE", help="Write the table as Parquet (extra: parquet).")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--plot", metavar="FILE", help="Draw it as png, svg or pdf (extra: plot).")
@page_option
def sweep(
    flags: JobFlags,
    how: ModelFlags,
    noise_scale: float | None,
    processes: int | None,
    dask: str | None,
    resume: str | None,
    csv: str | None,
    parquet: str | None,
    as_json: bool,
    plot: str | None,
    page: str | None,
) -> None:
    """Predict every combination of lists of values.

    Options with a value take lists: 10Gbps,25Gbps. Lists of numbers may continue: 1,2,4..64
    doubles, 8,16..64 goes up by 8, 1..8 by 1.

    \b
    perfmodel sweep --model resnet50 --device v100 --arch ring,ps --workers 1,2,4..64
    perfmodel sweep --model vgg16 --device v100 --workers 8 --option servers=1..8 --plot servers.png
    """
    from perfmodel.studies import executors, sweeps

    check_outputs(csv, plot, parquet)
    check_page(page)
    arguments = {**how.arguments(), **flags.arguments(flags.job, lists=True)}
    with executors.opened(processes, dask) as executor, progress() as advance:
        found = sweeps.sweep(
            **arguments,
            noise_scale_samples=noise_scale,
            executor=executor,
            resume=resume,
            progress=advance,
        )
    if parquet is not None:
        write_files([(parquet, found.to_parquet(), "")])
    write_page(found, page)
    if put_out(found, csv, as_json, plot):
        from perfmodel.cli.printing import studies
        from perfmodel.studies.sensitivity import effects

        worth = effects(found.fastest) if found.fastest is not None and verbosity() >= 0 else ()
        studies.sweep(found, worth)
    _say(found.notes, found.skipped)


@click.command()
@job_options(lists=True, jobs=True)
@model_options("fine")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--plot", metavar="FILE", help="Draw it as png, svg or pdf (extra: plot).")
@page_option
def compare(
    flags: JobFlags, how: ModelFlags, as_json: bool, plot: str | None, page: str | None
) -> None:
    """Put jobs side by side, and say why one is faster than another.

    The jobs are files, every combination of lists of values as in perfmodel sweep, or both.

    \b
    perfmodel compare --model vgg16 --device v100 --workers 8 --arch ring,ps --servers 1,4
    perfmodel compare --job old.toml --job new.toml
    """
    from perfmodel.studies import comparison

    check_files(plot)
    check_page(page)
    asked = how.arguments()
    paths: tuple[str | None, ...] = flags.job or (None,)
    found = comparison.gathered([(path, flags.arguments(path, lists=True)) for path in paths])
    with progress() as advance:
        answer = comparison.compare(found.jobs, found.names, **asked, progress=advance)
    write_files(drawn(answer, plot))
    write_page(answer, page)
    if as_json:
        click.echo(answer.to_json())
    else:
        from perfmodel.cli.printing import studies
        from perfmodel.studies.robustness import robustness

        shared = robustness(found.jobs) if verbosity() >= 0 else ()
        studies.comparison(answer, shared)
    _say(found.notes, found.skipped)


@click.command()
@job_options()
@click.option("--against", metavar="NAME", help="Where is this architecture faster, or slower?")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--plot", metavar="FILE", help="Draw it as png, svg or pdf (extra: plot).")
def explain(flags: JobFlags, against: str | None, as_json: bool, plot: str | None) -> None:
    """Say which phase of an iteration rules, and where it stops ruling.

    By the formulas of the coarse model: at how many workers, which bandwidth or batch size another
    phase takes longer, and how many workers saturate a server.

    \b
    perfmodel explain --model resnet50 --device v100 --arch ps --workers 8
    perfmodel explain --model resnet50 --device v100 --arch asp --workers 8 --against ring
    """
    from perfmodel import api
    from perfmodel.cli.printing import studies
    from perfmodel.inputs.job_arguments import per_worker
    from perfmodel.studies import crossovers

    check_files(plot)
    arguments = per_worker(flags.arguments(flags.job), "--global-batch-size")
    job = api.make_job(**arguments)
    found = crossovers.explain(job)
    write_files(drawn(found, plot))
    others: tuple[crossovers.Crossover, ...] = ()
    if against is not None:
        name = arguments.get("arch", job.architecture.name)
        others = crossovers.against(job, job.with_(arch=against), name, against)
    if as_json:
        import json

        values = found.to_dict() | {"against": [c.to_dict() for c in others]}
        click.echo(json.dumps(values, indent=2))
    else:
        from perfmodel.studies.sensitivity import effects

        worth = effects(job) if verbosity() >= 0 else ()
        studies.explanation(found, job, others, worth)


def _say(notes: Iterable[str], skipped: Iterable[Skipped]) -> None:
    """Print on standard error the skipped jobs of a sweep, and the reasons."""
    from perfmodel.studies.grids import reasons

    for note in notes:
        remark(f"note: {note}")
    for line in reasons(skipped):
        remark(line)
