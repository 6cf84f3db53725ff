"""Advice: gains are predicted, flags make the change, and nothing uncertain is recommended."""

from __future__ import annotations

import functools
import json
import math
import shlex
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from perfmodel import Advice, advise, make_job, predict
from perfmodel.base.provenance import Source
from perfmodel.base.uncertainty import WIDTH, Uncertainty
from perfmodel.cli import cli
from perfmodel.inputs.cluster import Cluster, Collective, Link, Piece
from perfmodel.inputs.job import Job, Straggler
from perfmodel.predicting import gains
from perfmodel.predicting.gains import gain
from perfmodel.results.prediction import Prediction
from perfmodel.studies.rules import RULES
from tests.settings import thinned

SLOW: dict[str, Any] = {
    "model": "vgg16", "device": "v100", "workers": 8, "cluster": "ethernet-10g",
}  # fmt: skip
WORDS = ["--model", "vgg16", "--device", "v100", "--workers", "8", "--cluster", "ethernet-10g"]
EIGHT_SERVERS = {**SLOW, "model": "resnet50", "arch": "bsp", "options": {"servers": 8}}
JOBS: dict[str, dict[str, Any]] = {
    "servers": {**SLOW, "arch": "ps", "fidelity": "auto"},
    "overlap": {**SLOW, "arch": "ring", "options": {"overlap": False, "bucketing": "layer"}},
    "buckets": {**SLOW, "model": "resnet50", "arch": "ring", "options": {"bucketing": "layer"},
                "latency_s": 2e-3},
    "jitter": {**EIGHT_SERVERS, "jitter": 0.3},
    "straggler": {**EIGHT_SERVERS, "stragglers": (Straggler(1, 3.0),)},
    "averages": {**SLOW, "arch": "local_sgd", "options": {"period": 2}},
    "gossip": {**SLOW, "arch": "gosgd", "options": {"probability": 1.0}},
    "pipeline": {"model": "gpt2-small", "device": "a100", "workers": 2, "arch": "ring",
                 "pipeline": 4, "batch_size": 8, "recompute": "full"},
    "alone": {"model": "resnet50", "device": "v100", "workers": 1, "arch": "ring"},
}  # fmt: skip


@functools.cache
def advised(name: str) -> Advice:
    """The advice for a job, once for all tests."""
    return advise(**({"fidelity": "coarse"} | JOBS[name]))


by_job = pytest.mark.parametrize("name", thinned(JOBS, 9, first=2))


@pytest.mark.slow
def test_every_rule_applies_to_some_job() -> None:
    result = [advised(name) for name in JOBS]
    message = {each.rule for a in result for each in (*a.recommended, *a.unsure)}
    assert message == {rule.name for rule in RULES}
    assert any(a.unsure for a in result)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("arch", ["ps", "ring", "local_sgd", "easgd"])
def test_flags_give_the_stated_gain(arch: str) -> None:
    answer = advise(**SLOW, arch=arch)
    some = [each for each in (*answer.recommended, *answer.unsure) if each.flags]
    assert some
    words = ["predict", *WORDS, "--arch", arch]
    for each in some:
        result = CliRunner().invoke(
            cli, [*words, *shlex.split(each.flags), "--fidelity", "auto", "--json"]
        )
        assert result.exit_code == 0, result.output
        then = json.loads(result.stdout)["throughput_samples_per_s"]
        before = answer.prediction.throughput_samples_per_s
        assert then / before == pytest.approx(each.gain.ratio, rel=1e-12)


@by_job
def test_recommended_changes_are_certain_to_help(name: str) -> None:
    result = advised(name)
    assert all(each.gain.interval[0] > 1.0 for each in result.recommended)
    assert all(each.gain.interval[0] <= 1.0 < each.gain.ratio for each in result.unsure)


@by_job
def test_a_change_is_the_best_of_its_rule(name: str) -> None:
    result = advised(name)
    for each in (*result.recommended, *result.unsure):
        assert all(other.gain.ratio <= each.gain.ratio for other in each.others)


def test_a_worker_alone_needs_a_faster_device() -> None:
    (only,) = advised("alone").recommended
    assert only.change == "devices twice as fast"
    assert only.gain.ratio == pytest.approx(2.0)
    assert advised("alone").hardware is only


def test_staleness_is_named_as_the_price() -> None:
    (each,) = [r for r in advised("jitter").recommended if r.rule == "synchronisation"]
    assert each.flags == "--arch asp"
    assert each.price == "mean staleness is 7 instead of 0 updates"
    assert each.prediction.staleness is not None
    assert each.prediction.staleness.mean == pytest.approx(7.0, abs=0.01)


