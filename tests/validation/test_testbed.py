"""Real runs, predicted from their configuration alone; skipped if measurements are missing."""

from __future__ import annotations

import functools
import json
import math
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from benchmarks.accuracy import cases, fitted, residuals, testbed
from benchmarks.accuracy.__main__ import main
from benchmarks.accuracy.cases import Case
from benchmarks.accuracy.summaries import ranking_summary, rankings, summarise
from benchmarks.accuracy.targets import TARGETS
from perfmodel import InputError, Job, Prediction, predict
from perfmodel.inputs.calibration import Calibration
from tests.measured import measured, predicted_cases

pytestmark = pytest.mark.slow  # what they compare with is rarely at hand


@pytest.fixture(scope="module")
def folder() -> Path:
    return measured(testbed.ABOUT.folder, "results.jsonl")


WORST = {
    "testbed/ring": 0.04,
    "testbed/p2p": 0.04,
    "testbed/dpsgd": 0.04,
    "testbed/ps_bsp": 0.10,
    "testbed/ps_async": 0.15,
    "testbed/ps_ssp": 0.15,
    "testbed/adpsgd": 0.15,
    "testbed/mxnet_bsp": 0.20,
    "testbed/mxnet_async": 0.25,
}
"""Largest error of each group."""


@pytest.fixture
def found() -> tuple[Case, ...]:
    return predicted_cases(testbed, "results.jsonl")


@pytest.fixture
def groups(found: tuple[Case, ...]) -> dict[str, dict[str, Any]]:
    return summarise(found)


def test_step_times_are_predicted(groups: dict[str, dict[str, Any]]) -> None:
    targets = [target for target in TARGETS if target.group in WORST and target.group in groups]
    assert len(targets) == 9
    for name, median, p90 in targets:
        assert groups[name]["n"] >= 2
        assert groups[name]["median"] < median
        assert groups[name]["p90"] < p90
        assert groups[name]["worst"] < WORST[name]


def test_mean_staleness_is_predicted(groups: dict[str, dict[str, Any]]) -> None:
    assert groups["testbed/ps_async:staleness"]["worst"] < 0.05
    assert groups["testbed/ps_ssp:staleness"]["worst"] < 0.15
    assert groups["testbed/adpsgd:staleness"]["worst"] < 0.3


def test_idleness_is_predicted(groups: dict[str, dict[str, Any]]) -> None:
    for name in WORST.keys() & groups.keys() - {"testbed/mxnet_async"}:
        assert groups[f"{name}:idle"]["median"] < 0.03


def test_intervals_cover_nine_of_ten(groups: dict[str, dict[str, Any]]) -> None:
    assert 0.85 <= groups["testbed/all"]["coverage90"] <= 0.95


def test_baselines_are_beaten(groups: dict[str, dict[str, Any]]) -> None:
    every = groups["testbed/all"]
    for name in ("ideal scaling", "plain alpha-beta"):
        assert every["median"] < every["others"][name]["median"] / 10.0
        assert every["p90"] < every["others"][name]["p90"] / 4.0


def test_runs_are_ranked(found: tuple[Case, ...]) -> None:
    ranking = ranking_summary(rankings(found))
    assert ranking["settings"] >= 5
    assert ranking["median_kendall_tau"] >= 0.9


def test_unequal_shares_explain_slow_incast(folder: Path, found: tuple[Case, ...]) -> None:
    """Without the queue, steps of 6 and 8 workers with many small layers are 10 % too short."""
    fair = {
        run.name: predict(without_queue(run.job)).iteration_s / (run.step_s or 0.0) - 1.0
        for run in testbed.runs(folder)
        if run.group == "testbed/ps_bsp" and " 1 servers" in run.name
        if run.job.workers >= 6 and run.job.workload.name != "alexnet"
    }
    assert len(fair) >= 2
    assert max(fair.values()) < -0.1
    for case in found:
        if case.group == "testbed/ps_bsp" and case.name in fair:
            assert abs(case.error) < 0.05


def without_queue(job: Job) -> Job:
    cluster = msgspec.structs.replace(job.cluster, queue_bytes=None)
    return msgspec.structs.replace(job, cluster=cluster)


