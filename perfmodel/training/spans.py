"""When the actions of a pipeline begin and end, if nothing but its own transfers delays them.

The longest path through the actions of a step, with one time per action and transfer. Unlike
``pipelines.timeline``, which times schedules alone, it knows when inputs are asked for, who waits
for what it sends, and that transfers on one connection follow each other. The simulation adds what
this leaves out: shared links, random times, and the exchange among replicas.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple, get_args

import numpy as np

from perfmodel.base.arrays import NONE, Floats
from perfmodel.base.errors import InputError
from perfmodel.base.quantities import Quantity
from perfmodel.inputs.replica import Replica, Transfers
from perfmodel.pipelines.actions import Schedule
from perfmodel.pipelines.rounds import Round
from perfmodel.replicas.stage_work import round_of, together
from perfmodel.training.transfers import Handing, handing_of


class ActionNeeds(NamedTuple):
    """What an action waits for: the one before on its rank, transfers of inputs, and those that
    must have ended; with a ``partner`` that it runs with, also what that waits for."""

    action: int
    last: int
    inputs: tuple[int, ...]
    held: tuple[int, ...]
    partner: int


class Paths(NamedTuple):
    """What each action waits for, in an order in which everything comes after what it waits for.

    ``steps`` has one per action, or per two that run together. What a rank makes for itself it
    makes before. ``handing`` are the transfers,
    and ``ahead`` (transfers,) the one before each on its connection.
    """

    schedule: Schedule
    handing: Handing
    steps: tuple[ActionNeeds, ...]
    ahead: tuple[int, ...]
    last: tuple[int, ...]


class Spans(NamedTuple):
    """Begin and end of each action of a step, (actions,) of the schedule's columns."""

    begin: Floats
    end: Floats


@functools.lru_cache(maxsize=64)
def paths_of(replica: Replica, micro_batches: int) -> Paths:
    """Return what each action of a replica's schedule waits for.

    Raises
    ------
    InputError : there is no such schedule, or its stages wait for each other with these transfers.
    """
    repeated = round_of(replica, micro_batches)
    schedule = repeated.schedule
    handing, steps = _ordered(repeated, replica.transfers)
    paths = Paths(schedule, handing, steps, *_connections(schedule, handing))
    if not _whole(schedule, replica.transfers, steps):
        kinds: tuple[Transfers, ...] = get_args(Transfers)
        allowed = [one for one in kinds if _whole(schedule, one, _ordered(repeated, one)[1])]
        raise InputError(
            f"transfers: {replica.transfers}: stages wait for each other for ever with "
            f"{replica.schedule} (allowed: {', '.join(allowed)})"
        )
    return paths


def _whole(schedule: Schedule, transfers: Transfers, steps: Sequence[ActionNeeds]) -> bool:
    """Return whether every stage comes to the end of a round."""
    return len(steps) == len(schedule) - int(together(schedule, transfers).sum())


def _ordered(repeated: Round, transfers: Transfers) -> tuple[Handing, tuple[ActionNeeds, ...]]:
    """Return the transfers, and the actions in an order that respects all that they wait for in a
    round."""
    handing, schedule = handing_of(repeated, transfers), repeated.schedule
    joined = together(schedule, transfers).tolist()
    all_steps, waits = _steps(schedule, handing, joined)
    begins = schedule.begins.tolist()
    done = [False] * len(schedule)
    at = begins[:-1]
    ordered: list[ActionNeeds] = []
    left = list(range(schedule.ranks))
    while left:
        before = len(ordered)
        for rank in left:
            action, end = at[rank], begins[rank + 1]
            while action < end:
                for one in waits[action]:
                    if not done[one]:
                        break
                else:
                    done[action] = True
                    ordered.append(all_steps[action])
                    action += 1
                    if joined[action - 1]:
                        done[action] = True
                        action += 1
                    continue
                break
            at[rank] = action
        left = [rank for rank in left if at[rank] < begins[rank + 1]]
        if len(ordered) == before:
            break
    return handing, tuple(ordered)


