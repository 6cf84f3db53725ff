"""Laws that workers of several devices obey for any architecture, schedule and transfers."""

from __future__ import annotations

import itertools
import math
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import assume, given, strategies as st

from perfmodel import (
    InputError,
    Job,
    Link,
    Prediction,
    Straggler,
    Workload,
    WorkloadLayer,
    build_graph,
    predict,
)
from perfmodel.architectures.registry import names
from perfmodel.base.arrays import NONE
from perfmodel.engine.simulation import makespan, simulate
from perfmodel.inputs.passes import accumulated, one_pass
from perfmodel.inputs.replica import Replica
from perfmodel.pipelines import timeline as times_of
from perfmodel.pipelines.actions import BACKWARD, FORWARD, INPUT, WEIGHT
from perfmodel.predicting import fine
from perfmodel.replicas.stage_work import schedule_of
from tests import oracles
from tests.architectures.test_laws import slowed
from tests.jobs import (
    ONE_CHUNK,
    SEVERAL_CHUNKS,
    cluster,
    job,
    replica_jobs,
    third_of_variants,
)
from tests.settings import examples, thinned

each = pytest.mark.parametrize("arch", names())
few = examples(8)


def simulated(made: Job) -> Prediction:
    return predict(made, rel_ci=0.2)


def stage_times(made: Job) -> np.ndarray[Any, Any]:
    """Seconds of each stage for a micro-batch, from the layers alone, (4 kinds, stages).

    With equal numbers of layers each stage has those from n k // S to n (k + 1) // S.
    """
    assert made.replica is not None
    layers = one_pass(made.workload).layers
    bounds = [len(layers) * k // made.replica.chunks for k in range(made.replica.chunks + 1)]
    table = np.zeros((4, made.replica.chunks))
    for stage, (begin, end) in enumerate(itertools.pairwise(bounds)):
        for layer in layers[begin:end]:
            table[FORWARD, stage] += layer.forward_s
            table[BACKWARD, stage] += layer.backward_s
    table[INPUT] = table[WEIGHT] = table[BACKWARD] / 2
    return table


def longest_spans(made: Job, table: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The longest chain of actions from the first action of each rank to its last, (ranks,).

    Actions wait for the one before on their rank and for that of the neighbour; nothing else.
    """
    assert made.replica is not None
    s = schedule_of(made.replica, made.workload.accumulation)
    back = np.where(s.place[INPUT] != NONE, s.place[INPUT], s.place[BACKWARD])
    needs: list[list[int]] = [[] for _ in range(len(s))]
    for stage, number in itertools.product(range(s.stages), range(s.micro_batches)):
        forward, backward = int(s.place[FORWARD][stage, number]), int(back[stage, number])
        needs[backward].append(forward)
        if stage:
            needs[forward].append(int(s.place[FORWARD][stage - 1, number]))
        if stage + 1 < s.stages:
            needs[backward].append(int(back[stage + 1, number]))
    for rank in range(s.ranks):
        for action in range(s.begins[rank] + 1, s.begins[rank + 1]):
            needs[action].append(action - 1)
    took = table[s.kind, s.stage]
    found = []
    for rank in range(s.ranks):
        first, last = int(s.begins[rank]), int(s.begins[rank + 1]) - 1
        known: dict[int, float] = {}

        def longest(action: int, first: int = first, known: dict[int, float] = known) -> float:
            if action not in known:
                after = max((longest(k) for k in needs[action]), default=-math.inf)
                known[action] = took[action] + (0.0 if action == first else after)
            return known[action]

        found.append(longest(last))
    return np.array(found)


# -- the graph of all stages -----------------------------------------------------------------------


@pytest.mark.sampled(4)
@each
@few
@given(data=st.data())
def test_dependencies_slots_links_and_work_hold(arch: str, data: st.DataObject) -> None:
    graph = build_graph(data.draw(replica_jobs(arch, jitter=True)))
    oracles.timeline_holds(graph, seed=1, iterations=3)


@pytest.mark.sampled(4)
@each
@few
@given(data=st.data())
def test_busy_and_idle_fill_the_time_of_every_device(arch: str, data: st.DataObject) -> None:
    graph = build_graph(data.draw(replica_jobs(arch, jitter=True)))
    measures = simulate(graph, seed=3, rel_ci=0.5)
    oracles.busy_and_idle_fill_the_time(measures)
    oracles.resources_bound_the_pace(graph, measures)


@pytest.mark.sampled(4)
@each
@few
@given(data=st.data())
def test_twice_all_durations_take_twice_as_long(arch: str, data: st.DataObject) -> None:
    made = data.draw(replica_jobs(arch))
    assume(not made.options.spare_workers)
    graph = build_graph(made)
    assert makespan(slowed(graph), iterations=3) == 2 * makespan(graph, iterations=3)


# -- predictions -----------------------------------------------------------------------------------


@pytest.mark.sampled(4)
@each
@few
@given(data=st.data())
def test_devices_compute_for_as_long_as_their_actions(arch: str, data: st.DataObject) -> None:
    made = data.draw(replica_jobs(arch))
    assume(made.replica is not None)
    assert made.replica is not None
    work = one_pass(made.workload)
    bare = msgspec.structs.replace(made, workload=accumulated(
        msgspec.structs.replace(work, optimizer_s=0.0), made.workload.accumulation))  # fmt: skip
    graph = build_graph(bare)
    actions = [
        k for block in graph.ops for k in range(block.first, block.first + block.size)
        if block.label in ("forward", "backward", "input gradient", "weight gradient")
    ]  # fmt: skip
    done = np.zeros(graph.n_groups)
    np.add.at(done, graph.op_group[actions], graph.op_seconds[actions])
    schedule = schedule_of(made.replica, made.workload.accumulation)
    table = stage_times(bare)
    table[BACKWARD] *= not schedule.splits
    table[[INPUT, WEIGHT]] *= schedule.splits
    of_stage = table.sum(axis=0) * made.workload.accumulation
    of_rank = [sum(of_stage[k] for k in schedule.held(r)) for r in range(schedule.ranks)]
    assert done == pytest.approx(np.repeat(of_rank, made.workers), rel=1e-9)


@pytest.mark.sampled(4)
@each
@few
@given(data=st.data())
def test_an_iteration_has_the_longest_chain_of_its_actions(arch: str, data: st.DataObject) -> None:
    made = data.draw(replica_jobs(arch))
    assume(made.replica is not None)
    table = stage_times(made)
    got = simulated(made)
    least = longest_spans(made, table).max()
    assert got.iteration_s >= least * (1 - 1e-9) or made.options.spare_workers
    busiest = 1.0 - min(got.idle_fraction.by_stage)
    assert busiest <= 1.0 + 1e-9


@pytest.mark.sampled(4)
@each
@few
@given(data=st.data())
def test_idle_time_adds_up_by_cause_worker_and_stage(arch: str, data: st.DataObject) -> None:
    got = fine.predict(data.draw(replica_jobs(arch)), rel_ci=0.2)
    idle = got.idle_fraction
    assert sum(idle.by_cause.values()) == pytest.approx(idle.mean, abs=1e-6)
    assert np.mean(idle.per_worker) == pytest.approx(idle.mean, abs=1e-9)
    if idle.by_stage:
        assert np.mean(idle.by_stage) == pytest.approx(idle.mean, abs=1e-9)
    for whole, parts in zip(idle.per_worker, got.causes_by_worker, strict=True):
        assert sum(parts.values()) == pytest.approx(whole, abs=1e-6)
    assert got.compute_s == pytest.approx((1.0 - idle.mean) * got.iteration_s, rel=1e-9)


@pytest.mark.sampled(4)
@each
@few
@given(data=st.data())
def test_one_replica_represents_all_that_are_alike(arch: str, data: st.DataObject) -> None:
    made = data.draw(replica_jobs(arch))
    assume(made.replica is not None)
    folded, whole = build_graph(made, fold=True), build_graph(made)
    if folded.n_groups < whole.n_groups:
        assert makespan(folded, iterations=4) == pytest.approx(
            makespan(whole, iterations=4), rel=1e-9
        )


@pytest.mark.sampled(4)
@third_of_variants()
def test_one_stage_and_one_pass_are_the_job_without_replicas(
    arch: str, options: dict[str, Any]
) -> None:
    """But for rounding: the links of servers come after those of all devices in a joined graph, and
    rates of flows are summed link by link."""
    layers = [WorkloadLayer(f"layer{k}", 1.0 + k, 2.0, (30.0,)) for k in range(3)]
    work = Workload.of("chain", layers, optimizer_s=0.3)
    where = cluster(20.0, 0.01, devices_per_node=2, update_per_byte_s=0.001)
    plain = job(work, where, 3, arch, options)
    single = msgspec.structs.replace(plain, replica=Replica())
    for fidelity in ("fine", "coarse"):
        one, other = (predict(made, fidelity=fidelity) for made in (plain, single))
        digits = 1e-14 if fidelity == "fine" else 0.0
        assert one.iteration_s == pytest.approx(other.iteration_s, rel=digits, abs=0.0)
        assert one.staleness == other.staleness
        assert one.idle_fraction.mean == pytest.approx(other.idle_fraction.mean, abs=1e-12)


@pytest.mark.sampled(4)
@each
@few
@given(data=st.data())
def test_twice_the_times_and_bytes_take_twice_as_long(arch: str, data: st.DataObject) -> None:
    """With the options' defaults; some options are numbers of bytes, or of seconds."""
    plain = data.draw(replica_jobs(arch, variants=[{}], workers=(2, 2)))
    work = plain.workload
    for name in ("compute_s", "gradient_bytes"):
        work = work.scaled(name, 2.0)
    layers = [
        msgspec.structs.replace(layer, activation_bytes=2.0 * layer.activation_bytes)
        for layer in one_pass(work).layers
    ]
    work = accumulated(
        msgspec.structs.replace(one_pass(work), layers=tuple(layers)), work.accumulation
    )
    links = {"nic": Link(plain.cluster.nic.bandwidth_bytes_per_s, 2 * plain.cluster.nic.latency_s)}
    if (inside := plain.cluster.intra_node) is not None:
        links["intra_node"] = msgspec.structs.replace(inside, latency_s=2 * inside.latency_s)
    larger = msgspec.structs.replace(
        plain, workload=work, cluster=msgspec.structs.replace(plain.cluster, **links)
    )
    assert makespan(build_graph(larger)) == pytest.approx(2 * makespan(build_graph(plain)))


@pytest.mark.slow
@examples(24)
@given(data=st.data())
def test_faster_links_never_make_a_single_replica_slower(data: st.DataObject) -> None:
    """Several share links, and anything may happen when work is ordered by arrival."""
    made = data.draw(replica_jobs("allreduce", workers=(1, 1)))
    fast = made.with_(bandwidth_bytes_per_s=2 * made.cluster.nic.bandwidth_bytes_per_s)
    assert makespan(build_graph(fast)) <= makespan(build_graph(made)) * (1 + 1e-9)


# -- schedules and transfers -----------------------------------------------------------------------


def pipeline(schedule: str, stages: int, passes: int, chunks: int, **more: Any) -> Job:
    """A replica of equal stages that send a byte in a tenth of a second."""
    layers = [WorkloadLayer(f"layer{k}", 1.0, 2.0, (0.001,), 1.0) for k in range(stages * chunks)]
    shape = {"pipeline": stages, "schedule": schedule, "virtual_stages": chunks}
    return job(accumulated(Workload.of("chain", layers), passes), cluster(10.0), 1, "allreduce",
               **shape, **more)  # fmt: skip


@pytest.mark.sampled(4)
@pytest.mark.parametrize("part", thinned(range(2)))
@pytest.mark.parametrize("transfers", thinned(["torch", "gloo", "blocking", "ahead"]))
@pytest.mark.parametrize("schedule", thinned(ONE_CHUNK + SEVERAL_CHUNKS))
def test_stages_never_wait_for_each_other_for_ever(
    schedule: str, transfers: str, part: int
) -> None:
    """Each combination ends, or is refused with what is possible."""
    chunks = (1,) if schedule in ONE_CHUNK else (2,) if schedule == "zb_v" else (1, 2, 3)
    combinations = list(itertools.product((2, 3, 4), (1, 2, 3, 4, 8), chunks))[part::2]
    ended = refused = 0
    for stages, passes, each_chunks in combinations:
        try:
            made = pipeline(schedule, stages, passes, each_chunks, transfers=transfers)
            graph = build_graph(made)
        except InputError as error:
            text = str(error)
            assert "\n" not in text
            assert text.startswith(("transfers: blocking", "micro_batches:")), text
            refused += text.startswith("transfers")
            continue
        assert makespan(graph) >= 3.0 * passes * each_chunks
        ended += 1
    assert ended
    assert (refused > 0) == (transfers == "blocking" and schedule not in ONE_CHUNK[:3])


def test_what_is_refused_says_what_is_possible() -> None:
    with pytest.raises(InputError, match=r"for ever with zb_v \(allowed: torch, gloo, ahead\)"):
        predict(pipeline("zb_v", 2, 4, 2, transfers="blocking"))
    with pytest.raises(InputError, match="pipedream updates after each one, got 4"):
        predict(pipeline("pipedream", 2, 4, 1))
    with pytest.raises(InputError, match="no_sync=False: pipelines reduce gradients after"):
        pipeline("1f1b", 2, 4, 1, options={"no_sync": False})


def test_ops_of_every_pass_have_names() -> None:
    layers = [WorkloadLayer("layer", 1.0, 2.0, (1.0,), 0.0, forward_summed_bytes=1.0)]
    work = accumulated(Workload.of("chain", layers), 3)
    made = job(work, cluster(10.0, devices_per_node=2), 2, "allreduce", {"no_sync": False},
               tensor=2)  # fmt: skip
    graph = build_graph(made)
    names_of = {graph.op_name(op) for op in range(graph.n_ops)}
    assert "gradients reduced stage 0, 1, worker 1" in names_of


@examples(24)
@given(data=st.data())
def test_the_first_step_is_the_longest_path_of_the_schedule(data: st.DataObject) -> None:
    """Of one replica on its own nodes, with transfers that take no time: another program."""
    made = data.draw(replica_jobs("allreduce", workers=(1, 1)))
    assume(made.replica is not None)
    assert made.replica is not None
    free = made.with_(bandwidth_bytes_per_s=1e30, latency_s=0.0)
    assume(free.cluster.intra_node is None)
    layers = [msgspec.structs.replace(layer, activation_bytes=0.0)
              for layer in one_pass(free.workload).layers]  # fmt: skip
    bare = msgspec.structs.replace(one_pass(free.workload), layers=tuple(layers), optimizer_s=0.0)
    free = msgspec.structs.replace(free, workload=accumulated(bare, made.workload.accumulation))
    schedule = schedule_of(made.replica, made.workload.accumulation)
    table = stage_times(free)
    drawn = times_of(schedule, *table)
    took = makespan(build_graph(free))
    if made.replica.transfers == "ahead":
        assert took == pytest.approx(float(drawn.makespan_s), rel=1e-9)
    else:  # they wait for receivers as well
        assert took >= float(drawn.makespan_s) * (1 - 1e-9)


# -- staleness -------------------------------------------------------------------------------------


@pytest.mark.sampled(3)
@pytest.mark.parametrize("slow", [1.0, 1.6])
@pytest.mark.parametrize(("stages", "schedule"), [(2, "1f1b"), (3, "gpipe"), (4, "zb_h1")])
def test_staleness_under_pipelines_is_that_of_devices_with_the_same_period(
    stages: int, schedule: str, slow: float
) -> None:
    """Replicas with a server that takes no time: a step of p equal stages takes as long as that of
    a device that computes for so long."""
    layers = [WorkloadLayer(f"layer{k}", 1.0, 2.0, (0.001,), 0.0) for k in range(stages)]
    late = [Straggler(0, slow)] if slow > 1.0 else []
    fields: dict[str, Any] = {"stragglers": late, "start": "staggered"}
    piped = job(accumulated(Workload.of("chain", layers), 4), cluster(1e6), 3, "asp",
                pipeline=stages, schedule=schedule, transfers="ahead", **fields)  # fmt: skip
    got = predict(piped)
    alone = predict(msgspec.structs.replace(piped, workers=1, stragglers=())).iteration_s
    single = Workload.of("one", [WorkloadLayer("layer", alone / 3, alone * 2 / 3, (0.001,))])
    expected = predict(job(single, cluster(1e6), 3, "asp", **fields))
    assert got.iteration_s == pytest.approx(expected.iteration_s, rel=0.02)
    assert got.staleness is not None
    assert expected.staleness is not None
    assert got.staleness.mean == pytest.approx(expected.staleness.mean, abs=0.06)
    assert got.staleness.per_worker == pytest.approx(expected.staleness.per_worker, abs=0.15)
