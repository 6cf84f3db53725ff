"""Which layers each stage of a pipeline has."""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Sequence

from perfmodel.base.errors import InputError
from perfmodel.inputs.recomputation import block_named
from perfmodel.inputs.replica import Replica
from perfmodel.inputs.workload import WorkloadLayer

BLOCK = re.compile(r"(blocks\.\d+)\.")
"""Start of the name of a layer in a block of a language model."""


def chunks_of(layers: Sequence[WorkloadLayer], replica: Replica) -> tuple[range, ...]:
    """Return the layers of each chunk of a pipeline, in order.

    Blocks of a language model stay whole; what is before them is in the first chunk, and what is
    after them in the last. Without blocks, layers are divided. Balanced chunks all have parameters.

    Raises
    ------
    InputError : there are too few layers, or others than ``stage_layers`` says.
    """
    names = tuple([layer.name for layer in layers])
    if replica.balance:
        return _in_balance(layers, names, replica)
    return _in_order(names, replica.pipeline, replica.virtual_stages, replica.stage_layers)


def _in_balance(
    layers: Sequence[WorkloadLayer], names: tuple[str, ...], replica: Replica
) -> tuple[range, ...]:
    """Return chunks whose slowest is as fast as possible."""
    units, blocks = _units(names)
    _check_number(len(units), len(blocks), replica.pipeline, replica.virtual_stages)
    units = tuple(_with_parameters(layers, units))
    if len(units) < replica.chunks:
        raise InputError(
            f"pipeline: {replica.chunks} chunks, but only {len(units)} layers have parameters"
        )
    return _ranges(_balanced([_seconds(layers, unit) for unit in units], replica.chunks), units)


def _check_number(units: int, blocks: int, pipeline: int, virtual_stages: int) -> None:
    """Raise InputError if there are too few layers, or blocks, for chunks."""
    chunks = pipeline * virtual_stages
    if blocks < chunks:
        raise InputError(
            f"pipeline: {chunks} chunks of layers (pipeline {pipeline} x virtual_stages "
            f"{virtual_stages}), but there are {blocks} {_called(units, blocks)}"
        )


def _called(units: int, blocks: int) -> str:
    """Return what is divided into chunks."""
    return "blocks" if blocks < units else "layers"


@functools.lru_cache(maxsize=1024)
def _in_order(
    names: tuple[str, ...], pipeline: int, virtual_stages: int, given: tuple[int, ...]
) -> tuple[range, ...]:
    """Return chunks of equal numbers of layers, or of ``given`` ones."""
    units, blocks = _units(names)
    _check_number(len(units), len(blocks), pipeline, virtual_stages)
    many, chunks = len(blocks), pipeline * virtual_stages
    counts = given or tuple(many * (k + 1) // chunks - many * k // chunks for k in range(chunks))
    if sum(counts) == len(units) != many:  # the ends count as layers
        return _ranges(counts, units)
    if sum(counts) != many:
        what = _called(len(units), many)
        raise InputError(f"stage_layers: {sum(counts)} in all, but there are {many} {what}")
    if len(counts) == 1:
        return (range(len(names)),)
    before, after = blocks.start, len(units) - blocks.stop
    return _ranges((counts[0] + before, *counts[1:-1], counts[-1] + after), units)


@functools.lru_cache(maxsize=32)
def _units(names: tuple[str, ...]) -> tuple[tuple[range, ...], range]:
    """Return what stays whole, the layers of each block, and all others one by one; and which of
    these units are blocks, all if there are none."""
    matches = [BLOCK.match(name) for name in names]
    keys = [match[1] if match else f"layer {k}" for k, match in enumerate(matches)]
    bounds = [0, *(k for k in range(1, len(keys)) if keys[k] != keys[k - 1]), len(keys)]
    units = tuple(range(*pair) for pair in itertools.pairwise(bounds))
    numbers = [k for k, unit in enumerate(units) if matches[unit.start]]
    blocks = range(numbers[0], numbers[-1] + 1) if numbers else range(len(units))
    return units, blocks


def _with_parameters(layers: Sequence[WorkloadLayer], units: Sequence[range]) -> list[range]:
    """Return units that all have parameters: others join the one before, or the first that has."""
    joined: list[range] = []
    start = units[0].start
    for unit in units:
        if any(layers[k].tensor_bytes for k in unit):
            joined.append(range(start, unit.stop))
        elif joined:
            joined[-1] = range(joined[-1].start, unit.stop)
        start = unit.stop if joined else start
    return joined or [range(units[0].start, units[-1].stop)]


def _seconds(layers: Sequence[WorkloadLayer], unit: range) -> float:
    return sum(layers[k].forward_s + layers[k].backward_s for k in unit)


def _ranges(counts: Sequence[int], units: Sequence[range]) -> tuple[range, ...]:
    """Return the layers of each chunk, which has ``counts`` units."""
    ends = list(itertools.accumulate(counts))
    starts = [0, *ends[:-1]]
    return tuple(
        range(units[start].start, units[end - 1].stop)
        for start, end in zip(starts, ends, strict=True)
    )


def _balanced(seconds: Sequence[float], parts: int) -> list[int]:
    """Return how many units each part has, so that the slowest part is as fast as possible.

    Dynamic programming over the first units, as for linear partitions.
    """
    total = [0.0, *itertools.accumulate(seconds)]
    many = len(seconds)
    worst = [total[k] for k in range(many + 1)]
    cut: list[list[int]] = []
    for part in range(2, parts + 1):
        best, at = [float("inf")] * (many + 1), [0] * (many + 1)
        for end in range(part, many + 1):
            for start in range(part - 1, end):
                slowest = max(worst[start], total[end] - total[start])
                if slowest < best[end]:
                    best[end], at[end] = slowest, start
        worst = best
        cut.append(at)
    ends = [many]
    for at in reversed(cut):
        ends.append(at[ends[-1]])
    ends = [0, *reversed(ends)] if parts > 1 else [0, many]
    ends = sorted(set(ends))
    return [end - start for start, end in itertools.pairwise(ends)]


@functools.lru_cache(maxsize=32)
def blocks_before(names: tuple[str, ...]) -> tuple[int, ...]:
    """Return how many blocks there are before each of the layers with these names, (layers,)."""
    known: set[str] = set()
    counts = []
    for name in names:
        counts.append(len(known))
        known |= {block_named(name)} - {""}
    return tuple(counts)
