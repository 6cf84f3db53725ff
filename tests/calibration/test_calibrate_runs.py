"""Fits to synthetic past runs: which parameters are recovered, with which intervals, and which are
not."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from perfmodel import InputError, IntraNode, Link, api, predict
from perfmodel.base import files
from perfmodel.base.provenance import Source
from perfmodel.calibration import Observation, RunsFit, fit_runs, read_runs, regression
from perfmodel.calibration.runs import parameters
from perfmodel.calibration.runs.parameters import groups_of, on_job, with_overlap
from perfmodel.cli import main
from perfmodel.inputs.cluster import Cluster, NodeOverride, Server, read_cluster
from perfmodel.inputs.job import Jitter, Job, Straggler
from perfmodel.inputs.profile import SCHEMA, Profile, read_profile
from perfmodel.inputs.workload import Workload, WorkloadLayer
from perfmodel.predicting import coarse
from perfmodel.results.prediction import Interval
from tests import jobs as small
from tests.settings import thinned

MADE = Source("exact", "made for a test")
CLUSTER = Cluster(
    name="lab",
    nic=Link(1.25e9, 25e-6, 0.94),
    server=Server(update_per_tensor_s=1e-4, update_per_byte_s=1e-10),
    source=MADE,
)
TRUTH = {"latency_s": 3e-4, "efficiency": 0.6, "compute_factor": 1.2}
MANY = (1, 2, 4, 8, 12, 16)
NOISE = 0.02


def chain(name: str, layers: int, tensor_bytes: float, forward_s: float) -> Workload:
    """Layers of growing size, each with a large and a small tensor."""
    return Workload.of(
        name,
        [
            WorkloadLayer(f"layer{i}", forward_s * i, 2.0 * forward_s * i, (tensor_bytes * i, 4e3))
            for i in range(1, layers + 1)
        ],
        batch_size=32,
        optimizer_s=2e-3,
    )


DEEP, WIDE = chain("deep", 10, 2e6, 1e-3), chain("wide", 5, 3e7, 7e-3)


def made(
    truth: Mapping[str, float],
    *,
    overlap: bool | None = None,
    noise: float = NOISE,
    seed: int = 0,
    archs: Sequence[str] = ("ring", "ps"),
    models: Sequence[Workload] = (DEEP, WIDE),
    workers: Sequence[int] = MANY,
    cluster: Cluster = CLUSTER,
) -> list[Observation]:
    """Runs made by the coarse model plus noise; the fit does not see the true parameters."""
    random = np.random.default_rng(seed)
    found = []
    for work in models:
        for arch in archs:
            for n in workers:
                job = api.make_job(workload=work, cluster=cluster, arch=arch, workers=n)
                step_s = float(coarse.phases(on_job(with_overlap(job, overlap), truth)).iteration_s)
                step_s *= float(np.exp(noise * random.standard_normal()))
                found.append(Observation(job, step_s, place=f"line {len(found) + 2}"))
    return found


def spoilt(runs: Sequence[Observation]) -> list[Observation]:
    """The same runs with two outliers."""
    found = list(runs)
    for i, factor in ((5, 3.5), (16, 4.0)):
        found[i] = msgspec.structs.replace(found[i], step_s=found[i].step_s * factor)
    return found


@functools.cache
def fitted() -> RunsFit:
    """The fit of the true parameters to 24 runs."""
    return fit_runs(made(TRUTH), fit=list(TRUTH))


@functools.cache
def chosen() -> RunsFit:
    """The fit to 24 runs, which chooses among all parameters that have an effect."""
    return fit_runs(made(TRUTH))


def inside(fit: RunsFit, truth: Mapping[str, float]) -> dict[str, bool]:
    return {name: fit[name].low <= value <= fit[name].high for name, value in truth.items()}


NODES = msgspec.structs.replace(
    CLUSTER, devices_per_node=4, intra_node=IntraNode(6e9, 1e-5, 0.9, kind="per_device")
)
"""Four devices on each node."""


@pytest.mark.parametrize("arch", ["ring", "ps"])
@pytest.mark.parametrize("counts", [(1, 2, 4, 8), (2, 5, 6)])
def test_runs_on_shared_nodes_are_evaluated_together(arch: str, counts: Sequence[int]) -> None:
    values = {"slowdown_per_neighbour": 0.1, "inside_efficiency": 0.4, "compute_factor": 1.2}
    jobs = [api.make_job(workload=DEEP, cluster=NODES, arch=arch, workers=n) for n in counts]
    found = parameters.step_s(groups_of(jobs), {n: np.array([v]) for n, v in values.items()}, 1)
    real = [float(coarse.phases(on_job(job, values)).iteration_s) for job in jobs]
    assert found[0] == pytest.approx(real, rel=1e-9)


def placed(truth: Mapping[str, float], **more: Any) -> RunsFit:
    counts = (1, 2, 3, 4, 8, 16)
    return fit_runs(made(truth, cluster=NODES, archs=("ring",), workers=counts, **more))


@pytest.mark.family("fits of made runs")
@pytest.mark.slow
def test_contention_between_devices_of_a_node_is_recovered() -> None:
    truth = {"slowdown_per_neighbour": 0.08, "inside_efficiency": 0.3, "efficiency": 0.6}
    fit = placed(truth, noise=0.005)
    for name, value in truth.items():
        assert fit.values[name] == pytest.approx(value, rel=0.15)
    where = fit.cluster(NODES)
    assert where.slowdown_per_neighbour == fit.values["slowdown_per_neighbour"]
    assert where.intra_node is not None
    assert where.intra_node.efficiency == fit.values["inside_efficiency"]


@pytest.mark.family("fits of made runs")
@pytest.mark.slow
def test_parameters_that_do_not_help_held_out_runs_are_not_fitted() -> None:
    fit = placed({"efficiency": 0.6})
    assert "slowdown_per_neighbour" not in fit.values
    assert "does not improve" in fit["slowdown_per_neighbour"].note
    assert "handover_per_byte_s" not in [e.name for e in fit.estimates]


class AloneError(Exception):
    """A run was evaluated on its own."""


@pytest.mark.parametrize("arch", ["ring", "ps", "asp"])
def test_runs_are_evaluated_together_for_every_parameter(
    arch: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One evaluation of all runs at all points, not one for each, which takes ten times as long."""

    def alone(*_: object) -> float:
        raise AloneError

    monkeypatch.setattr(parameters, "_alone_s", alone)
    groups = groups_of([run.job for run in made({}, archs=(arch,), cluster=NODES)])
    for name in parameters.PARAMETERS:
        if name != parameters.SLOWDOWN:
            assert parameters.step_s(groups, {name: np.array([0.1, 0.2])}, 2).shape == (2, 12)


