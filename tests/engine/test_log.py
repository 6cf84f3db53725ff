"""The log of a simulation: its entries with both event loops, and that it changes nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from perfmodel.base.arrays import NONE
from perfmodel.base.errors import PerfmodelError
from perfmodel.engine import codes, layout, library
from perfmodel.engine.draws import philox
from perfmodel.engine.noise import key
from perfmodel.engine.run import Log, Simulation
from perfmodel.graph.builder import GraphBuilder
from perfmodel.graph.op_graph import OpGraph

SEED = 3
both_loops = pytest.mark.parametrize(
    "compiled",
    [
        False,
        pytest.param(
            True, marks=pytest.mark.skipif(bool(library.compiled()[1]), reason="not built")
        ),
    ],
)


def entries(graph: OpGraph, log: Log) -> list[tuple[float, str, str, int]]:
    """Time, op, event, and the alternative drawn."""
    names = {codes.LOG_READY: "ready", codes.LOG_END: "end"}
    rows = zip(*(column.tolist() for column in log), strict=True)
    return [(t, graph.op_name(what >> 2), names[what & 3], drawn) for t, what, drawn in rows]


def logged(graph: OpGraph, rounds: int, compiled: bool | None = None) -> list[Any]:
    with Simulation(graph, SEED, compiled, log=True) as run:
        run.advance(rounds)
        return entries(graph, run.log())


def chain() -> OpGraph:
    """An op of 2 s; then one of 1 s with 0.5 s latency, in every second iteration."""
    b = GraphBuilder()
    device = b.slots("device", (1,))
    first = b.ops("first", (1,), seconds=2.0, slot=device)
    second = b.ops("second", (1,), seconds=1.0, latency_s=0.5)
    b.edge(first, second)
    b.edge(second, first, lag=1)
    b.active(second, every=2, phase=1)
    b.log("begins", first, at_ready=True)
    b.log("ends", second)
    b.log("seldom", second, at_ready=True)
    return b.build(device=device, mark=first)


@both_loops
def test_ready_and_end_of_active_instances(compiled: bool) -> None:
    assert logged(chain(), 3, compiled) == [
        (0.0, "first", "ready", NONE),
        (2.0, "first", "ready", NONE),
        (4.0, "second", "ready", NONE),
        (5.5, "second", "end", NONE),
        (5.5, "first", "ready", NONE),
        (7.5, "first", "ready", NONE),
    ]


def drawing() -> OpGraph:
    """An op that chooses one of three routes."""
    b = GraphBuilder()
    device = b.slots("device", (1,))
    links = b.links("link", [1.0, 2.0, 4.0])
    work = b.ops("work", (1,), seconds=1.0, slot=device)
    send = b.ops("send", (1,), bytes=4.0)
    b.choose(send, draw=b.streams((1,)), paths=links[None, :, None])
    b.edge(work, send)
    b.edge(send, work, lag=1)
    b.log("send", send, at_ready=True)
    b.log("sent", send)
    return b.build(device=device, mark=work)


@both_loops
def test_what_was_drawn(compiled: bool) -> None:
    """Word 1 of the stream at the iteration; the transfer takes the time of the drawn link."""
    found = logged(drawing(), 21, compiled)
    words = [philox(i, 0, key(SEED), 1) * 3 >> 32 for i in range(21)]
    assert set(words) == {0, 1, 2}
    assert [drawn for _, _, what, drawn in found if what == "ready"] == words
    sent = [t for t, _, what, _ in found if what == "end"]
    began = [t for t, _, what, _ in found if what == "ready"]
    took = np.subtract(sent, began[:20]).tolist()
    assert took == pytest.approx([4.0 / 2**word for word in words[:20]])


@both_loops
def test_a_log_is_emptied_as_it_fills(compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = logged(chain(), 100, compiled)
    monkeypatch.setattr(layout, "LOG_ROOM", 1)
    assert logged(chain(), 100, compiled) == whole
    assert len(whole) == 100 + 2 * 49 + 1


@both_loops
def test_logging_continues_after_a_read(compiled: bool) -> None:
    graph = chain()
    with Simulation(graph, SEED, compiled, log=True) as run:
        run.advance(3)
        found = entries(graph, run.log())
        assert not entries(graph, run.log())
        run.advance(10)
        found += entries(graph, run.log())
    assert found == logged(chain(), 10, compiled)


@both_loops
def test_logging_does_not_change_results(compiled: bool) -> None:
    graph, found = drawing(), []
    for log in (False, True, False):
        with Simulation(graph, SEED, compiled, log=log) as run:
            run.advance(50)
            found.append((run.now, run.totals().moved.tolist(), run.totals().slot_busy.tolist()))
    assert found[0] == found[1] == found[2]


@both_loops
def test_an_op_that_repeats_for_ever_at_one_instant_is_refused(
    compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layout, "LOG_ROOM", 1)
    b = GraphBuilder()
    device = b.slots("device", (1,))
    idle = b.ops("idle", (1,))
    work = b.ops("work", (1,), seconds=1.0, slot=device)
    b.edge(work, work, lag=1)
    b.log("idle", idle)
    graph = b.build(device=device, mark=work)
    with pytest.raises(PerfmodelError, match="'idle' is logged too often at one instant"):
        logged(graph, 1, compiled)
