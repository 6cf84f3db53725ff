"""Runs real SGD on the model versions of a schedule."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import inf, isfinite

import numpy as np

from perfmodel.base.arrays import Floats
from perfmodel.base.errors import InputError, whole_number
from perfmodel.replay.batches import Batches
from perfmodel.replay.curve import Curve, Divergence
from perfmodel.replay.models import Models, edges_of
from perfmodel.replay.noise_scale import measure_noise
from perfmodel.replay.optimizer import Optimizer
from perfmodel.replay.plan import make_plan
from perfmodel.replay.rows import Rows, SliceRow, rows_of
from perfmodel.replay.tasks import TrainingTask
from perfmodel.results.schedule import CENTRE, Event, Schedule
from perfmodel.theory.statistical_efficiency import GradientNoise

DIVERGED = 5.0
"""Training has diverged once the averaged batch loss exceeds the initial loss by this factor."""

AVERAGED = 100
"""Batches over which the loss is averaged, with exponentially decaying weights."""

_ROWS = 1 << 16
"""Number of rows converted to Python objects at a time."""

READ, GRADIENT, APPLY, MIX = map(int, (Event.READ, Event.GRADIENT, Event.APPLY, Event.MIX))
"""The events as plain numbers, which compare faster."""

Slices = tuple[int, int, int]
"""A model, the first of its slices, and the one after the last."""


def replay(
    schedule: Schedule,
    task: TrainingTask,
    optimizer: Optimizer,
    seed: int = 0,
    *,
    evaluations: int = 50,
    noise_batches: int = 0,
) -> Curve:
    """Train a task with exactly the reads, updates and mixes of a schedule.

    Every worker computes gradients of its own batches (:class:`perfmodel.replay.batches.Batches`)
    on its own model, in the order of the schedule. Times come from the schedule; how long the
    replay itself takes does not matter.

    Parameters
    ----------
    seed : seed of the initial parameters and of the sample order.
    evaluations : number of evaluations, equally spaced in samples, after the one before training;
        the last is at the end of the schedule.
    noise_batches : measure the gradient noise at each evaluation with this many extra batches.

    Raises
    ------
    InputError : the task's gradients differ in length from its parameters, or a number is out of
        range. Schedules are checked when they are read; check others with ``Schedule.check``.
    """
    whole_number("seed", seed, at_least=0)
    whole_number("evaluations", evaluations)
    whole_number("noise_batches", noise_batches, at_least=0)
    run = _Replay(schedule, task, optimizer, seed, noise_batches)
    with np.errstate(all="ignore"):  # overflow counts as divergence
        run.go(evaluations)
    return run.curve()


class _Diverged(Exception):  # noqa: N818  # ends the loop; it is not an error
    """Training has diverged; the text tells how this was detected."""


class _Replay:
    """The state of a replay."""

    def __init__(
        self,
        schedule: Schedule,
        task: TrainingTask,
        optimizer: Optimizer,
        seed: int,
        noise_batches: int,
    ) -> None:
        header = schedule.header
        self.schedule, self.task, self.optimizer, self.seed = schedule, task, optimizer, seed
        self.noise_batches = noise_batches
        self.plan = make_plan(schedule)
        whole_number(f"task {task.name}: samples", task.samples)
        initial = np.asarray(task.initial(seed), np.float64)
        if initial.shape != (task.parameters,):
            raise InputError(
                f"task {task.name}: expected {task.parameters} initial parameters, got an array of "
                f"shape {initial.shape}"
            )
        self.slices = len(header.slices)
        edges = edges_of(task.parameters, header.slices)
        self.models = Models(initial, header.workers, edges, optimizer, self.plan.old)
        self.batches = Batches(task.samples, header.workers, header.batch_size, seed)
        self.gradients: dict[tuple[int, int], Floats] = {}
        self.velocity: dict[int, Floats] = {}
        self.rate = optimizer.rate(0.0, self.plan.gathered)
        self.done, self.steps = 0, 0
        self.batch_loss = self.most_loss = 0.0
        self.divergence: Divergence | None = None
        self.points: list[tuple[int, int, float, float, float, float]] = []
        self.noise: list[GradientNoise] = []

    def go(self, evaluations: int) -> None:
        """Replay all rows, or as many as there are before training diverges."""
        walked = rows_of(self.schedule, self.plan)
        total = walked.gradients
        due = sorted({total * k // evaluations for k in range(1, evaluations)} - {0})
        time_s = 0.0
        try:
            self._evaluate(time_s)
            for time_s, rows in _groups(walked):
                self._group(rows)
                if due and self.done >= due[0]:
                    due = [count for count in due if count > self.done]
                    self._evaluate(time_s)
            if total:
                self._evaluate(time_s)
        except _Diverged as reason:
            self.divergence = Divergence(self._updates, self._samples, time_s, str(reason))

    def curve(self) -> Curve:
        """Return the evaluations so far."""
        counts = np.array([point[:2] for point in self.points], np.int64).reshape(-1, 2)
        values = np.array([point[2:] for point in self.points], np.float64).reshape(-1, 4)
        return Curve(
            task=self.task.name,
            seed=self.seed,
            evaluated="centre" if self.plan.has_centre else "mean",
            samples=counts[:, 0],
            updates=counts[:, 1],
            time_s=values[:, 0],
            loss=values[:, 1],
            accuracy=values[:, 2],
            batch_loss=values[:, 3],
            noise=tuple(self.noise),
            divergence=self.divergence,
        )

    @property
    def _updates(self) -> int:
        return self.steps // self.slices

    @property
    def _samples(self) -> int:
        return self.done * self.schedule.header.batch_size

    def _group(self, rows: Sequence[SliceRow]) -> None:
        """Replay rows that take effect together, using the values from before any of them."""
        mixes: dict[Slices, list[SliceRow]] = {}
        applies: dict[Slices, list[SliceRow]] = {}
        reads = []
        for row in rows:
            target = (row.model, row.first, row.after)
            if row.event == GRADIENT:
                self._gradient(row)
            elif row.event == READ:
                reads.append(row)
            elif row.event == APPLY:
                applies.setdefault(target, []).append(row)
            elif row.event == MIX:
                mixes.setdefault(target, []).append(row)
            elif row.last:  # a gradient is discarded
                self.gradients.pop((row.worker, row.step), None)
        for row in reads:
            self.models.read(row.worker, row.first, row.after)
        if mixes:
            self._mix(mixes)
        for target, uses in applies.items():
            self._apply(target, uses)

    def _gradient(self, row: SliceRow) -> None:
        """Compute the gradient of the worker's next batch."""
        indices = self.batches.take(row.worker)
        optimizer = self.optimizer
        at_worker = optimizer.momentum_at == "worker"
        if not (row.applied or (at_worker and optimizer.momentum)):
            return  # nothing uses it
        parameters = self.models.view(row.worker, 0, self.slices)
        loss, gradient = self.task.gradient(parameters, indices)
        if gradient.shape != parameters.shape:
            raise InputError(
                f"task {self.task.name}: expected a gradient of {len(parameters)} numbers, got an "
                f"array of shape {gradient.shape}"
            )
        if not isfinite(loss):
            raise _Diverged("the loss of a batch is not finite")
        self.batch_loss += (loss - self.batch_loss) / AVERAGED
        if self.batch_loss > self.most_loss:
            raise _Diverged(f"the batch loss is over {DIVERGED:g} times the initial loss")
        if at_worker:
            if optimizer.weight_decay:
                gradient += optimizer.weight_decay * parameters
            if optimizer.momentum:
                velocity = self.velocity.setdefault(row.worker, np.zeros(len(gradient)))
                velocity *= optimizer.momentum
                velocity += gradient
                gradient = velocity.copy()
        if row.applied:
            self.gradients[row.worker, row.step] = gradient

    def _apply(self, target: Slices, rows: Sequence[SliceRow]) -> None:
        """Take an optimizer step on slices of one model, with the gradients of these rows."""
        total = self._used(rows[0])
        for row in rows[1:]:
            total += self._used(row)
        if not self.optimizer.is_constant:
            epochs = self._samples / self.task.samples
            self.rate = self.optimizer.rate(epochs, self.plan.gathered)
        self.models.overwritten(*target, rows[0].version)
        self.models.step(*target, total, self.rate)
        self.steps += rows[0].after - rows[0].first

    def _used(self, row: SliceRow) -> Floats:
        """Return slices of a gradient as applied, in a new array; its last use drops the
        gradient."""
        weight = row.weight
        if self.optimizer.by_staleness:
            weight /= row.staleness + 1.0
        key = (row.worker, row.step)
        part = self.models.part(self.gradients[key], row.first, row.after) * weight
        if row.last:
            del self.gradients[key]
            self.done += 1
        return part

    def _mix(self, targets: dict[Slices, list[SliceRow]]) -> None:
        """Mix models into slices of models, all using the values from before the mix."""
        models = self.models
        new = {
            target: models.mixed(*target, [(r.other, r.weight, r.other_version) for r in rows])
            for target, rows in targets.items()
        }
        for target, values in new.items():
            models.overwritten(*target, targets[target][0].version)
            models.view(*target)[:] = values

    def _evaluate(self, time_s: float) -> None:
        """Evaluate the centre, or the mean of all workers' models."""
        models = self.models
        parameters = (
            models.view(CENTRE, 0, self.slices)
            if self.plan.has_centre
            else models.values[:-1].mean(axis=0)
        )
        loss, accuracy = self.task.evaluate(parameters)
        if not isfinite(loss):
            raise _Diverged("the loss on the test samples is not finite")
        if not self.points:
            self.batch_loss = loss
            self.most_loss = DIVERGED * loss if loss > 0.0 else inf
        if self.noise_batches:
            self.noise.append(
                measure_noise(
                    self.task,
                    parameters,
                    batch_size=self.schedule.header.batch_size,
                    batches=self.noise_batches,
                    seed=len(self.noise),
                )
            )
        self.points.append((self._samples, self._updates, time_s, loss, accuracy, self.batch_loss))


def _groups(walked: Rows) -> Iterator[tuple[float, list[SliceRow]]]:
    """Yield the time and the rows of each group."""
    ends, group = walked.bounds, 0
    while group < len(ends) - 1:
        after = int(np.searchsorted(ends, ends[group] + _ROWS, "right")) - 1
        after = max(after, group + 1)
        begin, end = int(ends[group]), int(ends[after])
        lists = [column[begin:end].tolist() for column in walked.columns]
        rows = list(map(SliceRow._make, zip(*lists, strict=True)))
        times = walked.time_s[begin:end].tolist()
        for first, last in pairwise((ends[group : after + 1] - begin).tolist()):
            yield times[first], rows[first:last]
        group = after
