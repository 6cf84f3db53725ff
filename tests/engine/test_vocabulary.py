"""Each element of a graph's vocabulary by itself, on graphs small enough to follow by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from perfmodel import DeadlockError, InputError, PerfmodelError
from perfmodel.base.arrays import Ids
from perfmodel.engine import run
from perfmodel.engine.simulation import makespan, simulate, timeline
from perfmodel.graph.builder import GraphBuilder
from perfmodel.graph.op_graph import OpGraph

Times = dict[tuple[int, int], tuple[float, float]]


def times(graph: OpGraph, iterations: int = 1, *, seed: int = 0) -> Times:
    """Start and end of each instance, by (op, iteration)."""
    spans = timeline(graph, seed=seed, iterations=iterations, compiled=False)
    return {(s.op, s.iteration): (s.start_s, s.end_s) for s in spans}


def runs(found: Times, op: Ids | int, iterations: int = 1) -> list[float]:
    """Start and end of the first ``iterations`` instances of an op, in order."""
    return [time for i in range(iterations) for time in found[int(op), i]]


def active_in(graph: OpGraph, op: Ids, iterations: int, *, seed: int = 0) -> list[bool]:
    """The iterations in which an op took time."""
    found = times(graph, iterations, seed=seed)
    return [found[int(op), i][1] > found[int(op), i][0] for i in range(iterations)]


class Small(GraphBuilder):
    """A builder with an unused device, for tests that only look at times."""

    def __init__(self) -> None:
        super().__init__()
        self.device = self.slots("device", (1,))

    def made(self, mark: Ids) -> OpGraph:
        return self.build(device=self.device, mark=np.ravel(mark)[:1])


# -- slots -------------------------------------------------------------------------------------


def released(b: GraphBuilder, ops: Ids, at_s: list[float]) -> None:
    """Make each op ready at its own time; the next round begins when all have ended."""
    wait = b.ops("wait", ops.shape, seconds=at_s)
    b.edge(wait, ops)
    b.edge(meet(b, ops), wait, lag=1)


def meet(b: GraphBuilder, ops: Ids) -> Ids:
    """Start no op's next round before all ops have ended this round."""
    everyone = b.ops("everyone", (1,))
    b.edge(ops, everyone)
    b.edge(everyone, ops, lag=1)
    return everyone


def test_a_slot_serves_first_come_first_served() -> None:
    b = Small()
    slot = b.slots("slot", (1,))
    ops = b.ops("op", (3,), seconds=2.0, slot=slot[0])
    released(b, ops, [1.5, 0.5, 1.0])
    found = times(b.made(ops))
    assert [runs(found, op) for op in ops] == [[4.5, 6.5], [0.5, 2.5], [2.5, 4.5]]


def test_simultaneous_arrivals_are_served_by_id() -> None:
    b = Small()
    slot = b.slots("slot", (1,))
    ops = b.ops("op", (3,), seconds=2.0, slot=slot[0])
    released(b, ops, [1.0, 1.0, 1.0])
    found = times(b.made(ops))
    assert [runs(found, op) for op in ops] == [[1.0, 3.0], [3.0, 5.0], [5.0, 7.0]]


def test_the_lowest_priority_goes_first_without_preemption() -> None:
    b = Small()
    slot = b.slots("slot", (1,))
    ops = b.ops("op", (4,), seconds=2.0, slot=slot[0], priority=[5, 7, -1, 5])
    released(b, ops, [0.5, 1.0, 2.0, 1.5])
    found = times(b.made(ops))
    starts = [runs(found, op)[0] for op in ops]
    assert starts == [0.5, 6.5, 2.5, 4.5]


@pytest.mark.parametrize(("capacity", "last"), [(1, 10.0), (2, 6.0), (4, 4.0), (5, 2.0)])
def test_a_slot_of_capacity_k_serves_k_at_once(capacity: int, last: float) -> None:
    b = Small()
    slot = b.slots("slot", (1,), capacity=capacity)
    ops = b.ops("op", (5,), seconds=2.0, slot=slot[0])
    assert makespan(b.made(ops), compiled=False) == last


def test_an_op_that_needs_several_units_is_not_overtaken() -> None:
    b = Small()
    slot = b.slots("credit", (1,), capacity=4)
    ops = b.ops("op", (4,), seconds=[4.0, 1.0, 1.0, 1.0], slot=slot[0], units=[2, 3, 1, 1])
    released(b, ops, [0.5, 1.0, 1.5, 2.0])
    found = times(b.made(ops))
    # the second needs 3 of 4 and must wait for the first; the others wait behind it
    assert [runs(found, op) for op in ops] == [[0.5, 4.5], [4.5, 5.5], [4.5, 5.5], [5.5, 6.5]]


def test_an_op_with_two_slots_starts_once_both_are_free_and_it_is_first_in_both() -> None:
    b = Small()
    a, c = b.slots("slot", (2,))
    ops = b.ops("op", (4,), seconds=[2.0, 3.0, 1.0, 1.0], slots=[[a, -1], [c, -1], [a, c], [a, -1]])
    released(b, ops, [0.0, 0.0, 1.0, 1.5])
    found = times(b.made(ops))
    # slot a is free from 2 s on, but reserved for an op that also waits for c until 3 s
    assert [runs(found, op) for op in ops] == [[0.0, 2.0], [0.0, 3.0], [3.0, 4.0], [4.0, 5.0]]


def test_units_of_several_slots_are_granted_slot_by_slot() -> None:
    b = Small()
    slots = b.slots("slot", (2,), capacity=[4, 2])
    ops = b.ops("op", (3,), seconds=1.0, slots=slots, units=[3, 1])
    other = b.ops("other", (1,), seconds=1.0, slot=slots[1])
    meet(b, ops)
    found = times(b.made(ops))
    assert [runs(found, op) for op in ops] == [[0.0, 1.0], [1.0, 2.0], [2.0, 3.0]]
    # one unit of the second slot is free, but earlier ops wait for it
    assert runs(found, other[0]) == [2.0, 3.0]


