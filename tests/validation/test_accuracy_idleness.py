"""Staleness and idleness of measured runs, predicted from the fits in the repository.

The measurements are not part of it; tests that need them are skipped if they are missing. The same
adapters predict synthetic runs with known parameters.
"""

from __future__ import annotations

import csv
import gzip
import json
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from benchmarks.accuracy import adsp, bytedance, fitted, staleness_delay
from benchmarks.accuracy.__main__ import main
from benchmarks.accuracy.cases import Case
from benchmarks.accuracy.summaries import summarise
from perfmodel import Cluster, InputError
from tests.measured import measured, predicted_cases
from tests.settings import thinned

pytestmark = pytest.mark.slow  # what they compare with is rarely at hand


@pytest.fixture
def fits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder in place of the repository's fits."""
    folder = tmp_path / "fitted"
    monkeypatch.setattr(fitted, "FOLDER", folder)
    return folder


def mean_error(cases: Iterable[Case]) -> float:
    return float(np.mean([abs(case.error) for case in cases]))


def empty(value: object) -> bool:
    return value is None or value in ([], {})


def assert_same(first: object, second: object) -> None:
    """Check equality up to rounding on another machine; a field may be new if it is empty."""
    if isinstance(first, dict) and isinstance(second, dict):
        for key in first.keys() | second.keys():
            if not empty(first.get(key)) or not empty(second.get(key)):
                assert_same(first.get(key), second.get(key))
        return
    assert type(first) is type(second)
    if isinstance(first, list) and isinstance(second, list):
        assert len(first) == len(second)
        for one, other in zip(first, second, strict=True):
            assert_same(one, other)
    elif isinstance(first, float):
        assert first == pytest.approx(second, rel=0.01, abs=1e-4)
    else:
        assert first == second


# -- the measured runs -----------------------------------------------------------------------------


def test_staleness_of_second_halves_is_predicted() -> None:
    groups = summarise(predicted_cases(staleness_delay))
    assert groups["staleness_delay/mean-BCD:staleness"]["worst"] < 0.005
    assert groups["staleness_delay/p90-BCD:staleness"]["worst"] <= 1.0
    assert groups["staleness_delay/p99-BCD:staleness"]["median"] <= 1.0
    assert groups["staleness_delay/mean-BCD:staleness"]["coverage90"] == 1.0


def test_idleness_of_production_jobs_is_predicted() -> None:
    cases = predicted_cases(bytedance)
    groups = summarise(cases)
    assert mean_error(cases) < 0.03
    assert groups["bytedance/half:idle"]["p90"] < 0.05
    assert groups["bytedance/half:idle"]["coverage90"] >= 0.85


def test_waiting_of_unequal_workers_is_predicted() -> None:
    cases = predicted_cases(adsp)
    assert mean_error(cases) < 0.03


@pytest.mark.parametrize("adapter", [staleness_delay, bytedance, adsp])
def test_the_stored_fits_are_reproduced_from_the_runs(adapter: object, fits: Path) -> None:
    kept = Path(fitted.__file__).parent / "fitted"
    name = adapter.__name__.rpartition(".")[2]  # type: ignore[attr-defined]
    adapter.fit(measured(adapter.ABOUT.folder))  # type: ignore[attr-defined]
    again = json.loads((fits / f"{name}.json").read_bytes())
    assert_same(again, json.loads((kept / f"{name}.json").read_bytes()))


# -- synthetic staleness logs ----------------------------------------------------------------------