def test_the_stored_fits_are_reproduced_from_the_runs(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = fitted.read("testbed", Calibration)
    monkeypatch.setattr(fitted, "FOLDER", tmp_path)
    testbed.fit(folder)
    assert fitted.read("testbed", Calibration) == kept


def test_summaries_notice_errors() -> None:
    """Canary: a prediction 20 % too high is an error of 0.2, whatever its sign elsewhere."""
    case = Case("g", "x", 1.2, 1.0)
    assert summarise([case])["g"]["worst"] == pytest.approx(0.2)


# -- synthetic runs -------------------------------------------------------------------------------

RATE = 200e6
NET = {"tcp_goodput_bps": 0.956 * RATE, "rtt_s": 1e-4, "queue": 2**19}
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "ring_ddp": {"bucket_cap_bytes": 4e5, "first_bucket_bytes": 1e5},
    "ps": {"n_servers": 1, "push": "layer", "pull": "layer", "sharding": "greedy"},
    "mxnet_ps": {"n_servers": 1, "bigarray_bound_elements": 100_000},
    "p2p": {"pull": "layer"},
    "dpsgd": {},
    "adpsgd": {},
}


def run(
    arch: str, sync: str, model: str = "vgg", workers: int = 4, factor: float = 1.0, **more: Any
) -> dict[str, Any]:
    """A run that takes ``factor`` times as long as predicted."""
    layers = [
        {"name": f"l{i}", "elements": [n, 5], "bytes": 4 * (n + 5), "fwd_s": f, "bwd_s": 2 * f}
        for i, (n, f) in enumerate([(1000, 0.02), (200_000, 0.03), (50_000, 0.01)])
    ]
    config = {
        "arch": arch,
        "sync": sync,
        "model": model,
        "batch": 32,
        "n_workers": workers,
        "rate": RATE,
        "rates_bps": [RATE] * (workers + 1),
        "layers": layers,
        "fwd_s": 0.06,
        "bwd_s": 0.12,
        "tag": "main",
        **({"ssp_bound": 2} if sync == "ssp" else {}),
        **ARCHITECTURES[arch],
        **more,
    }
    step_s = predicted(testbed.job_of(config, NET, [])).iteration_s * factor
    measured = {"iter_s_mean": step_s, "idle_frac_mean": 0.3, "staleness": None}
    return {"config": config, "net": NET, "meas": measured}


def made(to: Path, found: list[dict[str, Any]]) -> Path:
    to.mkdir(exist_ok=True)
    (to / "results.jsonl").write_text("\n".join(map(json.dumps, found)) + "\n\n")
    return to


@pytest.fixture(autouse=True)
def each_job_is_simulated_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cases, "predict", predicted)
    monkeypatch.setattr(residuals, "predict", predicted)


KNOWN: dict[str, Prediction] = {}


def predicted(job: Job, **options: Any) -> Prediction:
    key = f"{job} {options}"
    if key not in KNOWN:
        KNOWN[key] = predict(job, **options)
    return KNOWN[key]


def steps(folder: Path) -> list[Case]:
    return [case for case in testbed.cases(folder) if ":" not in case.group]


@functools.cache
def every() -> list[dict[str, Any]]:
    """A run of each group; tests that change one work on a copy."""
    return [run(*kind.split(), workers=8) for kind in testbed.KINDS]


def test_runs_of_a_new_dnn_are_predicted(tmp_path: Path) -> None:
    """Without any gloo.jsonl, with a rate and a DNN that were not fitted."""
    found = steps(made(tmp_path, every()))
    assert [c.group for c in found] == [f"testbed/{k[0]}" for k in testbed.KINDS.values()]
    for case in found:
        assert case.error == pytest.approx(0.0, abs=1e-9)
        assert case.interval is not None
        assert case.interval[0] < case.predicted < case.interval[1] < 2.0 * case.predicted
        assert case.others.keys() == {"coarse", "ideal scaling", "plain alpha-beta"}
        assert case.others["ideal scaling"] == pytest.approx(0.18)
        assert case.others["plain alpha-beta"] > 0.18
        assert case.samples == 8 * 32
    assert len({case.setting for case in found}) == len(ARCHITECTURES)


def test_canary_a_longer_run_increases_the_error(tmp_path: Path) -> None:
    slow = [run(*kind.split(), factor=1.8) for kind in testbed.KINDS]
    found = summarise(steps(made(tmp_path, slow)))["testbed/all"]
    assert found["bias"] == pytest.approx(1.0 / 1.8 - 1.0)
    assert found["coverage90"] == 0.0


def test_more_workers_than_in_known_runs_widen_intervals(tmp_path: Path) -> None:
    widths = []
    for rates, workers in (([RATE] * 5, 4), ([50e6] + [RATE] * 4, 4), ([RATE] * 17, 16)):
        one = run("ps", "async", workers=workers, rates_bps=rates)
        (case,) = steps(made(tmp_path, [one]))
        assert case.interval is not None
        widths.append(case.interval[1] / case.interval[0])
        assert ("slow link" in case.setting) == (rates[0] == 50e6)
    assert widths[0] < widths[2]


