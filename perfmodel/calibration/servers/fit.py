r"""Fits parameter servers that several workloads share to measured runs of these.

Step times come from the formulas of ``arch=ps``. The compute time of each workload comes from its
own runs. What else is fitted depends on the synchronisation, see
:mod:`perfmodel.calibration.servers.priors`:

*Asynchronous* servers: all workloads share the server's costs per tensor and per byte. Their priors
are published figures, because with few workers the server is mostly idle, so that throughput says
little about it. Where the server becomes the bottleneck, the formulas are several percent off; they
are corrected by the ratio of simulation to formula at the last estimate.

*Synchronous* servers, limited by their processors, as in containers with few cores:

- A worker with the part *b* of the largest batch computes for

  .. math:: C \left( 1 - d + d b \right), \quad d = d_0 \left( 1 - K \lambda / C \right)

  where each of *K* tensors costs :math:`\lambda`, whatever the batch size, and the fraction
  :math:`d_0` of the rest is proportional to the batch size.
- Servers take *B* for the gradients of each worker (``update_per_byte_s``) and *A* for each update
  (``optimizer_per_byte_s``).
- The fraction *h* of that work stays on one of several servers (``uneven``).

*B* is near a common value, *A* near a common multiple of *B* and *h* near a common fraction;
:math:`\lambda` is common. A workload's own few runs determine how it differs, and the runs of all
what they have in common: a multilevel model (Gelman, Hill, "Data Analysis Using Regression and
Multilevel/Hierarchical Models", 2007, chapter 12).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from perfmodel.api import Fidelity, predict
from perfmodel.architectures.ps.options import Options
from perfmodel.architectures.ps.placement import slices_of
from perfmodel.base.arrays import Floats
from perfmodel.base.errors import InputError
from perfmodel.base.uncertainty import COVERAGE, WIDTH
from perfmodel.calibration.parameters import Observation, expanded, of_workload
from perfmodel.calibration.regression import DIFFERENCE, Regression
from perfmodel.calibration.runs.parameters import SERVER_COSTS, SERVER_SHARE, JobGroup
from perfmodel.calibration.servers.priors import ServerKind, kind_of
from perfmodel.calibration.servers.results import ServedWorkload, ServersFit, series_name
from perfmodel.calibration.statistics import nested, rounded, spread_beside
from perfmodel.inputs.calibration import Calibration
from perfmodel.inputs.job import Job
from perfmodel.phases.quantities import quantities_of

BUSY = 0.95
"""Fraction of a worker's cores that is busy while it computes, if the container has no other cores:
an assumption."""

WORKER_CPU_SPREAD, SERVER_CPU_SPREAD = 0.1, 0.15
"""Standard deviations, around the formulas, of the logarithms of the processor time of a worker and
of a single server: assumptions."""

MOST_LAUNCHING = 0.95
"""Largest fraction of compute time that launches may take."""

FIRM = 1e-4
"""Prior standard deviation of a coordinate that is kept as it is."""

SERVERS_GROWTH = 0.15
"""Standard deviation of the logarithm of the step time per doubling of the servers, if all runs had
the same number of them. It is an assumption, wider than what runs of synchronous servers show."""

ROUTES: tuple[Fidelity, ...] = ("fine", "coarse")

TAKEN = 0.7
"""Fraction of each new correction by simulation that is applied; the first is applied in full."""


def fit_servers(runs: Sequence[Observation], *, for_others: bool = False) -> ServersFit:
    """Fit parameter servers and the compute times of all workloads together.

    Parameters
    ----------
    runs : of ``arch=ps``, all synchronous or all asynchronous; the compute times of the job with
        the largest batch of each workload and device may be rough.
    for_others : fit only what is expected of further workloads.

    Raises
    ------
    InputError : there is no run; a job has no servers, or workers that differ; runs of one workload
        differ in more than workers, servers and batch size; not all have the same ``sync``.
    """
    sync = _sync(runs)
    kind = kind_of(sync)
    series = _series(runs)
    problem = _Problem(series, kind)
    x, scale, covariance = problem.minimum()
    spread, growth = (kind.run_spread, {}) if for_others else problem.held_out(x, scale, covariance)
    known = {
        dnn.name: problem.known(dnn, x, covariance, spread, growth)
        for dnn in (() if for_others else series)
    }
    values, names = problem.regression.values(x), problem.regression.names
    further = Calibration(
        spread=_further(series, kind, spread),
        ranges={"workers": (1.0, 1.0), "servers": (1.0, 1.0)},
        growth=growth,
        rows=len(runs),
    )
    if not kind.apart:  # workloads share the servers: so do further ones
        further = next(iter(known.values()))[0] if known else further
    return ServersFit(
        sync=sync,
        rows=len(runs),
        common={
            p.name: (
                rounded(values[p.name]),
                rounded(math.sqrt(covariance[names.index(p.name), names.index(p.name)]), 4),
            )
            for p in kind.parameters
            if p.spread > 0.0
        },
        workloads={dnn.name: problem.served(dnn, x, known[dnn.name]) for dnn in series if known},
        further=further,
    )


def serve_others(fit: ServersFit, runs: Sequence[Observation]) -> dict[str, ServedWorkload]:
    """Values of further workloads, given their few runs and what others have in common, by name.

    Raises
    ------
    InputError : as :func:`fit_servers`.
    """
    kind = kind_of(fit.sync)
    parameters = []
    for p in kind.parameters:
        value, spread = fit.common.get(p.name, (p.value, p.spread))
        firm = p.name in fit.common and not kind.apart
        parameters.append(msgspec.structs.replace(p, value=value, spread=FIRM if firm else spread))
    served, kind = {}, kind._replace(parameters=tuple(parameters))
    for dnn in _series(runs):
        problem = _Problem([dnn], kind)
        x, _, covariance = problem.minimum(corrected=False)
        compute = Calibration() if kind.apart else problem.known(dnn, x, covariance, 0.0, {})[1]
        served[dnn.name] = problem.served(dnn, x, (fit.further, compute))
    return served


def _sync(runs: Sequence[Observation]) -> str:
    kinds = set()
    for run in runs:
        if not isinstance(run.job.options, Options):
            raise InputError(f"{run.place or 'runs'}: {run.job.architecture.name} has no servers")
        kinds.add("bsp" if run.job.options.sync == "bsp" else "asp")
    if len(kinds) != 1:
        problem = "mix synchronous and asynchronous ones" if kinds else "needs at least one"
        raise InputError(f"runs: {problem}")
    return kinds.pop()


class _Series(NamedTuple):
    """Runs of one workload on one kind of device; arrays are (runs,).

    ``job`` has one worker, one server and the largest batch; ``batch`` is relative to the latter,
    ``fullest`` is the fraction of the model on the fullest server if ``uneven`` is 0.
    """

    name: str
    job: Job
    runs: Sequence[Observation]
    workers: Floats
    servers: Floats
    batch: Floats
    fullest: Floats

    def group(self) -> JobGroup:
        """The jobs of the runs, to be evaluated at once."""
        rows = np.arange(len(self.runs))
        return JobGroup(self.job, quantities_of(self.job), rows, self.workers.astype(np.int64))


def _series(runs: Sequence[Observation]) -> list[_Series]:
    by_name: dict[str, list[Observation]] = {}
    for run in runs:
        by_name.setdefault(series_name(run.job.workload), []).append(run)
    series = []
    for name, members in by_name.items():
        largest = max(members, key=lambda run: run.job.workload.batch_size).job
        base = _alone(largest, largest)
        for run in members:
            if _alone(run.job, largest) != base:
                raise InputError(
                    f"{run.place or name}: differs from other runs of {name} in more than workers, "
                    "servers, batch size and uneven"
                )
            where = run.job.cluster
            if run.job.stragglers or where.overrides or where.crowds:
                raise InputError(f"{run.place or name}: needs workers that do not differ")
        batch = np.array([float(run.job.workload.batch_size) for run in members])
        series.append(
            _Series(
                name,
                base,
                members,
                np.array([float(run.job.workers) for run in members]),
                np.array([float(run.job.options.server_count) for run in members]),
                batch / largest.workload.batch_size,
                np.array([_fullest(run.job) for run in members]),
            )
        )
    return series


def _alone(job: Job, like: Job) -> Job:
    """Return the job with one worker, one server, and the workload of another."""
    options = msgspec.structs.replace(job.options, servers=1, uneven=0.0)
    return msgspec.structs.replace(
        job, workers=1, options=options, workload=like.workload, assumptions=(), given=None
    )


def _fullest(job: Job) -> float:
    """Fraction of the model's bytes on the fullest server of a job, with ``uneven`` of 0."""
    slices = slices_of(job.workload, msgspec.structs.replace(Options.of(job), uneven=0.0))
    sizes_bytes = np.bincount(slices.server, slices.bytes)
    return float(sizes_bytes.max() / sizes_bytes.sum())