def updates(workers: int, cv: float, count: int, seed: int) -> list[tuple[float, int]]:
    """Update times of workers that never wait, and the worker of each update."""
    generator = np.random.default_rng(seed)
    each = 3 * count // workers
    times = generator.gamma(1 / cv**2, cv**2, (workers, each)).cumsum(axis=1)
    times += generator.random((workers, 1))
    reports = sorted((float(t), k) for k, row in enumerate(times) for t in row)
    return reports[: len(reports) // 2][-count:]


def shared_memory(workers: int, cv: float, count: int, seed: int = 1) -> list[list[int]]:
    """Updates by others between two updates of the same worker."""
    last = dict.fromkeys(range(workers), -1)
    rows = []
    for place, (_, worker) in enumerate(updates(workers, cv, count, seed)):
        rows.append([place - last[worker] - 1])
        last[worker] = place
    return rows


def write_log(folder: Path, name: str, rows: Sequence[Sequence[int]]) -> Path:
    folder.mkdir(exist_ok=True)
    text = "".join(",".join(map(str, row)) + "\n" for row in rows)
    (folder / f"{name}.csv.gz").write_bytes(gzip.compress(text.encode(), mtime=0))
    return folder


@pytest.mark.usefixtures("fits")
@pytest.mark.parametrize(("workers", "cv"), thinned([(8, 0.2), (4, 0.5), (4, 0.1)], 3))
def test_a_spread_is_recovered_and_predicts_the_tail(
    tmp_path: Path, workers: int, cv: float
) -> None:
    folder = write_log(tmp_path / "logs", "BCD_a_made", shared_memory(workers, cv, 6000))
    staleness_delay.fit(folder)
    kept = fitted.read("staleness_delay", staleness_delay.StalenessFit)["made"]
    assert kept.jitter == pytest.approx(cv, rel=0.2)
    by_group = {case.group: case for case in staleness_delay.cases(folder)}
    mean = by_group["staleness_delay/mean/BCD_a_made:staleness"]
    assert mean.predicted == pytest.approx(workers - 1, rel=3e-3)
    assert abs(mean.error) < 0.005
    for name in ("p90", "p99"):
        case = by_group[f"staleness_delay/{name}/BCD_a_made:staleness"]
        assert abs(case.error) <= 1.0


@pytest.mark.usefixtures("fits")
def test_canary_another_spread_increases_the_error(tmp_path: Path) -> None:
    calm, wild = shared_memory(8, 0.1, 4000), shared_memory(8, 0.6, 4000)
    folder = write_log(tmp_path / "logs", "BCD_a_made", calm[:2000] + wild[2000:])
    staleness_delay.fit(folder)
    groups = summarise(staleness_delay.cases(folder))
    assert groups["staleness_delay/p99-BCD:staleness"]["worst"] > 5.0


def test_second_halves_are_never_fitted_to(tmp_path: Path, fits: Path) -> None:
    rows = shared_memory(8, 0.2, 2000)
    found = []
    for changed in (
        rows,
        rows[:1000] + [[3 * row[0]] for row in rows[1000:]],
        shared_memory(8, 0.6, 2000),
    ):
        staleness_delay.fit(write_log(tmp_path / "logs", "BCD_a_made", changed))
        found.append((fits / "staleness_delay.json").read_bytes())
    assert found[0] == found[1]
    assert found[0] != found[2]


@pytest.mark.usefixtures("fits")
def test_unseen_logs_are_predicted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Another problem and another number of workers; logs that cannot be predicted are named."""
    staleness_delay.fit(write_log(tmp_path / "seen", "BCD_a_made", shared_memory(8, 0.2, 4000)))
    other = write_log(tmp_path / "other", "BCD_b_new", shared_memory(4, 0.2, 4000, seed=2))
    write_log(other, "BCD_b_short", shared_memory(8, 0.2, 100))
    write_log(other, "PIAG_b_new", [[0, 1]] * 1000)
    write_log(other, "BCD_b_alone", [[0]] * 100)
    found = staleness_delay.cases(other)
    assert {case.name for case in found} == {"BCD_b_new"}
    assert found[0].predicted == pytest.approx(3, rel=3e-3)
    assert all(abs(case.error) <= 1.0 for case in found)
    assert capsys.readouterr().err.splitlines() == [
        "too short, or one worker, left out: BCD_b_alone.csv.gz",
        "too short, or one worker, left out: BCD_b_short.csv.gz",
    ]


@pytest.mark.usefixtures("fits")
def test_mistakes_in_logs_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"staleness_delay\.json: cannot read: .*; --fit makes it"):
        staleness_delay.cases(tmp_path)
    with pytest.raises(InputError, match="no log that is long enough"):
        staleness_delay.fit(tmp_path)
    (tmp_path / "BCD_a_b.csv.gz").write_bytes(gzip.compress(b"delay\n7\n"))
    with pytest.raises(InputError, match=r"BCD_a_b\.csv\.gz: cannot read"):
        staleness_delay.fit(tmp_path)
    (tmp_path / "BCD_a_b.csv.gz").write_bytes(b"7\n7\n")
    with pytest.raises(InputError, match=r"BCD_a_b\.csv\.gz: cannot read"):
        staleness_delay.fit(tmp_path)


# -- synthetic traces ------------------------------------------------------------------------------

Trace = list[dict[str, object]]
COLUMNS = ["start_ts", "step", "stage", "dp_rank", "optype", "duration", "mb_id", "mc", "rank"]


def pipeline(
    step: int, worker: int, forward_s: float, backward_s: float, microbatches: int
) -> Trace:
    """Two stages. The last stage alternates forward and backward of each microbatch; the first
    stage runs all forwards, then all backwards. So the last one ends after (m + 1) forwards and m
    backwards, and the first one a backward later."""
    rows: Trace = []

    def add(stage: int, kind: str, microbatch: int, start_s: float, seconds: float) -> float:
        values = (start_s, step, stage, worker, kind, seconds, microbatch, 0, 2 * worker + stage)
        rows.append(dict(zip(COLUMNS, values, strict=True)))
        return start_s + seconds

    begin_s = 100.0 * step
    done_s = [
        add(0, "forward-compute", m, begin_s + m * forward_s, forward_s)
        for m in range(microbatches)
    ]
    now_s, back_s = begin_s, done_s[-1]
    for m in range(microbatches):
        now_s = add(1, "forward-compute", m, max(now_s, done_s[m]), forward_s)
        now_s = add(1, "backward-compute", m, now_s, backward_s)
        back_s = add(0, "backward-compute", m, max(back_s, now_s), backward_s)
    return rows


def group(step: int, forwards_s: Sequence[float], rest_s: float = 0.0) -> Trace:
    """A step of as many pipelines; all of them end ``rest_s`` after the slowest."""
    rows = [
        row
        for worker, forward_s in enumerate(forwards_s)
        for row in pipeline(step, worker, forward_s, 2 * forward_s, 4)
    ]
    end_s = max(float(str(row["start_ts"])) + float(str(row["duration"])) for row in rows)
    ranks = {(row["rank"], row["stage"], row["dp_rank"]) for row in rows}
    for rank, stage, worker in sorted(ranks, key=str):
        values = (end_s, step, stage, worker, "optimizer", rest_s, -1, 0, rank)
        rows.append(dict(zip(COLUMNS, values, strict=True)))
    return rows


def write_trace(folder: Path, name: str, rows: Trace, columns: Sequence[str] = COLUMNS) -> Path:
    folder.mkdir(exist_ok=True)
    with gzip.open(folder / f"trace-{name}.csv.gz", "wt", newline="") as file:
        writer = csv.DictWriter(file, columns, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)
    return folder


def varied(steps: int, workers: int, cv: float, seed: int = 1) -> Trace:
    generator = np.random.default_rng(seed)
    times = generator.gamma(1 / cv**2, cv**2, (steps, workers)) * 0.1
    return [row for k, each in enumerate(times) for row in group(k, [float(x) for x in each], 0.2)]


@pytest.mark.usefixtures("fits")
def test_a_slow_worker_is_waited_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two pipelines of four microbatches; a forward takes 1 s and 1.5 s, a backward twice that."""
    rows = [row for step in range(4) for row in group(step, [1.0, 1.5])]
    bytedance.fit(write_trace(tmp_path / "traces", "slow", rows))
    write_trace(tmp_path / "traces", "unknown", rows)
    found = {case.name: case for case in bytedance.cases(tmp_path / "traces")}
    said = capsys.readouterr().err.splitlines()
    assert said == [f"left out, no fit to other steps: unknown stage {k}" for k in (0, 1)]
    ends_s = {0: 5 + 5 * 2, 1: 5 + 4 * 2}  # of the stages of the fast one
    for stage, end_s in ends_s.items():
        expected = 0.5 * end_s / (1.5 * ends_s[0])
        fast, slow = found[f"stage {stage}, worker 0"], found[f"stage {stage}, worker 1"]
        assert fast.measured == pytest.approx(expected)
        assert fast.predicted == pytest.approx(expected, rel=1e-4)
        assert slow.measured == pytest.approx(0.0, abs=1e-9)
        assert slow.predicted == pytest.approx(0.0, abs=1e-9)


@pytest.mark.usefixtures("fits")
def test_later_steps_are_predicted_from_earlier_ones(tmp_path: Path) -> None:
    folder = write_trace(tmp_path / "traces", "even", varied(60, 8, 0.15))
    bytedance.fit(folder)
    kept = fitted.read("bytedance", bytedance.StageFit)["even stage 0"]
    assert kept.steps == list(range(30))
    slowest_s = 1.25 * 1.5  # of eight workers
    assert kept.jitter == pytest.approx(0.15 * 1.5 / (0.2 + slowest_s), rel=0.2)
    groups = summarise(bytedance.cases(folder))
    assert groups["bytedance/half/even:idle"]["n"] == 16
    assert groups["bytedance/half/even:idle"]["p90"] < 0.05
    assert groups["bytedance/half/even:idle"]["coverage90"] >= 0.85
    assert groups["bytedance/half/even:idle"]["others"]["no idleness"]["median"] > 0.1


def test_canary_another_half_is_an_error(tmp_path: Path, fits: Path) -> None:
    rows = varied(40, 8, 0.05)
    folder = write_trace(tmp_path / "traces", "odd", rows)
    bytedance.fit(folder)
    first = (fits / "bytedance.json").read_bytes()
    for row in rows:
        if int(str(row["step"])) >= 20 and row["dp_rank"] == 3 and row["mb_id"] != -1:
            row["duration"] = 2 * float(str(row["duration"]))
            row["start_ts"] = 100.0 * int(str(row["step"])) + 2 * (
                float(str(row["start_ts"])) % 100
            )
    bytedance.fit(write_trace(folder, "odd", rows))
    assert (fits / "bytedance.json").read_bytes() == first
    groups = summarise(bytedance.cases(folder))
    assert groups["bytedance/half/odd:idle"]["median"] > 0.2
    assert groups["bytedance/half/odd:idle"]["coverage90"] < 0.5


@pytest.mark.usefixtures("fits")
def test_columns_that_are_not_needed_may_be_missing(tmp_path: Path) -> None:
    """And several devices may have the same part of the model."""
    rows = [row for step in range(4) for row in group(step, [1.0, 1.5])]
    twice = rows + [row | {"rank": int(str(row["rank"])) + 8} for row in rows]
    bytedance.fit(write_trace(tmp_path / "traces", "one", rows))
    results = []
    for given, columns in ((rows, COLUMNS), (rows, COLUMNS[:6]), (twice, COLUMNS)):
        found = bytedance.cases(write_trace(tmp_path / "traces", "one", given, columns))
        results.append([(case.name, case.predicted, case.measured) for case in found])
    assert len(results[0]) == 4
    assert results[1] == results[0]
    assert results[2] == results[0]


@pytest.mark.usefixtures("fits")
def test_mistakes_in_traces_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no trace \(trace-\*\.csv\.gz\)"):
        bytedance.fit(tmp_path)
    write_trace(tmp_path, "bad", group(0, [1.0, 1.5]), ["step", "stage", "dp_rank"])
    with pytest.raises(InputError, match=r"trace-bad\.csv\.gz: cannot read: .*optype"):
        bytedance.fit(tmp_path)


# -- made-up schemes -------------------------------------------------------------------------------


def scheme(name: str, wall_s: float, steps: int, compute_s: Sequence[float]) -> dict[str, object]:
    each = {f"compute_w{k}_s": steps * x for k, x in enumerate(compute_s)}
    return {"note": "", "scheme": name, "wall_s": wall_s, "total_steps": steps * len(each), **each}


def write_schemes(folder: Path, rows: Sequence[dict[str, object]]) -> Path:
    folder.mkdir(exist_ok=True)
    with (folder / "waiting_time.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return folder


MESSAGE_S, STEP_S = 2.0, [1.0, 1.0, 1.0, 1.0]
BSP = scheme("BSP", 100 * (1.0 + 8 * MESSAGE_S), 100, STEP_S)
"""Four equal workers: all push at once, then all pull at once, over one link of the server."""


@pytest.mark.usefixtures("fits")
def test_the_time_of_a_message_is_found(tmp_path: Path) -> None:
    period = scheme("Fixed ADACOMM tau=10", 10 * (10.0 + 8 * MESSAGE_S), 100, STEP_S)
    folder = write_schemes(tmp_path / "runs", [BSP, period])
    adsp.fit(folder)
    found = fitted.read("adsp", Cluster)["BSP"]
    assert 1.0 / found.nic.goodput_bytes_per_s == pytest.approx(MESSAGE_S, rel=1e-3)
    cases = adsp.cases(folder)
    assert {case.group for case in cases} == {"adsp/waiting/Fixed ADACOMM tau=10:idle"}
    assert len(cases) == 4
    for case in cases:
        assert case.predicted == pytest.approx(16 / 26, abs=1e-3)
        assert abs(case.error) < 1e-3
        assert case.others == {"no communication": 0.0}


@pytest.mark.usefixtures("fits")
def test_other_schemes_and_other_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    adsp.fit(write_schemes(tmp_path / "seen", [BSP]))
    uneven = [1.0, 1.0, 2.0, 4.0]
    rows = [
        scheme("ADSP", 640.0, 100, [6.0] * 4),
        scheme("SSP s=5", 1000.0, 100, uneven),
        scheme("ADACOMM", 1000.0, 100, uneven),
        scheme("ring", 1000.0, 100, uneven),
    ]
    cases = adsp.cases(write_schemes(tmp_path / "other", rows))
    found = {(c.group, c.name.partition(", ")[2]): c for c in cases}
    assert len(found) == 12
    assert capsys.readouterr().err == "not known how it works, left out: ring\n"
    alone = found["adsp/waiting/ADSP:idle", "worker 0"].predicted
    assert alone == pytest.approx(2 * MESSAGE_S / (60.0 + 2 * MESSAGE_S), abs=0.02)
    for name in ("SSP s=5", "ADACOMM"):
        waiting = [found[f"adsp/waiting/{name}:idle", f"worker {k}"].predicted for k in range(4)]
        assert waiting[0] == pytest.approx(waiting[1], abs=1e-4)  # alike but for their start
        assert waiting[1] > waiting[2] > waiting[3]
        assert waiting[0] - waiting[3] > 0.1


@pytest.mark.usefixtures("fits")
def test_canary_a_wrong_wall_time_is_an_error(tmp_path: Path) -> None:
    slow = scheme("Fixed ADACOMM tau=10", 2 * 10 * (10.0 + 8 * MESSAGE_S), 100, STEP_S)
    folder = write_schemes(tmp_path / "runs", [BSP, slow])
    adsp.fit(folder)
    assert mean_error(adsp.cases(folder)) > 0.15


@pytest.mark.usefixtures("fits")
@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([scheme("SSP s=3", 10.0, 1, STEP_S)], "no scheme BSP"),
        ([scheme("BSP", 10.0, 100, STEP_S)], "its step of 0.1 s is less than it computes"),
        ([scheme("BSP", -1.0, 100, STEP_S)], "line 2: wall_s: must be more than 0, got -1"),
        ([{"scheme": "BSP", "wall_s": 1.0, "total_steps": 1}], "line 2: no compute_w0_s"),
        (
            [{**scheme("BSP", 1.0, 1, STEP_S), "wall_s": "soon"}],
            "line 2: could not convert string to float: 'soon'",
        ),
    ],
)
def test_mistakes_in_tables_are_named(
    tmp_path: Path, rows: list[dict[str, object]], message: str
) -> None:
    with pytest.raises(InputError) as error:
        adsp.fit(write_schemes(tmp_path / "runs", rows))
    assert message in str(error.value)


