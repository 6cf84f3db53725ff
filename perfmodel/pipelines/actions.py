"""A pipeline schedule as data: which actions each rank runs, and in which order."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.arrays import NONE, Ids, Refs
from perfmodel.base.errors import InputError

KINDS = "FBIW"
"""Kinds of actions: forward, backward, and its two parts, for the inputs and for the weights."""

FORWARD, BACKWARD, INPUT, WEIGHT = range(4)
"""Positions of the kinds in :data:`KINDS`, as columns of a schedule store them."""

Kinds = NDArray[np.int8]
Flags = NDArray[np.bool_]

_ACTION = re.compile(rf"(\d{{1,9}})([{KINDS}])(\d{{1,9}})", re.ASCII)


class Action(NamedTuple):
    """Computation of one micro-batch on one stage.

    ``kind`` is ``F`` (forward), ``B`` (backward), ``I`` (gradients of the inputs only) or ``W``
    (gradients of the weights only). Printed as in files: stage, kind, micro-batch.

    >>> print(Action("F", 1, 0))
    1F0
    """

    kind: str
    stage: int
    micro_batch: int

    def __str__(self) -> str:
        return f"{self.stage}{self.kind}{self.micro_batch}"

    @classmethod
    def of(cls, text: str) -> Action:
        """Return the action that is written like ``2B13``.

        Raises
        ------
        InputError : the text is no action.
        """
        parts = _ACTION.fullmatch(text)
        if parts is None:
            raise InputError(f"expected an action such as 0F0, 1B3, 2I1 or 2W1, got {text!r}")
        return cls(parts[2], int(parts[1]), int(parts[3]))


@dataclass(frozen=True)
class Updates:
    """When stages update their weights, and which version a micro-batch reads.

    ``flush``: once, after all micro-batches, on all stages: no gradient is stale.

    ``stash``: each stage after every ``micro_batches`` backward passes of its own. A forward pass
    reads the newest version, and its backward pass the same one (weight stashing).

    ``double``: also after every ``micro_batches``, which are a batch. All stages read for batch t
    the version made of the batches before t - 1 (double buffering).
    """

    kind: Literal["flush", "stash", "double"] = "flush"
    micro_batches: int = 0


@dataclass(frozen=True, eq=False, repr=False)
class Schedule:
    """The actions of all ranks, as columns: those of rank 0 in their order, then those of rank 1.

    Attributes
    ----------
    name : what it is called.
    kind, stage, micro_batch : arrays of shape (actions,); kinds as positions in :data:`KINDS`.
    begins : shape (ranks + 1,): rank r has the actions from ``begins[r]`` up to ``begins[r + 1]``.
    holders : shape (copies, stages): the rank that holds each copy of each stage. Bidirectional
        pipelines have two copies of each stage, others one.
    copy_of : shape (micro-batches,): the copy that computes each micro-batch.
    joined : shape (actions,): whether an action runs together with the next one of its rank; both
        start when both can, and end together.
    updates : when weights are updated.
    """

    name: str
    kind: Kinds
    stage: Refs
    micro_batch: Refs
    begins: Ids
    holders: Refs
    copy_of: Refs
    joined: Flags
    updates: Updates = field(default=Updates())

    @classmethod
    def of(
        cls,
        name: str,
        orders: Sequence[Sequence[Action]],
        *,
        joined: Sequence[Sequence[bool]] | None = None,
    ) -> Schedule:
        """Return the schedule of ranks that run actions in these orders.

        A stage is held by the ranks that run its forward passes; if several do, by one copy each.
        Whether it can run is for :func:`perfmodel.pipelines.check` to say.

        >>> s = Schedule.of("two", [[Action("F", 0, 0), Action("B", 0, 0)]])
        >>> s.ranks, s.stages, s.micro_batches
        (1, 1, 1)
        """
        rows = [action for order in orders for action in order]
        kind = np.array([KINDS.index(action.kind) for action in rows], dtype=np.int8)
        stage = np.array([action.stage for action in rows], dtype=np.int32)
        micro_batch = np.array([action.micro_batch for action in rows], dtype=np.int32)
        begins = np.cumsum([0, *map(len, orders)], dtype=np.int64)
        flags = np.zeros(len(rows), dtype=np.bool_)
        if joined is not None:
            flags[:] = [flag for order in joined for flag in order]
        rank = np.repeat(np.arange(len(orders), dtype=np.int32), np.diff(begins))
        holders, copy_of = _placement(kind, stage, micro_batch, rank)
        return cls(name, kind, stage, micro_batch, begins, holders, copy_of, flags)

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        return len(self.begins) - 1

    @property
    def stages(self) -> int:
        """Number of stages; those of a rank are its chunks."""
        return int(self.holders.shape[1])

    @property
    def micro_batches(self) -> int:
        """Number of micro-batches of a step."""
        return len(self.copy_of)

    @property
    def copies(self) -> int:
        """Number of copies of each stage."""
        return int(self.holders.shape[0])

    @property
    def splits(self) -> bool:
        """Whether some backward passes are split into the parts ``I`` and ``W``."""
        return bool((self.kind >= INPUT).any())

    @cached_property
    def rank(self) -> Refs:
        """Rank of each action, shape (actions,)."""
        return np.repeat(np.arange(self.ranks, dtype=np.int32), np.diff(self.begins))

    @cached_property
    def place(self) -> Ids:
        """Position of each action by kind, stage and micro-batch; -1 where there is none."""
        place = np.full((len(KINDS), self.stages, self.micro_batches), NONE, dtype=np.int64)
        place[self.kind, self.stage, self.micro_batch] = np.arange(len(self))
        return place

    @cached_property
    def finals(self) -> tuple[tuple[int, ...], ...]:
        """Of each rank, the position of the action that completes the gradients of each of its
        chunks, in the order of the model."""
        last = np.full((self.ranks, self.stages), NONE, dtype=np.int64)
        completing = np.flatnonzero((self.kind == BACKWARD) | (self.kind == WEIGHT))
        np.maximum.at(last, (self.rank[completing], self.stage[completing]), completing)
        return tuple(
            tuple(last[rank, list(held)].tolist()) for rank, held in enumerate(self.chunks)
        )

    @cached_property
    def chunks(self) -> tuple[tuple[int, ...], ...]:
        """Of each rank, its stages, in the order of the model."""
        held: list[set[int]] = [set() for _ in range(self.ranks)]
        for of_copy in self.holders.tolist():
            for stage, rank in enumerate(of_copy):
                if rank != NONE:
                    held[rank].add(stage)
        return tuple(tuple(sorted(one)) for one in held)

    def __len__(self) -> int:
        return len(self.kind)

    def __eq__(self, other: object) -> bool:
        """Whether both run the same actions in the same order; names do not count."""
        return isinstance(other, Schedule) and (
            self.updates == other.updates
            and np.array_equal(self.begins, other.begins)
            and np.array_equal(self.kind, other.kind)
            and np.array_equal(self.stage, other.stage)
            and np.array_equal(self.micro_batch, other.micro_batch)
            and np.array_equal(self.joined, other.joined)
        )

    __hash__ = object.__hash__

    def __repr__(self) -> str:
        counts = f"{self.ranks} ranks, {self.stages} stages, {self.micro_batches} micro-batches"
        return f"Schedule({self.name!r}, {counts})"

    def action(self, position: int) -> Action:
        """Return the action at a position of the columns."""
        kind = KINDS[self.kind[position]]
        return Action(kind, int(self.stage[position]), int(self.micro_batch[position]))

    def order(self, rank: int) -> tuple[Action, ...]:
        """Return the actions of a rank in their order."""
        return tuple(self.action(i) for i in range(self.begins[rank], self.begins[rank + 1]))

    def held(self, rank: int) -> tuple[int, ...]:
        """Return the stages of a rank, in the order of the model."""
        return self.chunks[rank]

    def named(self, name: str) -> Schedule:
        """Return this schedule under another name."""
        return replace(self, name=name)


def _placement(kind: Kinds, stage: Refs, micro_batch: Refs, rank: Refs) -> tuple[Refs, Refs]:
    """Holders of each copy of each stage, and the copy of each micro-batch, from the actions."""
    stages, micro_batches = (int(c.max(initial=-1)) + 1 for c in (stage, micro_batch))
    if stages * micro_batches > 2 * len(kind):  # otherwise a number far too large takes the memory
        what, most = ("stage", stages) if stages > micro_batches else ("micro-batch", micro_batches)
        raise InputError(
            f"{stages} stages of {micro_batches} micro-batches have at least "
            f"{2 * stages * micro_batches} actions, not {len(kind)} (highest {what}: {most - 1})"
        )
    ranks = np.full((micro_batches, stages), NONE, dtype=np.int32)
    forward = kind == FORWARD
    ranks[micro_batch[forward], stage[forward]] = rank[forward]
    holders, first, copy = np.unique(ranks, axis=0, return_index=True, return_inverse=True)
    order = np.argsort(first)  # the copy of micro-batch 0 comes first
    number = np.empty_like(order)
    number[order] = np.arange(len(order))
    return holders[order], number[copy.reshape(-1)].astype(np.int32)
