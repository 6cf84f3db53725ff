"""Record what a simulation's ops mean for training: reads, gradients, updates and averages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, TypedDict, Unpack

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.arrays import NONE
from perfmodel.results.schedule import CENTRE, COLUMNS, NO_MODEL, WHOLE, Event, Header, Schedule


class HeaderOfRun(TypedDict):
    """Fields of a header that the run decides, not the recording."""

    batch_size: int
    architecture: str
    options: dict[str, object]
    samples_per_s: float
    seed: int


Handler = Callable[[int, int], None]
"""Called when a logged op becomes ready or ends, with its index in the logged block, flattened, and
the number of the alternative it has drawn."""

READ, GRADIENT, APPLY, MIX, DROP = (int(event) for event in Event)

MOST_KEPT = 100_000
"""Rows kept one by one before they are packed into arrays."""

Meaning = Mapping[str, Handler]
"""The handlers of logged ops, by the ops' labels."""


Mix = tuple[int, int, float]
"""Another model, its version, and the weight by which a model moves towards it."""


class Row(NamedTuple):
    """A value of each column of a schedule, in its order."""

    time_s: float
    event: int
    worker: int
    step: int
    model: int
    other: int
    slice: int
    weight: float
    group: int
    version: int
    other_version: int


class Recorder:
    """Collects the rows of a schedule; ``now`` (s) is the time of the next event.

    ``slices`` are the bytes of each slice. With ``central``, workers compute gradients on what they
    have read from the centre, otherwise on their own models.
    """

    def __init__(self, workers: int, slices: Sequence[float], *, central: bool) -> None:
        self.workers, self.slices, self.central = workers, tuple(slices), central
        self.now = 0.0
        self.begins_s = [0.0] * workers
        self.applied = 0
        """Gradients applied so far, counted once for each slice."""
        self._steps = [0] * workers
        self._versions = [[0] * len(self.slices) for _ in range(workers + 1)]  # CENTRE comes last
        self._read = [[0] * len(self.slices) for _ in range(workers)]
        self._next = [[0] * len(self.slices) for _ in range(workers)]
        self._done: list[list[NDArray[np.generic]]] = []
        self._rows: list[Row] = []
        self._groups = 0
        self._run = _EqualRows(len(self.slices))

    def version(self, model: int, slice: int = WHOLE) -> int:
        """Return how often a slice of a model has changed so far; NONE if slices differ."""
        return _same(self._versions[model]) if slice == WHOLE else self._versions[model][slice]

    def begin(self, worker: int, _drawn: int) -> None:
        """Begin a worker's step; the start of its first step is recorded."""
        if self._steps[worker] == 0:
            self.begins_s[worker] = self.now

    def read(self, worker: int, slice: int = WHOLE) -> None:
        """Let a worker read a slice of the centre for its next gradient."""
        for k in self._parts(slice):
            self._read[worker][k] = self._versions[CENTRE][k]
        version = self.version(CENTRE, slice)
        step = self._steps[worker]
        self._add(READ, worker, step, worker, version, other=CENTRE, slice=slice)
        self._groups += 1

    def gradient(self, worker: int, _drawn: int = NONE) -> None:
        """Let a worker compute a gradient on its current parameters."""
        step, model = self._steps[worker], CENTRE if self.central else worker
        self._steps[worker] = step + 1
        version = _same(self._read[worker] if self.central else self._versions[worker])
        self._add(GRADIENT, worker, step, model, version)
        self._groups += 1

    def drop(self, worker: int) -> None:
        """Discard a worker's oldest gradient that has not been applied."""
        step = self._taken(worker, WHOLE)
        self._add(DROP, worker, step, CENTRE, self.version(CENTRE))
        self._groups += 1

    def apply(
        self,
        model: int,
        workers: Iterable[int],
        weight: float = 1.0,
        slice: int = WHOLE,
        mixes: Iterable[Mix] = (),
    ) -> None:
        """Let a model take in other models, and then the oldest gradients of ``workers`` not yet
        applied to this slice, each with its weight. Together they make one version."""
        for mix in mixes:
            self.part(model, mix, model, slice)
        made = self._made(model, slice)
        for worker in workers:
            step = self._taken(worker, slice)
            self._add(APPLY, worker, step, model, made, slice=slice, weight=weight)
            self.applied += len(self.slices) if slice == WHOLE else 1
        self.together((model,), slice)

    def part(self, model: int, mix: Mix, worker: int, slice: int = WHOLE) -> None:
        """Move a model towards another, in one version with what follows until :meth:`together`.

        ``worker`` is the worker that causes it. Moving a model towards its current self has no
        effect.
        """
        other, version, weight = mix
        if other != model or version != self.version(model, slice):
            made = self._made(model, slice)
            columns = (worker, NONE, model, other, slice, weight, self._groups, made, version)
            self._rows.append(Row(self.now, MIX, *columns))

    def mix(self, model: int, mixes: Iterable[Mix], worker: int, slice: int = WHOLE) -> None:
        """Move a model towards others, in one version that ``worker`` causes."""
        for mix in mixes:
            self.part(model, mix, worker, slice)
        self.together((model,), slice)

    def own_step(self, worker: int, _drawn: int) -> None:
        """Apply a worker's gradient to its own model."""
        self.apply(worker, (worker,))

    def together(self, models: Iterable[int], slice: int = WHOLE) -> None:
        """Apply the parts since the last call, as one new version of each of these models."""
        self._groups += 1
        for model in models:
            for k in self._parts(slice):
                self._versions[model][k] += 1

    def replicas(self) -> Meaning:
        """Record workers that each apply the same mean gradient to their own copy of one model.

        The logged ops are "update" (workers, slices). When the first worker has updated a slice,
        that is a new version of it, which each worker reads when it has updated its own copy.
        """
        width = len(self.slices)
        done = [[0] * width for _ in range(self.workers)]

        def update(index: int, _drawn: int) -> None:
            worker, k = divmod(index, width)
            if done[worker][k] == self.version(CENTRE, k):
                self.apply(CENTRE, range(self.workers), 1.0 / self.workers, k)
            done[worker][k] += 1
            self.read(worker, k)

        return {"update": update}

    def close(self) -> None:
        """End a group of rows: all rows since the last call happen at once.

        If the same happened to one slice after the other, with nothing in between, these rows
        become rows of the whole model.
        """
        if self._run.extend(self._rows):
            self._groups = self._rows[-1].group + 1
        if len(self._rows) > MOST_KEPT:
            self._pack(self._run.start)

    def schedule(self, **known: Unpack[HeaderOfRun]) -> Schedule:
        """Return the schedule so far; ``known`` are the other fields of its header."""
        self._pack(len(self._rows))
        header = Header(
            workers=self.workers, slices=self.slices, begins_s=tuple(self.begins_s), **known
        )
        columns = zip(COLUMNS, zip(*self._done, strict=True), strict=True)
        return Schedule(header, **{name: np.concatenate(parts) for name, parts in columns})

    def _pack(self, count: int) -> None:
        """Pack the first ``count`` rows into arrays, which take less memory."""
        columns = list(zip(*self._rows[:count], strict=True)) or [()] * len(COLUMNS)
        kinds = zip(columns, COLUMNS.values(), strict=True)
        self._done.append([np.array(values, kind) for values, kind in kinds])
        del self._rows[:count]
        self._run.shift(count)

    def _made(self, model: int, slice: int) -> int:
        """Return the version of a model that the current group makes."""
        version = self.version(model, slice)
        return NONE if version == NONE else version + 1

    def _taken(self, worker: int, slice: int) -> int:
        """Take the step of a worker's oldest gradient not yet taken for a slice, and return it."""
        taken = self._next[worker]
        step = taken[max(slice, 0)]
        for k in self._parts(slice):
            taken[k] += 1
        return step

    def _parts(self, slice: int) -> Iterable[int]:
        return range(len(self.slices)) if slice == WHOLE else (slice,)

    def _add(
        self,
        event: int,
        worker: int,
        step: int,
        model: int,
        version: int,
        *,
        other: int = NO_MODEL,
        slice: int = WHOLE,
        weight: float = 0.0,
    ) -> None:
        columns = (worker, step, model, other, slice, weight, self._groups, version, NONE)
        self._rows.append(Row(self.now, event, *columns))


