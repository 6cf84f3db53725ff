"""Exchanges of the traces of several ranks, matched: by process group, peer, and order."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from statistics import median

import msgspec

from perfmodel.base.errors import InputError
from perfmodel.base.units import show
from perfmodel.traces.exchanges import PAIRED, TracedExchange
from perfmodel.traces.ranks import RankTrace

P2P = "p2p"
"""Kind of sends and receives."""

UNEVEN = frozenset({"all_to_all", "broadcast", "barrier"})
"""Operations whose ranks may tell different sizes."""


class Side(msgspec.Struct, frozen=True):
    """A rank's part of a meeting: indices of its trace and of its work there."""

    trace: int
    work: int


class Meeting(msgspec.Struct, frozen=True, kw_only=True):
    """A collective, or a message from the first of two sides to the second.

    Attributes
    ----------
    kind : label of its group, else ranks and distance such as ``4x2``; :data:`P2P` of messages.
    ranks : that take part, traced or not.
    seconds : that it takes once all are there: as long as on the side that waits least.
    complete : whether all ranks of it were traced.
    """

    operation: str
    group: str
    kind: str
    ranks: int
    bytes: float
    sides: tuple[Side, ...]
    seconds: float
    complete: bool = True


Told = list[tuple[int, TracedExchange]]
"""Works (indices) and exchanges of a rank, in order."""


def meetings(traces: Sequence[RankTrace]) -> list[Meeting]:
    """Match the exchanges of traces, one of each rank, whose groups are known.

    A collective of which some ranks were not traced may have waited for them: it takes as long as
    the shortest of its kind, operation and size.

    Raises
    ------
    InputError : ranks that exchange messages were not all traced, or exchanges do not match.
    """
    places = {trace.rank: k for k, trace in enumerate(traces)}
    groups: dict[str, dict[int, Told]] = defaultdict(lambda: defaultdict(list))
    pairs: dict[tuple[int, int], dict[str, Told]] = defaultdict(lambda: {"send": [], "recv": []})
    for k, trace in enumerate(traces):
        for i, work in enumerate(trace.works):
            for exchange in work.exchanges:
                if exchange.operation not in PAIRED:
                    groups[exchange.group][k].append((i, exchange))
                    continue
                peer = _peer(exchange, trace, places)
                ends = (
                    (trace.rank or 0, peer) if exchange.operation == "send" else (peer, trace.rank)
                )
                pairs[ends[0], ends[1] or 0][exchange.operation].append((i, exchange))
    matched = [m for name, sides in groups.items() for m in _of_group(name, sides, traces)]
    matched += [m for ends, sides in pairs.items() for m in _of_pair(ends, sides, traces, places)]
    return _shortest(matched)


def _peer(exchange: TracedExchange, trace: RankTrace, places: Mapping[int | None, int]) -> int:
    if exchange.peer is None:
        raise InputError(
            f"{trace.path}: a {exchange.operation} in group {exchange.group!r} does not tell "
            "its peer"
        )
    if exchange.peer not in places:
        way = "sends to" if exchange.operation == "send" else "receives from"
        raise InputError(
            f"{trace.path}: rank {trace.rank} {way} rank {exchange.peer}, whose trace is missing: "
            "give the traces of all stages of a pipeline"
        )
    return exchange.peer


def _seconds(trace: RankTrace, work: int) -> float:
    return trace.works[work].end_s - trace.works[work].start_s


def _of_group(
    name: str, sides_of: Mapping[int, Told], traces: Sequence[RankTrace]
) -> Iterator[Meeting]:
    first = next(iter(sides_of))
    members = sides_of[first][0][1].members
    for k, exchanges in sides_of.items():
        if exchanges[0][1].members != members:
            raise InputError(
                f"{traces[k].path}: group {name!r} has other ranks than in {traces[first].path}: "
                "traces of different jobs"
            )
    absent = [k for k, t in enumerate(traces) if t.rank in members and k not in sides_of]
    for k in [*absent, *sides_of]:
        _same_order(name, (first, sides_of[first]), (k, sides_of.get(k, [])), traces)
    size = len(members) or len(traces)
    for same in zip(*sides_of.values(), strict=True):
        sides = tuple(Side(k, i) for k, (i, _) in zip(sides_of, same, strict=True))
        exchange = same[0][1]
        yield Meeting(
            operation=exchange.operation,
            group=name,
            kind=exchange.label or f"{size}x{_distance(members)}",
            ranks=size,
            bytes=max(e.bytes for _, e in same),
            sides=sides,
            seconds=min(_seconds(traces[s.trace], s.work) for s in sides),
            complete=len(sides) == size,
        )


