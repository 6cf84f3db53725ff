"""Queues for slots: the order in which ops leave them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from perfmodel.engine import queues

OPS = 40


def empty() -> Any:
    """A world with one slot that any op may use, and nothing in its queue."""
    ops = [SimpleNamespace(priority=0, since=0.0) for _ in range(OPS)]
    slot = SimpleNamespace(
        first=0, waiting=0, touched=0, head=-1, line=0, lined=0, room=OPS, free=1, group=-1
    )
    return SimpleNamespace(
        state=[SimpleNamespace(touched=0)],
        ops=ops,
        slots=[slot],
        queue=[0] * OPS,
        line=[0] * OPS,
        touched=[0],
    )


def taken(w: Any) -> int:
    op = int(w.slots[0].head)
    queues.dequeue(w, 0)
    return op


@pytest.mark.sampled(3)
@pytest.mark.parametrize("priorities", [1, 2, 5])
@pytest.mark.parametrize("seed", range(5))
def test_ops_leave_by_priority_then_time_then_id(priorities: int, seed: int) -> None:
    """Against a sorted list, while ops come and go a thousand times."""
    draw = np.random.default_rng(seed)
    w, waiting, now = empty(), [], 0.0
    for _ in range(1000):
        outside = [op for op in range(OPS) if op not in {op for _, _, op in waiting}]
        if waiting and (not outside or draw.random() < 0.5):
            waiting.sort()
            assert taken(w) == waiting.pop(0)[2]
        else:
            now += float(draw.integers(2))  # often several in one instant
            op = int(draw.choice(outside))
            w.ops[op].priority, w.ops[op].since = int(draw.integers(priorities)), now
            queues.enqueue(w, 0, op)
            waiting.append((w.ops[op].priority, now, op))
        assert w.slots[0].waiting == len(waiting)


def test_ops_of_one_priority_stand_in_line() -> None:
    """Ten that come one after another: the first stands alone, nine in line, none in the heap."""
    w = empty()
    for op in range(10):
        w.ops[op].since = float(op)
        queues.enqueue(w, 0, op)
    assert (w.slots[0].head, w.slots[0].lined) == (0, 9)
    w.ops[10].priority = -1
    queues.enqueue(w, 0, 10)  # goes first; the former first goes into the heap
    assert (w.slots[0].head, w.slots[0].lined, w.slots[0].waiting) == (10, 9, 11)
    assert [taken(w) for _ in range(11)] == [10, *range(10)]