def test_more_units_than_a_slot_has_are_refused() -> None:
    b = Small()
    slot = b.slots("credit", (1,), capacity=4)
    ops = b.ops("op", (1,), slot=slot[0], units=5)
    with pytest.raises(InputError, match=r"op 'op': needs 5 units of slot 'credit', which has 4"):
        b.made(ops)


# -- links -------------------------------------------------------------------------------------


def test_link_latencies_add_to_the_latency_of_the_op() -> None:
    b = Small()
    links = b.links("link", [10.0, 10.0], latency_s=[0.25, 0.5])
    op = b.ops("send", (1,), bytes=10.0, path=links, latency_s=1.0)
    after = b.ops("after", (1,), seconds=1.0)
    b.edge(op, after)
    found = times(b.made(op))
    assert runs(found, op[0]) == [0.0, 1.0]
    assert runs(found, after[0]) == [2.75, 3.75]


def test_seconds_come_before_bytes_and_both_hold_the_slot() -> None:
    b = Small()
    link, slot = b.links("link", [10.0]), b.slots("line", (1,))
    ops = b.ops("send", (2,), seconds=2.0, bytes=10.0, path=link, slot=slot[0])
    found = times(b.made(ops))
    assert [runs(found, op) for op in ops] == [[0.0, 3.0], [3.0, 6.0]]


def test_a_weight_counts_as_that_many_transfers() -> None:
    b = Small()
    link = b.links("link", [12.0])
    ops = b.ops("send", (3,), bytes=[12.0, 12.0, 12.0], path=link, weight=[3.0, 2.0, 1.0])
    meet(b, ops)
    found = times(b.made(ops))
    # rates 6, 4, 2 until 2 s; then 8 and 4 for the 4 and 8 bytes left until 2.5 s; then 12
    ends = [runs(found, op)[1] for op in ops]
    assert ends == pytest.approx([2.0, 2.5, 3.0], rel=1e-12)


def test_bandwidth_left_by_a_capped_transfer_is_shared() -> None:
    b = Small()
    link = b.links("link", [10.0])
    caps = [2.0, np.inf, 5.0]
    ops = b.ops("send", (3,), bytes=[4.0, 12.0, 8.0], path=link, rate_cap_bytes_per_s=caps)
    meet(b, ops)
    found = times(b.made(ops))
    # rates 2, 4, 4 until 2 s; then 4 bytes are left of the second, at 10
    assert [runs(found, op)[1] for op in ops] == pytest.approx([2.0, 2.4, 2.0], rel=1e-12)


def test_a_cap_without_a_link_sets_the_pace() -> None:
    b = Small()
    op = b.ops("send", (1,), bytes=10.0, rate_cap_bytes_per_s=4.0)
    assert runs(times(b.made(op)), op[0]) == [0.0, 2.5]


def test_bytes_without_link_or_cap_take_no_time() -> None:
    b = Small()
    op = b.ops("send", (1,), seconds=1.0, bytes=1e9)
    assert runs(times(b.made(op)), op[0]) == [0.0, 1.0]


@pytest.mark.parametrize(("units", "end"), [(1.0, 2.0), (2.0, 4.0), (0.5, 1.0)])
def test_two_units_of_a_link_per_unit_of_rate_halve_the_rate(units: float, end: float) -> None:
    b = Small()
    link = b.links("link", [10.0])
    op = b.ops("send", (1,), bytes=20.0, path=link, path_units=units)
    assert runs(times(b.made(op)), op[0]) == [0.0, end]


def test_ops_with_different_units_get_the_same_rate() -> None:
    b = Small()
    link = b.links("link", [9.0])
    ops = b.ops("send", (2,), bytes=[6.0, 15.0], path=link, path_units=[[1.0], [2.0]])
    meet(b, ops)
    found = times(b.made(ops))
    # r + 2 r = 9 until 2 s; then 9 bytes are left of the second, at 4.5
    assert [runs(found, op)[1] for op in ops] == pytest.approx([2.0, 4.0], rel=1e-12)


def test_a_processor_is_a_link_whose_bytes_are_core_seconds() -> None:
    b = Small()
    cores = b.links("cores", [4.0])
    threads = [2.0, 2.0, 1.0]
    ops = b.ops("work", (3,), bytes=[8.0, 3.0, 2.0], path=cores, rate_cap_bytes_per_s=threads)
    meet(b, ops)
    found = times(b.made(ops))
    # 1.5 + 1.5 + 1 cores until 2 s, when two of them end; then 5 core-seconds on 2 threads
    assert [runs(found, op)[1] for op in ops] == pytest.approx([4.5, 2.0, 2.0], rel=1e-12)


def test_a_transfer_that_joins_others_on_its_path_may_fill_its_second_link() -> None:
    """Two transfers over links of 10 and 6 bytes/s get 3 each; a third on the first link gets 4."""
    b = Small()
    first, second = b.links("link", [10.0, 6.0])
    ops = b.ops("send", (3,), bytes=[100.0, 100.0, 3.0], path=[[first, -1]] + 2 * [[first, second]])
    wait = b.ops("wait", (1,), seconds=1.0)
    b.edge(wait, ops[2:])
    b.edge(meet(b, ops), wait, lag=1)
    found = times(b.made(wait))
    assert runs(found, ops[2]) == pytest.approx([1.0, 2.0], rel=1e-12)
    # at 2 s the others have moved 9 and 8 bytes; both get 5 again, and the last byte gets 6
    assert runs(found, ops[0])[1] == pytest.approx(20.2, rel=1e-12)
    assert runs(found, ops[1])[1] == pytest.approx(20.2 + 1 / 6, rel=1e-12)


# -- connections -------------------------------------------------------------------------------


def two_messages(slot: bool, quantum: float | None) -> list[float]:
    """End times of messages of 4 and 8 bytes that share one byte per second."""
    b = Small()
    link, line = b.links("link", [1.0]), b.slots("line", (1,))
    ops = b.ops("send", (2,), bytes=[4.0, 8.0], path=link, slot=line[0] if slot else -1)
    meet(b, ops)
    if quantum is not None:
        b.quantum(ops, quantum)
    found = times(b.made(ops))
    return [runs(found, op)[1] for op in ops]


