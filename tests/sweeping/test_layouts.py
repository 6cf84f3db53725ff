"""Many layouts of a model at once equal predictions of each."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import numpy as np
import pytest

import perfmodel as pm
from perfmodel import Job, layouts
from perfmodel.catalogue import catalogue
from perfmodel.communication.fabric import Fabric
from perfmodel.inputs.passes import accumulated
from perfmodel.predicting import replica_arrays, replica_columns, replica_formulas
from perfmodel.predicting.replica_lines import line_of, on_line
from perfmodel.sweeping import layouts as module
from perfmodel.sweeping.layout_shapes import NO_MULTIPLE
from tests.settings import thinned


def made(**more: Any) -> Job:
    given: dict[str, Any] = {"model": "llama-8b", "device": "h100", "arch": "ring", "devices": 64}
    shape = {"tensor": 2, "pipeline": 2, "micro_batches": 8, "batch_size": 8, "transfers": "ahead"}
    return pm.make_job(**given | shape | more)


@pytest.fixture
def links_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Predictions in which transfers between stages have their links to themselves, as in
    layouts."""
    monkeypatch.setattr(replica_formulas, "BUSY", math.inf)


@pytest.mark.usefixtures("links_apart")
def test_every_layout_equals_its_prediction() -> None:
    result = layouts(made(), tensor=(1, 2), pipeline=(2, 4), micro_batches=(1, 3, 6, *range(8, 60)),
                    virtual_stages=(1, 2), schedule=())  # fmt: skip
    assert len(result) > 200
    for k in [*range(0, len(result), 29), len(result) - 1]:
        one = pm.predict(result.job_of(k), fidelity="coarse")
        assert result.step_s[k] == pytest.approx(one.iteration_s, rel=1e-9)
        assert result.samples_per_s[k] == pytest.approx(one.throughput_samples_per_s, rel=1e-9)
        bubble = one.idle_fraction.by_cause.get("pipeline", 0.0)
        assert result.bubble_fraction[k] == pytest.approx(bubble, abs=1e-9)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "zb_h1"])
@pytest.mark.parametrize("transfers", thinned(["ahead", "torch", "blocking"], 3))
def test_steps_grow_evenly_with_micro_batches(schedule: str, transfers: str) -> None:
    job = made(transfers=transfers)
    numbers = (*range(8, 40), 61, 90)
    result = layouts(job, tensor=(2,), pipeline=(4,), micro_batches=numbers, schedule=(schedule,))
    for k in range(0, len(result), 7):
        one = pm.predict(result.job_of(k), fidelity="coarse")
        assert result.step_s[k] == pytest.approx(one.iteration_s, rel=1e-9)


def test_a_bubble_by_hand() -> None:
    """Equal stages without transfers: (p - 1) / (m + p - 1)."""
    layers = [pm.WorkloadLayer(f"layer{k}", 1.0, 2.0, (0.001,)) for k in range(4)]
    job = pm.make_job(workload=pm.Workload.of("made", layers), devices=4, pipeline=4, arch="ring",
                      transfers="ahead", cluster="infiniband-100g")  # fmt: skip
    result = layouts(job, pipeline=(2, 4), micro_batches=(1, 16, 64))
    p, m = result.pipeline, result.micro_batches
    assert result.bubble_fraction == pytest.approx((p - 1) / (m + p - 1), rel=1e-3)
    assert result.samples_per_s.tolist() == sorted(result.samples_per_s, reverse=True)
    assert result.to_frame().shape == (6, 14)


def test_many_numbers_cost_a_few_evaluations(monkeypatch: pytest.MonkeyPatch) -> None:
    count = 0
    block = replica_arrays._Group.block

    def counted(*arguments: Any, **named: Any) -> Any:
        nonlocal count
        count += 1
        return block(*arguments, **named)

    monkeypatch.setattr(replica_arrays._Group, "block", counted)
    result = layouts(made(), tensor=(2,), pipeline=(4,), micro_batches=range(1, 100_001))
    assert len(result) == 100_000
    assert count < 40
    assert np.isfinite(result.step_s).all()


