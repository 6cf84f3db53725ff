"""Layer-by-layer overlap for a few values at once: recursions over layers as cumulative sums.

Going through the layers one by one costs a call of NumPy per layer and operation, whatever the
number of values. Here all layers are one axis.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from perfmodel.base.arrays import Floats
from perfmodel.base.quantities import Quantity, axes_of, column

Parts = tuple[tuple[tuple[int, float, float], ...], ...]
"""For each layer, the place, the bytes and the tensors of each of its parts."""


class Place(msgspec.Struct, frozen=True):
    """The parts of one place in the order of the backward pass, all of shape (parts,): the number
    of layers whose backward pass has begun before, the bytes and the tensors."""

    after: NDArray[np.int64]
    bytes: Floats
    tensors: Floats


class PartService(NamedTuple):
    """What a stage takes: seconds per tensor and per byte, and how many times its service time a
    part takes."""

    per_tensor_s: Quantity
    per_byte_s: Quantity
    longer: Quantity


def places_of(parts: Parts) -> list[Place]:
    """Return the parts of each place; ``parts`` are those of each layer, in forward order."""
    held: dict[int, list[tuple[int, float, float]]] = {}
    for after, layer in enumerate(parts[::-1]):
        for place, size, tensors in layer:
            held.setdefault(place, []).append((after, size, tensors))
    columns = [zip(*rows, strict=True) for rows in held.values()]
    return [
        Place(np.array(after, np.int64), np.array(sizes), np.array(tensors))
        for after, sizes, tensors in columns
    ]


def sent_s(
    made_s: Floats,
    computed_s: Quantity,
    places: Sequence[Place],
    stages: Sequence[PartService],
    *,
    overlap: bool,
) -> list[Quantity]:
    r"""Return the seconds until all gradients have passed each stage, in order.

    A stage serves the parts of a place one after the other. Part *i* arrives at :math:`a_i` and
    takes :math:`b_i`; with :math:`B_i` the sum up to *i*, it leaves at

    .. math:: B_i + \max_{j \le i} \left( a_j - B_{j-1} \right)

    Parameters
    ----------
    made_s : (layers, ...), the times at which gradients are computed, the last layer first.
    computed_s : when the backward pass ends; nothing is sent earlier without ``overlap``.
    """
    axes = max(made_s.ndim - 1, axes_of(*(value for stage in stages for value in stage)))
    made_s = made_s.reshape(len(made_s), *(1,) * (axes + 1 - made_s.ndim), *made_s.shape[1:])
    ends: list[Quantity] = [0.0 for _ in stages]
    for place in places:
        sizes, tensors = column(place.bytes, axes), column(place.tensors, axes)
        end = made_s[place.after] if overlap else np.asarray(computed_s)[None]
        for k, stage in enumerate(stages):
            busy = sizes * stage.per_byte_s + tensors * stage.per_tensor_s
            until = np.cumsum(busy, axis=0)
            end = until + np.maximum.accumulate(end - (until - busy), axis=0)
            ends[k] = np.maximum(ends[k], end[-1])
            if not (isinstance(stage.longer, float) and stage.longer == 1.0):
                end = end + (stage.longer - 1.0) * busy
                ends[k] = np.maximum(ends[k], end.max(axis=0))
    return ends
