"""Sharded data parallel training against timelines worked out by hand, and the traffic its sources
state.

Links carry 1 byte/s unless noted. With two workers, each moves half of a unit's bytes in a
reduce-scatter, or in an all-gather.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, strategies as st

from perfmodel import (
    InputError,
    Jitter,
    Job,
    Link,
    Straggler,
    Workload,
    build_graph,
    make_job,
    predict,
)
from perfmodel.architectures.base import Traffic
from perfmodel.architectures.fsdp import ARCHITECTURE, order
from perfmodel.architectures.fsdp.options import Options
from perfmodel.architectures.fsdp.order import Issue, issue_order, units_of
from perfmodel.engine.simulation import timeline
from perfmodel.inputs.passes import accumulated
from perfmodel.predicting import fine
from perfmodel.predicting.memory import worker_bytes
from tests.architectures.test_allreduce import same
from tests.jobs import cluster, job, workload
from tests.settings import examples

WORK = workload([1.0, 1.0], [1.0, 1.0], [2.0, 1.0], optimizer_s=0.5)
EACH = {"unit_bytes": 0}
NONE_AHEAD = {**EACH, "prefetch": 0}


def spans(options: dict[str, Any], iteration: int = 0) -> dict[str, tuple[float, float]]:
    """Start and end of the collectives and of the ops of worker 0, with two workers."""
    graph = build_graph(job(WORK, cluster(), 2, "fsdp", {**EACH, **options}))
    found = {}
    for span in timeline(graph, iterations=iteration + 1):
        if span.iteration == iteration:
            found[graph.op_name(span.op).replace(" worker 0", "")] = (span.start_s, span.end_s)
    return {name: times for name, times in found.items() if "worker" not in name}


@pytest.mark.parametrize("stage", [1, 2])
def test_gradients_are_scattered_and_parameters_gathered(stage: int) -> None:
    assert spans({"stage": stage}) == {
        "forward, layer0": (0.0, 1.0),
        "forward, layer1": (1.0, 2.0),
        "backward, layer1": (2.0, 3.0),
        "backward, layer0": (3.0, 4.0),
        "reduce-scatter unit 1": (3.0, 3.5),
        "reduce-scatter unit 0": (4.0, 5.0),
        "optimizer": (5.0, 5.25),
        "all-gather unit 0": (5.25, 6.25),
        "all-gather unit 1": (6.25, 6.75),
    }
    assert spans({"stage": stage}, iteration=1)["forward, layer0"] == (6.75, 7.75)
    result = predict(job(WORK, cluster(), 2, "fsdp", {**EACH, "stage": stage}))
    assert result.iteration_s == 6.75
    assert result.staleness.histogram == {"0": 1.0}


def test_parameters_are_gathered_for_forward_and_backward() -> None:
    """Unit 1 is gathered during unit 0's forward; unit 0 again during unit 1's backward."""
    assert spans({"stage": 3}) == {
        "all-gather unit 0": (0.0, 1.0),
        "all-gather unit 1": (1.0, 1.5),
        "forward, layer0": (1.0, 2.0),
        "forward, layer1": (2.0, 3.0),
        "all-gather again unit 1": (3.0, 3.5),
        "all-gather again unit 0": (3.5, 4.5),
        "backward, layer1": (3.5, 4.5),
        "backward, layer0": (4.5, 5.5),
        "reduce-scatter unit 1": (4.5, 5.0),
        "reduce-scatter unit 0": (5.5, 6.5),
        "optimizer": (6.5, 6.75),
    }
    assert predict(job(WORK, cluster(), 2, "fsdp", EACH)).iteration_s == 6.75


def test_without_prefetch_a_unit_is_gathered_when_the_one_before_is_done() -> None:
    found = spans({"prefetch": 0})
    assert found["all-gather unit 1"] == (2.0, 2.5)
    assert found["all-gather again unit 1"] == (3.5, 4.0)
    assert found["reduce-scatter unit 1"] == (5.0, 5.5)
    assert found["all-gather again unit 0"] == (5.5, 6.5)
    assert found["backward, layer0"] == (6.5, 7.5)
    assert found["optimizer"] == (8.5, 8.75)


# -- the order of issue ------------------------------------------------------------------------

EQUAL = workload([0.03] * 3, [0.04] * 3, [0.06] * 3)
"""Three units of two workers: each collective takes 30 ms, forward 30 ms, backward 40 ms."""


@pytest.mark.parametrize("fidelity", ["fine", "coarse"])
def test_without_prefetch_nothing_overlaps(fidelity: str) -> None:
    """PyTorch issues a unit's reduce-scatter before the next unit's all-gather, and the collectives
    of a process group run in the order of issue. So each of the 9 collectives of 30 ms follows, or
    is followed by, a computation that waits for it: 270 + 90 + 120 = 480 ms. If gathers overtook
    them, the first two reduce-scatters would run beside backward: 420 ms."""
    found = predict(job(EQUAL, cluster(), 2, "zero3", NONE_AHEAD), fidelity=fidelity)
    assert found.iteration_s == pytest.approx(0.480, rel=1e-12)


@pytest.mark.parametrize("fidelity", ["fine", "coarse"])
def test_with_prefetch_a_gather_waits_behind_the_gradients_made_before(fidelity: str) -> None:
    """Forward: gathers end at 30, 60, 90 ms, so that computation goes from 30 to 120. Backward:
    gathers of units 2 and 1 end at 150 and 180, backward of unit 2 at 190, its reduce-scatter at
    220, the gather of unit 0 at 250. Unit 1 computes from 190 to 230, is reduced from 250 to 280;
    unit 0 computes from 250 to 290 and is reduced until 320."""
    found = predict(job(EQUAL, cluster(), 2, "zero3", EACH), fidelity=fidelity)
    assert found.iteration_s == pytest.approx(0.320, rel=1e-12)


BETWEEN = workload([1.0, 2.0, 1.0], [1.0, 2.0, 1.0], [2.0, 0.0, 1.0], optimizer_s=0.5)
"""A layer without parameters between two that have some."""


@pytest.mark.parametrize("fidelity", ["fine", "coarse"])
def test_layers_without_parameters_wait_for_no_unit(fidelity: str) -> None:
    """Two workers, nothing ahead. Unit 0 arrives at 1 s and is computed at 2 s; while unit 1 is
    gathered until 2.5 s, the layer between computes until 4 s, and unit 1 until 5 s. That is
    gathered again until 5.5 s and computed at 6.5 s; its gradients are reduced until 7 s and unit 0
    gathered until 8 s, while the layer between computes until 8.5 s. Unit 0 ends at 9.5 s, is
    reduced at 10.5 s, and half of the optimizer ends at 10.75 s. With a layer of 1 and 1 s before
    unit 0, gathering that is hidden, and its backward pass hides the last reduction."""
    made = predict(job(BETWEEN, cluster(), 2, "fsdp", NONE_AHEAD), fidelity=fidelity)
    assert made.iteration_s == pytest.approx(10.75)
    before = workload(
        [1.0, *[1.0, 2.0, 1.0]], [1.0, *[1.0, 2.0, 1.0]], [0.0, 2.0, 0.0, 1.0], optimizer_s=0.5
    )
    made = predict(job(before, cluster(), 2, "fsdp", NONE_AHEAD), fidelity=fidelity)
    assert made.iteration_s == pytest.approx(10.75)


def drawn(number: int) -> Job:
    """A chain of which about 40 % of the layers have no parameters, with everything else varied."""
    rng = np.random.default_rng([35, number])
    count, workers = int(rng.integers(3, 20)), int(2 ** rng.integers(1, 5))
    times, sizes = rng.lognormal(0.0, 0.4, (2, count)), rng.lognormal(0.0, 0.6, count)
    sizes[rng.random(count) < 0.4] = 0.0
    sizes[int(rng.integers(count))] = 1.0
    work = workload(times[0].tolist(), times[1].tolist(), sizes.tolist(), optimizer_s=0.5)
    options = {
        "unit_bytes": float(rng.choice([0.0, 3.0])),
        "prefetch": int(rng.integers(0, 4)),
        "reshard_after_forward": bool(rng.integers(2)),
    }
    rate = float(10.0 ** rng.uniform(-1.0, 1.5))
    passes = int(rng.choice([1, 1, 2, 4]))
    return job(accumulated(work, passes), cluster(rate), workers, "fsdp", options)


def test_formulas_of_units_equal_the_simulation() -> None:
    for number in range(40):
        made = drawn(number)
        fine_s, coarse_s = (predict(made, fidelity=how).iteration_s for how in ("fine", "coarse"))
        assert coarse_s == pytest.approx(fine_s, rel=1e-9), number


COPIED = {"stage": 3, "copy_per_byte_s": 0.25, "collective_host_s": 0.25}
"""Around a gather 0.25 s, and 1.5 of a unit's bytes at 0.25 s each (1 s and 0.625 s); around a
reduction 0.25 s, and its bytes once (0.75 s and 0.5 s)."""


def test_copies_of_one_unit_precede_its_passes_and_follow_them() -> None:
    assert spans({**COPIED, "prefetch": 0}) == {
        "all-gather unit 0": (0.0, 1.0),
        "copies of parameters, 0": (1.0, 2.0),
        "forward, layer0": (2.0, 3.0),
        "all-gather unit 1": (3.0, 3.5),
        "copies of parameters, 1": (3.5, 4.125),
        "forward, layer1": (4.125, 5.125),
        "all-gather again unit 1": (5.125, 5.625),
        "copies of parameters, 1 again": (5.625, 6.25),
        "backward, layer1": (6.25, 7.25),
        "copies of gradients, 1": (7.25, 7.75),
        "reduce-scatter unit 1": (7.75, 8.25),
        "all-gather again unit 0": (8.25, 9.25),
        "copies of parameters, 0 again": (9.25, 10.25),
        "backward, layer0": (10.25, 11.25),
        "copies of gradients, 0": (11.25, 12.0),
        "reduce-scatter unit 0": (12.0, 13.0),
        "optimizer": (13.0, 13.25),
    }


def test_copies_do_not_overlap_with_passes_although_gathers_do() -> None:
    found = spans(COPIED)
    assert found["all-gather unit 1"] == (1.0, 1.5)
    assert found["copies of parameters, 1"] == (3.0, 3.625)  # the forward pass of unit 0 ends at 3
    assert found["all-gather again unit 0"] == (5.125, 6.125)
    assert found["copies of gradients, 1"] == (6.75, 7.25)
    assert found["copies of parameters, 0 again"] == (7.25, 8.25)
    assert found["reduce-scatter unit 1"] == (7.25, 7.75)
    for fidelity in ("fine", "coarse"):
        one = job(WORK, cluster(), 2, "fsdp", {**EACH, **COPIED})
        got = predict(one, fidelity=fidelity)
        assert got.iteration_s == pytest.approx(11.25, rel=1e-12)
        # a worker computes for 4.25 s; it neither computes nor is late while it copies
        assert got.idle_fraction.mean == pytest.approx(7.0 / 11.25, rel=1e-12)


@examples(20)
@given(data=st.data())
def test_formulas_of_copies_equal_the_simulation(data: st.DataObject) -> None:
    number = st.floats(0.1, 3.0)
    times = [data.draw(st.lists(number, min_size=4, max_size=4)) for _ in range(2)]
    sizes = data.draw(st.lists(st.sampled_from([0.0, 0.5, 2.0]), min_size=3, max_size=3))
    options = {
        "unit_bytes": data.draw(st.sampled_from([0, 2])),
        "prefetch": data.draw(st.integers(0, 2)),
        "reshard_after_forward": data.draw(st.booleans()),
        "reshard_after_backward": data.draw(st.booleans()),
        "copy_per_byte_s": data.draw(st.sampled_from([0.0, 1.0, 0.1])),
        "collective_host_s": data.draw(st.sampled_from([0.0, 0.3])),
    }
    work = workload(*times, [*sizes, 1.0])
    one = job(accumulated(work, data.draw(st.integers(1, 3))), cluster(), 3, "fsdp", options)
    fine_s, coarse_s = (predict(one, fidelity=f).iteration_s for f in ("fine", "coarse"))
    assert coarse_s == pytest.approx(fine_s, rel=1e-9)


WAITING = {**COPIED, "blocking_reduce": True}


def test_a_host_that_waits_gathers_ahead_only_after_copies() -> None:
    """The gather of the next unit is issued once the present one has been copied out of its buffer,
    and parameters are copied once the gradients before are reduced."""
    assert spans(WAITING) == {
        "all-gather unit 0": (0.0, 1.0),
        "copies of parameters, 0": (1.0, 2.0),
        "all-gather unit 1": (2.0, 2.5),
        "forward, layer0": (2.0, 3.0),
        "copies of parameters, 1": (3.0, 3.625),
        "forward, layer1": (3.625, 4.625),
        "all-gather again unit 1": (4.625, 5.125),
        "copies of parameters, 1 again": (5.125, 5.75),
        "all-gather again unit 0": (5.75, 6.75),
        "backward, layer1": (5.75, 6.75),
        "copies of gradients, 1": (6.75, 7.25),
        "reduce-scatter unit 1": (7.25, 7.75),
        "copies of parameters, 0 again": (7.75, 8.75),
        "backward, layer0": (8.75, 9.75),
        "copies of gradients, 0": (9.75, 10.5),
        "reduce-scatter unit 0": (10.5, 11.5),
        "optimizer": (11.5, 11.75),
    }


def test_a_host_that_waits_gathers_one_unit_ahead_before_each_backward_pass() -> None:
    """Without prefetch the pass waits for the gather of the next unit too; nothing overlaps."""
    found = spans({**WAITING, "prefetch": 0})
    unchanged = spans({**COPIED, "prefetch": 0})
    for name in ("copies of parameters, 1 again", "optimizer"):
        assert found[name] == unchanged[name]
    assert found["all-gather again unit 0"] == (6.25, 7.25)
    assert found["backward, layer1"] == (7.25, 8.25)
    assert found["reduce-scatter unit 1"] == (8.75, 9.25)
    assert found["copies of parameters, 0 again"] == (9.25, 10.25)


def test_a_host_that_waits_also_waits_for_sums_among_replicas() -> None:
    """Two groups of two: sums of the halves of units take 1 s and 0.5 s, of which the last one and
    that before the copies of unit 0 are on the way."""
    one = job(WORK, cluster(), 4, "fsdp", {**EACH, **WAITING, "shard_group": 2})
    assert predict(one).iteration_s == pytest.approx(11.75 + 1.0 + 0.5, rel=1e-12)
    graph = build_graph(one)
    ends = {graph.op_name(span.op): span.end_s for span in timeline(graph, iterations=1)}
    for worker in range(4):
        assert ends[f"copies of parameters worker {worker}, 0"] == 2.0
        assert ends[f"copies of parameters worker {worker}, 0 again"] == 9.25


def test_the_first_hook_of_a_host_that_waits_issues_all_gathers_ahead() -> None:
    """Two units ahead: copies of unit 0 end at 2, of unit 1, after the pass of unit 0, at 4."""
    work = workload([1.0] * 4, [1.0] * 4, [2.0] * 4)
    options = {**EACH, **WAITING, "prefetch": 2, "reshard_after_forward": False}
    graph = build_graph(job(work, cluster(), 2, "fsdp", options))
    begins = {graph.op_name(span.op): span.start_s for span in timeline(graph, iterations=1)}
    assert [begins[f"all-gather unit {unit}"] for unit in range(4)] == [0.0, 2.0, 3.0, 4.0]


@pytest.mark.parametrize(
    ("forward", "backward", "gathers"), [(True, False, 6), (False, True, 3), (False, False, 1)]
)
def test_units_freed_after_each_backward_pass_are_gathered_in_the_next(
    forward: bool, backward: bool, gathers: int
) -> None:
    """Three passes of an update, of two workers with a unit of 2 bytes: a gather takes 1 s."""
    work = accumulated(workload([1.0], [1.0], [2.0]), 3)
    options = {"reshard_after_forward": forward, "reshard_after_backward": backward, "prefetch": 0}
    one = job(work, cluster(), 2, "fsdp", {**EACH, **options})
    assert predict(one).iteration_s == pytest.approx(6.0 + 1.0 + gathers, rel=1e-9)


def test_order_of_issue() -> None:
    """With k ahead, the gather of unit i - k comes right after the reduce-scatter of unit i + 1."""

    def issued(**options: Any) -> list[tuple[str, int, int]]:
        found = issue_order(3, Options(**options))
        return [("gather" if one.gather else "reduce", one.number, one.after) for one in found]

    backward = [("gather", 3, 2), ("gather", 4, 2), ("reduce", 0, 3), ("gather", 5, 3)]
    assert issued(prefetch=1) == [
        ("gather", 0, -1),
        ("gather", 1, -1),
        ("gather", 2, 0),
        *backward,
        ("reduce", 1, 4),
        ("reduce", 2, 5),
    ]
    none_ahead = [one[:2] for one in issued(prefetch=0)][3:]
    assert none_ahead == [
        *(("gather", 3), ("reduce", 0), ("gather", 4), ("reduce", 1), ("gather", 5), ("reduce", 2))
    ]
    kept = [one[:2] for one in issued(prefetch=9, reshard_after_forward=False)]
    assert kept == [("gather", k) for k in range(3)] + [("reduce", k) for k in range(3)]


@given(
    forward=st.lists(st.integers(0, 9), min_size=1, max_size=6),
    data=st.data(),
    workers=st.integers(2, 4),
)
@examples(40)
def test_without_prefetch_all_times_add_up(
    forward: list[int], data: st.DataObject, workers: int
) -> None:
    """For any units, if each is gathered for forward and for backward."""
    n = len(forward)
    backward = data.draw(st.lists(st.integers(1, 9), min_size=n, max_size=n))
    size = data.draw(st.lists(st.integers(1, 9), min_size=n, max_size=n))
    one = job(workload(forward, backward, size), cluster(), workers, "zero3", NONE_AHEAD)
    expected = sum(forward) + sum(backward) + 3 * (workers - 1) / workers * sum(size)
    assert predict(one).iteration_s == pytest.approx(expected, rel=1e-9)
    assert predict(one, fidelity="coarse").iteration_s == pytest.approx(expected, rel=1e-9)


def test_canary_gathers_that_overtake_reduce_scatters_are_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The former order: when a computation ends, gathers are issued first."""

    def overtaking(units: int, options: Options) -> list[Issue]:
        found = issue_order(units, options)
        return sorted(found, key=lambda one: (one.after, not one.gather, one.number))

    monkeypatch.setattr(order, "issue_order", overtaking)
    one = job(EQUAL, cluster(), 2, "zero3", NONE_AHEAD)
    assert predict(one).iteration_s == pytest.approx(0.420, rel=1e-12)
    assert predict(one, fidelity="coarse").iteration_s == pytest.approx(0.420, rel=1e-12)


