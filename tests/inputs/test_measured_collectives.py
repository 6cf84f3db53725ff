"""Measured collectives: the formula, both routes, and the interaction with links."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from perfmodel import Cluster, InputError, Link, evaluate, make_job, predict
from perfmodel.architectures import allreduce, fsdp, local_sgd
from perfmodel.inputs.cluster import Collective, NodeOverride, Piece, Uneven, read_cluster
from perfmodel.inputs.job import Job, Straggler
from perfmodel.inputs.measured_collectives import measured_collective_s
from perfmodel.predicting import coarse
from perfmodel.predicting.fine import build_graph
from perfmodel.studies import crossovers
from tests.jobs import cluster, job, workload
from tests.settings import thinned

BANDWIDTH, LATENCY = 100.0, 0.001
WORK = workload([0.5, 0.3, 0.4], [0.4, 0.6, 0.2], [10.0, 200.0, 40.0], optimizer_s=0.1)
BYTES = 250.0

SMALL = Piece(0.05, 0.002, startup_growth="log", per_byte_growth="constant")
LARGE = Piece(0.2, 0.03, above_bytes=60.0, startup_growth="ring", per_byte_growth="ring")
QUICK = Piece(0.0, 0.001, above_bytes=60.0, startup_growth="constant", per_byte_growth="log")


def measured(operation: str, *pieces: Piece, **fields: Any) -> Collective:
    return Collective(
        operation=operation,  # type: ignore[arg-type]
        pieces=pieces,
        **{"ranks": (2, 8), "bytes": (1.0, 1e6), **fields},
    )


EVERY = tuple(
    measured(operation, SMALL, LARGE)
    for operation in ("all_reduce", "all_gather", "reduce_scatter")
)
SWIFT = tuple(
    measured(operation, SMALL, QUICK)
    for operation in ("all_reduce", "all_gather", "reduce_scatter")
)
"""Faster than a ring on these links: 0.001 s per byte instead of 0.01 s."""


def where(collectives: tuple[Collective, ...] = EVERY, **fields: Any) -> Cluster:
    return cluster(BANDWIDTH, LATENCY, collectives=collectives, **fields)


def both(one: Job) -> tuple[float, float]:
    return predict(one).iteration_s, predict(one, fidelity="coarse").iteration_s


# -- the formula -----------------------------------------------------------------------------------


def test_pieces_grow_as_declared() -> None:
    found = measured("all_reduce", SMALL, LARGE)
    assert measured_collective_s(found, 2, 10.0) == pytest.approx(0.05 + 0.02)
    assert measured_collective_s(found, 5, 10.0) == pytest.approx(3 * 0.05 + 0.02)
    assert measured_collective_s(found, 2, 60.0) == pytest.approx(0.2 + 1.8)
    assert measured_collective_s(found, 5, 60.0) == pytest.approx(4 * 0.2 + 1.6 * 1.8)
    assert measured_collective_s(found, 1, 60.0) == 0.0


def test_numbers_arrays_and_symbols_agree() -> None:
    sympy = pytest.importorskip("sympy")
    found = measured("all_reduce", SMALL, LARGE, uneven=(Uneven(3, 1.5),))
    ranks, sizes = np.meshgrid([1, 2, 3, 4, 7, 8], [1.0, 59.0, 60.0, 1e5])
    arrays = measured_collective_s(found, ranks, sizes)
    for p, n, value in zip(ranks.ravel(), sizes.ravel(), arrays.ravel(), strict=True):
        assert measured_collective_s(found, int(p), float(n)) == pytest.approx(value)
    n = sympy.Symbol("n", positive=True)
    for size in (1.0, 59.0, 60.0, 1e5):
        for count in (2, 3, 8):
            expression = measured_collective_s(found, count, n)
            assert float(expression.subs(n, size)) == pytest.approx(
                measured_collective_s(found, count, size)
            )


def test_uneven_ranks_have_their_own_factor() -> None:
    even, uneven = (
        measured("all_reduce", SMALL, LARGE, uneven=each) for each in ((), (Uneven(3, 1.5),))
    )
    for ranks, factor in ((2, 1.0), (3, 1.5), (4, 1.0)):
        times = [measured_collective_s(each, ranks, 80.0) for each in (even, uneven)]
        assert times[1] == pytest.approx(factor * times[0])


# -- both routes -----------------------------------------------------------------------------------

EXACT: list[tuple[str, dict[str, Any]]] = [
    ("allreduce", {}),
    ("allreduce", {"overlap": False}),
    ("allreduce", {"bucketing": "one"}),
    ("allreduce", {"bucket_cap_bytes": 0, "first_bucket_bytes": 0}),
    ("allreduce", {"bucketing": "layer", "partition_bytes": 30}),
    ("allreduce", {"bucketing": "layer", "compression": "top_k", "density": 0.2}),
    ("allreduce", {"bucketing": "layer", "compression": "quantised"}),
    ("fsdp", {"stage": 1, "unit_bytes": 0}),
    ("fsdp", {"stage": 2, "unit_bytes": 50}),
    ("local_sgd", {"period": 1}),
    ("local_sgd", {"period": 3}),
]


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("arch", "options"), thinned(EXACT))
@pytest.mark.parametrize("collectives", [EVERY, SWIFT], ids=["slow", "swift"])
@pytest.mark.parametrize("workers", [1, 2, 3, 6])
def test_both_routes_agree(
    arch: str, options: dict[str, Any], collectives: tuple[Collective, ...], workers: int
) -> None:
    one = job(WORK, where(collectives), workers, arch, options)
    assert coarse.model_of(one).exact(one)
    fine_s, coarse_s = both(one)
    assert fine_s == pytest.approx(coarse_s, rel=1e-9)
    if workers > 1:  # canary: without the measurement the time differs
        assert both(job(WORK, where(()), workers, arch, options))[0] != pytest.approx(fine_s, 1e-3)


@pytest.mark.parametrize("workers", [2, 4, 5])
@pytest.mark.parametrize("collectives", [EVERY, SWIFT], ids=["slow", "swift"])
def test_a_ring_job_takes_its_computation_plus_its_collectives(
    workers: int, collectives: tuple[Collective, ...]
) -> None:
    options = {"bucketing": "layer", "overlap": False}
    each = [measured_collective_s(collectives[0], workers, size) for size in (10.0, 200.0, 40.0)]
    expected = 1.2 + 1.2 + 0.1 + sum(each)
    for arch in ("allreduce", "ring"):
        one = job(WORK, where(collectives), workers, arch, options)
        assert both(one) == pytest.approx((expected, expected), rel=1e-9)


def test_wait_free_buckets_follow_each_other() -> None:
    one = job(WORK, where(), 4, "ring", {"bucketing": "layer"})
    end, ready = 0.0, 1.2
    for backward_s, size in ((0.2, 40.0), (0.6, 200.0), (0.4, 10.0)):
        ready += backward_s
        end = max(end, ready) + measured_collective_s(EVERY[0], 4, size)
    assert both(one) == pytest.approx((end + 0.1, end + 0.1), rel=1e-9)


def test_unequal_workers_synchronise_in_a_measured_collective() -> None:
    options = {"bucketing": "one"}
    one = job(WORK, where(), 4, "ring", options, stragglers=[Straggler(1, 2.0)])
    expected = 2 * 2.5 + measured_collective_s(EVERY[0], 4, BYTES)
    assert both(one) == pytest.approx((expected, expected), rel=1e-9)
    found = predict(one)
    assert found.operation_s["all-reduce"] == pytest.approx(
        measured_collective_s(EVERY[0], 4, BYTES)
    )


def test_folding_changes_nothing() -> None:
    from perfmodel.engine.simulation import simulate

    one = job(WORK, where(), 4, "ring", {"bucketing": "layer"})
    rates = []
    for fold in (False, True):
        graph = build_graph(one, fold=fold)
        run = simulate(graph, seed=0)
        rates.append(float((run.iterations_per_s * graph.group_count).sum()))
    assert rates[0] == pytest.approx(rates[1], rel=1e-9)


def test_a_grid_of_workers_equals_single_evaluations() -> None:
    one = job(WORK, where(), 2, "ring", {"bucketing": "layer"})
    workers = np.array([2, 3, 4, 8])
    grid = evaluate(one, workers=workers).iteration_s
    single = [
        predict(msgspec.structs.replace(one, workers=int(n)), fidelity="coarse").iteration_s
        for n in workers
    ]
    assert grid.tolist() == pytest.approx(single, rel=1e-12)


def test_they_take_the_same_time_on_a_node_without_an_inner_link() -> None:
    one = job(WORK, where(devices_per_node=4), 4, "ring", {"bucketing": "one", "overlap": False})
    expected = 2.5 + measured_collective_s(EVERY[0], 4, BYTES)
    assert both(one) == pytest.approx((expected, expected), rel=1e-9)


@pytest.mark.parametrize("bucketing", ["mg_wfbp", "horovod"])
def test_merged_messages_are_near_the_simulation(bucketing: str) -> None:
    """Messages merged at run time follow the straight line from zero bytes to all bytes."""
    one = job(WORK, where(), 4, "ring", {"bucketing": bucketing, "fusion_cycle_s": 0.01}
              if bucketing == "horovod" else {"bucketing": bucketing})  # fmt: skip
    assert not coarse.model_of(one).exact(one)
    fine_s, coarse_s = both(one)
    assert coarse_s == pytest.approx(fine_s, rel=0.1)


# -- where measurements apply ----------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", ["tree", "halving_doubling", "hierarchical"])
def test_another_algorithm_keeps_its_closed_form(algorithm: str) -> None:
    found = [
        both(job(WORK, where(collectives), 4, "allreduce", {"algorithm": algorithm}))
        for collectives in (EVERY, ())
    ]
    assert found[0] == found[1]


def test_unmeasured_operations_keep_their_closed_form() -> None:
    only = (measured("broadcast", SMALL), measured("all_gather", Piece(0.1, 0.1)))
    assert both(job(WORK, where(only), 4, "ring")) == both(job(WORK, where(()), 4, "ring"))


@pytest.mark.parametrize("arch", ["ring", "fsdp", "local_sgd"])
def test_measured_times_include_the_reduction(arch: str) -> None:
    one = job(WORK, where(), 4, arch, {"reduce_per_byte_s": 0.001})
    for fidelity in ("fine", "coarse"):
        with pytest.raises(
            InputError, match=r"reduce_per_byte_s: the cluster's measured .* already includes it"
        ):
            predict(one, fidelity=fidelity)


def test_concurrent_collectives_share_links_only_if_these_are_the_limit() -> None:
    even = workload([1.0], [1.0], [100.0])
    for per_byte_s, slower in ((0.01, 2.0), (0.02, 1.0)):
        times = []
        for parts in (1, 2):
            found = measured("all_reduce", Piece(0.0, per_byte_s))
            options = {"concurrent": 2, "partition_bytes": 100.0 / parts}
            one = job(even, where((found,)), 2, "ring", options)
            times.append(predict(one).iteration_s - 2.0)
        alone_s = 50.0 * per_byte_s
        assert times[0] == pytest.approx(2.0 * alone_s)
        assert times[1] == pytest.approx(slower * alone_s)


def test_a_slower_link_makes_bytes_take_longer_in_proportion() -> None:
    half = (NodeOverride(1, nic=Link(BANDWIDTH / 2, LATENCY)),)
    fast = (NodeOverride(1, nic=Link(BANDWIDTH * 2, LATENCY)),)
    beyond = (NodeOverride(5, nic=Link(BANDWIDTH / 2, LATENCY)),)
    options = {"bucketing": "one", "overlap": False}
    startup_s = 3 * 0.2
    moving_s = measured_collective_s(EVERY[0], 4, BYTES) - startup_s
    for overrides, times in ((half, 2.0), (fast, 1.0), (beyond, 1.0)):
        one = job(WORK, where(overrides=overrides), 4, "ring", options)
        expected = 2.5 + startup_s + times * moving_s
        assert both(one) == pytest.approx((expected, expected), rel=1e-9)


# -- notes ----------------------------------------------------------------------------------------


def test_notes_name_extrapolated_collectives() -> None:
    few = (measured("all_reduce", SMALL, LARGE, ranks=(2, 4), bytes=(20.0, 1e6)),)

    def notes(workers: int, **options: Any) -> tuple[str, ...]:
        return allreduce.notes(job(WORK, where(few), workers, "ring", options))

    assert notes(4, bucketing="one") == ()
    assert notes(8, bucketing="one") == (
        "all_reduce among 8 workers is extrapolated: measured among 2 to 4 ranks",
    )
    assert notes(4, bucketing="layer") == (
        "all_reduce of 10 B is extrapolated: measured from 20 B to 1 MB",
    )
    assert notes(1) == ()
    assert notes(4, each_send=True) == (
        "each_send: every send is simulated; the measured all_reduce is not used",
    )
    assert allreduce.notes(job(WORK, where(few), 8, "allreduce", {"algorithm": "tree"})) == ()
    assert allreduce.notes(job(WORK, where(()), 8, "ring", {"each_send": True})) == ()


def test_other_architectures_note_extrapolation_too() -> None:
    for arch, module, operations in (
        ("fsdp", fsdp, ["all_gather", "reduce_scatter"]),
        ("local_sgd", local_sgd, ["all_reduce"]),
    ):
        assert module.notes(job(WORK, where(), 8, arch)) == ()
        found = module.notes(job(WORK, where(), 9, arch))
        assert [note.split()[0] for note in found] == operations


# -- files -----------------------------------------------------------------------------------------


def test_a_cluster_file_round_trips(tmp_path: Path) -> None:
    path = tmp_path / "lab.json"
    asked = where((measured("all_reduce", SMALL, LARGE, uneven=(Uneven(3, 1.5),)),))
    path.write_bytes(msgspec.json.encode(asked))
    assert read_cluster(path) == asked
    one = make_job(workload=WORK, cluster=path, workers=3, arch="ring")
    same = make_job(workload=WORK, cluster=asked, workers=3, arch="ring")
    assert predict(one).iteration_s == predict(same).iteration_s


def test_a_cluster_file_may_be_written_by_hand(tmp_path: Path) -> None:
    path = tmp_path / "lab.toml"
    path.write_text(
        """
