"""The events of a Chrome trace as blocks on rows, a row per resource."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from perfmodel.reporting.contents import Block, Timeline

Event = Mapping[str, Any]

MOST_BLOCKS = 8000
"""Blocks of a timeline; where there are more, neighbours of one kind become one."""

MOST_LANES = 6
"""Operations of one resource at a time that are drawn below each other; more become one block."""

FINEST = 4000
"""Parts of the length of a timeline within which gaps are closed first, where there are too many
blocks."""

_LANE = re.compile(r" \(\d+\)$")


class Resource(NamedTuple):
    """A row: its name, how much of it is drawn below each other, and its blocks."""

    name: str
    lanes: int
    blocks: list[Block]


def timeline(events: Sequence[Event]) -> Timeline:
    """Rows of workers first, then servers, links and the rest, in the order of the nodes.

    Parameters
    ----------
    events : of :meth:`perfmodel.results.prediction.Prediction.to_chrome_trace`.
    """
    spans = [event for event in events if event["ph"] == "X" and event["dur"] > 0.0]
    if not spans:
        return Timeline((), (), 0.0)
    begin = min(event["ts"] for event in spans)
    length_s = max(event["ts"] + event["dur"] - begin for event in spans) * 1e-6
    resources = _resources(events, spans, begin)
    gap_s = 0.0
    while sum(len(each.blocks) for each in resources) > MOST_BLOCKS and gap_s < length_s:
        merged = [each._replace(blocks=_joined(each.blocks, gap_s)) for each in resources]
        resources, gap_s = merged, 2.0 * gap_s or length_s / FINEST
    rows = [each.name for each in resources]
    blocks = tuple(
        Block(b.kind, row + b.top, b.height, b.start_s, b.end_s, b.name, *_rest(b))
        for row, each in enumerate(resources)
        for b in each.blocks
    )
    return Timeline(rows, blocks, length_s)


def busy_s(events: Sequence[Event]) -> list[tuple[str, str, float, int]]:
    """Seconds and number of the operations of each kind on each resource, in the order of rows.

    Operations that a resource does at the same time all count.
    """
    names = _names(events)
    found: dict[tuple[str, str], tuple[float, int]] = {}
    for event in events:
        if event["ph"] == "X" and event["dur"] > 0.0:
            key = _LANE.sub("", names[event["pid"], event["tid"]]), event["cat"]
            seconds, count = found.get(key, (0.0, 0))
            found[key] = (seconds + event["dur"] * 1e-6, count + 1)
    rows = [(name, kind, *value) for (name, kind), value in found.items()]
    return sorted(rows, key=lambda row: _order(row[0]))


def _names(events: Iterable[Event]) -> dict[tuple[int, int], str]:
    return {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}


def _order(name: str) -> tuple[int, list[int], str]:
    """Devices of workers, then servers, then links; each by their numbers."""
    starts = ("device", "cores", "update threads", "server", "link")
    kind = next((i for i, start in enumerate(starts) if name.startswith(start)), len(starts))
    return kind, [int(digits) for digits in re.findall(r"\d+", name)], name


def _resources(events: Sequence[Event], spans: Sequence[Event], begin: float) -> list[Resource]:
    """The blocks of each resource: one per operation, unless too many run at a time."""
    names = _names(events)
    of: dict[str, dict[int, list[Block]]] = defaultdict(lambda: defaultdict(list))
    for event in spans:
        start_s = (event["ts"] - begin) * 1e-6
        resource = _LANE.sub("", names[event["pid"], event["tid"]])
        block = Block(
            event["cat"],
            0.0,
            1.0,
            start_s,
            start_s + event["dur"] * 1e-6,
            event["name"],
            1,
            event["args"]["queued_us"] * 1e-6,
            event["args"]["bytes"],
        )
        of[resource][event["tid"]].append(block)
    found = []
    for name in sorted(of, key=_order):
        lanes = of[name]
        count = len(lanes) if len(lanes) <= MOST_LANES else 1
        height = 0.8 / count
        placed = [
            _moved(block, 0.1 + (lane % count) * height, height)
            for lane, thread in enumerate(sorted(lanes))
            for block in lanes[thread]
        ]
        blocks = placed if count == len(lanes) else _joined(placed, 0.0)
        found.append(Resource(name, count, blocks))
    return found


def _moved(b: Block, top: float, height: float) -> Block:
    return Block(b.kind, top, height, b.start_s, b.end_s, b.name, *_rest(b))


def _rest(b: Block) -> tuple[int, float, float]:
    return b.count, b.queued_s, b.size_bytes


def _joined(blocks: Sequence[Block], gap_s: float) -> list[Block]:
    """Blocks of one kind and lane as one, where no more than ``gap_s`` is between them."""
    last: dict[tuple[str, float], int] = {}
    found: list[Block] = []
    for block in sorted(blocks, key=lambda b: b.start_s):
        key = (block.kind, block.top)
        at = last.get(key)
        if at is not None and block.start_s <= found[at].end_s + gap_s:
            found[at] = _both(found[at], block)
        else:
            last[key] = len(found)
            found.append(block)
    return found


def _both(a: Block, b: Block) -> Block:
    """Two blocks as one, called by its first operation and how many there are."""
    count = a.count + b.count
    first = a.name.partition(" and ")[0] if a.count > 1 else a.name
    return Block(
        a.kind,
        a.top,
        a.height,
        a.start_s,
        max(a.end_s, b.end_s),
        f"{first} and {count - 1} more",
        count,
        a.queued_s,
        a.size_bytes + b.size_bytes,
    )
