"""``perfmodel diagnose``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, NamedTuple

import click

from perfmodel.base.errors import InputError
from perfmodel.cli import types
from perfmodel.cli.jobs import JobFlags, OfJobs, job_options
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
    from perfmodel.cli.printing import diagnosis as printing
    from perfmodel.inputs.job_arguments import per_worker
    from perfmodel.launchers.readers import READERS
    from perfmodel.studies import diagnosis
    from perfmodel.studies.observables import Measured

    out.check()
    given = [_InputFile.read(path) for path in files]
    jobs = [file.path for file in given if file.kind in READERS]
    if jobs:
        flags = flags._replace(typed={**flags.typed, "job": (*jobs, *filter(None, flags.jobs))})
    job = api.make_job(**per_worker(flags.arguments(), "--global-batch-size"))
    read = _read(given, job)
    steps_s = read.pop("step_s", [])
    if measured is not None:
        steps_s.append(diagnosis.step_of(job, measured))
    if step_s is not None:
        steps_s.append(step_s)
    if len(steps_s) != 1:
        raise InputError(
            "--measured: give one of the speed, the time of a step (--measured-step) and a log"
        )
    values: dict[str, float] = {name: rows[-1] for name, rows in read.items()}
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


class _InputFile(NamedTuple):
    """A file: its path, the name of its format ("" if it is not known), and its text."""

    path: str
    kind: str
    text: str

    @classmethod
    def read(cls, path: str) -> _InputFile:
        """Read a file."""
        from perfmodel.base import formats
        from perfmodel.base.files import read_bytes

        data = read_bytes(path)
        kind = formats.recognise(data, path)
        return cls(path, "" if kind is None else kind.name, formats.text_of(data) or "")


READS = (
    "logs of training runs, NCCL and MLPerf, traces of torch.profiler, Horovod timelines, "
    "nccl-tests, iperf3 --json, perftest, OSU, nvidia-smi topo -m, measurement files, tables, "
    "and hostfiles, node lists and configurations of launchers"
)
"""What the command reads, for messages."""


def _read(given: Sequence[_InputFile], job: Job) -> dict[str, list[float]]:
    """What files of other programs say: the rate between nodes, how devices are connected, and how
    long a step and its parts took."""
    from perfmodel.base import formats
    from perfmodel.launchers.readers import READERS
    from perfmodel.measuring.outputs import horovod, nccl_log, topology, training_logs
    from perfmodel.traces.workload import import_trace

    readings: dict[str, list[float]] = {}
    traces: list[ImportedTrace] = []
    for path, kind, text in given:
        channels = nccl_log.parse(text)
        if channels is not None and channels.through_host is not None:
            readings["through_host"] = [channels.through_host]
        if channels is not None and channels.sockets is not None:
            readings["sockets"] = [float(channels.sockets)]
        if kind in (formats.TRACE, formats.GZIP):
            traces.append(import_trace(path))
        elif kind == formats.TOPOLOGY:
            matrix = topology.parse(text, path)
            readings["through_host"], readings["nvlink"] = (
                [matrix.through_host],
                [float(matrix.nvlink)],
            )
        elif kind == formats.HOROVOD:
            timeline = horovod.parse(text, path)
            readings["communication_s"] = [timeline.communication_s]
            if timeline.step_s is not None:
                readings.setdefault("step_s", []).append(timeline.step_s)
        elif (not kind or kind in (*READERS, formats.NCCL_LOG)) and training_logs.is_log(text):
            seconds = _step_of(training_logs.parse(text, path), job)
            readings.setdefault("step_s", []).append(seconds)
        elif kind not in (*READERS, formats.NCCL_LOG):
            readings["link_bytes_per_s"] = [_rate_of(path, kind)]
    for name, value in _of_traces(traces).items():
        readings.setdefault(name, []).append(value)
    return readings


def _rate_of(path: str, kind: str) -> float:
    """The rate between two nodes that a file says.

    Raises
    ------
    InputError : it cannot be read, is of something else, or was measured inside a node.
    """
    from perfmodel.base import formats
    from perfmodel.base.files import read_bytes
    from perfmodel.calibration.network.fit import fit_network, read
    from perfmodel.measuring.outputs import READERS

    if kind not in ("", formats.OWN, *READERS):
        refused = formats.refusal(read_bytes(path), path, "what perfmodel diagnose reads")
        if refused is not None:
            raise refused
    try:
        measured = read(path)
    except InputError as error:
        if kind or path.lower().endswith(".csv"):
            raise
        raise InputError(f"{path}: not known what it is ({error}); read are {READS}") from None
    fitted = fit_network([measured]).cluster
    if fitted.nodes == 1:
        raise InputError(f"{path}: measured inside a node; expected between two nodes")
    return fitted.nic.goodput_bytes_per_s


def _of_traces(traces: Sequence[ImportedTrace]) -> dict[str, float]:
    """The parts of a step in traces of some ranks.

    Where a device is idle, but not for data or communication, the host keeps it waiting: that is
    part of computing. The rank that waits least shows how long communication takes, without the
    others' waits for a slow one.
    """
    if not traces:
        return {}
    parts = [trace.parts_s for trace in traces]
    waiting = ("communication_exposed", "data_loading")
    compute = [sum(s for name, s in part.items() if name not in waiting) for part in parts]
    exposed = [part["communication_exposed"] for part in parts]
    moving = [part["communication_hidden"] + part["communication_exposed"] for part in parts]
    idle = [part["idle"] for part in parts]
    readings = {
        "step_s": fmean(trace.step_s for trace in traces),
        "compute_s": fmean(compute),
        "exposed_s": min(exposed),
        "communication_s": min(moving),
        "loading_s": fmean(part["data_loading"] for part in parts),
        "host_s": fmean(idle),
    }
    return readings | ({"slowest_compute_s": max(compute)} if len(traces) > 1 else {})


def _step_of(speed: LogSpeed, job: Job) -> float:
    """The time of a step that a log says."""
    from perfmodel.studies.diagnosis import step_of

    if speed.unit == "s":
        return speed.value
    devices = job.devices if speed.per_device else 1
    return step_of(job, f"{speed.value * devices!r} {speed.unit}")
