r"""Fits synchronous parameter servers, whose workers share one batch, to measured steps.

Servers are limited by their processors, as in containers with few cores. Step times come from the
formulas of ``arch=ps``, with these values for each DNN:

- A single worker computes for *C* on the whole batch. *w* workers compute for

  .. math:: C \left( 1 - d + d / w \right), \quad d = d_0 \left( 1 - K \lambda / C \right)

  where each of *K* tensors costs :math:`\lambda`, whatever the batch size, and the fraction
  :math:`d_0` of the rest is proportional to the batch size.
- Servers take *B* for the gradients of each worker (``update_per_byte_s``) and *A* for each update
  (``optimizer_per_byte_s``).
- The fraction *h* of that work stays on one of several servers (``uneven``).

*B* is near a common value, *A* near a common multiple of *B* and *h* near a common fraction;
:math:`\lambda` is common. A DNN's own few runs determine how it differs, and the runs of all DNNs
what they have in common: a multilevel model (Gelman, Hill, "Data Analysis Using Regression and
Multilevel/Hierarchical Models", 2007, chapter 12).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from perfmodel.base.arrays import Floats
from perfmodel.base.errors import InputError, number, whole_number
from perfmodel.base.uncertainty import COVERAGE, WIDTH
from perfmodel.calibration.parameters import Parameter
from perfmodel.calibration.regression import DIFFERENCE, Regression
from perfmodel.calibration.servers.steps import spread_beside, steps_of, with_costs
from perfmodel.inputs.batch_scaling import LAUNCH_S
from perfmodel.inputs.calibration import Calibration
from perfmodel.inputs.cluster import Cluster
from perfmodel.inputs.job import Job
from perfmodel.inputs.workload import Workload

RUN_SPREAD, WORKER_CPU_SPREAD, SERVER_CPU_SPREAD = 0.05, 0.1, 0.15
"""Standard deviations, around the formulas, of the logarithms of a measured step time and of the
processor time of a worker and of a single server. These are assumptions; the fit scales them
together."""

BUSY = 0.95
"""Fraction of a worker's cores that is busy while it computes, if the container has no other cores:
an assumption."""

COMMON = (
    Parameter("worker_s", 0.1, 1.5, "s"),
    Parameter("optimizer_ratio", 1.5, 1.0),
    Parameter("uneven", 0.17, 1.0, scale="logit"),
    Parameter("launch_s", LAUNCH_S, 1.0, "s"),
)
"""Values that DNNs have in common; the priors are wide guesses."""

COMPUTE_SPREAD, WORKER_SPREAD, OPTIMIZER_SPREAD, UNEVEN_SPREAD = 0.5, 0.3, 1.5, 0.4
"""Prior spreads of a DNN's compute time around the given one, and of its *B*, *A* and *h* around
the common values. These are assumptions, rounded from the values with the best cross-validation
between DNNs. Optimizers differ more in update cost than workers differ in message cost."""

DIVISIBLE, DIVISIBLE_SPREAD = 0.62, 1.0
"""Prior of the fraction of the remaining compute time that shrinks with the batch size, and the
standard deviation of its logit: nearly uniform."""

FOLDS = 6
"""Folds of the cross-validation."""

MOST_LAUNCHING = 0.95
"""Largest fraction of compute time that launches may take."""


class SynchronousRun(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A measured run.

    Attributes
    ----------
    workers, servers : containers of each.
    step_s : time of a step, in which all workers together train on one batch.
    worker_cpu_s : processor time of a worker per step over its number of cores; None if unknown.
    server_cpu_s : the same for a server. Used only with a single server: several servers are busy
        even while they wait.
    """

    workers: int
    servers: int
    step_s: float
    worker_cpu_s: float | None = None
    server_cpu_s: float | None = None

    def __post_init__(self) -> None:
        whole_number("workers", self.workers)
        whole_number("servers", self.servers)
        number("step_s", self.step_s, above=0.0)
        for key in ("worker_cpu_s", "server_cpu_s"):
            if getattr(self, key) is not None:
                number(key, getattr(self, key), above=0.0)