def _steps(
    schedule: Schedule, handing: Handing, joined: Sequence[bool]
) -> tuple[list[ActionNeeds], list[list[int]]]:
    """Return the step that begins with each action, and the actions of the same round that come
    before it; of an action that runs with the one before it, both are of no use."""
    count, none = len(schedule), ()
    inputs: list[tuple[int, ...]] = [none] * count
    held: list[tuple[int, ...]] = [none] * count
    waits: list[list[int]] = [[] for _ in range(count)]
    columns = (getattr(handing, name).tolist() for name in Handing._fields)
    transfers = enumerate(zip(*columns, strict=True))
    begins = {one + 1: one for one, with_next in enumerate(joined) if with_next}
    for transfer, (_, target, leaves, posted, holds, lag, held_lag) in transfers:
        before = [leaves] if posted == NONE else [leaves, posted]
        target = begins.get(target, target)
        inputs[target] += (transfer,)
        if not lag:
            waits[target] += before
        if holds != NONE:
            holds = begins.get(holds, holds)
            held[holds] += (transfer,)
            if not held_lag:
                waits[holds] += before
    last = list(range(-1, count - 1))
    for action in schedule.begins.tolist()[:-1]:
        last[action] = NONE
    partner = [one + 1 if with_next else NONE for one, with_next in enumerate(joined)]
    steps = list(map(ActionNeeds, range(count), last, inputs, held, partner))
    return steps, waits


