"""Formulas for unequal workers, links or cores, and for jitter combined with overlap."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec
import numpy as np
import pytest

from perfmodel import (
    Cluster,
    InputError,
    Jitter,
    Job,
    Link,
    NodeOverride,
    Server,
    Source,
    Straggler,
    evaluate,
    make_job,
    predict,
)
from perfmodel.api import TOLERANCE
from perfmodel.base.quantities import NO_SPREAD
from perfmodel.inputs.cluster import Collective, Piece
from perfmodel.phases.quantities import classes_of, quantities_of
from perfmodel.predicting import coarse
from perfmodel.theory import order_statistics
from tests.jobs import ETHERNET, cluster, job, workload

WORK = workload([1.0, 2.0, 1.0], [2.0, 3.0, 1.0], [30.0, 50.0, 20.0])
LATE = (Straggler(0, 1.5),)


def error(one: Job, rel_ci: float = 0.01) -> float:
    """Error of the formulas' iteration, as a fraction of the simulated one."""
    return float(coarse.phases(one).iteration_s) / predict(one, rel_ci=rel_ci).iteration_s - 1.0


# -- SSP ---------------------------------------------------------------------------------------


@pytest.mark.sampled(4)
@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("duplex", [True, False])
@pytest.mark.parametrize("workers", [1, 2, 5, 8])
def test_ssp_with_a_bound_of_0_is_bsp(overlap: bool, duplex: bool, workers: int) -> None:
    """To rounding, by formula and by simulation, wherever workers start."""
    options = {"overlap": overlap, "duplex": duplex}
    where = cluster(20.0, 0.01, update_per_byte_s=0.002)
    bound = job(WORK, where, workers, "ssp", {**options, "staleness_bound": 0}, start="staggered")
    whole = job(WORK, where, workers, "bsp", options)
    assert coarse.model_of(bound).exact(bound)
    found = predict(bound, fidelity="coarse")
    assert found.iteration_s == pytest.approx(float(coarse.phases(whole).iteration_s), rel=1e-12)
    simulated = predict(bound)
    assert found.iteration_s == pytest.approx(simulated.iteration_s, rel=1e-9)
    assert found.updates_per_s == pytest.approx(simulated.updates_per_s, rel=1e-9)
    assert found.staleness is not None
    assert simulated.staleness is not None
    assert found.staleness.mean == pytest.approx(simulated.staleness.mean, abs=1e-9)


@pytest.mark.parametrize("options", [{}, {"overlap": False}, {"duplex": True, "servers": 2}])
@pytest.mark.parametrize("late", [(), LATE])
def test_ssp_without_a_bound_is_asp(options: dict[str, Any], late: tuple[Straggler, ...]) -> None:
    where = cluster(20.0, 0.01, update_per_byte_s=0.002)
    bound = {**options, "staleness_bound": float("inf")}
    ssp = job(WORK, where, 6, "ssp", bound, jitter=Jitter(0.1), stragglers=late)
    asp = job(WORK, where, 6, "asp", options, jitter=Jitter(0.1), stragglers=late)
    found, free = (predict(one, fidelity="coarse") for one in (ssp, asp))
    assert found.throughput_samples_per_s == free.throughput_samples_per_s
    assert found.staleness == free.staleness


@pytest.mark.parametrize("bound", [1, 3, 10])
def test_a_finite_bound_limits_all_to_the_slowest_pace(bound: int) -> None:
    """In the steady state, however high the bound: with one worker 1.1 times slower than three
    others it is 1322 samples/s, against 1420 by the asynchronous formula."""
    one = make_job(
        model="resnet50", device="v100", workers=4, cluster=ETHERNET, arch="ssp",
        bandwidth_bytes_per_s=100e9 / 8,
        options={"staleness_bound": bound}, stragglers=[Straggler(3, 1.1)], start="together",
    )  # fmt: skip
    found = predict(one, fidelity="coarse")
    assert found.throughput_samples_per_s == pytest.approx(1322.0, rel=0.005)
    assert found.idle_fraction.mean == pytest.approx(0.069, abs=0.005)
    assert found.idle_fraction.by_cause["staleness_bound"] > 0.06


@pytest.mark.parametrize(("bound", "cv"), [(1, 0.1), (3, 0.3), (8, 0.2)])
def test_the_bound_is_between_bsp_and_asp(bound: int, cv: float) -> None:
    """The larger the bound, the more iterations may lie between workers."""
    where = cluster(400.0, 0.0)

    def iteration_s(arch: str, **options: Any) -> float:
        one = job(WORK, where, 8, arch, options, jitter=Jitter(cv))
        return float(coarse.phases(one).iteration_s)

    whole, free = iteration_s("bsp"), iteration_s("asp")
    some, more = (iteration_s("ssp", staleness_bound=b) for b in (bound, 4 * bound))
    assert free <= more < some < whole


