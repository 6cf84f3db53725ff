"""``perfmodel sweep``, ``compare``, ``explain``, ``advise`` and ``require``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from perfmodel.base.errors import InputError
from perfmodel.cli import types
from perfmodel.cli.jobs import JobFlags, OfJobs, fidelity_option, job_options, model_options
from perfmodel.cli.options import (
    Arguments,
    Outputs,
    executor_options,
    option,
    outputs,
    progress,
    source_of,
    switch,
    training_options,
)
from perfmodel.cli.verbosity import remark, verbosity

if TYPE_CHECKING:
    from perfmodel.api import Fidelity, PredictArguments
    from perfmodel.sweeping.comparison import Gathered
    from perfmodel.sweeping.sweeps import Sweep


@click.command(cls=OfJobs)
@job_options(lists=True)
@model_options("auto")
@option(
    "--noise-scale",
    types.number("SAMPLES"),
    "Gradient noise scale: also print statistical efficiency and goodput.",
)
@executor_options
@option("--resume", types.FOLDER, "Keep finished jobs there, and continue from them.")
@outputs("csv", "parquet", "json", "plot", "report")
def sweep(
    flags: JobFlags,
    how: PredictArguments,
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
        from perfmodel.predicting.effects import effects

        worth = effects(result.fastest) if result.fastest is not None and verbosity() >= 0 else ()
        studies.sweep(result, worth)
    _remark_skipped(result)


@click.command(cls=OfJobs)
@job_options(lists=True, jobs=True)
@model_options("fine")
@switch("--layouts", "Rank the layouts of one language model, those that fit first, by formulas.")
@option("--micro-batch-size", types.Several(types.WHOLE), "Of --layouts.  [default: 1,2,4,8]")
@outputs("json", "plot", "report")
def compare(
    flags: JobFlags, how: Arguments, out: Outputs, layouts: bool, micro_batch_size: object
) -> None:
    """The jobs are files, every combination of lists of values as in perfmodel sweep, or both. With
    --layouts, how --devices divide a language model: what is not given is varied as in plan.

    \b
    perfmodel compare --model vgg16 --device v100 --workers 8 --arch ring,ps --servers 1,4
    perfmodel compare --job old.toml --job new.toml
    perfmodel compare --layouts --model llama-13b --device a100-80 --cluster dgx-a100 --devices 32
    """
    from perfmodel.sweeping import comparison

    out.check()
    if layouts:
        _compare_layouts(flags, how, out, micro_batch_size)
        return
    if micro_batch_size is not None:
        raise InputError("--micro-batch-size: needs --layouts")
    gathered = comparison.gathered([(path, flags.arguments(path)) for path in flags.jobs])
    with progress() as advance:
        result = comparison.compare(gathered.jobs, gathered.names, **how, progress=advance)
    if out.put(result):
        from perfmodel.cli.printing import studies
        from perfmodel.studies.robustness import robustness

        shared = robustness(gathered.jobs) if verbosity() >= 0 else ()
        studies.comparison(result, shared)
    _remark_skipped(gathered)


def _compare_layouts(flags: JobFlags, how: Arguments, out: Outputs, size: object) -> None:
    """Compare layouts of one job."""
    from perfmodel.planning.layout_comparison import compare_layouts

    if len(flags.jobs) > 1:
        raise InputError("--layouts: of one job, give one job file")
    if how["fidelity"] != "coarse" and source_of("fidelity") is ParameterSource.COMMANDLINE:
        raise InputError("--fidelity: layouts are compared by formulas (allowed: coarse)")
    with progress() as advance:
        result = compare_layouts(**flags.arguments(), micro_batch_size=size, progress=advance)
    if out.put(result):
        from perfmodel.cli.printing import layouts as printing

        printing.comparison(result)


@click.command(cls=OfJobs)
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
    import perfmodel.api as api
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
        from perfmodel.predicting.effects import effects

        worth = effects(job) if verbosity() >= 0 else ()
        studies.explanation(result, job, others, worth)


def _remark_skipped(result: Sweep | Gathered) -> None:
    """Print on standard error the skipped jobs of a sweep, and the reasons."""
    from perfmodel.sweeping.grids import reasons

    for line in (*(f"note: {note}" for note in result.notes), *reasons(result.skipped)):
        remark(line)


@click.command(cls=OfJobs)
@job_options()
@model_options("auto")
@outputs("json", "plot")
def advise(flags: JobFlags, how: PredictArguments, out: Outputs) -> None:
    """Each change is predicted, and recommended if the whole interval of its speed-up is above 1.
    Its effect on learning and published results of such changes are shown beside it.

    \b
    perfmodel advise --model vgg16 --device v100 --arch ps --workers 8
    """
    from perfmodel.studies import advice

    out.check()
    with progress() as advance:
        result = advice.advise(**{**how, **flags.arguments()}, progress=advance)
    if out.put(result):
        from perfmodel.cli.printing import studies

        studies.advice(result)


VARIABLES = types.suggested(
    *("bandwidth", "latency", "workers", "servers", "batch-size"),
    *("micro-batches", "pipeline", "tensor", "context"),
)
"""What can be required; numbers among the options of an architecture as well."""

AIM = types.Text(name="AIM")


@click.command(cls=OfJobs)
@click.argument("variable", type=VARIABLES, metavar="VARIABLE")
@option("--to", AIM, "Aim to reach, such as 'scaling>0.9'.", "aim", required=True)
@job_options()
@fidelity_option("coarse", "coarse", "auto", "fine")
@training_options
@outputs("json", "plot")
def require(
    variable: str,
    aim: str,
    flags: JobFlags,
    fidelity: Fidelity,
    dataset_size: int | None,
    epochs: int | None,
    out: Outputs,
) -> None:
    """VARIABLE is bandwidth, latency, workers, servers, batch-size, micro-batches, pipeline, tensor, or
    an option of the architecture that is a number. The aim is on idle, scaling, throughput, step, time, staleness or fits.

    \b
    perfmodel require bandwidth --to 'scaling>0.9' --model resnet50 --device v100 --arch ring --workers 16
    perfmodel require workers --to 'time<24h' --model resnet50 --arch ring --dataset-size 1281167 --epochs 90
    """  # noqa: E501
    from perfmodel.cli.printing import studies
    from perfmodel.studies import requirements

    out.check()
    result = requirements.require(
        variable,
        aim,
        fidelity=fidelity,
        dataset_size=dataset_size,
        epochs=epochs,
        **flags.arguments(),
    )
    if out.put(result, values=result.to_dict()):
        studies.requirement(result)
