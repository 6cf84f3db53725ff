"""Fits asynchronous parameter servers to measured throughput.

Step times come from the formulas of ``arch=ps,sync=asp``, a closed queueing network of workers,
links and servers, corrected by the ratio of simulation to formula at the last estimate: where the
server becomes the bottleneck, the formulas are several percent off. All DNNs share the server's
costs per tensor and per byte. Their priors are published figures, because with few workers the
server is mostly idle, so that throughput says little about it. The compute time of each DNN on each
device comes from its own runs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from perfmodel.api import Fidelity, predict
from perfmodel.base.arrays import Floats
from perfmodel.base.errors import InputError, number
from perfmodel.base.provenance import Source
from perfmodel.calibration.parameters import Parameter
from perfmodel.calibration.regression import Regression
from perfmodel.calibration.servers.steps import (
    fullest_of,
    spread_beside,
    steps_of,
    with_costs,
)
from perfmodel.inputs.calibration import Calibration
from perfmodel.inputs.cluster import Cluster
from perfmodel.inputs.job import Job
from perfmodel.inputs.workload import Workload

RUN_SPREAD = 0.03
"""Standard deviation of the throughput of repeated runs, as a fraction of it.

Median of ten groups of 5 to 10 runs each: asynchronous training with 2 to 7 workers on a public
cloud (Li, Walls, Xu, Guo, "Speeding up Deep Learning with Transient Servers", ICAC 2019).
"""

ROUTES: tuple[Fidelity, ...] = ("fine", "coarse")

COSTS = (
    Parameter("update_per_tensor_s", 0.2e-3, float(np.log(2.0)), "s"),
    Parameter("update_per_byte_s", 1.25e-9, float(np.log(2.0)), "s"),
)
"""Prior costs of a TensorFlow server, known within a factor of 2; see :data:`PUBLISHED`."""

PUBLISHED = (
    Source(
        "published",
        "one TensorFlow server on a cloud machine applies 46 updates/s of 104 tensors: 0.2 ms "
        "each, if nothing else took time (Li, Walls, Xu, Guo, ICAC 2019)",
        url="https://arxiv.org/abs/1903.00045",
    ),
    Source(
        "estimated",
        "TensorFlow's gRPC moves 800 MB/s over one connection; both ways, on two cores",
        url="https://github.com/tensorflow/tensorflow/issues/6116",
    ),
)
"""Sources of :data:`COSTS`."""

ROUNDS, TAKEN = 4, 0.7
"""Rounds of simulation, and the fraction of each new correction that is applied; the first is
applied in full."""

COMPUTE_SPREAD = 0.5
"""Prior spread of compute time around the step time with the fewest workers: a wide guess."""

SERVERS_GROWTH = 0.15
"""Standard deviation of the logarithm of the step time per doubling of the servers, if all runs had
the same number of them. It is an assumption, wider than what runs of synchronous servers show
(:mod:`perfmodel.calibration.servers.synchronous`)."""


class Series(msgspec.Struct, frozen=True, kw_only=True):
    """Runs of one DNN on one kind of device.

    Attributes
    ----------
    job : of the run with the fewest workers; its compute times may be rough.
    workers, step_s : number of workers of each run, and step time of a worker in it.
    spread : standard deviation of the logarithm of each step time between runs.
    """

    job: Job
    workers: tuple[int, ...]
    step_s: tuple[float, ...]
    spread: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if not self.workers or len(self.workers) != len(self.step_s):
            raise InputError(f"{self.name}: each run needs both workers and step_s")
        for step_s in self.step_s:
            number(f"{self.name}: step_s", step_s, above=0.0)

    @property
    def name(self) -> str:
        """Name of the DNN and the device."""
        return f"{self.job.workload.device}/{self.job.workload.name}"


class AsynchronousFit(msgspec.Struct, frozen=True, kw_only=True):
    """Costs of the servers, and compute time per step of each series.

    ``known`` says how precisely the costs are known, ``compute_known`` the same for compute times.
    """

    rows: int
    costs: dict[str, float]
    compute_s: dict[str, float]
    known: Calibration
    compute_known: dict[str, Calibration]

    def cluster(self, base: Cluster) -> Cluster:
        """Return the cluster with these server costs."""
        found = with_costs(base, self.costs)
        return msgspec.structs.replace(found, calibration=self.known)

    def workload(self, like: Workload) -> Workload:
        """Return a workload with the compute time of its series."""
        name = f"{like.device}/{like.name}"
        scaled = like.scaled("compute_s", self.compute_s[name] / like.compute_s)
        return msgspec.structs.replace(scaled, calibration=self.compute_known.get(name))

    def without(self, device: str) -> AsynchronousFit:
        """Return a copy without the series on a device."""
        names = [name for name in self.compute_s if not name.startswith(f"{device}/")]
        return msgspec.structs.replace(
            self,
            compute_s={name: self.compute_s[name] for name in names},
            compute_known={name: self.compute_known[name] for name in names},
        )

    def with_series(self, series: Sequence[Series]) -> AsynchronousFit:
        """Return a copy with further series; only their compute times are fitted."""
        problem = _Problem(series, ())
        fixed = {name: np.array([value]) for name, value in self.costs.items()}
        problem.fixed = fixed
        x, scale = problem.regression.fit()
        values = problem.regression.values(x)
        return msgspec.structs.replace(
            self,
            compute_s={**self.compute_s, **problem.compute_s(values)},
            compute_known={**self.compute_known, **problem.compute_known(x, scale)},
        )


def fit_asynchronous_servers(
    series: Sequence[Series], costs: Sequence[Parameter] = COSTS
) -> AsynchronousFit:
    """Fit all series together.

    Raises
    ------
    InputError : there is no series, or two have the same name.
    """
    names = [one.name for one in series]
    if not series or len(set(names)) < len(names):
        raise InputError("series: needs at least one, and each needs its own name")
    problem = _Problem(series, costs)
    x, scale = problem.regression.fit()
    for _ in range(ROUNDS):
        problem.simulate(problem.regression.values(x))
        x = problem.regression.solve([x], scale)
    values = problem.regression.values(x)
    known = problem.regression.calibration(
        x, scale, {p.name: f"server.{p.name}" for p in costs}, features=problem.features
    )
    spread = spread_beside(
        problem.regression,
        problem.regression.left_out(problem.columns, x, scale).misses,
        x,
        problem.regression.covariance(x, scale),
        RUN_SPREAD,
    )
    growth = {"workers": known.growth.get("workers", 0.0), "servers": SERVERS_GROWTH}
    return AsynchronousFit(
        rows=len(problem.columns),
        costs={each.name: float(f"{values[each.name]:.6g}") for each in costs},
        compute_s=problem.compute_s(values),
        known=msgspec.structs.replace(known, spread=spread, growth=growth),
        compute_known=problem.compute_known(x, scale),
    )


class _Problem:
    """Runs as arrays, and the regression of their misfits."""

    def __init__(self, series: Sequence[Series], costs: Sequence[Parameter]) -> None:
        self.series = series
        self.costs = [each.name for each in costs]
        self.fixed: dict[str, Floats] = {}
        self.simulated: Floats | None = None
        rows = [(one, count) for one in series for count in one.workers]
        self.columns = [(one.name, count) for one, count in rows]
        self.features = [
            {"workers": float(count), "servers": float(one.job.options.server_count)}
            for one, count in rows
        ]
        spreads = [s for one in series for s in one.spread or (RUN_SPREAD,) * len(one.workers)]
        alone = [
            Parameter(_own(one), one.job.workload.compute_s, COMPUTE_SPREAD, "s") for one in series
        ]
        self.regression = Regression([*costs, *alone], self._misses, spreads)

    def _misses(self, values: Mapping[str, Floats], points: int) -> Floats:
        found = []
        every = {**self.fixed, **values}
        for one in self.series:
            workload = one.job.workload
            computing = every[_own(one)][:, None] / workload.compute_s
            workers = np.array(one.workers, np.float64)
            costs = {name: v[:, None] for name, v in every.items() if name in self._cost_names}
            steps = steps_of(
                one.job,
                workers,
                np.array([fullest_of(one.job)]),
                np.broadcast_to(computing, (points, len(workers))),
                costs,
            )
            found.append(np.log(steps.step_s) - np.log(one.step_s))
        misses = np.concatenate(found, axis=1)
        return misses if self.simulated is None else misses + self.simulated

    def simulate(self, values: Mapping[str, float]) -> None:
        """Correct the formulas by simulating each run with these values."""
        found = []
        for one in self.series:
            costs = {name: values[name] for name in self.costs}
            times = values[_own(one)] / one.job.workload.compute_s
            job = msgspec.structs.replace(
                one.job,
                workload=one.job.workload.scaled("compute_s", times),
                cluster=with_costs(one.job.cluster, costs),
            )
            for count in one.workers:
                run = msgspec.structs.replace(job, workers=count)
                routes = (predict(run, fidelity=which).iteration_s for which in ROUTES)
                found.append(math.log(next(routes) / next(routes)))
        new = np.array(found)
        before = new if self.simulated is None else self.simulated
        self.simulated = TAKEN * new + (1.0 - TAKEN) * before

    @property
    def _cost_names(self) -> set[str]:
        return {*self.costs, *self.fixed}

    def compute_s(self, values: Mapping[str, float]) -> dict[str, float]:
        """Compute time of each series."""
        return {one.name: float(f"{values[_own(one)]:.6g}") for one in self.series}

    def compute_known(self, x: Floats, scale: float) -> dict[str, Calibration]:
        """How precisely each compute time is known."""
        covariance = self.regression.log_covariance(x, scale)
        return {
            one.name: Calibration(parameters=("compute_s",), covariance=((covariance[i][i],),))
            for i, one in enumerate(self.series, len(self.costs))
        }


def _own(series: Series) -> str:
    return f"compute_s {series.name}"
