"""The rows of a timeline: operations of each resource as blocks, for its figure and its table."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterable, Sequence

import msgspec

from perfmodel.base.units import show
from perfmodel.reporting.colours import KIND_COLOURS, kind_colours
from perfmodel.reporting.contents import Axis, Bars, Panel
from perfmodel.results.timeline import KINDS, Resource, Timeline

MOST_BLOCKS = 8000
"""Largest number of blocks in a figure; beyond it, neighbours of one kind are merged."""

MOST_LANES = 6
"""Largest number of concurrent operations of a resource drawn below each other; more are merged."""

FINEST = 4000
"""If there are too many blocks, gaps shorter than 1 / FINEST of the timeline are closed first."""

ROUNDING = 1e-9
"""An operation may begin this fraction of the time before another ends and still follow it."""


class TimelineBlock(msgspec.Struct, frozen=True):
    """Operations of one kind on the row of a resource: ``count`` of them, from first to last.

    ``top`` and ``height`` are parts of the row; times are in seconds; ``mark`` is the text in it.
    """

    kind: str
    start_s: float
    end_s: float
    name: str
    queued_s: float
    bytes: float
    count: int = 1
    top: float = 0.0
    height: float = 1.0
    mark: str = ""


def rows_of(timeline: Timeline) -> dict[Resource, list[TimelineBlock]]:
    """Operations of each resource: workers, then servers, links and others, by number.

    A transfer is on each of its links.
    """
    rows: dict[Resource, list[TimelineBlock]] = defaultdict(list)
    for op in timeline.operations:
        if op.end_s <= op.start_s:
            continue
        queued_s = op.start_s - op.ready_s
        times = op.start_s, op.end_s
        block = TimelineBlock(op.kind, *times, op.name, queued_s, op.bytes, mark=op.mark)
        for resource in op.links or (op.resource,):
            rows[resource].append(block)
    return {resource: rows[resource] for resource in sorted(rows, key=_order)}


def busy_s(timeline: Timeline) -> list[tuple[str, str, float, int]]:
    """Resource, kind of operation, time (s) with at least one of that kind, and their count."""
    rows = []
    for resource, blocks in rows_of(timeline).items():
        for kind in dict.fromkeys(block.kind for block in blocks):
            of_kind = [block for block in blocks if block.kind == kind]
            seconds = sum(block.end_s - block.start_s for block in _joined(of_kind, 0.0))
            rows.append((resource.name, kind, seconds, len(of_kind)))
    return rows


def panel(timeline: Timeline, most_rows: int | None = None) -> Panel:
    """A row for each resource, with blocks merged until there are few enough to draw quickly.
    Layers of a micro-batch are one block, with its number.

    With more than ``most_rows`` resources, those of the first nodes with workers fill two
    thirds of the rows, and the busiest of other nodes, such as servers, the rest.
    """
    rows = rows_of(timeline)
    count = len(rows)
    if most_rows is not None and count > most_rows:
        rows = {resource: rows[resource] for resource in _chosen(rows, most_rows)}
    length_s = timeline.end_s - timeline.begin_s
    merged = _few([_in_lanes(_by_mark(blocks)) for blocks in rows.values()], length_s)
    placed = [(row, block) for row, blocks in enumerate(merged) for block in blocks]
    order = {kind: place for place, kind in enumerate(KIND_COLOURS)}
    kinds = sorted(
        dict.fromkeys(block.kind for _, block in placed), key=lambda k: order.get(k, len(order))
    )
    colours = kind_colours(kinds)
    marks = []
    for kind in kinds:
        of_kind = [(row, block) for row, block in placed if block.kind == kind]
        marks.append(
            Bars(
                kind,
                [block.end_s - timeline.begin_s for _, block in of_kind],
                colours[kind],
                start=[block.start_s - timeline.begin_s for _, block in of_kind],
                at=[row - 0.5 + block.top + block.height / 2.0 for row, block in of_kind],
                thick=[block.height for _, block in of_kind],
                inside=[block.mark for _, block in of_kind],
                tips=[_tip(block) for _, block in of_kind],
            )
        )
    x = Axis(f"time (s), {timeline.text}", low=0.0, high=length_s or None)
    y = Axis(names=[resource.short for resource in rows])
    title = f"{len(rows)} of {count} resources" if len(rows) < count else ""
    return Panel(marks, x, y, "x", title, legend=True, zoom=True)


def _order(resource: Resource) -> tuple[int, bool, int, int]:
    """Sort key of resources."""
    node = None if resource.kind == "device" else resource.node
    return KINDS.index(resource.kind), node is None, node or 0, resource.number


def _chosen(rows: dict[Resource, list[TimelineBlock]], most: int) -> list[Resource]:
    """The resources that a figure with few rows shows, in their order."""
    training = {resource.node for resource in rows if resource.kind == "device"}
    busy = {r: sum(block.end_s - block.start_s for block in rows[r]) for r in rows}
    others = [resource for resource in rows if resource.node not in training]
    others = sorted(others, key=lambda resource: -busy[resource])[: most // 3]
    of_nodes = sorted(
        (resource for resource in rows if resource.node in training),
        key=lambda resource: (resource.node is None, resource.node or 0),
    )
    kept = {*others, *of_nodes[: most - len(others)]}
    return [resource for resource in rows if resource in kept]


def _tip(block: TimelineBlock) -> str:
    """A block in words."""
    words = [block.name, show(block.end_s - block.start_s, "s")]
    words += [f"waited {show(block.queued_s, 's')} before"] if block.queued_s > 0.0 else []
    words += [show(block.bytes, "bytes")] if block.bytes > 0.0 else []
    return ", ".join(words)


def _few(rows: list[list[TimelineBlock]], length_s: float) -> list[list[TimelineBlock]]:
    """Rows with at most ``MOST_BLOCKS`` blocks, unless they cannot be merged further."""
    gap_s = 0.0
    while sum(map(len, rows)) > MOST_BLOCKS and gap_s <= length_s:
        rows = [_joined(blocks, gap_s) for blocks in rows]
        gap_s = 2.0 * gap_s or length_s / FINEST
    return rows


def _by_mark(blocks: Sequence[TimelineBlock]) -> list[TimelineBlock]:
    """Blocks of one row, with those of one mark that follow each other as one."""
    joined: list[TimelineBlock] = []
    for block in blocks:
        before = joined[-1] if joined else None
        same = before is not None and (before.kind, before.mark) == (block.kind, block.mark)
        if before is None or not (block.mark and same) or not _follows(before, block):
            joined.append(block)
        else:
            joined[-1] = _both(before, block)
    return joined


def _follows(before: TimelineBlock, block: TimelineBlock) -> bool:
    """Whether a block begins when the one before ends."""
    return abs(block.start_s - before.end_s) <= ROUNDING * block.end_s


def _in_lanes(blocks: Sequence[TimelineBlock]) -> list[TimelineBlock]:
    """Blocks of one row, with concurrent ones below each other; merged if there are too many."""
    free: list[tuple[float, int]] = []
    lanes = []
    count = 0
    for block in blocks:
        if free and free[0][0] <= block.start_s * (1.0 + ROUNDING):
            _, lane = heapq.heappop(free)
        else:
            lane, count = count, count + 1
        heapq.heappush(free, (block.end_s, lane))
        lanes.append(lane)
    if count > MOST_LANES:
        return _joined([msgspec.structs.replace(b, top=0.1, height=0.8) for b in blocks], 0.0)
    height = 0.8 / max(count, 1)
    return [
        msgspec.structs.replace(block, top=0.1 + lane * height, height=height)
        for block, lane in zip(blocks, lanes, strict=True)
    ]


def _joined(blocks: Iterable[TimelineBlock], gap_s: float) -> list[TimelineBlock]:
    """Merge blocks of one kind and lane with gaps of at most ``gap_s`` between them."""
    last: dict[tuple[str, float], int] = {}
    merged: list[TimelineBlock] = []
    for block in blocks:
        at = last.get((block.kind, block.top))
        if at is None or block.start_s > merged[at].end_s + gap_s:
            last[block.kind, block.top] = len(merged)
            merged.append(block)
            continue
        merged[at] = _both(merged[at], block)
    return merged


def _both(before: TimelineBlock, block: TimelineBlock) -> TimelineBlock:
    """Two blocks as one; the name is the first operation and the number of others."""
    count = before.count + block.count
    return msgspec.structs.replace(
        before,
        end_s=max(before.end_s, block.end_s),
        name=f"{before.name.partition(' and ')[0]} and {count - 1} more",
        count=count,
        bytes=before.bytes + block.bytes,
        mark=before.mark if before.mark == block.mark else "",
    )