def test_messages_on_one_connection_go_one_at_a_time() -> None:
    assert two_messages(slot=True, quantum=None) == [4.0, 12.0]


def test_messages_on_separate_connections_share() -> None:
    assert two_messages(slot=False, quantum=None) == [8.0, 12.0]


def test_messages_in_pieces_take_turns() -> None:
    """Pieces of 2 bytes: first, second, first (which ends at 6 s), then the second alone."""
    assert two_messages(slot=True, quantum=2.0) == [6.0, 12.0]


def test_a_last_piece_is_sent_although_it_is_not_full() -> None:
    """Pieces of 3 bytes: 3 of the first, 3 of the second, 1 of the first (at 7 s), 3, 2."""
    assert two_messages(slot=True, quantum=3.0) == [7.0, 12.0]


def test_a_quantum_larger_than_the_message_changes_nothing() -> None:
    assert two_messages(slot=True, quantum=8.0) == [4.0, 12.0]


@pytest.mark.parametrize("quantum", [1.0, 0.125, 1 / 64])
def test_as_the_quantum_shrinks_messages_share_equally(quantum: float) -> None:
    """The first ends before the 8 s of equal sharing, by one piece of the other."""
    assert two_messages(slot=True, quantum=quantum) == [8.0 - quantum, 12.0]


def test_a_quantum_without_a_slot_changes_nothing() -> None:
    assert two_messages(slot=False, quantum=1.0) == pytest.approx([8.0, 12.0], rel=1e-12)


def test_a_priority_message_gets_in_between_two_pieces() -> None:
    b = Small()
    link, line = b.links("link", [1.0]), b.slots("line", (1,))
    long = b.ops("long", (1,), seconds=0.5, bytes=6.0, path=link, slot=line[0], priority=1)
    short = b.ops("short", (1,), bytes=1.0, path=link, slot=line[0])
    released(b, short, [1.0])
    meet(b, np.concatenate([long, short]))
    b.quantum(long, 2.0)
    found = times(b.made(long))
    assert runs(found, short[0]) == [2.5, 3.5]
    assert runs(found, long[0]) == [0.0, 7.5]


# -- activity ----------------------------------------------------------------------------------


def cycle_with_extra(
    every: int = 1, phase: int = 0, probability: float = 1.0
) -> tuple[OpGraph, Ids, Ids]:
    """A loop of 1 s with an extra op of 2 s in some iterations; returns both."""
    b = Small()
    loop = b.ops("loop", (1,), seconds=1.0)
    extra = b.ops("extra", (1,), seconds=2.0)
    b.edge(loop, extra)
    b.edge(extra, loop, lag=1)
    draw = b.streams((1,)) if probability < 1.0 else -1
    b.active(extra, every=every, phase=phase, probability=probability, draw=draw)
    return b.made(loop), loop, extra


@pytest.mark.parametrize("phase", [0, 1, 2])
def test_an_op_can_be_active_every_few_iterations(phase: int) -> None:
    graph, _, extra = cycle_with_extra(every=3, phase=phase)
    assert active_in(graph, extra[0], 7) == [i % 3 == phase for i in range(7)]


def test_inactive_ops_take_no_time_and_pass_on_their_tokens() -> None:
    graph, loop, extra = cycle_with_extra(every=3, phase=1)
    found = times(graph, 4)
    assert runs(found, loop[0], 4) == [0.0, 1.0, 1.0, 2.0, 4.0, 5.0, 5.0, 6.0]
    assert runs(found, extra[0], 4) == [1.0, 1.0, 2.0, 4.0, 5.0, 5.0, 6.0, 6.0]


def test_inactive_ops_take_no_slot_and_have_no_latency() -> None:
    b = Small()
    line = b.slots("line", (1,))
    hog = b.ops("hog", (1,), seconds=100.0, slot=line[0])
    op = b.ops("op", (1,), seconds=1.0, latency_s=7.0, slot=line[0])
    after = b.ops("after", (1,), seconds=1.0)
    b.edge(op, after)
    b.active(op, every=2, phase=1)
    found = times(b.made(after))
    assert runs(found, hog[0]) == [0.0, 100.0]
    assert runs(found, op[0]) == [0.0, 0.0]
    assert runs(found, after[0]) == [0.0, 1.0]


def test_random_activity_has_the_requested_probability() -> None:
    graph, _, extra = cycle_with_extra(probability=0.3)
    n = 4000
    share = np.mean(active_in(graph, extra[0], n))
    assert abs(share - 0.3) < 4 * np.sqrt(0.3 * 0.7 / n)


@pytest.mark.parametrize(("probability", "expected"), [(0.0, False), (1.0, True)])
def test_activity_with_probability_0_and_1(probability: float, expected: bool) -> None:
    graph, _, extra = cycle_with_extra(probability=probability)
    assert active_in(graph, extra[0], 50) == [expected] * 50


def drawn(shared: bool, slow: float = 1.0) -> tuple[OpGraph, Ids]:
    """Two randomly active ops, each in its own loop."""
    b = Small()
    ops = b.ops("op", (2,), seconds=[1.0, slow])
    pace = b.ops("pace", (2,), seconds=[0.5, 0.75 * slow])
    b.edge(pace, ops)
    b.edge(ops, pace, lag=1)
    streams = b.streams((2,))
    b.active(ops, probability=0.5, draw=streams[[0, 0]] if shared else streams)
    return b.made(ops), ops


def test_ops_that_share_a_stream_are_active_together() -> None:
    together, ops = drawn(shared=True)
    assert active_in(together, ops[0], 200) == active_in(together, ops[1], 200)
    apart, ops = drawn(shared=False)
    equal = np.equal(active_in(apart, ops[0], 1000), active_in(apart, ops[1], 1000))
    assert abs(equal.mean() - 0.5) < 4 * np.sqrt(0.25 / 1000)