def test_single_devices_are_on_a_line_along_micro_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four of forty numbers are evaluated, and the first, which is not on the line."""
    count, one = 0, module.Combinations._step_of

    def counted(*arguments: Any) -> Any:
        nonlocal count
        count += 1
        return one(*arguments)

    monkeypatch.setattr(module.Combinations, "_step_of", counted)
    axes: dict[str, Any] = {"tensor": (1,), "micro_batches": range(1, 41), "arch": ("zero2",)}
    result = layouts(made(), **axes)
    assert (len(result), count) == (40, 5)
    for k in (0, 13, 39):
        alone = pm.predict(result.job_of(k), fidelity="coarse").iteration_s
        assert result.step_s[k] == pytest.approx(alone, rel=1e-12)


def test_single_devices_that_are_on_no_line_are_evaluated_one_by_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Steps of max(42 + m, 3 m) seconds are on a line at 2, 3 and 4, but not at 40."""

    def bent(of: Any, job: Job, passes: int) -> tuple[float, float]:
        return max(42.0 + passes, 3.0 * passes), 0.0

    monkeypatch.setattr(module.Combinations, "_step_of", bent)
    result = layouts(made(), tensor=(1,), micro_batches=range(1, 41))
    steps = dict(zip(result.micro_batches.tolist(), result.step_s.tolist(), strict=True))
    assert (steps[1], steps[20], steps[30], steps[40]) == (43.0, 62.0, 90.0, 120.0)


def test_workloads_are_resolved_once_for_all_divisions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 2 sizes x 2 recomputations x 3 divisions there are 4 to resolve."""
    seen, resolve = [], catalogue.workload

    def counted(*arguments: Any, **named: Any) -> Any:
        seen.append((named["batch_size"], named["recompute"]))
        return resolve(*arguments, **named)

    job = made()
    monkeypatch.setattr(catalogue, "workload", counted)
    several = {"micro_batch_size": (1, 2), "recompute": ("none", "full"), "tensor": (2, 4, 8)}
    layouts(job, pipeline=(2,), micro_batches=(8,), **several)
    assert sorted(set(seen)) == [(8, "full"), (8, "none"), (16, "full"), (16, "none")]
    assert len(seen) <= 6  # and jobs of the architecture, outside of the divisions
    before = len(seen)
    pm.make_job(**(job.given or {}))
    pm.make_job(**(job.given or {}))
    assert len(seen) == before + 2


def test_anchors_that_others_need_by_hand() -> None:
    """Of 64 stages the anchors have 128 + 192 + 256 = 576 micro-batches: more than 512, but less
    than half as many more; of 256 they would have more than twice as many."""
    beyond, among = (line_of(np.array([m]), 64) for m in (512, 256))
    assert beyond.anchors == among.anchors == [128, 192, 256]
    assert beyond.first == [128, 192, 256]
    assert among.first == [256]
    known = {m: (2.0 * m + 10.0, 3.0) for m in beyond.anchors}
    assert on_line(beyond, known) == pytest.approx(np.array([[1034.0, 3.0]]))
    assert on_line(beyond, known | {256: (523.0, 3.0)}) is None  # canary: not on the line


def test_what_is_impossible_is_counted_by_reason() -> None:
    result = layouts(made(), tensor=(2, 3, 64), pipeline=(2, 4), micro_batches=(3, 4),
                    virtual_stages=(1, 2))  # fmt: skip
    assert result.skipped["devices do not form whole replicas"] > 0
    assert result.skipped[NO_MULTIPLE] > 0
    with pytest.raises(pm.InputError, match="none is possible"):
        layouts(made(), tensor=(7,), pipeline=(2,))
    with pytest.raises(pm.InputError, match="single devices"):
        layouts(pm.make_job(model="resnet18"), pipeline=(2,))
    with pytest.raises(pm.InputError, match="pipeline"):
        layouts(made(), pipeline=(2.5,))  # type: ignore[arg-type]


ARCHITECTURES = ("ring", "zero1", "zero2", "zero3", "ps")


@pytest.mark.slow
@pytest.mark.usefixtures("links_apart")
@pytest.mark.parametrize("framework", thinned(["megatron", "torchtitan"]))
def test_a_random_sample_equals_predictions(framework: str) -> None:
    """Of micro-batches' sizes, recomputation, architectures, schedules and global batches."""
    job = made(framework=framework, transfers=None)
    result = layouts(job, tensor=(1, 2, 8), pipeline=(1, 2, 4, 8), virtual_stages=(1, 2, 4),
                    micro_batch_size=(1, 2, 4), recompute=("none", "full"), arch=ARCHITECTURES,
                    global_batch_size=(64, 256, 1024, 2048))  # fmt: skip
    assert len(result) > 2000
    rng = np.random.default_rng(0)
    for k in rng.choice(len(result), 8, replace=False).tolist():
        one = result.job_of(k)
        assert one.global_batch_size == result.global_batch_size[k]
        assert one.workload.recompute == result.recompute[k]
        made_one = pm.predict(one, fidelity="coarse")
        assert result.step_s[k] == pytest.approx(made_one.iteration_s, rel=1e-9)
        bubble = made_one.idle_fraction.by_cause.get("pipeline", 0.0)
        assert result.bubble_fraction[k] == pytest.approx(bubble, abs=1e-9)