def test_unpredictable_runs_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    new, broken, failed = (json.loads(json.dumps(every()[0])) for _ in range(3))
    new["config"]["arch"] = "pipeline"
    del broken["config"]["layers"]
    del failed["meas"]["iter_s_mean"]
    assert len(steps(made(tmp_path, [*every(), new, broken, failed]))) == len(every())
    said = capsys.readouterr().err.splitlines()
    for line, what, name in zip(
        (10, 11, 12), ("pipeline", "layers", "iter_s_mean"), said, strict=True
    ):
        assert what in name
        assert name.endswith(f"left out: {tmp_path / 'results.jsonl'}: line {line}")
    with pytest.raises(InputError, match="no run of a known architecture"):
        testbed.cases(made(tmp_path, [new]))
    with pytest.raises(InputError, match=r"results\.jsonl: no such file"):
        testbed.cases(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("part", "name", "value", "message"),
    [
        ("meas", "iter_s_mean", 0.0, "iter_s_mean: must be more than 0, got 0"),
        ("meas", "iter_s_mean", math.nan, "iter_s_mean: expected a finite number, got nan"),
        ("meas", "iter_s_mean", "slow", "iter_s_mean: expected a number, got 'slow'"),
        ("meas", "idle_frac_mean", math.inf, "idle_frac_mean: expected a finite number, got inf"),
        ("config", "rate", 0, "rate: must be more than 0, got 0"),
        ("config", "n_workers", 0, "workers: must be at least 1, got 0"),
    ],
)
def test_wrong_numbers_are_named(
    tmp_path: Path, part: str, name: str, value: object, message: str
) -> None:
    wrong = json.loads(json.dumps(every()[0]))
    wrong[part][name] = value
    with pytest.raises(InputError) as error:
        testbed.cases(made(tmp_path, [every()[1], wrong]))
    assert str(error.value).endswith(f"results.jsonl: line 2: {message}")


def test_a_truncated_line_is_named(tmp_path: Path) -> None:
    folder = made(tmp_path, every()[:2])
    text = (folder / "results.jsonl").read_text().rstrip()
    (folder / "results.jsonl").write_text(text[:-20])
    with pytest.raises(InputError, match=r"results\.jsonl: line 2: not JSON"):
        testbed.cases(folder)


def test_optional_parts_of_a_run_may_be_missing(tmp_path: Path) -> None:
    """Windows line ends, no totals, no seed, and only the step measured."""
    bare = json.loads(json.dumps(every()))
    for one in bare:
        one["meas"] = {"iter_s_mean": one["meas"]["iter_s_mean"]}
        for name in ("fwd_s", "bwd_s", "tag", "rates_bps"):
            del one["config"][name]
    (tmp_path / "results.jsonl").write_text("\r\n".join(map(json.dumps, bare)) + "\r\n\r\n")
    assert [c.others["ideal scaling"] for c in steps(tmp_path)] == pytest.approx([0.18] * len(bare))


def test_intervals_are_fitted_to_the_other_dnns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs of *bad* are far off: this widens the intervals of the others but not its own."""
    monkeypatch.setattr(fitted, "FOLDER", tmp_path / "fitted")
    some = [
        run("ps", "async", model, workers, factor)
        for model, factors in (
            ("good", (0.99, 1.01, 1.0)),
            ("fine", (1.0, 1.02)),
            ("bad", (1.4, 0.7)),
        )
        for workers, factor in enumerate(factors, start=2)
    ]
    folder = made(tmp_path, some)
    done = CliRunner().invoke(main, ["testbed", str(folder), "--fit", "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["groups"]["testbed/ps_async"]["n"] == 7
    fits = fitted.read("testbed", Calibration)
    assert {name: fit.rows for name, fit in fits.items()} == {
        "ps": 7,
        "ps without bad": 5,
        "ps without fine": 5,
        "ps without good": 4,
    }
    width = {name: fit.spread for name, fit in fits.items()}
    assert width.pop("ps without bad") < 0.1
    assert min(width.values()) > 0.2
    inside = {
        c.name: c.interval[0] <= c.measured <= c.interval[1] for c in steps(folder) if c.interval
    }
    assert {name for name, held in inside.items() if not held} == {
        name for name in inside if name.startswith("bad")
    }
