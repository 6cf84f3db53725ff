"""What traced steps of model-parallel ranks would take otherwise: :func:`what_if`.

The ranks' works are replayed by the engine: first as traced, which says how far the replay is off,
then with a change.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from statistics import fmean, median
from typing import Any

import msgspec
import numpy as np

from perfmodel.base.arrays import Floats
from perfmodel.base.errors import InputError
from perfmodel.calibration.exchange_times import (
    TraceChange,
    changed_s,
    exchange_s,
    traced_links,
)
from perfmodel.calibration.meetings import Meeting, clock_offsets, meetings
from perfmodel.calibration.rank_graph import RankTimes, joined, times_of
from perfmodel.calibration.rank_set import read_ranks
from perfmodel.engine import first_iterations, timeline
from perfmodel.graph.op_graph import CAUSES
from perfmodel.inputs.cluster import Link
from perfmodel.traces.ranks import RankTrace

SCHEMA = "perfmodel.what-if/1"

SLOW = 1.05
"""A rank that computes so many times as long as the middle of those that do the same is slow."""

LEAST = 1e-3
"""Shares of a step below this are not reported as causes of idling."""

WORDS = {
    "network": "communication",
    "cpu": "launches",
    "pipeline": "other stages",
    "straggler": "other ranks",
}
"""What a rank waits for, by cause of the engine."""


class RankUse(msgspec.Struct, frozen=True, kw_only=True):
    """What a rank does in a step (s): computes, and waits by cause."""

    rank: int
    compute_s: float
    waits_s: dict[str, float]


class Replayed(msgspec.Struct, frozen=True, kw_only=True):
    """Time of a step in a replay (s), and what each rank does in it."""

    step_s: float
    ranks: tuple[RankUse, ...]

    def mean_s(self, cause: str) -> float:
        """Mean wait of a rank for a cause (s)."""
        return fmean(rank.waits_s.get(cause, 0.0) for rank in self.ranks)


class ExchangeKind(msgspec.Struct, frozen=True, kw_only=True):
    """Exchanges of a kind: of groups of one label or size, or messages.

    Attributes
    ----------
    per_step : exchanges in a step, of all traced ranks.
    bytes : of one, mean.
    seconds : of one, mean, without waiting.
    link : as fast as they are; None if their sizes are unknown.
    complete : whether all their ranks were traced.
    """

    kind: str
    operations: tuple[str, ...]
    groups: int
    ranks: int
    per_step: float
    bytes: float
    seconds: float
    link: Link | None
    complete: bool


class TracedRanks:
    """Traces of ranks of a job, matched, to be replayed and changed.

    Parameters
    ----------
    paths : traces of ``torch.profiler``, one for each rank. All ranks that send messages to each
        other must be there; of other groups one is enough.

    Raises
    ------
    InputError : a trace cannot be read, or traces do not match.
    """

    def __init__(self, paths: Sequence[str | Path]) -> None:
        self.traces: list[RankTrace] = read_ranks(paths)
        self.meetings: list[Meeting] = meetings(self.traces)
        self.offsets = clock_offsets(self.traces, self.meetings)
        self._times = [times_of(trace) for trace in self.traces]

    @property
    def step_s(self) -> float:
        """Time of a step as recorded: from the first begin to the last end of all ranks."""
        ends = [trace.end_s + o for trace, o in zip(self.traces, self.offsets, strict=True)]
        return (max(ends) - self._zero_s() - self._lead_s()) / self.traces[0].steps

    def _zero_s(self) -> float:
        """When the first host begins (s, clock of the first trace)."""
        return min(t.start_s + o for t, o in zip(self.traces, self.offsets, strict=True))

    def _lead_s(self) -> float:
        """Time from then until works can begin on any device."""
        begins = [t.begin_s + o for t, o in zip(self.traces, self.offsets, strict=True)]
        return min(begins) - self._zero_s()

    @cached_property
    def traced(self) -> Replayed:
        """The replay without a change."""
        return self.replay(TraceChange())

    @property
    def error(self) -> float:
        """Replayed time of a step over the recorded one, less 1."""
        return self.traced.step_s / self.step_s - 1.0

    @cached_property
    def formula_error(self) -> float | None:
        """The same with exchanges by formulas, on links as traced; None where sizes are unknown."""
        links = traced_links(self.meetings)
        if not links:
            return None
        seconds = [
            exchange_s(m.operation, m.ranks, m.bytes, links[m.kind])
            if m.kind in links
            else m.seconds
            for m in self.meetings
        ]
        return self._replayed(self._times, np.array(seconds), "traced").step_s / self.step_s - 1.0

    @property
    def slow(self) -> dict[int, float]:
        """Ranks that compute longer than others that do the same, and how many times as long."""
        slowdowns = {}
        for k, trace in enumerate(self.traces):
            others = [self.traces[j].compute_s for j in self._alike(k)]
            if others and trace.compute_s > SLOW * median(others):
                slowdowns[trace.rank or 0] = trace.compute_s / median(others)
        return slowdowns

    @property
    def kinds(self) -> tuple[ExchangeKind, ...]:
        """The exchanges of the traces, by kind."""
        links, steps = traced_links(self.meetings), self.traces[0].steps
        kinds = []
        for kind in dict.fromkeys(m.kind for m in self.meetings):
            matched = [m for m in self.meetings if m.kind == kind]
            kinds.append(
                ExchangeKind(
                    kind=kind,
                    operations=tuple(dict.fromkeys(m.operation for m in matched)),
                    groups=len({m.group for m in matched}),
                    ranks=max(m.ranks for m in matched),
                    per_step=len(matched) / steps,
                    bytes=fmean(m.bytes for m in matched),
                    seconds=float(fmean(m.seconds for m in matched)),
                    link=links.get(kind),
                    complete=all(len(m.sides) == m.ranks for m in matched),
                )
            )
        return tuple(kinds)

    def replay(self, change: TraceChange) -> Replayed:
        """Replay the traces with a change.

        Raises
        ------
        InputError : the change is of ranks, groups or links that the traces do not have.
        DeadlockError : ranks wait for each other for ever.
        """
        times = list(self._times)
        for rank in change.as_others:
            k = self._place(rank)
            times[k] = self._like_others(k)
        times = [self._faster(k, t, change.compute_speed) for k, t in enumerate(times)]
        return self._replayed(times, changed_s(self.meetings, change), change.overlap)

    def _replayed(self, times: Sequence[RankTimes], seconds: Floats, overlap: str) -> Replayed:
        made = joined(
            self.traces,
            times,
            self.meetings,
            seconds=seconds,
            offsets=self.offsets,
            overlap=overlap,
        )
        try:
            spans = timeline(made.graph, iterations=1)
        except InputError as error:
            raise InputError(
                f"traces: ranks have their exchanges in different orders, so that each waits for "
                f"the other: {error}"
            ) from None
        end_s = max(float(span.end_s) for span in spans if span.op in made.ends)
        measured = first_iterations(made.graph, 1)
        each_s = end_s / self.traces[0].steps
        uses = tuple(
            RankUse(
                rank=trace.rank or 0,
                compute_s=float(busy) * each_s,
                waits_s={
                    cause: float(wait) * each_s
                    for cause, wait in zip(CAUSES, waits, strict=True)
                    if wait > LEAST
                },
            )
            for trace, busy, waits in zip(
                self.traces, measured.busy_fraction, measured.wait_fraction, strict=True
            )
        )
        return Replayed(step_s=(end_s - self._lead_s()) / self.traces[0].steps, ranks=uses)

    def _place(self, rank: int) -> int:
        for k, trace in enumerate(self.traces):
            if trace.rank == rank:
                return k
        known = ", ".join(str(trace.rank) for trace in self.traces)
        raise InputError(f"as_others: no trace is of rank {rank} (known: {known})")

    def _alike(self, k: int) -> list[int]:
        """Other traces with the same works in the same order."""
        works = _doing(self.traces[k])
        return [j for j, trace in enumerate(self.traces) if j != k and _doing(trace) == works]

    def _like_others(self, k: int) -> RankTimes:
        """Times of a rank as the middle of those that do the same."""
        ranks = self._alike(k)
        if not ranks:
            raise InputError(
                f"as_others: no other traced rank does the same as rank {self.traces[k].rank}"
            )
        times, others = self._times[k], [self._times[j] for j in ranks]
        kinds = [p.kind for p in times.points]
        same = all([p.kind for p in t.points] == kinds for t in others)
        return times._replace(
            lengths=np.median([t.lengths for t in others], axis=0),
            delays=np.median([t.delays for t in others], axis=0),
            pauses=np.median([t.pauses for t in others], axis=0) if same else times.pauses,
        )

    def _faster(self, k: int, times: RankTimes, speed: float) -> RankTimes:
        """Times of a rank whose device computes at another speed."""
        computes = np.array([work.kind == "compute" for work in self.traces[k].works])
        return times._replace(lengths=np.where(computes, times.lengths / speed, times.lengths))


def _doing(trace: RankTrace) -> list[tuple[object, ...]]:
    return [
        (w.name, w.stream, tuple((e.operation, e.bytes) for e in w.exchanges)) for w in trace.works
    ]


class WhatIf(msgspec.Struct, frozen=True, kw_only=True):
    """The traced steps, and what they would take with a change; see :func:`what_if`."""

    ranks: tuple[int, ...]
    workers: int | None
    steps: int
    recorded_s: float
    traced: Replayed
    changed: Replayed | None
    change: TraceChange
    formula_error: float | None
    kinds: tuple[ExchangeKind, ...]
    slow: dict[int, float]
    notes: tuple[str, ...]

    @property
    def error(self) -> float:
        """Replayed time of a step over the recorded one, less 1."""
        return self.traced.step_s / self.recorded_s - 1.0

    @property
    def speedup(self) -> float:
        """Replayed time of a step over that with the change."""
        return self.traced.step_s / self.changed.step_s if self.changed is not None else 1.0

    def to_dict(self) -> dict[str, Any]:
        """As JSON-like values."""
        values: dict[str, Any] = msgspec.to_builtins(self)
        values["slow"] = {str(rank): factor for rank, factor in self.slow.items()}
        return {"schema": SCHEMA, **values, "error": self.error, "speedup": self.speedup}

    def to_json(self) -> str:
        """As JSON."""
        return msgspec.json.format(msgspec.json.encode(self.to_dict()), indent=2).decode()


def what_if(paths: Sequence[str | Path], change: TraceChange | None = None) -> WhatIf:
    """Replay traces of ranks that divide a model, with a change if there is one.

    Parameters
    ----------
    paths : traces of ``torch.profiler``, one for each rank.

    Raises
    ------
    InputError : a trace cannot be read, traces do not match, or do not have what is changed.

    >>> what_if(["rank0.json", "rank1.json"], TraceChange(compute_speed=2.0))  # doctest: +SKIP
    """
    traced_ranks = TracedRanks(paths)
    asked = change or TraceChange()
    changed = None if asked == TraceChange() else traced_ranks.replay(asked)
    partial = [kind.kind for kind in traced_ranks.kinds if not kind.complete]
    notes = [f"{trace.path}: {note}" for trace in traced_ranks.traces for note in trace.notes]
    if partial:
        notes.append(
            f"some ranks of {', '.join(partial)} were not traced: nobody waits for them, and each "
            "of these exchanges takes as long as the shortest that is alike"
        )
    return WhatIf(
        ranks=tuple(trace.rank or 0 for trace in traced_ranks.traces),
        workers=traced_ranks.traces[0].ranks,
        steps=traced_ranks.traces[0].steps,
        recorded_s=traced_ranks.step_s,
        traced=traced_ranks.traced,
        changed=changed,
        change=asked,
        formula_error=traced_ranks.formula_error,
        kinds=traced_ranks.kinds,
        slow=traced_ranks.slow,
        notes=tuple(notes),
    )
