"""Classes of workers that are alike, of which formulas take one for all."""

from __future__ import annotations

import msgspec
import numpy as np

from perfmodel.base.arrays import quantiles
from perfmodel.base.quantities import Quantity

MOST_CLASSES, JOINED = 64, 8
"""Most classes of workers, and how many speeds are told apart if there are more (decision 0110)."""


class Class(msgspec.Struct, frozen=True):
    """A class of equal workers: their ``count``, and how they differ from the mean worker.

    ``scale`` is their compute time relative to the profile, ``loading_s`` the time to load a batch,
    ``devices`` the number of workers on each of their nodes.
    """

    count: int
    scale: float
    bandwidth_bytes_per_s: Quantity
    loading_s: float = 0.0
    devices: int = 1


def joined(kinds: list[Class]) -> list[Class]:
    """Return the classes of workers, (workers,), and of many those of about equal scale as one:
    their mean. The slowest stay one."""
    if len(set({id(kind): kind for kind in kinds}.values())) <= MOST_CLASSES:
        return kinds
    scale = np.array([kind.scale for kind in kinds])
    number = np.where(scale == scale.max(), JOINED, quantiles(scale, JOINED))
    alike: dict[tuple[object, ...], list[int]] = {}
    for worker, (kind, own) in enumerate(zip(kinds, number.tolist(), strict=True)):
        links = kind.bandwidth_bytes_per_s, kind.loading_s, kind.devices
        alike.setdefault((own, *links), []).append(worker)
    found = list(kinds)
    for workers in alike.values():
        mean = msgspec.structs.replace(kinds[workers[0]], scale=float(scale[workers].mean()))
        for worker in workers:
            found[worker] = mean
    return found
