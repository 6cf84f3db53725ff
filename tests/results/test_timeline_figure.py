"""The rows of a timeline: one per worker, server and link, with every operation on its row."""

from __future__ import annotations

from typing import Any

import pytest

from perfmodel import Server, predict
from perfmodel.reporting.contents import Bars
from perfmodel.results import timeline_figure
from perfmodel.results.timeline import Operation, Resource, Timeline
from tests.jobs import cluster, job, workload

WORK = workload([1.0], [2.0], [4.0])


def timeline(workers: int = 2, **options: Any) -> Timeline:
    where = cluster(server=Server(update_per_tensor_s=1.0))
    return predict(job(WORK, where, workers, "ps", options)).timeline()


LINK = Resource("link out of node 0", "out of node 0", "link", 0, 0)


def operation(start_s: float, end_s: float, kind: str = "push", name: str = "a") -> Operation:
    return Operation(kind, name, 0, LINK, (LINK,), 2.0, start_s, start_s, end_s)


def of(*operations: Operation) -> Timeline:
    """A timeline of operations alone."""
    return Timeline(
        slowest=0, first=1, last=2, settled=1, begin_s=0.0,
        end_s=max((each.end_s for each in operations), default=0.0),
        nodes={0: "node 0"}, operations=operations, iterations=(), counters=(),
    )  # fmt: skip


def blocks(found: Timeline) -> list[tuple[float, float, float, float, str]]:
    """Start, end, top and bottom, and text of each block of the figure, by start."""
    return sorted(
        (*side, text)
        for mark in timeline_figure.panel(found).marks
        if isinstance(mark, Bars)
        for side, text in zip(mark.sides, mark.tips, strict=True)
    )


def test_workers_servers_and_links_have_a_row_each() -> None:
    result = timeline()
    names = [each.name for each in timeline_figure.rows_of(result)]
    assert names[:3] == ["device of worker 0", "device of worker 1", "update threads of server 0"]
    assert sorted(names[3:]) == [
        "link into node 0",
        "link into node 1",
        "link into node 2 (server 0)",
        "link out of node 0",
        "link out of node 1",
        "link out of node 2 (server 0)",
    ]
    rows = timeline_figure.panel(result).y.names
    assert rows[0] == "worker 0"
    assert rows[2] == "updates of server 0"
    assert {"into node 2 (server 0)", "out of node 2 (server 0)"} == set(rows[-2:])


def test_a_transfer_is_on_both_links_and_computation_on_the_device() -> None:
    result = {
        each.name: blocks for each, blocks in timeline_figure.rows_of(timeline(workers=1)).items()
    }
    device = {(b.kind, round(b.end_s - b.start_s, 9)) for b in result["device of worker 0"]}
    assert device == {("forward", 1.0), ("backward", 2.0)}
    out, into = result["link out of node 0"], result["link into node 1 (server 0)"]
    assert [(b.start_s, b.end_s) for b in out] == [(b.start_s, b.end_s) for b in into]
    assert {b.kind for b in out} == {"push"}


def test_busy_time_counts_overlapping_operations_once() -> None:
    both = of(operation(0.0, 2.0), operation(1.0, 3.0), operation(5.0, 6.0))
    assert timeline_figure.busy_s(both) == [("link out of node 0", "push", 4.0, 3)]
    two = of(operation(0.0, 1.0, "forward"), operation(1.0, 3.0, "backward"))
    assert [row[1:3] for row in timeline_figure.busy_s(two)] == [
        ("forward", 1.0),
        ("backward", 2.0),
    ]


def test_concurrent_operations_are_below_each_other() -> None:
    result = of(operation(0.0, 2.0), operation(1.0, 3.0), operation(2.0, 4.0))
    drawn = blocks(result)
    tops = [top for _, _, top, *_ in drawn]
    assert tops[0] == tops[2] < tops[1]
    assert all(top >= -0.5 and bottom <= 0.5 for _, _, top, bottom, _ in drawn)
    assert timeline_figure.panel(result).x.high == 4.0


def test_too_many_concurrent_operations_are_merged() -> None:
    count = timeline_figure.MOST_LANES + 1
    ((start, end, *_, text),) = blocks(
        of(*(operation(0.1 * k, 5.0, name=f"op {k}") for k in range(count)))
    )
    assert (start, end) == (0.0, 5.0)
    assert text == f"op 0 and {count - 1} more, 5 s, {2 * count} B"


def test_too_many_blocks_are_merged_without_losing_any(monkeypatch: pytest.MonkeyPatch) -> None:
    result = of(*(operation(float(k), k + 0.5) for k in range(100)))
    assert len(blocks(result)) == 100
    monkeypatch.setattr(timeline_figure, "MOST_BLOCKS", 10)
    monkeypatch.setattr(timeline_figure, "FINEST", 100)
    drawn = blocks(result)
    assert len(drawn) <= 10
    counts = [int(text.split(" and ")[1].split()[0]) + 1 for *_, text in drawn]
    assert sum(counts) == 100
    assert drawn[-1][1] == 99.5


def test_a_figure_with_few_rows_has_workers_of_the_first_nodes_and_the_busiest_servers() -> None:
    result = timeline(workers=8)
    panel = timeline_figure.panel(result, 9)
    assert panel.title == "9 of 27 resources"
    assert panel.y.names[:3] == ["worker 0", "worker 1", "updates of server 0"]
    assert {"into node 8 (server 0)", "out of node 8 (server 0)"} <= set(panel.y.names)


def test_an_empty_timeline_has_no_blocks() -> None:
    assert timeline_figure.panel(of()).marks == []
