"""Traced ranks as an op graph, which the engine runs: :func:`joined`.

The host launches works in order, with the pauses that it made. A work begins when it is launched,
the one before it on its stream has ended, and so have those that it waits for; time that none of
these explains is kept. A meeting begins when all its sides have, and ends on all of them at once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from perfmodel.base.arrays import Floats
from perfmodel.calibration.meetings import P2P, Meeting
from perfmodel.graph.builder import GraphBuilder
from perfmodel.graph.op_graph import OpGraph
from perfmodel.traces.ranks import RankTrace

LAUNCH, AWAITED = "launch", "awaited"


class HostMoment(NamedTuple):
    """A moment on the host: the launch ``of`` a work, or the end of a wait."""

    at_s: float
    kind: str
    of: int


class RankTimes(NamedTuple):
    """What a replay takes from a trace (s).

    ``points`` on the host, and the time before each, ``pauses`` (points,); of each work its time
    ``lengths`` and the unexplained time before it, ``delays`` (works,).
    """

    points: tuple[HostMoment, ...]
    pauses: Floats
    lengths: Floats
    delays: Floats


class Joined(NamedTuple):
    """A graph, and the op of each rank that ends when all ranks have ended, (traces,)."""

    graph: OpGraph
    ends: tuple[int, ...]


def times_of(trace: RankTrace) -> RankTimes:
    """Pauses of the host, and times of works."""
    points = [
        HostMoment(work.launched_s, LAUNCH, i)
        for i, work in enumerate(trace.works)
        if work.launched_s is not None
    ]
    points += [HostMoment(wait.end_s, AWAITED, k) for k, wait in enumerate(trace.waits)]
    points.sort()
    pauses, now = [], trace.start_s
    for point in points:
        since = now
        if point.kind == AWAITED:
            since = max(now, *(trace.works[i].end_s for i in trace.waits[point.of].works))
        pauses.append(max(0.0, point.at_s - since))
        now = max(now, point.at_s)
    lengths = np.array([work.end_s - work.start_s for work in trace.works])
    return RankTimes(tuple(points), np.array(pauses), lengths, _delays(trace))


def _delays(trace: RankTrace) -> Floats:
    """Time before each work that nothing explains, (works,)."""
    last: dict[str, float] = {}
    delays = np.zeros(len(trace.works))
    for i, work in enumerate(trace.works):
        ready = max(
            trace.start_s if work.launched_s is None else work.launched_s,
            last.get(work.stream, 0.0),
            *(trace.works[j].end_s for j in trace.after[i]),
        )
        delays[i] = max(0.0, work.start_s - ready)
        last[work.stream] = max(last.get(work.stream, 0.0), work.end_s)
    return delays


def joined(
    traces: Sequence[RankTrace],
    times: Sequence[RankTimes],
    found: Sequence[Meeting],
    *,
    seconds: Floats,
    offsets: Sequence[float],
    overlap: str = "traced",
) -> Joined:
    """Join ranks to a graph whose one iteration is all traced steps.

    Parameters
    ----------
    times : of each trace.
    seconds : of each meeting, once all sides are there, (meetings,).
    offsets : of the clocks (s), (traces,).
    overlap : *traced*; *none*: works launched after a collective wait for it; *full*: none does.
    """
    builder = GraphBuilder()
    begun = [offsets[k] + trace.start_s for k, trace in enumerate(traces)]
    late = np.array(begun) - min(begun)
    device = builder.slots("device", (len(traces),), axes=(("rank", _names(traces)),))
    pipelined = {s.trace for m in found if m.kind == P2P for s in m.sides}
    named = tuple(f"{m.operation} in group {m.group}" for m in found)
    meet = builder.ops("exchange", (len(found),), seconds=seconds, axes=(("exchange", named),))
    met: dict[tuple[int, int], list[int]] = defaultdict(list)
    for n, meeting in enumerate(found):
        for side in meeting.sides:
            met[side.trace, side.work].append(n)
    ranks = []
    for k, trace in enumerate(traces):
        waits = "pipeline" if k in pipelined else "straggler"
        parts = _Rank(builder, trace, times[k], int(device[k]), waits, float(late[k]))
        for i in range(len(trace.works)):
            for n in met.get((k, i), ()):
                builder.edge(parts.ready[i], meet[n])
                builder.edge(meet[n], parts.run[i])
        parts.connect(overlap)
        ranks.append(parts)
    ends = np.array([rank.end for rank in ranks])
    for rank in ranks:
        builder.edge(rank.done, ends)
        builder.edge(rank.end, rank.begin, lag=1)
    return Joined(builder.build(device=device, mark=ends), tuple(map(int, ends)))


def _names(traces: Sequence[RankTrace]) -> tuple[str, ...]:
    return tuple(str(trace.rank) for trace in traces)


class _Rank:
    """Ops of a rank: points of the host, and of each work when it is ready and while it runs."""

    def __init__(
        self,
        builder: GraphBuilder,
        trace: RankTrace,
        times: RankTimes,
        device: int,
        waits: str,
        late_s: float,
    ) -> None:
        self.builder, self.trace, self.times = builder, trace, times
        name = str(trace.rank)
        own = np.array([not work.exchanges for work in trace.works])
        main = np.array([w.stream == trace.main and w.kind == "compute" for w in trace.works])
        count = len(trace.works)
        self.begin = int(builder.ops(f"begin of rank {name}", (1,), seconds=late_s)[0])
        self.host = builder.ops(
            f"host of rank {name}", (len(times.points),), seconds=times.pauses, cause="cpu"
        )
        self.ready = builder.ops(
            f"launch on rank {name}", (count,), seconds=times.delays, cause="cpu"
        )
        self.run = builder.ops(
            f"work of rank {name}",
            (count,),
            seconds=np.where(own, times.lengths, 0.0),
            slot=np.where(main, device, -1),
            cause=waits,
        )
        self.done = int(builder.ops(f"last of rank {name}", (1,), cause=waits)[0])
        self.end = int(builder.ops(f"end of rank {name}", (1,), slot=device, cause=waits)[0])

    def connect(self, overlap: str) -> None:
        """Add the edges within the rank."""
        trace, edge = self.trace, self.builder.edge
        edge(self.ready, self.run)
        edge(self.begin, self.host[:1])
        self.builder.chain(self.host)
        edge(self.begin, self.ready)
        last: dict[str, int] = {}
        for i, work in enumerate(trace.works):
            if work.stream in last:
                edge(self.run[last[work.stream]], self.ready[i])
            last[work.stream] = i
        edge(self.run[list(last.values())], self.done)
        self._launches()
        pairs = [(i, j) for i, awaited in enumerate(trace.after) for j in awaited]
        if overlap == "full":
            pairs = [(i, j) for i, j in pairs if not self._hidden(i, j)]
        elif overlap == "none":
            pairs += self._exposed()
        if pairs:
            after, before = np.array(pairs).T
            edge(self.run[before], self.ready[after])

    def _launches(self) -> None:
        """Edges between the host and works."""
        trace, edge = self.trace, self.builder.edge
        for n, point in enumerate(self.times.points):
            if point.kind == LAUNCH:
                edge(self.host[n], self.ready[point.of])
            else:
                for i in trace.waits[point.of].works:
                    edge(self.run[i], self.host[n])

    def _hidden(self, after: int, before: int) -> bool:
        """Whether computing waits for a collective."""
        works = self.trace.works
        collective = works[before].exchanges and not any(
            e.operation in ("send", "recv") for e in works[before].exchanges
        )
        return bool(collective) and works[after].kind == "compute"

    def _exposed(self) -> list[tuple[int, int]]:
        """Pairs of the next computing on each stream after a collective, and the collective."""
        works = self.trace.works
        pairs = []
        following: dict[str, int] = {}
        for i in range(len(works) - 1, -1, -1):
            if works[i].kind == "compute":
                following[works[i].stream] = i
            elif works[i].exchanges:
                pairs += [(j, i) for j in following.values() if self._hidden(j, i)]
        return pairs
