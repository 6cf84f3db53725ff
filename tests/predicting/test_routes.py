"""Two routes to one number: formulas and simulation; and formulas on floats, arrays and symbols."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest
import sympy
from hypothesis import HealthCheck, assume, given, settings, strategies as st

from perfmodel import InputError, Job, Link, Server, Straggler, evaluate, make_job, predict
from perfmodel.phases.phases import Phases
from perfmodel.phases.quantities import quantities_of
from perfmodel.phases.whole import Whole
from perfmodel.predicting import coarse
from perfmodel.studies import formulas
from perfmodel.theory import contention
from tests.jobs import ETHERNET, cluster, job, third_of_variants, workload
from tests.queueing import multiclass_mva, mva
from tests.settings import examples, thinned

few = examples(8)

seconds = st.floats(0.0, 10.0, allow_subnormal=False)


@st.composite
def plain_jobs(draw: st.DrawFn, arch: str, options: dict[str, Any]) -> Job:
    """Jobs on plain clusters: one worker per node, no core, no link inside nodes."""
    count = draw(st.integers(1, 4))
    sizes = draw(st.lists(st.sampled_from([0.0, 7.0, 40.0]), min_size=count, max_size=count))
    if not any(sizes):
        sizes[0] = 10.0
    forward = draw(st.lists(seconds, min_size=count, max_size=count))
    backward = draw(st.lists(seconds, min_size=count, max_size=count))
    forward[0] += 0.5
    optimizer_s = draw(st.sampled_from([0.0, 0.3]))
    where = cluster(
        draw(st.sampled_from([13.0, 100.0])),
        draw(st.sampled_from([0.0, 0.01])),
        server=Server(
            update_per_tensor_s=draw(st.sampled_from([0.0, 0.1])),
            update_per_byte_s=draw(st.sampled_from([0.0, 0.001])),
        ),
    )
    work = workload(forward, backward, sizes, optimizer_s=optimizer_s)
    least = 1 + options.get("backup_workers", 0)
    return job(work, where, draw(st.integers(least, 5)), arch, options)


def exactly(fine_s: float, coarse_s: float) -> bool:
    return abs(coarse_s - fine_s) <= 1e-9 * fine_s


def may_be_exact(arch: str, options: dict[str, Any]) -> bool:
    """Whether a job of these options is exact: if any is, a small one with one layer is."""
    workers = 1 + options.get("backup_workers", 0)
    one = job(workload([1.0], [1.0], [1.0]), cluster(), workers, arch, options)
    return bool(coarse.model_of(one).exact(one))


@pytest.mark.sampled(4)
@third_of_variants(may_be_exact)
@settings(few, suppress_health_check=[HealthCheck.filter_too_much])
@given(data=st.data())
def test_formulas_declared_exact_equal_the_simulation(
    arch: str, options: dict[str, Any], data: st.DataObject
) -> None:
    one = data.draw(plain_jobs(arch, options))
    assume(coarse.model_of(one).exact(one))
    fine_s, coarse_s = predict(one).iteration_s, predict(one, fidelity="coarse").iteration_s
    assert exactly(fine_s, coarse_s), (one, fine_s, coarse_s)


SIMPLE: list[tuple[str, dict[str, Any]]] = [
    *(("bsp", {"overlap": overlap, "duplex": duplex}) for overlap in (True, False)
      for duplex in (True, False)),
    *(("ring", {"bucketing": kind}) for kind in ("ddp", "one", "layer", "mg_wfbp")),
    *(("allreduce", {"algorithm": kind}) for kind in ("halving_doubling", "tree", "hierarchical")),
    *(("p2p", {"overlap": overlap}) for overlap in (True, False)),
    *((name, {}) for name in ("zero1", "zero2", "local_sgd", "d_psgd")),
]  # fmt: skip


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("arch", "options"), SIMPLE)
@pytest.mark.parametrize("workers", [1, 3, 8])
def test_most_synchronous_jobs_are_exact(arch: str, options: dict[str, Any], workers: int) -> None:
    one = simple(arch, options, workers)
    if options.get("overlap", True) or not options.get("duplex"):
        assert coarse.model_of(one).exact(one)
    assert exactly(predict(one).iteration_s, predict(one, fidelity="coarse").iteration_s)


def simple(arch: str, options: dict[str, Any], workers: int) -> Job:
    work = workload([1.0, 2.0, 0.5], [2.0, 4.0, 1.0], [30.0, 5.0, 60.0])
    server = Server(update_per_tensor_s=0.01, update_per_byte_s=0.002)
    return job(work, cluster(20.0, 0.01, server=server), workers, arch, options)


PLANTED = {
    "latency twice": lambda q: {"latency_s": 2.0 * q.latency_s},
    "bits for bytes": lambda q: {"bandwidth_bytes_per_s": q.bandwidth_bytes_per_s / 8.0},
    "one worker less": lambda q: {"workers": q.workers - 1},
    "free updates": lambda q: {"update_per_tensor_s": 0.0, "update_per_byte_s": 0.0},
}


@pytest.mark.parametrize("error", PLANTED)
def test_canary_a_planted_error_is_noticed(error: str) -> None:
    one = simple("bsp", {"overlap": False}, 8)
    q = quantities_of(one)
    wrong = msgspec.structs.replace(q, **PLANTED[error](q))
    found = coarse.phases(one, among=wrong).iteration_s
    if error == "bits for bytes":  # the servers' links are the bottleneck
        wrong = msgspec.structs.replace(
            wrong, server_bandwidth_bytes_per_s=q.server_bandwidth_bytes_per_s / 8.0
        )
        found = coarse.phases(one, among=wrong).iteration_s
    assert not exactly(predict(one).iteration_s, float(found))


@third_of_variants()
def test_coarse_predictions_add_up(arch: str, options: dict[str, Any]) -> None:
    where = cluster(
        13.0, 0.01, devices_per_node=2, intra_node=Link(500.0, 0.001), core_oversubscription=2.0,
        update_per_tensor_s=0.1,
    )  # fmt: skip
    work = workload([1.0, 2.0], [2.0, 1.0], [40.0, 7.0], optimizer_s=0.2, data_loading_s=0.5)
    p = predict(job(work, where, 4, arch, options, jitter=0.2), fidelity="coarse")
    assert p.fidelity == "coarse"
    assert p.error_band is not None
    assert sum(p.phases_s.values()) == pytest.approx(p.iteration_s)
    assert min(p.phases_s.values()) > 0.0
    idle = p.idle_fraction
    assert 0.0 <= idle.mean < 1.0
    assert sum(idle.by_cause.values()) == pytest.approx(idle.mean, abs=1e-9)
    assert idle.mean == pytest.approx(1.0 - p.compute_s / p.iteration_s)
    assert len(idle.per_worker) == p.workers
    for use in (p.utilisation.workers, p.utilisation.servers, p.utilisation.links):
        assert all(-1e-9 <= part <= 1.0 + 1e-9 for part in use.values())
    assert p.staleness is not None
    assert sum(p.staleness.histogram.values()) == pytest.approx(1.0)


# -- floats, arrays, symbols -------------------------------------------------------------------

KINDS: list[tuple[str, dict[str, Any]]] = [
    ("bsp", {}),
    ("bsp", {"overlap": False}),
    ("bsp", {"duplex": True}),
    ("asp", {}),
    ("asp", {"overlap": False}),
    ("ssp", {}),
    ("ring", {}),
    ("ring", {"bucketing": "mg_wfbp"}),
    ("ring", {"bucketing": "horovod"}),
    ("allreduce", {"algorithm": "tree"}),
    ("allreduce", {"algorithm": "halving_doubling"}),
    ("p2p", {}),
    ("p2p", {"exchange": "sharded"}),
    ("zero2", {}),
    ("zero3", {}),
    ("local_sgd", {}),
    ("d_psgd", {}),
    ("easgd", {}),
    ("gosgd", {"probability": 0.5}),
    ("ad_psgd", {}),
]


def measured(arch: str, options: dict[str, Any], workers: int = 8) -> Job:
    return make_job(
        model="resnet18",
        device="v100",
        cluster=ETHERNET,
        arch=arch,
        options=options,
        workers=workers,
    )


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("arch", "options"), KINDS)
@pytest.mark.parametrize("sharpness", thinned([3.0, None, float("inf")], 3))
def test_arrays_equal_scalars(arch: str, options: dict[str, Any], sharpness: float | None) -> None:
    generator = np.random.default_rng(1)
    n = 8
    axes = {
        "workers": np.array([1, 2, 3, 5, 13, 40, 79, 8]),
        "bandwidth_bytes_per_s": 10.0 ** generator.uniform(8.0, 10.5, n),
        "latency_s": generator.uniform(0.0, 1e-3, n),
        "batch_size": generator.integers(1, 64, n),
    }
    one = measured(arch, options)
    many = evaluate(one, **axes, sharpness=sharpness)
    for k in range(n):
        alone = evaluate(one, **{a: v[k] for a, v in axes.items()}, sharpness=sharpness)
        assert many.iteration_s[k] == pytest.approx(float(alone.iteration_s), rel=1e-7)
        assert many.idle_fraction[k] == pytest.approx(float(alone.idle_fraction), abs=1e-7)


def test_axes_broadcast() -> None:
    found = evaluate(
        measured("bsp", {}),
        workers=np.arange(1, 5)[:, None],
        bandwidth_bytes_per_s=[1e8, 1e9, 1e10],
    )
    assert found.iteration_s.shape == (4, 3)
    assert found.phases_s["pull"].shape == (4, 3)
    alone = predict(measured("bsp", {}, workers=3), fidelity="coarse")
    same = evaluate(measured("bsp", {}), workers=3)
    assert float(same.iteration_s) == pytest.approx(alone.iteration_s, rel=1e-12)


def test_servers_are_an_axis() -> None:
    found = evaluate(measured("bsp", {}), servers=[1, 2, 4])
    each = [predict(measured("bsp", {"servers": k}), fidelity="coarse") for k in (1, 2, 4)]
    assert found.iteration_s.tolist() == pytest.approx([p.iteration_s for p in each], rel=1e-12)


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("arch", "options"), thinned(KINDS, 3))
def test_symbols_equal_numbers(arch: str, options: dict[str, Any]) -> None:
    """At random points, with queue lengths taken from the numeric evaluation."""
    generator = np.random.default_rng(2)
    one = measured(arch, options)
    parts = {name: numeric(part) for name, part in formulas.expressions(one).items()}
    for _ in range(3):
        figures = {
            "workers": int(generator.integers(2, 40)),
            "bandwidth_bytes_per_s": 10.0 ** generator.uniform(8.0, 10.5),
            "latency_s": generator.uniform(0.0, 1e-3),
            "forward_s": generator.uniform(0.01, 0.2),
            "backward_s": generator.uniform(0.01, 0.4),
            "gradient_bytes": 10.0 ** generator.uniform(6.0, 8.5),
        }
        q = msgspec.structs.replace(quantities_of(one), **figures)
        q = msgspec.structs.replace(
            q,
            server_bandwidth_bytes_per_s=q.bandwidth_bytes_per_s,
            layers=Whole(q.forward_s, q.backward_s, q.gradient_bytes, q.tensors),
        )
        seen: dict[str, float] = {}
        found = numbers(one, q, seen)
        values = {s: getattr(q, name) for name, s in formulas.symbols().items()}
        for name, part in found.parts.items():
            if name not in parts:
                assert float(part.seconds) == pytest.approx(0.0, abs=1e-12), name
                continue
            free, expression = parts[name]
            rest = {
                s: seen[str(s)[2:]] if str(s).startswith("Q_") else 1.0
                for s in free
                if s not in values
            }
            there = expression(*({**values, **rest}[s] for s in free))
            assert there == pytest.approx(float(part.seconds), rel=1e-9, abs=1e-12), name


def numeric(expression: sympy.Expr) -> tuple[list[sympy.Symbol], Callable[..., float]]:
    """The symbols of an expression, and a function of their values: faster than ``subs``."""
    free = sorted(expression.free_symbols, key=str)
    return free, sympy.lambdify(free, expression, modules="math", cse=True)


def numbers(one: Job, q: Any, seen: dict[str, float]) -> Phases:
    """The phases as numbers; ``seen`` receives the customers found at each station."""
    original = contention.contended

    def spy(*args: Any, stations: tuple[str, ...] = (), **more: Any) -> Any:
        found = original(*args, stations=stations, **more)
        seen.update(dict(zip(stations, map(float, found[0]), strict=True)))
        return found

    with pytest.MonkeyPatch.context() as patch:
        for module in ("ps.formulas", "easgd", "ad_psgd"):
            patch.setattr(f"perfmodel.architectures.{module}.contended", spy)
        return coarse.phases(one, among=q)


def test_canary_a_wrong_symbol_is_noticed() -> None:
    parts = formulas.expressions(measured("bsp", {"overlap": False}))
    symbols = formulas.symbols()
    q = quantities_of(measured("bsp", {"overlap": False}))
    values = {s: getattr(q, name) for name, s in symbols.items()}
    right = float(parts["push"].subs(values))
    pushed = coarse.phases(measured("bsp", {"overlap": False})).parts["push"]
    assert right == pytest.approx(float(pushed.seconds))
    assert float(parts["push"].subs({**values, symbols["workers"]: 9})) != pytest.approx(right)


def test_a_million_variants_are_cheap() -> None:
    """One of many variants in a call costs a small fraction of a single one."""
    from time import perf_counter

    one = measured("bsp", {"overlap": False})
    workers = np.arange(1, 100_001) % 64 + 1
    evaluate(one, workers=workers)
    begin = perf_counter()
    evaluate(one, workers=workers)
    each_s = (perf_counter() - begin) / len(workers)
    begin = perf_counter()
    for k in range(1, 21):
        evaluate(one, workers=k)
    alone_s = (perf_counter() - begin) / 20
    assert each_s < alone_s / 50


# -- contention --------------------------------------------------------------------------------


def rounds(demands: list[float], think_s: float) -> contention.CycleTime:
    """A cycle that is the sum of stations plus a think time."""

    def cycle(others: Any) -> Any:
        held = [(1.0 + found) * demand for found, demand in zip(others, demands, strict=True)]
        return think_s + sum(held), held

    return cycle


networks = st.tuples(
    st.integers(1, 64),
    st.lists(st.floats(0.01, 10.0), min_size=1, max_size=4),
    st.floats(0.0, 20.0),
)


@few
@given(network=networks)
def test_contention_at_stations_equals_mean_value_analysis(
    network: tuple[int, list[float], float],
) -> None:
    customers, demands, think_s = network
    cycle = rounds(demands, think_s)
    (found,) = contention.contended([customers], demands, [cycle])
    throughput, _, _ = mva(customers, demands, think_s)
    assert customers / cycle(found)[0] == pytest.approx(throughput, rel=1e-9)


def test_canary_one_more_customer_is_noticed() -> None:
    cycle = rounds([1.0, 0.5], 2.0)
    (found,) = contention.contended([5], [1.0, 0.5], [cycle])
    throughput, _, _ = mva(4, [1.0, 0.5], 2.0)
    assert 5 / cycle(found)[0] != pytest.approx(throughput, rel=0.05)


@pytest.mark.parametrize("customers", [65, 100, 300])
def test_many_customers_are_close_to_mean_value_analysis(customers: int) -> None:
    demands, think_s = [1.0, 0.7, 0.2], 80.0
    cycle = rounds(demands, think_s)
    (found,) = contention.contended([customers], demands, [cycle])
    throughput, _, _ = mva(customers, demands, think_s)
    assert customers / cycle(found)[0] == pytest.approx(throughput, rel=0.01)


def test_several_classes_are_close_to_exact_analysis() -> None:
    demands = [1.0, 0.5]
    cycles = [rounds(demands, 4.0), rounds(demands, 9.0)]
    found = contention.contended([3, 5], demands, cycles)
    rates = [n / cycle(row)[0] for n, cycle, row in zip([3, 5], cycles, found, strict=True)]
    exact = multiclass_mva([3, 5], [demands, demands], ["shared", "shared"], [4.0, 9.0])
    assert rates == pytest.approx(exact.throughput_per_s.tolist(), rel=0.03)


@pytest.mark.slow
def test_unequal_workers_have_their_own_pace() -> None:
    """Each with the staleness and idleness of the simulation."""
    slow = Straggler(0, 3.0)
    one = make_job(
        model="resnet50", device="v100", cluster=ETHERNET, arch="asp", workers=6,
        stragglers=[slow], bandwidth_bytes_per_s=1e10,
    )  # fmt: skip
    fine, formulaic = predict(one), predict(one, fidelity="coarse")
    assert fine.staleness is not None
    assert formulaic.staleness is not None
    assert formulaic.staleness.per_worker == pytest.approx(fine.staleness.per_worker, rel=0.05)
    assert formulaic.idle_fraction.per_worker == pytest.approx(
        fine.idle_fraction.per_worker, abs=0.05
    )


@pytest.mark.slow
def test_shared_links_are_as_busy_as_simulated() -> None:
    one = make_job(model="resnet50", device="v100", cluster=ETHERNET, arch="asp", workers=8)
    fine, formulaic = predict(one), predict(one, fidelity="coarse")
    simulated = fine.utilisation.links["link out of node 8 (server 0)"]
    assert formulaic.utilisation.links["link out of the servers"] == pytest.approx(
        simulated, rel=0.05
    )


# -- choice of route---------------------------------------------------------------------------


def test_auto_uses_formulas_if_they_are_good_enough() -> None:
    exact, rough = measured("ring", {}), measured("asp", {})
    assert predict(exact, fidelity="auto").fidelity == "coarse"
    assert "equals the simulation" in predict(exact, fidelity="auto").notes[-1]
    assert predict(rough, fidelity="auto").fidelity == "fine"
    assert "not accurate enough" in predict(rough, fidelity="auto").notes[-1]
    assert predict(rough, fidelity="auto", tolerance=0.5).fidelity == "coarse"
    left_out = measured("bsp", {"transmission": "quantum"})
    assert predict(left_out, fidelity="auto", tolerance=1.0).fidelity == "fine"
    assert "transmission=quantum" in predict(left_out, fidelity="auto", tolerance=1.0).notes[-1]


@pytest.mark.parametrize(
    ("asked", "text"),
    [
        ({"fidelity": "corse"}, "unknown fidelity 'corse'; did you mean 'coarse'?"),
        ({"fidelity": "auto", "tolerance": 0.0}, "tolerance: must be more than 0"),
        ({"fidelity": "auto", "tolerance": float("nan")}, "tolerance: expected a finite number"),
    ],
)
def test_wrong_routes_are_refused(asked: dict[str, Any], text: str) -> None:
    with pytest.raises(InputError, match=re.escape(text)):
        predict(measured("bsp", {}), **asked)


@pytest.mark.parametrize(
    ("axes", "text"),
    [
        ({"workers": [1, 0]}, "workers: expected whole numbers of at least 1"),
        ({"workers": 1.5}, "workers: expected whole numbers of at least 1"),
        ({"bandwidth_bytes_per_s": -1.0}, "bandwidth_bytes_per_s: expected"),
        ({"latency_s": float("nan")}, "latency_s: expected"),
        ({"workers": "many"}, "workers: expected numbers"),
        ({"workers": [1, 2], "latency_s": [0.0, 0.0, 0.0]}, "do not broadcast"),
    ],
)
def test_wrong_axes_are_refused(axes: dict[str, Any], text: str) -> None:
    with pytest.raises(InputError, match=re.escape(text)):
        evaluate(measured("bsp", {}), **axes)
    with pytest.raises(InputError, match="servers: allreduce has none"):
        evaluate(measured("ring", {}), servers=2)