def test_kept_parameters_are_gathered_once() -> None:
    found = spans({"reshard_after_forward": False})
    assert found["backward, layer1"] == (3.0, 4.0)
    assert found["optimizer"] == (6.0, 6.25)
    assert "all-gather again unit 0" not in found


def test_one_unit_for_all_layers() -> None:
    """Everything is gathered, 1.5 s, before each of forward and backward, and scattered after."""
    result = predict(job(WORK, cluster(), 2, "fsdp", {"unit_bytes": 100}))
    assert result.iteration_s == 1.5 + 2.0 + 1.5 + 2.0 + 1.5 + 0.25


def traffic(options: dict[str, Any], workers: int, times: float) -> None:
    """Check how many times (N-1)/N of the bytes each member sends and receives."""
    graph = build_graph(job(WORK, cluster(), workers, "fsdp", options))
    expected = times * (workers - 1) / workers * 3.0
    np.testing.assert_allclose(graph.bytes_by_link(), expected, rtol=1e-12)


@pytest.mark.parametrize("workers", [2, 3, 4, 8])
@pytest.mark.parametrize("unit_bytes", [0, 100])
def test_bytes_over_every_link(workers: int, unit_bytes: float) -> None:
    units = {"unit_bytes": unit_bytes}
    traffic({**units, "stage": 1}, workers, 2.0)
    traffic({**units, "stage": 2}, workers, 2.0)
    traffic({**units, "stage": 3}, workers, 3.0)
    traffic({**units, "stage": 3, "reshard_after_forward": False}, workers, 2.0)