def test_a_handover_counts_each_tensor_and_byte_of_a_layer() -> None:
    """One worker of one node and no link: the step is the sum of its passes and of the handovers
    of 3 tensors with 14 MB in all."""
    work = Workload.of(
        "two", [WorkloadLayer("a", 1.0, 2.0, (2e6, 4e6)), WorkloadLayer("b", 3.0, 4.0, (8e6,))],
        batch_size=1, optimizer_s=0.0,
    )  # fmt: skip
    job = api.make_job(workload=work, cluster=CLUSTER, arch="ring", workers=2)
    plain = parameters.step_s(groups_of([job]), {"handover_per_byte_s": np.zeros(1)}, 1)
    values = {"handover_per_tensor_s": np.array([0.1]), "compute_factor": np.array([2.0])}
    more = parameters.step_s(groups_of([job]), values, 1)
    without = parameters.step_s(groups_of([job]), {"compute_factor": np.array([2.0])}, 1)
    assert plain[0, 0] == pytest.approx(float(coarse.phases(job).iteration_s))
    # the last message is sent after the last layer's backward pass in any case
    assert more[0, 0] - without[0, 0] == pytest.approx(0.3)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", ["efficiency", "latency_s", "handover_per_byte_s", "overlap"])
@pytest.mark.parametrize("jitter", [None, Jitter(0.1)])
def test_a_fit_that_identifies_nothing_keeps_every_value(name: str, jitter: Jitter | None) -> None:
    """Equal runs whose steps differ by a factor of a hundred say nothing about their network."""
    job = api.make_job(workload=DEEP, cluster=CLUSTER, arch="ring", workers=4, jitter=jitter)
    runs = [Observation(job, step_s) for step_s in (0.02, 2.0, 0.05, 0.8, 0.2, 0.1)]
    fit = fit_runs(runs, fit=[name])
    assert fit.values == {}
    assert fit.of_cluster.parameters == ()
    assert all(e.status == "not identified" and e.value == e.was for e in fit.estimates)
    assert fit.cluster(CLUSTER).nic == CLUSTER.nic
    assert fit.held_out is not None