def test_activity_does_not_depend_on_the_order_of_events() -> None:
    even, ops = drawn(shared=False)
    uneven, _ = drawn(shared=False, slow=7.3)
    for op in ops:
        assert active_in(even, op, 100) == active_in(uneven, op, 100)


def test_activity_depends_on_the_seed() -> None:
    graph, ops = drawn(shared=False)
    assert active_in(graph, ops[0], 100) != active_in(graph, ops[0], 100, seed=1)


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ({"probability": 1.5}, "probability must be between 0 and 1, got 1.5"),
        ({"probability": float("nan")}, "probability must be between 0 and 1, got nan"),
        ({"probability": 0.5}, "a probability needs a stream to draw from"),
        ({"every": 0}, "phase must be from 0 to every - 1, got 0 of 0"),
        ({"every": 2, "phase": 2}, "phase must be from 0 to every - 1, got 2 of 2"),
    ],
)
def test_impossible_activity_is_refused(rule: dict[str, Any], message: str) -> None:
    b = Small()
    with pytest.raises(InputError, match=message):
        b.active(b.ops("op", (1,)), **rule)


# -- choice ------------------------------------------------------------------------------------


def test_each_path_is_chosen_about_equally_often() -> None:
    """The time of a byte reveals which of four links it took, and which latency followed."""
    b = Small()
    links = b.links("link", [1.0, 0.5, 0.25, 0.125], latency_s=[0.0, 0.0, 0.0, 16.0])
    op = b.ops("send", (1,), bytes=1.0)
    b.choose(op, draw=b.streams((1,)), paths=links[None, :, None])
    after = b.ops("after", (1,), seconds=1.0)
    b.edge(op, after)
    b.edge(after, op, lag=1)
    n = 2000
    found = times(b.made(op), n)
    took = [found[int(op[0]), i][1] - found[int(op[0]), i][0] for i in range(n)]
    counts = np.bincount(np.round(np.log2(took)).astype(int), minlength=4)
    assert np.abs(counts - n / 4).max() < 4 * np.sqrt(n * 0.25 * 0.75)
    delays = [found[int(after[0]), i][0] - found[int(op[0]), i][1] for i in range(n)]
    expected = np.where(np.array(took) > 7.0, 16.0, 0.0)
    assert delays == pytest.approx(expected, abs=1e-9)


def chosen_slots(shared: bool, n: int) -> list[bool]:
    """Whether two ops that each choose one of three slots had to take turns."""
    b = Small()
    slots = b.slots("slot", (3,))
    ops = b.ops("op", (2,), seconds=1.0)
    streams = b.streams((2,))
    b.choose(ops, draw=streams[[0, 0]] if shared else streams, slots=slots)
    both = b.ops("both", (1,), seconds=1.0)
    b.edge(ops, both)
    b.edge(both, ops, lag=1)
    found = times(b.made(both), n)
    return [found[int(ops[1]), i][0] > found[int(ops[0]), i][0] for i in range(n)]


def test_ops_that_share_a_stream_make_the_same_choice() -> None:
    assert chosen_slots(shared=True, n=50) == [True] * 50


def test_ops_with_separate_streams_meet_by_chance() -> None:
    n = 2000
    share = np.mean(chosen_slots(shared=False, n=n))
    assert abs(share - 1 / 3) < 4 * np.sqrt(1 / 3 * 2 / 3 / n)


def test_a_chosen_path_and_slot_go_together() -> None:
    """Two ops with one stream contend for the slot of the chosen link, so they take turns."""
    b = Small()
    links, slots = b.links("link", [1.0, 0.5]), b.slots("line", (2,))
    ops = b.ops("send", (2,), bytes=1.0)
    stream = b.streams((1,))
    b.choose(ops, draw=stream[0], paths=links[:, None], slots=slots)
    both = b.ops("both", (1,), seconds=1.0)
    b.edge(ops, both)
    b.edge(both, ops, lag=1)
    graph = b.made(both)
    found = times(graph, 40)
    first = [found[int(ops[0]), i] for i in range(40)]
    second = [found[int(ops[1]), i] for i in range(40)]
    assert {round(end - start) for start, end in first} == {1, 2}
    assert [start for start, _ in second] == [end for _, end in first]
    used = simulate(graph, compiled=False).slot_utilisation[slots]
    assert (used > 0.1).all()


# -- gates -------------------------------------------------------------------------------------


def test_a_quorum_goes_on_without_the_slowest_which_then_jumps_ahead() -> None:
    """Three workers take 2, 3 and 7.5 s; two are enough for an update of 0.5 s.

    The update of iteration 0 ends at 3.5 s, that of iteration 1 at 7 s. The third worker ends at
    7.5 s, finds both, and so jumps to iteration 2. There the second worker pauses for 10 s, so
    that the third one's token, at 15 s, makes up the quorum.
    """
    b = GraphBuilder()
    devices = b.slots("device", (3,))
    groups = np.arange(3)
    compute = b.ops("compute", (3,), seconds=[2.0, 3.0, 7.5], slot=devices, group=groups)
    pause = b.ops("pause", (3,), seconds=[0.0, 10.0, 0.0], slot=devices, group=groups)
    update = b.ops("update", (1,), seconds=0.5)
    b.edge(compute, pause)
    b.edge(pause, update)
    b.edge(update, compute, lag=1)
    b.active(pause, every=100, phase=2)
    b.quorum(int(update[0]), 2)
    found = times(b.build(device=devices, mark=pause), 4)
    assert runs(found, update[0], 4) == [3.0, 3.5, 6.5, 7.0, 15.0, 15.5, 23.0, 23.5]
    assert runs(found, compute[0], 4) == [0.0, 2.0, 3.5, 5.5, 7.0, 9.0, 15.5, 17.5]
    assert runs(found, compute[1], 4) == [0.0, 3.0, 3.5, 6.5, 7.0, 10.0, 20.0, 23.0]
    assert runs(found, compute[2], 3) == [0.0, 7.5, 7.5, 15.0, 15.5, 23.0]


