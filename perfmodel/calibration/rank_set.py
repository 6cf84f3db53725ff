"""Traces of the ranks of one job: read, checked, and with process groups where gloo hides them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np

from perfmodel.base.errors import InputError
from perfmodel.traces.exchanges import PAIRED, TracedExchange
from perfmodel.traces.ranks import RankTrace, read_rank

TOGETHER, TOGETHER_S = 3.0, 1e-4
"""Ranks are in a group if the ends of its collectives scatter at most so many times as widely as in
the group where they scatter least, and so many seconds more."""

Groups = Mapping[str, tuple[int, ...]]
"""Ranks of process groups, by name."""


def read_ranks(paths: Sequence[str | Path]) -> list[RankTrace]:
    """Read traces of ranks of one job, by rank; exchanges have groups.

    Raises
    ------
    InputError : there is none, one cannot be read, they are of different jobs or have different
        numbers of steps, two are of the same rank, or one does not tell its rank or groups.
    """
    if not paths:
        raise InputError("traces: give at least one")
    traces = [read_rank(path) for path in paths]
    ranks = Counter(trace.rank for trace in traces)
    first = traces[0]
    for trace in traces:
        if trace.rank is None:
            raise InputError(
                f"{trace.path}: it does not tell its rank (distributedInfo); trace with "
                "torch.distributed initialised, PyTorch 1.12 or newer"
            )
        if ranks[trace.rank] > 1:
            raise InputError(f"{trace.path}: two traces are of rank {trace.rank}")
        if trace.ranks != first.ranks:
            raise InputError(
                f"{trace.path}: of {trace.ranks} ranks, but {first.path} of {first.ranks}: traces "
                "of different jobs"
            )
        if trace.steps != first.steps:
            raise InputError(
                f"{trace.path}: {trace.steps} steps, but {first.steps} in "
                f"{first.path}: give traces of the same steps"
            )
        if trace.on_device != first.on_device:
            raise InputError(f"{trace.path}: of a device, or {first.path}, but not both")
    groups = _groups(traces)
    traces.sort(key=lambda trace: trace.rank or 0)
    return traces if first.on_device else _known(traces, groups)


def _groups(traces: Iterable[RankTrace]) -> dict[str, tuple[int, ...]]:
    """Process groups of all traces."""
    groups: dict[str, tuple[int, ...]] = {}
    for trace in traces:
        for name, members in trace.groups.items():
            if groups.setdefault(name, members) != members:
                raise InputError(
                    f"{trace.path}: group {name!r} has other ranks than in another trace: traces "
                    "of different jobs"
                )
    return groups


def _known(traces: Sequence[RankTrace], groups: Groups) -> list[RankTrace]:
    """Traces of gloo, with groups and peers under which all ranks do the same, at the same time."""
    exchanges = {trace.rank: [e for w in trace.works for e in w.exchanges] for trace in traces}
    ends_s: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for trace in traces:
        for work in trace.works:
            for e in work.exchanges:
                ends_s[e.operation][trace.rank or 0].append(work.end_s)
    known = []
    for trace in traces:
        joined = {name: m for name, m in groups.items() if trace.rank in m and len(m) > 1}
        made = {
            (e.operation, e.peer): _placed(e, trace, joined, exchanges, ends_s)
            for e in exchanges[trace.rank]
        }
        works = tuple(
            replace(
                work,
                exchanges=tuple(
                    msgspec.structs.replace(made[e.operation, e.peer], bytes=e.bytes)
                    for e in work.exchanges
                ),
            )
            for work in trace.works
        )
        known.append(replace(trace, works=works))
    return known


def _placed(
    exchange: TracedExchange,
    trace: RankTrace,
    groups: Groups,
    exchanges: Mapping[int | None, Sequence[TracedExchange]],
    ends_s: Mapping[str, Mapping[int, Sequence[float]]],
) -> TracedExchange:
    """An exchange in the group that it can be in."""
    rank = trace.rank or 0
    if exchange.operation not in PAIRED:
        mine = _sizes(exchanges[rank], exchange.operation)
        fits = {
            name: members
            for name, members in groups.items()
            if all(
                _sizes(exchanges[r], exchange.operation) == mine for r in members if r in exchanges
            )
        }
        if not fits:
            raise _ambiguous(trace, exchange, fits)
        name = _together(fits, ends_s[exchange.operation])
        return msgspec.structs.replace(exchange, group=name, members=fits[name])
    ways = ("send", "recv") if exchange.operation == "send" else ("recv", "send")
    mine = _sizes(exchanges[rank], ways[0], exchange.peer)
    peers = {}
    for name, members in groups.items():
        peer = members[exchange.peer or 0] if (exchange.peer or 0) < len(members) else rank
        theirs = _sizes(exchanges.get(peer, ()), ways[1], members.index(rank))
        if peer != rank and (peer not in exchanges or theirs == mine):
            peers[name] = (peer,)
    if len(set(peers.values())) != 1:
        raise _ambiguous(trace, exchange, peers)
    name, (peer,) = next(iter(peers.items()))
    return msgspec.structs.replace(exchange, group=name, members=groups[name], peer=peer)


def _together(fits: Groups, ends_s: Mapping[int, Sequence[float]]) -> str:
    """The group whose ranks end together: the largest that does so about as well as any other."""
    spreads = {}
    for name, members in fits.items():
        ends = [np.array(ends_s[rank]) for rank in members if rank in ends_s]
        apart = [end - ends[0] for end in ends]
        spreads[name] = max(
            float(np.median(np.abs(difference - np.median(difference)))) for difference in apart
        )
    least = min(spreads.values())
    candidates = [name for name in fits if spreads[name] <= TOGETHER * least + TOGETHER_S]
    return max(candidates, key=lambda name: len(fits[name]))


def _sizes(
    exchanges: Sequence[TracedExchange], operation: str, peer: int | None = None
) -> list[float]:
    return [e.bytes for e in exchanges if e.operation == operation and e.peer == peer]


def _ambiguous(trace: RankTrace, exchange: TracedExchange, fits: Groups) -> InputError:
    names = ", ".join(f"{name} {list(ranks)}" for name, ranks in fits.items())
    reason = f"may be in any of several groups ({names})" if fits else "fits none of its groups"
    return InputError(
        f"{trace.path}: gloo does not record groups, and {exchange.operation} {reason}, by the "
        "traces of the other ranks"
    )
