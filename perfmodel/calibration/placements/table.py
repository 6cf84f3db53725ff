"""Measured steps of data-parallel training: their tables, and those on one node by batch size."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import numpy as np

from perfmodel.base import tables
from perfmodel.base.errors import InputError, number, whole_number
from perfmodel.base.tables import Table, located
from perfmodel.inputs.batch_scaling import at_batch_size

TENSORS = 100
"""Parameter tensors of a DNN, to interpolate to batch sizes that were not measured."""

LEAST_PART = 0.01
"""Lower bound of the compute fraction of a step."""

LEAST_GROWTH = 0.2
"""Lower bound of the compute time on a full node over that of a device alone."""

DEVICES = re.compile("[0-9]{1,6}")
MOST_SHOWN = 40
"""Maximum characters of a wrong text that an error shows."""

NEEDED = ("model", "placement", "batch_size", "step_s", "gradient_bytes")


class Step(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A measured step: ``devices`` on each node, samples per device, seconds.

    ``waiting_s`` is the time in which the first device of the first node waits for gradients.
    """

    devices: tuple[int, ...]
    batch_size: int
    step_s: float
    waiting_s: float = 0.0

    @property
    def computing_s(self) -> float:
        """The rest of the step; always above 0."""
        return max(self.step_s - self.waiting_s, LEAST_PART * self.step_s)

    def __post_init__(self) -> None:
        check_devices(self.devices)
        whole_number("batch_size", self.batch_size)
        number("step_s", self.step_s, above=0.0)
        number("waiting_s", self.waiting_s, at_most=self.step_s)


class Training(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A DNN: bytes of its gradients, and measured steps.

    ``overlap_fraction`` is the fraction of backward that remains once its first large gradients are
    ready: about 1 if all layers are alike, near 0 if most bytes are in an embedding of the input.
    """

    name: str
    gradient_bytes: float
    steps: tuple[Step, ...]
    overlap_fraction: float = 1.0

    def __post_init__(self) -> None:
        number(f"{self.name}: gradient_bytes", self.gradient_bytes, above=0.0)
        number(f"{self.name}: overlap_fraction", self.overlap_fraction, at_most=1.0)
        if not any(step.devices == (1,) for step in self.steps):
            raise InputError(f"{self.name}: steps: needs at least one on a single device")


class OneNode:
    """Steps of a DNN on one node, by devices and samples per device; other sizes are interpolated.

    If no waiting time was measured on several devices, compute time is known on one device only.
    """

    def __init__(self, training: Training) -> None:
        self.training = training
        alone = [step for step in training.steps if len(step.devices) == 1]
        has_waiting = any(step.waiting_s > 0.0 and step.devices[0] > 1 for step in alone)
        times: dict[tuple[int, bool], dict[int, list[float]]] = {}
        for step in alone:
            count = step.devices[0]
            for waiting, seconds in ((True, step.step_s), (False, step.computing_s)):
                if waiting or has_waiting or count == 1:
                    sizes = times.setdefault((count, waiting), {})
                    sizes.setdefault(step.batch_size, []).append(seconds)
        self._seconds = {
            key: {size: float(np.mean(v)) for size, v in sorted(sizes.items())}
            for key, sizes in times.items()
        }
        self.growth = self._growth()

    def step_s(self, devices: int, batch_size: int) -> float | None:
        """Seconds of a step; None if none was measured on that many devices."""
        return self._at(self._seconds.get((devices, True)), batch_size)

    def computing_s(self, devices: int, batch_size: int) -> float:
        """Compute time of a step on ``devices`` devices of one node, extrapolated from one device
        if not measured."""
        measured = self._at(self._seconds.get((devices, False)), batch_size)
        if measured is not None:
            return measured
        alone = self._at(self._seconds[1, False], batch_size) or 0.0
        return alone * max(1.0 + self.growth * (1.0 - 1.0 / devices), LEAST_GROWTH)

    def knows(self, devices: int) -> bool:
        """Return whether compute time on that many devices of one node was measured."""
        return (devices, False) in self._seconds

    def batches(self, devices: int) -> list[int]:
        """Batch sizes with measured compute times, on that many devices or else on one."""
        return list(self._seconds.get((devices, False), self._seconds[1, False]))

    def _at(self, seconds: dict[int, float] | None, batch_size: int) -> float | None:
        if seconds is None:
            return None
        if batch_size not in seconds:
            sizes, known = list(seconds), [[v] for v in seconds.values()]
            return float(at_batch_size(sizes, known, batch_size, tensors=TENSORS)[0])
        return seconds[batch_size]

    def _growth(self) -> float:
        """*c* in compute times of 1 + c (1 - 1 / k) on k devices of a node, by least squares."""
        x, y = [], []
        for (devices, waiting), sizes in self._seconds.items():
            for size, seconds in sizes.items() if devices > 1 and not waiting else ():
                x.append(1.0 - 1.0 / devices)
                y.append(seconds / (self._at(self._seconds[1, False], size) or seconds) - 1.0)
        return float(np.dot(x, y) / np.dot(x, x)) if x else 0.0


def check_devices(devices: tuple[int, ...]) -> None:
    """Raise InputError for a placement without nodes, or with a node without devices."""
    if not devices:
        raise InputError("devices: needs at least one node")
    for index, count in enumerate(devices):
        whole_number(f"devices[{index}]", count)


def has_placements(table: Table) -> bool:
    """Return whether a table has DNNs and placements, rather than jobs with architectures."""
    return "arch" not in table.columns and {"placement", "gradient_bytes"} <= set(table.columns)


def read_trainings(path: str | Path) -> list[Training]:
    """Read a table of steps: ``model``, ``placement`` (devices on each node, such as ``4+2``),
    ``batch_size`` (samples per device), ``step_s``, ``gradient_bytes``.

    ``waiting_s`` is the time in which the first device waits for gradients, ``overlap_fraction``
    the fraction of backward that remains once the first gradients are ready; both are optional.
    """
    table = tables.read(path)
    table.need(*NEEDED)
    steps: dict[str, list[Step]] = {}
    sizes: dict[str, tuple[float, float]] = {}
    for line in table:
        name = line.text("model")
        size = line.number("gradient_bytes", above=0.0)
        left = line.number("overlap_fraction", at_most=1.0) if line.has("overlap_fraction") else 1.0
        if sizes.setdefault(name, (size, left)) != (size, left):
            raise InputError(f"{line.place}: {name}: gradient_bytes or overlap_fraction changed")
        with located(table.name, line.place):
            step = Step(
                placement(line.text("placement")),
                line.whole("batch_size"),
                line.number("step_s", above=0.0),
                line.number("waiting_s") if line.has("waiting_s") else 0.0,
            )
        steps.setdefault(name, []).append(step)
    with located(table.name, table.name):
        return [
            Training(name=n, gradient_bytes=size, overlap_fraction=left, steps=tuple(steps[n]))
            for n, (size, left) in sizes.items()
        ]


def placement(text: str) -> tuple[int, ...]:
    """Devices on each node, from text such as ``4+2``.

    >>> placement("4+2")
    (4, 2)
    """
    parts = [part.strip() for part in text.split("+")]
    if not all(DEVICES.fullmatch(part) for part in parts):
        shown = text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}..."
        raise InputError(f"placement: {shown!r}: expected devices on each node, such as 4+2")
    return tuple(map(int, parts))
