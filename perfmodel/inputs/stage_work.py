"""What the devices of each stage do: its layers, its actions, and what it passes on."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from perfmodel.base import files
from perfmodel.base.arrays import Ids
from perfmodel.base.errors import InputError
from perfmodel.inputs.passes import accumulated, one_pass
from perfmodel.inputs.replica import Replica, Stage, Tied
from perfmodel.inputs.stages import chunks_of
from perfmodel.inputs.workload import Workload, WorkloadLayer, expanded
from perfmodel.pipelines import Schedule, check, read, schedule as schedule_named
from perfmodel.pipelines.rounds import Round, round_of as round_of_schedule

LONG = 3
"""Batches that are drawn of schedules without a flush; each stage has then all its versions."""

EMBEDDING, HEAD = "embedding", "head"
"""Names of the first layer of a language model, and of that which may share its table."""


class StageWork(NamedTuple):
    """A stage with its workload: that of an update, of its layers only."""

    stage: Stage
    workload: Workload


@functools.lru_cache(maxsize=64)
def schedule_of(replica: Replica, micro_batches: int) -> Schedule:
    """Return the schedule of a replica; without a flush, its begin, of several batches.

    ``micro_batches`` are those of an update.

    Raises
    ------
    InputError : there is no such schedule, or not for these numbers.
    """
    if files.looks_like_path(replica.schedule):
        schedule = read(replica.schedule)
        _check_file(schedule, replica, micro_batches)
    else:
        schedule = _named(replica, micro_batches)
    if schedule.copies > 1:
        raise InputError(
            f"schedule: {replica.schedule} has two copies of each stage, which replicas cannot have"
        )
    return schedule


def _named(replica: Replica, micro_batches: int) -> Schedule:
    """Return the schedule of that name."""
    name, stages, chunks = replica.schedule, replica.pipeline, replica.virtual_stages
    if name == "pipedream":
        if micro_batches != 1:
            raise InputError(
                f"micro_batches: {name} updates after each one, got {micro_batches} (allowed: 1; "
                "pipedream_2bw updates after several)"
            )
        return schedule_named(name, stages, LONG * stages, chunks=chunks)
    if name == "pipedream_2bw":
        if micro_batches < stages:
            raise InputError(
                f"micro_batches: {name} needs at least as many for an update as there are stages, "
                f"{stages}, got {micro_batches}"
            )
        many = LONG * micro_batches
        return schedule_named(name, stages, many, chunks=chunks, batch=micro_batches)
    return schedule_named(name, stages, micro_batches, chunks=chunks)


@functools.lru_cache(maxsize=64)
def round_of(replica: Replica, micro_batches: int) -> Round:
    """Return what the stages of a replica repeat, and end with an update.

    Raises
    ------
    InputError : see :func:`schedule_of`.
    """
    return round_of_schedule(schedule_of(replica, micro_batches))


def _check_file(schedule: Schedule, replica: Replica, micro_batches: int) -> None:
    """Check that the schedule in a file is of a replica with so many micro-batches."""
    check(schedule)
    for name, has, wanted in (
        ("pipeline", schedule.ranks, replica.pipeline),
        ("virtual_stages", schedule.stages // schedule.ranks, replica.virtual_stages),
        ("micro_batches", schedule.micro_batches, micro_batches),
    ):
        if has != wanted:
            raise InputError(f"{name}: {wanted}, but {replica.schedule} has {has}")


def order_of(stage: Stage, micro_batches: int) -> tuple[Ids, Ids, Ids]:
    """Return kind, chunk of the stage and micro-batch of each action of a round, (actions,)."""
    return actions_of(round_of(stage.replica, micro_batches).schedule, stage.number)


def actions_of(schedule: Schedule, rank: int) -> tuple[Ids, Ids, Ids]:
    """Return kind, chunk of the rank and micro-batch of each of its actions, (actions,)."""
    where = slice(schedule.begins[rank], schedule.begins[rank + 1])
    held = np.array(schedule.held(rank))
    chunk = np.searchsorted(held, schedule.stage[where])
    return (
        schedule.kind[where].astype(np.int64),
        chunk,
        schedule.micro_batch[where].astype(np.int64),
    )


def stages_of(workload: Workload, replica: Replica) -> list[StageWork]:
    """Return every stage of a replica with its workload.

    The optimizer's time is divided by the bytes of the gradients.

    Raises
    ------
    InputError : there are too few layers, or no such schedule.
    """
    one = one_pass(expanded(workload))
    chunks = chunks_of(one.layers, replica)
    schedule = schedule_of(replica, workload.accumulation)
    table, head = tied_bytes(one.layers), len(one.layers) - 1
    if schedule.updates.kind != "flush":
        table = ()  # such stages exchange nothing but activations and their gradients
    if table:
        head = [layer.name for layer in one.layers].index(HEAD)
        layers = list(one.layers)
        layers[head] = msgspec.structs.replace(layers[head], tensor_bytes=table)
        copied = msgspec.structs.replace(one, layers=tuple(layers))
    works = []
    for number in range(replica.pipeline):
        held = [chunks[chunk] for chunk in schedule.held(number)]
        counts = tuple(len(chunk) for chunk in held)
        stage = Stage(number, replica, counts)
        begins, ends = held[0].start == 0, head in held[-1]
        if table and begins != ends:
            place = 0 if begins else sum(counts[:-1]) + head - held[-1].start
            stage = Stage(number, replica, counts, tied=Tied(place, sum(table)))
        part = copied if table and ends and not begins else one
        works.append(StageWork(stage, _part(workload, part, held, number)))
    return works


def tied_bytes(layers: Sequence[WorkloadLayer]) -> tuple[float, ...]:
    """Return the tensors of the embedding if the head shares them.

    Then the last stage has a copy, and the gradients of both are summed (Megatron-LM).
    """
    head = next((layer for layer in layers if layer.name == HEAD), None)
    shares = head is not None and not head.tensor_bytes and layers[0].name == EMBEDDING
    return layers[0].tensor_bytes if shares else ()


def _part(workload: Workload, one: Workload, held: list[range], number: int) -> Workload:
    """Return the workload of the layers that a stage holds."""
    layers = tuple(one.layers[k] for chunk in held for k in chunk)
    sizes = [size for layer in layers for size in layer.tensor_bytes]
    total = sum(sizes)
    if not total:
        raise InputError(
            f"stage_layers: stage {number} has no parameters (its first layer is "
            f"{layers[0].name!r}); give it more layers"
        )
    share = total / one.gradient_bytes
    kept = sum(layer.activation_bytes for layer in layers)
    of_pass = msgspec.structs.replace(
        one,
        layers=layers,
        forward_s=sum(layer.forward_s for layer in layers),
        backward_s=sum(layer.backward_s for layer in layers),
        optimizer_s=one.optimizer_s * share,
        data_loading_s=one.data_loading_s if number == 0 else 0.0,
        gradient_bytes=total,
        tensors=len(sizes),
        largest_tensor_bytes=max(sizes, default=0.0),
        activation_bytes=kept,
        optimizer_state_bytes=one.optimizer_state_bytes * share,
        frozen_bytes=one.frozen_bytes * share,
        buffer_bytes=one.buffer_bytes * len(layers) / len(one.layers),
    )
    return accumulated(of_pass, workload.accumulation)


def boundary_bytes(workload: Workload, replica: Replica) -> list[float]:
    """Return the bytes that each chunk passes on to the next per micro-batch, (chunks - 1,)."""
    one = one_pass(expanded(workload))
    return [one.layers[chunk.stop - 1].passed_on_bytes for chunk in chunks_of(one.layers, replica)][
        :-1
    ]