@pytest.mark.slow
@pytest.mark.sampled(3)
@pytest.mark.usefixtures("links_apart")
@pytest.mark.parametrize("exchange", ["ring", "all-gather", "hierarchical"])
def test_layouts_of_divided_sequences_equal_predictions(exchange: str) -> None:
    """Of architectures that gather over data x context (zero3), and that sum gradients before."""
    inside = 2 if exchange == "hierarchical" else None
    job = made(context=4, context_exchange=exchange, context_inside=inside, framework="megatron",
               transfers=None, cluster="dgx-h100")  # fmt: skip
    result = layouts(job, tensor=(1, 2), context=(1, 4), pipeline=(1, 2, 4), virtual_stages=(1, 2),
                    recompute=("none", "full"), arch=("ring", "zero3", "ps"),
                    global_batch_size=(64, 256))  # fmt: skip
    several = np.flatnonzero(result.context > 1)
    assert len(several) > 50
    rng = np.random.default_rng(0)
    for k in rng.choice(several, 5, replace=False).tolist():
        one = pm.predict(result.job_of(k), fidelity="coarse")
        assert result.step_s[k] == pytest.approx(one.iteration_s, rel=1e-9)
        bubble = one.idle_fraction.by_cause.get("pipeline", 0.0)
        assert result.bubble_fraction[k] == pytest.approx(bubble, abs=1e-9)


def test_sequences_are_divided_within_arrays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a prediction of any of the layouts; sums of gradients over the devices of a sequence
    are part of each."""
    monkeypatch.delattr(module.Combinations, "_one_by_one")
    job = made(context=2, arch="ps", cluster="ethernet-10g")
    result = layouts(job, context=(2,), pipeline=(2, 4), global_batch_size=(64,))
    assert len(result) == 2
    summed = replica_columns._together
    monkeypatch.setattr(
        replica_columns, "_together", lambda *given: (summed(*given)[0], 0.0 * summed(*given)[1])
    )
    less = layouts(job, context=(2,), pipeline=(2, 4), global_batch_size=(64,))
    assert (np.sort(less.step_s) < np.sort(result.step_s)).all()


def test_links_that_transfers_share_make_little_difference_here() -> None:
    result = layouts(made(), tensor=(1, 2), pipeline=(2, 4), micro_batches=(8, 32))
    for k in range(len(result)):
        one = pm.predict(result.job_of(k), fidelity="coarse")
        assert result.step_s[k] == pytest.approx(one.iteration_s, rel=2e-3)


def test_data_loading_and_stragglers_are_in_each_layout() -> None:
    layers = [pm.WorkloadLayer(f"layer{k}", 0.1, 0.2, (1e6,)) for k in range(8)]
    work = pm.Workload.of("made", layers, data_loading_s=2.0)
    for more in ({}, {"stragglers": [pm.Straggler(0, 1.5)]}):
        given: dict[str, Any] = {"workload": work, "devices": 8, "pipeline": 2, **more}
        job = pm.make_job(**given, arch="ring", cluster="ethernet-10g")
        result = layouts(job, pipeline=(2, 4), micro_batches=(1, 3, 8))
        for k in range(len(result)):
            count = int(result.micro_batches[k])
            of_pass = accumulated(work, count)
            one = pm.make_job(**given | {"workload": of_pass, "pipeline": int(result.pipeline[k])},
                              arch="ring", cluster="ethernet-10g")  # fmt: skip
            step_s = pm.predict(one, fidelity="coarse").iteration_s
            assert result.step_s[k] == pytest.approx(step_s, rel=1e-9)


def test_a_planted_error_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The arrays of a group are what its layouts are made of: without transfers they are faster."""
    kept = layouts(made(), tensor=(2,), pipeline=(4,), micro_batches=(8,)).step_s
    sends = replica_arrays._Group._sends

    def none(*arguments: Any) -> Any:
        return tuple(0.0 * value for value in sends(*arguments))

    monkeypatch.setattr(replica_arrays._Group, "_sends", none)
    assert layouts(made(), tensor=(2,), pipeline=(4,), micro_batches=(8,)).step_s < kept


