"""When each action starts and ends, from the times of the stages, by the longest path."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import ArrayLike

from perfmodel.base.arrays import NONE, Floats
from perfmodel.base.errors import InputError, number
from perfmodel.pipelines.actions import BACKWARD, FORWARD, WEIGHT, Schedule
from perfmodel.pipelines.facts import per_stage
from perfmodel.pipelines.structure import steps_of

BLOCK = 64
"""Candidates that are evaluated at once: more would not fit in the cache."""


@dataclass(frozen=True, eq=False)
class Timeline:
    """Start and end of every action, from the start of the first.

    Leading axes are those of the given times, one element per candidate; without them, these are
    plain arrays.

    Attributes
    ----------
    schedule : whose actions these are.
    start_s, end_s : shape (..., actions). Two joined actions start together and end together.
    busy_s : shape (..., ranks): seconds in which a rank computes.
    """

    schedule: Schedule
    start_s: Floats
    end_s: Floats
    busy_s: Floats

    @cached_property
    def makespan_s(self) -> Floats:
        """End of the last action, shape (...,)."""
        return np.asarray(self.end_s.max(axis=-1))

    @cached_property
    def idle_s(self) -> Floats:
        """Seconds in which a rank does not compute, up to the makespan: shape (..., ranks)."""
        return self.makespan_s[..., np.newaxis] - self.busy_s

    @cached_property
    def bubble_s(self) -> Floats:
        """The same between the first and the last action of a rank only.

        This is what counts if ranks update their weights and go on without waiting for others.
        """
        begins = self.schedule.begins
        span = self.end_s[..., begins[1:] - 1] - self.start_s[..., begins[:-1]]
        return np.asarray(span - self.busy_s)

    @cached_property
    def gradients_s(self) -> Floats:
        """When the gradients of each copy of each stage are complete: (..., copies, stages)."""
        return self._of_stages((self.schedule.kind == BACKWARD) | (self.schedule.kind == WEIGHT))

    @cached_property
    def parameters_s(self) -> Floats:
        """When each copy of each stage first needs its parameters: (..., copies, stages)."""
        return -self._of_stages(self.schedule.kind == FORWARD, first=True)

    def _of_stages(self, chosen: np.ndarray, first: bool = False) -> Floats:
        """Latest end of the chosen actions of each copy of each stage, or minus earliest start."""
        s = self.schedule
        times = (-self.start_s if first else self.end_s)[..., chosen]
        cell = (s.copy_of[s.micro_batch] * s.stages + s.stage)[chosen]
        order = np.argsort(cell, kind="stable")
        begins = np.searchsorted(cell[order], np.arange(s.copies * s.stages))
        latest = np.maximum.reduceat(times[..., order], begins, axis=-1)
        return np.asarray(latest.reshape(*times.shape[:-1], s.copies, s.stages))


def timeline(
    schedule: Schedule,
    forward_s: ArrayLike,
    backward_s: ArrayLike | None = None,
    input_s: ArrayLike | None = None,
    weight_s: ArrayLike | None = None,
    send_s: ArrayLike = 0.0,
    blocking: bool = False,
    overlap: float = 0.0,
) -> Timeline:
    """Return when each action runs, if each starts as soon as its rank and its data allow.

    Parameters
    ----------
    forward_s, backward_s, input_s, weight_s : seconds of a micro-batch on each stage, by kind of
        action: a number, or shape (..., stages). A whole backward pass that is not given is the
        sum of its parts.
    send_s : seconds of a transfer across each boundary between stages, in both directions: a
        number, or shape (..., stages - 1). Nothing between stages of the same rank.
    blocking : False: ranks compute while data travels, and only the receiver waits for its
        arrival. True: sender and receiver are also occupied, after the action that computes the
        data and before the one that needs it, as with Megatron-LM's batched sends and receives;
        those of one rank between two actions run side by side. Senders do not wait until the
        receiver is ready. Transfers do not slow each other down.
    overlap : share of the shorter of two joined actions that the longer hides, from 0 to 1.

    Raises
    ------
    InputError : a time is missing, negative, not finite, or of another shape; ranks wait for each
        other.

    >>> from perfmodel.pipelines import schedule
    >>> timeline(schedule("1f1b", 2, 3), 1.0, 2.0).makespan_s
    array(12.)
    """
    given = _Times.of(schedule, forward_s, backward_s, input_s, weight_s, send_s)
    blocks = [_run(schedule, times, blocking, overlap) for times in given.blocks()]
    cost, start, end = (np.concatenate(parts, axis=1) for parts in zip(*blocks, strict=True))
    steps = steps_of(schedule)
    busy = np.zeros((schedule.ranks, cost.shape[1]))
    np.add.at(busy, schedule.rank[steps.first], cost)
    rows = start[steps.step_of], end[steps.step_of], busy
    return Timeline(schedule, *(row.T.reshape(*given.shape, len(row)) for row in rows))


def makespans(
    schedule: Schedule,
    forward_s: ArrayLike,
    backward_s: ArrayLike | None = None,
    input_s: ArrayLike | None = None,
    weight_s: ArrayLike | None = None,
    send_s: ArrayLike = 0.0,
    blocking: bool = False,
    overlap: float = 0.0,
) -> Floats:
    """Return only the makespans of :func:`timeline`, shape (...,): for many candidates at once.

    It takes memory for 64 candidates at a time, however many there are.

    >>> from perfmodel.pipelines import schedule
    >>> makespans(schedule("gpipe", 2, 3), [[1.0, 1.0], [1.0, 2.0]], 2.0).tolist()
    [12.0, 15.0]
    """
    given = _Times.of(schedule, forward_s, backward_s, input_s, weight_s, send_s)
    ends = [_run(schedule, times, blocking, overlap)[2].max(axis=0) for times in given.blocks()]
    return np.concatenate(ends).reshape(given.shape)


@dataclass(frozen=True, eq=False)
class _Times:
    """Times of candidates.

    Attributes
    ----------
    shape : that of the candidates.
    actions_s : shape (kinds, stages, candidates).
    sends_s : shape (stages, candidates): across each boundary, and a last row of zeros.
    """

    shape: tuple[int, ...]
    actions_s: Floats
    sends_s: Floats

    @classmethod
    def of(
        cls,
        schedule: Schedule,
        forward_s: ArrayLike,
        backward_s: ArrayLike | None,
        input_s: ArrayLike | None,
        weight_s: ArrayLike | None,
        send_s: ArrayLike,
    ) -> _Times:
        """Return the times for a schedule, each checked."""
        given = {"forward_s": forward_s, "input_s": input_s, "weight_s": weight_s}
        parts = {
            name: per_stage(name, value, schedule.stages)
            for name, value in given.items()
            if value is not None
        }
        if backward_s is not None:
            parts["backward_s"] = per_stage("backward_s", backward_s, schedule.stages)
        elif "input_s" in parts and "weight_s" in parts:
            parts["backward_s"] = parts["input_s"] + parts["weight_s"]
        columns = "forward_s", "backward_s", "input_s", "weight_s"  # in the order of kinds
        for kind, name in enumerate(columns):
            if name not in parts and (schedule.kind == kind).any():
                hint = " (or input_s and weight_s)" if kind == BACKWARD else ""
                raise InputError(f"{name}: {schedule.name} needs it{hint}")
        sends = per_stage("send_s", send_s, schedule.stages - 1)
        shapes = [part.shape[:-1] for part in (*parts.values(), sends)]
        try:
            shape = np.broadcast_shapes(*shapes)
        except ValueError:
            kinds = ", ".join(map(str, dict.fromkeys(shape for shape in shapes if shape)))
            raise InputError(f"candidates: times of shapes {kinds} do not broadcast") from None
        count = int(np.prod(shape))
        actions = np.zeros((len(columns), schedule.stages, count))
        for kind, name in enumerate(columns):
            if name in parts:
                full = np.broadcast_to(parts[name], (*shape, schedule.stages))
                actions[kind] = full.reshape(count, schedule.stages).T
        across = np.zeros((schedule.stages, count))
        full = np.broadcast_to(sends, (*shape, schedule.stages - 1))
        across[:-1] = full.reshape(count, schedule.stages - 1).T
        return cls(shape, actions, across)

    def blocks(self) -> Iterator[_Times]:
        """Split into blocks of candidates."""
        for begin in range(0, self.sends_s.shape[1], BLOCK):
            part = slice(begin, begin + BLOCK)
            yield _Times(self.shape, self.actions_s[:, :, part], self.sends_s[:, part])


def _run(
    schedule: Schedule, times: _Times, blocking: bool, overlap: float
) -> tuple[Floats, Floats, Floats]:
    """Seconds, start and end of each step: shape (steps, candidates)."""
    number("overlap", overlap, at_most=1.0)
    steps = steps_of(schedule)
    cost = times.actions_s[schedule.kind[steps.first], schedule.stage[steps.first]]
    joined = np.nonzero(steps.second != NONE)[0]
    if len(joined):
        partner = steps.second[joined]
        other = times.actions_s[schedule.kind[partner], schedule.stage[partner]]
        cost[joined] += other - overlap * np.minimum(cost[joined], other)
    needs = [(steps.needs[:, 0], times.sends_s[steps.enters[:, 0]])]
    if len(joined):
        needs.append((steps.needs[:, 1], times.sends_s[steps.enters[:, 1]]))
    occupied = None
    if blocking:
        leaving = times.sends_s[steps.leaves].max(axis=1)[steps.before]
        leaving[steps.before == NONE] = 0.0
        occupied = np.maximum(leaving, times.sends_s[steps.enters].max(axis=1))
    start = np.empty_like(cost)
    end = np.zeros((len(cost) + 1, cost.shape[1]))  # the last row is the end of "none"
    bounds = steps.bounds.tolist()
    for a, b in pairwise(bounds):
        begin = end[steps.before[a:b]]
        if occupied is not None:
            begin += occupied[a:b]
        for need, send in needs:
            np.maximum(begin, end[need[a:b]] + send[a:b], out=begin)
        start[a:b] = begin
        np.add(begin, cost[a:b], out=end[a:b])
    return cost, start, end[:-1]
