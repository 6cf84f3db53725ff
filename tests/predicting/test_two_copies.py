"""Pipelines in two directions, with two copies of each stage: DualPipe; and DualPipeV."""

from __future__ import annotations

from typing import Any, cast

import msgspec
import numpy as np
import pytest
from hypothesis import given, strategies as st

from perfmodel import (
    InputError,
    IntraNode,
    Job,
    Prediction,
    Straggler,
    Workload,
    WorkloadLayer,
    build_graph,
    make_job,
    pipelines,
    predict,
)
from perfmodel.engine.simulation import makespan, simulate
from perfmodel.inputs.passes import accumulated
from perfmodel.inputs.replica import Replica, Transfers
from perfmodel.predicting import replicas
from perfmodel.predicting.memory import memory_of
from perfmodel.training.spans import paths_of, spans
from tests import oracles
from tests.architectures.test_laws import slowed
from tests.jobs import cluster, job
from tests.settings import examples

MB = 1e6
FREE = 1e-9
LATE = {"bucketing": "one", "overlap": False}

KEEP_ONE_MODEL = ("ring", "fsdp", "ps", "p2p")
OTHERS = ("asp", "ssp", "local_sgd", "diloco", "d_psgd", "ad_psgd", "gosgd", "easgd")


def made(
    times: list[tuple[float, float]],
    passes: int,
    workers: int = 1,
    arch: str = "ring",
    *,
    schedule: str = "dualpipe",
    sent: float = FREE,
    gradient: float = FREE,
    chunks: int = 1,
    **more: Any,
) -> Job:
    """Stages of one layer each, with F and B in seconds, and sizes in MB over links of 1 MB/s."""
    layers = [
        WorkloadLayer(f"layer{k}", f, b, (gradient * MB,), sent * MB)
        for k, (f, b) in enumerate(times)
    ]
    work = accumulated(Workload.of("chain", layers), passes)
    given = {"cluster": cluster(MB), "virtual_stages": chunks, "transfers": "ahead"}
    given |= more
    where = given.pop("cluster")
    stages = len(times) // chunks
    return job(work, where, workers, arch, pipeline=stages, schedule=schedule, **given)


def both(one: Job) -> tuple[Prediction, Prediction]:
    return predict(one, fidelity="fine"), predict(one, fidelity="coarse")


# -- by hand ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("stages", "bubble_s"), [(2, 0.0), (4, 2.0), (6, 4.0)])
@pytest.mark.parametrize("workers", [1, 2])
def test_the_bubble_is_that_of_the_report(stages: int, bubble_s: float, workers: int) -> None:
    """DeepSeek-V3, table 2: (p / 2 - 1) (F&B + B - 3 W). With F 1, B 2, W 1, and F&B one after the
    other, 3, that is 2 for each two stages more. A rank computes m / 2 times two stages."""
    passes = 3 * stages + 2
    for got in both(made([(1.0, 2.0)] * stages, passes, workers)):
        assert got.iteration_s == pytest.approx(passes * 3.0 + bubble_s, rel=1e-6)
        idle = bubble_s / (passes * 3.0 + bubble_s)
        assert got.idle_fraction.by_cause.get("pipeline", 0.0) == pytest.approx(idle, abs=1e-6)


def test_the_copies_reduce_their_gradients() -> None:
    # two stages, 4 micro-batches: both ranks end at 4 x 3 s. Then the two copies of both stages
    # are summed: 2 x 4 MB among two, each of which sends as much, in 8 s
    for got in both(made([(1.0, 2.0)] * 2, 4, gradient=4.0, options=LATE)):
        assert got.iteration_s == pytest.approx(12.0 + 8.0, rel=1e-6)
    # two replicas: a ring of four sends 2 (4 - 1) / 4 of 8 MB
    for got in both(made([(1.0, 2.0)] * 2, 4, 2, gradient=4.0, options=LATE)):
        assert got.iteration_s == pytest.approx(12.0 + 12.0, rel=1e-6)


