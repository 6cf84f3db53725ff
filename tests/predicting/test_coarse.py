"""The coarse route: against the simulation, against laws, and arrays against scalars."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import click
import hypothesis
import msgspec
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from perfmodel import (
    InputError,
    Jitter,
    Job,
    Link,
    NodeOverride,
    Straggler,
    Workload,
    WorkloadLayer,
    predict,
)
from perfmodel.architectures.base import Coarse
from perfmodel.architectures.registry import find, names
from perfmodel.cli.printing import prediction
from perfmodel.cli.verbosity import VERBOSITY
from perfmodel.phases.phases import Phase, Phases
from perfmodel.phases.quantities import Quantities
from perfmodel.predicting import coarse, variants as predicting_variants
from perfmodel.results.prediction import Prediction
from perfmodel.theory.contention import EXACT
from tests.jobs import (
    ALL,
    VARIANTS,
    cluster,
    each_variant,
    job,
    jobs,
    third_of_variants,
    whole_groups,
    workload,
)
from tests.oracles import equal
from tests.settings import examples, thinned

few = examples(4)
replace = msgspec.structs.replace
WORK = workload([1.0, 2.0, 1.0], [2.0, 3.0, 1.0], [30.0, 50.0, 20.0])


def asynchronous(arch: str, options: dict[str, Any]) -> bool:
    return job(WORK, cluster(), 3, arch, options).options.asynchronous


# -- jobs ------------------------------------------------------------------------------------------

_seconds = st.one_of(st.just(0.0), st.floats(0.01, 10.0))


@st.composite
def plain_workloads(draw: st.DrawFn) -> Workload:
    """Chains of one to five layers with no, one or two tensors; an optimizer or none."""
    n = draw(st.integers(1, 5))
    sizes = st.lists(st.sampled_from([1.0, 7.0, 40.0, 100.0]), max_size=2)
    tensors = [draw(sizes) for _ in range(n)]
    if not any(tensors):
        tensors[0] = [10.0]
    layers = [
        WorkloadLayer(f"layer{i}", draw(_seconds), draw(_seconds), tuple(sizes))
        for i, sizes in enumerate(tensors)
    ]
    layers[0] = replace(layers[0], forward_s=draw(st.floats(0.01, 10.0)))
    return Workload.of("chain", layers, optimizer_s=draw(_seconds))


@st.composite
def plain_jobs(draw: st.DrawFn, arch: str, options: dict[str, Any]) -> Job:
    """Jobs of one to five workers, each on its own node, with equal links."""
    where = cluster(
        draw(st.sampled_from([1.0, 13.0, 100.0])),
        draw(st.sampled_from([0.0, 0.01, 1.5])),
        update_per_tensor_s=draw(st.sampled_from([0.0, 0.1, 2.0])),
        update_per_byte_s=draw(st.sampled_from([0.0, 0.001, 0.1])),
    )
    least = 1 + options.get("backup_workers", 0)
    workers = draw(st.sampled_from([least, least, *range(least + 1, 6)]))
    slow = draw(st.sampled_from([(), (), (), (Straggler(0, 3.0),)]))
    return job(draw(plain_workloads()), where, workers, arch, options, stragglers=slow)


@st.composite
def any_jobs(draw: st.DrawFn, arch: str, options: dict[str, Any]) -> Job:
    """Jobs with or without jitter, stragglers, unequal nodes and data loading."""
    found: Job = draw(jobs(arch, options, jitter=True))
    loading_s = draw(st.sampled_from([0.0, 0.0, 1.0, 50.0]))
    found = replace(found, workload=replace(found.workload, data_loading_s=loading_s))
    if draw(st.booleans()):
        factors = st.sampled_from([0.5, 2.0, 3.0])
        slow = [Straggler(w, draw(factors)) for w in range(found.workers) if draw(st.booleans())]
        found = replace(found, stragglers=tuple(slow))
    if draw(st.booleans()):
        links = st.sampled_from([None, Link(5.0), Link(200.0, 0.02)])
        unlike = tuple(
            NodeOverride(node, draw(links), draw(st.sampled_from([0.5, 1.0, 2.0])))
            for node in sorted(draw(st.sets(st.integers(0, 4))))
        )
        found = replace(found, cluster=replace(found.cluster, overrides=unlike))
    return found


# -- exact -----------------------------------------------------------------------------------------

Strategy = Callable[[str, dict[str, Any]], st.SearchStrategy[Job]]


def exact_jobs(
    arch: str,
    strategy: Strategy,
    *,
    count: int,
    shrink: bool = True,
    which: Callable[[dict[str, Any]], bool] = lambda options: True,
) -> list[Job]:
    """Draw jobs of an architecture; return those for which the formulas claim to be exact.

    Raises AssertionError if these differ from the simulation.
    """
    found: list[Job] = []
    stages = [hypothesis.Phase.generate, *([hypothesis.Phase.shrink] if shrink else [])]
    for options in filter(which, VARIANTS[arch]):

        @settings(examples(count), phases=stages, report_multiple_bugs=False)
        @given(drawn=strategy(arch, options))
        def check(drawn: Job) -> None:
            if exact(drawn):
                found.append(drawn)
                by_formulas = float(coarse.phases(drawn).iteration_s)
                equal(by_formulas, predict(drawn).iteration_s)

        check()
    return found


def exact(one: Job) -> bool:
    return coarse.model_of(one).exact(one)


def several(found: Sequence[Job]) -> int:
    return sum(one.workers > 1 for one in found)


@pytest.mark.sampled(3)
@pytest.mark.hypothesis
@pytest.mark.parametrize("arch", thinned(names()))
def test_exact_formulas_equal_the_simulation(arch: str) -> None:
    """On plain clusters: for enough jobs, and for several workers unless only one worker is
    exact."""
    alone = arch in ("ad_psgd", "easgd")
    count = 60 if alone else 14 if len(VARIANTS[arch]) > 9 else 32
    found = exact_jobs(arch, plain_jobs, count=count)
    assert len(found) >= 10
    assert (several(found) == 0) if alone else (several(found) >= 10)


@pytest.mark.sampled(3)
@pytest.mark.hypothesis
@pytest.mark.parametrize("arch", thinned(names(), first=1))
def test_exact_formulas_equal_the_simulation_on_any_cluster(arch: str) -> None:
    assert exact_jobs(arch, jobs, count=8)


@pytest.mark.sampled(3)
@pytest.mark.hypothesis
@pytest.mark.parametrize("arch", ["allreduce", "p2p", "ps"])
def test_formulas_are_exact_with_compression(arch: str) -> None:
    found = exact_jobs(arch, plain_jobs, count=40, which=lambda options: "compression" in options)
    assert several(found) >= 3


Error = Callable[[Quantities], Quantities]
ERRORS: dict[str, Error] = {
    "latency of one step": lambda q: replace(q, latency_s=q.latency_s / 2.0),
    "all bytes, not (n-1)/n": lambda q: replace(
        q, bandwidth_bytes_per_s=q.bandwidth_bytes_per_s * max(q.workers - 1, 1) / q.workers
    ),
    "update of one worker": lambda q: replace(
        q,
        update_per_tensor_s=q.update_per_tensor_s / q.workers,
        update_per_byte_s=q.update_per_byte_s / q.workers,
    ),
    "no optimizer": lambda q: replace(q, optimizer_s=0.0),
}


def planted(monkeypatch: pytest.MonkeyPatch, change: Callable[[Coarse], Coarse]) -> None:
    """Change the coarse model of every architecture."""
    right = coarse.model_of
    monkeypatch.setattr(coarse, "model_of", lambda one: change(right(one)))


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("arch", "error"),
    [
        ("ps", "latency of one step"),
        ("ps", "update of one worker"),
        ("p2p", "latency of one step"),
        ("allreduce", "latency of one step"),
        ("allreduce", "all bytes, not (n-1)/n"),
        ("allreduce", "no optimizer"),
        ("fsdp", "all bytes, not (n-1)/n"),
        ("fsdp", "latency of one step"),
        ("local_sgd", "all bytes, not (n-1)/n"),
        ("local_sgd", "no optimizer"),
        ("d_psgd", "latency of one step"),
        ("easgd", "latency of one step"),
        ("ad_psgd", "no optimizer"),
        ("gosgd", "no optimizer"),
    ],
)
def test_canary_an_error_in_a_formula(
    arch: str, error: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong(model: Coarse) -> Coarse:
        return replace(model, phases=lambda one, q: model.phases(one, ERRORS[error](q)))

    planted(monkeypatch, wrong)
    with pytest.raises(AssertionError):
        exact_jobs(arch, plain_jobs, count=120, shrink=False)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("arch", sorted(set(names()) - {"gosgd"}))
def test_canary_formulas_that_claim_too_much(arch: str, monkeypatch: pytest.MonkeyPatch) -> None:
    planted(monkeypatch, lambda model: replace(model, exact=lambda one: True))
    with pytest.raises(AssertionError):
        exact_jobs(arch, jobs, count=120, shrink=False)


def alike_steps(arch: str, options: dict[str, Any]) -> bool:
    """Return whether all iterations are equal."""
    return find(arch)[0].options(**options).period == 1 if "period" in options else True


def exact_with_alike_steps(arch: str, options: dict[str, Any]) -> bool:
    """Return whether formulas are exact for some number of workers, with equal iterations."""
    if not alike_steps(arch, options) or (arch, options) == ("easgd", {}):
        return False
    least = 1 + options.get("backup_workers", 0)
    return any(exact(job(WORK, cluster(), n, arch, options)) for n in range(least, 4))


def test_every_architecture_has_exact_variants() -> None:
    found = [arch for arch, options in ALL if exact_with_alike_steps(arch, options)]
    assert set(found) == set(names())
    assert len(found) >= len(ALL) / 3


@pytest.mark.sampled(3)
@third_of_variants(exact_with_alike_steps)
@few
@given(data=st.data())
def test_slow_data_sets_the_pace(arch: str, options: dict[str, Any], data: st.DataObject) -> None:
    """A loader that is slower than everything else, if formulas are exact without a loader."""
    drawn: Job = data.draw(plain_jobs(arch, options).filter(exact))
    loading_s = data.draw(st.floats(0.1, 100.0))
    slow = replace(drawn, workload=replace(drawn.workload, data_loading_s=loading_s))
    equal(float(coarse.phases(slow).iteration_s), predict(slow).iteration_s)


def without_a_server(arch: str, options: dict[str, Any]) -> bool:
    return arch not in ("ps", "easgd")


@pytest.mark.sampled(4)
@third_of_variants(without_a_server)
@few
@given(data=st.data())
def test_one_worker_without_a_server_is_a_single_device(
    arch: str, options: dict[str, Any], data: st.DataObject
) -> None:
    """On any cluster: there is no communication."""
    alone = replace(data.draw(jobs(arch, options)), workers=1)
    equal(float(coarse.phases(alone).iteration_s), alone.workload.compute_s)
    equal(predict(alone).iteration_s, alone.workload.compute_s)


# -- every job -------------------------------------------------------------------------------------

ROUNDING = 1e-12


def sound(p: Prediction, found: Phases, workers: int) -> None:
    """Check that a coarse prediction is complete and consistent."""
    assert math.isfinite(p.iteration_s)
    assert p.iteration_s > 0.0
    least = -ROUNDING * max(p.iteration_s, 1.0)
    for name, phase in found.parts.items():
        assert float(phase.seconds) >= least, name
    equal(sum(p.phases_s.values()), p.iteration_s)
    equal(p.throughput_samples_per_s, workers * p.batch_size / p.iteration_s)
    idle = p.idle_fraction
    assert len(idle.per_worker) == workers
    assert all(0.0 <= part <= 1.0 for part in (idle.mean, *idle.per_worker))
    assert idle.mean == pytest.approx(1.0 - p.compute_s / p.iteration_s, abs=1e-9)
    assert sum(idle.by_cause.values()) == pytest.approx(idle.mean, abs=1e-9)
    assert p.exposed_communication_s <= idle.mean * p.iteration_s * (1.0 + 1e-9)
    use = p.utilisation
    assert set(use.workers) == {f"worker {i}" for i in range(workers)}
    for parts in (use.workers, use.servers, use.links):
        assert all(0.0 <= part <= 1.0 + 1e-9 for part in parts.values()), parts
    assert p.staleness is not None
    assert len(p.staleness.per_worker) == workers
    shares = {int(value): share for value, share in p.staleness.histogram.items()}
    assert list(shares) == sorted(shares)
    assert sum(shares.values()) == pytest.approx(1.0, abs=1e-9)
    assert 0 <= min(shares) <= p.staleness.p50 <= p.staleness.p90 <= p.staleness.max == max(shares)
    assert p.bottleneck.resource in p.phases_s


@pytest.mark.sampled(4)
@third_of_variants()
@few
@given(data=st.data())
def test_every_job_has_a_consistent_prediction(
    arch: str, options: dict[str, Any], data: st.DataObject
) -> None:
    drawn = data.draw(any_jobs(arch, options))
    answer = predict(drawn, fidelity="coarse")
    sound(answer, coarse.phases(drawn), drawn.workers)
    again = msgspec.convert(msgspec.json.decode(answer.to_json()), Prediction)
    assert again.to_json() == answer.to_json()
    frame = answer.to_frame()
    assert list(frame["idle_fraction"]) == list(answer.idle_fraction.per_worker)


@pytest.mark.sampled(4)
@each_variant()
def test_idle_is_the_mean_over_workers(arch: str, options: dict[str, Any]) -> None:
    """For equal workers, and for workers that wait for the slowest."""
    for slow in ((), (Straggler(1, 3.0),)):
        where = cluster(20.0, 0.01, update_per_byte_s=0.001)
        unlike = job(WORK, where, 3, arch, options, stragglers=slow)
        if slow and (asynchronous(arch, options) or options.get("backup_workers")):
            continue
        idle = predict(unlike, fidelity="coarse").idle_fraction
        assert np.mean(idle.per_worker) == pytest.approx(idle.mean, abs=1e-9)


def test_canary_an_inconsistent_prediction_is_noticed() -> None:
    """Each part of the prediction is wrong in turn."""
    asked = job(WORK, cluster(20.0, 0.01), 3, "ps", {"sync": "asp"}, jitter=Jitter(0.3))
    p, found = predict(asked, fidelity="coarse"), coarse.phases(asked)
    sound(p, found, 3)
    idle, use = p.idle_fraction, p.utilisation
    assert p.staleness is not None
    shown = p.staleness.histogram
    wrong: dict[str, Any] = {
        "phases": replace(p, phases_s={**p.phases_s, "push": 0.0}),
        "iteration": replace(p, iteration_s=2.0 * p.iteration_s),
        "idle": replace(p, idle_fraction=replace(idle, mean=idle.mean * 0.99)),
        "causes": replace(p, idle_fraction=replace(idle, by_cause={})),
        "workers": replace(p, idle_fraction=replace(idle, per_worker=idle.per_worker[1:])),
        "below 0": replace(p, idle_fraction=replace(idle, per_worker=(-0.1, 0.1, 0.1))),
        "compute": replace(p, compute_s=1.01 * p.compute_s),
        "links": replace(p, utilisation=replace(use, links={"link": 1.01})),
        "histogram": replace(p, staleness=replace(p.staleness, histogram={**shown, "99": 0.1})),
        "p90": replace(p, staleness=replace(p.staleness, p90=0)),
        "bottleneck": replace(p, bottleneck=replace(p.bottleneck, resource="engine")),
    }
    for answer in wrong.values():
        with pytest.raises(AssertionError):
            sound(answer, found, 3)
    negative = replace(found, parts={**found.parts, "push": Phase(-1e-6, "network")})
    with pytest.raises(AssertionError, match="push"):
        sound(p, negative, 3)


@pytest.mark.sampled(4)
@each_variant()
def test_a_prediction_can_be_printed(
    arch: str, options: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    asked = job(WORK, cluster(20.0, 0.01), 3, arch, options, jitter=Jitter(0.2))
    answer = predict(asked, fidelity="coarse")
    verbose = click.Context(click.Command("predict"))
    verbose.meta[VERBOSITY] = 1
    with verbose:
        prediction.prediction(answer, ())
    shown = " ".join(capsys.readouterr().out.split())  # long lines wrap
    assert answer.bottleneck.text.split(";")[0] in shown
    words = {word for name in answer.phases_s for word in name.split()}
    assert all(word in shown for word in words)


# -- laws ------------------------------------------------------------------------------------------


def never_rises(seconds: Sequence[float] | np.ndarray[Any, Any], rounding: float = 1e-9) -> None:
    """Check that each value is at most the previous one."""
    values = np.asarray(seconds)
    rise = np.diff(values) / values[:-1]
    assert (rise <= rounding).all(), rise.max()


def test_canary_rising_values_are_noticed() -> None:
    never_rises([3.0, 2.0, 2.0])
    with pytest.raises(AssertionError):
        never_rises([3.0, 2.0, 2.0 + 1e-6])


def fuses(arch: str, options: dict[str, Any]) -> bool:
    """Return whether messages are fused at ticks: an op that ends earlier may just miss a tick."""
    return options.get("bucketing") == "horovod"


@pytest.mark.sampled(4)
@third_of_variants(lambda arch, options: not fuses(arch, options))
@few
@given(data=st.data())
def test_a_better_network_is_never_slower(
    arch: str, options: dict[str, Any], data: st.DataObject
) -> None:
    drawn = data.draw(jobs(arch, options, jitter=True))
    bandwidth = np.geomspace(0.1, 1e4, 40)
    never_rises(predicting_variants.evaluate(drawn, bandwidth_bytes_per_s=bandwidth).iteration_s)
    latency = np.geomspace(10.0, 1e-4, 30)
    never_rises(predicting_variants.evaluate(drawn, latency_s=[*latency, 0.0]).iteration_s)


def may_overlap(arch: str, options: dict[str, Any]) -> bool:
    """Return whether an architecture has an overlap option that does not change planned buckets."""
    found = find(arch)[0].options(**options)
    planned = options.get("bucketing") in ("mg_wfbp", "horovod")
    return hasattr(found, "overlap") and not (found.overlap and planned)


@pytest.mark.sampled(4)
@third_of_variants(may_overlap)
@few
@given(data=st.data())
def test_overlap_is_never_slower(arch: str, options: dict[str, Any], data: st.DataObject) -> None:
    """Without jitter: with it, formulas account for pushes without overlap that end apart."""
    drawn = data.draw(jobs(arch, options))
    seconds = [
        float(coarse.phases(replace(drawn, options=replace(drawn.options, overlap=on))).iteration_s)
        for on in (False, True)
    ]
    never_rises(seconds)


FALL = 0.1
"""Fraction by which one more worker may lower the formulas' throughput of asynchronous jobs if laps
overlap. Any fall is an error of mean-value analysis with overlap."""

MOST = 80
"""Largest number of workers: beyond the range of the exact recursion."""


def grid(drawn: Job, step: int = 1) -> tuple[np.ndarray[Any, Any], predicting_variants.Variants]:
    least = 1 + getattr(drawn.options, "backup_workers", 0)
    workers = np.arange(least, MOST, step)
    workers = workers[drawn.options.allows(workers)]
    return workers, predicting_variants.evaluate(drawn, workers=workers)


@pytest.mark.sampled(3)
@third_of_variants(asynchronous)
@few
@given(data=st.data())
def test_throughput_of_asynchronous_jobs_is_bounded(
    arch: str, options: dict[str, Any], data: st.DataObject
) -> None:
    """X(N) <= min(N X(1), 1/D_max), and it hardly falls. Each worker has its own node, and no core
    limits, as its capacity grows with the nodes, the server's included. A single gossiping worker
    has no peer, so two may be slower than one."""
    drawn: Job = data.draw(jobs(arch, options, jitter=True))
    apart = replace(
        drawn, cluster=replace(drawn.cluster, devices_per_node=1, core_oversubscription=None)
    )
    workers, found = grid(apart)
    rate = found.throughput_samples_per_s
    assert (rate <= workers * rate[0] * (1.0 + 1e-9)).all()
    for use in found.utilisation.values():
        assert (use <= 1.0 + 1e-9).all()
    never_rises(1.0 / rate[1 if arch in ("gosgd", "ad_psgd") else 0 :], FALL)


@few
@given(data=st.data())
def test_throughput_without_overlap_never_falls(data: st.DataObject) -> None:
    """Laps that are sums over stations; beyond EXACT workers up to what is left off there."""
    options = {"sync": "asp", "overlap": False}
    drawn: Job = replace(data.draw(plain_jobs("ps", options)), stragglers=())
    seconds = 1.0 / grid(drawn)[1].throughput_samples_per_s
    never_rises(seconds[:EXACT])
    never_rises(seconds, 1e-5)


def test_throughput_hardly_falls_where_a_server_saturates_beyond_the_recursion() -> None:
    """At most by the error of the fixed point, 1 %: at 70 workers it has a second solution."""
    times = [(9.0, 0.0, ()), (0.0, 1.0, (1.0,)), (1.0, 1.0, (1.0, 1.0))]
    layers = [WorkloadLayer(f"layer{i}", *values) for i, values in enumerate(times)]
    where = cluster(13.0, 0.0, update_per_tensor_s=0.1)
    options = {"sync": "asp", "overlap": False}
    drawn = job(Workload.of("chain", layers), where, 1, "ps", options)
    never_rises(1.0 / grid(drawn)[1].throughput_samples_per_s, 0.01)


@pytest.mark.sampled(4)
@third_of_variants(lambda arch, options: not asynchronous(arch, options))
@few
@given(data=st.data())
def test_throughput_of_synchronous_jobs_is_bounded(
    arch: str, options: dict[str, Any], data: st.DataObject
) -> None:
    """Samples/s <= N b / C."""
    drawn = data.draw(jobs(arch, options, jitter=True))
    workers, found = grid(drawn, step=7)
    work = drawn.workload
    alone = work.batch_size / (work.forward_s + work.backward_s)
    assert (found.throughput_samples_per_s <= workers * alone * (1.0 + 1e-9)).all()


def doubled(one: Job) -> Job:
    """The job with all durations doubled."""
    w, where = one.workload, one.cluster

    def link(given: Link | None) -> Link | None:
        if given is None:
            return None
        return replace(
            given,
            bandwidth_bytes_per_s=given.bandwidth_bytes_per_s / 2.0,
            latency_s=given.latency_s * 2.0,
        )

    work = replace(
        w,
        forward_s=2.0 * w.forward_s,
        backward_s=2.0 * w.backward_s,
        optimizer_s=2.0 * w.optimizer_s,
        layers=tuple(
            replace(layer, forward_s=2.0 * layer.forward_s, backward_s=2.0 * layer.backward_s)
            for layer in w.layers
        ),
    )
    server = replace(
        where.server,
        update_per_tensor_s=2.0 * where.server.update_per_tensor_s,
        update_per_byte_s=2.0 * where.server.update_per_byte_s,
    )
    times = {
        name: 2.0 * getattr(one.options, name)
        for name in one.options.__struct_fields__
        if name.endswith("_s")
    }
    nic, inside = link(where.nic), link(where.intra_node)
    slow = replace(where, nic=nic, intra_node=inside, server=server)
    return replace(one, workload=work, cluster=slow, options=replace(one.options, **times))


@pytest.mark.sampled(4)
@third_of_variants()
@few
@given(data=st.data())
def test_twice_the_durations_take_twice_as_long(
    arch: str, options: dict[str, Any], data: st.DataObject
) -> None:
    drawn = data.draw(jobs(arch, options, jitter=True))
    once, twice = (coarse.phases(one) for one in (drawn, doubled(drawn)))
    equal(float(twice.iteration_s), 2.0 * float(once.iteration_s))
    for name, seconds in twice.busy_s.items():
        equal(float(seconds), 2.0 * float(once.busy_s[name]))


def test_canary_a_duration_that_is_not_doubled() -> None:
    """Each duration in turn, in a job in which all of them matter."""
    where = cluster(20.0, 0.1, update_per_tensor_s=0.1, update_per_byte_s=0.1)
    options = {"overlap": False, "compression": "top_k", "encode_per_byte_s": 0.1}
    asked = job(WORK, where, 3, "ps", options)
    once, whole = float(coarse.phases(asked).iteration_s), doubled(asked)
    wrong = [
        replace(whole, workload=asked.workload),
        replace(whole, options=asked.options),
        replace(whole, cluster=replace(whole.cluster, nic=asked.cluster.nic)),
        replace(whole, cluster=replace(whole.cluster, server=asked.cluster.server)),
    ]
    equal(float(coarse.phases(whole).iteration_s), 2.0 * once)
    for other in wrong:
        with pytest.raises(AssertionError):
            equal(float(coarse.phases(other).iteration_s), 2.0 * once)


# -- arrays ----------------------------------------------------------------------------------------


def changed(one: Job, **axes: Any) -> Job:
    """The job with the given values of :data:`perfmodel.predicting.variants.AXES`."""
    nic, w = one.cluster.nic, one.workload
    bandwidth = float(axes.get("bandwidth_bytes_per_s", nic.bandwidth_bytes_per_s))
    nic = replace(
        nic,
        bandwidth_bytes_per_s=bandwidth,
        latency_s=float(axes.get("latency_s", nic.latency_s)),
    )
    batch = int(axes.get("batch_size", w.batch_size))
    times = batch / w.batch_size
    layers = tuple(
        replace(layer, forward_s=times * layer.forward_s, backward_s=times * layer.backward_s)
        for layer in w.layers
    )
    work = replace(
        w,
        batch_size=batch,
        forward_s=times * w.forward_s,
        backward_s=times * w.backward_s,
        layers=layers,
    )
    options = one.options
    if "servers" in axes:
        options = replace(options, servers=int(axes["servers"]))
    return replace(
        one,
        workload=work,
        cluster=replace(one.cluster, nic=nic),
        options=options,
        workers=int(axes.get("workers", one.workers)),
    )


def same_as_scalars(
    found: predicting_variants.Variants, one: Job, axes: Mapping[str, Any], rounding: float = 1e-12
) -> None:
    """Check that every element equals the result of a job with those values."""
    shape = np.broadcast_shapes(*(np.shape(values) for values in axes.values()))
    grids = {name: np.broadcast_to(values, shape) for name, values in axes.items()}
    assert found.iteration_s.shape == shape
    for where in np.ndindex(shape):
        single = changed(one, **{name: values[where] for name, values in grids.items()})
        alone = coarse.phases(single)
        seconds = float(alone.iteration_s)
        equal(float(found.iteration_s[where]), seconds, rounding)
        samples_per_s = single.workers * single.workload.batch_size / seconds
        equal(float(found.throughput_samples_per_s[where]), samples_per_s, rounding)
        assert set(found.phases_s) == set(alone.parts)
        for name, phase in alone.parts.items():
            off = abs(float(found.phases_s[name][where]) - float(phase.seconds))
            assert off <= rounding * seconds, (name, where)
        for name, busy_s in alone.busy_s.items():
            use = float(busy_s) / seconds
            assert float(found.utilisation[name][where]) == pytest.approx(use, abs=rounding)
        idle = 1.0 - float(alone.compute_s) / seconds
        assert float(found.idle_fraction[where]) == pytest.approx(idle, abs=rounding)
        assert float(found.staleness[where]) == pytest.approx(
            float(alone.staleness), rel=rounding, abs=rounding
        )


def points(arch: str, options: dict[str, Any], seed: int) -> dict[str, Any]:
    """Three random values of every axis; workers for whom the recursion is exact."""
    rng = np.random.default_rng(seed)
    least = 1 + options.get("backup_workers", 0)
    axes: dict[str, Any] = {
        "workers": np.array([whole_groups(n, options) for n in rng.integers(least, EXACT, 3)]),
        "bandwidth_bytes_per_s": rng.uniform(1.0, 100.0, 3),
        "latency_s": rng.choice([0.0, 0.1, 1.0], 3),
        "batch_size": rng.integers(1, 9, 3),
    }
    if hasattr(find(arch)[0].options, "servers"):
        axes["servers"] = rng.integers(1, 4, 3)
    return axes


@pytest.mark.sampled(4)
@third_of_variants()
@few
@given(data=st.data(), seed=st.integers(0, 2**32))
def test_arrays_equal_scalars(
    arch: str, options: dict[str, Any], data: st.DataObject, seed: int
) -> None:
    drawn = data.draw(jobs(arch, options, jitter=True))
    axes = points(arch, options, seed)
    same_as_scalars(predicting_variants.evaluate(drawn, **axes), drawn, axes)


@pytest.mark.sampled(4)
@third_of_variants()
@few
@given(data=st.data())
def test_batch_sizes_of_workers_that_differ(
    arch: str, options: dict[str, Any], data: st.DataObject
) -> None:
    """Up to the tolerance of the fixed point of several classes."""
    drawn = data.draw(any_jobs(arch, options))
    axes = {"batch_size": np.arange(1, 5)}
    same_as_scalars(predicting_variants.evaluate(drawn, **axes), drawn, axes, 1e-8)


def test_canary_an_element_of_another_job() -> None:
    asked = job(WORK, cluster(20.0, 0.01), 3, "ring")
    axes = {"workers": np.array([2, 3, 4])}
    found = predicting_variants.evaluate(asked, **axes)
    same_as_scalars(found, asked, axes)
    for wrong in (
        replace(found, iteration_s=found.iteration_s[::-1]),
        replace(found, phases_s={**found.phases_s, "compute": 1.001 * found.phases_s["compute"]}),
        replace(found, idle_fraction=found.idle_fraction + 1e-6),
        replace(found, staleness=found.staleness + 1.0),
        replace(found, utilisation={"link of each node": found.idle_fraction}),
    ):
        with pytest.raises(AssertionError):
            same_as_scalars(wrong, asked, axes)


@pytest.mark.parametrize("arch", ["ring", "ps", "asp"])
def test_axes_broadcast(arch: str) -> None:
    asked = job(WORK, cluster(20.0, 0.01, update_per_byte_s=0.001), 3, arch)
    axes = {
        "workers": np.array([[1], [2], [40]]),
        "bandwidth_bytes_per_s": np.array([1.0, 20.0]),
        "latency_s": 0.5,
    }
    same_as_scalars(predicting_variants.evaluate(asked, **axes), asked, axes)


def test_a_number_gives_a_number() -> None:
    asked = job(WORK, cluster(20.0), 3, "ring")
    found = predicting_variants.evaluate(asked, workers=5)
    assert found.iteration_s.shape == ()
    equal(float(found.iteration_s), float(coarse.phases(replace(asked, workers=5)).iteration_s))
    equal(
        float(predicting_variants.evaluate(asked).iteration_s),
        float(coarse.phases(asked).iteration_s),
    )


@pytest.mark.parametrize("arch", ["ring", "ps"])
def test_arrays_of_more_than_one_block(arch: str) -> None:
    """Every element is at its place, in the first block and in the last; servers vary."""
    asked = job(WORK, cluster(20.0), 3, arch)
    size = 2 * predicting_variants.BLOCK + 5
    rng = np.random.default_rng(1)
    axes = {"bandwidth_bytes_per_s": rng.uniform(1.0, 100.0, size)}
    if arch == "ps":
        axes["servers"] = rng.integers(1, 4, size)
    found = predicting_variants.evaluate(asked, **axes)
    some = [
        0,
        1,
        predicting_variants.BLOCK - 1,
        predicting_variants.BLOCK,
        2 * predicting_variants.BLOCK,
        size - 1,
    ]
    for k in some:
        single = changed(asked, **{name: values[k] for name, values in axes.items()})
        equal(float(found.iteration_s[k]), float(coarse.phases(single).iteration_s), 1e-12)


@pytest.mark.parametrize("sharpness", [1.0, 2.5, math.inf])
def test_sharpness_of_arrays(sharpness: float) -> None:
    asked = job(WORK, cluster(20.0), 3, "ring")
    batch = np.arange(1, 5)
    found = predicting_variants.evaluate(asked, batch_size=batch, sharpness=sharpness)
    for size, seconds in zip(batch, found.iteration_s, strict=True):
        alone = coarse.phases(changed(asked, batch_size=size), sharpness=sharpness)
        equal(float(seconds), float(alone.iteration_s), 1e-12)


def test_the_whole_model_by_hand() -> None:
    """F + max(G, T) with infinity, F + G + T with 1; a straggler takes three times as long."""
    options = {"bucketing": "one"}
    all_reduce_s = 2.0 * 2.0 / 3.0 * 100.0 / 4.0
    for slow, factor in (((), 1.0), ((Straggler(0, 3.0),), 3.0)):
        asked = job(WORK, cluster(4.0), 3, "ring", options, stragglers=slow)
        hidden, added = (coarse.phases(asked, sharpness=p).iteration_s for p in (math.inf, 1.0))
        equal(float(hidden), 4.0 * factor + max(6.0 * factor, all_reduce_s))
        equal(float(added), 4.0 * factor + 6.0 * factor + all_reduce_s)


def per_configuration_s(call: Callable[[], Any], size: int, times: int) -> float:
    """Shortest time per configuration of several runs with ``size`` configurations."""
    call()
    best = math.inf
    for _ in range(times):
        begin = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - begin)
    return best / size


@pytest.mark.parametrize("arch", ["ring", "ps", "asp"])
def test_arrays_are_a_hundred_times_faster(arch: str) -> None:
    """Per configuration, measured in the same run."""
    asked = job(WORK, cluster(20.0, 0.01, update_per_byte_s=0.001), 3, arch)
    workers, bandwidth = np.arange(1, 65)[:, None], np.geomspace(1.0, 100.0, 256)
    many = per_configuration_s(
        lambda: predicting_variants.evaluate(
            asked, workers=workers, bandwidth_bytes_per_s=bandwidth
        ),
        workers.size * bandwidth.size,
        3,
    )
    single = per_configuration_s(
        lambda: predicting_variants.evaluate(asked, workers=64, bandwidth_bytes_per_s=20.0), 1, 20
    )
    assert single >= 100.0 * many, (single, many)


MISTAKES: dict[str, tuple[str, dict[str, Any], str]] = {
    "negative": (
        "ring",
        {"bandwidth_bytes_per_s": [1.0, -2.0]},
        "bandwidth_bytes_per_s: expected numbers above 0, got -2",
    ),
    "zero": ("ring", {"batch_size": 0}, "batch_size: expected whole numbers of at least 1, got 0"),
    "nan": (
        "ring",
        {"latency_s": [0.0, math.nan]},
        "latency_s: expected numbers of at least 0, got nan",
    ),
    "infinite": (
        "ring",
        {"bandwidth_bytes_per_s": math.inf},
        "bandwidth_bytes_per_s: expected numbers above 0, got inf",
    ),
    "fraction": (
        "ring",
        {"workers": [2, 2.5]},
        "workers: expected whole numbers of at least 1 and at most 200000, got 2.5",
    ),
    "too many": (
        "ring",
        {"workers": 1e300},
        "workers: expected whole numbers of at least 1 and at most 200000, got 1e+300",
    ),
    "words": ("ring", {"workers": "two"}, "workers: expected numbers, got 'two'"),
    "shapes": (
        "ring",
        {"workers": [1, 2], "latency_s": [0.1, 0.2, 0.3]},
        "evaluate: shapes do not broadcast: workers (2,), latency_s (3,)",
    ),
    "no servers": ("ring", {"servers": 2}, "servers: allreduce has none"),
    "sharpness": ("ring", {"sharpness": 0.5}, "sharpness: must be at least 1, got 0.5"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_one_clear_line(name: str) -> None:
    arch, axes, text = MISTAKES[name]
    with pytest.raises(InputError) as caught:
        predicting_variants.evaluate(job(WORK, cluster(20.0), 3, arch), **axes)
    assert str(caught.value) == text


def test_workers_that_differ_cannot_be_varied() -> None:
    unlike = job(WORK, cluster(20.0), 3, "ring", stragglers=[Straggler(1, 2.0)])
    for axis in ("workers", "bandwidth_bytes_per_s", "latency_s"):
        with pytest.raises(InputError) as caught:
            predicting_variants.evaluate(unlike, **{axis: 2})
        assert str(caught.value) == f"{axis}: cannot be varied where workers or links differ"


# -- fidelity --------------------------------------------------------------------------------------


def test_an_unknown_fidelity_is_refused() -> None:
    with pytest.raises(InputError) as caught:
        predict(job(WORK, cluster(), 2, "ring"), fidelity="corse")  # type: ignore[arg-type]
    assert str(caught.value) == (
        "unknown fidelity 'corse'; did you mean 'coarse'? (known: auto, coarse, fine)"
    )


@pytest.mark.parametrize(
    ("tolerance", "text"),
    [
        (0.0, "tolerance: must be more than 0, got 0"),
        (1.5, "tolerance: must be at most 1, got 1.5"),
        (math.nan, "tolerance: expected a finite number, got nan"),
    ],
)
def test_a_tolerance_out_of_range_is_refused(tolerance: float, text: str) -> None:
    with pytest.raises(InputError) as caught:
        predict(job(WORK, cluster(), 2, "ring"), fidelity="auto", tolerance=tolerance)
    assert str(caught.value) == text


def test_an_architecture_without_formulas_has_no_coarse_route() -> None:
    bare = replace(find("ps")[0], coarse=None)
    with pytest.raises(InputError) as caught:
        coarse.model_of(replace(job(WORK, cluster(), 2, "ps"), architecture=bare))
    assert str(caught.value) == "fidelity: ps has no coarse model (allowed: fine)"


EXACTLY = job(WORK, cluster(20.0, 0.01), 3, "ring")
ROUGHLY = job(WORK, cluster(20.0, 0.01), 3, "asp")
LACKING = job(WORK, cluster(20.0), 3, "ps", {"transmission": "priority"})


def test_auto_is_coarse_if_formulas_are_exact() -> None:
    answer = predict(EXACTLY, fidelity="auto", tolerance=0.001)
    assert answer.fidelity == "coarse"
    assert answer.error_band is not None
    assert answer.error_band.p90 == 0.0
    assert answer.notes[-1] == ("coarse: it equals the simulation for this job; tolerance 0.1%")


def test_auto_is_within_the_requested_tolerance() -> None:
    band = coarse.error_band(ROUGHLY)
    assert band.p90 is not None
    wide = predict(ROUGHLY, fidelity="auto", tolerance=band.p90)
    assert wide.fidelity == "coarse"
    assert wide.error_band == band
    assert wide.notes[-1] == f"coarse: {band.text}; tolerance {band.p90:.1%}"
    narrow = predict(ROUGHLY, fidelity="auto", tolerance=band.p90 * 0.99)
    assert narrow.fidelity == "fine"
    assert narrow.error_band is None
    assert narrow.notes[-1].startswith(f"fine, because coarse is not accurate enough: {band.text}")
    assert narrow.to_chrome_trace()["traceEvents"]


def test_auto_is_fine_if_formulas_leave_something_out() -> None:
    answer = predict(LACKING, fidelity="auto", tolerance=1.0)
    assert answer.fidelity == "fine"
    assert answer.notes[-1] == (
        "fine, because coarse is not accurate enough: it leaves out transmission=priority, so its "
        "error is unknown; tolerance 100.0%"
    )
    assert coarse.error_band(LACKING).p90 is None


def test_fine_is_the_default() -> None:
    assert predict(EXACTLY).fidelity == "fine"
    coarsely = predict(LACKING, fidelity="coarse")
    assert coarsely.fidelity == "coarse"
    assert coarsely.error_band == coarse.error_band(LACKING)


@each_variant()
def test_bands_are_declared(arch: str, options: dict[str, Any]) -> None:
    found = coarse.error_band(job(WORK, cluster(20.0), 3, arch, options, jitter=Jitter(0.2)))
    if found.p90 is None:
        assert "leaves out" in found.text
    else:
        assert found.median is not None
        assert 0.0 <= found.median <= found.p90 < 10.0


# -- staleness, and unequal workers ---------------------------------------------------------------

ASP = [{"sync": "asp"}, {"sync": "asp", "overlap": False}]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("options", ASP, ids=["overlap", "phases"])
@pytest.mark.parametrize(("workers", "cv"), [(4, 0.1), (8, 0.3), (8, 0.6)])
def test_staleness_of_asynchronous_workers(
    options: dict[str, Any], workers: int, cv: float
) -> None:
    """N - 1 on average, with the spread of the simulation."""
    where = cluster(100.0, 0.01, update_per_byte_s=0.001)
    asked = job(WORK, where, workers, "ps", options, jitter=Jitter(cv), start="staggered")
    found, simulated = predict(asked, fidelity="coarse").staleness, predict(asked).staleness
    assert found is not None
    assert simulated is not None
    assert found.mean == pytest.approx(workers - 1.0)
    assert simulated.mean == pytest.approx(workers - 1.0, rel=0.01)
    assert abs(found.p90 - simulated.p90) <= 3
    mean = sum(int(value) * share for value, share in found.histogram.items())
    assert mean == pytest.approx(workers - 1.0, rel=0.01)


def test_staleness_without_jitter_is_constant() -> None:
    found = predict(job(WORK, cluster(100.0), 5, "asp"), fidelity="coarse").staleness
    assert found is not None
    assert found.histogram == {"4": 1.0}
    assert (found.p50, found.p90, found.max) == (4, 4, 4)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("options", ASP, ids=["overlap", "phases"])
@pytest.mark.parametrize("workers", [4, 6])
def test_a_slow_worker_among_others(options: dict[str, Any], workers: int) -> None:
    """It is three times slower: each worker's staleness and idleness are close to the
    simulation."""
    where = cluster(100.0, 0.01, update_per_byte_s=0.001)
    asked = job(
        WORK, where, workers, "ps", options, stragglers=[Straggler(1, 3.0)], start="staggered"
    )
    found, simulated = predict(asked, fidelity="coarse"), predict(asked, rel_ci=0.005)
    assert found.staleness is not None
    assert simulated.staleness is not None
    assert found.staleness.per_worker == pytest.approx(simulated.staleness.per_worker, rel=0.05)
    assert found.staleness.per_worker[1] > 2.0 * found.staleness.per_worker[0]
    assert found.staleness.mean == pytest.approx(workers - 1.0)
    idle = found.idle_fraction
    assert idle.per_worker == pytest.approx(simulated.idle_fraction.per_worker, abs=0.025)
    assert idle.per_worker[1] < idle.per_worker[0]
    assert (found.staleness.p50, found.staleness.p90) == (
        simulated.staleness.p50,
        simulated.staleness.p90,
    )


@third_of_variants()
def test_idle_fractions_of_unequal_workers_add_up(arch: str, options: dict[str, Any]) -> None:
    """By worker, by cause and in all, with a worker that is three times slower."""
    asked = job(WORK, cluster(100.0, 0.01), 4, arch, options, stragglers=[Straggler(1, 3.0)])
    found = predict(asked, fidelity="coarse")
    idle = found.idle_fraction
    assert sum(idle.per_worker) / 4.0 == pytest.approx(idle.mean, abs=1e-6)
    assert sum(idle.by_cause.values()) == pytest.approx(idle.mean, abs=1e-6)
    assert [*found.utilisation.workers.values()] == pytest.approx(
        [1 - one for one in idle.per_worker]
    )


def test_canary_averaging_unequal_workers_is_noticed() -> None:
    """Replacing all workers by a mean worker would be caught."""
    asked = job(WORK, cluster(100.0, 0.01), 4, "asp", stragglers=[Straggler(1, 3.0)])
    found = predict(asked, fidelity="coarse")
    assert found.staleness is not None
    staleness, idle = (found.staleness.mean,) * 4, (found.idle_fraction.mean,) * 4
    assert found.staleness.per_worker != pytest.approx(staleness, rel=0.05)
    assert found.idle_fraction.per_worker != pytest.approx(idle, abs=0.025)


def test_backup_workers_do_not_wait_for_a_straggler() -> None:
    """Of three workers one is three times slower: with a backup worker the others set the pace."""
    where = cluster(1e9)
    late = (Straggler(1, 3.0),)
    waiting, backed = (
        coarse.phases(job(WORK, where, 3, "ps", {"backup_workers": b}, stragglers=late))
        for b in (0, 1)
    )
    compute_s = WORK.forward_s + WORK.backward_s
    equal(float(waiting.iteration_s), 3.0 * compute_s, 1e-6)
    equal(float(backed.iteration_s), 3.0 / (1.0 + 1.0 + 1.0 / 3.0) * compute_s, 1e-6)
