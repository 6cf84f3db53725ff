"""Many layouts of one model on one cluster: :func:`layouts`, by formulas, as arrays."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np

from perfmodel.base.arrays import Floats
from perfmodel.base.errors import InputError, whole_number
from perfmodel.inputs.job import Job
from perfmodel.inputs.job_replica import INTERLEAVED
from perfmodel.inputs.passes import accumulated, one_pass
from perfmodel.predicting import coarse, job_facts
from perfmodel.sweeping.labels import Row
from perfmodel.sweeping.tables import Tabular

BUBBLE = "pipeline bubble"
"""Phase of a step in which stages wait for each other."""

SAME = 1e-9
"""Relative difference up to which a third number of micro-batches is on the line of two others."""

LEAST = 2
"""Micro-batches, in multiples of the stages, from which on steps grow evenly."""

NO_MULTIPLE = "several chunks per stage, and micro_batches are no multiple of the stages"

COLUMNS = ("tensor", "pipeline", "virtual_stages", "micro_batches", "workers")


class Layouts(Tabular, frozen=True, eq=False, kw_only=True):
    """Steps of layouts, the fastest per sample first.

    Attributes
    ----------
    job : the job that the layouts are of.
    tensor, pipeline, virtual_stages, micro_batches, workers : of each layout, (layouts,).
    schedule : names, (layouts,).
    step_s : seconds of a step, (layouts,).
    bubble_fraction : of a step, in which a device waits for other stages, (layouts,).
    samples_per_s : of all replicas, (layouts,).
    skipped : number of combinations that are impossible, by the reason.
    """

    job: Job
    tensor: np.ndarray[Any, np.dtype[np.int64]]
    pipeline: np.ndarray[Any, np.dtype[np.int64]]
    virtual_stages: np.ndarray[Any, np.dtype[np.int64]]
    micro_batches: np.ndarray[Any, np.dtype[np.int64]]
    workers: np.ndarray[Any, np.dtype[np.int64]]
    schedule: tuple[str, ...]
    step_s: Floats
    bubble_fraction: Floats
    samples_per_s: Floats
    skipped: dict[str, int]

    def __len__(self) -> int:
        return len(self.step_s)

    def job_of(self, number: int) -> Job:
        """Return the job of a layout, to simulate it or to look at its memory."""
        return self.job.with_(**_arguments(self, number))

    def rows(self) -> list[Row]:
        """The layouts, in SI units."""
        return [
            {
                **{name: int(getattr(self, name)[k]) for name in COLUMNS},
                "schedule": self.schedule[k],
                "step_s": float(self.step_s[k]),
                "bubble_fraction": float(self.bubble_fraction[k]),
                "throughput_samples_per_s": float(self.samples_per_s[k]),
            }
            for k in range(len(self))
        ]

    def to_dict(self) -> Row:
        """The layouts and what was left out as JSON-like values."""
        return {"layouts": self.rows(), "skipped": self.skipped}


def _arguments(found: Layouts, number: int) -> dict[str, Any]:
    """Return the arguments of :func:`perfmodel.make_job` of a layout."""
    given: dict[str, Any] = {name: int(getattr(found, name)[number]) for name in COLUMNS}
    passes, chunks = given["micro_batches"], given.pop("virtual_stages")
    batch = found.job.workload.batch_size // found.job.workload.accumulation * passes
    if given["pipeline"] > 1:
        given |= {"schedule": found.schedule[number], "virtual_stages": chunks}
    if given["pipeline"] == given["tensor"] == 1:
        raise InputError("layouts: this one has single devices (tensor and pipeline are 1)")
    return {**given, "batch_size": batch}


Value = tuple[float, float]
"""Seconds of a step and of its bubble."""


class _Shape(NamedTuple):
    """What layouts of a group have in common."""

    tensor: int
    pipeline: int
    virtual_stages: int
    schedule: str


def layouts(
    job: Job,
    *,
    tensor: Sequence[int] = (1,),
    pipeline: Sequence[int] = (1,),
    micro_batches: Sequence[int] = (1,),
    virtual_stages: Sequence[int] = (1,),
    schedule: Sequence[str] = (),
) -> Layouts:
    """Evaluate all combinations of these numbers on the devices of a job, by formulas.

    A micro-batch keeps the size that it has in ``job``. There are as many replicas as the job's
    devices allow. Beyond a few micro-batches, as many more as there are stages take a step the same
    time longer, whatever their number; that time is evaluated and checked for each combination of
    the other numbers, and where it varies, all numbers are evaluated one by one. So thousands of
    them cost no more than a few. With several chunks per stage only multiples of the stages are
    evaluated. Left out are memory (:meth:`Layouts.job_of`), and what the formulas leave out.

    Parameters
    ----------
    job : with a pipeline, tensor or context parallelism, and all else that layouts have in common.
    schedule : names; by default that of ``job`` with one chunk per stage, and ``interleaved_1f1b``
        with several.

    Raises
    ------
    InputError : a number is not whole or below 1; the job has single devices; nothing is possible.
    """
    if job.replica is None:
        raise InputError("layouts: the job has single devices (give tensor or pipeline above 1)")
    numbers = {"tensor": tensor, "pipeline": pipeline, "micro_batches": micro_batches,
               "virtual_stages": virtual_stages}  # fmt: skip
    for name, values in numbers.items():
        for value in values:
            whole_number(name, value)
    evaluating = _Evaluating(job, sorted(set(micro_batches)))
    for size, stages, chunks in itertools.product(tensor, pipeline, virtual_stages):
        default = INTERLEAVED if chunks > 1 else job.replica.schedule
        for name in schedule or (default,):
            evaluating.add(_Shape(size, stages, chunks, name))
    return evaluating.result()


class _Evaluating:
    """Evaluates groups of layouts."""

    def __init__(self, job: Job, passes: list[int]) -> None:
        self.job, self.passes = job, passes
        self.devices = job.devices
        self.divided: dict[int, Job | InputError] = {}
        self.found: list[tuple[_Shape, int, Floats, Floats, Floats]] = []
        self.skipped: dict[str, int] = defaultdict(int)

    def add(self, shape: _Shape) -> None:
        """Evaluate the layouts of a shape, or count why they are impossible."""
        context = 1 if self.job.replica is None else self.job.replica.context
        size = shape.tensor * context * shape.pipeline
        if self.devices % size:
            return self._skip("devices do not form whole replicas", len(self.passes))
        try:
            base = self._base(shape, self.devices // size)
        except InputError as error:
            return self._skip(str(error), len(self.passes))
        known: dict[int, Value | None] = {}

        def at(passes: int) -> Value | None:
            if passes not in known:
                known[passes] = self._evaluated(base, passes)
            return known[passes]

        workers = self.devices // size
        self.found += [(shape, workers, *part) for part in self._along(shape, at)]
        return None

    def _skip(self, why: str, count: int) -> None:
        self.skipped[why] += count

    def _base(self, shape: _Shape, workers: int) -> Job:
        """Return a job of a shape with one micro-batch."""
        if shape.tensor not in self.divided:
            passes = self.job.workload.accumulation
            try:
                made = self.job.with_(tensor=shape.tensor, micro_batches=passes)
                self.divided[shape.tensor] = job_facts.with_layers(made)
            except InputError as error:
                self.divided[shape.tensor] = error
        made_or = self.divided[shape.tensor]
        if isinstance(made_or, InputError):
            raise made_or
        replica = made_or.replica
        if replica is None:
            raise InputError("tensor and pipeline are 1: the job has single devices")
        changed = msgspec.structs.replace(
            replica,
            tensor=shape.tensor,
            pipeline=shape.pipeline,
            virtual_stages=shape.virtual_stages,
            schedule=shape.schedule,
            stage_layers=(),
        )
        return msgspec.structs.replace(made_or, workers=workers, replica=changed, given=None)

    def _evaluated(self, base: Job, passes: int) -> Value | None:
        """Return the seconds of a step, and those of its bubble; None if it is impossible."""
        work = accumulated(one_pass(base.workload), passes)
        try:
            phases = coarse.phases(msgspec.structs.replace(base, workload=work))
        except InputError as error:
            self._skip(str(error), 1)
            return None
        bubble = phases.parts.get(BUBBLE)
        step_s = float(phases.iteration_s)
        return step_s, 0.0 if bubble is None else float(bubble.seconds)

    def _along(
        self, shape: _Shape, at: Callable[[int], Value | None]
    ) -> Iterator[tuple[Floats, Floats, Floats]]:
        """Yield numbers of micro-batches with steps and bubbles, in parts, (numbers,) each.

        From twice the stages on, as many micro-batches more as there are stages always take the
        same time longer.
        """
        every = shape.pipeline
        whole = [m for m in self.passes if shape.virtual_stages == 1 or m % every == 0]
        if len(whole) < len(self.passes):
            self._skip(NO_MULTIPLE, len(self.passes) - len(whole))
        least = LEAST * every
        rest = np.array([m for m in whole if m >= least], np.int64)
        offsets = np.unique((rest - least) % every)
        each = 3 if len(offsets) == 1 else 2  # one time longer is checked against the others
        anchors = (least + offsets[:, None] + every * np.arange(each)).ravel().tolist()
        if len(rest) > len(anchors):
            values = [value for m in anchors if (value := at(m)) is not None]
            if len(values) == len(anchors):
                table = np.array(values).reshape(len(offsets), each, 2)
                more = np.diff(table, axis=1)
                if np.ptp(more, axis=(0, 1)).max() <= SAME * table.max():
                    row = np.searchsorted(offsets, (rest - least) % every)
                    turns = (rest - least) // every
                    line = table[row, 0] + more[row, 0] * turns[:, None]
                    yield rest.astype(float), line[:, 0], line[:, 1]
                    rest = rest[:0]
        for m in [*(m for m in whole if m < least), *rest.tolist()]:
            value = at(m)
            if value is not None:
                yield np.array([float(m)]), np.array([value[0]]), np.array([value[1]])

    def result(self) -> Layouts:
        """Return all layouts, sorted."""
        if not self.found:
            why = next(iter(self.skipped), "no combination was given")
            raise InputError(f"layouts: none is possible: {why}")
        counts = [len(part[2]) for part in self.found]
        columns = {
            name: np.repeat([getattr(part[0], name) for part in self.found], counts)
            for name in ("tensor", "pipeline", "virtual_stages")
        }
        workers = np.repeat([part[1] for part in self.found], counts)
        passes, step_s, bubble_s = (
            np.concatenate([part[k] for part in self.found]) for k in (2, 3, 4)
        )
        names = np.repeat([part[0].schedule for part in self.found], counts)
        batch = self.job.workload.batch_size / self.job.workload.accumulation
        rate = workers * passes * batch / step_s
        order = np.argsort(-rate, kind="stable")
        return Layouts(
            job=self.job,
            **{name: values[order] for name, values in columns.items()},
            micro_batches=passes.astype(np.int64)[order],
            workers=workers[order],
            schedule=tuple(names[order].tolist()),
            step_s=step_s[order],
            bubble_fraction=(bubble_s / step_s)[order],
            samples_per_s=rate[order],
            skipped=dict(self.skipped),
        )
