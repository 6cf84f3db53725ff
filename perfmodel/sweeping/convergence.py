"""Accuracy over predicted time.

Time comes from the jobs, learning from a small task: :func:`converge` simulates each job, records
which gradient is computed on which parameters and when it is applied, and trains the task with real
gradients in exactly that order (:mod:`perfmodel.replay`). A step of the job stands for a step of
the task; times are those of the job, loss and accuracy those of the task.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Unpack

import msgspec
import numpy as np

from perfmodel import api
from perfmodel.base.arrays import Floats
from perfmodel.base.errors import InputError, number, whole_number
from perfmodel.inputs.job import Job
from perfmodel.predicting.recording import schedule_of
from perfmodel.replay.curve import Curve, accuracy_of
from perfmodel.replay.optimizer import Optimizer
from perfmodel.replay.replay import replay
from perfmodel.replay.tasks import make_task
from perfmodel.reporting.contents import Figure
from perfmodel.reporting.drawn import Drawn
from perfmodel.results.prediction import Prediction
from perfmodel.results.schedule import Schedule
from perfmodel.sweeping.arguments import merged
from perfmodel.sweeping.chunks import Progress
from perfmodel.sweeping.executors import completed, usable_cores
from perfmodel.sweeping.grids import GridArguments, grid
from perfmodel.sweeping.labels import Row, distinct, label
from perfmodel.sweeping.processes import MOST_PROCESSES, Processes
from perfmodel.sweeping.tables import Tabular, common, frame

if TYPE_CHECKING:
    import pandas as pd

SCHEMA = "perfmodel.convergence/1"

MOST_JOBS, MOST_SEEDS = 16, 100
"""Largest number of jobs trained side by side, and of seeds per job."""

COVERAGE = 0.9
"""Coverage of the intervals of means over seeds (Student's t)."""

CLOSE = 0.98
"""Default target accuracy, as a fraction of the best job's final accuracy."""

NOISE_BATCHES = 32
"""Batches used to measure gradient noise, if it is requested."""

COLUMNS = ("samples", "updates", "time_s", "loss", "accuracy")


class TrainingSetup(msgspec.Struct, frozen=True, kw_only=True):
    """How the task is trained, the same for every job.

    Attributes
    ----------
    task : a name of :data:`perfmodel.replay.tasks.TASKS`, or ``package.module:function``.
    epochs : passes over the task's training samples by all workers together.
    batch_size : samples of the task in one worker's gradient.
    optimizer : see :class:`perfmodel.replay.optimizer.Optimizer`.
    evaluations : number of times that loss and accuracy are measured.
    noise_batches : batches used to measure gradient noise at each evaluation; 0 to skip it.
    """

    task: str = "mixture"
    epochs: float = 5.0
    batch_size: int = 16
    optimizer: Optimizer = Optimizer()
    evaluations: int = 20
    noise_batches: int = 0

    def __post_init__(self) -> None:
        number("epochs", self.epochs, above=0.0, at_most=1e6)
        whole_number("batch_size", self.batch_size)
        whole_number("evaluations", self.evaluations)
        whole_number("noise_batches", self.noise_batches, at_least=0)


class Trained(msgspec.Struct, frozen=True, kw_only=True):
    """A job or a schedule, and the curves of the task trained in its order, one per seed.

    ``prediction`` is None for a schedule; ``iteration_s`` and ``staleness_mean`` are set for both.
    """

    name: str
    prediction: Prediction | None
    iteration_s: float
    staleness_mean: float | None
    curves: tuple[Curve, ...] = ()

    @property
    def diverged(self) -> int:
        """Number of seeds that diverged."""
        return sum(curve.divergence is not None for curve in self.curves)

    def mean(self, column: str) -> tuple[Floats, Floats]:
        """Mean over the seeds at each evaluation that all seeds reached, and the half-width of its
        interval (NaN for a single seed); both (evaluations,)."""
        length = min(len(curve.samples) for curve in self.curves)
        values = np.array([getattr(curve, column)[:length] for curve in self.curves], np.float64)
        return values.mean(axis=0), half_width(values)

    @property
    def accuracy(self) -> tuple[float, float]:
        """Mean final accuracy and the half-width of its interval; a diverged seed counts as 0."""
        last = [0.0 if c.divergence is not None else float(c.accuracy[-1]) for c in self.curves]
        return float(np.mean(last)), float(half_width(np.array(last)[:, None])[0])

    def time_to(self, target: float) -> tuple[float, float, int]:
        """Mean predicted seconds to an accuracy, the half-width of its interval, and the number of
        seeds that reach it. Seeds that do not are left out of the mean; NaN if none does."""
        reached = [t for c in self.curves if (t := c.time_to(target)) is not None]
        if not reached:
            return math.nan, math.nan, 0
        spread = float(half_width(np.array(reached)[:, None])[0])
        return float(np.mean(reached)), spread, len(reached)

    @property
    def noise_scale_samples(self) -> float | None:
        """Gradient noise scale over all evaluations and seeds; None if it was not measured."""
        from perfmodel.theory.statistical_efficiency import average

        measured = [noise for curve in self.curves for noise in curve.noise]
        return average(measured).scale_samples if measured else None


class Convergence(Drawn, Tabular, frozen=True, kw_only=True):
    """Jobs, and how the task learns in the order of each.

    ``target`` is an accuracy of the task. The default is :data:`CLOSE` times the best final
    accuracy, or 1 if all jobs diverged.
    """

    training: TrainingSetup
    seeds: int
    target: float
    trained: tuple[Trained, ...]

    def __repr__(self) -> str:
        accuracies = (f"{t.name}: {t.accuracy[0]:.3f}" for t in self.trained)
        return f"Convergence({self.training.task}, {'; '.join(accuracies)})"

    @property
    def title(self) -> str:
        """A sentence on where times and accuracies come from."""
        jobs = [t.prediction for t in self.trained if t.prediction is not None]
        origin = f"predicted for {common(jobs)}" if jobs else "taken from the schedules"
        return (
            f"times are {origin}; loss and accuracy are those of the task "
            f"{self.training.task!r}, trained with the same order of reads and updates"
        )

    @property
    def first(self) -> Trained | None:
        """The job that reaches the target first with every seed; None if no job does."""
        reached = [t for t in self.trained if t.time_to(self.target)[2] == self.seeds]
        return min(reached, key=lambda t: t.time_to(self.target)[0], default=None)

    def rows(self) -> list[Row]:
        """One row per job: iteration time, staleness, final accuracy, time to the target."""
        rows = []
        for t in self.trained:
            accuracy, spread = t.accuracy
            seconds, seconds_spread, reached = t.time_to(self.target)
            loss, _ = t.mean("loss")
            rows.append(
                {
                    "job": t.name,
                    "iteration_s": t.iteration_s,
                    "staleness_mean": t.staleness_mean,
                    "accuracy": accuracy,
                    "accuracy_half_width": _number(spread),
                    "loss": float(loss[-1]),
                    "training_s": float(t.mean("time_s")[0][-1]),
                    "time_to_target_s": _number(seconds),
                    "time_to_target_half_width_s": _number(seconds_spread),
                    "reached": reached,
                    "diverged": t.diverged,
                    "diverged_at_update": min(
                        (c.divergence.update for c in t.curves if c.divergence), default=None
                    ),
                    "noise_scale_samples": t.noise_scale_samples,
                }
            )
        return rows

    def points(self) -> list[Row]:
        """One row per job and evaluation: means over the seeds, and half-widths of the intervals of
        loss and accuracy."""
        rows = []
        for t in self.trained:
            means = {name: t.mean(name) for name in COLUMNS}
            for k in range(len(means["samples"][0])):
                row: Row = {"job": t.name}
                row |= {name: float(mean[k]) for name, (mean, _) in means.items()}
                for name in ("loss", "accuracy"):
                    row[f"{name}_half_width"] = _number(float(means[name][1][k]))
                rows.append(row)
        return rows

    def to_frame(self) -> pd.DataFrame:
        """The points as a data frame."""
        return frame(self.points())

    def to_dict(self) -> Row:
        """JSON-like values."""
        return {
            "schema": SCHEMA,
            "title": self.title,
            "training": msgspec.to_builtins(self.training),
            "seeds": self.seeds,
            "target": self.target,
            "rows": self.rows(),
            "points": self.points(),
        }

    def figure(self) -> Figure:
        """Accuracy over predicted seconds and over samples."""
        series = {t.name: {name: t.mean(name) for name in COLUMNS} for t in self.trained}
        return accuracy_of(series, self.target, self.training.task)


def converge(
    training: TrainingSetup | None = None,
    job: Job | None = None,
    *,
    seeds: int = 5,
    target: float | None = None,
    processes: int | None = None,
    max_ops: float = api.MOST_OPS,
    progress: Progress | None = None,
    **arguments: Unpack[GridArguments],
) -> Convergence:
    """Train a small task in the order in which jobs read parameters and apply gradients.

    Parameters
    ----------
    training : the task and how it is trained.
    seeds : number of seeds; a seed sets the task's initial parameters and sample order, and the
        random durations of the job.
    target : accuracy for which the time is reported.
    processes : number of processes; by default one per CPU core, 1 for this process only.
    max_ops : see :func:`perfmodel.predict`.
    progress : called with (done, all) after each training.
    job : the job to start from, if there is one.
    arguments : those of :func:`perfmodel.sweep`; each combination of values is a job.

    Raises
    ------
    InputError : more than 16 jobs, a number out of range, an unknown task, a missing extra, or an
        impossible job.

    >>> setup = TrainingSetup(epochs=1)
    >>> result = converge(setup, seeds=1, model="resnet18", workers=2, arch=["ring", "gosgd"])
    >>> [job.name for job in result.trained]
    ['ring', 'gosgd']
    """
    how = training if training is not None else TrainingSetup()
    _check(seeds, target, processes)
    jobs = grid(arguments if job is None else merged(job, arguments))
    if len(jobs.jobs) > MOST_JOBS:
        raise InputError(f"converge: {len(jobs.jobs)} jobs; at most {MOST_JOBS}")
    task = make_task(how.task)
    gradients = math.ceil(how.epochs * task.samples / how.batch_size)
    predictions = [api.predict(job, max_ops=max_ops) for job in jobs.jobs]
    trained, work = [], []
    names = distinct(label(point) for point in jobs.points)
    for name, job, p in zip(names, jobs.jobs, predictions, strict=True):
        stale = p.staleness.mean if p.staleness is not None else None
        trained.append(
            Trained(name=name, prediction=p, iteration_s=p.iteration_s, staleness_mean=stale)
        )
        work.append(SeedTraining(how, job, gradients, p.throughput_samples_per_s, max_ops))
    curves = _curves(work, seeds, processes, progress)
    return _converged(how, seeds, target, trained, curves)


def retrace(
    schedules: Mapping[str, Schedule],
    training: TrainingSetup | None = None,
    *,
    seeds: int = 5,
    target: float | None = None,
    processes: int | None = None,
    progress: Progress | None = None,
) -> Convergence:
    """Train a small task in the order of recorded schedules.

    Parameters
    ----------
    schedules : schedules by name; each is replayed completely, so ``training.epochs`` has no
        effect. The other parameters are those of :func:`converge`.

    Raises
    ------
    InputError : no schedule, more than 16, or the errors of :func:`converge`.
    """
    how = training if training is not None else TrainingSetup()
    _check(seeds, target, processes)
    if not 1 <= len(schedules) <= MOST_JOBS:
        raise InputError(f"retrace: expected 1 to {MOST_JOBS} schedules, got {len(schedules)}")
    make_task(how.task)
    trained = []
    for name, schedule in schedules.items():
        h, stale = schedule.header, schedule.staleness()
        step_s = h.workers * h.batch_size / h.samples_per_s if h.samples_per_s else math.inf
        mean = float(stale.mean()) if len(stale) else None
        trained.append(Trained(name=name, prediction=None, iteration_s=step_s, staleness_mean=mean))
    work = [SeedTraining(how, schedule) for schedule in schedules.values()]
    curves = _curves(work, seeds, processes, progress)
    return _converged(how, seeds, target, trained, curves)


def _check(seeds: int, target: float | None, processes: int | None) -> None:
    whole_number("seeds", seeds, at_most=MOST_SEEDS)
    if target is not None:
        number("target", target, above=0.0, at_most=1.0)
    if processes is not None:
        whole_number("processes", processes)


def _converged(
    how: TrainingSetup,
    seeds: int,
    target: float | None,
    trained: Sequence[Trained],
    curves: Sequence[tuple[Curve, ...]],
) -> Convergence:
    """Build the result, with the default target if none was given."""
    pairs = zip(trained, curves, strict=True)
    complete = tuple(msgspec.structs.replace(job, curves=of_job) for job, of_job in pairs)
    if target is None:
        best = max(job.accuracy[0] for job in complete)
        target = CLOSE * best if best > 0.0 else 1.0  # all diverged: no job reaches 1
    return Convergence(training=how, seeds=seeds, target=target, trained=complete)


class SeedTraining(NamedTuple):
    """Trainings in the order of a schedule, or of a job to record one from; one of them by its
    ``seed``.

    ``gradients`` is the number of gradients that the job applies, ``samples_per_s`` its throughput.
    """

    training: TrainingSetup
    source: Job | Schedule
    gradients: int = 0
    samples_per_s: float = 0.0
    max_ops: float = api.MOST_OPS
    seed: int = 0


def _curves(
    work: Sequence[SeedTraining], seeds: int, processes: int | None, progress: Progress | None
) -> list[tuple[Curve, ...]]:
    """Train all seeds, and return their curves for each job or schedule."""
    trainings = [training._replace(seed=seed) for training in work for seed in range(seeds)]
    curves: dict[int, Curve] = {}
    count = min(processes or usable_cores(), len(trainings), MOST_PROCESSES)
    with Processes(count) as pool:
        for place, curve in completed(pool, _train, trainings):
            curves[place] = curve
            if progress is not None:
                progress(len(curves), len(trainings))
    return [tuple(curves[k + n] for n in range(seeds)) for k in range(0, len(trainings), seeds)]


def _train(work: SeedTraining) -> Curve:
    """Train the task in the order of a job or schedule."""
    schedule = work.source
    if isinstance(schedule, Job):
        job = msgspec.structs.replace(schedule, seed=schedule.seed + work.seed)
        schedule = schedule_of(
            job, work.gradients, max_ops=work.max_ops, samples_per_s=work.samples_per_s
        )
    how = work.training
    header = msgspec.structs.replace(schedule.header, batch_size=how.batch_size)
    return replay(
        msgspec.structs.replace(schedule, header=header),
        make_task(how.task),
        how.optimizer,
        work.seed,
        evaluations=how.evaluations,
        noise_batches=how.noise_batches,
    )


def half_width(values: Floats) -> Floats:
    """Half-widths of Student's intervals of means over the first axis; NaN for a single value."""
    from scipy import special

    count = len(values)
    if count < 2:
        return np.full(values.shape[1:], math.nan)
    factor = special.stdtrit(count - 1, 0.5 + COVERAGE / 2.0) / math.sqrt(count)
    spread: Floats = factor * values.std(axis=0, ddof=1)
    return spread


def _number(value: float) -> float | None:
    return None if math.isnan(value) else value
