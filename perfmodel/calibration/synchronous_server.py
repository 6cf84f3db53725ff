r"""From measured runs to a model of synchronous parameter servers, and on to other numbers of them.

All *w* workers share one batch; servers are limited by their processors, as they are in containers
of few cores. A step takes

.. math:: T = C \left(1 - f + f \frac{m}{w}\right) + W \frac{w - 1}{w + 1}
   + (A + B w) \left(h + \frac{1 - h}{p}\right)

- A worker alone computes for *C*. The part *f* of it shrinks with its share of the batch; *m* is
  the batch as a multiple of that of the model's runs. The rest, such as launching and serialising,
  does not shrink. The processor time of workers, where it was measured, tells *f*.
- All wait for the slowest. A container that has used up its share of the processors pauses until
  the next period begins, for a time spread evenly between nothing and 2 *W*: the expected greatest
  of *w* such times is 2 *W w* / (*w* + 1), their mean is a part of *C*.
- Servers have *A* to do in every step (update the parameters), and *B* for every worker (receive
  and add up its gradients, send parameters).
- Of this, *p* servers share what is cut or spread evenly. The part *h* stays on one of them:
  tensors go to servers by hash, and the server with the largest is the last to be ready.

*C*, *f*, *A*, *B*, *h* are a model's own, but not alien to those of others: *B* is near
:math:`b_0 + b_1 \cdot bytes`, *A* near *r B*, *h* near a common value. Few runs tell a model's own
parameters, those of all models tell the common ones, and published figures or assumptions stand in
for what no run tells: regularised least squares of logarithms (Gelman, Hill, "Data Analysis Using
Regression and Multilevel/Hierarchical Models", 2007, chapter 12).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from perfmodel.errors import InputError, number, unknown_name, whole_number
from perfmodel.uncertainty import Uncertainty

Floats = NDArray[np.float64]
Matrix = tuple[tuple[float, ...], ...]

RUN_SPREAD = 0.06
"""Standard deviation of the logarithm of a measured step around the model. An assumption; what
cross-validation finds on top is in the intervals."""

PROCESSOR_SPREAD = 0.1
"""Same of the processor time of a worker. An assumption."""

COMPUTE_SPREAD = 0.5
"""How far computing may be from the time given for it: standard deviation of the logarithm."""

BUSY, BUSY_SPREAD = 3.0, 1.0
"""Logit of the part of a worker's cores that is busy while it computes: 0.95, between 0.88 and
0.98. An assumption: containers of few cores are short of them."""

DIVISIBLE_SPREAD = 1.0
"""Standard deviation of the logit of *f*: nearly even between 0 and 1."""

UPDATE_SPREAD, WORKER_SPREAD, HOT_SPREAD = 1.5, 0.3, 1.0
"""How far a model's *A*, *B* (logarithms) and *h* (logit) are from what is common: assumptions.
Optimisers differ more in what an update costs than messages do in what a byte costs."""

COMMON: tuple[tuple[str, float, float], ...] = (
    ("wait_s", math.log(0.05), 0.7),
    ("hot_fraction", -2.0, 1.0),
    ("worker_s", math.log(0.05), 1.5),
    ("worker_s_per_byte", math.log(2.5e-9), 1.0),
    ("update_ratio", 0.0, 1.0),
)
"""What is assumed before any run, with standard deviations: logarithms of *W*, b0, b1 and *r*, and
the logit of *h*. Linux grants processors to containers in periods of 100 ms (its ``cpu.max``), so
that *W* is half of that. A byte of 2.5 ns is 800 MB/s each way, what TensorFlow's gRPC moves over
one connection (github.com/tensorflow/tensorflow/issues/6116). The others are wide guesses.
"""

OWN = 6
"""Parameters of a model: logarithms of *C*, *A*, *B*; logits of *f*, *h* and of the busy part."""

TOLERATED = 2.0
"""Standard deviations beyond which a residual counts linearly, no longer squared (soft L1)."""

DIFFERENCE = 1e-4
"""Half-width of the central differences that make derivatives."""

DOUBLING = 0.03
"""Standard deviation for each doubling of workers or servers beyond the most that a model was run
with: an assumption, the same as for all predictions."""

UNSEEN_LARGER, UNSEEN_MODEL = 0.1, 0.25
"""Standard deviations of model errors where there are too few runs for cross-validation."""

HELD_BACK = (1 / 2, 2 / 3)
"""Parts of the runs of each model, the smallest, that predict the others in cross-validation."""


class SynchronousRun(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A measured run.

    Attributes
    ----------
    workers, servers : containers of each.
    step_s : time of a step, in which all workers together train on one batch.
    batch_size : samples of all workers in a step.
    worker_cpu_s : processor time of a worker in a step, over all of its cores; None if unknown.
    """

    workers: int
    servers: int
    step_s: float
    batch_size: float
    worker_cpu_s: float | None = None

    def __post_init__(self) -> None:
        whole_number("workers", self.workers)
        whole_number("servers", self.servers)
        number("step_s", self.step_s, above=0.0)
        number("batch_size", self.batch_size, above=0.0)
        if self.worker_cpu_s is not None:
            number("worker_cpu_s", self.worker_cpu_s, above=0.0)

    @property
    def size(self) -> tuple[int, int, int]:
        """What runs are ordered by: connections, then workers."""
        return self.workers * self.servers, self.workers, self.servers