def test_servers_sum_the_gradients_of_all_copies() -> None:
    # each of the two ranks pushes and pulls both stages, 2 x 1 MB; the server's link passes both
    one = made([(1.0, 2.0)] * 2, 4, arch="ps", gradient=1.0, options={"servers": 1})
    assert predict(one).iteration_s == pytest.approx(12.0 + 4.0 + 4.0, rel=0.2)


def test_an_unequal_pipeline_by_hand() -> None:
    # p 2, m 4, F and B of stage 0: 1 and 2, of stage 1: 2 and 4. Both ranks do the same:
    # rank 0: F of stage 0 for 0, of stage 1 for 2 once rank 1 has passed stage 0 ...
    drawn = pipelines.timeline(pipelines.schedule("dualpipe", 2, 4), [1.0, 2.0], [2.0, 4.0],
                               [1.0, 2.0], [1.0, 2.0])  # fmt: skip
    assert drawn.makespan_s == pytest.approx(18.0)  # 2 micro-batches through each: always busy
    for got in both(made([(1.0, 2.0), (2.0, 4.0)], 4)):
        assert got.iteration_s == pytest.approx(18.0, rel=1e-6)
        assert got.idle_fraction.mean == pytest.approx(0.0, abs=1e-6)


PAIRS = {
    # rank 0 has stages 0 and 3, rank 1 stages 1 and 2; a transfer between 0 and 1 takes 1 s
    "torch": {"3F2": (12, 13), "0B0": (13, 15), "3F3": (19, 20), "0B1": (20, 22)},
    # each pair begins once both inputs are there
    "ahead": {"3F2": (13, 16), "0B0": (13, 16), "3F3": (19, 22), "0B1": (19, 22)},
}
"""Begins and ends of two pairs of rank 0, by hand: F takes 1 s, B 2 s, I and W 1 s.

Rank 0: 0F0 0F1 0F2 3F0 3I0 3W0 3F1 [0F3 3B1] [3F2 0B0] 3B2 [3F3 0B1] 3B3 0I2 0W2 0I3 0W3.
Rank 1: 1F0 2F0 1F1 2F1 1F2 2B0 [2F2 1B0] [1F3 2B1] [2F3 1B1] 2B2 1B2 2I3 1I3 2W3 1W3.

1F0 2-3, 2F0 -4, 1F1 -5, 2F1 -6, 1F2 -7; 3F0 4-5, 3I0 -6, 3W0 -7, 3F1 -8. 2B0 7-9, then 2F2 -10 and
1B0 -12, which leave at 12: 3F2 can begin at 12, 0B0 at 13. 0F3 and 3B1 8-11 leave at 11. Rank 1
asks for 0F3 after [2F2 1B0] with torch, at 12, so that 1F3 is 13-14, 2B1 -16, 2F3 and 1B1 -19: 3F3
can begin at 19, 0B1 at 20. If data are asked for ahead, all that is 1 s earlier.
"""


@pytest.mark.parametrize("transfers", PAIRS)
def test_pairs_of_torch_run_in_turn_and_those_of_deepseek_at_once(transfers: str) -> None:
    replica = Replica(
        pipeline=2, virtual_stages=2, schedule="dualpipe_v", transfers=cast(Transfers, transfers)
    )
    paths = paths_of(replica, 4)
    schedule, handing = paths.schedule, paths.handing
    stages = schedule.stage[handing.source], schedule.stage[handing.target]
    send_s = np.where(np.minimum(*stages) == 0, 1.0, 0.0)
    at = spans(paths, np.array([1.0, 2.0, 1.0, 1.0])[schedule.kind], send_s)
    named = {str(schedule.action(k)): k for k in range(len(schedule))}
    for name, begin_and_end in PAIRS[transfers].items():
        assert (at.begin[named[name]], at.end[named[name]]) == begin_and_end


