"""Steps that grow evenly with the number of micro-batches, from a few of these numbers."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from perfmodel.base.arrays import Floats, Ids

LEAST = 2
"""Micro-batches, in multiples of the stages, from which on steps grow evenly."""

SHARED = 1.5
"""Actions of anchors over those of the rest up to which anchors save time: other layouts with the
same stages need the same ones."""

SAME = 1e-9
"""Relative difference up to which a third number of micro-batches is on the line of two others."""

Value = tuple[float, float]
"""Seconds of a step and of its bubble."""


class Line(NamedTuple):
    """Numbers of micro-batches of a layout: the ``few`` below ``LEAST`` times the stages, the
    ``rest``, and those that decide the time of a step there: for each remainder, ``each`` of them.
    """

    few: Ids
    rest: Ids
    offsets: Ids
    each: int
    anchors: list[int]

    @property
    def saves(self) -> bool:
        """Whether the anchors have fewer actions than the rest, or as many and others need them."""
        return sum(self.anchors) < SHARED * int(self.rest.sum())

    @property
    def first(self) -> list[int]:
        """The numbers to evaluate first."""
        return [*self.few.tolist(), *(self.anchors if self.saves else self.rest.tolist())]


def line_of(passes: Ids, every: int) -> Line:
    """Return numbers of micro-batches, increasing, of a layout with ``every`` stages."""
    least = LEAST * every
    rest = passes[passes >= least]
    offsets = np.unique((rest - least) % every)
    each = 3 if len(offsets) == 1 else 2  # one time longer is checked against the others
    anchors = (least + offsets[:, None] + every * np.arange(each)).ravel().tolist()
    return Line(passes[passes < least], rest, offsets, each, anchors)


def on_line(line: Line, known: dict[int, Value]) -> Floats | None:
    """Return the values of the numbers that are on a line through those of its anchors, (numbers,
    2); None if they are on none, or if there are too few to save any."""
    if not line.saves:
        return None
    values = [known[m] for m in line.anchors]
    table = np.array(values).reshape(len(line.offsets), line.each, 2)
    more = np.diff(table, axis=1)
    if np.ptp(more, axis=(0, 1)).max() > SAME * table.max():
        return None
    every = line.anchors[1] - line.anchors[0]
    row = np.searchsorted(line.offsets, (line.rest - line.anchors[0] + line.offsets[0]) % every)
    turns = (line.rest - np.array(line.anchors[:: line.each])[row]) // every
    return np.asarray(table[row, 0] + more[row, 0] * turns[:, None])