class Dnn(msgspec.Struct, frozen=True, kw_only=True):
    """A DNN and its runs, if it has any.

    ``job`` has one worker, one server and the whole batch; its compute times may be rough.
    """

    job: Job
    runs: tuple[SynchronousRun, ...] = ()

    @property
    def name(self) -> str:
        """Name of its workload."""
        return self.job.workload.name


class ServedDnn(msgspec.Struct, frozen=True, kw_only=True):
    """Fitted values of a DNN: seconds of one worker's step, and costs of its servers.

    ``divisible`` is the fraction of compute time that is proportional to the batch size; ``uneven``
    is the option of that name. ``seen`` has the workers and servers of the fitted runs; ``known``
    says how precisely the values of the cluster and of the workload are known.
    """

    compute_s: float
    divisible: float
    update_per_byte_s: float
    optimizer_per_byte_s: float
    uneven: float
    seen: tuple[tuple[int, int], ...]
    known: tuple[Calibration, Calibration]

    def workload(self, whole: Workload, batch_size: int) -> Workload:
        """Return the workload at a part of the ``whole`` batch."""
        share = 1.0 - self.divisible + self.divisible * batch_size / whole.batch_size
        times = self.compute_s / whole.compute_s * share
        return msgspec.structs.replace(
            whole.scaled("compute_s", times), batch_size=batch_size, calibration=self.known[1]
        )

    def cluster(self, base: Cluster) -> Cluster:
        """Return the cluster with the costs of this DNN's servers."""
        names = ("update_per_byte_s", "optimizer_per_byte_s")
        found = with_costs(base, {name: getattr(self, name) for name in names})
        return msgspec.structs.replace(found, calibration=self.known[0])


class SynchronousFit(msgspec.Struct, frozen=True, kw_only=True):
    """A fit: the values of each DNN, and the expected values of a further one.

    ``common`` has the values of :data:`COMMON` and the standard deviations of their coordinates
    after the fit, by name. ``further`` is the spread of the step times of a DNN of which only the
    smallest run is known.
    """

    rows: int
    common: dict[str, tuple[float, float]]
    dnns: dict[str, ServedDnn]
    further: float
    growth: dict[str, float]

    def of(self, dnn: Dnn) -> ServedDnn:
        """Return the expected values of a further DNN, given its few runs."""
        before = []
        for parameter in COMMON:
            value, spread = self.common[parameter.name]
            before.append(msgspec.structs.replace(parameter, value=value, spread=spread))
        problem = _Problem([dnn], before)
        x, _ = problem.minimum()
        ranges = {"workers": (1.0, 1.0), "servers": (1.0, 1.0)}
        known = Calibration(spread=self.further, ranges=ranges, growth=self.growth, rows=self.rows)
        return problem.served(dnn, x, (known, Calibration()))


def fit_synchronous_servers(dnns: Sequence[Dnn], *, for_others: bool = False) -> SynchronousFit:
    """Fit all DNNs together; with ``for_others``, only the values expected of further DNNs.

    Raises
    ------
    InputError : there is no DNN, one has no runs, or two have the same name.
    """
    names = [dnn.name for dnn in dnns]
    if not dnns or len(set(names)) < len(names):
        raise InputError("dnns: needs at least one, and each needs its own name")
    for dnn in dnns:
        if not dnn.runs:
            raise InputError(f"{dnn.name}: needs at least one run")
    problem = _Problem(dnns, COMMON)
    x, covariance = problem.minimum()
    spread, growth = (RUN_SPREAD, {}) if for_others else problem.held_out(x, covariance)
    common = {
        p.name: (float(f"{p.at(x[i]):.6g}"), float(f"{math.sqrt(covariance[i, i]):.4g}"))
        for i, p in enumerate(COMMON)
    }
    return SynchronousFit(
        rows=len(problem.steps),
        common=common,
        dnns={
            dnn.name: problem.served(dnn, x, problem.known(dnn, x, covariance, spread, growth))
            for dnn in (() if for_others else dnns)
        },
        further=_further(dnns) if len(dnns) > 1 else 2.0 * spread,
        growth=growth,
    )


