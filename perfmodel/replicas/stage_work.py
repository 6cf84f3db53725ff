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
from perfmodel.base.same import kept
from perfmodel.inputs.passes import accumulated, one_pass
from perfmodel.inputs.replica import Replica, ReplicaStage, Tied, Transfers
from perfmodel.inputs.workload import Workload, WorkloadLayer, expanded
from perfmodel.pipelines import Schedule, check, read, schedule as schedule_named
from perfmodel.pipelines.actions import Flags
from perfmodel.pipelines.rounds import Round, round_of as round_of_schedule
from perfmodel.replicas.stages import chunks_of

LONG = 3
"""Batches that are drawn of schedules without a flush; each stage has then all its versions."""

EMBEDDING, HEAD = "embedding", "head"
"""Names of the first layer of a language model, and of that which may share its table."""


IN_TURN: tuple[Transfers, ...] = ("torch", "gloo")
"""Transfers of the runtime that runs the two passes of a pair one after the other."""


class StageWork(NamedTuple):
    """A stage with its workload: that of an update, of its layers only."""

    stage: ReplicaStage
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
    _check_copies(schedule)
    return schedule


def _check_copies(schedule: Schedule) -> None:
    """Check that copies of a stage do the same, each with its part of the micro-batches."""
    if schedule.copies == 1:
        return
    for first, second in enumerate(groups_of(schedule)[:, 1].tolist()):
        one, other = (
            slice(schedule.begins[rank], schedule.begins[rank + 1]) for rank in (first, second)
        )
        same = [
            np.array_equal(column[one], column[other]) for column in (schedule.kind, schedule.stage)
        ]
        if not all(same):
            raise InputError(
                f"schedule: {schedule.name}: ranks {first} and {second} have copies of the same "
                "stages, but do not the same in the same order, which replicas cannot have"
            )


def groups_of(schedule: Schedule) -> Ids:
    """Return the ranks of a replica that hold the same layers, (groups, copies).

    Raises
    ------
    InputError : some, but not all, of their layers are the same.
    """
    groups: dict[tuple[int, ...], list[int]] = {}
    for rank in range(schedule.ranks):
        groups.setdefault(schedule.held(rank), []).append(rank)
    if {len(ranks) for ranks in groups.values()} != {schedule.copies} or schedule.copies > 2:
        raise InputError(
            f"schedule: {schedule.name}: copies of stages must be on ranks in pairs, which hold "
            "the same stages"
        )
    return np.array(list(groups.values()), np.int64)


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


class Order(NamedTuple):
    """The actions of a rank in order, (actions,): their kind, chunk of the rank, number of the
    micro-batch among those that pass through the chunk, and whether they run with the next one."""

    kind: Ids
    chunk: Ids
    micro_batch: Ids
    joined: Flags


def order_of(stage: ReplicaStage, micro_batches: int) -> Order:
    """Return the actions of a round of a stage's devices."""
    schedule = round_of(stage.replica, micro_batches * stage.copies).schedule
    order = actions_of(schedule, stage.number)
    return order._replace(joined=order.joined & (stage.replica.transfers not in IN_TURN))


def together(schedule: Schedule, transfers: Transfers) -> Flags:
    """Return whether each action runs together with the next one of its rank, (actions,).

    DeepSeek's DualPipe waits for the inputs of both and hides one behind the other. The runtime of
    torch.distributed.pipelining runs the two passes of a pair one after the other.
    """
    return schedule.joined & (transfers not in IN_TURN)


def actions_of(schedule: Schedule, rank: int) -> Order:
    """Return the actions of a rank."""
    where = slice(schedule.begins[rank], schedule.begins[rank + 1])
    held = np.array(schedule.held(rank))
    before = np.cumsum(schedule.copy_of[:, None] == np.arange(schedule.copies), axis=0) - 1
    number = before[np.arange(schedule.micro_batches), schedule.copy_of]
    return Order(
        schedule.kind[where].astype(np.int64),
        np.searchsorted(held, schedule.stage[where]),
        number[schedule.micro_batch[where]],
        schedule.joined[where],
    )


