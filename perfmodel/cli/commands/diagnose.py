"""``perfmodel diagnose``."""

from __future__ import annotations

from collections.abc import Mapping

import click

from perfmodel.base.errors import InputError
from perfmodel.cli import types
from perfmodel.cli.jobs import JobFlags, OfJobs, job_options
from perfmodel.cli.options import Outputs, all_of, option, outputs

PARTS = {
    "--compute-time": ("compute_s", "Computation of a step, mean of the devices."),
    "--slowest-compute-time": ("slowest_compute_s", "That of the slowest device."),
    "--exposed-time": ("exposed_s", "Communication of a step that nothing hides."),
    "--communication-time": ("communication_s", "Communication of a step, hidden or not."),
    "--loading-time": ("loading_s", "Waiting for data in a step."),
    "--host-time": ("host_s", "Time per step that a device idles, for lack of kernels."),
}
"""Parts of a step that may be measured: flag, field of Measured, help."""

part_options = all_of(
    *(option(flag, types.time("50ms"), text, name) for flag, (name, text) in PARTS.items())
)


@click.command(cls=OfJobs)
@click.argument("files", nargs=-1, type=types.INPUT, metavar="[FILE]...")
@option("--measured", types.SPEED, "Measured speed of all workers, or give the time of a step.")
@option("--measured-step", types.time("1.5s"), "Measured time of an update.", "step_s")
@option(
    "--also",
    types.OTHER_RUN,
    "Time of a step with another number of workers; repeatable.",
    multiple=True,
)
@part_options
@job_options()
@outputs("json", "plot", "report")
def diagnose(
    files: tuple[str, ...],
    measured: float | str | None,
    step_s: float | None,
    also: tuple[tuple[int, float], ...],
    flags: JobFlags,
    out: Outputs,
    **parts: float | None,
) -> None:
    """The options of the job say how it should run. Parts of a step, for example from torch.profiler,
    tell causes apart, and so do FILEs: the output of nccl-tests, iperf3 --json, perftest or OSU
    between two nodes, of nvidia-smi topo -m, and NCCL's log. The log of the run, a Horovod timeline, or traces
    of torch.profiler from some of its ranks, may replace --measured. Hostfiles, node lists and
    configurations of launchers replace options of the job, as with --job.

    \b
    perfmodel diagnose --model resnet50 --device v100 --workers 16 --arch ring --measured 2900
    perfmodel diagnose nccl-tests.txt --job job.toml --measured-step 0.41s --exposed-time 190ms
    perfmodel diagnose hostfile ds_config.json train.log --model gpt2-medium --device a100
    """  # noqa: E501
    import perfmodel.api as api
    from perfmodel.calibration.run_files import InputFile, read_files
    from perfmodel.cli.printing import diagnosis as printing
    from perfmodel.inputs.job_arguments import per_worker
    from perfmodel.launchers.readers import READERS
    from perfmodel.studies import diagnosis
    from perfmodel.studies.observables import Measured
    from perfmodel.times.one_device import step_of

    out.check()
    given = [InputFile.read(path) for path in files]
    jobs = [file.path for file in given if file.kind in READERS]
    if jobs:
        flags = flags._replace(typed={**flags.typed, "job": (*jobs, *filter(None, flags.jobs))})
    job = api.make_job(**per_worker(flags.arguments(), "--global-batch-size"))
    readings = read_files(given, job)
    steps_s = readings.pop("step_s", [])
    if measured is not None:
        steps_s.append(step_of(job, measured))
    if step_s is not None:
        steps_s.append(step_s)
    if len(steps_s) != 1:
        raise InputError(
            "--measured: give one of the speed, the time of a step (--measured-step) and a log"
        )
    values: dict[str, float] = {name: rows[-1] for name, rows in readings.items()}
    remarks = _in_words({**values, **({"step_s": steps_s[0]} if given else {})})
    values |= {name: seconds for name, seconds in parts.items() if seconds is not None}
    sockets, nvlink = values.pop("sockets", None), values.pop("nvlink", None)
    run = Measured(
        step_s=steps_s[0],
        steps_s=also,
        sockets=None if sockets is None else bool(sockets),
        nvlink=None if nvlink is None else bool(nvlink),
        **values,
    )
    result = diagnosis.diagnose(run, job)
    if out.put(result, remarks=remarks):
        printing.diagnosis(result)


def _in_words(values: Mapping[str, float]) -> list[str]:
    """What files say, in words."""
    from perfmodel.base.units import show
    from perfmodel.studies.observables import OBSERVABLES

    parts = [
        f"{OBSERVABLES[name].meaning}: {show(value, OBSERVABLES[name].unit)}"
        for name, value in values.items()
        if name in OBSERVABLES
    ]
    if "through_host" in values:
        parts.append(
            f"transfers through the host: {values['through_host']:.0%} of pairs of devices"
        )
    if "nvlink" in values:
        parts.append(f"NVLink inside nodes: {'yes' if values['nvlink'] else 'no'}")
    if "sockets" in values:
        parts.append(f"channels between nodes: {'sockets' if values['sockets'] else 'RDMA'}")
    return [f"read: {'; '.join(parts)}"] if parts else []
