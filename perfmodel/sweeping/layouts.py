"""Many layouts of one model on one cluster: :func:`layouts`, by formulas, as arrays."""

from __future__ import annotations

import functools
import itertools
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, TypedDict, Unpack

import msgspec
import numpy as np
from numpy.typing import NDArray

from perfmodel.base.arrays import Floats, Ids
from perfmodel.base.errors import InputError, whole_number
from perfmodel.base.same import Same
from perfmodel.inputs.job import Job
from perfmodel.inputs.job_replica import (
    INTERLEAVED,
    OF_REPLICA,
    is_megatron,
    transfers_of_megatron,
)
from perfmodel.inputs.passes import accumulated, one_pass
from perfmodel.inputs.workload import Workload
from perfmodel.phases.phases import Phases
from perfmodel.phases.quantities import Quantities
from perfmodel.predicting import coarse, job_facts
from perfmodel.predicting.replica_arrays import Steps, along
from perfmodel.predicting.replica_bounds import least_steps
from perfmodel.predicting.replica_columns import Known, as_arrays
from perfmodel.sweeping.labels import Row
from perfmodel.sweeping.layout_arguments import degrees_of, unused
from perfmodel.sweeping.tables import Tabular

BUBBLE = "pipeline bubble"
"""Phase of a step in which stages wait for each other."""

NO_MULTIPLE = "several chunks per stage, and micro_batches are no multiple of the stages"

NUMBERS = (
    *("tensor", "context", "expert", "pipeline", "virtual_stages"),
    *("micro_batches", "micro_batch_size", "workers"),
)
NAMES = ("schedule", "recompute", "arch")


class Layouts(Tabular, frozen=True, eq=False, kw_only=True):
    """Steps of layouts, the fastest per sample first.

    Attributes
    ----------
    job : the job that the layouts are of.
    tensor, context, expert, pipeline, virtual_stages, micro_batches, micro_batch_size, workers : of
        each layout, (layouts,).
    schedule, recompute, arch : names, (layouts,).
    step_s : seconds of a step, (layouts,).
    bubble_fraction : of a step, in which a device waits for other stages, (layouts,).
    samples_per_s : of all replicas, (layouts,).
    skipped : number of combinations that are impossible, by the reason.
    shapes, shape : jobs of one micro-batch, (shapes,), and which of them each layout has,
        (layouts,).
    """

    job: Job
    tensor: Ids
    context: Ids
    expert: Ids
    pipeline: Ids
    virtual_stages: Ids
    micro_batches: Ids
    micro_batch_size: Ids
    workers: Ids
    schedule: tuple[str, ...]
    recompute: tuple[str, ...]
    arch: tuple[str, ...]
    step_s: Floats
    bubble_fraction: Floats
    samples_per_s: Floats
    skipped: dict[str, int]
    shapes: tuple[Job, ...]
    shape: Ids

    def __len__(self) -> int:
        return len(self.step_s)

    @property
    def global_batch_size(self) -> Ids:
        """Samples of a step of all replicas, (layouts,)."""
        return self.workers * self.micro_batches * self.micro_batch_size

    def job_of(self, number: int) -> Job:
        """Return the job of a layout, to simulate it or to look at its memory."""
        return self.job.with_(**self.arguments_of(number))

    def made(self, number: int) -> Job:
        """Return the same job in less time; without the arguments that make it."""
        one = self.shapes[int(self.shape[number])]
        work = _accumulated(Same(one.workload), int(self.micro_batches[number]))
        return msgspec.structs.replace(one, workload=work)

    def arguments_of(self, number: int) -> dict[str, Any]:
        """Return what :func:`perfmodel.make_job` is given for a layout, besides what ``job`` is."""
        given: dict[str, Any] = {name: int(getattr(self, name)[number]) for name in NUMBERS}
        given["batch_size"] = given.pop("micro_batch_size") * given["micro_batches"]
        given |= {"schedule": self.schedule[number], "devices": None}
        context, expert = given.pop("context"), given.pop("expert")
        given |= degrees_of(self.job, context, expert)
        if expert > 1 and given["tensor"] > 1:
            given["sequence_parallel"] = True
        given |= unused(given["tensor"], given["pipeline"])
        for name, own in (("recompute", self.job.workload.recompute), ("arch", "")):
            if (value := getattr(self, name)[number]) != own:
                given[name] = value
        return given

    def shape_of(self, number: int) -> dict[str, Any]:
        """Return how the devices of a replica divide the model and its batch."""
        shape: dict[str, Any] = {
            name: int(getattr(self, name)[number]) for name in NUMBERS if name != "workers"
        }
        shape["schedule"] = self.schedule[number] if shape["pipeline"] > 1 else None
        return shape | {"recompute": self.recompute[number]}

    def rows(self) -> list[Row]:
        """The layouts, in SI units."""
        return [
            {
                **{name: int(getattr(self, name)[k]) for name in NUMBERS},
                **{name: getattr(self, name)[k] for name in NAMES},
                "step_s": float(self.step_s[k]),
                "bubble_fraction": float(self.bubble_fraction[k]),
                "throughput_samples_per_s": float(self.samples_per_s[k]),
            }
            for k in range(len(self))
        ]

    def to_dict(self) -> Row:
        """The layouts and what was left out as JSON-like values."""
        return {"layouts": self.rows(), "skipped": self.skipped}