def test_canary_a_gather_left_out_is_noticed() -> None:
    with pytest.raises(AssertionError):
        traffic({"stage": 3, "reshard_after_forward": False}, 4, 3.0)
    with pytest.raises(AssertionError):
        assert predict(job(WORK, cluster(0.99), 2, "fsdp", EACH)).iteration_s == 6.75


@pytest.mark.parametrize("workers", [2, 3, 8])
def test_stages_one_and_two_take_as_long_as_an_all_reduce(workers: int) -> None:
    """One unit, no overlap: reduce-scatter and all-gather are the halves of a ring."""
    work = workload([1.0, 1.0], [1.0, 1.0], [2.0, 1.0])
    where = cluster(latency_s=0.25)
    sharded = predict(job(work, where, workers, "zero2", {"unit_bytes": 100}))
    options = {"bucketing": "one", "overlap": False}
    whole = predict(job(work, where, workers, "ring", options))
    assert sharded.iteration_s == pytest.approx(whole.iteration_s, rel=1e-12)


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_one_worker_takes_the_single_device_step_time(stage: int) -> None:
    result = predict(job(WORK, cluster(), 1, "fsdp", {"stage": stage}))
    assert result.iteration_s == 4.5


def test_names_of_the_stages() -> None:
    for stage in (1, 2, 3):
        named = job(WORK, cluster(), 2, f"zero{stage}")
        assert named.options.stage == stage
        assert job(WORK, cluster(), 2, "fsdp", {"stage": str(stage)}).options == named.options
    assert job(WORK, cluster(), 2, "fsdp").options.stage == 3


