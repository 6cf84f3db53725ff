"""Short schedules, written row by row as an architecture would record them."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import numpy as np

from perfmodel.results.schedule import (
    CENTRE,
    COLUMNS,
    NO_MODEL,
    WHOLE,
    Event,
    Header,
    Schedule,
)

Gradient = tuple[int, int]
"""A worker and its step."""


class Writer:
    """Writes rows and counts versions and steps."""

    def __init__(self, workers: int, slices: Sequence[float] = (1.0,), batch_size: int = 8) -> None:
        self.workers, self.slices, self.batch_size = workers, tuple(slices), batch_size
        self.rows: list[tuple[float, ...]] = []
        self.versions = {(m, s): 0 for m in range(-1, workers) for s in range(len(slices))}
        self.steps = [0] * workers
        self.group = 0
        self.changed: set[tuple[int, int]] = set()
        self.time_s = 0.0
        self.has_reads = False

    def end(self) -> None:
        """End a group: its rows take effect together."""
        self.group += 1
        self.changed.clear()

    def read(self, worker: int, part: int = WHOLE) -> None:
        """A group by itself."""
        self.has_reads = True
        version = self.versions[CENTRE, max(part, 0)]
        self._row(Event.READ, worker, self.steps[worker], worker, CENTRE, part, version=version)
        self.end()

    def gradient(self, worker: int) -> Gradient:
        """A group by itself."""
        step = self.steps[worker]
        model = CENTRE if self.has_reads else worker  # the source of its parameters
        self._row(Event.GRADIENT, worker, step, model, version=self.versions[model, 0])
        self.steps[worker] += 1
        self.end()
        return worker, step

    def drop(self, gradient: Gradient) -> None:
        """A group by itself."""
        self._row(Event.DROP, *gradient, CENTRE)
        self.end()

    def apply(
        self,
        gradients: Sequence[Gradient],
        model: int = CENTRE,
        part: int = WHOLE,
        weight: float = 1.0,
    ) -> None:
        """Add an optimizer step to the current group."""
        version = self._version(model, part)
        for worker, step in gradients:
            self._row(Event.APPLY, worker, step, model, NO_MODEL, part, weight, version)

    def mix(self, model: int, other: int, weight: float, age: int = 0) -> None:
        """Add a mix with a model as it was ``age`` versions ago to the current group."""
        seen = self.versions[other, 0] - ((other, 0) in self.changed) - age
        version = self._version(model, WHOLE)
        self._row(Event.MIX, max(model, 0), -1, model, other, WHOLE, weight, version, seen)

    def schedule(self) -> Schedule:
        n = self.workers
        header = Header(
            workers=n,
            slices=self.slices,
            batch_size=self.batch_size,
            architecture="test",
            options={},
            begins_s=(0.0,) * n,
            samples_per_s=1.0,
            seed=0,
        )
        values = zip(*self.rows, strict=True)
        kinds = zip(COLUMNS.items(), values, strict=True)
        made = Schedule(header, **{name: np.array(v, np.dtype(kind)) for (name, kind), v in kinds})
        made.check()
        return made

    def _row(
        self,
        event: Event,
        worker: int,
        step: int,
        model: int,
        other: int = NO_MODEL,
        part: int = WHOLE,
        weight: float = 0.0,
        version: int = 0,
        other_version: int = -1,
    ) -> None:
        row = (event, worker, step, model, other, part, weight, self.group, version, other_version)
        self.rows.append((self.time_s, *row))

    def _version(self, model: int, part: int) -> int:
        """The version that a row of the current group makes; all rows of the group share it."""
        for k in range(len(self.slices)) if part == WHOLE else (part,):
            if (model, k) not in self.changed:
                self.changed.add((model, k))
                self.versions[model, k] += 1
        return self.versions[model, max(part, 0)]


def plain(updates: int, batch_size: int = 8) -> Schedule:
    """One process: gradient, step, gradient, step."""
    w = Writer(1, batch_size=batch_size)
    for k in range(updates):
        w.time_s = float(k + 1)
        w.apply([w.gradient(0)], model=0)
        w.end()
    return w.schedule()


def bsp(
    workers: int, updates: int, slices: Sequence[float] = (1.0,), batch_size: int = 8
) -> Schedule:
    """A parameter server that averages the gradients of all workers, slice by slice."""
    w = Writer(workers, slices, batch_size)
    for k in range(updates):
        w.time_s = float(k + 1)
        gradients = []
        for worker in range(workers):
            for part in range(len(slices)):
                w.read(worker, part)
            gradients.append(w.gradient(worker))
        for part in range(len(slices)):
            w.apply(gradients, part=part, weight=1.0 / workers)
            w.end()
    return w.schedule()


def all_reduce(workers: int, updates: int, batch_size: int = 8) -> Schedule:
    """Replicas that each apply the mean of all gradients to their own model."""
    w = Writer(workers, batch_size=batch_size)
    for k in range(updates):
        w.time_s = float(k + 1)
        gradients = [w.gradient(worker) for worker in range(workers)]
        for model in range(workers):
            w.apply(gradients, model=model, weight=1.0 / workers)
        w.end()
    return w.schedule()


def asp(
    workers: int,
    updates: int,
    slices: Sequence[float] = (1.0,),
    batch_size: int = 8,
    seed: int = 5,
) -> Schedule:
    """A server that applies each gradient on arrival, from workers with random step times."""
    w = Writer(workers, slices, batch_size)
    rng = np.random.default_rng(seed)
    queue: list[tuple[float, int]] = []
    pending: dict[int, Gradient] = {}

    def begin(worker: int) -> None:
        for part in range(len(slices)):
            w.read(worker, part)
        pending[worker] = w.gradient(worker)
        heapq.heappush(queue, (w.time_s + float(rng.uniform(0.8, 1.2)), worker))

    for worker in range(workers):
        begin(worker)
    for _ in range(updates):
        w.time_s, worker = heapq.heappop(queue)
        for part in range(len(slices)):
            w.apply([pending[worker]], part=part)
            w.end()
        begin(worker)
    return w.schedule()


def pushed_in_parts(workers: int, updates: int, slices: int, batch_size: int = 8) -> Schedule:
    """As :func:`asp`, but slices of several workers interleave."""
    w = Writer(workers, [1.0 + k % 3 for k in range(slices)], batch_size)
    rng = np.random.default_rng(7)
    queue: list[tuple[float, int, int]] = []
    pending: dict[int, Gradient] = {}

    def begin(worker: int) -> None:
        pending[worker] = w.gradient(worker)
        done_s = w.time_s + float(rng.uniform(0.3, 0.6))
        for part in range(slices):
            heapq.heappush(queue, (done_s + 0.5 * (part + rng.uniform()) / slices, worker, part))

    for worker in range(workers):
        w.read(worker)
        begin(worker)
    left = [slices] * workers
    for _ in range(updates * slices):
        w.time_s, worker, part = heapq.heappop(queue)
        w.apply([pending[worker]], part=part)
        w.end()
        w.read(worker, part)
        left[worker] -= 1
        if not left[worker]:
            left[worker] = slices
            begin(worker)
    return w.schedule()


def ssp_0(workers: int, rounds: int, batch_size: int = 8) -> Schedule:
    """Stale synchronous with bound 0: all read, then each gradient is applied on arrival."""
    w = Writer(workers, batch_size=batch_size)
    rng = np.random.default_rng(6)
    for k in range(rounds):
        w.time_s = float(k + 1)
        gradients = []
        for worker in range(workers):
            w.read(worker)
            gradients.append(w.gradient(worker))
        for worker in rng.permutation(workers).tolist():
            w.apply([gradients[worker]], weight=1.0 / workers)
            w.end()
    return w.schedule()


def local_sgd(workers: int, updates: int, period: int, batch_size: int = 8) -> Schedule:
    """Every worker steps its own model; all models are averaged every ``period`` steps."""
    w = Writer(workers, batch_size=batch_size)
    for k in range(updates):
        w.time_s = float(k + 1)
        for worker in range(workers):
            w.apply([w.gradient(worker)], model=worker)
            w.end()
        if (k + 1) % period == 0:
            for model in range(workers):
                for other in range(workers):
                    if other != model:
                        w.mix(model, other, 1.0 / workers)
            w.end()
    return w.schedule()


def easgd(workers: int, updates: int, alpha: float, batch_size: int = 8) -> Schedule:
    """Elastic averaging with period 1: step, then worker and centre move towards each other."""
    w = Writer(workers, batch_size=batch_size)
    for k in range(updates):
        for worker in range(workers):
            w.time_s = float(k + 1)
            w.apply([w.gradient(worker)], model=worker)
            w.end()
            w.mix(worker, CENTRE, alpha)
            w.mix(CENTRE, worker, alpha)
            w.end()
    return w.schedule()