def backup_workers(layers: int) -> OpGraph:
    """Workers of 2, 3 and 10 s with ``layers`` layers; two are enough for an update of 0.5 s."""
    b = GraphBuilder()
    devices = b.slots("device", (3,))
    seconds = np.array([[2.0], [3.0], [10.0]]) / layers
    shape = (3, layers)
    ops = b.ops("layer", shape, seconds=seconds, slot=devices[:, None], group=[[0], [1], [2]])
    b.chain(ops)
    update = b.ops("update", (1,), seconds=0.5)
    b.edge(ops[:, -1], update)
    b.edge(update, ops[:, 0], lag=1)
    b.quorum(int(update[0]), 2)
    return b.build(device=devices, mark=ops[:, -1])


@pytest.mark.parametrize("layers", [1, 8])
def test_a_quorum_sets_the_pace(layers: int) -> None:
    """The two fast workers need 3.5 s; the slow one takes 10 s, and then finds tokens waiting."""
    found = simulate(backup_workers(layers), compiled=False)
    assert found.periodic
    assert found.iterations_per_s == pytest.approx([1 / 3.5, 1 / 3.5, 1 / 10], rel=1e-9)


def softsync(count: int) -> tuple[OpGraph, Ids]:
    """Independent workers of 1 and 1.5 s; an update for every ``count`` tokens."""
    b = GraphBuilder()
    devices = b.slots("device", (2,))
    compute = b.ops("compute", (2,), seconds=[1.0, 1.5], slot=devices)
    update = b.ops("update", (1,), seconds=0.25)
    b.edge(compute, update)
    b.every(int(update[0]), count)
    return b.build(device=devices, mark=compute), update


def test_a_gate_fires_at_every_third_token() -> None:
    """Tokens at 1, 1.5, 2 | 3, 3, 4 | 4.5, 5, 6 | 6, 7, 7.5 s."""
    graph, update = softsync(3)
    starts = [start for start, _ in (times(graph, 4)[int(update[0]), i] for i in range(4))]
    assert starts == [2.0, 4.0, 6.0, 7.5]


def test_simultaneous_tokens_fire_one_after_the_other() -> None:
    graph, update = softsync(1)
    starts = [times(graph, 6)[int(update[0]), i][0] for i in range(6)]
    assert starts == [1.0, 1.5, 2.0, 3.0, 3.25, 4.0]


def test_a_gate_that_counts_tokens_reaches_a_period() -> None:
    graph, _ = softsync(3)
    found = simulate(graph, compiled=False)
    assert found.periodic
    assert found.iterations_per_s == pytest.approx([1.0, 1 / 1.5], rel=1e-12)


def mailbox_of(per_token_s: float) -> tuple[OpGraph, Ids]:
    """An op of 1 s that reads messages sent every 0.4 s."""
    b = GraphBuilder()
    devices = b.slots("device", (2,))
    read = b.ops("read", (1,), seconds=1.0, slot=devices[0])
    send = b.ops("send", (1,), seconds=0.4, slot=devices[1])
    b.mailbox(int(read[0]), send, per_token_s)
    return b.build(device=devices, mark=np.concatenate([read, send])), read


def test_a_mailbox_is_emptied_and_never_waited_for() -> None:
    """Messages found: none at 0 s, 2 at 1 s, 4 at 2.5 s, 5 at 4.5 s."""
    graph, read = mailbox_of(0.25)
    found = runs(times(graph, 4), read[0], 4)
    assert found == pytest.approx([0.0, 1.0, 1.0, 2.5, 2.5, 4.5, 4.5, 6.75], rel=1e-12)


def test_a_mailbox_reaches_a_period() -> None:
    """Messages that take no time: the ops run independently, 5 for every 2."""
    found = simulate(mailbox_of(0.0)[0], compiled=False)
    assert found.periodic
    assert found.iterations_per_s == pytest.approx([1.0, 2.5], rel=1e-12)


def test_two_mailboxes_may_send_to_each_other() -> None:
    """Gossip: each averages what has arrived and sends; none waits, so there is no deadlock."""
    b = GraphBuilder()
    devices = b.slots("device", (2,))
    mix = b.ops("mix", (2,), seconds=[1.0, 1.5], slot=devices)
    send = b.ops("send", (2,), seconds=0.25)
    b.edge(mix, send)
    b.mailbox(int(mix[0]), send[1], 0.5)
    b.mailbox(int(mix[1]), send[0], 0.5)
    found = times(b.build(device=devices, mark=mix), 3)
    # 0: a message at 1.75 s is found at 2 s.  1: messages at 1.25 s, found at 1.5 s, and so on
    assert runs(found, mix[0], 3) == [0.0, 1.0, 1.0, 2.0, 2.0, 3.5]
    assert runs(found, mix[1], 3) == [0.0, 1.5, 1.5, 3.5, 3.5, 5.5]


def gossip(probability: float) -> tuple[OpGraph, Ids]:
    """An op of 1 s sends to a random one of two that read all the time; returns also these."""
    b = Small()
    step = b.ops("step", (1,), seconds=1.0)
    stream = b.streams((1,))
    deliver = b.ops("deliver", (2,))
    b.active(deliver, probability=probability, draw=stream[0], chosen=[0, 1], among=2)
    b.edge(step, deliver)
    read = b.ops("read", (2,), seconds=0.125)
    for k in range(2):
        b.mailbox(int(read[k]), deliver[k], 0.5)
    counters = b.counters(deliver)
    b.probe("deliver", step, step, lag=1, counter=counters[:1])
    return b.made(step), read


@pytest.mark.slow
@pytest.mark.sampled(3)
@pytest.mark.parametrize("probability", [1.0, 0.25, 0.0])
def test_a_message_reaches_only_the_drawn_partner(probability: float) -> None:
    graph, read = gossip(probability)
    n = 400
    found = times(graph, 9 * n)
    got = np.zeros((2, n), np.int64)
    for k, op in enumerate(read):
        for i in range(9 * n):
            begin, end = found.get((int(op), i), (np.inf, np.inf))
            if begin <= n:
                which = int(begin - 1e-9)  # a message sent in second s is read in that second
                got[k, min(which, n - 1)] += round((end - begin - 0.125) / 0.5)
    assert got.max(initial=0) <= 1
    assert (got.sum(axis=0) <= 1).all()
    expected = probability * n
    assert abs(got.sum() - expected) <= 4 * np.sqrt(n * probability * (1 - probability)) + 2
    assert abs(got[0].sum() - expected / 2) <= 4 * np.sqrt(n * probability / 2) + 2