@pytest.mark.sampled(3)
@pytest.mark.parametrize("workers", [4, 16])
@pytest.mark.parametrize(("bound", "cv"), [(1, 0.1), (1, 0.3), (3, 0.3)])
def test_the_cost_of_jitter_under_a_bound(workers: int, bound: int, cv: float) -> None:
    where = cluster(1e9)
    one = job(WORK, where, workers, "ssp", {"staleness_bound": bound}, jitter=Jitter(cv))
    assert abs(error(one)) < 0.03


# -- barriers ----------------------------------------------------------------------------------

FEW_LAYERS = workload([1.0], [2.0], [60.0])
BARRIERS: list[tuple[str, dict[str, Any]]] = [
    ("bsp", {}),
    ("bsp", {"duplex": True}),
    ("bsp", {"overlap": False}),
    ("p2p", {}),
    ("p2p", {"overlap": False}),
    ("ring", {}),
    ("zero2", {}),
    ("local_sgd", {"period": 3}),
]


@pytest.mark.sampled(6)
@pytest.mark.parametrize(("arch", "options"), BARRIERS)
@pytest.mark.parametrize("late", [(), LATE, (Straggler(0, 1.3), Straggler(1, 1.1))])
@pytest.mark.parametrize("work", [FEW_LAYERS, WORK])
def test_barriers_of_unequal_workers_with_jitter(
    arch: str, options: dict[str, Any], late: tuple[Straggler, ...], work: Any
) -> None:
    """Jobs of few layers with jitter or unequal workers were once 10 to 19 % off."""
    one = job(work, cluster(150.0, 0.01), 6, arch, options, jitter=Jitter(0.2), stragglers=late)
    assert abs(error(one)) < TOLERANCE


def test_canary_applying_a_straggler_to_all_is_noticed() -> None:
    """The largest of six factors times the slowest kind of worker, as if all six were slow."""
    one = job(WORK, cluster(1e9), 6, "bsp", jitter=Jitter(0.2), stragglers=LATE)
    all_slow = 1.5 * order_statistics.expected_maximum(6, 0.2, "lognormal")
    compute_s = WORK.forward_s + WORK.backward_s
    assert all_slow * compute_s / predict(one).iteration_s > 1.1


def test_a_straggler_and_a_slow_link_need_not_be_the_same_worker() -> None:
    """D-PSGD without overlap: 18 % too slow if both were on the same worker."""
    slow = (NodeOverride(3, Link(20.0)),)
    where = cluster(80.0, overrides=slow)
    one = job(WORK, where, 6, "d_psgd", {"overlap": False}, stragglers=[Straggler(0, 2.0)])
    assert abs(error(one)) < 0.02


def test_update_threads_do_not_share_an_update() -> None:
    """Two workers have two of four threads busy: 27 % too fast if all four shared one update."""
    where = cluster(1e4, server=Server(update_per_byte_s=0.05, threads=4))
    one = job(WORK, where, 2, "bsp", {"overlap": False, "duplex": True})
    assert abs(error(one)) < 0.1


# -- links -------------------------------------------------------------------------------------


def slow_link(arch: str, options: dict[str, Any], workers: int, slower: float) -> Job:
    nic = Link(25e9 / 8, 25e-6)
    slow = Link(nic.bandwidth_bytes_per_s * slower, 25e-6)
    return make_job(
        workload=workload([0.01, 0.02, 0.01], [0.03, 0.04, 0.02], [3e7, 1e7, 4e7]),
        cluster=Cluster(
            name="one slow link",
            nic=nic,
            overrides=(NodeOverride(0, slow),),
            server=Server(update_per_tensor_s=2e-4, update_per_byte_s=9e-11),
            source=Source("assumed", "a test"),
        ),
        workers=workers,
        arch=arch,
        options=options,
        jitter=0.02,
        start="together" if arch == "ssp" else None,
    )


