"""Pipelines that update weights without a flush: PipeDream and PipeDream-2BW."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from perfmodel import (
    InputError,
    Job,
    Prediction,
    Workload,
    WorkloadLayer,
    build_graph,
    pipelines,
    predict,
)
from perfmodel.engine.simulation import makespan, simulate
from perfmodel.inputs.passes import accumulated, one_pass
from perfmodel.inputs.replica import Replica
from perfmodel.pipelines.rounds import round_of
from perfmodel.predicting import replicas
from perfmodel.training.spans import pace_s, paths_of
from tests import oracles
from tests.architectures.test_laws import slowed
from tests.jobs import cluster, job
from tests.settings import examples

MB = 1e6
FREE = 1e-9
"""A size whose transfer takes no time to speak of."""

KEEP_VERSIONS = ("ring", "p2p", "ps", "asp", "ssp", "local_sgd", "diloco")
ONE_VERSION = ("fsdp", "d_psgd", "ad_psgd", "gosgd", "easgd")


def made(
    stages: list[tuple[float, float]],
    schedule: str = "pipedream",
    *,
    passes: int = 1,
    workers: int = 1,
    arch: str = "ring",
    sent: float = FREE,
    gradient: float = FREE,
    **more: Any,
) -> Job:
    """Stages of one layer each, with F and B in seconds, and sizes in MB over links of 1 MB/s."""
    layers = [
        WorkloadLayer(f"layer{k}", f, b, (gradient * MB,), sent * MB)
        for k, (f, b) in enumerate(stages)
    ]
    work = accumulated(Workload.of("chain", layers), passes)
    return job(work, cluster(MB), workers, arch, pipeline=len(stages), schedule=schedule, **more)


def both(one: Job) -> tuple[Prediction, Prediction]:
    return predict(one, fidelity="fine"), predict(one, fidelity="coarse")


# -- by hand ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("stages", [2, 3, 4])
def test_pipedream_has_no_bubble(stages: int) -> None:
    for got in both(made([(1.0, 2.0)] * stages)):
        assert got.iteration_s == pytest.approx(3.0, rel=1e-6)
        assert got.idle_fraction.mean == pytest.approx(0.0, abs=1e-6)


def test_two_unequal_stages_by_hand() -> None:
    # the slowest stage sets the pace. Stage 0: F 1, B 2; stage 1: F 3, B 4, always busy:
    # 0: F0 0-1, F1 1-2, B0 8-10, F2 10-11, B1 15-17, F3 17-18, ...: 3 of 7 s
    # 1: F0 1-4, B0 4-8, F1 8-11, B1 11-15, F2 15-18, ...: an update every 7 s
    for got in both(made([(1.0, 2.0), (3.0, 4.0)])):
        assert got.iteration_s == pytest.approx(7.0, rel=1e-6)
        assert got.idle_fraction.by_cause["pipeline"] == pytest.approx(4 / 7 / 2, rel=1e-6)
        assert got.staleness is not None
        assert got.staleness.by_stage == (1.0, 0.0)


def test_three_stages_with_transfers_by_hand() -> None:
    # transfers of 0.5 s, posted ahead. Three micro-batches are in flight, and each goes through
    # 3 F, 3 B and 4 transfers, 9 + 2 s, before its place is free: 11 / 3 s for one
    # 0: F0 0-1, F1 1-2, F2 2-3, B0 9-11; 1: F0 1.5-2.5, F1 2.5-3.5, B0 6.5-8.5, F2 8.5-9.5
    # 2: F0 3-4, B0 4-6, F1 6-7, B1 7-9, F2 10-11, B2 11-13, F3 14-15 (0: 11-12, 1: 12.5-13.5)
    for got in both(made([(1.0, 2.0)] * 3, sent=0.5)):
        assert got.iteration_s == pytest.approx(11 / 3, rel=1e-6)
    # with 2 stages: 2 F, 2 B and 2 transfers, 6 + 1 s, for two micro-batches
    for got in both(made([(1.0, 2.0)] * 2, sent=0.5)):
        assert got.iteration_s == pytest.approx(3.5, rel=1e-6)


@pytest.mark.parametrize("stages", [2, 3, 4])
def test_an_update_with_double_buffers_takes_its_micro_batches(stages: int) -> None:
    for passes in (stages, 2 * stages + 1):
        for got in both(made([(1.0, 2.0)] * stages, "pipedream_2bw", passes=passes)):
            assert got.iteration_s == pytest.approx(3.0 * passes, rel=1e-6)
            assert got.staleness is not None
            assert got.staleness.by_stage == (1.0,) * stages
            assert got.staleness.histogram == {"1": 1.0}


@pytest.mark.parametrize("stages", [2, 3, 4])
def test_the_staleness_of_a_stage_is_that_of_the_paper(stages: int) -> None:
    """Narayanan et al., SOSP 2019, section 3.3: stage s of n uses weights n - s updates old, with
    stages from 1."""
    for got in both(made([(1.0, 2.0)] * stages)):
        stale = got.staleness
        assert stale is not None
        assert stale.by_stage == tuple(float(stages - 1 - r) for r in range(stages))
        assert stale.mean == pytest.approx((stages - 1) / 2)
        assert stale.histogram == {str(k): pytest.approx(1 / stages) for k in range(stages)}
        assert stale.max == stages - 1


def test_replicas_reduce_each_stage_after_every_micro_batch() -> None:
    # F 1, B 2, then an all-reduce of 4 MB among two, each of which sends and receives 4 MB in 4 s
    late = {"bucketing": "one", "overlap": False}
    for got in both(made([(1.0, 2.0)] * 2, workers=2, gradient=4.0, options=late)):
        assert got.iteration_s == pytest.approx(7.0, rel=1e-6)
        assert got.idle_fraction.by_cause["network"] == pytest.approx(4 / 7, rel=1e-6)


@pytest.mark.parametrize(("schedule", "passes"), [("pipedream", 1), ("pipedream_2bw", 3)])
def test_asynchronous_servers_count_the_updates_of_all_replicas(schedule: str, passes: int) -> None:
    """A gradient is applied d rounds after its weights were read. In each of the d + 1 rounds, each
    other replica makes an update, and in d of them so does the own one."""
    one = made([(1.0, 2.0)] * 3, schedule, passes=passes, workers=4, arch="asp", gradient=0.01,
               start="staggered")  # fmt: skip
    late = (2, 1, 0) if schedule == "pipedream" else (1, 1, 1)
    expected = [d + (d + 1) * 3 for d in late]
    for got in both(one):
        assert got.staleness is not None
        assert got.staleness.by_stage == pytest.approx(expected, abs=0.1)
        assert got.staleness.mean == pytest.approx(np.mean(expected), abs=0.1)


def test_canary_another_staleness_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replicas, "delays", lambda _: [1, 1, 1])
    with pytest.raises(AssertionError):
        test_the_staleness_of_a_stage_is_that_of_the_paper(3)


# -- against the drawn schedule, another program ---------------------------------------------------


def drawn_pace_s(
    name: str, stages: int, passes: int, seconds: np.ndarray[Any, Any], send_s: float
) -> float:
    """The time between two updates in the middle of a long drawn schedule."""
    more = {} if name == "pipedream" else {"batch": passes}
    order = pipelines.schedule(name, stages, 240 * passes, **more)
    line = pipelines.timeline(order, seconds[0], seconds[1], send_s=send_s)
    ends = line.end_s[order.place[1, 0]]  # backward passes of the first stage
    return float(ends[180 * passes - 1] - ends[60 * passes - 1]) / 120


@pytest.mark.slow
@examples(30)
@given(data=st.data())
def test_the_pace_is_that_of_a_long_drawn_schedule(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(["pipedream", "pipedream_2bw"]))
    stages = data.draw(st.integers(2, 4))
    passes = 1 if name == "pipedream" else data.draw(st.integers(stages, 6))
    number = st.sampled_from([0.5, 1.0, 1.5, 2.0, 3.0])
    seconds = np.array(data.draw(st.lists(number, min_size=2 * stages, max_size=2 * stages)))
    seconds = seconds.reshape(2, stages)
    send_s = data.draw(st.sampled_from([0.0, 0.25, 1.0]))
    one = made(list(map(tuple, seconds.T.tolist())), name, passes=passes, sent=send_s or FREE)
    fine, coarse = both(one)
    expected = drawn_pace_s(name, stages, passes, seconds, send_s)
    paths = paths_of(Replica(pipeline=stages, schedule=name, transfers="ahead"), passes)
    took = seconds[paths.schedule.kind, paths.schedule.stage]
    none = np.zeros(len(paths.handing.source))
    alone_s = pace_s(paths, took, none + send_s, none, np.zeros(stages))
    assert alone_s == pytest.approx(expected, rel=2e-3)
    if stages == 2 or not send_s:
        assert coarse.iteration_s == pytest.approx(alone_s, rel=1e-5)
        assert fine.iteration_s == pytest.approx(coarse.iteration_s, rel=1e-5)
    else:  # what a stage in the middle sends to both sides shares its link
        assert coarse.iteration_s >= alone_s * (1 - 1e-5)
        assert fine.iteration_s == pytest.approx(coarse.iteration_s, rel=0.05)


def test_canary_another_pace_is_noticed() -> None:
    seconds = np.array([[1.0, 1.0], [2.0, 2.0]])
    expected = drawn_pace_s("pipedream", 2, 1, seconds, 0.5)
    assert both(made([(1.0, 2.0)] * 2, sent=0.6))[1].iteration_s != pytest.approx(
        expected, rel=2e-3
    )


@pytest.mark.parametrize("transfers", ["ahead", "torch", "blocking"])
@pytest.mark.parametrize(("name", "passes"), [("pipedream", 1), ("pipedream_2bw", 5)])
def test_formulas_equal_the_simulation_for_all_transfers(
    transfers: str, name: str, passes: int
) -> None:
    stages = [(1.0, 2.0), (1.5, 2.0), (1.0, 3.0), (0.5, 1.0)]
    fine, coarse = both(made(stages, name, passes=passes, sent=0.4, transfers=transfers))
    assert coarse.iteration_s == pytest.approx(fine.iteration_s, rel=1e-5)


def test_a_pace_that_never_becomes_regular_is_a_mean() -> None:
    paths = paths_of(Replica(pipeline=2, schedule="pipedream", transfers="ahead"), 1)
    seconds = np.array([1.0, 2.0, 1.0, 2.0 + 1e-7])  # the slower stage falls behind for long
    none = np.zeros(len(paths.handing.source))
    assert pace_s(paths, seconds, none, none, np.zeros(2)) == pytest.approx(3.0, rel=1e-6)


# -- orders ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("stages", "passes"), [*itertools.product((2, 3, 4), (4, 5, 8))])
def test_a_round_has_each_micro_batch_once(stages: int, passes: int) -> None:
    order, ahead = round_of(pipelines.schedule("pipedream_2bw", stages, 3 * passes, batch=passes))
    assert len(order) == 2 * passes * stages
    for kind, stage in itertools.product((0, 1), range(stages)):
        assert sorted(order.place[kind, stage].tolist()) == order.place[kind, stage].tolist() or (
            kind == 0
        )
        assert (order.place[kind, stage] >= 0).all()
    assert set(ahead[order.kind == 1].tolist()) == {0}
    assert set(ahead[order.stage == stages - 1].tolist()) == {0}


# -- laws ------------------------------------------------------------------------------------------


@st.composite
def jobs(draw: st.DrawFn) -> Job:
    stages = draw(st.integers(2, 4))
    name = draw(st.sampled_from(["pipedream", "pipedream_2bw"]))
    number = st.floats(0.5, 3.0)
    return made(
        [(draw(number), draw(number)) for _ in range(stages)],
        name,
        passes=1 if name == "pipedream" else draw(st.integers(stages, 6)),
        workers=draw(st.integers(1, 3)),
        arch=draw(st.sampled_from(KEEP_VERSIONS)),
        sent=draw(st.sampled_from([FREE, 0.3, 1.0])),
        gradient=draw(st.sampled_from([0.1, 1.0, 4.0])),
        transfers=draw(st.sampled_from(["ahead", "torch", "gloo", "blocking"])),
        rank_order=draw(st.sampled_from(["tp-dp-pp", "tp-pp-dp"])),
    )


@examples(25)
@given(data=st.data())
def test_laws_hold(data: st.DataObject) -> None:
    one = data.draw(jobs())
    graph = build_graph(one)
    oracles.timeline_holds(graph, seed=1, iterations=4)
    assert makespan(slowed(graph), iterations=3) == 2 * makespan(graph, iterations=3)
    measures = simulate(graph, seed=3, rel_ci=0.5)
    oracles.busy_and_idle_fill_the_time(measures)
    oracles.resources_bound_the_pace(graph, measures)


@examples(15)
@given(data=st.data())
def test_an_update_takes_at_least_the_slowest_stage(data: st.DataObject) -> None:
    one = data.draw(jobs())
    got = predict(one, rel_ci=0.2)
    layers = one_pass(one.workload).layers
    slowest = max(layer.forward_s + layer.backward_s for layer in layers)
    assert got.iteration_s >= one.workload.accumulation * slowest * (1 - 1e-9)
    idle = got.idle_fraction
    assert sum(idle.by_cause.values()) == pytest.approx(idle.mean, abs=1e-6)


def test_one_replica_represents_all() -> None:
    one = made([(1.0, 2.0)] * 3, workers=4, gradient=0.5)
    assert build_graph(one, fold=True).n_groups == 3
    folded, whole = (simulate(build_graph(one, fold=fold), seed=1) for fold in (True, False))
    assert folded.iterations_per_s[0] == pytest.approx(whole.iterations_per_s[0], rel=1e-9)


def test_a_flush_takes_longer_and_is_not_stale() -> None:
    endless, flushed = (
        predict(made([(1.0, 2.0)] * 4, name, passes=4)) for name in ("pipedream_2bw", "1f1b")
    )
    assert flushed.iteration_s == pytest.approx(7 * 3.0, rel=1e-6)  # (m + p - 1) (F + B)
    assert endless.iteration_s == pytest.approx(4 * 3.0, rel=1e-6)
    assert flushed.staleness is not None
    assert flushed.staleness.max == 0
    assert flushed.staleness.by_stage == ()


# -- what is refused, and defaults -----------------------------------------------------------------


@pytest.mark.parametrize("arch", KEEP_VERSIONS)
def test_these_architectures_run_between_them(arch: str) -> None:
    one = made([(1.0, 2.0)] * 2, workers=2, arch=arch, gradient=0.1)
    assert predict(one, rel_ci=0.1).iteration_s >= 3.0 * (1 - 1e-9)


@pytest.mark.parametrize("arch", ONE_VERSION)
def test_architectures_with_one_version_are_refused(arch: str) -> None:
    with pytest.raises(InputError, match=f"several versions of weights, and with {arch} ") as error:
        predict(made([(1.0, 2.0)] * 2, workers=2, arch=arch))
    assert "\n" not in str(error.value)


def test_sharded_states_have_whole_parameters() -> None:
    one = made([(1.0, 2.0)] * 2, workers=2, arch="fsdp", options={"stage": 1}, gradient=0.1)
    assert predict(one).iteration_s >= 3.0


def test_no_order_of_updates_is_recorded() -> None:
    with pytest.raises(InputError, match="gives each stage gradients of other weights"):
        predict(made([(1.0, 2.0)] * 2, workers=2)).schedule(updates=4)


def test_numbers_of_micro_batches() -> None:
    with pytest.raises(InputError, match="pipedream updates after each one, got 4"):
        predict(made([(1.0, 2.0)] * 2, passes=4))
    with pytest.raises(InputError, match="at least as many for an update as there are stages, 3"):
        predict(made([(1.0, 2.0)] * 3, "pipedream_2bw", passes=2))


def test_defaults_are_those_of_pipedream() -> None:
    from perfmodel import make_job

    one = make_job(model="gpt2-small", device="a100", pipeline=2, schedule="PipeDream")
    assert one.replica is not None
    assert (one.replica.transfers, one.workload.accumulation) == ("ahead", 1)
    batch = make_job(model="gpt2-small", device="a100", pipeline=2, schedule="pipedream_2bw")
    assert batch.workload.accumulation == 8
