"""Devices of a node, as many as a job gets, that slow each other down, share loaders and hand over
gradients."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, strategies as st

from perfmodel import Cluster, InputError, Job, Link, Straggler, Workload, make_job, predict
from perfmodel.calibration.runs.parameters import groups_of, step_s
from perfmodel.cli import cli
from perfmodel.inputs.cluster import Handover, NodeOverride, read_cluster
from perfmodel.phases.quantities import quantities_of
from perfmodel.predicting import coarse, variants
from tests.jobs import (
    ALL,
    ALL_IDS,
    VARIANTS,
    cluster,
    job,
    third_of_variants,
    whole_groups,
    workload,
)
from tests.oracles import equal
from tests.predicting.test_coarse import plain_jobs
from tests.settings import examples, thinned

few = examples(4)
unplanned = third_of_variants(lambda arch, options: options.get("bucketing") != "mg_wfbp")
"""Variants, except those that plan messages from the profiled backward times, with one number of
workers and one batch size."""
replace = msgspec.structs.replace


def each_with(names: tuple[str, ...], cases: Sequence[tuple[Any, ...]]) -> Any:
    """All variants, each with a fourth of the cases; the others are marked slow."""
    return pytest.mark.parametrize(
        ("arch", "options", *names),
        [
            pytest.param(
                arch,
                options,
                *case,
                id="-".join([name, *map(str, case)]),
                marks=[] if (number + place) % 4 == 0 else [pytest.mark.slow],
            )
            for number, ((arch, options), name) in enumerate(zip(ALL, ALL_IDS, strict=True))
            for place, case in enumerate(cases)
        ],
    )


FORWARD, BACKWARD, BYTES = [1.0, 2.0, 1.0], [2.0, 3.0, 1.0], [30.0, 50.0, 20.0]
WORK = workload(FORWARD, BACKWARD, BYTES, optimizer_s=0.5)
PER_TENSOR_S, PER_BYTE_S = 0.3, 0.01
HANDOVER = Handover(PER_TENSOR_S, PER_BYTE_S)
BANDWIDTH = 25.0
FAST = 1e12
"""Bytes per second of a network that takes no time."""

ASP: dict[str, Any] = {"sync": "asp", "servers": 1}
INSIDE = Link(200.0, 0.001)


def both(one: Job) -> tuple[float, float]:
    """Iteration times of the fine and the coarse route."""
    return predict(one).iteration_s, predict(one, fidelity="coarse").iteration_s


def same(first: Job, second: Job, *, rel: float = 1e-6) -> None:
    """Both routes agree on two jobs: times, idleness, its causes, and staleness."""
    for fidelity in ("fine", "coarse"):
        a = predict(first, fidelity=fidelity)
        b = predict(second, fidelity=fidelity)
        assert a.iteration_s == pytest.approx(b.iteration_s, rel=rel)
        assert a.compute_s == pytest.approx(b.compute_s, rel=rel)
        assert a.idle_fraction.per_worker == pytest.approx(b.idle_fraction.per_worker, abs=1e-6)
        for cause in {*a.idle_fraction.by_cause, *b.idle_fraction.by_cause}:
            found = [one.idle_fraction.by_cause.get(cause, 0.0) for one in (a, b)]
            assert found[0] == pytest.approx(found[1], abs=1e-6)
        assert (a.staleness is None) == (b.staleness is None)
        if a.staleness is not None and b.staleness is not None:
            assert a.staleness.mean == pytest.approx(b.staleness.mean)


def with_handover(work: Workload, share: float = 1.0, cost: Handover = HANDOVER) -> Workload:
    """The workload whose layers take longer in the backward pass by the handover ``cost``."""
    extra = [
        share * (cost.per_tensor_s * len(a.tensor_bytes) + cost.per_byte_s * sum(a.tensor_bytes))
        for a in work.layers
    ]
    return replace(
        work,
        backward_s=work.backward_s + sum(extra),
        layers=tuple(
            replace(a, backward_s=a.backward_s + more)
            for a, more in zip(work.layers, extra, strict=True)
        ),
    )


# -- handing gradients over ------------------------------------------------------------------------


def share_of(options: dict[str, Any], arch: str) -> float:
    """Exchanges per step."""
    period = options.get("period", {"local_sgd": 8, "diloco": 100, "easgd": 4}.get(arch, 1))
    probability = options.get("probability", 0.1 if arch == "gosgd" else 1.0)
    return float(probability / period)


@pytest.mark.sampled(4)
@unplanned
def test_a_layer_ends_when_its_gradients_are_handed_over(
    arch: str, options: dict[str, Any]
) -> None:
    where = cluster(BANDWIDTH, 0.01, handover=HANDOVER)
    longer = with_handover(WORK, share_of(options, arch))
    same(
        job(WORK, where, 3, arch, options),
        job(longer, replace(where, handover=Handover()), 3, arch, options),
    )


def test_canary_handing_a_layer_over_twice_is_noticed() -> None:
    where = cluster(BANDWIDTH, 0.01, handover=Handover(2 * PER_TENSOR_S, 2 * PER_BYTE_S))
    longer = job(with_handover(WORK), cluster(BANDWIDTH, 0.01), 3, "allreduce")
    with pytest.raises(AssertionError):
        same(job(WORK, where, 3, "allreduce"), longer)


def test_handover_time_shows_on_a_fast_network() -> None:
    where = cluster(FAST, handover=HANDOVER)
    for arch in ("allreduce", "fsdp", "ps", "p2p", "d_psgd"):
        for found in both(job(WORK, where, 2, arch)):
            assert found >= WORK.forward_s + WORK.backward_s + 3 * PER_TENSOR_S + 100 * PER_BYTE_S


def test_a_message_leaves_when_it_is_handed_over() -> None:
    """Two layers, each of which is sent in 2 seconds."""
    work = workload([1.0, 1.0], [1.0, 3.0], [50.0, 50.0])
    where = cluster(BANDWIDTH, handover=Handover(0.25, 0.005))
    options = {"bucketing": "layer"}
    # handed over at 2 + 3.5 and 2 + 3.5 + 1.5; sent at 5.5 + 2 and, one by one, at 5.5 + 4
    assert both(job(work, where, 2, "allreduce", options)) == pytest.approx((9.5, 9.5))


def test_handover_counts_as_computation() -> None:
    where = cluster(BANDWIDTH, handover=HANDOVER)
    for arch in ("allreduce", "ps"):
        for fidelity in ("fine", "coarse"):
            found = predict(job(WORK, where, 3, arch), fidelity=fidelity)
            computing = WORK.forward_s + WORK.backward_s + (0.5 if arch == "allreduce" else 0.0)
            assert found.compute_s == pytest.approx(computing + 3 * PER_TENSOR_S + 100 * PER_BYTE_S)


@pytest.mark.parametrize("arch", [arch for arch in VARIANTS if arch not in ("ps", "easgd")])
def test_a_worker_alone_hands_nothing_over(arch: str) -> None:
    where = cluster(BANDWIDTH)
    same(job(WORK, replace(where, handover=HANDOVER), 1, arch), job(WORK, where, 1, arch))


def test_a_worker_alone_hands_over_to_a_server() -> None:
    where = cluster(FAST, handover=HANDOVER)
    slower = 3 * PER_TENSOR_S + 100 * PER_BYTE_S
    alone, with_it = (both(job(WORK, w, 1, "ps")) for w in (cluster(FAST), where))
    assert np.subtract(with_it, alone) == pytest.approx([slower, slower])


def test_a_coarse_workload_hands_over_the_same_number_of_tensors() -> None:
    layers = WORK.layers
    bare = replace(WORK, layers=())
    assert len(layers) == bare.tensors
    where = cluster(FAST, handover=HANDOVER)
    for found in both(job(bare, where, 2, "allreduce")):
        computing = WORK.compute_s + 3 * PER_TENSOR_S + 100 * PER_BYTE_S
        assert found == pytest.approx(computing)


def test_handover_is_slower_on_slow_devices() -> None:
    where = cluster(FAST, handover=HANDOVER, overrides=(NodeOverride(0, speed=0.5),))
    slowest = 2.0 * (WORK.compute_s + 3 * PER_TENSOR_S + 100 * PER_BYTE_S)
    assert both(job(WORK, where, 2, "allreduce")) == pytest.approx((slowest, slowest))


# -- devices that slow each other down -------------------------------------------------------------


def neighbours(workers: int, devices: int) -> list[int]:
    """For each worker, the other workers on its node."""
    nodes = [worker // devices for worker in range(workers)]
    return [nodes.count(node) - 1 for node in nodes]


@pytest.mark.sampled(9)
@each_with(("workers", "devices"), [(4, 1), (2, 4), (4, 2), (3, 2)])
def test_full_nodes_slow_their_workers(
    arch: str, options: dict[str, Any], workers: int, devices: int
) -> None:
    """On full and partly full nodes, workers behave as if they computed longer."""
    work = workload(FORWARD, BACKWARD, BYTES, optimizer_s=0.5)
    where = cluster(BANDWIDTH, 0.01, devices_per_node=devices, intra_node=INSIDE)
    count = whole_groups(workers, options)
    slow = [Straggler(i, 1.0 + 0.25 * k) for i, k in enumerate(neighbours(count, devices)) if k]
    crowded = replace(where, slowdown_per_neighbour=0.25)
    same(
        job(work, crowded, workers, arch, options),
        job(work, where, workers, arch, options, stragglers=slow),
    )


def test_canary_ignoring_a_neighbour_is_noticed() -> None:
    where = cluster(BANDWIDTH, devices_per_node=2, slowdown_per_neighbour=0.25)
    alone = job(WORK, replace(where, slowdown_per_neighbour=0.0), 4, "allreduce")
    with pytest.raises(AssertionError):
        same(job(WORK, where, 4, "allreduce"), alone)


def test_neighbours_by_hand() -> None:
    """Workers of a full node set the pace; a worker alone on its node waits for them."""
    where = cluster(FAST, devices_per_node=4, slowdown_per_neighbour=0.1)
    for workers, longer in ((1, 1.0), (2, 1.1), (4, 1.3), (5, 1.3), (8, 1.3)):
        found = both(job(WORK, where, workers, "allreduce"))
        assert found == pytest.approx((longer * WORK.compute_s,) * 2)
    for fidelity in ("fine", "coarse"):
        five = predict(job(WORK, where, 5, "allreduce"), fidelity=fidelity)
        idle = [0.0, 0.0, 0.0, 0.0, 1.0 - 1.0 / 1.3]
        assert five.idle_fraction.per_worker == pytest.approx(idle, abs=1e-6)


def test_neighbours_and_slow_nodes_combine() -> None:
    where = cluster(
        FAST,
        devices_per_node=2,
        slowdown_per_neighbour=0.5,
        overrides=(NodeOverride(1, speed=0.5),),
    )
    one = job(WORK, where, 4, "allreduce")
    assert [one.slowdown(worker) for worker in range(4)] == [1.5, 1.5, 3.0, 3.0]
    assert both(one) == pytest.approx((3.0 * WORK.compute_s,) * 2)


# -- loaders that devices share --------------------------------------------------------------------


@pytest.mark.sampled(9)
@each_with(
    ("devices", "loaders", "longer"), [(1, 1, 1.0), (2, 2.5, 1.0), (4, 1.6, 2.5), (2, 1, 2.0)]
)
def test_a_shared_loader_takes_longer(
    arch: str, options: dict[str, Any], devices: int, loaders: float, longer: float
) -> None:
    """Full nodes behave as if every device had its own, slower loader."""
    own = workload(FORWARD, BACKWARD, BYTES, data_loading_s=20.0 * longer)
    where = cluster(BANDWIDTH, 0.01, devices_per_node=devices, intra_node=INSIDE)
    shared = replace(where, loaders_per_node=loaders)
    same(
        job(replace(own, data_loading_s=20.0), shared, 4, arch, options),
        job(own, where, 4, arch, options),
    )


def test_canary_an_unshared_loader_is_noticed() -> None:
    work = workload(FORWARD, BACKWARD, BYTES, data_loading_s=20.0)
    where = cluster(BANDWIDTH, devices_per_node=2, loaders_per_node=1)
    with pytest.raises(AssertionError):
        same(
            job(work, where, 4, "allreduce"),
            job(work, replace(where, loaders_per_node=None), 4, "allreduce"),
        )


def test_the_fullest_node_sets_the_pace() -> None:
    """Of 5 workers, 4 share loaders that load two batches at a time."""
    work = replace(WORK, data_loading_s=20.0)
    where = cluster(FAST, devices_per_node=4, loaders_per_node=2)
    one = job(work, where, 5, "allreduce")
    assert both(one) == pytest.approx((40.0, 40.0))
    for fidelity in ("fine", "coarse"):
        found = predict(one, fidelity=fidelity)
        assert found.compute_s == pytest.approx(WORK.compute_s)
        idle = 1.0 - WORK.compute_s / 40.0
        assert found.idle_fraction.mean == pytest.approx(idle)
        assert found.utilisation.workers["worker 4"] == pytest.approx(1.0 - idle)
    # four of five workers only wait for data, and the fifth waits for the four
    assert predict(one).idle_fraction.by_cause["data"] >= 0.8 * idle
    assert predict(one, fidelity="coarse").bottleneck.resource == "load data"


def test_workers_on_their_own_wait_for_their_own_node() -> None:
    """Of 3 workers on nodes of 2, one has its own loader and iterates twice as often."""
    work = workload([1.0], [1.0], [1.0], data_loading_s=10.0)
    where = cluster(FAST, devices_per_node=2, loaders_per_node=1)
    one = job(work, where, 3, "ps", ASP)
    rate = 1 / 20.0 + 1 / 20.0 + 1 / 10.0
    for fidelity in ("fine", "coarse"):
        found = predict(one, fidelity=fidelity)
        assert found.iteration_s == pytest.approx(3.0 / rate, rel=1e-3)
        idle = [1.0 - 2.0 / 20.0, 1.0 - 2.0 / 20.0, 1.0 - 2.0 / 10.0]
        assert found.idle_fraction.per_worker == pytest.approx(idle, rel=1e-3)
        assert found.idle_fraction.by_cause["data"] == pytest.approx(
            found.idle_fraction.mean, rel=1e-3
        )


# -- jobs on a part of each node -------------------------------------------------------------------


def test_where_workers_are_placed() -> None:
    where = cluster(devices_per_node=4, devices_on_nodes=(1, 3))
    nodes = [0, 1, 1, 1, 2, 2, 2, 2, 3]
    assert [where.node_of_worker(worker) for worker in range(9)] == nodes
    for workers in range(1, 10):
        assert where.nodes_for(workers) == len(set(nodes[:workers]))
        busiest = max(nodes[:workers].count(node) for node in range(4))
        assert where.fullest(workers) == busiest
        for node in range(5):
            assert where.devices_at(node, workers) == nodes[:workers].count(node)


@pytest.mark.slow
@pytest.mark.sampled(7)
@each_with(("devices", "parts"), [(1, (1, 1, 1, 1)), (2, (2, 2)), (3, (3,))])
def test_a_part_of_each_node_equals_a_smaller_node(
    arch: str, options: dict[str, Any], devices: int, parts: tuple[int, ...]
) -> None:
    some: dict[str, Any] = {
        "intra_node": INSIDE,
        "slowdown_per_neighbour": 0.25,
        "loaders_per_node": 1,
    }
    small = cluster(BANDWIDTH, 0.01, devices_per_node=devices, **some)
    large = replace(small, devices_per_node=4, devices_on_nodes=parts)
    work = replace(WORK, data_loading_s=5.0)
    workers = sum(parts) if devices < 3 else 4  # the fourth has its own node
    same(job(work, large, workers, arch, options), job(work, small, workers, arch, options))


def test_canary_another_part_of_each_node_is_noticed() -> None:
    where = cluster(BANDWIDTH, devices_per_node=4, slowdown_per_neighbour=0.25)
    first, second = (replace(where, devices_on_nodes=parts) for parts in ((2, 2), (1, 3)))
    with pytest.raises(AssertionError):
        same(job(WORK, first, 4, "allreduce"), job(WORK, second, 4, "allreduce"))


@pytest.mark.parametrize("parts", [(1, 3), (3, 1), (4, 2, 1)])
def test_uneven_nodes_by_hand(parts: tuple[int, ...]) -> None:
    where = cluster(
        FAST, devices_per_node=4, devices_on_nodes=parts, slowdown_per_neighbour=0.5,
        loaders_per_node=1,
    )  # fmt: skip
    one = job(WORK, where, sum(parts), "allreduce")
    assert [one.slowdown(w) for w in range(sum(parts))] == [
        1.0 + 0.5 * (count - 1) for count in parts for _ in range(count)
    ]
    longest = 1.0 + 0.5 * (max(parts) - 1)
    assert both(one) == pytest.approx((longest * WORK.compute_s,) * 2)
    slow = replace(one, workload=replace(WORK, data_loading_s=100.0))
    assert both(slow) == pytest.approx((100.0 * max(parts),) * 2)


def test_a_ring_through_uneven_nodes_takes_the_network() -> None:
    """Two workers on separate nodes use the network; two on one node do not."""
    work = workload([1.0], [1.0], [100.0])
    where = cluster(BANDWIDTH, devices_per_node=2)
    apart = replace(where, devices_on_nodes=(1, 1))
    assert both(job(work, where, 2, "allreduce")) == pytest.approx((2.0, 2.0))
    assert both(job(work, apart, 2, "allreduce")) == pytest.approx((6.0, 6.0))


def test_too_few_nodes_for_the_workers_are_refused() -> None:
    where = cluster(devices_per_node=2, devices_on_nodes=(1, 1), nodes=2)
    with pytest.raises(InputError, match="workers: 3 do not fit"):
        job(WORK, where, 3, "allreduce")


# -- all mechanisms: exact formulas, and arrays ----------------------------------------------------


@st.composite
def mechanisms(draw: st.DrawFn) -> dict[str, Any]:
    """Fields of a cluster, at least one of which has an effect."""
    return {
        "handover": Handover(draw(st.sampled_from([0.0, 0.1])), draw(st.sampled_from([0.01, 0.2]))),
        "slowdown_per_neighbour": draw(st.sampled_from([0.0, 0.1, 1.0])),
        "loaders_per_node": draw(st.sampled_from([None, 1.0, 1.5])),
    }


@pytest.mark.slow
@pytest.mark.hypothesis
@pytest.mark.parametrize("arch", thinned(VARIANTS))
def test_exact_formulas_stay_exact(arch: str) -> None:
    exact = 0
    for options in VARIANTS[arch]:

        @few
        @given(drawn=plain_jobs(arch, options), some=mechanisms(), devices=st.integers(1, 2))
        def check(drawn: Job, some: dict[str, Any], devices: int) -> None:
            nonlocal exact
            inside = None if devices == 1 else INSIDE
            where = replace(drawn.cluster, devices_per_node=devices, intra_node=inside, **some)
            found = replace(drawn, cluster=where)
            if coarse.model_of(found).exact(found):
                exact += 1
                equal(float(coarse.phases(found).iteration_s), predict(found).iteration_s)

        check()
    assert exact


def test_exact_formulas_plan_messages_as_the_simulation_does() -> None:
    """MG-WFBP merges by the end of backward, with or without the handover time."""
    work = workload([1.0, 0.0], [0.0, 0.0], [7.0, 1.0])
    where = cluster(1.0, 0.01, handover=Handover(0.0, 0.01))
    one = job(work, where, 2, "allreduce", {"bucketing": "mg_wfbp", "reduce_per_byte_s": 0.001})
    by_formulas = float(coarse.phases(one).iteration_s)
    same = by_formulas == pytest.approx(predict(one).iteration_s, rel=1e-9)
    assert same or not coarse.model_of(one).exact(one)


@pytest.mark.sampled(3)
@third_of_variants()
@few
@given(some=mechanisms(), devices=st.integers(1, 3), data=st.data())
def test_mechanisms_never_make_a_job_faster(
    arch: str, options: dict[str, Any], some: dict[str, Any], devices: int, data: st.DataObject
) -> None:
    """Several servers with devices that share links are left out: as they report, the formulas are
    not exact there, and jump once workers differ."""
    least = 1 + options.get("backup_workers", 0)
    workers = data.draw(st.integers(least, 5))
    shared = 1 if options.get("servers", 1) > 1 else devices
    where = cluster(BANDWIDTH, 0.01, devices_per_node=shared, **some)
    none = replace(where, handover=Handover(), slowdown_per_neighbour=0.0, loaders_per_node=None)
    work = replace(WORK, data_loading_s=4.0)
    slow, fast = (
        predict(job(work, w, workers, arch, options), fidelity="coarse").iteration_s
        for w in (where, none)
    )
    assert slow >= fast * (1.0 - 1e-9)


CROWDED = cluster(
    BANDWIDTH,
    0.01,
    devices_per_node=3,
    intra_node=INSIDE,
    handover=HANDOVER,
    slowdown_per_neighbour=0.2,
    loaders_per_node=1.5,
)
COUNTS = [1, 2, 3, 6, 7, 12]


@pytest.mark.sampled(5)
@pytest.mark.parametrize("parts", [(), (1, 3, 2)])
@unplanned
def test_arrays_are_many_jobs(arch: str, options: dict[str, Any], parts: tuple[int, ...]) -> None:
    least = 1 + options.get("backup_workers", 0)
    counts = [whole_groups(count, options) for count in COUNTS if count >= least]
    work = replace(WORK, data_loading_s=4.0)
    one = job(work, replace(CROWDED, devices_on_nodes=parts), counts[-1], arch, options)
    found = variants.evaluate(one, workers=counts, bandwidth_bytes_per_s=BANDWIDTH).iteration_s
    alone = [coarse.phases(replace(one, workers=count)).iteration_s for count in counts]
    assert found == pytest.approx(np.array(alone, np.float64))


def test_fitting_runs_uses_the_number_of_workers() -> None:
    runs = [job(WORK, CROWDED, count, "allreduce") for count in COUNTS]
    found = step_s(groups_of(runs), {"compute_factor": np.ones(1)}, 1)[0]
    assert found == pytest.approx([float(coarse.phases(one).iteration_s) for one in runs])


def test_more_workers_than_nodes_are_allowed() -> None:
    one = job(WORK, replace(CROWDED, nodes=2), 6, "allreduce")
    assert variants.evaluate(one, workers=[6, 60]).iteration_s[1] > 0.0


@unplanned
def test_handover_does_not_grow_with_the_batch(arch: str, options: dict[str, Any]) -> None:
    where = replace(CROWDED, loaders_per_node=None)
    one = job(WORK, where, 6, arch, options)
    twice = [2.0 * s for s in FORWARD], [2.0 * s for s in BACKWARD]
    larger = job(workload(*twice, BYTES, optimizer_s=0.5, batch_size=2), where, 6, arch, options)
    found = variants.evaluate(one, batch_size=[1, 2]).iteration_s
    alone = [float(coarse.phases(each).iteration_s) for each in (one, larger)]
    assert found == pytest.approx(alone)


@pytest.mark.parametrize("sharpness", [1.0, 3.0, float("inf")])
def test_the_whole_model_formula_includes_them(sharpness: float) -> None:
    one = job(replace(WORK, data_loading_s=4.0), CROWDED, 6, "allreduce")
    q = quantities_of(one)
    computing = 1.4 * (WORK.forward_s + WORK.backward_s + 3 * PER_TENSOR_S + 100 * PER_BYTE_S)
    assert float(q.forward_s + q.backward_s) == pytest.approx(computing)
    assert q.data_loading_s == 8.0
    assert float(coarse.phases(one, sharpness=sharpness).iteration_s) >= computing


# -- files, and mistakes ---------------------------------------------------------------------------

FILE = """
schema = "perfmodel.cluster/1"
name = "crowded"
nic = { bandwidth_bytes_per_s = "10Gb/s" }
devices_per_node = 4
devices_on_nodes = [4, 3]
slowdown_per_neighbour = 0.05
loaders_per_node = 2.5
handover = { per_tensor_s = "20us", per_byte_s = 1e-10 }
source = { kind = "exact", text = "made for a test" }
"""


def test_a_cluster_file_can_set_them(tmp_path: Path) -> None:
    path = tmp_path / "crowded.toml"
    path.write_text(FILE)
    found = read_cluster(path)
    assert found.slowdown_per_neighbour == 0.05
    assert found.loaders_per_node == 2.5
    assert found.devices_on_nodes == (4, 3)
    assert found.handover == Handover(20e-6, 1e-10)
    command = ["predict", "--model", "resnet50", "--workers", "8", "--arch", "allreduce", "--json"]
    slow = CliRunner().invoke(cli, [*command, "--cluster", str(path)])
    assert slow.exit_code == 0, slow.output
    one = make_job(model="resnet50", cluster=found, workers=8, arch="allreduce")
    assert json.loads(slow.stdout)["iteration_s"] == pytest.approx(predict(one).iteration_s)
    bare = replace(found, slowdown_per_neighbour=0.0, handover=Handover())
    fast = make_job(model="resnet50", cluster=bare, workers=8, arch="allreduce")
    assert predict(one).iteration_s > 1.1 * predict(fast).iteration_s


def test_a_cluster_survives_json() -> None:
    data = msgspec.json.encode(CROWDED)
    assert msgspec.json.decode(data, type=Cluster) == CROWDED


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"slowdown_per_neighbour": -0.1}, "slowdown_per_neighbour: must be at least 0, got -0.1"),
        ({"devices_per_node": 2, "devices_on_nodes": (1, 3)},
         "devices_on_nodes[1]: must be at most 2, got 3"),
        ({"devices_on_nodes": (0,)}, "devices_on_nodes[0]: must be at least 1, got 0"),
        ({"loaders_per_node": 0.5}, "loaders_per_node: must be at least 1, got 0.5"),
        ({"slowdown_per_neighbour": float("inf")},
         "slowdown_per_neighbour: expected a finite number, got inf"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_clear_line(fields: dict[str, Any], text: str) -> None:
    with pytest.raises(InputError) as error:
        cluster(BANDWIDTH, **fields)
    assert str(error.value) == text


def test_a_mistake_in_a_file_names_the_place(tmp_path: Path) -> None:
    path = tmp_path / "crowded.toml"
    for wrong, text in (
        ("per_tensor_s = -1e-6", "handover: per_tensor_s: must be at least 0, got -1e-06"),
        ("per_tensors = 1", "handover: unknown key 'per_tensors'; did you mean 'per_tensor_s'? "
         "(allowed: per_tensor_s, per_byte_s)"),
    ):  # fmt: skip
        path.write_text(FILE.replace('per_tensor_s = "20us"', wrong))
        with pytest.raises(InputError) as error:
            read_cluster(path)
        assert str(error.value) == f"{path}: {text}"
