"""Fits synchronous parameter servers to measured runs, to predict other numbers of workers and
servers.

:mod:`perfmodel.calibration.servers.synchronous_model` has the formula and the priors.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import numpy as np

from perfmodel.base.arrays import Floats
from perfmodel.base.errors import InputError, number, unknown_name, whole_number
from perfmodel.base.uncertainty import COVERAGE, WIDTH, Uncertainty
from perfmodel.calibration.servers.synchronous_model import (
    COMMON,
    OWN,
    RUN_SPREAD,
    UNEVEN_SPREAD,
    Containers,
    SynchronousModel,
    SynchronousRun,
    SynchronousRuns,
    parts_of,
)

Matrix = tuple[tuple[float, ...], ...]

TOLERATED = 2.0
"""Scale of Cauchy's loss, in standard deviations, above which residuals lose weight."""

DIFFERENCE = 1e-4
"""Half-width of the central differences of derivatives."""

DOUBLING = 0.03
"""Standard deviation for each doubling of workers or servers beyond the most that a model was run
with: an assumption, the same as for all predictions."""

UNSEEN_LARGER, UNSEEN_MODEL = 0.1, 0.25
"""Standard deviations of model errors where there are too few runs for cross-validation."""

HELD_BACK = (1 / 2, 2 / 3)
"""Fractions of the runs of each model, the smallest runs, that predict the others in
cross-validation."""