def _further(series: Sequence[_Series], kind: ServerKind, spread: float) -> float:
    """Spread of a workload's runs around a fit to the other workloads and its smallest run."""
    if len(series) < 2 or not kind.apart:
        return 2.0 * spread
    misses: list[Floats] = []
    for dnn in series:
        smallest = int(np.lexsort((dnn.workers, dnn.workers * dnn.servers))[0])
        alone = dnn._replace(
            runs=[dnn.runs[smallest]],
            **{n: getattr(dnn, n)[[smallest]] for n in ("workers", "servers", "batch", "fullest")},
        )
        problem = _Problem([alone, *(other for other in series if other is not dnn)], kind)
        x = problem.regression.solve([problem.regression.centre])
        values = {n: np.array([v]) for n, v in problem.regression.values(x).items()}
        misses.append(_Problem([dnn], kind).misses(values, 1)[0, : len(dnn.runs)])
    return float(np.quantile(np.abs(np.concatenate(misses)), COVERAGE)) / WIDTH


class _Problem:
    """Runs as arrays, and the regression of their misfits: step times, then processor times."""

    def __init__(self, series: Sequence[_Series], kind: ServerKind) -> None:
        self.series, self.kind = series, kind
        self.rows = [(dnn, i) for dnn in series for i in range(len(dnn.runs))]
        runs = [dnn.runs[i] for dnn, i in self.rows]
        self._measured = np.log(
            [
                *(run.step_s for run in runs),
                *(run.worker_cpu_s or math.nan for run in runs),
                *(
                    (run.job.options.server_count == 1 and run.server_cpu_s) or math.nan
                    for run in runs
                ),
            ]
        )
        self._groups = [dnn.group() for dnn in series]
        self._simulated: Floats | float = 0.0
        self.with_cpu = bool(np.isfinite(self._measured[len(runs) :]).any())
        spreads = [math.hypot(kind.run_spread, run.spread_fraction) for run in runs]
        if self.with_cpu:
            spreads += [WORKER_CPU_SPREAD] * len(runs) + [SERVER_CPU_SPREAD] * len(runs)
        else:
            self._measured = self._measured[: len(runs)]
        parameters = expanded(kind.parameters, [dnn.name for dnn in series])
        self.regression = Regression(parameters, self.misses, spreads)

    def misses(self, values: Mapping[str, Floats], points: int) -> Floats:
        """Logarithms of predicted over measured times, (points, rows)."""
        parts: list[list[Floats]] = [[], [], []]
        for dnn, group in zip(self.series, self._groups, strict=True):
            fields = self.fields(dnn, values)
            share, uneven = _share(dnn, fields), fields["uneven"][:, None]
            part = np.where(dnn.servers > 1, uneven + (1.0 - uneven) * dnn.fullest, 1.0)
            costs: dict[str, Floats] = {n: fields[n] for n in SERVER_COSTS if n in fields}
            factor = fields["compute_factor"][:, None] * share
            phases = group.phases({**costs, "compute_factor": factor, SERVER_SHARE: part}, points)
            times = (phases.iteration_s, phases.parts["compute"].seconds, phases.busy_s["servers"])
            for into, seconds in zip(parts, times, strict=True):
                flat = np.broadcast_to(seconds, points * len(dnn.runs))
                into.append(np.log(flat).reshape(points, -1))
        step, compute, server = (np.concatenate(part, axis=1) for part in parts)
        step = step + self._simulated
        if not self.with_cpu:
            return np.asarray(step - self._measured)
        logs = np.concatenate([step, math.log(BUSY) + compute, server], axis=1)
        return np.asarray(np.nan_to_num(logs - self._measured))

    def fields(self, dnn: _Series, values: Mapping[str, Floats]) -> dict[str, Floats]:
        """Values of a workload as fields, from the fitted parameters."""
        fields, workload = of_workload(self.kind.parameters, values, dnn.name), dnn.job.workload
        none = np.zeros_like(fields["compute_factor"])
        if "launch_s" in fields:
            launches_s = fields["launch_s"] * workload.tensors
            launching = launches_s / (fields["compute_factor"] * workload.compute_s)
            part = 1.0 - np.minimum(launching, MOST_LAUNCHING)
            fields["divisible"] = fields["divisible"] * part
        if "worker_s" in fields:
            fields["update_per_byte_s"] = fields["worker_s"] / workload.gradient_bytes
            fields["optimizer_per_byte_s"] = fields["update_per_byte_s"] * fields["optimizer_ratio"]
        return {"uneven": none, "divisible": none, **fields}

    def values(self, dnn: _Series, x: Floats) -> dict[str, float]:
        """Values of a workload's fields at a point; the compute time in seconds."""
        values = {name: np.array([v]) for name, v in self.regression.values(x).items()}
        fields = {name: float(v[0]) for name, v in self.fields(dnn, values).items()}
        fields["compute_s"] = fields["compute_factor"] * dnn.job.workload.compute_s
        return fields

    def served(
        self, dnn: _Series, x: Floats, known: tuple[Calibration, Calibration]
    ) -> ServedWorkload:
        """A workload at a point, with each value rounded to six digits."""
        values = {name: rounded(value) for name, value in self.values(dnn, x).items()}
        return ServedWorkload(
            compute_s=values["compute_s"],
            batch_size=dnn.job.workload.batch_size,
            divisible=values["divisible"],
            costs={name: values[name] for name in SERVER_COSTS if name in values},
            uneven=values["uneven"],
            seen=tuple((run.job.workers, run.job.options.server_count) for run in dnn.runs),
            known=known,
        )

    def known(
        self, dnn: _Series, x: Floats, covariance: Floats, spread: float, growth: dict[str, float]
    ) -> tuple[Calibration, Calibration]:
        """Remaining uncertainty of a workload's server costs, and of its compute time."""
        names = [name for name in SERVER_COSTS if name in self.values(dnn, x)]
        slopes = []
        for aside in DIFFERENCE * np.eye(len(x)):
            more, less = (self.values(dnn, x + sign * aside) for sign in (1.0, -1.0))
            slopes.append(
                [math.log(more[n] / less[n]) / (2.0 * DIFFERENCE) for n in (*names, "compute_s")]
            )
        jacobian = np.array(slopes)
        matrix, count = jacobian.T @ covariance @ jacobian, len(names)
        of = [dnn] if self.kind.apart else self.series
        counts = {
            name: np.concatenate([getattr(series, name) for series in of])
            for name in ("workers", "servers")
        }
        servers = Calibration(
            parameters=tuple(f"server.{name}" for name in names),
            covariance=nested(matrix[:count, :count]),
            spread=spread,
            ranges={name: (float(v.min()), float(v.max())) for name, v in counts.items()},
            growth=growth,
            rows=len(self.rows),
        )
        compute = Calibration(parameters=("compute_s",), covariance=nested(matrix[count:, count:]))
        return servers, compute

    def minimum(self, *, corrected: bool = True) -> tuple[Floats, float, Floats]:
        """Return the best point, the scale of the misfits, and the covariance there."""
        if self.kind.rescaled:
            x, scale = self.regression.fit()
        else:
            x, scale = self.regression.solve(self.regression.starts()), 1.0
        for i in range(self.kind.rounds if corrected else 0):
            new = self._corrections(x)
            self._simulated = new if i == 0 else TAKEN * new + (1.0 - TAKEN) * self._simulated
            x = self.regression.solve([x], scale)
        return x, scale, self.regression.covariance(x, scale)

    def _corrections(self, x: Floats) -> Floats:
        """Logarithms of simulated step times over those of the formulas, (runs,)."""
        served = {dnn.name: self.served(dnn, x, (Calibration(),) * 2) for dnn in self.series}
        jobs = [served[dnn.name].job(dnn.runs[i].job) for dnn, i in self.rows]
        steps_s = [[predict(job, fidelity=f).iteration_s for job in jobs] for f in ROUTES]
        return np.asarray(np.log(steps_s[0]) - np.log(steps_s[1]))

    def held_out(
        self, x: Floats, scale: float, covariance: Floats
    ) -> tuple[float, dict[str, float]]:
        """Spread of step times around fits without the runs of their group, and its growth per
        doubling of workers and of servers beyond the fitted range."""
        regression, times = self.regression, 3 if self.with_cpu else 1
        column = "servers" if self.kind.folds else "workers"
        keys = [
            (dnn.runs[i].group, 0.0) if dnn.runs[i].group else (dnn.name, getattr(dnn, column)[i])
            for dnn, i in self.rows
        ]
        order = sorted(set(keys))
        folds = [order.index(key) % (self.kind.folds or len(order)) for key in keys]
        misses = regression.left_out(folds * times, x, scale).misses[: len(self.rows)]
        explained = regression.explained(x, covariance)[: len(misses)]
        growth = {"servers": SERVERS_GROWTH}
        for name in ("workers", "servers"):
            values = np.array([getattr(dnn, name)[i] for dnn, i in self.rows])
            if name == "workers" or len(np.unique(values)) > 1:
                growth[name] = rounded(regression.growth(np.tile(values, times), x, scale), 4)
        spread = max(spread_beside(misses, explained), self.kind.run_spread)
        return rounded(spread, 4), growth


def _share(dnn: _Series, fields: Mapping[str, Floats]) -> Floats:
    """Compute time of each run relative to that of the largest batch, (points, runs)."""
    divisible = fields["divisible"][:, None]
    return np.asarray(1.0 - divisible + divisible * dnn.batch)