@functools.lru_cache(maxsize=256)
def _accumulated(of_pass: Same[Workload], passes: int) -> Workload:
    """Return the workload of an update; layouts that differ in architecture share it."""
    return accumulated(of_pass.value, passes)


class _Shape(NamedTuple):
    """What layouts have in common that differ in the number of micro-batches only."""

    tensor: int
    context: int
    expert: int
    pipeline: int
    virtual_stages: int
    schedule: str
    micro_batch_size: int
    recompute: str
    arch: str


_Division = tuple[int, int, int, int, str]
"""Tensor (0: single devices), context and expert parallelism, size of a micro-batch, and what is
recomputed."""


def layouts(
    job: Job,
    *,
    tensor: Sequence[int] = (1,),
    context: Sequence[int] = (),
    expert: Sequence[int] = (),
    pipeline: Sequence[int] = (1,),
    micro_batches: Sequence[int] = (1,),
    virtual_stages: Sequence[int] = (1,),
    schedule: Sequence[str] = (),
    micro_batch_size: Sequence[int] = (),
    recompute: Sequence[str] = (),
    arch: Sequence[str] = (),
    global_batch_size: Sequence[int] = (),
) -> Layouts:
    """Evaluate all combinations of these numbers on the devices of a job, by formulas.

    There are as many replicas as the job's devices allow. Beyond a few micro-batches, as many more
    as there are stages take a step the same time longer, whatever their number; that time is
    evaluated and checked for each combination of the other numbers, and where it varies, all
    numbers are evaluated one by one. So thousands of them cost no more than a few. Combinations
    with the same stages and schedule are evaluated at once, as arrays. With several chunks per
    stage only multiples of the stages are evaluated. Left out are memory (:meth:`Layouts.job_of`),
    and what the formulas leave out. There are so many parameters because each is varied on its own.

    Parameters
    ----------
    job : with a pipeline, tensor or context parallelism, and all else that layouts have in common.
    context, expert : by default those of ``job``.
    schedule : names; by default that of ``job`` with one chunk per stage, and ``interleaved_1f1b``
        with several.
    micro_batch_size, recompute, arch : by default those of ``job``.
    global_batch_size : samples of a step of all replicas, instead of ``micro_batches``, which
        follow from them; others than whole micro-batches of all replicas are left out.

    Raises
    ------
    InputError : a number is not whole or below 1; the job has single devices; nothing is possible.
    """
    return combinations(
        job, tensor=tensor, context=context, expert=expert, pipeline=pipeline,
        micro_batches=micro_batches, virtual_stages=virtual_stages, schedule=schedule,
        micro_batch_size=micro_batch_size, recompute=recompute, arch=arch,
        global_batch_size=global_batch_size,
    ).evaluated()  # fmt: skip