@pytest.mark.family("fits of made runs")
@pytest.mark.slow
def test_handover_costs_are_fitted_on_request() -> None:
    truth = {"handover_per_byte_s": 2e-10}
    found = fit_runs(made(truth, archs=("ring",), noise=0.002), fit=list(truth))
    assert found.values["handover_per_byte_s"] == pytest.approx(2e-10, rel=0.1)
    with pytest.raises(InputError, match="no run has several linked devices"):
        fit_runs(made(truth), fit=["inside_efficiency"])


# step time


def differences(job_of: Any, values: Mapping[str, float]) -> float:
    """Largest error of the fast evaluation over several numbers of workers."""
    every: list[Job] = [job_of(n) for n in (2, 3, 4)]
    found = parameters.step_s(groups_of(every), {n: np.array([v]) for n, v in values.items()}, 1)
    real = [float(coarse.phases(on_job(job, values)).iteration_s) for job in every]
    return float(np.abs(found[0] / real - 1.0).max())


VALUES = {
    "latency_s": 0.02, "efficiency": 0.5, "update_per_tensor_s": 0.2, "update_per_byte_s": 0.002,
    "compute_factor": 1.3, "jitter": 0.1,
}  # fmt: skip
SMALL = small.workload([1.0, 2.0, 0.5], [2.0, 3.0, 1.0], [40.0, 7.0, 100.0], optimizer_s=0.3)
HANDOVER = {"handover_per_tensor_s": 0.04, "handover_per_byte_s": 0.003}
COSTS = {"update_per_tensor_s": 0.1, "update_per_byte_s": 0.001}


@pytest.mark.sampled(6)
@small.third_of_variants()
def test_evaluating_many_runs_together_changes_no_step_time(
    arch: str, options: dict[str, Any]
) -> None:
    shared = {"devices_per_node": 2, "intra_node": Link(500.0, 0.001), "core_oversubscription": 3.0}
    for more in ({}, shared):
        where = small.cluster(13.0, 0.01, **COSTS, **more)
        for values in (VALUES, VALUES | HANDOVER, HANDOVER):
            assert (
                differences(lambda n, c=where: small.job(SMALL, c, n, arch, options), values) < 1e-9
            )


def test_evaluating_runs_with_unequal_workers_together_changes_no_step_time() -> None:
    where = small.cluster(13.0, 0.01, overrides=(NodeOverride(1, Link(5.0, 0.2, 0.7), 0.5),))
    late = (Straggler(1, 2.0),)
    for arch in ("ps", "allreduce", "asp"):
        assert differences(lambda n, a=arch: small.job(SMALL, where, n, a), VALUES) < 1e-9
        plain = small.cluster(13.0, 0.01)
        assert (
            differences(
                lambda n, a=arch, c=plain: small.job(SMALL, c, n, a, stragglers=late), VALUES
            )
            < 1e-9
        )


def test_a_given_jitter_is_kept() -> None:
    job = small.job(SMALL, small.cluster(13.0), 4, "ring", jitter=Jitter(0.2, "gamma"))
    assert on_job(job, {"jitter": 0.5}).jitter == Jitter(0.2, "gamma")
    assert differences(lambda n: msgspec.structs.replace(job, workers=n), VALUES) < 1e-9


@pytest.mark.parametrize("name", VALUES)
def test_canary_each_parameter_matters(name: str) -> None:
    def job_of(workers: int) -> Job:
        return small.job(SMALL, small.cluster(13.0, 0.01, **COSTS), workers, "ps")

    others = {n: v for n, v in VALUES.items() if n != name}
    every = [job_of(n) for n in (2, 3, 4)]
    without = parameters.step_s(groups_of(every), {n: np.array([v]) for n, v in others.items()}, 1)
    real = [float(coarse.phases(on_job(job, VALUES)).iteration_s) for job in every]
    assert np.abs(without[0] / real - 1.0).max() > 1e-6  # a thousand times the tolerance


# the truth


@pytest.mark.parametrize("fit_of", thinned([fitted, chosen]), ids=["given", "chosen"])
def test_the_true_parameters_are_recovered(fit_of: Callable[[], RunsFit]) -> None:
    fit = fit_of()
    assert inside(fit, TRUTH) == dict.fromkeys(TRUTH, True)
    assert fit["efficiency"].value == pytest.approx(0.6, rel=0.05)
    assert fit["compute_factor"].value == pytest.approx(1.2, rel=0.05)
    assert fit["efficiency"].status == fit["compute_factor"].status == "identified"
    assert fit.residuals.median < NOISE
    assert 0.5 * NOISE < fit.run_spread < 2.0 * NOISE


