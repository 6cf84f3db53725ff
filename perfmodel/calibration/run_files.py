"""What files of other programs say about a run and its network, as ``perfmodel diagnose`` reads."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import NamedTuple

from perfmodel.base import formats
from perfmodel.base.errors import InputError
from perfmodel.base.files import read_bytes
from perfmodel.calibration.network.fit import fit_network, read
from perfmodel.inputs.job import Job
from perfmodel.launchers.readers import READERS as JOB_READERS
from perfmodel.measuring.outputs import (
    READERS as NETWORK_READERS,
    horovod,
    nccl_log,
    topology,
    training_logs,
)
from perfmodel.measuring.outputs.training_logs import LogSpeed
from perfmodel.times.one_device import step_of
from perfmodel.traces.workload import ImportedTrace, import_trace

READS = (
    "logs of training runs, NCCL and MLPerf, traces of torch.profiler, Horovod timelines, "
    "nccl-tests, iperf3 --json, perftest, OSU, nvidia-smi topo -m, measurement files, tables, "
    "and hostfiles, node lists and configurations of launchers"
)
"""What files may be, for messages."""

OF_JOBS = (*JOB_READERS, formats.NCCL_LOG)
"""Formats that say nothing about the speed of a network."""


class InputFile(NamedTuple):
    """A file: its path, the name of its format ("" if it is not known), and its text."""

    path: str
    kind: str
    text: str

    @classmethod
    def read(cls, path: str) -> InputFile:
        """Read a file."""
        data = read_bytes(path)
        kind = formats.recognise(data, path)
        return cls(path, "" if kind is None else kind.name, formats.text_of(data) or "")


def read_files(given: Sequence[InputFile], job: Job) -> dict[str, list[float]]:
    """Return what files of other programs say: the rate between nodes, how devices are connected,
    and how long a step and its parts took.

    The keys are fields of :class:`perfmodel.studies.observables.Measured`, and ``through_host``;
    each file that says something adds a value, in SI units, 0 or 1 for what is so or not.

    Raises
    ------
    InputError : a file cannot be read, or is of something else.
    """
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
        elif (not kind or kind in OF_JOBS) and training_logs.is_log(text):
            seconds = _step_of(training_logs.parse(text, path), job)
            readings.setdefault("step_s", []).append(seconds)
        elif kind not in OF_JOBS:
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
    if kind not in ("", formats.OWN, *NETWORK_READERS):
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
    if speed.unit == "s":
        return speed.value
    devices = job.devices if speed.per_device else 1
    return step_of(job, f"{speed.value * devices!r} {speed.unit}")
