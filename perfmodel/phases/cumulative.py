"""Layer-by-layer overlap for a few values at once: recursions over layers as cumulative sums.

Going through the layers one by one costs a call of NumPy per layer and operation, whatever the
number of values. Here all layers are one axis.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from perfmodel.base.arrays import Floats, Ids
from perfmodel.base.quantities import Quantity, axes_of

Parts = tuple[tuple[tuple[int, float, float], ...], ...]
"""For each layer, the place, the bytes and the tensors of each of its parts."""


class Places(NamedTuple):
    """The parts of each place in the order of the backward pass, all of shape (places, parts): the
    number of layers whose backward pass has begun before, the bytes and the tensors.

    Where a place has fewer parts than another, further ones have no bytes.
    """

    after: Ids
    bytes: Floats
    tensors: Floats


class PartService(NamedTuple):
    """What a stage takes: seconds per tensor and per byte, and how many times its service time a
    part takes."""

    per_tensor_s: Quantity
    per_byte_s: Quantity
    longer: Quantity


def places_of(parts: Parts) -> Places:
    """Return the parts of each place; ``parts`` are those of each layer, in forward order."""
    held: dict[int, list[tuple[float, float, float]]] = {}
    for after, layer in enumerate(parts[::-1]):
        for place, size, tensors in layer:
            held.setdefault(place, []).append((after, size, tensors))
    rows = np.zeros((len(held), max(map(len, held.values()), default=0), 3))
    for row, those in zip(rows, held.values(), strict=True):
        row[: len(those)] = those
        row[len(those) :, 0] = those[-1][0]
    return Places(rows[..., 0].astype(np.int64), rows[..., 1], rows[..., 2])


def sent_s(
    made_s: Floats,
    computed_s: Quantity,
    places: Places,
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
    sizes, tensors = (
        values.reshape(*values.shape, *(1,) * axes) for values in (places.bytes, places.tensors)
    )
    if not sizes.size:
        return [0.0 for _ in stages]
    end = made_s[places.after] if overlap else np.asarray(computed_s)[None, None]
    ends: list[Quantity] = []
    for stage in stages:
        busy = sizes * stage.per_byte_s + tensors * stage.per_tensor_s
        until = np.cumsum(busy, axis=1)
        end = until + np.maximum.accumulate(end - (until - busy), axis=1)
        last = end[:, -1].max(axis=0)
        if not (isinstance(stage.longer, float) and stage.longer == 1.0):
            end = end + (stage.longer - 1.0) * busy
            last = np.maximum(last, end.max(axis=(0, 1)))
        ends.append(last)
    return ends