@pytest.mark.sampled(3)
@pytest.mark.parametrize("slower", [0.3, 0.1, pytest.param(0.02, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("arch", "options"), [("asp", {}), ("easgd", {}), ("ssp", {}), ("bsp", {}), ("p2p", {})]
)
def test_one_slow_link(arch: str, options: dict[str, Any], slower: float) -> None:
    """Errors were once up to 58 % (ASP), 38 % (EASGD) and 97 % (SSP); jobs that still exceed the
    tolerance are simulated."""
    one = slow_link(arch, options, 8, slower)
    off = abs(error(one, rel_ci=0.04))
    assert off < 0.25
    assert off <= TOLERANCE or predict(one, fidelity="auto", rel_ci=0.1).fidelity == "fine"


@pytest.mark.slow
def test_a_slow_link_delays_all_gossiping_workers() -> None:
    """Every worker sends over it sometimes and must wait: without that, 5 times too fast."""
    assert abs(error(slow_link("gosgd", {"probability": 1.0, "queue": 1}, 6, 0.1))) < 0.25


def test_workers_of_a_node_do_not_always_share_its_link() -> None:
    """EASGD on nodes of eight: 38 to 148 % too slow if all eight always sent at once."""
    one = make_job(
        workload=workload([0.1], [0.2], [2e8]),
        cluster=Cluster(
            name="nodes of eight", nic=Link(10e9 / 8, 25e-6), devices_per_node=8,
            source=Source("assumed", "a test"),
        ),
        workers=8, arch="easgd", options={"period": 8, "servers": 4}, jitter=0.2,
    )  # fmt: skip
    assert abs(error(one)) < 0.25


# -- former disagreements of the routes ----------------------------------------------------------


def test_single_sends_do_not_use_measured_collectives() -> None:
    """Also by formula, which was once 94 % off with slow measured collectives."""
    slow = Collective(
        operation="all_reduce", pieces=(Piece(5.0, 1.0),), ranks=(2, 64), bytes=(1.0, 1e9)
    )
    plain = cluster(20.0, 0.01)
    measured = cluster(20.0, 0.01, collectives=(slow,))
    options = {"each_send": True}
    one, without = (job(WORK, where, 4, "ring", options) for where in (measured, plain))
    assert coarse.phases(one).iteration_s == coarse.phases(without).iteration_s
    assert abs(error(one)) < 0.1
    whole = job(WORK, measured, 4, "ring")
    assert float(coarse.phases(whole).iteration_s) > 5.0 * float(coarse.phases(one).iteration_s)


@pytest.mark.parametrize("arch", ["ring", "local_sgd", "zero2", "zero3"])
def test_a_single_worker_reduces_nothing(arch: str) -> None:
    """Formulas once refused what simulations accept: reduction time with measured collectives."""
    measured = tuple(
        Collective(operation=name, pieces=(Piece(1.0, 0.1),), ranks=(2, 64), bytes=(1.0, 1e9))
        for name in ("all_reduce", "reduce_scatter", "all_gather")
    )
    options = {} if arch == "local_sgd" else {"reduce_per_byte_s": 0.01}
    assert error(job(WORK, cluster(20.0, collectives=measured), 1, arch, options)) == 0.0


@pytest.mark.parametrize("fidelity", ["fine", "coarse", "auto"])
@pytest.mark.parametrize("late", [[], [Straggler(0, 2.0)]])
@pytest.mark.parametrize("spare", [3, 4])
def test_backup_workers_leave_at_least_one_worker(
    fidelity: Any, late: list[Straggler], spare: int
) -> None:
    text = f"backup_workers: must be fewer than the 3 workers, got {spare} \\(at most 2\\)"
    with pytest.raises(InputError, match=text):
        predict(
            make_job(
                model="resnet18", arch="bsp", workers=3, options={"backup_workers": spare},
                stragglers=late,
            ),
            fidelity=fidelity,
        )  # fmt: skip


def test_backup_workers_leave_at_least_one_worker_in_every_variant() -> None:
    one = make_job(model="resnet18", arch="bsp", workers=4, options={"backup_workers": 2})
    with pytest.raises(InputError, match="workers: expected more than the 2 backup workers"):
        evaluate(one, workers=[2, 3])


@pytest.mark.parametrize("kind", ["gamma", "lognormal"])
@pytest.mark.parametrize("arch", ["bsp", "asp", "ring", "d_psgd"])
def test_negligible_jitter_is_none(kind: str, arch: str) -> None:
    """``gamma:1e-155`` once gave 7 times the right throughput."""
    none, least = (
        make_job(model="resnet18", arch=arch, workers=3, jitter=jitter)
        for jitter in (None, f"{kind}:1e-155")
    )
    for fidelity in ("fine", "coarse"):
        found = predict(least, fidelity=fidelity)  # type: ignore[arg-type]
        assert found.iteration_s == predict(none, fidelity=fidelity).iteration_s  # type: ignore[arg-type]


def test_the_smallest_jitter_is_the_same_everywhere() -> None:
    assert Jitter(0.9 * NO_SPREAD).cv == 0.0
    assert Jitter(1.1 * NO_SPREAD).cv > 0.0
    for kind in ("gamma", "lognormal"):
        assert order_statistics.expected_maximum(8, 1e-155, kind) == 1.0
        near = order_statistics.expected_maximum(8, 2.0 * NO_SPREAD, kind)
        assert 1.0 < near < 1.0 + 10.0 * NO_SPREAD


@pytest.mark.parametrize("algorithm", ["ring", "tree", "double_tree", "halving_doubling"])
def test_a_limiting_core_is_simulated_if_formulas_are_far_off(algorithm: str) -> None:
    where = cluster(20.0, 0.01, core_oversubscription=8.0)
    one = job(WORK, where, 9, "allreduce", {"algorithm": algorithm, "bucketing": "one"})
    found = predict(one, fidelity="auto")
    assert found.iteration_s == pytest.approx(predict(one).iteration_s, rel=TOLERANCE)


@pytest.mark.parametrize("workers", [1, 5, 16, 19])
@pytest.mark.parametrize(
    "changed",
    [
        {"slowdown_per_neighbour": 0.1},
        {"slowdown_per_neighbour": 0.1, "devices_on_nodes": (1, 3)},
        {"overrides": (NodeOverride(1, speed=0.5), NodeOverride(4, nic=Link(1e6)))},
    ],
)
@pytest.mark.parametrize("slow", [(), (0, 6), (4,)])
def test_classes_count_every_worker(
    changed: dict[str, Any], workers: int, slow: tuple[int, ...]
) -> None:
    where = cluster(devices_per_node=4, **changed)
    stragglers = tuple(Straggler(worker, 1.5) for worker in slow if worker < workers)
    made = job(WORK, where, workers, "asp", stragglers=stragglers)
    expected = Counter(classes_of(made, range(workers), made.path_efficiency).values())
    classes = quantities_of(made).classes
    counts = [(msgspec.structs.replace(kind, count=1), kind.count) for kind in classes]
    assert counts == (list(expected.items()) if len(expected) > 1 else [])


def test_of_many_speeds_near_ones_are_one_class_by_hand() -> None:
    """100 workers, of which none is as fast as another, whose messages take no time. What formulas
    take together changes the sum of their rates by less than 0.1 %, and nothing of a barrier."""
    factors = 1.0 + np.random.default_rng(2).permutation(100) / 100.0
    unlike = tuple(Straggler(worker, float(factor)) for worker, factor in enumerate(factors))
    step_s = 10.0 * factors
    free, bound = (
        job(WORK, cluster(1e12), 100, arch, stragglers=unlike) for arch in ("asp", "bsp")
    )
    assert sorted(kind.count for kind in quantities_of(free).classes) == [
        1,
        11,
        *[12] * 3,
        *[13] * 4,
    ]
    found = predict(free, fidelity="coarse")
    assert found.updates_per_s == pytest.approx((1.0 / step_s).sum(), rel=1e-3)
    assert found.staleness is not None
    others = (1.0 / step_s).sum() * step_s - 1.0
    assert found.staleness.per_worker == pytest.approx(others, rel=0.07)
    waiting = predict(bound, fidelity="coarse")
    assert waiting.iteration_s == pytest.approx(step_s.max(), rel=1e-9)
    assert waiting.idle_fraction.per_worker == pytest.approx(1.0 - step_s / step_s.max(), abs=1e-9)


def test_of_many_bandwidths_near_ones_are_one_class_by_hand() -> None:
    """100 nodes, of which none has a link like another: classes have the mean time of a byte, and
    that of the slowest link stays one."""
    rates = 1e3 * (1.0 + np.random.default_rng(2).permutation(100) / 100.0)
    unlike = tuple(NodeOverride(node, nic=Link(float(rate))) for node, rate in enumerate(rates))
    classes = quantities_of(job(WORK, cluster(1e3, overrides=unlike), 100, "asp")).classes
    count = np.array([kind.count for kind in classes])
    found = np.array([float(kind.bandwidth_bytes_per_s) for kind in classes])
    assert sorted(count) == [1, 11, *[12] * 3, *[13] * 4]
    assert (count / found).sum() == pytest.approx((1.0 / rates).sum())
    assert found.min() == pytest.approx(rates.min())
    assert count[found.argmin()] == 1
