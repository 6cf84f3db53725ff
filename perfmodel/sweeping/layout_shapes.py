"""All combinations of the numbers of layouts as columns, and the jobs that they stand for."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from perfmodel.architectures.registry import options_for
from perfmodel.base import files
from perfmodel.base.arrays import Ids
from perfmodel.base.errors import InputError
from perfmodel.base.same import kept
from perfmodel.catalogue.job_workload import sharing
from perfmodel.inputs.job import Job
from perfmodel.inputs.job_replica import (
    INTERLEAVED,
    OF_REPLICA,
    is_megatron,
    transfers_of_megatron,
)
from perfmodel.inputs.passes import accumulated, one_pass
from perfmodel.inputs.workload import Workload
from perfmodel.pipelines import schedule as schedule_named
from perfmodel.predicting import job_facts
from perfmodel.predicting.replica_columns import Known
from perfmodel.sweeping.layout_arguments import degrees_of, unused

NO_MULTIPLE = "several chunks per stage, and micro_batches are no multiple of the stages"

AXES = (
    *("tensor", "context", "expert", "pipeline", "virtual_stages", "micro_batch_size"),
    *("recompute", "arch", "schedule"),
)
"""What a shape is made of, in the order of shapes: that of nested loops."""

OF_SEVERAL = ("tensor", "context", "expert", "pipeline")
"""Numbers of which one is above 1 if replicas have several devices."""

OF_DIVISION = ("tensor", "context", "expert", "micro_batch_size", "recompute")
"""What the layers of a replica depend on."""

OF_JOB = ("tensor", "context", "expert", "pipeline", "virtual_stages", "arch")
"""What decides whether a job is possible, if its division and its schedule are."""


class Shapes(Sequence[Job]):
    """The possible shapes of layouts, which stand for jobs of one micro-batch.

    Attributes
    ----------
    columns : numbers and names of each shape by axis, and its ``workers``, (shapes,).
    passes : possible numbers of micro-batches of each shape, (shapes, numbers); 0 for none.
    skipped : number of impossible combinations, by the reason.
    """

    def __init__(
        self,
        job: Job,
        choices: Mapping[str, Sequence[int] | Sequence[str]],
        passes: Sequence[int],
        batches: Sequence[int],
        known: Known,
    ) -> None:
        self.job, self.known = job, known
        self._divided: dict[tuple[Any, ...], Job | InputError] = {}
        self._others: dict[tuple[str, bool], Job] = {}
        self._jobs: dict[int, Job] = {}
        sizes = [len(choices[name]) for name in AXES]
        self.choice = dict(zip(AXES, np.indices(sizes).reshape(len(sizes), -1), strict=True))
        self.columns = {name: _column(choices[name])[at] for name, at in self.choice.items()}
        several = self.columns["virtual_stages"] > 1
        default = np.where(several, INTERLEAVED, job.replica.schedule if job.replica else "")
        schedule = self.columns["schedule"]
        self.columns["schedule"] = np.where(schedule == "", default.astype(object), schedule)
        self._keep(*self._numbers(np.array(passes), np.array(batches)))

    def __len__(self) -> int:
        return len(self.passes)

    def __getitem__(self, place: Any) -> Any:
        """Return the job of a shape with one micro-batch."""
        if place not in self._jobs:
            self._jobs[place] = self._made(int(place))
        return self._jobs[place]

    def of(self, names: Sequence[str], *more: Ids) -> tuple[Ids, Ids]:
        """Return a shape of each combination of these columns, and of further numbers, (shapes,);
        and which of them each shape has."""
        codes = [self.choice[name] for name in names] + list(more)
        code = np.zeros(len(codes[0]), np.int64)
        for column in codes:
            code = code * (int(column.max(initial=0)) + 1) + column
        _, first, inverse = np.unique(code, return_index=True, return_inverse=True)
        return first, inverse.reshape(-1)

    @property
    def single(self) -> Ids:
        """Whether the replicas of each shape are single devices, (shapes,)."""
        several = [self.columns[name] > 1 for name in OF_SEVERAL]
        return np.asarray(~np.any(several, axis=0), np.int64)

    @property
    def workers(self) -> Ids:
        """Replicas of each shape, with whether they have a pipeline, as numbers, (shapes,)."""
        return np.asarray(2 * self.columns["workers"] + (self.columns["pipeline"] > 1), np.int64)

    def _numbers(self, passes: Ids, batches: Ids) -> tuple[Ids, list[str], Ids]:
        """Return the numbers of micro-batches, (shapes, numbers), reasons why some are impossible,
        and which of them applies to each, 0 for none."""
        column = self.columns
        size = column["tensor"] * column["context"] * column["pipeline"]
        workers = column["workers"] = np.maximum(self.job.devices // size, 1)
        why = ["", "devices do not form whole replicas", NO_MULTIPLE]
        why.append("global_batch_size is no multiple of replicas x micro_batch_size")
        samples = (workers * column["micro_batch_size"])[:, None]
        numbers = batches // samples if len(batches) else np.tile(passes, (len(size), 1))
        odd = (column["virtual_stages"] > 1)[:, None] & (numbers % column["pipeline"][:, None] > 0)
        reason = np.where(odd, 2, 0)
        if len(batches):
            reason = np.where(batches % samples > 0, 3, reason)
        reason[self.job.devices % size > 0] = 1
        return numbers, why, reason

    def _keep(self, numbers: Ids, why: list[str], reason: Ids) -> None:
        """Keep the shapes that are possible, and count the reasons why others are not."""
        maybe = np.flatnonzero((reason == 0).any(axis=1))
        self._choose(maybe)
        with sharing():  # workloads that differ in nothing but their division
            errors = self._errors()
        of_text: dict[str, list[int]] = {}
        for place, error in errors.items():
            of_text.setdefault(error, []).append(place)
        for error, places in of_text.items():
            rows = reason[maybe[places]]
            reason[maybe[places]] = np.where(rows == 0, len(why), rows)
            why.append(error)
        codes, first, counts = np.unique(reason, return_index=True, return_counts=True)
        self.skipped: dict[str, int] = {}
        for k in np.argsort(first):
            if codes[k]:
                text = why[codes[k]]
                self.skipped[text] = self.skipped.get(text, 0) + int(counts[k])
        passes = np.where(reason == 0, numbers, 0)[maybe]
        possible = (passes > 0).any(axis=1)
        self._choose(np.flatnonzero(possible))
        self.passes = passes[possible]

    def _choose(self, places: Ids) -> None:
        self.columns = {name: values[places] for name, values in self.columns.items()}
        self.choice = {name: values[places] for name, values in self.choice.items()}
        self._jobs = {}

    def _errors(self) -> dict[int, str]:
        """Return why shapes are impossible, by their places."""
        errors: dict[int, str] = {}
        for names, more, check in (
            (("schedule", "virtual_stages"), (), self._check_schedule),
            (OF_DIVISION, (self.single,), self._check_division),
            (OF_JOB, (), self._check_job),
        ):
            left = np.array([k for k in range(len(self.single)) if k not in errors], np.int64)
            first, inverse = self.of(names, *more)
            bad: dict[int, str] = {}
            needed = np.unique(inverse[left])
            places = np.full(len(first), -1)
            places[inverse[left][::-1]] = left[::-1]  # the first that is left of each
            for kind in needed.tolist():
                try:
                    check(int(places[kind]))
                except InputError as error:
                    bad[kind] = str(error)
            if bad:
                errors |= {k: bad[inverse[k]] for k in left.tolist() if inverse[k] in bad}
        return errors

    def _check_schedule(self, place: int) -> None:
        name, chunks = (self.columns[column][place] for column in ("schedule", "virtual_stages"))
        if not files.looks_like_path(name):
            schedule_named(name, 2, 4, chunks=int(chunks))

    def _check_division(self, place: int) -> None:
        self._division(self._key(place))

    def _check_job(self, place: int) -> None:
        job = self[place]
        if job.replica is not None:
            self.known.chunks_of(job)
            self.known.first_seats(job)

    def _key(self, place: int) -> tuple[Any, ...]:
        tensor, *sizes, recompute = (self.columns[name][place] for name in OF_DIVISION)
        several = any(self.columns[name][place] > 1 for name in OF_SEVERAL)
        return (int(tensor) if several else 0, *map(int, sizes), recompute)

    def _made(self, place: int) -> Job:
        """Return a job of a shape with one micro-batch."""
        column = self.columns
        made = self._division(self._key(place))
        like = self.of_architecture(place)
        kind: dict[str, Any] = {
            "architecture": like.architecture, "options": like.options,
            "workers": int(column["workers"][place]), "given": None,
        }  # fmt: skip
        chunks, stages = int(column["virtual_stages"][place]), int(column["pipeline"][place])
        if made.replica is None:
            if chunks > 1:
                raise InputError(f"virtual_stages: {chunks}, but a single stage")
            return msgspec.structs.replace(made, **kind)
        given, how = self.job.given or {}, made.replica.transfers
        if is_megatron(given) and given.get("transfers") is None:
            how = transfers_of_megatron(chunks)
        changed = msgspec.structs.replace(
            made.replica,
            pipeline=stages,
            virtual_stages=chunks,
            schedule=column["schedule"][place],
            stage_layers=(),
            transfers=how,
        )
        return msgspec.structs.replace(made, replica=changed, **kind)

    def _division(self, key: tuple[Any, ...]) -> Job:
        """Return the job with layers divided in this way, for one micro-batch of this size."""
        if key not in self._divided:
            try:
                self._divided[key] = _divided(self.job, *key)
            except InputError as error:
                self._divided[key] = error
        made = self._divided[key]
        if isinstance(made, InputError):
            raise made
        return made

    def of_architecture(self, place: int) -> Job:
        """Return the job with the architecture of a shape, whose options depend on there being a
        pipeline."""
        key = (self.columns["arch"][place], bool(self.columns["pipeline"][place] > 1))
        if key not in self._others:
            self._others[key] = _other(self.job, *key)
        return self._others[key]

    def kinds(self) -> Ids:
        """Return a number for what the times of a shape's actions depend on of its architecture,
        (shapes,)."""
        first, inverse = self.of(("arch",), np.asarray(self.columns["pipeline"] > 1, np.int64))
        numbers: dict[Hashable, int] = {}
        kinds = []
        for place in first.tolist():
            options = self.of_architecture(place).options
            key = options.asynchronous, options.one_collective
            kinds.append(numbers.setdefault(key, len(numbers)))
        return np.array(kinds)[inverse]


def _column(choices: Sequence[int] | Sequence[str]) -> NDArray[Any]:
    """Return numbers as integers, and names as objects."""
    kind = object if any(isinstance(choice, str) for choice in choices) else np.int64
    return np.array(list(choices), kind)


def _other(job: Job, arch: str, pipelined: bool) -> Job:
    """Return the job with another architecture, with or without a pipeline, and the options of as
    many devices."""
    stages = 1 if job.replica is None else job.replica.pipeline
    changes: dict[str, Any] = {"arch": arch} if arch else {}
    if pipelined != (stages > 1):
        changes |= unused(0, 2 if pipelined else 1)
        size = job.devices // job.workers // stages
        stages = 2 if pipelined else 1
        workers = max(job.devices // (size * stages), 1)
        changes |= {"pipeline": stages, "devices": None, "workers": workers}
    made = job.with_(**changes) if changes else job
    return msgspec.structs.replace(made, options=options_for(made, job.devices))


def _divided(job: Job, tensor: int, context: int, expert: int, samples: int, recompute: str) -> Job:
    """Return the job with layers divided by so many devices (``tensor`` 0: single devices), for one
    micro-batch of ``samples`` samples."""
    passes = job.workload.accumulation
    changes: dict[str, Any] = {"tensor": tensor or None, "micro_batches": passes}
    stages = job.replica.pipeline if tensor and job.replica else 1
    changes |= unused(tensor, stages) | degrees_of(job, context, expert)
    if expert > 1 and tensor > 1:  # experts need it
        changes["sequence_parallel"] = True
    if tensor == 1 and context == expert == 1 and "pipeline" in changes:
        changes["pipeline"] = stages = 2  # any number above 1 makes a replica
    if tensor:
        workers = job.devices // (tensor * context * stages)
        changes |= {"devices": None, "workers": max(workers, 1)}
    if not tensor:
        changes |= dict.fromkeys(OF_REPLICA) | {"devices": None, "workers": job.devices}
    if samples * passes != job.workload.batch_size:
        changes["batch_size"] = samples * passes
    if recompute != job.workload.recompute:
        changes["recompute"] = recompute
    made = job_facts.with_layers(job.with_(**changes))
    work = one_pass(made.workload)
    return msgspec.structs.replace(made, workload=work, cluster=job.cluster)


def with_passes(job: Job, passes: int) -> Job:
    """Return a job of one micro-batch with so many."""
    return msgspec.structs.replace(job, workload=_accumulated(job.workload, passes))


@kept(256)
def _accumulated(of_pass: Workload, passes: int) -> Workload:
    """Return the workload of an update; layouts that differ in architecture share it."""
    return accumulated(of_pass, passes)


def flat(shapes: Shapes) -> tuple[Ids, Ids]:
    """Return the shape and the number of micro-batches of each layout, (layouts,)."""
    shape, number = np.nonzero(shapes.passes)
    return np.asarray(shape, np.int64), np.asarray(shapes.passes[shape, number], np.int64)
