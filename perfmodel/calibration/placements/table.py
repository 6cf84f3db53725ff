"""Measured steps of data-parallel training, and tables of those on one node."""

from __future__ import annotations

import math
from collections.abc import Iterable

import msgspec
import numpy as np

from perfmodel.base.errors import InputError, number, whole_number
from perfmodel.calibration.placements.model import Placed
from perfmodel.inputs.batch_scaling import at_batch_size

TENSORS = 100
"""Parameter tensors of a DNN, to interpolate batch sizes that were not measured."""

LEAST_PART = 0.01
"""Lower bound of the computing fraction of a step."""


class Step(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A measured step: ``devices`` on each node, samples per device, seconds.

    ``waiting_s`` is the part in which the first device of the first node waits for gradients.
    """

    devices: tuple[int, ...]
    batch_size: int
    step_s: float
    waiting_s: float = 0.0

    @property
    def computing_s(self) -> float:
        """The rest of the step; more than 0."""
        return max(self.step_s - self.waiting_s, LEAST_PART * self.step_s)

    def __post_init__(self) -> None:
        check_devices(self.devices)
        whole_number("batch_size", self.batch_size)
        number("step_s", self.step_s, above=0.0)
        number("waiting_s", self.waiting_s, at_most=self.step_s)


class Training(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A DNN: bytes of its gradients, and measured steps.

    ``overlap_fraction`` is the part of backward that is left once its first large gradients are
    ready: about 1 if layers are alike, near 0 if most bytes are of an embedding of the input.
    """

    name: str
    gradient_bytes: float
    steps: tuple[Step, ...]
    overlap_fraction: float = 1.0

    def __post_init__(self) -> None:
        number(f"{self.name}: gradient_bytes", self.gradient_bytes, above=0.0)
        number(f"{self.name}: overlap_fraction", self.overlap_fraction, at_most=1.0)
        if not any(step.devices == (1,) for step in self.steps):
            raise InputError(f"{self.name}: steps: at least one on a single device is needed")


class OneNode:
    """Steps of a DNN on one node, by devices and samples per device; others are interpolated."""

    def __init__(self, training: Training) -> None:
        self._training = training
        self.tells_waiting = any(
            step.waiting_s > 0.0 and len(step.devices) == 1 < step.devices[0]
            for step in training.steps
        )
        self._seconds: dict[tuple[int, bool], dict[int, float]] = {}
        found: dict[tuple[int, bool], dict[int, list[float]]] = {}
        for step in training.steps:
            if len(step.devices) == 1:
                for waiting in (True, False):
                    seconds = step.step_s if waiting else step.computing_s
                    sizes = found.setdefault((step.devices[0], waiting), {})
                    sizes.setdefault(step.batch_size, []).append(seconds)
        for key, sizes in found.items():
            self._seconds[key] = {size: float(np.mean(v)) for size, v in sorted(sizes.items())}

    def step_s(self, devices: int, batch_size: int) -> float | None:
        """Seconds of a step; None where no step was measured on so many devices."""
        return self._at(devices, batch_size, waiting=True)

    def computing_s(self, devices: int, batch_size: int) -> float | None:
        """The same without the part in which the first device waits."""
        return self._at(devices, batch_size, waiting=False)

    def _at(self, devices: int, batch_size: int, *, waiting: bool) -> float | None:
        seconds = self._seconds.get((devices, waiting))
        if seconds is None:
            return None
        if batch_size not in seconds:
            sizes, known = list(seconds), [[v] for v in seconds.values()]
            found = at_batch_size(sizes, known, batch_size, tensors=TENSORS)
            return float(found[0])
        return seconds[batch_size]

    def growths(self) -> list[tuple[int, float]]:
        """Devices of a node, and the factor of computing time relative to one device."""
        if not self.tells_waiting:
            return []
        return [
            (devices, seconds / alone)
            for (devices, waiting), sizes in self._seconds.items()
            if devices > 1 and not waiting
            for size, seconds in sizes.items()
            if (alone := self.computing_s(1, size)) is not None
        ]

    def beyond(self, batch_size: int) -> float:
        """Doublings from the nearest batch that was measured on one device; 0 between them."""
        sizes = self._seconds[1, True]
        if batch_size in sizes or min(sizes) < batch_size < max(sizes):
            return 0.0
        return math.log2(max(batch_size / max(sizes), min(sizes) / batch_size))

    def placed(self, wanted: Iterable[tuple[tuple[int, ...], int]]) -> Placed:
        """Placements and batches, with the computing time on as many devices as the fullest node
        has.

        Where that was not measured, or its waiting time is unknown, with that on one device.
        """
        rows = []
        for devices, batch in wanted:
            base = max(devices)
            if not self.tells_waiting or self.computing_s(base, batch) is None:
                base = 1
            rows.append(
                (len(devices), sum(devices), max(devices), self.computing_s(base, batch), base)
            )
        values = np.array(rows, float).reshape(-1, 5)
        training, ones = self._training, np.ones(len(values))
        return Placed(
            values[:, 0],
            values[:, 1],
            values[:, 2],
            training.gradient_bytes * ones,
            training.overlap_fraction * ones,
            values[:, 3],
            values[:, 4],
        )


def stall_fraction(trainings: Iterable[Training]) -> float:
    """Fraction of the fullest node's extra computing time that a first node with fewer devices
    shows."""
    shown, full = [], []
    for training in trainings:
        table = OneNode(training)
        for step in training.steps:
            if max(step.devices) > step.devices[0]:
                own = table.computing_s(step.devices[0], step.batch_size)
                most = table.computing_s(max(step.devices), step.batch_size)
                if own and most:
                    shown.append(math.log(step.computing_s / own))
                    full.append(math.log(most / own))
    x, y = np.array(full), np.array(shown)
    if not (x**2).sum() > 0.0:
        return 0.0
    return float(f"{float(np.clip((x @ y) / (x @ x), 0.0, 1.0)):.6g}")


def check_devices(devices: tuple[int, ...]) -> None:
    """Raise InputError for a placement without nodes, or with a node without devices."""
    if not devices:
        raise InputError("devices: at least one node is needed")
    for index, count in enumerate(devices):
        whole_number(f"devices[{index}]", count)