class Axes(TypedDict, total=False):
    """The varied arguments of :func:`layouts`."""

    tensor: Sequence[int]
    context: Sequence[int]
    expert: Sequence[int]
    pipeline: Sequence[int]
    micro_batches: Sequence[int]
    virtual_stages: Sequence[int]
    schedule: Sequence[str]
    micro_batch_size: Sequence[int]
    recompute: Sequence[str]
    arch: Sequence[str]
    global_batch_size: Sequence[int]


def combinations(job: Job, **axes: Unpack[Axes]) -> Combinations:
    """Return all combinations of these numbers, to be evaluated; see :func:`layouts`."""
    if job.replica is None:
        raise InputError("layouts: the job has single devices (give tensor or pipeline above 1)")
    numbers = {
        "tensor": axes.get("tensor", ()), "context": axes.get("context", ()),
        "expert": axes.get("expert", ()), "pipeline": axes.get("pipeline", ()),
        "micro_batches": axes.get("micro_batches", ()),
        "virtual_stages": axes.get("virtual_stages", ()),
        "micro_batch_size": axes.get("micro_batch_size", ()),
        "global_batch_size": axes.get("global_batch_size", ()),
    }  # fmt: skip
    for name, values in numbers.items():
        for value in values:
            whole_number(name, value)
    own, now = job.workload.batch_size // job.workload.accumulation, job.replica.experts
    batches = sorted(set(axes.get("global_batch_size", ())))
    found = Combinations(job, sorted(set(axes.get("micro_batches", (1,)))), batches)
    for size, parts, degree, stages, chunks, each, again, name in itertools.product(
        axes.get("tensor", (1,)), axes.get("context") or (job.replica.context,),
        axes.get("expert") or (now.degree if now else 1,), axes.get("pipeline", (1,)),
        axes.get("virtual_stages", (1,)), axes.get("micro_batch_size") or (own,),
        axes.get("recompute") or (job.workload.recompute,), axes.get("arch") or ("",),
    ):  # fmt: skip
        default = INTERLEAVED if chunks > 1 else job.replica.schedule
        for order in axes.get("schedule") or (default,):
            found.add(_Shape(size, parts, degree, stages, chunks, order, each, again, name))
    return found


def _formulas(job: Job, q: Quantities) -> Phases:
    return coarse.phases(job, among=q)


