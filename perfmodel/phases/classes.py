"""Classes of workers that are alike, of which formulas take one for all."""

from __future__ import annotations

import msgspec
import numpy as np

from perfmodel.base.arrays import Floats, quantiles
from perfmodel.base.quantities import Quantity

MOST_CLASSES, JOINED = 64, 8
"""Most classes of workers; if there are more, how many speeds and how many bandwidths are told
apart but for the slowest (decision 0110)."""


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
    """Return the classes of workers, (workers,), and of many those of about equal scale and
    bandwidth as one: their means. The slowest stay one."""
    if len(set({id(kind): kind for kind in kinds}.values())) <= MOST_CLASSES:
        return kinds
    scale = np.array([kind.scale for kind in kinds])
    per_byte_s = 1.0 / np.array([float(kind.bandwidth_bytes_per_s) for kind in kinds])
    alike: dict[tuple[object, ...], list[int]] = {}
    numbers = zip(_parts(scale), _parts(per_byte_s), strict=True)
    for worker, (kind, own) in enumerate(zip(kinds, numbers, strict=True)):
        alike.setdefault((own, kind.loading_s, kind.devices), []).append(worker)
    found = list(kinds)
    for workers in alike.values():
        mean = msgspec.structs.replace(
            kinds[workers[0]],
            scale=float(scale[workers].mean()),
            bandwidth_bytes_per_s=1.0 / float(per_byte_s[workers].mean()),
        )
        for worker in workers:
            found[worker] = mean
    return found


def _parts(values: Floats) -> list[int]:
    """Return the number of the part of each value, (workers,); the largest are one."""
    parts: list[int] = np.where(values == values.max(), JOINED, quantiles(values, JOINED)).tolist()
    return parts