schema = "perfmodel.cluster/1"
name = "lab"
nic = { bandwidth_bytes_per_s = "10Gbps" }
source = { kind = "measured", text = "by hand" }

[[collectives]]
operation = "all_reduce"
ranks = [2, 4]
bytes = ["1KiB", "64MiB"]
pieces = [
  { startup_s = "30us", per_byte_s = "0.9ns", startup_growth = "log" },
  { above_bytes = "64KiB", startup_s = "0.1ms", per_byte_s = "0.8ns" },
]
"""
    )
    (found,) = read_cluster(path).collectives
    assert found.bytes == (1024.0, 64 * 2.0**20)
    assert found.pieces[1] == Piece(1e-4, 8e-10, 65536.0, "ring", "ring")


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"pieces": ()}, "pieces: the first must be above_bytes = 0"),
        ({"pieces": (LARGE,)}, "pieces: the first must be above_bytes = 0"),
        ({"pieces": (SMALL, LARGE, LARGE)}, "pieces: above_bytes must increase"),
        ({"ranks": (1, 4)}, r"ranks\[0\]: must be at least 2, got 1"),
        ({"ranks": (4, 2)}, "ranks: give the smallest value first, then the largest; got 4 and 2"),
        ({"bytes": (4.0, 2.0)}, "bytes: give the smallest value first, .* got 4 and 2"),
        ({"error_fraction": -1.0}, "error_fraction: must be at least 0"),
        ({"uneven": (Uneven(2, 2.0), Uneven(2, 3.0))}, "uneven: 2 ranks are given twice"),
    ],
)
def test_invalid_collectives_are_refused(change: dict[str, Any], text: str) -> None:
    fine: dict[str, Any] = {
        "operation": "all_reduce",
        "pieces": (SMALL, LARGE),
        "ranks": (2, 4),
        "bytes": (1.0, 2.0),
    }
    assert Collective(**fine)
    with pytest.raises(InputError, match=text):
        Collective(**{**fine, **change})


def test_an_operation_given_twice_is_refused() -> None:
    with pytest.raises(InputError, match="collectives: all_reduce is given twice"):
        where((EVERY[0], EVERY[0]))


def test_numbers_of_a_piece_are_validated() -> None:
    with pytest.raises(InputError, match="per_byte_s: must be at least 0"):
        Piece(0.0, -1.0)
    with pytest.raises(InputError, match="factor: must be more than 0"):
        Uneven(2, 0.0)


# -- a prediction and its job ----------------------------------------------------------------------


@pytest.mark.parametrize("fidelity", ["fine", "coarse"])
def test_a_prediction_notes_extrapolation(fidelity: Any) -> None:
    few = (measured("all_reduce", SMALL, LARGE, ranks=(2, 4)),)
    note = "all_reduce among 8 workers is extrapolated: measured among 2 to 4 ranks"
    assert note in predict(job(WORK, where(few), 8, "ring"), fidelity=fidelity).notes
    assert predict(job(WORK, where(few), 4, "ring"), fidelity=fidelity).notes == ()


@pytest.mark.parametrize("change", [{"bandwidth_bytes_per_s": 50.0}, {"latency_s": 0.1}])
def test_changed_links_discard_the_measurements(change: dict[str, float]) -> None:
    found = make_job(workload=WORK, cluster=where(), workers=4, arch="ring", **change)
    closed = make_job(workload=WORK, cluster=where(()), workers=4, arch="ring", **change)
    assert predict(found).iteration_s == predict(closed).iteration_s
    assert ("collectives", "closed forms") in [(a.name, a.value) for a in found.assumptions]
    assert "collectives" not in [a.name for a in closed.assumptions]
    (name, value) = next(iter(change.items()))
    grid = evaluate(job(WORK, where(), 4, "ring"), **{name: [value]}).iteration_s
    assert grid.tolist() == pytest.approx([predict(found, fidelity="coarse").iteration_s])


def test_crossovers_keep_the_measured_bandwidth() -> None:
    one = job(WORK, where(), 4, "ring", {"bucketing": "one"})
    found = crossovers.explain(one)
    assert found.iteration_s == pytest.approx(predict(one).iteration_s)
    assert not any(c.variable == "bandwidth_bytes_per_s" for c in found.crossovers)
    assert all(c.formula is None for c in found.crossovers)
    other = job(WORK, where(), 4, "ps")
    variables = {c.variable for c in crossovers.against(one, other, "ring", "ps")}
    assert "bandwidth_bytes_per_s" not in variables
    with pytest.raises(InputError, match="cannot be varied if collectives were measured"):
        crossovers.between(one, other, "bandwidth_bytes_per_s", ("ring", "ps"))