def _further(dnns: Sequence[Dnn]) -> float:
    """Spread of a DNN's runs around a fit to the other DNNs and its smallest run."""
    found: list[Floats] = []
    for dnn in dnns:
        smallest = min(dnn.runs, key=lambda run: (run.workers * run.servers, run.workers))
        alone = msgspec.structs.replace(dnn, runs=(smallest,))
        problem = _Problem([alone, *(other for other in dnns if other is not dnn)], COMMON)
        x = problem.regression.solve([problem.regression.centre])
        found.append(_Problem([dnn], COMMON).step_misses(problem.served_values(dnn, x)))
    return float(np.quantile(np.abs(np.concatenate(found)), COVERAGE)) / WIDTH


class _Problem:
    """Runs of DNNs as arrays, and the regression of their misfits."""

    def __init__(self, dnns: Sequence[Dnn], common: Sequence[Parameter]) -> None:
        self.dnns = dnns
        rows = [(dnn, run) for dnn in dnns for run in dnn.runs]
        self.steps = np.log([run.step_s for _, run in rows])
        self.features = {
            name: np.array([float(getattr(run, name)) for _, run in rows])
            for name in ("workers", "servers")
        }
        columns = sorted({(dnn.name, run.servers) for dnn, run in rows})
        self.folds = [columns.index((dnn.name, run.servers)) % FOLDS for dnn, run in rows]
        cpu = [
            (run.worker_cpu_s, run.server_cpu_s if run.servers == 1 else None) for _, run in rows
        ]
        self._cpu = np.log([[v or math.nan for v in each] for each in cpu]).reshape(-1, 2)
        parameters = [*common, *(p for dnn in dnns for p in _own(dnn))]
        spreads = np.repeat([RUN_SPREAD, WORKER_CPU_SPREAD, SERVER_CPU_SPREAD], len(rows))
        self.regression = Regression(parameters, self._misses, spreads)

    def _misses(self, values: Mapping[str, Floats], points: int) -> Floats:
        found = [self._of(dnn, _values(dnn, values), points) for dnn in self.dnns]
        step, compute, server = (
            np.concatenate([each[k] for each in found], axis=1) for k in range(3)
        )
        return np.concatenate(
            [
                step - self.steps,
                np.nan_to_num(math.log(BUSY) + compute - self._cpu[:, 0]),
                np.nan_to_num(server - self._cpu[:, 1]),
            ],
            axis=1,
        )

    def _of(self, dnn: Dnn, own: Mapping[str, Floats], points: int) -> tuple[Floats, ...]:
        """Logarithms of step time, compute time and server time of a DNN's runs, (points, runs)."""
        workers = np.array([float(run.workers) for run in dnn.runs])
        servers = np.array([float(run.servers) for run in dnn.runs])
        whole = dnn.job.workload
        batch = np.maximum(np.round(whole.batch_size / workers), 1.0)
        each = {name: np.broadcast_to(v, points)[:, None] for name, v in own.items()}
        share = 1.0 - each["divisible"] + each["divisible"] * batch / whole.batch_size
        fullest = each["uneven"] + (1.0 - each["uneven"]) / servers
        found = steps_of(
            dnn.job,
            workers,
            fullest,
            each["compute_s"] / whole.compute_s * share,
            {n: each[n] for n in ("update_per_byte_s", "optimizer_per_byte_s")},
        )
        return tuple(np.log(part) for part in found)

    def step_misses(self, own: Mapping[str, float]) -> Floats:
        """Misfits of the step times of the only DNN with these values, (runs,)."""
        values = {name: np.array([value]) for name, value in own.items()}
        return np.asarray(self._of(self.dnns[0], values, 1)[0][0] - self.steps)

    def served_values(self, dnn: Dnn, x: Floats) -> dict[str, float]:
        """Values of a DNN at a point."""
        values = {name: np.array([v]) for name, v in self.regression.values(x).items()}
        return {name: float(v[0]) for name, v in _values(dnn, values).items()}

    def served(self, dnn: Dnn, x: Floats, known: tuple[Calibration, Calibration]) -> ServedDnn:
        """A DNN at a point, with each value rounded to six digits."""
        values = {n: float(f"{v:.6g}") for n, v in self.served_values(dnn, x).items()}
        seen = tuple((run.workers, run.servers) for run in dnn.runs)
        return ServedDnn(**values, seen=seen, known=known)

    def known(
        self, dnn: Dnn, x: Floats, covariance: Floats, spread: float, growth: Mapping[str, float]
    ) -> tuple[Calibration, Calibration]:
        """Remaining uncertainty of a DNN's server costs, and of its compute time."""
        names = ("update_per_byte_s", "optimizer_per_byte_s", "compute_s")
        slopes = []
        for aside in DIFFERENCE * np.eye(len(x)):
            more, less = (self.served_values(dnn, x + sign * aside) for sign in (1.0, -1.0))
            slopes.append([math.log(more[n] / less[n]) / (2.0 * DIFFERENCE) for n in names])
        jacobian = np.array(slopes)
        matrix = jacobian.T @ covariance @ jacobian
        ranges = {
            name: (float(min(of)), float(max(of)))
            for name, of in (
                ("workers", [run.workers for run in dnn.runs]),
                ("servers", [run.servers for run in dnn.runs]),
            )
        }
        servers = Calibration(
            parameters=tuple(f"server.{name}" for name in names[:2]),
            covariance=_nested(matrix[:2, :2]),
            spread=spread,
            ranges=ranges,
            growth=dict(growth),
            rows=len(self.steps),
        )
        return servers, Calibration(parameters=("compute_s",), covariance=_nested(matrix[2:, 2:]))

    def minimum(self) -> tuple[Floats, Floats]:
        """Return the best point, and the covariance there.

        The spreads of the misfits are not rescaled: with few runs of each DNN, rescaled ones would
        outweigh the priors, which tie the DNNs together.
        """
        x = self.regression.solve(self.regression.starts())
        return x, self.regression.covariance(x, 1.0)

    def held_out(self, x: Floats, covariance: Floats) -> tuple[float, dict[str, float]]:
        """Spread of step times around fits without the runs of the same DNN and number of
        servers, and its growth per doubling of workers and of servers beyond the fitted range."""
        misses = self.regression.left_out(self.folds * 3, x, 1.0).misses[: len(self.steps)]
        spread = spread_beside(self.regression, misses, x, covariance, RUN_SPREAD)
        growth = {
            name: float(f"{self.regression.growth(np.tile(values, 3), x, 1.0):.4g}")
            for name, values in self.features.items()
        }
        return spread, growth