def test_a_choice_and_the_activity_of_its_alternatives_agree() -> None:
    """An op that takes one of three slots, and three ops active if it takes their slot."""
    b = Small()
    slots = b.slots("slot", (3,))
    stream = b.streams((1,))
    op = b.ops("op", (1,), seconds=1.0)
    b.choose(op, draw=stream, slots=slots[None])
    follow = b.ops("follow", (3,), seconds=1.0, slot=slots)
    b.active(follow, draw=stream[0], chosen=[0, 1, 2], among=3)
    b.edge(op, follow)
    b.edge(follow, op, lag=1)
    graph = b.made(op)
    active = np.array([active_in(graph, f, 300) for f in follow])
    assert (active.sum(axis=0) == 1).all()
    assert active.sum(axis=1).min() > 60
    used = simulate(graph, compiled=False).slot_utilisation[slots]
    assert used.sum() == pytest.approx(1.0, rel=1e-6)  # both take the same slot, in turn


def test_inactive_ops_raise_no_counter() -> None:
    """Steps of 1 s; an op in every third step raises a counter."""
    b = Small()
    step = b.ops("step", (1,), seconds=1.0)
    event = b.ops("event", (1,))
    b.active(event, every=3)
    b.edge(step, event)
    b.edge(event, step, lag=1)
    b.probe("event", step, step, lag=3, counter=b.counters(event), group=0)
    found = simulate(b.made(step), compiled=False)
    assert found.staleness.tolist() == [0, found.staleness[1]]
    assert found.updates_per_s == pytest.approx(1 / 3, rel=1e-9)


def test_a_random_factor_stretches_bytes_like_seconds() -> None:
    b = Small()
    link = b.links("cores", [1.0])
    stream = b.streams((1,), cv=0.5)
    ops = b.ops("op", (2,), seconds=[3.0, 0.0], bytes=[0.0, 3.0], path=link, noise=stream[0])
    meet(b, ops)
    found = times(b.made(ops), 20)
    for i in range(20):
        one, other = (found[int(op), i] for op in ops)
        assert one[1] - one[0] == pytest.approx(other[1] - other[0], rel=1e-9)
    assert len({found[int(ops[0]), i][1] - found[int(ops[0]), i][0] for i in range(20)}) > 10


def fused(cap_bytes: float, own_bytes: float) -> Times:
    """Items of 6, 3 and 8 bytes, ready at 0.2, 0.4 and 1.1 s; a tick every second, 10 bytes/s."""
    b = Small()
    link = b.links("link", [10.0])
    sources = b.ops("source", (3,), seconds=[0.2, 0.4, 1.1])
    send = b.ops("send", (1,), bytes=own_bytes, path=link)
    targets = b.ops("target", (3,), seconds=100.0)
    items = [6.0, 3.0, 8.0]
    b.batch(int(send[0]), sources, targets, items, cycle_s=1.0, cap_bytes=cap_bytes)
    b.edge(targets, sources, lag=1)
    return times(b.made(targets), 3)


@pytest.mark.parametrize("own_bytes", [17.0, 0.0])
def test_a_batch_moves_together_what_is_ready_at_a_tick(own_bytes: float) -> None:
    """The bytes of the items count, whatever bytes the op itself has."""
    found = fused(cap_bytes=10.0, own_bytes=own_bytes)
    assert runs(found, 3, 2) == pytest.approx([1.0, 1.9, 2.0, 2.8], rel=1e-12)
    assert [found[op, 0][0] for op in (4, 5, 6)] == pytest.approx([1.9, 1.9, 2.8], rel=1e-12)


def test_items_that_do_not_fit_go_into_the_next_batch() -> None:
    found = fused(cap_bytes=8.0, own_bytes=17.0)
    assert runs(found, 3, 3) == pytest.approx([1.0, 1.6, 1.6, 1.9, 2.0, 2.8], rel=1e-12)
    assert [found[op, 0][0] for op in (4, 5, 6)] == pytest.approx([1.6, 1.9, 2.8], rel=1e-12)


def test_an_item_larger_than_the_cap_goes_alone() -> None:
    found = fused(cap_bytes=1.0, own_bytes=17.0)
    assert runs(found, 3, 3) == pytest.approx([1.0, 1.6, 1.6, 1.9, 2.0, 2.8], rel=1e-12)


def test_a_source_may_send_several_items_to_one_target() -> None:
    """A source of 0.5 s, two items of 4 and 6 bytes at 10 bytes/s, and a target that needs both."""
    b = Small()
    link = b.links("link", [10.0])
    source = b.ops("source", (1,), seconds=0.5)
    send = b.ops("send", (1,), bytes=10.0, path=link)
    target = b.ops("target", (1,), seconds=1.0)
    twice = np.zeros(2, np.int64)
    b.batch(int(send[0]), source[twice], target[twice], [4.0, 6.0], cycle_s=1.0, cap_bytes=7.0)
    b.edge(target, source, lag=1)
    found = times(b.made(target), 2)
    assert runs(found, send[0], 2) == pytest.approx([1.0, 1.4, 1.4, 2.0], rel=1e-12)
    assert runs(found, target[0], 2) == pytest.approx([2.0, 3.0, 5.0, 6.0], rel=1e-12)


