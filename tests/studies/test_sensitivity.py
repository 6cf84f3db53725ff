"""Sensitivity to assumptions: each alternative is the job predicted with that value."""

from __future__ import annotations

import math
from typing import Any

import pytest

from perfmodel import InputError, Sensitivity, make_job, predict, sensitivity
from perfmodel.architectures.registry import names
from perfmodel.catalogue import catalogue
from perfmodel.results.effects import Effect

JOB: dict[str, Any] = {
    "model": "vgg16", "device": "v100", "arch": "ps", "workers": 8, "cluster": "ethernet-10g",
}  # fmt: skip


@pytest.fixture(scope="module")
def found() -> Sensitivity:
    return sensitivity(**JOB)


def effect(of: Sensitivity, name: str) -> Effect:
    return next(each for each in of.effects if each.assumption.name == name)


def rate(**changes: Any) -> float:
    return predict(make_job(**{**JOB, **changes}), fidelity="coarse").throughput_samples_per_s


CASES: dict[str, list[tuple[Any, dict[str, Any]]]] = {
    "bandwidth": [
        (0.625e9, {"bandwidth_bytes_per_s": 0.625e9}),
        (2.5e9, {"bandwidth_bytes_per_s": 2.5e9}),
    ],
    "latency": [(12.5e-6, {"latency_s": 12.5e-6}), (50e-6, {"latency_s": 50e-6})],
    "batch_size": [(8, {"batch_size": 8}), (32, {"batch_size": 32})],
    "servers": [(2, {"options": {"servers": 2}})],
    "overlap": [(False, {"options": {"overlap": False}})],
    "sync": [("asp", {"options": {"sync": "asp"}}), ("ssp", {"options": {"sync": "ssp"}})],
}


@pytest.mark.parametrize("name", CASES)
def test_an_alternative_equals_the_job_with_that_value(found: Sensitivity, name: str) -> None:
    alternatives = effect(found, name).alternatives
    assert sorted(alternative.value for alternative in alternatives) == [
        value for value, _ in CASES[name]
    ]
    now = found.prediction.throughput_samples_per_s
    for value, changes in CASES[name]:
        one = next(alternative for alternative in alternatives if alternative.value == value)
        assert one.throughput_samples_per_s == pytest.approx(rate(**changes), rel=1e-9)
        assert one.ratio == pytest.approx(rate(**changes) / now, rel=1e-9)


def test_canary_another_value_has_another_throughput(found: Sensitivity) -> None:
    low, _ = effect(found, "bandwidth").alternatives
    assert low.throughput_samples_per_s != pytest.approx(rate(bandwidth_bytes_per_s=0.5e9), rel=0.1)


def test_the_largest_effect_comes_first(found: Sensitivity) -> None:
    swings = [each.swing for each in found.effects]
    assert swings == sorted(swings, reverse=True)
    ratios = [alternative.ratio for alternative in found.effects[0].alternatives]
    assert swings[0] == max(abs(math.log(ratio)) for ratio in ratios) > 0.0


def test_every_assumption_has_an_alternative_or_a_reason(found: Sensitivity) -> None:
    message = {each.assumption for each in found.effects}
    assert {a.name for a in message - set(found.prediction.assumptions)} == {"compute time"}
    assert message >= set(found.prediction.assumptions)
    assert all(bool(each.alternatives) != bool(each.unvaried) for each in found.effects)
    assert effect(found, "jitter").unvaried == "cannot be halved or doubled"
    rows = found.rows()
    assert len(rows) == sum(max(len(each.alternatives), 1) for each in found.effects)
    assert len(found.to_frame()) == len(rows)


def test_a_default_cluster_is_an_assumption_without_alternatives() -> None:
    given = {name: value for name, value in JOB.items() if name != "cluster"}
    assert effect(sensitivity(**given), "cluster").unvaried == "a name or a rule"


def test_an_efficiency_is_at_most_one(found: Sensitivity) -> None:
    values = [alternative.value for alternative in effect(found, "efficiency").alternatives]
    assert values == [pytest.approx(0.9415 / 2.0), 1.0]


def test_a_given_cluster_is_not_an_assumption() -> None:
    where = catalogue.cluster_or_file("ethernet-10g")
    given = {**JOB, "cluster": where}
    assert not [e for e in sensitivity(**given).effects if e.assumption.name == "bandwidth"]


def test_assumptions_of_islands_are_those_of_their_devices() -> None:
    given = {**JOB, "workers": 2, "island_devices": 4}
    result = sensitivity(**given)
    for name, argument in (("bandwidth", "bandwidth_bytes_per_s"), ("batch_size", "batch_size")):
        for alternative in effect(result, name).alternatives:
            job = make_job(**given, **{argument: alternative.value})
            same = predict(job, fidelity="coarse").throughput_samples_per_s
            assert alternative.throughput_samples_per_s == pytest.approx(same, rel=1e-9)


@pytest.mark.parametrize("arch", names())
def test_options_have_allowed_values_only(arch: str) -> None:
    """A default that is one of a few numbers, such as the stage of sharding, is not doubled."""
    result = sensitivity(model="resnet18", arch=arch, workers=4)
    for each in result.effects:
        if each.assumption.source.startswith("default of "):
            for other in each.alternatives:
                options = {each.assumption.name: other.value}
                assert rate(model="resnet18", device=None, cluster=None, arch=arch, workers=4,
                            options=options) > 0.0  # fmt: skip
    if arch == "fsdp":
        assert [each.value for each in effect(result, "stage").alternatives] == [1, 2]


def test_given_values_are_not_assumptions() -> None:
    result = sensitivity(**JOB, bandwidth_bytes_per_s=1e9, options={"servers": 4})
    names = {each.assumption.name for each in result.effects}
    assert {"bandwidth", "servers"}.isdisjoint(names)
    low, _ = effect(result, "latency").alternatives
    same = rate(bandwidth_bytes_per_s=1e9, latency_s=12.5e-6, options={"servers": 4})
    assert low.throughput_samples_per_s == pytest.approx(same, rel=1e-9)


def test_an_impossible_alternative_is_left_out_with_its_reason() -> None:
    result = sensitivity(**JOB, options={"compression": "dgc"})
    switch = effect(result, "local_aggregation")
    assert switch.alternatives == ()
    assert switch.unvaried.startswith("True: local_aggregation: cannot be combined")


@pytest.mark.slow
def test_simulations_are_compared_with_a_simulation() -> None:
    small = {"model": "resnet18", "arch": "ps", "workers": 2}
    result = sensitivity(**small, fidelity="fine")
    assert result.prediction.fidelity == "fine"
    switched = effect(result, "overlap").alternatives[0]
    again = predict(make_job(**small, options={"overlap": False}))
    assert switched.throughput_samples_per_s == again.throughput_samples_per_s


def test_an_estimated_compute_time_is_an_assumption_too() -> None:
    result = sensitivity(model="resnet18", device="a100", arch="ring", workers=1)
    half, double = effect(result, "compute time").alternatives
    assert (half.ratio, double.ratio) == (pytest.approx(2.0), pytest.approx(0.5))
    measured = sensitivity(model="resnet18", arch="ring", workers=1)
    assert not [e for e in measured.effects if e.assumption.name == "compute time"]


def test_an_impossible_job_is_refused() -> None:
    with pytest.raises(InputError, match="unknown model"):
        sensitivity(model="nothing")
