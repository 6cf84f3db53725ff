"""Zero-bubble schedules: backward passes in two parts, of which the second fills idle time.

Source: Qi, Wan, Huang and Lin, Zero Bubble Pipeline Parallelism, 2023 (arXiv:2401.10241).
"""

from __future__ import annotations

import numpy as np

from perfmodel.base.arrays import Ids
from perfmodel.base.errors import InputError
from perfmodel.pipelines.actions import FORWARD, INPUT, WEIGHT, Schedule
from perfmodel.pipelines.orders import Order, alternating, assembled, loop, rounds, sizes, turns


def zb_h1(ranks: int, micro_batches: int) -> Schedule:
    """1F1B with the weights' gradients of rank r delayed by r passes: memory of 1F1B on all ranks.

    Source: Qi et al. 2023, section 2.1; ``ScheduleInterleavedZeroBubble`` of
    torch.distributed.pipelining with one chunk, which is also called ZB1P.
    """
    sizes(ranks, micro_batches)
    return _interleaved("zb_h1", ranks, micro_batches, 1, micro_batches)


def zb_h2(ranks: int, micro_batches: int) -> Schedule:
    """Twice as many forward passes at the beginning as ZB-H1: no bubble, twice the memory.

    Rank r begins with 2 (p - r - 1) forward passes and delays the weights' gradients by 2 r.

    Source: Qi et al. 2023, section 2.2.
    """
    sizes(ranks, micro_batches)
    micro_batch = np.arange(micro_batches)
    runs = []
    for rank in range(ranks):
        stage = np.full(micro_batches, rank)
        runs.append(alternating(stage, stage, micro_batch, 2 * (ranks - rank - 1), 2 * rank))
    return assembled("zb_h2", runs, loop(ranks, 1), micro_batches)


def interleaved_zb(ranks: int, micro_batches: int, chunks: int = 2) -> Schedule:
    """Interleaved 1F1B with split backward passes, and half the forward passes a hop to begin with.

    Source: ``ScheduleInterleavedZeroBubble`` of torch.distributed.pipelining.

    Raises
    ------
    InputError : the micro-batches cannot be divided into equal rounds.
    """
    sizes(ranks, micro_batches, chunks)
    group = rounds("interleaved_zb", ranks, micro_batches, None)
    return _interleaved("interleaved_zb", ranks, micro_batches, chunks, group)


def _interleaved(name: str, ranks: int, micro_batches: int, chunks: int, group: int) -> Schedule:
    """Return 1F1B with split backward passes, whose second part waits for as many as the rank."""
    chunk, micro_batch = turns(micro_batches, chunks, group)
    runs = []
    for rank in range(ranks):
        warm = ranks - rank - 1 + (chunks - 1) * group
        stage, back = chunk * ranks + rank, (chunks - 1 - chunk) * ranks + rank
        runs.append(alternating(stage, back, micro_batch, warm, rank))
    return assembled(name, runs, loop(ranks, chunks), micro_batches)


def zb_v(ranks: int, micro_batches: int, chunks: int = 2) -> Schedule:
    """Two chunks a rank in the shape of a V: rank r has stages r and 2 p - 1 - r.

    The order is the one for forward passes that take as long as each part of backward passes;
    with other times a search can do better. With fewer than 2 p - 1 micro-batches it is that of
    2 p - 1 without those that are missing, as in PyTorch.

    Source: Qi et al. 2023, section 6; ``ScheduleZBVZeroBubble`` of torch.distributed.pipelining.

    Raises
    ------
    InputError : ``chunks`` is not 2.
    """
    two_chunks("zb_v", chunks)
    sizes(ranks, micro_batches, chunks)
    full = max(2 * ranks - 1, micro_batches)
    runs = [_v_order(ranks, rank, full, micro_batches) for rank in range(ranks)]
    return assembled("zb_v", runs, v_shape(ranks), micro_batches)


def two_chunks(name: str, chunks: int) -> None:
    """Check the number of chunks of schedules in the shape of a V."""
    if chunks != 2:
        raise InputError(f"chunks: {name} has exactly 2 chunks a rank, got {chunks!r}")


def v_shape(ranks: int) -> Ids:
    """Holders of stages that go down the ranks and back up."""
    return np.append(np.arange(ranks), np.arange(ranks)[::-1])[np.newaxis]


def _v_order(ranks: int, rank: int, full: int, micro_batches: int) -> Order:
    """Order of a rank in ZB-V: steps of a kind and a chunk, each with the next micro-batch."""
    whole = [(INPUT, 0), (WEIGHT, 0)], [(INPUT, 1), (WEIGHT, 1)]
    steps = [(FORWARD, 0)] * (2 * (ranks - rank) - 1)
    steps += [(FORWARD, 1), (FORWARD, 0)] * rank
    steps += [(FORWARD, 1), *whole[1]] * (ranks - rank)
    waiting = full - (2 * ranks - 1 - rank)  # forward passes of the first chunk that are left
    steps += [(FORWARD, 0), *whole[0], (FORWARD, 1), *whole[1]] * waiting
    steps += [*whole[0], (FORWARD, 1), *whole[1]] * (ranks - rank - 1)
    steps += [(INPUT, 0), (INPUT, 1)] * rank
    steps += [(INPUT, 0), (WEIGHT, 0)] * (ranks - rank)
    for chunk in (1, 0):  # the weights' gradients that are left
        steps += [(WEIGHT, chunk)] * (full - steps.count((WEIGHT, chunk)))
    kind, chunk = np.array(steps).T
    micro_batch = np.empty_like(kind)
    for key in range(2 * (WEIGHT + 1)):
        same = kind * 2 + chunk == key
        micro_batch[same] = np.arange(same.sum())
    there = micro_batch < micro_batches
    stage = np.where(chunk == 0, rank, 2 * ranks - 1 - rank)
    return kind[there], stage[there], micro_batch[there]