def _own(dnn: Dnn) -> list[Parameter]:
    """Parameters of a DNN, relative to the common values."""
    return [
        Parameter(f"compute_s {dnn.name}", dnn.job.workload.compute_s, COMPUTE_SPREAD, "s"),
        Parameter(f"divisible {dnn.name}", DIVISIBLE, DIVISIBLE_SPREAD, scale="logit"),
        Parameter(f"worker {dnn.name}", 1.0, WORKER_SPREAD),
        Parameter(f"optimizer {dnn.name}", 1.0, OPTIMIZER_SPREAD),
        Parameter(f"uneven {dnn.name}", 1.0, UNEVEN_SPREAD),
    ]


def _values(dnn: Dnn, values: Mapping[str, Floats]) -> dict[str, Floats]:
    """Values of a DNN as fields, from the fitted parameters."""
    name, workload = dnn.name, dnn.job.workload
    compute_s = values[f"compute_s {name}"]
    launching = np.minimum(values["launch_s"] * workload.tensors / compute_s, MOST_LAUNCHING)
    worker_s = values["worker_s"] * values[f"worker {name}"]
    optimizer_s = worker_s * values["optimizer_ratio"] * values[f"optimizer {name}"]
    odds = values["uneven"] / (1.0 - values["uneven"]) * values[f"uneven {name}"]
    return {
        "compute_s": compute_s,
        "divisible": values[f"divisible {name}"] * (1.0 - launching),
        "update_per_byte_s": worker_s / workload.gradient_bytes,
        "optimizer_per_byte_s": optimizer_s / workload.gradient_bytes,
        "uneven": odds / (1.0 + odds),
    }


def _nested(matrix: Floats) -> tuple[tuple[float, ...], ...]:
    both = (matrix + matrix.T) / 2.0
    return tuple(tuple(float(f"{v:.6g}") for v in row) for row in both.tolist())
