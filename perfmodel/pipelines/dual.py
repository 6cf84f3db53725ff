"""DualPipe and DualPipeV: forward and backward passes of two micro-batches run together.

Source: DeepSeek-V3 Technical Report, 2024 (arXiv:2412.19437), and deepseek-ai/DualPipe.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from perfmodel.base.arrays import Ids
from perfmodel.base.errors import InputError
from perfmodel.pipelines.actions import BACKWARD, FORWARD, INPUT, WEIGHT, Flags, Schedule
from perfmodel.pipelines.orders import Order, assembled, near, sizes
from perfmodel.pipelines.zero_bubble import two_chunks, v_shape


def dualpipe(ranks: int, micro_batches: int) -> Schedule:
    """Half of the micro-batches go down the ranks, the other half up: two copies of each stage.

    Rank r holds stage r for the first half of the micro-batches, stage p - 1 - r for the second.

    Raises
    ------
    InputError : the number of ranks is odd; that of micro-batches is odd, or less than 2 p.
    """
    sizes(ranks, micro_batches)
    if ranks % 2:
        raise InputError(
            f"ranks: dualpipe needs an even number, got {ranks} (possible: {near(ranks, 2)})"
        )
    if micro_batches % 2 or micro_batches < 2 * ranks:
        raise InputError(
            f"micro_batches: dualpipe needs an even number, at least twice the {ranks} ranks, got "
            f"{micro_batches} (possible: {max(2 * ranks, micro_batches + 1)} and more)"
        )
    half, runs, flags = micro_batches // 2, [], []
    for rank in range(ranks):
        mirrored = ranks - 1 - rank
        kind, direction, micro_batch, joined = _order(ranks // 2, min(rank, mirrored), half)
        if rank > mirrored:  # what comes from the nearer end is the second half here
            direction = 1 - direction
        stage = np.where(direction == 0, rank, mirrored)
        runs.append((kind, stage, micro_batch + half * direction))
        flags.append(joined)
    down = np.arange(ranks)
    copy_of = np.repeat([0, 1], half)
    return _joined("dualpipe", runs, np.stack([down, down[::-1]]), copy_of, flags)


def dualpipe_v(ranks: int, micro_batches: int, chunks: int = 2) -> Schedule:
    """DualPipe cut in half and folded: two chunks a rank in the shape of a V, one copy of each.

    Source: also ``ScheduleDualPipeV`` of torch.distributed.pipelining.

    Raises
    ------
    InputError : ``chunks`` is not 2, or there are fewer micro-batches than stages.
    """
    two_chunks("dualpipe_v", chunks)
    sizes(ranks, micro_batches, chunks)
    if micro_batches < 2 * ranks:
        raise InputError(
            f"micro_batches: dualpipe_v needs at least as many as stages, {2 * ranks} with {ranks} "
            f"ranks, got {micro_batches}"
        )
    runs, flags = [], []
    for rank in range(ranks):
        kind, chunk, micro_batch, joined = _order(ranks, rank, micro_batches)
        runs.append((kind, np.where(chunk == 0, rank, 2 * ranks - 1 - rank), micro_batch))
        flags.append(joined)
    copy_of = np.zeros(micro_batches, dtype=np.int64)
    return _joined("dualpipe_v", runs, v_shape(ranks), copy_of, flags)


def _joined(
    name: str, runs: list[Order], holders: Ids, copy_of: Ids, flags: list[Flags]
) -> Schedule:
    """Return the schedule of these orders, whose flagged actions run with the next one."""
    schedule = assembled(name, runs, holders, len(copy_of), copy_of)
    return replace(schedule, joined=np.concatenate(flags))


def _order(ranks: int, rank: int, micro_batches: int) -> tuple[Ids, Ids, Ids, Flags]:
    """Kinds, chunks (or directions) and micro-batches of a rank, and which run with the next.

    ``ranks`` is the number of ranks of one arm of the V, ``micro_batches`` that of one direction.
    The phases are those of DualPipe: forward passes of one chunk; of both; the zero-bubble part;
    pairs; pairs without new micro-batches; backward passes, in the second half split; and the
    weights' gradients that are left.
    """
    ahead = ranks - rank - 1
    pair_0, pair_1 = [(FORWARD, 0, 1), (BACKWARD, 1, 0)], [(FORWARD, 1, 1), (BACKWARD, 0, 0)]
    steps = [(FORWARD, 0, 0)] * (2 * ahead)
    steps += [(FORWARD, 0, 0), (FORWARD, 1, 0)] * (rank + 1)
    steps += [(INPUT, 1, 0), (WEIGHT, 1, 0), (FORWARD, 1, 0)] * ahead
    pairs = micro_batches - 2 * ranks + rank + 1
    first = pair_0 if ahead else [(FORWARD, 0, 0), (BACKWARD, 1, 0)]  # one after the other
    steps += [*first, *pair_1, *[*pair_0, *pair_1] * (pairs - 1)] if pairs else []
    steps += [(BACKWARD, 1, 0), *pair_1] * ahead
    whole = rank + 1  # of the last backward passes, those that are not split
    for i in range(2 * (rank + 1)):
        steps.append((BACKWARD if i < whole else INPUT, 1 - i % 2, 0))
    steps += [(WEIGHT, -1, 0), (INPUT, 0, 0)] * ahead
    steps += [(WEIGHT, -1, 0)] * (rank + 1)
    return _numbered(steps)


def _numbered(steps: list[tuple[int, int, int]]) -> tuple[Ids, Ids, Ids, Flags]:
    """Give each step the next micro-batch of its chunk, and pending weights the oldest inputs'."""
    forwards, backwards, rows = [0, 0], [0, 0], []
    pending: list[tuple[int, int]] = []
    for kind, chunk, joined in steps:
        if kind == WEIGHT:
            chunk, micro_batch = pending.pop(0)
        elif kind == FORWARD:
            micro_batch, forwards[chunk] = forwards[chunk], forwards[chunk] + 1
        else:
            micro_batch, backwards[chunk] = backwards[chunk], backwards[chunk] + 1
            if kind == INPUT:
                pending.append((chunk, micro_batch))
        rows.append((kind, chunk, micro_batch, joined))
    kinds, chunks, micro_batches, flags = np.array(rows).T
    return kinds, chunks, micro_batches, flags.astype(np.bool_)
