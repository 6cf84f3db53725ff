r"""How likely measurements are if a job ran in some way.

Predictions err in ways that several measurements share. If devices compute more slowly than was
taken, all of them do, and the step is longer by the same time; so it is with the network. With a
common error of the logarithm of computation, :math:`c \sim N(0, s_c^2)`, and of communication,
:math:`n \sim N(0, s_n^2)`, the likelihood of measurements x is

.. math:: p(x) = \int N(c; 0, s_c) N(n; 0, s_n) \prod_i N(x_i; m_i(c, n), s_i) \, dc \, dn

with predictions m and their own deviations s. Each of the slowest and the mean device may compute
longer than predicted, but hardly one without the other; a slow device is that. A step has a further
error, of what is neither computation nor communication. It is what remains of the prediction's own
interval; what was measured of the parts does not have it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from perfmodel import api
from perfmodel.base.uncertainty import WIDTH
from perfmodel.inputs import usual_losses
from perfmodel.inputs.job import Job
from perfmodel.predicting import gains, intervals
from perfmodel.results.prediction import Prediction
from perfmodel.studies.changes import Change
from perfmodel.studies.observables import (
    COMPUTING,
    LEAST_SPREAD,
    NETWORKING,
    OBSERVABLES,
    Measured,
    Observed,
)
from perfmodel.sweeping.arguments import changed

COMPUTE_SPREAD = 0.05
"""Standard deviation of the logarithm of a device's computation among others, if it was measured
alone: seven neighbours slow it down by 1 to 8 % (:mod:`perfmodel.inputs.usual_losses`)."""

NETWORK_SPREAD = 0.13
"""The same of communication: a judgement."""

FAR, FINE = 3.0, 1.5
"""Common errors that are considered: up to so many standard deviations, and so many points in the
smallest deviation of a measurement."""

PASSES_HOST = {True: 0.9, False: 0.4}
"""Probability that some transfers of a node pass the host, with and without *no peer access*."""

SHOWS_NVLINK: Mapping[str | None, float] = {"nvlink": 0.98, "pcie": 0.1, "host": 0.5, None: 0.5}
"""Probability that a node shows NVLink, by what its devices use."""

SAYS_SOCKETS = {True: 0.95, False: 0.02}
"""Probability that NCCL says that it uses sockets, with links without RDMA and with it."""


def _passes_host(job: Job) -> float:
    inside = job.of_devices.cluster.intra_node
    return PASSES_HOST[inside is not None and inside.interconnect == "host"]


def _shows_nvlink(job: Job) -> float | None:
    inside = job.of_devices.cluster.intra_node
    return None if inside is None else SHOWS_NVLINK[inside.interconnect]


def _says_sockets(job: Job) -> float | None:
    cluster = job.of_devices.cluster
    if cluster.nodes_for(job.devices) < 2:
        return None
    return SAYS_SOCKETS[usual_losses.over_sockets(cluster.nic)]


class ToolAnswer(NamedTuple):
    """What a tool says of a run: how to ask it, and the probability that it says yes of a job;
    None where it says nothing."""

    question: str
    how: str
    chance: Callable[[Job], float | None]


TOOLS: Mapping[str, ToolAnswer] = {
    "through_host": ToolAnswer(
        "whether transfers of a node pass the host", "nvidia-smi topo -m", _passes_host
    ),
    "nvlink": ToolAnswer("whether a node shows NVLink", "nvidia-smi topo -m", _shows_nvlink),
    "sockets": ToolAnswer(
        "whether NCCL uses sockets", "its log, with NCCL_DEBUG=INFO", _says_sockets
    ),
}
"""By fields of :class:`perfmodel.studies.observables.Measured`."""


class Errors(NamedTuple):
    """Standard deviations of the logarithms of predicted times.

    Attributes
    ----------
    step : of a step, of all its parts together.
    compute, network : those that all parts of one kind share.
    remainder : of the step alone.
    """

    step: float
    compute: float
    network: float
    remainder: float

    @classmethod
    def of(cls, job: Job, prediction: Prediction) -> Errors:
        """The errors of a coarse prediction."""
        step = math.hypot(LEAST_SPREAD, gains.spread_of(prediction))
        estimated = math.log1p(job.workload.error_fraction or 0.0) / WIDTH
        compute = math.hypot(COMPUTE_SPREAD, estimated, intervals.layout_spread(job))
        waiting = prediction.exposed_communication_s / prediction.iteration_s
        parts = math.hypot(LEAST_SPREAD, (1.0 - waiting) * compute, waiting * NETWORK_SPREAD)
        remainder = math.sqrt(max(step**2 - parts**2, 0.0))
        return cls(step, compute, NETWORK_SPREAD, remainder)

    def spread(self, name: str, value: float, step_s: float) -> float:
        """Standard deviation of an observable with this value, if nothing else is measured."""
        common = {
            **dict.fromkeys(COMPUTING, self.compute),
            **dict.fromkeys(NETWORKING, self.network),
        }
        alone = OBSERVABLES[name].spread(value, step_s)
        return math.hypot(alone, common.get(name, 0.0) * value)


class _Grid(NamedTuple):
    """Common errors, and the logarithm of the weight of each pair."""

    compute: np.ndarray
    network: np.ndarray
    log_weight: np.ndarray

    @classmethod
    def of(cls, errors: Errors) -> _Grid:
        compute, network = _points(errors.compute), _points(errors.network)
        log_weight = _log_normal(compute / errors.compute, 1.0)[:, None] + _log_normal(
            network / errors.network, 1.0
        )
        log_weight -= math.log(float(np.exp(log_weight).sum()))
        return cls(compute[:, None], network[None, :], log_weight)


def _points(spread: float) -> np.ndarray:
    """Errors that are considered, evenly apart."""
    each_side = math.ceil(FAR * spread * FINE / LEAST_SPREAD)
    return FAR * spread / each_side * np.arange(-each_side, each_side + 1)


def log_likelihood(
    measured: Measured, run: Observed, change: Change, base: Job, errors: Errors
) -> float:
    """Return the logarithm of the likelihood of measurements, but for a constant.

    Parameters
    ----------
    run : as predicted.
    change : makes its job of ``base``, which is for runs with other numbers of workers.
    errors : of its prediction.

    Raises
    ------
    InputError : the job is impossible with one of the other numbers of workers.
    """
    grid = _Grid.of(errors)
    total = grid.log_weight.copy()
    of_step = math.hypot(LEAST_SPREAD, errors.remainder)
    longer_s = _longer_s(run, grid)
    for name, observable in OBSERVABLES.items():
        given = getattr(measured, name)
        if given is None:
            continue
        value = observable.value(run)
        if name == "step_s":
            total += _log_normal(np.log(given / _step_s(run, longer_s)) / of_step, of_step)
        elif name in COMPUTING:
            error = math.log(given / value) - grid.compute
            total += _log_normal(error / LEAST_SPREAD, LEAST_SPREAD)
        else:
            spread = observable.spread(value, run.prediction.iteration_s)
            values = np.full((1, 1), value)
            if name in NETWORKING:
                values = value * np.exp(grid.network)
            elif name == "loading_s":
                values = np.maximum(value - longer_s, 0.0)
            total += _log_normal((given - values) / spread, spread / measured.step_s)
    for workers, step_s in measured.steps_s:
        job = change.job_of(changed(base, {"workers": workers}))
        observed = Observed(job, api.predict(job, fidelity="coarse"), run.host_s)
        times = step_s / _step_s(observed, _longer_s(observed, grid))
        total += _log_normal(np.log(times) / of_step, of_step)
    top = float(total.max())
    return top + math.log(float(np.exp(total - top).sum())) + _of_tools(measured, run.job)


def _longer_s(run: Observed, grid: _Grid) -> np.ndarray:
    """How much longer computation and communication take than predicted, with each two errors."""
    exposed_s = OBSERVABLES["exposed_s"].value(run)
    compute_s = OBSERVABLES["slowest_compute_s"].value(run)
    longer_s: np.ndarray = compute_s * np.expm1(grid.compute) + exposed_s * np.expm1(grid.network)
    least_s = -0.9 * run.prediction.iteration_s
    return np.asarray(np.maximum(longer_s, least_s))


def _step_s(run: Observed, longer_s: np.ndarray) -> np.ndarray:
    """The step, which is no longer while data are awaited."""
    data_s = OBSERVABLES["loading_s"].value(run)
    step_s: np.ndarray = run.prediction.iteration_s + np.where(
        data_s > 0.0, np.maximum(longer_s - data_s, 0.0), longer_s
    )
    return step_s


def _of_tools(measured: Measured, job: Job) -> float:
    """The same of what tools say."""
    total = 0.0
    for name, tool in TOOLS.items():
        given, chance = getattr(measured, name), tool.chance(job)
        if given is not None and chance is not None:
            total += math.log(chance if given else 1.0 - chance)
    return total


def _log_normal(deviations: np.ndarray | float, spread: float) -> np.ndarray:
    """Logarithm of the normal density, at a number of standard deviations, with tails that one
    outlier cannot rule out: the density is at least that at six standard deviations."""
    return np.asarray(-0.5 * np.minimum(np.square(deviations), 36.0) - math.log(spread))
