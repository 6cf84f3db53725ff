"""The engine on graphs small enough to follow by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from perfmodel import InputError
from perfmodel.base.arrays import Ids
from perfmodel.engine.measures import Measures
from perfmodel.engine.simulation import makespan, simulate, timeline
from perfmodel.graph.builder import GraphBuilder
from perfmodel.graph.op_graph import OpGraph


def two_ops(lag: int) -> OpGraph:
    """A cycle of two ops of 3 s and 4 s, each on its own device, with ``lag`` tokens."""
    b = GraphBuilder()
    slots = b.slots("slot", (2,))
    ops = b.ops("op", (2,), seconds=[3.0, 4.0], slot=slots)
    b.edge(ops[0], ops[1])
    b.edge(ops[1], ops[0], lag=lag)
    return b.build(device=slots[1:], mark=ops[1:])


@pytest.mark.parametrize(("lag", "period"), [(1, 7.0), (2, 4.0), (3, 4.0)])
def test_more_tokens_overlap_more(lag: int, period: float) -> None:
    assert simulate(two_ops(lag)).iterations_per_s[0] == pytest.approx(1 / period)


def test_a_cycle_without_lag_is_refused_and_named() -> None:
    cycle = r"edges without lag form a cycle: 'op\[0\]' -> 'op\[1\]' -> 'op\[0\]'"
    with pytest.raises(InputError, match=cycle):
        simulate(two_ops(0))


def test_slots_serve_first_come_first_served_and_lower_ids_first() -> None:
    b = GraphBuilder()
    device = b.slots("device", (1,))
    late = b.ops("late", (1,), seconds=1.0)
    ops = b.ops("op", (3,), seconds=2.0, slot=device[0])
    b.edge(late, ops[:1])
    graph = b.build(device=device, mark=ops[:1])
    started = {s.op: s.start_s for s in timeline(graph, iterations=1)}
    assert [started[int(op)] for op in ops] == [4.0, 0.0, 2.0]


def test_a_slot_with_two_places_serves_two() -> None:
    b = GraphBuilder()
    threads = b.slots("threads", (1,), capacity=2)
    ops = b.ops("op", (3,), seconds=2.0, slot=threads[0])
    assert makespan(b.build(device=threads, mark=ops[:1])) == 4.0


def test_latency_delays_what_follows_but_not_the_slot() -> None:
    b = GraphBuilder()
    line = b.slots("line", (1,))
    link = b.links("link", [10.0])
    sends = b.ops("send", (2,), bytes=10.0, path=link, latency_s=5.0, slot=line[0])
    after = b.ops("after", (1,))
    b.edge(sends, after)
    graph = b.build(device=line, mark=sends[:1])
    ends = [s.end_s for s in timeline(graph, iterations=1)]
    assert ends == [1.0, 2.0, 7.0]


def test_transfers_share_a_link_equally_and_speed_up_when_one_ends() -> None:
    b = GraphBuilder()
    device = b.slots("device", (1,))
    link = b.links("link", [10.0])
    ops = b.ops("send", (2,), bytes=[10.0, 30.0], path=link)
    b.edge(ops[1], ops[0], lag=1)
    ends = [s.end_s for s in timeline(b.build(device=device, mark=ops[:1]), iterations=1)]
    assert ends == [2.0, 4.0]


def ends_of(b: GraphBuilder, device: Ids, last: Ids) -> list[float]:
    graph = b.build(device=device, mark=last)
    return [round(s.end_s, 9) for s in sorted(timeline(graph, iterations=1), key=lambda s: s.op)]


def test_a_burst_passes_at_once_after_the_link_was_idle() -> None:
    """A bucket of 50 bytes that a link of 100 bytes/s fills."""
    b = GraphBuilder()
    device = b.slots("device", (1,))
    link = b.links("link", [100.0])
    sent = [b.ops("send", (1,), bytes=120.0, path=link, burst_bytes=50.0)]
    for pause_s in (0.0, 0.2, 9.0):
        pause = b.ops("pause", (1,), seconds=pause_s)
        sent.append(b.ops("send", (1,), bytes=120.0, path=link, burst_bytes=50.0))
        b.edge(sent[-2], pause)
        b.edge(pause, sent[-1])
    b.edge(sent[-1], sent[0], lag=1)
    ends = ends_of(b, device, sent[-1])
    # full: 70 bytes are left; empty: 120; filled for 0.2 s: 100; full again: 70
    assert ends == [0.7, 0.7, 1.9, 2.1, 3.1, 12.1, 12.8]


def test_a_message_within_the_burst_leaves_the_rest_of_it() -> None:
    b = GraphBuilder()
    device = b.slots("device", (1,))
    link = b.links("link", [100.0])
    ops = b.ops("send", (3,), bytes=[30.0, 30.0, 30.0], path=link, burst_bytes=50.0)
    b.chain(ops)
    b.edge(ops[-1], ops[0], lag=1)
    assert ends_of(b, device, ops[-1:]) == [0.0, 0.1, 0.4]


def test_the_emptier_of_two_buckets_limits_a_burst() -> None:
    b = GraphBuilder()
    device = b.slots("device", (1,))
    fast, slow = b.links("link", [100.0, 10.0])
    first = b.ops("send", (1,), bytes=60.0, path=slow, burst_bytes=50.0)
    pause = b.ops("pause", (1,), seconds=1.0)
    second = b.ops("send", (1,), bytes=60.0, path=[fast, slow], burst_bytes=50.0)
    b.edge(first, pause)
    b.edge(pause, second)
    b.edge(second, first, lag=1)
    # 10 bytes at 10 bytes/s; then the slow link's bucket has 10 bytes, and 50 bytes take 5 s
    assert ends_of(b, device, second) == [1.0, 2.0, 7.0]


@pytest.mark.parametrize(("late_s", "end_s"), [(0.0, 0.0), (0.5, 0.8), (0.9, 1.0), (1.5, 1.5)])
def test_a_request_waits_behind_what_its_link_holds(late_s: float, end_s: float) -> None:
    """Of 100 bytes at 100 bytes/s at most 30 are in the queue, and no more than are left. At the
    same instant as the transfer begins, the request is ahead."""
    b = GraphBuilder()
    device = b.slots("device", (1,))
    link = b.links("link", [100.0])
    send = b.ops("send", (1,), bytes=100.0, path=link)
    request = b.ops("request", (1,), seconds=late_s, path=link, queued_bytes=30.0)
    b.edge(request, send, lag=1)
    assert ends_of(b, device, send) == [1.0, end_s]


def test_a_request_overtakes_data_where_nothing_is_queued() -> None:
    b = GraphBuilder()
    device = b.slots("device", (1,))
    link = b.links("link", [100.0])
    send = b.ops("send", (1,), bytes=100.0, path=link)
    request = b.ops("request", (1,), seconds=0.5, path=link)
    b.edge(request, send, lag=1)
    assert ends_of(b, device, send) == [1.0, 0.5]


def test_a_rate_cap_leaves_bandwidth_to_others() -> None:
    b = GraphBuilder()
    device = b.slots("device", (1,))
    link = b.links("link", [10.0])
    ops = b.ops("send", (2,), bytes=[10.0, 16.0], path=link, rate_cap_bytes_per_s=[2.0, np.inf])
    b.edge(ops[0], ops[1], lag=1)
    spans = timeline(b.build(device=device, mark=ops[:1]), iterations=1)
    assert {s.op: s.end_s for s in spans} == {0: 5.0, 1: 2.0}


def test_max_min_shares_on_two_links() -> None:
    """Textbook case: flow A uses both links, B the first, C the second."""
    b = GraphBuilder()
    device = b.slots("device", (1,))
    links = b.links("link", [1.0, 2.0])
    paths = [[links[0], links[1]], [links[0], -1], [links[1], -1]]
    ops = b.ops("send", (3,), bytes=[0.5, 1.0, 3.0], path=paths)
    b.edge(ops[2], ops[:2], lag=1)
    spans = timeline(b.build(device=device, mark=ops[:1]), iterations=1)
    # until 1 s A and B get 0.5 each and C 1.5; then B has link 0 and C link 1 to itself
    assert {s.op: s.end_s for s in spans} == {0: 1.0, 1: 1.5, 2: 1.75}


def test_weights_divide_a_link_in_proportion() -> None:
    b = GraphBuilder()
    device = b.slots("device", (1,))
    link = b.links("link", [8.0])
    ops = b.ops("send", (2,), bytes=[6.0, 4.0], path=link, weight=[3.0, 1.0])
    b.edge(ops[1], ops[:1], lag=1)
    spans = timeline(b.build(device=device, mark=ops[:1]), iterations=1)
    assert {s.op: s.end_s for s in spans} == {0: 1.0, 1: 1.25}


def test_three_flows_on_one_route_have_triple_weight() -> None:
    b = GraphBuilder()
    device = b.slots("device", (1,))
    links = b.links("link", [8.0, 100.0])
    paths = [[links[0], -1]] * 3 + [[links[0], links[1]]]
    ops = b.ops("send", (4,), bytes=[2.0, 2.0, 2.0, 2.0], path=paths)
    spans = timeline(b.build(device=device, mark=ops[:1]), iterations=1)
    assert [s.end_s for s in spans] == [1.0] * 4


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("seconds", -1.0, r"op 'op': seconds must be between 0 and 1e\+15, got -1"),
        ("seconds", float("nan"), r"op 'op': seconds must be between 0 and 1e\+15, got nan"),
        ("bytes", float("inf"), r"op 'op': bytes must be between 0 and 1e\+18, got inf"),
    ],
)
def test_impossible_work_is_refused(field: str, value: float, message: str) -> None:
    b = GraphBuilder()
    device = b.slots("device", (1,))
    ops = b.ops("op", (1,), **{field: value})
    with pytest.raises(InputError, match=message):
        b.build(device=device, mark=ops)


def test_a_link_without_capacity_is_refused() -> None:
    b = GraphBuilder()
    device = b.slots("device", (1,))
    b.links("link", [0.0])
    with pytest.raises(InputError, match="capacity must be finite and positive, got 0"):
        b.build(device=device, mark=b.ops("op", (1,)))


def test_a_graph_cannot_be_changed() -> None:
    graph = two_ops(1)
    with pytest.raises(ValueError, match="read-only"):
        graph.op_seconds[0] = 5.0


def test_many_workers_pushing_and_pulling() -> None:
    """N workers push 62 tensors as they become ready, then pull them; one link each way.

    The makespans are from an independent simulator of one fairly shared link.
    """
    for workers, expected in ((8, 0.6332018523), (64, 4.7847639343)):
        assert makespan(_push_pull(workers)) == pytest.approx(expected, rel=1e-9)


def _tensors() -> list[int]:
    """Bytes of the 62 parameter tensors of ResNet-18."""
    out, channels = [64 * 3 * 49, 64, 64], 64
    for width in (64, 128, 256, 512):
        for block in range(2):
            first = channels if block == 0 else width
            out += [width * first * 9, width, width, width * width * 9, width, width]
            if block == 0 and width != 64:
                out += [width * first, width, width]
        channels = width
    return [4 * n for n in [*out, 512_000, 1000]]


def _compute_s(worker: int, layer: int, base_s: float, salt: int) -> float:
    """A time with a fixed variation of 20 % that depends on worker, layer and phase."""
    h = (worker * 2654435761 + layer * 40503 + salt) & 0xFFFFFFFF
    h = (h ^ (h >> 15)) * 2246822519 & 0xFFFFFFFF
    h = (h ^ (h >> 13)) & 0xFFFFFFFF
    return base_s / 62 * (0.8 + 0.4 * h / 2**32)


def _push_pull(n: int) -> OpGraph:
    b = GraphBuilder()
    device, up, down = (b.slots(label, (n,)) for label in ("device", "up", "down"))
    out, into = b.links("out", np.full(n, 1.25e9)), b.links("in", np.full(n, 1.25e9))
    server = b.links("server", [1.25e9, 1.25e9])

    def compute(base_s: float, salt: int) -> np.ndarray:
        return np.array([[_compute_s(w, la, base_s, salt) for la in range(62)] for w in range(n)])

    forward = b.ops("f", (n, 62), seconds=compute(0.040, 0), slot=device[:, None])
    backward = b.ops("b", (n, 62), seconds=compute(0.080, 97), slot=device[:, None])
    pushes = np.stack([out, np.full(n, server[0])], -1)[:, None, :]
    pulls = np.stack([np.full(n, server[1]), into], -1)[:, None, :]
    push = b.ops("u", (n, 62), bytes=_tensors()[::-1], path=pushes, slot=up[:, None])
    pull = b.ops("d", (n, 62), bytes=_tensors(), path=pulls, slot=down[:, None])
    for chain in (forward, backward, push, pull):
        b.chain(chain)
    b.edge(forward[:, -1], backward[:, 0])
    b.edge(backward, push)
    b.edge(push[:, -1], pull[:, 0])
    b.edge(pull[:, -1], forward[:, 0], lag=1)
    return b.build(device=device, mark=pull[:, -1])


def test_a_period_is_only_claimed_when_the_state_recurs() -> None:
    """Cycles of 4 s and 4.5 s: independent, they meet every 36 s; on one thread, they lock."""

    def measures(threads: int) -> Measures:
        b = GraphBuilder()
        devices, thread = b.slots("device", (2,)), b.slots("thread", (1,), capacity=threads)
        compute = b.ops("compute", (2,), seconds=[3.0, 3.5], slot=devices)
        update = b.ops("update", (2,), seconds=1.0, slot=thread[0])
        b.edge(compute, update)
        b.edge(update, compute, lag=1)
        return simulate(b.build(device=devices, mark=compute))

    apart, locked = measures(2), measures(1)
    assert apart.periodic  # nine iterations of one take as long as eight of the other
    assert apart.rounds == 8
    assert apart.iterations_per_s == pytest.approx([1 / 4, 1 / 4.5], rel=1e-12)
    assert locked.periodic
    assert locked.iterations_per_s == pytest.approx([1 / 4.5, 1 / 4.5], rel=1e-12)


def test_a_path_that_takes_a_link_twice_is_refused() -> None:
    b = GraphBuilder()
    link = b.links("link", [10.0, 10.0])
    with pytest.raises(InputError, match="'op': a path uses the same link twice"):
        b.ops("op", (1,), bytes=10.0, path=[link[1], link[0], link[1]])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"priority": 40_000}, "'op': priority must be from -32767 to 32767"),
        ({"slots": list(range(1, 201))}, "'op': number of slots must be at most 127"),
    ],
)
def test_values_the_engine_cannot_store_are_refused(given: dict[str, Any], message: str) -> None:
    b = GraphBuilder()
    slots = b.slots("slot", (201,))
    ops = b.ops("op", (1,), seconds=1.0, **given)
    with pytest.raises(InputError, match=message):
        b.build(device=slots[:1], mark=ops)


def test_a_slot_with_too_many_units_is_refused() -> None:
    b = GraphBuilder()
    slots = b.slots("slot", (1,), capacity=2**31)
    with pytest.raises(InputError, match="'slot': capacity must be at most 2147483647"):
        b.build(device=slots, mark=b.ops("op", (1,)))