@pytest.mark.family("fits of made runs")
@pytest.mark.slow
def test_runs_without_noise_give_exact_parameters() -> None:
    fit = fit_runs(made(TRUTH, noise=0.0), fit=list(TRUTH))
    for name, value in TRUTH.items():
        assert fit[name].value == pytest.approx(value, rel=0.03)
    assert fit.residuals.worst < 0.01


@pytest.mark.family("many draws")
@pytest.mark.slow
def test_intervals_have_their_stated_coverage() -> None:
    centres = {"latency_s": 25e-6, "efficiency": 0.94, "compute_factor": 1.0}
    priors = {p.name: p for p in parameters.parameters_of([made(centres)[0].job])}
    random = np.random.default_rng(3)
    held = []
    for seed in range(20):
        truth = {}
        for name, value in centres.items():
            p = priors[name]
            truth[name] = float(p.at(p.coordinate(value) + p.spread * random.standard_normal()))
        fit = fit_runs(made(truth, noise=0.03, seed=seed, archs=("ring",)), fit=list(truth))
        held += inside(fit, truth).values()
    assert 0.75 <= np.mean(held) <= 0.98  # 60 intervals of 90 %


@pytest.mark.family("fits of made runs")
@pytest.mark.slow
def test_two_outliers_among_24_runs_do_not_move_the_fit() -> None:
    runs = made(TRUTH)
    fit, right = fit_runs(spoilt(runs), fit=list(TRUTH)), fit_runs(runs, fit=list(TRUTH))
    for name in ("efficiency", "compute_factor"):
        assert inside(fit, TRUTH)[name]
        assert fit[name].value == pytest.approx(right[name].value, rel=0.03)
    noted = [note for note in fit.notes if "unlike the other runs" in note]
    assert [note.split(" took ")[0] for note in noted] == ["line 7", "line 18"]
    assert not any("unlike" in note for note in right.notes)


@pytest.mark.family("fits of made runs")
@pytest.mark.slow
def test_canary_outliers_move_a_least_squares_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(regression, "TOLERATED", 1e6)
    fit = fit_runs(spoilt(made(TRUTH)), fit=list(TRUTH))
    moved = [abs(fit[name].value / TRUTH[name] - 1.0) for name in ("efficiency", "compute_factor")]
    assert max(moved) > 0.05


@pytest.mark.family("fits of made runs")
@pytest.mark.slow
@pytest.mark.sampled(2)
@pytest.mark.parametrize("overlap", [True, False])
def test_the_overlap_is_recovered(overlap: bool) -> None:
    some = made(TRUTH, overlap=overlap, workers=(1, 4, 8, 16))
    fit = fit_runs(some, fit=[*TRUTH, "overlap"])
    assert fit.overlap is not None
    assert (fit.overlap.value, fit.overlap.was, fit.overlap.status) == (overlap, True, "identified")
    assert any("--no-overlap" in note for note in fit.notes) == (not overlap)
    assert inside(fit, TRUTH) == dict.fromkeys(TRUTH, True)
    job = fit.apply(made(TRUTH)[0].job)
    assert job.options.overlap is overlap


def test_an_overlap_without_effect_is_unchanged() -> None:
    fit = fit_runs(made(TRUTH, workers=(1,), archs=("ring",)), fit=["compute_factor", "overlap"])
    assert fit.overlap is not None
    assert (fit.overlap.value, fit.overlap.status) == (True, "not identified")


def test_an_overlap_given_by_the_runs_is_used() -> None:
    job = small.job(SMALL, small.cluster(13.0), 4, "ring", {"overlap": False})
    fit = fit_runs([Observation(job, 30.0)] * 4)
    assert fit.overlap is None
    assert fit.apply(job).options.overlap is False
    with pytest.raises(InputError, match=r"^fit: overlap: all runs specify it$"):
        fit_runs([Observation(job, 30.0)], fit=["overlap"])


@pytest.mark.family("fits of made runs")
@pytest.mark.slow
def test_jitter_is_recovered() -> None:
    truth = {"jitter": 0.2, "compute_factor": 1.1}
    fit = fit_runs(made(truth, archs=("ring",), noise=0.01), fit=list(truth))
    assert inside(fit, truth) == dict.fromkeys(truth, True)
    assert fit["jitter"].status == "identified"
    assert any(f"--jitter {fit['jitter'].value:.3g}" in note for note in fit.notes)
    jitter = fit.apply(made(truth)[0].job).jitter
    assert jitter is not None
    assert jitter.cv == fit["jitter"].value


