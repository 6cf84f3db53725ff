"""Updates of several passes, against timelines worked out by hand.

Links carry 1 byte/s unless noted. With two workers, each moves half of a unit's bytes in a
reduce-scatter, or in an all-gather, and all of them in an all-reduce.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

from perfmodel import InputError, Workload, build_graph, make_job, predict
from perfmodel.architectures.fsdp import order
from perfmodel.architectures.registry import find
from perfmodel.inputs.cluster import Handover
from perfmodel.inputs.passes import accumulated
from perfmodel.predicting import fine
from perfmodel.predicting.memory import worker_bytes
from tests.architectures.test_allreduce import same
from tests.jobs import cluster, job, workload

WORK = workload([1.0, 1.0], [1.0, 1.0], [2.0, 1.0], optimizer_s=0.5)
"""Two units of 2 and 1 bytes: with two workers a collective of all takes 1.5 s, a pass 4 s."""
EQUAL = workload([0.03] * 3, [0.04] * 3, [0.06] * 3)
"""Three units of two workers: each collective takes 30 ms, forward 30 ms, backward 40 ms."""
EACH = {"unit_bytes": 0}
KEPT = {**EACH, "reshard_after_forward": False}


def seconds(
    work: Workload, passes: int, options: dict[str, Any], arch: str = "fsdp", workers: int = 2
) -> float:
    """Time of an update by simulation, which the formulas have to equal."""
    made = job(accumulated(work, passes), cluster(), workers, arch, options)
    simulated = predict(made).iteration_s
    assert predict(made, fidelity="coarse").iteration_s == pytest.approx(simulated, rel=1e-9)
    return round(simulated, 9)


@pytest.mark.parametrize("passes", [1, 2, 4])
def test_every_pass_gathers_twice(passes: int) -> None:
    """Without prefetch nothing overlaps: 210 ms of computation and 6 gathers of 30 ms in every
    pass, and 3 reductions of 30 ms in the last pass or in every pass."""
    alone = {**EACH, "prefetch": 0}
    found = seconds(EQUAL, passes, alone)
    assert found == pytest.approx(passes * (0.210 + 0.180) + 0.090, rel=1e-12)
    found = seconds(EQUAL, passes, {**alone, "no_sync": False})
    assert found == pytest.approx(passes * (0.210 + 0.180 + 0.090), rel=1e-12)


@pytest.mark.parametrize("passes", [1, 2, 5])
def test_a_pass_waits_for_the_reductions_of_the_one_before(passes: int) -> None:
    """As in test_fsdp, the backward pass ends at 5.5 s and the reduction at 6.5 s. The optimizer
    takes 0.25 s."""
    assert seconds(WORK, passes, EACH) == (passes - 1) * 5.5 + 6.75
    assert seconds(WORK, passes, {**EACH, "no_sync": False}) == (passes - 1) * 6.5 + 6.75


@pytest.mark.parametrize("passes", [1, 2, 5])
@pytest.mark.parametrize("stage", [1, 2])
def test_unsharded_parameters_are_gathered_once_per_update(stage: int, passes: int) -> None:
    """A pass takes 4 s, or 5 s until its gradients are reduced; the optimizer takes 0.25 s and the
    gathers 1.5 s."""
    options = {**EACH, "stage": stage}
    assert seconds(WORK, passes, options) == (passes - 1) * 4.0 + 5.0 + 0.25 + 1.5
    found = seconds(WORK, passes, {**options, "no_sync": False})
    assert found == passes * 5.0 + 0.25 + 1.5


@pytest.mark.parametrize("passes", [2, 3, 5])
def test_kept_parameters_are_gathered_once_under_no_sync(passes: int) -> None:
    """The first gather takes 1 s before the first pass, the last reduction 1 s after the last.
    Otherwise both do so in every pass."""
    assert seconds(WORK, passes, KEPT) == passes * 4.0 + 1.0 + 1.0 + 0.25
    found = seconds(WORK, passes, {**KEPT, "no_sync": False})
    assert found == passes * (4.0 + 1.0 + 1.0) + 0.25


@pytest.mark.parametrize(
    ("options", "gathers", "reductions"),
    [
        ({"stage": 1}, 1, 1),
        ({"stage": 2}, 1, 1),
        ({"stage": 2, "no_sync": False}, 1, 5),
        ({"stage": 3}, 10, 1),
        ({"stage": 3, "no_sync": False}, 10, 5),
        ({"stage": 3, "reshard_after_forward": False}, 1, 1),
        ({"stage": 3, "reshard_after_forward": False, "no_sync": False}, 5, 5),
    ],
)
@pytest.mark.parametrize("workers", [2, 3, 8])
def test_bytes_of_an_update_of_five_passes(
    options: dict[str, Any], gathers: int, reductions: int, workers: int
) -> None:
    """(N-1)/N of 3 bytes in each; ``traffic`` states the same."""
    made = job(accumulated(WORK, 5), cluster(), workers, "fsdp", {**EACH, **options})
    expected = (gathers + reductions) * (workers - 1) / workers * 3.0
    np.testing.assert_allclose(build_graph(made).bytes_by_link(), expected, rtol=1e-12)
    stated = find("fsdp")[0].traffic
    assert stated is not None
    assert stated(made)[:2] == pytest.approx((expected, expected))


def test_bytes_of_hybrid_sharding() -> None:
    """Two groups of two: half of 3 bytes in a gather or a reduction inside them, and an all-reduce
    of half of the gradients, 1.5 bytes over either link of its two members, across."""
    for no_sync, reductions in ((True, 1), (False, 5)):
        options = {**EACH, "shard_group": 2, "no_sync": no_sync}
        made = job(accumulated(WORK, 5), cluster(), 4, "fsdp", options)
        expected = (10 + reductions) * 1.5 + reductions * 1.5
        np.testing.assert_allclose(build_graph(made).bytes_by_link(), expected, rtol=1e-12)


@pytest.mark.parametrize(
    ("arch", "options"),
    [
        ("fsdp", {**EACH, "shard_group": 2}),
        ("fsdp", {**EACH, "prefetch": 3}),
        ("fsdp", {"unit_bytes": 100}),
        ("allreduce", {"bucketing": "layer"}),
        ("allreduce", {"algorithm": "double_tree", "each_send": True}),
        ("allreduce", {"compression": "dgc", "density": 0.5, "decode_per_byte_s": 0.1}),
        ("allreduce", {"compression": "quantised", "encode_per_byte_s": 0.1}),
    ],
)
def test_passes_that_reduce_take_as_long_as_separate_iterations(
    arch: str, options: dict[str, Any]
) -> None:
    """Iterations without an optimizer, which pass the same buffers on."""
    work = msgspec.structs.replace(WORK, buffer_bytes=0.5)
    alone = msgspec.structs.replace(work, optimizer_s=0.0)
    where = cluster(latency_s=0.01)
    once = predict(job(alone, where, 4, arch, options)).iteration_s
    parts = 1 if arch == "allreduce" else options.get("shard_group", 4)
    whole = job(accumulated(work, 6), where, 4, arch, {**options, "no_sync": False})
    assert predict(whole).iteration_s == pytest.approx(6 * once + 0.5 / parts, rel=1e-9)


def test_all_reduce_once_per_update_or_in_every_pass() -> None:
    """One bucket of 3 bytes takes 3 s after each backward pass that ends with it."""
    one = {"algorithm": "ring", "bucketing": "one"}
    assert seconds(WORK, 4, one, "allreduce") == 4 * 4.0 + 3.0 + 0.5
    assert seconds(WORK, 4, {**one, "no_sync": False}, "allreduce") == 4 * (4.0 + 3.0) + 0.5
    for no_sync, moved in ((True, 3.0), (False, 12.0)):
        made = job(accumulated(WORK, 4), cluster(), 2, "ring", {"no_sync": no_sync})
        np.testing.assert_allclose(build_graph(made).bytes_by_link(), moved, rtol=1e-12)


def test_buffers_are_broadcast_before_passes_that_follow_a_reduction() -> None:
    """Half a byte takes half a second before the first pass, or before every pass."""
    work = msgspec.structs.replace(WORK, buffer_bytes=0.5)
    one = {"algorithm": "ring", "bucketing": "one"}
    assert seconds(work, 4, one, "allreduce") == 0.5 + 4 * 4.0 + 3.0 + 0.5
    found = seconds(work, 4, {**one, "no_sync": False}, "allreduce")
    assert found == 4 * (0.5 + 4.0 + 3.0) + 0.5


def test_gradients_are_handed_over_where_they_are_reduced() -> None:
    """Two tensors, 0.1 s each, after one pass or after each of three."""
    where = msgspec.structs.replace(cluster(1e9), handover=Handover(per_tensor_s=0.1))
    for arch in ("fsdp", "ring"):
        for no_sync, times in ((True, 1), (False, 3)):
            made = job(accumulated(WORK, 3), where, 2, arch, {"no_sync": no_sync})
            expected = 3 * 4.0 + times * 0.2 + (0.25 if arch == "fsdp" else 0.5)
            for fidelity in ("fine", "coarse"):
                found = predict(made, fidelity=fidelity).iteration_s
                assert found == pytest.approx(expected, rel=1e-6)


def test_a_model_of_four_gigabytes_over_10_gbps() -> None:
    """Four workers gather three quarters of 2 GB (16 bits) twice in each of 8 passes, and reduce
    them once, 1.2 s each; the passes compute 0.3 s each, partly beside it."""
    coarse = msgspec.structs.replace(
        workload([0.1], [0.2], [4e9]),
        layers=(), tensors=40, largest_tensor_bytes=1e8, precision="mixed",
    )  # fmt: skip
    for no_sync, collectives in ((True, 17), (False, 24)):
        options = {"no_sync": no_sync}
        made = job(accumulated(coarse, 8), cluster(1.25e9), 4, "fsdp", options)
        for fidelity in ("fine", "coarse"):
            found = predict(made, fidelity=fidelity).iteration_s
            assert 1.2 * collectives <= found <= 1.2 * collectives + 8 * 0.02


@pytest.mark.parametrize("no_sync", [True, False])
@pytest.mark.parametrize("arch", ["zero2", "zero3", "ring"])
def test_one_simulated_worker_can_represent_all(
    arch: str, no_sync: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = msgspec.structs.replace(WORK, data_loading_s=3.0)
    one = job(accumulated(work, 3), cluster(latency_s=0.01), 6, arch, {"no_sync": no_sync})
    assert build_graph(one, fold=True).n_groups == 1
    folded = predict(one)
    assert folded.staleness.histogram == {"0": 1.0}
    monkeypatch.setattr(fine, "alike", lambda job: False)
    assert same(folded.to_dict(), predict(one).to_dict()) == []


def test_whole_gradients_stay_in_memory_under_no_sync() -> None:
    """Gradients of 3 bytes over three workers, units of 2 and 1: a third and the largest unit, or
    all of them; half of them if they are sent and kept whole in 16 bits. Parameters of 3 bytes, or
    a third of them and all in 16 bits."""
    work = msgspec.structs.replace(WORK, optimizer_state_bytes=6.0)
    low = msgspec.structs.replace(work, precision="mixed")
    for given, sync, whole, kept in ((work, 1.0 + 2.0, 3.0, 3.0), (low, 1.0 + 1.0, 1.5, 2.5)):
        for passes, no_sync in ((4, True), (4, False), (1, True)):
            options = {**EACH, "stage": 2, "no_sync": no_sync}
            made = job(accumulated(given, passes), cluster(), 3, "fsdp", options)
            expected = max(whole, sync) if no_sync and passes > 1 else sync
            assert worker_bytes(made) == pytest.approx(6.0 / 3 + expected + kept)
    many = workload([1.0] * 10, [1.0] * 10, [1.0] * 10)
    for no_sync, gradients in ((True, 10.0), (False, 2.0 / 2 + 1.0)):
        options = {**EACH, "no_sync": no_sync}
        made = job(accumulated(many, 4), cluster(), 10, "fsdp", options)
        assert worker_bytes(made) == pytest.approx(gradients + 1.0 + 2.0)


def test_the_option_is_an_assumption_where_it_matters() -> None:
    for arch in ("fsdp", "allreduce"):
        for passes in (1, 4):
            made = make_job(workload=accumulated(WORK, passes), workers=2, arch=arch)
            assert ("no_sync" in {a.name for a in made.assumptions}) == (passes > 1)
    made = make_job(workload=accumulated(WORK, 4), workers=2, arch="zero3")
    (note,) = predict(made).notes
    assert note == (
        "accumulation: parameters are gathered 8 times per update of 4 passes, gradients reduced "
        "once; no_sync keeps whole gradients in memory"
    )


@pytest.mark.parametrize("other", [{"bucketing": "horovod"}, {"cross_barrier": True}])
def test_options_that_contradict_reductions_in_every_pass(other: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=r"no_sync: .* must be true"):
        job(WORK, cluster(), 2, "allreduce", {**other, "no_sync": False})


def test_canary_gathers_once_per_update_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(order, "passes_of", lambda job: [order.PassCollectives(True, True, True)])
    with pytest.raises(AssertionError):
        test_every_pass_gathers_twice(4)
    with pytest.raises(AssertionError):
        test_bytes_of_an_update_of_five_passes({"stage": 3}, 10, 1, 2)