class SynchronousModel(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What is trained, and its runs; of a model that was never run, none.

    ``compute_s`` is the time of a step of one worker without any server, at the batch size of
    ``batch_size`` samples; a rough one will do.
    """

    name: str
    parameter_bytes: float
    compute_s: float
    batch_size: float
    runs: tuple[SynchronousRun, ...] = ()

    def __post_init__(self) -> None:
        for key in ("parameter_bytes", "compute_s", "batch_size"):
            number(f"{self.name}: {key}", getattr(self, key), above=0.0)


class FittedModel(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a fit keeps of a model: never the measured values.

    Attributes
    ----------
    runs : workers, servers and batch size of the runs that were fitted to.
    values : the model's own parameters, then the common ones, as the fit has them.
    covariance : of these.
    """

    name: str
    batch_size: float
    runs: tuple[tuple[int, int, float], ...]
    values: tuple[float, ...]
    covariance: Matrix

    @property
    def alone(self) -> bool:
        """Whether no run had several workers or servers."""
        return self.most == (1, 1)

    @property
    def most(self) -> tuple[int, int]:
        """Most workers and most servers of its runs."""
        workers, servers, _ = zip(*self.runs, strict=True) if self.runs else ((1,), (1,), ())
        return max(workers), max(servers)


class SynchronousStep(msgspec.Struct, frozen=True):
    """A predicted step, its parts, and how far it may be off.

    ``compute_s``, ``wait_s`` and ``server_s`` add up to ``step_s``. ``note`` says what the
    prediction rests on where that is not runs like it; else it is empty.
    """

    step_s: float
    compute_s: float
    wait_s: float
    server_s: float
    uncertainty: Uncertainty
    note: str


class SynchronousFit(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Calibrated synchronous parameter servers.

    Attributes
    ----------
    worker_cores : of each worker's container.
    rows : runs that were fitted to.
    common, covariance : parameters that hold for all models, in the order of :data:`COMMON`.
    larger_spread, model_spread : standard deviation of the logarithm of what calibration does not
        explain, in runs larger than those fitted to, and in runs of models not fitted to.
    """

    worker_cores: float
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
        values = np.array(of.values)
        aside = DIFFERENCE * np.eye(len(values))
        rows = np.concatenate([[values], values + aside, values - aside])
        parts = _parts(rows.T, rows.T[OWN:], float(workers), float(servers), batch)
        logs = np.log(sum(parts))
        slope = (logs[1 : len(values) + 1] - logs[len(values) + 1 :]) / (2.0 * DIFFERENCE)
        compute_s, wait_s, server_s = (float(part[0]) for part in parts)
        alike = not of.alone
        most_workers, most_servers = of.most
        beyond = max(workers / most_workers, 1.0) * max(servers / most_servers, 1.0)
        uncertainty = Uncertainty(
            calibration=math.sqrt(float(slope @ np.array(of.covariance) @ slope)),
            model=self.larger_spread if alike else self.model_spread,
            # how errors grow away from one worker and server is in the spread between models
            extrapolation=DOUBLING * math.log2(beyond) if alike else 0.0,
        )
        step_s = compute_s + wait_s + server_s
        note = self._note(of, workers, servers)
        return SynchronousStep(step_s, compute_s, wait_s, server_s, uncertainty, note)

    def for_model(self, model: SynchronousModel) -> SynchronousFit:
        """Of another model alone, from its runs, if there are any, and from what is common."""
        found = _fitted([model], self.worker_cores, self.common, self.covariance)
        return msgspec.structs.replace(self, models=found.models)

    def without_models(self) -> SynchronousFit:
        """Only what is common, for :meth:`for_model`."""
        return msgspec.structs.replace(self, models=())

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
    models: Sequence[SynchronousModel], *, worker_cores: float = 2.0
) -> SynchronousFit:
    """Fit all models together; the module's text has the formula.

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
    number("worker_cores", worker_cores, above=0.0)
    names = [one.name for one in models]
    if not models:
        raise InputError("models: at least one is needed")
    for one in models:
        if names.count(one.name) > 1:
            raise InputError(f"models: {one.name!r} is given twice")
        if not one.runs:
            raise InputError(f"{one.name}: runs: at least one is needed")
    found = _fitted(models, worker_cores, *_assumed())
    return msgspec.structs.replace(
        found,
        larger_spread=_larger_spread(models, worker_cores),
        model_spread=_model_spread(models, worker_cores),
    )


def _assumed() -> tuple[tuple[float, ...], Matrix]:
    values = tuple(value for _, value, _ in COMMON)
    return values, _nested(np.diag([spread**2 for _, _, spread in COMMON]))


def _parts(
    own: Floats,
    common: Floats,
    workers: Floats | float,
    servers: Floats | float,
    batch: Floats | float,
) -> tuple[Floats, Floats, Floats]:
    """Computing, waiting and serving; ``own`` and ``common`` have a row for each parameter."""
    compute_s, update_s, worker_s = np.exp(own[:3])
    divisible, hot = _logistic(own[3]), _logistic(own[4])
    computing = compute_s * (1.0 - divisible + divisible * batch / workers)
    waiting = np.exp(common[0]) * (workers - 1.0) / (workers + 1.0)
    serving = (update_s + worker_s * workers) * (hot + (1.0 - hot) / servers)
    return computing, waiting, serving


class _Problem(NamedTuple):
    """Runs of models as arrays, and what is known before any run."""

    models: Sequence[SynchronousModel]
    of: NDArray[np.int64]
    workers: Floats
    servers: Floats
    batch: Floats
    step: Floats
    processor: Floats
    known: Floats
    whitening: Floats

    @classmethod
    def of_models(
        cls,
        models: Sequence[SynchronousModel],
        worker_cores: float,
        common: Sequence[float],
        covariance: Matrix,
    ) -> _Problem:
        runs = [(k, run) for k, one in enumerate(models) for run in one.runs]
        return cls(
            models,
            np.array([k for k, _ in runs], np.int64),
            np.array([run.workers for _, run in runs], np.float64),
            np.array([run.servers for _, run in runs], np.float64),
            np.array([run.batch_size / models[k].batch_size for k, run in runs]),
            np.log([run.step_s for _, run in runs]),
            np.log([(run.worker_cpu_s or np.nan) / worker_cores for _, run in runs]),
            np.array(common),
            np.linalg.cholesky(np.linalg.inv(np.array(covariance))).T,
        )

    def start(self) -> Floats:
        own = np.zeros((len(self.models), OWN))
        own[:, 0] = np.log([one.compute_s for one in self.models])
        own[:, 1] = own[:, 2] = math.log(0.1)
        own[:, 4] = self.known[1]
        own[:, 5] = BUSY
        return np.concatenate([own.ravel(), self.known])

    def residuals(self, point: Floats) -> Floats:
        """Misfits of runs, then distances from what was known, in standard deviations."""
        count = len(self.models)
        own, common = point[: OWN * count].reshape(count, OWN), point[OWN * count :]
        of_runs = own[self.of].T
        parts = _parts(of_runs, common, self.workers, self.servers, self.batch)
        busy = np.log(_logistic(of_runs[5]) * parts[0])
        bytes_each = np.array([one.parameter_bytes for one in self.models])
        expected = np.log(np.exp(common[2]) + np.exp(common[3]) * bytes_each)
        compute = np.log([one.compute_s for one in self.models])
        return np.concatenate(
            [
                (np.log(sum(parts)) - self.step) / RUN_SPREAD,
                np.nan_to_num((busy - self.processor) / PROCESSOR_SPREAD),
                (own[:, 0] - compute) / COMPUTE_SPREAD,
                (own[:, 1] - own[:, 2] - common[4]) / UPDATE_SPREAD,
                (own[:, 2] - expected) / WORKER_SPREAD,
                own[:, 3] / DIVISIBLE_SPREAD,
                (own[:, 4] - common[1]) / HOT_SPREAD,
                (own[:, 5] - BUSY) / BUSY_SPREAD,
                self.whitening @ (common - self.known),
            ]
        )


def _fitted(
    models: Sequence[SynchronousModel],
    worker_cores: float,
    common: Sequence[float],
    covariance: Matrix,
) -> SynchronousFit:
    """The most likely parameters; without spreads of model errors."""
    from scipy.optimize import least_squares

    problem = _Problem.of_models(models, worker_cores, common, covariance)
    found = least_squares(
        problem.residuals, problem.start(), loss="soft_l1", f_scale=TOLERATED, jac="2-point"
    )
    spread = np.linalg.inv(found.jac.T @ found.jac)
    shared = np.arange(OWN * len(models), len(found.x))
    fitted = []
    for k, one in enumerate(models):
        where = np.concatenate([np.arange(OWN * k, OWN * (k + 1)), shared])
        fitted.append(
            FittedModel(
                name=one.name,
                batch_size=one.batch_size,
                runs=tuple((run.workers, run.servers, run.batch_size) for run in one.runs),
                values=tuple(map(float, found.x[where])),
                covariance=_nested(spread[np.ix_(where, where)]),
            )
        )
    return SynchronousFit(
        worker_cores=worker_cores,
        rows=len(problem.step),
        common=tuple(map(float, found.x[shared])),
        covariance=_nested(spread[np.ix_(shared, shared)]),
        larger_spread=0.0,
        model_spread=0.0,
        models=tuple(fitted),
    )


def _larger_spread(models: Sequence[SynchronousModel], worker_cores: float) -> float:
    """What larger runs differ by from a fit to the smaller ones of each model."""
    found: list[tuple[float, float]] = []
    for part in HELD_BACK:
        kept, left = [], []
        for one in models:
            runs = sorted(one.runs, key=lambda run: run.size)
            few = math.ceil(len(runs) * part)
            kept.append(msgspec.structs.replace(one, runs=tuple(runs[:few])))
            left += [(one.name, run) for run in runs[few:]]
        fit = _fitted(kept, worker_cores, *_assumed())
        found += [_miss(fit, name, run) for name, run in left]
    return _unexplained(found, UNSEEN_LARGER)


def _model_spread(models: Sequence[SynchronousModel], worker_cores: float) -> float:
    """What runs of a model differ by from a fit to others and to its smallest run."""
    found: list[tuple[float, float]] = []
    for one in models if len(models) > 1 else ():
        others = [other for other in models if other is not one]
        smallest, *left = sorted(one.runs, key=lambda run: run.size)
        alone = msgspec.structs.replace(one, runs=(smallest,))
        fit = _fitted(others, worker_cores, *_assumed()).for_model(alone)
        missed = np.array([_miss(fit, one.name, run) for run in left])
        if left:  # errors of one model go together: it counts once
            found.append((float(np.sqrt(np.mean(missed[:, 0] ** 2))), float(missed[:, 1].mean())))
    return _unexplained(found, UNSEEN_MODEL)


def _miss(fit: SynchronousFit, model: str, run: SynchronousRun) -> tuple[float, float]:
    """Logarithm of predicted over measured, and the variance that calibration explains."""
    found = fit.predict(model, run.workers, run.servers, run.batch_size)
    return math.log(found.step_s / run.step_s), found.uncertainty.calibration**2


def _unexplained(missed: Sequence[tuple[float, float]], otherwise: float) -> float:
    """Standard deviation that explains errors beyond calibration; at least that of runs."""
    if len(missed) < 3:
        return otherwise
    squares, explained = np.mean([(miss**2, variance) for miss, variance in missed], axis=0)
    return max(RUN_SPREAD, math.sqrt(max(squares - explained, 0.0)))


def _logistic(x: Floats) -> Floats:
    found: Floats = 1.0 / (1.0 + np.exp(-x))
    return found


def _nested(matrix: Floats) -> Matrix:
    return tuple(tuple(map(float, row)) for row in matrix)
