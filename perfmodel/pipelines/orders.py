"""Schedules without split backward passes: GPipe, 1F1B, interleaved 1F1B, looped BFS, PipeDream."""

from __future__ import annotations

import numpy as np

from perfmodel.base.arrays import Ids
from perfmodel.base.errors import InputError, whole_number
from perfmodel.pipelines.actions import BACKWARD, FORWARD, INPUT, WEIGHT, Schedule, Updates

MOST_ACTIONS = 10**7
"""Largest schedule that is built."""

Order = tuple[Ids, Ids, Ids]
"""Kinds, stages and micro-batches of the actions of one rank."""


def gpipe(ranks: int, micro_batches: int) -> Schedule:
    """All forward passes, then all backward passes, both in the order of the micro-batches.

    Source: Huang et al., GPipe, NeurIPS 2019; ``ScheduleGPipe`` of torch.distributed.pipelining.
    """
    sizes(ranks, micro_batches)
    micro_batch = np.arange(micro_batches)
    runs = [one_f_one_b(micro_batch, rank, micro_batches) for rank in range(ranks)]
    return assembled("gpipe", runs, loop(ranks, 1), micro_batches)


def one_forward_one_backward(ranks: int, micro_batches: int) -> Schedule:
    """1F1B: rank r begins with p - r - 1 forward passes, then alternates.

    Source: Narayanan et al., PipeDream-Flush in Memory-Efficient Pipeline-Parallel DNN Training,
    ICML 2021; Fan et al., DAPPLE, PPoPP 2021; Megatron-LM without interleaving.
    """
    sizes(ranks, micro_batches)
    micro_batch = np.arange(micro_batches)
    runs = [one_f_one_b(micro_batch, r, ranks - r - 1) for r in range(ranks)]
    return assembled("1f1b", runs, loop(ranks, 1), micro_batches)


def interleaved_1f1b(
    ranks: int, micro_batches: int, chunks: int = 2, group: int | None = None
) -> Schedule:
    """1F1B with several chunks a rank, which take turns in groups of micro-batches.

    ``group`` is the number of micro-batches after which a rank goes to its next chunk
    (``microbatch_group_size_per_vp_stage`` of Megatron-LM). By default as PyTorch does: the number
    of micro-batches is divided into as many equal rounds as there are whole ones of ``ranks``; at
    multiples of ``ranks`` it is that number, which is Megatron-LM's default.

    Source: Narayanan et al., Efficient Large-Scale Language Model Training on GPU Clusters Using
    Megatron-LM, SC 2021; ``ScheduleInterleaved1F1B`` of torch.distributed.pipelining.

    Raises
    ------
    InputError : the micro-batches cannot be divided so; the text names possible numbers.
    """
    sizes(ranks, micro_batches, chunks)
    group = rounds("interleaved_1f1b", ranks, micro_batches, group)
    chunk, micro_batch = turns(micro_batches, chunks, group)
    runs = []
    for rank in range(ranks):
        warm = 2 * (ranks - rank - 1) + (chunks - 1) * group
        stage, back = chunk * ranks + rank, (chunks - 1 - chunk) * ranks + rank
        runs.append(alternating(stage, back, micro_batch, warm))
    return assembled("interleaved_1f1b", runs, loop(ranks, chunks), micro_batches)


def looped_bfs(ranks: int, micro_batches: int, chunks: int = 2) -> Schedule:
    """Breadth first: each chunk runs all micro-batches before the next; backward in reverse order.

    Source: Lamy-Poirier, Breadth-First Pipeline Parallelism, MLSys 2023; ``ScheduleLoopedBFS`` of
    torch.distributed.pipelining, which runs the newest micro-batch first backwards.
    """
    sizes(ranks, micro_batches, chunks)
    chunk, micro_batch = turns(micro_batches, chunks, micro_batches)
    runs = []
    for rank in range(ranks):
        stage = chunk * ranks + rank
        kind = np.repeat([FORWARD, BACKWARD], len(stage))
        backward = stage[::-1], micro_batch[::-1]
        runs.append((kind, np.append(stage, backward[0]), np.append(micro_batch, backward[1])))
    return assembled("looped_bfs", runs, loop(ranks, chunks), micro_batches)


def pipedream(ranks: int, micro_batches: int) -> Schedule:
    """Asynchronous 1F1B: each stage updates its weights after every backward pass, and none waits.

    These are the first ``micro_batches`` of an endless run. Backward passes read the weights that
    their forward passes read (weight stashing).

    Source: Narayanan et al., PipeDream, SOSP 2019.
    """
    updates = Updates("stash", 1)
    return _endless("pipedream", ranks, micro_batches, updates)


def pipedream_2bw(ranks: int, micro_batches: int, batch: int | None = None) -> Schedule:
    """Asynchronous 1F1B with two versions of weights, and an update every ``batch`` micro-batches.

    ``batch`` is the number of ranks by default, the least for which two versions suffice. These are
    the first ``micro_batches`` of an endless run.

    Source: Narayanan et al., Memory-Efficient Pipeline-Parallel DNN Training, ICML 2021.

    Raises
    ------
    InputError : the batch is smaller than the number of ranks, or not a part of the micro-batches.
    """
    sizes(ranks, micro_batches)
    batch = whole_number("batch", ranks if batch is None else batch)
    if batch < ranks:
        raise InputError(
            f"batch: pipedream_2bw needs at least as many micro-batches an update as ranks "
            f"({ranks}), got {batch}"
        )
    if micro_batches % batch:
        raise InputError(
            f"micro_batches: pipedream_2bw updates every {batch} micro-batches, and "
            f"{micro_batches} is no multiple (possible: {near(micro_batches, batch)})"
        )
    return _endless("pipedream_2bw", ranks, micro_batches, Updates("double", batch))