def test_units_follow_the_layers() -> None:
    """Layers without parameters compute with those before them."""
    work = workload([1.0] * 5, [1.0] * 5, [0.0, 2.0, 0.0, 2.0, 5.0])
    units = units_of(work, 3.0)
    assert units.bytes.tolist() == [4.0, 5.0]
    assert (units.first.tolist(), units.last.tolist()) == ([1, 4], [3, 4])
    graph = build_graph(job(work, cluster(), 2, "fsdp", {"unit_bytes": 3}))
    begin = {graph.op_name(s.op): s.start_s for s in timeline(graph, iterations=1)}
    assert begin["forward worker 0, layer0"] == 0.0  # needs nothing
    assert begin["forward worker 0, layer1"] == 2.0


def test_a_straggler_delays_all_workers() -> None:
    late = {"stragglers": [Straggler(1, 3.0)]}
    result = predict(job(WORK, cluster(1e9), 3, "fsdp", EACH, **late))
    assert result.iteration_s == pytest.approx(3.0 * (4.0 + 0.5 / 3))


@pytest.mark.parametrize(
    "options", [{"stage": 1}, {"stage": 3}, {"prefetch": 0}, {"reshard_after_forward": False}]
)
@pytest.mark.parametrize("devices", [1, 2])
def test_one_simulated_worker_can_represent_all(
    options: dict[str, Any], devices: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = cluster(
        latency_s=0.01, devices_per_node=devices, intra_node=Link(7.0), core_oversubscription=2.0
    )
    one = job(WORK, where, 6, "fsdp", {**EACH, **options})
    assert build_graph(one, fold=True).n_groups == 1
    folded = predict(one)
    monkeypatch.setattr(fine, "alike", lambda job: False)
    assert same(folded.to_dict(), predict(one).to_dict()) == []
    monkeypatch.undo()
    assert build_graph(job(WORK, where, 6, "fsdp", jitter=Jitter(0.1)), fold=True).n_groups == 6


def with_state(work: Workload) -> Workload:
    return msgspec.structs.replace(work, optimizer_state_bytes=6.0, activation_bytes=10.0)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"stage": 1}, 6.0 / 3 + 3.0 + 3.0),
        ({"stage": 2}, 6.0 / 3 + (1.0 + 2.0) + 3.0),
        ({"stage": 3, "prefetch": 0}, 6.0 / 3 + (1.0 + 2.0) + (1.0 + 2.0)),
        ({"stage": 3, "reshard_after_forward": False}, 6.0 / 3 + (1.0 + 2.0) + 3.0),
    ],
)
def test_memory(options: dict[str, Any], expected: float) -> None:
    """State, gradients and parameters of 6, 3 and 3 bytes over three workers, units of 2 and 1."""
    one = job(with_state(WORK), cluster(), 3, "fsdp", {**EACH, **options})
    assert worker_bytes(one) == pytest.approx(10.0 + expected)