@pytest.mark.family("fits of made runs")
@pytest.mark.slow
def test_server_costs_are_recovered() -> None:
    truth = {"update_per_tensor_s": 2e-3, "update_per_byte_s": 2e-9}
    fit = fit_runs(made(truth, archs=("ps", "asp")), fit=list(truth))
    assert inside(fit, truth) == dict.fromkeys(truth, True)
    server = fit.cluster(CLUSTER).server
    assert server.update_per_tensor_s == fit["update_per_tensor_s"].value


# not identifiable from the runs


@pytest.mark.family("fits of made runs")
@pytest.mark.slow
def test_parameters_without_effect_keep_their_value() -> None:
    fit = fit_runs(made(TRUTH, archs=("ring",)))
    for name in ("update_per_tensor_s", "update_per_byte_s"):
        found = fit[name]
        assert (found.status, found.value) == ("not identified", found.was)
        assert found.note == "no run changes by 1% or more"
    assert fit.cluster(CLUSTER).server == CLUSTER.server
    with pytest.raises(InputError, match=r"^fit: update_per_byte_s: no run changes by 1% or more$"):
        fit_runs(made(TRUTH, archs=("ring",)), fit=["update_per_byte_s"])


def test_unidentifiable_parameters_keep_their_value_with_a_wide_interval() -> None:
    # one long message: its startup is lost in the noise of its transfer
    fit = fit_runs(
        made({"efficiency": 0.5}, archs=("ring",), models=(WIDE,), workers=(2, 4), noise=0.05),
        fit=["latency_s", "efficiency"],
    )
    found = fit["latency_s"]
    assert found.status == "not identified"
    assert found.value == CLUSTER.nic.latency_s
    assert found.high > 10.0 * found.low
    assert fit.cluster(CLUSTER).nic.latency_s == CLUSTER.nic.latency_s
    assert "latency_s" not in fit.values


@pytest.mark.slow
def test_parameters_identifiable_only_together_are_reported() -> None:
    # one model: a cost per tensor cannot be told from a cost per byte
    truth = {"update_per_tensor_s": 3e-3, "update_per_byte_s": 1e-9}
    before = Server(update_per_tensor_s=1e-3, update_per_byte_s=1e-9)
    where = msgspec.structs.replace(CLUSTER, server=before)

    def fit_of(*models: Workload) -> RunsFit:
        runs = made(truth, archs=("ps",), models=models, noise=0.01, cluster=where)
        return fit_runs(runs, fit=list(truth))

    fit, both = fit_of(DEEP), fit_of(DEEP, WIDE)
    tensor, byte = (fit[name] for name in truth)
    assert (tensor.status, tensor.note) == ("confounded", "only together with update_per_byte_s")
    assert inside(fit, truth) == dict.fromkeys(truth, True)
    assert tensor.high > 3.0 * tensor.low
    sizes = DEEP.tensors, DEEP.gradient_bytes
    real = sum(n * v for n, v in zip(sizes, truth.values(), strict=True))
    found = sum(n * e.value for n, e in zip(sizes, (tensor, byte), strict=True))
    assert found == pytest.approx(real, rel=0.1)
    assert {both[name].status for name in truth} == {"identified"}
    assert inside(both, truth) == dict.fromkeys(truth, True)


# alternatives


@pytest.mark.family("fits of made runs")
@pytest.mark.slow
def test_held_out_errors_exceed_residuals() -> None:
    fit = fit_runs(made(TRUTH, archs=("ring",), models=(DEEP,), noise=0.05))
    assert fit.held_out is not None
    inner, outer = ([abs(e) for e in es] for es in (
        [r.error for r in fit.runs], [r.held_out or 0.0 for r in fit.runs],
    ))  # fmt: skip
    assert sum(outer) > 1.1 * sum(inner)
    assert fit.held_out.worst == pytest.approx(max(outer))
    assert fit.residuals.worst == pytest.approx(max(inner))


@pytest.mark.slow
def test_held_out_errors_reveal_overfitting() -> None:
    first = fitted().held_out
    second = fit_runs(made(TRUTH, noise=0.5), fit=list(TRUTH)).held_out
    assert first is not None
    assert second is not None
    assert first.median < 0.05
    assert second.median > 0.1