def _connections(schedule: Schedule, handing: Handing) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the transfer before each one from the same rank to the same other, NONE if none; and
    the last of those of a round."""
    last: dict[tuple[int, int], int] = {}
    before = []
    sources, targets = schedule.rank[handing.source], schedule.rank[handing.target]
    pairs = list(zip(sources.tolist(), targets.tolist(), strict=True))
    for transfer, pair in enumerate(pairs):
        before.append(last.get(pair, NONE))
        last[pair] = transfer
    return tuple(before), tuple(last[pair] for pair in pairs)


def spans(paths: Paths, seconds: Floats, send_s: Floats, latency_s: Floats | None = None) -> Spans:
    """Return begin and end of each action.

    Transfers on one connection follow each other in the order of the actions that make the data.

    Parameters
    ----------
    seconds : of each action, (actions, ...).
    send_s : of each transfer, (transfers, ...), with the same further axes.
    latency_s : what of ``send_s`` the connection is free in, (transfers, ...); none by default.
    """
    begin: list[Quantity] = [0.0] * len(seconds)
    end: list[Quantity] = [0.0] * len(seconds)
    leaves, posted = paths.handing.leaves.tolist(), paths.handing.posted.tolist()
    plain = seconds.ndim == 1  # plain floats are faster than arrays of one
    took, sent = (seconds.tolist(), send_s.tolist()) if plain else (seconds, send_s)
    free = np.zeros_like(send_s) if latency_s is None else latency_s
    ahead, late = paths.ahead, free.tolist() if plain else free
    later: Callable[[Quantity, Quantity], Quantity] = max if plain else np.maximum
    arrived: dict[int, Quantity] = {}

    def arrival(transfer: int) -> Quantity:
        if transfer in arrived:
            return arrived[transfer]
        starts = end[leaves[transfer]]
        if posted[transfer] != NONE:
            starts = later(starts, end[posted[transfer]])
        before = ahead[transfer]
        if before in arrived:
            starts = later(starts, arrived[before] - late[before])
        arrived[transfer] = starts + sent[transfer]
        return arrived[transfer]

    for action, last, inputs, held, partner in paths.steps:
        starts = end[last] if last != NONE else 0.0
        for one in (*inputs, *held):
            starts = later(starts, arrival(one))
        begin[action] = starts
        end[action] = starts + took[action]
        if partner != NONE:
            begin[partner] = starts
            end[action] = end[partner] = end[action] + took[partner]
    if plain:
        return Spans(np.array(begin), np.array(end))
    shape = seconds.shape[1:]
    return Spans(
        np.array([np.broadcast_to(value, shape) for value in begin]),
        np.array([np.broadcast_to(value, shape) for value in end]),
    )


MOST_ROUNDS = 400
"""Rounds after which the pace is a mean, if it has not become regular before."""

SAME = 1e-12
"""Difference between rounds, relative to their time, up to which the pace is regular."""


def pace_s(
    paths: Paths, seconds: Floats, send_s: Floats, latency_s: Floats, between_s: Floats
) -> float:
    """Return the time of a round of stages that go on without end.

    Round after round, by the longest path, until the same number of rounds always takes the same
    time longer for all stages.

    Parameters
    ----------
    seconds : of each action, (actions,).
    send_s, latency_s : of each transfer, and what of it the connection is free in, (transfers,).
    between_s : of each rank between its last action of a round and its first of the next, (ranks,).
    """
    ends: list[Floats] = []
    state = _State.of(paths)
    for number in range(MOST_ROUNDS):
        state.advance(paths, seconds.tolist(), send_s.tolist(), latency_s.tolist(), between_s)
        ends.append(state.times())
        for apart in range(1, min(number, 2 * paths.schedule.ranks) + 1):
            later = ends[-1] - ends[-1 - apart]
            if np.ptp(later) <= SAME * ends[-1].max():
                return float(later.max()) / apart
    half = len(ends) // 2
    return float(ends[-1].max() - ends[-1 - half].max()) / half


class _State:
    """When the actions and transfers of a round have ended."""

    def __init__(self, end: list[float], arrived: list[float]) -> None:
        self.end, self.arrived = end, arrived

    @classmethod
    def of(cls, paths: Paths) -> _State:
        """Return the state before the first round."""
        return cls([0.0] * len(paths.schedule), [0.0] * len(paths.handing.source))

    def times(self) -> Floats:
        """Return all ends of the round."""
        return np.array(self.end + self.arrived)

    def advance(
        self,
        paths: Paths,
        seconds: list[float],
        send_s: list[float],
        latency_s: list[float],
        between_s: Floats,
    ) -> None:
        """Go on to the next round."""
        schedule, handing = paths.schedule, paths.handing
        past, past_arrived = self.end, self.arrived
        end, arrived = [0.0] * len(past), [-1.0] * len(past_arrived)
        leaves, posted = handing.leaves.tolist(), handing.posted.tolist()
        lag, held_lag = handing.lag.tolist(), handing.held_lag.tolist()
        rank, begins = schedule.rank.tolist(), schedule.begins.tolist()

        def arrival(transfer: int) -> float:
            if arrived[transfer] < 0.0:
                starts = end[leaves[transfer]]
                if posted[transfer] != NONE:
                    starts = max(starts, end[posted[transfer]])
                before = paths.ahead[transfer]
                if before != NONE:
                    starts = max(starts, arrival(before) - latency_s[before])
                elif (last := paths.last[transfer]) != NONE:
                    starts = max(starts, past_arrived[last] - latency_s[last])
                arrived[transfer] = starts + send_s[transfer]
            return arrived[transfer]

        for action, before, inputs, held, _ in paths.steps:
            if before != NONE:
                starts = end[before]
            else:
                of = rank[action]
                starts = past[begins[of + 1] - 1] + float(between_s[of])
            for one in inputs:
                starts = max(starts, past_arrived[one] if lag[one] else arrival(one))
            for one in held:
                starts = max(starts, past_arrived[one] if held_lag[one] else arrival(one))
            end[action] = starts + seconds[action]
        for transfer in range(len(arrived)):
            arrival(transfer)
        self.end, self.arrived = end, arrived
