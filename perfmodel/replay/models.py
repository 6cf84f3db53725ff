"""Parameters of all models of a replay, and how rows of a schedule change them."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from perfmodel.base.arrays import Floats
from perfmodel.replay.optimizer import Optimizer
from perfmodel.replay.plan import Version
from perfmodel.results.schedule import CENTRE, WHOLE


def bounds(parameters: int, slice_bytes: tuple[float, ...]) -> list[slice]:
    """The contiguous part of a vector of parameters that each slice stands for, by its bytes."""
    ends = np.cumsum(slice_bytes)
    total = ends[-1] if len(ends) and ends[-1] > 0.0 else 1.0
    at = [0, *(round(parameters * float(end) / total) for end in ends[:-1]), parameters]
    return [slice(begin, end) for begin, end in pairwise(at)]


class Models:
    """A vector of parameters for each worker and, last, the centre's: index ``CENTRE`` is its.

    Versions of models are not kept, but for those in ``old``, from when they are overwritten to
    when they are last mixed in.
    """

    def __init__(
        self, initial: Floats, workers: int, slices: list[slice], optimizer: Optimizer
    ) -> None:
        self.values = np.tile(initial, (workers + 1, 1))
        self.slices = slices
        at_server = optimizer.momentum_at == "server"
        self._momentum = optimizer.momentum if at_server else 0.0
        self._decay = optimizer.weight_decay if at_server else 0.0
        self._velocity: dict[int, Floats] = {}
        parts = [*slices, slice(None)]  # the last, index WHOLE, is all of it
        self._views: list[list[Floats]] = [[row[part] for part in parts] for row in self.values]
        self._parts = parts
        self._versions = [[0] * len(slices) for _ in range(workers + 1)]
        self._old: dict[Version, int] = {}
        self._kept: dict[Version, Floats] = {}

    def keep(self, old: dict[Version, int]) -> None:
        """Keep these versions when they are overwritten, for as many uses."""
        self._old = dict(old)

    def view(self, model: int, part: int) -> Floats:
        """Parameters of a slice (or WHOLE) of a model."""
        return self._views[model][part]

    def part(self, gradient: Floats, part: int) -> Floats:
        """The same slice of a gradient."""
        found: Floats = gradient[self._parts[part]]
        return found

    def read(self, worker: int, part: int) -> None:
        """The worker takes the centre's parameters."""
        self._views[worker][part][:] = self._views[CENTRE][part]

    def step(self, model: int, part: int, gradient: Floats, rate: float) -> None:
        """One step of the optimizer with the gradient of a slice, which may be overwritten."""
        values = self._views[model][part]
        if self._decay:
            gradient += self._decay * values
        if self._momentum:
            if model not in self._velocity:
                self._velocity[model] = np.zeros(self.values.shape[1])
            velocity = self._velocity[model][self._parts[part]]
            velocity *= self._momentum
            velocity += gradient
            values -= rate * velocity
        else:
            gradient *= rate
            values -= gradient

    def mixed(self, model: int, part: int, others: list[tuple[int, float, int]]) -> Floats:
        """The slice of a model after others, with weights and versions, were mixed in."""
        own = self._views[model][part]
        new: Floats = own.copy()
        for other, weight, version in others:
            new += weight * (self._of_version(other, part, version) - own)
        return new

    def written(self, model: int, part: int, version: int) -> None:
        """A group is about to make a version of a slice: keep the present one if it is needed."""
        if not self._old:
            return
        versions = self._versions[model]
        for k in range(len(self.slices)) if part == WHOLE else (part,):
            if version == versions[k]:
                continue  # another row of the same group
            key = (model, k, versions[k])
            if key in self._old:
                self._kept[key] = self._views[model][k].copy()
            versions[k] = version

    def _of_version(self, other: int, part: int, version: int) -> Floats:
        """Parameters of a slice as they were in a version."""
        if not self._old:
            return self._views[other][part]
        parts = range(len(self.slices)) if part == WHOLE else (part,)
        found = [
            self._views[other][k] if self._versions[other][k] == version else self._take(key)
            for k in parts
            for key in ((other, k, version),)
        ]
        whole: Floats = found[0] if len(found) == 1 else np.concatenate(found)
        return whole

    def _take(self, key: Version) -> Floats:
        """A kept version; the last use drops it."""
        self._old[key] -= 1
        return self._kept.pop(key) if not self._old[key] else self._kept[key]