def _distance(members: Sequence[int]) -> int:
    return members[1] - members[0] if len(members) > 1 else 1


def _same_order(
    name: str, first: tuple[int, Told], second: tuple[int, Told], traces: Sequence[RankTrace]
) -> None:
    """Check that two ranks do the same in a group."""
    (k, mine), (j, theirs) = first, second
    for n in range(max(len(mine), len(theirs))):
        words = [
            _words(exchanges[n][1]) if n < len(exchanges) else "nothing"
            for exchanges in (mine, theirs)
        ]
        pair = [exchanges[n][1] for exchanges in (mine, theirs) if n < len(exchanges)]
        uneven = len(pair) == 2 and pair[0].operation == pair[1].operation in UNEVEN
        if words[0] != words[1] and not uneven:
            raise InputError(
                f"{traces[j].path}: exchange {n + 1} of group {name!r} is {words[1]}, but "
                f"{words[0]} in {traces[k].path}: traces of different steps or jobs"
            )


def _words(exchange: TracedExchange) -> str:
    return f"{exchange.operation} of {show(exchange.bytes, 'bytes')}"


def _of_pair(
    ends: tuple[int, int],
    messages: Mapping[str, Told],
    traces: Sequence[RankTrace],
    places: Mapping[int | None, int],
) -> Iterator[Meeting]:
    k, j = (places[rank] for rank in ends)
    for n in range(max(map(len, messages.values()))):
        words = [_size(messages[way], n) for way in ("send", "recv")]
        if words[0] != words[1]:
            raise InputError(
                f"{traces[j].path}: message {n + 1} from rank {ends[0]} to {ends[1]} is {words[1]} "
                f"where it is received, but {words[0]} in {traces[k].path}: traces of different "
                "steps or jobs"
            )
    for (i, sent), (m, _) in zip(messages["send"], messages["recv"], strict=True):
        yield Meeting(
            operation="send",
            group=sent.group,
            kind=P2P,
            ranks=2,
            bytes=sent.bytes,
            sides=(Side(k, i), Side(j, m)),
            seconds=min(_seconds(traces[k], i), _seconds(traces[j], m)),
        )


def _size(messages: Told, n: int) -> str:
    return show(messages[n][1].bytes, "bytes") if n < len(messages) else "nothing"


def _shortest(matched: list[Meeting]) -> list[Meeting]:
    """Give meetings that may have waited the time of the shortest that is alike."""
    least: dict[tuple[str, str, float], float] = {}
    for m in matched:
        key = (m.kind, m.operation, m.bytes)
        least[key] = min(least.get(key, m.seconds), m.seconds)
    return [
        m if m.complete else msgspec.structs.replace(m, seconds=least[m.kind, m.operation, m.bytes])
        for m in matched
    ]


def clock_offsets(traces: Sequence[RankTrace], found: Sequence[Meeting]) -> list[float]:
    """What to add to the times of each trace for those of the first (s), (traces,).

    Traces of one machine have its clock. Otherwise exchanges end at the same time on all sides.
    Traces that have none in common with others begin when those begin.
    """
    first = traces[0]
    if first.machine and all(trace.machine == first.machine for trace in traces):
        return [trace.zero_s - first.zero_s for trace in traces]
    apart: dict[tuple[int, int], list[float]] = defaultdict(list)
    for m in found:
        first_side = m.sides[0]
        for side in m.sides[1:]:
            ends = [traces[s.trace].works[s.work].end_s for s in (first_side, side)]
            apart[first_side.trace, side.trace].append(ends[0] - ends[1])
            apart[side.trace, first_side.trace].append(ends[1] - ends[0])
    offsets: dict[int, float] = {}
    for k in range(len(traces)):
        if k in offsets:
            continue
        begun = min((offsets[j] + traces[j].start_s for j in offsets), default=traces[k].start_s)
        offsets[k] = begun - traces[k].start_s
        reached = [k]
        for at in reached:
            for (a, b), differences in apart.items():
                if a == at and b not in offsets:
                    offsets[b] = offsets[a] + median(differences)
                    reached.append(b)
    return [offsets[k] for k in range(len(traces))]