def test_results_of_both_passes_of_a_pair_leave_after_it() -> None:
    paths = paths_of(Replica(pipeline=2, virtual_stages=2, schedule="dualpipe_v"), 4)
    schedule, handing = paths.schedule, paths.handing
    leaves, posted = (
        {str(schedule.action(k)): str(schedule.action(after)) if after >= 0 else ""
         for k, after in zip(handing.source.tolist(), column.tolist(), strict=True)}
        for column in (handing.leaves, handing.posted)
    )  # fmt: skip
    assert [leaves[name] for name in ("0F2", "2F2", "1B0")] == ["0F2", "1B0", "1B0"]
    # rank 0 of PyTorch: 3F1 3RECV_F2 0RECV_B0 (0F3;3B1) 0SEND_F3 3SEND_B1 (3F2;0B0) 3RECV_F3
    assert [posted[name] for name in ("0F0", "2F2", "1B0", "2F3")] == ["", "3F1", "3F1", "0B0"]


@examples(15)
@given(data=st.data())
def test_pairs_in_turn_take_as_long_in_the_graph(data: st.DataObject) -> None:
    """Two programs: the graph, and the longest path. Two ranks share no link."""
    passes = data.draw(st.integers(4, 8))
    number = st.floats(0.5, 3.0)
    seconds = [(data.draw(number), data.draw(number)) for _ in range(4)]
    sent = data.draw(st.sampled_from([0.01, 0.7, 2.0]))
    one = made(seconds, passes, schedule="dualpipe_v", chunks=2, transfers="torch", sent=sent)
    paths = paths_of(Replica(pipeline=2, virtual_stages=2, schedule="dualpipe_v"), passes)
    forward, backward = np.array(seconds).T
    table = np.stack([forward, backward, backward / 2, backward / 2])
    took = table[paths.schedule.kind, paths.schedule.stage]
    at = spans(paths, took, np.full(len(paths.handing.source), sent))
    assert makespan(build_graph(one)) == pytest.approx(float(at.end.max()), rel=1e-5)


def test_canary_one_copy_alone_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = replicas.stage_jobs

    def one_copy(given: Job) -> list[replicas.StageJob]:
        return [
            one._replace(
                job=msgspec.structs.replace(
                    one.job, workload=one.job.workload.scaled("gradient_bytes", 0.5)
                )
            )
            for one in whole(given)
        ]

    monkeypatch.setattr("perfmodel.predicting.replica_formulas.stage_jobs", one_copy)
    got = predict(made([(1.0, 2.0)] * 2, 4, gradient=4.0, options=LATE), fidelity="coarse")
    assert got.iteration_s != pytest.approx(20.0, rel=1e-6)


# -- against the drawn schedule, another program ---------------------------------------------------


@pytest.mark.slow
@pytest.mark.sampled(2)
@pytest.mark.parametrize(("schedule", "chunks"), [("dualpipe", 1), ("dualpipe_v", 2)])
@examples(20)
@given(data=st.data())
def test_a_step_is_as_long_as_the_drawn_schedule(
    data: st.DataObject, schedule: str, chunks: int
) -> None:
    ranks = data.draw(st.sampled_from([2, 4]))
    passes = 2 * ranks + 2 * data.draw(st.integers(0, 3))
    stages = ranks * chunks
    number = st.floats(0.5, 3.0)
    forward, backward = (
        np.array(data.draw(st.lists(number, min_size=stages, max_size=stages))) for _ in range(2)
    )
    one = made(list(zip(forward.tolist(), backward.tolist(), strict=True)), passes,
               data.draw(st.integers(1, 2)), schedule=schedule, chunks=chunks)  # fmt: skip
    order = pipelines.schedule(schedule, ranks, passes)
    drawn = pipelines.timeline(order, forward, backward, backward / 2, backward / 2)
    span_s = max(
        float(drawn.end_s[end - 1] - drawn.start_s[begin])
        for begin, end in zip(order.begins[:-1], order.begins[1:], strict=True)
    )
    fine, coarse = both(one)
    assert coarse.iteration_s == pytest.approx(span_s, rel=1e-5)
    assert makespan(build_graph(one)) == pytest.approx(float(drawn.makespan_s), rel=1e-5)
    # ranks that end early begin their next step early
    assert span_s * (1 - 1e-5) <= fine.iteration_s <= float(drawn.makespan_s) * (1 + 1e-5)