def test_with_too_few_runs_none_is_held_out() -> None:
    fit = fit_runs(made(TRUTH, archs=("ring",), models=(DEEP,), workers=(8,)), fit=["efficiency"])
    assert fit.held_out is None
    assert [r.held_out for r in fit.runs] == [None]


def test_prediction_intervals_cover_held_out_runs() -> None:
    fit = fitted()
    held = []
    for run in made(TRUTH, seed=1, workers=(3, 6, 10, 14)):
        found = predict(fit.apply(run.job), fidelity="coarse")
        assert found.interval is not None
        low_s, high_s = found.interval.iteration_s
        held.append(low_s <= run.step_s <= high_s)
        assert found.interval.parts.model < 0.1
        assert "fit" in found.interval.text
    assert sum(held) >= 13  # of 16


def test_jobs_that_differ_in_workers_are_evaluated_together() -> None:
    """A fit would take as many times as long as it has runs; other options are other groups."""
    given = {"workload": DEEP, "cluster": CLUSTER, "arch": "ring"}
    jobs = [api.make_job(**given, workers=count) for count in (2, 4, 8)]
    assert [group.workers.tolist() for group in groups_of(jobs)] == [[2, 4, 8]]
    other = api.make_job(**given, workers=4, options={"overlap": False})
    assert [group.workers.tolist() for group in groups_of([*jobs, other])] == [[2, 4, 8], [4]]


@pytest.mark.slow
def test_extrapolation_widens_the_interval_and_is_noted() -> None:
    fit = fit_runs(made(TRUTH, workers=(1, 4, 16), noise=0.0), fit=["efficiency"])

    def interval(**changes: Any) -> Interval:
        given = {"workload": DEEP, "cluster": CLUSTER, "arch": "ring", "workers": 8} | changes
        found = predict(fit.apply(api.make_job(**given))).interval
        assert found is not None
        return found

    assert interval().parts.extrapolation == 0.0
    for changes, said in (
        ({"workers": 64}, "workers, nodes"),
        ({"bandwidth_bytes_per_s": 1e10}, "bandwidth"),
        ({"workload": msgspec.structs.replace(DEEP, batch_size=4096)}, "batch size"),
    ):
        assert interval(**changes).parts.extrapolation > 0.0
        assert f"outside the range of the fitted runs: {said}" in interval(**changes).text


def test_runs_must_be_from_one_cluster() -> None:
    slow = msgspec.structs.replace(CLUSTER, nic=Link(1e8, 25e-6, 0.94))
    runs = made(TRUTH, workers=(4,)) + made(TRUTH, workers=(4,), cluster=slow)
    assert fit_runs(runs, fit=["efficiency"]).ranges["bandwidth_bytes_per_s"] == (1e8, 1.25e9)
    far = msgspec.structs.replace(CLUSTER, nic=Link(1.25e9, 1e-3, 0.94))
    mixed = made(TRUTH, workers=(4,)) + made(TRUTH, workers=(4,), cluster=far)
    with pytest.raises(InputError, match="not on the cluster of line 2"):
        fit_runs(mixed)
    with pytest.raises(InputError, match="runs: needs at least one"):
        fit_runs([])


@pytest.mark.slow
def test_the_same_runs_give_the_same_fit() -> None:
    runs = made(TRUTH, archs=("ring",), models=(DEEP,))
    assert fit_runs(runs).to_json() == fit_runs(runs).to_json()


# the table and the command


PROFILE = {
    "schema": SCHEMA,
    "name": "deep",
    "source": msgspec.to_builtins(MADE),
    "layers": [
        {"name": a.name, "tensors": [{"name": f"{a.name}.{i}", "bytes": size} for i, size in
                                     enumerate(reversed(a.tensor_bytes))]}
        for a in DEEP.layers
    ],
    "timings": [
        {
            "device": "board", "batch_size": 32, "source": msgspec.to_builtins(MADE),
            "forward_s": [a.forward_s for a in DEEP.layers],
            "backward_s": [a.backward_s for a in DEEP.layers], "optimizer_s": DEEP.optimizer_s,
        },
        {"device": "other", "batch_size": 32, "step_s": 1.0, "source": msgspec.to_builtins(MADE)},
    ],
}  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with deep.json, lab.json and runs.csv."""
    monkeypatch.chdir(tmp_path)
    Path("deep.json").write_text(json.dumps(PROFILE))
    Path("lab.json").write_bytes(msgspec.json.encode(CLUSTER))
    lines = ["workers,arch,batch_size,servers,step_s,samples_per_s,host"]
    for run in made(TRUTH, models=(DEEP,)):
        ps = run.job.architecture.name == "ps"
        rate = run.job.workers * 32 / run.step_s
        step = f"{run.step_s * 1e3:.6g} ms," if ps else f",{rate:.6g}"
        lines.append(f"{run.job.workers},{'ps,32,1' if ps else 'ring,,'},{step},lab{len(lines)}")
    Path("runs.csv").write_text("\n".join(lines))
    return tmp_path


def call(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], text: str
) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of a command."""
    monkeypatch.setattr("sys.argv", ["perfmodel", *text.split()])
    with pytest.raises(SystemExit) as end:
        main()
    out = capsys.readouterr()
    return int(end.value.code or 0), out.out, out.err


