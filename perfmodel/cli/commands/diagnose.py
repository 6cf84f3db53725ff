"""``perfmodel diagnose``."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import TYPE_CHECKING

import click

from perfmodel.base.errors import InputError
from perfmodel.cli import types
from perfmodel.cli.jobs import JobFlags, job_options
from perfmodel.cli.options import Outputs, all_of, option, outputs

if TYPE_CHECKING:
    from perfmodel.inputs.job import Job
    from perfmodel.measuring.outputs.training_logs import LogSpeed
    from perfmodel.traces.workload import ImportedTrace

PARTS = {
    "--compute-time": ("compute_s", "Computation of a step, mean of the devices."),
    "--slowest-compute-time": ("slowest_compute_s", "That of the slowest device."),
    "--exposed-time": ("exposed_s", "Communication of a step that nothing hides."),
    "--communication-time": ("communication_s", "Communication of a step, hidden or not."),
    "--loading-time": ("loading_s", "Waiting for data in a step."),
}
"""Parts of a step that may be measured: flag, field of Measured, help."""

part_options = all_of(
    *(option(flag, types.time("50ms"), text, name=name) for flag, (name, text) in PARTS.items())
)


@click.command()
@click.argument("files", nargs=-1, type=types.INPUT, metavar="[FILE]...")
@option("--measured", types.SPEED, "Measured speed of all workers, or give the time of a step.")
@option("--measured-step", types.time("1.5s"), "Measured time of an update.", name="step_s")
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
    between two nodes, and of nvidia-smi topo -m. The log of the run, or traces of torch.profiler
    from some of its ranks, may replace --measured.

    \b
    perfmodel diagnose --model resnet50 --device v100 --workers 16 --arch ring --measured 2900
    perfmodel diagnose nccl-tests.txt --job job.toml --measured-step 0.41s --exposed-time 190ms
    """  # noqa: E501
    from perfmodel import api
    from perfmodel.cli.printing import diagnosis as printing
    from perfmodel.inputs.job_arguments import per_worker
    from perfmodel.studies import diagnosis

    out.check()
    job = api.make_job(**per_worker(flags.arguments(), "--global-batch-size"))
    read = _read(files, job)
    steps_s = read.pop("step_s", [])
    if measured is not None:
        steps_s.append(diagnosis.step_of(job, measured))
    if step_s is not None:
        steps_s.append(step_s)
    if len(steps_s) != 1:
        raise InputError(
            "--measured: give one of the speed, the time of a step (--measured-step) and a log"
        )
    values = {name: rows[-1] for name, rows in read.items()}
    values |= {name: seconds for name, seconds in parts.items() if seconds is not None}
    told = diagnosis.Measured(step_s=steps_s[0], steps_s=also, **values)
    result = diagnosis.diagnose(told, job)
    if out.put(result):
        printing.diagnosis(result)


def _read(files: tuple[str, ...], job: Job) -> dict[str, list[float]]:
    """What files of other programs say: the rate between nodes, how devices are connected, and how
    long a step took."""
    from perfmodel.base import formats
    from perfmodel.base.files import read_bytes
    from perfmodel.calibration.network.fit import fit_network, read
    from perfmodel.measuring.outputs import topology, training_logs
    from perfmodel.traces.workload import import_trace

    told: dict[str, list[float]] = {}
    traces: list[ImportedTrace] = []
    for path in files:
        data = read_bytes(path)
        kind, text = formats.recognise(data), formats.text_of(data) or ""
        if kind is not None and kind.name in (formats.TRACE, formats.GZIP):
            traces.append(import_trace(path))
        elif kind is not None and kind.name == formats.TOPOLOGY:
            told["through_host"] = [topology.parse(text, path).through_host]
        elif kind is None and training_logs.is_log(text):
            seconds = _step_of(training_logs.parse(text, path), job)
            told.setdefault("step_s", []).append(seconds)
        else:
            fitted = fit_network([read(path)]).cluster
            if fitted.nodes == 1:
                raise InputError(f"{path}: measured inside a node; expected between two nodes")
            told["link_bytes_per_s"] = [fitted.nic.goodput_bytes_per_s]
    for name, value in _of_traces(traces).items():
        told.setdefault(name, []).append(value)
    return told


def _of_traces(traces: Sequence[ImportedTrace]) -> dict[str, float]:
    """The parts of a step in traces of some ranks.

    Where a device is idle, but not for data or communication, the host keeps it waiting: that is
    part of computing. The rank that waits least shows how long communication takes.
    """
    if not traces:
        return {}
    parts = [trace.parts_s for trace in traces]
    waiting = ("communication_exposed", "data_loading")
    compute = [sum(s for name, s in part.items() if name not in waiting) for part in parts]
    exposed = [part["communication_exposed"] for part in parts]
    moving = [part["communication_hidden"] + part["communication_exposed"] for part in parts]
    told = {
        "step_s": fmean(trace.step_s for trace in traces),
        "compute_s": fmean(compute),
        "exposed_s": fmean(exposed),
        "communication_s": min(moving),
        "loading_s": fmean(part["data_loading"] for part in parts),
    }
    return told | ({"slowest_compute_s": max(compute)} if len(traces) > 1 else {})


def _step_of(speed: LogSpeed, job: Job) -> float:
    """The time of a step that a log says."""
    from perfmodel.studies.diagnosis import step_of

    if speed.unit == "s":
        return speed.value
    devices = job.devices if speed.per_device else 1
    return step_of(job, f"{speed.value * devices!r} {speed.unit}")