@pytest.mark.parametrize("transfers", ["ahead", "torch", "gloo"])
def test_a_transfer_is_waited_for(transfers: str) -> None:
    free = predict(made([(1.0, 2.0)] * 4, 8, transfers=transfers)).iteration_s
    late = predict(made([(1.0, 2.0)] * 4, 8, transfers=transfers, sent=0.5)).iteration_s
    assert late > free
    if transfers != "gloo":
        coarse = predict(made([(1.0, 2.0)] * 4, 8, transfers=transfers, sent=0.01),
                         fidelity="coarse")  # fmt: skip
        fine = predict(made([(1.0, 2.0)] * 4, 8, transfers=transfers, sent=0.01))
        assert coarse.iteration_s == pytest.approx(fine.iteration_s, rel=0.01)


# -- memory ----------------------------------------------------------------------------------------


def test_memory_is_that_of_the_report() -> None:
    """DeepSeek-V3, table 2: twice the parameters, and activations of p + 1 micro-batches."""
    layers = [
        WorkloadLayer(f"layer{k}", 1.0, 2.0, (MB,), 2 * MB, output_bytes=MB) for k in range(4)
    ]
    work = accumulated(Workload.of("chain", layers), 8)
    given: dict[str, Any] = {"pipeline": 4, "transfers": "ahead"}
    two = memory_of(job(work, cluster(MB), 1, "ring", schedule="dualpipe", **given)).stages
    one = memory_of(job(work, cluster(MB), 1, "ring", schedule="1f1b", **given)).stages
    assert len(two) == 4
    for stage, single in zip(two, one, strict=True):
        assert stage.parameters_bytes == 2 * single.parameters_bytes == 2 * MB
        assert stage.gradients_bytes == 2 * single.gradients_bytes
    in_flight = pipelines.in_flight(pipelines.schedule("dualpipe", 4, 8)).tolist()
    assert in_flight == [5.0] * 4
    # of each, a stage keeps 1 MB, and 1 MB that it has received
    assert two[1].activations_bytes == {"other": 5 * MB, "received": 5 * MB}
    assert one[1].activations_bytes == {"other": 3 * MB, "received": 3 * MB}


def test_sharded_states_are_divided_among_both_copies() -> None:
    layers = [WorkloadLayer(f"layer{k}", 1.0, 2.0, (MB,), 0.0) for k in range(2)]
    work = accumulated(Workload.of("chain", layers), 4)
    work = msgspec.structs.replace(work, optimizer_state_bytes=4 * MB)
    given: dict[str, Any] = {"pipeline": 2, "schedule": "dualpipe", "options": {"stage": 1}}
    (first, _) = memory_of(job(work, cluster(MB), 1, "fsdp", **given)).stages
    assert first.parameters_bytes == 2 * MB
    assert first.optimizer_states_bytes == 4 * MB / 2


# -- laws ------------------------------------------------------------------------------------------


@st.composite
def jobs(draw: st.DrawFn) -> Job:
    stages = draw(st.sampled_from([2, 4]))
    number = st.floats(0.5, 3.0)
    arch = draw(st.sampled_from(KEEP_ONE_MODEL))
    workers = draw(st.integers(1, 3))
    return made(
        [(draw(number), draw(number)) for _ in range(stages)],
        2 * stages + 2 * draw(st.integers(0, 2)),
        workers,
        arch,
        sent=draw(st.sampled_from([FREE, 0.3])),
        gradient=draw(st.sampled_from([0.1, 1.0, 4.0])),
        transfers=draw(st.sampled_from(["ahead", "torch", "gloo"])),
        rank_order=draw(st.sampled_from(["tp-dp-pp", "tp-pp-dp"])),
        cluster=cluster(MB, devices_per_node=draw(st.sampled_from([1, 2]))),
        stragglers=[Straggler(workers - 1, 1.5)] if draw(st.booleans()) else [],
    )