def _endless(name: str, ranks: int, micro_batches: int, updates: Updates) -> Schedule:
    """1F1B with other updates."""
    synchronous = one_forward_one_backward(ranks, micro_batches)
    columns = synchronous.kind, synchronous.stage, synchronous.micro_batch, synchronous.begins
    return Schedule(
        name, *columns, synchronous.holders, synchronous.copy_of, synchronous.joined, updates
    )


# -- shared by all orders -------------------------------------------------------------------------


def sizes(ranks: int, micro_batches: int, chunks: int = 1) -> None:
    """Check the numbers of a schedule.

    Raises
    ------
    InputError : one is no whole number of at least 1, or there are too many actions.
    """
    numbers = {"ranks": ranks, "micro_batches": micro_batches, "chunks": chunks}
    for name, value in numbers.items():
        whole_number(name, value, at_most=MOST_ACTIONS)
    actions = 2 * ranks * micro_batches * chunks
    if actions > MOST_ACTIONS:
        raise InputError(f"ranks, micro_batches, chunks: {actions} actions (most: {MOST_ACTIONS})")


def rounds(name: str, ranks: int, micro_batches: int, group: int | None) -> int:
    """Return the micro-batches of a group: the given number, or PyTorch's for equal rounds.

    Raises
    ------
    InputError : it does not fit to the numbers of ranks and micro-batches.
    """
    if group is None:
        count = max(1, micro_batches // ranks)
        if micro_batches % count:
            fits = [m for m in range(ranks, 2 * micro_batches + ranks) if m % (m // ranks) == 0]
            below = max((m for m in fits if m < micro_batches), default=ranks)
            above = min(m for m in fits if m > micro_batches)
            raise InputError(
                f"micro_batches: {name} with {ranks} ranks divides them into {count} equal rounds, "
                f"and {micro_batches} is no multiple (possible: {below}, {above})"
            )
        return micro_batches // count
    whole_number("group", group)
    if not ranks <= group <= micro_batches:
        raise InputError(
            f"group: must be from {ranks} (ranks) to {micro_batches} (micro_batches), got {group}"
        )
    if 0 < (rest := micro_batches % group) < ranks:
        raise InputError(
            f"micro_batches: {micro_batches} leaves a last group of {rest}, fewer than the {ranks} "
            f"ranks (possible with group {group}: {near(micro_batches, group)})"
        )
    return group


def near(value: int, step: int) -> str:
    """Return the multiples below and above a number, as text.

    >>> near(11, 4), near(3, 4)
    ('8, 12', '4')
    """
    below = value // step * step
    return f"{below}, {below + step}" if below else str(step)


def loop(ranks: int, chunks: int) -> Ids:
    """Holders of stages that go around: stage s is on rank s modulo the ranks."""
    return np.tile(np.arange(ranks), chunks)[np.newaxis]


def turns(micro_batches: int, chunks: int, group: int) -> tuple[Ids, Ids]:
    """Chunk and micro-batch of each pass of a rank: groups of micro-batches, chunk by chunk."""
    micro_batch = np.arange(micro_batches)
    chunk = np.repeat(np.arange(chunks), micro_batches)
    micro_batch = np.tile(micro_batch, chunks)
    order = np.lexsort((micro_batch, chunk, micro_batch // group))
    return chunk[order], micro_batch[order]


def one_f_one_b(micro_batch: Ids, stage: int, warm: int) -> Order:
    """Order of a rank with one stage: ``warm`` forward passes, then alternating."""
    stages = np.full(len(micro_batch), stage)
    return alternating(stages, stages, micro_batch, warm)


def alternating(
    stage: Ids, back: Ids, micro_batch: Ids, warm: int, delay: int | None = None
) -> Order:
    """Order of a rank: ``warm`` forward passes, then a forward and a backward pass in turn.

    ``stage`` and ``back`` are the stages of the passes forwards and backwards. With ``delay``,
    backward passes are split, and from pair ``delay`` on each is followed by the oldest pending
    gradients of weights.
    """
    count = np.arange(len(stage))
    warm = min(warm, len(stage))
    pair = warm + 3 * count
    keys = [np.where(count < warm, count, warm + 3 * (count - warm)), pair + 1]
    kinds, stages = [FORWARD, BACKWARD], [stage, back]
    if delay is not None:
        kinds, stages = [FORWARD, INPUT, WEIGHT], [stage, back, back]
        keys.append(pair + 3 * delay + 2)
    order = np.argsort(np.concatenate(keys), kind="stable")
    kind = np.repeat(kinds, len(stage))
    return kind[order], np.concatenate(stages)[order], np.tile(micro_batch, len(kinds))[order]


def assembled(
    name: str,
    runs: list[Order],
    holders: Ids,
    micro_batches: int,
    copy_of: Ids | None = None,
) -> Schedule:
    """Return the schedule of ranks with these orders."""
    kind, stage, micro_batch = (np.concatenate(columns) for columns in zip(*runs, strict=True))
    return Schedule(
        name,
        kind.astype(np.int8),
        stage.astype(np.int32),
        micro_batch.astype(np.int32),
        np.cumsum([0, *(len(run[0]) for run in runs)], dtype=np.int64),
        holders.astype(np.int32),
        (np.zeros(micro_batches) if copy_of is None else copy_of).astype(np.int32),
        np.zeros(len(kind), dtype=np.bool_),
    )