class FittedModel(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Summary of a model in a fit, without the measured values.

    Attributes
    ----------
    runs : workers, servers and batch size of the runs that were fitted to.
    uneven : the numbers of servers above one in its runs.
    values : the model's own parameters, one for each of ``uneven``, then the common ones, on the
    scales of the fit.
    covariance : of these.
    """

    name: str
    batch_size: float
    runs: tuple[tuple[int, int, float], ...]
    uneven: tuple[int, ...]
    values: tuple[float, ...]
    covariance: Matrix

    @property
    def alone(self) -> bool:
        """Whether no run had several workers or servers."""
        return self.most == (1, 1)

    @property
    def most(self) -> tuple[int, int]:
        """Largest numbers of workers and servers in its runs."""
        workers, servers, _ = zip(*self.runs, strict=True) if self.runs else ((1,), (1,), ())
        return max(workers), max(servers)


class SynchronousStep(msgspec.Struct, frozen=True):
    """A predicted step, its parts, and its uncertainty.

    ``compute_s``, ``wait_s`` and ``server_s`` less ``hidden_s`` add up to ``step_s``; hidden is the
    overlap of computing and serving. ``note`` says what the prediction is based on if there are no
    similar runs; else it is empty.
    """

    step_s: float
    compute_s: float
    wait_s: float
    server_s: float
    hidden_s: float
    uncertainty: Uncertainty
    note: str


class SynchronousFit(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Calibrated synchronous parameter servers.

    Attributes
    ----------
    worker_cores, server_cores : of each container.
    network_bytes_per_s : bandwidth of a server, each way.
    rows : runs that were fitted to.
    common, covariance : parameters that hold for all models, in the order of :data:`COMMON`.
    larger_spread, model_spread : standard deviation of the logarithm of the model error, in runs
    larger than those fitted to, and in runs of models not fitted to.
    """

    worker_cores: float
    server_cores: float
    network_bytes_per_s: float
    rows: int
    common: tuple[float, ...]
    covariance: Matrix
    larger_spread: float
    model_spread: float
    models: tuple[FittedModel, ...] = ()

    def predict(
        self, model: str, workers: int, servers: int, batch_size: float | None = None
    ) -> SynchronousStep:
        """A step of a fitted model, by default of the batch size of its runs.

        Raises
        ------
        InputError : unknown model, or a number out of range.
        """
        whole_number("workers", workers)
        whole_number("servers", servers)
        of = next((one for one in self.models if one.name == model), None)
        if of is None:
            raise unknown_name("model", model, (one.name for one in self.models))
        batch = 1.0 if batch_size is None else number("batch_size", batch_size, above=0.0)
        batch /= 1.0 if batch_size is None else of.batch_size
        values, covariance = _with_imbalance(of, servers)
        aside = DIFFERENCE * np.eye(len(values))
        rows = np.concatenate([[values], values + aside, values - aside]).T
        parts = parts_of(
            rows[:OWN], rows[OWN], rows[OWN + 1 :], float(workers), float(servers), batch
        )
        logs = np.log(parts[0])
        slope = (logs[1 : len(values) + 1] - logs[len(values) + 1 :]) / (2.0 * DIFFERENCE)
        step_s, compute_s, wait_s, server_s = (float(part[0]) for part in parts)
        alike = not of.alone
        most_workers, most_servers = of.most
        beyond = max(workers / most_workers, 1.0) * max(servers / most_servers, 1.0)
        uncertainty = Uncertainty(
            calibration=math.sqrt(float(slope @ covariance @ slope)),
            model=self.larger_spread if alike else self.model_spread,
            # the spread between models includes the growth of errors with workers and servers
            extrapolation=DOUBLING * math.log2(beyond) if alike else 0.0,
        )
        return SynchronousStep(
            step_s=step_s,
            compute_s=compute_s,
            wait_s=wait_s,
            server_s=server_s,
            hidden_s=compute_s + wait_s + server_s - step_s,
            uncertainty=uncertainty,
            note=self._note(of, workers, servers),
        )

    def for_model(self, model: SynchronousModel) -> SynchronousFit:
        """A fit of another model only, from its runs, if any, and the common parameters."""
        found = _fitted([model], self._containers, self.common, self.covariance)
        return msgspec.structs.replace(self, models=found.models)

    def without_models(self) -> SynchronousFit:
        """The common parameters only, for :meth:`for_model`."""
        return msgspec.structs.replace(self, models=())

    @property
    def _containers(self) -> Containers:
        return Containers(self.worker_cores, self.server_cores, self.network_bytes_per_s)

    def _note(self, of: FittedModel, workers: int, servers: int) -> str:
        if not of.runs:
            return f"{of.name} was never run: all from its size and computing time"
        if of.alone:
            return f"{of.name} was only run with one worker and one server"
        most_workers, most_servers = of.most
        notes = []
        if workers > most_workers:
            notes.append(f"{workers} workers, calibrated on up to {most_workers}")
        if servers > most_servers:
            notes.append(f"{servers} servers, calibrated on up to {most_servers}")
        return "; ".join(notes)


def fit_synchronous_server(
    models: Sequence[SynchronousModel],
    *,
    worker_cores: float = 2.0,
    server_cores: float = 2.0,
    network_bytes_per_s: float = 1.25e9,
) -> SynchronousFit:
    """Fit all models together.

    Cores are those of each container. A server's network moves so many bytes per second each way,
    by default those of 10 Gb/s.

    Raises
    ------
    InputError : no models, two of one name, one without runs, or a number out of range.

    >>> slow, fast = (
    ...     SynchronousModel(
    ...         name=name,
    ...         parameter_bytes=1e8,
    ...         compute_s=0.5,
    ...         batch_size=32,
    ...         runs=tuple(
    ...             SynchronousRun(w, p, 0.5 + (1.0 + 0.3 * w) * factor / p, 32)
    ...             for w, p in [(1, 1), (2, 1), (4, 1), (1, 2), (1, 4), (2, 2)]
    ...         ),
    ...     )
    ...     for name, factor in [("slow", 2.0), ("fast", 1.0)]
    ... )
    >>> found = fit_synchronous_server([slow, fast]).predict("fast", workers=4, servers=4)
    >>> low, high = found.uncertainty.interval(found.step_s)
    >>> low < 0.5 + (1.0 + 0.3 * 4) / 4 < high
    True
    """
    models = tuple(models)
    containers = Containers(worker_cores, server_cores, network_bytes_per_s)
    for key, value in containers._asdict().items():
        number(key, value, above=0.0)
    names = [one.name for one in models]
    if not models:
        raise InputError("models: at least one is needed")
    for one in models:
        if names.count(one.name) > 1:
            raise InputError(f"models: {one.name!r} is given twice")
        if not one.runs:
            raise InputError(f"{one.name}: runs: at least one is needed")
    found = _fitted(models, containers, *_assumed())
    return msgspec.structs.replace(
        found,
        larger_spread=_larger_spread(models, containers),
        model_spread=_model_spread(models, containers),
    )


def _assumed() -> tuple[tuple[float, ...], Matrix]:
    values = tuple(value for _, value, _ in COMMON)
    return values, _nested(np.diag([spread**2 for _, _, spread in COMMON]))


def _with_imbalance(of: FittedModel, servers: int) -> tuple[Floats, Floats]:
    """Own parameters, the imbalance of a number of servers, and common parameters; their
    covariance."""
    common = OWN + len(of.uneven)
    where = [*range(OWN), common, *range(common, len(of.values))]
    if servers in of.uneven:
        where[OWN] = OWN + of.uneven.index(servers)
    values = np.array(of.values)[where]
    covariance = np.array(of.covariance)[np.ix_(where, where)]
    if servers not in of.uneven:
        values[OWN] = 0.0
        covariance[OWN, :] = covariance[:, OWN] = 0.0
        covariance[OWN, OWN] = UNEVEN_SPREAD**2 if servers > 1 else 0.0
    return values, covariance


def _fitted(
    models: Sequence[SynchronousModel],
    containers: Containers,
    common: Sequence[float],
    covariance: Matrix,
) -> SynchronousFit:
    """The most likely parameters; without spreads of model errors."""
    from scipy.optimize import least_squares

    problem = SynchronousRuns.of_models(models, containers, np.array(common), np.array(covariance))
    found = least_squares(
        problem.residuals, problem.start(), loss="cauchy", f_scale=TOLERATED, jac="2-point"
    )
    spread = np.linalg.inv(found.jac.T @ found.jac)
    shared = np.arange(len(found.x) - len(common), len(found.x))
    fitted = []
    for k, one in enumerate(models):
        imbalance = [OWN * len(models) + n for n, (of, _) in enumerate(problem.uneven) if of == k]
        where = np.array([*range(OWN * k, OWN * (k + 1)), *imbalance, *shared])
        fitted.append(
            FittedModel(
                name=one.name,
                batch_size=one.batch_size,
                runs=tuple((run.workers, run.servers, run.batch_size) for run in one.runs),
                uneven=tuple(servers for of, servers in problem.uneven if of == k),
                values=tuple(map(float, found.x[where])),
                covariance=_nested(spread[np.ix_(where, where)]),
            )
        )
    return SynchronousFit(
        **containers._asdict(),
        rows=len(problem.step),
        common=tuple(map(float, found.x[shared])),
        covariance=_nested(spread[np.ix_(shared, shared)]),
        larger_spread=0.0,
        model_spread=0.0,
        models=tuple(fitted),
    )


def _larger_spread(models: Sequence[SynchronousModel], containers: Containers) -> float:
    """Spread of larger runs around a fit to the smaller ones of each model."""
    found: list[tuple[float, float]] = []
    for part in HELD_BACK:
        kept, left = [], []
        for one in models:
            runs = sorted(one.runs, key=lambda run: run.size)
            few = math.ceil(len(runs) * part)
            kept.append(msgspec.structs.replace(one, runs=tuple(runs[:few])))
            left += [(one.name, run) for run in runs[few:]]
        fit = _fitted(kept, containers, *_assumed())
        found += [_miss(fit, name, run) for name, run in left]
    if len(found) < 3:
        return UNSEEN_LARGER
    # the spread that gives the intervals their nominal coverage
    needed = [(miss / WIDTH) ** 2 - explained for miss, explained in found]
    return math.sqrt(max(float(np.quantile(needed, COVERAGE)), RUN_SPREAD**2))


def _model_spread(models: Sequence[SynchronousModel], containers: Containers) -> float:
    """Spread of a model's runs around a fit to other models and its smallest run."""
    found: list[tuple[float, float]] = []
    for one in models if len(models) > 1 else ():
        others = [other for other in models if other is not one]
        smallest, *left = sorted(one.runs, key=lambda run: run.size)
        alone = msgspec.structs.replace(one, runs=(smallest,))
        fit = _fitted(others, containers, *_assumed()).for_model(alone)
        missed = np.array([_miss(fit, one.name, run) for run in left])
        if left:  # errors of one model are correlated: it counts once
            found.append((float(np.mean(missed[:, 0] ** 2)), float(missed[:, 1].mean())))
    if len(found) < 3:
        return UNSEEN_MODEL
    squares, explained = np.mean(found, axis=0)
    return math.sqrt(max(float(squares - explained), RUN_SPREAD**2))


def _miss(fit: SynchronousFit, model: str, run: SynchronousRun) -> tuple[float, float]:
    """Logarithm of predicted over measured, and the variance already in the interval."""
    found = fit.predict(model, run.workers, run.servers, run.batch_size)
    explained = found.uncertainty.calibration**2 + found.uncertainty.extrapolation**2
    return math.log(found.step_s / run.step_s), explained


def _nested(matrix: Floats) -> Matrix:
    return tuple(tuple(map(float, row)) for row in matrix)
