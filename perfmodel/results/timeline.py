"""The events of a Chrome trace as blocks in rows: one row per worker, server and link."""

from __future__ import annotations

import heapq
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from perfmodel.reporting.contents import Block, Timeline

Event = Mapping[str, Any]

MOST_BLOCKS = 8000
"""Largest number of blocks in a timeline; beyond it, neighbours of one kind are merged."""

MOST_LANES = 6
"""Largest number of concurrent operations of a resource drawn below each other; more are merged."""

FINEST = 4000
"""If there are too many blocks, gaps shorter than 1 / FINEST of the timeline are closed first."""

_LANE = re.compile(r" \(\d+\)$")
_SHORTER = (
    (re.compile(r"^device of "), ""),
    (re.compile(r"^update threads of (.*)"), r"updates of \1"),
    (re.compile(r"^link (into|out of) (.*)"), r"\1 \2"),
)
_KINDS = ("device", "cores", "update threads", "link")


class Resource(NamedTuple):
    """A worker, server or link, and its operations as blocks in order of their start."""

    name: str
    blocks: list[Block]


def resources(events: Sequence[Event]) -> list[Resource]:
    """Workers, then servers, links and other resources, each ordered by number.

    A transfer appears on each of its links.

    Parameters
    ----------
    events : from :meth:`perfmodel.results.prediction.Prediction.to_chrome_trace`.
    """
    drawn = [event for event in events if event["ph"] == "X" and event["dur"] > 0.0]
    spans = [event for event in drawn if "operation" in event["args"]]  # skips whole iterations
    named = [event for event in events if event["name"] == "thread_name"]
    threads = {(event["pid"], event["tid"]): event["args"]["name"] for event in named}
    begin = min((event["ts"] for event in spans), default=0.0)
    found: dict[str, list[Block]] = defaultdict(list)
    for event in sorted(spans, key=lambda event: event["ts"]):
        start_s, args = (event["ts"] - begin) * 1e-6, event["args"]
        block = Block(
            kind=event["cat"],
            top=0.0,
            height=1.0,
            start_s=start_s,
            end_s=start_s + event["dur"] * 1e-6,
            name=args["operation"],
            count=1,
            queued_s=args["queued_us"] * 1e-6,
            size_bytes=args["bytes"],
        )
        where = args["links"] or (_LANE.sub("", threads[event["pid"], event["tid"]]),)
        for name in where:
            found[name].append(block)
    return [Resource(name, found[name]) for name in sorted(found, key=_order)]


def busy_s(found: Iterable[Resource]) -> list[tuple[str, str, float, int]]:
    """Resource, kind of operation, busy time (s) with at least one such operation, and count."""
    rows = []
    for name, blocks in found:
        for kind in dict.fromkeys(block.kind for block in blocks):
            mine = [block for block in blocks if block.kind == kind]
            seconds = sum(block.end_s - block.start_s for block in _joined(mine, 0.0))
            rows.append((name, kind, seconds, len(mine)))
    return rows


def timeline(found: Sequence[Resource]) -> Timeline:
    """The blocks in rows, merged until there are few enough for a browser to draw quickly."""
    length_s = max((b.end_s for _, blocks in found for b in blocks), default=0.0)
    rows = [_in_lanes(blocks) for _, blocks in found]
    gap_s = 0.0
    while sum(map(len, rows)) > MOST_BLOCKS and gap_s <= length_s:
        rows = [_joined(blocks, gap_s) for blocks in rows]
        gap_s = 2.0 * gap_s or length_s / FINEST
    return Timeline(
        [_short(name) for name, _ in found],
        [_placed(b, row + b.top, b.height) for row, blocks in enumerate(rows) for b in blocks],
        length_s,
    )


def _order(name: str) -> tuple[int, list[int], str]:
    """Sort key: worker devices, then servers, then links; each by number."""
    kind = next((i for i, start in enumerate(_KINDS) if name.startswith(start)), len(_KINDS))
    return kind, [int(digits) for digits in re.findall(r"\d+", name)], name


def _short(name: str) -> str:
    """A shortened name that fits beside a row.

    >>> _short("device of worker 3"), _short("link into node 8 (server 0)")
    ('worker 3', 'into node 8 (server 0)')
    """
    for pattern, shorter in _SHORTER:
        name = pattern.sub(shorter, name)
    return name


def _in_lanes(blocks: Sequence[Block]) -> list[Block]:
    """Blocks of one row, with concurrent ones below each other; merged if there are too many."""
    free: list[tuple[float, int]] = []
    lanes = []
    count = 0
    for block in blocks:
        if free and free[0][0] <= block.start_s * (1.0 + 1e-9) + 1e-12:
            _, lane = heapq.heappop(free)
        else:
            lane, count = count, count + 1
        heapq.heappush(free, (block.end_s, lane))
        lanes.append(lane)
    if count > MOST_LANES:
        return _joined([_placed(b, 0.1, 0.8) for b in blocks], 0.0)
    height = 0.8 / max(count, 1)
    return [_placed(b, 0.1 + k * height, height) for b, k in zip(blocks, lanes, strict=True)]


def _placed(b: Block, top: float, height: float) -> Block:
    more = (b.start_s, b.end_s, b.name, b.count, b.queued_s, b.size_bytes)
    return Block(b.kind, top, height, *more)


def _joined(blocks: Iterable[Block], gap_s: float) -> list[Block]:
    """Merge blocks of one kind and lane with gaps of at most ``gap_s`` between them."""
    last: dict[tuple[str, float], int] = {}
    found: list[Block] = []
    for block in blocks:
        key = (block.kind, block.top)
        at = last.get(key)
        if at is not None and block.start_s <= found[at].end_s + gap_s:
            found[at] = _both(found[at], block)
        else:
            last[key] = len(found)
            found.append(block)
    return found


def _both(a: Block, b: Block) -> Block:
    """Merge two blocks; the name is the first operation and the number of others."""
    count = a.count + b.count
    return Block(
        kind=a.kind,
        top=a.top,
        height=a.height,
        start_s=a.start_s,
        end_s=max(a.end_s, b.end_s),
        name=f"{a.name.partition(' and ')[0]} and {count - 1} more",
        count=count,
        queued_s=a.queued_s,
        size_bytes=a.size_bytes + b.size_bytes,
    )