class _EqualRows:
    """Rows that do the same to one slice after the other.

    ``start`` is the index of the first row.
    """

    def __init__(self, width: int) -> None:
        self._width, self.start, self._end = width, 0, 0
        self._slices: set[int] = set()
        self._what: list[Row] = []

    def extend(self, rows: list[Row]) -> bool:
        """Return whether the new rows complete a run; if so, replace it by rows of WHOLE."""
        if len(rows) == self._end:
            return False
        new = rows[self._end :]
        first = new[0].group
        what = [row._replace(time_s=0.0, slice=0, group=row.group - first) for row in new]
        slice = new[0].slice if len({row.slice for row in new}) == 1 else WHOLE
        if what != self._what or slice in self._slices:
            self.start, self._what = self._end, what
            self._slices.clear()
        self._end = len(rows)
        self._slices.add(slice)
        if slice == WHOLE or len(self._slices) < self._width:
            return False
        base = rows[self.start].group - first
        rows[self.start :] = [row._replace(slice=WHOLE, group=row.group + base) for row in new]
        self._end = self.start = len(rows)
        self._what = []
        self._slices.clear()
        return True

    def shift(self, count: int) -> None:
        """Adjust to the removal of the first ``count`` rows, all before the run."""
        self.start, self._end = max(self.start - count, 0), self._end - count


def _same(versions: Sequence[int]) -> int:
    """Return the version of all slices, or NONE if they differ."""
    return versions[0] if versions.count(versions[0]) == len(versions) else NONE