def stages_of(workload: Workload, replica: Replica, most: int | None = None) -> list[StageWork]:
    """Return every stage of a replica with its workload; of two copies of stages, those of the
    ranks that hold them first.

    The optimizer's time is divided by the bytes of the gradients. With ``most``, only the first so
    many stages.

    Raises
    ------
    InputError : there are too few layers, or no such schedule.
    """
    return list(_stages_of(workload, replica, most))


@kept(64)
def _stages_of(workload: Workload, replica: Replica, most: int | None) -> tuple[StageWork, ...]:
    """Return what :func:`stages_of` does; layouts that differ in architecture share it."""
    one = pass_of(workload)
    chunks = chunks_of(one.layers, replica)
    schedule = schedule_of(replica, workload.accumulation)
    whole = WholePass.of(one, tied=schedule.updates.kind == "flush")
    works = []
    for number in groups_of(schedule)[:most, 0].tolist():
        held = [chunks[chunk] for chunk in schedule.held(number)]
        stage = ReplicaStage(number, replica, tuple(map(len, held)), copies=schedule.copies)
        works.append(whole.stage(workload, stage, held))
    return tuple(works)


@kept(64)
def pass_of(update: Workload) -> Workload:
    """Return one pass of an update, with layers."""
    return one_pass(expanded(update))


class WholePass(NamedTuple):
    """One pass of a model; and with a copy of its ``table`` in the layer ``head``, for the last
    stage, if that shares it with the first layer (else the same, and no table)."""

    one: Workload
    copied: Workload
    table: tuple[float, ...]
    head: int

    @classmethod
    def of(cls, one: Workload, *, tied: bool) -> WholePass:
        """Return one pass of a model. Stages that are not ``tied`` exchange nothing but activations
        and their gradients."""
        table = tied_bytes(one.layers) if tied else ()
        if not table:
            return cls(one, one, (), len(one.layers) - 1)
        layers = list(one.layers)
        head = [layer.name for layer in layers].index(HEAD)
        layers[head] = msgspec.structs.replace(layers[head], tensor_bytes=table)
        return cls(one, msgspec.structs.replace(one, layers=tuple(layers)), table, head)

    def ties(self, held: Sequence[range]) -> bool:
        """Return whether a stage has the table in common with another one."""
        return bool(self.table) and (held[0].start == 0) != (self.head in held[-1])

    def copies(self, held: Sequence[range]) -> bool:
        """Return whether a stage has a copy of the table."""
        return self.ties(held) and held[0].start > 0

    def stage(self, workload: Workload, stage: ReplicaStage, held: list[range]) -> StageWork:
        """Return a stage, and its part of a workload, of which this is a pass."""
        copies = self.copies(held)
        if self.ties(held):
            before = sum(stage.chunk_layers[:-1]) - held[-1].start
            place = before + self.head if copies else 0
            stage = msgspec.structs.replace(stage, tied=Tied(place, sum(self.table)))
        return StageWork(stage, part_of(workload, self.copied if copies else self.one, held, stage))


def tied_bytes(layers: Sequence[WorkloadLayer]) -> tuple[float, ...]:
    """Return the tensors of the embedding if the head shares them.

    Then the last stage has a copy, and the gradients of both are summed (Megatron-LM).
    """
    head = next((layer for layer in reversed(layers) if layer.name == HEAD), None)
    shares = head is not None and not head.tensor_bytes and layers[0].name == EMBEDDING
    return layers[0].tensor_bytes if shares else ()


def part_of(workload: Workload, one: Workload, held: list[range], stage: ReplicaStage) -> Workload:
    """Return the workload of the layers that a stage holds, ``one`` being one pass of the whole."""
    number = stage.number
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
        frozen_bytes=sum(layer.frozen_bytes for layer in layers),
        buffer_bytes=one.buffer_bytes * len(layers) / len(one.layers),
    )
    return accumulated(of_pass, workload.accumulation // stage.copies)


def boundary_bytes(workload: Workload, replica: Replica) -> list[float]:
    """Return the bytes that each chunk passes on to the next per micro-batch, (chunks - 1,)."""
    one = pass_of(workload)
    return [one.layers[chunk.stop - 1].passed_on_bytes for chunk in chunks_of(one.layers, replica)][
        :-1
    ]
