"""Parameters of all models in a replay, and the changes that rows of a schedule make to them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from perfmodel.base.arrays import Floats
from perfmodel.replay.optimizer import Optimizer
from perfmodel.replay.plan import Version
from perfmodel.results.schedule import CENTRE


def edges_of(parameters: int, slice_bytes: tuple[float, ...]) -> list[int]:
    """Return where each slice begins in a parameter vector, and the end of the last.

    Slice k is the contiguous part from edge k to edge k + 1, in proportion to its bytes.
    """
    ends = np.cumsum(slice_bytes)
    total = ends[-1] if len(ends) and ends[-1] > 0.0 else 1.0
    return [0, *(round(parameters * float(end) / total) for end in ends[:-1]), parameters]


class Models:
    """A parameter vector for each worker and, at index ``CENTRE`` (the last), for the centre.

    A range of slices is given by its first slice and the one after its last. Old versions of models
    are not kept, except those in ``old``, from when they are overwritten to their last mix.
    """

    def __init__(
        self,
        initial: Floats,
        workers: int,
        edges: list[int],
        optimizer: Optimizer,
        old: Mapping[Version, int],
    ) -> None:
        self.values = np.tile(initial, (workers + 1, 1))
        self.slices = len(edges) - 1
        at_server = optimizer.momentum_at == "server"
        self._momentum = optimizer.momentum if at_server else 0.0
        self._decay = optimizer.weight_decay if at_server else 0.0
        self._edges = edges
        self._rows = list(self.values)
        self._velocity: dict[int, Floats] = {}
        self._versions = [[0] * self.slices for _ in range(workers + 1)]
        self._old = dict(old)
        self._kept: dict[Version, Floats] = {}

    def view(self, model: int, first: int, after: int) -> Floats:
        """Return a view of some slices of a model's parameters."""
        return self.part(self._rows[model], first, after)

    def part(self, gradient: Floats, first: int, after: int) -> Floats:
        """Return a view of some slices of a gradient."""
        return gradient[self._edges[first] : self._edges[after]]

    def read(self, worker: int, first: int, after: int) -> None:
        """Copy the centre's parameters to a worker."""
        self.view(worker, first, after)[:] = self.view(CENTRE, first, after)

    def step(self, model: int, first: int, after: int, gradient: Floats, rate: float) -> None:
        """Take an optimizer step with the gradient of some slices, which may be overwritten."""
        values = self.view(model, first, after)
        if self._decay:
            gradient += self._decay * values
        if self._momentum:
            if model not in self._velocity:
                self._velocity[model] = np.zeros(self.values.shape[1])
            velocity = self.part(self._velocity[model], first, after)
            velocity *= self._momentum
            velocity += gradient
            values -= rate * velocity
        else:
            gradient *= rate
            values -= gradient

    def mixed(
        self, model: int, first: int, after: int, partners: list[tuple[int, float, int]]
    ) -> Floats:
        """Return slices of a model after mixing in others: (model, weight, version) each."""
        current = self.view(model, first, after)
        mixture = current.copy()
        for partner, weight, version in partners:
            mixture += weight * (self._of_version(partner, first, after, version) - current)
        return mixture

    def overwritten(self, model: int, first: int, after: int, version: int) -> None:
        """Keep the current version of slices if it is still needed, before a group overwrites it
        with ``version``."""
        if not self._old:
            return
        versions = self._versions[model]
        for k in range(first, after):
            if version == versions[k]:
                continue  # another row of the same group
            key = (model, k, versions[k])
            if key in self._old:
                self._kept[key] = self.view(model, k, k + 1).copy()
            versions[k] = version

    def _of_version(self, partner: int, first: int, after: int, version: int) -> Floats:
        """Return the parameters of slices as they were in a version."""
        if not self._old:
            return self.view(partner, first, after)
        versions = self._versions[partner]
        parts = [
            self.view(partner, k, k + 1)
            if versions[k] == version
            else self._take((partner, k, version))
            for k in range(first, after)
        ]
        return np.concatenate(parts)

    def _take(self, key: Version) -> Floats:
        """Return a kept version; its last use drops it."""
        self._old[key] -= 1
        return self._kept[key] if self._old[key] else self._kept.pop(key)
