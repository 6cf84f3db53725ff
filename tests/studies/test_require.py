"""Inverse questions: the aim is just met at the value found, and no longer beside it."""

from __future__ import annotations

import json
from typing import Any

import pytest
import sympy
from click.testing import CliRunner

from perfmodel import Aim, InputError, make_job, predict, require
from perfmodel.cli import cli, main
from perfmodel.results.prediction import Prediction
from perfmodel.studies.aims import QUANTITIES
from perfmodel.studies.formulas import symbols
from tests.jobs import ETHERNET, cluster, workload

WHOLE = {"overlap": False, "algorithm": "ring", "bucketing": "one"}
V100: dict[str, Any] = {"model": "resnet50", "device": "v100"}


def answered(variable: str, value: float, **arguments: Any) -> Prediction:
    options = {**arguments.pop("options", {})}
    name = {"bandwidth": "bandwidth_bytes_per_s", "batch-size": "batch_size"}.get(
        variable, variable
    )
    if name in ("workers", "bandwidth_bytes_per_s", "batch_size", "latency_s"):
        arguments[name] = value
    else:
        options[name] = value
    return predict(make_job(**arguments, options=options), fidelity="coarse", dataset_size=10_000)


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("variable", "aim", "step", "arguments"),
    [
        ("bandwidth", "idle<0.1", 1e-6, {**V100, "arch": "ring", "workers": 16}),
        ("bandwidth", "throughput>4000", 1e-6, {**V100, "arch": "bsp", "workers": 16,
                                                "options": {"servers": 16}}),
        pytest.param("workers", "idle<0.5", 1, {**V100, "arch": "ps"}, marks=pytest.mark.slow),
        pytest.param("workers", "time<5s", 1, {**V100, "arch": "ring"}, marks=pytest.mark.slow),
        pytest.param(
            *("servers", "idle<0.3", 1, {**V100, "arch": "bsp", "workers": 8}),
            marks=pytest.mark.slow,
        ),
        ("batch-size", "idle<0.1", 1, {**V100, "arch": "ring", "workers": 8,
                                       "cluster": "ethernet-10g"}),
        ("period", "idle<0.02", 1, {**V100, "model": "vgg16", "arch": "local_sgd", "workers": 8}),
        pytest.param("workers", "staleness<5", 1, {**V100, "arch": "asp"}, marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_the_aim_is_just_met(
    variable: str, aim: str, step: float, arguments: dict[str, Any]
) -> None:
    """One step inside the aim is met, one step outside it is not."""
    result = require(variable, aim, dataset_size=10_000, **arguments)
    value, wanted = result.values.value, Aim.parse(aim)
    assert value is not None
    sign = -1 if result.values.holds == "up to" else 1
    inside, outside = (
        value + sign * step * n if step == 1 else value * (1 + sign * step * n) for n in (0.5, -1)
    )
    inside = value if step == 1 else inside
    kind = int if step == 1 else float

    def met(at: float) -> bool:
        p = answered(variable, kind(at), **arguments)
        return wanted.met(QUANTITIES[wanted.quantity].of(p, 1.0)[0])

    assert met(inside)
    assert not met(outside)


def test_a_ring_by_hand() -> None:
    """A ring of 4 sends 2 * 3 / 4 of 8 bytes after 6 s of computing: 12 s a step at 2 bytes/s."""
    where = cluster(1.0)
    work = workload([2.0], [4.0], [8.0])
    result = require(
        "bandwidth", "step<12", workload=work, cluster=where, workers=4, arch="allreduce",
        options=WHOLE,
    )  # fmt: skip
    assert result.values.holds == "from"
    assert result.values.low == pytest.approx(2.0, rel=1e-6)
    assert not result.met_now
    assert result.prediction.iteration_s == pytest.approx(12.0)
    idle = require(
        "bandwidth", "idle<0.2", workload=work, cluster=where, workers=4, arch="allreduce",
        options=WHOLE,
    )  # fmt: skip
    assert idle.values.low == pytest.approx(12.0 / 1.5)


def test_a_formula_gives_the_same_value() -> None:
    arguments = {**V100, "arch": "allreduce", "workers": 16, "options": WHOLE, "cluster": ETHERNET}
    result = require("bandwidth", "scaling>0.9", **arguments)
    assert result.formula is not None
    left, right = result.formula.split(" = ")
    assert left == "B"
    job = make_job(**arguments)
    step_s = job.workload.compute_s / 0.9
    names = {str(symbol): symbol for symbol in symbols().values()}
    expression = sympy.sympify(right, locals={**names, "T": sympy.Symbol("T", positive=True)})
    work, nic = job.workload, job.cluster.nic
    values = {
        "M": work.gradient_bytes, "N": 16, "F": work.forward_s, "G": work.backward_s,
        "O": work.optimizer_s, "alpha": nic.latency_s, "T": step_s, "S_N": 1.0,
    }  # fmt: skip
    bandwidth = expression.subs({s: values[str(s)] for s in expression.free_symbols})
    assert result.values.low == pytest.approx(float(bandwidth) / nic.efficiency, rel=0.01)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("options", "least", "formula"),
    [
        ({}, 181, "H = 2*(N*alpha - alpha + M/B - M/(B*N))/(-F - G - O + T)"),
        (
            {"sent_as": "int8"},
            46,
            "H = (2*N*alpha - 2*alpha + M/(2*B) - M/(2*B*N))/(-F - G - O + T)",
        ),
        (
            {"fragments": 2, "overlap_steps": 1},
            163,
            "H = 2*(-F - G + 2*N*alpha - O - 2*alpha + M/B - M/(B*N))/(-F - G - O + T)",
        ),
    ],
)
def test_the_period_that_a_slow_link_needs(
    options: dict[str, Any], least: int, formula: str
) -> None:
    """4.5 bytes round a ring of four at 0.05 bytes/s take 90 s. At 5 s a step of 4.5 s has 0.5 s
    for them, so 180 steps have just enough. With int8 a quarter is enough. Two fragments hide 4.5 s
    each."""
    work = workload([1.0, 1.0], [1.0, 1.0], [2.0, 1.0], optimizer_s=0.5)
    result = require(
        "period",
        "step<5",
        workload=work,
        cluster=cluster(0.05),
        workers=4,
        arch="diloco",
        options={"algorithm": "ring", **options},
    )
    assert (result.values.low, result.formula) == (least, formula)


@pytest.mark.slow
def test_surely_is_stricter_than_possibly() -> None:
    result = require("bandwidth", "throughput>2000", workers=16, arch="ring", **V100)
    surely, value, possibly = (
        each.low or 0 for each in (result.surely, result.values, result.possibly)
    )
    assert surely > value > possibly


@pytest.mark.slow
@pytest.mark.parametrize("sign", [pytest.param("<", marks=pytest.mark.slow), ">"])
def test_the_worse_end_of_the_interval_meets_the_aim_at_the_sure_value(sign: str) -> None:
    """At the sure value even the worse end of the interval meets the aim."""
    arguments = {**V100, "arch": "ring", "batch_size": 32}
    result = require("workers", f"throughput{sign}2000", **arguments)
    value = result.surely.value
    assert value is not None
    interval = answered("workers", int(value), **arguments).interval
    assert interval is not None
    low, high = interval.throughput_samples_per_s
    assert low > 2000 if sign == ">" else high < 2000


def test_an_unreachable_aim_is_reported() -> None:
    result = require("bandwidth", "scaling>0.9", arch="ps", workers=64, **V100)
    assert result.values.holds == "never"
    assert result.values.value is None
    assert result.text.startswith("no value of bandwidth meets scaling > 0.9: the closest is")
    assert "because" in result.text


def test_an_aim_met_everywhere_is_reported() -> None:
    result = require("bandwidth", "throughput>0.001", arch="ring", workers=4, **V100)
    assert result.values.holds == "always"
    assert "is met at every value of bandwidth from" in result.text


def test_impossible_values_are_left_out() -> None:
    """Backup workers leave at least one to wait for, and 8 nodes of one device hold 8 workers."""
    where = cluster(1.0, nodes=8)
    result = require(
        "workers", "step<1e9", workload=workload([2.0], [4.0], [8.0]), cluster=where, workers=4,
        arch="bsp", options={"backup_workers": 2, "servers": 1},
    )  # fmt: skip
    assert result.values.holds == "always"
    assert "from 3 to 8" in result.text or "from 3 to 7" in result.text


@pytest.mark.slow
def test_the_command_prints_the_library_result() -> None:
    words = ["require", "bandwidth", "--to", "scaling>0.9", "--model", "resnet50"]
    words += ["--device", "v100", "--arch", "ring", "--workers", "16"]
    result = require("bandwidth", "scaling>0.9", arch="ring", workers=16, **V100)
    printed = CliRunner().invoke(cli, [*words, "--json"])
    assert json.loads(printed.stdout) == json.loads(json.dumps(result.to_dict()))
    assert result.text in " ".join(CliRunner().invoke(cli, words).stdout.split())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("scalling>0.9", "did you mean 'scaling'"),
        ("scaling", "cannot parse"),
        ("scaling>1.2", "at most 1"),
        ("idle<-0.1", "positive"),
        ("throughput>nan", "positive"),
        ("throughput>many", "expected a number"),
        ("time<24x", "24x"),
    ],
)
def test_invalid_aims_are_refused(text: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        Aim.parse(text)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["bandwith", "--to", "idle<0.2"], "did you mean 'bandwidth'"),
        (["sync", "--to", "idle<0.2"], "not a number"),
        (["bandwidth", "--to", "time<24h"], "--dataset-size"),
        (["bandwidth"], "--to"),
    ],
)
def test_bad_input_is_one_line(
    words: list[str], said: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["perfmodel", "require", "--model", "resnet50", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    error = capfd.readouterr().err
    assert ended.value.code == 2
    assert error.startswith("perfmodel: error:")
    assert error.count("\n") == 1
    assert said in error
