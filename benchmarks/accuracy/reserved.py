"""What processes reserve of their devices, over what is predicted to be allocated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from perfmodel.base.arrays import Floats
from perfmodel.results.memory import Memory, Reserved


class Measured(NamedTuple):
    """A run, the memory of its job, and the bytes measured of a process; None if there are none."""

    run: str
    ran: bool | None
    memory: Memory
    measured: float | None

    @property
    def over_allocated(self) -> tuple[float, ...]:
        """What was reserved, without libraries, over what is predicted to be allocated."""
        worker = self.memory.worker
        reserved = () if self.measured is None else (self.measured - worker.library_bytes,)
        return tuple(size / worker.allocated_bytes for size in reserved)

    def reserved(self, factors: Floats) -> Reserved:
        """Return what is reserved if it is ``factors``, (3,), of what is allocated."""
        worker = self.memory.worker
        return Reserved(*(factors * worker.allocated_bytes + worker.library_bytes).tolist())


def quantiles(ratios: Mapping[str, Sequence[float]], without: str = "") -> Floats:
    """Return quantiles 0.05, 0.5 and 0.95 of all tables with ratios but one, each with the same
    weight, (3,)."""
    kept = {name: values for name, values in ratios.items() if name != without and values}
    pairs = sorted((one, 1.0 / len(kept[name])) for name in kept for one in kept[name])
    values, weights = np.array(pairs).reshape(-1, 2).T
    if not kept:
        return np.ones(3)
    levels = (np.cumsum(weights) - 0.5 * weights) / len(kept)
    return np.interp([0.05, 0.5, 0.95], levels, values)