COMMAND = "calibrate runs runs.csv --workload deep.json --device board --cluster lab.json"


@pytest.mark.slow
@pytest.mark.draws
def test_the_command_plots_estimates_and_errors(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib", reason="needs the extra 'plot'")
    code, _, err = call(monkeypatch, capsys, f"{COMMAND} --fit efficiency --plot fit.png")
    assert (code, err.splitlines()[0]) == (0, "wrote fit.png")
    assert (folder / "fit.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_the_command_writes_files_that_predict_can_read(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = call(
        monkeypatch, capsys, f"{COMMAND} --output found.json --workload-output slow.json --json"
    )
    assert (code, err.splitlines()) == (
        0, ["wrote found.json", "wrote slow.json", "unused columns: host"],
    )  # fmt: skip
    found = json.loads(out)
    assert (found["schema"], found["kind"]) == ("perfmodel.calibration/1", "runs")
    values = {e["name"]: e["value"] for e in found["estimates"]}
    assert values["efficiency"] == pytest.approx(0.6, rel=0.05)
    cluster, profile = read_cluster("found.json"), read_profile("slow.json")
    assert cluster.nic == Link(1.25e9, values["latency_s"], values["efficiency"])
    assert "workers 1 to 16" in cluster.source.text
    assert "12 runs" in cluster.source.text
    factor = values["compute_factor"]
    assert profile.timings[0].total_s == pytest.approx(factor * DEEP.compute_s)
    assert profile.timings[1].step_s == 1.0  # another device
    job = "predict --workload {} --device board --cluster {} --arch ring --workers 12 --json "
    code, out, _ = call(
        monkeypatch, capsys, job.format("slow.json", "found.json") + "--fidelity coarse"
    )
    assert code == 0
    measured = next(
        r.step_s for r in made(TRUTH, models=(DEEP,))
        if (r.job.workers, r.job.architecture.name) == (12, "allreduce")
    )  # fmt: skip
    assert json.loads(out)["iteration_s"] == pytest.approx(measured, rel=0.06)
    assert sorted(p.name for p in folder.iterdir()) == [
        "deep.json", "found.json", "lab.json", "runs.csv", "slow.json",
    ]  # fmt: skip


@pytest.mark.slow
def test_the_command_prints_a_table(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = call(monkeypatch, capsys, f"{COMMAND} --fit latency_s,efficiency,overlap")
    assert code == 0
    lines = {line.split("  ")[0]: line for line in out.splitlines()}
    assert lines["latency"].split()[-2:] == ["25", "us"]
    assert "0.94" in lines["efficiency"]
    assert "times as likely as the opposite" in lines["overlap"]
    assert {"of the fit", "held out"} <= set(lines)
    code, out, _ = call(monkeypatch, capsys, f"{COMMAND} --fit efficiency,latency_s")
    assert "overlap" not in out
    assert "compute factor" not in out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (f"{COMMAND} --fit effciency", "unknown parameter 'effciency'; did you mean 'efficiency'?"),
        (f"{COMMAND} --model resnet50", "--model and --workload: give only one of them"),
        ("calibrate runs runs.csv", "runs.csv: line 2: model or workload: given neither in"),
        (f"{COMMAND} --output no/where.json", "no/where.json: cannot write"),
        (f"{COMMAND} --output a.json --workload-output a.json", "both are a.json"),
        (f"{COMMAND} --fit efficiency --workload-output a.json",
         "compute_factor: the runs do not determine it"),
        (COMMAND.replace("runs.csv", "none.csv"), "none.csv: cannot read"),
    ],
)  # fmt: skip
def test_mistakes_are_one_line_and_write_nothing(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: str,
    said: str,
) -> None:
    before = sorted(folder.iterdir())
    code, out, err = call(monkeypatch, capsys, arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert said in err
    assert sorted(folder.iterdir()) == before


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("workers,arch\n4,ps\n", "t.csv: column 'step_s' is missing (columns: workers, arch)"),
        ("workers,step_s\n4,1\n", "t.csv: column 'arch' is missing"),
        ("workers,arch,stepp_s\n4,ps,1\n",
         "t.csv: column 'step_s' is missing; did you mean 'stepp_s'?"),
        ("workers,arch,step_s,server\n4,ps,1,1\n",
         "t.csv: unknown column 'server'; did you mean 'servers'?"),
        ("workers,arch,step_s\n4,ps,\n",
         "t.csv: line 2: needs one of step_s, iteration_s, samples_per_s, steps_per_s, got none"),
        ("workers,arch,step_s,samples_per_s\n4,ps,1,2\n",
         "t.csv: line 2: needs one of step_s, iteration_s, samples_per_s, steps_per_s, got step"),
        ("workers,arch,step_s\n4,ps,1\n4,psx,1\n", "t.csv: line 3: unknown architecture 'psx'"),
        ("workers,arch,step_s\n4,,1\n", "t.csv: line 2: arch: is empty"),
        ("workers,arch,step_s\n0,ps,1\n", "t.csv: line 2: workers: must be at least 1, got 0"),
        ("workers,arch,step_s\n4,ps,0\n", "t.csv: line 2: step_s: must be more than 0, got 0"),
        ("workers,arch,step_s,servers\n4,ring,1,2\n",
         "t.csv: line 2: option 'servers' does not apply to allreduce"),
        ("workers,arch,step_s,sync\n4,ps,1,bps\n", "t.csv: line 2: option sync of ps: expected"),
        ("workers,arch,step_s,global_batch_size\n3,ps,1,64\n",
         "t.csv: line 2: global_batch_size: 64: needs an empty batch_size, and must be a multiple"),
        ("workers,arch,step_s,model\n3,ps,1,resnet51\n", "t.csv: line 2: unknown model 'resnet51'"),
    ],
)  # fmt: skip
def test_invalid_lines_of_a_run_table_are_refused(folder: Path, text: str, said: str) -> None:
    Path("t.csv").write_text(text)
    with pytest.raises(InputError) as error:
        read_runs("t.csv", cluster=CLUSTER, profile=files.read("deep.json", Profile, SCHEMA))
    assert str(error.value).startswith(said)