class Combinations:
    """Combinations of numbers, of which all or some are evaluated.

    Those with the same shape, a place in ``made``, differ in the number of micro-batches.
    """

    def __init__(self, job: Job, passes: list[int], batches: list[int]) -> None:
        self.job, self.passes, self.batches = job, passes, batches
        self.devices = job.devices
        self.divided: dict[_Division, Job | InputError] = {}
        self.others: dict[tuple[str, bool], Job] = {}
        self.made: list[tuple[_Shape, Job, Ids]] = []
        self.skipped: dict[str, int] = defaultdict(int)
        self.known = Known()
        self.steps: dict[int, Steps | InputError] = {}

    def add(self, shape: _Shape) -> None:
        """Add the layouts of a shape, or count why they are impossible."""
        size = shape.tensor * shape.context * shape.pipeline
        count = len(self.batches or self.passes)
        if self.devices % size:
            return self._skip("devices do not form whole replicas", count)
        workers = self.devices // size
        passes = self._passes(shape, workers)
        if not len(passes):
            return None
        try:
            base = self._base(shape, workers)
        except InputError as error:
            return self._skip(str(error), len(passes))
        self.made.append((shape, base, passes))
        return None

    def _skip(self, why: str, count: int) -> None:
        self.skipped[why] += count

    def _passes(self, shape: _Shape, workers: int) -> Ids:
        """Return the possible numbers of micro-batches of a shape, increasing."""
        numbers = self.passes
        if self.batches:
            each = workers * shape.micro_batch_size
            numbers = [batch // each for batch in self.batches if batch % each == 0]
            if len(numbers) < len(self.batches):
                why = "global_batch_size is no multiple of replicas x micro_batch_size"
                self._skip(why, len(self.batches) - len(numbers))
        whole = [m for m in numbers if shape.virtual_stages == 1 or m % shape.pipeline == 0]
        if len(whole) < len(numbers):
            self._skip(NO_MULTIPLE, len(numbers) - len(whole))
        return np.array(whole, np.int64)

    def _base(self, shape: _Shape, workers: int) -> Job:
        """Return a job of a shape with one micro-batch."""
        single = shape.tensor == shape.context == shape.expert == shape.pipeline == 1
        sizes = (0 if single else shape.tensor, shape.context, shape.expert)
        made = self._divided((*sizes, shape.micro_batch_size, shape.recompute))
        other = self._other(shape.arch, pipelined=shape.pipeline > 1)
        kind: dict[str, Any] = {
            "architecture": other.architecture, "options": other.options, "workers": workers,
            "given": None,
        }  # fmt: skip
        if made.replica is None:
            if shape.virtual_stages > 1:
                raise InputError(f"virtual_stages: {shape.virtual_stages}, but a single stage")
            return msgspec.structs.replace(made, **kind)
        changed = msgspec.structs.replace(
            made.replica,
            tensor=shape.tensor,
            pipeline=shape.pipeline,
            virtual_stages=shape.virtual_stages,
            schedule=shape.schedule,
            stage_layers=(),
        )
        given = self.job.given or {}
        if is_megatron(given) and given.get("transfers") is None:
            how = transfers_of_megatron(shape.virtual_stages)
            changed = msgspec.structs.replace(changed, transfers=how)
        return msgspec.structs.replace(made, replica=changed, **kind)

    def _divided(self, one: _Division) -> Job:
        """Return the job with layers divided in this way, for one micro-batch of this size."""
        if one not in self.divided:
            try:
                self.divided[one] = self._made(*one)
            except InputError as error:
                self.divided[one] = error
        made = self.divided[one]
        if isinstance(made, InputError):
            raise made
        return made

    def _other(self, arch: str, *, pipelined: bool) -> Job:
        """Return the job with an architecture, whose options depend on there being a pipeline."""
        key = (arch, pipelined)
        if key not in self.others:
            stages = 1 if self.job.replica is None else self.job.replica.pipeline
            changes: dict[str, Any] = {"arch": arch} if arch else {}
            if pipelined != (stages > 1):
                changes |= unused(0, 2 if pipelined else 1)
                size = self.job.devices // self.job.workers // stages
                stages = 2 if pipelined else 1
                workers = max(self.job.devices // (size * stages), 1)
                changes |= {"pipeline": stages, "devices": None, "workers": workers}
            self.others[key] = self.job.with_(**changes) if changes else self.job
        return self.others[key]

    def _made(self, tensor: int, context: int, expert: int, each: int, recompute: str) -> Job:
        """Make the job with layers divided in this way."""
        passes = self.job.workload.accumulation
        changes: dict[str, Any] = {"tensor": tensor or None, "micro_batches": passes}
        stages = self.job.replica.pipeline if tensor and self.job.replica else 1
        changes |= unused(tensor, stages) | degrees_of(self.job, context, expert)
        if expert > 1 and tensor > 1:  # experts need it
            changes["sequence_parallel"] = True
        if tensor == 1 and context == expert == 1 and "pipeline" in changes:
            changes["pipeline"] = stages = 2  # any number above 1 makes a replica
        if tensor:
            workers = self.job.devices // (tensor * context * stages)
            changes |= {"devices": None, "workers": max(workers, 1)}
        if not tensor:
            changes |= dict.fromkeys(OF_REPLICA) | {"devices": None, "workers": self.job.devices}
        if each * passes != self.job.workload.batch_size:
            changes["batch_size"] = each * passes
        if recompute != self.job.workload.recompute:
            changes["recompute"] = recompute
        made = job_facts.with_layers(self.job.with_(**changes))
        work = one_pass(made.workload)
        return msgspec.structs.replace(made, workload=work, cluster=self.job.cluster)

    def bounded(self) -> Layouts:
        """Return all that are possible with the least times of their steps in place of their times,
        and no bubbles; ``shape`` is their place in ``made``.

        Raises
        ------
        InputError : none is possible.
        """
        jobs, passes = [job for _, job, _ in self.made], [numbers for *_, numbers in self.made]
        least = least_steps(jobs, passes, self.known)
        found: list[tuple[_Shape, Job, Ids, Steps]] = []
        for made, one in zip(self.made, least, strict=True):
            if isinstance(one, InputError):
                self._skip(str(one), len(made[2]))
            else:
                found.append((*made, Steps(one, np.zeros(len(one)))))
        self.made = [(shape, job, numbers) for shape, job, numbers, _ in found]
        return self._sorted(found)

    def evaluated(self, wanted: Iterable[int] | None = None) -> Layouts:
        """Evaluate shapes, by their places in ``made``, or all, and return them sorted.

        Raises
        ------
        InputError : none of them is possible.
        """
        places = range(len(self.made)) if wanted is None else sorted(set(wanted))
        new = [k for k in places if k not in self.steps]
        arrays = [k for k in new if as_arrays(self.made[k][1])]
        jobs, passes = [self.made[k][1] for k in arrays], [self.made[k][2] for k in arrays]
        several = along(jobs, passes, _formulas, self.known)
        self.steps |= dict(zip(arrays, several, strict=True))
        found: list[tuple[_Shape, Job, Ids, Steps]] = []
        for k in places:
            shape, job, numbers = self.made[k]
            if k not in self.steps:
                self.steps[k] = self._one_by_one(job, numbers)
            steps = self.steps[k]
            if not isinstance(steps, InputError):
                found.append((shape, job, numbers, steps))
            elif k in new:
                self._skip(str(steps), len(numbers))
        return self._sorted(found)

    def _one_by_one(self, job: Job, passes: Ids) -> Steps | InputError:
        """Return the steps of layouts that differ in the number of micro-batches."""
        values = []
        for count in passes.tolist():
            work = accumulated(job.workload, count)
            try:
                phases = coarse.phases(msgspec.structs.replace(job, workload=work))
            except InputError as error:
                return error
            bubble = phases.parts.get(BUBBLE)
            step_s = float(phases.iteration_s)
            values.append((step_s, 0.0 if bubble is None else float(bubble.seconds)))
        return Steps(*np.array(values).T)

    def _sorted(self, found: Sequence[tuple[_Shape, Job, Ids, Steps]]) -> Layouts:
        """Return layouts, the fastest first."""
        if not found:
            why = next(iter(self.skipped), "no combination was given")
            raise InputError(f"layouts: none is possible: {why}")
        counts = [len(passes) for *_, passes, _ in found]

        def repeated(values: Iterable[Any]) -> NDArray[Any]:
            return np.repeat(np.array(list(values)), counts)

        numbers = {name: repeated(getattr(shape, name) for shape, *_ in found)
                   for name in NUMBERS if name in _Shape._fields}  # fmt: skip
        names = {name: repeated(getattr(shape, name) for shape, *_ in found) for name in NAMES}
        numbers["workers"] = repeated(job.workers for _, job, *_ in found)
        numbers["micro_batches"] = np.concatenate([passes for *_, passes, _ in found])
        step_s = np.concatenate([steps.step_s for *_, steps in found])
        bubble_s = np.concatenate([steps.bubble_s for *_, steps in found])
        batch = numbers["workers"] * numbers["micro_batches"] * numbers["micro_batch_size"]
        known = step_s > 0.0  # else nothing is known of the least time
        rate = np.divide(batch, step_s, out=np.full(len(step_s), np.inf), where=known)
        order = np.argsort(-rate, kind="stable")
        columns: dict[str, Any] = {name: values[order] for name, values in numbers.items()}
        columns |= {name: tuple(values[order].tolist()) for name, values in names.items()}
        return Layouts(
            job=self.job,
            **columns,
            step_s=step_s[order],
            bubble_fraction=np.divide(bubble_s, step_s, out=bubble_s.copy(), where=known)[order],
            samples_per_s=rate[order],
            skipped=dict(self.skipped),
            shapes=tuple(job for _, job, *_ in found),
            shape=np.repeat(np.arange(len(found)), counts)[order],
        )
