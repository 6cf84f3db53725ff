"""Pictures of schedules as text: one row per rank, one cell per unit of time."""

from __future__ import annotations

import numpy as np

from perfmodel.base.errors import InputError, whole_number
from perfmodel.pipelines.actions import KINDS, Schedule
from perfmodel.pipelines.timeline import timeline

MOST_CELLS = 100_000
"""Largest picture, in cells."""

MARKS = {"F": "", "B": "b", "I": "i", "W": "w"}
"""What follows the number of a micro-batch, by kind of action."""


def draw(schedule: Schedule, forward: int = 1, backward: int = 2) -> str:
    """Return a picture: which micro-batch each rank computes in each unit of time.

    A cell has the number of the micro-batch, one ``'`` for each chunk of the rank below, and ``b``
    for a backward pass (``i`` and ``w`` for its parts). ``-`` continues the cell before, ``.`` is
    idle time. ``forward`` and ``backward`` are the units that passes take; the two parts of a
    backward pass share them, the first gets what is left. Joined actions are drawn as one cell,
    with ``&``, and last as long as both.

    >>> from perfmodel.pipelines import schedule
    >>> print(draw(schedule("1f1b", 2, 3), 1, 1))
    0  1  .  0b 2  1b .  2b
    .  0  0b 1  1b 2  2b .

    Raises
    ------
    InputError : a duration is no whole number from 1 on (``backward`` from 2 if it is split), or
        the picture is too large.
    """
    whole_number("forward", forward)
    whole_number("backward", backward, at_least=2 if schedule.splits else 1)
    weight = backward // 2
    line = timeline(schedule, forward, backward, backward - weight, weight)
    width = round(float(line.makespan_s))
    if width * schedule.ranks > MOST_CELLS:
        raise InputError(
            f"{schedule.name}: a picture of {width} x {schedule.ranks} cells (most: {MOST_CELLS})"
        )
    begins, ends = np.rint(line.start_s).astype(int), np.rint(line.end_s).astype(int)
    cells = [["."] * width for _ in range(schedule.ranks)]
    for i in range(len(schedule)):
        rank, begin = int(schedule.rank[i]), int(begins[i])
        if i and schedule.joined[i - 1]:
            cells[rank][begin] += f"&{_label(schedule, i)}"
            continue
        cells[rank][begin : ends[i]] = ["-"] * (ends[i] - begin)
        cells[rank][begin] = _label(schedule, i)
    size = max(len(cell) for row in cells for cell in row)
    return "\n".join(" ".join(cell.ljust(size) for cell in row).rstrip() for row in cells)


def _label(schedule: Schedule, i: int) -> str:
    """Text of an action: micro-batch, chunk and kind."""
    chunk = schedule.held(int(schedule.rank[i])).index(int(schedule.stage[i]))
    return f"{schedule.micro_batch[i]}{chr(39) * chunk}{MARKS[KINDS[schedule.kind[i]]]}"