def test_the_period_of_a_batch_includes_its_ticks() -> None:
    """A loop of 0.75 s with ticks each second: items that arrive late wait for the next tick.

    Ready at 7/8, 13/8, 19/8, 25/8 s, an item waits 1/8, 3/8, 5/8 or 7/8 s, 1/2 s on average.
    """
    b = Small()
    link = b.links("link", [1e9])
    loop = b.ops("loop", (1,), seconds=0.75)
    make = b.ops("make", (1,), seconds=0.125)
    send = b.ops("send", (1,), bytes=1e-3, path=link)
    done = b.ops("done", (1,))
    b.edge(loop, make)
    b.batch(int(send[0]), make, done, 1e-3, cycle_s=1.0)
    b.probe("wait", make[0], done[0])
    found = simulate(b.made(loop), compiled=False)
    assert found.periodic
    assert found.probe_seconds[0] / found.probe_count[0] == pytest.approx(0.5, rel=1e-9)


# -- probes ------------------------------------------------------------------------------------


def test_probes_measure_from_an_end_or_from_readiness_and_across_iterations() -> None:
    b = Small()
    ops = b.ops("op", (3,), seconds=[1.0, 2.0, 3.0], latency_s=[0.0, 0.5, 0.0])
    b.chain(ops)
    b.edge(ops[2], ops[0], lag=1)
    b.probe("end to end", ops[0], ops[2])
    b.probe("from ready", ops[1], ops[2], at_ready=True)
    b.probe("own time", ops[1], ops[1], at_ready=True)
    b.probe("next", ops[2], ops[0], lag=1)
    b.probe("period", ops[1], ops[1], lag=1)
    found = simulate(b.made(ops[2]), compiled=False)
    # the latency belongs to an op: it ends when its tokens arrive
    assert found.probe_seconds / found.probe_count == pytest.approx([5.5, 5.5, 2.5, 1.0, 6.5])


def pushing(seconds: list[float], *, every: int = 1) -> OpGraph:
    """Workers that compute, then raise a counter and observe its rise since their last turn."""
    b = GraphBuilder()
    n = len(seconds)
    devices = b.slots("device", (n,))
    ops = b.ops("compute", (n,), seconds=seconds, slot=devices)
    counter = b.counters(ops[:, None], every=every)
    b.probe("staleness", ops, ops, lag=1, counter=counter, group=np.arange(n))
    return b.build(device=devices, mark=ops)


def test_staleness_counts_the_rises_while_a_probe_runs() -> None:
    """Workers of 1 and 3 s: the slow one sees three rises, the fast one one in three turns."""
    found = simulate(pushing([1.0, 3.0]), compiled=False)
    assert found.periodic
    assert found.staleness_mean == pytest.approx([1 / 3, 3.0])
    assert found.staleness.tolist() == [2, 1, 0, 1]
    assert found.updates_per_s == pytest.approx(4 / 3)
    assert found.clock_gap_mean > 0.0


def test_equal_workers_see_one_rise_of_each_other() -> None:
    found = simulate(pushing([2.0] * 4), compiled=False)
    assert found.staleness_mean == pytest.approx([3.0] * 4)
    assert found.clock_gap_mean == 0.0
    assert found.clock_gap_max == 0


def test_a_counter_may_rise_once_for_several_ends() -> None:
    """Three workers take turns, and every second end raises the counter: from one end of a worker
    to just before its next one it rises once, whether the end is first or second of a pair. If
    it rises at each third end, there is one rise for every three of N - 1."""
    found = simulate(pushing([1.0] * 3, every=2), compiled=False)
    assert found.periodic
    assert found.staleness.tolist() == [0, 6]
    assert found.updates_per_s == pytest.approx(1.5)
    uneven = simulate(pushing([1.0, 3.0], every=3), compiled=False)
    values = np.arange(len(uneven.staleness))
    assert np.average(values, weights=uneven.staleness) == pytest.approx(1 / 3)
    with pytest.raises(InputError, match="counters: count must be at least 1, got 0"):
        pushing([1.0], every=0)


def test_a_probe_averages_over_counters() -> None:
    """Two counters, one raised once and one twice a second."""
    b = GraphBuilder()
    devices = b.slots("device", (2,))
    ops = b.ops("op", (2,), seconds=[1.0, 0.5], slot=devices)
    assert b.counters(ops).tolist() == [0, 1]
    found = simulate(b.build(device=devices, mark=ops), compiled=False)
    assert found.updates_per_s == pytest.approx(1.5)


def test_staggered_groups_start_one_in_each_part_of_the_interval() -> None:
    def starts(within_s: float, seed: int) -> list[float]:
        b = GraphBuilder()
        devices = b.slots("device", (4,))
        ops = b.ops("compute", (4,), seconds=1.0, slot=devices, group=np.arange(4))
        if within_s > 0.0:
            b.stagger(ops, within_s)
        found = times(b.build(device=devices, mark=ops), seed=seed)
        return [found[int(op), 0][0] for op in ops]

    assert starts(0.0, 0) == [0.0] * 4
    staggered = starts(8.0, 0)
    assert [int(start / 2.0) for start in sorted(staggered)] == [0, 1, 2, 3]
    assert starts(8.0, 0) == staggered
    assert starts(8.0, 1) != staggered


# -- refusals ----------------------------------------------------------------------------------


@pytest.mark.parametrize("field", ["seconds", "bytes", "latency_s"])
@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf")])
def test_impossible_work_is_refused(field: str, value: float) -> None:
    b = Small()
    given: dict[str, Any] = {field: value}
    ops = b.ops("op", (2,), **given)
    label = field.removesuffix("_s")
    with pytest.raises(InputError, match=rf"op 'op\[0\]': {label} must be .*, got {value:g}"):
        b.made(ops)


@pytest.mark.parametrize(
    "wrong",
    [{"rate_cap_bytes_per_s": 0.0}, {"weight": -1.0}, {"path_units": 0.0}, {"weight": np.nan}],
)
def test_impossible_routes_are_refused(wrong: dict[str, Any]) -> None:
    b = Small()
    link = b.links("link", [1.0])
    with pytest.raises(InputError, match=r"'op': .* must be positive"):
        b.ops("op", (1,), bytes=1.0, path=link, **wrong)


def quorum_of_none(b: Small) -> None:
    b.quorum(0, 0)


def every_none(b: Small) -> None:
    b.every(0, 0)