@pytest.mark.slow
@examples(10)
@given(data=st.data())
def test_laws_hold(data: st.DataObject) -> None:
    one = data.draw(jobs())
    graph = build_graph(one)
    oracles.timeline_holds(graph, seed=1, iterations=3)
    assert makespan(slowed(graph), iterations=3) == 2 * makespan(graph, iterations=3)
    measures = simulate(graph, seed=3, rel_ci=0.5)
    oracles.busy_and_idle_fill_the_time(measures)
    oracles.resources_bound_the_pace(graph, measures)


def test_devices_are_those_of_their_ranks() -> None:
    one = made([(1.0, 2.0)] * 4, 8, 3, stragglers=[Straggler(1, 2.0)])
    first, second = replicas.stage_jobs(one)
    assert first.ranks.tolist() == [0, 3]
    assert second.ranks.tolist() == [1, 2]
    assert replicas.rank_positions([first, second]).tolist() == [
        [0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10, 11],
    ]  # fmt: skip
    assert [straggler.worker for straggler in first.job.stragglers] == [1, 4]
    idle = predict(one).idle_fraction
    assert idle.per_worker[1] < idle.per_worker[0] == pytest.approx(idle.per_worker[2])
    assert idle.by_stage[0] == pytest.approx(idle.by_stage[3])


def test_stages_of_a_replica_on_one_node() -> None:
    node = cluster(MB, devices_per_node=2, intra_node=IntraNode(1e15, 0.0))
    one = made([(1.0, 2.0)] * 2, 4, 2, cluster=node, rank_order="tp-pp-dp", gradient=1.0,
               options=LATE)  # fmt: skip
    (only,) = replicas.stage_jobs(one)
    assert only.workers.tolist() == [[0, 2], [1, 3]]
    assert predict(one).iteration_s > 12.0


# -- what is refused, and defaults -----------------------------------------------------------------


@pytest.mark.parametrize("arch", KEEP_ONE_MODEL)
def test_architectures_that_keep_one_model(arch: str) -> None:
    options = {"reshard_after_forward": False} if arch == "fsdp" else {}
    fine, coarse = both(made([(1.0, 2.0)] * 4, 8, 2, arch, gradient=0.05, options=options))
    assert fine.iteration_s >= 26.0 * (1 - 1e-9)
    assert coarse.iteration_s == pytest.approx(fine.iteration_s, rel=0.05)


@pytest.mark.parametrize("arch", OTHERS)
def test_other_architectures_are_refused(arch: str) -> None:
    with pytest.raises(InputError, match="two copies of each stage, and with ") as error:
        predict(made([(1.0, 2.0)] * 2, 4, 2, arch))
    assert "\n" not in str(error.value)


def test_numbers_of_stages_and_micro_batches() -> None:
    with pytest.raises(InputError, match="dualpipe needs an even number, got 3"):
        predict(made([(1.0, 2.0)] * 3, 6))
    with pytest.raises(InputError, match="at least twice the 4 ranks, got 6"):
        predict(made([(1.0, 2.0)] * 4, 6))


def test_a_model_of_the_catalogue() -> None:
    one = make_job(model="gpt2-small", device="a100", pipeline=4, schedule="DualPipe")
    assert one.replica is not None
    assert (one.replica.transfers, one.workload.accumulation) == ("ahead", 16)
    got = predict(one, fidelity="coarse")
    assert got.layout is not None
    assert len(got.layout.stage_layers) == 4
    assert got.layout.stage_layers == got.layout.stage_layers[::-1]