def test_memory_of_many_workers_and_of_one() -> None:
    """With many equal layers a worker needs little more than its activations."""
    work = with_state(workload([1.0] * 100, [1.0] * 100, [1.0] * 100))
    many = job(work, cluster(), 100, "fsdp", EACH)
    assert worker_bytes(many) == pytest.approx(10.0 + 0.06 + (1.0 + 1.0) + (1.0 + 2.0))
    assert worker_bytes(job(work, cluster(), 1, "fsdp", EACH)) == 10.0 + 6.0 + 200.0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"stage": 4}, "option stage of fsdp: expected one of 1, 2, 3, got 4"),
        ({"prefetch": -1}, "prefetch"),
        ({"unit_bytes": -1}, "unit_bytes"),
    ],
)
def test_options_out_of_range(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        job(WORK, cluster(), 2, "fsdp", options)


def test_options_without_effect_are_not_listed_as_assumptions() -> None:
    noted = {a.name for a in job(WORK, cluster(), 2, "zero1").assumptions}
    assert "unit_bytes" in noted
    assert not noted & {"prefetch", "reshard_after_forward"}


def frozen(*sizes: float) -> Workload:
    """``WORK`` with frozen parameters of these bytes in its layers."""
    layers = (
        msgspec.structs.replace(layer, frozen_bytes=size)
        for layer, size in zip(WORK.layers, sizes, strict=True)
    )
    return msgspec.structs.replace(WORK, layers=tuple(layers), frozen_bytes=sum(sizes))


def test_frozen_parameters_are_gathered_and_have_no_gradients() -> None:
    """Units of 2 + 4 and 1 bytes of parameters, of which two workers each lack half: gathers take 3
    and 0.5 s, before forward and again before backward; reductions 1 and 0.5 s, as without them."""
    graph = build_graph(job(frozen(4.0, 0.0), cluster(), 2, "fsdp", NONE_AHEAD))
    took = {
        graph.op_name(span.op): span.end_s - span.start_s for span in timeline(graph, iterations=1)
    }
    assert took["all-gather unit 0"] == took["all-gather again unit 0"] == 3.0
    assert took["all-gather unit 1"] == took["all-gather again unit 1"] == 0.5
    assert (took["reduce-scatter unit 0"], took["reduce-scatter unit 1"]) == (1.0, 0.5)
    made = job(frozen(4.0, 0.0), cluster(), 2, "fsdp", NONE_AHEAD)
    sent = ARCHITECTURE.traffic
    assert sent is not None
    assert sent(made) == Traffic(2 * 3.5 + 1.5, 2 * 3.5 + 1.5)


@pytest.mark.parametrize("stage", [1, 2])
def test_below_stage_three_frozen_parameters_stay_whole(stage: int) -> None:
    options = {**EACH, "stage": stage}
    plain, with_frozen = (
        predict(job(work, cluster(), 2, "fsdp", options), fidelity="fine").iteration_s
        for work in (WORK, frozen(4.0, 9.0))
    )
    assert with_frozen == plain == 6.75


@pytest.mark.parametrize(
    "options", [EACH, NONE_AHEAD, {"unit_bytes": 100.0}, {**EACH, "reshard_after_forward": False}]
)
def test_formulas_of_frozen_parameters_equal_the_simulation(options: dict[str, Any]) -> None:
    for workers in (2, 3):
        made = job(frozen(4.0, 2.5), cluster(), workers, "fsdp", options)
        fine_s, coarse_s = (predict(made, fidelity=how).iteration_s for how in ("fine", "coarse"))
        assert coarse_s == pytest.approx(fine_s, rel=1e-9)
        assert fine_s > predict(job(WORK, cluster(), workers, "fsdp", options)).iteration_s


def test_units_with_frozen_layers() -> None:
    """A frozen layer belongs to the one before it, the first to the next; they fill units."""
    work = workload([1.0] * 4, [1.0] * 4, [0.0, 1.0, 0.0, 1.0])
    layers = tuple(
        msgspec.structs.replace(layer, frozen_bytes=size)
        for layer, size in zip(work.layers, (5.0, 0.0, 2.0, 3.0), strict=True)
    )
    units = units_of(msgspec.structs.replace(work, layers=layers), 4.0)
    assert (units.bytes.tolist(), units.frozen.tolist()) == ([1.0, 1.0], [7.0, 3.0])
    assert units.gathered(0.5).tolist() == [7.5, 3.5]
    below = units_of(msgspec.structs.replace(work, layers=layers), 4.0, stage=2)
    assert (below.bytes.tolist(), below.frozen.tolist()) == ([2.0], [0.0])


def test_base_weights_of_adapters_are_gathered() -> None:
    """Llama 8B with 16-bit weights: 15/16 of 16 GB, before forward and before backward, over
    0.85 of 1.25 GB/s of the nodes' only links, exceed any computation."""
    made = make_job(model="llama-8b", device="h100", arch="fsdp", workers=16, batch_size=1,
                    lora="16", cluster="ethernet-10g")  # fmt: skip
    moved = 2 * 15 / 16 * made.workload.frozen_bytes
    assert made.workload.frozen_bytes == pytest.approx(2.0 * 8.03e9, rel=0.01)
    assert sum(layer.frozen_bytes for layer in made.workload.layers) == pytest.approx(
        made.workload.frozen_bytes
    )
    found = predict(made, fidelity="coarse").iteration_s
    assert found == pytest.approx(moved / 1.25e9 / made.cluster.nic.efficiency, rel=0.1)