def test_any_layout_can_be_the_first() -> None:
    """Layouts are the same whichever of them the job has."""
    axes: dict[str, Any] = {"tensor": (1, 2), "pipeline": (1, 2, 4), "micro_batches": (8,)}
    rates = []
    for tensor, pipeline in ((2, 1), (1, 4), (2, 2)):
        shape = {"tensor": tensor, "pipeline": pipeline, "virtual_stages": None, "transfers": None}
        result = layouts(made(**shape), **axes)
        sizes = zip(result.tensor.tolist(), result.pipeline.tolist(), strict=True)
        rates.append(dict(zip(sizes, result.samples_per_s.round(9).tolist(), strict=True)))
    assert len(rates[0]) >= 5
    assert rates[0] == rates[1] == rates[2]


def test_global_batches_that_do_not_fit_are_counted() -> None:
    result = layouts(made(), tensor=(2,), pipeline=(4,), global_batch_size=(64, 100))
    assert result.global_batch_size.tolist() == [64]
    assert any("global_batch_size" in reason for reason in result.skipped)


@pytest.mark.parametrize("first", [(2, 1), (1, 4)])
def test_sharded_layouts_equal_predictions_whatever_the_first_is(first: tuple[int, int]) -> None:
    """Options that pipelines change, such as resharding, are those of each layout."""
    job = made(tensor=first[0], pipeline=first[1], transfers=None)
    result = layouts(job, tensor=(1, 2), pipeline=(1, 4), micro_batches=(8,), arch=("zero3",))
    assert len(result) == 4
    for k in range(4):
        one = result.job_of(k)
        assert result.made(k).options == one.options
        step_s = pm.predict(one, fidelity="coarse").iteration_s
        assert result.step_s[k] == pytest.approx(step_s, rel=1e-9)


