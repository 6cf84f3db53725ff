"""What can be measured of a run, how, and what of it a prediction says."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import ClassVar, NamedTuple

import msgspec

from perfmodel import api
from perfmodel.base.errors import InputError
from perfmodel.base.ranges import FRACTION, NOT_NEGATIVE, POSITIVE, Range, Ranged, or_none
from perfmodel.base.units import show
from perfmodel.inputs.job import Job
from perfmodel.results.prediction import Prediction
from perfmodel.studies.changes import of_cluster, of_options
from perfmodel.sweeping.arguments import changed

LEAST_SPREAD = 0.04
"""Standard deviation of the logarithm of a time, of the measurement and of formulas together: a
judgement, as all constants here."""

PART_SPREAD, OF_STEP = 0.075, 0.02
"""Standard deviation of a part of a step beside what it shares with others (together 0.15 of
communication): a fraction of it, and a fraction of the step."""

IDLE_OF_STEP = 0.1
"""Standard deviation of the time that devices idle for the host, as a fraction of the step: no run
is without."""

INSTANTLY = 1e-6
"""Factor of compute times with which nothing hides communication."""

LONGEST_PART = 1.1
"""A part of a step may take so many times as long as a step that was measured at another time."""

LINK_SPREAD = 0.1
"""Standard deviation of the logarithm of a rate that a tool measured."""


class Measured(Ranged, frozen=True, kw_only=True):
    """What was measured of a run; None for what was not.

    Attributes
    ----------
    step_s : time of an update of the model.
    compute_s : time that a device computes per step, mean of the devices, with ``host_s``.
    slowest_compute_s : that of the slowest device.
    exposed_s : time per step that a device waits for communication and does not compute, on the
        rank that waits least: others also wait for a slow one.
    communication_s : time per step in which a collective or a message is under way, hidden or not.
    loading_s : time per step that a device waits for data.
    host_s : time per step that a device waits for the host to launch kernels.
    link_bytes_per_s : rate of the links between nodes, as a tool measured it.
    through_host : fraction of the pairs of a node's devices whose transfers pass the host, as
        ``nvidia-smi topo -m`` says.
    nvlink : whether ``nvidia-smi topo -m`` shows NVLink between any devices of a node.
    sockets : whether NCCL's channels between nodes go over sockets, as its log says.
    steps_s : (workers, step_s) of runs with other numbers of workers, else equal.

    Raises
    ------
    InputError : a number is out of range.
    """

    RANGES: ClassVar[Mapping[str, Range]] = {
        "step_s": POSITIVE,
        **dict.fromkeys(("compute_s", "slowest_compute_s", "link_bytes_per_s"), or_none(POSITIVE)),
        **dict.fromkeys(
            ("exposed_s", "communication_s", "loading_s", "host_s"), or_none(NOT_NEGATIVE)
        ),
        "through_host": or_none(FRACTION),
    }

    step_s: float
    compute_s: float | None = None
    slowest_compute_s: float | None = None
    exposed_s: float | None = None
    communication_s: float | None = None
    loading_s: float | None = None
    host_s: float | None = None
    link_bytes_per_s: float | None = None
    through_host: float | None = None
    nvlink: bool | None = None
    sockets: bool | None = None
    steps_s: tuple[tuple[int, float], ...] = ()

    def check_parts(self) -> None:
        """Refuse parts of a step that are longer than the step.

        Raises
        ------
        InputError : one is; the text says which.
        """
        for name in ("compute_s", "exposed_s", "loading_s", "host_s"):
            part = getattr(self, name)
            if part is not None and part > LONGEST_PART * self.step_s:
                raise InputError(
                    f"{name}: must be at most the time of a step, {show(self.step_s, 's')}, "
                    f"got {show(part, 's')}"
                )


class Observed(NamedTuple):
    """A run as it is predicted.

    Attributes
    ----------
    host_s : time per step that its devices idle because the host launches kernels too slowly. It is
        part of what the job computes, which only a trace tells apart.
    """

    job: Job
    prediction: Prediction
    host_s: float = 0.0


class Observable(NamedTuple):
    """Something that can be measured of a run: how, and what it is predicted to be."""

    meaning: str
    how: str
    unit: str
    value: Callable[[Observed], float]
    spread: Callable[[float, float], float]  # of the value, given it and the time of a step


def _relative(value: float, step_s: float) -> float:
    return LEAST_SPREAD * value


def _part(value: float, step_s: float) -> float:
    return math.hypot(PART_SPREAD * value, OF_STEP * step_s)


def _host(value: float, step_s: float) -> float:
    return math.hypot(PART_SPREAD * value, IDLE_OF_STEP * step_s)


def _exposed_s(run: Observed) -> float:
    """On the worker that waits least. Of a slow one's time that is all that is not computed; its
    predicted mean also has what others wait for it."""
    p = run.prediction
    if run.job.replica is not None or not run.job.stragglers:
        return p.exposed_communication_s
    others = sum(p.idle_fraction.by_cause.get(cause, 0.0) for cause in ("data", "cpu"))
    return max(min(p.idle_fraction.per_worker) - others, 0.0) * p.iteration_s


def _communication_s(run: Observed) -> float:
    """Time of all communication: exposed, if nothing overlaps with it."""
    job = run.job
    overlap = getattr(job.options, "overlap", None)
    if overlap is True:
        job = of_options("", overlap=False).job_of(job)
    elif overlap is None and job.replica is None:
        instantly = job.of_devices.workload.scaled("compute_s", INSTANTLY)
        job = changed(job, {"workload": instantly})
    else:
        return _exposed_s(run)
    return _exposed_s(Observed(job, api.predict(job, fidelity="coarse")))


def _of_factors(run: Observed, of: Callable[[Sequence[float]], float]) -> float | None:
    """Computation of devices that keep no step together, or that are stages of different speeds,
    from that of equal ones and a function of their factors; None for other devices."""
    job = run.job
    if job.replica is not None:
        return _of_nodes(job, of)
    if not job.stragglers or getattr(job.options, "sync", None) != "asp":
        return None
    factors = {straggler.worker: straggler.factor for straggler in job.stragglers}
    equal = api.predict(changed(job, {"stragglers": ()}), fidelity="coarse")
    return equal.compute_s * of([factors.get(worker, 1.0) for worker in range(job.workers)])


def _of_nodes(job: Job, of: Callable[[Sequence[float]], float]) -> float | None:
    """The same for replicas of several devices, by the speeds of nodes."""
    cluster = job.of_devices.cluster
    speeds = {override.node: override.speed for override in cluster.overrides}
    if all(speed == 1.0 for speed in speeds.values()):
        return None
    even = tuple(msgspec.structs.replace(override, speed=1.0) for override in cluster.overrides)
    equal = api.predict(of_cluster("", overrides=even).job_of(job), fidelity="coarse")
    nodes = range(cluster.nodes_for(job.devices))
    return equal.compute_s * of([1.0 / speeds.get(node, 1.0) for node in nodes])


def _compute_s(run: Observed) -> float:
    """Mean of the devices."""
    apart = _of_factors(run, fmean)
    return run.prediction.compute_s if apart is None else apart


def _slowest_compute_s(run: Observed) -> float:
    apart, p = _of_factors(run, max), run.prediction
    return p.iteration_s * (1.0 - min(p.idle_fraction.per_worker)) if apart is None else apart


def _waiting_s(p: Prediction, cause: str) -> float:
    return p.idle_fraction.by_cause.get(cause, 0.0) * p.iteration_s


OBSERVABLES: Mapping[str, Observable] = {
    "step_s": Observable(
        "time of a step", "", "s", lambda run: run.prediction.iteration_s, _relative
    ),
    "compute_s": Observable(
        "computation of a step",
        "torch.profiler: sum of the kernels that are not NCCL's, mean of the ranks",
        "s",
        _compute_s,
        _relative,
    ),
    "slowest_compute_s": Observable(
        "computation of the slowest rank",
        "torch.profiler on every rank, or the step of each device alone",
        "s",
        _slowest_compute_s,
        _relative,
    ),
    "exposed_s": Observable(
        "communication that nothing hides",
        "torch.profiler: time in which only NCCL's kernels run",
        "s",
        _exposed_s,
        _part,
    ),
    "communication_s": Observable(
        "communication of a step, hidden or not",
        "torch.profiler: sum of NCCL's kernels on the rank where it is least",
        "s",
        _communication_s,
        _part,
    ),
    "loading_s": Observable(
        "waiting for data",
        "time of next(loader) in the training loop",
        "s",
        lambda run: _waiting_s(run.prediction, "data"),
        _part,
    ),
    "host_s": Observable(
        "time that a device idles while the host launches kernels",
        "torch.profiler: time in which no kernel runs and no data is waited for",
        "s",
        lambda run: run.host_s,
        _host,
    ),
    "link_bytes_per_s": Observable(
        "rate between two nodes",
        "all_reduce_perf of nccl-tests with a rank on each, the bus bandwidth; or iperf3",
        "bytes_per_s",
        lambda run: run.job.of_devices.cluster.nic.goodput_bytes_per_s,
        lambda value, _: LINK_SPREAD * value,
    ),
}

COMPUTING, NETWORKING = ("compute_s", "slowest_compute_s"), ("exposed_s", "communication_s")
"""Observables that all err if devices compute, or communicate, more slowly than predicted."""
