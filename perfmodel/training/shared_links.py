"""When the actions of a pipeline begin and end, if its transfers share links with each other.

``training.spans`` takes each transfer to have its links to itself, but for those on its connection.
Here activations and gradients that leave a device at the same time, or come to it, share its link
max-min fairly, and the same transfers of other replicas on the same node take their part of it.
One replica alone is followed from event to event; what replicas exchange is left out.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from perfmodel.base.arrays import NONE, Floats, Ids
from perfmodel.training.spans import Paths, Spans

MOST_TRANSFERS = 1000
"""Transfers up to which links count as shared; following more would take too long for a formula."""


class RoundFlows(NamedTuple):
    """The transfers of a round, as flows over links.

    Attributes
    ----------
    bytes, latency_s, rate_bytes_per_s : of each, and the most that its connection carries,
        (transfers,).
    path, units : its links (NONE: none), and how many replicas send the same over each at the same
        time, (transfers, links).
    capacity_bytes_per_s : of all links.
    """

    bytes: Floats
    latency_s: Floats
    rate_bytes_per_s: Floats
    path: Ids
    units: Floats
    capacity_bytes_per_s: Floats

    def alone_s(self) -> Floats:
        """Return the time of each if no other of its replica is under way, (transfers,)."""
        shared = np.where(self.path != NONE, self.capacity_bytes_per_s[self.path], np.inf)
        rate = np.minimum((shared / self.units).min(axis=-1), self.rate_bytes_per_s)
        return np.asarray(self.bytes / rate + self.latency_s)

    def busy_s(self) -> float:
        """Return how long they occupy the busiest link."""
        load = np.zeros(len(self.capacity_bytes_per_s) + 1)  # the last is that of no link
        np.add.at(load, self.path, self.bytes[:, None] * self.units)
        return float((load[:-1] / self.capacity_bytes_per_s).max(initial=0.0))

    def meet(self, pairs: Sequence[tuple[int, int]]) -> bool:
        """Return whether transfers of two connections use the same link; ``pairs`` (transfers,) are
        the ends of their connections."""
        users: dict[int, set[tuple[int, int]]] = {}
        for links, pair in zip(self.path.tolist(), pairs, strict=True):
            for link in links:
                if link != NONE:
                    users.setdefault(link, set()).add(pair)
        return any(len(known) > 1 for known in users.values())


def shared_spans(paths: Paths, seconds: Floats, flows: RoundFlows) -> Spans:
    """Return begin and end of each action of a step, (actions,)."""
    run = _SharedLinksRun(paths, seconds, flows, 1, np.zeros(paths.schedule.ranks))
    run.finish()
    return Spans(np.array(run.begin), np.array(run.end))


FEWEST_ROUNDS, MOST_ROUNDS = 16, 80
"""Rounds of stages without a flush that are followed; the first half is left out of their pace."""


def shared_pace_s(paths: Paths, seconds: Floats, flows: RoundFlows, between_s: Floats) -> float:
    """Return the time of a round of stages that go on without end, see
    :func:`perfmodel.training.spans.pace_s`."""
    rounds = min(max(MOST_TRANSFERS // len(flows.bytes), FEWEST_ROUNDS), MOST_ROUNDS)
    run = _SharedLinksRun(paths, seconds, flows, rounds, between_s)
    run.finish()
    half = rounds // 2
    return (run.rounds_s[-1] - run.rounds_s[-1 - half]) / half


class _SharedLinksRun:
    """Follows the steps, the transfers and the updates of all ranks; nodes are in this order."""

    def __init__(
        self, paths: Paths, seconds: Floats, flows: RoundFlows, rounds: int, between_s: Floats
    ) -> None:
        self.paths, self.rounds = paths, rounds
        self.steps, self.transfers = len(paths.steps), len(flows.bytes)
        ranks = paths.schedule.ranks
        self.nodes = self.steps + self.transfers + ranks
        took = seconds.tolist()
        pairs = [(one.action, one.partner) for one in paths.steps]
        self.took = [took[a] + (took[z] if z != NONE else 0.0) for a, z in pairs]
        self.between_s = between_s.tolist()
        self.bytes, self.latency_s = flows.bytes.tolist(), flows.latency_s.tolist()
        self.rates = _Rates(flows, self.steps)
        self.after: list[list[tuple[int, int]]] = [[] for _ in range(self.nodes)]
        self.after_data: list[list[tuple[int, int]]] = [[] for _ in range(self.transfers)]
        self.needs = [[0, 0] for _ in range(self.nodes)]  # in the first round, and in later ones
        self._connect()
        self.left = [[one[min(k, 1)] for one in self.needs] for k in range(rounds)]
        self.begin, self.end = [0.0] * len(seconds), [0.0] * len(seconds)
        self.rounds_s = [0.0] * rounds
        self.now, self.updated = 0.0, 0.0
        self.events: list[tuple[float, int, int]] = []
        self.active: dict[tuple[int, int], float] = {}
        self.changed, self.data_s, self.done = True, math.inf, (NONE, NONE)

    def _edge(self, source: int, target: int, lag: int = 0, *, data: bool = False) -> None:
        """Let a node wait for the end of another, or for the end of its data."""
        if data:
            self.after_data[source - self.steps].append((target, lag))
        else:
            self.after[source].append((target, lag))
        self.needs[target][0] += lag == 0
        self.needs[target][1] += 1

    def _connect(self) -> None:
        """Add all edges."""
        paths, handing = self.paths, self.paths.handing
        step_of = {one.action: k for k, one in enumerate(paths.steps)}
        step_of |= {one.partner: k for k, one in enumerate(paths.steps) if one.partner != NONE}
        lag, held_lag = handing.lag.tolist(), handing.held_lag.tolist()
        first = self.steps + self.transfers
        begins = paths.schedule.begins.tolist()
        for rank in range(paths.schedule.ranks):
            self._edge(step_of[begins[rank + 1] - 1], first + rank)
            self._edge(first + rank, step_of[begins[rank]], 1)
        for k, one in enumerate(paths.steps):
            if one.last != NONE:
                self._edge(step_of[one.last], k)
            for transfer in one.inputs:
                self._edge(self.steps + transfer, k, lag[transfer])
            for transfer in one.held:
                self._edge(self.steps + transfer, k, held_lag[transfer])
        for k, (leaves, posted) in enumerate(
            zip(handing.leaves.tolist(), handing.posted.tolist(), strict=True)
        ):
            self._edge(step_of[leaves], self.steps + k)
            if posted != NONE:
                self._edge(step_of[posted], self.steps + k)
            ahead, last = paths.ahead[k], paths.last[k]
            before, late = (ahead, 0) if ahead != NONE else (last, 1)
            self._edge(self.steps + before, self.steps + k, late, data=True)

    def finish(self) -> None:
        """Follow all rounds."""
        for round_ in range(self.rounds):
            for node in range(self.nodes):
                if self.left[round_][node] == 0 and (round_ == 0 or self.needs[node][1] == 0):
                    self._start(node, round_)
        while self.events or self.active:
            if self.changed:
                self.data_s, self.done = self.rates.next(self.active, self.updated)
                self.changed = False
            if self.events and self.events[0][0] <= self.data_s:
                self.now, node, round_ = heapq.heappop(self.events)
                self._ended(node, round_)
            else:
                self.now = self.data_s
                self._advance()
                node, round_ = self.done
                del self.active[self.done]
                ends = self.now + self.latency_s[node - self.steps]
                heapq.heappush(self.events, (ends, node, round_))
                self._free(self.after_data[node - self.steps], round_)

    def _advance(self) -> None:
        """Move what is under way until now, before the transfers under way change."""
        self.rates.move(self.active, self.now - self.updated)
        self.updated, self.changed = self.now, True

    def _start(self, node: int, round_: int) -> None:
        transfer = node - self.steps
        if 0 <= transfer < self.transfers:
            self._advance()
            self.active[node, round_] = self.bytes[transfer]
            return
        if transfer < 0:
            one = self.paths.steps[node]
            for action in (one.action, one.partner) if one.partner != NONE else (one.action,):
                self.begin[action] = self.now
                self.end[action] = self.now + self.took[node]
            ends = self.now + self.took[node]
        else:
            ends = self.now + self.between_s[transfer - self.transfers]
        heapq.heappush(self.events, (ends, node, round_))

    def _ended(self, node: int, round_: int) -> None:
        if node < self.steps:
            self.rounds_s[round_] = max(self.rounds_s[round_], self.now)
        self._free(self.after[node], round_)

    def _free(self, after: list[tuple[int, int]], round_: int) -> None:
        """Start what has now all that it waits for."""
        for target, lag in after:
            later = round_ + lag
            if later < self.rounds:
                self.left[later][target] -= 1
                if self.left[later][target] == 0:
                    self._start(target, later)


class _Rates:
    """Max-min fair rates of transfers that are under way.

    Source: Bertsekas, Gallager, "Data Networks", 2nd edition, section 6.5.2.
    """

    def __init__(self, flows: RoundFlows, offset: int) -> None:
        self.capacity = flows.capacity_bytes_per_s.tolist()
        columns = np.column_stack([flows.rate_bytes_per_s, flows.path, flows.units])
        _, first, kind = np.unique(columns, axis=0, return_index=True, return_inverse=True)
        self.kind = kind.reshape(-1).tolist()  # transfers of one connection are of one kind
        self.most = flows.rate_bytes_per_s[first].tolist()
        self.links = [
            [(link, unit) for link, unit in zip(*row, strict=True) if link != NONE]
            for row in zip(flows.path[first].tolist(), flows.units[first].tolist(), strict=True)
        ]
        self.known: dict[tuple[int, ...], list[float]] = {}
        self.offset = offset  # of the node of the first transfer

    def next(
        self, active: dict[tuple[int, int], float], since_s: float
    ) -> tuple[float, tuple[int, int]]:
        """Return when the first of the transfers has sent all data, and which it is."""
        if not active:
            return math.inf, (NONE, NONE)
        if len(active) == 1:
            ((which, left),) = active.items()
            return since_s + left / self._of(active)[0], which
        rates = self._of(active)
        took = [left / rate for left, rate in zip(active.values(), rates, strict=True)]
        first = min(took)
        return since_s + first, list(active)[took.index(first)]

    def move(self, active: dict[tuple[int, int], float], took_s: float) -> None:
        """Send for so long."""
        if took_s <= 0.0 or not active:
            return
        rates = self._of(active)
        for key, rate in zip(list(active), rates, strict=True):
            active[key] = max(active[key] - rate * took_s, 0.0)

    def _of(self, active: dict[tuple[int, int], float]) -> list[float]:
        """Return the rates of these transfers, in order."""
        kinds = tuple([self.kind[node - self.offset] for node, _ in active])
        if kinds not in self.known:
            self.known[kinds] = self._filled(list(kinds))
        return self.known[kinds]

    def _filled(self, transfers: list[int]) -> list[float]:
        """Return the rates of transfers of these kinds, by raising all alike until a link
        is full, and going on with the others."""
        rates = dict.fromkeys(range(len(transfers)), math.inf)
        free, open_ = list(self.capacity), set(rates)
        while open_:
            load: dict[int, float] = {}
            for k in open_:
                for link, unit in self.links[transfers[k]]:
                    load[link] = load.get(link, 0.0) + unit
            share = {link: free[link] / units for link, units in load.items()}
            level = min(
                min(share.values(), default=math.inf), min(self.most[transfers[k]] for k in open_)
            )
            closed = {
                k
                for k in open_
                if self.most[transfers[k]] <= level
                or any(share[link] <= level * (1 + 1e-12) for link, _ in self.links[transfers[k]])
            }
            for k in closed:
                rates[k] = level
                for link, unit in self.links[transfers[k]]:
                    free[link] -= unit * level
            open_ -= closed
            if not math.isfinite(level):
                break
        return [rates[k] for k in range(len(transfers))]