@pytest.mark.slow
def test_changes_that_exceed_memory_are_left_out() -> None:
    """A step of 256 samples allocates 16.6 of 17.2 GB, and reserves more; one of 128 half."""
    half, full = (advise(**SLOW, arch="ps", batch_size=batch) for batch in (64, 128))
    assert "batch size" in {each.rule for each in (*half.recommended, *half.unsure)}
    assert "batch size" not in {each.rule for each in (*full.recommended, *full.unsure)}


def test_measured_collectives_are_not_scaled_with_the_bandwidth() -> None:
    slow = Collective(
        operation="all_reduce", pieces=(Piece(0.05, 1e-8),), ranks=(2, 8), bytes=(1.0, 1e9)
    )
    where = Cluster(
        name="measured", nic=Link(1e9, 1e-5), source=Source("measured", "here"), collectives=(slow,)
    )
    result = advise(model="resnet50", device="v100", arch="ring", workers=8, cluster=where)
    (hardware,) = [each for each in (*result.recommended, *result.unsure) if each.hardware]
    names = {hardware.change, *(other.change for other in hardware.others)}
    assert names == {"devices twice as fast"}


def answered(spread: Uncertainty, rate: float) -> tuple[Job, Prediction]:
    job = make_job(model="resnet18", workers=2)
    p = predict(job)
    assert p.interval is not None
    interval = msgspec.structs.replace(
        p.interval, iteration_s=spread.interval(p.iteration_s), parts=spread
    )
    return job, msgspec.structs.replace(p, throughput_samples_per_s=rate, interval=interval)


def test_errors_shared_by_both_predictions_cancel() -> None:
    """Nominal links: variance 2 m^2 + 2 (1 - rho) r^2 of two equal uncertainties."""
    spread = Uncertainty(measurement=0.03, model=0.2)
    before, after = answered(spread, 100.0), answered(spread, 150.0)
    result = gain(*before, *after)
    sd = math.sqrt(2.0 * 0.03**2 + 2.0 * (1.0 - gains.SHARED["nominal"]) * 0.2**2)
    assert result.ratio == 1.5
    assert result.interval[1] / 1.5 == pytest.approx(math.exp(WIDTH * sd), rel=1e-6)
    assert result.probability == pytest.approx(0.5 * math.erfc(-math.log(1.5) / sd / math.sqrt(2)))


def test_canary_independent_errors_make_gains_less_certain(monkeypatch: pytest.MonkeyPatch) -> None:
    spread = Uncertainty(measurement=0.03, model=0.2)
    before, after = answered(spread, 100.0), answered(spread, 150.0)
    known = gain(*before, *after)
    monkeypatch.setattr(gains, "SHARED", {"nominal": 0.0, "measured": 0.0})
    assert gain(*before, *after).interval[0] < known.interval[0]


def test_no_gain_has_probability_one_half() -> None:
    same = answered(Uncertainty(model=0.1), 100.0)
    assert gain(*same, *same).probability == 0.5
    exact = answered(Uncertainty(), 100.0)
    assert gain(*exact, *exact) == gains.Gain(1.0, (1.0, 1.0), 0.5)


def test_the_command_prints_the_library_result() -> None:
    words = ["advise", *WORDS, "--fidelity", "coarse"]
    result = advise(**SLOW, fidelity="coarse")
    printed = CliRunner().invoke(cli, [*words, "--json"])
    assert json.loads(printed.stdout) == json.loads(result.to_json())
    text = CliRunner().invoke(cli, words).stdout
    for each in result.recommended:
        assert f"{each.change}: {each.gain.ratio:.2f} times as fast" in text
        assert each.source in text
    assert list(result.to_frame()["recommended"]) == [each["recommended"] for each in result.rows()]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--model", "resnet5"], "resnet50"),
        (["--model", "resnet50", "--workers", "0"], "workers"),
        (["--model", "resnet50", "--arch", "ps", "--option", "period=3"], "period"),
        (["--model", "resnet50", "--tolerance", "5%", "--fidelity", "fine"], "--tolerance"),
    ],
)
def test_bad_input_is_one_line(
    words: list[str], said: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from perfmodel.cli import main

    monkeypatch.setattr("sys.argv", ["perfmodel", "advise", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    error = capfd.readouterr().err
    assert ended.value.code == 2
    assert error.startswith("perfmodel: error:")
    assert error.count("\n") == 1
    assert said in error