def of_every_pass(**more: Any) -> module.Layouts:
    """Layouts without a pipeline that gather in each pass, with handover of gradients."""
    handed = pm.Handover(per_tensor_s=1e-5, per_byte_s=1e-10)
    cluster = msgspec.structs.replace(catalogue.cluster("ethernet-100g"), handover=handed)
    job = made(arch="zero3", pipeline=None, transfers=None, cluster=cluster, **more)
    return layouts(job, tensor=(2, 4), recompute=("none", "full"), micro_batches=(1, 2, 3, 9, 40))


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "options", [None, {"reshard_after_forward": False}, {"no_sync": False, "prefetch": 0}]
)
def test_layouts_that_send_in_each_pass_equal_predictions(
    options: dict[str, Any] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As arrays, without a prediction of any of them."""
    one_by_one = module.Combinations._one_by_one
    monkeypatch.delattr(module.Combinations, "_one_by_one")
    result = of_every_pass(options=options)
    monkeypatch.setattr(module.Combinations, "_one_by_one", one_by_one, raising=False)
    assert len(result) == 20
    for k in range(len(result)):
        one = pm.predict(result.job_of(k), fidelity="coarse")
        assert result.step_s[k] == pytest.approx(one.iteration_s, rel=1e-12)
        bubble = one.idle_fraction.by_cause.get("pipeline", 0.0)
        assert result.bubble_fraction[k] == pytest.approx(bubble, abs=1e-12)


def test_a_pass_without_its_own_times_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gathers of a pass are beside its own computation, not beside that of the whole update."""
    kept = of_every_pass().step_s
    monkeypatch.setattr(replica_columns, "with_passes", lambda layers, of_pass: layers)
    assert not np.allclose(np.sort(of_every_pass().step_s), np.sort(kept), rtol=1e-3)


@pytest.mark.sampled(2)
@pytest.mark.usefixtures("links_apart")
@pytest.mark.parametrize("arch", ["ring", "zero3"])
def test_divided_sequences_equal_their_predictions(arch: str) -> None:
    result = layouts(
        made(arch=arch, transfers=None),
        tensor=(1, 2), context=(1, 2), pipeline=(1, 2), micro_batches=(4,),
    )  # fmt: skip
    assert len(result) == 8
    assert set(result.context.tolist()) == {1, 2}
    for k in range(8):
        one = result.job_of(k)
        assert one.devices == 64
        assert (result.made(k).workers, result.made(k).replica) == (one.workers, one.replica)
        step_s = pm.predict(one, fidelity="coarse").iteration_s
        assert result.step_s[k] == pytest.approx(step_s, rel=1e-9)


@pytest.mark.slow
@pytest.mark.usefixtures("links_apart")
def test_divided_experts_equal_their_predictions(monkeypatch: pytest.MonkeyPatch) -> None:
    """As arrays, without a prediction of any of them but of a single device's."""
    counted: list[int] = []
    monkeypatch.setattr(replica_arrays, "along", counting(replica_arrays.along, counted))
    monkeypatch.setattr(module, "along", replica_arrays.along)
    job = pm.make_job(model="mixtral-8x7b", device="h100", cluster="dgx-h100", arch="ring",
                      devices=16, tensor=2, micro_batches=2, batch_size=2)  # fmt: skip
    result = layouts(job, tensor=(1, 2), expert=(1, 8), pipeline=(1, 2), micro_batches=(2,),
                    arch=("ring", "zero1"))  # fmt: skip
    assert any("8 x expert_tensor 2 devices" in why for why in result.skipped)
    assert set(result.expert.tolist()) == {1, 8}
    assert len(result) == 14
    assert sum(counted) == 12
    for k in range(0, 14, 2):
        one = result.job_of(k)
        assert result.made(k).replica == one.replica
        predicted = pm.predict(one, fidelity="coarse")
        assert result.step_s[k] == pytest.approx(predicted.iteration_s, rel=1e-9)
        bubble = predicted.idle_fraction.by_cause.get("pipeline", 0.0)
        assert result.bubble_fraction[k] == pytest.approx(bubble, abs=1e-9)


def counting(of: Any, counted: list[int]) -> Any:
    """A function that also notes how many its first argument has."""

    def called(several: Any, *others: Any) -> Any:
        counted.append(len(several))
        return of(several, *others)

    return called


def of_experts() -> module.Layouts:
    """Two stages whose experts are on two devices each, which are on several nodes."""
    job = pm.make_job(model="mixtral-8x7b", device="h100", cluster="ethernet-100g", arch="zero1",
                      devices=16, expert=2, pipeline=2, micro_batches=2, batch_size=2,
                      expert_skew=0.3)  # fmt: skip
    return layouts(job, expert=(2, 4), pipeline=(2,), global_batch_size=(64,))


def test_exchanges_with_experts_and_their_gradients_are_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kept = np.sort(of_experts().step_s)
    with monkeypatch.context() as one:
        one.setattr(replica_columns, "routed_layers", lambda *given: None)
        assert (np.sort(of_experts().step_s) < kept).all()
    monkeypatch.setattr(replica_columns, "updated", lambda work, *given, **named: work)
    assert not np.isclose(np.sort(of_experts().step_s), kept, rtol=1e-6).any()


@pytest.mark.slow
@pytest.mark.usefixtures("links_apart")
def test_tied_tables_equal_their_predictions(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first and the last stage sum the gradients of a table that both have; within arrays."""
    monkeypatch.delattr(module.Combinations, "_one_by_one")
    job = pm.make_job(model="gpt2-medium", device="a100", cluster="dgx-a100", arch="ring",
                      devices=16, tensor=2, pipeline=2, micro_batches=2, batch_size=2)  # fmt: skip
    axes: dict[str, Any] = {"tensor": (1, 2), "pipeline": (2, 4), "virtual_stages": (1, 2),
                            "arch": ("ring", "zero1"), "global_batch_size": (32,)}  # fmt: skip
    result = layouts(job, **axes)
    assert len(result) > 10
    for k in range(0, len(result), 3):
        one = pm.predict(result.job_of(k), fidelity="coarse")
        assert result.step_s[k] == pytest.approx(one.iteration_s, rel=1e-9)
        bubble = one.idle_fraction.by_cause.get("pipeline", 0.0)
        assert result.bubble_fraction[k] == pytest.approx(bubble, abs=1e-9)
    monkeypatch.setattr(replica_arrays, "sum_of_tied_s", lambda *given: 0.0)
    assert (np.sort(layouts(job, **axes).step_s) < np.sort(result.step_s)).all()


def test_the_sum_of_a_tied_table_by_hand() -> None:
    """1 GB over a link of 10 GB/s from one to the other, in two steps of 5 us."""
    link = pm.Link(1e10, 5e-6)
    source = pm.Source("exact", "made for a test")
    fabric = Fabric.of(pm.Cluster(name="made", nic=link, intra_node=None, source=source), 2)
    took_s = replica_formulas.sum_of_tied_s(fabric, 1e9, [np.array([0]), np.array([1])])
    assert took_s == pytest.approx(0.1 + 1e-5, rel=1e-9)
