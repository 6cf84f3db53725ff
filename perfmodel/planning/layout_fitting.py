"""Which layouts of a plan fit into their devices, and which of them are worth evaluating.

Memory comes first, and then a bound of the time of a step: formulas evaluate only layouts whose
first stage fits, and that may be fast enough to be chosen.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from perfmodel.base.arrays import Floats
from perfmodel.base.errors import InputError
from perfmodel.catalogue import catalogue
from perfmodel.inputs.device import Device
from perfmodel.planning.layout_map import Place
from perfmodel.planning.plans import shape_text
from perfmodel.planning.space import BatchNoise
from perfmodel.predicting.memory import first_needed_bytes, memory_on
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


FIRST = 16
"""Layouts that are evaluated before the rate of the best of them rules out others."""


class Needs:
    """Memory that layouts need of their devices with a confidence (bytes), each found once."""

    def __init__(self, device: Device, confidence: float) -> None:
        self.device, self.confidence = device, confidence
        self.of_whole: dict[tuple[int, int], float] = {}
        self.of_first: dict[tuple[int, int], float] = {}

    def whole(self, found: Layouts, row: int) -> float:
        """Return what the fullest device of a layout needs."""
        key = _key(found, row)
        if key not in self.of_whole:
            memory = memory_on(self.device, found.made(row))
            self.of_whole[key] = memory.needed_bytes(self.confidence)
        return self.of_whole[key]

    def first(self, found: Layouts, row: int) -> float:
        """Return what a device of the first stage of a layout needs."""
        key = _key(found, row)
        if key not in self.of_first:
            job = found.made(row)
            self.of_first[key] = first_needed_bytes(self.device, job, self.confidence)
        return self.of_first[key]

    @property
    def least_bytes(self) -> float:
        """The least that any layout needs."""
        firsts = {
            key: max(size, self.of_whole.get(key, 0.0)) for key, size in self.of_first.items()
        }
        return min(firsts.values(), default=math.inf)


def _key(found: Layouts, row: int) -> tuple[int, int]:
    """Return the same for the same layout in several tables: its job, and its micro-batches."""
    return id(found.shapes[int(found.shape[row])]), int(found.micro_batches[row])


class Fitting:
    """Which layouts fit into their devices.

    What keeps more than a layout that does not fit need not be looked at: less recomputation, or
    more samples in a micro-batch, with the same architecture.
    """

    def __init__(
        self,
        found: Layouts,
        confidence: float,
        noise: BatchNoise | None = None,
        needs: Needs | None = None,
    ) -> None:
        self.found, self.confidence, self.noise = found, confidence, noise
        self.rates: Floats = found.samples_per_s
        if noise is not None:  # of samples as much worth as those of reference
            self.rates = self.rates * noise.efficiency(found.global_batch_size.astype(float))
        device = catalogue.device(found.job.workload.device)
        self.needs = needs or Needs(device, confidence)
        self.device_bytes = device.memory_bytes or math.inf
        self.each = EACH if found.job.devices <= FEW else 1
        self.failed: dict[tuple[tuple[int, ...], str], list[tuple[int, int, int]]] = {}
        self.of_first: dict[int, float] = {}
        columns = (getattr(found, name).tolist() for name in OF_KIND)
        self.shapes: list[tuple[int, ...]] = list(zip(*columns, strict=True))
        self.easiest: dict[tuple[tuple[int, ...], str], int] = {}
        for row, shape in enumerate(self.shapes):
            key = (shape, found.arch[row])
            other = self.easiest.setdefault(key, row)
            if self._needs(row)[1:] < self._needs(other)[1:]:
                self.easiest[key] = row

    def _needs(self, row: int) -> tuple[int, int, int]:
        """Return how much of the model, and of activations, a layout keeps, as ranks."""
        found = self.found
        arch, again = found.arch[row], found.recompute[row]
        kept = len(ARCHITECTURES) - ARCHITECTURES.index(arch) if arch in ARCHITECTURES else 0
        rest = len(RECOMPUTE) - RECOMPUTE.index(again) if again in RECOMPUTE else 0
        return kept, rest, int(found.micro_batch_size[row])

    def needed(self, row: int) -> float:
        """Return the memory that a layout needs with the confidence (bytes)."""
        return self.needs.whole(self.found, row)

    def _first_fits(self, row: int) -> bool:
        """Return whether the first stage of a layout fits, which is found sooner than the rest."""
        self.of_first[row] = self.needs.first(self.found, row)
        return self.of_first[row] <= self.device_bytes

    def may_fit(self, row: int) -> bool:
        """Return whether a layout fits as far as its first stage says."""
        shape, needs = self.shapes[row], self._needs(row)
        failed = self.failed.setdefault((shape, self.found.arch[row]), [])
        if any(all(a <= b for a, b in zip(one, needs, strict=True)) for one in failed):
            return False
        for one in (self.easiest[shape, self.found.arch[row]], row):
            if not self._first_fits(one):
                failed.append(self._needs(one))
                return False
        return True

    def fits(self, row: int) -> bool:
        """Return whether a layout fits."""
        if not self.may_fit(row):
            return False
        if self.needed(row) <= self.device_bytes:
            return True
        self.failed[self.shapes[row], self.found.arch[row]].append(self._needs(row))
        return False

    def kind(self, row: int) -> tuple[object, ...]:
        """Return what layouts have in common of which one stands for the others."""
        return self.shapes[row], int(self.found.global_batch_size[row])

    def chosen(self) -> Iterator[tuple[int, float]]:
        """Yield the fastest layout that fits of each kind, and the memory it needs."""
        kinds: dict[tuple[object, ...], set[int]] = {}
        rates, best = self.rates.tolist(), 0.0
        alike: dict[tuple[object, ...], list[int]] = {}
        of_row = list(zip(self.shapes, self.found.global_batch_size.tolist(), strict=True))
        for row, kind in enumerate(of_row):
            alike.setdefault(kind, []).append(row)
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
            near = [k for k in alike[kind] if rates[row] / (1.0 + NEAR) <= rates[k] <= rates[row]]
            near.sort(key=self._effort)
            simplest = next(k for k in near if k == row or self.fits(k))
            if simplest not in taken:
                kinds.setdefault(kind, taken).add(simplest)
                yield simplest, self.needed(simplest)

    def _effort(self, row: int) -> tuple[int, ...]:
        """Return what people would rather have less of, as ranks: sharding, then recomputation."""
        kept, rest, _ = self._needs(row)
        return -kept, -rest

    @property
    def shortage(self) -> str:
        """Why none fits."""
        times = self.needs.least_bytes / self.device_bytes
        return f"no layout fits: a device needs at least {times:.3g} times its memory"


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
        if not possible.may_fit(row):
            continue
        rows.append(row)
        if len(rows) == enough:
            enough *= 2
            lowest = _lowest(_evaluated(choices, possible, rows), possible)
    found = _evaluated(choices, possible, rows) if rows else None
    if found is None or not _lowest(found, possible):
        raise InputError(possible.shortage)
    return found


def _evaluated(choices: Combinations, possible: Fitting, rows: Sequence[int]) -> Layouts:
    return choices.evaluated(possible.found.shape[rows].tolist())


def _lowest(found: Layouts, possible: Fitting) -> float:
    """Return the rate below which no other layout changes what is chosen; 0 if none of these fits.

    Others can only raise it: the best of all, and those that stand for their kinds, are at least as
    fast. With the last kind taken, others need to be close to the best, or near one that is taken.
    """
    fitting = Fitting(found, possible.confidence, possible.noise, possible.needs)
    kinds: dict[tuple[object, ...], float] = {}
    for row, _ in fitting.chosen():
        kind = fitting.kind(row)
        kinds[kind] = max(kinds.get(kind, 0.0), float(fitting.rates[row]))
    if not kinds:
        return 0.0
    best, least = max(kinds.values()), min(kinds.values())
    lowest = min(least, CLOSE * best) if len(kinds) >= MOST_KINDS else WORST * best
    return lowest / (1.0 + NEAR)


def outside_of(choices: Combinations, possible: Fitting) -> list[Place]:
    """Return the fastest layouts whose first stage does not fit, of those that were looked at, with
    what it needs."""
    sizes = {_key(possible.found, row): size for row, size in possible.of_first.items()
             if size > possible.device_bytes}  # fmt: skip
    left = sorted(row for row, size in possible.of_first.items() if size > possible.device_bytes)
    places: list[Place] = []
    for begin in range(0, len(left), OUTSIDE):
        if len(places) == OUTSIDE:
            most = float(possible.found.samples_per_s[left[begin]])
            if most < places[-1].samples_per_s:
                break
        found = _evaluated(choices, possible, left[: begin + OUTSIDE])
        rows = [row for row in range(len(found)) if _key(found, row) in sizes][:OUTSIDE]
        places = [
            Place(
                sizes[_key(found, row)],
                float(found.samples_per_s[row]),
                found.arch[row],
                f"{found.arch[row]}{shape_text(found.shape_of(row))}",
                fits=False,
            )
            for row in rows
        ]
    return places