def quantum_of_nothing(b: Small) -> None:
    b.quantum(np.zeros(1, np.int64), 0.0)


def batch_without_ticks(b: Small) -> None:
    ops = b.ops("op", (3,))
    b.batch(int(ops[0]), ops[1:2], ops[2:], 1.0, cycle_s=0.0)


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (quorum_of_none, "quorum: count must be at least 1, got 0"),
        (every_none, "every: count must be at least 1, got 0"),
        (quantum_of_nothing, "a quantum must be positive, got 0"),
        (batch_without_ticks, "a cycle must be positive, got 0"),
    ],
)
def test_impossible_rules_are_refused(rule: Callable[[Small], None], message: str) -> None:
    with pytest.raises(InputError, match=message):
        rule(Small())


@pytest.mark.parametrize("compiled", [False, None])
def test_a_cycle_without_lag_is_named(compiled: bool | None) -> None:
    b = Small()
    before = b.ops("before", (1,), seconds=1.0)
    ops = b.ops("op", (3,), seconds=1.0)
    b.edge(before, ops[:1])
    b.chain(ops)
    b.edge(ops[2], ops[0])
    graph = b.made(before)
    cycle = r"cycle: 'op\[0\]' -> 'op\[1\]' -> 'op\[2\]' -> 'op\[0\]'"
    for start in (simulate, timeline, makespan):
        with pytest.raises(InputError, match=cycle):
            start(graph, compiled=compiled)


def test_endless_work_that_takes_no_time_is_named() -> None:
    b = Small()
    ops = b.ops("idle", (2,))
    b.chain(ops)
    b.edge(ops[1], ops[0], lag=1)
    with pytest.raises(PerfmodelError, match=r"'idle\[.\]' runs endlessly while simulated time"):
        timeline(b.made(ops), compiled=False)


def test_a_quorum_larger_than_its_producers_is_a_named_deadlock() -> None:
    b = GraphBuilder()
    devices = b.slots("device", (2,))
    work = b.ops("work", (2,), seconds=1.0, slot=devices)
    update = b.ops("update", (1,), seconds=1.0)
    b.edge(work, update)
    b.edge(update, work, lag=1)
    b.quorum(int(update[0]), 3)
    graph = b.build(device=devices, mark=work)
    deadlock = r"deadlock at 1 s after 1 iterations: .*'work\[0\]' waits for 'update'"
    with pytest.raises(DeadlockError, match=deadlock) as caught:
        simulate(graph, compiled=False)
    assert "'update' waits for more tokens" in str(caught.value)


def test_a_probe_closed_before_it_is_opened_is_named() -> None:
    b = Small()
    ops = b.ops("op", (2,), seconds=1.0)
    b.chain(ops)
    b.edge(ops[1], ops[0], lag=1)
    b.probe("backwards", ops[1], ops[0])
    with pytest.raises(PerfmodelError, match=r"probe 'backwards' is closed by 'op\[0\]' before it"):
        simulate(b.made(ops[1]), compiled=False)


def test_a_probe_opened_repeatedly_is_named() -> None:
    b = Small()
    ops = b.ops("op", (2,), seconds=[1.0, 100.0])
    b.probe("forgotten", ops[0], ops[1])
    with pytest.raises(PerfmodelError, match=r"'forgotten' is opened repeatedly by 'op\[0\]'"):
        simulate(b.made(ops[0]), compiled=False)


@pytest.mark.parametrize("rel_ci", [0.0, -0.01, float("nan")])
def test_an_interval_that_cannot_be_reached_is_refused(rel_ci: float) -> None:
    graph, _, _ = cycle_with_extra(probability=0.5)
    with pytest.raises(InputError, match="rel_ci must be positive"):
        simulate(graph, rel_ci=rel_ci)


def test_the_environment_chooses_between_two_loops_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERFMODEL_COMPILED", "2")
    graph, _, _ = cycle_with_extra()
    with pytest.raises(InputError, match="PERFMODEL_COMPILED must be 0 or 1, got '2'"):
        simulate(graph)
    monkeypatch.setenv("PERFMODEL_COMPILED", "0")
    assert simulate(graph).iterations_per_s[0] == pytest.approx(1 / 3)


def test_an_op_keeps_what_its_choice_does_not_replace() -> None:
    """A choice of paths does not change the slot: both sends still go one after another."""
    b = Small()
    links, line = b.links("link", [1.0, 1.0]), b.slots("line", (1,))
    ops = b.ops("send", (2,), bytes=4.0, slot=line[0])
    draw = b.streams((2,))
    b.choose(ops, draw=draw, paths=links.reshape(1, 2, 1))
    meet(b, ops)
    found = times(b.made(ops))
    assert sorted(runs(found, op)[1] for op in ops) == [4.0, 8.0]


def test_an_activity_given_twice_is_refused() -> None:
    b = Small()
    ops = b.ops("op", (2,), seconds=1.0)
    b.active(ops, every=2)
    b.active(ops[1:], every=3)
    with pytest.raises(InputError, match=r"'op\[1\]': its activity is given twice"):
        b.made(ops)


def test_a_staggered_op_needs_a_group() -> None:
    b = Small()
    ops = b.ops("op", (1,), seconds=1.0)
    b.stagger(ops, 2.0)
    with pytest.raises(InputError, match="'op': needs a group for its staggered start"):
        b.made(ops)


def test_a_group_that_starves_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """An op with higher priority that never stops leaves none of the slot to the other."""
    monkeypatch.setattr(run, "STARVED", 10)
    monkeypatch.setattr(run, "_INSTANTS", 100)
    b = GraphBuilder()
    device, line = b.slots("device", (2,)), b.slots("line", (1,))
    greedy = b.ops("greedy", (2,), seconds=1.0, slot=line[0], priority=0)
    poor = b.ops("poor", (1,), seconds=1.0, slot=line[0], priority=1)
    with pytest.raises(DeadlockError, match="'poor' is starved: it ran 0 times while others ran"):
        simulate(b.build(device=device, mark=[greedy[0], poor[0]]), compiled=False)
