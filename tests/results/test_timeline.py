"""The rows of a timeline: one per worker, server and link, with every operation on its row."""

from __future__ import annotations

from typing import Any

import pytest

from perfmodel import Server, predict
from perfmodel.reporting.contents import Block
from perfmodel.results import timeline as timelines
from perfmodel.results.timeline import Resource, busy_s, resources, timeline
from tests.jobs import cluster, job, workload

WORK = workload([1.0], [2.0], [4.0])


def events(workers: int = 2, **options: Any) -> list[dict[str, Any]]:
    where = cluster(server=Server(update_per_tensor_s=1.0))
    found = predict(job(WORK, where, workers, "ps", options)).to_chrome_trace()
    made: list[dict[str, Any]] = found["traceEvents"]
    return made


def block(start_s: float, end_s: float, kind: str = "push", name: str = "a") -> Block:
    return Block(kind, 0.0, 1.0, start_s, end_s, name, 1, 0.0, 2.0)


def test_workers_servers_and_links_have_a_row_each() -> None:
    names = [each.name for each in resources(events())]
    assert names[:3] == ["device of worker 0", "device of worker 1", "update threads of server 0"]
    assert names[3:] == [
        "link into node 0",
        "link out of node 0",
        "link into node 1",
        "link out of node 1",
        "link into node 2 (server 0)",
        "link out of node 2 (server 0)",
    ]
    rows = timeline(resources(events())).rows
    assert rows[0] == "worker 0"
    assert rows[2] == "updates of server 0"
    assert rows[-1] == "out of node 2 (server 0)"


def test_a_transfer_is_on_both_links_and_computation_on_the_device() -> None:
    found = {each.name: each.blocks for each in resources(events(workers=1))}
    device = {(b.kind, round(b.end_s - b.start_s, 9)) for b in found["device of worker 0"]}
    assert device == {("forward", 1.0), ("backward", 2.0)}
    out, into = found["link out of node 0"], found["link into node 1 (server 0)"]
    assert [(b.start_s, b.end_s) for b in out] == [(b.start_s, b.end_s) for b in into]
    assert {b.kind for b in out} == {"push"}


def test_busy_time_counts_overlapping_operations_once() -> None:
    both = Resource("link out of node 0", [block(0.0, 2.0), block(1.0, 3.0), block(5.0, 6.0)])
    assert busy_s([both]) == [("link out of node 0", "push", 4.0, 3)]
    device = Resource("d", [block(0.0, 1.0, "forward"), block(1.0, 3.0, "backward")])
    assert [row[1:3] for row in busy_s([device])] == [("forward", 1.0), ("backward", 2.0)]


def test_concurrent_operations_are_below_each_other() -> None:
    drawn = timeline([Resource("a", [block(0.0, 2.0), block(1.0, 3.0), block(2.0, 4.0)])])
    tops = [b.top for b in drawn.blocks]
    assert tops[0] == tops[2] < tops[1]
    assert all(b.top >= 0.0 and b.top + b.height <= 1.0 for b in drawn.blocks)
    assert drawn.length_s == 4.0


def test_too_many_concurrent_operations_are_merged() -> None:
    count = timelines.MOST_LANES + 1
    drawn = timeline([Resource("a", [block(0.1 * k, 5.0, name=f"op {k}") for k in range(count)])])
    (one,) = drawn.blocks
    assert (one.start_s, one.end_s, one.count, one.size_bytes) == (0.0, 5.0, count, 2.0 * count)
    assert one.name == f"op 0 and {count - 1} more"


def test_too_many_blocks_are_merged_without_losing_any(monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = [block(float(k), k + 0.5) for k in range(100)]
    assert len(timeline([Resource("a", blocks)]).blocks) == 100
    monkeypatch.setattr(timelines, "MOST_BLOCKS", 10)
    monkeypatch.setattr(timelines, "FINEST", 100)
    drawn = timeline([Resource("a", blocks)])
    assert len(drawn.blocks) <= 10
    assert sum(b.count for b in drawn.blocks) == 100
    assert drawn.blocks[-1].end_s == 99.5


def test_an_empty_trace_has_no_blocks() -> None:
    assert timeline(resources([])).blocks == []