# -- the command -----------------------------------------------------------------------------------


def test_the_command(tmp_path: Path, fits: Path) -> None:
    period = scheme("Fixed ADACOMM tau=10", 10 * (10.0 + 8 * MESSAGE_S), 100, STEP_S)
    folder = write_schemes(tmp_path / "runs", [BSP, period])
    done = CliRunner().invoke(main, ["adsp", str(folder), "--fit", "--json"])
    assert done.exit_code == 0, done.output
    groups = json.loads(done.stdout)["groups"]
    assert groups.keys() == {"adsp/waiting:idle", "adsp/waiting/Fixed ADACOMM tau=10:idle"}
    assert groups["adsp/waiting:idle"]["worst"] < 1e-3
    assert [path.name for path in fits.iterdir()] == ["adsp.json"]


@pytest.mark.parametrize("adapter", [staleness_delay, bytedance, adsp])
def test_what_is_said_of_a_source_is_complete(adapter: object) -> None:
    about = adapter.ABOUT  # type: ignore[attr-defined]
    kept = json.loads(
        (Path(fitted.__file__).parent / "fitted" / f"{_name(adapter)}.json").read_text()
    )
    assert kept
    assert all(split.calibrated and split.predicted for split in about.splits.values())
    assert "Not covered" in about.remarks


def _name(adapter: object) -> str:
    return str(adapter.__name__).rpartition(".")[2]  # type: ignore[attr-defined]