def test_a_table_describes_its_runs(folder: Path) -> None:
    Path("t.csv").write_text(
        "workers,arch,workload,global_batch_size,bandwidth_bytes_per_s,overlap,jitter,iteration_s,"
        "spread_fraction\n4,ring,deep.json,128,1Gbps,FALSE,0.1,200 ms,0.01\n"
        "2,ps,deep.json,,,,,0.5,\n"
    )
    found = read_runs("t.csv", cluster=CLUSTER)
    first, second = found.runs
    assert (first.step_s, first.spread_fraction, first.place) == (0.2, 0.01, "line 2")
    assert first.job.workload.batch_size == 32
    assert first.job.cluster.nic.bandwidth_bytes_per_s == 1.25e8
    assert first.job.options.overlap is False
    assert first.job.jitter == Jitter(0.1)
    where = msgspec.structs.replace(CLUSTER, losses="none")  # they are in what is fitted
    assert (second.job.workers, second.job.cluster, second.spread_fraction) == (2, where, 0.0)
    assert [p.name for p in found.profiles] == ["deep"]
    assert found.unused == ()


@pytest.mark.slow
def test_runs_of_a_group_are_held_out_together() -> None:
    """Four runs of 8 workers took half as long again: each reveals that of the others, unless all
    are left out."""
    runs = made(TRUTH, archs=("ring",), noise=0.0, workers=(1, 2, 4, 8))
    late = msgspec.structs.replace(runs[-1], step_s=1.5 * runs[-1].step_s)
    names = ["efficiency", "latency_s"]
    errors = []
    for group in ("", "twins"):
        twins = [msgspec.structs.replace(late, group=group) for _ in range(4)]
        errors.append(fit_runs([*runs[:-1], *twins], fit=names).runs[-1].held_out)
    apart, together = errors
    assert apart is not None
    assert together is not None
    assert together == pytest.approx(1 / 1.5 - 1, abs=0.02)
    assert apart > together + 0.05
