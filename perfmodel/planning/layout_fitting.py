"""Which layouts of a plan fit into their devices, and which of them are worth evaluating.

Memory comes first, and then a bound of the time of a step: formulas evaluate only layouts whose
first stage fits, and that may be fast enough to be chosen.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.arrays import Floats, Ids
from perfmodel.base.errors import InputError
from perfmodel.catalogue import catalogue
from perfmodel.inputs.device import Device
from perfmodel.inputs.job import Job
from perfmodel.planning.layout_map import LayoutPoint
from perfmodel.planning.plans import shape_text
from perfmodel.planning.space import BatchNoise
from perfmodel.predicting.memory import first_memory_on, least_needed_bytes, memory_on
from perfmodel.results.memory import Memory
from perfmodel.sweeping.layouts import Combinations, Layouts

ARCHITECTURES = ("ring", "zero1", "zero2", "zero3")
"""Default architectures; each keeps less of the model on a device than the one before."""

RECOMPUTE = ("none", "selective", "full")
"""Default recomputation; each keeps less than the one before."""

NEAR = 0.01
"""Relative difference of rates up to which the simpler layout of a kind is taken."""

EACH, CLOSE = 2, 0.97
"""Most layouts of a kind that are looked at one by one, on up to ``FEW`` devices, and the lowest
rate of those after the first relative to the fastest."""

FEW, SIMULATED = 512, 5
"""Devices up to which simulations are cheap, and most simulations there."""

OF_KIND = ("tensor", "context", "expert", "pipeline", "virtual_stages")
"""Numbers that are the same in all layouts of a kind."""

OUTSIDE = 20
"""Most layouts that do not fit on a map."""

MOST_KINDS, WORST = 10, 0.6
"""Most kinds of layouts per machine and number of devices, and the lowest rate relative to the
fastest of them."""


ENOUGH = 50
"""Halvings after which a limit is exact."""

FIRST = 16
"""Layouts that are evaluated before the rate of the best of them rules out others."""


class Needs:
    """Memory that layouts of one table need of their devices with a confidence (bytes), each found
    once."""

    def __init__(
        self, device: Device, confidence: float, job: Job, least_allocated: Floats | None = None
    ) -> None:
        self.device, self.confidence = device, confidence
        self.device_bytes = device.memory_bytes or math.inf
        self.least_allocated = least_allocated
        self.most_allocated = _most_allocated(device, confidence, job)
        self.of_fullest: dict[int, float] = {}
        self.of_first: dict[int, float] = {}

    def fullest(self, layouts: Layouts, row: int) -> float:
        """Return what the fullest device of a layout needs; of an impossible one, infinity."""
        return self._needed(self.of_fullest, memory_on, layouts, row)

    def first(self, layouts: Layouts, row: int) -> float:
        """Return what a device of the first stage of a layout needs."""
        return self._needed(self.of_first, first_memory_on, layouts, row)

    def exceeded(self, layouts: Layouts, row: int) -> bool:
        """Return whether the first stage of a layout does not fit, as far as the least that it
        allocates says, and else for certain."""
        least, number = self.least_allocated, layouts.number[row]
        if least is not None and least[number] > self.most_allocated:
            return True
        return self.first(layouts, row) > self.device_bytes

    def _needed(
        self,
        known: dict[int, float],
        memory_of: Callable[[Device, Job], Memory],
        layouts: Layouts,
        row: int,
    ) -> float:
        key = int(layouts.number[row])
        if key not in known:
            try:
                memory = memory_of(self.device, layouts.made(row))
            except InputError:
                known[key] = math.inf
            else:
                known[key] = memory.needed_bytes(self.confidence)
        return known[key]


def _most_allocated(device: Device, confidence: float, job: Job) -> float:
    """Return the most that a process of a job may allocate to fit into a device."""
    size = device.memory_bytes or math.inf
    low, high = 0.0, size
    if math.isinf(size):
        return size
    for _ in range(ENOUGH):
        middle = 0.5 * (low + high)
        if least_needed_bytes(device, job, middle, confidence) > size:
            high = middle
        else:
            low = middle
    return high


class Fitting:
    """Which layouts fit into their devices.

    What keeps more than a layout that does not fit need not be looked at: less recomputation, more
    samples in a micro-batch, or in a step, with the same division, architecture and schedule.
    """

    def __init__(
        self,
        layouts: Layouts,
        confidence: float,
        noise: BatchNoise | None = None,
        needs: Needs | None = None,
    ) -> None:
        self.layouts, self.confidence, self.noise = layouts, confidence, noise
        self.rates: Floats = layouts.samples_per_s
        if noise is not None:  # of samples as much worth as those of reference
            self.rates = self.rates * noise.efficiency(layouts.global_batch_size.astype(float))
        device = catalogue.device(layouts.job.workload.device)
        self.needs = needs or Needs(device, confidence, layouts.shapes[0])
        self.device_bytes = self.needs.device_bytes
        self.each = EACH if layouts.job.devices <= FEW else 1
        self.outside: list[int] = []
        columns = [getattr(layouts, name) for name in OF_KIND]
        self.kinds = _numbered(*columns, layouts.global_batch_size)
        names = {name: layouts.shapes.columns[name] for name in ("arch", "schedule", "recompute")}
        codes = [_coded(names[name])[layouts.shape] for name in ("arch", "schedule")]
        self.siblings = _numbered(*columns, *codes)
        self.kept = _ranks(names["arch"], ARCHITECTURES)[layouts.shape]
        self.rest = _ranks(names["recompute"], RECOMPUTE)[layouts.shape]
        needed = self.rest, layouts.micro_batch_size, layouts.global_batch_size
        self.order = np.lexsort((*needed[::-1], self.siblings))
        self.begins = np.searchsorted(self.siblings[self.order], np.arange(self.siblings.max() + 2))
        self.keeps = np.stack(needed)
        self.closed, self.opened = np.zeros((2, len(layouts)), bool)

    @classmethod
    def of(
        cls, choices: Combinations, confidence: float, noise: BatchNoise | None = None
    ) -> Fitting:
        """Return which of all combinations fit, with the least times of their steps.

        Raises
        ------
        InputError : none is possible.
        """
        layouts = choices.bounded()
        device = catalogue.device(layouts.job.workload.device)
        needs = Needs(device, confidence, layouts.shapes[0], choices.least_allocated())
        return cls(layouts, confidence, noise, needs)

    def needed(self, row: int) -> float:
        """Return the memory that a layout needs with the confidence (bytes)."""
        return self.needs.fullest(self.layouts, row)

    def _close(self, row: int) -> None:
        """Leave out a layout that does not fit, and all that keep more."""
        members = self._like(row)
        more = (self.keeps[:, members] >= self.keeps[:, [row]]).all(axis=0)
        self.closed[members[more]] = True

    def _like(self, row: int) -> Ids:
        """Return the layouts of which one that keeps more needs more, the least first."""
        begin, end = self.begins[self.siblings[row] : self.siblings[row] + 2]
        return self.order[begin:end]

    def may_fit(self, row: int) -> bool:
        """Return whether a layout fits as far as its first stage says, which is found sooner than
        the rest."""
        if self.closed[row] or self.opened[row]:
            return not self.closed[row]
        members = self._like(row)
        if not self.needs.exceeded(self.layouts, row):
            less = (self.keeps[:, members] <= self.keeps[:, [row]]).all(axis=0)
            self.opened[members[less]] = True
            return True
        same = (self.keeps[:2, members] == self.keeps[:2, [row]]).all(axis=0)
        for member in (int(members[0]), int(members[same.argmax()]), row):
            if self.needs.exceeded(self.layouts, member):  # the one that keeps least closes most
                self.outside.append(member)
                self._close(member)
                break
        return False

    def fits(self, row: int) -> bool:
        """Return whether a layout fits."""
        if not self.may_fit(row):
            return False
        if self.needed(row) <= self.device_bytes:
            return True
        self._close(row)
        return False

    def chosen(self) -> Iterator[tuple[int, float]]:
        """Yield the fastest layout that fits of each kind, and the memory it needs."""
        kinds: dict[int, set[int]] = {}
        rates, best = self.rates.tolist(), 0.0
        of_kind: dict[int, list[int]] = {}
        of_row = self.kinds.tolist()
        for row, kind in enumerate(of_row):
            of_kind.setdefault(kind, []).append(row)
        for row in np.argsort(-self.rates, kind="stable").tolist():
            kind = of_row[row]
            if rates[row] < WORST * best:
                return
            taken = kinds.get(kind, set())
            full = len(kinds) >= MOST_KINDS if not taken else len(taken) >= self.each
            if full or row in taken or rates[row] < CLOSE * best * bool(taken):
                continue
            if not self.fits(row):
                continue
            best = max(best, rates[row])
            near = [k for k in of_kind[kind] if rates[row] / (1.0 + NEAR) <= rates[k] <= rates[row]]
            near.sort(key=self._effort)
            simplest = next(k for k in near if k == row or self.fits(k))
            if simplest not in taken:
                kinds.setdefault(kind, taken).add(simplest)
                yield simplest, self.needed(simplest)

    def _effort(self, row: int) -> tuple[int, ...]:
        """Return what people would rather have less of, as ranks: sharding, then recomputation."""
        return -int(self.kept[row]), -int(self.rest[row])

    @property
    def shortage(self) -> str:
        """Why none fits."""
        for row in self.outside:
            self.needs.first(self.layouts, row)
        needed = self.needs.of_fullest
        firsts = [max(size, needed.get(k, 0.0)) for k, size in self.needs.of_first.items()]
        times = min(firsts, default=math.inf) / self.device_bytes
        return f"no layout fits: a device needs at least {times:.3g} times its memory"


def _ranks(names: NDArray[Any], known: Sequence[str]) -> Ids:
    """Return how much of a model, or of activations, layouts keep, the most first in ``known``; 0
    for others, (names,)."""
    rank = {name: len(known) - k for k, name in enumerate(known)}
    return np.array([rank.get(name, 0) for name in names.tolist()])


def _coded(names: NDArray[Any]) -> Ids:
    """Return a number for each name, the same for equal ones, (names,)."""
    known: dict[str, int] = {}
    return np.array([known.setdefault(name, len(known)) for name in names.tolist()])


def _numbered(*columns: NDArray[Any]) -> Ids:
    """Return a number for each row of columns, the same for equal ones, (rows,)."""
    numbers = np.zeros(len(columns[0]), np.int64)
    for values in columns:
        many = int(values.max()) + 1
        if (int(numbers.max()) + 1) * many > np.iinfo(np.int64).max:
            numbers = np.unique(numbers, return_inverse=True)[1].reshape(-1)
        numbers = numbers * many + values
    return np.unique(numbers, return_inverse=True)[1].reshape(-1)


def best_of(choices: Combinations, possible: Fitting) -> Layouts:
    """Evaluate all layouts that :meth:`Fitting.chosen` can yield or looks at; further ones do not
    change what it yields.

    Parameters
    ----------
    possible : of the least times of all layouts.

    Raises
    ------
    InputError : no layout fits.
    """
    lowest, rows, enough = 0.0, list[int](), FIRST
    for row in np.argsort(-possible.rates, kind="stable").tolist():
        if possible.rates[row] < lowest:
            break
        if possible.closed[row] or not possible.may_fit(row):
            continue
        rows.append(row)
        if len(rows) == enough:
            enough *= 2
            lowest = _lowest(_evaluated(choices, possible, rows), possible)
    layouts = _evaluated(choices, possible, rows) if rows else None
    if layouts is None or not _lowest(layouts, possible):
        raise InputError(possible.shortage)
    return layouts


def _evaluated(choices: Combinations, possible: Fitting, rows: Sequence[int]) -> Layouts:
    return choices.evaluated(possible.layouts.number[rows].tolist())


def _lowest(layouts: Layouts, possible: Fitting) -> float:
    """Return the rate below which no other layout changes what is chosen; 0 if none of these fits.

    Others can only raise it: the best of all, and those that stand for their kinds, are at least as
    fast. With the last kind taken, others need to be close to the best, or near one that is taken.
    """
    fitting = Fitting(layouts, possible.confidence, possible.noise, possible.needs)
    kinds: dict[int, float] = {}
    for row, _ in fitting.chosen():
        kind = int(fitting.kinds[row])
        kinds[kind] = max(kinds.get(kind, 0.0), float(fitting.rates[row]))
    if not kinds:
        return 0.0
    best, least = max(kinds.values()), min(kinds.values())
    lowest = min(least, CLOSE * best) if len(kinds) >= MOST_KINDS else WORST * best
    return lowest / (1.0 + NEAR)


def outside_of(choices: Combinations, possible: Fitting) -> list[LayoutPoint]:
    """Return the fastest layouts whose first stage does not fit, of those that were looked at, with
    what it needs."""
    left = sorted(set(possible.outside))
    rows_of = dict(zip(possible.layouts.number[left].tolist(), left, strict=True))
    places: list[LayoutPoint] = []
    for begin in range(0, len(left), OUTSIDE):
        if len(places) == OUTSIDE:
            most = float(possible.layouts.samples_per_s[left[begin]])
            if most < places[-1].samples_per_s:
                break
        layouts = _evaluated(choices, possible, left[: begin + OUTSIDE])
        rows = [row for row, k in enumerate(layouts.number.tolist()) if k in rows_of][:OUTSIDE]
        places = [
            LayoutPoint(
                possible.needs.first(possible.layouts, rows_of[int(layouts.number[row])]),
                float(layouts.samples_per_s[row]),
                layouts.arch[row],
                f"{layouts.arch[row]}{shape_text(layouts.shape_of(row))}",
                fits=False,
            )
            for row in rows
        ]
    return places
